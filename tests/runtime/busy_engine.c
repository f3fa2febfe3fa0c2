// SPDX-License-Identifier: Apache-2.0
// busy_engine.c - the ONNX Runtime that REAL_ENGINE names, of which another thread gives the environment back just now: the first calls for
// one are refused, as 1.31 does with providers of GPUs.
#include "engine/ort.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define REFUSALS 5

const OrtApiBase *OrtGetApiBase(void);

// Of the library that is there.
static const OrtApiBase *real_base(void)
{
    const OrtApiBase *(*get_base)(void) = NULL;
    void *library = dlopen(getenv("REAL_ENGINE"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = library ? dlsym(library, "OrtGetApiBase") : NULL;
    memcpy(&get_base, &symbol, sizeof get_base); // ISO C has no cast from data to function
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

static const OrtApi *get_api(uint32_t version)
{
    const OrtApi *real = real_base()->GetApi(version);
    if (!real)
        return NULL;
    memcpy(&api, real, sizeof api);
    create_env = api.CreateEnv;
    api.CreateEnv = refuse_at_first;
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
