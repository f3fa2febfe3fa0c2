// SPDX-License-Identifier: Apache-2.0
// device_memory.c - GPU memory for inputs and outputs of the application's session: a device for
// each GPU, its allocator, and copies between host and GPUs.
//
// If a session selects the device of a GPU, all its inputs and outputs are in the memory of that
// GPU; ONNX Runtime copies inputs that are elsewhere. GPUs are listed in a child process. The first
// allocation or copy starts the driver in this process.
#include "ep/internal.h"
#include "gpu/gpu.h"
#include "runtime/runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define NVIDIA   0x10DE // PCI vendor, also of memory of ONNX Runtime's CUDA provider
#define MAX_GPUS 7      // ONNX Runtime takes 8 devices of a factory; one is the CPU

struct device_memory {
    struct ep_api api;
    struct gpu_libraries libraries;
    tsr_session *session;
    int n;
    OrtMemoryInfo *infos[MAX_GPUS];
    OrtHardwareDevice *hardware[MAX_GPUS]; // created here; NULL: ONNX Runtime has listed the GPU
    pthread_mutex_t lock;                  // protects the fields below
    struct gpu *gpu;                       // NULL: not started
    struct gpu_seat *seats[MAX_GPUS];      // the opened GPUs; NULL: not open
};

static OrtStatus *failed(const struct device_memory *memory, int card, const char *what, int code)
{
    char words[160] = "", text[256];
    if (memory->gpu)
        tsr__gpu_words(memory->gpu, code, words, sizeof words);
    snprintf(text, sizeof text, "Tessera: GPU %d: %s: %s", card, what, words);
    return memory->api.ort->CreateStatus(ORT_FAIL, text);
}

// ---- finding GPUs ------------------------------------------------------------------------------

// True if the GPU driver is installed. Without it no child process is started to list GPUs.
static bool has_driver(const struct gpu_libraries *libraries)
{
    void *library =
        dlopen(libraries->driver ? libraries->driver : "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library)
        dlclose(library);
    return library != NULL;
}

OrtStatus *tsr__ep_memory_new(const struct ep_api *api, struct device_memory **out)
{
    struct gpu_libraries libraries = {getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL")};
    *out = NULL;
    if (!has_driver(&libraries))
        return NULL;
    struct gpu_survey *survey = calloc(1, sizeof *survey);
    struct device_memory *memory = calloc(1, sizeof *memory);
    tsr_session *session = tsr_session_new(NULL);
    if (!survey || !memory || !session) {
        free(survey);
        free(memory);
        tsr_session_free(session);
        return api->ort->CreateStatus(ORT_FAIL, "out of memory");
    }
    tsr__gpu_survey(&libraries, survey);
    *memory = (struct device_memory){.api = *api,
                                     .libraries = libraries,
                                     .session = session,
                                     .n = survey->n < MAX_GPUS ? survey->n : MAX_GPUS};
    free(survey);
    pthread_mutex_init(&memory->lock, NULL);
    *out = memory;
    if (memory->n > 0)
        return NULL;
    tsr__ep_memory_free(memory);
    *out = NULL;
    return NULL;
}

void tsr__ep_memory_free(struct device_memory *memory)
{
    if (!memory)
        return;
    for (int i = 0; i < memory->n; i++) {
        if (memory->infos[i])
            memory->api.ort->ReleaseMemoryInfo(memory->infos[i]);
        if (memory->hardware[i])
            memory->api.ep->ReleaseHardwareDevice(memory->hardware[i]);
        tsr__seat_close(memory->seats[i]);
    }
    tsr__gpu_close(memory->session, memory->gpu);
    pthread_mutex_destroy(&memory->lock);
    tsr_session_free(memory->session);
    free(memory);
}

// Finds the OrtHardwareDevice of a GPU, or creates one. In containers ONNX Runtime does not list
// all GPUs that the driver lists.
static OrtStatus *find_hardware(struct device_memory *memory, int card,
                                const OrtHardwareDevice *const *hardware, size_t n,
                                const OrtHardwareDevice **out)
{
    const struct ep_api *api = &memory->api;
    int seen = 0;
    for (size_t i = 0; i < n; i++) {
        if (api->ort->HardwareDevice_Type(hardware[i]) != ORT_HARDWARE_GPU ||
            api->ort->HardwareDevice_VendorId(hardware[i]) != NVIDIA)
            continue;
        *out = hardware[i];
        if (seen++ == card)
            return NULL;
    }
    TRY(api->ep->CreateHardwareDevice(ORT_HARDWARE_GPU, NVIDIA, (uint32_t)card, "NVIDIA", NULL,
                                      &memory->hardware[card]));
    *out = memory->hardware[card];
    return NULL;
}

OrtStatus *tsr__ep_memory_devices(struct ep_factory *factory,
                                  const OrtHardwareDevice *const *hardware, size_t n_hardware,
                                  OrtEpDevice **out, size_t most, size_t *n)
{
    struct device_memory *memory = factory->memory;
    const struct ep_api *api = &factory->api;
    for (int i = 0; memory && i < memory->n && *n < most; i++) {
        const OrtHardwareDevice *device = NULL;
        if (!memory->infos[i])
            TRY(api->ort->CreateMemoryInfo_V2("Tessera GPU", ORT_MEMORY_DEVICE_GPU, NVIDIA, i,
                                              ORT_MEMORY_DEFAULT, 0, ORT_DEVICE_ALLOCATOR,
                                              &memory->infos[i]));
        TRY(find_hardware(memory, i, hardware, n_hardware, &device));
        TRY(api->ep->CreateEpDevice(&factory->ort, device, NULL, NULL, &out[*n]));
        (*n)++;
        TRY(api->ep->EpDevice_AddAllocatorInfo(out[*n - 1], memory->infos[i]));
    }
    return NULL;
}

// ---- memory ------------------------------------------------------------------------------------

// Opens the GPU and makes it current for the calling thread. The caller holds the lock. On failure
// it returns NULL and sets *status.
static struct gpu_seat *enter(struct device_memory *memory, int card, OrtStatus **status)
{
    char why[160] = "";
    *status = NULL;
    if (card < 0 || card >= memory->n) {
        *status = memory->api.ort->CreateStatus(ORT_FAIL, "Tessera: no such GPU");
        return NULL;
    }
    if (!memory->gpu)
        memory->gpu = tsr__gpu_open(memory->session, &memory->libraries, why, sizeof why);
    if (!memory->gpu) {
        *status = memory->api.ort->CreateStatus(ORT_FAIL, why);
        return NULL;
    }
    int code = 0;
    if (!memory->seats[card])
        code = tsr__seat_open(memory->session, memory->gpu, card, false, &memory->seats[card]);
    if (code == 0)
        code = tsr__seat_enter(memory->seats[card]);
    if (code == 0)
        return memory->seats[card];
    *status = failed(memory, card, "it cannot be opened", code);
    return NULL;
}

struct gpu_allocator {
    OrtAllocator ort; // must be the first field
    struct device_memory *memory;
    const OrtMemoryInfo *info;
    int card;
};

static void *allocate(OrtAllocator *ort, size_t bytes)
{
    struct gpu_allocator *allocator = (struct gpu_allocator *)ort;
    struct device_memory *memory = allocator->memory;
    OrtStatus *status;
    void *p = NULL;
    pthread_mutex_lock(&memory->lock);
    struct gpu_seat *seat = enter(memory, allocator->card, &status);
    if (seat && tsr__seat_alloc(seat, bytes, &p) != 0)
        p = NULL; // the copy or the run reports the failure
    pthread_mutex_unlock(&memory->lock);
    memory->api.ort->ReleaseStatus(status);
    return p;
}

static void release(OrtAllocator *ort, void *p)
{
    struct gpu_allocator *allocator = (struct gpu_allocator *)ort;
    struct device_memory *memory = allocator->memory;
    OrtStatus *status;
    pthread_mutex_lock(&memory->lock);
    struct gpu_seat *seat = enter(memory, allocator->card, &status);
    if (seat)
        tsr__seat_free(seat, p);
    pthread_mutex_unlock(&memory->lock);
    memory->api.ort->ReleaseStatus(status);
}

static const OrtMemoryInfo *describe(const OrtAllocator *ort)
{
    return ((const struct gpu_allocator *)ort)->info;
}

OrtStatus *tsr__ep_memory_allocator(struct device_memory *memory, const OrtMemoryInfo *info,
                                    OrtAllocator **out)
{
    const OrtEpApi *ep = memory->api.ep;
    struct gpu_allocator *allocator = calloc(1, sizeof *allocator);
    if (!allocator)
        return memory->api.ort->CreateStatus(ORT_FAIL, "out of memory");
    allocator->ort =
        (OrtAllocator){.version = ORT_API, .Alloc = allocate, .Free = release, .Info = describe};
    allocator->memory = memory;
    allocator->info = info;
    allocator->card = (int)ep->MemoryDevice_GetDeviceId(ep->MemoryInfo_GetMemoryDevice(info));
    *out = &allocator->ort;
    return NULL;
}

void tsr__ep_memory_release(OrtAllocator *allocator)
{
    free(allocator);
}

// ---- copies ------------------------------------------------------------------------------------

static int gpu_of(const struct ep_api *api, const OrtMemoryDevice *device)
{
    if (!device || api->ep->MemoryDevice_GetDeviceType(device) != ORT_MEMORY_DEVICE_GPU ||
        api->ep->MemoryDevice_GetVendorId(device) != NVIDIA)
        return -1;
    return (int)api->ep->MemoryDevice_GetDeviceId(device);
}

int tsr__ep_value_gpu(const struct ep_api *api, const OrtValue *value)
{
    return gpu_of(api, api->ep->Value_GetMemoryDevice(value));
}

// Returns an out-of-memory error for a tensor without memory. ONNX Runtime does not check whether
// `allocate` failed.
static OrtStatus *no_memory(const struct device_memory *memory, int card, size_t bytes)
{
    char text[128];
    snprintf(text, sizeof text, "Tessera: GPU %d has no memory for a tensor of %zu bytes", card,
             bytes);
    return memory->api.ort->CreateStatus(ORT_FAIL, text);
}

OrtStatus *tsr__ep_memory_copy(struct device_memory *memory, void *to, int to_gpu, const void *from,
                               int from_gpu, size_t bytes)
{
    OrtStatus *status = NULL;
    int card = to_gpu >= 0 ? to_gpu : from_gpu, code = 0;
    if (bytes && (!to || !from))
        return no_memory(memory, card, bytes);
    pthread_mutex_lock(&memory->lock);
    struct gpu_seat *seat = enter(memory, card, &status);
    if (seat) {
        void *stream = tsr__seat_stream(seat);
        code = tsr__seat_wait(seat, NULL); // wait for earlier work on the default stream
        if (code == 0 && from_gpu < 0)
            code = tsr__seat_up(seat, to, from, bytes, stream);
        else if (code == 0 && to_gpu < 0)
            code = tsr__seat_down(seat, to, from, bytes, stream);
        else if (code == 0)
            code = tsr__seat_copy(seat, to, from, bytes, stream);
        if (code == 0)
            code = tsr__seat_wait(seat, stream);
        if (code != 0)
            status = failed(memory, card, "a tensor cannot be copied", code);
    }
    pthread_mutex_unlock(&memory->lock);
    return status;
}

OrtStatus *tsr__ep_memory_extend(struct device_memory *memory, int gpu,
                                 const struct cache_copy *copies, size_t n)
{
    OrtStatus *status = NULL;
    struct gpu_copies together = {.n = 0};
    pthread_mutex_lock(&memory->lock);
    struct gpu_seat *seat = enter(memory, gpu, &status);
    void *stream = seat ? tsr__seat_stream(seat) : NULL;
    int code = seat ? tsr__seat_wait(seat, NULL) : 0; // the producers of the caches
    if (seat && code == 0)
        code = tsr__seat_wait(seat, stream); // copies of another session use the same memory
    for (size_t i = 0; seat && i < n; i++)
        for (size_t row = 0; copies[i].to && row < copies[i].rows && code == 0; row++)
            code = tsr__seat_copies_extend(
                seat, &together, (char *)copies[i].to + row * copies[i].to_bytes,
                copies[i].to_bytes, (const char *)copies[i].from + row * copies[i].from_bytes,
                copies[i].from_bytes, stream);
    if (seat && code == 0)
        code = tsr__seat_copies_start(seat, &together, stream);
    if (code != 0)
        status = failed(memory, gpu, "a cache cannot be copied", code);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

OrtStatus *tsr__ep_memory_settle(struct device_memory *memory, int gpu)
{
    OrtStatus *status = NULL;
    pthread_mutex_lock(&memory->lock);
    struct gpu_seat *seat = enter(memory, gpu, &status);
    int code = seat ? tsr__seat_wait(seat, tsr__seat_stream(seat)) : 0;
    pthread_mutex_unlock(&memory->lock);
    if (code != 0)
        return failed(memory, gpu, "a cache cannot be copied", code);
    return status;
}

struct gpu_transfer {
    OrtDataTransferImpl ort; // must be the first field
    struct device_memory *memory;
};

static void release_transfer(OrtDataTransferImpl *transfer)
{
    free(transfer);
}

static bool is_host(const struct ep_api *api, const OrtMemoryDevice *device)
{
    return api->ep->MemoryDevice_GetDeviceType(device) == ORT_MEMORY_DEVICE_CPU;
}

static bool can_copy(const OrtDataTransferImpl *ort, const OrtMemoryDevice *from,
                     const OrtMemoryDevice *to)
{
    const struct device_memory *memory = ((const struct gpu_transfer *)ort)->memory;
    int from_gpu = gpu_of(&memory->api, from), to_gpu = gpu_of(&memory->api, to);
    if (from_gpu >= memory->n || to_gpu >= memory->n || (from_gpu < 0 && to_gpu < 0))
        return false;
    return (from_gpu >= 0 || is_host(&memory->api, from)) &&
           (to_gpu >= 0 || is_host(&memory->api, to));
}

static OrtStatus *copy_tensors(OrtDataTransferImpl *ort, const OrtValue **from, OrtValue **to,
                               OrtSyncStream **streams, size_t n)
{
    struct device_memory *memory = ((struct gpu_transfer *)ort)->memory;
    const struct ep_api *api = &memory->api;
    (void)streams; // the factory offers no streams
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        void *source = NULL, *place = NULL;
        TRY(api->ort->GetTensorSizeInBytes(from[i], &bytes));
        TRY(api->ort->GetTensorMutableData((OrtValue *)(uintptr_t)from[i], &source));
        TRY(api->ort->GetTensorMutableData(to[i], &place));
        TRY(tsr__ep_memory_copy(memory, place, tsr__ep_value_gpu(api, to[i]), source,
                                tsr__ep_value_gpu(api, from[i]), bytes));
    }
    return NULL;
}

OrtStatus *tsr__ep_memory_transfer(struct device_memory *memory, OrtDataTransferImpl **out)
{
    struct gpu_transfer *transfer = calloc(1, sizeof *transfer);
    if (!transfer)
        return memory->api.ort->CreateStatus(ORT_FAIL, "out of memory");
    transfer->ort = (OrtDataTransferImpl){.ort_version_supported = ORT_API_EP,
                                          .Release = release_transfer,
                                          .CanCopy = can_copy,
                                          .CopyTensors = copy_tensors};
    transfer->memory = memory;
    *out = &transfer->ort;
    return NULL;
}

// ---- inputs and outputs of a run ---------------------------------------------------------------

tsr_status tsr__ep_memory_input(struct fused *fused, const OrtValue *value, const char *name,
                                tsr_tensors *to, OrtStatus **failed)
{
    struct ep_factory *factory = fused->provider->factory;
    const OrtApi *ort = factory->api.ort;
    struct value_shape seen;
    struct tensor *copy = NULL;
    int gpu = tsr__ep_value_gpu(&factory->api, value);
    void *data = NULL;
    *failed = tsr__engine_shape(ort, value, &seen);
    if (!*failed && seen.rank > RUN_MAX_RANK)
        *failed = ort->CreateStatus(ORT_FAIL, "Tessera: an input has more than 64 dimensions");
    if (!*failed)
        *failed = ort->GetTensorMutableData((OrtValue *)(uintptr_t)value, &data);
    if (*failed)
        return TSR_ENGINE;
    if (fused->job && tsr__job_on_gpu(fused->job)) {
        struct foreign memory = {.data = data, .device = 1 + gpu};
        return tsr__tensors_add_foreign(to, str_of(name), seen.type, (int)seen.rank, seen.dims,
                                        &memory);
    }
    TRY(tsr__tensors_add(to, str_of(name), seen.type, (int)seen.rank, seen.dims, &copy));
    *failed = tsr__ep_memory_copy(factory->memory, copy->data, -1, data, gpu, copy->bytes);
    return *failed ? TSR_ENGINE : TSR_OK;
}

// Data of the callback `place`.
struct placing {
    struct fused *fused;
    OrtKernelContext *context;
    tsr_tensors *outputs;
};

// Adds a result that is not an output of the node, such as the lengths of caches (kept.c). If it is
// on a GPU, the runtime replaces it by a copy.
static tsr_status place_in_set(const struct placing *placing, const char *name, struct tensor *to)
{
    struct tensor *made = NULL;
    TRY(tsr__tensors_add(placing->outputs, str_of(name), to->type, to->rank, to->dims, &made));
    to->data = made->data;
    return TSR_OK;
}

// Gives the runtime the application's memory for an output. `to` has the shape of the output; for a
// cache with spare capacity it gets the shape of the full buffer.
static tsr_status place(void *data, const char *name, struct tensor *to)
{
    const struct placing *placing = data;
    struct fused *fused = placing->fused;
    const struct ep_api *api = &fused->provider->factory->api;
    OrtValue *value = NULL;
    void *at = NULL;
    size_t i = 0, bytes = 0;
    while (i < fused->n_outputs && strcmp(fused->outputs[i], name) != 0)
        i++;
    if (i == fused->n_outputs)
        return place_in_set(placing, name, to);
    tsr__ep_caches_full_shape(fused, i, to);
    OrtStatus *failed =
        api->ort->KernelContext_GetOutput(placing->context, i, to->dims, (size_t)to->rank, &value);
    if (!failed && value)
        failed = api->ort->GetTensorMutableData(value, &at);
    if (!failed && value)
        failed = api->ort->GetTensorSizeInBytes(value, &bytes);
    int gpu = !failed && value ? tsr__ep_value_gpu(api, value) : -1;
    if (gpu >= 0 && bytes && !at)
        failed = no_memory(fused->provider->factory->memory, gpu, bytes);
    tsr_status st = tsr__ep_report(fused->provider->session, api, failed);
    fused->placed[i] = true; // it is then not among the results of the run
    tsr__ep_caches_returned(fused, i, to);
    if (gpu < 0) {
        to->data = at;
        return st;
    }
    to->device = 1 + gpu;
    to->device_data = at;
    return st;
}

tsr_status tsr__ep_memory_wait(struct fused *fused, OrtKernelContext *context, tsr_tensors *outputs)
{
    struct placing placing = {fused, context, outputs};
    struct output_places places = {place, &placing};
    for (size_t i = 0; i < fused->n_outputs; i++)
        fused->placed[i] = false;
    return tsr__job_wait_placed(fused->job, &places, outputs);
}
