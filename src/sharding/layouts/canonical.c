// SPDX-License-Identifier: Apache-2.0
// canonical.c - computes a canonical form, so that layouts with the same shards compare equal.
// Example: {64/2} and {4/2*16} over 64 elements.
//
// A dimension is written as digits, outermost first. An even split of s elements into c parts is a
// digit of c that is fully split (F), and below it a digit of s/c that is not split (W). Adjacent
// digits of one kind are multiplied. At the end a fully split digit absorbs the unsplit digits
// below it. An uneven split is a digit of another kind and stays as it is.
//
// Examples: splits of a dimension of 64 elements, their digits, and their canonical form:
//     64/2      F2 W32            -> 64/2
//     4/2*16    F2 W2 W16         -> F2 W32 -> 64/2: the same split
//     2/2*32/2  F2 F2 W16         -> F4 W16 -> 64/4: parts i and k become part 2 i + k
//     4*16/2    W4 F2 W8          -> 4*16/2: each part is 4 runs of 8, which has no other form
//     64/6      uneven            -> 64/6: parts of 11 and 10
// Unequal shares (tile/units.c) are also a kind of digit (S): 64 elements in shares of 3 units and
// 1 unit are S4 W16.
#include "sharding/layouts/internal.h"

enum digit_kind { DIGIT_WHOLE, DIGIT_FULL, DIGIT_SHARED, DIGIT_UNEVEN };
struct digit {
    enum digit_kind kind;
    int64_t size, cuts; // size 0: unknown
    tile_shares shares;
    int part; // last input part that splits this digit; its coordinate has stride 1
};

// Converts parts to digits, outermost first, and returns their number. Example: 8 elements in 2
// shards are a fully split digit of 2 and an unsplit digit of 4.
static int expand(const struct cut_part *parts, int n, struct digit *out)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int64_t size = parts[i].size, cuts = parts[i].cuts;
        tile_shares shares = parts[i].shares;
        int64_t units = tsr__units_of(cuts, shares);
        bool even = size > 0 && size % units == 0;
        if (cuts > 1 && !even) {
            out[count++] = (struct digit){DIGIT_UNEVEN, size, cuts, shares, i};
            continue;
        }
        enum digit_kind kind = shares ? DIGIT_SHARED : DIGIT_FULL;
        if (cuts > 1)
            out[count++] = (struct digit){kind, units, cuts, shares, i};
        int64_t inner = cuts > 1 ? size / units : size;
        if (inner != 1)
            out[count++] = (struct digit){DIGIT_WHOLE, inner, 1, 0, -1};
    }
    return count;
}

// Multiplies two sizes. Returns 0 (unknown) if either is unknown or the product overflows.
static int64_t times(int64_t a, int64_t b)
{
    int64_t r;
    return a && b && mul_ok(a, b, &r) ? r : 0;
}

// Merges adjacent digits that are both unsplit or both fully split, in place. Returns how many
// remain. Example, with the letters of the table above: F2 of part 0 and F3 of part 1 become F6. In
// F6 the coordinate of part 0 has stride 3, that of part 1 stride 1; `moves` stores these strides.
static int merge(struct digit *digit, int n, struct cut_move *moves, int n_parts)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        struct digit *last = count ? &digit[count - 1] : NULL;
        bool joins = digit[i].kind == DIGIT_WHOLE || digit[i].kind == DIGIT_FULL;
        if (last && last->kind == digit[i].kind && joins) {
            last->size = times(last->size, digit[i].size);
            last->cuts *= digit[i].cuts;
            for (int k = 0; k < n_parts; k++)
                if (digit[i].kind == DIGIT_FULL && moves[k].to == count - 1)
                    moves[k].stride *= digit[i].cuts;
        } else {
            digit[count++] = digit[i];
        }
        if (digit[i].part >= 0)
            moves[digit[i].part] = (struct cut_move){count - 1, 1};
    }
    return count;
}

// Computes the canonical factors of a dimension and returns their number; 0: the dimension is
// unsharded. A single factor is the full dimension and needs no size.
int tsr__cut_canonical(const struct cut_part *parts, int n, struct tile_factor *out,
                       struct cut_move *moves)
{
    struct digit d[2 * RULE_MAX_FACTORS];
    for (int i = 0; i < n; i++)
        moves[i] = (struct cut_move){-1, 0};
    int count = merge(d, expand(parts, n, d), moves, n), made = 0;
    for (int i = 0; i < count; i++, made++) {
        // out[made] is digit i. Earlier digits may have been left out, so moves are renumbered.
        out[made] = (struct tile_factor){d[i].size, d[i].cuts, d[i].shares};
        for (int k = 0; k < n; k++)
            if (moves[k].to == i)
                moves[k].to = made;
        bool takes = d[i].kind == DIGIT_FULL || d[i].kind == DIGIT_SHARED;
        if (takes && i + 1 < count && d[i + 1].kind == DIGIT_WHOLE) {
            out[made].size = times(d[i].size, d[i + 1].size);
            i++;
        }
    }
    if (made == 1 && out[0].cuts == 1)
        return 0;
    if (made == 1)
        out[0].size = 0;
    return made;
}

// Lists the parts of a dimension in the order of the layout. Fills in sizes if the size of the
// dimension is known. Returns the number of parts, or -1 if the size is known and is not the
// product of the factors. Example: {3/3*4}, a factor 3 in 3 parts times a factor 4, has 12
// elements; the dimension may have 10.
static int parts_of(const struct tile_dim *dim, tsr_dim size, struct cut_part *parts)
{
    int64_t sizes[TILE_MAX_FACTORS], product = 1;
    bool fits = size.value >= 0 && tsr__dim_sizes(dim, size.value, sizes);
    if (fits)
        for (int i = 0; i < dim->n; i++)
            product = times(product, sizes[i]);
    // If the product is not the size, the last part is shorter. The caller then keeps the
    // dimension.
    fits = fits && product == size.value;
    for (int i = 0; i < dim->n; i++) {
        parts[i] =
            (struct cut_part){dim->factors[i].size, dim->factors[i].cuts, dim->factors[i].shares};
        if (fits)
            parts[i].size = sizes[i];
    }
    return size.value < 0 || fits ? dim->n : -1;
}

// ---- several tiles of a device ------------------------------------------------------------------

// True if each group of `run` consecutive shards along the loop (sharded factor) has the same
// owners.
static bool runs_have_same_owners(const struct tile_layout *layout, int loop, int64_t run)
{
    int64_t coords[TILE_MAX_LOOPS], stride = tsr__layout_stride(layout, loop);
    for (int64_t shard = 0; shard < layout->n_shards; shard++) {
        tsr__layout_coords(layout, shard, coords);
        if (!tsr__layout_same_owners(layout, shard, shard - coords[loop] % run * stride))
            return false;
    }
    return true;
}

// Returns the layout in which each group of `run` consecutive shards along the loop (sharded
// factor) is one shard. Returns NULL if out of memory.
static struct tile_layout *merged(struct arena *arena, const struct tile_layout *l, int loop,
                                  int64_t run)
{
    struct tile_layout *wide = tsr__layout_ordered(arena, l);
    // Copies owners from the shards of `wide`, whose loops are in dimension order, as in the new
    // layout. Example: in {4,2}, merged by 2 along dimension 0, shard (3,1) = 7 becomes (1,1) = 3.
    struct tile_loop at = l->loops[loop];
    struct tile_owner *pairs =
        ARENA_ARRAY(arena, struct tile_owner, (size_t)l->first[l->n_shards] + 1);
    if (!wide || !pairs)
        return NULL;
    int same = 0;
    while (wide->loops[same].dim != at.dim || wide->loops[same].factor != at.factor)
        same++;
    int64_t stride = tsr__layout_stride(wide, same),
            cuts = wide->dims[at.dim].factors[at.factor].cuts;
    wide->dims[at.dim].factors[at.factor].cuts = cuts / run;
    struct tile_layout *m = tsr__layout_cut(arena, l->rank, wide->dims);
    size_t n = 0;
    if (!m)
        return NULL;
    for (int64_t shard = 0; shard < wide->n_shards; shard++) {
        const int64_t *owners;
        size_t count = tsr__layout_owners(wide, shard, &owners);
        int64_t above = shard / (stride * cuts), part = shard / stride % cuts / run;
        int64_t to = (above * (cuts / run) + part) * stride + shard % stride;
        for (size_t i = 0; i < count; i++)
            pairs[n++] = (struct tile_owner){to, owners[i]};
    }
    return tsr__layout_own(arena, m, pairs, n) ? m : NULL;
}

// Merges adjacent tiles that have the same owners. Example: {4,1:0,0,1,1} becomes {2,1:0,1}. This
// is valid for any size D, because floor(2 j D / 4) = floor(j D / 2). Tries the longest runs first,
// and repeats until nothing can be merged. Returns NULL if out of memory.
static const struct tile_layout *merge_tiles(struct arena *arena, const struct tile_layout *l)
{
    for (int loop = 0; loop < l->n_loops; loop++) {
        int64_t cuts = l->dims[l->loops[loop].dim].factors[l->loops[loop].factor].cuts;
        for (int64_t run = cuts; run > 1; run--)
            if (cuts % run == 0 && runs_have_same_owners(l, loop, run)) {
                const struct tile_layout *m = merged(arena, l, loop, run);
                if (m)
                    return merge_tiles(arena, m);
                return NULL;
            }
    }
    return l;
}

// Computes the canonical factors of each dimension, then gives every canonical shard the owners of
// the given shard with the same elements. Example: {4/4*16/2} becomes {64/8}. In it, factor 0 has
// stride 2 and factor 1 stride 1 (`moves`), so shard (3,1) becomes 7. A dimension whose factors do
// not multiply to its size is unchanged.
struct tile_layout *tsr__layout_canonical_dims(struct arena *arena, const struct tile_layout *l,
                                               const struct shape *shape)
{
    size_t rank = (size_t)l->rank, n = (size_t)l->first[l->n_shards], at = 0;
    struct tile_dim *dims = ARENA_ARRAY(arena, struct tile_dim, rank + 1);
    struct cut_move(*moves)[TILE_MAX_FACTORS] = tsr__arena_array(
        arena, rank + 1, sizeof(struct cut_move[TILE_MAX_FACTORS]), _Alignof(struct cut_move));
    struct tile_owner *pairs = ARENA_ARRAY(arena, struct tile_owner, n + 1);
    if (!dims || !moves || !pairs)
        return NULL;
    for (int axis = 0; axis < l->rank; axis++) {
        struct cut_part parts[TILE_MAX_FACTORS];
        tsr_dim size = shape->rank == l->rank ? shape->dims[axis] : (tsr_dim){.value = -1};
        // an unchanged dimension keeps its factors
        dims[axis] = l->dims[axis];
        int count = parts_of(&l->dims[axis], size, parts);
        for (int k = 0; k < l->dims[axis].n; k++)
            moves[axis][k] = (struct cut_move){k, 1};
        if (count < 0)
            continue;
        dims[axis].factors = ARENA_ARRAY(arena, struct tile_factor, 2u * TILE_MAX_FACTORS);
        if (!dims[axis].factors)
            return NULL;
        dims[axis].n = tsr__cut_canonical(parts, count, dims[axis].factors, moves[axis]);
    }
    struct tile_layout *c = tsr__layout_cut(arena, l->rank, dims);
    if (!c)
        return NULL;
    for (int64_t shard = 0; shard < l->n_shards; shard++) {
        // k becomes the index of the shard with the same elements in the canonical layout
        int64_t coords[TILE_MAX_RANK * TILE_MAX_FACTORS], k = 0;
        const int64_t *owners;
        tsr__layout_coords(l, shard, coords);
        for (int loop = 0; loop < c->n_loops; loop++) {
            int64_t part = 0,
                    cuts = c->dims[c->loops[loop].dim].factors[c->loops[loop].factor].cuts;
            for (int i = 0; i < l->n_loops; i++) {
                struct cut_move move = moves[l->loops[i].dim][l->loops[i].factor];
                if (l->loops[i].dim == c->loops[loop].dim && move.to == c->loops[loop].factor)
                    part += coords[i] * move.stride;
            }
            k = k * cuts + part;
        }
        size_t count = tsr__layout_owners(l, shard, &owners);
        for (size_t i = 0; i < count; i++)
            pairs[at++] = (struct tile_owner){k, owners[i]};
    }
    return tsr__layout_own(arena, c, pairs, n) ? c : NULL;
}

struct tile_layout *tsr__layout_canonical(struct arena *arena, const struct tile_layout *given,
                                          const struct shape *shape)
{
    const struct tile_layout *l =
        tsr__layout_shared(given) ? tsr__layout_units(arena, given) : given;
    if (l)
        l = merge_tiles(arena, l);
    if (l)
        l = tsr__layout_runs(arena, l); // the remaining runs of tiles have unequal lengths
    return l ? tsr__layout_canonical_dims(arena, l, shape) : NULL;
}

// ---- empty tiles --------------------------------------------------------------------------------

// True if the sizes of the factors are known and one of them has fewer elements than shards, or
// than units of unequal shards.
static bool has_empty(const struct tile_dim *dim, tsr_dim size, int64_t *sizes)
{
    if (size.value < 0 || !tsr__dim_factor_sizes(dim, size.value, sizes))
        return false;
    for (int i = 0; i < dim->n; i++)
        if (sizes[i] < tsr__units_of(dim->factors[i].cuts, dim->factors[i].shares))
            return true;
    return false;
}

// Gives the shards of `m` the owners of the shards of `l` that have elements. `sizes` has the sizes
// of the factors of dimensions with empty shards. Both layouts number shards by dimensions, and
// have no unequal shares.
static bool own_without_empty(struct arena *arena, const struct tile_layout *l,
                              int64_t (*sizes)[TILE_MAX_FACTORS], const bool *empty,
                              struct tile_layout *m)
{
    struct tile_owner *pairs =
        ARENA_ARRAY(arena, struct tile_owner, (size_t)l->first[l->n_shards] + 1);
    size_t n = 0;
    for (int64_t shard = 0; pairs && shard < l->n_shards; shard++) {
        int64_t coords[TILE_MAX_LOOPS], to = 0;
        bool kept = true;
        tsr__layout_coords(l, shard, coords);
        for (int loop = 0; loop < l->n_loops; loop++) {
            struct tile_loop at = l->loops[loop];
            int64_t part = coords[loop], cuts = l->dims[at.dim].factors[at.factor].cuts;
            if (empty[at.dim])
                kept = tsr__part_filled(sizes[at.dim][at.factor], cuts, &part) && kept;
            to = to * m->dims[at.dim].factors[at.factor].cuts + part;
        }
        const int64_t *owners;
        size_t count = kept ? tsr__layout_owners(l, shard, &owners) : 0;
        for (size_t i = 0; i < count; i++)
            pairs[n++] = (struct tile_owner){to, owners[i]};
    }
    return pairs && tsr__layout_own(arena, m, pairs, n);
}

// True if a dimension has an empty shard (has_empty). Most layouts have none.
static bool any_empty(const struct tile_layout *layout, const struct shape *shape)
{
    int64_t sizes[TILE_MAX_FACTORS];
    for (int axis = 0; shape->rank == layout->rank && axis < layout->rank; axis++)
        if (has_empty(&layout->dims[axis], shape->dims[axis], sizes))
            return true;
    return false;
}

struct tile_layout *tsr__layout_filled(struct arena *arena, struct tile_layout *given,
                                       const struct shape *shape)
{
    if (!any_empty(given, shape))
        return given;
    size_t rank = (size_t)given->rank;
    int64_t(*sizes)[TILE_MAX_FACTORS] =
        tsr__arena_array(arena, rank + 1, sizeof(int64_t[TILE_MAX_FACTORS]), _Alignof(int64_t));
    bool *empty = ARENA_ARRAY(arena, bool, rank + 1);
    if (!sizes || !empty)
        return NULL;
    for (int axis = 0; axis < given->rank; axis++)
        empty[axis] = has_empty(&given->dims[axis], shape->dims[axis], sizes[axis]);
    struct tile_layout *l = tsr__layout_units(arena, given);
    struct tile_layout *m = l ? tsr__layout_cut(arena, l->rank, l->dims) : NULL;
    if (!m)
        return NULL;
    for (int axis = 0; axis < m->rank; axis++)
        for (int i = 0; empty[axis] && i < m->dims[axis].n; i++)
            if (sizes[axis][i] < m->dims[axis].factors[i].cuts)
                m->dims[axis].factors[i].cuts = int64_max(sizes[axis][i], 1);
    m = tsr__layout_cut(arena, m->rank, m->dims); // counts shards and loops again
    bool owned = m && own_without_empty(arena, l, sizes, empty, m);
    return owned ? tsr__layout_canonical(arena, m, shape) : NULL;
}
