// SPDX-License-Identifier: Apache-2.0
// units.c - unequal shares: their bounds, and conversion of layouts that have them.
//
// A fast device and a slow one may have three quarters and one quarter of a dimension. In ONNX this
// is a sharding in 4 parts, of which the first three are on the same device: {4:0,0,0,1}. Layouts
// have one shard per device, so adjacent tiles of a device become one part, and `shares` stores
// where parts end.
//
// Examples, in the notation of sharding/notation/notation.c:
//     {4:0,0,0,1}   2 parts on devices 0 and 1, ends at units 3 and 4: bits 3 and 4, shares = 24
//     10 elements:  part 0 is [0, floor(3 * 10 / 4)) = [0, 7), part 1 is [7, 10), the same elements
//                   as those of the four shards
//     {8:0,0,0,0,0,0,1,1} is the same: floor(6 D / 8) = floor(3 D / 4) for every D
#include "tile/tile.h"

#include <stdlib.h>

// ---- bounds ------------------------------------------------------------------------------------

// Returns floor(a * b / n), which must fit into 63 bits. A product of more than 64 bits is divided
// bit by bit.
static int64_t scaled(int64_t a, int64_t b, int64_t n)
{
    uint64_t rest, low = multiply_wide((uint64_t)a, (uint64_t)b, &rest), quotient = 0;
    if (rest == 0)
        return (int64_t)(low / (uint64_t)n);
    for (int bit = 63; bit >= 0; bit--) {
        rest = rest << 1 | (low >> bit & 1);
        quotient <<= 1;
        if (rest >= (uint64_t)n) {
            rest -= (uint64_t)n;
            quotient |= 1;
        }
    }
    return (int64_t)quotient;
}

int64_t tsr__tile_start(int64_t size, int64_t n, int64_t j)
{
    // floor(j * size / n) = j * floor(size / n) + floor(j * (size mod n) / n), without overflow
    return j * (size / n) + scaled(j, size % n, n);
}

// Returns the end of part j - 1 in units: the j-th set bit, counted from 1; 0 for j = 0.
static int64_t end_of(tile_shares shares, int64_t j)
{
    int64_t end = 0;
    for (int64_t i = 0; i < j; i++) {
        if (!shares)
            return end;
        end = __builtin_ctzll(shares);
        shares &= shares - 1;
    }
    return end;
}

int64_t tsr__units_of(int64_t cuts, tile_shares shares)
{
    return shares ? 63 - __builtin_clzll(shares) : cuts;
}

struct tile_units tsr__share_units(int64_t cuts, tile_shares shares, int64_t j)
{
    if (!shares)
        return (struct tile_units){j, j + 1, cuts};
    return (struct tile_units){end_of(shares, j), end_of(shares, j + 1),
                               tsr__units_of(cuts, shares)};
}

int64_t tsr__share_start(int64_t size, int64_t cuts, tile_shares shares, int64_t j)
{
    if (!shares)
        return tsr__tile_start(size, cuts, j);
    return tsr__tile_start(size, tsr__units_of(cuts, shares), end_of(shares, j));
}

int64_t tsr__share_size(int64_t size, int64_t cuts, tile_shares shares, int64_t j)
{
    return tsr__share_start(size, cuts, shares, j + 1) - tsr__share_start(size, cuts, shares, j);
}

tile_shares tsr__shares_of(const int64_t *units, int64_t n, bool *fits)
{
    int64_t divisor = 0, end = 0;
    bool equal = true;
    for (int64_t j = 0; j < n; j++) {
        divisor = common_divisor(divisor, units[j]);
        equal = equal && units[j] == units[0];
    }
    *fits = true;
    if (equal)
        return 0;
    tile_shares shares = 0;
    for (int64_t j = 0; j < n; j++) {
        end += units[j] / divisor;
        if (end > TILE_MAX_UNITS) {
            *fits = false;
            return 0;
        }
        shares |= (tile_shares)1 << end;
    }
    return shares;
}

// Returns the first element of part j. Example: 10 elements in units of 4 are 3 units. With two
// equal parts the second begins at unit 1, element 4. With shares 3 and 1 it begins at unit floor(3
// * 3 / 4) = 2, element 8. If two members divide the second half of 7 elements (3..6), they have
// quarters of the axis: the second begins at floor(3 * 7 / 4) = 5, which is element 2 of the half.
int64_t tsr__division_start(const struct tile_division *division, int64_t length, int64_t j)
{
    int64_t units = length / division->unit + (length % division->unit != 0);
    int64_t before = j, all = division->n;
    if (division->shares) {
        before = all = 0;
        for (int64_t i = 0; i < division->n; i++) {
            if (i < j)
                before += division->shares[i];
            all += division->shares[i];
        }
    }
    const struct tile_units *part = &division->part;
    int64_t first = 0;
    if (part->of) {
        first = tsr__tile_start(units, part->of, part->first) * division->unit;
        before = part->first * all + (part->stop - part->first) * before;
        all *= part->of;
    }
    int64_t at = tsr__tile_start(units, all, before) * division->unit;
    return int64_min(at, length) - int64_min(first, length);
}

bool tsr__division_holds(const int64_t *shares, size_t n_shares, int64_t n)
{
    int64_t sum = 0;
    if (n_shares != (size_t)n)
        return false;
    for (size_t i = 0; i < n_shares; i++)
        if (shares[i] < 0 || !add_ok(sum, shares[i], &sum))
            return false;
    return sum > 0;
}

// ---- equal parts -------------------------------------------------------------------------------

bool tsr__layout_shared(const struct tile_layout *layout)
{
    for (int i = 0; i < layout->n_loops; i++)
        if (layout->dims[layout->loops[i].dim].factors[layout->loops[i].factor].shares)
            return true;
    return false;
}

static struct tile_factor *factor_at(const struct tile_layout *layout, int loop)
{
    return &layout->dims[layout->loops[loop].dim].factors[layout->loops[loop].factor];
}

// Returns the part that contains the unit. If parts end at 3 and 4, unit 2 is in part 0 and unit 3
// in part 1.
static int64_t part_with(const struct tile_factor *factor, int64_t unit)
{
    if (!factor->shares)
        return unit;
    tile_shares up_to_it = ((tile_shares)2 << unit) - 1;
    return __builtin_popcountll(factor->shares & up_to_it);
}

// Returns the shard that contains the given units, one per loop.
static int64_t shard_with(const struct tile_layout *layout, const int64_t *units)
{
    int64_t shard = 0;
    for (int loop = 0; loop < layout->n_loops; loop++) {
        const struct tile_factor *factor = factor_at(layout, loop);
        shard = shard * factor->cuts + part_with(factor, units[loop]);
    }
    return shard;
}

// Returns the layout in which every unit is a shard, with the owners of its part.
struct tile_layout *tsr__layout_units(struct arena *arena, const struct tile_layout *layout)
{
    struct tile_layout *parts = tsr__layout_ordered(arena, layout);
    if (!tsr__layout_shared(layout))
        return parts;
    struct tile_layout *wide = tsr__layout_ordered(arena, layout);
    if (!parts || !wide)
        return NULL;
    for (int loop = 0; loop < wide->n_loops; loop++) {
        struct tile_factor *factor = factor_at(wide, loop);
        factor->cuts = tsr__units_of(factor->cuts, factor->shares);
        factor->shares = 0;
    }
    struct tile_layout *units = tsr__layout_cut(arena, wide->rank, wide->dims);
    if (!units)
        return NULL;
    VEC(struct tile_owner) pairs = {0};
    for (int64_t k = 0; k < units->n_shards; k++) {
        int64_t coords[TILE_MAX_LOOPS];
        const int64_t *owners;
        tsr__layout_coords(units, k, coords);
        size_t n = tsr__layout_owners(parts, shard_with(parts, coords), &owners);
        for (size_t i = 0; i < n; i++) {
            if (!vec_add(arena, &pairs, (struct tile_owner){k, owners[i]}))
                return NULL;
        }
    }
    return tsr__layout_own(arena, units, pairs.at, pairs.n) ? units : NULL;
}

// ---- runs of tiles -----------------------------------------------------------------------------

// True if the owners ascend, which means that no device has several shards.
static bool ascends(const struct tile_layout *layout)
{
    int64_t n = layout->first[layout->n_shards];
    for (int64_t i = 1; i < n; i++)
        if (layout->owners[i - 1] >= layout->owners[i])
            return false;
    return true;
}

// True if a device has several shards. Returns false if out of memory.
static bool owns_several(struct arena *arena, const struct tile_layout *layout)
{
    if (ascends(layout))
        return false;
    size_t n = (size_t)layout->first[layout->n_shards];
    int64_t *sorted = ARENA_ARRAY(arena, int64_t, n);
    if (!sorted)
        return false;
    memcpy(sorted, layout->owners, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_int64);
    for (size_t i = 1; i < n; i++)
        if (sorted[i - 1] == sorted[i])
            return true;
    return false;
}

bool tsr__layout_same_owners(const struct tile_layout *layout, int64_t a, int64_t b)
{
    const int64_t *of_a, *of_b;
    size_t n = tsr__layout_owners(layout, a, &of_a);
    if (n != tsr__layout_owners(layout, b, &of_b))
        return false;
    return n == 0 || memcmp(of_a, of_b, n * sizeof *of_a) == 0;
}

// Merges the tiles of a loop into parts: part[j] becomes the part of tile j, and `out` gets the
// number of parts and their shares. A part ends where the owners change at any position of the
// other loops. Returns false if there are too many units or if out of memory.
static bool find_runs(struct arena *arena, const struct tile_layout *layout, int loop,
                      int64_t *part, struct tile_factor *out)
{
    int64_t cuts = factor_at(layout, loop)->cuts, stride = 1, coords[TILE_MAX_LOOPS];
    for (int i = loop + 1; i < layout->n_loops; i++)
        stride *= factor_at(layout, i)->cuts;
    memset(part, 0, (size_t)cuts * sizeof *part);
    for (int64_t k = 0; k < layout->n_shards; k++) {
        tsr__layout_coords(layout, k, coords);
        if (coords[loop] && !tsr__layout_same_owners(layout, k, k - stride))
            part[coords[loop]] = 1; // a new part begins
    }
    int64_t *units = ARENA_ARRAY(arena, int64_t, (size_t)cuts);
    if (!units)
        return false;
    for (int64_t j = 0; j < cuts; j++) {
        if (j)
            part[j] += part[j - 1];
        units[part[j]]++;
    }
    bool fits;
    out->cuts = part[cuts - 1] + 1;
    out->shares = tsr__shares_of(units, out->cuts, &fits);
    return fits;
}

// Gives each part the owners of its tiles. parts[loop][j] is the part of tile j of the loop.
static struct tile_layout *own_runs(struct arena *arena, const struct tile_layout *tiles,
                                    struct tile_layout *runs, int64_t *const *parts,
                                    const int64_t *cuts)
{
    size_t n = (size_t)tiles->first[tiles->n_shards], at = 0;
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!pairs)
        return NULL;
    for (int64_t k = 0; k < tiles->n_shards; k++) {
        int64_t coords[TILE_MAX_LOOPS], shard = 0;
        tsr__layout_coords(tiles, k, coords);
        for (int loop = 0; loop < tiles->n_loops; loop++)
            shard = shard * cuts[loop] + parts[loop][coords[loop]];
        for (int64_t i = tiles->first[k]; i < tiles->first[k + 1]; i++)
            pairs[at++] = (struct tile_owner){shard, tiles->owners[i]};
    }
    return tsr__layout_own(arena, runs, pairs, at) ? runs : NULL;
}

// Merges runs of tiles in all loops: {4,2:0,1,0,1,0,1,2,3} has runs of 3 and 1 in the first loop
// and of 1 and 1 in the second. Returns `layout` if there are too many units or if a device still
// has several shards. If out of memory, the arena has failed and the result is not valid.
static const struct tile_layout *take_runs(struct arena *arena, const struct tile_layout *layout)
{
    struct tile_layout *tiles = tsr__layout_ordered(arena, layout);
    struct tile_layout *wide = tsr__layout_ordered(arena, layout);
    int64_t *parts[TILE_MAX_LOOPS], cuts[TILE_MAX_LOOPS];
    if (!tiles || !wide)
        return NULL;
    for (int loop = 0; loop < tiles->n_loops; loop++) {
        struct tile_factor *factor = factor_at(wide, loop);
        parts[loop] = ARENA_ARRAY(arena, int64_t, (size_t)factor->cuts);
        if (!parts[loop])
            return NULL;
        if (!find_runs(arena, tiles, loop, parts[loop], factor))
            return layout;
        cuts[loop] = factor->cuts;
    }
    struct tile_layout *runs = tsr__layout_cut(arena, wide->rank, wide->dims);
    if (runs)
        runs = own_runs(arena, tiles, runs, parts, cuts);
    if (!runs)
        return NULL;
    return owns_several(arena, runs) ? layout : runs;
}

// Joins adjacent shards of the same device into one. Returns `layout` itself if there is nothing to
// join, as in most layouts. The search takes ten times the memory of the layout, so it uses a
// temporary arena.
const struct tile_layout *tsr__layout_runs(struct arena *arena, const struct tile_layout *layout)
{
    if (tsr__layout_shared(layout) || ascends(layout))
        return layout;
    struct arena work = {.session = arena->session};
    const struct tile_layout *runs =
        owns_several(&work, layout) ? take_runs(&work, layout) : layout;
    if (runs && runs != layout)
        runs = tsr__layout_copy(arena, runs);
    arena->failed = arena->failed || work.failed;
    tsr__arena_free(&work);
    return arena->failed ? NULL : runs;
}
