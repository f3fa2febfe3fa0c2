// SPDX-License-Identifier: Apache-2.0
// solve.c - the solver: depth-first search with the sums of least costs as bound.
#include "program.h"

struct dfs {
    const struct program *p;
    struct arena *arena;
    uint32_t *choice, *best;
    int64_t *rest; // least cost of nodes and edges that are decided at node v or later
    int64_t cost;
    uint64_t work, work_limit;
    uint32_t pinned, pin; // node that must take choice pin, or UINT32_MAX
    bool found;
};

// Cost of choice c at v and of its edges to earlier nodes.
static int64_t step_cost(const struct dfs *d, uint32_t v, uint32_t c)
{
    int64_t sum = d->p->nodes.at[v].cost[c];
    if (sum == COST_FORBIDDEN || (d->pinned == v && d->pin != c))
        return COST_FORBIDDEN;
    for (size_t i = 0; i < d->p->edges.n; i++) {
        const struct program_edge *e = &d->p->edges.at[i];
        if ((e->a > e->b ? e->a : e->b) != v)
            continue;
        uint32_t ca = e->a == v ? c : d->choice[e->a], cb = e->b == v ? c : d->choice[e->b];
        int64_t x = e->cost[(size_t)ca * d->p->nodes.at[e->b].k + cb];
        if (x == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        sum += x;
    }
    return sum;
}

static bool within_limits(const struct dfs *d)
{
    for (uint32_t l = 0; l < d->p->limits.n; l++)
        if (tsr__program_peak(d->p, l, d->choice, NULL) > d->p->limits.at[l].bound)
            return false;
    return true;
}

static void visit(struct dfs *d, uint32_t v, int64_t cost)
{
    if (v == d->p->nodes.n) {
        if (within_limits(d)) {
            memcpy(d->best, d->choice, v * sizeof(*d->best));
            d->cost = cost;
            d->found = true;
        }
        return;
    }
    for (uint32_t c = 0; c < d->p->nodes.at[v].k && d->work < d->work_limit; c++) {
        d->work++;
        d->choice[v] = c;
        int64_t step = step_cost(d, v, c);
        if (step != COST_FORBIDDEN && (!d->found || cost + step + d->rest[v + 1] < d->cost))
            visit(d, v + 1, cost + step);
    }
}

static int64_t table_least(const int64_t *cost, size_t n)
{
    int64_t least = COST_FORBIDDEN;
    for (size_t i = 0; i < n; i++)
        least = cost[i] < least ? cost[i] : least;
    return least == COST_FORBIDDEN ? 0 : least;
}

static tsr_status dfs_init(struct dfs *d, const struct program *p, const struct program_options *o,
                           struct arena *a)
{
    size_t n = p->nodes.n;
    *d = (struct dfs){.p = p, .arena = a, .pinned = UINT32_MAX};
    d->work_limit = o && o->work ? o->work : UINT64_C(4000000000);
    d->choice = ARENA_ARRAY(a, uint32_t, n + 1);
    d->best = ARENA_ARRAY(a, uint32_t, n + 1);
    d->rest = ARENA_ARRAY(a, int64_t, n + 1);
    if (a->failed)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++)
        d->rest[i] = table_least(p->nodes.at[i].cost, p->nodes.at[i].k);
    for (size_t i = 0; i < p->edges.n; i++) {
        const struct program_edge *e = &p->edges.at[i];
        d->rest[e->a > e->b ? e->a : e->b] +=
            table_least(e->cost, (size_t)p->nodes.at[e->a].k * p->nodes.at[e->b].k);
    }
    for (size_t i = n; i-- > 0;)
        d->rest[i] += d->rest[i + 1];
    return TSR_OK;
}

static void dfs_result(const struct dfs *d, struct program_result *out)
{
    bool complete = d->work < d->work_limit;
    *out = (struct program_result){
        .feasible = d->found,
        .optimal = d->found && complete,
        .infeasible = !d->found && complete,
        .choice = d->found ? d->best : NULL,
        .cost = d->found ? d->cost : COST_FORBIDDEN,
        .bound = d->found && complete ? d->cost : d->rest[0],
        .work = d->work,
    };
    double magnitude = out->cost < 0 ? -(double)out->cost : (double)out->cost;
    out->gap = !d->found ? 1 : (double)(out->cost - out->bound) / (magnitude > 1 ? magnitude : 1);
}

static tsr_status add_bindings(const struct program *p, struct arena *a, struct program_result *r)
{
    r->bindings = ARENA_ARRAY(a, struct program_binding, p->limits.n + 1);
    if (!r->bindings)
        return TSR_NOMEM;
    for (uint32_t l = 0; l < p->limits.n && r->feasible; l++) {
        struct program_binding b = {.limit = l};
        b.used = tsr__program_peak(p, l, r->choice, &b.time);
        if (b.used == p->limits.at[l].bound)
            r->bindings[r->n_bindings++] = b;
    }
    return TSR_OK;
}

tsr_status tsr__program_solve(const struct program *p, const struct program_options *o,
                              struct arena *a, struct program_result *out)
{
    struct dfs d;
    tsr_status st = tsr__program_check(p);
    if (st == TSR_OK)
        st = dfs_init(&d, p, o, a);
    if (st != TSR_OK)
        return st;
    visit(&d, 0, 0);
    dfs_result(&d, out);
    return add_bindings(p, a, out);
}

tsr_status tsr__program_least(const struct program *p, const struct program_options *o,
                              struct arena *a, struct program_least *out)
{
    // Bisection over the bound that all limits have.
    struct program q = *p;
    struct program_result r;
    memset(out, 0, sizeof(*out));
    int64_t low = 0, high = PROGRAM_MOST;
    q.limits.at = ARENA_ARRAY(a, struct program_limit, p->limits.n + 1);
    if (!q.limits.at)
        return TSR_NOMEM;
    memcpy(q.limits.at, p->limits.at, p->limits.n * sizeof(*p->limits.at));
    while (low <= high) {
        int64_t middle = out->found ? low + (high - low) / 2 : high;
        for (size_t l = 0; l < q.limits.n; l++)
            q.limits.at[l].bound = middle;
        tsr_status st = tsr__program_solve(&q, o, a, &r);
        if (st != TSR_OK)
            return st;
        out->work += r.work;
        if (!r.feasible && !out->found)
            return TSR_OK;
        if (!r.feasible) {
            low = middle + 1;
            continue;
        }
        out->found = true;
        out->choice = r.choice;
        out->least = 0;
        for (uint32_t l = 0; l < q.limits.n; l++) {
            uint32_t time;
            int64_t peak = tsr__program_peak(p, l, r.choice, &time);
            if (peak > out->least || l == 0) {
                out->least = peak;
                out->limit = l;
                out->time = time;
            }
        }
        high = out->least - 1;
    }
    out->bound = out->least;
    out->proved = out->found;
    return TSR_OK;
}

tsr_status tsr__program_marginals(const struct program *p, const struct program_options *o,
                                  struct arena *a, uint32_t node, struct program_marginal *out)
{
    struct dfs d;
    tsr_status st = tsr__program_check(p);
    for (uint32_t c = 0; st == TSR_OK && c < p->nodes.at[node].k; c++) {
        struct program_result r;
        st = dfs_init(&d, p, o, a);
        if (st != TSR_OK)
            break;
        d.pinned = node;
        d.pin = c;
        visit(&d, 0, 0);
        dfs_result(&d, &r);
        out[c] = (struct program_marginal){r.feasible, r.optimal, r.infeasible, r.cost, r.bound};
    }
    return st;
}
