// SPDX-License-Identifier: Apache-2.0
// solve_dive.c - a diving heuristic for a first solution: fixes one node after another and
// propagates the consequences (arc consistency), without backtracking.
//
// Dives alternate between two guides for the next choice: the least usage, and the messages of the
// dual. If a node has no choice left, the dive fails and the next one starts with the nodes that
// failed.
#include "solve.h"

#define DIVES 100
#define LARGE 20000 // with more nodes than this, they are fixed in the order of their numbers

// State of the dives. Arrays are indexed by node, `alive` by node and choice, `guide` by choice.
// `left` is the number of choices that are alive. `cursor` is the next node in programs of more
// than LARGE nodes.
struct dive {
    struct search *search;
    const struct dense *dense;
    uint8_t **alive;
    uint32_t *left, *queue, *conflicts;
    uint8_t *queued, *done;
    double *guide;
    bool by_usage;
    uint32_t cursor;
};

// Rates the choices of v in dive->guide, by usage or by the messages of the dual. Less is better.
static void rate_choices(struct dive *dive, uint32_t v)
{
    const struct dense *dense = dive->dense;
    if (!dive->by_usage) {
        tsr__dual_gather(&dive->search->dual, v, dive->guide);
        return;
    }
    for (uint32_t choice = 0; choice < dense->k[v]; choice++)
        dive->guide[choice] = (double)dense->cost[v][choice] * 1e-30; // breaks ties
    for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++)
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            dive->guide[choice] +=
                (double)dense->uses[i].usage[choice] * (dense->uses[i].end - dense->uses[i].begin);
}

static bool is_allowed(const struct dense *dense, const struct tree_edge *edge, uint32_t u,
                       uint32_t a, uint32_t choice)
{
    return edge->cell[edge->a == u ? (size_t)a * dense->k[edge->b] + choice
                                   : (size_t)choice * dense->k[edge->b] + a] < NEVER;
}

// Removes the choices of o that have no allowed partner at u.
static void remove_unsupported(struct dive *dive, const struct tree_edge *edge, uint32_t u,
                               uint32_t o)
{
    const struct dense *dense = dive->dense;
    for (uint32_t choice = 0; choice < dense->k[o]; choice++) {
        bool ok = !dive->alive[o][choice];
        for (uint32_t a = 0; a < dense->k[u] && !ok; a++)
            ok = dive->alive[u][a] && is_allowed(dense, edge, u, a, choice);
        if (!ok) {
            dive->alive[o][choice] = 0;
            dive->left[o]--;
        }
    }
    dive->search->effort->work += (size_t)dense->k[u] * dense->k[o];
}

// At the neighbours of v, removes choices without an allowed partner; then at their neighbours, and
// so on. Returns false if a node has no choice left. The conflict count of that node grows, so the
// next dive fixes it earlier.
static bool propagate(struct dive *dive, uint32_t v)
{
    const struct dense *dense = dive->dense;
    uint32_t n = 0;
    memset(dive->queued, 0, dense->n);
    dive->queue[n++] = v;
    while (n) {
        uint32_t u = dive->queue[--n];
        dive->queued[u] = 0;
        for (uint32_t t = dense->first[u]; t < dense->first[u + 1]; t++) {
            const struct tree_edge *edge = &dense->edges[dense->touch[t]];
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

// Returns the node with the most conflicts, of these the one with the fewest choices. In programs
// of more than LARGE nodes, returns the next one by number. Returns NONE if all nodes are fixed.
static uint32_t next_node(struct dive *dive)
{
    uint32_t best = NONE;
    if (dive->dense->n > LARGE) {
        while (dive->cursor < dive->dense->n && dive->done[dive->cursor])
            dive->cursor++;
        return dive->cursor < dive->dense->n ? dive->cursor : NONE;
    }
    for (uint32_t v = 0; v < dive->dense->n; v++) {
        if (dive->done[v])
            continue;
        if (best == NONE || dive->conflicts[v] > dive->conflicts[best] ||
            (dive->conflicts[v] == dive->conflicts[best] && dive->left[v] < dive->left[best]))
            best = v;
    }
    return best;
}

// Fixes all nodes, one after another. Returns false if a node has no choice left.
static bool dive_once(struct dive *dive, uint32_t *x)
{
    const struct dense *dense = dive->dense;
    memset(dive->done, 0, dense->n);
    dive->cursor = 0;
    for (uint32_t v = 0; v < dense->n; v++) {
        memset(dive->alive[v], 1, dense->k[v]);
        dive->left[v] = dense->k[v];
    }
    for (uint32_t v = next_node(dive); v != NONE; v = next_node(dive)) {
        uint32_t best = NONE;
        rate_choices(dive, v);
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            if (dive->alive[v][choice] && (best == NONE || dive->guide[choice] < dive->guide[best]))
                best = choice;
        memset(dive->alive[v], 0, dense->k[v]);
        dive->alive[v][best] = 1;
        dive->left[v] = 1;
        dive->done[v] = 1;
        x[v] = best;
        if (!propagate(dive, v))
            return false;
    }
    return true;
}

// Searches by at most DIVES dives. Stops at the first solution that satisfies the rows or can be
// repaired to do so, or if the effort is used up.
void tsr__search_dive(struct search *search)
{
    const struct dense *dense = search->dense;
    struct arena arena = {.session = dense->heap->session};
    size_t n = (size_t)dense->n + 1;
    struct dive dive = {.search = search,
                        .dense = dense,
                        .alive = ARENA_ARRAY(&arena, uint8_t *, n),
                        .left = ARENA_ARRAY(&arena, uint32_t, n),
                        .queue = ARENA_ARRAY(&arena, uint32_t, n),
                        .conflicts = ARENA_ARRAY(&arena, uint32_t, n),
                        .queued = ARENA_ARRAY(&arena, uint8_t, n),
                        .done = ARENA_ARRAY(&arena, uint8_t, n),
                        .guide = ARENA_ARRAY(&arena, double, dense->most_k)};
    for (uint32_t v = 0; dive.alive && v < dense->n; v++)
        dive.alive[v] = ARENA_ARRAY(&arena, uint8_t, dense->k[v]);
    for (int i = 0; i < DIVES; i++) {
        if (arena.failed || dense->heap->failed || tsr__effort_over(search->effort))
            break;
        dive.by_usage = i % 2 == 0;
        if (dive_once(&dive, search->x) &&
            (tsr__search_offer(search, search->x) || tsr__search_settle(search, search->x, 20)))
            break;
    }
    dense->heap->failed |= arena.failed;
    tsr__arena_free(&arena);
}
