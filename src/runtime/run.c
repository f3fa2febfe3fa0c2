// SPDX-License-Identifier: Apache-2.0
// run.c - a single run: opens a job, runs it once and closes it, in this process or in child
// processes that return their results.
//
// The options decide between three ways. A job runs in this process, with threads or as a launched
// rank. Or child processes run, each of which calls tsr_run again as a rank. Or one child process
// runs an unsharded model, so that this process does not use a GPU.
#include "runtime/remote.h"
#include "runtime/spawn.h"

// ---- in child processes -------------------------------------------------------------------------

// Arguments of run_work, for a partition or an unsharded model.
struct run_work {
    const char *path;
    bool unsharded;
    const tsr_tensors *inputs;
    tsr_tensors *outputs;
};

// Runs a rank in a child. Rank 0 has the outputs and properties of all ranks, so the others return
// nothing. A child that runs an unsharded model uses "threads"; otherwise it would start a child
// itself.
static tsr_status run_work(struct spawn *spawn, tsr_session *session, int rank, struct message *out)
{
    struct run_work *work = spawn->data;
    tsr_run_options options = *spawn->options;
    tsr_tensors *outputs = NULL;
    options.check_files = false; // already checked by the parent
    TRY(tsr_tensors_new(session, &outputs));
    tsr_status st;
    if (work->unsharded) {
        options.transport = TSR_TRANSPORT_THREADS; // the child does not start another
        st = tsr_run_model(session, work->path, &options, work->inputs, outputs);
    } else {
        st = tsr_run(session, work->path, &options, work->inputs, outputs);
    }
    if (st == TSR_OK && rank == 0) {
        tsr__message_put_tensors(out, outputs);
        tsr__facts_put(session, out);
    }
    tsr_tensors_free(outputs);
    return st;
}

// Reads in the parent what run_work wrote in the child that is rank 0; other children write
// nothing.
static tsr_status run_take(struct spawn *spawn, tsr_session *session, int rank, struct message *in)
{
    struct run_work *work = spawn->data;
    if (rank != 0 || !work->outputs)
        return TSR_OK;
    TRY(tsr__message_tensors(in, work->outputs));
    return tsr__facts_take(session, in);
}

// Runs the ranks of a partition, or an unsharded model, in child processes.
static tsr_status run_in_children(tsr_session *session, const tsr_run_options *options,
                                  struct run_work work)
{
    struct spawn spawn = {.options = options, .work = run_work, .take = run_take, .data = &work};
    return tsr__spawn_runs(session, work.path, work.unsharded, work.inputs, &spawn);
}

// ---- a single run ------------------------------------------------------------------------------

// Checks that the sets belong to the session, and converts the options to this version of the
// struct.
static tsr_status check_call(tsr_session *session, const tsr_run_options *options,
                             const tsr_tensors *inputs, const tsr_tensors *outputs,
                             tsr_run_options *checked)
{
    TRY(tsr__tensors_owned(session, inputs));
    TRY(tsr__tensors_owned(session, outputs));
    return tsr__run_options(session, options, checked);
}

// Stores the properties of the ranks and writes the trace, each if it is requested. Under a
// launcher both are collectives, which all ranks call in this order.
static tsr_status write_facts_and_trace(tsr_job *job, const tsr_run_options *options,
                                        const char *weights, const struct memory_mark *before)
{
    if (options->facts)
        TRY(tsr__facts_keep(job, weights, before));
    if (options->trace)
        return tsr_job_trace(job);
    return TSR_OK;
}

// Runs a job on copies of the inputs, because some kernels overwrite their inputs (a
// BatchNormalization in training mode overwrites its statistics). Partitions contain copies for
// such nodes (partition/emit/emit_node.c); other models do not.
static tsr_status run_on_copies(tsr_session *session, tsr_job *job, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    tsr_tensors *copies = NULL;
    if (!inputs)
        return tsr_job_run(job, inputs, outputs);
    TRY(tsr_tensors_new(session, &copies));
    tsr_status st = tsr__tensors_copy(inputs, copies);
    if (st == TSR_OK)
        st = tsr_job_run(job, copies, outputs);
    tsr_tensors_free(copies);
    return st;
}

// Runs an unsharded model. The memory is recorded before the model is loaded, so that loading is
// included.
tsr_status tsr_run_model(tsr_session *session, const char *path, const tsr_run_options *options,
                         const tsr_tensors *inputs, tsr_tensors *outputs)
{
    if (!session)
        return TSR_INVALID;
    if (!path)
        return tsr__missing(session, "path");
    tsr_run_options run_options;
    tsr_job *job = NULL;
    TRY(check_call(session, options, inputs, outputs, &run_options));
    if (tsr__run_spawns(session, &run_options) &&
        tsr__gpu_named(session, run_options.device, &run_options))
        return run_in_children(session, &run_options,
                               (struct run_work){path, true, inputs, outputs});
    struct arena arena = {.session = session};
    const char *weights = tsr__folder_of(&arena, path).p;
    struct memory_mark before = tsr__memory_mark(weights);
    tsr_status st = tsr_job_open_model(session, path, options, &job);
    if (st == TSR_OK)
        st = run_on_copies(session, job, inputs, outputs);
    if (st == TSR_OK)
        st = write_facts_and_trace(job, &run_options, weights, &before);
    tsr_job_close(job);
    tsr__arena_free(&arena);
    return st;
}

// Runs a partition once. States of the manifest are not kept (false): a single run returns them as
// ordinary outputs.
tsr_status tsr_run(tsr_session *session, const char *folder, const tsr_run_options *options,
                   const tsr_tensors *inputs, tsr_tensors *outputs)
{
    if (!session)
        return TSR_INVALID;
    tsr_run_options run_options;
    tsr_job *job = NULL;
    TRY(check_call(session, options, inputs, outputs, &run_options));
    if (tsr__run_spawns(session, &run_options) && !tsr__run_in_workers(&run_options))
        return run_in_children(session, &run_options,
                               (struct run_work){folder, false, inputs, outputs});
    struct memory_mark before = tsr__memory_mark(folder);
    TRY(tsr__job_open(session, folder, &run_options, false, &job));
    // Inputs that the rank reads without a copy count as its memory, although they existed before.
    before.own -= tsr__job_input_bytes(job, inputs);
    tsr_status st = tsr_job_run(job, inputs, outputs);
    if (st == TSR_OK)
        st = write_facts_and_trace(job, &run_options, folder, &before);
    st = tsr__run_end(session, &run_options, st);
    tsr_job_close(job);
    return st;
}
