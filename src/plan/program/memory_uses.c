// SPDX-License-Identifier: Apache-2.0
// uses.c - what lies in the memory of the devices, and when: rows of the program.
//
// Devices with the same memory are one class, and of a value the fullest of them counts. A value
// lies where its producer leaves it until its last reader has run, or has got a copy of its own.
// Whether a reader needs a copy depends on both ends, so between them stands a variable: the layout
// that is wanted, and whether it was made for the reader. Constants are stored in each layout that
// somebody wants, once (stored.c).
//
//     Y of 6 MB, which is followed, is made by node 2 and read by node 4 alone. A node has three times
//     (bring, run, combine): 6 7 8 are those of node 2, 12 13 14 those of node 4. Y lies by rows on two
//     devices, 3 MB on each; node 4 wants it whole.
//         7..8       3 MB   Y as it is made (and, if it is a sum in parts, what is combined besides at 8)
//         8..13      3 MB   Y waits; it goes once node 4 has its own copy
//         12..14     6 MB   the copy: brought at 12, read at 13
//     So the fullest time is 12, with 9 MB of Y. Times are written with their end not included.
#include "plan/program/edges.h"

#include <stdlib.h>

// ---- tables ------------------------------------------------------------------------------------

// All bytes are 0. False: out of memory.
bool tsr__usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k)
{
    *usage =
        (struct usage){planner, k, ARENA_ARRAY(arena, int64_t, planner->memory.n_classes * k + 1)};
    return usage->at != NULL;
}

// Adds to what the choice has already; sums stop at PLAN_NEVER.
void tsr__usage_add(struct usage *usage, size_t i, uint32_t layout, const struct plan_value *value)
{
    for (size_t c = 0; c < usage->planner->memory.n_classes; c++) {
        int64_t *at = &usage->at[c * usage->k + i];
        if (!add_ok(*at, tsr__planner_class_bytes(usage->planner, c, layout, value), at) ||
            *at > PLAN_NEVER)
            *at = PLAN_NEVER;
    }
}

// Classes that have nothing of it in any choice get no row entry. The table is viewed: it lives as
// long as the program.
void tsr__usage_take(struct planner *planner, uint32_t var, size_t k, const int64_t *table,
                     uint32_t begin, uint32_t end)
{
    if (begin >= end)
        return;
    for (size_t c = 0; c < planner->memory.n_classes; c++) {
        const int64_t *row = table + c * k;
        bool any = false;
        for (size_t i = 0; i < k; i++)
            any = any || row[i];
        if (any)
            tsr__program_use(&planner->program, planner->memory.limits[c], var, begin, end, row);
    }
}

// ---- values ------------------------------------------------------------------------------------

// Bytes of what a node makes, by its choice: while it runs, while its result is combined, and then.
struct produced {
    int64_t *run, *combine, *then;
};

// A sum lies in parts while it is made (`before`), in parts and done while it is combined, and done
// then.
static struct produced *produced_of(struct edge *edge)
{
    uint32_t key[4] = {TABLE_PRODUCED, edge->from->id, (uint32_t)edge->slot,
                       (uint32_t)edge->planner->memory.n_classes};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    struct usage run, combine, then;
    size_t k = edge->from->at.n;
    struct produced *out = ARENA_NEW(&edge->planner->arena, struct produced);
    if (!out || !tsr__usage_new(&run, edge->planner, &edge->planner->arena, k) ||
        !tsr__usage_new(&combine, edge->planner, &edge->planner->arena, k) ||
        !tsr__usage_new(&then, edge->planner, &edge->planner->arena, k))
        return NULL;
    for (size_t i = 0; i < k; i++) {
        uint32_t lies = edge->from->at.at[i].out[edge->slot],
                 before = edge->from->at.at[i].before[edge->slot];
        tsr__usage_add(&run, i, before == PLAN_NO_LAYOUT ? lies : before, edge->value);
        tsr__usage_add(&combine, i, before, edge->value);
        tsr__usage_add(&then, i, lies, edge->value);
    }
    *out = (struct produced){run.at, combine.at, then.at};
    *kept = out;
    return out;
}

// The node i takes three times: 3 i brings its inputs, 3 i + 1 runs, 3 i + 2 combines what it made.
bool tsr__use_producer(struct edge *edge, uint32_t end)
{
    struct planner *planner = edge->planner;
    size_t k = edge->from->at.n;
    if (!planner->memory.n_classes)
        return true;
    struct produced *produced = produced_of(edge);
    if (!produced)
        return false;
    if (edge->node == SIZE_MAX) { // what another range gives goes when it was read
        uint32_t until = edge->value->given ? planner->n_times : end;
        tsr__usage_take(planner, edge->var, k, produced->then, 0, until);
        return true;
    }
    uint32_t time = (uint32_t)(PLAN_TIMES * edge->node);
    tsr__usage_take(planner, edge->var, k, produced->run, time + TIME_RUN, time + TIME_COMBINE);
    tsr__usage_take(planner, edge->var, k, produced->combine, time + TIME_COMBINE,
                    time + PLAN_TIMES);
    tsr__usage_take(planner, edge->var, k, produced->then, time + TIME_COMBINE, end);
    return true;
}

// States without a copy (PLAN_NO_LAYOUT) use nothing.
bool tsr__use_copy(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end)
{
    struct usage usage;
    if (!edge->planner->memory.n_classes)
        return true;
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, n))
        return false;
    for (size_t i = 0; i < n; i++)
        tsr__usage_add(&usage, i, states[i].copy, edge->value);
    tsr__usage_take(edge->planner, var, n, usage.at, begin, end);
    return true;
}

// ---- values that are not followed --------------------------------------------------------------

// Small values are many, and matter little: more is counted for them than there may be.

#define FOLLOWED_VALUES 64
#define FOLLOWED_SHARE  256 // of the memory that there must be; less is never followed

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int64_t whole_bytes(struct planner *planner, const tsr_value *v)
{
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    return tsr__planner_bytes(planner, tsr__planner_whole(planner, value->rank), value);
}

// Bytes of all constants, at most PLAN_NEVER.
static int64_t stored_bytes(struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t stored = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        if (!add_ok(stored, whole_bytes(planner, tsr_graph_initializer(graph, i)), &stored))
            stored = PLAN_NEVER;
    return stored;
}

struct size_list {
    VEC(int64_t) bytes;
};

// Bytes of all that nodes make, largest first.
static void list_made(struct planner *planner, struct size_list *sizes)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        for (size_t o = 0; o < tsr_node_output_count(node->node); o++) {
            const tsr_value *value = tsr_node_output(node->node, o);
            int64_t *at = value ? vec_push(planner->work, &sizes->bytes) : NULL;
            if (at)
                *at = whole_bytes(planner, value);
        }
    }
    if (sizes->bytes.n)
        qsort(sizes->bytes.at, sizes->bytes.n, sizeof *sizes->bytes.at, descending);
}

// The largest values, at least those of the largest size. Less than a 256th of what a device must
// hold is never followed.
bool tsr__planner_followed(struct planner *planner)
{
    struct size_list sizes = {0};
    int64_t followed = 0;
    if (!planner->memory.n_classes)
        return true;
    list_made(planner, &sizes);
    int64_t stored = stored_bytes(planner);
    if (planner->arena.failed)
        return false;
    int64_t largest = sizes.bytes.n ? sizes.bytes.at[0] : 0;
    int64_t share = (stored / 2 + largest / 2) / planner->machine.n / (FOLLOWED_SHARE / 2);
    if (sizes.bytes.n > FOLLOWED_VALUES)
        followed = sizes.bytes.at[FOLLOWED_VALUES];
    if (followed >= largest)
        followed = largest - 1;
    planner->memory.followed = int64_max(followed, share);
    return true;
}

bool tsr__use_followed(const struct edge *edge)
{
    return whole_bytes(edge->planner, edge->v) > edge->planner->memory.followed;
}

// Every choice of the variable counts all the layouts: more than there will be, and enough for
// small values.
bool tsr__use_all(struct edge *edge, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end)
{
    struct usage usage;
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t i = 0; i < k; i++)
        for (size_t l = 0; l < n; l++)
            tsr__usage_add(&usage, i, layouts[l], edge->value);
    tsr__usage_take(edge->planner, var, k, usage.at, begin, end);
    return true;
}

static bool is_among(const uint32_t *layouts, size_t n, uint32_t layout)
{
    for (size_t i = 0; i < n; i++)
        if (layouts[i] == layout)
            return true;
    return false;
}

// The layouts in `but` are counted elsewhere already (tsr__use_all).
bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n)
{
    struct usage usage;
    size_t k = tsr__edge_choices(edge->planner, reader);
    uint32_t time = tsr__edge_time(edge->planner, reader);
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
        if (!is_among(but, n, want))
            tsr__usage_add(&usage, j, want, edge->value);
    }
    tsr__usage_take(edge->planner, tsr__edge_var(edge, reader), k, usage.at, time,
                    time + TIME_COMBINE);
    return true;
}

// ---- arrivals ----------------------------------------------------------------------------------

// The states of an arrival: a layout that the reader may want, taken from where it lies or made for
// the reader.
//
//     a value that lies by rows; the reader wants it by rows or whole: "rows, as it lies" and "whole, made". With the second
//     the reader has its own copy, whose bytes count while it is brought and while the reader runs; with the first it has none
struct arrival {
    size_t n;
    uint32_t *want;
    bool *made;
    int64_t *cost, *from, *to; // zeros; states of the value x n; n x choices of the reader
    int64_t *bring, *run;      // bytes while it is brought, and while the reader runs
};

static void add_arrival(struct arrival *arrival, uint32_t want, bool made)
{
    arrival->want[arrival->n] = want;
    arrival->made[arrival->n++] = made;
}

// Adds the two states of a layout, as far as they can be.
static void add_states(struct edge *edge, struct arrival *arrival, const struct copy_state *states,
                       size_t n, uint32_t want)
{
    bool lies = false, made = false;
    if (is_among(arrival->want, arrival->n, want))
        return;
    for (size_t i = 0; i < n; i++) {
        int64_t near = tsr__edge_nearest(edge, &states[i], want);
        lies = lies || near == 0;
        made = made || (near > 0 && near < PLAN_NEVER);
    }
    if (lies)
        add_arrival(arrival, want, false);
    if (made)
        add_arrival(arrival, want, true);
}

// What it costs to come from a state of the value to a state of the arrival: "as it lies" only
// where it does.
static int64_t arrival_cost(struct edge *edge, const struct copy_state *state,
                            const struct arrival *arrival, size_t s)
{
    int64_t near = tsr__edge_nearest(edge, state, arrival->want[s]);
    if (!arrival->made[s])
        return near == 0 ? 0 : COST_FORBIDDEN;
    if (near > 0 && near < PLAN_NEVER)
        return near;
    return COST_FORBIDDEN;
}

// The tables of the arrival, once its states are listed.
static void fill_tables(struct edge *edge, const struct copy_state *states, size_t n,
                        const struct reader *reader, struct arrival *arrival)
{
    size_t k = tsr__edge_choices(edge->planner, reader);
    struct usage bring = {edge->planner, arrival->n, arrival->bring};
    struct usage run = {edge->planner, arrival->n, arrival->run};
    for (size_t s = 0; s < arrival->n; s++) {
        for (size_t i = 0; i < n; i++)
            arrival->from[i * arrival->n + s] = arrival_cost(edge, &states[i], arrival, s);
        for (size_t j = 0; j < k; j++) {
            uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
            arrival->to[s * k + j] = want == arrival->want[s] ? 0 : COST_FORBIDDEN;
        }
        if (arrival->made[s])
            tsr__usage_add(&bring, s, arrival->want[s], edge->value);
        tsr__usage_add(&run, s, arrival->want[s], edge->value);
    }
}

// First the states, which say how large the tables are.
static bool fill_arrival(struct edge *edge, const struct copy_state *states, size_t n,
                         const struct reader *reader, struct arrival *arrival)
{
    struct arena *arena = &edge->planner->arena;
    size_t k = tsr__edge_choices(edge->planner, reader);
    struct usage bring, run;
    arrival->want = ARENA_ARRAY(arena, uint32_t, 2 * k + 1);
    arrival->made = ARENA_ARRAY(arena, bool, 2 * k + 1);
    if (arena->failed)
        return false;
    for (size_t j = 0; j < k; j++)
        add_states(edge, arrival, states, n,
                   tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j));
    arrival->cost = ARENA_ARRAY(arena, int64_t, arrival->n + 1);
    arrival->from = ARENA_ARRAY(arena, int64_t, n * arrival->n + 1);
    arrival->to = ARENA_ARRAY(arena, int64_t, arrival->n * k + 1);
    if (arena->failed || !tsr__usage_new(&bring, edge->planner, arena, arrival->n) ||
        !tsr__usage_new(&run, edge->planner, arena, arrival->n))
        return false;
    arrival->bring = bring.at;
    arrival->run = run.at;
    fill_tables(edge, states, n, reader, arrival);
    return true;
}

// Arrivals with the same ends and the same states (`key`) share their tables.
static struct arrival *arrival_of(struct edge *edge, const struct copy_state *states, size_t n,
                                  uint32_t key, const struct reader *reader)
{
    uint32_t text[6] = {TABLE_ARRIVAL,          edge->from->id,
                        (uint32_t)edge->slot,   tsr__edge_end(edge->planner, reader),
                        (uint32_t)reader->slot, key};
    void **kept = tsr__planner_cached(edge->planner, text, TSR_COUNT(text));
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    struct arrival *arrival = ARENA_NEW(&edge->planner->arena, struct arrival);
    if (!arrival || !fill_arrival(edge, states, n, reader, arrival))
        return NULL;
    *kept = arrival;
    return arrival;
}

// What was made for the reader counts while it is brought. While the reader runs, the value where
// it was made is gone, so that all that the reader has counts; but where the value stays for
// others, it is counted there, and only what was made counts.
bool tsr__use_arrival(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *reader, uint32_t end)
{
    struct planner *planner = edge->planner;
    struct arrival *arrival = arrival_of(edge, states, n, key, reader);
    if (!arrival)
        return false;
    uint32_t time = tsr__edge_time(planner, reader);
    uint32_t at = tsr__program_node(&planner->program, tsr__value_str(edge->v),
                                    (uint32_t)arrival->n, arrival->cost);
    tsr__program_edge(&planner->program, var, at, arrival->from);
    tsr__program_edge(&planner->program, at, tsr__edge_var(edge, reader), arrival->to);
    if (var != edge->var) { // the value itself stays: only what was made counts, and longer
        tsr__usage_take(planner, at, arrival->n, arrival->bring, time, end);
        return true;
    }
    tsr__usage_take(planner, at, arrival->n, arrival->bring, time, time + TIME_RUN);
    bool stays = edge->readers.n > 1 || (edge->node == SIZE_MAX && edge->value->given);
    const int64_t *running = stays ? arrival->bring : arrival->run;
    tsr__usage_take(planner, at, arrival->n, running, time + TIME_RUN, time + TIME_COMBINE);
    return true;
}
