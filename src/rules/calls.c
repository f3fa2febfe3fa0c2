// SPDX-License-Identifier: Apache-2.0
// calls.c - calls of model-local functions: finds those that can be replaced by their bodies. A
// body may import another version of ai.onnx than the model. Replacement is valid if none of its
// operators changed between these versions (versions.c).
#include "rules/internal.h"

// Returns why the body cannot be moved into the graph `place`: an operator in it, or in a nested
// body, changed between the version that the body imports and the one that `place` imports. NULL:
// the body can be moved.
static const char *version_error(const tsr_graph *body, const tsr_graph *place)
{
    for (const tsr_node *node = tsr_graph_first(body); node; node = tsr_node_next(node)) {
        struct str domain = tsr__node_domain_str(node);
        int64_t from = tsr__node_opset(node), to = tsr__graph_opset(place, domain);
        bool row = tsr__row_of_node(node) != NULL;
        if (to && !(tsr__node_function(node) && !row) &&
            !tsr__version_fits(tsr__node_op_str(node), domain, from, to))
            return "the function imports another version of an operator that has changed";
        for (size_t i = 0; i < tsr_node_attr_count(node); i++)
            for (size_t k = 0; k < tsr_attr_graph_count(tsr_node_attr(node, i)); k++) {
                const char *wrong = version_error(tsr_attr_graph(tsr_node_attr(node, i), k), place);
                if (wrong)
                    return wrong;
            }
    }
    return NULL;
}

// Returns the result of version_error, cached in the function: a body of a thousand nodes may be
// called a thousand times. The cache has one entry, for calls from the same function (`home`).
static const char *cached_version_error(tsr_function *function, const tsr_node *call)
{
    struct call_memo *memo = tsr__function_memo(function);
    const tsr_function *home = tsr__node_home(call);
    if (!memo->known || memo->home != home) {
        memo->known = true;
        memo->home = home;
        memo->misfit = version_error(tsr_function_graph(function), tsr_node_graph(call));
    }
    return memo->misfit;
}

bool tsr__is_call(const tsr_node *node, const char **whole)
{
    tsr_function *function = tsr__node_function(node);
    *whole = NULL;
    if (!function || tsr__row_of_node(node))
        return false;
    const tsr_graph *graph = tsr_function_graph(function);
    if (tsr_node_input_count(node) > tsr_graph_input_count(graph) ||
        tsr_node_output_count(node) > tsr_graph_output_count(graph))
        *whole = "the call does not fit the function";
    else
        *whole = cached_version_error(function, node);
    return true;
}
