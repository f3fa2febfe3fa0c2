// SPDX-License-Identifier: Apache-2.0
// link.h - messages between processes: what a plug-in (one per MPI family) gives, and all that it must know.
//
// Messages between two ranks on one channel arrive in the order sent. Nothing blocks: requests are tested until
// they are done. A plug-in is a library of its own, so this header is its whole ABI; it includes nothing of ours.
#ifndef TSR_LINK_H
#define TSR_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_ABI    2
#define LINK_SYMBOL "tsr_link_open"

enum link_channel { LINK_DATA, LINK_BEAT, LINK_GIFT, LINK_CHANNELS };

struct link {
    uint32_t abi; // LINK_ABI
    int rank, size;
    int host_ranks, host_cores; // ranks on this host; cores they may use together
    bool threads;               // functions may be called from several threads at a time
    char library[128];          // "Open MPI v4.1.4", for messages
    uint32_t jobs;              // opened over this link so far; counted by the user
    void *state;
    // A request is done with p only when test says so. False: the network failed.
    bool (*send)(struct link *link, int peer, int channel, const void *p, size_t bytes,
                 uint64_t *request);
    bool (*receive)(struct link *link, int peer, int channel, void *p, size_t bytes,
                    uint64_t *request);
    // 1: done, and bytes (if not NULL) is what was received; 0: not yet; -1: failed.
    int (*test)(struct link *link, uint64_t *request, size_t *bytes);
    void (*cancel)(struct link *link, uint64_t *request); // a receive that is not wanted any more
    // The job has failed: others may be gone, so the end of the process waits for nobody.
    void (*failed)(struct link *link);
    // Called before the network goes away (at exit): nothing may be sent afterwards. Set by the user.
    void (*on_end)(void *data);
    void *on_end_data;
};

// What a plug-in exports: joins the job, or (again) gives the link it has. NULL: error says why.
typedef struct link *(*link_open_fn)(char *error, size_t n);

#endif
