// SPDX-License-Identifier: Apache-2.0
// same_sets.c - whether two sets of devices are the same to a plan: one of them need not be planned.
//
//     two A100 (0 and 1) and two L4 (2 and 3), linked each with each: {0 2}, {0 3}, {1 2} and {1 3} are the same, {0 1} is none of them
#include "plan/search/device_sets.h"

// NULL: there is none, and what the one sends to the other goes by others.
static const struct topology_link *link_of(const tsr_topology *topology, int64_t from, int64_t to)
{
    for (size_t i = 0; i < topology->links.n; i++)
        if (topology->links.at[i].from == from && topology->links.at[i].to == to)
            return &topology->links.at[i];
    return NULL;
}

static bool same_link(const struct topology_link *a, const struct topology_link *b)
{
    return a && b && a->latency == b->latency && a->bandwidth == b->bandwidth;
}

// Place by place the same device, with the same links to the others of its set. Ports join links that are told one by one, so where
// there are some, no sets are the same.
bool tsr__same_sets(const tsr_topology *topology, const int64_t *a, const int64_t *b, int64_t n)
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
