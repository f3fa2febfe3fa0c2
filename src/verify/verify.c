// SPDX-License-Identifier: Apache-2.0
// verify.c - tsr_verify: partition into a temporary folder, run cut and whole, compare. The folder
// goes in every case.
#include "verify/internal.h"
#include "plan/plan.h"
#include "runtime/runtime.h"
#include "topology/topology.h"

#include <math.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_folder(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static tsr_status load_inputs(struct work *work)
{
    const char *set = work->options->inputs ? work->options->inputs : "random";
    tsr_status st = tsr_tensors_load(work->inputs, set, work->model, false);
    if (st != TSR_OK || !is_folder(set))
        return st;
    struct str first = tsr__arena_printf(&work->arena, "%s/output_0.pb", set);
    if (!first.p)
        return TSR_NOMEM;
    if (access(first.p, F_OK) == 0)
        return tsr_tensors_load(work->recorded, set, work->model, true);
    return TSR_OK;
}

// ---- comparing ---------------------------------------------------------------------------------

static void report(struct work *work, const tsr_difference *difference, enum diag_code code,
                   const char *against)
{
    struct place at = PLACE_NONE;
    at.file = str_of(work->path);
    at.value = str_of(difference->name);
    if (difference->max_abs != difference->max_abs)
        tsr__diag(work->session, code, &at, NULL, "cut and %s differ in kind, shape or content",
                  against);
    else
        tsr__diag(work->session, code, &at, NULL,
                  "cut and %s differ by %.3g (%.3g of the largest magnitude)", against,
                  difference->max_abs, difference->max_rel);
}

static void compare_recorded(struct work *work, const tsr_tensors *cut, struct outcome *outcome)
{
    size_t n = tsr_tensors_count(work->recorded);
    outcome->recorded = n ? 1 : -1;
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
    tsr__diag(
        work->session, DIAG_verify_random, &at, "give the node that draws a seed",
        "this output follows from random numbers without a seed: its shape alone is compared");
}

// One difference for each output of the whole model, found by name in what the cut one gave. An infinite
// tolerance marks an output that depends on random numbers: it is mentioned.
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
        if (!list[i].ok)
            report(work, &list[i], DIAG_verify_different, "whole");
    }
    outcome->outputs = list;
    outcome->n_outputs = n;
    compare_recorded(work, cut, outcome);
    if (arena->failed)
        return TSR_NOMEM;
    return outcome->ok ? TSR_OK : TSR_DIFFERENT;
}

static const void *keep(struct arena *arena, const void *from, size_t n, size_t bytes)
{
    void *to = tsr__arena_array(arena, n + 1, bytes, _Alignof(max_align_t));
    if (to && n)
        memcpy(to, from, n * bytes);
    return to;
}

// The session's summary is of the last partition alone; there may be more.
static void keep_summary(struct arena *arena, tsr_partition_summary *summary)
{
    summary->weight_bytes =
        keep(arena, summary->weight_bytes, summary->devices, sizeof(*summary->weight_bytes));
    summary->weights = keep(arena, summary->weights, summary->devices, sizeof(*summary->weights));
    summary->file_bytes =
        keep(arena, summary->file_bytes, summary->devices, sizeof(*summary->file_bytes));
    tsr_collective_count *counts =
        ARENA_ARRAY(arena, tsr_collective_count, summary->n_collectives + 1);
    for (size_t i = 0; i < summary->n_collectives && counts; i++)
        counts[i] =
            (tsr_collective_count){tsr__arena_str(arena, str_of(summary->collectives[i].op)).p,
                                   summary->collectives[i].count};
    summary->collectives = counts;
    tsr_replicated *list = ARENA_ARRAY(arena, tsr_replicated, summary->n_replicated + 1);
    for (size_t i = 0; i < summary->n_replicated && list; i++)
        list[i] = (tsr_replicated){tsr__arena_str(arena, str_of(summary->replicated[i].node)).p,
                                   tsr__arena_str(arena, str_of(summary->replicated[i].op)).p,
                                   tsr__arena_str(arena, str_of(summary->replicated[i].reason)).p};
    summary->replicated = list;
}

// The first device of the configuration that is not the CPU, or NULL: what the whole model runs on too, so that cut and
// whole differ by the cut alone.
static const char *device_of(const tsr_model *model, const char *config)
{
    const tsr_config *c = config ? tsr_model_find_config(model, config) : NULL;
    if (!c && tsr_model_config_count(model) == 1)
        c = tsr_model_config(model, 0);
    size_t n = c ? tsr_config_device_name_count(c) : 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_config_device_name(c, i);
        if (name && name[0] && strncasecmp(name, "CPU", 3) != 0)
            return name;
    }
    return NULL;
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
    work->ran_whole = true;
    const char *path;
    tsr_status st = tsr__verify_lowered(work, &path);
    if (st != TSR_OK)
        return st;
    return tsr_run_model(work->session, path, &whole, work->inputs, work->whole);
}

// The part of a rank that was started apart from the others (--rank K): rank 0 cuts and compares, all run.
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

// Rank 0 tells the ranks that were started apart where the parts are.
static tsr_status tell_parts(struct work *work)
{
    char parts[SCRATCH_PATH] = "";
    size_t n = strlen(work->scratch.parts);
    if (n < sizeof(parts))
        memcpy(parts, work->scratch.parts, n + 1);
    return tsr__run_tell(work->session, parts, sizeof(parts));
}

// Cut, run both, compare. If outputs differ, two more questions: does this CPU lose digits of 8-bit
// products, and which value is the first to differ.
tsr_status tsr__verify_cut(struct work *work, tsr_model *model, const char *config,
                           struct outcome *out)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    tsr_tensors *got = NULL;
    int rank = 0;
    bool apart = work->run.ranks > 0 && tsr__run_launched(work->session, &work->run, &rank);
    if (apart && rank > 0)
        return help_rank_0(work);
    out->partition.size = sizeof(out->partition);
    tsr_status st = tsr_partition(model, work->scratch.parts, &cut, &out->partition);
    if (st == TSR_OK)
        keep_summary(work->results, &out->partition);
    if (st == TSR_OK)
        st = run_whole(work, model, config);
    if (st == TSR_OK && apart)
        st = tell_parts(work);
    if (st == TSR_OK)
        st = tsr_tensors_new(work->session, &got);
    if (st == TSR_OK)
        st = tsr_run(work->session, work->scratch.parts, &work->run, work->inputs, got);
    tsr__folder_remove(work->scratch.parts);
    if (st == TSR_OK)
        st = compare_all(work, got, out);
    tsr_tensors_free(got);
    if (st == TSR_DIFFERENT) {
        if (apart)
            work->run.transport = "threads"; // the others have ended
        tsr__verify_saturation(work);
        tsr__verify_locate(work, model, config, &out->first);
    }
    return st;
}

// ---- all of it ---------------------------------------------------------------------------------

static tsr_status open_all(struct work *work)
{
    tsr_status st = tsr_model_load(work->session, work->path, &work->model);
    tsr_tensors **sets[] = {&work->inputs, &work->recorded, &work->whole};
    for (size_t i = 0; i < TSR_COUNT(sets) && st == TSR_OK; i++)
        st = tsr_tensors_new(work->session, sets[i]);
    if (st == TSR_OK)
        st = load_inputs(work);
    if (st != TSR_OK)
        return st;
    return tsr__scratch_open(work->session, &work->arena, work->options->work, &work->scratch);
}

static tsr_status verify_own(struct work *work, tsr_verify_result *result)
{
    struct outcome out = {.recorded = -1};
    tsr_plan_summary plan = {.size = sizeof(plan), .config = work->options->config};
    tsr_status st = TSR_OK;
    bool plans = work->options->plan && work->run.rank == 0; // the others run what rank 0 cuts
    if (plans)
        st = tsr_plan_for(work->model, work->options->plan, work->inputs, &plan);
    if (st == TSR_OK)
        st = tsr__verify_cut(work, work->model, plan.config, &out);
    result->ok = out.ok;
    result->recorded = out.recorded;
    result->partition = out.partition;
    result->outputs = out.outputs;
    result->n_outputs = out.n_outputs;
    result->first = out.first;
    return st;
}

static void close_all(struct work *work)
{
    tsr__scratch_close(&work->scratch);
    tsr_tensors_free(work->whole);
    tsr_tensors_free(work->recorded);
    tsr_tensors_free(work->inputs);
    tsr_model_free(work->model);
    tsr__arena_free(&work->arena);
}

// Factors of 11 bits: 4 units of 2^-11, as sums of many such products differ.
#define TF32_TOLERANCE 2e-3

tsr_status tsr_verify(tsr_session *session, const char *model, const tsr_verify_options *options,
                      tsr_verify_result *result)
{
    tsr_verify_options given = {.size = sizeof(given)};
    if (options)
        memcpy(&given, options, options->size < sizeof(given) ? options->size : sizeof(given));
    tsr_status st = tsr__topology_owned(session, given.topology);
    if (st == TSR_OK && given.plan)
        st = tsr__plan_options_owned(session, given.plan);
    if (st != TSR_OK)
        return st;
    if (given.run.tf32 && given.tolerance == 0)
        given.tolerance = TF32_TOLERANCE;
    struct work work = {.session = session, .path = model, .options = &given, .run = given.run};
    if (!work.run.work)
        work.run.work = given.work;
    work.results = &session->results[RESULT_VERIFY];
    tsr__arena_free(work.results);
    work.run.size = sizeof(work.run);
    work.run.float_products =
        true; // cut and whole are fused differently, and 8-bit arithmetic would be all one sees
    if (!work.run.transport && work.run.ranks == 0)
        work.run.transport = "threads"; // one process compares, whoever started it
    tsr__arena_init(&work.arena, session);
    tsr_verify_result verify_result = {.size = sizeof(verify_result), .recorded = -1};
    if (work.run.ranks > 0)
        st = tsr_join(session, &work.run); // so that the others learn what goes wrong from here on
    if (st == TSR_OK)
        st = open_all(&work);
    if (st == TSR_OK)
        st = given.random ? tsr__verify_trials(&work, &verify_result)
                          : verify_own(&work, &verify_result);
    close_all(&work);
    if ((st == TSR_OK || st == TSR_DIFFERENT || verify_result.n_trials) && result) {
        size_t n = result->size && result->size < sizeof(verify_result) ? result->size
                                                                        : sizeof(verify_result);
        verify_result.size = n;
        memcpy(result, &verify_result, n);
    }
    return st;
}
