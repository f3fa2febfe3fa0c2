// SPDX-License-Identifier: Apache-2.0
// internal.h - what the files of this room share: building, routes, schedules.
#ifndef TSR_TOPOLOGY_INTERNAL_H
#define TSR_TOPOLOGY_INTERNAL_H

#include "topology/topology.h"

// An empty topology of n devices with the numbers of the default table; NULL: no memory.
tsr_topology *tsr__topology_new(tsr_session *s, int n);
// Adds a link; latency and bandwidth 0 mean the default's.
bool tsr__topology_link(tsr_topology *t, int from, int to, double latency, double bandwidth);
// Sorts the links and warns about what is odd. After the last link, before anything else.
tsr_status tsr__topology_finish(tsr_topology *t, bool listed) TSR_MUST_USE;

// "ring:4", "hosts:2x8"; TSR_MALFORMED with one finding for what is none of them.
tsr_status tsr__topology_make(tsr_session *s, struct str kind, struct str sizes,
                              tsr_topology **out) TSR_MUST_USE;

// Links on the way from a to b, last first; -1: there is none, -2: no memory.
int tsr__topology_path(tsr_topology *t, int from, int to, int *links, int room);
#define TOPOLOGY_MAX_HOPS 512

// ---- schedules: steps of messages, sent to whoever listens

struct listener {
    void *data;
    void (*message)(void *data, int from, int to, double bytes);
    void (*step_ends)(void *data);
};
// One algorithm for one collective; false: not for groups of this kind (nothing was sent).
struct algorithm {
    const char *name;
    enum tsr_collective what;
    bool (*schedule)(tsr_topology *t, const struct topology_groups *g, double bytes,
                     const struct listener *to);
};
extern const struct algorithm tsr__algorithms[];
extern const size_t tsr__n_algorithms;

#endif
