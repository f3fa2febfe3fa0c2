// SPDX-License-Identifier: Apache-2.0
// busy_engine.c - the ONNX Runtime of REAL_ENGINE, but its first calls for an environment fail.
// ONNX Runtime 1.31 with GPU providers does so while another thread releases the environment.
#include "engine/ort.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define REFUSALS 5

const OrtApiBase *OrtGetApiBase(void);

// The API of the real library.
static const OrtApiBase *real_base(void)
{
    const OrtApiBase *(*get_base)(void) = NULL;
    void *library = dlopen(getenv("REAL_ENGINE"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = library ? dlsym(library, "OrtGetApiBase") : NULL;
    memcpy(&get_base, &symbol, sizeof get_base); // ISO C has no cast from data to function pointers
    return symbol ? get_base() : NULL;
}

static OrtApi api;
static OrtStatus *(*create_env)(int log_level, const char *id, OrtEnv **out);

static OrtStatus *refuse_at_first(int log_level, const char *id, OrtEnv **out)
{
    static int calls;
    if (calls++ < REFUSALS)
        return api.CreateStatus(1, "Only one instance of LoggingManager can exist");
    return create_env(log_level, id, out);
}

// Fails after the environment was created.
static OrtStatus *refuse_memory_info(int allocator, int type, OrtMemoryInfo **out)
{
    (void)allocator, (void)type, (void)out;
    return api.CreateStatus(1, "no memory info");
}

static const OrtApi *get_api(uint32_t version)
{
    const OrtApi *real = real_base()->GetApi(version);
    if (!real)
        return NULL;
    memcpy(&api, real, sizeof api);
    create_env = api.CreateEnv;
    api.CreateEnv = refuse_at_first;
    if (getenv("BUSY_ENGINE_FAILS"))
        api.CreateCpuMemoryInfo = refuse_memory_info;
    return &api;
}

static const char *get_version(void)
{
    return real_base()->GetVersionString();
}

__attribute__((visibility("default"))) const OrtApiBase *OrtGetApiBase(void)
{
    static const OrtApiBase base = {get_api, get_version};
    return &base;
}
