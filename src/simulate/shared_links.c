// SPDX-License-Identifier: Apache-2.0
// shared_links.c - links that several communications use at the same time.
//
// The cost of a communication already includes that its own groups share links. Communications of
// different pipeline stages share links too. A link serves them one after the other, in the order
// in which they begin.
//
//     Example: stage 0 sums over devices 0 and 2 of a line 0-1-2-3, stage 1 over 1 and 3. Both use
//     the link 1-2 for 4 ms and take 5 ms alone. If both begin at 0, the first ends at 5 and the
//     second at 4 + 4 = 8, unless its other links take longer.
#include "simulate/simulate.h"
#include "topology/topology.h"

#define MOST_LINKS ((size_t)1 << 16) // larger topologies are simulated without contention

// Time in seconds for which one group of a communication occupies a link or port.
struct link_use {
    size_t link;
    double seconds;
};
struct link_uses {
    struct link_use *at;
    size_t n;
};

struct shared_links {
    struct sim *sim;
    double *load;               // scratch: bytes on each link
    double *free;               // end of the last use of each link, then of each port and direction
    const struct sim_comm **by; // the communication of that last use
    struct map uses;            // uses by collective, bytes and group
    int64_t *key;               // scratch: key of `uses`
    int *devices;               // scratch: devices of a group
};

static size_t ports_begin(const struct sim *sim)
{
    return sim->topology->links.n;
}

// Creates the state of the links. NULL for a single request, because only different requests
// overlap, and for topologies with too many links.
struct shared_links *tsr__sim_links(struct sim *sim, int requests)
{
    size_t links = sim->topology->links.n, all = links + 2 * sim->topology->ports.n;
    if (requests < 2 || links > MOST_LINKS)
        return NULL;
    struct shared_links *shared = ARENA_NEW(sim->arena, struct shared_links);
    if (!shared)
        return NULL;
    *shared = (struct shared_links){.sim = sim,
                                    .load = ARENA_ARRAY(sim->arena, double, links + 1),
                                    .free = ARENA_ARRAY(sim->arena, double, all + 1),
                                    .by = ARENA_ARRAY(sim->arena, const struct sim_comm *, all + 1),
                                    .key = ARENA_ARRAY(sim->arena, int64_t, (size_t)sim->n + 3),
                                    .devices = ARENA_ARRAY(sim->arena, int, (size_t)sim->n)};
    tsr__map_init(&shared->uses, sim->arena, 0);
    return sim->arena->failed ? NULL : shared;
}

static void add_use(struct link_uses *uses, size_t link, double seconds)
{
    for (size_t i = 0; i < uses->n; i++)
        if (uses->at[i].link == link) {
            uses->at[i].seconds += seconds;
            return;
        }
    uses->at[uses->n++] = (struct link_use){link, seconds};
}

// Lists for how many seconds the bytes of `shared->load` occupy each link and its ports.
static void list_uses(struct shared_links *shared, struct link_uses *uses)
{
    const tsr_topology *topology = shared->sim->topology;
    size_t used = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        used += shared->load[i] > 0;
    uses->at = ARENA_ARRAY(shared->sim->arena, struct link_use, 3 * used + 1);
    for (size_t i = 0; i < topology->links.n && uses->at; i++) {
        const struct topology_link *link = &topology->links.at[i];
        double bytes = shared->load[i];
        if (bytes <= 0)
            continue;
        add_use(uses, i, bytes / link->bandwidth);
        if (link->out_port >= 0)
            add_use(uses, ports_begin(shared->sim) + 2 * (size_t)link->out_port,
                    bytes / topology->ports.at[link->out_port].bandwidth);
        if (link->in_port >= 0)
            add_use(uses, ports_begin(shared->sim) + 2 * (size_t)link->in_port + 1,
                    bytes / topology->ports.at[link->in_port].bandwidth);
    }
}

// Returns the links that a group uses. Equal communications of many layers share one entry. NULL:
// out of memory, fewer than two members, or an unknown communication.
static const struct link_uses *uses_of(struct shared_links *shared, const struct sim_comm *comm,
                                       const struct sim_group *group)
{
    struct arena *arena = shared->sim->arena;
    size_t n = (size_t)group->n;
    int64_t *key = shared->key;
    int *devices = shared->devices;
    if (n < 2 || (int)comm->kind >= COMM_KIND_COUNT)
        return NULL;
    key[0] = comm->kind;
    key[1] = comm->bytes;
    key[2] = group->from;
    memcpy(key + 3, group->members, n * sizeof *key);
    void **kept = tsr__map_at_copy(&shared->uses, str_bytes(key, (n + 3) * sizeof *key));
    if (!kept || *kept)
        return kept ? *kept : NULL;
    struct link_uses *uses = ARENA_NEW(arena, struct link_uses);
    if (!uses)
        return NULL;
    tsr__sim_members(comm, group, devices);
    memset(shared->load, 0, shared->sim->topology->links.n * sizeof *shared->load);
    // A Reshard or halo exchange occupies the links of an all-to-all.
    enum tsr_collective what = TSR_ALL_TO_ALL;
    double bytes = (double)comm->bytes * (double)(n * n) / (double)(n - 1);
    if ((int)comm->kind < TSR_COLLECTIVE_COUNT) {
        what = (enum tsr_collective)comm->kind;
        bytes = (double)comm->bytes;
    }
    tsr__topology_load(shared->sim->topology, what, &(struct topology_groups){1, group->n, devices},
                       bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX, shared->load);
    list_uses(shared, uses);
    *kept = uses;
    return uses;
}

double tsr__sim_end(struct shared_links *shared, const struct sim_comm *comm,
                    const struct sim_group *group, double begin)
{
    double end = begin + (double)comm->ps / 1e12;
    const struct link_uses *uses = shared ? uses_of(shared, comm, group) : NULL;
    for (size_t i = 0; uses && i < uses->n; i++) {
        size_t link = uses->at[i].link;
        double from = begin, *free = &shared->free[link];
        // The cost of a communication already includes that its own groups share links, so only
        // other communications delay it. The link is occupied for the time of all groups.
        bool others = shared->by[link] != comm;
        if (*free > begin)
            from = *free;
        double until = from + (double)comm->times * uses->at[i].seconds;
        if (others && until > end)
            end = until;
        if (until > *free)
            *free = until;
        shared->by[link] = comm;
    }
    return end;
}
