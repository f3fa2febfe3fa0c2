// SPDX-License-Identifier: Apache-2.0
// job.h - a job from inside: how it is opened and closed (job.c), and how its runs go (job_run.c).
#ifndef TSR_JOB_H
#define TSR_JOB_H

#include "runtime/handover.h"
#include "runtime/spawn.h"
#include "bundle/bundle.h"

// A rank and its thread. All fields but rank are under the job's lock.
struct rank_thread {
    tsr_job *job;
    struct rank rank;
    pthread_t thread;
    bool opened, failed;
    uint64_t done, met;             // runs made; runs at whose end the ranks have met
    tsr_tensors *pieces[RUN_SLOTS]; // of whole inputs, the caller's thread's
};
struct tsr_job {
    tsr_session *session;
    tsr_run_options options;
    struct arena arena;
    struct engine *engine;
    struct whole whole; // a whole model; not used for partitions
    struct bundle bundle;
    bool is_whole, has_bundle, threaded;
    struct temporary *profiles; // folder of ONNX Runtime's profiles; NULL: not traced
    struct endpoint *mpi;       // of the session, or NULL
    const struct gpu *gpu;      // some rank is on a GPU
    struct remote *remote;      // ranks that are children, or NULL
    struct thread_job *thread_transport;
    struct shared_weights shared;     // of ranks that are threads
    struct rank_thread *rank_threads; // of the ranks that run here
    int n, n_threads;
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint64_t asked, taken, meet; // runs; the one at whose end all meet
    bool given[RUN_SLOTS];       // of ranks that are processes: outputs are on their way to rank 0
    bool closing;
    const char **states; // outputs that are no results
    size_t n_states;
};

// ---- job.c
// The first rank that failed by itself tells why; else whoever was told. TSR_OK: none has failed.
tsr_status tsr__job_verdict(tsr_job *job);
// Tells the other processes what has gone wrong here before the ranks met.
void tsr__job_tell(struct endpoint *endpoint, tsr_session *session, tsr_status status);
// Waits until every rank is there, or has made `runs` runs.
void tsr__job_wait_for(tsr_job *job, uint64_t runs);

// ---- job_run.c
void tsr__job_finish_rest(tsr_job *job); // waits for the runs that nobody has waited for

#endif
