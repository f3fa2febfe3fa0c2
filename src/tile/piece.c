// SPDX-License-Identifier: Apache-2.0
// piece.c - what a shard is in numbers: intervals of a dimension, and their product, a piece.
//
// A dimension of factors f0 x f1 x ... is counted like digits, f0 the highest. A shard takes a
// range of each digit; so its indices are a set of equal runs. The lowest digit that is not taken
// whole gives the run, every digit above it repeats it.
#include "tile/tile.h"

int64_t tsr__tile_start(int64_t size, int64_t n, int64_t j)
{
    // floor(j * size / n) = j * floor(size / n) + floor(j * (size mod n) / n); the second product
    // fits into 128 bits whatever comes.
    __extension__ typedef unsigned __int128 wide;
    int64_t q = size / n, r = size % n;
    return j * q + (int64_t)((wide)j * (wide)r / (wide)n);
}

// As tsr__dim_sizes, but a factor may be smaller than its cuts: some shards are empty then.
static bool factor_sizes(const struct tile_dim *d, int64_t size, int64_t *sizes)
{
    int64_t known = 1, rest = -1;
    bool inner_cut = false;
    for (int f = 0; f < d->n; f++) {
        sizes[f] = d->factors[f].size;
        inner_cut |= f > 0 && d->factors[f].cuts > 1;
        if (sizes[f] == 0 && rest >= 0)
            return false;
        if (sizes[f] == 0)
            rest = f;
        else if (!mul_ok(known, sizes[f], &known))
            return false;
    }
    if (d->n == 0)
        return size >= 0;
    int64_t unit = rest < 0 ? known / sizes[0] : known; // of the first factor
    bool short_last = !inner_cut && rest <= 0 && unit > 0 && size > 0;
    if (rest >= 0 && size % known == 0)
        sizes[rest] = size / known;
    else if (rest == 0 && short_last)
        sizes[0] = size / unit + 1;
    else if (rest >= 0)
        return false;
    else if (known != size && !(short_last && size < known && size > known - unit))
        return false;
    return true;
}

bool tsr__dim_sizes(const struct tile_dim *d, int64_t size, int64_t *sizes)
{
    if (!factor_sizes(d, size, sizes))
        return false;
    for (int f = 0; f < d->n; f++)
        if (d->factors[f].cuts > 1 && sizes[f] < d->factors[f].cuts)
            return false;
    return true;
}

// Ranges of the digits, and which digits repeat the run: those above `run`.
struct digits {
    int64_t start[TILE_MAX_FACTORS], stop[TILE_MAX_FACTORS], unit[TILE_MAX_FACTORS];
    int run; // lowest digit that is not taken whole; -1: all are
    int64_t count;
};

static bool digits_of(const struct tile_dim *d, int64_t size, const int64_t *coords,
                      struct digits *g)
{
    int64_t sizes[TILE_MAX_FACTORS], unit = 1;
    if (d->n > TILE_MAX_FACTORS || !factor_sizes(d, size, sizes))
        return false;
    g->run = -1;
    g->count = 1;
    for (int f = d->n - 1; f >= 0; f--) {
        int64_t cuts = d->factors[f].cuts;
        g->start[f] = tsr__tile_start(sizes[f], cuts, coords[f]);
        g->stop[f] = tsr__tile_start(sizes[f], cuts, coords[f] + 1);
        g->unit[f] = unit;
        if (!mul_ok(unit, sizes[f], &unit))
            return false;
        if (g->run < 0 && (g->start[f] != 0 || g->stop[f] != sizes[f]))
            g->run = f;
        else if (g->run >= 0 && !mul_ok(g->count, g->stop[f] - g->start[f], &g->count))
            return false;
    }
    return true;
}

int64_t tsr__dim_intervals(const struct tile_dim *d, int64_t size, const int64_t *coords,
                           struct tile_interval *out, int64_t cap)
{
    struct digits g;
    if (!digits_of(d, size, coords, &g))
        return -1;
    if (g.run < 0 && out && cap > 0)
        out[0] = (struct tile_interval){0, size};
    if (g.run < 0 || !out)
        return g.count;
    int64_t digit[TILE_MAX_FACTORS];
    memcpy(digit, g.start, sizeof(digit));
    for (int64_t i = 0; i < g.count && i < cap; i++) {
        int64_t base = 0;
        for (int f = 0; f < g.run; f++)
            base += digit[f] * g.unit[f];
        out[i].start = base + g.start[g.run] * g.unit[g.run];
        out[i].stop = base + g.stop[g.run] * g.unit[g.run];
        if (out[i].stop > size)
            out[i].stop = size; // the short last unit
        for (int f = g.run - 1; f >= 0 && ++digit[f] == g.stop[f]; f--)
            digit[f] = g.start[f];
    }
    return g.count;
}

struct tile_piece *tsr__layout_piece(struct arena *a, const struct tile_layout *l,
                                     const int64_t *shape, int64_t shard)
{
    int64_t loop_coords[TILE_MAX_LOOPS];
    struct tile_piece *p = ARENA_NEW(a, struct tile_piece);
    if (!p || shard < 0 || shard >= l->n_shards)
        return NULL;
    p->rank = l->rank;
    p->dims = tsr__arena_array(a, (size_t)l->rank + 1, sizeof(*p->dims), _Alignof(int64_t));
    if (!p->dims)
        return NULL;
    tsr__layout_coords(l, shard, loop_coords);
    for (int d = 0; d < l->rank; d++) {
        int64_t coords[TILE_MAX_FACTORS] = {0};
        for (int i = 0; i < l->n_loops; i++)
            if (l->loops[i].dim == d)
                coords[l->loops[i].factor] = loop_coords[i];
        int64_t n = tsr__dim_intervals(&l->dims[d], shape[d], coords, NULL, 0);
        if (n < 0 || n > TILE_MAX_INTERVALS)
            return NULL;
        p->dims[d].n = n;
        p->dims[d].at = ARENA_ARRAY(a, struct tile_interval, (size_t)n + 1);
        if (!p->dims[d].at)
            return NULL;
        tsr__dim_intervals(&l->dims[d], shape[d], coords, p->dims[d].at, n);
        for (int64_t i = 0; i < n; i++)
            p->dims[d].size += p->dims[d].at[i].stop - p->dims[d].at[i].start;
    }
    return p;
}

int64_t tsr__piece_elements(const struct tile_piece *p)
{
    int64_t n = 1;
    for (int d = 0; d < p->rank; d++)
        if (!mul_ok(n, p->dims[d].size, &n))
            return -1;
    return n;
}
