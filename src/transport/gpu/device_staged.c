// SPDX-License-Identifier: Apache-2.0
// device_staged.c - all-reduce through pinned host memory between ranks of one process; the GPUs do
// the additions (algorithm pinned_sums of COPIES_ALGORITHMS).
//
// It is for GPUs without peer access, such as GeForce cards, on machines without NCCL, which ONNX
// Runtime's packages do not bring. There it is the default for large sums: 64 MiB take 3.1 ms, of
// which copies take 2.6 (docs/measured.md), so the additions are almost free.
//
// GPUs without peer access can all access pinned memory. Each member folds its slice of the tensor.
// It copies the others' parts of that slice from their pinned memory, adds them in group order on
// its GPU, and writes the sum to its own pinned memory. The CPUs add nothing; the ranks' threads
// synchronize three times to announce recorded events, and streams wait for these events.
//
// Example: ranks 0 and 1 add 64 MiB. Each copies the half that the other folds (32 MiB) to host
// memory, the other's data for its own half to the GPU, its sums to host memory, and the other's
// sums to the GPU. This is done in PIECES overlapping pieces: while piece 1 is copied down, piece 0
// is copied up. `down` is the stream of the call, `up` the second stream of the seat
// (tsr__seat_upwards), so that both directions of the link are busy. Rank 0's pinned memory in a
// round:
//
//     [ sums of slice 0 | rank 0's part of slice 1 ]
#include "transport/gpu/device.h"

#define ROUND_BYTES ((size_t)64 << 20) // bytes of a tensor per round, and size of the pinned memory
#define PIECES      8
#define SCRATCH     2 // block of the GPU context's memory for received data

enum { STEP_SENT = 8, STEP_SUMS = 9 };
// First step number (tsr__seat_step) of each kind of work: parts copied to host memory, pieces
// folded, sums copied to host memory, and the end. device_host.c may use the same numbers, because
// it serves other calls.
enum { SENT = 0, FOLDED = PIECES, SUMS = 2 * PIECES, LAST = 3 * PIECES };

// One round: elements [at, at + count) of the tensor. Member i folds slice i of them.
struct staged {
    const struct device_call *call;
    int64_t at, count;
    const char *in;
    char *out, *pinned, *incoming;
    uint64_t theirs[GPU_MAX_MEMBERS]; // pinned memory of the members
    void *down, *up;
};

// Offset from the start of the round, and length of a piece.
struct extent {
    size_t at, bytes;
    int64_t count;
};

static struct extent extent_of(const struct staged *staged, int member, int piece)
{
    const struct comm_call *call = staged->call->call;
    size_t unit = tsr__elem_bytes(call->type);
    int64_t first, length, begin, count;
    tsr__slice(staged->count, unit, call->n_group, member, &first, &length);
    tsr__slice(length, unit, PIECES, piece, &begin, &count);
    return (struct extent){(size_t)(first + begin) * unit, (size_t)count * unit, count};
}

static struct gpu_seat *seat_of(const struct staged *staged, int member)
{
    const struct device *device = staged->call->device;
    uint64_t address = device->ranks[staged->call->call->group[member]].address;
    return ((const struct device *)(uintptr_t)address)->seat;
}

// Copies to host memory those parts of this rank's tensor that other members fold.
static int send_down(const struct staged *staged)
{
    const struct device_call *call = staged->call;
    struct gpu_seat *seat = call->device->seat;
    for (int piece = 0; piece < PIECES; piece++) {
        for (int i = 0; i < call->call->n_group; i++) {
            struct extent part = extent_of(staged, i, piece);
            if (i == call->self)
                continue;
            int code = tsr__seat_down(seat, staged->pinned + part.at, staged->in + part.at,
                                      part.bytes, staged->down);
            if (code != 0)
                return code;
        }
        int code = tsr__seat_step(seat, SENT + piece, staged->down);
        if (code != 0)
            return code;
    }
    return 0;
}

// Handles one piece of this rank's slice: copies the other members' data for it to the GPU, and
// folds the data of all members in group order.
static int fold_piece(const struct staged *staged, int piece)
{
    const struct device_call *call = staged->call;
    struct gpu_seat *seat = call->device->seat;
    struct extent part = extent_of(staged, call->self, piece);
    struct extent first = extent_of(staged, call->self, 0);
    size_t slice = first.bytes * (PIECES + 1); // space per member: pieces differ by 256 bytes
    struct gpu_fold fold = gpu_fold_of(call->call, 1, part.count);
    fold.out[0] = staged->out + part.at;
    for (int i = 0; i < call->call->n_group; i++) {
        fold.in[i] = staged->in + part.at;
        if (i == call->self)
            continue;
        char *to = staged->incoming + (size_t)i * slice + (part.at - first.at);
        const char *from = (const char *)(uintptr_t)staged->theirs[i] + part.at;
        fold.in[i] = to;
        int code = tsr__seat_await(seat, tsr__seat_step_event(seat_of(staged, i), SENT + piece),
                                   staged->up);
        if (code == 0)
            code = tsr__seat_up(seat, to, from, part.bytes, staged->up);
        if (code != 0)
            return code;
    }
    if (part.count == 0)
        return 0;
    return tsr__seat_fold(seat, &fold, staged->up);
}

// Folds this rank's slice, piece by piece, and copies each piece of sums to host memory after its
// fold.
static int fold_and_send(const struct staged *staged)
{
    const struct device_call *call = staged->call;
    struct gpu_seat *seat = call->device->seat;
    int code = tsr__seat_await(seat, tsr__seat_event(seat, EVENT_READY), staged->up);
    for (int piece = 0; piece < PIECES; piece++) {
        struct extent part = extent_of(staged, call->self, piece);
        if (code == 0)
            code = fold_piece(staged, piece);
        if (code == 0)
            code = tsr__seat_step(seat, FOLDED + piece, staged->up);
        if (code == 0)
            code = tsr__seat_step_await(seat, FOLDED + piece, staged->down);
        if (code == 0)
            code = tsr__seat_down(seat, staged->pinned + part.at, staged->out + part.at, part.bytes,
                                  staged->down);
        if (code == 0)
            code = tsr__seat_step(seat, SUMS + piece, staged->down);
    }
    return code;
}

// Copies the others' sums to the GPU and makes the stream of the call wait for these copies.
static int take_sums(const struct staged *staged)
{
    const struct device_call *call = staged->call;
    struct gpu_seat *seat = call->device->seat;
    for (int piece = 0; piece < PIECES; piece++)
        for (int i = 0; i < call->call->n_group; i++) {
            struct extent part = extent_of(staged, i, piece);
            const char *from = (const char *)(uintptr_t)staged->theirs[i] + part.at;
            if (i == call->self)
                continue;
            void *sums = tsr__seat_step_event(seat_of(staged, i), SUMS + piece);
            int code = tsr__seat_await(seat, sums, staged->up);
            if (code == 0)
                code = tsr__seat_up(seat, staged->out + part.at, from, part.bytes, staged->up);
            if (code != 0)
                return code;
        }
    int code = tsr__seat_step(seat, LAST, staged->up);
    if (code != 0)
        return code;
    return tsr__seat_step_await(seat, LAST, staged->down);
}

// Enqueues work that accesses other ranks' memory. Does nothing if one of them has left; the next
// step reports that.
static tsr_status touching(const struct staged *staged, int (*work)(const struct staged *))
{
    int code = 0;
    if (tsr__device_touch(staged->call))
        code = work(staged);
    tsr__device_touched(staged->call);
    return tsr__device_code(staged->call, code, "copying through the host");
}

// Allocates the memory of a round. This comes first, while no rank waits for this one on a GPU.
static int have_memory(struct staged *staged)
{
    const struct device_call *call = staged->call;
    struct gpu_seat *seat = call->device->seat;
    struct extent first = extent_of(staged, call->self, 0);
    size_t incoming = (size_t)call->call->n_group * first.bytes * (PIECES + 1) + 1;
    size_t bytes = (size_t)staged->count * tsr__elem_bytes(call->call->type);
    void *pinned = NULL, *at = NULL;
    int code = tsr__seat_pinned(seat, bytes, staged->down, &pinned);
    if (code == 0)
        code = tsr__seat_scratch(seat, SCRATCH, incoming, staged->up, &at);
    staged->pinned = pinned;
    staged->incoming = at;
    return code;
}

// Reduces one round with three barriers of the members' threads. After the first, all downloads are
// enqueued, so each GPU may wait for those of the others and fold its slice. After the second, all
// sums are enqueued, so each GPU may wait for those of the others. The third ends the round
// (tsr__own_finish). Memory is allocated before the first.
static tsr_status reduce_round(struct staged *staged, uint64_t round)
{
    const struct device_call *call = staged->call;
    uint64_t ignored[GPU_MAX_MEMBERS];
    int code = have_memory(staged);
    if (code == 0)
        code = send_down(staged);
    TRY(tsr__device_code(call, code, "copying to the host"));
    TRY(tsr__device_words(call, STEP_SENT + 2 * round, (uint64_t)(uintptr_t)staged->pinned,
                          staged->theirs));
    TRY(touching(staged, fold_and_send));
    TRY(tsr__device_words(call, STEP_SUMS + 2 * round, 0, ignored));
    TRY(touching(staged, take_sums));
    return tsr__own_finish(call, true);
}

tsr_status tsr__staged_all_reduce(const struct device_call *call)
{
    size_t unit = tsr__elem_bytes(call->call->type);
    int64_t most = (int64_t)(ROUND_BYTES / unit);
    tsr_status st = TSR_OK;
    struct staged staged = {
        .call = call, .down = call->call->stream, .up = tsr__seat_upwards(call->device->seat)};
    for (uint64_t round = 0; staged.at < call->call->count; round++) {
        int64_t left = call->call->count - staged.at;
        staged.count = left < most ? left : most;
        staged.in = (const char *)call->in + (size_t)staged.at * unit;
        staged.out = (char *)call->out + (size_t)staged.at * unit;
        st = reduce_round(&staged, round);
        if (st != TSR_OK)
            break;
        staged.at += staged.count;
    }
    return tsr__device_leave(call, st);
}
