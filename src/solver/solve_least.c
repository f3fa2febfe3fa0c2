// SPDX-License-Identifier: Apache-2.0
// solve_least.c - the least bound that all limits could have.
//
// Costs count for nothing but what is forbidden. The least that the fullest time needs alone is a
// lower bound, and often the answer; else the bound is bisected, each half proved by the solver.
#include "solver/solver.h"

#include <time.h>

#define WORK UINT64_C(4000000000)

struct least {
    const struct program *p;
    struct program_options left; // of the effort; all questions share it
    double end;                  // by the clock; 0: it does not matter
    struct arena *arena;
    struct program q; // p with costs 0
    struct program_least *out;
};

static const int64_t *only_forbidden(struct arena *a, const int64_t *cost, size_t n)
{
    int64_t *out = ARENA_ARRAY(a, int64_t, n);
    for (size_t i = 0; out && i < n; i++)
        out[i] = cost[i] == COST_FORBIDDEN ? COST_FORBIDDEN : 0;
    return out;
}

static bool copy(struct least *l)
{
    const struct program *p = l->p;
    const int64_t *last = NULL, *made = NULL; // equal tables often follow each other
    tsr__program_init(&l->q, l->arena);
    for (size_t i = 0; i < p->nodes.n; i++) {
        const struct program_node *n = &p->nodes.at[i];
        tsr__program_node(&l->q, n->name, n->k, only_forbidden(l->arena, n->cost, n->k));
    }
    for (size_t i = 0; i < p->edges.n; i++) {
        const struct program_edge *e = &p->edges.at[i];
        if (e->cost != last)
            made = only_forbidden(l->arena, e->cost,
                                  (size_t)p->nodes.at[e->a].k * p->nodes.at[e->b].k);
        last = e->cost;
        tsr__program_edge(&l->q, e->a, e->b, made);
    }
    for (size_t i = 0; i < p->limits.n; i++) {
        uint32_t id = tsr__program_limit(&l->q, p->limits.at[i].name, 0, p->limits.at[i].n_times);
        if (id != UINT32_MAX)
            l->q.limits.at[id].uses.at = p->limits.at[i].uses.at;
        if (id != UINT32_MAX)
            l->q.limits.at[id].uses.n = p->limits.at[i].uses.n;
    }
    return !l->arena->failed;
}

// Takes an assignment whose peak is below what is known.
static void offer(struct least *l, uint32_t *choice)
{
    struct program_least found = {.found = true, .choice = choice, .least = -1};
    for (uint32_t i = 0; i < l->p->limits.n; i++) {
        uint32_t time = 0;
        int64_t peak = tsr__program_peak(l->p, i, choice, &time);
        if (peak > found.least) {
            found.least = peak;
            found.limit = i;
            found.time = time;
        }
    }
    if (!l->out->found || found.least < l->out->least) {
        found.bound = l->out->bound;
        found.work = l->out->work;
        *l->out = found;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void spend(struct least *l, uint64_t work)
{
    l->out->work += work;
    l->left.work = l->left.work > work ? l->left.work - work : 1;
    if (l->end > 0)
        l->left.seconds = l->end > now() ? l->end - now() : 1e-9;
}

// Whether another question is worth asking; what is known so far holds in any case.
static bool is_spent(const struct least *l)
{
    return l->left.work <= 1 || (l->end > 0 && now() >= l->end) ||
           tsr__cancelled(l->arena->session);
}

static tsr_status ask(struct least *l, int64_t bound, struct program_result *r)
{
    for (size_t i = 0; i < l->q.limits.n; i++)
        l->q.limits.at[i].bound = bound;
    tsr_status st = tsr__program_solve(&l->q, &l->left, l->arena, r);
    if (st != TSR_OK)
        return st;
    spend(l, r->work);
    if (r->feasible)
        offer(l, r->choice);
    return TSR_OK;
}

// The least sum of usages at one time: its usages are the costs, and there are no limits.
static tsr_status one_time(struct least *l, uint32_t limit, uint32_t time)
{
    struct program q = l->q;
    struct program_result r;
    const struct program_limit *from = &l->p->limits.at[limit];
    q.limits.n = 0;
    q.nodes.at = ARENA_ARRAY(l->arena, struct program_node, q.nodes.n + 1);
    if (!q.nodes.at)
        return TSR_NOMEM;
    for (size_t v = 0; v < q.nodes.n; v++) {
        q.nodes.at[v] = l->q.nodes.at[v];
        int64_t *cost = ARENA_ARRAY(l->arena, int64_t, q.nodes.at[v].k);
        if (!cost)
            return TSR_NOMEM;
        memcpy(cost, l->q.nodes.at[v].cost, q.nodes.at[v].k * sizeof(int64_t));
        q.nodes.at[v].cost = cost;
    }
    for (size_t i = 0; i < from->uses.n; i++) {
        const struct program_use *u = &from->uses.at[i];
        int64_t *cost = (int64_t *)q.nodes.at[u->node].cost;
        for (uint32_t c = 0; u->begin <= time && time < u->end && c < q.nodes.at[u->node].k; c++)
            if (cost[c] != COST_FORBIDDEN)
                cost[c] += u->usage[c];
    }
    tsr_status st = tsr__program_solve(&q, &l->left, l->arena, &r);
    if (st != TSR_OK)
        return st;
    spend(l, r.work);
    if (r.bound > l->out->bound)
        l->out->bound = r.bound;
    if (r.feasible)
        offer(l, r.choice);
    return TSR_OK;
}

static tsr_status bisect(struct least *l)
{
    struct program_least *out = l->out;
    int64_t low = out->bound; // nothing was found below; proved as far as out->bound
    while (low < out->least && !is_spent(l)) {
        int64_t middle = low + (out->least - low) / 2;
        struct program_result r;
        tsr_status st = ask(l, middle, &r);
        if (st != TSR_OK)
            return st;
        if (r.infeasible && low == out->bound)
            out->bound = middle + 1;
        if (!r.feasible)
            low = middle + 1;
    }
    return TSR_OK;
}

tsr_status tsr__program_least(const struct program *p, const struct program_options *o,
                              struct arena *a, struct program_least *out)
{
    struct program_result r;
    struct least l = {.p = p, .arena = a, .out = out};
    memset(out, 0, sizeof(*out));
    if (o)
        l.left = *o;
    l.end = l.left.seconds > 0 ? now() + l.left.seconds : 0;
    if (!l.left.work)
        l.left.work = l.end > 0 ? UINT64_MAX : WORK;
    tsr_status st = tsr__program_check(p);
    if (st != TSR_OK)
        return st;
    if (!copy(&l))
        return TSR_NOMEM;
    st = ask(&l, PROGRAM_MOST, &r); // any answer at all
    for (int i = 0; i < 4 && st == TSR_OK && out->found && out->bound < out->least; i++) {
        uint32_t limit = out->limit, time = out->time;
        if (p->limits.n == 0 || is_spent(&l))
            break;
        st = one_time(&l, limit, time);
        if (out->limit == limit && out->time == time)
            break;
    }
    if (p->limits.n == 0)
        out->least = out->bound = 0;
    if (st == TSR_OK && out->found)
        st = bisect(&l);
    out->proved = out->found && out->bound >= out->least;
    return st;
}
