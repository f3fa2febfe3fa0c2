// SPDX-License-Identifier: Apache-2.0
// device_own.c - ranks whose GPUs reach each other's memory: nobody copies but whoever needs the data, and the hosts only
// tell each other addresses and events.
//
// A rank's stream waits for the READY event of everybody whose memory it touches, works, and records a DONE event; after a
// second meeting of the hosts every stream waits for the DONE events of those who touched its memory, so that what comes
// next on it may use that memory again. READY is recorded anew only in the next call, when all have put their waits on
// their streams; DONE has three events in turn, because the wait for it comes after the last meeting.
#include "transport/device.h"

enum { STEP_DONE = 3 };
#define NOT_TOUCHED UINT64_MAX

// An address that a member gave, as this process sees it.
static tsr_status address_of(const struct device_call *k, int member, bool out, void **p)
{
    const struct call_card *card = &k->d->cards[member];
    const struct rank_card *rank = &k->d->ranks[k->c->group[member]];
    uint64_t there = out ? card->out : card->in;
    if (rank->process == k->d->mine.process && rank->host == k->d->mine.host) {
        *p = (void *)(uintptr_t)there;
        return TSR_OK;
    }
    void *block = NULL;
    int code = tsr__seat_import(k->d->seat, out ? &card->out_block : &card->in_block, &block);
    if (code != 0)
        return tsr__device_code(k, code, "opening the memory of another process");
    *p = (char *)block + (out ? card->out_offset : card->in_offset);
    return TSR_OK;
}

static tsr_status await_event(const struct device_call *k, int member, int event)
{
    void *const *events = k->d->events[k->c->group[member]];
    return tsr__device_code(k, tsr__seat_await(k->d->seat, events[event], k->c->stream),
                            "waiting for another rank");
}

// Waits until all members have made what they send.
static tsr_status await_all_ready(const struct device_call *k)
{
    for (int i = 0; i < k->c->n_group; i++) {
        tsr_status st = i == k->self ? TSR_OK : await_event(k, i, EVENT_READY);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// The end of a call: tells which DONE event says that this rank is done with the others' memory (touched false: it never
// was there), and waits for theirs.
static tsr_status finish(const struct device_call *k, bool touched)
{
    struct device *d = k->d;
    uint64_t few[GPU_MAX_MEMBERS], mine = NOT_TOUCHED;
    if (touched) {
        mine = EVENT_DONE + d->turn++ % N_DONE;
        tsr_status st =
            tsr__device_code(k, tsr__seat_record(d->seat, (int)mine, k->c->stream), "an event");
        if (st != TSR_OK)
            return st;
    }
    tsr_status st = tsr__device_words(k, STEP_DONE, mine, few);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < k->c->n_group; i++) {
        if (i == k->self || few[i] >= GPU_EVENTS)
            continue;
        st = await_event(k, i, (int)few[i]);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

static bool one_gpu(const struct device_call *k)
{
    const struct rank_card *ranks = k->d->ranks;
    const int64_t *group = k->c->group;
    for (int i = 1; i < k->c->n_group; i++)
        if (memcmp(ranks[group[i]].gpu, ranks[group[0]].gpu, GPU_ID_BYTES) != 0)
            return false;
    return true;
}

// Elements [first, first + count) of all inputs become those of all outputs.
static tsr_status fold_slice(const struct device_call *k, const void *in, void *out, int64_t first,
                             int64_t count)
{
    const struct comm_call *c = k->c;
    size_t skip = (size_t)first * tsr__elem_bytes(c->type);
    struct gpu_fold f = {.type = c->type,
                         .reduce = gpu_reduce_of(c->reduce),
                         .n_in = c->n_group,
                         .n_out = c->n_group,
                         .count = count};
    for (int i = 0; i < c->n_group; i++) {
        void *from = (void *)in, *to = out;
        tsr_status st = i == k->self ? TSR_OK : address_of(k, i, false, &from);
        if (st == TSR_OK && i != k->self)
            st = address_of(k, i, true, &to);
        if (st != TSR_OK)
            return st;
        f.in[i] = (const char *)from + skip;
        f.out[i] = (char *)to + skip;
    }
    return tsr__device_code(k, tsr__seat_fold(k->d->seat, &f, c->stream), "adding up");
}

// On one GPU the first member folds everything; on several each folds its slice, so that every link carries its part.
tsr_status tsr__own_all_reduce(const struct device_call *k, const void *in, void *out)
{
    const struct comm_call *c = k->c;
    int64_t first = 0, count = c->count;
    if (one_gpu(k))
        count = k->self == 0 ? count : 0;
    else
        tsr__slice(c->count, tsr__elem_bytes(c->type), c->n_group, k->self, &first, &count);
    if (count > 0) {
        tsr_status st = await_all_ready(k);
        if (st == TSR_OK)
            st = fold_slice(k, in, out, first, count);
        if (st != TSR_OK)
            return st;
    }
    return finish(k, count > 0);
}

static tsr_status fold_parts(const struct device_call *k, struct comm_exchange *x)
{
    const struct comm_call *c = k->c;
    size_t bytes = x->recv[0].bytes;
    struct gpu_fold f = {.type = c->type,
                         .reduce = gpu_reduce_of(c->reduce),
                         .n_in = c->n_group,
                         .n_out = 1,
                         .out = {x->folded},
                         .count = (int64_t)(bytes / tsr__elem_bytes(c->type))};
    for (int i = 0; i < c->n_group; i++) {
        void *from = x->send[k->self].p;
        if (k->d->cards[i].bytes != bytes)
            return tsr__device_other_size(k, i, bytes);
        tsr_status st = i == k->self ? TSR_OK : address_of(k, i, false, &from);
        if (st != TSR_OK)
            return st;
        f.in[i] = from;
    }
    if (bytes == 0)
        return TSR_OK;
    tsr_status st = await_all_ready(k);
    return st != TSR_OK
               ? st
               : tsr__device_code(k, tsr__seat_fold(k->d->seat, &f, c->stream), "adding up");
}

static tsr_status copy_part(const struct device_call *k, const struct comm_exchange *x, int i)
{
    const struct comm_buffer *to = &x->recv[i];
    void *from = x->send[k->self].p;
    if (k->d->cards[i].bytes != to->bytes)
        return tsr__device_other_size(k, i, to->bytes);
    if (to->bytes == 0)
        return TSR_OK;
    if (i != k->self) {
        tsr_status st = address_of(k, i, false, &from);
        if (st == TSR_OK)
            st = await_event(k, i, EVENT_READY);
        if (st != TSR_OK)
            return st;
    }
    return tsr__device_code(k, tsr__seat_copy(k->d->seat, to->p, from, to->bytes, k->c->stream),
                            "copying");
}

tsr_status tsr__own_exchange(const struct device_call *k, struct comm_exchange *x)
{
    tsr_status st = x->folded ? fold_parts(k, x) : TSR_OK;
    bool touched = x->folded && x->recv[0].bytes > 0;
    for (int i = 0; i < k->c->n_group; i++) {
        if (st != TSR_OK)
            return st;
        if (x->folded)
            break;
        st = copy_part(k, x, i);
        touched = touched || (i != k->self && x->recv[i].bytes > 0);
    }
    return st == TSR_OK ? finish(k, touched) : st;
}
