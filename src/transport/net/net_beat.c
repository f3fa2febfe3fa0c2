// SPDX-License-Identifier: Apache-2.0
// net_beat.c - heartbeats between ranks that are processes, and detection of dead or stopped ranks.
//
// A thread sends the state of this rank to every other rank once a second, so that a rank with a
// long computation is known to be alive. Without a heartbeat for COMM_DEAD_S, a rank of this host
// whose process has ended is dead. Without a heartbeat for the time-out, a rank is stopped or
// unreachable. Failure and end are sent at once in the same way. If the network allows one thread
// only, heartbeats are sent while this rank waits; then slow and stopped ranks cannot be
// distinguished, and none is reported.
//
// Example: rank 2 of 4 dies, on a network with threads and a meeting (UCX). Its connection ends,
// and tsr__meet_check records the time. Rank 0, which waits for it, finds in check_heartbeat a
// second later that it died, and fails. Its next heartbeat has BEAT_FAILED with the reason, so
// ranks 1 and 3 fail with the same text, wherever they wait. Under MPI there is no such connection:
// ranks on the same host find after 5 s that the process has ended; on other hosts only the
// time-out detects it.
//
// Ownership: `mine`, `latest` and `trouble` are protected by the lock. in, out, the requests and
// sent_last belong to the thread that drives the heartbeats: the heartbeat thread, and after it has
// ended (tsr__beat_stop) the one that closes.
#include "transport/net/net.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BEAT_MAGIC 0x54414542u
#define BEAT_S     1.0      // between two heartbeats
#define STEP_NS    10000000 // between two checks of the thread
#define RING_S     3.0      // ranks that wait for each other this long are deadlocked
#define FAREWELL_S 2.0      // longest wait for the last messages to leave
#define GONE_S     1.0 // after a rank or its connection ended: its last messages may still arrive

// Returns a number for this host, to find out whether a process id of another rank is valid here.
static uint64_t host_hash(void)
{
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return tsr__hash64(name, strlen(name), 0);
}

// ---- sending and receiving: the heartbeat thread, or a waiting one ------------------------------

// Returns the failure that a heartbeat reports.
static struct comm_trouble trouble_of(const struct beat *beat)
{
    struct comm_trouble why;
    bool known = beat->status > 0 && beat->status <= TSR_BUG;
    tsr__trouble(&why, known ? (tsr_status)beat->status : TSR_PEER, beat->waiting_for, "%s",
                 beat->text);
    why.left = beat->state == BEAT_LEFT;
    return why;
}

// Stores a received heartbeat. A heartbeat of an earlier job, left over in the network, is dropped.
// Only the first reported failure counts.
static void take_beat(struct net *net, int rank)
{
    struct peer *peer = &net->peers[rank];
    struct beat beat = peer->in;
    beat.op[sizeof beat.op - 1] = beat.node[sizeof beat.node - 1] =
        beat.text[sizeof beat.text - 1] = 0;
    if (beat.magic != BEAT_MAGIC || beat.job != net->mine.job)
        return;
    pthread_mutex_lock(&net->lock);
    peer->latest = beat;
    peer->seen_s = tsr__now_s();
    if (beat.state == BEAT_FAILED && !atomic_load(&net->failed)) {
        net->trouble = trouble_of(&beat);
        atomic_store(&net->failed, 1);
    }
    pthread_mutex_unlock(&net->lock);
}

// Receives the heartbeat of a rank. One receive is always posted per rank. If it failed, the next
// step posts it again.
static void receive_beat(struct net *net, int rank)
{
    struct peer *peer = &net->peers[rank];
    size_t got = 0;
    if (peer->is_receiving) {
        int done = net->link->test(net->link, &peer->receiving, &got);
        if (done == 0)
            return;
        peer->is_receiving = false;
        if (done < 0)
            return; // the data channel will report the failure
        if (got == sizeof peer->in)
            take_beat(net, rank);
    }
    peer->is_receiving = net->link->receive(net->link, rank, LINK_BEAT, &peer->in, sizeof peer->in,
                                            &peer->receiving);
}

// Sends a heartbeat to a rank. At most one heartbeat per rank is pending, with its own buffer
// (`out`). The last one, a farewell or a failure, is sent once and does not wait for the interval
// BEAT_S.
static void send_beat(struct net *net, int rank, double now, uint32_t farewell)
{
    struct peer *peer = &net->peers[rank];
    if (peer->is_sending && net->link->test(net->link, &peer->sending, NULL) == 0)
        return;
    peer->is_sending = false;
    // No heartbeat follows the last one: sent_last stops all later heartbeats to that rank.
    bool last = farewell || atomic_load(&net->failed);
    if (peer->sent_last || (!last && now - peer->sent_s < BEAT_S))
        return;
    pthread_mutex_lock(&net->lock);
    // The buffer `out` must not change while it is being sent, so `mine` is copied.
    peer->out = net->mine;
    peer->out.calls = atomic_load(&net->calls);
    if (atomic_load(&net->failed)) {
        peer->out.state = net->left ? BEAT_LEFT : BEAT_FAILED;
        peer->out.status = net->trouble.status;
        peer->out.waiting_for = net->trouble.rank;
        tsr__name_copy(peer->out.text, sizeof peer->out.text, net->trouble.text);
    } else if (farewell) {
        peer->out.state = farewell;
    }
    pthread_mutex_unlock(&net->lock);
    peer->sent_last = last;
    peer->sent_s = now;
    peer->is_sending =
        net->link->send(net->link, rank, LINK_BEAT, &peer->out, sizeof peer->out, &peer->sending);
}

void tsr__beat_step(struct net *net)
{
    double now = tsr__now_s();
    if (net->meet)
        tsr__meet_check(net->meet);
    net_step(net);
    for (int r = 0; r < net->endpoint.size; r++) {
        if (r == net->endpoint.rank)
            continue;
        receive_beat(net, r);
        send_beat(net, r, now, 0);
    }
}

// Runs the heartbeat thread. It makes a step every 10 ms, so that failures are sent quickly;
// heartbeats are sent once a second.
static void *beat_thread(void *data)
{
    struct net *net = data;
    struct timespec nap = {0, STEP_NS};
    while (!atomic_load(&net->stop)) {
        tsr__beat_step(net);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

// ---- start, stop --------------------------------------------------------------------------------

tsr_status tsr__beat_start(struct net *net, uint32_t job)
{
    double now = tsr__now_s();
    net->mine =
        (struct beat){.magic = BEAT_MAGIC, .state = BEAT_WORKING, .job = job, .waiting_for = -1};
    net->mine.pid = (int32_t)getpid();
    net->mine.host = host_hash();
    for (int r = 0; r < net->endpoint.size; r++)
        net->peers[r].seen_s = now;
    if (!net->link->threads)
        return TSR_OK;
    net->has_thread = tsr__thread_start(net->session, &net->thread, beat_thread, net);
    if (net->has_thread)
        return TSR_OK;
    return tsr__fail(net->session, TSR_PEER, DIAG_rank_start, NULL,
                     "raise the limit of threads (ulimit -u)", "cannot start the heartbeat thread");
}

bool tsr__beat_knows(struct net *net, int rank)
{
    pthread_mutex_lock(&net->lock);
    uint32_t state = net->peers[rank].latest.state;
    pthread_mutex_unlock(&net->lock);
    return state == BEAT_FAILED || state == BEAT_ENDED || state == BEAT_LEFT;
}

// Announces that this rank ends or has failed, and waits a limited time until this was sent. After
// a failure, also waits until all others have answered. Returns false if the time was up before.
static bool farewell(struct net *net)
{
    bool failed = atomic_load(&net->failed), open = true;
    double until = tsr__now_s() + FAREWELL_S;
    struct timespec nap = {0, 1000000};
    while (open && tsr__now_s() < until) {
        open = false;
        net_step(net);
        for (int r = 0; r < net->endpoint.size; r++) {
            if (r == net->endpoint.rank)
                continue;
            // `until` is later than all earlier heartbeats, so this one is not delayed by the
            // interval.
            send_beat(net, r, until, BEAT_ENDED);
            open |= net->peers[r].is_sending || !net->peers[r].sent_last;
            if (failed)
                receive_beat(net, r);
            open |= failed && !tsr__beat_knows(net, r);
        }
        if (open)
            nanosleep(&nap, NULL);
    }
    for (int r = 0; r < net->endpoint.size; r++)
        if (net->peers[r].is_receiving)
            net->link->cancel(net->link, &net->peers[r].receiving);
    return !open;
}

// Stops the heartbeat thread and sends a farewell. Only the first caller sends a farewell: closing,
// or the end of the process (on_end of net.c). Later callers get false.
bool tsr__beat_stop(struct net *net, bool *answered)
{
    if (atomic_exchange(&net->stop, true))
        return false;
    if (net->has_thread)
        pthread_join(net->thread, NULL);
    *answered = farewell(net);
    return true;
}

// Stops the heartbeat thread without a farewell. Messages of a failed call refer to memory of the
// caller, so no call of the network may be made any more.
void tsr__beat_freeze(struct net *net)
{
    if (atomic_exchange(&net->stop, true))
        return;
    if (net->has_thread)
        pthread_join(net->thread, NULL);
    net->frozen = true;
    net->link->failed(net->link);
}

// ---- for the rank's thread ----------------------------------------------------------------------

// Stores this rank's state, which is sent with the next heartbeat.
void tsr__beat_publish(struct net *net, const struct comm_call *call, enum beat_state state,
                       int peer)
{
    pthread_mutex_lock(&net->lock);
    net->mine.state = state;
    net->mine.waiting_for = peer;
    net->mine.id = call->id;
    tsr__name_copy(net->mine.op, sizeof net->mine.op, call->op);
    tsr__name_copy(net->mine.node, sizeof net->mine.node, call->node);
    pthread_mutex_unlock(&net->lock);
}

static void set_failure(struct net *net, tsr_status status, int rank, const char *text, bool left)
{
    pthread_mutex_lock(&net->lock);
    if (!atomic_load(&net->failed)) {
        tsr__trouble(&net->trouble, status, rank, "%s", text);
        net->left = net->trouble.left = left;
        atomic_store(&net->failed, 1);
    }
    pthread_mutex_unlock(&net->lock);
}

// Marks the job as failed, with the reason. May be called from any thread. Only the first failure
// is kept, whether local or received in a heartbeat.
void tsr__beat_fail(struct net *net, tsr_status status, int rank, const char *text)
{
    set_failure(net, status, rank, text, false);
}

void tsr__beat_leave(struct net *net, tsr_status status, int rank, const char *text)
{
    set_failure(net, status, rank, text, true);
}

// A rank that left had no other reason, but may be the reason of the job's failure.
bool tsr__beat_trouble(struct net *net, struct comm_trouble *why)
{
    pthread_mutex_lock(&net->lock);
    bool found = atomic_load(&net->failed), by_peer = false;
    if (found)
        *why = net->trouble;
    for (int r = 0; !net->left && !by_peer && r < net->endpoint.size; r++) {
        by_peer = net->peers[r].latest.state == BEAT_LEFT;
        if (by_peer)
            *why = trouble_of(&net->peers[r].latest);
    }
    pthread_mutex_unlock(&net->lock);
    found = found || by_peer;
    return found;
}

tsr_status tsr__beat_failure(struct net *net, struct comm_trouble *why)
{
    pthread_mutex_lock(&net->lock);
    *why = net->trouble;
    pthread_mutex_unlock(&net->lock);
    return why->status;
}

// Follows "waits for" from rank `at`. Returns a number that identifies the ring if this leads back
// to this rank, else 0. Example: 0 waits for 1, 1 for 2, 2 for 0: on rank 0 with at = 1, the search
// returns to 0 after two steps. The number includes each rank's number of calls, so ranks that
// continue and wait again form another ring. So does this rank's number.
static uint64_t ring_of(const struct net *net, int at)
{
    uint64_t hash = 1 + atomic_load(&net->calls);
    for (int steps = 0; steps < net->endpoint.size; steps++) {
        const struct beat *beat = &net->peers[at].latest;
        if (beat->state != BEAT_WAITING || tsr__now_s() - net->peers[at].seen_s > 2 * BEAT_S)
            return 0; // moving; or stopped, and its last heartbeat is old
        uint64_t link[3] = {(uint64_t)at, beat->calls, (uint64_t)beat->waiting_for};
        hash = tsr__hash64(link, sizeof link, hash) | 1;
        at = beat->waiting_for;
        if (at == net->endpoint.rank)
            return hash;
        if (at < 0 || at >= net->endpoint.size)
            return 0;
    }
    return 0;
}

// Fails if a rank has died or has sent no heartbeat for too long. Only processes of this host can
// be looked up. During a long computation, a thread of the rank still sends heartbeats.
static tsr_status check_heartbeat(struct net *net, const struct comm_call *call, int peer,
                                  double silent_s, struct comm_trouble *why)
{
    const struct beat *beat = &net->peers[peer].latest;
    bool gone =
        beat->pid > 0 && beat->host == net->mine.host && kill(beat->pid, 0) != 0 && errno == ESRCH;
    if ((gone && silent_s > COMM_DEAD_S) ||
        (net->meet && tsr__meet_gone_s(net->meet, peer) > GONE_S))
        return tsr__trouble_waits(why, call, peer, "died", net->endpoint.rank);
    if (silent_s <= net->timeout_s)
        return TSR_OK;
    char what[80];
    snprintf(what, sizeof what, "has sent no heartbeat for %.0f s (stopped or unreachable)",
             silent_s);
    return tsr__trouble_waits(why, call, peer, what, net->endpoint.rank);
}

// Called with the lock held. Checks whether the peer has ended or left, then whether a deadlock has
// lasted RING_S, then the heartbeat of the peer. The first that applies is reported.
static tsr_status check_peer(struct net *net, const struct comm_call *call, int peer,
                             struct comm_trouble *why)
{
    const struct beat *beat = &net->peers[peer].latest;
    double now = tsr__now_s();
    if (beat->state == BEAT_ENDED && now - net->peers[peer].seen_s > GONE_S)
        return tsr__trouble_waits(why, call, peer, "has ended", net->endpoint.rank);
    if (beat->state == BEAT_LEFT && now - net->peers[peer].seen_s > GONE_S) {
        *why = trouble_of(beat);
        return why->status;
    }
    uint64_t ring = ring_of(net, peer);
    if (ring != net->ring)
        net->ring_since_s = now;
    net->ring = ring;
    if (ring && now - net->ring_since_s > RING_S)
        return tsr__trouble_ring(why, call, net->endpoint.rank, peer, beat->op, beat->node,
                                 beat->id);
    if (net->has_thread)
        return check_heartbeat(net, call, peer, now - net->peers[peer].seen_s, why);
    return TSR_OK;
}

// Checks the peer of a waiting rank, about every millisecond. TSR_OK: continue waiting.
tsr_status tsr__beat_check(struct net *net, const struct comm_call *call, int peer,
                           struct comm_trouble *why)
{
    if (!net->has_thread)
        tsr__beat_step(net);
    if (atomic_load(&net->failed))
        return tsr__beat_failure(net, why);
    pthread_mutex_lock(&net->lock);
    tsr_status st = check_peer(net, call, peer, why);
    pthread_mutex_unlock(&net->lock);
    return st;
}
