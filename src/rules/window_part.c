// SPDX-License-Identifier: Apache-2.0
// window_part.c - finds the elements of an input that a shard of a result needs (struct
// rule_window).
//
// Plain windows: position j of the result needs `reach` elements from j * step + shift on.
//
//   kernel 3, stride 1, pads 1 1 over 10 elements: from 10, to 10, step 1, shift -1, reach 3
//     shard 0 of 2 makes 0..4: it needs -1..5, so elements 0..5, and 1 before them does not exist
//     shard 1 of 2 makes 5..9: it needs 4..10, so elements 4..9, and 1 after them does not exist
//
// Windows of transposed convolutions (per > 0): element i is at position i * per.
//
//   kernel 3, stride 2, pads 1 1 over 8 elements give 15:
//     from 8, to 15, step 1, shift -1, reach 3, per 2
//     shard 0 of 2 makes 0..6 and needs positions -1..7: elements 0..3, which are at 0, 2, 4 and 6.
//     They contribute to 9 positions, of which 1 at the start and 1 at the end are trimmed.
#include "rules/internal.h"

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

// Finds the elements i whose position i * per is in the window. They contribute to positions of the
// result from start * per - (reach - 1 + shift) on, where `start` is the first of these elements.
static struct window_part spread_part(const struct rule_window *window, struct window_part part)
{
    int64_t low = part.a * window->step + window->shift,
            high = (part.b - 1) * window->step + window->shift + window->reach - 1;
    int64_t start = -floor_div(-low, window->per), stop = floor_div(high, window->per) + 1;
    part.start = clamped(start, 0, window->from);
    part.stop = clamped(stop, part.start, window->from);
    part.before = part.a + window->shift + window->reach - 1 - part.start * window->per;
    part.after = (part.stop - part.start - 1) * window->per + window->reach - part.before -
                 (part.b - part.a);
    return part;
}

// Returns the start of unit j of n, j * size / n, without overflow.
static int64_t unit_start(int64_t size, int64_t n, int64_t j)
{
    return size / n * j + size % n * j / n;
}

// Returns the elements of the input that a shard needs. A shard consists of some of the n units,
// into which the `to` elements are divided nearly equally: 10 elements in 3 units are 0..2, 3..5,
// 6..9.
struct window_part tsr__window_part(const struct rule_window *window, int64_t n, int64_t first_unit,
                                    int64_t stop_unit)
{
    struct window_part part = {.a = unit_start(window->to, n, first_unit),
                               .b = unit_start(window->to, n, stop_unit)};
    if (window->per)
        return spread_part(window, part);
    int64_t first = part.a, last = part.b - 1;
    if (window->step < 1) { // backwards: the last position needs the first elements
        first = part.b - 1;
        last = part.a;
    }
    int64_t start = first * window->step + window->shift,
            stop = last * window->step + window->shift + window->reach;
    part.before = int64_min(int64_max(-start, 0), stop - start);
    part.start = clamped(start, 0, window->from);
    part.stop = int64_max(int64_min(stop, window->from), part.start);
    part.after = stop - start - part.before - (part.stop - part.start);
    return part;
}

bool tsr__rule_selects(const struct rule *rule, int factor)
{
    bool selects = !rule->whole && !rule->single && !rule->n_windows && !rule->n_lists &&
                   rule->factors[factor].unit == 1;
    for (int i = 0; i < rule->n_rewrites; i++) {
        enum rewrite_kind kind = rule->rewrites[i].kind;
        selects =
            selects && (kind == REWRITE_ATTR || kind == REWRITE_ADD_ONCE || kind == REWRITE_SHAPE);
    }
    return selects;
}
