// SPDX-License-Identifier: Apache-2.0
// solve_front.c - bucket elimination with Pareto fronts, for programs with constraint rows.
//
// It works like solve_tree.c, but a cell of a message holds all points (cost, usage of the active
// rows) that no other point dominates. A point is also dropped if no solution below the threshold
// can contain it: its Lagrangian cost plus the least cost of everything else (pass down) reaches
// the threshold. With good multipliers and a good threshold few points are left. A row becomes
// active when a solution violates it.
//
//     Example: one row of bound 10, points (cost, usage).
//     A node's choices give (0, 8), (3, 4) and (5, 5). The last is dropped: (3, 4) is better.
//     A cell of a child has (0, 4) and (2, 1). All sums: (0, 12), (3, 8), (2, 9), (5, 5).
//     (0, 12) violates the row. None of the other three dominates another.
//     The multiplier of the row is 0.4 per unit. The best known solution costs 6, so a point with a
//         Lagrangian total of 6 + 0.4 * 10 = 10 or more is useless. Everything outside this cell
//         costs at least 4 (pass down). The totals are 2 + 3.6 + 4 = 9.6, 3 + 3.2 + 4 = 10.2 and
//         5 + 2 + 4 = 11: only (2, 9) stays.
#include "solve.h"

#include <math.h>
#include <stdlib.h>

// One assignment of all nodes below a bucket: its cost (without multipliers) and its usage.
struct point {
    int64_t cost;
    int64_t used[FRONT_ROWS]; // for each active row
};
struct set {
    struct point *at;
    size_t n;
};
// The work sets of a run. The first two alternate: sums of points in one are written to the other.
// The third collects the points of a cell over all choices.
enum { WORK_CELL = 2, WORK_SETS };
// One elimination with a fixed set of active rows. `arena` is freed at its end.
struct run {
    struct front *front;
    struct arena arena;
    uint32_t rows[FRONT_ROWS];
    uint32_t n_rows;
    int64_t **unary;    // costs plus multipliers times usage
    int64_t ***used;    // by node and choice: usage of the active rows; NULL for nodes without uses
    struct set **sets;  // by bucket and cell
    struct set *joined; // joined[i]: sums of points of the first i roots
    double multiplier[FRONT_ROWS];
    double below;               // points with this Lagrangian total or more are dropped
    struct set work[WORK_SETS]; // buffers of `cap` points, which grow
    size_t cap[WORK_SETS];
    uint64_t points; // number of points in `sets` and `joined`
    bool over;       // effort or max_points was exceeded
};

// ---- multipliers and usages

// Returns the sum of multiplier times bound over the active rows.
static double multiplier_total(const struct run *run)
{
    double sum = 0;
    for (uint32_t i = 0; i < run->n_rows; i++)
        sum += run->multiplier[i] * (double)run->front->dense->bound[run->rows[i]];
    return sum;
}

// Returns the Lagrangian cost of a point: its cost plus the multipliers times its usage.
static double lagrangian_cost(const struct run *run, const struct point *point)
{
    double sum = (double)point->cost;
    for (uint32_t i = 0; i < run->n_rows; i++)
        sum += run->multiplier[i] * (double)point->used[i];
    return sum;
}

// Copies the multipliers of the active rows and computes `unary` with them; other rows count with a
// multiplier of 0. Returns false if out of memory.
static bool run_multipliers(struct run *run)
{
    const struct dense *dense = run->front->dense;
    double *prefix = ARENA_ARRAY(&run->arena, double, (size_t)dense->n_rows + 1);
    run->unary = ARENA_ARRAY(&run->arena, int64_t *, (size_t)dense->n + 1);
    if (run->arena.failed)
        return false;
    for (uint32_t i = 0; i < run->n_rows; i++)
        run->multiplier[i] = run->front->lambda[run->rows[i]];
    for (uint32_t i = 0; i < run->n_rows; i++)
        prefix[run->rows[i] + 1] += run->multiplier[i];
    for (uint32_t i = 0; i < dense->n_rows; i++)
        prefix[i + 1] += prefix[i];
    for (uint32_t v = 0; v < dense->n; v++) {
        run->unary[v] = ARENA_ARRAY(&run->arena, int64_t, dense->k[v]);
        if (!run->unary[v])
            return false;
    }
    tsr__dense_unary(dense, prefix, run->unary);
    return true;
}

// Computes the usage of active rows. used[v][choice][a] becomes the usage of active row a by the
// choice, summed over all uses of v.
static void run_used(struct run *run, uint32_t v)
{
    const struct dense *dense = run->front->dense;
    for (uint32_t i = dense->first_use[v]; i < dense->first_use[v + 1]; i++) {
        const struct dense_use *use = &dense->uses[i];
        for (uint32_t a = 0; a < run->n_rows; a++) {
            if (run->rows[a] < use->begin || run->rows[a] >= use->end)
                continue;
            for (uint32_t choice = 0; choice < dense->k[v]; choice++)
                run->used[v][choice][a] += use->usage[choice];
        }
    }
}

// Computes the usages of all nodes. Nodes without uses keep NULL, which own_point reads as 0.
// Returns false if out of memory.
static bool run_usages(struct run *run)
{
    const struct dense *dense = run->front->dense;
    run->used = ARENA_ARRAY(&run->arena, int64_t **, (size_t)dense->n + 1);
    for (uint32_t v = 0; v < dense->n; v++) {
        if (run->arena.failed)
            break;
        if (dense->first_use[v] == dense->first_use[v + 1])
            continue;
        run->used[v] = ARENA_ARRAY(&run->arena, int64_t *, dense->k[v]);
        int64_t *cells = ARENA_ARRAY(&run->arena, int64_t, (size_t)dense->k[v] * FRONT_ROWS);
        for (uint32_t choice = 0; !run->arena.failed && choice < dense->k[v]; choice++)
            run->used[v][choice] = cells + (size_t)choice * FRONT_ROWS;
        if (!run->arena.failed)
            run_used(run, v);
    }
    return !run->arena.failed;
}

// ---- sets of points

// Appends a point to work[which]. Pointers into the set become invalid. Returns NULL if out of
// memory.
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

// True if p dominates q; p precedes q in the sorted set.
static bool dominates(const struct run *run, const struct point *p, const struct point *q)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (p->used[i] > q->used[i])
            return false;
    return true; // sorted by cost
}

// Keeps the points of work[which] that are not dominated. After sorting by cost, only earlier
// points can dominate. Example: of (0, 8), (3, 4) and (5, 5) the first two stay. If the effort is
// used up, drops all remaining points and sets run->over.
static void filter(struct run *run, int which)
{
    struct set *set = &run->work[which];
    if (set->n == 0)
        return;
    qsort(set->at, set->n, sizeof(struct point), by_cost);
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++) {
        bool dominated = false;
        for (size_t j = n; j-- > 0 && !dominated;) { // backwards: later points use less
            dominated = dominates(run, &set->at[j], &set->at[i]);
            if (run->n_rows <= 1)
                break;
        }
        run->front->effort->work += run->n_rows <= 1 ? 1 : n / 4 + 1;
        if (!dominated)
            set->at[n++] = set->at[i];
        if (i % 1024 == 1023 && tsr__effort_over(run->front->effort)) {
            run->over = true;
            break;
        }
    }
    set->n = n;
}

// Copies work[which] to the arena. Sets run->over if more than front->max_points points are stored
// now.
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

// True if a point keeps all bounds. Usage only grows towards the roots, so a point above a bound is
// dropped at once.
static bool keeps_bounds(const struct run *run, const struct point *point)
{
    for (uint32_t i = 0; i < run->n_rows; i++)
        if (point->used[i] > run->front->dense->bound[run->rows[i]])
            return false;
    return true;
}

// Fills work[to] with all sums of a point of work[from] and a point of `set` that satisfy the
// bounds. Keeps only sums that stay below the threshold together with `rest`, the least Lagrangian
// cost of everything else, which the pass down has computed.
static void add_points(struct run *run, int from, struct set set, int64_t rest, int to)
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
            if (!keeps_bounds(run, &sum) || lagrangian_cost(run, &sum) + (double)rest >= run->below)
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

// One combination of choices of the separator's nodes.
struct cell {
    const struct tree_bucket *bucket;
    size_t at;
    const size_t *offset; // offsets of the factors
    int64_t rest;         // least cost of everything outside the subtree of this bucket
};

// Computes the point of the choice without the children: its cost plus the entries of the edge
// tables, and its usage. Returns false if it is forbidden.
static bool own_point(const struct run *run, const struct cell *cell, uint32_t choice,
                      struct point *out)
{
    uint32_t v = cell->bucket->node;
    *out = (struct point){run->front->dense->cost[v][choice], {0}};
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

// Returns the least Lagrangian cost of the children for that choice plus cell->rest.
static int64_t least_total(const struct cell *cell, uint32_t choice)
{
    int64_t sum = cell->rest;
    for (uint32_t f = 0; f < cell->bucket->n_factors; f++) {
        const struct tree_factor *factor = &cell->bucket->factors[f];
        if (factor->child != NONE)
            sum = plus(sum, factor->cell[cell->offset[f] + choice * factor->own]);
    }
    return sum;
}

// Computes all points of the choice: `own` plus the points of one child after another. Returns the
// index of the work array with the result. `rest` is the least cost of everything that is not added
// yet. When the points of a child are added, its least cost is subtracted.
static int combine(struct run *run, const struct cell *cell, uint32_t choice,
                   const struct point *own)
{
    int now = 0;
    int64_t rest = least_total(cell, choice);
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
        add_points(run, now, run->sets[factor->child][at], rest, 1 - now);
        now = 1 - now;
        if (run->work[now].n > 64)
            filter(run, now);
    }
    return now;
}

// Adds work[which] to the points of the cell.
static void append(struct run *run, int which)
{
    for (size_t i = 0; i < run->work[which].n; i++) {
        struct point *point = push(run, WORK_CELL);
        if (!point)
            return;
        *point = run->work[which].at[i];
    }
}

// Computes the points of a bucket. Skips a choice if its own cost, the least cost of the children
// and the rest together reach the threshold.
static void fill_bucket(struct run *run, uint32_t i)
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
        run->work[WORK_CELL].n = 0;
        for (uint32_t choice = 0; choice < n_choices; choice++) {
            struct point own;
            if (!own_point(run, &x, choice, &own) || !keeps_bounds(run, &own))
                continue;
            if (lagrangian_cost(run, &own) + (double)least_total(&x, choice) >= run->below)
                continue;
            append(run, combine(run, &x, choice, &own));
        }
        run->front->effort->work += tree->k[bucket->node];
        if (cell % 256 == 255 && tsr__effort_over(run->front->effort))
            run->over = true;
        if (run->work[WORK_CELL].n) {
            filter(run, WORK_CELL);
            run->sets[i][cell] = keep(run, WORK_CELL);
        }
        tsr__tree_step(tree, bucket);
    }
    if (tsr__effort_over(run->front->effort))
        run->over = true;
}

// ---- roots

// Adds to the down messages of each tree the minima of all other roots. Returns false if out of
// memory.
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
        // Parents have larger numbers than children, so root[parent] is known.
        int64_t others = all >= NEVER ? NEVER : all - tree->buckets[root[i]].message[0];
        for (size_t c = 0; c < bucket->cells; c++)
            bucket->down[c] = plus(bucket->down[c], others);
    }
    return true;
}

// Joins the points of all roots. Roots share no edges but share rows, so their points are summed
// like those of siblings. joined[i] is kept for the pass back. Returns false if out of memory.
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
        add_points(run, now, run->sets[i][0], rest, 1 - now);
        now = 1 - now;
        filter(run, now);
        run->joined[i] = keep(run, now);
    }
    run->joined[tree->m] = keep(run, now);
    return !run->arena.failed;
}

// ---- pass back

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

// Returns the sums of `before` and `set` that may still become the goal. Costs and usages are never
// negative, so sums above the goal are dropped.
static struct set add_below_goal(struct run *run, struct set before, struct set set,
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

// Finds a point of `before` and a point of `set` whose sum is the goal. Sets *goal to the first and
// *from_s to the second. Returns false if there is no such pair.
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

// Finds points of the children that sum to the goal and stores them in goals[child]. False: there
// are none, or out of memory. It adds child by child, because a node may have too many children to
// try all combinations.
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
            sums[f + 1] = add_below_goal(
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

// Goes from the roots to the leaves with a goal (cost, usage) for every bucket. Takes the choice
// whose own point plus points of the children is the goal. Such a choice exists, because the goal
// was computed as such a sum. Returns false if memory or effort runs out.
static bool pass_back(struct run *run, struct point *goals, uint32_t *x)
{
    struct tree *tree = run->front->tree;
    struct point goal = run->joined[tree->m].at[0];
    for (uint32_t i = tree->m; i-- > 0;) { // the roots' goals
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

// ---- the elimination

// Computes multipliers and the usage of rows. Then computes lower bounds by a pass up and a pass
// down the tree, and Pareto points from the leaves to the roots. Finally reads the solution back.
// Returns FRONT_NONE early if the bound without points reaches the threshold.
static enum front_end run_once(struct run *run, int64_t threshold, uint32_t *x, int64_t *cost)
{
    struct tree *tree = run->front->tree;
    if (!run_multipliers(run) || !run_usages(run))
        return FRONT_FAILED;
    int64_t bound = tsr__tree_up(tree, run->unary);
    // the margin is larger than the rounding error of the sums
    run->below = (double)threshold + multiplier_total(run);
    run->below += 1e-9 * (fabs((double)threshold) + multiplier_total(run)) + 1e-3;
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
        fill_bucket(run, i);
    }
    if (!run->over && !run->arena.failed)
        join_roots(run);
    if (run->arena.failed)
        return FRONT_FAILED;
    if (run->over)
        return FRONT_OVER;
    // filter has sorted the points by cost, so the first is the cheapest
    struct set last = run->joined[tree->m];
    if (last.n == 0 || last.at[0].cost >= threshold)
        return FRONT_NONE;
    *cost = last.at[0].cost;
    if (pass_back(run, goals, x))
        return FRONT_FOUND;
    return run->arena.failed ? FRONT_FAILED : FRONT_OVER; // OVER: filter has dropped points
}

// Activates the row that is violated most and sets *violated if there is one. Returns false if none
// is violated or if FRONT_ROWS rows are active already.
static bool activate(struct run *run, const int64_t *load, bool *violated)
{
    uint32_t worst = tsr__dense_worst(run->front->dense, load);
    *violated = worst != NONE;
    if (!*violated || run->n_rows == FRONT_ROWS)
        return false;
    run->rows[run->n_rows++] = worst;
    return true;
}

// Finds the best solution below the threshold. Starts with few active rows, which is cheap. If the
// solution violates another row, that row becomes active and the elimination is repeated. A
// solution that violates no row is optimal.
enum front_end tsr__front(struct front *front, int64_t threshold, uint32_t *x, int64_t *cost)
{
    const struct dense *dense = front->dense;
    struct run run = {.front = front, .n_rows = front->n_rows};
    memcpy(run.rows, front->rows, sizeof(run.rows));
    enum front_end end;
    bool violated = false, again;
    size_t bytes = ((size_t)dense->n_rows + 1) * sizeof(int64_t);
    int64_t *load = tsr__alloc(dense->heap->session, bytes);
    if (!load)
        return FRONT_FAILED;
    do {
        tsr__arena_init(&run.arena, dense->heap->session);
        end = run_once(&run, threshold, x, cost);
        again = false;
        if (end == FRONT_FOUND) {
            tsr__dense_load(dense, x, load);
            again = activate(&run, load, &violated);
            // the solution violates a row that cannot be activated
            if (!again && violated)
                end = FRONT_OVER;
        }
        tsr__arena_free(&run.arena);
        for (int i = 0; i < WORK_SETS; i++) {
            tsr__free(dense->heap->session, run.work[i].at, run.cap[i] * sizeof(struct point));
            run.work[i] = (struct set){0};
            run.cap[i] = 0;
        }
        run.points = 0;
        run.over = false;
    } while (again);
    tsr__free(dense->heap->session, load, bytes);
    return end;
}
