// SPDX-License-Identifier: Apache-2.0
// verify.c - tsr_verify: partition into a temporary folder, run cut and whole, compare. The folder
// goes in every case.
#include "verify/internal.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_folder(const char *path)
{
    struct stat info;
    return path && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static tsr_status load_inputs(struct work *w)
{
    const char *set = w->options->inputs ? w->options->inputs : "random";
    tsr_status st = tsr_tensors_load(w->inputs, set, w->model, false);
    if (st != TSR_OK || !is_folder(set))
        return st;
    struct str first = tsr__arena_printf(&w->arena, "%s/output_0.pb", set);
    if (!first.p)
        return TSR_NOMEM;
    return access(first.p, F_OK) == 0 ? tsr_tensors_load(w->recorded, set, w->model, true) : TSR_OK;
}

// ---- comparing ---------------------------------------------------------------------------------

static void report(struct work *w, const tsr_difference *d, enum diag_code code,
                   const char *against)
{
    struct place at = PLACE_NONE;
    at.file = str_of(w->path);
    at.value = str_of(d->name);
    if (d->max_abs != d->max_abs)
        tsr__diag(w->session, code, &at, NULL, "cut and %s differ in kind, shape or content",
                  against);
    else
        tsr__diag(w->session, code, &at, NULL,
                  "cut and %s differ by %.3g (%.3g of the largest magnitude)", against, d->max_abs,
                  d->max_rel);
}

static void compare_recorded(struct work *w, const tsr_tensors *cut, struct outcome *r)
{
    size_t n = tsr_tensors_count(w->recorded);
    r->recorded = n ? 1 : -1;
    for (size_t i = 0; i < n; i++) {
        const char *name = tsr_tensors_name(w->recorded, i);
        int64_t k = tsr_tensors_find(cut, name);
        tsr_difference d = tsr__compare(w->recorded, i, cut, k, tsr__precision_of(w, name));
        if (d.ok)
            continue;
        r->recorded = 0;
        report(w, &d, DIAG_verify_recorded, "recorded outputs");
    }
}

static void mention_random(struct work *w, const char *name)
{
    struct place at = PLACE_NONE;
    at.file = str_of(w->path);
    at.value = str_of(name);
    tsr__diag(
        w->session, DIAG_verify_random, &at, "give the node that draws a seed",
        "this output follows from random numbers without a seed: its shape alone is compared");
}

static tsr_status compare_all(struct work *w, const tsr_tensors *cut, struct outcome *r)
{
    struct arena *a = w->results;
    tsr_status st = tsr__precision_find(w);
    if (st != TSR_OK)
        return st;
    size_t n = tsr_tensors_count(w->whole);
    tsr_difference *list = ARENA_ARRAY(a, tsr_difference, n + 1);
    r->ok = true;
    for (size_t i = 0; i < n && list; i++) {
        const char *name = tsr_tensors_name(w->whole, i);
        double tolerance = tsr__precision_of(w, name);
        list[i] = tsr__compare(w->whole, i, cut, tsr_tensors_find(cut, name), tolerance);
        if (isinf(tolerance))
            mention_random(w, name);
        list[i].name = tsr__arena_str(a, str_of(name)).p;
        if (a->failed)
            return TSR_NOMEM;
        r->ok &= list[i].ok;
        if (!list[i].ok)
            report(w, &list[i], DIAG_verify_different, "whole");
    }
    r->outputs = list;
    r->n_outputs = n;
    compare_recorded(w, cut, r);
    return a->failed ? TSR_NOMEM : r->ok ? TSR_OK : TSR_DIFFERENT;
}

static const void *keep(struct arena *a, const void *from, size_t n, size_t bytes)
{
    void *to = tsr__arena_array(a, n + 1, bytes, _Alignof(max_align_t));
    if (to && n)
        memcpy(to, from, n * bytes);
    return to;
}

// The session's summary is of the last partition alone; there may be more.
static void keep_summary(struct arena *a, tsr_partition_summary *p)
{
    p->weight_bytes = keep(a, p->weight_bytes, p->devices, sizeof(*p->weight_bytes));
    p->weights = keep(a, p->weights, p->devices, sizeof(*p->weights));
    p->file_bytes = keep(a, p->file_bytes, p->devices, sizeof(*p->file_bytes));
    tsr_collective_count *counts = ARENA_ARRAY(a, tsr_collective_count, p->n_collectives + 1);
    for (size_t i = 0; i < p->n_collectives && counts; i++)
        counts[i] = (tsr_collective_count){tsr__arena_str(a, str_of(p->collectives[i].op)).p,
                                           p->collectives[i].count};
    p->collectives = counts;
    tsr_replicated *list = ARENA_ARRAY(a, tsr_replicated, p->n_replicated + 1);
    for (size_t i = 0; i < p->n_replicated && list; i++)
        list[i] = (tsr_replicated){tsr__arena_str(a, str_of(p->replicated[i].node)).p,
                                   tsr__arena_str(a, str_of(p->replicated[i].op)).p,
                                   tsr__arena_str(a, str_of(p->replicated[i].reason)).p};
    p->replicated = list;
}

// The whole run is one for all ways to cut.
static tsr_status run_whole(struct work *w)
{
    tsr_run_options whole = w->run;
    whole.trace = NULL; // the cut run's
    if (w->ran_whole)
        return TSR_OK;
    w->ran_whole = true;
    const char *path;
    tsr_status st = tsr__verify_lowered(w, &path);
    return st == TSR_OK ? tsr_run_model(w->session, path, &whole, w->inputs, w->whole) : st;
}

tsr_status tsr__verify_cut(struct work *w, tsr_model *m, const char *config, struct outcome *out)
{
    tsr_partition_options cut = {.size = sizeof(cut), .config = config};
    tsr_tensors *got = NULL;
    out->partition.size = sizeof(out->partition);
    tsr_status st = tsr_partition(m, w->scratch.parts, &cut, &out->partition);
    if (st == TSR_OK)
        keep_summary(w->results, &out->partition);
    if (st == TSR_OK)
        st = run_whole(w);
    if (st == TSR_OK)
        st = tsr_tensors_new(w->session, &got);
    if (st == TSR_OK)
        st = tsr_run(w->session, w->scratch.parts, &w->run, w->inputs, got);
    tsr__folder_remove(w->scratch.parts);
    if (st == TSR_OK)
        st = compare_all(w, got, out);
    tsr_tensors_free(got);
    if (st == TSR_DIFFERENT) {
        tsr__verify_saturation(w);
        tsr__verify_locate(w, m, config, &out->first);
    }
    return st;
}

// ---- all of it ---------------------------------------------------------------------------------

static tsr_status open_all(struct work *w)
{
    tsr_status st = tsr_model_load(w->session, w->path, &w->model);
    tsr_tensors **sets[] = {&w->inputs, &w->recorded, &w->whole};
    for (size_t i = 0; i < TSR_COUNT(sets) && st == TSR_OK; i++)
        st = tsr_tensors_new(w->session, sets[i]);
    if (st == TSR_OK)
        st = load_inputs(w);
    return st == TSR_OK ? tsr__scratch_open(w->session, &w->arena, w->options->work, &w->scratch)
                        : st;
}

static tsr_status verify_own(struct work *w, tsr_verify_result *r)
{
    struct outcome out = {.recorded = -1};
    tsr_plan_summary plan = {.size = sizeof(plan), .config = w->options->config};
    tsr_status st = TSR_OK;
    if (w->options->plan)
        st = tsr_plan_for(w->model, w->options->plan, w->inputs, &plan);
    if (st == TSR_OK)
        st = tsr__verify_cut(w, w->model, plan.config, &out);
    r->ok = out.ok;
    r->recorded = out.recorded;
    r->partition = out.partition;
    r->outputs = out.outputs;
    r->n_outputs = out.n_outputs;
    r->first = out.first;
    return st;
}

static void close_all(struct work *w)
{
    tsr__scratch_close(&w->scratch);
    tsr_tensors_free(w->whole);
    tsr_tensors_free(w->recorded);
    tsr_tensors_free(w->inputs);
    tsr_model_free(w->model);
    tsr__arena_free(&w->arena);
}

tsr_status tsr_verify(tsr_session *s, const char *model, const tsr_verify_options *options,
                      tsr_verify_result *result)
{
    tsr_verify_options given = {.size = sizeof(given)};
    if (options)
        memcpy(&given, options, options->size < sizeof(given) ? options->size : sizeof(given));
    struct work w = {.session = s, .path = model, .options = &given, .run = given.run};
    w.results = &s->results[RESULT_VERIFY];
    tsr__arena_free(w.results);
    w.run.size = sizeof(w.run);
    w.run.float_products =
        true; // cut and whole are fused differently, and 8-bit arithmetic would be all one sees
    if (!w.run.transport)
        w.run.transport = "threads"; // one process compares, whoever started it
    tsr__arena_init(&w.arena, s);
    tsr_verify_result r = {.size = sizeof(r), .recorded = -1};
    tsr_status st = open_all(&w);
    if (st == TSR_OK)
        st = given.random ? tsr__verify_trials(&w, &r) : verify_own(&w, &r);
    close_all(&w);
    if ((st == TSR_OK || st == TSR_DIFFERENT || r.n_trials) && result) {
        size_t n = result->size && result->size < sizeof(r) ? result->size : sizeof(r);
        r.size = n;
        memcpy(result, &r, n);
    }
    return st;
}
