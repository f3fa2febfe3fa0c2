// SPDX-License-Identifier: Apache-2.0
// collectives.c - collectives built from exchanges, for all transports.
//
// All members must agree about the root and the division of a tensor, so these are hashed into the
// call's `detail`. The buffer lists of small groups are on the stack.
//
// Example: a reduce to rank 2 of {0, 2, 5} is an exchange in which all members send their tensor to
// 2 and nothing to the others; 2 folds the three in the order 0, 2, 5. A broadcast from 2 sends the
// same memory to 0 and 5. No call returns before all members have arrived.
#include "transport/common/internal.h"

#include <stdlib.h>

#define FEW 32

// Send and receive buffers of a call, one entry per member each. The entries begin as zeros:
// nothing is exchanged with a member whose entry is not set.
struct parts {
    struct comm_buffer few[2 * FEW];
    struct comm_buffer *send, *recv;
    bool allocated;
};

// Fails the job, because other ranks are about to wait for this one.
static tsr_status out_of_memory(struct endpoint *endpoint, struct comm_trouble *why)
{
    tsr_status st =
        tsr__trouble(why, TSR_NOMEM, endpoint->rank, "rank %d is out of memory", endpoint->rank);
    endpoint->transport->fail(endpoint, st, endpoint->rank, why->text);
    return st;
}

// Allocates the buffer lists of a call.
static tsr_status parts_open(struct endpoint *endpoint, const struct comm_call *call,
                             struct parts *parts, struct comm_trouble *why)
{
    size_t n = call->n_group > 0 ? (size_t)call->n_group : 0;
    parts->allocated = n > FEW;
    if (parts->allocated)
        parts->send = calloc(2 * n, sizeof *parts->send);
    else
        parts->send = memset(parts->few, 0, sizeof parts->few);
    parts->recv = parts->send + n;
    return parts->send ? TSR_OK : out_of_memory(endpoint, why);
}

static void parts_close(struct parts *parts)
{
    if (parts->allocated)
        free(parts->send);
}

// Returns a copy of the call whose `detail` also covers the bytes at p, on which all members must
// agree.
static struct comm_call with_detail(const struct comm_call *call, const void *p, size_t bytes)
{
    struct comm_call d = *call;
    d.detail = tsr__hash64(p, bytes, call->detail);
    return d;
}

static tsr_status not_member(struct endpoint *endpoint, const struct comm_call *call, int rank,
                             struct comm_trouble *why)
{
    tsr_status st =
        tsr__trouble(why, TSR_INVALID, endpoint->rank, "%s '%s': rank %d is not in the group",
                     call->op, call->node, rank);
    endpoint->transport->fail(endpoint, st, endpoint->rank, why->text);
    return st;
}

tsr_status tsr__comm_reduce_scatter(struct endpoint *endpoint, const struct comm_call *call,
                                    const void *in, const int64_t *counts, void *out,
                                    struct comm_trouble *why)
{
    struct parts parts;
    size_t unit = tsr__elem_bytes(call->type), at = 0;
    int self = tsr__member_of(call->group, call->n_group, endpoint->rank);
    TRY(self < 0 ? not_member(endpoint, call, endpoint->rank, why)
                 : parts_open(endpoint, call, &parts, why));
    for (int i = 0; i < call->n_group; i++) {
        parts.send[i] =
            (struct comm_buffer){.p = (char *)in + at, .bytes = (size_t)counts[i] * unit};
        at += parts.send[i].bytes;
    }
    parts.recv[0].bytes = parts.send[self].bytes;
    struct comm_call d = with_detail(call, counts, (size_t)call->n_group * sizeof *counts);
    const struct comm_collective collective = {.in = in, .out = out};
    struct comm_exchange x = {
        .collective = &collective, .send = parts.send, .recv = parts.recv, .folded = out};
    tsr_status st = tsr__comm_exchange(endpoint, &d, &x, why);
    parts_close(&parts);
    return st;
}

tsr_status tsr__comm_reduce(struct endpoint *endpoint, const struct comm_call *call, int root,
                            const void *in, void *out, struct comm_trouble *why)
{
    struct parts parts;
    size_t bytes = (size_t)call->count * tsr__elem_bytes(call->type);
    int at = tsr__member_of(call->group, call->n_group, root),
        self = tsr__member_of(call->group, call->n_group, endpoint->rank);
    if (at < 0 || self < 0)
        return not_member(endpoint, call, at < 0 ? root : endpoint->rank, why);
    TRY(parts_open(endpoint, call, &parts, why));
    parts.send[at] = (struct comm_buffer){.p = (void *)in, .bytes = bytes};
    // Only the root folds. The others pass &parts as `folded`, which marks the call as a fold; it
    // is never written, because they receive 0 bytes.
    parts.recv[0].bytes = at == self ? bytes : 0;
    struct comm_call d = with_detail(call, &root, sizeof root);
    const struct comm_collective collective = {.in = in, .out = out, .root = at};
    struct comm_exchange x = {.collective = &collective,
                              .send = parts.send,
                              .recv = parts.recv,
                              .folded = at == self ? out : &parts};
    tsr_status st = tsr__comm_exchange(endpoint, &d, &x, why);
    parts_close(&parts);
    return st;
}

tsr_status tsr__comm_all_gather(struct endpoint *endpoint, const struct comm_call *call,
                                const void *in, size_t bytes, void *out, struct comm_trouble *why)
{
    struct parts parts;
    const struct comm_collective collective = {.in = in, .out = out};
    TRY(parts_open(endpoint, call, &parts, why));
    for (int i = 0; i < call->n_group; i++) {
        parts.send[i] = (struct comm_buffer){.p = (void *)in, .bytes = bytes};
        parts.recv[i] = (struct comm_buffer){.p = (char *)out + (size_t)i * bytes, bytes};
    }
    struct comm_exchange x = {.collective = &collective, .send = parts.send, .recv = parts.recv};
    tsr_status st = tsr__comm_exchange(endpoint, call, &x, why);
    parts_close(&parts);
    return st;
}

tsr_status tsr__comm_all_to_all(struct endpoint *endpoint, const struct comm_call *call,
                                const struct comm_buffer *send, struct comm_buffer *recv,
                                struct comm_trouble *why)
{
    struct comm_exchange x = {.send = send, .recv = recv};
    return tsr__comm_exchange(endpoint, call, &x, why);
}

tsr_status tsr__comm_broadcast(struct endpoint *endpoint, const struct comm_call *call, int root,
                               void *p, size_t bytes, struct comm_trouble *why)
{
    struct parts b;
    int at = tsr__member_of(call->group, call->n_group, root);
    TRY(at < 0 ? not_member(endpoint, call, root, why) : parts_open(endpoint, call, &b, why));
    if (root != endpoint->rank)
        b.recv[at] = (struct comm_buffer){.p = p, .bytes = bytes};
    else
        for (int i = 0; i < call->n_group; i++)
            if (i != at)
                b.send[i] = (struct comm_buffer){.p = p, .bytes = bytes};
    struct comm_call d = with_detail(call, &root, sizeof root);
    const struct comm_collective collective = {.in = p, .root = at};
    struct comm_exchange x = {.collective = &collective, .send = b.send, .recv = b.recv};
    tsr_status st = tsr__comm_exchange(endpoint, &d, &x, why);
    parts_close(&b);
    return st;
}

// ---- all ranks of the job -----------------------------------------------------------------------

// Sets *out to the call for the group of all ranks. The caller frees out->group.
static tsr_status among_all(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_call *out, struct comm_trouble *why)
{
    int64_t *group = malloc((size_t)endpoint->size * sizeof *group);
    if (!group)
        return out_of_memory(endpoint, why);
    for (int i = 0; i < endpoint->size; i++)
        group[i] = i;
    *out = *call;
    out->group = group;
    out->n_group = endpoint->size;
    return TSR_OK;
}

tsr_status tsr__comm_tell_all(struct endpoint *endpoint, const struct comm_call *call, int root,
                              void *p, size_t bytes, struct comm_trouble *why)
{
    struct comm_call all;
    TRY(among_all(endpoint, call, &all, why));
    tsr_status st = tsr__comm_broadcast(endpoint, &all, root, p, bytes, why);
    free((void *)all.group);
    return st;
}

tsr_status tsr__comm_share_all(struct endpoint *endpoint, const struct comm_call *call,
                               const void *mine, size_t bytes, void *all, struct comm_trouble *why)
{
    struct comm_call d;
    TRY(among_all(endpoint, call, &d, why));
    tsr_status st = tsr__comm_all_gather(endpoint, &d, mine, bytes, all, why);
    free((void *)d.group);
    return st;
}

// ---- two ranks ----------------------------------------------------------------------------------

// Returns a copy of the call for the group of the two ranks, which is written to `group` (space for
// 2). The direction is hashed into `detail`, so that two ranks that both send are detected.
static struct comm_call between(const struct comm_call *call, int from, int to, int64_t *group)
{
    int64_t ends[2] = {from, to};
    struct comm_call d = with_detail(call, ends, sizeof ends);
    group[0] = from < to ? from : to;
    group[1] = from < to ? to : from;
    d.group = group;
    d.n_group = from == to ? 1 : 2;
    return d;
}

tsr_status tsr__comm_send(struct endpoint *endpoint, const struct comm_call *call, int to,
                          const void *p, size_t bytes, const int64_t *notes,
                          struct comm_trouble *why)
{
    int64_t group[2];
    struct comm_buffer send[2] = {{0}}, recv[2] = {{0}};
    struct comm_call d = between(call, endpoint->rank, to, group);
    if (to == endpoint->rank)
        return not_member(endpoint, call, to, why);
    send[to > endpoint->rank] = (struct comm_buffer){.p = (void *)p, .bytes = bytes};
    struct comm_exchange x = {.send = send, .recv = recv};
    if (notes)
        memcpy(x.notes, notes, sizeof x.notes);
    return tsr__comm_exchange(endpoint, &d, &x, why);
}

// Context of a receiver's `arrived`: the sender's index in the group of two, and the buffer.
struct taking {
    struct comm_incoming *in;
    struct comm_buffer *into;
    int place; // index of the sender
};

static tsr_status taking_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct taking *taking = data;
    if (!taking->in->arrived)
        return TSR_OK;
    tsr_status st =
        taking->in->arrived(taking->in->data, notes[taking->place], &taking->in->into, why);
    *taking->into = taking->in->into;
    return st;
}

tsr_status tsr__comm_recv(struct endpoint *endpoint, const struct comm_call *call, int from,
                          struct comm_incoming *in, struct comm_trouble *why)
{
    int64_t group[2];
    struct comm_buffer send[2] = {{0}}, recv[2] = {{0}};
    struct comm_call d = between(call, from, endpoint->rank, group);
    if (from == endpoint->rank)
        return not_member(endpoint, call, from, why);
    int place = from > endpoint->rank;
    recv[place] = in->into;
    struct taking taking = {.in = in, .into = &recv[place], .place = place};
    struct comm_exchange x = {
        .send = send, .recv = recv, .arrived = taking_arrived, .data = &taking};
    return tsr__comm_exchange(endpoint, &d, &x, why);
}

// ---- outside of the collective calls ------------------------------------------------------------

tsr_status tsr__comm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                          size_t bytes, struct comm_trouble *why)
{
    return endpoint->transport->give(endpoint, call, fd, bytes, why);
}

tsr_status tsr__comm_settle(struct endpoint *endpoint, const struct comm_call *call,
                            struct comm_trouble *why)
{
    return endpoint->transport->settle(endpoint, call, why);
}

tsr_status tsr__comm_take(struct endpoint *endpoint, const struct comm_call *call, int from,
                          int *fd, size_t *bytes, struct comm_trouble *why)
{
    return endpoint->transport->take(endpoint, call, from, fd, bytes, why);
}
