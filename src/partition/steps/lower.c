// SPDX-License-Identifier: Apache-2.0
// lower.c - turns a resharding plan (the cheapest path from one layout to another) into
// communication operators: slices, gathers, all-to-all, reductions, broadcasts, messages.
//
// The plan names only the pattern of each step, and an operator is less general than a pattern. So
// every step is compared, shard by shard, with the result that the operator would return. If a step
// has no operator, the full path is rejected and the caller uses Reshard.
//
// For symbolic sizes the comparison is repeated with example sizes that leave every possible
// remainder. The operators that divide an axis do so at run time and need no sizes.
//
// Examples:
//     [8,6] {2,1} -> {1,2} on ranks 0 and 1: the plan says all-to-all.
//         AllToAll(axis 0, split_axis 1) returns on rank 0 columns 0..2 of both shards, stacked:
//         [8,3], its shard of {1,2}. Accepted.
//     [n,6] the same, n unknown: tried with n = 8 (divides) and n = 9 (remainder 1). The operator
//         returns the right shards for both, so for all n. Accepted.
//     [8,6] {1,1:0} -> {2,1:1,2}: the plan says scatter, which has no operator: Reshard.
//     partial sums on ranks 0 and 1, [8,6] unsharded -> {2,1}: ReduceScatter along axis 0, unit 1.
//     the same sums -> {4,1:0,0,0,1}: ReduceScatter along axis 0 with shares 3 and 1: 6 rows and 2.
#include "internal.h"

#define NOTED_RANK 14 // highest rank of a tensor that a broadcast or message can describe
#define MAX_PIECES ((int64_t)1 << 12) // limit of shards; layouts with more use Reshard

// One step of the path, as an operator.
struct lowered {
    int kind;
    const struct tile_layout *to;
    struct device_group *groups; // members ascend
    size_t n_groups;
    int axis, split_axis;
    int64_t unit;
    const int64_t **shares; // for each group; NULL: equal shares
    int64_t *roots;         // for each group
    bool same;              // every device already has its shard
};

struct lower_context {
    struct draft *draft;
    const struct item *item;
    struct arena arena; // temporary memory
    const int64_t *shape;
    const struct tile_layout *from, *to;
};

// Returns the elements of the full tensor that the device has; NULL: none.
static struct tile_piece *piece_of(struct lower_context *lower, const struct tile_layout *layout,
                                   int64_t device)
{
    int64_t shard = tsr__layout_shard_of(layout, device, 0);
    return shard < 0 ? NULL : tsr__layout_piece(&lower->arena, layout, lower->shape, shard);
}

// True if both pieces have the same list of intervals along the axis. The lists [0,4) and [0,2)
// [2,4) are different.
static bool dim_equal(const struct tile_piece *a, const struct tile_piece *b, int axis)
{
    return a->dims[axis].n == b->dims[axis].n &&
           memcmp(a->dims[axis].at, b->dims[axis].at,
                  (size_t)a->dims[axis].n * sizeof(*a->dims[axis].at)) == 0;
}

// True if the pieces are equal along all axes except but_axis and or_axis (-1: no exception).
static bool piece_equal(const struct tile_piece *a, const struct tile_piece *b, int but_axis,
                        int or_axis)
{
    for (int axis = 0; axis < a->rank; axis++)
        if (axis != but_axis && axis != or_axis && !dim_equal(a, b, axis))
            return false;
    return true;
}

// True if the elements at positions [from, to) of `a` are exactly the elements of `b`. Example: if
// `a` has [0,4) and [8,12), its positions [2,6) are elements [2,4) and [8,10) of the full tensor.
static bool is_subrange(const struct tile_piece *a, const struct tile_piece *b, int axis,
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
        while (start < stop) { // `b` may have adjacent intervals
            if (k == b->dims[axis].n || b->dims[axis].at[k].start + at != start)
                return false;
            int64_t left = b->dims[axis].at[k].stop - start;
            int64_t n = int64_min(left, stop - start);
            start += n;
            at += n;
            if (n == left)
                k++, at = 0;
        }
    }
    return k == b->dims[axis].n && to - from == b->dims[axis].size;
}

// True if the members' shards of the current layout, concatenated along the axis, have the elements
// of `whole` along that axis.
static bool is_joined(struct lower_context *lower, const struct device_group *group, int axis,
                      const struct tile_piece *whole)
{
    int64_t at = 0;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *piece = piece_of(lower, lower->from, group->devices[i]);
        if (!piece || !is_subrange(whole, piece, axis, at, at + piece->dims[axis].size))
            return false;
        at += piece->dims[axis].size;
    }
    return at == whole->dims[axis].size;
}

// ---- what the operators return ------------------------------------------------------------------

// True if an AllGather returns the wanted shards: each member gets the shards of all members, in
// rank order along one axis.
static bool gathers(struct lower_context *lower, const struct device_group *group, int axis)
{
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *x = piece_of(lower, lower->from, group->devices[i]);
        struct tile_piece *y = piece_of(lower, lower->to, group->devices[i]);
        if (!x || !y || !piece_equal(x, y, axis, axis) || !is_joined(lower, group, axis, y))
            return false;
    }
    return true;
}

// True if all members have the same elements (except along `but_axis`), and dividing them along
// `axis` gives each member its wanted shard.
static bool divides(struct lower_context *lower, const struct device_group *group, int axis,
                    int but_axis, const struct tile_division *division)
{
    struct tile_piece *first = piece_of(lower, lower->from, group->devices[0]);
    if (!first)
        return false;
    int64_t size = first->dims[axis].size;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *x = piece_of(lower, lower->from, group->devices[i]);
        struct tile_piece *y = piece_of(lower, lower->to, group->devices[i]);
        int64_t start = tsr__division_start(division, size, (int64_t)i);
        int64_t stop = tsr__division_start(division, size, (int64_t)i + 1);
        if (!x || !y || !piece_equal(x, first, but_axis, but_axis) ||
            !piece_equal(x, y, axis, but_axis) || !is_subrange(x, y, axis, start, stop))
            return false;
    }
    return true;
}

// True if an AllToAll returns the wanted shards: each member sends a share along `split` to every
// other member, and concatenates what it receives along `axis`.
static bool all_to_all_fits(struct lower_context *lower, const struct device_group *group, int axis,
                            int split, const struct tile_division *division)
{
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *piece = piece_of(lower, lower->to, group->devices[i]);
        if (!piece || !is_joined(lower, group, axis, piece))
            return false;
    }
    return divides(lower, group, split, axis, division);
}

// Who gets the result: only the root (Reduce), or all members (Broadcast).
enum receivers { ROOT_RECEIVES, ALL_RECEIVE };
// True if all receivers want the shard that the root has now, and no other member wants a shard.
static bool root_copy_fits(struct lower_context *lower, const struct device_group *group,
                           int64_t root, enum receivers receivers)
{
    struct tile_piece *given = piece_of(lower, lower->from, root);
    if (!given)
        return false;
    for (size_t i = 0; i < group->n; i++) {
        struct tile_piece *got = piece_of(lower, lower->to, group->devices[i]);
        bool gets = receivers == ALL_RECEIVE || group->devices[i] == root;
        if (gets != (got != NULL) || (gets && !piece_equal(given, got, -1, -1)))
            return false;
    }
    return true;
}

// True if the receiver of the pair, the member that is not the root, wants exactly the shard that
// the root has.
static bool message_fits(struct lower_context *lower, const struct device_group *pair, int64_t root)
{
    int64_t receiver = pair->devices[pair->devices[0] == root];
    struct tile_piece *x = piece_of(lower, lower->from, root),
                      *y = piece_of(lower, lower->to, receiver);
    return x && y && piece_equal(x, y, -1, -1);
}

// ---- lowering a step ----------------------------------------------------------------------------

// Copies n groups with sorted members. The first device of each group becomes its root. Returns
// false if out of memory.
static bool copy_groups(struct draft *draft, const struct device_group *from, size_t n,
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

// Returns the number of adjacent elements that the sharding of the axis never separates. Example:
// 16 for {4/2*16}.
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

// True if the operator returns the wanted shards to all members of the group.
static bool fits_group(struct lower_context *lower, const struct lowered *lowered, size_t g)
{
    const struct device_group *group = &lowered->groups[g];
    struct tile_division division = {.unit = lowered->unit, .n = (int64_t)group->n};
    if (lowered->shares)
        division.shares = lowered->shares[g];
    switch (lowered->kind) {
    case COMM_ALL_GATHER:
        return gathers(lower, group, lowered->axis);
    case COMM_REDUCE_SCATTER:
        return divides(lower, group, lowered->axis, lowered->axis, &division);
    case COMM_ALL_TO_ALL:
        return all_to_all_fits(lower, group, lowered->axis, lowered->split_axis, &division);
    case COMM_REDUCE:
        return root_copy_fits(lower, group, lowered->roots[g], ROOT_RECEIVES);
    case COMM_BROADCAST:
        return root_copy_fits(lower, group, lowered->roots[g], ALL_RECEIVE);
    case COMM_SEND:
        return message_fits(lower, group, lowered->roots[g]);
    default:
        return false;
    }
}

static bool fits(struct lower_context *lower, const struct lowered *lowered)
{
    for (size_t group = 0; group < lowered->n_groups; group++)
        if (!fits_group(lower, lowered, group))
            return false;
    return lowered->n_groups > 0;
}

// How an axis is divided among the members of a group.
enum division_kind {
    DIVISION_EQUAL,
    DIVISION_OF_LAYOUT,   // by the shares of the layout, for any size
    DIVISION_IN_ELEMENTS, // by the sizes of the shards, for known sizes only
};

// Returns the device's share of the axis in the wanted layout, in units or elements as `kind` says;
// -1: unknown.
static int64_t share_of(struct lower_context *lower, int64_t device, int axis,
                        enum division_kind kind)
{
    int64_t coords[TILE_MAX_FACTORS];
    if (kind == DIVISION_OF_LAYOUT) {
        if (!tsr__device_coords(lower->to, device, axis, coords))
            return -1;
        struct local_size size = tsr__local_size(&lower->to->dims[axis], coords);
        return size.part.stop - size.part.first;
    }
    struct tile_piece *piece = piece_of(lower, lower->to, device);
    return !piece || lower->item->dims[axis].value < 0 ? -1 : piece->dims[axis].size;
}

// Returns the shares of all members, one array per group. Returns NULL if they do not divide the
// axis or if out of memory.
static const int64_t **shares_of(struct lower_context *lower, const struct lowered *lowered,
                                 int axis, enum division_kind kind)
{
    struct arena *arena = lower->draft->arena;
    const int64_t **out = ARENA_ARRAY(arena, const int64_t *, lowered->n_groups + 1);
    if (!out)
        return NULL;
    for (size_t g = 0; g < lowered->n_groups; g++) {
        const struct device_group *group = &lowered->groups[g];
        int64_t *shares = ARENA_ARRAY(arena, int64_t, group->n + 1);
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

// Finds shares and a unit with which the operator returns the wanted shards. Tries unit 1, then the
// unit of the wanted layout (unit_of). Returns false if neither fits.
static bool find_division(struct lower_context *lower, struct lowered *lowered, int axis,
                          enum division_kind kind)
{
    lowered->shares = NULL;
    if (kind != DIVISION_EQUAL) {
        lowered->shares = shares_of(lower, lowered, axis, kind);
        if (!lowered->shares)
            return false;
    }
    lowered->unit = 1;
    if (fits(lower, lowered))
        return true;
    lowered->unit = unit_of(lower->to, axis);
    return lowered->unit > 1 && fits(lower, lowered);
}

// Finds the axis along which a ReduceScatter gives the wanted shards. Tries equal shares first.
// Returns false if there is none.
static bool find_scatter(struct lower_context *lower, struct lowered *lowered)
{
    for (int kind = DIVISION_EQUAL; kind <= DIVISION_IN_ELEMENTS; kind++)
        for (lowered->axis = 0; lowered->axis < lower->to->rank; lowered->axis++)
            if (find_division(lower, lowered, lowered->axis, (enum division_kind)kind))
                return true;
    return false;
}

static bool find_all_to_all(struct lower_context *lower, struct lowered *lowered, int axis,
                            int split)
{
    if (axis < 0 || split < 0)
        return false;
    lowered->axis = axis;
    lowered->split_axis = split;
    return find_division(lower, lowered, split, DIVISION_EQUAL);
}

// Turns the moves of a permutation into messages. Returns false unless each message moves a full
// shard, no device is in two messages, and no sender owns a shard of the result.
static bool find_messages(struct lower_context *lower, const struct reshard_step *from,
                          struct lowered *lowered)
{
    struct device_group *pairs =
        ARENA_ARRAY(lower->draft->arena, struct device_group, from->n_moves + 1);
    int64_t *ends = ARENA_ARRAY(lower->draft->arena, int64_t, 2 * from->n_moves + 1);
    for (size_t i = 0; pairs && ends && i < from->n_moves; i++) {
        ends[2 * i] = from->moves[i].from_device;
        ends[2 * i + 1] = from->moves[i].to_device;
        pairs[i] = (struct device_group){&ends[2 * i], 2};
        for (size_t k = 0; k < 2 * i; k++)
            if (ends[k] == ends[2 * i] || ends[k] == ends[2 * i + 1])
                return false;
    }
    if (lower->draft->arena->failed || !copy_groups(lower->draft, pairs, from->n_moves, lowered))
        return false;
    for (size_t group = 0; group < lowered->n_groups; group++)
        if (tsr__layout_has_device(lower->to, lowered->roots[group]))
            return false;
    return fits(lower, lowered);
}

// True if every device that owns a shard of the result is in a group.
static bool covers_all_owners(const struct lower_context *lower, const struct lowered *lowered)
{
    for (int64_t i = 0; i < lower->to->first[lower->to->n_shards]; i++) {
        bool served = false;
        for (size_t group = 0; group < lowered->n_groups && !served; group++)
            for (size_t k = 0; k < lowered->groups[group].n && !served; k++)
                served = lowered->groups[group].devices[k] == lower->to->owners[i];
        if (!served)
            return false;
    }
    return true;
}

// Finds the operator of one resharding step. Returns false if there is none, as for scatter, gather
// to one device, and exchange.
static bool lower_step(struct lower_context *lower, const struct reshard_step *from,
                       struct lowered *lowered)
{
    lowered->to = from->layout;
    if (from->op == RESHARD_SLICE || from->op == RESHARD_NOTHING) {
        lowered->kind = STEP_SLICE;
        return tsr__can_convert_locally(lower->draft, lower->item, lower->from, lower->to,
                                        &lowered->same);
    }
    if (from->op != RESHARD_PERMUTE &&
        !copy_groups(lower->draft, from->groups, from->n_groups, lowered))
        return false;
    bool ok = false, small = lower->to->rank <= NOTED_RANK;
    lowered->kind = from->op == RESHARD_PERMUTE ? COMM_SEND : (int)from->op;
    switch (from->op) {
    case COMM_ALL_GATHER:
        lowered->axis = from->axis;
        ok = from->axis >= 0 && fits(lower, lowered);
        break;
    case COMM_ALL_TO_ALL:
        ok = find_all_to_all(lower, lowered, from->axis, from->to_axis) ||
             find_all_to_all(lower, lowered, from->to_axis, from->axis);
        break;
    case COMM_REDUCE_SCATTER:
        ok = find_scatter(lower, lowered);
        break;
    case COMM_ALL_REDUCE:
        ok = tsr__layout_same(lower->from, lower->to);
        break;
    case COMM_REDUCE:
        ok = fits(lower, lowered);
        break;
    case COMM_BROADCAST:
        ok = small && fits(lower, lowered);
        break;
    case RESHARD_PERMUTE:
        ok = small && find_messages(lower, from, lowered);
        break;
    default:
        break;
    }
    return ok && covers_all_owners(lower, lowered);
}

// ---- the path -----------------------------------------------------------------------------------

#define MAX_REMAINDERS 1024 // limit of example sizes

// Returns the size of a dimension if all its factors have sizes, else 0.
static int64_t declared_size(const struct tile_dim *t)
{
    int64_t size = 1;
    if (t->n == 0)
        return 0;
    for (int factor = 0; factor < t->n; factor++)
        if (!mul_ok(size, t->factors[factor].size, &size))
            return 0;
    return size;
}

// Multiplies *size by the numbers that must divide the dimension for all shards to be equal.
// Returns false if *size exceeds MAX_REMAINDERS.
static bool add_divisors(const struct tile_dim *dim, int64_t *size)
{
    for (int factor = 0; factor < dim->n; factor++) {
        int64_t units = dim->factors[factor].size;
        if (!units)
            units = tsr__units_of(dim->factors[factor].cuts, dim->factors[factor].shares);
        if (!mul_ok(*size, units, size) || *size > MAX_REMAINDERS)
            return false;
    }
    return true;
}

// Sets `shape` to the sizes of the item, with example sizes for unknown ones. Let d be the number
// that must divide such a dimension for equal shards: round r uses the size 4 d + r % d. The
// remainders repeat after *rounds rounds. Returns false if d is too large, or if a dimension has
// several factors and round > 0.
static bool example_sizes(const struct item *it, const struct tile_layout *from,
                          const struct tile_layout *to, int64_t round, int64_t *shape,
                          int64_t *rounds)
{
    *rounds = 1;
    for (int axis = 0; axis < it->rank; axis++) {
        shape[axis] = it->dims[axis].value;
        if (shape[axis] >= 0)
            continue;
        const struct tile_dim *a = &from->dims[axis], *b = &to->dims[axis];
        int64_t size = 1;
        shape[axis] = declared_size(a);
        if (!shape[axis])
            shape[axis] = declared_size(b);
        if (shape[axis])
            continue;
        if (!add_divisors(a, &size) || !add_divisors(b, &size))
            return false;
        if (round && (a->n > 1 || b->n > 1))
            return false; // with several factors the size must be a multiple of d
        shape[axis] = 4 * size + round % size;
        *rounds = int64_max(*rounds, size);
    }
    return true;
}

// Returns the resharding plan with gathers along one axis each, or NULL after a failure.
static struct reshard *plan_path(const struct lower_context *lower, const struct tile_layout *from,
                                 const struct partial *pending, const struct tile_layout *to)
{
    struct reshard *reshard = NULL;
    struct arena *arena = lower->draft->arena;
    size_t bytes = (size_t)tsr_dtype_bits(tsr__transfer_type(lower->item->dtype)) / 8;
    if (tsr__reshard_plan(arena, from, pending, to, lower->shape, bytes, &reshard) != TSR_OK ||
        !reshard)
        return NULL;
    tsr__reshard_split(arena, from, lower->shape, bytes, reshard);
    return reshard;
}

// Finds the operators of n resharding steps. Returns n, or 0 if a step has no operator.
static int lower_steps(struct lower_context *lower, const struct tile_layout *from,
                       const struct reshard_step *steps, int n, struct lowered *out)
{
    lower->from = from;
    for (int i = 0; i < n; i++) {
        lower->to = steps[i].layout;
        out[i] = (struct lowered){.unit = 1};
        if (!lower_step(lower, &steps[i], &out[i]))
            return 0;
        lower->from = lower->to;
    }
    return n;
}

// Finds a path of operators and returns its number of steps, or 0. If no operator implements a step
// of the cheapest plan, a partial sum can still be scattered in one step, even to unequal shards.
// This is done if it moves fewer bytes than an AllReduce. Example: for 4 devices with shards of 5,
// 5, 2 and 2, a device receives 3 * 5/14 = 1.07 times the sum; in an AllReduce 1.5 times.
static int lower_path(struct lower_context *lower, const struct tile_layout *from,
                      const struct partial *pending, const struct tile_layout *to,
                      struct lowered *out)
{
    struct reshard *reshard = plan_path(lower, from, pending, to);
    if (!reshard)
        return 0;
    int n = lower_steps(lower, from, reshard->steps, reshard->n_steps, out);
    if (n || !pending || reshard->direct.op != COMM_REDUCE_SCATTER)
        return n;
    struct reshard *everywhere = plan_path(lower, from, pending, from);
    if (!everywhere ||
        tsr__reshard_cost(&reshard->direct) >= tsr__reshard_cost(&everywhere->direct))
        return 0;
    return lower_steps(lower, from, &reshard->direct, 1, out);
}

// Returns the number of shards along that dimension.
static int64_t shard_count(const struct tile_layout *layout, int axis)
{
    int64_t n = 1;
    for (int factor = 0; factor < layout->dims[axis].n; factor++)
        n *= layout->dims[axis].factors[factor].cuts;
    return n;
}

// False if `between` has more shards along a dimension of unknown size than `from` and `to` have.
// Some of these shards might be empty.
static bool adds_no_shards(const struct item *it, const struct tile_layout *from,
                           const struct tile_layout *to, const struct tile_layout *between)
{
    for (int axis = 0; axis < it->rank; axis++)
        if (it->dims[axis].value < 0 && shard_count(between, axis) > shard_count(from, axis) &&
            shard_count(between, axis) > shard_count(to, axis))
            return false;
    return true;
}

// True if the operators of the path return the wanted shards for all sizes of unknown dimensions.
// Tests example sizes with every possible remainder.
static bool holds_for_all_sizes(struct lower_context *lower, int64_t *shape,
                                const struct tile_layout *from, const struct tile_layout *to,
                                const struct lowered *path, int n)
{
    int64_t rounds = 2;
    for (int i = 0; i < n; i++)
        if (!adds_no_shards(lower->item, from, to, path[i].to))
            return false;
    for (int64_t round = 1; round < rounds; round++) {
        if (!example_sizes(lower->item, from, to, round, shape, &rounds))
            return false;
        lower->from = from;
        for (int i = 0; i < n; i++) {
            lower->to = path[i].to;
            // the results of slices and AllReduce do not depend on sizes
            if (path[i].kind != STEP_SLICE && path[i].kind != COMM_ALL_REDUCE &&
                !fits(lower, &path[i]))
                return false;
            lower->from = lower->to;
        }
        tsr__arena_free(&lower->arena);
        tsr__arena_init(&lower->arena, lower->draft->session);
    }
    return true;
}

static int find_path(struct draft *draft, const struct item *it, const struct tile_layout *from,
                     const struct partial *pending, const struct tile_layout *to,
                     struct lowered *out)
{
    int64_t shape[TILE_MAX_RANK], rounds;
    struct lower_context lower = {.draft = draft, .item = it, .shape = shape};
    tsr__arena_init(&lower.arena, draft->session);
    int n = 0;
    if (example_sizes(it, from, to, 0, shape, &rounds))
        n = lower_path(&lower, from, pending, to, out);
    if (n && !it->fixed && !holds_for_all_sizes(&lower, shape, from, to, out, n))
        n = 0;
    tsr__arena_free(&lower.arena);
    return n;
}

// Creates the step of a lowered operator. Returns NULL if out of memory.
static struct step *lowered_step(struct draft *draft, const struct lowered *lowered,
                                 struct form *from, struct form *to)
{
    struct step *st = tsr__step_between(draft, lowered->kind, from, to);
    if (!tsr__step_set_groups(draft, st, lowered->groups, lowered->n_groups))
        return NULL;
    st->axis = lowered->axis;
    st->split_axis = lowered->split_axis;
    st->unit = lowered->unit;
    st->shares = lowered->shares;
    st->roots = lowered->roots;
    return st;
}

// Adds the forms and steps of a path, and returns the last form. Forms are marked as partial until
// the step that reduces the sum, so that no reader uses them. Returns NULL if out of memory.
static struct form *draft_path(struct draft *draft, struct form *from, const struct node_flow *flow,
                               const struct lowered *path, int n)
{
    bool partial = flow != NULL;
    for (int i = 0; i < n; i++) {
        const struct lowered *lowered = &path[i];
        struct form *form = tsr__form_new(draft, from->item, lowered->to, FORM_MADE);
        if (!form)
            return NULL;
        partial = partial && !comm_has(lowered->kind, TRAIT_REDUCES);
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
    return draft->arena->failed ? NULL : from;
}

// False if a device has two shards, if a wanted shard has no owner, or if there are more than
// MAX_PIECES shards. Also false for forms of a turn (turns.c), values of unknown rank, and types
// that are not transferred in full bytes.
static bool can_lower(const struct form *from, const struct tile_layout *want)
{
    const struct item *it = from->item;
    return !from->of_turn && tsr__owns_all(want) && tsr__owns_once(from->layout) &&
           tsr__owns_once(want) && it->rank >= 0 && it->rank <= TILE_MAX_RANK &&
           from->layout->rank == it->rank && want->rank == it->rank &&
           tsr_dtype_bits(tsr__transfer_type(it->dtype)) >= 8 &&
           from->layout->n_shards <= MAX_PIECES && want->n_shards <= MAX_PIECES;
}

static int find_form_path(struct draft *draft, const struct form *from,
                          const struct node_flow *pending, const struct tile_layout *want,
                          struct lowered *path)
{
    if (!can_lower(from, want))
        return 0;
    if (!pending)
        return find_path(draft, from->item, from->layout, NULL, want, path);
    struct partial partial = {pending->combine, pending->groups, pending->n_groups};
    return find_path(draft, from->item, from->layout, &partial, want, path);
}

int tsr__draft_lowered_steps(struct draft *draft, const struct form *from,
                             const struct node_flow *pending, const struct tile_layout *want)
{
    struct lowered path[RESHARD_MAX_STEPS];
    return find_form_path(draft, from, pending, want, path);
}

struct form *tsr__draft_lower(struct draft *draft, struct form *from,
                              const struct node_flow *pending, const struct tile_layout *want)
{
    struct lowered path[RESHARD_MAX_STEPS];
    int n = find_form_path(draft, from, pending, want, path);
    return n ? draft_path(draft, from, pending, path, n) : NULL;
}
