// SPDX-License-Identifier: Apache-2.0
// readers.c - finds the producer and the readers of a value, with their layouts and variables.
// Values with equal producers and readers share tables, which are cached here.
#include "plan/program/edges.h"

#include <stdlib.h>

#define BODY_OF_STAGE (UINT32_MAX / 2) // larger than any strategy number

// ---- readers -----------------------------------------------------------------------------------

struct collecting {
    struct planner *planner;
    struct arena *arena;
    VEC(struct reader) list;
    bool leaves; // a node of another range also reads the value
};

// Adds a reader. For a node inside a subgraph, adds the node of the main graph that contains the
// subgraph. A node that is not planned here is not added; if it is in another stage, sets `leaves`.
static void add_reader(struct collecting *collecting, const tsr_node *node, size_t slot)
{
    const tsr_graph *graph = tsr_node_graph(node);
    const tsr_node *outer = node;
    while (graph && tsr_graph_owner(graph)) { // inside a subgraph
        outer = tsr_graph_owner(graph);
        graph = tsr_node_graph(outer);
    }
    int64_t at = collecting->planner->node_at[tsr__node_id(outer)];
    if (at < 0) {
        const unsigned char *staged_nodes = collecting->planner->scope.staged_nodes;
        if (staged_nodes && staged_nodes[tsr__node_id(outer)])
            collecting->leaves = true;
        return;
    }
    vec_add(collecting->arena, &collecting->list,
            (struct reader){.node = (size_t)at,
                            .slot = slot,
                            .captures = outer != node,
                            .order = collecting->list.n,
                            .var = UINT32_MAX});
}

static bool take_use(void *data, tsr_node *node, size_t input)
{
    add_reader(data, node, input);
    return true;
}

static int by_node(const void *a, const void *b)
{
    const struct reader *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

// Sorts the readers by node. A node that reads the value twice becomes one reader, because it has
// one sharding of the value.
static void sort_readers(struct collecting *collecting)
{
    struct reader *at = collecting->list.at;
    size_t n = 0;
    if (!collecting->list.n)
        return;
    qsort(at, collecting->list.n, sizeof *at, by_node);
    for (size_t i = 0; i < collecting->list.n; i++)
        if (n == 0 || at[n - 1].node != at[i].node)
            at[n++] = at[i];
    collecting->list.n = n;
}

// True if a node of the planned range (the nodes of a stage) produces the value, or if there are no
// ranges. Values of another range are passed on by that range.
static bool is_made_here(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = tsr_value_producer(value);
    return !planner->scope.staged_nodes || (from && planner->node_at[tsr__node_id(from)] >= 0);
}

// Lists the readers of a value: nodes in order, then the caller, if the value is an output of the
// model or leaves the range.
struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value)
{
    struct collecting collecting = {.planner = planner, .arena = arena};
    struct readers readers = {0};
    tsr_value_uses(value, take_use, &collecting);
    sort_readers(&collecting);
    if (collecting.list.n)
        readers.last = collecting.list.at[collecting.list.n - 1].node;
    // A state is not transferred to the caller, but needs memory until the end of the run.
    readers.stays = planner_stays(planner, value) && tsr_value_is_output(value);
    if (readers.stays)
        readers.last = planner->n_nodes;
    bool leaves = collecting.leaves && !planner->scope.open;
    bool given_on = (tsr_value_is_output(value) && !readers.stays) || leaves;
    if (given_on && is_made_here(planner, value)) {
        vec_add(arena, &collecting.list, (struct reader){.node = SIZE_MAX, .var = UINT32_MAX});
        readers.last = planner->n_nodes;
    }
    readers.at = collecting.list.at;
    readers.n = collecting.list.n;
    return readers;
}

uint32_t tsr__edge_time(const struct planner *planner, const struct reader *reader)
{
    size_t node = reader->node == SIZE_MAX ? planner->n_nodes : reader->node;
    return (uint32_t)(PLAN_TIMES * node);
}

// Returns the devices of the node's stage, or all devices. The first of them stores the outputs.
static struct device_group place_of(const struct planner *planner, int64_t node)
{
    if (planner->scope.places && node >= 0)
        return planner->scope.places[node];
    return (struct device_group){planner->machine.all, (size_t)planner->machine.n};
}

// Returns the wanted layout. The caller wants the full value on the first device of the producer's
// stage; a subgraph wants it replicated.
uint32_t tsr__planner_wanted(struct planner *planner, const struct reader *reader,
                             const tsr_value *value, uint32_t candidate)
{
    const tsr_node *from = tsr_value_producer(value);
    int rank = planner->values[tsr__value_id(value)].rank;
    if (reader->node == SIZE_MAX) {
        int64_t maker = from ? planner->node_at[tsr__node_id(from)] : -1;
        return tsr__planner_replicated_on(planner, rank, place_of(planner, maker).devices, 1);
    }
    if (reader->captures) {
        struct device_group place = place_of(planner, (int64_t)reader->node);
        return tsr__planner_replicated_on(planner, rank, place.devices, place.n);
    }
    return planner->nodes[reader->node].strategy->at.at[candidate].in[reader->slot];
}

bool tsr__planner_made_by(const struct planner *planner, const tsr_value *value, struct reader *out)
{
    const tsr_node *node = tsr_value_producer(value);
    int64_t at = node ? planner->node_at[tsr__node_id(node)] : -1;
    if (at < 0 || !planner->nodes[at].strategy)
        return false;
    size_t slot = (size_t)tsr__output_slot(node, value);
    *out = (struct reader){.node = (size_t)at, .slot = slot};
    return true;
}

// ---- tables ------------------------------------------------------------------------------------

size_t tsr__edge_choices(const struct planner *planner, const struct reader *reader)
{
    if (reader->node == SIZE_MAX || reader->captures)
        return 1;
    return planner->nodes[reader->node].strategy->at.n;
}

void **tsr__planner_cached(struct planner *planner, const uint32_t *key, size_t n)
{
    void **slot = tsr__map_at_copy(&planner->cache.tables, str_bytes(key, n * sizeof *key));
    if (slot && !*slot)
        *slot = ARENA_NEW(&planner->arena, void *);
    return slot ? *slot : NULL;
}

// Returns the number of the reader's strategy, or a larger number for the caller or a subgraph.
uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader)
{
    if (reader->node == SIZE_MAX)
        return UINT32_MAX;
    if (reader->captures && planner->scope.places)
        // the strategy determines the devices of the stage
        return BODY_OF_STAGE + planner->nodes[reader->node].strategy->id;
    return reader->captures ? UINT32_MAX - 1 : planner->nodes[reader->node].strategy->id;
}

uint32_t tsr__edge_var(struct edge *edge, struct reader *reader)
{
    static const int64_t zero[1] = {0};
    if (reader->node != SIZE_MAX && !reader->captures)
        return edge->planner->nodes[reader->node].var;
    if (reader->var == UINT32_MAX)
        reader->var =
            tsr__program_node(&edge->planner->program, str_of(tsr_value_name(edge->v)), 1, zero);
    return reader->var;
}

int64_t tsr__edge_nearest(struct edge *edge, const struct copy_state *state, uint32_t want)
{
    int64_t near = tsr__resharding_time(edge->planner, state->from, want, edge->value);
    if (state->copy == PLAN_NO_LAYOUT)
        return near;
    return int64_min(near, tsr__resharding_time(edge->planner, state->copy, want, edge->value));
}
