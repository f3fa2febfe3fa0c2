// SPDX-License-Identifier: Apache-2.0
// layout.c - layouts: how an index space is sharded and which devices own each shard.
//
// Shards are numbered by nested loops over the sharded factors. Owners are stored shard by shard in
// one array with offsets, like the rows of a sparse matrix. Layouts have no sizes; piece.c combines
// them with a shape.
//
//     Example: {2,3} (dimensions in 2 and 3 parts) has shards 0 to 5; shard 4 is part 1 of the
//     first dimension and part 1 of the second. {2,1:5,(6,7)} has owners 5 6 7 and offsets 0 1 3:
//     shard 0 is on device 5, shard 1 on 6 and 7.
#include "tile/tile.h"

#include <stdlib.h>

// Allocates a layout. All arrays have one extra entry, so that none is empty.
static struct tile_layout *layout_alloc(struct arena *arena, int rank, int n_loops,
                                        int64_t n_shards, size_t n_owners)
{
    struct tile_layout *layout = ARENA_NEW(arena, struct tile_layout);
    if (!layout)
        return NULL;
    layout->rank = rank;
    layout->n_loops = n_loops;
    layout->n_shards = n_shards;
    layout->dims = ARENA_ARRAY(arena, struct tile_dim, (size_t)rank + 1);
    layout->loops = ARENA_ARRAY(arena, struct tile_loop, (size_t)n_loops + 1);
    layout->first = ARENA_ARRAY(arena, int64_t, (size_t)n_shards + 1);
    layout->owners = ARENA_ARRAY(arena, int64_t, n_owners + 1);
    return arena->failed ? NULL : layout;
}

static bool dims_copy(struct arena *arena, struct tile_layout *layout, const struct tile_dim *dims)
{
    for (int dim = 0; dim < layout->rank; dim++) {
        size_t n = (size_t)dims[dim].n;
        layout->dims[dim].n = dims[dim].n;
        layout->dims[dim].factors = ARENA_ARRAY(arena, struct tile_factor, n + 1);
        if (!layout->dims[dim].factors)
            return false;
        if (n)
            memcpy(layout->dims[dim].factors, dims[dim].factors, n * sizeof(struct tile_factor));
    }
    return true;
}

// Creates one loop for each factor with several parts; the last loop is the fastest. Example: {2}
// and {3} give 6 shards; shard 4 = 1 * 3 + 1 has the second half of the first dimension and the
// second third of the other.
struct tile_layout *tsr__layout_cut(struct arena *arena, int rank, const struct tile_dim *dims)
{
    int n_loops = 0;
    int64_t n_shards = 1;
    if (rank < 0 || rank > TILE_MAX_RANK)
        return NULL;
    for (int dim = 0; dim < rank; dim++)
        for (int factor = 0; factor < dims[dim].n; factor++) {
            int64_t cuts = dims[dim].factors[factor].cuts;
            if (cuts < 1 || cuts > TILE_MAX_SHARDS / n_shards)
                return NULL;
            n_shards *= cuts;
            n_loops += cuts > 1;
        }
    struct tile_layout *layout = layout_alloc(arena, rank, n_loops, n_shards, 0);
    if (!layout || !dims_copy(arena, layout, dims))
        return NULL;
    int at = 0;
    for (int dim = 0; dim < rank; dim++)
        for (int factor = 0; factor < dims[dim].n; factor++)
            if (dims[dim].factors[factor].cuts > 1)
                layout->loops[at++] = (struct tile_loop){dim, factor};
    return layout;
}

static int owner_order(const void *a, const void *b)
{
    const struct tile_owner *x = a, *y = b;
    if (x->shard != y->shard)
        return int64_order(x->shard, y->shard);
    return int64_order(x->device, y->device);
}

// Sets the owners. Sorts the pairs only if necessary, because most callers pass sorted ones.
bool tsr__layout_own(struct arena *arena, struct tile_layout *layout, struct tile_owner *pairs,
                     size_t n)
{
    int64_t *owners = ARENA_ARRAY(arena, int64_t, n + 1);
    if (!owners)
        return false;
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++)
        sorted = owner_order(&pairs[i - 1], &pairs[i]) < 0;
    if (!sorted)
        qsort(pairs, n, sizeof(*pairs), owner_order);
    size_t at = 0;
    int64_t kept = 0;
    for (int64_t k = 0; k < layout->n_shards; k++) {
        layout->first[k] = kept;
        for (; at < n && pairs[at].shard <= k; at++)
            if (at == 0 || owner_order(&pairs[at - 1], &pairs[at]) != 0)
                owners[kept++] = pairs[at].device;
    }
    layout->first[layout->n_shards] = kept;
    layout->owners = owners;
    return true;
}

struct tile_layout *tsr__layout_whole(struct arena *arena, int rank, const int64_t *devices,
                                      size_t n)
{
    struct tile_dim none[TILE_MAX_RANK] = {{0}};
    bool followed = rank >= 0 && rank <= TILE_MAX_RANK;
    struct tile_layout *layout = tsr__layout_cut(arena, followed ? rank : 0, none);
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!layout || !pairs)
        return NULL;
    for (size_t i = 0; i < n; i++)
        pairs[i] = (struct tile_owner){0, devices[i]};
    return tsr__layout_own(arena, layout, pairs, n) ? layout : NULL;
}

struct tile_layout *tsr__layout_copy(struct arena *arena, const struct tile_layout *l)
{
    size_t n_owners = (size_t)l->first[l->n_shards];
    struct tile_layout *c = layout_alloc(arena, l->rank, l->n_loops, l->n_shards, n_owners);
    if (!c || !dims_copy(arena, c, l->dims))
        return NULL;
    memcpy(c->loops, l->loops, (size_t)l->n_loops * sizeof(*l->loops));
    memcpy(c->first, l->first, ((size_t)l->n_shards + 1) * sizeof(*l->first));
    memcpy(c->owners, l->owners, n_owners * sizeof(*l->owners));
    return c;
}

// Returns the number of sharded factors in the dimension before the factor of this loop.
static int factor_ordinal(const struct tile_layout *layout, const struct tile_loop *at)
{
    int n = 0;
    for (int f = 0; f < at->factor; f++)
        n += layout->dims[at->dim].factors[f].cuts > 1;
    return n;
}

// Sets in_a[i] to the loop of a that corresponds to loop i of b: both belong to the k-th sharded
// factor of the same dimension.
static void match_loops(const struct tile_layout *a, const struct tile_layout *b, int *in_a)
{
    for (int i = 0; i < b->n_loops; i++)
        for (int j = 0; j < a->n_loops; j++)
            if (a->loops[j].dim == b->loops[i].dim &&
                factor_ordinal(a, &a->loops[j]) == factor_ordinal(b, &b->loops[i]))
                in_a[i] = j;
}

static int64_t loop_cuts(const struct tile_layout *layout, int i)
{
    return layout->dims[layout->loops[i].dim].factors[layout->loops[i].factor].cuts;
}

// Computes the coordinates of a shard. The coordinates are the digits of the shard number, the last
// loop fastest: shard 4 of loops of 2 and 3 is (1,1).
void tsr__layout_coords(const struct tile_layout *layout, int64_t shard, int64_t *coords)
{
    for (int i = layout->n_loops - 1; i >= 0; i--) {
        int64_t cuts = loop_cuts(layout, i);
        coords[i] = shard % cuts;
        shard /= cuts;
    }
}

int64_t tsr__layout_stride(const struct tile_layout *layout, int loop)
{
    int64_t stride = 1;
    for (int i = loop + 1; i < layout->n_loops; i++)
        stride *= layout->dims[layout->loops[i].dim].factors[layout->loops[i].factor].cuts;
    return stride;
}

// Returns the shard of a that has the same part of each factor as shard k of b.
static int64_t same_shard(const struct tile_layout *a, const struct tile_layout *b, const int *in_a,
                          int64_t k)
{
    int64_t of_b[TILE_MAX_LOOPS], of_a[TILE_MAX_LOOPS] = {0}, at = 0;
    tsr__layout_coords(b, k, of_b);
    for (int i = 0; i < b->n_loops; i++)
        of_a[in_a[i]] = of_b[i];
    for (int i = 0; i < a->n_loops; i++)
        at = at * loop_cuts(a, i) + of_a[i];
    return at;
}

static bool in_order(const struct tile_layout *layout)
{
    for (int i = 1; i < layout->n_loops; i++) {
        const struct tile_loop *before = &layout->loops[i - 1], *loop = &layout->loops[i];
        if (before->dim > loop->dim || (before->dim == loop->dim && before->factor > loop->factor))
            return false;
    }
    return true;
}

// Returns the layout with its loops in the order of the dimensions. Example: {2,2} with axis 1 as
// the outer loop numbers its tiles (0,0) (1,0) (0,1) (1,1). The result numbers them (0,0) (0,1)
// (1,0) (1,1), each with the owners that it had.
struct tile_layout *tsr__layout_ordered(struct arena *arena, const struct tile_layout *layout)
{
    if (in_order(layout))
        return tsr__layout_copy(arena, layout);
    struct tile_layout *tile_layout = tsr__layout_cut(arena, layout->rank, layout->dims);
    size_t n = (size_t)layout->first[layout->n_shards];
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!tile_layout || !pairs)
        return NULL;
    int in_l[TILE_MAX_LOOPS] = {0};
    match_loops(layout, tile_layout, in_l);
    size_t at = 0;
    for (int64_t k = 0; k < tile_layout->n_shards; k++) {
        const int64_t *owners;
        size_t count =
            tsr__layout_owners(layout, same_shard(layout, tile_layout, in_l, k), &owners);
        for (size_t i = 0; i < count; i++)
            pairs[at++] = (struct tile_owner){k, owners[i]};
    }
    return tsr__layout_own(arena, tile_layout, pairs, n) ? tile_layout : NULL;
}

bool tsr__layout_is_whole(const struct tile_layout *layout)
{
    return layout->n_shards == 1;
}

// Reads the next factor into *out, with adjacent unsharded factors combined. Returns false at the
// end.
static bool next_factor(const struct tile_dim *dim, int *at, struct tile_factor *out)
{
    if (*at >= dim->n)
        return false;
    *out = dim->factors[(*at)++];
    while (out->cuts == 1 && *at < dim->n && dim->factors[*at].cuts == 1)
        if (!mul_ok(out->size, dim->factors[(*at)++].size, &out->size))
            out->size = 0;
    return true;
}

bool tsr__dim_is_sharded(const struct tile_dim *dim)
{
    for (int f = 0; f < dim->n; f++)
        if (dim->factors[f].cuts > 1)
            return true;
    return false;
}

// True if two dimensions are sharded alike. If both have one factor, sizes are not compared.
// Otherwise an unknown size (0) follows from the sizes of the other factors, so it equals a known
// one if all other sizes are equal. If different factors are unknown, the dimensions are not equal.
// Example with 12 elements: a shard of 3 x (unknown, 2 parts) has 2 of every 4 elements, but a
// shard of unknown x (2, 2 parts) has 1 of every 2.
static bool dims_equal(const struct tile_dim *a, const struct tile_dim *b)
{
    if (!tsr__dim_is_sharded(a) || !tsr__dim_is_sharded(b))
        return tsr__dim_is_sharded(a) == tsr__dim_is_sharded(b);
    struct tile_factor x, y;
    bool alone = a->n == 1 && b->n == 1, only_a_open = false, only_b_open = false;
    int i = 0, j = 0;
    for (;;) {
        bool more = next_factor(a, &i, &x);
        if (more != next_factor(b, &j, &y))
            return false;
        if (!more)
            return !only_a_open || !only_b_open;
        if (x.cuts != y.cuts || x.shares != y.shares ||
            (!alone && x.size && y.size && x.size != y.size))
            return false;
        only_a_open = only_a_open || (!x.size && y.size);
        only_b_open = only_b_open || (x.size && !y.size);
    }
}

// True if two layouts are equal in form. One layout can be written in two forms ({4} of 8, or
// {2/2*4/2}), which are not equal here; sharding/layouts/canonical.c normalizes them first.
bool tsr__layout_equal(const struct tile_layout *a, const struct tile_layout *b)
{
    if (a->rank != b->rank || a->n_shards != b->n_shards || a->n_loops != b->n_loops)
        return false;
    for (int dim = 0; dim < a->rank; dim++)
        if (!dims_equal(&a->dims[dim], &b->dims[dim]))
            return false;
    int in_a[TILE_MAX_LOOPS] = {0};
    match_loops(a, b, in_a);
    for (int64_t k = 0; k < b->n_shards; k++) {
        const int64_t *x, *y;
        size_t n = tsr__layout_owners(a, same_shard(a, b, in_a, k), &x);
        if (n != tsr__layout_owners(b, k, &y) || memcmp(x, y, n * sizeof(*x)) != 0)
            return false;
    }
    return true;
}

size_t tsr__layout_owners(const struct tile_layout *layout, int64_t shard, const int64_t **out)
{
    *out = layout->owners + layout->first[shard];
    return (size_t)(layout->first[shard + 1] - layout->first[shard]);
}

bool tsr__layout_has_device(const struct tile_layout *layout, int64_t device)
{
    for (int64_t i = 0; i < layout->first[layout->n_shards]; i++)
        if (layout->owners[i] == device)
            return true;
    return false;
}

// Returns the first shard of a device from `from` on, or -1. To visit all shards of a device:
// shard_of(d, 0), shard_of(d, result + 1), ...
int64_t tsr__layout_shard_of(const struct tile_layout *layout, int64_t device, int64_t from)
{
    for (int64_t k = from < 0 ? 0 : from; k < layout->n_shards; k++)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            if (layout->owners[i] == device)
                return k;
    return -1;
}
