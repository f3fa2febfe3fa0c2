// SPDX-License-Identifier: Apache-2.0
// gpus.c - ranks on GPUs: their place there, and inputs and outputs that stay there.
//
// Inputs go up when they are bound; outputs are left on the GPU, where states are the inputs of the next run, and come
// down when they are taken. Where no rank of a job is on a GPU, none of this happens.
#include "runtime/internal.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

// "CUDA:1" -> 1, "CUDA" -> 0; -1: no GPU of CUDA's.
static int card_of(struct str name)
{
    int64_t card = 0;
    if (name.n < 4 || strncasecmp(name.p, "CUDA", 4) != 0)
        return -1;
    if (name.n == 4)
        return 0;
    struct str number = {name.p + 5, name.n - 5};
    if (name.p[4] != ':' || !tsr__str_int(number, &card) || card < 0 || card >= GPU_MAX_CARDS)
        return -1;
    return (int)card;
}

bool tsr__gpu_named(const char *device, const tsr_run_options *o)
{
    return card_of(tsr__device_mapped(device, o)) >= 0;
}

const struct gpu *tsr__gpu_driver(tsr_session *s, struct engine *e, const tsr_run_options *o)
{
    struct gpu_libraries libraries = {o->gpu_driver, o->gpu_nccl};
    if (!e->gpu && !e->gpu_why[0])
        e->gpu = tsr__gpu_open(s, &libraries, e->gpu_why, sizeof e->gpu_why);
    return e->gpu;
}

tsr_status tsr__gpu_spoilt(tsr_session *s)
{
    const struct engine *e = s->engine;
    if (!e || !e->gpu)
        return TSR_OK;
    return tsr__run_refuse(s, DIAG_transport_absent, NULL,
                           "start the ranks from a process that has not run on a GPU itself",
                           "ranks cannot be children of a process that has used a GPU");
}

// ---- a place -----------------------------------------------------------------------------------

static tsr_status no_place(struct rank *r, const struct comm_trouble *why)
{
    struct place at = PLACE_NONE;
    at.file = str_of(r->path);
    at.rank = r->endpoint ? r->endpoint->rank : -1;
    tsr__diag(r->session, DIAG_provider_absent, &at,
              "`tessera doctor` lists the GPUs of this machine; --map-device NAME=CPU lets the CPU "
              "stand in",
              "%s", why->text);
    return TSR_ENGINE;
}

// A whole model has no endpoint, but a GPU to copy from.
static tsr_status seat_alone(struct rank *r, int card)
{
    struct comm_trouble why;
    char words[160];
    int code = tsr__seat_open(r->session, r->gpu, card, &r->seat);
    r->owns_seat = code == 0;
    if (code == 0)
        return TSR_OK;
    snprintf(why.text, sizeof why.text, "GPU %d: %s", card,
             tsr__gpu_words(r->gpu, code, words, sizeof words));
    return no_place(r, &why);
}

tsr_status tsr__gpu_place(struct rank *r)
{
    int card = card_of(tsr__device_mapped(r->device, r->options));
    struct comm_trouble why;
    if (!r->gpu)
        return TSR_OK;
    if (!r->endpoint)
        return card < 0 ? TSR_OK : seat_alone(r, card);
    struct device_options o = {.gpu = card < 0 ? NULL : r->gpu,
                               .card = card < 0 ? 0 : card,
                               .deterministic = r->options->deterministic};
    if (r->options->gpu_way)
        tsr__way_of(r->options->gpu_way, &o.way);
    struct endpoint *e = NULL;
    if (tsr__device_open(r->session, r->endpoint, &o, &e, &why) != TSR_OK)
        return no_place(r, &why);
    r->base = r->endpoint;
    r->endpoint = e;
    r->seat = tsr__device_seat(e);
    return TSR_OK;
}

void tsr__gpu_leave(struct rank *r)
{
    if (r->on_gpu)
        r->engine->api->ReleaseMemoryInfo(r->on_gpu);
    if (r->owns_seat)
        tsr__seat_close(r->seat);
    if (r->base) {
        tsr__device_close(r->endpoint);
        r->endpoint = r->base;
    }
    r->seat = NULL;
    r->base = NULL;
    r->on_gpu = NULL;
}

// ---- inputs and outputs ------------------------------------------------------------------------

// Outputs that are tensors of numbers can be left where they are made.
static OrtStatus *find_those_that_stay(struct rank *r)
{
    const OrtApi *api = r->engine->api;
    for (size_t i = 0; i < r->n_outputs; i++) {
        OrtTypeInfo *info = NULL;
        const OrtTensorTypeAndShapeInfo *tensor = NULL;
        int kind = 0, type = 0;
        TRY(api->SessionGetOutputTypeInfo(r->ort, i, &info));
        OrtStatus *st = api->GetOnnxTypeFromTypeInfo(info, &kind);
        if (!st && kind == ORT_TENSOR)
            st = api->CastTypeInfoToTensorInfo(info, &tensor);
        if (!st && tensor)
            st = api->GetTensorElementType(tensor, &type);
        api->ReleaseTypeInfo(info);
        if (st)
            return st;
        r->stays[i] = kind == ORT_TENSOR && type != TSR_STRING;
    }
    return NULL;
}

tsr_status tsr__gpu_bind(struct rank *r)
{
    const OrtApi *api = r->engine->api;
    if (!r->seat || tsr__gpu_stands_in(r->gpu))
        return TSR_OK;
    int card = card_of(tsr__device_mapped(r->device, r->options));
    r->stays = ARENA_ARRAY(&r->arena, bool, r->n_outputs + 1);
    if (!r->stays)
        return TSR_NOMEM;
    OrtStatus *st = api->CreateIoBinding(r->ort, &r->binding);
    if (!st)
        st = api->CreateMemoryInfo("Cuda", ORT_DEVICE_ALLOCATOR, card, ORT_MEMORY_DEFAULT,
                                   &r->on_gpu);
    if (!st)
        st = find_those_that_stay(r);
    if (!st)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.file = str_of(r->path);
    tsr__diag(r->session, DIAG_engine_refused, &at, NULL, "binding inputs and outputs: %s",
              api->GetErrorMessage(st));
    api->ReleaseStatus(st);
    return TSR_ENGINE;
}

static OrtStatus *bind_all(struct rank *r, struct flight *f)
{
    const OrtApi *api = r->engine->api;
    for (size_t i = 0; i < r->n_inputs; i++)
        TRY(api->BindInput(r->binding, r->input_names[i], f->ins[i]));
    for (size_t i = 0; i < r->n_outputs; i++)
        TRY(api->BindOutputToDevice(r->binding, r->output_names[i],
                                    r->stays[i] ? r->on_gpu : r->engine->memory));
    return NULL;
}

static OrtStatus *take_values(struct rank *r, struct flight *f)
{
    const OrtApi *api = r->engine->api;
    OrtValue **values = NULL;
    size_t n = 0;
    TRY(api->GetBoundOutputValues(r->binding, r->engine->allocator, &values, &n));
    for (size_t i = 0; i < n; i++)
        f->outs[i] = values[i]; // in the order in which they were bound
    return values ? api->AllocatorFree(r->engine->allocator, values) : NULL;
}

OrtStatus *tsr__gpu_run(struct rank *r, struct flight *f)
{
    const OrtApi *api = r->engine->api;
    OrtStatus *st = bind_all(r, f);
    if (!st)
        st = api->RunWithBinding(r->ort, NULL, r->binding);
    if (!st)
        st = take_values(r, f);
    api->ClearBoundInputs(
        r->binding); // nothing is kept alive but what the flight and the states have
    api->ClearBoundOutputs(r->binding);
    return st;
}

bool tsr__gpu_holds(const struct engine *e, const OrtValue *v)
{
    const OrtMemoryInfo *info = NULL;
    int device = 0;
    OrtStatus *st = e->api->GetTensorMemoryInfo(v, &info);
    if (st) {
        e->api->ReleaseStatus(st);
        return false;
    }
    e->api->MemoryInfoGetDeviceType(info, &device);
    return device == 1; // a GPU
}

int tsr__gpu_fetch(struct gpu_seat *seat, void *to, const void *from, size_t bytes)
{
    void *stream = tsr__seat_stream(seat);
    int code = tsr__seat_enter(seat);
    if (code == 0)
        code = tsr__seat_down(seat, to, from, bytes, stream);
    return code == 0 ? tsr__seat_wait(seat, stream) : code;
}
