// SPDX-License-Identifier: Apache-2.0
// runtime.h - runs models: ONNX Runtime as the engine, one engine session per rank, ranks as
// threads or processes. What other modules may call is in tessera.h, section 9. This module knows
// rank graphs, but not how they were made.
#ifndef TSR_RUNTIME_H
#define TSR_RUNTIME_H

#include "base/base.h"

#define RUN_TOKEN_OUTPUT "ai.tessera.token.out" // output of a rank graph that is not a result

// ---- ranks of a host process that must not be forked (served.c)

struct OrtApiBase;
struct served;
// The hosts of a job and how their ranks started.
struct run_host {
    const char *name;
    int ranks;
    int64_t start_ms; // until its ranks were ready
};
struct run_hosts {
    struct run_host *at;
    int n;              // 0: all ranks are on this host, and no list of hosts was given
    int64_t sent_bytes; // of files to workers
};
// Starts the program tessera-ranks and waits until its ranks are ready. host: the ONNX Runtime of
// this process; the ranks load the same library. Options: threads, hosts, port, secret, rsh,
// network_interface. The names of the hosts are in the arena. *out must be closed.
tsr_status tsr__served_open(tsr_session *session, const char *folder, const struct OrtApiBase *host,
                            const tsr_run_options *options, struct arena *arena,
                            struct run_hosts *hosts, struct served **out) TSR_MUST_USE;
// Makes one run. After a failure `served` must be closed; no more runs are possible.
tsr_status tsr__served_run(struct served *served, const tsr_tensors *inputs, tsr_tensors *outputs);
void tsr__served_close(struct served *served); // NULL is allowed; no process is left
// Main function of the program tessera-ranks (served.c). Returns its exit code.
int tsr__served_work(void);

// ---- jobs (job_common.c)

// Makes the caller's thread run rank 0 of this job, in tsr_job_wait. The thread of that rank ends.
// For callers that always wait directly after a start: the ranks begin a run only at the wait, and
// a program with as many cores as ranks needs no core for a waiting thread. Call it before the
// first run. Does nothing if ranks are processes or on GPUs. (job_threads.c)
void tsr__job_take_rank_0(tsr_job *job);

// Name of an input that selects, for one run, the caches that the ranks keep for the states of the
// manifest (cache_sets.c). It is a list of int64:
//
//     SET         number of the caches; the ranks allocate them, with zeros, when it is new
//     N, numbers  sets that the ranks free first
//     N, lengths  for each sequence, tokens behind which the ranks write zeros first; N 0: none
//     for each state of the manifest: number of dimensions, sizes of the full cache
//
// Example: 7, 1, 3, 0, 4, 1,8,512,64, 4, 1,8,512,64: use set 7 and free set 3; two caches. As an
// input it reaches ranks in threads, processes and other hosts in the same way.
#define RUN_CACHE_SET "ai.tessera.cache_set"

struct OrtRunOptions;
// Sets options of ONNX Runtime for the following runs of ranks that are threads; their terminate
// flag ends a run. NULL: none. Must be valid until the runs have ended.
void tsr__job_set_run_options(tsr_job *job, const struct OrtRunOptions *options);
struct tensor;
// True if the ranks can write their shards of the output directly into this tensor.
bool tsr__job_can_place(const tsr_job *job, const struct tensor *full);
struct manifest_port;
// True if every rank reads only the shards of `past` that it writes to `present`: both have the
// same sharding, and no shard has copies. NULL: the port is not known. (shards.c)
bool tsr__shards_read_by_writer(const struct manifest_port *past,
                                const struct manifest_port *present);
// Returns the bytes that all ranks together need for their shards of an input of `bytes` bytes. A
// shard may have several owners. NULL: the port is not known. (shards.c)
size_t tsr__shards_bytes(const struct manifest_port *port, int64_t n_ranks, size_t bytes);
// Sets tensors into which ranks write outputs of the following runs directly. They must have the
// exact shapes. These outputs are not among the results. NULL: none.
void tsr__job_set_places(tsr_job *job, const tsr_tensors *places);

// An input in a buffer with spare capacity: only the first `used` elements of one axis have data.
// Example: 33 tokens in a cache [4, 8, 512, 64] are axis 2, used 33.
struct used_length {
    const char *input;
    int axis;
    int64_t used;
};
// Names inputs of the following runs that have spare capacity: ranks that are not on GPUs need only
// the used part. If a shard must be copied, only the used part is copied; a contiguous shard is a
// view of the full length. n 0: none.
void tsr__job_set_used(tsr_job *job, const struct used_length *list, size_t n);

// Sets a function that the following runs call when all inputs are bound, before a rank reads them.
// It waits until the inputs are complete. NULL: none.
void tsr__job_set_inputs_wait(tsr_job *job, tsr_status (*wait)(void *data), void *data);

// Destinations of outputs (gpu_tensors.c). `place` is called after the run with type, rank and
// shape of an output. It sets device and device_data to memory on a GPU, or data to host memory. If
// the output is not requested, it sets nothing. For host memory it may also enlarge dims to the
// shape of the memory; the output is then written to the beginning of each axis.
struct tensor;
struct output_places {
    tsr_status (*place)(void *data, const char *name, struct tensor *to);
    void *data;
};
// As tsr_job_wait. Outputs are written to their destinations if these are on the device of the
// ranks; the others are added to the set.
tsr_status tsr__job_wait_placed(tsr_job *job, const struct output_places *places,
                                tsr_tensors *outputs) TSR_MUST_USE;
bool tsr__job_on_gpu(const tsr_job *job); // true if a rank in this process is on a GPU

// Sorts the times of n runs and sets the figures that follow from them (bench.c).
void tsr__bench_times(double *times, size_t n, tsr_bench_result *result);

// Returns the bytes that this host can still give to programs; 0: unknown. (memory_use.c)
int64_t tsr__memory_available(void);

// ---- before a run, under a launcher (transports.c)

// True if a launcher started this process as one of several ranks that run together; *rank is its
// number.
bool tsr__run_launched(tsr_session *session, const tsr_run_options *options, int *rank);
// Broadcasts rank 0's text of `bytes` bytes; all ranks call it.
tsr_status tsr__run_broadcast(tsr_session *session, char *text, size_t bytes) TSR_MUST_USE;
// Ends a public call that all ranks of a job make, and returns its status. If the call failed, this
// rank reports its last diagnostic to the other ranks, which wait for it. If another rank failed
// before, its failure is the cause: it becomes a diagnostic, and its status is returned. Does
// nothing if the ranks are not processes that have joined. options may be NULL.
tsr_status tsr__run_end(tsr_session *session, const tsr_run_options *options, tsr_status status);

#endif
