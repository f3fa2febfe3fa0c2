// SPDX-License-Identifier: Apache-2.0
// emit_list.c - transfers a list (ONNX sequence or optional) tensor by tensor, because custom
// operators take only tensors.
//
//     sender:    Loop(length) { SequenceAt(list, i) -> Broadcast }
//     receiver:  Loop(length) { Broadcast -> SequenceInsert(list) }
//
// Both loops have the same name and carry the token, so prove.c checks them like any body that
// communicates. An optional is one tensor and needs no loop.
#include "internal.h"

// Adds the broadcast of one tensor and returns its result. x is NULL on receivers, which pass an
// empty tensor.
static tsr_value *exchange(struct part *part, const struct step *st, size_t group, tsr_value *x)
{
    if (!x)
        x = tsr__part_empty(part, tsr__step_type(st));
    tsr_value *inputs[2] = {x, part->token};
    struct str got = tsr__part_new_name(part);
    struct str token = tsr__arena_printf(part->draft->arena, TOKEN_NAME ".%lld", (long long)st->id);
    const char *outputs[2] = {got.p, token.p};
    if (!x || !got.p || !token.p)
        return NULL;
    tsr_node *node = tsr__comm_node(part, st, group, inputs, 2, outputs);
    return node ? tsr_node_output(node, 0) : NULL;
}

static tsr_status emit_optional(struct part *part, struct step *st, size_t group,
                                tsr_value *source_list)
{
    struct form *to = st->outputs[0];
    if (source_list) {
        tsr_value *x = NODE(part, "OptionalGetElement", source_list);
        return status_of_alloc(exchange(part, st, group, x));
    }
    tsr_value *got = exchange(part, st, group, NULL);
    if (!got)
        return TSR_NOMEM;
    to->local[part->rank] = NAMED_NODE(part, "Optional", tsr__form_name(part, to), got);
    return status_of_alloc(to->local[part->rank]);
}

// Returns a constant true as the condition of a Loop. ONNX makes the condition optional, but some
// tools require it.
static tsr_value *always(struct part *part)
{
    static const unsigned char yes = 1;
    return tsr__part_constant(part, part->graph, TSR_BOOL, 0, NULL, &yes);
}

// Adds the Loop without its body. With `grows` (on receivers), its first state is the list that the
// receiver builds. The loop of the sender has only the token as state.
static tsr_node *make_loop(struct part *part, const struct step *st, bool grows)
{
    struct str label = tsr__arena_printf(part->draft->arena, "List_%lld", (long long)st->id);
    tsr_value *inputs[4] = {form_root(st->inputs[1])->local[part->rank], always(part)};
    const char *outputs[2];
    size_t n_states = 0;
    if (grows) {
        tsr_value *empty = tsr__part_node(part, "SequenceEmpty", NEW_NAME, NULL, 0);
        if (!empty ||
            tsr_node_set_int(tsr_value_producer(empty), "dtype", tsr__step_type(st)) != TSR_OK)
            return NULL;
        inputs[2] = empty;
        outputs[n_states++] = tsr__form_name(part, st->outputs[0]).p;
    }
    inputs[2 + n_states] = part->token;
    outputs[n_states++] = tsr__part_new_name(part).p;
    if (part->draft->arena->failed || !inputs[0] || !inputs[1])
        return NULL;
    return tsr_graph_add_node(part->graph, "", "Loop", label.p, inputs, 2 + n_states, outputs,
                              n_states);
}

// Writes the body of the Loop. `source_list` is the list on the sender, NULL on receivers.
static tsr_status fill_body(struct part *part, const struct step *st, size_t group,
                            tsr_value *source_list)
{
    tsr_value *turn = tsr__part_body_input(part, TSR_INT64, 0),
              *go = tsr__part_body_input(part, TSR_BOOL, 0);
    struct str name = tsr__part_new_name(part);
    tsr_value *list = NULL, *x = NULL;
    if (!source_list && name.p)
        list = tsr_graph_add_input(part->graph, name.p);
    part->token = tsr__part_token_input(part);
    if (!turn || !go || !part->token || (!source_list && !list))
        return TSR_NOMEM;
    if (source_list)
        x = NODE(part, "SequenceAt", source_list, turn);
    tsr_value *got = exchange(part, st, group, x);
    if (!got)
        return TSR_NOMEM;
    tsr_value *on = NODE(part, "Identity", go);
    if (!on || tsr_value_set_type(on, TSR_BOOL, 0, NULL) != TSR_OK ||
        tsr_graph_add_output(part->graph, on) != TSR_OK)
        return TSR_NOMEM;
    if (list) {
        tsr_value *longer = NODE(part, "SequenceInsert", list, got);
        if (!longer || tsr_graph_add_output(part->graph, longer) != TSR_OK)
            return TSR_NOMEM;
    }
    return tsr__part_token_output(part);
}

// Writes the transfer of a sequence. The length was sent before (convert.c), so all ranks run the
// same number of iterations.
static tsr_status emit_sequence(struct part *part, struct step *st, size_t group,
                                tsr_value *source_list)
{
    tsr_graph *outer = part->graph;
    tsr_node *loop = make_loop(part, st, !source_list);
    if (!loop)
        return TSR_NOMEM;
    part->graph = tsr__node_add_graph(loop, "body", "elements");
    if (!part->graph)
        return TSR_NOMEM;
    tsr_status status = fill_body(part, st, group, source_list);
    part->graph = outer;
    if (status != TSR_OK)
        return status;
    part->token = tsr_node_output(loop, tsr_node_output_count(loop) - 1);
    if (!source_list)
        st->outputs[0]->local[part->rank] = tsr_node_output(loop, 0);
    return TSR_OK;
}

tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group)
{
    struct form *to = st->outputs[0];
    bool has = st->roots[group] == part->rank;
    tsr_value *source_list = has ? local_of(part, st->inputs[0]) : NULL;
    if (has && !source_list)
        return TSR_NOMEM;
    if (has && tsr__layout_has_device(to->layout, part->rank))
        to->local[part->rank] = source_list;
    if (to->item->list_form == LIST_OPTIONAL)
        return emit_optional(part, st, group, source_list);
    return emit_sequence(part, st, group, source_list);
}
