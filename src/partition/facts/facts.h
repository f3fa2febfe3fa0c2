// SPDX-License-Identifier: Apache-2.0
// facts.h - helper functions about layouts, sizes and nodes. Planning (steps/) and emission (emit/)
// both use them. This is the lowest folder of the module: nothing here plans steps or builds
// graphs.
#ifndef TSR_PARTITION_FACTS_H
#define TSR_PARTITION_FACTS_H

#include "partition/facts/forms.h"

// Sets it->fixed if all sizes are numbers, and then it->shape. False: out of memory.
bool tsr__item_sizes(struct draft *draft, struct item *it);
// Returns the tensor of an item, as functions of resharding take it. Its shape is in `sizes`.
struct reshard_tensor tsr__item_tensor(struct draft *draft, const struct item *it,
                                       int64_t sizes[TILE_MAX_RANK]);
// Finds the elements of the device's shard along the axis. Returns false if the device has no
// shard, if the size is not known, or if they are not one interval.
bool tsr__own_interval(const struct item *it, const struct tile_layout *layout, int64_t device,
                       int axis, struct tile_interval *out);

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
// Records in draft->met which sizes are equal in every run that ONNX Runtime accepts, because nodes
// of the main graph combine them. Returns false if out of memory.
bool tsr__same_sizes_meet(struct draft *draft);
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
