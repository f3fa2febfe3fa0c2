// SPDX-License-Identifier: Apache-2.0
// collectives.c - collectives that are made of exchanges, for all transports alike.
//
// Who is root and how a tensor is divided must agree like everything else, so it goes into the
// fingerprint of the call. Buffers of small groups live on the stack.
#include "transport/internal.h"

#include <stdlib.h>

#define FEW 32

// Buffers for every member: send, then recv.
struct parts {
    struct comm_buffer few[2 * FEW];
    struct comm_buffer *send, *recv;
    bool allocated;
};

static tsr_status parts_open(struct endpoint *e, const struct comm_call *c, struct parts *p,
                             struct comm_trouble *why)
{
    size_t n = c->n_group > 0 ? (size_t)c->n_group : 0;
    p->allocated = n > FEW;
    p->send = p->allocated ? calloc(2 * n, sizeof *p->send) : memset(p->few, 0, sizeof p->few);
    p->recv = p->send + n;
    if (p->send)
        return TSR_OK;
    tsr_status st = tsr__trouble(why, TSR_NOMEM, e->rank, "rank %d is out of memory", e->rank);
    e->transport->fail(e, st, e->rank, why->text);
    return st;
}

static void parts_close(struct parts *p)
{
    if (p->allocated)
        free(p->send);
}

static struct comm_call with_detail(const struct comm_call *c, const void *p, size_t bytes)
{
    struct comm_call d = *c;
    d.detail = tsr__hash64(p, bytes, c->detail);
    return d;
}

static tsr_status not_member(struct endpoint *e, const struct comm_call *c, int rank,
                             struct comm_trouble *why)
{
    tsr_status st = tsr__trouble(why, TSR_INVALID, e->rank, "%s '%s': rank %d is not in the group",
                                 c->op, c->node, rank);
    e->transport->fail(e, st, e->rank, why->text);
    return st;
}

static int place_of(const struct comm_call *c, int rank)
{
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i] == rank)
            return i;
    return -1;
}

tsr_status tsr__comm_reduce_scatter(struct endpoint *e, const struct comm_call *c, const void *in,
                                    const int64_t *counts, void *out, struct comm_trouble *why)
{
    struct parts p;
    size_t unit = tsr__elem_bytes(c->type), at = 0;
    int self = place_of(c, e->rank);
    tsr_status st = self < 0 ? not_member(e, c, e->rank, why) : parts_open(e, c, &p, why);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < c->n_group; i++) {
        p.send[i] = (struct comm_buffer){.p = (char *)in + at, .bytes = (size_t)counts[i] * unit};
        at += p.send[i].bytes;
    }
    p.recv[0].bytes = p.send[self].bytes;
    struct comm_call d = with_detail(c, counts, (size_t)c->n_group * sizeof *counts);
    struct comm_exchange x = {.send = p.send, .recv = p.recv, .folded = out};
    st = tsr__comm_exchange(e, &d, &x, why);
    parts_close(&p);
    return st;
}

tsr_status tsr__comm_reduce(struct endpoint *e, const struct comm_call *c, int root, const void *in,
                            void *out, struct comm_trouble *why)
{
    struct parts p;
    size_t bytes = (size_t)c->count * tsr__elem_bytes(c->type);
    int at = place_of(c, root), self = place_of(c, e->rank);
    if (at < 0 || self < 0)
        return not_member(e, c, at < 0 ? root : e->rank, why);
    tsr_status st = parts_open(e, c, &p, why);
    if (st != TSR_OK)
        return st;
    p.send[at] = (struct comm_buffer){.p = (void *)in, .bytes = bytes};
    p.recv[0].bytes = at == self ? bytes : 0;
    struct comm_call d = with_detail(c, &root, sizeof root);
    struct comm_exchange x = {.send = p.send, .recv = p.recv, .folded = at == self ? out : &p};
    st = tsr__comm_exchange(e, &d, &x, why);
    parts_close(&p);
    return st;
}

tsr_status tsr__comm_all_to_all(struct endpoint *e, const struct comm_call *c,
                                const struct comm_buffer *send, struct comm_buffer *recv,
                                struct comm_trouble *why)
{
    struct comm_exchange x = {.send = send, .recv = recv};
    return tsr__comm_exchange(e, c, &x, why);
}

tsr_status tsr__comm_broadcast(struct endpoint *e, const struct comm_call *c, int root, void *p,
                               size_t bytes, struct comm_trouble *why)
{
    struct parts b;
    int at = place_of(c, root);
    tsr_status st = at < 0 ? not_member(e, c, root, why) : parts_open(e, c, &b, why);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < c->n_group && root == e->rank; i++)
        if (i != at)
            b.send[i] = (struct comm_buffer){.p = p, .bytes = bytes};
    if (root != e->rank)
        b.recv[at] = (struct comm_buffer){.p = p, .bytes = bytes};
    struct comm_call d = with_detail(c, &root, sizeof root);
    struct comm_exchange x = {.send = b.send, .recv = b.recv};
    st = tsr__comm_exchange(e, &d, &x, why);
    parts_close(&b);
    return st;
}

// ---- two ranks ---------------------------------------------------------------------------------

// The call as the two of them see it; group has room for 2.
static struct comm_call between(const struct comm_call *c, int from, int to, int64_t *group)
{
    int64_t way[2] = {from, to};
    struct comm_call d = with_detail(c, way, sizeof way);
    group[0] = from < to ? from : to;
    group[1] = from < to ? to : from;
    d.group = group;
    d.n_group = from == to ? 1 : 2;
    return d;
}

tsr_status tsr__comm_send(struct endpoint *e, const struct comm_call *c, int to, const void *p,
                          size_t bytes, const int64_t *notes, struct comm_trouble *why)
{
    int64_t group[2];
    struct comm_buffer send[2] = {{0}}, recv[2] = {{0}};
    struct comm_call d = between(c, e->rank, to, group);
    if (to == e->rank)
        return not_member(e, c, to, why);
    send[to > e->rank] = (struct comm_buffer){.p = (void *)p, .bytes = bytes};
    struct comm_exchange x = {.send = send, .recv = recv};
    if (notes)
        memcpy(x.notes, notes, sizeof x.notes);
    return tsr__comm_exchange(e, &d, &x, why);
}

struct taking {
    struct comm_incoming *in;
    struct comm_buffer *into;
    int place; // of the sender
};

static tsr_status taking_arrived(void *data, const int64_t (*notes)[COMM_NOTES],
                                 struct comm_trouble *why)
{
    struct taking *t = data;
    if (!t->in->arrived)
        return TSR_OK;
    tsr_status st = t->in->arrived(t->in->data, notes[t->place], &t->in->into, why);
    *t->into = t->in->into;
    return st;
}

tsr_status tsr__comm_recv(struct endpoint *e, const struct comm_call *c, int from,
                          struct comm_incoming *in, struct comm_trouble *why)
{
    int64_t group[2];
    struct comm_buffer send[2] = {{0}}, recv[2] = {{0}};
    struct comm_call d = between(c, from, e->rank, group);
    if (from == e->rank)
        return not_member(e, c, from, why);
    int place = from > e->rank;
    recv[place] = in->into;
    struct taking t = {.in = in, .into = &recv[place], .place = place};
    struct comm_exchange x = {.send = send, .recv = recv, .arrived = taking_arrived, .data = &t};
    return tsr__comm_exchange(e, &d, &x, why);
}

// ---- beside the calls --------------------------------------------------------------------------

tsr_status tsr__comm_give(struct endpoint *e, const struct comm_call *c, int fd, size_t bytes,
                          struct comm_trouble *why)
{
    return e->transport->give(e, c, fd, bytes, why);
}

tsr_status tsr__comm_settle(struct endpoint *e, const struct comm_call *c, struct comm_trouble *why)
{
    return e->transport->settle(e, c, why);
}

tsr_status tsr__comm_take(struct endpoint *e, const struct comm_call *c, int from, int *fd,
                          size_t *bytes, struct comm_trouble *why)
{
    return e->transport->take(e, c, from, fd, bytes, why);
}
