// SPDX-License-Identifier: Apache-2.0
// rank.c - runs one rank: it synchronizes with the others, gets inputs, runs, and keeps its states
// between runs. Its model is opened in rank_session.c.
//
// Two threads use a rank. Its own thread opens it, runs it and synchronizes; the caller's thread
// binds inputs and takes outputs of slots whose run has not begun or has ended. The job's counters
// (job.h) separate them, so nothing here is locked. Diagnostics follow the thread: those of opening
// and running go to rank->session, those of binding and taking to the session of the call.
//
// Who owns the OrtValues of a state (input `past`, output `present`) that is not written in place:
//
//     run 0   ins[past] belongs to the slot: the caller gave it. outs[present] becomes
//             state->value.
//     run 1   ins[past] is borrowed: it is state->value, and kept[past] is set. outs[present]
//             becomes state->value; the old value is released and ins[past] is reset.
//
// Borrowed values are never released through the slot: after a failed run take_back_states resets
// them too.
#include "runtime/internal.h"
#include "bundle/bundle.h"
#include "gpu/gpu.h"
#include "ir/ir.h"

#include <stdio.h>

// ---- inputs ------------------------------------------------------------------------------------

// Refuses input i of this rank; the diagnostic names file, rank and input.
static tsr_status refuse_input(struct rank *rank, tsr_session *session, size_t i,
                               enum diag_code code, const char *hint, const char *text)
{
    struct place at = tsr__rank_place(rank);
    at.value = str_of(rank->input_names[i]);
    return tsr__fail(session, TSR_INVALID, code, &at, hint, "%s", text);
}

// Formats a type for messages. Example: "a sequence of float".
static const char *kind_text(char *out, size_t cap, const struct wanted *kind)
{
    const char *optional = "", *sequence = "", *type = "not a tensor";
    if (kind->optional)
        optional = "an optional ";
    if (kind->sequence)
        sequence = "a sequence of ";
    if (kind->type)
        type = tsr_dtype_name((tsr_dtype)kind->type);
    snprintf(out, cap, "%s%s%s", optional, sequence, type);
    return out;
}

// True if a tensor fits the kind of an input. An empty optional (given->optional) fits only an
// optional input. The type of a sequence is that of its elements.
static bool kind_fits(const struct wanted *given, const struct wanted *wanted)
{
    if (given->optional)
        return wanted->optional;
    return wanted->sequence == given->sequence && wanted->type == given->type;
}

static tsr_status refuse_shape(struct rank *rank, tsr_session *session, size_t i, const char *text)
{
    const char *hint = "give a tensor of the shape that the model declares";
    if (rank->static_sizes)
        hint = STATIC_SIZES_HINT;
    return refuse_input(rank, session, i, DIAG_input_mismatch, hint, text);
}

// Checks the shape of an input. Dimensions that the model leaves open (-1) accept any size. named.c
// checks that dimensions with the same name have the same size.
static tsr_status check_shape(struct rank *rank, tsr_session *session, size_t i,
                              const struct tensor *tensor)
{
    char text[256];
    const struct wanted *wanted = &rank->wanted[i];
    if (wanted->rank == 0)
        return TSR_OK; // rank 0 also means that the model declares no shape
    if (wanted->rank != (size_t)tensor->rank) {
        snprintf(text, sizeof text, "has %d dimensions, the model expects %zu", tensor->rank,
                 wanted->rank);
        return refuse_shape(rank, session, i, text);
    }
    if (wanted->rank > RUN_MAX_RANK)
        return TSR_OK; // ONNX Runtime checks the shape
    for (size_t d = 0; d < wanted->rank; d++) {
        if (wanted->dims[d] < 0 || wanted->dims[d] == tensor->dims[d])
            continue;
        snprintf(text, sizeof text, "dimension %zu is %lld, the model expects %lld", d,
                 (long long)tensor->dims[d], (long long)wanted->dims[d]);
        return refuse_shape(rank, session, i, text);
    }
    return TSR_OK;
}

static tsr_status check_input(struct rank *rank, tsr_session *session, size_t i,
                              const struct tensor *tensor)
{
    char text[256], have[64], want[64];
    struct wanted given = {.sequence = tensor->sequence != NULL,
                           .optional = tensor->rank < 0 && !tensor->sequence,
                           .type = (int)tensor->type};
    if (!kind_fits(&given, &rank->wanted[i])) {
        snprintf(text, sizeof text, "is %s, the model expects %s",
                 kind_text(have, sizeof have, &given),
                 kind_text(want, sizeof want, &rank->wanted[i]));
        return refuse_input(rank, session, i, DIAG_input_mismatch, "convert the tensor first",
                            text);
    }
    if (given.optional || given.sequence)
        return TSR_OK;
    return check_shape(rank, session, i, tensor);
}

// Returns the state whose input has this number; NULL: the input is not a state.
static const struct rank_state *state_of(const struct rank *rank, size_t input)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (rank->states[k].input == input)
            return &rank->states[k];
    return NULL;
}

static tsr_status refuse_missing(struct rank *rank, tsr_session *session, size_t i)
{
    const char *hint = "add a tensor of this name to the inputs";
    if (state_of(rank, i))
        hint = "this input is a state: give its tensor in the first run";
    return refuse_input(rank, session, i, DIAG_input_missing, hint,
                        "no tensor was given for this input");
}

// True if this run writes the state over the value that it reads. On a GPU the first run reads the
// caller's tensor and allocates the state; later runs write it in place.
static bool is_written_in_place(const struct rank *rank, const struct run_slot *run_slot,
                                const struct rank_state *state)
{
    return (state->in_place || rank->cache_sets) &&
           (!rank->binding || run_slot->kept[state->input]);
}

// True if an input is a state with its own buffer: runs write to it, so it must not be a view of
// the caller's tensor.
static bool is_buffer(const struct rank *rank, size_t input, const struct tensor *tensor)
{
    bool numbers = tensor->rank >= 0 && tensor->type != TSR_STRING;
    const struct rank_state *state = state_of(rank, input);
    return numbers && !rank->binding && state && state->in_place;
}

// Waits once per run for all earlier work on the GPU's default stream: by convention the producers
// of inputs use it. Returns false if the GPU has failed.
static bool wait_for_producers(struct rank *rank)
{
    if (!rank->waited)
        rank->waited = tsr__seat_enter(rank->seat) == 0 && tsr__seat_wait(rank->seat, NULL) == 0;
    return rank->waited;
}

// Creates a value over a tensor on this rank's GPU, without a copy, once the tensor is ready.
static OrtStatus *device_value(struct rank *rank, const struct tensor *tensor, OrtValue **out)
{
    const OrtMemoryInfo *info =
        rank->engine->memory; // a stand-in library for the driver uses host memory
    if (rank->on_gpu)
        info = rank->on_gpu;
    if (!wait_for_producers(rank))
        return rank->engine->api->CreateStatus(ORT_FAIL,
                                               "the default stream of the GPU has failed");
    return tsr__engine_device_value(rank->engine, info, tensor, out);
}

// Creates the OrtValue for a tensor whose type and shape were checked. The slot owns it. It refers
// to the memory of the tensor, except for strings and for the buffer of a state, which are copied.
static tsr_status make_value(struct rank *rank, tsr_session *session, size_t i,
                             const struct tensor *tensor, OrtValue **out)
{
    struct arena arena = {.session = session};
    OrtStatus *failed = NULL;
    // The tensor is on a GPU other than this rank's. job_ranks.c has copied such tensors to host
    // memory if possible.
    if (tensor->device && !tsr__rank_has_on_gpu(rank, tensor))
        return tsr__tensor_on_host(session, tensor);
    if (tensor->device)
        failed = device_value(rank, tensor, out);
    else if (is_buffer(rank, i, tensor))
        failed = tsr__engine_own_value(rank->engine, tensor, out);
    else
        failed = tsr__engine_value(rank->engine, &arena, tensor, out);
    tsr__arena_free(&arena);
    if (failed) {
        (void)refuse_input(rank, session, i, DIAG_engine_failed, NULL,
                           rank->engine->api->GetErrorMessage(failed));
        rank->engine->api->ReleaseStatus(failed);
        return TSR_ENGINE;
    }
    if (*out)
        return TSR_OK;
    (void)refuse_input(rank, session, i, DIAG_tensor_kind,
                       "give the optional input a value, or remove the input from the model",
                       "ONNX Runtime does not accept an optional input without a value");
    return TSR_ENGINE;
}

// Binds an input of the rank. A state that the caller does not set keeps its value from the last
// run (`kept`). The caller must set it for the first run.
static tsr_status bind_input(struct rank *rank, struct run_slot *run_slot, size_t i,
                             const tsr_tensors *inputs, tsr_session *session, bool ran)
{
    int64_t at = -1;
    if (inputs)
        at = tsr_tensors_find(inputs, rank->input_names[i]);
    run_slot->kept[i] = at < 0 && (ran || rank->cache_sets) && state_of(rank, i);
    if (run_slot->kept[i])
        return TSR_OK;
    if (at < 0)
        return refuse_missing(rank, session, i);
    TRY(check_input(rank, session, i, inputs->at[at]));
    return make_value(rank, session, i, inputs->at[at], &run_slot->ins[i]);
}

// Returns the index of a name, or -1. The search begins at *next, which is set to the position
// after the found name: callers often ask for all names in order.
static int64_t find_name(const char *const *names, size_t n, const char *name, size_t *next)
{
    for (size_t k = 0; k < n; k++) {
        size_t i = (*next + k) % n;
        if (strcmp(names[i], name) != 0)
            continue;
        *next = i + 1;
        return (int64_t)i;
    }
    return -1;
}

static int64_t find_input(struct rank *rank, const char *name)
{
    return find_name(rank->input_names, rank->n_inputs, name, &rank->next_input);
}

int64_t tsr__rank_find_output(struct rank *rank, const char *name)
{
    return find_name(rank->output_names, rank->n_outputs, name, &rank->next_output);
}

bool tsr__rank_has_view(struct rank *rank, const struct tensor *full)
{
    int64_t i = find_input(rank, full->name);
    return i >= 0 && tsr__view_find(rank, &rank->input_views[i], full);
}

// Binds the value of an earlier run to an input, if the caller gives the same tensor again.
static bool bind_kept_view(struct rank *rank, struct run_slot *run_slot, size_t i,
                           const tsr_tensors *inputs)
{
    int64_t at = -1;
    if (inputs && rank->input_views[i].value)
        at = tsr_tensors_find(inputs, rank->input_names[i]);
    OrtValue *value = at < 0 ? NULL : tsr__view_find(rank, &rank->input_views[i], inputs->at[at]);
    if (!value || (inputs->at[at]->device && !wait_for_producers(rank)))
        return false; // bind_input reports a failure of the GPU
    run_slot->kept[i] = false;
    run_slot->ins[i] = value;
    return true;
}

// Keeps the value of an input for later runs if it refers to the memory of the caller's tensor. A
// copy of a shard is not kept.
static void keep_view(struct rank *rank, const struct run_slot *run_slot, size_t i,
                      const tsr_tensors *inputs, const struct tensor *piece)
{
    int64_t at = inputs ? tsr_tensors_find(inputs, rank->input_names[i]) : -1;
    if (at < 0)
        return;
    const struct tensor *full = inputs->at[at];
    uintptr_t begin = (uintptr_t)full->data, data = (uintptr_t)piece->data;
    size_t bytes = full->bytes;
    if (full->device) {
        begin = (uintptr_t)full->device_data;
        data = (uintptr_t)piece->device_data;
        bytes = full->device_bytes;
    }
    if (piece->device == full->device && bytes && data >= begin && data < begin + bytes)
        tsr__view_keep(rank, &rank->input_views[i], full, run_slot->ins[i]);
}

// Binds all inputs of a rank. Reports every error, not only the first.
tsr_status tsr__rank_bind(struct rank *rank, size_t run_slot, const tsr_tensors *inputs,
                          const tsr_tensors *pieces, tsr_session *session, bool ran)
{
    tsr_status first = TSR_OK;
    struct run_slot *slot = &rank->run_slots[run_slot];
    rank->waited = false;
    for (size_t i = 0; i < rank->n_inputs; i++) {
        int64_t piece = pieces ? tsr_tensors_find(pieces, rank->input_names[i]) : -1;
        if (piece < 0 && bind_kept_view(rank, slot, i, inputs))
            continue;
        tsr_status st = bind_input(rank, slot, i, piece >= 0 ? pieces : inputs, session, ran);
        if (st == TSR_OK && piece >= 0)
            keep_view(rank, slot, i, inputs, pieces->at[piece]);
        if (first == TSR_OK)
            first = st;
    }
    // All or nothing: a partly bound slot would run with inputs of the previous run.
    if (first != TSR_OK)
        tsr__rank_drop(rank, run_slot);
    return first;
}

// Makes an output a state of this rank. Called before the first run, while the rank waits for work.
// The list is made anew because an arena does not grow in place. Returns false if the rank lacks
// one of the names, or if out of memory.
bool tsr__rank_keep(struct rank *rank, const char *past, const char *present, bool in_place)
{
    int64_t in = find_input(rank, past);
    int64_t out = tsr__rank_find_output(rank, present);
    if (in < 0 || out < 0)
        return false;
    struct rank_state *list = ARENA_ARRAY(&rank->arena, struct rank_state, rank->n_states + 1);
    if (!list)
        return false;
    if (rank->n_states)
        memcpy(list, rank->states, rank->n_states * sizeof *list);
    list[rank->n_states++] =
        (struct rank_state){.input = (size_t)in, .output = (size_t)out, .in_place = in_place};
    rank->states = list;
    return true;
}

// ---- work --------------------------------------------------------------------------------------

// Reports that another rank failed, with its number and message. The status is that of the other
// rank, so that all ranks of the job return the same one; TSR_PEER if the transport has none.
static tsr_status peer_failed(struct rank *rank, const struct comm_trouble *why)
{
    struct place at = tsr__rank_place(rank);
    rank->failed_by_peer = true;
    at.rank = why->rank;
    tsr__diag(rank->session, DIAG_rank_failed, &at,
              "see the messages of that rank; a partition runs with all of its ranks or not at all",
              "%s", why->text);
    if (why->status == TSR_OK)
        return TSR_PEER;
    return why->status;
}

// Keeps the buffer of a state after a run. The input value of this run is also its output. A value
// that the caller gave now belongs to the state.
static void keep_buffer(struct rank *rank, struct rank_state *state, struct run_slot *run_slot)
{
    OrtValue *value = run_slot->ins[state->input];
    run_slot->outs[state->output] = NULL;
    run_slot->ins[state->input] = NULL;
    // The usual case from the second run on: the run has written over the buffer that the state
    // already owns.
    if (value == state->value)
        return;
    rank->engine->api->ReleaseValue(state->value); // NULL is allowed
    state->value = value;
}

// After a successful run, moves the new values of states from the outputs to the states, and
// releases the old ones. If input and output are one value, the engine wrote in place.
static void keep_states(struct rank *rank, struct run_slot *run_slot)
{
    for (size_t k = 0; k < rank->n_states; k++) {
        struct rank_state *state = &rank->states[k];
        if (run_slot->outs[state->output] == run_slot->ins[state->input]) {
            keep_buffer(rank, state, run_slot);
            continue;
        }
        if (state->value)
            rank->engine->api->ReleaseValue(state->value);
        state->value = run_slot->outs[state->output];
        run_slot->outs[state->output] = NULL;
        if (run_slot->kept[state->input])
            run_slot->ins[state->input] = NULL;
    }
}

// Runs the engine's session. Our operators block while they wait for other ranks. Returns NULL on
// success; the slot then has its outputs.
static OrtStatus *run_session(struct rank *rank, struct run_slot *run_slot)
{
    if (rank->binding)
        return tsr__gpu_run(rank, run_slot);
    return rank->engine->api->Run(rank->ort, rank->run_options, rank->input_names,
                                  (const OrtValue *const *)run_slot->ins, rank->n_inputs,
                                  rank->output_names, rank->n_outputs, run_slot->outs);
}

// Binds states as inputs, but the state keeps the ownership. A state with its own buffer is bound
// as output too.
static void lend_states(const struct rank *rank, struct run_slot *run_slot)
{
    for (size_t k = 0; k < rank->n_states; k++) {
        const struct rank_state *state = &rank->states[k];
        if (run_slot->kept[state->input])
            run_slot->ins[state->input] = state->value;
        if (is_written_in_place(rank, run_slot, state))
            run_slot->outs[state->output] = run_slot->ins[state->input];
    }
}

// Takes the states back from the slot after a failed run, so that releasing the slot's values does
// not release them.
static void take_back_states(const struct rank *rank, struct run_slot *run_slot)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (is_written_in_place(rank, run_slot, &rank->states[k]))
            run_slot->outs[rank->states[k].output] = NULL;
    for (size_t i = 0; i < rank->n_inputs; i++)
        if (run_slot->kept[i])
            run_slot->ins[i] = NULL;
}

// Runs the rank's model once. If a run fails in one of our operators, another rank is the cause,
// and its message is used instead of the engine's.
static tsr_status run_once(struct rank *rank, struct run_slot *run_slot)
{
    if (rank->n_outputs == 0)
        return TSR_OK; // nothing to compute or communicate
    lend_states(rank, run_slot);
    struct comm_trouble given_up;
    OrtStatus *failed = run_session(rank, run_slot);
    // NCCL may have been aborted while the engine ran (device_watch.c). The results are then wrong,
    // although the engine reported no error.
    bool right = !rank->base || tsr__device_rest(rank->endpoint, &given_up) == TSR_OK;
    if (!failed && right) {
        keep_states(rank, run_slot);
        return TSR_OK;
    }
    take_back_states(rank, run_slot);
    // The cause of the failure: the one reported to our operators, else an abort on the GPU, else
    // the engine itself.
    const struct comm_trouble *why = NULL;
    if (rank->ops)
        why = tsr__ops_trouble(rank->ops);
    if (!right && !why)
        why = &given_up;
    if (!why)
        return tsr__engine_ran(rank, failed);
    if (failed)
        rank->engine->api->ReleaseStatus(failed);
    return peer_failed(rank, why);
}

// Waits at a barrier of all ranks. The name of the barrier is sent with it, to distinguish a rank
// at another barrier from a late one.
void tsr__rank_meet(struct rank *rank, const char *what)
{
    struct comm_trouble why;
    if (rank->endpoint && tsr__comm_barrier(rank->endpoint, rank->plan, what, &why) != TSR_OK)
        rank->status = peer_failed(rank, &why);
}

// Lets ranks that may be on GPUs exchange their devices. This comes after loading, when the groups
// are known. Communicators are created here, where all ranks are at the same point.
static void meet_devices(struct rank *rank)
{
    struct comm_trouble why;
    if (rank->base && tsr__device_meet(rank->endpoint, rank->plan, &why) != TSR_OK)
        rank->status = peer_failed(rank, &why);
}

// Reports a failure of this rank to the others, with its first diagnostic. If another rank caused
// the failure, that rank has reported it. The transport keeps the first report.
static void report_failure(struct rank *rank)
{
    char text[400];
    if (rank->status == TSR_OK || !rank->endpoint || rank->failed_by_peer)
        return;
    const char *message = tsr_status_text(rank->status);
    if (tsr_finding_count(rank->session))
        message = tsr_finding_value(rank->session, 0).message;
    snprintf(text, sizeof text, "rank %d failed: %s", rank->endpoint->rank, message);
    tsr__comm_fail(rank->endpoint, rank->status, text);
}

// Used if a rank is given no options.
static const tsr_run_options default_options = {.size = sizeof default_options};

// Opens the rank's GPU, if it has one, and loads its model. Ranks on GPUs announce their device
// before any rank loads, so that each sees the free memory. tsr__gpu_limit waits for all ranks,
// because a model loaded earlier would reduce the free memory.
static tsr_status place_and_load(struct rank *rank)
{
    struct comm_trouble why;
    TRY(tsr__gpu_place(rank));
    if (tsr__gpu_limit(rank, &why) != TSR_OK)
        return peer_failed(rank, &why);
    return tsr__rank_load(rank);
}

// Loads the rank's model and synchronizes with the others. While the engine's session is created,
// tensors are allocated in ordinary memory (reach.c), because these are weights.
static void load_and_meet(struct rank *rank)
{
    tsr__reach_running(rank->engine, false);
    rank->status = place_and_load(rank);
    tsr__reach_running(rank->engine, true);
    if (rank->status != TSR_OK)
        return;
    meet_devices(rank);
    if (rank->status != TSR_OK)
        return;
    tsr__rank_meet(rank, "start");
}

// Opens a rank. Every rank either reaches the barrier or reports its failure, so that no rank waits
// for a failed one.
void tsr__rank_open(struct rank *rank)
{
    if (!rank->options)
        rank->options = &default_options;
    // The rank's own thread creates its session, so that ranks share no diagnostics or memory.
    rank->status = TSR_NOMEM;
    rank->session = tsr_session_new(NULL);
    if (!rank->session) {
        if (rank->endpoint)
            tsr__comm_fail(rank->endpoint, TSR_NOMEM, "out of memory");
        return;
    }
    tsr__arena_init(&rank->arena, rank->session);
    load_and_meet(rank);
    report_failure(rank);
}

// Runs the model with the inputs in the slot. Must not be called for a rank that has failed.
void tsr__rank_run(struct rank *rank, size_t run_slot)
{
    rank->status = run_once(rank, &rank->run_slots[run_slot]);
    report_failure(rank);
}

// ---- results -----------------------------------------------------------------------------------

// Returns the GPU tensor that the caller has put into the set for this output, as its destination.
// NULL: not found.
static const struct tensor *destination_for(const tsr_tensors *outputs, const char *name)
{
    int64_t at = tsr_tensors_find(outputs, name);
    if (at < 0 || !outputs->at[at]->device)
        return NULL;
    return outputs->at[at];
}

static tsr_status fill_destination(struct rank *rank, OrtValue *value, const struct tensor *place,
                                   tsr_session *session, OrtStatus **failed)
{
    struct place at = tsr__rank_place(rank);
    at.value = str_of(place->name);
    if (!tsr__rank_has_on_gpu(rank, place)) {
        return tsr__fail(
            session, TSR_UNSUPPORTED, DIAG_tensor_kind, &at,
            "give a tensor on the GPU of the rank that computes this output",
            "the tensor for this output is on GPU %d, but the rank that computes it is not",
            place->device - 1);
    }
    tsr_status st = tsr__engine_fill(rank->engine, rank->seat, value, place, failed);
    if (st == TSR_INVALID)
        tsr__diag(
            session, DIAG_tensor_kind, &at, "give a tensor of the type and shape of the output",
            "the tensor for this output, on GPU %d, has another type or shape", place->device - 1);
    return st;
}

// Copies an output into the set. An output in GPU memory is copied to host memory, unless the
// caller gave a GPU tensor as destination.
static tsr_status take_output(struct rank *rank, const struct run_slot *run_slot, size_t i,
                              tsr_session *session, tsr_tensors *outputs)
{
    const struct engine *engine = rank->engine;
    const char *name = rank->output_names[i];
    OrtValue *value = run_slot->outs[i];
    OrtStatus *failed = NULL;
    const struct tensor *place = destination_for(outputs, name);
    tsr_status st;
    if (place)
        st = fill_destination(rank, value, place, session, &failed);
    else if (rank->binding && rank->stays[i] && tsr__gpu_holds(engine, value))
        st = tsr__engine_fetch(engine, rank->seat, value, name, outputs, &failed);
    else
        st = tsr__engine_take(engine, value, name, outputs, &failed);
    struct place at = tsr__rank_place(rank);
    at.value = str_of(name);
    if (failed) {
        tsr__diag(session, DIAG_engine_failed, &at, NULL, "cannot read an output: %s",
                  engine->api->GetErrorMessage(failed));
        engine->api->ReleaseStatus(failed);
    } else if (st == TSR_ENGINE && !place) {
        tsr__diag(
            session, DIAG_tensor_kind, &at, TSR_NO_TENSOR_HINT,
            "this output is neither a tensor of at most 64 dimensions nor a sequence of tensors");
        st = TSR_UNSUPPORTED;
    }
    return st;
}

// True if the ranks have written this output directly to the caller's memory.
static bool is_in_place(const struct rank *rank, size_t output)
{
    return rank->places && tsr_tensors_find(rank->places, rank->output_names[output]) >= 0;
}

// False for states, which stay on the rank, and for the token that orders the communication of a
// rank's graph.
static bool is_result(const struct rank *rank, size_t output)
{
    for (size_t k = 0; k < rank->n_states; k++)
        if (rank->states[k].output == output)
            return false;
    return strcmp(rank->output_names[output], RUN_TOKEN_OUTPUT) != 0;
}

// Copies the outputs of a run. They also stay in the slot: a launched rank first copies its
// outputs for rank 0, and later takes them for its own caller.
tsr_status tsr__rank_copy(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs)
{
    for (size_t i = 0; i < rank->n_outputs; i++) {
        if (!is_result(rank, i) || is_in_place(rank, i) || (rank->placed && rank->placed[i]))
            continue;
        TRY(take_output(rank, &rank->run_slots[run_slot], i, session, outputs));
    }
    return TSR_OK;
}

// Moves the outputs of a run to the caller. The slot is free afterwards, also after a failure.
tsr_status tsr__rank_take(struct rank *rank, size_t run_slot, tsr_session *session,
                          tsr_tensors *outputs)
{
    tsr_status st = TSR_OK;
    if (outputs)
        st = tsr__rank_copy(rank, run_slot, session, outputs);
    tsr__rank_drop(rank, run_slot);
    return st;
}

// Releases the values of a slot except kept views. values NULL: the rank failed before its slots
// were created.
static void release_values(const OrtApi *api, OrtValue **values, const struct kept_view *views,
                           size_t n)
{
    if (!values)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!views || values[i] != views[i].value)
            api->ReleaseValue(values[i]); // NULL is allowed
        values[i] = NULL;
    }
}

bool tsr__rank_has_on_gpu(const struct rank *rank, const struct tensor *tensor)
{
    return tensor->device && rank->seat && rank->card == tensor->device - 1;
}

void tsr__rank_drop(struct rank *rank, size_t run_slot)
{
    const OrtApi *api = rank->engine->api;
    struct run_slot *slot = &rank->run_slots[run_slot];
    release_values(api, slot->ins, rank->input_views, rank->n_inputs);
    release_values(api, slot->outs, rank->output_views, rank->n_outputs);
}

// Adds copies of the rank's diagnostics to the session, because the rank's session, which owns the
// texts, may be freed first.
void tsr__rank_findings(const struct rank *rank, tsr_session *session)
{
    if (!rank->session)
        return;
    for (size_t i = 0; i < rank->session->diags.n; i++) {
        const struct diag_record *record = &rank->session->diags.at[i];
        tsr__diag(session, record->code, &record->place, record->hint.n ? record->hint.p : NULL,
                  STR_FMT, STR_ARG(record->message));
    }
}

// Frees a rank. The engine requires this order: values before the engine's session, shared weights
// and operators after it, the GPU context last. A rank that was never opened (rank->session is
// NULL) has nothing to free.
void tsr__rank_free(struct rank *rank)
{
    if (!rank->session)
        return;
    const OrtApi *api = rank->engine->api;
    for (size_t i = 0; i < RUN_SLOTS; i++)
        tsr__rank_drop(rank, i);
    tsr__views_release(rank, rank->input_views, rank->n_inputs);
    tsr__views_release(rank, rank->output_views, rank->n_outputs);
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

bool tsr__rank_bind_kept_output(struct rank *rank, size_t run_slot, const struct tensor *full)
{
    int64_t i = tsr__rank_find_output(rank, full->name);
    OrtValue *value = i < 0 ? NULL : tsr__view_find(rank, &rank->output_views[i], full);
    if (value)
        rank->run_slots[run_slot].outs[i] = value;
    return value != NULL;
}

tsr_status tsr__rank_bind_output(struct rank *rank, size_t run_slot, const struct tensor *full,
                                 const struct shard_view *view, tsr_session *session)
{
    const OrtApi *api = rank->engine->api;
    int64_t i = tsr__rank_find_output(rank, full->name);
    if (i < 0)
        return TSR_OK;
    OrtValue **out = &rank->run_slots[run_slot].outs[i];
    const OrtMemoryInfo *memory =
        view->device && rank->on_gpu ? rank->on_gpu : rank->engine->memory;
    OrtStatus *failed = api->CreateTensorWithDataAsOrtValue(
        memory, view->data, view->bytes, view->dims, (size_t)full->rank, (int)full->type, out);
    if (!failed) {
        tsr__view_keep(rank, &rank->output_views[i], full, *out);
        return TSR_OK;
    }
    struct place at = tsr__rank_place(rank);
    tsr__diag(session, DIAG_engine_failed, &at, NULL, "cannot bind an output: %s",
              api->GetErrorMessage(failed));
    api->ReleaseStatus(failed);
    return TSR_ENGINE;
}
