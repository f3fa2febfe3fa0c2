// SPDX-License-Identifier: Apache-2.0
// plan.h - chooses a sharding for every node of a model: candidates from the rules, costs from
// resharding and topology, least time within the memory of each device.
//
// Other modules call tsr_plan of tessera.h. This header has the cost functions and limits that they
// share.
#ifndef TSR_PLAN_H
#define TSR_PLAN_H

#include "base/base.h"

// Size of a symbolic dimension that the caller gave no size for. It is used for costs only, and the
// dimension is not sharded.
#define PLAN_USUAL_SIZE  128
#define PLAN_MAX_DEVICES 16384 // as copies of a device set
#define PLAN_MAX_AT_ONCE 1024  // as individual devices

// Memory of a process besides its tensors, measured with ONNX Runtime 1.31 (docs/measured.md).
#define PLAN_ENGINE_BYTES ((int64_t)2 << 20)

// ---- costs in picoseconds, for graphs of single devices (node_cost.c)

struct shapes;
struct topology_groups;
struct node_price {
    int64_t ps;
    double work, bytes; // operations; bytes read and written
    const char *type;   // type of the first input, as tsr_dtype_name returns it
    bool sized;         // all sizes are known
};
// Time of a node on a device, for values of those sizes. Measurements of similar nodes in `seen`
// are used; NULL: none.
struct node_price tsr__price_node(struct arena *arena, const tsr_node *node,
                                  const struct shapes *shapes, const tsr_topology *seen,
                                  const tsr_topology_device *device);
// The same for a kind of work, from the speeds of the device alone. `type` is that of the first
// input.
struct node_kind;
int64_t tsr__price_kind(struct node_kind kind, tsr_dtype type, double work, double bytes,
                        const tsr_topology_device *device);
// True for a measured CPU, whose kernels widen 16-bit constants in memory (tsr__node_widens).
// Devices that were not measured may be of any kind; their constants count as they are.
bool tsr__device_widens(const tsr_topology_device *device);
// The name of a kind of work in the sizes of a topology.
const char *tsr__size_word(struct node_kind kind);
// Time of a collective over the groups, with copies through device memory. bytes: of the full
// tensor.
int64_t tsr__price_collective(tsr_topology *topology, tsr_collective what,
                              const struct topology_groups *groups, int64_t bytes);
// Time of an all-to-all in each group, until the fullest device has received that many bytes.
int64_t tsr__price_exchange(tsr_topology *topology, const struct topology_groups *groups,
                            int64_t bytes);
// Time of gathering a value of that many bytes on the first device, if each copy of a device set
// has a share of it.
int64_t tsr__price_gather(tsr_topology *topology, int64_t devices, int64_t copies, int64_t bytes);
// Bytes of a value; unknown sizes count as 1.
int64_t tsr__price_bytes(const struct shapes *shapes, const tsr_value *value, bool *sized);

// Makes the handle of a plan that ended with `st` from what the session keeps of it. Without `out`,
// and with a status other than TSR_OK and TSR_INFEASIBLE, it only returns `st`. (plan_result.c)
tsr_status tsr__plan_result(tsr_session *session, tsr_status st, const tsr_plan_summary *summary,
                            tsr_plan_result **out) TSR_MUST_USE;
// TSR_OK if the handles in the options belong to the session; else a diagnostic is added.
tsr_status tsr__plan_options_owned(tsr_session *session,
                                   const tsr_plan_options *options) TSR_MUST_USE;

// Adds the sizes that the configuration (NULL: the only one) was planned for, unless the caller
// gave others. False: out of memory.
bool tsr__plan_sizes(struct arena *arena, const tsr_model *model, const char *config,
                     const tsr_dim_size **sizes, size_t *n);

#endif
