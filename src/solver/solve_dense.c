// SPDX-License-Identifier: Apache-2.0
// solve_dense.c - builds a view of the reduced core with densely numbered nodes.
//
// Example: the nodes 0, 3 and 7 of the core are left. Here they are 0, 1 and 2, and `node` is {0,
// 3, 7}. Tables, costs and usages are pointers into the core. The edges of a node are a range of
// `touch`: with edges 0-1 and 1-2, first is {0, 1, 3, 4} and touch {0, 0, 1, 1}.
#include "solve.h"

// Numbers the remaining nodes. to_dense[v] is the dense number of node v of the core. It is
// undefined for eliminated nodes.
static void number_nodes(struct dense *dense, uint32_t *to_dense)
{
    const struct core *core = dense->core;
    for (uint32_t v = 0; v < core->n_nodes; v++)
        if (!core->nodes[v].gone) {
            to_dense[v] = dense->n;
            dense->node[dense->n] = v;
            dense->k[dense->n] = core->nodes[v].k;
            dense->most_k = core->nodes[v].k > dense->most_k ? core->nodes[v].k : dense->most_k;
            dense->cost[dense->n++] = core->nodes[v].cost;
        }
}

// Copies the edges with dense node numbers and computes `first`: first[v + 1] at first counts the
// edges of v, then becomes the prefix sum.
static void number_edges(struct dense *dense, const uint32_t *to_dense)
{
    const struct core *core = dense->core;
    for (uint32_t i = 0; i < core->edges.n; i++) {
        const struct core_edge *edge = &core->edges.at[i];
        if (!edge->table)
            continue;
        dense->edges[dense->n_edges++] =
            (struct tree_edge){to_dense[edge->a], to_dense[edge->b], edge->table->cell};
        dense->first[to_dense[edge->a] + 1]++;
        dense->first[to_dense[edge->b] + 1]++;
    }
    for (uint32_t v = 0; v < dense->n; v++)
        dense->first[v + 1] += dense->first[v];
}

static bool fill_touch(struct dense *dense)
{
    uint32_t *at = HEAP_ARRAY(dense->heap, uint32_t, (size_t)dense->n + 1);
    dense->touch = HEAP_ARRAY(dense->heap, uint32_t, 2 * (size_t)dense->n_edges + 1);
    if (dense->heap->failed)
        return false;
    memcpy(at, dense->first, dense->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < dense->n_edges; i++) {
        dense->touch[at[dense->edges[i].a]++] = i;
        dense->touch[at[dense->edges[i].b]++] = i;
    }
    tsr__heap_free(dense->heap, at);
    return true;
}

static bool fill_uses(struct dense *dense)
{
    uint32_t n = 0;
    dense->first_use = HEAP_ARRAY(dense->heap, uint32_t, (size_t)dense->n + 1);
    for (uint32_t v = 0; v < dense->n; v++)
        n += dense->core->nodes[dense->node[v]].uses.n;
    dense->uses = HEAP_ARRAY(dense->heap, struct dense_use, (size_t)n + 1);
    if (dense->heap->failed)
        return false;
    n = 0;
    for (uint32_t v = 0; v < dense->n; v++) {
        const struct core_node *node = &dense->core->nodes[dense->node[v]];
        for (uint32_t i = 0; i < node->uses.n; i++)
            dense->uses[n++] = (struct dense_use){node->uses.at[i].begin, node->uses.at[i].end,
                                                  node->uses.at[i].usage};
        dense->first_use[v + 1] = n;
    }
    return true;
}

// Builds the view of the core. May be called again after more reductions. Returns false if out of
// memory.
bool tsr__dense_init(struct dense *dense, const struct core *core, struct heap *heap)
{
    *dense = (struct dense){
        .core = core, .heap = heap, .n_rows = core->n_rows, .most_k = 1, .bound = core->row_bound};
    uint32_t *to_dense = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    dense->node = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    dense->k = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 1);
    dense->cost = HEAP_ARRAY(heap, int64_t *, (size_t)core->n_nodes + 1);
    dense->edges = HEAP_ARRAY(heap, struct tree_edge, (size_t)core->edges.n + 1);
    dense->first = HEAP_ARRAY(heap, uint32_t, (size_t)core->n_nodes + 2);
    if (heap->failed)
        return false;
    number_nodes(dense, to_dense);
    number_edges(dense, to_dense);
    tsr__heap_free(heap, to_dense);
    dense->scale = 1;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        dense->scale = int64_max(dense->scale, dense->bound[row]);
    return fill_touch(dense) && fill_uses(dense);
}

int64_t tsr__dense_cost(const struct dense *dense, const uint32_t *x)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < dense->n; v++)
        sum = plus(sum, dense->cost[v][x[v]]);
    for (uint32_t i = 0; i < dense->n_edges; i++) {
        const struct tree_edge *edge = &dense->edges[i];
        sum = plus(sum, edge->cell[(size_t)x[edge->a] * dense->k[edge->b] + x[edge->b]]);
    }
    return sum;
}

// Computes the usage of all rows, with a difference array and prefix sums. `load` has n_rows + 1
// entries.
void tsr__dense_load(const struct dense *dense, const uint32_t *x, int64_t *load)
{
    memset(load, 0, ((size_t)dense->n_rows + 1) * sizeof(int64_t));
    for (uint32_t v = 0; v < dense->n; v++)
        for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++) {
            int64_t usage = dense->uses[i].usage[x[v]];
            load[dense->uses[i].begin] += usage;
            load[dense->uses[i].end] -= usage;
        }
    for (uint32_t row = 1; row < dense->n_rows; row++)
        load[row] += load[row - 1];
}

uint32_t tsr__dense_worst(const struct dense *dense, const int64_t *load)
{
    uint32_t worst = NONE;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        if (load[row] > dense->bound[row] &&
            (worst == NONE || load[row] - dense->bound[row] > load[worst] - dense->bound[worst]))
            worst = row;
    return worst;
}

void tsr__dense_unary(const struct dense *dense, const double *prefix, int64_t *const *unary)
{
    for (uint32_t v = 0; v < dense->n; v++) {
        int64_t *out = unary[v];
        memcpy(out, dense->cost[v], dense->k[v] * sizeof *out);
        for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++) {
            const struct dense_use *use = &dense->uses[i];
            double p = prefix[use->end] - prefix[use->begin];
            for (uint32_t choice = 0; p > 0 && choice < dense->k[v]; choice++) {
                double x = p * (double)use->usage[choice];
                out[choice] = plus(out[choice], x < (double)NEVER ? (int64_t)x : NEVER);
            }
        }
    }
}
