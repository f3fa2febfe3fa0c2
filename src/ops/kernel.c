// SPDX-License-Identifier: Apache-2.0
// kernel.c - what all kernels do: read tensors, make outputs, tell errors; and AllReduce and
// AllGather.
#include "ops/internal.h"

#include <stdio.h>

OrtStatus *tsr__kernel_error(struct kernel *k, const char *format, ...)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s '%s': ", k->kind->plain, k->call.node);
    va_list args;
    va_start(args, format);
    if (n > 0 && (size_t)n < sizeof text)
        vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    return k->api->CreateStatus(ORT_FAIL, text);
}

OrtStatus *tsr__kernel_trouble(struct kernel *k, const struct comm_trouble *why)
{
    k->ops->trouble = *why;
    return k->api->CreateStatus(ORT_FAIL, why->text);
}

static OrtStatus *read_shape(struct kernel *k, const OrtTensorTypeAndShapeInfo *info,
                             struct tensor_view *t)
{
    int type;
    size_t rank;
    TRY(k->api->GetTensorElementType(info, &type));
    TRY(k->api->GetDimensionsCount(info, &rank));
    if (rank > OPS_MAX_RANK)
        return tsr__kernel_error(k, "a tensor of rank %zu, at most %d", rank, OPS_MAX_RANK);
    TRY(k->api->GetDimensions(info, t->dims, rank));
    t->type = (tsr_dtype)type;
    t->rank = (int)rank;
    t->elements = 1;
    for (size_t d = 0; d < rank; d++)
        if (t->dims[d] < 0 || !mul_ok(t->elements, t->dims[d], &t->elements))
            return tsr__kernel_error(k, "a shape that no tensor has");
    return NULL;
}

OrtStatus *tsr__kernel_input(struct kernel *k, OrtKernelContext *context, size_t i, tsr_dtype type,
                             struct tensor_view *out)
{
    const OrtValue *value = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(k->api->KernelContext_GetInput(context, i, &value));
    if (!value)
        return tsr__kernel_error(k, "input %zu is absent", i);
    TRY(k->api->GetTensorTypeAndShape(value, &info));
    OrtStatus *st = read_shape(k, info, out);
    k->api->ReleaseTensorTypeAndShapeInfo(info);
    if (st)
        return st;
    if (out->type != type)
        return tsr__kernel_error(k, "input %zu is %s, expected %s", i, tsr_dtype_name(out->type),
                                 tsr_dtype_name(type));
    void *data = NULL;
    TRY(k->api->GetTensorMutableData((OrtValue *)value, &data));
    out->data = data;
    return NULL;
}

OrtStatus *tsr__kernel_output(struct kernel *k, OrtKernelContext *context, size_t i,
                              const int64_t *dims, int rank, void **data)
{
    OrtValue *value = NULL;
    TRY(k->api->KernelContext_GetOutput(context, i, dims, (size_t)rank, &value));
    if (!value)
        return tsr__kernel_error(k, "output %zu is not wanted; it is always needed", i);
    return k->api->GetTensorMutableData(value, data);
}

OrtStatus *tsr__pass_token(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view token;
    void *out;
    int64_t one = 1;
    TRY(tsr__kernel_input(k, context, (size_t)k->kind->inputs - 1, TSR_INT64, &token));
    if (token.elements != 1)
        return tsr__kernel_error(k, "the token has %lld elements", (long long)token.elements);
    TRY(tsr__kernel_output(k, context, 1, &one, 1, &out));
    if (out != token.data && k->side != SIDE_CUDA) // a GPU's token is passed on, never read
        memcpy(out, token.data, sizeof(int64_t));
    return NULL;
}

OrtStatus *tsr__all_reduce_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    void *out;
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    TRY(tsr__kernel_output(k, context, 0, x.dims, x.rank, &out));
    k->call.count = x.elements;
    struct comm_trouble why;
    if (tsr__comm_all_reduce(k->ops->endpoint, &k->call, x.data, out, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}

// ---- AllGather ---------------------------------------------------------------------------------

// One call: pieces of [outer, length, inner] become [outer, sum of lengths, inner].
struct gather {
    struct kernel *k;
    OrtKernelContext *context;
    const struct tensor_view *x;
    int axis;
    size_t outer, inner; // inner in bytes
    struct comm_buffer *recv;
    char *out;
    size_t total; // along the axis
    OrtStatus *status;
};

enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS };

static int64_t hash_others(const struct tensor_view *x, int axis)
{
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
    dims[axis] = 0;
    return (int64_t)tsr__hash64(dims, (size_t)x->rank * sizeof *dims, 0);
}

tsr_status tsr__gather_refuse(const struct kernel *k, struct comm_trouble *why, int rank,
                              const char *what)
{
    why->status = TSR_PEER;
    why->rank = rank;
    snprintf(why->text, sizeof why->text, "AllGather '%s' (id %lld): rank %d %s", k->call.node,
             (long long)k->call.id, rank, what);
    return TSR_PEER;
}

static bool bytes_of(const struct gather *g, int64_t length, size_t *out)
{
    return length >= 0 && !__builtin_mul_overflow((size_t)length, g->inner, out) &&
           !__builtin_mul_overflow(*out, g->outer, out);
}

// All are there: their lengths give the output's shape. Pieces of an outermost axis arrive in
// place.
static tsr_status gather_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct gather *g = data;
    int self = g->k->self;
    int64_t total = 0;
    for (int i = 0; i < g->k->call.n_group; i++) {
        int rank = (int)g->k->call.group[i];
        if (notes[i][NOTE_RANK] != notes[self][NOTE_RANK] ||
            notes[i][NOTE_OTHERS] != notes[self][NOTE_OTHERS])
            return tsr__gather_refuse(g->k, why, rank, "brings a piece of another shape");
        if (!add_ok(total, notes[i][NOTE_LENGTH], &total) ||
            !bytes_of(g, notes[i][NOTE_LENGTH], &g->recv[i].bytes))
            return tsr__gather_refuse(g->k, why, rank, "brings a piece that is too large");
    }
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, g->x->dims, (size_t)g->x->rank * sizeof *dims);
    dims[g->axis] = total;
    g->total = (size_t)total;
    void *out;
    size_t bytes;
    g->status = tsr__kernel_output(g->k, g->context, 0, dims, g->x->rank, &out);
    if (g->status || !bytes_of(g, total, &bytes))
        return tsr__gather_refuse(g->k, why, g->k->ops->endpoint->rank, "cannot make the output");
    char *at = g->out = out;
    if (g->outer > 1)
        g->status = tsr__kernel_scratch(g->k, 0, bytes, &at);
    if (g->status)
        return tsr__gather_refuse(g->k, why, g->k->ops->endpoint->rank, "is out of memory");
    for (int i = 0; i < g->k->call.n_group; i++) {
        g->recv[i].p = at;
        at += g->recv[i].bytes;
    }
    return TSR_OK;
}

// Pieces of an inner axis lie one after the other in scratch memory; weave them together.
static OrtStatus *interleave(const struct gather *g)
{
    size_t row = g->total * g->inner, before = 0;
    for (int i = 0; i < g->k->call.n_group; i++) {
        size_t width = g->recv[i].bytes / g->outer;
        struct device_rows r = {.to = g->out + before,
                                .from = g->recv[i].p,
                                .to_pitch = row,
                                .from_pitch = width,
                                .width = width,
                                .rows = g->outer};
        TRY(tsr__kernel_rows(g->k, &r));
        before += width;
    }
    return NULL;
}

static OrtStatus *gather_shape(struct gather *g)
{
    const struct tensor_view *x = g->x;
    int64_t axis = g->k->axis < 0 ? g->k->axis + x->rank : g->k->axis;
    if (axis < 0 || axis >= x->rank)
        return tsr__kernel_error(g->k, "axis %lld of a tensor of rank %d", (long long)g->k->axis,
                                 x->rank);
    g->axis = (int)axis;
    g->outer = 1;
    g->inner = tsr__elem_bytes(x->type);
    for (int d = 0; d < g->axis; d++)
        g->outer *= (size_t)x->dims[d];
    for (int d = g->axis + 1; d < x->rank; d++)
        g->inner *= (size_t)x->dims[d];
    return NULL;
}

OrtStatus *tsr__all_gather_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    if (k->call.type == TSR_STRING)
        return tsr__texts_gather(k, context);
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    struct arena a; // of this call
    tsr__arena_init(&a, k->ops->session);
    size_t n = (size_t)k->call.n_group;
    struct comm_buffer *send = ARENA_ARRAY(&a, struct comm_buffer, n);
    struct gather g = {.k = k, .context = context, .x = &x};
    g.recv = ARENA_ARRAY(&a, struct comm_buffer, n);
    OrtStatus *st = a.failed ? tsr__kernel_error(k, "out of memory") : gather_shape(&g);
    if (!st) {
        for (size_t i = 0; i < n; i++)
            send[i] = (struct comm_buffer){
                .p = (void *)x.data,
                .bytes = (size_t)x.elements * tsr__elem_bytes(x.type),
            };
        struct comm_exchange e = {
            .send = send, .recv = g.recv, .arrived = gather_arrived, .data = &g};
        e.notes[NOTE_LENGTH] = x.dims[g.axis];
        e.notes[NOTE_RANK] = x.rank;
        e.notes[NOTE_OTHERS] = hash_others(&x, g.axis);
        struct comm_trouble why;
        if (tsr__comm_exchange(k->ops->endpoint, &k->call, &e, &why) != TSR_OK)
            st = g.status ? g.status : tsr__kernel_trouble(k, &why);
        else if (g.outer > 1)
            st = interleave(&g);
    }
    tsr__arena_free(&a);
    return st ? st : tsr__pass_token(k, context);
}
