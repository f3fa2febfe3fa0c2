// SPDX-License-Identifier: Apache-2.0
// link_clusters.c - finds the hosts of a machine: devices whose links are faster than the links to
// all others.
//
//     Example: four A100 with links of 300 GB/s (0 to 3), two L4 with 25 GB/s (4 and 5), an H100
//     (6), and 12 GB/s between these three hosts. Links of at least 300 GB/s connect {0 1 2 3},
//     {4}, {5} and {6}; links of at least 25 GB/s connect {0 1 2 3}, {4 5} and {6}; links of at
//     least 12 GB/s connect all. The first threshold is used, because four clusters are few enough.
//     Unions of them include the clusters of the second.
#include "plan/search/device_sets.h"

#include <math.h>

// Sets of devices that are connected by links of at least some bandwidth.
struct clusters {
    const struct planner *planner;
    int *parent; // by device; a root is its own parent
};

static int root_of(const struct clusters *clusters, int device)
{
    while (clusters->parent[device] != device)
        device = clusters->parent[device];
    return device;
}

// Builds the clusters of all links with at least that bandwidth (union-find).
static void join(const struct clusters *clusters, double bandwidth)
{
    const tsr_topology *topology = clusters->planner->machine.topology;
    for (int device = 0; device < topology->n; device++)
        clusters->parent[device] = device;
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        int from = root_of(clusters, link->from), to = root_of(clusters, link->to);
        if (link->bandwidth >= bandwidth)
            clusters->parent[from > to ? from : to] = from > to ? to : from;
    }
}

static int count(const struct clusters *clusters)
{
    int n = 0;
    for (int64_t device = 0; device < clusters->planner->machine.n; device++)
        n += clusters->parent[device] == device;
    return n;
}

// Returns the largest bandwidth of a link that is less than `below`; 0: none.
static double next_bandwidth(const tsr_topology *topology, double below)
{
    double best = 0;
    for (size_t i = 0; i < topology->links.n; i++) {
        double bandwidth = topology->links.at[i].bandwidth;
        if (bandwidth < below && bandwidth > best)
            best = bandwidth;
    }
    return best;
}

// Numbers the clusters in the order of their first devices, which are the roots of the union-find
// forest.
static int number(const struct clusters *clusters, int *cluster)
{
    int n = 0;
    for (int64_t device = 0; device < clusters->planner->machine.n; device++) {
        int root = root_of(clusters, (int)device);
        cluster[device] = root == device ? n++ : cluster[root];
    }
    return n;
}

// Lowers the bandwidth threshold until there are at most CLUSTERS_MOST clusters. Sets
// cluster[device] and returns the number of clusters. If out of memory, or if no threshold gives so
// few clusters, returns 1 and sets nothing.
int tsr__clusters_find(const struct planner *planner, int *cluster)
{
    const tsr_topology *topology = planner->machine.topology;
    struct clusters clusters = {.planner = planner};
    double bandwidth = next_bandwidth(topology, INFINITY);
    int n = 1;
    struct arena scratch = {.session = planner->session};
    clusters.parent = ARENA_ARRAY(&scratch, int, (size_t)topology->n);
    if (!clusters.parent)
        goto free_scratch;
    for (; bandwidth > 0; bandwidth = next_bandwidth(topology, bandwidth)) {
        join(&clusters, bandwidth);
        if (count(&clusters) > CLUSTERS_MOST)
            continue;
        n = number(&clusters, cluster);
        break;
    }
free_scratch:
    tsr__arena_free(&scratch);
    return n;
}
