// SPDX-License-Identifier: Apache-2.0
// piece.c - computes the elements of a shard: intervals of each dimension, and their product, a
// piece.
//
// A dimension with factors f0 x f1 x ... is indexed by digits, f0 the highest. A shard has a range
// of each digit, so its indices are intervals of equal length (the last may be shorter). The lowest
// digit with a restricted range determines the interval, and each combination of the digits above
// repeats that interval.
//
//     Example: 12 elements as factors 3 x 4.
//     3/3*4, shard 1:   value 1 of the high digit, all of the low one:       [4,8)
//     3*4/2, shard 1:   all of the high digit, values 2 and 3 of the low one:  [2,4) [6,8) [10,12)
#include "tile/tile.h"

bool tsr__dim_factor_sizes(const struct tile_dim *dim, int64_t size, int64_t *sizes)
{
    int64_t known = 1, rest = -1;
    bool inner_cut = false;
    for (int factor = 0; factor < dim->n; factor++) {
        sizes[factor] = dim->factors[factor].size;
        inner_cut |= factor > 0 && dim->factors[factor].cuts > 1;
        if (sizes[factor] == 0 && rest >= 0)
            return false;
        if (sizes[factor] == 0)
            rest = factor;
        else if (!mul_ok(known, sizes[factor], &known))
            return false;
    }
    if (dim->n == 0)
        return size >= 0;
    // number of elements per index of the first factor
    int64_t unit = rest < 0 ? known / sizes[0] : known;
    bool short_last = !inner_cut && rest <= 0 && unit > 0 && size > 0;
    if (rest >= 0 && size % known == 0)
        sizes[rest] = size / known;
    else if (rest == 0 && short_last)
        sizes[0] = size / unit + 1;
    else if (rest >= 0)
        return false;
    else if (known != size && !(short_last && size < known && size > known - unit))
        return false;
    return true;
}

bool tsr__dim_sizes(const struct tile_dim *dim, int64_t size, int64_t *sizes)
{
    if (!tsr__dim_factor_sizes(dim, size, sizes))
        return false;
    for (int f = 0; f < dim->n; f++) {
        int64_t units = tsr__units_of(dim->factors[f].cuts, dim->factors[f].shares);
        if (units > 1 && sizes[f] < units)
            return false;
    }
    return true;
}

// Describes the intervals of a shard along one dimension. Example: 12 elements as factors 3 (not
// sharded) and 4 (2 shards), coordinate 1. Each factor is a digit of the index: the lower one has
// the range [2,4), the upper one, which counts 4 elements, [0,3). `run` is the lower digit and
// `count` is 3: the intervals are [2,4), [6,8) and [10,12).
bool tsr__dim_digits(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                     struct tile_digits *digits)
{
    int64_t sizes[TILE_MAX_FACTORS], unit = 1;
    if (dim->n > TILE_MAX_FACTORS || !tsr__dim_factor_sizes(dim, size, sizes))
        return false;
    digits->size = size;
    digits->run = -1;
    digits->count = 1;
    for (int factor = dim->n - 1; factor >= 0; factor--) {
        int64_t cuts = dim->factors[factor].cuts;
        tile_shares shares = dim->factors[factor].shares;
        digits->start[factor] = tsr__share_start(sizes[factor], cuts, shares, coords[factor]);
        digits->stop[factor] = tsr__share_start(sizes[factor], cuts, shares, coords[factor] + 1);
        digits->unit[factor] = unit;
        if (!mul_ok(unit, sizes[factor], &unit))
            return false;
        if (digits->run < 0 &&
            (digits->start[factor] != 0 || digits->stop[factor] != sizes[factor]))
            digits->run = factor;
        else if (digits->run >= 0 &&
                 !mul_ok(digits->count, digits->stop[factor] - digits->start[factor],
                         &digits->count))
            return false;
    }
    return true;
}

// Lists the intervals of a shard. Each combination of values of the digits above `run` is one
// interval.
void tsr__digits_intervals(const struct tile_digits *digits, struct tile_interval *out, int64_t cap)
{
    int64_t digit[TILE_MAX_FACTORS];
    if (digits->run < 0 && cap > 0)
        out[0] = (struct tile_interval){0, digits->size};
    if (digits->run < 0)
        return;
    memcpy(digit, digits->start, sizeof(digit));
    for (int64_t i = 0; i < digits->count && i < cap; i++) {
        int64_t base = 0;
        for (int factor = 0; factor < digits->run; factor++)
            base += digit[factor] * digits->unit[factor];
        out[i].start = base + digits->start[digits->run] * digits->unit[digits->run];
        out[i].stop = base + digits->stop[digits->run] * digits->unit[digits->run];
        // the last index of the first factor may be incomplete
        out[i].stop = int64_min(out[i].stop, digits->size);
        for (int factor = digits->run - 1; factor >= 0 && ++digit[factor] == digits->stop[factor];
             factor--)
            digit[factor] = digits->start[factor];
    }
}

int64_t tsr__dim_intervals(const struct tile_dim *dim, int64_t size, const int64_t *coords,
                           struct tile_interval *out, int64_t cap)
{
    struct tile_digits digits;
    if (!tsr__dim_digits(dim, size, coords, &digits))
        return -1;
    if (out)
        tsr__digits_intervals(&digits, out, cap);
    return digits.count;
}

// Returns the intervals of a tensor that form a shard. Example: [8,6] with {2,1}: shard 1 has rows
// [4,8) and columns [0,6).
struct tile_piece *tsr__layout_piece(struct arena *arena, const struct tile_layout *layout,
                                     const int64_t *shape, int64_t shard)
{
    int64_t loop_coords[TILE_MAX_LOOPS];
    struct tile_piece *piece = ARENA_NEW(arena, struct tile_piece);
    if (!piece || shard < 0 || shard >= layout->n_shards)
        return NULL;
    piece->rank = layout->rank;
    piece->dims =
        tsr__arena_array(arena, (size_t)layout->rank + 1, sizeof(*piece->dims), _Alignof(int64_t));
    if (!piece->dims)
        return NULL;
    tsr__layout_coords(layout, shard, loop_coords);
    for (int dim = 0; dim < layout->rank; dim++) {
        int64_t coords[TILE_MAX_FACTORS] = {0};
        for (int i = 0; i < layout->n_loops; i++)
            if (layout->loops[i].dim == dim)
                coords[layout->loops[i].factor] = loop_coords[i];
        int64_t n = tsr__dim_intervals(&layout->dims[dim], shape[dim], coords, NULL, 0);
        if (n < 0 || n > TILE_MAX_INTERVALS)
            return NULL;
        piece->dims[dim].n = n;
        piece->dims[dim].at = ARENA_ARRAY(arena, struct tile_interval, (size_t)n + 1);
        if (!piece->dims[dim].at)
            return NULL;
        tsr__dim_intervals(&layout->dims[dim], shape[dim], coords, piece->dims[dim].at, n);
        for (int64_t i = 0; i < n; i++)
            piece->dims[dim].size += piece->dims[dim].at[i].stop - piece->dims[dim].at[i].start;
    }
    return piece;
}

// Returns the number of elements; -1 on overflow.
int64_t tsr__piece_elements(const struct tile_piece *piece)
{
    int64_t n = 1;
    for (int axis = 0; axis < piece->rank; axis++)
        if (!mul_ok(n, piece->dims[axis].size, &n))
            return -1;
    return n;
}
