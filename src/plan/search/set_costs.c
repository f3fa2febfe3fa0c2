// SPDX-License-Identifier: Apache-2.0
// set_costs.c - what copies of a device set need besides what each computes by itself: they slice
// their shares out of the inputs, add up sums over the batch, and gather the outputs on the first
// device. A set without that device is one pipeline stage, which returns the outputs itself.
#include "plan/search/device_sets.h"

// Compares sizes: with 4 copies, [64, 512] in the model and [16, 512] in the set have the batch in
// dimension 0. Two dimensions that differ, or one that differs by another factor, are unclear.
int tsr__set_batch_dim(const struct set_model *model, const tsr_value *value)
{
    const struct plan_value *all = &model->all->values[tsr__value_id(value)];
    const struct plan_value *part = &model->part->values[tsr__value_id(value)];
    int found = BATCH_NOWHERE, rank = all->rank < part->rank ? all->rank : part->rank;
    for (int d = 0; d < rank; d++) {
        if (all->shape[d] == part->shape[d])
            continue;
        if (found >= 0 || all->shape[d] != part->shape[d] * model->set->copies)
            return BATCH_UNCLEAR;
        found = d;
    }
    return found;
}

// Time of gathering all outputs on the first device. Caches stay in their copy.
int64_t tsr__set_gather_time(const struct set_model *model)
{
    struct planner *planner = model->all;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    int64_t ps = 0;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        if (planner_stays(model->all, value) || tsr__set_batch_dim(model, value) == BATCH_NOWHERE)
            continue; // every copy computes it
        ps += tsr__price_gather(planner->machine.topology, model->set->n, model->set->copies,
                                tsr__value_bytes(planner, value));
    }
    return ps;
}

// True if the chosen candidate of the node reads the full value.
static bool reads_full(const struct planner *planner, const struct plan_node *node,
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

static bool some_node_reads_full(const struct planner *planner, const tsr_value *value)
{
    for (size_t i = 0; i < planner->n_nodes; i++)
        if (reads_full(planner, &planner->nodes[i], value))
            return true;
    return false;
}

// Time of slicing the shares of copies out of the inputs. Nodes that read a shard of the input
// slice it anyway, so only inputs that are read in full count.
static int64_t slice_time(const struct set_model *model)
{
    const struct planner *planner = model->part;
    const tsr_graph *graph = tsr_model_graph(planner->model);
    double bytes = 0;
    if (model->set->copies <= 1)
        return 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (planner_stays(model->all, value))
            continue;
        if (some_node_reads_full(planner, value) && tsr__set_batch_dim(model, value) >= 0)
            bytes += (double)tsr__value_bytes(model->all, value) / (double)model->set->copies;
    }
    return tsr__planner_move_time(planner, 2 * bytes);
}

// ---- sums over the batch -----------------------------------------------------------------------

// True if the node reduces over the batch, such as a mean: copies must combine their partial sums.
static bool reduces_batch(const struct set_model *model, const struct plan_node *node, size_t slot)
{
    const tsr_value *out = tsr_node_output(node->node, slot);
    if (!out || rule_steers(node->rule, SIDE_OUTPUT, slot) ||
        tsr__set_batch_dim(model, out) != BATCH_NOWHERE)
        return false;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++) {
        const tsr_value *in = tsr_node_input(node->node, i);
        if (in && !rule_steers(node->rule, SIDE_INPUT, i) && tsr__set_batch_dim(model, in) >= 0)
            return true;
    }
    return false;
}

// Time of an all-reduce among the copies of each device, all at once. A large topology lists only a
// window of its devices, which then stand for all.
static int64_t reduce_time(const struct set_model *model, int64_t bytes)
{
    tsr_topology *topology = model->all->machine.topology;
    int64_t copies = model->set->copies, ps = PLAN_NEVER;
    struct arena scratch;
    if (topology->window)
        copies = int64_min(copies, topology->window / model->set->n);
    tsr__arena_init(&scratch, model->all->session);
    int *devices = ARENA_ARRAY(&scratch, int, (size_t)(model->set->n * copies) + 1);
    if (!devices)
        goto free_scratch;
    for (int64_t device = 0; device < model->set->n; device++)
        for (int64_t copy = 0; copy < copies; copy++)
            devices[device * copies + copy] =
                (int)(copy * model->set->n + model->set->devices[device]);
    struct topology_groups groups = {(int)model->set->n, (int)copies, devices};
    ps = tsr__price_collective(topology, TSR_ALL_REDUCE, &groups, bytes);
free_scratch:
    tsr__arena_free(&scratch);
    return ps;
}

// Number and time of all such sums.
struct sums {
    size_t n;
    int64_t ps;
};

static struct sums sums_of(const struct set_model *model)
{
    const struct planner *planner = model->part;
    struct sums sums = {0};
    if (model->set->copies <= 1)
        return sums;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        if (!node->strategy)
            continue;
        for (size_t slot = 0; slot < tsr_node_output_count(node->node); slot++) {
            uint32_t layout = node->strategy->at.at[node->choice].out[slot];
            if (layout == PLAN_NO_LAYOUT || !reduces_batch(model, node, slot))
                continue;
            const struct plan_value *value =
                &planner->values[tsr__value_id(tsr_node_output(node->node, slot))];
            int64_t bytes = tsr__planner_bytes(planner, layout, value);
            sums.ps = int64_min(sums.ps + reduce_time(model, bytes), PLAN_NEVER);
            sums.n++;
        }
    }
    return sums;
}

size_t tsr__set_sums(const struct set_model *model)
{
    return sums_of(model).n;
}

// Each device gets the full inputs and keeps them for the run; the plan of the set has counted only
// its share.
int64_t tsr__set_input_bytes(const struct set_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model->part->model);
    int64_t bytes = 0;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        int64_t whole = tsr__value_bytes(model->all, value);
        if (!planner_stays(model->all, value) && tsr__set_batch_dim(model, value) >= 0)
            bytes = int64_min(bytes + whole - tsr__value_bytes(model->part, value), PLAN_NEVER);
    }
    return bytes;
}

int64_t tsr__set_copies_time(const struct set_model *model)
{
    return tsr__set_gather_time(model) + slice_time(model) + sums_of(model).ps;
}
