// SPDX-License-Identifier: Apache-2.0
// net.c - collectives of ranks that are processes, made of messages between pairs.
//
// Every call starts with one frame to each other member: the header, and the data where it is small. The k-th
// frame from a rank belongs to the k-th call that both are in, so ranks that disagree find it by comparing. Data
// that is larger follows in messages of its own, taken only after the comparison. A large reduction is cut into
// slices: each member gets all members' parts of its slice, folds them in group order, and sends the result to
// all. So every element is folded once, in one place, in one order: the same bits on all ranks and transports.
#include "transport/net.h"

#include <stdio.h>

// ---- messages under way ------------------------------------------------------------------------

static tsr_status lost(struct net *n, const struct comm_call *c, int peer, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "the network between rank %d and rank %d failed at %s '%s' (id %lld)",
                        n->endpoint.rank, peer, c->op, c->node, (long long)c->id);
}

static tsr_status out_of_memory(struct net *n, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_NOMEM, n->endpoint.rank, "rank %d is out of memory",
                        n->endpoint.rank);
}

static bool grow(tsr_session *s, char **p, size_t *have, size_t want)
{
    if (want <= *have)
        return true;
    tsr__free(s, *p, *have);
    *p = tsr__alloc(s, want);
    *have = *p ? want : 0;
    return *p;
}

static struct pending *add_pending(struct net *n)
{
    if (n->n_pending == n->cap_pending) {
        size_t cap = n->cap_pending ? 2 * n->cap_pending : 64, size = sizeof *n->pending;
        void *p = tsr__realloc(n->session, n->pending, n->cap_pending * size, cap * size);
        if (!p)
            return NULL;
        n->pending = p;
        n->cap_pending = cap;
    }
    struct pending *p = &n->pending[n->n_pending++];
    *p = (struct pending){.done = true};
    return p;
}

// Sends or receives bytes, in chunks where they are many.
static tsr_status post(struct net *n, const struct comm_call *c, int peer, bool receives, void *p,
                       size_t bytes, struct comm_trouble *why)
{
    for (size_t at = 0; at < bytes; at += NET_CHUNK) {
        size_t m = bytes - at < NET_CHUNK ? bytes - at : NET_CHUNK;
        struct pending *q = add_pending(n);
        if (!q)
            return out_of_memory(n, why);
        if (tsr__fault(n->session, receives ? FAULT_RECEIVE : FAULT_SEND))
            return lost(n, c, peer, why);
        q->peer = peer;
        q->receives = receives;
        q->bytes = m;
        char *from = (char *)p + at;
        if (!(receives ? n->link->receive(n->link, peer, LINK_DATA, from, m, &q->request)
                       : n->link->send(n->link, peer, LINK_DATA, from, m, &q->request)))
            return lost(n, c, peer, why);
        q->done = false;
    }
    return TSR_OK;
}

// Tests all; one that is not done in *open. False: that one failed.
static bool test_all(struct net *n, struct pending **open, bool *moved)
{
    *open = NULL;
    for (size_t i = 0; i < n->n_pending; i++) {
        struct pending *p = &n->pending[i];
        int done = p->done ? 1 : n->link->test(n->link, &p->request, &p->got);
        *moved |= done == 1 && !p->done;
        p->done = done == 1;
        if (done < 0 || (done == 0 && (!*open || (!(*open)->receives && p->receives))))
            *open = p; // a missing message says more than one that was not taken
        if (done < 0)
            return false;
    }
    return true;
}

// Waits for all messages under way.
static tsr_status complete(struct net *n, const struct comm_call *c, enum beat_state doing,
                           struct comm_trouble *why)
{
    struct patience p = {0};
    struct pending *open;
    bool told = false;
    tsr_status st = TSR_OK;
    for (;;) {
        bool moved = false;
        if (!test_all(n, &open, &moved)) {
            st = lost(n, c, open->peer, why);
            break;
        }
        if (!open)
            break;
        if (moved)
            p = (struct patience){0};
        if (!tsr__patience(&p, n->crowded))
            continue;
        tsr__beat_tell(n, c, doing, open->peer);
        told = true;
        if ((st = tsr__beat_look(n, c, open->peer, why)) != TSR_OK)
            break;
    }
    if (told)
        tsr__beat_tell(n, c, BEAT_WORKING, -1);
    return st;
}

static tsr_status give_up(struct net *n, struct comm_trouble *why)
{
    tsr__beat_fail(n, why->status, why->rank, why->text);
    return why->status;
}

// ---- frames ------------------------------------------------------------------------------------

#define FRAME_CAP ((sizeof(struct comm_header) + NET_INLINE + 63) / 64 * 64)

static char *frame_out(struct net *n, int i)
{
    return n->frames + (size_t)i * 2 * FRAME_CAP;
}

static char *frame_in(struct net *n, int i)
{
    return frame_out(n, i) + FRAME_CAP;
}

static size_t inline_bytes(uint64_t bytes)
{
    return bytes <= NET_INLINE ? (size_t)bytes : 0;
}

// Posts this member's frame to member i and the receive of its frame.
static tsr_status post_frame(struct net *n, const struct comm_call *c, int i, struct comm_header *h,
                             const void *data, size_t bytes, struct comm_trouble *why)
{
    int peer = (int)c->group[i];
    char *out = frame_out(n, i);
    h->bytes = bytes;
    memcpy(out, h, sizeof *h);
    if (inline_bytes(bytes))
        memcpy(out + sizeof *h, data, bytes);
    tsr_status st = post(n, c, peer, true, frame_in(n, i), FRAME_CAP, why);
    return st == TSR_OK ? post(n, c, peer, false, out, sizeof *h + inline_bytes(bytes), why) : st;
}

// Checks the frame that came from member i.
static tsr_status check_frame(struct net *n, const struct comm_call *c, int i, size_t got,
                              const struct comm_header *mine, struct comm_trouble *why)
{
    struct comm_header theirs;
    int peer = (int)c->group[i];
    memset(&theirs, 0, sizeof theirs);
    memcpy(&theirs, frame_in(n, i), got < sizeof theirs ? got : sizeof theirs);
    theirs.op[sizeof theirs.op - 1] = theirs.node[COMM_NAME - 1] = 0;
    tsr_status st = tsr__header_compare(mine, n->endpoint.rank, &theirs, peer, why);
    if (st != TSR_OK || got == sizeof theirs + inline_bytes(theirs.bytes))
        return st;
    return tsr__trouble(why, TSR_PEER, peer, "%s '%s' (id %lld): a frame of rank %d is damaged",
                        c->op, c->node, (long long)c->id, peer);
}

// Meets the group: all frames are here and say the same. send is what goes to each member, one for all with same.
static tsr_status meet(struct net *n, const struct comm_call *c, const int64_t *notes,
                       const struct comm_buffer *send, bool same, struct comm_trouble *why)
{
    struct comm_header h = {0};
    if (atomic_load(&n->failed))
        return tsr__beat_told(n, why);
    n->n_pending = 0;
    if (!grow(n->session, &n->frames, &n->frame_bytes, (size_t)c->n_group * 2 * FRAME_CAP))
        return out_of_memory(n, why);
    atomic_fetch_add(&n->calls, 1);
    tsr__header_of(c, notes, &h);
    tsr_status st = TSR_OK;
    for (int i = 0; i < c->n_group && st == TSR_OK; i++)
        if (c->group[i] != n->endpoint.rank)
            st = post_frame(n, c, i, &h, send[same ? 0 : i].p, send[same ? 0 : i].bytes, why);
    if (st == TSR_OK)
        st = complete(n, c, BEAT_WAITING, why);
    size_t at = 0;
    for (int i = 0; i < c->n_group && st == TSR_OK; i++) {
        if (c->group[i] == n->endpoint.rank)
            continue;
        st = check_frame(n, c, i, n->pending[at].got, &h, why);
        at += 2; // receive and send of each member
    }
    if (st == TSR_OK) // else the end of the job looks at what is left
        n->n_pending = 0;
    return st;
}

// ---- all-reduce --------------------------------------------------------------------------------

static void fold_frames(struct net *n, const struct comm_call *c, const void *in, void *out,
                        const void **ins)
{
    for (int i = 0; i < c->n_group; i++)
        ins[i] = c->group[i] == n->endpoint.rank ? in : frame_in(n, i) + sizeof(struct comm_header);
    tsr__reduce(c->type, c->reduce, ins, c->n_group, &out, 1, 0, c->count);
}

// One round: elements [base, base + count), each member folds a slice of them.
static tsr_status reduce_round(struct net *n, const struct comm_call *c, const char *in, char *out,
                               int64_t count, const void **ins, struct comm_trouble *why)
{
    size_t unit = tsr__elem_bytes(c->type);
    int64_t first, length, my_first = 0, my_length = 0;
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i] == n->endpoint.rank)
            tsr__slice(count, unit, c->n_group, i, &my_first, &my_length);
    if (!grow(n->session, &n->scratch, &n->scratch_bytes,
              (size_t)c->n_group * (size_t)my_length * unit))
        return out_of_memory(n, why);
    tsr_status st = TSR_OK;
    for (int i = 0; i < c->n_group && st == TSR_OK; i++) {
        char *part = n->scratch + (size_t)i * (size_t)my_length * unit;
        bool self = c->group[i] == n->endpoint.rank;
        ins[i] = self ? in + (size_t)my_first * unit : part;
        if (self)
            continue;
        tsr__slice(count, unit, c->n_group, i, &first, &length);
        st = post(n, c, (int)c->group[i], true, part, (size_t)my_length * unit, why);
        if (st == TSR_OK)
            st = post(n, c, (int)c->group[i], false, (char *)in + (size_t)first * unit,
                      (size_t)length * unit, why);
    }
    if (st == TSR_OK)
        st = complete(n, c, BEAT_MOVING, why);
    if (st != TSR_OK)
        return st;
    n->n_pending = 0;
    void *mine = out + (size_t)my_first * unit;
    tsr__reduce(c->type, c->reduce, ins, c->n_group, &mine, 1, 0, my_length);
    for (int i = 0; i < c->n_group && st == TSR_OK; i++) {
        if (c->group[i] == n->endpoint.rank)
            continue;
        tsr__slice(count, unit, c->n_group, i, &first, &length);
        st = post(n, c, (int)c->group[i], true, out + (size_t)first * unit, (size_t)length * unit,
                  why);
        if (st == TSR_OK)
            st = post(n, c, (int)c->group[i], false, mine, (size_t)my_length * unit, why);
    }
    if (st == TSR_OK)
        st = complete(n, c, BEAT_MOVING, why);
    if (st == TSR_OK)
        n->n_pending = 0;
    return st;
}

static tsr_status net_all_reduce(struct endpoint *e, const struct comm_call *c, const void *in,
                                 void *out, struct comm_trouble *why)
{
    struct net *n = (struct net *)e;
    size_t unit = tsr__elem_bytes(c->type), bytes = (size_t)c->count * unit;
    struct comm_buffer whole = {.p = (void *)in, .bytes = inline_bytes(bytes)};
    struct arena a; // of this call
    tsr__arena_init(&a, n->session);
    const void **ins = ARENA_ARRAY(&a, const void *, (size_t)c->n_group);
    tsr_status st = ins ? meet(n, c, NULL, &whole, true, why) : out_of_memory(n, why);
    if (st == TSR_OK && bytes <= NET_INLINE) {
        fold_frames(n, c, in, out, ins);
    } else if (st == TSR_OK) {
        int64_t step = (int64_t)(NET_ROUND / unit);
        for (int64_t at = 0; at < c->count && st == TSR_OK; at += step)
            st = reduce_round(n, c, (const char *)in + (size_t)at * unit,
                              (char *)out + (size_t)at * unit,
                              c->count - at < step ? c->count - at : step, ins, why);
    }
    tsr__arena_free(&a);
    return st == TSR_OK ? st : give_up(n, why);
}

// ---- exchange ----------------------------------------------------------------------------------

static tsr_status tell_arrived(struct net *n, const struct comm_call *c, struct comm_exchange *x,
                               struct comm_trouble *why)
{
    if (!x->arrived)
        return TSR_OK;
    struct arena a;
    tsr__arena_init(&a, n->session);
    int64_t(*notes)[COMM_NOTES] =
        (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&a, int64_t, (size_t)c->n_group * COMM_NOTES);
    tsr_status st = notes ? TSR_OK : out_of_memory(n, why);
    for (int i = 0; i < c->n_group && notes; i++) {
        struct comm_header h;
        bool self = c->group[i] == n->endpoint.rank;
        memcpy(&h, frame_in(n, i), sizeof h);
        memcpy(notes[i], self ? x->notes : h.notes, sizeof notes[i]);
    }
    if (notes)
        st = x->arrived(x->data, (const int64_t(*)[COMM_NOTES])notes, why);
    tsr__arena_free(&a);
    return st;
}

// Takes what member i sends, from its frame or from messages to come.
static tsr_status take_part(struct net *n, const struct comm_call *c, const struct comm_exchange *x,
                            int i, struct comm_trouble *why)
{
    struct comm_header h;
    int peer = (int)c->group[i];
    struct comm_buffer *to = &x->recv[i];
    if (peer == n->endpoint.rank) {
        if (x->send[i].bytes && to->bytes == x->send[i].bytes && to->p != x->send[i].p)
            memcpy(to->p, x->send[i].p, to->bytes);
        h.bytes = x->send[i].bytes;
    } else {
        memcpy(&h, frame_in(n, i), sizeof h);
    }
    if (h.bytes != to->bytes)
        return tsr__trouble(why, TSR_PEER, peer,
                            "%s '%s' (id %lld): rank %d sends %llu bytes, rank %d expects %zu",
                            c->op, c->node, (long long)c->id, peer, (unsigned long long)h.bytes,
                            n->endpoint.rank, to->bytes);
    if (peer == n->endpoint.rank || to->bytes == 0)
        return TSR_OK;
    if (to->bytes > NET_INLINE)
        return post(n, c, peer, true, to->p, to->bytes, why);
    memcpy(to->p, frame_in(n, i) + sizeof h, to->bytes);
    return TSR_OK;
}

// Where parts that are to be folded arrive: scratch memory, but this member's own stays where it is.
static tsr_status place_parts(struct net *n, const struct comm_call *c, struct comm_exchange *x,
                              struct comm_trouble *why)
{
    size_t bytes = x->recv[0].bytes;
    if (!grow(n->session, &n->scratch, &n->scratch_bytes, (size_t)c->n_group * bytes))
        return out_of_memory(n, why);
    for (int i = 0; i < c->n_group; i++) {
        bool self = c->group[i] == n->endpoint.rank;
        x->recv[i].p = self ? x->send[i].p : n->scratch + (size_t)i * bytes;
        x->recv[i].bytes = bytes;
    }
    return TSR_OK;
}

static tsr_status fold_parts(struct net *n, const struct comm_call *c,
                             const struct comm_exchange *x, struct comm_trouble *why)
{
    struct arena a; // of this call
    tsr__arena_init(&a, n->session);
    const void **ins = ARENA_ARRAY(&a, const void *, (size_t)c->n_group);
    for (int i = 0; i < c->n_group && ins; i++)
        ins[i] = x->recv[i].p;
    if (ins)
        tsr__reduce(c->type, c->reduce, ins, c->n_group, (void *const *)&x->folded, 1, 0,
                    (int64_t)(x->recv[0].bytes / tsr__elem_bytes(c->type)));
    tsr__arena_free(&a);
    return ins ? TSR_OK : out_of_memory(n, why);
}

static tsr_status net_exchange(struct endpoint *e, const struct comm_call *c,
                               struct comm_exchange *x, struct comm_trouble *why)
{
    struct net *n = (struct net *)e;
    tsr_status st = meet(n, c, x->notes, x->send, false, why);
    if (st == TSR_OK)
        st = tell_arrived(n, c, x, why);
    if (st == TSR_OK && x->folded)
        st = place_parts(n, c, x, why);
    for (int i = 0; i < c->n_group && st == TSR_OK; i++) {
        st = take_part(n, c, x, i, why);
        if (st == TSR_OK && c->group[i] != e->rank && x->send[i].bytes > NET_INLINE)
            st = post(n, c, (int)c->group[i], false, x->send[i].p, x->send[i].bytes, why);
    }
    if (st == TSR_OK)
        st = complete(n, c, BEAT_MOVING, why);
    if (st == TSR_OK)
        n->n_pending = 0;
    if (st == TSR_OK && x->folded)
        st = fold_parts(n, c, x, why);
    return st == TSR_OK ? st : give_up(n, why);
}

// ---- open, close -------------------------------------------------------------------------------

static void net_fail(struct endpoint *e, tsr_status status, int rank, const char *text)
{
    tsr__beat_fail((struct net *)e, status, rank, text);
}

bool tsr__net_cancel(struct net *n)
{
    bool clean = true;
    for (size_t i = 0; i < n->n_pending; i++) {
        struct pending *p = &n->pending[i];
        if (p->done)
            continue;
        if (p->receives && p->bytes <= FRAME_CAP)
            n->link->cancel(n->link, &p->request);
        else
            clean = n->link->test(n->link, &p->request, NULL) == 1 && clean;
        p->done = true;
    }
    return clean;
}

void tsr__net_free(struct endpoint *e)
{
    struct net *n = (struct net *)e;
    tsr_session *s = n->session;
    tsr__net_drop_gifts(n);
    tsr__free(s, n->pending, n->cap_pending * sizeof *n->pending);
    tsr__free(s, n->frames, n->frame_bytes);
    tsr__free(s, n->scratch, n->scratch_bytes);
    tsr__free(s, n->peers, (size_t)e->size * sizeof *n->peers);
    pthread_mutex_destroy(&n->lock);
    tsr__free(s, n, sizeof *n);
}

static void net_close(struct endpoint *e)
{
    struct net *n = (struct net *)e;
    bool failed = atomic_load(&n->failed);
    tsr__beat_stop(n);
    n->link->on_end = NULL;
    if (!failed) // else messages may be under way in this memory; the process ends soon
        tsr__net_free(e);
}

static const struct transport net_transport = {
    .name = "mpi",
    .all_reduce = net_all_reduce,
    .exchange = net_exchange,
    .fail = net_fail,
    .close = net_close,
    .give = tsr__net_give,
    .settle = tsr__net_settle,
    .take = tsr__net_take,
};

static void on_end(void *data)
{
    tsr__beat_stop(data);
}

tsr_status tsr__net_open(tsr_session *s, struct link *l, uint32_t job,
                         const struct comm_options *options, struct endpoint **out)
{
    struct net *n = tsr__alloc(s, sizeof *n);
    struct peer *peers = n ? tsr__alloc(s, (size_t)l->size * sizeof *peers) : NULL;
    if (!peers) {
        tsr__free(s, n, n ? sizeof *n : 0);
        return TSR_NOMEM;
    }
    memset(n, 0, sizeof *n);
    memset(peers, 0, (size_t)l->size * sizeof *peers);
    n->endpoint = (struct endpoint){.transport = &net_transport,
                                    .rank = l->rank,
                                    .size = l->size,
                                    .host_ranks = l->host_ranks,
                                    .host_cores = l->host_cores};
    n->session = s;
    n->link = l;
    n->peers = peers;
    n->timeout_s = options && options->timeout_s > 0 ? options->timeout_s : COMM_STOPPED_S;
    n->crowded = l->host_ranks > l->host_cores;
    pthread_mutex_init(&n->lock, NULL);
    tsr_status st = tsr__beat_start(n, job);
    if (st != TSR_OK) {
        net_close(&n->endpoint);
        return st;
    }
    l->on_end = on_end;
    l->on_end_data = n;
    *out = &n->endpoint;
    return TSR_OK;
}
