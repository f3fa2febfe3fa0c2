// SPDX-License-Identifier: Apache-2.0
// unequal_shares.c - finds proportions in which a dimension is sharded over unlike devices. They
// have few units, so that heads, channels and rows are divisible. All nodes use the same
// proportions, so that layouts agree.
//
//     Examples: with speeds 3 and 1, two devices get 3 and 1 of 4 units and finish at the same
//     time. With speeds 312 and 91 they take 1.1 times the ideal time with 3 and 1 of 4 units, and
//     1.005 times with 7 and 2 of 9. With memories of 13 and 7 GiB they get 5 and 3 of 8 units.
//     Weights of 15 GiB on devices with speeds 3, 1, 1 and memories 8, 16, 32 GiB: by speed, the
//     first would get 9 GiB. It gets 8 of 16 units, which fit, and the others get 4 each.
#include "plan/candidates/strategies.h"

#include <math.h>

#define FEW_UNITS   16   // most units for up to four devices; for more devices 4 per device
#define FOR_WEIGHTS 0.95 // share of the memory for weights; the rest is for activations
#define WORTH_WHILE 0.97 // a new proportion must reduce the time to this fraction

// Properties that determine the shares, in the order in which they are tried. ROOMY_SPEED is the
// speed for this model, limited by the memory of each device.
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

// The chosen property of each device, and the largest share that each device may get.
struct wishes {
    double *able, *limit;
    int64_t n;
};

// Gives every device one unit, then assigns units one by one to the device that would then finish
// first, among those with memory left. No other division finishes earlier. Returns the time of the
// last device relative to the ideal; INFINITY: the shares exceed the limits.
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
            bool has_room = (double)(units[i] + 1) <= wishes->limit[i] * (double)total;
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
        if ((double)units[i] > wishes->limit[i] * (double)total)
            return INFINITY;
        longest = fmax(longest, (double)units[i] / (double)total / (wishes->able[i] / sum));
    }
    return longest;
}

// Adds a proportion, if it is new and the list has space.
static void add_shares(struct planner_machine *machine, tile_shares shares)
{
    for (int i = 0; i < machine->n_shares; i++)
        if (machine->shares[i] == shares)
            return;
    if (shares && machine->n_shares < PLAN_MAX_SHARES)
        machine->shares[machine->n_shares++] = shares;
}

// Adds up to two proportions: the first that is better than equal parts, and the best. Powers of 2
// are tried first as number of units, because they divide most dimensions. A proportion is better
// if it reduces the best time so far to the fraction WORTH_WHILE.
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

// Reads the property of all devices. False: it is unknown for a device.
static bool fill_wishes(const struct planner *planner, enum ability ability, struct wishes *out)
{
    for (int64_t device = 0; device < out->n; device++) {
        double memory = ability_of(planner, ABILITY_MEMORY, device);
        out->able[device] = ability_of(planner, ability, device);
        out->limit[device] = INFINITY;
        if (ability == ABILITY_ROOMY_SPEED && memory > 0)
            out->limit[device] = FOR_WEIGHTS * memory / (planner->machine.kept + 1);
        if (out->able[device] <= 0)
            return false;
    }
    return true;
}

// Fills machine.shares: only the given proportion with machine.fixed_shares, otherwise those that
// suit unlike devices. There are none if all devices are alike or there are too many for two units
// each. Returns false if out of memory.
bool tsr__planner_shares(struct planner *planner)
{
    struct planner_machine *machine = &planner->machine;
    int64_t n = machine->n;
    machine->n_shares = 0;
    if (machine->fixed_shares)
        add_shares(machine, machine->only_shares);
    if (n < 2 || 2 * n > TILE_MAX_UNITS || tsr__planner_alike(planner) || machine->fixed_shares)
        return true;
    if (!tsr__planner_speed_up(planner))
        return false;
    struct wishes wishes = {.n = n};
    wishes.able = ARENA_ARRAY(&planner->arena, double, (size_t)n);
    wishes.limit = ARENA_ARRAY(&planner->arena, double, (size_t)n);
    int64_t *units = ARENA_ARRAY(&planner->arena, int64_t, (size_t)n);
    if (!wishes.able || !wishes.limit || !units)
        return false;
    for (int ability = 0; ability < ABILITY_COUNT; ability++)
        if (fill_wishes(planner, (enum ability)ability, &wishes))
            share_by(planner, &wishes, units);
    return true;
}
