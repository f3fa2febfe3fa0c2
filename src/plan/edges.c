// SPDX-License-Identifier: Apache-2.0
// edges.c - what lies between the nodes: for each value the price of bringing it from where its producer leaves it to
// where its readers want it.
//
// One reader: a table over both choices. Several: a resharding that two of them can share is paid once, so the value
// gets a variable of its own, which says where it lies and which copy of it is made; readers take the nearer of the two.
#include "plan/internal.h"

#include <stdlib.h>

// ---- readers -----------------------------------------------------------------------------------

struct collecting {
    struct planner *planner;
    struct arena *arena;
    VEC(struct reader) list;
    bool leaves; // a node of another range reads it too
};

static void add_reader(struct collecting *collecting, const tsr_node *node, size_t slot,
                       bool captures)
{
    const tsr_graph *graph = tsr_node_graph(node);
    const tsr_node *outer = node;
    while (graph && tsr_graph_owner(graph)) { // inside of a subgraph
        outer = tsr_graph_owner(graph);
        graph = tsr_node_graph(outer);
    }
    int64_t at = collecting->planner->node_at[tsr__node_id(outer)];
    if (at < 0) {
        collecting->leaves =
            collecting->leaves ||
            (collecting->planner->outside && collecting->planner->outside[tsr__node_id(outer)]);
        return;
    }
    for (size_t i = 0; i < collecting->list.n; i++)
        if (collecting->list.at[i].node == (size_t)at)
            return;
    struct reader *reader = vec_push(collecting->arena, &collecting->list);
    if (reader)
        *reader = (struct reader){.node = (size_t)at,
                                  .slot = slot,
                                  .captures = captures || outer != node,
                                  .var = UINT32_MAX};
}

static bool take_use(void *data, tsr_node *node, size_t input)
{
    add_reader(data, node, input, false);
    return true;
}

static int by_node(const void *a, const void *b)
{
    const struct reader *x = a, *y = b;
    return x->node < y->node ? -1 : x->node > y->node;
}

// What comes from another range is given on by that one.
static bool is_made_here(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *from = tsr_value_producer(value);
    return !planner->outside || (from && planner->node_at[tsr__node_id(from)] >= 0);
}

struct readers tsr__planner_readers(struct planner *planner, struct arena *arena,
                                    const tsr_value *value)
{
    struct collecting collecting = {.planner = planner, .arena = arena};
    struct readers readers = {0};
    tsr_value_uses(value, take_use, &collecting);
    if (collecting.list.n)
        qsort(collecting.list.at, collecting.list.n, sizeof *collecting.list.at, by_node);
    if (collecting.list.n)
        readers.last = collecting.list.at[collecting.list.n - 1].node;
    readers.stays =
        planner->stays && planner->stays[tsr__value_id(value)] && tsr_value_is_output(value);
    if (readers.stays)
        readers.last = planner->n_nodes;
    if (((tsr_value_is_output(value) && !readers.stays) || collecting.leaves) &&
        is_made_here(planner, value)) {
        struct reader *out = vec_push(arena, &collecting.list);
        if (out)
            *out = (struct reader){.node = SIZE_MAX, .var = UINT32_MAX};
        readers.last = planner->n_nodes;
    }
    readers.at = collecting.list.at;
    readers.n = collecting.list.n;
    return readers;
}

static uint32_t whole_on(struct planner *planner, const tsr_value *value, const int64_t *devices,
                         size_t n)
{
    const struct tile_layout *layout =
        tsr__layout_whole(&planner->arena, planner->values[tsr__value_id(value)].rank, devices, n);
    if (layout)
        return tsr__planner_layout(planner, layout);
    return PLAN_NO_LAYOUT;
}

uint32_t tsr__planner_wanted(struct planner *planner, const struct reader *reader,
                             const tsr_value *value, uint32_t candidate)
{
    if (reader->node == SIZE_MAX)
        return whole_on(planner, value, planner->all, 1);
    if (reader->captures)
        return whole_on(planner, value, planner->all, (size_t)planner->n);
    return planner->nodes[reader->node].strategy->at.at[candidate].in[reader->slot];
}

// ---- tables ------------------------------------------------------------------------------------

size_t tsr__edge_choices(const struct planner *planner, const struct reader *reader)
{
    bool one = reader->node == SIZE_MAX || reader->captures;
    return one ? 1 : planner->nodes[reader->node].strategy->at.n;
}

static bool all_zero(const int64_t *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t[i])
            return false;
    return true;
}

static int64_t capped(int64_t ps)
{
    return ps < PLAN_NEVER ? ps : COST_FORBIDDEN;
}

// Tables by what stands at their ends, so that equal layers have the same ones.
void **tsr__planner_cached(struct planner *planner, const uint32_t *key, size_t n)
{
    struct str text = {(const char *)key, n * sizeof *key};
    void **found = tsr__map_get(&planner->tables, text);
    if (found)
        return found;
    void **slot = tsr__map_at(&planner->tables, tsr__arena_str(&planner->arena, text));
    found = ARENA_NEW(&planner->arena, void *);
    if (!slot || !found)
        return NULL;
    *slot = found;
    return found;
}

uint32_t tsr__edge_end(const struct planner *planner, const struct reader *reader)
{
    return reader->node == SIZE_MAX ? UINT32_MAX
           : reader->captures       ? UINT32_MAX - 1
                                    : planner->nodes[reader->node].strategy->id;
}

// Prices from each choice of the producer to each of the reader. NULL: out of memory.
static const int64_t *direct_table(struct edge *edge, const struct reader *reader)
{
    uint32_t key[5] = {1, edge->from->id, (uint32_t)edge->slot,
                       tsr__edge_end(edge->planner, reader), (uint32_t)reader->slot};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    size_t k = tsr__edge_choices(edge->planner, reader), n = edge->from->at.n;
    int64_t *t = ARENA_ARRAY(&edge->planner->arena, int64_t, n * k + 1);
    for (size_t i = 0; t && i < n; i++)
        for (size_t j = 0; j < k; j++)
            t[i * k + j] = capped(tsr__planner_price(
                edge->planner, edge->from->at.at[i].out[edge->slot],
                tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j), edge->value));
    *kept = t;
    return t;
}

// The variable of the reader's node; an output of the model gets one of its own.
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
                tables->to[i][s * k + j] = capped(near);
            }
    }
    return !arena->failed;
}

static struct shared_tables *shared_tables(struct edge *edge, const struct reader *reader, size_t n)
{
    uint32_t *key = ARENA_ARRAY(edge->arena, uint32_t, 2 * n + 3);
    if (!key)
        return NULL;
    key[0] = 2;
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
    tables->key = ++edge->planner->n_shared;
    *kept = tables;
    return tables;
}

// ---- one value ---------------------------------------------------------------------------------

static uint32_t time_of(const struct edge *edge, const struct reader *reader)
{
    return (uint32_t)(PLAN_TIMES *
                      (reader->node == SIZE_MAX ? edge->planner->n_nodes : reader->node));
}

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
            return time_of(edge, &reader[n - 1]) + TIME_COMBINE;
    return time_of(edge, &reader[i]) + TIME_COMBINE;
}

// Where the value is not followed, all layouts that readers may share count.
static bool use_shared(struct edge *edge, uint32_t var, const struct shared_tables *tables,
                       struct reader *reader, size_t n)
{
    uint32_t wants[PLAN_MAX_CANDIDATES], begin = time_of(edge, &reader[0]);
    uint32_t end = time_of(edge, &reader[n - 1]) + TIME_COMBINE;
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
    bool followed = edge->planner->n_classes && tsr__use_followed(edge);
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
    return !edge->planner->n_classes ||
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
    uint32_t run = time_of(edge, reader) + TIME_RUN;
    bool followed = edge->planner->n_classes && tsr__use_followed(edge);
    struct copy_state *state = followed ? no_copies(edge) : NULL;
    if (!followed)
        tsr__program_edge(&edge->planner->program, edge->var, tsr__edge_var(edge, reader),
                          direct_table(edge, reader));
    if (!edge->planner->n_classes)
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
    uint32_t key[2 + TILE_MAX_RANK * 2] = {9, (uint32_t)value->bits};
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
    strategy->id = planner->n_strategies++;
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
