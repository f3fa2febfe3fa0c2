// SPDX-License-Identifier: Apache-2.0
// driver.c - loads CUDA's driver and NCCL, and describes their error codes.
//
// The driver must have every function of the list. NCCL is optional.
#include "gpu/internal.h"

#include <dlfcn.h>
#include <stdio.h>

static const char driver_name[] = "libcuda.so.1", nccl_name[] = "libnccl.so.2";
#define STAND_IN "tsr_stands_in_for_cuda" // only the stand-in of tests exports it

// A function of the library: its name and its offset in struct gpu.
struct entry {
    const char *name;
    size_t at;
};
#define ENTRY(name, arguments) {#name, offsetof(struct gpu, name)},
static const struct entry driver_entries[] = {GPU_FUNCTIONS(ENTRY)};
static const struct entry nccl_entries[] = {
    NCCL_FUNCTIONS(ENTRY){"ncclGetErrorString", offsetof(struct gpu, ncclGetErrorString)}};

static const struct entry collective_entries[] = {NCCL_COLLECTIVES(ENTRY)};

// Looks up functions of a library. Returns the name of the first one that it lacks, or NULL.
static const char *fill(struct gpu *gpu, void *library, const struct entry *entries, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, entries[i].name);
        if (!found)
            return entries[i].name;
        memcpy((char *)gpu + entries[i].at, &found, sizeof found);
    }
    return NULL;
}

// Loads the CUDA driver or NCCL. They start threads, so they are never unloaded.
static void *open_library(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

// Loads NCCL. A library that lacks a function is not used.
static void load_nccl(struct gpu *gpu, const char *name)
{
    gpu->nccl = open_library(name ? name : nccl_name);
    if (!gpu->nccl)
        return;
    bool complete = !fill(gpu, gpu->nccl, nccl_entries, TSR_COUNT(nccl_entries)) &&
                    gpu->ncclGetVersion(&gpu->nccl_version) == 0;
    gpu->nccl_collectives =
        complete && !fill(gpu, gpu->nccl, collective_entries, TSR_COUNT(collective_entries));
    if (complete)
        return;
    dlclose(gpu->nccl);
    gpu->nccl = NULL;
    gpu->nccl_version = 0;
}

// Loads the driver at run time, so that one binary works with and without it. A driver that lacks a
// function is treated as absent; `why` names the function.
bool tsr__gpu_load(const struct gpu_libraries *libraries, struct gpu *gpu, char *why, size_t n)
{
    const char *name = libraries->driver ? libraries->driver : driver_name;
    memset(gpu, 0, sizeof *gpu);
    gpu->driver = open_library(name);
    if (!gpu->driver) {
        snprintf(why, n, "the driver %s was not found", name);
        return false;
    }
    const char *missing = fill(gpu, gpu->driver, driver_entries, TSR_COUNT(driver_entries));
    if (missing) {
        snprintf(why, n, "%s has no function %s: too old, or not a driver", name, missing);
        return false;
    }
    gpu->stands_in = dlsym(gpu->driver, STAND_IN) != NULL;
    int code = gpu->cuInit(0);
    if (code == 0)
        code = gpu->cuDriverGetVersion(&gpu->version);
    if (code == 0)
        code = gpu->cuDeviceGetCount(&gpu->count);
    if (code != 0) {
        char words[160];
        snprintf(why, n, "the driver does not start: %.120s",
                 tsr__gpu_words(gpu, code, words, sizeof words));
        return false;
    }
    load_nccl(gpu, libraries->nccl);
    return true;
}

// True if this process uses the GPU driver already. Looks only at a library that is loaded; before
// cuInit the driver returns errors.
bool tsr__gpu_started(const struct gpu_libraries *libraries)
{
    const char *name = libraries->driver ? libraries->driver : driver_name;
    void *loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    int (*count)(int *) = NULL;
    int gpus = 0;
    if (!loaded)
        return false;
    void *found = dlsym(loaded, "cuDeviceGetCount");
    memcpy(&count, &found, sizeof found);
    bool started = count && count(&gpus) == 0;
    dlclose(loaded);
    return started;
}

// Starts the driver in this process. Children that the process forks later cannot use GPUs. Returns
// NULL, with the reason in `why`, if it does not start.
struct gpu *tsr__gpu_open(tsr_session *session, const struct gpu_libraries *libraries, char *why,
                          size_t n)
{
    struct gpu *gpu = tsr__alloc(session, sizeof *gpu);
    if (!gpu) {
        snprintf(why, n, "out of memory");
        return NULL;
    }
    if (tsr__gpu_load(libraries, gpu, why, n))
        return gpu;
    tsr__free(session, gpu, sizeof *gpu);
    return NULL;
}

void tsr__gpu_close(tsr_session *session, struct gpu *gpu)
{
    if (gpu)
        tsr__free(session, gpu, sizeof *gpu); // the libraries stay open
}

int tsr__gpu_count(const struct gpu *gpu)
{
    return gpu->count;
}

bool tsr__gpu_stands_in(const struct gpu *gpu)
{
    return gpu->stands_in;
}

// Formats a CUDA error as text, name and number. Accepts unknown codes.
const char *tsr__gpu_words(const struct gpu *gpu, int code, char *out, size_t n)
{
    const char *name = NULL, *text = NULL;
    if (gpu->cuGetErrorName(code, &name) != 0 || !name)
        name = "unknown";
    if (gpu->cuGetErrorString(code, &text) != 0 || !text)
        text = "unknown error";
    snprintf(out, n, "%s (%s, %d)", text, name, code);
    return out;
}
