// SPDX-License-Identifier: Apache-2.0
// simulate_comm_cost.c - predicts the time of a communication and its bytes on each link. Both come
// from the same algorithm, groups and bytes.
//
//     Example: two ranks with shards of 96 bytes each:
//       AllGather ends with 192 bytes on each rank, so its size is 192.
//       AllToAll sends 96 and receives 96; its size is the input of both ranks, 192.
//       AllReduce of 96 bytes has size 96.
#include "simulate/simulate.h"
#include "plan/plan.h"
#include "topology/topology.h"

void tsr__sim_members(const struct sim_comm *comm, const struct sim_group *group, int *out)
{
    for (int i = 0; i < group->n; i++)
        out[i] = (int)group->members[i];
    if (comm->kind == COMM_SEND && group->n == 2 && out[1] == group->from) {
        out[1] = out[0];
        out[0] = (int)group->from;
    }
}

// Lists all groups of the largest size, which determine the predicted time.
static bool flat_groups(struct sim *sim, const struct sim_comm *comm, struct topology_groups *out)
{
    int size = 0, count = 0;
    for (size_t i = 0; i < comm->groups.n; i++)
        size = comm->groups.at[i].n > size ? comm->groups.at[i].n : size;
    int *device = ARENA_ARRAY(sim->arena, int, comm->groups.n *(size_t)size + 1);
    if (!device)
        return false;
    for (size_t i = 0; i < comm->groups.n; i++) {
        const struct sim_group *group = &comm->groups.at[i];
        if (group->n != size)
            continue;
        tsr__sim_members(comm, group, &device[count++ * size]);
    }
    *out = (struct topology_groups){count, size, device};
    return true;
}

// Adds the bytes of the fastest algorithm to sim->by_link, and their sum to comm->carried.
static void carry(struct sim *sim, struct sim_comm *comm, tsr_collective what,
                  const struct topology_groups *groups, int64_t bytes)
{
    size_t n = sim->topology->links.n;
    memset(sim->load, 0, n * sizeof *sim->load);
    tsr__topology_load(sim->topology, what, groups, bytes, sim->load);
    for (size_t i = 0; i < n; i++) {
        sim->by_link[i] += (double)comm->times * sim->load[i];
        comm->carried += (double)comm->times * sim->load[i];
    }
}

// Predicts a halo exchange: one message of the elements that a member lacks, and a copy of the
// output in memory. Each member exchanges half of these elements with each neighbour.
static int64_t halo_cost(struct sim *sim, struct sim_comm *comm,
                         const struct topology_groups *groups)
{
    int64_t more = int64_max(comm->moved, 1);
    struct topology_groups two = {1, 2, groups->device};
    double copied = 2 * (double)comm->most_out / sim->topology->device[groups->device[0]].bandwidth;
    double copied_ps = copied * 1e12;
    comm->bytes = more;
    for (int g = 0; g < groups->count; g++)
        for (int i = 0; i + 1 < groups->size; i++) {
            const int *at = groups->device + g * groups->size + i;
            const int both[4] = {at[0], at[1], at[1], at[0]};
            carry(sim, comm, TSR_SEND, &(struct topology_groups){2, 2, both}, (more + 1) / 2);
        }
    return sum_of(tsr__collective_cost(sim->topology, TSR_SEND, &two, more),
                  copied_ps < 0x1p62 ? (int64_t)copied_ps : INT64_MAX);
}

// Predicts a Reshard as an all-to-all in which every device moves as many bytes as the busiest one
// (`comm->moved`), as in tsr__exchange_cost. The time is at least that of the largest message.
// Example: with 4 devices and 3 MiB for the busiest, it is an all-to-all of 3 * 16 / 3 = 16 MiB.
static int64_t exchange_cost(struct sim *sim, struct sim_comm *comm,
                             const struct topology_groups *groups)
{
    double n = groups->size, whole = (double)comm->moved * n * n / (n - 1);
    comm->bytes = comm->moved;
    carry(sim, comm, TSR_ALL_TO_ALL, groups, whole < 0x1p62 ? (int64_t)whole : INT64_MAX);
    int64_t exchange = tsr__exchange_cost(sim->topology, groups, comm->moved);
    bool known = comm->pair_bytes > 0 && comm->pair[0] < sim->n && comm->pair[1] < sim->n;
    if (!known)
        return exchange;
    int ends[2] = {(int)comm->pair[0], (int)comm->pair[1]};
    struct topology_groups pair = {1, 2, ends};
    return int64_max(exchange,
                     tsr__collective_cost(sim->topology, TSR_SEND, &pair, comm->pair_bytes));
}

// Returns the predicted time of one execution in picoseconds; 0 if no group has two members, or
// out of memory. Sets comm->bytes to the charged size, which depends on the kind: the output of a
// gather, the input of a reduction, the inputs of all members of an all-to-all. A reduce-scatter
// with unequal shards is charged as if all were the largest.
static int64_t cost_once(struct sim *sim, struct sim_comm *comm)
{
    struct topology_groups groups;
    if (!flat_groups(sim, comm, &groups) || groups.size < 2)
        return 0;
    if (comm->kind == COMM_HALO)
        return halo_cost(sim, comm, &groups);
    if ((int)comm->kind >= TSR_COLLECTIVE_COUNT)
        return exchange_cost(sim, comm, &groups);
    tsr_collective what = (tsr_collective)comm->kind;
    enum comm_cost_basis by = tsr__collective((int)comm->kind)->cost_basis;
    comm->bytes = by == COST_BY_OUTPUT ? comm->most_out : comm->most_in;
    if (by == COST_BY_ALL_INPUTS)
        comm->bytes = mul_cap(comm->bytes, groups.size);
    if (comm->kind == COMM_REDUCE_SCATTER && comm->shares)
        comm->bytes = mul_cap(comm->most_out, groups.size);
    carry(sim, comm, what, &groups, comm->bytes);
    return tsr__collective_cost(sim->topology, what, &groups, comm->bytes);
}

int64_t tsr__sim_comm_cost(struct sim *sim, struct sim_comm *comm)
{
    comm->carried = 0;
    return mul_cap(cost_once(sim, comm), comm->times);
}
