// SPDX-License-Identifier: Apache-2.0
// overcharge.c - corrects the predicted time of a plan where the 0-1 program charges too much:
// branches of If that are not taken, and waiting on devices of different speed.
//
// The program adds up both branches of an If, so that both are planned well. Only the more
// expensive one counts for the time. The program also charges each node the time of its slowest
// device. Between two synchronization points every device runs at its own pace, so these maxima
// must not simply be added.
//
//     Example: two nodes between two all-reduces. Device 0 needs 4 and 3 ms, device 1 needs 3 and 4
//     ms. The program charges 4 + 4 = 8 ms, but both devices finish after 7 ms: the correction is 1
//     ms.
#include "plan/program/program.h"

// ---- branches ----------------------------------------------------------------------------------

bool tsr__planner_unused(struct planner *planner, struct arena *arena, bool **out, int64_t *ps)
{
    int64_t *cost = ARENA_ARRAY(arena, int64_t, planner->n_nodes + 1);
    bool *unused = *out = ARENA_ARRAY(arena, bool, planner->n_nodes + 1);
    *ps = 0;
    if (!cost || !unused || !planner->body_outputs)
        return !arena->failed;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        cost[i] = candidate->compute + candidate->comm;
        for (size_t o = 0; o < tsr__plan_makes(node); o++)
            if (tsr__plan_made(node, o))
                cost[i] += tsr__planner_moved(planner, i, o);
        *ps += cost[i];
    }
    *ps -= tsr__branches_sum(planner, cost, unused);
    return true;
}

// ---- the correction ----------------------------------------------------------------------------

// True if the chosen candidate of some node has a separate time for each device.
static bool any_differs(const struct planner *planner)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (node->strategy && node->strategy->at.at[node->choice].each)
            return true;
    }
    return false;
}

// Returns the time that the program charges for waiting and that is not needed: it adds up the
// slowest device of every node, and the plan is played with a clock for each device.
static int64_t waiting(struct planner *planner)
{
    int64_t time = 0, transfer = 0;
    struct plan_range all = {planner->n_nodes, planner->machine.all, (size_t)planner->machine.n};
    struct played_plan played = {.time = &time, .transfer = &transfer};
    if (!tsr__plan_play(planner, &all, 1, NULL, &played))
        return 0;
    return time + transfer - played.latency;
}

int64_t tsr__planner_overcharge(struct planner *planner)
{
    struct arena arena = {.session = planner->session};
    bool *unused;
    int64_t ps = 0;
    bool differs = any_differs(planner);
    if ((differs || planner->body_outputs) && tsr__planner_unused(planner, &arena, &unused, &ps) &&
        differs)
        ps += waiting(planner);
    tsr__arena_free(&arena);
    return ps;
}
