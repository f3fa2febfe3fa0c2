// SPDX-License-Identifier: Apache-2.0
// net_reduce.c - all-reduce of ranks that are processes, built from messages between pairs.
//
// MESSAGES_ALGORITHMS (collective.h) says which algorithm runs. Small tensors are sent completely
// in the frames, and every member folds all of them (one_shot), or the first member does it for all
// (at_head). A larger reduction is divided into slices (in_rounds): each member receives all
// members' parts of its slice, folds them in group order, and sends the result to all. So every
// element is folded in one order: the same bits on all ranks and transports.
//
// Slices are sent in pieces, so that folding, sending and receiving overlap. The first piece comes
// with the frames; the others are posted SUM_WINDOW at a time. Example: two members and 1 MiB: each
// folds a slice of 512 KiB, in pieces of 64 KiB (in the frame), 256 and 192 KiB. Member 0 sends to
// member 1, in this order: the frame with piece 0 of slice 1; piece 1 of slice 1; the result of
// piece 0 of slice 0; piece 2 of slice 1; the results of pieces 1 and 2 of slice 0. Both sides post
// in this order; nothing else identifies the messages.
#include "transport/net/net.h"

#define SUM_PIECE  (256u << 10) // bytes of a piece
#define SUM_WINDOW 2            // pieces whose parts are in flight at a time

// One round of a large reduction.
struct sum {
    struct net *net;
    const struct comm_call *call;
    const char *in;
    char *out;
    int64_t count;                      // elements of this round
    size_t unit;                        // bytes of an element
    int me;                             // index of this member in the group
    int64_t head;                       // elements of each slice that came with the frames
    int64_t step;                       // elements of every later piece
    int64_t pieces;                     // number of pieces of the longest slice
    struct net_range parts[SUM_WINDOW]; // the messages with the parts of a piece
    const void **ins;
    struct comm_buffer *send; // by member
    struct comm_trouble *why;
};

// A range of `in` and `out`.
struct span {
    size_t at, bytes;
};

// Returns piece `piece` of the slice that a member folds; empty behind the end of the slice.
// Example: head 10, step 4, a slice of 17 elements from 100 on: 100..109, 110..113, 114..116.
static struct span piece_of(const struct sum *sum, int member, int64_t piece)
{
    int64_t first, length, begin = 0, end = sum->head;
    tsr__slice(sum->count, sum->unit, sum->call->n_group, member, &first, &length);
    if (piece > 0) {
        begin = sum->head + (piece - 1) * sum->step;
        end = begin + sum->step;
    }
    begin = begin < length ? begin : length;
    end = end < length ? end : length;
    return (struct span){(size_t)(first + begin) * sum->unit, (size_t)(end - begin) * sum->unit};
}

static bool is_me(const struct sum *sum, int member)
{
    return member == sum->me;
}

// Returns the memory that holds a member's data for piece `piece` of this rank's slice until it is
// folded.
static char *part_place(const struct sum *sum, int64_t piece, int member)
{
    size_t slot = (size_t)(piece % SUM_WINDOW) * (size_t)sum->call->n_group + (size_t)member;
    if (piece == 0)
        return tsr__net_frame(sum->net, member) + sizeof(struct comm_header);
    return sum->net->scratch + slot * (size_t)sum->step * sum->unit;
}

// Posts the messages of piece `piece` of all slices: receives the other members' data for this
// rank's slice, and sends this rank's data for theirs.
static tsr_status post_parts(struct sum *sum, int64_t piece)
{
    struct net_range *range = &sum->parts[piece % SUM_WINDOW];
    struct span mine = piece_of(sum, sum->me, piece);
    range->from = sum->net->n_pending;
    for (int i = 0; i < sum->call->n_group; i++) {
        if (is_me(sum, i))
            continue;
        int peer = (int)sum->call->group[i];
        struct span theirs = piece_of(sum, i, piece);
        TRY(tsr__net_post(sum->net, sum->call, peer, true, part_place(sum, piece, i), mine.bytes,
                          sum->why));
        TRY(tsr__net_post(sum->net, sum->call, peer, false, (char *)sum->in + theirs.at,
                          theirs.bytes, sum->why));
    }
    range->to = sum->net->n_pending;
    return TSR_OK;
}

static void fold_piece(struct sum *sum, int64_t piece)
{
    struct span mine = piece_of(sum, sum->me, piece);
    void *out = sum->out + mine.at;
    for (int i = 0; i < sum->call->n_group; i++)
        sum->ins[i] = part_place(sum, piece, i);
    sum->ins[sum->me] = sum->in + mine.at;
    tsr__reduce(sum->call->type, sum->call->reduce, sum->ins, sum->call->n_group, &out, 1, 0,
                (int64_t)(mine.bytes / sum->unit));
}

// Sends the result of this member's piece to all others and receives theirs into out. in == out is
// allowed: a result arrives only after this member's data for it was received.
static tsr_status post_results(struct sum *sum, int64_t piece)
{
    struct span mine = piece_of(sum, sum->me, piece);
    for (int i = 0; i < sum->call->n_group; i++) {
        if (is_me(sum, i))
            continue;
        int peer = (int)sum->call->group[i];
        struct span theirs = piece_of(sum, i, piece);
        TRY(tsr__net_post(sum->net, sum->call, peer, true, sum->out + theirs.at, theirs.bytes,
                          sum->why));
        TRY(tsr__net_post(sum->net, sum->call, peer, false, sum->out + mine.at, mine.bytes,
                          sum->why));
    }
    return TSR_OK;
}

// Returns the number of elements of the longest slice after the head.
static int64_t longest_rest(const struct sum *sum)
{
    int64_t first, length, longest = sum->head;
    for (int i = 0; i < sum->call->n_group; i++) {
        tsr__slice(sum->count, sum->unit, sum->call->n_group, i, &first, &length);
        if (length > longest)
            longest = length;
    }
    return longest - sum->head;
}

// Divides the slices of a round into pieces. head: bytes of each slice that came with the frames.
// Example: 1 MiB of float32 for two members: head 16384, rest 114688 elements, step 65536, so three
// pieces.
static tsr_status cut_pieces(struct sum *sum, size_t head)
{
    sum->head = (int64_t)(head / sum->unit);
    sum->step = (int64_t)(SUM_PIECE / sum->unit);
    int64_t rest = longest_rest(sum);
    sum->pieces = 1 + (rest + sum->step - 1) / sum->step;
    if (rest < sum->step)
        sum->step = rest;
    size_t slots = SUM_WINDOW * (size_t)sum->call->n_group;
    if (!tsr__net_grow(sum->net->session, &sum->net->scratch, &sum->net->scratch_bytes,
                       slots * (size_t)sum->step * sum->unit))
        return tsr__net_out_of_memory(sum->net, sum->why);
    return TSR_OK;
}

// Reduces all pieces of a round. The parts of piece p + SUM_WINDOW are posted when those of piece p
// are folded, because they reuse their memory.
static tsr_status reduce_round(struct sum *sum)
{
    for (int64_t piece = 1; piece < sum->pieces; piece++) {
        if (piece == SUM_WINDOW)
            break;
        TRY(post_parts(sum, piece));
    }
    for (int64_t piece = 0; piece < sum->pieces; piece++) {
        const struct net_range *parts = &sum->parts[piece % SUM_WINDOW];
        if (piece > 0)
            TRY(tsr__net_wait(sum->net, sum->call, *parts, sum->why));
        fold_piece(sum, piece);
        TRY(post_results(sum, piece));
        if (piece + SUM_WINDOW >= sum->pieces)
            continue;
        TRY(post_parts(sum, piece + SUM_WINDOW));
    }
    return tsr__net_complete(sum->net, sum->call, sum->why);
}

// Reduces in rounds of NET_ROUND bytes. Example: 100 MiB are rounds of 32, 32, 32 and 4 MiB.
static tsr_status reduce_rounds(struct sum *sum, size_t head)
{
    int64_t step = (int64_t)(NET_ROUND / sum->unit);
    for (int64_t left = sum->call->count; left > 0; left -= step) {
        sum->count = left < step ? left : step;
        TRY(cut_pieces(sum, head));
        TRY(reduce_round(sum));
        sum->in += NET_ROUND;
        sum->out += NET_ROUND;
        head = 0;
    }
    return TSR_OK;
}

// Synchronizes the group. Frames contain all data.
static tsr_status meet_with_all(struct sum *sum, size_t bytes)
{
    struct comm_buffer part = {(void *)sum->in, bytes};
    return tsr__net_meet(sum->net, sum->call, NULL, &part, true, sum->why);
}

// Synchronizes the group. Frames contain the first piece of the slice that the receiver folds.
static tsr_status meet_with_pieces(struct sum *sum, size_t space)
{
    int64_t round = (int64_t)(NET_ROUND / sum->unit);
    sum->count = sum->call->count < round ? sum->call->count : round;
    sum->head = (int64_t)(space / sum->unit);
    for (int i = 0; i < sum->call->n_group; i++) {
        struct span piece = piece_of(sum, i, 0);
        sum->send[i] = (struct comm_buffer){(void *)(sum->in + piece.at), piece.bytes};
    }
    return tsr__net_meet(sum->net, sum->call, NULL, sum->send, false, sum->why);
}

// Checks that every frame has as much data as this member is about to fold; a rank of another build
// may differ.
static tsr_status check_frames(const struct sum *sum, size_t bytes)
{
    struct comm_header header;
    for (int i = 0; i < sum->call->n_group; i++) {
        memcpy(&header, tsr__net_frame(sum->net, i), sizeof header);
        if (!is_me(sum, i) && header.bytes != bytes)
            return tsr__net_damaged(sum->call, (int)sum->call->group[i], sum->why);
    }
    return TSR_OK;
}

// Folds tensors that are complete in the frames.
static void fold_frames(struct sum *sum)
{
    for (int i = 0; i < sum->call->n_group; i++)
        sum->ins[i] = part_place(sum, 0, i);
    sum->ins[sum->me] = sum->in;
    tsr__reduce(sum->call->type, sum->call->reduce, sum->ins, sum->call->n_group,
                (void *const *)&sum->out, 1, 0, sum->call->count);
}

static size_t tensor_bytes(const struct sum *sum)
{
    return (size_t)sum->call->count * sum->unit;
}

// The first member (the head) folds for all.
static tsr_status at_head(struct sum *sum)
{
    size_t bytes = tensor_bytes(sum);
    struct comm_buffer part = {(void *)sum->in, bytes}, result = {sum->out, bytes};
    TRY(tsr__net_gather(sum->net, sum->call, &part, sum->why));
    if (sum->me == 0) {
        fold_frames(sum);
        return tsr__net_spread(sum->net, sum->call, &result, sum->why);
    }
    if (bytes)
        memcpy(sum->out, part_place(sum, 0, 0), bytes);
    return TSR_OK;
}

static tsr_status one_shot(struct sum *sum)
{
    TRY(meet_with_all(sum, tensor_bytes(sum)));
    TRY(check_frames(sum, tensor_bytes(sum)));
    fold_frames(sum);
    return TSR_OK;
}

static tsr_status in_rounds(struct sum *sum)
{
    size_t space = tsr__net_room(sum->call);
    TRY(meet_with_pieces(sum, space));
    TRY(check_frames(sum, sum->send[sum->me].bytes));
    return reduce_rounds(sum, space);
}

static tsr_status all_reduce(struct sum *sum)
{
    static tsr_status (*const run[])(struct sum *) = {
#define ROW(path, function, name, what, condition) function,
        MESSAGES_ALGORITHMS(ROW)
#undef ROW
    };
    const struct comm_shape shape = {.path = PATH_MESSAGES,
                                     .members = sum->call->n_group,
                                     .bytes = tensor_bytes(sum),
                                     .crowded = sum->net->link->crowded};
    return run[tsr__comm_choose(&sum->net->endpoint, COMM_ALL_REDUCE, &shape)](sum);
}

tsr_status tsr__net_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why)
{
    struct net *net = (struct net *)endpoint;
    struct sum sum = {.net = net,
                      .call = call,
                      .in = in,
                      .out = out,
                      .unit = tsr__elem_bytes(call->type),
                      .me = tsr__member_of(call->group, call->n_group, endpoint->rank),
                      .why = why};
    struct arena arena; // of this call
    tsr__arena_init(&arena, net->session);
    sum.ins = ARENA_ARRAY(&arena, const void *, (size_t)call->n_group);
    sum.send = ARENA_ARRAY(&arena, struct comm_buffer, (size_t)call->n_group);
    tsr_status st = tsr__net_out_of_memory(net, why);
    if (sum.ins && sum.send)
        st = all_reduce(&sum);
    tsr__arena_free(&arena);
    if (st != TSR_OK)
        return tsr__net_give_up(net, why);
    return st;
}
