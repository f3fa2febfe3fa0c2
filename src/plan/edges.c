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
    struct planner *p;
    struct arena *a;
    VEC(struct reader) list;
    bool leaves; // a node of another range reads it too
};

static void add_reader(struct collecting *c, const tsr_node *n, size_t slot, bool captures)
{
    const tsr_graph *g = tsr_node_graph(n);
    const tsr_node *outer = n;
    while (g && tsr_graph_owner(g)) { // inside of a subgraph
        outer = tsr_graph_owner(g);
        g = tsr_node_graph(outer);
    }
    int64_t at = c->p->node_at[tsr__node_id(outer)];
    if (at < 0) {
        c->leaves = c->leaves || (c->p->outside && c->p->outside[tsr__node_id(outer)]);
        return;
    }
    for (size_t i = 0; i < c->list.n; i++)
        if (c->list.at[i].node == (size_t)at)
            return;
    struct reader *r = vec_push(c->a, &c->list);
    if (r)
        *r = (struct reader){.node = (size_t)at,
                             .slot = slot,
                             .captures = captures || outer != n,
                             .var = UINT32_MAX};
}

static bool take_use(void *data, tsr_node *n, size_t input)
{
    add_reader(data, n, input, false);
    return true;
}

static int by_node(const void *a, const void *b)
{
    const struct reader *x = a, *y = b;
    return x->node < y->node ? -1 : x->node > y->node;
}

// What comes from another range is given on by that one.
static bool is_made_here(const struct planner *p, const tsr_value *v)
{
    const tsr_node *from = tsr_value_producer(v);
    return !p->outside || (from && p->node_at[tsr__node_id(from)] >= 0);
}

struct readers tsr__planner_readers(struct planner *p, struct arena *a, const tsr_value *v)
{
    struct collecting c = {.p = p, .a = a};
    struct readers r = {0};
    tsr_value_uses(v, take_use, &c);
    if (c.list.n)
        qsort(c.list.at, c.list.n, sizeof *c.list.at, by_node);
    if (c.list.n)
        r.last = c.list.at[c.list.n - 1].node;
    r.stays = p->stays && p->stays[tsr__value_id(v)] && tsr_value_is_output(v);
    if (r.stays)
        r.last = p->n_nodes;
    if (((tsr_value_is_output(v) && !r.stays) || c.leaves) && is_made_here(p, v)) {
        struct reader *out = vec_push(a, &c.list);
        if (out)
            *out = (struct reader){.node = SIZE_MAX, .var = UINT32_MAX};
        r.last = p->n_nodes;
    }
    r.at = c.list.at;
    r.n = c.list.n;
    return r;
}

static uint32_t whole_on(struct planner *p, const tsr_value *v, const int64_t *devices, size_t n)
{
    const struct tile_layout *l =
        tsr__layout_whole(&p->arena, p->values[tsr__value_id(v)].rank, devices, n);
    return l ? tsr__planner_layout(p, l) : PLAN_NO_LAYOUT;
}

uint32_t tsr__planner_wanted(struct planner *p, const struct reader *r, const tsr_value *v,
                             uint32_t candidate)
{
    if (r->node == SIZE_MAX)
        return whole_on(p, v, p->all, 1);
    if (r->captures)
        return whole_on(p, v, p->all, (size_t)p->n);
    return p->nodes[r->node].strategy->at.at[candidate].in[r->slot];
}

// ---- tables ------------------------------------------------------------------------------------

size_t tsr__edge_choices(const struct planner *p, const struct reader *r)
{
    bool one = r->node == SIZE_MAX || r->captures;
    return one ? 1 : p->nodes[r->node].strategy->at.n;
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
void **tsr__planner_cached(struct planner *p, const uint32_t *key, size_t n)
{
    struct str text = {(const char *)key, n * sizeof *key};
    void **found = tsr__map_get(&p->tables, text);
    if (found)
        return found;
    void **slot = tsr__map_at(&p->tables, tsr__arena_str(&p->arena, text));
    found = ARENA_NEW(&p->arena, void *);
    if (!slot || !found)
        return NULL;
    *slot = found;
    return found;
}

uint32_t tsr__edge_end(const struct planner *p, const struct reader *r)
{
    return r->node == SIZE_MAX ? UINT32_MAX
           : r->captures       ? UINT32_MAX - 1
                               : p->nodes[r->node].strategy->id;
}

// Prices from each choice of the producer to each of the reader. NULL: out of memory.
static const int64_t *direct_table(struct edge *e, const struct reader *r)
{
    uint32_t key[5] = {1, e->from->id, (uint32_t)e->slot, tsr__edge_end(e->p, r),
                       (uint32_t)r->slot};
    void **kept = tsr__planner_cached(e->p, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    size_t k = tsr__edge_choices(e->p, r), n = e->from->at.n;
    int64_t *t = ARENA_ARRAY(&e->p->arena, int64_t, n * k + 1);
    for (size_t i = 0; t && i < n; i++)
        for (size_t j = 0; j < k; j++)
            t[i * k + j] = capped(
                tsr__planner_price(e->p, e->from->at.at[i].out[e->slot],
                                   tsr__planner_wanted(e->p, r, e->v, (uint32_t)j), e->value));
    *kept = t;
    return t;
}

// The variable of the reader's node; an output of the model gets one of its own.
uint32_t tsr__edge_var(struct edge *e, struct reader *r)
{
    static const int64_t zero[1] = {0};
    if (r->node != SIZE_MAX && !r->captures)
        return e->p->nodes[r->node].var;
    if (r->var == UINT32_MAX)
        r->var = tsr__program_node(&e->p->program, str_of(tsr_value_name(e->v)), 1, zero);
    return r->var;
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
static size_t shared_wants(struct edge *e, const struct reader *r, size_t n, uint32_t *out,
                           size_t cap)
{
    uint32_t once[PLAN_MAX_CANDIDATES * 2];
    size_t n_once = 0, n_out = 0;
    for (size_t i = 0; i < n; i++) {
        size_t begin = n_once;
        for (size_t j = 0; j < tsr__edge_choices(e->p, &r[i]); j++) {
            uint32_t want = tsr__planner_wanted(e->p, &r[i], e->v, (uint32_t)j);
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

static size_t copy_states(struct edge *e, const uint32_t *wants, size_t n_wants,
                          struct copy_state **out)
{
    VEC(struct copy_state) list = {0};
    for (size_t i = 0; i < e->from->at.n; i++) {
        uint32_t from = e->from->at.at[i].out[e->slot];
        bool seen = false;
        for (size_t k = 0; k < list.n; k++)
            seen = seen || list.at[k].from == from;
        for (size_t w = 0; !seen && w <= n_wants; w++) {
            uint32_t copy = w < n_wants ? wants[w] : PLAN_NO_LAYOUT;
            int64_t cost = w < n_wants ? tsr__planner_price(e->p, from, copy, e->value) : 0;
            struct copy_state *s = (w < n_wants && cost == 0) || cost >= PLAN_NEVER
                                       ? NULL
                                       : vec_push(&e->p->arena, &list);
            if (s)
                *s = (struct copy_state){from, copy, cost};
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

static bool fill_shared(struct edge *e, const struct reader *r, size_t n, struct shared_tables *t)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    struct arena *a = &e->p->arena;
    size_t n_wants = shared_wants(e, r, n, wants, TSR_COUNT(wants)), k_from = e->from->at.n;
    t->n = copy_states(e, wants, n_wants, &t->states);
    t->cost = ARENA_ARRAY(a, int64_t, t->n + 1);
    t->from = ARENA_ARRAY(a, int64_t, k_from * t->n + 1);
    t->to = ARENA_ARRAY(a, int64_t *, n + 1);
    if (a->failed)
        return false;
    for (size_t s = 0; s < t->n; s++) {
        const struct copy_state *x = &t->states[s];
        t->cost[s] = x->cost;
        for (size_t i = 0; i < k_from; i++)
            t->from[i * t->n + s] = e->from->at.at[i].out[e->slot] == x->from ? 0 : COST_FORBIDDEN;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = tsr__edge_choices(e->p, &r[i]);
        t->to[i] = ARENA_ARRAY(a, int64_t, t->n * k + 1);
        for (size_t s = 0; t->to[i] && s < t->n; s++)
            for (size_t j = 0; j < k; j++) {
                uint32_t want = tsr__planner_wanted(e->p, &r[i], e->v, (uint32_t)j);
                int64_t near = tsr__planner_price(e->p, t->states[s].from, want, e->value);
                if (t->states[s].copy != PLAN_NO_LAYOUT) {
                    int64_t other = tsr__planner_price(e->p, t->states[s].copy, want, e->value);
                    near = other < near ? other : near;
                }
                t->to[i][s * k + j] = capped(near);
            }
    }
    return !a->failed;
}

static struct shared_tables *shared_tables(struct edge *e, const struct reader *r, size_t n)
{
    uint32_t *key = ARENA_ARRAY(e->a, uint32_t, 2 * n + 3);
    if (!key)
        return NULL;
    key[0] = 2;
    key[1] = e->from->id;
    key[2] = (uint32_t)e->slot;
    for (size_t i = 0; i < n; i++) {
        key[3 + 2 * i] = tsr__edge_end(e->p, &r[i]);
        key[4 + 2 * i] = (uint32_t)r[i].slot;
    }
    void **kept = tsr__planner_cached(e->p, key, 2 * n + 3);
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct shared_tables *t = ARENA_NEW(&e->p->arena, struct shared_tables);
    if (!t || !fill_shared(e, r, n, t))
        return NULL;
    t->key = ++e->p->n_shared;
    *kept = t;
    return t;
}

// ---- one value ---------------------------------------------------------------------------------

static uint32_t time_of(const struct edge *e, const struct reader *r)
{
    return (uint32_t)(PLAN_TIMES * (r->node == SIZE_MAX ? e->p->n_nodes : r->node));
}

// The first time after the last reader.
static uint32_t end_of(const struct edge *e)
{
    return (uint32_t)(PLAN_TIMES * e->readers.last) + TIME_COMBINE;
}

// Whether another reader may want the layouts that this one has made for itself: then they stay.
static uint32_t end_of_own(const struct edge *e, const struct reader *r, size_t n, size_t i)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    size_t shared = shared_wants((struct edge *)e, r, n, wants, TSR_COUNT(wants));
    for (size_t j = 0; j < tsr__edge_choices(e->p, &r[i]); j++)
        if (listed(wants, shared, tsr__planner_wanted(e->p, &r[i], e->v, (uint32_t)j)))
            return time_of(e, &r[n - 1]) + TIME_COMBINE;
    return time_of(e, &r[i]) + TIME_COMBINE;
}

// Where the value is not followed, all layouts that readers may share count.
static bool use_shared(struct edge *e, uint32_t var, const struct shared_tables *t,
                       struct reader *r, size_t n)
{
    uint32_t wants[PLAN_MAX_CANDIDATES], begin = time_of(e, &r[0]);
    uint32_t end = time_of(e, &r[n - 1]) + TIME_COMBINE;
    if (tsr__use_followed(e))
        return tsr__use_copy(e, var, t->states, t->n, begin, end);
    size_t shared = shared_wants(e, r, n, wants, TSR_COUNT(wants));
    bool ok = tsr__use_all(e, var, t->n, wants, shared, begin, end);
    for (size_t i = 0; ok && i < n; i++)
        ok = tsr__use_reader(e, &r[i], wants, shared);
    return ok;
}

static bool connect_shared(struct edge *e, struct reader *r, size_t n)
{
    struct program *g = &e->p->program;
    struct shared_tables *t = shared_tables(e, r, n);
    bool followed = e->p->n_classes && tsr__use_followed(e);
    if (!t)
        return false;
    uint32_t var = tsr__program_node(g, str_of(tsr_value_name(e->v)), (uint32_t)t->n, t->cost);
    tsr__program_edge(g, e->var, var, t->from);
    for (size_t i = 0; i < n; i++) {
        if (all_zero(t->to[i], t->n * tsr__edge_choices(e->p, &r[i])))
            continue;
        if (!followed)
            tsr__program_edge(g, var, tsr__edge_var(e, &r[i]), t->to[i]);
        else if (!tsr__use_arrival(e, var, t->states, t->n, t->key, &r[i], end_of_own(e, r, n, i)))
            return false;
    }
    return !e->p->n_classes || (use_shared(e, var, t, r, n) && tsr__use_producer(e, end_of(e)));
}

// What lies where the producer leaves it: the states of the arrival at its only reader that wants it elsewhere.
static struct copy_state *no_copies(struct edge *e)
{
    struct copy_state *s = ARENA_ARRAY(e->a, struct copy_state, e->from->at.n + 1);
    for (size_t i = 0; s && i < e->from->at.n; i++)
        s[i] = (struct copy_state){e->from->at.at[i].out[e->slot], PLAN_NO_LAYOUT, 0};
    return s;
}

static bool connect_one(struct edge *e, struct reader *r)
{
    uint32_t run = time_of(e, r) + TIME_RUN;
    bool followed = e->p->n_classes && tsr__use_followed(e);
    struct copy_state *s = followed ? no_copies(e) : NULL;
    if (!followed)
        tsr__program_edge(&e->p->program, e->var, tsr__edge_var(e, r), direct_table(e, r));
    if (!e->p->n_classes)
        return true;
    bool ok = followed ? s && tsr__use_arrival(e, e->var, s, e->from->at.n, 0, r, run + 1)
                       : tsr__use_reader(e, r, NULL, 0);
    return ok && tsr__use_producer(e, e->readers.n > 1 || e->readers.stays ? end_of(e) : run);
}

static bool connect(struct edge *e)
{
    struct reader *moving = ARENA_ARRAY(e->a, struct reader, e->readers.n + 1);
    size_t n = 0;
    if (!moving)
        return false;
    for (size_t i = 0; i < e->readers.n; i++) {
        struct reader *r = &e->readers.at[i];
        const int64_t *t = direct_table(e, r);
        if (!t)
            return false;
        if (!all_zero(t, e->from->at.n * tsr__edge_choices(e->p, r)))
            moving[n++] = *r;
    }
    if (n > 1)
        return connect_shared(e, moving, n);
    return n ? connect_one(e, &moving[0]) : tsr__use_producer(e, end_of(e));
}

static bool run_edge(struct edge *e)
{
    e->a = e->p->work; // an arena for each value would cost more than it frees
    e->value = &e->p->values[tsr__value_id(e->v)];
    e->readers = tsr__planner_readers(e->p, e->a, e->v);
    bool ok = !e->a->failed;
    if (ok && e->readers.n)
        ok = connect(e);
    else if (ok && (e->node == SIZE_MAX || e->readers.stays))
        ok = tsr__use_producer(e, e->node == SIZE_MAX ? 0 : end_of(e));
    return ok;
}

bool tsr__planner_edges(struct planner *p, size_t node, size_t slot)
{
    struct edge e = {.p = p,
                     .v = tsr_node_output(p->nodes[node].node, slot),
                     .node = node,
                     .slot = slot,
                     .from = p->nodes[node].strategy,
                     .var = p->nodes[node].var};
    return run_edge(&e);
}

// ---- what the caller gives ---------------------------------------------------------------------

// Whole on every device.
static struct strategy *given_whole(struct planner *p, const struct plan_value *v)
{
    uint32_t key[2 + TILE_MAX_RANK * 2] = {9, (uint32_t)v->bits};
    for (int d = 0; d < v->rank; d++) {
        key[2 + 2 * d] = (uint32_t)v->shape[d];
        key[3 + 2 * d] = (uint32_t)((uint64_t)v->shape[d] >> 32);
    }
    void **kept = tsr__planner_cached(p, key, 2 + 2 * (size_t)v->rank);
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct strategy *s = ARENA_NEW(&p->arena, struct strategy);
    uint32_t *layouts = ARENA_ARRAY(&p->arena, uint32_t, 2);
    struct candidate *c = s ? vec_push(&p->arena, &s->at) : NULL;
    if (!c || !layouts)
        return NULL;
    layouts[0] = tsr__planner_whole(p, v->rank);
    layouts[1] = PLAN_NO_LAYOUT;
    *c = (struct candidate){.out = layouts, .before = layouts + 1, .name = STR("whole")};
    s->id = p->n_strategies++;
    *kept = s;
    return s;
}

bool tsr__planner_given(struct planner *p, const tsr_value *input)
{
    static const int64_t zero[1] = {0};
    struct strategy *s = given_whole(p, &p->values[tsr__value_id(input)]);
    if (!s)
        return false;
    struct edge e = {.p = p, .v = input, .node = SIZE_MAX, .from = s};
    e.var = tsr__program_node(&p->program, tsr__value_str(input), 1, zero);
    return run_edge(&e);
}
