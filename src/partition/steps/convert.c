// SPDX-License-Identifier: Apache-2.0
// convert.c - converts a value from one of its forms to the layout that a reader needs. It takes
// the first of these conversions that is possible:
//     1. use a form that already has the layout
//     2. if the value is a constant, store it in the layout, unless the model says how it is stored
//     3. slice, if every device stores all elements that it needs
//     4. if a node without inputs produces the value, run that node on the reader's devices too
//     5. AllGather along one axis
//     6. collectives that give exactly the target
//     7. Reshard, from any layout to any other
// tsr__reshard_operators (sharding/reshard/operators.c) decides which of 3 and 5 to 7 is possible.
// If the producer ran in turns (a device with several shards computes them one after the other,
// turns.c), the shards are joined first, and (3) follows. A Reshard needs the full shape at run
// time. If no rank can compute the shape, the ranks gather the value instead (a gather needs no
// shape) and send the shape with it.
//
//     Example: Y [8,6] is produced {2,1} on ranks 0 and 1. Its readers, in planning order:
//         reader 1 needs {2,1}        (1) the existing form
//         reader 2 needs it unsharded (5) AllGather along axis 0, group {0,1}: form 1
//         reader 3 needs {1,2}        (3) both ranks have form 1: rank 1 slices columns 3..5
//     If reader 3 came first: (6) AllToAll(axis 0, split axis 1), each rank sends half a shard.
#include "internal.h"

// ---- full shapes that no rank knows ------------------------------------------------------------

// Each device counts sizes of its shard, and an AllReduce adds the counts. A device counts a
// dimension only if its shard has coordinate 0 in all other dimensions. If a shard has several
// owners, only the first one counts.

static const struct node_flow sums = {.combine = COMBINE_SUM};

static struct item *shape_item(struct draft *draft, struct item *it)
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

// Plans a sum of sizes over the ranks. Example: [n,6] {2,1} on ranks 0 and 1, with n = 7 at run
// time. Rank 0 counts [3,6], rank 1 counts [4,0], and the sum is [7,6]. See counts_in in
// emit_shape.c.
struct form *tsr__draft_count(struct draft *draft, struct form *from, const struct tile_layout *on,
                              struct device_group *group)
{
    struct item *item = shape_item(draft, from->item);
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

#define FIXED_BITS(type) (tsr_dtype_bits(type) >= 8)

// Reports at the node `reader` that a value cannot be converted, and sets draft->status if this is
// the first failure. Always returns NULL.
static struct form *fail(struct draft *draft, enum diag_code code, const struct item *it,
                         const tsr_node *reader, const char *hint, const char *what)
{
    struct place at = reader ? tsr__place_node(reader) : PLACE_NONE;
    at.value = it->name;
    at.configuration = str_of(tsr_config_name(draft->flow->config));
    tsr__diag(draft->session, code, &at, hint, "%s", what);
    tsr_status status = code == DIAG_partition_refused ? TSR_INVALID : TSR_UNSUPPORTED;
    if (draft->status == TSR_OK)
        draft->status = status;
    return NULL;
}

static struct step *step_to(struct draft *draft, int kind, struct form *from,
                            const struct tile_layout *to)
{
    return tsr__step_between(draft, kind, from, tsr__form_new(draft, from->item, to, FORM_MADE));
}

// Returns a form with the layout `want` that uses the tensors of `from`.
static struct form *same_form(struct draft *draft, struct form *from,
                              const struct tile_layout *want)
{
    struct form *form = tsr__form_new(draft, from->item, want, FORM_MADE);
    if (form)
        form->same = from;
    return form;
}

// ---- without communication ---------------------------------------------------------------------

// Returns a form with the wanted layout, or NULL. Skips partial sums and windows, which do not have
// the elements that their layout describes.
static struct form *find_form(struct item *it, const struct tile_layout *want)
{
    for (struct form *form = it->first; form; form = form->next)
        if (!form->partial && tsr__layout_same(form->layout, want))
            return form;
    return NULL;
}

// Returns a form of a constant in the wanted layout, which each rank then stores. Returns NULL if
// the value is not a constant, if runs convert it (item.stored), or if it would be sharded but is a
// string or of unknown type or size.
static struct form *const_form(struct draft *draft, struct item *it, const struct tile_layout *want)
{
    bool whole = tsr__layout_is_whole(want);
    if (it->first->kind != FORM_CONST || it->stored ||
        (!whole && (!it->fixed || tsr_dtype_bits(it->dtype) == 0)))
        return NULL;
    if (whole) // the data is stored once for all devices
        return same_form(draft, it->first, want);
    return tsr__form_new(draft, it, want, FORM_CONST);
}

// Returns the first form of which each device of `want` can slice its shard, or NULL. *identity is
// set if the form has these shards already.
static struct form *slice_source(struct draft *draft, struct item *it,
                                 const struct tile_layout *want, bool *identity)
{
    int64_t sizes[TILE_MAX_RANK];
    struct reshard_tensor tensor = tsr__item_tensor(draft, it, sizes);
    struct form *from = it->first;
    while (from && (from->partial ||
                    !tsr__can_convert_locally(draft->arena, &tensor, from->layout, want, identity)))
        from = from->next;
    return from;
}

// If each device of `want` has its wanted shard in an existing form, plans a slice of that form and
// returns the result. Otherwise returns NULL.
static struct form *local_form(struct draft *draft, struct item *it, const struct tile_layout *want)
{
    bool identity = false;
    struct form *from = slice_source(draft, it, want, &identity);
    if (!from || identity)
        return from ? same_form(draft, from, want) : NULL;
    struct step *slice = step_to(draft, STEP_SLICE, from, want);
    return slice ? slice->outputs[0] : NULL;
}

// Plans a copy of a Constant node on the devices of `on`.
static struct form *repeat_node(struct draft *draft, struct item *it, const struct tile_layout *on)
{
    struct node_flow *nf = ARENA_NEW(draft->arena, struct node_flow);
    struct tile_layout **outputs = ARENA_ARRAY(draft->arena, struct tile_layout *, 2);
    struct form *form = tsr__form_new(draft, it, on, FORM_MADE);
    if (!nf || !outputs || !form)
        return NULL;
    struct step *st = tsr__step_new(draft, STEP_NODE, 0, 1);
    if (!st)
        return NULL;
    outputs[0] = tsr__layout_copy(draft->arena, on);
    *nf = (struct node_flow){.node = tsr_value_producer(it->value), .outputs = outputs};
    nf->place.devices = on->owners;
    nf->place.n_devices = (size_t)on->first[1];
    st->flow = nf;
    st->outputs[0] = form;
    return form;
}

// If a Constant node produces the value, plans a copy of this node on the devices of `want` instead
// of a transfer. The reason is that engines need shapes and axes as constants. Otherwise returns
// NULL.
static struct form *repeated_form(struct draft *draft, struct item *it,
                                  const struct tile_layout *want)
{
    const tsr_node *maker = item_producer(it);
    if (!maker || !tsr__node_is_constant(maker))
        return NULL;
    int64_t *devices;
    size_t n = tsr__layout_devices(draft->arena, want, &devices);
    struct tile_layout *whole = tsr__unsharded_layout(draft, it, devices, n);
    if (!whole || !repeat_node(draft, it, whole))
        return NULL;
    return tsr__draft_convert_local(draft, it, want);
}

// ---- with communication ------------------------------------------------------------------------

// Converts the value with collectives from the first form of the best kind: one AllGather, then
// other operators. Returns NULL if only a Reshard is possible.
static struct form *collected_form(struct draft *draft, struct item *it,
                                   const struct tile_layout *want)
{
    struct form *source = NULL;
    struct reshard_operators operators, best = {.n = 0};
    enum reshard_kind least = RESHARD_BY_RESHARD;
    for (struct form *from = it->first; from; from = from->next) {
        if (from->partial || from->of_turn)
            continue;
        if (!tsr__draft_operators(draft, from, want, &operators))
            return NULL;
        enum reshard_kind kind = tsr__reshard_kind(&operators);
        if (kind >= least)
            continue;
        least = kind;
        best = operators;
        source = from;
    }
    return source ? tsr__draft_lower(draft, source, NULL, &best) : NULL;
}

// Gathers the value, so that all its devices have it unsharded. Returns NULL if that is not
// possible.
static struct form *gather_all(struct draft *draft, struct form *from)
{
    struct reshard_operators operators;
    int64_t *devices;
    size_t n = tsr__layout_devices(draft->arena, from->layout, &devices);
    struct tile_layout *whole = tsr__unsharded_layout(draft, from->item, devices, n);
    if (tsr__layout_is_whole(from->layout))
        return from;
    if (!whole || !tsr__draft_operators(draft, from, whole, &operators) ||
        tsr__reshard_kind(&operators) == RESHARD_BY_RESHARD)
        return NULL;
    return tsr__draft_lower(draft, from, NULL, &operators);
}

// Returns an unsharded layout on the devices of both layouts, ascending. Example: devices {0,2} and
// {1,2} give 0, 1, 2. *out has these devices as a group.
static const struct tile_layout *unsharded_on_both(struct draft *draft, int rank,
                                                   const struct tile_layout *a,
                                                   const struct tile_layout *b,
                                                   struct device_group *out)
{
    out->n = tsr__layouts_devices(draft->arena, a, b, &out->devices);
    return out->devices ? tsr__layout_whole(draft->arena, rank, out->devices, out->n) : NULL;
}

// Plans one Reshard on all devices that have or need a shard. `shape` is the full shape; NULL:
// every rank can compute it.
static struct form *reshard(struct draft *draft, struct form *from, const struct tile_layout *want,
                            struct form *shape)
{
    struct step *st = step_to(draft, COMM_RESHARD, from, want);
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    if (!st || !group || !unsharded_on_both(draft, 0, from->layout, want, group))
        return NULL;
    st->inputs[1] = shape;
    return tsr__step_set_groups(draft, st, group, 1);
}

// Returns the shape of an unsharded value as a value of its own, in the layout `want`.
static struct form *shape_form(struct draft *draft, struct form *whole,
                               const struct tile_layout *want, const tsr_node *reader)
{
    struct item *it = whole->item;
    if (!it->shape_item) {
        struct item *shape = shape_item(draft, it);
        int64_t *devices;
        size_t n = tsr__layout_devices(draft->arena, whole->layout, &devices);
        struct tile_layout *there = tsr__layout_whole(draft->arena, 1, devices, n);
        struct form *form = tsr__form_new(draft, shape, there, FORM_MADE);
        if (!tsr__step_between(draft, STEP_SHAPE, whole, form))
            return NULL;
    }
    return tsr__draft_convert(draft, it->shape_item, want, reader);
}

// Plans a Reshard of a value whose shape no rank can compute: the ranks first add up the sizes of
// their shards.
static struct form *count_and_reshard(struct draft *draft, struct form *from,
                                      const struct tile_layout *want)
{
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    if (!group)
        return NULL;
    const struct tile_layout *both = unsharded_on_both(draft, 1, from->layout, want, group);
    struct form *shape = tsr__draft_count(draft, from, both, group);
    return shape ? reshard(draft, from, want, shape) : NULL;
}

// Plans a step of this kind that sends an unsharded value, with its shape, from its first device to
// the devices of `want`.
static struct step *send_with_shape(struct draft *draft, struct form *from,
                                    const struct tile_layout *want, int kind)
{
    struct step *st = step_to(draft, kind, from, want);
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    int64_t *root = ARENA_ARRAY(draft->arena, int64_t, 1);
    struct tile_layout *first = tsr__layout_whole(draft->arena, 0, from->layout->owners, 1);
    if (!st || !group || !root || !first || !unsharded_on_both(draft, 0, first, want, group) ||
        !tsr__step_set_groups(draft, st, group, 1))
        return NULL;
    *root = from->layout->owners[0];
    st->roots = root;
    return st;
}

// Plans the broadcast of a tensor of unknown rank. Reports an error unless both layouts are
// unsharded.
static struct form *broadcast_unknown(struct draft *draft, struct form *from,
                                      const struct tile_layout *want, const tsr_node *reader)
{
    if (!tsr__layout_is_whole(from->layout) || !tsr__layout_is_whole(want))
        return fail(draft, DIAG_partition_no_tensor, from->item, reader,
                    "give it the same sharding at both ends, or do not shard it",
                    "its sharding must change here, but its rank is unknown");
    struct step *st = send_with_shape(draft, from, want, COMM_BROADCAST);
    return st ? st->outputs[0] : NULL;
}

// Plans the conversion of a value whose full shape no rank can compute. If possible, the ranks
// gather the value, then slice it or send it with its shape.
static struct form *reshard_unknown(struct draft *draft, struct item *it, struct form *from,
                                    const struct tile_layout *want, const tsr_node *reader)
{
    if (it->rank < 0)
        return broadcast_unknown(draft, from, want, reader);
    struct form *whole = gather_all(draft, from);
    if (draft_status(draft) != TSR_OK)
        return NULL;
    if (!whole)
        return count_and_reshard(draft, from, want);
    struct form *form = local_form(draft, it, want);
    if (form)
        return form;
    struct device_group group;
    const struct tile_layout *both = unsharded_on_both(draft, 1, whole->layout, want, &group);
    if (!both)
        return NULL;
    struct form *shape = shape_form(draft, whole, both, reader);
    return shape ? reshard(draft, whole, want, shape) : NULL;
}

static struct form *reshard_form(struct draft *draft, struct item *it,
                                 const struct tile_layout *want, const tsr_node *reader)
{
    struct form *from = it->first;
    while (from && (from->partial || from->of_turn))
        from = from->next;
    if (!from)
        return fail(draft, DIAG_partition_refused, it, reader, "run `tessera check` on the model",
                    "this value is read before it is produced");
    if (!tsr__owns_once(want))
        return fail(draft, DIAG_partition_no_tensor, it, reader, "give each device one shard",
                    "a device owns several shards of this value");
    if (tsr__shape_known(draft, it) && !tsr__shape_varies(draft, it))
        return reshard(draft, from, want, NULL);
    return reshard_unknown(draft, it, from, want, reader);
}

struct form *tsr__draft_same_bits(struct draft *draft, struct item *it,
                                  const struct tile_layout *on, const tsr_node *reader)
{
    on = tsr__item_layout(draft, it, on);
    if (!on)
        return NULL;
    struct tile_layout *first = tsr__layout_whole(draft->arena, on->rank, on->owners, 1);
    if (!first)
        return NULL;
    struct form *from = tsr__draft_convert(draft, it, first, reader);
    if (!from || on->first[1] < 2)
        return from;
    struct scope *here = draft->scope;
    struct device_group *group = ARENA_NEW(draft->arena, struct device_group);
    tsr__scope_enter(draft, it->scope);
    struct step *st = step_to(draft, COMM_BROADCAST, from, on);
    tsr__scope_enter(draft, here);
    if (!st || !group)
        return NULL;
    *group = (struct device_group){on->owners, (size_t)on->first[1]};
    st->roots = group->devices; // the first device
    return tsr__step_set_groups(draft, st, group, 1);
}

struct form *tsr__draft_convert_local(struct draft *draft, struct item *it,
                                      const struct tile_layout *want)
{
    struct form *form = find_form(it, want);
    if (!form && it->first)
        form = const_form(draft, it, want);
    if (form || draft_status(draft) != TSR_OK)
        return form;
    return local_form(draft, it, want);
}

struct form *tsr__draft_source(struct draft *draft, struct item *it, const struct tile_layout *want)
{
    bool identity = false;
    struct form *form = find_form(it, want);
    if (!form && it->first && it->first->kind == FORM_CONST && !it->stored)
        return tsr__draft_convert_local(draft, it, want);
    return form ? form : slice_source(draft, it, want, &identity);
}

// Plans the number of tensors in a list as a value of its own, on the devices of the list. Returns
// NULL if out of memory.
static struct item *length_item(struct draft *draft, struct form *list)
{
    struct item *it = list->item, *length = ARENA_NEW(draft->arena, struct item);
    if (!length)
        return NULL;
    *length = (struct item){.dtype = TSR_INT64, .fixed = true, .scope = it->scope};
    length->name = tsr__arena_printf(draft->arena, STR_FMT ".length", STR_ARG(it->name));
    length->shape = ARENA_ARRAY(draft->arena, int64_t, 1);
    struct tile_layout *there =
        tsr__layout_whole(draft->arena, 0, list->layout->owners, (size_t)list->layout->first[1]);
    struct form *form = tsr__form_new(draft, length, there, FORM_MADE);
    if (!tsr__step_between(draft, STEP_SHAPE, list, form) || draft->arena->failed)
        return NULL;
    return length;
}

// Returns the number of tensors in a list, on the devices of `want` and on the first device of the
// list.
static struct form *length_form(struct draft *draft, struct form *list,
                                const struct tile_layout *want, const tsr_node *reader)
{
    struct item *it = list->item;
    if (!it->shape_item)
        it->shape_item = length_item(draft, list);
    struct device_group group;
    struct tile_layout *first = tsr__layout_whole(draft->arena, 0, list->layout->owners, 1);
    if (!it->shape_item || !first)
        return NULL;
    const struct tile_layout *both = unsharded_on_both(draft, 0, first, want, &group);
    return both ? tsr__draft_convert(draft, it->shape_item, both, reader) : NULL;
}

// Plans the transfer of a list, tensor by tensor. For a sequence, all devices get its length first.
static struct form *move_list(struct draft *draft, struct form *from,
                              const struct tile_layout *want, const tsr_node *reader)
{
    struct form *length = NULL;
    if (from->item->list_form == LIST_SEQUENCE) {
        length = length_form(draft, from, want, reader);
        if (!length)
            return NULL;
    }
    struct step *st = send_with_shape(draft, from, want, STEP_LIST);
    if (!st)
        return NULL;
    st->inputs[1] = length;
    return st->outputs[0];
}

// Returns a form of a list in the wanted layout. Lists are transferred only unsharded; reports an
// error if this is not possible.
static struct form *list_form(struct draft *draft, struct item *it, const struct tile_layout *want,
                              const tsr_node *reader)
{
    struct form *there = find_form(it, want), *whole = NULL;
    int64_t sizes[TILE_MAX_RANK];
    struct reshard_tensor tensor = tsr__item_tensor(draft, it, sizes);
    if (there)
        return there;
    for (struct form *from = it->first; from; from = from->next) {
        bool identity = false;
        if (from->partial || !tsr__layout_is_whole(from->layout) || !tsr__layout_is_whole(want))
            continue;
        if (!whole)
            whole = from;
        if (tsr__can_convert_locally(draft->arena, &tensor, from->layout, want, &identity) &&
            identity)
            return same_form(draft, from, want);
    }
    if (whole && it->list_form != LIST_STAYS)
        return move_list(draft, whole, want, reader);
    return fail(
        draft, DIAG_partition_no_tensor, it, reader, "keep it on the devices that produce it",
        "this value must be transferred between devices, but it is not a tensor of numbers");
}

static bool can_travel(const struct item *it)
{
    return FIXED_BITS(tsr__transfer_type(it->dtype)) || it->dtype == TSR_STRING;
}

// For a value that was produced in turns (turns.c): plans the transfer of every shard to these
// devices, and the join to the full tensor. Returns NULL after a failure.
static struct form *join_shards(struct draft *draft, struct item *it, const int64_t *devices,
                                size_t n, const tsr_node *reader)
{
    const struct tile_layout *sharding;
    struct item **shards = tsr__turn_shards(draft, it, &sharding);
    if (!shards)
        return NULL;
    struct step *st = tsr__step_make(draft, STEP_JOIN, (size_t)sharding->n_shards, 1);
    if (!st)
        return NULL;
    for (size_t k = 0; k < st->n_inputs; k++) {
        const struct tile_layout *whole = tsr__unsharded_layout(draft, shards[k], devices, n);
        st->inputs[k] = tsr__draft_convert(draft, shards[k], whole, reader);
        if (!st->inputs[k])
            return NULL;
    }
    struct form *full =
        tsr__form_new(draft, it, tsr__unsharded_layout(draft, it, devices, n), FORM_MADE);
    if (!full || !tsr__step_push(draft, st))
        return NULL;
    st->joined = sharding;
    st->outputs[0] = full;
    return full;
}

// If the value was produced in turns (turns.c) and has no other form, joins its shards and returns
// the wanted form. Otherwise returns NULL.
static struct form *joined_form(struct draft *draft, struct item *it,
                                const struct tile_layout *want, const tsr_node *reader)
{
    bool turns = false;
    for (struct form *form = it->first; form; form = form->next) {
        turns = turns || form->of_turn;
        if (!form->of_turn && !form->partial)
            return NULL;
    }
    int64_t *devices;
    size_t n = tsr__layout_devices(draft->arena, want, &devices);
    if (!turns || !join_shards(draft, it, devices, n, reader))
        return NULL;
    return tsr__draft_convert_local(draft, it, want);
}

static bool is_done(const struct draft *draft, const struct form *form)
{
    return form || draft_status(draft) != TSR_OK;
}

// Converts a value. Tries the conversions in the order of the list at the top of this file.
static struct form *convert_cheapest(struct draft *draft, struct item *it,
                                     const struct tile_layout *want, const tsr_node *reader)
{
    if (it->list)
        return list_form(draft, it, want, reader);
    struct form *form = tsr__draft_convert_local(draft, it, want);
    if (is_done(draft, form))
        return form;
    form = repeated_form(draft, it, want);
    if (!is_done(draft, form))
        form = joined_form(draft, it, want, reader);
    if (is_done(draft, form))
        return form;
    if (!can_travel(it))
        return fail(
            draft, DIAG_partition_no_tensor, it, reader,
            "declare its type in the model's value_info, or keep it on the devices that produce it",
            "this value must be transferred between devices, but it is not a tensor of numbers or "
            "its type is unknown");
    form = collected_form(draft, it, want);
    return is_done(draft, form) ? form : reshard_form(draft, it, want, reader);
}

// Returns the form of a value in the wanted layout, planned if necessary. Adds steps to the scope
// of the value, which may be outside of the body that reads it.
struct form *tsr__draft_convert(struct draft *draft, struct item *it,
                                const struct tile_layout *want, const tsr_node *reader)
{
    struct scope *here = draft->scope;
    if (!want) { // cannot happen: the flow gives every present input a layout
        if (draft->status == TSR_OK)
            draft->status = TSR_BUG;
        return NULL;
    }
    want = tsr__item_layout(draft, it, want);
    if (!want)
        return NULL;
    tsr__scope_enter(draft, it->scope);
    struct form *form = convert_cheapest(draft, it, want, reader);
    tsr__scope_enter(draft, here);
    if (draft_status(draft) != TSR_OK)
        return NULL;
    form_read(draft, it, form);
    return form;
}
