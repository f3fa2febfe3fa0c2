// SPDX-License-Identifier: Apache-2.0
// expansions.c - whether a node that cuts what its operator takes statistics of can be replaced by
// simpler nodes: it is tried in a copy of the model, which is thrown away. Once for nodes that are
// alike.
//
//     Softmax over 1000 classes cut in 4: exp(x - max) / sum needs the greatest of all and the sum of all. tsr__rule_expand
//     makes ReduceMax, Sub, Exp, ReduceSum and Div of it, which can be cut, or says that it cannot.
#include "plan/candidates.h"

// The copy is made when it is first needed; its nodes stand in the same order as the model's.
static bool make_copy(struct planner *planner)
{
    if (planner->trial.model)
        return true;
    planner->trial.twins = ARENA_ARRAY(&planner->arena, tsr_node *, planner->n_nodes + 1);
    if (!planner->trial.twins || tsr_model_clone(planner->model, &planner->trial.model) != TSR_OK)
        return false;
    tsr_node *node = tsr_graph_first(tsr_model_graph(planner->trial.model));
    for (size_t i = 0; i < planner->n_nodes; i++) {
        if (!node)
            return false;
        planner->trial.twins[i] = node;
        node = tsr_node_next(node);
    }
    return true;
}

// The twin is gone or changed afterwards, so it cannot be tried again.
static bool try_it(struct making *making)
{
    struct planner *planner = making->planner;
    struct expanded expanded = {0};
    int64_t at = planner->node_at[tsr__node_id(making->node)];
    if (at < 0 || !make_copy(planner) || !planner->trial.twins[at])
        return false;
    tsr_node *twin = planner->trial.twins[at];
    planner->trial.twins[at] = NULL;
    return tsr__rule_expand(making->arena, twin, making->node, planner->shapes.model,
                            making->place.rule, making->place.cuts, &expanded) == TSR_OK;
}

bool tsr__making_expands(struct making *making)
{
    if (!making->strategy->asked)
        making->strategy->expands = try_it(making);
    making->strategy->asked = true;
    return making->strategy->expands;
}
