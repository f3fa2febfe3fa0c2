// SPDX-License-Identifier: Apache-2.0
// link.h - messages between processes: the interface of a plug-in (one per MPI family, one for
// UCX).
//
// Messages between two ranks on one channel arrive in order. Nothing blocks: requests are tested
// until they are done. A plug-in is a separate library, so this header is its complete ABI and
// includes no other header of Tessera.
#ifndef TSR_LINK_H
#define TSR_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_ABI         7
#define LINK_SYMBOL      "tsr_link_open"
#define LINK_WIRE_SYMBOL "tsr_link_wire"
// most bytes that a rank publishes about itself when the ranks meet
#define LINK_CARD (32u << 10)

enum link_channel { LINK_DATA, LINK_BEAT, LINK_GIFT, LINK_CHANNELS };

struct link {
    uint32_t abi; // LINK_ABI
    int rank, size;
    int host_ranks, host_cores; // ranks on this host; cores that they share
    bool crowded;               // every host has more ranks than cores; equal on all ranks
    bool threads;               // functions may be called from several threads at a time
    char library[128];          // "Open MPI v4.1.4", for error messages
    uint32_t jobs;              // jobs opened over this link so far; set by its user
    void *state;
    // Start a message. The buffer p is in use until test returns 1 or -1. False: the network
    // failed.
    bool (*send)(struct link *link, int peer, int channel, const void *p, size_t bytes,
                 uint64_t *request);
    bool (*receive)(struct link *link, int peer, int channel, void *p, size_t bytes,
                    uint64_t *request);
    // Makes progress on all channels. NULL: test does it.
    void (*step)(struct link *link);
    // Tests a request. 1: done, *bytes (if not NULL) is the number received; 0: not yet; -1:
    // failed.
    int (*test)(struct link *link, uint64_t *request, size_t *bytes);
    void (*cancel)(struct link *link, uint64_t *request); // a receive that is no longer wanted
    // As `cancel`, for a receive into memory that will be freed: `test` returns 0 until the receive
    // has ended, by the cancellation or by its message.
    void (*withdraw)(struct link *link, uint64_t *request);
    // The job has failed: other ranks may be gone, so the process must not wait for them at exit.
    void (*failed)(struct link *link);
    // For a network that belongs to one job (UCX); NULL if it belongs to the process (MPI). flush
    // makes progress, and returns true if all sent messages have left this process. close frees the
    // link; no request may be pending.
    bool (*flush)(struct link *link);
    void (*close)(struct link *link);
    // Called before the network is closed (at exit); nothing may be sent afterwards. Set by the
    // user of the link.
    void (*on_end)(void *data);
    void *on_end_data;
};

// Exported by a plug-in: joins the job, or returns the existing link. NULL: the reason is in
// `error`.
typedef struct link *(*link_open_fn)(char *error, size_t n);

// For a network without a launcher: the ranks are already connected over TCP
// (src/transport/meeting). A card is what a rank publishes about itself, for example the address of
// its UCX worker. All ranks call swap together.
struct link_card {
    size_t bytes;
    char data[LINK_CARD];
};
struct link_meeting {
    int rank, size;
    int host_ranks, host_cores;
    const char *interfaces; // network interfaces to use for TCP: "lo", "eth0,eth1"
    uint64_t job;           // identifies the job: equal on all its ranks, different for other jobs
    // Sends `mine` to all others, then calls `take` with the card of each other rank, in rank
    // order. Returns false with the reason in `error`.
    bool (*swap)(struct link_meeting *meeting, const struct link_card *mine,
                 bool (*take)(void *data, int rank, const struct link_card *card), void *data,
                 char *error, size_t n);
};
// Exported by the plug-in of such a network: creates a link. NULL: the reason is in `error`.
typedef struct link *(*link_wire_fn)(struct link_meeting *meeting, char *error, size_t n);

#endif
