// SPDX-License-Identifier: Apache-2.0
// pace.c - a program is built in the time there is.
//
// Pricing moves between pairs of layouts takes by far the longest. Each price asks the clock first (tsr__planner_late); once
// time is up no more are made, and what is being built is of no use. It is then built again from the first few ways of each
// node, most of whose prices are known by then:
//
//     3,000 nodes on 64 devices, 24 ways of a node on average: 6.6 s. With 8 ways 0.8 s, with 6 ways 0.4 s; and the
//     fastest plan is nearly always among those, since whole nodes and single cuts come first in the list.
//
// A plan of fewer ways is proved to be good only as far as all ways allow: no plan takes less than each node in its cheapest way.
#include "plan/costs/planner.h"

#include <math.h>

// How many ways of a node are tried, and until which part of the time that is left they must be priced.
static const struct round {
    size_t ways; // 0: all
    double share;
} rounds[] = {{0, 0.6}, {8, 0.6}, {4, 0.8}};

// Each node in its cheapest way, with nothing to be moved.
static int64_t cheapest(const struct planner *planner)
{
    int64_t sum = 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct strategy *strategy = planner->nodes[i].strategy;
        int64_t least = PLAN_NEVER;
        if (!strategy)
            continue;
        for (size_t c = 0; c < strategy->at.n; c++)
            least = int64_min(least, strategy->at.at[c].compute + strategy->at.at[c].comm);
        sum = int64_min(sum + least, PLAN_NEVER);
    }
    return sum;
}

// The devices share out at best what one of them would take.
static int64_t shared_out(const struct planner *planner)
{
    return (int64_t)((double)tsr__planner_whole_time(planner) / tsr__planner_speeds(planner));
}

// Leaves each node its first ways. What was made of all of them (tables, columns) is forgotten; prices stay.
static void narrow(struct planner *planner, size_t ways)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        struct strategy *strategy = planner->nodes[i].strategy;
        if (!strategy)
            continue;
        strategy->columns = NULL;
        if (!strategy->given && strategy->at.n > ways)
            strategy->at.n = ways;
    }
    tsr__map_init(&planner->cache.tables, &planner->arena, 256);
    planner->pace.ways = ways;
}

// Begins a round of pricing, which has its share of what is left of the time.
static void set_pace(struct planner *planner, const struct round *round)
{
    struct planner_pace *pace = &planner->pace;
    double now = tsr__clock(), end = planner->budget->end;
    pace->late = false;
    pace->heeds = round->ways == 0; // who cancels gets what a few ways give
    pace->end = 0;
    if (end > 0)
        pace->end = now + fmax((end - now) * round->share, 1e-4);
}

bool tsr__planner_build(struct planner *planner, int64_t memory)
{
    set_pace(planner, &rounds[0]);
    if (!tsr__planner_candidates(planner))
        return false;
    bool listed = !planner->pace.late; // else nodes have other ways, which nobody knows
    planner->pace.least = listed ? cheapest(planner) : shared_out(planner);
    for (size_t i = listed ? 0 : 1; i < TSR_COUNT(rounds); i++) {
        if (rounds[i].ways)
            narrow(planner, rounds[i].ways);
        set_pace(planner, &rounds[i]);
        if (!tsr__planner_program(planner, memory))
            return false;
        if (!planner->pace.late)
            break;
    }
    // What is priced after this (a chosen plan's moves, to be told) is needed, whatever the time.
    planner->pace.end = 0;
    planner->pace.heeds = false;
    return true;
}

void tsr__pace_say(const struct planner *planner)
{
    tsr__diag(planner->session, DIAG_plan_narrow, NULL, "give it more time (--time S)",
              "there was no time to price all ways to run the nodes: each has its first few");
}

void tsr__pace_settle(const struct planner *planner, struct program_result *result)
{
    if (!planner->pace.ways)
        return;
    result->infeasible = false; // with ways that were left out there may be a plan
    result->bound = int64_min(result->bound, planner->pace.least);
    result->optimal = result->feasible && result->cost <= result->bound;
    if (result->feasible)
        result->gap = (double)(result->cost - result->bound) / (double)int64_max(result->cost, 1);
}
