// SPDX-License-Identifier: Apache-2.0
// shm_give.c - files that a rank of this host offers to rank 0, outside of the collective calls.
//
// The rank keeps an unnamed file open and publishes its descriptor number; rank 0 opens that file
// through /proc of the rank's process. So the rank copies nothing and continues at once. It closes
// the file when rank 0 has it.
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

// Offers a file to rank 0. The entry is written before `given` is raised (release), which rank 0
// reads (acquire): so rank 0 reads a complete entry.
tsr_status tsr__shm_give(struct endpoint *endpoint, const struct comm_call *call, int fd,
                         size_t bytes, struct comm_trouble *why)
{
    struct shm *me = (struct shm *)endpoint;
    if (me->given - me->settled == COMM_GIFTS) {
        close(fd);
        tsr__trouble(why, TSR_BUG, endpoint->rank, "rank %d returns more data than rank 0 accepts",
                     endpoint->rank);
        return tsr__shm_give_up(me, why); // rank 0 waits for it
    }
    struct shm_gift *gift = &me->slot->gifts[me->given % COMM_GIFTS];
    gift->fd = fd;
    gift->bytes = bytes;
    gift->run = call->run;
    me->given++;
    atomic_store_explicit(&me->slot->given, me->given, memory_order_release);
    return TSR_OK;
}

// Waits until rank 0 has the oldest file of this rank, and closes it. Until then rank 0 may open it
// through this process.
tsr_status tsr__shm_settle(struct endpoint *endpoint, const struct comm_call *call,
                           struct comm_trouble *why)
{
    struct shm *me = (struct shm *)endpoint;
    uint64_t seen;
    tsr_status st =
        tsr__shm_await(me, call, 0, &me->slot->gifts_taken, 0, me->settled + 1, &seen, why);
    if (st != TSR_OK)
        return tsr__shm_give_up(me, why);
    close(me->slot->gifts[me->settled % COMM_GIFTS].fd);
    me->settled++;
    return TSR_OK;
}

// Takes the next file that a rank offers: opens it through /proc, without copying it, and checks
// its size and that it belongs to this run. gifts_taken is raised last, because the other rank may
// then close its descriptor.
tsr_status tsr__shm_take(struct endpoint *endpoint, const struct comm_call *call, int from, int *fd,
                         size_t *bytes, struct comm_trouble *why)
{
    struct shm *me = (struct shm *)endpoint;
    struct shm_slot *giver = shm_slot(me->job, from);
    uint64_t taken = me->peers[from].gifts, seen;
    tsr_status st = tsr__shm_await(me, call, from, &giver->given, 0, taken + 1, &seen, why);
    if (st != TSR_OK)
        return tsr__shm_give_up(me, why);
    struct shm_gift gift = giver->gifts[taken % COMM_GIFTS];
    char path[64];
    struct stat stat;
    // Only ranks of one user on one host get here, as /proc requires.
    snprintf(path, sizeof path, "/proc/%d/fd/%d", atomic_load(&giver->pid), gift.fd);
    errno = EIO;
    *fd = tsr__fault(me->session, FAULT_RECEIVE) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    bool whole = *fd >= 0 && fstat(*fd, &stat) == 0 && (uint64_t)stat.st_size >= gift.bytes;
    if (!whole || gift.run != call->run) {
        tsr__trouble(why, TSR_PEER, from,
                     "rank 0 cannot receive the results of rank %d for run %llu: %s", from,
                     (unsigned long long)call->run,
                     whole ? "they belong to another run" : strerror(errno));
        if (*fd >= 0)
            close(*fd);
        return tsr__shm_give_up(me, why);
    }
    *bytes = (size_t)gift.bytes;
    me->peers[from].gifts++;
    atomic_store_explicit(&giver->gifts_taken, me->peers[from].gifts, memory_order_release);
    return TSR_OK;
}

// Closes files that rank 0 has not taken, when the endpoint is closed.
void tsr__shm_drop_gifts(struct shm *me)
{
    for (; me->settled < me->given; me->settled++)
        close(me->slot->gifts[me->settled % COMM_GIFTS].fd);
}
