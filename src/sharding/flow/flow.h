// SPDX-License-Identifier: Apache-2.0
// flow.h - private to the flow: a flow that is under way, for those who run it more than once
// (propagate.c) or want to hear of it only in part (check.c).
#ifndef TSR_SHARDING_FLOW_H
#define TSR_SHARDING_FLOW_H

#include "sharding/layouts/internal.h"

enum {
    SAY_UNCUT = 1,         // nodes that run whole although they are annotated to be cut
    SAY_MOVES = 4,         // values that lie otherwise than they are needed
    SAY_REPEATED_WORK = 8, // work that several devices do
    SAY_NO_ERROR = 16,     // whatever hinders the flow
};

// Pipeline stages of a configuration (stage_devices.c).
struct stage_of {
    int place; // in line; -1: none
    bool own;  // the node says so itself
};
struct stages {
    size_t n;         // 0: the configuration has none
    int64_t *numbers; // ascending
    int64_t n_all;
    bool **on;                // by place: devices
    struct stage_of *of_node; // by node id
};
// False: out of memory, too many stages, or a stage without a device (error).
bool tsr__stages_find(struct arena *arena, tsr_model *model, const tsr_config *config,
                      struct stages *stages);
// A spec of the entry names a device other than `device`.
bool tsr__names_other_device(const tsr_node_config *nc, int64_t device);
// Reports that `stage` is beyond the list of device names.
void tsr__diag_stage_beyond(tsr_session *session, const struct place *at, int64_t stage,
                            const tsr_config *config);
// Devices that a node may run on; NULL: all. explicit_specs: its specs decide, unless it also has
// its own stage.
const bool *tsr__stages_devices(const struct stages *stages, const tsr_node *node,
                                bool explicit_specs);

struct flow_noted {
    const struct tile_layout *layout;
    struct flow_noted *next;
};
struct flow_work {
    struct flow *flow;
    struct arena *base;          // of what is the same in every run
    struct arena *arena;         // of results; may be changed between runs
    struct arena scratch;        // of one node
    const struct shapes *shapes; // those of the model if they are known before the start; else NULL
    int64_t n_all;
    int64_t *all; // 0 .. n_all - 1
    struct stages stages;
    struct flow_noted **noted;      // by value id: forms that were mentioned
    struct tile_layout **whole_all; // by rank: whole on all devices
    struct tile_layout *
        *wishes;      // by value id: forms that outputs take if nothing speaks against it; or NULL
    int say;          // SAY_...
    bool keep;        // the node must stay what it is
    bool formal;      // an input without a spec is needed as its producer left it
    bool trial;       // of one node: the values stay where they are
    bool *within;     // by device: those that run the current body; NULL: all
    const bool *told; // by node id: already reported as replicated; NULL: none
    size_t body_work; // nodes of bodies that were followed
    bool *kept_whole; // by value id: lists that must lie whole everywhere; NULL: there are no lists
    bool keeps_more;  // one more was found
};
// True if the formalism has the input sharded as its producer left it. Constants are stored as they
// are needed; what another pipeline stage hands over unsharded may go to any device.
bool tsr__inherits_spec(const struct flow *flow, const tsr_value *value);
// Reads shapes and devices; adds its own diagnostics. False: failed.
bool tsr__flow_start(struct flow_work *work, struct arena *arena, tsr_model *model,
                     const tsr_config *config);
// All nodes from the first, into work->flow. keep: see tsr__flow_run.
bool tsr__flow_forward(struct flow_work *work, int say, const bool *keep);
// One node, given how its inputs lie.
bool tsr__flow_node(struct flow_work *work, tsr_node *node, struct node_flow *nf);
// held.c: true if every device of `need` has what it needs of `have` already: the same cut or no
// cut, along each dimension.
bool tsr__flow_held(const struct tile_layout *have, const struct tile_layout *need);
// Whole on all devices.
struct tile_layout *tsr__flow_whole_all(struct flow_work *work, int rank);
// The list must lie whole everywhere from the next run on; nothing changes for what is no list.
void tsr__flow_keep_list(struct flow_work *work, const tsr_value *value);
// Whole on the devices of a placement.
struct tile_layout *tsr__flow_whole(struct flow_work *work, int rank,
                                    const struct placement *placement);

// ---- flow_body.c

// A node with bodies, and what is explicit about its slots (NULL entries: nothing).
struct flow_ask {
    tsr_node *node;
    struct node_flow *nf; // placed: its devices run the bodies
    struct tile_layout **in, **out;
    bool *within;    // by device: those of the placement
    const char *why; // a cut that was asked for and cannot be had
};
// Follows the bodies and sets control, bodies, inputs and outputs of the node. Where there is
// nothing to divide, or no way, they stay empty: the node runs as it stands, on whole values.
// False: failed.
bool tsr__flow_bodies(struct flow_work *work, struct flow_ask *ask);
// Marks the devices that specs inside of the node's bodies name.
void tsr__flow_body_owners(const struct flow_work *work, struct arena *arena, const tsr_node *node,
                           bool *on);

// The flow of tsr__flow_new where missing specs of inputs are those of their producers.
struct flow *tsr__flow_formal(struct arena *arena, tsr_model *model, const tsr_config *config);
// The flow of tsr__flow_new after shardings went backwards and sideways too (propagate.c).
struct flow *tsr__flow_propagated(struct arena *arena, tsr_model *model, const tsr_config *config);

#endif
