// SPDX-License-Identifier: Apache-2.0
// forms.c - creates items (values), forms (layouts of a value), steps and scopes. Makes no
// decisions.
//
//     Example: Y = MatMul(X, W). X is unsharded on ranks 0 and 1, W [8,6] is sharded {1,2},
//     an Add on both ranks reads Y unsharded:
//         item X   form 0: unsharded, FORM_INPUT
//         item W   form 0: unsharded, FORM_CONST (never stored)
//                  form 1: {1,2}, FORM_CONST: each rank stores [8,3]
//         item Y   form 0: {1,2}, FORM_MADE;  form 1: unsharded, FORM_MADE
//         step 0   STEP_NODE        X/0, W/1 -> Y/0    the MatMul, on each rank with its columns
//         step 1   COMM_ALL_GATHER  Y/0 -> Y/1         group {0,1}, axis 1
//         step 2   STEP_NODE        Y/1 -> ...         the Add
#include "partition/facts/facts.h"

// ---- scopes ------------------------------------------------------------------------------------

// Returns the scope of a value: the current one or one around it. A value of none of these graphs
// belongs to the main scope.
struct scope *tsr__scope_of(struct draft *draft, const tsr_value *value)
{
    const tsr_graph *home = tsr_value_graph(value);
    struct scope *scope = draft->scope;
    while (scope->outer && scope->graph != home)
        scope = scope->outer;
    return scope;
}

// Makes `to` the current scope. New steps are always added to draft->steps, so the lists of steps
// are exchanged.
void tsr__scope_enter(struct draft *draft, struct scope *to)
{
    if (draft->scope == to)
        return;
    draft->scope->steps = draft->steps;
    draft->steps = to->steps;
    draft->scope = to;
}

// ---- items -------------------------------------------------------------------------------------

// Returns the layout of an input or output of the model: the one in draft->kept. By default it is
// unsharded: an input on all ranks, an output on rank 0.
const struct tile_layout *tsr__port_layout(struct draft *draft, const tsr_value *value,
                                           enum side side)
{
    const struct tile_layout *layout = draft->kept[tsr__value_id(value)];
    if (layout)
        return layout;
    int rank = tsr__shapes_element(draft->flow->shapes, value).rank;
    size_t n = side == SIDE_INPUTS ? (size_t)draft->n_ranks : 1;
    return tsr__layout_whole(draft->arena, rank, draft->all_devices, n);
}

bool tsr__item_sizes(struct draft *draft, struct item *it)
{
    it->fixed = it->rank >= 0;
    for (int axis = 0; axis < it->rank; axis++)
        it->fixed &= it->dims[axis].value >= 0;
    if (!it->fixed)
        return true;
    it->shape = ARENA_ARRAY(draft->arena, int64_t, (size_t)it->rank + 1);
    for (int axis = 0; it->shape && axis < it->rank; axis++)
        it->shape[axis] = it->dims[axis].value;
    return it->shape != NULL;
}

struct reshard_tensor tsr__item_tensor(struct draft *draft, const struct item *it,
                                       int64_t sizes[TILE_MAX_RANK])
{
    for (int axis = 0; axis < it->rank; axis++) {
        bool known = tsr__size_known(draft, it, axis) && !tsr__shape_varies(draft, it);
        int64_t size = it->dims[axis].value;
        sizes[axis] = size >= 0 ? size : known ? SIZE_OPEN : SIZE_UNKNOWN;
        if (it->open)
            sizes[axis] = it->open[axis];
    }
    return (struct reshard_tensor){.rank = it->rank,
                                   .shape = sizes,
                                   .bits = tsr_dtype_bits(tsr__transfer_type(it->dtype)),
                                   .constant_bounds = draft->opset < 10};
}

bool tsr__own_interval(const struct item *it, const struct tile_layout *layout, int64_t device,
                       int axis, struct tile_interval *out)
{
    int64_t coords[TILE_MAX_FACTORS];
    struct tile_interval at[2];
    if (it->dims[axis].value < 0 || !tsr__device_coords(layout, device, axis, coords) ||
        tsr__dim_intervals(&layout->dims[axis], it->dims[axis].value, coords, at, 2) != 1)
        return false;
    *out = at[0];
    return true;
}

// Sets the type and shape of the item. For a constant they come from its tensor.
static void item_type(struct draft *draft, struct item *it)
{
    const tsr_tensor *tensor = tsr_value_initializer(it->value);
    struct shape shape = tsr__shapes_element(draft->flow->shapes, it->value);
    it->list = tsr__shapes_is_list(draft->flow->shapes, it->value);
    if (it->list) {
        it->list_form = tsr__shapes_list_form(draft->flow->shapes, it->value);
        it->element = shape.dtype;
        shape.dtype = TSR_UNDEFINED;
    }
    it->dtype = shape.dtype;
    it->rank = shape.rank;
    if (tensor) {
        it->dtype = tsr_tensor_dtype(tensor);
        it->rank = tsr_tensor_rank(tensor);
    }
    if (it->rank > TILE_MAX_RANK)
        it->rank = -1; // tensors of such a rank are never sharded: treat the rank as unknown
    it->dims = shape.dims;
    if (draft->origins.sets && it->rank == shape.rank)
        it->origins = draft->origins.sets[tsr__value_id(it->value)];
    if (!tensor || it->rank < 0)
        return;
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, (size_t)it->rank + 1);
    it->dims = dims;
    if (!dims)
        return;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = (tsr_dim){tsr_tensor_dims(tensor)[axis], ""};
}

// Removes the symbols from the dimensions. In a loop, a symbol may have another value in each
// iteration.
static void forget_symbols(struct draft *draft, struct item *it)
{
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, dims_capacity(it->rank));
    const tsr_dim *named = it->dims;
    it->dims = dims;
    if (!dims)
        return;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = (tsr_dim){named[axis].value, ""};
}

// Returns the name of the item in the rank files. A constant of a body gets a new name, because it
// is moved to the main graph, where names must be unique.
static struct str item_name(struct draft *draft, const struct item *it)
{
    struct str name = str_of(tsr_value_name(it->value));
    if (it->scope == &draft->main || !tsr_value_initializer(it->value))
        return name;
    uint32_t k = tsr__value_id(it->value);
    do
        name = tsr__arena_printf(draft->arena, "%s/%u", tsr_value_name(it->value), k);
    while (name.p && tsr__map_get(&draft->names, name) && k++ < UINT32_MAX);
    if (!name.p)
        return name;
    tsr__map_set(&draft->names, name, draft);
    return name;
}

struct tile_layout *tsr__unsharded_layout(struct draft *draft, const struct item *it,
                                          const int64_t *devices, size_t n)
{
    return tsr__layout_whole(draft->arena, it->rank > 0 ? it->rank : 0, devices, n);
}

// Creates the first form of an item. A constant starts unsharded and can be stored in any layout
// later, unless the model says in which one files have it (sharding/flow/stored.c). A model input
// starts in the layout of tsr__port_layout. Other values get forms when their node is planned.
// Returns false if out of memory.
static bool first_form(struct draft *draft, struct item *it)
{
    if (tsr_value_initializer(it->value)) {
        struct tile_layout **stored = draft->flow->stored, *layout = NULL;
        if (stored)
            layout = stored[tsr__value_id(it->value)];
        it->stored = layout != NULL;
        if (!layout)
            layout = tsr__unsharded_layout(draft, it, draft->all_devices, (size_t)draft->n_ranks);
        return tsr__form_new(draft, it, layout, FORM_CONST) != NULL;
    }
    if (!tsr_value_is_input(it->value) || it->scope != &draft->main)
        return true;
    const struct tile_layout *layout = tsr__port_layout(draft, it->value, SIDE_INPUTS);
    return tsr__form_new(draft, it, layout, FORM_INPUT) != NULL;
}

struct item *tsr__item_of(struct draft *draft, const tsr_value *value)
{
    struct item **slot = &draft->items[tsr__value_id(value)];
    if (*slot)
        return *slot;
    struct item *it = ARENA_NEW(draft->arena, struct item);
    if (!it)
        return NULL;
    it->value = value;
    it->scope = tsr__scope_of(draft, value);
    it->name = item_name(draft, it);
    item_type(draft, it);
    if (it->scope->loops)
        forget_symbols(draft, it);
    (void)tsr__item_sizes(draft, it);
    *slot = it;
    return first_form(draft, it) ? it : NULL;
}

// ---- forms and steps ---------------------------------------------------------------------------

// Appends the form and sets its index, which is part of the names of its tensors (y/1, y/2).
static void append_form(struct item *it, struct form *form)
{
    if (it->last) {
        form->index = it->last->index + 1;
        it->last->next = form;
    } else {
        it->first = form;
    }
    it->last = form;
}

static void append_const(struct draft *draft, struct form *form)
{
    if (draft->last_const)
        draft->last_const->next_const = form;
    else
        draft->consts = form;
    draft->last_const = form;
}

const struct tile_layout *tsr__item_layout(struct draft *draft, const struct item *it,
                                           const struct tile_layout *layout)
{
    if (!tsr__layout_is_whole(layout) || it->list || it->rank < 0 || it->rank == layout->rank)
        return layout;
    return tsr__layout_whole(draft->arena, it->rank, layout->owners, (size_t)layout->first[1]);
}

// Adds a form to the item. Forms of constants are also added to draft->consts.
struct form *tsr__form_new(struct draft *draft, struct item *it, const struct tile_layout *layout,
                           enum form_kind kind)
{
    if (!it || !layout)
        return NULL;
    struct form *form = ARENA_NEW(draft->arena, struct form);
    if (!form)
        return NULL;
    form->item = it;
    form->layout = tsr__item_layout(draft, it, layout);
    form->kind = kind;
    form->of_turn = !tsr__owns_all(form->layout);
    form->live = ARENA_ARRAY(draft->arena, unsigned char, (size_t)draft->n_ranks);
    form->local = ARENA_ARRAY(draft->arena, tsr_value *, (size_t)draft->n_ranks);
    if (kind == FORM_CONST) {
        form->offset = ARENA_ARRAY(draft->arena, uint64_t, (size_t)draft->n_ranks);
        form->stored = ARENA_ARRAY(draft->arena, unsigned char, (size_t)draft->n_ranks);
    }
    if (draft->arena->failed)
        return NULL;
    append_form(it, form);
    if (kind == FORM_CONST)
        append_const(draft, form);
    return form;
}

bool tsr__step_push(struct draft *draft, struct step *st)
{
    return vec_add(draft->arena, &draft->steps, st);
}

struct step *tsr__step_make(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs)
{
    struct step *st = ARENA_NEW(draft->arena, struct step);
    if (!st)
        return NULL;
    st->kind = kind;
    st->id = -1;
    st->n_inputs = n_inputs;
    st->n_outputs = n_outputs;
    st->inputs = ARENA_ARRAY(draft->arena, struct form *, n_inputs + 1);
    st->outputs = ARENA_ARRAY(draft->arena, struct form *, n_outputs + 1);
    return draft->arena->failed ? NULL : st;
}

struct step *tsr__step_new(struct draft *draft, int kind, size_t n_inputs, size_t n_outputs)
{
    struct step *st = tsr__step_make(draft, kind, n_inputs, n_outputs);
    return st && tsr__step_push(draft, st) ? st : NULL;
}

struct form *tsr__step_set_groups(struct draft *draft, struct step *st, struct device_group *groups,
                                  size_t n)
{
    if (!st)
        return NULL;
    st->groups = groups;
    st->n_groups = n;
    st->group_live = ARENA_ARRAY(draft->arena, unsigned char, n + 1);
    return st->group_live ? st->outputs[0] : NULL;
}

struct step *tsr__step_between(struct draft *draft, int kind, struct form *from, struct form *to)
{
    if (!from || !to)
        return NULL;
    struct step *st = tsr__step_new(draft, kind, 2, 1);
    if (!st)
        return NULL;
    st->inputs[0] = from;
    st->outputs[0] = to;
    return st;
}

// Returns the type in which values are transferred: 8 bits for 4-bit types, because messages
// consist of full bytes.
tsr_dtype tsr__transfer_type(tsr_dtype type)
{
    switch (type) {
    case TSR_INT4:
        return TSR_INT8;
    case TSR_UINT4:
        return TSR_UINT8;
    default:
        return type;
    }
}

// ---- reading the steps -------------------------------------------------------------------------

// True if the group has one device and needs no communication node. Example: devices 0 and 1 reduce
// a partial sum; devices 2 and 3 already have the full sum, so each is a group of one device. A
// Reshard may copy within a device and always needs its node.
bool tsr__group_is_single(const struct step *st, size_t group)
{
    return st->groups[group].n == 1 && !comm_has(st->kind, TRAIT_COPIES_WITHIN);
}

bool tsr__step_communicates_on(const struct step *st, int64_t rank)
{
    for (int k = 0; k < st->n_bodies; k++)
        for (size_t i = 0; i < st->bodies[k].steps.n; i++)
            if (tsr__step_communicates_on(st->bodies[k].steps.at[i], rank))
                return true;
    if (st->id < 0)
        return false;
    for (size_t group = 0; group < st->n_groups; group++) {
        if (!st->group_live[group] || tsr__group_is_single(st, group))
            continue;
        for (size_t i = 0; i < st->groups[group].n; i++)
            if (st->groups[group].devices[i] == rank)
                return true;
    }
    return false;
}

void tsr__steps_visit(const step_list *steps, void (*call)(void *data, const struct step *st),
                      void *data)
{
    for (size_t i = 0; i < steps->n; i++) {
        const struct step *st = steps->at[i];
        for (int k = 0; k < st->n_bodies; k++)
            tsr__steps_visit(&st->bodies[k].steps, call, data);
        call(data, st);
    }
}

enum comm_kind tsr__step_collective(const struct step *st)
{
    return st->kind == STEP_LIST ? COMM_BROADCAST : (enum comm_kind)st->kind;
}

const char *tsr__step_op(const struct step *st)
{
    return tsr__collective((int)tsr__step_collective(st))->op;
}

// Returns the element type that a step transfers. For a list, this is the type of its tensors.
tsr_dtype tsr__step_type(const struct step *st)
{
    const struct item *it = st->outputs[0]->item;
    return it->list ? it->element : it->dtype;
}
