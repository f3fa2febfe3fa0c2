// SPDX-License-Identifier: Apache-2.0
// link.h - messages between processes: what a plug-in (one per MPI family, one for UCX) gives, and all that it must know.
//
// Messages between two ranks on one channel arrive in the order sent. Nothing blocks: requests are tested until
// they are done. A plug-in is a library of its own, so this header is its whole ABI; it includes nothing of ours.
#ifndef TSR_LINK_H
#define TSR_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_ABI         7
#define LINK_SYMBOL      "tsr_link_open"
#define LINK_WIRE_SYMBOL "tsr_link_wire"
#define LINK_CARD        (32u << 10) // the most that a rank tells of itself when the ranks meet

enum link_channel { LINK_DATA, LINK_BEAT, LINK_GIFT, LINK_CHANNELS };

struct link {
    uint32_t abi; // LINK_ABI
    int rank, size;
    int host_ranks, host_cores; // ranks on this host; cores they may use together
    bool crowded;      // every host has more ranks than cores: all ranks have the same word on it
    bool threads;      // functions may be called from several threads at a time
    char library[128]; // "Open MPI v4.1.4", for messages
    uint32_t jobs;     // opened over this link so far; counted by the user
    void *state;
    // A request is done with p only when test says so. False: the network failed.
    bool (*send)(struct link *link, int peer, int channel, const void *p, size_t bytes,
                 uint64_t *request);
    bool (*receive)(struct link *link, int peer, int channel, void *p, size_t bytes,
                    uint64_t *request);
    // Moves messages along, of all channels at once. NULL: test does.
    void (*step)(struct link *link);
    // 1: done, and bytes (if not NULL) is what was received; 0: not yet; -1: failed.
    int (*test)(struct link *link, uint64_t *request, size_t *bytes);
    void (*cancel)(struct link *link, uint64_t *request); // a receive that is not wanted any more
    // The same for a receive into memory that is to be freed: it has ended when test says so (-1), or was too late to withdraw (1).
    void (*withdraw)(struct link *link, uint64_t *request);
    // The job has failed: others may be gone, so the end of the process waits for nobody.
    void (*failed)(struct link *link);
    // Of a network that belongs to one job (UCX); NULL where it is the process's (MPI). flush: takes a step, and says whether
    // everything sent has left this process. close: frees the link; nothing may be under way.
    bool (*flush)(struct link *link);
    void (*close)(struct link *link);
    // Called before the network goes away (at exit): nothing may be sent afterwards. Set by the user.
    void (*on_end)(void *data);
    void *on_end_data;
};

// What a plug-in exports: joins the job, or (again) gives the link it has. NULL: error says why.
typedef struct link *(*link_open_fn)(char *error, size_t n);

// Where a network has no launcher of its own, the ranks have met already. All call swap together.
struct link_card {
    size_t bytes;
    char data[LINK_CARD];
};
struct link_meeting {
    int rank, size;
    int host_ranks, host_cores;
    const char *interfaces; // network interfaces to use for TCP: "lo", "eth0,eth1"
    uint64_t job;           // a number that all ranks of the job have, and those of another not
    // Tells all others `mine`; then calls `take` with what each other rank told, in the order of the ranks. False: error says why.
    bool (*swap)(struct link_meeting *meeting, const struct link_card *mine,
                 bool (*take)(void *data, int rank, const struct link_card *card), void *data,
                 char *error, size_t n);
};
// What the plug-in of such a network exports: a new link. NULL: error says why.
typedef struct link *(*link_wire_fn)(struct link_meeting *meeting, char *error, size_t n);

#endif
