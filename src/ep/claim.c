// SPDX-License-Identifier: Apache-2.0
// claim.c - decides whether the provider takes a graph: all of its nodes, or none.
//
// ONNX Runtime asks for subgraphs first, then for the main graph. If the model has functions, it
// asks once before it has inlined them and once afterwards; claimed calls would not be inlined, so
// they are declined the first time.
#include "ep/internal.h"

#include <stdarg.h>
#include <stdio.h>

// Domains of operators that every ONNX Runtime has.
static const char *const known_domains[] = {
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"};

static bool is_known_domain(const char *domain)
{
    for (size_t i = 0; i < TSR_COUNT(known_domains); i++)
        if (strcmp(domain, known_domains[i]) == 0)
            return true;
    return false;
}

// Type of a value as ONNX Runtime numbers it: ORT_TENSOR, ORT_SEQUENCE, ...
static OrtStatus *kind_of(const OrtApi *ort, const OrtValueInfo *value, int *out)
{
    const OrtTypeInfo *type = NULL;
    TRY(ort->GetValueInfoTypeInfo(value, &type));
    return ort->GetOnnxTypeFromTypeInfo(type, out);
}

// Why the node is declined, or "". A call of a function that is not inlined yet sets *has_calls.
static OrtStatus *check_node(struct claim *claim, const OrtNode *node)
{
    const OrtApi *ort = claim->api->ort;
    const char *domain = "", *op = "", *provider = NULL;
    int version = 0;
    TRY(ort->Node_GetDomain(node, &domain));
    TRY(ort->Node_GetOperatorType(node, &op));
    TRY(ort->Node_GetEpName(node, &provider));
    if (provider && *provider && strcmp(provider, EP_NAME) != 0)
        tsr__ep_decline(claim, "%s takes part of the model (operator %s)", provider, op);
    if (is_known_domain(domain))
        return NULL;
    TRY(ort->Node_GetSinceVersion(node, &version));
    if (version < 0)
        claim->has_calls = true;
    else
        tsr__ep_decline(claim, "%s:%s is a custom operator of the application", domain, op);
    return NULL;
}

// All outputs are tensors: an execution provider cannot return anything else.
static OrtStatus *check_output(struct claim *claim, const OrtValueInfo *value)
{
    const char *name = "";
    int kind = 0;
    TRY(claim->api->ort->GetValueInfoName(value, &name));
    TRY(kind_of(claim->api->ort, value, &kind));
    if (kind != ORT_TENSOR)
        tsr__ep_decline(claim, "output %s is not a tensor", name);
    return NULL;
}

static OrtStatus *check_input(struct claim *claim, const OrtValueInfo *value)
{
    const char *name = "";
    int kind = 0;
    TRY(claim->api->ort->GetValueInfoName(value, &name));
    TRY(kind_of(claim->api->ort, value, &kind));
    if (kind != ORT_TENSOR && kind != ORT_SEQUENCE)
        tsr__ep_decline(claim, "input %s is neither a tensor nor a sequence of tensors", name);
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

OrtStatus *tsr__ep_check_nodes(struct claim *claim)
{
    for (size_t i = 0; i < claim->n_nodes; i++)
        TRY(check_node(claim, claim->nodes[i]));
    return NULL;
}

OrtStatus *tsr__ep_check_graph(struct claim *claim, const OrtGraph *graph)
{
    const OrtApi *ort = claim->api->ort;
    size_t n_inputs = 0, n_outputs = 0;
    TRY(ort->Graph_GetNumInputs(graph, &n_inputs));
    TRY(ort->Graph_GetNumOutputs(graph, &n_outputs));
    const OrtValueInfo **values =
        ARENA_ARRAY(claim->arena, const OrtValueInfo *, n_inputs + n_outputs + 1);
    if (!values)
        return ort->CreateStatus(ORT_FAIL, "out of memory");
    TRY(ort->Graph_GetInputs(graph, values, n_inputs));
    TRY(ort->Graph_GetOutputs(graph, values + n_inputs, n_outputs));
    for (size_t i = 0; i < n_inputs; i++)
        TRY(check_input(claim, values[i]));
    for (size_t i = 0; i < n_outputs; i++)
        TRY(check_output(claim, values[n_inputs + i]));
    return tsr__ep_check_nodes(claim);
}
