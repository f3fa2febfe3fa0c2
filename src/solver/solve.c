// SPDX-License-Identifier: Apache-2.0
// solve.c - the driver of the solver.
//
// Exact reductions first. What is left is eliminated where it is narrow: plainly without rows, with
// fronts under rows, for which prices and an answer come from the search. What is wide is searched and
// bounded until both meet, nothing improves any more, or the effort is spent. Where the bound comes
// near, most choices are ruled out (solve_prune.c), and the program that is left is solved anew.
#include "solve_front.h"
#include "solve_prune.h"
#include "solve_search.h"

#include <math.h>

#define WORK         UINT64_C(4000000000)
#define NARROW_CELLS (UINT64_C(1) << 21) // largest table of an elimination
#define DIRECT_CELLS (UINT64_C(1) << 14) // the same without reductions before it
#define FRONT_CELLS  (UINT64_C(1) << 17) // the same with fronts
#define FRONT_POINTS (UINT64_C(1) << 23) // points held at a time
#define NEAR         1000000000          // a gap of less than one in so many is not worth more
#define PROVING      0.4                 // of the effort may go into fronts
#define MANY         400                 // nodes from which on fronts are likely to fail
#define STALE        12                  // rounds of search without any progress

// Everything about one solve. Costs here are of the core: those of the program are larger by
// core.shift. `wide` views the core after its reductions; `tree` is valid while `narrow` is true,
// `search` while `searching` is true.
struct solving {
    const struct program *program;
    struct heap heap;
    struct effort effort;
    struct core core;
    struct wide wide;
    struct search search;
    struct tree tree;
    bool searching, narrow;
    void (*tell)(void *context, const struct program_told *told);
    void *context;
    uint32_t *x, *y; // answer in the core, dense; one that may become it
    bool found;
    int64_t cost;    // in the core
    int64_t bound;   // in the core
    bool infeasible; // proved
    int64_t most;    // no answer costs more, in the core
    double dearest;  // price of a unit up to which no sum overflows
    bool pruned;     // a better answer than x can only be one of `rest`
    struct program rest;
};

// Seconds of the monotonic clock: an effort that began at 0 has lasted as long as the clock runs.
static double clock_now(void)
{
    struct effort effort = {0};
    return tsr__effort_elapsed(&effort);
}

// Calls the caller's `tell`, if there is one, with costs and bounds of the whole program.
static void tell(const struct solving *solving, const char *step)
{
    if (!solving->tell)
        return;
    struct program_told told = {.seconds = tsr__effort_elapsed(&solving->effort),
                                .nodes = solving->wide.n,
                                .edges = solving->wide.n_edges,
                                .rows = solving->wide.n_rows,
                                .cost = solving->found ? solving->cost + solving->core.shift
                                                       : COST_FORBIDDEN,
                                .bound = solving->bound + solving->core.shift,
                                .step = step};
    solving->tell(solving->context, &told);
}

// Fills `solving` and copies the program into the core. With seconds and without a work limit only
// time ends the solve. pinned: a node that may take the choice `pin` alone, or NONE. False: out of
// memory; `stop` is due in either case.
static bool start(struct solving *solving, const struct program *program,
                  const struct program_options *options, uint32_t pinned, uint32_t pin)
{
    *solving = (struct solving){.program = program, .cost = NEVER};
    solving->effort.limit = options && options->work ? options->work : WORK;
    solving->effort.session = program->arena->session;
    solving->effort.seconds = options ? options->seconds : 0;
    solving->effort.start = clock_now();
    solving->tell = options ? options->tell : NULL;
    solving->context = options ? options->context : NULL;
    if (options && options->seconds > 0 && !options->work)
        solving->effort.limit = UINT64_MAX;
    tsr__heap_init(&solving->heap, program->arena->session);
    if (!tsr__core_init(&solving->core, program, &solving->heap, &solving->effort, pinned, pin))
        return false;
    solving->x = HEAP_ARRAY(&solving->heap, uint32_t, program->nodes.n + 1);
    solving->infeasible = solving->core.infeasible;
    return solving->x != NULL;
}

// False: out of memory.
static bool reduce(struct solving *solving)
{
    tsr__core_reduce(&solving->core);
    solving->infeasible = solving->core.infeasible;
    if (solving->infeasible || solving->heap.failed)
        return !solving->heap.failed;
    return tsr__wide_init(&solving->wide, &solving->core, &solving->heap);
}

// Frees what `start`, `make_narrow` and the search took, however far they came.
static void stop(struct solving *solving)
{
    if (solving->searching)
        tsr__search_done(&solving->search);
    if (solving->narrow)
        tsr__tree_free(&solving->tree);
    tsr__heap_done(&solving->heap);
}

// Tries to build an elimination order whose largest table has at most `cells` cells. False: the
// core is too wide, or memory ran out (heap.failed tells which).
static bool make_narrow(struct solving *solving, uint64_t cells)
{
    const struct wide *wide = &solving->wide;
    solving->narrow = tsr__tree_init(&solving->tree, solving->heap.session, wide->n, wide->k,
                                     wide->edges, wide->n_edges, cells, NULL, NULL);
    if (solving->narrow)
        return true;
    if (solving->tree.arena.failed)
        solving->heap.failed = true;
    tsr__tree_free(&solving->tree);
    return false;
}

// ---- without rows

// One pass over the tree is the whole solve: the minimum is answer and bound at the same time.
static void eliminate(struct solving *solving)
{
    int64_t least = tsr__tree_up(&solving->tree, solving->wide.cost);
    solving->effort.work += solving->tree.cells;
    solving->infeasible = least >= NEVER;
    if (solving->infeasible)
        return;
    tsr__tree_back(&solving->tree, solving->wide.cost, solving->x);
    solving->found = true;
    solving->cost = solving->bound = least;
}

// ---- search

// Takes over what the search has found. The bound never exceeds a cost that was reached. A bound above
// `most` means that the limits contradict each other.
static void take(struct solving *solving)
{
    const struct search *search = &solving->search;
    solving->bound = int64_max(solving->bound, tsr__search_bound(search));
    if (search->found && search->best_cost < solving->cost) {
        solving->found = true;
        solving->cost = search->best_cost;
        memcpy(solving->x, search->best, solving->wide.n * sizeof(uint32_t));
    }
    if (solving->found && solving->bound > solving->cost)
        solving->bound = solving->cost;
    if (solving->bound > solving->most)
        solving->infeasible = true;
}

// The sum of the largest costs: a bound beyond it says that there is no answer.
// Forbidden entries do not count: an answer has none.
static int64_t most_cost(const struct wide *wide)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < wide->n; v++) {
        int64_t most = 0;
        for (uint32_t choice = 0; choice < wide->k[v]; choice++)
            most = wide->cost[v][choice] < NEVER && wide->cost[v][choice] > most
                       ? wide->cost[v][choice]
                       : most;
        sum = plus(sum, most);
    }
    for (uint32_t i = 0; i < wide->n_edges; i++) {
        size_t n = (size_t)wide->k[wide->edges[i].a] * wide->k[wide->edges[i].b];
        int64_t most = 0;
        for (size_t c = 0; c < n; c++) {
            int64_t x = wide->edges[i].cell[c];
            most = x < NEVER && x > most ? x : most;
        }
        sum = plus(sum, most);
    }
    return sum;
}

// Nothing is left to do: proved, impossible, or out of memory.
static bool settled(const struct solving *solving)
{
    return solving->infeasible || solving->heap.failed ||
           (solving->found && solving->bound >= solving->cost);
}

// With a row at this price, NEVER / 16 / (sum of the largest usages), all that is paid for the
// row is less than NEVER / 16, which sums of costs have room for.
static double dearest_price(const struct wide *wide)
{
    double sum = 1;
    for (uint32_t v = 0; v < wide->n; v++)
        for (uint32_t i = wide->first_use[v]; i < wide->first_use[v + 1]; i++) {
            int64_t most = 0;
            for (uint32_t choice = 0; choice < wide->k[v]; choice++)
                if (wide->uses[i].usage[choice] > most)
                    most = wide->uses[i].usage[choice];
            sum += (double)most;
        }
    return (double)NEVER / 16 / sum;
}

// One round of search: the bound and answers from it, then moves.
static void look(struct search *search, double fraction, int passes, int rounds)
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

// Rules out choices that no better answer has; true: so many that a new solve is worth it. Its result
// depends on no clock, so that a solve with a time limit does not have it.
static bool prune(struct solving *solving)
{
    if (settled(solving) || !solving->found || solving->effort.seconds > 0)
        return false;
    solving->pruned =
        tsr__prune(&solving->search.dual, solving->program, solving->cost, &solving->rest);
    solving->effort.work += 4 * solving->search.dual.cells;
    return solving->pruned;
}

// Rounds without a better answer or bound are counted; a time limit makes it go on all the same.
static void look_on(struct solving *solving)
{
    int stale = 0;
    while (!settled(solving) && !tsr__effort_over(&solving->effort) && stale < STALE) {
        int64_t cost = solving->cost, bound = solving->bound;
        look(&solving->search, 0.05, 400, 100);
        take(solving);
        tell(solving, "round");
        bool better = solving->cost < cost || solving->bound > bound + bound / 1000000;
        if (solving->found && solving->cost - solving->bound <= solving->cost / NEAR &&
            solving->effort.seconds <= 0)
            break;
        if (prune(solving))
            break;
        stale = better || solving->effort.seconds > 0 ? 0 : stale + 1;
    }
}

// ---- fronts

// The minimum under prices as a function of one of them is concave; each answer gives a line above it.
struct line {
    double at0, slope;
};

// Solves exactly at the prices `lambda` and gives the answer's line over the price of `row`:
// value(price) = at0 + price * slope. slope is how much the answer uses above the row's bound, at0 is
// its cost and what the other priced rows add. An answer of cost 50 that uses 12 of 10 has the line 50
// + 2 * price. The minimum under prices is the lowest of all answers' lines.
static struct line line_of(struct solving *solving, const double *lambda, uint32_t row)
{
    const struct wide *wide = &solving->wide;
    tsr__search_exact(&solving->search, &solving->tree, lambda);
    struct line line = {(double)tsr__wide_cost(wide, solving->search.x),
                        (double)(solving->search.load[row] - wide->bound[row])};
    for (uint32_t i = 0; i < wide->n_rows; i++)
        if (i != row && lambda[i] > 0)
            line.at0 += lambda[i] * (double)(solving->search.load[i] - wide->bound[i]);
    take(solving);
    return line;
}

// The best price of one row, the others given: where the line of the last answer that broke the row
// meets that of the last one that did not. Ends at a price at which the row is kept.
static void tune_row(struct solving *solving, double *lambda, uint32_t row)
{
    // `low` breaks the row, `high` keeps it once `have_kept` is set; the best price lies between.
    double low = 0, high = lambda[row] > 0 ? lambda[row] : 1.0 / (double)solving->wide.scale;
    struct line broken = {0}, kept = {0};
    bool have_broken = false, have_kept = false;
    for (int i = 0; i < 60; i++) {
        if (solving->infeasible || tsr__effort_over(&solving->effort))
            break;
        double at = high;
        if (have_kept)
            at = have_broken ? (broken.at0 - kept.at0) / (kept.slope - broken.slope) : 0;
        if (have_kept && !(at >= low && at < high))
            break;
        lambda[row] = at;
        struct line line = line_of(solving, lambda, row);
        // The answer uses more than the bound: the price was too low. Until some price keeps the
        // row, the price grows eightfold; `dearest` ends that, and the row stays broken.
        if (line.slope > 0) {
            if (have_kept && have_broken && line.at0 == broken.at0 && line.slope == broken.slope)
                break; // both lines meet on the function: this is its top
            broken = line;
            have_broken = true;
            low = at;
            if (!have_kept && high * 8 < solving->dearest)
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
    // The last solve leaves its answer's load in search.load, which tune_prices reads.
    lambda[row] = high;
    if (!solving->infeasible)
        line_of(solving, lambda, row);
}

// The row with the largest excess over its bound; NONE: the load keeps them all.
static uint32_t worst_row(const struct wide *wide, const int64_t *load)
{
    uint32_t worst = NONE;
    for (uint32_t row = 0; row < wide->n_rows; row++)
        if (load[row] > wide->bound[row] &&
            (worst == NONE || load[row] - wide->bound[row] > load[worst] - wide->bound[worst]))
            worst = row;
    return worst;
}

// Prices for few rows: the one that is broken worst at the best prices so far comes next.
static void tune_prices(struct solving *solving, struct front *front, double *lambda)
{
    tsr__search_exact(&solving->search, &solving->tree, lambda);
    for (int i = 0; i < FRONT_ROWS - 1; i++) {
        if (settled(solving) || tsr__effort_over(&solving->effort))
            break;
        uint32_t row = worst_row(&solving->wide, solving->search.load);
        for (uint32_t j = 0; j < front->n_rows && row != NONE; j++)
            if (front->rows[j] == row)
                row = NONE;
        if (row == NONE)
            break;
        front->rows[front->n_rows++] = row;
        // The new row's price moves the best prices of the earlier ones: all are tuned again, the
        // newest first.
        for (uint32_t j = 0; j < front->n_rows; j++)
            tune_row(solving, lambda, front->rows[front->n_rows - 1 - j]);
    }
}

// Thresholds grow from just above the bound up to the answer that is known.
// tsr__front asks "is there an answer below the threshold?". No: the threshold is the new bound.
// Yes: the answer is the best of all. A low threshold lets few points live, so the first question
// is cheap; each next window is four times as wide. Example: bound 2000, answer known 2100: window
// 2, threshold 2002; then (bound 2002, window 8) 2010, then 2042, then 2100, the answer's own cost,
// which proves it.
static void prove(struct solving *solving)
{
    double *lambda = HEAP_ARRAY(&solving->heap, double, (size_t)solving->wide.n_rows + 1);
    struct front front = {.wide = &solving->wide,
                          .tree = &solving->tree,
                          .lambda = lambda,
                          .effort = &solving->effort};
    if (!lambda)
        return;
    front.max_points = FRONT_POINTS;
    bool many = solving->wide.n > MANY;
    tsr__effort_slice(&solving->effort,
                      many ? 0.6 : PROVING); // others need their part, should this fail
    // Phase 1: prices for the rows that matter, each an exact elimination.
    tune_prices(solving, &front, lambda);
    take(solving);
    tell(solving, "prices");
    if (many)
        tsr__effort_slice(&solving->effort, 0.25);
    // Phase 2, for many nodes only: answers from the prices, since the fronts may not come to an
    // end.
    if (many && !settled(solving))
        tsr__search_relax(&solving->search, &solving->tree, lambda);
    take(solving);
    tell(solving, "relaxed");
    // Phase 3: the fronts themselves.
    tsr__effort_slice(&solving->effort, many ? 0.3 : PROVING);
    int64_t window = solving->bound / 2000 + 1;
    while (!settled(solving) && !tsr__effort_over(&solving->effort)) {
        int64_t threshold = solving->cost - solving->bound <= window ? solving->cost
                                                                     : solving->bound + window,
                cost;
        if (!solving->found && threshold > solving->most)
            threshold = solving->most + 1;
        enum front_end end = tsr__front(&front, threshold, solving->y, &cost);
        if (end == FRONT_FOUND) {
            memcpy(solving->x, solving->y, solving->wide.n * sizeof(uint32_t));
            solving->found = true;
            solving->cost = solving->bound = cost;
        } else if (end == FRONT_NONE) {
            solving->bound = threshold;
            solving->infeasible = !solving->found && threshold > solving->most;
        } else {
            solving->heap.failed |= end == FRONT_FAILED;
            return;
        }
        window *= 4;
    }
}

// From the cheapest method to the dearest; each one that proves its answer ends the solve. What the
// last ones leave open is a gap between cost and bound, which the result reports.
static void solve(struct solving *solving)
{
    const struct wide *wide = &solving->wide;
    // Narrow programs without rows need no reductions: eliminating them is faster.
    if (solving->core.n_rows == 0) {
        if (tsr__wide_init(&solving->wide, &solving->core, &solving->heap) &&
            make_narrow(solving, DIRECT_CELLS)) {
            eliminate(solving);
            return;
        }
    }
    if (solving->heap.failed || !reduce(solving) || solving->infeasible)
        return;
    if (wide->n_rows == 0 && make_narrow(solving, NARROW_CELLS)) {
        eliminate(solving);
        return;
    }
    solving->most = most_cost(wide);
    solving->dearest = dearest_price(wide);
    solving->y = HEAP_ARRAY(&solving->heap, uint32_t, (size_t)wide->n + 1);
    if (solving->heap.failed || !tsr__search_init(&solving->search, wide, &solving->effort, 1))
        return;
    solving->searching = true;
    tell(solving, "reduced");
    // Under rows: fronts if narrow; search from then on in any case, which does nothing where all
    // is settled.
    if (wide->n_rows && make_narrow(solving, FRONT_CELLS))
        prove(solving);
    tsr__effort_slice(&solving->effort, 0);
    tell(solving, "fronts");
    look_on(solving);
}

// ---- results

// The row's limit, time and real usage, appended to out->bindings, which has room for all rows.
static void add_binding(const struct solving *solving, struct program_result *out, uint32_t row,
                        const int64_t *load)
{
    uint32_t l = solving->core.row_limit[row];
    struct program_binding *binding = &out->bindings[out->n_bindings++];
    // What was taken off the bound is used in any case.
    *binding = (struct program_binding){l, solving->core.row_time[row],
                                        solving->program->limits.at[l].bound -
                                            solving->core.row_bound[row] + load[row]};
}

// Rows that are full, and rows that the bound pays for.
static bool bindings(const struct solving *solving, struct arena *arena, struct program_result *out)
{
    const struct wide *wide = &solving->wide;
    int64_t *load = ARENA_ARRAY(arena, int64_t, (size_t)wide->n_rows + 1);
    out->bindings = ARENA_ARRAY(arena, struct program_binding, (size_t)wide->n_rows + 1);
    if (arena->failed)
        return false;
    if (!solving->found)
        return true;
    const double *lambda = solving->searching ? solving->search.dual.best_lambda : NULL;
    double most = 0;
    // Without prices (an elimination, or no search) only rows that are exactly full are told.
    uint32_t n_priced = lambda ? wide->n_rows : 0;
    for (uint32_t row = 0; row < n_priced; row++)
        if (lambda[row] > most)
            most = lambda[row];
    tsr__wide_load(wide, solving->x, load);
    for (uint32_t row = 0; row < wide->n_rows; row++)
        if (load[row] == wide->bound[row] || (lambda && lambda[row] > 0.01 * most))
            add_binding(solving, out, row, load);
    return true;
}

// The core's answer becomes the program's: choices that are left by their origins, the others by
// the recorded steps. The program's own cost of it must be what the core says; else the solver is
// wrong.
static tsr_status result(const struct solving *solving, struct arena *arena,
                         struct program_result *out)
{
    *out = (struct program_result){.feasible = solving->found,
                                   .infeasible = solving->infeasible && !solving->found,
                                   .cost = COST_FORBIDDEN,
                                   .bound = solving->bound + solving->core.shift,
                                   .gap = 1,
                                   .work = solving->effort.work};
    if (!bindings(solving, arena, out))
        return TSR_NOMEM;
    if (!solving->found)
        return TSR_OK;
    out->choice = ARENA_ARRAY(arena, uint32_t, solving->program->nodes.n + 1);
    if (!out->choice)
        return TSR_NOMEM;
    for (uint32_t v = 0; v < solving->wide.n; v++)
        out->choice[solving->wide.node[v]] =
            solving->core.nodes[solving->wide.node[v]].origin[solving->x[v]];
    tsr__core_expand(&solving->core, out->choice);
    out->cost = tsr__program_cost(solving->program, out->choice);
    if (out->cost != solving->cost + solving->core.shift)
        return TSR_BUG;
    out->optimal = out->bound >= out->cost;
    out->gap = (double)(out->cost - out->bound) / fmax(1, fabs((double)out->cost));
    return TSR_OK;
}

static tsr_status solve_pinned(const struct program *program, const struct program_options *options,
                               struct arena *arena, uint32_t pinned, uint32_t pin,
                               struct program_result *out);

// Solves the program without the choices that were ruled out, with the effort that is left. Its
// answer is taken if it is better, and its bound holds up to the answer that is known.
static tsr_status solve_rest(const struct solving *solving, struct arena *arena, uint32_t pinned,
                             uint32_t pin, struct program_result *out)
{
    const struct effort *effort = &solving->effort;
    struct program_options options = {
        .work = effort->limit > effort->work ? effort->limit - effort->work : 1};
    struct program_result rest;
    tsr_status st = solve_pinned(&solving->rest, &options, arena, pinned, pin, &rest);
    if (st != TSR_OK)
        return st;
    int64_t bound = rest.infeasible || rest.bound > out->cost ? out->cost : rest.bound;
    rest.work += out->work;
    rest.bound = bound > out->bound ? bound : out->bound;
    if (!rest.feasible || rest.cost >= out->cost) {
        out->work = rest.work;
        out->bound = rest.bound;
    } else {
        *out = rest;
    }
    out->optimal = out->bound >= out->cost;
    out->gap = (double)(out->cost - out->bound) / fmax(1, fabs((double)out->cost));
    return TSR_OK;
}

// One whole solve. Memory for the answer comes from `arena`, all else from the heap that `stop`
// frees.
static tsr_status solve_pinned(const struct program *program, const struct program_options *options,
                               struct arena *arena, uint32_t pinned, uint32_t pin,
                               struct program_result *out)
{
    struct solving solving;
    tsr_status st = TSR_OK;
    if (!start(&solving, program, options, pinned, pin))
        st = TSR_NOMEM;
    else if (!solving.infeasible)
        solve(&solving);
    if (solving.heap.failed)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = result(&solving, arena, out);
    if (st == TSR_OK && solving.pruned)
        st = solve_rest(&solving, arena, pinned, pin, out);
    stop(&solving);
    return st;
}

tsr_status tsr__program_solve(const struct program *program, const struct program_options *options,
                              struct arena *arena, struct program_result *out)
{
    tsr_status st = tsr__program_check(program);
    if (st != TSR_OK)
        return st;
    return solve_pinned(program, options, arena, NONE, 0, out);
}

// ---- marginals

// The tree counts every node's choices as the program numbers them, because nothing was reduced.
// False: out of memory (costs are never negative, so the test of tree_up only makes it run).
static bool narrow_marginals(struct solving *solving, uint32_t node, struct program_marginal *out)
{
    const struct wide *wide = &solving->wide;
    int64_t *least = HEAP_ARRAY(&solving->heap, int64_t, wide->k[node]);
    if (!least || tsr__tree_up(&solving->tree, wide->cost) < 0 ||
        !tsr__tree_down(&solving->tree, wide->cost))
        return false;
    tsr__tree_marginals(&solving->tree, wide->cost, node, least);
    for (uint32_t choice = 0; choice < wide->k[node]; choice++) {
        bool ok = least[choice] < NEVER;
        int64_t cost = ok ? least[choice] + solving->core.shift : COST_FORBIDDEN;
        out[choice] = (struct program_marginal){ok, ok, !ok, cost, cost};
    }
    return true;
}

// Without limits and reductions: every choice of every node is still there. False: not so narrow.
static bool try_marginals(const struct program *program, const struct program_options *options,
                          uint32_t node, struct program_marginal *out, tsr_status *st)
{
    struct solving solving = {.program = program};
    bool done = false;
    solving.effort.limit = options && options->work ? options->work : WORK;
    tsr__heap_init(&solving.heap, program->arena->session);
    if (tsr__core_init(&solving.core, program, &solving.heap, &solving.effort, NONE, 0) &&
        !solving.core.infeasible && tsr__wide_init(&solving.wide, &solving.core, &solving.heap) &&
        make_narrow(&solving, NARROW_CELLS))
        done = narrow_marginals(&solving, node, out);
    *st = solving.heap.failed || (solving.narrow && !done) ? TSR_NOMEM : TSR_OK;
    stop(&solving);
    return done;
}

// Example: u costs {3, 5}, v costs {0, 1}, edge {0, 9; forbidden, 0}: the marginals of v are {3,
// 6}.
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
        struct program_result program_result;
        st = solve_pinned(program, options, arena, node, choice, &program_result);
        if (st != TSR_OK)
            return st;
        out[choice] = (struct program_marginal){program_result.feasible, program_result.optimal,
                                                program_result.infeasible, program_result.cost,
                                                program_result.bound};
    }
    return TSR_OK;
}
