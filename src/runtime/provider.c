// SPDX-License-Identifier: Apache-2.0
// provider.c - which execution provider a rank gets: its device's name (CPU, CUDA:0, ...), after the map that the user
// gave (NPU=CPU). A provider that this ONNX Runtime lacks is an error that names those it has.
#include "runtime/internal.h"

#include <stdio.h>
#include <strings.h>

#define SUFFIX "ExecutionProvider"

// What stands behind "NAME=" in the map for this device, or the device's own name.
static struct str mapped(const struct rank *r)
{
    struct str name = str_of(r->device);
    for (size_t i = 0; i < r->n_map; i++) {
        const char *equals = strchr(r->map[i], '=');
        struct str from = {r->map[i], equals ? (size_t)(equals - r->map[i]) : 0};
        if (equals && str_eq(from, name))
            return str_of(equals + 1);
    }
    return name;
}

// Lists the providers that there are, as devices are named; true if `name` is one of them, whose full name goes to full.
static bool find(const struct engine *e, struct str name, char *full, size_t cap, struct text *list)
{
    char **names = NULL;
    int n = 0;
    bool found = false;
    OrtStatus *st = e->api->GetAvailableProviders(&names, &n);
    for (int i = 0; !st && i < n; i++) {
        size_t length = strlen(names[i]), tail = strlen(SUFFIX);
        if (length > tail && strcmp(names[i] + length - tail, SUFFIX) == 0)
            length -= tail;
        tsr__text_printf(list, "%s%.*s", i ? ", " : "", (int)length, names[i]);
        if (length != name.n || strncasecmp(names[i], name.p, length) != 0)
            continue;
        snprintf(full, cap, "%s", names[i]);
        found = true;
    }
    OrtStatus *released = st ? NULL : e->api->ReleaseAvailableProviders(names, n);
    if (st)
        e->api->ReleaseStatus(st);
    if (released)
        e->api->ReleaseStatus(released);
    return found;
}

static OrtStatus *append_cuda(const OrtApi *api, OrtSessionOptions *o, const char *id)
{
    const char *key = "device_id";
    OrtCUDAProviderOptionsV2 *cuda = NULL;
    OrtStatus *st = api->CreateCUDAProviderOptions(&cuda);
    if (!st)
        st = api->UpdateCUDAProviderOptions(cuda, &key, &id, 1);
    if (!st)
        st = api->SessionOptionsAppendExecutionProvider_CUDA_V2(o, cuda);
    if (cuda)
        api->ReleaseCUDAProviderOptions(cuda);
    return st;
}

static OrtStatus *append(const OrtApi *api, OrtSessionOptions *o, const char *full, const char *id)
{
    const char *key = "device_id";
    char name[64];
    if (strcmp(full, "CUDA" SUFFIX) == 0)
        return append_cuda(api, o, *id ? id : "0");
    snprintf(name, sizeof name, "%.*s", (int)(strlen(full) - strlen(SUFFIX)), full);
    return api->SessionOptionsAppendExecutionProvider(o, name, &key, &id, *id ? 1 : 0);
}

static tsr_status absent(struct rank *r, struct str name, const char *list, const char *why)
{
    struct place at = PLACE_NONE;
    at.file = str_of(r->path);
    at.rank = r->endpoint ? r->endpoint->rank : -1;
    tsr__diag(
        r->session, DIAG_provider_absent, &at,
        "let another device stand in: --map-device NAME=CPU, or use an ONNX Runtime that has it",
        "the device is " STR_FMT "; ONNX Runtime %s has %s%s%s", STR_ARG(name), r->engine->version,
        list, *why ? ": " : "", why);
    return TSR_ENGINE;
}

tsr_status tsr__provider_set(struct rank *r, OrtSessionOptions *o)
{
    struct str name = mapped(r), kind = name;
    const char *colon = memchr(name.p ? name.p : "", ':', name.n);
    char id[16] = "", full[96] = "";
    if (colon) {
        kind.n = (size_t)(colon - name.p);
        snprintf(id, sizeof id, "%.*s", (int)(name.n - kind.n - 1), colon + 1);
    }
    if (kind.n == 0 || (kind.n == 3 && strncasecmp(kind.p, "CPU", 3) == 0))
        return TSR_OK;
    struct text list;
    tsr__text_init(&list, r->session);
    bool found = find(r->engine, kind, full, sizeof full, &list);
    OrtStatus *st = found ? append(r->engine->api, o, full, id) : NULL;
    tsr_status status = TSR_OK;
    if (!found || st)
        status = absent(r, name, list.p ? list.p : "none",
                        st ? r->engine->api->GetErrorMessage(st) : "");
    if (st)
        r->engine->api->ReleaseStatus(st);
    tsr__text_free(&list);
    return status;
}
