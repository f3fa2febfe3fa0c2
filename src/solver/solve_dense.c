// SPDX-License-Identifier: Apache-2.0
// solve_wide.c - the reduced core with densely numbered nodes.
//
// Example: the nodes 0, 3 and 7 of the core are left. They are 0, 1 and 2 here, and `node` is {0,
// 3, 7}. Tables, costs and usages are views of the core's. The edges of a node are a range of
// `touch`: with edges 0-1 and 1-2, first is {0, 1, 3, 4} and touch {0, 0, 1, 1}.
#include "solve_dense.h"

// dense: by node of the core, its number here; undefined for eliminated nodes.
static void number_nodes(struct wide *wide, uint32_t *dense)
{
    const struct core *core = wide->core;
    for (uint32_t v = 0; v < core->n_nodes; v++)
        if (!core->nodes[v].gone) {
            dense[v] = wide->n;
            wide->node[wide->n] = v;
            wide->k[wide->n] = core->nodes[v].k;
            wide->cost[wide->n++] = core->nodes[v].cost;
        }
}

// first[v + 1] first counts the edges of v, then becomes the prefix sum.
static void number_edges(struct wide *wide, const uint32_t *dense)
{
    const struct core *core = wide->core;
    for (uint32_t i = 0; i < core->edges.n; i++) {
        const struct core_edge *edge = &core->edges.at[i];
        if (!edge->table)
            continue;
        wide->edges[wide->n_edges++] =
            (struct tree_edge){dense[edge->a], dense[edge->b], edge->table->cell};
        wide->first[dense[edge->a] + 1]++;
        wide->first[dense[edge->b] + 1]++;
    }
    for (uint32_t v = 0; v < wide->n; v++)
        wide->first[v + 1] += wide->first[v];
}

static bool fill_touch(struct wide *wide)
{
    uint32_t *at = HEAP_ARRAY(wide->heap, uint32_t, (size_t)wide->n + 1);
    wide->touch = HEAP_ARRAY(wide->heap, uint32_t, 2 * (size_t)wide->n_edges + 1);
    if (wide->heap->failed)
        return false;
    memcpy(at, wide->first, wide->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < wide->n_edges; i++) {
        wide->touch[at[wide->edges[i].a]++] = i;
        wide->touch[at[wide->edges[i].b]++] = i;
    }
    tsr__heap_free(wide->heap, at);
    return true;
}

static bool fill_uses(struct wide *wide)
{
    uint32_t n = 0;
    wide->first_use = HEAP_ARRAY(wide->heap, uint32_t, (size_t)wide->n + 1);
    for (uint32_t v = 0; v < wide->n; v++)
        n += wide->core->nodes[wide->node[v]].uses.n;
    wide->uses = HEAP_ARRAY(wide->heap, struct wide_use, (size_t)n + 1);
    if (wide->heap->failed)
        return false;
    n = 0;
    for (uint32_t v = 0; v < wide->n; v++) {
        const struct core_node *node = &wide->core->nodes[wide->node[v]];
        for (uint32_t i = 0; i < node->uses.n; i++)
            wide->uses[n++] = (struct wide_use){node->uses.at[i].begin, node->uses.at[i].end,
                                                node->uses.at[i].usage};
        wide->first_use[v + 1] = n;
    }
    return true;
}

// May be called again after reductions.
bool tsr__wide_init(struct wide *wide, const struct core *core, struct heap *heap)
{
    *wide =
        (struct wide){.core = core, .heap = heap, .n_rows = core->n_rows, .bound = core->row_bound};
    uint32_t *dense = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    wide->node = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    wide->k = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    wide->cost = HEAP_ARRAY(heap, int64_t *, (size_t)core->n_nodes + 1);
    wide->edges = HEAP_ARRAY(heap, struct tree_edge, (size_t)core->edges.n + 1);
    wide->first = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 2);
    if (heap->failed)
        return false;
    number_nodes(wide, dense);
    number_edges(wide, dense);
    tsr__heap_free(heap, dense);
    wide->scale = 1;
    for (uint32_t row = 0; row < wide->n_rows; row++)
        wide->scale = int64_max(wide->scale, wide->bound[row]);
    return fill_touch(wide) && fill_uses(wide);
}

int64_t tsr__wide_cost(const struct wide *wide, const uint32_t *x)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < wide->n; v++)
        sum = plus(sum, wide->cost[v][x[v]]);
    for (uint32_t i = 0; i < wide->n_edges; i++) {
        const struct tree_edge *edge = &wide->edges[i];
        sum = plus(sum, edge->cell[(size_t)x[edge->a] * wide->k[edge->b] + x[edge->b]]);
    }
    return sum;
}

// By a difference array and prefix sums. load has n_rows + 1 entries.
void tsr__wide_load(const struct wide *wide, const uint32_t *x, int64_t *load)
{
    memset(load, 0, ((size_t)wide->n_rows + 1) * sizeof(int64_t));
    for (uint32_t v = 0; v < wide->n; v++)
        for (uint32_t i = wide->first_use[v]; i < wide->first_use[v + 1]; i++) {
            int64_t usage = wide->uses[i].usage[x[v]];
            load[wide->uses[i].begin] += usage;
            load[wide->uses[i].end] -= usage;
        }
    for (uint32_t row = 1; row < wide->n_rows; row++)
        load[row] += load[row - 1];
}

uint32_t tsr__wide_worst(const struct wide *wide, const int64_t *load)
{
    uint32_t worst = NONE;
    for (uint32_t row = 0; row < wide->n_rows; row++)
        if (load[row] > wide->bound[row] &&
            (worst == NONE || load[row] - wide->bound[row] > load[worst] - wide->bound[worst]))
            worst = row;
    return worst;
}

// Returns INT64_MIN if there are no rows.
int64_t tsr__wide_excess(const struct wide *wide, const int64_t *load)
{
    int64_t most = INT64_MIN;
    for (uint32_t row = 0; row < wide->n_rows; row++)
        most = int64_max(most, load[row] - wide->bound[row]);
    return most;
}
