// SPDX-License-Identifier: Apache-2.0
// layouts.c - numbers layouts, and computes the sizes of their shards.
//
//     Example: the layout {2, 1} (two shards of rows) on devices 0 and 1 has number 3. The same
//     tiling with partial sums in the group {0, 1} has number 4. A float32 value [9, 6] with layout
//     3 has 5 rows in its largest shard: 5 x 6 x 4 = 120 bytes; device 1 stores 4 rows: 96 bytes.
#include "plan/costs/planner.h"

static uint32_t add_number(struct planner *planner, const struct tile_layout *layout,
                           const struct parts *parts)
{
    if (!vec_add(&planner->arena, &planner->layouts,
                 (struct numbered_layout){.tiles = layout, .parts = parts}))
        return PLAN_NO_LAYOUT;
    return (uint32_t)(planner->layouts.n - 1);
}

struct str tsr__planner_layout_key(struct planner *planner, const struct tile_layout *layout,
                                   int64_t *buffer)
{
    int64_t *key = buffer;
    size_t n = tsr__layout_encode(layout, key, LAYOUT_KEY);
    if (n > LAYOUT_KEY) {
        key = ARENA_ARRAY(&planner->arena, int64_t, n);
        if (!key)
            return (struct str){0};
        (void)tsr__layout_encode(layout, key, n);
    }
    return str_bytes(key, n * sizeof *key);
}

// Returns the number of the layout.
uint32_t tsr__planner_layout(struct planner *planner, const struct tile_layout *layout)
{
    int64_t buffer[LAYOUT_KEY];
    struct str key = tsr__planner_layout_key(planner, layout, buffer);
    if (!key.n)
        return PLAN_NO_LAYOUT;
    void **slot = tsr__map_at_copy(&planner->cache.layouts, key);
    if (slot && *slot)
        return (uint32_t)((uintptr_t)*slot - 1);
    struct tile_layout *copy = tsr__layout_copy(&planner->arena, layout);
    if (!slot || !copy)
        return PLAN_NO_LAYOUT;
    uint32_t number = add_number(planner, copy, NULL);
    if (number != PLAN_NO_LAYOUT)
        *slot = (void *)(uintptr_t)planner->layouts.n;
    return number;
}

// Returns the key of a layout with partial sums: the layout as a negative number, then the size and
// the devices of each group. The string is empty if memory runs out.
static struct str key_of_parts(struct arena *arena, uint32_t layout,
                               const struct device_group *groups, size_t n)
{
    size_t n_key = 1;
    for (size_t g = 0; g < n; g++)
        n_key += groups[g].n + 1;
    int64_t *key = ARENA_ARRAY(arena, int64_t, n_key);
    if (!key)
        return (struct str){0};
    n_key = 0;
    key[n_key++] = -1 - (int64_t)layout; // no layout begins with a negative number
    for (size_t g = 0; g < n; g++) {
        key[n_key++] = (int64_t)groups[g].n;
        for (size_t i = 0; i < groups[g].n; i++)
            key[n_key++] = groups[g].devices[i];
    }
    return str_bytes(key, n_key * sizeof *key);
}

static struct device_group *copy_groups(struct planner *planner, const struct device_group *groups,
                                        size_t n)
{
    struct device_group *copy = ARENA_ARRAY(&planner->arena, struct device_group, n + 1);
    if (!copy)
        return NULL;
    for (size_t g = 0; g < n; g++) {
        copy[g].n = groups[g].n;
        copy[g].devices = ARENA_ARRAY(&planner->arena, int64_t, groups[g].n + 1);
        if (!copy[g].devices)
            return NULL;
        memcpy(copy[g].devices, groups[g].devices, groups[g].n * sizeof *copy[g].devices);
    }
    return copy;
}

// Copies the groups, because callers store them in a scratch arena.
uint32_t tsr__planner_parts(struct planner *planner, uint32_t layout,
                            const struct device_group *groups, size_t n)
{
    struct arena scratch = {.session = planner->session};
    struct str key = key_of_parts(&scratch, layout, groups, n);
    void **slot = key.p ? tsr__map_at_copy(&planner->cache.layouts, key) : NULL;
    planner->arena.failed = planner->arena.failed || !key.p;
    tsr__arena_free(&scratch);
    if (slot && *slot)
        return (uint32_t)((uintptr_t)*slot - 1);
    struct parts *parts = ARENA_NEW(&planner->arena, struct parts);
    struct device_group *copy = copy_groups(planner, groups, n);
    if (!slot || !parts || !copy || layout == PLAN_NO_LAYOUT)
        return PLAN_NO_LAYOUT;
    *parts = (struct parts){layout, copy, n};
    uint32_t number = add_number(planner, planner->layouts.at[layout].tiles, parts);
    if (number != PLAN_NO_LAYOUT)
        *slot = (void *)(uintptr_t)planner->layouts.n;
    return number;
}

// Returns where the number of such a layout is cached, increased by 1; NULL: nowhere.
static uint32_t *cached_replicated(struct planner *planner, int rank, const int64_t *devices,
                                   size_t n)
{
    if (rank < 0 || rank > TILE_MAX_RANK || n == 0)
        return NULL;
    if (devices == planner->machine.all && n == (size_t)planner->machine.n)
        return &planner->cache.replicated[rank];
    return n == 1 && devices[0] == 0 ? &planner->cache.on_first[rank] : NULL;
}

uint32_t tsr__planner_replicated_on(struct planner *planner, int rank, const int64_t *devices,
                                    size_t n)
{
    uint32_t *cached = cached_replicated(planner, rank, devices, n);
    if (cached && *cached)
        return *cached - 1;
    const struct tile_layout *layout = tsr__layout_whole(&planner->arena, rank, devices, n);
    uint32_t number = layout ? tsr__planner_layout(planner, layout) : PLAN_NO_LAYOUT;
    if (cached && number != PLAN_NO_LAYOUT)
        *cached = number + 1;
    return number;
}

uint32_t tsr__planner_replicated(struct planner *planner, int rank)
{
    rank = rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
    return tsr__planner_replicated_on(planner, rank, planner->machine.all,
                                      (size_t)planner->machine.n);
}

// Returns the size of the largest part of a factor. Example: 10 elements in 4 equal parts give 3;
// in two parts of 3 units and 1 unit they give 7.
static int64_t largest_part(const struct tile_factor *factor, int64_t size)
{
    int64_t most = 0;
    if (!factor->shares)
        return div_up(size, factor->cuts);
    for (int64_t j = 0; j < factor->cuts; j++)
        most = int64_max(most, tsr__share_size(size, factor->cuts, factor->shares, j));
    return most;
}

// Returns the size of the largest part of a dimension.
static int64_t part_size(const struct tile_dim *dim, int64_t size)
{
    int64_t sizes[TILE_MAX_FACTORS], part = 1;
    if (dim->n == 0 || !tsr__dim_sizes(dim, size, sizes))
        return size;
    for (int factor = 0; factor < dim->n; factor++)
        part = mul_cap(part, largest_part(&dim->factors[factor], sizes[factor]));
    return int64_min(part, size);
}

// Returns the elements of the largest shard. If the ranks of layout and value differ (the value's
// rank is unknown), the value is treated as replicated.
int64_t tsr__planner_elements(const struct planner *planner, uint32_t layout,
                              const struct plan_value *value)
{
    if (layout == PLAN_NO_LAYOUT)
        return 0; // out of memory: the arena records it
    const struct tile_layout *tile_layout = planner->layouts.at[layout].tiles;
    int64_t n = 1;
    for (int d = 0; d < value->rank; d++) {
        int64_t part = value->shape[d];
        if (tile_layout->rank == value->rank)
            part = part_size(&tile_layout->dims[d], value->shape[d]);
        if (!mul_ok(n, part, &n))
            return PLAN_NEVER;
    }
    return n;
}

// Returns the bytes of the elements. Elements of less than a byte are packed: 5 elements of 4 bits
// take 3 bytes.
static int64_t bytes_of(int64_t elements, int bits)
{
    return elements > PLAN_NEVER / 64 ? PLAN_NEVER : (elements * bits + 7) / 8;
}

int64_t tsr__planner_bytes(const struct planner *planner, uint32_t layout,
                           const struct plan_value *value)
{
    return bytes_of(tsr__planner_elements(planner, layout, value), value->bits);
}

// Returns the exact bytes of this device, which may store several shards or none.
// tsr__planner_bytes uses the largest shard instead.
int64_t tsr__planner_held(struct planner *planner, struct arena *arena, uint32_t layout,
                          const struct plan_value *value, int64_t device)
{
    if (layout == PLAN_NO_LAYOUT)
        return 0;
    const struct tile_layout *tile_layout = planner->layouts.at[layout].tiles;
    int64_t n = 0;
    if (tile_layout->rank != value->rank || tsr__layout_is_whole(tile_layout)) {
        if (!tsr__layout_has_device(tile_layout, device))
            return 0;
        return tsr__planner_bytes(planner, layout, value);
    }
    for (int64_t k = tsr__layout_shard_of(tile_layout, device, 0); k >= 0;
         k = tsr__layout_shard_of(tile_layout, device, k + 1)) {
        struct tile_piece *piece = tsr__layout_piece(arena, tile_layout, value->shape, k);
        n += piece ? tsr__piece_elements(piece) : 0;
    }
    return bytes_of(n, value->bits);
}
