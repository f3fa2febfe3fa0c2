// SPDX-License-Identifier: Apache-2.0
// solve_dive.c - a first answer: decide a node, strike out what it forbids, and so on.
//
// Choices go by usage, where that makes an answer, else by the messages of the bound. Where a node has
// no choice left, the dive starts again with the nodes first that failed before.
#include "solve_search.h"

#define DIVES 100
#define LARGE 20000 // nodes

struct dive {
    struct search *s;
    const struct wide *w;
    uint8_t **alive;
    uint32_t *left, *queue, *conflicts;
    uint8_t *queued, *done;
    double *guide;
    bool by_usage;
    uint32_t cursor;
};

// What a choice uses, each row counted by how little it may hold; or what the messages say.
static void find_guide(struct dive *d, uint32_t v)
{
    const struct wide *w = d->w;
    if (!d->by_usage) {
        tsr__dual_gather(&d->s->dual, v, d->guide);
        return;
    }
    for (uint32_t c = 0; c < w->k[v]; c++)
        d->guide[c] = (double)w->cost[v][c] * 1e-30; // decides only between equals
    for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++)
        for (uint32_t c = 0; c < w->k[v]; c++)
            d->guide[c] += (double)w->uses[i].usage[c] * (w->uses[i].end - w->uses[i].begin);
}

static bool allowed(const struct wide *w, const struct tree_edge *e, uint32_t u, uint32_t a,
                    uint32_t c)
{
    return e->cell[e->a == u ? (size_t)a * w->k[e->b] + c : (size_t)c * w->k[e->b] + a] < NEVER;
}

// Strikes out choices of the other end of e that have no partner at u.
static void strike(struct dive *d, const struct tree_edge *e, uint32_t u, uint32_t o)
{
    const struct wide *w = d->w;
    for (uint32_t c = 0; c < w->k[o]; c++) {
        bool ok = !d->alive[o][c];
        for (uint32_t a = 0; a < w->k[u] && !ok; a++)
            ok = d->alive[u][a] && allowed(w, e, u, a, c);
        if (!ok) {
            d->alive[o][c] = 0;
            d->left[o]--;
        }
    }
    d->s->effort->work += (size_t)w->k[u] * w->k[o];
}

static bool propagate(struct dive *d, uint32_t v)
{
    const struct wide *w = d->w;
    uint32_t n = 0;
    memset(d->queued, 0, w->n);
    d->queue[n++] = v;
    while (n) {
        uint32_t u = d->queue[--n];
        d->queued[u] = 0;
        for (uint32_t t = w->first[u]; t < w->first[u + 1]; t++) {
            const struct tree_edge *e = &w->edges[w->touch[t]];
            uint32_t o = e->a == u ? e->b : e->a, before = d->left[o];
            strike(d, e, u, o);
            if (d->left[o] == 0) {
                d->conflicts[o]++;
                return false;
            }
            if (d->left[o] < before && !d->queued[o]) {
                d->queued[o] = 1;
                d->queue[n++] = o;
            }
        }
    }
    return true;
}

// Most conflicts first, then fewest choices; in very large programs just the next one.
static uint32_t next_node(struct dive *d)
{
    uint32_t best = NONE;
    if (d->w->n > LARGE) {
        while (d->cursor < d->w->n && d->done[d->cursor])
            d->cursor++;
        return d->cursor < d->w->n ? d->cursor : NONE;
    }
    for (uint32_t v = 0; v < d->w->n; v++) {
        if (d->done[v])
            continue;
        if (best == NONE || d->conflicts[v] > d->conflicts[best] ||
            (d->conflicts[v] == d->conflicts[best] && d->left[v] < d->left[best]))
            best = v;
    }
    return best;
}

static bool dive_once(struct dive *d, uint32_t *x)
{
    const struct wide *w = d->w;
    memset(d->done, 0, w->n);
    d->cursor = 0;
    for (uint32_t v = 0; v < w->n; v++) {
        memset(d->alive[v], 1, w->k[v]);
        d->left[v] = w->k[v];
    }
    for (uint32_t v = next_node(d); v != NONE; v = next_node(d)) {
        uint32_t best = NONE;
        find_guide(d, v);
        for (uint32_t c = 0; c < w->k[v]; c++)
            if (d->alive[v][c] && (best == NONE || d->guide[c] < d->guide[best]))
                best = c;
        memset(d->alive[v], 0, w->k[v]);
        d->alive[v][best] = 1;
        d->left[v] = 1;
        d->done[v] = 1;
        x[v] = best;
        if (!propagate(d, v))
            return false;
    }
    return true;
}

void tsr__search_dive(struct search *s)
{
    const struct wide *w = s->w;
    struct heap *h = s->heap;
    uint32_t k = 1;
    struct dive d = {.s = s, .w = w, .alive = HEAP_ARRAY(h, uint8_t *, (size_t)w->n + 1)};
    for (uint32_t v = 0; d.alive && v < w->n; v++) {
        d.alive[v] = HEAP_ARRAY(h, uint8_t, w->k[v]);
        k = w->k[v] > k ? w->k[v] : k;
    }
    d.left = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    d.queue = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    d.conflicts = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    d.queued = HEAP_ARRAY(h, uint8_t, (size_t)w->n + 1);
    d.done = HEAP_ARRAY(h, uint8_t, (size_t)w->n + 1);
    d.guide = HEAP_ARRAY(h, double, k);
    for (int i = 0; i < DIVES && !h->failed && !tsr__effort_over(s->effort); i++) {
        d.by_usage = i % 2 == 0;
        if (dive_once(&d, s->x) && (tsr__search_offer(s, s->x) || tsr__search_settle(s, s->x, 20)))
            break;
    }
    for (uint32_t v = 0; d.alive && v < w->n; v++)
        tsr__heap_free(h, d.alive[v]);
    void *all[] = {d.alive, d.left, d.queue, d.conflicts, d.queued, d.done, d.guide};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        tsr__heap_free(h, all[i]);
}
