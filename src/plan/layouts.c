// SPDX-License-Identifier: Apache-2.0
// layouts.c - numbers for layouts, and sizes of their pieces.
#include "plan/internal.h"

#define KEY_INTS 512

static uint32_t add_number(struct planner *p, const struct tile_layout *l,
                           const struct parts *parts)
{
    const struct tile_layout **at = vec_push(&p->arena, &p->layouts);
    const struct parts **of = vec_push(&p->arena, &p->parts);
    bool *spread = vec_push(&p->arena, &p->spread);
    if (!at || !of || !spread)
        return PLAN_NO_LAYOUT;
    *at = l;
    *spread = false;
    *of = parts;
    return (uint32_t)(p->layouts.n - 1);
}

uint32_t tsr__planner_layout(struct planner *p, const struct tile_layout *l)
{
    int64_t inline_key[KEY_INTS], *key = inline_key;
    size_t n = tsr__layout_encode(l, key, KEY_INTS);
    if (n > KEY_INTS) {
        key = ARENA_ARRAY(&p->arena, int64_t, n);
        if (!key)
            return PLAN_NO_LAYOUT;
        (void)tsr__layout_encode(l, key, n);
    }
    struct str text = {(const char *)key, n * sizeof *key};
    uintptr_t found = (uintptr_t)tsr__map_get(&p->layout_ids, text);
    if (found)
        return (uint32_t)(found - 1);
    void **slot = tsr__map_at(&p->layout_ids, tsr__arena_str(&p->arena, text));
    struct tile_layout *copy = tsr__layout_copy(&p->arena, l);
    uint32_t number = slot && copy ? add_number(p, copy, NULL) : PLAN_NO_LAYOUT;
    if (number != PLAN_NO_LAYOUT)
        *slot = (void *)(uintptr_t)p->layouts.n;
    return number;
}

static struct str key_of_parts(struct planner *p, uint32_t layout,
                               const struct device_group *groups, size_t n)
{
    size_t n_key = 1;
    for (size_t g = 0; g < n; g++)
        n_key += groups[g].n + 1;
    int64_t *key = ARENA_ARRAY(&p->arena, int64_t, n_key);
    if (!key)
        return (struct str){0};
    n_key = 0;
    key[n_key++] = -1 - (int64_t)layout; // no layout begins so
    for (size_t g = 0; g < n; g++) {
        key[n_key++] = (int64_t)groups[g].n;
        for (size_t i = 0; i < groups[g].n; i++)
            key[n_key++] = groups[g].devices[i];
    }
    return (struct str){(const char *)key, n_key * sizeof *key};
}

uint32_t tsr__planner_parts(struct planner *p, uint32_t layout, const struct device_group *groups,
                            size_t n)
{
    struct str key = key_of_parts(p, layout, groups, n);
    uintptr_t found = key.p ? (uintptr_t)tsr__map_get(&p->layout_ids, key) : 0;
    if (found)
        return (uint32_t)(found - 1);
    void **slot = key.p ? tsr__map_at(&p->layout_ids, key) : NULL;
    struct parts *parts = ARENA_NEW(&p->arena, struct parts);
    struct device_group *copy = ARENA_ARRAY(&p->arena, struct device_group, n + 1);
    if (!slot || !parts || !copy)
        return PLAN_NO_LAYOUT;
    for (size_t g = 0; g < n; g++) {
        copy[g].n = groups[g].n;
        copy[g].devices = ARENA_ARRAY(&p->arena, int64_t, groups[g].n + 1);
        if (!copy[g].devices)
            return PLAN_NO_LAYOUT;
        memcpy(copy[g].devices, groups[g].devices, groups[g].n * sizeof *copy[g].devices);
    }
    *parts = (struct parts){layout, copy, n};
    uint32_t number = add_number(p, p->layouts.at[layout], parts);
    if (number != PLAN_NO_LAYOUT)
        *slot = (void *)(uintptr_t)p->layouts.n;
    return number;
}

uint32_t tsr__planner_whole(struct planner *p, int rank)
{
    rank = rank < 0 || rank > TILE_MAX_RANK ? 0 : rank;
    const struct tile_layout *l = tsr__layout_whole(&p->arena, rank, p->all, (size_t)p->n);
    return l ? tsr__planner_layout(p, l) : PLAN_NO_LAYOUT;
}

// Of the largest part of a dimension.
static int64_t part_size(const struct tile_dim *d, int64_t size)
{
    int64_t sizes[TILE_MAX_FACTORS], part = 1;
    if (d->n == 0 || !tsr__dim_sizes(d, size, sizes))
        return size;
    for (int f = 0; f < d->n; f++)
        part *= (sizes[f] + d->factors[f].cuts - 1) / d->factors[f].cuts;
    return part < size ? part : size;
}

int64_t tsr__planner_elements(const struct planner *p, uint32_t layout, const struct plan_value *v)
{
    const struct tile_layout *l = p->layouts.at[layout];
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++) {
        int64_t part = l->rank == v->rank ? part_size(&l->dims[d], v->shape[d]) : v->shape[d];
        if (!mul_ok(n, part, &n))
            return PLAN_NEVER;
    }
    return n;
}

static int64_t bytes_of(int64_t elements, int bits)
{
    return elements > PLAN_NEVER / 64 ? PLAN_NEVER : (elements * bits + 7) / 8;
}

int64_t tsr__planner_bytes(const struct planner *p, uint32_t layout, const struct plan_value *v)
{
    return bytes_of(tsr__planner_elements(p, layout, v), v->bits);
}

int64_t tsr__planner_held(struct planner *p, struct arena *a, uint32_t layout,
                          const struct plan_value *v, int64_t device)
{
    const struct tile_layout *l = p->layouts.at[layout];
    int64_t n = 0;
    if (l->rank != v->rank || tsr__layout_is_whole(l))
        return tsr__layout_has_device(l, device) ? tsr__planner_bytes(p, layout, v) : 0;
    for (int64_t k = tsr__layout_shard_of(l, device, 0); k >= 0;
         k = tsr__layout_shard_of(l, device, k + 1)) {
        struct tile_piece *piece = tsr__layout_piece(a, l, v->shape, k);
        n += piece ? tsr__piece_elements(piece) : 0;
    }
    return bytes_of(n, v->bits);
}
