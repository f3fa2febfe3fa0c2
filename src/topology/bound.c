// SPDX-License-Identifier: Apache-2.0
// bound.c - computes a lower bound for any algorithm of a collective: bytes that must cross a
// bisection of the devices, divided by the bandwidth of its links.
//
// It examines two kinds of bisections: every device against all others, and the first devices
// against the last ones.
//
// Example: in an all-gather of 8 bytes over 4 devices, 8 * 1/4 = 2 bytes must leave each device.
// Over links of 1 GB/s in total that takes at least 2 ns.
#include "topology/internal.h"

#include <math.h>

// Returns the share of one group's bytes that must leave a side of a bisection with s of the
// group's n devices. Example: 1 of 4 devices: 1/4 for an all-gather, 3/4 for a reduce-scatter, 3/16
// for an all-to-all, everything for a broadcast or all-reduce.
static double must_cross(enum tsr_collective what, double s, double n)
{
    switch (what) {
    case TSR_ALL_GATHER:
        return s / n; // the shards of the s devices
    case TSR_REDUCE_SCATTER:
        return (n - s) / n; // partial sums of the shards that the other devices receive
    case TSR_ALL_TO_ALL:
        return s * (n - s) / (n * n);
    default:
        return 1;
    }
}

// Bytes per second that can leave a set of devices, limited by its links and by the senders' ports.
struct width {
    double links, ports;
};

// Adds a link. A link that has no port at its sender is treated as a port of the same bandwidth.
static void add_link(struct width *width, const struct topology_link *link)
{
    width->links += link->bandwidth;
    width->ports += link->out_port < 0 ? link->bandwidth : 0;
}

static double narrower(const struct width *width)
{
    return fmin(width->ports, width->links);
}

// Returns the bandwidth out of the marked devices.
static double cut_width(const tsr_topology *topology, const bool *side)
{
    struct width width = {0, 0};
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        if (side[link->from] && !side[link->to])
            add_link(&width, link);
    }
    for (size_t i = 0; i < topology->ports.n; i++)
        width.ports += side[topology->ports.at[i].device] ? topology->ports.at[i].bandwidth : 0;
    return narrower(&width);
}

// True if data must leave one side of a bisection. `first_inside`: the first member of the group is
// on this side.
static bool must_leave(enum tsr_collective what, bool first_inside)
{
    if (what == TSR_BROADCAST || what == TSR_SEND)
        return first_inside;
    return what != TSR_REDUCE || !first_inside;
}

// Returns the time of the data that must leave the marked devices, in seconds per byte of one
// group's tensor.
static double cut_time(tsr_topology *topology, enum tsr_collective what,
                       const struct topology_groups *groups, const bool *side)
{
    double bytes = 0;
    for (int k = 0; k < groups->count; k++) {
        const int *device = groups->device + (size_t)k * (size_t)groups->size;
        int inside = 0;
        for (int i = 0; i < groups->size; i++)
            inside += side[device[i]];
        if (inside && inside < groups->size && must_leave(what, side[device[0]]))
            bytes += must_cross(what, inside, groups->size);
    }
    if (bytes > 0) // infinite if there is no link
        return bytes / cut_width(topology, side);
    return 0;
}

// Limits the work of worst_halves, which examines bisections into the first devices and the last
// ones. For large topologies it examines only some of them, evenly spread.
#define CUT_WORK ((size_t)1 << 22)

static double worst_halves(tsr_topology *topology, enum tsr_collective what,
                           const struct topology_groups *groups, bool *side)
{
    size_t each = (size_t)topology->n + topology->links.n, cuts = CUT_WORK / each;
    int apart = (size_t)topology->n > cuts ? (int)((size_t)topology->n / (cuts + 1)) + 1 : 1;
    double worst = 0;
    for (int k = apart; k < topology->n; k += apart)
        for (int last = 0; last < 2; last++) {
            for (int i = 0; i < topology->n; i++)
                side[i] = last ? i >= k : i < k;
            worst = fmax(worst, cut_time(topology, what, groups, side));
        }
    return worst;
}

// One device against all others: bandwidth and bytes in both directions.
struct alone {
    struct width out, in;
    double bytes_out, bytes_in; // shares of a tensor that must leave and enter the device
    int members;                // number of members of the current group on this device
};

// Adds the shares of the tensors that each device must send and receive. A device can hold several
// members of a group.
static void add_needs(enum tsr_collective what, const struct topology_groups *groups,
                      struct alone *alone)
{
    for (int k = 0; k < groups->count; k++) {
        const int *device = groups->device + (size_t)k * (size_t)groups->size;
        for (int i = 0; i < groups->size; i++)
            alone[device[i]].members++;
        for (int i = 0; i < groups->size; i++) {
            struct alone *a = &alone[device[i]];
            bool first = device[i] == device[0];
            int inside = a->members;
            a->members = 0; // handle each device once
            if (!inside || inside == groups->size)
                continue;
            if (must_leave(what, first))
                a->bytes_out += must_cross(what, inside, groups->size);
            if (must_leave(what, !first))
                a->bytes_in += must_cross(what, groups->size - inside, groups->size);
        }
    }
}

// Returns the longest time of the bisections of one device against all others, in seconds per byte.
// Needs one pass over links, ports and groups.
static double worst_alone(const tsr_topology *topology, enum tsr_collective what,
                          const struct topology_groups *groups, struct alone *alone)
{
    double ports = 0, worst = 0;
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        add_link(&alone[link->from].out, link);
        add_link(&alone[link->to].in, link);
    }
    // Data enters a device through the ports of all others: the sum of all ports minus its own.
    for (size_t i = 0; i < topology->ports.n; i++) {
        alone[topology->ports.at[i].device].out.ports += topology->ports.at[i].bandwidth;
        alone[topology->ports.at[i].device].in.ports -= topology->ports.at[i].bandwidth;
        ports += topology->ports.at[i].bandwidth;
    }
    add_needs(what, groups, alone);
    for (int d = 0; d < topology->n; d++) {
        struct alone *a = &alone[d];
        a->in.ports += ports;
        double out = a->bytes_out > 0 ? a->bytes_out / narrower(&a->out) : 0;
        double in = a->bytes_in > 0 ? a->bytes_in / narrower(&a->in) : 0;
        worst = fmax(worst, fmax(out, in));
    }
    return worst;
}

// Returns the lower bound in picoseconds. Returns 0, which is a valid bound, if memory runs out or
// the links of the groups are not listed.
int64_t tsr__topology_bound(tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *given, int64_t bytes)
{
    struct listed_groups listed;
    const struct topology_groups *groups = &listed.groups;
    double worst = 0;
    if (given->size < 2 || !tsr__topology_listed(topology, given, &listed))
        return 0;
    struct arena scratch = {.session = topology->session};
    bool *side = ARENA_ARRAY(&scratch, bool, (size_t)topology->n);
    struct alone *alone = ARENA_ARRAY(&scratch, struct alone, (size_t)topology->n);
    if (!scratch.failed)
        worst = fmax(worst_halves(topology, what, groups, side),
                     worst_alone(topology, what, groups, alone));
    tsr__arena_free(&scratch);
    double picoseconds = worst * (double)bytes * 1e12;
    return picoseconds < (double)TOPOLOGY_NEVER ? (int64_t)picoseconds : TOPOLOGY_NEVER;
}
