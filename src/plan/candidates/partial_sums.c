// SPDX-License-Identifier: Apache-2.0
// partial_sums.c - where sums may stay in parts: only where two of them are added before anybody
// needs the sum, which then takes one communication in place of two. Elsewhere it gains nothing,
// and the candidates are spared.
//
//     A = MatMul(X, W)     cut along the sum: each device has a summand of A      may stay in parts: its reader Add can take them
//     B = MatMul(Y, V)     the same                                               may stay in parts
//     C = Add(A, B)        adds summand to summand: what it makes is in parts too, and takes one AllReduce in place of two
//     D = MatMul(Z, U)     read by Relu, which must not be given a summand        its sum is done at once
//
// Forward: which nodes could give parts (they make sums, or pass parts on, and every reader can
// take them). Backward, from the nodes that add two of them: who is wanted to.
#include "plan/costs/planner.h"

struct delaying {
    struct planner *planner;
    bool *can;    // by node: what it gives may be in parts, and its readers could take them
    bool *wanted; // by node: somebody adds it to another such value
    bool passes;  // all readers, so far
};

static int64_t producer_of(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *node = value ? tsr_value_producer(value) : NULL;
    if (!node)
        return -1;
    return planner->node_at[tsr__node_id(node)];
}

// Called for each reader of a value; false ends the walk. What a body reads must be done.
static bool takes(void *data, tsr_node *node, size_t input)
{
    struct delaying *delaying = data;
    bool here = tsr_node_graph(node) == tsr_model_graph(delaying->planner->model);
    delaying->passes =
        here && tsr__sum_fits(delaying->planner->shapes.model, node, input) != SUM_STOPS;
    return delaying->passes;
}

static bool makes_sums(const struct rule *rule)
{
    for (int factor = 0; factor < rule->n_factors; factor++)
        if (rule->factors[factor].kind == FACTOR_RED &&
            rule->factors[factor].combine == COMBINE_SUM)
            return true;
    return false;
}

// The input comes from a node that can give parts, and the node can take them.
static bool passes_input(const struct delaying *delaying, const tsr_node *node, size_t i)
{
    int64_t from = producer_of(delaying->planner, tsr_node_input(node, i));
    return from >= 0 && delaying->can[from] &&
           tsr__sum_fits(delaying->planner->shapes.model, node, i) != SUM_STOPS;
}

// The node has summands to give: it makes a sum, or an input comes in parts.
static bool has_parts(const struct delaying *delaying, const struct plan_node *node)
{
    if (!node->rule || node->rule->whole)
        return false;
    if (makes_sums(node->rule))
        return true;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++)
        if (passes_input(delaying, node->node, i))
            return true;
    return false;
}

// Its only output may be in parts, and all who read it can take them.
static bool can_give(struct delaying *delaying, size_t i)
{
    const struct plan_node *node = &delaying->planner->nodes[i];
    if (tsr_node_output_count(node->node) != 1 || !has_parts(delaying, node))
        return false;
    const tsr_value *value = tsr_node_output(node->node, 0);
    if (!value || tsr_value_is_output(value))
        return false;
    // False stays where nobody reads it.
    delaying->passes = false;
    tsr_value_uses(value, takes, delaying);
    return delaying->passes;
}

// Two different inputs in parts are added here.
static bool merges(const struct delaying *delaying, const tsr_node *node)
{
    const tsr_value *first = NULL;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (!value || tsr__sum_fits(delaying->planner->shapes.model, node, i) != SUM_ADDS ||
            !passes_input(delaying, node, i))
            continue;
        if (first && first != value)
            return true;
        first = value;
    }
    return false;
}

// Backward: a node is wanted to give parts if a reader adds two of them, or is itself wanted to
// give what it makes of them.
bool tsr__planner_delays(struct planner *planner)
{
    struct delaying delaying = {.planner = planner};
    delaying.can = ARENA_ARRAY(&planner->arena, bool, planner->n_nodes + 1);
    delaying.wanted = ARENA_ARRAY(&planner->arena, bool, planner->n_nodes + 1);
    if (!delaying.can || !delaying.wanted || planner->machine.n < 2 || planner->scope.sums_done)
        return !planner->arena.failed;
    // Forward: a node that passes parts on can give them only if some input of it can.
    for (size_t i = 0; i < planner->n_nodes; i++)
        delaying.can[i] = planner->nodes[i].rule && can_give(&delaying, i);
    for (size_t i = planner->n_nodes; i-- > 0;) {
        struct plan_node *node = &planner->nodes[i];
        node->delays = delaying.wanted[i] && delaying.can[i];
        if (!node->rule || !(node->delays || merges(&delaying, node->node)))
            continue;
        for (size_t k = 0; k < tsr_node_input_count(node->node); k++)
            if (passes_input(&delaying, node->node, k)) {
                delaying.wanted[producer_of(planner, tsr_node_input(node->node, k))] = true;
                node->takes = true;
            }
    }
    return true;
}
