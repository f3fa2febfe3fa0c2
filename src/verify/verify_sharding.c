// SPDX-License-Identifier: Apache-2.0
// verify_cut.c - one way to cut a model: partition into the temporary folder, run cut and whole,
// compare. The whole run is done once however many ways are tried.
//
// Ranks that were started apart (mpirun, --rank K) all come here. Rank 0 cuts, runs the whole
// model, tells the others where the parts are, takes part in the cut run and compares; the others
// take part in the cut run only.
#include "verify/internal.h"
#include "runtime/runtime.h"

#include <math.h>
#include <strings.h>

// ---- comparing ---------------------------------------------------------------------------------

// One finding for a value that differs. NaN means that there is no number to give.
static void report(struct work *work, const tsr_difference *difference, enum diag_code code,
                   const char *against)
{
    struct place at = PLACE_NONE;
    at.file = str_of(work->path);
    at.value = str_of(difference->name);
    if (difference->max_abs != difference->max_abs)
        tsr__diag(work->session, code, &at, NULL,
                  "sharded and %s outputs differ in type, shape or content", against);
    else
        tsr__diag(work->session, code, &at, NULL,
                  "sharded and %s outputs differ by %.3g (%.3g of the largest magnitude)", against,
                  difference->max_abs, difference->max_rel);
}

// Against the outputs that came with the inputs: 1 equal, 0 some differ, -1 none there. It does not
// decide about ok.
static void compare_recorded(struct work *work, const tsr_tensors *cut, struct outcome *outcome)
{
    size_t n = tsr_tensors_count(work->recorded);
    outcome->recorded = -1; // there is nothing to compare with
    if (n)
        outcome->recorded = 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_tensors_name(work->recorded, i);
        int64_t k = tsr_tensors_find(cut, name);
        tsr_difference difference =
            tsr__compare(work->recorded, i, cut, k, tsr__precision_of(work, name));
        if (difference.ok)
            continue;
        outcome->recorded = 0;
        report(work, &difference, DIAG_verify_recorded, "recorded outputs");
    }
}

static void mention_random(struct work *work, const char *name)
{
    struct place at = PLACE_NONE;
    at.file = str_of(work->path);
    at.value = str_of(name);
    tsr__diag(work->session, DIAG_verify_random, &at,
              "set the attribute seed of the node that draws random numbers",
              "this output depends on random numbers without a seed, so only its type and shape "
              "were compared");
}

// One difference for each output of the whole model, found by name in what the cut one gave. An
// infinite tolerance marks an output that depends on random numbers: it is mentioned.
static tsr_status compare_all(struct work *work, const tsr_tensors *cut, struct outcome *outcome)
{
    struct arena *arena = work->results;
    tsr_status st = tsr__precision_find(work);
    if (st != TSR_OK)
        return st;
    size_t n = tsr_tensors_count(work->whole);
    tsr_difference *list = ARENA_ARRAY(arena, tsr_difference, n + 1);
    outcome->ok = true;
    if (!list)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_tensors_name(work->whole, i);
        double tolerance = tsr__precision_of(work, name);
        list[i] = tsr__compare(work->whole, i, cut, tsr_tensors_find(cut, name), tolerance);
        if (isinf(tolerance))
            mention_random(work, name);
        list[i].name = tsr__arena_str(arena, str_of(name)).p;
        if (arena->failed)
            return TSR_NOMEM;
        outcome->ok &= list[i].ok;
    }
    outcome->outputs = list;
    outcome->n_outputs = n;
    compare_recorded(work, cut, outcome);
    if (arena->failed)
        return TSR_NOMEM;
    if (!outcome->ok)
        return TSR_DIFFERENT;
    return TSR_OK;
}

// ---- what stays of a partition -----------------------------------------------------------------

// A copy of n entries in the arena; NULL: no memory.
static const void *keep(struct arena *arena, const void *from, size_t n, size_t bytes)
{
    void *to = tsr__arena_array(arena, n + 1, bytes, _Alignof(max_align_t));
    if (to && n)
        memcpy(to, from, n * bytes);
    return to;
}

// Names and counts, copied; the same for replicated nodes below.
static void keep_collectives(struct arena *arena, tsr_partition_summary *summary)
{
    tsr_collective_count *counts =
        ARENA_ARRAY(arena, tsr_collective_count, summary->n_collectives + 1);
    const tsr_collective_count *from = summary->collectives;
    summary->collectives = counts;
    if (!counts)
        return;
    for (size_t i = 0; i < summary->n_collectives; i++) {
        counts[i].op = tsr__arena_str(arena, str_of(from[i].op)).p;
        counts[i].count = from[i].count;
    }
}

static void keep_replicated(struct arena *arena, tsr_partition_summary *summary)
{
    tsr_replicated *list = ARENA_ARRAY(arena, tsr_replicated, summary->n_replicated + 1);
    const tsr_replicated *from = summary->replicated;
    summary->replicated = list;
    if (!list)
        return;
    for (size_t i = 0; i < summary->n_replicated; i++) {
        list[i].node = tsr__arena_str(arena, str_of(from[i].node)).p;
        list[i].op = tsr__arena_str(arena, str_of(from[i].op)).p;
        list[i].reason = tsr__arena_str(arena, str_of(from[i].reason)).p;
    }
}

// The session's summary is of the last partition alone; there may be more.
static void keep_summary(struct arena *arena, tsr_partition_summary *summary)
{
    size_t n = summary->devices;
    summary->weight_bytes = keep(arena, summary->weight_bytes, n, sizeof(*summary->weight_bytes));
    summary->weights = keep(arena, summary->weights, n, sizeof(*summary->weights));
    summary->file_bytes = keep(arena, summary->file_bytes, n, sizeof(*summary->file_bytes));
    keep_collectives(arena, summary);
    keep_replicated(arena, summary);
}

// ---- running -----------------------------------------------------------------------------------

// The first device of the configuration that is not the CPU, or NULL: what the whole model runs on
// too, so that cut and whole differ by the cut alone.
static const char *device_of(const tsr_model *model, const char *name)
{
    const tsr_config *config = NULL;
    if (name)
        config = tsr_model_find_config(model, name);
    if (!config && tsr_model_config_count(model) == 1)
        config = tsr_model_config(model, 0);
    if (!config)
        return NULL;
    for (size_t i = 0; i < tsr_config_device_name_count(config); i++) {
        const char *device = tsr_config_device_name(config, i);
        if (device && device[0] && strncasecmp(device, "CPU", 3) != 0)
            return device;
    }
    return NULL;
}

// The engine's own error does not say which model it was given.
static void report_reference(struct work *work)
{
    struct place at = PLACE_NONE;
    at.file = str_of(work->path);
    tsr__diag(
        work->session, DIAG_verify_reference, &at,
        "run the model in ONNX Runtime alone to reproduce the error; the sharding is not the cause",
        "ONNX Runtime also fails to run the unsharded model; the error above is its message");
}

// The whole run is one for all ways to cut.
static tsr_status run_whole(struct work *work, const tsr_model *model, const char *config)
{
    tsr_run_options whole = work->run;
    whole.trace = NULL; // the cut run's
    whole.device = device_of(model, config);
    if (work->options->reference_cpu) {
        whole.device = NULL;
        whole.n_map_devices = 0;
    }
    if (work->ran_whole)
        return TSR_OK;
    // Set before it runs: what failed once is not tried again for the next way to cut.
    work->ran_whole = true;
    const char *path;
    tsr_status st = tsr__verify_lowered(work, &path);
    if (st != TSR_OK)
        return st;
    work->reference = whole;
    work->reference_path = path;
    st = tsr_run_model(work->session, path, &whole, work->inputs, work->whole);
    if (st == TSR_ENGINE || (st != TSR_OK && tsr__diag_has(work->session, "engine-failed")))
        report_reference(work);
    return st;
}

// The part of a rank that was started apart from the others (--rank K): rank 0 cuts and compares,
// all run.
static tsr_status help_rank_0(struct work *work)
{
    char parts[SCRATCH_PATH];
    tsr_tensors *none = NULL;
    tsr_status st = tsr__run_tell(work->session, parts, sizeof(parts));
    if (st != TSR_OK)
        return st;
    parts[sizeof(parts) - 1] = 0;
    st = tsr_tensors_new(work->session, &none);
    if (st == TSR_OK)
        st = tsr_run(work->session, parts, &work->run, work->inputs, none);
    tsr_tensors_free(none);
    return st;
}

// Rank 0 sends separately started ranks the folder of the parts. A path that is too long is sent as
// "", which the others cannot open: they fail with their own diagnostic.
static tsr_status tell_parts(struct work *work)
{
    char parts[SCRATCH_PATH] = "";
    size_t n = strlen(work->scratch.parts);
    if (n < sizeof(parts))
        memcpy(parts, work->scratch.parts, n + 1);
    return tsr__run_tell(work->session, parts, sizeof(parts));
}

// Runs the whole model and the parts, and compares. `apart`: other ranks were started apart from
// this process and wait to be told where the parts are.
static tsr_status run_and_compare(struct work *work, tsr_model *model, const char *config,
                                  bool apart, struct outcome *out)
{
    tsr_tensors *got = NULL;
    tsr_status st = run_whole(work, model, config);
    if (st != TSR_OK)
        goto remove_parts;
    if (apart)
        st = tell_parts(work);
    if (st != TSR_OK)
        goto remove_parts;
    st = tsr_tensors_new(work->session, &got);
    if (st != TSR_OK)
        goto remove_parts;
    st = tsr_run(work->session, work->scratch.parts, &work->run, work->inputs, got);
remove_parts:
    tsr__folder_remove(work->scratch.parts);
    if (st == TSR_OK)
        st = compare_all(work, got, out);
    tsr_tensors_free(got);
    return st;
}

// Cut, run both, compare. If outputs differ, two more questions: does this CPU lose digits of 8-bit
// products, and which value is the first to differ.
tsr_status tsr__verify_cut(struct work *work, tsr_model *model, const char *config,
                           struct outcome *out)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    int rank = 0;
    bool apart = work->run.ranks > 0 && tsr__run_launched(work->session, &work->run, &rank);
    if (apart && rank > 0)
        return help_rank_0(work);
    out->partition.size = sizeof(out->partition);
    tsr_status st = tsr_partition_into(model, work->scratch.parts, &cut, &out->partition);
    if (st != TSR_OK) {
        tsr__folder_remove(work->scratch.parts);
        return st;
    }
    keep_summary(work->results, &out->partition);
    st = run_and_compare(work, model, config, apart, out);
    if (st != TSR_DIFFERENT)
        return st;
    if (apart)
        work->run.transport = TSR_TRANSPORT_THREADS; // the others have ended
    out->ok = tsr__verify_self(work, out->partition.devices, out->outputs, out->n_outputs);
    if (out->ok)
        return TSR_OK;
    for (size_t i = 0; i < out->n_outputs; i++)
        if (!out->outputs[i].ok)
            report(work, &out->outputs[i], DIAG_verify_different, "whole");
    // Both questions run the engine again.
    tsr__verify_saturation(work);
    tsr__verify_locate(work, model, config, &out->first);
    return st;
}
