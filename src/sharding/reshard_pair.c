// SPDX-License-Identifier: Apache-2.0
// reshard_pair.c - two layouts of one shape laid over each other: what each shard of the one shares with each of
// the other.
//
// A shard is a product of one part of each dimension, so what two shards share is a product too: a small table for
// each dimension answers all pairs. Knows no steps.
#include "sharding/reshard.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool take_devices(struct pairing *p, const struct tile_layout *x,
                         const struct tile_layout *y)
{
    size_t n_x = (size_t)x->first[x->n_shards], n_y = (size_t)y->first[y->n_shards];
    p->devices = ARENA_ARRAY(p->arena, int64_t, n_x + n_y + 1);
    if (!p->devices)
        return false;
    memcpy(p->devices, x->owners, n_x * sizeof *p->devices);
    memcpy(p->devices + n_x, y->owners, n_y * sizeof *p->devices);
    qsort(p->devices, n_x + n_y, sizeof *p->devices, by_value);
    for (size_t i = 0; i < n_x + n_y; i++)
        if (p->n_devices == 0 || p->devices[p->n_devices - 1] != p->devices[i])
            p->devices[p->n_devices++] = p->devices[i];
    return true;
}

size_t tsr__pairing_device(const struct pairing *p, int64_t device)
{
    const int64_t *at = bsearch(&device, p->devices, p->n_devices, sizeof *p->devices, by_value);
    return at ? (size_t)(at - p->devices) : SIZE_MAX;
}

bool tsr__side_owns(const struct side *s, size_t device, int64_t shard)
{
    for (size_t i = s->first[device]; i < s->first[device + 1]; i++)
        if (s->shards[i] == shard)
            return true;
    return false;
}

// ---- one side ----------------------------------------------------------------------------------

static tsr_status take_part(struct arena *a, const struct tile_dim *d, int64_t size, int64_t index,
                            struct dim_part *out, int64_t *left)
{
    int64_t coords[TILE_MAX_FACTORS] = {0};
    for (int f = d->n - 1; f >= 0; f--) {
        coords[f] = index % d->factors[f].cuts;
        index /= d->factors[f].cuts;
    }
    out->n = tsr__dim_intervals(d, size, coords, NULL, 0);
    if (out->n < 0)
        return TSR_INVALID;
    if ((*left -= out->n) < 0)
        return TSR_UNSUPPORTED;
    out->at = ARENA_ARRAY(a, struct tile_interval, (size_t)out->n + 1);
    if (!out->at)
        return TSR_NOMEM;
    tsr__dim_intervals(d, size, coords, out->at, out->n);
    for (int64_t i = 0; i < out->n; i++)
        out->size += out->at[i].stop - out->at[i].start;
    return TSR_OK;
}

static tsr_status take_parts(struct arena *a, struct side *s, const int64_t *shape)
{
    int64_t left = TILE_MAX_INTERVALS;
    tsr_status status = TSR_OK;
    for (int d = 0; d < s->l->rank; d++) {
        s->n_parts[d] = 1;
        for (int f = 0; f < s->l->dims[d].n; f++)
            s->n_parts[d] *= s->l->dims[d].factors[f].cuts;
        s->parts[d] = ARENA_ARRAY(a, struct dim_part, (size_t)s->n_parts[d]);
        if (!s->parts[d])
            return TSR_NOMEM;
        for (int64_t i = 0; i < s->n_parts[d] && status == TSR_OK; i++)
            status = take_part(a, &s->l->dims[d], shape[d], i, &s->parts[d][i], &left);
    }
    return status;
}

static void take_shards(struct side *s)
{
    int rank = s->l->rank;
    for (int64_t k = 0; k < s->l->n_shards; k++) {
        int64_t coords[TILE_MAX_LOOPS];
        tsr__layout_coords(s->l, k, coords);
        // loops stand in the order of the factors, so that the digits of a part come highest first
        for (int i = 0; i < s->l->n_loops; i++) {
            int d = s->l->loops[i].dim;
            int64_t *part = &s->part[k * rank + d];
            *part = *part * s->l->dims[d].factors[s->l->loops[i].factor].cuts + coords[i];
        }
        s->elements[k] = 1;
        for (int d = 0; d < rank; d++)
            s->elements[k] *= s->parts[d][s->part[k * rank + d]].size;
    }
}

static bool take_owners(const struct pairing *p, struct side *s)
{
    size_t *at = ARENA_ARRAY(p->arena, size_t, p->n_devices + 1);
    if (!at)
        return false;
    for (int64_t i = 0; i < s->l->first[s->l->n_shards]; i++)
        s->first[tsr__pairing_device(p, s->l->owners[i]) + 1]++;
    for (size_t t = 0; t < p->n_devices; t++)
        s->first[t + 1] += s->first[t];
    memcpy(at, s->first, p->n_devices * sizeof *at);
    for (int64_t k = 0; k < s->l->n_shards; k++)
        for (int64_t i = s->l->first[k]; i < s->l->first[k + 1]; i++)
            s->shards[at[tsr__pairing_device(p, s->l->owners[i])]++] = k;
    return true;
}

static tsr_status take_side(struct pairing *p, struct side *s, const struct tile_layout *l,
                            const int64_t *shape)
{
    struct arena *a = p->arena;
    size_t rank = (size_t)l->rank, shards = (size_t)l->n_shards;
    s->l = tsr__layout_ordered(a, l);
    s->parts = ARENA_ARRAY(a, struct dim_part *, rank + 1);
    s->n_parts = ARENA_ARRAY(a, int64_t, rank + 1);
    s->part = ARENA_ARRAY(a, int64_t, shards * rank + 1);
    s->elements = ARENA_ARRAY(a, int64_t, shards);
    s->first = ARENA_ARRAY(a, size_t, p->n_devices + 2);
    s->shards = ARENA_ARRAY(a, int64_t, (size_t)l->first[shards] + 1);
    if (a->failed)
        return TSR_NOMEM;
    tsr_status status = take_parts(a, s, shape);
    if (status != TSR_OK)
        return status;
    take_shards(s);
    return take_owners(p, s) ? TSR_OK : TSR_NOMEM;
}

// ---- both --------------------------------------------------------------------------------------

static int64_t shared(const struct dim_part *x, const struct dim_part *y)
{
    int64_t n = 0;
    for (int64_t i = 0, k = 0; i < x->n && k < y->n;) {
        int64_t start = x->at[i].start > y->at[k].start ? x->at[i].start : y->at[k].start;
        int64_t stop = x->at[i].stop < y->at[k].stop ? x->at[i].stop : y->at[k].stop;
        n += start < stop ? stop - start : 0;
        if (x->at[i].stop <= y->at[k].stop)
            i++;
        else
            k++;
    }
    return n;
}

static bool take_common(struct pairing *p)
{
    p->common = ARENA_ARRAY(p->arena, int64_t *, (size_t)p->rank + 1);
    for (int d = 0; p->common && d < p->rank; d++) {
        int64_t n = p->from.n_parts[d], m = p->to.n_parts[d];
        p->common[d] = ARENA_ARRAY(p->arena, int64_t, (size_t)(n * m));
        if (!p->common[d])
            return false;
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < m; k++)
                p->common[d][i * m + k] = shared(&p->from.parts[d][i], &p->to.parts[d][k]);
    }
    return p->common != NULL;
}

static bool same_shards(const struct side *s, size_t x, size_t y)
{
    size_t n = side_count(s, x);
    return n == side_count(s, y) &&
           memcmp(&s->shards[s->first[x]], &s->shards[s->first[y]], n * sizeof *s->shards) == 0;
}

// Members of a group hold the same shards; every device that holds something is in one group.
static tsr_status take_groups(struct pairing *p)
{
    p->group = ARENA_ARRAY(p->arena, size_t, p->n_devices + 1);
    if (!p->group)
        return TSR_NOMEM;
    memset(p->group, 0xff, p->n_devices * sizeof *p->group);
    for (size_t g = 0; g < p->pending->n_groups; g++) {
        const struct device_group *group = &p->pending->groups[g];
        for (size_t i = 0; i < group->n; i++) {
            size_t t = tsr__pairing_device(p, group->devices[i]);
            if (t == SIZE_MAX || p->group[t] != SIZE_MAX || side_count(&p->from, t) == 0 ||
                !same_shards(&p->from, t, tsr__pairing_device(p, group->devices[0])))
                return TSR_INVALID;
            p->group[t] = g;
        }
    }
    for (size_t t = 0; t < p->n_devices; t++)
        if (side_count(&p->from, t) && p->group[t] == SIZE_MAX)
            return TSR_INVALID;
    return TSR_OK;
}

tsr_status tsr__pairing_new(struct arena *a, const struct tile_layout *from,
                            const struct partial *pending, const struct tile_layout *to,
                            const int64_t *shape, size_t elem_bytes, struct pairing *out)
{
    *out = (struct pairing){
        .arena = a, .made = a, .rank = from->rank, .unit = (int64_t)elem_bytes, .pending = pending};
    if (from->n_shards > RESHARD_MAX_PAIRS / to->n_shards ||
        from->first[from->n_shards] > RESHARD_MAX_PAIRS / (to->first[to->n_shards] + 1))
        return TSR_UNSUPPORTED;
    if (!take_devices(out, from, to))
        return TSR_NOMEM;
    tsr_status status = take_side(out, &out->from, from, shape);
    if (status == TSR_OK)
        status = take_side(out, &out->to, to, shape);
    if (status == TSR_OK && !take_common(out))
        status = TSR_NOMEM;
    if (status == TSR_OK && pending)
        status = take_groups(out);
    return status;
}
