// SPDX-License-Identifier: Apache-2.0
// expansions.c - finds out whether a node that computes statistics over a sharded factor can be
// replaced by simpler nodes. Tries it in a copy of the model, once for all equal nodes.
//
//     Example: Softmax over 1000 classes sharded in 4 needs the maximum and the sum over all
//     classes. tsr__rule_expand makes ReduceMax, Sub, Exp, ReduceSum and Div, which can be sharded,
//     or fails. Each is charged for its 250 classes. The two reductions give one number per row,
//     which all devices combine.
#include "plan/candidates/candidates.h"

// Makes a copy of the model. Nodes of the main graph have the same order in the copy.
static bool make_copy(const struct planner *planner, struct planner_common *common)
{
    struct planner_trial *trial = &common->trial;
    tsr_model *copy = NULL;
    trial->twins = ARENA_ARRAY(common->arena, tsr_node *, planner->n_nodes + 1);
    if (!trial->twins || tsr_model_clone(planner->model, &copy) != TSR_OK)
        return false;
    if (!vec_add(common->arena, &trial->models, copy)) {
        tsr_model_free(copy);
        return false;
    }
    tsr_node *node = tsr_graph_first(tsr_model_graph(copy));
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!in_main_graph(&planner->nodes[i]))
            continue;
        if (!node)
            return false;
        trial->twins[i] = node;
        node = tsr_node_next(node);
    }
    trial->shapes =
        tsr__shapes_assumed(common->arena, copy, planner->shapes.sizes, planner->shapes.n_sizes);
    return trial->shapes != NULL;
}

// What came out of expanding a node.
struct tried_expansion {
    struct expanded nodes;
    const struct shapes *shapes;
    bool ok;
};

// Expands a copy of the node. The expansion changes the copy, so each is used only once.
static bool expand(struct candidate_builder *builder, struct tried_expansion *out)
{
    const struct planner *planner = builder->planner;
    struct planner_common *common = planner->shapes.common;
    struct planner_trial *trial = &common->trial;
    int64_t at = planner->node_at[tsr__node_id(builder->node)];
    if (at < 0 || ((!trial->shapes || !trial->twins[at]) && !make_copy(planner, common)) ||
        !trial->twins[at])
        return false;
    tsr_node *twin = trial->twins[at];
    trial->twins[at] = NULL;
    out->shapes = trial->shapes;
    return tsr__rule_expand(common->arena, twin, builder->node, planner->shapes.model,
                            builder->place.rule, builder->place.cuts, &out->nodes) == TSR_OK &&
           tsr__shapes_add(trial->shapes, out->nodes.nodes, out->nodes.n_nodes);
}

// Returns what came out of expanding an equal node in the same parts, in any planner. NULL: out of
// memory.
static struct tried_expansion *tried(struct candidate_builder *builder)
{
    struct planner_common *common = builder->planner->shapes.common;
    const struct placement *place = &builder->place;
    int64_t key[RULE_MAX_FACTORS + 2] = {builder->strategy->equal,
                                         place->rule == builder->strategy->rule};
    memcpy(key + 2, place->cuts, (size_t)place->rule->n_factors * sizeof *key);
    void **slot = tsr__map_at_copy(
        &common->trial.tried, str_bytes(key, ((size_t)place->rule->n_factors + 2) * sizeof *key));
    if (!slot || *slot)
        return slot ? *slot : NULL;
    struct tried_expansion *out = ARENA_NEW(common->arena, struct tried_expansion);
    if (!out)
        return NULL;
    out->ok = expand(builder, out);
    *slot = out;
    return out;
}

// Expands a node, unless that was tried before. False: it is not possible, or out of memory.
static bool try_it(struct candidate_builder *builder)
{
    struct tried_expansion *out = tried(builder);
    if (!out || !out->ok)
        return false;
    builder->strategy->nodes = &out->nodes;
    builder->strategy->nodes_shapes = out->shapes;
    return true;
}

// Nodes of bodies are not replaced (sharding/flow/flow_body.c). What the engine computes when it
// loads the model has no reason to communicate.
bool tsr__builder_expands(struct candidate_builder *builder)
{
    if (builder->strategy->inside || tsr__node_reads_constants(builder->node))
        return false;
    if (!builder->strategy->asked)
        builder->strategy->expands = try_it(builder);
    builder->strategy->asked = true;
    return builder->strategy->expands;
}

// ---- costs -------------------------------------------------------------------------------------

// Number of shards of each dimension of a value of the copied model.
struct value_cuts {
    const tsr_value *value;
    int64_t cuts[RULE_MAX_RANK];
};
struct estimate {
    struct candidate_builder *builder;
    const struct shapes *shapes;
    VEC(struct value_cuts) values; // sharded values; all others are unsharded
    struct expanded_cost cost;
};

static const struct value_cuts *cuts_of(const struct estimate *estimate, const tsr_value *value)
{
    for (size_t i = 0; i < estimate->values.n; i++)
        if (estimate->values.at[i].value == value)
            return &estimate->values.at[i];
    return NULL;
}

// Records the sharding of a value from the factors of its dimensions. `cuts` is indexed by factor.
static void note_cuts(struct estimate *estimate, const tsr_value *value,
                      const struct rule_tensor *tensor, const int64_t *cuts)
{
    if (tensor->host || tensor->absent || tensor->rank > RULE_MAX_RANK || cuts_of(estimate, value))
        return;
    struct value_cuts *at = vec_push(estimate->builder->arena, &estimate->values);
    if (!at)
        return;
    at->value = value;
    for (int d = 0; d < tensor->rank; d++) {
        at->cuts[d] = 1;
        for (int k = 0; k < tensor->dims[d].n; k++)
            at->cuts[d] *= cuts[tensor->dims[d].factors[k]];
    }
}

// Records the sharding of the values that the new nodes read. Inputs of the old node, and tensors
// that the expansion made, are sharded like the old node's factors.
static void note_reads(struct estimate *estimate, const struct expanded *list)
{
    const struct placement *place = &estimate->builder->place;
    for (size_t i = 0; i < list->n_reads; i++)
        if (list->reads[i].of < place->rule->n_inputs)
            note_cuts(estimate, list->reads[i].value, &place->rule->inputs[list->reads[i].of],
                      place->cuts);
    for (size_t i = 0; i < list->n_places; i++)
        note_cuts(estimate, list->places[i].value, &list->places[i].tensor, place->cuts);
}

// Returns the bytes of the largest shard of a value.
static double part_bytes(const struct estimate *estimate, const tsr_value *value)
{
    struct shape shape = tsr__shapes_of(estimate->shapes, value);
    const struct value_cuts *cut = cuts_of(estimate, value);
    double elements = 1;
    for (int d = 0; d < shape.rank; d++) {
        int64_t size = int64_max(shape.dims[d].value, 1), parts = cut ? cut->cuts[d] : 1;
        elements *= (double)div_up(size, parts);
    }
    int bits = tsr_dtype_bits(shape.dtype);
    return elements * (bits ? bits : 8) / 8;
}

// Finds the number of shards of the node's factors, from the dimensions of its inputs.
static void factor_cuts(const struct estimate *estimate, const tsr_node *node,
                        const struct rule *rule, int64_t *cuts)
{
    for (int factor = 0; factor < rule->n_factors; factor++)
        cuts[factor] = 1;
    for (int i = 0; i < rule->n_inputs && (size_t)i < tsr_node_input_count(node); i++) {
        const struct rule_tensor *tensor = &rule->inputs[i];
        const struct value_cuts *cut = cuts_of(estimate, tsr_node_input(node, (size_t)i));
        if (!cut || tensor->host || tensor->absent)
            continue;
        for (int d = 0; d < tensor->rank && d < RULE_MAX_RANK; d++)
            if (tensor->dims[d].n)
                cuts[tensor->dims[d].factors[0]] =
                    int64_max(cuts[tensor->dims[d].factors[0]], cut->cuts[d]);
    }
}

static double bytes_of_node(const struct estimate *estimate, const tsr_node *node,
                            const struct rule *rule)
{
    double bytes = 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !read_before(node, i) && !rule_steers(rule, SIDE_INPUT, i))
            bytes += part_bytes(estimate, tsr_node_input(node, i));
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            bytes += part_bytes(estimate, tsr_node_output(node, i));
    return bytes;
}

// Adds the time of reducing the node's outputs over all devices.
static void add_sum(struct estimate *estimate, const tsr_node *node)
{
    struct planner *planner = estimate->builder->planner;
    struct device_group all = {planner->machine.all, (size_t)planner->machine.n};
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        if (!tsr_node_output(node, i))
            continue;
        int64_t bytes = whole_number(part_bytes(estimate, tsr_node_output(node, i)));
        estimate->cost.comm += tsr__planner_combine(planner, TSR_ALL_REDUCE, &all, 1, bytes);
        estimate->cost.sums++;
    }
}

// Adds the time of a simpler node on the slowest device, and of reducing its sums. Call it after
// the nodes that produce the inputs of `node`.
static void add_node_cost(struct estimate *estimate, const tsr_node *node)
{
    const struct planner *planner = estimate->builder->planner;
    int64_t sizes[RULE_MAX_FACTORS], local[RULE_MAX_FACTORS], cuts[RULE_MAX_FACTORS];
    const struct rule *rule = tsr__rule_of(estimate->builder->arena, node, estimate->shapes);
    bool sums = false;
    if (!rule)
        return;
    tsr__planner_sizes(estimate->shapes, node, rule, sizes);
    factor_cuts(estimate, node, rule, cuts);
    for (int factor = 0; factor < rule->n_factors; factor++) {
        sizes[factor] = int64_max(sizes[factor], 1);
        local[factor] = div_up(sizes[factor], cuts[factor]);
        sums = sums || (rule->factors[factor].kind == FACTOR_RED && cuts[factor] > 1);
    }
    for (int i = 0; i < rule->n_outputs && (size_t)i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, (size_t)i))
            note_cuts(estimate, tsr_node_output(node, (size_t)i), &rule->outputs[i], cuts);
    double work = tsr__node_work(rule, tsr__node_count(node, estimate->shapes), sizes, local);
    if (!tsr__node_reads_constants(node))
        estimate->cost.compute +=
            tsr__work_cost(work, tsr__work_kind(node, estimate->shapes, planner->machine.topology),
                           bytes_of_node(estimate, node, rule), &planner->machine.slowest);
    if (sums)
        add_sum(estimate, node);
}

struct expanded_cost tsr__builder_expanded(struct candidate_builder *builder)
{
    const struct expanded *nodes = builder->strategy->nodes;
    struct estimate estimate = {.builder = builder, .shapes = builder->strategy->nodes_shapes};
    note_reads(&estimate, nodes);
    for (size_t i = 0; i < nodes->n_nodes; i++)
        add_node_cost(&estimate, nodes->nodes[i]);
    return estimate.cost;
}
