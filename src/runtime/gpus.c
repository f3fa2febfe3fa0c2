// SPDX-License-Identifier: Apache-2.0
// gpus.c - ranks on GPUs: opens the GPU of a rank, and keeps inputs and outputs in GPU memory.
//
// Outputs stay on the GPU until they are taken; states stay there as inputs of the next run. If no
// rank of a job is on a GPU, the functions for ranks do nothing.
#include "runtime/internal.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

int tsr__gpu_card(const struct engine *engine, const char *device, const tsr_run_options *options)
{
    char name[DEVICE_NAME];
    struct str mapped = tsr__device_mapped(device, options);
    int64_t card =
        tsr__device_number(tsr__device_resolved(engine, mapped, name, sizeof name), "CUDA");
    return card < GPU_MAX_CARDS ? (int)card : -1;
}

bool tsr__gpu_named(tsr_session *session, const char *device, const tsr_run_options *options)
{
    return tsr__gpu_card(session->engine, device, options) >= 0;
}

const struct gpu *tsr__gpu_driver(tsr_session *session, struct engine *engine,
                                  const tsr_run_options *options)
{
    struct gpu_libraries libraries = {options->gpu_driver, options->gpu_nccl};
    if (!engine->gpu && !engine->gpu_why[0])
        engine->gpu = tsr__gpu_open(session, &libraries, engine->gpu_why, sizeof engine->gpu_why);
    return engine->gpu;
}

tsr_status tsr__gpu_refuse_fork(tsr_session *session, const tsr_run_options *options)
{
    struct gpu_libraries libraries = {options->gpu_driver, options->gpu_nccl};
    if (!tsr__gpu_started(&libraries))
        return TSR_OK;
    return tsr__run_refuse(
        session, DIAG_transport_absent, NULL,
        "run them as threads (--transport threads), or start them from a process that "
        "has not used a GPU itself",
        "ranks cannot be child processes of a process that has used a GPU");
}

// ---- opening the GPU ----------------------------------------------------------------------------

static tsr_status refuse_gpu(struct rank *rank, const struct comm_trouble *why)
{
    struct place at = PLACE(.file = str_of(rank->path));
    // An unsharded model has no endpoint, so the diagnostic has no rank.
    at.rank = rank->endpoint ? rank->endpoint->rank : -1;
    return tsr__fail(
        rank->session, TSR_ENGINE, DIAG_provider_absent, &at,
        "`tessera doctor` lists the GPUs of this machine; --map-device NAME=CPU uses the CPU "
        "instead",
        "%s", why->text);
}

// Opens the GPU of an unsharded model, which has no endpoint but needs the GPU to copy outputs.
static tsr_status open_gpu_alone(struct rank *rank, int card)
{
    struct comm_trouble why;
    char words[160];
    int code = tsr__seat_open(rank->session, rank->gpu, card, false, &rank->seat);
    rank->owns_seat = code == 0;
    if (code == 0)
        return TSR_OK;
    snprintf(why.text, sizeof why.text, "GPU %d: %s", card,
             tsr__gpu_words(rank->gpu, code, words, sizeof words));
    return refuse_gpu(rank, &why);
}

// Opens the GPU of a rank. A rank without an endpoint only opens its GPU context. Any other rank
// opens the device endpoint on top of its own, even without a GPU, because calls of the other ranks
// go through it. Afterwards rank->endpoint is the device endpoint and rank->base that of the
// transport; tsr__gpu_leave reverses this.
tsr_status tsr__gpu_place(struct rank *rank)
{
    int card = tsr__gpu_card(rank->engine, rank->device, rank->options);
    struct comm_trouble why;
    if (!rank->gpu)
        return TSR_OK;
    rank->card = card;
    if (!rank->endpoint)
        return card < 0 ? TSR_OK : open_gpu_alone(rank, card);
    struct device_options options = {.deterministic = rank->options->deterministic};
    if (card >= 0) {
        options.gpu = rank->gpu;
        options.card = card;
    }
    if (rank->options->timeout_s > 0) // four times the time-out of a rank without heartbeat
        options.join_s = 4 * rank->options->timeout_s;
    options.watch_s = 2 * options.join_s;
    options.method = (enum gpu_method)rank->options->gpu_transport;
    struct endpoint *endpoint = NULL;
    if (tsr__device_open(rank->session, rank->endpoint, &options, &endpoint, &why) != TSR_OK)
        return refuse_gpu(rank, &why);
    rank->base = rank->endpoint;
    rank->endpoint = endpoint;
    rank->seat = tsr__device_seat(endpoint);
    return TSR_OK;
}

// Part of each rank's share that is left for memory outside of the engine's arena: libraries, their
// workspace and communication.
#define OUTSIDE_SHARE 16 // one part of 16 at most
#define OUTSIDE_BYTES ((int64_t)512 << 20)

// Returns the memory that the engine may use; 0: unknown. Example: 6 GiB are free for 2 ranks, thus
// 3 GiB each, of which the engine may use 2.8.
static int64_t limit_of(const struct device_share *share)
{
    if (share->ranks < 1 || share->free <= 0)
        return 0;
    int64_t part = share->free / share->ranks;
    int64_t outside = part / OUTSIDE_SHARE;
    if (outside > OUTSIDE_BYTES)
        outside = OUTSIDE_BYTES;
    return part - outside;
}

// Sets rank->memory_limit of a rank on a GPU. The user's limit replaces the rank's share of the
// free memory. Finding the share is a collective, so all ranks take part in any case.
tsr_status tsr__gpu_limit(struct rank *rank, struct comm_trouble *why)
{
    struct device_share share = {0};
    int64_t whole = 0;
    tsr_status st = TSR_OK;
    if (rank->base)
        st = tsr__device_share(rank->endpoint, rank->plan, &share, why);
    else if (rank->seat && tsr__seat_enter(rank->seat) == 0 &&
             tsr__seat_free_memory(rank->seat, &share.free, &whole) == 0)
        share.ranks = 1;
    if (st != TSR_OK)
        return st;
    rank->memory_limit = limit_of(&share);
    if (rank->seat && rank->options->gpu_memory > 0)
        rank->memory_limit = rank->options->gpu_memory;
    return TSR_OK;
}

// Closes the GPU of a rank. Every field is checked: the rank may have no GPU, or its opening may
// have failed halfway.
void tsr__gpu_leave(struct rank *rank)
{
    if (rank->on_gpu)
        rank->engine->api->ReleaseMemoryInfo(rank->on_gpu);
    if (rank->owns_seat)
        tsr__seat_close(rank->seat);
    if (rank->base) {
        tsr__device_close(rank->endpoint);
        rank->endpoint = rank->base;
    }
    rank->seat = NULL;
    rank->base = NULL;
    rank->on_gpu = NULL;
}

// ---- inputs and outputs ------------------------------------------------------------------------

// Finds the outputs that are numeric tensors: these can stay in GPU memory.
static OrtStatus *find_device_outputs(struct rank *rank)
{
    const OrtApi *api = rank->engine->api;
    for (size_t i = 0; i < rank->n_outputs; i++) {
        OrtTypeInfo *info = NULL;
        const OrtTensorTypeAndShapeInfo *tensor = NULL;
        int kind = 0, type = 0;
        TRY(api->SessionGetOutputTypeInfo(rank->ort, i, &info));
        OrtStatus *st = api->GetOnnxTypeFromTypeInfo(info, &kind);
        if (!st && kind == ORT_TENSOR)
            st = api->CastTypeInfoToTensorInfo(info, &tensor);
        if (!st && tensor)
            st = api->GetTensorElementType(tensor, &type);
        api->ReleaseTypeInfo(info);
        if (st)
            return st;
        rank->stays[i] = kind == ORT_TENSOR && type != TSR_STRING;
    }
    return NULL;
}

// Creates the binding of a rank on a GPU, which leaves numeric outputs there until they are taken.
// Without a GPU, or with a stand-in for the driver (in tests), nothing is bound.
tsr_status tsr__gpu_bind(struct rank *rank)
{
    const OrtApi *api = rank->engine->api;
    if (!rank->seat || tsr__gpu_stands_in(rank->gpu))
        return TSR_OK;
    int card = tsr__gpu_card(rank->engine, rank->device, rank->options);
    rank->stays = ARENA_ARRAY(&rank->arena, bool, rank->n_outputs + 1);
    if (!rank->stays)
        return TSR_NOMEM;
    OrtStatus *st = api->CreateIoBinding(rank->ort, &rank->binding);
    if (!st)
        st = api->CreateMemoryInfo("Cuda", ORT_DEVICE_ALLOCATOR, card, ORT_MEMORY_DEFAULT,
                                   &rank->on_gpu);
    if (!st)
        st = find_device_outputs(rank);
    if (!st)
        return TSR_OK;
    struct place at = PLACE(.file = str_of(rank->path));
    tsr__diag(rank->session, DIAG_engine_refused, &at, NULL, "binding inputs and outputs: %s",
              api->GetErrorMessage(st));
    api->ReleaseStatus(st);
    return TSR_ENGINE;
}

// True if the binding has the value from an earlier run.
static bool is_bound(const struct kept_view *view, const OrtValue *value)
{
    return value && view->bound && view->value == value;
}

// Records in views[i].bound which kept views the binding has after a run. Returns their number.
static size_t note_bound(struct kept_view *views, OrtValue *const *values, size_t n, bool bound)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        views[i].bound = bound && values[i] && views[i].value == values[i];
        kept += views[i].bound;
    }
    return kept;
}

static OrtStatus *bind_all(struct rank *rank, struct run_slot *run_slot)
{
    const OrtApi *api = rank->engine->api;
    for (size_t i = 0; i < rank->n_inputs; i++)
        if (!is_bound(&rank->input_views[i], run_slot->ins[i]))
            TRY(api->BindInput(rank->binding, rank->input_names[i], run_slot->ins[i]));
    // Outputs that cannot stay on the GPU (strings, sequences) are created in host memory.
    for (size_t i = 0; i < rank->n_outputs; i++)
        if (is_bound(&rank->output_views[i], run_slot->outs[i]))
            continue;
        else if (run_slot->outs[i])
            TRY(api->BindOutput(rank->binding, rank->output_names[i], run_slot->outs[i]));
        else
            TRY(api->BindOutputToDevice(rank->binding, rank->output_names[i],
                                        rank->stays[i] ? rank->on_gpu : rank->engine->memory));
    return NULL;
}

static OrtStatus *take_values(struct rank *rank, struct run_slot *run_slot)
{
    const OrtApi *api = rank->engine->api;
    OrtValue **values = NULL;
    size_t n = 0;
    TRY(api->GetBoundOutputValues(rank->binding, rank->engine->allocator, &values, &n));
    for (size_t i = 0; i < n; i++) // in the order in which they were bound
        if (run_slot->outs[i])
            api->ReleaseValue(values[i]); // another handle of the caller's memory
        else
            run_slot->outs[i] = values[i];
    if (values)
        return api->AllocatorFree(rank->engine->allocator, values);
    return NULL;
}

OrtStatus *tsr__gpu_run(struct rank *rank, struct run_slot *run_slot)
{
    const OrtApi *api = rank->engine->api;
    OrtStatus *st = bind_all(rank, run_slot);
    if (!st)
        st = api->RunWithBinding(rank->ort, rank->run_options, rank->binding);
    if (!st)
        st = take_values(rank, run_slot);
    // With kept views the binding stays, and the next run binds only values that have changed.
    // Otherwise it is cleared, so that only the run slot and the states keep values alive.
    bool keeps = !st && rank->keeps_views;
    size_t kept = note_bound(rank->input_views, run_slot->ins, rank->n_inputs, keeps) +
                  note_bound(rank->output_views, run_slot->outs, rank->n_outputs, keeps);
    if (kept == 0) {
        api->ClearBoundInputs(rank->binding);
        api->ClearBoundOutputs(rank->binding);
    }
    return st;
}
