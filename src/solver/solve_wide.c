// SPDX-License-Identifier: Apache-2.0
// solve_wide.c - the dense view of a wide core, and its sums.
#include "solve_wide.h"

static void number_nodes(struct wide *w, uint32_t *dense)
{
    const struct core *c = w->core;
    for (uint32_t v = 0; v < c->n_nodes; v++)
        if (!c->nodes[v].gone) {
            dense[v] = w->n;
            w->node[w->n] = v;
            w->k[w->n] = c->nodes[v].k;
            w->cost[w->n++] = c->nodes[v].cost;
        }
}

static void number_edges(struct wide *w, const uint32_t *dense)
{
    const struct core *c = w->core;
    for (uint32_t i = 0; i < c->edges.n; i++) {
        const struct core_edge *e = &c->edges.at[i];
        if (!e->table)
            continue;
        w->edges[w->n_edges++] = (struct tree_edge){dense[e->a], dense[e->b], e->table->cell};
        w->first[dense[e->a] + 1]++;
        w->first[dense[e->b] + 1]++;
    }
    for (uint32_t v = 0; v < w->n; v++)
        w->first[v + 1] += w->first[v];
}

static bool fill_touch(struct wide *w)
{
    uint32_t *at = HEAP_ARRAY(w->heap, uint32_t, (size_t)w->n + 1);
    w->touch = HEAP_ARRAY(w->heap, uint32_t, 2 * (size_t)w->n_edges + 1);
    if (w->heap->failed)
        return false;
    memcpy(at, w->first, w->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < w->n_edges; i++) {
        w->touch[at[w->edges[i].a]++] = i;
        w->touch[at[w->edges[i].b]++] = i;
    }
    tsr__heap_free(w->heap, at);
    return true;
}

static bool fill_uses(struct wide *w)
{
    uint32_t n = 0;
    w->first_use = HEAP_ARRAY(w->heap, uint32_t, (size_t)w->n + 1);
    for (uint32_t v = 0; v < w->n; v++)
        n += w->core->nodes[w->node[v]].uses.n;
    w->uses = HEAP_ARRAY(w->heap, struct wide_use, (size_t)n + 1);
    if (w->heap->failed)
        return false;
    n = 0;
    for (uint32_t v = 0; v < w->n; v++) {
        const struct core_node *c = &w->core->nodes[w->node[v]];
        for (uint32_t i = 0; i < c->uses.n; i++)
            w->uses[n++] =
                (struct wide_use){c->uses.at[i].begin, c->uses.at[i].end, c->uses.at[i].usage};
        w->first_use[v + 1] = n;
    }
    return true;
}

bool tsr__wide_init(struct wide *w, const struct core *c, struct heap *h)
{
    *w = (struct wide){.core = c, .heap = h, .n_rows = c->n_rows, .bound = c->row_bound};
    uint32_t *dense = HEAP_ARRAY(h, uint32_t, (size_t)c->n_nodes + 1);
    w->node = HEAP_ARRAY(h, uint32_t, (size_t)c->n_nodes + 1);
    w->k = HEAP_ARRAY(h, uint32_t, (size_t)c->n_nodes + 1);
    w->cost = HEAP_ARRAY(h, int64_t *, (size_t)c->n_nodes + 1);
    w->edges = HEAP_ARRAY(h, struct tree_edge, (size_t)c->edges.n + 1);
    w->first = HEAP_ARRAY(h, uint32_t, (size_t)c->n_nodes + 2);
    if (h->failed)
        return false;
    number_nodes(w, dense);
    number_edges(w, dense);
    tsr__heap_free(h, dense);
    w->scale = 1;
    for (uint32_t r = 0; r < w->n_rows; r++)
        w->scale = w->bound[r] > w->scale ? w->bound[r] : w->scale;
    return fill_touch(w) && fill_uses(w);
}

int64_t tsr__wide_cost(const struct wide *w, const uint32_t *x)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < w->n; v++)
        sum = plus(sum, w->cost[v][x[v]]);
    for (uint32_t i = 0; i < w->n_edges; i++) {
        const struct tree_edge *e = &w->edges[i];
        sum = plus(sum, e->cell[(size_t)x[e->a] * w->k[e->b] + x[e->b]]);
    }
    return sum;
}

void tsr__wide_load(const struct wide *w, const uint32_t *x, int64_t *load)
{
    memset(load, 0, ((size_t)w->n_rows + 1) * sizeof(int64_t));
    for (uint32_t v = 0; v < w->n; v++)
        for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
            int64_t usage = w->uses[i].usage[x[v]];
            load[w->uses[i].begin] += usage;
            load[w->uses[i].end] -= usage;
        }
    for (uint32_t r = 1; r < w->n_rows; r++)
        load[r] += load[r - 1];
}

int64_t tsr__wide_excess(const struct wide *w, const int64_t *load)
{
    int64_t most = INT64_MIN;
    for (uint32_t r = 0; r < w->n_rows; r++)
        if (load[r] - w->bound[r] > most)
            most = load[r] - w->bound[r];
    return most;
}
