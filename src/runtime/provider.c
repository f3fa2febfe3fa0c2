// SPDX-License-Identifier: Apache-2.0
// provider.c - chooses the execution provider of a rank from the name of its device (CPU, CUDA:0,
// ...), after the user's device map (NPU=CPU) is applied. If this ONNX Runtime lacks the provider,
// the error lists those it has.
//
// Example: "GPU:1" on an ONNX Runtime with CUDA: the map does not contain it, the kind GPU resolves
// to CUDA, so the rank gets CUDAExecutionProvider with device_id 1. "NPU" with the map NPU=CPU: no
// provider is added, and the CPU provider, which every session has, is used.
#include "runtime/internal.h"
#include "gpu/gpu.h"

#include <stdio.h>
#include <strings.h>

#define SUFFIX "ExecutionProvider"

// Kinds of devices and their providers, best first. CPU is itself a provider of ONNX Runtime.
static const struct kind {
    const char *name;
    const char *providers[8];
} kinds[] = {
    {"GPU", {"CUDA", "ROCM", "MIGraphX", "DML", "CoreML", "WebGPU", NULL}},
    {"NPU", {"QNN", "CANN", "VitisAI", "RKNPU", "OpenVINO", "Nnapi", NULL}},
};

static bool is_among(const char *provider, char *const *names, int n)
{
    size_t length = strlen(provider);
    for (int i = 0; i < n; i++)
        if (strncasecmp(names[i], provider, length) == 0 && strcmp(names[i] + length, SUFFIX) == 0)
            return true;
    return false;
}

const char *tsr__kind_provider(struct str kind, char *const *names, int n)
{
    for (size_t k = 0; k < TSR_COUNT(kinds); k++) {
        if (kind.n != strlen(kinds[k].name) || strncasecmp(kind.p, kinds[k].name, kind.n) != 0)
            continue;
        for (const char *const *provider = kinds[k].providers; *provider; provider++)
            if (is_among(*provider, names, n))
                return *provider;
    }
    return NULL;
}

struct str tsr__device_resolved(const struct engine *engine, struct str name, char *out, size_t cap)
{
    const char *colon = memchr(name.p ? name.p : "", ':', name.n);
    struct str kind = {name.p, colon ? (size_t)(colon - name.p) : name.n};
    char **names = NULL;
    int n = 0;
    if (!engine || !engine->api)
        return name;
    OrtStatus *failed = engine->api->GetAvailableProviders(&names, &n);
    if (failed) {
        engine->api->ReleaseStatus(failed);
        return name;
    }
    const char *provider = tsr__kind_provider(kind, names, n);
    OrtStatus *released = engine->api->ReleaseAvailableProviders(names, n);
    if (released)
        engine->api->ReleaseStatus(released);
    if (!provider)
        return name;
    int length = snprintf(out, cap, "%s%.*s", provider, (int)(name.n - kind.n), name.p + kind.n);
    if (length <= 0 || (size_t)length >= cap)
        return name;
    return str_of(out);
}

// Searches the available providers for a device name. If it is found, returns true and writes the
// provider's full name to `full`. Adds the names of all providers to `list`.
static bool find(const struct engine *engine, struct str name, char *full, size_t cap,
                 struct text *list)
{
    char **names = NULL;
    int n = 0;
    bool found = false;
    OrtStatus *failed = engine->api->GetAvailableProviders(&names, &n);
    if (failed) {
        engine->api->ReleaseStatus(failed);
        return false;
    }
    for (int i = 0; i < n; i++) {
        size_t length = strlen(names[i]), tail = strlen(SUFFIX);
        if (length > tail && strcmp(names[i] + length - tail, SUFFIX) == 0)
            length -= tail;
        tsr__text_printf(list, "%s%.*s", i ? ", " : "", (int)length, names[i]);
        if (length != name.n || strncasecmp(names[i], name.p, length) != 0)
            continue;
        snprintf(full, cap, "%s", names[i]);
        found = true;
    }
    OrtStatus *released = engine->api->ReleaseAvailableProviders(names, n);
    if (released)
        engine->api->ReleaseStatus(released);
    return found;
}

// Options of a provider: ours first; the user's options replace ours of the same name.
#define MAX_OPTIONS 64
struct options {
    const char *keys[MAX_OPTIONS], *values[MAX_OPTIONS];
    size_t n;
};

// Adds an option, or replaces the value of an existing key. Strings are not copied: they must live
// until the provider has read them.
static void add_option(struct options *options, const char *key, const char *value)
{
    size_t at = 0;
    while (at < options->n && strcmp(options->keys[at], key) != 0)
        at++;
    if (at == MAX_OPTIONS)
        return; // the command line allows fewer
    options->keys[at] = key;
    options->values[at] = value;
    options->n += at == options->n;
}

static bool add_given(struct options *options, struct arena *arena, const tsr_run_options *given)
{
    for (size_t i = 0; i < given->n_provider_options; i++) {
        const char *text = given->provider_options[i], *equals = strchr(text, '=');
        if (!equals)
            continue;
        struct str key = tsr__arena_str(arena, (struct str){text, (size_t)(equals - text)});
        struct str value = tsr__arena_str(arena, str_of(equals + 1));
        if (arena->failed)
            return false;
        add_option(options, key.p, value.p);
    }
    return true;
}

#define MINOR_TF32 18 // first release with this option

// Value of the option sdpa_kernel: the sum of the attention kernels that may be used. These are the
// kernels that are enabled by default, except cuDNN (8): flash 1, memory-efficient 2, TensorRT's
// fused, flash and cross attention 4 + 32 + 64, unfused 16, decoder 512.
#define KERNELS_WITHOUT_CUDNN "631"

// Adds the CUDA provider. Its memory arena grows by the requested size, not by doubling. Products
// have full float32 precision unless TF32 is requested.
static OrtStatus *append_cuda(struct rank *rank, OrtSessionOptions *options, const char *id)
{
    const OrtApi *api = rank->engine->api;
    OrtCUDAProviderOptionsV2 *cuda = NULL;
    struct options all = {0};
    char limit[24];
    add_option(&all, "device_id", *id ? id : "0");
    add_option(&all, "arena_extend_strategy", "kSameAsRequested");
    if (rank->engine->minor >= MINOR_TF32)
        add_option(&all, "use_tf32", rank->options->tf32 ? "1" : "0");
    if (rank->has_caches && tsr__quirk_applies(QUIRK_plan_per_length, rank->engine->minor))
        add_option(&all, "sdpa_kernel", KERNELS_WITHOUT_CUDNN);
    snprintf(limit, sizeof limit, "%lld", (long long)rank->memory_limit);
    if (rank->memory_limit > 0)
        add_option(&all, "gpu_mem_limit", limit);
    if (!add_given(&all, &rank->arena, rank->options))
        return api->CreateStatus(ORT_FAIL, "out of memory");
    TRY(api->CreateCUDAProviderOptions(&cuda));
    OrtStatus *failed = api->UpdateCUDAProviderOptions(cuda, all.keys, all.values, all.n);
    if (!failed)
        failed = api->SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda);
    api->ReleaseCUDAProviderOptions(cuda);
    return failed;
}

static OrtStatus *append(struct rank *rank, OrtSessionOptions *options, const char *full,
                         const char *id)
{
    char name[64];
    struct options all = {0};
    if (strcmp(full, "CUDA" SUFFIX) == 0)
        return append_cuda(rank, options, id);
    if (*id)
        add_option(&all, "device_id", id);
    if (!add_given(&all, &rank->arena, rank->options))
        return rank->engine->api->CreateStatus(ORT_FAIL, "out of memory");
    snprintf(name, sizeof name, "%.*s", (int)(strlen(full) - strlen(SUFFIX)), full);
    return rank->engine->api->SessionOptionsAppendExecutionProvider(options, name, all.keys,
                                                                    all.values, all.n);
}

// Returns the option that replaces the device of the rank by the CPU.
static const char *cpu_option(struct rank *rank)
{
    const char *name = rank->device && *rank->device ? rank->device : "CPU";
    return tsr__arena_printf(&rank->arena, "--map-device %s=CPU", name).p;
}

static tsr_status report_absent(struct rank *rank, struct str name, const char *list)
{
    struct place at = tsr__rank_place(rank);
    const char *hint = tsr__arena_printf(&rank->arena,
                                         "run it on the CPU with %s, or use an ONNX Runtime with "
                                         "this provider",
                                         cpu_option(rank))
                           .p;
    return tsr__fail(rank->session, TSR_ENGINE, DIAG_provider_absent, &at, hint,
                     "no execution provider for device " STR_FMT "; ONNX Runtime %s has %s",
                     STR_ARG(name), rank->engine->version, list);
}

// Reports that ONNX Runtime has the provider, but refuses to add it. Examples: a library of CUDA is
// missing; the provider does not have an option.
static tsr_status report_refused(struct rank *rank, struct str name, const char *why)
{
    struct place at = tsr__rank_place(rank);
    const char *hint = tsr__arena_printf(&rank->arena,
                                         "install the libraries that this provider needs (pip "
                                         "install onnxruntime-gpu[cuda,cudnn] for CUDA), or run "
                                         "it on the CPU with %s",
                                         cpu_option(rank))
                           .p;
    if (rank->options->n_provider_options)
        hint = "check the names and values of --provider-option";
    return tsr__fail(rank->session, TSR_ENGINE, DIAG_provider_absent, &at, hint,
                     "the execution provider of device " STR_FMT " cannot be used: %s",
                     STR_ARG(name), why);
}

tsr_status tsr__provider_set(struct rank *rank, OrtSessionOptions *options)
{
    char resolved[DEVICE_NAME], id[16] = "", full[96] = "";
    struct str mapped = tsr__device_mapped(rank->device, rank->options);
    struct str name = tsr__device_resolved(rank->engine, mapped, resolved, sizeof resolved);
    struct str kind = name;
    const char *colon = memchr(name.p ? name.p : "", ':', name.n);
    // The name for rank_facts.c: CPU, unless another provider is added below.
    snprintf(rank->provider, sizeof rank->provider, "CPU");
    if (colon) {
        kind.n = (size_t)(colon - name.p);
        snprintf(id, sizeof id, "%.*s", (int)(name.n - kind.n - 1), colon + 1);
    }
    if (kind.n == 0 || (kind.n == 3 && strncasecmp(kind.p, "CPU", 3) == 0))
        return TSR_OK;
    if (rank->seat && tsr__gpu_stands_in(rank->gpu))
        return TSR_OK; // the CPU provider is used
    struct text list = {.session = rank->session};
    bool found = find(rank->engine, kind, full, sizeof full, &list);
    const char *there = list.p ? list.p : "none";
    OrtStatus *failed = NULL;
    tsr_status st = TSR_OK;
    if (found) {
        failed = append(rank, options, full, id);
        snprintf(rank->provider, sizeof rank->provider, "%.*s",
                 (int)(strlen(full) - strlen(SUFFIX)), full);
    } else
        st = report_absent(rank, name, there);
    if (failed) {
        st = report_refused(rank, name, rank->engine->api->GetErrorMessage(failed));
        rank->engine->api->ReleaseStatus(failed);
    }
    tsr__text_free(&list);
    return st;
}

bool tsr_engine_device(tsr_session *session, const char *name, char *out, size_t cap)
{
    struct engine *engine = session->engine;
    char resolved[DEVICE_NAME], full[96];
    if (!engine || !engine->api)
        return false;
    struct str found = tsr__device_resolved(engine, str_of(name), resolved, sizeof resolved);
    const char *colon = memchr(found.p, ':', found.n);
    struct str kind = {found.p, colon ? (size_t)(colon - found.p) : found.n};
    struct text list = {.session = session};
    bool here = find(engine, kind, full, sizeof full, &list);
    tsr__text_free(&list);
    if (here && out)
        snprintf(out, cap, STR_FMT, STR_ARG(found));
    return here;
}
