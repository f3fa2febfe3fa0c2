// SPDX-License-Identifier: Apache-2.0
// nccl_join.c - joins an NCCL communicator on a separate thread, which can be abandoned.
//
// NCCL returns no handle before all members have joined, so a join that waits for a failed member
// cannot be cancelled. Its thread stays; it uses only its own data, and the library is never
// unloaded (driver.c). If NCCL returns after all, the thread aborts the communicator and exits.
#include "gpu/internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct nccl_joining {
    int (*init)(void **out, int members, struct nccl_id id, int self);
    int (*abort)(void *comm);
    int (*enter)(void *context);
    void *context;
    struct nccl_id id;
    int members, self;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    // protected by the lock
    bool done, abandoned; // the side that sets the second of the two frees this
    int code;
    void *comm;
};

static void free_joining(struct nccl_joining *joining)
{
    pthread_cond_destroy(&joining->ended);
    pthread_mutex_destroy(&joining->lock);
    free(joining);
}

// Joins the communicator; runs as a separate thread. It does not use the struct after unlocking,
// unless the join was abandoned.
static void *join_main(void *data)
{
    struct nccl_joining *joining = data;
    void *comm = NULL;
    int code = joining->enter(joining->context);
    if (code == 0)
        code = joining->init(&comm, joining->members, joining->id, joining->self);
    pthread_mutex_lock(&joining->lock);
    joining->done = true;
    joining->code = code;
    joining->comm = comm;
    bool abandoned = joining->abandoned;
    pthread_cond_broadcast(&joining->ended);
    pthread_mutex_unlock(&joining->lock);
    if (!abandoned)
        return NULL;
    if (comm)
        joining->abort(comm);
    free_joining(joining);
    return NULL;
}

// Starts the thread that joins a communicator. The thread has its own copies of the arguments,
// because the caller may abandon it. The thread or the caller, whichever finishes last, frees them.
struct nccl_joining *tsr__nccl_join_start(const struct gpu_seat *seat, const struct nccl_id *id,
                                          int members, int self)
{
    pthread_t thread;
    pthread_condattr_t monotonic;
    struct nccl_joining *joining = calloc(1, sizeof *joining);
    if (!joining)
        return NULL;
    joining->init = seat->gpu->ncclCommInitRank;
    joining->abort = seat->gpu->ncclCommAbort;
    joining->enter = seat->gpu->cuCtxSetCurrent;
    joining->context = seat->context;
    joining->id = *id;
    joining->members = members;
    joining->self = self;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&joining->lock, NULL);
    pthread_cond_init(&joining->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&thread, NULL, join_main, joining) != 0) {
        free_joining(joining);
        return NULL;
    }
    pthread_detach(thread);
    return joining;
}

// Waits until joining has ended, at most `ms` milliseconds. Returns true if it has.
bool tsr__nccl_join_wait(struct nccl_joining *joining, int ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int waited = 0;
    pthread_mutex_lock(&joining->lock);
    while (!joining->done && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&joining->ended, &joining->lock, &until);
    bool done = joining->done;
    pthread_mutex_unlock(&joining->lock);
    return done;
}

int tsr__nccl_join_take(struct nccl_joining *joining, void **out)
{
    pthread_mutex_lock(&joining->lock); // the thread does not use the struct any more
    int code = joining->code;
    *out = joining->comm;
    pthread_mutex_unlock(&joining->lock);
    free_joining(joining);
    return code;
}

void tsr__nccl_join_abandon(struct nccl_joining *joining)
{
    void *comm = NULL;
    pthread_mutex_lock(&joining->lock);
    joining->abandoned = true;
    bool done = joining->done;
    if (done)
        comm = joining->comm;
    pthread_mutex_unlock(&joining->lock);
    if (!done)
        return; // the thread frees it
    if (comm)
        joining->abort(comm);
    free_joining(joining);
}
