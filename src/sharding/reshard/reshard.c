// SPDX-License-Identifier: Apache-2.0
// reshard.c - finds the cheapest sequence of steps from one layout to another.
//
// A complete value usually needs one step: an exchange moves only the missing elements. Several
// steps are better in three cases: if a reduction is pending (slice before combining, combine in
// pieces, gather late); if few devices would have to send to many; if a slice turns an irregular
// step into a collective. So the search tries some intermediate layouts: some axes as in the target
// and the rest as in the source; shards split among their owners; pending shards combined in place,
// in parts, or on one device.
//
//     Example: [8,6] of 4-byte elements, a sum pending between devices 0 and 1:
//     wanted replicated on both:     all-reduce, one step
//     wanted as {2,1}:               reduce-scatter, 96 bytes each; all-reduce and a slice take 192
//     {2,1:(0,1),(2,3)} of a complete value, wanted on all four: two parallel all-gathers, 96 each
//
// Fewer bytes win, then fewer exchanges, then fewer steps.
#include "sharding/reshard/reshard.h"

#define MAX_STEPS 3
// up to this number of differing axes all subsets are tried, otherwise single axes and all but one
#define MAX_AXES    4
#define TRIED_AXES  8  // limit of axes along which shards are split among their owners
#define MAX_BETWEEN 64 // limit of intermediate layouts per step
#define MAX_WORK    ((int64_t)1 << 25) // limit of compared pairs of shards

// Compared in this order: bytes (tsr__reshard_cost), then exchanges, then steps.
struct cost {
    int64_t bytes;
    int exchanges, steps;
};
// A step of a path that is being tried: its target layout, and whether it completes the pending
// reduction.
struct hop {
    const struct tile_layout *to;
    bool combines;
};
// The state of the search: `path` has the steps to the current layout, `best` the cheapest path to
// the target so far.
struct search {
    struct arena *arena;
    const struct partial *pending;
    const struct tile_layout *to;
    const int64_t *shape;
    size_t unit;
    int64_t work;
    struct hop path[MAX_STEPS], best[MAX_STEPS];
    int n_best; // -1: none yet
    struct cost best_cost;
    tsr_status status;
};
// The intermediate layouts to try.
struct between {
    const struct tile_layout *at[MAX_BETWEEN];
    int n;
};

const char *tsr__reshard_op_name(int op)
{
    static const char *const names[] = {"nothing", "slice",  "permute",
                                        "scatter", "gather", "exchange"};
    return op < COMM_KIND_COUNT ? tsr__collective(op)->word : names[op - RESHARD_NOTHING];
}

int64_t tsr__reshard_cost(const struct reshard_step *step)
{
    if (step->op == RESHARD_NOTHING || step->op == RESHARD_SLICE)
        return 0;
    return int64_max(step->received, step->sent) + RESHARD_STEP_BYTES;
}

static bool cheaper(const struct cost *x, const struct cost *y)
{
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes;
    return x->exchanges != y->exchanges ? x->exchanges < y->exchanges : x->steps < y->steps;
}

// ---- intermediate layouts -----------------------------------------------------------------------

// Adds an intermediate layout to the list. Ignores NULL, and layouts beyond MAX_BETWEEN.
static void add(struct between *between, const struct tile_layout *layout)
{
    if (layout && between->n < MAX_BETWEEN)
        between->at[between->n++] = layout;
}

// Returns a shard of the mixed layout (tsr__reshard_mixed). Along `axes` it has the parts of target
// shard j, along the other axes those of source shard k.
static int64_t shard_of_parts(const struct side *from, const struct side *to, uint64_t axes,
                              int64_t k, int64_t j)
{
    int rank = from->layout->rank;
    int64_t shard = 0;
    for (int axis = 0; axis < rank; axis++) {
        shard = axes >> axis & 1 ? shard * to->n_parts[axis] + to->part[j * rank + axis]
                                 : shard * from->n_parts[axis] + from->part[k * rank + axis];
    }
    return shard;
}

struct tile_layout *tsr__reshard_mixed(const struct pairing *pairing, uint64_t axes)
{
    struct tile_dim dims[TILE_MAX_RANK];
    for (int axis = 0; axis < pairing->rank; axis++) {
        dims[axis] = pairing->from.layout->dims[axis];
        if (axes >> axis & 1)
            dims[axis] = pairing->to.layout->dims[axis];
    }
    struct tile_layout *layout = tsr__layout_cut(pairing->arena, pairing->rank, dims);
    struct tile_owner *pairs =
        ARENA_ARRAY(pairing->arena, struct tile_owner, pairing->n_devices + 1);
    size_t n = 0;
    if (!layout || !pairs)
        return NULL;
    for (size_t t = 0; t < pairing->n_devices; t++) {
        if (side_count(&pairing->from, t) != 1 || side_count(&pairing->to, t) != 1)
            continue;
        int64_t k = pairing->from.shards[pairing->from.first[t]],
                j = pairing->to.shards[pairing->to.first[t]];
        pairs[n++] = (struct tile_owner){shard_of_parts(&pairing->from, &pairing->to, axes, k, j),
                                         pairing->devices[t]};
    }
    return n && tsr__layout_own(pairing->arena, layout, pairs, n) ? layout : NULL;
}

// True if source and target differ along the axis, in the parts or in the part that a device has.
static bool axis_differs(const struct pairing *pairing, int axis)
{
    if (pairing->from.n_parts[axis] != pairing->to.n_parts[axis])
        return true;
    for (int64_t i = 0; i < pairing->from.n_parts[axis]; i++)
        if (pairing->common[axis][i * pairing->to.n_parts[axis] + i] !=
                pairing->from.parts[axis][i].size ||
            pairing->from.parts[axis][i].size != pairing->to.parts[axis][i].size)
            return true;
    for (size_t t = 0; t < pairing->n_devices; t++)
        if (side_count(&pairing->from, t) == 1 && side_count(&pairing->to, t) == 1 &&
            pairing->from
                    .part[pairing->from.shards[pairing->from.first[t]] * pairing->rank + axis] !=
                pairing->to.part[pairing->to.shards[pairing->to.first[t]] * pairing->rank + axis])
            return true;
    return false;
}

// Adds layouts that have some axes as in the target and the others as in the source. Example: from
// {2,2} to {4,1}, axes 0 and 1 differ. Adds {4,2}, with axis 0 as in the target, and {2,1}, with
// axis 1 as in the target.
static void add_mixed(const struct pairing *pairing, struct between *between)
{
    int axes[TILE_MAX_RANK], n = 0;
    for (int axis = 0; axis < pairing->rank; axis++)
        if (axis_differs(pairing, axis))
            axes[n++] = axis;
    uint64_t all = 0;
    for (int i = 0; i < n; i++)
        all |= (uint64_t)1 << axes[i];
    if (n > MAX_AXES) { // too many subsets: try each axis alone, and all but one
        for (int i = 0; i < int64_min(n, TRIED_AXES); i++) {
            add(between, tsr__reshard_mixed(pairing, (uint64_t)1 << axes[i]));
            add(between, tsr__reshard_mixed(pairing, all & ~((uint64_t)1 << axes[i])));
        }
        return;
    }
    for (uint64_t some = 1; some + 1 < (uint64_t)1 << n; some++) {
        uint64_t chosen = 0;
        for (int i = 0; i < n; i++)
            chosen |= (some >> i & 1) << axes[i];
        add(between, tsr__reshard_mixed(pairing, chosen));
    }
}

// Splits every part of a dimension into n parts. The new factors are in `out`, their number in
// *count. Returns false if factors cannot express this.
static bool cut_more(const struct tile_dim *dim, int64_t size, int64_t n, struct tile_factor *out,
                     int *count)
{
    int64_t sizes[TILE_MAX_FACTORS], product = 1;
    for (int factor = 0; factor < dim->n; factor++)
        if (dim->factors[factor].shares)
            return false; // halves of unequal shares have no common unit
    *count = 1;
    out[0] = (struct tile_factor){.size = 0, .cuts = n};
    if (!tsr__dim_is_sharded(dim))
        return size >= n;
    if (dim->n >= TILE_MAX_FACTORS || !tsr__dim_sizes(dim, size, sizes))
        return false;
    for (int factor = 0; factor < dim->n; factor++) {
        out[factor] =
            (struct tile_factor){.size = sizes[factor], .cuts = dim->factors[factor].cuts};
        if (!mul_ok(product, sizes[factor], &product))
            return false;
    }
    // {2} of 8 split once more in 2 is {4}: one factor with more parts, if they are equal
    if (dim->n == 1 && size % (sizes[0] = dim->factors[0].cuts * n) == 0) {
        out[0] = (struct tile_factor){.size = 0, .cuts = sizes[0]};
        return true;
    }
    struct tile_factor *last = &out[dim->n - 1];
    int64_t inner = last->size / last->cuts;
    if (product != size || last->size % last->cuts || inner < n)
        return false;
    *count = dim->n;
    if (last->cuts > 1) {
        last->size = last->cuts;
        out[(*count)++] = (struct tile_factor){.size = inner, .cuts = n};
    } else {
        last->cuts = n;
    }
    return true;
}

// Lists of n devices for each shard. In each list, device i gets part i of the shard.
struct takers {
    size_t n, lists;                // devices per list; number of lists
    const struct device_group **of; // the lists of shard k are of[first[k]] .. of[first[k + 1] - 1]
    size_t *first;
};

// Returns the layout of `side` with every shard split along `axis`; device i of each list in
// `takers` gets part i. Example: {2,1:(0,1),(2,3)} along axis 1 becomes {2,2}. Devices 0 and 1,
// which both had tile 0, now have its left and right half. Returns NULL if not possible.
static struct tile_layout *spread(const struct pairing *pairing, const struct side *side, int axis,
                                  const int64_t *shape, const struct takers *takers)
{
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_FACTORS + 1];
    memcpy(dims, side->layout->dims, (size_t)pairing->rank * sizeof *dims);
    dims[axis].factors = factors;
    if (!cut_more(&side->layout->dims[axis], shape[axis], (int64_t)takers->n, factors,
                  &dims[axis].n))
        return NULL;
    struct tile_layout *layout = tsr__layout_cut(pairing->arena, pairing->rank, dims);
    struct tile_owner *pairs =
        ARENA_ARRAY(pairing->arena, struct tile_owner, takers->lists * takers->n + 1);
    size_t count = 0;
    if (!layout || !pairs)
        return NULL;
    // part i of tile k, in the numbering of the new layout
    for (int64_t k = 0; k < side->layout->n_shards; k++)
        for (size_t group = takers->first[k]; group < takers->first[k + 1]; group++)
            for (size_t i = 0; i < takers->n; i++) {
                int64_t shard = 0;
                for (int d = 0; d < pairing->rank; d++) {
                    int64_t more = 1, within = 0;
                    if (d == axis) {
                        more = (int64_t)takers->n;
                        within = (int64_t)i;
                    }
                    shard =
                        shard * side->n_parts[d] * more + side->part[k * pairing->rank + d] * more;
                    shard += within;
                }
                pairs[count++] = (struct tile_owner){shard, takers->of[group]->devices[i]};
            }
    return tsr__layout_own(pairing->arena, layout, pairs, count) ? layout : NULL;
}

static void add_spread(const struct pairing *pairing, const struct side *side, const int64_t *shape,
                       const struct takers *takers, struct between *between)
{
    int n = pairing->rank < TRIED_AXES ? pairing->rank : TRIED_AXES;
    if (takers->n < 2)
        return;
    for (int axis = 0; axis < n; axis++)
        add(between, spread(pairing, side, axis, shape, takers));
}

static bool takers_new(const struct pairing *pairing, const struct side *side, size_t lists,
                       struct takers *takers)
{
    *takers = (struct takers){
        .of = ARENA_ARRAY(pairing->arena, const struct device_group *, lists + 1),
        .first = ARENA_ARRAY(pairing->arena, size_t, (size_t)side->layout->n_shards + 1)};
    return !pairing->arena->failed;
}

// Adds layouts in which each shard of the target is split among its owners, one layout for each
// axis. A later step gathers the parts. Does nothing if shards have different numbers of owners.
static void add_spread_target(const struct pairing *pairing, const int64_t *shape,
                              struct between *between)
{
    struct takers w;
    const struct tile_layout *layout = pairing->to.layout;
    if (!takers_new(pairing, &pairing->to, (size_t)layout->n_shards, &w))
        return;
    for (int64_t k = 0; k < layout->n_shards; k++) {
        struct device_group *group = ARENA_NEW(pairing->arena, struct device_group);
        w.first[k] = w.lists;
        size_t n = (size_t)(layout->first[k + 1] - layout->first[k]);
        if (!group || (n && w.n && n != w.n))
            return;
        *group = (struct device_group){layout->owners + layout->first[k], n};
        if (n) {
            w.n = n;
            w.of[w.lists++] = group;
        }
    }
    w.first[layout->n_shards] = w.lists;
    add_spread(pairing, &pairing->to, shape, &w, between);
}

// Adds layouts in which each member of a reduction group has the complete sum of one part of its
// shard. Does nothing if groups have different sizes.
static void add_spread_groups(const struct pairing *pairing, const int64_t *shape,
                              struct between *between)
{
    struct takers w;
    const struct partial *partial = pairing->pending;
    if (!takers_new(pairing, &pairing->from,
                    (size_t)pairing->from.layout->first[pairing->from.layout->n_shards], &w))
        return;
    w.n = partial->groups[0].n;
    for (size_t group = 0; group < partial->n_groups; group++)
        if (partial->groups[group].n != w.n)
            return;
    for (int64_t k = 0; k < pairing->from.layout->n_shards; k++) {
        w.first[k] = w.lists;
        for (size_t group = 0; group < partial->n_groups; group++)
            if (tsr__side_owns(&pairing->from,
                               pairing_device(pairing, partial->groups[group].devices[0]), k))
                w.of[w.lists++] = &partial->groups[group];
    }
    w.first[pairing->from.layout->n_shards] = w.lists;
    add_spread(pairing, &pairing->from, shape, &w, between);
}

// Returns the layout in which one member of each reduction group has the complete sum. If possible,
// this is a member that owns a shard of the target. Returns NULL if out of memory.
static struct tile_layout *on_roots(const struct pairing *pairing)
{
    struct tile_layout *layout =
        tsr__layout_cut(pairing->arena, pairing->rank, pairing->from.layout->dims);
    size_t n = (size_t)pairing->from.layout->first[pairing->from.layout->n_shards], count = 0;
    struct tile_owner *pairs = ARENA_ARRAY(pairing->arena, struct tile_owner, n + 1);
    if (!layout || !pairs)
        return NULL;
    for (size_t g = 0; g < pairing->pending->n_groups; g++) {
        const struct device_group *group = &pairing->pending->groups[g];
        size_t root = pairing_device(pairing, group->devices[0]);
        for (size_t i = 0; i < group->n; i++) {
            if (side_count(&pairing->to, root))
                break;
            root = pairing_device(pairing, group->devices[i]);
        }
        if (!side_count(&pairing->to, root))
            // no member owns a shard of the target
            root = pairing_device(pairing, group->devices[0]);
        for (size_t i = pairing->from.first[root]; i < pairing->from.first[root + 1]; i++)
            pairs[count++] = (struct tile_owner){pairing->from.shards[i], pairing->devices[root]};
    }
    if (layout && pairs && tsr__layout_own(pairing->arena, layout, pairs, count))
        return layout;
    return NULL;
}

// Lists the intermediate layouts to try. For a pending reduction these include the source layout
// (all members get the sum), one member of each group, and a part of the sum on each member.
static void list_between(const struct search *s, const struct pairing *pairing,
                         struct between *between)
{
    add_mixed(pairing, between);
    add_spread_target(pairing, s->shape, between);
    if (!pairing->pending)
        return;
    add(between, pairing->from.layout);
    add(between, on_roots(pairing));
    add_spread_groups(pairing, s->shape, between);
}

// ---- search ------------------------------------------------------------------------------------

// Returns the size of the largest group, to estimate the work.
static int64_t largest_group(const struct partial *partial)
{
    int64_t n = 1;
    for (size_t group = 0; group < partial->n_groups; group++)
        n = int64_max(n, (int64_t)partial->groups[group].n);
    return n;
}

// Compares two layouts (*pairing, allocated in `arena`) and computes the step between them, but
// only its name and bytes. With `combines` the step completes the pending reduction. Adds to
// s->work.
static tsr_status pair(struct search *s, struct arena *arena, const struct tile_layout *from,
                       bool combines, const struct tile_layout *to, struct pairing *pairing,
                       struct reshard_step *step)
{
    const struct partial *pending = NULL;
    int64_t members = 1;
    if (combines) {
        pending = s->pending;
        members = largest_group(pending);
    }
    s->work += to->first[to->n_shards] * from->n_shards * members;
    s->work += from->n_shards + to->n_shards;
    TRY(tsr__pairing_new(arena, from, pending, to, s->shape, s->unit, pairing));
    struct arena made = {.session = arena->session};
    pairing->made = &made;
    pairing->brief = true;
    tsr_status status = tsr__reshard_step(pairing, step);
    tsr__arena_free(&made);
    return status;
}

// Returns the cost of a path after one more step.
static struct cost after_step(const struct cost *cost, const struct reshard_step *step)
{
    return (struct cost){cost->bytes + tsr__reshard_cost(step),
                         cost->exchanges + (step->op == RESHARD_EXCHANGE),
                         cost->steps + (step->op != RESHARD_NOTHING)};
}

static void search(struct search *search, const struct tile_layout *from, bool pending, int depth,
                   const struct cost *so_far);

// Tries a step to one intermediate layout and continues the search from there, if the path is still
// cheaper than the best one. With `combines` the step completes a pending reduction. Otherwise
// partial results may only be sliced, and all members of a group must keep the same shard.
static void try_between(struct search *s, const struct tile_layout *from, bool pending,
                        bool combines, const struct tile_layout *to, int depth,
                        const struct cost *so_far)
{
    struct pairing pairing;
    struct reshard_step step;
    if (s->status != TSR_OK || s->work > MAX_WORK)
        return;
    struct arena over = {.session = s->arena->session};
    tsr_status status = pair(s, &over, from, combines, to, &pairing, &step);
    // groups stay valid only if all members keep the same shard
    bool keeps = pending && !combines;
    if (status == TSR_OK && keeps && step.op != RESHARD_SLICE)
        status = TSR_INVALID;
    if (status == TSR_OK && keeps)
        status = tsr__pairing_new(&over, to, s->pending, to, s->shape, s->unit, &pairing);
    tsr__arena_free(&over);
    if (status == TSR_NOMEM)
        s->status = status;
    if (status != TSR_OK || step.op == RESHARD_NOTHING)
        return;
    struct cost cost = after_step(so_far, &step);
    if (!cheaper(&cost, &s->best_cost))
        return;
    s->path[depth] = (struct hop){to, combines};
    search(s, to, pending && !combines, depth + 1, &cost);
}

// Searches paths from a layout to the target. Tries the direct step first, then intermediate
// layouts. `depth` is the number of steps so far. The search is limited by MAX_STEPS, MAX_BETWEEN
// and MAX_WORK, not by time, so that results are the same on every machine.
static void search(struct search *s, const struct tile_layout *from, bool pending, int depth,
                   const struct cost *so_far)
{
    struct pairing pairing;
    struct reshard_step step;
    struct between between = {.n = 0};
    tsr_status status = pair(s, s->arena, from, pending, s->to, &pairing, &step);
    if (status != TSR_OK) {
        if (depth == 0 || status == TSR_NOMEM)
            s->status = status;
        return;
    }
    struct cost cost = after_step(so_far, &step);
    s->path[depth] = (struct hop){s->to, pending};
    if (s->n_best < 0 || cheaper(&cost, &s->best_cost)) {
        s->best_cost = cost;
        s->n_best = depth + 1;
        memcpy(s->best, s->path, sizeof s->best);
    }
    // True if no path can be cheaper: the value is complete, so the missing elements must be sent
    // anyway.
    bool best = !pending && step.op != RESHARD_EXCHANGE && step.sent <= step.received;
    if (best || depth + 1 == MAX_STEPS)
        return;
    list_between(s, &pairing, &between);
    for (int i = 0; i < between.n; i++) {
        try_between(s, from, pending, pending, between.at[i], depth, so_far);
        if (pending && between.at[i] != pairing.from.layout)
            try_between(s, from, pending, false, between.at[i], depth, so_far);
    }
    if (s->arena->failed)
        s->status = TSR_NOMEM;
}

// ---- the plan ----------------------------------------------------------------------------------

static tsr_status refuse(struct arena *arena, tsr_status status, bool pending)
{
    if (status == TSR_UNSUPPORTED)
        tsr__diag(arena->session, DIAG_tiles_many, NULL, "use a smaller shape, or fewer tiles",
                  "there are too many tiles or bytes to plan the resharding");
    else if (status == TSR_INVALID && pending)
        tsr__diag(arena->session, DIAG_reshard_source, NULL,
                  "give every tile of the source an owner, and members of a group the same tiles",
                  "no group of devices has all partial results that the target needs");
    else if (status == TSR_INVALID)
        tsr__diag(arena->session, DIAG_reshard_source, NULL,
                  "give every tile of the source an owner",
                  "the target needs elements that no device of the source has");
    return status;
}

// True if the numbers of bytes that the search computes cannot overflow.
static bool in_range(const struct tile_layout *from, const struct tile_layout *to,
                     const int64_t *shape, size_t unit)
{
    int64_t n = 16 * (int64_t)unit;
    for (int axis = 0; axis < from->rank; axis++)
        if (shape[axis] && !mul_ok(n, shape[axis], &n))
            return false;
    return mul_ok(n, from->first[from->n_shards] + 1, &n) &&
           mul_ok(n, to->first[to->n_shards] + 1, &n);
}

// Builds the steps of the best path with groups and moves, and also the direct step.
static tsr_status make_steps(struct arena *arena, const struct search *s,
                             const struct tile_layout *from, struct reshard *out)
{
    struct pairing pairing;
    TRY(tsr__pairing_new(arena, from, s->pending, s->to, s->shape, s->unit, &pairing));
    TRY(tsr__reshard_step(&pairing, &out->direct));
    if (s->n_best == 1) { // no intermediate layout: the path is the direct step
        out->steps[0] = out->direct;
        out->n_steps = out->direct.op != RESHARD_NOTHING;
        return TSR_OK;
    }
    for (int i = 0; i < s->n_best; i++) {
        const struct partial *pending = s->best[i].combines ? s->pending : NULL;
        TRY(tsr__pairing_new(arena, from, pending, s->best[i].to, s->shape, s->unit, &pairing));
        TRY(tsr__reshard_step(&pairing, &out->steps[out->n_steps]));
        from = pairing.to.layout;
        if (out->steps[out->n_steps].op != RESHARD_NOTHING)
            out->n_steps++;
    }
    return TSR_OK;
}

// True if every group has one device, so that no reduction is pending.
static bool all_single(const struct partial *partial)
{
    for (size_t group = 0; group < partial->n_groups; group++)
        if (partial->groups[group].n > 1)
            return false;
    return true;
}

// Finds the cheapest steps from one layout to another. The search uses a temporary arena; only the
// steps of the best path are allocated in the caller's. A pending reduction in groups of one device
// is already complete.
tsr_status tsr__reshard_plan(struct arena *arena, const struct tile_layout *from,
                             const struct partial *pending, const struct tile_layout *to,
                             const int64_t *shape, size_t elem_bytes, struct reshard **out)
{
    struct reshard *reshard = ARENA_NEW(arena, struct reshard);
    struct cost none = {0};
    if (!reshard)
        return TSR_NOMEM;
    reshard->steps = ARENA_ARRAY(arena, struct reshard_step, RESHARD_MAX_STEPS);
    if (!reshard->steps)
        return TSR_NOMEM;
    if (from->rank != to->rank)
        return refuse(arena, TSR_INVALID, false);
    if (!in_range(from, to, shape, elem_bytes))
        return refuse(arena, TSR_UNSUPPORTED, false);
    if (pending && all_single(pending))
        pending = NULL;
    struct arena scratch = {.session = arena->session};
    struct search s = {.arena = &scratch,
                       .pending = pending,
                       .to = to,
                       .shape = shape,
                       .unit = elem_bytes,
                       .n_best = -1};
    search(&s, from, s.pending != NULL, 0, &none);
    tsr_status status = s.status;
    if (status == TSR_OK)
        status = make_steps(arena, &s, from, reshard);
    else
        (void)refuse(arena, status, s.pending != NULL);
    tsr__arena_free(&scratch);
    if (status == TSR_OK)
        *out = reshard;
    return status;
}
