// SPDX-License-Identifier: Apache-2.0
// plan.h - chooses a sharding for every node of a model: candidates from the rules, prices from resharding and
// topology, the least cost under the memory of each device.
//
// Other rooms use tsr_plan of tessera.h; this header holds what is said there of its numbers.
#ifndef TSR_PLAN_H
#define TSR_PLAN_H

#include "base/base.h"

#define PLAN_USUAL_SIZE                                                                            \
    128 // of a symbolic dimension that no size is given for: for prices only, it is not cut
#define PLAN_MAX_DEVICES 16384 // in blocks that are alike
#define PLAN_MAX_AT_ONCE 1024  // where each device is looked at on its own

// What a process has besides its tensors: the engine's own. Seen with ONNX Runtime 1.31 (docs/measured.md).
#define PLAN_ENGINE_BYTES ((int64_t)2 << 20)

// ---- prices, for whoever has graphs of single devices (node.c). In picoseconds.

struct shapes;
struct topology_groups;
struct node_price {
    int64_t ps;
    double work, bytes; // operations, and what is read and written
    const char *type;   // of the first input, as tsr_dtype_name has it
    bool sized;         // all sizes were known
};
// A node on that device, whose values have those sizes. seen: what was seen of nodes like it counts; NULL: nothing was.
struct node_price tsr__price_node(struct arena *arena, const tsr_node *node,
                                  const struct shapes *shapes, const tsr_topology *seen,
                                  const tsr_topology_device *device);
// A node of that kind of work by the speeds of the device alone, with the type of its first input; work and bytes as in node_price.
struct node_kind;
int64_t tsr__price_kind(struct node_kind kind, tsr_dtype type, double work, double bytes,
                        const tsr_topology_device *device);
// A CPU that was measured: its kernels turn constants of 16 bits into wider ones (tsr__node_widens), which then lie in memory. Devices
// that nobody measured may be of any kind, and count constants as they are.
bool tsr__device_widens(const tsr_topology_device *device);
// The word of a kind in the sizes of a topology.
const char *tsr__size_word(struct node_kind kind);
// A collective over the groups, copies through the memory of its devices included; bytes: of the whole tensor.
int64_t tsr__price_collective(tsr_topology *topology, tsr_collective what,
                              const struct topology_groups *groups, int64_t bytes);
// Everybody with everybody in a group, until the fullest device has that many bytes.
int64_t tsr__price_exchange(tsr_topology *topology, const struct topology_groups *groups,
                            int64_t bytes);
// Copies of a block of devices each have a share of a value of that many bytes, and the first device gets it whole.
int64_t tsr__price_gather(tsr_topology *topology, int64_t devices, int64_t copies, int64_t bytes);
// Bytes of a value; sizes that are not known count 1.
int64_t tsr__price_bytes(const struct shapes *shapes, const tsr_value *value, bool *sized);

// TSR_OK if the handles in the options belong to the session; else a finding. Options of an older caller are shorter.
tsr_status tsr__plan_options_owned(tsr_session *session,
                                   const tsr_plan_options *options) TSR_MUST_USE;

// Adds to the sizes those that the configuration (NULL: the only one) was planned for and that are not among them. False: no memory.
bool tsr__plan_sizes(struct arena *arena, const tsr_model *model, const char *config,
                     const tsr_dim_size **sizes, size_t *n);

#endif
