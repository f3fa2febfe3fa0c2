// SPDX-License-Identifier: Apache-2.0
// profile.h - between the files that measure a model: what its nodes took, as the engine's profile
// of a run says it.
#ifndef TSR_VERIFY_PROFILE_H
#define TSR_VERIFY_PROFILE_H

#include "simulate/simulate.h"

// A node of the engine, which may stand for several of the graph.
struct profile_node {
    int rank;
    const char *name, *op; // as the engine calls it
    double seconds;        // the least of all runs
};
struct profile {
    VEC(struct profile_node) nodes;
    struct map by_name; // of rank and name
};
// Reads the trace of a run (runtime/trace.c). Texts are copied into the arena.
tsr_status tsr__profile_read(tsr_session *session, struct arena *arena, const char *path,
                             struct profile *out) TSR_MUST_USE;
// Fills `seen` of the tasks of a device with what its nodes took, each less `besides` (the
// profile's own cost). Returns the seconds of all nodes of that rank, those that belong to no task
// included.
double tsr__profile_share_out(const struct profile *profile, struct sim *sim, int rank,
                              double besides);

#endif
