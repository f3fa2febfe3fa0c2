// SPDX-License-Identifier: Apache-2.0
// job.c - a model or partition that is loaded once and run many times: the public calls. They call
// the functions of the job's kind (job.h), which is chosen when it is opened.
//
// This file has what is the same for all kinds. It checks the order of calls: at most RUN_SLOTS
// pending runs, no wait without a start, states before the first run. Kinds need not check the
// order again.
#include "runtime/job.h"

#include <unistd.h>

// Reports a wrong order of calls: a diagnostic and TSR_USAGE. The job is unchanged.
static tsr_status wrong_order(tsr_job *job, const char *text)
{
    return tsr__run_refuse(job->session, DIAG_run_order, NULL, "take results with tsr_job_wait",
                           text);
}

static tsr_status opened_before_fork(tsr_job *job)
{
    return tsr__run_refuse(job->session, DIAG_run_order, NULL,
                           "open a new job in the child process",
                           "the job was opened before a fork");
}

// ---- opening -----------------------------------------------------------------------------------

// Chooses the kind of job for a partition: child processes, this process as one rank, or threads.
// Children are checked first, because tsr__run_join would refuse transport "shm" in a process that
// is not a rank. A child process has joined already, so tsr__run_spawns returns false there, and
// its job is a launched one.
static tsr_status choose_kind(tsr_job *job)
{
    if (tsr__run_spawns(job->session, &job->options)) {
        job->kind = &tsr__job_children;
        return TSR_OK;
    }
    TRY(tsr__run_join(job->session, &job->options, &job->endpoint));
    job->kind = job->endpoint ? &tsr__job_launched : &tsr__job_threads;
    return TSR_OK;
}

// Opens a job. kind NULL: a partition, whose kind follows from the options and the launcher.
static tsr_status open_as(tsr_session *session, const char *path, const tsr_run_options *options,
                          const struct job_kind *kind, bool states, tsr_job **out)
{
    tsr_job *job = NULL;
    if (!out)
        return tsr__missing(session, "out");
    tsr_status st = tsr__job_new(session, options, &job);
    if (st != TSR_OK)
        goto close_job;
    // From here on, closing the job calls the kind's close, which accepts a partly opened job.
    job->kind = kind;
    if (!kind)
        st = choose_kind(job);
    if (st == TSR_OK)
        st = job->kind->open(job, path, states);
    if (st == TSR_OK) {
        *out = job;
        return TSR_OK;
    }
close_job:
    if (!kind)
        st = tsr__run_end(session, options, st); // before closing, which may wait for other ranks
    tsr_job_close(job);
    return st;
}

tsr_status tsr_job_open_model(tsr_session *session, const char *path,
                              const tsr_run_options *options, tsr_job **out)
{
    if (!session)
        return TSR_INVALID;
    return open_as(session, path, options, &tsr__job_unsharded, false, out);
}

tsr_status tsr__job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                         bool states, tsr_job **out)
{
    return open_as(session, folder, options, NULL, states, out);
}

tsr_status tsr__job_open_children(tsr_session *session, const char *folder,
                                  const tsr_run_options *options, tsr_job **out)
{
    return open_as(session, folder, options, &tsr__job_children, true, out);
}

tsr_status tsr_job_open(tsr_session *session, const char *folder, const tsr_run_options *options,
                        tsr_job **out)
{
    if (!session)
        return TSR_INVALID;
    return tsr__job_open(session, folder, options, true, out);
}

// ---- runs --------------------------------------------------------------------------------------

// Records in job->ended that a rank was lost, for a later wait without a pending run. Other
// failures are stored in the rank (tsr__ranks_verdict). If ranks are other processes, every failure
// is reported to them. After invalid inputs (TSR_INVALID) the ranks of this process are unchanged,
// and the caller may try again.
static tsr_status remember_failure(tsr_job *job, tsr_status st)
{
    if (job->endpoint)
        st = tsr__run_end(job->session, &job->options, st);
    if (st == TSR_PEER)
        job->ended = st;
    return st;
}

// Starts a run. runs_started - runs_collected is the number of pending runs. Run r uses slot r %
// RUN_SLOTS, so pending runs never share a slot.
static tsr_status start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    if (job->process != getpid())
        return opened_before_fork(job);
    if (job->runs_started - job->runs_collected == RUN_SLOTS)
        return wrong_order(job, "too many runs are in progress");
    return remember_failure(job, job->kind->start(job, inputs, form));
}

// Returns the status of a wait without a pending run. If the job has failed, this is its failure
// instead of an error about the order of calls. So a loop that pipelines runs need not know how
// many runs the failure cancelled. A start, a barrier or a wait may have found the failure.
static tsr_status nothing_pending(tsr_job *job)
{
    if (job->ended != TSR_OK)
        return job->ended;
    TRY(job->kind->verdict(job));
    return wrong_order(job, "no run is in progress");
}

// Checks GPU tensors that the caller passed as destinations of outputs. Such an output must be
// complete on a rank of this process. If outputs are joined or ranks are other processes, the
// tensor would stay unchanged, so it is refused.
static tsr_status check_destinations(const tsr_job *job, tsr_tensors *const *outputs,
                                     enum run_sets form)
{
    if (form == SET_PER_RANK || !outputs[0])
        return TSR_OK;
    if (job->n > 0 && !job->endpoint && !tsr__job_handed(job))
        return TSR_OK;
    return tsr__tensors_on_host(outputs[0]);
}

// Collects the oldest pending run.
static tsr_status finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    if (job->process != getpid())
        return opened_before_fork(job);
    if (job->runs_started == job->runs_collected)
        return nothing_pending(job);
    // after these errors the caller may wait for the run again
    TRY(tsr__job_sets_owned(job, (const tsr_tensors *const *)outputs, form));
    TRY(check_destinations(job, outputs, form));
    const struct named_difference *differ = &job->differ[job->runs_collected % RUN_SLOTS];
    tsr_status st = job->kind->finish(job, outputs, form);
    if (st == TSR_INVALID && form == FULL_SET && differ->input)
        tsr__named_report(job->session, differ,
                          "the run may have failed because these sizes differ");
    return remember_failure(job, st);
}

tsr_status tsr_job_start(tsr_job *job, const tsr_tensors *inputs)
{
    if (job->has_bundle)
        tsr__job_note_unknown(job, inputs);
    return start(job, &inputs, FULL_SET);
}

tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs)
{
    return start(job, inputs, SET_PER_RANK);
}

tsr_status tsr_job_wait(tsr_job *job, tsr_tensors *outputs)
{
    return finish(job, &outputs, FULL_SET);
}

tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs)
{
    return finish(job, outputs, SET_PER_RANK);
}

// Runs once and waits. Checks the set of outputs first, because a started run cannot be cancelled:
// if the wait refused the set, the run would still be pending.
tsr_status tsr_job_run(tsr_job *job, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    TRY(tsr__tensors_owned(job->session, outputs)); // before the run starts
    TRY(tsr_job_start(job, inputs));
    return tsr_job_wait(job, outputs);
}

// ---- the rest ----------------------------------------------------------------------------------

// Makes an output the input of the next run. If no rank has both names, the kind of job returns
// TSR_INVALID without a diagnostic; the diagnostic is added here, for every kind.
tsr_status tsr_job_add_state(tsr_job *job, const char *past, const char *present)
{
    if (job->runs_started)
        return wrong_order(job, "states must be set before the first run");
    tsr_status st = job->kind->add_state(job, past, present);
    if (st != TSR_INVALID)
        return remember_failure(job, st);
    return tsr__fail(job->session, TSR_INVALID, DIAG_input_unknown, &PLACE(.value = str_of(past)),
                     "name an input, then the output that becomes that input in the next run",
                     "no rank has both this input and the output '%s'", present);
}

int tsr_job_under_way(const tsr_job *job)
{
    return (int)(job->runs_started - job->runs_collected);
}

tsr_status tsr_job_barrier(tsr_job *job)
{
    return remember_failure(job, job->kind->barrier(job));
}

tsr_status tsr_job_trace(tsr_job *job)
{
    if (!job->profiles)
        return tsr__run_refuse(job->session, DIAG_run_order, NULL,
                               "open the job with the option `trace`",
                               "this job was opened without tracing");
    return remember_failure(job, job->kind->trace(job));
}
