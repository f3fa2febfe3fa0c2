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

// Returns the part of the dimension that the device has, which must have a shard.
static inline int64_t side_part(const struct side *side, size_t device, int axis)
{
    return side->part[side->shards[side->first[device]] * side->layout->rank + axis];
}
// True if `from` and `to` differ along the axis: in the parts, or with `devices` also in the part
// that a device has. (reshard_pair.c)
bool tsr__axis_differs(const struct pairing *pairing, int axis, bool devices);
int64_t tsr__dim_parts(const struct tile_dim *dim); // number of parts (moves.c)

static inline int64_t loop_parts(const struct tile_layout *layout, int loop)
{
    return layout->dims[layout->loops[loop].dim].factors[layout->loops[loop].factor].cuts;
}

// A mesh axis: `run` adjacent parts of a loop (sharded factor) or, with the size of the dimension,
// `run` parts at equal distances. Example: of 4 parts, 0 1 and 2 3, or 0 2 and 1 3.
struct loop_axis {
    int loop;
    int64_t run, size;
};
// Returns the layout after an AllGather along the axis, and the groups of the AllGather. No device
// may have several shards of `from`. Returns NULL if the axis cannot be gathered or if out of
// memory. (local.c)
const struct tile_layout *tsr__gathered_layout(struct arena *arena, const struct tile_layout *from,
                                               struct loop_axis axis, struct device_group **groups,
                                               size_t *n_groups);

// A conversion of which the operators are looked for.
struct lowering {
    struct arena *arena;   // for results
    struct arena *scratch; // for one step
    const struct reshard_tensor *tensor;
    int64_t shape[TILE_MAX_RANK]; // with example sizes
    struct pairing pairing;       // layouts before and after the current step
};
static inline bool is_open(const struct lowering *lower, int axis)
{
    return lower->tensor->shape[axis] < 0;
}

// Lists moves from pairing->from towards pairing->to that bring at most `most` bytes to a device.
// They may not fit. (moves.c)
#define RESHARD_MAX_MOVES 64
struct reshard_moves {
    struct reshard_operator at[RESHARD_MAX_MOVES];
    int n;
};
void tsr__reshard_moves(const struct pairing *pairing, struct arena *arena, int64_t most,
                        struct reshard_moves *out);
// True if the operator turns the shards of lower->pairing.from into those of lower->pairing.to.
// Sets the shares in which it divides an axis. (fits.c)
bool tsr__operator_fits(const struct lowering *lower, struct reshard_operator *operator);

// Bytes of an operator: the largest numbers that a device receives and sends, the sum of what all
// receive. Of a Reshard also the largest number that a device sends if copies of the same elements
// count once, and the largest message.
struct reshard_bytes {
    int64_t received, sent, total, once;
    struct reshard_pair largest;
};
// Computes the bytes of an operator from pairing->from to pairing->to. Returns TSR_INVALID if no
// device has some of the needed elements. (bytes.c)
tsr_status tsr__operator_bytes(const struct pairing *pairing,
                               const struct reshard_operator *operator,
                               struct reshard_bytes * out) TSR_MUST_USE;
// Computes only how many bytes devices lack. Does not look for devices that have them.
tsr_status tsr__missing_bytes(const struct pairing *pairing,
                              struct reshard_bytes *out) TSR_MUST_USE;

#endif
