// SPDX-License-Identifier: Apache-2.0
// repeats.c - whether a topology is made of copies of a block of devices.
//
// hosts:4x8 repeats 8 devices 4 times, and 16 devices twice: every link 8+a -> 8+b has a twin a ->
// b of the same speed. Links between copies are not looked at. The simulation asks this before it
// plays one copy in place of all.
#include "topology/internal.h"

#include <stdlib.h>

bool tsr__devices_alike(const tsr_topology_device *a, const tsr_topology_device *b)
{
    return a->memory == b->memory && a->flops == b->flops && a->bandwidth == b->bandwidth &&
           a->overhead == b->overhead && a->queued == b->queued &&
           memcmp(a->rates, b->rates, sizeof a->rates) == 0 &&
           memcmp(a->moves, b->moves, sizeof a->moves) == 0 &&
           memcmp(a->near, b->near, sizeof a->near) == 0;
}

// The order in which links are sorted, so that a twin is found by bisection.
static int by_ends(const void *a, const void *b)
{
    const struct topology_link *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

// Each link inside of a copy has its twin in the first copy, and the first has no more of them than any other.
bool tsr__topology_repeats(const tsr_topology *topology, int devices, int copies)
{
    size_t first = 0, others = 0;
    int listed = copies; // copies whose links are
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
        if (!twin || twin->latency != link->latency || twin->bandwidth != link->bandwidth)
            return false;
    }
    return others == first * (size_t)(listed - 1);
}
