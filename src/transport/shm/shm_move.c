// SPDX-License-Identifier: Apache-2.0
// shm_move.c - all-reduce and exchange between processes that share memory.
//
// Three methods for a reduction, each folding in group order. Small: the data is in the entries,
// every member folds all of it, with one synchronization. Direct (tensors are in shared memory
// themselves): each member folds a slice of all inputs into all outputs, nothing is copied. Else
// staged: chunks are copied into shared memory and folded from there while they are in the cache.
// An exchange reads parts in place, or takes them from a ring that the sender fills.
//
// SHM_ALGORITHMS (collective.h) says which one runs. Two ranks have two more: small tensors are
// copied to their mailbox, and large ones that are not in shared memory go in pieces of 64 KiB
// through the pair buffer.
#include "transport/shm/shm.h"

#include <stdio.h>

// Returns the offset of p in the shared memory; 0: p is not in it, so the other ranks cannot access
// it.
static uint64_t reach(const struct shm *me, const void *p, size_t bytes)
{
    uintptr_t base = (uintptr_t)me->job->base, at = (uintptr_t)p;
    uintptr_t first = base + me->job->at.heaps, end = base + me->job->at.bytes;
    return at >= first && at < end && bytes <= end - at ? at - base : 0;
}

// Returns the address of an offset that another rank published; NULL: not in the heap area. Another
// process may write any offset at any time, so callers read it once and use the checked copy.
static char *at_offset(const struct shm *me, uint64_t offset, size_t bytes)
{
    const struct shm_layout *layout = &me->job->at;
    if (offset < layout->heaps || offset > layout->bytes || bytes > layout->bytes - offset)
        return NULL;
    return me->job->base + offset;
}

static tsr_status refuse_offset(const struct comm_call *call, int peer, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, peer,
                        "%s '%s' (id %lld): rank %d refers to memory outside of the shared segment",
                        call->op, call->node, (long long)call->id, peer);
}

// ---- all-reduce ---------------------------------------------------------------------------------

// An all-reduce of one member. All functions that run one end the call, unless they fail.
struct reduction {
    struct shm *me;
    const struct comm_call *call;
    const char *in;
    char *out;
    size_t bytes;
    struct shm_entry *mine;
    int self;
    struct comm_trouble *why;
};

// Reduces tensors that fit into the entries. Every member folds the same numbers in the same order
// into its own output, without further waiting.
static tsr_status one_shot(const struct reduction *reduction)
{
    struct shm *me = reduction->me;
    const struct comm_call *call = reduction->call;
    void *out = reduction->out;
    if (reduction->bytes)
        memcpy(reduction->mine->data, reduction->in, reduction->bytes);
    TRY(tsr__shm_meet(me, call, reduction->why));
    for (int i = 0; i < call->n_group; i++)
        me->ins[i] = tsr__shm_entry(me, (int)call->group[i])->data;
    tsr__reduce(call->type, call->reduce, me->ins, call->n_group, &out, 1, 0, call->count);
    tsr__shm_depart(me, call);
    return TSR_OK;
}

// True if the tensors of all members are in shared memory. The result is the same on all members,
// because all read the same entries.
static bool all_in_reach(const struct shm *me, const struct comm_call *call)
{
    bool all = true;
    for (int i = 0; i < call->n_group; i++) {
        const struct shm_entry *entry = tsr__shm_entry(me, (int)call->group[i]);
        all &= entry->in && entry->out;
    }
    return all;
}

static tsr_status in_reach(const struct reduction *reduction)
{
    struct shm *me = reduction->me;
    const struct comm_call *call = reduction->call;
    int64_t first, length;
    for (int i = 0; i < call->n_group; i++) {
        const struct shm_entry *entry = tsr__shm_entry(me, (int)call->group[i]);
        me->ins[i] = at_offset(me, entry->in, reduction->bytes);
        me->outs[i] = at_offset(me, entry->out, reduction->bytes);
        if (!me->ins[i] || !me->outs[i])
            return refuse_offset(call, (int)call->group[i], reduction->why);
    }
    // Example: 3 members, 12288 float32 (48 KiB): member 1 folds elements 4096..8191 of all three
    // inputs, and writes them into all three outputs.
    tsr__slice(call->count, tsr__elem_bytes(call->type), call->n_group, reduction->self, &first,
               &length);
    tsr__reduce(call->type, call->reduce, me->ins, call->n_group, me->outs, call->n_group, first,
                length);
    // No member may read its output, or reuse its input, before all slices are folded.
    TRY(tsr__shm_sync(me, call, reduction->why));
    tsr__shm_depart(me, call);
    return TSR_OK;
}

// Waits until a member has staged the chunk of that number, counted from the start of the call.
static tsr_status await_chunk(struct shm *me, const struct comm_call *call, int peer,
                              uint64_t chunk, struct comm_trouble *why)
{
    const struct shm_slot *slot = shm_slot(me->job, peer);
    uint64_t wanted = tsr__shm_entry(me, peer)->staged + chunk + 1, seen;
    return tsr__shm_await(me, call, peer, &slot->staged, 0, wanted, &seen, why);
}

// Copies a chunk to this rank's staging area. The bytes are written before `staged` is raised, so
// that readers of the counter see them.
static void stage(struct shm *me, const void *from, size_t bytes)
{
    memcpy(shm_stage(me->job, me->endpoint.rank, me->staged), from, bytes);
    atomic_store_explicit(&me->slot->staged, ++me->staged, memory_order_release);
}

// Returns the size of the chunk that begins at `at`. The last chunk may be shorter.
static size_t chunk_at(size_t bytes, size_t at)
{
    if (at >= bytes)
        return 0;
    return bytes - at < SHM_CHUNK ? bytes - at : SHM_CHUNK;
}

// A reduction of two members whose tensors are not all in shared memory.
struct pair {
    struct shm *me;
    const struct comm_call *call;
    struct shm_pair_buffer *pair_buffer;
    int peer;
    bool higher;
    const char *in;
    size_t bytes;
    uint64_t turns[2]; // turn counters of both sides of the pair buffer when the call began
};

// Returns the size of piece k; 0 past the end, so that putting one piece ahead needs no test.
static size_t piece_at(const struct pair *pair, size_t k)
{
    size_t at = k * SHM_PIECE;
    if (at >= pair->bytes)
        return 0;
    return pair->bytes - at < SHM_PIECE ? pair->bytes - at : SHM_PIECE;
}

// Returns the cell that one rank writes for piece k and the other reads: the cell that the writer
// read two pieces ago.
static char *cell_of(const struct pair *pair, bool higher, size_t k)
{
    return pair->pair_buffer->cells[k & 1][(pair->turns[k & 1] + k / 2 + higher) & 1];
}

static void put_piece(const struct pair *pair, size_t k)
{
    size_t n = piece_at(pair, k);
    if (n == 0)
        return;
    memcpy(cell_of(pair, pair->higher, k), pair->in + k * SHM_PIECE, n);
    atomic_store_explicit(&pair->me->slot->staged, ++pair->me->staged, memory_order_release);
}

// Reduces between two members. Each member publishes its input one piece ahead, and folds every
// piece of both inputs itself.
static tsr_status pieces(const struct reduction *reduction)
{
    struct shm *me = reduction->me;
    const struct comm_call *call = reduction->call;
    int self = reduction->self, peer = (int)call->group[1 - self];
    size_t unit = tsr__elem_bytes(call->type);
    struct pair pair = {me,
                        call,
                        shm_pair_buffer(me->job, me->endpoint.rank, peer),
                        peer,
                        self == 1,
                        reduction->in,
                        reduction->bytes,
                        {0}};
    size_t count = (pair.bytes + SHM_PIECE - 1) / SHM_PIECE;
    // Both ranks count pieces equally, so both know the next cell without communication.
    memcpy(pair.turns, me->peers[peer].pieces, sizeof pair.turns);
    me->peers[peer].pieces[0] += (count + 1) / 2;
    me->peers[peer].pieces[1] += count / 2;
    put_piece(&pair, 0);
    for (size_t k = 0; k < count; k++) {
        // The next piece is ready before this one is folded. Its cell is the one that this rank
        // read two pieces ago, so no other rank reads it.
        put_piece(&pair, k + 1);
        TRY(await_chunk(me, call, peer, k, reduction->why));
        me->ins[self] = reduction->in + k * SHM_PIECE;
        me->ins[1 - self] = cell_of(&pair, !pair.higher, k);
        tsr__reduce_piece(call->type, call->reduce, me->ins, 2, reduction->out + k * SHM_PIECE,
                          (int64_t)(piece_at(&pair, k) / unit), call->count);
    }
    tsr__shm_depart(me, call);
    return TSR_OK;
}

// Reduces one chunk of more than two members. All members stage the chunk; each folds a slice and
// writes the result to its own staging area; then all read the others' slices.
static tsr_status reduce_chunk(const struct reduction *reduction, size_t first_byte, size_t bytes)
{
    struct shm *me = reduction->me;
    const struct comm_call *call = reduction->call;
    const char *in = reduction->in + first_byte;
    char *out = reduction->out + first_byte;
    struct comm_trouble *why = reduction->why;
    int self = reduction->self;
    size_t unit = tsr__elem_bytes(call->type);
    int64_t first, length, count = (int64_t)(bytes / unit);
    uint64_t chunk = me->staged - tsr__shm_entry(me, me->endpoint.rank)->staged;
    char *mine = shm_stage(me->job, me->endpoint.rank, me->staged);
    stage(me, in, bytes);
    // First barrier: all have staged the chunk.
    tsr_status st = tsr__shm_sync(me, call, why);
    if (st != TSR_OK)
        return st;
    for (int i = 0; i < call->n_group; i++) {
        uint64_t base = tsr__shm_entry(me, (int)call->group[i])->staged;
        me->outs[i] = shm_stage(me->job, (int)call->group[i], base + chunk);
        me->ins[i] = me->outs[i];
    }
    tsr__slice(count, unit, call->n_group, self, &first, &length);
    void *to[2] = {mine, out};
    tsr__reduce(call->type, call->reduce, me->ins, call->n_group, to, 2, first, length);
    // Second barrier: all slices are folded, each in its own rank's staging area.
    if ((st = tsr__shm_sync(me, call, why)) != TSR_OK)
        return st;
    for (int i = 0; i < call->n_group; i++) {
        tsr__slice(count, unit, call->n_group, i, &first, &length);
        size_t at = (size_t)first * unit;
        if (i != self)
            memcpy(out + at, (const char *)me->outs[i] + at, (size_t)length * unit);
    }
    return TSR_OK;
}

// Reduces tensors that are not all in shared memory, chunk by chunk through the staging areas. A
// staging area holds four chunks, which are used in turn. There are two barriers between a chunk
// and the next, so no chunk is written while another rank reads it. The chunks of the previous call
// must have been read (tsr__shm_released).
static tsr_status staged(const struct reduction *reduction)
{
    TRY(tsr__shm_released(reduction->me, reduction->call, SHM_STAGE, reduction->why));
    for (size_t at = 0; at < reduction->bytes; at += SHM_CHUNK)
        TRY(reduce_chunk(reduction, at, chunk_at(reduction->bytes, at)));
    tsr__shm_depart(reduction->me, reduction->call);
    return TSR_OK;
}

// Reduces few bytes of two members. Only the two use the mailbox, and the entry is read only if
// they disagree, so tsr__shm_depart is not needed.
static tsr_status mailbox(const struct reduction *reduction)
{
    struct shm *me = reduction->me;
    const struct comm_call *call = reduction->call;
    bool higher = reduction->self == 1;
    int peer = (int)call->group[!higher];
    struct mailbox *cells = shm_mailbox(me->job, me->endpoint.rank, peer);
    uint64_t turn = me->peers[peer].turns++;
    memcpy(mailbox_cell(cells, higher, turn), reduction->in, reduction->bytes);
    TRY(tsr__shm_meet_in_mailbox(me, call, peer, reduction->why));
    tsr__mailbox_fold(call, mailbox_cell(cells, !higher, turn), higher, reduction->in,
                      reduction->out);
    return TSR_OK;
}

// Publishes where this rank's tensors are, and waits for all members. Returns in *reached whether
// the tensors of all members are in shared memory.
static tsr_status meet_large(const struct reduction *reduction, bool *reached)
{
    struct shm *me = reduction->me;
    reduction->mine->in = reach(me, reduction->in, reduction->bytes);
    reduction->mine->out = reach(me, reduction->out, reduction->bytes);
    TRY(tsr__shm_meet(me, reduction->call, reduction->why));
    *reached = all_in_reach(me, reduction->call);
    return TSR_OK;
}

static tsr_status reduce_by_row(const struct reduction *reduction)
{
    static tsr_status (*const run[])(const struct reduction *) = {
#define ROW(path, function, name, what, condition) function,
        SHM_ALGORITHMS(ROW)
#undef ROW
    };
    struct comm_shape shape = {
        .path = PATH_SHM, .members = reduction->call->n_group, .bytes = reduction->bytes};
    // Small tensors are in what a rank publishes.
    if (reduction->bytes > SHM_INLINE)
        TRY(meet_large(reduction, &shape.in_reach));
    return run[tsr__comm_choose(&reduction->me->endpoint, COMM_ALL_REDUCE, &shape)](reduction);
}

// Reduces a tensor. All members choose the same algorithm, because all know the size, the group and
// the location of tensors.
tsr_status tsr__shm_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                               const void *in, void *out, struct comm_trouble *why)
{
    struct shm *me = (struct shm *)endpoint;
    struct reduction reduction = {
        .me = me,
        .call = call,
        .in = in,
        .out = out,
        .bytes = (size_t)call->count * tsr__elem_bytes(call->type),
        .self = tsr__member_of(call->group, call->n_group, me->endpoint.rank),
        .why = why,
    };
    tsr_status st = tsr__shm_begin(me, call, NULL, &reduction.mine, why);
    if (st == TSR_OK)
        st = reduce_by_row(&reduction);
    if (st != TSR_OK)
        return tsr__shm_give_up(me, why);
    return TSR_OK;
}

// ---- exchange: parts through rings --------------------------------------------------------------

// State of an exchange. sent and got: bytes so far, per member.
struct exchange {
    struct shm *me;
    const struct comm_call *call;
    struct comm_exchange *exchange;
    int self;
    size_t *sent, *got;
};

// Rounds up to cache lines. Every part begins on its own line, so that elements are aligned and
// never split.
static uint64_t line_up(uint64_t bytes)
{
    return (bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
}

// Puts more data into the ring to member i; true if anything was put.
static bool push(struct exchange *exchange, int i)
{
    struct shm *me = exchange->me;
    int peer = (int)exchange->call->group[i];
    const struct comm_buffer *from = &exchange->exchange->send[i];
    struct shm_peer *shm_peer = &me->peers[peer];
    size_t ring = me->job->at.ring_bytes, left = from->bytes - exchange->sent[i];
    if (left == 0)
        return false;
    uint64_t taken = atomic_load_explicit(&shm_pair(me->job, peer, me->endpoint.rank)->taken,
                                          memory_order_acquire);
    // put and taken only grow; their difference is the number of bytes in the ring. line_up may
    // carry `put` past what fits, by less than a line.
    size_t space = shm_peer->put - taken < ring ? ring - (size_t)(shm_peer->put - taken) : 0;
    size_t at = (size_t)(shm_peer->put % ring);
    size_t n = left < space ? left : space;
    n = n < ring - at ? n : ring - at;
    n = n < ring / 2 ? n : ring / 2; // the other side works while this one fills
    if (n == 0)
        return false;
    memcpy(shm_ring(me->job, me->endpoint.rank, peer) + at,
           (const char *)from->p + exchange->sent[i], n);
    exchange->sent[i] += n;
    shm_peer->put += n;
    if (exchange->sent[i] == from->bytes)
        shm_peer->put = line_up(shm_peer->put);
    atomic_store_explicit(&shm_pair(me->job, me->endpoint.rank, peer)->put, shm_peer->put,
                          memory_order_release);
    return true;
}

// Returns the number of contiguous bytes from `peer` in the ring, at most `left`; *at points to
// them. They do not wrap around the end of the ring; the next step takes the rest.
static size_t waiting(const struct exchange *exchange, int peer, size_t left, const char **at)
{
    const struct shm *me = exchange->me;
    size_t ring = me->job->at.ring_bytes;
    uint64_t taken = me->peers[peer].taken;
    uint64_t put = atomic_load_explicit(&shm_pair(me->job, peer, me->endpoint.rank)->put,
                                        memory_order_acquire);
    size_t n = (size_t)(put - taken), offset = (size_t)(taken % ring);
    *at = shm_ring(me->job, peer, me->endpoint.rank) + offset;
    n = n < ring - offset ? n : ring - offset;
    return n < left ? n : left;
}

// Announces how much this rank has taken from the peer's ring, after the bytes were copied, so that
// the sender may reuse the space. The end of a part is rounded up to a cache line, as in `push`.
static void advance_taken(const struct exchange *exchange, int peer, size_t n, bool last)
{
    struct shm *me = exchange->me;
    me->peers[peer].taken += n;
    if (last)
        me->peers[peer].taken = line_up(me->peers[peer].taken);
    atomic_store_explicit(&shm_pair(me->job, me->endpoint.rank, peer)->taken, me->peers[peer].taken,
                          memory_order_release);
}

// Takes more data of member i from its ring; true if anything was taken.
static bool pull(struct exchange *exchange, int i)
{
    const struct comm_buffer *to = &exchange->exchange->recv[i];
    int peer = (int)exchange->call->group[i];
    const char *at;
    if (exchange->got[i] == to->bytes)
        return false;
    size_t n = waiting(exchange, peer, to->bytes - exchange->got[i], &at);
    if (n == 0)
        return false;
    memcpy((char *)to->p + exchange->got[i], at, n);
    exchange->got[i] += n;
    advance_taken(exchange, peer, n, exchange->got[i] == to->bytes);
    return true;
}

// Returns the address of member i's part, which check_sizes has checked; NULL: the part comes
// through the ring.
static const char *part_at(const struct exchange *exchange, int i)
{
    return exchange->me->peers[exchange->call->group[i]].part;
}

// Folds the next piece that all members have delivered; got[self] is the progress. Returns false if
// there is no complete element yet.
static bool fold(struct exchange *exchange)
{
    struct shm *me = exchange->me;
    size_t unit = tsr__elem_bytes(exchange->call->type), done = exchange->got[exchange->self];
    size_t n = exchange->exchange->recv[0].bytes - done;
    for (int i = 0; i < exchange->call->n_group; i++) {
        if (n == 0)
            return false;
        const char *part =
            i == exchange->self ? exchange->exchange->send[i].p : part_at(exchange, i);
        const char *from = part ? part + done : NULL;
        if (i != exchange->self && !part)
            n = waiting(exchange, (int)exchange->call->group[i], n, &from);
        me->ins[i] = from;
    }
    // Fold only complete elements that all members have delivered; the rest waits for the next
    // step.
    n = n / unit * unit;
    if (n == 0)
        return false;
    void *to = (char *)exchange->exchange->folded + done;
    tsr__reduce(exchange->call->type, exchange->call->reduce, me->ins, exchange->call->n_group, &to,
                1, 0, (int64_t)(n / unit));
    for (int i = 0; i < exchange->call->n_group; i++) {
        exchange->got[i] += n;
        if (i != exchange->self && !part_at(exchange, i))
            advance_taken(exchange, (int)exchange->call->group[i], n,
                          exchange->got[i] == exchange->exchange->recv[0].bytes);
    }
    return true;
}

// Returns the rank of a member whose data is incomplete, or that has not taken all of this rank's
// data; -1: done. Prefers a member whose ring is empty: the data of other members may only wait to
// be folded with its data.
static int missing(const struct exchange *exchange)
{
    int open = -1;
    const char *at;
    for (int i = 0; i < exchange->call->n_group; i++) {
        int peer = (int)exchange->call->group[i];
        size_t left = 0;
        if (i != exchange->self)
            left = exchange->exchange->recv[exchange->exchange->folded ? 0 : i].bytes -
                   exchange->got[i];
        if (left && !part_at(exchange, i) && waiting(exchange, peer, left, &at) == 0)
            return peer;
        open = left ? peer : open;
    }
    for (int i = 0; i < exchange->call->n_group; i++)
        if (i != exchange->self && exchange->sent[i] < exchange->exchange->send[i].bytes)
            return (int)exchange->call->group[i];
    return open;
}

// Fills and empties every ring as far as possible. False: nothing moved.
static bool step(struct exchange *exchange)
{
    bool moved = false;
    for (int i = 0; i < exchange->call->n_group; i++)
        if (i != exchange->self)
            moved |= push(exchange, i);
    if (exchange->exchange->folded)
        return exchange->got[exchange->self] < exchange->exchange->recv[0].bytes
                   ? fold(exchange) || moved
                   : moved;
    for (int i = 0; i < exchange->call->n_group; i++)
        if (i != exchange->self)
            moved |= pull(exchange, i);
    return moved;
}

// Moves all parts through the rings. A rank never waits here for a single other rank: it serves all
// rings in turn, so no order of sizes can deadlock.
static tsr_status move_parts(struct exchange *exchange, struct comm_trouble *why)
{
    struct patience patience = {0};
    int peer;
    while ((peer = missing(exchange)) >= 0) {
        if (step(exchange)) {
            patience = (struct patience){0};
            exchange->me->gone = 0;
            continue;
        }
        if (!tsr__patience(&patience, exchange->me->crowded))
            continue;
        atomic_store(&exchange->me->slot->waiting_for, -1); // not waiting: no deadlock
        TRY(tsr__shm_check(exchange->me, exchange->call, peer, why));
    }
    if (exchange->exchange->folded) // alone in the group, or all parts were in shared memory
        while (exchange->got[exchange->self] < exchange->exchange->recv[0].bytes)
            fold(exchange);
    return TSR_OK;
}

// ---- exchange -----------------------------------------------------------------------------------

// Publishes what this rank sends. Parts in shared memory do not go through a ring. Small parts
// always do, because reading in place needs a reply (settle).
static void offer(struct exchange *exchange)
{
    struct shm *me = exchange->me;
    struct shm_part *parts = shm_parts(me->job, me->endpoint.rank, (int)(me->calls & 1));
    for (int i = 0; i < exchange->call->n_group; i++) {
        const struct comm_buffer *buffer = &exchange->exchange->send[i];
        uint64_t at = buffer->bytes > SHM_INLINE ? reach(me, buffer->p, buffer->bytes) : 0;
        parts[exchange->call->group[i]] = (struct shm_part){buffer->bytes, at};
        exchange->sent[i] = at || i == exchange->self ? buffer->bytes : 0;
        me->peers[exchange->call->group[i]].gave += at && i != exchange->self;
    }
}

// Checks the sizes and addresses that the members published. Words of another process are read once
// into locals: it could change them between check and use.
static tsr_status check_sizes(const struct exchange *exchange, struct comm_trouble *why)
{
    const struct shm *me = exchange->me;
    for (int i = 0; i < exchange->call->n_group; i++) {
        int peer = (int)exchange->call->group[i];
        int entry = (int)(tsr__shm_entry(me, peer) - shm_slot(me->job, peer)->entries);
        const struct shm_part *said = &shm_parts(me->job, peer, entry)[me->endpoint.rank];
        uint64_t sent = said->bytes, at = said->at;
        size_t expected = exchange->exchange->recv[exchange->exchange->folded ? 0 : i].bytes;
        if (sent != expected)
            return tsr__trouble_size(why, exchange->call, peer, sent, me->endpoint.rank, expected);
        me->peers[peer].part = at ? at_offset(me, at, expected) : NULL;
        if (at && !me->peers[peer].part)
            return refuse_offset(exchange->call, peer, why);
    }
    return TSR_OK;
}

// Copies the parts that can be read in place, including this member's own.
static void copy_in_reach(struct exchange *exchange)
{
    if (exchange->exchange->folded)
        return; // fold() reads the parts in place
    for (int i = 0; i < exchange->call->n_group; i++) {
        const struct comm_buffer *to = &exchange->exchange->recv[i];
        const void *from =
            i == exchange->self ? exchange->exchange->send[i].p : part_at(exchange, i);
        if (!from && i != exchange->self)
            continue;
        if (to->bytes && to->p != from)
            memcpy(to->p, from, to->bytes);
        exchange->got[i] = to->bytes;
    }
}

// Acknowledges the parts that this rank read in place, and waits until other ranks have
// acknowledged its own parts. While `copied` is below `gave`, others may still read this rank's
// tensors, so the engine must not free them.
static tsr_status settle(struct exchange *exchange, struct comm_trouble *why)
{
    struct shm *me = exchange->me;
    for (int i = 0; i < exchange->call->n_group; i++) {
        int peer = (int)exchange->call->group[i];
        if (i != exchange->self && part_at(exchange, i))
            atomic_store_explicit(&shm_pair(me->job, me->endpoint.rank, peer)->copied,
                                  ++me->peers[peer].copied, memory_order_release);
    }
    for (int i = 0; i < exchange->call->n_group; i++) {
        int peer = (int)exchange->call->group[i];
        uint64_t seen;
        if (i == exchange->self)
            continue;
        TRY(tsr__shm_await(me, exchange->call, peer,
                           &shm_pair(me->job, peer, me->endpoint.rank)->copied, 0,
                           me->peers[peer].gave, &seen, why));
    }
    return TSR_OK;
}

static tsr_status call_arrived(struct exchange *exchange, struct comm_trouble *why)
{
    struct shm *me = exchange->me;
    if (!exchange->exchange->arrived)
        return TSR_OK;
    for (int i = 0; i < exchange->call->n_group; i++)
        memcpy(me->notes[i], tsr__shm_entry(me, (int)exchange->call->group[i])->header.notes,
               sizeof me->notes[i]);
    return exchange->exchange->arrived(exchange->exchange->data,
                                       (const int64_t(*)[COMM_NOTES])me->notes, why);
}

// Exchanges parts between all members. Synchronizes, compares sizes, then copies: a rank that finds
// a difference has written nothing yet.
static tsr_status exchange_all(struct exchange *exchange, struct comm_trouble *why)
{
    struct shm *me = exchange->me;
    struct shm_entry *mine;
    TRY(tsr__shm_begin(me, exchange->call, exchange->exchange->notes, &mine, why));
    offer(exchange);
    TRY(tsr__shm_meet(me, exchange->call, why));
    TRY(call_arrived(exchange, why));
    TRY(check_sizes(exchange, why));
    copy_in_reach(exchange);
    TRY(move_parts(exchange, why));
    return settle(exchange, why);
}

tsr_status tsr__shm_exchange(struct endpoint *endpoint, const struct comm_call *call,
                             struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct shm *me = (struct shm *)endpoint;
    int self = tsr__member_of(call->group, call->n_group, me->endpoint.rank);
    struct exchange at_work = {me, call, exchange, self, me->sent, me->got};
    memset(me->got, 0, (size_t)call->n_group * sizeof *me->got);
    if (exchange_all(&at_work, why) != TSR_OK)
        return tsr__shm_give_up(me, why);
    tsr__shm_depart(me, call);
    return TSR_OK;
}
