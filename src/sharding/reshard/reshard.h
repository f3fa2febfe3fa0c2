// SPDX-License-Identifier: Apache-2.0
// reshard.h - what the files of resharding share: two layouts of one shape laid over each other.
#ifndef TSR_SHARDING_RESHARD_H
#define TSR_SHARDING_RESHARD_H

#include "sharding/sharding.h"

// One part of one dimension.
struct dim_part {
    struct tile_interval *at; // NULL: too many to list
    int64_t n, size;          // intervals; elements
};
// A layout with its sizes: parts of each dimension, and what each device has.
struct side {
    const struct tile_layout *layout;
    struct dim_part **parts; // by dimension
    int64_t *n_parts;        // by dimension
    int64_t *part;           // n_shards x rank: part of each dimension that a shard is
    int64_t *elements;       // by shard
    size_t *first;           // by device: its rows in shards, one more at the end
    int64_t *shards;         // ascending for each device
};
// Two layouts laid over each other.
struct pairing {
    struct arena *arena;
    struct arena *made; // for what a step consists of
    bool brief;         // a step's name and bytes are wanted, not all of its moves
    int rank;
    int64_t unit; // bytes of an element
    int64_t *devices;
    size_t n_devices; // of either side, ascending
    struct side from, to;
    int64_t **common; // by dimension: elements that part i of from and part k of to share
    const struct partial *pending;
    size_t *group; // by device: its group of the pending combination
};

#define RESHARD_MAX_PAIRS ((int64_t)1 << 26) // shards of one side times shards of the other

// TSR_NOMEM; TSR_UNSUPPORTED: too large; TSR_INVALID: a layout does not fit the shape.
tsr_status tsr__pairing_new(struct arena *arena, const struct tile_layout *from,
                            const struct partial *pending, const struct tile_layout *to,
                            const int64_t *shape, size_t elem_bytes,
                            struct pairing *out) TSR_MUST_USE;
// The place of a device that is not in its own place: see pairing_device.
size_t tsr__pairing_search(const struct pairing *pairing, int64_t device);
// The place of a device in pairing->devices; SIZE_MAX: it owns nothing on either side. Of devices
// 0, 1 ... n - 1 each is in its own place, which is seen at once.
static inline size_t pairing_device(const struct pairing *pairing, int64_t device)
{
    if ((size_t)device < pairing->n_devices && pairing->devices[device] == device)
        return (size_t)device;
    return tsr__pairing_search(pairing, device);
}
// Elements that shard k of from and shard j of to share.
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

// The one step that brings from to to, with what it is called and what it moves. TSR_INVALID: no
// device holds what is needed.
tsr_status tsr__reshard_step(const struct pairing *pairing, struct reshard_step *out) TSR_MUST_USE;
// Recognises collectives over whole groups; false: it is not one of them (or the arena has failed).
bool tsr__reshard_gather(const struct pairing *pairing, struct reshard_step *out);
bool tsr__reshard_exchange_axes(const struct pairing *pairing, struct reshard_step *out);

// Those axes as after, the others as before, on devices that have one piece before and one after.
// NULL: none, or no memory.
struct tile_layout *tsr__reshard_mixed(const struct pairing *pairing, uint64_t axes);

#endif
