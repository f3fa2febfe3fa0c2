// SPDX-License-Identifier: Apache-2.0
// collect.c - ReduceScatter, Reduce, AllToAll, Broadcast, Send and Recv.
//
// Whoever divides an axis does it by the bounds of every cut: part j of n over F = ceil(D / unit)
// units is floor(j F / n) .. floor((j + 1) F / n) of them; the last unit may be short. So no rank
// needs to know more than the tensor it holds. Where a receiver cannot know the shape, it travels
// along in the notes of the call. A rank that gets nothing has an empty result: all operators have
// the same two outputs.
#include "ops/internal.h"

#include <stdio.h>

#define NOTED_RANK (COMM_NOTES - 1) // dimensions of a shape that travels

// A tensor seen along one axis: outer rows of length * inner bytes.
struct along {
    int axis;
    size_t outer, inner;
    int64_t length;
};

static OrtStatus *look_along(struct kernel *k, const struct tensor_view *x, int64_t axis,
                             struct along *out)
{
    int64_t at = axis < 0 ? axis + x->rank : axis;
    if (at < 0 || at >= x->rank)
        return tsr__kernel_error(k, "axis %lld of a tensor of rank %d", (long long)axis, x->rank);
    *out = (struct along){
        .axis = (int)at, .outer = 1, .inner = tsr__elem_bytes(x->type), .length = x->dims[at]};
    for (int d = 0; d < out->axis; d++)
        out->outer *= (size_t)x->dims[d];
    for (int d = out->axis + 1; d < x->rank; d++)
        out->inner *= (size_t)x->dims[d];
    return NULL;
}

static int64_t start_of(int64_t length, int64_t unit, int n, int j)
{
    int64_t units = length / unit + (length % unit != 0);
    int64_t at = (units / n * j + units % n * j / n) * unit;
    return at < length ? at : length;
}

static OrtStatus *check_parts(struct kernel *k, const struct along *a)
{
    int n = k->call.n_group;
    for (int j = 0; j < n; j++)
        if (start_of(a->length, k->unit, n, j) == start_of(a->length, k->unit, n, j + 1))
            return tsr__kernel_error(k, "%lld elements of axis %d are too few for %d parts",
                                     (long long)a->length, a->axis, n);
    return NULL;
}

// Copies part [from, to) of the axis, row after row.
static OrtStatus *copy_part(struct kernel *k, const struct along *a, const char *data, int64_t from,
                            int64_t to, char *out)
{
    size_t row = (size_t)a->length * a->inner, width = (size_t)(to - from) * a->inner;
    struct device_rows r = {.to = out,
                            .from = data + (size_t)from * a->inner,
                            .to_pitch = width,
                            .from_pitch = row,
                            .width = width,
                            .rows = a->outer};
    return tsr__kernel_rows(k, &r);
}

static OrtStatus *read_int(struct kernel *k, const OrtKernelInfo *info, const char *name,
                           int64_t least, int64_t most, int64_t *out)
{
    OrtStatus *st = k->api->KernelInfoGetAttribute_int64(info, name, out);
    if (st) {
        k->api->ReleaseStatus(st);
        return tsr__kernel_error(k, "attribute '%s' is absent or no integer", name);
    }
    if (*out < least || *out > most)
        return tsr__kernel_error(k, "attribute '%s' is %lld", name, (long long)*out);
    k->call.detail = tsr__hash64(out, sizeof *out, k->call.detail);
    return NULL;
}

static OrtStatus *read_axis(struct kernel *k, const OrtKernelInfo *info, const char *name,
                            int64_t *out)
{
    return read_int(k, info, name, -OPS_MAX_RANK, OPS_MAX_RANK - 1, out);
}

static OrtStatus *read_member(struct kernel *k, const OrtKernelInfo *info, const char *name,
                              int64_t *out)
{
    TRY(read_int(k, info, name, 0, COMM_MAX_RANKS, out));
    for (int i = 0; i < k->call.n_group; i++)
        if (k->call.group[i] == *out)
            return NULL;
    return tsr__kernel_error(k, "attribute '%s' names rank %lld, which is not in the group", name,
                             (long long)*out);
}

// The shape must be the same on all members.
static uint64_t with_shape(const struct kernel *k, const struct tensor_view *x)
{
    return tsr__hash64(x->dims, (size_t)x->rank * sizeof *x->dims, k->call.detail);
}

// ---- ReduceScatter -----------------------------------------------------------------------------

OrtStatus *tsr__reduce_scatter_create(struct kernel *k, const OrtKernelInfo *info)
{
    TRY(tsr__all_reduce_create(k, info));
    TRY(read_axis(k, info, "axis", &k->axis));
    return read_int(k, info, "unit", 1, INT64_MAX, &k->unit);
}

// The parts in the order of the members, one after the other; a tensor cut along its outermost
// axis lies so already.
static OrtStatus *parts_in_order(struct kernel *k, const struct along *a, const void *data,
                                 int64_t *counts, const char **out)
{
    int n = k->call.n_group;
    size_t bytes = a->outer * (size_t)a->length * a->inner, unit = tsr__elem_bytes(k->call.type);
    bool packed = a->outer > 1;
    char *at = NULL;
    *out = data;
    if (packed) {
        TRY(tsr__kernel_scratch(k, 0, bytes, &at));
        *out = at;
    }
    for (int j = 0; j < n; j++) {
        int64_t from = start_of(a->length, k->unit, n, j);
        int64_t to = start_of(a->length, k->unit, n, j + 1);
        size_t part = a->outer * (size_t)(to - from) * a->inner;
        counts[j] = (int64_t)(part / unit);
        if (packed)
            TRY(copy_part(k, a, data, from, to, at));
        at += packed ? part : 0;
    }
    return NULL;
}

static OrtStatus *reduce_scatter(struct kernel *k, OrtKernelContext *context,
                                 const struct tensor_view *x, int64_t *counts)
{
    struct along a;
    int n = k->call.n_group;
    void *out;
    int64_t dims[OPS_MAX_RANK];
    TRY(look_along(k, x, k->axis, &a));
    TRY(check_parts(k, &a));
    memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
    dims[a.axis] =
        start_of(a.length, k->unit, n, k->self + 1) - start_of(a.length, k->unit, n, k->self);
    TRY(tsr__kernel_output(k, context, 0, dims, x->rank, &out));
    const char *parts;
    TRY(parts_in_order(k, &a, x->data, counts, &parts));
    struct comm_call c = k->call;
    c.detail = with_shape(k, x);
    struct comm_trouble why;
    if (tsr__comm_reduce_scatter(k->ops->endpoint, &c, parts, counts, out, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}

OrtStatus *tsr__reduce_scatter_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    size_t bytes = (size_t)k->call.n_group * sizeof(int64_t);
    int64_t *counts = tsr__alloc(k->ops->session, bytes);
    OrtStatus *st =
        counts ? reduce_scatter(k, context, &x, counts) : tsr__kernel_error(k, "out of memory");
    tsr__free(k->ops->session, counts, bytes);
    return st;
}

// ---- Reduce ------------------------------------------------------------------------------------

OrtStatus *tsr__reduce_create(struct kernel *k, const OrtKernelInfo *info)
{
    TRY(tsr__all_reduce_create(k, info));
    return read_member(k, info, "root", &k->root);
}

static OrtStatus *empty_output(struct kernel *k, OrtKernelContext *context)
{
    int64_t none = 0;
    void *out;
    return tsr__kernel_output(k, context, 0, &none, 1, &out);
}

OrtStatus *tsr__reduce_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    void *out = NULL;
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    if (k->root == k->ops->endpoint->rank)
        TRY(tsr__kernel_output(k, context, 0, x.dims, x.rank, &out));
    else
        TRY(empty_output(k, context));
    struct comm_call c = k->call;
    struct comm_trouble why;
    c.count = x.elements;
    if (tsr__comm_reduce(k->ops->endpoint, &c, (int)k->root, x.data, out, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}

// ---- AllToAll ----------------------------------------------------------------------------------

// One call: axis `split` is whole and becomes cut, axis `concat` is cut and becomes whole.
struct turn {
    struct kernel *k;
    OrtKernelContext *context;
    const struct tensor_view *x;
    struct along split, concat; // of x
    int64_t dims[OPS_MAX_RANK]; // of the result
    struct comm_buffer *send, *recv;
    char *out;
    OrtStatus *status;
};

enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS };

OrtStatus *tsr__all_to_all_create(struct kernel *k, const OrtKernelInfo *info)
{
    TRY(read_axis(k, info, "split_axis", &k->split_axis));
    TRY(read_axis(k, info, "axis", &k->axis));
    return read_int(k, info, "unit", 1, INT64_MAX, &k->unit);
}

static int64_t hash_others(const struct tensor_view *x, int axis)
{
    int64_t dims[OPS_MAX_RANK];
    memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
    dims[axis] = 0;
    return (int64_t)tsr__hash64(dims, (size_t)x->rank * sizeof *dims, 0);
}

static tsr_status refuse(const struct kernel *k, struct comm_trouble *why, int rank,
                         const char *what)
{
    why->status = TSR_PEER;
    why->rank = rank;
    snprintf(why->text, sizeof why->text, "%s '%s' (id %lld): rank %d %s", k->kind->plain,
             k->call.node, (long long)k->call.id, rank, what);
    return TSR_PEER;
}

// All are there: their lengths give the shape.
static tsr_status turn_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                               struct comm_trouble *why)
{
    struct turn *t = data;
    struct kernel *k = t->k;
    int self = k->self, me = k->ops->endpoint->rank;
    int64_t total = 0, others = (int64_t)tsr__elem_bytes(k->call.type);
    for (int i = 0; i < k->call.n_group; i++)
        if (notes[i][NOTE_RANK] != notes[self][NOTE_RANK] ||
            notes[i][NOTE_OTHERS] != notes[self][NOTE_OTHERS] || notes[i][NOTE_LENGTH] < 0 ||
            !add_ok(total, notes[i][NOTE_LENGTH], &total))
            return refuse(k, why, (int)k->call.group[i], "brings a piece of another shape");
    t->dims[t->concat.axis] = total;
    for (int d = 0; d < t->x->rank; d++)
        if (d != t->concat.axis && !mul_ok(others, t->dims[d], &others))
            return refuse(k, why, me, "would get a piece that is too large");
    void *out;
    int64_t bytes;
    if (!mul_ok(others, total, &bytes))
        return refuse(k, why, me, "would get a piece that is too large");
    t->status = tsr__kernel_output(k, t->context, 0, t->dims, t->x->rank, &out);
    if (t->status)
        return refuse(k, why, me, "cannot make the output");
    t->out = out;
    char *at;
    t->status = tsr__kernel_scratch(k, 1, (size_t)bytes, &at);
    if (t->status)
        return refuse(k, why, me, "is out of memory");
    for (int i = 0; i < k->call.n_group; i++) {
        t->recv[i] = (struct comm_buffer){.p = at, .bytes = (size_t)(others * notes[i][0])};
        at += t->recv[i].bytes;
    }
    return TSR_OK;
}

// Blocks that arrived stand side by side along the axis that becomes whole.
static OrtStatus *weave(const struct turn *t)
{
    size_t outer = 1, inner = tsr__elem_bytes(t->k->call.type), before = 0;
    for (int d = 0; d < t->concat.axis; d++)
        outer *= (size_t)t->dims[d];
    for (int d = t->concat.axis + 1; d < t->x->rank; d++)
        inner *= (size_t)t->dims[d];
    size_t row = (size_t)t->dims[t->concat.axis] * inner;
    for (int i = 0; i < t->k->call.n_group; i++) {
        size_t width = outer ? t->recv[i].bytes / outer : 0;
        struct device_rows r = {.to = t->out + before,
                                .from = t->recv[i].p,
                                .to_pitch = row,
                                .from_pitch = width,
                                .width = width,
                                .rows = outer};
        TRY(tsr__kernel_rows(t->k, &r));
        before += width;
    }
    return NULL;
}

static OrtStatus *pack_parts(struct turn *t)
{
    struct kernel *k = t->k;
    const struct along *a = &t->split;
    char *at;
    TRY(tsr__kernel_scratch(k, 0, a->outer * (size_t)a->length * a->inner, &at));
    for (int j = 0; j < k->call.n_group; j++) {
        int64_t from = start_of(a->length, k->unit, k->call.n_group, j);
        int64_t to = start_of(a->length, k->unit, k->call.n_group, j + 1);
        TRY(copy_part(k, a, t->x->data, from, to, at));
        t->send[j] =
            (struct comm_buffer){.p = at, .bytes = a->outer * (size_t)(to - from) * a->inner};
        at += t->send[j].bytes;
    }
    return NULL;
}

static OrtStatus *all_to_all(struct turn *t)
{
    struct kernel *k = t->k;
    int n = k->call.n_group;
    TRY(look_along(k, t->x, k->split_axis, &t->split));
    TRY(look_along(k, t->x, k->axis, &t->concat));
    if (t->split.axis == t->concat.axis)
        return tsr__kernel_error(k, "both axes are %d", t->split.axis);
    TRY(check_parts(k, &t->split));
    memcpy(t->dims, t->x->dims, (size_t)t->x->rank * sizeof *t->dims);
    t->dims[t->split.axis] = start_of(t->split.length, k->unit, n, k->self + 1) -
                             start_of(t->split.length, k->unit, n, k->self);
    TRY(pack_parts(t));
    struct comm_exchange e = {.send = t->send, .recv = t->recv, .arrived = turn_arrived, .data = t};
    e.notes[NOTE_LENGTH] = t->concat.length;
    e.notes[NOTE_RANK] = t->x->rank;
    e.notes[NOTE_OTHERS] = hash_others(t->x, t->concat.axis);
    struct comm_trouble why;
    if (tsr__comm_exchange(k->ops->endpoint, &k->call, &e, &why) != TSR_OK)
        return t->status ? t->status : tsr__kernel_trouble(k, &why);
    TRY(weave(t));
    return tsr__pass_token(k, t->context);
}

OrtStatus *tsr__all_to_all_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    struct arena a; // of this call
    tsr__arena_init(&a, k->ops->session);
    size_t n = (size_t)k->call.n_group;
    struct turn t = {.k = k, .context = context, .x = &x};
    t.send = ARENA_ARRAY(&a, struct comm_buffer, n);
    t.recv = ARENA_ARRAY(&a, struct comm_buffer, n);
    OrtStatus *st = a.failed ? tsr__kernel_error(k, "out of memory") : all_to_all(&t);
    tsr__arena_free(&a);
    return st;
}

// ---- Broadcast, Send, Recv ---------------------------------------------------------------------

static OrtStatus *note_shape(struct kernel *k, const struct tensor_view *x, int64_t *notes)
{
    if (x->rank > NOTED_RANK)
        return tsr__kernel_error(k, "a tensor of rank %d, at most %d", x->rank, NOTED_RANK);
    notes[0] = x->rank;
    memcpy(notes + 1, x->dims, (size_t)x->rank * sizeof *x->dims);
    return NULL;
}

// A result whose shape arrived.
struct arrival {
    struct kernel *k;
    OrtKernelContext *context;
    struct comm_buffer *recv; // of a broadcast
    int root;                 // its place in the group
    OrtStatus *status;
};

static tsr_status make_arrived(struct arrival *a, const int64_t *notes, struct comm_buffer *into,
                               struct comm_trouble *why)
{
    struct kernel *k = a->k;
    int me = k->ops->endpoint->rank;
    int64_t bytes = (int64_t)tsr__elem_bytes(k->call.type);
    bool fits = notes[0] >= 0 && notes[0] <= NOTED_RANK;
    for (int64_t d = 0; fits && d < notes[0]; d++)
        fits = notes[1 + d] >= 0 && mul_ok(bytes, notes[1 + d], &bytes);
    if (!fits)
        return refuse(k, why, me, "is sent a shape that no tensor has");
    a->status = tsr__kernel_output(k, a->context, 0, notes + 1, (int)notes[0], &into->p);
    into->bytes = (size_t)bytes;
    return a->status ? refuse(k, why, me, "cannot make the output") : TSR_OK;
}

static tsr_status broadcast_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                    struct comm_trouble *why)
{
    struct arrival *a = data;
    if (a->root == a->k->self)
        return TSR_OK;
    return make_arrived(a, notes[a->root], &a->recv[a->root], why);
}

OrtStatus *tsr__broadcast_create(struct kernel *k, const OrtKernelInfo *info)
{
    return read_member(k, info, "root", &k->root);
}

static OrtStatus *broadcast(struct kernel *k, OrtKernelContext *context,
                            const struct tensor_view *x, struct comm_buffer *send,
                            struct comm_buffer *recv)
{
    struct arrival a = {.k = k, .context = context, .recv = recv};
    while (k->call.group[a.root] != k->root)
        a.root++;
    struct comm_exchange e = {.send = send, .recv = recv, .arrived = broadcast_arrived, .data = &a};
    size_t bytes = (size_t)x->elements * tsr__elem_bytes(x->type);
    if (a.root == k->self) {
        void *out;
        TRY(note_shape(k, x, e.notes));
        TRY(tsr__kernel_output(k, context, 0, x->dims, x->rank, &out));
        struct device_rows r = {.to = out, .from = x->data, .width = bytes, .rows = 1};
        TRY(tsr__kernel_rows(k, &r));
        for (int i = 0; i < k->call.n_group; i++)
            if (i != a.root)
                send[i] = (struct comm_buffer){.p = (void *)x->data, .bytes = bytes};
    }
    struct comm_trouble why;
    if (tsr__comm_exchange(k->ops->endpoint, &k->call, &e, &why) != TSR_OK)
        return a.status ? a.status : tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}

OrtStatus *tsr__broadcast_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    struct arena a; // of this call
    tsr__arena_init(&a, k->ops->session);
    struct comm_buffer *send = ARENA_ARRAY(&a, struct comm_buffer, (size_t)k->call.n_group);
    struct comm_buffer *recv = ARENA_ARRAY(&a, struct comm_buffer, (size_t)k->call.n_group);
    OrtStatus *st =
        a.failed ? tsr__kernel_error(k, "out of memory") : broadcast(k, context, &x, send, recv);
    tsr__arena_free(&a);
    return st;
}

// Both sides say who sends and who gets.
OrtStatus *tsr__send_create(struct kernel *k, const OrtKernelInfo *info)
{
    TRY(read_member(k, info, "from", &k->root));
    TRY(read_member(k, info, "to", &k->to));
    if (k->call.n_group != 2 || k->root == k->to)
        return tsr__kernel_error(k, "a message goes from one rank to another");
    return NULL;
}

static OrtStatus *wrong_side(struct kernel *k)
{
    return tsr__kernel_error(k, "goes from rank %lld to rank %lld, and this is rank %d",
                             (long long)k->root, (long long)k->to, k->ops->endpoint->rank);
}

OrtStatus *tsr__send_compute(struct kernel *k, OrtKernelContext *context)
{
    struct tensor_view x;
    int64_t notes[COMM_NOTES] = {0};
    if (k->root != k->ops->endpoint->rank)
        return wrong_side(k);
    TRY(tsr__kernel_input(k, context, 0, k->call.type, &x));
    TRY(note_shape(k, &x, notes));
    TRY(empty_output(k, context));
    struct comm_trouble why;
    size_t bytes = (size_t)x.elements * tsr__elem_bytes(x.type);
    if (tsr__comm_send(k->ops->endpoint, &k->call, (int)k->to, x.data, bytes, notes, &why) !=
        TSR_OK)
        return tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}

static tsr_status recv_arrived(void *data, const int64_t *notes, struct comm_buffer *into,
                               struct comm_trouble *why)
{
    return make_arrived(data, notes, into, why);
}

OrtStatus *tsr__recv_compute(struct kernel *k, OrtKernelContext *context)
{
    struct arrival a = {.k = k, .context = context};
    struct comm_incoming in = {.arrived = recv_arrived, .data = &a};
    struct comm_trouble why;
    if (k->to != k->ops->endpoint->rank)
        return wrong_side(k);
    if (tsr__comm_recv(k->ops->endpoint, &k->call, (int)k->root, &in, &why) != TSR_OK)
        return a.status ? a.status : tsr__kernel_trouble(k, &why);
    return tsr__pass_token(k, context);
}
