// SPDX-License-Identifier: Apache-2.0
// explain.c - explains the sharding of a node: lists its candidates, and the cost of the best plan
// with each of them.
//
//     Example: by itself, "m/4" of a MatMul takes 1.46 ms and "n/4" 1.38 ms. But the cost of the
//     plan decides: the best plan takes 1.736 ms with "m/4" and 1.649 ms with "n/4" (marginals of
//     the variable, solver/solver.h).
#include "plan/program/program.h"

#include <errno.h>
#include <stdlib.h>

// ---- names -------------------------------------------------------------------------------------

// Reads an index: "#60" gives 60; -1: not an index.
static int64_t index_of(const char *name)
{
    char *end;
    if (name[0] != '#' || name[1] < '0' || name[1] > '9')
        return -1;
    errno = 0;
    long long i = strtoll(name + 1, &end, 10);
    return errno || *end ? -1 : i;
}

// True if the text is the node's name, its index in the main graph or one of its outputs. An output
// of a node with bodies names its border.
static bool is_named(const struct plan_node *node, const char *name)
{
    int64_t index = in_main_graph(node) ? index_of(name) : -1;
    if (!node->border && strcmp(tsr_node_name(node->node), name) == 0)
        return true;
    if (index >= 0 && tsr_node_index(node->node) == index)
        return true;
    for (size_t o = 0; o < tsr__plan_makes(node); o++) {
        const tsr_value *value = tsr__plan_made(node, o);
        if (value && strcmp(tsr_value_name(value), name) == 0)
            return true;
    }
    return false;
}

// Returns the first planned node with this name, index or output, in graph order; names need not be
// unique. NULL: none.
const struct plan_node *tsr__planner_find(const struct planner *planner, const char *name)
{
    const tsr_node *inner = NULL; // of a subgraph: outer > then_branch > inner
    if (strstr(name, " > "))
        inner = tsr_model_find_node(planner->model, name);
    for (size_t i = 0; i < planner->n_nodes; i++) {
        const struct plan_node *node = &planner->nodes[i];
        bool found = inner ? node->node == inner && !node->border : is_named(node, name);
        if (node->strategy && found)
            return node;
    }
    return NULL;
}

const struct plan_node *tsr__planner_find_common(const struct planner *planner,
                                                 const unsigned char *staged, const char *name)
{
    for (size_t i = 0; i < planner->n_nodes; i++) {
        uint32_t id = tsr__node_id(planner->nodes[i].node);
        bool common = planner->node_at[id] >= 0 && !staged[id];
        if (common && is_named(&planner->nodes[i], name))
            return &planner->nodes[i];
    }
    return NULL;
}

// ---- candidates ---------------------------------------------------------------------------------

// Adds one tensor of a candidate to the list; absent tensors are skipped.
static void add_tensor(const struct planner *planner, const tsr_value *value, uint32_t layout,
                       tsr_plan_tensor *list, size_t *n)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    if (!value || layout == PLAN_NO_LAYOUT)
        return;
    list[(*n)++] = (tsr_plan_tensor){
        .value = tsr__arena_str(arena, tsr__value_str(value)).p,
        .sharding = tsr__notation_print(arena, planner->layouts.at[layout].tiles).p,
        .in_parts = planner->layouts.at[layout].parts != NULL,
    };
}

bool tsr__choice_tensors(const struct planner *planner, const struct plan_node *node,
                         const struct candidate *candidate, tsr_plan_choice *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    size_t n_in = tsr__plan_reads(node), n_out = tsr__plan_makes(node);
    tsr_plan_tensor *in = ARENA_ARRAY(arena, tsr_plan_tensor, n_in + 1);
    tsr_plan_tensor *made = ARENA_ARRAY(arena, tsr_plan_tensor, n_out + 1);
    if (!in || !made)
        return false;
    out->n_inputs = out->n_outputs = 0;
    for (size_t i = 0; i < n_in; i++)
        add_tensor(planner, tsr__plan_read(node, i), candidate->in[i], in, &out->n_inputs);
    for (size_t i = 0; i < n_out; i++)
        add_tensor(planner, tsr__plan_made(node, i), candidate->out[i], made, &out->n_outputs);
    out->inputs = in;
    out->outputs = made;
    return !arena->failed;
}

tsr_status tsr__planner_explain(struct planner *planner, const struct program *program,
                                const char *name, tsr_plan_result *out)
{
    struct arena *arena = &planner->session->results[RESULT_PLAN];
    const struct plan_node *node = tsr__planner_find(planner, name);
    if (!node)
        return tsr__fail(planner->session, TSR_INVALID, DIAG_plan_node,
                         &PLACE(.node = str_of(name)),
                         "give a node name, one of its outputs, or #index",
                         "no node with that name contributes to an output of the model");
    size_t k = node->strategy->at.n; // number of candidates
    struct program_marginal *marginal = ARENA_ARRAY(arena, struct program_marginal, k + 1);
    tsr_plan_choice *list = ARENA_ARRAY(arena, tsr_plan_choice, k + 1);
    if (!marginal || !list)
        return TSR_NOMEM;
    // There may be one solve per candidate, so each gets a share of the budget.
    struct program_options options = tsr__budget_share(planner->budget, 1.0 / (double)(k + 1));
    TRY(tsr__program_marginals(program, &options, &planner->arena, node->var, marginal));
    for (size_t i = 0; i < k; i++) {
        const struct candidate *candidate = &node->strategy->at.at[i];
        list[i] = (tsr_plan_choice){.name = tsr__arena_str(arena, candidate->name).p,
                                    .chosen = i == node->choice,
                                    .feasible = marginal[i].feasible,
                                    .undecided = !marginal[i].feasible && !marginal[i].infeasible,
                                    .cost = marginal[i].feasible ? marginal[i].cost : 0,
                                    .compute = candidate->compute,
                                    .communication = candidate->comm,
                                    .weights = candidate->weights,
                                    .reduction = candidate->reduction};
        if (!tsr__choice_tensors(planner, node, candidate, &list[i]))
            return TSR_NOMEM;
    }
    out->choices = list;
    out->facts.n_choices = k;
    return arena_status(arena);
}
