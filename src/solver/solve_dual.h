// SPDX-License-Identifier: Apache-2.0
// solve_dual.h - lower bounds for wide cores: sequential tree-reweighted message passing (TRW-S) for
// the tables, prices (lambda) for the rows, raised together.
#ifndef TSR_SOLVER_SOLVE_DUAL_H
#define TSR_SOLVER_SOLVE_DUAL_H

#include "solve_wide.h"

struct dual {
    const struct wide *wide;
    struct heap *heap;
    double **unary;        // cost and prices
    double **table;        // by edge; 1e30: forbidden
    double **to_a, **to_b; // messages of an edge to its nodes
    double *gamma;
    double *lambda, *prefix; // by row
    double *sum, *rest;      // scratch: one entry per choice
    uint32_t *argmin;        // by node, of the last pass down
    double bound;            // of the last pass down, prices included
    double best;             // largest bound so far
    double best_paid;        // what its prices pay for the bounds
    double *best_lambda;
    uint64_t cells; // of one pass
};
bool tsr__dual_init(struct dual *dual, const struct wide *wide);
// Costs of a node's choices with all messages to it.
void tsr__dual_gather(const struct dual *dual, uint32_t v, double *sum);
void tsr__dual_price(struct dual *dual); // lambda into unary
void tsr__dual_pass(struct dual *dual);  // forward and back; sets bound, argmin
// The bound of the last pass down done again in whole numbers, no more than it; 0 where that does not work (solve_exact.c).
int64_t tsr__dual_exact(const struct dual *dual);
// An assignment by the messages, decided in order.
void tsr__dual_round(struct dual *dual, uint32_t *x);
// By node: how much x is above the bound there, after the messages.
void tsr__dual_slack(const struct dual *dual, const uint32_t *x, double *slack);
// Right after a pass, by choice of v: no answer with that choice costs less. left and through are
// scratch, one entry per choice.
void tsr__dual_through(const struct dual *dual, uint32_t v, double *out, double *left,
                       double *through);
// One step of the prices towards target; load is scratch by row.
void tsr__dual_step(struct dual *dual, double target, int64_t *load);

#endif
