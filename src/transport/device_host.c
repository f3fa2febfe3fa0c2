// SPDX-License-Identifier: Apache-2.0
// device_host.c - groups whose memory does not all lie on GPUs that reach each other: through the host, over the endpoint
// below.
//
// Everything goes in chunks through pinned memory. In an all-reduce three chunks are under way: one comes down from the
// GPU, one is added up, one goes up again. Members that are on the host give their memory as it lies. All members make the
// same calls below, because the number of chunks follows from what all of them know.
#include "transport/device.h"

#define CHUNK_BYTES ((size_t)2 << 20)
#define IN_FLIGHT   3

enum { STEP_CHUNK = 16 }; // and those after it

// Chunk number n of a tensor: where it begins and how many elements it has.
struct chunks {
    int64_t each, all, n;
};

static struct chunks chunks_of(const struct comm_call *c)
{
    struct chunks s = {.each = (int64_t)(CHUNK_BYTES / tsr__elem_bytes(c->type)), .all = c->count};
    s.n = s.all / s.each + (s.all % s.each != 0);
    return s;
}

static int64_t length_of(const struct chunks *s, int64_t i)
{
    int64_t left = s->all - i * s->each;
    return left < s->each ? left : s->each;
}

static tsr_status reduce_below(const struct device_call *k, int64_t i, int64_t count,
                               const void *in, void *out)
{
    struct comm_call c = tsr__device_step(k->c, (uint64_t)(STEP_CHUNK + i));
    c.count = count;
    return k->d->base->transport->all_reduce(k->d->base, &c, in, out, k->why);
}

// A chunk is on its way down; its step is noted.
static int bring_down(const struct device_call *k, const struct chunks *s, int64_t i,
                      const char *in, char *pinned)
{
    size_t unit = tsr__elem_bytes(k->c->type), at = (size_t)(i * s->each) * unit;
    int place = (int)(i % IN_FLIGHT);
    int code = 0;
    if (i >= IN_FLIGHT) // what lay there must have gone up
        code = tsr__seat_step_wait(k->d->seat, IN_FLIGHT + place);
    if (code == 0)
        code = tsr__seat_down(k->d->seat, pinned + (size_t)place * CHUNK_BYTES, in + at,
                              (size_t)length_of(s, i) * unit, k->c->stream);
    return code == 0 ? tsr__seat_step(k->d->seat, place, k->c->stream) : code;
}

// A chunk is on its way up, on the seat's own stream, so that it does not queue behind what comes down.
static int bring_up(const struct device_call *k, const struct chunks *s, int64_t i, char *out,
                    const char *pinned)
{
    size_t unit = tsr__elem_bytes(k->c->type), at = (size_t)(i * s->each) * unit;
    int place = (int)(i % IN_FLIGHT);
    void *own = tsr__seat_stream(k->d->seat);
    int code = tsr__seat_up(k->d->seat, out + at, pinned + (size_t)place * CHUNK_BYTES,
                            (size_t)length_of(s, i) * unit, own);
    return code == 0 ? tsr__seat_step(k->d->seat, IN_FLIGHT + place, own) : code;
}

static tsr_status reduce_chunks(const struct device_call *k, const struct chunks *s, const void *in,
                                void *out, char *pinned)
{
    int code = s->n ? bring_down(k, s, 0, in, pinned) : 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (code == 0 && i + 1 < s->n)
            code = bring_down(k, s, i + 1, in, pinned);
        if (code == 0)
            code = tsr__seat_step_wait(k->d->seat, (int)(i % IN_FLIGHT));
        if (code != 0)
            break;
        char *chunk = pinned + (size_t)(i % IN_FLIGHT) * CHUNK_BYTES;
        tsr_status st = reduce_below(k, i, length_of(s, i), chunk, chunk);
        if (st != TSR_OK)
            return st;
        code = bring_up(k, s, i, out, pinned);
    }
    if (code == 0 && s->n) // the caller's stream goes on when everything is up
        code = tsr__seat_step_await(k->d->seat, IN_FLIGHT + (int)((s->n - 1) % IN_FLIGHT),
                                    k->c->stream);
    return tsr__device_code(k, code, "copying through the host");
}

tsr_status tsr__host_all_reduce(const struct device_call *k, const void *in, void *out)
{
    struct chunks s = chunks_of(k->c);
    size_t unit = tsr__elem_bytes(k->c->type);
    if (!on_device(k)) {
        tsr_status st = TSR_OK;
        for (int64_t i = 0; i < s.n; i++) {
            size_t at = (size_t)(i * s.each) * unit;
            if (st == TSR_OK)
                st = reduce_below(k, i, length_of(&s, i), (const char *)in + at, (char *)out + at);
        }
        return st;
    }
    void *pinned = NULL;
    int code =
        tsr__seat_wait(k->d->seat, tsr__seat_stream(k->d->seat)); // chunks of the call before
    if (code == 0)
        code = tsr__seat_pinned(k->d->seat, IN_FLIGHT * CHUNK_BYTES, k->c->stream, &pinned);
    if (code != 0)
        return tsr__device_code(k, code, "memory of the host");
    return reduce_chunks(k, &s, in, out, pinned);
}

// ---- exchange ----------------------------------------------------------------------------------

// One round of an exchange: bytes [at, at + CHUNK_BYTES) of every message. send and recv are lists of the round.
struct round {
    size_t at;
    struct comm_buffer *send, *recv;
    char *pinned;
};

static size_t left_of(size_t bytes, size_t at)
{
    size_t left = bytes > at ? bytes - at : 0;
    return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

static int bring_round_down(const struct device_call *k, const struct comm_exchange *x,
                            struct round *r)
{
    char *place = r->pinned;
    int code = 0;
    for (int i = 0; i < k->c->n_group; i++) {
        size_t bytes = left_of(x->send[i].bytes, r->at);
        char *from = bytes ? (char *)x->send[i].p + r->at : NULL;
        r->send[i] = (struct comm_buffer){on_device(k) ? place : from, bytes};
        if (on_device(k) && code == 0)
            code = tsr__seat_down(k->d->seat, place, from, bytes, k->c->stream);
        place += CHUNK_BYTES;
    }
    for (int i = 0; i < k->c->n_group; i++) {
        size_t bytes = left_of(x->recv[i].bytes, r->at);
        char *to = bytes ? (char *)x->recv[i].p + r->at : NULL;
        r->recv[i] = (struct comm_buffer){on_device(k) ? place : to, bytes};
        place += CHUNK_BYTES;
    }
    if (on_device(k) && code == 0)
        code = tsr__seat_wait(k->d->seat, k->c->stream);
    return code;
}

static int bring_round_up(const struct device_call *k, const struct comm_exchange *x,
                          const struct round *r, void *folded)
{
    if (!on_device(k))
        return 0;
    int code = 0;
    if (folded)
        code = tsr__seat_up(k->d->seat, (char *)x->folded + r->at, folded,
                            left_of(x->recv[0].bytes, r->at), k->c->stream);
    for (int i = 0; i < k->c->n_group; i++)
        if (!folded && code == 0 && r->recv[i].bytes)
            code = tsr__seat_up(k->d->seat, (char *)x->recv[i].p + r->at, r->recv[i].p,
                                r->recv[i].bytes, k->c->stream);
    return code == 0 ? tsr__seat_wait(k->d->seat, k->c->stream) : code;
}

// The sizes that are told must be those expected, before chunks hide it.
static tsr_status check_sizes(const struct device_call *k, const struct comm_exchange *x)
{
    for (int i = 0; i < k->c->n_group; i++) {
        size_t expected = x->recv[x->folded ? 0 : i].bytes;
        if (k->d->cards[i].bytes != expected)
            return tsr__device_other_size(k, i, expected);
    }
    return TSR_OK;
}

static tsr_status run_round(const struct device_call *k, struct comm_exchange *x, struct round *r,
                            uint64_t number)
{
    struct comm_call c = tsr__device_step(k->c, STEP_CHUNK + number);
    tsr_status st = tsr__device_code(k, bring_round_down(k, x, r), "copying to the host");
    if (st != TSR_OK)
        return st;
    void *folded = NULL; // behind all messages of the round
    if (x->folded)
        folded = on_device(k) ? r->pinned + 2 * (size_t)k->c->n_group * CHUNK_BYTES
                              : (char *)x->folded + r->at;
    struct comm_exchange below = {.send = r->send, .recv = r->recv, .folded = folded};
    st = k->d->base->transport->exchange(k->d->base, &c, &below, k->why);
    if (st != TSR_OK)
        return st;
    return tsr__device_code(k, bring_round_up(k, x, r, folded), "copying from the host");
}

tsr_status tsr__host_exchange(const struct device_call *k, struct comm_exchange *x)
{
    struct device *d = k->d;
    size_t n = (size_t)k->c->n_group;
    uint64_t most = 1; // one round at least: all meet, and nobody hides a size
    tsr_status st = check_sizes(k, x);
    if (st != TSR_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        most = d->cards[i].most_bytes > most ? d->cards[i].most_bytes : most;
    struct round r = {.send = d->buffers, .recv = d->buffers + d->endpoint.size};
    void *pinned = NULL;
    if (on_device(k)) {
        int code = tsr__seat_pinned(d->seat, (2 * n + 1) * CHUNK_BYTES, k->c->stream, &pinned);
        if (code != 0)
            return tsr__device_code(k, code, "memory of the host");
    }
    r.pinned = pinned;
    for (uint64_t number = 0; number * CHUNK_BYTES < most; number++) {
        r.at = (size_t)number * CHUNK_BYTES;
        st = run_round(k, x, &r, number);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}
