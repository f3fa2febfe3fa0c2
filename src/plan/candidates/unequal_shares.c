// SPDX-License-Identifier: Apache-2.0
// unlike.c - in which unequal parts a dimension is cut among devices that are not alike: few units, so that heads, channels
// and rows are cut between them, and the same for all nodes, so that layouts agree.
//
//     speeds 3 and 1: of 4 units 3 and 1. Each ends after the same time, where halves would wait for the slow one
//     speeds 312 and 91: of 4 units 3 and 1 (the slow one takes 1.1 times what is best), of 9 units 7 and 2 (1.005 times)
//     memories of 13 and 7 GiB: of 8 units 5 and 3
//     weights of 15 GiB, speeds 3 1 1 and memories of 8, 16 and 32 GiB: by speed alone the first would have 9 GiB; it gets 8 of
//     16 units, as much as it has room for, and the others 4 each
#include "plan/costs/planner.h"

#include <math.h>

#define FEW_UNITS   16   // of up to four devices; of more, 4 for each
#define FOR_WEIGHTS 0.95 // of a memory; the rest is for what nodes make
#define WORTH_WHILE 0.97 // another way to share must be as much faster than those that there are

// What a device can do more of than another, in the order in which ways to share by it are listed. ROOMY_SPEED is the speed at this
// model where no device gets more than it has room for.
enum ability {
    ABILITY_ROOMY_SPEED,
    ABILITY_SPEED,
    ABILITY_MEMORY,
    ABILITY_FLOPS,
    ABILITY_BANDWIDTH,
    ABILITY_COUNT
};

static double ability_of(const struct planner *planner, enum ability ability, int64_t device)
{
    const tsr_topology_device *at =
        &planner->machine.topology->device[tsr__planner_device(planner, device)];
    switch (ability) {
    case ABILITY_FLOPS:
        return at->flops;
    case ABILITY_BANDWIDTH:
        return at->bandwidth;
    case ABILITY_MEMORY:
        return (double)at->memory;
    default:
        return planner->machine.speed[device];
    }
}

// What devices have of an ability, and the most that each may get of the whole.
struct wishes {
    double *able, *room;
    int64_t n;
};

// Who would end first with one more unit, of those that have room for it, gets the next: no other way to give them all away
// ends earlier. Gives how long the last one takes, 1 being what would be best if units could be divided; INFINITY: no room.
static double share_out(const struct wishes *wishes, int64_t total, int64_t *units)
{
    double sum = 0, longest = 0;
    for (int64_t i = 0; i < wishes->n; i++) {
        units[i] = 1;
        sum += wishes->able[i];
    }
    for (int64_t given = wishes->n; given < total; given++) {
        int64_t next = -1;
        double soonest = INFINITY;
        for (int64_t i = 0; i < wishes->n; i++) {
            double ends = (double)(units[i] + 1) / wishes->able[i];
            bool has_room = (double)(units[i] + 1) <= wishes->room[i] * (double)total;
            if (has_room && ends < soonest) {
                next = i;
                soonest = ends;
            }
        }
        if (next < 0)
            return INFINITY;
        units[next]++;
    }
    for (int64_t i = 0; i < wishes->n; i++) {
        if ((double)units[i] > wishes->room[i] * (double)total)
            return INFINITY;
        longest = fmax(longest, (double)units[i] / (double)total / (wishes->able[i] / sum));
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
static void share_by(struct planner *planner, const struct wishes *wishes, int64_t *units)
{
    int64_t n = wishes->n, most = FEW_UNITS;
    if (n > FEW_UNITS / 4)
        most = int64_min(4 * n, TILE_MAX_UNITS);
    double best = share_out(wishes, n, units); // equal parts
    tile_shares best_shares = 0;
    for (int round = 0; round < 2; round++)
        for (int64_t total = n; total <= most; total++) {
            bool power = (total & (total - 1)) == 0, fits;
            if (power != (round == 0))
                continue;
            double longest = share_out(wishes, total, units);
            if (longest == INFINITY || longest > best * WORTH_WHILE)
                continue;
            best = longest;
            if (!best_shares)
                add_shares(&planner->machine, tsr__shares_of(units, n, &fits));
            best_shares = tsr__shares_of(units, n, &fits);
        }
    add_shares(&planner->machine, best_shares);
}

// False: a device does not say how much it has.
static bool fill_wishes(const struct planner *planner, enum ability ability, struct wishes *out)
{
    for (int64_t device = 0; device < out->n; device++) {
        double memory = ability_of(planner, ABILITY_MEMORY, device);
        out->able[device] = ability_of(planner, ability, device);
        out->room[device] = INFINITY;
        if (ability == ABILITY_ROOMY_SPEED && memory > 0)
            out->room[device] = FOR_WEIGHTS * memory / (planner->machine.kept + 1);
        if (out->able[device] <= 0)
            return false;
    }
    return true;
}

// Devices that are alike have none, and so have more of them than units.
bool tsr__planner_shares(struct planner *planner)
{
    struct planner_machine *machine = &planner->machine;
    int64_t n = machine->n;
    machine->n_shares = 0;
    if (machine->one_way)
        add_shares(machine, machine->only);
    if (n < 2 || 2 * n > TILE_MAX_UNITS || tsr__planner_alike(planner) || machine->one_way)
        return true;
    if (!tsr__planner_speed_up(planner))
        return false;
    struct wishes wishes = {.n = n};
    wishes.able = ARENA_ARRAY(&planner->arena, double, (size_t)n);
    wishes.room = ARENA_ARRAY(&planner->arena, double, (size_t)n);
    int64_t *units = ARENA_ARRAY(&planner->arena, int64_t, (size_t)n);
    if (!wishes.able || !wishes.room || !units)
        return false;
    for (int ability = 0; ability < ABILITY_COUNT; ability++)
        if (fill_wishes(planner, (enum ability)ability, &wishes))
            share_by(planner, &wishes, units);
    return true;
}
