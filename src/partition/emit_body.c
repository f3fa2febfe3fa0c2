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
    for (size_t i = 0; i < tsr_node_attr_count(from); i++) {
        tsr_status st = TSR_OK;
        const tsr_attr *attr = tsr_node_attr(from, i);
        const int64_t *ints;
        size_t n = tsr_attr_ints(attr, &ints);
        if (tsr_attr_kind_of(attr) == TSR_ATTR_INT)
            st = tsr_node_set_int(to, tsr_attr_name(attr), tsr_attr_int(attr, 0));
        else if (tsr_attr_kind_of(attr) == TSR_ATTR_INTS)
            st = tsr_node_set_ints(to, tsr_attr_name(attr), ints, n);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

// Inputs in order, the token behind the states. Returns the count.
static size_t node_inputs(struct part *part, const struct step *st, bool token, tsr_value **out)
{
    const struct control *control = st->flow->control;
    size_t n = 0, behind = (size_t)(control->n_steer + control->n_states);
    for (size_t i = 0; i <= st->n_node_inputs; i++) {
        if (i == behind && token && control->loops)
            out[n++] = part->token;
        if (i < st->n_node_inputs)
            out[n++] = st->inputs[i] ? form_root(st->inputs[i])->local[part->rank] : NULL;
    }
    return n;
}

// Where output i of the node (states, token, results) stands.
static size_t token_at(const struct control *control)
{
    return (size_t)(control->loops ? control->n_states : control->n_results);
}

static size_t node_outputs(struct part *part, const struct step *st, bool token, const char **out)
{
    const struct control *control = st->flow->control;
    size_t n = 0, all = (size_t)(control->n_states + control->n_results);
    for (size_t i = 0; i <= all; i++) {
        if (i == token_at(control) && token)
            out[n++] = tsr__part_fresh(part).p;
        if (i < all)
            out[n++] = i < st->n_outputs && st->outputs[i] ? tsr__form_name(part, st->outputs[i]).p
                                                           : tsr__part_fresh(part).p;
    }
    return n;
}

// x with this axis in front: of [7 2 0 5] and axis 1, [2 7 0 5].
static tsr_value *axis_first(struct part *part, tsr_value *x, int rank, int axis)
{
    int64_t order[TILE_MAX_RANK] = {axis};
    for (int i = 0; i < axis; i++)
        order[i + 1] = i;
    for (int i = axis + 1; i < rank; i++)
        order[i] = i;
    tsr_value *turned = tsr__part_node(part, "Transpose", (struct str){0}, 1, x);
    if (!turned)
        return NULL;
    tsr_status status = tsr_node_set_ints(tsr_value_producer(turned), "perm", order, (size_t)rank);
    if (status != TSR_OK)
        return NULL;
    return turned;
}

// ONNX Runtime turns a slice with another axis than the first inside its Scan, and dies of a division by zero where the
// device has nothing of it. So slices that are cut are turned before the node. axes: of all slices, as they are then.
static tsr_status turn_slices(struct part *part, const struct step *st, tsr_value **slices,
                              int64_t *axes)
{
    const struct control *control = st->flow->control;
    for (int i = 0; i < control->n_slices; i++) {
        const struct form *form = st->inputs[control->n_steer + control->n_states + i];
        int rank = form ? form->layout->rank : 0;
        int axis = tsr__control_in_axis(control, i, rank);
        axes[i] = (size_t)i < control->n_in_axes ? control->in_axes[i] : 0;
        if (axis < 1 || rank > TILE_MAX_RANK || tsr__layout_is_whole(form->layout))
            continue;
        slices[i] = axis_first(part, slices[i], rank, axis);
        if (!slices[i])
            return TSR_NOMEM;
        axes[i] = 0;
    }
    return TSR_OK;
}

static tsr_status make_node(struct part *part, struct step *st, struct made *made)
{
    struct arena *arena = part->plan->arena;
    const tsr_node *node = st->flow->node;
    const struct control *control = st->flow->control;
    bool token = tsr__comms_on(st, part->rank);
    size_t n_out = (size_t)(control->n_states + control->n_results) + token;
    tsr_value **inputs = ARENA_ARRAY(arena, tsr_value *, st->n_node_inputs + 2);
    const char **outputs = ARENA_ARRAY(arena, const char *, n_out + 1);
    if (!inputs || !outputs)
        return TSR_NOMEM;
    size_t n_in = node_inputs(part, st, token, inputs);
    int64_t *axes = ARENA_ARRAY(arena, int64_t, (size_t)control->n_slices + 1);
    if (!axes)
        return TSR_NOMEM;
    tsr_status status = turn_slices(part, st, inputs + n_in - control->n_slices, axes);
    if (status != TSR_OK)
        return status;
    node_outputs(part, st, token, outputs);
    *made = (struct made){.outer = part->graph, .before = part->token, .token = token};
    made->node = tsr_graph_add_node(part->graph, tsr_node_domain(node), tsr_node_op(node),
                                    tsr_node_name(node), inputs, n_in, outputs, n_out);
    if (!made->node)
        return TSR_NOMEM;
    status = copy_attributes(made->node, node);
    if (status != TSR_OK || control->n_in_axes == 0)
        return status;
    return tsr_node_set_ints(made->node, "scan_input_axes", axes, (size_t)control->n_slices);
}

// ---- a body ------------------------------------------------------------------------------------

tsr_status tsr__part_rank_known(struct part *part, tsr_value *value, const struct form *form)
{
    const struct item *it = form->item;
    if (tsr__layout_is_whole(form->layout) && it->value &&
        it->scope->graph != part->plan->main.graph && tsr__value_is_other(it->value))
        return tsr__value_copy_type(value, it->value);
    if (it->dtype == TSR_UNDEFINED)
        return TSR_OK;
    tsr_dim *dims =
        ARENA_ARRAY(part->plan->arena, tsr_dim, (size_t)(it->rank > 0 ? it->rank : 0) + 1);
    if (!dims)
        return TSR_NOMEM;
    for (int axis = 0; axis < it->rank; axis++)
        dims[axis] = (tsr_dim){-1, ""};
    return tsr_value_set_type(value, it->dtype, it->rank, dims);
}

tsr_value *tsr__part_token_input(struct part *part)
{
    static const tsr_dim one[1] = {{1, ""}};
    struct str name = tsr__part_fresh(part);
    tsr_value *value = name.p ? tsr_graph_add_input(part->graph, name.p) : NULL;
    if (value && tsr_value_set_type(value, TSR_INT64, 1, one) == TSR_OK)
        return value;
    return NULL;
}

// The token goes round a loop as one more carried state: behind numbers and states, before slices. A loop with 2
// numbers, 1 state and 1 slice gets it as input 3. It may be the last input, so i runs up to n.
static tsr_status open_body(struct part *part, const struct step *st, int k,
                            const struct made *made)
{
    const struct control *control = st->flow->control;
    const struct body *body = &st->bodies[k];
    size_t n = tsr_graph_input_count(body->flow->graph),
           behind = (size_t)(control->n_numbers + control->n_states);
    part->graph =
        tsr__node_add_graph(made->node, control->names[k], tsr_graph_name(body->flow->graph));
    if (!part->graph)
        return TSR_NOMEM;
    part->token = made->before;
    for (size_t i = 0; i <= n; i++) {
        if (i == behind && made->token && control->loops &&
            !(part->token = tsr__part_token_input(part)))
            return TSR_NOMEM;
        if (i == n)
            break;
        struct form *form = body->inputs[i];
        tsr_value *value = tsr_graph_add_input(part->graph, form->item->name.p);
        if (!value || tsr__part_rank_known(part, value, form) != TSR_OK)
            return TSR_NOMEM;
        form->local[part->rank] = value;
    }
    return TSR_OK;
}

// An output of a body is made in it, and is an output once.
static tsr_status add_output(struct part *part, tsr_value *value, tsr_dtype type)
{
    bool own = value && tsr_value_graph(value) == part->graph && tsr_value_producer(value) &&
               !tsr_value_is_output(value);
    if (value && !own)
        value = tsr__part_same(part, value, type, (struct str){0});
    if (value)
        return tsr_graph_add_output(part->graph, value);
    return TSR_NOMEM;
}

tsr_status tsr__part_token_output(struct part *part)
{
    static const tsr_dim one[1] = {{1, ""}};
    tsr_status st = add_output(part, part->token, TSR_INT64);
    size_t n = tsr_graph_output_count(part->graph);
    if (st != TSR_OK)
        return st;
    return tsr_value_set_type(tsr_graph_output(part->graph, n - 1), TSR_INT64, 1, one);
}

static tsr_status close_body(struct part *part, const struct step *st, int k,
                             const struct made *made)
{
    const struct control *control = st->flow->control;
    const struct body *body = &st->bodies[k];
    size_t n = tsr_graph_output_count(body->flow->graph);
    size_t behind = token_at(control) + (size_t)control->condition;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i <= n && status == TSR_OK; i++) {
        if (i == behind && made->token)
            status = tsr__part_token_output(part);
        if (i == n || status != TSR_OK)
            break;
        status = add_output(part, form_root(body->outputs[i])->local[part->rank],
                            body->outputs[i]->item->dtype);
        if (status == TSR_OK)
            status = tsr__part_rank_known(
                part, tsr_graph_output(part->graph, tsr_graph_output_count(part->graph) - 1),
                body->outputs[i]);
    }
    part->graph = made->outer;
    return status;
}

// ---- all ranks ---------------------------------------------------------------------------------

static tsr_status emit_body(struct plan *plan, struct part *parts, struct step *st, int k,
                            struct made *made)
{
    for (int64_t rank = 0; rank < plan->n_ranks; rank++) {
        tsr_status status = made[rank].node ? open_body(&parts[rank], st, k, &made[rank]) : TSR_OK;
        if (status != TSR_OK)
            return status;
    }
    for (size_t i = 0; i < st->bodies[k].steps.n; i++) {
        tsr_status status = tsr__emit_step(plan, parts, st->bodies[k].steps.at[i]);
        if (status != TSR_OK)
            return status;
    }
    for (int64_t rank = 0; rank < plan->n_ranks; rank++) {
        tsr_status status = made[rank].node ? close_body(&parts[rank], st, k, &made[rank]) : TSR_OK;
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}

static tsr_status finish(struct part *part, struct step *st, const struct made *made)
{
    const struct control *control = st->flow->control;
    size_t at = token_at(control);
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[part->rank] =
                tsr_node_output(made->node, i + (made->token && i >= at));
    part->token = made->before;
    if (made->token)
        part->token = tsr_node_output(made->node, at);
    tsr_status status = tsr__part_keep_declared(part, st);
    if (status != TSR_OK)
        return status;
    return tsr_node_move_before(made->node, NULL);
}

// The node on every rank, then body by body on all ranks together, as the main graph is built, then what stands
// behind it.
tsr_status tsr__emit_bodies(struct plan *plan, struct part *parts, struct step *st)
{
    const struct placement *place = &st->flow->place;
    struct made *made = ARENA_ARRAY(plan->arena, struct made, (size_t)plan->n_ranks);
    bool any = false;
    if (!made)
        return TSR_NOMEM;
    for (size_t i = 0; i < st->n_outputs; i++)
        any |= st->outputs[i] && st->outputs[i]->live[place->devices[0]];
    if (!any)
        return TSR_OK;
    for (size_t device = 0; device < place->n_devices; device++) {
        int64_t rank = place->devices[device];
        tsr_status status = make_node(&parts[rank], st, &made[rank]);
        if (status != TSR_OK)
            return status;
    }
    for (int k = 0; k < st->n_bodies; k++) {
        tsr_status status = emit_body(plan, parts, st, k, made);
        if (status != TSR_OK)
            return status;
    }
    for (size_t device = 0; device < place->n_devices; device++) {
        int64_t rank = place->devices[device];
        tsr_status status = finish(&parts[rank], st, &made[rank]);
        if (status != TSR_OK)
            return status;
    }
    return TSR_OK;
}
