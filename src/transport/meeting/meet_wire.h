// SPDX-License-Identifier: Apache-2.0
// meet_wire.h - the connections of a meeting, for the files meet*.c.
#ifndef TSR_MEET_WIRE_H
#define TSR_MEET_WIRE_H

#include "transport/meeting/meet.h"

#include <net/if.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define MEET_NOTICE (MEET_HEAD + MEET_CODE) // a frame without data

// One connection. Rank 0 has one to every other rank; each other rank has one to rank 0.
struct meet_wire {
    int fd; // -1: none, or closed
    struct meet_key key;
    uint64_t sent, received; // number of frames
    uint8_t in[MEET_NOTICE]; // an incomplete notice
    size_t have;
};
// State of a rank; read by any thread.
struct meet_state {
    atomic_bool left;             // it sent a farewell
    atomic_uint_fast64_t gone_ms; // when it was found to have died; 0: alive
};
struct meet {
    tsr_session *session;
    struct arena memory; // this struct and all that it points to
    int rank, ranks;
    char interface[IF_NAMESIZE]; // chosen by the user, or ""
    double until;                // deadline for connecting
    int refused;                 // connections with another secret
    bool lost;                   // a rank disconnected before all were connected
    struct meet_wire *wires;     // [rank]
    struct meet_state *states;   // [rank]
};

// ---- addresses (meet_address.c) -----------------------------------------------------------------

#define MEET_ADDRESSES 16
struct meet_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};
struct meet_addresses {
    struct meet_address list[MEET_ADDRESSES];
    int n;
};
// Finds the addresses of rank 0. Without a secret: the Unix socket first, then the loopback, where
// a rank with a secret gets a clear refusal. Returns false with the reason in `why`.
bool tsr__meet_resolve(const struct meet_place *place, struct meet_addresses *out, char *why,
                       size_t n);
// Opens at most two listening sockets for rank 0. Returns their number; 0: errno has the reason.
int tsr__meet_listen(const struct meet_place *place, const struct meet_addresses *found,
                     int fds[2]);
bool tsr__meet_is_address(const char *host); // an IP address, not a name
bool tsr__meet_is_local(const char *host);   // an address of the loopback, or localhost
// Finds the interface of this host with that name, that address, or an address in that network
// ("10.1.0.0/16").
bool tsr__meet_interface_of(const char *text, char name[IF_NAMESIZE]);

// ---- rank 0 (meet_greet.c) and the others (meet_join.c) -----------------------------------------

struct meet *tsr__meet_new(tsr_session *session, const struct meet_place *place); // meet.c
static inline bool meet_has_secret(const struct meet_place *place)
{
    return place->secret && *place->secret;
}
static inline uint16_t meet_flags(const struct meet_place *place)
{
    return (uint16_t)((meet_has_secret(place) ? MEET_HAS_SECRET : 0) |
                      (place->is_worker ? MEET_IS_WORKER : 0));
}
bool tsr__meet_nonce(uint8_t out[MEET_NONCE]);
bool tsr__meet_gather(struct meet *meet, const struct meet_place *place,
                      const struct meet_addresses *found, char *why, size_t n);
bool tsr__meet_join(struct meet *meet, const struct meet_place *place,
                    const struct meet_addresses *found, char *why, size_t n);

// ---- sessions and workers (meet_line.c) -------------------------------------------------------

struct line {
    tsr_session *session;
    int fd;
    enum meet_side side; // the worker is MEET_FROM_ZERO
    struct meet_key key;
    uint64_t sent, received; // number of frames
};
// Takes the connection of a wire. NULL: out of memory.
struct line *tsr__line_new(tsr_session *session, struct meet_wire *wire, enum meet_side side);
void tsr__line_place(const struct line_place *place, int rank, struct meet_place *out);
// Finds the numeric address of the other side. False: it is unknown.
bool tsr__line_from(const struct line *line, char *out, size_t n);

// ---- bytes (meet_watch.c) -----------------------------------------------------------------------

// Reads or writes all bytes; false: the connection ended, or the time was up.
bool tsr__meet_write(int fd, const void *p, size_t bytes, double until);
bool tsr__meet_read(int fd, void *p, size_t bytes, double until);

#endif
