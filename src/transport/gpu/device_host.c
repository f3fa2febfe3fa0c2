// SPDX-License-Identifier: Apache-2.0
// device_host.c - collectives through host memory, for groups whose GPUs cannot access all buffers.
// The base endpoint (device->base) transfers between the host memories of the ranks.
//
// Data is copied in chunks through pinned memory. In an all-reduce three chunks are in flight: one
// is copied from the GPU, one is reduced, one is copied back. Members without a GPU use their
// memory directly. All members make the same calls of the base endpoint, because the number of
// chunks depends only on sizes that all members know.
//
// Example: 5 MiB of float32 are chunks of 2, 2 and 1 MiB in slots 0, 1, 2 of the pinned memory.
// While the CPU reduces chunk 0, chunk 1 is copied down; chunk 0 is copied up while chunk 1 is
// reduced. Chunk 3 would reuse slot 0 after it was copied up.
#include "transport/gpu/device.h"

#define CHUNK_BYTES ((size_t)2 << 20)
#define IN_FLIGHT   3

enum { STEP_CHUNK = 16 }; // and the steps after it

// The chunks of a tensor. each: elements per chunk (the last may have fewer); all: elements of the
// tensor; n: number of chunks.
struct chunks {
    int64_t each, all, n;
};

static struct chunks chunks_of(const struct comm_call *call)
{
    struct chunks s = {.each = (int64_t)(CHUNK_BYTES / tsr__elem_bytes(call->type)),
                       .all = call->count};
    s.n = s.all / s.each + (s.all % s.each != 0);
    return s;
}

static int64_t length_of(const struct chunks *chunks, int64_t i)
{
    int64_t left = chunks->all - i * chunks->each;
    return left < chunks->each ? left : chunks->each;
}

// Reduces one chunk over the base endpoint, which waits for the other members. Each chunk has its
// own step in the call's `detail`.
static tsr_status reduce_below(const struct device_call *call, int64_t i, int64_t count,
                               const void *in, void *out)
{
    struct comm_call comm_call = tsr__device_step(call->call, (uint64_t)(STEP_CHUNK + i));
    comm_call.count = count;
    return call->device->base->transport->all_reduce(call->device->base, &comm_call, in, out,
                                                     call->why);
}

// Starts the copy of a chunk from the GPU.
static int bring_down(const struct device_call *call, const struct chunks *chunks, int64_t i,
                      const char *in, char *pinned)
{
    size_t unit = tsr__elem_bytes(call->call->type), at = (size_t)(i * chunks->each) * unit;
    int place = (int)(i % IN_FLIGHT);
    int code = 0;
    if (i >= IN_FLIGHT) // the slot's last chunk must have been copied up
        code = tsr__seat_step_wait(call->device->seat, IN_FLIGHT + place);
    if (code == 0)
        code = tsr__seat_down(call->device->seat, pinned + (size_t)place * CHUNK_BYTES, in + at,
                              (size_t)length_of(chunks, i) * unit, call->call->stream);
    if (code == 0)
        return tsr__seat_step(call->device->seat, place, call->call->stream);
    return code;
}

// Starts the copy of a chunk to the GPU, on a separate stream, so that it does not queue behind
// downloads.
static int bring_up(const struct device_call *call, const struct chunks *chunks, int64_t i,
                    char *out, const char *pinned)
{
    size_t unit = tsr__elem_bytes(call->call->type), at = (size_t)(i * chunks->each) * unit;
    int place = (int)(i % IN_FLIGHT);
    void *own = tsr__seat_upwards(call->device->seat);
    int code = tsr__seat_up(call->device->seat, out + at, pinned + (size_t)place * CHUNK_BYTES,
                            (size_t)length_of(chunks, i) * unit, own);
    if (code == 0)
        return tsr__seat_step(call->device->seat, IN_FLIGHT + place, own);
    return code;
}

static tsr_status reduce_chunks(const struct device_call *call, const struct chunks *chunks,
                                const void *in, void *out, char *pinned)
{
    int code = chunks->n ? bring_down(call, chunks, 0, in, pinned) : 0;
    for (int64_t i = 0; i < chunks->n; i++) {
        if (code == 0 && i + 1 < chunks->n)
            code = bring_down(call, chunks, i + 1, in, pinned);
        if (code == 0)
            code = tsr__seat_step_wait(call->device->seat, (int)(i % IN_FLIGHT));
        if (code != 0)
            break;
        char *chunk = pinned + (size_t)(i % IN_FLIGHT) * CHUNK_BYTES;
        TRY(reduce_below(call, i, length_of(chunks, i), chunk, chunk));
        code = bring_up(call, chunks, i, out, pinned);
    }
    if (code == 0 && chunks->n) // the caller's stream continues when everything is copied
        code = tsr__seat_step_await(
            call->device->seat, IN_FLIGHT + (int)((chunks->n - 1) % IN_FLIGHT), call->call->stream);
    return tsr__device_code(call, code, "copying through the host");
}

// Reduces as a member whose tensors are in host memory. It makes the same calls chunk by chunk as
// the others, and the base endpoint reads its memory directly.
static tsr_status reduce_from_host(const struct device_call *call, const struct chunks *chunks,
                                   const char *in, char *out)
{
    size_t unit = tsr__elem_bytes(call->call->type);
    for (int64_t i = 0; i < chunks->n; i++) {
        size_t at = (size_t)(i * chunks->each) * unit;
        TRY(reduce_below(call, i, length_of(chunks, i), in + at, out + at));
    }
    return TSR_OK;
}

tsr_status tsr__host_chunks(const struct device_call *call)
{
    struct chunks s = chunks_of(call->call);
    if (!on_device(call))
        return reduce_from_host(call, &s, call->in, call->out);
    void *pinned = NULL;
    int code = tsr__seat_wait(call->device->seat,
                              tsr__seat_upwards(call->device->seat)); // chunks of the previous call
    if (code == 0)
        code = tsr__seat_pinned(call->device->seat, IN_FLIGHT * CHUNK_BYTES, call->call->stream,
                                &pinned);
    if (code != 0)
        return tsr__device_code(call, code, "host memory");
    return reduce_chunks(call, &s, call->in, call->out, pinned);
}

// ---- exchange -----------------------------------------------------------------------------------

// One round of an exchange: bytes [at, at + CHUNK_BYTES) of every message. send and recv have one
// buffer per member.
struct round {
    size_t at;
    struct comm_buffer *send, *recv;
    char *pinned;
};

// Returns the bytes of a message in this round. A short message has 0 bytes in later rounds.
static size_t left_of(size_t bytes, size_t at)
{
    size_t left = bytes > at ? bytes - at : 0;
    return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

// Returns the part of `buffer` that a round moves: bytes from `at` on, one chunk at most. Parts
// that are folded have a size and no address.
static struct comm_buffer chunk_of(struct comm_buffer buffer, size_t at)
{
    size_t bytes = left_of(buffer.bytes, at);
    if (bytes == 0 || !buffer.p)
        return (struct comm_buffer){NULL, bytes};
    return (struct comm_buffer){(char *)buffer.p + at, bytes};
}

// Sets the buffers of the round. Slots in the pinned memory: n for sent parts, which are copied
// from the GPU, n for received parts, one for a fold. Members whose tensors are in host memory use
// these directly.
static int bring_round_down(const struct device_call *call, const struct comm_exchange *exchange,
                            struct round *round)
{
    int n = call->call->n_group;
    for (int i = 0; i < n; i++) {
        round->send[i] = chunk_of(exchange->send[i], round->at);
        round->recv[i] = chunk_of(exchange->recv[i], round->at);
    }
    if (!on_device(call))
        return 0;
    for (int i = 0; i < n; i++) {
        void *from = round->send[i].p;
        round->send[i].p = round->pinned + (size_t)i * CHUNK_BYTES;
        round->recv[i].p = round->pinned + (size_t)(n + i) * CHUNK_BYTES;
        int code = tsr__seat_down(call->device->seat, round->send[i].p, from, round->send[i].bytes,
                                  call->call->stream);
        if (code != 0)
            return code;
    }
    return tsr__seat_wait(call->device->seat, call->call->stream);
}

static int bring_round_up(const struct device_call *call, const struct comm_exchange *exchange,
                          const struct round *round, void *folded)
{
    if (!on_device(call))
        return 0;
    int code = 0;
    if (folded)
        code = tsr__seat_up(call->device->seat, (char *)exchange->folded + round->at, folded,
                            left_of(exchange->recv[0].bytes, round->at), call->call->stream);
    for (int i = 0; i < call->call->n_group; i++)
        if (!folded && code == 0 && round->recv[i].bytes)
            code = tsr__seat_up(call->device->seat, (char *)exchange->recv[i].p + round->at,
                                round->recv[i].p, round->recv[i].bytes, call->call->stream);
    if (code == 0)
        return tsr__seat_wait(call->device->seat, call->call->stream);
    return code;
}

static tsr_status run_round(const struct device_call *call, struct comm_exchange *exchange,
                            struct round *round, uint64_t number)
{
    struct comm_call comm_call = tsr__device_step(call->call, STEP_CHUNK + number);
    TRY(tsr__device_code(call, bring_round_down(call, exchange, round), "copying to the host"));
    void *folded = NULL; // in the pinned memory, after the slots of all messages
    if (exchange->folded)
        folded = on_device(call) ? round->pinned + 2 * (size_t)call->call->n_group * CHUNK_BYTES
                                 : (char *)exchange->folded + round->at;
    struct comm_exchange below = {.send = round->send, .recv = round->recv, .folded = folded};
    TRY(call->device->base->transport->exchange(call->device->base, &comm_call, &below, call->why));
    return tsr__device_code(call, bring_round_up(call, exchange, round, folded),
                            "copying from the host");
}

tsr_status tsr__host_exchange(const struct device_call *call)
{
    struct device *device = call->device;
    struct comm_exchange *exchange = call->exchange;
    size_t n = (size_t)call->call->n_group;
    uint64_t most = 1; // at least one round, in which all synchronize and check sizes
    TRY(tsr__device_check_sizes(call)); // these are split into chunks
    for (size_t i = 0; i < n; i++)
        most = device->cards[i].most_bytes > most ? device->cards[i].most_bytes : most;
    struct round round = {.send = device->buffers, .recv = device->buffers + device->endpoint.size};
    void *pinned = NULL;
    if (on_device(call)) {
        int code =
            tsr__seat_pinned(device->seat, (2 * n + 1) * CHUNK_BYTES, call->call->stream, &pinned);
        if (code != 0)
            return tsr__device_code(call, code, "host memory");
    }
    round.pinned = pinned;
    for (uint64_t number = 0; number * CHUNK_BYTES < most; number++) {
        round.at = (size_t)number * CHUNK_BYTES;
        TRY(run_round(call, exchange, &round, number));
    }
    return TSR_OK;
}

static tsr_status pinned_sums(const struct device_call *call)
{
    return tsr__staged_all_reduce(call);
}

static tsr_status chunks(const struct device_call *call)
{
    return tsr__host_chunks(call);
}

tsr_status tsr__host_run(const struct device_call *call)
{
    static tsr_status (*const run[])(const struct device_call *) = {
#define ROW(path, function, name, what, condition) function,
        COPIES_ALGORITHMS(ROW)
#undef ROW
    };
    int place = tsr__device_choose(call);
    return place < 0 ? tsr__host_exchange(call) : run[place](call);
}
