// SPDX-License-Identifier: Apache-2.0
// random_program.h - small random programs, and their solutions by enumeration.
#ifndef TESTS_PLAN_RANDOM_PROGRAM_H
#define TESTS_PLAN_RANDOM_PROGRAM_H

#include "solver/solver.h"

struct shape {
    uint32_t nodes, choices; // maximum
    uint32_t edges;          // percent of all pairs
    uint32_t forbidden;      // percent of cells
    uint32_t limits, times;  // maximum
    uint32_t tight;          // percent: position of bounds between the least and the largest usage
    int64_t cost;            // largest magnitude
};

static inline uint64_t draw(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline int64_t *draw_table(struct arena *a, uint64_t *seed, size_t n, const struct shape *s)
{
    int64_t *t = ARENA_ARRAY(a, int64_t, n);
    for (size_t i = 0; i < n; i++)
        t[i] = draw(seed) % 100 < s->forbidden
                   ? COST_FORBIDDEN
                   : (int64_t)(draw(seed) % (uint64_t)(2 * s->cost + 1)) - s->cost / 2;
    return t;
}

static inline void draw_limit(struct program *p, struct arena *a, uint64_t *seed,
                              const struct shape *s)
{
    uint32_t times = 1 + (uint32_t)(draw(seed) % s->times);
    uint32_t l = tsr__program_limit(p, STR("limit"), 0, times);
    int64_t least = 0, most = 0;
    for (uint32_t v = 0; v < p->nodes.n; v++) {
        if (draw(seed) % 4 == 0)
            continue;
        int64_t *usage = ARENA_ARRAY(a, int64_t, p->nodes.at[v].k);
        int64_t low = INT64_MAX, high = 0;
        for (uint32_t c = 0; c < p->nodes.at[v].k; c++) {
            usage[c] = (int64_t)(draw(seed) % 16);
            low = usage[c] < low ? usage[c] : low;
            high = usage[c] > high ? usage[c] : high;
        }
        uint32_t begin = (uint32_t)(draw(seed) % times);
        uint32_t end = begin + (uint32_t)(draw(seed) % (times - begin + 1));
        tsr__program_use(p, l, v, begin, end, usage);
        least += low;
        most += high;
    }
    p->limits.at[l].bound = least / 2 + (most - least / 2) * (int64_t)(draw(seed) % s->tight) / 100;
}

static inline void draw_program(struct program *p, struct arena *a, uint64_t seed,
                                const struct shape *s)
{
    tsr__program_init(p, a);
    uint32_t n = 1 + (uint32_t)(draw(&seed) % s->nodes);
    for (uint32_t v = 0; v < n; v++) {
        uint32_t k = 1 + (uint32_t)(draw(&seed) % s->choices);
        struct shape less = *s;
        less.forbidden /= 4;
        tsr__program_node(p, STR("node"), k, draw_table(a, &seed, k, &less));
    }
    for (uint32_t u = 0; u < n; u++)
        for (uint32_t v = 0; v < n; v++)
            if (u != v && draw(&seed) % 200 < s->edges)
                tsr__program_edge(
                    p, u, v, draw_table(a, &seed, (size_t)p->nodes.at[u].k * p->nodes.at[v].k, s));
    uint32_t limits = s->limits ? (uint32_t)(draw(&seed) % (s->limits + 1)) : 0;
    for (uint32_t i = 0; i < limits; i++)
        draw_limit(p, a, &seed, s);
}

struct truth {
    int64_t cost;         // of the optimum; COST_FORBIDDEN: infeasible
    int64_t least;        // -1: everything is forbidden
    int64_t marginal[16]; // of node 0
};

static inline struct truth try_everything(const struct program *p)
{
    struct truth t = {.cost = COST_FORBIDDEN, .least = -1};
    uint32_t choice[16] = {0};
    for (int i = 0; i < 16; i++)
        t.marginal[i] = COST_FORBIDDEN;
    for (;;) {
        int64_t cost = tsr__program_cost(p, choice), peak = 0;
        bool fits = true;
        for (uint32_t l = 0; l < p->limits.n && cost != COST_FORBIDDEN; l++) {
            int64_t used = tsr__program_peak(p, l, choice, NULL);
            peak = used > peak ? used : peak;
            fits &= used <= p->limits.at[l].bound;
        }
        if (cost != COST_FORBIDDEN && (t.least < 0 || peak < t.least))
            t.least = peak;
        if (fits && cost < t.cost)
            t.cost = cost;
        if (fits && cost < t.marginal[choice[0]])
            t.marginal[choice[0]] = cost;
        uint32_t v = 0;
        while (v < p->nodes.n && ++choice[v] == p->nodes.at[v].k)
            choice[v++] = 0;
        if (v == p->nodes.n)
            return t;
    }
}

#endif
