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
    if ((tsr_value_is_output(v) || c.leaves) && is_made_here(p, v)) {
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
        return whole_on(p, v, &p->all[p->gives], 1);
    if (r->captures)
        return whole_on(p, v, p->all, (size_t)p->n);
    return p->nodes[r->node].strategy->at.at[candidate].in[r->slot];
}

// ---- tables ------------------------------------------------------------------------------------

// A value on the way to its readers.
struct edge {
    struct planner *p;
    struct arena *a;
    const tsr_value *v;
    const struct plan_value *value;
    size_t node, slot;
    const struct strategy *from;
    struct readers readers;
};

static size_t choices_of(const struct edge *e, const struct reader *r)
{
    bool one = r->node == SIZE_MAX || r->captures;
    return one ? 1 : e->p->nodes[r->node].strategy->at.n;
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
static int64_t **cached(struct planner *p, const uint32_t *key, size_t n)
{
    struct str text = {(const char *)key, n * sizeof *key};
    int64_t **found = tsr__map_get(&p->tables, text);
    if (found)
        return found;
    void **slot = tsr__map_at(&p->tables, tsr__arena_str(&p->arena, text));
    found = ARENA_NEW(&p->arena, int64_t *);
    if (!slot || !found)
        return NULL;
    *slot = found;
    return found;
}

static uint32_t end_of(const struct edge *e, const struct reader *r)
{
    return r->node == SIZE_MAX ? UINT32_MAX - (e->p->gives ? 2 : 0)
           : r->captures       ? UINT32_MAX - 1
                               : e->p->nodes[r->node].strategy->id;
}

// Prices from each choice of the producer to each of the reader. NULL: out of memory.
static const int64_t *direct_table(struct edge *e, const struct reader *r)
{
    uint32_t key[5] = {1, e->from->id, (uint32_t)e->slot, end_of(e, r), (uint32_t)r->slot};
    int64_t **kept = cached(e->p, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    size_t k = choices_of(e, r), n = e->from->at.n;
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
static uint32_t var_of(struct edge *e, struct reader *r)
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
        for (size_t j = 0; j < choices_of(e, &r[i]); j++) {
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
    int64_t *copied;            // bytes of the copy
};

static bool fill_shared(struct edge *e, const struct reader *r, size_t n, struct shared_tables *t)
{
    uint32_t wants[PLAN_MAX_CANDIDATES];
    struct arena *a = &e->p->arena;
    size_t n_wants = shared_wants(e, r, n, wants, TSR_COUNT(wants)), k_from = e->from->at.n;
    t->n = copy_states(e, wants, n_wants, &t->states);
    t->cost = ARENA_ARRAY(a, int64_t, t->n + 1);
    t->copied = ARENA_ARRAY(a, int64_t, t->n + 1);
    t->from = ARENA_ARRAY(a, int64_t, k_from * t->n + 1);
    t->to = ARENA_ARRAY(a, int64_t *, n + 1);
    if (a->failed)
        return false;
    for (size_t s = 0; s < t->n; s++) {
        const struct copy_state *x = &t->states[s];
        t->cost[s] = x->cost;
        t->copied[s] = x->copy == PLAN_NO_LAYOUT ? 0 : tsr__planner_bytes(e->p, x->copy, e->value);
        for (size_t i = 0; i < k_from; i++)
            t->from[i * t->n + s] = e->from->at.at[i].out[e->slot] == x->from ? 0 : COST_FORBIDDEN;
    }
    for (size_t i = 0; i < n; i++) {
        size_t k = choices_of(e, &r[i]);
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
        key[3 + 2 * i] = end_of(e, &r[i]);
        key[4 + 2 * i] = (uint32_t)r[i].slot;
    }
    int64_t **kept = cached(e->p, key, 2 * n + 3);
    if (!kept || *kept)
        return kept ? (struct shared_tables *)(void *)*kept : NULL;
    struct shared_tables *t = ARENA_NEW(&e->p->arena, struct shared_tables);
    if (!t || !fill_shared(e, r, n, t))
        return NULL;
    *kept = (int64_t *)(void *)t;
    return t;
}

// ---- memory ------------------------------------------------------------------------------------

static const int64_t *bytes_by_choice(struct edge *e, const struct reader *r)
{
    uint32_t key[5] = {3, e->from->id, (uint32_t)e->slot, r ? end_of(e, r) : UINT32_MAX,
                       r ? (uint32_t)r->slot : UINT32_MAX};
    int64_t **kept = cached(e->p, key, TSR_COUNT(key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    size_t k = r ? choices_of(e, r) : e->from->at.n;
    int64_t *t = ARENA_ARRAY(&e->p->arena, int64_t, k + 1);
    for (size_t i = 0; t && i < k; i++)
        t[i] = tsr__planner_bytes(e->p,
                                  r ? tsr__planner_wanted(e->p, r, e->v, (uint32_t)i)
                                    : e->from->at.at[i].out[e->slot],
                                  e->value);
    *kept = t;
    return t;
}

static uint32_t time_of(const struct edge *e, const struct reader *r)
{
    return (uint32_t)(2 * (r->node == SIZE_MAX ? e->p->n_nodes : r->node));
}

// What a reader gets in another layout is there while it is brought and while the reader runs.
static bool use_by_reader(struct edge *e, struct reader *r)
{
    const int64_t *t = bytes_by_choice(e, r);
    if (t)
        tsr__program_use(&e->p->program, e->p->limit, var_of(e, r), time_of(e, r),
                         time_of(e, r) + 2, t);
    return t != NULL;
}

// With a single reader the value makes room for what was brought, else it stays until the last has run.
static bool use_by_producer(struct edge *e, bool moved)
{
    const int64_t *t = bytes_by_choice(e, NULL);
    uint32_t end = (uint32_t)(2 * e->readers.last + (moved && e->readers.n == 1 ? 1 : 2));
    if (t)
        tsr__program_use(&e->p->program, e->p->limit, e->p->nodes[e->node].var,
                         (uint32_t)(2 * e->node + 1), end, t);
    return t != NULL;
}

// ---- one value ---------------------------------------------------------------------------------

static bool connect_shared(struct edge *e, struct reader *r, size_t n)
{
    struct program *g = &e->p->program;
    struct shared_tables *t = shared_tables(e, r, n);
    if (!t)
        return false;
    uint32_t var = tsr__program_node(g, str_of(tsr_value_name(e->v)), (uint32_t)t->n, t->cost);
    tsr__program_edge(g, e->p->nodes[e->node].var, var, t->from);
    for (size_t i = 0; i < n; i++)
        if (!all_zero(t->to[i], t->n * choices_of(e, &r[i])))
            tsr__program_edge(g, var, var_of(e, &r[i]), t->to[i]);
    if (!all_zero(t->copied, t->n))
        tsr__program_use(g, e->p->limit, var, time_of(e, &r[0]), time_of(e, &r[n - 1]) + 2,
                         t->copied);
    return use_by_producer(e, false);
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
        if (!all_zero(t, e->from->at.n * choices_of(e, r)))
            moving[n++] = *r;
    }
    if (n > 1)
        return connect_shared(e, moving, n);
    if (n == 1) {
        tsr__program_edge(&e->p->program, e->p->nodes[e->node].var, var_of(e, &moving[0]),
                          direct_table(e, &moving[0]));
        if (!use_by_reader(e, &moving[0]))
            return false;
    }
    return use_by_producer(e, n == 1);
}

bool tsr__planner_edges(struct planner *p, size_t node, size_t slot)
{
    const tsr_value *v = tsr_node_output(p->nodes[node].node, slot);
    struct arena scratch;
    tsr__arena_init(&scratch, p->session);
    struct edge e = {.p = p,
                     .a = &scratch,
                     .v = v,
                     .value = &p->values[tsr__value_id(v)],
                     .node = node,
                     .slot = slot,
                     .from = p->nodes[node].strategy};
    e.readers = tsr__planner_readers(p, &scratch, v);
    bool ok = !scratch.failed && (e.readers.n == 0 || connect(&e));
    tsr__arena_free(&scratch);
    return ok;
}
