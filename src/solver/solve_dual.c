// SPDX-License-Identifier: Apache-2.0
// solve_dual.c - tree-reweighted message passing with prices for rows.
//
// Any messages and any prices >= 0 give a valid bound: the sum of the least entries of all nodes and
// edges after the messages moved cost between them, less what the prices pay for the bounds. Passes
// raise it by themselves; a step of the prices follows the usage of the least entries.
#include "solve_dual.h"

#include <math.h>

#define FAR 1e30 // forbidden: larger than any sum of costs

static double **by_node(const struct wide *w, uint64_t *n)
{
    double **rows = HEAP_ARRAY(w->heap, double *, (size_t)w->n + 1);
    *n = 0;
    for (uint32_t v = 0; v < w->n; v++)
        *n += w->k[v];
    double *cells = HEAP_ARRAY(w->heap, double, *n + 1);
    for (uint32_t v = 0; rows && cells && v < w->n; v++) {
        rows[v] = cells;
        cells += w->k[v];
    }
    return rows;
}

static bool fill_edges(struct dual *d)
{
    const struct wide *w = d->w;
    for (uint32_t i = 0; i < w->n_edges; i++) {
        const struct tree_edge *e = &w->edges[i];
        size_t cells = (size_t)w->k[e->a] * w->k[e->b];
        d->table[i] = HEAP_ARRAY(d->heap, double, cells);
        d->to_a[i] = HEAP_ARRAY(d->heap, double, w->k[e->a]);
        d->to_b[i] = HEAP_ARRAY(d->heap, double, w->k[e->b]);
        if (d->heap->failed)
            return false;
        for (size_t c = 0; c < cells; c++)
            d->table[i][c] = e->cell[c] >= NEVER ? FAR : (double)e->cell[c];
        d->cells += 2 * cells + 32; // calls and small loops have their price too
    }
    return true;
}

static void fill_gamma(struct dual *d)
{
    const struct wide *w = d->w;
    for (uint32_t v = 0; v < w->n; v++) {
        uint32_t later = 0, earlier = 0;
        for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
            const struct tree_edge *e = &w->edges[w->touch[t]];
            if ((e->a == v ? e->b : e->a) > v)
                later++;
            else
                earlier++;
        }
        uint32_t most = later > earlier ? later : earlier;
        d->gamma[v] = 1.0 / (most ? most : 1);
    }
}

bool tsr__dual_init(struct dual *d, const struct wide *w)
{
    struct heap *h = w->heap;
    uint32_t k = 1;
    for (uint32_t v = 0; v < w->n; v++)
        k = w->k[v] > k ? w->k[v] : k;
    *d = (struct dual){.w = w, .heap = h, .best = -INFINITY};
    d->unary = by_node(w, &d->cells);
    d->table = HEAP_ARRAY(h, double *, (size_t)w->n_edges + 1);
    d->to_a = HEAP_ARRAY(h, double *, (size_t)w->n_edges + 1);
    d->to_b = HEAP_ARRAY(h, double *, (size_t)w->n_edges + 1);
    d->gamma = HEAP_ARRAY(h, double, (size_t)w->n + 1);
    d->lambda = HEAP_ARRAY(h, double, (size_t)w->n_rows + 1);
    d->best_lambda = HEAP_ARRAY(h, double, (size_t)w->n_rows + 1);
    d->prefix = HEAP_ARRAY(h, double, (size_t)w->n_rows + 1);
    d->sum = HEAP_ARRAY(h, double, k);
    d->rest = HEAP_ARRAY(h, double, k);
    d->argmin = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    if (h->failed || !fill_edges(d))
        return false;
    fill_gamma(d);
    tsr__dual_price(d);
    return true;
}

void tsr__dual_price(struct dual *d)
{
    const struct wide *w = d->w;
    d->prefix[0] = 0;
    for (uint32_t r = 0; r < w->n_rows; r++)
        d->prefix[r + 1] = d->prefix[r] + d->lambda[r];
    for (uint32_t v = 0; v < w->n; v++) {
        double *out = d->unary[v];
        for (uint32_t c = 0; c < w->k[v]; c++)
            out[c] = w->cost[v][c] >= NEVER ? FAR : (double)w->cost[v][c];
        for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
            const struct wide_use *u = &w->uses[i];
            double p = d->prefix[u->end] - d->prefix[u->begin];
            for (uint32_t c = 0; p > 0 && c < w->k[v]; c++)
                out[c] += p * (double)u->usage[c];
        }
    }
}

// ---- passes

void tsr__dual_gather(const struct dual *d, uint32_t v, double *sum)
{
    const struct wide *w = d->w;
    uint32_t k = w->k[v];
    memcpy(sum, d->unary[v], k * sizeof(double));
    for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
        uint32_t i = w->touch[t];
        const double *m = w->edges[i].a == v ? d->to_a[i] : d->to_b[i];
        for (uint32_t c = 0; c < k; c++)
            sum[c] += m[c];
    }
}

static double take_least(double *m, uint32_t k)
{
    double least = m[0];
    for (uint32_t c = 1; c < k; c++)
        least = m[c] < least ? m[c] : least;
    for (uint32_t c = 0; c < k; c++)
        m[c] -= least;
    return least;
}

// Message from the rows of a table to its columns, and from its columns to its rows.
HOT static void message_down(const double *table, const double *rest, uint32_t rows, uint32_t cols,
                             double *out)
{
    for (uint32_t j = 0; j < cols; j++)
        out[j] = 2 * FAR;
    for (uint32_t i = 0; i < rows; i++, table += cols) {
        double r = rest[i];
        for (uint32_t j = 0; j < cols; j++) {
            double x = r + table[j];
            out[j] = x < out[j] ? x : out[j];
        }
    }
}

HOT static void message_across(const double *table, const double *rest, uint32_t rows,
                               uint32_t cols, double *out)
{
    for (uint32_t i = 0; i < rows; i++, table += cols) {
        double least = 2 * FAR;
        for (uint32_t j = 0; j < cols; j++) {
            double x = rest[j] + table[j];
            least = x < least ? x : least;
        }
        out[i] = least;
    }
}

// Sends from v over edge i; what was normalised away is returned.
static double send(struct dual *d, uint32_t v, uint32_t i)
{
    const struct wide *w = d->w;
    const struct tree_edge *e = &w->edges[i];
    bool row = e->a == v;
    const double *back = row ? d->to_a[i] : d->to_b[i];
    for (uint32_t c = 0; c < w->k[v]; c++)
        d->rest[c] = d->sum[c] < FAR / 2 ? d->gamma[v] * d->sum[c] - back[c] : FAR;
    if (row)
        message_down(d->table[i], d->rest, w->k[e->a], w->k[e->b], d->to_b[i]);
    else
        message_across(d->table[i], d->rest, w->k[e->a], w->k[e->b], d->to_a[i]);
    return take_least(row ? d->to_b[i] : d->to_a[i], w->k[row ? e->b : e->a]);
}

static void send_all(struct dual *d, uint32_t v, bool later, double *bound)
{
    const struct wide *w = d->w;
    for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
        uint32_t i = w->touch[t];
        uint32_t o = w->edges[i].a == v ? w->edges[i].b : w->edges[i].a;
        if ((o > v) == later) {
            double least = send(d, v, i);
            if (bound)
                *bound += least;
        }
    }
}

void tsr__dual_pass(struct dual *d)
{
    const struct wide *w = d->w;
    for (uint32_t v = 0; v < w->n; v++) {
        tsr__dual_gather(d, v, d->sum);
        send_all(d, v, true, NULL);
    }
    double bound = 0;
    for (uint32_t v = w->n; v-- > 0;) {
        tsr__dual_gather(d, v, d->sum);
        uint32_t best = 0;
        for (uint32_t c = 1; c < w->k[v]; c++)
            if (d->sum[c] < d->sum[best])
                best = c;
        d->argmin[v] = best;
        bound += take_least(d->sum, w->k[v]);
        send_all(d, v, false, &bound);
    }
    double paid = 0;
    for (uint32_t r = 0; r < w->n_rows; r++)
        paid += d->lambda[r] * (double)w->bound[r];
    bound -= paid;
    d->bound = bound;
    if (bound > d->best) {
        d->best = bound;
        d->best_paid = paid;
        memcpy(d->best_lambda, d->lambda, w->n_rows * sizeof(double));
    }
}

void tsr__dual_round(struct dual *d, uint32_t *x)
{
    const struct wide *w = d->w;
    for (uint32_t v = 0; v < w->n; v++) {
        memcpy(d->sum, d->unary[v], w->k[v] * sizeof(double));
        for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
            uint32_t i = w->touch[t];
            const struct tree_edge *e = &w->edges[i];
            uint32_t o = e->a == v ? e->b : e->a, kb = w->k[e->b];
            const double *m = e->a == v ? d->to_a[i] : d->to_b[i];
            for (uint32_t c = 0; c < w->k[v]; c++)
                d->sum[c] += o > v       ? m[c]
                             : e->a == v ? d->table[i][(size_t)c * kb + x[o]]
                                         : d->table[i][(size_t)x[o] * kb + c];
        }
        uint32_t best = 0;
        for (uint32_t c = 1; c < w->k[v]; c++)
            if (d->sum[c] < d->sum[best])
                best = c;
        x[v] = best;
    }
}

// Least entry of an edge after the messages, and the entry of x.
static double edge_slack(const struct dual *d, uint32_t i, const uint32_t *x)
{
    const struct tree_edge *e = &d->w->edges[i];
    uint32_t ka = d->w->k[e->a], kb = d->w->k[e->b];
    double least = 2 * FAR;
    for (uint32_t a = 0; a < ka; a++)
        for (uint32_t b = 0; b < kb; b++) {
            double y = d->table[i][(size_t)a * kb + b] - d->to_a[i][a] - d->to_b[i][b];
            least = y < least ? y : least;
        }
    return d->table[i][(size_t)x[e->a] * kb + x[e->b]] - d->to_a[i][x[e->a]] - d->to_b[i][x[e->b]] -
           least;
}

void tsr__dual_slack(const struct dual *d, const uint32_t *x, double *slack)
{
    const struct wide *w = d->w;
    for (uint32_t v = 0; v < w->n; v++) {
        double least = 2 * FAR;
        tsr__dual_gather(d, v, d->sum);
        for (uint32_t c = 0; c < w->k[v]; c++)
            least = d->sum[c] < least ? d->sum[c] : least;
        slack[v] = d->sum[x[v]] - least;
    }
    for (uint32_t i = 0; i < w->n_edges; i++) {
        double y = edge_slack(d, i, x) / 2;
        slack[w->edges[i].a] += y;
        slack[w->edges[i].b] += y;
    }
}

void tsr__dual_step(struct dual *d, double target, int64_t *load)
{
    const struct wide *w = d->w;
    double norm = 0;
    tsr__wide_load(w, d->argmin, load);
    for (uint32_t r = 0; r < w->n_rows; r++) {
        double g = (double)(load[r] - w->bound[r]);
        if (g > 0 || d->lambda[r] > 0)
            norm += g * g;
    }
    if (norm <= 0)
        return;
    double alpha = (target - d->bound) / norm;
    for (uint32_t r = 0; r < w->n_rows; r++) {
        d->lambda[r] += alpha * (double)(load[r] - w->bound[r]);
        if (d->lambda[r] < 0)
            d->lambda[r] = 0;
    }
    tsr__dual_price(d);
}
