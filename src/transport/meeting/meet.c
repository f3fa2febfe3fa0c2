// SPDX-License-Identifier: Apache-2.0
// meet.c - opens a meeting: rank 0 listens (meet_greet.c), the others connect (meet_join.c), and
// both sides prove that they know the secret.
//
// Messages when rank 3 of 4 connects to rank 0:
//
//     0 -> 3   greeting   magic, version 2, has a secret, nonce of rank 0
//     3 -> 0   answer     magic, version 2, has a secret, rank 3, ranks 4, nonce, proof
//     0 -> 3   verdict    magic, welcome, code of the verdict
//
// Both codes depend on the secret and on all fields above, so neither can be replayed.
#include "transport/meeting/meet_wire.h"

#include <stdio.h>
#include <sys/random.h>

bool tsr__meet_nonce(uint8_t out[MEET_NONCE])
{
    return getrandom(out, MEET_NONCE, 0) == MEET_NONCE;
}

// Creates a meeting. Initially no rank is connected (fd -1) and none is lost.
struct meet *tsr__meet_new(tsr_session *session, const struct meet_place *place)
{
    struct arena memory = {.session = session};
    struct meet *meet = ARENA_NEW(&memory, struct meet);
    struct meet_wire *wires = ARENA_ARRAY(&memory, struct meet_wire, (size_t)place->ranks);
    struct meet_state *states = ARENA_ARRAY(&memory, struct meet_state, (size_t)place->ranks);
    if (memory.failed) {
        tsr__arena_free(&memory);
        return NULL;
    }
    *meet = (struct meet){.session = session,
                          .memory = memory,
                          .rank = place->rank,
                          .ranks = place->ranks,
                          .wires = wires,
                          .states = states};
    for (int i = 0; i < place->ranks; i++)
        meet->wires[i].fd = -1;
    return meet;
}

tsr_status tsr__meet_open(tsr_session *session, const struct meet_place *place, struct meet **out,
                          char *why, size_t n)
{
    struct meet_addresses found;
    char interface[IF_NAMESIZE] = "";
    if (place->interface && !tsr__meet_interface_of(place->interface, interface)) {
        snprintf(why, n, "this host has no network interface '%s'", place->interface);
        return TSR_USAGE;
    }
    if (!tsr__meet_resolve(place, &found, why, n))
        return TSR_USAGE;
    struct meet *meet = tsr__meet_new(session, place);
    if (!meet)
        return TSR_NOMEM;
    memcpy(meet->interface, interface, sizeof interface);
    meet->until = tsr__now_s() + place->join_s;
    bool complete = place->rank == 0 ? tsr__meet_gather(meet, place, &found, why, n)
                                     : tsr__meet_join(meet, place, &found, why, n);
    if (complete) {
        *out = meet;
        return TSR_OK;
    }
    tsr__meet_free(meet);
    return TSR_PEER;
}
