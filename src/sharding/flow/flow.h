// SPDX-License-Identifier: Apache-2.0
// flow.h - the state of a flow that is being computed. For propagate.c, which runs it several
// times, and check.c, which needs only some of its diagnostics.
#ifndef TSR_SHARDING_FLOW_H
#define TSR_SHARDING_FLOW_H

#include "sharding/layouts/internal.h"

enum {
    REPORT_UNSHARDED = 1,     // nodes that run unsharded although they are annotated as sharded
    REPORT_RESHARDS = 4,      // values that must be resharded
    REPORT_REPEATED_WORK = 8, // work that several devices repeat
    REPORT_NO_ERRORS = 16,    // suppress errors
};

// Pipeline stages of a configuration (stage_devices.c).
struct stage_of {
    int place; // index in the list of stages; -1: none
    bool own;  // the node itself has a stage
};
struct stages {
    size_t n;                 // 0: the configuration has no stages
    int64_t *numbers;         // stage numbers, ascending
    int64_t n_all;            // number of devices
    bool **on;                // by index of the stage and device: the stage runs on it
    struct stage_of *of_node; // by node id
};
// Finds the stages and their devices. Returns false if out of memory, or if there are too many
// stages (with an error).
bool tsr__stages_find(struct arena *arena, tsr_model *model, const tsr_config *config,
                      struct stages *stages);
// Returns the devices on which a node may run, or NULL for all. With explicit_specs its specs
// decide, unless it also has its own stage.
const bool *tsr__stages_devices(const struct stages *stages, const tsr_node *node,
                                bool explicit_specs);

// A layout to which a resharding of a value was reported. The list prevents repeated reports.
struct flow_noted {
    const struct tile_layout *layout;
    struct flow_noted *next;
};
struct flow_work {
    struct flow *flow;
    struct arena *base;   // for data that is the same in every run
    struct arena *arena;  // for results; may be changed between runs
    struct arena scratch; // for one node
    int64_t n_all;
    int64_t *all; // 0 .. n_all - 1
    struct stages stages;
    struct flow_noted **noted;      // by value id: layouts that were reported
    struct tile_layout **whole_all; // by rank: the layout that is replicated on all devices
    // By value id: a layout that a reader requests, or NULL. The output gets it if possible.
    struct tile_layout **requests;
    int report;       // REPORT_...
    bool keep;        // the node must not be replaced by simpler ones
    bool keep_empty;  // plan shards without elements too, as specs state them
    bool formal;      // an input without a spec is needed in the layout of its producer
    bool trial;       // one node is tried: layouts of values do not change
    bool *within;     // by device: whether it runs the current body; NULL: all do
    size_t body_work; // number of nodes of bodies that were visited
    // by value id: lists that must be replicated everywhere; NULL: the model has no lists
    bool *kept_whole;
    bool keeps_more; // another such list was found
};
// True if the formalism requires the input in the layout of its producer. Constants are stored as
// they are needed. A value that another pipeline stage leaves unsharded may go to any device.
bool tsr__inherits_spec(const struct flow *flow, const tsr_value *value);
// Reads shapes and devices. Reports its own errors. Returns false after a failure.
bool tsr__flow_start(struct flow_work *work, struct arena *arena, tsr_model *model,
                     const tsr_config *config);
// Places all nodes from the first on; the result is in work->flow. `keep`: see tsr__flow_run.
bool tsr__flow_forward(struct flow_work *work, int report, const bool *keep);
// Places one node, given the layouts of its inputs.
bool tsr__flow_node(struct flow_work *work, tsr_node *node, struct node_flow *nf);
// held.c: true if every device of `need` already has its elements in `have`: along each dimension,
// `have` is unsharded or sharded the same.
bool tsr__flow_held(const struct tile_layout *have, const struct tile_layout *need);
// True if the node is in a body and has another stage than the node of the main graph that has the
// body. Its stage has no effect.
bool tsr__stage_ignored(const struct stages *stages, const tsr_node *node,
                        const tsr_config *config);
// misplaced.c: sets nf->replicated, and reports it if work->report asks for it, if the node uses a
// tensor on devices where its spec does not place it, or if its stage has no effect. Also if its
// bodies run unsharded, but nodes in them are annotated otherwise. `in` and `out` are the layouts
// of the specs, NULL: none. Specs that shard a tensor of the node are not checked.
void tsr__flow_misplaced(struct flow_work *work, struct node_flow *nf,
                         struct tile_layout *const *in, struct tile_layout *const *out);
// Returns the layout of a value of this rank that is replicated on all devices.
struct tile_layout *tsr__flow_whole_all(struct flow_work *work, int rank);
// Marks a list to be replicated everywhere from the next run on. Does nothing for values that are
// not lists.
void tsr__flow_keep_list(struct flow_work *work, const tsr_value *value);
// True if every device of the placement has one shard of the tensor, and no other device has any.
bool tsr__placement_has_each(const struct placement *placement, const struct tile_layout *layout);
// Returns the layout that is replicated on the devices of a placement.
struct tile_layout *tsr__flow_whole(struct flow_work *work, int rank,
                                    const struct placement *placement);

// ---- flow_body.c

// A node with bodies, and the explicit layouts of its inputs and outputs (NULL: none).
struct flow_ask {
    tsr_node *node;
    struct node_flow *nf; // already placed: its devices run the bodies
    struct tile_layout **in, **out;
    bool *within;    // by device: whether it is in the placement
    const char *why; // reason why a requested sharding is not possible
    // reason why a node in bodies that run unsharded does not follow its annotation; NULL: none
    const char *ignored;
};
// Visits the bodies and sets control, bodies, inputs and outputs of the node. If nothing can be
// sharded they stay empty: the node then runs unchanged, on full values. Returns false after a
// failure.
bool tsr__flow_bodies(struct flow_work *work, struct flow_ask *ask);
// Marks the devices that specs inside the node's bodies name.
void tsr__flow_body_owners(const struct flow_work *work, struct arena *arena, const tsr_node *node,
                           bool *on);

// As tsr__flow_new, but an input without a spec has the layout of its producer.
struct flow *tsr__flow_formal(struct arena *arena, tsr_model *model, const tsr_config *config);
// As tsr__flow_new, after shardings were also propagated backwards and to other readers
// (propagate.c).
struct flow *tsr__flow_propagated(struct arena *arena, tsr_model *model, const tsr_config *config);

#endif
