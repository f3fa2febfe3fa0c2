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

// Work since the last synchronization point of all devices.
struct segment {
    int64_t *busy; // time per device
    size_t device_count;
    int64_t charged;    // time that the program charged for this segment
    int64_t correction; // time that was charged but not needed, summed over earlier segments
};

// Ends the segment at a synchronization point: adds its correction to the sum and starts the next
// segment.
static void end_segment(struct segment *segment)
{
    int64_t longest = 0;
    for (size_t device = 0; device < segment->device_count; device++)
        longest = int64_max(longest, segment->busy[device]);
    segment->correction += segment->charged - longest;
    segment->charged = 0;
    memset(segment->busy, 0, segment->device_count * sizeof *segment->busy);
}

// True if every device of `want` already stores the full tensor in layout `from`.
static bool is_stored_everywhere(const struct tile_layout *from, const struct tile_layout *want)
{
    for (int64_t i = 0; i < want->first[want->n_shards]; i++)
        if (!tsr__layout_has_device(from, want->owners[i]))
            return false;
    return tsr__layout_is_whole(from);
}

// True if an input of the node must be transferred between devices before the node runs.
static bool needs_transfer(struct planner *planner, const struct plan_node *node)
{
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    for (size_t i = 0; i < tsr__plan_reads(node); i++) {
        const tsr_value *value = tsr__plan_read(node, i);
        if (!value || candidate->in[i] == PLAN_NO_LAYOUT)
            continue;
        uint32_t from = tsr__plan_layout(planner, value);
        if (from == PLAN_NO_LAYOUT || from == candidate->in[i] ||
            is_stored_everywhere(planner->layouts.at[from].tiles,
                                 planner->layouts.at[candidate->in[i]].tiles))
            continue;
        if (tsr__resharding_time(planner, from, candidate->in[i],
                                 &planner->values[tsr__value_id(value)]) > 0)
            return true;
    }
    return false;
}

// ---- nodes of the first device -----------------------------------------------------------------

// Nodes that only the first device runs, by index.
struct first_only {
    const struct planner *planner;
    unsigned char *nodes;
    bool all; // all readers of a value are such nodes
};

// Called for each reader of a value: sets first->all to whether only the first device runs the
// reader. False, which ends the iteration: other devices run it, too.
static bool is_read_by_first(void *data, tsr_node *node, size_t input)
{
    struct first_only *first = data;
    int64_t reader = first->planner->node_at[tsr__node_id(node)];
    (void)input;
    first->all = reader >= 0 && first->nodes[reader];
    return first->all;
}

// True if only the first device runs the node. The node must be replicated on devices that include
// the first. Its results must be read only by such nodes, or be outputs of the model, which the
// first device returns. The partition drops the node on the other devices. Nodes with bodies, and
// nodes in bodies, run on all devices.
static bool is_first_only(struct first_only *first, size_t i)
{
    const struct plan_node *node = &first->planner->nodes[i];
    if (!node->strategy || node->bodies || !in_main_graph(node))
        return false;
    const struct candidate *candidate = &node->strategy->at.at[node->choice];
    if (candidate->cut)
        return false;
    for (size_t o = 0; o < tsr_node_output_count(node->node); o++) {
        const tsr_value *value = tsr_node_output(node->node, o);
        if (!value)
            continue;
        first->all = !planner_stays(first->planner, value) && candidate->out[o] != PLAN_NO_LAYOUT &&
                     tsr__layout_has_device(first->planner->layouts.at[candidate->out[o]].tiles, 0);
        if (first->all)
            tsr_value_uses(value, is_read_by_first, first);
        if (!first->all)
            return false;
    }
    return true;
}

// Finds the nodes that only the first device runs. Goes backwards, because a node depends on its
// readers. Returns false if out of memory.
static bool find_first_only(const struct planner *planner, struct arena *arena,
                            struct first_only *out)
{
    *out = (struct first_only){.planner = planner};
    out->nodes = ARENA_ARRAY(arena, unsigned char, planner->n_nodes + 1);
    for (size_t i = planner->n_nodes; out->nodes && i-- > 0;)
        out->nodes[i] = is_first_only(out, i);
    return out->nodes != NULL;
}

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

// Adds the time of a node to its devices: the first one or all.
static void run_node(struct segment *segment, const struct candidate *candidate, bool first_only)
{
    segment->charged += candidate->compute;
    for (size_t device = 0; device < (first_only ? 1 : segment->device_count); device++) {
        if (!candidate->each)
            segment->busy[device] += candidate->compute;
        else if (device < candidate->n_each)
            segment->busy[device] += candidate->each[device];
    }
}

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

// Returns the time that the program charges for waiting and that is not needed. `unused`, by entry:
// in a branch that is not taken.
static int64_t waiting(struct planner *planner, struct arena *arena, const bool *unused)
{
    struct segment segment = {.device_count = (size_t)planner->machine.n};
    struct first_only first;
    segment.busy = ARENA_ARRAY(arena, int64_t, segment.device_count);
    if (!segment.busy || !find_first_only(planner, arena, &first))
        return 0;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy || unused[i])
            continue;
        const struct candidate *candidate = &node->strategy->at.at[node->choice];
        if (needs_transfer(planner, node))
            end_segment(&segment);
        run_node(&segment, candidate, first.nodes[i]);
        if (candidate->comm > 0)
            end_segment(&segment);
    }
    end_segment(&segment);
    return segment.correction;
}

int64_t tsr__planner_overcharge(struct planner *planner)
{
    struct arena arena = {.session = planner->session};
    bool *unused;
    int64_t ps = 0;
    bool differs = any_differs(planner);
    if ((differs || planner->body_outputs) && tsr__planner_unused(planner, &arena, &unused, &ps) &&
        differs)
        ps += waiting(planner, &arena, unused);
    tsr__arena_free(&arena);
    return ps;
}
