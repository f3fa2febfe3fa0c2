// SPDX-License-Identifier: Apache-2.0
// program.c - making, checking and evaluating a 0-1 program. Knows no solver.
#include "solver/solver.h"

void tsr__program_init(struct program *p, struct arena *a)
{
    memset(p, 0, sizeof(*p));
    p->arena = a;
}

uint32_t tsr__program_node(struct program *p, struct str name, uint32_t k, const int64_t *cost)
{
    struct program_node *n = vec_push(p->arena, &p->nodes);
    if (!n)
        return UINT32_MAX;
    *n = (struct program_node){.name = name, .k = k, .cost = cost};
    return (uint32_t)(p->nodes.n - 1);
}

void tsr__program_choices(struct program *p, uint32_t node, const struct str *names)
{
    if (node < p->nodes.n)
        p->nodes.at[node].choices = names;
}

void tsr__program_edge(struct program *p, uint32_t a, uint32_t b, const int64_t *cost)
{
    struct program_edge *e = vec_push(p->arena, &p->edges);
    if (e)
        *e = (struct program_edge){a, b, cost};
}

uint32_t tsr__program_limit(struct program *p, struct str name, int64_t bound, uint32_t n_times)
{
    struct program_limit *l = vec_push(p->arena, &p->limits);
    if (!l)
        return UINT32_MAX;
    l->name = name;
    l->bound = bound;
    l->n_times = n_times;
    return (uint32_t)(p->limits.n - 1);
}

void tsr__program_use(struct program *p, uint32_t limit, uint32_t node, uint32_t begin,
                      uint32_t end, const int64_t *usage)
{
    if (limit >= p->limits.n)
        return; // after a failure of the arena; tsr__program_check says so
    struct program_use *u = vec_push(p->arena, &p->limits.at[limit].uses);
    if (u)
        *u = (struct program_use){node, begin, end, usage};
}

// ---- checking

// Adds the largest magnitude of the table to sum; false where one is out of range.
static bool table_ok(const int64_t *table, size_t n, bool usage, int64_t *sum)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t c = table[i];
        if (c == COST_FORBIDDEN && !usage)
            continue;
        if (c > PROGRAM_MOST || c < (usage ? 0 : -PROGRAM_MOST))
            return false;
        int64_t magnitude = c < 0 ? -c : c;
        if (magnitude > most)
            most = magnitude;
    }
    return add_ok(*sum, most, sum) && *sum <= PROGRAM_MOST;
}

static bool costs_ok(const struct program *p)
{
    int64_t sum = 0;
    for (size_t i = 0; i < p->nodes.n; i++) {
        const struct program_node *n = &p->nodes.at[i];
        if (n->k == 0 || n->k > PROGRAM_MAX_CHOICES || !n->cost ||
            !table_ok(n->cost, n->k, false, &sum))
            return false;
    }
    for (size_t i = 0; i < p->edges.n; i++) {
        const struct program_edge *e = &p->edges.at[i];
        if (e->a >= p->nodes.n || e->b >= p->nodes.n || e->a == e->b || !e->cost)
            return false;
        size_t cells = (size_t)p->nodes.at[e->a].k * p->nodes.at[e->b].k;
        if (!table_ok(e->cost, cells, false, &sum))
            return false;
    }
    return true;
}

static bool limits_ok(const struct program *p)
{
    for (size_t i = 0; i < p->limits.n; i++) {
        const struct program_limit *l = &p->limits.at[i];
        int64_t sum = 0;
        if (l->n_times == 0 || l->bound > PROGRAM_MOST || l->bound < -PROGRAM_MOST)
            return false;
        for (size_t j = 0; j < l->uses.n; j++) {
            const struct program_use *u = &l->uses.at[j];
            if (u->node >= p->nodes.n || u->begin > u->end || u->end > l->n_times || !u->usage ||
                !table_ok(u->usage, p->nodes.at[u->node].k, true, &sum))
                return false;
        }
    }
    return true;
}

tsr_status tsr__program_check(const struct program *p)
{
    if (p->arena->failed)
        return TSR_NOMEM;
    if (p->nodes.n > PROGRAM_MAX_NODES || p->edges.n > UINT32_MAX / 4 ||
        p->limits.n > UINT32_MAX / 4)
        return TSR_INVALID;
    return costs_ok(p) && limits_ok(p) ? TSR_OK : TSR_INVALID;
}

// ---- evaluating

void tsr__program_times(const struct program_limit *l, uint8_t *kept)
{
    enum { BEGINS = 1, LAST = 2 };
    memset(kept, 0, l->n_times);
    for (size_t i = 0; i < l->uses.n; i++) {
        const struct program_use *u = &l->uses.at[i];
        if (u->begin < u->end) {
            kept[u->begin] |= BEGINS;
            kept[u->end - 1] |= LAST;
        }
    }
    bool grown = false, any = false; // since the last time that was kept
    for (uint32_t t = 0; t < l->n_times; t++) {
        grown |= (kept[t] & BEGINS) != 0;
        bool keep = grown && (kept[t] & LAST);
        kept[t] = keep;
        any |= keep;
        grown &= !keep;
    }
    if (!any)
        kept[0] = 1; // nothing is used: 0 against the bound
}

int64_t tsr__program_cost(const struct program *p, const uint32_t *choice)
{
    int64_t sum = 0;
    for (size_t i = 0; i < p->nodes.n; i++) {
        int64_t c = p->nodes.at[i].cost[choice[i]];
        if (c == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        sum += c;
    }
    for (size_t i = 0; i < p->edges.n; i++) {
        const struct program_edge *e = &p->edges.at[i];
        int64_t c = e->cost[(size_t)choice[e->a] * p->nodes.at[e->b].k + choice[e->b]];
        if (c == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        sum += c;
    }
    return sum;
}

int64_t tsr__program_peak(const struct program *p, uint32_t limit, const uint32_t *choice,
                          uint32_t *time)
{
    const struct program_limit *l = &p->limits.at[limit];
    size_t bytes = ((size_t)l->n_times + 1) * sizeof(int64_t);
    int64_t *change = tsr__alloc(p->arena->session, bytes);
    if (!change)
        return INT64_MAX;
    memset(change, 0, bytes);
    for (size_t i = 0; i < l->uses.n; i++) {
        const struct program_use *u = &l->uses.at[i];
        change[u->begin] += u->usage[choice[u->node]];
        change[u->end] -= u->usage[choice[u->node]];
    }
    int64_t now = 0, peak = INT64_MIN;
    for (uint32_t t = 0; t < l->n_times; t++) {
        now += change[t];
        if (now > peak) {
            peak = now;
            if (time)
                *time = t;
        }
    }
    tsr__free(p->arena->session, change, bytes);
    return peak;
}
