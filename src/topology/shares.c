// SPDX-License-Identifier: Apache-2.0
// shares.c - replaces unlike devices by equal ranks: a device that is 3 times as fast gets 3 ranks
// and so 3 shards.
//
// Shards have equal sizes (ONNX divides a dimension evenly), so a fast device needs several ranks
// to get more of them. The ranks of a device divide its speed and memory, and communicate through
// its memory. Each gets a part of the bandwidth to other devices.
//
//     Example: speeds 3 and 1: ranks 0 1 2 on the first device, rank 3 on the second. A matrix
//     product sharded 4 ways takes 1/4 of the time of the slow device alone; halves would take
//     1/2, and the fast device alone 1/3.
#include "topology/internal.h"

#include <math.h>

#define RANKS_MOST 16 // largest number of ranks in total
// largest number of ranks of the slowest device: speeds 5 and 3 get 5 and 3 ranks
#define FINEST 3
#define CLOSE  0.1 // allowed deviation from integer numbers of ranks

struct rank_shares {
    const tsr_topology *from;
    int ranks[RANKS_MOST]; // by device: number of ranks; 0: not used
    int first[RANKS_MOST]; // by device: its first rank
    int n;                 // number of ranks in total
};

// Assigns ranks to devices by speed. Devices of speed `slowest` get `finest` ranks, faster ones
// more, and slower ones none. Returns false if speeds do not match integers, there are too many
// ranks, or all devices have the same number.
static bool share_out(struct rank_shares *shares, double slowest, int finest)
{
    bool unlike = false;
    shares->n = 0;
    for (int i = 0; i < shares->from->n; i++) {
        double speed = shares->from->device[i].flops, ranks = speed / slowest * finest;
        shares->ranks[i] = 0;
        shares->first[i] = shares->n;
        if (speed < slowest)
            continue;
        if (ranks > RANKS_MOST || fabs(ranks - round(ranks)) > CLOSE * round(ranks))
            return false;
        shares->ranks[i] = (int)round(ranks);
        shares->n += shares->ranks[i];
        unlike = unlike || shares->ranks[i] != finest;
    }
    return unlike && shares->n <= RANKS_MOST;
}

// Returns the speed and memory that one rank of a device gets.
static tsr_topology_device part_of(const tsr_topology_device *device, int ranks)
{
    tsr_topology_device part = *device;
    part.memory /= ranks;
    part.flops /= ranks;
    part.bandwidth /= ranks;
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        part.rates[i] /= ranks;
    for (int i = 0; i < TSR_MOVE_COUNT; i++) {
        part.moves[i] /= ranks;
        part.cached[i] /= ranks;
    }
    return part;
}

static double least_latency(const tsr_topology *topology)
{
    double least = 1;
    for (size_t i = 0; i < topology->links.n; i++)
        least = fmin(least, topology->links.at[i].latency);
    return least;
}

// Links the ranks of one device through its memory: every byte is read and written.
static void link_ranks(tsr_topology *to, const struct rank_shares *shares, int device)
{
    const tsr_topology_device *whole = &shares->from->device[device];
    int first = shares->first[device], end = first + shares->ranks[device];
    double latency = least_latency(shares->from);
    for (int a = first; a < end; a++)
        for (int b = first; b < end; b++)
            if (a != b)
                tsr__topology_link(to, a, b, latency, whole->bandwidth / 2 / shares->ranks[device]);
}

// Divides the link among the ranks of the end that has more. Example: 3 ranks and 1 rank, 6 GB/s:
// three links of 2 GB/s in each direction.
static void link_devices(tsr_topology *to, const struct rank_shares *shares,
                         const struct topology_link *link)
{
    const tsr_topology *from = shares->from;
    int n_from = shares->ranks[link->from], n_to = shares->ranks[link->to];
    double wire = link->bandwidth;
    if (link->out_port >= 0)
        wire = fmin(wire, from->ports.at[link->out_port].bandwidth);
    if (link->in_port >= 0)
        wire = fmin(wire, from->ports.at[link->in_port].bandwidth);
    for (int a = 0; a < n_from; a++)
        for (int b = 0; b < n_to; b++) {
            struct topology_link *copy =
                tsr__topology_link(to, shares->first[link->from] + a, shares->first[link->to] + b,
                                   link->latency, wire / fmax(n_from, n_to));
            if (!copy)
                return;
            copy->start = link->start;
            copy->message = link->message;
        }
}

// Creates a topology of ranks in the order of their devices, with links inside each device and
// between linked devices.
static tsr_status make_ranks(const struct rank_shares *shares, tsr_topology **out)
{
    const tsr_topology *from = shares->from;
    tsr_topology *to = tsr__topology_new(from->session, shares->n);
    if (!to)
        return TSR_NOMEM;
    for (int i = 0; i < from->n; i++) {
        if (!shares->ranks[i])
            continue;
        tsr_topology_device part = part_of(&from->device[i], shares->ranks[i]);
        part.name = tsr__arena_str(&to->arena, str_of(part.name)).p;
        for (int k = 0; k < shares->ranks[i]; k++)
            to->device[shares->first[i] + k] = part;
        if (shares->ranks[i] > to->shared_by)
            to->shared_by = shares->ranks[i];
        link_ranks(to, shares, i);
    }
    for (size_t i = 0; i < from->links.n; i++)
        link_devices(to, shares, &from->links.at[i]);
    to->memory_assumed = from->memory_assumed;
    to->basis = from->basis;
    to->assumed = from->assumed;
    return tsr__topology_finish_copy(to, from, out);
}

// Adds the choice whose slowest device has speed `slowest`. Tries 1, 2 and 3 ranks on that device
// until the numbers of ranks match the speeds; adds nothing if none match.
static tsr_status add_shares(tsr_topology *topology, double slowest)
{
    struct rank_shares shares = {.from = topology};
    tsr_topology *ranks = NULL;
    // Example: speeds 3 and 2. With 1 rank for the slow device the fast one would get 1.5; with 2
    // it gets 3.
    for (int finest = 1; finest <= FINEST; finest++) {
        if (!share_out(&shares, slowest, finest))
            continue;
        TRY(make_ranks(&shares, &ranks));
        return tsr__topology_add_choice(topology, ranks);
    }
    return TSR_OK;
}

// For each speed, adds a choice without the devices that are slower, if the speeds of the others
// are near a ratio of small integers. Does nothing for large topologies and those that do not list
// all links.
tsr_status tsr__topology_add_shares(tsr_topology *topology)
{
    if (topology->n > RANKS_MOST || topology->window)
        return TSR_OK;
    for (int i = 0; i < topology->n; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || topology->device[k].flops == topology->device[i].flops;
        if (!seen)
            TRY(add_shares(topology, topology->device[i].flops));
    }
    return TSR_OK;
}
