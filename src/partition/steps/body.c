// SPDX-License-Identifier: Apache-2.0
// body.c - plans nodes with sharded bodies: If, Loop, Scan.
//
// A body has its own list of steps. Outer values that it needs in another layout are converted
// outside, before the node. Its outputs are converted at the end of the body.
//
// All devices of the node run the body, because they communicate inside it. So all must run the
// same number of iterations and take the same branch. One device broadcasts the values that control
// this. Values that are computed from integers only are not broadcast: every device computes the
// same bits.
//
//     Example: Loop(10, true) { h = MatMul(h, w) } on ranks 0 and 1, h [4,8] carried as {2,1},
//     w [8,8]:
//         outside   w is needed unsharded on both ranks: a constant that both store
//         outside   10 and true are integers: both ranks compute the same number of iterations
//         inside    one step, the MatMul: [2,8] times [8,8] on each rank
//     With the condition h[0,0] > 0, a float, rank 0 would broadcast it after each iteration.
#include "internal.h"

// ---- control values -----------------------------------------------------------------------------

// Plans a trip count or condition so that it has the same bits on all devices of the layout.
static struct form *draft_decision(struct draft *draft, const struct step *st, struct item *it,
                                   const struct tile_layout *layout)
{
    if (tsr__control_exact(draft->flow->shapes, it->value))
        return tsr__draft_convert(draft, it, layout, st->flow->node);
    return tsr__draft_same_bits(draft, it, layout, st->flow->node);
}

// ---- planning ----------------------------------------------------------------------------------

static bool start_body(struct draft *draft, struct body *body)
{
    const tsr_graph *graph = body->flow->graph;
    size_t n = tsr_graph_input_count(graph);
    body->inputs = ARENA_ARRAY(draft->arena, struct form *, n + 1);
    body->outputs = ARENA_ARRAY(draft->arena, struct form *, tsr_graph_output_count(graph) + 1);
    if (!body->inputs)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct item *it = tsr__item_of(draft, tsr_graph_input(graph, i));
        if (!it)
            return false;
        body->inputs[i] = tsr__form_new(draft, it, body->flow->inputs[i], FORM_INPUT);
    }
    return !draft->arena->failed;
}

// Enters a new scope for a body and marks the values that its outputs need. Also records the
// layouts of the outputs. The first output of a loop body is the condition; its layout is recorded
// as unknown.
unsigned char *tsr__body_open(struct draft *draft, const struct step *st, struct body *body)
{
    const tsr_graph *graph = body->flow->graph;
    unsigned char *needed =
        ARENA_ARRAY(draft->arena, unsigned char, tsr__model_value_ids(draft->model) + 1);
    struct scope *inner = ARENA_NEW(draft->arena, struct scope), *outer = draft->scope;
    if (!needed || !inner)
        return NULL;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        const struct tile_layout *layout = body->flow->outputs[i];
        if (i == 0 && st->flow->control->condition)
            layout = NULL;
        needed[tsr__value_id(value)] = 1;
        tsr__draft_want(draft, value, layout);
    }
    *inner = (struct scope){.outer = outer, .graph = graph};
    inner->loops = outer->loops || st->flow->control->loops;
    tsr__scope_enter(draft, inner);
    return start_body(draft, body) ? needed : NULL;
}

bool tsr__body_outputs(struct draft *draft, const struct step *st, struct body *body)
{
    const tsr_graph *graph = body->flow->graph;
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        const struct tile_layout *layout = body->flow->outputs[i];
        struct item *it = tsr__item_of(draft, value);
        if (!it)
            return false;
        if (i == 0 && st->flow->control->condition)
            body->outputs[i] = draft_decision(draft, st, it, layout);
        else
            body->outputs[i] = tsr__draft_convert(draft, it, layout, st->flow->node);
        if (!body->outputs[i])
            return false;
    }
    return true;
}

// Plans the values that control the node: trip count and first condition of a loop, or the
// condition of an If.
bool tsr__body_plan_control(struct draft *draft, struct step *st)
{
    for (int i = 0; i < st->flow->control->n_steer; i++) {
        const tsr_value *value = tsr_node_input(st->flow->node, (size_t)i);
        if (!value)
            continue;
        struct item *it = tsr__item_of(draft, value);
        if (!it)
            return false;
        st->inputs[i] = draft_decision(draft, st, it, st->flow->inputs[i]);
        if (!st->inputs[i])
            return false;
    }
    return !draft->arena->failed;
}
