// SPDX-License-Identifier: Apache-2.0
// solve_exact.c - the bound of a pass down, in whole numbers, so that it can prove an answer to the last unit.
//
// Any messages that went up give a bound: going down, a node's least entry goes to the bound, what is left of the node is shared
// among its earlier edges, and each of them passes on what it can without becoming negative. Here all of it is done with
// integers that are a power of two finer than the costs. Whatever is rounded is rounded down, which only lowers the bound.
#include "solve_dual.h"

#include <math.h>

__extension__ typedef __int128 integer;

#define ROOM (INT64_C(1) << 57)

struct exact {
    const struct dual *d;
    int shift;
    integer bound;
    int64_t **down;       // by edge: the message to its earlier node
    int64_t *sum, *parts; // scratch: one entry per choice
    bool failed;
};

static int64_t finer(const struct exact *x, double y)
{
    double z = ldexp(y, x->shift);
    return z > (double)ROOM ? ROOM : z < -(double)ROOM ? -ROOM : (int64_t)floor(z);
}

static int64_t cell(const struct exact *x, int64_t cost)
{
    int64_t most = ROOM >> x->shift;
    return cost >= NEVER ? NEVER : cost > most ? ROOM : cost * (INT64_C(1) << x->shift);
}

static int64_t settle(struct exact *x, integer y)
{
    x->failed |= y < -ROOM;
    return y > ROOM ? ROOM : (int64_t)y;
}

// What the prices add to a choice, no more than exactly: sums of doubles err by less than the last term.
static double paid(const struct dual *d, const struct wide_use *u, uint32_t c)
{
    double p = d->prefix[u->end] - d->prefix[u->begin], usage = (double)u->usage[c];
    double all = d->prefix[d->w->n_rows];
    return p > 0 ? p * usage - ldexp(all * usage, -44) : 0;
}

static void gather(struct exact *x, uint32_t v)
{
    const struct wide *w = x->d->w;
    for (uint32_t c = 0; c < w->k[v]; c++) {
        integer sum = cell(x, w->cost[v][c]);
        for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++)
            sum += finer(x, paid(x->d, &w->uses[i], c));
        for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
            uint32_t i = w->touch[t];
            bool a = w->edges[i].a == v;
            bool later = (a ? w->edges[i].b : w->edges[i].a) > v;
            sum += later ? x->down[i][c] : finer(x, (a ? x->d->to_a : x->d->to_b)[i][c]);
        }
        x->sum[c] = settle(x, sum);
    }
}

static void take_least(struct exact *x, int64_t *m, uint32_t k)
{
    int64_t least = m[0];
    for (uint32_t c = 1; c < k; c++)
        least = m[c] < least ? m[c] : least;
    for (uint32_t c = 0; c < k; c++)
        m[c] = settle(x, (integer)m[c] - least);
    x->bound += least;
}

// Over edge i to its earlier node, with one of `shares` equal shares of v.
static void send(struct exact *x, uint32_t v, uint32_t i, int64_t shares)
{
    const struct wide *w = x->d->w;
    const struct tree_edge *e = &w->edges[i];
    bool a = e->a == v;
    uint32_t kv = w->k[v], ko = w->k[a ? e->b : e->a];
    size_t step = a ? 1 : w->k[e->b], row = a ? w->k[e->b] : 1;
    int64_t *out = x->down[i];
    for (uint32_t c = 0; c < kv; c++)
        x->parts[c] = x->sum[c] / shares - finer(x, (a ? x->d->to_a : x->d->to_b)[i][c]);
    for (uint32_t o = 0; o < ko; o++) {
        integer least = ROOM;
        for (uint32_t c = 0; c < kv; c++) {
            int64_t y = cell(x, e->cell[c * row + o * step]);
            if (y < NEVER && (integer)x->parts[c] + y < least)
                least = (integer)x->parts[c] + y;
        }
        out[o] = settle(x, least);
    }
    take_least(x, out, ko);
}

static void down_from(struct exact *x, uint32_t v)
{
    const struct wide *w = x->d->w;
    gather(x, v);
    take_least(x, x->sum, w->k[v]);
    int64_t shares = llrint(1 / x->d->gamma[v]);
    for (uint32_t t = w->first[v]; t < w->first[v + 1]; t++) {
        uint32_t i = w->touch[t];
        if ((w->edges[i].a == v ? w->edges[i].b : w->edges[i].a) < v)
            send(x, v, i, shares);
    }
}

static bool make_room(struct exact *x, uint32_t most)
{
    const struct wide *w = x->d->w;
    x->down = HEAP_ARRAY(w->heap, int64_t *, (size_t)w->n_edges + 1);
    x->sum = HEAP_ARRAY(w->heap, int64_t, most);
    x->parts = HEAP_ARRAY(w->heap, int64_t, most);
    for (uint32_t i = 0; x->down && i < w->n_edges; i++) {
        const struct tree_edge *e = &w->edges[i];
        x->down[i] = HEAP_ARRAY(w->heap, int64_t, w->k[e->a < e->b ? e->a : e->b]);
    }
    return !w->heap->failed;
}

static void free_room(struct exact *x)
{
    const struct wide *w = x->d->w;
    for (uint32_t i = 0; x->down && i < w->n_edges; i++)
        tsr__heap_free(w->heap, x->down[i]);
    tsr__heap_free(w->heap, x->down);
    tsr__heap_free(w->heap, x->sum);
    tsr__heap_free(w->heap, x->parts);
}

int64_t tsr__dual_exact(const struct dual *d)
{
    const struct wide *w = d->w;
    struct exact x = {.d = d};
    double pays = 0;
    uint32_t most = 1;
    for (uint32_t v = 0; v < w->n; v++)
        most = w->k[v] > most ? w->k[v] : most;
    for (uint32_t r = 0; r < w->n_rows; r++)
        pays += d->lambda[r] * (double)w->bound[r];
    x.shift = (int)floor(log2((double)ROOM / 16 / (fabs(d->bound) + pays + 1)));
    if (x.shift >= 0 && make_room(&x, most))
        for (uint32_t v = w->n; v-- > 0 && !x.failed;)
            down_from(&x, v);
    free_room(&x);
    double over = ldexp(pays * (1 + ldexp(1, -44)), x.shift);
    if (w->heap->failed || x.failed || x.shift < 0 || over > (double)ROOM)
        return 0;
    integer units = (integer)1 << x.shift, bound = x.bound - (integer)ceil(over);
    return bound <= 0 ? 0 : (int64_t)((bound + units - 1) / units);
}
