// SPDX-License-Identifier: Apache-2.0
// encode.c - a layout as a list of integers, for an operator's attribute, and back.
//
// What comes back is untrusted: every count is held against what is left of the list before
// anything is allocated, so memory and work stay in proportion to its length.
#include "tile/tile.h"

// Counts always, stores while there is room.
struct sink {
    int64_t *out;
    size_t n, cap;
};

static void put(struct sink *s, int64_t v)
{
    if (s->n < s->cap)
        s->out[s->n] = v;
    s->n++;
}

size_t tsr__layout_encode(const struct tile_layout *l, int64_t *out, size_t cap)
{
    struct sink s = {out, 0, out ? cap : 0};
    put(&s, l->rank);
    for (int d = 0; d < l->rank; d++) {
        put(&s, l->dims[d].n);
        for (int f = 0; f < l->dims[d].n; f++) {
            put(&s, l->dims[d].factors[f].size);
            put(&s, l->dims[d].factors[f].cuts);
        }
    }
    put(&s, l->n_loops);
    for (int i = 0; i < l->n_loops; i++) {
        put(&s, l->loops[i].dim);
        put(&s, l->loops[i].factor);
    }
    put(&s, l->n_shards);
    for (int64_t k = 0; k < l->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(l, k, &owners);
        put(&s, (int64_t)n);
        for (size_t i = 0; i < n; i++)
            put(&s, owners[i]);
    }
    return s.n;
}

struct source {
    const int64_t *v;
    size_t n, at;
};

static bool take(struct source *s, int64_t least, int64_t most, int64_t *out)
{
    if (s->at >= s->n || s->v[s->at] < least || s->v[s->at] > most)
        return false;
    *out = s->v[s->at++];
    return true;
}

static bool take_dim(struct arena *a, struct source *s, struct tile_dim *d)
{
    int64_t n;
    int open = 0;
    if (!take(s, 0, TILE_MAX_FACTORS, &n))
        return false;
    d->n = (int)n;
    d->factors = ARENA_ARRAY(a, struct tile_factor, (size_t)n + 1);
    if (!d->factors)
        return false;
    for (int f = 0; f < d->n; f++) {
        if (!take(s, 0, INT64_MAX, &d->factors[f].size) ||
            !take(s, 1, TILE_MAX_SHARDS, &d->factors[f].cuts))
            return false;
        open += d->factors[f].size == 0;
    }
    return open <= 1;
}

// The loops must be the cut factors, each once, in any order.
static bool take_loops(struct source *s, struct tile_layout *l)
{
    int64_t n;
    if (!take(s, l->n_loops, l->n_loops, &n))
        return false;
    for (int i = 0; i < l->n_loops; i++) {
        int64_t dim, factor;
        if (!take(s, 0, l->rank - 1, &dim) || !take(s, 0, l->dims[dim].n - 1, &factor) ||
            l->dims[dim].factors[factor].cuts == 1)
            return false;
        l->loops[i] = (struct tile_loop){(int)dim, (int)factor};
        for (int j = 0; j < i; j++)
            if (l->loops[j].dim == dim && l->loops[j].factor == factor)
                return false;
    }
    return true;
}

static bool take_owners(struct arena *a, struct source *s, struct tile_layout *l)
{
    int64_t n_shards, kept = 0;
    if (!take(s, l->n_shards, l->n_shards, &n_shards))
        return false;
    l->owners = ARENA_ARRAY(a, int64_t, s->n - s->at + 1);
    if (!l->owners)
        return false;
    for (int64_t k = 0; k < n_shards; k++) {
        int64_t n, last = -1;
        if (!take(s, 0, (int64_t)(s->n - s->at), &n))
            return false;
        l->first[k] = kept;
        for (int64_t i = 0; i < n; i++, kept++) {
            if (last == INT64_MAX || !take(s, last + 1, INT64_MAX, &last))
                return false;
            l->owners[kept] = last;
        }
    }
    l->first[n_shards] = kept;
    return true;
}

struct tile_layout *tsr__layout_decode(struct arena *a, const int64_t *v, size_t n)
{
    struct source s = {v, n, 0};
    struct tile_dim dims[TILE_MAX_RANK];
    int64_t rank, shards = 1;
    if (!take(&s, 0, TILE_MAX_RANK, &rank))
        return NULL;
    for (int d = 0; d < rank; d++) {
        if (!take_dim(a, &s, &dims[d]))
            return NULL;
        for (int f = 0; f < dims[d].n; f++)
            if (!mul_ok(shards, dims[d].factors[f].cuts, &shards) || shards > (int64_t)n)
                return NULL; // each shard has at least its count in the list
    }
    struct tile_layout *l = tsr__layout_cut(a, (int)rank, dims);
    if (!l || !take_loops(&s, l) || !take_owners(a, &s, l) || s.at != s.n)
        return NULL;
    return l;
}
