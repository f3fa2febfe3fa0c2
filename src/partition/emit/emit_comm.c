// SPDX-License-Identifier: Apache-2.0
// emit_comm.c - writes a communication on all its ranks: the input of each rank, the node, and the
// result.
//
//     Example: partial sums y (form 0) to y (form 1) on ranks 0 and 1, the sixth communication:
//         AllReduce(y/0, ai.tessera.token.4) -> (y, ai.tessera.token.5) on both
#include "internal.h"

// Returns the full shape of the transferred value: the second input of the step, else computed by
// nodes.
static tsr_value *comm_shape(struct part *part, const struct step *st)
{
    if (st->inputs[1])
        return local_of(part, st->inputs[1]);
    return tsr__part_shape(part, st->inputs[0]->item);
}

// Returns the tensor that the rank passes to the collective; 4-bit values are cast to 8 bits. If
// the rank has no shard, returns an empty tensor, or NULL if the collective does not allow it.
static tsr_value *comm_input(struct part *part, const struct step *st)
{
    tsr_value *x = NULL;
    if (tsr__layout_has_device(st->inputs[0]->layout, part->rank))
        x = local_of(part, st->inputs[0]);
    tsr_dtype own = st->outputs[0]->item->dtype, carried = tsr__transfer_type(own);
    if (x && carried == own)
        return x;
    if (x)
        return tsr__part_cast(part, x, carried, NEW_NAME);
    return comm_has(st->kind, TRAIT_MAY_LACK_INPUT) ? tsr__part_empty(part, carried) : NULL;
}

// Sets the sizes along the axes of the windows to the number of elements in the rank's windows.
static void window_sizes(const struct part *part, const struct windows *windows, tsr_dim *dims)
{
    for (int k = 0; k < windows->n_axes; k++) {
        const struct dim_slice *cut = &windows->parts[part->rank * windows->n_axes + k];
        int64_t size = 0;
        for (int64_t i = 0; i < cut->n; i++)
            size += cut->at[i].stop - cut->at[i].start;
        dims[windows->axes[k]] = (tsr_dim){size, ""};
    }
}

// Declares the type and known sizes of the result of a communication, which engines cannot infer.
static tsr_status declare(struct part *part, tsr_value *value, const struct form *form)
{
    tsr_dim dims[TILE_MAX_RANK];
    if (!tsr__part_dims_here(part, form, dims))
        return TSR_OK;
    if (form->windows)
        window_sizes(part, form->windows, dims);
    if (!tsr__part_name_dims(part, dims, form->item->rank))
        return TSR_NOMEM;
    return tsr_value_set_type(value, tsr__transfer_type(form->item->dtype), form->item->rank, dims);
}

#define COMM_INPUTS 5

// Adds the input for which a communication waits, if it converts a weight: the results so far.
// Otherwise engines convert all weights first, and their memory does not suffice. Returns the
// number of inputs.
static size_t wait_for_latest(const struct part *part, const struct step *st, tsr_value **inputs,
                              size_t n)
{
    tsr_value *latest = part->latest[tsr__step_type(st) == TSR_FLOAT16];
    if (!st->inputs[0]->item->stored || !latest)
        return n;
    while (n < comm_after(st->kind))
        inputs[n++] = NULL; // the size is optional
    inputs[n++] = latest;
    return n;
}

// Lists the inputs: the shard, the full shape if the collective needs it, the token, and the full
// size of the axis if shards are divided. Returns their number, or 0 if out of memory.
static size_t comm_inputs(struct part *part, const struct step *st, tsr_value **inputs)
{
    size_t n = 0;
    inputs[n++] = comm_input(part, st);
    if (comm_has(st->kind, TRAIT_TAKES_SHAPE))
        inputs[n++] = comm_shape(part, st);
    inputs[n++] = part->token;
    if (st->parts)
        inputs[n++] = tsr__part_size(part, st->inputs[0]->item,
                                     st->kind == COMM_ALL_TO_ALL ? st->split_axis : st->axis);
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return 0;
    return wait_for_latest(part, st, inputs, n);
}

// True if the result of the communication becomes the rank's tensor of the form. False if the rank
// already has one from another group. Also false if it has no shard of the form, unless all members
// keep the result (TRAIT_ALL_KEEP).
static bool keeps_result(const struct part *part, const struct step *st)
{
    const struct form *to = st->outputs[0];
    if (to->local[part->rank])
        return false;
    return comm_has(st->kind, TRAIT_ALL_KEEP) || tsr__layout_has_device(to->layout, part->rank);
}

// Makes the result `got` the rank's tensor of the form `to`: declares its type and shape, and casts
// it back if the transfer used a wider type.
static tsr_status keep_result(struct part *part, struct form *to, tsr_value *got, struct str name)
{
    tsr_value **local = &to->local[part->rank];
    tsr_dtype own = to->item->dtype;
    *local = got;
    tsr_status status = declare(part, got, to);
    if (status != TSR_OK || tsr__transfer_type(own) == own)
        return status;
    *local = tsr__part_cast(part, got, own, name);
    return status_of_alloc(*local);
}

static tsr_status emit_on(struct part *part, struct step *st, size_t group)
{
    struct draft *draft = part->draft;
    struct form *to = st->outputs[0];
    tsr_value *inputs[COMM_INPUTS];
    size_t n = comm_inputs(part, st, inputs);
    if (n == 0)
        return TSR_NOMEM;
    bool keeps = keeps_result(part, st), serves_again = to->local[part->rank];
    struct str own_name = {0}, token;
    if (keeps)
        own_name = tsr__form_name(part, to);
    struct str name = own_name;
    if (!keeps || tsr__transfer_type(to->item->dtype) != to->item->dtype)
        name = tsr__part_new_name(part);
    if (serves_again)
        token = tsr__part_new_name(part);
    else
        token = tsr__arena_printf(draft->arena, TOKEN_NAME ".%lld", (long long)st->id);
    if (draft->arena->failed)
        return TSR_NOMEM;
    const char *outputs[2] = {name.p, token.p};
    tsr_node *node = tsr__comm_node(part, st, group, inputs, n, outputs);
    if (!node)
        return TSR_NOMEM;
    return keeps ? keep_result(part, to, tsr_node_output(node, 0), own_name) : TSR_OK;
}

tsr_status tsr__emit_comm(struct part *parts, struct step *st)
{
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        if (tsr__group_is_single(st, g)) {
            int64_t rank = group->devices[0];
            st->outputs[0]->local[rank] = form_root(st->inputs[0])->local[rank];
            continue;
        }
        for (size_t i = 0; i < group->n; i++) {
            struct part *part = &parts[group->devices[i]];
            TRY(st->kind == STEP_LIST ? tsr__emit_list(part, st, g) : emit_on(part, st, g));
        }
    }
    return TSR_OK;
}
