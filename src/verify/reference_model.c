// SPDX-License-Identifier: Apache-2.0
// reference_model.c - rewrites a copy of the unsharded model where ONNX Runtime computes it wrong,
// with the workarounds that rank files get too (rules/workarounds.c). Otherwise verify would
// compare right sharded results with wrong reference results.
#include "verify/internal.h"
#include "rules/rules.h"

#define COMPRESS_SINCE 9  // operator set
#define MOST_AXES      18 // of a node with windows

// Returns bits of the axes of input 0 whose size is hidden from the engine, because it would infer
// a wrong size of the result from it (quirk misread_windows).
static unsigned hidden_axes(const struct shapes *shapes, const tsr_node *node)
{
    struct shape x = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    unsigned axes = 0;
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        axes |= tsr__shapes_misread(shapes, tsr_node_output(node, i));
    if (tsr__node_opset(node) < COMPRESS_SINCE)
        return 0;
    for (int axis = 0; axis < x.rank; axis++)
        if (axes >> axis & 1 && x.dims[axis].value < 1)
            axes &= ~(1u << axis);
    return axes;
}

bool tsr__reference_needs_copy(tsr_model *model)
{
    const struct shapes *shapes = tsr__model_shapes(model);
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        if (tsr__node_rereads(node) || tsr__node_copies(node) ||
            (shapes && (hidden_axes(shapes, node) || tsr__control_is_vague(shapes, node))))
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

// Inserts a chain of `copies` copying nodes (Concat of one input) before a node.
static tsr_status copy_input(struct arena *arena, tsr_node *node, size_t copies, size_t number)
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

// Inserts a Compress that keeps all elements of an axis before input 0 of the node.
static tsr_status hide_size(struct arena *arena, tsr_node *node, int axis, int64_t size,
                            size_t number)
{
    struct str name = tsr__arena_printf(arena, "tessera_hidden_%zu_%d", number, axis);
    struct str mask = tsr__arena_printf(arena, "tessera_all_%zu_%d", number, axis);
    unsigned char *all = ARENA_ARRAY(arena, unsigned char, (size_t)size);
    if (!name.p || !mask.p || !all)
        return TSR_NOMEM;
    memset(all, 1, (size_t)size);
    tsr_value *in[2] = {tsr_node_input(node, 0)};
    in[1] = tsr_graph_add_initializer(tsr_node_graph(node), mask.p, TSR_BOOL, 1, &size, all,
                                      (size_t)size);
    tsr_value *x = in[1] ? add_before(tsr_node_graph(node), node, "Compress", name.p, in, 2) : NULL;
    if (!x || tsr_node_set_int(tsr_value_producer(x), "axis", axis) != TSR_OK)
        return TSR_NOMEM;
    return tsr_node_replace_input(node, 0, x);
}

// What the reference changes at one node.
struct rewriting {
    tsr_node *node;
    size_t copies;            // before input 0
    unsigned hidden;          // bits of axes of input 0
    int64_t sizes[MOST_AXES]; // of these axes
};

static void plan_rewriting(const struct shapes *shapes, tsr_node *node, struct rewriting *out)
{
    struct shape x = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    *out = (struct rewriting){.node = node, .copies = tsr__node_copies(node)};
    out->hidden = hidden_axes(shapes, node);
    for (int axis = 0; axis < x.rank && axis < MOST_AXES; axis++)
        out->sizes[axis] = x.dims[axis].value;
}

static tsr_status rewrite(struct arena *arena, const struct rewriting *rewriting, size_t number)
{
    tsr_node *node = rewriting->node;
    for (int axis = 0; axis < MOST_AXES; axis++)
        if (rewriting->hidden >> axis & 1)
            TRY(hide_size(arena, node, axis, rewriting->sizes[axis], number));
    if (rewriting->copies)
        return copy_input(arena, node, rewriting->copies, number);
    if (tsr__node_rereads(node) && tsr_node_output(node, 0))
        return keep_first_input(arena, node, number);
    return TSR_OK;
}

// Rewrites the model so that the engine computes it correctly. Plans all changes before it makes
// one, because they depend on the other readers of a value, and shapes on the unchanged model.
tsr_status tsr__reference_rewrite(struct arena *arena, tsr_model *model)
{
    const struct shapes *shapes = tsr__model_shapes(model);
    size_t n = 0;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        n++;
    struct rewriting *list = ARENA_ARRAY(arena, struct rewriting, n + 1);
    if (!shapes || !list)
        return TSR_NOMEM;
    n = 0;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        plan_rewriting(shapes, node, &list[n++]);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < n && st == TSR_OK; i++)
        st = tsr__control_declare(shapes, list[i].node, list[i].node);
    for (size_t i = 0; i < n && st == TSR_OK; i++)
        st = rewrite(arena, &list[i], i);
    return st;
}
