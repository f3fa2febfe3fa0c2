// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of planning.
#ifndef TSR_PARTITION_STEPS_INTERNAL_H
#define TSR_PARTITION_STEPS_INTERNAL_H

#include "partition/steps/steps.h"

// ports.c: finds for each symbol the model input that has it (draft->sizes).
void tsr__draft_find_sizes(struct draft *draft);

// wants.c: notes a reader of the value and its layout (NULL: unknown); the same for all inputs of a
// node.
void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout);
void tsr__node_wants(struct draft *draft, const struct node_flow *nf);

// convert.c: the form of an item in that layout, planned if it does not exist. NULL: failed,
// diagnostic added.
struct form *tsr__draft_convert(struct draft *draft, struct item *it,
                                const struct tile_layout *want, const tsr_node *reader);
// The same without communication, or NULL.
struct form *tsr__draft_convert_local(struct draft *draft, struct item *it,
                                      const struct tile_layout *want);
// lower.c: the same by collectives that fit exactly, from that form. pending: the node whose groups
// hold partial sums. NULL: not possible, nothing is planned; or out of memory.
struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending, const struct tile_layout *want);
// The number of collectives that it takes; 0: not possible. Plans nothing.
int tsr__draft_lowered_steps(struct draft *draft, const struct form *from,
                             const struct node_flow *pending, const struct tile_layout *want);
// A form with the same bits on all devices of the layout: those of the first device.
struct form *tsr__draft_equal(struct draft *draft, struct item *it, const struct tile_layout *on,
                              const tsr_node *reader);
// sizes.c: the shape of a value as an item; the same summed over all devices of the group, for a
// sharded value whose shape no rank can compute.
struct item *tsr__shape_item(struct draft *draft, struct item *it);
struct form *tsr__draft_count(struct draft *draft, struct form *from, const struct tile_layout *on,
                              struct device_group *group);

// turns.c: the flow of one turn; the node's own flow if there is only one. *done: there are no more
// turns. NULL: out of memory.
const struct node_flow *tsr__turn_flow(struct draft *draft, const struct node_flow *nf, size_t turn,
                                       bool *done);
// The shards that the turns produced, each as a separate item, in the order of `sharding`.
// NULL: no turn produced the item, or out of memory.
struct item **tsr__turn_shards(struct draft *draft, struct item *it,
                               const struct tile_layout **sharding);

// windows.c: the windows of its input that the node needs. NULL: failed.
struct form *tsr__draft_windows(struct draft *draft, const struct node_flow *nf, struct item *it,
                                int input);

// relayout.c: the value in these windows, produced by a copy of its producer. NULL: not possible,
// or out of memory.
struct form *tsr__draft_relayout(struct draft *draft, struct item *it,
                                 const struct tile_layout *base, const struct windows *windows);

// body.c: enters a new scope for the body. Returns the values that are needed in it, by value id.
// NULL: failed, perhaps inside the scope.
unsigned char *tsr__body_open(struct draft *draft, const struct step *st, struct body *body);
// Converts the outputs of the body, at the end of its steps.
bool tsr__body_outputs(struct draft *draft, const struct step *st, struct body *body);
// Plans the trip count and the condition, the same on all devices.
bool tsr__body_steer(struct draft *draft, struct step *st);

// live.c: marks what each rank needs, then numbers the communications.
void tsr__draft_live(struct draft *draft);

#endif
