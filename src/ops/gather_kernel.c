// SPDX-License-Identifier: Apache-2.0
// gather_kernel.c - AllReduce and AllGather.
//
// Example: AllGather of [2, 3] and [2, 5] along axis 1. There are outer = 2 rows; the pieces arrive
// in scratch memory one after the other, 6 elements and 10. Each row of the result [2, 8] takes 3
// of the first and 5 of the second. Along axis 0 outer is 1, and pieces arrive in the output.
#include "ops/internal.h"

// ---- AllReduce ---------------------------------------------------------------------------------

// Reads the attribute `reduce`. ReduceScatter and Reduce (collect.c) use this, too.
OrtStatus *tsr__all_reduce_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    static const char *const names[COMM_REDUCE_COUNT] = {"", "sum", "max", "min", "prod"};
    char *reduce;
    TRY(tsr__kernel_text(kernel, info, tsr__attribute_name(ATTRIBUTE_REDUCE), &reduce));
    for (int r = COMM_SUM; r < COMM_REDUCE_COUNT; r++)
        if (strcmp(reduce, names[r]) == 0)
            kernel->call.reduce = (enum comm_reduce)r;
    if (kernel->call.reduce == COMM_NONE)
        return tsr__kernel_error(kernel, "attribute 'reduce' is not sum, max, min or prod");
    if (!tsr__reduce_ok(kernel->call.type, kernel->call.reduce))
        return tsr__kernel_error(kernel, "%s elements cannot be reduced",
                                 tsr_dtype_name(kernel->call.type));
    return NULL;
}

// Runs AllReduce. Members compare the number of elements, not the shape.
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

OrtStatus *tsr__all_gather_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(tsr__kernel_int(kernel, info, tsr__attribute_name(ATTRIBUTE_AXIS), &kernel->axis));
    if (kernel->axis < -OPS_MAX_RANK || kernel->axis >= OPS_MAX_RANK)
        return tsr__kernel_error(kernel, "axis %lld is out of range", (long long)kernel->axis);
    kernel->call.detail = tsr__hash64(&kernel->axis, sizeof kernel->axis, 0);
    return NULL;
}

OrtStatus *tsr__along_axis(struct kernel *kernel, const struct tensor_view *view, int64_t axis,
                           struct along *out)
{
    int64_t at = axis < 0 ? axis + view->rank : axis;
    if (at < 0 || at >= view->rank)
        return tsr__kernel_error(kernel, "axis %lld is out of range for a tensor of rank %d",
                                 (long long)axis, view->rank);
    *out = (struct along){.axis = (int)at,
                          .outer = 1,
                          .inner = view->type == TSR_STRING ? 1 : tsr__elem_bytes(view->type),
                          .length = view->dims[at]};
    for (int d = 0; d < out->axis; d++)
        out->outer *= (size_t)view->dims[d];
    for (int d = out->axis + 1; d < view->rank; d++)
        out->inner *= (size_t)view->dims[d];
    return NULL;
}

// Writes the notes. Members compare a hash of all sizes but that of the axis, instead of shapes.
void tsr__along_note(const struct tensor_view *view, const struct along *along, int64_t *notes)
{
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, view->dims, (size_t)view->rank * sizeof *dims);
    dims[along->axis] = 0;
    notes[NOTE_LENGTH] = along->length;
    notes[NOTE_RANK] = view->rank;
    notes[NOTE_OTHERS] = (int64_t)tsr__hash64(dims, (size_t)view->rank * sizeof *dims, 0);
}

// One call: pieces of [outer, length, inner] become [outer, sum of lengths, inner].
struct gather {
    struct kernel *kernel;
    OrtKernelContext *context;
    const struct tensor_view *view;
    struct along along;
    struct comm_buffer *recv;
    struct comm_collective collective; // with the memory where the pieces arrive
    char *out;
    OrtStatus *status;
};

// Computes the bytes of a piece. Returns false on overflow or if `length` is negative.
static bool bytes_of(const struct gather *gather, int64_t length, size_t *out)
{
    return length >= 0 && !__builtin_mul_overflow((size_t)length, gather->along.inner, out) &&
           !__builtin_mul_overflow(*out, gather->along.outer, out);
}

// Called when the notes of all members have arrived. Allocates the output. If the pieces cannot be
// received directly into the output, also allocates scratch memory for them. The shape of the
// output follows from the lengths in the notes.
static tsr_status gather_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct gather *gather = data;
    int64_t total = 0;
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        int rank = (int)gather->kernel->call.group[i];
        if (!notes_fit(notes[i], notes[gather->kernel->self]))
            return tsr__kernel_refuse(gather->kernel, why, rank,
                                      "has a shard of a different shape");
        if (!add_ok(total, notes[i][NOTE_LENGTH], &total) ||
            !bytes_of(gather, notes[i][NOTE_LENGTH], &gather->recv[i].bytes))
            return tsr__kernel_refuse(gather->kernel, why, rank, "has a shard that is too large");
    }
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, gather->view->dims, (size_t)gather->view->rank * sizeof *dims);
    dims[gather->along.axis] = total;
    void *out;
    size_t bytes;
    gather->status =
        tsr__kernel_output(gather->kernel, gather->context, 0, dims, gather->view->rank, &out);
    if (gather->status || !bytes_of(gather, total, &bytes))
        return tsr__kernel_refuse(gather->kernel, why, gather->kernel->ops->endpoint->rank,
                                  "cannot allocate the output");
    // If outer is 1, pieces are received in place, in member order; otherwise in scratch memory.
    char *at = gather->out = out;
    if (gather->along.outer > 1)
        gather->status = tsr__kernel_scratch(gather->kernel, 0, bytes, &at);
    if (gather->status)
        return tsr__kernel_refuse(gather->kernel, why, gather->kernel->ops->endpoint->rank,
                                  "is out of memory");
    gather->collective.out = at;
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        gather->recv[i].p = at;
        at += gather->recv[i].bytes;
    }
    return TSR_OK;
}

// Copies the pieces from scratch memory into the rows of the result.
OrtStatus *tsr__kernel_join(struct kernel *kernel, const struct comm_buffer *pieces, size_t outer,
                            char *out)
{
    size_t row = 0;
    for (int i = 0; outer && i < kernel->call.n_group; i++)
        row += pieces[i].bytes / outer;
    for (int i = 0; outer && i < kernel->call.n_group; i++) {
        size_t width = pieces[i].bytes / outer;
        struct device_rows rows = {.to = out,
                                   .from = pieces[i].p,
                                   .to_pitch = row,
                                   .from_pitch = width,
                                   .width = width,
                                   .rows = outer};
        TRY(tsr__kernel_rows(kernel, &rows));
        out += width;
    }
    return NULL;
}

// Sends this rank's piece to all members, with its length along the axis as a note, and joins the
// pieces that arrive.
static OrtStatus *gather_pieces(struct gather *gather, struct arena *arena)
{
    struct kernel *kernel = gather->kernel;
    const struct tensor_view *view = gather->view;
    size_t n = (size_t)kernel->call.n_group;
    struct comm_buffer *send = ARENA_ARRAY(arena, struct comm_buffer, n);
    gather->recv = ARENA_ARRAY(arena, struct comm_buffer, n);
    if (arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    TRY(tsr__along_axis(kernel, view, kernel->axis, &gather->along));
    for (size_t i = 0; i < n; i++)
        send[i] = (struct comm_buffer){
            .p = (void *)view->data,
            .bytes = (size_t)view->elements * tsr__elem_bytes(view->type),
        };
    gather->collective.in = view->data;
    struct comm_exchange exchange = {.collective = &gather->collective,
                                     .send = send,
                                     .recv = gather->recv,
                                     .arrived = gather_arrived,
                                     .data = gather};
    tsr__along_note(view, &gather->along, exchange.notes);
    struct comm_trouble why;
    tsr_status st = tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why);
    // The engine failed to allocate the output; its error has more details.
    if (st != TSR_OK && gather->status)
        return gather->status;
    if (st != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    if (gather->along.outer <= 1)
        return NULL; // arrived in place
    return tsr__kernel_join(kernel, gather->recv, gather->along.outer, gather->out);
}

OrtStatus *tsr__all_gather_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    if (kernel->call.type == TSR_STRING)
        return tsr__texts_gather(kernel, context);
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena = {.session = kernel->ops->session};
    struct gather gather = {.kernel = kernel, .context = context, .view = &x};
    OrtStatus *failed = gather_pieces(&gather, &arena);
    tsr__arena_free(&arena);
    return failed ? failed : tsr__pass_token(kernel, context);
}
