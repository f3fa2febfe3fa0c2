// SPDX-License-Identifier: Apache-2.0
// step.h - the node that the flow is placing. flow.c places it; flow_lists.c decides about lists of
// tensors.
#ifndef TSR_SHARDING_STEP_H
#define TSR_SHARDING_STEP_H

#include "sharding/flow/flow.h"

// The node that is being placed. `in` and `out` have the layouts of its specs, by input and output;
// take_lists may replace them for lists of tensors. explicit_cut is set if a spec shards its
// tensor.
struct node_context {
    struct flow_work *work;
    tsr_node *node;
    struct node_flow *nf;
    size_t n_in, n_out;
    struct tile_layout **in, **out;           // explicit specs
    struct tile_layout **spec_in, **spec_out; // the same, but lists keep the layouts of their specs
    // By output: the layout that readers get if it is not the one that the node gives: that of the
    // spec, or all devices that have a part of a sum, if fewer compute it. NULL: none.
    struct tile_layout **due;
    bool explicit_in, explicit_out, explicit_cut;
    const bool *stage; // devices that the node may run on; NULL: all
    bool bound;        // the node must run where one of its lists is stored
};

static inline const tsr_value *step_slot(const struct node_context *step, bool out, size_t i)
{
    return out ? tsr_node_output(step->node, i) : tsr_node_input(step->node, i);
}

// True if every owner of a shard may run the node. If the node has no stage, every device may.
bool tsr__step_in_stage(const struct node_context *step, const struct tile_layout *layout);
// Records why the node runs unsharded, and reports it if that is wanted. infer.c and quality() need
// the reason even if it is not reported. The first reason is kept.
void tsr__step_unsharded(struct node_context *step, const char *why);
// Returns the layout that the placement gives to input or output i. If the node runs unsharded, the
// layout is replicated on its devices. Returns NULL if there is no value or if out of memory.
struct tile_layout *tsr__step_layout(struct node_context *step, bool out, size_t i);

// ---- flow_lists.c Sets the layouts of inputs that are lists of tensors: those in which the lists
// are stored, because lists are not resharded inside a stage.
void tsr__step_take_lists(struct node_context *step);
// Marks lists (work->kept_whole) that are not stored in the layout that the node needs. In the next
// run of the flow, the producer of a marked list replicates it. This may mark lists that the
// producer reads.
void tsr__step_keep_lists(struct node_context *step);
// True if the node produces a list that must be replicated everywhere.
bool tsr__step_produces_kept(const struct node_context *step);
// True if the placement needs a shard of a list that must be replicated everywhere. Specs of the
// node's tensors can cause this. Example: the result of ConcatFromSequence has the spec {1,2}.
bool tsr__step_reads_part_of_kept(struct node_context *step);
// True if every list that the node reads or produces can be transferred between stages.
bool tsr__step_lists_move(const struct node_context *step);

#endif
