// SPDX-License-Identifier: Apache-2.0
// calls.c - calls of model-local functions: finds those that can be replaced by their bodies. A
// body may import another version of ai.onnx than the model. Replacement is valid if none of its
// operators changed between these versions (changes.def).
#include "rules/internal.h"

struct change {
    const char *op, *versions;
};
static const struct change changes[] = {
#define X(op, versions, ...) {op, versions},
#include "rules/changes.def"
#undef X
};

// Returns the versions of ai.onnx in which the operator was added and changed, "1 7+ 10+ 19+";
// NULL: not a standard operator. Rows are sorted by name.
static const char *versions_of(struct str op)
{
    size_t lo = 0, hi = TSR_COUNT(changes);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = tsr__str_cmp(str_of(changes[mid].op), op);
        if (order == 0)
            return changes[mid].versions;
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

// True if an operator means the same in both versions. Any change between them makes this false,
// with one exception: a version with + does not affect nodes that were written before it. Example:
// AveragePool, "1 7+ 10+ 19+": from 7 to 19 fits, from 19 to 7 does not.
bool tsr__version_fits(struct str op, struct str domain, int64_t from, int64_t to)
{
    const char *p = domain.n ? NULL : versions_of(op);
    if (from == to || !p)
        return from == to;
    while (*p) {
        int64_t version = 0;
        for (; *p >= '0' && *p <= '9'; p++)
            version = version * 10 + (*p - '0');
        bool grown = *p == '+';
        p += grown;
        p += *p == ' ';
        bool between =
            from < to ? version > from && version <= to : version > to && version <= from;
        if (between && (from > to || !grown))
            return false;
    }
    return true;
}

// Returns why the body, or one nested in it, would mean something else in the graph of the call;
// NULL: it means the same.
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

// Returns the result of version_error, computed once per function: a body of a thousand nodes may
// be called a thousand times.
static const char *cached_version_error(tsr_function *function, const tsr_node *call)
{
    struct call_memo *memo = tsr__function_memo(function);
    const tsr_function *home = tsr__node_home(call);
    size_t n_opsets = tsr_model_opset_count(tsr_graph_model(tsr_node_graph(call))) + 1;
    if (memo->n_opsets != n_opsets || memo->home != home) {
        const char *why = version_error(tsr_function_graph(function), tsr_node_graph(call));
        *memo = (struct call_memo){.home = home, .n_opsets = n_opsets, .misfit = why};
    }
    return memo->misfit;
}

// True if the node is a call that is inlined. An operator of the rule table takes precedence over a
// function of the same name.
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
