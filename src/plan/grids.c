// SPDX-License-Identifier: Apache-2.0
// grids.c - the placements that are tried: the devices are seen as a line or as a grid; each axis cuts one factor of the
// rule or none.
#include "plan/candidates.h"

// A grid of devices: coordinate on axis i is device / stride % size.
struct grid {
    int n;
    int64_t size[PLAN_MAX_AXES], stride[PLAN_MAX_AXES];
    const int64_t *devices; // NULL: all
    int64_t n_devices;
};

static bool place_on(struct making *m, const struct grid *g, const int *factor)
{
    const struct rule *r = m->rule;
    size_t n = (size_t)r->n_factors;
    struct placement *q = &m->place;
    *q = (struct placement){.rule = r, .devices = m->p->all, .n_devices = (size_t)m->p->n};
    if (g->devices) {
        q->devices = (int64_t *)g->devices;
        q->n_devices = (size_t)g->n_devices;
    }
    q->cuts = ARENA_ARRAY(m->a, int64_t, n + 1);
    q->coords = ARENA_ARRAY(m->a, int64_t, q->n_devices * n + 1);
    if (!q->cuts || !q->coords)
        return false;
    for (size_t f = 0; f < n; f++)
        q->cuts[f] = 1;
    for (int i = 0; i < g->n; i++) {
        if (factor[i] < 0)
            continue;
        for (size_t d = 0; d < q->n_devices; d++)
            q->coords[d * n + (size_t)factor[i]] =
                q->coords[d * n + (size_t)factor[i]] * g->size[i] +
                (int64_t)d / g->stride[i] % g->size[i];
        q->cuts[factor[i]] *= g->size[i];
    }
    return true;
}

static bool may_cut(const struct rule_factor *f, int64_t size, int64_t cuts)
{
    return (f->kind == FACTOR_PAR || f->kind == FACTOR_RED) && size > 1 &&
           tsr__unit_fits(f, size, cuts);
}

// Takes one grid with one factor (or -1) for each axis.
static void try_grid(struct making *m, struct grid g, const int *factor)
{
    struct arena scratch;
    int64_t stride = 1;
    for (int i = g.n; i-- > 0; stride *= g.size[i])
        g.stride[i] = stride;
    tsr__arena_init(&scratch, m->p->session);
    m->a = &scratch;
    if (place_on(m, &g, factor))
        (void)tsr__making_take(m);
    m->p->arena.failed = m->p->arena.failed || scratch.failed;
    tsr__arena_free(&scratch);
}

// Cuts of factor f in d parts, and of another in the rest, along the other axis.
static void try_pairs(struct making *m, int f, int64_t d, const int64_t *sizes)
{
    struct grid g = {.n = 2, .size = {d, m->p->n / d}};
    m->spread = d == sizes[f];
    try_grid(m, g, (int[]){f, -1});
    m->spread = false;
    for (int h = 0; h < m->rule->n_factors; h++)
        if (h != f && may_cut(&m->rule->factors[h], sizes[h], g.size[1]))
            try_grid(m, g, (int[]){f, h});
}

// On the grid that the devices form: a factor for each axis, or none. One that has several axes is cut by all of them.
static void try_axes(struct making *m, const struct grid *g, const int64_t *sizes, int *factor,
                     int axis)
{
    if (axis == g->n) {
        int idle = 0;
        for (int i = 0; i < g->n; i++)
            idle += factor[i] < 0;
        if (idle < 2) // of three; of two, whole nodes are candidates already
            try_grid(m, *g, factor);
        return;
    }
    for (int f = -1; f < m->rule->n_factors; f++) {
        int64_t cuts = g->size[axis];
        for (int i = 0; f >= 0 && i < axis; i++)
            cuts *= factor[i] == f ? g->size[i] : 1;
        if (f >= 0 && !may_cut(&m->rule->factors[f], sizes[f], cuts))
            continue;
        factor[axis] = f;
        try_axes(m, g, sizes, factor, axis + 1);
    }
}

static void try_wired(struct making *m, const int64_t *sizes)
{
    const tsr_topology *t = m->p->topology;
    struct grid g = {0};
    int64_t left = m->p->n;
    int factor[PLAN_MAX_AXES];
    for (int i = 0; i < t->n_grid && g.n < PLAN_MAX_AXES && left > 1; i++) {
        bool last = g.n == PLAN_MAX_AXES - 1 || i == t->n_grid - 1;
        int64_t size = last ? left : t->grid[i];
        if (size < 2 || left % size)
            continue;
        g.size[g.n++] = size;
        left /= size;
    }
    if (g.n > 1 && left == 1)
        try_axes(m, &g, sizes, factor, 0);
}

// Every factor alone over all devices; those that are too small for that as often as they can be, with the other
// devices idle or at another factor.
// Devices that have more memory than others may do a node alone: the smaller ones are spared its weights.
static void try_larger(struct making *m, const int64_t *sizes)
{
    struct planner *p = m->p;
    int64_t *larger = ARENA_ARRAY(&p->arena, int64_t, (size_t)p->n + 1);
    int64_t least = INT64_MAX, n = 0;
    for (int64_t d = 0; larger && d < p->n; d++) {
        int64_t memory = p->topology->device[tsr__planner_device(p, d)].memory;
        least = memory < least ? memory : least;
    }
    for (int64_t d = 0; larger && d < p->n; d++)
        if (p->topology->device[tsr__planner_device(p, d)].memory > least)
            larger[n++] = d;
    struct grid g = {.n = 1, .size = {n}, .devices = larger, .n_devices = n};
    for (int f = -1; n > 0 && least > 0 && f < m->rule->n_factors; f++)
        if (f < 0 || (n > 1 && may_cut(&m->rule->factors[f], sizes[f], n)))
            try_grid(m, g, &f);
}

void tsr__making_grids(struct making *m)
{
    int64_t sizes[RULE_MAX_FACTORS];
    tsr__planner_sizes(m->p->told, m->node, m->rule, sizes);
    struct grid line = {.n = 1, .size = {m->p->n}};
    for (int f = 0; f < m->rule->n_factors; f++) {
        const struct rule_factor *factor = &m->rule->factors[f];
        m->stat = factor->kind == FACTOR_STAT;
        if (m->stat && sizes[f] > 1 && tsr__unit_fits(factor, sizes[f], m->p->n))
            try_grid(m, line, &f);
        m->stat = false;
        if (may_cut(factor, sizes[f], m->p->n)) {
            try_grid(m, line, &f);
            continue;
        }
        for (int64_t d = m->p->n - 1; d > 1; d--)
            if (m->p->n % d == 0 && may_cut(factor, sizes[f], d)) {
                try_pairs(m, f, d, sizes);
                break;
            }
    }
    if (!m->p->device && m->p->topology->n_grid > 1)
        try_wired(m, sizes);
    try_larger(m, sizes);
}
