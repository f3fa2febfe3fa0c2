// SPDX-License-Identifier: Apache-2.0
// collect.c - ReduceScatter, Reduce, AllToAll, Broadcast, Send and Recv.
//
// An axis is divided like any sharded dimension: D elements are F = ceil(D / unit) units, of which
// the last may be short, and share j of n has units floor(j F / n) .. floor((j + 1) F / n) - 1. So
// a rank can compute all shares from its own tensor. With fewer units than ranks some shares are
// empty: 1 element over 3 ranks belongs to the last. With the attribute `shares` the members'
// shares of the units differ (tsr__division_start). If the tensor is already a shard along this
// axis, its shares follow from the size of the full axis: the attribute `part` says which part the
// shard is, and an input has the size. A receiver that cannot know the shape gets it
// in the notes of the call (integers that members exchange before the data). A rank that gets no
// result returns an empty tensor, because all operators have two outputs.
//
//     Example: 7 rows over 2 ranks. With unit 1 the shares are 3 and 4 rows. With unit 4 there are
//     F = 2 units, of 4 and 3 rows. With unit 1 and `shares` 3 and 1, the ranks get
//     floor(3 * 7 / 4) = 5 rows and 2 rows. With `part` 1, 2, 2 they have the second half of 15
//     rows, rows 7..14: the shares end at floor(3 * 15 / 4) = 11 and 15, so they are 4 and 4 rows.
#include "ops/internal.h"

#define NOTED_RANK (COMM_NOTES - 1) // dimensions of a shape that can be sent

static struct tile_interval part_of(const struct kernel *kernel, int j)
{
    return (struct tile_interval){
        tsr__division_start(&kernel->division, kernel->full_length, j),
        tsr__division_start(&kernel->division, kernel->full_length, j + 1)};
}

// Finds the size of the full axis that is divided: if the members divide a part of it, this is the
// last input, from which the size of the part must follow.
static OrtStatus *read_length(struct kernel *kernel, OrtKernelContext *context,
                              const struct along *along)
{
    struct tensor_view size;
    kernel->full_length = along->length;
    if (!kernel->division.part.of)
        return NULL;
    TRY(tsr__kernel_input(kernel, context, comm_token(kernel->op->kind) + 1, TSR_INT64, &size));
    if (size.elements == 1)
        kernel->full_length = *(const int64_t *)size.data;
    if (size.elements != 1 || kernel->full_length < along->length ||
        kernel->full_length > INT64_MAX / 2 ||
        tsr__division_start(&kernel->division, kernel->full_length, kernel->division.n) !=
            along->length)
        return tsr__kernel_error(kernel, "the shard does not have its part of the full axis");
    return NULL;
}

static OrtStatus *copy_part(struct kernel *kernel, const struct along *along, const char *data,
                            struct tile_interval part, char *out)
{
    size_t row = (size_t)along->length * along->inner;
    size_t width = (size_t)(part.stop - part.start) * along->inner;
    struct device_rows rows = {.to = out,
                               .from = data + (size_t)part.start * along->inner,
                               .to_pitch = width,
                               .from_pitch = row,
                               .width = width,
                               .rows = along->outer};
    return tsr__kernel_rows(kernel, &rows);
}

// Reads an attribute, and adds it to the fingerprint of the call (call.detail), so that members
// with different files fail before any transfer.
static OrtStatus *read_int(struct kernel *kernel, const OrtKernelInfo *info,
                           enum comm_attribute attribute, int64_t least, int64_t most, int64_t *out)
{
    const char *name = tsr__attribute_name(attribute);
    TRY(tsr__kernel_int(kernel, info, name, out));
    if (*out < least || *out > most)
        return tsr__kernel_error(kernel, "attribute '%s' has the invalid value %lld", name,
                                 (long long)*out);
    kernel->call.detail = tsr__hash64(out, sizeof *out, kernel->call.detail);
    return NULL;
}

static OrtStatus *read_axis(struct kernel *kernel, const OrtKernelInfo *info,
                            enum comm_attribute attribute, int64_t *out)
{
    return read_int(kernel, info, attribute, -OPS_MAX_RANK, OPS_MAX_RANK - 1, out);
}

// Reads a list, which is part of the call's fingerprint. *n is 0 if the node does not have it.
static OrtStatus *read_optional(struct kernel *kernel, const OrtKernelInfo *info,
                                enum comm_attribute attribute, int64_t **out, size_t *n)
{
    const char *name = tsr__attribute_name(attribute);
    *n = 0;
    OrtStatus *absent = kernel->api->KernelInfoGetAttributeArray_int64(info, name, NULL, n);
    if (absent) {
        *n = 0;
        kernel->api->ReleaseStatus(absent);
        return NULL;
    }
    TRY(tsr__kernel_ints(kernel, info, name, out, n));
    kernel->call.detail = tsr__hash64(*out, *n * sizeof **out, kernel->call.detail);
    return NULL;
}

// Reads the attribute `shares`, if the node has it: the members' shares of the axis.
static OrtStatus *read_shares(struct kernel *kernel, const OrtKernelInfo *info)
{
    int64_t *shares;
    size_t n;
    TRY(read_optional(kernel, info, ATTRIBUTE_SHARES, &shares, &n));
    if (n == 0)
        return NULL;
    if (!tsr__division_holds(shares, n, kernel->call.n_group))
        return tsr__kernel_error(kernel,
                                 "attribute '%s' does not have one share for each of the %d "
                                 "ranks",
                                 tsr__attribute_name(ATTRIBUTE_SHARES), kernel->call.n_group);
    kernel->division.shares = shares;
    return NULL;
}

// Reads the attribute `part`, if the node has it.
static OrtStatus *read_part(struct kernel *kernel, const OrtKernelInfo *info)
{
    const int64_t *shares = kernel->division.shares;
    int64_t *part, all = shares ? 0 : kernel->division.n;
    size_t n;
    TRY(read_optional(kernel, info, ATTRIBUTE_PART, &part, &n));
    if (n == 0)
        return NULL;
    for (int64_t i = 0; shares && i < kernel->division.n; i++)
        all += shares[i];
    if (n != 3 || part[0] < 0 || part[1] <= part[0] || part[2] < part[1] ||
        !mul_ok(all, part[2], &all))
        return tsr__kernel_error(kernel, "attribute '%s' is not a part of an axis",
                                 tsr__attribute_name(ATTRIBUTE_PART));
    kernel->division.part = (struct tile_units){part[0], part[1], part[2]};
    return NULL;
}

static OrtStatus *read_division(struct kernel *kernel, const OrtKernelInfo *info)
{
    kernel->division.n = kernel->call.n_group;
    TRY(read_int(kernel, info, ATTRIBUTE_UNIT, 1, INT64_MAX, &kernel->division.unit));
    TRY(read_shares(kernel, info));
    return read_part(kernel, info);
}

// Reads a member of the group: a rank, not an index in the group.
static OrtStatus *read_member(struct kernel *kernel, const OrtKernelInfo *info,
                              enum comm_attribute attribute, int64_t *out)
{
    TRY(read_int(kernel, info, attribute, 0, COMM_MAX_RANKS, out));
    for (int i = 0; i < kernel->call.n_group; i++)
        if (kernel->call.group[i] == *out)
            return NULL;
    return tsr__kernel_error(kernel, "attribute '%s' names rank %lld, which is not in the group",
                             tsr__attribute_name(attribute), (long long)*out);
}

// Returns the fingerprint including the shape, for calls whose shares depend on the shape: all
// members must have the same shape.
static uint64_t with_shape(const struct kernel *kernel, const struct tensor_view *view)
{
    return tsr__hash64(view->dims, (size_t)view->rank * sizeof *view->dims, kernel->call.detail);
}

// ---- ReduceScatter -----------------------------------------------------------------------------

OrtStatus *tsr__reduce_scatter_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(tsr__all_reduce_create(kernel, info));
    TRY(read_axis(kernel, info, ATTRIBUTE_AXIS, &kernel->axis));
    return read_division(kernel, info);
}

// Arranges the parts in member order: *out points to them, and counts[j] is the number of elements
// of part j. Along the outermost axis the tensor already has this order, so nothing is copied.
static OrtStatus *parts_in_order(struct kernel *kernel, const struct along *along, const void *data,
                                 int64_t *counts, const char **out)
{
    int n = kernel->call.n_group;
    size_t bytes = along->outer * (size_t)along->length * along->inner,
           unit = tsr__elem_bytes(kernel->call.type);
    bool packed = along->outer > 1;
    char *at = NULL;
    *out = data;
    if (packed) {
        TRY(tsr__kernel_scratch(kernel, 0, bytes, &at));
        *out = at;
    }
    for (int j = 0; j < n; j++) {
        struct tile_interval part = part_of(kernel, j);
        size_t width = along->outer * (size_t)(part.stop - part.start) * along->inner;
        // Elements per member. The transport checks that all members have the same list.
        counts[j] = (int64_t)(width / unit);
        if (!packed)
            continue;
        TRY(copy_part(kernel, along, data, part, at));
        at += width;
    }
    return NULL;
}

// Runs ReduceScatter. Example: [8, 6] along axis 0 over 2 members: each contributes 8 rows and gets
// the sums of 4 rows.
static OrtStatus *reduce_scatter(struct kernel *kernel, OrtKernelContext *context,
                                 const struct tensor_view *view, int64_t *counts)
{
    struct along along;
    void *out;
    int64_t dims[OPS_MAX_RANK];
    TRY(tsr__along_axis(kernel, view, kernel->axis, &along));
    TRY(read_length(kernel, context, &along));
    memcpy(dims, view->dims, (size_t)view->rank * sizeof *dims);
    struct tile_interval own = part_of(kernel, kernel->self);
    dims[along.axis] = own.stop - own.start;
    TRY(tsr__kernel_output(kernel, context, 0, dims, view->rank, &out));
    const char *parts;
    TRY(parts_in_order(kernel, &along, view->data, counts, &parts));
    struct comm_call call = kernel->call;
    call.detail = with_shape(kernel, view);
    struct comm_trouble why;
    if (tsr__comm_reduce_scatter(kernel->ops->endpoint, &call, parts, counts, out, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

OrtStatus *tsr__reduce_scatter_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    size_t bytes = (size_t)kernel->call.n_group * sizeof(int64_t);
    int64_t *counts = tsr__alloc(kernel->ops->session, bytes);
    OrtStatus *st = counts ? reduce_scatter(kernel, context, &x, counts)
                           : tsr__kernel_error(kernel, "out of memory");
    tsr__free(kernel->ops->session, counts, bytes);
    return st;
}

// ---- Reduce ------------------------------------------------------------------------------------

OrtStatus *tsr__reduce_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(tsr__all_reduce_create(kernel, info));
    return read_member(kernel, info, ATTRIBUTE_ROOT, &kernel->root);
}

// Creates an empty output for a member that gets no result; no node reads it.
static OrtStatus *empty_output(struct kernel *kernel, OrtKernelContext *context)
{
    int64_t none = 0;
    void *out;
    return tsr__kernel_output(kernel, context, 0, &none, 1, &out);
}

// Runs Reduce. Only the output of the root has the shape of the input; the outputs of the other
// members are empty.
OrtStatus *tsr__reduce_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    void *out = NULL;
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    if (kernel->root == kernel->ops->endpoint->rank)
        TRY(tsr__kernel_output(kernel, context, 0, x.dims, x.rank, &out));
    else
        TRY(empty_output(kernel, context));
    struct comm_call call = kernel->call;
    struct comm_trouble why;
    call.count = x.elements;
    if (tsr__comm_reduce(kernel->ops->endpoint, &call, (int)kernel->root, x.data, out, &why) !=
        TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

// ---- AllToAll ----------------------------------------------------------------------------------

// An AllToAll, which shards axis `split` and unshards axis `concat`. `status` is the error if
// memory could not be allocated.
struct all_to_all_call {
    struct kernel *kernel;
    OrtKernelContext *context;
    const struct tensor_view *view;
    struct along split, concat; // axes of the input along which it is split and concatenated
    int64_t dims[OPS_MAX_RANK]; // shape of the result
    struct comm_buffer *send, *recv;
    char *out;
    OrtStatus *status;
};

OrtStatus *tsr__all_to_all_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(read_axis(kernel, info, ATTRIBUTE_SPLIT_AXIS, &kernel->split_axis));
    TRY(read_axis(kernel, info, ATTRIBUTE_AXIS, &kernel->axis));
    return read_division(kernel, info);
}

// Called when the notes of all members have arrived. Allocates the output and the memory for
// incoming parts. The shape of the output follows from the lengths in the notes.
static tsr_status all_to_all_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                     struct comm_trouble *why)
{
    struct all_to_all_call *state = data;
    struct kernel *kernel = state->kernel;
    int me = kernel->ops->endpoint->rank;
    int64_t total = 0, others = (int64_t)tsr__elem_bytes(kernel->call.type);
    for (int i = 0; i < kernel->call.n_group; i++)
        if (!notes_fit(notes[i], notes[kernel->self]) || notes[i][NOTE_LENGTH] < 0 ||
            !add_ok(total, notes[i][NOTE_LENGTH], &total))
            return tsr__kernel_refuse(kernel, why, (int)kernel->call.group[i],
                                      "has a shard of a different shape");
    // The product of the other dimensions: bytes per element of the concatenated axis.
    state->dims[state->concat.axis] = total;
    for (int axis = 0; axis < state->view->rank; axis++)
        if (axis != state->concat.axis && !mul_ok(others, state->dims[axis], &others))
            return tsr__kernel_refuse(kernel, why, me, "would get a shard that is too large");
    void *out;
    int64_t bytes;
    if (!mul_ok(others, total, &bytes))
        return tsr__kernel_refuse(kernel, why, me, "would get a shard that is too large");
    state->status =
        tsr__kernel_output(kernel, state->context, 0, state->dims, state->view->rank, &out);
    if (state->status)
        return tsr__kernel_refuse(kernel, why, me, "cannot allocate the output");
    state->out = out;
    char *at;
    state->status = tsr__kernel_scratch(kernel, 1, (size_t)bytes, &at);
    if (state->status)
        return tsr__kernel_refuse(kernel, why, me, "is out of memory");
    // Each member sends its length of one axis times this rank's share of the other.
    for (int i = 0; i < kernel->call.n_group; i++) {
        state->recv[i] = (struct comm_buffer){.p = at, .bytes = (size_t)(others * notes[i][0])};
        at += state->recv[i].bytes;
    }
    return TSR_OK;
}

// Packs the parts for all members. Scratch block 0 has outgoing data, block 1 incoming data.
static OrtStatus *pack_parts(struct all_to_all_call *state)
{
    struct kernel *kernel = state->kernel;
    const struct along *along = &state->split;
    char *at;
    TRY(tsr__kernel_scratch(kernel, 0, along->outer * (size_t)along->length * along->inner, &at));
    for (int j = 0; j < kernel->call.n_group; j++) {
        struct tile_interval part = part_of(kernel, j);
        TRY(copy_part(kernel, along, state->view->data, part, at));
        state->send[j] = (struct comm_buffer){
            .p = at, .bytes = along->outer * (size_t)(part.stop - part.start) * along->inner};
        at += state->send[j].bytes;
    }
    return NULL;
}

// Runs AllToAll. Example: two members with [4,6] each, split along axis 1 and concatenated along
// axis 0: each keeps 3 of its columns, sends 3, and gets [8,3]. The members exchange their lengths
// in the notes of the messages.
static OrtStatus *all_to_all(struct all_to_all_call *state)
{
    struct kernel *kernel = state->kernel;
    TRY(tsr__along_axis(kernel, state->view, kernel->split_axis, &state->split));
    TRY(tsr__along_axis(kernel, state->view, kernel->axis, &state->concat));
    if (state->split.axis == state->concat.axis)
        return tsr__kernel_error(kernel, "both axes are %d, but must differ", state->split.axis);
    memcpy(state->dims, state->view->dims, (size_t)state->view->rank * sizeof *state->dims);
    TRY(read_length(kernel, state->context, &state->split));
    struct tile_interval own = part_of(kernel, kernel->self);
    state->dims[state->split.axis] = own.stop - own.start;
    TRY(pack_parts(state));
    struct comm_exchange exchange = {
        .send = state->send, .recv = state->recv, .arrived = all_to_all_arrived, .data = state};
    tsr__along_note(state->view, &state->concat, exchange.notes);
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return state->status ? state->status : tsr__kernel_trouble(kernel, &why);
    // Along axis 0 the received blocks are already adjacent (outer 1).
    size_t outer = 1;
    for (int axis = 0; axis < state->concat.axis; axis++)
        outer *= (size_t)state->dims[axis];
    TRY(tsr__kernel_join(kernel, state->recv, outer, state->out));
    return tsr__pass_token(kernel, state->context);
}

OrtStatus *tsr__all_to_all_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena = {.session = kernel->ops->session};
    size_t n = (size_t)kernel->call.n_group;
    struct all_to_all_call state = {.kernel = kernel, .context = context, .view = &x};
    state.send = ARENA_ARRAY(&arena, struct comm_buffer, n);
    state.recv = ARENA_ARRAY(&arena, struct comm_buffer, n);
    OrtStatus *st = arena.failed ? tsr__kernel_error(kernel, "out of memory") : all_to_all(&state);
    tsr__arena_free(&arena);
    return st;
}

// ---- Broadcast, Send, Recv ---------------------------------------------------------------------

// Writes the shape into the notes of a message: the rank, then the sizes. Fails if the tensor has
// more than 15 dimensions.
static OrtStatus *note_shape(struct kernel *kernel, const struct tensor_view *view, int64_t *notes)
{
    if (view->rank > NOTED_RANK)
        return tsr__kernel_error(kernel, "the tensor has rank %d; the limit is %d", view->rank,
                                 NOTED_RANK);
    notes[0] = view->rank;
    memcpy(notes + 1, view->dims, (size_t)view->rank * sizeof *view->dims);
    return NULL;
}

// State of a receiver, whose output gets the shape that was received.
struct receive_context {
    struct kernel *kernel;
    OrtKernelContext *context;
    struct comm_buffer *recv; // for Broadcast
    int root;                 // index in the group
    OrtStatus *status;
};

// Computes the bytes of a tensor whose shape is in the notes. Returns false if the shape is
// invalid.
static bool noted_bytes(const int64_t *notes, tsr_dtype type, int64_t *out)
{
    int64_t bytes = (int64_t)tsr__elem_bytes(type);
    if (notes[0] < 0 || notes[0] > NOTED_RANK)
        return false;
    for (int64_t d = 0; d < notes[0]; d++)
        if (notes[1 + d] < 0 || !mul_ok(bytes, notes[1 + d], &bytes))
            return false;
    *out = bytes;
    return true;
}

static tsr_status make_arrived(struct receive_context *received, const int64_t *notes,
                               struct comm_buffer *into, struct comm_trouble *why)
{
    struct kernel *kernel = received->kernel;
    int me = kernel->ops->endpoint->rank;
    int64_t bytes = 0;
    if (!noted_bytes(notes, kernel->call.type, &bytes))
        return tsr__kernel_refuse(kernel, why, me, "receives an invalid shape");
    // The tensor is received directly into the output.
    received->status =
        tsr__kernel_output(kernel, received->context, 0, notes + 1, (int)notes[0], &into->p);
    into->bytes = (size_t)bytes;
    if (received->status)
        return tsr__kernel_refuse(kernel, why, me, "cannot allocate the output");
    return TSR_OK;
}

static tsr_status broadcast_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                    struct comm_trouble *why)
{
    struct receive_context *received = data;
    if (received->root == received->kernel->self)
        return TSR_OK;
    return make_arrived(received, notes[received->root], &received->recv[received->root], why);
}

OrtStatus *tsr__broadcast_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    return read_member(kernel, info, ATTRIBUTE_ROOT, &kernel->root);
}

// Runs Broadcast. The root sends the shape in the notes; the others then allocate their outputs and
// receive directly into them.
static OrtStatus *broadcast(struct kernel *kernel, OrtKernelContext *context,
                            const struct tensor_view *view, struct comm_buffer *send,
                            struct comm_buffer *recv)
{
    struct receive_context received = {.kernel = kernel, .context = context, .recv = recv};
    while (kernel->call.group[received.root] != kernel->root)
        received.root++;
    const struct comm_collective collective = {.in = view->data, .root = received.root};
    struct comm_exchange exchange = {.collective = &collective,
                                     .send = send,
                                     .recv = recv,
                                     .arrived = broadcast_arrived,
                                     .data = &received};
    size_t bytes = (size_t)view->elements * tsr__elem_bytes(view->type);
    if (received.root == kernel->self) {
        void *out;
        TRY(note_shape(kernel, view, exchange.notes));
        TRY(tsr__kernel_output(kernel, context, 0, view->dims, view->rank, &out));
        // The output is a copy: other nodes may also read x.
        struct device_rows rows = {.to = out, .from = view->data, .width = bytes, .rows = 1};
        TRY(tsr__kernel_rows(kernel, &rows));
        for (int i = 0; i < kernel->call.n_group; i++)
            if (i != received.root)
                send[i] = (struct comm_buffer){.p = (void *)view->data, .bytes = bytes};
    }
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return received.status ? received.status : tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

OrtStatus *tsr__broadcast_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    if (kernel->call.type == TSR_STRING)
        return tsr__texts_broadcast(kernel, context);
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena = {.session = kernel->ops->session};
    struct comm_buffer *send =
        ARENA_ARRAY(&arena, struct comm_buffer, (size_t)kernel->call.n_group);
    struct comm_buffer *recv =
        ARENA_ARRAY(&arena, struct comm_buffer, (size_t)kernel->call.n_group);
    OrtStatus *st = arena.failed ? tsr__kernel_error(kernel, "out of memory")
                                 : broadcast(kernel, context, &x, send, recv);
    tsr__arena_free(&arena);
    return st;
}

OrtStatus *tsr__send_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(read_member(kernel, info, ATTRIBUTE_FROM, &kernel->root));
    TRY(read_member(kernel, info, ATTRIBUTE_TO, &kernel->to));
    if (kernel->call.n_group != 2 || kernel->root == kernel->to)
        return tsr__kernel_error(kernel,
                                 "a message needs two different ranks: a sender and a receiver");
    return NULL;
}

// Reports that the engine has loaded the file of another rank.
static OrtStatus *wrong_side(struct kernel *kernel)
{
    return tsr__kernel_error(
        kernel, "the message goes from rank %lld to rank %lld, but this is rank %d",
        (long long)kernel->root, (long long)kernel->to, kernel->ops->endpoint->rank);
}

// Runs Send. When it returns, only work that is already on the GPU's stream still reads x, so the
// engine may free x.
OrtStatus *tsr__send_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    int64_t notes[COMM_NOTES] = {0};
    if (kernel->root != kernel->ops->endpoint->rank)
        return wrong_side(kernel);
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    TRY(note_shape(kernel, &x, notes));
    TRY(empty_output(kernel, context));
    struct comm_trouble why;
    size_t bytes = (size_t)x.elements * tsr__elem_bytes(x.type);
    if (tsr__comm_send(kernel->ops->endpoint, &kernel->call, (int)kernel->to, x.data, bytes, notes,
                       &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

static tsr_status recv_arrived(void *data, const int64_t *notes, struct comm_buffer *into,
                               struct comm_trouble *why)
{
    return make_arrived(data, notes, into, why);
}

OrtStatus *tsr__recv_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct receive_context received = {.kernel = kernel, .context = context};
    struct comm_incoming in = {.arrived = recv_arrived, .data = &received};
    struct comm_trouble why;
    // Input 0 is unused: it exists because all operators have a tensor and a token as inputs.
    if (kernel->to != kernel->ops->endpoint->rank)
        return wrong_side(kernel);
    if (tsr__comm_recv(kernel->ops->endpoint, &kernel->call, (int)kernel->root, &in, &why) !=
        TSR_OK)
        return received.status ? received.status : tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}
