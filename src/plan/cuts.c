// SPDX-License-Identifier: Apache-2.0
// cuts.c - where a graph may be cut into stages: places between nodes that few bytes cross.
//
// Nodes that follow from inputs and small constants alone, cost next to nothing and are read far and wide (masks,
// angles, sizes) belong to no stage: every device runs them, and nothing of them crosses. Between the others, the work
// of one device is divided into equal shares, and the narrowest place of each share is kept.
#include "plan/stages.h"

#define COMMON_SHARE 256 // of all work and of all weights: more than that is not done everywhere
#define COMMON_REACH 8   // a share of the graph: what is read within less belongs to its readers
#define SOLVED_NODES 3000000 // nodes of all ranges together, about

struct cutting {
    struct staging *s;
    const struct planner *p;
    int64_t *time;         // by node: on one device
    int64_t all_time;      // of all of them
    int64_t all_bytes;     // of constants
    unsigned char *common; // by node: it may run everywhere
    size_t *last;          // by node: the last that reads it and may not
};

static size_t value_count(const tsr_node *n, tsr_value ***captures)
{
    return tsr_node_input_count(n) + tsr__node_captures(n, captures);
}

static const tsr_value *value_of(const tsr_node *n, tsr_value **captures, size_t i)
{
    size_t n_in = tsr_node_input_count(n);
    return i < n_in ? tsr_node_input(n, i) : captures[i - n_in];
}

// The node that makes a value, by place in the graph; -1: none that is planned.
static int64_t made_at(const struct planner *p, const tsr_value *v)
{
    const tsr_node *from = v ? tsr_value_producer(v) : NULL;
    return from ? p->node_at[tsr__node_id(from)] : -1;
}

static int64_t bytes_of(const struct planner *p, const tsr_value *v)
{
    const struct plan_value *x = &p->values[tsr__value_id(v)];
    int64_t n = x->bits;
    for (int d = 0; d < x->rank; d++)
        if (!mul_ok(n, x->shape[d], &n))
            return PLAN_NEVER;
    return n / 8 < PLAN_NEVER ? n / 8 : PLAN_NEVER;
}

// ---- nodes that run everywhere -----------------------------------------------------------------

static bool is_common(const struct cutting *c, size_t i)
{
    tsr_value **captures;
    const tsr_node *n = c->p->nodes[i].node;
    size_t n_values = value_count(n, &captures);
    int64_t constants = 0;
    for (size_t k = 0; k < n_values; k++) {
        const tsr_value *v = value_of(n, captures, k);
        int64_t from = made_at(c->p, v);
        if (from >= 0 && !c->common[from])
            return false;
        if (v && c->p->values[tsr__value_id(v)].constant)
            constants += bytes_of(c->p, v) / (int64_t)n_values;
    }
    return c->time[i] <= c->all_time / COMMON_SHARE && constants <= c->all_bytes / COMMON_SHARE;
}

// Keeps those of which something is read far away, directly or by others that are kept.
static void keep_far(struct cutting *c)
{
    size_t n = c->p->n_nodes, reach = n / COMMON_REACH;
    for (size_t i = n; i-- > 0;) {
        tsr_value **captures;
        const tsr_node *node = c->p->nodes[i].node;
        if (c->p->node_at[tsr__node_id(node)] < 0)
            continue;
        c->common[i] = c->common[i] && c->last[i] > i + reach;
        size_t reader = c->common[i] ? c->last[i] : i;
        size_t n_values = value_count(node, &captures);
        for (size_t k = 0; k < n_values; k++) {
            int64_t from = made_at(c->p, value_of(node, captures, k));
            if (from >= 0 && c->last[from] < reader)
                c->last[from] = reader;
        }
    }
}

static bool find_common(struct cutting *c)
{
    const struct planner *p = c->p;
    unsigned char *staged =
        ARENA_ARRAY(&c->s->p->arena, unsigned char, tsr__model_node_ids(p->model) + 1);
    if (!staged)
        return false;
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->node_at[tsr__node_id(p->nodes[i].node)] >= 0)
            c->common[i] = is_common(c, i);
    keep_far(c);
    for (size_t i = 0; i < p->n_nodes; i++) {
        uint32_t id = tsr__node_id(p->nodes[i].node);
        staged[id] = p->node_at[id] >= 0 && !c->common[i];
        c->s->common += c->common[i] ? c->time[i] : 0;
    }
    c->s->staged = staged;
    return true;
}

// ---- places ------------------------------------------------------------------------------------

// by place (before node i): bytes of staged values that cross it.
static void add_crossing(struct cutting *c, int64_t *width)
{
    const struct planner *p = c->p;
    for (size_t i = 0; i < p->n_nodes; i++) {
        tsr_value **captures;
        const tsr_node *n = p->nodes[i].node;
        size_t n_values = value_count(n, &captures);
        for (size_t k = 0; c->s->staged[tsr__node_id(n)] && k < n_values; k++) {
            int64_t from = made_at(p, value_of(n, captures, k));
            if (from >= 0 && c->last[from] < i)
                c->last[from] = i;
        }
    }
    for (size_t i = 0; i < p->n_nodes; i++) {
        const tsr_node *n = p->nodes[i].node;
        for (size_t o = 0; c->s->staged[tsr__node_id(n)] && o < tsr_node_output_count(n); o++)
            if (tsr_node_output(n, o) && c->last[i] > i) {
                width[i + 1] += bytes_of(p, tsr_node_output(n, o));
                width[c->last[i] + 1] -= bytes_of(p, tsr_node_output(n, o));
            }
    }
    for (size_t i = 1; i <= p->n_nodes; i++)
        width[i] += width[i - 1];
}

// How many places may be kept: the work of trying all ranges is bounded.
static size_t places_for(size_t nodes)
{
    size_t n = STAGES_MAX_PLACES;
    while (n > 12 && n * n / 4 * nodes > SOLVED_NODES)
        n--;
    return n;
}

// A place is only worth it where staged nodes stand on both sides.
static bool choose_places(struct cutting *c, const int64_t *width)
{
    const struct planner *p = c->p;
    size_t staged = 0, share = 0;
    for (size_t i = 0; i < p->n_nodes; i++)
        staged += c->s->staged[tsr__node_id(p->nodes[i].node)];
    size_t most = places_for(staged), *cut = ARENA_ARRAY(&c->s->p->arena, size_t, most + 3);
    double done = 0, all = (double)(c->all_time - c->s->common) + (double)staged;
    size_t n = 1, seen = 0;
    bool open = false;
    for (size_t i = 0; cut && i < p->n_nodes; i++) {
        if (!c->s->staged[tsr__node_id(p->nodes[i].node)])
            continue;
        if (seen > 0) { // the place before this node
            size_t now = staged <= most + 1 ? seen : (size_t)(done / all * (double)most);
            bool next = !open || now != share;
            if (next && n <= most)
                cut[n++] = i;
            else if (width[i] < width[cut[n - 1]])
                cut[n - 1] = i;
            open = true;
            share = now;
        }
        done += (double)c->time[i] + 1;
        seen++;
    }
    if (!cut)
        return false;
    cut[n] = p->n_nodes;
    c->s->cut = cut;
    c->s->n_ranges = n;
    c->s->ranges = ARENA_ARRAY(&c->s->p->arena, struct range, (n + 1) * (n + 1));
    return c->s->ranges != NULL;
}

bool tsr__stages_cuts(struct staging *s)
{
    struct planner one = {0};
    struct planner *p = s->p;
    int64_t first = 0;
    struct cutting c = {.s = s, .p = p};
    bool ok = tsr__planner_fork(p, NULL, &first, 1, &one);
    c.time = ARENA_ARRAY(&one.arena, int64_t, p->n_nodes + 1);
    c.common = ARENA_ARRAY(&one.arena, unsigned char, p->n_nodes + 1);
    c.last = ARENA_ARRAY(&one.arena, size_t, p->n_nodes + 1);
    int64_t *width = ARENA_ARRAY(&one.arena, int64_t, p->n_nodes + 2);
    ok = ok && !one.arena.failed;
    for (size_t i = 0; ok && i < p->n_nodes; i++) {
        c.time[i] = one.nodes[i].strategy ? one.nodes[i].strategy->at.at[0].compute : 0;
        c.all_time += c.time[i];
    }
    const tsr_graph *g = tsr_model_graph(p->model);
    for (size_t i = 0; ok && i < tsr_graph_initializer_count(g); i++)
        c.all_bytes += bytes_of(p, tsr_graph_initializer(g, i));
    ok = ok && find_common(&c);
    if (ok) {
        memset(c.last, 0, p->n_nodes * sizeof *c.last);
        add_crossing(&c, width);
    }
    ok = ok && choose_places(&c, width);
    tsr__arena_free(&one.arena);
    return ok;
}
