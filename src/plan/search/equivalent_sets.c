// SPDX-License-Identifier: Apache-2.0
// equivalent_sets.c - finds device sets with the same speeds and links, so that only one of them is
// planned.
//
//     Example: two A100 (0 and 1) and two L4 (2 and 3), all pairs with equal links. {0 2}, {0 3},
//     {1 2} and {1 3} are equivalent; {0 1} is not.
#include "plan/search/device_sets.h"

// Returns the link between two devices; NULL: there is no direct link.
static const struct topology_link *link_of(const tsr_topology *topology, int64_t from, int64_t to)
{
    for (size_t i = 0; i < topology->links.n; i++)
        if (topology->links.at[i].from == from && topology->links.at[i].to == to)
            return &topology->links.at[i];
    return NULL;
}

static bool same_link(const struct topology_link *a, const struct topology_link *b)
{
    return a && b && a->latency == b->latency && a->bandwidth == b->bandwidth &&
           a->start == b->start && a->message == b->message;
}

// True if a plan for the devices `a` is as good on `b`. Compares the devices and their links one by
// one. Ports limit several links together, so with ports no two sets are equivalent.
bool tsr__sets_equivalent(const tsr_topology *topology, const int64_t *a, const int64_t *b,
                          int64_t n)
{
    if (topology->ports.n)
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (!tsr__devices_alike(&topology->device[a[i]], &topology->device[b[i]]))
            return false;
        for (int64_t k = 0; k < n; k++)
            if (k != i && !same_link(link_of(topology, a[i], a[k]), link_of(topology, b[i], b[k])))
                return false;
    }
    return true;
}
