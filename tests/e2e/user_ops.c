// SPDX-License-Identifier: Apache-2.0
// user_ops.c - a library of custom operators as a user has it: domain test.ops, Twice (y = 2 x + bias, float, the bias an attribute).
// It shares only ONNX Runtime's interface with Tessera.
#include "ops/ort.h"

#include <stdlib.h>
#include <string.h>

#define FLOAT    1
#define MAX_RANK 8

struct kernel {
    const OrtApi *api;
    int64_t bias;
};

static const char *get_name(const OrtCustomOp *op)
{
    (void)op;
    return "Twice";
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
    (void)op;
    struct kernel *k = malloc(sizeof *k);
    if (!k)
        return api->CreateStatus(ORT_FAIL, "out of memory");
    k->api = api;
    OrtStatus *st = api->KernelInfoGetAttribute_int64(info, "bias", &k->bias);
    *out = k;
    return st;
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
    for (size_t i = 0; !st && i < n; i++)
        ((float *)to)[i] = 2 * ((const float *)from)[i] + (float)k->bias;
    if (info)
        k->api->ReleaseTensorTypeAndShapeInfo(info);
    return st;
}

static const OrtCustomOp twice = {
    .version = 17,
    .GetName = get_name,
    .GetExecutionProviderType = get_provider,
    .GetInputType = get_type,
    .GetInputTypeCount = get_one,
    .GetOutputType = get_type,
    .GetOutputTypeCount = get_one,
    .KernelDestroy = free,
    .GetInputCharacteristic = get_zero,
    .GetOutputCharacteristic = get_zero,
    .GetInputMemoryType = get_zero,
    .GetVariadicInputMinArity = get_arity,
    .GetVariadicInputHomogeneity = get_arity,
    .GetVariadicOutputMinArity = get_arity,
    .GetVariadicOutputHomogeneity = get_arity,
    .CreateKernelV2 = create,
    .KernelComputeV2 = compute,
    .GetStartVersion = get_arity,
    .GetEndVersion = get_last,
};

__attribute__((visibility("default"))) OrtStatus *RegisterCustomOps(OrtSessionOptions *options,
                                                                    const OrtApiBase *base);

OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base)
{
    const OrtApi *api = base->GetApi(ORT_API);
    OrtCustomOpDomain *domain =
        NULL; // lives as long as the process, as most such libraries have it
    OrtStatus *st = api->CreateCustomOpDomain("test.ops", &domain);
    if (!st)
        st = api->CustomOpDomain_Add(domain, &twice);
    return st ? st : api->AddCustomOpDomain(options, domain);
}
