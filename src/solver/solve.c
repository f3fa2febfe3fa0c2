// SPDX-License-Identifier: Apache-2.0
// solve.c - the driver of the solver.
//
// Exact reductions first. What is left is eliminated where it is narrow: plainly without rows, with
// fronts under rows, for which prices and an answer come from the search. What is wide is searched and
// bounded until both meet, nothing improves any more, or the effort is spent.
#include "solve_front.h"
#include "solve_search.h"

#include <math.h>
#include <pthread.h>

#define WORK         UINT64_C(4000000000)
#define NARROW_CELLS (UINT64_C(1) << 21) // largest table of an elimination
#define DIRECT_CELLS (UINT64_C(1) << 14) // the same without reductions before it
#define FRONT_CELLS  (UINT64_C(1) << 17) // the same with fronts
#define FRONT_POINTS (UINT64_C(1) << 23) // points held at a time
#define SECOND_CELLS 100000              // of the moves of the second search
#define NEAR         1000000000          // a gap of less than one in so many is not worth more
#define PROVING      0.4                 // of the effort may go into fronts
#define MANY         400                 // nodes from which on fronts are likely to fail
#define STALE        12                  // rounds of search without any progress

struct solving {
    const struct program *p;
    struct heap heap;
    struct effort effort;
    struct core core;
    struct wide w;
    struct search search;
    struct tree tree;
    bool searching, narrow;
    int threads;
    void (*tell)(void *context, const struct program_told *told);
    void *context;
    uint32_t *x, *y; // answer in the core, dense; one that may become it
    bool found;
    int64_t cost;    // in the core
    int64_t bound;   // in the core
    bool infeasible; // proved
    int64_t most;    // no answer costs more, in the core
    double dearest;  // price of a unit up to which no sum overflows
};

static double clock_now(void)
{
    struct effort e = {0};
    return tsr__effort_elapsed(&e);
}

static void tell(const struct solving *s, const char *step)
{
    if (!s->tell)
        return;
    struct program_told t = {.seconds = tsr__effort_elapsed(&s->effort),
                             .nodes = s->w.n,
                             .edges = s->w.n_edges,
                             .rows = s->w.n_rows,
                             .cost = s->found ? s->cost + s->core.shift : COST_FORBIDDEN,
                             .bound = s->bound + s->core.shift,
                             .step = step};
    s->tell(s->context, &t);
}

static bool start(struct solving *s, const struct program *p, const struct program_options *o,
                  uint32_t pinned, uint32_t pin)
{
    *s = (struct solving){.p = p, .cost = NEVER};
    s->effort.limit = o && o->work ? o->work : WORK;
    s->effort.session = p->arena->session;
    s->effort.seconds = o ? o->seconds : 0;
    s->effort.start = clock_now();
    s->threads = o ? o->threads : 1;
    s->tell = o ? o->tell : NULL;
    s->context = o ? o->context : NULL;
    if (o && o->seconds > 0 && !o->work)
        s->effort.limit = UINT64_MAX;
    tsr__heap_init(&s->heap, p->arena->session);
    if (!tsr__core_init(&s->core, p, &s->heap, &s->effort, pinned, pin))
        return false;
    s->x = HEAP_ARRAY(&s->heap, uint32_t, p->nodes.n + 1);
    s->infeasible = s->core.infeasible;
    return s->x != NULL;
}

// False: out of memory.
static bool reduce(struct solving *s)
{
    tsr__core_reduce(&s->core);
    s->infeasible = s->core.infeasible;
    if (s->infeasible || s->heap.failed)
        return !s->heap.failed;
    return tsr__wide_init(&s->w, &s->core, &s->heap);
}

static void stop(struct solving *s)
{
    if (s->searching)
        tsr__search_done(&s->search);
    if (s->narrow)
        tsr__tree_free(&s->tree);
    tsr__heap_done(&s->heap);
}

static bool make_narrow(struct solving *s, uint64_t cells)
{
    const struct wide *w = &s->w;
    s->narrow = tsr__tree_init(&s->tree, s->heap.session, w->n, w->k, w->edges, w->n_edges, cells,
                               NULL, NULL);
    if (s->narrow)
        return true;
    if (s->tree.arena.failed)
        s->heap.failed = true;
    tsr__tree_free(&s->tree);
    return false;
}

// ---- without rows

static void eliminate(struct solving *s)
{
    int64_t least = tsr__tree_up(&s->tree, s->w.cost);
    s->effort.work += s->tree.cells;
    s->infeasible = least >= NEVER;
    if (s->infeasible)
        return;
    tsr__tree_back(&s->tree, s->w.cost, s->x);
    s->found = true;
    s->cost = s->bound = least;
}

// ---- search

// What a search knows that is better than what is known.
static void learn(struct solving *s, const struct search *q)
{
    int64_t bound = tsr__search_bound(q);
    s->bound = bound > s->bound ? bound : s->bound;
    if (q->found && q->best_cost < s->cost) {
        s->found = true;
        s->cost = q->best_cost;
        memcpy(s->x, q->best, s->w.n * sizeof(uint32_t));
    }
}

static void take(struct solving *s)
{
    learn(s, &s->search);
    if (s->found && s->bound > s->cost)
        s->bound = s->cost;
    if (s->bound > s->most)
        s->infeasible = true;
}

// The sum of the largest costs: a bound beyond it says that there is no answer.
static int64_t most_cost(const struct wide *w)
{
    int64_t sum = 0;
    for (uint32_t v = 0; v < w->n; v++) {
        int64_t most = 0;
        for (uint32_t c = 0; c < w->k[v]; c++)
            most = w->cost[v][c] < NEVER && w->cost[v][c] > most ? w->cost[v][c] : most;
        sum = plus(sum, most);
    }
    for (uint32_t i = 0; i < w->n_edges; i++) {
        size_t n = (size_t)w->k[w->edges[i].a] * w->k[w->edges[i].b];
        int64_t most = 0;
        for (size_t c = 0; c < n; c++) {
            int64_t x = w->edges[i].cell[c];
            most = x < NEVER && x > most ? x : most;
        }
        sum = plus(sum, most);
    }
    return sum;
}

static bool settled(const struct solving *s)
{
    return s->infeasible || s->heap.failed || (s->found && s->bound >= s->cost);
}

static double dearest_price(const struct wide *w)
{
    double sum = 1;
    for (uint32_t v = 0; v < w->n; v++)
        for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
            int64_t most = 0;
            for (uint32_t c = 0; c < w->k[v]; c++)
                most = w->uses[i].usage[c] > most ? w->uses[i].usage[c] : most;
            sum += (double)most;
        }
    return (double)NEVER / 16 / sum;
}

// One round of search: the bound and answers from it, then moves.
static void look(struct search *q, double fraction, int passes, int rounds)
{
    tsr__effort_slice(q->effort, fraction);
    tsr__search_climb(q, passes);
    tsr__effort_slice(q->effort, fraction);
    if (!q->found && !tsr__search_proved(q))
        tsr__search_dive(q);
    if (!tsr__search_proved(q))
        tsr__search_polish(q, rounds);
    tsr__effort_slice(q->effort, 0);
}

static void look_on(struct solving *s)
{
    int stale = 0;
    while (!settled(s) && !tsr__effort_over(&s->effort) && stale < STALE) {
        int64_t cost = s->cost, bound = s->bound;
        look(&s->search, 0.05, 400, 100);
        take(s);
        tell(s, "round");
        bool better = s->cost < cost || s->bound > bound + bound / 1000000;
        if (s->found && s->cost - s->bound <= s->cost / NEAR && s->effort.seconds <= 0)
            break;
        stale = better || s->effort.seconds > 0 ? 0 : stale + 1;
    }
}

// ---- two searches that tell each other what they find

struct pair {
    struct solving *s; // holds what both know
    pthread_mutex_t lock;
    // the second one: memory of its own, the same program
    tsr_session *session;
    struct heap heap;
    struct wide w;
    struct effort effort;
    struct search search;
};

static bool exchange(struct pair *p, struct search *q)
{
    struct solving *s = p->s;
    pthread_mutex_lock(&p->lock);
    learn(s, q);
    if (s->found && s->cost < q->best_cost) {
        q->found = true;
        q->best_cost = s->cost;
        memcpy(q->best, s->x, s->w.n * sizeof(uint32_t));
    }
    if (s->found && s->bound > s->cost)
        s->bound = s->cost;
    s->infeasible |= s->bound > s->most;
    bool done = s->infeasible || (s->found && s->bound >= s->cost);
    tell(s, q == &s->search ? "first" : "second");
    pthread_mutex_unlock(&p->lock);
    return done;
}

static void *second(void *data)
{
    struct pair *p = data;
    do
        look(&p->search, 0.03, 100, 200);
    while (!exchange(p, &p->search) && !p->heap.failed && !tsr__effort_over(&p->effort));
    return NULL;
}

static bool pair_init(struct pair *p, struct solving *s)
{
    *p = (struct pair){.s = s, .session = tsr_session_new(NULL), .effort = s->effort, .w = s->w};
    if (!p->session)
        return false;
    tsr__heap_init(&p->heap, p->session);
    p->w.heap = &p->heap;
    if (!tsr__search_init(&p->search, &p->w, &p->effort, 2))
        return false;
    p->search.max_cells = SECOND_CELLS;
    p->search.reach = 0.3;
    return pthread_mutex_init(&p->lock, NULL) == 0;
}

// False: no second thread could be had.
static bool look_together(struct solving *s)
{
    struct pair p;
    pthread_t thread;
    bool started = pair_init(&p, s) && pthread_create(&thread, NULL, second, &p) == 0;
    if (started) {
        do {
            look(&s->search, 0.05, 400, 100);
        } while (!exchange(&p, &s->search) && !tsr__effort_over(&s->effort));
        pthread_join(thread, NULL);
        pthread_mutex_destroy(&p.lock);
        s->effort.work += p.effort.work;
    }
    if (p.session) {
        tsr__search_done(&p.search);
        tsr__heap_done(&p.heap);
        tsr_session_free(p.session);
    }
    return started;
}

// ---- fronts

// The minimum under prices as a function of one of them is concave; each answer gives a line above it.
struct line {
    double at0, slope;
};

static struct line line_of(struct solving *s, const double *lambda, uint32_t r)
{
    const struct wide *w = &s->w;
    tsr__search_exact(&s->search, &s->tree, lambda);
    struct line l = {(double)tsr__wide_cost(w, s->search.x),
                     (double)(s->search.load[r] - w->bound[r])};
    for (uint32_t i = 0; i < w->n_rows; i++)
        if (i != r && lambda[i] > 0)
            l.at0 += lambda[i] * (double)(s->search.load[i] - w->bound[i]);
    take(s);
    return l;
}

// The best price of one row, the others given: where the line of the last answer that broke the row
// meets that of the last one that did not. Ends at a price at which the row is kept.
static void tune_row(struct solving *s, double *lambda, uint32_t r)
{
    double low = 0, high = lambda[r] > 0 ? lambda[r] : 1.0 / (double)s->w.scale;
    struct line broken = {0}, kept = {0};
    bool have_broken = false, have_kept = false;
    for (int i = 0; i < 60 && !s->infeasible && !tsr__effort_over(&s->effort); i++) {
        double at = high;
        if (have_kept)
            at = have_broken ? (broken.at0 - kept.at0) / (kept.slope - broken.slope) : 0;
        if (have_kept && !(at >= low && at < high))
            break;
        lambda[r] = at;
        struct line l = line_of(s, lambda, r);
        if (l.slope > 0) {
            if (have_kept && have_broken && l.at0 == broken.at0 && l.slope == broken.slope)
                break; // both lines meet on the function: this is its top
            broken = l;
            have_broken = true;
            low = at;
            if (!have_kept && high * 8 < s->dearest)
                high *= 8;
            else if (!have_kept)
                break;
        } else {
            if (have_kept && l.at0 == kept.at0 && l.slope == kept.slope)
                break;
            kept = l;
            have_kept = true;
            high = at;
        }
    }
    lambda[r] = high;
    if (!s->infeasible)
        line_of(s, lambda, r);
}

static uint32_t worst_row(const struct wide *w, const int64_t *load)
{
    uint32_t worst = NONE;
    for (uint32_t r = 0; r < w->n_rows; r++)
        if (load[r] > w->bound[r] &&
            (worst == NONE || load[r] - w->bound[r] > load[worst] - w->bound[worst]))
            worst = r;
    return worst;
}

// Prices for few rows: the one that is broken worst at the best prices so far comes next.
static void tune_prices(struct solving *s, struct front *f, double *lambda)
{
    tsr__search_exact(&s->search, &s->tree, lambda);
    for (int i = 0; i < FRONT_ROWS - 1 && !settled(s) && !tsr__effort_over(&s->effort); i++) {
        uint32_t r = worst_row(&s->w, s->search.load);
        for (uint32_t j = 0; j < f->n_rows && r != NONE; j++)
            if (f->rows[j] == r)
                r = NONE;
        if (r == NONE)
            break;
        f->rows[f->n_rows++] = r;
        for (uint32_t j = 0; j < f->n_rows; j++)
            tune_row(s, lambda, f->rows[f->n_rows - 1 - j]);
    }
}

// Thresholds grow from just above the bound up to the answer that is known.
static void prove(struct solving *s)
{
    double *lambda = HEAP_ARRAY(&s->heap, double, (size_t)s->w.n_rows + 1);
    struct front f = {.w = &s->w, .tree = &s->tree, .lambda = lambda, .effort = &s->effort};
    if (!lambda)
        return;
    f.max_points = FRONT_POINTS;
    bool many = s->w.n > MANY;
    tsr__effort_slice(&s->effort, many ? 0.6 : PROVING); // others need their part, should this fail
    tune_prices(s, &f, lambda);
    take(s);
    tell(s, "prices");
    if (many)
        tsr__effort_slice(&s->effort, 0.25);
    if (many && !settled(s))
        tsr__search_relax(&s->search, &s->tree, lambda);
    take(s);
    tell(s, "relaxed");
    tsr__effort_slice(&s->effort, many ? 0.3 : PROVING);
    int64_t window = s->bound / 2000 + 1;
    while (!settled(s) && !tsr__effort_over(&s->effort)) {
        int64_t threshold = s->cost - s->bound <= window ? s->cost : s->bound + window, cost;
        if (!s->found && threshold > s->most)
            threshold = s->most + 1;
        enum front_end end = tsr__front(&f, threshold, s->y, &cost);
        if (end == FRONT_FOUND) {
            memcpy(s->x, s->y, s->w.n * sizeof(uint32_t));
            s->found = true;
            s->cost = s->bound = cost;
        } else if (end == FRONT_NONE) {
            s->bound = threshold;
            s->infeasible = !s->found && threshold > s->most;
        } else {
            s->heap.failed |= end == FRONT_FAILED;
            return;
        }
        window *= 4;
    }
}

static void solve(struct solving *s)
{
    const struct wide *w = &s->w;
    // Narrow programs without rows need no reductions: eliminating them is faster.
    if (s->core.n_rows == 0) {
        if (tsr__wide_init(&s->w, &s->core, &s->heap) && make_narrow(s, DIRECT_CELLS)) {
            eliminate(s);
            return;
        }
    }
    if (s->heap.failed || !reduce(s) || s->infeasible)
        return;
    if (w->n_rows == 0 && make_narrow(s, NARROW_CELLS)) {
        eliminate(s);
        return;
    }
    s->most = most_cost(w);
    s->dearest = dearest_price(w);
    s->y = HEAP_ARRAY(&s->heap, uint32_t, (size_t)w->n + 1);
    if (s->heap.failed || !tsr__search_init(&s->search, w, &s->effort, 1))
        return;
    s->searching = true;
    tell(s, "reduced");
    if (w->n_rows && make_narrow(s, FRONT_CELLS))
        prove(s);
    tsr__effort_slice(&s->effort, 0);
    tell(s, "fronts");
    bool two = s->threads > 1 && s->effort.seconds > 0 && !settled(s);
    if (!two || !look_together(s))
        look_on(s);
}

// ---- results

static void add_binding(const struct solving *s, struct program_result *out, uint32_t r,
                        const int64_t *load)
{
    uint32_t l = s->core.row_limit[r];
    struct program_binding *b = &out->bindings[out->n_bindings++];
    // What was taken off the bound is used in any case.
    *b = (struct program_binding){l, s->core.row_time[r],
                                  s->p->limits.at[l].bound - s->core.row_bound[r] + load[r]};
}

// Rows that are full, and rows that the bound pays for.
static bool bindings(const struct solving *s, struct arena *a, struct program_result *out)
{
    const struct wide *w = &s->w;
    int64_t *load = ARENA_ARRAY(a, int64_t, (size_t)w->n_rows + 1);
    out->bindings = ARENA_ARRAY(a, struct program_binding, (size_t)w->n_rows + 1);
    if (a->failed)
        return false;
    if (!s->found)
        return true;
    const double *lambda = s->searching ? s->search.dual.best_lambda : NULL;
    double most = 0;
    for (uint32_t r = 0; lambda && r < w->n_rows; r++)
        most = lambda[r] > most ? lambda[r] : most;
    tsr__wide_load(w, s->x, load);
    for (uint32_t r = 0; r < w->n_rows; r++)
        if (load[r] == w->bound[r] || (lambda && lambda[r] > 0.01 * most))
            add_binding(s, out, r, load);
    return true;
}

static tsr_status result(const struct solving *s, struct arena *a, struct program_result *out)
{
    *out = (struct program_result){.feasible = s->found,
                                   .infeasible = s->infeasible && !s->found,
                                   .cost = COST_FORBIDDEN,
                                   .bound = s->bound + s->core.shift,
                                   .gap = 1,
                                   .work = s->effort.work};
    if (!bindings(s, a, out))
        return TSR_NOMEM;
    if (!s->found)
        return TSR_OK;
    out->choice = ARENA_ARRAY(a, uint32_t, s->p->nodes.n + 1);
    if (!out->choice)
        return TSR_NOMEM;
    for (uint32_t v = 0; v < s->w.n; v++)
        out->choice[s->w.node[v]] = s->core.nodes[s->w.node[v]].origin[s->x[v]];
    tsr__core_expand(&s->core, out->choice);
    out->cost = tsr__program_cost(s->p, out->choice);
    if (out->cost != s->cost + s->core.shift)
        return TSR_BUG;
    out->optimal = out->bound >= out->cost;
    out->gap = (double)(out->cost - out->bound) / fmax(1, fabs((double)out->cost));
    return TSR_OK;
}

static tsr_status solve_pinned(const struct program *p, const struct program_options *o,
                               struct arena *a, uint32_t pinned, uint32_t pin,
                               struct program_result *out)
{
    struct solving s;
    tsr_status st = TSR_OK;
    if (!start(&s, p, o, pinned, pin))
        st = TSR_NOMEM;
    else if (!s.infeasible)
        solve(&s);
    if (s.heap.failed)
        st = TSR_NOMEM;
    if (st == TSR_OK)
        st = result(&s, a, out);
    stop(&s);
    return st;
}

tsr_status tsr__program_solve(const struct program *p, const struct program_options *o,
                              struct arena *a, struct program_result *out)
{
    tsr_status st = tsr__program_check(p);
    return st == TSR_OK ? solve_pinned(p, o, a, NONE, 0, out) : st;
}

// ---- marginals

static bool narrow_marginals(struct solving *s, uint32_t node, struct program_marginal *out)
{
    const struct wide *w = &s->w;
    int64_t *least = HEAP_ARRAY(&s->heap, int64_t, w->k[node]);
    if (!least || tsr__tree_up(&s->tree, w->cost) < 0 || !tsr__tree_down(&s->tree, w->cost))
        return false;
    tsr__tree_marginals(&s->tree, w->cost, node, least);
    for (uint32_t c = 0; c < w->k[node]; c++) {
        bool ok = least[c] < NEVER;
        int64_t cost = ok ? least[c] + s->core.shift : COST_FORBIDDEN;
        out[c] = (struct program_marginal){ok, ok, !ok, cost, cost};
    }
    return true;
}

// Without limits and reductions: every choice of every node is still there. False: not so narrow.
static bool try_marginals(const struct program *p, const struct program_options *o, uint32_t node,
                          struct program_marginal *out, tsr_status *st)
{
    struct solving s = {.p = p};
    bool done = false;
    s.effort.limit = o && o->work ? o->work : WORK;
    tsr__heap_init(&s.heap, p->arena->session);
    if (tsr__core_init(&s.core, p, &s.heap, &s.effort, NONE, 0) && !s.core.infeasible &&
        tsr__wide_init(&s.w, &s.core, &s.heap) && make_narrow(&s, NARROW_CELLS))
        done = narrow_marginals(&s, node, out);
    *st = s.heap.failed || (s.narrow && !done) ? TSR_NOMEM : TSR_OK;
    stop(&s);
    return done;
}

tsr_status tsr__program_marginals(const struct program *p, const struct program_options *o,
                                  struct arena *a, uint32_t node, struct program_marginal *out)
{
    tsr_status st = tsr__program_check(p);
    if (st != TSR_OK)
        return st;
    if (node >= p->nodes.n)
        return TSR_INVALID;
    if (p->limits.n == 0 && (try_marginals(p, o, node, out, &st) || st != TSR_OK))
        return st;
    for (uint32_t c = 0; st == TSR_OK && c < p->nodes.at[node].k; c++) {
        struct program_result r;
        st = solve_pinned(p, o, a, node, c, &r);
        if (st == TSR_OK)
            out[c] =
                (struct program_marginal){r.feasible, r.optimal, r.infeasible, r.cost, r.bound};
    }
    return st;
}
