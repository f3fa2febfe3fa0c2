// SPDX-License-Identifier: Apache-2.0
// bound.c - what no algorithm can beat: the bytes that must cross a cut of the devices, over what its links can carry.
//
// Cuts that are looked at: every device against all others, and the first devices against the last ones.
//
// Example: an all-gather of 8 bytes over 4 devices, one of them against the other three: 8 * 1/4
// = 2 bytes must leave it; over links of 1 GB/s together that takes 2 ns at least.
#include "topology/internal.h"

// Share of the bytes of one group that must cross a cut with s of its n devices on one side.
// 1 of 4 against the others: an all-to-all must bring 1 * 3 / 16 of the bytes across, a broadcast
// or all-reduce all.
static double must_cross(enum tsr_collective what, double s, double n)
{
    switch (what) {
    case TSR_ALL_GATHER:
    case TSR_REDUCE_SCATTER:
        return s / n; // outwards; the other side is seen with its own cut
    case TSR_ALL_TO_ALL:
        return s * (n - s) / (n * n);
    default:
        return 1;
    }
}

// Bytes per second that can leave some devices: over the links, or over the ports of those who send, if that is less.
struct width {
    double links, ports;
};

// A link without a port of its sender counts as a port of its own width.
static void add_link(struct width *width, const struct topology_link *link)
{
    width->links += link->bandwidth;
    width->ports += link->out_port < 0 ? link->bandwidth : 0;
}

static double narrower(const struct width *width)
{
    if (width->ports < width->links)
        return width->ports;
    return width->links;
}

// Out of the devices marked.
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

// Something must leave a part that holds the first member of a group, or that does not.
static bool must_leave(enum tsr_collective what, bool first_inside)
{
    if (what == TSR_BROADCAST || what == TSR_SEND)
        return first_inside;
    return what != TSR_REDUCE || !first_inside;
}

// Bytes that must leave the devices marked, over what can leave them.
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
    if (bytes > 0) // no way out: infinite
        return bytes / cut_width(topology, side);
    return 0;
}

// The first devices against the last ones. Of many devices and links some of these cuts are looked at, evenly spread: they
// bound as well as all, only less tightly perhaps.
#define CUT_WORK ((size_t)1 << 22)

static double worst_halves(tsr_topology *topology, enum tsr_collective what,
                           const struct topology_groups *groups, bool *side)
{
    size_t each = (size_t)topology->n + topology->links.n, cuts = CUT_WORK / each;
    int apart = 1;
    if ((size_t)topology->n > cuts)
        apart = (int)((size_t)topology->n / (cuts + 1)) + 1;
    double worst = 0;
    for (int k = apart; k < topology->n; k += apart)
        for (int last = 0; last < 2; last++) {
            for (int i = 0; i < topology->n; i++)
                side[i] = last ? i >= k : i < k;
            double time = cut_time(topology, what, groups, side);
            if (time > worst)
                worst = time;
        }
    return worst;
}

// What goes out of each device alone, and into it from all the others.
struct alone {
    struct width out, in;
    double bytes_out, bytes_in; // that must
    int members;                // of the group that is looked at
};

// A device can be several members of a group: tiles that lie on one device.
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
            a->members = 0; // counted
            if (!inside || inside == groups->size)
                continue;
            if (must_leave(what, first))
                a->bytes_out += must_cross(what, inside, groups->size);
            if (must_leave(what, !first))
                a->bytes_in += must_cross(what, groups->size - inside, groups->size);
        }
    }
}

// Every device against the rest, all of them in one pass over links, ports and groups.
static double worst_alone(const tsr_topology *topology, enum tsr_collective what,
                          const struct topology_groups *groups, struct alone *alone)
{
    double ports = 0, worst = 0;
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        add_link(&alone[link->from].out, link);
        add_link(&alone[link->to].in, link);
    }
    // Into a device go the ports of all others: the sum of all, less its own, which are taken off
    // here.
    for (size_t i = 0; i < topology->ports.n; i++) {
        alone[topology->ports.at[i].device].out.ports += topology->ports.at[i].bandwidth;
        alone[topology->ports.at[i].device].in.ports -= topology->ports.at[i].bandwidth;
        ports += topology->ports.at[i].bandwidth;
    }
    add_needs(what, groups, alone);
    for (int d = 0; d < topology->n; d++) {
        struct alone *a = &alone[d];
        a->in.ports += ports; // those of all others
        double out = 0;
        if (a->bytes_out > 0)
            out = a->bytes_out / narrower(&a->out);
        double in = 0;
        if (a->bytes_in > 0)
            in = a->bytes_in / narrower(&a->in);
        if (out > worst)
            worst = out;
        if (in > worst)
            worst = in;
    }
    return worst;
}

// 0 where there is no memory: a bound that says nothing.
int64_t tsr__topology_bound(tsr_topology *topology, enum tsr_collective what,
                            const struct topology_groups *groups, int64_t bytes)
{
    struct arena scratch;
    double worst = 0;
    if (groups->size < 2)
        return 0;
    tsr__arena_init(&scratch, topology->session);
    bool *side = ARENA_ARRAY(&scratch, bool, (size_t)topology->n);
    struct alone *alone = ARENA_ARRAY(&scratch, struct alone, (size_t)topology->n);
    if (!scratch.failed) {
        double halves = worst_halves(topology, what, groups, side);
        worst = worst_alone(topology, what, groups, alone);
        if (halves > worst)
            worst = halves;
    }
    tsr__arena_free(&scratch);
    double picoseconds = worst * (double)bytes * 1e12;
    if (picoseconds < (double)TOPOLOGY_NEVER)
        return (int64_t)picoseconds;
    return TOPOLOGY_NEVER;
}
