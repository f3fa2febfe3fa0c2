// SPDX-License-Identifier: Apache-2.0
// solve_dominance.c - removes dominated choices (Goldstein's criterion for dead-end elimination). A
// choice is dominated if another choice of the same node is at least as good for every choice of
// the neighbours. This keeps an optimum.
//
//     Example: v has one edge with the table {0, 7; 1, 2} (rows: choices of v).
//     v costs {4, 5}: taking 1 instead of 0 costs 1 more at v. Over the edge it saves
//         min(0 - 1, 7 - 2) = -1 in the worst case. It may cost 2 more, so 0 stays.
//     v costs {6, 4}: taking 1 saves 2 at v and at worst -1 over the edge, at least 1 in total.
//         0 is removed, provided that 1 uses no more of any row.
#include "internal.h"

// True if choice b uses no more of any row than choice a.
static bool uses_less(const struct core_node *node, uint32_t b, uint32_t a)
{
    for (uint32_t i = 0; i < node->uses.n; i++)
        if (node->uses.at[i].usage[b] > node->uses.at[i].usage[a])
            return false;
    return true;
}

// Fills buffers->views. A table whose columns are the node's choices is transposed, because its
// rows are read often.
static bool view_edges(struct core *core, uint32_t v, struct dominance *buffers)
{
    const struct core_node *node = &core->nodes[v];
    size_t cells = 0;
    for (uint32_t i = 0; i < node->edges.n; i++)
        cells += (size_t)node->k * core->nodes[edge_other(&core->edges.at[node->edges.at[i]], v)].k;
    if (!list_reserve(core->heap, &buffers->turned, cells) ||
        !list_reserve(core->heap, &buffers->views, node->edges.n))
        return false;
    int64_t *to = buffers->turned.at;
    struct edge_view *views = buffers->views.at;
    for (uint32_t i = 0; i < node->edges.n; i++) {
        const struct core_edge *edge = &core->edges.at[node->edges.at[i]];
        uint32_t rows = edge->table->rows, cols = edge->table->cols;
        if (edge->a == v) {
            views[i] = (struct edge_view){edge->table->cell, cols};
            continue;
        }
        views[i] = (struct edge_view){to, rows};
        for (uint32_t a = 0; a < cols; a++)
            for (uint32_t j = 0; j < rows; j++)
                *to++ = edge->table->cell[(size_t)j * cols + a];
    }
    return true;
}

// Finds the least entry of each choice over each edge: least[i * k + c] for choice c and edge i.
// sum[c] is the cost of c plus its least entries over all edges. Returns false if a choice has no
// allowed entry.
static bool find_least(struct core *core, const struct core_node *node,
                       const struct edge_view *views, int64_t *least, int64_t *sum)
{
    memcpy(sum, node->cost, node->k * sizeof(int64_t));
    for (uint32_t i = 0; i < node->edges.n; i++) {
        struct edge_view x = views[i];
        for (uint32_t a = 0; a < node->k; a++) {
            int64_t low = NEVER;
            const int64_t *at = x.at + (size_t)a * x.k;
            for (uint32_t j = 0; j < x.k; j++)
                low = int64_min(low, at[j]);
            // visit_edge removes a choice without an allowed partner
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

// True if b dominates a: taking b instead of a never costs more and uses no more of any row. Starts
// with an upper bound of the gain, the difference of the sums of least entries, and corrects it
// edge by edge.
static bool beats(struct core *core, const struct core_node *node, const struct edge_view *views,
                  uint32_t b, uint32_t a, const int64_t *least, const int64_t *sum)
{
    int64_t gain = sum[a] - sum[b];
    if (gain < 0 || !uses_less(node, b, a))
        return false;
    for (uint32_t i = 0; i < node->edges.n && gain >= 0; i++) {
        struct edge_view x = views[i];
        int64_t most = least[(size_t)i * node->k + a] - least[(size_t)i * node->k + b];
        gain += least_gain(x.at + (size_t)a * x.k, x.at + (size_t)b * x.k, x.k) - most;
        core->effort->work += x.k;
    }
    return gain >= 0;
}

// Removes dominated choices; true if there was one. Compares only with choices that are not marked
// in `dead`, so that one of two equal choices stays.
bool tsr__core_dominate(struct core *core, uint32_t v, struct dominance *buffers, uint8_t *dead)
{
    struct core_node *node = &core->nodes[v];
    size_t cells = (size_t)node->k * ((size_t)node->edges.n + 1);
    bool any = false;
    if (node->k < 2 || !list_reserve(core->heap, &buffers->least, cells) ||
        !view_edges(core, v, buffers))
        return false;
    int64_t *least = buffers->least.at, *sum = least + (size_t)node->k * node->edges.n;
    memset(dead, 0, node->k);
    if (!find_least(core, node, buffers->views.at, least, sum))
        return false;
    for (uint32_t a = 0; a < node->k; a++)
        for (uint32_t b = 0; b < node->k && !dead[a]; b++)
            if (a != b && !dead[b] && beats(core, node, buffers->views.at, b, a, least, sum))
                any = (dead[a] = 1);
    if (any)
        tsr__core_remove(core, v, dead);
    return any;
}
