// SPDX-License-Identifier: Apache-2.0
// placement.c - what a placement means for the tensors and the communication of a node: the layout
// of each tensor is the projection of the devices' coordinates; partial results are combined among
// the devices that differ in reduced factors alone.
#include "sharding/internal.h"

#include <stdlib.h>

// Shard of a device: its coordinates, moved into the canonical cuts of the tensor.
static int64_t shard_of(const struct placement *p, const struct rule_tensor *t,
                        const struct tile_layout *l, struct cut_move *const *moves, size_t device)
{
    const int64_t *row = &p->coords[device * (size_t)p->rule->n_factors];
    int64_t shard = 0;
    for (int loop = 0; loop < l->n_loops; loop++) {
        int d = l->loops[loop].dim, f = l->loops[loop].factor;
        int64_t part = 0;
        for (int k = 0; k < t->dims[d].n; k++)
            if (moves[d][k].to == f)
                part += row[t->dims[d].factors[k]] * moves[d][k].stride;
        shard = shard * l->dims[d].factors[f].cuts + part;
    }
    return shard;
}

static bool project_dim(struct arena *a, const struct placement *p, const struct rule_dim *from,
                        struct tile_dim *to, struct cut_move **moves)
{
    struct cut_part parts[RULE_MAX_FACTORS];
    size_t n = (size_t)from->n;
    to->factors = ARENA_ARRAY(a, struct tile_factor, 2 * n + 1);
    *moves = ARENA_ARRAY(a, struct cut_move, n + 1);
    if (!to->factors || !*moves)
        return false;
    for (int i = 0; i < from->n; i++) {
        int f = from->factors[i];
        int64_t size = from->window ? 0 : p->rule->factors[f].size.value;
        parts[i] = (struct cut_part){size > 0 ? size : 0, p->cuts[f]};
    }
    to->n = tsr__cut_canonical(parts, from->n, to->factors, *moves);
    return true;
}

struct tile_layout *tsr__placement_project(struct arena *a, const struct placement *p,
                                           const struct rule_tensor *t)
{
    struct tile_dim *dims = ARENA_ARRAY(a, struct tile_dim, (size_t)t->rank + 1);
    struct cut_move **moves = ARENA_ARRAY(a, struct cut_move *, (size_t)t->rank + 1);
    struct tile_owner *pairs = ARENA_ARRAY(a, struct tile_owner, p->n_devices + 1);
    if (!dims || !moves || !pairs)
        return NULL;
    for (int d = 0; d < t->rank && !t->host; d++)
        if (!project_dim(a, p, &t->dims[d], &dims[d], &moves[d]))
            return NULL;
    struct tile_layout *l = tsr__layout_cut(a, t->rank, dims);
    for (size_t i = 0; l && i < p->n_devices; i++)
        pairs[i] = (struct tile_owner){shard_of(p, t, l, moves, i), p->devices[i]};
    return l && tsr__layout_own(a, l, pairs, p->n_devices) ? l : NULL;
}

// ---- groups ------------------------------------------------------------------------------------

struct member {
    int64_t kept, reduced; // cell over the factors that stay, and over the reduced ones
    size_t replica;
    int64_t device;
};

static struct member member_of(const struct placement *p, size_t device)
{
    struct member m = {.device = p->devices[device]};
    for (int f = 0; f < p->rule->n_factors; f++) {
        int64_t part = p->coords[device * (size_t)p->rule->n_factors + (size_t)f];
        if (p->rule->factors[f].kind == FACTOR_RED)
            m.reduced = m.reduced * p->cuts[f] + part;
        else
            m.kept = m.kept * p->cuts[f] + part;
    }
    return m;
}

static int by_cell(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->kept != y->kept)
        return x->kept < y->kept ? -1 : 1;
    if (x->reduced != y->reduced)
        return x->reduced < y->reduced ? -1 : 1;
    return x->device < y->device ? -1 : x->device > y->device;
}

static int by_group(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->kept != y->kept)
        return x->kept < y->kept ? -1 : 1;
    if (x->replica != y->replica)
        return x->replica < y->replica ? -1 : 1;
    return x->reduced < y->reduced ? -1 : x->reduced > y->reduced;
}

// Members in the order of their groups: the i-th device of each cell goes into the i-th group.
static void sort_members(struct member *m, size_t n)
{
    qsort(m, n, sizeof(*m), by_cell);
    for (size_t i = 1; i < n; i++)
        if (m[i].kept == m[i - 1].kept && m[i].reduced == m[i - 1].reduced)
            m[i].replica = m[i - 1].replica + 1;
    qsort(m, n, sizeof(*m), by_group);
}

bool tsr__placement_groups(struct arena *a, const struct placement *p, struct device_group **out,
                           size_t *n_out, enum combine *combine)
{
    int64_t parts = 1;
    size_t n = p->n_devices;
    for (int f = 0; f < p->rule->n_factors; f++)
        if (p->rule->factors[f].kind == FACTOR_RED && p->cuts[f] > 1) {
            parts *= p->cuts[f];
            *combine = p->rule->factors[f].combine;
        }
    *n_out = 0;
    if (parts == 1)
        return true;
    struct member *m = ARENA_ARRAY(a, struct member, n + 1);
    struct device_group *groups = ARENA_ARRAY(a, struct device_group, n / (size_t)parts + 1);
    int64_t *devices = ARENA_ARRAY(a, int64_t, n + 1);
    if (!m || !groups || !devices)
        return false;
    for (size_t i = 0; i < n; i++)
        m[i] = member_of(p, i);
    sort_members(m, n);
    for (size_t i = 0; i < n; i++) {
        devices[i] = m[i].device;
        if (i % (size_t)parts == 0)
            groups[(*n_out)++] = (struct device_group){&devices[i], (size_t)parts};
    }
    *out = groups;
    return true;
}
