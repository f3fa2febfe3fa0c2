// SPDX-License-Identifier: Apache-2.0
// reshard_pair.c - compares two layouts of one shape: computes the number of elements that each
// shard of one has in common with each shard of the other.
//
// A shard is a product of one part of each dimension, and so is the intersection of two shards. So
// a small table per dimension is enough for all pairs. This file has no notion of steps.
//
// Example, in the notation of notation.c:
//     [8,6] as {2,1} and as {4,1}: dimension 0 has parts of 4 and 4, and of 2, 2, 2 and 2;
//     common[0] is 2 2 0 0 / 0 0 2 2. Dimension 1 is unsharded on both sides: common[1] is 6.
//     Shard 0 of the first and shard 1 of the second have 2 * 6 = 12 elements in common.
#include "sharding/reshard/reshard.h"

#include <stdlib.h>

size_t tsr__pairing_search(const struct pairing *pairing, int64_t device)
{
    const int64_t *at =
        bsearch(&device, pairing->devices, pairing->n_devices, sizeof *pairing->devices, by_int64);
    return at ? (size_t)(at - pairing->devices) : SIZE_MAX;
}

bool tsr__side_owns(const struct side *side, size_t device, int64_t shard)
{
    for (size_t i = side->first[device]; i < side->first[device + 1]; i++)
        if (side->shards[i] == shard)
            return true;
    return false;
}

// ---- one side ----------------------------------------------------------------------------------

#define LISTED 256 // parts with more intervals are not listed; tile/overlap.c computes with them

// Computes the elements of part `index` of a dimension. `index` combines the coordinates of the
// part in all factors, the outermost as the highest digit.
static bool part_digits(const struct tile_dim *dim, int64_t size, int64_t index,
                        struct tile_digits *out)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    for (int factor = dim->n - 1; factor >= 0; factor--) {
        coords[factor] = index % dim->factors[factor].cuts;
        index /= dim->factors[factor].cuts;
    }
    return tsr__dim_digits(dim, size, coords, out);
}

// Computes the number of common elements. TSR_UNSUPPORTED: there are too many intervals.
static tsr_status overlap(tsr_session *session, const struct tile_digits *x,
                          const struct tile_digits *y, int64_t *out)
{
    struct arena scratch = {.session = session};
    *out = tsr__digits_overlap(&scratch, x, y);
    tsr_status st = arena_status(&scratch);
    tsr__arena_free(&scratch);
    if (st == TSR_OK && *out < 0)
        return TSR_UNSUPPORTED;
    return st;
}

// Computes the size of part `index` of a dimension and, if there are at most LISTED, its intervals.
// *left is the number of intervals that one side may still have.
static tsr_status take_part(struct arena *arena, const struct tile_dim *dim, int64_t size,
                            int64_t index, struct dim_part *out, int64_t *left)
{
    struct tile_digits digits, whole = {.size = size, .run = -1};
    if (!part_digits(dim, size, index, &digits))
        return TSR_INVALID;
    out->n = digits.count;
    if ((*left -= out->n) < 0)
        return TSR_UNSUPPORTED;
    if (out->n > LISTED)
        return overlap(arena->session, &digits, &whole, &out->size);
    out->at = ARENA_ARRAY(arena, struct tile_interval, (size_t)out->n + 1);
    if (!out->at)
        return TSR_NOMEM;
    tsr__digits_intervals(&digits, out->at, out->n);
    for (int64_t i = 0; i < out->n; i++)
        out->size += out->at[i].stop - out->at[i].start;
    return TSR_OK;
}

static tsr_status take_parts(struct arena *arena, struct side *side, const int64_t *shape)
{
    int64_t left = TILE_MAX_INTERVALS;
    for (int axis = 0; axis < side->layout->rank; axis++) {
        side->n_parts[axis] = 1;
        for (int factor = 0; factor < side->layout->dims[axis].n; factor++)
            side->n_parts[axis] *= side->layout->dims[axis].factors[factor].cuts;
        side->parts[axis] = ARENA_ARRAY(arena, struct dim_part, (size_t)side->n_parts[axis]);
        if (!side->parts[axis])
            return TSR_NOMEM;
        for (int64_t i = 0; i < side->n_parts[axis]; i++) {
            TRY(take_part(arena, &side->layout->dims[axis], shape[axis], i, &side->parts[axis][i],
                          &left));
        }
    }
    return TSR_OK;
}

// Computes for each shard its part of each dimension, and its number of elements.
static void take_shards(struct side *side)
{
    int rank = side->layout->rank;
    for (int64_t k = 0; k < side->layout->n_shards; k++) {
        int64_t coords[TILE_MAX_LOOPS];
        tsr__layout_coords(side->layout, k, coords);
        // loops are in the order of factors, so the first digit of a part is the highest
        for (int i = 0; i < side->layout->n_loops; i++) {
            int axis = side->layout->loops[i].dim;
            int64_t *part = &side->part[k * rank + axis];
            *part = *part * side->layout->dims[axis].factors[side->layout->loops[i].factor].cuts +
                    coords[i];
        }
        side->elements[k] = 1;
        for (int axis = 0; axis < rank; axis++)
            side->elements[k] *= side->parts[axis][side->part[k * rank + axis]].size;
    }
}

// Lists the shards of each device in ascending order.
static bool take_owners(const struct pairing *pairing, struct side *side)
{
    size_t *at = ARENA_ARRAY(pairing->arena, size_t, pairing->n_devices + 1);
    if (!at)
        return false;
    for (int64_t i = 0; i < side->layout->first[side->layout->n_shards]; i++)
        side->first[pairing_device(pairing, side->layout->owners[i]) + 1]++;
    for (size_t t = 0; t < pairing->n_devices; t++)
        side->first[t + 1] += side->first[t];
    memcpy(at, side->first, pairing->n_devices * sizeof *at);
    for (int64_t k = 0; k < side->layout->n_shards; k++)
        for (int64_t i = side->layout->first[k]; i < side->layout->first[k + 1]; i++)
            side->shards[at[pairing_device(pairing, side->layout->owners[i])]++] = k;
    return true;
}

// Fills one side of the comparison from a layout. side->layout numbers shards in dimension order,
// which may differ from `layout`.
static tsr_status take_side(struct pairing *pairing, struct side *side,
                            const struct tile_layout *layout, const int64_t *shape)
{
    struct arena *arena = pairing->arena;
    size_t rank = (size_t)layout->rank, shards = (size_t)layout->n_shards;
    side->layout = tsr__layout_ordered(arena, layout);
    side->parts = ARENA_ARRAY(arena, struct dim_part *, rank + 1);
    side->n_parts = ARENA_ARRAY(arena, int64_t, rank + 1);
    side->part = ARENA_ARRAY(arena, int64_t, shards * rank + 1);
    side->elements = ARENA_ARRAY(arena, int64_t, shards);
    side->first = ARENA_ARRAY(arena, size_t, pairing->n_devices + 2);
    side->shards = ARENA_ARRAY(arena, int64_t, (size_t)layout->first[shards] + 1);
    if (arena->failed)
        return TSR_NOMEM;
    TRY(take_parts(arena, side, shape));
    take_shards(side);
    return take_owners(pairing, side) ? TSR_OK : TSR_NOMEM;
}

// ---- both --------------------------------------------------------------------------------------

// Returns the number of elements that two parts have in common. Both lists of intervals are
// ascending, so one loop over both is enough.
static int64_t shared(const struct dim_part *x, const struct dim_part *y)
{
    int64_t n = 0;
    for (int64_t i = 0, k = 0; i < x->n && k < y->n;) {
        int64_t start = int64_max(x->at[i].start, y->at[k].start);
        int64_t stop = int64_min(x->at[i].stop, y->at[k].stop);
        n += int64_max(stop - start, 0);
        if (x->at[i].stop <= y->at[k].stop)
            i++;
        else
            k++;
    }
    return n;
}

// Computes the number of elements that part i of `from` and part k of `to` have in common along an
// axis.
static tsr_status common_of(const struct pairing *pairing, const int64_t *shape, int axis,
                            int64_t i, int64_t k, int64_t *out)
{
    const struct dim_part *x = &pairing->from.parts[axis][i], *y = &pairing->to.parts[axis][k];
    struct tile_digits in_x, in_y;
    if (x->at && y->at) {
        *out = shared(x, y);
        return TSR_OK;
    }
    if (!part_digits(&pairing->from.layout->dims[axis], shape[axis], i, &in_x) ||
        !part_digits(&pairing->to.layout->dims[axis], shape[axis], k, &in_y))
        return TSR_BUG; // both were computed before
    return overlap(pairing->arena->session, &in_x, &in_y, out);
}

bool tsr__axis_differs(const struct pairing *pairing, int axis, bool devices)
{
    const struct side *from = &pairing->from, *to = &pairing->to;
    if (from->n_parts[axis] != to->n_parts[axis])
        return true;
    for (int64_t i = 0; i < from->n_parts[axis]; i++)
        if (pairing->common[axis][i * to->n_parts[axis] + i] != from->parts[axis][i].size ||
            from->parts[axis][i].size != to->parts[axis][i].size)
            return true;
    for (size_t t = 0; devices && t < pairing->n_devices; t++)
        if (side_count(from, t) == 1 && side_count(to, t) == 1 &&
            side_part(from, t, axis) != side_part(to, t, axis))
            return true;
    return false;
}

// Computes the number of common elements for each pair of parts of each dimension.
static tsr_status take_common(struct pairing *pairing, const int64_t *shape)
{
    pairing->common = ARENA_ARRAY(pairing->arena, int64_t *, (size_t)pairing->rank + 1);
    if (!pairing->common)
        return TSR_NOMEM;
    for (int axis = 0; axis < pairing->rank; axis++) {
        int64_t n = pairing->from.n_parts[axis], m = pairing->to.n_parts[axis];
        int64_t *common = ARENA_ARRAY(pairing->arena, int64_t, (size_t)(n * m));
        if (!common)
            return TSR_NOMEM;
        pairing->common[axis] = common;
        for (int64_t at = 0; at < n * m; at++)
            TRY(common_of(pairing, shape, axis, at / m, at % m, &common[at]));
    }
    return TSR_OK;
}

// True if two devices have the same shards. Both lists are ascending.
static bool same_shards(const struct side *side, size_t x, size_t y)
{
    size_t n = side_count(side, x);
    return n == side_count(side, y) &&
           memcmp(&side->shards[side->first[x]], &side->shards[side->first[y]],
                  n * sizeof *side->shards) == 0;
}

// Fills pairing->group. Returns TSR_INVALID unless members of a group have the same shards, and
// every device with a shard is in exactly one group.
static tsr_status take_groups(struct pairing *pairing)
{
    pairing->group = ARENA_ARRAY(pairing->arena, size_t, pairing->n_devices + 1);
    if (!pairing->group)
        return TSR_NOMEM;
    memset(pairing->group, 0xff, pairing->n_devices * sizeof *pairing->group);
    for (size_t g = 0; g < pairing->pending->n_groups; g++) {
        const struct device_group *group = &pairing->pending->groups[g];
        for (size_t i = 0; i < group->n; i++) {
            size_t t = pairing_device(pairing, group->devices[i]);
            if (t == SIZE_MAX || pairing->group[t] != SIZE_MAX ||
                side_count(&pairing->from, t) == 0 ||
                !same_shards(&pairing->from, t, pairing_device(pairing, group->devices[0])))
                return TSR_INVALID;
            pairing->group[t] = g;
        }
    }
    for (size_t t = 0; t < pairing->n_devices; t++)
        if (side_count(&pairing->from, t) && pairing->group[t] == SIZE_MAX)
            return TSR_INVALID;
    return TSR_OK;
}

// True if the numbers of bytes that are computed cannot overflow.
static bool in_range(const struct tile_layout *from, const struct tile_layout *to,
                     const int64_t *shape, size_t unit)
{
    int64_t n = 16 * (int64_t)unit;
    for (int axis = 0; axis < from->rank; axis++)
        if (shape[axis] && !mul_ok(n, shape[axis], &n))
            return false;
    return mul_ok(n, from->first[from->n_shards] + 1, &n) &&
           mul_ok(n, to->first[to->n_shards] + 1, &n);
}

tsr_status tsr__pairing_new(struct arena *arena, const struct tile_layout *from,
                            const struct partial *pending, const struct tile_layout *to,
                            const int64_t *shape, size_t elem_bytes, struct pairing *out)
{
    *out = (struct pairing){.arena = arena,
                            .rank = from->rank,
                            .shape = shape,
                            .unit = (int64_t)elem_bytes,
                            .pending = pending};
    if (from->rank != to->rank)
        return TSR_INVALID;
    if (!in_range(from, to, shape, elem_bytes) ||
        from->n_shards > RESHARD_MAX_PAIRS / to->n_shards ||
        from->first[from->n_shards] > RESHARD_MAX_PAIRS / (to->first[to->n_shards] + 1))
        return TSR_UNSUPPORTED;
    // all other arrays use indices of this list instead of device numbers
    out->n_devices = tsr__layouts_devices(arena, from, to, &out->devices);
    if (!out->devices)
        return TSR_NOMEM;
    TRY(take_side(out, &out->from, from, shape));
    TRY(take_side(out, &out->to, to, shape));
    TRY(take_common(out, shape));
    return pending ? take_groups(out) : TSR_OK;
}
