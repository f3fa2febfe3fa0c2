// SPDX-License-Identifier: Apache-2.0
// solve_search.c - search on a wide core.
//
// Climbing passes messages and raises prices; every few passes the messages are read as an answer.
// A move conditions on some nodes, so that the rest is narrow, and takes the optimum of the rest under
// the prices, by elimination: most nodes change together. Where rows are broken they become dearer
// and the move is repeated.
#include "solve_search.h"

#include <math.h>

#define MOVE_CELLS 20000     // of the largest table of a move
#define HELD       (1 << 20) // cells of a plan that is kept
#define SMALL      400       // nodes of a program that has no local moves

static int64_t **rows_of(const struct wide *w)
{
    size_t n = 0;
    for (uint32_t v = 0; v < w->n; v++)
        n += w->k[v];
    int64_t **rows = HEAP_ARRAY(w->heap, int64_t *, (size_t)w->n + 1);
    int64_t *cells = HEAP_ARRAY(w->heap, int64_t, n + 1);
    for (uint32_t v = 0; rows && cells && v < w->n; v++) {
        rows[v] = cells;
        cells += w->k[v];
    }
    return rows;
}

bool tsr__search_init(struct search *s, const struct wide *w, struct effort *e, uint64_t seed)
{
    struct heap *h = w->heap;
    *s = (struct search){.w = w, .heap = h, .effort = e, .random = seed, .reach = 1};
    s->max_cells = MOVE_CELLS;
    s->best_cost = NEVER;
    s->penalty = rows_of(w);
    s->unary = rows_of(w);
    s->trial = HEAP_ARRAY(h, double, (size_t)w->n_rows + 1);
    s->prefix = HEAP_ARRAY(h, double, (size_t)w->n_rows + 1);
    s->load = HEAP_ARRAY(h, int64_t, (size_t)w->n_rows + 1);
    s->x = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    s->y = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    s->best = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    s->queue = HEAP_ARRAY(h, uint32_t, (size_t)w->n + 1);
    for (int i = 0; i < SEARCH_PLANS; i++)
        s->plans[i].fixed = HEAP_ARRAY(h, uint8_t, (size_t)w->n + 1);
    s->local = w->n > SMALL;
    if (!tsr__region_init(&s->region, w, e, &s->random))
        return false;
    return !h->failed && tsr__dual_init(&s->dual, w);
}

static void renew(struct search *s, int plan)
{
    if (s->plans[plan].made)
        tsr__tree_free(&s->plans[plan].tree);
    s->plans[plan].made = false;
}

void tsr__search_done(struct search *s)
{
    for (int i = 0; i < SEARCH_PLANS; i++)
        renew(s, i);
}

bool tsr__search_offer(struct search *s, const uint32_t *x)
{
    int64_t cost = tsr__wide_cost(s->w, x);
    if (cost >= s->best_cost)
        return false;
    tsr__wide_load(s->w, x, s->load);
    if (tsr__wide_excess(s->w, s->load) > 0)
        return false;
    s->found = true;
    s->best_cost = cost;
    memcpy(s->best, x, s->w->n * sizeof(*x));
    return true;
}

int64_t tsr__search_bound(const struct search *s)
{
    // Sums of doubles err by far less than this.
    double magnitude = fabs(s->dual.best) + s->dual.best_paid;
    double bound = s->dual.best - 1e-10 * magnitude - 1e-6;
    int64_t whole = bound <= 0 ? 0 : bound >= (double)NEVER ? NEVER : (int64_t)ceil(bound);
    return whole > s->sure ? whole : s->sure;
}

bool tsr__search_proved(const struct search *s)
{
    return s->found && tsr__search_bound(s) >= s->best_cost;
}

// ---- moves

// The nodes around one that is drawn, up to `size`, get `mark`.
static void ball(struct search *s, uint8_t *fixed, uint32_t size, uint8_t mark)
{
    const struct wide *w = s->w;
    uint32_t n = 0, at = 0, *queue = s->queue;
    uint8_t before = fixed[0]; // all are alike
    queue[n++] = (uint32_t)(random_next(&s->random) % w->n);
    fixed[queue[0]] = mark;
    while (at < n && n < size) {
        uint32_t v = queue[at++];
        for (uint32_t t = w->first[v]; t < w->first[v + 1] && n < size; t++) {
            const struct tree_edge *e = &w->edges[w->touch[t]];
            uint32_t o = e->a == v ? e->b : e->a;
            if (fixed[o] == before) {
                fixed[o] = mark;
                queue[n++] = o;
            }
        }
    }
}

// Plans are of two kinds: all nodes but those that must be fixed, with a region that rather is not;
// and in large programs the second half: a region alone.
static struct move_plan *plan_of(struct search *s, int i)
{
    struct move_plan *p = &s->plans[i];
    const struct wide *w = s->w;
    if (p->made)
        return p;
    bool local = w->n > SMALL && i >= SEARCH_PLANS / 2;
    memset(p->fixed, local ? TREE_FIXED : 0, w->n);
    if (local)
        ball(s, p->fixed, 40 + (uint32_t)(random_next(&s->random) % SMALL), 0);
    else
        ball(s, p->fixed, 4 + (uint32_t)(random_next(&s->random) % 24), TREE_FREE);
    p->made = tsr__tree_init(&p->tree, w->heap->session, w->n, w->k, w->edges, w->n_edges,
                             s->max_cells, p->fixed, &s->random);
    if (!p->made) {
        tsr__tree_free(&p->tree);
        s->max_cells = s->max_cells > 2000 ? s->max_cells / 2 : 1000; // too much altogether
    }
    s->effort->work += w->n_edges * 4;
    return p->made ? p : NULL;
}

static void price(struct search *s, const double *lambda)
{
    const struct wide *w = s->w;
    for (uint32_t r = 0; r < w->n_rows; r++)
        s->prefix[r + 1] = s->prefix[r] + lambda[r];
    for (uint32_t v = 0; v < w->n; v++) {
        int64_t *out = s->penalty[v];
        memset(out, 0, w->k[v] * sizeof(int64_t));
        for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
            const struct wide_use *u = &w->uses[i];
            double p = s->prefix[u->end] - s->prefix[u->begin];
            for (uint32_t c = 0; p > 0 && c < w->k[v]; c++) {
                double x = p * (double)u->usage[c];
                out[c] = plus(out[c], x < (double)NEVER ? (int64_t)x : NEVER);
            }
        }
    }
}

static void prepare(struct search *s, const struct move_plan *p, const uint32_t *x)
{
    const struct wide *w = s->w;
    for (uint32_t v = 0; v < w->n; v++)
        for (uint32_t c = 0; p->fixed[v] != TREE_FIXED && c < w->k[v]; c++)
            s->unary[v][c] = plus(w->cost[v][c], s->penalty[v][c]);
    for (uint32_t i = 0; i < w->n_edges; i++) {
        const struct tree_edge *e = &w->edges[i];
        bool a = p->fixed[e->a] == TREE_FIXED, b = p->fixed[e->b] == TREE_FIXED;
        uint32_t kb = w->k[e->b];
        if (a == b)
            continue;
        uint32_t v = a ? e->b : e->a;
        const int64_t *cell = a ? e->cell + (size_t)x[e->a] * kb : e->cell + x[e->b];
        for (uint32_t c = 0; c < w->k[v]; c++)
            s->unary[v][c] = plus(s->unary[v][c], cell[a ? c : (size_t)c * kb]);
    }
}

static int draw_plan(struct search *s, bool global)
{
    int half = SEARCH_PLANS / 2, plan = (int)(random_next(&s->random) % SEARCH_PLANS);
    if (s->w->n > SMALL) // regions mostly
        plan = plan % half + (global || random_next(&s->random) % 8 == 0 ? 0 : half);
    if (random_next(&s->random) % 4 == 0)
        renew(s, plan);
    return plan;
}

// y: x with all but the fixed nodes at their optimum under the prices. y may be x.
static bool move(struct search *s, int plan, const uint32_t *x, uint32_t *y)
{
    struct move_plan *p = plan_of(s, plan);
    if (!p)
        return false;
    if (y != x)
        memcpy(y, x, s->w->n * sizeof(*y));
    prepare(s, p, x);
    int64_t least = tsr__tree_up(&p->tree, s->unary);
    if (least < NEVER)
        tsr__tree_back(&p->tree, s->unary, y);
    s->effort->work += p->tree.cells * 2 + s->w->n_edges;
    if (p->tree.held > HELD)
        renew(s, plan); // many of these would not fit
    return least < NEVER;
}

// Makes the rows dearer that are broken under s->load.
static void raise_prices(struct search *s)
{
    const struct wide *w = s->w;
    double most = 0;
    for (uint32_t r = 0; r < w->n_rows; r++)
        most = fmax(most, fmax(s->trial[r], s->dual.best_lambda[r]));
    for (uint32_t r = 0; r < w->n_rows; r++)
        if (s->load[r] > w->bound[r])
            s->trial[r] = s->trial[r] * 1.5 + most * 0.02 + 1e-9;
    price(s, s->trial);
}

// Moves on until no row is broken, each time dearer; prices in trial.
static bool settle(struct search *s, uint32_t *x, int tries)
{
    if (s->local) {
        tsr__region_start(&s->region, x, s->dual.lambda);
        bool ok = tsr__region_repair(&s->region, tries * 100);
        memcpy(x, s->region.x, s->w->n * sizeof(*x));
        return ok;
    }
    for (int i = 0;; i++) {
        tsr__wide_load(s->w, x, s->load);
        if (tsr__wide_excess(s->w, s->load) <= 0)
            return true;
        if (i == tries || tsr__effort_over(s->effort))
            return false;
        raise_prices(s);
        if (!move(s, draw_plan(s, true), x, x))
            return false;
    }
}

// One move from x to y, repeated dearer until it breaks no row.
static bool kept_move(struct search *s, int plan, const uint32_t *x, uint32_t *y, int tries)
{
    price(s, s->trial);
    for (int i = 0; i <= tries; i++) {
        if (!move(s, plan, x, y))
            return false;
        tsr__wide_load(s->w, y, s->load);
        if (tsr__wide_excess(s->w, s->load) <= 0)
            return true;
        raise_prices(s);
    }
    return false;
}

bool tsr__search_settle(struct search *s, uint32_t *x, int tries)
{
    memcpy(s->trial, s->dual.lambda, s->w->n_rows * sizeof(double));
    return settle(s, x, tries) && tsr__search_offer(s, x);
}

// From x to y, which keeps all rows. Going on with other moves finds more than the same one at dearer
// prices, but is dear itself where each is of a large program.
static bool one_round(struct search *s)
{
    int plan = draw_plan(s, false);
    if (s->w->n > SMALL || random_next(&s->random) % 4 == 0)
        return kept_move(s, plan, s->x, s->y, 5);
    price(s, s->trial);
    return move(s, plan, s->x, s->y) && settle(s, s->y, 4);
}

// Regions, one after another, from where the region stands.
static void move_regions(struct search *s, int rounds)
{
    static const uint32_t few[] = {0, 0, 2, 3, 5, 8};
    struct region *g = &s->region;
    tsr__region_weigh(g, &s->dual);
    for (int i = 0; i < rounds && !tsr__effort_over(s->effort); i++) {
        double u = random_unit(&s->random) * 2 - 1, factor = exp(u * u * u * 3);
        if (random_next(&s->random) % 4 == 0)
            factor = 0; // only what is broken has a price
        tsr__region_move(g, &s->dual, few[random_next(&s->random) % TSR_COUNT(few)], factor,
                         g->cost);
    }
}

// What the messages say, made to keep the rows and polished; then the best of it and the best answer.
static void start_anew(struct search *s, int rounds)
{
    struct region *g = &s->region;
    tsr__dual_round(&s->dual, s->x);
    if (tsr__wide_cost(s->w, s->x) >= NEVER)
        return;
    tsr__region_start(g, s->x, s->dual.lambda);
    if (!tsr__region_repair(g, 2000))
        return;
    move_regions(s, rounds);
    memcpy(s->y, g->x, s->w->n * sizeof(*s->y));
    tsr__search_offer(s, s->y);
    tsr__region_start(g, s->best, s->dual.best_lambda);
    for (int i = 0; i < 4; i++)
        tsr__region_fuse(g, s->y, 0.5 * i, g->cost);
    tsr__search_offer(s, g->x);
}

static void polish_regions(struct search *s, int rounds)
{
    if (random_next(&s->random) % 2)
        start_anew(s, rounds);
    tsr__region_start(&s->region, s->best, s->dual.best_lambda);
    move_regions(s, rounds);
    tsr__search_offer(s, s->region.x);
}

// What is cheaper at lower prices and breaks rows, in parts.
void tsr__search_relax(struct search *s, struct tree *t, const double *lambda)
{
    static const double factors[] = {0.995, 0.98, 0.95, 0.9, 0.8, 0.5};
    double *less = s->trial;
    for (size_t i = 0; i < TSR_COUNT(factors) && !tsr__effort_over(s->effort) && s->found; i++) {
        for (uint32_t r = 0; r < s->w->n_rows; r++)
            less[r] = lambda[r] * factors[i];
        tsr__search_exact(s, t, less);
        tsr__region_start(&s->region, s->best, lambda);
        tsr__region_fuse(&s->region, s->x, 1, s->best_cost);
        tsr__region_fuse(&s->region, s->x, 0, s->region.cost);
        tsr__search_offer(s, s->region.x);
    }
    if (!s->found || s->w->n < 5 * SMALL)
        return;
    tsr__region_start(&s->region, s->best, lambda);
    move_regions(s, 300);
    tsr__search_offer(s, s->region.x);
}

void tsr__search_polish(struct search *s, int rounds)
{
    const struct wide *w = s->w;
    if (!s->found)
        return;
    if (s->local || random_next(&s->random) % 2) {
        polish_regions(s, s->local ? rounds * 10 : rounds * 3);
        return;
    }
    // Answers that are a little worse are gone on from; how much is drawn for each call.
    static const double worse[] = {0, 0, 1e-4, 1e-3, 1e-2, 3e-2};
    double slack = worse[random_next(&s->random) % TSR_COUNT(worse)];
    int64_t most = s->best_cost + (int64_t)(slack * fabs((double)s->best_cost));
    memcpy(s->x, s->best, w->n * sizeof(*s->x));
    for (int i = 0; i < rounds && !tsr__effort_over(s->effort); i++) {
        double u = random_unit(&s->random) * 2 - 1, factor = exp(u * u * u * 3);
        if (random_next(&s->random) % 4 == 0)
            factor = 0; // only what is broken has a price
        for (uint32_t r = 0; r < w->n_rows; r++)
            s->trial[r] = s->dual.best_lambda[r] * factor;
        if (!one_round(s))
            continue;
        if (tsr__wide_cost(w, s->y) <= most) {
            uint32_t *swap = s->x;
            s->x = s->y;
            s->y = swap;
            tsr__search_offer(s, s->x);
        }
    }
}

void tsr__search_exact(struct search *s, struct tree *t, const double *lambda)
{
    const struct wide *w = s->w;
    price(s, lambda);
    for (uint32_t v = 0; v < w->n; v++)
        for (uint32_t c = 0; c < w->k[v]; c++)
            s->unary[v][c] = plus(w->cost[v][c], s->penalty[v][c]);
    int64_t least = tsr__tree_up(t, s->unary);
    s->effort->work += t->cells;
    if (least >= NEVER)
        return;
    tsr__tree_back(t, s->unary, s->x);
    tsr__search_offer(s, s->x);
    tsr__wide_load(w, s->x, s->load);
    double paid = 0;
    for (uint32_t r = 0; r < w->n_rows; r++)
        paid += lambda[r] * (double)w->bound[r];
    if ((double)least - paid > s->dual.best) {
        s->dual.best = (double)least - paid;
        s->dual.best_paid = paid;
        memcpy(s->dual.best_lambda, lambda, w->n_rows * sizeof(double));
    }
}

// ---- climbing

static void candidate(struct search *s, bool repair)
{
    tsr__dual_round(&s->dual, s->x);
    if (tsr__wide_cost(s->w, s->x) >= NEVER)
        return;
    // Repairs are dear in large programs: passes come first.
    if (tsr__search_offer(s, s->x) || !repair || s->repair_work > s->pass_work / 2)
        return;
    uint64_t before = s->effort->work;
    memcpy(s->trial, s->dual.lambda, s->w->n_rows * sizeof(double));
    if (settle(s, s->x, 12))
        tsr__search_offer(s, s->x);
    s->repair_work += s->effort->work - before;
}

// Steps aim at a bound that is higher by `reach` of itself. Where that is not nearly met for a while,
// less is aimed at; once hardly anything is, more again, from the best prices.
static bool adapt(struct search *s)
{
    struct dual *d = &s->dual;
    if (d->best > s->last + 0.1 * s->reach * fabs(d->best)) {
        s->last = d->best;
        s->since = 0;
        return false;
    }
    if (++s->since < 8)
        return false;
    s->since = 0;
    s->last = d->best;
    s->reach *= 0.8;
    if (s->reach > 1e-4)
        return false;
    s->reach = 0.1;
    memcpy(d->lambda, d->best_lambda, s->w->n_rows * sizeof(double));
    tsr__dual_price(d);
    return true;
}

// A bound that has come as near as doubles let it is taken in whole numbers.
static void make_sure(struct search *s)
{
    double cost = (double)s->best_cost;
    if (!s->found || tsr__search_proved(s) || s->dual.bound < cost - 1e-9 * fabs(cost) - 1)
        return;
    int64_t sure = tsr__dual_exact(&s->dual);
    s->sure = sure > s->sure ? sure : s->sure;
    s->effort->work += s->dual.cells;
}

void tsr__search_climb(struct search *s, int passes)
{
    struct dual *d = &s->dual;
    for (int i = 0; i < passes && !tsr__effort_over(s->effort) && !tsr__search_proved(s); i++) {
        tsr__dual_pass(d);
        s->effort->work += d->cells + s->w->n_rows;
        s->pass_work += d->cells + s->w->n_rows;
        if (i % 5 == 0)
            candidate(s, i % 50 == 0);
        if (i % 5 == 0)
            make_sure(s);
        if (s->w->n_rows == 0 || adapt(s))
            continue;
        double most = d->best + s->reach * fabs(d->best) + 1000 * s->reach;
        double target = s->found && (double)s->best_cost < most ? (double)s->best_cost : most;
        tsr__dual_step(d, target, s->load);
    }
    make_sure(s);
}
