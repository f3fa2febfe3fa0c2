// SPDX-License-Identifier: Apache-2.0
// solve_region.h - large neighbourhood search: solves a few nodes exactly while all others are
// fixed. The time of a move depends on the size of its region, not of the program.
#ifndef TSR_SOLVER_SOLVE_REGION_H
#define TSR_SOLVER_SOLVE_REGION_H

#include "solve_dual.h"

struct region {
    const struct dense *dense;
    struct effort *effort;
    uint64_t *random;
    uint64_t max_cells;
    // the assignment from which moves start; it has no forbidden pairs
    uint32_t *x;
    int64_t cost;
    int64_t *row_slack;   // by row: slack (bound minus load)
    const double *lambda; // by row
    double *weight; // running sum of weights by node; a node is drawn in proportion to its weight
    // the region
    uint32_t center;               // a node that must not be fixed, or NONE
    uint32_t n, *nodes, *place;    // place[v] is the index of core node v here, or NONE
    uint32_t *k, *choice, *before; // choices are indices of options
    uint32_t **option;             // choices of the core that a node may take here
    uint8_t *fixed, *whole;        // whole: the node may take all its choices, in order
    struct tree tree;
    LIST(struct tree_edge) edges;
    LIST(int64_t) cells, tables;
    LIST(uint32_t) options;
    int64_t **base, **unary;
    // spans: rows that are equal for the region
    uint32_t *span, n_spans;
    int64_t *span_slack, *own, *held; // by span: slack, current usage, previous usage
    double *multiplier, *sum;
};
bool tsr__region_init(struct region *region, const struct dense *dense, struct effort *effort,
                      uint64_t *random);
// Sets the assignment to start from, and the multipliers.
void tsr__region_start(struct region *region, const uint32_t *x, const double *lambda);
// Sets the weights for drawing regions, from the slack of x in the dual.
void tsr__region_weigh(struct region *region, const struct dual *dual);
// Draws a region and solves it with the multipliers times `factor`. `few` limits the choices per
// node to the best by the messages; 0: all. Applies the result if it satisfies the rows and costs
// at most `most`. Returns true if it changed something.
bool tsr__region_move(struct region *region, const struct dual *dual, uint32_t few, double factor,
                      int64_t most);
// Finds the best mixture of x and y: nodes where they differ take either choice.
bool tsr__region_fuse(struct region *region, const uint32_t *y, double factor, int64_t most);
// Makes moves until no row is violated. Returns false if it did not succeed.
bool tsr__region_repair(struct region *region, int tries);

#endif
