// SPDX-License-Identifier: Apache-2.0
// simulate_memory.c - what lies in a device's memory while its part runs: constants, inputs, and what nodes make, each from the
// node that makes it to the last that reads it.
#include "verify/simulate.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "rules/rules.h"

#define DOMAIN "ai.tessera"
#define GAPS   4 // of what is alive, an arena loses such a part in gaps (docs/measured.md)

bool tsr__sim_folded(const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (value && !tsr_value_initializer(value))
            return false;
    }
    return true;
}

// Memory that one or several values have one after the other.
struct store {
    int64_t bytes, from, end; // nodes
};
// A value's store is found by its id; values that follow one another in place share one, whose end
// moves on.
struct stores {
    const tsr_model *model;
    const struct shapes *shapes;
    struct arena *arena;
    int64_t nodes;
    size_t *of; // by value id: its store plus 1; 0: none
    VEC(struct store) list;
};

// A use inside of a body counts where the node of the main graph stands.
static bool last_use(void *data, tsr_node *node, size_t input)
{
    int64_t *last = data;
    (void)input;
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    int64_t at = tsr_node_index(node);
    larger(last, at);
    return true;
}

// The last node that needs the value; outputs are needed after all of them.
static int64_t end_of(const struct stores *stores, const tsr_value *value, int64_t made)
{
    int64_t last = made;
    tsr_value_uses(value, last_use, &last);
    if (tsr_value_is_output(value))
        return stores->nodes;
    return last;
}

// Factors one after the other, without those of dimensions of one element.
static size_t in_order(const struct rule_tensor *tensor, struct shape shape, int *out)
{
    size_t n = 0;
    if (shape.rank != tensor->rank)
        return 0;
    for (int d = 0; d < tensor->rank; d++) {
        if (shape.dims[d].value == 1)
            continue;
        for (int k = 0; k < tensor->dims[d].n; k++)
            if (n < RULE_MAX_FACTORS)
                out[n++] = tensor->dims[d].factors[k];
    }
    return n;
}

// Elements of the result lie as those of the input do: an engine puts it there if nobody reads the input afterwards, and
// where only the shape differs in any case.
static bool in_place(const struct stores *stores, const tsr_node *node, const struct rule *rule,
                     size_t input)
{
    int a[RULE_MAX_FACTORS], b[RULE_MAX_FACTORS];
    if ((int)input >= rule->n_inputs || rule->n_outputs < 1 || rule->inputs[input].host ||
        rule->inputs[input].absent || rule->n_windows || rule->n_lists)
        return false;
    // [2, 3, 4] to [6, 4] with the factors a b c in the same order: the elements lie the same. A
    // Transpose has another order.
    size_t k = in_order(&rule->inputs[input],
                        tsr__shapes_of(stores->shapes, tsr_node_input(node, input)), a);
    return k &&
           k == in_order(&rule->outputs[0],
                         tsr__shapes_of(stores->shapes, tsr_node_output(node, 0)), b) &&
           memcmp(a, b, k * sizeof *a) == 0;
}

static bool same_shape(const struct rule *rule, size_t input)
{
    return rule->inputs[input].rank == rule->outputs[0].rank;
}

// The store that the first output of the node takes over; 0: none.
static size_t taken_over(struct stores *stores, const tsr_node *node, int64_t bytes, int64_t at)
{
    const struct rule *rule = tsr__rule_of(stores->arena, node, stores->shapes);
    bool sized = true;
    if (!rule)
        return 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        size_t store = 0;
        if (value)
            store = stores->of[tsr__value_id(value)];
        if (store && in_place(stores, node, rule, i) &&
            tsr__price_bytes(stores->shapes, value, &sized) == bytes &&
            (!same_shape(rule, i) || end_of(stores, value, at) <= at))
            return store;
    }
    return 0;
}

// Only the first output may take over an input's memory, and no communication does.
static void add_output(struct stores *stores, const tsr_node *node, size_t i, int64_t at)
{
    const tsr_value *value = tsr_node_output(node, i);
    bool sized = true;
    int64_t bytes = tsr__price_bytes(stores->shapes, value, &sized),
            end = end_of(stores, value, at);
    size_t store = 0;
    if (i == 0 && strcmp(tsr_node_domain(node), DOMAIN) != 0)
        store = taken_over(stores, node, bytes, at);
    struct store *fresh = NULL;
    if (!store)
        fresh = vec_push(stores->arena, &stores->list);
    if (fresh) {
        *fresh = (struct store){bytes, at, end};
        store = stores->list.n;
    } else if (store && end > stores->list.at[store - 1].end) {
        stores->list.at[store - 1].end = end;
    }
    stores->of[tsr__value_id(value)] = store;
}

// The largest sum of stores that live at the same node, by changes at begin and end.
static int64_t most_at_once(struct stores *stores)
{
    int64_t now = 0, most = 0;
    int64_t *change = ARENA_ARRAY(stores->arena, int64_t, (size_t)stores->nodes + 2);
    int64_t largest =
        INT64_MAX / ((int64_t)stores->list.n + 1); // so that all together are a number
    if (!change)
        return 0;
    for (size_t i = 0; i < stores->list.n; i++) {
        int64_t bytes = stores->list.at[i].bytes < largest ? stores->list.at[i].bytes : largest;
        change[stores->list.at[i].from] += bytes;
        change[stores->list.at[i].end + 1] -= bytes;
    }
    for (int64_t i = 0; i <= stores->nodes; i++) {
        now += change[i];
        larger(&most, now);
    }
    return most;
}

// Values live from the node that makes them to the last that reads them: each in memory of its own as a plan counts them, then
// with what an engine puts in the same place.
static int64_t live_bytes(struct stores *stores, bool own)
{
    stores->list.n = 0;
    int64_t at = 0;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(stores->model)); node;
         node = tsr_node_next(node), at++) {
        if (tsr__sim_folded(node))
            continue;
        for (size_t i = 0; i < tsr_node_output_count(node); i++) {
            if (!tsr_node_output(node, i))
                continue;
            add_output(stores, node, i, at);
            // A plan counts each value apart: nothing may be taken over from this one.
            if (own)
                stores->of[tsr__value_id(tsr_node_output(node, i))] = 0;
        }
    }
    return most_at_once(stores);
}

// `memory` is comparable with a plan's; `peak` is what the process will show: with scratch, gaps
// and the engine's own.
tsr_status tsr__sim_memory(struct sim_device *device, const tsr_model *model,
                           const struct shapes *shapes, struct arena *scratch)
{
    const tsr_graph *graph = tsr_model_graph(model);
    struct stores stores = {model, shapes, scratch, (int64_t)tsr_graph_node_count(graph),
                            NULL,  {0}};
    int64_t inputs = 0;
    bool sized = true;
    stores.of = ARENA_ARRAY(scratch, size_t, tsr__model_value_ids(model) + 1);
    if (!stores.of)
        return TSR_NOMEM;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        inputs = sum_of(inputs, tsr__price_bytes(shapes, tsr_graph_input(graph, i), &sized));
    int64_t kept = sum_of(device->weights, inputs);
    device->memory = sum_of(kept, live_bytes(&stores, true));
    int64_t live = live_bytes(&stores, false);
    device->peak = sum_of(sum_of(kept, device->scratch), sum_of(live, live / GAPS));
    device->peak = sum_of(device->peak, PLAN_ENGINE_BYTES);
    return arena_status(scratch);
}
