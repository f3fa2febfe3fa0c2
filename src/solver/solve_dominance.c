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

// Grows a buffer to at least n entries, geometrically. New entries are not cleared.
static bool grow_buffer(struct core *core, void **at, size_t *capacity, size_t n, size_t size)
{
    if (n <= *capacity)
        return true;
    void *grown = tsr__heap_grow(core->heap, *at, n * 2, size);
    if (grown) {
        *at = grown;
        *capacity = n * 2;
    }
    return grown != NULL;
}

// One edge as seen from the node: entry j of choice c is at[c * k + j].
struct view {
    const int64_t *at;
    uint32_t k; // number of choices of the other end
};

// Fills buffers->views. A table whose columns are the node's choices is transposed, because its
// rows are read often.
static bool view_edges(struct core *core, uint32_t v, struct dominance *buffers)
{
    const struct core_node *node = &core->nodes[v];
    size_t cells = 0;
    for (uint32_t i = 0; i < node->edges.n; i++)
        cells += (size_t)node->k * core->nodes[edge_other(&core->edges.at[node->edges.at[i]], v)].k;
    if (!grow_buffer(core, &buffers->turned, &buffers->n_turned, cells, sizeof(int64_t)) ||
        !grow_buffer(core, &buffers->views, &buffers->n_views, node->edges.n, sizeof(struct view)))
        return false;
    int64_t *to = buffers->turned;
    struct view *views = buffers->views;
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

// Finds the least entry of each choice over each edge: least[i * k + c] for choice c and edge i.
// sum[c] is the cost of c plus its least entries over all edges. Returns false if a choice has no
// allowed entry.
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

// Removes dominated choices; true if there was one. Compares only with choices that are not marked
// in `dead`, so that one of two equal choices stays.
bool tsr__core_dominate(struct core *core, uint32_t v, struct dominance *buffers, uint8_t *dead)
{
    struct core_node *node = &core->nodes[v];
    size_t cells = (size_t)node->k * ((size_t)node->edges.n + 1);
    bool any = false;
    if (node->k < 2 ||
        !grow_buffer(core, &buffers->least, &buffers->n_least, cells, sizeof(int64_t)) ||
        !view_edges(core, v, buffers))
        return false;
    int64_t *least = buffers->least, *sum = least + (size_t)node->k * node->edges.n;
    memset(dead, 0, node->k);
    if (!find_least(core, node, buffers->views, least, sum))
        return false;
    for (uint32_t a = 0; a < node->k; a++)
        for (uint32_t b = 0; b < node->k && !dead[a]; b++)
            if (a != b && !dead[b] && beats(core, node, buffers->views, b, a, least, sum))
                any = (dead[a] = 1);
    if (any)
        tsr__core_remove(core, v, dead);
    return any;
}

void tsr__dominance_free(struct core *core, struct dominance *buffers)
{
    tsr__heap_free(core->heap, buffers->least);
    tsr__heap_free(core->heap, buffers->turned);
    tsr__heap_free(core->heap, buffers->views);
}
