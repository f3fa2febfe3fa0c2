// SPDX-License-Identifier: Apache-2.0
// device_watch.c - aborts a rank whose GPU waits for another rank for too long.
//
// NCCL's kernels wait on the GPU, and the engine's thread waits for the GPU, in calls without a
// deadline. A thread checks from time to time whether a rank that has started such a kernel has
// made progress: to its next communication, or to the end of its run. If not, the communicators are
// aborted, which ends the kernels, and the job fails with a message. The thread makes no driver
// call before that, since such a call might wait, too.
#include "transport/gpu/device.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#define WATCH_LOOK_S 0.25

// Returns the seconds since the start of the current NCCL call, 0 without one. The caller holds the
// lock.
static double waited_s(const struct device *device)
{
    return device->waits_since > 0 ? tsr__now_s() - device->waits_since : 0;
}

// Stores for all ranks of this process why their communicators will be aborted.
static void store_reason(struct device *device, const char *text)
{
    for (int rank = 0; rank < device->endpoint.size; rank++) {
        struct device *other = device_here(device, rank);
        if (!other)
            continue;
        pthread_mutex_lock(&other->nccl_lock);
        if (!other->given_up[0])
            snprintf(other->given_up, sizeof other->given_up, "%s", text);
        pthread_mutex_unlock(&other->nccl_lock);
    }
}

// Aborts the NCCL call that takes too long. First stores the text for all ranks of this process, so
// that a rank that returns from NCCL finds it (tsr__device_rest).
static void give_up(struct device *device, const char *node, double limit_s)
{
    char text[GIVEN_UP_BYTES];
    int rank = device->endpoint.rank;
    snprintf(text, sizeof text,
             "NCCL on rank %d: '%.64s' did not end within %.0f s; --gpu-way own or host do not use "
             "NCCL, --timeout sets a longer limit",
             rank, node, limit_s);
    store_reason(device, text);
    device->endpoint.transport->fail(&device->endpoint, TSR_PEER, rank, text);
}

// Runs the watchdog: one thread per rank with communicators. The lock is not held during the abort,
// which takes the locks of other ranks.
static void *watch_main(void *data)
{
    struct device *device = data;
    double limit_s = device->options.watch_s > 0 ? device->options.watch_s : DEVICE_WATCH_S;
    bool late = false;
    char node[COMM_NAME];
    pthread_mutex_lock(&device->nccl_lock);
    while (!device->unwatched && !late) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(WATCH_LOOK_S * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&device->nccl_left, &device->nccl_lock, &until);
        late = waited_s(device) > limit_s;
    }
    memcpy(node, device->waits_node, sizeof node);
    pthread_mutex_unlock(&device->nccl_lock);
    if (late)
        give_up(device, node, limit_s);
    return NULL;
}

// ---- calls from other threads -------------------------------------------------------------------

// Starts the watchdog of a rank that has communicators. If no thread can be started, the rank is
// not watched.
void tsr__watch_start(struct device *device)
{
    bool any = false;
    for (size_t i = 0; i < device->groups.n; i++)
        any = any || device->groups.at[i].comm;
    if (any && !device->watched)
        device->watched = pthread_create(&device->watch, NULL, watch_main, device) == 0;
}

void tsr__watch_end(struct device *device)
{
    if (!device->watched)
        return;
    pthread_mutex_lock(&device->nccl_lock);
    device->unwatched = true;
    pthread_cond_broadcast(&device->nccl_left);
    pthread_mutex_unlock(&device->nccl_lock);
    pthread_join(device->watch, NULL);
    device->watched = false;
}

void tsr__watch_waits(struct device *device, const char *node)
{
    pthread_mutex_lock(&device->nccl_lock);
    device->waits_since = node ? tsr__now_s() : 0;
    snprintf(device->waits_node, sizeof device->waits_node, "%s", node ? node : "");
    pthread_mutex_unlock(&device->nccl_lock);
}
