// SPDX-License-Identifier: Apache-2.0
// verify_sharding.c - verifies one sharding: partitions into the temporary folder, runs sharded and
// unsharded, compares. The unsharded run is made once for all shardings.
//
// Ranks that were started separately (mpirun, --rank K) all come here. Rank 0 partitions, runs the
// unsharded model, broadcasts the folder of the partition, takes part in the sharded run and
// compares; the others only take part in the sharded run.
#include "verify/internal.h"
#include "runtime/runtime.h"

#include <math.h>

// ---- comparing ---------------------------------------------------------------------------------

// Adds one diagnostic for a value that differs. NaN means that there is no number to report.
static void report_difference(struct work *work, const tsr_difference *difference,
                              enum diag_code code, const char *against)
{
    struct place at = PLACE(.file = str_of(work->path), .value = str_of(difference->name));
    if (difference->max_abs != difference->max_abs)
        tsr__diag(work->session, code, &at, NULL,
                  "sharded and %s outputs differ in type, shape or content", against);
    else
        tsr__diag(work->session, code, &at, NULL,
                  "sharded and %s outputs differ by %.3g (%.3g of the largest magnitude)", against,
                  difference->max_abs, difference->max_rel);
}

// Compares with the outputs that were recorded with the inputs, and sets facts.recorded: 1 all
// agree, 0 some differ, -1 none recorded. Does not affect facts.ok.
static void compare_recorded(struct work *work, const tsr_tensors *sharded, struct outcome *outcome)
{
    size_t n = tsr_tensors_count(work->recorded);
    outcome->facts.recorded = -1; // nothing to compare with
    if (n)
        outcome->facts.recorded = 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_tensors_name(work->recorded, i);
        int64_t k = tsr_tensors_find(sharded, name);
        tsr_difference difference =
            tsr__compare(work->recorded, i, sharded, k, tsr__precision_of(work, name));
        if (difference.ok)
            continue;
        outcome->facts.recorded = 0;
        report_difference(work, &difference, DIAG_verify_recorded, "recorded");
    }
}

// Counts the elements of output i that are out of tolerance.
static struct differing count_differing(const struct work *work, size_t i,
                                        const tsr_tensors *sharded,
                                        const tsr_difference *difference, double tolerance)
{
    if (difference->ok)
        return (struct differing){0};
    tsr_dtype type = tsr_tensors_dtype(work->unsharded, i);
    double limit = tsr__compare_allowed(type, tolerance) * tsr__compare_largest(work->unsharded, i);
    int64_t k = tsr_tensors_find(sharded, tsr_tensors_name(work->unsharded, i));
    return (struct differing){limit,
                              tsr__compare_rest(work->unsharded, i, sharded, k, limit, NULL).count};
}

static void mention_random(struct work *work, const char *name)
{
    tsr__diag(work->session, DIAG_verify_random,
              &PLACE(.file = str_of(work->path), .value = str_of(name)),
              "set the attribute seed of the node that draws random numbers",
              "this output depends on random numbers without a seed, so only its type and shape "
              "were compared");
}

// Compares each output of the unsharded run with the sharded output of the same name. Returns
// TSR_DIFFERENT if one differs. An output with infinite tolerance depends on random numbers, which
// is reported.
static tsr_status compare_all(struct work *work, const tsr_tensors *sharded,
                              struct outcome *outcome)
{
    struct arena *arena = work->results;
    TRY(tsr__precision_find(work));
    size_t n = tsr_tensors_count(work->unsharded);
    tsr_difference *list = ARENA_ARRAY(arena, tsr_difference, n + 1);
    outcome->differing = ARENA_ARRAY(&work->arena, struct differing, n + 1);
    outcome->facts.ok = true;
    if (!list || !outcome->differing)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_tensors_name(work->unsharded, i);
        double tolerance = tsr__precision_of(work, name);
        list[i] =
            tsr__compare(work->unsharded, i, sharded, tsr_tensors_find(sharded, name), tolerance);
        if (isinf(tolerance))
            mention_random(work, name);
        outcome->differing[i] = count_differing(work, i, sharded, &list[i], tolerance);
        list[i].name = tsr__arena_str(arena, str_of(name)).p;
        if (arena->failed)
            return TSR_NOMEM;
        outcome->facts.ok &= list[i].ok;
    }
    outcome->outputs = list;
    outcome->facts.n_outputs = n;
    compare_recorded(work, sharded, outcome);
    if (arena->failed)
        return TSR_NOMEM;
    return outcome->facts.ok ? TSR_OK : TSR_DIFFERENT;
}

// ---- running -----------------------------------------------------------------------------------

// Reports that the unsharded model failed, because the engine's error does not name the model.
static void report_reference(struct work *work)
{
    tsr__diag(
        work->session, DIAG_verify_reference, &PLACE(.file = str_of(work->path)),
        "run the model in ONNX Runtime alone to reproduce the error; the sharding is not the cause",
        "ONNX Runtime fails to run the unsharded model; the error above is its message");
}

static tsr_status run_reference(struct work *work, const tsr_model *model, const char *config)
{
    tsr_run_options options = work->run;
    const char *path;
    options.trace = NULL; // traces are for the sharded run
    options.device = tsr__unsharded_device(model, config);
    work->on_ranks = options;
    if (work->options->reference_cpu) {
        options.device = NULL;
        options.n_map_devices = 0;
    }
    TRY(tsr__verify_lowered(work, &path));
    work->reference = options;
    work->reference_path = path;
    tsr_status st = tsr_run_model(work->session, path, &options, work->inputs, work->unsharded);
    bool failed =
        st == TSR_ENGINE || (st != TSR_OK && tsr__diag_has(work->session, "engine-failed"));
    if (failed && !tsr__diag_has(work->session, "provider-absent")) // a missing device says nothing
        report_reference(work);                                     // about the model
    return st;
}

// Runs the unsharded model once for all shardings. A failed run is not repeated: every sharding
// gets its status.
static tsr_status run_unsharded(struct work *work, const tsr_model *model, const char *config)
{
    if (!work->ran_unsharded)
        work->unsharded_status = run_reference(work, model, config);
    work->ran_unsharded = true;
    return work->unsharded_status;
}

// Runs the partition of rank 0 as one of the ranks that were started separately (--rank K). The
// outputs are discarded: rank 0 compares.
static tsr_status follow_rank_0(struct work *work)
{
    char parts[SCRATCH_PATH];
    tsr_tensors *none = NULL;
    TRY(tsr__run_broadcast(work->session, parts, sizeof(parts)));
    parts[sizeof(parts) - 1] = 0;
    tsr_status st = tsr_tensors_new(work->session, &none);
    if (st == TSR_OK)
        st = tsr_run(work->session, parts, &work->run, work->inputs, none);
    tsr_tensors_free(none);
    return st;
}

// Sends the folder of the partition from rank 0 to separately started ranks. A path that is too
// long is sent as "", which the others cannot open: they fail with their own diagnostic.
static tsr_status broadcast_parts(struct work *work)
{
    char parts[SCRATCH_PATH] = "";
    size_t n = strlen(work->scratch.parts);
    if (n < sizeof(parts))
        memcpy(parts, work->scratch.parts, n + 1);
    return tsr__run_broadcast(work->session, parts, sizeof(parts));
}

// Runs the unsharded model and the partition, and compares. `apart`: other ranks were started
// separately and wait for the folder of the partition.
static tsr_status run_and_compare(struct work *work, tsr_model *model, const char *config,
                                  bool apart, struct outcome *out)
{
    tsr__verify_step(work, STEP_UNSHARDED);
    tsr_status st = run_unsharded(work, model, config);
    tsr__verify_step(work, STEP_SHARDED);
    tsr_tensors_free(out->sharded); // of a run before, with rounded products
    out->sharded = NULL;
    if (st == TSR_OK)
        st = tsr_tensors_new(work->session, &out->sharded);
    if (st == TSR_OK && apart)
        st = broadcast_parts(work);
    if (st == TSR_OK)
        st = tsr_run(work->session, work->scratch.parts, &work->run, work->inputs, out->sharded);
    tsr__folder_remove(work->scratch.parts);
    tsr__verify_step(work, STEP_COMPARE);
    if (st == TSR_OK)
        st = compare_all(work, out->sharded, out);
    return st;
}

// Partitions the model, runs it sharded and unsharded, and compares the outputs. If outputs differ,
// checks whether the engine differs from itself, compares without rounding of activations, and
// checks whether the model amplifies rounding errors. If they still differ, reports it, and looks
// for saturation of 8-bit products and for the first value that differs.
static tsr_status verify_sharding(struct work *work, tsr_model *model, const char *config,
                                  struct outcome *out)
{
    tsr_partition_options options = {.size = sizeof(options), .config = config};
    int rank = 0;
    bool apart = work->run.ranks > 0 && tsr__run_launched(work->session, &work->run, &rank);
    if (apart && rank > 0)
        return follow_rank_0(work);
    tsr_partition_result_free(out->partition); // of a run before, with rounded products
    out->partition = NULL;
    tsr__verify_step(work, STEP_PARTITION);
    tsr_status st = tsr_partition(model, work->scratch.parts, &options, &out->partition);
    if (st != TSR_OK) {
        tsr__folder_remove(work->scratch.parts);
        return st;
    }
    st = run_and_compare(work, model, config, apart, out);
    if (st != TSR_DIFFERENT)
        return st;
    if (apart)
        work->run.transport = TSR_TRANSPORT_THREADS; // the other ranks have ended
    out->facts.ok =
        tsr__verify_self(work, out->partition->facts.devices, out->outputs, out->facts.n_outputs);
    if (out->facts.ok)
        return TSR_OK;
    if (!work->floats && !apart) {
        st = tsr__verify_floats(work, model, config, out);
        if (st != TSR_DIFFERENT || work->floats) // compared again, and reported
            return st;
    }
    out->facts.ok = tsr__verify_sensitivity(work, out);
    if (out->facts.ok)
        return TSR_OK;
    for (size_t i = 0; i < out->facts.n_outputs; i++)
        if (!out->outputs[i].ok)
            report_difference(work, &out->outputs[i], DIAG_verify_different, "unsharded");
    // Both checks run the engine again.
    tsr__verify_saturation(work);
    tsr__verify_locate(work, model, config, &out->first);
    return st;
}

tsr_status tsr__verify_sharding(struct work *work, tsr_model *model, const char *config,
                                struct outcome *out)
{
    tsr_status st = verify_sharding(work, model, config, out);
    tsr_tensors_free(out->sharded);
    out->sharded = NULL;
    return st;
}
