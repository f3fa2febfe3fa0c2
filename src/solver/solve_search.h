// SPDX-License-Identifier: Apache-2.0
// solve_search.h - primal heuristics: rounding the dual's messages and large neighbourhood search.
#ifndef TSR_SOLVER_SOLVE_SEARCH_H
#define TSR_SOLVER_SOLVE_SEARCH_H

#include "solve_region.h"

struct search {
    const struct dense *dense;
    struct heap *heap;
    struct effort *effort;
    struct dual dual;
    // the best solution so far
    bool found;
    uint32_t *best;
    int64_t best_cost;
    int64_t sure; // a bound computed in integers
    // state of the steps of the multipliers
    double reach, last;
    int since;
    uint64_t pass_work, repair_work; // effort used so far
    // state of the moves
    int64_t **penalty, **unary; // by node and choice
    double *trial, *prefix;     // multipliers of one move, by row
    int64_t *load;
    uint32_t *x, *y;
    uint64_t random;
    struct region region;
};
bool tsr__search_init(struct search *search, const struct dense *dense, struct effort *effort);
// Raises the bound and finds solutions meanwhile.
void tsr__search_climb(struct search *search, int passes);
// Improves the best solution, if there is one.
void tsr__search_polish(struct search *search, int rounds);
// Finds a first solution if climbing found none (solve_dive.c).
void tsr__search_dive(struct search *search);
// Repairs an assignment without forbidden pairs until it satisfies the rows, and offers it. Returns
// false if it was not taken.
bool tsr__search_settle(struct search *search, uint32_t *x, int tries);
// Minimizes the relaxation exactly, for programs of small treewidth: sets bound, solution and load.
void tsr__search_exact(struct search *search, struct tree *tree, const double *lambda);
// Combines the best solution with those at lower multipliers, for programs of small treewidth.
void tsr__search_relax(struct search *search, struct tree *tree, const double *lambda);
// Offers an assignment. Returns true if it satisfies all rows and is the best so far.
bool tsr__search_offer(struct search *search, const uint32_t *x);
// Returns the proved bound.
int64_t tsr__search_bound(const struct search *search);
// True if the best solution is proved optimal.
bool tsr__search_proved(const struct search *search);

#endif
