// SPDX-License-Identifier: Apache-2.0
// solve_wide.h - a core that is too wide for elimination, as the search sees it.
//
// Nodes that are left are numbered densely. Rows are those of the core; uses are spans of rows. The
// search prices rows (lambda), conditions on some nodes so that the rest is narrow, and eliminates
// the rest exactly: one move decides most nodes at once.
#ifndef TSR_SOLVER_SOLVE_WIDE_H
#define TSR_SOLVER_SOLVE_WIDE_H

#include "solve_tree.h"

struct wide_use {
    uint32_t begin, end;
    const int64_t *usage;
};
struct wide {
    const struct core *core;
    struct heap *heap;
    uint32_t n, n_edges, n_rows;
    uint32_t *node; // in the core
    uint32_t *k;
    int64_t **cost;          // of the core
    struct tree_edge *edges; // a, b dense
    uint32_t *first, *touch; // edges of node v: touch[first[v]] .. touch[first[v + 1] - 1]
    uint32_t *first_use;     // uses of node v, likewise
    struct wide_use *uses;
    const int64_t *bound;
    int64_t scale; // what a row may hold, at most: for steps of prices
};
bool tsr__wide_init(struct wide *wide, const struct core *core, struct heap *heap);

// Cost of an assignment; NEVER.
int64_t tsr__wide_cost(const struct wide *wide, const uint32_t *x);
// Sums of usages by row.
void tsr__wide_load(const struct wide *wide, const uint32_t *x, int64_t *load);
// Largest excess over a bound; <= 0: feasible.
int64_t tsr__wide_excess(const struct wide *wide, const int64_t *load);

#endif
