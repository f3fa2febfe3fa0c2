// SPDX-License-Identifier: Apache-2.0
// wrapped_model.c - creates a model with one node that runs the partition (--layout wrapped).
//
// It has the inputs and outputs of the unsharded model. The operator (runtime/wrapped.c) must find
// the folder, but no path is stored. So the first input of the node is a constant in a small file
// of the folder, and the operator uses the location of that file. States have no declared shape:
// first they are tensors, later handles.
#include "internal.h"

static tsr_status refuse(struct draft *draft, const tsr_value *value, const char *why)
{
    struct place at = PLACE_NONE;
    if (value)
        at.value = tsr__value_str(value);
    tsr__diag(draft->session, DIAG_partition_layout, &at,
              "leave out --layout, and run the ranks with tessera run", "a wrapped partition %s",
              why);
    return TSR_UNSUPPORTED;
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

// Reports all problems, not only the first.
tsr_status tsr__wrapped_check(struct draft *draft)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < draft->states.n; i++)
        if (!has_rank(draft, draft->states.at[i].past) ||
            !has_rank(draft, draft->states.at[i].present))
            st = refuse(draft, draft->states.at[i].past, "keeps states of a known rank only");
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        if (!is_tensor(tsr_graph_input(graph, i)))
            st = refuse(draft, tsr_graph_input(graph, i), "takes tensors only");
    for (size_t i = 0; i < tsr_graph_output_count(graph); i++)
        if (!is_tensor(tsr_graph_output(graph, i)))
            st = refuse(draft, tsr_graph_output(graph, i), "gives tensors only");
    return st;
}

static tsr_status copy_type(const struct draft *draft, const tsr_value *value, tsr_value *to)
{
    int rank = tsr_value_rank(value);
    tsr_dim *dims = ARENA_ARRAY(draft->arena, tsr_dim, dims_capacity(rank));
    if (is_state(draft, value))
        return tsr_value_set_type(to, tsr_value_dtype(value), -1, NULL);
    if (!dims)
        return TSR_NOMEM;
    for (int axis = 0; axis < rank; axis++)
        dims[axis] = tsr_value_dim(value, axis);
    return tsr_value_set_type(to, tsr_value_dtype(value), rank, dims);
}

// Returns the constant that marks the folder, then the inputs of a run. Returns NULL if out of
// memory.
static tsr_value **make_inputs(struct draft *draft, tsr_graph *to, size_t *count)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    int64_t length = sizeof draft->fingerprint - 1;
    tsr_value **inputs = ARENA_ARRAY(draft->arena, tsr_value *, tsr_graph_input_count(graph) + 1);
    if (!inputs)
        return NULL;
    inputs[0] = tsr__graph_add_external(to, "ai.tessera.mark", TSR_UINT8, 1, &length, WRAPPED_MARK,
                                        0, (uint64_t)length);
    *count = 1;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        if (tsr_value_initializer(value))
            continue; // has a default value, which the ranks have too
        tsr_value *input = tsr_graph_add_input(to, tsr_value_name(value));
        if (!input || copy_type(draft, value, input) != TSR_OK)
            return NULL;
        inputs[(*count)++] = input;
    }
    return inputs[0] ? inputs : NULL;
}

static tsr_value *input_named(tsr_value *const *inputs, size_t n_inputs, const char *name)
{
    for (size_t i = 1; i < n_inputs; i++)
        if (strcmp(tsr_value_name(inputs[i]), name) == 0)
            return inputs[i];
    return NULL;
}

// Returns the index of the first output that is the same value.
static size_t first_equal_output(const tsr_graph *graph, size_t i)
{
    size_t k = 0;
    while (tsr_graph_output(graph, k) != tsr_graph_output(graph, i))
        k++;
    return k;
}

// Adds an output of the node, or an input that the model returns unchanged. The node's output is
// typed in both cases, because ONNX Runtime does not load it otherwise.
static tsr_status add_output(struct draft *draft, tsr_graph *to, tsr_node *node, size_t i,
                             tsr_value *given)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    tsr_status st = copy_type(draft, tsr_graph_output(graph, i), tsr_node_output(node, i));
    if (st != TSR_OK)
        return st;
    if (!given)
        given = tsr_node_output(node, first_equal_output(graph, i));
    return tsr_graph_add_output(to, given);
}

// The operator fills outputs by index. So an output that is also an input, or a duplicate, gets a
// new name that nothing reads.
static tsr_status make_node(struct draft *draft, tsr_graph *to)
{
    const tsr_graph *graph = tsr_model_graph(draft->model);
    size_t n_inputs, n_outputs = tsr_graph_output_count(graph);
    tsr_value **inputs = make_inputs(draft, to, &n_inputs);
    const char **names = ARENA_ARRAY(draft->arena, const char *, n_outputs + 1);
    if (!inputs || !names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n_outputs; i++) {
        names[i] = tsr_value_name(tsr_graph_output(graph, i));
        if (first_equal_output(graph, i) < i || input_named(inputs, n_inputs, names[i]))
            names[i] = tsr__arena_printf(draft->arena, "ai.tessera.given.%zu", i).p;
    }
    tsr_node *node = tsr_graph_add_node(to, WRAPPED_DOMAIN, WRAPPED_OP, "partition", inputs,
                                        n_inputs, names, n_outputs);
    if (!node)
        return TSR_NOMEM;
    tsr_status st = draft->processes ? tsr_node_set_string(node, "transport", "shm") : TSR_OK;
    if (st != TSR_OK)
        return st;
    for (size_t i = 0; i < n_outputs; i++) {
        const char *name = tsr_value_name(tsr_graph_output(graph, i));
        st = add_output(draft, to, node, i, input_named(inputs, n_inputs, name));
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}

tsr_status tsr__wrapped_model(struct draft *draft, tsr_model **out)
{
    tsr_model *model = NULL;
    tsr_status st = tsr_model_new(draft->session, "wrapped", 8, &model);
    if (st != TSR_OK)
        return st;
    st = tsr_model_set_opset(model, "", draft->opset);
    if (st != TSR_OK)
        goto free_model;
    st = tsr_model_set_opset(model, WRAPPED_DOMAIN, 1);
    if (st != TSR_OK)
        goto free_model;
    st = make_node(draft, tsr_model_graph(model));
    if (st != TSR_OK)
        goto free_model;
    *out = model;
    return TSR_OK;
free_model:
    tsr_model_free(model);
    return st;
}
