// SPDX-License-Identifier: Apache-2.0
// solve_prune.c - reduced-cost fixing: removes the choices that no better solution can have.
//
// The dual gives a lower bound for all solutions with a given choice (tsr__dual_through). If that
// bound is above the known cost, the choice is forbidden. If the gap is small, few choices are
// left. The restricted program often has a treewidth that is small enough for elimination, which
// proves the known solution or finds a better one.
//
//     Example: 30 nodes have 819 choices, the known cost is 67.34 and the bound is 67.20. 150
//     choices have bounds up to 67.34; the program restricted to them is solved at once.
//
// A solution that is better than the known one has no forbidden choice. So the restricted program
// has the same optimum, unless the known solution is already optimal.
#include "solve.h"

#include <math.h>

#define KEPT_SHARE 0.5 // if more of the choices are kept, another solve is not worth it

// Returns a margin that is larger than the rounding error of the sums.
static double margin(const struct dual *dual)
{
    return 1e-9 * (fabs(dual->bound) + dual->best_paid) + 1;
}

// Copies the costs of a node, with COST_FORBIDDEN for choices whose bound is above `most`.
static void forbid(const struct dense *dense, uint32_t v, const double *bound, double most,
                   struct program_node *node)
{
    const struct core_node *from = &dense->core->nodes[dense->node[v]];
    int64_t *cost = HEAP_ARRAY(dense->heap, int64_t, node->k);
    if (!cost)
        return;
    memcpy(cost, node->cost, node->k * sizeof *cost);
    for (uint32_t choice = 0; choice < dense->k[v]; choice++)
        if (bound[choice] > most)
            cost[from->origin[choice]] = COST_FORBIDDEN;
    node->cost = cost;
}

// Buffers for the bounds of one node.
struct bounds {
    double *of, *left, *through;
};

static bool make_room(const struct dense *dense, struct bounds *bounds)
{
    bounds->of = HEAP_ARRAY(dense->heap, double, dense->most_k);
    bounds->left = HEAP_ARRAY(dense->heap, double, dense->most_k);
    bounds->through = HEAP_ARRAY(dense->heap, double, dense->most_k);
    return !dense->heap->failed;
}

static bool is_worth_it(const struct dual *dual, const struct bounds *bounds, double most)
{
    const struct dense *dense = dual->dense;
    uint64_t all = 0, left = 0;
    for (uint32_t v = 0; v < dense->n; v++) {
        tsr__dual_through(dual, v, bounds->of, bounds->left, bounds->through);
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            left += bounds->of[choice] <= most;
        all += dense->k[v];
    }
    return (double)left <= KEPT_SHARE * (double)all;
}

bool tsr__prune(struct dual *dual, const struct program *program, int64_t cost, struct program *out)
{
    const struct dense *dense = dual->dense;
    struct bounds bounds;
    tsr__dual_pass(dual); // the multipliers may have changed since the last pass
    double most = (double)cost + margin(dual);
    if (!make_room(dense, &bounds) || !is_worth_it(dual, &bounds, most))
        return false;
    *out = *program;
    out->nodes.at = HEAP_ARRAY(dense->heap, struct program_node, program->nodes.n + 1);
    if (!out->nodes.at)
        return false;
    memcpy(out->nodes.at, program->nodes.at, program->nodes.n * sizeof *out->nodes.at);
    for (uint32_t v = 0; v < dense->n && !dense->heap->failed; v++) {
        tsr__dual_through(dual, v, bounds.of, bounds.left, bounds.through);
        forbid(dense, v, bounds.of, most, &out->nodes.at[dense->node[v]]);
    }
    return !dense->heap->failed;
}
