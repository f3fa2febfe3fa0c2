// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files that draft the steps.
#ifndef TSR_PARTITION_STEPS_INTERNAL_H
#define TSR_PARTITION_STEPS_INTERNAL_H

#include "partition/steps/steps.h"

// ports.c: finds for each symbol the model input that it is read from (draft->sizes).
void tsr__draft_find_sizes(struct draft *draft);

// wants.c: somebody reads the value in that layout (NULL: in one that is not known here).
void tsr__draft_want(struct draft *draft, const tsr_value *value, const struct tile_layout *layout);
void tsr__node_wants(struct draft *draft, const struct node_flow *nf); // the same for all it reads

// convert.c: the form of an item in that layout, planned if it is not there. NULL: failed, finding
// added.
struct form *tsr__draft_convert(struct draft *draft, struct item *it,
                                const struct tile_layout *want, const tsr_node *reader);
// The same without communication, or NULL.
struct form *tsr__draft_free(struct draft *draft, struct item *it, const struct tile_layout *want);
// lower.c: the same by collectives that fit exactly, from that form (pending: of which the node's
// groups hold parts of the sum). NULL: they do not suffice, nothing is planned; or out of memory.
struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending, const struct tile_layout *want);
// How many collectives that takes; 0: they do not suffice. Nothing is planned.
int tsr__draft_lowered_steps(struct draft *draft, const struct form *from,
                             const struct node_flow *pending, const struct tile_layout *want);
// A form of its own that has the same bits on all devices of the layout: what the first of them has.
struct form *tsr__draft_equal(struct draft *draft, struct item *it, const struct tile_layout *on,
                              const tsr_node *reader);
// sizes.c: the shape of a value as a value of its own; counted and summed up, where it is cut and no
// rank can compute it, on all devices of the group.
struct item *tsr__shape_item(struct draft *draft, struct item *it);
struct form *tsr__draft_count(struct draft *draft, struct form *from, const struct tile_layout *on,
                              struct device_group *group);

// turns.c: a node of which some device works on several parts runs once for each. The flow of one turn, which is that of
// the node where there is only one; *done: there are no more turns. NULL: out of memory.
const struct node_flow *tsr__turn_flow(struct draft *draft, const struct node_flow *nf, size_t turn,
                                       bool *done);
// The shards that the turns produced, each as an item of its own, in the order of `sharding`.
// NULL: no turn produced the item, or out of memory.
struct item **tsr__turn_shards(struct draft *draft, struct item *it,
                               const struct tile_layout **sharding);

// windows.c: the windows that the node needs of its input. NULL: failed.
struct form *tsr__draft_windows(struct draft *draft, const struct node_flow *nf, struct item *it,
                                int input);

// relayout.c: the value made in these windows by a copy of its maker; NULL: it cannot be, or out of memory.
struct form *tsr__draft_relayout(struct draft *draft, struct item *it,
                                 const struct tile_layout *base, const struct windows *windows);

// body.c: nodes with bodies that are cut. Makes a scope for the body and enters it; what it gives is needed (by value
// id). NULL: failed, perhaps inside.
unsigned char *tsr__body_open(struct draft *draft, const struct step *st, struct body *body);
// At the end of its steps: brings its outputs into the layouts that they leave it in.
bool tsr__body_outputs(struct draft *draft, const struct step *st, struct body *body);
// Outside: what decides about turns and branches, the same on all devices.
bool tsr__body_steer(struct draft *draft, struct step *st);

// live.c: what each rank must have, backwards from the outputs; then the numbers of communications.
void tsr__draft_live(struct draft *draft);

#endif
