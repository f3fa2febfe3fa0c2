// SPDX-License-Identifier: Apache-2.0
// kernel.c - what all kernels do: read tensors, make outputs, tell errors; and AllReduce and
// AllGather.
#include "ops/internal.h"

#include <stdio.h>

OrtStatus *tsr__kernel_error(struct kernel *kernel, const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s '%s': ", kernel->kind->plain, kernel->call.node);
    va_list args;
    va_start(args, format);
    if (n > 0 && (size_t)n < sizeof text)
        vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return kernel->api->CreateStatus(ORT_FAIL, text);
}

OrtStatus *tsr__kernel_trouble(struct kernel *kernel, const struct comm_trouble *why)
{
    kernel->ops->trouble = *why;
    return kernel->api->CreateStatus(ORT_FAIL, why->text);
}

static OrtStatus *read_shape(struct kernel *kernel, const OrtTensorTypeAndShapeInfo *info,
                             struct tensor_view *view)
{
    int type;
    size_t rank;
    TRY(kernel->api->GetTensorElementType(info, &type));
    TRY(kernel->api->GetDimensionsCount(info, &rank));
    if (rank > OPS_MAX_RANK)
        return tsr__kernel_error(kernel, "a tensor of rank %zu, at most %d", rank, OPS_MAX_RANK);
    TRY(kernel->api->GetDimensions(info, view->dims, rank));
    view->type = (tsr_dtype)type;
    view->rank = (int)rank;
    view->elements = 1;
    for (size_t d = 0; d < rank; d++)
        if (view->dims[d] < 0 || !mul_ok(view->elements, view->dims[d], &view->elements))
            return tsr__kernel_error(kernel, "a shape that no tensor has");
    return NULL;
}

OrtStatus *tsr__kernel_input(struct kernel *kernel, OrtKernelContext *context, size_t i,
                             tsr_dtype type, struct tensor_view *out)
{
    const OrtValue *value = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(kernel->api->KernelContext_GetInput(context, i, &value));
    if (!value)
        return tsr__kernel_error(kernel, "input %zu is absent", i);
    TRY(kernel->api->GetTensorTypeAndShape(value, &info));
    OrtStatus *st = read_shape(kernel, info, out);
    kernel->api->ReleaseTensorTypeAndShapeInfo(info);
    if (st)
        return st;
    if (out->type != type)
        return tsr__kernel_error(kernel, "input %zu is %s, expected %s", i,
                                 tsr_dtype_name(out->type), tsr_dtype_name(type));
    void *data = NULL;
    TRY(kernel->api->GetTensorMutableData((OrtValue *)value, &data));
    out->data = data;
    return NULL;
}

OrtStatus *tsr__kernel_output(struct kernel *kernel, OrtKernelContext *context, size_t i,
                              const int64_t *dims, int rank, void **data)
{
    OrtValue *value = NULL;
    TRY(kernel->api->KernelContext_GetOutput(context, i, dims, (size_t)rank, &value));
    if (!value)
        return tsr__kernel_error(kernel, "output %zu is not wanted; it is always needed", i);
    return kernel->api->GetTensorMutableData(value, data);
}

OrtStatus *tsr__pass_token(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view token;
    void *out;
    int64_t one = 1;
    TRY(tsr__kernel_input(kernel, context, (size_t)kernel->kind->inputs - 1, TSR_INT64, &token));
    if (token.elements != 1)
        return tsr__kernel_error(kernel, "the token has %lld elements", (long long)token.elements);
    TRY(tsr__kernel_output(kernel, context, 1, &one, 1, &out));
    if (out != token.data && kernel->side != SIDE_CUDA) // a GPU's token is passed on, never read
        memcpy(out, token.data, sizeof(int64_t));
    return NULL;
}

OrtStatus *tsr__all_reduce_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    void *out;
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    TRY(tsr__kernel_output(kernel, context, 0, x.dims, x.rank, &out));
    kernel->call.count = x.elements;
    struct comm_trouble why;
    if (tsr__comm_all_reduce(kernel->ops->endpoint, &kernel->call, x.data, out, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

// ---- AllGather ---------------------------------------------------------------------------------

// One call: pieces of [outer, length, inner] become [outer, sum of lengths, inner].
struct gather {
    struct kernel *kernel;
    OrtKernelContext *context;
    const struct tensor_view *view;
    int axis;
    size_t outer, inner; // inner in bytes
    struct comm_buffer *recv;
    char *out;
    size_t total; // along the axis
    OrtStatus *status;
};

enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS };

static int64_t hash_others(const struct tensor_view *view, int axis)
{
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, view->dims, (size_t)view->rank * sizeof *dims);
    dims[axis] = 0;
    return (int64_t)tsr__hash64(dims, (size_t)view->rank * sizeof *dims, 0);
}

tsr_status tsr__gather_refuse(const struct kernel *kernel, struct comm_trouble *why, int rank,
                              const char *what)
{
    why->status = TSR_PEER;
    why->rank = rank;
    snprintf(why->text, sizeof why->text, "AllGather '%s' (id %lld): rank %d %s", kernel->call.node,
             (long long)kernel->call.id, rank, what);
    return TSR_PEER;
}

static bool bytes_of(const struct gather *gather, int64_t length, size_t *out)
{
    return length >= 0 && !__builtin_mul_overflow((size_t)length, gather->inner, out) &&
           !__builtin_mul_overflow(*out, gather->outer, out);
}

// All are there: their lengths give the output's shape. Pieces of an outermost axis arrive in
// place.
static tsr_status gather_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct gather *gather = data;
    int self = gather->kernel->self;
    int64_t total = 0;
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        int rank = (int)gather->kernel->call.group[i];
        if (notes[i][NOTE_RANK] != notes[self][NOTE_RANK] ||
            notes[i][NOTE_OTHERS] != notes[self][NOTE_OTHERS])
            return tsr__gather_refuse(gather->kernel, why, rank, "brings a piece of another shape");
        if (!add_ok(total, notes[i][NOTE_LENGTH], &total) ||
            !bytes_of(gather, notes[i][NOTE_LENGTH], &gather->recv[i].bytes))
            return tsr__gather_refuse(gather->kernel, why, rank,
                                      "brings a piece that is too large");
    }
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, gather->view->dims, (size_t)gather->view->rank * sizeof *dims);
    dims[gather->axis] = total;
    gather->total = (size_t)total;
    void *out;
    size_t bytes;
    gather->status =
        tsr__kernel_output(gather->kernel, gather->context, 0, dims, gather->view->rank, &out);
    if (gather->status || !bytes_of(gather, total, &bytes))
        return tsr__gather_refuse(gather->kernel, why, gather->kernel->ops->endpoint->rank,
                                  "cannot make the output");
    char *at = gather->out = out;
    if (gather->outer > 1)
        gather->status = tsr__kernel_scratch(gather->kernel, 0, bytes, &at);
    if (gather->status)
        return tsr__gather_refuse(gather->kernel, why, gather->kernel->ops->endpoint->rank,
                                  "is out of memory");
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        gather->recv[i].p = at;
        at += gather->recv[i].bytes;
    }
    return TSR_OK;
}

// Pieces of an inner axis lie one after the other in scratch memory; weave them together.
static OrtStatus *interleave(const struct gather *gather)
{
    size_t row = gather->total * gather->inner, before = 0;
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        size_t width = gather->recv[i].bytes / gather->outer;
        struct device_rows rows = {.to = gather->out + before,
                                   .from = gather->recv[i].p,
                                   .to_pitch = row,
                                   .from_pitch = width,
                                   .width = width,
                                   .rows = gather->outer};
        TRY(tsr__kernel_rows(gather->kernel, &rows));
        before += width;
    }
    return NULL;
}

static OrtStatus *gather_shape(struct gather *gather)
{
    const struct tensor_view *view = gather->view;
    int64_t axis =
        gather->kernel->axis < 0 ? gather->kernel->axis + view->rank : gather->kernel->axis;
    if (axis < 0 || axis >= view->rank)
        return tsr__kernel_error(gather->kernel, "axis %lld of a tensor of rank %d",
                                 (long long)gather->kernel->axis, view->rank);
    gather->axis = (int)axis;
    gather->outer = 1;
    gather->inner = tsr__elem_bytes(view->type);
    for (int d = 0; d < gather->axis; d++)
        gather->outer *= (size_t)view->dims[d];
    for (int d = gather->axis + 1; d < view->rank; d++)
        gather->inner *= (size_t)view->dims[d];
    return NULL;
}

OrtStatus *tsr__all_gather_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    if (kernel->call.type == TSR_STRING)
        return tsr__texts_gather(kernel, context);
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena; // of this call
    tsr__arena_init(&arena, kernel->ops->session);
    size_t n = (size_t)kernel->call.n_group;
    struct comm_buffer *send = ARENA_ARRAY(&arena, struct comm_buffer, n);
    struct gather gather = {.kernel = kernel, .context = context, .view = &x};
    gather.recv = ARENA_ARRAY(&arena, struct comm_buffer, n);
    OrtStatus *st =
        arena.failed ? tsr__kernel_error(kernel, "out of memory") : gather_shape(&gather);
    if (!st) {
        for (size_t i = 0; i < n; i++)
            send[i] = (struct comm_buffer){
                .p = (void *)x.data,
                .bytes = (size_t)x.elements * tsr__elem_bytes(x.type),
            };
        struct comm_exchange exchange = {
            .send = send, .recv = gather.recv, .arrived = gather_arrived, .data = &gather};
        exchange.notes[NOTE_LENGTH] = x.dims[gather.axis];
        exchange.notes[NOTE_RANK] = x.rank;
        exchange.notes[NOTE_OTHERS] = hash_others(&x, gather.axis);
        struct comm_trouble why;
        if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
            st = gather.status ? gather.status : tsr__kernel_trouble(kernel, &why);
        else if (gather.outer > 1)
            st = interleave(&gather);
    }
    tsr__arena_free(&arena);
    return st ? st : tsr__pass_token(kernel, context);
}
