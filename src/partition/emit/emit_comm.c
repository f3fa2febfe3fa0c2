// SPDX-License-Identifier: Apache-2.0
// emit_comm.c - a communication on all ranks that take part: what each gives and keeps. The node itself is comm_node.c's.
//
//     y in parts (form 0) to y (form 1) on ranks 0 and 1, the sixth communication of the draft, on both:
//         AllReduce(y/0, ai.tessera.token.4) -> (y, ai.tessera.token.5)
#include "internal.h"

// The whole shape: it was sent along, or every rank can compute it.
static tsr_value *comm_shape(struct part *part, const struct step *st)
{
    if (st->inputs[1])
        return local_of(part, st->inputs[1]);
    return tsr__part_shape(part, st->inputs[0]->item);
}

// A rank that gives nothing gives an empty tensor of the type. Values of 4 bits travel as 8.
static tsr_value *comm_input(struct part *part, const struct step *st)
{
    tsr_value *x = NULL;
    if (tsr__layout_has_device(st->inputs[0]->layout, part->rank))
        x = local_of(part, st->inputs[0]);
    tsr_dtype own = st->outputs[0]->item->dtype, carried = tsr__carried(own);
    if (x && carried == own)
        return x;
    if (x)
        return tsr__part_cast(part, x, carried, (struct str){0});
    if (comm_has(st->kind, TRAIT_MAY_LACK_INPUT))
        return tsr__part_empty(part, carried);
    return NULL;
}

// Sizes of the axes of which the rank has windows: as many elements as its intervals have.
static void window_sizes(const struct part *part, const struct windows *windows, tsr_dim *dims)
{
    for (int k = 0; k < windows->n_axes; k++) {
        const struct dim_cut *cut = &windows->parts[part->rank * windows->n_axes + k];
        int64_t size = 0;
        for (int64_t i = 0; i < cut->n; i++)
            size += cut->at[i].stop - cut->at[i].start;
        dims[windows->axes[k]] = (tsr_dim){size, ""};
    }
}

// Says what comes out, as far as sizes are known: no engine can infer it.
static tsr_status declare(struct part *part, tsr_value *value, const struct form *form)
{
    tsr_dim dims[TILE_MAX_RANK];
    if (!tsr__part_dims_here(part, form, dims))
        return TSR_OK;
    if (form->windows)
        window_sizes(part, form->windows, dims);
    return tsr_value_set_type(value, tsr__carried(form->item->dtype), form->item->rank, dims);
}

// What the node reads: the rank's part, the whole shape where the collective wants it, the token. 0: out of memory.
static size_t comm_inputs(struct part *part, const struct step *st, tsr_value **inputs)
{
    size_t n = 0;
    inputs[n++] = comm_input(part, st);
    if (comm_has(st->kind, TRAIT_TAKES_SHAPE))
        inputs[n++] = comm_shape(part, st);
    inputs[n++] = part->token;
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return 0;
    return n;
}

// The rank keeps what comes out: a rank may serve in two groups and keeps the first result; one that gets nothing
// keeps none.
static bool keeps_result(const struct part *part, const struct step *st)
{
    const struct form *to = st->outputs[0];
    if (to->local[part->rank])
        return false;
    return comm_has(st->kind, TRAIT_ALL_KEEP) || tsr__layout_has_device(to->layout, part->rank);
}

// The result as the rank's value of the form: declared, and of 4 bits again if it travelled as 8.
static tsr_status keep_result(struct part *part, struct form *to, tsr_value *got, struct str name)
{
    tsr_value **local = &to->local[part->rank];
    tsr_dtype own = to->item->dtype;
    *local = got;
    tsr_status status = declare(part, got, to);
    if (status != TSR_OK || tsr__carried(own) == own)
        return status;
    *local = tsr__part_cast(part, got, own, name);
    return made(*local);
}

// The node of one member. Its name, its number and its attributes are the same on all of them; prove.c reads that again.
static tsr_status emit_on(struct part *part, struct step *st, size_t group)
{
    struct draft *draft = part->draft;
    struct form *to = st->outputs[0];
    tsr_value *inputs[3];
    size_t n = comm_inputs(part, st, inputs);
    if (n == 0)
        return TSR_NOMEM;
    bool keeps = keeps_result(part, st), serves_again = to->local[part->rank];
    struct str own_name = {0}, token;
    if (keeps)
        own_name = tsr__form_name(part, to);
    struct str name = own_name;
    if (!keeps || tsr__carried(to->item->dtype) != to->item->dtype)
        name = tsr__part_fresh(part);
    if (serves_again)
        token = tsr__part_fresh(part);
    else
        token = tsr__arena_printf(draft->arena, TOKEN_NAME ".%lld", (long long)st->id);
    if (draft->arena->failed)
        return TSR_NOMEM;
    const char *outputs[2] = {name.p, token.p};
    tsr_node *node = tsr__comm_node(part, st, group, inputs, n, outputs);
    if (!node)
        return TSR_NOMEM;
    if (keeps)
        return keep_result(part, to, tsr_node_output(node, 0), own_name);
    return TSR_OK;
}

// Lists are sent tensor by tensor.
static tsr_status emit_member(struct part *part, struct step *st, size_t group)
{
    if (st->kind == STEP_LIST)
        return tsr__emit_list(part, st, group);
    return emit_on(part, st, group);
}

// Group by group, member by member. A device that is alone in its group has what it needs already.
tsr_status tsr__emit_comm(struct part *parts, struct step *st)
{
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        if (!st->group_live[g])
            continue;
        if (tsr__group_alone(st, g)) {
            int64_t rank = group->devices[0];
            st->outputs[0]->local[rank] = form_root(st->inputs[0])->local[rank];
            continue;
        }
        for (size_t i = 0; i < group->n; i++) {
            tsr_status status = emit_member(&parts[group->devices[i]], st, g);
            if (status != TSR_OK)
                return status;
        }
    }
    return TSR_OK;
}
