// SPDX-License-Identifier: Apache-2.0
// by_hosts.c - collectives of groups that span hosts: shared memory inside a host, and every byte
// once from host to host.
//
// The k-th members of all hosts form lane k. There are as many lanes as the host with the fewest
// members has members, and they work at the same time. Each transfer is three steps: inside the
// hosts, along the lanes, inside the hosts. All sums are in group order, so the bits are those of
// every other transport.
//
//     Example: hosts a with ranks 0 and 1, b with ranks 2 and 3; lanes {0, 2} and {1, 3}. Sum of 8
//     MiB: rank 0 gets the first 4 MiB of rank 1, adds both, and sends the partial sum to rank 2,
//     which adds those of ranks 2 and 3 and sends the sum back. Lane {1, 3} does the same with the
//     last 4 MiB. Then ranks 0 and 1 exchange their halves, and ranks 2 and 3 theirs.
//
// Small sums go through the first rank of each host: it sends the tensors of its host to the other
// hosts, adds all of them, and gives the sum to its host. So a sum waits once for the network.
#include "transport/net/hosts.h"

#define ROUND (16u << 20) // bytes of the tensor in one round of a large reduction

// A group that spans hosts, as one of its ranks sees it. Hosts are in the order of their first
// members.
struct by_hosts {
    struct hosts *hosts;
    struct net *net;
    const struct hosts_call *what;
    const struct comm_call *call;
    struct arena *arena; // of this call
    int n_hosts, here;
    int *host, *place;     // by member: its host, and its place on that host
    int *members;          // by host
    int lanes, most;       // least and largest number of members of a host
    int self;              // place of this rank
    bool in_order;         // the members of each host follow each other in the group
    struct comm_call near; // for the members on this host
    struct comm_call lane; // for this rank's lane, with one member per host; n_group 0: none
    struct comm_trouble *why;
};

// ---- the group ----------------------------------------------------------------------------------

// Returns the index of the host of a member, which gets a new one if it is the first of its host.
// ids: hosts so far. Members of one host usually follow each other, so the last host is tried
// first.
static int host_of(struct by_hosts *view, uint64_t *ids, int64_t rank)
{
    uint64_t id = view->hosts->host[rank];
    for (int h = view->n_hosts - 1; h >= 0; h--)
        if (ids[h] == id)
            return h;
    ids[view->n_hosts] = id;
    return view->n_hosts++;
}

static void place_members(struct by_hosts *view, uint64_t *ids)
{
    view->in_order = true;
    for (int i = 0; i < view->call->n_group; i++) {
        int known = view->n_hosts, h = host_of(view, ids, view->call->group[i]);
        view->in_order &= i == 0 || h == known || h == view->host[i - 1];
        view->host[i] = h;
        view->place[i] = view->members[h]++;
        if (view->call->group[i] == view->net->endpoint.rank) {
            view->here = h;
            view->self = view->place[i];
        }
    }
    view->lanes = view->most = view->members[0];
    for (int h = 1; h < view->n_hosts; h++) {
        view->lanes = view->members[h] < view->lanes ? view->members[h] : view->lanes;
        view->most = view->members[h] > view->most ? view->members[h] : view->most;
    }
}

// Returns the call for a part of the group. Its header also has a hash of the full group, so that
// ranks with different groups are detected.
static struct comm_call call_of_part(const struct by_hosts *view, int64_t *group, int n)
{
    struct comm_call part = *view->call;
    part.whole =
        tsr__hash64(part.group, (size_t)part.n_group * sizeof *part.group, (uint64_t)part.n_group);
    part.group = group;
    part.n_group = n;
    return part;
}

static bool view_open(struct by_hosts *view)
{
    size_t n = (size_t)view->call->n_group;
    uint64_t *ids = ARENA_ARRAY(view->arena, uint64_t, n);
    view->host = ARENA_ARRAY(view->arena, int, n);
    view->place = ARENA_ARRAY(view->arena, int, n);
    view->members = ARENA_ARRAY(view->arena, int, n);
    int64_t *near = ARENA_ARRAY(view->arena, int64_t, n);
    int64_t *lane = ARENA_ARRAY(view->arena, int64_t, n);
    if (view->arena->failed)
        return false;
    place_members(view, ids);
    int n_near = 0, n_lane = 0;
    for (int i = 0; i < view->call->n_group; i++) {
        if (view->host[i] == view->here)
            near[n_near++] = view->call->group[i];
        if (view->place[i] == view->self)
            lane[n_lane++] = view->call->group[i];
    }
    view->near = call_of_part(view, near, n_near);
    view->lane = call_of_part(view, lane, view->self < view->lanes ? n_lane : 0);
    return true;
}

// Exchanges parts between the members on this host.
static tsr_status exchange_near(struct by_hosts *view, const struct comm_buffer *send,
                                struct comm_buffer *recv)
{
    struct comm_exchange exchange = {.send = send, .recv = recv};
    struct endpoint *shm = view->hosts->shm;
    return shm->transport->exchange(shm, &view->near, &exchange, view->why);
}

static tsr_status out_of_memory(const struct by_hosts *view)
{
    return tsr__net_out_of_memory(view->net, view->why);
}

// ---- small all-reduce ---------------------------------------------------------------------------

static size_t tensor_bytes(const struct by_hosts *view)
{
    return (size_t)view->call->count * tsr__elem_bytes(view->call->type);
}

// Exchanges the tensors of all hosts between their first members, and folds them. parts: by host,
// with the tensors of its members one after the other.
static tsr_status fold_all(struct by_hosts *view, struct comm_buffer *parts)
{
    size_t bytes = tensor_bytes(view);
    struct endpoint *net = &view->net->endpoint;
    struct comm_buffer *send = ARENA_ARRAY(view->arena, struct comm_buffer, (size_t)view->n_hosts);
    const void **ins = ARENA_ARRAY(view->arena, const void *, (size_t)view->call->n_group);
    if (!send || !ins)
        return out_of_memory(view);
    for (int h = 0; h < view->n_hosts; h++)
        send[h] = parts[view->here];
    struct comm_exchange exchange = {.send = send, .recv = parts};
    TRY(net->transport->exchange(net, &view->lane, &exchange, view->why));
    for (int i = 0; i < view->call->n_group; i++)
        ins[i] = (const char *)parts[view->host[i]].p + (size_t)view->place[i] * bytes;
    tsr__reduce(view->call->type, view->call->reduce, ins, view->call->n_group,
                (void *const *)&view->what->out, 1, 0, view->call->count);
    return TSR_OK;
}

// Sums tensors of up to 64 KiB / members of a host, between two hosts.
static tsr_status first_ranks(struct by_hosts *view)
{
    size_t bytes = tensor_bytes(view), n = (size_t)view->near.n_group;
    struct comm_buffer mine = {(void *)view->what->in, bytes}, result = {view->what->out, bytes};
    struct comm_buffer *parts = ARENA_ARRAY(view->arena, struct comm_buffer, (size_t)view->n_hosts);
    struct comm_buffer *send = ARENA_ARRAY(view->arena, struct comm_buffer, n);
    struct comm_buffer *recv = ARENA_ARRAY(view->arena, struct comm_buffer, n);
    char *memory = ARENA_ARRAY(view->arena, char, (size_t)view->call->n_group *bytes + 1);
    if (view->arena->failed)
        return out_of_memory(view);
    for (int h = 0; h < view->n_hosts; h++) {
        parts[h] = (struct comm_buffer){memory, (size_t)view->members[h] * bytes};
        memory += parts[h].bytes;
    }
    send[0] = mine;
    for (size_t i = 0; view->self == 0 && i < n; i++)
        recv[i] = (struct comm_buffer){(char *)parts[view->here].p + i * bytes, bytes};
    TRY(exchange_near(view, send, recv));
    send[0] = (struct comm_buffer){0};
    memset(recv, 0, n * sizeof *recv);
    if (view->self == 0)
        TRY(fold_all(view, parts));
    for (size_t i = 0; view->self == 0 && i < n; i++)
        send[i] = result;
    recv[0] = result;
    return exchange_near(view, send, recv);
}

// ---- large reductions ---------------------------------------------------------------------------

// A range of the tensor that one lane reduces.
struct lane_slice {
    const char *in; // this rank's input
    char *out;      // result on this rank; NULL: it is for another one
    size_t bytes;
    int host, place; // where the result is wanted; host -1: everywhere
};

// Slices that the lanes reduce at the same time, and their memory. step: bytes of a slice in a
// round.
struct lane_turn {
    struct lane_slice *slices; // by lane
    struct comm_buffer *send, *recv;
    const void **ins;
    size_t at, step; // begin of this round
    char *parts;     // the inputs of the members on this host, for this lane
    char *result;
};

static size_t round_bytes(const struct lane_turn *turn, int lane)
{
    size_t bytes = turn->slices[lane].bytes;
    size_t left = bytes > turn->at ? bytes - turn->at : 0;
    return left < turn->step ? left : turn->step;
}

static bool in_lane(const struct by_hosts *view)
{
    return view->lane.n_group > 0;
}

// Gives every lane member of this host the inputs of the others for its lane.
static tsr_status collect_inputs(struct by_hosts *view, struct lane_turn *turn)
{
    size_t n = (size_t)view->near.n_group, own = 0;
    memset(turn->send, 0, n * sizeof *turn->send);
    memset(turn->recv, 0, n * sizeof *turn->recv);
    if (in_lane(view))
        own = round_bytes(turn, view->self);
    for (int lane = 0; lane < view->lanes; lane++)
        if (round_bytes(turn, lane))
            turn->send[lane] = (struct comm_buffer){(char *)turn->slices[lane].in + turn->at,
                                                    round_bytes(turn, lane)};
    for (size_t i = 0; own && i < n; i++) {
        void *to = (int)i == view->self ? turn->send[i].p : turn->parts + i * own;
        turn->recv[i] = (struct comm_buffer){to, own};
        turn->ins[i] = to;
    }
    return exchange_near(view, turn->send, turn->recv);
}

// Reduces this lane's part of the round along the hosts.
static tsr_status reduce_lane(struct by_hosts *view, struct lane_turn *turn)
{
    if (!in_lane(view) || round_bytes(turn, view->self) == 0)
        return TSR_OK;
    const struct lane_slice *slice = &turn->slices[view->self];
    turn->result =
        slice->out ? slice->out + turn->at : turn->parts + (size_t)view->near.n_group * turn->step;
    struct net_chain chain = {.call = &view->lane,
                              .me = view->here,
                              .ins = turn->ins,
                              .n_ins = view->near.n_group,
                              .first = slice->host < 0 ? 0 : slice->host,
                              .out = turn->result};
    chain.count = (int64_t)(round_bytes(turn, view->self) / tsr__elem_bytes(view->call->type));
    return tsr__net_chain(view->net, &chain, view->why);
}

// Hands the results of all lanes to the members of this host that want them.
static tsr_status share_results(struct by_hosts *view, struct lane_turn *turn)
{
    memset(turn->send, 0, (size_t)view->near.n_group * sizeof *turn->send);
    memset(turn->recv, 0, (size_t)view->near.n_group * sizeof *turn->recv);
    for (int lane = 0; lane < view->lanes; lane++) {
        const struct lane_slice *slice = &turn->slices[lane];
        size_t bytes = round_bytes(turn, lane);
        for (int i = 0; bytes && i < view->near.n_group; i++) {
            if (slice->host >= 0 && (slice->host != view->here || slice->place != i))
                continue;
            if (lane == view->self)
                turn->send[i] = (struct comm_buffer){turn->result, bytes};
            if (i == view->self)
                turn->recv[lane] = (struct comm_buffer){slice->out + turn->at, bytes};
        }
    }
    return exchange_near(view, turn->send, turn->recv);
}

// Reduces one slice per lane, in rounds. share: a result may be wanted by a rank outside of the
// lane.
static tsr_status reduce_turn(struct by_hosts *view, struct lane_turn *turn, bool share)
{
    size_t most = 0;
    for (int lane = 0; lane < view->lanes; lane++)
        most = turn->slices[lane].bytes > most ? turn->slices[lane].bytes : most;
    for (turn->at = 0; turn->at < most; turn->at += turn->step) {
        TRY(collect_inputs(view, turn));
        TRY(reduce_lane(view, turn));
        if (share)
            TRY(share_results(view, turn));
    }
    return TSR_OK;
}

// Compares the headers of a lane's members, and makes the memory of a reduction.
static tsr_status begin_reduction(struct by_hosts *view, struct lane_turn *turn)
{
    struct comm_buffer none = {0};
    size_t n = (size_t)view->near.n_group;
    turn->step = ROUND / (unsigned)view->lanes / 256 * 256;
    turn->step = turn->step ? turn->step : 256;
    turn->slices = ARENA_ARRAY(view->arena, struct lane_slice, (size_t)view->lanes);
    turn->send = ARENA_ARRAY(view->arena, struct comm_buffer, n);
    turn->recv = ARENA_ARRAY(view->arena, struct comm_buffer, n);
    turn->ins = ARENA_ARRAY(view->arena, const void *, n);
    if (!in_lane(view))
        return view->arena->failed ? out_of_memory(view) : TSR_OK;
    if (view->arena->failed || !tsr__net_grow(view->hosts->session, &view->hosts->scratch,
                                              &view->hosts->scratch_bytes, (n + 1) * turn->step))
        return out_of_memory(view);
    turn->parts = view->hosts->scratch;
    return tsr__net_meet(view->net, &view->lane, NULL, &none, true, view->why);
}

static tsr_status lanes_reduce(struct by_hosts *view)
{
    struct lane_turn turn = {0};
    size_t unit = tsr__elem_bytes(view->call->type);
    TRY(begin_reduction(view, &turn));
    for (int lane = 0; lane < view->lanes; lane++) {
        int64_t first, length;
        tsr__slice(view->call->count, unit, view->lanes, lane, &first, &length);
        turn.slices[lane] =
            (struct lane_slice){.in = (const char *)view->what->in + (size_t)first * unit,
                                .out = (char *)view->what->out + (size_t)first * unit,
                                .bytes = (size_t)length * unit,
                                .host = -1};
    }
    return reduce_turn(view, &turn, true);
}

// Returns the member whose piece a lane handles in that turn; -1: none. Lane k handles the pieces
// of the members whose place is k, k + lanes, ..., in group order.
static int member_of_turn(const struct by_hosts *view, int lane, int turn)
{
    for (int i = 0; i < view->call->n_group; i++)
        if (view->place[i] % view->lanes == lane && turn-- == 0)
            return i;
    return -1;
}

// Returns the number of turns that the busiest lane needs.
static int turns_of(const struct by_hosts *view)
{
    int turns = 0;
    for (int lane = 0; lane < view->lanes; lane++)
        while (member_of_turn(view, lane, turns) >= 0)
            turns++;
    return turns;
}

static tsr_status lanes_scatter(struct by_hosts *view)
{
    struct lane_turn turn = {0};
    const struct comm_exchange *exchange = view->what->exchange;
    TRY(begin_reduction(view, &turn));
    int turns = turns_of(view);
    for (int t = 0; t < turns; t++) {
        for (int lane = 0; lane < view->lanes; lane++) {
            int i = member_of_turn(view, lane, t);
            turn.slices[lane] = (struct lane_slice){.host = -1};
            if (i < 0)
                continue;
            bool mine = view->call->group[i] == view->net->endpoint.rank;
            turn.slices[lane] = (struct lane_slice){.in = exchange->send[i].p,
                                                    .out = mine ? exchange->folded : NULL,
                                                    .bytes = exchange->send[i].bytes,
                                                    .host = view->host[i],
                                                    .place = view->place[i]};
        }
        TRY(reduce_turn(view, &turn, view->near.n_group > view->lanes));
    }
    return TSR_OK;
}

// ---- all-gather ---------------------------------------------------------------------------------

// The parts of other hosts that are too large for frames. Lane k handles those of the members whose
// place is k, k + lanes, ..., in group order.
struct lane_gather {
    struct comm_buffer *parts; // by member
    int *turn;                 // by member: its turn in its lane; -1: not handled by a lane
    struct net_range *arrives; // by turn: messages of this rank's lane
    int turns;
    struct comm_buffer *send, *recv;
};

// True if the part of a member is not in its frame.
static bool is_large(const struct by_hosts *view, const struct lane_gather *gather, int i)
{
    return gather->parts[i].bytes > tsr__net_room(view->call);
}

// Gives all members on this host their own large parts.
static tsr_status gather_near(struct by_hosts *view, struct lane_gather *gather)
{
    struct comm_buffer own = {0};
    for (int i = 0, k = 0; i < view->call->n_group; i++) {
        if (view->host[i] != view->here)
            continue;
        if (is_large(view, gather, i) && view->place[i] == view->self)
            own = gather->parts[i];
        else if (is_large(view, gather, i))
            gather->recv[k] = gather->parts[i];
        k++;
    }
    for (int k = 0; k < view->near.n_group; k++)
        if (k != view->self)
            gather->send[k] = own;
    return exchange_near(view, gather->send, gather->recv);
}

// Sends a part of this host to the lane's members on the other hosts.
static tsr_status send_part(struct by_hosts *view, const struct comm_buffer *part)
{
    for (int h = 0; h < view->n_hosts; h++)
        if (h != view->here)
            TRY(tsr__net_post(view->net, &view->lane, (int)view->lane.group[h], false, part->p,
                              part->bytes, view->why));
    return TSR_OK;
}

// Receives a part of another host, in that turn of this rank's lane.
static tsr_status receive_part(struct by_hosts *view, struct lane_gather *gather, int i)
{
    struct net_range *range = &gather->arrives[gather->turn[i]];
    const struct comm_buffer *part = &gather->parts[i];
    range->from = view->net->n_pending;
    TRY(tsr__net_post(view->net, &view->lane, (int)view->lane.group[view->host[i]], true, part->p,
                      part->bytes, view->why));
    range->to = view->net->n_pending;
    return TSR_OK;
}

// Gives the large parts of other hosts their turns, and posts the messages of this rank's lane.
static tsr_status post_lane(struct by_hosts *view, struct lane_gather *gather)
{
    int *taken = ARENA_ARRAY(view->arena, int, (size_t)view->lanes); // turns by lane
    if (!taken)
        return out_of_memory(view);
    for (int i = 0; i < view->call->n_group; i++) {
        int lane = view->place[i] % view->lanes;
        bool mine = lane == view->self, far = view->host[i] != view->here;
        gather->turn[i] = -1;
        if (!is_large(view, gather, i))
            continue;
        if (far)
            gather->turn[i] = taken[lane]++;
        gather->turns = taken[lane] > gather->turns ? taken[lane] : gather->turns;
        if (mine)
            TRY(far ? receive_part(view, gather, i) : send_part(view, &gather->parts[i]));
    }
    return TSR_OK;
}

// Waits for the part of this rank's lane in that turn, and exchanges it with those of the other
// lanes.
static tsr_status share_turn(struct by_hosts *view, struct lane_gather *gather, int turn)
{
    memset(gather->send, 0, (size_t)view->near.n_group * sizeof *gather->send);
    memset(gather->recv, 0, (size_t)view->near.n_group * sizeof *gather->recv);
    if (in_lane(view))
        TRY(tsr__net_wait(view->net, &view->lane, gather->arrives[turn], view->why));
    for (int i = 0; i < view->call->n_group; i++) {
        int lane = view->place[i] % view->lanes;
        if (gather->turn[i] != turn)
            continue;
        if (lane != view->self)
            gather->recv[lane] = gather->parts[i];
        for (int k = 0; lane == view->self && k < view->near.n_group; k++)
            if (k != view->self)
                gather->send[k] = gather->parts[i];
    }
    return exchange_near(view, gather->send, gather->recv);
}

// Gathers: frames with headers, notes and small parts between all members, then large parts.
static tsr_status lanes_gather(struct by_hosts *view)
{
    struct comm_exchange *exchange = view->what->exchange;
    size_t n = (size_t)view->call->n_group;
    struct lane_gather gather = {.send = ARENA_ARRAY(view->arena, struct comm_buffer, n),
                                 .recv = ARENA_ARRAY(view->arena, struct comm_buffer, n),
                                 .turn = ARENA_ARRAY(view->arena, int, n),
                                 .arrives = ARENA_ARRAY(view->arena, struct net_range, n)};
    if (view->arena->failed)
        return out_of_memory(view);
    TRY(tsr__net_exchange_small(view->net, view->call, exchange, view->why));
    gather.parts = exchange->recv;
    bool large = false;
    for (size_t i = 0; i < n; i++)
        large |= is_large(view, &gather, (int)i);
    if (!large)
        return TSR_OK;
    TRY(gather_near(view, &gather));
    TRY(post_lane(view, &gather));
    for (int turn = 0; turn < gather.turns; turn++)
        TRY(share_turn(view, &gather, turn));
    return tsr__net_complete(view->net, &view->lane, view->why);
}

// ---- the table ----------------------------------------------------------------------------------

// Returns the bytes of the full tensor, which must be equal on all members: 0 if they are not known
// yet, as in an all-gather, whose rows do not need them.
static size_t full_bytes(const struct hosts_call *what)
{
    size_t bytes = 0;
    if (!what->exchange)
        return (size_t)what->call->count * tsr__elem_bytes(what->call->type);
    for (int i = 0; what->exchange->folded && i < what->call->n_group; i++)
        bytes += what->exchange->send[i].bytes;
    return bytes;
}

// Runs the first algorithm of HOSTS_ALGORITHMS that applies. *mine is false if none applies:
// messages between all members do the work.
static tsr_status run(struct by_hosts *view, bool *mine)
{
    static tsr_status (*const algorithms[])(struct by_hosts *) = {
#define ROW(path, function, name, what, condition) function,
        HOSTS_ALGORITHMS(ROW)
#undef ROW
    };
    if (!view_open(view))
        return out_of_memory(view);
    const struct comm_shape shape = {.path = view->most > 1 ? PATH_HOSTS : PATH_MESSAGES,
                                     .members = view->call->n_group,
                                     .bytes = full_bytes(view->what),
                                     .hosts = view->n_hosts,
                                     .most = view->most,
                                     .in_order = view->in_order};
    int place = tsr__comm_choose(&view->hosts->endpoint, view->call->kind, &shape);
    *mine = shape.path == PATH_HOSTS && place >= 0;
    return *mine ? algorithms[place](view) : TSR_OK;
}

tsr_status tsr__by_hosts(struct hosts *hosts, const struct hosts_call *what, bool *mine,
                         struct comm_trouble *why)
{
    struct arena arena = {.session = hosts->session};
    struct by_hosts view = {.hosts = hosts,
                            .net = (struct net *)hosts->net,
                            .what = what,
                            .call = what->call,
                            .arena = &arena,
                            .why = why};
    *mine = false;
    if (!hosts->joined || (what->exchange && !what->exchange->collective))
        return TSR_OK; // the exchange may be a step of a collective
    tsr_status st = run(&view, mine);
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return tsr__net_give_up(view.net, why); // messages may be under way
    return TSR_OK;
}
