// SPDX-License-Identifier: Apache-2.0
// solve_search.c - primal heuristics: finds solutions from the dual's messages and improves them by
// large neighbourhood search.
//
// solve.c alternates between two steps. Climbing (tsr__search_climb) passes messages and raises
// multipliers; every few passes the messages are rounded to a candidate solution. Polishing
// (tsr__search_polish) improves the best solution by moves: each solves one region exactly while
// all other nodes are fixed (solve_region.c).
#include "solve.h"

#include <math.h>

// Allocates one array of cells for all nodes; rows[v] points to the cells of node v.
static int64_t **rows_of(const struct dense *dense)
{
    size_t n = 0;
    for (uint32_t v = 0; v < dense->n; v++)
        n += dense->k[v];
    int64_t **rows = HEAP_ARRAY(dense->heap, int64_t *, (size_t)dense->n + 1);
    int64_t *cells = HEAP_ARRAY(dense->heap, int64_t, n + 1);
    if (!rows || !cells)
        return rows;
    for (uint32_t v = 0; v < dense->n; v++) {
        rows[v] = cells;
        cells += dense->k[v];
    }
    return rows;
}

bool tsr__search_init(struct search *search, const struct dense *dense, struct effort *effort)
{
    struct heap *heap = dense->heap;
    *search = (struct search){.dense = dense, .effort = effort, .random = 1, .reach = 1};
    search->best_cost = NEVER;
    search->unary = rows_of(dense);
    search->prefix = HEAP_ARRAY(heap, double, (size_t)dense->n_rows + 1);
    search->load = HEAP_ARRAY(heap, int64_t, (size_t)dense->n_rows + 1);
    search->x = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    search->y = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    search->best = HEAP_ARRAY(heap, uint32_t, (size_t)dense->n + 1);
    if (!tsr__region_init(&search->region, dense, effort, &search->random))
        return false;
    return !heap->failed && tsr__dual_init(&search->dual, dense);
}

// Accepts an assignment if it is the best so far. Checks the cost before the constraints, because
// most assignments cost too much.
bool tsr__search_offer(struct search *search, const uint32_t *x)
{
    int64_t cost = tsr__dense_cost(search->dense, x);
    if (cost >= search->best_cost)
        return false;
    tsr__dense_load(search->dense, x, search->load);
    if (tsr__dense_worst(search->dense, search->load) != NONE)
        return false;
    search->found = true;
    search->best_cost = cost;
    memcpy(search->best, x, search->dense->n * sizeof(*x));
    return true;
}

// Returns the bound as an integer. `best` is a sum of doubles: subtracts a margin, then rounds up,
// because costs are integers. Example: a bound of 41.2 means that no solution costs less than 42.
// `sure` is exact and needs no margin.
int64_t tsr__search_bound(const struct search *search)
{
    // subtract more than the rounding error
    double magnitude = fabs(search->dual.best) + search->dual.best_paid;
    double bound = search->dual.best - 1e-10 * magnitude - 1e-6;
    int64_t whole = 0;
    if (bound >= (double)NEVER)
        whole = NEVER;
    else if (bound > 0)
        whole = (int64_t)ceil(bound);
    return whole > search->sure ? whole : search->sure;
}

bool tsr__search_proved(const struct search *search)
{
    return search->found && tsr__search_bound(search) >= search->best_cost;
}

// ---- moves

bool tsr__search_settle(struct search *search, uint32_t *x, int tries)
{
    tsr__region_start(&search->region, x, search->dual.lambda);
    bool ok = tsr__region_repair(&search->region, tries * 100);
    memcpy(x, search->region.x, search->dense->n * sizeof(*x));
    return ok && tsr__search_offer(search, x);
}

// Draws a factor for the multipliers of the bound, which are only a guess: between exp(-3) and
// exp(3), mostly near 1. One time in four it is 0: then multipliers grow only for rows that a move
// violates.
static double draw_factor(struct search *search)
{
    double u = random_unit(&search->random) * 2 - 1;
    return random_next(&search->random) % 4 == 0 ? 0 : exp(u * u * u * 3);
}

// Solves regions, one after another. `few` limits a node's choices to the best by the messages, so
// that regions can be larger.
static void move_regions(struct search *search, int rounds)
{
    static const uint32_t few[] = {0, 0, 2, 3, 5, 8};
    struct region *region = &search->region;
    tsr__region_weigh(region, &search->dual);
    for (int i = 0; i < rounds; i++) {
        if (tsr__effort_over(search->effort))
            break;
        double factor = draw_factor(search);
        tsr__region_move(region, &search->dual, few[random_next(&search->random) % TSR_COUNT(few)],
                         factor, region->cost);
    }
}

// Rounds the messages, repairs and polishes the result, and combines it with the best solution.
static void restart(struct search *search, int rounds)
{
    struct region *region = &search->region;
    tsr__dual_round(&search->dual, search->x);
    if (tsr__dense_cost(search->dense, search->x) >= NEVER)
        return;
    tsr__region_start(region, search->x, search->dual.lambda);
    if (!tsr__region_repair(region, 2000))
        return;
    move_regions(search, rounds);
    memcpy(search->y, region->x, search->dense->n * sizeof(*search->y));
    tsr__search_offer(search, search->y);
    tsr__region_start(region, search->best, search->dual.best_lambda);
    for (int i = 0; i < 4; i++)
        tsr__region_fuse(region, search->y, 0.5 * i, region->cost);
    tsr__search_offer(search, region->x);
}

// Polishes the best solution. Half of the time, first makes and polishes another solution
// (restart).
void tsr__search_polish(struct search *search, int rounds)
{
    if (!search->found)
        return;
    if (random_next(&search->random) % 2)
        restart(search, rounds);
    tsr__region_start(&search->region, search->best, search->dual.best_lambda);
    move_regions(search, rounds);
    tsr__search_offer(search, search->region.x);
}

// Computes an exact bound and offers the solution. The tree has small treewidth, so the minimum of
// the relaxation is exact. This minimum, minus the multipliers times the row bounds, is a bound of
// the program.
void tsr__search_exact(struct search *search, struct tree *tree, const double *lambda)
{
    const struct dense *dense = search->dense;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        search->prefix[row + 1] = search->prefix[row] + lambda[row];
    tsr__dense_unary(dense, search->prefix, search->unary);
    int64_t least = tsr__tree_up(tree, search->unary);
    search->effort->work += tree->cells;
    if (least >= NEVER)
        return;
    tsr__tree_back(tree, search->unary, search->x);
    tsr__search_offer(search, search->x);
    tsr__dense_load(dense, search->x, search->load);
    double paid = 0;
    for (uint32_t row = 0; row < dense->n_rows; row++)
        paid += lambda[row] * (double)dense->bound[row];
    if ((double)least - paid > search->dual.best) {
        search->dual.best = (double)least - paid;
        search->dual.best_paid = paid;
        memcpy(search->dual.best_lambda, lambda, dense->n_rows * sizeof(double));
    }
}

// ---- climbing

// Rounds the messages to an assignment and offers it. If that is not accepted and `may_repair` is
// set, repairs it and offers it again.
static void try_rounding(struct search *search, bool may_repair)
{
    tsr__dual_round(&search->dual, search->x);
    if (tsr__dense_cost(search->dense, search->x) >= NEVER)
        return;
    // repairs are expensive in large programs: use more of the effort for passes
    if (tsr__search_offer(search, search->x) || !may_repair ||
        search->repair_work > search->pass_work / 2)
        return;
    uint64_t before = search->effort->work;
    tsr__search_settle(search, search->x, 12);
    search->repair_work += search->effort->work - before;
}

// Adapts `reach`: a step of the multipliers aims at a bound that is higher by this fraction. If the
// target is missed for a while, reach shrinks. When reach is tiny, it is reset and the best
// multipliers are restored. Returns true if they were restored; then no step is due.
static bool adapt_reach(struct search *search)
{
    struct dual *dual = &search->dual;
    if (dual->best > search->last + 0.1 * search->reach * fabs(dual->best)) {
        search->last = dual->best;
        search->since = 0;
        return false;
    }
    if (++search->since < 8)
        return false;
    search->since = 0;
    search->last = dual->best;
    search->reach *= 0.8;
    if (search->reach > 1e-4)
        return false;
    search->reach = 0.1;
    memcpy(dual->lambda, dual->best_lambda, search->dense->n_rows * sizeof(double));
    tsr__dual_apply_lambda(dual);
    return true;
}

// Computes the bound exactly if doubles can no longer tell it from the best cost.
static void prove_exactly(struct search *search)
{
    double cost = (double)search->best_cost;
    if (!search->found || tsr__search_proved(search) ||
        search->dual.bound < cost - 1e-9 * fabs(cost) - 1)
        return;
    int64_t sure = tsr__dual_exact(&search->dual);
    if (sure > search->sure)
        search->sure = sure;
    search->effort->work += search->dual.cells;
}

// Improves bound and solution. Each iteration runs a pass, sometimes rounds the messages to an
// assignment, and makes a step of the multipliers. The target of the step is the best cost, or
// `reach` above the best bound if that is less.
void tsr__search_climb(struct search *search, int passes)
{
    struct dual *dual = &search->dual;
    for (int i = 0; i < passes && !tsr__effort_over(search->effort) && !tsr__search_proved(search);
         i++) {
        tsr__dual_pass(dual);
        search->effort->work += dual->cells + search->dense->n_rows;
        search->pass_work += dual->cells + search->dense->n_rows;
        if (i % 5 == 0)
            try_rounding(search, i % 50 == 0);
        if (i % 5 == 0)
            prove_exactly(search);
        if (search->dense->n_rows == 0 || adapt_reach(search))
            continue;
        double most = dual->best + search->reach * fabs(dual->best) + 1000 * search->reach;
        double target =
            search->found && (double)search->best_cost < most ? (double)search->best_cost : most;
        tsr__dual_step(dual, target, search->load);
    }
    prove_exactly(search);
}
