// SPDX-License-Identifier: Apache-2.0
// measure_rank.h - between the files that measure: one rank's part, and the models that it runs.
#ifndef TSR_MEASURE_RANK_H
#define TSR_MEASURE_RANK_H

#include "measure/internal.h"
#include "runtime/internal.h"

#include <stdio.h>

#define MEASURE_PATH (TEMPORARY_PATH + 32)

// What the time of a sample says.
enum measured_as {
    AS_OVERHEAD_FEW, // with AS_OVERHEAD_MANY: what a node and what a run costs besides its work
    AS_OVERHEAD_MANY,
    AS_FLOPS,     // operations per second
    AS_RATE,      // the same, of a tsr_rate
    AS_BANDWIDTH, // bytes per second
    AS_MOVE,      // the same, of a tsr_move
    AS_NEAR,      // the same, with tensors that caches hold
    AS_SIZE       // nothing but how its kind does at that size
};
// Which ranks time it. A GPU's engine has kernels for other types.
enum measured_on { ON_ALL, ON_CPUS, ON_GPUS };
#define MEASURE_FEW_NODES  4
#define MEASURE_MANY_NODES 204

struct sample_graph;
// One node of a sample, which then says too how its kind of work does at that size.
struct sample_node {
    int nodes;        // of the sample, if all are equal; else 0
    int rate, move;   // as tsr__node_kind has them
    const char *word; // the same
    double work;      // operations
    double bytes;     // read and written, but for
    double fixed;     // those that do not grow with its input: its weights
    bool many;        // times measure_rank.matrices are as many nodes
};
// A model that shows what the engine reaches in one kind of work.
struct sample {
    enum measured_as as;
    int index; // the tsr_rate or tsr_move
    enum measured_on on;
    double share; // of the seconds that all measuring may take
    int64_t
        // factor of its first dimension, and its work, on a GPU: until its launch time is
        // negligible
        grows;
    tsr_dtype type; // of its input
    int rank;
    int64_t dims[4];
    tsr_dtype gives; // type of its outputs
    double work;     // operations, or bytes read and written, of a run
    // Adds the nodes between x and the outputs; false: no memory. (measure_kinds.c)
    bool (*body)(struct sample_graph *made, tsr_value *x);
    struct sample_node node;
};
struct sample_graph {
    tsr_session *session;
    tsr_graph *graph;
    const struct sample *sample;
    int matrices; // of one row times 64 MiB (tsr__measure_matrices)
    int names;    // given so far
};
extern const struct sample tsr__samples[];
extern const size_t tsr__n_samples;
#define MEASURE_SAMPLES 64 // there are no more of them

// The first of them: what a device has in any case, and rates by type.
#define MEASURE_BRIEFLY 8
tsr_status tsr__measure_write(tsr_session *session, const char *folder, size_t samples,
                              int matrices) TSR_MUST_USE;
const char *tsr__measure_path(const char *folder, size_t sample, char *out);

// What one rank finds.
struct findings_of_rank {
    tsr_topology_device self;     // without a name
    double node[MEASURE_SAMPLES]; // seconds of one of its nodes; 0: not known
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
    bool gpus;             // all ranks are on GPUs
    double seconds;
    size_t samples; // number of timed samples
    int passes;     // so often
    int matrices;   // of one row times 64 MiB
    int threads;
    bool one_host, no_pin;
    int n_groups, group[MEASURE_GROUPS];
    int64_t id;     // of calls of one group
    uint64_t calls; // made so far by that group
    struct findings_of_rank *out;
    tsr_status status;
};
// The input of a sample, where the rank is. A set of the session; to be freed before the next one
// is made.
tsr_status tsr__measure_input(struct measure_rank *rank, tsr_session *session, size_t sample,
                              tsr_tensors **out) TSR_MUST_USE;
// What the seconds of all samples (0: not timed, or this engine does not take it) come to, beside
// what is in self already.
void tsr__measure_sum_up(struct measure_rank *rank, const double *seconds);
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
// An input there, whose memory goes with the set: what lies on the host would be copied within the
// time of a run.
tsr_status tsr__measure_gpu_input(struct measure_rank *rank, tsr_tensors *out, tsr_dtype type,
                                  int n_dims, const int64_t *dims) TSR_MUST_USE;
void tsr__measure_gpu_place(const struct measure_rank *rank, struct comm_call *call);
tsr_status tsr__measure_gpu_wait(const struct measure_rank *rank,
                                 struct comm_trouble *why) TSR_MUST_USE;
// Memory for what is sent, where the rank is. NULL: `why` says it.
void *tsr__measure_alloc(struct measure_rank *rank, size_t bytes, struct comm_trouble *why);
void tsr__measure_free(struct measure_rank *rank, void *p, size_t bytes);
// The time that an eighth of n times are below: others are longer for what else the machine does.
// They are sorted.
double tsr__measure_typical(double *times, size_t n);

#endif
