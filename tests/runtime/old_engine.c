// SPDX-License-Identifier: Apache-2.0
// old_engine.c - a library that pretends to be an ONNX Runtime that is too old.
#include <stddef.h>
#include <stdint.h>

struct base {
    const void *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
};
const struct base *OrtGetApiBase(void);

static const void *get_api(uint32_t version)
{
    (void)version;
    return NULL;
}

static const char *get_version(void)
{
    return "1.16.3";
}

__attribute__((visibility("default"))) const struct base *OrtGetApiBase(void)
{
    static const struct base base = {get_api, get_version};
    return &base;
}
