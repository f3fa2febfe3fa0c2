// SPDX-License-Identifier: Apache-2.0
// by_hosts.c - how the members of groups reach each other: what the transports know when they
// choose an algorithm (struct comm_shape). Groups of CPUs that span hosts are divided into the
// parts in which transport/net/by_hosts.c works on them.
//
// Example: hosts with devices 0 to 2, and 3 to 5. The group {0 1 2 3 4} has the hosts {0 1 2} and
// {3 4}, and two lanes, as many as the smaller host has members: {0 3} and {1 4}.
#include "topology/internal.h"

// ---- groups by hosts ----------------------------------------------------------------------------

static int host_of(const tsr_topology *topology, int device)
{
    return topology->host > 0 ? device / topology->host : 0;
}

// One group: its hosts in the order of their first members. By number of the host, `at` has the
// index of a host of the group plus 1. By that index, `members` has the number of members.
struct division {
    const tsr_topology *topology;
    const int *device;
    int n;
    int *at, *members, *filled;
    int hosts;
    bool in_order;
};

static void count_members(struct division *division)
{
    int before = 0;
    division->hosts = 0;
    division->in_order = true;
    for (int i = 0; i < division->n; i++) {
        int *at = &division->at[host_of(division->topology, division->device[i])];
        bool is_new = !*at;
        if (is_new) {
            *at = ++division->hosts;
            division->members[*at - 1] = 0;
        }
        division->in_order &= is_new || *at == before;
        division->members[*at - 1]++;
        before = *at;
    }
}

// Forgets the group, so that another one can be divided.
static void clear_division(struct division *division)
{
    for (int i = 0; i < division->n; i++)
        division->at[host_of(division->topology, division->device[i])] = 0;
}

static int least(const int *numbers, int n)
{
    int found = numbers[0];
    for (int i = 1; i < n; i++)
        found = numbers[i] < found ? numbers[i] : found;
    return found;
}

static int most(const int *numbers, int n)
{
    int found = numbers[0];
    for (int i = 1; i < n; i++)
        found = numbers[i] > found ? numbers[i] : found;
    return found;
}

// Lists the members of each host, and the lanes, of group k.
static void list_members(const struct division *division, int k, struct groups_by_hosts *out)
{
    struct host_members *hosts = out->near + (size_t)k * (size_t)out->hosts;
    int *lanes = (int *)out->lanes.device + (size_t)k * (size_t)(out->n_lanes * out->hosts);
    int *to = out->members + (size_t)k * (size_t)division->n;
    for (int h = 0; h < out->hosts; h++) {
        hosts[h] = (struct host_members){to, division->members[h]};
        to += division->members[h];
        division->filled[h] = 0;
    }
    for (int i = 0; i < division->n; i++) {
        int h = division->at[host_of(division->topology, division->device[i])] - 1;
        int place = division->filled[h]++;
        ((int *)hosts[h].device)[place] = division->device[i];
        if (place < out->n_lanes)
            lanes[place * out->hosts + h] = division->device[i];
    }
}

// Allocates the lists of groups that are divided as this one.
static bool make_lists(const struct division *division, int count, struct arena *arena,
                       struct groups_by_hosts *out)
{
    out->hosts = division->hosts;
    out->n_lanes = least(division->members, division->hosts);
    out->most = most(division->members, division->hosts);
    out->in_order = true;
    out->n_near = count * out->hosts;
    out->near = ARENA_ARRAY(arena, struct host_members, (size_t)out->n_near);
    out->members = ARENA_ARRAY(arena, int, (size_t)count *(size_t)division->n);
    out->lanes.count = count * out->n_lanes;
    out->lanes.size = out->hosts;
    out->lanes.device = ARENA_ARRAY(arena, int, (size_t)out->lanes.count *(size_t)out->lanes.size);
    return !arena->failed;
}

// Divides group k. Returns false if its hosts differ from those of the first group.
static bool divide(struct division *division, int k, int count, struct arena *arena,
                   struct groups_by_hosts *out)
{
    count_members(division);
    if (k == 0 && !make_lists(division, count, arena, out))
        return false;
    bool alike = division->hosts == out->hosts &&
                 least(division->members, division->hosts) == out->n_lanes &&
                 most(division->members, division->hosts) == out->most;
    out->in_order &= division->in_order;
    if (alike)
        list_members(division, k, out);
    clear_division(division);
    return alike;
}

// Divides groups by hosts. Without lists if their hosts differ.
static void divide_all(const tsr_topology *topology, const struct topology_groups *groups,
                       struct arena *arena, struct groups_by_hosts *out)
{
    size_t hosts = (size_t)host_of(topology, topology->n - 1) + 1;
    struct division division = {.topology = topology,
                                .n = groups->size,
                                .at = ARENA_ARRAY(arena, int, hosts),
                                .members = ARENA_ARRAY(arena, int, hosts),
                                .filled = ARENA_ARRAY(arena, int, hosts)};
    bool alike = !arena->failed;
    *out = (struct groups_by_hosts){.most = 1};
    for (int k = 0; alike && k < groups->count; k++) {
        division.device = groups->device + (size_t)k * (size_t)groups->size;
        alike = divide(&division, k, groups->count, arena, out);
    }
    if (!alike)
        *out = (struct groups_by_hosts){.most = 1};
}

// ---- how members reach each other ---------------------------------------------------------------

static const char *name_of(const tsr_topology *topology, const struct topology_groups *groups,
                           int i)
{
    return topology->device[groups->device[i]].name;
}

static int count_gpus(const tsr_topology *topology, const struct topology_groups *groups)
{
    int gpus = 0;
    for (int i = 0; i < groups->count * groups->size; i++)
        gpus += tsr__device_is_cuda(str_of(name_of(topology, groups, i)));
    return gpus;
}

// Returns the number of different GPUs of the first group, which is on one host.
static int different_gpus(const tsr_topology *topology, const struct topology_groups *groups)
{
    int different = 0;
    for (int i = 0; i < groups->size; i++) {
        bool seen = false;
        for (int j = 0; j < i && !seen; j++)
            seen = strcmp(name_of(topology, groups, i), name_of(topology, groups, j)) == 0;
        different += !seen;
    }
    return different;
}

// Groups of GPUs use NCCL, unless members share a GPU.
static enum comm_path path_of_gpus(const tsr_topology *topology,
                                   const struct topology_groups *groups,
                                   const struct groups_by_hosts *parts, bool *one_gpu)
{
    int different = parts->hosts == 1 ? different_gpus(topology, groups) : groups->size;
    *one_gpu = different == 1;
    return different < groups->size ? PATH_OWN : PATH_NCCL;
}

// Ranks on one host are threads; if there are more hosts, they are processes.
static enum comm_path path_of_cpus(const tsr_topology *topology,
                                   const struct groups_by_hosts *parts)
{
    if (parts->hosts == 1)
        return topology->host > 0 && topology->n > topology->host ? PATH_SHM : PATH_THREADS;
    return parts->most > 1 ? PATH_HOSTS : PATH_MESSAGES;
}

struct comm_shape tsr__topology_shape(const tsr_topology *topology,
                                      const struct topology_groups *groups, struct arena *arena,
                                      struct groups_by_hosts *parts)
{
    struct comm_shape shape = {.members = groups->size, .in_reach = true, .equal = true};
    int gpus = count_gpus(topology, groups);
    divide_all(topology, groups, arena, parts);
    if (gpus == groups->count * groups->size)
        shape.path = path_of_gpus(topology, groups, parts, &shape.one_gpu);
    else
        shape.path = gpus > 0 ? PATH_COPIES : path_of_cpus(topology, parts);
    shape.hosts = parts->hosts;
    shape.most = parts->most;
    shape.in_order = parts->in_order;
    return shape;
}
