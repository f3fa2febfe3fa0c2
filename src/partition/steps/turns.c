// SPDX-License-Identifier: Apache-2.0
// turns.c - plans nodes on devices that have several shards of a value, if these shards do not form
// one contiguous part. The node runs in turns: in each turn every device works on one of its
// shards. A turn is planned like a node, but its forms have only some of the shards.
//
//     Example: Relu of X [8,4] {4,1:0,1,0,1} -> Y:
//         turn 0   X/1: shards 0 and 1 on devices 0 and 1     Y/0: the same shards of Y
//         turn 1   X/2: shards 2 and 3 on devices 0 and 1     Y/1: the same shards of Y
//     A reader of Y with the same sharding takes Y/0 and Y/1. For other readers the shards are sent
//     to their devices one by one and joined there (STEP_JOIN).
//
//     Example: ReduceSum of the same X along axis 0 -> Y [1,4]:
//         turn 0   Y/0: the sums of shards 0 and 1 on devices 0 and 1
//         turn 1   Y/1: the sums of shards 2 and 3
//         Y/2 = Y/0 + Y/1 on each device (STEP_SUM), then an AllReduce
#include "internal.h"

// Returns the layouts of n inputs or outputs in one turn. Each shard belongs to the devices that
// compute it in this turn. Returns NULL if out of memory.
static struct tile_layout **turn_layouts(struct draft *draft, const struct placement *place,
                                         const struct rule_tensor *tensors,
                                         struct tile_layout *const *all, size_t n)
{
    struct tile_layout **layouts = ARENA_ARRAY(draft->arena, struct tile_layout *, n + 1);
    for (size_t i = 0; layouts && i < n; i++)
        if (all[i])
            layouts[i] = tsr__placement_project(draft->arena, place, &tensors[i]);
    return draft->arena->failed ? NULL : layouts;
}

const struct node_flow *tsr__turn_flow(struct draft *draft, const struct node_flow *nf, size_t turn,
                                       bool *done)
{
    *done = turn > 0;
    if (!nf->place.rule || !tsr__placement_has_turns(&nf->place))
        return nf;
    struct node_flow *part = ARENA_NEW(draft->arena, struct node_flow);
    if (!part)
        return NULL;
    *part = *nf;
    if (!tsr__placement_turn(draft->arena, &nf->place, turn, &part->place))
        return NULL;
    *done = part->place.n_devices == 0;
    part->inputs = turn_layouts(draft, &part->place, part->place.rule->inputs, nf->inputs,
                                tsr_node_input_count(nf->node));
    part->outputs = turn_layouts(draft, &part->place, part->place.rule->outputs, nf->outputs,
                                 tsr_node_output_count(nf->node));
    return part->inputs && part->outputs ? part : NULL;
}

// ---- joining -----------------------------------------------------------------------------------

// Returns the size of one shard along an axis; unknown if the size of the value is unknown.
static tsr_dim shard_size(const struct item *it, const struct tile_layout *layout, int64_t shard,
                          int axis)
{
    int64_t loops[TILE_MAX_LOOPS], coords[TILE_MAX_FACTORS] = {0};
    if (!tsr__dim_is_sharded(&layout->dims[axis]))
        return it->dims[axis];
    if (it->dims[axis].value < 0)
        return (tsr_dim){-1, ""};
    tsr__layout_coords(layout, shard, loops);
    for (int i = 0; i < layout->n_loops; i++)
        if (layout->loops[i].dim == axis)
            coords[layout->loops[i].factor] = loops[i];
    struct local_size size = tsr__local_size(&layout->dims[axis], coords);
    return (tsr_dim){tsr__local_size_of(&size, it->dims[axis].value), ""};
}

// Returns one shard as a value of its own, which uses the tensors of `form`. Returns NULL if out of
// memory.
static struct item *shard_item(struct draft *draft, struct form *form, int64_t shard)
{
    const struct item *it = form->item;
    struct item *piece = ARENA_NEW(draft->arena, struct item);
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, dims_capacity(it->rank));
    int64_t *shape = ARENA_ARRAY(draft->arena, int64_t, dims_capacity(it->rank));
    if (!piece || !dims || !shape)
        return NULL;
    *piece = (struct item){.dtype = it->dtype,
                           .rank = it->rank,
                           .dims = dims,
                           .origins = it->origins,
                           .shape = shape,
                           .fixed = true,
                           .scope = it->scope};
    piece->name =
        tsr__arena_printf(draft->arena, STR_FMT ".shard%lld", STR_ARG(it->name), (long long)shard);
    for (int axis = 0; axis < it->rank; axis++) {
        dims[axis] = shard_size(it, form->layout, shard, axis);
        piece->fixed = piece->fixed && dims[axis].value >= 0;
        shape[axis] = dims[axis].value;
    }
    const int64_t *owners;
    size_t n = tsr__layout_owners(form->layout, shard, &owners);
    struct form *here =
        tsr__form_new(draft, piece, tsr__unsharded_layout(draft, piece, owners, n), FORM_MADE);
    if (!here)
        return NULL;
    here->same = form_root(form);
    return piece;
}

static struct form *form_with(struct item *it, int64_t shard)
{
    for (struct form *form = it->first; form; form = form->next)
        if (form->of_turn && form->layout->first[shard] < form->layout->first[shard + 1])
            return form;
    return NULL;
}

struct item **tsr__turn_shards(struct draft *draft, struct item *it,
                               const struct tile_layout **sharding)
{
    const struct form *first = it->first;
    while (first && !first->of_turn)
        first = first->next;
    if (!first)
        return NULL;
    int64_t n = first->layout->n_shards;
    struct item **shards = ARENA_ARRAY(draft->arena, struct item *, (size_t)n + 1);
    for (int64_t k = 0; shards && k < n; k++) {
        struct form *form = form_with(it, k);
        shards[k] = form ? shard_item(draft, form, k) : NULL;
        if (!shards[k])
            return NULL;
    }
    *sharding = first->layout;
    return shards;
}
