// SPDX-License-Identifier: Apache-2.0
// job.h - internals of a job: its four kinds, and what they share.
//
// A kind is a table of functions (struct job_kind) in a separate file:
//
//   job_unsharded.c  an unsharded model: one rank on the caller's thread, without communication
//   job_launched.c   this process is one rank of a partition, on the caller's thread; the other
//                    ranks are processes too
//   job_threads.c    every rank of a partition is a thread of this process
//   job_children.c   every rank is a child process, which has a launched job (child_loop.c)
//
// job.c has the public calls, which dispatch to the kind. job_common.c has what all kinds need,
// job_ranks.c what kinds do with ranks in this process.
//
// Runs are numbered from 0, and run r uses slot r % RUN_SLOTS of every rank. Two ranks as threads,
// two pending runs:
//
//   caller         runs_started  runs_collected   ranks 0 and 1
//   tsr_job_start       1              0          both begin run 0 (slot 0)
//   tsr_job_start       2              0          rank 0 begins run 1 (slot 1), rank 1 is in run 0
//   tsr_job_wait        2              1          run 0 is collected once both ranks have made it
//   tsr_job_wait        2              2          the last started run: sync_after is 2, both ranks
//                                                 synchronize after it, then it is collected
#ifndef TSR_JOB_H
#define TSR_JOB_H

#include "runtime/spawn.h"
#include "bundle/bundle.h"

// Form of the inputs and outputs of a run: one set of the full tensors, or a set for each rank in
// this process.
enum run_sets { FULL_SET, SET_PER_RANK };

// Functions of a kind of job. All are called on the caller's thread. Those that start, finish or
// trace runs add their diagnostics to the job's session.
struct job_kind {
    // Opens the ranks of the model or partition at path. states: keep the states that the manifest
    // names. After a failure, `close` frees what was opened.
    tsr_status (*open)(tsr_job *job, const char *path, bool states);
    // Begins run number runs_started and counts it. A slot is free.
    tsr_status (*start)(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form);
    // Collects run number runs_collected, which was started, and counts it. outputs[0] NULL: its
    // results are dropped.
    tsr_status (*finish)(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form);
    // Makes an output the input of the next run. TSR_INVALID without a diagnostic: no rank has
    // both.
    tsr_status (*add_state)(tsr_job *job, const char *past, const char *present);
    tsr_status (*barrier)(tsr_job *job);
    tsr_status (*trace)(tsr_job *job);
    // Returns the status that ended the job; TSR_OK: more runs are possible.
    tsr_status (*verdict)(tsr_job *job);
    void (*close)(tsr_job *job); // also for a partly opened job
};
extern const struct job_kind tsr__job_unsharded, tsr__job_launched, tsr__job_threads,
    tsr__job_children;

// A rank in this process, and its thread if it has one. The job's lock protects all fields but rank
// and pieces.
struct rank_thread {
    tsr_job *job;
    struct rank rank;
    pthread_t thread;
    bool opened, failed;
    uint64_t runs_done, runs_synced; // completed runs; runs after which the ranks synchronized
    tsr_tensors *pieces[RUN_SLOTS];  // shards of full inputs; used by the caller's thread
    struct gpu_buffer *buffers;      // of those that are on the rank's GPU
};
// The file of an unsharded model for the engine: the model itself, or a copy that it can read.
struct unsharded_file {
    const char *path;
    struct temporary *folder; // temporary folder of the copy; NULL: no copy
    struct arena arena;
};
struct tsr_job {
    const struct job_kind *kind; // NULL: not yet chosen
    tsr_session *session;
    pid_t process; // that opened it; a forked child has its memory, but not its threads
    tsr_run_options options;
    struct arena arena;
    struct engine *engine;
    struct bundle bundle; // the opened partition, if has_bundle
    bool has_bundle;
    struct temporary *profiles; // folder of ONNX Runtime's profiles; NULL: not traced
    const struct gpu *gpu;      // not NULL if some rank is on a GPU
    const char **states;        // outputs that are states, not results
    size_t n_states;

    struct rank_thread *rank_threads; // one per rank in this process
    int n;
    pthread_mutex_t lock;
    pthread_cond_t change; // a rank has changed something that the caller's thread waits for
    uint64_t runs_started, runs_collected;
    struct named_difference differ[RUN_SLOTS]; // per slot: inputs that may be why the run fails
    tsr_status ended; // TSR_PEER: a rank is lost, and no more runs are possible

    struct unsharded_file unsharded; // used if the model is unsharded

    struct endpoint *endpoint; // used by a launched rank, owned by the session; else NULL
    bool given[RUN_SLOTS];     // per slot: outputs of the run go to rank 0

    struct thread_job *thread_transport; // used if ranks are threads
    struct shared_weights shared;
    int n_threads;       // number of started threads
    uint64_t sync_after; // number of runs after which all ranks synchronize
    bool closing;
    pthread_cond_t posted;          // the caller's thread has posted something for the ranks
    atomic_uint_fast64_t n_posted;  // number of posts; ranks read it without the lock
    atomic_uint_fast64_t n_changed; // number of broadcasts of `change`
    bool spare_core;    // the ranks leave a core to the caller's thread, so all may spin
    bool caller_runs_0; // the caller's thread makes the runs of rank 0 (tsr__job_take_rank_0)
    uint64_t awaited;   // number of runs that the caller waits for; 0: ranks are loading

    struct children *children; // ranks that are child processes

    const struct used_length *used; // inputs with spare capacity, of the next run
    size_t n_used;

    tsr_status (*inputs_wait)(void *data); // called when inputs are bound; NULL: none
    void *inputs_wait_data;

    const struct output_places *places; // destinations for the collected run; NULL: none
    bool *placed; // per output of the manifest: written to its destination, or not requested
};

// ---- job.c
// What a rank has used: seconds in communication since the last report, and bytes of memory. Sent
// as plain bytes between processes of the same build.
struct rank_use {
    double comm_s;
    int64_t memory; // 0: it shares a process with other ranks
};
// Reports what the ranks in child processes have used, and begins to count communication. uses:
// [ranks], or NULL. (job_children.c)
tsr_status tsr__children_use(tsr_job *job, struct rank_use *uses);
// Opens a partition with ranks as children of this process, even under a launcher: the launcher's
// environment variables were meant for the application.
tsr_status tsr__job_open_children(tsr_session *session, const char *folder,
                                  const tsr_run_options *options, tsr_job **out);

// ---- job_common.c
// Creates a job without a kind. If *out is not NULL, it must be closed even after a failure.
tsr_status tsr__job_new(tsr_session *session, const tsr_run_options *options, tsr_job **out);
// Opens the folder of a partition and checks the files of the ranks that this process runs or
// starts.
tsr_status tsr__job_open_folder(tsr_job *job, const char *folder);
// Returns TSR_OK if the sets of a call belong to the job's session; else adds a diagnostic.
tsr_status tsr__job_sets_owned(const tsr_job *job, const tsr_tensors *const *sets,
                               enum run_sets form);
// Warns about inputs that the model does not have; they are probably misspelt.
void tsr__job_note_unknown(tsr_job *job, const tsr_tensors *inputs);

// ---- handover.c
bool tsr__job_handed(const tsr_job *job); // true if the manifest lists the ranks of an output
bool tsr__hand_is_result(const tsr_job *job, const char *name); // an output that is not a state
// True if the caller gets an output, or a shard of one, from this rank.
bool tsr__hand_gives(const tsr_job *job, int64_t rank);
// Moves the results of a run into sets, by rank. sets NULL: drops them.
typedef tsr_status hand_take(tsr_job *job, void *data, tsr_tensors *const *sets);
// Takes the results of a run, and moves the model's outputs into `outputs` (NULL: drops them), in
// the order of the model. Shards are joined.
tsr_status tsr__hand_collect(tsr_job *job, hand_take *take, void *data, tsr_tensors *outputs);
// A rank that is a process sends its outputs of a run to rank 0 and continues (tsr__hand_give).
// Later it waits until rank 0 has read them (tsr__hand_settle). Rank 0 receives from every sending
// rank into sets, by rank (tsr__hand_take).
tsr_status tsr__hand_give(const tsr_job *job, uint64_t run, const tsr_tensors *mine);
tsr_status tsr__hand_settle(const tsr_job *job, uint64_t run);
tsr_status tsr__hand_take(const tsr_job *job, uint64_t run, tsr_tensors *const *sets);

// ---- job_ranks.c
tsr_status tsr__ranks_new(tsr_job *job, int n);
// Sets the fields of rank `number`, one of `ranks` ranks that share `cores`, before it is opened.
// tsr__ranks_describe_part does so for a rank of the partition.
void tsr__ranks_describe(tsr_job *job, struct rank *rank, int number, int cores, int ranks);
void tsr__ranks_describe_part(tsr_job *job, struct rank *rank, int number,
                              struct endpoint *endpoint);
// Opens the folder of a partition, finds the engine (and the driver if a rank is on a GPU), and
// creates the ranks of this process: one in a launched process, else all.
tsr_status tsr__ranks_prepare(tsr_job *job, const char *folder);
// Returns the status of the first rank that failed by itself, else of one that failed because of
// another. TSR_OK: none has failed.
tsr_status tsr__ranks_verdict(tsr_job *job);
// Binds the inputs of run number runs_started to all ranks in this process, or to none.
tsr_status tsr__ranks_bind(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form);
// Frees the shards of inputs of a run that was collected.
void tsr__ranks_free_pieces(tsr_job *job, size_t run_slot);
// Opens the only rank of this process, on the caller's thread.
tsr_status tsr__ranks_open_here(tsr_job *job);
void tsr__ranks_run_here(tsr_job *job);
// Keeps a state on the ranks that have both names. False: no rank of this process does, or out of
// memory. tsr__ranks_keep_named does so for the states of the manifest.
bool tsr__ranks_keep(tsr_job *job, const char *past, const char *present, bool in_place);
tsr_status tsr__ranks_keep_named(tsr_job *job);
tsr_status tsr__ranks_trace(tsr_job *job);
void tsr__ranks_free(tsr_job *job);

// ---- job_unsharded.c
// Finds the file for ONNX Runtime 1.minor: the one at path, or a copy that this release can read,
// in a temporary folder under `work`. Must be closed in every case.
tsr_status tsr__unsharded_open(tsr_session *session, int minor, const char *path, const char *work,
                               struct unsharded_file *file);
void tsr__unsharded_close(struct unsharded_file *file);

// ---- job_launched.c
// As `start` with a set of full inputs, but the rank keeps its results, which are collected as a
// separate set.
tsr_status tsr__launched_start_own(tsr_job *job, const tsr_tensors *inputs);

#endif
