// SPDX-License-Identifier: Apache-2.0
// device_count.c - plans the same model for more devices, as advice if memory is too small. Writes
// nothing into the model.
#include "plan/search/search.h"

#include <math.h>

#define ADVICE_MOST 32 // largest number of devices that is tried if no plan fits
#define TRIES       2  // numbers of devices that are tried

// True if some node has shardings in the model, which are valid for this number of devices only.
static bool any_given(const struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (planner->nodes[i].strategy && planner->nodes[i].strategy->given)
            return true;
    return false;
}

// Gives `other` the first n devices of the planner's topology, or n devices of the default topology
// if the planner has fewer.
static tsr_status take_devices(struct planner *other, const struct planner *planner, int64_t n)
{
    int64_t *first = ARENA_ARRAY(&other->arena, int64_t, (size_t)n + 1);
    if (!first)
        return TSR_NOMEM;
    for (int64_t device = 0; device < n; device++)
        first[device] = device;
    other->machine.n = n;
    other->machine.topology = planner->machine.topology;
    if (n <= planner->machine.n) {
        other->machine.numbers = first;
    } else {
        struct str text = tsr__arena_printf(&other->arena, "%lld", (long long)n);
        if (!text.p)
            return TSR_NOMEM;
        TRY(tsr_topology_parse(planner->session, text.p, &other->machine.topology));
    }
    return tsr__planner_devices(other) ? TSR_OK : TSR_NOMEM;
}

// Solves the program of `other`. *cost: its predicted time; stays 0 if no plan fits.
static tsr_status solve_for(const struct planner *planner, struct planner *other,
                            const tsr_plan_options *options, int64_t *cost)
{
    struct program_result result = {0};
    if (!tsr__planner_values(other, options->sizes, options->n_sizes, planner) ||
        !tsr__planner_list(other) || !tsr__planner_build(other, options->memory))
        return TSR_NOMEM;
    tsr_status st = tsr__planner_solve(other, &other->program, 0, &result);
    if (st != TSR_OK || !result.feasible)
        return st;
    tsr__planner_take(other, result.choice);
    *cost = tsr__planner_played(other, result.cost);
    return TSR_OK;
}

// Returns the predicted time of the best plan for n devices in *cost; 0: no plan fits.
static tsr_status cost_for(const struct planner *planner, const tsr_plan_options *options,
                           struct budget *budget, int64_t n, int64_t *cost)
{
    struct planner other = {0};
    *cost = 0;
    tsr__planner_start(&other, planner->model);
    other.budget = budget;
    tsr_status st = take_devices(&other, planner, n);
    if (st == TSR_OK)
        st = solve_for(planner, &other, options, cost);
    if (other.machine.topology != planner->machine.topology)
        tsr_topology_free(other.machine.topology);
    tsr__planner_end(&other);
    return st;
}

// Looks for a number of devices with which a plan fits, and sets out->fits_devices if it finds one.
// Does nothing if the caller gave a topology or no memory limit, or if there are states or
// shardings to keep. Memory per device falls at most in proportion to the number of devices, which
// gives the first number to try. The next power of two is tried as well, because numbers with many
// divisors have the most candidates. Example: 3 devices of 10 GB would need 14 GB each: 5 are
// tried, then 8.
tsr_status tsr__plan_fitting(struct planner *planner, const tsr_plan_options *options,
                             tsr_plan_result *out, bool *tried)
{
    int64_t cost = 0, power = 1;
    *tried = false;
    if (options->topology || options->memory <= 0 || options->n_state || any_given(planner) ||
        out->facts.needs_bytes / options->memory > ADVICE_MOST)
        return TSR_OK;
    double times = (double)out->facts.needs_bytes / (double)options->memory;
    int64_t n = (int64_t)ceil(times * (double)planner->machine.n);
    n = int64_max(n, planner->machine.n + 1);
    while (power < n)
        power *= 2;
    for (int try = 0; try < TRIES; try++) {
        if (n > ADVICE_MOST || tsr__budget_over(planner->budget))
            return TSR_OK;
        struct budget part = tsr__budget_quick(planner->budget, TRIES);
        TRY(cost_for(planner, options, &part, n, &cost));
        if (cost > 0) {
            out->facts.fits_devices = n;
            return TSR_OK;
        }
        n = n < power ? power : 2 * power;
        *tried = !tsr__budget_over(planner->budget);
    }
    return TSR_OK;
}
