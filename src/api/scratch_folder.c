// SPDX-License-Identifier: Apache-2.0
// scratch_folder.c - partitions an annotated model into a temporary folder and runs it.
#include "api/api.h"
#include "partition/partition.h"
#include "runtime/runtime.h"
#include "tensors/tensors.h"

// Creates the temporary folder. Callers write the partition to the subfolder "parts" of it.
tsr_status tsr__scratch_open(tsr_session *session, struct arena *arena, const char *base,
                             struct scratch *out)
{
    out->session = session;
    out->mark = tsr__diag_mark(session);
    TRY(tsr__temporary_folder(session, base, "verify", &out->temporary));
    out->folder = out->temporary->path;
    out->parts = tsr__arena_printf(arena, "%s/parts", out->folder).p;
    return out->parts ? TSR_OK : TSR_NOMEM;
}

// Removes the temporary folder, if this rank has created one. If scratch->model is set, diagnostics
// that name a file of the partition are changed first: they then name the model.
void tsr__scratch_close(struct scratch *scratch)
{
    if (scratch->model && scratch->model[0] && scratch->parts)
        tsr__diag_set_file(scratch->session, &scratch->mark, scratch->parts, scratch->model);
    tsr__temporary_remove(scratch->temporary);
    *scratch = (struct scratch){0};
}

// Partitions the model into a temporary folder. The caller must close the folder and free the
// arena, also after a failure. Under a launcher, only rank 0 partitions; it sends the path to the
// other ranks.
static tsr_status partition_here(tsr_model *model, const char *config, const char *work,
                                 const tsr_run_options *options, struct arena *arena,
                                 struct scratch *at)
{
    tsr_session *session = tsr_model_session(model);
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    const char *own = options ? options->work : NULL;
    int rank;
    char path[SCRATCH_PATH] = "";
    bool launched = tsr__run_launched(session, options, &rank);
    tsr__arena_init(arena, session);
    *at = (struct scratch){.session = session, .mark = tsr__diag_mark(session)};
    at->model = tsr_model_path(model);
    tsr_status st = TSR_OK;
    if (rank == 0) {
        st = tsr__scratch_open(session, arena, work ? work : own, at);
        if (st == TSR_OK)
            st = tsr_partition(model, at->parts, &cut, NULL);
    }
    if (!launched || st != TSR_OK)
        return st;
    if (rank == 0 && strlen(at->parts) < sizeof path)
        memcpy(path, at->parts, strlen(at->parts) + 1);
    st = tsr__run_broadcast(session, path, sizeof path);
    path[sizeof path - 1] = 0;
    if (st == TSR_OK && rank > 0)
        at->parts = tsr__arena_str(arena, str_of(path)).p;
    if (st == TSR_OK && rank > 0 && !at->parts)
        return TSR_NOMEM;
    return st;
}

// Partitions the model, runs it once and removes the folder.
tsr_status tsr_run_annotated(tsr_model *model, const char *config, const char *work,
                             const tsr_run_options *options, const tsr_tensors *inputs,
                             tsr_tensors *outputs)
{
    struct scratch at = {0};
    struct arena arena;
    tsr_session *session = tsr_model_session(model);
    TRY(tsr__tensors_owned(session, inputs));
    TRY(tsr__tensors_owned(session, outputs));
    tsr_status st = partition_here(model, config, work, options, &arena, &at);
    if (st == TSR_OK)
        st = tsr_run(session, at.parts, options, inputs, outputs);
    st = tsr__run_end(session, options, st); // while the folder exists: another rank may open it
    tsr__scratch_close(&at);
    tsr__arena_free(&arena);
    return st;
}

// Partitions the model and runs it repeatedly for `seconds`, then removes the folder.
tsr_status tsr_bench_annotated(tsr_model *model, const char *config, const char *work,
                               const tsr_run_options *options, const tsr_tensors *inputs,
                               double seconds, tsr_bench_result *result,
                               tsr_bench_baseline *baseline)
{
    struct scratch at = {0};
    struct arena arena;
    tsr_session *session = tsr_model_session(model);
    TRY(tsr__tensors_owned(session, inputs));
    tsr_status st = partition_here(model, config, work, options, &arena, &at);
    if (st == TSR_OK && baseline)
        st = tsr__bench_turns(model, config, at.parts, options, inputs, seconds, result, baseline);
    else if (st == TSR_OK)
        st = tsr_bench(session, at.parts, options, inputs, seconds, result);
    st = tsr__run_end(session, options, st); // while the folder exists: another rank may open it
    tsr__scratch_close(&at);
    tsr__arena_free(&arena);
    return st;
}
