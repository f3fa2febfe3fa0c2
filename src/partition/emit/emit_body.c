// SPDX-License-Identifier: Apache-2.0
// emit_body.c - writes nodes with sharded bodies on one rank: the node, the inputs and outputs of
// its bodies, and the token. emit_step.c adds the steps of the bodies.
//
// A loop carries the token as one more state. Both branches of an If return it. When its bodies are
// complete, the node is moved to the end of its graph, because the bodies may have added nodes that
// compute sizes after it.
//
//     Example: If(c) { y = AllReduce(x) } else { y = x } on ranks 0 and 1 becomes, on each of them:
//         If(c) -> y, t
//             then: AllReduce(x, token) -> y', t';  outputs y', t'
//             else: Identity(x), Identity(token);   outputs both
//     A Loop carries the token behind its states: Loop(n, c, h, token) -> h, token.
#include "internal.h"

// Copies the integer attributes of a control-flow node. Its only other attributes are the bodies,
// which are built anew.
static tsr_status copy_attributes(tsr_node *to, const tsr_node *from)
{
    for (size_t i = 0; i < tsr_node_attr_count(from); i++) {
        const tsr_attr *attr = tsr_node_attr(from, i);
        const int64_t *ints;
        size_t n = tsr_attr_ints(attr, &ints);
        if (tsr_attr_kind_of(attr) == TSR_ATTR_INT)
            TRY(tsr_node_set_int(to, tsr_attr_name(attr), tsr_attr_int(attr, 0)));
        else if (tsr_attr_kind_of(attr) == TSR_ATTR_INTS)
            TRY(tsr_node_set_ints(to, tsr_attr_name(attr), ints, n));
    }
    return TSR_OK;
}

// Lists the inputs of the node and returns their number. If `token` is set, a loop gets the token
// after its states.
static size_t node_inputs(struct part *part, const struct step *st, bool token, tsr_value **out)
{
    const struct control *control = st->flow->control;
    size_t n = 0, behind = (size_t)(control->n_steer + control->n_states);
    for (size_t i = 0; i <= st->n_node_inputs; i++) {
        if (i == behind && token && control->loops)
            out[n++] = part->token;
        if (i < st->n_node_inputs)
            out[n++] = local_of(part, st->inputs[i]);
    }
    return n;
}

// Returns the index of the token in the outputs: after the states of a loop (results follow), or
// after the results of an If.
static size_t token_at(const struct control *control)
{
    return control->loops ? (size_t)control->n_states : (size_t)control->n_results;
}

// A Scan stacks its sharded results along axis 0, and a Transpose after it moves that axis (reason:
// see transpose_slices). Returns the new position of the axis for result i; 0: no Transpose.
static int transposed_axis(const struct step *st, int i)
{
    const struct control *control = st->flow->control;
    size_t output = (size_t)(control->n_states + i);
    if (output >= st->n_outputs || !st->outputs[output])
        return 0;
    const struct tile_layout *layout = st->outputs[output]->layout;
    if (tsr__layout_is_whole(layout) || layout->rank > TILE_MAX_RANK)
        return 0;
    int axis = tsr__control_out_axis(control, i, layout->rank);
    return axis > 0 ? axis : 0;
}

// Returns the name of output i of the node. An unused output gets a new name. So does an output
// that a Transpose follows, whose result then has the real name.
static const char *output_name(struct part *part, const struct step *st, size_t i)
{
    size_t n_states = (size_t)st->flow->control->n_states;
    bool named = i < st->n_outputs && st->outputs[i];
    if (!named || (i >= n_states && transposed_axis(st, (int)(i - n_states))))
        return tsr__part_new_name(part).p;
    return tsr__form_name(part, st->outputs[i]).p;
}

static size_t node_outputs(struct part *part, const struct step *st, bool token, const char **out)
{
    const struct control *control = st->flow->control;
    size_t n = 0, all = (size_t)(control->n_states + control->n_results);
    for (size_t i = 0; i <= all; i++) {
        if (i == token_at(control) && token)
            out[n++] = tsr__part_new_name(part).p;
        if (i < all)
            out[n++] = output_name(part, st, i);
    }
    return n;
}

static tsr_value *transposed(struct part *part, tsr_value *x, const int64_t *order, int rank,
                             struct str name)
{
    return tsr__with_ints(NAMED_NODE(part, "Transpose", name, x), "perm", order, rank);
}

// Adds a Transpose that moves `axis` to the front. Example: a shape [7 2 0 5] with axis 1 becomes
// [2 7 0 5].
static tsr_value *axis_first(struct part *part, tsr_value *x, int rank, int axis)
{
    int64_t order[TILE_MAX_RANK] = {axis};
    for (int i = 0; i < axis; i++)
        order[i + 1] = i;
    for (int i = axis + 1; i < rank; i++)
        order[i] = i;
    return transposed(part, x, order, rank, NEW_NAME);
}

// Adds a Transpose that moves the first axis to position `axis`. Example: [2 7 0 5] with axis 1
// becomes [7 2 0 5].
static tsr_value *axis_back(struct part *part, tsr_value *x, int rank, int axis, struct str name)
{
    int64_t order[TILE_MAX_RANK];
    for (int i = 0; i < axis; i++)
        order[i] = i + 1;
    order[axis] = 0;
    for (int i = axis + 1; i < rank; i++)
        order[i] = i;
    return transposed(part, x, order, rank, name);
}

// Adds Transposes before a Scan, so that sharded scan inputs have axis 0. For other axes, ONNX
// Runtime transposes inside of Scan and divides by zero for an empty shard (quirk
// scan_axis_of_empty). `axes` gets the new axes of all scan inputs.
static tsr_status transpose_slices(struct part *part, const struct step *st, tsr_value **slices,
                                   int64_t *axes)
{
    const struct control *control = st->flow->control;
    for (int i = 0; i < control->n_slices; i++) {
        const struct form *form = st->inputs[control->n_steer + control->n_states + i];
        axes[i] = 0;
        if ((size_t)i < control->n_in_axes)
            axes[i] = control->in_axes[i];
        if (!form)
            continue;
        int rank = form->layout->rank, axis = tsr__control_in_axis(control, i, rank);
        if (axis < 1 || rank > TILE_MAX_RANK || tsr__layout_is_whole(form->layout))
            continue;
        slices[i] = axis_first(part, slices[i], rank, axis);
        if (!slices[i])
            return TSR_NOMEM;
        axes[i] = 0;
    }
    return TSR_OK;
}

// Sets the attribute with the axes along which the node stacks its results; 0 for unused and
// transposed results.
static tsr_status set_out_axes(struct part *part, const struct step *st, tsr_node *node)
{
    const struct control *control = st->flow->control;
    int64_t *axes = ARENA_ARRAY(part->draft->arena, int64_t, (size_t)control->n_results + 1);
    if (!axes)
        return TSR_NOMEM;
    for (int i = 0; i < control->n_results; i++) {
        size_t output = (size_t)(control->n_states + i);
        bool read = output < st->n_outputs && st->outputs[output];
        if (read && (size_t)i < control->n_out_axes && !transposed_axis(st, i))
            axes[i] = control->out_axes[i];
    }
    return tsr_node_set_ints(node, "scan_output_axes", axes, (size_t)control->n_results);
}

// Creates the node without its bodies. If a body communicates, the node returns the token as an
// additional output, and a loop also has it as an additional input.
tsr_status tsr__control_begin(struct part *part, struct step *st, struct control_node *made)
{
    struct arena *arena = part->draft->arena;
    const tsr_node *node = st->flow->node;
    const struct control *control = st->flow->control;
    bool token = tsr__step_communicates_on(st, part->rank);
    size_t n_out = (size_t)(control->n_states + control->n_results) + token;
    tsr_value **inputs = ARENA_ARRAY(arena, tsr_value *, st->n_node_inputs + 2);
    const char **outputs = ARENA_ARRAY(arena, const char *, n_out + 1);
    if (!inputs || !outputs)
        return TSR_NOMEM;
    size_t n_in = node_inputs(part, st, token, inputs);
    int64_t *axes = ARENA_ARRAY(arena, int64_t, (size_t)control->n_slices + 1);
    if (!axes)
        return TSR_NOMEM;
    TRY(transpose_slices(part, st, inputs + n_in - control->n_slices, axes));
    node_outputs(part, st, token, outputs);
    *made = (struct control_node){
        .outer = part->graph, .before = part->token, .token = token, .same = part->same};
    made->node = tsr_graph_add_node(part->graph, tsr_node_domain(node), tsr_node_op(node),
                                    tsr_node_name(node), inputs, n_in, outputs, n_out);
    if (!made->node)
        return TSR_NOMEM;
    TRY(copy_attributes(made->node, node));
    if (control->n_out_axes)
        TRY(set_out_axes(part, st, made->node));
    if (control->n_in_axes == 0)
        return TSR_OK;
    return tsr_node_set_ints(made->node, "scan_input_axes", axes, (size_t)control->n_slices);
}

// ---- a body ------------------------------------------------------------------------------------

// Adds the inputs of the body. Example: a loop body with iteration, condition and 1 state gets the
// token as input 3. The token may be the last input, so i runs up to n.
tsr_status tsr__control_open(struct part *part, const struct step *st, int k,
                             const struct control_node *made)
{
    const struct control *control = st->flow->control;
    const struct body *body = &st->bodies[k];
    size_t n = tsr_graph_input_count(body->flow->graph),
           behind = (size_t)(control->n_numbers + control->n_states);
    if (!made->node)
        return TSR_OK;
    part->graph =
        tsr__node_add_graph(made->node, control->names[k], tsr_graph_name(body->flow->graph));
    if (!part->graph)
        return TSR_NOMEM;
    part->token = made->before;
    part->same = (struct same_sizes){0};
    for (size_t i = 0; i <= n; i++) {
        if (i == behind && made->token && control->loops &&
            !(part->token = tsr__part_token_input(part)))
            return TSR_NOMEM;
        if (i == n)
            break;
        struct form *form = body->inputs[i];
        tsr_value *value = tsr_graph_add_input(part->graph, form->item->name.p);
        if (!value || tsr__part_sizes_known(part, value, form) != TSR_OK)
            return TSR_NOMEM;
        form->local[part->rank] = value;
    }
    return TSR_OK;
}

// Adds an output of a body and declares its known sizes. An engine uses those of stacked results if
// a loop has no iterations.
static tsr_status add_body_output(struct part *part, struct form *form, tsr_value *value)
{
    TRY(tsr__part_body_output(part, value, form->item->dtype));
    tsr_value *given = tsr_graph_output(part->graph, tsr_graph_output_count(part->graph) - 1);
    return tsr__part_sizes_known(part, given, form);
}

// Adds the outputs of a body. The token may be the last one, so i runs up to n. The first tensor
// depends on the check of sizes that must be equal in the body.
tsr_status tsr__control_close(struct part *part, const struct step *st, int k,
                              const struct control_node *made)
{
    const struct control *control = st->flow->control;
    const struct body *body = &st->bodies[k];
    size_t n = tsr_graph_output_count(body->flow->graph);
    size_t behind = token_at(control) + (size_t)control->condition;
    bool checked = false;
    if (!made->node)
        return TSR_OK;
    for (size_t i = 0; i <= n; i++) {
        if (i == behind && made->token)
            TRY(tsr__part_token_output(part));
        if (i == n)
            break;
        struct form *form = body->outputs[i];
        tsr_value *value = form_root(form)->local[part->rank];
        if (!checked && tsr_dtype_bits(form->item->dtype) >= 8) {
            value = tsr__part_check_sizes(part, value, form->item->dtype);
            checked = true;
        }
        TRY(add_body_output(part, form, value));
    }
    part->graph = made->outer;
    part->same = made->same;
    return TSR_OK;
}

tsr_status tsr__control_end(struct part *part, struct step *st, const struct control_node *made)
{
    const struct control *control = st->flow->control;
    size_t at = token_at(control);
    for (size_t i = 0; i < st->n_outputs; i++)
        if (st->outputs[i])
            st->outputs[i]->local[part->rank] =
                tsr_node_output(made->node, i + (made->token && i >= at));
    part->token = made->token ? tsr_node_output(made->node, at) : made->before;
    TRY(tsr_node_move_before(made->node, NULL));
    for (int i = 0; i < control->n_results; i++) {
        int axis = transposed_axis(st, i);
        if (axis == 0)
            continue;
        struct form *form = st->outputs[control->n_states + i];
        tsr_value **local = &form->local[part->rank];
        *local = axis_back(part, *local, form->layout->rank, axis, tsr__form_name(part, form));
        if (!*local)
            return TSR_NOMEM;
    }
    return tsr__part_keep_declared(part, st);
}
