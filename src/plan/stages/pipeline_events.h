// SPDX-License-Identifier: Apache-2.0
// pipeline_events.h - what the devices of a pipeline do in one run (pipeline_timing.c), and the
// time between consecutive runs (pipeline_period.c).
#ifndef TSR_PLAN_PIPELINE_EVENTS_H
#define TSR_PLAN_PIPELINE_EVENTS_H

#include "plan/stages/stages.h"

// Time for which a communication occupies a link, or a port in one direction. Ports are numbered
// after the links.
struct link_use {
    size_t link;
    int64_t ps;
};
struct link_uses {
    struct link_use *at;
    size_t n;
};

// An event of a run: a node that runs on some devices, or a communication between them (`meets`). A
// communication starts when all its devices are ready, and ends for all at once.
struct event {
    const int64_t *devices; // numbers of the topology
    size_t n;
    int64_t ps;
    const int64_t *each; // by index in devices: their times, if they differ; else NULL
    bool meets;
    struct link_uses uses;
};
struct event_list {
    const struct event *at; // one run, in an order that all devices follow
    size_t n;
};

// link_uses.c: a recorder of link uses.
struct link_recorder {
    struct planner *planner;
    struct arena *arena;
    double *load;     // by link: bytes of the current communication; NULL: nothing is recorded
    struct map moves; // uses of reshardings, by layouts and value
};
// Starts recording. Links are recorded only if there are several stages and not too many links.
// Returns false if out of memory.
bool tsr__link_recorder_init(struct link_recorder *recorder, struct planner *planner,
                             struct arena *arena, size_t stages);
// Return the links that a resharding uses, and those of the reduction after a node on the devices
// of its stage. If memory runs out, they return no links, and the arena has failed.
struct link_uses tsr__link_uses_move(struct link_recorder *recorder, uint32_t from, uint32_t to,
                                     const struct plan_value *value);
struct link_uses tsr__link_uses_sum(struct link_recorder *recorder, const struct plan_node *node,
                                    const struct stage *stage);

// pipeline_period.c: simulates `runs` consecutive runs (at least 6). Sets *period to the time
// between the ends of two runs in the middle. Returns false if out of memory.
bool tsr__pipeline_period(const struct planner *planner, struct arena *arena,
                          const struct event_list *events, size_t runs, int64_t *period);

#endif
