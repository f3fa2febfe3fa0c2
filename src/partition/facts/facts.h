// SPDX-License-Identifier: Apache-2.0
// facts.h - helper functions about layouts, sizes and nodes. Planning (steps/) and emission (emit/)
// both use them. This is the lowest folder of the module: nothing here plans steps or builds
// graphs.
#ifndef TSR_PARTITION_FACTS_H
#define TSR_PARTITION_FACTS_H

#include "partition/facts/forms.h"

// ---- geometry.c: the shards of one device -------------------------------------------------------

// Stores the coordinates of the device's shard along the axis, one per factor of the dimension.
// Returns false if the device has no shard.
bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis,
                        int64_t *coords);
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b);
bool tsr__owns_once(const struct tile_layout *layout); // no device owns two shards
bool tsr__owns_all(const struct tile_layout *layout);  // every shard has an owner
// Stores the devices of the layout in *out, ascending and without duplicates; returns their number.
size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out);
// Copies a group with its members sorted by device number, the order that communication nodes use.
// The flow lists members by coordinate. Returns false if out of memory.
bool tsr__group_sorted(struct arena *arena, const struct device_group *from,
                       struct device_group *to);

// How a device gets its shard of one dimension of a new layout from the shard that it stores now.
// DIM_SAME: both are equal. DIM_STATIC: it slices at constant bounds. DIM_DYNAMIC: it slices at
// bounds that nodes compute at run time. DIM_NO: it does not store all elements of the new shard.
enum dim_source { DIM_SAME, DIM_STATIC, DIM_DYNAMIC, DIM_NO };
struct dim_slice {
    enum dim_source source;
    struct tile_interval *at; // DIM_STATIC: the slices, as indices of the local tensor
    int64_t n;
    // DIM_DYNAMIC: the new shard is `part`, in units of `unit` elements.
    int64_t unit;
    struct tile_units part;
};
struct dim_slice tsr__dim_source(struct draft *draft, const struct item *it,
                                 const struct tile_layout *from, const struct tile_layout *to,
                                 int64_t device, int axis);
// True if every device of `to` can get its shard of `to` from its own shard of `from`. *identity is
// set if the two shards are equal on every device.
bool tsr__can_convert_locally(struct draft *draft, const struct item *it,
                              const struct tile_layout *from, const struct tile_layout *to,
                              bool *identity);
// Returns the layout after an AllGather along that loop of `from`, and the groups of the AllGather.
// Returns NULL if the loop cannot be gathered or if out of memory.
const struct tile_layout *tsr__gathered_layout(struct arena *arena, const struct tile_layout *from,
                                               int loop, struct device_group **groups,
                                               size_t *n_groups);
// The size of a shard as a function of the full size D:
//     (b - a) * scale - last * (F * unit - D)
// F = ceil(D / unit) is the number of units of the dimension. The shard has units a to b - 1, where
// a = first * F / of and b = stop * F / of (the fields of `part`). It has `scale` elements of each
// unit. `last` is 1 if the shard has the last unit, which may be short, else 0.
struct local_size {
    int64_t unit, scale;
    struct tile_units part;
};
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords);
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole);

// ---- size_text.c: size expressions of the model -------------------------------------------------

// True if every rank can compute the size of the axis. tsr__shape_known asks this for all axes.
bool tsr__size_known(struct draft *draft, const struct item *it, int axis);
bool tsr__shape_known(struct draft *draft, const struct item *it);
// Callbacks that build an int64[1] for each part of a size expression. Each returns NULL on
// failure.
struct size_maker {
    void *data;
    // `origins`: the dimensions that must be equal for the source to have the size
    tsr_value *(*symbol)(void *data, struct size_source *from, const uint64_t *origins);
    tsr_value *(*number)(void *data, int64_t number);
    tsr_value *(*combine)(void *data, enum size_op op, tsr_value *a, tsr_value *b);
};
// Builds the size with the callbacks of `maker`. Returns NULL if the size is not known or a
// callback failed.
tsr_value *tsr__size_make(struct draft *draft, const struct size_maker *maker,
                          const struct item *it, int axis);

// ---- origins.c: from which inputs a size comes --------------------------------------------------

// Bits after those of the dimensions in draft->shared: the size depends on the branch that an If
// takes; the set may be too large, because no rule says from which axes the size comes.
#define BIT_BRANCH(draft) ((int64_t)(draft)->shared.n)
#define BIT_GUESS(draft)  ((int64_t)(draft)->shared.n + 1)
static inline bool origins_have(const uint64_t *set, int64_t bit)
{
    return set && bit >= 0 && (set[bit / 64] >> (bit % 64) & 1);
}
// Finds the origins of all sizes. Without memory for them, or in very large models, draft->origins
// stays NULL, and sizes of one name that sharded nodes need must be equal.
void tsr__origins_find(struct draft *draft);
// Adds the origins of the axes of inputs that have a factor of `dim`, with `exact` only of those
// whose origins are certain. Returns the number of such axes.
int tsr__linked_origins(const struct draft *draft, const struct node_flow *nf,
                        const struct rule_dim *dim, bool exact, uint64_t *to);
// Adds the origins of inputs that control the shape of the result (of a Reshape, an Expand). If
// these are not the sizes that the data has, the rule of the node does not hold. Returns false if
// there are none.
bool tsr__host_origins(const struct draft *draft, const struct node_flow *nf, uint64_t *to);

// ---- same_sizes.c: which dimensions of inputs are equal -----------------------------------------

// Returns the dimension from which ranks read a symbol for an axis of the item, given the first
// dimension with that symbol. *origins is the set of dimensions that must be equal for that (NULL:
// all that have the symbol).
struct size_source *tsr__size_source(const struct draft *draft, const struct item *it, int axis,
                                     struct size_source *first, const uint64_t **origins);
// True if a size of the item depends on the branch that an If takes, so that no input has it in
// every run.
bool tsr__shape_varies(const struct draft *draft, const struct item *it);
// True if the axis has its size, a symbol, from several dimensions.
bool tsr__size_is_shared(struct draft *draft, const struct item *it, int axis);
// Requires that the dimensions in `origins` (NULL: all) with the symbol of `from` are equal.
// Returns false if out of memory.
bool tsr__same_sizes_add(struct draft *draft, struct same_sizes *same, struct size_source *from,
                         const uint64_t *origins);
// Requires equal sizes where axes of several inputs of a sharded node have one sharded factor.
bool tsr__same_sizes_add_node(struct draft *draft, struct same_sizes *same,
                              const struct node_flow *nf);
// Records in draft->met which sizes are equal in every run that ONNX Runtime accepts, because the
// node combines them.
bool tsr__same_sizes_meet(struct draft *draft, const struct node_flow *nf);
// Returns the first dimension that must be equal to this one; itself if there is none.
struct size_source *tsr__same_size(const struct draft *draft, const struct same_sizes *same,
                                   struct size_source *at);
// Returns the size of an axis as declared in rank files: with a name that other sizes lack, or
// unknown if it may have several sizes. `declared` is the size in the model.
tsr_dim tsr__size_name(struct draft *draft, const struct item *it, int axis, tsr_dim declared);

// ---- local_node.c: how the node of one device differs from the model's ------------------------

int64_t tsr__place_index(const struct placement *place, int64_t device); // -1: not in the placement
// True if the device leaves out this input of a sum because another device adds it.
bool tsr__input_is_skipped(const struct node_flow *nf, int64_t device, int input);
// True if the device does not read the model's value at this input: the input is removed, or the
// device has its own value for it.
bool tsr__input_replaced(struct draft *draft, const struct node_flow *nf, int64_t device,
                         int input);
// Returns the rewrite of that kind whose factor is sharded; NULL: none.
const struct rule_rewrite *tsr__sharded_rewrite(const struct node_flow *nf, enum rewrite_kind kind);
// For a node that returns sizes of a sharded input (Shape, Size): returns its rewrite, which
// computes the full sizes without reading the input. Returns NULL for other nodes.
const struct rule_rewrite *tsr__sizes_rewrite(const struct node_flow *nf);

// Windows: along some axes of a form, the elements that each rank stores, as indices of the full
// tensor.
struct windows {
    int n_axes, axes[TILE_MAX_RANK]; // ascending
    struct dim_slice *parts;         // n_ranks x n_axes; only `at` and `n` are used
};
// number of elements in the windows of a rank; for windows along a single axis
int64_t tsr__windows_size(const struct windows *windows, int64_t rank);
// True if the input (-1: any input) needs a window along a sharded factor.
bool tsr__needs_windows(const struct node_flow *nf, int input);
// Returns window number `window` of a device; `place` is the index of the device in the placement.
struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window);
bool tsr__trims(const struct node_flow *nf); // a local node returns more elements than its shard
// True if the local node gets lists of numbers (pads, split sizes) from the rule, not from the
// model.
bool tsr__lists_apply(const struct node_flow *nf);
// Returns the number of axes that a local reduction gets in `axes`, or 0 if the model's axes stay.
// *name is the attribute that holds the axes, or NULL if the second input does.
int tsr__reduction_axes(const struct draft *draft, const struct node_flow *nf, const char **name,
                        int64_t *axes);
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out) TSR_MUST_USE;

#endif
