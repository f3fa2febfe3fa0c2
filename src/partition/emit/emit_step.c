// SPDX-License-Identifier: Apache-2.0
// emit_step.c - writes a step on all ranks that need it.
//
//     STEP_NODE               on each rank of its placement that needs an output: emit_node.c,
//                             or emit_guard.c around it
//     a communication         on all ranks of its groups at once: emit_comm.c
//     STEP_SLICE              on each rank that needs the result: emit_slice.c
//     STEP_SHAPE, STEP_JOIN,
//     STEP_SUM                on each rank that needs the result: here
//     with bodies             the node, then the steps of each body on all ranks: emit_body.c
#include "internal.h"

static bool is_needed(const struct step *st, int64_t rank)
{
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i] && st->outputs[i]->live[rank])
            return true;
    return false;
}

static tsr_status emit_node(struct part *part, struct step *st)
{
    bool guarded;
    if (!is_needed(st, part->rank))
        return TSR_OK;
    if (!tsr__same_sizes_add_node(part->draft, tsr__part_same_sizes(part), st->flow))
        return TSR_NOMEM;
    const struct rule_rewrite *sizes = tsr__sizes_rewrite(st->flow);
    if (sizes)
        return tsr__emit_sizes(part, st, sizes);
    tsr_status status = tsr__emit_guarded(part, st, &guarded);
    if (status != TSR_OK || guarded)
        return status;
    struct str *outputs = ARENA_ARRAY(part->draft->arena, struct str, st->n_outputs + 1);
    if (!outputs)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            outputs[i] = tsr__form_name(part, st->outputs[i]);
    TRY(tsr__emit_plain(part, st, outputs));
    return tsr__part_keep_declared(part, st);
}

// Writes a STEP_SHAPE: the shape of the local tensor, this rank's part of a sum of sizes, or the
// length of a list.
static tsr_status emit_shape(struct part *part, struct step *st)
{
    struct str name = tsr__form_name(part, st->outputs[0]);
    tsr_value *x = local_of(part, st->inputs[0]);
    const struct item *it = st->inputs[0]->item;
    tsr_value *y;
    if (st->outputs[0]->partial)
        y = tsr__part_count(part, st->inputs[0], name);
    else if (it->list)
        y = NAMED_NODE(part, "SequenceLength", name, x);
    else
        y = tsr__part_sizes(part, x, it->dtype, name);
    st->outputs[0]->local[part->rank] = y;
    return status_of_alloc(y);
}

// Makes the local value safe to be read by a body, see tsr__part_shielded.
static tsr_status shield(struct part *part, struct form *form)
{
    tsr_value **local = &form->local[part->rank];
    if (form->captured)
        *local = tsr__part_shielded(part, *local);
    return status_of_alloc(*local);
}

static tsr_status emit_slice_step(struct part *part, struct step *st)
{
    TRY(tsr__emit_slice(part, st));
    return shield(part, st->outputs[0]);
}

// Concatenates every `parts` adjacent values to one; the results are the first entries of `values`.
// Returns false if out of memory.
static bool concat_runs(struct part *part, tsr_value **values, size_t n, size_t parts, int axis,
                        struct str last)
{
    for (size_t k = 0; k * parts < n; k++) {
        struct str name = n == parts ? last : NEW_NAME;
        values[k] = tsr__part_concat(part, &values[k * parts], parts, axis, name);
        if (!values[k])
            return false;
    }
    return true;
}

// Writes a STEP_JOIN: concatenates all shards of a value to the full tensor. The last loop (sharded
// factor) is joined first, because its shards have adjacent numbers.
static tsr_status emit_join(struct part *part, struct step *st)
{
    size_t n = st->n_inputs;
    struct str last = tsr__form_name(part, st->outputs[0]), name = last;
    tsr_dtype type = st->outputs[0]->item->dtype, joined_as = tsr__sliced_as(type);
    tsr_value **values = ARENA_ARRAY(part->draft->arena, tsr_value *, n + 1);
    if (!values)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        values[i] = local_of(part, st->inputs[i]);
        if (!values[i])
            return TSR_BUG;
        if (joined_as != type)
            values[i] = tsr__part_cast(part, values[i], joined_as, NEW_NAME);
        if (!values[i])
            return TSR_NOMEM;
    }
    if (joined_as != type)
        name = tsr__part_new_name(part);
    for (int loop = st->joined->n_loops - 1; loop >= 0; loop--) {
        struct tile_loop at = st->joined->loops[loop];
        size_t parts = (size_t)st->joined->dims[at.dim].factors[at.factor].cuts;
        if (!concat_runs(part, values, n, parts, at.dim, name))
            return TSR_NOMEM;
        n /= parts;
    }
    if (joined_as != type)
        values[0] = tsr__part_cast(part, values[0], type, last);
    st->outputs[0]->local[part->rank] = values[0];
    return shield(part, st->outputs[0]);
}

// Combines two partial results. Integers are int64 here.
static tsr_value *combine(struct part *part, enum combine how, tsr_dtype type, tsr_value *a,
                          tsr_value *b)
{
    static const char *const ops[] = {[COMBINE_SUM] = "Add",
                                      [COMBINE_PROD] = "Mul",
                                      [COMBINE_MAX] = "Max",
                                      [COMBINE_MIN] = "Min"};
    if (type == TSR_INT64 && how == COMBINE_MAX)
        return tsr__part_largest(part, a, b);
    if (type == TSR_INT64 && how == COMBINE_MIN)
        return tsr__part_smallest(part, a, b);
    return NODE(part, ops[how], a, b);
}

// Writes a STEP_SUM: combines the partial results of this rank's turns, in their order.
static tsr_status emit_sum(struct part *part, struct step *st)
{
    struct str name = tsr__form_name(part, st->outputs[0]);
    // engines have no Add, Mul, Max or Min for all integers
    tsr_dtype type = st->outputs[0]->item->dtype, as = tsr__is_float(type) ? type : TSR_INT64;
    tsr_value *sum = NULL;
    for (size_t i = 0; i < st->n_inputs; i++) {
        tsr_value *value = NULL;
        if (!tsr__layout_has_device(st->inputs[i]->layout, part->rank))
            continue; // the rank has fewer turns than others
        value = local_of(part, st->inputs[i]);
        if (value && as != type)
            value = tsr__part_cast(part, value, as, NEW_NAME);
        sum = sum ? combine(part, st->flow->combine, as, sum, value) : value;
        if (!sum)
            return TSR_NOMEM;
    }
    st->outputs[0]->local[part->rank] = as != type ? tsr__part_cast(part, sum, type, name)
                                                   : tsr__part_identity(part, sum, type, name);
    return shield(part, st->outputs[0]);
}

static tsr_status emit_body(struct draft *draft, struct part *parts, struct step *st, int k,
                            struct control_node *made)
{
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        TRY(tsr__control_open(&parts[rank], st, k, &made[rank]));
    for (size_t i = 0; i < st->bodies[k].steps.n; i++)
        TRY(tsr__emit_step(draft, parts, st->bodies[k].steps.at[i]));
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        TRY(tsr__control_close(&parts[rank], st, k, &made[rank]));
    return TSR_OK;
}

static tsr_status emit_bodies(struct draft *draft, struct part *parts, struct step *st)
{
    const struct placement *place = &st->flow->place;
    struct control_node *made =
        ARENA_ARRAY(draft->arena, struct control_node, (size_t)draft->n_ranks);
    if (!made)
        return TSR_NOMEM;
    if (!is_needed(st, place->devices[0])) // either all devices of the node run it, or none
        return TSR_OK;
    for (size_t device = 0; device < place->n_devices; device++) {
        int64_t rank = place->devices[device];
        TRY(tsr__control_begin(&parts[rank], st, &made[rank]));
    }
    for (int k = 0; k < st->n_bodies; k++)
        TRY(emit_body(draft, parts, st, k, made));
    for (size_t device = 0; device < place->n_devices; device++) {
        int64_t rank = place->devices[device];
        TRY(tsr__control_end(&parts[rank], st, &made[rank]));
    }
    return TSR_OK;
}

// Writes a step without communication on this rank, if the rank needs its result.
static tsr_status emit_on(struct part *part, struct step *st)
{
    if (st->kind == STEP_NODE && tsr__place_index(&st->flow->place, part->rank) < 0)
        return TSR_OK;
    if (st->kind == STEP_NODE)
        return emit_node(part, st);
    if (!st->outputs[0]->live[part->rank])
        return TSR_OK;
    if (st->kind == STEP_SHAPE)
        return emit_shape(part, st);
    if (st->kind == STEP_SUM)
        return emit_sum(part, st);
    return st->kind == STEP_JOIN ? emit_join(part, st) : emit_slice_step(part, st);
}

// Marks the results of a step that depend on inputs of the model.
static void mark_varying(const struct step *st)
{
    bool varies = st->n_groups || st->bodies;
    for (size_t i = 0; i < st->n_inputs; i++) {
        const struct form *from = st->inputs[i] ? form_root(st->inputs[i]) : NULL;
        varies = varies || (from && (from->kind == FORM_INPUT || from->varies));
    }
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->varies = varies;
}

// Notes a result of a node of the main graph on each rank. Weights that are converted next wait for
// it (emit_comm.c).
static void note_latest(const struct draft *draft, struct part *parts, const struct step *st)
{
    for (size_t i = 0; i < st->n_outputs && st->kind == STEP_NODE; i++) {
        const struct form *form = st->outputs[i];
        tsr_dtype type = form ? form->item->dtype : TSR_UNDEFINED;
        if ((type != TSR_FLOAT && type != TSR_FLOAT16) || !form->varies || form->item->list ||
            form->item->scope != &draft->main)
            continue;
        for (int64_t rank = 0; rank < draft->n_ranks; rank++)
            if (form->local[rank])
                parts[rank].latest[type == TSR_FLOAT16] = form->local[rank];
    }
}

// Writes a step on all ranks that need it. All ranks are done before the next step, so that
// communications have the same order everywhere.
static tsr_status emit(struct draft *draft, struct part *parts, struct step *st)
{
    if (st->n_groups && st->id < 0)
        return TSR_OK; // no rank needs it
    if (st->n_groups)
        return tsr__emit_comm(parts, st);
    if (st->bodies)
        return emit_bodies(draft, parts, st);
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        TRY(emit_on(&parts[rank], st));
    return TSR_OK;
}

tsr_status tsr__emit_step(struct draft *draft, struct part *parts, struct step *st)
{
    mark_varying(st);
    TRY(emit(draft, parts, st));
    note_latest(draft, parts, st);
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        for (size_t i = 0; i < st->n_outputs; i++)
            if (st->outputs[i])
                TRY(tsr__part_simulated(&parts[rank], st->outputs[i]->local[rank], st->outputs[i]));
    return TSR_OK;
}
