// SPDX-License-Identifier: Apache-2.0
// net_beat.c - signs of life between ranks that are processes, and what their absence means.
//
// A thread of its own tells every other rank once a second what this one does, so a rank that computes for long
// is seen to live. No sign for COMM_DEAD_S from a process of this host that is gone: dead. No sign for the
// time-out: stopped, or out of reach. Failure and end are told the same way, at once. Where the network may be used
// by one thread only, signs go out while this rank waits; then nobody can tell slow from stopped, and nobody does.
#include "transport/net.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BEAT_MAGIC 0x54414542u
#define BEAT_S     1.0      // between two signs
#define STEP_NS    10000000 // between two looks of the thread
#define RING_S     3.0      // ranks that wait for each other that long will do so for ever
#define FAREWELL_S 2.0      // longest wait for the last messages to leave

static uint64_t host_hash(void)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return tsr__hash64(name, strlen(name), 0);
}

// ---- sending and receiving: the thread, or whoever waits ---------------------------------------

static void take_beat(struct net *n, int rank)
{
    struct peer *p = &n->peers[rank];
    struct beat b = p->in;
    b.op[sizeof b.op - 1] = b.node[sizeof b.node - 1] = b.text[sizeof b.text - 1] = 0;
    if (b.magic != BEAT_MAGIC || b.job != n->mine.job)
        return;
    pthread_mutex_lock(&n->lock);
    p->latest = b;
    p->seen_s = tsr__now_s();
    if (b.state == BEAT_FAILED && !atomic_load(&n->failed)) {
        tsr__trouble(&n->trouble,
                     b.status > 0 && b.status <= TSR_BUG ? (tsr_status)b.status : TSR_PEER,
                     b.waiting_for, "%s", b.text);
        atomic_store(&n->failed, 1);
    }
    pthread_mutex_unlock(&n->lock);
}

static void receive_beat(struct net *n, int rank)
{
    struct peer *p = &n->peers[rank];
    size_t got = 0;
    if (p->is_receiving) {
        int done = n->link->test(n->link, &p->receiving, &got);
        if (done == 0)
            return;
        p->is_receiving = false;
        if (done < 0)
            return; // the data channel will tell
        if (got == sizeof p->in)
            take_beat(n, rank);
    }
    p->is_receiving =
        n->link->receive(n->link, rank, LINK_BEAT, &p->in, sizeof p->in, &p->receiving);
}

static void send_beat(struct net *n, int rank, double now, uint32_t farewell)
{
    struct peer *p = &n->peers[rank];
    if (p->is_sending && n->link->test(n->link, &p->sending, NULL) == 0)
        return;
    p->is_sending = false;
    bool last = farewell || atomic_load(&n->failed);
    if (p->told_end || (!last && now - p->sent_s < BEAT_S))
        return;
    pthread_mutex_lock(&n->lock);
    p->out = n->mine;
    p->out.calls = atomic_load(&n->calls);
    if (atomic_load(&n->failed)) {
        p->out.state = BEAT_FAILED;
        p->out.status = n->trouble.status;
        p->out.waiting_for = n->trouble.rank;
        tsr__name_copy(p->out.text, sizeof p->out.text, n->trouble.text);
    } else if (farewell) {
        p->out.state = farewell;
    }
    pthread_mutex_unlock(&n->lock);
    p->told_end = last;
    p->sent_s = now;
    p->is_sending = n->link->send(n->link, rank, LINK_BEAT, &p->out, sizeof p->out, &p->sending);
}

void tsr__beat_step(struct net *n)
{
    double now = tsr__now_s();
    for (int r = 0; r < n->endpoint.size; r++) {
        if (r == n->endpoint.rank)
            continue;
        receive_beat(n, r);
        send_beat(n, r, now, 0);
    }
}

static void *beat_thread(void *data)
{
    struct net *n = data;
    struct timespec nap = {0, STEP_NS};
    while (!atomic_load(&n->stop)) {
        tsr__beat_step(n);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

// ---- start, stop -------------------------------------------------------------------------------

tsr_status tsr__beat_start(struct net *n, uint32_t job)
{
    double now = tsr__now_s();
    n->mine =
        (struct beat){.magic = BEAT_MAGIC, .state = BEAT_WORKING, .job = job, .waiting_for = -1};
    n->mine.pid = (int32_t)getpid();
    n->mine.host = host_hash();
    for (int r = 0; r < n->endpoint.size; r++)
        n->peers[r].seen_s = now;
    if (!n->link->threads)
        return TSR_OK;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    n->has_thread = !tsr__fault(n->session, FAULT_SPAWN) &&
                    pthread_create(&n->thread, NULL, beat_thread, n) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (n->has_thread)
        return TSR_OK;
    tsr__diag(n->session, DIAG_rank_start, NULL, "a higher limit of threads",
              "the thread for signs of life could not be started");
    return TSR_PEER;
}

// True if that rank has ended, or knows that the job has failed.
static bool has_answered(struct net *n, int rank)
{
    pthread_mutex_lock(&n->lock);
    uint32_t state = n->peers[rank].latest.state;
    pthread_mutex_unlock(&n->lock);
    return state == BEAT_FAILED || state == BEAT_ENDED;
}

// Tells all that this rank ends, or has failed, and waits (not for long) until that has left; after a failure, until
// all others have answered. False: one did not.
static bool farewell(struct net *n)
{
    bool failed = atomic_load(&n->failed), open = true;
    double until = tsr__now_s() + FAREWELL_S;
    struct timespec nap = {0, 1000000};
    while (open && tsr__now_s() < until) {
        open = false;
        for (int r = 0; r < n->endpoint.size; r++) {
            if (r == n->endpoint.rank)
                continue;
            send_beat(n, r, until, BEAT_ENDED);
            open |= n->peers[r].is_sending || !n->peers[r].told_end;
            if (failed)
                receive_beat(n, r);
            open |= failed && !has_answered(n, r);
        }
        if (open)
            nanosleep(&nap, NULL);
    }
    for (int r = 0; r < n->endpoint.size; r++)
        if (n->peers[r].is_receiving)
            n->link->cancel(n->link, &n->peers[r].receiving);
    return !open;
}

void tsr__beat_stop(struct net *n)
{
    if (atomic_exchange(&n->stop, true))
        return;
    if (n->has_thread)
        pthread_join(n->thread, NULL);
    bool answered = farewell(n);
    if (atomic_load(&n->failed) && !(answered && tsr__net_cancel(n)))
        n->link->failed(n->link);
}

// ---- for the rank's thread ---------------------------------------------------------------------

void tsr__beat_tell(struct net *n, const struct comm_call *c, enum beat_state state, int peer)
{
    pthread_mutex_lock(&n->lock);
    n->mine.state = state;
    n->mine.waiting_for = peer;
    n->mine.id = c->id;
    tsr__name_copy(n->mine.op, sizeof n->mine.op, c->op);
    tsr__name_copy(n->mine.node, sizeof n->mine.node, c->node);
    pthread_mutex_unlock(&n->lock);
}

void tsr__beat_fail(struct net *n, tsr_status status, int rank, const char *text)
{
    pthread_mutex_lock(&n->lock);
    if (!atomic_load(&n->failed)) {
        tsr__trouble(&n->trouble, status, rank, "%s", text);
        atomic_store(&n->failed, 1);
    }
    pthread_mutex_unlock(&n->lock);
}

tsr_status tsr__beat_told(struct net *n, struct comm_trouble *why)
{
    pthread_mutex_lock(&n->lock);
    *why = n->trouble;
    pthread_mutex_unlock(&n->lock);
    return why->status;
}

// Follows "waits for" from a rank back to this one; 0: no ring, else a number for this very ring.
static uint64_t ring_of(const struct net *n, int at)
{
    uint64_t hash = 1;
    for (int steps = 0; steps < n->endpoint.size; steps++) {
        const struct beat *b = &n->peers[at].latest;
        if (b->state != BEAT_WAITING || tsr__now_s() - n->peers[at].seen_s > 2 * BEAT_S)
            return 0; // on the move; or stopped, and its last word is old
        uint64_t link[3] = {(uint64_t)at, b->calls, (uint64_t)b->waiting_for};
        hash = tsr__hash64(link, sizeof link, hash) | 1;
        at = b->waiting_for;
        if (at == n->endpoint.rank)
            return hash;
        if (at < 0 || at >= n->endpoint.size)
            return 0;
    }
    return 0;
}

static tsr_status judge_silence(struct net *n, const struct comm_call *c, int peer, double silent_s,
                                struct comm_trouble *why)
{
    const struct beat *b = &n->peers[peer].latest;
    bool gone = b->pid > 0 && b->host == n->mine.host && kill(b->pid, 0) != 0 && errno == ESRCH;
    if (gone && silent_s > COMM_DEAD_S)
        return tsr__trouble(why, TSR_PEER, peer,
                            "rank %d died; rank %d waits for it at %s '%s' (id %lld)", peer,
                            n->endpoint.rank, c->op, c->node, (long long)c->id);
    if (silent_s > n->timeout_s)
        return tsr__trouble(
            why, TSR_PEER, peer,
            "rank %d gives no sign of life for %.0f s (stopped, or out of reach); rank %d waits "
            "for it at %s '%s' (id %lld)",
            peer, silent_s, n->endpoint.rank, c->op, c->node, (long long)c->id);
    return TSR_OK;
}

static tsr_status judge(struct net *n, const struct comm_call *c, int peer,
                        struct comm_trouble *why)
{
    const struct peer *p = &n->peers[peer];
    const struct beat *b = &p->latest;
    double now = tsr__now_s();
    if (b->state == BEAT_ENDED)
        return tsr__trouble(why, TSR_PEER, peer,
                            "rank %d has ended; rank %d waits for it at %s '%s' (id %lld)", peer,
                            n->endpoint.rank, c->op, c->node, (long long)c->id);
    uint64_t ring = ring_of(n, peer);
    if (ring != n->ring)
        n->ring_since_s = now;
    n->ring = ring;
    if (ring && now - n->ring_since_s > RING_S)
        return tsr__trouble(
            why, TSR_PEER, peer,
            "the ranks wait for each other in a ring: rank %d at %s '%s' (id %lld) for rank "
            "%d, which is at %s '%s' (id %lld)",
            n->endpoint.rank, c->op, c->node, (long long)c->id, peer, b->op, b->node,
            (long long)b->id);
    return n->has_thread ? judge_silence(n, c, peer, now - p->seen_s, why) : TSR_OK;
}

tsr_status tsr__beat_look(struct net *n, const struct comm_call *c, int peer,
                          struct comm_trouble *why)
{
    if (!n->has_thread)
        tsr__beat_step(n);
    if (atomic_load(&n->failed))
        return tsr__beat_told(n, why);
    pthread_mutex_lock(&n->lock);
    tsr_status st = judge(n, c, peer, why);
    pthread_mutex_unlock(&n->lock);
    return st;
}
