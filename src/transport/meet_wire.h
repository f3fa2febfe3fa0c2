// SPDX-License-Identifier: Apache-2.0
// meet_wire.h - the connections of a meeting, for meet.c and meet_watch.c.
#ifndef TSR_MEET_WIRE_H
#define TSR_MEET_WIRE_H

#include "transport/meet.h"

#include <stdatomic.h>

#define MEET_NOTICE (MEET_HEAD + MEET_CODE) // a frame without data

// One connection. Rank 0 has one to every other rank, the others have one, to rank 0.
struct meet_wire {
    int fd; // -1: none, or closed
    struct meet_key key;
    uint64_t sent, received; // frames so far
    uint8_t in[MEET_NOTICE]; // of a notice that has not come whole
    size_t have;
};
// What is known of a rank; read by any thread.
struct meet_state {
    atomic_bool left;             // it said farewell
    atomic_uint_fast64_t gone_ms; // when it was found to be gone without one; 0: it was not
};
struct meet {
    tsr_session *session;
    int rank, ranks;
    bool loopback;
    double until;              // of joining
    int refused;               // connections with another secret
    struct meet_wire *wires;   // [rank]
    struct meet_state *states; // [rank]
};

// All bytes, or false: it ended, or the time did.
bool tsr__meet_write(int fd, const void *p, size_t bytes, double until);
bool tsr__meet_read(int fd, void *p, size_t bytes, double until);

#endif
