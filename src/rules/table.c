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
#define RANDOM "random numbers are drawn whole, so that all devices have the same"

const struct op_row tsr__op_table[] = {
    {"Abs", .since = 1, .rule = UNARY, .value = tsr__value_abs},
    {"Acos", .since = 7, .rule = UNARY},
    {"Acosh", .since = 9, .rule = UNARY},
    {"Add", .since = 7, .rule = BINARY, .value = tsr__value_add},
    {"And", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_and},
    {"Asin", .since = 7, .rule = UNARY},
    {"Asinh", .since = 9, .rule = UNARY},
    {"Atan", .since = 7, .rule = UNARY},
    {"Atanh", .since = 9, .rule = UNARY},
    {"Bernoulli", .since = 15, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM},
    {"BitShift", .since = 11, .rule = BINARY},
    {"BitwiseAnd", .since = 18, .rule = BINARY},
    {"BitwiseNot", .since = 18, .rule = UNARY},
    {"BitwiseOr", .since = 18, .rule = BINARY},
    {"BitwiseXor", .since = 18, .rule = BINARY},
    {"Cast", .since = 6, .rule = UNARY, .type = TYPE_TO, .value = tsr__value_cast},
    {"CastLike", .since = 15, .rule = "[A*],· -> [A*]", .type = TYPE_AS_SECOND},
    {"Ceil", .since = 1, .rule = UNARY},
    {"Celu", .since = 12, .rule = UNARY},
    {"CenterCropPad", .since = 18, .rule = "[A* s B*],· -> [A* t B*]; rep s t",
     .derive = tsr__derive_center_crop_pad, .shape = tsr__find_center_crop_pad,
     .note = "axes names the dimensions s"},
    {"Clip", .since = 1, .rule = "[A*],·?,·? -> [A*]"},
    {"Compress", .since = 9, .rule = "[A* v B*],[v] -> [A* t B*]; rep v t",
     .derive = tsr__derive_compress, .shape = tsr__find_compress,
     .note = "t depends on the data; without axis nothing is cut"},
    {"Concat", .since = 1, .rule = "[A* _ B*]… -> [A* _ B*]", .derive = tsr__derive_concat,
     .shape = tsr__find_concat, .value = tsr__value_concat,
     .note = "axis says which dimension is _"},
    {"Constant", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_OPEN,
     .shape = tsr__find_constant, .value = tsr__value_constant,
     .whole = "every device has it; parts are sliced off where they are needed"},
    {"ConstantOfShape", .since = 9, .rule = "· -> [A*]; gen A; shape 0", .type = TYPE_OPEN,
     .shape = tsr__find_constant_of_shape, .value = tsr__value_constant_of_shape},
    {"Cos", .since = 7, .rule = UNARY},
    {"Cosh", .since = 9, .rule = UNARY},
    {"DepthToSpace", .since = 1, .rule = "[n (p q c) h w] -> [n c (h p) (w q)]; rep p q",
     .derive = tsr__derive_depth_to_space, .note = "mode CRD has (c p q)"},
    {"Div", .since = 7, .rule = BINARY, .value = tsr__value_div},
    {"Dropout", .since = 7, .rule = "[A*],·?,·? -> [A*],[A*]?", .derive = tsr__derive_dropout,
     .note = "inference form only: training_mode absent or false", .type1 = TYPE_BOOL},
    {"Elu", .since = 1, .rule = UNARY},
    {"Equal", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_equal},
    {"Erf", .since = 9, .rule = UNARY},
    {"Exp", .since = 1, .rule = UNARY},
    {"Expand", .since = 8, .rule = "[A~],· -> [A*]; shape 1", .derive = tsr__derive_expand,
     .shape = tsr__find_expand, .value = tsr__value_expand,
     .note = "dimensions that are made may be cut too"},
    {"EyeLike", .since = 9, .rule = "[n m] -> [n m]; rep n m", .type = TYPE_DTYPE,
     .whole = "each element depends on where it stands"},
    {"Flatten", .since = 1, .rule = "[a b c] -> [(a b) c]", .derive = tsr__derive_flatten,
     .value = tsr__value_same, .note = "axis says where the two products meet"},
    {"Floor", .since = 1, .rule = UNARY},
    {"Gather", .since = 1, .rule = "[A* v B*],[I*] -> [A* I* B*]; sel v",
     .derive = tsr__derive_gather, .value = tsr__value_gather,
     .note = "axis says which dimension is v"},
    {"GatherElements", .since = 11, .rule = "[A* v B*],[A* w B*] -> [A* w B*]; sel v",
     .derive = tsr__derive_gather_elements,
     .note = "A and B where data and indices have the same sizes"},
    {"GatherND", .since = 11, .rule = "[B* V* S*],[B* I* _] -> [B* I* S*]; sel V",
     .derive = tsr__derive_gather_nd,
     .note = "the last size of the indices is the number of dimensions V"},
    {"Gelu", .since = 20, .rule = UNARY},
    {"Gemm", .since = 7, .rule = "[m k],[k n],[m~ n~]? -> [m n]; red k:sum; once 2",
     .derive = tsr__derive_gemm, .note = "transA and transB exchange the letters"},
    {"Greater", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_greater},
    {"GreaterOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL,
     .value = tsr__value_greater_or_equal},
    {"HardSigmoid", .since = 1, .rule = UNARY},
    {"HardSwish", .since = 14, .rule = UNARY},
    {"Identity", .since = 1, .rule = UNARY, .value = tsr__value_same},
    {"IsInf", .since = 10, .rule = UNARY, .type = TYPE_BOOL},
    {"IsNaN", .since = 9, .rule = UNARY, .type = TYPE_BOOL},
    {"LeakyRelu", .since = 1, .rule = UNARY},
    {"Less", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_less},
    {"LessOrEqual", .since = 12, .rule = BINARY, .type = TYPE_BOOL,
     .value = tsr__value_less_or_equal},
    {"Log", .since = 1, .rule = UNARY},
    {"MatMul", .since = 1, .rule = "[B~ m k],[B~ k n] -> [B* m n]; red k:sum",
     .derive = tsr__derive_matmul, .note = "an operand of one dimension drops m or n"},
    {"Max", .since = 1, .rule = MANY, .value = tsr__value_max},
    {"Mean", .since = 1, .rule = MANY},
    {"Min", .since = 1, .rule = MANY, .value = tsr__value_min},
    {"Mish", .since = 18, .rule = UNARY},
    {"Mod", .since = 10, .rule = BINARY, .value = tsr__value_mod},
    {"Mul", .since = 7, .rule = BINARY, .value = tsr__value_mul},
    {"Neg", .since = 1, .rule = UNARY, .value = tsr__value_neg},
    {"NonZero", .since = 9, .rule = "[A*] -> [r t]; rep A r t", .type = TYPE_INT64,
     .shape = tsr__find_non_zero, .whole = "the number of results depends on the data"},
    {"Not", .since = 1, .rule = UNARY, .type = TYPE_BOOL, .value = tsr__value_not},
    {"OneHot", .since = 9, .rule = "[A* B*],·,· -> [A* t B*]; rep t", .derive = tsr__derive_one_hot,
     .type = TYPE_AS_THIRD, .shape = tsr__find_one_hot, .note = "axis says where t goes"},
    {"Or", .since = 7, .rule = BINARY, .type = TYPE_BOOL, .value = tsr__value_or},
    {"PRelu", .since = 7, .rule = "[A*],[A~] -> [A*]"},
    {"Pad", .since = 1, .rule = "[A* s],·,·?,·? -> [A* t]; rep s t", .derive = tsr__derive_pad,
     .shape = tsr__find_pad, .note = "A: dimensions whose pads are known to be 0"},
    {"Pow", .since = 7, .rule = BINARY},
    {"RandomNormal", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_DTYPE_FLOAT,
     .shape = tsr__find_attribute, .whole = RANDOM},
    {"RandomNormalLike", .since = 1, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM},
    {"RandomUniform", .since = 1, .rule = "-> [A*]; gen A", .type = TYPE_DTYPE_FLOAT,
     .shape = tsr__find_attribute, .whole = RANDOM},
    {"RandomUniformLike", .since = 1, .rule = UNARY, .type = TYPE_DTYPE, .whole = RANDOM},
    {"Range", .since = 11, .rule = "·,·,· -> [r]; rep r", .shape = tsr__find_range,
     .value = tsr__value_range, .whole = "each element depends on where it stands"},
    {"Reciprocal", .since = 1, .rule = UNARY},
    {"Relu", .since = 1, .rule = UNARY},
    {"Reshape", .since = 5, .rule = "[(f g) h],· -> [f (g h)]; shape 1",
     .derive = tsr__derive_reshape, .note = "factors that both shapes share; the others stay whole",
     .value = tsr__value_same, .shape = tsr__find_reshape},
    {"Resize", .since = 10, .rule = "[A* s],·? -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__find_resize_10, .note = "A: dimensions that keep their size"},
    {"Resize", .since = 11, .rule = "[A* s],·?,·?,·? -> [A* t]; rep s t; shape 3",
     .derive = tsr__derive_resize, .shape = tsr__find_resize,
     .note = "A: dimensions that keep their size"},
    {"ReverseSequence", .since = 10, .rule = "[t b C*],[b] -> [t b C*]; rep t",
     .derive = tsr__derive_reverse_sequence,
     .note = "time_axis and batch_axis say which dimensions are t and b"},
    {"Round", .since = 11, .rule = UNARY},
    {"Scatter", .since = 9, .rule = "[A* v B*],[A* w B*],[A* w B*] -> [A* v B*]; rep v w",
     .derive = tsr__derive_scatter_elements, .shape = tsr__find_like_first,
     .note = "A and B where data and indices have the same sizes"},
    {"ScatterElements", .since = 11, .rule = "[A* v B*],[A* w B*],[A* w B*] -> [A* v B*]; rep v w",
     .derive = tsr__derive_scatter_elements, .shape = tsr__find_like_first,
     .note = "A and B where data and indices have the same sizes"},
    {"ScatterND", .since = 11, .rule = "[V* S*],[I* _],[I* S*] -> [V* S*]; rep V I",
     .derive = tsr__derive_scatter_nd, .shape = tsr__find_like_first,
     .note = "the last size of the indices is the number of dimensions V"},
    {"Selu", .since = 1, .rule = UNARY},
    {"Shape", .since = 1, .rule = "[A*] -> ·; rep A", .type = TYPE_INT64, .shape = tsr__find_shape,
     .value = tsr__value_shape, .whole = "sizes are those of the whole tensor"},
    {"Shrink", .since = 9, .rule = UNARY},
    {"Sigmoid", .since = 1, .rule = UNARY},
    {"Sign", .since = 9, .rule = UNARY},
    {"Sin", .since = 7, .rule = UNARY},
    {"Sinh", .since = 9, .rule = UNARY},
    {"Size", .since = 1, .rule = "[A*] -> ·; rep A", .type = TYPE_INT64, .shape = tsr__find_scalar,
     .value = tsr__value_size, .whole = "sizes are those of the whole tensor"},
    {"Slice", .since = 1, .rule = "[A* s],·,·,·?,·? -> [A* t]; rep s t",
     .derive = tsr__derive_slice, .shape = tsr__find_slice, .value = tsr__value_slice,
     .note = "A: dimensions that are not sliced, or taken whole"},
    {"Softplus", .since = 1, .rule = UNARY},
    {"Softsign", .since = 1, .rule = UNARY},
    {"SpaceToDepth", .since = 1, .rule = "[n c (h p) (w q)] -> [n (p q c) h w]; rep p q",
     .derive = tsr__derive_space_to_depth},
    {"Split", .since = 1, .rule = "[A* _ B*],·? -> [A* _ B*]…", .derive = tsr__derive_split,
     .shape = tsr__find_split, .value = tsr__value_split, .note = "axis says which dimension is _"},
    {"Sqrt", .since = 1, .rule = UNARY},
    {"Squeeze", .since = 1, .rule = "[A* 1],·? -> [A*]", .derive = tsr__derive_squeeze,
     .shape = tsr__find_squeeze, .value = tsr__value_same, .note = "axes says which dimensions go"},
    {"Sub", .since = 7, .rule = BINARY, .value = tsr__value_sub},
    {"Sum", .since = 1, .rule = MANY},
    {"Swish", .since = 24, .rule = UNARY},
    {"Tan", .since = 7, .rule = UNARY},
    {"Tanh", .since = 1, .rule = UNARY},
    {"TensorScatter", .since = 24, .rule = "[b A* t C*],[b A* u C*],[b]? -> [b A* t C*]; rep t u",
     .derive = tsr__derive_tensor_scatter, .shape = tsr__find_like_first,
     .note = "axis says which dimension is t"},
    {"ThresholdedRelu", .since = 10, .rule = UNARY},
    {"Tile", .since = 6, .rule = "[a b],· -> [(t a) (u b)]; rep t u", .derive = tsr__derive_tile,
     .shape = tsr__find_tile, .note = "a cut a gives strided results"},
    {"Transpose", .since = 1, .rule = "[a b c] -> [c b a]", .derive = tsr__derive_transpose,
     .note = "perm orders the factors"},
    {"Trilu", .since = 14, .rule = "[A* n m],·? -> [A* n m]; rep n m"},
    {"Unique", .since = 11, .rule = "[A*] -> [t],[t]?,[w]?,[t]?; rep A t w", .type1 = TYPE_INT64,
     .type2 = TYPE_INT64, .type3 = TYPE_INT64, .shape = tsr__find_unique,
     .whole = "the number of results depends on the data"},
    {"Unsqueeze", .since = 1, .rule = "[A*],·? -> [A* 1]", .derive = tsr__derive_unsqueeze,
     .value = tsr__value_same, .note = "axes says which dimensions are made"},
    {"Upsample", .since = 1, .rule = "[A* s] -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__find_upsample, .note = "A: dimensions that keep their size"},
    {"Upsample", .since = 9, .rule = "[A* s],· -> [A* t]; rep s t", .derive = tsr__derive_resize,
     .shape = tsr__find_resize_10, .note = "A: dimensions that keep their size"},
    {"Where", .since = 9, .rule = "[A~],[A~],[A~] -> [A*]", .type = TYPE_AS_SECOND,
     .value = tsr__value_where},
    {"Xor", .since = 7, .rule = BINARY, .type = TYPE_BOOL},
};
const size_t tsr__op_table_count = TSR_COUNT(tsr__op_table);

static const struct op_row *find_row(struct str op, struct str domain, int64_t opset)
{
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

// Operators and domains are kept once per model, so their addresses are as good as their names.
const struct op_row *tsr__row_of(const struct shapes *s, const tsr_node *n)
{
    static const struct op_row none;
    struct str op = tsr__node_op_str(n), domain = tsr__node_domain_str(n);
    struct {
        const char *op, *domain;
        int64_t opset;
    } key = {op.p, domain.p, tsr__node_opset(n)};
    struct str text = {(const char *)&key, sizeof(key)};
    const struct op_row *row = tsr__map_get(s->rows, text);
    if (!row) {
        row = find_row(op, domain, key.opset);
        text = tsr__arena_str(s->arena, text);
        void **slot = text.p ? tsr__map_at(s->rows, text) : NULL;
        if (slot)
            *slot = (void *)(row ? row : &none);
    }
    return row == &none ? NULL : row;
}

bool tsr__rule_row(size_t i, struct rule_row_text *out)
{
    if (i >= tsr__op_table_count)
        return false;
    const struct op_row *row = &tsr__op_table[i];
    *out = (struct rule_row_text){.op = row->op,
                                  .domain = row->domain ? row->domain : "",
                                  .rule = row->rule ? row->rule : "",
                                  .note = row->note ? row->note : "",
                                  .whole = row->whole ? row->whole : "",
                                  .since = row->since};
    return true;
}
