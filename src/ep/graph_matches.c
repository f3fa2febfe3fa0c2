// SPDX-License-Identifier: Apache-2.0
// graph_matches.c - compares an OrtGraph with the model file that its session was created from.
//
// ONNX Runtime has optimized the graph: nodes and constants differ from the file. Inputs, outputs
// and the initializers that are left keep their names. An application can replace only weights
// that are external data (AddExternalInitializers); then the graph has no external record of them.
// So the weights inside of the file need no comparison, which would read the whole file.
//
//     in the file                 in the graph                    result
//     W in w.data at 4096         W in w.data at 4096             equal
//     W in w.data at 4096         W in memory                     equal if the bytes are equal
//     W in w.data at 4096         missing: folded or replaced     unknown, counts as different
//     B in model.onnx             B in memory, or folded          equal, cannot be replaced
//     nothing                     F in memory: folded             equal
#include "ep/graph.h"

#include "ir/ir.h"

struct comparison {
    struct graph_reader reader;
    const tsr_model *model;
    const tsr_graph *main;
    struct map initializers; // names of the initializers in the OrtGraph
};

// True if types and shapes agree. An unknown rank or size agrees with any. The graph may have a
// number where the file has a symbol, because the application set that size.
static bool has_shape(const tsr_value *value, const struct graph_shape *shape)
{
    int rank = tsr_value_rank(value);
    if (tsr_value_dtype(value) != shape->dtype)
        return false;
    if (rank < 0 || !shape->has_rank)
        return true;
    if ((size_t)rank != shape->rank)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        int64_t size = tsr_value_dim(value, axis).value;
        if (size >= 0 && shape->dims[axis] >= 0 && size != shape->dims[axis])
            return false;
    }
    return true;
}

// Compares one input or output. Types other than tensors are compared by their name only.
static OrtStatus *compare_port(const struct comparison *with, const OrtValueInfo *port,
                               bool is_input, bool *equal)
{
    const OrtApi *api = with->reader.api;
    const OrtTypeInfo *type = NULL;
    const char *name = NULL;
    struct graph_shape shape = {0};
    int kind = 0;
    TRY(api->GetValueInfoName(port, &name));
    TRY(api->GetValueInfoTypeInfo(port, &type));
    const tsr_value *value = tsr_graph_value(with->main, name);
    *equal = value && (is_input ? tsr_value_is_input(value) : tsr_value_is_output(value));
    if (!*equal || !type)
        return NULL;
    TRY(api->GetOnnxTypeFromTypeInfo(type, &kind));
    if (kind != ORT_TENSOR)
        return NULL;
    TRY(tsr__ep_type_shape(&with->reader, type, &shape));
    *equal = tsr_value_dtype(value) == TSR_UNDEFINED || has_shape(value, &shape);
    return NULL;
}

// Compares all inputs or outputs. Models before IR version 4 list constants as inputs; those are
// compared as initializers.
static OrtStatus *compare_ports(const struct comparison *with, const struct graph_values *ports,
                                bool is_input, bool *equal)
{
    for (size_t i = 0; i < ports->n && *equal; i++) {
        bool is_constant = false;
        if (is_input)
            TRY(with->reader.api->ValueInfo_IsConstantInitializer(ports->at[i], &is_constant));
        if (!is_constant)
            TRY(compare_port(with, ports->at[i], is_input, equal));
    }
    return NULL;
}

static bool equal_tensors(const tsr_tensor *tensor, const struct graph_tensor *seen)
{
    const void *bytes = NULL;
    size_t n = 0;
    if (tsr_tensor_dtype(tensor) != seen->shape.dtype ||
        (size_t)tsr_tensor_rank(tensor) != seen->shape.rank)
        return false;
    for (size_t i = 0; i < seen->shape.rank; i++)
        if (tsr_tensor_dims(tensor)[i] != seen->shape.dims[i])
            return false;
    return tsr_tensor_data(tensor, &bytes, &n) == TSR_OK &&
           str_eq(str_bytes(bytes, n), seen->bytes);
}

// Compares one initializer with the file. Lengths of external data need no comparison: they follow
// from type and shape.
static OrtStatus *compare_initializer(const struct comparison *with, const OrtValueInfo *value,
                                      const char *name, bool *equal)
{
    const OrtApi *api = with->reader.api;
    const tsr_value *in_file = tsr_graph_value(with->main, name);
    const tsr_tensor *tensor = in_file ? tsr_value_initializer(in_file) : NULL;
    struct graph_external external;
    struct graph_tensor seen;
    const OrtValue *constant = NULL;
    struct str location;
    uint64_t offset;
    TRY(tsr__ep_value_external(&with->reader, value, &external));
    *equal = tensor || !external.exists;
    if (!tensor)
        return NULL;
    if (external.exists) {
        *equal = tsr__tensor_external(tensor, &location, &offset) && offset == external.offset &&
                 str_eq(location, external.location);
        return NULL;
    }
    if (!tsr_tensor_is_external(tensor))
        return NULL;
    TRY(api->ValueInfo_GetInitializerValue(value, &constant));
    if (!constant)
        return tsr__ep_refuse(&with->reader, "initializer '%s' has no value", name);
    TRY(tsr__ep_tensor_read(&with->reader, constant, &seen));
    *equal = equal_tensors(tensor, &seen);
    return NULL;
}

static OrtStatus *compare_initializers(struct comparison *with, const OrtGraph *graph, bool *equal)
{
    struct graph_values values;
    TRY(tsr__ep_graph_initializers(&with->reader, graph, &values));
    for (size_t i = 0; i < values.n && *equal; i++) {
        const char *name = NULL;
        TRY(with->reader.api->GetValueInfoName(values.at[i], &name));
        void **slot = tsr__map_at(&with->initializers, str_of(name));
        if (!slot)
            return tsr__ep_no_memory(&with->reader);
        *slot = with;
        TRY(compare_initializer(with, values.at[i], name, equal));
    }
    return NULL;
}

// True if a node of the file reads external data that the graph no longer has. Returns false for an
// annotated model: its annotations exist only in the file, so the file is used nevertheless.
static bool lacks_weight(const struct comparison *with)
{
    if (tsr_model_config_count(with->model) > 0)
        return false;
    for (size_t i = 0; i < tsr_graph_initializer_count(with->main); i++) {
        const tsr_value *value = tsr_graph_initializer(with->main, i);
        if (tsr_value_use_count(value) > 0 &&
            tsr_tensor_is_external(tsr_value_initializer(value)) &&
            !tsr__map_get(&with->initializers, tsr__value_str(value)))
            return true;
    }
    return false;
}

static OrtStatus *compare(struct comparison *with, const OrtGraph *graph, bool *equal)
{
    struct graph_values inputs, outputs;
    TRY(tsr__ep_graph_inputs(&with->reader, graph, &inputs));
    TRY(tsr__ep_graph_outputs(&with->reader, graph, &outputs));
    *equal = true;
    TRY(compare_ports(with, &inputs, true, equal));
    TRY(compare_ports(with, &outputs, false, equal));
    if (*equal)
        TRY(compare_initializers(with, graph, equal));
    if (*equal)
        *equal = !lacks_weight(with);
    return NULL;
}

// Compares the graph with the model. A constant of the model that cannot be read counts as
// different, without diagnostics.
tsr_status tsr__ep_graph_matches(tsr_session *session, const struct ep_api *api,
                                 const OrtGraph *graph, const tsr_model *model, bool *matches)
{
    struct diag_mark mark = tsr__diag_mark(session);
    struct arena arena = {.session = session};
    struct comparison with = {
        .reader = {api->ort, &arena}, .model = model, .main = tsr_model_graph(model)};
    tsr__map_init(&with.initializers, &arena, 0);
    OrtStatus *status = compare(&with, graph, matches);
    tsr__diag_back(session, &mark, false);
    tsr_status st = tsr__ep_report(session, api, status);
    tsr__arena_free(&arena);
    return st;
}
