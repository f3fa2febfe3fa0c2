// SPDX-License-Identifier: Apache-2.0
// overlap.c - counts the common elements of two parts of a dimension, without listing their
// intervals: a part of a strided sharding can have millions of them.
//
// F(r) is the number of indices below r that are in both parts. The digits of both parts are
// processed from the highest to the lowest. Each step removes a digit: if the digit has the range
// [start, stop) and each of its values is `unit` elements wide, F over one period of the digit
// becomes F(stop * unit) - F(start * unit). If both parts repeat after a common period, one period
// is counted and multiplied. The sum is a list of terms `times` * F(at).
//
//     Example: 12 elements, x = [2,4) [6,8) [10,12) (3*4/2, shard 1), y = [4,8) (3/3*4, shard 1).
//     We want F(12). x has all values of its high digit, so nothing changes: F(12).
//     y has value 1 of 3 in its high digit, of unit 4: F(8) - F(4).
//     x repeats every 4 elements: 2 F(4) - F(4) = F(4).
//     The low digit of x has values 2 and 3: F(4) - F(2).
//     No digit is left, so F(r) is r: 4 - 2 = 2 common elements.
#include "tile/tile.h"

#define MERGED 64 // number of terms that are searched for an equal one

struct term {
    int64_t at;
    uint64_t times; // modulo 2^64; may represent a negative number
};
typedef VEC(struct term) term_list;

struct overlap {
    struct arena *arena;
    term_list now, next;
    bool over; // there are too many terms
};

static void add_term(struct overlap *overlap, int64_t at, uint64_t times)
{
    term_list *list = &overlap->next;
    for (size_t i = 0; i < list->n && i < MERGED; i++)
        if (list->at[i].at == at) {
            list->at[i].times += times;
            return;
        }
    overlap->over = overlap->over || list->n >= TILE_MAX_INTERVALS;
    struct term *term = at > 0 && !overlap->over ? vec_push(overlap->arena, list) : NULL;
    if (term)
        *term = (struct term){at, times};
}

// Returns the number of elements after which the digit `level` and all below it repeat; 1 if no
// digit is left.
static int64_t period_of(const struct tile_digits *digits, int level)
{
    if (level > digits->run)
        return 1;
    return level ? digits->unit[level - 1] : digits->size;
}

// Returns the least common multiple, at most INT64_MAX.
static int64_t least_multiple(int64_t a, int64_t b)
{
    return mul_cap(a / common_divisor(a, b), b);
}

// Adds times * F(r) (see the head of the file) as terms in which only the digits below `level`
// restrict F.
static void expand_periods(struct overlap *overlap, const struct tile_digits *digits, int level,
                           int64_t r, uint64_t times)
{
    int64_t period = period_of(digits, level), unit = digits->unit[level];
    int64_t start = digits->start[level] * unit, stop = digits->stop[level] * unit;
    for (int64_t base = 0; base < r && !overlap->over; base += period) {
        int64_t left = r - base;
        add_term(overlap, base + int64_min(stop, left), times);
        add_term(overlap, base + int64_min(start, left), -times);
        if (left <= period)
            break;
    }
}

// Replaces each term by the terms of the next digit. Complete common periods of both parts have the
// same terms, so these are computed once and multiplied by the number of periods.
static void expand(struct overlap *overlap, const struct tile_digits *digits, int level,
                   int64_t other_period)
{
    int64_t repeat = least_multiple(period_of(digits, level), other_period);
    overlap->next.n = 0;
    for (size_t i = 0; i < overlap->now.n; i++) {
        const struct term *term = &overlap->now.at[i];
        if (term->at >= repeat)
            expand_periods(overlap, digits, level, repeat,
                           term->times * (uint64_t)(term->at / repeat));
        expand_periods(overlap, digits, level, term->at % repeat, term->times);
    }
    term_list swap = overlap->now;
    overlap->now = overlap->next;
    overlap->next = swap;
}

// Returns the number of common elements of two parts. The digit with the longer period is processed
// first.
int64_t tsr__digits_overlap(struct arena *arena, const struct tile_digits *x,
                            const struct tile_digits *y)
{
    struct overlap overlap = {.arena = arena};
    if (!vec_add(arena, &overlap.now, (struct term){x->size, 1}))
        return -1;
    if (x->size == 0)
        return 0;
    for (int i = 0, k = 0; i <= x->run || k <= y->run;) {
        int64_t in_x = period_of(x, i), in_y = period_of(y, k);
        if (i <= x->run && (k > y->run || in_x >= in_y))
            expand(&overlap, x, i++, in_y);
        else
            expand(&overlap, y, k++, in_x);
        if (overlap.over || arena->failed)
            return -1;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < overlap.now.n; i++)
        sum += overlap.now.at[i].times * (uint64_t)overlap.now.at[i].at;
    return (int64_t)sum;
}
