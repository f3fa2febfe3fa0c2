// SPDX-License-Identifier: Apache-2.0
// solve_front.c - bucket elimination with fronts.
//
// As in solve_tree.c, but a cell of a message holds all points (cost, usage of the active rows) of
// which none is better than another in everything. A point leaves also where its cost under the prices,
// completed as cheaply as the down pass says, reaches the threshold: with good prices and a good
// threshold only few are left. Rows are active once an answer has broken them.
#include "solve_front.h"

#include <math.h>
#include <stdlib.h>

struct point {
    int64_t cost;
    int64_t used[FRONT_ROWS]; // by active row
};
struct set {
    struct point *at;
    size_t n;
};
struct run {
    struct front *f;
    struct arena arena;
    uint32_t rows[FRONT_ROWS];
    uint32_t n_rows;
    int64_t **unary;    // costs and prices
    int64_t ***used;    // by node (NULL: nothing), by choice: usage of the active rows
    struct set **sets;  // by bucket, by cell
    struct set *joined; // of the first i roots together
    double price[FRONT_ROWS];
    double below;       // a priced total from here on is of no use
    struct set work[2]; // growing
    size_t cap[2];
    uint64_t points;
    bool over;
};

// ---- prices and usages

static void unary_of(const struct run *r, uint32_t v, const double *prefix, int64_t *out)
{
    const struct wide *w = r->f->w;
    for (uint32_t c = 0; c < w->k[v]; c++)
        out[c] = w->cost[v][c];
    for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
        const struct wide_use *u = &w->uses[i];
        double p = prefix[u->end] - prefix[u->begin];
        for (uint32_t c = 0; p > 0 && c < w->k[v]; c++) // rounded down: the bound stays valid
            out[c] = plus(out[c], (int64_t)(p * (double)u->usage[c]));
    }
}

// What the prices pay for the bounds.
static double paid(const struct run *r)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->n_rows; i++)
        sum += r->price[i] * (double)r->f->w->bound[r->rows[i]];
    return sum;
}

// Rounded the same way for all points: what is no better in anything is never priced lower.
static double priced(const struct run *r, const struct point *p)
{
    double sum = (double)p->cost;
    for (uint32_t i = 0; i < r->n_rows; i++)
        sum += r->price[i] * (double)p->used[i];
    return sum;
}

static bool run_prices(struct run *r)
{
    const struct wide *w = r->f->w;
    double *prefix = ARENA_ARRAY(&r->arena, double, (size_t)w->n_rows + 1);
    r->unary = ARENA_ARRAY(&r->arena, int64_t *, (size_t)w->n + 1);
    if (r->arena.failed)
        return false;
    for (uint32_t i = 0; i < r->n_rows; i++)
        r->price[i] = r->f->lambda[r->rows[i]];
    for (uint32_t i = 0; i < r->n_rows; i++)
        prefix[r->rows[i] + 1] += r->price[i];
    for (uint32_t i = 0; i < w->n_rows; i++)
        prefix[i + 1] += prefix[i];
    for (uint32_t v = 0; v < w->n; v++) {
        r->unary[v] = ARENA_ARRAY(&r->arena, int64_t, w->k[v]);
        if (!r->unary[v])
            return false;
        unary_of(r, v, prefix, r->unary[v]);
    }
    return true;
}

static void run_used(struct run *r, uint32_t v)
{
    const struct wide *w = r->f->w;
    for (uint32_t i = w->first_use[v]; i < w->first_use[v + 1]; i++) {
        const struct wide_use *u = &w->uses[i];
        for (uint32_t a = 0; a < r->n_rows; a++) {
            if (r->rows[a] < u->begin || r->rows[a] >= u->end)
                continue;
            for (uint32_t c = 0; c < w->k[v]; c++)
                r->used[v][c][a] += u->usage[c];
        }
    }
}

static bool run_usages(struct run *r)
{
    const struct wide *w = r->f->w;
    r->used = ARENA_ARRAY(&r->arena, int64_t **, (size_t)w->n + 1);
    for (uint32_t v = 0; v < w->n && !r->arena.failed; v++) {
        if (w->first_use[v] == w->first_use[v + 1])
            continue;
        r->used[v] = ARENA_ARRAY(&r->arena, int64_t *, w->k[v]);
        int64_t *cells = ARENA_ARRAY(&r->arena, int64_t, (size_t)w->k[v] * FRONT_ROWS);
        for (uint32_t c = 0; !r->arena.failed && c < w->k[v]; c++)
            r->used[v][c] = cells + (size_t)c * FRONT_ROWS;
        if (!r->arena.failed)
            run_used(r, v);
    }
    return !r->arena.failed;
}

// ---- sets

static struct point *push(struct run *r, int which)
{
    struct set *s = &r->work[which];
    if (s->n == r->cap[which]) {
        size_t cap = r->cap[which] ? r->cap[which] * 2 : 1024;
        tsr_session *session = r->arena.session;
        struct point *grown = tsr__realloc(session, s->at, r->cap[which] * sizeof(struct point),
                                           cap * sizeof(struct point));
        if (!grown) {
            r->arena.failed = true;
            return NULL;
        }
        s->at = grown;
        r->cap[which] = cap;
    }
    return &s->at[s->n++];
}

static int by_cost(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    if (p->cost != q->cost)
        return p->cost < q->cost ? -1 : 1;
    for (int i = 0; i < FRONT_ROWS; i++)
        if (p->used[i] != q->used[i])
            return p->used[i] < q->used[i] ? -1 : 1;
    return 0;
}

static bool better(const struct run *r, const struct point *p, const struct point *q)
{
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (p->used[i] > q->used[i])
            return false;
    return true; // its cost is no larger: they are sorted
}

// Keeps in work[which] from `from` on only what nothing else beats.
static void filter(struct run *r, int which)
{
    struct set *s = &r->work[which];
    if (s->n == 0)
        return;
    qsort(s->at, s->n, sizeof(struct point), by_cost);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        bool beaten = false;
        for (size_t j = n;
             j-- > 0 && !beaten;) { // the last one kept has the least usage, for one row
            beaten = better(r, &s->at[j], &s->at[i]);
            if (r->n_rows <= 1)
                break;
        }
        r->f->effort->work += r->n_rows <= 1 ? 1 : n / 4 + 1;
        if (!beaten)
            s->at[n++] = s->at[i];
        if (i % 1024 == 1023 && tsr__effort_over(r->f->effort)) {
            r->over = true;
            break;
        }
    }
    s->n = n;
}

static struct set keep(struct run *r, int which)
{
    struct set out = {ARENA_ARRAY(&r->arena, struct point, r->work[which].n + 1), r->work[which].n};
    if (!out.at)
        return (struct set){0};
    if (out.n)
        memcpy(out.at, r->work[which].at, out.n * sizeof(struct point));
    r->points += out.n;
    if (r->points > r->f->max_points)
        r->over = true;
    return out;
}

static bool within(const struct run *r, const struct point *p)
{
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (p->used[i] > r->f->w->bound[r->rows[i]])
            return false;
    return true;
}

// work[to] gets all sums of work[from] (from some point on) and s whose completion `rest` stays below.
static void cross(struct run *r, int from, struct set s, int64_t rest, int to)
{
    const struct set *left = &r->work[from];
    r->work[to].n = 0;
    for (size_t i = 0; i < left->n && !r->over; i++) {
        if (r->work[to].n > r->f->max_points || (i % 64 == 63 && tsr__effort_over(r->f->effort)))
            r->over = true;
        for (size_t j = 0; j < s.n; j++) {
            const struct point *p = &left->at[i], *q = &s.at[j];
            struct point sum = {p->cost + q->cost, {0}};
            for (uint32_t k = 0; k < r->n_rows; k++)
                sum.used[k] = p->used[k] + q->used[k];
            if (!within(r, &sum) || priced(r, &sum) + (double)rest >= r->below)
                continue;
            struct point *out = push(r, to);
            if (!out)
                return;
            *out = sum;
        }
        r->f->effort->work += s.n;
    }
}

// ---- one bucket

struct cell {
    const struct tree_bucket *b;
    size_t at;
    const size_t *offset; // of the factors
    int64_t rest;         // all that is not below this bucket
};

// Cost of choice c and the tables of edges; false: forbidden.
static bool own_point(const struct run *r, const struct cell *x, uint32_t c, struct point *out)
{
    uint32_t v = x->b->node;
    *out = (struct point){r->f->w->cost[v][c], {0}};
    for (uint32_t f = 0; f < x->b->n_factors; f++) {
        const struct tree_factor *y = &x->b->factors[f];
        if (y->child != NONE)
            continue;
        int64_t cost = y->cell[x->offset[f] + c * y->own];
        if (cost >= NEVER)
            return false;
        out->cost += cost;
    }
    for (uint32_t a = 0; r->used[v] && a < r->n_rows; a++)
        out->used[a] = r->used[v][c][a];
    return out->cost < NEVER;
}

// What the children give at best with choice c, and the rest.
static int64_t outlook(const struct cell *x, uint32_t c)
{
    int64_t sum = x->rest;
    for (uint32_t f = 0; f < x->b->n_factors; f++) {
        const struct tree_factor *y = &x->b->factors[f];
        if (y->child != NONE)
            sum = plus(sum, y->cell[x->offset[f] + c * y->own]);
    }
    return sum;
}

// All points of choice c into work[0], the result in work[1] or work[0]; returns which.
static int combine(struct run *r, const struct cell *x, uint32_t c, const struct point *own)
{
    int now = 0;
    int64_t rest = outlook(x, c);
    r->work[0].n = 0;
    struct point *first = push(r, 0);
    if (!first)
        return 0;
    *first = *own;
    for (uint32_t f = 0; f < x->b->n_factors && !r->arena.failed; f++) {
        const struct tree_factor *y = &x->b->factors[f];
        if (y->child == NONE || r->over)
            continue;
        size_t at = x->offset[f] + c * y->own;
        rest -= y->cell[at];
        cross(r, now, r->sets[y->child][at], rest, 1 - now);
        now = 1 - now;
        if (r->work[now].n > 64)
            filter(r, now);
    }
    return now;
}

static void append(struct run *r, struct set *all, size_t *cap, int which)
{
    const struct set *s = &r->work[which];
    if (s->n == 0)
        return;
    if (all->n + s->n > *cap) {
        size_t cells = (all->n + s->n) * 2;
        struct point *grown = tsr__realloc(r->arena.session, all->at, *cap * sizeof(struct point),
                                           cells * sizeof(struct point));
        if (!grown) {
            r->arena.failed = true;
            return;
        }
        all->at = grown;
        *cap = cells;
    }
    memcpy(all->at + all->n, s->at, s->n * sizeof(struct point));
    all->n += s->n;
}

// Replaces work[0] by the given set, so that it can be filtered and kept.
static struct set finish(struct run *r, struct set *all)
{
    r->work[0].n = 0;
    for (size_t i = 0; i < all->n; i++) {
        struct point *p = push(r, 0);
        if (!p)
            return (struct set){0};
        *p = all->at[i];
    }
    filter(r, 0);
    return keep(r, 0);
}

static void fill_bucket(struct run *r, uint32_t i, struct set *all, size_t *cap)
{
    struct tree *t = r->f->tree;
    const struct tree_bucket *b = &t->buckets[i];
    r->sets[i] = ARENA_ARRAY(&r->arena, struct set, b->cells);
    if (!r->sets[i])
        return;
    tsr__tree_start(t, b);
    for (size_t cell = 0; cell < b->cells && !r->over && !r->arena.failed; cell++) {
        struct cell x = {b, cell, t->offset, b->down[cell]};
        all->n = 0;
        for (uint32_t c = 0; c < t->k[b->node] && x.rest < NEVER; c++) {
            struct point own;
            if (!own_point(r, &x, c, &own) || !within(r, &own))
                continue;
            if (priced(r, &own) + (double)outlook(&x, c) >= r->below)
                continue;
            append(r, all, cap, combine(r, &x, c, &own));
        }
        r->f->effort->work += t->k[b->node];
        if (cell % 256 == 255 && tsr__effort_over(r->f->effort))
            r->over = true;
        if (all->n)
            r->sets[i][cell] = finish(r, all);
        tsr__tree_step(t, b);
    }
    if (tsr__effort_over(r->f->effort))
        r->over = true;
}

// ---- roots

// `down` of a root is 0; the others' minima are added here, so that the bound is of the whole.
static bool add_others(struct run *r)
{
    struct tree *t = r->f->tree;
    int64_t all = 0;
    uint32_t *root = ARENA_ARRAY(&r->arena, uint32_t, (size_t)t->m + 1);
    if (!root)
        return false;
    for (uint32_t i = 0; i < t->m; i++)
        if (t->buckets[i].parent == NONE)
            all = plus(all, t->buckets[i].message[0]);
    for (uint32_t i = t->m; i-- > 0;) {
        struct tree_bucket *b = &t->buckets[i];
        root[i] = b->parent == NONE ? i : root[b->parent];
        int64_t others = all >= NEVER ? NEVER : all - t->buckets[root[i]].message[0];
        for (size_t c = 0; c < b->cells; c++)
            b->down[c] = plus(b->down[c], others);
    }
    return true;
}

static bool join_roots(struct run *r)
{
    struct tree *t = r->f->tree;
    int64_t rest = 0;
    for (uint32_t i = 0; i < t->m; i++)
        if (t->buckets[i].parent == NONE)
            rest += t->buckets[i].message[0];
    r->joined = ARENA_ARRAY(&r->arena, struct set, (size_t)t->m + 1);
    r->work[0].n = 0;
    struct point *none = push(r, 0);
    if (!r->joined || !none)
        return false;
    *none = (struct point){0};
    int now = 0;
    for (uint32_t i = 0; i < t->m && !r->arena.failed && !r->over; i++) {
        if (t->buckets[i].parent != NONE)
            continue;
        rest -= t->buckets[i].message[0];
        cross(r, now, r->sets[i][0], rest, 1 - now);
        now = 1 - now;
        filter(r, now);
        r->joined[i] = keep(r, now);
    }
    r->joined[t->m] = keep(r, now);
    return !r->arena.failed;
}

// ---- going back

static bool matches(const struct run *r, const struct point *p, const struct point *q)
{
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (p->used[i] != q->used[i])
            return false;
    return p->cost == q->cost;
}

static struct point minus(const struct run *r, const struct point *p, const struct point *q)
{
    struct point out = {p->cost - q->cost, {0}};
    for (uint32_t i = 0; i < r->n_rows; i++)
        out.used[i] = p->used[i] - q->used[i];
    return out;
}

static bool exceeds(const struct run *r, const struct point *p, const struct point *goal)
{
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (p->used[i] > goal->used[i])
            return true;
    return p->cost > goal->cost;
}

// work[1] gets the sums of before and s that may still become goal; kept.
static struct set cross_below(struct run *r, struct set before, struct set s,
                              const struct point *goal)
{
    r->work[1].n = 0;
    for (size_t i = 0; i < before.n; i++)
        for (size_t j = 0; j < s.n; j++) {
            struct point sum = {before.at[i].cost + s.at[j].cost, {0}};
            for (uint32_t k = 0; k < r->n_rows; k++)
                sum.used[k] = before.at[i].used[k] + s.at[j].used[k];
            struct point *out = exceeds(r, &sum, goal) ? NULL : push(r, 1);
            if (out)
                *out = sum;
        }
    filter(r, 1);
    return keep(r, 1);
}

// The points of before and s whose sum is goal.
static bool find_pair(const struct run *r, struct set before, struct set s, struct point *goal,
                      struct point *from_s)
{
    for (size_t a = 0; a < s.n; a++)
        for (size_t b = 0; b < before.n; b++) {
            struct point left = minus(r, goal, &s.at[a]);
            if (matches(r, &left, &before.at[b])) {
                *from_s = s.at[a];
                *goal = before.at[b];
                return true;
            }
        }
    return false;
}

// Finds points of the children that sum up to goal; goals[child] gets them. Sums are kept child by child: a node may
// have so many children that their combinations could not be tried.
static bool split(struct run *r, const struct cell *x, uint32_t c, struct point goal,
                  struct point *goals)
{
    uint32_t n = x->b->n_factors;
    struct point zero = {0};
    struct set *sums = ARENA_ARRAY(&r->arena, struct set, (size_t)n + 1);
    if (!sums || exceeds(r, &zero, &goal))
        return false;
    sums[0] = (struct set){&zero, 1};
    for (uint32_t f = 0; f < n; f++) {
        const struct tree_factor *y = &x->b->factors[f];
        sums[f + 1] = sums[f];
        if (y->child != NONE)
            sums[f + 1] =
                cross_below(r, sums[f], r->sets[y->child][x->offset[f] + c * y->own], &goal);
        if (sums[f + 1].n == 0)
            return false;
    }
    for (uint32_t f = n; f-- > 0;) {
        const struct tree_factor *y = &x->b->factors[f];
        if (y->child != NONE && !find_pair(r, sums[f], r->sets[y->child][x->offset[f] + c * y->own],
                                           &goal, &goals[y->child]))
            return false;
    }
    return matches(r, &goal, &zero);
}

static bool back(struct run *r, struct point *goals, uint32_t *x)
{
    struct tree *t = r->f->tree;
    struct point goal = r->joined[t->m].at[0];
    for (uint32_t i = t->m; i-- > 0;) { // the roots' parts
        if (t->buckets[i].parent != NONE)
            continue;
        uint32_t last = NONE;
        for (uint32_t j = i; j-- > 0 && last == NONE;)
            if (t->buckets[j].parent == NONE)
                last = j;
        struct set s = r->sets[i][0], before = {&(struct point){0}, 1};
        if (last != NONE)
            before = r->joined[last];
        if (!find_pair(r, before, s, &goal, &goals[i]))
            return false;
    }
    for (uint32_t i = t->m; i-- > 0;) {
        const struct tree_bucket *b = &t->buckets[i];
        struct cell cell = {b, 0, t->offset, 0};
        tsr__tree_offsets(t, b, x);
        bool found = false;
        for (uint32_t c = 0; c < t->k[b->node] && !found; c++) {
            struct point own;
            if (!own_point(r, &cell, c, &own))
                continue;
            struct point left = minus(r, &goals[i], &own);
            found = split(r, &cell, c, left, goals);
            if (found)
                x[b->node] = c;
        }
        if (!found)
            return false;
    }
    return true;
}

// ---- all

static enum front_end run_once(struct run *r, int64_t threshold, uint32_t *x, int64_t *cost)
{
    struct tree *t = r->f->tree;
    struct set all = {0};
    size_t cap = 0;
    if (!run_prices(r) || !run_usages(r))
        return FRONT_FAILED;
    int64_t bound = tsr__tree_up(t, r->unary);
    // Sums of doubles err by far less than the margin.
    r->below = (double)threshold + paid(r);
    r->below += 1e-9 * (fabs((double)threshold) + paid(r)) + 1e-3;
    r->f->effort->work += 3 * t->cells;
    if ((double)bound >= r->below)
        return FRONT_NONE;
    r->sets = ARENA_ARRAY(&r->arena, struct set *, (size_t)t->m + 1);
    struct point *goals = ARENA_ARRAY(&r->arena, struct point, (size_t)t->m + 1);
    if (r->arena.failed || !tsr__tree_down(t, r->unary) || !add_others(r))
        return FRONT_FAILED;
    for (uint32_t i = 0; i < t->m && !r->over && !r->arena.failed; i++)
        fill_bucket(r, i, &all, &cap);
    if (!r->over && !r->arena.failed)
        join_roots(r);
    tsr__free(r->arena.session, all.at, cap * sizeof(struct point));
    if (r->arena.failed)
        return FRONT_FAILED;
    if (r->over)
        return FRONT_OVER;
    struct set last = r->joined[t->m];
    if (last.n == 0 || last.at[0].cost >= threshold)
        return FRONT_NONE;
    *cost = last.at[0].cost;
    return back(r, goals, x) ? FRONT_FOUND : FRONT_FAILED;
}

// The worst broken row joins the active ones; false: none is broken, or there are too many.
static bool activate(struct run *r, const int64_t *load, bool *broken)
{
    const struct wide *w = r->f->w;
    uint32_t worst = NONE;
    for (uint32_t i = 0; i < w->n_rows; i++)
        if (load[i] > w->bound[i] &&
            (worst == NONE || load[i] - w->bound[i] > load[worst] - w->bound[worst]))
            worst = i;
    *broken = worst != NONE;
    if (!*broken || r->n_rows == FRONT_ROWS)
        return false;
    r->rows[r->n_rows++] = worst;
    return true;
}

enum front_end tsr__front(struct front *f, int64_t threshold, uint32_t *x, int64_t *cost)
{
    const struct wide *w = f->w;
    struct run r = {.f = f, .n_rows = f->n_rows};
    memcpy(r.rows, f->rows, sizeof(r.rows));
    enum front_end end;
    bool broken = false, again;
    size_t bytes = ((size_t)w->n_rows + 1) * sizeof(int64_t);
    int64_t *load = tsr__alloc(w->heap->session, bytes);
    if (!load)
        return FRONT_FAILED;
    do {
        tsr__arena_init(&r.arena, w->heap->session);
        end = run_once(&r, threshold, x, cost);
        again = false;
        if (end == FRONT_FOUND) {
            tsr__wide_load(w, x, load);
            again = activate(&r, load, &broken);
            if (!again && broken)
                end = FRONT_OVER;
        }
        tsr__arena_free(&r.arena);
        for (int i = 0; i < 2; i++) {
            tsr__free(w->heap->session, r.work[i].at, r.cap[i] * sizeof(struct point));
            r.work[i] = (struct set){0};
            r.cap[i] = 0;
        }
        r.points = 0;
        r.over = false;
    } while (again);
    tsr__free(w->heap->session, load, bytes);
    return end;
}
