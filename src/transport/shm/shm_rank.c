// SPDX-License-Identifier: Apache-2.0
// shm_rank.c - one rank of those that share memory: its endpoint, opened and closed, and its
// heartbeat.
//
// A process has only one rank of the job. The endpoint belongs to one thread. The heartbeat thread
// writes only the heartbeat, and the heap has a lock, because threads of the engine allocate.
#include "transport/shm/shm.h"

#include <time.h>
#include <unistd.h>

#define BEAT_NS 100000000 // between two heartbeats

// Runs the heartbeat thread. It only raises a counter: observers measure with their own clock how
// long the counter does not change. Between two heartbeats it waits for the stop signal, so that
// closing does not wait for the next one.
static void *beat_thread(void *data)
{
    struct shm *me = data;
    pthread_mutex_lock(&me->stop_lock);
    while (!me->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += BEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        atomic_fetch_add(&me->slot->beat, 1);
        pthread_cond_timedwait(&me->stopped, &me->stop_lock, &until);
    }
    pthread_mutex_unlock(&me->stop_lock);
    return NULL;
}

static void init_beat(struct shm *me)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&me->stopped, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&me->stop_lock, NULL);
}

static void stop_beat(struct shm *me)
{
    pthread_mutex_lock(&me->stop_lock);
    me->stop = true;
    pthread_cond_signal(&me->stopped);
    pthread_mutex_unlock(&me->stop_lock);
    if (me->has_thread)
        pthread_join(me->thread, NULL);
}

static tsr_status start_beat(struct shm *me)
{
    me->has_thread = tsr__thread_start(me->session, &me->thread, beat_thread, me);
    if (me->has_thread)
        return TSR_OK;
    return tsr__fail(me->session, TSR_PEER, DIAG_rank_start, NULL,
                     "raise the limit of threads (ulimit -u)", "cannot start the heartbeat thread");
}

// Frees the memory of a rank, also of a partly created one. The owner of the job frees the job.
static void shm_free(struct shm *me)
{
    pthread_mutex_destroy(&me->heap.lock);
    pthread_mutex_destroy(&me->stop_lock);
    pthread_cond_destroy(&me->stopped);
    struct arena memory = me->memory;
    tsr__arena_free(&memory);
}

// Allocates everything that calls need, so that calls cannot fail for lack of memory.
static tsr_status shm_alloc(struct shm *me)
{
    size_t n = (size_t)me->job->n;
    me->peers = ARENA_ARRAY(&me->memory, struct shm_peer, n);
    for (size_t i = 0; i < TSR_COUNT(me->readers); i++) {
        me->readers[i].meeting = ARENA_ARRAY(&me->memory, uint64_t, n);
        me->readers[i].list = ARENA_ARRAY(&me->memory, int, n);
    }
    me->ins = ARENA_ARRAY(&me->memory, const void *, n);
    me->outs = ARENA_ARRAY(&me->memory, void *, n);
    me->sent = ARENA_ARRAY(&me->memory, size_t, n);
    me->got = ARENA_ARRAY(&me->memory, size_t, n);
    me->notes = (int64_t(*)[COMM_NOTES])ARENA_ARRAY(&me->memory, int64_t, n * COMM_NOTES);
    return arena_status(&me->memory);
}

// Ends the endpoint of a rank. Files that rank 0 has not taken are lost. The state SHM_GONE informs
// ranks that wait for this one; the memory is freed after that.
static void shm_close(struct endpoint *endpoint)
{
    struct shm *me = (struct shm *)endpoint;
    tsr__shm_drop_gifts(me);
    atomic_store(&me->slot->state, SHM_GONE);
    stop_beat(me);
    struct shm_job *owned = me->owns_job ? me->job : NULL;
    tsr_session *session = me->session;
    shm_free(me);
    tsr__shm_free(session, owned);
}

static void shm_fail(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    tsr__shm_fail(((struct shm *)endpoint)->job, status, rank, text);
}

static void shm_leave(struct endpoint *endpoint, tsr_status status, int rank, const char *text)
{
    struct shm *me = (struct shm *)endpoint;
    if (atomic_load(&me->slot->left))
        return;
    tsr__trouble(&me->slot->why, status, rank, "%s", text);
    atomic_store(&me->slot->left, true);
}

// A rank that left had no other reason, but may be the reason of the job's failure.
static bool shm_failure(struct endpoint *endpoint, struct comm_trouble *why)
{
    const struct shm *me = (const struct shm *)endpoint;
    if (tsr__shm_left(me->job, endpoint->rank, why) != TSR_OK)
        return true;
    for (int rank = 0; rank < endpoint->size; rank++)
        if (tsr__shm_left(me->job, rank, why) != TSR_OK)
            return true;
    return tsr__shm_trouble(me->job, why);
}

static const struct transport shm_transport = {
    .name = "shm",
    .all_reduce = tsr__shm_all_reduce,
    .exchange = tsr__shm_exchange,
    .fail = shm_fail,
    .leave = shm_leave,
    .failure = shm_failure,
    .close = shm_close,
    .alloc = tsr__shm_alloc,
    .release = tsr__shm_release,
    .held = tsr__shm_held,
    .give = tsr__shm_give,
    .settle = tsr__shm_settle,
    .take = tsr__shm_take,
};

// Creates the endpoint of a rank. The heartbeat starts before the slot is SHM_AT_WORK, so a rank in
// that state has a heartbeat.
tsr_status tsr__shm_endpoint(tsr_session *session, struct shm_job *job, int rank,
                             struct endpoint **out)
{
    struct arena memory = {.session = session};
    struct shm *me = ARENA_NEW(&memory, struct shm);
    if (!me)
        return TSR_NOMEM;
    me->memory = memory;
    me->endpoint = (struct endpoint){.transport = &shm_transport,
                                     .rank = rank,
                                     .size = job->n,
                                     .host_ranks = job->host_ranks,
                                     .host_cores = job->host_cores};
    me->job = job;
    pthread_mutex_init(&me->heap.lock, NULL);
    init_beat(me);
    me->session = session;
    me->slot = shm_slot(job, rank);
    me->crowded = job->host_ranks > job->host_cores;
    tsr_status st = shm_alloc(me);
    if (st == TSR_OK)
        st = start_beat(me);
    if (st != TSR_OK) {
        shm_free(me);
        return st;
    }
    atomic_store(&me->slot->pid, (int)getpid());
    atomic_store(&me->slot->waiting_for, -1);
    atomic_store(&me->slot->state, SHM_AT_WORK);
    *out = &me->endpoint;
    return TSR_OK;
}
