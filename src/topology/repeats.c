// SPDX-License-Identifier: Apache-2.0
// repeats.c - checks whether a topology consists of equal blocks of devices. The simulation then
// simulates one block instead of all.
//
// Example: hosts:4x8 repeats 8 devices 4 times, and 16 devices twice: every link 8+a -> 8+b has an
// equal link a -> b. Links between blocks are ignored.
#include "topology/internal.h"

#include <stdlib.h>

bool tsr__devices_alike(const tsr_topology_device *a, const tsr_topology_device *b)
{
    return a->memory == b->memory && a->flops == b->flops && a->bandwidth == b->bandwidth &&
           a->overhead == b->overhead && a->queued == b->queued && a->unhidden == b->unhidden &&
           memcmp(a->rates, b->rates, sizeof a->rates) == 0 &&
           memcmp(a->moves, b->moves, sizeof a->moves) == 0 &&
           memcmp(a->cached, b->cached, sizeof a->cached) == 0;
}

// Compares two links by their ends, for a binary search.
static int by_ends(const void *a, const void *b)
{
    const struct topology_link *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

// True if each link inside a block has its counterpart in the first block, and all blocks have the
// same number of links.
bool tsr__topology_repeats(const tsr_topology *topology, int devices, int copies)
{
    size_t first = 0, others = 0;
    int listed = copies; // number of blocks whose links are listed
    if (devices < 1 || copies < 1 || copies > topology->n / devices)
        return false;
    if (topology->window && (devices > topology->window || topology->window % devices))
        return false;
    if (topology->window && topology->window / devices < copies)
        listed = topology->window / devices;
    for (int d = devices; d < devices * copies; d++)
        if (!tsr__devices_alike(&topology->device[d], &topology->device[d % devices]))
            return false;
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        int copy = link->from / devices;
        if (copy != link->to / devices || copy >= listed)
            continue;
        first += copy == 0;
        others += copy != 0;
        struct topology_link key = {.from = link->from % devices, .to = link->to % devices};
        const struct topology_link *twin =
            bsearch(&key, topology->links.at, topology->links.n, sizeof key, by_ends);
        if (!twin || twin->latency != link->latency || twin->bandwidth != link->bandwidth ||
            twin->start != link->start || twin->message != link->message)
            return false;
    }
    return others == first * (size_t)(listed - 1);
}
