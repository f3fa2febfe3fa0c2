// SPDX-License-Identifier: Apache-2.0
// fits.c - checks that an operator returns exactly the shards of a layout, and finds in which
// shares it divides an axis.
//
// A move of an axis (moves.c) is less exact than an operator: members are in the order of their
// numbers, and parts of uneven or strided dimensions are lists of intervals. So the result of the
// operator is compared with the wanted shards, dimension by dimension.
//
// A list must be right for all sizes that the tensor may have. An open dimension (its size differs
// from run to run) gets an example size that all numbers of parts divide. Its shards end at
// fractions of the dimension, rounded down to units. So shards that are equal, adjacent or complete
// for the example are so for every size, if both layouts use the same unit. One thing differs: the
// part of a part is rounded twice. So an operator that divides shards of an open dimension needs
// the full size at run time.
//
// Examples:
//     [8,6] {2,1} -> {1,2} on ranks 0 and 1: AllToAll(axis 0, split_axis 1) returns on rank 0
//         columns 0..2 of both shards, stacked: [8,3], its shard of {1,2}. It fits.
//     [n,6] the same, n open: the example is n = 128. Rank 0 has rows [0, n/2), rank 1 the rest;
//         stacked they are all rows, for every n. Columns are divided as before. It fits.
//     [n,6] {2,2:0,1,2,3} -> {4,1:0,1,2,3}: rank 0 divides its n/2 rows, and n/4 rows are not half
//         of n/2 for every n. AllToAll(axis 1, split_axis 0) with n as an input; if the ranks do
//         not know n, it does not fit.
#include "sharding/reshard/reshard.h"

#define NOTED_RANK 14 // highest rank of a tensor that a broadcast or message can describe

// ---- parts of one dimension ---------------------------------------------------------------------

static const struct dim_part *part_at(const struct side *side, size_t device, int axis)
{
    return &side->parts[axis][side_part(side, device, axis)];
}

// True if the part before the step on device s and the part after it on device t are equal.
static bool same_part(const struct pairing *pairing, size_t s, size_t t, int axis)
{
    int64_t x = side_part(&pairing->from, s, axis), y = side_part(&pairing->to, t, axis);
    int64_t common = pairing->common[axis][x * pairing->to.n_parts[axis] + y];
    return common == pairing->from.parts[axis][x].size && common == pairing->to.parts[axis][y].size;
}

// True if the parts are equal along all axes except but_axis and or_axis (-1: no exception).
static bool same_parts(const struct pairing *pairing, size_t s, size_t t, int but_axis, int or_axis)
{
    for (int axis = 0; axis < pairing->rank; axis++)
        if (axis != but_axis && axis != or_axis && !same_part(pairing, s, t, axis))
            return false;
    return true;
}

// True if the elements at positions [from, to) of `a` are exactly the elements of `b`. Example: if
// `a` has [0,4) and [8,12), its positions [2,6) are elements [2,4) and [8,10) of the full tensor.
static bool is_subrange(const struct dim_part *a, const struct dim_part *b, int64_t from,
                        int64_t to)
{
    int64_t before = 0, k = 0, at = 0;
    if (!a->at || !b->at)
        return false; // too many intervals
    for (int64_t i = 0; i < a->n; i++) {
        int64_t start = a->at[i].start, stop = a->at[i].stop;
        if (from > before)
            start += from - before;
        before += a->at[i].stop - a->at[i].start;
        if (before > to)
            stop -= before - to;
        while (start < stop) { // `b` may have adjacent intervals
            if (k == b->n || b->at[k].start + at != start)
                return false;
            int64_t left = b->at[k].stop - start;
            int64_t n = int64_min(left, stop - start);
            start += n;
            at += n;
            if (n == left)
                k++, at = 0;
        }
    }
    return k == b->n && to - from == b->size;
}

// True if every device of the group has a shard on that side.
static bool all_have(const struct pairing *pairing, const struct side *side,
                     const struct device_group *group)
{
    for (size_t i = 0; i < group->n; i++)
        if (!side_count(side, pairing_device(pairing, group->devices[i])))
            return false;
    return true;
}

// True if the members' parts before the step, concatenated along the axis, are the part of device t
// after it.
static bool is_joined(const struct pairing *pairing, const struct device_group *group, int axis,
                      size_t t)
{
    const struct dim_part *whole = part_at(&pairing->to, t, axis);
    int64_t at = 0;
    for (size_t i = 0; i < group->n; i++) {
        size_t s = pairing_device(pairing, group->devices[i]);
        const struct dim_part *part = part_at(&pairing->from, s, axis);
        if (!is_subrange(whole, part, at, at + part->size))
            return false;
        at += part->size;
    }
    return at == whole->size;
}

// True if the members' parts, concatenated along the axis, are what each member wants along it.
static bool joins(const struct pairing *pairing, const struct device_group *group, int axis)
{
    int64_t seen = -1; // members that want the same part are compared once
    for (size_t i = 0; i < group->n; i++) {
        size_t t = pairing_device(pairing, group->devices[i]);
        int64_t part = side_part(&pairing->to, t, axis);
        if (part != seen && !is_joined(pairing, group, axis, t))
            return false;
        seen = part;
    }
    return true;
}

// ---- what the operators return ------------------------------------------------------------------

// True if an AllGather returns the wanted shards: each member gets the shards of all members, in
// rank order along one axis.
static bool gathers(const struct pairing *pairing, const struct device_group *group, int axis)
{
    for (size_t i = 0; i < group->n; i++) {
        size_t t = pairing_device(pairing, group->devices[i]);
        if (!same_parts(pairing, t, t, axis, axis))
            return false;
    }
    return joins(pairing, group, axis);
}

// True if all members have the same elements (except along `but_axis`), and dividing them along
// `axis` gives each member its wanted shard.
static bool divides(const struct pairing *pairing, const struct device_group *group, int axis,
                    int but_axis, const struct tile_division *division)
{
    size_t first = pairing_device(pairing, group->devices[0]);
    for (size_t i = 0; i < group->n; i++) {
        size_t t = pairing_device(pairing, group->devices[i]);
        const struct dim_part *held = part_at(&pairing->from, t, axis);
        for (int d = 0; d < pairing->rank; d++)
            if (d != but_axis &&
                side_part(&pairing->from, t, d) != side_part(&pairing->from, first, d))
                return false;
        int64_t length = division->part.of ? pairing->shape[axis] : held->size;
        int64_t start = tsr__division_start(division, length, (int64_t)i);
        int64_t stop = tsr__division_start(division, length, (int64_t)i + 1);
        if (!same_parts(pairing, t, t, axis, but_axis) ||
            !is_subrange(held, part_at(&pairing->to, t, axis), start, stop))
            return false;
    }
    return true;
}

// Who gets the result: only the root (Reduce), or all members (Broadcast).
enum receivers { ROOT_RECEIVES, ALL_RECEIVE };
// True if all receivers want the shard that the root has now, and no other member wants a shard.
static bool root_copy_fits(const struct pairing *pairing, const struct device_group *group,
                           int64_t root, enum receivers receivers)
{
    size_t s = pairing_device(pairing, root);
    if (!side_count(&pairing->from, s))
        return false;
    for (size_t i = 0; i < group->n; i++) {
        size_t t = pairing_device(pairing, group->devices[i]);
        bool gets = receivers == ALL_RECEIVE || t == s, got = side_count(&pairing->to, t) > 0;
        if (gets != got || (gets && !same_parts(pairing, s, t, -1, -1)))
            return false;
    }
    return true;
}

// True if the receiver of the pair, the member that is not the root, wants exactly the shard that
// the root has. The sender must not keep one.
static bool message_fits(const struct pairing *pairing, const struct device_group *pair,
                         int64_t root)
{
    size_t s = pairing_device(pairing, root),
           t = pairing_device(pairing, pair->devices[pair->devices[0] == root]);
    return side_count(&pairing->from, s) && !side_count(&pairing->to, s) &&
           side_count(&pairing->to, t) && same_parts(pairing, s, t, -1, -1);
}

// True if the operator returns the wanted shards to all members of the group.
static bool fits_group(const struct pairing *pairing, const struct reshard_operator *operator,
                       size_t g)
{
    const struct device_group *group = &operator->groups[g];
    struct tile_division division = {.unit = operator->unit, .n = (int64_t)group->n};
    if (operator->shares)
        division.shares = operator->shares[g];
    if (operator->parts)
        division.part = operator->parts[g];
    bool complete =
        all_have(pairing, &pairing->from, group) && all_have(pairing, &pairing->to, group);
    switch (operator->op) {
    case COMM_ALL_GATHER:
        return complete && gathers(pairing, group, operator->axis);
    case COMM_REDUCE_SCATTER:
        return complete && divides(pairing, group, operator->axis, operator->axis, &division);
    case COMM_ALL_TO_ALL:
        return complete && joins(pairing, group, operator->axis) &&
               divides(pairing, group, operator->split_axis, operator->axis, &division);
    case COMM_REDUCE:
        return root_copy_fits(pairing, group, operator->roots[g], ROOT_RECEIVES);
    case COMM_BROADCAST:
        return root_copy_fits(pairing, group, operator->roots[g], ALL_RECEIVE);
    case COMM_SEND:
        return message_fits(pairing, group, operator->roots[g]);
    default:
        return false;
    }
}

static bool fits(const struct pairing *pairing, const struct reshard_operator *operator)
{
    for (size_t group = 0; group < operator->n_groups; group++)
        if (!fits_group(pairing, operator, group))
            return false;
    return operator->n_groups> 0;
}

// ---- how an axis is divided ---------------------------------------------------------------------

// How an axis is divided among the members of a group.
enum division_kind {
    DIVISION_EQUAL,
    DIVISION_OF_LAYOUT,   // by the shares of the layout, for any size
    DIVISION_IN_ELEMENTS, // by the sizes of the shards, for known sizes only
};

// Returns the number of adjacent elements that the sharding of the axis never separates. Example:
// 16 for {4/2*16}.
static int64_t unit_of(const struct tile_dim *dim)
{
    int64_t unit = 1;
    int cut = dim->n;
    for (int factor = 0; factor < dim->n; factor++)
        if (dim->factors[factor].cuts > 1)
            cut = factor;
    for (int factor = cut + 1; factor < dim->n; factor++)
        if (!mul_ok(unit, dim->factors[factor].size, &unit) || unit < 1)
            return 1;
    return unit;
}

// Returns the device's share of the axis in the wanted layout, in units or elements as `kind` says;
// -1: unknown.
static int64_t share_of(const struct lowering *lower, int64_t device, int axis,
                        enum division_kind kind)
{
    const struct tile_layout *to = lower->pairing.to.layout;
    int64_t coords[TILE_MAX_FACTORS];
    if (kind == DIVISION_OF_LAYOUT) {
        if (!tsr__device_coords(to, device, axis, coords))
            return -1;
        struct local_size size = tsr__local_size(&to->dims[axis], coords);
        return size.part.stop - size.part.first;
    }
    size_t t = pairing_device(&lower->pairing, device);
    if (is_open(lower, axis) || !side_count(&lower->pairing.to, t))
        return -1;
    return part_at(&lower->pairing.to, t, axis)->size;
}

// Returns the shares of all members, one array per group. Returns NULL if they do not divide the
// axis or if out of memory.
static const int64_t **shares_of(const struct lowering *lower,
                                 const struct reshard_operator *operator, int axis,
                                 enum division_kind kind)
{
    const int64_t **out = ARENA_ARRAY(lower->arena, const int64_t *, operator->n_groups + 1);
    if (!out)
        return NULL;
    for (size_t g = 0; g < operator->n_groups; g++) {
        const struct device_group *group = &operator->groups[g];
        int64_t *shares = ARENA_ARRAY(lower->arena, int64_t, group->n + 1);
        if (!shares)
            return NULL;
        for (size_t i = 0; i < group->n; i++)
            shares[i] = share_of(lower, group->devices[i], axis, kind);
        if (!tsr__division_holds(shares, group->n, (int64_t)group->n))
            return NULL;
        out[g] = shares;
    }
    return out;
}

// Finds which part of an open axis the members of each group have, if they have shards of it. False
// if they cannot divide it: ranks do not know the full size, the parts are strided, or the wanted
// layout has another unit.
static bool find_parts(const struct lowering *lower, struct reshard_operator *operator, int axis)
{
    const struct tile_layout *from = lower->pairing.from.layout;
    operator->parts = NULL;
    if (!is_open(lower, axis) || !tsr__dim_is_sharded(&from->dims[axis]))
        return true;
    struct tile_units *parts = ARENA_ARRAY(lower->arena, struct tile_units, operator->n_groups + 1);
    for (size_t g = 0; parts && g < operator->n_groups; g++) {
        int64_t coords[TILE_MAX_FACTORS];
        if (!tsr__device_coords(from, operator->groups[g].devices[0], axis, coords))
            return false;
        struct local_size size = tsr__local_size(&from->dims[axis], coords);
        if (size.scale != size.unit || size.unit != unit_of(&lower->pairing.to.layout->dims[axis]))
            return false;
        parts[g] = size.part;
    }
    operator->parts = parts;
    return parts && lower->tensor->shape[axis] == SIZE_OPEN;
}

// Finds shares and a unit with which the operator returns the wanted shards. Returns false if there
// are none. An open axis is divided only in the unit of the wanted layout: any other division is
// right for some sizes only.
static bool find_division(const struct lowering *lower, struct reshard_operator *operator, int axis,
                          enum division_kind kind)
{
    const struct pairing *pairing = &lower->pairing;
    int64_t unit = unit_of(&pairing->to.layout->dims[axis]);
    if (!find_parts(lower, operator, axis))
        return false;
    operator->shares = NULL;
    if (kind != DIVISION_EQUAL) {
        operator->shares = shares_of(lower, operator, axis, kind);
        if (!operator->shares)
            return false;
    }
    operator->unit = 1;
    if ((unit == 1 || !is_open(lower, axis)) && fits(pairing, operator))
        return true;
    operator->unit = unit;
    return unit > 1 && fits(pairing, operator);
}

// Finds the axis along which a ReduceScatter gives the wanted shards. Tries equal shares first.
// Returns false if there is none.
static bool find_scatter(const struct lowering *lower, struct reshard_operator *operator)
{
    for (int kind = DIVISION_EQUAL; kind <= DIVISION_IN_ELEMENTS; kind++)
        for (operator->axis = 0; operator->axis<lower->tensor->rank; operator->axis++)
            if (find_division(lower, operator, operator->axis, (enum division_kind)kind))
                return true;
    return false;
}

// Marks the devices of the groups, by index in the pairing. Returns NULL if a device is in two
// groups or if out of memory.
static bool *mark_members(const struct lowering *lower, const struct reshard_operator *operator)
{
    bool *marked = ARENA_ARRAY(lower->scratch, bool, lower->pairing.n_devices + 1);
    for (size_t g = 0; marked && g < operator->n_groups; g++)
        for (size_t i = 0; i < operator->groups[g].n; i++) {
            size_t t = pairing_device(&lower->pairing, operator->groups[g].devices[i]);
            if (t == SIZE_MAX || marked[t])
                return NULL;
            marked[t] = true;
        }
    return marked;
}

// True if every device that owns a shard of the result is in one group.
static bool covers_all_owners(const struct lowering *lower, const struct reshard_operator *operator)
{
    const bool *marked = mark_members(lower, operator);
    for (size_t t = 0; marked && t < lower->pairing.n_devices; t++)
        if (side_count(&lower->pairing.to, t) && !marked[t])
            return false;
    return marked != NULL;
}

bool tsr__operator_fits(const struct lowering *lower, struct reshard_operator *operator)
{
    const struct tile_layout *from = lower->pairing.from.layout;
    bool fit = false, same = false, small = lower->tensor->rank <= NOTED_RANK;
    switch (operator->op) {
    case RESHARD_SLICE:
        return tsr__can_convert_locally(lower->scratch, lower->tensor, from, operator->layout,
                                        &same) &&
               !same;
    case COMM_ALL_GATHER:
    case COMM_REDUCE:
        fit = fits(&lower->pairing, operator);
        break;
    case COMM_ALL_TO_ALL:
        fit = find_division(lower, operator, operator->split_axis, DIVISION_EQUAL);
        break;
    case COMM_REDUCE_SCATTER:
        fit = find_scatter(lower, operator);
        break;
    case COMM_ALL_REDUCE:
        fit = true;
        break;
    case COMM_BROADCAST:
    case COMM_SEND:
        fit = small && fits(&lower->pairing, operator);
        break;
    default:
        break;
    }
    return fit && covers_all_owners(lower, operator);
}
