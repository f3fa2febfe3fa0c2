// SPDX-License-Identifier: Apache-2.0
// context_model.c - creates the EPContext model of a partition (--layout context).
//
// The model has the inputs and outputs of the unsharded model, and one node that refers to the
// manifest in the same folder. The execution provider (src/ep) runs it in any ONNX Runtime. A
// session of the provider writes the same node (src/ep/context.c).
//
// States (caches that stay on the ranks) have no declared shape: a run may pass the tensor itself
// or a handle of another shape (src/ep/states.c).
#include "internal.h"

#define CONTEXT_NODE "partition" // name of the EPContext node

static tsr_status refuse_context_model(struct draft *draft, const tsr_value *value, const char *why)
{
    return tsr__fail(draft->session, TSR_UNSUPPORTED, DIAG_partition_layout,
                     &PLACE(.value = tsr__value_str(value)),
                     "leave out --layout, and run the ranks with tessera run",
                     "an EPContext model %s", why);
}

static bool is_tensor(const tsr_value *value)
{
    return tsr_value_dtype(value) != TSR_UNDEFINED;
}

static bool has_rank(const struct draft *draft, const tsr_value *value)
{
    return tsr__shapes_of(draft->flow->shapes, value).rank >= 0;
}

static bool is_state(const struct draft *draft, const tsr_value *value)
{
    for (size_t i = 0; i < draft->states.n; i++)
        if (draft->states.at[i].past == value || draft->states.at[i].present == value)
            return true;
    return false;
}

// Reports everything that makes an EPContext model impossible.
tsr_status tsr__context_check(struct draft *draft)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < draft->states.n; i++)
        if (!has_rank(draft, draft->states.at[i].past) ||
            !has_rank(draft, draft->states.at[i].present))
            st = refuse_context_model(draft, draft->states.at[i].past,
                                      "keeps states of known rank only");
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (!is_tensor(tsr_graph_input(graph, i)))
            st = refuse_context_model(draft, tsr_graph_input(graph, i), "takes tensors only");
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        if (!is_tensor(tsr_graph_output(graph, i)))
            st = refuse_context_model(draft, tsr_graph_output(graph, i), "returns tensors only");
    return st;
}

static tsr_status copy_type(const struct draft *draft, const tsr_value *value, tsr_value *to)
{
    int rank = tsr_value_rank(value);
    if (is_state(draft, value))
        return tsr_value_set_type(to, tsr_value_dtype(value), -1, NULL);
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, dims_capacity(rank));
    if (!dims)
        return TSR_NOMEM;
    for (int axis = 0; axis < rank; axis++)
        dims[axis] = tsr_value_dim(value, axis);
    return tsr_value_set_type(to, tsr_value_dtype(value), rank, dims);
}

// Adds the inputs of the model that have no default value to the graph `to`. Returns them, or NULL
// if out of memory.
static tsr_value **make_inputs(struct draft *draft, tsr_graph *to, size_t *count)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    tsr_value **inputs = ARENA_ARRAY(draft->arena, tsr_value *, tsr_graph_input_count(graph) + 1);
    *count = 0;
    for (size_t i = 0; inputs && i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (tsr_value_initializer(value))
            continue; // has a default value, which the ranks have too
        tsr_value *input = tsr_graph_add_input(to, tsr_value_name(value));
        if (!input || copy_type(draft, value, input) != TSR_OK)
            return NULL;
        inputs[(*count)++] = input;
    }
    return inputs;
}

static tsr_value *value_named(tsr_value *const *values, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(tsr_value_name(values[i]), name) == 0)
            return values[i];
    return NULL;
}

static tsr_status set_attributes(const struct draft *draft, tsr_node *node)
{
    TRY(tsr_node_set_int(node, "main_context", 1));
    TRY(tsr_node_set_int(node, "embed_mode", 0));
    TRY(tsr_node_set_string(node, "ep_cache_context", MANIFEST_NAME));
    TRY(tsr_node_set_string(node, "source", CONTEXT_SOURCE));
    TRY(tsr_node_set_string(node, "partition_name", CONTEXT_NODE));
    TRY(tsr_node_set_string(node, "ep_sdk_version", tsr_version()));
    if (draft->processes)
        TRY(tsr_node_set_string(node, "notes", CONTEXT_PROCESSES));
    return TSR_OK;
}

// Returns the names of the outputs of the EPContext node: the model's outputs, each once, without
// those that are inputs of the model. Returns NULL if out of memory.
static const char **output_names(struct draft *draft, tsr_value *const *inputs, size_t n_inputs,
                                 size_t *count)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    const char **names = ARENA_ARRAY(draft->arena, const char *, tsr_graph_output_count(graph) + 1);
    *count = 0;
    for (size_t i = 0; names && i < tsr_graph_output_count(graph); i++) {
        const char *name = tsr_value_name(tsr_graph_output(graph, i));
        bool known = value_named(inputs, n_inputs, name) != NULL;
        for (size_t k = 0; k < *count && !known; k++)
            known = strcmp(names[k], name) == 0;
        if (!known)
            names[(*count)++] = name;
    }
    return names;
}

// Makes the node's outputs, or inputs that the model returns unchanged, outputs of the graph `to`.
// Sets their types, without which ONNX Runtime does not load the model.
static tsr_status add_outputs(struct draft *draft, tsr_graph *to, const tsr_node *node,
                              tsr_value *const *inputs, size_t n_inputs)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++) {
        const tsr_value *value = tsr_graph_output(graph, i);
        tsr_value *made = value_named(inputs, n_inputs, tsr_value_name(value));
        for (size_t k = 0; !made && k < tsr_node_output_count(node); k++)
            if (strcmp(tsr_value_name(tsr_node_output(node, k)), tsr_value_name(value)) == 0)
                made = tsr_node_output(node, k);
        TRY(copy_type(draft, value, made));
        TRY(tsr_graph_add_output(to, made));
    }
    return TSR_OK;
}

static tsr_status make_node(struct draft *draft, tsr_graph *to)
{
    size_t n_inputs, n_outputs;
    tsr_value **inputs = make_inputs(draft, to, &n_inputs);
    if (!inputs)
        return TSR_NOMEM;
    const char **names = output_names(draft, inputs, n_inputs, &n_outputs);
    if (!names)
        return TSR_NOMEM;
    tsr_node *node = tsr_graph_add_node(to, CONTEXT_DOMAIN, CONTEXT_OP, CONTEXT_NODE, inputs,
                                        n_inputs, names, n_outputs);
    if (!node)
        return TSR_NOMEM;
    TRY(set_attributes(draft, node));
    return add_outputs(draft, to, node, inputs, n_inputs);
}

tsr_status tsr__context_model(struct draft *draft, tsr_model **out)
{
    tsr_model *model = NULL;
    TRY(tsr_model_new(draft->session, "context", 8, &model));
    tsr_status st = tsr_model_set_opset(model, "", draft->opset);
    if (st == TSR_OK)
        st = tsr_model_set_opset(model, CONTEXT_DOMAIN, 1);
    if (st == TSR_OK)
        st = make_node(draft, tsr_model_graph(model));
    if (st == TSR_OK)
        *out = model;
    else
        tsr_model_free(model);
    return st;
}
