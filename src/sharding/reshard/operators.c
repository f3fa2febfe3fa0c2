// SPDX-License-Identifier: Apache-2.0
// operators.c - decides which operators turn one layout into another. `partition` writes exactly
// this list, and `plan` predicts its time. It is the first of these that is possible:
//     1. nothing, or a slice, if every device stores all elements that it needs
//     2. one AllGather along a sharded factor
//     3. the operators of the cheapest path (reshard.c)
//     4. gathers along all sharded factors and a slice, if ranks cannot compute the full shape,
//        which a Reshard needs
//     5. Reshard, from any layout to any other
//
// A path names only the pattern of each step, and an operator is less general than a pattern. So
// the result of the operator is compared with the wanted shards, dimension by dimension. If a step
// has no operator, the full path is rejected.
//
// A list must be right for all sizes that the tensor may have. An open dimension (its size differs
// from run to run) gets an example size that all numbers of parts divide. Its shards end at
// fractions of the dimension, rounded down to units. So shards that are equal, adjacent or complete
// for the example are so for every size, if both layouts use the same unit. One thing differs: the
// part of a part is rounded twice. So an operator that divides shards of an open dimension needs
// the full size at run time.
//
// Examples:
//     [8,6] {2,1} -> {1,2} on ranks 0 and 1: the path is an all-to-all.
//         AllToAll(axis 0, split_axis 1) returns on rank 0 columns 0..2 of both shards, stacked:
//         [8,3], its shard of {1,2}. Accepted.
//     [n,6] the same, n open: the example is n = 128. Rank 0 has rows [0, n/2), rank 1 the rest;
//         stacked they are all rows, for every n. Columns are divided as before. Accepted.
//     [n,6] {2,2:0,1,2,3} -> {4,1:0,1,2,3}: rank 0 divides its n/2 rows, and n/4 rows are not half
//         of n/2 for every n. AllToAll(axis 1, split_axis 0) with n as an input, or Reshard if the
//         ranks do not know n.
//     [8,6] {1,1:0} -> {2,1:1,2}: the path is a scatter, which has no operator: Reshard.
//     partial sums on ranks 0 and 1, [8,6] unsharded -> {2,1}: ReduceScatter along axis 0, unit 1.
//     the same sums -> {4,1:0,0,0,1}: ReduceScatter along axis 0 with shares 3 and 1: 6 rows and 2.
#include "sharding/reshard/reshard.h"

#include <stdlib.h>

#define NOTED_RANK   14 // highest rank of a tensor that a broadcast or message can describe
#define MAX_PIECES   ((int64_t)1 << 12) // limit of shards; layouts with more use Reshard
#define LEAST_SIZE   128                // example sizes are at least this large
#define MOST_EXAMPLE ((int64_t)1 << 32)

// The search for operators.
struct lowering {
    struct arena *arena;   // for results
    struct arena *scratch; // for one step
    const struct reshard_tensor *tensor;
    int64_t shape[TILE_MAX_RANK]; // with example sizes
    struct pairing pairing;       // layouts before and after the current step
};

// ---- parts of one dimension ---------------------------------------------------------------------

// Returns the index of the only part of the dimension that the device has. Call it only for devices
// with a shard.
static int64_t part_index(const struct side *side, size_t device, int axis)
{
    return side->part[side->shards[side->first[device]] * side->layout->rank + axis];
}

static const struct dim_part *part_at(const struct side *side, size_t device, int axis)
{
    return &side->parts[axis][part_index(side, device, axis)];
}

// True if the part before the step on device s and the part after it on device t are equal.
static bool same_part(const struct pairing *pairing, size_t s, size_t t, int axis)
{
    int64_t x = part_index(&pairing->from, s, axis), y = part_index(&pairing->to, t, axis);
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
        int64_t part = part_index(&pairing->to, t, axis);
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
                part_index(&pairing->from, t, d) != part_index(&pairing->from, first, d))
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

static bool is_open(const struct lowering *lower, int axis)
{
    return lower->tensor->shape[axis] < 0;
}

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

static bool find_all_to_all(const struct lowering *lower, struct reshard_operator *operator,
                            int axis, int split)
{
    if (axis < 0 || split < 0)
        return false;
    operator->axis = axis;
    operator->split_axis = split;
    return find_division(lower, operator, split, DIVISION_EQUAL);
}

// ---- the operator of a step ---------------------------------------------------------------------

// Copies n groups with sorted members. The first device of each group becomes its root. Returns
// false if out of memory.
static bool copy_groups(struct arena *arena, const struct device_group *from, size_t n,
                        struct reshard_operator *out)
{
    out->n_groups = n;
    out->groups = ARENA_ARRAY(arena, struct device_group, n + 1);
    out->roots = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!out->groups || !out->roots)
        return false;
    for (size_t group = 0; group < n; group++) {
        out->roots[group] = from[group].devices[0];
        if (!tsr__group_sorted(arena, &from[group], &out->groups[group]))
            return false;
    }
    return true;
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

// Turns the moves of a permutation into messages. Returns false unless each message moves a full
// shard, no device is in two messages, and no sender owns a shard of the result.
static bool find_messages(const struct lowering *lower, const struct reshard_step *from,
                          struct reshard_operator *operator)
{
    struct device_group *pairs = ARENA_ARRAY(lower->arena, struct device_group, from->n_moves + 1);
    int64_t *ends = ARENA_ARRAY(lower->arena, int64_t, 2 * from->n_moves + 1);
    for (size_t i = 0; pairs && ends && i < from->n_moves; i++) {
        ends[2 * i] = from->moves[i].from_device;
        ends[2 * i + 1] = from->moves[i].to_device;
        pairs[i] = (struct device_group){&ends[2 * i], 2};
    }
    return !lower->arena->failed && copy_groups(lower->arena, pairs, from->n_moves, operator) &&
           fits(&lower->pairing, operator);
}

// Finds the operator of one resharding step. Returns false if there is none, as for scatter, gather
// to one device, and exchange.
static bool find_operator(const struct lowering *lower, const struct tile_layout *from,
                          const struct reshard_step *step, struct reshard_operator *out)
{
    bool ok = false, small = lower->tensor->rank <= NOTED_RANK, same = false;
    *out = (struct reshard_operator){.op = step->op, .layout = step->layout, .unit = 1};
    if (step->op == RESHARD_SLICE || step->op == RESHARD_NOTHING) {
        ok = tsr__can_convert_locally(lower->scratch, lower->tensor, from, step->layout, &same);
        out->op = same ? RESHARD_NOTHING : RESHARD_SLICE;
        return ok;
    }
    if (step->op != RESHARD_PERMUTE &&
        !copy_groups(lower->arena, step->groups, step->n_groups, out))
        return false;
    switch (step->op) {
    case COMM_ALL_GATHER:
        out->axis = step->axis;
        ok = step->axis >= 0 && fits(&lower->pairing, out);
        break;
    case COMM_ALL_TO_ALL:
        ok = find_all_to_all(lower, out, step->axis, step->to_axis) ||
             find_all_to_all(lower, out, step->to_axis, step->axis);
        break;
    case COMM_REDUCE_SCATTER:
        ok = find_scatter(lower, out);
        break;
    case COMM_ALL_REDUCE:
        ok = tsr__layout_same(from, step->layout);
        break;
    case COMM_REDUCE:
        ok = fits(&lower->pairing, out);
        break;
    case COMM_BROADCAST:
        ok = small && fits(&lower->pairing, out);
        break;
    case RESHARD_PERMUTE:
        out->op = COMM_SEND;
        ok = small && find_messages(lower, step, out);
        break;
    default:
        break;
    }
    return ok && covers_all_owners(lower, out);
}

// ---- example sizes ------------------------------------------------------------------------------

// Returns the size of a dimension if all its factors have sizes, else 0.
static int64_t declared_size(const struct tile_dim *dim)
{
    int64_t size = 1;
    if (dim->n == 0)
        return 0;
    for (int factor = 0; factor < dim->n; factor++)
        if (!mul_ok(size, dim->factors[factor].size, &size))
            return 0;
    return size;
}

static int64_t least_common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a > MOST_EXAMPLE / b ? MOST_EXAMPLE : a / x * b;
}

// If only the first factor is sharded and the sizes of the others are known, sets *parts to the
// number of parts (of units, if they are unequal) and *unit to the product of the other sizes.
static bool first_alone(const struct tile_dim *dim, int64_t *parts, int64_t *unit)
{
    *unit = *parts = 1;
    for (int factor = 1; factor < dim->n; factor++)
        if (dim->factors[factor].cuts > 1 || dim->factors[factor].size < 1 ||
            !mul_ok(*unit, dim->factors[factor].size, unit))
            return false;
    if (dim->n)
        *parts = tsr__units_of(dim->factors[0].cuts, dim->factors[0].shares);
    return true;
}

static bool same_factors(const struct tile_dim *a, const struct tile_dim *b)
{
    if (a->n != b->n)
        return false;
    for (int factor = 0; factor < a->n; factor++)
        if (a->factors[factor].size != b->factors[factor].size ||
            a->factors[factor].cuts != b->factors[factor].cuts ||
            a->factors[factor].shares != b->factors[factor].shares)
            return false;
    return true;
}

// Returns an example size of an open dimension; 0: the layouts do not allow operators that are
// right for all sizes.
static int64_t example_size(const struct tile_dim *a, const struct tile_dim *b)
{
    int64_t parts_a = 1, parts_b = 1, unit_a = 1, unit_b = 1;
    int64_t size = int64_max(declared_size(a), declared_size(b));
    bool cut_a = tsr__dim_is_sharded(a), cut_b = tsr__dim_is_sharded(b);
    if (size)
        return size; // a layout of this size only
    if (cut_a && cut_b && same_factors(a, b)) {
        // the parts stay as they are, whatever they are
        for (int factor = 0; factor < a->n; factor++)
            parts_a = least_common_multiple(
                parts_a, tsr__units_of(a->factors[factor].cuts, a->factors[factor].shares));
        for (int factor = 0; factor < a->n; factor++)
            if (a->factors[factor].size && !mul_ok(unit_a, a->factors[factor].size, &unit_a))
                return 0;
        unit_b = unit_a;
    } else if ((cut_a && !first_alone(a, &parts_a, &unit_a)) ||
               (cut_b && !first_alone(b, &parts_b, &unit_b)) ||
               (cut_a && cut_b && unit_a != unit_b)) {
        return 0;
    }
    int64_t parts = least_common_multiple(parts_a, parts_b), unit = int64_max(unit_a, unit_b);
    if (parts > MOST_EXAMPLE / unit)
        return 0;
    size = parts * unit;
    return size * div_up(LEAST_SIZE, size);
}

static bool set_example(struct lowering *lower, const struct tile_layout *from,
                        const struct tile_layout *to)
{
    for (int axis = 0; axis < lower->tensor->rank; axis++) {
        lower->shape[axis] = lower->tensor->shape[axis];
        if (is_open(lower, axis))
            lower->shape[axis] = example_size(&from->dims[axis], &to->dims[axis]);
        if (is_open(lower, axis) && !lower->shape[axis])
            return false;
    }
    return true;
}

// ---- paths --------------------------------------------------------------------------------------

// Returns the number of shards along that dimension.
static int64_t shard_count(const struct tile_layout *layout, int axis)
{
    int64_t n = 1;
    for (int factor = 0; factor < layout->dims[axis].n; factor++)
        n *= layout->dims[axis].factors[factor].cuts;
    return n;
}

// False if a layout between `from` and `to` has other factors of an open dimension than both, so
// that the example does not stand for all sizes, or more shards, some of which might be empty.
static bool may_pass(const struct lowering *lower, const struct tile_layout *from,
                     const struct tile_layout *to, const struct tile_layout *between)
{
    for (int axis = 0; axis < lower->tensor->rank; axis++) {
        int64_t n = shard_count(between, axis);
        const struct tile_dim *dim = &between->dims[axis];
        if (is_open(lower, axis) &&
            ((n > shard_count(from, axis) && n > shard_count(to, axis)) ||
             (tsr__dim_is_sharded(dim) && !same_factors(dim, &from->dims[axis]) &&
              !same_factors(dim, &to->dims[axis]))))
            return false;
    }
    return true;
}

// True if no device has two shards.
static bool owns_once(const struct pairing *pairing, const struct side *side)
{
    for (size_t t = 0; t < pairing->n_devices; t++)
        if (side_count(side, t) > 1)
            return false;
    return true;
}

// Finds the operators of n resharding steps. Returns n, or 0 if a step has no operator.
static int find_operators(struct lowering *lower, const struct tile_layout *from,
                          const struct reshard_step *steps, int n, struct reshard_operators *out)
{
    const struct tile_layout *first = from, *to = n ? steps[n - 1].layout : from;
    size_t bytes = (size_t)lower->tensor->bits / 8;
    for (int i = 0; i < n; i++) {
        struct arena scratch = {.session = lower->arena->session};
        lower->scratch = &scratch;
        bool ok = may_pass(lower, first, to, steps[i].layout) &&
                  tsr__pairing_new(&scratch, from, NULL, steps[i].layout, lower->shape, bytes,
                                   &lower->pairing) == TSR_OK &&
                  owns_once(&lower->pairing, &lower->pairing.from) &&
                  owns_once(&lower->pairing, &lower->pairing.to) &&
                  find_operator(lower, from, &steps[i], &out->at[i]);
        lower->arena->failed = lower->arena->failed || scratch.failed;
        tsr__arena_free(&scratch);
        if (!ok)
            return 0;
        from = steps[i].layout;
    }
    return n;
}

// Returns the cheapest path, with gathers along one axis each. Returns NULL if there is none or if
// out of memory. Diagnostics are discarded, except for those about memory.
static struct reshard *plan_path(const struct lowering *lower, const struct tile_layout *from,
                                 const struct partial *pending, const struct tile_layout *to)
{
    struct reshard *reshard = NULL;
    size_t bytes = (size_t)lower->tensor->bits / 8;
    struct diag_mark mark = tsr__diag_mark(lower->arena->session);
    tsr_status status =
        tsr__reshard_plan(lower->arena, from, pending, to, lower->shape, bytes, &reshard);
    if (status != TSR_OK && status != TSR_NOMEM)
        tsr__diag_back(lower->arena->session, &mark, false);
    if (status != TSR_OK)
        return NULL;
    tsr__reshard_split(lower->arena, from, lower->shape, bytes, reshard);
    return reshard;
}

// Finds a path of operators and returns its number of steps, or 0. If no operator implements a step
// of the cheapest plan, a partial sum can still be scattered in one step, even to unequal shards.
// This is done if it moves fewer bytes than an AllReduce. Example: for 4 devices with shards of 5,
// 5, 2 and 2, a device receives 3 * 5/14 = 1.07 times the sum; in an AllReduce 1.5 times.
static int find_path(struct lowering *lower, const struct tile_layout *from,
                     const struct partial *pending, const struct tile_layout *to,
                     struct reshard_operators *out)
{
    struct reshard *reshard = plan_path(lower, from, pending, to);
    if (!reshard)
        return 0;
    int n = find_operators(lower, from, reshard->steps, reshard->n_steps, out);
    if (n || !pending || reshard->direct.op != COMM_REDUCE_SCATTER)
        return n;
    struct reshard *everywhere = plan_path(lower, from, pending, from);
    if (!everywhere ||
        tsr__reshard_cost(&reshard->direct) >= tsr__reshard_cost(&everywhere->direct))
        return 0;
    return find_operators(lower, from, &reshard->direct, 1, out);
}

// False if a wanted shard has no owner, or if there are more than MAX_PIECES shards. Also false for
// values of unknown rank, and types that are not transferred in full bytes.
static bool has_path(const struct reshard_tensor *tensor, const struct tile_layout *from,
                     const struct tile_layout *to)
{
    return tensor->bits >= 8 && tensor->rank >= 0 && from->rank == tensor->rank &&
           to->rank == tensor->rank && from->n_shards <= MAX_PIECES && to->n_shards <= MAX_PIECES &&
           tsr__owns_all(to);
}

// ---- the list -----------------------------------------------------------------------------------

// Returns the AllGather along a loop (sharded factor) of `from`, which gives `to`.
static struct reshard_operator gather_along(const struct tile_layout *from, int loop,
                                            const struct tile_layout *to,
                                            struct device_group *groups, size_t n)
{
    return (struct reshard_operator){.op = COMM_ALL_GATHER,
                                     .layout = to,
                                     .groups = groups,
                                     .n_groups = n,
                                     .axis = from->loops[loop].dim,
                                     .unit = 1};
}

// Returns true if one AllGather along a sharded factor gives `to`.
static bool find_gather(struct arena *arena, const struct tile_layout *from,
                        const struct tile_layout *to, struct reshard_operator *out)
{
    for (int loop = 0; loop < from->n_loops; loop++) {
        struct device_group *groups;
        size_t n;
        const struct tile_layout *got = shard_count(to, from->loops[loop].dim) == 1
                                            ? tsr__gathered_layout(arena, from, loop, &groups, &n)
                                            : NULL;
        if (!got || !tsr__layout_same(got, to))
            continue;
        *out = gather_along(from, loop, to, groups, n);
        return true;
    }
    return false;
}

static bool shape_is_known(const struct reshard_tensor *tensor)
{
    for (int axis = 0; axis < tensor->rank; axis++)
        if (tensor->shape[axis] == SIZE_UNKNOWN)
            return false;
    return tensor->rank >= 0;
}

// Adds an AllGather along a sharded factor. Returns its layout; NULL: no factor can be gathered.
static const struct tile_layout *add_gather(struct arena *arena, const struct tile_layout *from,
                                            struct reshard_operators *out)
{
    struct device_group *groups;
    size_t n;
    for (int loop = 0; loop < from->n_loops; loop++) {
        const struct tile_layout *to = tsr__gathered_layout(arena, from, loop, &groups, &n);
        if (to) {
            out->at[out->n++] = gather_along(from, loop, to, groups, n);
            return to;
        }
    }
    return NULL;
}

// Gathers along one sharded factor after the other, then slices. Returns false if that is not
// possible, or if devices without a shard of `from` need one of `to`.
static bool gather_and_slice(struct arena *arena, const struct reshard_tensor *tensor,
                             const struct tile_layout *from, const struct tile_layout *to,
                             struct reshard_operators *out)
{
    bool same = false;
    while (from && from->n_loops && out->n < RESHARD_MAX_STEPS)
        from = add_gather(arena, from, out);
    if (!from || from->n_loops || !tsr__can_convert_locally(arena, tensor, from, to, &same) ||
        (out->n == RESHARD_MAX_STEPS && !tsr__layout_same(from, to))) {
        out->n = 0;
        return false;
    }
    if (!tsr__layout_same(from, to))
        out->at[out->n++] = (struct reshard_operator){
            .op = same ? RESHARD_NOTHING : RESHARD_SLICE, .layout = to, .unit = 1};
    return out->n > 0;
}

// Makes a Reshard on all devices that have or need a shard.
static bool make_reshard(struct arena *arena, const struct tile_layout *from,
                         const struct tile_layout *to, struct reshard_operator *out)
{
    struct device_group *group = ARENA_NEW(arena, struct device_group);
    if (!group)
        return false;
    group->n = tsr__layouts_devices(arena, from, to, &group->devices);
    *out = (struct reshard_operator){
        .op = COMM_RESHARD, .layout = to, .groups = group, .n_groups = 1, .unit = 1};
    return !arena->failed;
}

tsr_status tsr__reshard_operators(struct arena *arena, const struct reshard_tensor *tensor,
                                  const struct tile_layout *from, const struct partial *pending,
                                  const struct tile_layout *to, struct reshard_operators *out)
{
    struct lowering lower = {.arena = arena, .tensor = tensor};
    bool same = false;
    out->n = 0;
    if (!pending && tsr__can_convert_locally(arena, tensor, from, to, &same)) {
        out->n = 1;
        out->at[0] = (struct reshard_operator){
            .op = same ? RESHARD_NOTHING : RESHARD_SLICE, .layout = to, .unit = 1};
        return arena_status(arena);
    }
    if (!pending && from->rank == to->rank && find_gather(arena, from, to, &out->at[0])) {
        out->n = 1;
        return arena_status(arena);
    }
    if (has_path(tensor, from, to) && set_example(&lower, from, to))
        out->n = find_path(&lower, from, pending, to, out);
    if (out->n || pending)
        return arena_status(arena);
    if (!shape_is_known(tensor) && from->rank == to->rank && tsr__owns_all(from) &&
        gather_and_slice(arena, tensor, from, to, out))
        return arena_status(arena);
    out->n = 1;
    return make_reshard(arena, from, to, &out->at[0]) ? TSR_OK : TSR_NOMEM;
}

// ---- sums --------------------------------------------------------------------------------------

bool tsr__groups_disjoint(struct arena *arena, const struct device_group *groups, size_t n_groups)
{
    size_t n = 0, k = 0;
    for (size_t g = 0; g < n_groups; g++)
        n += groups[g].n;
    int64_t *all = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!all)
        return false;
    for (size_t g = 0; g < n_groups; g++)
        for (size_t i = 0; i < groups[g].n; i++)
            all[k++] = groups[g].devices[i];
    qsort(all, n, sizeof *all, by_int64);
    for (size_t i = 1; i < n; i++)
        if (all[i] == all[i - 1])
            return false;
    return true;
}

// Makes an AllReduce, after which all members of a group have the sum.
static tsr_status make_all_reduce(struct arena *arena, const struct tile_layout *from,
                                  const struct partial *pending, struct reshard_operators *out)
{
    out->n = 1;
    out->at[0] = (struct reshard_operator){.op = COMM_ALL_REDUCE, .layout = from, .unit = 1};
    return copy_groups(arena, pending->groups, pending->n_groups, &out->at[0]) ? TSR_OK : TSR_NOMEM;
}

// Example: a sum on ranks 0 to 3 with the annotation {4,1} is read as {2,1:0,2}. A ReduceScatter to
// {4,1} and a Reshard send less than an AllReduce.
tsr_status tsr__reshard_sum(struct arena *arena, const struct reshard_tensor *tensor,
                            const struct tile_layout *from, const struct partial *pending,
                            const struct tile_layout *asked, const struct tile_layout *want,
                            struct reshard_operators *out)
{
    out->n = 0;
    if (!tsr__groups_disjoint(arena, pending->groups, pending->n_groups))
        return arena_status(arena);
    if (!want || tsr__layout_same(want, from))
        return make_all_reduce(arena, from, pending, out);
    TRY(tsr__reshard_operators(arena, tensor, from, pending, want, out));
    if (asked && out->n != 1) {
        struct reshard_operators other;
        TRY(tsr__reshard_operators(arena, tensor, from, pending, asked, &other));
        if (other.n)
            *out = other;
    }
    return out->n ? TSR_OK : make_all_reduce(arena, from, pending, out);
}

enum reshard_kind tsr__reshard_kind(const struct reshard_operators *operators)
{
    const struct reshard_operator *first = &operators->at[0];
    if (operators->n != 1)
        return RESHARD_BY_OPERATORS;
    if (first->op == RESHARD_NOTHING)
        return RESHARD_BY_NOTHING;
    if (first->op == RESHARD_SLICE)
        return RESHARD_BY_SLICE;
    if (first->op == COMM_RESHARD)
        return RESHARD_BY_RESHARD;
    return first->op == COMM_ALL_GATHER ? RESHARD_BY_GATHER : RESHARD_BY_OPERATORS;
}

tsr_status tsr__reshard_exchange(struct arena *arena, const struct tile_layout *from,
                                 const struct tile_layout *to, const int64_t *shape,
                                 size_t elem_bytes, struct reshard_exchange *out)
{
    struct reshard *reshard = NULL;
    *out = (struct reshard_exchange){0};
    TRY(tsr__reshard_plan(arena, from, NULL, to, shape, elem_bytes, &reshard));
    for (int i = 0; i < reshard->n_steps; i++) {
        int64_t most = int64_max(reshard->steps[i].received, reshard->steps[i].sent);
        if (!add_ok(out->bytes, most, &out->bytes))
            out->bytes = INT64_MAX;
    }
    out->largest = tsr__reshard_largest(arena, &reshard->direct, elem_bytes);
    return TSR_OK;
}
