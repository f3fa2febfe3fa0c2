// SPDX-License-Identifier: Apache-2.0
// facts.h - functions about layouts, sizes and nodes that planning and emission both use. The
// lowest folder of the module: nothing here plans or builds.
#ifndef TSR_PARTITION_FACTS_H
#define TSR_PARTITION_FACTS_H

#include "partition/facts/forms.h"

// ---- geometry.c: layouts seen from one device --------------------------------------------------

bool tsr__dim_is_sharded(const struct tile_dim *dim);
// Coordinates of the device along the axis, one per factor. False: it has no shard.
bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis,
                        int64_t *coords);
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b);
bool tsr__owns_once(const struct tile_layout *layout); // no device owns two shards
bool tsr__owns_all(const struct tile_layout *layout);  // every shard has an owner
// The devices of the layout, ascending, without duplicates.
size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out);
// Sorts the members of a group by device number, as communications list them. (The flow lists them
// by coordinate.) False: out of memory.
bool tsr__group_sorted(struct arena *arena, const struct device_group *from,
                       struct device_group *to);

// How a device gets its shard of one dimension from what it stores.
enum dim_source { DIM_SAME, DIM_STATIC, DIM_DYNAMIC, DIM_NO };
struct dim_slice {
    enum dim_source source;
    struct tile_interval *at; // DIM_STATIC: in local indices
    int64_t n;
    // DIM_DYNAMIC: the shard in units of `unit` elements.
    int64_t unit;
    struct tile_units part;
};
struct dim_slice tsr__dim_source(struct draft *draft, const struct item *it,
                                 const struct tile_layout *from, const struct tile_layout *to,
                                 int64_t device, int axis);
// True if every device of `to` stores what it needs in `from`. *identity: and nothing else.
bool tsr__local_ok(struct draft *draft, const struct item *it, const struct tile_layout *from,
                   const struct tile_layout *to, bool *identity);
// The layout after gathering that loop of `from`, and the groups that gather. NULL: cannot be
// gathered.
const struct tile_layout *tsr__gathered(struct arena *arena, const struct tile_layout *from,
                                        int loop, struct device_group **groups, size_t *n_groups);
// A local size as a function of the full size D: (b - a) * scale - last * (F * unit - D), where F =
// ceil(D / unit), a = first * F / of, b = stop * F / of. `last` is 1 for the last shard, else 0.
struct local_size {
    int64_t unit, scale;
    struct tile_units part;
};
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords);
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole);

// ---- size_text.c: sizes as the model writes them -----------------------------------------------

// True if every rank can compute the size; all sizes of the item.
bool tsr__size_known(struct draft *draft, const tsr_dim *dim);
bool tsr__shape_known(struct draft *draft, const struct item *it);
enum arith { ARITH_ADD, ARITH_SUB, ARITH_MUL, ARITH_DIV, ARITH_MOD, ARITH_MAX, ARITH_MIN };
// Builds an int64[1] for each part of a size expression. All functions return NULL on failure.
struct size_maker {
    void *data;
    tsr_value *(*symbol)(void *data, struct str symbol, const struct size_source *from);
    tsr_value *(*number)(void *data, int64_t number);
    tsr_value *(*combine)(void *data, enum arith op, tsr_value *a, tsr_value *b);
};
// The value that the maker builds for the size. NULL: the size is not known, or the maker failed.
tsr_value *tsr__size_make(struct draft *draft, const struct size_maker *maker, const tsr_dim *dim);

// ---- local_node.c: how the node of one device differs from the model's ------------------------

int64_t tsr__place_index(const struct placement *place, int64_t device); // -1: not in the placement
// True if the device leaves out input `input` because another device adds it to the sum.
bool tsr__input_is_skipped(const struct node_flow *nf, int64_t device, int input);
// True if the device does not read the model's value at this input: it has its own value, or none.
bool tsr__input_replaced(struct draft *draft, const struct node_flow *nf, int64_t device,
                         int input);
// The rewrite of a node that returns sizes of a sharded input (Shape, Size), else NULL. The full
// sizes are computed instead and the input is not read.
const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf);

// The elements that each rank has along some axes of a form, in indices of the full tensor.
struct windows {
    int n_axes, axes[TILE_MAX_RANK]; // ascending
    struct dim_slice *parts;         // n_ranks x n_axes; only `at` and `n` are used
};
int64_t tsr__windows_size(const struct windows *windows, int64_t rank); // along one axis
// True if a factor is sharded of which the input (-1: any input) needs a window.
bool tsr__window_cut(const struct node_flow *nf, int input);
// The window that the device at this index of the placement needs.
struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window);
bool tsr__trims(const struct node_flow *nf); // local nodes return more than their shards
// True if the rule's lists of numbers replace those of the node.
bool tsr__lists_apply(const struct node_flow *nf);
// Axes of a reduction as the local node needs them, and the attribute that holds them (NULL: the
// second input). Returns 0 if they stay as they are.
int tsr__front_axes(const struct draft *draft, const struct node_flow *nf, const char **name,
                    int64_t *axes);
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out) TSR_MUST_USE;

#endif
