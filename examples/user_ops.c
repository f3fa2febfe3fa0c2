// SPDX-License-Identifier: Apache-2.0
// user_ops.c - a library of custom operators for --ort-ops: Twice of test.ops (y = 2 x + bias, with
// bias as attribute) and DecoderLayer of custom (y = x + x / (1 + |x|)), both for float. It uses
// only ONNX Runtime's C interface. Outside of this tree include onnxruntime_c_api.h, not ort.h.
#include "engine/ort.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef OPERATOR_PAUSE_NS // shortest time of a call that log_call records, for tests of pipelines
#define OPERATOR_PAUSE_NS 0
#endif
#ifndef OPERATOR_VARIES // relative difference between calls, for tests
#define OPERATOR_VARIES 0
#endif
#ifndef OPERATOR_ONLY // how much a call differs, in units of OPERATOR_VARIES
#define OPERATOR_ONLY(call) ((call) % 3)
#endif
#ifndef OPERATOR_RAMP // added to each element, times its index: wrong in shards, for tests
#define OPERATOR_RAMP 0
#endif

#define FLOAT    1
#define MAX_RANK 8

struct kernel {
    const OrtApi *api;
    bool layer;
    int64_t bias;
};

static const char *get_twice(const OrtCustomOp *op)
{
    (void)op;
    return "Twice";
}

static const char *get_layer(const OrtCustomOp *op)
{
    (void)op;
    return "DecoderLayer";
}

static const char *get_provider(const OrtCustomOp *op)
{
    (void)op;
    return NULL;
}

static int get_type(const OrtCustomOp *op, size_t i)
{
    (void)op;
    (void)i;
    return FLOAT;
}

static size_t get_one(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_zero(const OrtCustomOp *op, size_t i)
{
    (void)op;
    (void)i;
    return 0;
}

static int get_arity(const OrtCustomOp *op)
{
    (void)op;
    return 1;
}

static int get_last(const OrtCustomOp *op)
{
    (void)op;
    return INT32_MAX;
}

static OrtStatus *create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                         void **out)
{
    struct kernel *k = calloc(1, sizeof *k);
    if (!k)
        return api->CreateStatus(ORT_FAIL, "out of memory");
    k->api = api;
    k->layer = op->GetName == get_layer;
    *out = k;
    return k->layer ? NULL : api->KernelInfoGetAttribute_int64(info, "bias", &k->bias);
}

static float value(const struct kernel *k, float x)
{
    return k->layer ? x + x / (1 + (x < 0 ? -x : x)) : 2 * x + (float)k->bias;
}

// Appends a character to the file that OPERATOR_LOG names. The processes of a job append to one
// file, which then has their calls in order: "+-+-" if no two overlap.
static void log_call(const char *what)
{
    const char *path = getenv("OPERATOR_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    if (file >= 0 && write(file, what, 1) != 1)
        abort();
    if (file >= 0)
        close(file);
}

static OrtStatus *compute(void *kernel, OrtKernelContext *context)
{
    struct kernel *k = kernel;
    const OrtValue *x = NULL;
    OrtValue *y = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    int64_t dims[MAX_RANK];
    size_t rank = 0, n = 0;
    void *from = NULL, *to = NULL;
    OrtStatus *st = k->api->KernelContext_GetInput(context, 0, &x);
    if (!st)
        st = k->api->GetTensorTypeAndShape(x, &info);
    if (!st)
        st = k->api->GetDimensionsCount(info, &rank);
    if (!st && rank <= MAX_RANK)
        st = k->api->GetDimensions(info, dims, rank);
    if (!st)
        st = k->api->GetTensorShapeElementCount(info, &n);
    if (!st)
        st = k->api->KernelContext_GetOutput(context, 0, dims, rank, &y);
    if (!st)
        st = k->api->GetTensorMutableData((OrtValue *)x, &from);
    if (!st)
        st = k->api->GetTensorMutableData(y, &to);
    struct timespec pause = {0, OPERATOR_PAUSE_NS};
    if (OPERATOR_PAUSE_NS > 0) {
        log_call("+");
        nanosleep(&pause, NULL);
        log_call("-");
    }
    static _Atomic unsigned calls;
    unsigned call = calls++;
    float scale = 1 + OPERATOR_VARIES * (float)OPERATOR_ONLY(call);
    for (size_t i = 0; !st && i < n; i++)
        ((float *)to)[i] = scale * value(k, ((const float *)from)[i]) + OPERATOR_RAMP * (float)i;
    if (info)
        k->api->ReleaseTensorTypeAndShapeInfo(info);
    return st;
}

#define OPERATOR(name)                                                                             \
    {                                                                                              \
        .version = 17, .GetName = name, .GetExecutionProviderType = get_provider,                  \
        .GetInputType = get_type, .GetInputTypeCount = get_one, .GetOutputType = get_type,         \
        .GetOutputTypeCount = get_one, .KernelDestroy = free, .GetInputCharacteristic = get_zero,  \
        .GetOutputCharacteristic = get_zero, .GetInputMemoryType = get_zero,                       \
        .GetVariadicInputMinArity = get_arity, .GetVariadicInputHomogeneity = get_arity,           \
        .GetVariadicOutputMinArity = get_arity, .GetVariadicOutputHomogeneity = get_arity,         \
        .CreateKernelV2 = create, .KernelComputeV2 = compute, .GetStartVersion = get_arity,        \
        .GetEndVersion = get_last,                                                                 \
    }
static const OrtCustomOp twice = OPERATOR(get_twice), layer = OPERATOR(get_layer);

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options,
                                                                    const OrtApiBase *base);

// Domains are never freed, as in most such libraries.
static OrtStatus *add(const OrtApi *api, OrtSessionOptions *options, const char *name,
                      const OrtCustomOp *op)
{
    OrtCustomOpDomain *domain = NULL;
    OrtStatus *st = api->CreateCustomOpDomain(name, &domain);
    if (!st)
        st = api->CustomOpDomain_Add(domain, op);
    return st ? st : api->AddCustomOpDomain(options, domain);
}

OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)
{
    const OrtApi *api = base->GetApi(ORT_API);
    OrtStatus *st = add(api, options, "test.ops", &twice);
    return st ? st : add(api, options, "custom", &layer);
}
