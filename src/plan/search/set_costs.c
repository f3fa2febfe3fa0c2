// SPDX-License-Identifier: Apache-2.0
// block_price.c - what copies of a block of devices take besides what each does alone: they cut their shares out of the inputs,
// combine sums over the batch, and bring the outputs to the first device. A block without that device is one stage, which gives
// the outputs itself.
#include "plan/search/device_sets.h"

// Told from the sizes alone: with 4 copies, [64, 512] in the whole and [16, 512] in the block have
// the batch in dimension 0. Two dimensions that differ, or one that differs by another factor, are
// unclear.
int tsr__block_batch_dim(const struct blocks *blocks, const struct block_plan *plan,
                         const tsr_value *value)
{
    const struct plan_value *all = &blocks->planner->values[tsr__value_id(value)];
    const struct plan_value *part = &plan->planner.values[tsr__value_id(value)];
    int found = BATCH_NOWHERE, rank = all->rank < part->rank ? all->rank : part->rank;
    for (int d = 0; d < rank; d++) {
        if (all->shape[d] == part->shape[d])
            continue;
        if (found >= 0 || all->shape[d] != part->shape[d] * plan->copies)
            return BATCH_UNCLEAR;
        found = d;
    }
    return found;
}

// A state is kept by each copy for its share of the batch: it is cut out of nothing, and brought nowhere.
static bool stays(const struct blocks *blocks, const tsr_value *value)
{
    return planner_stays(blocks->planner, value);
}

// What it takes that all outputs come to the first device, from all copies but its own.
static int64_t gather_time(const struct blocks *blocks, const struct block_plan *plan)
{
    struct planner *planner = blocks->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t ps = 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (stays(blocks, value) || tsr__block_batch_dim(blocks, plan, value) == BATCH_NOWHERE)
            continue; // every copy has it
        ps += tsr__price_gather(planner->machine.topology, plan->n, plan->copies,
                                tsr__value_bytes(planner, value));
    }
    return ps;
}

// The node reads the value whole, in the way that was chosen for it.
static bool reads_whole(const struct planner *planner, const struct plan_node *node,
                        const tsr_value *value)
{
    if (!node->strategy)
        return false;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        uint32_t layout = node->strategy->at.at[node->choice].in[i];
        if (tsr_node_input(node->node, i) == value && layout != PLAN_NO_LAYOUT &&
            tsr__layout_is_whole(planner->layouts.at[layout].tiles))
            return true;
    }
    return false;
}

static bool some_reads_whole(const struct planner *planner, const tsr_value *value)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (reads_whole(planner, &planner->nodes[i], value))
            return true;
    return false;
}

// Nodes that read the whole share of their copy: each device cuts it out of the inputs, which a block alone would not do.
static int64_t slice_time(const struct blocks *blocks, const struct block_plan *plan)
{
    const struct planner *planner = &plan->planner;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    double bytes = 0;
    if (plan->copies <= 1)
        return 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (stays(blocks, value))
            continue;
        if (some_reads_whole(planner, value) && tsr__block_batch_dim(blocks, plan, value) >= 0)
            bytes += (double)tsr__value_bytes(blocks->planner, value) / (double)plan->copies;
    }
    return tsr__planner_move_time(planner, 2 * bytes);
}

// ---- sums over the batch -----------------------------------------------------------------------

// The node reads shares of the batch and gives something without it (a mean over the batch): copies combine what they have.
static bool joins_copies(const struct blocks *blocks, const struct block_plan *plan,
                         const struct plan_node *node, size_t slot)
{
    const tsr_value *out = tsr_node_output(node->node, slot);
    if (!out || rule_steers(node->rule, SIDE_OUTPUT, slot) ||
        tsr__block_batch_dim(blocks, plan, out) != BATCH_NOWHERE)
        return false;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *in = tsr_node_input(node->node, i);
        if (in && !rule_steers(node->rule, SIDE_INPUT, i) &&
            tsr__block_batch_dim(blocks, plan, in) >= 0)
            return true;
    }
    return false;
}

// An all-reduce among the copies of each device of the block, all at once. Of hosts that are not listed one by one as many
// copies count as are.
static int64_t join_time(const struct blocks *blocks, const struct block_plan *plan, int64_t bytes)
{
    tsr_topology *topology = blocks->planner->machine.topology;
    int64_t copies = plan->copies, ps = PLAN_NEVER;
    struct arena scratch;
    if (topology->window)
        copies = int64_min(copies, topology->window / plan->n);
    tsr__arena_init(&scratch, blocks->planner->session);
    int *devices = ARENA_ARRAY(&scratch, int, (size_t)(plan->n * copies) + 1);
    if (!devices)
        goto free_scratch;
    for (int64_t device = 0; device < plan->n; device++)
        for (int64_t copy = 0; copy < copies; copy++)
            devices[device * copies + copy] = (int)(copy * plan->n + plan->devices[device]);
    struct topology_groups groups = {(int)plan->n, (int)copies, devices};
    ps = tsr__price_collective(topology, TSR_ALL_REDUCE, &groups, bytes);
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// All such sums: how many there are, and what they take together.
struct sums {
    size_t n;
    int64_t ps;
};

// By the choices that the block's planner has taken; each output that joins copies is an all-reduce
// of its piece.
static struct sums sums_of(const struct blocks *blocks, const struct block_plan *plan)
{
    const struct planner *planner = &plan->planner;
    struct sums sums = {0};
    if (plan->copies <= 1)
        return sums;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        for (size_t slot = 0; slot < tsr_node_output_count(node->node); slot++) {
            uint32_t layout = node->strategy->at.at[node->choice].out[slot];
            if (layout == PLAN_NO_LAYOUT || !joins_copies(blocks, plan, node, slot))
                continue;
            const struct plan_value *value =
                &planner->values[tsr__value_id(tsr_node_output(node->node, slot))];
            int64_t bytes = tsr__planner_bytes(planner, layout, value);
            sums.ps = int64_min(sums.ps + join_time(blocks, plan, bytes), PLAN_NEVER);
            sums.n++;
        }
    }
    return sums;
}

size_t tsr__block_sums(const struct blocks *blocks, const struct block_plan *plan)
{
    return sums_of(blocks, plan).n;
}

// Each device is handed the inputs whole and keeps them for the run; the block's own plan has
// counted its share only.
int64_t tsr__block_inputs(const struct blocks *blocks, const struct block_plan *plan)
{
    const tsr_graph *graph = tsr_model_graph(plan->planner.model);
    int64_t bytes = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        int64_t whole = tsr__value_bytes(blocks->planner, value);
        if (!stays(blocks, value) && tsr__block_batch_dim(blocks, plan, value) >= 0)
            bytes = int64_min(bytes + whole - tsr__value_bytes(&plan->planner, value), PLAN_NEVER);
    }
    return bytes;
}

int64_t tsr__block_price(const struct blocks *blocks, const struct block_plan *plan)
{
    return gather_time(blocks, plan) + slice_time(blocks, plan) + sums_of(blocks, plan).ps;
}
