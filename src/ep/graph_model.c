// SPDX-License-Identifier: Apache-2.0
// graph_model.c - writes an OrtGraph as a model: model.onnx and a file with its large constants.
//
// The application has the model only in memory, or replaced some of its weights. ONNX Runtime has
// optimized the graph already: Constant nodes are initializers, and constants are folded. Types and
// shapes of inner values are written too, because fusions of the ranks' sessions need them.
//
//     Example: weight W of 1 GB is external data of the application's model, B of 8 KB was folded,
//     S is a scalar. W is written as a reference to the application's file, B goes to the data file
//     of this model, S into model.onnx. Only model.onnx is in memory while it is written.
//
// Initializers, attributes and subgraphs are sorted by name: ONNX Runtime keeps them in hash
// tables, and the same model must give the same bytes.
#include "ep/graph.h"

#include "ir/ir.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MODEL_NAME   "model.onnx"
#define DATA_NAME    "tessera-constants.data"
#define DATA_ALIGN   64
#define INLINE_BYTES 1024 // smaller constants are stored in model.onnx
#define IR_VERSION   4    // first version in which constants need not be inputs

struct model_writer {
    struct graph_reader reader; // must be the first field
    tsr_session *session;
    struct rope rope;
    const OrtGraph *graph;        // the main graph
    const char *folder;           // folder of model.onnx
    struct folder application;    // folder of the application's model; fd 0: none
    const char *application_path; // path of the application's model; NULL: none
    struct outfile data;          // opened for the first large constant
    bool has_data, refers;        // refers: some constant refers to a file of the application
    struct map domains;           // operator domains of the nodes
};

// ---- types -------------------------------------------------------------------------------------

static void write_tensor_type(struct rope *rope, const struct graph_shape *shape)
{
    size_t tensor = tsr__rope_begin(rope, F_TYPE_TENSOR_TYPE);
    tsr__rope_int(rope, F_TYPE_TENSOR_ELEM_TYPE, shape->dtype);
    size_t mark = shape->has_rank ? tsr__rope_begin(rope, F_TYPE_TENSOR_SHAPE) : 0;
    for (size_t i = 0; shape->has_rank && i < shape->rank; i++) {
        size_t dim = tsr__rope_begin(rope, F_SHAPE_DIM);
        if (shape->dims[i] >= 0)
            tsr__rope_int(rope, F_DIMENSION_DIM_VALUE, shape->dims[i]);
        else if (shape->symbols[i] && shape->symbols[i][0])
            tsr__rope_bytes(rope, F_DIMENSION_DIM_PARAM, str_of(shape->symbols[i]));
        tsr__rope_end(rope, dim);
    }
    if (shape->has_rank)
        tsr__rope_end(rope, mark);
    tsr__rope_end(rope, tensor);
}

static OrtStatus *write_type(struct model_writer *writer, const OrtTypeInfo *type);

// Writes the element type of a sequence or optional, then releases it.
static OrtStatus *write_element_type(struct model_writer *writer, uint32_t outer, uint32_t inner,
                                     OrtTypeInfo *element)
{
    size_t mark = tsr__rope_begin(&writer->rope, outer);
    size_t type = tsr__rope_begin(&writer->rope, inner);
    OrtStatus *status = write_type(writer, element);
    tsr__rope_end(&writer->rope, type);
    tsr__rope_end(&writer->rope, mark);
    writer->reader.api->ReleaseTypeInfo(element);
    return status;
}

// Writes a type. The recursion is bounded, because ONNX Runtime limits the nesting of types when it
// reads a model.
static OrtStatus *write_type(struct model_writer *writer, const OrtTypeInfo *type)
{
    const OrtApi *api = writer->reader.api;
    const OrtSequenceTypeInfo *sequence = NULL;
    const OrtOptionalTypeInfo *optional = NULL;
    OrtTypeInfo *element = NULL;
    struct graph_shape shape = {0};
    int kind = 0;
    TRY(api->GetOnnxTypeFromTypeInfo(type, &kind));
    switch (kind) {
    case ORT_TENSOR:
        TRY(tsr__ep_type_shape(&writer->reader, type, &shape));
        write_tensor_type(&writer->rope, &shape);
        return NULL;
    case ORT_SEQUENCE:
        TRY(api->CastTypeInfoToSequenceTypeInfo(type, &sequence));
        TRY(api->GetSequenceElementType(sequence, &element));
        return write_element_type(writer, F_TYPE_SEQUENCE_TYPE, F_TYPE_SEQUENCE_ELEM_TYPE, element);
    case ORT_OPTIONAL:
        TRY(api->CastTypeInfoToOptionalTypeInfo(type, &optional));
        TRY(api->GetOptionalContainedTypeInfo(optional, &element));
        return write_element_type(writer, F_TYPE_OPTIONAL_TYPE, F_TYPE_OPTIONAL_ELEM_TYPE, element);
    default:
        return tsr__ep_refuse(&writer->reader, "a value is a map or has another unsupported type");
    }
}

static OrtStatus *write_value(struct model_writer *writer, uint32_t field,
                              const OrtValueInfo *value)
{
    const OrtApi *api = writer->reader.api;
    const OrtTypeInfo *type = NULL;
    const char *name = NULL;
    OrtStatus *status = NULL;
    TRY(api->GetValueInfoName(value, &name));
    TRY(api->GetValueInfoTypeInfo(value, &type));
    size_t mark = tsr__rope_begin(&writer->rope, field);
    tsr__rope_bytes(&writer->rope, F_VALUE_INFO_NAME, str_of(name));
    if (type) {
        size_t type_mark = tsr__rope_begin(&writer->rope, F_VALUE_INFO_TYPE);
        status = write_type(writer, type);
        tsr__rope_end(&writer->rope, type_mark);
    }
    tsr__rope_end(&writer->rope, mark);
    return status;
}

// ---- constants ---------------------------------------------------------------------------------

static void write_pair(struct rope *rope, const char *key, struct str value)
{
    size_t mark = tsr__rope_begin(rope, F_TENSOR_EXTERNAL_DATA);
    tsr__rope_bytes(rope, F_STRING_PAIR_KEY, str_of(key));
    tsr__rope_bytes(rope, F_STRING_PAIR_VALUE, value);
    tsr__rope_end(rope, mark);
}

static void write_external(struct model_writer *writer, struct str location, uint64_t offset,
                           uint64_t length)
{
    struct rope *rope = &writer->rope;
    write_pair(rope, "location", location);
    write_pair(rope, "offset",
               tsr__arena_printf(writer->reader.arena, "%llu", (unsigned long long)offset));
    if (length)
        write_pair(rope, "length",
                   tsr__arena_printf(writer->reader.arena, "%llu", (unsigned long long)length));
    tsr__rope_int(rope, F_TENSOR_DATA_LOCATION, 1);
}

// Appends the bytes to the data file.
static OrtStatus *write_data(struct model_writer *writer, struct str bytes)
{
    static const char zeros[DATA_ALIGN];
    if (!writer->has_data) {
        struct str path = tsr__arena_printf(writer->reader.arena, "%s/" DATA_NAME, writer->folder);
        if (!path.p)
            return tsr__ep_no_memory(&writer->reader);
        if (tsr__out_open(writer->session, path.p, &writer->data) != TSR_OK)
            return tsr__ep_refuse(&writer->reader, "cannot write constants to '%s'", path.p);
        writer->has_data = true;
    }
    size_t over = writer->data.offset % DATA_ALIGN;
    if (over)
        tsr__out_write(&writer->data, zeros, DATA_ALIGN - over);
    write_external(writer, STR(DATA_NAME), writer->data.offset, bytes.n);
    tsr__out_write(&writer->data, bytes.p, bytes.n);
    return NULL;
}

static void write_tensor_head(struct rope *rope, const struct graph_shape *shape, const char *name)
{
    tsr__rope_ints(rope, F_TENSOR_DIMS, shape->dims, shape->rank);
    tsr__rope_int(rope, F_TENSOR_DATA_TYPE, shape->dtype);
    if (name)
        tsr__rope_bytes(rope, F_TENSOR_NAME, str_of(name));
}

// Writes a constant; name NULL: the tensor of an attribute. Large constants go to the data file.
// The bytes of others are copied, because ONNX Runtime releases them before the model is written.
static OrtStatus *write_tensor(struct model_writer *writer, uint32_t field, const char *name,
                               const OrtValue *value)
{
    struct rope *rope = &writer->rope;
    struct graph_tensor tensor;
    OrtStatus *status = NULL;
    TRY(tsr__ep_tensor_read(&writer->reader, value, &tensor));
    size_t mark = tsr__rope_begin(rope, field);
    write_tensor_head(rope, &tensor.shape, name);
    if (tensor.texts) {
        for (size_t i = 0; i < tensor.elements; i++)
            tsr__rope_bytes(rope, F_TENSOR_STRING_DATA, tensor.texts[i]);
    } else if (name && tensor.bytes.n >= INLINE_BYTES) {
        status = write_data(writer, tensor.bytes);
    } else {
        tsr__rope_bytes(rope, F_TENSOR_RAW_DATA,
                        tsr__arena_str(writer->reader.arena, tensor.bytes));
    }
    tsr__rope_end(rope, mark);
    return status;
}

// True if the written model can refer to the application's data file.
static bool is_reachable(struct model_writer *writer, const struct graph_external *external)
{
    struct diag_mark mark = tsr__diag_mark(writer->session);
    struct wire_external range = {.location = external->location,
                                  .offset = external->offset,
                                  .length = external->length,
                                  .has_length = external->length != 0};
    uint64_t length = 0;
    int fd = -1;
    if (writer->application.fd <= 0 || str_is(external->location, DATA_NAME))
        return false;
    if (tsr__external_open(writer->session, &writer->application, &range, NULL, &fd, &length) !=
        TSR_OK) {
        tsr__diag_back(writer->session, &mark, false);
        return false;
    }
    close(fd);
    return true;
}

static OrtStatus *write_reference(struct model_writer *writer, const char *name,
                                  const OrtValueInfo *value, const struct graph_external *external)
{
    const OrtTypeInfo *type = NULL;
    struct graph_shape shape = {0};
    TRY(writer->reader.api->GetValueInfoTypeInfo(value, &type));
    TRY(tsr__ep_type_shape(&writer->reader, type, &shape));
    size_t mark = tsr__rope_begin(&writer->rope, F_GRAPH_INITIALIZER);
    write_tensor_head(&writer->rope, &shape, name);
    write_external(writer, external->location, external->offset, external->length);
    tsr__rope_end(&writer->rope, mark);
    writer->refers = true;
    return NULL;
}

static OrtStatus *write_initializer(struct model_writer *writer, const OrtValueInfo *value)
{
    const OrtApi *api = writer->reader.api;
    struct graph_external external;
    const OrtValue *constant = NULL;
    const char *name = NULL;
    TRY(api->GetValueInfoName(value, &name));
    TRY(tsr__ep_value_external(&writer->reader, value, &external));
    if (external.exists && is_reachable(writer, &external))
        return write_reference(writer, name, value, &external);
    TRY(api->ValueInfo_GetInitializerValue(value, &constant));
    if (!constant)
        return tsr__ep_refuse(&writer->reader, "initializer '%s' has no value", name);
    return write_tensor(writer, F_GRAPH_INITIALIZER, name, constant);
}

// ---- attributes --------------------------------------------------------------------------------

static OrtStatus *write_graph(struct model_writer *writer, const OrtGraph *graph, int depth);

// An attribute or a subgraph of a node.
struct attribute {
    const char *name;
    const OrtOpAttr *attr;
    const OrtGraph *graph; // a subgraph; NULL: this is the attribute `attr`
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct attribute *)a)->name, ((const struct attribute *)b)->name);
}

// Reads the bytes of an attribute. The first call of ReadOpAttr fails and reports the size.
static OrtStatus *read_attribute(struct model_writer *writer, const OrtOpAttr *attr, int type,
                                 struct str *out)
{
    const OrtApi *api = writer->reader.api;
    size_t bytes = 0;
    OrtStatus *too_small = api->ReadOpAttr(attr, type, &(int64_t){0}, 0, &bytes);
    if (too_small)
        api->ReleaseStatus(too_small);
    void *data = arena_get(writer->reader.arena, bytes + 1, _Alignof(int64_t));
    if (!data)
        return tsr__ep_no_memory(&writer->reader);
    *out = str_bytes(data, bytes);
    return bytes ? api->ReadOpAttr(attr, type, data, bytes, &bytes) : NULL;
}

// Writes strings that are stored one after the other, each with a terminating NUL.
static void write_strings(struct rope *rope, struct str data)
{
    for (size_t at = 0; at < data.n;) {
        struct str text = str_of(data.p + at);
        tsr__rope_bytes(rope, F_ATTRIBUTE_STRINGS, text);
        at += text.n + 1;
    }
}

// Writes the value of an attribute. The bytes of a list are aligned for its elements.
static void write_attribute_data(struct rope *rope, int type, struct str data)
{
    const int64_t *integers = (const void *)data.p;
    const float *floats = (const void *)data.p;
    switch (type) {
    case ORT_ATTR_INT:
        tsr__rope_int(rope, F_ATTRIBUTE_I, integers[0]);
        break;
    case ORT_ATTR_FLOAT:
        tsr__rope_float(rope, F_ATTRIBUTE_F, floats[0]);
        break;
    case ORT_ATTR_STRING:
        tsr__rope_bytes(rope, F_ATTRIBUTE_S, data);
        break;
    case ORT_ATTR_INTS:
        tsr__rope_ints(rope, F_ATTRIBUTE_INTS, integers, data.n / sizeof *integers);
        break;
    case ORT_ATTR_FLOATS:
        for (size_t i = 0; i < data.n / sizeof *floats; i++)
            tsr__rope_float(rope, F_ATTRIBUTE_FLOATS, floats[i]);
        break;
    default:
        write_strings(rope, data);
        break;
    }
}

// Indexed by ONNX Runtime's attribute types, whose numbers differ from those of ONNX.
static const tsr_attr_kind kinds[] = {
    [ORT_ATTR_INT] = TSR_ATTR_INT,         [ORT_ATTR_INTS] = TSR_ATTR_INTS,
    [ORT_ATTR_FLOAT] = TSR_ATTR_FLOAT,     [ORT_ATTR_FLOATS] = TSR_ATTR_FLOATS,
    [ORT_ATTR_STRING] = TSR_ATTR_STRING,   [ORT_ATTR_STRINGS] = TSR_ATTR_STRINGS,
    [ORT_ATTR_GRAPH] = TSR_ATTR_UNDEFINED, [ORT_ATTR_TENSOR] = TSR_ATTR_TENSOR,
};

// Writes an attribute of known type. A tensor is released after its bytes were copied.
static OrtStatus *write_attribute_value(struct model_writer *writer, const OrtOpAttr *attr,
                                        int type)
{
    const OrtApi *api = writer->reader.api;
    struct str data = {0};
    OrtValue *tensor = NULL;
    if (type != ORT_ATTR_TENSOR) {
        TRY(read_attribute(writer, attr, type, &data));
        write_attribute_data(&writer->rope, type, data);
        return NULL;
    }
    TRY(api->OpAttr_GetTensorAttributeAsOrtValue(attr, &tensor));
    OrtStatus *status = write_tensor(writer, F_ATTRIBUTE_T, NULL, tensor);
    api->ReleaseValue(tensor);
    return status;
}

static OrtStatus *write_attribute(struct model_writer *writer, const struct attribute *attribute,
                                  int depth)
{
    struct rope *rope = &writer->rope;
    int type = ORT_ATTR_GRAPH;
    tsr_attr_kind kind = TSR_ATTR_GRAPH;
    OrtStatus *status = NULL;
    if (!attribute->graph) {
        OrtStatus *unknown = writer->reader.api->OpAttr_GetType(attribute->attr, &type);
        if (unknown) {
            writer->reader.api->ReleaseStatus(unknown);
            return tsr__ep_refuse(&writer->reader, "the attribute %s cannot be read",
                                  attribute->name);
        }
        kind = type > 0 && type < (int)TSR_COUNT(kinds) ? kinds[type] : TSR_ATTR_UNDEFINED;
        if (kind == TSR_ATTR_UNDEFINED) // undefined, or a graph, which is in the list of subgraphs
            return NULL;
    }
    size_t mark = tsr__rope_begin(rope, F_NODE_ATTRIBUTE);
    tsr__rope_bytes(rope, F_ATTRIBUTE_NAME, str_of(attribute->name));
    if (attribute->graph) {
        size_t graph = tsr__rope_begin(rope, F_ATTRIBUTE_G);
        status = write_graph(writer, attribute->graph, depth + 1);
        tsr__rope_end(rope, graph);
    } else {
        status = write_attribute_value(writer, attribute->attr, type);
    }
    tsr__rope_int(rope, F_ATTRIBUTE_TYPE, kind);
    tsr__rope_end(rope, mark);
    return status;
}

static OrtStatus *write_attributes(struct model_writer *writer, const OrtNode *node, int depth)
{
    const OrtApi *api = writer->reader.api;
    struct arena *arena = writer->reader.arena;
    size_t n = 0, n_graphs = 0;
    TRY(api->Node_GetNumAttributes(node, &n));
    TRY(api->Node_GetNumSubgraphs(node, &n_graphs));
    if (n + n_graphs == 0)
        return NULL;
    const OrtOpAttr **attrs = ARENA_ARRAY(arena, const OrtOpAttr *, n + 1);
    const OrtGraph **graphs = ARENA_ARRAY(arena, const OrtGraph *, n_graphs + 1);
    const char **names = ARENA_ARRAY(arena, const char *, n_graphs + 1);
    struct attribute *all = ARENA_ARRAY(arena, struct attribute, n + n_graphs);
    if (!attrs || !graphs || !names || !all)
        return tsr__ep_no_memory(&writer->reader);
    TRY(api->Node_GetAttributes(node, attrs, n));
    if (n_graphs)
        TRY(api->Node_GetSubgraphs(node, graphs, n_graphs, names));
    for (size_t i = 0; i < n; i++) {
        all[i].attr = attrs[i];
        TRY(api->OpAttr_GetName(attrs[i], &all[i].name));
    }
    for (size_t i = 0; i < n_graphs; i++)
        all[n + i] = (struct attribute){.name = names[i], .graph = graphs[i]};
    qsort(all, n + n_graphs, sizeof *all, by_name);
    for (size_t i = 0; i < n + n_graphs; i++)
        TRY(write_attribute(writer, &all[i], depth));
    return NULL;
}

// ---- nodes and graphs --------------------------------------------------------------------------

// Writes names of values; an absent value has an empty name.
static OrtStatus *write_names(struct model_writer *writer, uint32_t field,
                              const struct graph_values *values)
{
    for (size_t i = 0; i < values->n; i++) {
        const char *name = "";
        if (values->at[i])
            TRY(writer->reader.api->GetValueInfoName(values->at[i], &name));
        tsr__rope_bytes(&writer->rope, field, str_of(name));
    }
    return NULL;
}

// Writes operator and domain, and records the domain for the list of operator sets.
static OrtStatus *write_operator(struct model_writer *writer, const OrtNode *node)
{
    const OrtApi *api = writer->reader.api;
    const char *name = NULL, *op = NULL, *domain = NULL;
    TRY(api->Node_GetName(node, &name));
    TRY(api->Node_GetOperatorType(node, &op));
    TRY(api->Node_GetDomain(node, &domain));
    tsr__rope_bytes(&writer->rope, F_NODE_NAME, str_of(name));
    tsr__rope_bytes(&writer->rope, F_NODE_OP_TYPE, str_of(op));
    tsr__rope_bytes(&writer->rope, F_NODE_DOMAIN, str_of(domain));
    void **used = tsr__map_at_copy(&writer->domains, str_of(domain));
    if (!used)
        return tsr__ep_no_memory(&writer->reader);
    *used = writer;
    return NULL;
}

static OrtStatus *write_node(struct model_writer *writer, const OrtNode *node, int depth)
{
    struct graph_values inputs, outputs;
    TRY(tsr__ep_node_inputs(&writer->reader, node, &inputs));
    TRY(tsr__ep_node_outputs(&writer->reader, node, &outputs));
    size_t mark = tsr__rope_begin(&writer->rope, F_GRAPH_NODE);
    TRY(write_names(writer, F_NODE_INPUT, &inputs));
    TRY(write_names(writer, F_NODE_OUTPUT, &outputs));
    TRY(write_operator(writer, node));
    TRY(write_attributes(writer, node, depth));
    tsr__rope_end(&writer->rope, mark);
    return NULL;
}

// Writes type and shape of an inner value if it is a tensor. Other types are inferred from the
// nodes.
static OrtStatus *write_inner_value(struct model_writer *writer, const OrtValueInfo *value)
{
    const OrtApi *api = writer->reader.api;
    const OrtTypeInfo *type = NULL;
    bool is_output = false;
    int kind = 0;
    TRY(api->ValueInfo_IsGraphOutput(value, &is_output));
    TRY(api->GetValueInfoTypeInfo(value, &type));
    if (is_output || !type)
        return NULL;
    TRY(api->GetOnnxTypeFromTypeInfo(type, &kind));
    return kind == ORT_TENSOR ? write_value(writer, F_GRAPH_VALUE_INFO, value) : NULL;
}

static OrtStatus *write_inner_values(struct model_writer *writer, const OrtNode *node)
{
    struct graph_values outputs;
    TRY(tsr__ep_node_outputs(&writer->reader, node, &outputs));
    for (size_t i = 0; i < outputs.n; i++)
        if (outputs.at[i])
            TRY(write_inner_value(writer, outputs.at[i]));
    return NULL;
}

// Writes the inputs of the graph. Before IR version 4, models list constants as inputs, too; these
// are left out. In later versions such an initializer is the default value of an input.
static OrtStatus *write_inputs(struct model_writer *writer, const OrtGraph *graph)
{
    struct graph_values inputs;
    TRY(tsr__ep_graph_inputs(&writer->reader, graph, &inputs));
    for (size_t i = 0; i < inputs.n; i++) {
        bool is_constant = false;
        TRY(writer->reader.api->ValueInfo_IsConstantInitializer(inputs.at[i], &is_constant));
        if (!is_constant)
            TRY(write_value(writer, F_GRAPH_INPUT, inputs.at[i]));
    }
    return NULL;
}

static OrtStatus *write_graph(struct model_writer *writer, const OrtGraph *graph, int depth)
{
    const struct graph_reader *reader = &writer->reader;
    struct graph_values initializers, outputs;
    struct graph_nodes nodes;
    const char *name = NULL;
    if (depth > GRAPH_DEPTH)
        return tsr__ep_refuse(reader, "subgraphs are nested more than %d times", GRAPH_DEPTH);
    TRY(tsr__ep_graph_nodes(reader, graph, &nodes));
    for (size_t i = 0; i < nodes.n; i++)
        TRY(write_node(writer, nodes.at[i], depth));
    TRY(reader->api->Graph_GetName(graph, &name));
    tsr__rope_bytes(&writer->rope, F_GRAPH_NAME, str_of(name[0] ? name : "graph"));
    TRY(tsr__ep_graph_initializers(reader, graph, &initializers));
    for (size_t i = 0; i < initializers.n; i++) {
        bool is_default = false;
        TRY(reader->api->ValueInfo_IsOptionalGraphInput(initializers.at[i], &is_default));
        if (!is_default || depth > 0)
            TRY(write_initializer(writer, initializers.at[i]));
    }
    TRY(write_inputs(writer, graph));
    TRY(tsr__ep_graph_outputs(reader, graph, &outputs));
    for (size_t i = 0; i < outputs.n; i++)
        TRY(write_value(writer, F_GRAPH_OUTPUT, outputs.at[i]));
    for (size_t i = 0; i < nodes.n; i++)
        TRY(write_inner_values(writer, nodes.at[i]));
    return NULL;
}

// ---- the model ---------------------------------------------------------------------------------

// Writes the operator sets of domains that the nodes use; ONNX Runtime also lists all others that
// it knows.
static OrtStatus *write_opsets(struct model_writer *writer)
{
    const OrtApi *api = writer->reader.api;
    size_t n = 0;
    TRY(api->Graph_GetNumOperatorSets(writer->graph, &n));
    const char **domains = ARENA_ARRAY(writer->reader.arena, const char *, n + 1);
    int64_t *versions = ARENA_ARRAY(writer->reader.arena, int64_t, n + 1);
    if (!domains || !versions)
        return tsr__ep_no_memory(&writer->reader);
    TRY(api->Graph_GetOperatorSets(writer->graph, domains, versions, n));
    for (size_t i = 0; i < n; i++) {
        if (domains[i][0] && !tsr__map_get(&writer->domains, str_of(domains[i])))
            continue;
        size_t mark = tsr__rope_begin(&writer->rope, F_MODEL_OPSET_IMPORT);
        tsr__rope_bytes(&writer->rope, F_OPSET_DOMAIN, str_of(domains[i]));
        tsr__rope_int(&writer->rope, F_OPSET_VERSION, versions[i]);
        tsr__rope_end(&writer->rope, mark);
    }
    return NULL;
}

static OrtStatus *write_model(struct model_writer *writer)
{
    int64_t version = 0;
    TRY(writer->reader.api->Graph_GetOnnxIRVersion(writer->graph, &version));
    tsr__rope_int(&writer->rope, F_MODEL_IR_VERSION, int64_max(version, IR_VERSION));
    size_t mark = tsr__rope_begin(&writer->rope, F_MODEL_GRAPH);
    TRY(write_graph(writer, writer->graph, 0));
    tsr__rope_end(&writer->rope, mark);
    return write_opsets(writer);
}

// Opens the folder of the application's model. A model from memory has no path, except with
// session.model_external_initializers_file_folder_path: then its path names a file in that folder,
// and the file does not exist.
static OrtStatus *find_application_folder(struct model_writer *writer)
{
    struct diag_mark mark = tsr__diag_mark(writer->session);
    const char *path = NULL;
    TRY(writer->reader.api->Graph_GetModelPath(writer->graph, &path));
    if (!path || !path[0])
        return NULL;
    if (tsr__folder_of_file(writer->session, path, &writer->application) != TSR_OK)
        tsr__diag_back(writer->session, &mark, false);
    else
        writer->application_path = path;
    return NULL;
}

// Writes model.onnx, and completes the data file if there is one. The functions of src/base report
// file errors.
static tsr_status save(struct model_writer *writer, const char *path)
{
    struct outfile out;
    TRY(arena_status(writer->reader.arena));
    if (writer->has_data)
        TRY(tsr__out_commit(&writer->data));
    TRY(tsr__out_open(writer->session, path, &out));
    tsr__rope_write(&writer->rope, &out, (struct str){NULL, 0}, -1);
    return tsr__out_commit(&out);
}

tsr_status tsr__ep_graph_load(tsr_session *session, const struct ep_api *api, const OrtGraph *graph,
                              const char *folder, tsr_model **out)
{
    struct arena arena = {.session = session};
    struct model_writer writer = {
        .reader = {api->ort, &arena}, .session = session, .graph = graph, .folder = folder};
    tsr_model *model = NULL;
    tsr__rope_init(&writer.rope, &arena);
    tsr__map_init(&writer.domains, &arena, 0);
    struct str path = tsr__arena_printf(&arena, "%s/" MODEL_NAME, folder);
    OrtStatus *status = find_application_folder(&writer);
    if (!status)
        status = write_model(&writer);
    tsr_status st = tsr__ep_report(session, api, status);
    if (st == TSR_OK)
        st = save(&writer, path.p);
    if (st == TSR_OK)
        st = tsr_model_load(session, path.p, &model);
    if (st == TSR_OK && writer.refers)
        st = tsr__model_add_data_folder(model, writer.application_path);
    if (st != TSR_OK)
        tsr_model_free(model);
    else
        *out = model;
    if (writer.has_data)
        tsr__out_abort(&writer.data);
    tsr__folder_close(&writer.application);
    tsr__arena_free(&arena);
    return st;
}
