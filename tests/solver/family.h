// SPDX-License-Identifier: Apache-2.0
// family.h - synthetic problems like those of compilers: many nodes with one choice per layout;
// edges that allow equal layouts only (aliases) or charge for a change; hubs with hundreds of
// edges; lifetimes, and one usage limit that is tight at many times. A planted solution keeps the
// limit, so the problem is feasible.
#ifndef TESTS_PLAN_FAMILY_H
#define TESTS_PLAN_FAMILY_H

#include "random_program.h"

struct family {
    uint32_t nodes, layouts;   // layouts: choices of the largest node
    uint32_t window;           // how far back an edge reaches: treewidth
    uint32_t edges;            // per node, in tenths
    uint32_t aliases;          // percent of the possible edges
    uint32_t hubs, hub_degree; // nodes that live from start to end, and their edges
    uint32_t life;             // longest life time of other nodes, in nodes
    uint32_t spare;            // per mille of the planted peak by which the limit exceeds it
    uint32_t thrifty;          // percent of the nodes whose planted layout uses little
    uint64_t seed;
};
static const struct family FAMILY = {
    .nodes = 1000,
    .layouts = 12,
    .window = 40,
    .edges = 16,
    .aliases = 40,
    .hubs = 4,
    .hub_degree = 100,
    .life = 12,
    .spare = 20,
    .thrifty = 85,
    .seed = 1,
};

struct family_node {
    uint32_t k, planted; // planted: choice
    uint32_t *layout;    // by choice
    int64_t size;
};
struct family_made {
    struct program *p;
    struct arena *arena;
    const struct family *f;
    uint64_t seed;
    struct family_node *nodes;
    uint32_t *planted; // choices of the planted solution
    uint32_t *begin, *end;
};

// Devices that share a value in this layout; layout 0 is replicated.
static inline int64_t family_tiles(uint32_t layout)
{
    static const int64_t tiles[] = {1, 2, 4, 8, 4, 16, 8, 32, 2, 32, 16, 8};
    return tiles[layout % TSR_COUNT(tiles)];
}

// Cost of a layout change: the fewer tiles they share, the more; replicated to sharded is free.
static inline int64_t family_change(uint32_t from, uint32_t to, int64_t size)
{
    if (from == to || from == 0)
        return 0;
    int64_t most = family_tiles(from) > family_tiles(to) ? family_tiles(from) : family_tiles(to);
    int64_t step = (from * 7 + to * 13) % 5 + 1;
    return size / family_tiles(from) * step + size / most / 4 + (to == 0 ? size : 0);
}

static inline void family_node(struct family_made *m, uint32_t v)
{
    struct family_node *n = &m->nodes[v];
    const struct family *f = m->f;
    n->size = (int64_t)64 << draw(&m->seed) % 16;
    n->k = 1 + (uint32_t)(draw(&m->seed) % f->layouts);
    if (draw(&m->seed) % 3 == 0)
        n->k = f->layouts;
    n->layout = ARENA_ARRAY(m->arena, uint32_t, n->k);
    int64_t *cost = ARENA_ARRAY(m->arena, int64_t, n->k),
            *usage = ARENA_ARRAY(m->arena, int64_t, n->k);
    uint32_t first = (uint32_t)(draw(&m->seed) % f->layouts), frugal = 0;
    for (uint32_t c = 0; c < n->k; c++) {
        n->layout[c] = (first + c) % f->layouts;
        usage[c] = n->size / family_tiles(n->layout[c]) + 8;
        cost[c] = n->size / family_tiles(n->layout[c]) / 2 + (int64_t)(draw(&m->seed) % 16);
        if (draw(&m->seed) % 4 == 0) // needs a reduction
            cost[c] += n->size * (int64_t)(1 + draw(&m->seed) % 3) / 2;
        // Finer tiles move more: layouts that use little cost more.
        cost[c] += n->size / 16 * family_tiles(n->layout[c]) / (int64_t)(1 + draw(&m->seed) % 4);
        if (usage[c] < usage[frugal])
            frugal = c;
    }
    bool thrifty = draw(&m->seed) % 100 < f->thrifty;
    n->planted = thrifty ? frugal : (uint32_t)(draw(&m->seed) % n->k);
    m->planted[v] = n->planted;
    tsr__program_node(m->p, STR("node"), n->k, cost);
    uint32_t length = v < f->hubs ? f->nodes : 1 + (uint32_t)(draw(&m->seed) % f->life);
    m->begin[v] = v < f->hubs ? 0 : v;
    m->end[v] = m->begin[v] + length < f->nodes ? m->begin[v] + length : f->nodes;
    tsr__program_use(m->p, 0, v, m->begin[v], m->end[v], usage);
}

static inline void family_edge(struct family_made *m, uint32_t u, uint32_t v)
{
    const struct family_node *a = &m->nodes[u], *b = &m->nodes[v];
    bool alias =
        a->layout[a->planted] == b->layout[b->planted] && draw(&m->seed) % 100 < m->f->aliases;
    bool partly = !alias && draw(&m->seed) % 8 == 0; // some changes are not possible
    int64_t *cost = ARENA_ARRAY(m->arena, int64_t, (size_t)a->k * b->k);
    for (uint32_t i = 0; i < a->k; i++)
        for (uint32_t j = 0; j < b->k; j++) {
            int64_t *c = &cost[i * b->k + j];
            bool planted = i == a->planted && j == b->planted;
            *c = family_change(a->layout[i], b->layout[j], a->size);
            if (alias && a->layout[i] != b->layout[j])
                *c = COST_FORBIDDEN;
            if (partly && !planted && *c && draw(&m->seed) % 2)
                *c = COST_FORBIDDEN;
        }
    tsr__program_edge(m->p, u, v, cost);
}

static inline void family_edges(struct family_made *m)
{
    const struct family *f = m->f;
    for (uint32_t v = f->hubs + 1; v < f->nodes; v++) {
        uint32_t n = f->edges / 10 + (draw(&m->seed) % 10 < f->edges % 10);
        uint32_t reach = v - f->hubs < f->window ? v - f->hubs : f->window;
        for (uint32_t i = 0; i < n; i++) // mostly to near nodes, sometimes to far ones
            family_edge(
                m,
                v - 1 - (uint32_t)(draw(&m->seed) % (draw(&m->seed) % 2 ? reach : (reach + 7) / 8)),
                v);
    }
    for (uint32_t h = 0; h < f->hubs; h++)
        for (uint32_t i = 0; i < f->hub_degree && f->nodes > f->hubs; i++)
            family_edge(m, h, f->hubs + (uint32_t)(draw(&m->seed) % (f->nodes - f->hubs)));
}

// Returns the planted solution, one choice per node.
static inline const uint32_t *family_program(struct program *p, struct arena *a,
                                             const struct family *f)
{
    struct family_made m = {.p = p, .arena = a, .f = f, .seed = f->seed};
    tsr__program_init(p, a);
    tsr__program_limit(p, STR("usage"), 0, f->nodes);
    m.nodes = tsr__arena_array(a, f->nodes, sizeof(*m.nodes), 8);
    m.planted = ARENA_ARRAY(a, uint32_t, f->nodes);
    m.begin = ARENA_ARRAY(a, uint32_t, f->nodes);
    m.end = ARENA_ARRAY(a, uint32_t, f->nodes);
    for (uint32_t v = 0; v < f->nodes; v++)
        family_node(&m, v);
    family_edges(&m);
    int64_t peak = tsr__program_peak(p, 0, m.planted, NULL);
    p->limits.at[0].bound = peak + peak * (int64_t)f->spare / 1000;
    return m.planted;
}

#endif
