// SPDX-License-Identifier: Apache-2.0
// processes.c - a run whose ranks are child processes of this one: each does what it would do under a
// launcher, and hands its results back.
#include "runtime/spawn.h"
#include "bundle/bundle.h"

// True where this process is no rank itself and the ranks are to be its children.
bool tsr__run_spawns(tsr_session *session, const tsr_run_options *options)
{
    const struct engine *engine = session->engine;
    return options->transport && strcmp(options->transport, "shm") == 0 &&
           !(engine && engine->mpi) && !tsr_run_place(options, NULL, NULL);
}

// Number of ranks of a partition whose files are all there and whole; ONNX Runtime is opened, so that
// the children have it.
tsr_status tsr__run_prepare(tsr_session *session, const char *folder,
                            const tsr_run_options *options, int *ranks)
{
    struct arena arena;
    struct bundle bundle;
    struct engine *engine;
    tsr__arena_init(&arena, session);
    tsr_status st = tsr__bundle_open(session, &arena, folder, &bundle);
    if (st == TSR_OK) {
        *ranks = (int)bundle.manifest.n_ranks;
        st = tsr__run_dialect(session, folder, &bundle.manifest);
        bool gpus = false;
        for (int64_t i = 0; i < bundle.manifest.n_ranks; i++)
            gpus = gpus || tsr__gpu_named(session, bundle.manifest.devices[i].device, options);
        if (st == TSR_OK && gpus)
            st = tsr__gpu_spoilt(session);
        if (st == TSR_OK)
            st = tsr__bundle_verify(&bundle, NULL, 0, options->check_files);
        tsr__bundle_close(&bundle);
    }
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return st;
    return tsr__engine(session, &engine);
}

// Of a partition or (whole) a model.
struct run_work {
    const char *path;
    bool whole;
    const tsr_tensors *inputs;
    tsr_tensors *outputs;
};

static tsr_status run_work(struct spawn *spawn, tsr_session *session, int rank, struct message *out)
{
    struct run_work *work = spawn->data;
    tsr_run_options options = *spawn->options;
    tsr_tensors *outputs = NULL;
    options.check_files = false; // done before
    tsr_status st = tsr_tensors_new(session, &outputs);
    if (st == TSR_OK && work->whole) {
        options.transport = "threads";
        st = tsr_run_model(session, work->path, &options, work->inputs, outputs);
    } else if (st == TSR_OK) {
        st = tsr_run(session, work->path, &options, work->inputs, outputs);
    }
    if (st == TSR_OK && rank == 0)
        tsr__message_put_tensors(out, outputs);
    tsr_tensors_free(outputs);
    return st;
}

static tsr_status run_take(struct spawn *spawn, tsr_session *session, int rank, struct message *in)
{
    (void)session;
    struct run_work *work = spawn->data;
    if (rank == 0 && work->outputs)
        return tsr__message_tensors(in, work->outputs);
    return TSR_OK;
}

tsr_status tsr__run_processes(tsr_session *session, const char *folder,
                              const tsr_run_options *options, const tsr_tensors *inputs,
                              tsr_tensors *outputs)
{
    struct run_work work = {folder, false, inputs, outputs};
    struct spawn w = {.options = options, .work = run_work, .take = run_take, .data = &work};
    tsr_status st = tsr__run_prepare(session, folder, options, &w.n);
    if (st != TSR_OK)
        return st;
    return tsr__spawn(session, &w);
}

tsr_status tsr__run_model_apart(tsr_session *session, const char *path,
                                const tsr_run_options *options, const tsr_tensors *inputs,
                                tsr_tensors *outputs)
{
    struct run_work work = {path, true, inputs, outputs};
    struct spawn w = {
        .options = options, .work = run_work, .take = run_take, .data = &work, .n = 1};
    struct engine *engine;
    tsr_status st = tsr__gpu_spoilt(session);
    if (st == TSR_OK)
        st = tsr__engine(session, &engine); // the child has it then
    if (st != TSR_OK)
        return st;
    return tsr__spawn(session, &w);
}
