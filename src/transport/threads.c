// SPDX-License-Identifier: Apache-2.0
// threads.c - ranks as threads of one process: pointers are shared, nothing is copied but the
// result.
//
// A call has two meetings. Arrival: each member writes its header and pointers into its slot and
// raises its counter for every other member; when all counters are up, all headers are compared,
// and data may be read. Departure: each member raises its second counter when it no longer touches
// the others' memory; when all have, the caller may free its own. Counters are per pair of ranks,
// so the k-th meeting of two ranks is always with each other: ranks that disagree about operator,
// order or group meet in different calls, and find it. Two ranks with little to add up copy it to
// their desk instead (internal.h) and need no departure.
//
// When the job fails, a member may leave only when nobody reads its memory any more: see leave().
#include "transport/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum state {
    AT_WORK, // outside of calls, or waiting in one
    IN_DATA, // reads or writes other members' memory
    GONE,    // left the job: ended, or failed
};

// What one rank tells another. stamp: of their last two meetings, 0 where they were not at the desk.
struct word {
    _Alignas(64) atomic_uint_fast64_t arrived; // calls with that peer entered
    atomic_uint_fast64_t stamp[2];
    _Alignas(64) atomic_uint_fast64_t departed;
    uint64_t turns; // at the desk of both; its own
};

// What never changes, what a call writes and others read, what only those look at who wait long: on lines of their own.
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
    const struct comm_exchange *x;
    _Alignas(64) atomic_int state;
    atomic_int waiting_for; // rank, or -1
};

struct thread_job {
    struct arena arena; // holds all of this
    int n;
    bool crowded; // more ranks than cores: spinning only steals time
    struct slot *slots;
    struct word *words; // [from][to]
    struct desk *desks; // [lower][higher]
    atomic_int failed;
    pthread_mutex_t lock; // guards trouble while it is written
    struct comm_trouble trouble;
};

// Not by way of the slot, whose rank writes nearby.
static struct word *word_of(const struct thread_job *j, int from, int to)
{
    return &j->words[(size_t)from * (size_t)j->n + (size_t)to];
}

static void threads_fail(struct endpoint *e, tsr_status status, int rank, const char *text)
{
    struct thread_job *j = ((struct slot *)e)->job;
    pthread_mutex_lock(&j->lock);
    if (!atomic_load(&j->failed)) {
        tsr__trouble(&j->trouble, status, rank, "%s", text);
        atomic_store(&j->failed, 1);
    }
    pthread_mutex_unlock(&j->lock);
}

// The job's trouble, for a rank that finds it failed.
static tsr_status told(struct thread_job *j, struct comm_trouble *why)
{
    pthread_mutex_lock(&j->lock);
    *why = j->trouble;
    pthread_mutex_unlock(&j->lock);
    return why->status;
}

// After a failure: waits until no member can be inside this rank's memory, then counts as gone. A
// member enters IN_DATA only if it sees the job unfailed after having announced IN_DATA, so one of
// both sees the other.
static void leave(struct slot *me, const struct comm_call *c)
{
    for (int i = 0; i < c->n_group; i++) {
        struct slot *peer = &me->job->slots[c->group[i]];
        struct patience p = {0};
        while (peer != me && atomic_load(&peer->state) == IN_DATA)
            tsr__patience(&p, me->job->crowded);
    }
    atomic_store(&me->state, GONE);
}

static tsr_status give_up(struct slot *me, const struct comm_call *c, struct comm_trouble *why)
{
    threads_fail(&me->endpoint, why->status, why->rank, why->text);
    leave(me, c);
    return why->status;
}

// True if following "waits for" from this rank comes back to it: nobody of them will ever move. A
// rank whose wait is over and that only has not had the time to see it breaks the ring.
static bool in_a_ring(const struct slot *me)
{
    const struct thread_job *j = me->job;
    int at = me->endpoint.rank;
    for (int steps = 0; steps <= j->n; steps++) {
        const struct slot *s = &j->slots[at];
        int next = atomic_load(&s->waiting_for);
        if (next < 0 || atomic_load(&j->slots[next].state) != AT_WORK ||
            atomic_load(&j->slots[next].to[at].arrived) >= atomic_load(&s->to[next].arrived))
            return false;
        at = next;
        if (at == me->endpoint.rank)
            return true;
    }
    return false; // a ring without this rank: its members will tell
}

// Looks around while waiting for a peer that has not arrived.
static tsr_status look(struct slot *me, const struct slot *peer, const struct comm_call *c,
                       int *rings, struct comm_trouble *why)
{
    int rank = peer->endpoint.rank;
    if (atomic_load(&me->job->failed))
        return told(me->job, why);
    // It may have come, found this rank there, and ended: then its number is as high.
    if (atomic_load(&peer->state) == GONE &&
        atomic_load(&peer->to[me->endpoint.rank].arrived) < atomic_load(&me->to[rank].arrived))
        return tsr__trouble(why, TSR_PEER, rank,
                            "rank %d has ended; rank %d waits for it at %s '%s' (id %lld)", rank,
                            me->endpoint.rank, c->op, c->node, (long long)c->id);
    *rings = in_a_ring(me) ? *rings + 1 : 0;
    if (*rings < 50) // stable over many looks: not a snapshot of ranks on the move
        return TSR_OK;
    return tsr__trouble(why, TSR_PEER, rank,
                        "the ranks wait for each other in a ring: rank %d at %s '%s' (id %lld) for "
                        "rank %d, which is at %.15s '%.47s' (id %lld)",
                        me->endpoint.rank, c->op, c->node, (long long)c->id, rank, peer->header.op,
                        peer->header.node, (long long)peer->header.id);
}

static tsr_status await_arrival(struct slot *me, int theirs, const struct comm_call *c,
                                struct comm_trouble *why)
{
    const struct word *w = word_of(me->job, theirs, me->endpoint.rank);
    uint_fast64_t wanted = atomic_load_explicit(&me->to[theirs].arrived, memory_order_relaxed);
    struct patience p = {0};
    int rings = 0;
    while (atomic_load_explicit(&w->arrived, memory_order_acquire) < wanted) {
        if (p.rounds == 0)
            atomic_store_explicit(&me->waiting_for, theirs, memory_order_release);
        if (!tsr__patience(&p, me->job->crowded))
            continue;
        tsr_status st = look(me, &me->job->slots[theirs], c, &rings, why);
        if (st != TSR_OK)
            return st;
    }
    if (p.rounds)
        atomic_store_explicit(&me->waiting_for, -1, memory_order_relaxed);
    return TSR_OK;
}

// Raises the number of meetings with a peer; stamp 0: not at the desk. Returns the number.
static uint64_t come_to(struct slot *me, int peer, bool at_desk, uint64_t *stamp)
{
    struct word *w = &me->to[peer];
    uint64_t meeting = atomic_load_explicit(&w->arrived, memory_order_relaxed) + 1;
    *stamp = at_desk ? tsr__desk_stamp(&me->header, meeting) : 0;
    atomic_store_explicit(&w->stamp[meeting & 1], *stamp, memory_order_relaxed);
    atomic_store_explicit(&w->arrived, meeting, memory_order_release);
    return meeting;
}

static tsr_status already_failed(struct slot *me, struct comm_trouble *why)
{
    atomic_store(&me->state, GONE);
    return told(me->job, why);
}

// All members are there and say the same; or the job fails.
static tsr_status arrive(struct slot *me, const struct comm_call *c, const int64_t *notes,
                         struct comm_trouble *why)
{
    struct thread_job *j = me->job;
    uint64_t none;
    if (atomic_load_explicit(&j->failed, memory_order_relaxed))
        return already_failed(me, why);
    tsr__header_of(c, notes, &me->header);
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i] != me->endpoint.rank)
            come_to(me, (int)c->group[i], false, &none);
    for (int i = 0; i < c->n_group; i++) {
        struct slot *peer = &j->slots[c->group[i]];
        if (peer == me)
            continue;
        tsr_status st = await_arrival(me, (int)c->group[i], c, why);
        if (st == TSR_OK)
            st = tsr__header_compare(&me->header, me->endpoint.rank, &peer->header,
                                     peer->endpoint.rank, why);
        if (st != TSR_OK)
            return give_up(me, c, why);
    }
    return TSR_OK;
}

// From here on this rank may touch the others' memory; false if the job failed meanwhile.
static bool enter_data(struct slot *me)
{
    atomic_store(&me->state, IN_DATA);
    if (!atomic_load(&me->job->failed))
        return true;
    atomic_store(&me->state, AT_WORK);
    return false;
}

// Done with the others' memory; back when the others are done with ours.
static tsr_status depart(struct slot *me, const struct comm_call *c, struct comm_trouble *why)
{
    struct thread_job *j = me->job;
    atomic_store_explicit(&me->state, AT_WORK, memory_order_release);
    for (int i = 0; i < c->n_group; i++) {
        atomic_uint_fast64_t *mine = &me->to[c->group[i]].departed;
        if (c->group[i] != me->endpoint.rank)
            atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1,
                                  memory_order_release);
    }
    for (int i = 0; i < c->n_group; i++) {
        struct slot *peer = &j->slots[c->group[i]];
        if (peer == me)
            continue;
        uint_fast64_t wanted =
            atomic_load_explicit(&me->to[c->group[i]].departed, memory_order_relaxed);
        atomic_uint_fast64_t *theirs = &peer->to[me->endpoint.rank].departed;
        struct patience p = {0};
        while (atomic_load_explicit(theirs, memory_order_acquire) < wanted) {
            tsr__patience(&p, j->crowded);
            if (atomic_load(&peer->state) == GONE && atomic_load(theirs) < wanted) {
                leave(me, c); // it left without touching us: the job failed
                return told(j, why);
            }
        }
    }
    return TSR_OK;
}

static tsr_status backed_off(struct slot *me, const struct comm_call *c, struct comm_trouble *why)
{
    told(me->job, why);
    leave(me, c);
    return why->status;
}

// Folds this member's slice of all inputs into all outputs.
static void reduce_slice(struct slot *me, const struct comm_call *c)
{
    int64_t first, length;
    int self = 0;
    for (int i = 0; i < c->n_group; i++) {
        const struct slot *peer = &me->job->slots[c->group[i]];
        me->ins[i] = peer->in;
        me->outs[i] = peer->out;
        self = peer == me ? i : self;
    }
    tsr__slice(c->count, tsr__elem_bytes(c->type), c->n_group, self, &first, &length);
    tsr__reduce(c->type, c->reduce, me->ins, c->n_group, me->outs, c->n_group, first, length);
}

// Two members and few bytes: nobody touches another's memory.
static tsr_status reduce_at_desk(struct slot *me, const struct comm_call *c, const void *in,
                                 void *out, size_t bytes, struct comm_trouble *why)
{
    struct thread_job *j = me->job;
    bool higher = c->group[1] == me->endpoint.rank;
    int peer = (int)c->group[!higher];
    struct desk *d = &j->desks[c->group[0] * j->n + c->group[1]];
    uint64_t turn = me->to[peer].turns++, stamp;
    if (atomic_load_explicit(&j->failed, memory_order_relaxed))
        return already_failed(me, why);
    tsr__header_of(c, NULL, &me->header);
    memcpy(desk_cell(d, higher, turn), in, bytes);
    uint64_t meeting = come_to(me, peer, true, &stamp);
    tsr_status st = await_arrival(me, peer, c, why);
    const struct word *w = word_of(j, peer, me->endpoint.rank);
    if (st == TSR_OK && atomic_load_explicit(&w->stamp[meeting & 1], memory_order_relaxed) != stamp)
        st = tsr__desk_differs(&me->header, me->endpoint.rank, &j->slots[peer].header, peer, why);
    if (st != TSR_OK)
        return give_up(me, c, why);
    tsr__desk_fold(c, desk_cell(d, !higher, turn), higher, in, out);
    return TSR_OK;
}

static tsr_status threads_all_reduce(struct endpoint *e, const struct comm_call *c, const void *in,
                                     void *out, struct comm_trouble *why)
{
    struct slot *me = (struct slot *)e;
    size_t bytes = (size_t)c->count * tsr__elem_bytes(c->type);
    if (me->job->desks && desk_fits(c, bytes))
        return reduce_at_desk(me, c, in, out, bytes, why);
    me->in = in;
    me->out = out;
    tsr_status st = arrive(me, c, NULL, why);
    if (st != TSR_OK)
        return st;
    if (!enter_data(me))
        return backed_off(me, c, why);
    reduce_slice(me, c);
    return depart(me, c, why);
}

static tsr_status other_size(const struct slot *me, const struct comm_call *c, int rank,
                             size_t sent, size_t expected, struct comm_trouble *why)
{
    return tsr__trouble(why, TSR_PEER, rank,
                        "%s '%s' (id %lld): rank %d sends %zu bytes, rank %d expects %zu", c->op,
                        c->node, (long long)c->id, rank, sent, me->endpoint.rank, expected);
}

// Folds what every member sends to this one.
static tsr_status fold_parts(struct slot *me, const struct comm_call *c,
                             const struct comm_exchange *x, int self, struct comm_trouble *why)
{
    size_t bytes = x->recv[0].bytes;
    for (int i = 0; i < c->n_group; i++) {
        const struct slot *peer = &me->job->slots[c->group[i]];
        const struct comm_buffer *from = &peer->x->send[self];
        if (from->bytes != bytes)
            return other_size(me, c, peer->endpoint.rank, from->bytes, bytes, why);
        me->ins[i] = from->p;
    }
    tsr__reduce(c->type, c->reduce, me->ins, c->n_group, (void *const *)&x->folded, 1, 0,
                (int64_t)(bytes / tsr__elem_bytes(c->type)));
    return TSR_OK;
}

// Copies what every member sends to this one; the sizes must be those expected.
static tsr_status copy_parts(struct slot *me, const struct comm_call *c,
                             const struct comm_exchange *x, int self, struct comm_trouble *why)
{
    for (int i = 0; i < c->n_group; i++) {
        const struct slot *peer = &me->job->slots[c->group[i]];
        const struct comm_buffer *from = &peer->x->send[self], *to = &x->recv[i];
        if (from->bytes != to->bytes)
            return other_size(me, c, peer->endpoint.rank, from->bytes, to->bytes, why);
        if (to->bytes && to->p != from->p)
            memcpy(to->p, from->p, to->bytes);
    }
    return TSR_OK;
}

static tsr_status tell_arrived(struct slot *me, const struct comm_call *c, struct comm_exchange *x,
                               struct comm_trouble *why)
{
    if (!x->arrived)
        return TSR_OK;
    for (int i = 0; i < c->n_group; i++)
        memcpy(me->notes[i], me->job->slots[c->group[i]].header.notes, sizeof me->notes[i]);
    tsr_status st = x->arrived(x->data, (const int64_t(*)[COMM_NOTES])me->notes, why);
    return st == TSR_OK ? TSR_OK : give_up(me, c, why);
}

static tsr_status threads_exchange(struct endpoint *e, const struct comm_call *c,
                                   struct comm_exchange *x, struct comm_trouble *why)
{
    struct slot *me = (struct slot *)e;
    me->x = x;
    int self = 0;
    while (c->group[self] != e->rank)
        self++;
    tsr_status st = arrive(me, c, x->notes, why);
    if (st == TSR_OK)
        st = tell_arrived(me, c, x, why);
    if (st != TSR_OK)
        return st;
    if (!enter_data(me))
        return backed_off(me, c, why);
    st = x->folded ? fold_parts(me, c, x, self, why) : copy_parts(me, c, x, self, why);
    if (st == TSR_OK)
        return depart(me, c, why);
    atomic_store(&me->state, AT_WORK);
    return give_up(me, c, why);
}

static void threads_close(struct endpoint *e)
{
    atomic_store(&((struct slot *)e)->state, GONE);
}

static const struct transport threads_transport = {
    .name = "threads",
    .all_reduce = threads_all_reduce,
    .exchange = threads_exchange,
    .fail = threads_fail,
    .close = threads_close,
};

static void slot_init(struct thread_job *j, int rank, int cores)
{
    struct slot *s = &j->slots[rank];
    size_t n = (size_t)j->n;
    s->endpoint = (struct endpoint){.transport = &threads_transport,
                                    .rank = rank,
                                    .size = j->n,
                                    .host_ranks = j->n,
                                    .host_cores = cores};
    s->job = j;
    atomic_init(&s->waiting_for, -1);
    s->to = j->words + (size_t)rank * n;
    s->ins = ARENA_ARRAY(&j->arena, const void *, n);
    s->outs = ARENA_ARRAY(&j->arena, void *, n);
    s->notes = (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&j->arena, int64_t, n * COMM_NOTES);
}

// Large, and mostly never touched; NULL: everything goes without.
static struct desk *open_desks(size_t pairs)
{
    void *p = mmap(NULL, pairs * sizeof(struct desk), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct thread_job *tsr__threads_new(tsr_session *s, int n, const struct comm_options *options)
{
    (void)options; // threads live and die with their process: there is no heartbeat to miss
    struct arena a;
    tsr__arena_init(&a, s);
    struct thread_job *j = ARENA_NEW(&a, struct thread_job);
    if (!j)
        return NULL;
    j->arena = a;
    j->n = n;
    size_t pairs = (size_t)n * (size_t)n;
    j->slots = arena_get(&j->arena, (size_t)n * sizeof *j->slots, 64);
    j->words = arena_get(&j->arena, pairs * sizeof *j->words, 64);
    j->desks = open_desks(pairs);
    pthread_mutex_init(&j->lock, NULL);
    int cores = tsr__cores();
    j->crowded = n > cores;
    for (int i = 0; i < n && !j->arena.failed; i++)
        slot_init(j, i, cores);
    if (!j->arena.failed)
        return j;
    tsr__threads_free(j);
    return NULL;
}

struct endpoint *tsr__threads_endpoint(struct thread_job *j, int rank)
{
    return &j->slots[rank].endpoint;
}

void tsr__threads_free(struct thread_job *j)
{
    if (!j)
        return;
    pthread_mutex_destroy(&j->lock);
    if (j->desks)
        munmap(j->desks, (size_t)j->n * (size_t)j->n * sizeof *j->desks);
    struct arena a = j->arena; // it holds the job itself
    tsr__arena_free(&a);
}

const struct comm_trouble *tsr__threads_trouble(const struct thread_job *j)
{
    return atomic_load(&((struct thread_job *)j)->failed) ? &j->trouble : NULL;
}
