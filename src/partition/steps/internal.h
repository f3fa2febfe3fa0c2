// SPDX-License-Identifier: Apache-2.0
// internal.h - functions that the files of planning share.
#ifndef TSR_PARTITION_STEPS_INTERNAL_H
#define TSR_PARTITION_STEPS_INTERNAL_H

#include "partition/steps/steps.h"

// ports.c: finds for each symbol a model input with a dimension of that name (draft->sizes).
void tsr__draft_find_sizes(struct draft *draft);

// steps.c: records that a node reads the value in this layout (NULL: unknown).
void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout);

// convert.c: returns the form of an item in that layout and plans it if it does not exist. Returns
// NULL after a failure, with a diagnostic.
struct form *tsr__draft_convert(struct draft *draft, struct item *it,
                                const struct tile_layout *want, const tsr_node *reader);
// Returns a form of which each device of `want` can slice its shard, without planning the slice.
// NULL: no form has these shards, or out of memory.
struct form *tsr__draft_source(struct draft *draft, struct item *it,
                               const struct tile_layout *want);
// As tsr__draft_convert, but returns NULL if communication would be necessary.
struct form *tsr__draft_convert_local(struct draft *draft, struct item *it,
                                      const struct tile_layout *want);
// lower.c: finds the operators that turn the form into the layout `want`, or those that reduce the
// partial sums of a node for their readers. Both return false if out of memory.
bool tsr__draft_operators(struct draft *draft, const struct form *from,
                          const struct tile_layout *want, struct reshard_operators *out);
bool tsr__draft_sum(struct draft *draft, const struct form *from, const struct node_flow *nf,
                    struct reshard_operators *out);
// Plans these operators and returns the last form. Returns NULL if there are none or if out of
// memory.
struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending,
                              const struct reshard_operators *operators);
// Returns a form with the same bits on all devices of the layout: the first device broadcasts its
// value.
struct form *tsr__draft_same_bits(struct draft *draft, struct item *it,
                                  const struct tile_layout *on, const tsr_node *reader);
// Plans a sum over the devices of the group that gives the full shape of a sharded value. It is for
// values whose shape no rank can compute alone.
struct form *tsr__draft_count(struct draft *draft, struct form *from, const struct tile_layout *on,
                              struct device_group *group);

// turns.c: returns the flow of turn number `turn` (if a device has several shards, it computes them
// in turns). If there is only one turn, this is the node's own flow. *done is set after the last
// turn. Returns NULL if out of memory.
const struct node_flow *tsr__turn_flow(struct draft *draft, const struct node_flow *nf, size_t turn,
                                       bool *done);
// Returns the shards that the turns produced, each as a separate item, in the order of `sharding`.
// Returns NULL if no turn produced the item or if out of memory.
struct item **tsr__turn_shards(struct draft *draft, struct item *it,
                               const struct tile_layout **sharding);

// windows.c: returns a form with the windows of its input that the node needs. Returns NULL after a
// failure.
struct form *tsr__draft_windows(struct draft *draft, const struct node_flow *nf, struct item *it,
                                int input);

// relayout.c: returns the value in these windows, computed by a copy of its producer. Returns NULL
// if that is not possible, or if out of memory.
struct form *tsr__draft_relayout(struct draft *draft, struct item *it,
                                 const struct tile_layout *base, const struct windows *windows);

// body.c: enters a new scope for the body. Returns an array, indexed by value id, that marks the
// values that the body's outputs need. Returns NULL after a failure; the new scope may then be the
// current one.
unsigned char *tsr__body_open(struct draft *draft, const struct step *st, struct body *body);
// Converts the outputs of the body at the end of its steps.
bool tsr__body_outputs(struct draft *draft, const struct step *st, struct body *body);
// Plans the trip count and the condition so that they are the same on all devices.
bool tsr__body_plan_control(struct draft *draft, struct step *st);

// live.c: marks the forms that each rank needs, then numbers the communications.
void tsr__draft_live(struct draft *draft);

#endif
