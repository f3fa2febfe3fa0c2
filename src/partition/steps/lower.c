// SPDX-License-Identifier: Apache-2.0
// lower.c - the cheapest way from one layout to another (sharding's reshard plan) as communication
// operators: slices, gathers, all-to-all, reductions in pieces or to one, broadcasts, messages.
//
// The plan names a step by its pattern; an operator does one exact thing. So every step is held
// against what the operator would give, piece by piece, before it is taken. Operators that divide an
// axis need no sizes, so symbolic ones are stood in for by sizes with every rest that there can be. A
// way that has no operator for one of its steps is not taken at all: the caller has Reshard.
//
//     [8,6] {2,1} -> {1,2} on ranks 0 and 1: the plan says all-to-all; AllToAll(axis 0, split_axis 1) gives
//         rank 0 columns 0..2 of what both have, one below the other: [8,3], its piece of {1,2}. Taken.
//     [n,6] the same, n not known: n = 8 stands in for sizes that divide, n = 9 for those that leave a rest
//         of 1; the operator gives the right pieces for both, so for all n. Taken.
//     [8,6] {1,1:0} -> {2,1:1,2}: the plan says scatter, for which there is no operator: Reshard.
//     a sum pending on ranks 0 and 1, [8,6] whole -> {2,1}: ReduceScatter along axis 0, unit 1. Taken.
//     the same -> {4,1:0,0,0,1}: ReduceScatter along axis 0 with shares 3 and 1, 6 rows and 2. Taken.
#include "internal.h"

#define NOTED_RANK 14                 // dimensions that travel with a broadcast or message
#define MAX_PIECES ((int64_t)1 << 12) // shards of a layout; more are resharded in one step

// One step of the way, ready to be planned.
struct lowered {
    int kind;
    const struct tile_layout *to;
    struct device_group *groups; // ascending
    size_t n_groups;
    int axis, split_axis;
    int64_t unit;
    const int64_t **shares; // by group; NULL: equal parts
    int64_t *roots;         // by group
    bool same;              // nothing happens
};

struct lowering {
    struct draft *draft;
    const struct item *item;
    struct arena arena; // of this question
    const int64_t *shape;
    const struct tile_layout *from, *to;
};

// What the device has in that layout, in elements of the whole; NULL: nothing.
static struct tile_piece *piece_of(struct lowering *lowering, const struct tile_layout *layout,
                                   int64_t device)
{
    int64_t shard = tsr__layout_shard_of(layout, device, 0);
    if (shard < 0)
        return NULL;
    return tsr__layout_piece(&lowering->arena, layout, lowering->shape, shard);
}

// Interval by interval: [0,4) and [0,2) [2,4) differ here, although they hold the same.
static bool dim_equal(const struct tile_piece *a, const struct tile_piece *b, int axis)
{
    return a->dims[axis].n == b->dims[axis].n &&
           memcmp(a->dims[axis].at, b->dims[axis].at,
                  (size_t)a->dims[axis].n * sizeof(*a->dims[axis].at)) == 0;
}

// Equal in all dimensions but two that are looked at apart (-1: none is).
static bool piece_equal(const struct tile_piece *a, const struct tile_piece *b, int but_axis,
                        int or_axis)
{
    for (int axis = 0; axis < a->rank; axis++)
        if (axis != but_axis && axis != or_axis && !dim_equal(a, b, axis))
            return false;
    return true;
}

// Elements [from, to) of what the intervals of a keep are exactly those of b: if a has [0,4) and [8,12), its elements
// [2,6) are [2,4) and [8,10) of the whole.
static bool is_stretch(const struct tile_piece *a, const struct tile_piece *b, int axis,
                       int64_t from, int64_t to)
{
    int64_t before = 0, k = 0, at = 0;
    for (int64_t i = 0; i < a->dims[axis].n; i++) {
        struct tile_interval x = a->dims[axis].at[i];
        int64_t start = x.start, stop = x.stop;
        if (from > before)
            start += from - before;
        before += x.stop - x.start;
        if (before > to)
            stop -= before - to;
        while (start < stop) { // b may have neighbours apart
            if (k == b->dims[axis].n || b->dims[axis].at[k].start + at != start)
                return false;
            int64_t left = b->dims[axis].at[k].stop - start;
            int64_t n = left < stop - start ? left : stop - start;
            start += n;
            at += n;
            if (n == left)
                k++, at = 0;
        }
    }
    return k == b->dims[axis].n && to - from == b->dims[axis].size;
}

// The members' pieces one after the other are what `whole` has in that dimension.
static bool is_joined(struct lowering *lowering, const struct device_group *group, int axis,
                      const struct tile_piece *whole)
{
    int64_t at = 0;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *piece = piece_of(lowering, lowering->from, group->devices[i]);
        if (!piece || !is_stretch(whole, piece, axis, at, at + piece->dims[axis].size))
            return false;
        at += piece->dims[axis].size;
    }
    return at == whole->dims[axis].size;
}

// ---- what each operator would give -------------------------------------------------------------

// AllGather: each member gets the parts of all, in the order of ranks, along one axis.
static bool gathers(struct lowering *lowering, const struct device_group *group, int axis)
{
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *x = piece_of(lowering, lowering->from, group->devices[i]);
        struct tile_piece *y = piece_of(lowering, lowering->to, group->devices[i]);
        if (!x || !y || !piece_equal(x, y, axis, axis) || !is_joined(lowering, group, axis, y))
            return false;
    }
    return true;
}

// Each member gets its part of the axis of something that all have.
static bool divides(struct lowering *lowering, const struct device_group *group, int axis,
                    int but_axis, const struct tile_division *division)
{
    struct tile_piece *first = piece_of(lowering, lowering->from, group->devices[0]);
    if (!first)
        return false;
    int64_t size = first->dims[axis].size;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *x = piece_of(lowering, lowering->from, group->devices[i]);
        struct tile_piece *y = piece_of(lowering, lowering->to, group->devices[i]);
        int64_t start = tsr__division_start(division, size, (int64_t)i);
        int64_t stop = tsr__division_start(division, size, (int64_t)i + 1);
        if (!x || !y || !piece_equal(x, first, but_axis, but_axis) ||
            !piece_equal(x, y, axis, but_axis) || !is_stretch(x, y, axis, start, stop))
            return false;
    }
    return true;
}

// AllToAll: each member gives a part of one axis to each other, and joins what it gets along another.
static bool all_to_all_fits(struct lowering *lowering, const struct device_group *group, int axis,
                            int split, const struct tile_division *division)
{
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *piece = piece_of(lowering, lowering->to, group->devices[i]);
        if (!piece || !is_joined(lowering, group, axis, piece))
            return false;
    }
    return divides(lowering, group, split, axis, division);
}

// What the root has, the getters get, and nobody else gets anything.
enum getters { ROOT_GETS, ALL_GET };
static bool root_copy_fits(struct lowering *lowering, const struct device_group *group,
                           int64_t root, enum getters getters)
{
    struct tile_piece *given = piece_of(lowering, lowering->from, root);
    if (!given)
        return false;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *got = piece_of(lowering, lowering->to, group->devices[i]);
        bool gets = getters == ALL_GET || group->devices[i] == root;
        if (gets != (got != NULL) || (gets && !piece_equal(given, got, -1, -1)))
            return false;
    }
    return true;
}

// ---- a step ------------------------------------------------------------------------------------

// Groups of the step in ascending order; what stood first is the root.
static bool take_groups(struct draft *draft, const struct device_group *from, size_t n,
                        struct lowered *out)
{
    out->n_groups = n;
    out->groups = ARENA_ARRAY(draft->arena, struct device_group, n + 1);
    out->roots = ARENA_ARRAY(draft->arena, int64_t, n + 1);
    if (!out->groups || !out->roots)
        return false;
    for (size_t group = 0; group < n; group++) {
        out->roots[group] = from[group].devices[0];
        if (!tsr__group_sorted(draft->arena, &from[group], &out->groups[group]))
            return false;
    }
    return true;
}

// Elements that stay together where the layout cuts that dimension: 1, or what stands inside the cut.
static int64_t unit_of(const struct tile_layout *layout, int axis)
{
    int64_t unit = 1;
    int cut = layout->dims[axis].n;
    for (int factor = 0; factor < layout->dims[axis].n; factor++)
        if (layout->dims[axis].factors[factor].cuts > 1)
            cut = factor;
    for (int factor = cut + 1; factor < layout->dims[axis].n; factor++)
        if (!mul_ok(unit, layout->dims[axis].factors[factor].size, &unit) || unit < 1)
            return 1;
    return unit;
}

// What each operator would give in one of the groups is what is wanted there.
typedef bool (*fits_fn)(struct lowering *, const struct lowered *, size_t group);

// The operator fits if it does so in each of the groups.
static bool all_groups(struct lowering *lowering, const struct lowered *lowered, fits_fn fits)
{
    for (size_t group = 0; group < lowered->n_groups; group++)
        if (!fits(lowering, lowered, group))
            return false;
    return lowered->n_groups > 0;
}

static bool fits_gather(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    return gathers(lowering, &lowered->groups[group], lowered->axis);
}

// How the members of the group divide the axis that is cut.
static struct tile_division division_of(const struct lowered *lowered, size_t group)
{
    struct tile_division division = {.unit = lowered->unit, .n = (int64_t)lowered->groups[group].n};
    if (lowered->shares)
        division.shares = lowered->shares[group];
    return division;
}

static bool fits_scatter(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    struct tile_division division = division_of(lowered, group);
    return divides(lowering, &lowered->groups[group], lowered->axis, lowered->axis, &division);
}

static bool fits_turn(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    struct tile_division division = division_of(lowered, group);
    return all_to_all_fits(lowering, &lowered->groups[group], lowered->axis, lowered->split_axis,
                           &division);
}

static bool fits_reduce(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    return root_copy_fits(lowering, &lowered->groups[group], lowered->roots[group], ROOT_GETS);
}

static bool fits_broadcast(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    return root_copy_fits(lowering, &lowered->groups[group], lowered->roots[group], ALL_GET);
}

// In which parts an axis is cut among the members of a group.
enum parts {
    PARTS_EQUAL,
    PARTS_OF_LAYOUT,   // by the shares that the layout has, whatever the sizes are
    PARTS_IN_ELEMENTS, // by the sizes of the pieces, where the axis has a size that is known
};

// What the device has of the axis in the layout that is wanted, in its units or elements. -1: nothing that could be said.
static int64_t share_of(struct lowering *lowering, int64_t device, int axis, enum parts parts)
{
    int64_t coords[TILE_MAX_FACTORS];
    if (parts == PARTS_OF_LAYOUT) {
        if (!tsr__device_coords(lowering->to, device, axis, coords))
            return -1;
        struct local_size size = tsr__local_size(&lowering->to->dims[axis], coords);
        return size.part.stop - size.part.first;
    }
    struct tile_piece *piece = piece_of(lowering, lowering->to, device);
    if (!piece || lowering->item->dims[axis].value < 0)
        return -1;
    return piece->dims[axis].size;
}

// Shares of the members of every group. NULL: there are none, or out of memory.
static const int64_t **shares_of(struct lowering *lowering, const struct lowered *lowered, int axis,
                                 enum parts parts)
{
    struct arena *arena = lowering->draft->arena;
    const int64_t **out = ARENA_ARRAY(arena, const int64_t *, lowered->n_groups + 1);
    if (!out)
        return NULL;
    for (size_t g = 0; g < lowered->n_groups; g++) {
        const struct device_group *group = &lowered->groups[g];
        int64_t *shares = ARENA_ARRAY(arena, int64_t, group->n + 1);
        if (!shares)
            return NULL;
        for (size_t i = 0; i < group->n; i++)
            shares[i] = share_of(lowering, group->devices[i], axis, parts);
        if (!tsr__division_holds(shares, group->n, (int64_t)group->n))
            return NULL;
        out[g] = shares;
    }
    return out;
}

// The axis is cut in such parts, in single elements or in the units that the layout keeps together.
static bool find_division(struct lowering *lowering, struct lowered *lowered, int axis,
                          enum parts parts, fits_fn fits)
{
    lowered->shares = NULL;
    if (parts != PARTS_EQUAL) {
        lowered->shares = shares_of(lowering, lowered, axis, parts);
        if (!lowered->shares)
            return false;
    }
    lowered->unit = 1;
    if (all_groups(lowering, lowered, fits))
        return true;
    lowered->unit = unit_of(lowering->to, axis);
    return lowered->unit > 1 && all_groups(lowering, lowered, fits);
}

// Tries the axes of the result: in equal parts before others, which need to be told.
static bool find_scatter(struct lowering *lowering, struct lowered *lowered)
{
    for (int parts = PARTS_EQUAL; parts <= PARTS_IN_ELEMENTS; parts++)
        for (lowered->axis = 0; lowered->axis < lowering->to->rank; lowered->axis++)
            if (find_division(lowering, lowered, lowered->axis, (enum parts)parts, fits_scatter))
                return true;
    return false;
}

static bool find_turn(struct lowering *lowering, struct lowered *lowered, int axis, int split)
{
    if (axis < 0 || split < 0)
        return false;
    lowered->axis = axis;
    lowered->split_axis = split;
    return find_division(lowering, lowered, split, PARTS_EQUAL, fits_turn);
}

// Every move takes a whole piece from one to another, and nobody is in two of them.
static bool find_messages(struct lowering *lowering, const struct reshard_step *from,
                          struct lowered *lowered)
{
    struct device_group *pairs =
        ARENA_ARRAY(lowering->draft->arena, struct device_group, from->n_moves + 1);
    int64_t *ends = ARENA_ARRAY(lowering->draft->arena, int64_t, 2 * from->n_moves + 1);
    for (size_t i = 0; pairs && ends && i < from->n_moves; i++) {
        ends[2 * i] = from->moves[i].from_device;
        ends[2 * i + 1] = from->moves[i].to_device;
        pairs[i] = (struct device_group){&ends[2 * i], 2};
        for (size_t k = 0; k < 2 * i; k++)
            if (ends[k] == ends[2 * i] || ends[k] == ends[2 * i + 1])
                return false;
    }
    if (lowering->draft->arena->failed ||
        !take_groups(lowering->draft, pairs, from->n_moves, lowered))
        return false;
    for (size_t group = 0; group < lowered->n_groups; group++) {
        struct tile_piece *x = piece_of(lowering, lowering->from, ends[2 * group]);
        struct tile_piece *y = piece_of(lowering, lowering->to, ends[2 * group + 1]);
        if (!x || !y || !piece_equal(x, y, -1, -1) ||
            tsr__layout_has_device(lowering->to, ends[2 * group]))
            return false;
    }
    return lowered->n_groups > 0;
}

// Who owns something afterwards and is in no group would get nothing.
static bool all_served(const struct lowering *lowering, const struct lowered *lowered)
{
    for (int64_t i = 0; i < lowering->to->first[lowering->to->n_shards]; i++) {
        bool served = false;
        for (size_t group = 0; group < lowered->n_groups && !served; group++)
            for (size_t k = 0; k < lowered->groups[group].n && !served; k++)
                served = lowered->groups[group].devices[k] == lowering->to->owners[i];
        if (!served)
            return false;
    }
    return true;
}

// Kinds that are not named here (scatter, gather to one, exchange) have no operator: false, and the whole way is
// given up.
static bool lower_step(struct lowering *lowering, const struct reshard_step *from,
                       struct lowered *lowered)
{
    lowered->to = from->layout;
    if (from->op == RESHARD_SLICE || from->op == RESHARD_NOTHING) {
        lowered->kind = STEP_SLICE;
        return tsr__local_ok(lowering->draft, lowering->item, lowering->from, lowering->to,
                             &lowered->same);
    }
    if (from->op != RESHARD_PERMUTE &&
        !take_groups(lowering->draft, from->groups, from->n_groups, lowered))
        return false;
    bool ok = false, small = lowering->to->rank <= NOTED_RANK;
    switch (from->op) {
    case COMM_ALL_GATHER:
        lowered->kind = COMM_ALL_GATHER;
        lowered->axis = from->axis;
        ok = from->axis >= 0 && all_groups(lowering, lowered, fits_gather);
        break;
    case COMM_ALL_TO_ALL:
        lowered->kind = COMM_ALL_TO_ALL;
        ok = find_turn(lowering, lowered, from->axis, from->to_axis) ||
             find_turn(lowering, lowered, from->to_axis, from->axis);
        break;
    case COMM_REDUCE_SCATTER:
        lowered->kind = COMM_REDUCE_SCATTER;
        ok = find_scatter(lowering, lowered);
        break;
    case COMM_ALL_REDUCE:
        lowered->kind = COMM_ALL_REDUCE;
        ok = tsr__layout_same(lowering->from, lowering->to);
        break;
    case COMM_REDUCE:
        lowered->kind = COMM_REDUCE;
        ok = all_groups(lowering, lowered, fits_reduce);
        break;
    case COMM_BROADCAST:
        lowered->kind = COMM_BROADCAST;
        ok = small && all_groups(lowering, lowered, fits_broadcast);
        break;
    case RESHARD_PERMUTE:
        lowered->kind = COMM_SEND;
        ok = small && find_messages(lowering, from, lowered);
        break;
    default:
        break;
    }
    return ok && all_served(lowering, lowered);
}

// ---- the way -----------------------------------------------------------------------------------

#define MAX_RESTS 1024 // sizes that are tried

// The size of a dimension whose layout gives all factors as numbers; 0: the layout leaves one open.
static int64_t told_size(const struct tile_dim *t)
{
    int64_t size = 1;
    if (t->n == 0)
        return 0;
    for (int factor = 0; factor < t->n; factor++)
        if (!mul_ok(size, t->factors[factor].size, &size))
            return 0;
    return size;
}

// Multiplies *size by what a size of the dimension must divide by to leave no rest. False: too many.
static bool add_rests(const struct tile_dim *dim, int64_t *size)
{
    for (int factor = 0; factor < dim->n; factor++) {
        int64_t parts = dim->factors[factor].size;
        if (!parts)
            parts = tsr__units_of(dim->factors[factor].cuts, dim->factors[factor].shares);
        if (!mul_ok(*size, parts, size) || *size > MAX_RESTS)
            return false;
    }
    return true;
}

// Sizes to plan with: symbolic ones divide in round 0 and leave a rest that is the round's number otherwise. What becomes of
// a rest repeats with the product of the cuts; *rounds is where all have been seen. False: too many.
static bool stand_in(const struct item *it, const struct tile_layout *from,
                     const struct tile_layout *to, int64_t round, int64_t *shape, int64_t *rounds)
{
    *rounds = 1;
    for (int axis = 0; axis < it->rank; axis++) {
        shape[axis] = it->dims[axis].value;
        if (shape[axis] >= 0)
            continue;
        const struct tile_dim *a = &from->dims[axis], *b = &to->dims[axis];
        int64_t size = 1;
        shape[axis] = told_size(a);
        if (!shape[axis])
            shape[axis] = told_size(b);
        if (shape[axis])
            continue;
        if (!add_rests(a, &size) || !add_rests(b, &size))
            return false;
        if (round && (a->n > 1 || b->n > 1))
            return false; // a rest within units: not for a guess
        shape[axis] = 4 * size + round % size;
        if (*rounds < size)
            *rounds = size;
    }
    return true;
}

// The cheapest way of the item between two layouts, in steps. NULL: there is none.
static struct reshard *plan_way(const struct lowering *lowering, const struct tile_layout *from,
                                const struct partial *pending, const struct tile_layout *to)
{
    struct reshard *reshard = NULL;
    struct arena *arena = lowering->draft->arena;
    size_t bytes = (size_t)tsr_dtype_bits(tsr__carried(lowering->item->dtype)) / 8;
    if (tsr__reshard_plan(arena, from, pending, to, lowering->shape, bytes, &reshard) != TSR_OK ||
        !reshard)
        return NULL;
    tsr__reshard_split(arena, from, lowering->shape, bytes, reshard);
    return reshard;
}

// The number of steps, 0: one has no operator. Each step starts from the layout that the one before it made.
static int lower_steps(struct lowering *lowering, const struct tile_layout *from,
                       const struct reshard_step *steps, int n, struct lowered *out)
{
    lowering->from = from;
    for (int i = 0; i < n; i++) {
        lowering->to = steps[i].layout;
        out[i] = (struct lowered){.unit = 1};
        if (!lower_step(lowering, &steps[i], &out[i]))
            return 0;
        lowering->from = lowering->to;
    }
    return n;
}

// The number of steps, 0: there is no such way. A sum in unequal parts may move fewer bytes if it is scattered equally and
// moved on, but for moving on there is no operator: it is scattered as wanted then, unless an all-reduce moves no more.
//
//     parts of 5, 5, 2 and 2: in one step 3 * 5/14 = 1.07 of the sum, over equal parts 0.75 + 0.21, by all-reduce 1.5
static int lower_way(struct lowering *lowering, const struct tile_layout *from,
                     const struct partial *pending, const struct tile_layout *to,
                     struct lowered *out)
{
    struct reshard *reshard = plan_way(lowering, from, pending, to);
    if (!reshard)
        return 0;
    int n = lower_steps(lowering, from, reshard->steps, reshard->n_steps, out);
    if (n || !pending || reshard->direct.op != COMM_REDUCE_SCATTER)
        return n;
    struct reshard *everywhere = plan_way(lowering, from, pending, from);
    if (!everywhere ||
        tsr__reshard_cost(&reshard->direct) >= tsr__reshard_cost(&everywhere->direct))
        return 0;
    return lower_steps(lowering, from, &reshard->direct, 1, out);
}

// The pair of a message is ascending; the one that is not the root gets what the root has.
static bool fits_message(struct lowering *lowering, const struct lowered *lowered, size_t group)
{
    const struct device_group *pair = &lowered->groups[group];
    int64_t other = pair->devices[pair->devices[0] == lowered->roots[group]];
    struct tile_piece *x = piece_of(lowering, lowering->from, lowered->roots[group]),
                      *y = piece_of(lowering, lowering->to, other);
    return x && y && piece_equal(x, y, -1, -1);
}

// The operator of that step still does what it should, with other sizes.
static bool still_fits(struct lowering *lowering, const struct lowered *lowered)
{
    switch (lowered->kind) {
    case STEP_SLICE:
    case COMM_ALL_REDUCE:
        return true; // found without sizes
    case COMM_ALL_GATHER:
        return all_groups(lowering, lowered, fits_gather);
    case COMM_ALL_TO_ALL:
        return all_groups(lowering, lowered, fits_turn);
    case COMM_REDUCE_SCATTER:
        return all_groups(lowering, lowered, fits_scatter);
    case COMM_REDUCE:
        return all_groups(lowering, lowered, fits_reduce);
    case COMM_BROADCAST:
        return all_groups(lowering, lowered, fits_broadcast);
    case COMM_SEND:
        return all_groups(lowering, lowered, fits_message);
    default:
        return false;
    }
}

// In how many parts the layout cuts that dimension.
static int64_t cuts_of(const struct tile_layout *layout, int axis)
{
    int64_t n = 1;
    for (int factor = 0; factor < layout->dims[axis].n; factor++)
        n *= layout->dims[axis].factors[factor].cuts;
    return n;
}

// In between, no dimension whose size is not known is cut more often than at either end: it may have
// fewer elements than that.
static bool cuts_no_more(const struct item *it, const struct tile_layout *from,
                         const struct tile_layout *to, const struct tile_layout *between)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (it->dims[axis].value < 0 && cuts_of(between, axis) > cuts_of(from, axis) &&
            cuts_of(between, axis) > cuts_of(to, axis))
            return false;
    return true;
}

// A way that was found for sizes that divide, with every rest that there can be.
static bool holds(struct lowering *lowering, int64_t *shape, const struct tile_layout *from,
                  const struct tile_layout *to, const struct lowered *way, int n)
{
    int64_t rounds = 2;
    for (int i = 0; i < n; i++)
        if (!cuts_no_more(lowering->item, from, to, way[i].to))
            return false;
    for (int64_t round = 1; round < rounds; round++) {
        if (!stand_in(lowering->item, from, to, round, shape, &rounds))
            return false;
        lowering->from = from;
        for (int i = 0; i < n; i++) {
            lowering->to = way[i].to;
            if (!still_fits(lowering, &way[i]))
                return false;
            lowering->from = lowering->to;
        }
        tsr__arena_free(&lowering->arena);
        tsr__arena_init(&lowering->arena, lowering->draft->session);
    }
    return true;
}

// The way is found for sizes that divide; with unknown sizes it must also hold for all that leave a rest.
static int find_way(struct draft *draft, const struct item *it, const struct tile_layout *from,
                    const struct partial *pending, const struct tile_layout *to,
                    struct lowered *out)
{
    int64_t shape[TILE_MAX_RANK], rounds;
    struct lowering w = {.draft = draft, .item = it, .shape = shape};
    tsr__arena_init(&w.arena, draft->session);
    int n = 0;
    if (stand_in(it, from, to, 0, shape, &rounds))
        n = lower_way(&w, from, pending, to, out);
    if (n && !it->fixed && !holds(&w, shape, from, to, out, n))
        n = 0;
    tsr__arena_free(&w.arena);
    return n;
}

// The step of one operator. NULL: out of memory.
static struct step *lowered_step(struct draft *draft, const struct lowered *lowered,
                                 struct form *from, struct form *to)
{
    struct step *st = tsr__step_between(draft, lowered->kind, from, to);
    if (!st)
        return NULL;
    st->groups = lowered->groups;
    st->n_groups = lowered->n_groups;
    st->group_live = ARENA_ARRAY(draft->arena, unsigned char, lowered->n_groups + 1);
    st->axis = lowered->axis;
    st->split_axis = lowered->split_axis;
    st->unit = lowered->unit;
    st->shares = lowered->shares;
    st->roots = lowered->roots;
    return st;
}

// One form for each step of the way, each made of the one before. A sum stays partial up to the step that combines
// it, so that nobody takes a form on the way for the value. A step in which nothing happens makes no step, only
// another name.
static struct form *draft_way(struct draft *draft, struct form *from, const struct node_flow *flow,
                              const struct lowered *way, int n)
{
    bool partial = flow != NULL;
    for (int i = 0; i < n; i++) {
        const struct lowered *lowered = &way[i];
        struct form *form = tsr__form_new(draft, from->item, lowered->to, FORM_MADE);
        if (!form)
            return NULL;
        partial = partial && !comm_has(lowered->kind, TRAIT_FOLDS);
        form->partial = partial;
        if (lowered->same) {
            form->same = from;
        } else {
            struct step *st = lowered_step(draft, lowered, from, form);
            if (!st)
                return NULL;
            st->flow = flow;
        }
        from = form;
    }
    if (draft->arena->failed)
        return NULL;
    return from;
}

// What collectives cannot take is left to Reshard: devices with two shards, unknown ranks, elements smaller than a byte.
static bool can_lower(const struct form *from, const struct tile_layout *want)
{
    const struct item *it = from->item;
    return !from->of_turn && tsr__owns_all(want) && tsr__owns_once(from->layout) &&
           tsr__owns_once(want) && it->rank >= 0 && it->rank <= TILE_MAX_RANK &&
           from->layout->rank == it->rank && want->rank == it->rank &&
           tsr_dtype_bits(tsr__carried(it->dtype)) >= 8 && from->layout->n_shards <= MAX_PIECES &&
           want->n_shards <= MAX_PIECES;
}

// The way of find_way between a form, whose sum the node leaves in parts (or pending NULL), and a layout.
static int find_form_way(struct draft *draft, const struct form *from,
                         const struct node_flow *pending, const struct tile_layout *want,
                         struct lowered *way)
{
    if (!can_lower(from, want))
        return 0;
    if (!pending)
        return find_way(draft, from->item, from->layout, NULL, want, way);
    struct partial partial = {pending->combine, pending->groups, pending->n_groups};
    return find_way(draft, from->item, from->layout, &partial, want, way);
}

int tsr__draft_lowered_steps(struct draft *draft, const struct form *from,
                             const struct node_flow *pending, const struct tile_layout *want)
{
    struct lowered way[RESHARD_MAX_STEPS];
    return find_form_way(draft, from, pending, want, way);
}

struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending, const struct tile_layout *want)
{
    struct lowered way[RESHARD_MAX_STEPS];
    int n = find_form_way(draft, from, pending, want, way);
    if (n)
        return draft_way(draft, from, pending, way, n);
    return NULL;
}
