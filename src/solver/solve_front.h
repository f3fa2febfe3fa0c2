// SPDX-License-Identifier: Apache-2.0
// solve_front.h - exact elimination under limits: every cell holds the best pairs of cost and usage.
#ifndef TSR_SOLVER_SOLVE_FRONT_H
#define TSR_SOLVER_SOLVE_FRONT_H

#include "solve_wide.h"

#define FRONT_ROWS 6 // rows that are looked at together, at most

struct front {
    const struct wide *wide;
    struct tree *tree;         // of all nodes
    uint32_t rows[FRONT_ROWS]; // that are active from the start: all that have a price
    uint32_t n_rows;
    const double *lambda; // prices, by row
    struct effort *effort;
    uint64_t max_points;
};
enum front_end {
    FRONT_FOUND,  // x is the best answer, of *cost < threshold
    FRONT_NONE,   // no answer costs less than threshold
    FRONT_OVER,   // too much work or memory
    FRONT_FAILED, // out of memory of the session
};
// Answers that cost less than threshold; rows that turn out to matter are added by itself.
enum front_end tsr__front(struct front *front, int64_t threshold, uint32_t *x, int64_t *cost);

#endif
