// SPDX-License-Identifier: Apache-2.0
// emit_list.c - a list goes from one rank to others, tensor by tensor: custom operators take tensors only.
//
//     who has it:   Loop(length) { SequenceAt(list, turn) -> Broadcast }
//     who gets it:  Loop(length) { Broadcast -> SequenceInsert(list) }
//
// Both loops have one name and carry the token, so they are checked like any other body that communicates. An optional
// is a list of one tensor: it needs no loop. Knows nothing of why a list moves.
#include "internal.h"

// Who has the list gives x; the others give an empty tensor and get x.
static tsr_value *exchange(struct part *part, const struct step *st, size_t group, tsr_value *x)
{
    if (!x)
        x = tsr__part_empty(part, tsr__step_type(st));
    tsr_value *inputs[2] = {x, part->token};
    struct str got = tsr__part_fresh(part);
    struct str token = tsr__arena_printf(part->draft->arena, TOKEN_NAME ".%lld", (long long)st->id);
    const char *outputs[2] = {got.p, token.p};
    if (!x || !got.p || !token.p)
        return NULL;
    tsr_node *node = tsr__comm_node(part, st, group, inputs, 2, outputs);
    if (node)
        return tsr_node_output(node, 0);
    return NULL;
}

// One tensor and no loop. Who gets it wraps it again.
static tsr_status emit_optional(struct part *part, struct step *st, size_t group, tsr_value *held)
{
    struct form *to = st->outputs[0];
    struct str any = {0};
    if (held) {
        tsr_value *x = tsr__part_node(part, "OptionalGetElement", any, 1, held);
        return made(exchange(part, st, group, x));
    }
    tsr_value *got = exchange(part, st, group, NULL);
    if (!got)
        return TSR_NOMEM;
    to->local[part->rank] = tsr__part_node(part, "Optional", tsr__form_name(part, to), 1, got);
    return made(to->local[part->rank]);
}

// An input of a loop's body without dimensions: the number of the turn, or the condition.
static tsr_value *scalar_input(struct part *part, tsr_dtype type)
{
    struct str name = tsr__part_fresh(part);
    if (!name.p)
        return NULL;
    tsr_value *value = tsr_graph_add_input(part->graph, name.p);
    if (value && tsr_value_set_type(value, type, 0, NULL) == TSR_OK)
        return value;
    return NULL;
}

// Loops go on by default, but not every reader knows that.
static tsr_value *always(struct part *part)
{
    static const unsigned char yes = 1;
    struct str name = tsr__part_fresh(part);
    if (name.p)
        return tsr_graph_add_initializer(part->graph, name.p, TSR_BOOL, 0, NULL, &yes, 1);
    return NULL;
}

// The loop: of one rank, with the list that grows as its first state unless the rank has the list already.
static tsr_node *make_loop(struct part *part, const struct step *st, bool grows)
{
    struct str any = {0},
               label = tsr__arena_printf(part->draft->arena, "List_%lld", (long long)st->id);
    tsr_value *inputs[4] = {form_root(st->inputs[1])->local[part->rank], always(part)};
    const char *outputs[2];
    size_t n_states = 0;
    if (grows) {
        tsr_value *empty = tsr__part_node(part, "SequenceEmpty", any, 0);
        if (!empty ||
            tsr_node_set_int(tsr_value_producer(empty), "dtype", tsr__step_type(st)) != TSR_OK)
            return NULL;
        inputs[2] = empty;
        outputs[n_states++] = tsr__form_name(part, st->outputs[0]).p;
    }
    inputs[2 + n_states] = part->token;
    outputs[n_states++] = tsr__part_fresh(part).p;
    if (part->draft->arena->failed || !inputs[0] || !inputs[1])
        return NULL;
    return tsr_graph_add_node(part->graph, "", "Loop", label.p, inputs, 2 + n_states, outputs,
                              n_states);
}

// One turn: the tensor of that number goes over. held: the list, on the rank that has it; else NULL.
static tsr_status fill_body(struct part *part, const struct step *st, size_t group, tsr_value *held)
{
    struct str any = {0};
    tsr_value *turn = scalar_input(part, TSR_INT64), *go = scalar_input(part, TSR_BOOL);
    struct str name = tsr__part_fresh(part);
    tsr_value *list = NULL, *x = NULL;
    if (!held && name.p)
        list = tsr_graph_add_input(part->graph, name.p);
    part->token = tsr__part_token_input(part);
    if (!turn || !go || !part->token || (!held && !list))
        return TSR_NOMEM;
    if (held)
        x = tsr__part_node(part, "SequenceAt", any, 2, held, turn);
    tsr_value *got = exchange(part, st, group, x);
    if (!got)
        return TSR_NOMEM;
    tsr_value *on = tsr__part_node(part, "Identity", any, 1, go);
    if (!on || tsr_value_set_type(on, TSR_BOOL, 0, NULL) != TSR_OK ||
        tsr_graph_add_output(part->graph, on) != TSR_OK)
        return TSR_NOMEM;
    if (list) {
        tsr_value *longer = tsr__part_node(part, "SequenceInsert", any, 2, list, got);
        if (!longer || tsr_graph_add_output(part->graph, longer) != TSR_OK)
            return TSR_NOMEM;
    }
    return tsr__part_token_output(part);
}

// The same number of turns on all ranks: the length travelled before (convert.c).
static tsr_status emit_sequence(struct part *part, struct step *st, size_t group, tsr_value *held)
{
    tsr_graph *outer = part->graph;
    tsr_node *loop = make_loop(part, st, !held);
    if (!loop)
        return TSR_NOMEM;
    part->graph = tsr__node_add_graph(loop, "body", "elements");
    if (!part->graph)
        return TSR_NOMEM;
    tsr_status status = fill_body(part, st, group, held);
    part->graph = outer;
    if (status != TSR_OK)
        return status;
    part->token = tsr_node_output(loop, tsr_node_output_count(loop) - 1);
    if (!held)
        st->outputs[0]->local[part->rank] = tsr_node_output(loop, 0);
    return TSR_OK;
}

// The rank that has the list keeps it as it is; the others put it together again.
tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group)
{
    struct form *to = st->outputs[0];
    bool has = st->roots[group] == part->rank;
    tsr_value *held = NULL;
    if (has)
        held = local_of(part, st->inputs[0]);
    if (has && !held)
        return TSR_NOMEM;
    if (has && tsr__layout_has_device(to->layout, part->rank))
        to->local[part->rank] = held;
    if (to->item->way == LIST_OPTIONAL)
        return emit_optional(part, st, group, held);
    return emit_sequence(part, st, group, held);
}
