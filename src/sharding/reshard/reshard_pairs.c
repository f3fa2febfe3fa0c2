// SPDX-License-Identifier: Apache-2.0
// reshard_pairs.c - finds the largest message between two devices in a resharding. The resharding
// takes at least as long as this message, for any number of devices.
//
//     Example: [8,6] of 4-byte elements is on device 3. Device 0 needs all of it, devices 1 and 2
//     need half of the rows each. Device 3 sends 192 bytes to 0, 96 to 1 and 96 to 2: 192 is the
//     result.
#include "sharding/reshard/reshard.h"

static int64_t devices_of(const struct reshard_step *step)
{
    int64_t n = 0;
    for (size_t i = 0; i < step->n_moves; i++)
        n = int64_max(n, int64_max(step->moves[i].from_device, step->moves[i].to_device) + 1);
    return n;
}

// Returns the pair of devices between which the step sends the most bytes; 0 bytes if there are no
// moves or if out of memory. Moves to one device are adjacent in the list. `given` has the bytes
// that each device sends to the current receiver.
struct reshard_pair tsr__reshard_largest(struct arena *arena, const struct reshard_step *step,
                                         size_t elem_bytes)
{
    struct reshard_pair most = {0};
    size_t n = (size_t)devices_of(step);
    int64_t *given = ARENA_ARRAY(arena, int64_t, n + 1), to = -1;
    if (!given)
        return most;
    for (size_t i = 0; i < step->n_moves; i++) {
        const struct reshard_move *move = &step->moves[i];
        if (move->to_device != to)
            memset(given, 0, n * sizeof *given);
        to = move->to_device;
        given[move->from_device] += move->elements * (int64_t)elem_bytes;
        if (given[move->from_device] > most.bytes)
            most = (struct reshard_pair){move->from_device, to, given[move->from_device]};
    }
    return most;
}
