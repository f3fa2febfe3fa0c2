// SPDX-License-Identifier: Apache-2.0
// simulate_memory.c - what lies in a device's memory while its part runs: constants, inputs, and what nodes make, each from the
// node that makes it to the last that reads it.
#include "verify/simulate.h"
#include "ir/ir.h"
#include "plan/plan.h"
#include "rules/rules.h"

#define DOMAIN "ai.tessera"
#define SMALL  ((int64_t)64 << 10) // such blocks leave no gaps

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

static int64_t bytes_of(const struct stores *stores, const tsr_value *value)
{
    bool sized = true;
    return tsr__price_bytes(stores->shapes, value, &sized);
}

// The store that the first output of the node takes over; 0: none. An input whose store others need afterwards is left
// alone, unless the output is that input.
static size_t taken_over(const struct stores *stores, const tsr_node *node, int64_t bytes,
                         int64_t at)
{
    enum kernel_place place = tsr__kernel_place(node, stores->shapes);
    if (place == PLACE_OWN)
        return 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        size_t store = 0;
        if (value)
            store = stores->of[tsr__value_id(value)];
        if (!store || bytes_of(stores, value) != bytes)
            continue;
        if (place == PLACE_OF_INPUT || stores->list.at[store - 1].end <= at)
            return store;
    }
    return 0;
}

// Only the first output may take over an input's memory, and no communication does.
static void add_output(struct stores *stores, const tsr_node *node, size_t i, int64_t at)
{
    const tsr_value *value = tsr_node_output(node, i);
    int64_t bytes = bytes_of(stores, value), end = end_of(stores, value, at);
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

// What the stores take together where each lies in one place as long as it lives: they begin in the order of the list, and at
// each node those go that end before it.
static int64_t with_gaps(struct stores *stores)
{
    struct sim_heap heap = {0};
    int64_t small = 0;
    size_t n = stores->list.n;
    int64_t *places = ARENA_ARRAY(stores->arena, int64_t, n + 1);
    size_t *first = ARENA_ARRAY(stores->arena, size_t, (size_t)stores->nodes + 2);
    size_t *next = ARENA_ARRAY(stores->arena, size_t, n + 1);
    if (!places || !first || !next)
        return 0;
    int64_t now = 0;
    for (size_t i = 0; i < n; i++) {
        const struct store *store = &stores->list.at[i];
        for (; now < store->from; now++)
            for (size_t k = first[now]; k; k = next[k])
                tsr__sim_give(stores->arena, &heap, places[k], stores->list.at[k - 1].bytes);
        if (store->bytes < SMALL) {
            small = sum_of(small, store->bytes);
            continue;
        }
        places[i + 1] = tsr__sim_take(&heap, store->bytes);
        next[i + 1] = first[store->end];
        first[store->end] = i + 1;
    }
    return sum_of(heap.top, small);
}

// Values live from the node that makes them to the last that reads them: each in memory of its own as a plan counts them, then
// with what an engine puts in the same place.
static void list_stores(struct stores *stores, bool own)
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
    list_stores(&stores, true);
    device->memory = sum_of(kept, most_at_once(&stores));
    list_stores(&stores, false);
    device->peak = sum_of(sum_of(kept, device->scratch), with_gaps(&stores));
    device->peak = sum_of(device->peak, PLAN_ENGINE_BYTES);
    return arena_status(scratch);
}
