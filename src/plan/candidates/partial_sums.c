// SPDX-License-Identifier: Apache-2.0
// partial_sums.c - finds sums that should stay partial: those that are added to another partial
// sum. One reduction then replaces two. In other places, delaying a reduction has no advantage.
//
//     A = MatMul(X, W)   sharded along the sum: partial on each device  may stay partial
//     B = MatMul(Y, V)   the same                                       may stay partial
//     C = Add(A, B)      adds partial sums: one AllReduce instead of two
//     D = MatMul(Z, U)   read by Relu, which needs the full sum         is reduced at once
//
// A forward pass finds the nodes that can produce partial sums: they make sums or pass them on, and
// every reader can add them. A backward pass starts at the nodes that add two partial sums. It
// finds the nodes that should produce them.
#include "plan/candidates/strategies.h"

struct partial_sums {
    const struct planner *planner;
    bool *can;    // by node: its output may be partial, and its readers could add it
    bool *wanted; // by node: a reader adds it to another partial sum
    bool passes;  // all readers visited so far can add partial sums
};

// Checks one reader of a value. Returns false, which ends the iteration, if the reader needs the
// full sum. Readers in a subgraph always do.
static bool takes(void *data, tsr_node *node, size_t input)
{
    struct partial_sums *sums = data;
    bool here = tsr_node_graph(node) == tsr_model_graph(sums->planner->model);
    sums->passes = here && tsr__sum_fits(sums->planner->shapes.model, node, input) != SUM_STOPS;
    return sums->passes;
}

static bool makes_sums(const struct rule *rule)
{
    for (int factor = 0; factor < rule->n_factors; factor++)
        if (rule->factors[factor].kind == FACTOR_RED &&
            rule->factors[factor].combine == COMBINE_SUM)
            return true;
    return false;
}

// True if the producer of the input can leave a partial sum, and this node can read it.
static bool passes_input(const struct partial_sums *sums, const tsr_node *node, size_t i)
{
    int64_t from = tsr__planned_producer(sums->planner, tsr_node_input(node, i));
    return from >= 0 && sums->can[from] &&
           tsr__sum_fits(sums->planner->shapes.model, node, i) != SUM_STOPS;
}

// True if the node makes a sum, or an input can be a partial sum.
static bool has_parts(const struct partial_sums *sums, const struct plan_node *node)
{
    if (!node->rule || node->rule->whole)
        return false;
    if (makes_sums(node->rule))
        return true;
    for (size_t i = 0; i < tsr_node_input_count(node->node); i++)
        if (passes_input(sums, node->node, i))
            return true;
    return false;
}

// True if the only output of the node may be a partial sum and all its readers accept it.
static bool can_give(struct partial_sums *sums, size_t i)
{
    const struct plan_node *node = &sums->planner->nodes[i];
    if (tsr_node_output_count(node->node) != 1 || !has_parts(sums, node))
        return false;
    const tsr_value *value = tsr_node_output(node->node, 0);
    if (!value || tsr_value_is_output(value))
        return false;
    // `passes` stays false if there is no reader.
    sums->passes = false;
    tsr_value_uses(value, takes, sums);
    return sums->passes;
}

// True if the node can add two different partial sums.
static bool merges(const struct partial_sums *sums, const tsr_node *node)
{
    const tsr_value *first = NULL;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (!value || tsr__sum_fits(sums->planner->shapes.model, node, i) != SUM_ADDS ||
            !passes_input(sums, node, i))
            continue;
        if (first && first != value)
            return true;
        first = value;
    }
    return false;
}

// Finds the nodes that may leave their sum partial (`delays`) and those that may read partial sums
// (`takes`), by index. Backward pass: a node should leave its sum partial if a reader adds two
// partial sums, or passes them on to such a reader.
static void find(struct partial_sums *sums, bool *delays, bool *takes)
{
    const struct planner *planner = sums->planner;
    // Forward pass: a node passes partial sums on only if an input can be one.
    // Sums in bodies are reduced at once.
    for (size_t i = 0; i < planner->n_nodes; i++)
        sums->can[i] =
            planner->nodes[i].rule && in_main_graph(&planner->nodes[i]) && can_give(sums, i);
    for (size_t i = planner->n_nodes; i-- > 0;) {
        const struct plan_node *node = &planner->nodes[i];
        delays[i] = sums->wanted[i] && sums->can[i];
        if (!node->rule || !(delays[i] || merges(sums, node->node)))
            continue;
        for (size_t k = 0; k < tsr_node_input_count(node->node); k++)
            if (passes_input(sums, node->node, k)) {
                sums->wanted[tsr__planned_producer(planner, tsr_node_input(node->node, k))] = true;
                takes[i] = true;
            }
    }
}

// Finds the nodes once for all planners. False: out of memory.
static bool find_once(const struct planner *planner, struct planner_common *common)
{
    struct partial_sums sums = {.planner = planner};
    if (common->delays)
        return true;
    sums.can = ARENA_ARRAY(common->arena, bool, planner->n_nodes + 1);
    sums.wanted = ARENA_ARRAY(common->arena, bool, planner->n_nodes + 1);
    bool *delays = ARENA_ARRAY(common->arena, bool, planner->n_nodes + 1);
    common->takes = ARENA_ARRAY(common->arena, bool, planner->n_nodes + 1);
    if (!sums.can || !sums.wanted || !delays || !common->takes)
        return false;
    find(&sums, delays, common->takes);
    common->delays = delays;
    return true;
}

bool tsr__partial_sums_mark(struct planner *planner)
{
    struct planner_common *common = planner->shapes.common;
    if (planner->machine.n < 2 || planner->scope.sums_done)
        return true;
    if (!find_once(planner, common))
        return false;
    for (size_t i = 0; i < planner->n_nodes; i++) {
        planner->nodes[i].delays = common->delays[i];
        planner->nodes[i].takes = common->takes[i];
    }
    return true;
}
