// SPDX-License-Identifier: Apache-2.0
// solve_front.h - exact elimination with constraint rows: every cell holds a Pareto front of cost
// and usage.
#ifndef TSR_SOLVER_SOLVE_FRONT_H
#define TSR_SOLVER_SOLVE_FRONT_H

#include "solve_dense.h"

#define FRONT_ROWS 6 // limit of active rows

struct front {
    const struct dense *dense;
    struct tree *tree;         // tree of all nodes
    uint32_t rows[FRONT_ROWS]; // active from the start: all rows with a multiplier
    uint32_t n_rows;
    const double *lambda; // multipliers, by row
    struct effort *effort;
    uint64_t max_points;
};
enum front_end {
    FRONT_FOUND,  // x is optimal, with *cost < threshold
    FRONT_NONE,   // no solution costs less than threshold
    FRONT_OVER,   // effort or max_points was exceeded
    FRONT_FAILED, // out of memory
};
// Finds the best solution below the threshold. Activates further rows as needed.
enum front_end tsr__front(struct front *front, int64_t threshold, uint32_t *x, int64_t *cost);

#endif
