// SPDX-License-Identifier: Apache-2.0
// encode.c - encodes layouts as lists of integers, for attributes of operators.
//
// Decoding handles untrusted input: every count is compared with the rest of the list before memory
// is allocated, so memory and time are proportional to the length of the list.
#include "tile/tile.h"

// Output list: stores at most `cap` numbers and counts all.
struct sink {
    int64_t *out;
    size_t n, cap;
};

static void put(struct sink *sink, int64_t v)
{
    if (sink->n < sink->cap)
        sink->out[sink->n] = v;
    sink->n++;
}

// Returns the number that encodes the shards of a factor. Equal parts are encoded as their number,
// unequal ones as negative shares: shares of 3 units and 1 unit have bits 3 and 4, so the number is
// -24.
static int64_t cuts_number(const struct tile_factor *factor)
{
    return factor->shares ? -(int64_t)factor->shares : factor->cuts;
}

// Encodes a layout as numbers. Example: a vector with two shards on devices 0 and 1, whose factor
// has size s, is 1 | 1 s 2 | 1 0 0 | 2 | 1 0 | 1 1: the rank; the dimension (1 factor of size s in
// 2 parts); the loops (1 loop: dimension 0, factor 0); the number of shards; the owners of shard 0
// (1 owner, device 0) and of shard 1.
size_t tsr__layout_encode(const struct tile_layout *layout, int64_t *out, size_t cap)
{
    struct sink sink = {out, 0, out ? cap : 0};
    put(&sink, layout->rank);
    for (int dim = 0; dim < layout->rank; dim++) {
        put(&sink, layout->dims[dim].n);
        for (int factor = 0; factor < layout->dims[dim].n; factor++) {
            put(&sink, layout->dims[dim].factors[factor].size);
            put(&sink, cuts_number(&layout->dims[dim].factors[factor]));
        }
    }
    put(&sink, layout->n_loops);
    for (int i = 0; i < layout->n_loops; i++) {
        put(&sink, layout->loops[i].dim);
        put(&sink, layout->loops[i].factor);
    }
    put(&sink, layout->n_shards);
    for (int64_t k = 0; k < layout->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(layout, k, &owners);
        put(&sink, (int64_t)n);
        for (size_t i = 0; i < n; i++)
            put(&sink, owners[i]);
    }
    return sink.n;
}

struct source {
    const int64_t *v;
    size_t n, at;
};

// Reads a number. Returns false at the end of the list, or if the number is out of bounds.
static bool take(struct source *source, int64_t least, int64_t most, int64_t *out)
{
    if (source->at >= source->n || source->v[source->at] < least || source->v[source->at] > most)
        return false;
    *out = source->v[source->at++];
    return true;
}

// Decodes what cuts_number encodes. A negative number must encode unequal shares in lowest
// terms, as tsr__shares_of returns them.
static bool take_cuts(struct source *source, struct tile_factor *factor)
{
    int64_t number, units[TILE_MAX_UNITS];
    if (!take(source, -INT64_MAX, TILE_MAX_SHARDS, &number))
        return false;
    factor->cuts = number;
    factor->shares = 0;
    if (number >= 0)
        return number > 0;
    factor->shares = (tile_shares)-number;
    factor->cuts = __builtin_popcountll(factor->shares);
    if (factor->shares & 1)
        return false;
    for (int64_t j = 0; j < factor->cuts; j++) {
        struct tile_units part = tsr__share_units(factor->cuts, factor->shares, j);
        units[j] = part.stop - part.first;
    }
    bool fits;
    return tsr__shares_of(units, factor->cuts, &fits) == factor->shares;
}

// Reads one dimension. At most one of its factors may have an unknown size (0).
static bool take_dim(struct arena *arena, struct source *source, struct tile_dim *dim)
{
    int64_t n;
    int open = 0;
    if (!take(source, 0, TILE_MAX_FACTORS, &n))
        return false;
    dim->n = (int)n;
    dim->factors = ARENA_ARRAY(arena, struct tile_factor, (size_t)n + 1);
    if (!dim->factors)
        return false;
    for (int factor = 0; factor < dim->n; factor++) {
        if (!take(source, 0, INT64_MAX, &dim->factors[factor].size) ||
            !take_cuts(source, &dim->factors[factor]))
            return false;
        open += dim->factors[factor].size == 0;
    }
    return open <= 1;
}

// Decodes the loops, which must be the sharded factors, each once, in any order.
static bool take_loops(struct source *source, struct tile_layout *layout)
{
    int64_t n;
    if (!take(source, layout->n_loops, layout->n_loops, &n))
        return false;
    for (int i = 0; i < layout->n_loops; i++) {
        int64_t dim, factor;
        if (!take(source, 0, layout->rank - 1, &dim) ||
            !take(source, 0, layout->dims[dim].n - 1, &factor) ||
            layout->dims[dim].factors[factor].cuts == 1)
            return false;
        layout->loops[i] = (struct tile_loop){(int)dim, (int)factor};
        for (int j = 0; j < i; j++)
            if (layout->loops[j].dim == dim && layout->loops[j].factor == factor)
                return false;
    }
    return true;
}

// Decodes the owners. The owners of each shard must be strictly ascending, as tsr__layout_own
// stores them.
static bool take_owners(struct arena *arena, struct source *source, struct tile_layout *layout)
{
    int64_t n_shards, kept = 0;
    if (!take(source, layout->n_shards, layout->n_shards, &n_shards))
        return false;
    layout->owners = ARENA_ARRAY(arena, int64_t, source->n - source->at + 1);
    if (!layout->owners)
        return false;
    for (int64_t k = 0; k < n_shards; k++) {
        int64_t n, last = -1;
        if (!take(source, 0, (int64_t)(source->n - source->at), &n))
            return false;
        layout->first[k] = kept;
        for (int64_t i = 0; i < n; i++, kept++) {
            if (last == INT64_MAX || !take(source, last + 1, INT64_MAX, &last))
                return false;
            layout->owners[kept] = last;
        }
    }
    layout->first[n_shards] = kept;
    return true;
}

struct tile_layout *tsr__layout_decode(struct arena *arena, const int64_t *v, size_t n)
{
    struct source source = {v, n, 0};
    struct tile_dim dims[TILE_MAX_RANK];
    int64_t rank, shards = 1;
    if (!take(&source, 0, TILE_MAX_RANK, &rank))
        return NULL;
    for (int dim = 0; dim < rank; dim++) {
        if (!take_dim(arena, &source, &dims[dim]))
            return NULL;
        for (int factor = 0; factor < dims[dim].n; factor++)
            if (!mul_ok(shards, dims[dim].factors[factor].cuts, &shards) || shards > (int64_t)n)
                return NULL; // each shard has at least one number in the list
    }
    struct tile_layout *layout = tsr__layout_cut(arena, (int)rank, dims);
    if (!layout || !take_loops(&source, layout) || !take_owners(arena, &source, layout) ||
        source.at != source.n)
        return NULL;
    return layout;
}
