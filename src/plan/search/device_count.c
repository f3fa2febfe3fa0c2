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

// Finds out whether a plan for n devices of the default topology fits in this memory per device.
// n is larger than the planner's number of devices.
static tsr_status fits_on(const struct planner *planner, int64_t memory, struct budget *budget,
                          int64_t n, bool *fits)
{
    struct planner root = *planner, other = {0};
    struct program_result result = {0};
    struct arena scratch = {.session = planner->session};
    tsr_status st = TSR_NOMEM;
    int64_t *devices = ARENA_ARRAY(&scratch, int64_t, (size_t)n + 1);
    struct str text = tsr__arena_printf(&scratch, "%lld", (long long)n);
    root.budget = budget;
    root.machine.topology = NULL;
    if (devices && text.p)
        st = tsr_topology_parse(planner->session, text.p, &root.machine.topology);
    if (st != TSR_OK)
        goto free_scratch;
    for (int64_t device = 0; device < n; device++)
        devices[device] = device;
    st = TSR_NOMEM;
    if (tsr__planner_fork(&root, NULL, devices, (size_t)n, &other) &&
        tsr__planner_build(&other, memory))
        st = tsr__planner_solve(&other, &other.program, 0, &result);
    *fits = result.feasible;
    tsr__planner_end(&other);
    tsr_topology_free(root.machine.topology);
free_scratch:
    tsr__arena_free(&scratch);
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
    int64_t power = 1;
    bool fits = false;
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
        TRY(fits_on(planner, options->memory, &part, n, &fits));
        if (fits) {
            out->facts.fits_devices = n;
            return TSR_OK;
        }
        n = n < power ? power : 2 * power;
        *tried = !tsr__budget_over(planner->budget);
    }
    return TSR_OK;
}
