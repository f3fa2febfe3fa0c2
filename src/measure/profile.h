// SPDX-License-Identifier: Apache-2.0
// profile.h - shared by the files that measure a model: times of its nodes from the engine's
// profile.
#ifndef TSR_VERIFY_PROFILE_H
#define TSR_VERIFY_PROFILE_H

#include "simulate/simulate.h"

// A node of the engine, which may replace several nodes of the graph.
struct profile_node {
    int rank;
    const char *name, *op; // as named by the engine
    double seconds;        // the minimum of all runs
};
struct profile {
    VEC(struct profile_node) nodes;
    struct map by_name; // key: rank and name
};
// Reads the trace of a run (runtime/trace.c). Texts are copied into the arena.
tsr_status tsr__profile_read(tsr_session *session, struct arena *arena, const char *path,
                             struct profile *out) TSR_MUST_USE;
// Sets `seen` of the tasks of a device to the measured times of its nodes, each minus `overhead`
// (the overhead of the profile). Returns the seconds of all nodes of that rank, including those
// without a task.
double tsr__profile_share_out(const struct profile *profile, struct sim *sim, int rank,
                              double overhead);

#endif
