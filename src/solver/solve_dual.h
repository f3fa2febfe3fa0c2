// SPDX-License-Identifier: Apache-2.0
// solve_dual.h - lower bounds by a Lagrangian dual: tree-reweighted message passing (TRW-S) for the
// tables, multipliers (lambda) for the rows.
#ifndef TSR_SOLVER_SOLVE_DUAL_H
#define TSR_SOLVER_SOLVE_DUAL_H

#include "solve_dense.h"

struct dual {
    const struct dense *dense;
    struct heap *heap;
    double **unary;        // by node: cost plus multipliers times usage
    double **table;        // by edge; 1e30: forbidden
    double **to_a, **to_b; // by edge: messages to its nodes
    double *gamma;
    double *lambda, *prefix; // by row
    double *sum, *rest;      // scratch: one entry per choice
    uint32_t *argmin;        // by node, of the last pass down
    double bound;            // of the last pass down
    double best;             // largest bound so far
    double best_paid;        // its multipliers times the rows' bounds
    double *best_lambda;
    uint64_t cells; // visited by one pass
};
bool tsr__dual_init(struct dual *dual, const struct dense *dense);
// Costs of a node's choices plus all messages to it.
void tsr__dual_gather(const struct dual *dual, uint32_t v, double *sum);
void tsr__dual_apply_lambda(struct dual *dual); // updates unary after a change of lambda
void tsr__dual_pass(struct dual *dual);         // up and down; sets bound and argmin
// Repeats the last pass down in integers, without rounding errors; 0: that is not possible
// (solve_exact.c).
int64_t tsr__dual_exact(const struct dual *dual);
// Rounds the messages to an assignment.
void tsr__dual_round(struct dual *dual, uint32_t *x);
// By node: how much x is above the bound there.
void tsr__dual_slack(const struct dual *dual, const uint32_t *x, double *slack);
// Call it right after a pass. By choice of v: no solution with that choice costs less. left and
// through are scratch, one entry per choice.
void tsr__dual_through(const struct dual *dual, uint32_t v, double *out, double *left,
                       double *through);
// One subgradient step towards target; load is scratch by row.
void tsr__dual_step(struct dual *dual, double target, int64_t *load);

#endif
