// SPDX-License-Identifier: Apache-2.0
// solve_dominance.c - removes dominated choices (Goldstein's criterion for dead-end elimination):
// those that another choice of the same node beats for every choice of the neighbours. Keeps an
// optimum.
//
// Worked example: v costs {4, 5}, and its one edge is {0, 7; 1, 2} (rows: v). Choice 1 instead of 0
// costs 1 more at v, and over the edge it gains at least min(0 - 1, 7 - 2) = -1: up to 2 more, so 0
// stays. If v costs {6, 4}, choice 1 gains at least 2 - 1 = 1: 0 is removed, provided that 1 uses
// no more of any row.
#include "internal.h"

#include <stdlib.h>

// True if choice b uses no more of any row than choice a.
static bool uses_less(const struct core_node *node, uint32_t b, uint32_t a)
{
    for (uint32_t i = 0; i < node->uses.n; i++)
        if (node->uses.at[i].usage[b] > node->uses.at[i].usage[a])
            return false;
    return true;
}

// Makes room for n entries, growing geometrically. New entries are not cleared.
static bool make_room(struct core *core, void **at, size_t *room, size_t n, size_t size)
{
    if (n <= *room)
        return true;
    void *grown = tsr__heap_grow(core->heap, *at, n * 2, size);
    if (grown) {
        *at = grown;
        *room = n * 2;
    }
    return grown != NULL;
}

// One edge seen from the node: entry j of choice c is at[c * k + j].
struct view {
    const int64_t *at;
    uint32_t k; // of the other end
};

// Fills room->views. Tables whose columns are the node's choices are transposed, because rows are
// read often.
static bool see_edges(struct core *core, uint32_t v, struct dominance *room)
{
    const struct core_node *node = &core->nodes[v];
    size_t cells = 0;
    for (uint32_t i = 0; i < node->edges.n; i++)
        cells += (size_t)node->k * core->nodes[edge_other(&core->edges.at[node->edges.at[i]], v)].k;
    if (!make_room(core, &room->turned, &room->n_turned, cells, sizeof(int64_t)) ||
        !make_room(core, &room->views, &room->n_views, node->edges.n, sizeof(struct view)))
        return false;
    int64_t *to = room->turned;
    struct view *views = room->views;
    for (uint32_t i = 0; i < node->edges.n; i++) {
        const struct core_edge *edge = &core->edges.at[node->edges.at[i]];
        uint32_t rows = edge->table->rows, cols = edge->table->cols;
        if (edge->a == v) {
            views[i] = (struct view){edge->table->cell, cols};
            continue;
        }
        views[i] = (struct view){to, rows};
        for (uint32_t a = 0; a < cols; a++)
            for (uint32_t j = 0; j < rows; j++)
                *to++ = edge->table->cell[(size_t)j * cols + a];
    }
    return true;
}

// least[i * k + c]: least entry of choice c over edge i. sum[c]: cost of c plus these, over all
// edges.
static bool find_least(struct core *core, const struct core_node *node, const struct view *views,
                       int64_t *least, int64_t *sum)
{
    memcpy(sum, node->cost, node->k * sizeof(int64_t));
    for (uint32_t i = 0; i < node->edges.n; i++) {
        struct view x = views[i];
        for (uint32_t a = 0; a < node->k; a++) {
            int64_t low = NEVER;
            const int64_t *at = x.at + (size_t)a * x.k;
            for (uint32_t j = 0; j < x.k; j++)
                low = int64_min(low, at[j]);
            // A choice without an allowed partner is removed by visit_edge.
            if (low >= NEVER)
                return false;
            least[(size_t)i * node->k + a] = low;
            sum[a] = plus(sum[a], low);
        }
        core->effort->work += (size_t)node->k * x.k;
    }
    return true;
}

// Returns the least a[j] - b[j] where a[j] is allowed.
HOT static int64_t least_gain(const int64_t *a, const int64_t *b, uint32_t n)
{
    int64_t low = NEVER;
    for (uint32_t j = 0; j < n; j++) {
        int64_t gain = a[j] < NEVER ? a[j] - b[j] : NEVER;
        low = gain < low ? gain : low;
    }
    return low;
}

// True if b instead of a never costs more. Starts with an upper bound of the gain, the difference
// of the sums of least entries, and corrects it edge by edge.
static bool beats(struct core *core, const struct core_node *node, const struct view *views,
                  uint32_t b, uint32_t a, const int64_t *least, const int64_t *sum)
{
    int64_t gain = sum[a] - sum[b];
    if (gain < 0 || !uses_less(node, b, a))
        return false;
    for (uint32_t i = 0; i < node->edges.n && gain >= 0; i++) {
        struct view x = views[i];
        int64_t most = least[(size_t)i * node->k + a] - least[(size_t)i * node->k + b];
        gain += least_gain(x.at + (size_t)a * x.k, x.at + (size_t)b * x.k, x.k) - most;
        core->effort->work += x.k;
    }
    return gain >= 0;
}

// Only compares with choices that stay (`dead[b]`): of two equal choices one is left.
bool tsr__core_dominate(struct core *core, uint32_t v, struct dominance *room, uint8_t *dead)
{
    struct core_node *node = &core->nodes[v];
    size_t cells = (size_t)node->k * ((size_t)node->edges.n + 1);
    bool any = false;
    if (node->k < 2 || !make_room(core, &room->least, &room->n_least, cells, sizeof(int64_t)) ||
        !see_edges(core, v, room))
        return false;
    int64_t *least = room->least, *sum = least + (size_t)node->k * node->edges.n;
    memset(dead, 0, node->k);
    if (!find_least(core, node, room->views, least, sum))
        return false;
    for (uint32_t a = 0; a < node->k; a++)
        for (uint32_t b = 0; b < node->k && !dead[a]; b++)
            if (a != b && !dead[b] && beats(core, node, room->views, b, a, least, sum))
                any = (dead[a] = 1);
    if (any)
        tsr__core_remove(core, v, dead);
    return any;
}

void tsr__dominance_free(struct core *core, struct dominance *room)
{
    tsr__heap_free(core->heap, room->least);
    tsr__heap_free(core->heap, room->turned);
    tsr__heap_free(core->heap, room->views);
}
