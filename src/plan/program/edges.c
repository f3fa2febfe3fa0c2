// SPDX-License-Identifier: Apache-2.0
// edges.c - adds the edges of the program: for each value the cost of resharding from its
// producer's layout to its readers' layouts.
//
// A value with one reader has a cost table over the choices of producer and reader. With several
// readers, a copy that two of them can share is charged once. So the value gets its own variable:
// its layout, and which copy is made. Readers use the value or the copy, whichever is cheaper.
//
// Example: a producer leaves a value by rows (R) or replicated (W). One reader wants it by columns
// (C), another by columns or replicated. Both could want C, so C is a copy that they may share.
// States of the value's variable, with their cost in ms:
//
//     R, no copy 0      R, copy C 3      W, no copy 0      W, copy C 1 (a slice of W)
//
// Costs to the first reader, which wants C: 3 from "R, no copy", 1 from "W, no copy", 0 from the
// states with the copy. So two readers that want C pay 3 together with the copy, and 6 without it.
#include "plan/program/edges.h"

// ---- tables ------------------------------------------------------------------------------------

static bool all_zero(const int64_t *table, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (table[i])
            return false;
    return true;
}

// Returns the table of costs from each choice of the producer to each choice of the reader. NULL:
// out of memory.
static const int64_t *direct_table(struct edge *edge, const struct reader *reader)
{
    uint32_t key[5] = {TABLE_DIRECT, edge->from->id, (uint32_t)edge->slot,
                       tsr__edge_key(edge->planner, reader), (uint32_t)reader->slot};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    size_t k = tsr__edge_choices(edge->planner, reader), n = edge->from->at.n;
    int64_t *table = ARENA_ARRAY(&edge->planner->arena, int64_t, n * k + 1);
    if (!table)
        return NULL;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++) {
            uint32_t from = edge->from->at.at[i].out[edge->slot];
            uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
            int64_t ps = tsr__resharding_time(edge->planner, from, want, edge->value);
            table[i * k + j] = program_cost_of(ps);
        }
    *kept = table;
    return table;
}

// ---- shared copies -----------------------------------------------------------------------------

// Collects the layouts that at least two readers could want, and returns their number. once[0] to
// once[begin - 1] are layouts of earlier readers.
static size_t shared_wants(struct edge *edge, const struct reader *reader, size_t n, uint32_t *out,
                           size_t cap)
{
    uint32_t once[PLAN_MAX_CANDIDATES * 2];
    size_t n_once = 0, n_out = 0;
    for (size_t i = 0; i < n; i++) {
        size_t begin = n_once;
        for (size_t j = 0; j < tsr__edge_choices(edge->planner, &reader[i]); j++) {
            uint32_t want = tsr__planner_wanted(edge->planner, &reader[i], edge->v, (uint32_t)j);
            if (layout_listed(once, begin, want)) {
                if (!layout_listed(out, n_out, want) && n_out < cap)
                    out[n_out++] = want;
            } else if (!layout_listed(once, n_once, want) && n_once < TSR_COUNT(once)) {
                once[n_once++] = want;
            }
        }
    }
    return n_out;
}

// A list of states while it is filled.
struct state_list {
    struct arena *arena;
    VEC(struct copy_state) list;
};

static void add_state(struct state_list *states, uint32_t from, uint32_t copy, int64_t cost)
{
    vec_add(states->arena, &states->list, (struct copy_state){from, copy, cost});
}

// True if a copy state has this layout of the producer. Candidates with the same layout share their
// copy states.
static bool has_from(const struct state_list *states, uint32_t from)
{
    for (size_t i = 0; i < states->list.n; i++)
        if (states->list.at[i].from == from)
            return true;
    return false;
}

// Lists the copy states of a shared value: each layout of the producer, with each possible copy or
// none.
static size_t copy_states(struct edge *edge, const uint32_t *wants, size_t n_wants,
                          struct copy_state **out)
{
    struct state_list states = {.arena = &edge->planner->arena};
    for (size_t i = 0; i < edge->from->at.n; i++) {
        uint32_t from = edge->from->at.at[i].out[edge->slot];
        if (has_from(&states, from))
            continue;
        for (size_t w = 0; w < n_wants; w++) {
            int64_t cost = tsr__resharding_time(edge->planner, from, wants[w], edge->value);
            if (cost != 0 && cost < PLAN_NEVER)
                add_state(&states, from, wants[w], cost);
        }
        add_state(&states, from, PLAN_NO_LAYOUT, 0);
    }
    *out = states.list.at;
    return states.list.n;
}

// Cost tables of a value with several readers. Equal values use the same tables.
struct shared_tables {
    struct copy_state *states;
    size_t n;
    // costs of the states, from the producer to the states, from the states to each reader
    int64_t *cost, *from, **to;
    uint32_t key; // unique among these tables
};

// Fills the table from the producer's choices to the copy states. A choice allows only copy states
// with its layout.
static void fill_from(const struct edge *edge, struct shared_tables *tables)
{
    for (size_t s = 0; s < tables->n; s++) {
        const struct copy_state *state = &tables->states[s];
        tables->cost[s] = state->cost;
        for (size_t i = 0; i < edge->from->at.n; i++) {
            bool same = edge->from->at.at[i].out[edge->slot] == state->from;
            tables->from[i * tables->n + s] = same ? 0 : COST_FORBIDDEN;
        }
    }
}

// Returns the cost table from the copy states to a reader's choices. Each entry is the lower of two
// costs: from the value, or from its copy. NULL: out of memory.
static int64_t *table_to(struct edge *edge, const struct shared_tables *tables,
                         const struct reader *reader)
{
    size_t k = tsr__edge_choices(edge->planner, reader);
    int64_t *table = ARENA_ARRAY(&edge->planner->arena, int64_t, tables->n * k + 1);
    if (!table)
        return NULL;
    for (size_t s = 0; s < tables->n; s++)
        for (size_t j = 0; j < k; j++) {
            uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
            int64_t ps = tsr__edge_nearest(edge, &tables->states[s], want);
            table[s * k + j] = program_cost_of(ps);
        }
    return table;
}

// Finds the copies that may be shared, the states, and the tables. False: out of memory.
static bool fill_shared(struct edge *edge, const struct reader *reader, size_t n,
                        struct shared_tables *tables)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    struct arena *arena = &edge->planner->arena;
    size_t n_wants = shared_wants(edge, reader, n, wants, TSR_COUNT(wants));
    tables->n = copy_states(edge, wants, n_wants, &tables->states);
    tables->cost = ARENA_ARRAY(arena, int64_t, tables->n + 1);
    tables->from = ARENA_ARRAY(arena, int64_t, edge->from->at.n * tables->n + 1);
    tables->to = ARENA_ARRAY(arena, int64_t *, n + 1);
    if (arena->failed)
        return false;
    fill_from(edge, tables);
    for (size_t i = 0; i < n; i++)
        tables->to[i] = table_to(edge, tables, &reader[i]);
    return !arena->failed;
}

// Returns the tables of a shared value. Values are equal if their producers and readers are equal,
// slot by slot.
static struct shared_tables *shared_tables(struct edge *edge, const struct reader *reader, size_t n)
{
    uint32_t *key = ARENA_ARRAY(edge->arena, uint32_t, 2 * n + 3);
    if (!key)
        return NULL;
    key[0] = TABLE_SHARED;
    key[1] = edge->from->id;
    key[2] = (uint32_t)edge->slot;
    for (size_t i = 0; i < n; i++) {
        key[3 + 2 * i] = tsr__edge_key(edge->planner, &reader[i]);
        key[4 + 2 * i] = (uint32_t)reader[i].slot;
    }
    void **kept = tsr__planner_cached(edge->planner, key, 2 * n + 3);
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    struct shared_tables *tables = ARENA_NEW(&edge->planner->arena, struct shared_tables);
    if (!tables || !fill_shared(edge, reader, n, tables))
        return NULL;
    tables->key = ++edge->planner->cache.n_shared;
    *kept = tables;
    return tables;
}

// ---- one value ---------------------------------------------------------------------------------

// Returns the first time after the last reader.
static uint32_t end_of(const struct edge *edge)
{
    return (uint32_t)(PLAN_TIMES * edge->readers.last) + TIME_COMBINE;
}

// Returns the time at which the copy of one reader is freed. That is after the last reader if
// another reader may want the same layout, otherwise after this reader.
static uint32_t end_of_own(const struct edge *edge, const struct reader *reader,
                           const struct reader *last, const uint32_t *wants, size_t n_wants)
{
    for (size_t j = 0; j < tsr__edge_choices(edge->planner, reader); j++)
        if (layout_listed(wants, n_wants,
                          tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j)))
            return tsr__edge_end(edge->planner, last);
    return tsr__edge_end(edge->planner, reader);
}

// Charges the memory of the shared copy. If the memory of the value is not tracked exactly, charges
// all layouts that readers may share.
static bool use_shared(struct edge *edge, uint32_t var, const struct shared_tables *tables,
                       struct reader *reader, size_t n)
{
    uint32_t wants[PLAN_MAX_CANDIDATES], begin = tsr__edge_time(edge->planner, &reader[0]);
    uint32_t end = tsr__edge_end(edge->planner, &reader[n - 1]);
    if (tsr__use_followed(edge))
        return tsr__use_copy(edge, var, tables->states, tables->n, begin, end);
    size_t shared = shared_wants(edge, reader, n, wants, TSR_COUNT(wants));
    if (!tsr__use_all(edge, var, tables->n, wants, shared, begin, end))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!tsr__use_reader(edge, &reader[i], wants, shared))
            return false;
    return true;
}

// Connects several readers that may want a layout other than the producer's, through one variable
// for the layout and its copy.
static bool connect_shared(struct edge *edge, struct reader *reader, size_t n)
{
    struct program *program = &edge->planner->program;
    struct shared_tables *tables = shared_tables(edge, reader, n);
    bool followed = edge->planner->memory.n_classes && tsr__use_followed(edge);
    uint32_t wants[PLAN_MAX_CANDIDATES];
    size_t n_wants = followed ? shared_wants(edge, reader, n, wants, TSR_COUNT(wants)) : 0;
    if (!tables)
        return false;
    // Edges connect the producer with var, and var with each reader. The copy is a cost of var, so
    // it is charged once.
    uint32_t var = tsr__program_node(program, str_of(tsr_value_name(edge->v)), (uint32_t)tables->n,
                                     tables->cost);
    tsr__program_edge(program, edge->var, var, tables->from);
    for (size_t i = 0; i < n; i++) {
        if (all_zero(tables->to[i], tables->n * tsr__edge_choices(edge->planner, &reader[i])))
            continue;
        if (!followed)
            tsr__program_edge(program, var, tsr__edge_var(edge, &reader[i]), tables->to[i]);
        else if (!tsr__use_arrival(edge, var, tables->states, tables->n, tables->key, &reader[i],
                                   end_of_own(edge, &reader[i], &reader[n - 1], wants, n_wants)))
            return false;
    }
    return !edge->planner->memory.n_classes ||
           (use_shared(edge, var, tables, reader, n) && tsr__use_producer(edge, end_of(edge)));
}

// Lists copy states without a copy, one for each candidate of the producer. NULL: out of memory.
static struct copy_state *no_copies(struct edge *edge)
{
    struct copy_state *state = ARENA_ARRAY(edge->arena, struct copy_state, edge->from->at.n + 1);
    if (!state)
        return NULL;
    for (size_t i = 0; i < edge->from->at.n; i++)
        state[i] = (struct copy_state){edge->from->at.at[i].out[edge->slot], PLAN_NO_LAYOUT, 0};
    return state;
}

// Connects one reader that may want a layout other than the producer's, if memory is tracked
// exactly. Adds an arrival variable (memory_uses.c).
static bool connect_followed(struct edge *edge, struct reader *reader)
{
    struct copy_state *state = no_copies(edge);
    return state && tsr__use_arrival(edge, edge->var, state, edge->from->at.n, 0, reader,
                                     tsr__edge_end(edge->planner, reader));
}

// Connects the only reader that may want a layout other than the producer's. If the value has other
// readers or stays in memory, its first layout is kept until the last of them has run; otherwise
// until this reader has its copy.
static bool connect_one(struct edge *edge, struct reader *reader)
{
    uint32_t run = tsr__edge_time(edge->planner, reader) + TIME_RUN;
    if (edge->planner->memory.n_classes && tsr__use_followed(edge)) {
        if (!connect_followed(edge, reader))
            return false;
    } else {
        tsr__program_edge(&edge->planner->program, edge->var, tsr__edge_var(edge, reader),
                          direct_table(edge, reader));
        if (!edge->planner->memory.n_classes)
            return true;
        if (!tsr__use_reader(edge, reader, NULL, 0))
            return false;
    }
    bool read_again = edge->readers.n > 1 || edge->readers.stays;
    return tsr__use_producer(edge, read_again ? end_of(edge) : run);
}

// Connects the value with its readers. A reader that accepts every layout of the value unchanged
// needs no edge.
static bool connect(struct edge *edge)
{
    struct reader *moving = ARENA_ARRAY(edge->arena, struct reader, edge->readers.n + 1);
    size_t n = 0;
    if (!moving)
        return false;
    for (size_t i = 0; i < edge->readers.n; i++) {
        struct reader *reader = &edge->readers.at[i];
        const int64_t *table = direct_table(edge, reader);
        if (!table)
            return false;
        if (!all_zero(table, edge->from->at.n * tsr__edge_choices(edge->planner, reader)))
            moving[n++] = *reader;
    }
    if (n > 1)
        return connect_shared(edge, moving, n);
    return n ? connect_one(edge, &moving[0]) : tsr__use_producer(edge, end_of(edge));
}

// Adds costs and memory of one value. False: out of memory.
static bool run_edge(struct edge *edge)
{
    // a separate arena for each value would cost more memory than it frees
    edge->arena = edge->planner->work;
    edge->value = &edge->planner->values[tsr__value_id(edge->v)];
    edge->readers = tsr__planner_readers(edge->planner, edge->arena, edge->v);
    if (edge->arena->failed)
        return false;
    if (edge->readers.n)
        return connect(edge);
    if (edge->node == SIZE_MAX)
        return tsr__use_producer(edge, 0);
    if (edge->readers.stays)
        return tsr__use_producer(edge, end_of(edge));
    return true; // no reader
}

bool tsr__planner_edges(struct planner *planner, size_t node, size_t slot)
{
    struct edge edge = {.planner = planner,
                        .v = tsr__plan_made(&planner->nodes[node], slot),
                        .node = node,
                        .slot = slot,
                        .from = planner->nodes[node].strategy,
                        .var = planner->nodes[node].var};
    return run_edge(&edge);
}

// ---- inputs of the model ------------------------------------------------------------------------

// Returns the layout of an input: replicated on every device, or on the stages that read it.
static uint32_t given_layout(struct planner *planner, const tsr_value *input)
{
    int rank = planner->values[tsr__value_id(input)].rank;
    if (!planner->scope.places)
        return tsr__planner_replicated(planner, rank);
    struct arena arena = {.session = planner->session};
    struct readers readers = tsr__planner_readers(planner, &arena, input);
    bool *reads = ARENA_ARRAY(&arena, bool, (size_t)planner->machine.n);
    int64_t *devices = ARENA_ARRAY(&arena, int64_t, (size_t)planner->machine.n);
    uint32_t layout = PLAN_NO_LAYOUT;
    size_t n = 0;
    for (size_t i = 0; reads && i < readers.n; i++) {
        struct device_group place = tsr__plan_place_of(planner, (int64_t)readers.at[i].node);
        for (size_t k = 0; k < place.n; k++)
            reads[place.devices[k]] = true;
    }
    for (int64_t device = 0; devices && device < planner->machine.n; device++)
        if (reads[device])
            devices[n++] = device;
    if (!arena.failed)
        layout = n ? tsr__planner_replicated_on(planner, rank, devices, n)
                   : tsr__planner_replicated(planner, rank);
    tsr__arena_free(&arena);
    return layout;
}

// Returns a strategy without a node, with one candidate. With it, inputs are treated like values
// that have a producer. Its key contains each size in two halves, because keys have 32 bits.
static struct strategy *given_whole(struct planner *planner, const tsr_value *input)
{
    enum { HEAD = 3 };
    const struct plan_value *value = &planner->values[tsr__value_id(input)];
    uint32_t layout = given_layout(planner, input);
    uint32_t key[HEAD + TILE_MAX_RANK * 2] = {TABLE_GIVEN, layout, (uint32_t)value->bits};
    for (int d = 0; d < value->rank; d++) {
        key[HEAD + 2 * d] = (uint32_t)value->shape[d];
        key[HEAD + 1 + 2 * d] = (uint32_t)((uint64_t)value->shape[d] >> 32);
    }
    if (layout == PLAN_NO_LAYOUT)
        return NULL;
    void **kept = tsr__planner_cached(planner, key, HEAD + 2 * (size_t)value->rank);
    if (!kept)
        return NULL;
    if (*kept)
        return *kept;
    struct strategy *strategy = ARENA_NEW(&planner->arena, struct strategy);
    uint32_t *layouts = ARENA_ARRAY(&planner->arena, uint32_t, 2);
    struct candidate *candidate = strategy ? vec_push(&planner->arena, &strategy->at) : NULL;
    if (!candidate || !layouts)
        return NULL;
    layouts[0] = layout;
    layouts[1] = PLAN_NO_LAYOUT;
    *candidate = (struct candidate){.out = layouts, .before = layouts + 1, .name = STR("whole")};
    strategy->id = planner->cache.n_strategies++;
    *kept = strategy;
    return strategy;
}

// Adds an input of the model. Its variable has one choice without cost; only resharding to its
// readers is charged.
bool tsr__planner_given(struct planner *planner, const tsr_value *input)
{
    static const int64_t zero[1] = {0};
    struct strategy *strategy = given_whole(planner, input);
    if (!strategy)
        return false;
    struct edge edge = {.planner = planner, .v = input, .node = SIZE_MAX, .from = strategy};
    edge.var = tsr__program_node(&planner->program, tsr__value_str(input), 1, zero);
    return run_edge(&edge);
}
