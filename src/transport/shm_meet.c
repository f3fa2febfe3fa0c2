// SPDX-License-Identifier: Apache-2.0
// shm_meet.c - how ranks that share memory meet, compare what they are at, and wait for each other.
//
// A rank writes what it is about to do into one of its two entries and raises, for each other
// member, the number of their meetings. When all members' numbers are as high, what their entries
// say is compared. Numbers are kept for each pair of ranks, so the k-th meeting of two is always
// with each other: ranks that disagree about operator, order or group meet in different calls, and
// find it. A rank may be one meeting ahead of another, never two, so two entries suffice; before an
// entry is written again, those who were shown it must have departed from that meeting, or come to
// a later one.
#include "transport/shm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

_Static_assert(offsetof(struct comm_header, notes) == SHM_LINE, "what is compared is one line");

tsr_status tsr__shm_give_up(struct shm *me, struct comm_trouble *why)
{
    tsr__shm_fail(me->job, why->status, why->rank, why->text);
    atomic_store(&me->slot->waiting_for, -1);
    return why->status;
}

// ---- waiting -----------------------------------------------------------------------------------

// True if rank a waits for rank b to come, and b has not.
static bool waits(const struct shm_job *j, int a, int b)
{
    return atomic_load(&shm_pair(j, b, a)->arrived) >> 2 <
           atomic_load(&shm_pair(j, a, b)->arrived) >> 2;
}

// True if following "waits for" from this rank comes back to it. A rank whose wait is over and that
// only has not had the time to see it breaks the ring.
static bool in_a_ring(const struct shm *me)
{
    int at = me->endpoint.rank;
    for (int steps = 0; steps <= me->job->n; steps++) {
        int next = atomic_load(&shm_slot(me->job, at)->waiting_for);
        if (next < 0 || next >= me->job->n || !waits(me->job, at, next) ||
            atomic_load(&shm_slot(me->job, next)->state) == SHM_GONE)
            return false;
        at = next;
        if (at == me->endpoint.rank)
            return true;
    }
    return false; // a ring without this rank: its members will tell
}

// True if the process is gone, a zombie that nobody has taken yet included.
static bool process_gone(int pid)
{
    char path[64], text[256] = "";
    if (kill(pid, 0) != 0 && errno == ESRCH)
        return true;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return errno == ENOENT;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return state && (state[2] == 'Z' || state[2] == 'X');
}

// How long a rank has given no sign, counted in this rank's own time: one that was stopped itself
// meanwhile blames nobody.
static tsr_status judge_silence(struct shm *me, const struct comm_call *c, int peer,
                                struct comm_trouble *why)
{
    struct shm_peer *p = &me->peers[peer];
    const struct shm_slot *s = shm_slot(me->job, peer);
    uint64_t beat = atomic_load(&s->beat);
    double now = tsr__now_s(), step = now - p->looked_s;
    p->looked_s = now;
    if (beat != p->beat) {
        p->beat = beat;
        p->silent_s = 0;
        return TSR_OK;
    }
    p->silent_s += step < 0.5 ? step : 0.5;
    if (!me->job->watched && p->silent_s > 0.5 && atomic_load(&s->pid) > 0 &&
        process_gone(atomic_load(&s->pid)))
        return tsr__trouble(why, TSR_PEER, peer,
                            "rank %d died; rank %d waits for it at %s '%s' (id %lld)", peer,
                            me->endpoint.rank, c->op, c->node, (long long)c->id);
    if (p->silent_s <= me->job->timeout_s)
        return TSR_OK;
    return tsr__trouble(why, TSR_PEER, peer,
                        "rank %d gives no sign of life for %.0f s (stopped?); rank %d waits for it "
                        "at %s '%s' (id %lld)",
                        peer, p->silent_s, me->endpoint.rank, c->op, c->node, (long long)c->id);
}

#define RING_LOOKS 50 // a ring that is seen so often is none of ranks on the move

tsr_status tsr__shm_look(struct shm *me, const struct comm_call *c, int peer,
                         struct comm_trouble *why)
{
    const struct shm_slot *s = shm_slot(me->job, peer);
    if (atomic_load(&shm_head(me->job)->failed))
        return tsr__shm_told(me->job, why);
    if (atomic_load(&s->state) != SHM_GONE)
        me->gone = 0;
    else if (++me->gone > 1) // what it did last was looked for once more since it was seen gone
        return tsr__trouble(why, TSR_PEER, peer,
                            "rank %d has ended; rank %d waits for it at %s '%s' (id %lld)", peer,
                            me->endpoint.rank, c->op, c->node, (long long)c->id);
    me->rings = in_a_ring(me) ? me->rings + 1 : 0;
    const struct comm_header *h = &s->entries[atomic_load(&s->showing) & 1].header;
    if (me->rings >= RING_LOOKS)
        return tsr__trouble(why, TSR_PEER, peer,
                            "the ranks wait for each other in a ring: rank %d at %s '%s' (id %lld) "
                            "for rank %d, which is at %.15s '%.47s' (id %lld)",
                            me->endpoint.rank, c->op, c->node, (long long)c->id, peer, h->op,
                            h->node, (long long)h->id);
    tsr_status st = judge_silence(me, c, peer, why);
    if (st == TSR_OK && me->also)
        st = me->also(me->also_data, c, peer, why);
    return st;
}

tsr_status tsr__shm_await(struct shm *me, const struct comm_call *c, int peer,
                          const atomic_uint_fast64_t *word, unsigned shift, uint64_t wanted,
                          uint64_t *seen, struct comm_trouble *why)
{
    struct patience p = {0};
    for (;;) {
        *seen = atomic_load_explicit(word, memory_order_acquire);
        if (*seen >> shift >= wanted)
            break;
        if (p.rounds == 0) {
            atomic_store_explicit(&me->slot->waiting_for, peer, memory_order_release);
            me->rings = me->gone = 0;
            me->peers[peer].looked_s = 0;
            me->peers[peer].silent_s = 0;
        }
        if (!tsr__patience(&p, me->crowded))
            continue;
        if (me->peers[peer].looked_s == 0)
            me->peers[peer].looked_s = tsr__now_s();
        tsr_status st = tsr__shm_look(me, c, peer, why);
        if (st != TSR_OK)
            return st;
    }
    if (p.rounds)
        atomic_store_explicit(&me->slot->waiting_for, -1, memory_order_relaxed);
    return TSR_OK;
}

// ---- what was shown may be written again -------------------------------------------------------

tsr_status tsr__shm_released(struct shm *me, const struct comm_call *c, int what,
                             struct comm_trouble *why)
{
    struct shm_readers *r = &me->readers[what];
    for (int i = 0; i < r->n; i++) {
        int peer = r->list[i];
        uint64_t seen;
        if (me->peers[peer].seen > r->meeting[peer])
            continue; // it came to a later one
        tsr_status st =
            tsr__shm_await(me, c, peer, &shm_pair(me->job, peer, me->endpoint.rank)->departed, 0,
                           r->meeting[peer], &seen, why);
        if (st != TSR_OK)
            return st;
    }
    r->n = 0;
    return TSR_OK;
}

static void remember(const struct shm *me, const struct comm_call *c, struct shm_readers *r)
{
    r->n = 0;
    for (int i = 0; i < c->n_group; i++) {
        int peer = (int)c->group[i];
        if (peer == me->endpoint.rank)
            continue;
        r->list[r->n++] = peer;
        r->meeting[peer] = me->peers[peer].meetings;
    }
}

// ---- meeting -----------------------------------------------------------------------------------

tsr_status tsr__shm_begin(struct shm *me, const struct comm_call *c, const int64_t *notes,
                          struct shm_entry **out, struct comm_trouble *why)
{
    if (atomic_load_explicit(&shm_head(me->job)->failed, memory_order_relaxed))
        return tsr__shm_told(me->job, why);
    int index = (int)(++me->calls & 1);
    tsr_status st = tsr__shm_released(me, c, index, why);
    if (st != TSR_OK)
        return st;
    struct shm_entry *e = &me->slot->entries[index];
    tsr__header_of(c, notes, &e->header);
    e->in = e->out = 0;
    e->staged = me->staged;
    atomic_store_explicit(&me->slot->showing, index, memory_order_relaxed);
    *out = e;
    return TSR_OK;
}

// stamped: what is at the desk of both, or NULL.
static uint64_t come_to(struct shm *me, int peer, const struct comm_header *stamped)
{
    struct shm_pair *p = shm_pair(me->job, me->endpoint.rank, peer);
    uint64_t meeting = ++me->peers[peer].meetings;
    uint64_t before = atomic_load_explicit(&p->arrived, memory_order_relaxed) & 1;
    uint64_t stamp = stamped ? tsr__desk_stamp(stamped, meeting) : 0;
    atomic_store_explicit(&p->stamp[meeting & 1], stamp, memory_order_relaxed);
    atomic_store_explicit(&p->arrived, meeting << 2 | before << 1 | (me->calls & 1),
                          memory_order_release);
    return stamp;
}

static void come(struct shm *me, const struct comm_call *c)
{
    for (int i = 0; i < c->n_group; i++)
        if (c->group[i] != me->endpoint.rank)
            come_to(me, (int)c->group[i], NULL);
}

static tsr_status await_member(struct shm *me, const struct comm_call *c, int peer,
                               struct comm_trouble *why)
{
    struct shm_peer *p = &me->peers[peer];
    uint64_t seen;
    tsr_status st =
        tsr__shm_await(me, c, peer, &shm_pair(me->job, peer, me->endpoint.rank)->arrived, 2,
                       p->meetings, &seen, why);
    if (st != TSR_OK)
        return st;
    p->seen = seen >> 2;
    p->entry = p->seen > p->meetings ? seen >> 1 & 1 : seen & 1;
    return TSR_OK;
}

static tsr_status await_members(struct shm *me, const struct comm_call *c, struct comm_trouble *why)
{
    tsr_status st = TSR_OK;
    for (int i = 0; i < c->n_group && st == TSR_OK; i++)
        if (c->group[i] != me->endpoint.rank)
            st = await_member(me, c, (int)c->group[i], why);
    return st;
}

tsr_status tsr__shm_sync(struct shm *me, const struct comm_call *c, struct comm_trouble *why)
{
    come(me, c);
    return await_members(me, c, why);
}

const struct shm_entry *tsr__shm_entry(const struct shm *me, int rank)
{
    const struct shm_slot *s = shm_slot(me->job, rank);
    bool self = rank == me->endpoint.rank;
    return &s->entries[self ? me->calls & 1 : me->peers[rank].entry];
}

tsr_status tsr__shm_meet(struct shm *me, const struct comm_call *c, struct comm_trouble *why)
{
    const struct shm_entry *mine = tsr__shm_entry(me, me->endpoint.rank);
    tsr_status st = tsr__shm_sync(me, c, why);
    for (int i = 0; i < c->n_group && st == TSR_OK; i++) {
        int peer = (int)c->group[i];
        const struct comm_header *theirs = &tsr__shm_entry(me, peer)->header;
        if (peer != me->endpoint.rank && memcmp(&mine->header, theirs, SHM_LINE) != 0)
            st = tsr__header_compare(&mine->header, me->endpoint.rank, theirs, peer, why);
    }
    return st;
}

tsr_status tsr__shm_meet_at_desk(struct shm *me, const struct comm_call *c, int peer,
                                 struct comm_trouble *why)
{
    const struct comm_header *mine = &tsr__shm_entry(me, me->endpoint.rank)->header;
    uint64_t stamp = come_to(me, peer, mine);
    tsr_status st = await_member(me, c, peer, why);
    uint64_t meeting = me->peers[peer].meetings;
    const struct shm_pair *p = shm_pair(me->job, peer, me->endpoint.rank);
    if (st == TSR_OK && atomic_load_explicit(&p->stamp[meeting & 1], memory_order_relaxed) != stamp)
        st = tsr__desk_differs(mine, me->endpoint.rank, &tsr__shm_entry(me, peer)->header, peer,
                               why);
    return st;
}

void tsr__shm_depart(struct shm *me, const struct comm_call *c)
{
    remember(me, c, &me->readers[me->calls & 1]);
    if (me->staged != tsr__shm_entry(me, me->endpoint.rank)->staged)
        remember(me, c, &me->readers[SHM_STAGE]);
    for (int i = 0; i < c->n_group; i++) {
        int peer = (int)c->group[i];
        if (peer != me->endpoint.rank)
            atomic_store_explicit(&shm_pair(me->job, me->endpoint.rank, peer)->departed,
                                  me->peers[peer].meetings, memory_order_release);
    }
}
