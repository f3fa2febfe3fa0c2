// SPDX-License-Identifier: Apache-2.0
// job.h - the inside of a job: its four kinds, and what they share.
//
// A kind is a row of functions (struct job_kind) in a separate file:
//   job_whole.c      an unsharded model: one rank on the caller's thread, without communication
//   job_launched.c   this process is one rank of a partition, on the caller's thread; the others
//                    are
//                    processes too
//   job_threads.c    every rank of a partition is a thread of this process
//   job_children.c   every rank is a child of this process; each child has a launched job
//                    (servant.c)
// job.c has the public calls, which dispatch to the kind. job_common.c has what every job has,
// job_ranks.c what kinds do with ranks in this process.
//
// Runs are numbered from 0, and run r uses slot r % RUN_SLOTS of every rank. Two ranks as threads,
// two pending runs:
//
//   caller         runs_started  runs_collected   rank 0                   rank 1
//   tsr_job_start       1              0          begins run 0 (slot 0)    begins run 0
//   tsr_job_start       2              0          begins run 1 (slot 1)    still in run 0
//   tsr_job_wait        2              1          run 0 is collected once both ranks have made 1
//                       run
//   tsr_job_wait        2              2          the last that was started: sync_after is 2, so
//                       both
//                                                 ranks synchronize after run 1; then it is
//                                                   collected
#ifndef TSR_JOB_H
#define TSR_JOB_H

#include "runtime/handover.h"
#include "runtime/spawn.h"
#include "bundle/bundle.h"

// Whose tensors a run is given, and whose it gives: one set of the whole model's, or a set for each
// rank that runs here.
enum run_sets { WHOLE_SET, SET_PER_RANK };

// What a kind of job does. Every function is called by the caller's thread; those that start,
// finish or trace runs add their findings to the job's session.
struct job_kind {
    // Opens the ranks of the model or partition at path; states: those that the manifest names are
    // kept. What was opened before a failure is left to close.
    tsr_status (*open)(tsr_job *job, const char *path, bool states);
    // Begins the run runs_started and counts it. There is a slot for it.
    tsr_status (*start)(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form);
    // Ends the run runs_collected, which was started, and counts it. outputs[0] NULL: its results
    // are dropped.
    tsr_status (*finish)(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form);
    // Makes an output the input of the next run. TSR_INVALID, without a finding: no rank has both.
    tsr_status (*add_state)(tsr_job *job, const char *past, const char *present);
    tsr_status (*barrier)(tsr_job *job);
    tsr_status (*trace)(tsr_job *job);
    // What ended the job; TSR_OK: it takes further runs.
    tsr_status (*verdict)(tsr_job *job);
    void (*close)(tsr_job *job); // also of a job that was opened half
};
extern const struct job_kind tsr__job_whole, tsr__job_launched, tsr__job_threads, tsr__job_children;

// A rank that runs in this process, and its thread if it has one. All fields but rank and pieces
// are under the job's lock.
struct rank_thread {
    tsr_job *job;
    struct rank rank;
    pthread_t thread;
    bool opened, failed;
    uint64_t runs_done, runs_synced; // runs made; runs at whose end the ranks have met
    tsr_tensors *pieces[RUN_SLOTS];  // of whole inputs, the caller's thread's
};
struct tsr_job {
    const struct job_kind *kind; // NULL: not chosen yet
    tsr_session *session;
    pid_t process; // that opened it; a forked child has its memory, but not its threads
    tsr_run_options options;
    struct arena arena;
    struct engine *engine;
    struct bundle bundle; // has_bundle: of a partition
    bool has_bundle;
    struct temporary *profiles; // folder of ONNX Runtime's profiles; NULL: not traced
    const struct gpu *gpu;      // some rank is on a GPU
    const char **states;        // outputs that are no results
    size_t n_states;

    struct rank_thread *rank_threads; // of the ranks that run in this process
    int n;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t runs_started, runs_collected;
    tsr_status ended; // TSR_PEER: a rank is gone, and there are no more runs

    struct whole whole; // of a whole model

    struct endpoint *endpoint; // of a launched rank, the session's; else NULL
    bool given[RUN_SLOTS];     // its outputs are on their way to rank 0

    struct thread_job *thread_transport; // of ranks that are threads
    struct shared_weights shared;
    int n_threads;       // started
    uint64_t sync_after; // that many runs all meet
    bool closing;

    struct children *children; // ranks that are children
};

// ---- job.c
// Ranks as children of this process, whatever a launcher says of it: that was said to another
// program.
tsr_status tsr__job_open_children(tsr_session *session, const char *folder,
                                  const tsr_run_options *options, tsr_job **out);

// ---- job_common.c
// A job without a kind. *out is to be closed even after a failure, if it is not NULL.
tsr_status tsr__job_new(tsr_session *session, const tsr_run_options *options, tsr_job **out);
// The folder of a partition, checked for the ranks that run here.
tsr_status tsr__job_open_folder(tsr_job *job, const char *folder);
// TSR_OK if the sets of a call belong to the job's session; else a finding.
tsr_status tsr__job_sets_owned(const tsr_job *job, const tsr_tensors *const *sets,
                               enum run_sets form);
// Notes inputs that the model does not have: most likely they are misspelt.
void tsr__job_note_unknown(tsr_job *job, const tsr_tensors *inputs);
struct handover tsr__job_handover(const tsr_job *job);
bool tsr__job_handed(const tsr_job *job); // not all whole outputs are rank 0's
// An empty set for each rank of the partition, in the arena; to be freed even after a failure.
tsr_status tsr__job_sets_new(const tsr_job *job, struct arena *arena, tsr_tensors ***out);
void tsr__job_sets_free(const tsr_job *job, tsr_tensors **sets);

// ---- job_ranks.c
tsr_status tsr__ranks_new(tsr_job *job, int n);
// Describes rank `number` of `ranks` that share `cores`, to be opened; the second: of the
// partition.
void tsr__ranks_describe(tsr_job *job, struct rank *rank, int number, int cores, int ranks);
void tsr__ranks_describe_part(tsr_job *job, struct rank *rank, int number,
                              struct endpoint *endpoint);
// Opens the folder of a partition, finds the engine (and the driver, if a rank is on a GPU), and
// makes the ranks that run here: a launched process has one, else all.
tsr_status tsr__ranks_prepare(tsr_job *job, const char *folder);
// The first rank that failed by itself tells why; else one that another made fail. TSR_OK: none has
// failed.
tsr_status tsr__ranks_verdict(tsr_job *job);
// Binds the inputs of the run runs_started to all ranks that run here, or to none.
tsr_status tsr__ranks_bind(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form);
// The one rank of this process on the caller's thread: opened, and run.
tsr_status tsr__ranks_open_here(tsr_job *job);
void tsr__ranks_run_here(tsr_job *job);
// Keeps a state on the ranks that have both; false: none of those here does. The second: those of
// the manifest.
bool tsr__ranks_keep(tsr_job *job, const char *past, const char *present);
tsr_status tsr__ranks_keep_named(tsr_job *job);
tsr_status tsr__ranks_trace(tsr_job *job);
void tsr__ranks_free(tsr_job *job);

// ---- job_launched.c
// As start with a set of full inputs, but the rank keeps its results: they are collected as a
// separate set.
tsr_status tsr__launched_start_own(tsr_job *job, const tsr_tensors *inputs);

#endif
