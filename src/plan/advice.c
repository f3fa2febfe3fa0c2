// SPDX-License-Identifier: Apache-2.0
// advice.c - the same model on another number of devices: fewer where more do not help, more where the memory does not
// suffice. Nothing of it is written into the model.
#include "plan/internal.h"

#include <math.h>

#define ADVICE_MOST 32 // devices that are tried where nothing fits

static bool any_given(const struct planner *p)
{
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].strategy && p->nodes[i].strategy->given)
            return true;
    return false;
}

// The first n devices of the topology; of the default one, as many as are wanted.
static tsr_status take_devices(struct planner *q, const struct planner *p, int64_t n)
{
    int64_t *first = ARENA_ARRAY(&q->arena, int64_t, (size_t)n + 1);
    tsr_status st = first ? TSR_OK : TSR_NOMEM;
    q->n = n;
    q->topology = p->topology;
    for (int64_t d = 0; first && d < n; d++)
        first[d] = d;
    if (n <= p->n) {
        q->device = first;
    } else if (st == TSR_OK) {
        struct str text = tsr__arena_printf(&q->arena, "%lld", (long long)n);
        st = text.p ? tsr_topology_parse(p->session, text.p, &q->topology) : TSR_NOMEM;
    }
    return st == TSR_OK && !tsr__planner_devices(q) ? TSR_NOMEM : st;
}

// Cost of the best plan for so many devices; 0: nothing fits.
static tsr_status cost_for(const struct planner *p, const tsr_plan_options *o, int64_t n,
                           int64_t *cost)
{
    struct planner q = {0};
    struct program_result r = {0};
    tsr__planner_start(&q, p->model);
    q.budget = p->budget;
    tsr_status st = take_devices(&q, p, n);
    if (st == TSR_OK && (!tsr__planner_values(&q, o->sizes, o->n_sizes) || !tsr__planner_list(&q) ||
                         !tsr__planner_candidates(&q) || !tsr__planner_program(&q, o->memory)))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_solve(&q, &q.program, &r);
    *cost = st == TSR_OK && r.feasible ? r.cost : 0;
    if (q.topology != p->topology)
        tsr_topology_free(q.topology);
    tsr__planner_end(&q);
    return st;
}

// Only where the devices do less than half of what they could is it worth to look for fewer.
tsr_status tsr__plan_better(struct planner *p, const tsr_plan_options *o, tsr_plan_summary *out)
{
    int64_t whole = tsr__planner_whole_time(p), best = out->cost;
    if (p->n < 2 || o->n_state || any_given(p) || out->cost <= whole / p->n * 2)
        return TSR_OK;
    for (int64_t n = p->n / 2; n >= 2; n /= 2) {
        int64_t cost = 0;
        tsr_status st = cost_for(p, o, n, &cost);
        if (st != TSR_OK)
            return st;
        if (cost > 0 && cost <= best) {
            best = cost;
            out->better_devices = n;
        }
    }
    if (out->one_device > 0 && out->one_device <= best) {
        best = out->one_device;
        out->better_devices = 1;
    }
    out->better_cost = out->better_devices ? best : 0;
    return TSR_OK;
}

// A number of devices of which each has the memory. What each needs falls no faster than their number grows; numbers that
// have many divisors give the most choices, so the next power of two is tried as well.
tsr_status tsr__plan_fitting(struct planner *p, const tsr_plan_options *o, tsr_plan_summary *out)
{
    int64_t cost = 0, n = 0, power = 1;
    tsr_status st = TSR_OK;
    if (o->topology || o->memory <= 0 || o->n_state || any_given(p) ||
        out->needs_bytes / o->memory > ADVICE_MOST)
        return TSR_OK;
    n = (int64_t)ceil((double)out->needs_bytes / (double)o->memory * (double)p->n);
    n = n > p->n ? n : p->n + 1;
    while (power < n)
        power *= 2;
    for (int try = 0; try < 2 && n <= ADVICE_MOST && st == TSR_OK && !out->fits_devices; try++) {
        st = cost_for(p, o, n, &cost);
        if (cost > 0)
            out->fits_devices = n;
        n = n < power ? power : 2 * power;
    }
    return st;
}
