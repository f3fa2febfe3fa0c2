// SPDX-License-Identifier: Apache-2.0
// build_in_time.c - builds a program within the time limit.
//
// Resharding costs between pairs of layouts take most of the time. The clock is checked before each
// of them (tsr__planner_late). When time is up, the program is discarded. It is built again from
// the first few candidates of each node, most of whose costs are known by then:
//
//     Example: 3,000 nodes on 64 devices. With 24 candidates per node on average, building takes
//     6.6 s; with 8 candidates 0.8 s, with 6 0.4 s. The fastest plan is nearly always among them,
//     since simple shardings come first in the list.
//
// The lower bound of such a plan is still valid for all candidates (pace.least): it is the sum of
// the cheapest candidates of all nodes. If not all candidates were listed in time, it is the time
// on one device divided by the speeds of all devices.
#include "plan/program/program.h"

#include <math.h>

// One attempt: the number of candidates per node, and the share of the remaining time for their
// costs.
static const struct round {
    size_t candidates; // candidates per node; 0: all
    double share;
} rounds[] = {{0, 0.6}, {8, 0.6}, {4, 0.8}};

int64_t tsr__plan_node_least(const struct plan_node *node)
{
    int64_t least = PLAN_NEVER;
    if (!node->strategy)
        return 0;
    for (size_t i = 0; i < node->strategy->at.n; i++) {
        const struct candidate *candidate = &node->strategy->at.at[i];
        least = int64_min(least, candidate->compute + candidate->comm);
    }
    return least;
}

// Returns the sum of the cheapest candidates of all nodes, without resharding.
static int64_t cheapest(const struct planner *planner)
{
    int64_t sum = 0;
    for (size_t i = 0; i < planner->n_nodes; i++)
        sum = int64_min(sum + tsr__plan_node_least(&planner->nodes[i]), PLAN_NEVER);
    return sum;
}

// Returns a lower bound: the time on the slowest device divided by the speeds of all devices
// relative to it.
static int64_t shared_out(const struct planner *planner)
{
    return (int64_t)((double)tsr__planner_unsharded_time(planner) / tsr__planner_speeds(planner));
}

// Keeps the first candidates of each node without given shardings. Drops the tables of all
// candidates, but keeps resharding costs.
static void narrow(struct planner *planner, size_t candidates)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        struct strategy *strategy = planner->nodes[i].strategy;
        if (!strategy)
            continue;
        strategy->columns = NULL;
        if (!strategy->given && strategy->at.n > candidates)
            strategy->at.n = candidates;
    }
    tsr__map_init(&planner->cache.tables, &planner->arena, 256);
    planner->pace.candidates = candidates;
}

// Starts a round and sets its deadline to its share of the remaining time.
static void set_pace(struct planner *planner, const struct round *round)
{
    struct planner_pace *pace = &planner->pace;
    double now = tsr__now_s(), end = planner->budget->end;
    pace->late = false;
    // after a cancellation, a plan with few candidates is still made
    pace->cancels = round->candidates == 0;
    pace->end = end > 0 ? now + fmax((end - now) * round->share, 1e-4) : 0;
}

bool tsr__planner_build(struct planner *planner, int64_t memory)
{
    set_pace(planner, &rounds[0]);
    if (!tsr__planner_candidates(planner))
        return false;
    bool listed = !planner->pace.late; // false: some nodes have candidates that were not listed
    planner->pace.least = listed ? cheapest(planner) : shared_out(planner);
    if (listed && planner->pace.beat > 0 && planner->pace.least >= planner->pace.beat) {
        planner->pace.late = true; // no program is built: no plan costs less than `beat`
        return true;
    }
    for (size_t i = listed ? 0 : 1; i < TSR_COUNT(rounds); i++) {
        if (rounds[i].candidates)
            narrow(planner, rounds[i].candidates);
        set_pace(planner, &rounds[i]);
        if (!tsr__planner_program(planner, memory))
            return false;
        if (!planner->pace.late)
            break;
    }
    // The summary needs more costs later; they have no time limit.
    planner->pace.end = 0;
    planner->pace.cancels = false;
    return true;
}

void tsr__build_report_narrow(const struct planner *planner)
{
    tsr__diag(
        planner->session, DIAG_plan_narrow, NULL, "give it more time (--time S)",
        "not all candidates were evaluated in time: only the first few of each node were used");
}

void tsr__build_settle(const struct planner *planner, struct program_result *result)
{
    if (!planner->pace.candidates)
        return;
    result->infeasible = false; // a plan may exist with the skipped candidates
    result->bound = int64_min(result->bound, planner->pace.least);
    result->optimal = result->feasible && result->cost <= result->bound;
    if (result->feasible)
        result->gap = (double)(result->cost - result->bound) / (double)int64_max(result->cost, 1);
}
