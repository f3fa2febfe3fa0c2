// SPDX-License-Identifier: Apache-2.0
// range_ends.c - what the ends of a range cost at most, as they are priced where what crosses lies whole: behind it a gather on the
// first device for each value that leaves, before it a slice for each node that reads one. A plan of the range whose ends are open
// saves no more than that:
//
//     a range of 10 ms that was solved with its ends, of which gathers take at most 2 ms and slices 1: open it takes 7 ms or more.
#include "plan/program/edges.h"
#include "plan/stages/stages.h"

// What a range that leaves a value so, as its maker's ways do, pays at most to have it whole on the first device.
static int64_t most_to_leave(struct kind *kind, const struct plan_node *maker, size_t slot)
{
    struct planner *planner = &kind->planner;
    const tsr_value *v = tsr_node_output(maker->node, slot);
    const struct reader caller = {.node = SIZE_MAX};
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    uint32_t whole = tsr__planner_wanted(planner, &caller, v, 0);
    int64_t most = 0;
    for (size_t i = 0; i < maker->strategy->at.n; i++) {
        int64_t ps = tsr__planner_price(planner, maker->strategy->at.at[i].out[slot], whole, value);
        if (ps < PLAN_NEVER)
            most = int64_max(most, ps);
    }
    return most;
}

// What a node pays at most to cut its part out of a value that lies whole everywhere.
static int64_t most_to_cut(struct kind *kind, const struct plan_node *reader, size_t slot)
{
    struct planner *planner = &kind->planner;
    const tsr_value *v = tsr_node_input(reader->node, slot);
    const struct plan_value *value = &planner->values[tsr__value_id(v)];
    uint32_t whole = tsr__planner_whole(planner, value->rank);
    int64_t most = 0;
    for (size_t i = 0; i < reader->strategy->at.n; i++) {
        uint32_t want = reader->strategy->at.at[i].in[slot];
        int64_t ps = PLAN_NEVER;
        if (want != PLAN_NO_LAYOUT)
            ps = tsr__planner_price(planner, whole, want, value);
        if (ps < PLAN_NEVER)
            most = int64_max(most, ps);
    }
    return most;
}

static bool is_among(const tsr_value *value, const tsr_value **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == value)
            return true;
    return false;
}

int64_t tsr__range_ends(struct staging *staging, struct kind *kind, size_t i, size_t j)
{
    const struct range *range = tsr__stages_range(staging, i, j);
    int64_t sum = 0;
    if (!range)
        return PLAN_NEVER;
    for (size_t n = staging->cut[i]; n < staging->cut[j]; n++) {
        const struct plan_node *node = &kind->nodes[n];
        if (!node->strategy)
            continue;
        for (size_t o = 0; o < tsr_node_output_count(node->node); o++)
            if (is_among(tsr_node_output(node->node, o), range->leave, range->n_leave))
                sum += most_to_leave(kind, node, o);
        for (size_t k = 0; k < tsr_node_input_count(node->node); k++)
            if (is_among(tsr_node_input(node->node, k), range->in, range->n_in))
                sum += most_to_cut(kind, node, k);
    }
    return int64_min(sum, PLAN_NEVER);
}
