// SPDX-License-Identifier: Apache-2.0
// measure_rank.h - between the files that measure: one rank's part, and the models that it runs.
#ifndef TSR_RUNTIME_MEASURE_RANK_H
#define TSR_RUNTIME_MEASURE_RANK_H

#include "runtime/internal.h"

#include <stdio.h>

#define MEASURE_PATH (TEMPORARY_PATH + 32)

enum measure_model {
    MEASURE_ARITHMETIC,
    MEASURE_MEMORY,
    MEASURE_FEW,
    MEASURE_MANY,
    MEASURE_BYTES, // arithmetic of 8 bits
    MEASURE_MODELS
};
#define MEASURE_MEMORY_NODES 2
#define MEASURE_FEW_NODES    4
#define MEASURE_MANY_NODES   204

int64_t tsr__measure_rows(enum measure_model which);
double tsr__measure_work(enum measure_model which); // operations; bytes of MEASURE_MEMORY
tsr_status tsr__measure_write(tsr_session *session, const char *folder) TSR_MUST_USE;
const char *tsr__measure_path(const char *folder, enum measure_model which, char *out);
tsr_status tsr__measure_input(tsr_session *session, enum measure_model which,
                              tsr_tensors **out) TSR_MUST_USE;

// What one rank finds.
struct findings_of_rank {
    struct measured_rank self;
    double latency[MEASURE_RANKS], bandwidth[MEASURE_RANKS]; // to ranks of higher numbers
    double seconds[MEASURE_KINDS][MEASURE_GROUPS][MEASURE_POINTS];
};
struct measure_rank {
    tsr_session *session; // for progress on rank 0; findings of failures
    struct engine *engine;
    struct endpoint *endpoint;
    const char *folder;
    double seconds;
    int threads;
    bool one_host, no_pin;
    int n_groups, group[MEASURE_GROUPS];
    int64_t id;     // of calls of one group
    uint64_t calls; // made so far by that group
    struct findings_of_rank *out;
    tsr_status status;
};
// The rank's part, with all other ranks at theirs. Tells them if it fails.
void tsr__measure_rank(struct measure_rank *rank);
// measure_links.c
extern const int64_t tsr__measure_bytes[MEASURE_POINTS];
tsr_status tsr__measure_links(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
tsr_status tsr__measure_collectives(struct measure_rank *rank,
                                    struct comm_trouble *why) TSR_MUST_USE;
// The time that an eighth of n times are below: others are longer for what else the machine does. They are sorted.
double tsr__measure_typical(double *times, size_t n);

#endif
