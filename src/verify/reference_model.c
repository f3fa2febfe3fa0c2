// SPDX-License-Identifier: Apache-2.0
// reference_model.c - rewrites a copy of the unsharded model where ONNX Runtime computes it wrong,
// with the workarounds that rank files get too (rules/workarounds.c). Otherwise verify would
// compare right sharded results with wrong reference results.
#include "verify/internal.h"
#include "rules/rules.h"

bool tsr__reference_needs_copy(const tsr_model *model)
{
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        if (tsr__node_rereads(node) || tsr__node_split_rank(node))
            return true;
    return false;
}

// Adds a node with one output in front of `before` (NULL: at the end). Returns its output; NULL:
// failed.
static tsr_value *add_before(tsr_graph *graph, tsr_node *before, const char *op, const char *name,
                             tsr_value *const *inputs, size_t n)
{
    tsr_node *node = tsr_graph_add_node(graph, "", op, name, inputs, n, &name, 1);
    if (!node || (before && tsr_node_move_before(node, before) != TSR_OK))
        return NULL;
    return tsr_node_output(node, 0);
}

// Makes the engine keep the first input of a node until the output is complete. Otherwise it may
// store the output in the memory of the input and read the input afterwards. Example: y = MoE(x):
// readers of y read Where(false, x, y) instead.
static tsr_status keep_first_input(struct arena *arena, tsr_node *node, size_t number)
{
    static const unsigned char no = 0;
    tsr_graph *graph = tsr_node_graph(node);
    tsr_value *y = tsr_node_output(node, 0), *x = tsr_node_input(node, 0);
    struct str name = tsr__arena_str(arena, str_of(tsr_value_name(y)));
    struct str never = tsr__arena_printf(arena, "tessera_never_%zu", number);
    struct str kept = tsr__arena_printf(arena, "tessera_kept_%zu", number);
    if (!name.p || !never.p || !kept.p)
        return TSR_NOMEM;
    tsr_value *in[3] = {tsr_graph_add_initializer(graph, never.p, TSR_BOOL, 0, NULL, &no, 1), x, y};
    if (!in[0])
        return TSR_NOMEM;
    tsr_value *out = add_before(graph, tsr_node_next(node), "Where", kept.p, in, 3);
    if (!out)
        return TSR_NOMEM;
    tsr_dim dims[RULE_MAX_RANK];
    int rank = tsr_value_rank(y);
    for (int i = 0; i < rank && i < RULE_MAX_RANK; i++)
        dims[i] = tsr_value_dim(y, i);
    tsr_status st = TSR_OK;
    if (rank >= 0 && rank <= RULE_MAX_RANK)
        st = tsr_value_set_type(out, tsr_value_dtype(y), rank, dims);
    if (st == TSR_OK)
        st = tsr_value_replace_uses(y, out, true);
    if (st == TSR_OK) // the Where itself reads y
        st = tsr_node_replace_input(tsr_value_producer(out), 2, y);
    kept = tsr__arena_printf(arena, "tessera_result_%zu", number);
    if (st == TSR_OK)
        st = kept.p ? tsr_value_rename(y, kept.p) : TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr_value_rename(out, name.p);
    return st;
}

// Inserts a chain of `copies` copying nodes (Concat of one input) before a Split. `copies` is the
// result of tsr__node_split_rank, so Splits with different numbers of outputs read different
// copies.
static tsr_status copy_split(struct arena *arena, tsr_node *node, size_t copies, size_t number)
{
    tsr_value *x = tsr_node_input(node, 0);
    for (size_t i = 0; i < copies; i++) {
        struct str name = tsr__arena_printf(arena, "tessera_copy_%zu_%zu", number, i);
        if (!name.p)
            return TSR_NOMEM;
        x = add_before(tsr_node_graph(node), node, "Concat", name.p, &x, 1);
        if (!x || tsr_node_set_int(tsr_value_producer(x), "axis", 0) != TSR_OK)
            return TSR_NOMEM;
    }
    return tsr_node_replace_input(node, 0, x);
}

// Rewrites the model so that the engine computes it correctly. Counts the copies for all Splits
// before it rewrites one, because the counts depend on the other readers of a value.
tsr_status tsr__reference_rewrite(struct arena *arena, tsr_model *model)
{
    size_t n = 0, i = 0;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        n++;
    tsr_node **nodes = ARENA_ARRAY(arena, tsr_node *, n + 1);
    size_t *copies = ARENA_ARRAY(arena, size_t, n + 1);
    if (!nodes || !copies)
        return TSR_NOMEM;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        nodes[i] = node;
        copies[i++] = tsr__node_split_rank(node);
    }
    tsr_status st = TSR_OK;
    for (i = 0; i < n && st == TSR_OK; i++) {
        if (copies[i])
            st = copy_split(arena, nodes[i], copies[i], i);
        else if (tsr__node_rereads(nodes[i]) && tsr_node_output(nodes[i], 0))
            st = keep_first_input(arena, nodes[i], i);
    }
    return st;
}
