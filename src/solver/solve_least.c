// SPDX-License-Identifier: Apache-2.0
// solve_least.c - finds the smallest common bound of all limits for which the program is feasible.
// The planner uses it to report how much memory the devices would need if no plan fits.
//
// Costs are ignored except for forbidden choices. A first solution has its peak usage at some time.
// The least usage at that time alone is a lower bound, and often it is the result. Otherwise the
// bound is bisected, and each step is solved.
//
//     Example: the first solution has its peak, 12, at time 3. At time 3 alone at least 9 are
//     needed (bound_at_time), so the result is between 9 and 12. Bisection tries 10: infeasible, so
//     the result is 11 or 12. It tries 11: feasible. The result is 11.
#include "solver/solver.h"

#define WORK      UINT64_C(4000000000)
#define QUESTIONS 4 // a step of the bisection may use 1/QUESTIONS of the remaining effort

// The search for the least bound.
struct least {
    const struct program *program;
    struct program_options left; // remaining effort
    unsigned parts;              // a solve may use 1/parts of `left`
    double end;                  // end by the clock; 0: no time limit
    struct arena *arena;
    struct program q; // the program with costs 0
    struct program_least *out;
};

static struct program_weight zero_weight(const void *context, uint32_t a, uint32_t b)
{
    (void)context, (void)a, (void)b;
    return (struct program_weight){0, 1};
}

// Copies the program with all costs 0, except forbidden ones.
static bool copy_without_costs(struct least *least)
{
    tsr__program_init(&least->q, least->arena);
    return tsr__program_add(&least->q, least->program, zero_weight, NULL) != UINT32_MAX;
}

// Stores an assignment if its peak is below the best so far.
static void offer(struct least *least, uint32_t *choice)
{
    struct program_least found = {.found = true, .choice = choice, .least = -1};
    for (uint32_t i = 0; i < least->program->limits.n; i++) {
        uint32_t time = 0;
        int64_t peak = tsr__program_peak(least->program, i, choice, &time);
        if (peak > found.least) {
            found.least = peak;
            found.limit = i;
            found.time = time;
        }
    }
    if (!least->out->found || found.least < least->out->least) {
        found.bound = least->out->bound;
        found.work = least->out->work;
        *least->out = found;
    }
}

// Subtracts the work and time of a solve from the remaining effort, but not down to 0, which would
// mean the default.
static void spend(struct least *least, uint64_t work)
{
    least->out->work += work;
    least->left.work = least->left.work > work ? least->left.work - work : 1;
    if (least->end > 0)
        least->left.seconds = least->end > tsr__now_s() ? least->end - tsr__now_s() : 1e-9;
}

static bool is_spent(const struct least *least)
{
    return least->left.work <= 1 || (least->end > 0 && tsr__now_s() >= least->end) ||
           tsr__cancelled(least->arena->session);
}

// Returns the effort of the next solve. In bisection each step gets only a part, so that an
// undecided step leaves effort for the others.
static struct program_options next_effort(const struct least *least)
{
    struct program_options options = least->left;
    options.work = (least->left.work - 1) / least->parts + 1;
    options.seconds = least->left.seconds / least->parts;
    return options;
}

// Solves with the same bound for all limits. Uses the solution even if its optimality is not
// proved.
static tsr_status solve_with_bound(struct least *least, int64_t bound,
                                   struct program_result *result)
{
    struct program_options options = next_effort(least);
    for (size_t i = 0; i < least->q.limits.n; i++)
        least->q.limits.at[i].bound = bound;
    TRY(tsr__program_solve(&least->q, &options, least->arena, result));
    spend(least, result->work);
    if (result->feasible)
        offer(least, result->choice);
    return TSR_OK;
}

// Computes a lower bound from one time: minimizes the sum of usages at that time, without limits.
// Example: uses of {5, 3} and {4, 6} at one time need at least 3 + 4 = 7.
static tsr_status bound_at_time(struct least *least, uint32_t limit, uint32_t time)
{
    struct program q = least->q;
    struct program_result result;
    const struct program_limit *from = &least->program->limits.at[limit];
    q.limits.n = 0;
    q.nodes.at = ARENA_ARRAY(least->arena, struct program_node, q.nodes.n + 1);
    if (!q.nodes.at)
        return TSR_NOMEM;
    for (size_t v = 0; v < q.nodes.n; v++) {
        q.nodes.at[v] = least->q.nodes.at[v];
        int64_t *cost = ARENA_ARRAY(least->arena, int64_t, q.nodes.at[v].k);
        if (!cost)
            return TSR_NOMEM;
        memcpy(cost, least->q.nodes.at[v].cost, q.nodes.at[v].k * sizeof(int64_t));
        q.nodes.at[v].cost = cost;
    }
    for (size_t i = 0; i < from->uses.n; i++) {
        const struct program_use *use = &from->uses.at[i];
        int64_t *cost = (int64_t *)q.nodes.at[use->node].cost;
        if (time < use->begin || time >= use->end)
            continue;
        for (uint32_t choice = 0; choice < q.nodes.at[use->node].k; choice++)
            if (cost[choice] != COST_FORBIDDEN)
                cost[choice] += use->usage[choice];
    }
    TRY(tsr__program_solve(&q, &least->left, least->arena, &result));
    spend(least, result.work);
    if (result.bound > least->out->bound)
        least->out->bound = result.bound;
    if (result.feasible)
        offer(least, result.choice);
    return TSR_OK;
}

// True if the gap above `low` is large enough for another solve.
static bool is_far(const struct least *least, int64_t low)
{
    int64_t best = least->out->least;
    return low < best && (double)(best - low) > least->left.near * (double)best;
}

// Bisects between the bound and the best solution. If a step finds no solution but does not prove
// that there is none, only `low` rises, not the bound.
static tsr_status bisect(struct least *least)
{
    struct program_least *out = least->out;
    int64_t low = out->bound; // no solution was found below this
    least->parts = QUESTIONS;
    while (is_far(least, low) && !is_spent(least)) {
        int64_t middle = low + (out->least - low) / 2;
        struct program_result result;
        TRY(solve_with_bound(least, middle, &result));
        if (result.infeasible && low == out->bound)
            out->bound = middle + 1;
        if (!result.feasible)
            low = middle + 1;
    }
    return TSR_OK;
}

// Finds the least bound. Finds any solution first, then the lower bound at the time of its peak, up
// to four times while the peak moves. Often this already proves the result. Bisects otherwise.
tsr_status tsr__program_least(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_least *out)
{
    struct program_result result;
    struct least least = {.program = program, .arena = arena, .out = out, .parts = 1};
    memset(out, 0, sizeof(*out));
    if (options)
        least.left = *options;
    least.end = least.left.seconds > 0 ? tsr__now_s() + least.left.seconds : 0;
    if (!least.left.work)
        least.left.work = least.end > 0 ? UINT64_MAX : WORK;
    TRY(tsr__program_check(program));
    if (!copy_without_costs(&least))
        return TSR_NOMEM;
    tsr_status st = solve_with_bound(&least, PROGRAM_MOST, &result); // find any solution
    for (int i = 0; i < 4; i++) {
        uint32_t limit = out->limit, time = out->time;
        bool open = st == TSR_OK && out->found && out->bound < out->least;
        if (!open || program->limits.n == 0 || is_spent(&least))
            break;
        st = bound_at_time(&least, limit, time);
        if (out->limit == limit && out->time == time)
            break;
    }
    if (program->limits.n == 0)
        out->least = out->bound = 0;
    if (st == TSR_OK && out->found)
        st = bisect(&least);
    out->proved = out->found && out->bound >= out->least;
    return st;
}
