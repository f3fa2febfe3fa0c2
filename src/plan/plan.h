// SPDX-License-Identifier: Apache-2.0
// plan.h - chooses a sharding for every node of a model. Candidates come from the rules, costs from
// resharding and topology. The plan has the least time within the memory of each device.
//
// Other modules call tsr_plan of tessera.h. This header has the cost functions and limits that they
// share.
#ifndef TSR_PLAN_H
#define TSR_PLAN_H

#include "base/base.h"

#define PLAN_MAX_DEVICES 16384 // largest number of devices if they are copies of a device set
#define PLAN_MAX_AT_ONCE 1024  // largest number of devices that are planned individually

// Memory of a process without its tensors, measured with ONNX Runtime 1.31 (docs/measured.md).
#define PLAN_ENGINE_BYTES ((int64_t)2 << 20)

// ---- costs in picoseconds, for graphs of single devices (node_cost.c)

struct shapes;
struct topology_groups;
struct node_cost_result {
    int64_t ps;
    double work, bytes; // number of operations; bytes read and written
    const char *type;   // type of the first input, as tsr_dtype_name returns it
    bool sized;         // all sizes are known
    bool moves;         // moving the bytes takes longer than the operations
};
// Returns the time of a node on a device, for values of these shapes. `seen` is a topology with
// measurements of similar nodes, which correct the time; NULL: no correction.
struct node_cost_result tsr__node_cost(tsr_session *session, const tsr_node *node,
                                       const struct shapes *shapes, const tsr_topology *seen,
                                       const tsr_topology_device *device);
// Returns the time of `work` operations of this kind that read and write `bytes`. Uses only the
// speeds of the device, no measurements of nodes. `type` is the type of the first input.
struct node_kind;
int64_t tsr__kind_cost(struct node_kind kind, tsr_dtype type, double work, double bytes,
                       const tsr_topology_device *device);
// True for a measured CPU: its kernels widen 16-bit constants in memory (tsr__node_widens). Devices
// that were not measured may be of any kind, so their constants are charged with their size in the
// file.
bool tsr__device_widens(const tsr_topology_device *device);
// Returns the name that the "sizes" of a topology file use for a kind of work.
const char *tsr__size_word(struct node_kind kind);
// Returns the time of a collective over the groups, including copies through device memory. `bytes`
// is the size of the full tensor.
int64_t tsr__collective_cost(tsr_topology *topology, tsr_collective what,
                             const struct topology_groups *groups, int64_t bytes);
// Returns the time of an all-to-all in each group, until the fullest device has received `bytes`.
int64_t tsr__exchange_cost(tsr_topology *topology, const struct topology_groups *groups,
                           int64_t bytes);
// Returns the time of gathering a value of `bytes` on the first device. Each of `copies` copies of
// a device set of `devices` devices has an equal share of the value.
int64_t tsr__gather_cost(tsr_topology *topology, int64_t devices, int64_t copies, int64_t bytes);
// Returns the bytes of a value; unknown sizes count as 1. Sets *sized to false if a size is
// unknown, and never to true: one flag serves many values.
int64_t tsr__sized_bytes(const struct shapes *shapes, const tsr_value *value, bool *sized);

// The result of a plan. Until tsr__plan_result makes a handle of it, the session owns its lists, up
// to the next plan. The facts count the elements of the lists.
struct tsr_plan_result {
    struct result_head head;
    tsr_plan_facts facts;
    const tsr_collective_count *collectives;
    const tsr_plan_stage *stages; // in order
    // of the explained node
    const tsr_plan_choice *choices;
    // not feasible: what uses the memory of the fullest device, largest first
    const tsr_plan_binding *bindings;
    // If the planner chooses the number of devices: one entry for each number.
    const tsr_plan_count *counts;
    // experts' plans: those that fit, the fastest first, then the others
    const tsr_plan_expert *compared;
    // If two models were planned together: the figures of each, the second model last. The cost is
    // that of one run of the first and `steps` runs of the second; all other facts are those of the
    // first.
    const tsr_plan_part *parts;
    size_t n_parts;
    size_t shared; // number of weights that both have
};

// plan.c: as tsr_plan, but fills a struct instead of making a result handle. The session owns the
// lists of the struct until the next plan.
tsr_status tsr__plan(tsr_model *model, const tsr_plan_options *options,
                     tsr_plan_result *out) TSR_MUST_USE;
// plan_result.c: creates the handle of a plan that ended with `st`. If `out` is NULL, or `st` is
// neither TSR_OK nor TSR_INFEASIBLE, only returns `st`.
tsr_status tsr__plan_result(tsr_session *session, tsr_status st, const tsr_plan_result *plan,
                            tsr_plan_result **out) TSR_MUST_USE;
// Returns TSR_OK if the handles in the options belong to the session; otherwise adds a diagnostic.
tsr_status tsr__plan_options_owned(tsr_session *session,
                                   const tsr_plan_options *options) TSR_MUST_USE;

#endif
