// SPDX-License-Identifier: Apache-2.0
// emit_comm.c - a communication on all ranks that take part: what each gives and keeps. The node itself is comm_node.c's.
#include "internal.h"

static tsr_value *comm_shape(struct part *part, const struct step *st)
{
    struct form *shape = st->inputs[1];
    if (shape)
        return form_root(shape)->local[part->rank];
    return tsr__part_shape(part, st->inputs[0]->item);
}

// A rank that gives nothing gives an empty tensor of the type.
static tsr_value *comm_input(struct part *part, const struct step *st)
{
    bool has = tsr__layout_has_device(st->inputs[0]->layout, part->rank);
    tsr_value *x = has ? form_root(st->inputs[0])->local[part->rank] : NULL;
    tsr_dtype own = st->outputs[0]->item->dtype, carried = tsr__carried(own);
    if (!x)
        return comm_has(st->kind, TRAIT_MAY_LACK_INPUT) ? tsr__part_empty(part, carried) : NULL;
    return carried == own ? x : tsr__part_cast(part, x, carried, (struct str){0});
}

// Says what comes out, as far as sizes are known: no engine can infer it.
static tsr_status declare(const struct part *t, tsr_value *value, const struct form *form)
{
    const struct item *it = form->item;
    tsr_dim dims[TILE_MAX_RANK];
    int64_t coords[TILE_MAX_FACTORS];
    if (it->rank < 0 || it->rank > TILE_MAX_RANK || it->rank != form->layout->rank || it->list ||
        !tsr__layout_has_device(form->layout, t->rank) || !tsr__owns_once(form->layout))
        return TSR_OK;
    for (int axis = 0; axis < it->rank; axis++) {
        int64_t size = it->dims[axis].value;
        if (size >= 0 && tsr__dim_cut(&form->layout->dims[axis])) {
            if (!tsr__device_coords(form->layout, t->rank, axis, coords))
                return TSR_OK;
            struct local_size local = tsr__local_size(&form->layout->dims[axis], coords);
            size = tsr__local_size_of(&local, size);
        }
        dims[axis] = (tsr_dim){size >= 0 ? size : -1, ""};
    }
    const int n_windowed = form->windows ? form->windows->n_axes : 0;
    for (int k = 0; k < n_windowed; k++) {
        const struct dim_cut *part = &form->windows->parts[t->rank * form->windows->n_axes + k];
        int64_t size = 0;
        for (int64_t i = 0; i < part->n; i++)
            size += part->at[i].stop - part->at[i].start;
        dims[form->windows->axes[k]].value = size;
    }
    return tsr_value_set_type(value, tsr__carried(it->dtype), it->rank, dims);
}

static tsr_status emit_on(struct part *part, struct step *st, size_t group)
{
    struct plan *plan = part->plan;
    struct form *to = st->outputs[0];
    struct item *it = to->item;
    tsr_value *inputs[3];
    size_t n = 0;
    inputs[n++] = comm_input(part, st);
    if (comm_has(st->kind, TRAIT_TAKES_SHAPE))
        inputs[n++] = comm_shape(part, st);
    inputs[n++] = part->token;
    for (size_t i = 0; i < n; i++)
        if (!inputs[i])
            return TSR_NOMEM;
    // A rank may serve in two groups: it keeps the first result. One that gets nothing keeps none.
    bool first = !to->local[part->rank] && (comm_has(st->kind, TRAIT_ALL_KEEP) ||
                                            tsr__layout_has_device(to->layout, part->rank));
    bool twice = to->local[part->rank];
    struct str own_name = first ? tsr__form_name(part, to) : tsr__part_fresh(part);
    bool narrow = first && tsr__carried(it->dtype) != it->dtype;
    struct str name = narrow ? tsr__part_fresh(part) : own_name;
    struct str token = tsr__arena_printf(plan->arena, TOKEN_NAME ".%lld", (long long)st->id);
    if (twice)
        token = tsr__part_fresh(part);
    if (plan->arena->failed)
        return TSR_NOMEM;
    const char *outputs[2] = {name.p, token.p};
    tsr_node *node = tsr__comm_node(part, st, group, inputs, n, outputs);
    if (!node)
        return TSR_NOMEM;
    if (first)
        to->local[part->rank] = tsr_node_output(node, 0);
    tsr_status status = first ? declare(part, to->local[part->rank], to) : TSR_OK;
    if (status != TSR_OK || !narrow)
        return status;
    to->local[part->rank] = tsr__part_cast(part, to->local[part->rank], it->dtype, own_name);
    return to->local[part->rank] ? TSR_OK : TSR_NOMEM;
}

static tsr_status emit_member(struct part *part, struct step *st, size_t group)
{
    if (st->kind == STEP_LIST)
        return tsr__emit_list(part, st, group);
    if (part->plan->microsoft)
        return tsr__dialect_emit(part, st);
    return emit_on(part, st, group);
}

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
