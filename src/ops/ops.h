// SPDX-License-Identifier: Apache-2.0
// ops.h - the communication operators (domain ai.tessera) as custom operators of ONNX Runtime.
//
// Each rank's engine session has its own operators, bound to the rank's endpoint. Nodes are not
// trusted: every attribute is checked when the kernel is created. All failures become an OrtStatus
// that names the node.
#ifndef TSR_OPS_H
#define TSR_OPS_H

#include "engine/engine.h"
#include "transport/transport.h"

#define OPS_DOMAIN "ai.tessera"

// The operators of one rank, registered with the options of its engine session.
struct ops;

// Creates the operators and adds their domain to the options. `minor` is the minor version of ONNX
// Runtime (1.17: 17). If endpoint is NULL, the operators are known, but the creation of every
// kernel fails with the reason `why`. Operators and endpoint must outlive the session. Returns NULL
// and sets *out, or returns the error.
OrtStatus *tsr__ops_add(const OrtApi *api, int minor, OrtSessionOptions *options,
                        struct endpoint *endpoint, const char *why, struct ops **out);
void tsr__ops_free(struct ops *ops); // NULL is allowed
// Returns the cause of the last failed run, with more details than the OrtStatus; or NULL.
const struct comm_trouble *tsr__ops_trouble(const struct ops *ops);

// One communication of this rank in a trace. The kernels own the strings.
struct ops_event {
    const char *op, *node;
    int64_t id;
    uint64_t run, start_ns, end_ns; // CLOCK_REALTIME, like ONNX Runtime's profile
    int64_t first;                  // first rank of the group
    int n_group;
    tsr_dtype type;
};
#define OPS_MAX_EVENTS (1 << 20) // later ones are dropped
void tsr__ops_trace(struct ops *ops);
const struct ops_event *tsr__ops_events(const struct ops *ops, size_t *n);
// Returns group i of this rank's nodes, without duplicates; false past the last. Groups live as
// long as the operators.
struct ops_group {
    const int64_t *ranks;
    int n;
};
bool tsr__ops_group_at(const struct ops *ops, size_t i, struct ops_group *out);

#endif
