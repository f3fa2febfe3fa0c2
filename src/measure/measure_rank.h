// SPDX-License-Identifier: Apache-2.0
// measure_rank.h - shared by the files that measure: one rank's part, and the models that it runs.
#ifndef TSR_MEASURE_RANK_H
#define TSR_MEASURE_RANK_H

#include "measure/internal.h"
#include "runtime/internal.h"

#include <stdio.h>

#define MEASURE_PATH (TEMPORARY_PATH + 32)
#define MEASURE_PLAN 0x6d65617375726573 // id of calls, which belong to no partition

// What the time of a sample measures.
enum measured_as {
    AS_OVERHEAD_FEW, // with AS_OVERHEAD_MANY: the overhead of a node and of a run
    AS_OVERHEAD_MANY,
    AS_FLOPS,     // operations per second
    AS_RATE,      // the same, for a tsr_rate
    AS_BANDWIDTH, // bytes per second
    AS_MOVE,      // the same, for a tsr_move
    AS_NEAR,      // the same, with tensors that fit in caches
    AS_SIZE       // only the time of its kind of work at that size
};
// Ranks that time the sample: the engine's kernels for CPUs and GPUs support different types.
enum measured_on { ON_ALL, ON_CPUS, ON_GPUS };
#define MEASURE_FEW_NODES  4
#define MEASURE_MANY_NODES 204

struct sample_graph;
// The node of a sample. Its time also gives the time of its kind of work at this size.
struct sample_node {
    int nodes;        // number of such nodes in the sample, if all are equal; else 0
    int rate, move;   // as returned by tsr__node_kind
    const char *word; // key in "sizes" of a topology file; NULL: that of rate or move
    double work;      // operations
    double bytes;     // bytes read and written, that grow with the input
    double fixed;     // further bytes that do not grow with the input: weights
    bool many;        // the sample has measure_rank.matrices times as many nodes
};
// A model that measures the speed of the engine in one kind of work.
struct sample {
    enum measured_as as;
    int index; // the tsr_rate or tsr_move
    enum measured_on on;
    double share; // share of the measuring time
    int64_t
        // factor of the first dimension on a GPU, so that the launch time is negligible
        grows;
    tsr_dtype type; // of its input
    int rank;
    int64_t dims[4];
    tsr_dtype gives; // type of its outputs
    double work;     // operations, or bytes read and written, per run
    // Adds the nodes between input x and the outputs; false: out of memory. (measure_kinds.c)
    bool (*body)(struct sample_graph *made, tsr_value *x);
    struct sample_node node;
};
struct sample_graph {
    tsr_session *session;
    tsr_graph *graph;
    const struct sample *sample;
    // number of 64 MiB matrices that one row is multiplied with (matrices_for in measure.c)
    int matrices;
    int names; // number of names created so far
};
extern const struct sample tsr__samples[];
extern const size_t tsr__n_samples;
extern const struct sample tsr__waits_sample; // not timed as a sample (tsr__measure_waits_model)
#define MEASURE_SAMPLES 72                    // maximum number of samples

// Number of samples at the beginning of the table that measure basic properties of a device and its
// rates by type. Measurements of less than half a second use only these.
#define MEASURE_BRIEFLY 8
tsr_status tsr__measure_write(tsr_session *session, const char *folder, size_t samples,
                              int matrices) TSR_MUST_USE;
const char *tsr__measure_path(const char *folder, size_t sample, char *out);

// Results of one rank.
struct rank_results {
    tsr_topology_device self;     // without a name
    double node[MEASURE_SAMPLES]; // seconds of one node of each sample; 0: unknown
    double latency[MEASURE_RANKS], bandwidth[MEASURE_RANKS]; // to ranks with higher numbers
    double seconds[MEASURE_KINDS][MEASURE_GROUPS][MEASURE_POINTS];
    bool unsteady; // 4 MiB took no longer than 8 bytes
    double differ; // median, how many times as long a sample took in another pass
};
// Shares of the time: samples (their own shares add up to about 1.2), pairs, groups of ranks. The
// rest is for opening the samples.
#define SHARE_SAMPLES 0.4
#define SHARE_PAIRS   0.1
#define SHARE_ALL     0.25
struct measure_rank {
    tsr_session *session; // for progress on rank 0 and for diagnostics
    struct engine *engine;
    struct endpoint *endpoint;
    const char *folder;
    const char *device; // its name; NULL: CPU
    const tsr_run_options *options;
    const struct gpu *gpu; // driver, if some rank is on a GPU
    struct endpoint *over; // device endpoint, if some rank is on a GPU; then `endpoint` is the same
    struct gpu_seat *seat; // NULL: this rank is not on a GPU
    int card;              // number of the GPU, if seat is set
    void *input;           // GPU memory of the current sample's input, if seat is set
    bool large;            // samples have the size that a GPU needs
    bool gpus;             // all ranks are on GPUs
    double seconds, began;
    size_t samples; // number of timed samples
    int passes;     // number of passes
    int matrices;   // number of 64 MiB matrices that one row is multiplied with
    int threads;
    bool one_host, no_pin;
    int n_groups, group[MEASURE_GROUPS];
    int64_t id;     // id of calls of the current group
    uint64_t calls; // number of calls of that group
    struct rank_results *out;
    tsr_status status;
};
// Creates the input of a sample in the memory of the rank's device. The set belongs to the session;
// free it before the next one is created.
tsr_status tsr__measure_input(struct measure_rank *rank, tsr_session *session, size_t sample,
                              tsr_tensors **out) TSR_MUST_USE;
// Computes the results from the seconds of all samples (0: not timed, or not supported by this
// engine) and stores them in rank->out.
void tsr__measure_summarize(struct measure_rank *rank, const double *seconds);
// Measures as one rank while all other ranks do the same. Notifies the others if it fails.
void tsr__measure_rank(struct measure_rank *rank);
// measure_links.c
extern const int64_t tsr__measure_bytes[MEASURE_POINTS];
tsr_status tsr__measure_links(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
tsr_status tsr__measure_collectives(struct measure_rank *rank,
                                    struct comm_trouble *why) TSR_MUST_USE;
// measure_gpu.c: call tsr__measure_gpu_open only if rank->gpu is set; otherwise the other two do
// nothing
tsr_status tsr__measure_gpu_open(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
tsr_status tsr__measure_gpu_meet(struct measure_rank *rank, struct comm_trouble *why) TSR_MUST_USE;
void tsr__measure_gpu_close(struct measure_rank *rank); // when no rank communicates any more
// Adds an input in GPU memory, which is freed with the set. An input in host memory would add a
// copy to the time of a run.
tsr_status tsr__measure_gpu_input(struct measure_rank *rank, tsr_tensors *out, tsr_dtype type,
                                  int n_dims, const int64_t *dims) TSR_MUST_USE;
void tsr__measure_gpu_place(const struct measure_rank *rank, struct comm_call *call);
tsr_status tsr__measure_gpu_wait(const struct measure_rank *rank,
                                 struct comm_trouble *why) TSR_MUST_USE;
// Allocates memory for tensors to send, on the rank's device. NULL: `why` has the reason.
void *tsr__measure_alloc(struct measure_rank *rank, size_t bytes, struct comm_trouble *why);
void tsr__measure_free(struct measure_rank *rank, void *p, size_t bytes);
// Returns the 1/8 quantile of n times: longer times come from other load on the machine. Sorts the
// times.
double tsr__measure_typical(double *times, size_t n);

#endif
