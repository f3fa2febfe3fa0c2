// SPDX-License-Identifier: Apache-2.0
// body.c - plans nodes with bodies that are cut: If, Loop, Scan.
//
// A body has a list of steps of its own. What it reads from outside in another layout is converted
// outside, once, before the node. What it gives is converted at its end. All devices of the node run
// it, or none: inside they wait for each other, so they must also take the same turns and the same
// branch. The values that decide this are therefore taken from one device, unless whole numbers alone
// went into them, which come out the same everywhere.
//
//     Loop(10, true) { h = MatMul(h, w) } on ranks 0 and 1, h [4,8] carried as {2,1}, w [8,8] of the main graph:
//         outside   w is wanted whole on both ranks: a constant, which both have
//         outside   10 and true are constants, whole numbers: both ranks compute the same number of turns
//         inside    one step, the MatMul: [2,8] times [8,8] on each rank
//     If the condition were h[0,0] > 0, made of floats, rank 0's would be broadcast to rank 1 at the end of each turn.
#include "internal.h"

// ---- what decides ------------------------------------------------------------------------------

#define MAX_EXACT 64 // nodes that are looked at

// Arithmetic of these has no rounding that could differ between devices. Floats are out, even where they are whole.
static bool is_exact_type(tsr_dtype t)
{
    switch (t) {
    case TSR_BOOL:
    case TSR_INT8:
    case TSR_INT16:
    case TSR_INT32:
    case TSR_INT64:
    case TSR_UINT8:
    case TSR_UINT16:
    case TSR_UINT32:
    case TSR_UINT64:
        return true;
    default:
        return false;
    }
}

// An input of the model, or the number or the condition of a turn; of states nothing is known.
static bool exact_input(const struct draft *draft, const tsr_value *value)
{
    const tsr_graph *graph = tsr_value_graph(value);
    struct control control;
    if (graph == draft->main.graph)
        return true;
    if (!graph || !tsr_graph_owner(graph) || !tsr__control_of(tsr_graph_owner(graph), &control))
        return false;
    for (int i = 0; i < control.n_numbers; i++)
        if (tsr_graph_input(graph, (size_t)i) == value)
            return true;
    return false;
}

// The value has the same bits on every device that computes it: nothing went into it but inputs,
// constants and arithmetic of whole numbers.
static bool exact(const struct draft *draft, const tsr_value *value, int *budget)
{
    const tsr_node *node = tsr_value_producer(value);
    if (tsr_value_initializer(value))
        return true;
    if (!node)
        return exact_input(draft, value);
    if ((*budget)-- <= 0 || !is_exact_type(tsr__shapes_of(draft->flow->shapes, value).dtype))
        return false;
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (tsr_attr_graph_count(tsr_node_attr(node, i)))
            return false;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !exact(draft, tsr_node_input(node, i), budget))
            return false;
    return true;
}

// A value that decides about turns or branches, the same on all devices.
static struct form *draft_decision(struct draft *draft, const struct step *st, struct item *it,
                                   const struct tile_layout *layout)
{
    int budget = MAX_EXACT;
    if (exact(draft, it->value, &budget))
        return tsr__draft_convert(draft, it, layout, st->flow->node);
    return tsr__draft_equal(draft, it, layout, st->flow->node);
}

// ---- planning ----------------------------------------------------------------------------------

// The inputs of the body, as they come in: each turn, or once.
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

// What decides (the condition) is wanted in no particular layout: every device has it whole.
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
    tsr__scope_go(draft, inner);
    if (start_body(draft, body))
        return needed;
    return NULL;
}

// In the layouts in which the flow found them to leave; what decides about the next turn is the same everywhere.
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

// How many turns, and the first condition; of an If, the condition.
bool tsr__body_steer(struct draft *draft, struct step *st)
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
