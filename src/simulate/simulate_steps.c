// SPDX-License-Identifier: Apache-2.0
// simulate_steps.c - the tasks of all devices as steps of the player, and the links that their
// communications occupy.
#include "simulate/simulate.h"
#include "topology/topology.h"

struct steps {
    struct sim *sim;
    struct player *player;
    struct map uses; // struct player_uses by collective, bytes and group
    int64_t *key;    // scratch: key of `uses`
    int *devices;    // scratch: devices of a group
};

// Lists the links that a group uses in one execution.
static bool find_uses(struct steps *steps, const struct sim_comm *comm,
                      const struct sim_group *group, struct player_uses *out)
{
    double n = group->n, bytes = (double)comm->bytes * n * n / (n - 1);
    double *load = tsr__player_load(steps->player);
    tsr__sim_members(comm, group, steps->devices);
    // A Reshard or halo exchange occupies the links of an all-to-all.
    enum tsr_collective what = TSR_ALL_TO_ALL;
    if ((int)comm->kind < TSR_COLLECTIVE_COUNT) {
        what = (enum tsr_collective)comm->kind;
        bytes = (double)comm->bytes;
    }
    tsr__topology_load(steps->sim->topology, what,
                       &(struct topology_groups){1, group->n, steps->devices},
                       bytes < 0x1p62 ? (int64_t)bytes : INT64_MAX, load);
    *out = tsr__player_uses(steps->player);
    for (size_t i = 0; i < out->n && out->at; i++)
        out->at[i].ps *= (double)comm->times;
    return out->at != NULL;
}

// Returns the links that a group uses. Equal communications of many layers share one list.
static struct player_uses uses_of(struct steps *steps, const struct sim_comm *comm,
                                  const struct sim_group *group)
{
    struct player_uses none = {0};
    size_t n = (size_t)group->n;
    int64_t *key = steps->key;
    if (!steps->player->load || n < 2 || (int)comm->kind >= COMM_KIND_COUNT)
        return none;
    key[0] = comm->kind;
    key[1] = comm->bytes;
    key[2] = group->from;
    key[3] = comm->times;
    memcpy(key + 4, group->members, n * sizeof *key);
    void **kept = tsr__map_at_copy(&steps->uses, str_bytes(key, (n + 4) * sizeof *key));
    if (!kept || *kept)
        return kept ? *(struct player_uses *)*kept : none;
    struct player_uses *uses = ARENA_NEW(steps->sim->arena, struct player_uses);
    if (!uses || !find_uses(steps, comm, group, uses))
        return none;
    *kept = uses;
    return *uses;
}

// Adds a meeting for each group of each communication.
static void add_meetings(struct steps *steps)
{
    for (size_t i = 0; i < steps->sim->comms.n; i++) {
        struct sim_comm *comm = steps->sim->comms.at[i];
        for (size_t g = 0; g < comm->groups.n; g++) {
            struct sim_group *group = &comm->groups.at[g];
            group->meeting = tsr__player_meeting(
                steps->player, &(struct player_meeting){.devices = group->members,
                                                        .n = (size_t)group->n,
                                                        .ps = comm->ps,
                                                        .id = i,
                                                        .uses = uses_of(steps, comm, group)});
        }
    }
}

bool tsr__sim_steps(struct sim *sim, struct player *player)
{
    struct steps steps = {.sim = sim, .player = player};
    tsr__map_init(&steps.uses, sim->arena, 0);
    steps.key = ARENA_ARRAY(sim->arena, int64_t, (size_t)sim->n + 4);
    steps.devices = ARENA_ARRAY(sim->arena, int, (size_t)sim->n);
    if (!steps.key || !steps.devices)
        return false;
    add_meetings(&steps);
    for (int64_t d = 0; d < sim->n && !sim->arena->failed; d++)
        for (size_t i = 0; i < sim->devices[d].tasks.n; i++) {
            const struct sim_task *task = &sim->devices[d].tasks.at[i];
            struct sim_group *group = task->comm ? &task->comm->groups.at[task->group] : NULL;
            if (group && group->n > 1)
                tsr__player_join(player, d, group->meeting);
            else
                tsr__player_work(player, d, group ? task->comm->ps : task->ps);
        }
    return !sim->arena->failed;
}
