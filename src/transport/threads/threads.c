// SPDX-License-Identifier: Apache-2.0
// threads.c - ranks as threads of one process, which read and write each other's buffers directly.
//
// A call has two synchronization points. Arrival: each member writes its header and pointers into
// its slot and raises its counter for every other member. When all counters are up, the headers are
// compared, and data may be read. Departure: each member raises its second counter when it no
// longer accesses the others' buffers; when all have, the caller may free its own. Counters are per
// pair of ranks, so the k-th call of one rank meets the k-th call of the other. Ranks that disagree
// about operator, order or group find different headers there and detect it. Two ranks with a small
// reduction copy it to their mailbox instead (internal.h) and need no departure.
//
// Threads are not a case of shm: they share all memory, so that tensors are read where they are,
// and none can die alone. shm's offsets, rings, staging and heartbeats would be dead code here.
// What both need is in common: headers, mailboxes, patience, and the search for rings of waiting
// ranks.
//
// When the job fails, a member may leave only when no other member reads its buffers: see leave().
//
// Example: two ranks in their fifth call, in order of time:
//     rank 0: writes header, in, out; arrived[0][1] = 5 rank 1 still computes
//     rank 0: waits until arrived[1][0] is 5            rank 1: writes its own; arrived[1][0] = 5
//     both compare headers, enter IN_DATA, fold their slices of both inputs into both outputs
//     rank 0: raises departed[0][1], waits for departed[1][0]   rank 1: the same; then both return
#include "transport/common/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum state {
    AT_WORK, // outside of calls, or waiting in one
    IN_DATA, // reads or writes other members' buffers
    GONE,    // has left the job: ended, or failed
};

// State that one rank publishes for another. stamp: stamps of their last two calls; 0: the call did
// not use the mailbox.
struct word {
    _Alignas(64) atomic_uint_fast64_t arrived; // calls with that peer entered
    atomic_uint_fast64_t stamp[2];
    _Alignas(64) atomic_uint_fast64_t departed;
    uint64_t turns; // number of uses of the mailbox by both ranks; private to its owner
};

// Constant fields, fields that a call writes and others read, and fields for long waits are on
// separate cache lines.
struct slot {
    _Alignas(64) struct endpoint endpoint; // first: an endpoint is its slot
    struct thread_job *job;
    struct word *to;  // [peer]; written by this rank alone
    const void **ins; // scratch of one call, one entry per member
    void **outs;
    int64_t (*notes)[COMM_NOTES];
    _Alignas(64) struct comm_header header;
    const void *in;
    void *out;
    const struct comm_exchange *exchange;
    _Alignas(64) atomic_int state;
    atomic_int waiting_for; // rank, or -1
};

struct thread_job {
    struct arena arena; // the job itself and all that it points to
    int n;
    bool crowded; // more ranks than cores: spinning only takes time from others
    struct slot *slots;
    struct word *words;        // [from][to]
    struct mailbox *mailboxes; // [lower][higher]
    atomic_int failed;
    pthread_mutex_t lock; // guards trouble while it is written
    struct comm_trouble trouble;
};

// Returns the word that one rank writes for another. Words are not in the slots, so that writing to
// a slot does not invalidate their cache lines.
static struct word *word_of(const struct thread_job *job, int from, int to)
{
    return &job->words[(size_t)from * (size_t)job->n + (size_t)to];
}

// Marks the job as failed, with the reason. May be called from any thread. The lock protects only
// the text; the flag is read without it.
static void threads_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct thread_job *job = ((struct slot *)endpoint)->job;
    pthread_mutex_lock(&job->lock);
    if (!atomic_load(&job->failed)) {
        tsr__trouble(&job->trouble, status, rank, "%s", text);
        atomic_store(&job->failed, 1);
    }
    pthread_mutex_unlock(&job->lock);
}

// Copies the failure of the job to *why and returns its status.
static tsr_status job_failure(struct thread_job *job, struct comm_trouble *why)
{
    pthread_mutex_lock(&job->lock);
    *why = job->trouble;
    pthread_mutex_unlock(&job->lock);
    return why->status;
}

static bool threads_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    struct thread_job *job = ((struct slot *)endpoint)->job;
    return atomic_load(&job->failed) && job_failure(job, why) != TSR_OK;
}

// Leaves a failed call: waits until no member can be inside this rank's buffers, then marks the
// rank as gone. A member announces IN_DATA and then checks whether the job has failed: so either it
// sees the failure, or this rank sees IN_DATA.
static void leave(struct slot *me, const struct comm_call *call)
{
    for (int i = 0; i < call->n_group; i++) {
        struct slot *peer = &me->job->slots[call->group[i]];
        struct patience patience = {0};
        while (peer != me && atomic_load(&peer->state) == IN_DATA)
            tsr__patience(&patience, me->job->crowded);
    }
    atomic_store(&me->state, GONE);
}

// Leaves a call that failed. This rank found the failure or was informed of it; the first text is
// kept.
static tsr_status give_up(struct slot *me, const struct comm_call *call, struct comm_trouble *why)
{
    threads_fail(&me->endpoint, why->status, why->rank, why->text);
    leave(me, call);
    return why->status;
}

// Returns the rank for which a rank waits; -1: none.
static int waits_for(const void *data, int at)
{
    const struct thread_job *job = data;
    const struct slot *slot = &job->slots[at];
    int next = atomic_load(&slot->waiting_for);
    if (next < 0 || atomic_load(&job->slots[next].state) != AT_WORK ||
        atomic_load(&job->slots[next].to[at].arrived) >= atomic_load(&slot->to[next].arrived))
        return -1;
    return next;
}

// Checks for failures while waiting for a peer that has not arrived.
static tsr_status check_peer(struct slot *me, const struct slot *peer, const struct comm_call *call,
                             int *rings, struct comm_trouble *why)
{
    int rank = peer->endpoint.rank;
    if (atomic_load(&me->job->failed))
        return job_failure(me->job, why);
    // The peer may have arrived, seen this rank arrive, and ended; its counter is then as high.
    if (atomic_load(&peer->state) == GONE &&
        atomic_load(&peer->to[me->endpoint.rank].arrived) < atomic_load(&me->to[rank].arrived))
        return tsr__trouble_waits(why, call, rank, "has ended", me->endpoint.rank);
    *rings = tsr__in_ring(me->endpoint.rank, me->job->n, waits_for, me->job) ? *rings + 1 : 0;
    if (*rings < RING_LOOKS)
        return TSR_OK;
    return tsr__trouble_ring(why, call, me->endpoint.rank, rank, peer->header.op, peer->header.node,
                             peer->header.id);
}

static tsr_status await_arrival(struct slot *me, int theirs, const struct comm_call *call,
                                struct comm_trouble *why)
{
    const struct word *word = word_of(me->job, theirs, me->endpoint.rank);
    uint_fast64_t wanted = atomic_load_explicit(&me->to[theirs].arrived, memory_order_relaxed);
    struct patience patience = {0};
    int rings = 0;
    while (atomic_load_explicit(&word->arrived, memory_order_acquire) < wanted) {
        // Set only if this rank really waits: other ranks read it to detect deadlocks.
        if (patience.rounds == 0)
            atomic_store_explicit(&me->waiting_for, theirs, memory_order_release);
        if (!tsr__patience(&patience, me->job->crowded))
            continue;
        TRY(check_peer(me, &me->job->slots[theirs], call, &rings, why));
    }
    if (patience.rounds)
        atomic_store_explicit(&me->waiting_for, -1, memory_order_relaxed);
    return TSR_OK;
}

// Raises the number of calls with a peer and returns it. *stamp is the stamp of the call; 0 if it
// does not use the mailbox.
static uint64_t announce_to(struct slot *me, int peer, bool in_mailbox, uint64_t *stamp)
{
    struct word *word = &me->to[peer];
    uint64_t meeting = atomic_load_explicit(&word->arrived, memory_order_relaxed) + 1;
    *stamp = in_mailbox ? tsr__mailbox_stamp(&me->header, meeting) : 0;
    atomic_store_explicit(&word->stamp[meeting & 1], *stamp, memory_order_relaxed);
    atomic_store_explicit(&word->arrived, meeting, memory_order_release);
    return meeting;
}

// Leaves a call of a job that has failed. No other member has seen this rank in the call, so none
// can be in its buffers, and leave() is not needed.
static tsr_status already_failed(struct slot *me, struct comm_trouble *why)
{
    atomic_store(&me->state, GONE);
    return job_failure(me->job, why);
}

// Waits for all members and compares their calls; fails the job if they differ.
static tsr_status arrive(struct slot *me, const struct comm_call *call, const int64_t *notes,
                         struct comm_trouble *why)
{
    struct thread_job *job = me->job;
    uint64_t none;
    if (atomic_load_explicit(&job->failed, memory_order_relaxed))
        return already_failed(me, why);
    // No member reads the header now: all members of the previous call have departed, and the
    // mailbox reads headers only to report a difference.
    tsr__header_of(call, notes, &me->header);
    for (int i = 0; i < call->n_group; i++)
        if (call->group[i] != me->endpoint.rank)
            announce_to(me, (int)call->group[i], false, &none);
    for (int i = 0; i < call->n_group; i++) {
        struct slot *peer = &job->slots[call->group[i]];
        if (peer == me)
            continue;
        if (await_arrival(me, (int)call->group[i], call, why) != TSR_OK)
            return give_up(me, call, why);
        if (tsr__header_compare(&me->header, me->endpoint.rank, &peer->header, peer->endpoint.rank,
                                why) != TSR_OK)
            return give_up(me, call, why);
    }
    return TSR_OK;
}

// Allows this rank to access the others' buffers; false if the job failed meanwhile.
static bool enter_data(struct slot *me)
{
    atomic_store(&me->state, IN_DATA);
    if (!atomic_load(&me->job->failed))
        return true;
    atomic_store(&me->state, AT_WORK);
    return false;
}

// Ends the access to the others' buffers and waits until the others have ended theirs.
static tsr_status depart(struct slot *me, const struct comm_call *call, struct comm_trouble *why)
{
    struct thread_job *job = me->job;
    atomic_store_explicit(&me->state, AT_WORK, memory_order_release);
    for (int i = 0; i < call->n_group; i++) {
        atomic_uint_fast64_t *mine = &me->to[call->group[i]].departed;
        if (call->group[i] != me->endpoint.rank)
            atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1,
                                  memory_order_release);
    }
    for (int i = 0; i < call->n_group; i++) {
        struct slot *peer = &job->slots[call->group[i]];
        if (peer == me)
            continue;
        uint_fast64_t wanted =
            atomic_load_explicit(&me->to[call->group[i]].departed, memory_order_relaxed);
        atomic_uint_fast64_t *theirs = &peer->to[me->endpoint.rank].departed;
        struct patience patience = {0};
        while (atomic_load_explicit(theirs, memory_order_acquire) < wanted) {
            tsr__patience(&patience, job->crowded);
            // State first, then the counter: a peer that departed and then ended has raised its
            // counter.
            if (atomic_load(&peer->state) == GONE && atomic_load(theirs) < wanted) {
                leave(me, call); // the peer has left, because the job failed
                return job_failure(job, why);
            }
        }
    }
    return TSR_OK;
}

// Leaves a call of a job that failed between arrival and data access. This rank has accessed no
// buffers.
static tsr_status backed_off(struct slot *me, const struct comm_call *call,
                             struct comm_trouble *why)
{
    job_failure(me->job, why);
    leave(me, call);
    return why->status;
}

// An all-reduce of one member.
struct reduction {
    struct slot *me;
    const struct comm_call *call;
    const void *in;
    void *out;
    struct comm_trouble *why;
};

// Folds this member's slice of all inputs into all outputs.
static void reduce_slice(struct slot *me, const struct comm_call *call)
{
    int64_t first, length;
    int self = 0;
    for (int i = 0; i < call->n_group; i++) {
        const struct slot *peer = &me->job->slots[call->group[i]];
        me->ins[i] = peer->in;
        me->outs[i] = peer->out;
        self = peer == me ? i : self;
    }
    tsr__slice(call->count, tsr__elem_bytes(call->type), call->n_group, self, &first, &length);
    tsr__reduce(call->type, call->reduce, me->ins, call->n_group, me->outs, call->n_group, first,
                length);
}

static tsr_status slices(const struct reduction *reduction)
{
    struct slot *me = reduction->me;
    me->in = reduction->in;
    me->out = reduction->out;
    TRY(arrive(me, reduction->call, NULL, reduction->why));
    if (!enter_data(me))
        return backed_off(me, reduction->call, reduction->why);
    reduce_slice(me, reduction->call);
    return depart(me, reduction->call, reduction->why);
}

// Reduces few bytes of two members. No member accesses another's buffers.
static tsr_status mailbox(const struct reduction *reduction)
{
    struct slot *me = reduction->me;
    const struct comm_call *call = reduction->call;
    struct comm_trouble *why = reduction->why;
    struct thread_job *job = me->job;
    if (!job->mailboxes)
        return slices(reduction);
    bool higher = call->group[1] == me->endpoint.rank;
    int peer = (int)call->group[!higher];
    struct mailbox *cells = &job->mailboxes[call->group[0] * job->n + call->group[1]];
    // Both ranks count their turns at this mailbox equally, since both make the same calls.
    uint64_t turn = me->to[peer].turns++, stamp;
    if (atomic_load_explicit(&job->failed, memory_order_relaxed))
        return already_failed(me, why);
    tsr__header_of(call, NULL, &me->header);
    memcpy(mailbox_cell(cells, higher, turn), reduction->in,
           (size_t)call->count * tsr__elem_bytes(call->type));
    uint64_t meeting = announce_to(me, peer, true, &stamp);
    if (await_arrival(me, peer, call, why) != TSR_OK)
        return give_up(me, call, why);
    const struct word *word = word_of(job, peer, me->endpoint.rank);
    bool same = atomic_load_explicit(&word->stamp[meeting & 1], memory_order_relaxed) == stamp;
    if (!same && tsr__mailbox_differs(&me->header, me->endpoint.rank, &job->slots[peer].header,
                                      peer, why) != TSR_OK)
        return give_up(me, call, why);
    tsr__mailbox_fold(call, mailbox_cell(cells, !higher, turn), higher, reduction->in,
                      reduction->out);
    return TSR_OK;
}

static tsr_status threads_all_reduce(struct endpoint *endpoint, const struct comm_call *call,
                                     const void *in, void *out, struct comm_trouble *why)
{
    static tsr_status (*const run[])(const struct reduction *) = {
#define ROW(path, function, name, what, condition) function,
        THREADS_ALGORITHMS(ROW)
#undef ROW
    };
    const struct reduction reduction = {(struct slot *)endpoint, call, in, out, why};
    const struct comm_shape shape = {.path = PATH_THREADS,
                                     .members = call->n_group,
                                     .bytes = (size_t)call->count * tsr__elem_bytes(call->type)};
    return run[tsr__comm_choose(endpoint, COMM_ALL_REDUCE, &shape)](&reduction);
}

// Folds the parts that all members send to this one.
static tsr_status fold_parts(struct slot *me, const struct comm_call *call,
                             const struct comm_exchange *exchange, int self,
                             struct comm_trouble *why)
{
    size_t bytes = exchange->recv[0].bytes;
    for (int i = 0; i < call->n_group; i++) {
        const struct slot *peer = &me->job->slots[call->group[i]];
        const struct comm_buffer *from = &peer->exchange->send[self];
        if (from->bytes != bytes)
            return tsr__trouble_size(why, call, peer->endpoint.rank, from->bytes, me->endpoint.rank,
                                     bytes);
        me->ins[i] = from->p;
    }
    tsr__reduce(call->type, call->reduce, me->ins, call->n_group, (void *const *)&exchange->folded,
                1, 0, (int64_t)(bytes / tsr__elem_bytes(call->type)));
    return TSR_OK;
}

// Copies the parts that all members send to this one. Sizes must be as expected.
static tsr_status copy_parts(struct slot *me, const struct comm_call *call,
                             const struct comm_exchange *exchange, int self,
                             struct comm_trouble *why)
{
    for (int i = 0; i < call->n_group; i++) {
        const struct slot *peer = &me->job->slots[call->group[i]];
        const struct comm_buffer *from = &peer->exchange->send[self], *to = &exchange->recv[i];
        if (from->bytes != to->bytes)
            return tsr__trouble_size(why, call, peer->endpoint.rank, from->bytes, me->endpoint.rank,
                                     to->bytes);
        if (to->bytes && to->p != from->p)
            memcpy(to->p, from->p, to->bytes);
    }
    return TSR_OK;
}

static tsr_status call_arrived(struct slot *me, const struct comm_call *call,
                               struct comm_exchange *exchange, struct comm_trouble *why)
{
    if (!exchange->arrived)
        return TSR_OK;
    for (int i = 0; i < call->n_group; i++)
        memcpy(me->notes[i], me->job->slots[call->group[i]].header.notes, sizeof me->notes[i]);
    tsr_status st = exchange->arrived(exchange->data, (const int64_t(*)[COMM_NOTES])me->notes, why);
    if (st != TSR_OK)
        return give_up(me, call, why);
    return TSR_OK;
}

// Waits for all members, calls `arrived`, then copies or folds the others' parts in place; returns
// when all are done.
static tsr_status threads_exchange(struct endpoint *endpoint, const struct comm_call *call,
                                   struct comm_exchange *exchange, struct comm_trouble *why)
{
    struct slot *me = (struct slot *)endpoint;
    me->exchange = exchange;
    int self = tsr__member_of(call->group, call->n_group, endpoint->rank);
    TRY(arrive(me, call, exchange->notes, why));
    tsr_status st = call_arrived(me, call, exchange, why);
    if (st != TSR_OK)
        return st;
    if (!enter_data(me))
        return backed_off(me, call, why);
    if (exchange->folded)
        st = fold_parts(me, call, exchange, self, why);
    else
        st = copy_parts(me, call, exchange, self, why);
    if (st == TSR_OK)
        return depart(me, call, why);
    // Leave the others' buffers first; otherwise leave() of another rank would wait for this one.
    atomic_store(&me->state, AT_WORK);
    return give_up(me, call, why);
}

static void threads_close(struct endpoint *endpoint)
{
    atomic_store(&((struct slot *)endpoint)->state, GONE);
}

static const struct transport threads_transport = {
    .name = "threads",
    .all_reduce = threads_all_reduce,
    .exchange = threads_exchange,
    .fail = threads_fail,
    .failure = threads_failure,
    .close = threads_close,
};

// Initializes the slot of a rank, with scratch memory for the largest group, so that calls do not
// allocate.
static void slot_init(struct thread_job *job, int rank, int cores)
{
    struct slot *slot = &job->slots[rank];
    size_t n = (size_t)job->n;
    slot->endpoint = (struct endpoint){.transport = &threads_transport,
                                       .rank = rank,
                                       .size = job->n,
                                       .host_ranks = job->n,
                                       .host_cores = cores};
    slot->job = job;
    atomic_init(&slot->waiting_for, -1);
    slot->to = job->words + (size_t)rank * n;
    slot->ins = ARENA_ARRAY(&job->arena, const void *, n);
    slot->outs = ARENA_ARRAY(&job->arena, void *, n);
    slot->notes = (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&job->arena, int64_t, n * COMM_NOTES);
}

// Reserves the memory of all mailboxes; those that are never used cost none. NULL: failed, and the
// job uses no mailboxes.
static struct mailbox *open_mailboxes(size_t pairs)
{
    void *p = mmap(NULL, pairs * sizeof(struct mailbox), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct thread_job *tsr__threads_new(tsr_session *session, int n)
{
    struct arena arena = {.session = session};
    struct thread_job *job = ARENA_NEW(&arena, struct thread_job);
    if (!job)
        return NULL;
    // The job now owns the arena that it was allocated from.
    job->arena = arena;
    job->n = n;
    size_t pairs = (size_t)n * (size_t)n;
    job->slots = arena_get(&job->arena, (size_t)n * sizeof *job->slots, 64);
    job->words = arena_get(&job->arena, pairs * sizeof *job->words, 64);
    job->mailboxes = open_mailboxes(pairs);
    pthread_mutex_init(&job->lock, NULL);
    int cores = tsr__cores();
    job->crowded = n > cores;
    for (int i = 0; i < n; i++) {
        if (job->arena.failed)
            break;
        slot_init(job, i, cores);
    }
    if (!job->arena.failed)
        return job;
    tsr__threads_free(job);
    return NULL;
}

struct endpoint *tsr__threads_endpoint(struct thread_job *job, int rank)
{
    return &job->slots[rank].endpoint;
}

void tsr__threads_free(struct thread_job *job)
{
    if (!job)
        return;
    pthread_mutex_destroy(&job->lock);
    if (job->mailboxes)
        munmap(job->mailboxes, (size_t)job->n * (size_t)job->n * sizeof *job->mailboxes);
    struct arena arena = job->arena; // it holds the job itself
    tsr__arena_free(&arena);
}

const struct comm_trouble *tsr__threads_trouble(const struct thread_job *job)
{
    if (atomic_load(&((struct thread_job *)job)->failed))
        return &job->trouble;
    return NULL;
}
