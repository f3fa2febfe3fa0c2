// SPDX-License-Identifier: Apache-2.0
// rank.c - one rank at work: opens its model in ONNX Runtime, meets the others, runs as often as it is asked, keeps
// what stays with it between runs.
//
// Sequential mode always: communication blocks, and a pool of workers that all block is a deadlock.
#include "runtime/internal.h"
#include "gpu/gpu.h"

#include <stdio.h>

static struct place place_of(const struct rank *rank)
{
    struct place at = PLACE_NONE;
    at.file = str_of(rank->path);
    at.rank = rank->endpoint ? rank->endpoint->rank : -1;
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
static const char *memory_hint(struct rank *rank)
{
    static const char usual[] = "more memory for that rank, or more ranks";
    int64_t available = 0, all = 0;
    if (!rank->seat || tsr__seat_enter(rank->seat) != 0 ||
        tsr__seat_free_memory(rank->seat, &available, &all) != 0)
        return usual;
    struct str text = tsr__arena_printf(&rank->arena,
                                        "%.*s has %lld MiB free of %lld MiB; more ranks, or a plan "
                                        "with --memory, need less on each",
                                        STR_ARG(tsr__device_mapped(rank->device, rank->options)),
                                        (long long)(available >> 20), (long long)(all >> 20));
    return text.p ? text.p : usual;
}

// Takes ONNX Runtime's word into a finding. status NULL: nothing happened.
static tsr_status engine_says(struct rank *rank, OrtStatus *status, enum diag_code code,
                              const char *hint, const char *what)
{
    if (!status)
        return TSR_OK;
    struct place at = place_of(rank);
    tsr__diag(rank->session, code, &at, hint, "%s: %s", what,
              rank->engine->api->GetErrorMessage(status));
    rank->engine->api->ReleaseStatus(status);
    return TSR_ENGINE;
}

// ---- session -----------------------------------------------------------------------------------

static OrtStatus *set_options(const struct rank *rank, OrtSessionOptions *options)
{
    static const int levels[] = {0, 1, 2, 99};
    const OrtApi *api = rank->engine->api;
    OrtStatus *st = api->SetSessionExecutionMode(options, ORT_SEQUENTIAL);
    if (!st)
        st = api->SetSessionLogSeverityLevel(options, ORT_LOG_FATAL);
    if (!st)
        st = api->SetIntraOpNumThreads(options, rank->threads);
    if (!st)
        st = api->SetInterOpNumThreads(options, 1);
    if (!st) // a second block for all that the first run had in pieces: twice the memory, and no faster
        st = api->DisableMemPattern(options);
    if (!st && rank->optimize > 0)
        st = api->SetSessionGraphOptimizationLevel(options, levels[rank->optimize - 1]);
    if (!st && rank->profile)
        st = api->EnableProfiling(options, rank->profile);
    if (!st && rank->unpacked)
        st = api->AddSessionConfigEntry(options, "session.disable_prepacking", "1");
    if (!st && rank->float_products) // 4, the default, is 8-bit arithmetic: 0.5 % off
        st = api->AddSessionConfigEntry(options, "session.qdq_matmulnbits_accuracy_level", "1");
    if (!st && !rank->spin)
        st = api->AddSessionConfigEntry(options, "session.intra_op.allow_spinning", "0");
    if (!st && !rank->gpu && tsr__reach_share(rank->engine, rank->endpoint))
        st = api->AddSessionConfigEntry(options, "session.use_env_allocators", "1");
    return st;
}

static OrtStatus *new_session(struct rank *rank, OrtSessionOptions *options)
{
    struct engine *engine = rank->engine;
    if (!rank->shared || !rank->shared->packed || rank->unpacked || rank->packs_alone)
        return engine->api->CreateSession(engine->env, rank->path, options, &rank->ort);
    return engine->api->CreateSessionWithPrepackedWeightsContainer(
        engine->env, rank->path, options, rank->shared->packed, &rank->ort);
}

static OrtStatus *open_session(struct rank *rank, OrtSessionOptions *options)
{
    struct engine *engine = rank->engine;
    if (!rank->endpoint)
        return new_session(rank, options);
    pthread_mutex_lock(&engine->first);
    bool alone = !engine->domain_known;
    if (!alone)
        pthread_mutex_unlock(&engine->first);
    OrtStatus *st = new_session(rank, options);
    if (alone) {
        engine->domain_known = !st;
        pthread_mutex_unlock(&engine->first);
    }
    return st;
}

static tsr_status session_opened(struct rank *rank, OrtStatus *status)
{
    const OrtApi *api = rank->engine->api;
    struct place at = place_of(rank);
    if (status && rank->endpoint && no_memory(api->GetErrorMessage(status))) {
        (void)engine_says(rank, status, DIAG_rank_memory, memory_hint(rank),
                          "a rank ran out of memory while its model was loaded");
        return TSR_PEER;
    }
    if (status && tsr__refused_opset(rank, &at, api->GetErrorMessage(status))) {
        api->ReleaseStatus(status);
        return TSR_ENGINE;
    }
    return engine_says(rank, status, DIAG_engine_refused,
                       "a newer ONNX Runtime may know the operator, type or version; custom "
                       "operators are given with --ort-ops",
                       "ONNX Runtime cannot load this model");
}

// Order: options, our operators, shared weights, the provider, the user's operators; then the
// model is opened with all of them.
static tsr_status create_session(struct rank *rank, OrtSessionOptions *options)
{
    const OrtApi *api = rank->engine->api;
    tsr_status st =
        engine_says(rank, set_options(rank, options), DIAG_engine_refused, NULL, "session options");
    if (st == TSR_OK && rank->endpoint)
        st = engine_says(
            rank, tsr__ops_add(api, rank->engine->minor, options, rank->endpoint, NULL, &rank->ops),
            DIAG_engine_refused, NULL, "communication operators");
    if (st == TSR_OK && rank->ops && rank->profile)
        tsr__ops_trace(rank->ops);
    OrtStatus *failed = NULL;
    if (st == TSR_OK)
        st = tsr__weights_add(rank, options, &failed);
    if (failed)
        st = engine_says(rank, failed, DIAG_engine_refused, NULL, "weights");
    if (st == TSR_OK)
        st = tsr__provider_set(rank, options);
    if (st == TSR_OK && rank->ort_ops)
        st = engine_says(rank, api->RegisterCustomOpsLibrary_V2(options, rank->ort_ops),
                         DIAG_ort_ops, "check the path given with --ort-ops", rank->ort_ops);
    if (st != TSR_OK)
        return st;
    return session_opened(rank, open_session(rank, options));
}

// The engine's copy of each name is freed at once; ours lives as long as the rank.
static tsr_status read_names(struct rank *rank, bool outputs)
{
    const OrtApi *api = rank->engine->api;
    size_t n = 0;
    OrtStatus *st = outputs ? api->SessionGetOutputCount(rank->ort, &n)
                            : api->SessionGetInputCount(rank->ort, &n);
    const char **names = ARENA_ARRAY(&rank->arena, const char *, n + 1);
    if (!names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n && !st; i++) {
        char *name = NULL;
        if (outputs)
            st = api->SessionGetOutputName(rank->ort, i, rank->engine->allocator, &name);
        else
            st = api->SessionGetInputName(rank->ort, i, rank->engine->allocator, &name);
        if (st)
            break;
        names[i] = tsr__arena_str(&rank->arena, str_of(name)).p;
        OrtStatus *freed = api->AllocatorFree(rank->engine->allocator, name);
        if (freed)
            api->ReleaseStatus(freed);
        if (!names[i])
            return TSR_NOMEM;
    }
    *(outputs ? &rank->n_outputs : &rank->n_inputs) = n;
    *(outputs ? &rank->output_names : &rank->input_names) = names;
    return engine_says(rank, st, DIAG_engine_refused, NULL, "names of inputs and outputs");
}

static tsr_status read_wanted(struct rank *rank)
{
    OrtStatus *st = NULL;
    rank->wanted = ARENA_ARRAY(&rank->arena, struct wanted, rank->n_inputs + 1);
    if (!rank->wanted)
        return TSR_NOMEM;
    for (size_t i = 0; i < rank->n_inputs && !st; i++)
        st = tsr__engine_wanted(rank->engine, rank->ort, i, &rank->wanted[i]);
    return engine_says(rank, st, DIAG_engine_refused, NULL, "types of inputs");
}

static tsr_status make_run_slots(struct rank *rank)
{
    for (size_t i = 0; i < RUN_SLOTS; i++) {
        rank->run_slots[i].ins = ARENA_ARRAY(&rank->arena, OrtValue *, rank->n_inputs + 1);
        rank->run_slots[i].outs = ARENA_ARRAY(&rank->arena, OrtValue *, rank->n_outputs + 1);
        rank->run_slots[i].kept = ARENA_ARRAY(&rank->arena, bool, rank->n_inputs + 1);
    }
    return rank->arena.failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status open_model(struct rank *rank)
{
    OrtSessionOptions *options = NULL;
    tsr_status st = engine_says(rank, rank->engine->api->CreateSessionOptions(&options),
                                DIAG_engine_refused, NULL, "session options");
    if (st == TSR_OK)
        st = create_session(rank, options);
    if (options)
        rank->engine->api->ReleaseSessionOptions(options);
    if (st == TSR_OK)
        st = read_names(rank, false);
    if (st == TSR_OK)
        st = read_names(rank, true);
    if (st == TSR_OK)
        st = read_wanted(rank);
    if (st == TSR_OK)
        st = tsr__gpu_bind(rank);
    if (st != TSR_OK)
        return st;
    return make_run_slots(rank);
}

// ---- inputs ------------------------------------------------------------------------------------

static tsr_status refuse_input(struct rank *rank, tsr_session *session, size_t i,
                               enum diag_code code, const char *hint, const char *text)
{
    struct place at = place_of(rank);
    at.value = str_of(rank->input_names[i]);
    tsr__diag(session, code, &at, hint, "%s", text);
    return TSR_INVALID;
}

// Type and form, as people say it.
static const char *kind_text(char *out, size_t cap, bool optional, bool sequence, int type)
{
    snprintf(out, cap, "%s%s%s", optional ? "an optional " : "", sequence ? "a sequence of " : "",
             type ? tsr_dtype_name((tsr_dtype)type) : "what is not a tensor");
    return out;
}

static tsr_status check_input(struct rank *rank, tsr_session *session, size_t i,
                              const struct tensor *tensor)
{
    char text[256], have[64], want[64];
    struct wanted wanted = rank->wanted[i];
    bool none = tensor->rank < 0 && !tensor->sequence, sequence = tensor->sequence != NULL;
    if (none ? !wanted.optional
             : wanted.sequence != sequence || (tsr_dtype)wanted.type != tensor->type) {
        snprintf(text, sizeof text, "is %s, the model wants %s",
                 kind_text(have, sizeof have, none, sequence, (int)tensor->type),
                 kind_text(want, sizeof want, wanted.optional, wanted.sequence, wanted.type));
        return refuse_input(rank, session, i, DIAG_input_mismatch, "convert it first", text);
    }
    if (none || sequence)
        return TSR_OK;
    bool fits = wanted.rank == (size_t)tensor->rank ||
                wanted.rank == 0; // no shape declared looks like rank 0
    for (size_t d = 0; fits && d < wanted.rank && wanted.rank <= RUN_MAX_RANK; d++)
        if (wanted.dims[d] >= 0 && wanted.dims[d] != tensor->dims[d]) {
            snprintf(text, sizeof text, "dimension %zu is %lld, the model wants %lld", d,
                     (long long)tensor->dims[d], (long long)wanted.dims[d]);
            return refuse_input(rank, session, i, DIAG_input_mismatch,
                                "give the shape that the model has", text);
        }
    if (fits)
        return TSR_OK;
    snprintf(text, sizeof text, "has %d dimensions, the model wants %zu", tensor->rank,
             wanted.rank);
    return refuse_input(rank, session, i, DIAG_input_mismatch, "give the shape that the model has",
                        text);
}

static bool is_state(const struct rank *rank, size_t input)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (rank->states[k].input == input)
            return true;
    return false;
}

// A state that is not given again keeps what the last run left (`kept`); the first run has none
// and must be given it.
static tsr_status bind_input(struct rank *rank, struct run_slot *run_slot, size_t i,
                             const tsr_tensors *inputs, tsr_session *session, bool ran)
{
    int64_t at = inputs ? tsr_tensors_find(inputs, rank->input_names[i]) : -1;
    run_slot->kept[i] = at < 0 && ran && is_state(rank, i);
    if (run_slot->kept[i])
        return TSR_OK;
    if (at < 0)
        return refuse_input(rank, session, i, DIAG_input_missing,
                            is_state(rank, i) ? "the first run has to be given its state"
                                              : "name it in the set of inputs",
                            "no tensor is given for this input");
    const struct tensor *tensor = inputs->at[at];
    tsr_status st = check_input(rank, session, i, tensor);
    if (st != TSR_OK)
        return st;
    struct arena arena;
    tsr__arena_init(&arena, session);
    OrtStatus *failed = tsr__engine_value(rank->engine, &arena, tensor, &run_slot->ins[i]);
    tsr__arena_free(&arena);
    if (!failed && run_slot->ins[i])
        return TSR_OK;
    if (failed)
        refuse_input(rank, session, i, DIAG_engine_failed, NULL,
                     rank->engine->api->GetErrorMessage(failed));
    else
        refuse_input(rank, session, i, DIAG_tensor_kind, "run this model elsewhere",
                     "ONNX Runtime cannot be given an optional without a value");
    if (failed)
        rank->engine->api->ReleaseStatus(failed);
    return TSR_ENGINE;
}

tsr_status tsr__rank_bind(struct rank *rank, size_t run_slot, const tsr_tensors *inputs,
                          const tsr_tensors *pieces, tsr_session *session, bool ran)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < rank->n_inputs; i++) { // every mistake at once
        bool own = pieces && tsr_tensors_find(pieces, rank->input_names[i]) >= 0;
        tsr_status one =
            bind_input(rank, &rank->run_slots[run_slot], i, own ? pieces : inputs, session, ran);
        st = st == TSR_OK ? one : st;
    }
    if (st != TSR_OK)
        tsr__rank_drop(rank, run_slot);
    return st;
}

static int64_t find_name(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return (int64_t)i;
    return -1;
}

bool tsr__rank_keep(struct rank *rank, const char *past, const char *present)
{
    int64_t in = find_name(rank->input_names, rank->n_inputs, past);
    int64_t out = find_name(rank->output_names, rank->n_outputs, present);
    if (in < 0 || out < 0)
        return false;
    struct rank_state *list = ARENA_ARRAY(&rank->arena, struct rank_state, rank->n_states + 1);
    if (!list)
        return false;
    if (rank->n_states)
        memcpy(list, rank->states, rank->n_states * sizeof *list);
    list[rank->n_states++] = (struct rank_state){.input = (size_t)in, .output = (size_t)out};
    rank->states = list;
    return true;
}

// ---- work --------------------------------------------------------------------------------------

static tsr_status peer_failed(struct rank *rank, const struct comm_trouble *why)
{
    struct place at = place_of(rank);
    rank->failed_by_peer = true;
    at.rank = why->rank;
    tsr__diag(rank->session, DIAG_rank_failed, &at,
              "see what that rank says; a partition runs with all of its ranks or not at all", "%s",
              why->text);
    if (why->status == TSR_OK)
        return TSR_PEER;
    return why->status;
}

// Values that stay: the old ones were this run's inputs, the new ones leave its outputs.
static void keep_states(struct rank *rank, struct run_slot *run_slot)
{
    for (size_t k = 0; k < rank->n_states; k++) {
        struct rank_state *state = &rank->states[k];
        if (state->value)
            rank->engine->api->ReleaseValue(state->value);
        state->value = run_slot->outs[state->output];
        run_slot->outs[state->output] = NULL;
        if (run_slot->kept[state->input])
            run_slot->ins[state->input] = NULL;
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
static tsr_status kernel_failed(struct rank *rank, OrtStatus *status)
{
    const char *message = rank->engine->api->GetErrorMessage(status);
    struct place at = place_of(rank);
    at.op = quoted(message, "while running ", ' ');
    at.node = quoted(message, "Name:'", '\'');
    if (!at.op.n)
        return engine_says(rank, status, DIAG_engine_failed, NULL, "ONNX Runtime failed");
    tsr__diag(rank->session, DIAG_engine_failed, &at,
              "give inputs whose sizes and values fit this node, or mend the model",
              "ONNX Runtime failed: %s", message);
    rank->engine->api->ReleaseStatus(status);
    return TSR_INVALID;
}

static OrtStatus *run_session(struct rank *rank, struct run_slot *run_slot)
{
    if (rank->binding)
        return tsr__gpu_run(rank, run_slot);
    return rank->engine->api->Run(rank->ort, NULL, rank->input_names,
                                  (const OrtValue *const *)run_slot->ins, rank->n_inputs,
                                  rank->output_names, rank->n_outputs, run_slot->outs);
}

static tsr_status run_once(struct rank *rank, struct run_slot *run_slot)
{
    if (rank->n_outputs == 0)
        return TSR_OK; // nothing to compute, nobody to talk to
    for (size_t k = 0; k < rank->n_states; k++)
        if (run_slot->kept[rank->states[k].input])
            run_slot->ins[rank->states[k].input] = rank->states[k].value;
    OrtStatus *st = run_session(rank, run_slot);
    const struct comm_trouble *why = rank->ops ? tsr__ops_trouble(rank->ops) : NULL;
    if (!st)
        keep_states(rank, run_slot);
    for (size_t i = 0; st && i < rank->n_inputs; i++)
        if (run_slot->kept[i])
            run_slot->ins[i] = NULL; // the state's own
    if (st && !why && rank->endpoint && no_memory(rank->engine->api->GetErrorMessage(st))) {
        engine_says(rank, st, DIAG_rank_memory, memory_hint(rank), "a rank ran out of memory");
        return TSR_PEER;
    }
    if (!st)
        return TSR_OK;
    if (!why)
        return kernel_failed(rank, st);
    rank->engine->api->ReleaseStatus(st);
    return peer_failed(rank, why);
}

void tsr__rank_meet(struct rank *rank, const char *what)
{
    struct comm_trouble why;
    if (rank->endpoint && tsr__comm_barrier(rank->endpoint, rank->plan, what, &why) != TSR_OK)
        rank->status = peer_failed(rank, &why);
}

// Ranks that may be on GPUs tell each other where they are.
static void meet_devices(struct rank *rank)
{
    struct comm_trouble why;
    if (rank->base && tsr__device_meet(rank->endpoint, rank->plan, &why) != TSR_OK)
        rank->status = peer_failed(rank, &why);
}

// Tells the other ranks that this one has failed, with its first finding.
static void tell(struct rank *rank)
{
    char text[400];
    size_t n = tsr_finding_count(rank->session);
    tsr_finding finding = {0};
    if (n)
        finding = tsr_finding_at(rank->session, 0);
    snprintf(text, sizeof text, "rank %d failed: %s", rank->endpoint->rank,
             n ? finding.message : tsr_status_text(rank->status));
    tsr__comm_fail(rank->endpoint, rank->status, text);
}

// Ranks that only measure are given no options.
static const tsr_run_options default_options = {.size = sizeof default_options};

// Every rank gets to the meeting or tells the others why not: nobody waits for one that failed.
void tsr__rank_open(struct rank *rank)
{
    if (!rank->options)
        rank->options = &default_options;
    rank->status = TSR_NOMEM;
    rank->session = tsr_session_new(NULL);
    if (!rank->session) {
        if (rank->endpoint)
            tsr__comm_fail(rank->endpoint, TSR_NOMEM, "out of memory");
        return;
    }
    tsr__arena_init(&rank->arena, rank->session);
    tsr__reach_running(rank->engine, false);
    rank->status = tsr__gpu_place(rank);
    if (rank->status == TSR_OK)
        rank->status = open_model(rank);
    tsr__reach_running(rank->engine, true);
    if (rank->status == TSR_OK)
        meet_devices(rank);
    if (rank->status == TSR_OK)
        tsr__rank_meet(rank, "start");
    if (rank->status != TSR_OK && rank->endpoint && !rank->failed_by_peer)
        tell(rank);
}

void tsr__rank_run(struct rank *rank, size_t run_slot)
{
    rank->status = run_once(rank, &rank->run_slots[run_slot]);
    if (rank->status != TSR_OK && rank->endpoint && !rank->failed_by_peer)
        tell(rank);
}

// ---- results -----------------------------------------------------------------------------------

static tsr_status take_output(struct rank *rank, const struct run_slot *run_slot, size_t i,
                              tsr_session *session, tsr_tensors *outputs)
{
    OrtStatus *failed = NULL;
    bool there = rank->binding && rank->stays[i] && tsr__gpu_holds(rank->engine, run_slot->outs[i]);
    tsr_status st = there ? tsr__engine_fetch(rank->engine, rank->seat, run_slot->outs[i],
                                              rank->output_names[i], outputs, &failed)
                          : tsr__engine_take(rank->engine, run_slot->outs[i], rank->output_names[i],
                                             outputs, &failed);
    struct place at = place_of(rank);
    at.value = str_of(rank->output_names[i]);
    if (failed) {
        tsr__diag(session, DIAG_engine_failed, &at, NULL, "cannot read an output: %s",
                  rank->engine->api->GetErrorMessage(failed));
        rank->engine->api->ReleaseStatus(failed);
    } else if (st == TSR_ENGINE) {
        tsr__diag(session, DIAG_tensor_kind, &at,
                  "remove this output from the model, or read it elsewhere",
                  "this output is no tensor of at most 64 dimensions and no sequence of tensors");
    }
    return st;
}

static bool is_result(const struct rank *rank, size_t output)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (rank->states[k].output == output)
            return false;
    return strcmp(rank->output_names[output], RUN_TOKEN_OUTPUT) != 0;
}

tsr_status tsr__rank_copy(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs)
{
    for (size_t i = 0; i < rank->n_outputs; i++) {
        tsr_status st = TSR_OK;
        if (is_result(rank, i))
            st = take_output(rank, &rank->run_slots[run_slot], i, session, outputs);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__rank_take(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs)
{
    tsr_status st = outputs ? tsr__rank_copy(rank, run_slot, session, outputs) : TSR_OK;
    tsr__rank_drop(rank, run_slot);
    return st;
}

void tsr__rank_drop(struct rank *rank, size_t run_slot)
{
    const OrtApi *api = rank->engine->api;
    struct run_slot *f = &rank->run_slots[run_slot];
    for (size_t i = 0; f->ins && i < rank->n_inputs; i++) {
        api->ReleaseValue(f->ins[i]); // NULL is fine
        f->ins[i] = NULL;
    }
    for (size_t i = 0; f->outs && i < rank->n_outputs; i++) {
        api->ReleaseValue(f->outs[i]);
        f->outs[i] = NULL;
    }
}

void tsr__rank_findings(const struct rank *rank, tsr_session *session)
{
    for (size_t i = 0; rank->session && i < rank->session->diags.n; i++) {
        const struct diag_record *record = &rank->session->diags.at[i];
        tsr__diag(session, record->code, &record->place, record->hint.n ? record->hint.p : NULL,
                  STR_FMT, STR_ARG(record->message));
    }
}

void tsr__rank_free(struct rank *rank)
{
    if (!rank->session)
        return;
    const OrtApi *api = rank->engine->api;
    for (size_t i = 0; i < RUN_SLOTS; i++)
        tsr__rank_drop(rank, i);
    for (size_t i = 0; i < rank->n_states; i++)
        api->ReleaseValue(rank->states[i].value);
    if (rank->binding)
        api->ReleaseIoBinding(rank->binding);
    if (rank->ort)
        api->ReleaseSession(rank->ort);
    for (size_t i = 0; i < rank->n_weights; i++)
        api->ReleaseValue(rank->weights[i]);
    tsr__ops_free(rank->ops);
    tsr__gpu_leave(rank);
    tsr__arena_free(&rank->arena);
    tsr_session_free(rank->session);
    rank->session = NULL;
}
