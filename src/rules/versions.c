// SPDX-License-Identifier: Apache-2.0
// versions.c - versions after 17 in which operators of ai.onnx were added or changed, up to opset
// 27. With them a file can declare the lowest opset that means the same.
//
// Acos changed in 22, but only to add element types (-22): a node of float32 in a model of opset 24
// can be written for opset 17. AffineGrid was added in 20 and has not changed since: 20.
#include "rules/rules.h"

#include <stdlib.h>

#define FROM   17 // the lowest opset that is declared
#define NEWEST 27
#define MOST   6

struct versions {
    const char *op;
    // Ascending versions, 0 after the last. Negative: only element types were added. Three other
    // cases are also listed: a version that added the function body with which an engine without a
    // kernel (Relu of int64) runs the operator; one that added or fixed the body of an operator in
    // that body (HardSwish uses HardSigmoid); and one after which the body gives other numbers than
    // a kernel (Softplus of float16). tests/e2e/lowered.py tests all of them.
    int changed[MOST];
};
static const struct versions table[] = {
#define X(op, changes, ...) {op, {__VA_ARGS__}},
#include "rules/changes.def"
#undef X
};

bool tsr__type_plain(tsr_dtype type)
{
    static const tsr_dtype all[] = {TSR_FLOAT, TSR_DOUBLE, TSR_FLOAT16, TSR_INT64,  TSR_INT32,
                                    TSR_INT16, TSR_INT8,   TSR_UINT64,  TSR_UINT32, TSR_UINT16,
                                    TSR_UINT8, TSR_BOOL,   TSR_STRING};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        if (all[i] == type)
            return true;
    return false;
}

static int by_name(const void *key, const void *row)
{
    const struct str *name = key;
    const char *op = ((const struct versions *)row)->op;
    size_t n = strlen(op), least = n < name->n ? n : name->n;
    int order = memcmp(name->p, op, least);
    return order ? order : (name->n > n) - (name->n < n);
}

// True if the node uses an attribute or input that a new version added besides types.
static bool uses_more(const tsr_node *node)
{
    static const char *const names[] = {"saturate", "round_mode", "ceil_mode"};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        if (tsr_node_find_attr(node, names[i]))
            return true;
    return false;
}

// Returns the last version that changed the operator. Negative entries only added element types,
// which a node of plain types does not use.
int64_t tsr__rule_changed(const tsr_node *node, int64_t opset, bool plain)
{
    struct str op = tsr__node_op_str(node);
    const struct versions *row =
        opset > NEWEST ? NULL : bsearch(&op, table, TSR_COUNT(table), sizeof(*table), by_name);
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
