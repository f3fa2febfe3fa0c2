// SPDX-License-Identifier: Apache-2.0
// common.h - shared by the tests of tile: a session, layouts from numbers, random numbers.
#ifndef TSR_TEST_TILE_H
#define TSR_TEST_TILE_H

#include "../bench.h"
#include "tile/tile.h"

// A layout with one factor per dimension. Shard k is on devices[k] (-1: no device; NULL: device k).
static inline struct tile_layout *simple(struct arena *a, int rank, const int64_t *cuts,
                                         const int64_t *devices)
{
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_RANK];
    for (int d = 0; d < rank; d++) {
        factors[d] = (struct tile_factor){.size = 0, .cuts = cuts[d]};
        dims[d] = (struct tile_dim){&factors[d], 1};
    }
    struct tile_layout *l = tsr__layout_cut(a, rank, dims);
    assert_non_null(l);
    struct tile_owner pairs[4096];
    size_t n = 0;
    assert_true(l->n_shards <= 4096);
    for (int64_t k = 0; k < l->n_shards; k++)
        if (!devices || devices[k] >= 0)
            pairs[n++] = (struct tile_owner){k, devices ? devices[k] : k};
    assert_true(tsr__layout_own(a, l, pairs, n));
    return l;
}

// Numbers from 0 to below - 1, the same on every machine.
static inline int64_t pick(uint64_t *seed, int64_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*seed >> 33) % (uint64_t)below);
}

// A random layout for the shape: several factors, shuffled loops, shards with 1 .. 3 owners of 0 ..
// devices - 1.
static inline struct tile_layout *random_layout(struct arena *a, uint64_t *seed, int rank,
                                                const int64_t *shape, int64_t devices)
{
    struct tile_dim dims[TILE_MAX_RANK];
    struct tile_factor factors[TILE_MAX_RANK][3];
    for (int d = 0; d < rank; d++) {
        int64_t left = shape[d];
        dims[d] = (struct tile_dim){factors[d], 0};
        for (int f = 0; f < 3; f++) {
            int64_t size = left;
            for (int try = 0; f < 2 && try < 8; try++) {
                int64_t s = 1 + pick(seed, left);
                if (left % s == 0) {
                    size = s;
                    break;
                }
            }
            int64_t most = size < 3 ? size : 3;
            factors[d][f] =
                (struct tile_factor){.size = size, .cuts = 1 + (most > 1 ? pick(seed, most) : 0)};
            dims[d].n++;
            left /= size;
            if (left == 1)
                break;
        }
        if (left != 1)
            dims[d].n = 0;
        if (dims[d].n > 1 && pick(seed, 3) == 0)
            factors[d][pick(seed, dims[d].n)].size = 0;
    }
    struct tile_layout *l = tsr__layout_cut(a, rank, dims);
    assert_non_null(l);
    for (int i = l->n_loops - 1; i > 0; i--) {
        int j = (int)pick(seed, i + 1);
        struct tile_loop t = l->loops[i];
        l->loops[i] = l->loops[j];
        l->loops[j] = t;
    }
    struct tile_owner *pairs = ARENA_ARRAY(a, struct tile_owner, (size_t)l->n_shards * 3);
    size_t n = 0;
    for (int64_t k = 0; k < l->n_shards; k++)
        for (int64_t i = pick(seed, 3); i >= 0; i--)
            pairs[n++] = (struct tile_owner){k, pick(seed, devices)};
    assert_true(tsr__layout_own(a, l, pairs, n));
    return l;
}

#endif
