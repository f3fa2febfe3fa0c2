// SPDX-License-Identifier: Apache-2.0
// equal_nodes.c - finds equal nodes: candidates of one suit all. All planners with the same values
// share what is found here, because the devices do not matter.
//
//     Example: 24 layers, each with a MatMul of [128, 512] by [512, 2048] in float32. The 24 nodes
//     have the same key, and so the same number on any devices.
#include "plan/candidates/candidates.h"

// ---- the key -----------------------------------------------------------------------------------

// Appends numbers to the key. Keys are bytes, because formatting them as text took a quarter of the
// planning time.
static void key_numbers(struct text *key, const int64_t *numbers, size_t n)
{
    tsr__text_add(key, str_bytes(numbers, n * sizeof *numbers));
}

// Appends a text after its length; NULL: as an empty text.
static void key_text(struct text *key, const char *text)
{
    struct str str = text ? str_of(text) : STR("");
    key_numbers(key, (int64_t[]){(int64_t)str.n}, 1);
    tsr__text_add(key, str);
}

// Appends a tensor: whether it is a small control input (`host`), whether it is absent, its rank,
// and the number and the factors of each dimension.
static void key_tensor(struct text *key, const struct rule_tensor *tensor)
{
    key_numbers(key, (int64_t[]){tensor->host, tensor->absent, tensor->rank}, 3);
    for (int d = 0; !tensor->host && d < tensor->rank; d++) {
        key_numbers(key, (int64_t[]){tensor->dims[d].n}, 1);
        tsr__text_add(key, str_bytes(tensor->dims[d].factors,
                                     (size_t)tensor->dims[d].n * sizeof *tensor->dims[d].factors));
    }
}

// Returns the first input with the same value as input i. Equal nodes must repeat the same inputs.
static int64_t same_input(const tsr_node *node, size_t i)
{
    int64_t earlier = tsr__earlier_reading(node, i);
    return earlier < 0 ? (int64_t)i : earlier;
}

// Appends a value: its rank (-1: absent), type, whether it is constant, the first input with the
// same value, and its sizes.
static void key_value(struct text *key, const struct planner *planner, const tsr_node *node,
                      enum slot_side side, size_t i)
{
    const tsr_value *v = node_value(node, side, i);
    if (!v) {
        key_numbers(key, (int64_t[]){-1}, 1);
        return;
    }
    int64_t same = side == SIDE_INPUT ? same_input(node, i) : (int64_t)i;
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    key_numbers(key,
                (int64_t[]){value->rank, tsr__shapes_of(planner->shapes.full, v).dtype,
                            value->constant, same, value->free},
                5);
    key_numbers(key, value->shape, (size_t)value->rank);
}

static void key_factor(struct text *key, const struct rule_factor *factor)
{
    key_numbers(key, (int64_t[]){factor->kind, factor->combine, factor->size.value, factor->unit},
                4);
    key_text(key, factor->size.symbol);
}

static void key_window(struct text *key, const struct rule_window *window)
{
    key_numbers(key,
                (int64_t[]){window->input, window->dim, window->factor, window->from, window->to,
                            window->step, window->shift, window->reach, window->per},
                9);
}

// Appends the rule, without the names of factors: rules that differ only in these names get the
// same key.
static void key_rule(struct text *key, const struct rule *rule)
{
    key_numbers(key,
                (int64_t[]){rule->n_factors, rule->n_rewrites, rule->n_windows, rule->n_inputs,
                            rule->n_outputs},
                5);
    for (int i = 0; i < rule->n_factors; i++)
        key_factor(key, &rule->factors[i]);
    for (int i = 0; i < rule->n_rewrites; i++)
        key_numbers(
            key,
            (int64_t[]){rule->rewrites[i].kind, rule->rewrites[i].input, rule->rewrites[i].factor},
            3);
    for (int i = 0; i < rule->n_windows; i++)
        key_window(key, &rule->windows[i]);
    for (int i = 0; i < rule->n_inputs; i++)
        key_tensor(key, &rule->inputs[i]);
    for (int i = 0; i < rule->n_outputs; i++)
        key_tensor(key, &rule->outputs[i]);
}

// Appends for each window whether it is free, which depends on the nodes that produce the input.
static void key_free_windows(struct text *key, const struct planner *planner, const tsr_node *node,
                             const struct rule *rule)
{
    struct arena scratch = {.session = planner->session};
    for (int i = 0; i < rule->n_windows; i++)
        key_numbers(
            key, (int64_t[]){tsr__window_is_free(planner, &scratch, node, &rule->windows[i])}, 1);
    key->failed = key->failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Builds the key from everything that the candidates depend on: rule, types, sizes and whether the
// engine computes the node when it loads the model.
static void key_of(struct text *key, const struct planner *planner, const tsr_node *node,
                   const struct rule *rule, const char *whole)
{
    int64_t n_in = (int64_t)tsr_node_input_count(node),
            n_out = (int64_t)tsr_node_output_count(node);
    key_numbers(
        key, (int64_t[]){whole != NULL, rule->single, n_in, n_out, tsr__node_reads_constants(node)},
        5);
    key_rule(key, rule);
    if (!whole)
        key_free_windows(key, planner, node, rule);
    for (int64_t i = 0; i < n_in; i++)
        key_value(key, planner, node, SIDE_INPUT, (size_t)i);
    for (int64_t i = 0; i < n_out; i++)
        key_value(key, planner, node, SIDE_OUTPUT, (size_t)i);
}

// ---- what they have in common ------------------------------------------------------------------

static bool gives_output(const struct planner *planner, const tsr_node *node)
{
    const tsr_value *first = tsr_node_output_count(node) ? tsr_node_output(node, 0) : NULL;
    return first && planner->values[tsr__value_id(first)].returned;
}

// Returns the kind of work of the node if it is not fused into the one before it.
static struct work_kind apart_kind(const struct planner *planner, const tsr_node *node,
                                   struct work_kind kind)
{
    if (kind.move != NODE_MOVES_NOTHING)
        return kind;
    return tsr__work_kind_apart(node, planner->shapes.full, planner->machine.topology);
}

// Fills in what equal nodes have in common.
static struct equal_node describe(const struct planner *planner, const struct plan_node *pn)
{
    const tsr_node *node = pn->node;
    struct equal_node equal = {
        .whole =
            pn->rule->whole ? pn->rule->whole : tsr__rule_immovable(planner->shapes.model, node),
        .count = tsr__node_count(node, planner->shapes.full),
        .kind = tsr__work_kind(node, planner->shapes.full, planner->machine.topology),
        .gives = gives_output(planner, node),
    };
    equal.apart = apart_kind(planner, node, equal.kind);
    return equal;
}

// Appends the rest of what the candidates depend on. The key includes the kind of work: Identity
// and Relu have the same rule, but Identity moves no data.
static void key_work(struct text *key, const struct plan_node *pn, const struct equal_node *equal)
{
    const struct work_kind *kind = &equal->kind, *apart = &equal->apart;
    tsr__text_add(key, str_bytes(&equal->count, sizeof equal->count));
    key_numbers(key,
                (int64_t[]){equal->gives, kind->type, kind->rate, kind->move, apart->rate,
                            apart->move, pn->times, !in_main_graph(pn)},
                8);
    // two transposes may move memory differently, and two equal nodes may have different
    // measurements
    key_text(key, kind->sizes ? kind->sizes->op : NULL);
    key_text(key, kind->seen ? kind->seen->op : NULL);
    key_text(key, kind->seen ? kind->seen->type : NULL);
}

// Returns the entry with that key, and adds `equal` if it is new. NULL: out of memory.
static const struct equal_node *entry_of(const struct planner *planner, struct str key,
                                         const struct equal_node *equal, const tsr_node *node)
{
    struct planner_common *common = planner->shapes.common;
    void **at = tsr__map_at_copy(&common->equal_by_key, key);
    if (!at || *at)
        return at ? *at : NULL;
    struct equal_node *entry = ARENA_NEW(common->arena, struct equal_node);
    if (!entry)
        return NULL;
    *entry = *equal;
    (void)tsr__node_load(planner->session, node, planner->shapes.full, &entry->load);
    entry->id = common->n_equal++;
    *at = entry;
    return entry;
}

const struct equal_node *tsr__planner_equal(const struct planner *planner,
                                            const struct plan_node *pn)
{
    struct planner_common *common = planner->shapes.common;
    const struct equal_node **known = &common->equal[tsr__node_id(pn->node)];
    if (*known)
        return *known;
    struct equal_node equal = describe(planner, pn);
    struct text key = {.session = planner->session};
    key_of(&key, planner, pn->node, pn->rule, equal.whole);
    key_work(&key, pn, &equal);
    if (!key.failed)
        *known = entry_of(planner, (struct str){key.p, key.n}, &equal, pn->node);
    tsr__text_free(&key);
    return *known;
}
