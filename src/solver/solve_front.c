// SPDX-License-Identifier: Apache-2.0
// solve_front.c - bucket elimination with fronts.
//
// As in solve_tree.c, but a cell of a message holds all points (cost, usage of the active rows) of
// which none is better than another in everything. A point leaves also where its cost under the prices,
// completed as cheaply as the down pass says, reaches the threshold: with good prices and a good
// threshold only few are left. Rows are active once an answer has broken them.
//
// Worked example, one row of bound 10, points (cost, usage). A node's choices give (0, 8), (3, 4)
// and (5, 5); the last leaves: (3, 4) costs and uses less. A child's cell holds (0, 4) and (2,
// 1). All sums: (0, 12), (3, 8), (2, 9), (5, 5). (0, 12) breaks the row. Of the other three none
// beats another. Now prices: 0.4 for a unit of the row, the best answer known costs 6, so that a
// priced total from 6 + 0.4 * 10 = 10 on is of no use. What is not in this cell costs 4 at least
// (down pass, prices included). The points stand for 2 + 3.6 + 4 = 9.6, 3 + 3.2 + 4 = 10.2 and 5
// + 2 + 4 = 11: only (2, 9) stays.
#include "solve_front.h"

#include <math.h>
#include <stdlib.h>

// One way to decide all nodes below a bucket: what it costs (without prices) and what it uses.
struct point {
    int64_t cost;
    int64_t used[FRONT_ROWS]; // by active row
};
struct set {
    struct point *at;
    size_t n;
};
// One elimination with a fixed set of active rows. `arena` holds all of it and is freed at its end;
// work[] and cap[] are two arrays that take turns: sums are made from one into the other.
struct run {
    struct front *front;
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

// A use counts with the prices of all its rows: rows 2..4 are prefix[5] - prefix[2].
static void unary_of(const struct run *run, uint32_t v, const double *prefix, int64_t *out)
{
    const struct wide *wide = run->front->wide;
    for (uint32_t choice = 0; choice < wide->k[v]; choice++)
        out[choice] = wide->cost[v][choice];
    for (uint32_t i = wide->first_use[v]; i < wide->first_use[v + 1]; i++) {
        const struct wide_use *use = &wide->uses[i];
        double p = prefix[use->end] - prefix[use->begin];
        if (p <= 0)
            continue;
        for (uint32_t choice = 0; choice < wide->k[v]; choice++) // rounded down: a valid bound
            out[choice] = plus(out[choice], (int64_t)(p * (double)use->usage[choice]));
    }
}

// What the prices pay for the bounds.
static double paid(const struct run *run)
{
    double sum = 0;
    for (uint32_t i = 0; i < run->n_rows; i++)
        sum += run->price[i] * (double)run->front->wide->bound[run->rows[i]];
    return sum;
}

// Rounded the same way for all points: what is no better in anything is never priced lower.
static double priced(const struct run *run, const struct point *point)
{
    double sum = (double)point->cost;
    for (uint32_t i = 0; i < run->n_rows; i++)
        sum += run->price[i] * (double)point->used[i];
    return sum;
}

// Prices of the active rows only: a row that is looked at later has the price 0 until then.
static bool run_prices(struct run *run)
{
    const struct wide *wide = run->front->wide;
    double *prefix = ARENA_ARRAY(&run->arena, double, (size_t)wide->n_rows + 1);
    run->unary = ARENA_ARRAY(&run->arena, int64_t *, (size_t)wide->n + 1);
    if (run->arena.failed)
        return false;
    for (uint32_t i = 0; i < run->n_rows; i++)
        run->price[i] = run->front->lambda[run->rows[i]];
    for (uint32_t i = 0; i < run->n_rows; i++)
        prefix[run->rows[i] + 1] += run->price[i];
    for (uint32_t i = 0; i < wide->n_rows; i++)
        prefix[i + 1] += prefix[i];
    for (uint32_t v = 0; v < wide->n; v++) {
        run->unary[v] = ARENA_ARRAY(&run->arena, int64_t, wide->k[v]);
        if (!run->unary[v])
            return false;
        unary_of(run, v, prefix, run->unary[v]);
    }
    return true;
}

// used[v][choice][a]: what the choice uses of active row a, over all uses of v that cover it.
static void run_used(struct run *run, uint32_t v)
{
    const struct wide *wide = run->front->wide;
    for (uint32_t i = wide->first_use[v]; i < wide->first_use[v + 1]; i++) {
        const struct wide_use *use = &wide->uses[i];
        for (uint32_t a = 0; a < run->n_rows; a++) {
            if (run->rows[a] < use->begin || run->rows[a] >= use->end)
                continue;
            for (uint32_t choice = 0; choice < wide->k[v]; choice++)
                run->used[v][choice][a] += use->usage[choice];
        }
    }
}

// Nodes without uses keep NULL, which own_point reads as 0 everywhere.
static bool run_usages(struct run *run)
{
    const struct wide *wide = run->front->wide;
    run->used = ARENA_ARRAY(&run->arena, int64_t **, (size_t)wide->n + 1);
    for (uint32_t v = 0; v < wide->n; v++) {
        if (run->arena.failed)
            break;
        if (wide->first_use[v] == wide->first_use[v + 1])
            continue;
        run->used[v] = ARENA_ARRAY(&run->arena, int64_t *, wide->k[v]);
        int64_t *cells = ARENA_ARRAY(&run->arena, int64_t, (size_t)wide->k[v] * FRONT_ROWS);
        for (uint32_t choice = 0; !run->arena.failed && choice < wide->k[v]; choice++)
            run->used[v][choice] = cells + (size_t)choice * FRONT_ROWS;
        if (!run->arena.failed)
            run_used(run, v);
    }
    return !run->arena.failed;
}

// ---- sets

// A new point at the end of work[which]. NULL: out of memory. Pointers into the set may move.
static struct point *push(struct run *run, int which)
{
    struct set *set = &run->work[which];
    if (set->n == run->cap[which]) {
        size_t cap = run->cap[which] ? run->cap[which] * 2 : 1024;
        tsr_session *session = run->arena.session;
        struct point *grown = tsr__realloc(session, set->at, run->cap[which] * sizeof(struct point),
                                           cap * sizeof(struct point));
        if (!grown) {
            run->arena.failed = true;
            return NULL;
        }
        set->at = grown;
        run->cap[which] = cap;
    }
    return &set->at[set->n++];
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

// Whether p beats q, given that p stands before q in the sorted set.
static bool better(const struct run *run, const struct point *p, const struct point *q)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (p->used[i] > q->used[i])
            return false;
    return true; // its cost is no larger: they are sorted
}

// Keeps in work[which] only what nothing else beats. Sorted by cost, a point can only be beaten by
// one before it: (0, 8), (3, 4), (5, 5) leaves (0, 8) and (3, 4). When the effort is spent the rest
// of the set is dropped, which is no loss: `over` throws the whole run away.
static void filter(struct run *run, int which)
{
    struct set *set = &run->work[which];
    if (set->n == 0)
        return;
    qsort(set->at, set->n, sizeof(struct point), by_cost);
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++) {
        bool beaten = false;
        for (size_t j = n;
             j-- > 0 && !beaten;) { // the last one kept has the least usage, for one row
            beaten = better(run, &set->at[j], &set->at[i]);
            if (run->n_rows <= 1)
                break;
        }
        run->front->effort->work += run->n_rows <= 1 ? 1 : n / 4 + 1;
        if (!beaten)
            set->at[n++] = set->at[i];
        if (i % 1024 == 1023 && tsr__effort_over(run->front->effort)) {
            run->over = true;
            break;
        }
    }
    set->n = n;
}

// Copies work[which] into the arena, where it stays until the run ends, and counts its points.
static struct set keep(struct run *run, int which)
{
    struct set out = {ARENA_ARRAY(&run->arena, struct point, run->work[which].n + 1),
                      run->work[which].n};
    if (!out.at)
        return (struct set){0};
    if (out.n)
        memcpy(out.at, run->work[which].at, out.n * sizeof(struct point));
    run->points += out.n;
    if (run->points > run->front->max_points)
        run->over = true;
    return out;
}

// Usages only grow on the way to the roots, so a point above a bound can be dropped at once.
static bool within(const struct run *run, const struct point *point)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (point->used[i] > run->front->wide->bound[run->rows[i]])
            return false;
    return true;
}

// work[to] gets all sums of work[from] and set that keep the bounds and whose priced completion
// with `rest` stays below. `rest`: the least that all else costs, prices included, as the down pass
// says.
static void cross(struct run *run, int from, struct set set, int64_t rest, int to)
{
    const struct set *left = &run->work[from];
    run->work[to].n = 0;
    for (size_t i = 0; i < left->n; i++) {
        if (run->over)
            break;
        if (run->work[to].n > run->front->max_points ||
            (i % 64 == 63 && tsr__effort_over(run->front->effort)))
            run->over = true;
        for (size_t j = 0; j < set.n; j++) {
            const struct point *p = &left->at[i], *q = &set.at[j];
            struct point sum = {p->cost + q->cost, {0}};
            for (uint32_t k = 0; k < run->n_rows; k++)
                sum.used[k] = p->used[k] + q->used[k];
            if (!within(run, &sum) || priced(run, &sum) + (double)rest >= run->below)
                continue;
            struct point *out = push(run, to);
            if (!out)
                return;
            *out = sum;
        }
        run->front->effort->work += set.n;
    }
}

// ---- one bucket

// One combination of the separator's choices, while its points are made.
struct cell {
    const struct tree_bucket *bucket;
    size_t at;
    const size_t *offset; // of the factors
    int64_t rest;         // all that is not below this bucket
};

// Cost of the choice and the tables of edges; false: forbidden.
static bool own_point(const struct run *run, const struct cell *cell, uint32_t choice,
                      struct point *out)
{
    uint32_t v = cell->bucket->node;
    *out = (struct point){run->front->wide->cost[v][choice], {0}};
    for (uint32_t f = 0; f < cell->bucket->n_factors; f++) {
        const struct tree_factor *factor = &cell->bucket->factors[f];
        if (factor->child != NONE)
            continue;
        int64_t cost = factor->cell[cell->offset[f] + choice * factor->own];
        if (cost >= NEVER)
            return false;
        out->cost += cost;
    }
    if (run->used[v])
        for (uint32_t a = 0; a < run->n_rows; a++)
            out->used[a] = run->used[v][choice][a];
    return out->cost < NEVER;
}

// What the children give at best with that choice, and the rest.
static int64_t outlook(const struct cell *cell, uint32_t choice)
{
    int64_t sum = cell->rest;
    for (uint32_t f = 0; f < cell->bucket->n_factors; f++) {
        const struct tree_factor *factor = &cell->bucket->factors[f];
        if (factor->child != NONE)
            sum = plus(sum, factor->cell[cell->offset[f] + choice * factor->own]);
    }
    return sum;
}

// All points of the choice: `own` crossed with the points of one child after another. The result is
// in work[0] or work[1]; returns which. `rest` begins with all children at their best and loses
// each child's best as its real points come in.
static int combine(struct run *run, const struct cell *cell, uint32_t choice,
                   const struct point *own)
{
    int now = 0;
    int64_t rest = outlook(cell, choice);
    run->work[0].n = 0;
    struct point *first = push(run, 0);
    if (!first)
        return 0;
    *first = *own;
    for (uint32_t f = 0; f < cell->bucket->n_factors; f++) {
        if (run->arena.failed)
            break;
        const struct tree_factor *factor = &cell->bucket->factors[f];
        if (factor->child == NONE || run->over)
            continue;
        size_t at = cell->offset[f] + choice * factor->own;
        rest -= factor->cell[at];
        cross(run, now, run->sets[factor->child][at], rest, 1 - now);
        now = 1 - now;
        if (run->work[now].n > 64)
            filter(run, now);
    }
    return now;
}

// Adds work[which] to `all`, the points of a cell over all choices so far.
static void append(struct run *run, struct set *all, size_t *cap, int which)
{
    const struct set *set = &run->work[which];
    if (set->n == 0)
        return;
    if (all->n + set->n > *cap) {
        size_t cells = (all->n + set->n) * 2;
        struct point *grown = tsr__realloc(run->arena.session, all->at, *cap * sizeof(struct point),
                                           cells * sizeof(struct point));
        if (!grown) {
            run->arena.failed = true;
            return;
        }
        all->at = grown;
        *cap = cells;
    }
    memcpy(all->at + all->n, set->at, set->n * sizeof(struct point));
    all->n += set->n;
}

// Replaces work[0] by the given set, so that it can be filtered and kept.
static struct set finish(struct run *run, struct set *all)
{
    run->work[0].n = 0;
    for (size_t i = 0; i < all->n; i++) {
        struct point *point = push(run, 0);
        if (!point)
            return (struct set){0};
        *point = all->at[i];
    }
    filter(run, 0);
    return keep(run, 0);
}

// A cell is one combination of the separator's choices. A choice of the bucket's node is combined
// with its children only where its own cost, their best and the rest together stay below the
// threshold.
static void fill_bucket(struct run *run, uint32_t i, struct set *all, size_t *cap)
{
    struct tree *tree = run->front->tree;
    const struct tree_bucket *bucket = &tree->buckets[i];
    run->sets[i] = ARENA_ARRAY(&run->arena, struct set, bucket->cells);
    if (!run->sets[i])
        return;
    tsr__tree_start(tree, bucket);
    for (size_t cell = 0; cell < bucket->cells; cell++) {
        if (run->over || run->arena.failed)
            break;
        struct cell x = {bucket, cell, tree->offset, bucket->down[cell]};
        uint32_t n_choices = x.rest < NEVER ? tree->k[bucket->node] : 0;
        all->n = 0;
        for (uint32_t choice = 0; choice < n_choices; choice++) {
            struct point own;
            if (!own_point(run, &x, choice, &own) || !within(run, &own))
                continue;
            if (priced(run, &own) + (double)outlook(&x, choice) >= run->below)
                continue;
            append(run, all, cap, combine(run, &x, choice, &own));
        }
        run->front->effort->work += tree->k[bucket->node];
        if (cell % 256 == 255 && tsr__effort_over(run->front->effort))
            run->over = true;
        if (all->n)
            run->sets[i][cell] = finish(run, all);
        tsr__tree_step(tree, bucket);
    }
    if (tsr__effort_over(run->front->effort))
        run->over = true;
}

// ---- roots

// `down` of a root is 0; the others' minima are added here, so that the bound is of the whole.
static bool add_others(struct run *run)
{
    struct tree *tree = run->front->tree;
    int64_t all = 0;
    uint32_t *root = ARENA_ARRAY(&run->arena, uint32_t, (size_t)tree->m + 1);
    if (!root)
        return false;
    for (uint32_t i = 0; i < tree->m; i++)
        if (tree->buckets[i].parent == NONE)
            all = plus(all, tree->buckets[i].message[0]);
    for (uint32_t i = tree->m; i-- > 0;) {
        struct tree_bucket *bucket = &tree->buckets[i];
        root[i] = bucket->parent == NONE ? i : root[bucket->parent];
        // Parents have larger numbers, so root[parent] is known when a child is reached.
        int64_t others = all >= NEVER ? NEVER : all - tree->buckets[root[i]].message[0];
        for (size_t c = 0; c < bucket->cells; c++)
            bucket->down[c] = plus(bucket->down[c], others);
    }
    return true;
}

// Roots share no edges, but they share rows: their points are added up as if they were children
// of one more node. joined[i] is kept for going back.
static bool join_roots(struct run *run)
{
    struct tree *tree = run->front->tree;
    int64_t rest = 0;
    for (uint32_t i = 0; i < tree->m; i++)
        if (tree->buckets[i].parent == NONE)
            rest += tree->buckets[i].message[0];
    run->joined = ARENA_ARRAY(&run->arena, struct set, (size_t)tree->m + 1);
    run->work[0].n = 0;
    struct point *none = push(run, 0);
    if (!run->joined || !none)
        return false;
    *none = (struct point){0};
    int now = 0;
    for (uint32_t i = 0; i < tree->m; i++) {
        if (run->arena.failed || run->over)
            break;
        if (tree->buckets[i].parent != NONE)
            continue;
        rest -= tree->buckets[i].message[0];
        cross(run, now, run->sets[i][0], rest, 1 - now);
        now = 1 - now;
        filter(run, now);
        run->joined[i] = keep(run, now);
    }
    run->joined[tree->m] = keep(run, now);
    return !run->arena.failed;
}

// ---- going back

static bool matches(const struct run *run, const struct point *p, const struct point *q)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (p->used[i] != q->used[i])
            return false;
    return p->cost == q->cost;
}

static struct point minus(const struct run *run, const struct point *p, const struct point *q)
{
    struct point out = {p->cost - q->cost, {0}};
    for (uint32_t i = 0; i < run->n_rows; i++)
        out.used[i] = p->used[i] - q->used[i];
    return out;
}

static bool exceeds(const struct run *run, const struct point *point, const struct point *goal)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (point->used[i] > goal->used[i])
            return true;
    return point->cost > goal->cost;
}

// work[1] gets the sums of before and set that may still become goal; kept.
// The goal bounds what is kept: costs are never negative here, so that a sum above it cannot come
// down.
static struct set cross_below(struct run *run, struct set before, struct set set,
                              const struct point *goal)
{
    run->work[1].n = 0;
    for (size_t i = 0; i < before.n; i++)
        for (size_t j = 0; j < set.n; j++) {
            struct point sum = {before.at[i].cost + set.at[j].cost, {0}};
            for (uint32_t k = 0; k < run->n_rows; k++)
                sum.used[k] = before.at[i].used[k] + set.at[j].used[k];
            struct point *out = exceeds(run, &sum, goal) ? NULL : push(run, 1);
            if (out)
                *out = sum;
        }
    filter(run, 1);
    return keep(run, 1);
}

// The points of before and set whose sum is goal.
static bool find_pair(const struct run *run, struct set before, struct set set, struct point *goal,
                      struct point *from_s)
{
    for (size_t a = 0; a < set.n; a++)
        for (size_t b = 0; b < before.n; b++) {
            struct point left = minus(run, goal, &set.at[a]);
            if (matches(run, &left, &before.at[b])) {
                *from_s = set.at[a];
                *goal = before.at[b];
                return true;
            }
        }
    return false;
}

// Finds points of the children that sum up to goal; goals[child] gets them. Sums are kept child by child: a node may
// have so many children that their combinations could not be tried.
static bool split(struct run *run, const struct cell *cell, uint32_t choice, struct point goal,
                  struct point *goals)
{
    uint32_t n = cell->bucket->n_factors;
    struct point zero = {0};
    struct set *sums = ARENA_ARRAY(&run->arena, struct set, (size_t)n + 1);
    if (!sums || exceeds(run, &zero, &goal))
        return false;
    sums[0] = (struct set){&zero, 1};
    for (uint32_t f = 0; f < n; f++) {
        const struct tree_factor *factor = &cell->bucket->factors[f];
        sums[f + 1] = sums[f];
        if (factor->child != NONE)
            sums[f + 1] = cross_below(
                run, sums[f], run->sets[factor->child][cell->offset[f] + choice * factor->own],
                &goal);
        if (sums[f + 1].n == 0)
            return false;
    }
    for (uint32_t f = n; f-- > 0;) {
        const struct tree_factor *factor = &cell->bucket->factors[f];
        if (factor->child != NONE &&
            !find_pair(run, sums[f],
                       run->sets[factor->child][cell->offset[f] + choice * factor->own], &goal,
                       &goals[factor->child]))
            return false;
    }
    return matches(run, &goal, &zero);
}

// Goes from the roots to the leaves with a goal (cost, usage) for every bucket: the choice whose
// own point, and points of the children that are still there, add up to the goal exactly. There
// is one, because the goal was made as such a sum.
static bool back(struct run *run, struct point *goals, uint32_t *x)
{
    struct tree *tree = run->front->tree;
    struct point goal = run->joined[tree->m].at[0];
    for (uint32_t i = tree->m; i-- > 0;) { // the roots' parts
        if (tree->buckets[i].parent != NONE)
            continue;
        uint32_t last = NONE;
        for (uint32_t j = i; j-- > 0 && last == NONE;)
            if (tree->buckets[j].parent == NONE)
                last = j;
        struct set set = run->sets[i][0], before = {&(struct point){0}, 1};
        if (last != NONE)
            before = run->joined[last];
        if (!find_pair(run, before, set, &goal, &goals[i]))
            return false;
    }
    for (uint32_t i = tree->m; i-- > 0;) {
        const struct tree_bucket *bucket = &tree->buckets[i];
        struct cell cell = {bucket, 0, tree->offset, 0};
        tsr__tree_offsets(tree, bucket, x);
        bool found = false;
        for (uint32_t choice = 0; choice < tree->k[bucket->node]; choice++) {
            if (found)
                break;
            struct point own;
            if (!own_point(run, &cell, choice, &own))
                continue;
            struct point left = minus(run, &goals[i], &own);
            found = split(run, &cell, choice, left, goals);
            if (found)
                x[bucket->node] = choice;
        }
        if (!found)
            return false;
    }
    return true;
}

// ---- all

// Prices and usages, then the plain passes up and down for the outlook of every cell, then the
// points from the leaves to the roots, and back along one of them. FRONT_NONE holds also where the
// plain bound alone reaches the threshold: no point needs to be made.
static enum front_end run_once(struct run *run, int64_t threshold, uint32_t *x, int64_t *cost)
{
    struct tree *tree = run->front->tree;
    struct set all = {0};
    size_t cap = 0;
    if (!run_prices(run) || !run_usages(run))
        return FRONT_FAILED;
    int64_t bound = tsr__tree_up(tree, run->unary);
    // Sums of doubles err by far less than the margin.
    run->below = (double)threshold + paid(run);
    run->below += 1e-9 * (fabs((double)threshold) + paid(run)) + 1e-3;
    run->front->effort->work += 3 * tree->cells;
    if ((double)bound >= run->below)
        return FRONT_NONE;
    run->sets = ARENA_ARRAY(&run->arena, struct set *, (size_t)tree->m + 1);
    struct point *goals = ARENA_ARRAY(&run->arena, struct point, (size_t)tree->m + 1);
    if (run->arena.failed || !tsr__tree_down(tree, run->unary) || !add_others(run))
        return FRONT_FAILED;
    for (uint32_t i = 0; i < tree->m; i++) {
        if (run->over || run->arena.failed)
            break;
        fill_bucket(run, i, &all, &cap);
    }
    if (!run->over && !run->arena.failed)
        join_roots(run);
    tsr__free(run->arena.session, all.at, cap * sizeof(struct point));
    if (run->arena.failed)
        return FRONT_FAILED;
    if (run->over)
        return FRONT_OVER;
    // filter has sorted the points by cost: the first is the cheapest that keeps the active rows.
    struct set last = run->joined[tree->m];
    if (last.n == 0 || last.at[0].cost >= threshold)
        return FRONT_NONE;
    *cost = last.at[0].cost;
    return back(run, goals, x) ? FRONT_FOUND : FRONT_FAILED;
}

// The worst broken row joins the active ones; false: none is broken, or there are too many.
static bool activate(struct run *run, const int64_t *load, bool *broken)
{
    const struct wide *wide = run->front->wide;
    uint32_t worst = NONE;
    for (uint32_t i = 0; i < wide->n_rows; i++)
        if (load[i] > wide->bound[i] &&
            (worst == NONE || load[i] - wide->bound[i] > load[worst] - wide->bound[worst]))
            worst = i;
    *broken = worst != NONE;
    if (!*broken || run->n_rows == FRONT_ROWS)
        return false;
    run->rows[run->n_rows++] = worst;
    return true;
}

// Runs with the active rows only, which is cheap; when the answer breaks another row, that row
// becomes active and all starts again. An answer of few rows that breaks none is the optimum of
// all rows.
enum front_end tsr__front(struct front *front, int64_t threshold, uint32_t *x, int64_t *cost)
{
    const struct wide *wide = front->wide;
    struct run run = {.front = front, .n_rows = front->n_rows};
    memcpy(run.rows, front->rows, sizeof(run.rows));
    enum front_end end;
    bool broken = false, again;
    size_t bytes = ((size_t)wide->n_rows + 1) * sizeof(int64_t);
    int64_t *load = tsr__alloc(wide->heap->session, bytes);
    if (!load)
        return FRONT_FAILED;
    do {
        tsr__arena_init(&run.arena, wide->heap->session);
        end = run_once(&run, threshold, x, cost);
        again = false;
        if (end == FRONT_FOUND) {
            tsr__wide_load(wide, x, load);
            again = activate(&run, load, &broken);
            // An answer that breaks a row for which there is no place is no answer.
            if (!again && broken)
                end = FRONT_OVER;
        }
        tsr__arena_free(&run.arena);
        for (int i = 0; i < 2; i++) {
            tsr__free(wide->heap->session, run.work[i].at, run.cap[i] * sizeof(struct point));
            run.work[i] = (struct set){0};
            run.cap[i] = 0;
        }
        run.points = 0;
        run.over = false;
    } while (again);
    tsr__free(wide->heap->session, load, bytes);
    return end;
}
