// SPDX-License-Identifier: Apache-2.0
// placement.c - computes the layouts and reductions that follow from the placement of a node.
//
// The layout of each tensor is the projection of the devices' coordinates. Devices that differ only
// in reduced factors combine their partial results.
//
// Example, in the notation of notation.c:
//     MatMul X [8,6] x W [6,4] -> Y [8,4], factors m = 8, k = 6, n = 4.
//     m and k are in 2 shards on devices 0 to 3:
//     device      0      1      2      3
//     (m, k)    (0,0)  (0,1)  (1,0)  (1,1)
//     X is the projection onto (m, k): {2,2:0,1,2,3}      W onto (k, n): {2,1:(0,2),(1,3)}
//     Y onto (m, n): {2,1:(0,1),(2,3)}, and k is reduced: 0 and 1 add their partial sums,
//     and so do 2 and 3
#include "sharding/layouts/internal.h"

#include <stdlib.h>

// Returns the number of the shard of `layout` that belongs to the device with index `device`.
// `moves` translates coordinates of the rule's factors to those of the layout's factors.
static int64_t shard_of(const struct placement *placement, const struct rule_tensor *tensor,
                        const struct tile_layout *layout, struct cut_move *const *moves,
                        size_t device)
{
    const int64_t *row = &placement->coords[device * (size_t)placement->rule->n_factors];
    int64_t shard = 0;
    for (int loop = 0; loop < layout->n_loops; loop++) {
        int axis = layout->loops[loop].dim, factor = layout->loops[loop].factor;
        int64_t part = 0;
        for (int k = 0; k < tensor->dims[axis].n; k++)
            if (moves[axis][k].to == factor)
                part += row[tensor->dims[axis].factors[k]] * moves[axis][k].stride;
        shard = shard * layout->dims[axis].factors[factor].cuts + part;
    }
    return shard;
}

// Computes one dimension of a tensor's layout from the factors of the rule that make it up. A
// dimension with windows has another size than its factor, so it gets no size. Returns false if out
// of memory.
static bool project_dim(struct arena *arena, const struct placement *placement,
                        const struct rule_dim *from, struct tile_dim *to, struct cut_move **moves)
{
    struct cut_part parts[RULE_MAX_FACTORS];
    size_t n = (size_t)from->n;
    to->factors = ARENA_ARRAY(arena, struct tile_factor, 2 * n + 1);
    *moves = ARENA_ARRAY(arena, struct cut_move, n + 1);
    if (!to->factors || !*moves)
        return false;
    for (int i = 0; i < from->n; i++) {
        int factor = from->factors[i];
        int64_t size = from->window ? 0 : placement->rule->factors[factor].size.value;
        parts[i] = (struct cut_part){int64_max(size, 0), placement->cuts[factor],
                                     placement_shares(placement, factor)};
    }
    to->n = tsr__cut_canonical(parts, from->n, to->factors, *moves);
    return true;
}

// Returns the layout that a placement gives to a tensor, in canonical form. A tensor that the node
// reads in host memory is replicated on all devices of the placement.
struct tile_layout *tsr__placement_project(struct arena *arena, const struct placement *placement,
                                           const struct rule_tensor *tensor)
{
    struct tile_dim *dims = ARENA_ARRAY(arena, struct tile_dim, (size_t)tensor->rank + 1);
    struct cut_move **moves = ARENA_ARRAY(arena, struct cut_move *, (size_t)tensor->rank + 1);
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, placement->n_devices + 1);
    if (!dims || !moves || !pairs)
        return NULL;
    for (int axis = 0; axis < tensor->rank; axis++)
        if (!tensor->host &&
            !project_dim(arena, placement, &tensor->dims[axis], &dims[axis], &moves[axis]))
            return NULL;
    struct tile_layout *layout = tsr__layout_cut(arena, tensor->rank, dims);
    if (!layout)
        return NULL;
    for (size_t i = 0; i < placement->n_devices; i++)
        pairs[i] = (struct tile_owner){shard_of(placement, tensor, layout, moves, i),
                                       placement->devices[i]};
    return tsr__layout_own(arena, layout, pairs, placement->n_devices) ? layout : NULL;
}

// ---- devices with several parts -----------------------------------------------------------------
//
//     Example: Relu of {4,1:0,1,0,1} has devices 0 0 1 1 with parts 0 2 1 3
//     turn 0: devices 0 1 with parts 0 1      turn 1: devices 0 1 with parts 2 3

bool tsr__placement_has_turns(const struct placement *placement)
{
    for (size_t i = 1; i < placement->n_devices; i++)
        if (placement->devices[i] == placement->devices[i - 1])
            return true;
    return false;
}

bool tsr__placement_turn(struct arena *arena, const struct placement *placement, size_t turn,
                         struct placement *out)
{
    size_t n = placement->n_devices, factors = (size_t)placement->rule->n_factors, nth = 0;
    *out = *placement;
    out->n_devices = 0;
    out->devices = ARENA_ARRAY(arena, int64_t, n + 1);
    out->coords = ARENA_ARRAY(arena, int64_t, n * factors + 1);
    if (!out->devices || !out->coords)
        return false;
    for (size_t i = 0; i < n; i++) {
        bool again = i > 0 && placement->devices[i] == placement->devices[i - 1];
        nth = again ? nth + 1 : 0;
        if (nth != turn)
            continue;
        memcpy(&out->coords[out->n_devices * factors], &placement->coords[i * factors],
               factors * sizeof(*out->coords));
        out->devices[out->n_devices++] = placement->devices[i];
    }
    return true;
}

// ---- groups ------------------------------------------------------------------------------------

// A device that contributes to a sum. Devices with the same `kept` and `reduced` cells are replicas
// of each other, numbered from 0.
struct member {
    // numbers of the cell over the factors that are not reduced, and over the reduced ones
    int64_t kept, reduced;
    size_t replica;
    int64_t device;
};

static struct member member_of(const struct placement *placement, size_t device)
{
    struct member member = {.device = placement->devices[device]};
    for (int factor = 0; factor < placement->rule->n_factors; factor++) {
        int64_t part =
            placement->coords[device * (size_t)placement->rule->n_factors + (size_t)factor];
        if (placement->rule->factors[factor].kind == FACTOR_RED)
            member.reduced = member.reduced * placement->cuts[factor] + part;
        else
            member.kept = member.kept * placement->cuts[factor] + part;
    }
    return member;
}

static int by_cell(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->kept != y->kept)
        return int64_order(x->kept, y->kept);
    if (x->reduced != y->reduced)
        return int64_order(x->reduced, y->reduced);
    return int64_order(x->device, y->device);
}

static int by_group(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->kept != y->kept)
        return int64_order(x->kept, y->kept);
    if (x->replica != y->replica)
        return int64_order(x->replica, y->replica);
    return int64_order(x->reduced, y->reduced);
}

// Numbers the replicas of each cell from 0, then sorts by kept cell, replica and reduced cell. So
// members of one group are adjacent.
static void sort_members(struct member *member, size_t n)
{
    qsort(member, n, sizeof(*member), by_cell);
    for (size_t i = 1; i < n; i++)
        if (member[i].kept == member[i - 1].kept && member[i].reduced == member[i - 1].reduced)
            member[i].replica = member[i - 1].replica + 1;
    qsort(member, n, sizeof(*member), by_group);
}

// True if a device is in the group. Only a device with several parts can be: if none has (`turns`
// is false), nothing is searched.
static bool has_member(const struct device_group *group, int64_t device, bool turns)
{
    for (size_t i = 0; turns && i < group->n; i++)
        if (group->devices[i] == device)
            return true;
    return false;
}

// Returns the groups of devices that have parts of the same sum. Example: with m and k in 2 shards
// on devices 0..3, sorting by kept cell (m) and then by part of the sum (k) gives 0 1 2 3, and the
// groups {0,1}, {2,3}. All groups are complete, because all parts of a sum are on the same number
// of devices (tsr__solve_covers, tsr__solve_even). A device with several parts is in its group
// once.
bool tsr__placement_groups(struct arena *arena, const struct placement *placement,
                           struct device_group **out, size_t *n_out, enum combine *combine)
{
    int64_t parts = 1;
    size_t n = placement->n_devices;
    for (int factor = 0; factor < placement->rule->n_factors; factor++)
        if (placement->rule->factors[factor].kind == FACTOR_RED && placement->cuts[factor] > 1) {
            parts *= placement->cuts[factor];
            *combine = placement->rule->factors[factor].combine;
        }
    *n_out = 0;
    if (parts == 1)
        return true;
    struct member *member = ARENA_ARRAY(arena, struct member, n + 1);
    struct device_group *groups = ARENA_ARRAY(arena, struct device_group, n + 1);
    int64_t *devices = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!member || !groups || !devices)
        return false;
    for (size_t i = 0; i < n; i++)
        member[i] = member_of(placement, i);
    sort_members(member, n);
    bool turns = tsr__placement_has_turns(placement);
    for (size_t i = 0, at = 0; i < n; i++) {
        if (i == 0 || member[i].kept != member[i - 1].kept ||
            member[i].replica != member[i - 1].replica)
            groups[(*n_out)++] = (struct device_group){&devices[at], 0};
        struct device_group *group = &groups[*n_out - 1];
        if (has_member(group, member[i].device, turns))
            continue;
        devices[at++] = member[i].device;
        group->n++;
    }
    *out = groups;
    return true;
}
