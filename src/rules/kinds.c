// SPDX-License-Identifier: Apache-2.0
// kinds.c - the kind of work of a node, for which devices may have separate rates (tsr_rate,
// tsr_move).
//
// An engine reaches one speed in a large matrix product, another in a convolution, and a third if
// it unpacks 4-bit weights; a softmax uses memory bandwidth less efficiently than a sum. Operators
// without a row are element-wise: they use the device's default rates.
//
//     Conv with 64 groups of one channel: RATE_DEPTHWISE; Softmax: MOVE_SOFTMAX; Reshape: nothing
//       moves
#include "rules/rules.h"

#define NONE     (-1)
#define LONG_ROW 256 // elements

// Sorted by name. Names stand for all domains: no two domains have one name for different kinds.
static const struct {
    const char *op;
    int rate, move;
} rows[] = {
    {"Acos", NONE, TSR_MOVE_CURVE},
    {"Acosh", NONE, TSR_MOVE_CURVE},
    {"ArgMax", NONE, TSR_MOVE_REDUCE},
    {"ArgMin", NONE, TSR_MOVE_REDUCE},
    {"Asin", NONE, TSR_MOVE_CURVE},
    {"Asinh", NONE, TSR_MOVE_CURVE},
    {"Atan", NONE, TSR_MOVE_CURVE},
    {"Atanh", NONE, TSR_MOVE_CURVE},
    {"Attention", TSR_RATE_ATTENTION, TSR_MOVE_CACHE},
    {"AveragePool", TSR_RATE_POOL, TSR_MOVE_POOL},
    {"BiasGelu", NONE, TSR_MOVE_ERROR},
    {"Celu", NONE, TSR_MOVE_CURVE},
    {"Conv", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"ConvInteger", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"ConvTranspose", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"Cos", NONE, TSR_MOVE_CURVE},
    {"Cosh", NONE, TSR_MOVE_CURVE},
    {"DeformConv", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"DepthToSpace", NONE, TSR_MOVE_TURN},
    {"Einsum", NONE, TSR_MOVE_WEIGHTS},
    {"Elu", NONE, TSR_MOVE_CURVE},
    {"Erf", NONE, TSR_MOVE_ERROR},
    {"Exp", NONE, TSR_MOVE_CURVE},
    {"FastGelu", NONE, TSR_MOVE_CURVE},
    {"Flatten", NONE, NODE_MOVES_NOTHING},
    {"FusedConv", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"FusedMatMul", NONE, TSR_MOVE_WEIGHTS},
    {"GRU", TSR_RATE_RECURRENCE, TSR_MOVE_WEIGHTS},
    {"Gelu", NONE, TSR_MOVE_ERROR},
    {"Gemm", NONE, TSR_MOVE_WEIGHTS},
    {"GlobalAveragePool", NONE, TSR_MOVE_REDUCE},
    {"GlobalMaxPool", NONE, TSR_MOVE_REDUCE},
    {"GroupNormalization", NONE, TSR_MOVE_NORM},
    {"GroupQueryAttention", TSR_RATE_ATTENTION, TSR_MOVE_CACHE},
    {"Identity", NONE, NODE_MOVES_NOTHING},
    {"InstanceNormalization", NONE, TSR_MOVE_NORM},
    {"LSTM", TSR_RATE_RECURRENCE, TSR_MOVE_WEIGHTS},
    {"LayerNormalization", NONE, TSR_MOVE_NORM},
    {"Log", NONE, TSR_MOVE_CURVE},
    {"LogSoftmax", NONE, TSR_MOVE_SOFTMAX},
    {"LpPool", TSR_RATE_POOL, TSR_MOVE_POOL},
    {"MatMul", NONE, TSR_MOVE_WEIGHTS},
    {"MatMulBnb4", TSR_RATE_PACKED, TSR_MOVE_PACKED},
    {"MatMulInteger", NONE, TSR_MOVE_WEIGHTS},
    {"MatMulNBits", TSR_RATE_PACKED, TSR_MOVE_PACKED},
    {"MaxPool", TSR_RATE_POOL, TSR_MOVE_POOL},
    {"Mish", NONE, TSR_MOVE_CURVE},
    {"MultiHeadAttention", TSR_RATE_ATTENTION, TSR_MOVE_CACHE},
    {"Pad", NONE, TSR_MOVE_COPY},
    {"Pow", NONE, TSR_MOVE_CURVE},
    {"QGemm", NONE, TSR_MOVE_WEIGHTS},
    {"QLinearConv", TSR_RATE_CONVOLUTION, TSR_MOVE_STREAM},
    {"QLinearMatMul", NONE, TSR_MOVE_WEIGHTS},
    {"QuickGelu", NONE, TSR_MOVE_CURVE},
    {"RMSNormalization", NONE, TSR_MOVE_NORM},
    {"RNN", TSR_RATE_RECURRENCE, TSR_MOVE_WEIGHTS},
    {"ReduceL1", NONE, TSR_MOVE_REDUCE},
    {"ReduceL2", NONE, TSR_MOVE_REDUCE},
    {"ReduceLogSumExp", NONE, TSR_MOVE_REDUCE},
    {"ReduceMax", NONE, TSR_MOVE_REDUCE},
    {"ReduceMean", NONE, TSR_MOVE_REDUCE},
    {"ReduceMin", NONE, TSR_MOVE_REDUCE},
    {"ReduceProd", NONE, TSR_MOVE_REDUCE},
    {"ReduceSum", NONE, TSR_MOVE_REDUCE},
    {"ReduceSumSquare", NONE, TSR_MOVE_REDUCE},
    {"Reshape", NONE, NODE_MOVES_NOTHING},
    {"SVMClassifier", TSR_RATE_KERNELS, TSR_MOVE_STREAM},
    {"SVMRegressor", TSR_RATE_KERNELS, TSR_MOVE_STREAM},
    {"Selu", NONE, TSR_MOVE_CURVE},
    {"Sigmoid", NONE, TSR_MOVE_CURVE},
    {"SimplifiedLayerNormalization", NONE, TSR_MOVE_NORM},
    {"Sin", NONE, TSR_MOVE_CURVE},
    {"Sinh", NONE, TSR_MOVE_CURVE},
    {"SkipLayerNormalization", NONE, TSR_MOVE_NORM},
    {"SkipSimplifiedLayerNormalization", NONE, TSR_MOVE_NORM},
    {RULE_SLICE, NONE, RULE_SLICE_MOVE},
    {"Softmax", NONE, TSR_MOVE_SOFTMAX},
    {"Softplus", NONE, TSR_MOVE_CURVE},
    {"SpaceToDepth", NONE, TSR_MOVE_TURN},
    {"Squeeze", NONE, NODE_MOVES_NOTHING},
    {"Swish", NONE, TSR_MOVE_CURVE},
    {"Tan", NONE, TSR_MOVE_CURVE},
    {"Tanh", NONE, TSR_MOVE_CURVE},
    {"Tile", NONE, TSR_MOVE_COPY},
    {"Transpose", NONE, TSR_MOVE_TURN},
    {"TreeEnsemble", TSR_RATE_TREES, TSR_MOVE_STREAM},
    {"TreeEnsembleClassifier", TSR_RATE_TREES, TSR_MOVE_STREAM},
    {"TreeEnsembleRegressor", TSR_RATE_TREES, TSR_MOVE_STREAM},
    {"Unsqueeze", NONE, NODE_MOVES_NOTHING},
};

// Each group of the convolution has one channel: weights [channels, 1, ...] and more than one
// group.
static bool is_depthwise(const tsr_node *node, const struct shapes *shapes)
{
    const tsr_value *weights = tsr_node_input_count(node) > 1 ? tsr_node_input(node, 1) : NULL;
    if (!weights || tsr_attr_int(tsr_node_find_attr(node, "group"), 1) < 2)
        return false;
    struct shape shape = tsr__shapes_of(shapes, weights);
    return shape.rank > 1 && shape.dims[1].value == 1;
}

// A support vector machine without a kernel function: ONNX Runtime multiplies matrices.
static bool has_linear_kernel(const tsr_node *node)
{
    size_t n = 0;
    const tsr_attr *attr = tsr_node_find_attr(node, "kernel_type");
    const char *text = attr ? tsr_attr_string(attr, &n) : NULL;
    return !text || str_is((struct str){text, n}, "LINEAR");
}

static bool is_op(const tsr_node *node, const char *op)
{
    return node && strcmp(tsr_node_op(node), op) == 0;
}

// A Transpose whose last axis goes elsewhere: rows become columns, element by element.
static bool turns_last(const tsr_node *node, const struct shapes *shapes)
{
    const int64_t *perm = NULL;
    size_t rank = tsr_attr_ints(tsr_node_find_attr(node, "perm"), &perm);
    if (rank == 0) // without it all axes are reversed
        return tsr__shapes_of(shapes, tsr_node_input(node, 0)).rank > 1;
    return perm[rank - 1] != (int64_t)rank - 1;
}

// Rows of the last axis are so long that they are copied as memory is.
static bool has_long_rows(const tsr_node *node, const struct shapes *shapes)
{
    struct shape shape = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    return shape.rank > 0 && shape.dims[shape.rank - 1].value >= LONG_ROW;
}

// True if its two inputs have the shape of its result.
static bool joins_two(const tsr_node *node, const struct shapes *shapes)
{
    if (tsr_node_input_count(node) != 2 || !tsr_node_input(node, 0) || !tsr_node_input(node, 1))
        return false;
    struct shape a = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    struct shape b = tsr__shapes_of(shapes, tsr_node_input(node, 1));
    if (a.rank != b.rank || a.rank < 1)
        return false;
    for (int i = 0; i < a.rank; i++)
        if (a.dims[i].value < 0 || a.dims[i].value != b.dims[i].value)
            return false;
    return true;
}

// Nodes of one kind that go through memory in ways of their own: two values come in for one that
// goes out, which is what costs; transposes by single elements, and by long rows. NULL: none of
// these.
static const char *word_of(const tsr_node *node, const struct shapes *shapes,
                           const struct node_kind *kind)
{
    if (kind->move == TSR_MOVE_STREAM && kind->rate == NONE && joins_two(node, shapes))
        return "join";
    if (!is_op(node, "Transpose"))
        return NULL;
    if (turns_last(node, shapes))
        return "scatter";
    return has_long_rows(node, shapes) ? "rows" : NULL;
}

// ---- what engines do within the node before it --------------------------------------------------

// The node that makes the value for this one reader; NULL: none does, or others read it.
static const tsr_node *made_for_one(const tsr_value *value)
{
    if (!value || tsr_value_is_output(value) || tsr_value_use_count(value) != 1)
        return NULL;
    return tsr_value_producer(value);
}

// A sum with what a convolution makes, or the scaling of it.
static bool joins_convolution(const tsr_node *node)
{
    if (is_op(node, "BatchNormalization"))
        return is_op(made_for_one(tsr_node_input(node, 0)), "Conv");
    if (!is_op(node, "Add"))
        return false;
    return is_op(made_for_one(tsr_node_input(node, 0)), "Conv") ||
           is_op(made_for_one(tsr_node_input(node, 1)), "Conv");
}

static bool is_one_number(const tsr_value *value, const struct shapes *shapes)
{
    struct shape shape = tsr__shapes_of(shapes, value);
    return tsr_value_initializer(value) &&
           (shape.rank == 0 || (shape.rank == 1 && shape.dims[0].value == 1));
}

// A product that is scaled by one number.
static bool scales_product(const tsr_node *node, const struct shapes *shapes)
{
    if (!is_op(node, "Mul") && !is_op(node, "Div"))
        return false;
    const tsr_value *a = tsr_node_input(node, 0), *b = tsr_node_input(node, 1);
    return is_op(made_for_one(a), "MatMul") && b && is_one_number(b, shapes);
}

// Conv, Add, Relu one after the other: ONNX Runtime does all three where it convolves, on CPUs and
// GPUs.
static bool is_swallowed(const tsr_node *node)
{
    static const char *const ends[] = {"Clip", "HardSigmoid", "LeakyRelu",
                                       "Relu", "Sigmoid",     "Tanh"};
    if (joins_convolution(node))
        return true;
    for (size_t i = 0; i < TSR_COUNT(ends); i++) {
        if (!is_op(node, ends[i]))
            continue;
        const tsr_node *before = made_for_one(tsr_node_input(node, 0));
        return is_op(before, "Conv") || (before && joins_convolution(before));
    }
    return false;
}

// By bisection: every node of a large model asks.
struct node_kind tsr__node_kind(const tsr_node *node, const struct shapes *shapes)
{
    struct node_kind kind = {.rate = NONE, .move = TSR_MOVE_STREAM};
    if (is_swallowed(node) || scales_product(node, shapes))
        return (struct node_kind){.rate = NONE, .move = NODE_MOVES_NOTHING};
    size_t low = 0, high = TSR_COUNT(rows);
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(tsr_node_op(node), rows[middle].op);
        if (order == 0) {
            kind = (struct node_kind){.rate = rows[middle].rate, .move = rows[middle].move};
            break;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    if (kind.rate == TSR_RATE_CONVOLUTION && is_depthwise(node, shapes))
        kind.rate = TSR_RATE_DEPTHWISE;
    if (kind.rate == TSR_RATE_KERNELS && has_linear_kernel(node))
        kind.rate = NONE;
    kind.word = word_of(node, shapes, &kind);
    return kind;
}
