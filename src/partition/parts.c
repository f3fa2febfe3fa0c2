// SPDX-License-Identifier: Apache-2.0
// parts.c - builds the graphs of all ranks from the planned steps: opsets, inputs, token,
// constants, steps in order, outputs. steps/live.c has already marked what each rank needs, so
// nothing is removed here.
//
//     Example: y = MatMul(x [n,8], w [8,6]), z = Relu(y), w sharded {2,1} on ranks 0 and 1:
//         rank 0   input x, weight w [4,6], outputs z and ai.tessera.token.out
//                  x/1 = Slice(x), columns 0..3;  y/0 = MatMul(x/1, w);
//                  y, t = AllReduce(y/0, token);  z = Relu(y)
//         rank 1   input x, weight w [4,6], output ai.tessera.token.out
//                  x/1 = Slice(x), columns 4..7;  y = MatMul(x/1, w);  y/1, t = AllReduce(y, token)
//     Rank 1 does not use the sum. Its token is an output, so its engine still runs the AllReduce.
#include "internal.h"

// Copies the model's opsets. Adds the domain of the communication operators. Adds ai.onnx if the
// model does not import it, because Tessera adds nodes of that domain.
static tsr_status copy_opsets(struct part *part)
{
    const tsr_model *model = part->draft->model;
    bool onnx = false;
    for (size_t i = 0; i < tsr_model_opset_count(model); i++) {
        const char *domain = tsr_model_opset_domain(model, i);
        onnx |= !domain[0];
        TRY(tsr_model_set_opset(part->model, domain, tsr_model_opset_version(model, i)));
    }
    if (!onnx)
        TRY(tsr_model_set_opset(part->model, "", part->draft->opset));
    return tsr_model_set_opset(part->model, COMM_DOMAIN, 1);
}

static bool is_live_anywhere(const struct draft *draft, const struct form *form)
{
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        if (form->live[rank])
            return true;
    return false;
}

// Adds the inputs of the model that the rank needs. An input that no rank needs is added on its
// first owner, so that no input of the model is lost. Inputs of which only the size is needed are
// added later (emit_shape.c).
static tsr_status add_inputs(struct part *part)
{
    tsr_graph *graph = tsr_model_graph(part->draft->model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        tsr_value *value = tsr_graph_input(graph, i);
        if (tsr_value_initializer(value))
            continue; // a constant that is listed as an input (IR 3)
        struct item *it = tsr__item_of(part->draft, value);
        if (!it)
            return TSR_NOMEM;
        const struct tile_layout *layout = it->first->layout;
        bool needed = it->first->live[part->rank] || (part->rank == layout->owners[0] &&
                                                      !is_live_anywhere(part->draft, it->first));
        if (needed && !tsr__part_input(part, it))
            return TSR_NOMEM;
    }
    return TSR_OK;
}

static tsr_status add_token(struct part *part)
{
    static const int64_t one[1] = {1}, zero[1] = {0};
    part->token =
        tsr_graph_add_initializer(part->graph, TOKEN_NAME, TSR_INT64, 1, one, zero, sizeof(zero));
    return status_of_alloc(part->token);
}

// Adds the metadata that lists the states, one line "past=present" each.
static tsr_status add_states(struct part *part)
{
    const struct draft *draft = part->draft;
    struct text lines = {.session = draft->session};
    for (size_t i = 0; i < draft->states.n; i++)
        tsr__text_printf(&lines, "%s" STR_FMT "=" STR_FMT, i ? "\n" : "",
                         STR_ARG(tsr__value_str(draft->states.at[i].past)),
                         STR_ARG(tsr__value_str(draft->states.at[i].present)));
    tsr_status st = text_status(&lines);
    if (st == TSR_OK && lines.n)
        st = tsr_model_set_metadata(part->model, META_STATE, lines.p);
    tsr__text_free(&lines);
    return st;
}

// Adds the metadata that names the partition and the rank; the runtime checks both.
static tsr_status add_marks(struct part *part)
{
    const struct draft *draft = part->draft;
    struct str number = tsr__arena_printf(draft->arena, "%lld", (long long)part->rank);
    if (!number.p)
        return TSR_NOMEM;
    TRY(tsr_model_set_metadata(part->model, "ai.tessera.plan", draft->fingerprint));
    TRY(add_states(part));
    return tsr_model_set_metadata(part->model, "ai.tessera.rank", number.p);
}

static tsr_status part_begin(struct draft *draft, struct part *part, int64_t rank)
{
    *part = (struct part){.draft = draft, .rank = rank};
    const char *name = tsr_graph_name(tsr_model_graph(draft->model));
    TRY(tsr_model_new(draft->session, name[0] ? name : "main", tsr__part_ir(draft), &part->model));
    part->graph = tsr_model_graph(part->model);
    tsr__map_init(&part->constants, draft->arena, 16);
    tsr__map_init(&part->computed, draft->arena, 16);
    if (tsr__calls_left(draft->model))
        TRY(tsr__model_copy_functions(part->model, draft->model));
    TRY(copy_opsets(part));
    TRY(add_inputs(part));
    TRY(add_token(part));
    return add_marks(part);
}

// ---- outputs -----------------------------------------------------------------------------------

// Adds the outputs of the model that are on this rank. A tensor that has another name is copied by
// an Identity.
static tsr_status add_outputs(struct part *part)
{
    tsr_graph *graph = tsr_model_graph(part->draft->model);
    for (size_t i = 0; i < part->draft->outputs.n; i++) {
        tsr_value *value = tsr_graph_output(graph, i);
        struct form *form = part->draft->outputs.at[i];
        if (!tsr__layout_has_device(form->layout, part->rank))
            continue;
        tsr_value *local = form_root(form)->local[part->rank];
        if (local && strcmp(tsr_value_name(local), tsr_value_name(value)) != 0)
            local =
                tsr__part_identity(part, local, form->item->dtype, str_of(tsr_value_name(value)));
        if (!local || tsr__port_type(part, local, value, form->layout) != TSR_OK ||
            tsr_graph_add_output(part->graph, local) != TSR_OK)
            return TSR_NOMEM;
    }
    return TSR_OK;
}

// Makes the token an output, so that no engine removes the communications on which it depends.
static tsr_status add_token_output(struct part *part)
{
    static const tsr_dim one[1] = {{1, ""}};
    tsr_value *out = part->token;
    if (!tsr_value_producer(out))
        out = NAMED_NODE(part, "Identity", STR(TOKEN_OUT), out);
    else if (tsr_value_rename(out, TOKEN_OUT) != TSR_OK)
        return TSR_NOMEM;
    if (!out || tsr_value_set_type(out, TSR_INT64, 1, one) != TSR_OK)
        return TSR_NOMEM;
    return tsr_graph_add_output(part->graph, out);
}

// True if a node of the rank writes the state over its previous value. Also true if the rank does
// not have the state.
static bool is_in_place(const struct part *part, const struct draft_state *state)
{
    const tsr_value *present = tsr_graph_value(part->graph, tsr_value_name(state->present));
    if (!present || !tsr_value_is_output(present))
        return true;
    const tsr_node *node = tsr_value_producer(present);
    for (size_t i = 0; node && i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) == present)
            return tsr__node_updated_cache(node, i);
    return false;
}

static tsr_status part_end(struct part *part)
{
    TRY(add_outputs(part));
    TRY(add_token_output(part));
    TRY(tsr__part_lower(part));
    TRY(tsr__graph_unique_node_names(part->graph));
    return tsr__weights_name_shared(part);
}

// ---- entry point --------------------------------------------------------------------------------

// Builds all graphs together, step by step. So communications have the same order on all ranks.
tsr_status tsr__parts_build(struct draft *draft, struct part *parts)
{
    draft->types = tsr__model_types(draft->model, draft->flow->shapes);
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        TRY(part_begin(draft, &parts[rank], rank));
    TRY(tsr__weights_place(draft, parts));
    for (size_t i = 0; i < draft->steps.n; i++)
        TRY(tsr__emit_step(draft, parts, draft->steps.at[i]));
    for (int64_t rank = 0; rank < draft->n_ranks; rank++) {
        TRY(part_end(&parts[rank]));
        for (size_t i = 0; i < draft->states.n; i++)
            draft->states.at[i].in_place =
                draft->states.at[i].in_place && is_in_place(&parts[rank], &draft->states.at[i]);
    }
    return TSR_OK;
}
