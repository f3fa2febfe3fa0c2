// SPDX-License-Identifier: Apache-2.0
// solve_probe.c - choices that cannot be, by trying each: what it forbids to its neighbours is struck
// out, and theirs, as far as it goes; where a node has nothing left, or what is used at least then
// breaks a row, there is no answer with it.
#include "internal.h"

#define REACH 200 // nodes that one trial changes, at most

struct probe {
    struct core *c;
    uint8_t **alive; // by node
    uint32_t *left;
    uint32_t *changed, n_changed, *queue, n_queue;
    uint8_t *known, *queued; // in changed; in queue
    int64_t *extra;          // by row
};

static bool probe_init(struct probe *p, struct core *c)
{
    struct heap *h = c->heap;
    size_t n = (size_t)c->n_nodes + 1;
    *p = (struct probe){.c = c};
    p->alive = HEAP_ARRAY(h, uint8_t *, n);
    p->left = HEAP_ARRAY(h, uint32_t, n);
    p->changed = HEAP_ARRAY(h, uint32_t, REACH + 1);
    p->queue = HEAP_ARRAY(h, uint32_t, REACH + 1);
    p->known = HEAP_ARRAY(h, uint8_t, n);
    p->queued = HEAP_ARRAY(h, uint8_t, n);
    p->extra = HEAP_ARRAY(h, int64_t, (size_t)c->n_rows + 1);
    for (uint32_t v = 0; v < c->n_nodes && !h->failed; v++) {
        if (c->nodes[v].gone)
            continue;
        p->alive[v] = HEAP_ARRAY(h, uint8_t, c->nodes[v].k);
        p->left[v] = c->nodes[v].k;
        if (p->alive[v])
            memset(p->alive[v], 1, c->nodes[v].k);
    }
    return !h->failed;
}

static void probe_done(struct probe *p)
{
    struct heap *h = p->c->heap;
    for (uint32_t v = 0; p->alive && v < p->c->n_nodes; v++)
        tsr__heap_free(h, p->alive[v]);
    void *all[] = {p->alive, p->left, p->changed, p->queue, p->known, p->queued, p->extra};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        tsr__heap_free(h, all[i]);
}

// Remembers a node whose choices change; false: there are too many.
static bool change(struct probe *p, uint32_t v)
{
    if (!p->known[v]) {
        if (p->n_changed == REACH)
            return false;
        p->known[v] = 1;
        p->changed[p->n_changed++] = v;
    }
    if (!p->queued[v]) {
        p->queued[v] = 1;
        p->queue[p->n_queue++] = v;
    }
    return true;
}

static bool supported(const struct probe *p, const struct core_edge *e, uint32_t o, uint32_t j,
                      uint32_t v)
{
    for (uint32_t i = 0; i < p->c->nodes[v].k; i++)
        if (p->alive[v][i] && edge_cost(e, o, j, i) < NEVER)
            return true;
    return false;
}

// Strikes out what has no partner at v; false: nothing is left of o.
static bool strike(struct probe *p, const struct core_edge *e, uint32_t v)
{
    uint32_t o = edge_other(e, v), k = p->c->nodes[o].k;
    for (uint32_t j = 0; j < k; j++)
        if (p->alive[o][j] && !supported(p, e, o, j, v)) {
            if (!change(p, o))
                break; // what is struck out elsewhere stands
            p->alive[o][j] = 0;
            p->left[o]--;
        }
    p->c->effort->work += (uint64_t)k * (p->left[v] < 8 ? p->left[v] : 8);
    return p->left[o] > 0;
}

static bool spread(struct probe *p)
{
    const struct core *c = p->c;
    while (p->n_queue) {
        uint32_t v = p->queue[--p->n_queue];
        p->queued[v] = 0;
        for (uint32_t i = 0; i < c->nodes[v].edges.n; i++)
            if (!strike(p, &c->edges.at[c->nodes[v].edges.at[i]], v))
                return false;
    }
    return true;
}

// What the changed nodes use at least, against the rows.
static bool fits(struct probe *p)
{
    const struct core *c = p->c;
    uint32_t begin = c->n_rows, end = 0;
    for (uint32_t i = 0; i < p->n_changed; i++) {
        const struct core_node *n = &c->nodes[p->changed[i]];
        for (uint32_t u = 0; u < n->uses.n; u++) {
            const struct core_use *use = &n->uses.at[u];
            int64_t least = INT64_MAX;
            for (uint32_t k = 0; k < n->k; k++)
                if (p->alive[p->changed[i]][k] && use->usage[k] < least)
                    least = use->usage[k];
            p->extra[use->begin] += least;
            p->extra[use->end] -= least;
            begin = use->begin < begin ? use->begin : begin;
            end = use->end > end ? use->end : end;
        }
        c->effort->work += n->uses.n * (uint64_t)n->k;
    }
    bool ok = true;
    int64_t sum = 0;
    for (uint32_t r = begin; r < end; r++) {
        sum += p->extra[r];
        ok &= sum <= c->row_bound[r];
        p->extra[r] = 0;
    }
    p->extra[end] = 0;
    c->effort->work += end > begin ? end - begin : 0;
    return ok;
}

static bool possible(struct probe *p, uint32_t v, uint32_t choice)
{
    const struct core *c = p->c;
    memset(p->alive[v], 0, c->nodes[v].k);
    p->alive[v][choice] = 1;
    p->left[v] = 1;
    change(p, v);
    bool ok = spread(p) && fits(p);
    while (p->n_queue)
        p->queued[p->queue[--p->n_queue]] = 0;
    for (uint32_t i = 0; i < p->n_changed; i++) {
        uint32_t u = p->changed[i];
        memset(p->alive[u], 1, c->nodes[u].k);
        p->left[u] = c->nodes[u].k;
        p->known[u] = 0;
    }
    p->n_changed = 0;
    return ok;
}

uint32_t tsr__core_probe(struct core *c, uint8_t *dead, uint8_t *lost)
{
    struct probe p;
    uint32_t n = 0;
    memset(lost, 0, c->n_nodes);
    bool ok = probe_init(&p, c);
    for (uint32_t v = 0; ok && v < c->n_nodes && !c->infeasible && !c->heap->failed; v++) {
        uint32_t k = c->nodes[v].k, gone = 0;
        if (c->nodes[v].gone || k < 2)
            continue;
        if (tsr__effort_over(c->effort))
            break;
        for (uint32_t i = 0; i < k; i++)
            gone += dead[i] = !possible(&p, v, i);
        if (!gone)
            continue;
        tsr__core_remove(c, v, dead);
        p.left[v] = c->nodes[v].k;
        lost[v] = 1;
        n += gone;
    }
    probe_done(&p);
    return n;
}
