// SPDX-License-Identifier: Apache-2.0
// claim.c - decides whether the provider takes a graph: all of its nodes, or none.
//
// ONNX Runtime calls GetCapability for subgraphs first, then for the main graph. The provider takes
// a subgraph together with the node that contains it. So it checks only the main graph, including
// its subgraphs.
//
// A node of an unknown domain calls a function of the model, or is a custom operator of the
// application. The graph does not tell which, so the provider declines it. ONNX Runtime then
// inlines the functions, one level at a time, and calls GetCapability again. A custom operator
// stays.
#include "ep/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

// Operators of these domains exist in every build of ONNX Runtime.
static const char *const known_domains[] = {
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"};

static bool is_known_domain(const char *domain)
{
    for (size_t i = 0; i < TSR_COUNT(known_domains); i++)
        if (strcmp(domain, known_domains[i]) == 0)
            return true;
    return false;
}

// Declines nodes whose attributes are readable only in the model file, such as a TypeProto of
// Optional.
static OrtStatus *check_attributes(struct claim *claim, const OrtNode *node, const char *op)
{
    const OrtApi *ort = claim->api->ort;
    size_t n = 0;
    TRY(ort->Node_GetNumAttributes(node, &n));
    const OrtOpAttr **attributes = ARENA_ARRAY(claim->arena, const OrtOpAttr *, n + 1);
    if (!attributes)
        return ort->CreateStatus(ORT_FAIL, "out of memory");
    TRY(ort->Node_GetAttributes(node, attributes, n));
    for (size_t i = 0; i < n; i++) {
        const char *name = "";
        int type = 0;
        OrtStatus *failed = ort->OpAttr_GetType(attributes[i], &type);
        if (!failed)
            continue;
        ort->ReleaseStatus(failed);
        TRY(ort->OpAttr_GetName(attributes[i], &name));
        tsr__ep_decline(claim, "the attribute %s of %s cannot be read from ONNX Runtime", name, op);
    }
    return NULL;
}

static OrtStatus *check_operator(struct claim *claim, const OrtNode *node, int depth)
{
    const OrtApi *ort = claim->api->ort;
    const char *domain = "", *op = "", *provider = NULL;
    TRY(ort->Node_GetDomain(node, &domain));
    TRY(ort->Node_GetOperatorType(node, &op));
    TRY(ort->Node_GetEpName(node, &provider));
    if (provider && *provider && strcmp(provider, EP_NAME) != 0)
        tsr__ep_decline(claim, "the provider %s has taken a part of the model (operator %s)",
                        provider, op);
    if (!is_known_domain(domain)) {
        claim->has_unknown = true;
        tsr__ep_decline(claim, "%s:%s is a custom operator of the application", domain, op);
    } else if (depth == 0) {
        claim->known = node;
    }
    return claim->has_file ? NULL : check_attributes(claim, node, op);
}

static OrtStatus *check_nodes(struct claim *claim, const OrtNode *const *nodes, size_t n,
                              int depth);

static OrtStatus *check_subgraphs(struct claim *claim, const OrtNode *node, int depth)
{
    struct graph_reader reader = {claim->api->ort, claim->arena};
    size_t n = 0;
    TRY(reader.api->Node_GetNumSubgraphs(node, &n));
    if (n == 0)
        return NULL;
    const OrtGraph **graphs = ARENA_ARRAY(claim->arena, const OrtGraph *, n);
    const char **names = ARENA_ARRAY(claim->arena, const char *, n);
    if (!graphs || !names)
        return tsr__ep_no_memory(&reader);
    TRY(reader.api->Node_GetSubgraphs(node, graphs, n, names));
    for (size_t i = 0; i < n; i++) {
        struct graph_nodes nodes;
        TRY(tsr__ep_graph_nodes(&reader, graphs[i], &nodes));
        TRY(check_nodes(claim, nodes.at, nodes.n, depth + 1));
    }
    return NULL;
}

static OrtStatus *check_nodes(struct claim *claim, const OrtNode *const *nodes, size_t n, int depth)
{
    if (depth > GRAPH_DEPTH)
        tsr__ep_decline(claim, "subgraphs are nested more than %d times", GRAPH_DEPTH);
    for (size_t i = 0; i < n && depth <= GRAPH_DEPTH; i++) {
        TRY(check_operator(claim, nodes[i], depth));
        TRY(check_subgraphs(claim, nodes[i], depth));
    }
    return NULL;
}

// Declines inputs that are neither tensors nor sequences, and outputs that are not tensors: an
// execution provider can return only tensors. In GPU memory it declines all that are not numbers,
// because ONNX Runtime would create strings there.
static OrtStatus *check_port(struct claim *claim, const OrtValueInfo *value, bool is_output)
{
    const OrtApi *ort = claim->api->ort;
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    const char *name = "";
    int kind = 0, element = TSR_STRING; // or a sequence
    TRY(ort->GetValueInfoName(value, &name));
    TRY(ort->GetValueInfoTypeInfo(value, &type));
    TRY(ort->GetOnnxTypeFromTypeInfo(type, &kind));
    if (is_output && kind != ORT_TENSOR)
        tsr__ep_decline(claim, "output %s is not a tensor", name);
    if (!is_output && kind != ORT_TENSOR && kind != ORT_SEQUENCE)
        tsr__ep_decline(claim, "input %s is neither a tensor nor a sequence of tensors", name);
    if (!claim->on_gpu)
        return NULL;
    TRY(ort->CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor)
        TRY(ort->GetTensorElementType(tensor, &element));
    if (element == TSR_STRING)
        tsr__ep_decline(claim, "%s cannot be in GPU memory: select the CPU device of the provider",
                        name);
    return NULL;
}

// Declines a graph input that a node reads in its subgraphs and no node reads itself.
static OrtStatus *check_implicit_inputs(struct claim *claim, const OrtNode *node,
                                        const struct map *explicit)
{
    struct graph_reader reader = {claim->api->ort, claim->arena};
    struct graph_values values;
    TRY(tsr__ep_node_implicit_inputs(&reader, node, &values));
    for (size_t i = 0; i < values.n; i++) {
        const char *name = "";
        bool is_input = false;
        TRY(reader.api->GetValueInfoName(values.at[i], &name));
        TRY(reader.api->ValueInfo_IsRequiredGraphInput(values.at[i], &is_input));
        if (is_input && !tsr__map_get(explicit, str_of(name)))
            tsr__ep_decline(claim,
                            "only subgraphs read the input %s, which ONNX Runtime before 1.27 "
                            "does not pass to the provider",
                            name);
    }
    return NULL;
}

static OrtStatus *check_lost_inputs(struct claim *claim)
{
    struct graph_reader reader = {claim->api->ort, claim->arena};
    struct map explicit;
    tsr__map_init(&explicit, claim->arena, 0);
    for (size_t i = 0; i < claim->n_nodes; i++) {
        struct graph_values inputs;
        TRY(tsr__ep_node_inputs(&reader, claim->nodes[i], &inputs));
        for (size_t k = 0; k < inputs.n; k++) {
            const char *name = "";
            if (inputs.at[k])
                TRY(reader.api->GetValueInfoName(inputs.at[k], &name));
            void **slot = tsr__map_at(&explicit, str_of(name));
            if (!slot)
                return tsr__ep_no_memory(&reader);
            *slot = claim;
        }
    }
    for (size_t i = 0; i < claim->n_nodes; i++)
        TRY(check_implicit_inputs(claim, claim->nodes[i], &explicit));
    return NULL;
}

void tsr__ep_decline(struct claim *claim, const char *format, ...)
{
    va_list arguments;
    if (claim->reason[0])
        return; // the first reason is enough
    va_start(arguments, format);
    vsnprintf(claim->reason, sizeof claim->reason, format, arguments);
    va_end(arguments);
}

OrtStatus *tsr__ep_check_graph(struct claim *claim, const OrtGraph *graph)
{
    struct graph_reader reader = {claim->api->ort, claim->arena};
    struct graph_values inputs, outputs;
    const char *path = NULL;
    TRY(reader.api->Graph_GetModelPath(graph, &path));
    claim->has_file = path && path[0] && access(path, R_OK) == 0;
    TRY(tsr__ep_graph_inputs(&reader, graph, &inputs));
    TRY(tsr__ep_graph_outputs(&reader, graph, &outputs));
    for (size_t i = 0; i < inputs.n; i++)
        TRY(check_port(claim, inputs.at[i], false));
    for (size_t i = 0; i < outputs.n; i++)
        TRY(check_port(claim, outputs.at[i], true));
    if (tsr__quirk_applies(QUIRK_lost_implicit_inputs,
                           tsr__ort_minor(claim->api->base->GetVersionString())))
        TRY(check_lost_inputs(claim));
    return check_nodes(claim, claim->nodes, claim->n_nodes, 0);
}
