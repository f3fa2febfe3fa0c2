// SPDX-License-Identifier: Apache-2.0
// sizes.c - the whole shape of a value that is cut and whose sizes no rank can compute: each device
// counts what it has, and the counts are summed. Along one dimension the shards add up to the whole,
// so of each dimension those count that are first in all others, each by its first owner.
#include "internal.h"

static const struct node_flow sums = {.combine = COMBINE_SUM};

// An item for the shape of another.
struct item *tsr__shape_item(struct plan *plan, struct item *it)
{
    if (it->shape_item)
        return it->shape_item;
    struct item *item = ARENA_NEW(plan->arena, struct item);
    tsr_dim *dims = ARENA_ARRAY(plan->arena, tsr_dim, 1);
    int64_t *shape = ARENA_ARRAY(plan->arena, int64_t, 1);
    if (!item || !dims || !shape)
        return NULL;
    shape[0] = it->rank;
    dims[0] = (tsr_dim){it->rank, ""};
    *item = (struct item){.dtype = TSR_INT64,
                          .rank = 1,
                          .dims = dims,
                          .fixed = true,
                          .shape = shape,
                          .scope = it->scope};
    item->name = tsr__arena_printf(plan->arena, STR_FMT ".shape", STR_ARG(it->name));
    it->shape_item = item;
    return item->name.p ? item : NULL;
}

struct form *tsr__plan_count(struct plan *plan, struct form *from, const struct tile_layout *on,
                             struct device_group *group)
{
    struct item *item = tsr__shape_item(plan, from->item);
    struct form *part = item ? tsr__form_new(plan, item, on, FORM_MADE) : NULL;
    struct form *all = part ? tsr__form_new(plan, item, on, FORM_MADE) : NULL;
    struct step *count = all ? tsr__step_new(plan, STEP_SHAPE, 1, 1) : NULL;
    struct step *sum = count ? tsr__step_new(plan, COMM_ALL_REDUCE, 1, 1) : NULL;
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
    sum->group_live = ARENA_ARRAY(plan->arena, unsigned char, 2);
    return sum->group_live ? all : NULL;
}

// 1 for each dimension that this device's piece counts in.
static bool counts_in(const struct tile_layout *layout, int64_t device, int64_t *mask)
{
    const int64_t *owners;
    int64_t coords[TILE_MAX_LOOPS], shard = tsr__layout_shard_of(layout, device, 0);
    bool all = true;
    if (shard < 0 || tsr__layout_owners(layout, shard, &owners) == 0)
        return false;
    tsr__layout_coords(layout, shard, coords);
    for (int axis = 0; axis < layout->rank; axis++) {
        mask[axis] = owners[0] == device;
        for (int i = 0; i < layout->n_loops; i++)
            if (layout->loops[i].dim != axis && coords[i] != 0)
                mask[axis] = 0;
        all = all && mask[axis];
    }
    return all;
}

tsr_value *tsr__part_count(struct part *part, const struct form *from, struct str name)
{
    int64_t mask[TILE_MAX_RANK] = {0};
    bool all = counts_in(from->layout, part->rank, mask), any = false;
    for (int axis = 0; axis < from->layout->rank; axis++)
        any = any || mask[axis];
    tsr_value *ones = all ? NULL : tsr__part_ints(part, mask, from->layout->rank);
    if (!any)
        return ones;
    tsr_value *x = form_root((struct form *)from)->local[part->rank];
    if (all)
        return tsr__part_sizes(part, x, from->item->dtype, name);
    tsr_value *shape = tsr__part_sizes(part, x, from->item->dtype, (struct str){0});
    return tsr__part_node(part, "Mul", name, 2, shape, ones);
}
