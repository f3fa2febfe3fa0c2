// SPDX-License-Identifier: Apache-2.0
// kernel.c - functions of all kernels: attributes, tensors, outputs, errors.
//
// Functions return NULL for success, or an error that the caller passes to the engine, which frees
// it. TRY(call) returns the error of `call` from the function that contains it.
#include "ops/internal.h"

#include <stdio.h>

// Makes an error for a fault of this rank's own node or input. Example: "AllGather 'g': axis 5".
OrtStatus *tsr__kernel_error(struct kernel *kernel, const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s '%s': ", kernel->op->plain, kernel->call.node);
    va_list args;
    va_start(args, format);
    if (n > 0 && (size_t)n < sizeof text)
        vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return kernel->api->CreateStatus(ORT_FAIL, text);
}

// Returns the text to the engine. The runtime reads status and rank with tsr__ops_trouble.
OrtStatus *tsr__kernel_trouble(struct kernel *kernel, const struct comm_trouble *why)
{
    kernel->ops->trouble = *why;
    return kernel->api->CreateStatus(ORT_FAIL, why->text);
}

tsr_status tsr__kernel_refuse(const struct kernel *kernel, struct comm_trouble *why, int rank,
                              const char *what)
{
    why->status = TSR_PEER;
    why->rank = rank;
    snprintf(why->text, sizeof why->text, "%s '%s' (id %lld): rank %d %s", kernel->op->plain,
             kernel->call.node, (long long)kernel->call.id, rank, what);
    return TSR_PEER;
}

// ---- attributes --------------------------------------------------------------------------------

// Reads a string attribute. The first call of ONNX Runtime returns the length with the terminator,
// the second one copies. The limit of 65536 bytes protects against malicious models.
OrtStatus *tsr__kernel_text(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                            char **out)
{
    size_t n = 0;
    OrtStatus *st = kernel->api->KernelInfoGetAttribute_string(info, name, NULL, &n);
    if (st || n == 0 || n > 65536) {
        if (st)
            kernel->api->ReleaseStatus(st);
        return tsr__kernel_error(kernel, "attribute '%s' is missing or not a string", name);
    }
    char *text = arena_get(&kernel->arena, n + 1, 1);
    if (!text)
        return tsr__kernel_error(kernel, "out of memory");
    TRY(kernel->api->KernelInfoGetAttribute_string(info, name, text, &n));
    *out = text;
    return NULL;
}

// Reads a list of integers. An empty list is an error like an absent one: none of our attributes
// is empty.
OrtStatus *tsr__kernel_ints(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                            int64_t **out, size_t *n)
{
    *n = 0;
    OrtStatus *st = kernel->api->KernelInfoGetAttributeArray_int64(info, name, NULL, n);
    if (st || *n == 0) {
        if (st)
            kernel->api->ReleaseStatus(st);
        return tsr__kernel_error(
            kernel, "attribute '%s' is missing, empty or not a list of integers", name);
    }
    *out = ARENA_ARRAY(&kernel->arena, int64_t, *n);
    if (!*out)
        return tsr__kernel_error(kernel, "out of memory");
    return kernel->api->KernelInfoGetAttributeArray_int64(info, name, *out, n);
}

OrtStatus *tsr__kernel_int(struct kernel *kernel, const OrtKernelInfo *info, const char *name,
                           int64_t *out)
{
    OrtStatus *st = kernel->api->KernelInfoGetAttribute_int64(info, name, out);
    if (!st)
        return NULL;
    kernel->api->ReleaseStatus(st);
    return tsr__kernel_error(kernel, "attribute '%s' is missing or not an integer", name);
}

// ---- tensors -----------------------------------------------------------------------------------

static OrtStatus *read_shape(struct kernel *kernel, const OrtTensorTypeAndShapeInfo *info,
                             struct tensor_view *view)
{
    int type;
    size_t rank;
    TRY(kernel->api->GetTensorElementType(info, &type));
    TRY(kernel->api->GetDimensionsCount(info, &rank));
    if (rank > OPS_MAX_RANK)
        return tsr__kernel_error(kernel, "the tensor has rank %zu; the limit is %d", rank,
                                 OPS_MAX_RANK);
    TRY(kernel->api->GetDimensions(info, view->dims, rank));
    view->type = (tsr_dtype)type;
    view->rank = (int)rank;
    view->elements = 1;
    for (size_t d = 0; d < rank; d++)
        if (view->dims[d] < 0 || !mul_ok(view->elements, view->dims[d], &view->elements))
            return tsr__kernel_error(kernel, "a tensor has an invalid shape");
    return NULL;
}

// Reads an input. out->data points to the engine's memory (GPU memory for GPU tensors) and is valid
// until the kernel returns.
OrtStatus *tsr__kernel_input(struct kernel *kernel, OrtKernelContext *context, size_t i,
                             tsr_dtype type, struct tensor_view *out)
{
    const OrtValue *value = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(kernel->api->KernelContext_GetInput(context, i, &value));
    if (!value)
        return tsr__kernel_error(kernel, "input %zu is missing", i);
    TRY(kernel->api->GetTensorTypeAndShape(value, &info));
    OrtStatus *st = read_shape(kernel, info, out);
    kernel->api->ReleaseTensorTypeAndShapeInfo(info);
    if (st)
        return st;
    if (out->type != type)
        return tsr__kernel_error(kernel, "input %zu is %s, expected %s", i,
                                 tsr_dtype_name(out->type), tsr_dtype_name(type));
    void *data = NULL;
    // ONNX Runtime has no function for read-only access.
    TRY(kernel->api->GetTensorMutableData((OrtValue *)value, &data));
    out->data = data;
    return NULL;
}

// Allocates an output. Call it once per output and run. *data may be the address of the input, if
// the operator allows that (TRAIT_IN_PLACE).
OrtStatus *tsr__kernel_output(struct kernel *kernel, OrtKernelContext *context, size_t i,
                              const int64_t *dims, int rank, void **data)
{
    OrtValue *value = NULL;
    TRY(kernel->api->KernelContext_GetOutput(context, i, dims, (size_t)rank, &value));
    if (!value)
        return tsr__kernel_error(kernel, "output %zu is missing", i);
    return kernel->api->GetTensorMutableData(value, data);
}

// Sets the token output. Kernels call it last: nodes that wait for the token run after the
// communication (on a GPU: later on the stream).
OrtStatus *tsr__pass_token(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view token;
    void *out;
    int64_t one = 1;
    TRY(tsr__kernel_input(kernel, context, comm_token(kernel->op->kind), TSR_INT64, &token));
    if (token.elements != 1)
        return tsr__kernel_error(kernel, "the token has %lld elements; it must have one",
                                 (long long)token.elements);
    TRY(tsr__kernel_output(kernel, context, 1, &one, 1, &out));
    if (out != token.data && kernel->side != SIDE_CUDA) // on a GPU the token is never read
        memcpy(out, token.data, sizeof(int64_t));
    return NULL;
}
