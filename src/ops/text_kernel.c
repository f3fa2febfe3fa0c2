// SPDX-License-Identifier: Apache-2.0
// text_kernel.c - string tensors. Elements are sent as their lengths, then their characters.
// AllGather and Broadcast send both in one message; Reshard (reshard_kernel.c) sends the lengths
// first, like numbers, then the characters.
#include "ops/internal.h"

// Reads a tensor of strings. ONNX Runtime returns all characters and the start of each string: for
// "ab", "", "c" these are abc and 0 2 2.
OrtStatus *tsr__texts_read(struct kernel *kernel, OrtKernelContext *context, struct arena *arena,
                           struct tensor_view *view, struct texts *out)
{
    const OrtValue *value = NULL;
    size_t bytes = 0;
    TRY(tsr__kernel_input(kernel, context, 0, TSR_STRING, view));
    TRY(kernel->api->KernelContext_GetInput(context, 0, &value));
    TRY(kernel->api->GetStringTensorDataLength(value, &bytes));
    size_t n = (size_t)view->elements;
    char *chars = arena_get(arena, bytes + 1, 1);
    size_t *starts = ARENA_ARRAY(arena, size_t, n + 1);
    out->lengths = ARENA_ARRAY(arena, int64_t, n + 1);
    out->at = ARENA_ARRAY(arena, char *, n + 1);
    if (arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    if (n)
        TRY(kernel->api->GetStringTensorContent(value, chars, bytes, starts, n));
    for (size_t i = 0; i < n; i++) {
        out->at[i] = chars + starts[i];
        out->lengths[i] = (int64_t)((i + 1 < n ? starts[i + 1] : bytes) - starts[i]);
    }
    out->bytes = bytes;
    return NULL;
}

// Writes a tensor of strings. The engine allocates and owns each string. The lengths were checked
// when they arrived.
OrtStatus *tsr__texts_write(struct kernel *kernel, OrtKernelContext *context, const int64_t *dims,
                            int rank, const struct texts *texts)
{
    OrtValue *value = NULL;
    int64_t n = 1;
    TRY(kernel->api->KernelContext_GetOutput(context, 0, dims, (size_t)rank, &value));
    for (int axis = 0; axis < rank; axis++)
        n *= dims[axis];
    for (int64_t i = 0; i < n; i++) {
        char *to = NULL;
        size_t length = (size_t)texts->lengths[i];
        TRY(kernel->api->GetResizedStringTensorElementBuffer(value, (size_t)i, length, &to));
        if (length)
            memcpy(to, texts->at[i], length);
    }
    return NULL;
}

// Sums lengths from another rank. Returns false if one is negative or if the sum is too large.
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

// An AllGather of strings. `recv` and `count` have one entry per member.
struct text_gather {
    struct kernel *kernel;
    struct arena *arena;
    struct comm_buffer *recv;
    int64_t *count; // elements of each member
    int64_t total;  // along the axis
    struct along along;
};

// Called when the notes of all members have arrived. Allocates the buffers of incoming messages. A
// message has the length of each string (8 bytes), then the characters.
static tsr_status texts_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                struct comm_trouble *why)
{
    struct text_gather *gather = data;
    const int64_t *mine = notes[gather->kernel->self];
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        int rank = (int)gather->kernel->call.group[i];
        int64_t bytes;
        if (!notes_fit(notes[i], mine))
            return tsr__kernel_refuse(gather->kernel, why, rank,
                                      "has a shard of a different shape");
        if (notes[i][NOTE_LENGTH] < 0 || notes[i][NOTE_BYTES] < 0 ||
            !mul_ok(notes[i][NOTE_LENGTH], (int64_t)(gather->along.outer * gather->along.inner),
                    &gather->count[i]) ||
            !mul_ok(gather->count[i], (int64_t)sizeof(int64_t), &bytes) ||
            !add_ok(bytes, notes[i][NOTE_BYTES], &bytes) ||
            !add_ok(gather->total, notes[i][NOTE_LENGTH], &gather->total) || bytes > INT64_MAX / 4)
            return tsr__kernel_refuse(gather->kernel, why, rank, "has a shard that is too large");
        gather->recv[i].bytes = (size_t)bytes;
        gather->recv[i].p = arena_get(gather->arena, (size_t)bytes + 1, 8);
    }
    if (gather->arena->failed)
        return tsr__kernel_refuse(gather->kernel, why, gather->kernel->ops->endpoint->rank,
                                  "is out of memory");
    return TSR_OK;
}

// Reads a message of n strings. Refuses it if the lengths do not add up to its size.
static OrtStatus *read_message(struct kernel *kernel, struct arena *arena, int member,
                               const struct comm_buffer *message, int64_t n, struct texts *out)
{
    size_t head = (size_t)n * sizeof(int64_t), total = 0;
    out->lengths = message->p;
    out->at = ARENA_ARRAY(arena, char *, (size_t)n + 1);
    if (!out->at)
        return tsr__kernel_error(kernel, "out of memory");
    if (!tsr__texts_total(out->lengths, n, &total) || head + total != message->bytes)
        return tsr__kernel_error(kernel,
                                 "rank %lld sent string lengths that do not match its message",
                                 (long long)kernel->call.group[member]);
    tsr__texts_place(out->lengths, n, (char *)message->p + head, out->at);
    return NULL;
}

// Interleaves the strings of all members row by row.
static OrtStatus *interleave(struct text_gather *gather, struct texts *out)
{
    int64_t n = 0, before = 0, outer = (int64_t)gather->along.outer,
            row = gather->total * (int64_t)gather->along.inner;
    for (int i = 0; i < gather->kernel->call.n_group; i++)
        n += gather->count[i];
    out->lengths = ARENA_ARRAY(gather->arena, int64_t, (size_t)n + 1);
    out->at = ARENA_ARRAY(gather->arena, char *, (size_t)n + 1);
    if (gather->arena->failed)
        return tsr__kernel_error(gather->kernel, "out of memory");
    for (int i = 0; i < gather->kernel->call.n_group; i++) {
        int64_t count = gather->count[i], width = outer ? count / outer : 0;
        struct texts piece;
        TRY(read_message(gather->kernel, gather->arena, i, &gather->recv[i], count, &piece));
        if (width == 0)
            continue;
        for (int64_t o = 0; o < outer; o++) {
            memcpy(out->lengths + o * row + before, piece.lengths + o * width,
                   (size_t)width * sizeof *piece.lengths);
            memcpy(out->at + o * row + before, piece.at + o * width,
                   (size_t)width * sizeof *piece.at);
        }
        before += width;
    }
    return NULL;
}

// Packs strings into a message: {"ab", "c"} is 2 and 1, 8 bytes each, then abc.
static char *message_of(struct arena *arena, const struct texts *texts, int64_t n, size_t *bytes)
{
    size_t head = (size_t)n * sizeof(int64_t);
    char *message = arena_get(arena, head + texts->bytes + 1, 8), *to = message + head;
    *bytes = head + texts->bytes;
    if (!message)
        return NULL;
    memcpy(message, texts->lengths, head);
    for (int64_t i = 0; i < n; i++) {
        memcpy(to, texts->at[i], (size_t)texts->lengths[i]);
        to += texts->lengths[i];
    }
    return message;
}

// Gathers strings. Every member sends its message to all; the notes have the sizes. Rows of all
// members are interleaved: [2,1] and [2,2] along axis 1 give [2,3].
static OrtStatus *gather_texts(struct kernel *kernel, OrtKernelContext *context,
                               struct arena *arena)
{
    struct tensor_view x;
    struct texts texts, all;
    TRY(tsr__texts_read(kernel, context, arena, &x, &texts));
    size_t n = (size_t)kernel->call.n_group, bytes = 0;
    struct text_gather gather = {.kernel = kernel, .arena = arena};
    TRY(tsr__along_axis(kernel, &x, kernel->axis, &gather.along));
    struct comm_buffer *send = ARENA_ARRAY(arena, struct comm_buffer, n);
    gather.recv = ARENA_ARRAY(arena, struct comm_buffer, n);
    gather.count = ARENA_ARRAY(arena, int64_t, n);
    char *message = message_of(arena, &texts, x.elements, &bytes);
    if (arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    for (size_t i = 0; i < n; i++)
        send[i] = (struct comm_buffer){.p = message, .bytes = bytes};
    const struct comm_collective collective = {.in = message};
    struct comm_exchange exchange = {.collective = &collective,
                                     .send = send,
                                     .recv = gather.recv,
                                     .arrived = texts_arrived,
                                     .data = &gather};
    tsr__along_note(&x, &gather.along, exchange.notes);
    exchange.notes[NOTE_BYTES] = (int64_t)texts.bytes;
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    TRY(interleave(&gather, &all));
    x.dims[gather.along.axis] = gather.total;
    TRY(tsr__texts_write(kernel, context, x.dims, x.rank, &all));
    return tsr__pass_token(kernel, context);
}

OrtStatus *tsr__texts_gather(struct kernel *kernel, OrtKernelContext *context)
{
    struct arena arena = {.session = kernel->ops->session};
    OrtStatus *st = gather_texts(kernel, context, &arena);
    tsr__arena_free(&arena);
    return st;
}

// ---- Broadcast ---------------------------------------------------------------------------------

#define NOTED_RANK (COMM_NOTES - 2) // the first note is the rank, the last the message size

// State of a Broadcast of strings. Shape and message come from the root.
struct spread {
    struct kernel *kernel;
    struct arena *arena;
    struct comm_buffer *recv;
    int64_t dims[NOTED_RANK], elements;
    int rank, root; // rank: number of dimensions; root: index in the group
};

// Reads shape and size from the root's notes. Returns false if they are invalid.
static bool read_notes(struct spread *spread, const int64_t *notes, int64_t *bytes)
{
    *bytes = notes[COMM_NOTES - 1];
    spread->elements = 1;
    if (notes[0] < 0 || notes[0] > NOTED_RANK)
        return false;
    spread->rank = (int)notes[0];
    for (int d = 0; d < spread->rank; d++) {
        spread->dims[d] = notes[1 + d];
        if (notes[1 + d] < 0 || !mul_ok(spread->elements, notes[1 + d], &spread->elements))
            return false;
    }
    int64_t head;
    return mul_ok(spread->elements, (int64_t)sizeof(int64_t), &head) && *bytes >= head &&
           *bytes < INT64_MAX / 4;
}

static tsr_status spread_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct spread *spread = data;
    int64_t bytes = 0;
    if (spread->root == spread->kernel->self)
        return TSR_OK;
    int rank = (int)spread->kernel->call.group[spread->root];
    if (!read_notes(spread, notes[spread->root], &bytes))
        return tsr__kernel_refuse(spread->kernel, why, rank, "has an invalid shape");
    struct comm_buffer *into = &spread->recv[spread->root];
    into->p = arena_get(spread->arena, (size_t)bytes + 1, 8);
    into->bytes = (size_t)bytes;
    if (!into->p)
        return tsr__kernel_refuse(spread->kernel, why, rank, "has a message that is too large");
    return TSR_OK;
}

// Packs the strings into the message that the root sends. The shape of the tensor and the size of
// the message are in the notes.
static OrtStatus *fill_message(struct spread *spread, const struct tensor_view *view,
                               const struct texts *texts, struct comm_buffer *send, int64_t *notes)
{
    size_t bytes = 0;
    if (view->rank > NOTED_RANK)
        return tsr__kernel_error(spread->kernel, "the tensor has rank %d; the limit is %d",
                                 view->rank, NOTED_RANK);
    char *message = message_of(spread->arena, texts, view->elements, &bytes);
    if (!message)
        return tsr__kernel_error(spread->kernel, "out of memory");
    notes[0] = spread->rank = view->rank;
    notes[COMM_NOTES - 1] = (int64_t)bytes;
    for (int d = 0; d < view->rank; d++)
        notes[1 + d] = spread->dims[d] = view->dims[d];
    for (int i = 0; i < spread->kernel->call.n_group; i++)
        if (i != spread->root)
            send[i] = (struct comm_buffer){.p = message, .bytes = bytes};
    return NULL;
}

static OrtStatus *spread_texts(struct spread *spread, OrtKernelContext *context)
{
    struct kernel *kernel = spread->kernel;
    size_t n = (size_t)kernel->call.n_group;
    struct tensor_view view;
    struct texts texts;
    struct comm_buffer *send = ARENA_ARRAY(spread->arena, struct comm_buffer, n);
    spread->recv = ARENA_ARRAY(spread->arena, struct comm_buffer, n);
    TRY(tsr__texts_read(kernel, context, spread->arena, &view, &texts));
    if (spread->arena->failed)
        return tsr__kernel_error(kernel, "out of memory");
    while (kernel->call.group[spread->root] != kernel->root)
        spread->root++;
    struct comm_exchange exchange = {
        .send = send, .recv = spread->recv, .arrived = spread_arrived, .data = spread};
    if (spread->root == kernel->self)
        TRY(fill_message(spread, &view, &texts, send, exchange.notes));
    struct comm_trouble why;
    if (tsr__comm_exchange(kernel->ops->endpoint, &kernel->call, &exchange, &why) != TSR_OK)
        return tsr__kernel_trouble(kernel, &why);
    if (spread->root != kernel->self)
        TRY(read_message(kernel, spread->arena, spread->root, &spread->recv[spread->root],
                         spread->elements, &texts));
    TRY(tsr__texts_write(kernel, context, spread->dims, spread->rank, &texts));
    return tsr__pass_token(kernel, context);
}

OrtStatus *tsr__texts_broadcast(struct kernel *kernel, OrtKernelContext *context)
{
    struct arena arena = {.session = kernel->ops->session};
    struct spread spread = {.kernel = kernel, .arena = &arena};
    OrtStatus *st = spread_texts(&spread, context);
    tsr__arena_free(&arena);
    return st;
}
