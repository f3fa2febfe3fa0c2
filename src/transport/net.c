// SPDX-License-Identifier: Apache-2.0
// net.c - collectives of ranks that are processes, made of messages between pairs.
//
// Every call starts with one frame to each other member: the header, and the data where it is small. The k-th
// frame from a rank belongs to the k-th call that both are in, so ranks that disagree find it by comparing. Data
// that is larger follows in messages of its own, taken only after the comparison. A large reduction is cut into
// slices: each member gets all members' parts of its slice, folds them in group order, and sends the result to
// all. So every element is folded once, in one place, in one order: the same bits on all ranks and transports.
//
// Three members and 10 MiB of float32: each sends the others its header (count, type, no data).
// Then member 1 gets elements of the second third from members 0 and 2, adds the three in the order
// 0, 1, 2, and sends the sum of its third to both. With 1 KiB the data travels behind the header,
// and every member adds all three itself.
//
// What waits for what: complete() is the only wait. It drives all messages of the call at once, so
// no order of sends and receives can block two ranks. Once in about a millisecond it looks whether
// the rank that is missed has failed, ended or fallen silent (net_beat.c).
//
// Memory: frames and scratch grow and stay for the life of the endpoint. After a failure the
// network may still write into them, so they are then never freed (net_close).
#include "transport/net.h"

#include <stdio.h>
#include <time.h>

// ---- messages under way ------------------------------------------------------------------------

static tsr_status lost(struct net *net, const struct comm_call *call, int peer,
                       struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "the network between rank %d and rank %d failed at %s '%s' (id %lld)",
                        net->endpoint.rank, peer, call->op, call->node, (long long)call->id);
}

#define LOSS_S 2.0 // by then the meeting has told who is gone

// A message failed. Where the ranks watch each other, the reason is known soon: that rank died, or another has failed.
static tsr_status find_loss(struct net *net, const struct comm_call *call, int peer,
                            struct comm_trouble *why)
{
    struct timespec nap = {0, 10000000};
    double until = tsr__now_s() + LOSS_S;
    while (net->meet && tsr__now_s() < until) {
        tsr_status st = tsr__beat_look(net, call, peer, why);
        if (st != TSR_OK)
            return st;
        nanosleep(&nap, NULL);
    }
    return lost(net, call, peer, why);
}

static tsr_status out_of_memory(struct net *net, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_NOMEM, net->endpoint.rank, "rank %d is out of memory",
                        net->endpoint.rank);
}

// The old contents are lost: both buffers are written anew in every call.
static bool grow(tsr_session *session, char **p, size_t *have, size_t want)
{
    if (want == 0)
        want = 1; // callers add offsets to *p: C does not define NULL + 0
    if (want <= *have)
        return true;
    tsr__free(session, *p, *have);
    *p = tsr__alloc(session, want);
    *have = *p ? want : 0;
    return *p;
}

// Marked done until its request exists, so that nobody tests a request that was never made.
// Pointers to other entries may move.
static struct pending *add_pending(struct net *net)
{
    if (net->n_pending == net->cap_pending) {
        size_t cap = net->cap_pending ? 2 * net->cap_pending : 64, size = sizeof *net->pending;
        void *p = tsr__realloc(net->session, net->pending, net->cap_pending * size, cap * size);
        if (!p)
            return NULL;
        net->pending = p;
        net->cap_pending = cap;
    }
    struct pending *pending = &net->pending[net->n_pending++];
    *pending = (struct pending){.done = true};
    return pending;
}

// Sends or receives bytes, in chunks where they are many.
static tsr_status post(struct net *net, const struct comm_call *call, int peer, bool receives,
                       void *p, size_t bytes, struct comm_trouble *why)
{
    for (size_t at = 0; at < bytes; at += NET_CHUNK) {
        size_t m = bytes - at < NET_CHUNK ? bytes - at : NET_CHUNK;
        struct pending *pending = add_pending(net);
        if (!pending)
            return out_of_memory(net, why);
        // For tests: the network fails here.
        if (tsr__fault(net->session, receives ? FAULT_RECEIVE : FAULT_SEND))
            return lost(net, call, peer, why);
        pending->peer = peer;
        pending->receives = receives;
        pending->bytes = m;
        char *from = (char *)p + at;
        if (!(receives ? net->link->receive(net->link, peer, LINK_DATA, from, m, &pending->request)
                       : net->link->send(net->link, peer, LINK_DATA, from, m, &pending->request)))
            return find_loss(net, call, peer, why);
        pending->done = false;
    }
    return TSR_OK;
}

// Tests all; one that is not done in *open. False: that one failed.
static bool test_all(struct net *net, struct pending **open, bool *moved)
{
    *open = NULL;
    for (size_t i = 0; i < net->n_pending; i++) {
        struct pending *pending = &net->pending[i];
        int done = pending->done ? 1 : net->link->test(net->link, &pending->request, &pending->got);
        *moved |= done == 1 && !pending->done;
        pending->done = done == 1;
        if (done < 0 || (done == 0 && (!*open || (!(*open)->receives && pending->receives))))
            *open = pending; // a missing message says more than one that was not taken
        if (done < 0)
            return false;
    }
    return true;
}

// Something that was not done a moment ago is now.
static bool came_since(struct net *net)
{
    struct pending *open;
    bool moved = false;
    return test_all(net, &open, &moved) && moved;
}

// Waits for all messages under way.
static tsr_status complete(struct net *net, const struct comm_call *call, enum beat_state doing,
                           struct comm_trouble *why)
{
    struct patience patience = {0};
    struct pending *open;
    bool told = false;
    tsr_status st = TSR_OK;
    for (;;) {
        bool moved = false;
        if (!test_all(net, &open, &moved)) {
            st = find_loss(net, call, open->peer, why);
            break;
        }
        if (!open)
            break;
        // Whatever came or left shows that the others work: patience starts again.
        if (moved)
            patience = (struct patience){0};
        if (!tsr__patience(&patience, net->crowded))
            continue;
        tsr__beat_tell(net, call, doing, open->peer);
        told = true;
        st = tsr__beat_look(net, call, open->peer, why);
        // A rank that ends has sent all it had to: what came between the two looks still counts.
        if (st != TSR_OK && !came_since(net))
            break;
        st = TSR_OK;
    }
    if (told)
        tsr__beat_tell(net, call, BEAT_WORKING, -1);
    return st;
}

// Waits for the data of a call; what was posted for it is done with.
static tsr_status complete_data(struct net *net, const struct comm_call *call,
                                struct comm_trouble *why)
{
    tsr_status st = complete(net, call, BEAT_MOVING, why);
    if (st == TSR_OK)
        net->n_pending = 0;
    return st;
}

// The failure is told to all ranks by the next sign of life, and kept for later calls of this one.
static tsr_status give_up(struct net *net, struct comm_trouble *why)
{
    tsr__beat_fail(net, why->status, why->rank, why->text);
    return why->status;
}

// ---- frames ------------------------------------------------------------------------------------

#define FRAME_CAP ((sizeof(struct comm_header) + NET_INLINE + 63) / 64 * 64)

// Members are numbered by their place in the group. Each has two frames: what goes to it, what
// comes from it.
static char *frame_out(struct net *net, int i)
{
    return net->frames + (size_t)i * 2 * FRAME_CAP;
}

static char *frame_in(struct net *net, int i)
{
    return frame_out(net, i) + FRAME_CAP;
}

// 0 also means: more than fits, it follows in messages of its own.
static size_t inline_bytes(uint64_t bytes)
{
    return bytes <= NET_INLINE ? (size_t)bytes : 0;
}

// Posts this member's frame to member i and the receive of its frame.
static tsr_status post_frame(struct net *net, const struct comm_call *call, int i,
                             struct comm_header *header, const void *data, size_t bytes,
                             struct comm_trouble *why)
{
    int peer = (int)call->group[i];
    char *out = frame_out(net, i);
    header->bytes = bytes;
    memcpy(out, header, sizeof *header);
    if (inline_bytes(bytes))
        memcpy(out + sizeof *header, data, bytes);
    // The receive has room for the largest frame: how long the other's is, nobody knows before it
    // is here.
    tsr_status st = post(net, call, peer, true, frame_in(net, i), FRAME_CAP, why);
    if (st != TSR_OK)
        return st;
    return post(net, call, peer, false, out, sizeof *header + inline_bytes(bytes), why);
}

// Checks the frame that came from member i.
static tsr_status check_frame(struct net *net, const struct comm_call *call, int i, size_t got,
                              const struct comm_header *mine, struct comm_trouble *why)
{
    struct comm_header theirs;
    int peer = (int)call->group[i];
    // A frame may be shorter than a header, if the other rank is of another build; texts in it may
    // lack their ends.
    memset(&theirs, 0, sizeof theirs);
    memcpy(&theirs, frame_in(net, i), got < sizeof theirs ? got : sizeof theirs);
    theirs.op[sizeof theirs.op - 1] = theirs.node[COMM_NAME - 1] = 0;
    tsr_status st = tsr__header_compare(mine, net->endpoint.rank, &theirs, peer, why);
    if (st != TSR_OK || got == sizeof theirs + inline_bytes(theirs.bytes))
        return st;
    return tsr__trouble(why, TSR_PEER, peer, "%s '%s' (id %lld): a frame of rank %d is damaged",
                        call->op, call->node, (long long)call->id, peer);
}

// Meets the group: all frames are here and say the same. send is what goes to each member, one for all with same.
static tsr_status meet(struct net *net, const struct comm_call *call, const int64_t *notes,
                       const struct comm_buffer *send, bool same, struct comm_trouble *why)
{
    struct comm_header header = {0};
    if (atomic_load(&net->failed))
        return tsr__beat_told(net, why);
    // What the last call posted is done, or the job has failed and this line is not reached.
    net->n_pending = 0;
    if (!grow(net->session, &net->frames, &net->frame_bytes, (size_t)call->n_group * 2 * FRAME_CAP))
        return out_of_memory(net, why);
    // Travels with the signs of life: two looks that see the same number saw the same wait.
    atomic_fetch_add(&net->calls, 1);
    tsr__header_of(call, notes, &header);
    tsr_status st = TSR_OK;
    for (int i = 0; i < call->n_group; i++) {
        const struct comm_buffer *data = &send[same ? 0 : i];
        if (call->group[i] != net->endpoint.rank)
            st = post_frame(net, call, i, &header, data->p, data->bytes, why);
        if (st != TSR_OK)
            break;
    }
    if (st == TSR_OK)
        st = complete(net, call, BEAT_WAITING, why);
    if (st != TSR_OK)
        return st; // the end of the job looks at what is pending
    // pending has, for each other member in the group's order, its receive and then the send: `got`
    // of the receives is the length of the frames.
    size_t at = 0;
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] == net->endpoint.rank)
            continue;
        st = check_frame(net, call, i, net->pending[at].got, &header, why);
        if (st != TSR_OK)
            return st;
        at += 2; // receive and send of each member
    }
    net->n_pending = 0;
    return TSR_OK;
}

// ---- all-reduce --------------------------------------------------------------------------------

static void fold_frames(struct net *net, const struct comm_call *call, const void *in, void *out,
                        const void **ins)
{
    for (int i = 0; i < call->n_group; i++)
        ins[i] = call->group[i] == net->endpoint.rank
                     ? in
                     : frame_in(net, i) + sizeof(struct comm_header);
    tsr__reduce(call->type, call->reduce, ins, call->n_group, &out, 1, 0, call->count);
}

// One round: elements [base, base + count), each member folds a slice of them.
static tsr_status reduce_round(struct net *net, const struct comm_call *call, const char *in,
                               char *out, int64_t count, const void **ins, struct comm_trouble *why)
{
    size_t unit = tsr__elem_bytes(call->type);
    int64_t first, length, my_first = 0, my_length = 0;
    for (int i = 0; i < call->n_group; i++)
        if (call->group[i] == net->endpoint.rank)
            tsr__slice(count, unit, call->n_group, i, &my_first, &my_length);
    if (!grow(net->session, &net->scratch, &net->scratch_bytes,
              (size_t)call->n_group * (size_t)my_length * unit))
        return out_of_memory(net, why);
    // First half: my slice of everybody else's input comes in, their slices of mine go out.
    tsr_status st;
    for (int i = 0; i < call->n_group; i++) {
        char *part = net->scratch + (size_t)i * (size_t)my_length * unit;
        bool self = call->group[i] == net->endpoint.rank;
        ins[i] = self ? in + (size_t)my_first * unit : part;
        if (self)
            continue;
        tsr__slice(count, unit, call->n_group, i, &first, &length);
        st = post(net, call, (int)call->group[i], true, part, (size_t)my_length * unit, why);
        if (st != TSR_OK)
            return st;
        st = post(net, call, (int)call->group[i], false, (char *)in + (size_t)first * unit,
                  (size_t)length * unit, why);
        if (st != TSR_OK)
            return st;
    }
    st = complete_data(net, call, why);
    if (st != TSR_OK)
        return st;
    // Second half: the fold of my slice goes to everybody, theirs come straight into out. in == out
    // is fine: my inputs of other slices have left by then.
    void *mine = out + (size_t)my_first * unit;
    tsr__reduce(call->type, call->reduce, ins, call->n_group, &mine, 1, 0, my_length);
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] == net->endpoint.rank)
            continue;
        tsr__slice(count, unit, call->n_group, i, &first, &length);
        st = post(net, call, (int)call->group[i], true, out + (size_t)first * unit,
                  (size_t)length * unit, why);
        if (st != TSR_OK)
            return st;
        st = post(net, call, (int)call->group[i], false, mine, (size_t)my_length * unit, why);
        if (st != TSR_OK)
            return st;
    }
    return complete_data(net, call, why);
}

// All rounds of a reduction; 100 MiB in rounds of 32 MiB are 32, 32, 32 and 4.
static tsr_status reduce_rounds(struct net *net, const struct comm_call *call, const char *in,
                                char *out, const void **ins, struct comm_trouble *why)
{
    size_t unit = tsr__elem_bytes(call->type);
    int64_t step = (int64_t)(NET_ROUND / unit);
    for (int64_t at = 0; at < call->count; at += step) {
        size_t offset = (size_t)at * unit;
        int64_t count = call->count - at < step ? call->count - at : step;
        tsr_status st = reduce_round(net, call, in + offset, out + offset, count, ins, why);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// What is small comes along when the members meet, and is folded there.
static tsr_status net_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                 const void *in, void *out, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    size_t bytes = (size_t)call->count * tsr__elem_bytes(call->type);
    struct comm_buffer whole = {.p = (void *)in, .bytes = inline_bytes(bytes)};
    struct arena arena; // of this call
    tsr__arena_init(&arena, net->session);
    const void **ins = ARENA_ARRAY(&arena, const void *, (size_t)call->n_group);
    tsr_status st = ins ? meet(net, call, NULL, &whole, true, why) : out_of_memory(net, why);
    if (st != TSR_OK)
        goto free_arena;
    if (bytes <= NET_INLINE)
        fold_frames(net, call, in, out, ins);
    else
        st = reduce_rounds(net, call, in, out, ins, why);
free_arena:
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return give_up(net, why);
    return st;
}

// ---- exchange ----------------------------------------------------------------------------------

// Between the headers and the data: `arrived` knows all shapes then and may set the receive
// buffers.
static tsr_status tell_arrived(struct net *net, const struct comm_call *call,
                               struct comm_exchange *exchange, struct comm_trouble *why)
{
    if (!exchange->arrived)
        return TSR_OK;
    struct arena arena;
    tsr__arena_init(&arena, net->session);
    int64_t(*notes)[COMM_NOTES] =
        (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&arena, int64_t, (size_t)call->n_group * COMM_NOTES);
    if (!notes)
        return out_of_memory(net, why);
    for (int i = 0; i < call->n_group; i++) {
        struct comm_header header;
        bool self = call->group[i] == net->endpoint.rank;
        memcpy(&header, frame_in(net, i), sizeof header);
        memcpy(notes[i], self ? exchange->notes : header.notes, sizeof notes[i]);
    }
    tsr_status st = exchange->arrived(exchange->data, (const int64_t(*)[COMM_NOTES])notes, why);
    tsr__arena_free(&arena);
    return st;
}

// Takes what member i sends, from its frame or from messages to come.
static tsr_status take_part(struct net *net, const struct comm_call *call,
                            const struct comm_exchange *exchange, int i, struct comm_trouble *why)
{
    struct comm_header header;
    int peer = (int)call->group[i];
    struct comm_buffer *to = &exchange->recv[i];
    // A member's part for itself never travels; it may already lie where it belongs.
    if (peer == net->endpoint.rank) {
        if (exchange->send[i].bytes && to->bytes == exchange->send[i].bytes &&
            to->p != exchange->send[i].p)
            memcpy(to->p, exchange->send[i].p, to->bytes);
        header.bytes = exchange->send[i].bytes;
    } else {
        memcpy(&header, frame_in(net, i), sizeof header);
    }
    if (header.bytes != to->bytes)
        return tsr__trouble(why, TSR_PEER, peer,
                            "%s '%s' (id %lld): rank %d sends %llu bytes, rank %d expects %zu",
                            call->op, call->node, (long long)call->id, peer,
                            (unsigned long long)header.bytes, net->endpoint.rank, to->bytes);
    if (peer == net->endpoint.rank || to->bytes == 0)
        return TSR_OK;
    if (to->bytes > NET_INLINE)
        return post(net, call, peer, true, to->p, to->bytes, why);
    memcpy(to->p, frame_in(net, i) + sizeof header, to->bytes);
    return TSR_OK;
}

// Where parts that are to be folded arrive: scratch memory, but this member's own stays where it is.
static tsr_status place_parts(struct net *net, const struct comm_call *call,
                              struct comm_exchange *exchange, struct comm_trouble *why)
{
    size_t bytes = exchange->recv[0].bytes;
    if (!grow(net->session, &net->scratch, &net->scratch_bytes, (size_t)call->n_group * bytes))
        return out_of_memory(net, why);
    for (int i = 0; i < call->n_group; i++) {
        bool self = call->group[i] == net->endpoint.rank;
        exchange->recv[i].p = self ? exchange->send[i].p : net->scratch + (size_t)i * bytes;
        exchange->recv[i].bytes = bytes;
    }
    return TSR_OK;
}

static tsr_status fold_parts(struct net *net, const struct comm_call *call,
                             const struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct arena arena; // of this call
    tsr__arena_init(&arena, net->session);
    const void **ins = ARENA_ARRAY(&arena, const void *, (size_t)call->n_group);
    if (!ins) {
        tsr__arena_free(&arena);
        return out_of_memory(net, why);
    }
    for (int i = 0; i < call->n_group; i++)
        ins[i] = exchange->recv[i].p;
    tsr__reduce(call->type, call->reduce, ins, call->n_group, (void *const *)&exchange->folded, 1,
                0, (int64_t)(exchange->recv[0].bytes / tsr__elem_bytes(call->type)));
    tsr__arena_free(&arena);
    return TSR_OK;
}

// The part for member i, if it is too large to have gone along with the header.
static tsr_status send_part(struct net *net, const struct comm_call *call,
                            const struct comm_exchange *exchange, int i, struct comm_trouble *why)
{
    const struct comm_buffer *part = &exchange->send[i];
    if (call->group[i] == net->endpoint.rank || part->bytes <= NET_INLINE)
        return TSR_OK;
    return post(net, call, (int)call->group[i], false, part->p, part->bytes, why);
}

// Headers and small data first (meet), then what is larger: receives are posted before sends,
// member by member, and complete() waits for all of them together.
static tsr_status exchange_parts(struct net *net, const struct comm_call *call,
                                 struct comm_exchange *exchange, struct comm_trouble *why)
{
    tsr_status st = meet(net, call, exchange->notes, exchange->send, false, why);
    if (st != TSR_OK)
        return st;
    st = tell_arrived(net, call, exchange, why);
    if (st != TSR_OK)
        return st;
    if (exchange->folded) {
        st = place_parts(net, call, exchange, why);
        if (st != TSR_OK)
            return st;
    }
    for (int i = 0; i < call->n_group; i++) {
        st = take_part(net, call, exchange, i, why);
        if (st != TSR_OK)
            return st;
        st = send_part(net, call, exchange, i, why);
        if (st != TSR_OK)
            return st;
    }
    st = complete_data(net, call, why);
    if (st != TSR_OK || !exchange->folded)
        return st;
    return fold_parts(net, call, exchange, why);
}

static tsr_status net_exchange(struct endpoint *endpoint, const struct comm_call *call,
                               struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    if (exchange_parts(net, call, exchange, why) == TSR_OK)
        return TSR_OK;
    return give_up(net, why);
}

// ---- open, close -------------------------------------------------------------------------------

static void net_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    tsr__beat_fail((struct net *)endpoint, status, rank, text);
}

// After a failure: takes receives back that nothing will come for. False: something else is under way, and the
// network cannot be ended in order.
// A frame's receive can be taken back. Data that is under way cannot: the other side may be
// writing.
static bool cancel(struct net *net)
{
    bool clean = true;
    for (size_t i = 0; i < net->n_pending; i++) {
        struct pending *pending = &net->pending[i];
        if (pending->done)
            continue;
        if (pending->receives && pending->bytes <= FRAME_CAP)
            net->link->cancel(net->link, &pending->request);
        else
            clean = net->link->test(net->link, &pending->request, NULL) == 1 && clean;
        pending->done = true;
    }
    return clean;
}

// The link is not closed here: MPI's belongs to the process, UCX's was closed by end_link.
void tsr__net_free(struct endpoint *endpoint)
{
    struct net *net = (struct net *)endpoint;
    tsr_session *session = net->session;
    tsr__net_drop_gifts(net);
    tsr__free(session, net->pending, net->cap_pending * sizeof *net->pending);
    tsr__free(session, net->frames, net->frame_bytes);
    tsr__free(session, net->scratch, net->scratch_bytes);
    tsr__free(session, net->peers, (size_t)endpoint->size * sizeof *net->peers);
    pthread_mutex_destroy(&net->lock);
    tsr__free(session, net, sizeof *net);
}

// Ends the signs of life. After a failure the network is ended in order only if all ranks know, and nothing is under way.
static void stop(struct net *net)
{
    bool answered = false;
    if (!tsr__beat_stop(net, &answered) || !atomic_load(&net->failed))
        return;
    if (!answered || !cancel(net))
        net->link->failed(net->link);
}

static void step_link(void *data)
{
    struct link *link = data;
    link->flush(link);
}

#define FLUSH_S 2.0 // longest wait for the last messages to leave

// The network of this job alone ends when all ranks have sent what they had: closing earlier could lose messages that
// others have not read yet.
static void end_link(struct net *net)
{
    struct timespec nap = {0, 100000};
    double until = tsr__now_s() + FLUSH_S;
    while (!net->link->flush(net->link) && tsr__now_s() < until)
        nanosleep(&nap, NULL);
    if (net->meet)
        tsr__meet_end(net->meet, step_link, net->link);
    net->link->close(net->link);
}

// `failed` is read before stop(): a failure that is heard only during the farewell finds no message
// of a call under way, and all can be freed.
static void net_close(struct endpoint *endpoint)
{
    struct net *net = (struct net *)endpoint;
    bool failed = atomic_load(&net->failed);
    stop(net);
    net->link->on_end = NULL;
    if (net->link->close && !failed)
        end_link(net);
    tsr__meet_free(net->meet);
    net->meet = NULL;
    if (!failed) // else messages may be under way in this memory; the process ends soon
        tsr__net_free(endpoint);
}

// Links that ranks meet for without a launcher are UCX's; MPI has brought its ranks together itself.
static const char *net_way(const struct endpoint *endpoint, const int64_t *group, int n)
{
    (void)group, (void)n;
    if (((const struct net *)endpoint)->meet)
        return "ucx";
    return "mpi";
}

static const struct transport net_transport = {
    .name = "mpi",
    .way = net_way,
    .all_reduce = net_all_reduce,
    .exchange = net_exchange,
    .fail = net_fail,
    .close = net_close,
    .give = tsr__net_give,
    .settle = tsr__net_settle,
    .take = tsr__net_take,
};

// MPI is about to end in this process, although the endpoint was not closed: say farewell while it
// is possible.
static void on_end(void *data)
{
    stop(data);
}

// The thread of beats starts last: it reads all that was set before it.
tsr_status tsr__net_open(tsr_session *session, struct link *link, struct meet *meet, uint32_t job,
                         const struct comm_options *options, struct endpoint **out)
{
    struct net *net = tsr__alloc(session, sizeof *net);
    struct peer *peers = net ? tsr__alloc(session, (size_t)link->size * sizeof *peers) : NULL;
    if (!peers) {
        tsr__meet_free(meet);
        tsr__free(session, net, net ? sizeof *net : 0);
        return TSR_NOMEM;
    }
    memset(net, 0, sizeof *net);
    memset(peers, 0, (size_t)link->size * sizeof *peers);
    net->endpoint = (struct endpoint){.transport = &net_transport,
                                      .rank = link->rank,
                                      .size = link->size,
                                      .host_ranks = link->host_ranks,
                                      .host_cores = link->host_cores};
    net->session = session;
    net->link = link;
    net->meet = meet;
    net->peers = peers;
    net->timeout_s = options && options->timeout_s > 0 ? options->timeout_s : COMM_STOPPED_S;
    net->crowded = link->host_ranks > link->host_cores;
    pthread_mutex_init(&net->lock, NULL);
    tsr_status st = tsr__beat_start(net, job);
    if (st != TSR_OK) {
        net_close(&net->endpoint);
        return st;
    }
    link->on_end = on_end;
    link->on_end_data = net;
    *out = &net->endpoint;
    return TSR_OK;
}
