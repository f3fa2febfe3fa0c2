// SPDX-License-Identifier: Apache-2.0
// moves.c - lists the layouts that one move of a mesh axis gives. An axis is a loop (sharded
// factor) of a layout, or some of its adjacent parts; a sum that is pending has the axis of its
// groups. A move takes an axis from one dimension, adds it to another one, or both:
//     {4,1} -> {2,1:(0,1),(2,3)}     all-gather: the inner half of the axis goes
//     {4,1} -> {1,4}                 all-to-all: the axis goes from dimension 0 to dimension 1
//     {1,1:0,1,2,3} -> {4,1}         slice; or reduce-scatter, if the devices have parts of a sum
// Other moves change owners only:
//     {1,1:0} -> {1,1:0,1}           broadcast
//     {1,1:0} -> {1,1:1}             send
//     {1,1:0,1} -> {1,1:0}           reduce
// The target decides to which numbers of parts axes move: to those of the target, or to their
// common divisors with it. fits.c checks that the operator of a move returns exactly these shards.
#include "sharding/reshard/reshard.h"

#define SLICED_AXES 4 // up to this number of differing dimensions all subsets are sliced

// Which of the parts of a loop an axis has. Example: a loop of 4 parts is two axes of 2. The inner
// one joins or divides adjacent parts, 0 1 and 2 3, the outer one 0 2 and 1 3.
enum axis_side { AXIS_INNER, AXIS_OUTER };

// The moves that are listed: from pairing->from to layouts that are nearer to pairing->to.
struct lister {
    const struct pairing *pairing;
    struct arena *arena;
    const struct tile_layout *from, *to;
    struct reshard_moves *out;
    int64_t most;  // bytes that a move may bring to a device
    int64_t shard; // bytes of the smallest shard
};

// Adds a move with this layout, with copies of the groups whose members ascend. The first member of
// a group becomes its root. Ignores NULL, and moves beyond the limit.
static struct reshard_operator *add_move(struct lister *l, int op, const struct tile_layout *layout,
                                         const struct device_group *groups, size_t n)
{
    if (!layout || l->out->n == RESHARD_MAX_MOVES)
        return NULL;
    struct reshard_operator *move = &l->out->at[l->out->n];
    *move = (struct reshard_operator){.op = op, .layout = layout, .n_groups = n, .unit = 1};
    move->groups = ARENA_ARRAY(l->arena, struct device_group, n + 1);
    move->roots = ARENA_ARRAY(l->arena, int64_t, n + 1);
    for (size_t i = 0; i < n && !l->arena->failed; i++) {
        move->roots[i] = groups[i].devices[0];
        if (!tsr__group_sorted(l->arena, &groups[i], &move->groups[i]))
            return NULL;
    }
    l->out->n += !l->arena->failed;
    return move;
}

int64_t tsr__dim_parts(const struct tile_dim *dim)
{
    int64_t n = 1;
    for (int factor = 0; factor < dim->n; factor++)
        n *= dim->factors[factor].cuts;
    return n;
}

// ---- adding an axis to a dimension --------------------------------------------------------------

// True if only the outermost factor of the dimension may be sharded, in equal parts.
static bool is_plain(const struct tile_dim *dim)
{
    for (int factor = 1; factor < dim->n; factor++)
        if (dim->factors[factor].cuts > 1)
            return false;
    return !dim->n || !dim->factors[0].shares;
}

// Divides each part of a dimension into n parts, in the units of the target, and stores the new
// factors in `factors`. Returns false if this is not possible.
static bool divide_dim(const struct tile_dim *from, const struct tile_dim *to, int64_t n,
                       struct tile_factor *factors, struct tile_dim *out)
{
    int64_t parts = tsr__dim_parts(from) * n;
    const struct tile_dim *like = tsr__dim_is_sharded(to) ? to : from;
    *out = (struct tile_dim){factors, 1};
    factors[0] = (struct tile_factor){.cuts = parts};
    if (tsr__dim_is_sharded(to) && tsr__dim_parts(to) == parts) {
        *out = *to;
    } else if (!is_plain(from) || !is_plain(like)) {
        return false;
    } else if (like->n) {
        memcpy(factors, like->factors, (size_t)like->n * sizeof *factors);
        factors[0].cuts = parts;
        out->n = like->n;
    }
    return true;
}

// Returns the first shard of each device, by index in the pairing. NULL: out of memory.
static int64_t *shards_of(const struct lister *l, const struct tile_layout *layout)
{
    int64_t *shards = ARENA_ARRAY(l->arena, int64_t, l->pairing->n_devices + 1);
    for (int64_t k = layout->n_shards; shards && k-- > 0;)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            shards[pairing_device(l->pairing, layout->owners[i])] = k;
    return shards;
}

// The dimension that `divided` divides.
struct division_of {
    int axis;
    enum axis_side side;
};

// Returns the number of part i along the dimension of a shard of `base`, if `layout` divides each
// part of that dimension into n parts and has the other dimensions of `base`.
static int64_t divided_shard(const struct tile_layout *base, const struct tile_layout *layout,
                             int64_t shard, struct division_of of, int64_t n, int64_t i)
{
    int64_t coords[TILE_MAX_LOOPS], part[TILE_MAX_RANK] = {0}, at = 0;
    tsr__layout_coords(base, shard, coords);
    for (int k = 0; k < base->n_loops; k++) {
        const struct tile_loop *loop = &base->loops[k];
        part[loop->dim] =
            part[loop->dim] * base->dims[loop->dim].factors[loop->factor].cuts + coords[k];
    }
    int64_t here = part[of.axis];
    part[of.axis] =
        of.side == AXIS_INNER ? here * n + i : i * tsr__dim_parts(&base->dims[of.axis]) + here;
    for (int d = 0; d < base->rank; d++)
        at = at * tsr__dim_parts(&layout->dims[d]) + part[d];
    return at;
}

// Returns the layout in which each shard of `base` is divided along `axis` among the members of a
// group: member i has part i. Returns NULL if this is not possible.
static const struct tile_layout *divided(struct lister *l, const struct tile_layout *base,
                                         struct division_of of, const struct device_group *groups,
                                         size_t n_groups)
{
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_FACTORS];
    size_t n = groups[0].n, at = 0;
    memcpy(dims, base->dims, (size_t)base->rank * sizeof *dims);
    if (!divide_dim(&base->dims[of.axis], &l->to->dims[of.axis], (int64_t)n, factors,
                    &dims[of.axis]))
        return NULL;
    struct tile_layout *layout = tsr__layout_cut(l->arena, base->rank, dims);
    struct tile_owner *pairs = ARENA_ARRAY(l->arena, struct tile_owner, n * n_groups + 1);
    const int64_t *shards = shards_of(l, base);
    if (!layout || !pairs || !shards)
        return NULL;
    for (size_t g = 0; g < n_groups; g++)
        for (size_t i = 0; i < groups[g].n; i++) {
            int64_t device = groups[g].devices[i];
            int64_t shard = shards[pairing_device(l->pairing, device)];
            if (groups[g].n != n)
                return NULL;
            pairs[at++] = (struct tile_owner){
                divided_shard(base, layout, shard, of, (int64_t)n, (int64_t)i), device};
        }
    return tsr__layout_own(l->arena, layout, pairs, at) ? layout : NULL;
}

// Returns the layout that has some dimensions (bits of `axes`) as in the target and the others as
// in pairing->from. Its owners are the devices that have one shard on each side.
static const struct tile_layout *mixed(const struct lister *l, uint64_t axes)
{
    const struct pairing *pairing = l->pairing;
    const struct side *from = &pairing->from, *to = &pairing->to;
    struct tile_dim dims[TILE_MAX_RANK];
    for (int axis = 0; axis < pairing->rank; axis++)
        dims[axis] = axes >> axis & 1 ? l->to->dims[axis] : l->from->dims[axis];
    struct tile_layout *layout = tsr__layout_cut(l->arena, pairing->rank, dims);
    struct tile_owner *pairs = ARENA_ARRAY(l->arena, struct tile_owner, pairing->n_devices + 1);
    size_t n = 0;
    for (size_t t = 0; layout && pairs && t < pairing->n_devices; t++) {
        int64_t shard = 0;
        if (side_count(from, t) != 1 || side_count(to, t) != 1)
            continue;
        for (int axis = 0; axis < pairing->rank; axis++) {
            const struct side *side = axes >> axis & 1 ? to : from;
            shard = shard * side->n_parts[axis] + side_part(side, t, axis);
        }
        pairs[n++] = (struct tile_owner){shard, pairing->devices[t]};
    }
    return n && tsr__layout_own(l->arena, layout, pairs, n) ? layout : NULL;
}

// ---- complete values ----------------------------------------------------------------------------

static void add_all_to_all(struct lister *l, const struct reshard_operator *gather,
                           struct division_of of)
{
    const struct tile_layout *layout =
        divided(l, gather->layout, of, gather->groups, gather->n_groups);
    struct reshard_operator *move =
        add_move(l, COMM_ALL_TO_ALL, layout, gather->groups, gather->n_groups);
    if (!move)
        return;
    move->axis = gather->axis;
    move->split_axis = of.axis;
}

// Adds an all-gather of some parts of a loop, and all-to-alls that move this axis to each other
// dimension that the target shards.
static void list_axis(struct lister *l, struct loop_axis at)
{
    struct device_group *groups;
    size_t n;
    if (l->shard * (at.run - 1) / at.run > l->most)
        return;
    const struct tile_layout *joined = tsr__gathered_layout(l->arena, l->from, at, &groups, &n);
    struct reshard_operator *move = joined ? add_move(l, COMM_ALL_GATHER, joined, groups, n) : NULL;
    if (!move)
        return;
    struct reshard_operator gather = *move;
    gather.axis = move->axis = l->from->loops[at.loop].dim;
    l->out->n -= l->shard * (at.run - 1) > l->most;
    for (int split = 0; split < l->from->rank; split++) {
        int64_t want = tsr__dim_parts(&l->to->dims[split]),
                have = tsr__dim_parts(&l->from->dims[split]), parts = have * at.run;
        if (split == gather.axis || want < 2 || (want % parts && parts % want))
            continue;
        add_all_to_all(l, &gather, (struct division_of){split, AXIS_INNER});
        if (have > 1 && want == parts)
            add_all_to_all(l, &gather, (struct division_of){split, AXIS_OUTER});
    }
}

// Returns how far apart the device numbers are along the loop.
static int64_t reach_of(const struct tile_layout *layout, int loop)
{
    const int64_t *a, *b;
    int64_t last = loop_parts(layout, loop) - 1;
    if (!tsr__layout_owners(layout, 0, &a) ||
        !tsr__layout_owners(layout, last * tsr__layout_stride(layout, loop), &b))
        return 0;
    return *b > *a ? *b - *a : *a - *b;
}

// Lists the runs of adjacent parts of a loop that may move: all, those that leave a divisor of the
// number of parts in the target, and as many as another dimension still lacks.
static int list_runs(const struct lister *l, int loop, int64_t *runs)
{
    int axis = l->from->loops[loop].dim, n = 1;
    int64_t cuts = loop_parts(l->from, loop);
    runs[0] = cuts;
    for (int d = 0; d < l->from->rank; d++) {
        int64_t want = tsr__dim_parts(&l->to->dims[d]), have = tsr__dim_parts(&l->from->dims[d]);
        int64_t run = d == axis ? cuts / common_divisor(cuts, want) : want / have;
        bool known = run < 2 || cuts % run || (d != axis && want % have);
        for (int i = 0; i < n; i++)
            known = known || runs[i] == run;
        if (!known)
            runs[n++] = run;
    }
    return n;
}

// Returns the layout without the devices that the target does not have, if the others have all
// shards; else the layout itself.
static const struct tile_layout *without_others(const struct lister *l)
{
    const struct tile_layout *kept = mixed(l, 0);
    return kept && tsr__owns_all(kept) ? kept : l->from;
}

// Lists the moves of all loops. Those whose devices are far apart come first, while shards are
// small: on hosts of eight devices these are the groups that use the network.
static void list_axes(struct lister *l)
{
    l->from = without_others(l);
    bool done[TILE_MAX_LOOPS] = {false};
    for (int i = 0; i < l->from->n_loops; i++) {
        int loop = -1;
        for (int k = 0; k < l->from->n_loops; k++)
            if (!done[k] && (loop < 0 || reach_of(l->from, k) > reach_of(l->from, loop)))
                loop = k;
        done[loop] = true;
        int64_t runs[TILE_MAX_RANK + 1];
        int n = list_runs(l, loop, runs);
        int dim = l->from->loops[loop].dim;
        for (int k = 0; k < n; k++) {
            list_axis(l, (struct loop_axis){loop, runs[k], 0});
            if (runs[k] < runs[0] && !is_plain(&l->to->dims[dim]))
                list_axis(l, (struct loop_axis){loop, runs[k], l->pairing->shape[dim]});
        }
    }
}

// Returns the owner of shard k that has sent to the fewest devices; SIZE_MAX: there is none.
static size_t idle_owner(const struct lister *l, int64_t k, const struct device_group *stars)
{
    const int64_t *owners;
    size_t n = tsr__layout_owners(l->from, k, &owners), best = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        size_t s = pairing_device(l->pairing, owners[i]);
        if (best == SIZE_MAX || stars[s].n < stars[best].n)
            best = s;
    }
    return best;
}

// Adds the move to the target if only owners differ. A star is a device that sends and those that
// receive from it: messages, if each sender gives its shard away to one device, else a broadcast.
static void list_owners(struct lister *l)
{
    size_t n_all = l->pairing->n_devices, n = 0;
    bool pairs = true;
    struct device_group *stars = ARENA_ARRAY(l->arena, struct device_group, n_all + 1);
    const struct device_group **used = ARENA_ARRAY(l->arena, const struct device_group *, n_all);
    for (int axis = 0; axis < l->from->rank; axis++)
        if (tsr__axis_differs(l->pairing, axis, false))
            return;
    for (size_t t = 0; stars && used && t < n_all; t++) {
        const struct side *to = &l->pairing->to;
        int64_t k = side_count(to, t) ? to->shards[to->first[t]] : -1;
        if (k < 0 || tsr__side_owns(&l->pairing->from, t, k))
            continue;
        size_t s = idle_owner(l, k, stars);
        if (s == SIZE_MAX)
            return;
        if (!stars[s].n) {
            stars[s].devices = ARENA_ARRAY(l->arena, int64_t, n_all + 1);
            used[n++] = &stars[s];
            if (!stars[s].devices)
                return;
            stars[s].devices[stars[s].n++] = l->pairing->devices[s];
        }
        stars[s].devices[stars[s].n++] = l->pairing->devices[t];
        pairs = pairs && stars[s].n == 2 && !tsr__side_owns(to, s, k);
    }
    struct device_group *groups = ARENA_ARRAY(l->arena, struct device_group, n + 1);
    for (size_t i = 0; groups && i < n; i++)
        groups[i] = *used[i];
    if (groups && n)
        add_move(l, pairs ? COMM_SEND : COMM_BROADCAST, l->to, groups, n);
}

// ---- slices ------------------------------------------------------------------------------------

// Lists slices of the target's shards among their owners. A gather then gives the target.
static void list_parts_of_target(struct lister *l)
{
    struct device_group *groups =
        ARENA_ARRAY(l->arena, struct device_group, (size_t)l->to->n_shards + 1);
    for (int64_t k = 0; groups && k < l->to->n_shards; k++)
        groups[k] = (struct device_group){l->to->owners + l->to->first[k],
                                          (size_t)(l->to->first[k + 1] - l->to->first[k])};
    for (int axis = 0; groups && groups[0].n > 1 && axis < l->to->rank; axis++)
        if (tsr__dim_is_sharded(&l->from->dims[axis]) || tsr__dim_is_sharded(&l->to->dims[axis]))
            add_move(l, RESHARD_SLICE,
                     divided(l, l->to, (struct division_of){axis, AXIS_INNER}, groups,
                             (size_t)l->to->n_shards),
                     NULL, 0);
}

// Lists slices of some of the dimensions in which the target differs, or with `op` the reductions
// that also slice. Example: from {2,2} to {4,1} dimension 0 can be sliced, which gives {4,2}.
static void list_mixed(struct lister *l, int op, const struct device_group *groups, size_t n_groups)
{
    int axes[TILE_MAX_RANK], n = 0;
    for (int axis = 0; axis < l->from->rank; axis++)
        if (tsr__dim_is_sharded(&l->to->dims[axis]) && tsr__axis_differs(l->pairing, axis, true))
            axes[n++] = axis;
    uint64_t all = n > SLICED_AXES ? (uint64_t)n + 1 : (uint64_t)1 << n;
    for (uint64_t some = 1; some < all; some++) {
        uint64_t chosen = 0;
        for (int i = 0; i < n; i++)
            if (n > SLICED_AXES ? (uint64_t)i + 1 == some : some >> i & 1)
                chosen |= (uint64_t)1 << axes[i];
        add_move(l, op, mixed(l, chosen), groups, n_groups);
    }
}

// ---- pending reductions -------------------------------------------------------------------------

// Returns the layout in which one member of each group has the sum, and lists the groups with this
// member first: one that owns a shard of the target, if there is one.
static const struct tile_layout *on_roots(struct lister *l, struct device_group *groups, size_t *n)
{
    const struct partial *pending = l->pairing->pending;
    struct tile_layout *layout = tsr__layout_cut(l->arena, l->from->rank, l->from->dims);
    struct tile_owner *pairs = ARENA_ARRAY(l->arena, struct tile_owner, pending->n_groups + 1);
    const int64_t *shards = shards_of(l, l->from);
    *n = 0;
    for (size_t g = 0; layout && pairs && shards && g < pending->n_groups; g++) {
        const struct device_group *from = &pending->groups[g];
        size_t root = 0;
        while (root < from->n &&
               !side_count(&l->pairing->to, pairing_device(l->pairing, from->devices[root])))
            root++;
        root = root < from->n ? root : 0;
        struct device_group *group = &groups[(*n)++];
        *group = (struct device_group){ARENA_ARRAY(l->arena, int64_t, from->n + 1), from->n};
        if (!group->devices)
            return NULL;
        memcpy(group->devices, from->devices, from->n * sizeof *group->devices);
        group->devices[0] = from->devices[root];
        group->devices[root] = from->devices[0];
        pairs[g] = (struct tile_owner){shards[pairing_device(l->pairing, group->devices[0])],
                                       group->devices[0]};
    }
    return *n && tsr__layout_own(l->arena, layout, pairs, *n) ? layout : NULL;
}

// Lists the operators that reduce the sum: to parts as the target has them, to parts along each
// dimension, in place, and on one device.
static void list_reductions(struct lister *l)
{
    const struct partial *pending = l->pairing->pending;
    struct device_group *sorted = ARENA_ARRAY(l->arena, struct device_group, pending->n_groups + 1);
    size_t n = pending->n_groups, roots;
    for (size_t g = 0; sorted && g < n; g++)
        if (!tsr__group_sorted(l->arena, &pending->groups[g], &sorted[g]))
            return;
    if (!sorted)
        return;
    add_move(l, COMM_REDUCE_SCATTER, l->to, sorted, n);
    list_mixed(l, COMM_REDUCE_SCATTER, sorted, n);
    for (int axis = 0; axis < l->from->rank; axis++)
        add_move(l, COMM_REDUCE_SCATTER,
                 divided(l, l->from, (struct division_of){axis, AXIS_INNER}, sorted, n), sorted, n);
    add_move(l, COMM_ALL_REDUCE, l->from, sorted, n);
    const struct tile_layout *layout = on_roots(l, sorted, &roots);
    add_move(l, COMM_REDUCE, layout, sorted, roots);
}

void tsr__reshard_moves(const struct pairing *pairing, struct arena *arena, int64_t most,
                        struct reshard_moves *out)
{
    struct lister l = {.pairing = pairing,
                       .arena = arena,
                       .from = pairing->from.layout,
                       .to = pairing->to.layout,
                       .out = out,
                       .most = most,
                       .shard = INT64_MAX};
    for (int64_t k = 0; k < l.from->n_shards; k++)
        l.shard = int64_min(l.shard, pairing->from.elements[k] * pairing->unit);
    out->n = 0;
    if (pairing->pending) {
        list_reductions(&l);
    } else {
        list_owners(&l);
        list_axes(&l);
        list_parts_of_target(&l);
    }
    list_mixed(&l, RESHARD_SLICE, NULL, 0);
}
