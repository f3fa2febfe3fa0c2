// SPDX-License-Identifier: Apache-2.0
// solve_dive.c - a diving heuristic for a first solution: fixes one node after another and
// propagates the consequences (arc consistency), without backtracking.
//
// Dives alternate between choosing by least usage and by the messages of the dual. If a node has no
// choice left, the next dive starts with the nodes that failed.
#include "solve_search.h"

#define DIVES 100
#define LARGE 20000 // nodes

// Arrays are by node, `alive` by node and choice. cursor: the next node in very large programs.
struct dive {
    struct search *search;
    const struct wide *wide;
    uint8_t **alive;
    uint32_t *left, *queue, *conflicts;
    uint8_t *queued, *done;
    double *guide;
    bool by_usage;
    uint32_t cursor;
};

// Rates the choices of v: by usage, or by the messages.
static void find_guide(struct dive *dive, uint32_t v)
{
    const struct wide *wide = dive->wide;
    if (!dive->by_usage) {
        tsr__dual_gather(&dive->search->dual, v, dive->guide);
        return;
    }
    for (uint32_t choice = 0; choice < wide->k[v]; choice++)
        dive->guide[choice] = (double)wide->cost[v][choice] * 1e-30; // breaks ties
    for (uint32_t i = wide->first_use[v]; i < wide->first_use[v + 1]; i++)
        for (uint32_t choice = 0; choice < wide->k[v]; choice++)
            dive->guide[choice] +=
                (double)wide->uses[i].usage[choice] * (wide->uses[i].end - wide->uses[i].begin);
}

static bool is_allowed(const struct wide *wide, const struct tree_edge *edge, uint32_t u,
                       uint32_t a, uint32_t choice)
{
    return edge->cell[edge->a == u ? (size_t)a * wide->k[edge->b] + choice
                                   : (size_t)choice * wide->k[edge->b] + a] < NEVER;
}

// Removes the choices of o that have no partner at u.
static void remove_unsupported(struct dive *dive, const struct tree_edge *edge, uint32_t u,
                               uint32_t o)
{
    const struct wide *wide = dive->wide;
    for (uint32_t choice = 0; choice < wide->k[o]; choice++) {
        bool ok = !dive->alive[o][choice];
        for (uint32_t a = 0; a < wide->k[u] && !ok; a++)
            ok = dive->alive[u][a] && is_allowed(wide, edge, u, a, choice);
        if (!ok) {
            dive->alive[o][choice] = 0;
            dive->left[o]--;
        }
    }
    dive->search->effort->work += (size_t)wide->k[u] * wide->k[o];
}

// Propagates from v. False: a node has no choice left; its conflict count makes the next dive fix
// it earlier.
static bool propagate(struct dive *dive, uint32_t v)
{
    const struct wide *wide = dive->wide;
    uint32_t n = 0;
    memset(dive->queued, 0, wide->n);
    dive->queue[n++] = v;
    while (n) {
        uint32_t u = dive->queue[--n];
        dive->queued[u] = 0;
        for (uint32_t t = wide->first[u]; t < wide->first[u + 1]; t++) {
            const struct tree_edge *edge = &wide->edges[wide->touch[t]];
            uint32_t o = edge->a == u ? edge->b : edge->a, before = dive->left[o];
            remove_unsupported(dive, edge, u, o);
            if (dive->left[o] == 0) {
                dive->conflicts[o]++;
                return false;
            }
            if (dive->left[o] < before && !dive->queued[o]) {
                dive->queued[o] = 1;
                dive->queue[n++] = o;
            }
        }
    }
    return true;
}

// Most conflicts first, then fewest choices; in very large programs simply the next one.
static uint32_t next_node(struct dive *dive)
{
    uint32_t best = NONE;
    if (dive->wide->n > LARGE) {
        while (dive->cursor < dive->wide->n && dive->done[dive->cursor])
            dive->cursor++;
        return dive->cursor < dive->wide->n ? dive->cursor : NONE;
    }
    for (uint32_t v = 0; v < dive->wide->n; v++) {
        if (dive->done[v])
            continue;
        if (best == NONE || dive->conflicts[v] > dive->conflicts[best] ||
            (dive->conflicts[v] == dive->conflicts[best] && dive->left[v] < dive->left[best]))
            best = v;
    }
    return best;
}

// Fixes all nodes, one after another.
static bool dive_once(struct dive *dive, uint32_t *x)
{
    const struct wide *wide = dive->wide;
    memset(dive->done, 0, wide->n);
    dive->cursor = 0;
    for (uint32_t v = 0; v < wide->n; v++) {
        memset(dive->alive[v], 1, wide->k[v]);
        dive->left[v] = wide->k[v];
    }
    for (uint32_t v = next_node(dive); v != NONE; v = next_node(dive)) {
        uint32_t best = NONE;
        find_guide(dive, v);
        for (uint32_t choice = 0; choice < wide->k[v]; choice++)
            if (dive->alive[v][choice] && (best == NONE || dive->guide[choice] < dive->guide[best]))
                best = choice;
        memset(dive->alive[v], 0, wide->k[v]);
        dive->alive[v][best] = 1;
        dive->left[v] = 1;
        dive->done[v] = 1;
        x[v] = best;
        if (!propagate(dive, v))
            return false;
    }
    return true;
}

// Ends at the first solution that keeps the rows or can be repaired to do so.
void tsr__search_dive(struct search *search)
{
    const struct wide *wide = search->wide;
    struct heap *heap = search->heap;
    uint32_t k = 1;
    struct dive dive = {
        .search = search, .wide = wide, .alive = HEAP_ARRAY(heap, uint8_t *, (size_t)wide->n + 1)};
    for (uint32_t v = 0; dive.alive && v < wide->n; v++) {
        dive.alive[v] = HEAP_ARRAY(heap, uint8_t, wide->k[v]);
        if (wide->k[v] > k)
            k = wide->k[v];
    }
    dive.left = HEAP_ARRAY(heap, uint32_t, (size_t)wide->n + 1);
    dive.queue = HEAP_ARRAY(heap, uint32_t, (size_t)wide->n + 1);
    dive.conflicts = HEAP_ARRAY(heap, uint32_t, (size_t)wide->n + 1);
    dive.queued = HEAP_ARRAY(heap, uint8_t, (size_t)wide->n + 1);
    dive.done = HEAP_ARRAY(heap, uint8_t, (size_t)wide->n + 1);
    dive.guide = HEAP_ARRAY(heap, double, k);
    for (int i = 0; i < DIVES; i++) {
        if (heap->failed || tsr__effort_over(search->effort))
            break;
        dive.by_usage = i % 2 == 0;
        if (dive_once(&dive, search->x) &&
            (tsr__search_offer(search, search->x) || tsr__search_settle(search, search->x, 20)))
            break;
    }
    for (uint32_t v = 0; dive.alive && v < wide->n; v++)
        tsr__heap_free(heap, dive.alive[v]);
    void *all[] = {dive.alive,  dive.left, dive.queue, dive.conflicts,
                   dive.queued, dive.done, dive.guide};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        tsr__heap_free(heap, all[i]);
}
