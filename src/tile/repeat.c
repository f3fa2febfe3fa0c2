// SPDX-License-Identifier: Apache-2.0
// repeat.c - layouts of machines that consist of copies of one block of devices.
//
// Copy c of a block of n devices has devices c n .. (c + 1) n - 1. If the copies divide a
// dimension, it has `copies` times as many parts, with the copies outermost. Otherwise the tensor
// is replicated in every copy.
//
//     Example: {1,2:0,1} on a block of 2 devices, with 3 copies. If the copies divide dimension 0,
//     it becomes {3,2:0,1,2,3,4,5}; if they divide nothing, {1,2:(0,2,4),(1,3,5)}.
#include "tile/tile.h"

// Returns the number of shards in each part of the first factor of a dimension: the product of the
// cuts of its other factors and of all later dimensions.
static int64_t shards_behind(const struct tile_layout *layout, int dim)
{
    int64_t inner = 1;
    for (int i = 0; i < layout->n_loops; i++) {
        struct tile_loop at = layout->loops[i];
        if (at.dim > dim || (at.dim == dim && at.factor > 0))
            inner *= layout->dims[at.dim].factors[at.factor].cuts;
    }
    return inner;
}

// Returns the number of parts of the first factor of a dimension.
static int64_t outer_cuts(const struct tile_layout *layout, int dim)
{
    if (layout->dims[dim].n && layout->dims[dim].factors[0].cuts > 0)
        return layout->dims[dim].factors[0].cuts;
    return 1;
}

// Returns the layout with `copies` times as many shards along `dim`, without owners. Negative dim:
// the number of shards stays the same.
static struct tile_layout *add_copies(struct arena *arena, const struct tile_layout *layout,
                                      int64_t copies, int dim)
{
    struct tile_layout *wide = tsr__layout_copy(arena, layout);
    struct tile_factor *fresh = ARENA_NEW(arena, struct tile_factor);
    if (!wide || !fresh)
        return NULL;
    if (dim >= 0) {
        if (wide->dims[dim].n == 0)
            wide->dims[dim] = (struct tile_dim){fresh, 1};
        struct tile_factor *outer = &wide->dims[dim].factors[0];
        if (outer->shares)
            return NULL; // only equal shares are supported
        outer->cuts = outer_cuts(layout, dim) * copies;
        outer->size *= copies; // stays 0 if unknown
    }
    return tsr__layout_cut(arena, layout->rank, wide->dims);
}

// Returns the layout of several copies of a block of devices. If the copies divide a dimension,
// every shard of the block becomes one shard per copy. Otherwise every shard stays one shard, with
// the owners of all copies.
struct tile_layout *tsr__layout_repeat(struct arena *arena, const struct tile_layout *block,
                                       const struct tile_repeat *repeat, int dim)
{
    const struct tile_layout *layout = tsr__layout_ordered(arena, block);
    int64_t copies = repeat->copies, shared = copies > 1 ? dim : -1;
    struct tile_layout *wide = layout ? add_copies(arena, layout, copies, (int)shared) : NULL;
    if (!wide)
        return NULL;
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner,
                                           (size_t)(layout->first[layout->n_shards] * copies) + 1);
    if (!pairs)
        return NULL;
    int64_t cuts = shared >= 0 ? outer_cuts(layout, dim) : 1;
    int64_t inner = shared >= 0 ? shards_behind(layout, dim) : 1;
    size_t n = 0;
    for (int64_t c = 0; c < copies; c++)
        for (int64_t s = 0; s < layout->n_shards; s++) {
            int64_t shard = s;
            if (shared >= 0) { // shard (before, own, behind) becomes (before, copy and own, behind)
                int64_t before = s / (inner * cuts), own = s / inner % cuts;
                shard = (before * copies * cuts + c * cuts + own) * inner + s % inner;
            }
            for (int64_t i = layout->first[s]; i < layout->first[s + 1]; i++) {
                int64_t device = layout->owners[i];
                if (repeat->device)
                    device = repeat->device[device];
                pairs[n++] = (struct tile_owner){shard, c * repeat->devices + device};
            }
        }
    return tsr__layout_own(arena, wide, pairs, n) ? wide : NULL;
}

// Returns the layout of one of the copies; its owners (devices) are not set yet. Returns NULL if
// the number of parts of the dimension is not a multiple of the copies, if the parts are unequal,
// or if out of memory.
static struct tile_layout *remove_copies(struct arena *arena, const struct tile_layout *layout,
                                         int64_t copies, int dim)
{
    struct tile_layout *narrow = tsr__layout_copy(arena, layout);
    if (!narrow)
        return NULL;
    if (dim >= 0 && copies > 1) {
        if (outer_cuts(layout, dim) % copies)
            return NULL;
        struct tile_factor *outer = &narrow->dims[dim].factors[0];
        if (outer->size % copies || outer->shares)
            return NULL;
        outer->cuts /= copies;
        outer->size /= copies;
    }
    return tsr__layout_cut(arena, layout->rank, narrow->dims);
}

// Returns the shard of the block that corresponds to a shard of the first copy; -1 if `shard`
// belongs to another copy.
static int64_t shard_in_block(const struct tile_layout *layout, int64_t shard, int64_t copies,
                              int dim)
{
    if (dim < 0 || copies < 2)
        return shard;
    int64_t cuts = outer_cuts(layout, dim) / copies, inner = shards_behind(layout, dim);
    int64_t before = shard / (inner * cuts * copies), own = shard / inner % (cuts * copies);
    return own < cuts ? (before * cuts + own) * inner + shard % inner : -1;
}

// Returns the layout of the first copy, after checking that repeating it gives `all`. NULL: it does
// not, or out of memory.
struct tile_layout *tsr__layout_once(struct arena *arena, const struct tile_layout *all,
                                     const struct tile_repeat *repeat, int dim)
{
    const struct tile_layout *layout = tsr__layout_ordered(arena, all);
    struct tile_layout *block = layout ? remove_copies(arena, layout, repeat->copies, dim) : NULL;
    struct tile_owner *pairs = NULL;
    if (block)
        pairs = ARENA_ARRAY(arena, struct tile_owner, (size_t)layout->first[layout->n_shards] + 1);
    if (!pairs)
        return NULL;
    size_t n = 0;
    for (int64_t s = 0; s < layout->n_shards; s++) {
        int64_t shard = shard_in_block(layout, s, repeat->copies, dim);
        for (int64_t i = layout->first[s]; i < layout->first[s + 1]; i++) {
            if (layout->owners[i] >= repeat->devices)
                continue;
            if (shard < 0)
                return NULL;
            pairs[n++] = (struct tile_owner){shard, layout->owners[i]};
        }
    }
    if (!tsr__layout_own(arena, block, pairs, n))
        return NULL;
    struct tile_repeat plain = {repeat->copies, repeat->devices, NULL};
    const struct tile_layout *again = tsr__layout_repeat(arena, block, &plain, dim);
    return again && tsr__layout_equal(again, layout) ? block : NULL;
}
