// SPDX-License-Identifier: Apache-2.0
// operators.c - decides which operators turn one layout into another. `partition` writes exactly
// this list, and `plan` predicts its time. It is the first of these that is possible:
//     1. nothing, or a slice, if every device stores all elements that it needs
//     2. one AllGather along a sharded factor
//     3. the cheapest sequence of moves of mesh axes (moves.c) that fit (fits.c), if a Reshard is
//        not cheaper
//     4. gathers along all sharded factors and a slice, if ranks cannot compute the full shape,
//        which a Reshard needs
//     5. Reshard, from any layout to any other
//
// An operator costs the bytes that the busiest device sends or receives, plus STEP_BYTES; gathers
// that follow each other are one step. Of equal costs, those are better that move fewer bytes in
// all, then collectives, then fewer steps. A Reshard moves only the missing elements, so several
// operators are better only if a slice turns an irregular exchange into a collective, or if a few
// devices would have to send to many.
//
// Examples:
//     [8,6] {2,1} -> {1,2} on ranks 0 and 1: an all-to-all moves the axis.
//     [8,6] {1,1:0} -> {2,1:1,2}: a scatter, which has no operator: Reshard.
//     [8,6] {2,2:0,1,2,3} -> {1,1:0,1,2,3}: first 0 and 2 (and 1 and 3) gather rows, then 0 and 1
//         (and 2 and 3) gather columns.
//     partial sums on ranks 0 and 1, [8,6] unsharded -> {2,1}: ReduceScatter along axis 0, unit 1.
//     the same sums -> {4,1:0,0,0,1}: ReduceScatter along axis 0 with shares 3 and 1: 6 rows and 2.
#include "sharding/reshard/reshard.h"

#include <stdlib.h>

#define STEP_BYTES   1024               // cost of an operator besides its bytes
#define MAX_STEPS    3                  // limit of steps that are searched, besides a last slice
#define MAX_PIECES   ((int64_t)1 << 12) // limit of shards; layouts with more use Reshard
#define LEAST_SIZE   128                // example sizes are at least this large
#define MOST_EXAMPLE ((int64_t)1 << 32)

// Compared in this order; `total` has the bytes that all devices receive.
struct cost {
    int64_t bytes, total;
    int exchanges, steps, operators;
};
// The search for the cheapest operators: `path` has those to the current layout.
struct path_search {
    struct lowering lower;
    const struct partial *pending;
    const struct tile_layout *from, *to;
    struct pairing direct; // of these two
    struct reshard_operators path, *best;
    struct cost best_cost;
    // before the last operator, or before the gathers at the end of the path
    const struct tile_layout *start;
    struct cost before;
};

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
    int64_t parts = a / common_divisor(a, b);
    return parts > MOST_EXAMPLE / b ? MOST_EXAMPLE : parts * b;
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

// False if a layout between `from` and `to` has other factors of an open dimension than both, so
// that the example does not stand for all sizes, or more shards, some of which might be empty.
static bool may_pass(const struct path_search *s, const struct tile_layout *between)
{
    const struct lowering *lower = &s->lower;
    const struct tile_layout *from = s->from, *to = s->to;
    for (int axis = 0; axis < lower->tensor->rank; axis++) {
        int64_t n = tsr__dim_parts(&between->dims[axis]);
        const struct tile_dim *dim = &between->dims[axis];
        if (is_open(lower, axis) &&
            ((n > tsr__dim_parts(&from->dims[axis]) && n > tsr__dim_parts(&to->dims[axis])) ||
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

// ---- search ------------------------------------------------------------------------------------

// Compares two layouts, with the example sizes. Returns false if that is not possible.
static bool pair(struct path_search *s, struct arena *arena, const struct tile_layout *from,
                 const struct partial *pending, const struct tile_layout *to,
                 struct pairing *pairing)
{
    return tsr__pairing_new(arena, from, pending, to, s->lower.shape,
                            (size_t)s->lower.tensor->bits / 8, pairing) == TSR_OK;
}

static bool cheaper(const struct cost *x, const struct cost *y)
{
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes;
    if (x->total != y->total)
        return x->total < y->total;
    if (x->exchanges != y->exchanges)
        return x->exchanges < y->exchanges;
    return x->steps != y->steps ? x->steps < y->steps : x->operators < y->operators;
}

static bool ends_with_gather(const struct path_search *s)
{
    return s->path.n && s->path.at[s->path.n - 1].op == COMM_ALL_GATHER;
}

// Computes the cost of the path with one more operator, from lower->pairing. Gathers that follow
// each other cost as much as one gather along all their axes, so they cost the same in any order.
// Returns false if there is no such operator.
static bool cost_after(struct path_search *s, const struct tile_layout *at,
                       const struct reshard_operator *move, struct cost *cost)
{
    struct pairing several;
    struct reshard_bytes bytes, own = {0};
    struct cost so_far = *cost;
    bool chained = move->op == COMM_ALL_GATHER && ends_with_gather(s);
    if (move->op != RESHARD_SLICE && tsr__operator_bytes(&s->lower.pairing, move, &own) != TSR_OK)
        return false;
    bytes = own;
    if (!chained) {
        s->start = at;
        s->before = *cost;
    } else if (!pair(s, s->lower.scratch, s->start, NULL, move->layout, &several) ||
               tsr__operator_bytes(&several, move, &bytes) != TSR_OK) {
        return false;
    }
    *cost = s->before;
    cost->steps++;
    cost->operators = so_far.operators + 1;
    cost->total = so_far.total + own.total;
    if (move->op != RESHARD_SLICE)
        cost->bytes += int64_max(bytes.received, bytes.sent) + STEP_BYTES;
    return true;
}

// Keeps the path as the best one if it is cheaper. Where it ends, every device has its shard of the
// target (`same`) or slices it.
static void finish(struct path_search *s, const struct tile_layout *at, bool same, struct cost cost)
{
    bool done = tsr__layout_same(at, s->to);
    cost.steps += !same;
    cost.operators += !done;
    if (s->path.n + !done > RESHARD_MAX_STEPS || !cheaper(&cost, &s->best_cost))
        return;
    s->best_cost = cost;
    *s->best = s->path;
    if (!done)
        s->best->at[s->best->n++] = (struct reshard_operator){
            .op = same ? RESHARD_NOTHING : RESHARD_SLICE, .layout = s->to, .unit = 1};
}

// True if partial sums that are sliced to the layout still have groups whose members have the same
// shard.
static bool keeps_groups(struct path_search *s, struct arena *arena,
                         const struct tile_layout *layout)
{
    struct pairing pairing;
    return pair(s, arena, layout, s->pending, layout, &pairing);
}

static void search(struct path_search *s, const struct tile_layout *at, bool pending,
                   const struct cost *so_far);

// Tries one move from a layout, and continues the search after it.
static void try_move(struct path_search *s, const struct tile_layout *at, bool pending,
                     struct reshard_operator *move, struct cost cost)
{
    struct arena scratch = {.session = s->lower.arena->session};
    const struct tile_layout *start = s->start;
    struct cost before = s->before;
    bool sums = comm_has(move->op, TRAIT_REDUCES);
    s->lower.scratch = &scratch;
    bool ok = may_pass(s, move->layout) &&
              pair(s, &scratch, at, NULL, move->layout, &s->lower.pairing) &&
              cost_after(s, at, move, &cost) && cheaper(&cost, &s->best_cost) &&
              tsr__operator_fits(&s->lower, move) &&
              (sums || !pending || keeps_groups(s, &scratch, move->layout));
    s->lower.arena->failed = s->lower.arena->failed || scratch.failed;
    tsr__arena_free(&scratch);
    if (ok) {
        s->path.at[s->path.n++] = *move;
        search(s, move->layout, pending && !sums, &cost);
        s->path.n--;
    }
    s->start = start;
    s->before = before;
}

// Considers a Reshard after a sum was reduced. If that is the cheapest, the path is no list of its
// own: the sum is reduced in place, and its readers are served by a Reshard.
static void end_with_exchange(struct path_search *s, const struct pairing *pairing,
                              struct cost cost)
{
    struct reshard_bytes bytes;
    if (tsr__operator_bytes(pairing, &(struct reshard_operator){.op = COMM_RESHARD}, &bytes) !=
        TSR_OK)
        return;
    cost.bytes += int64_max(bytes.received, bytes.sent) + STEP_BYTES;
    cost.total += bytes.total;
    cost.exchanges++;
    cost.steps++;
    if (!cheaper(&cost, &s->best_cost))
        return;
    s->best_cost = cost;
    s->best->n = 0;
}

// Searches operators from a layout to the target. A path that cannot become cheaper than the best
// one is left: at least the missing elements must be moved. The search is limited by MAX_STEPS and
// the number of moves, not by time, so that results are the same on every machine.
static void search(struct path_search *s, const struct tile_layout *at, bool pending,
                   const struct cost *so_far)
{
    struct arena *arena = s->lower.arena;
    struct pairing next, *pairing = s->path.n ? &next : &s->direct;
    struct reshard_bytes bytes;
    struct reshard_moves *moves;
    bool same;
    if (s->path.n && !pending && tsr__can_convert_locally(arena, s->lower.tensor, at, s->to, &same))
        finish(s, at, same, *so_far);
    if (s->path.n == MAX_STEPS ||
        (s->path.n && !pair(s, arena, at, pending ? s->pending : NULL, s->to, pairing)))
        return;
    if (s->pending && !pending)
        end_with_exchange(s, pairing, *so_far);
    struct cost least = *so_far;
    if (!pending && !ends_with_gather(s) && tsr__missing_bytes(pairing, &bytes) == TSR_OK) {
        least.bytes += bytes.received;
        least.total += bytes.total;
    }
    moves = cheaper(&least, &s->best_cost) ? ARENA_NEW(arena, struct reshard_moves) : NULL;
    if (!moves)
        return;
    tsr__reshard_moves(pairing, arena, s->best_cost.bytes - so_far->bytes, moves);
    for (int i = 0; i < moves->n; i++)
        try_move(s, at, pending, &moves->at[i], *so_far);
}

// Sets the cost of one Reshard. Without `exact` its bytes are only those that a device receives:
// the busiest device may have to send more, but to find that out takes longer. Returns false if it
// is not higher than before, or if there is none.
static bool take_exchange(struct path_search *s, bool exact)
{
    struct reshard_bytes bytes;
    const struct reshard_operator exchange = {.op = COMM_RESHARD};
    tsr_status status = exact ? tsr__operator_bytes(&s->direct, &exchange, &bytes)
                              : tsr__missing_bytes(&s->direct, &bytes);
    if (status != TSR_OK)
        return false;
    int64_t busiest = int64_max(bytes.received, bytes.sent);
    s->best_cost = (struct cost){busiest + STEP_BYTES, bytes.total, 1, 1, 1};
    return !exact || bytes.sent > bytes.received;
}

// Returns a copy of n elements; NULL: there are none, or out of memory.
static void *copy_of(struct arena *arena, const void *from, size_t n, size_t size)
{
    void *to = from ? tsr__arena_array(arena, n + 1, size, _Alignof(int64_t)) : NULL;
    if (to)
        memcpy(to, from, n * size);
    return to;
}

// Copies an operator into the arena of the results. Returns false if out of memory.
static bool keep_operator(struct arena *arena, const struct reshard_operator *from,
                          struct reshard_operator *out)
{
    size_t n = from->n_groups;
    *out = *from;
    out->layout = tsr__layout_copy(arena, from->layout);
    out->groups = ARENA_ARRAY(arena, struct device_group, n + 1);
    for (size_t g = 0; out->groups && g < n; g++)
        if (!tsr__group_sorted(arena, &from->groups[g], &out->groups[g]))
            return false;
    out->roots = copy_of(arena, from->roots, n, sizeof *from->roots);
    out->parts = copy_of(arena, from->parts, n, sizeof *from->parts);
    out->shares = copy_of(arena, from->shares, n, sizeof *from->shares);
    for (size_t g = 0; out->shares && g < n; g++)
        out->shares[g] =
            copy_of(arena, from->shares[g], from->groups[g].n, sizeof *from->shares[g]);
    return !arena->failed;
}

// Finds the cheapest operators that turn `from` into `to`. out->n is 0 if there are none, or if a
// Reshard of a complete value is cheaper.
static void find_path(struct path_search *s, struct reshard_operators *out)
{
    struct arena *arena = s->lower.arena, work = {.session = arena->session};
    struct reshard_operators best = {.n = 0};
    struct cost none = {0};
    s->lower.arena = &work;
    s->best = &best;
    s->best_cost = (struct cost){.bytes = INT64_MAX};
    bool ok = pair(s, &work, s->from, s->pending, s->to, &s->direct) &&
              owns_once(&s->direct, &s->direct.from) && owns_once(&s->direct, &s->direct.to);
    const struct tile_layout *from = s->direct.from.layout; // loops in the order of dimensions
    if (ok && s->pending) {
        search(s, from, true, &none);
    } else if (ok && take_exchange(s, false)) {
        search(s, from, false, &none);
        if (!best.n && take_exchange(s, true))
            search(s, from, false, &none);
    }
    for (int i = 0; i < best.n; i++)
        if (keep_operator(arena, &best.at[i], &out->at[i]))
            out->n = i + 1;
    arena->failed = arena->failed || work.failed;
    tsr__arena_free(&work);
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

static struct loop_axis whole_loop(const struct tile_layout *layout, int loop)
{
    return (struct loop_axis){loop, loop_parts(layout, loop), 0};
}

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
        if (tsr__dim_parts(&to->dims[from->loops[loop].dim]) != 1 || !tsr__owns_once(from))
            continue;
        const struct tile_layout *got =
            tsr__gathered_layout(arena, from, whole_loop(from, loop), &groups, &n);
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
        const struct tile_layout *to =
            tsr__gathered_layout(arena, from, whole_loop(from, loop), &groups, &n);
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
    struct path_search s = {
        .lower = {.arena = arena, .tensor = tensor}, .pending = pending, .from = from, .to = to};
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
    if (has_path(tensor, from, to) && set_example(&s.lower, from, to))
        find_path(&s, out);
    if (out->n || pending)
        return arena_status(arena);
    if (!shape_is_known(tensor) && from->rank == to->rank && tsr__owns_all(from) &&
        tsr__owns_once(from) && gather_and_slice(arena, tensor, from, to, out))
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
    out->at[0].groups = ARENA_ARRAY(arena, struct device_group, pending->n_groups + 1);
    for (size_t g = 0; out->at[0].groups && g < pending->n_groups; g++)
        if (!tsr__group_sorted(arena, &pending->groups[g], &out->at[0].groups[g]))
            return TSR_NOMEM;
    out->at[0].n_groups = pending->n_groups;
    return arena_status(arena);
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
