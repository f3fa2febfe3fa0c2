// SPDX-License-Identifier: Apache-2.0
// solve_region.h - local moves on a large core: a few nodes are decided anew and exactly, all others
// stay. The work of a move is that of its region and one look at the rows, not that of the whole.
#ifndef TSR_SOLVER_SOLVE_REGION_H
#define TSR_SOLVER_SOLVE_REGION_H

#include "solve_dual.h"

struct region {
    const struct wide *w;
    struct effort *effort;
    uint64_t *random;
    uint64_t max_cells;
    // where the moves start: an assignment without forbidden pairs
    uint32_t *x;
    int64_t cost;
    int64_t *room;        // by row: bound less load
    const double *lambda; // by row
    double *weight;       // by node: where there may be something to gain, summed up
    // the region
    uint32_t center;               // a node that it is all about, or NONE
    uint32_t n, *nodes, *place;    // place: by node of the core, or NONE
    uint32_t *k, *choice, *before; // choices are numbered by the options
    uint32_t **option;             // choices of the core that a node may take here
    uint8_t *fixed, *whole;        // whole: all of them, in order
    struct tree tree;
    LIST(struct tree_edge) edges;
    LIST(int64_t) cells, tables;
    LIST(uint32_t) options;
    int64_t **base, **unary;
    // spans of rows that the region does not tell apart
    uint32_t *span, n_spans;
    int64_t *room_of, *own, *held; // by span: what the region may use, uses now, used before
    double *price, *sum;
};
bool tsr__region_init(struct region *region, const struct wide *wide, struct effort *effort,
                      uint64_t *random);
// The assignment to start from, and prices.
void tsr__region_start(struct region *region, const uint32_t *x, const double *lambda);
// Weights for drawing regions, from what the messages say of x.
void tsr__region_weigh(struct region *region, const struct dual *dual);
// Few: that many choices of each node are looked at, by the messages; 0: all.
// Decides one region anew with the prices times factor; taken if rows are kept and the cost is at most
// `most`. True if something changed.
bool tsr__region_move(struct region *region, const struct dual *dual, uint32_t few, double factor,
                      int64_t most);
// The best of x and y: where they differ, either is taken.
bool tsr__region_fuse(struct region *region, const uint32_t *y, double factor, int64_t most);
// Moves until no row is broken; false: it did not work.
bool tsr__region_repair(struct region *region, int tries);

#endif
