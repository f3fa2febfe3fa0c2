// SPDX-License-Identifier: Apache-2.0
// rank.c - one rank at work: opens its model in ONNX Runtime, meets the others, runs as often as it is asked, keeps
// what stays with it between runs.
//
// Sequential mode always: communication blocks, and a pool of workers that all block is a deadlock.
#include "runtime/internal.h"
#include "gpu/gpu.h"

#include <stdio.h>

static struct place place_of(const struct rank *r)
{
    struct place at = PLACE_NONE;
    at.file = str_of(r->path);
    at.rank = r->endpoint ? r->endpoint->rank : -1;
    return at;
}

// True if ONNX Runtime's words mean that it could not have the memory it wanted.
static bool no_memory(const char *text)
{
    return strstr(text, "bad_alloc") || strstr(text, "allocate memory") ||
           strstr(text, "bad allocation") || strstr(text, "allocation failed") ||
           strstr(text, "out of memory") || strstr(text, "smaller than requested bytes");
}

// What would help a rank that had too little memory; of a GPU, what it has left.
static const char *memory_hint(struct rank *r)
{
    static const char usual[] = "more memory for that rank, or more ranks";
    int64_t available = 0, all = 0;
    if (!r->seat || tsr__seat_enter(r->seat) != 0 ||
        tsr__seat_free_memory(r->seat, &available, &all) != 0)
        return usual;
    struct str text = tsr__arena_printf(&r->arena,
                                        "%.*s has %lld MiB free of %lld MiB; more ranks, or a plan "
                                        "with --memory, need less on each",
                                        STR_ARG(tsr__device_mapped(r->device, r->options)),
                                        (long long)(available >> 20), (long long)(all >> 20));
    return text.p ? text.p : usual;
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
    if (!st) // a second block for all that the first run had in pieces: twice the memory, and no faster
        st = api->DisableMemPattern(o);
    if (!st && r->optimize > 0)
        st = api->SetSessionGraphOptimizationLevel(o, levels[r->optimize - 1]);
    if (!st && r->profile)
        st = api->EnableProfiling(o, r->profile);
    if (!st && r->unpacked)
        st = api->AddSessionConfigEntry(o, "session.disable_prepacking", "1");
    if (!st && r->float_products) // 4, the default, is 8-bit arithmetic: 0.5 % off
        st = api->AddSessionConfigEntry(o, "session.qdq_matmulnbits_accuracy_level", "1");
    if (!st && !r->spin)
        st = api->AddSessionConfigEntry(o, "session.intra_op.allow_spinning", "0");
    if (!st && !r->gpu && tsr__reach_share(r->engine, r->endpoint))
        st = api->AddSessionConfigEntry(o, "session.use_env_allocators", "1");
    return st;
}

static OrtStatus *new_session(struct rank *r, OrtSessionOptions *o)
{
    struct engine *e = r->engine;
    if (!r->shared || !r->shared->packed || r->unpacked || r->packs_alone)
        return e->api->CreateSession(e->env, r->path, o, &r->ort);
    return e->api->CreateSessionWithPrepackedWeightsContainer(e->env, r->path, o, r->shared->packed,
                                                              &r->ort);
}

static OrtStatus *open_session(struct rank *r, OrtSessionOptions *o)
{
    struct engine *e = r->engine;
    if (!r->endpoint)
        return new_session(r, o);
    pthread_mutex_lock(&e->first);
    bool alone = !e->domain_known;
    if (!alone)
        pthread_mutex_unlock(&e->first);
    OrtStatus *st = new_session(r, o);
    if (alone) {
        e->domain_known = !st;
        pthread_mutex_unlock(&e->first);
    }
    return st;
}

static tsr_status session_opened(struct rank *r, OrtStatus *status)
{
    const OrtApi *api = r->engine->api;
    struct place at = place_of(r);
    if (status && r->endpoint && no_memory(api->GetErrorMessage(status))) {
        (void)engine_says(r, status, DIAG_rank_memory, memory_hint(r),
                          "a rank ran out of memory while its model was loaded");
        return TSR_PEER;
    }
    if (status && tsr__refused_opset(r, &at, api->GetErrorMessage(status))) {
        api->ReleaseStatus(status);
        return TSR_ENGINE;
    }
    return engine_says(r, status, DIAG_engine_refused,
                       "a newer ONNX Runtime may know the operator, type or version; custom "
                       "operators are given with --ort-ops",
                       "ONNX Runtime cannot load this model");
}

static tsr_status create_session(struct rank *r, OrtSessionOptions *o)
{
    const OrtApi *api = r->engine->api;
    tsr_status st = engine_says(r, set_options(r, o), DIAG_engine_refused, NULL, "session options");
    if (st == TSR_OK && r->endpoint)
        st = engine_says(r, tsr__ops_add(api, r->engine->minor, o, r->endpoint, NULL, &r->ops),
                         DIAG_engine_refused, NULL, "communication operators");
    if (st == TSR_OK && r->ops && r->profile)
        tsr__ops_trace(r->ops);
    OrtStatus *failed = NULL;
    if (st == TSR_OK)
        st = tsr__weights_add(r, o, &failed);
    if (failed)
        st = engine_says(r, failed, DIAG_engine_refused, NULL, "weights");
    if (st == TSR_OK)
        st = tsr__provider_set(r, o);
    if (st == TSR_OK && r->ort_ops)
        st = engine_says(r, api->RegisterCustomOpsLibrary_V2(o, r->ort_ops), DIAG_ort_ops,
                         "check the path given with --ort-ops", r->ort_ops);
    if (st != TSR_OK)
        return st;
    return session_opened(r, open_session(r, o));
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

static tsr_status read_wanted(struct rank *r)
{
    OrtStatus *st = NULL;
    r->wanted = ARENA_ARRAY(&r->arena, struct wanted, r->n_inputs + 1);
    if (!r->wanted)
        return TSR_NOMEM;
    for (size_t i = 0; i < r->n_inputs && !st; i++)
        st = tsr__engine_wanted(r->engine, r->ort, i, &r->wanted[i]);
    return engine_says(r, st, DIAG_engine_refused, NULL, "types of inputs");
}

static tsr_status make_flights(struct rank *r)
{
    for (size_t i = 0; i < RUN_FLIGHTS; i++) {
        r->flights[i].ins = ARENA_ARRAY(&r->arena, OrtValue *, r->n_inputs + 1);
        r->flights[i].outs = ARENA_ARRAY(&r->arena, OrtValue *, r->n_outputs + 1);
        r->flights[i].kept = ARENA_ARRAY(&r->arena, bool, r->n_inputs + 1);
    }
    return r->arena.failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status open_model(struct rank *r)
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
    if (st == TSR_OK)
        st = read_wanted(r);
    if (st == TSR_OK)
        st = tsr__gpu_bind(r);
    return st == TSR_OK ? make_flights(r) : st;
}

// ---- inputs ------------------------------------------------------------------------------------

static tsr_status refuse_input(struct rank *r, tsr_session *s, size_t i, enum diag_code code,
                               const char *hint, const char *text)
{
    struct place at = place_of(r);
    at.value = str_of(r->input_names[i]);
    tsr__diag(s, code, &at, hint, "%s", text);
    return TSR_INVALID;
}

// Type and form, as people say it.
static const char *kind_text(char *out, size_t cap, bool optional, bool sequence, int type)
{
    snprintf(out, cap, "%s%s%s", optional ? "an optional " : "", sequence ? "a sequence of " : "",
             type ? tsr_dtype_name((tsr_dtype)type) : "what is not a tensor");
    return out;
}

static tsr_status check_input(struct rank *r, tsr_session *s, size_t i, const struct tensor *t)
{
    char text[256], have[64], want[64];
    struct wanted w = r->wanted[i];
    bool none = t->rank < 0 && !t->sequence, sequence = t->sequence != NULL;
    if (none ? !w.optional : w.sequence != sequence || (tsr_dtype)w.type != t->type) {
        snprintf(text, sizeof text, "is %s, the model wants %s",
                 kind_text(have, sizeof have, none, sequence, (int)t->type),
                 kind_text(want, sizeof want, w.optional, w.sequence, w.type));
        return refuse_input(r, s, i, DIAG_input_mismatch, "convert it first", text);
    }
    if (none || sequence)
        return TSR_OK;
    bool fits = w.rank == (size_t)t->rank || w.rank == 0; // no shape declared looks like rank 0
    for (size_t d = 0; fits && d < w.rank && w.rank <= RUN_MAX_RANK; d++)
        if (w.dims[d] >= 0 && w.dims[d] != t->dims[d]) {
            snprintf(text, sizeof text, "dimension %zu is %lld, the model wants %lld", d,
                     (long long)t->dims[d], (long long)w.dims[d]);
            return refuse_input(r, s, i, DIAG_input_mismatch, "give the shape that the model has",
                                text);
        }
    if (fits)
        return TSR_OK;
    snprintf(text, sizeof text, "has %d dimensions, the model wants %zu", t->rank, w.rank);
    return refuse_input(r, s, i, DIAG_input_mismatch, "give the shape that the model has", text);
}

static bool is_state(const struct rank *r, size_t input)
{
    for (size_t k = 0; k < r->n_states; k++)
        if (r->states[k].input == input)
            return true;
    return false;
}

static tsr_status bind_input(struct rank *r, struct flight *f, size_t i, const tsr_tensors *inputs,
                             tsr_session *s, bool ran)
{
    int64_t at = inputs ? tsr_tensors_find(inputs, r->input_names[i]) : -1;
    f->kept[i] = at < 0 && ran && is_state(r, i);
    if (f->kept[i])
        return TSR_OK;
    if (at < 0)
        return refuse_input(r, s, i, DIAG_input_missing,
                            is_state(r, i) ? "the first run has to be given its state"
                                           : "name it in the set of inputs",
                            "no tensor is given for this input");
    const struct tensor *t = inputs->at[at];
    tsr_status st = check_input(r, s, i, t);
    if (st != TSR_OK)
        return st;
    struct arena a;
    tsr__arena_init(&a, s);
    OrtStatus *failed = tsr__engine_value(r->engine, &a, t, &f->ins[i]);
    tsr__arena_free(&a);
    if (!failed && f->ins[i])
        return TSR_OK;
    if (failed)
        refuse_input(r, s, i, DIAG_engine_failed, NULL, r->engine->api->GetErrorMessage(failed));
    else
        refuse_input(r, s, i, DIAG_tensor_kind, "run this model elsewhere",
                     "ONNX Runtime cannot be given an optional without a value");
    if (failed)
        r->engine->api->ReleaseStatus(failed);
    return TSR_ENGINE;
}

tsr_status tsr__rank_bind(struct rank *r, size_t flight, const tsr_tensors *inputs,
                          const tsr_tensors *pieces, tsr_session *s, bool ran)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < r->n_inputs; i++) { // every mistake at once
        bool own = pieces && tsr_tensors_find(pieces, r->input_names[i]) >= 0;
        tsr_status one = bind_input(r, &r->flights[flight], i, own ? pieces : inputs, s, ran);
        st = st == TSR_OK ? one : st;
    }
    if (st != TSR_OK)
        tsr__rank_drop(r, flight);
    return st;
}

static int64_t find_name(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return (int64_t)i;
    return -1;
}

bool tsr__rank_keep(struct rank *r, const char *past, const char *present)
{
    int64_t in = find_name(r->input_names, r->n_inputs, past);
    int64_t out = find_name(r->output_names, r->n_outputs, present);
    if (in < 0 || out < 0)
        return false;
    struct rank_state *list = ARENA_ARRAY(&r->arena, struct rank_state, r->n_states + 1);
    if (!list)
        return false;
    if (r->n_states)
        memcpy(list, r->states, r->n_states * sizeof *list);
    list[r->n_states++] = (struct rank_state){.input = (size_t)in, .output = (size_t)out};
    r->states = list;
    return true;
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

// Values that stay: the old ones were this run's inputs, the new ones leave its outputs.
static void keep_states(struct rank *r, struct flight *f)
{
    for (size_t k = 0; k < r->n_states; k++) {
        struct rank_state *state = &r->states[k];
        if (state->value)
            r->engine->api->ReleaseValue(state->value);
        state->value = f->outs[state->output];
        f->outs[state->output] = NULL;
        if (f->kept[state->input])
            f->ins[state->input] = NULL;
    }
}

// What stands in a message between `before` and the next `end`; empty: it is not there.
static struct str quoted(const char *message, const char *before, char end)
{
    const char *at = strstr(message, before);
    if (!at)
        return (struct str){0};
    at += strlen(before);
    const char *stop = strchr(at, end);
    return stop ? (struct str){at, (size_t)(stop - at)} : (struct str){0};
}

// A kernel did not take what it was given. The model was loaded, so it is what runs through it that does not fit:
// "... while running Reshape node. Name:'r' Status Message: ..." tells where.
static tsr_status kernel_failed(struct rank *r, OrtStatus *status)
{
    const char *message = r->engine->api->GetErrorMessage(status);
    struct place at = place_of(r);
    at.op = quoted(message, "while running ", ' ');
    at.node = quoted(message, "Name:'", '\'');
    if (!at.op.n)
        return engine_says(r, status, DIAG_engine_failed, NULL, "ONNX Runtime failed");
    tsr__diag(r->session, DIAG_engine_failed, &at,
              "give inputs whose sizes and values fit this node, or mend the model",
              "ONNX Runtime failed: %s", message);
    r->engine->api->ReleaseStatus(status);
    return TSR_INVALID;
}

static OrtStatus *run_session(struct rank *r, struct flight *f)
{
    if (r->binding)
        return tsr__gpu_run(r, f);
    return r->engine->api->Run(r->ort, NULL, r->input_names, (const OrtValue *const *)f->ins,
                               r->n_inputs, r->output_names, r->n_outputs, f->outs);
}

static tsr_status run_once(struct rank *r, struct flight *f)
{
    if (r->n_outputs == 0)
        return TSR_OK; // nothing to compute, nobody to talk to
    for (size_t k = 0; k < r->n_states; k++)
        if (f->kept[r->states[k].input])
            f->ins[r->states[k].input] = r->states[k].value;
    OrtStatus *st = run_session(r, f);
    const struct comm_trouble *why = r->ops ? tsr__ops_trouble(r->ops) : NULL;
    if (!st)
        keep_states(r, f);
    for (size_t i = 0; st && i < r->n_inputs; i++)
        if (f->kept[i])
            f->ins[i] = NULL; // the state's own
    if (st && !why && r->endpoint && no_memory(r->engine->api->GetErrorMessage(st))) {
        engine_says(r, st, DIAG_rank_memory, memory_hint(r), "a rank ran out of memory");
        return TSR_PEER;
    }
    if (!st)
        return TSR_OK;
    if (!why)
        return kernel_failed(r, st);
    r->engine->api->ReleaseStatus(st);
    return rank_told(r, why);
}

void tsr__rank_meet(struct rank *r, const char *what)
{
    struct comm_trouble why;
    if (r->endpoint && tsr__comm_barrier(r->endpoint, r->plan, what, &why) != TSR_OK)
        r->status = rank_told(r, &why);
}

// Ranks that may be on GPUs tell each other where they are.
static void meet_devices(struct rank *r)
{
    struct comm_trouble why;
    if (r->base && tsr__device_meet(r->endpoint, r->plan, &why) != TSR_OK)
        r->status = rank_told(r, &why);
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

// Ranks that only measure are given no options.
static const tsr_run_options default_options = {.size = sizeof default_options};

void tsr__rank_open(struct rank *r)
{
    if (!r->options)
        r->options = &default_options;
    r->status = TSR_NOMEM;
    r->session = tsr_session_new(NULL);
    if (!r->session) {
        if (r->endpoint)
            tsr__comm_fail(r->endpoint, TSR_NOMEM, "out of memory");
        return;
    }
    tsr__arena_init(&r->arena, r->session);
    tsr__reach_running(r->engine, false);
    r->status = tsr__gpu_place(r);
    if (r->status == TSR_OK)
        r->status = open_model(r);
    tsr__reach_running(r->engine, true);
    if (r->status == TSR_OK)
        meet_devices(r);
    if (r->status == TSR_OK)
        tsr__rank_meet(r, "start");
    if (r->status != TSR_OK && r->endpoint && !r->told)
        tell(r);
}

void tsr__rank_run(struct rank *r, size_t flight)
{
    r->status = run_once(r, &r->flights[flight]);
    if (r->status != TSR_OK && r->endpoint && !r->told)
        tell(r);
}

// ---- results -----------------------------------------------------------------------------------

static tsr_status take_output(struct rank *r, const struct flight *f, size_t i, tsr_session *s,
                              tsr_tensors *outputs)
{
    OrtStatus *failed = NULL;
    bool there = r->binding && r->stays[i] && tsr__gpu_holds(r->engine, f->outs[i]);
    tsr_status st =
        there ? tsr__engine_fetch(r->engine, r->seat, f->outs[i], r->output_names[i], outputs,
                                  &failed)
              : tsr__engine_take(r->engine, f->outs[i], r->output_names[i], outputs, &failed);
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

static bool is_result(const struct rank *r, size_t output)
{
    for (size_t k = 0; k < r->n_states; k++)
        if (r->states[k].output == output)
            return false;
    return strcmp(r->output_names[output], RUN_TOKEN_OUTPUT) != 0;
}

tsr_status tsr__rank_copy(struct rank *r, size_t flight, tsr_session *s, tsr_tensors *outputs)
{
    for (size_t i = 0; i < r->n_outputs; i++) {
        tsr_status st = TSR_OK;
        if (is_result(r, i))
            st = take_output(r, &r->flights[flight], i, s, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__rank_take(struct rank *r, size_t flight, tsr_session *s, tsr_tensors *outputs)
{
    tsr_status st = outputs ? tsr__rank_copy(r, flight, s, outputs) : TSR_OK;
    tsr__rank_drop(r, flight);
    return st;
}

void tsr__rank_drop(struct rank *r, size_t flight)
{
    const OrtApi *api = r->engine->api;
    struct flight *f = &r->flights[flight];
    for (size_t i = 0; f->ins && i < r->n_inputs; i++) {
        api->ReleaseValue(f->ins[i]); // NULL is fine
        f->ins[i] = NULL;
    }
    for (size_t i = 0; f->outs && i < r->n_outputs; i++) {
        api->ReleaseValue(f->outs[i]);
        f->outs[i] = NULL;
    }
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
    for (size_t i = 0; i < RUN_FLIGHTS; i++)
        tsr__rank_drop(r, i);
    for (size_t i = 0; i < r->n_states; i++)
        api->ReleaseValue(r->states[i].value);
    if (r->binding)
        api->ReleaseIoBinding(r->binding);
    if (r->ort)
        api->ReleaseSession(r->ort);
    for (size_t i = 0; i < r->n_weights; i++)
        api->ReleaseValue(r->weights[i]);
    tsr__ops_free(r->ops);
    tsr__gpu_leave(r);
    tsr__arena_free(&r->arena);
    tsr_session_free(r->session);
    r->session = NULL;
}
