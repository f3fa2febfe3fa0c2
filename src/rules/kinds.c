// SPDX-License-Identifier: Apache-2.0
// kinds.c - the kind of work of a node, for which devices may have separate rates (tsr_rate,
// tsr_move).
//
// An engine reaches one speed in a large matrix product, another in a convolution, and a third if
// it unpacks 4-bit weights; a softmax uses memory bandwidth less efficiently than a sum. The column
// `work` of the table has the kind of each operator. Operators without a row are element-wise: they
// use the device's default rates.
//
//     Examples: a Conv with 64 groups of one channel has TSR_RATE_DEPTHWISE, a Softmax has
//     TSR_MOVE_SOFTMAX, a Reshape moves nothing.
#include "rules/internal.h"

#define NONE     (-1)
#define LONG_ROW 256 // least elements of a row that is copied as a block

static const struct node_kind kinds[] = {
    [WORK_ELEMENTWISE] = {.rate = NONE, .move = TSR_MOVE_STREAM},
    [WORK_ATTENTION] = {.rate = TSR_RATE_ATTENTION, .move = TSR_MOVE_CACHE},
    [WORK_CONVOLUTION] = {.rate = TSR_RATE_CONVOLUTION, .move = TSR_MOVE_STREAM},
    [WORK_COPY] = {.rate = NONE, .move = TSR_MOVE_COPY},
    [WORK_CURVE] = {.rate = NONE, .move = TSR_MOVE_CURVE},
    [WORK_ERROR_FUNCTION] = {.rate = NONE, .move = TSR_MOVE_ERROR},
    [WORK_NORM] = {.rate = NONE, .move = TSR_MOVE_NORM},
    [WORK_PACKED_PRODUCT] = {.rate = TSR_RATE_PACKED, .move = TSR_MOVE_PACKED},
    [WORK_POOL] = {.rate = TSR_RATE_POOL, .move = TSR_MOVE_POOL},
    [WORK_PRODUCT] = {.rate = NONE, .move = TSR_MOVE_WEIGHTS},
    [WORK_RECURRENCE] = {.rate = TSR_RATE_RECURRENCE, .move = TSR_MOVE_WEIGHTS},
    [WORK_REDUCTION] = {.rate = NONE, .move = TSR_MOVE_REDUCE},
    [WORK_SOFTMAX] = {.rate = NONE, .move = TSR_MOVE_SOFTMAX},
    [WORK_SUPPORT_VECTORS] = {.rate = TSR_RATE_KERNELS, .move = TSR_MOVE_STREAM},
    [WORK_TRANSPOSE] = {.rate = NONE, .move = TSR_MOVE_TURN},
    [WORK_TREES] = {.rate = TSR_RATE_TREES, .move = TSR_MOVE_STREAM},
    [WORK_VIEW] = {.rate = NONE, .move = NODE_MOVES_NOTHING},
};

// True if each group of the convolution has one channel: weights [channels, 1, ...] and more than
// one group.
static bool is_depthwise(const tsr_node *node, const struct shapes *shapes)
{
    const tsr_value *weights = tsr_node_input(node, 1);
    if (!weights || tsr_attr_int(tsr_node_find_attr(node, "group"), 1) < 2)
        return false;
    struct shape shape = tsr__shapes_of(shapes, weights);
    return shape.rank > 1 && shape.dims[1].value == 1;
}

// True for a support vector machine without a kernel function, which ONNX Runtime computes as a
// matrix product.
static bool has_linear_kernel(const tsr_node *node)
{
    size_t n;
    const char *text = tsr_attr_string(tsr_node_find_attr(node, "kernel_type"), &n);
    return !text || str_is((struct str){text, n}, "LINEAR");
}

static bool is_op(const tsr_node *node, const char *op)
{
    return node && strcmp(tsr_node_op(node), op) == 0;
}

// True for a Transpose that moves the last axis: rows become columns, element by element.
static bool moves_last_axis(const tsr_node *node, const struct shapes *shapes)
{
    const int64_t *perm = NULL;
    size_t rank = tsr_attr_ints(tsr_node_find_attr(node, "perm"), &perm);
    if (rank == 0) // without `perm` all axes are reversed
        return tsr__shapes_of(shapes, tsr_node_input(node, 0)).rank > 1;
    return perm[rank - 1] != (int64_t)rank - 1;
}

// True if rows of the last axis are long enough to be copied as blocks of memory.
static bool has_long_rows(const tsr_node *node, const struct shapes *shapes)
{
    struct shape shape = tsr__shapes_of(shapes, tsr_node_input(node, 0));
    return shape.rank > 0 && shape.dims[shape.rank - 1].value >= LONG_ROW;
}

// True if the node has two inputs of the same known shape, so that none is broadcast.
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

// Returns a name for nodes whose memory access differs from others of their kind: element-wise
// nodes with two inputs of the same shape, and transposes of single elements or long rows. NULL:
// none of these.
static const char *access_name(const tsr_node *node, const struct shapes *shapes,
                               const struct node_kind *kind)
{
    if (kind->move == TSR_MOVE_STREAM && kind->rate == NONE && joins_two(node, shapes))
        return "join";
    if (!is_op(node, "Transpose"))
        return NULL;
    if (moves_last_axis(node, shapes))
        return "scatter";
    return has_long_rows(node, shapes) ? "rows" : NULL;
}

// ---- nodes that engines fuse into the node before them ------------------------------------------

// Returns the producer of the value, or NULL if the value has several readers or is an output of
// the graph.
static const tsr_node *sole_producer(const tsr_value *value)
{
    if (!value || tsr_value_is_output(value) || tsr_value_use_count(value) != 1)
        return NULL;
    return tsr_value_producer(value);
}

// True for an Add or BatchNormalization that is the only reader of a Conv's result.
static bool joins_convolution(const tsr_node *node)
{
    if (is_op(node, "BatchNormalization"))
        return is_op(sole_producer(tsr_node_input(node, 0)), "Conv");
    if (!is_op(node, "Add"))
        return false;
    return is_op(sole_producer(tsr_node_input(node, 0)), "Conv") ||
           is_op(sole_producer(tsr_node_input(node, 1)), "Conv");
}

static bool is_one_number(const tsr_value *value, const struct shapes *shapes)
{
    struct shape shape = tsr__shapes_of(shapes, value);
    return tsr_value_initializer(value) &&
           (shape.rank == 0 || (shape.rank == 1 && shape.dims[0].value == 1));
}

// True for a Mul or Div of a MatMul's result by a constant of one element.
static bool scales_product(const tsr_node *node, const struct shapes *shapes)
{
    if (!is_op(node, "Mul") && !is_op(node, "Div"))
        return false;
    const tsr_value *a = tsr_node_input(node, 0), *b = tsr_node_input(node, 1);
    return is_op(sole_producer(a), "MatMul") && b && is_one_number(b, shapes);
}

// True if ONNX Runtime fuses the node into a Conv before it, on CPUs and GPUs: an Add, a
// BatchNormalization, or an activation after the Conv or after such an Add or BatchNormalization.
static bool is_fused(const tsr_node *node)
{
    static const char *const ends[] = {"Clip", "HardSigmoid", "LeakyRelu",
                                       "Relu", "Sigmoid",     "Tanh"};
    bool ends_it = false;
    for (size_t i = 0; i < TSR_COUNT(ends); i++)
        ends_it = ends_it || is_op(node, ends[i]);
    const tsr_node *before = ends_it ? sole_producer(tsr_node_input(node, 0)) : NULL;
    return joins_convolution(node) || is_op(before, "Conv") ||
           (before && joins_convolution(before));
}

// True if several query heads share the keys and values of one head.
static bool shares_caches(const tsr_node *node)
{
    int64_t keys = tsr_attr_int(tsr_node_find_attr(node, "kv_num_heads"), 0);
    return keys > 0 && (tsr_attr_int(tsr_node_find_attr(node, "num_heads"), 0) > keys ||
                        tsr_attr_int(tsr_node_find_attr(node, "q_num_heads"), 0) > keys);
}

struct node_kind tsr__node_kind(const tsr_node *node, const struct shapes *shapes)
{
    if (is_fused(node) || scales_product(node, shapes))
        return kinds[WORK_VIEW];
    return tsr__node_kind_apart(node, shapes);
}

struct node_kind tsr__node_kind_apart(const tsr_node *node, const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of_node(node);
    struct node_kind kind = kinds[row ? row->work : WORK_ELEMENTWISE];
    if (kind.rate == TSR_RATE_CONVOLUTION && is_depthwise(node, shapes))
        kind.rate = TSR_RATE_DEPTHWISE;
    if (kind.rate == TSR_RATE_KERNELS && has_linear_kernel(node))
        kind.rate = NONE;
    if (kind.move == TSR_MOVE_CACHE && shares_caches(node))
        kind.move = TSR_MOVE_GROUPED;
    kind.word = access_name(node, shapes, &kind);
    return kind;
}

// ---- rounding ---------------------------------------------------------------------------------

// True if the result is some of the elements, so it has no rounding error.
static bool selects(const tsr_node *node)
{
    static const char *const ops[] = {"GlobalMaxPool", "Hardmax",   "MaxPool", "MaxRoiPool",
                                      "ReduceMax",     "ReduceMin", "TopK"};
    for (size_t i = 0; i < TSR_COUNT(ops); i++)
        if (is_op(node, ops[i]))
            return true;
    return false;
}

static bool has_sums(const struct rule *rule)
{
    for (int i = 0; i < rule->n_factors; i++) {
        const struct rule_factor *factor = &rule->factors[i];
        if (factor->kind == FACTOR_STAT)
            return true;
        if (factor->kind == FACTOR_RED &&
            (factor->combine == COMBINE_SUM || factor->combine == COMBINE_PROD))
            return true;
    }
    return false;
}

bool tsr__node_rounds(const tsr_node *node, const struct rule *rule)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (!row || selects(node))
        return false;
    switch (row->work) {
    case WORK_COPY:
    case WORK_ELEMENTWISE:
    case WORK_TRANSPOSE:
    case WORK_VIEW:
        return has_sums(rule);
    default:
        return true;
    }
}
