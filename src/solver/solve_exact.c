// SPDX-License-Identifier: Apache-2.0
// solve_exact.c - computes the dual bound of a pass down in integer arithmetic, so that it can
// prove optimality to the last unit.
//
// Any messages from the pass up give a valid bound. In the pass down, the least entry of a node
// goes to the bound and the rest is shared among its earlier edges. Each edge passes on as much as
// it can without becoming negative. Here all numbers are integers: costs times a power of two.
// Everything is rounded down, which can only lower the bound.
#include "solve.h"

#include <math.h>

// largest absolute value: sums of a few such numbers fit into 64 bits, sums of many are saturated
#define ROOM (INT64_C(1) << 57)

// The state of one pass down. All numbers are costs times 2^shift.
struct exact {
    const struct dual *dual;
    int shift;
    int64_t bound;
    int64_t **down;       // by edge: the message to its earlier node
    int64_t *sum, *parts; // scratch: one entry per choice
    bool failed;
};

// Converts a double to units of 2^-shift, rounded down and limited to the range from -ROOM to ROOM.
static int64_t scale_down(const struct exact *exact, double y)
{
    double z = ldexp(y, exact->shift);
    if (z > (double)ROOM)
        return ROOM;
    return z < -(double)ROOM ? -ROOM : (int64_t)floor(z);
}

// Converts a cost to units of 2^-shift. Forbidden costs stay NEVER. A cost above ROOM becomes ROOM,
// which can only lower the bound.
static int64_t cell(const struct exact *exact, int64_t cost)
{
    int64_t most = ROOM >> exact->shift;
    if (cost >= NEVER)
        return NEVER;
    return cost > most ? ROOM : cost * (INT64_C(1) << exact->shift);
}

// Adds to a sum. A sum that is too large for 64 bits becomes the largest number, which can only
// lower the bound; one that is too small makes the pass fail.
static void add(struct exact *exact, int64_t *sum, int64_t more)
{
    if (add_ok(*sum, more, sum))
        return;
    exact->failed |= more < 0;
    *sum = INT64_MAX;
}

// Limits a sum to at most ROOM. A sum below -ROOM makes the pass fail.
static int64_t clamp(struct exact *exact, int64_t y)
{
    exact->failed |= y < -ROOM;
    return y > ROOM ? ROOM : y;
}

// Returns the cost that the multipliers add to a choice, rounded down by more than the rounding
// error of the sums.
static double multiplier_cost(const struct dual *dual, const struct dense_use *use, uint32_t choice)
{
    double p = dual->prefix[use->end] - dual->prefix[use->begin],
           usage = (double)use->usage[choice];
    double all = dual->prefix[dual->dense->n_rows];
    return p > 0 ? p * usage - ldexp(all * usage, -44) : 0;
}

// Sums the messages to v. Those from later nodes are integers of this pass. Those from earlier
// nodes come from the pass up and are rounded down.
static void gather(struct exact *exact, uint32_t v)
{
    const struct dense *dense = exact->dual->dense;
    for (uint32_t choice = 0; choice < dense->k[v]; choice++) {
        int64_t sum = cell(exact, dense->cost[v][choice]);
        for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++)
            add(exact, &sum,
                scale_down(exact, multiplier_cost(exact->dual, &dense->uses[i], choice)));
        for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
            uint32_t i = dense->touch[t];
            if ((dense->edges[i].a == v ? dense->edges[i].b : dense->edges[i].a) > v)
                add(exact, &sum, exact->down[i][choice]);
            else if (dense->edges[i].a == v)
                add(exact, &sum, scale_down(exact, exact->dual->to_a[i][choice]));
            else
                add(exact, &sum, scale_down(exact, exact->dual->to_b[i][choice]));
        }
        exact->sum[choice] = clamp(exact, sum);
    }
}

// Subtracts the least entry of m from all entries, and adds that entry to the bound.
static void take_least(struct exact *exact, int64_t *m, uint32_t k)
{
    int64_t least = m[0];
    for (uint32_t choice = 1; choice < k; choice++)
        least = int64_min(least, m[choice]);
    for (uint32_t choice = 0; choice < k; choice++)
        m[choice] = clamp(exact, m[choice] - least);
    add(exact, &exact->bound, least);
}

// Computes the message of v over edge i to its earlier node. The edge gets one of `shares` equal
// shares of the costs of v.
static void send(struct exact *exact, uint32_t v, uint32_t i, int64_t shares)
{
    const struct dense *dense = exact->dual->dense;
    const struct tree_edge *edge = &dense->edges[i];
    bool a = edge->a == v;
    uint32_t kv = dense->k[v], ko = dense->k[a ? edge->b : edge->a];
    // distances in the table between choices of the other node, and between choices of v
    size_t step = a ? 1 : dense->k[edge->b];
    size_t row = a ? dense->k[edge->b] : 1;
    int64_t *out = exact->down[i];
    for (uint32_t choice = 0; choice < kv; choice++)
        exact->parts[choice] =
            exact->sum[choice] / shares -
            scale_down(exact, (a ? exact->dual->to_a : exact->dual->to_b)[i][choice]);
    for (uint32_t o = 0; o < ko; o++) {
        int64_t least = ROOM;
        for (uint32_t choice = 0; choice < kv; choice++) {
            int64_t y = cell(exact, edge->cell[choice * row + o * step]);
            if (y < NEVER)
                least = int64_min(least, exact->parts[choice] + y);
        }
        out[o] = clamp(exact, least);
    }
    take_least(exact, out, ko);
}

// Processes one node in the pass down, as tsr__dual_pass does.
static void send_down(struct exact *exact, uint32_t v)
{
    const struct dense *dense = exact->dual->dense;
    gather(exact, v);
    take_least(exact, exact->sum, dense->k[v]);
    int64_t shares = llrint(1 / exact->dual->gamma[v]);
    for (uint32_t t = dense->first[v]; t < dense->first[v + 1]; t++) {
        uint32_t i = dense->touch[t];
        if ((dense->edges[i].a == v ? dense->edges[i].b : dense->edges[i].a) < v)
            send(exact, v, i, shares);
    }
}

// Allocates the messages and scratch memory. Returns false if out of memory.
static bool alloc_buffers(struct exact *exact, struct arena *arena)
{
    const struct dense *dense = exact->dual->dense;
    exact->down = ARENA_ARRAY(arena, int64_t *, (size_t)dense->n_edges + 1);
    exact->sum = ARENA_ARRAY(arena, int64_t, dense->most_k);
    exact->parts = ARENA_ARRAY(arena, int64_t, dense->most_k);
    for (uint32_t i = 0; exact->down && i < dense->n_edges; i++) {
        const struct tree_edge *edge = &dense->edges[i];
        exact->down[i] =
            ARENA_ARRAY(arena, int64_t, dense->k[edge->a < edge->b ? edge->a : edge->b]);
    }
    return !arena->failed;
}

// Computes the bound in integers. `shift` gives the finest unit for which all sums stay within
// ROOM: a bound of 1e9 leaves 23 bits. Returns 0, which is a valid bound, if numbers are too large
// or memory runs out.
int64_t tsr__dual_exact(const struct dual *dual)
{
    const struct dense *dense = dual->dense;
    struct exact x = {.dual = dual};
    struct arena arena = {.session = dense->heap->session};
    double pays = 0;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        pays += dual->lambda[row] * (double)dense->bound[row];
    x.shift = (int)floor(log2((double)ROOM / 16 / (fabs(dual->bound) + pays + 1)));
    if (x.shift >= 0 && alloc_buffers(&x, &arena))
        for (uint32_t v = dense->n; v-- > 0 && !x.failed;)
            send_down(&x, v);
    dense->heap->failed |= arena.failed;
    tsr__arena_free(&arena);
    // `pays` is a sum of doubles: subtract a little more than its rounding error
    double over = ldexp(pays * (1 + ldexp(1, -44)), x.shift);
    if (dense->heap->failed || x.failed || x.shift < 0 || over > (double)ROOM)
        return 0;
    int64_t units = INT64_C(1) << x.shift, bound = x.bound - (int64_t)ceil(over);
    return bound <= 0 ? 0 : bound / units + (bound % units != 0);
}
