// SPDX-License-Identifier: Apache-2.0
// sizes.c - computes the full shape of a sharded value whose sizes no rank knows: each device
// counts sizes of its shard, and a collective adds the counts. For each dimension only the shards
// at coordinate 0 of all other dimensions count. If a shard has several owners, only the first
// counts.
#include "internal.h"

static const struct node_flow sums = {.combine = COMBINE_SUM};

struct item *tsr__shape_item(struct draft *draft, struct item *it)
{
    if (it->shape_item)
        return it->shape_item;
    struct item *item = ARENA_NEW(draft->arena, struct item);
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, 1);
    int64_t *shape = ARENA_ARRAY(draft->arena, int64_t, 1);
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
    item->name = tsr__arena_printf(draft->arena, STR_FMT ".shape", STR_ARG(it->name));
    it->shape_item = item;
    return item->name.p ? item : NULL;
}

// Plans the sum of sizes over the ranks. Example: [n,6] {2,1} on ranks 0 and 1, n = 7. Rank 0
// counts [3,6], rank 1 [4,0]; the sum is [7,6]. See counts_in in emit_shape.c.
struct form *tsr__draft_count(struct draft *draft, struct form *from, const struct tile_layout *on,
                              struct device_group *group)
{
    struct item *item = tsr__shape_item(draft, from->item);
    struct form *part = tsr__form_new(draft, item, on, FORM_MADE);
    struct form *all = tsr__form_new(draft, item, on, FORM_MADE);
    if (!tsr__step_between(draft, STEP_SHAPE, from, part))
        return NULL;
    struct step *sum = tsr__step_between(draft, COMM_ALL_REDUCE, part, all);
    if (!sum)
        return NULL;
    part->partial = true;
    sum->flow = &sums;
    return tsr__step_set_groups(draft, sum, group, 1);
}
