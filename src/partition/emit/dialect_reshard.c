// SPDX-License-Identifier: Apache-2.0
// dialect_reshard.c - from any layout to any other, where nothing but a gather is to be had: all pieces, filled up to one
// size, lie behind each other on every member, which puts the whole together and takes its part.
//
//     [6,4] as {2,2} on ranks 0 1 2 3, wanted as {4,1}: pieces [3,2], gathered [12,2], Split in four
//         Concat of 0 and 1 along axis 1, of 2 and 3 along axis 1, of both along axis 0: [6,4]
//         rank 1 takes row 1 and 2: Slice
//     a strided cut gives rows 0 2 4 on rank 0 and 1 3 5 on rank 1: joined they are 0 2 4 1 3 5, and Gather puts them right
#include "dialect.h"

// Elements of one axis by their numbers in the whole, in the order in which they lie.
struct order {
    int64_t *at, n;
};

// Behind those that are there come those that the rank has. False: out of memory, or it has none.
static bool add_piece(struct draft *draft, const struct form *form, int axis, int64_t rank,
                      struct order *order)
{
    int64_t coords[TILE_MAX_FACTORS], size = form->item->dims[axis].value;
    const struct tile_dim *dim = &form->layout->dims[axis];
    if (!tsr__device_coords(form->layout, rank, axis, coords))
        return false;
    int64_t room = size + 1;
    struct tile_interval *runs = ARENA_ARRAY(draft->arena, struct tile_interval, (size_t)room);
    if (!runs)
        return false;
    int64_t n = tsr__dim_intervals(dim, size, coords, runs, room);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = runs[i].start; k < runs[i].stop; k++)
            if (order->n < size)
                order->at[order->n++] = k;
    return true;
}

// The elements of the axis as the pieces bring them: of the shards that differ along this axis alone, in their order.
static bool order_joined(struct draft *draft, const struct form *from, int axis, struct order *out)
{
    int64_t coords[TILE_MAX_LOOPS];
    const struct tile_layout *layout = from->layout;
    out->n = 0;
    out->at = ARENA_ARRAY(draft->arena, int64_t, (size_t)from->item->dims[axis].value + 1);
    if (!out->at)
        return false;
    for (int64_t shard = 0; shard < layout->n_shards; shard++) {
        bool first = true;
        tsr__layout_coords(layout, shard, coords);
        for (int i = 0; i < layout->n_loops; i++)
            if (layout->loops[i].dim != axis && coords[i] != 0)
                first = false;
        if (first && !add_piece(draft, from, axis, layout->owners[layout->first[shard]], out))
            return false;
    }
    return true;
}

// Where in `have`, which has all elements, each element of `want` lies, in place of its number. *run: one behind the other,
// from want->at[0] on. False: out of memory.
static bool find_places(struct draft *draft, const struct order *have, struct order *want,
                        bool *run)
{
    int64_t *place = ARENA_ARRAY(draft->arena, int64_t, (size_t)have->n + 1);
    if (!place)
        return false;
    for (int64_t i = 0; i < have->n; i++)
        place[have->at[i]] = i;
    *run = true;
    for (int64_t i = 0; i < want->n; i++) {
        want->at[i] = place[want->at[i]];
        if (want->at[i] != want->at[0] + i)
            *run = false;
    }
    return true;
}

// Of the joined pieces what the rank wants along one axis, in the order of the whole.
static tsr_value *taken(struct part *part, const struct dialect_call *call, int axis, tsr_value *x)
{
    struct draft *draft = part->draft;
    struct order have, want = {0};
    const struct form *from = call->step->inputs[0], *to = call->step->outputs[0];
    want.at = ARENA_ARRAY(draft->arena, int64_t, (size_t)from->item->dims[axis].value + 1);
    if (!want.at || !order_joined(draft, from, axis, &have) ||
        !add_piece(draft, to, axis, part->rank, &want))
        return NULL;
    bool run;
    if (!find_places(draft, &have, &want, &run))
        return NULL;
    if (run && want.n == have.n)
        return x;
    if (run && want.n)
        return tsr__part_slice(part, x, axis, want.at[0], want.at[0] + want.n, (struct str){0});
    tsr_value *places = tsr__part_ints(part, want.at, want.n);
    return tsr__with_int(tsr__part_node(part, "Gather", (struct str){0}, 2, x, places), "axis",
                         axis);
}

// The piece of a shard among those that were gathered, without what it was filled up with.
static tsr_value *piece_of(struct part *part, const struct dialect_call *call,
                           const tsr_node *split, int64_t shard, const int64_t *box)
{
    const struct form *from = call->step->inputs[0];
    int64_t owner = from->layout->owners[from->layout->first[shard]];
    size_t place = 0;
    while (place < call->group->n && call->group->devices[place] != owner)
        place++;
    if (place == call->group->n)
        return NULL;
    tsr_value *x = tsr_node_output(split, place);
    for (int axis = 0; axis < from->item->rank; axis++) {
        int64_t size = tsr__size_on(from, axis, owner);
        if (size < box[axis] && x)
            x = tsr__part_slice(part, x, axis, 0, size, (struct str){0});
    }
    return x;
}

// The pieces of all shards joined, the innermost cut first: shards of {2,2} are 0 1 2 3, and 0 and 1 differ in the last.
static tsr_value *joined(struct part *part, const struct dialect_call *call, tsr_value *gathered,
                         const int64_t *box)
{
    const struct tile_layout *layout = call->step->inputs[0]->layout;
    int64_t n = layout->n_shards;
    tsr_value **pieces = ARENA_ARRAY(part->draft->arena, tsr_value *, (size_t)n + 1);
    tsr_node *split = tsr__part_split(part, gathered, call->group->n, 0);
    if (!pieces || !split)
        return NULL;
    for (int64_t shard = 0; shard < n; shard++) {
        pieces[shard] = piece_of(part, call, split, shard, box);
        if (!pieces[shard])
            return NULL;
    }
    for (int loop = layout->n_loops - 1; loop >= 0; loop--) {
        const struct tile_loop *cut = &layout->loops[loop];
        int64_t cuts = layout->dims[cut->dim].factors[cut->factor].cuts;
        for (int64_t i = 0; i < n / cuts; i++) {
            pieces[i] =
                tsr__part_joined(part, pieces + i * cuts, (size_t)cuts, cut->dim, (struct str){0});
            if (!pieces[i])
                return NULL;
        }
        n /= cuts;
    }
    return pieces[0];
}

void tsr__reshard_box(const struct step *st, int64_t *box)
{
    const struct form *from = st->inputs[0];
    for (int axis = 0; axis < from->item->rank; axis++) {
        box[axis] = 0;
        for (int64_t i = 0; i < from->layout->first[from->layout->n_shards]; i++) {
            int64_t size = tsr__size_on(from, axis, from->layout->owners[i]);
            if (size > box[axis])
                box[axis] = size;
        }
    }
}

tsr_value *tsr__part_resharded(struct part *part, const struct dialect_call *call,
                               tsr_value *gathered, const int64_t *box, struct str out)
{
    if (!gathered)
        return NULL;
    if (!tsr__layout_has_device(call->step->outputs[0]->layout, part->rank))
        return gathered; // it has given what others want, and keeps nothing
    tsr_value *x = joined(part, call, gathered, box);
    for (int axis = 0; axis < call->step->inputs[0]->item->rank; axis++) {
        if (!x)
            return NULL;
        x = taken(part, call, axis, x);
    }
    return tsr__part_node(part, "Identity", out, 1, x);
}
