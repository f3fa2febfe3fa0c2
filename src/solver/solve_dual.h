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
    uint32_t *argmin;        // for each node, its best choice in the last pass down
    double bound;            // bound of the last pass down
    double best;             // largest bound so far
    double best_paid;        // for that bound: the multipliers times the bounds of the rows
    double *best_lambda;
    uint64_t cells; // number of cells that one pass visits
};
bool tsr__dual_init(struct dual *dual, const struct dense *dense);
// Sums the costs of a node's choices and all messages to it.
void tsr__dual_gather(const struct dual *dual, uint32_t v, double *sum);
void tsr__dual_apply_lambda(struct dual *dual); // updates unary after a change of lambda
void tsr__dual_pass(struct dual *dual);         // up and down; sets bound and argmin
// Repeats the last pass down in integers, without rounding errors (solve_exact.c). Returns 0 if
// that is not possible.
int64_t tsr__dual_exact(const struct dual *dual);
// Rounds the messages to an assignment.
void tsr__dual_round(struct dual *dual, uint32_t *x);
// Distributes the difference between the cost of x and the bound over the nodes.
void tsr__dual_slack(const struct dual *dual, const uint32_t *x, double *slack);
// Must be called right after a pass. out[c] becomes a lower bound for all solutions in which v
// takes choice c. `left` and `through` are scratch memory with one entry per choice.
void tsr__dual_through(const struct dual *dual, uint32_t v, double *out, double *left,
                       double *through);
// Makes one subgradient step towards `target`. `load` is scratch memory with one entry per row.
void tsr__dual_step(struct dual *dual, double target, int64_t *load);

#endif
