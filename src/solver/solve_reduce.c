// SPDX-License-Identifier: Apache-2.0
// solve_reduce.c - reductions that lose no optimum, limits included.
//
// Choices without an allowed partner leave (arc consistency). A node whose choice follows from a
// neighbour's merges into it. An edge that is a sum of two vectors moves into its nodes. A choice
// that another beats in cost and in every use leaves (dominance, Goldstein's form). A node that uses
// nothing goes where it has at most two neighbours (R0, RI, RII). What all choices of a node use alike
// is taken off the bounds; rows that can no longer be exceeded are dropped; choices that alone use more
// than what is left of a row leave.
#include "internal.h"

#include <stdlib.h>

#define MERGE_GROWTH 4         // a merge may make the tables of a hub so much larger ...
#define MERGE_CELLS  (1 << 18) // ... beyond this many cells
#define R2_CELLS     (1 << 24) // work that one elimination of a node of degree two may take

#define PROBES  4
#define PROBING 0.02 // of the effort, for each

struct queue {
    LIST(uint32_t) edges, nodes;
};

static void push_edge(struct core *c, struct queue *q, uint32_t id)
{
    c->edges.at[id].dirty = true;
    uint32_t *slot = list_push(c->heap, &q->edges);
    if (slot)
        *slot = id;
}

static void push_node(struct core *c, struct queue *q, uint32_t v)
{
    if (c->nodes[v].queued || c->nodes[v].gone)
        return;
    uint32_t *slot = list_push(c->heap, &q->nodes);
    if (slot) {
        *slot = v;
        c->nodes[v].queued = true;
    }
}

// The node has lost choices: all that touches it is to be looked at again.
static void touched(struct core *c, struct queue *q, uint32_t v)
{
    push_node(c, q, v);
    for (uint32_t i = 0; i < c->nodes[v].edges.n; i++) {
        uint32_t id = c->nodes[v].edges.at[i];
        push_edge(c, q, id);
        push_node(c, q, edge_other(&c->edges.at[id], v));
    }
}

static void detach(struct core *c, uint32_t v, uint32_t id)
{
    struct core_node *n = &c->nodes[v];
    for (uint32_t i = 0; i < n->edges.n; i++)
        if (n->edges.at[i] == id) {
            n->edges.at[i] = n->edges.at[--n->edges.n];
            return;
        }
}

static void drop_edge(struct core *c, uint32_t id)
{
    struct core_edge *e = &c->edges.at[id];
    detach(c, e->a, id);
    detach(c, e->b, id);
    tsr__table_drop(c, e->table);
    e->table = NULL;
}

// An edge between u and v other than `but`, or NONE.
static uint32_t find_edge(const struct core *c, uint32_t u, uint32_t v, uint32_t but)
{
    if (c->nodes[v].edges.n < c->nodes[u].edges.n) {
        uint32_t swap = u;
        u = v;
        v = swap;
    }
    for (uint32_t i = 0; i < c->nodes[u].edges.n; i++)
        if (c->nodes[u].edges.at[i] != but &&
            edge_other(&c->edges.at[c->nodes[u].edges.at[i]], u) == v)
            return c->nodes[u].edges.at[i];
    return NONE;
}

// Adds t (rows: choices of u) to the edge between u and w; t is taken over.
static void add_table(struct core *c, struct queue *q, uint32_t u, uint32_t w, struct table *t)
{
    uint32_t id = find_edge(c, u, w, NONE);
    if (id == NONE) {
        id = c->edges.n;
        struct core_edge *e = list_push(c->heap, &c->edges);
        uint32_t *at_u = list_push(c->heap, &c->nodes[u].edges);
        uint32_t *at_w = list_push(c->heap, &c->nodes[w].edges);
        if (!e || !at_u || !at_w)
            return;
        *e = (struct core_edge){u, w, t, true};
        *at_u = *at_w = id;
    } else {
        struct core_edge *e = &c->edges.at[id];
        bool same = e->a == u;
        for (uint32_t i = 0; i < t->rows; i++)
            for (uint32_t j = 0; j < t->cols; j++) {
                int64_t *cell = &t->cell[(size_t)i * t->cols + j];
                *cell = plus(*cell, edge_cost(e, u, i, j));
            }
        tsr__table_drop(c, e->table);
        e->table = t;
        if (!same) {
            e->a = u;
            e->b = w;
        }
    }
    push_edge(c, q, id);
}

static void record(struct core *c, struct core_step step)
{
    struct core_step *s = list_push(c->heap, &c->steps);
    if (s)
        *s = step;
}

static void leave(struct core *c, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    while (n->edges.n && !c->heap->failed)
        drop_edge(c, n->edges.at[0]);
    for (uint32_t i = 0; i < n->uses.n; i++)
        tsr__heap_free(c->heap, n->uses.at[i].usage);
    n->uses.n = 0;
    n->gone = true;
}

// ---- arc consistency, over all choices at once

static bool supported(const struct core *c, const struct core_edge *e, uint32_t v, uint32_t i,
                      uint8_t *const *dead)
{
    uint32_t w = edge_other(e, v);
    for (uint32_t j = 0; j < c->nodes[w].k; j++)
        if (!dead[w][j] && edge_cost(e, v, i, j) < NEVER)
            return true;
    return false;
}

// Choices of w that lost their support at v die; true if any did.
static bool propagate(struct core *c, const struct core_edge *e, uint32_t w, uint8_t *const *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < c->nodes[w].k; i++)
        if (!dead[w][i] && !supported(c, e, w, i, dead)) {
            dead[w][i] = 1;
            any = true;
        }
    c->effort->work += (size_t)e->table->rows * e->table->cols;
    return any;
}

static void arc_consistency(struct core *c)
{
    struct queue q = {0};
    uint8_t **dead = HEAP_ARRAY(c->heap, uint8_t *, (size_t)c->n_nodes + 1);
    for (uint32_t v = 0; dead && v < c->n_nodes && !c->heap->failed; v++) {
        dead[v] = HEAP_ARRAY(c->heap, uint8_t, c->nodes[v].k);
        for (uint32_t i = 0; dead[v] && i < c->nodes[v].k; i++)
            dead[v][i] = c->nodes[v].cost[i] >= NEVER;
        push_node(c, &q, v);
    }
    for (uint32_t at = 0; at < q.nodes.n && !c->heap->failed; at++) {
        uint32_t v = q.nodes.at[at];
        c->nodes[v].queued = false;
        for (uint32_t i = 0; i < c->nodes[v].edges.n; i++) {
            const struct core_edge *e = &c->edges.at[c->nodes[v].edges.at[i]];
            if (propagate(c, e, edge_other(e, v), dead))
                push_node(c, &q, edge_other(e, v));
        }
    }
    for (uint32_t v = 0; v < c->n_nodes && !c->heap->failed; v++) {
        tsr__core_remove(c, v, dead[v]);
        tsr__heap_free(c->heap, dead[v]);
    }
    tsr__heap_free(c->heap, dead);
    tsr__heap_free(c->heap, q.nodes.at);
}

// ---- merging

static void merge_uses(struct core *c, uint32_t u, uint32_t v, const uint32_t *map)
{
    struct core_node *to = &c->nodes[u], *from = &c->nodes[v];
    for (uint32_t i = 0; i < from->uses.n; i++) {
        const struct core_use *in = &from->uses.at[i];
        uint32_t j = 0;
        while (j < to->uses.n &&
               (to->uses.at[j].begin != in->begin || to->uses.at[j].end != in->end))
            j++;
        if (j == to->uses.n) {
            int64_t *usage = HEAP_ARRAY(c->heap, int64_t, to->k);
            struct core_use *fresh = usage ? list_push(c->heap, &to->uses) : NULL;
            if (!fresh)
                return;
            *fresh = (struct core_use){in->begin, in->end, usage};
        }
        for (uint32_t k = 0; k < to->k; k++)
            to->uses.at[j].usage[k] += in->usage[map[k]];
    }
}

static void merge_edge(struct core *c, struct queue *q, uint32_t u, uint32_t v, uint32_t id,
                       const uint32_t *map)
{
    const struct core_edge *e = &c->edges.at[id];
    uint32_t w = edge_other(e, v);
    struct table *t = tsr__table_new(c, c->nodes[u].k, c->nodes[w].k);
    if (!t)
        return;
    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t j = 0; j < t->cols; j++)
            t->cell[(size_t)i * t->cols + j] = edge_cost(e, v, map[i], j);
    c->effort->work += (size_t)t->rows * t->cols;
    add_table(c, q, u, w, t);
    push_node(c, q, w);
}

static bool merge_grows(const struct core *c, uint32_t u, uint32_t v)
{
    size_t before = 0, after = 0;
    for (uint32_t i = 0; i < c->nodes[v].edges.n; i++) {
        const struct core_edge *e = &c->edges.at[c->nodes[v].edges.at[i]];
        before += (size_t)e->table->rows * e->table->cols;
        after += (size_t)c->nodes[u].k * c->nodes[edge_other(e, v)].k;
    }
    return after > MERGE_CELLS && after > MERGE_GROWTH * before;
}

// v follows from u: its choice is map[choice of u].
static void merge(struct core *c, struct queue *q, uint32_t u, uint32_t v, uint32_t id,
                  const uint32_t *map)
{
    struct core_node *to = &c->nodes[u], *from = &c->nodes[v];
    uint32_t *by_choice = HEAP_ARRAY(c->heap, uint32_t, c->p->nodes.at[u].k);
    if (!by_choice)
        return;
    for (uint32_t i = 0; i < to->k; i++) {
        to->cost[i] =
            plus(to->cost[i], plus(from->cost[map[i]], edge_cost(&c->edges.at[id], u, i, map[i])));
        by_choice[to->origin[i]] = from->origin[map[i]];
    }
    record(c, (struct core_step){.node = v, .n = 1, .from = {u}, .by_choice = by_choice});
    drop_edge(c, id);
    merge_uses(c, u, v, map);
    for (uint32_t i = 0; i < from->edges.n && !c->heap->failed; i++)
        merge_edge(c, q, u, v, from->edges.at[i], map);
    leave(c, v);
    push_node(c, q, u); // its other edges are as they were
}

// ---- one edge

// Allowed partners of every choice of v over the edge: how many (up to 2), and the last of them.
static bool partners(const struct core *c, const struct core_edge *e, uint32_t v, uint8_t *count,
                     uint32_t *which)
{
    uint32_t other = c->nodes[edge_other(e, v)].k;
    bool function = true;
    for (uint32_t i = 0; i < c->nodes[v].k; i++) {
        count[i] = 0;
        for (uint32_t j = 0; j < other && count[i] < 2; j++)
            if (edge_cost(e, v, i, j) < NEVER) {
                count[i]++;
                which[i] = j;
            }
        function &= count[i] == 1;
    }
    c->effort->work += (size_t)c->nodes[v].k * other;
    return function;
}

static bool lacks(const uint8_t *count, uint32_t k, uint8_t *dead)
{
    bool any = false;
    for (uint32_t i = 0; i < k; i++) {
        dead[i] = count[i] == 0;
        any |= dead[i];
    }
    return any;
}

// table = f(a) + g(b): both move into the nodes and the edge goes.
static bool decompose(struct core *c, struct queue *q, uint32_t id)
{
    struct core_edge *e = &c->edges.at[id];
    const struct table *t = e->table;
    const int64_t *cell = t->cell;
    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t j = 0; j < t->cols; j++) {
            int64_t x = cell[(size_t)i * t->cols + j];
            if (x >= NEVER || x - cell[j] != cell[(size_t)i * t->cols] - cell[0])
                return false;
        }
    uint32_t a = e->a, b = e->b;
    // f(i) = t(i, 0), g(j) = t(0, j) - t(0, 0), lifted so that none is negative.
    int64_t least = 0;
    for (uint32_t j = 0; j < t->cols; j++)
        least = cell[j] - cell[0] < least ? cell[j] - cell[0] : least;
    for (uint32_t i = 0; i < t->rows; i++)
        c->nodes[a].cost[i] = plus(c->nodes[a].cost[i], cell[(size_t)i * t->cols] + least);
    for (uint32_t j = 0; j < t->cols; j++)
        c->nodes[b].cost[j] = plus(c->nodes[b].cost[j], cell[j] - cell[0] - least);
    drop_edge(c, id);
    push_node(c, q, a);
    push_node(c, q, b);
    return true;
}

struct scratch {
    uint8_t *count, *dead;
    uint32_t *which;
    void *least, *turned, *views; // of dominate, with how many there is room for
    size_t n_least, n_turned, n_views;
};

static void visit_edge(struct core *c, struct queue *q, uint32_t id, struct scratch *s)
{
    struct core_edge *e = &c->edges.at[id];
    if (!e->table || !e->dirty)
        return;
    e->dirty = false;
    for (int side = 0; side < 2; side++) {
        uint32_t v = side ? e->b : e->a, w = edge_other(e, v);
        bool function = partners(c, e, v, s->count, s->which);
        if (lacks(s->count, c->nodes[v].k, s->dead)) {
            tsr__core_remove(c, v, s->dead);
            touched(c, q, v);
            return;
        }
        if (function && !merge_grows(c, v, w)) {
            merge(c, q, v, w, id, s->which);
            return;
        }
    }
    decompose(c, q, id);
}

// ---- one node

// Least usage of each use goes off the bounds; uses that are nothing else go.
static void trim_uses(struct core *c, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    for (uint32_t i = 0; i < n->uses.n;) {
        struct core_use *u = &n->uses.at[i];
        int64_t least = u->usage[0], most = u->usage[0];
        for (uint32_t k = 1; k < n->k; k++) {
            least = u->usage[k] < least ? u->usage[k] : least;
            most = u->usage[k] > most ? u->usage[k] : most;
        }
        for (uint32_t k = 0; k < n->k; k++)
            u->usage[k] -= least;
        for (uint32_t r = u->begin; r < u->end && least; r++)
            c->row_bound[r] -= least;
        if (most > least) {
            i++;
            continue;
        }
        tsr__heap_free(c->heap, u->usage);
        *u = n->uses.at[--n->uses.n];
    }
}

static void fold_leaf(struct core *c, struct queue *q, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    uint32_t id = n->edges.at[0];
    const struct core_edge *e = &c->edges.at[id];
    uint32_t w = edge_other(e, v);
    uint32_t *by_choice = HEAP_ARRAY(c->heap, uint32_t, c->p->nodes.at[w].k);
    if (!by_choice)
        return;
    for (uint32_t i = 0; i < c->nodes[w].k; i++) {
        uint32_t best = 0;
        int64_t least = INT64_MAX;
        for (uint32_t j = 0; j < n->k; j++) {
            int64_t x = plus(n->cost[j], edge_cost(e, v, j, i));
            if (x < least) {
                least = x;
                best = j;
            }
        }
        c->nodes[w].cost[i] = plus(c->nodes[w].cost[i], least);
        by_choice[c->nodes[w].origin[i]] = n->origin[best];
    }
    c->effort->work += (size_t)n->k * c->nodes[w].k;
    record(c, (struct core_step){.node = v, .n = 1, .from = {w}, .by_choice = by_choice});
    leave(c, v);
    push_node(c, q, w);
}

static void fold_link(struct core *c, struct queue *q, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    const struct core_edge *ea = &c->edges.at[n->edges.at[0]], *eb = &c->edges.at[n->edges.at[1]];
    uint32_t a = edge_other(ea, v), b = edge_other(eb, v);
    uint32_t stride = c->p->nodes.at[b].k;
    uint32_t *by_choice = HEAP_ARRAY(c->heap, uint32_t, (size_t)c->p->nodes.at[a].k * stride);
    struct table *t = tsr__table_new(c, c->nodes[a].k, c->nodes[b].k);
    if (!by_choice || !t)
        return;
    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t j = 0; j < t->cols; j++) {
            uint32_t best = 0;
            int64_t least = INT64_MAX;
            for (uint32_t k = 0; k < n->k; k++) {
                int64_t x = plus(n->cost[k], edge_cost(ea, v, k, i) + edge_cost(eb, v, k, j));
                if (x < least) {
                    least = x;
                    best = k;
                }
            }
            t->cell[(size_t)i * t->cols + j] = least;
            by_choice[(size_t)c->nodes[a].origin[i] * stride + c->nodes[b].origin[j]] =
                n->origin[best];
        }
    c->effort->work += (size_t)t->rows * t->cols * n->k;
    record(c, (struct core_step){
                  .node = v, .n = 2, .from = {a, b}, .stride = stride, .by_choice = by_choice});
    leave(c, v);
    add_table(c, q, a, b, t);
    push_node(c, q, a);
    push_node(c, q, b);
}

static void settle(struct core *c, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    uint32_t best = 0;
    for (uint32_t i = 1; i < n->k; i++)
        if (n->cost[i] < n->cost[best])
            best = i;
    uint32_t *by_choice = HEAP_ARRAY(c->heap, uint32_t, 1);
    if (!by_choice)
        return;
    *by_choice = n->origin[best];
    c->shift += n->cost[best];
    record(c, (struct core_step){.node = v, .by_choice = by_choice});
    leave(c, v);
}

// ---- dominance

static bool uses_less(const struct core_node *n, uint32_t b, uint32_t a)
{
    for (uint32_t i = 0; i < n->uses.n; i++)
        if (n->uses.at[i].usage[b] > n->uses.at[i].usage[a])
            return false;
    return true;
}

static bool make_room(struct core *c, void **at, size_t *room, size_t n, size_t size)
{
    if (n <= *room)
        return true;
    void *grown = tsr__heap_grow(c->heap, *at, n * 2, size);
    if (grown) {
        *at = grown;
        *room = n * 2;
    }
    return grown != NULL;
}

// Choices of a node over one of its edges: entry j of choice c is at[c * k + j].
struct view {
    const int64_t *at;
    uint32_t k; // of the other end
};

// Tables that have the node's choices as columns are turned, because each row is read often; into s->turned.
static bool see_edges(struct core *c, uint32_t v, struct scratch *s)
{
    const struct core_node *n = &c->nodes[v];
    size_t cells = 0;
    for (uint32_t i = 0; i < n->edges.n; i++)
        cells += (size_t)n->k * c->nodes[edge_other(&c->edges.at[n->edges.at[i]], v)].k;
    if (!make_room(c, &s->turned, &s->n_turned, cells, sizeof(int64_t)) ||
        !make_room(c, &s->views, &s->n_views, n->edges.n, sizeof(struct view)))
        return false;
    int64_t *to = s->turned;
    struct view *views = s->views;
    for (uint32_t i = 0; i < n->edges.n; i++) {
        const struct core_edge *e = &c->edges.at[n->edges.at[i]];
        uint32_t rows = e->table->rows, cols = e->table->cols;
        views[i] = e->a == v ? (struct view){e->table->cell, cols} : (struct view){to, rows};
        for (uint32_t a = 0; e->a != v && a < cols; a++)
            for (uint32_t j = 0; j < rows; j++)
                *to++ = e->table->cell[(size_t)j * cols + a];
    }
    return true;
}

// least[i * k + c]: least entry of choice c over edge i; sum[c]: with the cost of c, over all edges.
static bool find_least(struct core *c, const struct core_node *n, const struct view *views,
                       int64_t *least, int64_t *sum)
{
    memcpy(sum, n->cost, n->k * sizeof(int64_t));
    for (uint32_t i = 0; i < n->edges.n; i++) {
        struct view x = views[i];
        for (uint32_t a = 0; a < n->k; a++) {
            int64_t low = NEVER;
            const int64_t *at = x.at + (size_t)a * x.k;
            for (uint32_t j = 0; j < x.k; j++)
                low = at[j] < low ? at[j] : low;
            if (low >= NEVER)
                return false;
            least[(size_t)i * n->k + a] = low;
            sum[a] = plus(sum[a], low);
        }
        c->effort->work += (size_t)n->k * x.k;
    }
    return true;
}

// Least of a[j] - b[j] where a[j] is allowed.
HOT static int64_t least_gain(const int64_t *a, const int64_t *b, uint32_t n)
{
    int64_t low = NEVER;
    for (uint32_t j = 0; j < n; j++) {
        int64_t gain = a[j] < NEVER ? a[j] - b[j] : NEVER;
        low = gain < low ? gain : low;
    }
    return low;
}

// True if taking b instead of a never costs more, whatever the neighbours take. The difference of the
// least sums is more than can be gained; each edge takes off of it what it really gives.
static bool beats(struct core *c, const struct core_node *n, const struct view *views, uint32_t b,
                  uint32_t a, const int64_t *least, const int64_t *sum)
{
    int64_t gain = sum[a] - sum[b];
    if (gain < 0 || !uses_less(n, b, a))
        return false;
    for (uint32_t i = 0; i < n->edges.n && gain >= 0; i++) {
        struct view x = views[i];
        int64_t most = least[(size_t)i * n->k + a] - least[(size_t)i * n->k + b];
        gain += least_gain(x.at + (size_t)a * x.k, x.at + (size_t)b * x.k, x.k) - most;
        c->effort->work += x.k;
    }
    return gain >= 0;
}

static bool dominate(struct core *c, uint32_t v, struct scratch *s)
{
    struct core_node *n = &c->nodes[v];
    size_t cells = (size_t)n->k * ((size_t)n->edges.n + 1);
    bool any = false;
    if (n->k < 2 || !make_room(c, &s->least, &s->n_least, cells, sizeof(int64_t)) ||
        !see_edges(c, v, s))
        return false;
    int64_t *least = s->least, *sum = least + (size_t)n->k * n->edges.n;
    memset(s->dead, 0, n->k);
    if (!find_least(c, n, s->views, least, sum))
        return false;
    for (uint32_t a = 0; a < n->k; a++)
        for (uint32_t b = 0; b < n->k && !s->dead[a]; b++)
            if (a != b && !s->dead[b] && beats(c, n, s->views, b, a, least, sum))
                any = (s->dead[a] = 1);
    if (any)
        tsr__core_remove(c, v, s->dead);
    return any;
}

// Sums may have made choices forbidden.
static bool forbidden(struct core *c, uint32_t v, uint8_t *dead)
{
    struct core_node *n = &c->nodes[v];
    bool any = false;
    for (uint32_t i = 0; i < n->k; i++) {
        dead[i] = n->cost[i] >= NEVER;
        any |= dead[i];
    }
    if (any)
        tsr__core_remove(c, v, dead);
    return any;
}

static void visit_node(struct core *c, struct queue *q, uint32_t v, struct scratch *s)
{
    struct core_node *n = &c->nodes[v];
    if (forbidden(c, v, s->dead)) {
        touched(c, q, v);
        return;
    }
    trim_uses(c, v);
    if (dominate(c, v, s)) {
        touched(c, q, v);
        return; // comes again
    }
    if (n->uses.n)
        return;
    if (n->edges.n == 0)
        settle(c, v);
    else if (n->edges.n == 1)
        fold_leaf(c, q, v);
    else if (n->edges.n == 2) {
        uint64_t cells = n->k;
        for (uint32_t i = 0; i < 2; i++)
            cells *= c->nodes[edge_other(&c->edges.at[n->edges.at[i]], v)].k;
        if (cells <= R2_CELLS)
            fold_link(c, q, v);
    }
}

// ---- rows

struct sweep {     // by row
    int64_t *most; // sum of the largest usages
    uint8_t *mark; // whether a use begins here, whether one ends after it
    uint8_t *keep;
};
enum { BEGINS = 1, ENDS = 2 };

static bool sweep_init(struct core *c, struct sweep *s)
{
    size_t n = (size_t)c->n_rows + 1;
    s->most = HEAP_ARRAY(c->heap, int64_t, n);
    s->mark = HEAP_ARRAY(c->heap, uint8_t, n);
    s->keep = HEAP_ARRAY(c->heap, uint8_t, n);
    if (c->heap->failed)
        return false;
    for (uint32_t v = 0; v < c->n_nodes; v++)
        for (uint32_t i = 0; !c->nodes[v].gone && i < c->nodes[v].uses.n; i++) {
            const struct core_use *u = &c->nodes[v].uses.at[i];
            int64_t largest = 0;
            for (uint32_t k = 0; k < c->nodes[v].k; k++)
                largest = u->usage[k] > largest ? u->usage[k] : largest;
            s->most[u->begin] += largest;
            s->most[u->end] -= largest;
            s->mark[u->begin] |= BEGINS;
            s->mark[u->end - 1] |= ENDS;
        }
    for (uint32_t r = 1; r < c->n_rows; r++)
        s->most[r] += s->most[r - 1];
    return true;
}

// Marks the rows to keep. `kept` is a stack of rows; `between` of each: what happened between the
// one before it and itself. A row whose live set is part of a kept neighbour's with no larger bound
// follows from that.
static void sweep_rows(struct core *c, struct sweep *s, uint32_t *kept, uint8_t *between)
{
    uint32_t n = 0;
    uint8_t since = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        since |= s->mark[r] & BEGINS;
        bool needed = s->most[r] > c->row_bound[r], covered = false;
        while (needed && n && !(since & ENDS) && c->row_bound[kept[n - 1]] >= c->row_bound[r])
            since |= between[--n];
        if (needed && n && !(since & BEGINS) && c->row_bound[r] >= c->row_bound[kept[n - 1]])
            covered = true;
        if (needed && !covered) {
            kept[n] = r;
            between[n++] = since;
            since = 0;
        }
        since |= s->mark[r] & ENDS;
    }
    for (uint32_t i = 0; i < n; i++)
        s->keep[kept[i]] = 1;
}

// Numbers the kept rows anew; fresh[r]: kept rows before r.
static void renumber_rows(struct core *c, const uint8_t *keep, uint32_t *fresh)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->n_rows; r++) {
        if (c->row_bound[r] < 0)
            c->infeasible = true;
        fresh[r] = n;
        if (keep[r]) {
            c->row_limit[n] = c->row_limit[r];
            c->row_time[n] = c->row_time[r];
            c->row_bound[n++] = c->row_bound[r];
        }
    }
    fresh[c->n_rows] = n;
    c->n_rows = n;
}

static void move_uses(struct core *c, struct queue *q, uint32_t v, const uint32_t *fresh)
{
    struct core_node *n = &c->nodes[v];
    for (uint32_t i = 0; i < n->uses.n;) {
        struct core_use *u = &n->uses.at[i];
        u->begin = fresh[u->begin];
        u->end = fresh[u->end];
        if (u->begin < u->end) {
            i++;
            continue;
        }
        tsr__heap_free(c->heap, u->usage);
        *u = n->uses.at[--n->uses.n];
        push_node(c, q, v); // may be eliminated now
    }
}

// Uses with the same rows become one.
static void join_uses(struct core *c, uint32_t v)
{
    struct core_node *n = &c->nodes[v];
    for (uint32_t i = 0; i < n->uses.n; i++)
        for (uint32_t j = i + 1; j < n->uses.n;) {
            struct core_use *a = &n->uses.at[i], *b = &n->uses.at[j];
            if (a->begin != b->begin || a->end != b->end) {
                j++;
                continue;
            }
            for (uint32_t k = 0; k < n->k; k++)
                a->usage[k] += b->usage[k];
            tsr__heap_free(c->heap, b->usage);
            *b = n->uses.at[--n->uses.n];
        }
}

static void reduce_rows(struct core *c, struct queue *q)
{
    struct sweep s;
    uint32_t *fresh = HEAP_ARRAY(c->heap, uint32_t, (size_t)c->n_rows + 1);
    uint32_t *kept = HEAP_ARRAY(c->heap, uint32_t, (size_t)c->n_rows + 1);
    uint8_t *between = HEAP_ARRAY(c->heap, uint8_t, (size_t)c->n_rows + 1);
    if (c->heap->failed || !sweep_init(c, &s))
        return;
    sweep_rows(c, &s, kept, between);
    renumber_rows(c, s.keep, fresh);
    for (uint32_t v = 0; v < c->n_nodes; v++)
        if (!c->nodes[v].gone) {
            move_uses(c, q, v, fresh);
            join_uses(c, v);
        }
    tsr__heap_free(c->heap, s.most);
    tsr__heap_free(c->heap, s.mark);
    tsr__heap_free(c->heap, s.keep);
    tsr__heap_free(c->heap, fresh);
    tsr__heap_free(c->heap, kept);
    tsr__heap_free(c->heap, between);
}

// Choices of v that would break a row by themselves.
static bool breaks(struct core *c, uint32_t v, uint8_t *dead)
{
    const struct core_node *n = &c->nodes[v];
    bool any = false;
    memset(dead, 0, n->k);
    for (uint32_t i = 0; i < n->uses.n; i++) {
        const struct core_use *u = &n->uses.at[i];
        int64_t least = INT64_MAX;
        for (uint32_t r = u->begin; r < u->end; r++)
            least = c->row_bound[r] < least ? c->row_bound[r] : least;
        for (uint32_t k = 0; k < n->k; k++)
            dead[k] |= u->usage[k] > least;
        c->effort->work += n->k + (u->end - u->begin) / 8;
    }
    for (uint32_t k = 0; k < n->k; k++)
        any |= dead[k];
    return any;
}

static void strike_full(struct core *c, struct queue *q, struct scratch *s)
{
    for (uint32_t v = 0; v < c->n_nodes && !c->infeasible && !c->heap->failed; v++)
        if (!c->nodes[v].gone && breaks(c, v, s->dead)) {
            tsr__core_remove(c, v, s->dead);
            touched(c, q, v);
        }
}

// ---- all

// Some of the time is left for the search: what is not reduced by then stays as it is.
static bool enough(const struct core *c)
{
    const struct effort *e = c->effort;
    if (e->session && tsr__cancelled(e->session))
        return true;
    return e->work > e->limit / 2 || (e->seconds > 0 && tsr__effort_elapsed(e) > 0.7 * e->seconds);
}

static void drain(struct core *c, struct queue *q, struct scratch *s)
{
    for (uint32_t i = 1; !c->infeasible && !c->heap->failed; i++) {
        if (i % 256 == 0 && enough(c)) {
            while (q->nodes.n)
                c->nodes[q->nodes.at[--q->nodes.n]].queued = false;
            q->edges.n = 0;
            break;
        }
        if (q->edges.n) {
            visit_edge(c, q, q->edges.at[--q->edges.n], s);
        } else if (q->nodes.n) {
            uint32_t v = q->nodes.at[--q->nodes.n];
            c->nodes[v].queued = false;
            if (!c->nodes[v].gone)
                visit_node(c, q, v, s);
        } else {
            break;
        }
    }
}

// Edges between the same two nodes become one.
static void join_edges(struct core *c, struct queue *q)
{
    for (uint32_t id = 0; id < c->edges.n && !c->heap->failed; id++) {
        struct core_edge e = c->edges.at[id];
        if (!e.table || find_edge(c, e.a, e.b, id) == NONE)
            continue;
        struct table *t = tsr__table_new(c, e.table->rows, e.table->cols);
        if (!t)
            return;
        memcpy(t->cell, e.table->cell, (size_t)t->rows * t->cols * sizeof(int64_t));
        drop_edge(c, id);
        add_table(c, q, e.a, e.b, t);
    }
}

// Choices that cannot be, found by trying; true if there were any.
static bool probe(struct core *c, struct queue *q, struct scratch *s)
{
    uint8_t *lost = HEAP_ARRAY(c->heap, uint8_t, (size_t)c->n_nodes + 1);
    if (!lost || c->n_rows == 0)
        return false;
    tsr__effort_slice(c->effort, PROBING);
    bool any = tsr__core_probe(c, s->dead, lost) > 0;
    tsr__effort_slice(c->effort, 0);
    for (uint32_t v = 0; v < c->n_nodes && any; v++)
        if (lost[v])
            touched(c, q, v);
    tsr__heap_free(c->heap, lost);
    return any;
}

void tsr__core_reduce(struct core *c)
{
    struct queue q = {0};
    uint32_t k = 1;
    int probes = 0;
    for (uint32_t v = 0; v < c->n_nodes; v++)
        k = c->nodes[v].k > k ? c->nodes[v].k : k;
    struct scratch s = {.count = HEAP_ARRAY(c->heap, uint8_t, k),
                        .dead = HEAP_ARRAY(c->heap, uint8_t, k),
                        .which = HEAP_ARRAY(c->heap, uint32_t, k)};
    arc_consistency(c);
    if (c->infeasible || c->heap->failed)
        return;
    join_edges(c, &q);
    for (uint32_t v = 0; v < c->n_nodes; v++) {
        trim_uses(c, v);
        touched(c, &q, v);
    }
    do {
        drain(c, &q, &s);
        uint32_t rows = c->n_rows;
        if (!c->infeasible && !c->heap->failed)
            reduce_rows(c, &q);
        if (!c->infeasible && !c->heap->failed)
            strike_full(c, &q, &s);
        if (rows != c->n_rows || q.nodes.n || c->infeasible || c->heap->failed)
            continue;
        if (probes++ == PROBES || !probe(c, &q, &s))
            break;
    } while (!c->infeasible && !c->heap->failed);
    // Where the effort did not last, choices may be left that nothing supports.
    if (!c->infeasible && !c->heap->failed && enough(c))
        arc_consistency(c);
    tsr__heap_free(c->heap, q.edges.at);
    tsr__heap_free(c->heap, q.nodes.at);
    tsr__heap_free(c->heap, s.count);
    tsr__heap_free(c->heap, s.dead);
    tsr__heap_free(c->heap, s.which);
    tsr__heap_free(c->heap, s.least);
    tsr__heap_free(c->heap, s.turned);
    tsr__heap_free(c->heap, s.views);
}
