// SPDX-License-Identifier: Apache-2.0
// graph_read.c - lists, types and constants of an OrtGraph.
#include "ep/graph.h"

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

OrtStatus *tsr__ep_no_memory(const struct graph_reader *reader)
{
    return reader->api->CreateStatus(ORT_FAIL, "out of memory");
}

OrtStatus *tsr__ep_refuse(const struct graph_reader *reader, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return reader->api->CreateStatus(ORT_FAIL, text);
}

// ---- lists -------------------------------------------------------------------------------------

// Defines a function that reads a list. The C API has two functions per list: one for the length,
// one for the elements.
#define LIST(name, owner, list, element, count, elements)                                          \
    OrtStatus *name(const struct graph_reader *reader, const owner *of, struct list *out)          \
    {                                                                                              \
        size_t n = 0;                                                                              \
        TRY(reader->api->count(of, &n));                                                           \
        const element **at = ARENA_ARRAY(reader->arena, const element *, n + 1);                   \
        if (!at)                                                                                   \
            return tsr__ep_no_memory(reader);                                                      \
        *out = (struct list){at, n};                                                               \
        return reader->api->elements(of, at, n);                                                   \
    }
LIST(tsr__ep_graph_inputs, OrtGraph, graph_values, OrtValueInfo, Graph_GetNumInputs,
     Graph_GetInputs)
LIST(tsr__ep_graph_outputs, OrtGraph, graph_values, OrtValueInfo, Graph_GetNumOutputs,
     Graph_GetOutputs)
LIST(tsr__ep_graph_nodes, OrtGraph, graph_nodes, OrtNode, Graph_GetNumNodes, Graph_GetNodes)
LIST(tsr__ep_node_inputs, OrtNode, graph_values, OrtValueInfo, Node_GetNumInputs, Node_GetInputs)
LIST(tsr__ep_node_outputs, OrtNode, graph_values, OrtValueInfo, Node_GetNumOutputs, Node_GetOutputs)
LIST(tsr__ep_node_implicit_inputs, OrtNode, graph_values, OrtValueInfo, Node_GetNumImplicitInputs,
     Node_GetImplicitInputs)
static LIST(unsorted_initializers, OrtGraph, graph_values, OrtValueInfo, Graph_GetNumInitializers,
            Graph_GetInitializers)

    struct named {
    const char *name;
    const OrtValueInfo *value;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

OrtStatus *tsr__ep_graph_initializers(const struct graph_reader *reader, const OrtGraph *graph,
                                      struct graph_values *out)
{
    TRY(unsorted_initializers(reader, graph, out));
    struct named *named = ARENA_ARRAY(reader->arena, struct named, out->n + 1);
    if (!named)
        return tsr__ep_no_memory(reader);
    for (size_t i = 0; i < out->n; i++) {
        named[i].value = out->at[i];
        TRY(reader->api->GetValueInfoName(out->at[i], &named[i].name));
    }
    qsort(named, out->n, sizeof *named, by_name);
    for (size_t i = 0; i < out->n; i++)
        out->at[i] = named[i].value;
    return NULL;
}

// ---- types -------------------------------------------------------------------------------------

static OrtStatus *read_shape(const struct graph_reader *reader,
                             const OrtTensorTypeAndShapeInfo *info, struct graph_shape *out)
{
    const OrtApi *api = reader->api;
    int type = 0;
    TRY(api->GetTensorElementType(info, &type));
    TRY(api->GetDimensionsCount(info, &out->rank));
    out->dtype = tsr__engine_dtype(type);
    out->has_rank = api->TensorTypeAndShape_HasShape(info);
    if (out->rank > GRAPH_MAX_RANK)
        return tsr__ep_refuse(reader, "a tensor has %zu dimensions; at most %d are supported",
                              out->rank, GRAPH_MAX_RANK);
    TRY(api->GetDimensions(info, out->dims, out->rank));
    return api->GetSymbolicDimensions(info, out->symbols, out->rank);
}

OrtStatus *tsr__ep_type_shape(const struct graph_reader *reader, const OrtTypeInfo *type,
                              struct graph_shape *out)
{
    const OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(reader->api->CastTypeInfoToTensorInfo(type, &info));
    if (!info)
        return tsr__ep_refuse(reader, "the type is not a tensor");
    return read_shape(reader, info, out);
}

// ---- constants ---------------------------------------------------------------------------------

static OrtStatus *read_texts(const struct graph_reader *reader, const OrtValue *value, size_t n,
                             const struct str **out)
{
    struct str *texts = ARENA_ARRAY(reader->arena, struct str, n + 1);
    for (size_t i = 0; texts && i < n; i++) {
        size_t bytes = 0;
        TRY(reader->api->GetStringTensorElementLength(value, i, &bytes));
        char *text = ARENA_ARRAY(reader->arena, char, bytes + 1);
        if (!text)
            return tsr__ep_no_memory(reader);
        TRY(reader->api->GetStringTensorElement(value, bytes, i, text));
        texts[i] = (struct str){text, bytes};
    }
    *out = texts;
    return texts ? NULL : tsr__ep_no_memory(reader);
}

OrtStatus *tsr__ep_tensor_read(const struct graph_reader *reader, const OrtValue *value,
                               struct graph_tensor *out)
{
    const OrtApi *api = reader->api;
    OrtTensorTypeAndShapeInfo *info = NULL;
    void *data = NULL;
    *out = (struct graph_tensor){.bytes = STR("")};
    TRY(api->GetTensorTypeAndShape(value, &info));
    OrtStatus *status = read_shape(reader, info, &out->shape);
    if (!status)
        status = api->GetTensorShapeElementCount(info, &out->elements);
    api->ReleaseTensorTypeAndShapeInfo(info);
    if (status)
        return status;
    if (out->shape.dtype == TSR_STRING)
        return read_texts(reader, value, out->elements, &out->texts);
    if (tsr_dtype_bits(out->shape.dtype) == 0)
        return tsr__ep_refuse(reader, "a constant has an element type that is not supported");
    TRY(api->GetTensorMutableData((OrtValue *)value, &data));
    size_t bytes = 0;
    TRY(api->GetTensorSizeInBytes(value, &bytes));
    if (bytes)
        out->bytes = str_bytes(data, bytes);
    return NULL;
}

OrtStatus *tsr__ep_value_external(const struct graph_reader *reader, const OrtValueInfo *value,
                                  struct graph_external *out)
{
    const OrtApi *api = reader->api;
    OrtExternalInitializerInfo *info = NULL;
    *out = (struct graph_external){0};
    TRY(api->ValueInfo_GetExternalInitializerInfo(value, &info));
    if (!info)
        return NULL;
    const char *location = api->ExternalInitializerInfo_GetFilePath(info);
    out->exists = true;
    out->location = tsr__arena_str(reader->arena, str_of(location));
    out->offset = (uint64_t)api->ExternalInitializerInfo_GetFileOffset(info);
    out->length = api->ExternalInitializerInfo_GetByteSize(info);
    api->ReleaseExternalInitializerInfo(info);
    return out->location.p ? NULL : tsr__ep_no_memory(reader);
}
