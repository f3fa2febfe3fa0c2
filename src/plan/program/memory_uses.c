// SPDX-License-Identifier: Apache-2.0
// memory_uses.c - adds the memory limits to the 0-1 program: which bytes a device stores at which
// time.
//
// Devices with the same memory are one class; the limit applies to the fullest of them. A value
// stays in its producer's layout until its last reader has run or has its own copy. Whether a
// reader needs a copy depends on the choices of producer and reader. So the program has a variable
// between them, the arrival: the layout that the reader wants, and whether it is a copy for this
// reader. Constants are stored once in each layout (stored_weights.c).
//
//     Example: Y of 6 MB is tracked; node 2 produces it and only node 4 reads it. A node has three
//     times (transfer of inputs, run, reduction of outputs): 6 7 8 for node 2 and 12 13 14 for node
//     4. Y is sharded by rows over two devices, 3 MB each; node 4 wants it replicated.
//     7..8       3 MB   Y while it is produced (at 8 also its partial sums, if it has some)
//     8..13      3 MB   Y until node 4 has its own copy
//     12..14     6 MB   the copy: transferred at 12, read at 13
//     The peak is at 12, with 9 MB of Y. Times exclude their end.
#include "plan/program/edges.h"

#include <stdlib.h>

// ---- tables ------------------------------------------------------------------------------------

// Creates a table of zeros. False: out of memory.
bool tsr__usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k)
{
    *usage =
        (struct usage){planner, k, ARENA_ARRAY(arena, int64_t, planner->memory.n_classes * k + 1)};
    return usage->at != NULL;
}

// Sums saturate at PLAN_NEVER.
void tsr__usage_add(struct usage *usage, size_t i, uint32_t layout, const struct plan_value *value)
{
    for (size_t c = 0; c < usage->planner->memory.n_classes; c++) {
        int64_t *at = &usage->at[c * usage->k + i];
        if (!add_ok(*at, tsr__planner_class_bytes(usage->planner, c, layout, value), at) ||
            *at > PLAN_NEVER)
            *at = PLAN_NEVER;
    }
}

// Skips classes without bytes. The table must live as long as the program.
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

// Bytes of a node's output, by choice of the node: while the node runs, while partial sums are
// reduced, and afterwards.
struct produced {
    int64_t *run, *combine, *then;
};

// Returns the bytes of an output. A sum is stored as partial sums (`before`) while the node runs,
// as partial sums and result during the reduction, and only as result afterwards.
static struct produced *produced_of(struct edge *edge)
{
    uint32_t key[4] = {TABLE_PRODUCED, edge->from->id, (uint32_t)edge->slot,
                       edge->planner->memory.division};
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
        uint32_t stored = edge->from->at.at[i].out[edge->slot],
                 before = edge->from->at.at[i].before[edge->slot];
        tsr__usage_add(&run, i, before == PLAN_NO_LAYOUT ? stored : before, edge->value);
        tsr__usage_add(&combine, i, before, edge->value);
        tsr__usage_add(&then, i, stored, edge->value);
    }
    *out = (struct produced){run.at, combine.at, then.at};
    *kept = out;
    return out;
}

// Charges the output of the producer. Node i has three points in time: its inputs are transferred
// at 3 i, it runs at 3 i + 1, its output is reduced at 3 i + 2.
bool tsr__use_producer(struct edge *edge, uint32_t end)
{
    struct planner *planner = edge->planner;
    size_t k = edge->from->at.n;
    if (!planner->memory.n_classes)
        return true;
    struct produced *produced = produced_of(edge);
    if (!produced)
        return false;
    // no node of the program produces the value: an input is always stored, a value of another
    // range until `end`
    if (edge->node == SIZE_MAX) {
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

// ---- values that are not tracked ----------------------------------------------------------------

// Most values are small. For them the program uses an upper bound, which needs fewer variables.

#define FOLLOWED_VALUES 64 // of each stage
// values below 1/256 of the memory that a device needs at least are never tracked
#define FOLLOWED_SHARE 256

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int64_t whole_bytes(struct planner *planner, const tsr_value *v)
{
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    return tsr__planner_bytes(planner, tsr__planner_replicated(planner, value->rank), value);
}

// Returns the bytes of all constants, or PLAN_NEVER or more if the sum overflows.
static int64_t stored_bytes(struct planner *planner)
{
    int64_t stored = 0;
    for (size_t i = 0; i < planner->ends.constants.n; i++) {
        const tsr_value *value = planner->ends.constants.at[i];
        if (tsr_value_initializer(value) && !add_ok(stored, whole_bytes(planner, value), &stored))
            stored = PLAN_NEVER;
    }
    return stored;
}

struct size_list {
    VEC(int64_t) bytes;
};

// Lists the bytes of all outputs of nodes, largest first.
static void list_made(struct planner *planner, struct size_list *sizes)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        for (size_t o = 0; o < tsr__plan_makes(node); o++) {
            const tsr_value *value = tsr__plan_made(node, o);
            if (value)
                vec_add(planner->work, &sizes->bytes, whole_bytes(planner, value));
        }
    }
    if (sizes->bytes.n)
        qsort(sizes->bytes.at, sizes->bytes.n, sizeof *sizes->bytes.at, descending);
}

// Sets the size above which values are tracked. About FOLLOWED_VALUES of the largest values are
// tracked, in a pipeline as many for each stage, always including those of the largest size. Values
// below 1/FOLLOWED_SHARE of the memory per device are never tracked.
bool tsr__planner_followed(struct planner *planner)
{
    struct size_list sizes = {0};
    int64_t followed = 0;
    size_t stages = planner->scope.stage_of ? planner->memory.n_classes : 1;
    if (!planner->memory.n_classes)
        return true;
    list_made(planner, &sizes);
    int64_t stored = stored_bytes(planner);
    if (planner->arena.failed)
        return false;
    int64_t largest = sizes.bytes.n ? sizes.bytes.at[0] : 0;
    int64_t share = (stored / 2 + largest / 2) / planner->machine.n / (FOLLOWED_SHARE / 2);
    if (sizes.bytes.n > stages * FOLLOWED_VALUES)
        followed = sizes.bytes.at[stages * FOLLOWED_VALUES];
    if (followed >= largest)
        followed = largest - 1;
    planner->memory.followed = int64_max(followed, share);
    return true;
}

bool tsr__use_followed(const struct edge *edge)
{
    return whole_bytes(edge->planner, edge->v) > edge->planner->memory.followed;
}

// Charges all the layouts to every choice of the variable: an upper bound for small values.
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

// Charges the layout that the reader wants. Layouts in `but` were already charged by tsr__use_all.
bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n)
{
    struct usage usage;
    size_t k = tsr__edge_choices(edge->planner, reader);
    uint32_t time = tsr__edge_time(edge->planner, reader);
    if (!tsr__usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
        if (!layout_listed(but, n, want))
            tsr__usage_add(&usage, j, want, edge->value);
    }
    tsr__usage_take(edge->planner, tsr__edge_var(edge, reader), k, usage.at, time,
                    tsr__edge_end(edge->planner, reader));
    return true;
}

// ---- arrivals ----------------------------------------------------------------------------------

// The variable between a value and its reader. A state is a layout that the reader may want: it
// either exists already or is a copy for this reader (`made`). Example: a value is sharded by rows,
// and the reader wants it by rows or replicated. The states are "rows, existing" and "replicated,
// made". In the second state the reader has its own copy, which uses memory during the transfer and
// while the reader runs.
struct arrival {
    size_t n;
    uint32_t *want;
    bool *made;
    // costs of n states (all 0); from each state of the value; to each choice of the reader
    int64_t *cost, *from, *to;
    int64_t *bring, *run; // bytes during the transfer, and while the reader runs
};

static void add_arrival(struct arrival *arrival, uint32_t want, bool made)
{
    arrival->want[arrival->n] = want;
    arrival->made[arrival->n++] = made;
}

// Adds the arrival's states "existing" and "made" of a layout, each only if some copy state of the
// value allows it.
static void add_states(struct edge *edge, struct arrival *arrival, const struct copy_state *states,
                       size_t n, uint32_t want)
{
    bool stored = false, made = false;
    if (layout_listed(arrival->want, arrival->n, want))
        return;
    for (size_t i = 0; i < n; i++) {
        int64_t near = tsr__edge_nearest(edge, &states[i], want);
        stored = stored || near == 0;
        made = made || (near > 0 && near < PLAN_NEVER);
    }
    if (stored)
        add_arrival(arrival, want, false);
    if (made)
        add_arrival(arrival, want, true);
}

// Returns the cost from a copy state of the value to a state of the arrival. "existing" costs 0 if
// the value has that layout and is forbidden otherwise.
static int64_t arrival_cost(struct edge *edge, const struct copy_state *state,
                            const struct arrival *arrival, size_t s)
{
    int64_t near = tsr__edge_nearest(edge, state, arrival->want[s]);
    if (!arrival->made[s])
        return near == 0 ? 0 : COST_FORBIDDEN;
    return near > 0 && near < PLAN_NEVER ? near : COST_FORBIDDEN;
}

// Fills the tables of the arrival. Its states must be listed already.
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

// Fills an arrival. Lists the states first, because their number is the size of the tables.
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
    if (arrival->n == 0) // no link leads to the reader: the only state is forbidden
        add_arrival(arrival, tsr__planner_wanted(edge->planner, reader, edge->v, 0), false);
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

// Returns the tables of an arrival. Arrivals with equal producer, reader and states (`key`) share
// them.
static struct arrival *arrival_of(struct edge *edge, const struct copy_state *states, size_t n,
                                  uint32_t key, const struct reader *reader)
{
    uint32_t text[7] = {TABLE_ARRIVAL,
                        edge->from->id,
                        (uint32_t)edge->slot,
                        tsr__edge_key(edge->planner, reader),
                        (uint32_t)reader->slot,
                        key,
                        edge->planner->memory.division};
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

// Adds the arrival to the program and charges its memory. During the transfer it charges the copy.
// While the reader runs, it also charges an existing layout if this is the only reader, because
// tsr__use_producer then charges nothing at that time.
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
    if (var != edge->var) { // the value has a shared copy: charge only the new layout, until `end`
        tsr__usage_take(planner, at, arrival->n, arrival->bring, time, end);
        return true;
    }
    tsr__usage_take(planner, at, arrival->n, arrival->bring, time, time + TIME_RUN);
    bool stays = edge->readers.n > 1 || (edge->node == SIZE_MAX && edge->value->given);
    const int64_t *running = stays ? arrival->bring : arrival->run;
    tsr__usage_take(planner, at, arrival->n, running, time + TIME_RUN,
                    tsr__edge_end(planner, reader));
    return true;
}
