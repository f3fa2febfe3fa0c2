// SPDX-License-Identifier: Apache-2.0
// job_unsharded.c - the job of an unsharded model: one rank on the caller's thread, without
// communication.
//
// The simplest kind, and the one to read first. Nothing here waits: start makes the complete run
// before it returns, finish returns its results.
#include "runtime/job.h"

// ---- the file ----------------------------------------------------------------------------------

// ONNX Runtime before 1.23 refuses IR version 11, which every annotated model has. It does not use
// the annotations, so it gets a copy without them, with the highest IR version that it supports, in
// a temporary folder.

// Returns the highest IR version that ONNX Runtime 1.minor reads; INT64_MAX: no file needs a copy.
static int64_t newest_ir(int minor)
{
    if (!tsr__quirk_applies(QUIRK_ir_version_11, minor))
        return INT64_MAX;
    return minor >= 18 ? 10 : 9;
}

// Removes all device annotations and sets the IR version. Annotations of nodes come first, because
// they refer to configurations.
static tsr_status strip(tsr_model *model, int64_t ir)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        while (tsr_node_config_count(node))
            TRY(tsr_node_remove_config(node, tsr_node_config_at(node, 0)));
    while (tsr_model_config_count(model))
        TRY(tsr_model_remove_config(model, tsr_model_config(model, 0), false));
    return tsr_model_set_ir_version(model, ir);
}

// Writes a copy of the model that the engine reads. External data is copied too, so that the copy
// does not depend on the original's folder.
static tsr_status write_copy(tsr_session *session, tsr_model *model, const char *work,
                             struct unsharded_file *file)
{
    TRY(tsr__temporary_folder(session, work, "run", &file->folder));
    file->path = tsr__arena_printf(&file->arena, "%s/model.onnx", file->folder->path).p;
    if (!file->path)
        return TSR_NOMEM;
    TRY(tsr_model_copy_data(model, file->path));
    return tsr_model_save(model, file->path);
}

// Finds the file that the engine reads: the model itself, or a copy in an older IR version. If the
// engine is new enough, the model is not read here.
tsr_status tsr__unsharded_open(tsr_session *session, int minor, const char *path, const char *work,
                               struct unsharded_file *file)
{
    *file = (struct unsharded_file){.path = path};
    tsr__arena_init(&file->arena, session);
    int64_t ir = newest_ir(minor);
    if (ir == INT64_MAX)
        return TSR_OK;
    tsr_model *model;
    tsr_status st = tsr_model_load(session, path, &model);
    if (st != TSR_OK)
        return st;
    if (tsr_model_ir_version(model) > ir) {
        st = strip(model, ir);
        if (st == TSR_OK)
            st = write_copy(session, model, work, file);
    }
    tsr_model_free(model);
    return st;
}

// Removes the copy. Also accepts a zeroed struct.
void tsr__unsharded_close(struct unsharded_file *file)
{
    tsr__temporary_remove(file->folder);
    tsr__arena_free(&file->arena);
}

// ---- the job -----------------------------------------------------------------------------------

// Opens an unsharded model. The engine comes first: its release decides whether the file must be
// copied (tsr__unsharded_open).
static tsr_status unsharded_open(tsr_job *job, const char *path, bool states)
{
    (void)states; // there is no manifest to name them
    TRY(tsr__engine(job->session, &job->engine));
    TRY(tsr__ranks_new(job, 1));
    TRY(tsr__unsharded_open(job->session, job->engine->minor, path, job->options.work,
                            &job->unsharded));
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
    TRY(tsr__ranks_bind(job, inputs, form));
    tsr__ranks_run_here(job);
    return TSR_OK;
}

// Takes the results, or drops them after a failure. Both free their slot.
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
    return tsr__ranks_keep(job, past, present, false) ? TSR_OK : TSR_INVALID;
}

// Closes an unsharded model. The engine's session may have mapped files of the copy, so it is
// closed before the folder is removed.
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
