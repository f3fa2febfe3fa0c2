// SPDX-License-Identifier: Apache-2.0
// facts.h - questions that planning and emission both ask, about layouts, sizes and nodes. The lowest folder of the room:
// nothing is planned here and nothing is built.
#ifndef TSR_PARTITION_FACTS_H
#define TSR_PARTITION_FACTS_H

#include "partition/facts/forms.h"

// ---- geometry.c: layouts seen from one device --------------------------------------------------

bool tsr__dim_cut(const struct tile_dim *dim);
// Coordinates of the device along that axis (one per factor); false: it holds nothing.
bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis,
                        int64_t *coords);
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b);
bool tsr__owns_once(const struct tile_layout *layout); // no device owns two shards
bool tsr__owns_all(const struct tile_layout *layout);  // every shard has an owner
// Devices of the layout, ascending, each once.
size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out);
// The flow lists the members of a group by coordinate; a communication lists them by number. False: out of memory.
bool tsr__group_sorted(struct arena *arena, const struct device_group *from,
                       struct device_group *to);

// How a device gets its part of one dimension from what it holds.
enum dim_way { DIM_SAME, DIM_STATIC, DIM_DYNAMIC, DIM_NO };
struct dim_cut {
    enum dim_way way;
    struct tile_interval *at; // DIM_STATIC: in local indices
    int64_t n;
    int64_t unit; // DIM_DYNAMIC: pieces of `unit` elements, which are so many units of what
    struct tile_units part;
};
struct dim_cut tsr__dim_way(struct draft *draft, const struct item *it,
                            const struct tile_layout *from, const struct tile_layout *to,
                            int64_t device, int axis);
// Every device of `to` holds all it needs in `from`; *identity: and nothing else.
bool tsr__local_ok(struct draft *draft, const struct item *it, const struct tile_layout *from,
                   const struct tile_layout *to, bool *identity);
// Layout after gathering loop i of from, and the groups that gather; NULL: cannot be gathered.
const struct tile_layout *tsr__gathered(struct arena *arena, const struct tile_layout *from,
                                        int loop, struct device_group **groups, size_t *n_groups);
// A local size as a function of the global one D: (b - a) * scale - last * (F * unit - D), where
// F = ceil(D / unit), a = first * F / of, b = stop * F / of; last: it is the last part.
struct local_size {
    int64_t unit, scale;
    struct tile_units part;
};
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords);
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole);

// ---- size_text.c: sizes as the model writes them -----------------------------------------------

// The size can be had on every rank; so can all sizes of the item.
bool tsr__size_known(struct draft *draft, const tsr_dim *dim);
bool tsr__shape_known(struct draft *draft, const struct item *it);
enum arith { ARITH_ADD, ARITH_SUB, ARITH_MUL, ARITH_DIV, ARITH_MOD, ARITH_MAX, ARITH_MIN };
// Makes an int64[1] of each part of such a text. All return NULL after a failure.
struct size_maker {
    void *data;
    tsr_value *(*symbol)(void *data, struct str symbol, const struct size_source *from);
    tsr_value *(*number)(void *data, int64_t number);
    tsr_value *(*combine)(void *data, enum arith op, tsr_value *a, tsr_value *b);
};
// What the maker makes of the size; NULL: it is not known, or the maker failed.
tsr_value *tsr__size_make(struct draft *draft, const struct size_maker *maker, const tsr_dim *dim);

// ---- local_node.c: in what the node of one device differs from the whole one --------------------

int64_t tsr__place_index(const struct placement *place, int64_t device); // -1: it is not in it
// The device leaves input i of the node out, because another one adds it to the sum.
bool tsr__adds_elsewhere(const struct node_flow *nf, int64_t device, int input);
// The device does not read the value that the model has there: it has its own, or none.
bool tsr__input_replaced(struct draft *draft, const struct node_flow *nf, int64_t device,
                         int input);
// The node gives sizes of an input that is cut here: those of the whole tensor are put in its place. NULL: no such node.
const struct rule_rewrite *tsr__gives_sizes(const struct node_flow *nf);

// Of some axes of a form, the elements that each rank has, in global indices.
struct windows {
    int n_axes, axes[TILE_MAX_RANK]; // ascending
    struct dim_cut *parts;           // n_ranks x n_axes: at and n
};
int64_t tsr__windows_size(const struct windows *windows, int64_t rank); // of one axis
// A factor of which the input (-1: any) needs a window is cut.
bool tsr__window_cut(const struct node_flow *nf, int input);
// What the device at that place of the placement needs.
struct window_part tsr__window_at(const struct node_flow *nf, int64_t place, int window);
bool tsr__trims(const struct node_flow *nf); // its local nodes give more than their parts
// The rule's lists are in place of the node's own, and the numbers of one at that place of the placement.
bool tsr__lists_apply(const struct node_flow *nf);
// Axes of a reduction as this node needs them on its devices, and the attribute that has them (NULL: the second input). 0: as they stand.
int tsr__front_axes(const struct draft *draft, const struct node_flow *nf, const char **name,
                    int64_t *axes);
tsr_status tsr__window_numbers(struct arena *arena, const struct node_flow *nf, int64_t place,
                               const struct rule_list *list, int64_t **out) TSR_MUST_USE;

#endif
