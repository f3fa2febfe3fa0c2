// SPDX-License-Identifier: Apache-2.0
// cuts.c - where a graph may be cut into stages: places between nodes that few bytes cross.
//
// Nodes that follow from inputs and small constants alone, cost next to nothing and are read far and wide (masks,
// angles, sizes) belong to no stage: every device runs them, and nothing of them crosses. Between the others, the work
// of one device is divided into equal shares, and the narrowest place of each share is kept.
#include "plan/stages.h"

#define COMMON_SHARE 256 // of all work and of all weights: more than that is not done everywhere
#define COMMON_REACH 8   // a share of the graph: what is read within less belongs to its readers
#define LEAST_PLACES 24
#define LAYER_PLACES (STAGES_MAX_PLACES * 3 / 4) // where layers repeat
#define LAYER_NODES  256     // of the first layers, in which kinds of places are looked for
#define SOLVED_NODES 3000000 // nodes of all ranges together, about

struct cutting {
    struct staging *s;
    const struct planner *p;
    struct planner *one;   // all nodes on one device
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

int64_t tsr__stages_bytes(const struct planner *p, const tsr_value *v)
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
            constants += tsr__stages_bytes(c->p, v) / (int64_t)n_values;
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
                width[i + 1] += tsr__stages_bytes(p, tsr_node_output(n, o));
                width[c->last[i] + 1] -= tsr__stages_bytes(p, tsr_node_output(n, o));
            }
    }
    for (size_t i = 1; i <= p->n_nodes; i++)
        width[i] += width[i - 1];
}

// A place between two staged nodes.
struct place_between {
    size_t before; // the second of them
    int64_t width; // bytes that cross
    uint32_t kind; // strategy of the first
    size_t share;  // of the work that is done by then
    bool kept;
};
struct places {
    struct place_between *at;
    size_t n, most, shares;
};

// More devices need finer shares; the work of trying all ranges is bounded.
static size_t most_places(int64_t devices, size_t nodes)
{
    size_t n = devices < STAGES_MAX_PLACES / 4 ? (size_t)devices * 4 : STAGES_MAX_PLACES;
    n = n < LEAST_PLACES ? LEAST_PLACES : n;
    while (n > LEAST_PLACES / 2 && n * n / 4 * nodes > SOLVED_NODES)
        n--;
    return n;
}

static bool list_places(struct cutting *c, const int64_t *width, struct places *out)
{
    const struct planner *p = c->p;
    const struct plan_node *last = NULL;
    double done = 0, all = 1;
    size_t staged = 0;
    for (size_t i = 0; i < p->n_nodes; i++)
        if (c->s->staged[tsr__node_id(p->nodes[i].node)]) {
            all += (double)c->time[i] + 1;
            staged++;
        }
    *out = (struct places){.most = most_places(p->n, staged)};
    out->shares = out->most / 4;
    out->at = ARENA_ARRAY(&c->one->arena, struct place_between, staged + 1);
    for (size_t i = 0; out->at && i < p->n_nodes; i++) {
        if (!c->s->staged[tsr__node_id(p->nodes[i].node)])
            continue;
        if (last)
            out->at[out->n++] = (struct place_between){
                .before = i,
                .width = width[i],
                .kind = last->strategy->id,
                .share = (size_t)(done / all * (double)out->most),
            };
        last = &c->one->nodes[i];
        done += (double)c->time[i] + 1;
    }
    return out->at != NULL;
}

static bool same_kind(const struct place_between *a, const struct place_between *b)
{
    return a->kind == b->kind && a->width == b->width;
}

static size_t count_kind(const struct places *q, const struct place_between *like)
{
    size_t n = 0;
    for (size_t i = 0; i < q->n; i++)
        n += same_kind(&q->at[i], like);
    return n;
}

// The narrowest kind of place that comes about as often as any, beyond those that are kept.
static const struct place_between *next_kind(const struct places *q, size_t most)
{
    const struct place_between *best = NULL;
    for (size_t i = 0; i < q->n && i < LAYER_NODES; i++) { // the first layers show all kinds
        const struct place_between *x = &q->at[i];
        if (!x->kept && (!best || x->width < best->width) && 2 * count_kind(q, x) >= most)
            best = x;
    }
    return best;
}

static bool covers(const struct places *q)
{
    size_t n = 0, last = SIZE_MAX;
    for (size_t i = 0; i < q->n; i++) {
        size_t share = q->at[i].share * q->shares / q->most;
        n += q->at[i].kept && share != last;
        last = q->at[i].kept ? share : last;
    }
    return 2 * n >= q->shares;
}

// Layers that repeat are best cut at the same places in each: then ranges are alike, and many can be tried. False: there
// are none to speak of.
static bool keep_layers(struct places *q)
{
    size_t most = 0, kept = 0;
    int64_t width = -1;
    for (size_t i = 0; i < q->n && i < LAYER_NODES; i++) {
        size_t k = count_kind(q, &q->at[i]);
        most = k > most ? k : most;
    }
    if (most < q->shares)
        return false;
    for (const struct place_between *x; (x = next_kind(q, most));) {
        const struct place_between like = *x;
        size_t all = count_kind(q, &like), step = (all + LAYER_PLACES - 1) / LAYER_PLACES, seen = 0;
        if (kept && (like.width > width || kept + all > LAYER_PLACES))
            break;
        width = like.width;
        for (size_t i = 0; i < q->n; i++)
            if (same_kind(&q->at[i], &like) && seen++ % step == 0) {
                q->at[i].kept = true;
                kept++;
            }
        if (step > 1)
            break;
    }
    bool enough = covers(q);
    for (size_t i = 0; i < q->n && !enough; i++)
        q->at[i].kept = false;
    return enough;
}

// The narrowest place of each share of the work that has none yet.
static void keep_shares(struct places *q, size_t shares)
{
    for (size_t i = 0, j; i < q->n; i = j) {
        size_t share = q->at[i].share * shares / q->most, best = i;
        bool any = false;
        for (j = i; j < q->n && q->at[j].share * shares / q->most == share; j++) {
            any = any || q->at[j].kept;
            best = q->at[j].width < q->at[best].width ? j : best;
        }
        q->at[best].kept = q->at[best].kept || !any;
    }
}

static bool choose_places(struct cutting *c, const int64_t *width)
{
    struct places q;
    struct arena *a = &c->s->p->arena;
    size_t n = 1;
    if (!list_places(c, width, &q))
        return false;
    for (size_t i = 0; i < q.n && q.n <= q.most; i++)
        q.at[i].kept = true;
    if (q.n > q.most)
        keep_shares(&q, keep_layers(&q) ? q.shares : q.most);
    for (size_t i = 0; i < q.n; i++)
        n += q.at[i].kept;
    c->s->cut = ARENA_ARRAY(a, size_t, n + 1);
    c->s->ranges = ARENA_ARRAY(a, struct range, (n + 1) * (n + 1));
    c->s->n_ranges = n;
    if (!c->s->cut || !c->s->ranges)
        return false;
    n = 1;
    for (size_t i = 0; i < q.n; i++)
        if (q.at[i].kept)
            c->s->cut[n++] = q.at[i].before;
    c->s->cut[n] = c->p->n_nodes;
    return true;
}

bool tsr__stages_cuts(struct staging *s)
{
    struct planner one = {0};
    struct planner *p = s->p;
    int64_t first = 0;
    struct cutting c = {.s = s, .p = p, .one = &one};
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
        c.all_bytes += tsr__stages_bytes(p, tsr_graph_initializer(g, i));
    ok = ok && find_common(&c);
    if (ok) {
        memset(c.last, 0, p->n_nodes * sizeof *c.last);
        add_crossing(&c, width);
    }
    ok = ok && choose_places(&c, width);
    tsr__planner_end(&one);
    return ok;
}
