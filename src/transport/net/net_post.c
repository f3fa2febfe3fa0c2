// SPDX-License-Identifier: Apache-2.0
// net_post.c - messages between ranks that are processes: posting, waiting, the frames that begin
// every call.
//
// Every call starts with one frame to each other member (or to the first one alone,
// tsr__net_gather): the header, and the data if it is small. The k-th frame from a rank belongs to
// the k-th call of both, so ranks that disagree detect it by comparing. Larger data follows in
// separate messages, received only after the comparison.
//
// complete() waits for the messages of a call. It drives all messages of the call at once, so no
// order of sends and receives can deadlock. About once a millisecond it checks whether the missing
// rank has failed, ended or lost its heartbeat (net_beat.c).
//
// Memory: frames and scratch memory grow and stay until the endpoint is closed. After a failure the
// network may still write into them, so they are then never freed (net_close). The caller's buffers
// are not accessed after a failed call has returned (net_quiet.c).
#include "transport/net/net.h"

#include <time.h>

// ---- pending messages ---------------------------------------------------------------------------

static tsr_status lost(struct net *net, const struct comm_call *call, int peer,
                       struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "the network between rank %d and rank %d failed at %s '%s' (id %lld)",
                        net->endpoint.rank, peer, call->op, call->node, (long long)call->id);
}

#define LOSS_S 2.0 // by then the meeting knows which rank died

// Finds the reason of a failed message. If there is a meeting, waits at most LOSS_S, because the
// meeting soon knows which rank died or failed.
static tsr_status find_loss(struct net *net, const struct comm_call *call, int peer,
                            struct comm_trouble *why)
{
    struct timespec nap = {0, 10000000};
    double until = tsr__now_s() + LOSS_S;
    while (net->meet && tsr__now_s() < until) {
        TRY(tsr__beat_check(net, call, peer, why));
        nanosleep(&nap, NULL);
    }
    return lost(net, call, peer, why);
}

tsr_status tsr__net_out_of_memory(struct net *net, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_NOMEM, net->endpoint.rank, "rank %d is out of memory",
                        net->endpoint.rank);
}

bool tsr__net_grow(tsr_session *session, char **p, size_t *have, size_t want)
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

// Adds an entry for a request. It is marked as done until the request exists, so that it is not
// tested before. Pointers to other entries may become invalid.
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

tsr_status tsr__net_post(struct net *net, const struct comm_call *call, int peer, bool receives,
                         void *p, size_t bytes, struct comm_trouble *why)
{
    for (size_t at = 0; at < bytes; at += NET_CHUNK) {
        size_t m = bytes - at < NET_CHUNK ? bytes - at : NET_CHUNK;
        struct pending *pending = add_pending(net);
        if (!pending)
            return tsr__net_out_of_memory(net, why);
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

// Tests the messages of a range. *open gets a message that is not done; NULL: all are done. *moved
// is set if one has completed. Returns false if a message failed; *open is then that message.
static bool test_range(struct net *net, struct net_range range, struct pending **open, bool *moved)
{
    *open = NULL;
    net_step(net);
    for (size_t i = range.from; i < range.to; i++) {
        struct pending *pending = &net->pending[i];
        int done = pending->done ? 1 : net->link->test(net->link, &pending->request, &pending->got);
        *moved |= done == 1 && !pending->done;
        pending->done = done == 1;
        if (done < 0 || (done == 0 && (!*open || (!(*open)->receives && pending->receives))))
            *open = pending; // a missing message is more informative than one that was not received
        if (done < 0)
            return false;
    }
    return true;
}

// True if a message has completed since the last check.
static bool has_progress(struct net *net, struct net_range range)
{
    struct pending *open;
    bool moved = false;
    return test_range(net, range, &open, &moved) && moved;
}

bool tsr__net_is_done(struct net *net, struct net_range range)
{
    struct pending *open;
    bool moved = false;
    return test_range(net, range, &open, &moved) && !open;
}

// Waits for a range of the pending messages, while the others make progress, too.
static tsr_status complete(struct net *net, const struct comm_call *call, struct net_range range,
                           enum beat_state doing, struct comm_trouble *why)
{
    struct patience patience = {0};
    struct pending *open;
    bool published = false;
    tsr_status st = TSR_OK;
    for (;;) {
        bool moved = false;
        if (!test_range(net, range, &open, &moved)) {
            st = find_loss(net, call, open->peer, why);
            break;
        }
        if (!open)
            break;
        // Any progress shows that the others work, so waiting starts again.
        if (moved)
            patience = (struct patience){0};
        if (!net_patience(net, &patience))
            continue;
        tsr__beat_publish(net, call, doing, open->peer);
        published = true;
        st = tsr__beat_check(net, call, open->peer, why);
        // A rank that ends has sent everything, so messages that arrived between the two checks
        // still count.
        if (st != TSR_OK && !has_progress(net, range))
            break;
        st = TSR_OK;
    }
    if (published)
        tsr__beat_publish(net, call, BEAT_WORKING, -1);
    return st;
}

tsr_status tsr__net_wait(struct net *net, const struct comm_call *call, struct net_range range,
                         struct comm_trouble *why)
{
    return complete(net, call, range, BEAT_MOVING, why);
}

tsr_status tsr__net_complete(struct net *net, const struct comm_call *call,
                             struct comm_trouble *why)
{
    struct net_range all = {0, net->n_pending};
    tsr_status st = complete(net, call, all, BEAT_MOVING, why);
    if (st == TSR_OK)
        net->n_pending = 0;
    return st;
}

tsr_status tsr__net_give_up(struct net *net, struct comm_trouble *why)
{
    tsr__comm_give_up(&net->endpoint, why);
    tsr__net_quiet(net);
    return why->status;
}

// ---- frames -------------------------------------------------------------------------------------

#define FRAME_CAP ((sizeof(struct comm_header) + NET_FRAME + 63) / 64 * 64)

// Returns the memory for the frame of member i. Its length is not known before it arrives, so there
// is space for the largest one. The frames to the members come after all of these (frame_out).
char *tsr__net_frame(struct net *net, int i)
{
    return net->frames + (size_t)i * FRAME_CAP;
}

static char *frame_out(struct net *net, const struct comm_call *call, int i)
{
    size_t bytes = sizeof(struct comm_header) + tsr__net_room(call);
    return tsr__net_frame(net, call->n_group) + (size_t)i * bytes;
}

static bool grow_frames(struct net *net, const struct comm_call *call)
{
    size_t out = (size_t)call->n_group * (sizeof(struct comm_header) + tsr__net_room(call));
    if (out < FRAME_CAP) // tsr__net_spread sends one, of any length
        out = FRAME_CAP;
    return tsr__net_grow(net->session, &net->frames, &net->frame_bytes,
                         (size_t)call->n_group * FRAME_CAP + out);
}

// Returns the limit of the data in a frame. Examples: 64 KiB with two members, 21 KiB with four, 8
// KiB with nine and more.
size_t tsr__net_room(const struct comm_call *call)
{
    return tsr__frame_room(call->n_group);
}

size_t tsr__net_inline(const struct comm_call *call, uint64_t bytes)
{
    return bytes <= tsr__net_room(call) ? (size_t)bytes : 0;
}

// Posts the receive of member i's frame.
static tsr_status await_frame(struct net *net, const struct comm_call *call, int i,
                              struct comm_trouble *why)
{
    tsr_status st =
        tsr__net_post(net, call, (int)call->group[i], true, tsr__net_frame(net, i), FRAME_CAP, why);
    if (st == TSR_OK)
        net->pending[net->n_pending - 1].is_frame = true;
    return st;
}

// Sends a frame to member i. The frame is built at `out`, with the first `along` bytes of its data.
static tsr_status send_frame(struct net *net, const struct comm_call *call, int i, char *out,
                             struct comm_header *header, const struct comm_buffer *data,
                             size_t along, struct comm_trouble *why)
{
    header->bytes = data->bytes;
    memcpy(out, header, sizeof *header);
    if (along)
        memcpy(out + sizeof *header, data->p, along);
    return tsr__net_post(net, call, (int)call->group[i], false, out, sizeof *header + along, why);
}

// Posts this member's frame to member i and the receive of its frame.
static tsr_status post_frame(struct net *net, const struct comm_call *call, int i,
                             struct comm_header *header, const struct comm_buffer *data,
                             struct comm_trouble *why)
{
    TRY(await_frame(net, call, i, why));
    return send_frame(net, call, i, frame_out(net, call, i), header, data,
                      tsr__net_inline(call, data->bytes), why);
}

tsr_status tsr__net_damaged(const struct comm_call *call, int peer, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, peer, "%s '%s' (id %lld): a message from rank %d is corrupt",
                        call->op, call->node, (long long)call->id, peer);
}

// Compares the frame from member i with this member's header. It must have `along` bytes of data;
// SIZE_MAX: as many as its header states.
static tsr_status check_frame(struct net *net, const struct comm_call *call, int i, size_t got,
                              const struct comm_header *mine, size_t along,
                              struct comm_trouble *why)
{
    struct comm_header theirs;
    int peer = (int)call->group[i];
    // A frame may be shorter than a header if the other rank is of another build; texts in it may
    // lack terminators.
    memset(&theirs, 0, sizeof theirs);
    memcpy(&theirs, tsr__net_frame(net, i), got < sizeof theirs ? got : sizeof theirs);
    theirs.op[sizeof theirs.op - 1] = theirs.node[COMM_NAME - 1] = 0;
    tsr_status st = tsr__header_compare(mine, net->endpoint.rank, &theirs, peer, why);
    if (along == SIZE_MAX)
        along = tsr__net_inline(call, theirs.bytes);
    if (st != TSR_OK || got == sizeof theirs + along)
        return st;
    return tsr__net_damaged(call, peer, why);
}

// Starts a call. The messages of the previous call have ended, unless the job has failed.
static tsr_status begin(struct net *net, const struct comm_call *call, const int64_t *notes,
                        struct comm_header *header, struct comm_trouble *why)
{
    if (atomic_load(&net->failed))
        return tsr__beat_failure(net, why);
    net->n_pending = 0;
    if (!grow_frames(net, call))
        return tsr__net_out_of_memory(net, why);
    // Sent with the heartbeats: if two checks see the same number, it is the same wait.
    atomic_fetch_add(&net->calls, 1);
    tsr__header_of(call, notes, header);
    return TSR_OK;
}

tsr_status tsr__net_meet(struct net *net, const struct comm_call *call, const int64_t *notes,
                         const struct comm_buffer *send, bool same, struct comm_trouble *why)
{
    struct comm_header header = {0};
    tsr_status st = begin(net, call, notes, &header, why);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < call->n_group; i++) {
        const struct comm_buffer *data = &send[same ? 0 : i];
        if (call->group[i] != net->endpoint.rank)
            st = post_frame(net, call, i, &header, data, why);
        if (st != TSR_OK)
            break;
    }
    if (st == TSR_OK)
        st = complete(net, call, (struct net_range){0, net->n_pending}, BEAT_WAITING, why);
    if (st != TSR_OK)
        return st; // the end of the job handles pending messages
    // pending has, for each other member in group order, its receive and then the send: `got` of
    // the receives is the length of the frames.
    size_t at = 0;
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] == net->endpoint.rank)
            continue;
        st = check_frame(net, call, i, net->pending[at].got, &header, SIZE_MAX, why);
        if (st != TSR_OK)
            return st;
        at += 2; // receive and send of each member
    }
    net->n_pending = 0;
    return TSR_OK;
}

// True if this rank is the head, the first member.
static bool is_head(const struct net *net, const struct comm_call *call)
{
    return call->group[0] == net->endpoint.rank;
}

// Receives, as the head, the frames of all others, and checks that they agree.
static tsr_status gather_frames(struct net *net, const struct comm_call *call,
                                const struct comm_header *header, size_t bytes,
                                struct comm_trouble *why)
{
    for (int i = 1; i < call->n_group; i++)
        TRY(await_frame(net, call, i, why));
    tsr_status st = complete(net, call, (struct net_range){0, net->n_pending}, BEAT_WAITING, why);
    for (int i = 1; i < call->n_group; i++) {
        if (st != TSR_OK)
            return st;
        st = check_frame(net, call, i, net->pending[i - 1].got, header, bytes, why);
    }
    return st;
}

tsr_status tsr__net_gather(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why)
{
    struct comm_header header = {0};
    TRY(begin(net, call, NULL, &header, why));
    if (is_head(net, call))
        return gather_frames(net, call, &header, data->bytes, why);
    TRY(await_frame(net, call, 0, why));
    TRY(send_frame(net, call, 0, frame_out(net, call, 0), &header, data, data->bytes, why));
    TRY(complete(net, call, (struct net_range){0, net->n_pending}, BEAT_WAITING, why));
    return check_frame(net, call, 0, net->pending[0].got, &header, data->bytes, why);
}

// Sends, as the head, the same frame to all other members.
tsr_status tsr__net_spread(struct net *net, const struct comm_call *call,
                           const struct comm_buffer *data, struct comm_trouble *why)
{
    struct comm_header header = {0};
    char *out = frame_out(net, call, 0);
    net->n_pending = 0;
    tsr__header_of(call, NULL, &header);
    tsr_status st = send_frame(net, call, 1, out, &header, data, data->bytes, why);
    for (int i = 2; i < call->n_group; i++) {
        if (st != TSR_OK)
            return st;
        st = tsr__net_post(net, call, (int)call->group[i], false, out, sizeof header + data->bytes,
                           why);
    }
    if (st != TSR_OK)
        return st;
    return tsr__net_complete(net, call, why);
}

// Cancels pending messages. The receive of a frame can be cancelled, but not that of data, which
// the other side may be writing. Returns false if data may still be on its way.
bool tsr__net_cancel(struct net *net)
{
    bool clean = true;
    for (size_t i = 0; i < net->n_pending; i++) {
        struct pending *pending = &net->pending[i];
        if (pending->done)
            continue;
        if (pending->is_frame)
            net->link->cancel(net->link, &pending->request);
        else
            clean = net->link->test(net->link, &pending->request, NULL) == 1 && clean;
        pending->done = true;
    }
    return clean;
}
