// SPDX-License-Identifier: Apache-2.0
// live.c - marks the forms that each rank needs, backwards from the outputs. If one member of a
// group needs the result of a communication, all members take part. Needed communications are then
// numbered in planning order.
//
//     Example: partial sums Y on ranks 0 and 1 -> AllReduce -> Y/1 on both; only rank 0 has the
//     output:
//         step 1  AllReduce Y/0 -> Y/1, group {0,1}   Y/1 is needed on rank 0, so Y/0 on both
//         step 0  MatMul -> Y/0                       its inputs are needed on both ranks
//     Rank 1 multiplies, sends and drops the result. If Y were not needed at all, the AllReduce
//     would get no number and no node.
#include "internal.h"

static void live_steps(struct draft *draft, step_list *steps);
static void number_steps(struct draft *draft, step_list *steps);

// Marks the inputs that devices need to compute a needed output of the node, except inputs that a
// device does not read (local_node.c).
static void live_node(struct draft *draft, struct step *st)
{
    const struct node_flow *nf = st->flow;
    for (size_t device = 0; device < nf->place.n_devices; device++) {
        int64_t rank = nf->place.devices[device];
        bool any = false;
        for (size_t i = 0; i < st->n_outputs; i++)
            any |= form_is_live(st->outputs[i], rank);
        for (size_t i = 0; i < st->n_inputs && any; i++)
            if (i >= st->n_node_inputs || !tsr__input_replaced(draft, nf, rank, (int)i))
                form_mark_live(st->inputs[i], rank);
    }
}

// If a member of a group needs the result, marks the inputs of the communication on all members.
// The second input is the shape.
static void live_groups(struct step *st)
{
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        for (size_t i = 0; i < group->n; i++)
            st->group_live[g] |= form_is_live(st->outputs[0], group->devices[i]);
        for (size_t i = 0; i < group->n && st->group_live[g]; i++) {
            int64_t rank = group->devices[i];
            if (tsr__layout_has_device(st->inputs[0]->layout, rank))
                form_mark_live(st->inputs[0], rank);
            if (st->n_inputs > 1)
                form_mark_live(st->inputs[1], rank);
        }
    }
}

static void live_local(struct draft *draft, struct step *st)
{
    size_t n = st->kind == STEP_JOIN || st->kind == STEP_SUM ? st->n_inputs : 1;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        for (size_t i = 0; i < n; i++)
            if (form_is_live(st->outputs[0], rank) &&
                tsr__layout_has_device(st->inputs[i]->layout, rank))
                form_mark_live(st->inputs[i], rank);
}

// Marks the outputs of a body on all devices of the node, because they run it together.
static void live_body(struct draft *draft, struct step *st, struct body *body)
{
    const struct placement *place = &st->flow->place;
    for (size_t device = 0; device < place->n_devices; device++)
        for (size_t i = 0; i < tsr_graph_output_count(body->flow->graph); i++)
            form_mark_live(body->outputs[i], place->devices[device]);
    live_steps(draft, &body->steps);
}

// If a device needs an output of a node with bodies, marks all inputs and outputs on all devices of
// the node, because they run it together.
static void live_bodies(struct draft *draft, struct step *st)
{
    const struct placement *place = &st->flow->place;
    bool any = false;
    for (size_t device = 0; device < place->n_devices; device++)
        for (size_t i = 0; i < st->n_outputs; i++)
            any |= form_is_live(st->outputs[i], place->devices[device]);
    if (!any)
        return;
    for (int k = 0; k < st->n_bodies; k++)
        live_body(draft, st, &st->bodies[k]);
    for (size_t device = 0; device < place->n_devices; device++) {
        for (size_t i = 0; i < st->n_outputs; i++)
            form_mark_live(st->outputs[i], place->devices[device]);
        for (size_t i = 0; i < st->n_inputs; i++)
            form_mark_live(st->inputs[i], place->devices[device]);
    }
}

// Numbers communications in the order of execution: those in the bodies of a node come before the
// node's own.
static void number_communication(struct draft *draft, struct step *st)
{
    bool live = false;
    for (int k = 0; k < st->n_bodies; k++)
        number_steps(draft, &st->bodies[k].steps);
    for (size_t group = 0; group < st->n_groups; group++)
        live |= st->group_live[group];
    if (live)
        st->id = draft->n_comms++;
}

static void number_steps(struct draft *draft, step_list *steps)
{
    for (size_t i = 0; i < steps->n; i++)
        number_communication(draft, steps->at[i]);
}

// Marks the inputs of all steps, last step first, so that the outputs of a step are marked before
// its inputs.
static void live_steps(struct draft *draft, step_list *steps)
{
    for (size_t i = steps->n; i-- > 0;) {
        struct step *st = steps->at[i];
        if (st->bodies)
            live_bodies(draft, st);
        else if (st->kind == STEP_NODE)
            live_node(draft, st);
        else if (st->n_groups)
            live_groups(st);
        else
            live_local(draft, st);
    }
}

static void mark_on_all(struct form *form)
{
    for (int64_t i = 0; i < form->layout->first[form->layout->n_shards]; i++)
        form_mark_live(form, form->layout->owners[i]);
}

void tsr__draft_live(struct draft *draft)
{
    for (size_t i = 0; i < draft->outputs.n; i++)
        mark_on_all(draft->outputs.at[i]);
    for (size_t i = 0; i < draft->states.n; i++) { // keep a state even if no node reads it
        struct item *it = tsr__item_of(draft, draft->states.at[i].past);
        if (it)
            mark_on_all(it->first);
    }
    live_steps(draft, &draft->steps);
    number_steps(draft, &draft->steps);
}
