// SPDX-License-Identifier: Apache-2.0
// table.c - how every operator may be cut: the only place that knows.
//
// Rows are ordered by operator name, then by opset; the newest row whose `since` is not above the
// node's opset applies. Notation: notation.c. Where attributes or shapes decide, a derive function
// (derive.c) builds the rule of the node; the row's text then shows the usual form.
#include "rules/internal.h"

#define UNARY  "[A*] -> [A*]"
#define BINARY "[A~],[A~] -> [A*]"
#define MANY   "[A~]… -> [A*]"

const struct op_row tsr__op_table[] = {
    {"Abs", .since = 1, .rule = UNARY},
    {"Acos", .since = 7, .rule = UNARY},
    {"Acosh", .since = 9, .rule = UNARY},
    {"Add", .since = 7, .rule = BINARY},
    {"And", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"Asin", .since = 7, .rule = UNARY},
    {"Asinh", .since = 9, .rule = UNARY},
    {"Atan", .since = 7, .rule = UNARY},
    {"Atanh", .since = 9, .rule = UNARY},
    {"BitShift", .since = 11, .rule = BINARY},
    {"BitwiseAnd", .since = 18, .rule = BINARY},
    {"BitwiseNot", .since = 18, .rule = UNARY},
    {"BitwiseOr", .since = 18, .rule = BINARY},
    {"BitwiseXor", .since = 18, .rule = BINARY},
    {"Cast", .since = 6, .rule = UNARY, .type = TYPE_TO},
    {"CastLike", .since = 15, .rule = "[A*],· -> [A*]", .type = TYPE_AS_SECOND},
    {"Ceil", .since = 1, .rule = UNARY},
    {"Celu", .since = 12, .rule = UNARY},
    {"Clip", .since = 1, .rule = "[A*],·?,·? -> [A*]"},
    {"Cos", .since = 7, .rule = UNARY},
    {"Cosh", .since = 9, .rule = UNARY},
    {"Div", .since = 7, .rule = BINARY},
    {"Dropout", .since = 7, .rule = "[A*],·?,·? -> [A*],[A*]?", .derive = tsr__derive_dropout,
     .note = "inference form only: training_mode absent or false"},
    {"Elu", .since = 1, .rule = UNARY},
    {"Equal", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"Erf", .since = 9, .rule = UNARY},
    {"Exp", .since = 1, .rule = UNARY},
    {"Floor", .since = 1, .rule = UNARY},
    {"Gelu", .since = 20, .rule = UNARY},
    {"Gemm", .since = 7, .rule = "[m k],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
     .derive = tsr__derive_gemm, .note = "transA and transB exchange the letters"},
    {"Greater", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"GreaterOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL},
    {"HardSigmoid", .since = 1, .rule = UNARY},
    {"HardSwish", .since = 14, .rule = UNARY},
    {"Identity", .since = 1, .rule = UNARY},
    {"IsInf", .since = 10, .rule = UNARY, .type = TYPE_BOOL},
    {"IsNaN", .since = 9, .rule = UNARY, .type = TYPE_BOOL},
    {"LeakyRelu", .since = 1, .rule = UNARY},
    {"Less", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"LessOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL},
    {"Log", .since = 1, .rule = UNARY},
    {"MatMul", .since = 1, .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum",
     .derive = tsr__derive_matmul, .note = "an operand of one dimension drops m or n"},
    {"Max", .since = 1, .rule = MANY},
    {"Mean", .since = 1, .rule = MANY},
    {"Min", .since = 1, .rule = MANY},
    {"Mish", .since = 18, .rule = UNARY},
    {"Mod", .since = 10, .rule = BINARY},
    {"Mul", .since = 7, .rule = BINARY},
    {"Neg", .since = 1, .rule = UNARY},
    {"Not", .since = 1, .rule = UNARY, .type = TYPE_BOOL},
    {"Or", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
    {"PRelu", .since = 7, .rule = "[A*],[A~] -> [A*]"},
    {"Pow", .since = 7, .rule = BINARY},
    {"Reciprocal", .since = 1, .rule = UNARY},
    {"Relu", .since = 1, .rule = UNARY},
    {"Reshape", .since = 5, .rule = "[(f g) h],· -> [f (g h)]; shape 1",
     .derive = tsr__derive_reshape,
     .note = "factors that both shapes share; the others stay whole"},
    {"Round", .since = 11, .rule = UNARY},
    {"Selu", .since = 1, .rule = UNARY},
    {"Shrink", .since = 9, .rule = UNARY},
    {"Sigmoid", .since = 1, .rule = UNARY},
    {"Sign", .since = 9, .rule = UNARY},
    {"Sin", .since = 7, .rule = UNARY},
    {"Sinh", .since = 9, .rule = UNARY},
    {"Softplus", .since = 1, .rule = UNARY},
    {"Softsign", .since = 1, .rule = UNARY},
    {"Sqrt", .since = 1, .rule = UNARY},
    {"Sub", .since = 7, .rule = BINARY},
    {"Sum", .since = 1, .rule = MANY},
    {"Swish", .since = 24, .rule = UNARY},
    {"Tan", .since = 7, .rule = UNARY},
    {"Tanh", .since = 1, .rule = UNARY},
    {"ThresholdedRelu", .since = 10, .rule = UNARY},
    {"Transpose", .since = 1, .rule = "[a b c] -> [c b a]", .derive = tsr__derive_transpose,
     .note = "perm orders the factors"},
    {"Where", .since = 9, .rule = "[A~],[A~],[A~] -> [A*]", .type = TYPE_AS_SECOND},
    {"Xor", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
};
const size_t tsr__op_table_count = TSR_COUNT(tsr__op_table);

const struct op_row *tsr__row_of(const tsr_node *n)
{
    struct str op = tsr__node_op_str(n), domain = tsr__node_domain_str(n);
    int64_t opset = tsr__node_opset(n);
    size_t lo = 0, hi = tsr__op_table_count;
    while (lo < hi) { // first row that is not below op
        size_t mid = (lo + hi) / 2;
        if (tsr__str_cmp(str_of(tsr__op_table[mid].op), op) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct op_row *found = NULL;
    for (; lo < tsr__op_table_count && str_is(op, tsr__op_table[lo].op); lo++) {
        const struct op_row *row = &tsr__op_table[lo];
        if (str_is(domain, row->domain ? row->domain : "") && row->since <= opset)
            found = row;
    }
    return found;
}

bool tsr__rule_row(size_t i, struct rule_row_text *out)
{
    if (i >= tsr__op_table_count)
        return false;
    const struct op_row *row = &tsr__op_table[i];
    *out = (struct rule_row_text){.op = row->op,
                                  .domain = row->domain ? row->domain : "",
                                  .rule = row->rule,
                                  .note = row->note ? row->note : "",
                                  .since = row->since};
    return true;
}
