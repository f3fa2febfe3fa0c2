// SPDX-License-Identifier: Apache-2.0
// solve_search.h - answers for a wide core: from the bound's messages, then by large exact moves.
#ifndef TSR_SOLVER_SOLVE_SEARCH_H
#define TSR_SOLVER_SOLVE_SEARCH_H

#include "solve_region.h"

#define SEARCH_PLANS 24 // sets of nodes that are conditioned on, kept for a while

struct move_plan {
    uint8_t *fixed;
    struct tree tree;
    bool made;
};
struct search {
    const struct wide *wide;
    struct heap *heap;
    struct effort *effort;
    struct dual dual;
    // the best answer so far
    bool found;
    uint32_t *best;
    int64_t best_cost;
    int64_t sure; // a bound in whole numbers
    // steps of the prices
    double reach, last;
    int since;
    uint64_t pass_work, repair_work; // spent so far
    // moves
    struct move_plan plans[SEARCH_PLANS];
    uint64_t max_cells;
    int64_t **penalty, **unary; // by node and choice
    double *trial, *prefix;     // prices of one move, by row
    int64_t *load;
    uint32_t *x, *y, *queue;
    uint64_t random;
    bool local; // large: moves are of regions
    struct region region;
};
bool tsr__search_init(struct search *search, const struct wide *wide, struct effort *effort,
                      uint64_t seed);
void tsr__search_done(struct search *search);
// Raises the bound, with answers on the way.
void tsr__search_climb(struct search *search, int passes);
// Moves from the best answer; none is tried if there is no answer.
void tsr__search_polish(struct search *search, int rounds);
// A first answer by other means, where climbing gave none.
void tsr__search_dive(struct search *search);
// Makes an assignment without forbidden pairs keep the rows, and offers it; false: it is not taken.
bool tsr__search_settle(struct search *search, uint32_t *x, int tries);
// The exact minimum under prices, where the whole is narrow: bound, answer, and its load.
void tsr__search_exact(struct search *search, struct tree *tree, const double *lambda);
// From the best answer and those at lower prices, where the whole is narrow.
void tsr__search_relax(struct search *search, struct tree *tree, const double *lambda);
// Offers an assignment; true if it keeps all rows and is the best so far.
bool tsr__search_offer(struct search *search, const uint32_t *x);
// The proved bound, as an integer.
int64_t tsr__search_bound(const struct search *search);
// Whether the best answer is proved to be the best of all.
bool tsr__search_proved(const struct search *search);

#endif
