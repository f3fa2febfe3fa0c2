// SPDX-License-Identifier: Apache-2.0
// decoder.h - a synthetic planning problem of a decoder-only transformer: 12 operators per layer on
// a mesh with a slow and a fast axis, each with at most ten strategies. Times are nanoseconds of a
// roofline model with ring collectives, plus noise so that layers differ. Weights have a memory
// limit.
#ifndef TESTS_PLAN_DECODER_H
#define TESTS_PLAN_DECODER_H

#include "random_program.h"

#include <stdlib.h>

enum { WHOLE, BATCH, TOKENS, FEATURES, CONTRACTED }; // what a mesh axis does in an operator
#define DECODER_WAYS 10

struct decoder {
    int layers;
    int axis[2];          // sizes of the mesh: slow, fast
    double bandwidth[2];  // bytes per ns
    double batch, tokens; // activations are batch x tokens x features, 2 bytes
    double width, inner;  // features
    int noise;            // per mille
    bool mask;            // one node that all layers read
    uint64_t seed;
};
static const struct decoder DECODER = {
    .layers = 96,
    .axis = {2, 4},
    .bandwidth = {25, 200},
    .batch = 8,
    .tokens = 1024,
    .width = 4096,
    .inner = 16384,
    .noise = 50,
    .seed = 1,
};

struct way {
    int use[2]; // by axis
    double time, bytes;
};
struct decoder_op { // in, out: features of input and output; the weight has in x out elements
    uint32_t node, k;
    double out;
    struct way ways[DECODER_WAYS];
};
struct decoder_made {
    struct program *p;
    struct arena *arena;
    const struct decoder *d;
    uint64_t seed;
    uint32_t limit;
    int64_t least, most; // smallest and largest memory of the weights
};

static inline double ring(const struct decoder *d, int axis, double bytes, double steps)
{
    double n = d->axis[axis];
    return steps * ((n - 1) / n * bytes / d->bandwidth[axis] + (n - 1) * 2000);
}

static inline struct way decoder_way(const struct decoder *d, const int use[2], double in,
                                     double out, bool weight)
{
    struct way w = {.use = {use[0], use[1]}};
    double work = d->batch * d->tokens * (weight ? in * out * 2 : out * 20), bytes = in * out * 2;
    double result = d->batch * d->tokens * out * 2;
    for (int a = 0; a < 2; a++) {
        if (use[a] != WHOLE)
            work /= d->axis[a];
        if (use[a] == FEATURES || use[a] == CONTRACTED)
            bytes /= d->axis[a];
        if (use[a] != WHOLE && use[a] != CONTRACTED)
            result /= d->axis[a];
    }
    w.time = work / 300000;
    w.bytes = weight ? bytes : 0;
    for (int a = 0; a < 2; a++)
        if (use[a] == CONTRACTED)
            w.time += ring(d, a, result, 2);
    return w;
}

static inline int way_order(const void *a, const void *b)
{
    const struct way *x = a, *y = b;
    return x->time < y->time ? -1 : x->time > y->time;
}

// Keeps the cheapest two thirds of the strategies, and random others.
static inline struct decoder_op decoder_add(struct decoder_made *m, struct str name, double in,
                                            double out, bool weight)
{
    struct way ways[25];
    uint32_t n = 0;
    int uses = weight ? 5 : 4;
    for (int a = 0; a < uses; a++)
        for (int b = 0; b < uses; b++)
            ways[n++] = decoder_way(m->d, (int[]){a, b}, in, out, weight);
    qsort(ways, n, sizeof(*ways), way_order);
    struct decoder_op op = {.out = out, .k = n < DECODER_WAYS ? n : DECODER_WAYS};
    int64_t *cost = ARENA_ARRAY(m->arena, int64_t, op.k);
    int64_t *bytes = ARENA_ARRAY(m->arena, int64_t, op.k), low = INT64_MAX, high = 0;
    for (uint32_t i = 0; i < op.k; i++) {
        uint32_t at = i < op.k * 2 / 3 ? i : i + (uint32_t)(draw(&m->seed) % (n - i));
        struct way swap = ways[i];
        ways[i] = ways[at];
        ways[at] = swap;
        op.ways[i] = ways[i];
        double noise = 1 + 1e-3 * (double)(draw(&m->seed) % (uint64_t)(m->d->noise + 1));
        cost[i] = (int64_t)(ways[i].time * noise);
        bytes[i] = (int64_t)ways[i].bytes;
        low = bytes[i] < low ? bytes[i] : low;
        high = bytes[i] > high ? bytes[i] : high;
    }
    op.node = tsr__program_node(m->p, name, op.k, cost);
    if (weight) {
        tsr__program_use(m->p, m->limit, op.node, 0, 1, bytes);
        m->least += low;
        m->most += high;
    }
    return op;
}

// Cost of resharding the output of one strategy for another: all-gathers where an axis moves.
static inline double decoder_reshard(const struct decoder *d, const struct way *from,
                                     const struct way *to, double features)
{
    double bytes = d->batch * d->tokens * features * 2, time = 0;
    for (int a = 0; a < 2; a++) {
        int have = from->use[a] == CONTRACTED ? WHOLE : from->use[a];
        int want = to->use[a] == CONTRACTED ? FEATURES : to->use[a];
        want = to->use[a] == FEATURES && to->bytes > 0 ? WHOLE : want; // columns read full rows
        if (have != WHOLE && have != want)
            time += ring(d, a, bytes, want == WHOLE ? 1 : 0.5);
    }
    return time;
}

static inline void decoder_edge(struct decoder_made *m, const struct decoder_op *u,
                                const struct decoder_op *v)
{
    int64_t *cost = ARENA_ARRAY(m->arena, int64_t, (size_t)u->k * v->k);
    for (uint32_t i = 0; i < u->k; i++)
        for (uint32_t j = 0; j < v->k; j++) {
            double noise = 1 + 1e-3 * (double)(draw(&m->seed) % (uint64_t)(m->d->noise + 1));
            cost[i * v->k + j] =
                (int64_t)(decoder_reshard(m->d, &u->ways[i], &v->ways[j], u->out) * noise);
        }
    tsr__program_edge(m->p, u->node, v->node, cost);
}

static inline struct decoder_op decoder_layer(struct decoder_made *m, struct decoder_op in,
                                              const struct decoder_op *mask)
{
    double h = m->d->width, f = m->d->inner;
    struct decoder_op ln1 = decoder_add(m, STR("ln1"), h, h, false);
    struct decoder_op q = decoder_add(m, STR("q"), h, h, true);
    struct decoder_op k = decoder_add(m, STR("k"), h, h, true);
    struct decoder_op v = decoder_add(m, STR("v"), h, h, true);
    struct decoder_op qk = decoder_add(m, STR("qk"), h, h, false);
    struct decoder_op av = decoder_add(m, STR("av"), h, h, false);
    struct decoder_op o = decoder_add(m, STR("o"), h, h, true);
    struct decoder_op add1 = decoder_add(m, STR("add1"), h, h, false);
    struct decoder_op ln2 = decoder_add(m, STR("ln2"), h, h, false);
    struct decoder_op up = decoder_add(m, STR("up"), h, f, true);
    struct decoder_op down = decoder_add(m, STR("down"), f, h, true);
    struct decoder_op add2 = decoder_add(m, STR("add2"), h, h, false);
    const struct decoder_op *edges[][2] = {
        {&in, &ln1}, {&ln1, &q},   {&ln1, &k},     {&ln1, &v},     {&q, &qk},    {&k, &qk},
        {&qk, &av},  {&v, &av},    {&av, &o},      {&o, &add1},    {&in, &add1}, {&add1, &ln2},
        {&ln2, &up}, {&up, &down}, {&down, &add2}, {&add1, &add2},
    };
    for (size_t i = 0; i < TSR_COUNT(edges); i++)
        decoder_edge(m, edges[i][0], edges[i][1]);
    if (mask)
        decoder_edge(m, mask, &qk);
    return add2;
}

// percent: position of the limit between the least and the largest usage; < 0: no limit.
static inline void decoder_program(struct program *p, struct arena *a, const struct decoder *d,
                                   int percent)
{
    struct decoder_made m = {.p = p, .arena = a, .d = d, .seed = d->seed};
    tsr__program_init(p, a);
    m.limit = tsr__program_limit(p, STR("weights"), 0, 1);
    struct decoder_op mask = {0};
    if (d->mask)
        mask = decoder_add(&m, STR("mask"), d->width, d->width, false);
    struct decoder_op last = decoder_add(&m, STR("embedding"), d->width, d->width, false);
    for (int i = 0; i < d->layers; i++)
        last = decoder_layer(&m, last, d->mask ? &mask : NULL);
    struct decoder_op norm = decoder_add(&m, STR("norm"), d->width, d->width, false);
    struct decoder_op head = decoder_add(&m, STR("head"), d->width, d->inner, true);
    decoder_edge(&m, &last, &norm);
    decoder_edge(&m, &norm, &head);
    if (percent < 0)
        p->limits.n = 0;
    else
        p->limits.at[m.limit].bound = m.least + (m.most - m.least) * percent / 100;
}

#endif
