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
    const tsr_value *value;
    VEC(struct reader) list;
    bool leaves; // a node of another range also reads the value
};

// Returns the node that reads a value for a node in a subgraph: the node itself in a body that is
// planned, otherwise the outer node with the subgraph.
static const tsr_node *planned_reader(const tsr_node *node)
{
    const tsr_node *reader = node;
    struct control control;
    for (const tsr_node *outer = node; (outer = tsr_graph_owner(tsr_node_graph(outer)));)
        if (!tsr__control_of(outer, &control))
            reader = outer;
    return reader;
}

// Returns the index of the last entry of the outermost loop that contains the entry at index `at`
// but not the value; `at` if there is none. The loop needs the value in all trips.
static size_t needed_until(const struct planner *planner, const tsr_value *value, size_t at)
{
    const struct plan_node *node = &planner->nodes[at];
    const tsr_graph *home = tsr_value_graph(value), *graph = tsr_node_graph(node->node);
    if (node->border && (node->border->leaves || tsr__plan_made(node, 0) == value))
        return at; // the value is inside of the body
    size_t until = at;
    struct control control;
    if (node->border &&
        tsr__border_axis(node->border, planner->values[tsr__value_id(value)].rank) >= 0)
        until = border_owner(node->border, at); // each trip reads a slice
    for (; graph && graph != home && tsr_graph_owner(graph);
         graph = tsr_node_graph(tsr_graph_owner(graph))) {
        int64_t owner = planner->node_at[tsr__node_id(tsr_graph_owner(graph))];
        if (owner >= 0 && tsr__control_of(tsr_graph_owner(graph), &control) && control.loops)
            until = (size_t)owner;
    }
    return until;
}

static void add(struct collecting *collecting, const tsr_value *value, struct reader reader)
{
    const struct planner *planner = collecting->planner;
    reader.until = reader.at;
    if (planner->body_outputs)
        reader.until = size_max(reader.at, needed_until(planner, value, reader.node));
    reader.order = collecting->list.n;
    reader.var = UINT32_MAX;
    vec_add(collecting->arena, &collecting->list, reader);
}

// Adds a reader. A node that is not planned here is not added; if it is in another stage, sets
// `leaves`. Of a node with bodies, the border that the value enters is the reader.
static void add_reader(struct collecting *collecting, const tsr_node *node, size_t slot)
{
    const struct planner *planner = collecting->planner;
    const tsr_node *reader = planned_reader(node);
    int64_t at = planner->node_at[tsr__node_id(reader)];
    if (at < 0) {
        const unsigned char *staged_nodes = planner->scope.staged_nodes;
        if (staged_nodes && staged_nodes[tsr__node_id(reader)])
            collecting->leaves = true;
        return;
    }
    size_t i = (size_t)at;
    const struct plan_bodies *bodies = planner->nodes[i].bodies;
    if (bodies && slot >= (size_t)bodies->control.n_steer) {
        slot += (size_t)bodies->control.n_numbers - (size_t)bodies->control.n_steer;
        i = enter_border(bodies, i, slot);
        slot = 0;
    }
    add(collecting, collecting->value,
        (struct reader){.node = i, .slot = slot, .at = i, .captures = reader != node});
}

// Adds the borders through which the value leaves a body. It is transferred at the end of that
// body.
static void add_leaves(struct collecting *collecting)
{
    const struct planner *planner = collecting->planner;
    if (!planner->body_outputs)
        return;
    const struct body_output *output = planner->body_outputs[tsr__value_id(collecting->value)];
    for (; output; output = output->next) {
        int64_t at = planner->node_at[tsr__node_id(output->owner)];
        if (at < 0)
            continue;
        const struct plan_bodies *bodies = planner->nodes[at].bodies;
        size_t border = leave_border(bodies, (size_t)at, output->index);
        size_t end = (size_t)at - bodies->n_leave - (output->k == 0 ? bodies->n_nodes[1] : 0);
        add(collecting, collecting->value,
            (struct reader){.node = border, .slot = (size_t)output->k, .at = end});
    }
}

static bool take_use(void *data, tsr_node *node, size_t input)
{
    add_reader(data, node, input);
    return true;
}

static int by_place(const void *a, const void *b)
{
    const struct reader *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

// Sorts the readers by their places. A node that reads the value twice becomes one reader, because
// it has one sharding of the value.
static void sort_readers(struct collecting *collecting)
{
    struct reader *at = collecting->list.at;
    size_t n = 0;
    if (!collecting->list.n)
        return;
    qsort(at, collecting->list.n, sizeof *at, by_place);
    for (size_t i = 0; i < collecting->list.n; i++)
        if (n == 0 || at[n - 1].node != at[i].node)
            at[n++] = at[i];
    collecting->list.n = n;
}

// True if a node of the planned range (the nodes of a stage) produces the value, or if there are no
// ranges. Values of another range are passed on by that range.
static bool is_made_here(const struct planner *planner, const tsr_value *value)
{
    return !planner->scope.staged_nodes || tsr__planned_producer(planner, value) >= 0;
}

// Lists the readers of a value: entries in order, then the caller, if the value is an output of the
// model or leaves the range.
struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value)
{
    struct collecting collecting = {.planner = planner, .arena = arena, .value = value};
    struct readers readers = {0};
    tsr_value_uses(value, take_use, &collecting);
    add_leaves(&collecting);
    sort_readers(&collecting);
    for (size_t i = 0; i < collecting.list.n; i++)
        readers.last = size_max(readers.last, collecting.list.at[i].until);
    // A state is not transferred to the caller, but needs memory until the end of the run.
    readers.stays = planner_stays(planner, value) && planner->values[tsr__value_id(value)].returned;
    if (readers.stays)
        readers.last = planner->n_nodes;
    bool leaves = collecting.leaves && !planner->scope.open;
    bool returned = planner->values[tsr__value_id(value)].returned && !readers.stays;
    if ((returned || leaves) && is_made_here(planner, value)) {
        vec_add(arena, &collecting.list,
                (struct reader){.node = SIZE_MAX,
                                .at = planner->n_nodes,
                                .until = planner->n_nodes,
                                .var = UINT32_MAX});
        readers.last = planner->n_nodes;
    }
    readers.at = collecting.list.at;
    readers.n = collecting.list.n;
    return readers;
}

uint32_t tsr__edge_time(const struct planner *planner, const struct reader *reader)
{
    (void)planner;
    return (uint32_t)(PLAN_TIMES * reader->at);
}

uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader)
{
    (void)planner;
    return (uint32_t)(PLAN_TIMES * reader->until) + TIME_COMBINE;
}

struct device_group tsr__plan_place_of(const struct planner *planner, int64_t node)
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
    int rank = planner->values[tsr__value_id(value)].rank;
    if (reader->node == SIZE_MAX) {
        int64_t maker = tsr__planned_producer(planner, value);
        return tsr__planner_replicated_on(planner, rank, tsr__plan_place_of(planner, maker).devices,
                                          1);
    }
    if (reader->captures) {
        struct device_group place = tsr__plan_place_of(planner, (int64_t)reader->node);
        return tsr__planner_replicated_on(planner, rank, place.devices, place.n);
    }
    return planner->nodes[reader->node].strategy->at.at[candidate].in[reader->slot];
}

bool tsr__planner_made_by(const struct planner *planner, const tsr_value *value, struct reader *out)
{
    int64_t at = tsr__planned_producer(planner, value);
    if (at < 0 || !planner->nodes[at].strategy)
        return false;
    *out = (struct reader){.node = (size_t)at,
                           .slot = tsr__plan_made_slot(&planner->nodes[at], value)};
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
uint32_t tsr__edge_key(const struct planner *planner, const struct reader *reader)
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
