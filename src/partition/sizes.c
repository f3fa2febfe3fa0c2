// SPDX-License-Identifier: Apache-2.0
// sizes.c - the whole shape of a value that is cut and whose sizes no rank can compute: each device
// counts what it has, and the counts are summed. Along one dimension the shards add up to the whole,
// so of each dimension those count that are first in all others, each by its first owner.
#include "internal.h"

static const struct node_flow sums = {.combine = COMBINE_SUM};

// An item for the shape of another.
struct item *tsr__shape_item(struct plan *p, struct item *it)
{
    if (it->shape_item)
        return it->shape_item;
    struct item *s = ARENA_NEW(p->arena, struct item);
    tsr_dim *dims = ARENA_ARRAY(p->arena, tsr_dim, 1);
    int64_t *shape = ARENA_ARRAY(p->arena, int64_t, 1);
    if (!s || !dims || !shape)
        return NULL;
    shape[0] = it->rank;
    dims[0] = (tsr_dim){it->rank, ""};
    *s = (struct item){.dtype = TSR_INT64,
                       .rank = 1,
                       .dims = dims,
                       .fixed = true,
                       .shape = shape,
                       .scope = it->scope};
    s->name = tsr__arena_printf(p->arena, STR_FMT ".shape", STR_ARG(it->name));
    it->shape_item = s;
    return s->name.p ? s : NULL;
}

struct form *tsr__plan_count(struct plan *p, struct form *from, const struct tile_layout *on,
                             struct device_group *group)
{
    struct item *s = tsr__shape_item(p, from->item);
    struct form *part = s ? tsr__form_new(p, s, on, FORM_MADE) : NULL;
    struct form *all = part ? tsr__form_new(p, s, on, FORM_MADE) : NULL;
    struct step *count = all ? tsr__step_new(p, STEP_SHAPE, 1, 1) : NULL;
    struct step *sum = count ? tsr__step_new(p, STEP_REDUCE, 1, 1) : NULL;
    if (!sum)
        return NULL;
    part->partial = true;
    count->inputs[0] = from;
    count->outputs[0] = part;
    sum->flow = &sums;
    sum->inputs[0] = part;
    sum->outputs[0] = all;
    sum->groups = group;
    sum->n_groups = 1;
    sum->group_live = ARENA_ARRAY(p->arena, unsigned char, 2);
    return sum->group_live ? all : NULL;
}

// 1 for each dimension that this device's piece counts in.
static bool counts_in(const struct tile_layout *l, int64_t device, int64_t *mask)
{
    const int64_t *owners;
    int64_t coords[TILE_MAX_LOOPS], shard = tsr__layout_shard_of(l, device, 0);
    bool all = true;
    if (shard < 0 || tsr__layout_owners(l, shard, &owners) == 0)
        return false;
    tsr__layout_coords(l, shard, coords);
    for (int d = 0; d < l->rank; d++) {
        mask[d] = owners[0] == device;
        for (int i = 0; i < l->n_loops; i++)
            if (l->loops[i].dim != d && coords[i] != 0)
                mask[d] = 0;
        all = all && mask[d];
    }
    return all;
}

tsr_value *tsr__part_count(struct part *t, const struct form *from, struct str name)
{
    int64_t mask[TILE_MAX_RANK] = {0};
    bool all = counts_in(from->layout, t->rank, mask), any = false;
    for (int d = 0; d < from->layout->rank; d++)
        any = any || mask[d];
    tsr_value *ones = all ? NULL : tsr__part_ints(t, mask, from->layout->rank);
    if (!any)
        return ones;
    tsr_value *x = form_root((struct form *)from)->local[t->rank];
    if (all)
        return tsr__part_sizes(t, x, from->item->dtype, name);
    tsr_value *shape = tsr__part_sizes(t, x, from->item->dtype, (struct str){0});
    return tsr__part_node(t, "Mul", name, 2, shape, ones);
}
