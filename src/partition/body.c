// SPDX-License-Identifier: Apache-2.0
// body.c - plans nodes with bodies that are cut: If, Loop, Scan.
//
// A body has a list of steps of its own. What it reads from outside in another layout is converted
// outside, once, before the node. What it gives is converted at its end. All devices of the node run
// it, or none: inside they wait for each other, so they must also take the same turns and the same
// branch. The values that decide this are therefore taken from one device, unless whole numbers alone
// went into them, which come out the same everywhere.
#include "internal.h"

// ---- scopes ------------------------------------------------------------------------------------

struct scope *tsr__scope_of(struct plan *p, const tsr_value *v)
{
    const tsr_graph *home = tsr_value_graph(v);
    struct scope *s = p->scope;
    while (s->outer && s->graph != home)
        s = s->outer;
    return s;
}

void tsr__scope_go(struct plan *p, struct scope *to)
{
    if (p->scope == to)
        return;
    p->scope->steps = p->steps;
    p->steps = to->steps;
    p->scope = to;
}

// ---- what decides ------------------------------------------------------------------------------

#define MAX_EXACT 64 // nodes that are looked at

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
static bool exact_input(const struct plan *p, const tsr_value *v)
{
    const tsr_graph *g = tsr_value_graph(v);
    const tsr_node *owner = g ? tsr_graph_owner(g) : NULL;
    struct control c;
    if (g == p->main.graph)
        return true;
    for (int i = 0; owner && tsr__control_of(owner, &c) && i < c.n_numbers; i++)
        if (tsr_graph_input(g, (size_t)i) == v)
            return true;
    return false;
}

// The value has the same bits on every device that computes it: nothing went into it but inputs,
// constants and arithmetic of whole numbers.
static bool exact(const struct plan *p, const tsr_value *v, int *budget)
{
    const tsr_node *n = tsr_value_producer(v);
    if (tsr_value_initializer(v))
        return true;
    if (!n)
        return exact_input(p, v);
    bool ok = (*budget)-- > 0 && is_exact_type(tsr__shapes_of(p->flow->shapes, v).dtype);
    for (size_t i = 0; ok && i < tsr_node_attr_count(n); i++)
        ok = tsr_attr_graph_count(tsr_node_attr(n, i)) == 0;
    for (size_t i = 0; ok && i < tsr_node_input_count(n); i++)
        ok = !tsr_node_input(n, i) || exact(p, tsr_node_input(n, i), budget);
    return ok;
}

static struct form *plan_decision(struct plan *p, const struct step *st, const tsr_value *v,
                                  const struct tile_layout *l)
{
    struct item *it = tsr__item_of(p, v);
    int budget = MAX_EXACT;
    if (!it || exact(p, v, &budget))
        return it ? tsr__plan_convert(p, it, l, st->flow->node) : NULL;
    return tsr__plan_equal(p, it, l, st->flow->node);
}

// ---- planning ----------------------------------------------------------------------------------

static bool start_body(struct plan *p, struct body *b)
{
    const tsr_graph *g = b->flow->graph;
    size_t n = tsr_graph_input_count(g);
    b->inputs = ARENA_ARRAY(p->arena, struct form *, n + 1);
    b->outputs = ARENA_ARRAY(p->arena, struct form *, tsr_graph_output_count(g) + 1);
    for (size_t i = 0; b->inputs && i < n; i++) {
        struct item *it = tsr__item_of(p, tsr_graph_input(g, i));
        if (!it)
            return false;
        b->inputs[i] = tsr__form_new(p, it, b->flow->inputs[i], FORM_INPUT);
    }
    return !p->arena->failed;
}

static bool end_body(struct plan *p, const struct step *st, struct body *b)
{
    const tsr_graph *g = b->flow->graph;
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        const tsr_value *v = tsr_graph_output(g, i);
        const struct tile_layout *l = b->flow->outputs[i];
        struct item *it = tsr__item_of(p, v);
        if (i == 0 && st->flow->control->condition)
            b->outputs[i] = plan_decision(p, st, v, l);
        else
            b->outputs[i] = it ? tsr__plan_convert(p, it, l, st->flow->node) : NULL;
        if (!b->outputs[i])
            return false;
    }
    return true;
}

static bool plan_body(struct plan *p, const struct step *st, struct body *b)
{
    const tsr_graph *g = b->flow->graph;
    unsigned char *needed =
        ARENA_ARRAY(p->arena, unsigned char, tsr__model_value_ids(p->model) + 1);
    struct scope *inner = ARENA_NEW(p->arena, struct scope), *here = p->scope;
    if (!needed || !inner)
        return false;
    for (size_t i = 0; i < tsr_graph_output_count(g); i++) {
        bool decides = i == 0 && st->flow->control->condition;
        needed[tsr__value_id(tsr_graph_output(g, i))] = 1;
        tsr__plan_want(p, tsr_graph_output(g, i), decides ? NULL : b->flow->outputs[i]);
    }
    *inner = (struct scope){.outer = here, .graph = g};
    inner->loops = here->loops || st->flow->control->loops;
    tsr__scope_go(p, inner);
    bool ok = start_body(p, b) && tsr__plan_nodes(p, b->flow->nodes, b->flow->n_nodes, needed) &&
              end_body(p, st, b);
    tsr__scope_go(p, here);
    b->steps = inner->steps;
    return ok;
}

bool tsr__plan_bodies(struct plan *p, struct step *st)
{
    const struct control *c = st->flow->control;
    st->n_bodies = c->n_bodies;
    st->bodies = ARENA_ARRAY(p->arena, struct body, 2);
    for (int k = 0; st->bodies && k < c->n_bodies; k++) {
        st->bodies[k].flow = &st->flow->bodies[k];
        if (!plan_body(p, st, &st->bodies[k]))
            return false;
    }
    for (int i = 0; st->bodies && i < c->n_steer; i++) {
        const tsr_value *v = tsr_node_input(st->flow->node, (size_t)i);
        if (v && !(st->inputs[i] = plan_decision(p, st, v, st->flow->inputs[i])))
            return false;
    }
    return !p->arena->failed;
}

// ---- who needs what ----------------------------------------------------------------------------

static void live_body(struct plan *p, struct step *st, struct body *b)
{
    const struct placement *place = &st->flow->place;
    for (size_t d = 0; d < place->n_devices; d++)
        for (size_t i = 0; i < tsr_graph_output_count(b->flow->graph); i++)
            form_want(b->outputs[i], place->devices[d]);
    tsr__live_steps(p, &b->steps);
}

void tsr__live_bodies(struct plan *p, struct step *st)
{
    const struct placement *place = &st->flow->place;
    bool any = false;
    for (size_t d = 0; d < place->n_devices; d++)
        for (size_t i = 0; i < st->n_outputs; i++)
            any |= form_wanted(st->outputs[i], place->devices[d]);
    for (int k = 0; k < st->n_bodies && any; k++)
        live_body(p, st, &st->bodies[k]);
    for (size_t d = 0; d < place->n_devices && any; d++) {
        for (size_t i = 0; i < st->n_outputs; i++)
            form_want(st->outputs[i], place->devices[d]);
        for (size_t i = 0; i < st->n_inputs; i++)
            form_want(st->inputs[i], place->devices[d]);
    }
}

bool tsr__comms_on(const struct step *st, int64_t rank)
{
    for (int k = 0; k < st->n_bodies; k++)
        for (size_t i = 0; i < st->bodies[k].steps.n; i++)
            if (tsr__comms_on(st->bodies[k].steps.at[i], rank))
                return true;
    for (size_t g = 0; st->id >= 0 && g < st->n_groups; g++)
        for (size_t i = 0; st->group_live[g] && i < st->groups[g].n; i++)
            if (st->groups[g].devices[i] == rank)
                return true;
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
