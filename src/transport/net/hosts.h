// SPDX-License-Identifier: Apache-2.0
// hosts.h - an endpoint of ranks on several hosts.
#ifndef TSR_HOSTS_H
#define TSR_HOSTS_H

#include "transport/net/net.h"
#include "transport/shm/shm.h"

// An endpoint that forwards calls to the two endpoints that it owns: `shm` and `net`.
struct hosts {
    struct endpoint endpoint; // must be first: endpoints are cast to this struct
    tsr_session *session;
    struct arena memory; // this struct and what it points to, except `scratch`
    struct endpoint *net, *shm;
    struct shm_job *job;
    uint64_t *host; // [rank]: equal for ranks that share memory, and only for these
    bool joined;    // every rank of the job has the memory of its host; equal on all ranks
    char *scratch;  // by_hosts.c
    size_t scratch_bytes;
};

// ---- by_hosts.c
// What an algorithm works on.
struct hosts_call {
    const struct comm_call *call;
    const void *in; // all-reduce
    void *out;
    struct comm_exchange *exchange; // others
};
// Runs the call by the first algorithm that applies. *mine is false if there is none; all ranks of
// the group then find the same, and messages between all of them do the work.
tsr_status tsr__by_hosts(struct hosts *hosts, const struct hosts_call *what, bool *mine,
                         struct comm_trouble *why);

#endif
