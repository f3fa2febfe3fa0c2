// SPDX-License-Identifier: Apache-2.0
// ops.h - our communication operators (domain ai.tessera) as custom operators of ONNX Runtime, on a
// transport.
//
// Each rank's session gets operators of its own, bound to that rank's endpoint. Nodes are
// untrusted: every attribute is checked when the kernel is made. All failures become an OrtStatus
// that names the node.
#ifndef TSR_OPS_H
#define TSR_OPS_H

#include "engine/engine.h"
#include "transport/transport.h"

#define OPS_DOMAIN "ai.tessera"

// The operators of one rank, registered with the options of one session.
struct ops;

// Makes the operators and adds their domain to the options. minor is the runtime's (1.17: 17). With
// endpoint NULL models can be loaded but not run: why says the reason, which every kernel then
// gives. Must outlive the session; the endpoint must outlive it too. Returns NULL and *out, or ONNX
// Runtime's word on what failed.
OrtStatus *tsr__ops_add(const OrtApi *api, int minor, OrtSessionOptions *options,
                        struct endpoint *endpoint, const char *why, struct ops **out);
void tsr__ops_free(struct ops *ops); // NULL is fine
// What stopped the last run, or NULL: says more than ONNX Runtime's status.
const struct comm_trouble *tsr__ops_trouble(const struct ops *ops);

// One communication of this rank, while traced. Texts belong to the kernels.
struct ops_event {
    const char *op, *node;
    int64_t id;
    uint64_t run, start_ns, end_ns; // of CLOCK_REALTIME, as ONNX Runtime's profile is
    int64_t first;                  // rank of the group
    int n_group;
    tsr_dtype type;
};
#define OPS_MAX_EVENTS (1 << 20) // later ones are not kept
void tsr__ops_trace(struct ops *ops);
const struct ops_event *tsr__ops_events(const struct ops *ops, size_t *n);
// The groups that this rank's nodes communicate with, each once; false past the last. They live as long as the operators.
struct ops_group {
    const int64_t *ranks;
    int n;
};
bool tsr__ops_group_at(const struct ops *ops, size_t i, struct ops_group *out);

#endif
