// SPDX-License-Identifier: Apache-2.0
// device_count.c - the same model on another number of devices: fewer where more do not help, more where the memory does not
// suffice. Nothing of it is written into the model.
#include "plan/internal.h"

#include <math.h>

#define ADVICE_MOST 32 // devices that are tried where nothing fits

static bool any_given(const struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy && planner->nodes[i].strategy->given)
            return true;
    return false;
}

// The first n devices of the topology; of the default one, as many as are wanted.
static tsr_status take_devices(struct planner *q, const struct planner *p, int64_t n)
{
    int64_t *first = ARENA_ARRAY(&q->arena, int64_t, (size_t)n + 1);
    tsr_status st = first ? TSR_OK : TSR_NOMEM;
    q->machine.n = n;
    q->machine.topology = p->machine.topology;
    for (int64_t device = 0; first && device < n; device++)
        first[device] = device;
    if (n <= p->machine.n) {
        q->machine.numbers = first;
    } else if (st == TSR_OK) {
        struct str text = tsr__arena_printf(&q->arena, "%lld", (long long)n);
        st = text.p ? tsr_topology_parse(p->session, text.p, &q->machine.topology) : TSR_NOMEM;
    }
    if (st == TSR_OK && !tsr__planner_devices(q))
        return TSR_NOMEM;
    return st;
}

// Cost of the best plan for so many devices; 0: nothing fits.
static tsr_status cost_for(const struct planner *planner, const tsr_plan_options *options,
                           int64_t n, int64_t *cost)
{
    struct planner q = {0};
    struct program_result result = {0};
    tsr__planner_start(&q, planner->model);
    q.budget = planner->budget;
    tsr_status st = take_devices(&q, planner, n);
    if (st == TSR_OK &&
        (!tsr__planner_values(&q, options->sizes, options->n_sizes) || !tsr__planner_list(&q) ||
         !tsr__planner_candidates(&q) || !tsr__planner_program(&q, options->memory)))
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = tsr__planner_solve(&q, &q.program, &result);
    *cost = st == TSR_OK && result.feasible ? result.cost : 0;
    if (q.machine.topology != planner->machine.topology)
        tsr_topology_free(q.machine.topology);
    tsr__planner_end(&q);
    return st;
}

// Only where the devices do less than half of what they could is it worth to look for fewer.
tsr_status tsr__plan_better(struct planner *planner, const tsr_plan_options *options,
                            tsr_plan_summary *out)
{
    int64_t whole = tsr__planner_whole_time(planner), best = out->cost;
    if (planner->machine.n < 2 || options->n_state || any_given(planner) ||
        out->cost <= whole / planner->machine.n * 2)
        return TSR_OK;
    for (int64_t n = planner->machine.n / 2; n >= 2; n /= 2) {
        int64_t cost = 0;
        tsr_status st = cost_for(planner, options, n, &cost);
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
tsr_status tsr__plan_fitting(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_summary *out)
{
    int64_t cost = 0, n = 0, power = 1;
    tsr_status st = TSR_OK;
    if (options->topology || options->memory <= 0 || options->n_state || any_given(planner) ||
        out->needs_bytes / options->memory > ADVICE_MOST)
        return TSR_OK;
    n = (int64_t)ceil((double)out->needs_bytes / (double)options->memory *
                      (double)planner->machine.n);
    n = n > planner->machine.n ? n : planner->machine.n + 1;
    while (power < n)
        power *= 2;
    for (int try = 0; try < 2 && n <= ADVICE_MOST && st == TSR_OK && !out->fits_devices; try++) {
        st = cost_for(planner, options, n, &cost);
        if (cost > 0)
            out->fits_devices = n;
        n = n < power ? power : 2 * power;
    }
    return st;
}
