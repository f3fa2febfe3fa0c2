// SPDX-License-Identifier: Apache-2.0
// node_sums.c - decides which device computes which part of a sum, if the inputs allow several.
//
// A sum has a part for each combination of the reduced factors. Every part must be added exactly
// once, so parts that more devices have than others are dropped on the additional devices. All
// devices that have a part still get the result, as the published formalism requires.
//
// Examples, in the notation of notation.c: ReduceSum of X along its sharded axis
//     {2,1:(0,2),(1,3)}   two complete sums, on devices 0 and 1 and on devices 2 and 3
//     {2,1:(0,1),2}       devices 0 and 2 compute; device 1 receives the result
//     {2,1:(0,1),(1,2)}   device 1 has both parts; devices 0 and 2 compute
//     {4,1:0,1,0,1}       device 0 adds parts 0 and 2, device 1 adds parts 1 and 3 (turns)
#include "sharding/layouts/node_placement.h"

#include <stdlib.h>

static bool fail(struct solve *solve, const char *why)
{
    solve->wrong = why;
    return false;
}

static bool combines(const struct solve *solve, int factor)
{
    enum factor_kind kind = solve->rule->factors[factor].kind;
    return kind == FACTOR_RED || kind == FACTOR_STAT;
}

bool tsr__solve_reduces(const struct solve *solve)
{
    for (int factor = 0; factor < solve->rule->n_factors; factor++)
        if (combines(solve, factor) && solve->cuts[factor] > 1)
            return true;
    return false;
}

static const int64_t *coords_of(const struct solve *solve, int64_t row)
{
    return &solve->coords[row * solve->cap];
}

// Returns the number of the cell (combination of parts) that a row computes. Without `reduced`,
// treats the parts of reduced factors as 0, so that all cells of one sum get the same number.
static int64_t cell_of(const struct solve *solve, int64_t row, bool reduced)
{
    int64_t cell = 0;
    for (int factor = 0; factor < solve->rule->n_factors; factor++) {
        cell *= solve->cuts[factor];
        if (reduced || solve->rule->factors[factor].kind != FACTOR_RED)
            cell += coords_of(solve, row)[factor];
    }
    return cell;
}

static bool same_sum(const struct solve *solve, int64_t a, int64_t b)
{
    for (int factor = 0; factor < solve->rule->n_factors; factor++)
        if (!combines(solve, factor) && coords_of(solve, a)[factor] != coords_of(solve, b)[factor])
            return false;
    return true;
}

bool tsr__solve_one_sum(struct solve *solve)
{
    int64_t last = -1;
    if (solve->mode == SOLVE_VALID || !tsr__solve_reduces(solve))
        return true;
    for (int64_t row = 0; row < solve->n_rows; row++) {
        if (!solve->on[row])
            continue;
        if (last >= 0 && solve->device[last] == solve->device[row] && !same_sum(solve, last, row))
            return fail(solve, "a device has parts of several sums");
        last = row;
    }
    return true;
}

int64_t *tsr__solve_count(struct solve *solve, int64_t cells)
{
    int64_t *count = ARENA_ARRAY(solve->arena, int64_t, (size_t)cells + 1);
    for (int64_t row = 0; count && row < solve->n_rows; row++)
        if (solve->on[row])
            count[cell_of(solve, row, true)]++;
    return count;
}

bool tsr__solve_sums_are_even(const struct solve *solve, const int64_t *count)
{
    for (int64_t row = 0; row < solve->n_rows; row++)
        if (solve->on[row] && count[cell_of(solve, row, true)] != count[cell_of(solve, row, false)])
            return false;
    return true;
}

bool tsr__solve_outputs(struct solve *solve, struct tile_layout **outputs, size_t n)
{
    struct placement placement;
    if (!tsr__solve_result(solve, solve->keep, &placement))
        return fail(solve, "out of memory");
    for (size_t i = 0; i < n; i++) {
        if (!outputs[i])
            outputs[i] = tsr__placement_project(solve->keep, &placement, &solve->rule->outputs[i]);
        if (!outputs[i])
            return fail(solve, "out of memory");
    }
    return true;
}

// Keeps as many rows of each part as the part of the same sum with the fewest rows has. Returns
// false if out of memory.
static bool keep_least(struct solve *solve, int64_t cells, int64_t *count)
{
    int64_t *least = ARENA_ARRAY(solve->arena, int64_t, (size_t)cells + 1);
    if (!least)
        return fail(solve, "out of memory");
    for (int64_t row = 0; row < solve->n_rows; row++) {
        if (!solve->on[row])
            continue;
        int64_t *kept = &least[cell_of(solve, row, false)], n = count[cell_of(solve, row, true)];
        if (*kept == 0 || n < *kept)
            *kept = n;
    }
    memset(count, 0, (size_t)cells * sizeof(*count));
    for (int64_t row = 0; row < solve->n_rows; row++)
        if (solve->on[row] &&
            ++count[cell_of(solve, row, true)] > least[cell_of(solve, row, false)])
            solve->on[row] = false;
    return true;
}

// ---- devices with several parts of a sum
// ---------------------------------------------------------

// True if a reduced factor is sharded and a device has several rows.
static bool any_choice(const struct solve *solve)
{
    int64_t n = 0;
    bool reduced = false;
    for (int factor = 0; factor < solve->rule->n_factors; factor++)
        reduced =
            reduced || (solve->rule->factors[factor].kind == FACTOR_RED && solve->cuts[factor] > 1);
    for (int64_t row = 0; row < solve->n_rows; row++)
        n += solve->on[row];
    return reduced && n > tsr__solve_devices(solve);
}

// A row that may compute a part.
struct candidate {
    int64_t cell, rows; // the part, and the number of rows that may compute it
    int64_t row;
};

// Parts that few devices have come first, because they leave the least choice.
static int by_choice(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->rows != y->rows)
        return int64_order(x->rows, y->rows);
    if (x->cell != y->cell)
        return int64_order(x->cell, y->cell);
    return int64_order(x->row, y->row);
}

// Leaves each part to one device: to the one with the fewest parts so far, then to the one that has
// the fewest candidates. Returns false if out of memory.
static bool spread(struct solve *solve, const int64_t *count)
{
    struct candidate *list = ARENA_ARRAY(solve->arena, struct candidate, (size_t)solve->n_rows + 1);
    int64_t *load = ARENA_ARRAY(solve->arena, int64_t, (size_t)solve->n_all + 1);
    int64_t *rows = ARENA_ARRAY(solve->arena, int64_t, (size_t)solve->n_all + 1);
    size_t n = 0;
    if (!list || !load || !rows)
        return fail(solve, "out of memory");
    for (int64_t row = 0; row < solve->n_rows; row++) {
        if (!solve->on[row])
            continue;
        int64_t cell = cell_of(solve, row, true);
        list[n++] = (struct candidate){cell, count[cell], row};
        rows[solve->device[row]]++;
        solve->on[row] = false;
    }
    qsort(list, n, sizeof(*list), by_choice);
    for (size_t first = 0, end; first < n; first = end) {
        int64_t best = list[first].row;
        for (end = first; end < n && list[end].cell == list[first].cell; end++) {
            int64_t mine = solve->device[list[end].row], other = solve->device[best];
            if (load[mine] < load[other] || (load[mine] == load[other] && rows[mine] < rows[other]))
                best = list[end].row;
        }
        solve->on[best] = true;
        load[solve->device[best]]++;
    }
    return true;
}

bool tsr__solve_even(struct solve *solve, struct tile_layout **outputs, size_t n_outputs)
{
    int64_t cells = 1;
    for (int factor = 0; factor < solve->rule->n_factors; factor++)
        cells *= solve->cuts[factor];
    int64_t *count = tsr__solve_count(solve, cells);
    if (!count)
        return fail(solve, "out of memory");
    bool choice = any_choice(solve);
    if (!choice && tsr__solve_sums_are_even(solve, count))
        return tsr__solve_one_sum(solve);
    if (!tsr__solve_outputs(solve, outputs, n_outputs))
        return false;
    if (!(choice ? spread(solve, count) : keep_least(solve, cells, count)))
        return false;
    return tsr__solve_one_sum(solve);
}
