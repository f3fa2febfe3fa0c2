// SPDX-License-Identifier: Apache-2.0
// unlike.c - in which unequal parts a dimension is cut among devices that are not alike: few units, so that heads, channels
// and rows are cut between them, and the same for all nodes, so that layouts agree.
//
//     speeds 3 and 1: of 4 units 3 and 1. Each ends after the same time, where halves would wait for the slow one
//     speeds 312 and 91: of 4 units 3 and 1 (the slow one takes 1.1 times what is best), of 9 units 7 and 2 (1.005 times)
//     memories of 13 and 7 GiB: of 8 units 5 and 3
#include "plan/internal.h"

#define FEW_UNITS   16   // of up to four devices; of more, 4 for each
#define WORTH_WHILE 0.97 // another way to share must be as much faster than those that there are

// What a device can do more of than another.
enum ability { ABILITY_FLOPS, ABILITY_BANDWIDTH, ABILITY_MEMORY, ABILITY_COUNT };

static double ability_of(const struct planner *planner, enum ability ability, int64_t device)
{
    const tsr_topology_device *at =
        &planner->machine.topology->device[tsr__planner_device(planner, device)];
    if (ability == ABILITY_FLOPS)
        return at->flops;
    if (ability == ABILITY_BANDWIDTH)
        return at->bandwidth;
    return (double)at->memory;
}

// Who would end first with one more unit gets the next: no other way to give them all away ends earlier. Gives how long the last
// one takes, 1 being what would be best if units could be divided.
static double share_out(const double *able, int64_t n, int64_t total, int64_t *units)
{
    double sum = 0, longest = 0;
    for (int64_t i = 0; i < n; i++) {
        units[i] = 1;
        sum += able[i];
    }
    for (int64_t given = n; given < total; given++) {
        int64_t next = 0;
        for (int64_t i = 1; i < n; i++)
            if ((double)(units[i] + 1) / able[i] < (double)(units[next] + 1) / able[next])
                next = i;
        units[next]++;
    }
    for (int64_t i = 0; i < n; i++) {
        double takes = (double)units[i] / (double)total / (able[i] / sum);
        if (takes > longest)
            longest = takes;
    }
    return longest;
}

// Adds the way to share, if it is new and there is room.
static void add_shares(struct planner_machine *machine, tile_shares shares)
{
    for (int i = 0; i < machine->n_shares; i++)
        if (machine->shares[i] == shares)
            return;
    if (shares && machine->n_shares < PLAN_MAX_SHARES)
        machine->shares[machine->n_shares++] = shares;
}

// The first of the powers of 2, since most dimensions divide by them, and the best number of units that there is, if either is
// worth while.
static void share_by(struct planner *planner, const double *able, int64_t *units)
{
    int64_t n = planner->machine.n, most = FEW_UNITS;
    if (n > FEW_UNITS / 4)
        most = smaller(4 * n, TILE_MAX_UNITS);
    double best = share_out(able, n, n, units); // equal parts
    tile_shares best_shares = 0;
    for (int round = 0; round < 2; round++)
        for (int64_t total = n; total <= most; total++) {
            bool power = (total & (total - 1)) == 0, fits;
            if (power != (round == 0))
                continue;
            double longest = share_out(able, n, total, units);
            if (longest > best * WORTH_WHILE)
                continue;
            best = longest;
            if (!best_shares)
                add_shares(&planner->machine, tsr__shares_of(units, n, &fits));
            best_shares = tsr__shares_of(units, n, &fits);
        }
    add_shares(&planner->machine, best_shares);
}

// Devices that are alike have none, and so have more of them than units.
bool tsr__planner_shares(struct planner *planner)
{
    struct planner_machine *machine = &planner->machine;
    int64_t n = machine->n;
    machine->n_shares = 0;
    if (n < 2 || 2 * n > TILE_MAX_UNITS)
        return true;
    double *able = ARENA_ARRAY(&planner->arena, double, (size_t)n);
    int64_t *units = ARENA_ARRAY(&planner->arena, int64_t, (size_t)n);
    if (!able || !units)
        return false;
    for (int ability = 0; ability < ABILITY_COUNT; ability++) {
        bool known = true;
        for (int64_t device = 0; device < n; device++) {
            able[device] = ability_of(planner, (enum ability)ability, device);
            known = known && able[device] > 0;
        }
        if (known)
            share_by(planner, able, units);
    }
    return true;
}
