// SPDX-License-Identifier: Apache-2.0
// job.c - a model or a partition that is loaded once and run many times: the public calls. What a
// call does is said by the job's kind (job.h), which is chosen when it is opened.
//
// This file owns what is the same for all kinds: the order of calls (no more than RUN_SLOTS runs
// under way, no wait without a start, states before the first run), and that a job whose rank is
// gone stays ended. A kind's function is called only in an order that is allowed, so kinds do not
// check it again.
#include "runtime/job.h"

#include <unistd.h>

// A caller's mistake in the order of calls: a finding and TSR_USAGE; the job is as it was before.
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

// Who runs the ranks of a partition: children, this process as one of them, or threads.
// The order matters: tsr__run_join would refuse transport "shm" in a process that is no rank, so
// children are asked for first. A child of such a process has joined before it gets here:
// tsr__run_spawns says no, and its job is a launched one.
static tsr_status choose_kind(tsr_job *job)
{
    if (tsr__run_spawns(job->session, &job->options)) {
        job->kind = &tsr__job_children;
        return TSR_OK;
    }
    tsr_status st = tsr__run_join(job->session, &job->options, &job->endpoint);
    if (st != TSR_OK)
        return st;
    job->kind = job->endpoint ? &tsr__job_launched : &tsr__job_threads;
    return TSR_OK;
}

// kind NULL: of a partition, as options and launcher say.
static tsr_status open_as(tsr_session *session, const char *path, const tsr_run_options *options,
                          const struct job_kind *kind, bool states, tsr_job **out)
{
    tsr_job *job = NULL;
    if (!out)
        return tsr__missing(session, "out");
    tsr_status st = tsr__job_new(session, options, &job);
    if (st != TSR_OK)
        goto close_job;
    // From here on closing the job calls the kind's close, which takes a job that was opened half.
    job->kind = kind;
    if (!kind)
        st = choose_kind(job);
    if (st != TSR_OK)
        goto close_job;
    st = job->kind->open(job, path, states);
    if (st != TSR_OK)
        goto close_job;
    *out = job;
    return TSR_OK;
close_job:
    tsr_job_close(job);
    return st;
}

tsr_status tsr_job_open_model(tsr_session *session, const char *path,
                              const tsr_run_options *options, tsr_job **out)
{
    if (!session)
        return TSR_INVALID;
    return open_as(session, path, options, &tsr__job_whole, false, out);
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

// A rank that is gone does not come back: what this call says, later ones say too.
// Other failures of a rank are remembered by the rank itself (tsr__ranks_verdict). Inputs that do
// not fit (TSR_INVALID) leave the ranks as they were, and the caller may try again with others.
static tsr_status remember(tsr_job *job, tsr_status st)
{
    if (st == TSR_PEER)
        job->ended = st;
    return st;
}

// The difference is the number of runs under way; both numbers only grow, and run r uses slot r %
// RUN_SLOTS, so slots of runs under way are never shared.
static tsr_status start(tsr_job *job, const tsr_tensors *const *inputs, enum run_sets form)
{
    if (job->process != getpid())
        return opened_before_fork(job);
    if (job->runs_started - job->runs_collected == RUN_SLOTS)
        return wrong_order(job, "too many runs are in progress");
    return remember(job, job->kind->start(job, inputs, form));
}

// A wait with no run under way. Of a job that has ended the caller gets the old failure again
// instead of a complaint about the order: a loop that pipelines runs need not know how many the
// failure cut off. It may have been found by any call: a start, a barrier, a wait.
static tsr_status nothing_under_way(tsr_job *job)
{
    if (job->ended != TSR_OK)
        return job->ended;
    tsr_status st = job->kind->verdict(job);
    if (st != TSR_OK)
        return st;
    return wrong_order(job, "no run is in progress");
}

// Places on a GPU for outputs can be filled by a rank of this process that has the whole output.
// Where outputs are brought together, or ranks are other processes, they are refused: they would
// stay as they are.
static tsr_status places_fit(const tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    if (form == SET_PER_RANK || !outputs[0])
        return TSR_OK;
    if (job->n > 0 && !job->endpoint && !tsr__job_handed(job))
        return TSR_OK;
    return tsr__tensors_on_host(outputs[0]);
}

// Ends the oldest run under way.
static tsr_status finish(tsr_job *job, tsr_tensors *const *outputs, enum run_sets form)
{
    if (job->process != getpid())
        return opened_before_fork(job);
    if (job->runs_started == job->runs_collected)
        return nothing_under_way(job);
    tsr_status st = tsr__job_sets_owned(job, (const tsr_tensors *const *)outputs, form);
    if (st == TSR_OK)
        st = places_fit(job, outputs, form);
    if (st != TSR_OK)
        return st; // the run can be waited for again
    return remember(job, job->kind->finish(job, outputs, form));
}

tsr_status tsr_job_start(tsr_job *job, const tsr_tensors *inputs)
{
    if (job->has_bundle)
        tsr__job_note_unknown(job, inputs);
    return start(job, &inputs, WHOLE_SET);
}

tsr_status tsr_job_start_cut(tsr_job *job, const tsr_tensors *const *inputs)
{
    return start(job, inputs, SET_PER_RANK);
}

tsr_status tsr_job_wait(tsr_job *job, tsr_tensors *outputs)
{
    return finish(job, &outputs, WHOLE_SET);
}

tsr_status tsr_job_wait_cut(tsr_job *job, tsr_tensors *const *outputs)
{
    return finish(job, outputs, SET_PER_RANK);
}

// The sets are checked before anything runs, because a run cannot be called back: after a refused
// wait it would still be under way.
tsr_status tsr_job_run(tsr_job *job, const tsr_tensors *inputs, tsr_tensors *outputs)
{
    tsr_status st = tsr__tensors_owned(job->session, outputs); // before anything has run
    if (st != TSR_OK)
        return st;
    st = tsr_job_start(job, inputs);
    if (st != TSR_OK)
        return st;
    return tsr_job_wait(job, outputs);
}

// ---- the rest ----------------------------------------------------------------------------------

// A kind says TSR_INVALID without a finding where no rank has the pair; the finding is added here,
// once, for every kind.
tsr_status tsr_job_add_state(tsr_job *job, const char *past, const char *present)
{
    if (job->runs_started)
        return wrong_order(job, "states must be set before the first run");
    tsr_status st = remember(job, job->kind->add_state(job, past, present));
    if (st != TSR_INVALID)
        return st;
    struct place at = PLACE_NONE;
    at.value = str_of(past);
    tsr__diag(job->session, DIAG_input_unknown, &at,
              "name an input, then the output that becomes that input in the next run",
              "no rank has both this input and the output '%s'", present);
    return TSR_INVALID;
}

int tsr_job_under_way(const tsr_job *job)
{
    return (int)(job->runs_started - job->runs_collected);
}

tsr_status tsr_job_barrier(tsr_job *job)
{
    return remember(job, job->kind->barrier(job));
}

tsr_status tsr_job_trace(tsr_job *job)
{
    if (!job->profiles)
        return tsr__run_refuse(job->session, DIAG_run_order, NULL,
                               "open the job with the option `trace`",
                               "this job was opened without tracing");
    return remember(job, job->kind->trace(job));
}
