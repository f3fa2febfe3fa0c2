// SPDX-License-Identifier: Apache-2.0
// local.c - computes which elements of a tensor one device stores, whether they suffice for another
// layout, and which layout a gather returns. It is index arithmetic only.
//
//     Example: [8,6] {2,1} on ranks 0 and 1. Rank 1 has coordinate 1 of dimension 0: rows 4..7.
//     For {2,2:0,2,1,3} rank 1 needs columns 0..2 of rows 4..7. It has them and slices.
//     For {1,2} rank 1 also needs rows 0..3. Rank 0 must send them.
#include "sharding/reshard/reshard.h"

#include <stdlib.h>

// Stores the coordinates of a shard along the axis, one per factor of the dimension.
static void shard_coords(const struct tile_layout *layout, int64_t shard, int axis, int64_t *coords)
{
    int64_t loops[TILE_MAX_LOOPS];
    memset(coords, 0, TILE_MAX_FACTORS * sizeof(*coords));
    tsr__layout_coords(layout, shard, loops);
    for (int i = 0; i < layout->n_loops; i++)
        if (layout->loops[i].dim == axis)
            coords[layout->loops[i].factor] = loops[i];
}

bool tsr__device_coords(const struct tile_layout *layout, int64_t device, int axis, int64_t *coords)
{
    int64_t shard = tsr__layout_shard_of(layout, device, 0);
    if (shard >= 0)
        shard_coords(layout, shard, axis, coords);
    return shard >= 0;
}

static bool same_owners(const struct tile_layout *a, const struct tile_layout *b)
{
    const int64_t *x, *y;
    size_t n = tsr__layout_owners(a, 0, &x), m = tsr__layout_owners(b, 0, &y);
    return n == m && memcmp(x, y, n * sizeof(*x)) == 0;
}

// True if two layouts are equal. For unsharded layouts, only the owners are compared, not the
// ranks, because the rank of a value may be unknown.
bool tsr__layout_same(const struct tile_layout *a, const struct tile_layout *b)
{
    if (tsr__layout_is_whole(a) && tsr__layout_is_whole(b))
        return same_owners(a, b);
    return tsr__layout_equal(a, b);
}

size_t tsr__layouts_devices(struct arena *arena, const struct tile_layout *a,
                            const struct tile_layout *b, int64_t **out)
{
    size_t n = (size_t)a->first[a->n_shards], kept = 0;
    size_t m = b ? (size_t)b->first[b->n_shards] : 0;
    int64_t *all = *out = ARENA_ARRAY(arena, int64_t, n + m + 1);
    if (!all)
        return 0;
    memcpy(all, a->owners, n * sizeof(*all));
    if (m)
        memcpy(all + n, b->owners, m * sizeof(*all));
    qsort(all, n + m, sizeof(*all), by_int64);
    for (size_t i = 0; i < n + m; i++)
        if (i == 0 || all[i] != all[i - 1])
            all[kept++] = all[i];
    return kept;
}

size_t tsr__layout_devices(struct arena *arena, const struct tile_layout *layout, int64_t **out)
{
    return tsr__layouts_devices(arena, layout, NULL, out);
}

bool tsr__group_sorted(struct arena *arena, const struct device_group *from,
                       struct device_group *to)
{
    to->n = from->n;
    to->devices = ARENA_ARRAY(arena, int64_t, from->n + 1);
    if (!to->devices)
        return false;
    memcpy(to->devices, from->devices, from->n * sizeof(*to->devices));
    qsort(to->devices, to->n, sizeof(*to->devices), by_int64);
    return true;
}

bool tsr__owns_once(const struct tile_layout *layout)
{
    for (int64_t k = 0; k < layout->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, k, &owners);
        for (size_t i = 0; i < n; i++)
            if (tsr__layout_shard_of(layout, owners[i], 0) != k)
                return false;
    }
    return true;
}

bool tsr__owns_all(const struct tile_layout *layout)
{
    for (int64_t k = 0; k < layout->n_shards; k++)
        if (layout->first[k] == layout->first[k + 1])
            return false;
    return true;
}

// ---- one dimension on one device ---------------------------------------------------------------

// True if dimensions a and b of two layouts have the same factors, and shards x and y have the same
// coordinates. The size of a single factor is not compared, because it may be unknown in one
// layout.
static bool factors_equal(const struct tile_dim *a, const struct tile_dim *b, const int64_t *x,
                          const int64_t *y)
{
    if (a->n != b->n)
        return false;
    for (int factor = 0; factor < a->n; factor++) {
        bool size = a->n == 1 || a->factors[factor].size == b->factors[factor].size;
        if (!size || a->factors[factor].cuts != b->factors[factor].cuts ||
            a->factors[factor].shares != b->factors[factor].shares || x[factor] != y[factor])
            return false;
    }
    return true;
}

// Returns the elements of the shard at these coordinates, as *n intervals. Returns NULL if there
// are too many, or if out of memory.
static struct tile_interval *intervals(struct arena *arena, const struct tile_dim *dim,
                                       int64_t size, const int64_t *coords, int64_t *n)
{
    *n = tsr__dim_intervals(dim, size, coords, NULL, 0);
    if (*n < 0 || *n > (1 << 20))
        return NULL;
    struct tile_interval *at = ARENA_ARRAY(arena, struct tile_interval, (size_t)*n + 1);
    if (at)
        tsr__dim_intervals(dim, size, coords, at, *n);
    return at;
}

// Converts the intervals `b` of the full dimension to positions in a local tensor that stores the
// intervals `a`. The result is DIM_NO if an interval of `b` is not inside one of `a`, and DIM_SAME
// if the local tensor has no other elements. Both lists ascend.
static struct dim_slice rebase_intervals(struct arena *arena, const struct tile_interval *a,
                                         int64_t n_a, const struct tile_interval *b, int64_t n_b)
{
    struct dim_slice cut = {.source = DIM_STATIC};
    cut.at = ARENA_ARRAY(arena, struct tile_interval, (size_t)n_b + 1);
    int64_t i = 0, before = 0;
    for (int64_t k = 0; k < n_b && cut.at; k++) {
        while (i < n_a && a[i].stop < b[k].stop)
            before += a[i].stop - a[i].start, i++;
        if (i == n_a || b[k].start < a[i].start)
            return (struct dim_slice){.source = DIM_NO};
        int64_t start = before + b[k].start - a[i].start;
        int64_t stop = start + b[k].stop - b[k].start;
        if (cut.n && cut.at[cut.n - 1].stop == start)
            cut.at[cut.n - 1].stop = stop; // merge adjacent intervals
        else
            cut.at[cut.n++] = (struct tile_interval){start, stop};
    }
    int64_t held = before;
    for (; i < n_a; i++)
        held += a[i].stop - a[i].start;
    if (cut.n == 1 && cut.at[0].start == 0 && cut.at[0].stop == held)
        cut.source = DIM_SAME;
    return cut;
}

// Finds the units of a part of a dimension of unknown size. False: the part is strided, or the unit
// is unknown.
static bool units_of(const struct tile_dim *dim, const int64_t *coords, int64_t *unit,
                     struct tile_units *out)
{
    *unit = 1;
    for (int factor = 1; factor < dim->n; factor++)
        if (dim->factors[factor].cuts > 1 || dim->factors[factor].size <= 0 ||
            !mul_ok(*unit, dim->factors[factor].size, unit))
            return false;
    *out = tsr__share_units(dim->factors[0].cuts, dim->factors[0].shares, coords[0]);
    return true;
}

// Returns a dimension of the layout. Dimensions beyond the rank of the layout are unsharded.
static const struct tile_dim *dim_of(const struct tile_layout *layout, int axis)
{
    static const struct tile_dim whole = {NULL, 0};
    return axis < layout->rank ? &layout->dims[axis] : &whole;
}

// Two layouts of a tensor. `has` and `wants` are shards of them on one device.
struct two_layouts {
    struct arena *arena;
    const struct reshard_tensor *tensor;
    const struct tile_layout *from, *to;
    int64_t has, wants;
};

// Returns the slice of an open dimension, at bounds that nodes compute. If the device has a part of
// the dimension, they need the full size, and the wanted part must be in it.
static struct dim_slice dynamic_slice(const struct two_layouts *two, int axis, const int64_t *x,
                                      const int64_t *y)
{
    const struct reshard_tensor *tensor = two->tensor;
    const struct tile_dim *from = dim_of(two->from, axis);
    struct dim_slice cut = {.source = DIM_DYNAMIC, .stored = {0, 1, 1}}, no = {.source = DIM_NO};
    struct tile_units *a = &cut.stored, *b = &cut.part;
    int64_t unit;
    if (tensor->constant_bounds || !units_of(dim_of(two->to, axis), y, &cut.unit, b))
        return no;
    if (tsr__dim_is_sharded(from) &&
        (axis >= tensor->rank || tensor->shape[axis] != SIZE_OPEN || !units_of(from, x, &unit, a) ||
         unit != cut.unit || b->first * a->of < a->first * b->of ||
         b->stop * a->of > a->stop * b->of))
        return no;
    return cut;
}

// Returns how a device gets its shard of `to` from its shard of `from`, along one axis. Examples:
//     [8] {2} -> {2}          DIM_SAME: each device keeps its shard
//     [8] {2} -> unsharded    DIM_NO: each device lacks 4 elements
//     [n] unsharded -> {4}    DIM_DYNAMIC: nodes compute the bounds
//     [n] {2} -> {4:0,2,1,3}  DIM_DYNAMIC: they need n, which the shard does not tell
//     [8] unsharded -> {4}    DIM_STATIC: device 1 takes elements 2..3
static struct dim_slice slice_of(const struct two_layouts *two, int axis)
{
    const struct reshard_tensor *tensor = two->tensor;
    const struct tile_dim *a = dim_of(two->from, axis), *b = dim_of(two->to, axis);
    int64_t x[TILE_MAX_FACTORS], y[TILE_MAX_FACTORS];
    shard_coords(two->from, two->has, axis, x);
    shard_coords(two->to, two->wants, axis, y);
    if ((!tsr__dim_is_sharded(a) && !tsr__dim_is_sharded(b)) || factors_equal(a, b, x, y))
        return (struct dim_slice){.source = DIM_SAME};
    if (!tsr__dim_is_sharded(b))
        return (struct dim_slice){.source = DIM_NO};
    if (axis >= tensor->rank || tensor->shape[axis] < 0)
        return dynamic_slice(two, axis, x, y);
    int64_t size = tensor->shape[axis];
    int64_t n_a, n_b;
    struct tile_interval *held = intervals(two->arena, a, size, x, &n_a),
                         *need = intervals(two->arena, b, size, y, &n_b);
    if (!held || !need)
        return (struct dim_slice){.source = DIM_NO};
    return rebase_intervals(two->arena, held, n_a, need, n_b);
}

struct dim_slice tsr__dim_source(struct arena *arena, const struct reshard_tensor *tensor,
                                 const struct tile_layout *from, const struct tile_layout *to,
                                 int64_t device, int axis)
{
    struct two_layouts two = {.arena = arena, .tensor = tensor, .from = from, .to = to};
    two.has = tsr__layout_shard_of(from, device, 0);
    two.wants = tsr__layout_shard_of(to, device, 0);
    if (two.has < 0 || two.wants < 0)
        return (struct dim_slice){.source = DIM_NO};
    return slice_of(&two, axis);
}

// Returns the first shard of each device, -1: none; *n is the number of entries. NULL: out of
// memory.
static int64_t *first_shards(struct arena *arena, const struct tile_layout *layout, int64_t *n)
{
    *n = 1;
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        *n = int64_max(*n, layout->owners[i] + 1);
    int64_t *shards = ARENA_ARRAY(arena, int64_t, (size_t)*n);
    if (!shards)
        return NULL;
    memset(shards, 0xff, (size_t)*n * sizeof *shards);
    for (int64_t k = layout->n_shards; k-- > 0;)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            shards[layout->owners[i]] = k;
    return shards;
}

// True if each of the devices of two->to can slice its shard. *identity as below.
static bool all_slice(struct two_layouts *two, bool *identity)
{
    const struct tile_layout *to = two->to;
    int rank = two->from->rank < to->rank ? to->rank : two->from->rank;
    int64_t n_from, n_to;
    const int64_t *has = first_shards(two->arena, two->from, &n_from),
                  *wants = first_shards(two->arena, to, &n_to);
    *identity = true;
    if (!has || !wants)
        return false;
    for (int64_t i = 0; i < to->first[to->n_shards]; i++) {
        int64_t device = to->owners[i];
        if (device >= n_from || has[device] < 0)
            return false;
        two->has = has[device];
        two->wants = wants[device];
        for (int axis = 0; axis < rank; axis++) {
            enum dim_source source = slice_of(two, axis).source;
            if (source == DIM_NO)
                return false;
            *identity &= source == DIM_SAME;
        }
    }
    return true;
}

bool tsr__can_convert_locally(struct arena *arena, const struct reshard_tensor *tensor,
                              const struct tile_layout *from, const struct tile_layout *to,
                              bool *identity)
{
    struct arena scratch = {.session = arena->session};
    struct two_layouts two = {.arena = &scratch, .tensor = tensor, .from = from, .to = to};
    bool can = all_slice(&two, identity);
    arena->failed = arena->failed || scratch.failed;
    tsr__arena_free(&scratch);
    return can;
}

// ---- gathering ----------------------------------------------------------------------------------

// Returns a layout like `from` in which the parts of the axis are one part, without owners. Returns
// NULL if that is not a layout, or if out of memory.
static struct tile_layout *joined_along(struct arena *arena, const struct tile_layout *from,
                                        struct loop_axis axis)
{
    struct tile_dim dims[TILE_MAX_RANK] = {{0}};
    struct tile_factor factors[TILE_MAX_FACTORS];
    struct tile_loop loop = from->loops[axis.loop];
    int64_t cuts = loop_parts(from, axis.loop);
    memcpy(dims, from->dims, (size_t)from->rank * sizeof(*dims));
    struct tile_dim *dim = &dims[loop.dim];
    memcpy(factors, dim->factors, (size_t)dim->n * sizeof *factors);
    dim->factors = factors;
    if (axis.run < cuts &&
        (factors[loop.factor].shares || (axis.size && (dim->n > 1 || axis.size % axis.run))))
        return NULL;
    if (axis.run == cuts) {
        factors[loop.factor] = (struct tile_factor){.size = factors[loop.factor].size, .cuts = 1};
        if (!tsr__dim_is_sharded(dim))
            *dim = (struct tile_dim){NULL, 0};
    } else if (axis.size) {
        dim->n = 2;
        factors[0] = (struct tile_factor){.size = axis.run, .cuts = 1};
        factors[1] = (struct tile_factor){.size = axis.size / axis.run, .cuts = cuts / axis.run};
    } else {
        factors[loop.factor].cuts /= axis.run;
    }
    return tsr__layout_cut(arena, from->rank, dims);
}

// Returns the number of the shard of `layout` with these coordinates in the loops of `from`, which
// has the loops of `layout`, and perhaps loop `joined` besides, which may be another factor.
static int64_t shard_at(const struct tile_layout *layout, const struct tile_layout *from,
                        const int64_t *coords, int joined)
{
    int64_t at = 0;
    for (int i = 0; i < layout->n_loops; i++) {
        int64_t mine = 0;
        for (int k = 0; k < from->n_loops; k++)
            if (from->loops[k].dim == layout->loops[i].dim &&
                (from->loops[k].factor == layout->loops[i].factor || (k == joined && !mine)))
                mine = coords[k];
        at = at * loop_parts(layout, i) + mine;
    }
    return at;
}

// The groups of devices that gather along one loop (sharded factor). Each group gathers `run`
// shards, whose numbers differ by `stride`.
struct gather_groups {
    const struct tile_layout *from;
    int64_t stride, run;
    struct device_group *groups;
    size_t n_groups;
};

// Adds the groups that gather shards k, k + stride, k + 2 stride, ... Group l has the l-th owner of
// each shard. Returns false if shards have different numbers of owners, if the owners in a group do
// not ascend (a gather concatenates in this order), or if out of memory.
static bool pair_owners(struct arena *arena, struct gather_groups *gather, int64_t k)
{
    const struct tile_layout *from = gather->from;
    const int64_t *owners;
    size_t n = tsr__layout_owners(from, k, &owners);
    for (size_t l = 0; l < n; l++) {
        struct device_group *group = &gather->groups[gather->n_groups++];
        group->n = (size_t)gather->run;
        group->devices = ARENA_ARRAY(arena, int64_t, group->n);
        if (!group->devices)
            return false;
        for (int64_t j = 0; j < gather->run; j++) {
            if (tsr__layout_owners(from, k + j * gather->stride, &owners) != n)
                return false;
            group->devices[j] = owners[l];
            if (j && group->devices[j] <= group->devices[j - 1])
                return false;
        }
    }
    return n > 0;
}

// True if no other factor of the dimension is outside of the loop's factor, so that its parts are
// in the order of the dimension.
static bool is_gatherable(const struct tile_layout *from, int loop)
{
    const struct tile_dim *dim = &from->dims[from->loops[loop].dim];
    for (int factor = 0; factor < from->loops[loop].factor; factor++)
        if (dim->factors[factor].size != 1)
            return false;
    return true;
}

// Returns the layout after an AllGather along an axis, and its groups. Example: [8,6] {2,2} on
// ranks 0 1 2 3 is gathered along its first dimension. The result is {1,2} with columns 0..2 on
// ranks 0 and 2 and columns 3..5 on ranks 1 and 3. The groups are {0,2} and {1,3}. Only the
// outermost factor of a dimension can be gathered: else the elements would be in the wrong order.
const struct tile_layout *tsr__gathered_layout(struct arena *arena, const struct tile_layout *from,
                                               struct loop_axis axis, struct device_group **groups,
                                               size_t *n_groups)
{
    size_t n_owners = (size_t)from->first[from->n_shards];
    if (!is_gatherable(from, axis.loop))
        return NULL;
    struct tile_layout *to = joined_along(arena, from, axis);
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n_owners + 1);
    int64_t at = 0, coords[TILE_MAX_LOOPS], left = loop_parts(from, axis.loop) / axis.run;
    struct gather_groups gather = {.from = from, .run = axis.run};
    gather.stride = tsr__layout_stride(from, axis.loop) * (axis.size ? left : 1);
    gather.groups = ARENA_ARRAY(arena, struct device_group, n_owners + 1);
    if (!to || !pairs || !gather.groups)
        return NULL;
    for (int64_t k = 0; k < from->n_shards; k++) {
        tsr__layout_coords(from, k, coords);
        int64_t *part = &coords[axis.loop];
        bool first = axis.size ? *part < left : *part % axis.run == 0;
        if (first && !pair_owners(arena, &gather, k))
            return NULL;
        const int64_t *owners;
        size_t n = tsr__layout_owners(from, k, &owners);
        *part = axis.size ? *part % left : *part / axis.run;
        for (size_t i = 0; i < n; i++)
            pairs[at++] = (struct tile_owner){shard_at(to, from, coords, axis.loop), owners[i]};
    }
    *groups = gather.groups;
    *n_groups = gather.n_groups;
    return tsr__layout_own(arena, to, pairs, n_owners) ? to : NULL;
}

// ---- local sizes -------------------------------------------------------------------------------

// Returns how the size of a shard depends on the full size. `coords` has the shard's coordinate of
// each factor. The factor without a size (else the first one) becomes `part`, because its size is
// that of the dimension divided by the others. The other factors are multiplied to `unit` (full
// sizes) and `scale` (local sizes).
struct local_size tsr__local_size(const struct tile_dim *dim, const int64_t *coords)
{
    struct local_size size = {1, 1, {0, 1, 1}};
    int rest = 0;
    for (int factor = 0; factor < dim->n; factor++)
        if (dim->factors[factor].size == 0)
            rest = factor;
    for (int factor = 0; factor < dim->n; factor++) {
        const struct tile_factor *at = &dim->factors[factor];
        if (factor == rest) {
            size.part = tsr__share_units(at->cuts, at->shares, coords[factor]);
            continue;
        }
        size.unit *= at->size;
        size.scale *= tsr__share_size(at->size, at->cuts, at->shares, coords[factor]);
    }
    return size;
}

// Returns the local size if the full size is `whole`. Example: 10 elements in units of 4 are 3
// units, split into 2 shards. Shard 0 has 1 unit, 4 elements. Shard 1 has 2 units, the last of
// which is short: 8 - 2 = 6 elements.
int64_t tsr__local_size_of(const struct local_size *size, int64_t whole)
{
    int64_t units = (whole + size->unit - 1) / size->unit;
    int64_t a = tsr__tile_start(units, size->part.of, size->part.first);
    int64_t b = tsr__tile_start(units, size->part.of, size->part.stop);
    int64_t full = (b - a) * size->scale;
    if (size->part.stop == size->part.of) // the last unit may be short
        return full - (units * size->unit - whole);
    return full;
}
