// SPDX-License-Identifier: Apache-2.0
// solve.c - the main function of the solver: runs the methods from the cheapest to the most
// expensive one.
//
// 1. Reductions that keep an optimum (solve_reduce.c, solve_dominance.c, solve_probe.c).
// 2. If the remaining graph has small treewidth: dynamic programming over a tree decomposition
//    (solve_tree.c), with Pareto fronts if there are constraint rows (solve_front.c).
// 3. Otherwise: Lagrangian dual bound and local search (solve_dual.c, solve_search.c), until bound
//    and cost are equal, nothing improves any more, or the effort is used up.
// 4. If the bound is close to the cost, it excludes most choices (prune), and the program
//    with the remaining choices is solved again.
#include "solve.h"

#include <math.h>

#define WORK         UINT64_C(4000000000) // table cells that a solve may visit by default
#define NARROW_CELLS (UINT64_C(1) << 21)  // largest table of an elimination
#define DIRECT_CELLS (UINT64_C(1) << 14)  // the same limit if no reductions ran before
#define FRONT_CELLS  (UINT64_C(1) << 17)  // the same limit with fronts
#define FRONT_POINTS (UINT64_C(1) << 23)  // limit of front points in memory
#define NEAR         1000000000           // a gap below cost / NEAR is good enough
#define PROVING      0.4                  // part of the effort for each phase of prove_by_fronts
#define MANY         400                  // with more nodes than this, fronts often fail
#define STALE        12                   // rounds of search without progress before giving up

// State of one solve. Costs are those of the core; costs of the program are larger by core.shift.
// `dense` is a view of the core. `tree` is valid if has_tree is set, `search` if has_search is.
struct solver {
    const struct program *program;
    struct heap heap;
    struct effort effort;
    struct core core;
    struct dense dense;
    struct search search;
    struct tree tree;
    bool has_search, has_tree;
    void (*progress)(void *context, const struct program_progress *progress);
    void *context;
    uint32_t *x, *y; // best solution and a candidate, by node of `dense`
    bool found;
    int64_t cost;          // cost of x
    int64_t bound;         // proved lower bound
    bool infeasible;       // proved to have no solution
    int64_t max_cost;      // no solution costs more
    double max_multiplier; // sums stay in range with Lagrange multipliers up to this
    bool pruned;           // any solution better than x is a solution of `rest`
    struct program rest;
};

// Calls the caller's progress function, if any, with costs of the program.
static void report_progress(const struct solver *solver, const char *step)
{
    if (!solver->progress)
        return;
    struct program_progress progress = {.seconds = tsr__effort_elapsed(&solver->effort),
                                        .nodes = solver->dense.n,
                                        .edges = solver->dense.n_edges,
                                        .rows = solver->dense.n_rows,
                                        .cost = solver->found ? solver->cost + solver->core.shift
                                                              : COST_FORBIDDEN,
                                        .bound = solver->bound + solver->core.shift,
                                        .step = step};
    solver->progress(solver->context, &progress);
}

// Starts a solve: copies the program into the core. With a time limit and no work limit, only time
// ends the solve. `pinned` is a node that may only take the choice `pin`, or NONE. Returns false if
// out of memory. The caller calls solver_free in either case.
static bool solver_init(struct solver *solver, const struct program *program,
                        const struct program_options *options, uint32_t pinned, uint32_t pin)
{
    *solver = (struct solver){.program = program, .cost = NEVER};
    solver->effort.limit = options && options->work ? options->work : WORK;
    solver->effort.session = program->arena->session;
    solver->effort.seconds = options ? options->seconds : 0;
    solver->effort.start = tsr__now_s();
    solver->progress = options ? options->progress : NULL;
    solver->context = options ? options->context : NULL;
    if (options && options->seconds > 0 && !options->work)
        solver->effort.limit = UINT64_MAX;
    tsr__heap_init(&solver->heap, program->arena->session);
    if (!tsr__core_init(&solver->core, program, &solver->heap, &solver->effort, pinned, pin))
        return false;
    solver->x = HEAP_ARRAY(&solver->heap, uint32_t, program->nodes.n + 1);
    solver->infeasible = solver->core.infeasible;
    return solver->x != NULL;
}

// Reduces the program and builds its dense view, unless the reductions prove it infeasible. Returns
// false if out of memory.
static bool reduce(struct solver *solver)
{
    tsr__core_reduce(&solver->core);
    solver->infeasible = solver->core.infeasible;
    if (solver->infeasible || solver->heap.failed)
        return !solver->heap.failed;
    return tsr__dense_init(&solver->dense, &solver->core, &solver->heap);
}

static void solver_free(struct solver *solver)
{
    if (solver->has_tree)
        tsr__tree_free(&solver->tree);
    tsr__heap_done(&solver->heap);
}

// Builds a tree decomposition whose largest table has at most `cells` cells. Returns false if there
// is none or if out of memory (heap.failed).
static bool make_tree(struct solver *solver, uint64_t cells)
{
    const struct dense *dense = &solver->dense;
    solver->has_tree = tsr__tree_init(&solver->tree, solver->heap.session, dense->n, dense->k,
                                      dense->edges, dense->n_edges, cells, NULL, NULL);
    if (solver->has_tree)
        return true;
    if (solver->tree.arena.failed)
        solver->heap.failed = true;
    tsr__tree_free(&solver->tree);
    return false;
}

// ---- without rows

// Solves a program without rows: the pass up the tree gives the least cost, the pass back the
// choices.
static void eliminate(struct solver *solver)
{
    int64_t least = tsr__tree_up(&solver->tree, solver->dense.cost);
    solver->effort.work += solver->tree.cells;
    solver->infeasible = least >= NEVER;
    if (solver->infeasible)
        return;
    tsr__tree_back(&solver->tree, solver->dense.cost, solver->x);
    solver->found = true;
    solver->cost = solver->bound = least;
}

// ---- search

// Copies the results of the search. A bound above max_cost proves that there is no solution.
static void take_search_results(struct solver *solver)
{
    const struct search *search = &solver->search;
    solver->bound = int64_max(solver->bound, tsr__search_bound(search));
    if (search->found && search->best_cost < solver->cost) {
        solver->found = true;
        solver->cost = search->best_cost;
        memcpy(solver->x, search->best, solver->dense.n * sizeof(uint32_t));
    }
    if (solver->found && solver->bound > solver->cost)
        solver->bound = solver->cost;
    if (solver->bound > solver->max_cost)
        solver->infeasible = true;
}

// Returns the largest cost that is not forbidden, at least 0.
static int64_t max_allowed(const int64_t *cost, size_t n)
{
    int64_t most = 0;
    for (size_t i = 0; i < n; i++)
        if (cost[i] < NEVER)
            most = int64_max(most, cost[i]);
    return most;
}

// Returns an upper bound of the cost of a solution: the sum of the largest allowed cost of every
// node and edge.
static int64_t sum_max_costs(const struct dense *dense)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < dense->n; v++)
        sum = plus(sum, max_allowed(dense->cost[v], dense->k[v]));
    for (uint32_t i = 0; i < dense->n_edges; i++) {
        size_t n = (size_t)dense->k[dense->edges[i].a] * dense->k[dense->edges[i].b];
        sum = plus(sum, max_allowed(dense->edges[i].cell, n));
    }
    return sum;
}

// True if the solve is finished: optimal, infeasible, or out of memory.
static bool is_settled(const struct solver *solver)
{
    return solver->infeasible || solver->heap.failed ||
           (solver->found && solver->bound >= solver->cost);
}

// Returns NEVER / 16 / (sum of the largest usages). With this multiplier a row adds less than NEVER
// / 16 to any sum of costs.
static double find_max_multiplier(const struct dense *dense)
{
    double sum = 1;
    for (uint32_t v = 0; v < dense->n; v++)
        for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++)
            sum += (double)max_allowed(dense->uses[i].usage, dense->k[v]);
    return (double)NEVER / 16 / sum;
}

// Runs one round: raises the bound, which also finds solutions, then improves the best solution. If
// there is none yet, dives for one. Each of the two halves may use `fraction` of the effort.
static void search_round(struct search *search, double fraction, int passes, int rounds)
{
    tsr__effort_slice(search->effort, fraction);
    tsr__search_climb(search, passes);
    tsr__effort_slice(search->effort, fraction);
    if (!search->found && !tsr__search_proved(search))
        tsr__search_dive(search);
    if (!tsr__search_proved(search))
        tsr__search_polish(search, rounds);
    tsr__effort_slice(search->effort, 0);
}

// ---- reduced-cost fixing ------------------------------------------------------------------------

// Removes the choices that no better solution can have.
//
// The dual gives a lower bound for all solutions with a given choice (tsr__dual_through). If that
// bound is above the known cost, the choice is forbidden. If the gap is small, few choices are
// left. The restricted program often has a treewidth that is small enough for elimination, which
// proves the known solution or finds a better one.
//
//     Example: 30 nodes have 819 choices, the known cost is 67.34 and the bound is 67.20. 150
//     choices have bounds up to 67.34; the program restricted to them is solved at once.
//
// A solution that is better than the known one has no forbidden choice. So the restricted program
// has the same optimum, unless the known solution is already optimal.

#define KEPT_SHARE 0.5 // if more of the choices are kept, another solve is not worth it

// Returns a margin that is larger than the rounding error of the sums.
static double margin(const struct dual *dual)
{
    return 1e-9 * (fabs(dual->bound) + dual->best_paid) + 1;
}

// Copies the costs of a node, with COST_FORBIDDEN for choices whose bound is above `most`.
static void forbid(const struct dense *dense, uint32_t v, const double *bound, double most,
                   struct program_node *node)
{
    const struct core_node *from = &dense->core->nodes[dense->node[v]];
    int64_t *cost = HEAP_ARRAY(dense->heap, int64_t, node->k);
    if (!cost)
        return;
    memcpy(cost, node->cost, node->k * sizeof *cost);
    for (uint32_t choice = 0; choice < dense->k[v]; choice++)
        if (bound[choice] > most)
            cost[from->origin[choice]] = COST_FORBIDDEN;
    node->cost = cost;
}

// True if enough choices have bounds above `most`. `bound` is scratch memory.
static bool is_worth_it(const struct dual *dual, double *bound, double most)
{
    const struct dense *dense = dual->dense;
    uint64_t all = 0, left = 0;
    for (uint32_t v = 0; v < dense->n; v++) {
        tsr__dual_through(dual, v, bound);
        for (uint32_t choice = 0; choice < dense->k[v]; choice++)
            left += bound[choice] <= most;
        all += dense->k[v];
    }
    return (double)left <= KEPT_SHARE * (double)all;
}

// Builds a program without the choices that cannot be in a solution below `cost` (in the core).
// *out points to tables of `program` and to memory of dual->dense's heap. Returns false if too few
// choices can be removed or if out of memory.
static bool prune(struct dual *dual, const struct program *program, int64_t cost,
                  struct program *out)
{
    const struct dense *dense = dual->dense;
    double *bound = HEAP_ARRAY(dense->heap, double, dense->most_k);
    tsr__dual_pass(dual); // the multipliers may have changed since the last pass
    double most = (double)cost + margin(dual);
    if (!bound || !is_worth_it(dual, bound, most))
        return false;
    *out = *program;
    out->nodes.at = HEAP_ARRAY(dense->heap, struct program_node, program->nodes.n + 1);
    if (!out->nodes.at)
        return false;
    memcpy(out->nodes.at, program->nodes.at, program->nodes.n * sizeof *out->nodes.at);
    for (uint32_t v = 0; v < dense->n && !dense->heap->failed; v++) {
        tsr__dual_through(dual, v, bound);
        forbid(dense, v, bound, most, &out->nodes.at[dense->node[v]]);
    }
    return !dense->heap->failed;
}

// Excludes choices that no better solution can have. Returns true if so many are excluded that the
// program should be solved again. Does nothing if there is no solution yet or if the solve is
// finished. With a time limit it does nothing either, because the result would depend on the clock.
static bool prune_by_bound(struct solver *solver)
{
    if (is_settled(solver) || !solver->found || solver->effort.seconds > 0)
        return false;
    solver->pruned = prune(&solver->search.dual, solver->program, solver->cost, &solver->rest);
    solver->effort.work += 4 * solver->search.dual.cells;
    return solver->pruned;
}

// Searches until the result is proved or the effort is used up. Without a time limit it also stops
// in three cases: the gap is at most cost / NEAR, pruning leaves a program that is worth another
// solve, or STALE rounds made no progress.
static void search_until_done(struct solver *solver)
{
    int stale = 0;
    while (!is_settled(solver) && !tsr__effort_over(&solver->effort) && stale < STALE) {
        int64_t cost = solver->cost, bound = solver->bound;
        search_round(&solver->search, 0.05, 400, solver->dense.n > MANY ? 1000 : 300);
        take_search_results(solver);
        report_progress(solver, "round");
        bool better = solver->cost < cost || solver->bound > bound + bound / 1000000;
        if (solver->found && solver->cost - solver->bound <= solver->cost / NEAR &&
            solver->effort.seconds <= 0)
            break;
        if (prune_by_bound(solver))
            break;
        stale = better || solver->effort.seconds > 0 ? 0 : stale + 1;
    }
}

// ---- fronts

// The dual function of one multiplier is concave and piecewise linear: the minimum of one line for
// each solution.
struct line {
    double at0, slope;
};

// Solves the relaxation exactly for the multipliers `lambda`. Returns the line of its solution over
// the multiplier of `row`: value = at0 + multiplier * slope. slope is the usage above the row's
// bound; at0 is the cost plus the terms of the other rows. Example: a solution of cost 50 that uses
// 12 of 10 has the line 50 + 2 * multiplier.
static struct line line_of(struct solver *solver, const double *lambda, uint32_t row)
{
    const struct dense *dense = &solver->dense;
    tsr__search_exact(&solver->search, &solver->tree, lambda);
    struct line line = {(double)tsr__dense_cost(dense, solver->search.x),
                        (double)(solver->search.load[row] - dense->bound[row])};
    for (uint32_t i = 0; i < dense->n_rows; i++)
        if (i != row && lambda[i] > 0)
            line.at0 += lambda[i] * (double)(solver->search.load[i] - dense->bound[i]);
    take_search_results(solver);
    return line;
}

// Maximizes the dual over the multiplier of one row, with the others fixed. Once both are known,
// each step intersects two lines: that of the last solution that violates the row and that of the
// last solution that satisfies it. The final multiplier satisfies the row, unless the effort or
// max_multiplier ended the steps before.
static void tune_row(struct solver *solver, double *lambda, uint32_t row)
{
    // `low` violates the row if `have_broken` is set. `high` satisfies it if `have_kept` is set.
    // The optimum is between them.
    double low = 0, high = lambda[row] > 0 ? lambda[row] : 1.0 / (double)solver->dense.scale;
    struct line broken = {0}, kept = {0};
    bool have_broken = false, have_kept = false;
    for (int i = 0; i < 60; i++) {
        if (solver->infeasible || tsr__effort_over(&solver->effort))
            break;
        double at = high;
        if (have_kept)
            at = have_broken ? (broken.at0 - kept.at0) / (kept.slope - broken.slope) : 0;
        if (have_kept && !(at >= low && at < high))
            break;
        lambda[row] = at;
        struct line line = line_of(solver, lambda, row);
        // slope > 0: the solution violates the row, so the multiplier is too low. It is multiplied
        // by 8 until the row is satisfied or max_multiplier is reached.
        if (line.slope > 0) {
            if (have_kept && have_broken && line.at0 == broken.at0 && line.slope == broken.slope)
                break; // the lines intersect on the dual function: this is its maximum
            broken = line;
            have_broken = true;
            low = at;
            if (!have_kept && high * 8 < solver->max_multiplier)
                high *= 8;
            else if (!have_kept)
                break;
        } else {
            if (have_kept && line.at0 == kept.at0 && line.slope == kept.slope)
                break;
            kept = line;
            have_kept = true;
            high = at;
        }
    }
    // The last solve leaves the usage of its solution in search.load for tune_multipliers.
    lambda[row] = high;
    if (!solver->infeasible)
        line_of(solver, lambda, row);
}

// Finds multipliers for fewer than FRONT_ROWS rows: repeatedly adds the row that is violated most.
// Stops if no other row is violated, the solver is done, or the effort is used up.
static void tune_multipliers(struct solver *solver, struct front *front, double *lambda)
{
    tsr__search_exact(&solver->search, &solver->tree, lambda);
    for (int i = 0; i < FRONT_ROWS - 1; i++) {
        if (is_settled(solver) || tsr__effort_over(&solver->effort))
            break;
        uint32_t row = tsr__dense_worst(&solver->dense, solver->search.load);
        for (uint32_t j = 0; j < front->n_rows && row != NONE; j++)
            if (front->rows[j] == row)
                row = NONE;
        if (row == NONE)
            break;
        front->rows[front->n_rows++] = row;
        // A new row changes the best multipliers of the earlier rows: tune all again, newest first.
        for (uint32_t j = 0; j < front->n_rows; j++)
            tune_row(solver, lambda, front->rows[front->n_rows - 1 - j]);
    }
}

// Proves optimality with thresholds that grow from just above the bound to the known cost.
// tsr__front searches for the best solution below the threshold. If it finds none, the threshold is
// the new bound. If it finds one, that is the optimum. With a low threshold few points are kept, so
// the first searches are cheap. The distance from the bound grows fourfold each time. Example:
// bound 2000, known cost 2100. The thresholds are 2002, 2010, 2042, then 2100, which proves the
// known solution optimal.
static void prove_by_fronts(struct solver *solver)
{
    double *lambda = HEAP_ARRAY(&solver->heap, double, (size_t)solver->dense.n_rows + 1);
    struct front front = {.dense = &solver->dense,
                          .tree = &solver->tree,
                          .lambda = lambda,
                          .effort = &solver->effort};
    if (!lambda)
        return;
    front.max_points = FRONT_POINTS;
    bool many = solver->dense.n > MANY;
    tsr__effort_slice(&solver->effort,
                      // if the fronts fail, the search needs the rest of the effort
                      many ? 0.6 : PROVING);
    // Phase 1: find multipliers for the rows that matter.
    tune_multipliers(solver, &front, lambda);
    take_search_results(solver);
    report_progress(solver, "multipliers");
    // Phase 2: search with fronts.
    tsr__effort_slice(&solver->effort, many ? 0.3 : PROVING);
    int64_t window = solver->bound / 2000 + 1;
    while (!is_settled(solver) && !tsr__effort_over(&solver->effort)) {
        int64_t threshold =
                    solver->cost - solver->bound <= window ? solver->cost : solver->bound + window,
                cost;
        if (!solver->found && threshold > solver->max_cost)
            threshold = solver->max_cost + 1;
        enum front_end end = tsr__front(&front, threshold, solver->y, &cost);
        if (end == FRONT_FOUND) {
            memcpy(solver->x, solver->y, solver->dense.n * sizeof(uint32_t));
            solver->found = true;
            solver->cost = solver->bound = cost;
        } else if (end == FRONT_NONE) {
            solver->bound = threshold;
            solver->infeasible = !solver->found && threshold > solver->max_cost;
        } else {
            solver->heap.failed |= end == FRONT_FAILED;
            return;
        }
        window *= 4;
    }
}

// Runs the methods from the cheapest to the most expensive one, until one proves optimality.
// Otherwise the result reports the gap between cost and bound.
static void solve(struct solver *solver)
{
    const struct dense *dense = &solver->dense;
    // Without rows and with small treewidth, elimination is faster than the reductions.
    if (solver->core.n_rows == 0) {
        if (tsr__dense_init(&solver->dense, &solver->core, &solver->heap) &&
            make_tree(solver, DIRECT_CELLS)) {
            eliminate(solver);
            return;
        }
    }
    if (solver->heap.failed || !reduce(solver) || solver->infeasible)
        return;
    if (dense->n_rows == 0 && make_tree(solver, NARROW_CELLS)) {
        eliminate(solver);
        return;
    }
    solver->max_cost = sum_max_costs(dense);
    solver->max_multiplier = find_max_multiplier(dense);
    solver->y = HEAP_ARRAY(&solver->heap, uint32_t, (size_t)dense->n + 1);
    if (solver->heap.failed || !tsr__search_init(&solver->search, dense, &solver->effort))
        return;
    solver->has_search = true;
    report_progress(solver, "reduced");
    if (dense->n_rows && make_tree(solver, FRONT_CELLS))
        prove_by_fronts(solver);
    tsr__effort_slice(&solver->effort, 0);
    report_progress(solver, "fronts");
    search_until_done(solver);
}

// ---- results

// Appends the row's limit, time and usage to out->bindings.
static void add_binding(const struct solver *solver, struct program_result *out, uint32_t row,
                        const int64_t *load)
{
    uint32_t l = solver->core.row_limit[row];
    struct program_binding *binding = &out->bindings[out->n_bindings++];
    // The reductions subtracted from the bound the usage that no choice can avoid.
    *binding = (struct program_binding){l, solver->core.row_time[row],
                                        solver->program->limits.at[l].bound -
                                            solver->core.row_bound[row] + load[row]};
}

// Lists in out->bindings the rows that are full and those whose multiplier is more than 1 % of the
// largest one. Returns false if out of memory.
static bool find_bindings(const struct solver *solver, struct arena *arena,
                          struct program_result *out)
{
    const struct dense *dense = &solver->dense;
    int64_t *load = ARENA_ARRAY(arena, int64_t, (size_t)dense->n_rows + 1);
    out->bindings = ARENA_ARRAY(arena, struct program_binding, (size_t)dense->n_rows + 1);
    if (arena->failed)
        return false;
    if (!solver->found)
        return true;
    const double *lambda = solver->has_search ? solver->search.dual.best_lambda : NULL;
    double most = 0;
    // Without a search there are no multipliers, and only full rows are listed.
    uint32_t n_priced = lambda ? dense->n_rows : 0;
    for (uint32_t row = 0; row < n_priced; row++)
        if (lambda[row] > most)
            most = lambda[row];
    tsr__dense_load(dense, solver->x, load);
    for (uint32_t row = 0; row < dense->n_rows; row++)
        if (load[row] == dense->bound[row] || (lambda && lambda[row] > 0.01 * most))
            add_binding(solver, out, row, load);
    return true;
}

static void set_gap(struct program_result *out)
{
    out->optimal = out->bound >= out->cost;
    out->gap = (double)(out->cost - out->bound) / fmax(1, fabs((double)out->cost));
}

// Expands the solution of the core to a solution of the program. Returns TSR_BUG if its cost in the
// program is not the expected one.
static tsr_status write_result(const struct solver *solver, struct arena *arena,
                               struct program_result *out)
{
    *out = (struct program_result){.feasible = solver->found,
                                   .infeasible = solver->infeasible && !solver->found,
                                   .cost = COST_FORBIDDEN,
                                   .bound = solver->bound + solver->core.shift,
                                   .gap = 1,
                                   .work = solver->effort.work};
    if (!find_bindings(solver, arena, out))
        return TSR_NOMEM;
    if (!solver->found)
        return TSR_OK;
    out->choice = ARENA_ARRAY(arena, uint32_t, solver->program->nodes.n + 1);
    if (!out->choice)
        return TSR_NOMEM;
    for (uint32_t v = 0; v < solver->dense.n; v++)
        out->choice[solver->dense.node[v]] =
            solver->core.nodes[solver->dense.node[v]].origin[solver->x[v]];
    tsr__core_expand(&solver->core, out->choice);
    out->cost = tsr__program_cost(solver->program, out->choice);
    if (out->cost != solver->cost + solver->core.shift)
        return TSR_BUG;
    set_gap(out);
    return TSR_OK;
}

static tsr_status solve_pinned(const struct program *program, const struct program_options *options,
                               struct arena *arena, uint32_t pinned, uint32_t pin,
                               struct program_result *out);

// Solves the program without the pruned choices, with the remaining effort. Uses the new solution
// if it is better. The new bound is valid only up to the known cost, because excluded choices cost
// at least that.
static tsr_status solve_rest(const struct solver *solver, struct arena *arena, uint32_t pinned,
                             uint32_t pin, struct program_result *out)
{
    const struct effort *effort = &solver->effort;
    struct program_options options = {
        .work = effort->limit > effort->work ? effort->limit - effort->work : 1};
    struct program_result rest;
    TRY(solve_pinned(&solver->rest, &options, arena, pinned, pin, &rest));
    int64_t bound = rest.infeasible || rest.bound > out->cost ? out->cost : rest.bound;
    rest.work += out->work;
    rest.bound = bound > out->bound ? bound : out->bound;
    if (!rest.feasible || rest.cost >= out->cost) {
        out->work = rest.work;
        out->bound = rest.bound;
    } else {
        *out = rest;
    }
    set_gap(out);
    return TSR_OK;
}

// Runs one solve. The result is allocated from `arena`, everything else from the solver's heap.
static tsr_status solve_pinned(const struct program *program, const struct program_options *options,
                               struct arena *arena, uint32_t pinned, uint32_t pin,
                               struct program_result *out)
{
    struct solver solver;
    tsr_status st = TSR_OK;
    if (!solver_init(&solver, program, options, pinned, pin))
        st = TSR_NOMEM;
    else if (!solver.infeasible)
        solve(&solver);
    if (solver.heap.failed)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = write_result(&solver, arena, out);
    if (st == TSR_OK && solver.pruned)
        st = solve_rest(&solver, arena, pinned, pin, out);
    solver_free(&solver);
    return st;
}

tsr_status tsr__program_solve(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_result *out)
{
    TRY(tsr__program_check(program));
    return solve_pinned(program, options, arena, NONE, 0, out);
}

// ---- marginals

// Computes the marginals, the least cost for each choice of the node. Nothing was reduced, so the
// tree has the nodes and choices of the program. Returns false if out of memory.
static bool tree_marginals(struct solver *solver, uint32_t node, struct program_marginal *out)
{
    const struct dense *dense = &solver->dense;
    int64_t *least = HEAP_ARRAY(&solver->heap, int64_t, dense->k[node]);
    if (!least || tsr__tree_up(&solver->tree, dense->cost) < 0 ||
        !tsr__tree_down(&solver->tree, dense->cost))
        return false;
    tsr__tree_marginals(&solver->tree, dense->cost, node, least);
    for (uint32_t choice = 0; choice < dense->k[node]; choice++) {
        bool ok = least[choice] < NEVER;
        int64_t cost = ok ? least[choice] + solver->core.shift : COST_FORBIDDEN;
        out[choice] = (struct program_marginal){ok, ok, !ok, cost, cost};
    }
    return true;
}

// Computes the marginals of a program without limits in one pass up and one pass down the tree.
// Returns false if the program is infeasible, if the treewidth is too large, or if out of memory.
// In the last case *st is TSR_NOMEM.
static bool try_marginals(const struct program *program, const struct program_options *options,
                          uint32_t node, struct program_marginal *out, tsr_status *st)
{
    struct solver solver;
    bool done = false;
    if (solver_init(&solver, program, options, NONE, 0) && !solver.core.infeasible &&
        tsr__dense_init(&solver.dense, &solver.core, &solver.heap) &&
        make_tree(&solver, NARROW_CELLS))
        done = tree_marginals(&solver, node, out);
    *st = solver.heap.failed || (solver.has_tree && !done) ? TSR_NOMEM : TSR_OK;
    solver_free(&solver);
    return done;
}

// Computes the least cost of the program for each choice of a node. Example: u costs {3, 5}, v
// costs {0, 1}, the edge costs {0, 9; forbidden, 0}. The marginals of v are {3, 6}.
tsr_status tsr__program_marginals(const struct program *program,
                                  const struct program_options *options, struct arena *arena,
                                  uint32_t node, struct program_marginal *out)
{
    tsr_status st = tsr__program_check(program);
    if (st != TSR_OK)
        return st;
    if (node >= program->nodes.n)
        return TSR_INVALID;
    if (program->limits.n == 0 && (try_marginals(program, options, node, out, &st) || st != TSR_OK))
        return st;
    for (uint32_t choice = 0; choice < program->nodes.at[node].k; choice++) {
        struct program_result result;
        st = solve_pinned(program, options, arena, node, choice, &result);
        if (st != TSR_OK)
            return st;
        out[choice] = (struct program_marginal){result.feasible, result.optimal, result.infeasible,
                                                result.cost, result.bound};
    }
    return TSR_OK;
}
