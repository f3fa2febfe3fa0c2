// SPDX-License-Identifier: Apache-2.0
// emit_body.c - nodes with bodies that are cut, on all ranks at once: the node, its bodies with the
// steps that were planned for them, and the token, which a loop carries as one more state and which
// both branches of an If hand out. The node is put at the end of its graph when its bodies stand,
// because sizes that they need may have been added in front.
#include "internal.h"

// What one rank has of the node while it is being built.
struct made {
    tsr_node *node;
    tsr_graph *outer;
    tsr_value *before; // token before the node
    bool token;        // something inside communicates here: the token goes through
};

static tsr_status copy_attributes(tsr_node *to, const tsr_node *from)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < tsr_node_attr_count(from) && st == TSR_OK; i++) {
        const tsr_attr *a = tsr_node_attr(from, i);
        const int64_t *ints;
        size_t n = tsr_attr_ints(a, &ints);
        if (tsr_attr_kind_of(a) == TSR_ATTR_INT)
            st = tsr_node_set_int(to, tsr_attr_name(a), tsr_attr_int(a, 0));
        else if (tsr_attr_kind_of(a) == TSR_ATTR_INTS)
            st = tsr_node_set_ints(to, tsr_attr_name(a), ints, n);
    }
    return st;
}

// Inputs in order, the token behind the states. Returns the count.
static size_t node_inputs(struct part *t, const struct step *st, bool token, tsr_value **out)
{
    const struct control *c = st->flow->control;
    size_t n = 0, behind = (size_t)(c->n_steer + c->n_states);
    for (size_t i = 0; i <= st->n_node_inputs; i++) {
        if (i == behind && token && c->loops)
            out[n++] = t->token;
        if (i < st->n_node_inputs)
            out[n++] = st->inputs[i] ? form_root(st->inputs[i])->local[t->rank] : NULL;
    }
    return n;
}

// Where output i of the node (states, token, results) stands.
static size_t token_at(const struct control *c)
{
    return (size_t)(c->loops ? c->n_states : c->n_results);
}

static size_t node_outputs(struct part *t, const struct step *st, bool token, const char **out)
{
    const struct control *c = st->flow->control;
    size_t n = 0, all = (size_t)(c->n_states + c->n_results);
    for (size_t i = 0; i <= all; i++) {
        if (i == token_at(c) && token)
            out[n++] = tsr__part_fresh(t).p;
        if (i < all)
            out[n++] = i < st->n_outputs && st->outputs[i] ? tsr__form_name(t, st->outputs[i]).p
                                                           : tsr__part_fresh(t).p;
    }
    return n;
}

static tsr_status make_node(struct part *t, struct step *st, struct made *m)
{
    struct arena *a = t->plan->arena;
    const tsr_node *n = st->flow->node;
    const struct control *c = st->flow->control;
    bool token = tsr__comms_on(st, t->rank);
    size_t n_out = (size_t)(c->n_states + c->n_results) + token;
    tsr_value **inputs = ARENA_ARRAY(a, tsr_value *, st->n_node_inputs + 2);
    const char **outputs = ARENA_ARRAY(a, const char *, n_out + 1);
    if (!inputs || !outputs)
        return TSR_NOMEM;
    size_t n_in = node_inputs(t, st, token, inputs);
    node_outputs(t, st, token, outputs);
    *m = (struct made){.outer = t->graph, .before = t->token, .token = token};
    m->node = tsr_graph_add_node(t->graph, tsr_node_domain(n), tsr_node_op(n), tsr_node_name(n),
                                 inputs, n_in, outputs, n_out);
    return m->node ? copy_attributes(m->node, n) : TSR_NOMEM;
}

// ---- a body ------------------------------------------------------------------------------------

// What can be said of a local tensor: its type, and its number of dimensions where that is known.
static tsr_status set_type(struct part *t, tsr_value *v, const struct form *f)
{
    const struct item *it = f->item;
    if (tsr__layout_is_whole(f->layout) && it->value && it->scope->graph != t->plan->main.graph &&
        tsr__value_is_other(it->value))
        return tsr__value_copy_type(v, it->value);
    if (it->dtype == TSR_UNDEFINED)
        return TSR_OK;
    tsr_dim *dims = ARENA_ARRAY(t->plan->arena, tsr_dim, (size_t)(it->rank > 0 ? it->rank : 0) + 1);
    for (int d = 0; dims && d < it->rank; d++)
        dims[d] = (tsr_dim){-1, ""};
    return dims ? tsr_value_set_type(v, it->dtype, it->rank, dims) : TSR_NOMEM;
}

tsr_value *tsr__part_token_input(struct part *t)
{
    static const tsr_dim one[1] = {{1, ""}};
    struct str name = tsr__part_fresh(t);
    tsr_value *v = name.p ? tsr_graph_add_input(t->graph, name.p) : NULL;
    return v && tsr_value_set_type(v, TSR_INT64, 1, one) == TSR_OK ? v : NULL;
}

static tsr_status open_body(struct part *t, const struct step *st, int k, const struct made *m)
{
    const struct control *c = st->flow->control;
    const struct body *b = &st->bodies[k];
    size_t n = tsr_graph_input_count(b->flow->graph), behind = (size_t)(c->n_numbers + c->n_states);
    t->graph = tsr__node_add_graph(m->node, c->names[k], tsr_graph_name(b->flow->graph));
    if (!t->graph)
        return TSR_NOMEM;
    t->token = m->before;
    for (size_t i = 0; i <= n; i++) {
        if (i == behind && m->token && c->loops && !(t->token = tsr__part_token_input(t)))
            return TSR_NOMEM;
        if (i == n)
            break;
        struct form *f = b->inputs[i];
        tsr_value *v = tsr_graph_add_input(t->graph, f->item->name.p);
        if (!v || set_type(t, v, f) != TSR_OK)
            return TSR_NOMEM;
        f->local[t->rank] = v;
    }
    return TSR_OK;
}

// An output of a body is made in it, and is an output once.
static tsr_status add_output(struct part *t, tsr_value *v, tsr_dtype type)
{
    bool own =
        v && tsr_value_graph(v) == t->graph && tsr_value_producer(v) && !tsr_value_is_output(v);
    if (v && !own)
        v = tsr__part_same(t, v, type, (struct str){0});
    return v ? tsr_graph_add_output(t->graph, v) : TSR_NOMEM;
}

tsr_status tsr__part_token_output(struct part *t)
{
    static const tsr_dim one[1] = {{1, ""}};
    tsr_status st = add_output(t, t->token, TSR_INT64);
    size_t n = tsr_graph_output_count(t->graph);
    if (st != TSR_OK)
        return st;
    return tsr_value_set_type(tsr_graph_output(t->graph, n - 1), TSR_INT64, 1, one);
}

static tsr_status close_body(struct part *t, const struct step *st, int k, const struct made *m)
{
    const struct control *c = st->flow->control;
    const struct body *b = &st->bodies[k];
    size_t n = tsr_graph_output_count(b->flow->graph);
    size_t behind = token_at(c) + (size_t)c->condition;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i <= n && status == TSR_OK; i++) {
        if (i == behind && m->token)
            status = tsr__part_token_output(t);
        if (i == n || status != TSR_OK)
            break;
        status =
            add_output(t, form_root(b->outputs[i])->local[t->rank], b->outputs[i]->item->dtype);
        if (status == TSR_OK)
            status = set_type(t, tsr_graph_output(t->graph, tsr_graph_output_count(t->graph) - 1),
                              b->outputs[i]);
    }
    t->graph = m->outer;
    return status;
}

// ---- all ranks ---------------------------------------------------------------------------------

static tsr_status emit_body(struct plan *p, struct part *parts, struct step *st, int k,
                            struct made *made)
{
    tsr_status status = TSR_OK;
    for (int64_t r = 0; r < p->n_ranks && status == TSR_OK; r++)
        if (made[r].node)
            status = open_body(&parts[r], st, k, &made[r]);
    for (size_t i = 0; i < st->bodies[k].steps.n && status == TSR_OK; i++)
        status = tsr__emit_step(p, parts, st->bodies[k].steps.at[i]);
    for (int64_t r = 0; r < p->n_ranks && status == TSR_OK; r++)
        if (made[r].node)
            status = close_body(&parts[r], st, k, &made[r]);
    return status;
}

static tsr_status finish(struct part *t, struct step *st, const struct made *m)
{
    const struct control *c = st->flow->control;
    size_t at = token_at(c);
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[t->rank] = tsr_node_output(m->node, i + (m->token && i >= at));
    t->token = m->token ? tsr_node_output(m->node, at) : m->before;
    return tsr_node_move_before(m->node, NULL);
}

tsr_status tsr__emit_bodies(struct plan *p, struct part *parts, struct step *st)
{
    const struct placement *place = &st->flow->place;
    struct made *made = ARENA_ARRAY(p->arena, struct made, (size_t)p->n_ranks);
    bool any = false;
    tsr_status status = made ? TSR_OK : TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        any |= st->outputs[i] && st->outputs[i]->live[place->devices[0]];
    for (size_t d = 0; d < place->n_devices && any && status == TSR_OK; d++)
        status = make_node(&parts[place->devices[d]], st, &made[place->devices[d]]);
    for (int k = 0; k < st->n_bodies && any && status == TSR_OK; k++)
        status = emit_body(p, parts, st, k, made);
    for (size_t d = 0; d < place->n_devices && any && status == TSR_OK; d++)
        status = finish(&parts[place->devices[d]], st, &made[place->devices[d]]);
    return status;
}
