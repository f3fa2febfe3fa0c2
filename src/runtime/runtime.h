// SPDX-License-Identifier: Apache-2.0
// runtime.h - runs models: ONNX Runtime as the engine, one session per rank, ranks as threads or
// MPI processes. What other rooms may call is in tessera.h, section 9. This room knows device
// graphs, not how they came about.
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include "base/base.h"

#define RUN_TOKEN_OUTPUT "ai.tessera.token.out" // output of a rank's graph that is no result

// ---- a partition as one operator of a stock ONNX Runtime (wrapped.c; the plug-in registers it)

struct OrtApiBase;
struct OrtStatus;
struct OrtSessionOptions;
struct OrtStatus *tsr__wrapped_add(const struct OrtApiBase *base,
                                   struct OrtSessionOptions *options);
// All that the program tessera-ranks does (served_ranks.c): its exit code.
int tsr__served_work(const char *folder, const char *engine);
// TSR_OK if the set that a caller gave belongs to the session, or is NULL; else a finding. (tensors.c)
tsr_status tsr__tensors_owned(tsr_session *session, const tsr_tensors *tensors) TSR_MUST_USE;
tsr_session *tsr__tensors_session(const tsr_tensors *tensors);
void tsr__tensors_clear(tsr_tensors *tensors); // removes all tensors (tensors.c)
bool tsr__set_is_random(const char *set);      // "random", "random:7,batch=2" (sets.c)

// ---- before a run, under a launcher (transports.c)

// Whether a launcher started this process as one of several ranks that are to run together, and which it is.
bool tsr__run_launched(tsr_session *session, const tsr_run_options *options, int *rank);
// Rank 0's text of so many bytes, on all ranks; all of them call it.
tsr_status tsr__run_tell(tsr_session *session, char *text, size_t bytes) TSR_MUST_USE;

// ---- what ranks are able to do on this machine: numbers without an opinion of what they are for (measure.c)

#define MEASURE_POINTS 6 // sizes at which a collective is timed
#define MEASURE_KINDS  6 // of collectives: all of enum tsr_collective that come before TSR_SEND
#define MEASURE_GROUPS 4 // sizes of groups at most
#define MEASURE_RANKS  64

// A node of that kind and size takes so many seconds.
#define MEASURE_SIZES 64
struct measured_size {
    int rate, move; // as tsr__node_kind has them
    const char *word;
    tsr_dtype type; // of its input
    double work, bytes, seconds;
};
struct measured {
    int n_sizes; // 0: devices are unlike
    struct measured_size size[MEASURE_SIZES];
    int ranks;
    bool one_host;                           // collectives were timed
    tsr_topology_device rank[MEASURE_RANKS]; // without names; 0: not measured
    double latency[MEASURE_RANKS][MEASURE_RANKS], bandwidth[MEASURE_RANKS][MEASURE_RANKS];
    int n_groups, group[MEASURE_GROUPS]; // sizes of groups; all groups of one size at once
    int64_t bytes[MEASURE_POINTS];       // of the whole tensor
    double seconds[MEASURE_KINDS][MEASURE_GROUPS][MEASURE_POINTS];
};

// Measures with all ranks at once. Under a launcher every rank calls it, and rank 0 alone gets numbers (ranks 0 elsewhere).
// devices: names of the ranks' devices, as many as options->devices says; NULL: all are on the CPU.
// Numbers as a model's may be, so many bytes of a type; others for another seed.
void tsr__measure_fill(tsr_dtype type, uint64_t seed, void *out, size_t bytes);
tsr_status tsr__measure(tsr_session *session, const tsr_measure_options *options,
                        const char *const *devices, struct measured *out) TSR_MUST_USE;

#endif
