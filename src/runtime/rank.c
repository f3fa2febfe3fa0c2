// SPDX-License-Identifier: Apache-2.0
// rank.c - one rank at work: opens its model in ONNX Runtime, meets the others, runs, keeps the
// results.
//
// Sequential mode always: communication blocks, and a pool of workers that all block is a deadlock.
#include "runtime/internal.h"

#include <stdio.h>

static struct place place_of(const struct rank *r)
{
    struct place at = PLACE_NONE;
    at.file = str_of(r->path);
    at.rank = r->endpoint ? r->endpoint->rank : -1;
    return at;
}

// Takes ONNX Runtime's word into a finding. status NULL: nothing happened.
static tsr_status engine_says(struct rank *r, OrtStatus *status, enum diag_code code,
                              const char *hint, const char *what)
{
    if (!status)
        return TSR_OK;
    struct place at = place_of(r);
    tsr__diag(r->session, code, &at, hint, "%s: %s", what, r->engine->api->GetErrorMessage(status));
    r->engine->api->ReleaseStatus(status);
    return TSR_ENGINE;
}

int tsr__rank_threads(int cores, int ranks, int wanted)
{
    int n = wanted > 0 ? wanted : cores / (ranks > 0 ? ranks : 1);
    return n > 1 ? n : 1;
}

// ---- session -----------------------------------------------------------------------------------

static OrtStatus *set_options(const struct rank *r, OrtSessionOptions *o)
{
    static const int levels[] = {0, 1, 2, 99};
    const OrtApi *api = r->engine->api;
    OrtStatus *st = api->SetSessionExecutionMode(o, ORT_SEQUENTIAL);
    if (!st)
        st = api->SetSessionLogSeverityLevel(o, ORT_LOG_FATAL);
    if (!st)
        st = api->SetIntraOpNumThreads(o, r->threads);
    if (!st)
        st = api->SetInterOpNumThreads(o, 1);
    if (!st && r->optimize > 0)
        st = api->SetSessionGraphOptimizationLevel(o, levels[r->optimize - 1]);
    if (!st && !r->spin)
        st = api->AddSessionConfigEntry(o, "session.intra_op.allow_spinning", "0");
    return st;
}

static OrtStatus *open_session(struct rank *r, OrtSessionOptions *o)
{
    struct engine *e = r->engine;
    if (!r->endpoint)
        return e->api->CreateSession(e->env, r->path, o, &r->ort);
    pthread_mutex_lock(&e->first);
    bool alone = !e->domain_known;
    if (!alone)
        pthread_mutex_unlock(&e->first);
    OrtStatus *st = e->api->CreateSession(e->env, r->path, o, &r->ort);
    if (alone) {
        e->domain_known = !st;
        pthread_mutex_unlock(&e->first);
    }
    return st;
}

static tsr_status create_session(struct rank *r, OrtSessionOptions *o)
{
    const OrtApi *api = r->engine->api;
    tsr_status st = engine_says(r, set_options(r, o), DIAG_engine_refused, NULL, "session options");
    if (st == TSR_OK && r->endpoint)
        st = engine_says(r, tsr__ops_add(api, r->engine->minor, o, r->endpoint, NULL, &r->ops),
                         DIAG_engine_refused, NULL, "communication operators");
    if (st == TSR_OK && r->ort_ops)
        st = engine_says(r, api->RegisterCustomOpsLibrary_V2(o, r->ort_ops), DIAG_ort_ops,
                         "check the path given with --ort-ops", r->ort_ops);
    if (st != TSR_OK)
        return st;
    return engine_says(r, open_session(r, o), DIAG_engine_refused,
                       "a newer ONNX Runtime may know the operator, type or version; custom "
                       "operators are given with --ort-ops",
                       "ONNX Runtime cannot load this model");
}

static tsr_status read_names(struct rank *r, bool outputs)
{
    const OrtApi *api = r->engine->api;
    size_t n = 0;
    OrtStatus *st =
        outputs ? api->SessionGetOutputCount(r->ort, &n) : api->SessionGetInputCount(r->ort, &n);
    const char **names = ARENA_ARRAY(&r->arena, const char *, n + 1);
    if (!names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n && !st; i++) {
        char *name = NULL;
        st = outputs ? api->SessionGetOutputName(r->ort, i, r->engine->allocator, &name)
                     : api->SessionGetInputName(r->ort, i, r->engine->allocator, &name);
        if (st)
            break;
        names[i] = tsr__arena_str(&r->arena, str_of(name)).p;
        OrtStatus *freed = api->AllocatorFree(r->engine->allocator, name);
        if (freed)
            api->ReleaseStatus(freed);
        if (!names[i])
            return TSR_NOMEM;
    }
    *(outputs ? &r->n_outputs : &r->n_inputs) = n;
    *(outputs ? &r->output_names : &r->input_names) = names;
    return engine_says(r, st, DIAG_engine_refused, NULL, "names of inputs and outputs");
}

static tsr_status rank_open(struct rank *r)
{
    OrtSessionOptions *o = NULL;
    tsr_status st = engine_says(r, r->engine->api->CreateSessionOptions(&o), DIAG_engine_refused,
                                NULL, "session options");
    if (st == TSR_OK)
        st = create_session(r, o);
    if (o)
        r->engine->api->ReleaseSessionOptions(o);
    if (st == TSR_OK)
        st = read_names(r, false);
    if (st == TSR_OK)
        st = read_names(r, true);
    return st;
}

// ---- inputs ------------------------------------------------------------------------------------

static tsr_status refuse_input(struct rank *r, size_t i, enum diag_code code, const char *hint,
                               const char *text)
{
    struct place at = place_of(r);
    at.value = str_of(r->input_names[i]);
    tsr__diag(r->session, code, &at, hint, "%s", text);
    return TSR_INVALID;
}

// Type and form, as people say it.
static const char *kind_text(char *out, size_t cap, bool optional, bool sequence, int type)
{
    snprintf(out, cap, "%s%s%s", optional ? "an optional " : "", sequence ? "a sequence of " : "",
             type ? tsr_dtype_name((tsr_dtype)type) : "what is not a tensor");
    return out;
}

static tsr_status check_input(struct rank *r, size_t i, const struct tensor *t)
{
    char text[256], have[64], want[64];
    struct wanted w;
    OrtStatus *asked = tsr__engine_wanted(r->engine, r->ort, i, &w);
    if (asked)
        return engine_says(r, asked, DIAG_engine_refused, NULL, "type of an input");
    bool none = t->rank < 0 && !t->sequence, sequence = t->sequence != NULL;
    if (none ? !w.optional : w.sequence != sequence || (tsr_dtype)w.type != t->type) {
        snprintf(text, sizeof text, "is %s, the model wants %s",
                 kind_text(have, sizeof have, none, sequence, (int)t->type),
                 kind_text(want, sizeof want, w.optional, w.sequence, w.type));
        return refuse_input(r, i, DIAG_input_mismatch, "convert it first", text);
    }
    if (none || sequence)
        return TSR_OK;
    bool fits = w.rank == (size_t)t->rank || w.rank == 0; // no shape declared looks like rank 0
    for (size_t d = 0; fits && d < w.rank && w.rank <= RUN_MAX_RANK; d++)
        if (w.dims[d] >= 0 && w.dims[d] != t->dims[d]) {
            snprintf(text, sizeof text, "dimension %zu is %lld, the model wants %lld", d,
                     (long long)t->dims[d], (long long)w.dims[d]);
            return refuse_input(r, i, DIAG_input_mismatch, "give the shape that the model has",
                                text);
        }
    if (fits)
        return TSR_OK;
    snprintf(text, sizeof text, "has %d dimensions, the model wants %zu", t->rank, w.rank);
    return refuse_input(r, i, DIAG_input_mismatch, "give the shape that the model has", text);
}

static tsr_status bind_input(struct rank *r, size_t i)
{
    int64_t at = tsr_tensors_find(r->inputs, r->input_names[i]);
    if (at < 0)
        return refuse_input(r, i, DIAG_input_missing, "name it in the set of inputs",
                            "no tensor is given for this input");
    const struct tensor *t = r->inputs->at[at];
    tsr_status st = check_input(r, i, t);
    if (st == TSR_OK)
        st = engine_says(r, tsr__engine_value(r->engine, &r->arena, t, &r->ins[i]),
                         DIAG_engine_failed, NULL, r->input_names[i]);
    if (st != TSR_OK || r->ins[i])
        return st;
    refuse_input(r, i, DIAG_tensor_kind, "run this model elsewhere",
                 "ONNX Runtime cannot be given an optional without a value");
    return TSR_ENGINE;
}

static tsr_status bind_inputs(struct rank *r)
{
    r->ins = ARENA_ARRAY(&r->arena, OrtValue *, r->n_inputs + 1);
    r->outs = ARENA_ARRAY(&r->arena, OrtValue *, r->n_outputs + 1);
    if (r->arena.failed)
        return TSR_NOMEM;
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < r->n_inputs; i++) { // every mistake at once
        tsr_status one = bind_input(r, i);
        st = st == TSR_OK ? one : st;
    }
    return st;
}

// ---- work --------------------------------------------------------------------------------------

static tsr_status rank_told(struct rank *r, const struct comm_trouble *why)
{
    struct place at = place_of(r);
    r->told = true;
    at.rank = why->rank;
    tsr__diag(r->session, DIAG_rank_failed, &at,
              "see what that rank says; a partition runs with all of its ranks or not at all", "%s",
              why->text);
    return why->status == TSR_OK ? TSR_PEER : why->status;
}

static tsr_status rank_run(struct rank *r)
{
    if (r->n_outputs == 0)
        return TSR_OK; // nothing to compute, nobody to talk to
    OrtStatus *st =
        r->engine->api->Run(r->ort, NULL, r->input_names, (const OrtValue *const *)r->ins,
                            r->n_inputs, r->output_names, r->n_outputs, r->outs);
    const struct comm_trouble *why = r->ops ? tsr__ops_trouble(r->ops) : NULL;
    if (!st || !why)
        return engine_says(r, st, DIAG_engine_failed, NULL, "ONNX Runtime failed");
    r->engine->api->ReleaseStatus(st);
    return rank_told(r, why);
}

static tsr_status meet(struct rank *r)
{
    struct comm_trouble why;
    if (!r->endpoint || tsr__comm_barrier(r->endpoint, r->plan, "start", &why) == TSR_OK)
        return TSR_OK;
    return rank_told(r, &why);
}

// Tells the other ranks that this one has failed, with its first finding.
static void tell(struct rank *r)
{
    char text[400];
    size_t n = tsr_finding_count(r->session);
    tsr_finding f = {0};
    if (n)
        f = tsr_finding_at(r->session, 0);
    snprintf(text, sizeof text, "rank %d failed: %s", r->endpoint->rank,
             n ? f.message : tsr_status_text(r->status));
    tsr__comm_fail(r->endpoint, r->status, text);
}

void tsr__rank_work(struct rank *r)
{
    r->status = TSR_NOMEM;
    r->session = tsr_session_new(NULL);
    if (!r->session) {
        if (r->endpoint)
            tsr__comm_fail(r->endpoint, TSR_NOMEM, "out of memory");
        return;
    }
    tsr__arena_init(&r->arena, r->session);
    r->status = rank_open(r);
    if (r->status == TSR_OK)
        r->status = bind_inputs(r);
    if (r->status == TSR_OK)
        r->status = meet(r);
    if (r->status == TSR_OK)
        r->status = rank_run(r);
    if (r->status != TSR_OK && r->endpoint && !r->told)
        tell(r);
}

// ---- results -----------------------------------------------------------------------------------

static tsr_status take_output(struct rank *r, size_t i, tsr_session *s, tsr_tensors *outputs)
{
    OrtStatus *failed = NULL;
    tsr_status st = tsr__engine_take(r->engine, r->outs[i], r->output_names[i], outputs, &failed);
    struct place at = place_of(r);
    at.value = str_of(r->output_names[i]);
    if (failed) {
        tsr__diag(s, DIAG_engine_failed, &at, NULL, "cannot read an output: %s",
                  r->engine->api->GetErrorMessage(failed));
        r->engine->api->ReleaseStatus(failed);
    } else if (st == TSR_ENGINE) {
        tsr__diag(s, DIAG_tensor_kind, &at,
                  "remove this output from the model, or read it elsewhere",
                  "this output is no tensor and no sequence of tensors");
    }
    return st;
}

tsr_status tsr__rank_outputs(struct rank *r, tsr_session *s, tsr_tensors *outputs)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < r->n_outputs && st == TSR_OK; i++)
        if (strcmp(r->output_names[i], RUN_TOKEN_OUTPUT) != 0)
            st = take_output(r, i, s, outputs);
    return st;
}

void tsr__rank_findings(const struct rank *r, tsr_session *s)
{
    for (size_t i = 0; r->session && i < r->session->diags.n; i++) {
        const struct diag_record *d = &r->session->diags.at[i];
        tsr__diag(s, d->code, &d->place, d->hint.n ? d->hint.p : NULL, STR_FMT,
                  STR_ARG(d->message));
    }
}

void tsr__rank_free(struct rank *r)
{
    if (!r->session)
        return;
    const OrtApi *api = r->engine->api;
    for (size_t i = 0; r->ins && i < r->n_inputs; i++)
        api->ReleaseValue(r->ins[i]);
    for (size_t i = 0; r->outs && i < r->n_outputs; i++)
        api->ReleaseValue(r->outs[i]);
    if (r->ort)
        api->ReleaseSession(r->ort);
    tsr__ops_free(r->ops);
    tsr__arena_free(&r->arena);
    tsr_session_free(r->session);
    r->session = NULL;
}
