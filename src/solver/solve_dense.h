// SPDX-License-Identifier: Apache-2.0
// solve_dense.h - the reduced core with dense node numbers and compressed adjacency, for dual bound
// and search.
#ifndef TSR_SOLVER_SOLVE_DENSE_H
#define TSR_SOLVER_SOLVE_DENSE_H

#include "solve_tree.h"

struct dense_use {
    uint32_t begin, end;
    const int64_t *usage;
};
struct dense {
    const struct core *core;
    struct heap *heap;
    uint32_t n, n_edges, n_rows;
    uint32_t *node; // number in the core
    uint32_t *k;
    int64_t **cost;          // views of the core's costs
    struct tree_edge *edges; // a, b: dense numbers
    uint32_t *first, *touch; // edges of node v: touch[first[v]] .. touch[first[v + 1] - 1]
    uint32_t *first_use;     // uses of node v, in the same way
    struct dense_use *uses;
    const int64_t *bound;
    int64_t scale; // largest bound of a row, for the step size of multipliers
};
bool tsr__dense_init(struct dense *dense, const struct core *core, struct heap *heap);

// Returns the cost of an assignment, or NEVER if it is not allowed.
int64_t tsr__dense_cost(const struct dense *dense, const uint32_t *x);
// Sums the usages of each row.
void tsr__dense_load(const struct dense *dense, const uint32_t *x, int64_t *load);
// Returns the row that is violated most, or NONE.
uint32_t tsr__dense_worst(const struct dense *dense, const int64_t *load);
// Returns the largest violation of a row. If it is <= 0, the assignment satisfies all rows.
int64_t tsr__dense_excess(const struct dense *dense, const int64_t *load);

#endif
