// SPDX-License-Identifier: Apache-2.0
// job_unsharded.c - the job of an unsharded model: one rank on the caller's thread, without
// communication.
//
// The simplest kind, and the one to read first. Nothing here waits: start makes the complete run
// before it returns, finish returns its results.
#include "runtime/job.h"

// Opens an unsharded model. The engine comes first: its release decides whether the file must be
// copied (tsr__unsharded_open).
static tsr_status unsharded_open(tsr_job *job, const char *path, bool states)
{
    (void)states; // there is no manifest to name them
    tsr_status st = tsr__engine(job->session, &job->engine);
    if (st != TSR_OK)
        return st;
    st = tsr__ranks_new(job, 1);
    if (st != TSR_OK)
        return st;
    st = tsr__unsharded_open(job->session, job->engine->minor, path, job->options.work,
                             &job->unsharded);
    if (st != TSR_OK)
        return st;
    if (tsr__gpu_named(job->session, job->options.device, &job->options))
        job->gpu = tsr__gpu_driver(job->session, job->engine, &job->options);
    // One rank has all cores of this process.
    tsr__ranks_describe(job, &job->rank_threads[0].rank, 0, tsr__cores(), 1);
    job->rank_threads[0].rank.path = job->unsharded.path;
    return tsr__ranks_open_here(job);
}

// Runs an unsharded model. TSR_OK means that inputs were bound. unsharded_finish reports a failed
// run, as the other kinds do.
static tsr_status unsharded_start(tsr_job *job, const tsr_tensors *const *inputs,
                                  enum run_sets form)
{
    tsr_status st = tsr__ranks_bind(job, inputs, form);
    if (st != TSR_OK)
        return st;
    tsr__ranks_run_here(job);
    return TSR_OK;
}

// Takes the results, even after a failure: that frees their slot.
static tsr_status unsharded_finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    (void)form; // one rank: its set is the full one
    size_t run_slot = job->runs_collected++ % RUN_SLOTS;
    struct rank *rank = &job->rank_threads[0].rank;
    tsr_status st = tsr__ranks_verdict(job);
    if (st == TSR_OK)
        return tsr__rank_take(rank, run_slot, job->session, outputs[0]);
    tsr__rank_drop(rank, run_slot);
    return st;
}

static tsr_status unsharded_add_state(tsr_job *job, const char *past, const char *present)
{
    return tsr__ranks_keep(job, past, present) ? TSR_OK : TSR_INVALID;
}

// Closes an unsharded model. The session may have mapped files of the copy, so it is closed before
// the folder is removed.
static void unsharded_close(tsr_job *job)
{
    tsr__ranks_free(job);
    tsr__unsharded_close(&job->unsharded);
}

const struct job_kind tsr__job_unsharded = {
    .open = unsharded_open,
    .start = unsharded_start,
    .finish = unsharded_finish,
    .add_state = unsharded_add_state,
    .barrier = tsr__ranks_verdict,
    .trace = tsr__ranks_trace,
    .verdict = tsr__ranks_verdict,
    .close = unsharded_close,
};
