// SPDX-License-Identifier: Apache-2.0
// run.c - a single run: a job that is opened, run once and closed, in this process or in children
// that each do what a rank under a launcher does and hand their results back.
//
// Three ways, from the options: threads of this process or this process as a launched rank (a job);
// children of this process (each calls tsr_run again and finds itself a rank); a whole model in one
// child, so that this process does not touch a GPU.
#include "runtime/spawn.h"

// ---- in children of this process ----------------------------------------------------------------

// Of a partition or (whole) a model.
struct run_work {
    const char *path;
    bool whole;
    const tsr_tensors *inputs;
    tsr_tensors *outputs;
};

// In the child. Outputs and facts of all ranks are rank 0's, so the others hand nothing over. A
// child that runs a whole model is given "threads", or it would start a child itself.
static tsr_status run_work(struct spawn *spawn, tsr_session *session, int rank, struct message *out)
{
    struct run_work *work = spawn->data;
    tsr_run_options options = *spawn->options;
    tsr_tensors *outputs = NULL;
    options.check_files = false; // done before
    tsr_status st = tsr_tensors_new(session, &outputs);
    if (st != TSR_OK)
        return st;
    if (work->whole) {
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

// In the parent, for each child in turn, with what run_work put.
static tsr_status run_take(struct spawn *spawn, tsr_session *session, int rank, struct message *in)
{
    struct run_work *work = spawn->data;
    if (rank != 0 || !work->outputs)
        return TSR_OK;
    tsr_status st = tsr__message_tensors(in, work->outputs);
    if (st != TSR_OK)
        return st;
    return tsr__facts_take(session, in);
}

// Children are forks: the inputs are theirs without a copy, but GPU memory of this process is not.
static tsr_status run_processes(tsr_session *session, const char *folder,
                                const tsr_run_options *options, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    struct run_work work = {folder, false, inputs, outputs};
    struct spawn spawn = {.options = options, .work = run_work, .take = run_take, .data = &work};
    tsr_status st = tsr__tensors_on_host(inputs);
    if (st != TSR_OK)
        return st;
    st = tsr__run_prepare(session, folder, options, &spawn.n);
    if (st != TSR_OK)
        return st;
    return tsr__spawn(session, &spawn);
}

// A whole model in a child of this process, which then has not used its GPU.
static tsr_status run_model_apart(tsr_session *session, const char *path,
                                  const tsr_run_options *options, const tsr_tensors *inputs,
                                  tsr_tensors *outputs)
{
    struct run_work work = {path, true, inputs, outputs};
    struct spawn spawn = {
        .options = options, .work = run_work, .take = run_take, .data = &work, .n = 1};
    struct engine *engine;
    tsr_status st = tsr__tensors_on_host(inputs);
    if (st != TSR_OK)
        return st;
    st = tsr__gpu_spoilt(session, options);
    if (st != TSR_OK)
        return st;
    st = tsr__engine(session, &engine); // the child has it then
    if (st != TSR_OK)
        return st;
    return tsr__spawn(session, &spawn);
}

// ---- a single run ------------------------------------------------------------------------------

// The sets belong to the session, and the options are as this version of the library has them.
static tsr_status check_call(tsr_session *session, const tsr_run_options *options,
                             const tsr_tensors *inputs, const tsr_tensors *outputs,
                             tsr_run_options *checked)
{
    tsr_status st = tsr__tensors_owned(session, inputs);
    if (st != TSR_OK)
        return st;
    st = tsr__tensors_owned(session, outputs);
    if (st != TSR_OK)
        return st;
    return tsr__run_options(session, options, checked);
}

// What is asked for after the one run of a job.
// Under a launcher both are exchanges of all ranks, which make them in this order.
static tsr_status tell(tsr_job *job, const tsr_run_options *options, const char *weights,
                       const struct memory_mark *before)
{
    if (options->facts) {
        tsr_status st = tsr__facts_keep(job, weights, before);
        if (st != TSR_OK)
            return st;
    }
    if (options->trace)
        return tsr_job_trace(job);
    return TSR_OK;
}

// Runs a job on copies of the inputs: kernels of the engine write over what they are given (a
// BatchNormalization that trains, over its statistics). Partitions hold copies where that can be
// (partition/emit/emit_node.c), other models do not.
static tsr_status run_on_copies(tsr_session *session, tsr_job *job, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    tsr_tensors *copies = NULL;
    if (!inputs)
        return tsr_job_run(job, inputs, outputs);
    tsr_status st = tsr_tensors_new(session, &copies);
    if (st != TSR_OK)
        return st;
    st = tsr__tensors_copy(inputs, copies);
    if (st == TSR_OK)
        st = tsr_job_run(job, copies, outputs);
    tsr_tensors_free(copies);
    return st;
}

// The memory is marked before the model is loaded, so that the facts count what loading took.
tsr_status tsr_run_model(tsr_session *session, const char *path, const tsr_run_options *options,
                         const tsr_tensors *inputs, tsr_tensors *outputs)
{
    if (!session)
        return TSR_INVALID;
    if (!path)
        return tsr__missing(session, "path");
    tsr_run_options run_options;
    tsr_job *job = NULL;
    tsr_status st = check_call(session, options, inputs, outputs, &run_options);
    if (st != TSR_OK)
        return st;
    if (tsr__run_spawns(session, &run_options) &&
        tsr__gpu_named(session, run_options.device, &run_options))
        return run_model_apart(session, path, &run_options, inputs, outputs);
    struct arena arena;
    tsr__arena_init(&arena, session);
    const char *weights = tsr__folder_of(&arena, path).p;
    struct memory_mark before = tsr__memory_mark(weights);
    st = tsr_job_open_model(session, path, options, &job);
    if (st == TSR_OK)
        st = run_on_copies(session, job, inputs, outputs);
    if (st == TSR_OK)
        st = tell(job, &run_options, weights, &before);
    tsr_job_close(job);
    tsr__arena_free(&arena);
    return st;
}

// States of the manifest are left alone (false): a single run gives them as outputs like any other.
tsr_status tsr_run(tsr_session *session, const char *folder, const tsr_run_options *options,
                   const tsr_tensors *inputs, tsr_tensors *outputs)
{
    if (!session)
        return TSR_INVALID;
    tsr_run_options run_options;
    tsr_job *job = NULL;
    tsr_status st = check_call(session, options, inputs, outputs, &run_options);
    if (st != TSR_OK)
        return st;
    if (tsr__run_spawns(session, &run_options))
        return run_processes(session, folder, &run_options, inputs, outputs);
    struct memory_mark before = tsr__memory_mark(folder);
    st = tsr__job_open(session, folder, &run_options, false, &job);
    if (st != TSR_OK)
        return st;
    // The inputs were here before, and the rank needs them as it needs what came since.
    before.own -= tsr__job_input_bytes(job, inputs);
    st = tsr_job_run(job, inputs, outputs);
    if (st == TSR_OK)
        st = tell(job, &run_options, folder, &before);
    tsr_job_close(job);
    return st;
}
