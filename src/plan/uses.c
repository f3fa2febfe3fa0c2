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

static size_t class_with(struct planner *p, int64_t memory)
{
    size_t c = 0;
    while (c < p->n_classes && p->class_memory[c] != memory)
        c++;
    if (c == p->n_classes)
        p->class_memory[p->n_classes++] = memory;
    return c;
}

// What a device has for tensors: its memory without the engine's own, so that the process fits too.
static int64_t free_memory(const struct planner *p, int64_t device)
{
    int64_t bytes = p->topology->device[tsr__planner_device(p, device)].memory;
    return bytes > 64 * PLAN_ENGINE_BYTES ? bytes - PLAN_ENGINE_BYTES : bytes;
}

bool tsr__planner_classes(struct planner *p, int64_t memory)
{
    bool limited = false;
    p->class_of = ARENA_ARRAY(p->work, int64_t, (size_t)p->n + 1);
    p->class_memory = ARENA_ARRAY(p->work, int64_t, (size_t)p->n + 1);
    p->n_classes = 0;
    for (int64_t d = 0; !p->work->failed && d < p->n; d++) {
        int64_t has = memory > 0 ? memory : free_memory(p, d);
        has = has > 0 && has < PLAN_NO_LIMIT ? has : PLAN_NO_LIMIT;
        limited = limited || has < PLAN_NO_LIMIT;
        p->class_of[d] = (int64_t)class_with(p, has);
    }
    if (!limited)
        p->n_classes = 0;
    return !p->work->failed;
}

bool tsr__planner_limits(struct planner *p)
{
    p->limits = ARENA_ARRAY(p->work, uint32_t, p->n_classes + 1);
    for (size_t c = 0; p->limits && c < p->n_classes; c++) {
        struct str name = STR("memory of a device");
        int64_t first = 0;
        while (p->class_of[first] != (int64_t)c)
            first++;
        if (p->n_classes > 1)
            name = tsr__arena_printf(p->work, "memory of device %lld", (long long)first);
        p->limits[c] = tsr__program_limit(&p->program, name, p->class_memory[c], p->n_times);
    }
    return !p->arena.failed;
}

static int64_t most_held(struct planner *p, size_t c, uint32_t layout, const struct plan_value *v)
{
    struct arena a;
    int64_t most = 0;
    tsr__arena_init(&a, p->session);
    for (int64_t d = 0; d < p->n; d++) {
        int64_t bytes = p->class_of[d] == (int64_t)c ? tsr__planner_held(p, &a, layout, v, d) : 0;
        most = bytes > most ? bytes : most;
    }
    p->arena.failed = p->arena.failed || a.failed;
    tsr__arena_free(&a);
    return most;
}

int64_t tsr__planner_class_bytes(struct planner *p, size_t c, uint32_t layout,
                                 const struct plan_value *v)
{
    int64_t key[4 + TILE_MAX_RANK] = {(int64_t)c, layout, v->bits, v->rank};
    if (layout == PLAN_NO_LAYOUT)
        return 0;
    if (p->n_classes == 1)
        return tsr__planner_bytes(p, layout, v);
    memcpy(key + 4, v->shape, (size_t)v->rank * sizeof *key);
    struct str text = {(const char *)key, (4 + (size_t)v->rank) * sizeof *key};
    int64_t *found = tsr__map_get(&p->held, text);
    if (found)
        return *found;
    void **slot = tsr__map_at(&p->held, tsr__arena_str(&p->arena, text));
    found = ARENA_NEW(&p->arena, int64_t);
    if (!slot || !found)
        return PLAN_NEVER;
    *found = most_held(p, c, layout, v);
    *slot = found;
    return *found;
}

// ---- tables ------------------------------------------------------------------------------------

// Bytes by class and choice: the sum over what the choice has.
struct usage {
    struct planner *p;
    size_t k;
    int64_t *at; // class by class
};

static bool usage_new(struct usage *u, struct planner *p, struct arena *a, size_t k)
{
    *u = (struct usage){p, k, ARENA_ARRAY(a, int64_t, p->n_classes * k + 1)};
    return u->at != NULL;
}

static void usage_add(struct usage *u, size_t i, uint32_t layout, const struct plan_value *v)
{
    for (size_t c = 0; c < u->p->n_classes; c++) {
        int64_t *at = &u->at[c * u->k + i];
        if (!add_ok(*at, tsr__planner_class_bytes(u->p, c, layout, v), at) || *at > PLAN_NEVER)
            *at = PLAN_NEVER;
    }
}

static void use(struct planner *p, uint32_t var, size_t k, const int64_t *table, uint32_t begin,
                uint32_t end)
{
    for (size_t c = 0; c < p->n_classes && begin < end; c++) {
        bool any = false;
        for (size_t i = 0; i < k; i++)
            any = any || table[c * k + i];
        if (any)
            tsr__program_use(&p->program, p->limits[c], var, begin, end, table + c * k);
    }
}

// ---- values ------------------------------------------------------------------------------------

// While the node runs, while its result is combined, and then.
struct produced {
    int64_t *run, *combine, *then;
};

static struct produced *produced_of(struct edge *e)
{
    uint32_t key[4] = {3, e->from->id, (uint32_t)e->slot, (uint32_t)e->p->n_classes};
    void **kept = tsr__planner_cached(e->p, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct usage run, combine, then;
    size_t k = e->from->at.n;
    struct produced *out = ARENA_NEW(&e->p->arena, struct produced);
    if (!out || !usage_new(&run, e->p, &e->p->arena, k) ||
        !usage_new(&combine, e->p, &e->p->arena, k) || !usage_new(&then, e->p, &e->p->arena, k))
        return NULL;
    for (size_t i = 0; i < k; i++) {
        uint32_t lies = e->from->at.at[i].out[e->slot], before = e->from->at.at[i].before[e->slot];
        usage_add(&run, i, before == PLAN_NO_LAYOUT ? lies : before, e->value);
        usage_add(&combine, i, before, e->value);
        usage_add(&then, i, lies, e->value);
    }
    *out = (struct produced){run.at, combine.at, then.at};
    *kept = out;
    return out;
}

bool tsr__use_producer(struct edge *e, uint32_t end)
{
    struct planner *p = e->p;
    size_t k = e->from->at.n;
    if (!p->n_classes)
        return true;
    struct produced *t = produced_of(e);
    if (!t)
        return false;
    if (e->node == SIZE_MAX) { // what another range gives goes when it was read
        use(p, e->var, k, t->then, 0, e->value->given ? p->n_times : end);
        return true;
    }
    uint32_t time = (uint32_t)(PLAN_TIMES * e->node);
    use(p, e->var, k, t->run, time + TIME_RUN, time + TIME_COMBINE);
    use(p, e->var, k, t->combine, time + TIME_COMBINE, time + PLAN_TIMES);
    use(p, e->var, k, t->then, time + TIME_COMBINE, end);
    return true;
}

bool tsr__use_copy(struct edge *e, uint32_t var, const struct copy_state *states, size_t n,
                   uint32_t begin, uint32_t end)
{
    struct usage u;
    if (!e->p->n_classes)
        return true;
    if (!usage_new(&u, e->p, e->p->work, n))
        return false;
    for (size_t i = 0; i < n; i++)
        usage_add(&u, i, states[i].copy, e->value);
    use(e->p, var, n, u.at, begin, end);
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

static int64_t whole_bytes(struct planner *p, const tsr_value *v)
{
    const struct plan_value *value = &p->values[tsr__value_id(v)];
    return tsr__planner_bytes(p, tsr__planner_whole(p, value->rank), value);
}

// The largest values, at least those of the largest size.
bool tsr__planner_followed(struct planner *p)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    VEC(int64_t) sizes = {0};
    int64_t stored = 0;
    if (!p->n_classes)
        return true;
    for (size_t i = 0; i < p->n_nodes; i++)
        for (size_t o = 0; p->nodes[i].strategy && o < tsr_node_output_count(p->nodes[i].node);
             o++) {
            const tsr_value *v = tsr_node_output(p->nodes[i].node, o);
            int64_t *at = v ? vec_push(p->work, &sizes) : NULL;
            if (at)
                *at = whole_bytes(p, v);
        }
    for (size_t i = 0; i < tsr_graph_initializer_count(g); i++)
        if (!add_ok(stored, whole_bytes(p, tsr_graph_initializer(g, i)), &stored))
            stored = PLAN_NEVER;
    if (p->arena.failed)
        return false;
    if (sizes.n)
        qsort(sizes.at, sizes.n, sizeof *sizes.at, descending);
    int64_t largest = sizes.n ? sizes.at[0] : 0;
    int64_t share = (stored / 2 + largest / 2) / p->n / (FOLLOWED_SHARE / 2);
    p->followed = sizes.n > FOLLOWED_VALUES ? sizes.at[FOLLOWED_VALUES] : 0;
    p->followed = p->followed < largest ? p->followed : largest - 1;
    p->followed = p->followed > share ? p->followed : share;
    return true;
}

bool tsr__use_followed(const struct edge *e)
{
    return whole_bytes(e->p, e->v) > e->p->followed;
}

bool tsr__use_all(struct edge *e, uint32_t var, size_t k, const uint32_t *layouts, size_t n,
                  uint32_t begin, uint32_t end)
{
    struct usage u;
    if (!usage_new(&u, e->p, e->p->work, k))
        return false;
    for (size_t i = 0; i < k; i++)
        for (size_t l = 0; l < n; l++)
            usage_add(&u, i, layouts[l], e->value);
    use(e->p, var, k, u.at, begin, end);
    return true;
}

bool tsr__use_reader(struct edge *e, struct reader *r, const uint32_t *but, size_t n)
{
    struct usage u;
    size_t k = tsr__edge_choices(e->p, r);
    uint32_t time = (uint32_t)(PLAN_TIMES * (r->node == SIZE_MAX ? e->p->n_nodes : r->node));
    if (!usage_new(&u, e->p, e->p->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(e->p, r, e->v, (uint32_t)j);
        bool there = false;
        for (size_t i = 0; i < n; i++)
            there = there || but[i] == want;
        usage_add(&u, j, there ? PLAN_NO_LAYOUT : want, e->value);
    }
    use(e->p, tsr__edge_var(e, r), k, u.at, time, time + TIME_COMBINE);
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

static int64_t nearest(struct edge *e, const struct copy_state *s, uint32_t want)
{
    int64_t near = tsr__planner_price(e->p, s->from, want, e->value);
    if (s->copy != PLAN_NO_LAYOUT) {
        int64_t other = tsr__planner_price(e->p, s->copy, want, e->value);
        near = other < near ? other : near;
    }
    return near;
}

// Adds the two states of a layout, as far as they can be.
static void add_states(struct edge *e, struct arrival *t, const struct copy_state *states, size_t n,
                       uint32_t want)
{
    bool lies = false, made = false;
    for (size_t i = 0; i < t->n; i++)
        if (t->want[i] == want)
            return;
    for (size_t i = 0; i < n; i++) {
        int64_t near = nearest(e, &states[i], want);
        lies = lies || near == 0;
        made = made || (near > 0 && near < PLAN_NEVER);
    }
    for (int k = 0; k < 2; k++)
        if (k ? made : lies) {
            t->want[t->n] = want;
            t->made[t->n++] = k;
        }
}

static bool fill_arrival(struct edge *e, const struct copy_state *states, size_t n,
                         const struct reader *r, struct arrival *t)
{
    struct arena *a = &e->p->arena;
    size_t k = tsr__edge_choices(e->p, r);
    struct usage bring, run;
    t->want = ARENA_ARRAY(a, uint32_t, 2 * k + 1);
    t->made = ARENA_ARRAY(a, bool, 2 * k + 1);
    for (size_t j = 0; !a->failed && j < k; j++)
        add_states(e, t, states, n, tsr__planner_wanted(e->p, r, e->v, (uint32_t)j));
    t->cost = ARENA_ARRAY(a, int64_t, t->n + 1);
    t->from = ARENA_ARRAY(a, int64_t, n * t->n + 1);
    t->to = ARENA_ARRAY(a, int64_t, t->n * k + 1);
    if (a->failed || !usage_new(&bring, e->p, a, t->n) || !usage_new(&run, e->p, a, t->n))
        return false;
    for (size_t s = 0; s < t->n; s++) {
        for (size_t i = 0; i < n; i++) {
            int64_t near = nearest(e, &states[i], t->want[s]);
            bool fits = t->made[s] ? near > 0 && near < PLAN_NEVER : near == 0;
            t->from[i * t->n + s] = fits ? near : COST_FORBIDDEN;
        }
        for (size_t j = 0; j < k; j++)
            t->to[s * k + j] =
                tsr__planner_wanted(e->p, r, e->v, (uint32_t)j) == t->want[s] ? 0 : COST_FORBIDDEN;
        usage_add(&bring, s, t->made[s] ? t->want[s] : PLAN_NO_LAYOUT, e->value);
        usage_add(&run, s, t->want[s], e->value);
    }
    t->bring = bring.at;
    t->run = run.at;
    return true;
}

static struct arrival *arrival_of(struct edge *e, const struct copy_state *states, size_t n,
                                  uint32_t key, const struct reader *r)
{
    uint32_t text[6] = {
        4, e->from->id, (uint32_t)e->slot, tsr__edge_end(e->p, r), (uint32_t)r->slot, key};
    void **kept = tsr__planner_cached(e->p, text, TSR_COUNT(text));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct arrival *t = ARENA_NEW(&e->p->arena, struct arrival);
    if (!t || !fill_arrival(e, states, n, r, t))
        return NULL;
    *kept = t;
    return t;
}

bool tsr__use_arrival(struct edge *e, uint32_t var, const struct copy_state *states, size_t n,
                      uint32_t key, struct reader *r, uint32_t end)
{
    struct planner *p = e->p;
    struct arrival *t = arrival_of(e, states, n, key, r);
    if (!t)
        return false;
    uint32_t time = (uint32_t)(PLAN_TIMES * (r->node == SIZE_MAX ? p->n_nodes : r->node));
    uint32_t at = tsr__program_node(&p->program, tsr__value_str(e->v), (uint32_t)t->n, t->cost);
    tsr__program_edge(&p->program, var, at, t->from);
    tsr__program_edge(&p->program, at, tsr__edge_var(e, r), t->to);
    if (var != e->var) { // the value itself stays: only what was made counts, and longer
        use(p, at, t->n, t->bring, time, end);
        return true;
    }
    use(p, at, t->n, t->bring, time, time + TIME_RUN);
    bool stays = e->readers.n > 1 || (e->node == SIZE_MAX && e->value->given);
    use(p, at, t->n, stays ? t->bring : t->run, time + TIME_RUN, time + TIME_COMBINE);
    return true;
}

// ---- constants ---------------------------------------------------------------------------------

static bool read_first(const tsr_node *n, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (tsr_node_input(n, k) == tsr_node_input(n, i))
            return false;
    return true;
}

// What only this node reads, in one table.
static bool use_own(struct planner *p, const struct plan_node *n, const bool *own)
{
    enum { HEAD = 3 };
    size_t n_in = tsr_node_input_count(n->node), n_key = HEAD;
    uint32_t *key = ARENA_ARRAY(p->work, uint32_t, n_in + HEAD);
    if (!key)
        return false;
    key[0] = 5;
    key[1] = n->strategy->id;
    key[2] = (uint32_t)p->n_classes;
    for (size_t i = 0; i < n_in; i++)
        if (tsr_node_input(n->node, i) && own[tsr__value_id(tsr_node_input(n->node, i))] &&
            read_first(n->node, i))
            key[n_key++] = (uint32_t)i;
    void **kept = n_key > HEAD ? tsr__planner_cached(p, key, n_key) : NULL;
    struct usage u = {p, n->strategy->at.n, kept ? *kept : NULL};
    if (n_key == HEAD)
        return true;
    if (!kept || (!u.at && !usage_new(&u, p, &p->arena, u.k)))
        return false;
    for (size_t c = 0; !*kept && c < u.k; c++)
        for (size_t i = HEAD; i < n_key; i++)
            usage_add(&u, c, n->strategy->at.at[c].in[key[i]],
                      &p->values[tsr__value_id(tsr_node_input(n->node, key[i]))]);
    *kept = u.at;
    use(p, n->var, u.k, u.at, 0, p->n_times);
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

static size_t place_in(struct wanted *w, uint32_t layout)
{
    size_t i = 0;
    while (i < w->n && w->layout[i] != layout)
        i++;
    if (i == MANY_LAYOUTS) {
        w->too_many = true;
        return 0;
    }
    if (i == w->n) {
        w->layout[i] = layout;
        w->readers[w->n++] = 0;
    }
    return i;
}

static void list_wanted(struct edge *e, struct wanted *w)
{
    for (size_t r = 0; r < e->readers.n; r++) {
        bool seen[MANY_LAYOUTS] = {false};
        for (size_t j = 0; j < tsr__edge_choices(e->p, &e->readers.at[r]); j++) {
            size_t i = place_in(w, tsr__planner_wanted(e->p, &e->readers.at[r], e->v, (uint32_t)j));
            w->readers[i] += !seen[i];
            seen[i] = true;
        }
    }
}

// Small ones, and those that all want alike, lie there in any case.
static bool use_fixed(struct edge *e, const struct wanted *w, uint32_t fixed)
{
    struct usage u;
    if (!usage_new(&u, e->p, e->p->work, 1))
        return false;
    for (size_t i = 0; i < w->n; i++)
        usage_add(&u, 0, w->layout[i], e->value);
    use(e->p, fixed, 1, u.at, 0, e->p->n_times);
    return true;
}

// A variable that says whether the constant is stored in that layout; whoever wants it so needs that.
static bool store(struct edge *e, uint32_t layout)
{
    static const int64_t zero[2] = {0, 0};
    struct program *g = &e->p->program;
    struct usage u;
    uint32_t var = tsr__program_node(g, tsr__value_str(e->v), 2, zero);
    if (!usage_new(&u, e->p, e->p->work, 2))
        return false;
    usage_add(&u, 1, layout, e->value);
    use(e->p, var, 2, u.at, 0, e->p->n_times);
    for (size_t r = 0; r < e->readers.n; r++) {
        struct reader *reader = &e->readers.at[r];
        size_t k = tsr__edge_choices(e->p, reader);
        bool any = false;
        int64_t *t = ARENA_ARRAY(e->p->work, int64_t, 2 * k + 1);
        for (size_t j = 0; t && j < k; j++)
            if (tsr__planner_wanted(e->p, reader, e->v, (uint32_t)j) == layout) {
                t[j] = COST_FORBIDDEN;
                any = true;
            }
        if (any)
            tsr__program_edge(g, var, tsr__edge_var(e, reader), t);
    }
    return !e->p->work->failed;
}

// Layouts that one reader alone may want are that reader's.
static bool use_lone(struct edge *e, struct wanted *w, struct reader *r)
{
    struct usage u;
    size_t k = tsr__edge_choices(e->p, r);
    if (!usage_new(&u, e->p, e->p->work, k))
        return false;
    for (size_t j = 0; j < k; j++) {
        uint32_t want = tsr__planner_wanted(e->p, r, e->v, (uint32_t)j);
        if (w->readers[place_in(w, want)] == 1)
            usage_add(&u, j, want, e->value);
    }
    use(e->p, tsr__edge_var(e, r), k, u.at, 0, e->p->n_times);
    return true;
}

static bool use_shared(struct edge *e, uint32_t fixed)
{
    struct wanted w;
    w.n = 0;
    w.too_many = false;
    int64_t whole = tsr__planner_bytes(e->p, tsr__planner_whole(e->p, e->value->rank), e->value);
    list_wanted(e, &w);
    bool ok = !w.too_many || whole == 0;
    if (w.n == 1 || whole <= PLAN_SMALL_CONSTANT)
        return use_fixed(e, &w, fixed);
    for (size_t i = 0; ok && i < w.n; i++)
        ok = w.readers[i] < 2 || store(e, w.layout[i]);
    for (size_t r = 0; ok && r < e->readers.n; r++)
        ok = use_lone(e, &w, &e->readers.at[r]);
    return ok;
}

bool tsr__use_constants(struct planner *p)
{
    static const int64_t zero[1] = {0};
    if (!p->n_classes)
        return true;
    bool *own = ARENA_ARRAY(p->work, bool, tsr__model_value_ids(p->model) + 1);
    uint32_t fixed = tsr__program_node(&p->program, STR("constants"), 1, zero);
    bool ok = own != NULL;
    for (size_t i = 0; ok && i < p->constants.n; i++) {
        const tsr_value *v = p->constants.at[i];
        struct arena a;
        struct edge e = {.p = p, .a = &a, .v = v, .value = &p->values[tsr__value_id(v)]};
        tsr__arena_init(&a, p->session);
        e.readers = tsr__planner_readers(p, &a, v);
        ok = !a.failed;
        bool one =
            e.readers.n == 1 && e.readers.at[0].node != SIZE_MAX && !e.readers.at[0].captures;
        own[tsr__value_id(v)] = one && e.value->constant;
        if (ok && !one && e.readers.n && e.value->constant)
            ok = use_shared(&e, fixed);
        tsr__arena_free(&a);
    }
    for (size_t i = 0; ok && i < p->n_nodes; i++)
        ok = !p->nodes[i].strategy || use_own(p, &p->nodes[i], own);
    return ok && !p->arena.failed;
}
