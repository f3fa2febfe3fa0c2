// SPDX-License-Identifier: Apache-2.0
// load.c - computes the bytes that each link carries during a collective with the fastest
// algorithm.
//
// Runs the schedule as collective_time.c does, but sums up bytes by link and not by step. Example:
// two halves of a host that send 1 MiB to each other over a switch load four links with 1 MiB each.
#include "topology/internal.h"

struct carried {
    tsr_topology *topology;
    double *by_link;
    int path[TOPOLOGY_MAX_HOPS];
};

static void hear(void *data, int from, int to, double bytes)
{
    struct carried *carried = data;
    int n = tsr__topology_path(carried->topology, from, to, carried->path, TOPOLOGY_MAX_HOPS);
    for (int i = 0; i < n; i++)
        carried->by_link[carried->path[i]] += bytes;
}

static void step_ends(void *data, int times)
{
    (void)data;
    (void)times; // always 1 for listeners without `exchange`
}

// Runs the algorithm of that name. A measured collective has no algorithm, so the first that
// applies is used.
static bool run_schedule(struct carried *carried, enum tsr_collective what, const char *name,
                         const struct topology_groups *groups, double bytes)
{
    const struct listener to = {carried, hear, step_ends, NULL};
    bool any = strcmp(name, "measured") == 0;
    for (size_t i = 0; i < tsr__n_algorithms; i++) {
        const struct algorithm *algorithm = &tsr__algorithms[i];
        if (algorithm->what != what)
            continue;
        if (!any && strcmp(algorithm->name, name) != 0)
            continue;
        if (algorithm->schedule(carried->topology, groups, bytes, &to))
            return true;
    }
    return false;
}

// Adds the loads. Adds nothing if the collective has no predicted time or only one member.
void tsr__topology_load(tsr_topology *topology, enum tsr_collective what,
                        const struct topology_groups *groups, int64_t bytes, double *by_link)
{
    struct timed_algorithm fastest;
    struct carried carried = {.topology = topology, .by_link = by_link};
    struct topology_groups ordered = *groups;
    if (tsr__topology_fastest(topology, what, groups, bytes, &fastest) >= TOPOLOGY_NEVER ||
        groups->size < 2)
        return;
    if (fastest.near) {
        ordered.device = tsr__near_groups(topology, groups, carried.path);
        if (!ordered.device)
            return;
    }
    run_schedule(&carried, what, fastest.algorithm, &ordered, (double)bytes);
}
