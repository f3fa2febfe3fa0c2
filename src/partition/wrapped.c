// SPDX-License-Identifier: Apache-2.0
// wrapped.c - writes the model whose one node runs the partition beside it (--layout wrapped).
//
// It has the inputs and outputs of the whole model. Its node reads them behind a constant that lies in a small file of the
// folder, by which the operator (runtime/wrapped.c) finds the folder again when it was moved.
#include "internal.h"

static tsr_status refuse(struct plan *p, const tsr_value *v, const char *why)
{
    struct place at = PLACE_NONE;
    if (v)
        at.value = tsr__value_str(v);
    tsr__diag(p->session, DIAG_partition_layout, &at,
              "leave out --layout, and run the ranks with tessera run", "a wrapped partition %s",
              why);
    return TSR_UNSUPPORTED;
}

static bool is_tensor(const tsr_value *v)
{
    return tsr_value_dtype(v) != TSR_UNDEFINED;
}

tsr_status tsr__wrapped_check(struct plan *p)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    tsr_status st = TSR_OK;
    if (p->states.n)
        st = refuse(p, NULL, "keeps no states between runs yet");
    for (size_t i = 0; i < tsr_graph_input_count(g); i++)
        if (!is_tensor(tsr_graph_input(g, i)))
            st = refuse(p, tsr_graph_input(g, i), "takes tensors only");
    for (size_t i = 0; i < tsr_graph_output_count(g); i++)
        if (!is_tensor(tsr_graph_output(g, i)))
            st = refuse(p, tsr_graph_output(g, i), "gives tensors only");
    return st;
}

// The type of v, as declared or as it was found, for a value of another model.
static tsr_status copy_type(struct arena *a, const tsr_value *v, tsr_value *to)
{
    int rank = tsr_value_rank(v);
    tsr_dim *dims = ARENA_ARRAY(a, tsr_dim, (size_t)(rank < 0 ? 0 : rank) + 1);
    if (!dims)
        return TSR_NOMEM;
    for (int d = 0; d < rank; d++)
        dims[d] = tsr_value_dim(v, d);
    return tsr_value_set_type(to, tsr_value_dtype(v), rank, dims);
}

// The mark, then the inputs that a run is given: those of the node, made in the new graph. NULL: out of memory.
static tsr_value **make_inputs(struct plan *p, tsr_graph *to, size_t *count)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    int64_t length = sizeof p->fingerprint - 1;
    tsr_value **inputs = ARENA_ARRAY(p->arena, tsr_value *, tsr_graph_input_count(g) + 1);
    if (!inputs)
        return NULL;
    inputs[0] = tsr__graph_add_external(to, "ai.tessera.mark", TSR_UINT8, 1, &length, WRAPPED_MARK,
                                        0, (uint64_t)length);
    *count = 1;
    for (size_t i = 0; i < tsr_graph_input_count(g); i++) {
        const tsr_value *v = tsr_graph_input(g, i);
        if (tsr_value_initializer(v))
            continue; // a default: the ranks have it
        tsr_value *input = tsr_graph_add_input(to, tsr_value_name(v));
        if (!input || copy_type(p->arena, v, input) != TSR_OK)
            return NULL;
        inputs[(*count)++] = input;
    }
    return inputs[0] ? inputs : NULL;
}

static tsr_status make_node(struct plan *p, tsr_graph *to, const char *folder)
{
    const tsr_graph *g = tsr_model_graph(p->model);
    size_t n_inputs, n_outputs = tsr_graph_output_count(g);
    tsr_value **inputs = make_inputs(p, to, &n_inputs);
    const char **names = ARENA_ARRAY(p->arena, const char *, n_outputs + 1);
    if (!inputs || !names)
        return TSR_NOMEM;
    for (size_t i = 0; i < n_outputs; i++)
        names[i] = tsr_value_name(tsr_graph_output(g, i));
    tsr_node *n = tsr_graph_add_node(to, WRAPPED_DOMAIN, WRAPPED_OP, "partition", inputs, n_inputs,
                                     names, n_outputs);
    tsr_status st = n ? tsr_node_set_string(n, "folder", folder) : TSR_NOMEM;
    for (size_t i = 0; i < n_outputs; i++) {
        if (st != TSR_OK)
            return st;
        st = copy_type(p->arena, tsr_graph_output(g, i), tsr_node_output(n, i));
        if (st == TSR_OK)
            st = tsr_graph_add_output(to, tsr_node_output(n, i));
    }
    return st;
}

tsr_status tsr__wrapped_model(struct plan *p, const char *folder, tsr_model **out)
{
    tsr_model *m = NULL;
    tsr_status st = tsr_model_new(p->session, "wrapped", 8, &m);
    if (st == TSR_OK)
        st = tsr_model_set_opset(m, "", p->opset);
    if (st == TSR_OK)
        st = tsr_model_set_opset(m, WRAPPED_DOMAIN, 1);
    if (st == TSR_OK)
        st = make_node(p, tsr_model_graph(m), folder);
    if (st != TSR_OK) {
        tsr_model_free(m);
        return st;
    }
    *out = m;
    return TSR_OK;
}
