// SPDX-License-Identifier: Apache-2.0
// live.c - what each rank must have, backwards from rank 0's outputs. A communication is needed by
// all of its group as soon as one member needs its result; a rank that only serves others takes
// part and keeps nothing. Live communications get their numbers here, in the order of the plan.
#include "internal.h"

static void live_node(struct plan *p, struct step *st)
{
    const struct node_flow *nf = st->flow;
    for (size_t d = 0; d < nf->place.n_devices; d++) {
        int64_t rank = nf->place.devices[d];
        bool any = false;
        for (size_t i = 0; i < st->n_outputs; i++)
            any |= form_wanted(st->outputs[i], rank);
        for (size_t i = 0; i < st->n_inputs && any; i++)
            if (i >= st->n_node_inputs || !tsr__input_replaced(p, nf, rank, (int)i))
                form_want(st->inputs[i], rank);
    }
}

static void live_groups(struct step *st)
{
    for (size_t g = 0; g < st->n_groups; g++) {
        const struct device_group *group = &st->groups[g];
        for (size_t i = 0; i < group->n; i++)
            st->group_live[g] |= form_wanted(st->outputs[0], group->devices[i]);
        for (size_t i = 0; i < group->n && st->group_live[g]; i++) {
            int64_t rank = group->devices[i];
            if (tsr__layout_has_device(st->inputs[0]->layout, rank))
                form_want(st->inputs[0], rank);
            if (st->n_inputs > 1)
                form_want(st->inputs[1], rank);
        }
    }
}

static void live_local(struct plan *p, struct step *st)
{
    for (int64_t r = 0; r < p->n_ranks; r++)
        if (form_wanted(st->outputs[0], r) && tsr__layout_has_device(st->inputs[0]->layout, r))
            form_want(st->inputs[0], r);
}

static void number(struct plan *p, struct step *st)
{
    bool live = false;
    for (int k = 0; k < st->n_bodies; k++)
        tsr__number_steps(p, &st->bodies[k].steps);
    for (size_t g = 0; g < st->n_groups; g++)
        live |= st->group_live[g];
    if (live)
        st->id = p->n_comms++;
}

void tsr__number_steps(struct plan *p, step_list *steps)
{
    for (size_t i = 0; i < steps->n; i++)
        number(p, steps->at[i]);
}

void tsr__live_steps(struct plan *p, step_list *steps)
{
    for (size_t i = steps->n; i-- > 0;) {
        struct step *st = steps->at[i];
        if (st->bodies)
            tsr__live_bodies(p, st);
        else if (st->kind == STEP_NODE)
            live_node(p, st);
        else if (st->n_groups)
            live_groups(st);
        else
            live_local(p, st);
    }
}

static void want_all(struct form *f)
{
    for (int64_t i = 0; i < f->layout->first[f->layout->n_shards]; i++)
        form_want(f, f->layout->owners[i]);
}

void tsr__plan_live(struct plan *p)
{
    for (size_t i = 0; i < p->outputs.n; i++)
        want_all(p->outputs.at[i]);
    for (size_t i = 0; i < p->states.n; i++) { // a state is held even where nobody reads it
        struct item *it = tsr__item_of(p, p->states.at[i].past);
        if (it)
            want_all(it->first);
    }
    tsr__live_steps(p, &p->steps);
    tsr__number_steps(p, &p->steps);
}
