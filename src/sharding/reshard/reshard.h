// SPDX-License-Identifier: Apache-2.0
// reshard.h - types and functions that the files of resharding share: a comparison of two layouts
// of one shape.
#ifndef TSR_SHARDING_RESHARD_H
#define TSR_SHARDING_RESHARD_H

#include "sharding/sharding.h"

// One part of one dimension.
struct dim_part {
    struct tile_interval *at; // NULL: too many intervals to list
    int64_t n, size;          // number of intervals; number of elements
};
// A layout of known sizes: the parts of each dimension, and the shards of each device.
struct side {
    const struct tile_layout *layout;
    struct dim_part **parts; // by dimension
    int64_t *n_parts;        // by dimension
    int64_t *part;           // n_shards x rank: for each shard its part of each dimension
    int64_t *elements;       // by shard
    size_t *first;           // by device: index of its first entry in `shards`; one more at the end
    int64_t *shards;         // the shards of each device, ascending
};
// A comparison of two layouts, `from` and `to`.
struct pairing {
    struct arena *arena;
    struct arena *made; // arena for the results of a step
    bool brief;         // only name and bytes of a step are needed, not all of its moves
    int rank;
    const int64_t *shape;
    int64_t unit; // bytes per element
    int64_t *devices;
    size_t n_devices; // devices of both sides, ascending
    struct side from, to;
    // by dimension: number of elements that part i of `from` and part k of `to` have in common
    int64_t **common;
    const struct partial *pending;
    size_t *group; // by device: index of its group in the pending reduction
};

// limit of shards of one side times shards of the other
#define RESHARD_MAX_PAIRS ((int64_t)1 << 26)

// Compares two layouts. Returns TSR_OK, TSR_NOMEM, TSR_UNSUPPORTED if the layouts are too large, or
// TSR_INVALID if a layout does not fit the shape or `pending` does not fit `from`.
tsr_status tsr__pairing_new(struct arena *arena, const struct tile_layout *from,
                            const struct partial *pending, const struct tile_layout *to,
                            const int64_t *shape, size_t elem_bytes,
                            struct pairing *out) TSR_MUST_USE;
// Finds the index of a device by binary search. pairing_device calls it if the device number is not
// the index.
size_t tsr__pairing_search(const struct pairing *pairing, int64_t device);
// Returns the index of a device in pairing->devices, or SIZE_MAX if it owns nothing on either side.
// Often the devices are 0, 1 ... n - 1, and no search is needed.
static inline size_t pairing_device(const struct pairing *pairing, int64_t device)
{
    if ((size_t)device < pairing->n_devices && pairing->devices[device] == device)
        return (size_t)device;
    return tsr__pairing_search(pairing, device);
}
// Returns the number of elements that shard k of `from` and shard j of `to` have in common.
static inline int64_t pairing_common(const struct pairing *pairing, int64_t k, int64_t j)
{
    int64_t n = 1;
    for (int axis = 0; axis < pairing->rank && n; axis++)
        n *= pairing->common[axis][pairing->from.part[k * pairing->rank + axis] *
                                       pairing->to.n_parts[axis] +
                                   pairing->to.part[j * pairing->rank + axis]];
    return n;
}
static inline size_t side_count(const struct side *side, size_t device)
{
    return side->first[device + 1] - side->first[device];
}
bool tsr__side_owns(const struct side *side, size_t device, int64_t shard);

// Builds the step that turns `from` into `to`: its name, groups, moves and bytes. Returns
// TSR_INVALID if no device has some of the needed elements.
tsr_status tsr__reshard_step(const struct pairing *pairing, struct reshard_step *out) TSR_MUST_USE;
// tsr__reshard_gather recognizes an all-gather, tsr__reshard_exchange_axes an all-to-all. Both
// return false if the step is not of that kind, or if the arena has failed.
bool tsr__reshard_gather(const struct pairing *pairing, struct reshard_step *out);
bool tsr__reshard_exchange_axes(const struct pairing *pairing, struct reshard_step *out);

// Returns the layout with `axes` (one bit per axis) as in the target and the other axes as in the
// source. Its owners are the devices that have one shard in the source and one in the target.
// Returns NULL if there is no such device or if out of memory.
struct tile_layout *tsr__reshard_mixed(const struct pairing *pairing, uint64_t axes);

#endif
