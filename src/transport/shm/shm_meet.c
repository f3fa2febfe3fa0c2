// SPDX-License-Identifier: Apache-2.0
// shm_meet.c - synchronization of ranks that share memory: they compare their calls and wait for
// each other.
//
// A rank writes what it is about to do into one of its two entries and raises its call counter for
// each other member. When the counters of all members are as high as its own, it compares their
// entries. Counters are kept for each pair of ranks, so the k-th call of one rank meets the k-th
// call of the other. Ranks that disagree about operator, order or group find different entries
// there and detect it. A rank may be one call ahead of another, never two, so two entries suffice.
// Before an entry is reused, the ranks that could read it must have departed from that call, or
// entered a later one.
//
// Worked example: ranks 0 and 1; `arrived` of rank 0 towards rank 1 is call << 2 | previous entry
// << 1 | current entry. First call: rank 0 writes entry 1 and stores 1 << 2 | 0 << 1 | 1 = 5. Rank
// 1 reads 5: 5 >> 2 = 1, rank 0 has arrived, and 5 & 1 = 1 is the entry to compare. Second call:
// rank 0 writes entry 0 and stores 2 << 2 | 1 << 1 | 0 = 10. If rank 1 enters the first call only
// now, it reads 10: 10 >> 2 = 2 is more than 1, so rank 0 is one call ahead, and 10 >> 1 & 1 = 1 is
// its previous entry. The third call writes entry 1 again: rank 0 first waits until rank 1's
// `departed` is 1, or until rank 1 has entered call 2.
//
// Memory order: a rank writes its entry, then raises `arrived` (release); a rank that sees the
// counter (acquire) sees the entry. Likewise it reads another's entry, then raises `departed`.
// There are no locks: a process that dies leaves nothing locked.
#include "transport/shm/shm.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

_Static_assert(offsetof(struct comm_header, notes) == SHM_LINE, "what is compared is one line");

// Publishes the failure of the job: every waiting rank finds it at its next check. waiting_for is
// cleared, so that no rank sees a deadlock through this one.
tsr_status tsr__shm_give_up(struct shm *me, struct comm_trouble *why)
{
    tsr__comm_give_up(&me->endpoint, why);
    atomic_store(&me->slot->waiting_for, -1);
    return why->status;
}

// ---- waiting ------------------------------------------------------------------------------------

// True if rank a has entered a call with rank b that b has not entered yet.
static bool waits(const struct shm_job *job, int a, int b)
{
    return atomic_load(&shm_pair(job, b, a)->arrived) >> 2 <
           atomic_load(&shm_pair(job, a, b)->arrived) >> 2;
}

// Returns the rank for which a rank waits; -1: none.
static int waits_for(const void *data, int at)
{
    const struct shm_job *job = data;
    int next = atomic_load(&shm_slot(job, at)->waiting_for);
    if (next < 0 || next >= job->n || !waits(job, at, next) ||
        atomic_load(&shm_slot(job, next)->state) == SHM_GONE)
        return -1;
    return next;
}

// True if the process has ended, zombies included.
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

// Fails if the peer's process has ended or has had no heartbeat for too long. A gap between two
// checks counts as 0.5 s at most, so that a rank that was itself stopped meanwhile does not report
// others.
static tsr_status check_heartbeat(struct shm *me, const struct comm_call *call, int peer,
                                  struct comm_trouble *why)
{
    struct shm_peer *shm_peer = &me->peers[peer];
    const struct shm_slot *slot = shm_slot(me->job, peer);
    uint64_t beat = atomic_load(&slot->beat);
    double now = tsr__now_s(), step = now - shm_peer->looked_s;
    shm_peer->looked_s = now;
    // Any change is a heartbeat; the value has no meaning.
    if (beat != shm_peer->beat) {
        shm_peer->beat = beat;
        shm_peer->silent_s = 0;
        return TSR_OK;
    }
    shm_peer->silent_s += step < 0.5 ? step : 0.5;
    // A supervising parent reports how the process ended, which is more informative.
    if (!me->job->watched && shm_peer->silent_s > 0.5 && atomic_load(&slot->pid) > 0 &&
        process_gone(atomic_load(&slot->pid)))
        return tsr__trouble_waits(why, call, peer, "died", me->endpoint.rank);
    if (shm_peer->silent_s <= me->job->timeout_s)
        return TSR_OK;
    char what[64];
    snprintf(what, sizeof what, "has sent no heartbeat for %.0f s (stopped?)", shm_peer->silent_s);
    return tsr__trouble_waits(why, call, peer, what, me->endpoint.rank);
}

// Checks while this rank waits, in this order: failure of the job; end or failure of the peer;
// deadlock; heartbeat of the peer; the network, for a job on several hosts (`also`). Reports the
// first that applies.
tsr_status tsr__shm_check(struct shm *me, const struct comm_call *call, int peer,
                          struct comm_trouble *why)
{
    const struct shm_slot *slot = shm_slot(me->job, peer);
    if (atomic_load(&shm_head(me->job)->failed))
        return tsr__shm_failure(me->job, why);
    if (atomic_load(&slot->state) != SHM_GONE && !atomic_load(&slot->left)) {
        me->gone = 0;
    } else if (++me->gone > 1) { // its last calls were checked once more after it had ended
        TRY(tsr__shm_left(me->job, peer, why));
        return tsr__trouble_waits(why, call, peer, "has ended", me->endpoint.rank);
    }
    me->rings = tsr__in_ring(me->endpoint.rank, me->job->n, waits_for, me->job) ? me->rings + 1 : 0;
    const struct comm_header *header = &slot->entries[atomic_load(&slot->showing) & 1].header;
    if (me->rings >= RING_LOOKS)
        return tsr__trouble_ring(why, call, me->endpoint.rank, peer, header->op, header->node,
                                 header->id);
    tsr_status st = check_heartbeat(me, call, peer, why);
    if (st != TSR_OK || !me->also)
        return st;
    return me->also(me->also_data, call, peer, why);
}

// Waits until a word of a peer has reached a value. Most waits end within microseconds, so the
// first check costs one load. `waiting_for` is set only if this rank really waits: other ranks read
// it to detect deadlocks. The peer and the clock are checked only in long waits.
tsr_status tsr__shm_await(struct shm *me, const struct comm_call *call, int peer,
                          const atomic_uint_fast64_t *word, unsigned shift, uint64_t wanted,
                          uint64_t *seen, struct comm_trouble *why)
{
    struct patience patience = {0};
    for (;;) {
        *seen = atomic_load_explicit(word, memory_order_acquire);
        if (*seen >> shift >= wanted)
            break;
        // Published once, before the first sleep: other ranks read this cache line only when they
        // wait long.
        if (patience.rounds == 0) {
            atomic_store_explicit(&me->slot->waiting_for, peer, memory_order_release);
            me->rings = me->gone = 0;
            me->peers[peer].looked_s = 0;
            me->peers[peer].silent_s = 0;
        }
        if (!tsr__patience(&patience, me->crowded))
            continue;
        if (me->peers[peer].looked_s == 0)
            me->peers[peer].looked_s = tsr__now_s();
        TRY(tsr__shm_check(me, call, peer, why));
    }
    if (patience.rounds)
        atomic_store_explicit(&me->slot->waiting_for, -1, memory_order_relaxed);
    return TSR_OK;
}

// ---- reusing entries ----------------------------------------------------------------------------

// Waits until no rank reads an entry or the staging area (`what`) any more. Waits only for ranks
// that could read it and are not known to be in a later call.
tsr_status tsr__shm_released(struct shm *me, const struct comm_call *call, int what,
                             struct comm_trouble *why)
{
    struct shm_readers *readers = &me->readers[what];
    for (int i = 0; i < readers->n; i++) {
        int peer = readers->list[i];
        uint64_t seen;
        if (me->peers[peer].seen > readers->meeting[peer])
            continue; // it has entered a later call
        TRY(tsr__shm_await(me, call, peer, &shm_pair(me->job, peer, me->endpoint.rank)->departed, 0,
                           readers->meeting[peer], &seen, why));
    }
    readers->n = 0;
    return TSR_OK;
}

// Records the ranks that can read the entry, with the numbers of their calls. tsr__shm_released
// uses this before the entry is reused.
static void record_readers(const struct shm *me, const struct comm_call *call,
                           struct shm_readers *readers)
{
    readers->n = 0;
    for (int i = 0; i < call->n_group; i++) {
        int peer = (int)call->group[i];
        if (peer == me->endpoint.rank)
            continue;
        readers->list[readers->n++] = peer;
        readers->meeting[peer] = me->peers[peer].meetings;
    }
}

// ---- synchronization ----------------------------------------------------------------------------

// Starts a call: writes this rank's entry. Calls use the two entries in turn, so it first waits
// until all ranks have read the entry of two calls ago.
tsr_status tsr__shm_begin(struct shm *me, const struct comm_call *call, const int64_t *notes,
                          struct shm_entry **out, struct comm_trouble *why)
{
    if (atomic_load_explicit(&shm_head(me->job)->failed, memory_order_relaxed))
        return tsr__shm_failure(me->job, why);
    if (atomic_load_explicit(&me->slot->left, memory_order_relaxed))
        return tsr__shm_left(me->job, me->endpoint.rank, why);
    int index = (int)(++me->calls & 1);
    TRY(tsr__shm_released(me, call, index, why));
    struct shm_entry *entry = &me->slot->entries[index];
    tsr__header_of(call, notes, &entry->header);
    entry->in = entry->out = 0;
    entry->staged = me->staged;
    atomic_store_explicit(&me->slot->showing, index, memory_order_relaxed);
    *out = entry;
    return TSR_OK;
}

// Announces to a peer that this rank has entered a call: raises `arrived`, which no other function
// does. stamped: the header for a call by mailbox, or NULL. Returns its stamp, or 0 without one.
static uint64_t announce_to(struct shm *me, int peer, const struct comm_header *stamped)
{
    struct shm_pair *pair = shm_pair(me->job, me->endpoint.rank, peer);
    uint64_t meeting = ++me->peers[peer].meetings;
    uint64_t before = atomic_load_explicit(&pair->arrived, memory_order_relaxed) & 1;
    uint64_t stamp = stamped ? tsr__mailbox_stamp(stamped, meeting) : 0;
    atomic_store_explicit(&pair->stamp[meeting & 1], stamp, memory_order_relaxed);
    atomic_store_explicit(&pair->arrived, meeting << 2 | before << 1 | (me->calls & 1),
                          memory_order_release);
    return stamp;
}

// Announces the call to all members. This comes before waiting for any of them, so that no arrival
// depends on another.
static void announce(struct shm *me, const struct comm_call *call)
{
    for (int i = 0; i < call->n_group; i++)
        if (call->group[i] != me->endpoint.rank)
            announce_to(me, (int)call->group[i], NULL);
}

// Waits until a peer has entered this call. Afterwards `seen` is the latest call that the peer has
// entered, and `entry` is its entry for this call (see the example above).
static tsr_status await_member(struct shm *me, const struct comm_call *call, int peer,
                               struct comm_trouble *why)
{
    struct shm_peer *shm_peer = &me->peers[peer];
    uint64_t seen;
    TRY(tsr__shm_await(me, call, peer, &shm_pair(me->job, peer, me->endpoint.rank)->arrived, 2,
                       shm_peer->meetings, &seen, why));
    shm_peer->seen = seen >> 2;
    shm_peer->entry = shm_peer->seen > shm_peer->meetings ? seen >> 1 & 1 : seen & 1;
    return TSR_OK;
}

static tsr_status await_members(struct shm *me, const struct comm_call *call,
                                struct comm_trouble *why)
{
    for (int i = 0; i < call->n_group; i++) {
        if (call->group[i] == me->endpoint.rank)
            continue;
        TRY(await_member(me, call, (int)call->group[i], why));
    }
    return TSR_OK;
}

// Synchronizes the members inside a call. Nothing is compared; members keep their entries.
tsr_status tsr__shm_sync(struct shm *me, const struct comm_call *call, struct comm_trouble *why)
{
    announce(me, call);
    return await_members(me, call, why);
}

// Returns a rank's entry of the current call. Valid until this rank departs from the call.
const struct shm_entry *tsr__shm_entry(const struct shm *me, int rank)
{
    const struct shm_slot *slot = shm_slot(me->job, rank);
    bool self = rank == me->endpoint.rank;
    return &slot->entries[self ? me->calls & 1 : me->peers[rank].entry];
}

// Waits for all members and checks that they make the same call. The first cache line of the header
// has all fields that must agree. If it differs, a comparison field by field finds the difference.
tsr_status tsr__shm_meet(struct shm *me, const struct comm_call *call, struct comm_trouble *why)
{
    const struct shm_entry *mine = tsr__shm_entry(me, me->endpoint.rank);
    TRY(tsr__shm_sync(me, call, why));
    for (int i = 0; i < call->n_group; i++) {
        int peer = (int)call->group[i];
        const struct comm_header *theirs = &tsr__shm_entry(me, peer)->header;
        if (peer == me->endpoint.rank || memcmp(&mine->header, theirs, SHM_LINE) == 0)
            continue;
        TRY(tsr__header_compare(&mine->header, me->endpoint.rank, theirs, peer, why));
    }
    return TSR_OK;
}

// Waits for the other member and checks that it makes the same call. Equal stamps mean equal
// headers, and no entry is read. Only if they differ are the entries compared.
tsr_status tsr__shm_meet_in_mailbox(struct shm *me, const struct comm_call *call, int peer,
                                    struct comm_trouble *why)
{
    const struct comm_header *mine = &tsr__shm_entry(me, me->endpoint.rank)->header;
    uint64_t stamp = announce_to(me, peer, mine);
    TRY(await_member(me, call, peer, why));
    uint64_t meeting = me->peers[peer].meetings;
    const struct shm_pair *pair = shm_pair(me->job, peer, me->endpoint.rank);
    if (atomic_load_explicit(&pair->stamp[meeting & 1], memory_order_relaxed) == stamp)
        return TSR_OK;
    return tsr__mailbox_differs(mine, me->endpoint.rank, &tsr__shm_entry(me, peer)->header, peer,
                                why);
}

// Ends a call. This rank reads nothing of this call afterwards and announces that to each member.
// It records which ranks could read its own entry, for the call after the next one, which reuses
// the entry.
void tsr__shm_depart(struct shm *me, const struct comm_call *call)
{
    record_readers(me, call, &me->readers[me->calls & 1]);
    if (me->staged != tsr__shm_entry(me, me->endpoint.rank)->staged)
        record_readers(me, call, &me->readers[SHM_STAGE]);
    for (int i = 0; i < call->n_group; i++) {
        int peer = (int)call->group[i];
        if (peer != me->endpoint.rank)
            atomic_store_explicit(&shm_pair(me->job, me->endpoint.rank, peer)->departed,
                                  me->peers[peer].meetings, memory_order_release);
    }
}
