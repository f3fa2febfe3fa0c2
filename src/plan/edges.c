// SPDX-License-Identifier: Apache-2.0
// edges.c - what lies between the nodes: for each value the price of bringing it from where its producer leaves it to
// where its readers want it.
//
// One reader: a table over both choices. Several: a resharding that two of them can share is paid once, so the value
// gets a variable of its own, which says where it lies and which copy of it is made; readers take the nearer of the two.
#include "plan/edges.h"

#include <stdlib.h>

// ---- tables ------------------------------------------------------------------------------------

static bool all_zero(const int64_t *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t[i])
            return false;
    return true;
}

// Prices from each choice of the producer to each of the reader. NULL: out of memory.
static const int64_t *direct_table(struct edge *edge, const struct reader *reader)
{
    uint32_t key[5] = {TABLE_DIRECT, edge->from->id, (uint32_t)edge->slot,
                       tsr__edge_end(edge->planner, reader), (uint32_t)reader->slot};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    size_t k = tsr__edge_choices(edge->planner, reader), n = edge->from->at.n;
    int64_t *t = ARENA_ARRAY(&edge->planner->arena, int64_t, n * k + 1);
    for (size_t i = 0; t && i < n; i++)
        for (size_t j = 0; j < k; j++)
            t[i * k + j] = program_cost_of(tsr__planner_price(
                edge->planner, edge->from->at.at[i].out[edge->slot],
                tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j), edge->value));
    *kept = t;
    return t;
}

// ---- shared copies -----------------------------------------------------------------------------

static bool listed(const uint32_t *list, size_t n, uint32_t x)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return false;
}

// Layouts that at least two of the readers could want.
static size_t shared_wants(struct edge *edge, const struct reader *reader, size_t n, uint32_t *out,
                           size_t cap)
{
    uint32_t once[PLAN_MAX_CANDIDATES * 2];
    size_t n_once = 0, n_out = 0;
    for (size_t i = 0; i < n; i++) {
        size_t begin = n_once;
        for (size_t j = 0; j < tsr__edge_choices(edge->planner, &reader[i]); j++) {
            uint32_t want = tsr__planner_wanted(edge->planner, &reader[i], edge->v, (uint32_t)j);
            if (listed(once, begin, want)) {
                if (!listed(out, n_out, want) && n_out < cap)
                    out[n_out++] = want;
            } else if (!listed(once, n_once, want) && n_once < TSR_COUNT(once)) {
                once[n_once++] = want;
            }
        }
    }
    return n_out;
}

static size_t copy_states(struct edge *edge, const uint32_t *wants, size_t n_wants,
                          struct copy_state **out)
{
    VEC(struct copy_state) list = {0};
    for (size_t i = 0; i < edge->from->at.n; i++) {
        uint32_t from = edge->from->at.at[i].out[edge->slot];
        bool seen = false;
        for (size_t k = 0; k < list.n; k++)
            seen = seen || list.at[k].from == from;
        for (size_t w = 0; !seen && w <= n_wants; w++) {
            uint32_t copy = w < n_wants ? wants[w] : PLAN_NO_LAYOUT;
            int64_t cost =
                w < n_wants ? tsr__planner_price(edge->planner, from, copy, edge->value) : 0;
            struct copy_state *state = (w < n_wants && cost == 0) || cost >= PLAN_NEVER
                                           ? NULL
                                           : vec_push(&edge->planner->arena, &list);
            if (state)
                *state = (struct copy_state){from, copy, cost};
        }
    }
    *out = list.at;
    return list.n;
}

// What the tables of a shared value look like, made once for values that are alike.
struct shared_tables {
    struct copy_state *states;
    size_t n;
    int64_t *cost, *from, **to; // of the states; to the producer; to each reader
    uint32_t key;               // no other tables have it
};

static bool fill_shared(struct edge *edge, const struct reader *reader, size_t n,
                        struct shared_tables *tables)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    struct arena *arena = &edge->planner->arena;
    size_t n_wants = shared_wants(edge, reader, n, wants, TSR_COUNT(wants)),
           k_from = edge->from->at.n;
    tables->n = copy_states(edge, wants, n_wants, &tables->states);
    tables->cost = ARENA_ARRAY(arena, int64_t, tables->n + 1);
    tables->from = ARENA_ARRAY(arena, int64_t, k_from * tables->n + 1);
    tables->to = ARENA_ARRAY(arena, int64_t *, n + 1);
    if (arena->failed)
        return false;
    for (size_t s = 0; s < tables->n; s++) {
        const struct copy_state *state = &tables->states[s];
        tables->cost[s] = state->cost;
        for (size_t i = 0; i < k_from; i++)
            tables->from[i * tables->n + s] =
                edge->from->at.at[i].out[edge->slot] == state->from ? 0 : COST_FORBIDDEN;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = tsr__edge_choices(edge->planner, &reader[i]);
        tables->to[i] = ARENA_ARRAY(arena, int64_t, tables->n * k + 1);
        for (size_t s = 0; tables->to[i] && s < tables->n; s++)
            for (size_t j = 0; j < k; j++) {
                uint32_t want =
                    tsr__planner_wanted(edge->planner, &reader[i], edge->v, (uint32_t)j);
                int64_t near =
                    tsr__planner_price(edge->planner, tables->states[s].from, want, edge->value);
                if (tables->states[s].copy != PLAN_NO_LAYOUT) {
                    int64_t other = tsr__planner_price(edge->planner, tables->states[s].copy, want,
                                                       edge->value);
                    near = other < near ? other : near;
                }
                tables->to[i][s * k + j] = program_cost_of(near);
            }
    }
    return !arena->failed;
}

static struct shared_tables *shared_tables(struct edge *edge, const struct reader *reader, size_t n)
{
    uint32_t *key = ARENA_ARRAY(edge->arena, uint32_t, 2 * n + 3);
    if (!key)
        return NULL;
    key[0] = TABLE_SHARED;
    key[1] = edge->from->id;
    key[2] = (uint32_t)edge->slot;
    for (size_t i = 0; i < n; i++) {
        key[3 + 2 * i] = tsr__edge_end(edge->planner, &reader[i]);
        key[4 + 2 * i] = (uint32_t)reader[i].slot;
    }
    void **kept = tsr__planner_cached(edge->planner, key, 2 * n + 3);
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct shared_tables *tables = ARENA_NEW(&edge->planner->arena, struct shared_tables);
    if (!tables || !fill_shared(edge, reader, n, tables))
        return NULL;
    tables->key = ++edge->planner->cache.n_shared;
    *kept = tables;
    return tables;
}

// ---- one value ---------------------------------------------------------------------------------

// The first time after the last reader.
static uint32_t end_of(const struct edge *edge)
{
    return (uint32_t)(PLAN_TIMES * edge->readers.last) + TIME_COMBINE;
}

// Whether another reader may want the layouts that this one has made for itself: then they stay.
static uint32_t end_of_own(const struct edge *edge, const struct reader *reader, size_t n, size_t i)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    size_t shared = shared_wants((struct edge *)edge, reader, n, wants, TSR_COUNT(wants));
    for (size_t j = 0; j < tsr__edge_choices(edge->planner, &reader[i]); j++)
        if (listed(wants, shared,
                   tsr__planner_wanted(edge->planner, &reader[i], edge->v, (uint32_t)j)))
            return tsr__edge_time(edge->planner, &reader[n - 1]) + TIME_COMBINE;
    return tsr__edge_time(edge->planner, &reader[i]) + TIME_COMBINE;
}

// Where the value is not followed, all layouts that readers may share count.
static bool use_shared(struct edge *edge, uint32_t var, const struct shared_tables *tables,
                       struct reader *reader, size_t n)
{
    uint32_t wants[PLAN_MAX_CANDIDATES], begin = tsr__edge_time(edge->planner, &reader[0]);
    uint32_t end = tsr__edge_time(edge->planner, &reader[n - 1]) + TIME_COMBINE;
    if (tsr__use_followed(edge))
        return tsr__use_copy(edge, var, tables->states, tables->n, begin, end);
    size_t shared = shared_wants(edge, reader, n, wants, TSR_COUNT(wants));
    bool ok = tsr__use_all(edge, var, tables->n, wants, shared, begin, end);
    for (size_t i = 0; ok && i < n; i++)
        ok = tsr__use_reader(edge, &reader[i], wants, shared);
    return ok;
}

static bool connect_shared(struct edge *edge, struct reader *reader, size_t n)
{
    struct program *program = &edge->planner->program;
    struct shared_tables *tables = shared_tables(edge, reader, n);
    bool followed = edge->planner->memory.n_classes && tsr__use_followed(edge);
    if (!tables)
        return false;
    uint32_t var = tsr__program_node(program, str_of(tsr_value_name(edge->v)), (uint32_t)tables->n,
                                     tables->cost);
    tsr__program_edge(program, edge->var, var, tables->from);
    for (size_t i = 0; i < n; i++) {
        if (all_zero(tables->to[i], tables->n * tsr__edge_choices(edge->planner, &reader[i])))
            continue;
        if (!followed)
            tsr__program_edge(program, var, tsr__edge_var(edge, &reader[i]), tables->to[i]);
        else if (!tsr__use_arrival(edge, var, tables->states, tables->n, tables->key, &reader[i],
                                   end_of_own(edge, reader, n, i)))
            return false;
    }
    return !edge->planner->memory.n_classes ||
           (use_shared(edge, var, tables, reader, n) && tsr__use_producer(edge, end_of(edge)));
}

// What lies where the producer leaves it: the states of the arrival at its only reader that wants it elsewhere.
static struct copy_state *no_copies(struct edge *edge)
{
    struct copy_state *state = ARENA_ARRAY(edge->arena, struct copy_state, edge->from->at.n + 1);
    for (size_t i = 0; state && i < edge->from->at.n; i++)
        state[i] = (struct copy_state){edge->from->at.at[i].out[edge->slot], PLAN_NO_LAYOUT, 0};
    return state;
}

static bool connect_one(struct edge *edge, struct reader *reader)
{
    uint32_t run = tsr__edge_time(edge->planner, reader) + TIME_RUN;
    bool followed = edge->planner->memory.n_classes && tsr__use_followed(edge);
    struct copy_state *state = followed ? no_copies(edge) : NULL;
    if (!followed)
        tsr__program_edge(&edge->planner->program, edge->var, tsr__edge_var(edge, reader),
                          direct_table(edge, reader));
    if (!edge->planner->memory.n_classes)
        return true;
    bool ok = followed ? state && tsr__use_arrival(edge, edge->var, state, edge->from->at.n, 0,
                                                   reader, run + 1)
                       : tsr__use_reader(edge, reader, NULL, 0);
    return ok &&
           tsr__use_producer(edge, edge->readers.n > 1 || edge->readers.stays ? end_of(edge) : run);
}

static bool connect(struct edge *edge)
{
    struct reader *moving = ARENA_ARRAY(edge->arena, struct reader, edge->readers.n + 1);
    size_t n = 0;
    if (!moving)
        return false;
    for (size_t i = 0; i < edge->readers.n; i++) {
        struct reader *reader = &edge->readers.at[i];
        const int64_t *t = direct_table(edge, reader);
        if (!t)
            return false;
        if (!all_zero(t, edge->from->at.n * tsr__edge_choices(edge->planner, reader)))
            moving[n++] = *reader;
    }
    if (n > 1)
        return connect_shared(edge, moving, n);
    if (n)
        return connect_one(edge, &moving[0]);
    return tsr__use_producer(edge, end_of(edge));
}

static bool run_edge(struct edge *edge)
{
    edge->arena = edge->planner->work; // an arena for each value would cost more than it frees
    edge->value = &edge->planner->values[tsr__value_id(edge->v)];
    edge->readers = tsr__planner_readers(edge->planner, edge->arena, edge->v);
    bool ok = !edge->arena->failed;
    if (ok && edge->readers.n)
        ok = connect(edge);
    else if (ok && (edge->node == SIZE_MAX || edge->readers.stays))
        ok = tsr__use_producer(edge, edge->node == SIZE_MAX ? 0 : end_of(edge));
    return ok;
}

bool tsr__planner_edges(struct planner *planner, size_t node, size_t slot)
{
    struct edge edge = {.planner = planner,
                        .v = tsr_node_output(planner->nodes[node].node, slot),
                        .node = node,
                        .slot = slot,
                        .from = planner->nodes[node].strategy,
                        .var = planner->nodes[node].var};
    return run_edge(&edge);
}

// ---- what the caller gives ---------------------------------------------------------------------

// Whole on every device.
static struct strategy *given_whole(struct planner *planner, const struct plan_value *value)
{
    uint32_t key[2 + TILE_MAX_RANK * 2] = {TABLE_GIVEN, (uint32_t)value->bits};
    for (int d = 0; d < value->rank; d++) {
        key[2 + 2 * d] = (uint32_t)value->shape[d];
        key[3 + 2 * d] = (uint32_t)((uint64_t)value->shape[d] >> 32);
    }
    void **kept = tsr__planner_cached(planner, key, 2 + 2 * (size_t)value->rank);
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    uint32_t *layouts = ARENA_ARRAY(&planner->arena, uint32_t, 2);
    struct candidate *candidate = strategy ? vec_push(&planner->arena, &strategy->at) : NULL;
    if (!candidate || !layouts)
        return NULL;
    layouts[0] = tsr__planner_whole(planner, value->rank);
    layouts[1] = PLAN_NO_LAYOUT;
    *candidate = (struct candidate){.out = layouts, .before = layouts + 1, .name = STR("whole")};
    strategy->id = planner->cache.n_strategies++;
    *kept = strategy;
    return strategy;
}

bool tsr__planner_given(struct planner *planner, const tsr_value *input)
{
    static const int64_t zero[1] = {0};
    struct strategy *strategy = given_whole(planner, &planner->values[tsr__value_id(input)]);
    if (!strategy)
        return false;
    struct edge edge = {.planner = planner, .v = input, .node = SIZE_MAX, .from = strategy};
    edge.var = tsr__program_node(&planner->program, tsr__value_str(input), 1, zero);
    return run_edge(&edge);
}
