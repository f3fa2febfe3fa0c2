// SPDX-License-Identifier: Apache-2.0
// text.c - texts that travel. A tensor of texts has no bytes that could be sent as they lie: its elements go as their
// lengths, then their characters. AllGather sends both in one message; Reshard (in reshard.c) moves the lengths first, by the
// same intersections as any number, and then what they say.
#include "ops/internal.h"

#include <stdio.h>

OrtStatus *tsr__texts_read(struct kernel *k, OrtKernelContext *context, struct arena *a,
                           struct tensor_view *x, struct texts *out)
{
    const OrtValue *value = NULL;
    size_t bytes = 0;
    TRY(tsr__kernel_input(k, context, 0, TSR_STRING, x));
    TRY(k->api->KernelContext_GetInput(context, 0, &value));
    TRY(k->api->GetStringTensorDataLength(value, &bytes));
    size_t n = (size_t)x->elements;
    char *chars = arena_get(a, bytes + 1, 1);
    size_t *starts = ARENA_ARRAY(a, size_t, n + 1);
    out->lengths = ARENA_ARRAY(a, int64_t, n + 1);
    out->at = ARENA_ARRAY(a, char *, n + 1);
    if (a->failed)
        return tsr__kernel_error(k, "out of memory");
    if (n)
        TRY(k->api->GetStringTensorContent(value, chars, bytes, starts, n));
    for (size_t i = 0; i < n; i++) {
        out->at[i] = chars + starts[i];
        out->lengths[i] = (int64_t)((i + 1 < n ? starts[i + 1] : bytes) - starts[i]);
    }
    out->bytes = bytes;
    return NULL;
}

OrtStatus *tsr__texts_write(struct kernel *k, OrtKernelContext *context, const int64_t *dims,
                            int rank, const struct texts *t)
{
    OrtValue *value = NULL;
    int64_t n = 1;
    TRY(k->api->KernelContext_GetOutput(context, 0, dims, (size_t)rank, &value));
    for (int d = 0; d < rank; d++)
        n *= dims[d];
    for (int64_t i = 0; i < n; i++) {
        char *to = NULL;
        size_t length = (size_t)t->lengths[i];
        TRY(k->api->GetResizedStringTensorElementBuffer(value, (size_t)i, length, &to));
        if (length)
            memcpy(to, t->at[i], length);
    }
    return NULL;
}

bool tsr__texts_total(const int64_t *lengths, int64_t n, size_t *out)
{
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++)
        if (lengths[i] < 0 || !add_ok(total, lengths[i], &total))
            return false;
    *out = (size_t)total;
    return total < INT64_MAX / 2;
}

void tsr__texts_place(const int64_t *lengths, int64_t n, char *chars, char **at)
{
    for (int64_t i = 0; i < n; i++) {
        at[i] = chars;
        chars += lengths[i];
    }
}

// ---- AllGather ---------------------------------------------------------------------------------

enum { NOTE_LENGTH, NOTE_RANK, NOTE_OTHERS, NOTE_BYTES };

struct gather {
    struct kernel *k;
    struct arena *arena;
    struct comm_buffer *recv;
    int64_t *count; // elements of each member
    int64_t total;  // along the axis
    int64_t outer, inner;
};

// The message of each member: a length of 8 bytes for each element, then the characters.
static tsr_status texts_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                struct comm_trouble *why)
{
    struct gather *g = data;
    const int64_t *mine = notes[g->k->self];
    for (int i = 0; i < g->k->call.n_group; i++) {
        int rank = (int)g->k->call.group[i];
        int64_t bytes;
        if (notes[i][NOTE_RANK] != mine[NOTE_RANK] || notes[i][NOTE_OTHERS] != mine[NOTE_OTHERS])
            return tsr__gather_refuse(g->k, why, rank, "brings a piece of another shape");
        if (notes[i][NOTE_LENGTH] < 0 || notes[i][NOTE_BYTES] < 0 ||
            !mul_ok(notes[i][NOTE_LENGTH], g->outer * g->inner, &g->count[i]) ||
            !mul_ok(g->count[i], (int64_t)sizeof(int64_t), &bytes) ||
            !add_ok(bytes, notes[i][NOTE_BYTES], &bytes) ||
            !add_ok(g->total, notes[i][NOTE_LENGTH], &g->total) || bytes > INT64_MAX / 4)
            return tsr__gather_refuse(g->k, why, rank, "brings a piece that is too large");
        g->recv[i].bytes = (size_t)bytes;
        g->recv[i].p = arena_get(g->arena, (size_t)bytes + 1, 8);
    }
    return g->arena->failed
               ? tsr__gather_refuse(g->k, why, g->k->ops->endpoint->rank, "is out of memory")
               : TSR_OK;
}

// Puts the elements of all members in the order of the whole.
static OrtStatus *weave(struct gather *g, struct texts *out)
{
    int64_t n = 0, before = 0, row = g->total * g->inner;
    for (int i = 0; i < g->k->call.n_group; i++)
        n += g->count[i];
    out->lengths = ARENA_ARRAY(g->arena, int64_t, (size_t)n + 1);
    out->at = ARENA_ARRAY(g->arena, char *, (size_t)n + 1);
    if (g->arena->failed)
        return tsr__kernel_error(g->k, "out of memory");
    for (int i = 0; i < g->k->call.n_group; i++) {
        const int64_t *lengths = g->recv[i].p;
        int64_t count = g->count[i], width = g->outer ? count / g->outer : 0;
        size_t head = (size_t)count * sizeof(int64_t), total = 0;
        char **at = ARENA_ARRAY(g->arena, char *, (size_t)count + 1);
        if (!at)
            return tsr__kernel_error(g->k, "out of memory");
        if (!tsr__texts_total(lengths, count, &total) || head + total != g->recv[i].bytes)
            return tsr__kernel_error(g->k, "rank %lld sent lengths that do not fit its texts",
                                     (long long)g->k->call.group[i]);
        tsr__texts_place(lengths, count, (char *)g->recv[i].p + head, at);
        for (int64_t o = 0; o < g->outer && width; o++) {
            memcpy(out->lengths + o * row + before, lengths + o * width,
                   (size_t)width * sizeof *lengths);
            memcpy(out->at + o * row + before, at + o * width, (size_t)width * sizeof *at);
        }
        before += width;
    }
    return NULL;
}

static char *message_of(struct arena *a, const struct texts *t, int64_t n, size_t *bytes)
{
    size_t head = (size_t)n * sizeof(int64_t);
    char *message = arena_get(a, head + t->bytes + 1, 8), *to = message + head;
    *bytes = head + t->bytes;
    if (!message)
        return NULL;
    memcpy(message, t->lengths, head);
    for (int64_t i = 0; i < n; i++) {
        memcpy(to, t->at[i], (size_t)t->lengths[i]);
        to += t->lengths[i];
    }
    return message;
}

static OrtStatus *gather_texts(struct kernel *k, OrtKernelContext *context, struct arena *a)
{
    struct tensor_view x;
    struct texts t, all;
    TRY(tsr__texts_read(k, context, a, &x, &t));
    int64_t axis = k->axis < 0 ? k->axis + x.rank : k->axis, others[OPS_MAX_RANK];
    if (axis < 0 || axis >= x.rank)
        return tsr__kernel_error(k, "axis %lld of a tensor of rank %d", (long long)k->axis, x.rank);
    size_t n = (size_t)k->call.n_group, bytes = 0;
    struct gather g = {.k = k, .arena = a, .outer = 1, .inner = 1};
    for (int d = 0; d < x.rank; d++)
        *(d < axis ? &g.outer : &g.inner) *= d == axis ? 1 : x.dims[d];
    struct comm_buffer *send = ARENA_ARRAY(a, struct comm_buffer, n);
    g.recv = ARENA_ARRAY(a, struct comm_buffer, n);
    g.count = ARENA_ARRAY(a, int64_t, n);
    char *message = message_of(a, &t, x.elements, &bytes);
    if (a->failed)
        return tsr__kernel_error(k, "out of memory");
    for (size_t i = 0; i < n; i++)
        send[i] = (struct comm_buffer){.p = message, .bytes = bytes};
    memcpy(others, x.dims, sizeof others);
    others[axis] = 0;
    struct comm_exchange e = {.send = send, .recv = g.recv, .arrived = texts_arrived, .data = &g};
    e.notes[NOTE_LENGTH] = x.dims[axis];
    e.notes[NOTE_RANK] = x.rank;
    e.notes[NOTE_OTHERS] = (int64_t)tsr__hash64(others, (size_t)x.rank * sizeof *others, 0);
    e.notes[NOTE_BYTES] = (int64_t)t.bytes;
    struct comm_trouble why;
    if (tsr__comm_exchange(k->ops->endpoint, &k->call, &e, &why) != TSR_OK)
        return tsr__kernel_trouble(k, &why);
    TRY(weave(&g, &all));
    x.dims[axis] = g.total;
    TRY(tsr__texts_write(k, context, x.dims, x.rank, &all));
    return tsr__pass_token(k, context);
}

OrtStatus *tsr__texts_gather(struct kernel *k, OrtKernelContext *context)
{
    struct arena a;
    tsr__arena_init(&a, k->ops->session);
    OrtStatus *st = gather_texts(k, context, &a);
    tsr__arena_free(&a);
    return st;
}
