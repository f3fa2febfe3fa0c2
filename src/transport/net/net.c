// SPDX-License-Identifier: Apache-2.0
// net.c - an endpoint of ranks that are processes: exchanges between them, opening, closing.
// Messages: net_post.c; sums: net_reduce.c.
#include "transport/net/net.h"

#include <time.h>

// ---- exchange -----------------------------------------------------------------------------------

// Calls the caller's `arrived`, between headers and data: it gets all notes and may set the receive
// buffers.
static tsr_status call_arrived(struct net *net, const struct comm_call *call,
                               struct comm_exchange *exchange, struct comm_trouble *why)
{
    if (!exchange->arrived)
        return TSR_OK;
    struct arena arena = {.session = net->session};
    int64_t(*notes)[COMM_NOTES] =
        (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&arena, int64_t, (size_t)call->n_group * COMM_NOTES);
    if (!notes)
        return tsr__net_out_of_memory(net, why);
    for (int i = 0; i < call->n_group; i++) {
        struct comm_header header;
        bool self = call->group[i] == net->endpoint.rank;
        memcpy(&header, tsr__net_frame(net, i), sizeof header);
        memcpy(notes[i], self ? exchange->notes : header.notes, sizeof notes[i]);
    }
    tsr_status st = exchange->arrived(exchange->data, (const int64_t(*)[COMM_NOTES])notes, why);
    tsr__arena_free(&arena);
    return st;
}

// Returns the size of the part of member i.
static uint64_t part_bytes(struct net *net, const struct comm_call *call,
                           const struct comm_exchange *exchange, int i)
{
    struct comm_header header;
    if (call->group[i] == net->endpoint.rank)
        return exchange->send[i].bytes;
    memcpy(&header, tsr__net_frame(net, i), sizeof header);
    return header.bytes;
}

// Checks the size of member i's part, and stores the part if it is this member's own or came in the
// frame.
static tsr_status take_small(struct net *net, const struct comm_call *call,
                             const struct comm_exchange *exchange, int i, struct comm_trouble *why)
{
    int peer = (int)call->group[i];
    bool self = peer == net->endpoint.rank;
    const struct comm_buffer *to = &exchange->recv[i];
    uint64_t bytes = part_bytes(net, call, exchange, i);
    const void *from = tsr__net_frame(net, i) + sizeof(struct comm_header);
    if (bytes != to->bytes)
        return tsr__trouble_size(why, call, peer, bytes, net->endpoint.rank, to->bytes);
    if (self)
        from = exchange->send[i].p; // not sent; it may already be in place
    if (to->bytes && to->p != from && (self || tsr__net_inline(call, to->bytes)))
        memcpy(to->p, from, to->bytes);
    return TSR_OK;
}

// Receives the part of member i, if it was too large for the frame.
static tsr_status take_large(struct net *net, const struct comm_call *call,
                             const struct comm_exchange *exchange, int i, struct comm_trouble *why)
{
    const struct comm_buffer *to = &exchange->recv[i];
    int peer = (int)call->group[i];
    if (peer == net->endpoint.rank || tsr__net_inline(call, to->bytes))
        return TSR_OK;
    return tsr__net_post(net, call, peer, true, to->p, to->bytes, why);
}

// Prepares the memory for parts that will be folded: scratch memory, except for this member's own
// part.
static tsr_status place_parts(struct net *net, const struct comm_call *call,
                              struct comm_exchange *exchange, struct comm_trouble *why)
{
    size_t bytes = exchange->recv[0].bytes;
    if (!tsr__net_grow(net->session, &net->scratch, &net->scratch_bytes,
                       (size_t)call->n_group * bytes))
        return tsr__net_out_of_memory(net, why);
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
        return tsr__net_out_of_memory(net, why);
    }
    for (int i = 0; i < call->n_group; i++)
        ins[i] = exchange->recv[i].p;
    tsr__reduce(call->type, call->reduce, ins, call->n_group, (void *const *)&exchange->folded, 1,
                0, (int64_t)(exchange->recv[0].bytes / tsr__elem_bytes(call->type)));
    tsr__arena_free(&arena);
    return TSR_OK;
}

// Sends the part for member i, if it was too large to be sent with the header.
static tsr_status send_part(struct net *net, const struct comm_call *call,
                            const struct comm_exchange *exchange, int i, struct comm_trouble *why)
{
    const struct comm_buffer *part = &exchange->send[i];
    if (call->group[i] == net->endpoint.rank || part->bytes <= tsr__net_room(call))
        return TSR_OK;
    return tsr__net_post(net, call, (int)call->group[i], false, part->p, part->bytes, why);
}

tsr_status tsr__net_exchange_small(struct net *net, const struct comm_call *call,
                                   struct comm_exchange *exchange, struct comm_trouble *why)
{
    TRY(tsr__net_meet(net, call, exchange->notes, exchange->send, false, why));
    TRY(call_arrived(net, call, exchange, why));
    if (exchange->folded)
        TRY(place_parts(net, call, exchange, why));
    for (int i = 0; i < call->n_group; i++)
        TRY(take_small(net, call, exchange, i, why));
    return TSR_OK;
}

// Exchanges parts: first headers and small data, then larger data. Receives are posted before
// sends, member by member, and tsr__net_complete waits for all of them together.
static tsr_status exchange_parts(struct net *net, const struct comm_call *call,
                                 struct comm_exchange *exchange, struct comm_trouble *why)
{
    TRY(tsr__net_exchange_small(net, call, exchange, why));
    for (int i = 0; i < call->n_group; i++) {
        TRY(take_large(net, call, exchange, i, why));
        TRY(send_part(net, call, exchange, i, why));
    }
    tsr_status st = tsr__net_complete(net, call, why);
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
    return tsr__net_give_up(net, why);
}

// ---- open, close --------------------------------------------------------------------------------

static void net_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    tsr__beat_fail((struct net *)endpoint, status, rank, text);
}

static void net_leave(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    tsr__beat_leave((struct net *)endpoint, status, rank, text);
}

static bool net_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    return tsr__beat_trouble((struct net *)endpoint, why);
}

// Frees the endpoint. Does not close the link: MPI's belongs to the process, and end_link has
// closed UCX's.
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

// Ends the heartbeats. After a failure, the network is closed normally only if all ranks know of
// the failure and nothing is pending.
static void stop(struct net *net)
{
    bool answered = false;
    if (!tsr__beat_stop(net, &answered) || !atomic_load(&net->failed))
        return;
    if (!answered || !tsr__net_cancel(net))
        net->link->failed(net->link);
}

static void step_link(void *data)
{
    struct link *link = data;
    link->flush(link);
}

#define FLUSH_S 2.0 // longest wait for the last messages to leave

// Closes the link of this job. First waits, for a limited time, until all ranks have sent
// everything: closing it earlier could lose messages.
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

// Closes the endpoint. Reads `failed` before stop(): if a failure is reported only during the
// farewell, no message is pending, and everything can be freed.
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
    if (!failed) // else messages may be pending in this memory; the process ends soon
        tsr__net_free(endpoint);
}

// Returns the method of a group. Links with a meeting are UCX's; MPI connects its ranks itself.
static const char *net_method(const struct endpoint *endpoint, const int64_t *group, int n)
{
    (void)group, (void)n;
    return ((const struct net *)endpoint)->meet ? "ucx" : "mpi";
}

static const struct transport net_transport = {
    .name = "mpi",
    .method = net_method,
    .all_reduce = tsr__net_all_reduce,
    .exchange = net_exchange,
    .fail = net_fail,
    .leave = net_leave,
    .failure = net_failure,
    .close = net_close,
    .give = tsr__net_give,
    .settle = tsr__net_settle,
    .take = tsr__net_take,
};

// Sends a farewell while it is still possible: called when MPI is about to end in this process
// although the endpoint is open.
static void on_end(void *data)
{
    stop(data);
}

// Creates the endpoint of a rank over a link. The heartbeat thread starts last: it reads all that
// was set before.
tsr_status tsr__net_open(tsr_session *session, struct link *link, struct meet *meet, uint32_t job,
                         const struct comm_options *options, struct endpoint **out)
{
    struct net *net = tsr__alloc(session, sizeof *net);
    struct peer *peers = net ? tsr__alloc(session, (size_t)link->size * sizeof *peers) : NULL;
    if (!peers) {
        if (link->close)
            link->close(link);
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
