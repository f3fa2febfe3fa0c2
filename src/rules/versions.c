// SPDX-License-Identifier: Apache-2.0
// versions.c - versions in which operators of ai.onnx were added or changed (changes.def). The
// changes after opset 17 decide which lower opset a file can declare without changing its meaning.
//
// Examples: Acos changed in 22, but only to add element types (-22 in the table). So a float32 node
// of a model of opset 24 can be written for opset 17. AffineGrid was added in 20 and has not
// changed since, so it needs opset 20.
#include "rules/rules.h"

#define FROM   17 // the lowest opset that is declared
#define NEWEST 27
#define MOST   6

struct versions {
    const char *op;
    const char *history; // versions that added and changed the operator, "1 7+ 10+ 19+"
    // Ascending versions, 0 after the last. Negative: only element types were added. Three other
    // cases are also listed: a version that added the function body with which an engine without a
    // kernel (Relu of int64) runs the operator; one that added or fixed the body of an operator in
    // that body (HardSwish uses HardSigmoid); and one after which the body gives other numbers than
    // a kernel (Softplus of float16). tests/e2e/lowered.py tests all of them.
    int changed[MOST];
};
static const struct versions table[] = {
#define X(op, history, ...) {op, history, {__VA_ARGS__}},
#include "rules/changes.def"
#undef X
};

// Returns the row of an operator of ai.onnx; NULL: not a standard operator. Rows are sorted by
// name.
static const struct versions *versions_of(struct str op)
{
    size_t lo = 0, hi = TSR_COUNT(table);
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = tsr__str_cmp(str_of(table[mid].op), op);
        if (order == 0)
            return &table[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

// True if an operator means the same in both versions. Any change between them makes this false,
// with one exception: a version with + does not affect nodes that were written before it. Example:
// AveragePool, "1 7+ 10+ 19+": from 7 to 19 fits, from 19 to 7 does not. Operators that the table
// lacks fit only equal versions.
bool tsr__version_fits(struct str op, struct str domain, int64_t from, int64_t to)
{
    const struct versions *row = domain.n ? NULL : versions_of(op);
    if (from == to || !row)
        return from == to;
    for (const char *p = row->history; *p;) {
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

static uint64_t type_bit(const struct shapes *shapes, const tsr_value *value)
{
    return value ? UINT64_C(1) << tsr__shapes_element(shapes, value).dtype : 0;
}

uint64_t tsr__model_types(const tsr_model *model, const struct shapes *shapes)
{
    uint64_t types = 0;
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        for (size_t i = 0; i < tsr_node_input_count(node); i++)
            types |= type_bit(shapes, tsr_node_input(node, i));
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            types |= type_bit(shapes, tsr_node_output(node, i));
    }
    const tsr_graph *graph = tsr_model_graph(model);
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        types |= type_bit(shapes, tsr_graph_input(graph, i));
    return types;
}

bool tsr__types_plain(uint64_t types)
{
    static const tsr_dtype all[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT64,  TSR_INT32,
                                    TSR_INT16, TSR_INT8,   TSR_UINT64,  TSR_UINT32, TSR_UINT16,
                                    TSR_UINT8, TSR_BOOL,   TSR_STRING};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        types &= ~(UINT64_C(1) << all[i]);
    return types == 0;
}

// True if the node has an attribute that a version of the table added together with element types.
static bool uses_more(const tsr_node *node)
{
    static const char *const names[] = {"saturate", "round_mode", "ceil_mode"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (tsr_node_find_attr(node, names[i]))
            return true;
    return false;
}

int64_t tsr__rule_changed(const tsr_node *node, int64_t opset, bool plain)
{
    const struct versions *row = opset > NEWEST ? NULL : versions_of(tsr__node_op_str(node));
    if (!row || opset <= FROM)
        return opset;
    int64_t last = FROM;
    plain = plain && !uses_more(node);
    for (int i = 0; i < MOST; i++) {
        if (!row->changed[i])
            break;
        bool types = row->changed[i] < 0;
        int64_t version = types ? -row->changed[i] : row->changed[i];
        if (version <= opset && !(types && plain))
            last = version;
    }
    return last;
}

int64_t tsr__model_changed(const tsr_model *model, int64_t opset, bool plain, const tsr_node **why)
{
    int64_t last = 0;
    *why = NULL;
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node)) {
        if (tsr__node_domain_str(node).n)
            continue;
        int64_t changed = tsr__rule_changed(node, opset, plain);
        if (changed > last) {
            last = changed;
            *why = node;
        }
    }
    return last;
}
