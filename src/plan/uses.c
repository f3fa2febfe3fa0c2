// SPDX-License-Identifier: Apache-2.0
// uses.c - what lies in the memory of the devices, and when: rows of the program.
//
// Devices with the same memory are one class, and of a value the fullest of them counts. A value lies where its
// producer leaves it until its last reader has run, or has got a copy of its own. Whether a reader needs a copy depends
// on both ends, so between them stands a variable: the layout that is wanted, and whether it was made for the reader.
// Constants are stored in each layout that somebody wants, once.
#include "plan/internal.h"

#include <stdlib.h>

// ---- classes -----------------------------------------------------------------------------------

static size_t class_with(struct planner *planner, int64_t memory)
{
    size_t c = 0;
    while (c < planner->n_classes && planner->class_memory[c] != memory)
        c++;
    if (c == planner->n_classes)
        planner->class_memory[planner->n_classes++] = memory;
    return c;
}

// What a device has for tensors: its memory without the engine's own, so that the process fits too.
static int64_t free_memory(const struct planner *planner, int64_t device)
{
    int64_t bytes = planner->topology->device[tsr__planner_device(planner, device)].memory;
    if (bytes > 64 * PLAN_ENGINE_BYTES)
        return bytes - PLAN_ENGINE_BYTES;
    return bytes;
}

bool tsr__planner_classes(struct planner *planner, int64_t memory)
{
    bool limited = false;
    planner->class_of = ARENA_ARRAY(planner->work, int64_t, (size_t)planner->n + 1);
    planner->class_memory = ARENA_ARRAY(planner->work, int64_t, (size_t)planner->n + 1);
    planner->n_classes = 0;
    for (int64_t device = 0; !planner->work->failed && device < planner->n; device++) {
        int64_t has = memory > 0 ? memory : free_memory(planner, device);
        has = has > 0 && has < PLAN_NO_LIMIT ? has : PLAN_NO_LIMIT;
        limited = limited || has < PLAN_NO_LIMIT;
        planner->class_of[device] = (int64_t)class_with(planner, has);
    }
    if (!limited)
        planner->n_classes = 0;
    return !planner->work->failed;
}

bool tsr__planner_limits(struct planner *planner)
{
    planner->limits = ARENA_ARRAY(planner->work, uint32_t, planner->n_classes + 1);
    for (size_t c = 0; planner->limits && c < planner->n_classes; c++) {
        struct str name = STR("memory of a device");
        int64_t first = 0;
        while (planner->class_of[first] != (int64_t)c)
            first++;
        if (planner->n_classes > 1)
            name = tsr__arena_printf(planner->work, "memory of device %lld", (long long)first);
        planner->limits[c] =
            tsr__program_limit(&planner->program, name, planner->class_memory[c], planner->n_times);
    }
    return !planner->arena.failed;
}

static int64_t most_held(struct planner *planner, size_t c, uint32_t layout,
                         const struct plan_value *value)
{
    struct arena arena;
    int64_t most = 0;
    tsr__arena_init(&arena, planner->session);
    for (int64_t device = 0; device < planner->n; device++) {
        int64_t bytes = planner->class_of[device] == (int64_t)c
                            ? tsr__planner_held(planner, &arena, layout, value, device)
                            : 0;
        most = bytes > most ? bytes : most;
    }
    planner->arena.failed = planner->arena.failed || arena.failed;
    tsr__arena_free(&arena);
    return most;
}

int64_t tsr__planner_class_bytes(struct planner *planner, size_t c, uint32_t layout,
                                 const struct plan_value *value)
{
    int64_t key[4 + TILE_MAX_RANK] = {(int64_t)c, layout, value->bits, value->rank};
    if (layout == PLAN_NO_LAYOUT)
        return 0;
    if (planner->n_classes == 1)
        return tsr__planner_bytes(planner, layout, value);
    memcpy(key + 4, value->shape, (size_t)value->rank * sizeof *key);
    struct str text = {(const char *)key, (4 + (size_t)value->rank) * sizeof *key};
    int64_t *found = tsr__map_get(&planner->held, text);
    if (found)
        return *found;
    void **slot = tsr__map_at(&planner->held, tsr__arena_str(&planner->arena, text));
    found = ARENA_NEW(&planner->arena, int64_t);
    if (!slot || !found)
        return PLAN_NEVER;
    *found = most_held(planner, c, layout, value);
    *slot = found;
    return *found;
}

// ---- tables ------------------------------------------------------------------------------------

// Bytes by class and choice: the sum over what the choice has.
struct usage {
    struct planner *planner;
    size_t k;
    int64_t *at; // class by class
};

static bool usage_new(struct usage *usage, struct planner *planner, struct arena *arena, size_t k)
{
    *usage = (struct usage){planner, k, ARENA_ARRAY(arena, int64_t, planner->n_classes * k + 1)};
    return usage->at != NULL;
}

static void usage_add(struct usage *usage, size_t i, uint32_t layout,
                      const struct plan_value *value)
{
    for (size_t c = 0; c < usage->planner->n_classes; c++) {
        int64_t *at = &usage->at[c * usage->k + i];
        if (!add_ok(*at, tsr__planner_class_bytes(usage->planner, c, layout, value), at) ||
            *at > PLAN_NEVER)
            *at = PLAN_NEVER;
    }
}

static void use(struct planner *planner, uint32_t var, size_t k, const int64_t *table,
                uint32_t begin, uint32_t end)
{
    for (size_t c = 0; c < planner->n_classes && begin < end; c++) {
        bool any = false;
        for (size_t i = 0; i < k; i++)
            any = any || table[c * k + i];
        if (any)
            tsr__program_use(&planner->program, planner->limits[c], var, begin, end, table + c * k);
    }
}

// ---- values ------------------------------------------------------------------------------------

// While the node runs, while its result is combined, and then.
struct produced {
    int64_t *run, *combine, *then;
};

static struct produced *produced_of(struct edge *edge)
{
    uint32_t key[4] = {3, edge->from->id, (uint32_t)edge->slot, (uint32_t)edge->planner->n_classes};
    void **kept = tsr__planner_cached(edge->planner, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct usage run, combine, then;
    size_t k = edge->from->at.n;
    struct produced *out = ARENA_NEW(&edge->planner->arena, struct produced);
    if (!out || !usage_new(&run, edge->planner, &edge->planner->arena, k) ||
        !usage_new(&combine, edge->planner, &edge->planner->arena, k) ||
        !usage_new(&then, edge->planner, &edge->planner->arena, k))
        return NULL;
    for (size_t i = 0; i < k; i++) {
        uint32_t lies = edge->from->at.at[i].out[edge->slot],
                 before = edge->from->at.at[i].before[edge->slot];
        usage_add(&run, i, before == PLAN_NO_LAYOUT ? lies : before, edge->value);
        usage_add(&combine, i, before, edge->value);
        usage_add(&then, i, lies, edge->value);
    }
    *out = (struct produced){run.at, combine.at, then.at};
    *kept = out;
    return out;
}

bool tsr__use_producer(struct edge *edge, uint32_t end)
{
    struct planner *planner = edge->planner;
    size_t k = edge->from->at.n;
    if (!planner->n_classes)
        return true;
    struct produced *produced = produced_of(edge);
    if (!produced)
        return false;
    if (edge->node == SIZE_MAX) { // what another range gives goes when it was read
        use(planner, edge->var, k, produced->then, 0, edge->value->given ? planner->n_times : end);
        return true;
    }
    uint32_t time = (uint32_t)(PLAN_TIMES * edge->node);
    use(planner, edge->var, k, produced->run, time + TIME_RUN, time + TIME_COMBINE);
    use(planner, edge->var, k, produced->combine, time + TIME_COMBINE, time + PLAN_TIMES);
    use(planner, edge->var, k, produced->then, time + TIME_COMBINE, end);
    return true;
}

bool tsr__use_copy(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end)
{
    struct usage usage;
    if (!edge->planner->n_classes)
        return true;
    if (!usage_new(&usage, edge->planner, edge->planner->work, n))
        return false;
    for (size_t i = 0; i < n; i++)
        usage_add(&usage, i, states[i].copy, edge->value);
    use(edge->planner, var, n, usage.at, begin, end);
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

// The largest values, at least those of the largest size.
bool tsr__planner_followed(struct planner *planner)
{
    const tsr_graph *graph = tsr_model_graph(planner->model);
    VEC(int64_t) sizes = {0};
    int64_t stored = 0;
    if (!planner->n_classes)
        return true;
    for (size_t i = 0; i < planner->n_nodes; i++)
        for (size_t o = 0;
             planner->nodes[i].strategy && o < tsr_node_output_count(planner->nodes[i].node); o++) {
            const tsr_value *value = tsr_node_output(planner->nodes[i].node, o);
            int64_t *at = value ? vec_push(planner->work, &sizes) : NULL;
            if (at)
                *at = whole_bytes(planner, value);
        }
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        if (!add_ok(stored, whole_bytes(planner, tsr_graph_initializer(graph, i)), &stored))
            stored = PLAN_NEVER;
    if (planner->arena.failed)
        return false;
    if (sizes.n)
        qsort(sizes.at, sizes.n, sizeof *sizes.at, descending);
    int64_t largest = sizes.n ? sizes.at[0] : 0;
    int64_t share = (stored / 2 + largest / 2) / planner->n / (FOLLOWED_SHARE / 2);
    planner->followed = sizes.n > FOLLOWED_VALUES ? sizes.at[FOLLOWED_VALUES] : 0;
    planner->followed = planner->followed < largest ? planner->followed : largest - 1;
    planner->followed = planner->followed > share ? planner->followed : share;
    return true;
}

bool tsr__use_followed(const struct edge *edge)
{
    return whole_bytes(edge->planner, edge->v) > edge->planner->followed;
}

bool tsr__use_all(struct edge *edge, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end)
{
    struct usage usage;
    if (!usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t i = 0; i < k; i++)
        for (size_t l = 0; l < n; l++)
            usage_add(&usage, i, layouts[l], edge->value);
    use(edge->planner, var, k, usage.at, begin, end);
    return true;
}

bool tsr__use_reader(struct edge *edge, struct reader *reader, const uint32_t *but, size_t n)
{
    struct usage usage;
    size_t k = tsr__edge_choices(edge->planner, reader);
    uint32_t time =
        (uint32_t)(PLAN_TIMES * (reader->node == SIZE_MAX ? edge->planner->n_nodes : reader->node));
    if (!usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
        bool there = false;
        for (size_t i = 0; i < n; i++)
            there = there || but[i] == want;
        usage_add(&usage, j, there ? PLAN_NO_LAYOUT : want, edge->value);
    }
    use(edge->planner, tsr__edge_var(edge, reader), k, usage.at, time, time + TIME_COMBINE);
    return true;
}

// ---- arrivals ----------------------------------------------------------------------------------

// The states of an arrival: a layout that the reader may want, taken from where it lies or made for the reader.
struct arrival {
    size_t n;
    uint32_t *want;
    bool *made;
    int64_t *cost, *from, *to; // zeros; states of the value x n; n x choices of the reader
    int64_t *bring, *run;      // bytes while it is brought, and while the reader runs
};

static int64_t nearest(struct edge *edge, const struct copy_state *state, uint32_t want)
{
    int64_t near = tsr__planner_price(edge->planner, state->from, want, edge->value);
    if (state->copy != PLAN_NO_LAYOUT) {
        int64_t other = tsr__planner_price(edge->planner, state->copy, want, edge->value);
        near = other < near ? other : near;
    }
    return near;
}

// Adds the two states of a layout, as far as they can be.
static void add_states(struct edge *edge, struct arrival *arrival, const struct copy_state *states,
                       size_t n, uint32_t want)
{
    bool lies = false, made = false;
    for (size_t i = 0; i < arrival->n; i++)
        if (arrival->want[i] == want)
            return;
    for (size_t i = 0; i < n; i++) {
        int64_t near = nearest(edge, &states[i], want);
        lies = lies || near == 0;
        made = made || (near > 0 && near < PLAN_NEVER);
    }
    for (int k = 0; k < 2; k++)
        if (k ? made : lies) {
            arrival->want[arrival->n] = want;
            arrival->made[arrival->n++] = k;
        }
}

static bool fill_arrival(struct edge *edge, const struct copy_state *states, size_t n,
                         const struct reader *reader, struct arrival *arrival)
{
    struct arena *arena = &edge->planner->arena;
    size_t k = tsr__edge_choices(edge->planner, reader);
    struct usage bring, run;
    arrival->want = ARENA_ARRAY(arena, uint32_t, 2 * k + 1);
    arrival->made = ARENA_ARRAY(arena, bool, 2 * k + 1);
    for (size_t j = 0; !arena->failed && j < k; j++)
        add_states(edge, arrival, states, n,
                   tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j));
    arrival->cost = ARENA_ARRAY(arena, int64_t, arrival->n + 1);
    arrival->from = ARENA_ARRAY(arena, int64_t, n * arrival->n + 1);
    arrival->to = ARENA_ARRAY(arena, int64_t, arrival->n * k + 1);
    if (arena->failed || !usage_new(&bring, edge->planner, arena, arrival->n) ||
        !usage_new(&run, edge->planner, arena, arrival->n))
        return false;
    for (size_t s = 0; s < arrival->n; s++) {
        for (size_t i = 0; i < n; i++) {
            int64_t near = nearest(edge, &states[i], arrival->want[s]);
            bool fits = arrival->made[s] ? near > 0 && near < PLAN_NEVER : near == 0;
            arrival->from[i * arrival->n + s] = fits ? near : COST_FORBIDDEN;
        }
        for (size_t j = 0; j < k; j++)
            arrival->to[s * k + j] =
                tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j) == arrival->want[s]
                    ? 0
                    : COST_FORBIDDEN;
        usage_add(&bring, s, arrival->made[s] ? arrival->want[s] : PLAN_NO_LAYOUT, edge->value);
        usage_add(&run, s, arrival->want[s], edge->value);
    }
    arrival->bring = bring.at;
    arrival->run = run.at;
    return true;
}

static struct arrival *arrival_of(struct edge *edge, const struct copy_state *states, size_t n,
                                  uint32_t key, const struct reader *reader)
{
    uint32_t text[6] = {4,
                        edge->from->id,
                        (uint32_t)edge->slot,
                        tsr__edge_end(edge->planner, reader),
                        (uint32_t)reader->slot,
                        key};
    void **kept = tsr__planner_cached(edge->planner, text, TSR_COUNT(text));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct arrival *arrival = ARENA_NEW(&edge->planner->arena, struct arrival);
    if (!arrival || !fill_arrival(edge, states, n, reader, arrival))
        return NULL;
    *kept = arrival;
    return arrival;
}

bool tsr__use_arrival(struct edge *edge, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *reader, uint32_t end)
{
    struct planner *planner = edge->planner;
    struct arrival *arrival = arrival_of(edge, states, n, key, reader);
    if (!arrival)
        return false;
    uint32_t time =
        (uint32_t)(PLAN_TIMES * (reader->node == SIZE_MAX ? planner->n_nodes : reader->node));
    uint32_t at = tsr__program_node(&planner->program, tsr__value_str(edge->v),
                                    (uint32_t)arrival->n, arrival->cost);
    tsr__program_edge(&planner->program, var, at, arrival->from);
    tsr__program_edge(&planner->program, at, tsr__edge_var(edge, reader), arrival->to);
    if (var != edge->var) { // the value itself stays: only what was made counts, and longer
        use(planner, at, arrival->n, arrival->bring, time, end);
        return true;
    }
    use(planner, at, arrival->n, arrival->bring, time, time + TIME_RUN);
    bool stays = edge->readers.n > 1 || (edge->node == SIZE_MAX && edge->value->given);
    use(planner, at, arrival->n, stays ? arrival->bring : arrival->run, time + TIME_RUN,
        time + TIME_COMBINE);
    return true;
}

// ---- constants ---------------------------------------------------------------------------------

static bool read_first(const tsr_node *node, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(node, k) == tsr_node_input(node, i))
            return false;
    return true;
}

// What only this node reads, in one table.
static bool use_own(struct planner *planner, const struct plan_node *node, const bool *own)
{
    enum { HEAD = 3 };
    size_t n_in = tsr_node_input_count(node->node), n_key = HEAD;
    uint32_t *key = ARENA_ARRAY(planner->work, uint32_t, n_in + HEAD);
    if (!key)
        return false;
    key[0] = 5;
    key[1] = node->strategy->id;
    key[2] = (uint32_t)planner->n_classes;
    for (size_t i = 0; i < n_in; i++)
        if (tsr_node_input(node->node, i) && own[tsr__value_id(tsr_node_input(node->node, i))] &&
            read_first(node->node, i))
            key[n_key++] = (uint32_t)i;
    void **kept = n_key > HEAD ? tsr__planner_cached(planner, key, n_key) : NULL;
    struct usage usage = {planner, node->strategy->at.n, kept ? *kept : NULL};
    if (n_key == HEAD)
        return true;
    if (!kept || (!usage.at && !usage_new(&usage, planner, &planner->arena, usage.k)))
        return false;
    for (size_t c = 0; !*kept && c < usage.k; c++)
        for (size_t i = HEAD; i < n_key; i++)
            usage_add(&usage, c, node->strategy->at.at[c].in[key[i]],
                      &planner->values[tsr__value_id(tsr_node_input(node->node, key[i]))]);
    *kept = usage.at;
    use(planner, node->var, usage.k, usage.at, 0, planner->n_times);
    return true;
}

// The layouts in which the readers of a constant may want it.
#define MANY_LAYOUTS 256
struct wanted {
    uint32_t layout[MANY_LAYOUTS];
    size_t readers[MANY_LAYOUTS]; // that may want it
    size_t n;
    bool too_many;
};

static size_t place_in(struct wanted *wanted, uint32_t layout)
{
    size_t i = 0;
    while (i < wanted->n && wanted->layout[i] != layout)
        i++;
    if (i == MANY_LAYOUTS) {
        wanted->too_many = true;
        return 0;
    }
    if (i == wanted->n) {
        wanted->layout[i] = layout;
        wanted->readers[wanted->n++] = 0;
    }
    return i;
}

static void list_wanted(struct edge *edge, struct wanted *wanted)
{
    for (size_t r = 0; r < edge->readers.n; r++) {
        bool seen[MANY_LAYOUTS] = {false};
        for (size_t j = 0; j < tsr__edge_choices(edge->planner, &edge->readers.at[r]); j++) {
            size_t i = place_in(wanted, tsr__planner_wanted(edge->planner, &edge->readers.at[r],
                                                            edge->v, (uint32_t)j));
            wanted->readers[i] += !seen[i];
            seen[i] = true;
        }
    }
}

// Small ones, and those that all want alike, lie there in any case.
static bool use_fixed(struct edge *edge, const struct wanted *wanted, uint32_t fixed)
{
    struct usage usage;
    if (!usage_new(&usage, edge->planner, edge->planner->work, 1))
        return false;
    for (size_t i = 0; i < wanted->n; i++)
        usage_add(&usage, 0, wanted->layout[i], edge->value);
    use(edge->planner, fixed, 1, usage.at, 0, edge->planner->n_times);
    return true;
}

// A variable that says whether the constant is stored in that layout; whoever wants it so needs that.
static bool store(struct edge *edge, uint32_t layout)
{
    static const int64_t zero[2] = {0, 0};
    struct program *program = &edge->planner->program;
    struct usage usage;
    uint32_t var = tsr__program_node(program, tsr__value_str(edge->v), 2, zero);
    if (!usage_new(&usage, edge->planner, edge->planner->work, 2))
        return false;
    usage_add(&usage, 1, layout, edge->value);
    use(edge->planner, var, 2, usage.at, 0, edge->planner->n_times);
    for (size_t r = 0; r < edge->readers.n; r++) {
        struct reader *reader = &edge->readers.at[r];
        size_t k = tsr__edge_choices(edge->planner, reader);
        bool any = false;
        int64_t *t = ARENA_ARRAY(edge->planner->work, int64_t, 2 * k + 1);
        for (size_t j = 0; t && j < k; j++)
            if (tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j) == layout) {
                t[j] = COST_FORBIDDEN;
                any = true;
            }
        if (any)
            tsr__program_edge(program, var, tsr__edge_var(edge, reader), t);
    }
    return !edge->planner->work->failed;
}

// Layouts that one reader alone may want are that reader's.
static bool use_lone(struct edge *edge, struct wanted *wanted, struct reader *reader)
{
    struct usage usage;
    size_t k = tsr__edge_choices(edge->planner, reader);
    if (!usage_new(&usage, edge->planner, edge->planner->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(edge->planner, reader, edge->v, (uint32_t)j);
        if (wanted->readers[place_in(wanted, want)] == 1)
            usage_add(&usage, j, want, edge->value);
    }
    use(edge->planner, tsr__edge_var(edge, reader), k, usage.at, 0, edge->planner->n_times);
    return true;
}

static bool use_shared(struct edge *edge, uint32_t fixed)
{
    struct wanted wanted;
    wanted.n = 0;
    wanted.too_many = false;
    int64_t whole = tsr__planner_bytes(
        edge->planner, tsr__planner_whole(edge->planner, edge->value->rank), edge->value);
    list_wanted(edge, &wanted);
    bool ok = !wanted.too_many || whole == 0;
    if (wanted.n == 1 || whole <= PLAN_SMALL_CONSTANT)
        return use_fixed(edge, &wanted, fixed);
    for (size_t i = 0; ok && i < wanted.n; i++)
        ok = wanted.readers[i] < 2 || store(edge, wanted.layout[i]);
    for (size_t r = 0; ok && r < edge->readers.n; r++)
        ok = use_lone(edge, &wanted, &edge->readers.at[r]);
    return ok;
}

bool tsr__use_constants(struct planner *planner)
{
    static const int64_t zero[1] = {0};
    if (!planner->n_classes)
        return true;
    bool *own = ARENA_ARRAY(planner->work, bool, tsr__model_value_ids(planner->model) + 1);
    uint32_t fixed = tsr__program_node(&planner->program, STR("constants"), 1, zero);
    bool ok = own != NULL;
    for (size_t i = 0; ok && i < planner->constants.n; i++) {
        const tsr_value *value = planner->constants.at[i];
        struct arena arena;
        struct edge edge = {.planner = planner,
                            .arena = &arena,
                            .v = value,
                            .value = &planner->values[tsr__value_id(value)]};
        tsr__arena_init(&arena, planner->session);
        edge.readers = tsr__planner_readers(planner, &arena, value);
        ok = !arena.failed;
        bool one = edge.readers.n == 1 && edge.readers.at[0].node != SIZE_MAX &&
                   !edge.readers.at[0].captures;
        own[tsr__value_id(value)] = one && edge.value->constant;
        if (ok && !one && edge.readers.n && edge.value->constant)
            ok = use_shared(&edge, fixed);
        tsr__arena_free(&arena);
    }
    for (size_t i = 0; ok && i < planner->n_nodes; i++)
        ok = !planner->nodes[i].strategy || use_own(planner, &planner->nodes[i], own);
    return ok && !planner->arena.failed;
}
