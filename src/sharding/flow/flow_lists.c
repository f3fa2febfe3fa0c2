// SPDX-License-Identifier: Apache-2.0
// flow_lists.c - places nodes that read or produce lists of tensors (ONNX sequences and optionals).
// Lists are not resharded inside a stage, so they determine where their readers run.
#include "sharding/flow/step.h"

// True if the value, a list, can be transferred: the configuration has stages, and the type allows
// it.
static bool list_moves(const struct node_context *step, const tsr_value *value)
{
    return step->work->flow->staged &&
           tsr__shapes_list_form(step->work->flow->shapes, value) != LIST_STAYS;
}

// True if the device is in the node's stage and, for a node in a body, runs that body.
static bool may_run_on(const struct node_context *step, int64_t device)
{
    bool in_stage = !step->stage || step->stage[device];
    return in_stage && (!step->work->within || step->work->within[device]);
}

// Returns the layout that is replicated on every device that may run the node, or NULL if out of
// memory.
static struct tile_layout *whole_here(struct node_context *step, int rank)
{
    int64_t *devices = ARENA_ARRAY(&step->work->scratch, int64_t, (size_t)step->work->n_all);
    size_t n = 0;
    if (!devices)
        return NULL;
    for (int64_t d = 0; d < step->work->n_all; d++)
        if (may_run_on(step, d))
            devices[n++] = d;
    return tsr__layout_whole(step->work->arena, rank, devices, n);
}

// Handles input i, a list that is stored on devices where the node may not run. If possible, makes
// the node read a full copy of the list, which is on its own devices or is sent to them. The
// producer must then leave the list unsharded. Returns false if the node must run where the list is
// stored.
static bool take_from_elsewhere(struct node_context *step, size_t i,
                                const struct tile_layout *layout)
{
    const tsr_value *value = step_slot(step, false, i);
    bool outside = false, missing = !tsr__layout_is_whole(layout);
    // outside: a device that has the list may not run the node. missing: a device that may run the
    // node has no copy.
    for (int64_t d = 0; d < step->work->n_all; d++) {
        bool has = tsr__layout_has_device(layout, d), may = may_run_on(step, d);
        outside = outside || (has && !may);
        missing = missing || (may && !has);
    }
    if (!step->work->flow->staged || !outside || (missing && !list_moves(step, value)))
        return false;
    bool *kept = &step->work->kept_whole[tsr__value_id(value)];
    bool cut = !tsr__layout_is_whole(layout) && !*kept;
    step->work->keeps_more = step->work->keeps_more || cut;
    *kept = *kept || cut;
    step->in[i] = whole_here(step, layout->rank);
    step->explicit_in = true;
    return true;
}

// Reports that the node runs outside of its stage, because it must run where the list that it reads
// is stored. Sets nf->replicated, so that the manifest lists the node.
static void report_outside(struct node_context *step, const tsr_value *value,
                           const struct tile_layout *layout)
{
    if (!step->stage || step->work->within || tsr__step_in_stage(step, layout) ||
        step->nf->replicated)
        return;
    step->nf->replicated = "it reads a sequence of another stage that cannot be transferred";
    if (!(step->work->report & REPORT_UNSHARDED))
        return;
    tsr__diag(step->work->arena->session, DIAG_outside_stage,
              PLACE_AT(tsr__place_spec(step->node, step->work->flow->config, value)),
              "put the node into the stage that computes the value, or pass tensors",
              "the node runs outside of its stage: %s", step->nf->replicated);
}

void tsr__step_take_lists(struct node_context *step)
{
    if (!step->work->kept_whole)
        return;
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = step_slot(step, false, i);
        if (!value || !tsr__shapes_is_list(step->work->flow->shapes, value))
            continue;
        struct tile_layout *layout = step->work->flow->values[tsr__value_id(value)];
        if (step->in[i] && !tsr__layout_equal(step->in[i], layout)) {
            step->nf->ignores_specs = true;
            if (!tsr__layout_is_whole(step->in[i]))
                tsr__step_unsharded(step, "sequences are not resharded");
        }
        if (take_from_elsewhere(step, i, layout))
            continue;
        // A list that must stay unsharded (such as an input of the model) also determines where its
        // readers run.
        bool kept = step->work->kept_whole[tsr__value_id(value)];
        bool everywhere = layout == tsr__flow_whole_all(step->work, layout->rank) && !kept;
        step->in[i] = everywhere ? NULL : layout;
        step->bound = step->bound || !everywhere;
        if (!everywhere)
            report_outside(step, value, layout);
    }
    step->explicit_in = step->explicit_in || step->bound;
}

void tsr__flow_keep_list(struct flow_work *work, const tsr_value *value)
{
    uint32_t id = tsr__value_id(value);
    if (!tsr__shapes_is_list(work->flow->shapes, value) || work->kept_whole[id])
        return;
    work->kept_whole[id] = work->keeps_more = true;
}

// True if the list already has the layout `need`, or is unsharded and can be sent to the devices of
// `need`.
static bool list_comes(const struct node_context *step, const tsr_value *value,
                       const struct tile_layout *need)
{
    const struct tile_layout *have = step->work->flow->values[tsr__value_id(value)];
    if (tsr__layout_equal(have, need))
        return true;
    if (!tsr__layout_is_whole(have) || !tsr__layout_is_whole(need))
        return false;
    return tsr__flow_held(have, need) || list_moves(step, value);
}

void tsr__step_keep_lists(struct node_context *step)
{
    if (!step->work->kept_whole)
        return;
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = step_slot(step, false, i);
        uint32_t id = value ? tsr__value_id(value) : 0;
        if (!value || !tsr__shapes_is_list(step->work->flow->shapes, value) ||
            step->work->kept_whole[id])
            continue;
        bool there = list_comes(step, value, step->nf->inputs[i]);
        step->work->keeps_more = step->work->keeps_more || !there;
        step->work->kept_whole[id] = !there;
    }
    tsr_value **captures;
    size_t n = step->nf->bodies ? 0 : tsr__node_captures(step->node, &captures);
    for (size_t i = 0; i < n; i++) // unsharded bodies read full values
        tsr__flow_keep_list(step->work, captures[i]);
}

bool tsr__step_produces_kept(const struct node_context *step)
{
    if (!step->work->kept_whole)
        return false;
    for (size_t i = 0; i < step->n_out; i++) {
        const tsr_value *value = step_slot(step, true, i);
        if (value && step->work->kept_whole[tsr__value_id(value)])
            return true;
    }
    return false;
}

bool tsr__step_reads_part_of_kept(struct node_context *step)
{
    if (!step->work->kept_whole)
        return false;
    for (size_t i = 0; i < step->n_in; i++) {
        const tsr_value *value = step_slot(step, false, i);
        if (!value || !step->work->kept_whole[tsr__value_id(value)])
            continue;
        const struct tile_layout *need = tsr__step_layout(step, false, i);
        if (need && !list_comes(step, value, need))
            return true;
    }
    return false;
}

bool tsr__step_lists_move(const struct node_context *step)
{
    for (size_t i = 0; i < step->n_in + step->n_out; i++) {
        const tsr_value *value =
            i < step->n_in ? step_slot(step, false, i) : step_slot(step, true, i - step->n_in);
        if (value && tsr__shapes_is_list(step->work->flow->shapes, value) &&
            !list_moves(step, value))
            return false;
    }
    return true;
}
