// SPDX-License-Identifier: Apache-2.0
// held.c - tests whether every device already has the elements that another layout needs. If so,
// devices only slice their shards, and nothing is sent.
//
// Examples, in the notation of notation.c:
//     X [8,4] on devices 0 and 1:  the replicated layout holds {2,1}: each device slices its 4 rows
//                                  {2,1} does not hold the replicated layout or {1,2}: each device
//                                  lacks a half
//                                  {2,1} does not hold {2,1:1,0}: the other device has the rows
#include "sharding/flow/flow.h"

// Returns the number of shards of the device; *shard is the last of them.
static size_t owners_at(const struct tile_layout *layout, int64_t d, int64_t *shard)
{
    size_t n = 0;
    for (int64_t k = tsr__layout_shard_of(layout, d, 0); k >= 0;
         k = tsr__layout_shard_of(layout, d, k + 1)) {
        *shard = k;
        n++;
    }
    return n;
}

static bool same_sizes(const struct tile_dim *a, const struct tile_dim *b)
{
    if (a->n != b->n)
        return false;
    for (int factor = 0; factor < a->n; factor++)
        if (a->factors[factor].size != b->factors[factor].size)
            return false;
    return true;
}

// Returns the index of the loop (sharded factor) `at` of `have` in the loops of `need`. Returns -1
// if `need` does not shard this factor in the same number of shards, or if other factors of the
// dimension have other sizes. Example: 24 elements as 2*3/3*4 and as 4*3/3*2 both have a factor of
// 3 in 3 shards. But the first shard has 0..3 and 12..15 in one, and 0 1, 6 7, 12 13, 18 19 in the
// other.
static int same_cut(const struct tile_layout *need, const struct tile_layout *have,
                    struct tile_loop at)
{
    const struct tile_dim *to = &need->dims[at.dim], *from = &have->dims[at.dim];
    if (!same_sizes(to, from) || to->factors[at.factor].cuts != from->factors[at.factor].cuts ||
        to->factors[at.factor].shares != from->factors[at.factor].shares)
        return -1;
    for (int b = 0; b < need->n_loops; b++)
        if (need->loops[b].dim == at.dim && need->loops[b].factor == at.factor)
            return b;
    return -1;
}

// True if every device of `need` already has its elements in `have`. Each split of `have` must also
// be a split of `need`, with the same part. Returns false if the factors differ, even if the
// elements are the same.
bool tsr__flow_held(const struct tile_layout *have, const struct tile_layout *need)
{
    if (have == need || tsr__layout_equal(have, need))
        return true;
    if (have->rank != need->rank)
        return false;
    for (int64_t k = 0; k < need->n_shards; k++) {
        const int64_t *owners;
        size_t n = tsr__layout_owners(need, k, &owners);
        int64_t want[TILE_MAX_RANK * TILE_MAX_FACTORS], got[TILE_MAX_RANK * TILE_MAX_FACTORS];
        tsr__layout_coords(need, k, want);
        for (size_t i = 0; i < n; i++) {
            int64_t shard = -1;
            if (owners_at(have, owners[i], &shard) != 1)
                return false;
            tsr__layout_coords(have, shard, got);
            for (int a = 0; a < have->n_loops; a++) {
                int b = same_cut(need, have, have->loops[a]);
                if (b < 0 || want[b] != got[a])
                    return false;
            }
        }
    }
    return true;
}
