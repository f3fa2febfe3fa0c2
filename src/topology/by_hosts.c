// SPDX-License-Identifier: Apache-2.0
// by_hosts.c - groups of CPUs that span hosts, in the parts in which transport/net/by_hosts.c works
// on them: the members of one host, and lanes from host to host.
//
// Example: hosts with devices 0 and 1, 2 and 3. The group {0 1 2 3} has the near groups {0 1} and
// {2 3}, and the lanes {0 2} and {1 3}.
#include "topology/internal.h"

// One group that is divided: `at` has the index of each host in order of appearance plus 1, by
// number of the host, and `members` how many it has.
struct division {
    const tsr_topology *topology;
    int *at, *members;
    int hosts;
};

// Counts the hosts of a group and the members of each. Returns false if the members of a host do
// not follow each other.
static bool count_members(struct division *division, const int *device, int n)
{
    bool in_order = true;
    for (int i = 0; i < n; i++) {
        int host = device[i] / division->topology->host;
        bool is_new = !division->at[host];
        if (is_new)
            division->at[host] = ++division->hosts;
        in_order = in_order && (is_new || division->at[host] == division->hosts);
        division->members[division->at[host] - 1]++;
    }
    return in_order;
}

static bool members_alike(const struct division *division)
{
    for (int h = 1; h < division->hosts; h++)
        if (division->members[h] != division->members[0])
            return false;
    return true;
}

// Divides group k, whose hosts must be as many as those of the groups before it.
static bool divide(const tsr_topology *topology, const struct topology_groups *groups, int k,
                   struct arena *arena, struct groups_by_hosts *out)
{
    const int *device = groups->device + (size_t)k * (size_t)groups->size;
    size_t most = (size_t)(topology->n / topology->host) + 1;
    struct division division = {.topology = topology,
                                .at = ARENA_ARRAY(arena, int, most),
                                .members = ARENA_ARRAY(arena, int, most)};
    if (arena->failed)
        return false;
    out->in_order = count_members(&division, device, groups->size) && out->in_order;
    int hosts = division.hosts, size = groups->size / hosts;
    if (hosts < 2 || size < 2 || !members_alike(&division) || (k > 0 && hosts != out->lanes.size))
        return false;
    int *near = (int *)out->near.device + (size_t)k * (size_t)groups->size;
    int *lanes = (int *)out->lanes.device + (size_t)k * (size_t)groups->size;
    for (int i = 0; i < groups->size; i++) {
        int host = division.at[device[i] / topology->host] - 1;
        int place = size - division.members[host]--;
        near[host * size + place] = lanes[place * hosts + host] = device[i];
    }
    out->near.count = groups->count * hosts;
    out->near.size = out->lanes.count = size;
    out->lanes.size = hosts;
    return true;
}

static bool any_gpu(const tsr_topology *topology, const struct topology_groups *groups)
{
    for (int i = 0; i < groups->count * groups->size; i++)
        if (tsr__device_is_cuda(str_of(topology->device[groups->device[i]].name)))
            return true;
    return false;
}

bool tsr__groups_by_hosts(const tsr_topology *topology, const struct topology_groups *groups,
                          struct arena *arena, struct groups_by_hosts *out)
{
    size_t n = (size_t)groups->count * (size_t)groups->size;
    *out = (struct groups_by_hosts){.in_order = true};
    if (topology->host < 2 || groups->size < 4 || any_gpu(topology, groups))
        return false;
    out->near.device = ARENA_ARRAY(arena, int, n);
    out->lanes.device = ARENA_ARRAY(arena, int, n);
    for (int k = 0; k < groups->count; k++)
        if (arena->failed || !divide(topology, groups, k, arena, out))
            return false;
    out->lanes.count *= groups->count;
    return true;
}
