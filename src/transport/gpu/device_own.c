// SPDX-License-Identifier: Apache-2.0
// device_own.c - GPUs with peer access: the GPU of the rank that needs data copies it, and the
// ranks' threads only exchange addresses and events.
//
// A rank's stream waits for the READY event of every member whose memory it accesses, does its
// work, and records a DONE event. After a second barrier of the ranks' threads, every stream waits
// for the DONE events of the members that accessed its memory, so that later work may reuse it.
// READY is recorded again only in the next call, when all waits for it are enqueued. The wait for
// DONE comes after the last barrier, so calls use the N_DONE events in turn.
//
// An all-reduce on one GPU in one process needs no second barrier. Only the first member accesses
// the memory of others. It announces its DONE event and continues; the others wait for that.
#include "transport/gpu/device.h"

enum { STEP_DONE = 3 };
#define NOT_TOUCHED UINT64_MAX

// Converts an address that a member published to an address of this process. In the same process
// the address is valid as it is. Otherwise the member has exported the block of memory that
// contains it. The block is imported here, once, and the offset in the block is added.
static tsr_status address_of(const struct device_call *call, int member, bool out, void **p)
{
    const struct call_card *card = &call->device->cards[member];
    uint64_t there = out ? card->out : card->in;
    if (same_process(call->device, call->call->group[member])) {
        *p = (void *)(uintptr_t)there;
        return TSR_OK;
    }
    void *block = NULL;
    int code =
        tsr__seat_import(call->device->seat, out ? &card->out_block : &card->in_block, &block);
    if (code != 0)
        return tsr__device_code(call, code, "opening the memory of another process");
    *p = (char *)block + (out ? card->out_offset : card->in_offset);
    return TSR_OK;
}

// Makes this rank's stream wait for an event of a member; the calling thread continues at once.
static tsr_status await_event(const struct device_call *call, int member, int event)
{
    void *const *events = call->device->events[call->call->group[member]];
    return tsr__device_code(call,
                            tsr__seat_await(call->device->seat, events[event], call->call->stream),
                            "waiting for another rank");
}

// Makes this rank's stream wait until all members have computed what they send.
static tsr_status await_all_ready(const struct device_call *call)
{
    for (int i = 0; i < call->call->n_group; i++)
        if (i != call->self)
            TRY(await_event(call, i, EVENT_READY));
    return TSR_OK;
}

// Records the DONE event of this call. Its number is returned in *event.
static tsr_status record_done(const struct device_call *call, uint64_t *event)
{
    struct device *device = call->device;
    *event = EVENT_DONE + device->turn++ % N_DONE;
    return tsr__device_code(call, tsr__seat_record(device->seat, (int)*event, call->call->stream),
                            "an event");
}

// Announces the DONE event after which this rank no longer accesses the others' memory, and makes
// its stream wait for their DONE events.
tsr_status tsr__own_finish(const struct device_call *call, bool touched)
{
    // Groups of this method have at most GPU_MAX_MEMBERS members (choose in device.c).
    uint64_t few[GPU_MAX_MEMBERS], mine = NOT_TOUCHED;
    if (touched)
        TRY(record_done(call, &mine));
    TRY(tsr__device_words(call, STEP_DONE, mine, few));
    for (int i = 0; i < call->call->n_group; i++) {
        if (i == call->self || few[i] >= GPU_EVENTS)
            continue;
        TRY(await_event(call, i, (int)few[i]));
    }
    return TSR_OK;
}

// Announces the DONE event of the first member, or makes this rank's stream wait for it. The first
// member does nothing between the exchange of cards and this call that could block it, so the
// others wait here for a few microseconds.
static tsr_status follow_first(const struct device_call *call)
{
    struct device *device = call->device, *first = tsr__device_neighbour(call, 0);
    const struct endpoint *base = device->base;
    uint64_t turn = device->cards[0].turn, event;
    struct patience patience = {0};
    if (call->self == 0) {
        TRY(record_done(call, &event));
        atomic_store_explicit(&device->announced, device->turn, memory_order_release);
        return TSR_OK;
    }
    while (atomic_load_explicit(&first->announced, memory_order_acquire) <= turn)
        if (tsr__patience(&patience, base->host_ranks > base->host_cores) &&
            tsr__comm_failure(device->base, call->why))
            return call->why->status;
    return await_event(call, 0, (int)(EVENT_DONE + turn % N_DONE));
}

static bool in_one_process(const struct device_call *call)
{
    for (int i = 0; i < call->call->n_group; i++)
        if (i != call->self && !tsr__device_neighbour(call, i))
            return false;
    return true;
}

// Folds elements [first, first + count) of all inputs into all outputs.
static tsr_status fold_slice(const struct device_call *call, const void *in, void *out,
                             int64_t first, int64_t count)
{
    const struct comm_call *comm_call = call->call;
    size_t skip = (size_t)first * tsr__elem_bytes(comm_call->type);
    struct gpu_fold fold = gpu_fold_of(comm_call, comm_call->n_group, count);
    for (int i = 0; i < comm_call->n_group; i++) {
        void *from = (void *)in, *to = out;
        if (i != call->self) {
            TRY(address_of(call, i, false, &from));
            TRY(address_of(call, i, true, &to));
        }
        fold.in[i] = (const char *)from + skip;
        fold.out[i] = (char *)to + skip;
    }
    return tsr__device_code(call, tsr__seat_fold(call->device->seat, &fold, comm_call->stream),
                            "reducing");
}

// Reduces elements [first, first + count) by direct access to the members' memory. *touched is set
// if memory of other ranks is accessed.
static tsr_status reduce_slice(const struct device_call *call, int64_t first, int64_t count,
                               bool *touched)
{
    *touched = count > 0;
    if (count == 0)
        return TSR_OK;
    TRY(await_all_ready(call));
    return fold_slice(call, call->in, call->out, first, count);
}

// Reduces on several GPUs: each folds its slice, so that all links are used. Example: ranks 0 and 1
// add 1000 floats. Rank 0 reads elements 0..511 of both and writes the sums to both; rank 1 does
// the same with 512..999.
static tsr_status slices(const struct device_call *call)
{
    const struct comm_call *comm_call = call->call;
    int64_t first, count;
    bool touched = false;
    tsr_status st = TSR_OK;
    tsr__slice(comm_call->count, tsr__elem_bytes(comm_call->type), comm_call->n_group, call->self,
               &first, &count);
    if (tsr__device_touch(call))
        st = reduce_slice(call, first, count, &touched);
    tsr__device_touched(call);
    if (st == TSR_OK)
        st = tsr__own_finish(call, touched); // reports the cause if a member has failed
    return tsr__device_leave(call, st);
}

// Reduces on one GPU: the first member folds everything.
static tsr_status first_folds(const struct device_call *call)
{
    int64_t count = call->self == 0 ? call->call->count : 0;
    bool touched = false;
    tsr_status st = TSR_OK;
    if (tsr__device_touch(call))
        st = reduce_slice(call, 0, count, &touched);
    tsr__device_touched(call);
    bool follows = call->call->count > 0 && in_one_process(call);
    if (st == TSR_OK && follows && (touched || call->self > 0))
        st = follow_first(call);
    else if (st == TSR_OK)
        st = tsr__own_finish(call, touched);
    return tsr__device_leave(call, st);
}

// Folds the parts of all members. Every member reads the others' parts in place and folds them in
// group order, after await_all_ready().
static tsr_status fold_parts(const struct device_call *call, struct comm_exchange *exchange)
{
    const struct comm_call *comm_call = call->call;
    size_t bytes = exchange->recv[0].bytes;
    struct gpu_fold fold =
        gpu_fold_of(comm_call, 1, (int64_t)(bytes / tsr__elem_bytes(comm_call->type)));
    fold.out[0] = exchange->folded;
    for (int i = 0; i < comm_call->n_group; i++) {
        void *from = exchange->send[call->self].p;
        if (call->device->cards[i].bytes != bytes)
            return tsr__device_other_size(call, i, bytes);
        if (i != call->self)
            TRY(address_of(call, i, false, &from));
        fold.in[i] = from;
    }
    if (bytes == 0)
        return TSR_OK;
    TRY(await_all_ready(call));
    return tsr__device_code(call, tsr__seat_fold(call->device->seat, &fold, comm_call->stream),
                            "reducing");
}

// Copies the part of one member. The stream waits only for the member whose part it copies.
static tsr_status copy_part(const struct device_call *call, const struct comm_exchange *exchange,
                            int i)
{
    const struct comm_buffer *to = &exchange->recv[i];
    void *from = exchange->send[call->self].p;
    if (call->device->cards[i].bytes != to->bytes)
        return tsr__device_other_size(call, i, to->bytes);
    if (to->bytes == 0)
        return TSR_OK;
    if (i != call->self) {
        TRY(address_of(call, i, false, &from));
        TRY(await_event(call, i, EVENT_READY));
    }
    return tsr__device_code(
        call, tsr__seat_copy(call->device->seat, to->p, from, to->bytes, call->call->stream),
        "copying");
}

static tsr_status exchange_own(const struct device_call *call, struct comm_exchange *exchange,
                               bool *touched)
{
    if (exchange->folded) {
        *touched = exchange->recv[0].bytes > 0;
        return fold_parts(call, exchange);
    }
    for (int i = 0; i < call->call->n_group; i++) {
        TRY(copy_part(call, exchange, i));
        *touched = *touched || (i != call->self && exchange->recv[i].bytes > 0);
    }
    return TSR_OK;
}

static tsr_status exchange_parts(const struct device_call *call)
{
    bool touched = false;
    tsr_status st = TSR_OK;
    if (tsr__device_touch(call))
        st = exchange_own(call, call->exchange, &touched);
    tsr__device_touched(call);
    if (st == TSR_OK)
        st = tsr__own_finish(call, touched); // reports the cause if a member has failed
    return tsr__device_leave(call, st);
}

tsr_status tsr__own_run(const struct device_call *call)
{
    static tsr_status (*const run[])(const struct device_call *) = {
#define ROW(path, function, name, what, condition) function,
        OWN_ALGORITHMS(ROW)
#undef ROW
    };
    int place = tsr__device_choose(call);
    return place < 0 ? exchange_parts(call) : run[place](call);
}
