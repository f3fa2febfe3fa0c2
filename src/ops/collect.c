// SPDX-License-Identifier: Apache-2.0
// collect.c - ReduceScatter, Reduce, AllToAll, Broadcast, Send and Recv.
//
// Whoever divides an axis does it by the bounds of every cut: part j of n over F = ceil(D / unit)
// units is floor(j F / n) .. floor((j + 1) F / n) of them; the last unit may be short. So no rank
// needs to know more than the tensor it holds. With fewer units than parts some parts are empty, in
// every operator here: 1 element over 3 ranks belongs to the last. Members that have `shares` have as many of the units
// as these say, counted in the same way (tsr__division_start). Where a receiver cannot know the shape, it travels
// along in the notes of the call. A rank that gets nothing has an empty result: all operators have
// the same two outputs.
//
// 7 rows over 2 ranks: with unit 1 the parts are 3 and 4 rows; with unit 4 there are F = 2 units,
// of 4 and of 3 rows, one for each. With shares 3 and 1 the parts are floor(3 * 7 / 4) = 5 and 2 rows.
#include "ops/internal.h"

#include <stdio.h>

#define NOTED_RANK (COMM_NOTES - 1) // dimensions of a shape that travels

// A tensor seen along one axis: outer rows of length * inner bytes.
struct along {
    int axis;
    size_t outer, inner;
    int64_t length;
};

// [2, 3, 4] of float32 along axis 1: outer 2, length 3, inner 16 bytes. A negative axis counts from
// the end.
static OrtStatus *look_along(struct kernel *kernel, const struct tensor_view *view, int64_t axis,
                             struct along *out)
{
    int64_t at = axis < 0 ? axis + view->rank : axis;
    if (at < 0 || at >= view->rank)
        return tsr__kernel_error(kernel, "axis %lld of a tensor of rank %d", (long long)axis,
                                 view->rank);
    *out = (struct along){.axis = (int)at,
                          .outer = 1,
                          .inner = tsr__elem_bytes(view->type),
                          .length = view->dims[at]};
    for (int d = 0; d < out->axis; d++)
        out->outer *= (size_t)view->dims[d];
    for (int d = out->axis + 1; d < view->rank; d++)
        out->inner *= (size_t)view->dims[d];
    return NULL;
}

// Elements of the axis that belong to member j.
static struct tile_interval part_of(const struct kernel *kernel, const struct along *along, int j)
{
    return (struct tile_interval){tsr__division_start(&kernel->division, along->length, j),
                                  tsr__division_start(&kernel->division, along->length, j + 1)};
}

// Copies a part of the axis, row after row.
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

// Read and folded into the fingerprint of the call: members whose files differ in it find out
// before a byte moves.
static OrtStatus *read_int(struct kernel *kernel, const OrtKernelInfo *info,
                           enum comm_attribute attribute, int64_t least, int64_t most, int64_t *out)
{
    const char *name = tsr__attribute_name(attribute);
    OrtStatus *st = kernel->api->KernelInfoGetAttribute_int64(info, name, out);
    if (st) {
        kernel->api->ReleaseStatus(st);
        return tsr__kernel_error(kernel, "attribute '%s' is absent or no integer", name);
    }
    if (*out < least || *out > most)
        return tsr__kernel_error(kernel, "attribute '%s' is %lld", name, (long long)*out);
    kernel->call.detail = tsr__hash64(out, sizeof *out, kernel->call.detail);
    return NULL;
}

static OrtStatus *read_axis(struct kernel *kernel, const OrtKernelInfo *info,
                            enum comm_attribute attribute, int64_t *out)
{
    return read_int(kernel, info, attribute, -OPS_MAX_RANK, OPS_MAX_RANK - 1, out);
}

// Shares of the members, where they differ; also part of the call's fingerprint.
static OrtStatus *read_shares(struct kernel *kernel, const OrtKernelInfo *info)
{
    const char *name = tsr__attribute_name(ATTRIBUTE_SHARES);
    int64_t *shares;
    size_t n = 0;
    OrtStatus *absent = kernel->api->KernelInfoGetAttributeArray_int64(info, name, NULL, &n);
    if (absent) {
        kernel->api->ReleaseStatus(absent);
        return NULL;
    }
    TRY(tsr__kernel_ints(kernel, info, name, &shares, &n));
    if (!tsr__division_holds(shares, n, kernel->call.n_group))
        return tsr__kernel_error(kernel, "attribute '%s' has no share for each of %d members", name,
                                 kernel->call.n_group);
    kernel->call.detail = tsr__hash64(shares, n * sizeof *shares, kernel->call.detail);
    kernel->division.shares = shares;
    return NULL;
}

// In which parts the members divide an axis.
static OrtStatus *read_division(struct kernel *kernel, const OrtKernelInfo *info)
{
    kernel->division.n = kernel->call.n_group;
    TRY(read_int(kernel, info, ATTRIBUTE_UNIT, 1, INT64_MAX, &kernel->division.unit));
    return read_shares(kernel, info);
}

// A rank, not a place in the group.
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

// The shape must be the same on all members.
// Used where the parts follow from the shape: members of other shapes would cut elsewhere.
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

// The parts in the order of the members, one after the other; a tensor that is cut along its outermost axis already
// has them in this order in memory, so nothing is copied.
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
        struct tile_interval part = part_of(kernel, along, j);
        size_t width = along->outer * (size_t)(part.stop - part.start) * along->inner;
        // Elements of each member's part; the transport checks that all members have the same list.
        counts[j] = (int64_t)(width / unit);
        if (!packed)
            continue;
        TRY(copy_part(kernel, along, data, part, at));
        at += width;
    }
    return NULL;
}

// [8, 6] along axis 0 over 2 members: each brings 8 rows, and has the sum of its own 4.
static OrtStatus *reduce_scatter(struct kernel *kernel, OrtKernelContext *context,
                                 const struct tensor_view *view, int64_t *counts)
{
    struct along along;
    void *out;
    int64_t dims[OPS_MAX_RANK];
    TRY(look_along(kernel, view, kernel->axis, &along));
    memcpy(dims, view->dims, (size_t)view->rank * sizeof *dims);
    struct tile_interval own = part_of(kernel, &along, kernel->self);
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

// What a member has that gets nothing: one dimension of no elements. Nobody reads it.
static OrtStatus *empty_output(struct kernel *kernel, OrtKernelContext *context)
{
    int64_t none = 0;
    void *out;
    return tsr__kernel_output(kernel, context, 0, &none, 1, &out);
}

// Only the root's output has the input's shape.
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

// One call: axis `split` is whole and becomes cut, axis `concat` is cut and becomes whole.
// status is the engine's own word where making the output failed inside of turn_arrived.
struct turn {
    struct kernel *kernel;
    OrtKernelContext *context;
    const struct tensor_view *view;
    struct along split, concat; // of x
    int64_t dims[OPS_MAX_RANK]; // of the result
    struct comm_buffer *send, *recv;
    char *out;
    OrtStatus *status;
};

enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS };

OrtStatus *tsr__all_to_all_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(read_axis(kernel, info, ATTRIBUTE_SPLIT_AXIS, &kernel->split_axis));
    TRY(read_axis(kernel, info, ATTRIBUTE_AXIS, &kernel->axis));
    return read_division(kernel, info);
}

static int64_t hash_others(const struct tensor_view *view, int axis)
{
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, view->dims, (size_t)view->rank * sizeof *dims);
    dims[axis] = 0;
    return (int64_t)tsr__hash64(dims, (size_t)view->rank * sizeof *dims, 0);
}

static tsr_status refuse(const struct kernel *kernel, struct comm_trouble *why, int rank,
                         const char *what)
{
    why->status = TSR_PEER;
    why->rank = rank;
    snprintf(why->text, sizeof why->text, "%s '%s' (id %lld): rank %d %s", kernel->op->plain,
             kernel->call.node, (long long)kernel->call.id, rank, what);
    return TSR_PEER;
}

// All are there: their lengths give the shape.
static tsr_status turn_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                               struct comm_trouble *why)
{
    struct turn *turn = data;
    struct kernel *kernel = turn->kernel;
    int self = kernel->self, me = kernel->ops->endpoint->rank;
    int64_t total = 0, others = (int64_t)tsr__elem_bytes(kernel->call.type);
    for (int i = 0; i < kernel->call.n_group; i++)
        if (notes[i][NOTE_RANK] != notes[self][NOTE_RANK] ||
            notes[i][NOTE_OTHERS] != notes[self][NOTE_OTHERS] || notes[i][NOTE_LENGTH] < 0 ||
            !add_ok(total, notes[i][NOTE_LENGTH], &total))
            return refuse(kernel, why, (int)kernel->call.group[i],
                          "brings a piece of another shape");
    // others: bytes of what is one long along the axis that becomes whole.
    turn->dims[turn->concat.axis] = total;
    for (int axis = 0; axis < turn->view->rank; axis++)
        if (axis != turn->concat.axis && !mul_ok(others, turn->dims[axis], &others))
            return refuse(kernel, why, me, "would get a piece that is too large");
    void *out;
    int64_t bytes;
    if (!mul_ok(others, total, &bytes))
        return refuse(kernel, why, me, "would get a piece that is too large");
    turn->status = tsr__kernel_output(kernel, turn->context, 0, turn->dims, turn->view->rank, &out);
    if (turn->status)
        return refuse(kernel, why, me, "cannot make the output");
    turn->out = out;
    char *at;
    turn->status = tsr__kernel_scratch(kernel, 1, (size_t)bytes, &at);
    if (turn->status)
        return refuse(kernel, why, me, "is out of memory");
    // Each member sends its length of the one axis times this rank's part of the other.
    for (int i = 0; i < kernel->call.n_group; i++) {
        turn->recv[i] = (struct comm_buffer){.p = at, .bytes = (size_t)(others * notes[i][0])};
        at += turn->recv[i].bytes;
    }
    return TSR_OK;
}

// Blocks that arrived stand side by side along the axis that becomes whole.
// [4, 3] of both members side by side along axis 0 lie on end already (outer 1); along an inner
// axis row by row.
static OrtStatus *weave(const struct turn *turn)
{
    size_t outer = 1, inner = tsr__elem_bytes(turn->kernel->call.type), before = 0;
    for (int axis = 0; axis < turn->concat.axis; axis++)
        outer *= (size_t)turn->dims[axis];
    for (int axis = turn->concat.axis + 1; axis < turn->view->rank; axis++)
        inner *= (size_t)turn->dims[axis];
    size_t row = (size_t)turn->dims[turn->concat.axis] * inner;
    for (int i = 0; i < turn->kernel->call.n_group; i++) {
        size_t width = outer ? turn->recv[i].bytes / outer : 0;
        struct device_rows rows = {.to = turn->out + before,
                                   .from = turn->recv[i].p,
                                   .to_pitch = row,
                                   .from_pitch = width,
                                   .width = width,
                                   .rows = outer};
        TRY(tsr__kernel_rows(turn->kernel, &rows));
        before += width;
    }
    return NULL;
}

// Block 0 of the scratch memory has what goes out; block 1 what comes in (turn_arrived).
static OrtStatus *pack_parts(struct turn *turn)
{
    struct kernel *kernel = turn->kernel;
    const struct along *along = &turn->split;
    char *at;
    TRY(tsr__kernel_scratch(kernel, 0, along->outer * (size_t)along->length * along->inner, &at));
    for (int j = 0; j < kernel->call.n_group; j++) {
        struct tile_interval part = part_of(kernel, along, j);
        TRY(copy_part(kernel, along, turn->view->data, part, at));
        turn->send[j] = (struct comm_buffer){
            .p = at, .bytes = along->outer * (size_t)(part.stop - part.start) * along->inner};
        at += turn->send[j].bytes;
    }
    return NULL;
}

// Two members with [4,6] each, split along axis 1 and joined along axis 0: each keeps 3 columns of its own, sends
// the other 3, and has [8,3]. How long the others' pieces are comes in the notes before the data; turn_arrived
// makes room.
static OrtStatus *all_to_all(struct turn *turn)
{
    struct kernel *kernel = turn->kernel;
    TRY(look_along(kernel, turn->view, kernel->split_axis, &turn->split));
    TRY(look_along(kernel, turn->view, kernel->axis, &turn->concat));
    if (turn->split.axis == turn->concat.axis)
        return tsr__kernel_error(kernel, "both axes are %d", turn->split.axis);
    memcpy(turn->dims, turn->view->dims, (size_t)turn->view->rank * sizeof *turn->dims);
    struct tile_interval own = part_of(kernel, &turn->split, kernel->self);
    turn->dims[turn->split.axis] = own.stop - own.start;
    TRY(pack_parts(turn));
    struct comm_exchange exchange = {
        .send = turn->send, .recv = turn->recv, .arrived = turn_arrived, .data = turn};
    exchange.notes[NOTE_LENGTH] = turn->concat.length;
    exchange.notes[NOTE_RANK] = turn->view->rank;
    exchange.notes[NOTE_OTHERS] = hash_others(turn->view, turn->concat.axis);
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return turn->status ? turn->status : tsr__kernel_trouble(kernel, &why);
    TRY(weave(turn));
    return tsr__pass_token(kernel, turn->context);
}

OrtStatus *tsr__all_to_all_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena; // of this call
    tsr__arena_init(&arena, kernel->ops->session);
    size_t n = (size_t)kernel->call.n_group;
    struct turn turn = {.kernel = kernel, .context = context, .view = &x};
    turn.send = ARENA_ARRAY(&arena, struct comm_buffer, n);
    turn.recv = ARENA_ARRAY(&arena, struct comm_buffer, n);
    OrtStatus *st = arena.failed ? tsr__kernel_error(kernel, "out of memory") : all_to_all(&turn);
    tsr__arena_free(&arena);
    return st;
}

// ---- Broadcast, Send, Recv ---------------------------------------------------------------------

// Rank, then the sizes: a scalar is 0. 15 sizes fit into the notes of a call.
static OrtStatus *note_shape(struct kernel *kernel, const struct tensor_view *view, int64_t *notes)
{
    if (view->rank > NOTED_RANK)
        return tsr__kernel_error(kernel, "a tensor of rank %d, at most %d", view->rank, NOTED_RANK);
    notes[0] = view->rank;
    memcpy(notes + 1, view->dims, (size_t)view->rank * sizeof *view->dims);
    return NULL;
}

// A result whose shape arrived.
struct arrival {
    struct kernel *kernel;
    OrtKernelContext *context;
    struct comm_buffer *recv; // of a broadcast
    int root;                 // its place in the group
    OrtStatus *status;
};

// Bytes of a tensor whose rank and sizes are noted; false: there is no such tensor.
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

static tsr_status make_arrived(struct arrival *arrival, const int64_t *notes,
                               struct comm_buffer *into, struct comm_trouble *why)
{
    struct kernel *kernel = arrival->kernel;
    int me = kernel->ops->endpoint->rank;
    int64_t bytes = 0;
    if (!noted_bytes(notes, kernel->call.type, &bytes))
        return refuse(kernel, why, me, "is sent a shape that no tensor has");
    // The output has the sender's shape and takes the bytes straight from the transport.
    arrival->status =
        tsr__kernel_output(kernel, arrival->context, 0, notes + 1, (int)notes[0], &into->p);
    into->bytes = (size_t)bytes;
    if (arrival->status)
        return refuse(kernel, why, me, "cannot make the output");
    return TSR_OK;
}

static tsr_status broadcast_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                    struct comm_trouble *why)
{
    struct arrival *arrival = data;
    if (arrival->root == arrival->kernel->self)
        return TSR_OK;
    return make_arrived(arrival, notes[arrival->root], &arrival->recv[arrival->root], why);
}

OrtStatus *tsr__broadcast_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    return read_member(kernel, info, ATTRIBUTE_ROOT, &kernel->root);
}

// The root has the shape and sends it ahead in the notes; the others make their outputs when it arrives, and
// receive straight into them.
static OrtStatus *broadcast(struct kernel *kernel, OrtKernelContext *context,
                            const struct tensor_view *view, struct comm_buffer *send,
                            struct comm_buffer *recv)
{
    struct arrival arrival = {.kernel = kernel, .context = context, .recv = recv};
    while (kernel->call.group[arrival.root] != kernel->root)
        arrival.root++;
    struct comm_exchange exchange = {
        .send = send, .recv = recv, .arrived = broadcast_arrived, .data = &arrival};
    size_t bytes = (size_t)view->elements * tsr__elem_bytes(view->type);
    if (arrival.root == kernel->self) {
        void *out;
        TRY(note_shape(kernel, view, exchange.notes));
        TRY(tsr__kernel_output(kernel, context, 0, view->dims, view->rank, &out));
        // The root's own result is a copy: the engine may have other readers of x.
        struct device_rows rows = {.to = out, .from = view->data, .width = bytes, .rows = 1};
        TRY(tsr__kernel_rows(kernel, &rows));
        for (int i = 0; i < kernel->call.n_group; i++)
            if (i != arrival.root)
                send[i] = (struct comm_buffer){.p = (void *)view->data, .bytes = bytes};
    }
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return arrival.status ? arrival.status : tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}

OrtStatus *tsr__broadcast_compute(struct kernel *kernel, OrtKernelContext *context)
{
    struct tensor_view x;
    if (kernel->call.type == TSR_STRING)
        return tsr__texts_broadcast(kernel, context);
    TRY(tsr__kernel_input(kernel, context, 0, kernel->call.type, &x));
    struct arena arena; // of this call
    tsr__arena_init(&arena, kernel->ops->session);
    struct comm_buffer *send =
        ARENA_ARRAY(&arena, struct comm_buffer, (size_t)kernel->call.n_group);
    struct comm_buffer *recv =
        ARENA_ARRAY(&arena, struct comm_buffer, (size_t)kernel->call.n_group);
    OrtStatus *st = arena.failed ? tsr__kernel_error(kernel, "out of memory")
                                 : broadcast(kernel, context, &x, send, recv);
    tsr__arena_free(&arena);
    return st;
}

// Both sides say who sends and who gets.
OrtStatus *tsr__send_create(struct kernel *kernel, const OrtKernelInfo *info)
{
    TRY(read_member(kernel, info, ATTRIBUTE_FROM, &kernel->root));
    TRY(read_member(kernel, info, ATTRIBUTE_TO, &kernel->to));
    if (kernel->call.n_group != 2 || kernel->root == kernel->to)
        return tsr__kernel_error(kernel, "a message goes from one rank to another");
    return NULL;
}

// A rank's file has a Send on the sender and a Recv on the receiver; this one has the other's.
static OrtStatus *wrong_side(struct kernel *kernel)
{
    return tsr__kernel_error(kernel, "goes from rank %lld to rank %lld, and this is rank %d",
                             (long long)kernel->root, (long long)kernel->to,
                             kernel->ops->endpoint->rank);
}

// When it returns, x is not read any more (or what reads it is on the GPU's stream): the engine may
// free it.
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
    struct arrival arrival = {.kernel = kernel, .context = context};
    struct comm_incoming in = {.arrived = recv_arrived, .data = &arrival};
    struct comm_trouble why;
    // Its input is not looked at: it only gives the operator the two inputs that all have.
    if (kernel->to != kernel->ops->endpoint->rank)
        return wrong_side(kernel);
    if (tsr__comm_recv(kernel->ops->endpoint, &kernel->call, (int)kernel->root, &in, &why) !=
        TSR_OK)
        return arrival.status ? arrival.status : tsr__kernel_trouble(kernel, &why);
    return tsr__pass_token(kernel, context);
}
