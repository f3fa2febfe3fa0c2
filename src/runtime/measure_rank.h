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
    // Where all ranks are on GPUs; what came before is measured everywhere.
    MEASURE_TF32, // the first model, its products rounded on the way in
    MEASURE_HALVES,
    MEASURE_BFLOATS,
    MEASURE_MODELS
};
#define MEASURE_EVERYWHERE   MEASURE_TF32
#define MEASURE_MEMORY_NODES 2
#define MEASURE_FEW_NODES    4
#define MEASURE_MANY_NODES   204

// on_gpu: a GPU needs more work in a node until its launch no longer counts.
double tsr__measure_work(enum measure_model which, bool on_gpu); // operations; bytes
tsr_status tsr__measure_write(tsr_session *session, const char *folder) TSR_MUST_USE;
const char *tsr__measure_path(const char *folder, enum measure_model which, char *out);

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
    const char *device; // its name; NULL: the CPU
    const tsr_run_options *options;
    const struct gpu *gpu; // some rank is on a GPU: its driver
    struct endpoint *over; // over GPUs, where some rank is on one; then `endpoint` is it
    struct gpu_seat *seat; // this rank is on a GPU
    int card;              // with seat: its number
    void *input;           // with seat: of the model that is timed
    bool large;            // models have the size that a GPU needs
    int models;            // so many are timed
    double seconds;
    int threads;
    bool one_host, no_pin;
    int n_groups, group[MEASURE_GROUPS];
    int64_t id;     // of calls of one group
    uint64_t calls; // made so far by that group
    struct findings_of_rank *out;
    tsr_status status;
};
// The input of a model, where the rank is. A set of the session; to be freed before the next one is made.
tsr_status tsr__measure_input(struct measure_rank *rank, tsr_session *session,
                              enum measure_model which, tsr_tensors **out) TSR_MUST_USE;
// The rank's part, with all other ranks at theirs. Tells them if it fails.
void tsr__measure_rank(struct measure_rank *rank);
// measure_links.c
extern const int64_t tsr__measure_bytes[MEASURE_POINTS];
tsr_status tsr__measure_links(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
tsr_status tsr__measure_collectives(struct measure_rank *rank,
                                    struct comm_trouble *why) TSR_MUST_USE;
// measure_gpu.c: nothing happens where no rank is on a GPU (gpu NULL)
tsr_status tsr__measure_gpu_open(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
tsr_status tsr__measure_gpu_meet(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
void tsr__measure_gpu_close(struct measure_rank *rank); // when no rank communicates any more
// An input of zeros there, whose memory goes with the set: what lies on the host would be copied within the time of a run.
tsr_status tsr__measure_gpu_input(struct measure_rank *rank, tsr_tensors *out, tsr_dtype type,
                                  const int64_t *dims) TSR_MUST_USE;
void tsr__measure_gpu_place(const struct measure_rank *rank, struct comm_call *call);
tsr_status tsr__measure_gpu_wait(const struct measure_rank *rank,
                                 struct comm_trouble *why) TSR_MUST_USE;
// Memory for what is sent, where the rank is. NULL: `why` says it.
void *tsr__measure_alloc(struct measure_rank *rank, size_t bytes, struct comm_trouble *why);
void tsr__measure_free(struct measure_rank *rank, void *p, size_t bytes);
// The time that an eighth of n times are below: others are longer for what else the machine does. They are sorted.
double tsr__measure_typical(double *times, size_t n);

#endif
