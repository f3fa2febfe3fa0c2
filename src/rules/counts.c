// SPDX-License-Identifier: Apache-2.0
// counts.c - arithmetic of the operators whose rule does not say it: windows, attention, packed
// weights, recurrences, models of ai.onnx.ml.
//
// A rule's factors tell how the work shrinks when it is cut, but not always how much there is: the
// window of a convolution is no factor, nor are the keys that a cache holds. Such operators have a
// row here that counts one whole node from its shapes; a part does the share of it that its factors
// have of all factors.
//
//     Conv of [4,256,56,56] with [256,256,3,3]: 2 x |Y| x 256 x 3 x 3; cut in 4 along the channels,
//       each part a quarter
#include "rules/rules.h"

#include <math.h>

// ---- sizes -------------------------------------------------------------------------------------

struct counting {
    const tsr_node *node;
    const struct shapes *shapes;
};

static struct shape shape_at(const struct counting *counting, bool out, size_t i)
{
    const tsr_value *value = NULL;
    if (out && i < tsr_node_output_count(counting->node))
        value = tsr_node_output(counting->node, i);
    if (!out && i < tsr_node_input_count(counting->node))
        value = tsr_node_input(counting->node, i);
    return value ? tsr__shapes_of(counting->shapes, value) : (struct shape){.rank = -1};
}
static struct shape in_at(const struct counting *counting, size_t i)
{
    return shape_at(counting, false, i);
}

// Size of a dimension, the last being -1; 0: no such dimension, or unknown.
static double dim(struct shape shape, int d)
{
    if (d < 0)
        d += shape.rank;
    if (d >= 0 && d < shape.rank && shape.dims[d].value > 0)
        return (double)shape.dims[d].value;
    return 0;
}

// Product of the dimensions from `first` on; 0: not known.
static double product_from(struct shape shape, int first)
{
    double n = shape.rank >= first ? 1 : 0;
    for (int d = first; d < shape.rank; d++)
        n *= dim(shape, d);
    return n;
}
static double elements(struct shape shape)
{
    return product_from(shape, 0);
}

static double attribute(const struct counting *counting, const char *name, int64_t otherwise)
{
    return (double)tsr_attr_int(tsr_node_find_attr(counting->node, name), otherwise);
}

// ---- counts: operations of the whole node, multiplication and addition being two ---------------

// Every element of the result is a sum over the window and the channels of its group: all of W but
// its first dimension.
static double count_conv(const struct counting *counting)
{
    return 2 * elements(shape_at(counting, true, 0)) * product_from(in_at(counting, 1), 1);
}
static double count_quantized_conv(const struct counting *counting)
{
    return 2 * elements(shape_at(counting, true, 0)) * product_from(in_at(counting, 3), 1);
}
// Every element of the input is spread over the window and the channels of its group.
static double count_transposed_conv(const struct counting *counting)
{
    return 2 * elements(in_at(counting, 0)) * product_from(in_at(counting, 1), 1);
}

static double count_pool(const struct counting *counting)
{
    const int64_t *sides;
    size_t n = tsr_attr_ints(tsr_node_find_attr(counting->node, "kernel_shape"), &sides);
    double window = 1;
    for (size_t i = 0; i < n; i++)
        window *= (double)sides[i];
    return elements(shape_at(counting, true, 0)) * window;
}

// A [.., K] with K x N weights, however they are packed.
static double count_packed_matmul(const struct counting *counting)
{
    return 2 * elements(in_at(counting, 0)) * attribute(counting, "N", 0);
}

// X [steps, batch, inputs]; W and R have a row for every gate of every direction.
static double count_recurrence(const struct counting *counting)
{
    struct shape x = in_at(counting, 0);
    return 2 * dim(x, 0) * dim(x, 1) *
           (elements(in_at(counting, 1)) + elements(in_at(counting, 2)));
}

// Queries with all keys, then their weights with all values. queries: elements of the queries;
// keys: how many each meets.
static double attend(double queries, double keys, double key_size, double value_size)
{
    if (key_size <= 0)
        return 0;
    return 2 * queries * keys * (1 + value_size / key_size);
}

// Keys after what came before was put in front of them.
static double with_past(double keys, struct shape past, int dimension)
{
    return keys + (past.rank > 0 ? dim(past, dimension) : 0);
}

// ai.onnx: Q [batch, heads, s, d] or [batch, s, heads d]; K and V likewise, the past of each in 4
// dimensions.
static double count_attention(const struct counting *counting)
{
    struct shape q = in_at(counting, 0), k = in_at(counting, 1), v = in_at(counting, 2);
    double q_heads = q.rank == 3 ? attribute(counting, "q_num_heads", 1) : dim(q, 1);
    double kv_heads = k.rank == 3 ? attribute(counting, "kv_num_heads", 1) : dim(k, 1);
    double size = q.rank == 3 ? dim(q, 2) / q_heads : dim(q, 3);
    double value = v.rank == 3 ? dim(v, 2) / kv_heads : dim(v, 3);
    double keys = with_past(k.rank == 3 ? dim(k, 1) : dim(k, 2), in_at(counting, 4), 2);
    return attend(elements(q), keys, size, value);
}

// com.microsoft MultiHeadAttention: query [batch, s, heads d]; key [batch, t, heads d] or [batch,
// heads, t, d]; past 6.
static double count_heads(const struct counting *counting)
{
    struct shape q = in_at(counting, 0), k = in_at(counting, 1), v = in_at(counting, 2);
    double queries = elements(q), keys = k.rank == 4 ? dim(k, 2) : dim(k, 1), ratio = 1;
    if (q.rank == 5) { // packed: [batch, s, heads, 3, d]
        queries /= 3;
        keys = dim(q, 1);
    } else if (k.rank == 5) { // keys and values packed
        keys = dim(k, 1);
    } else if (v.rank == 3 && dim(q, 2) > 0) {
        ratio = dim(v, 2) / dim(q, 2);
    }
    return attend(queries, with_past(keys, in_at(counting, 6), 2), 1, ratio);
}

// com.microsoft Attention: input [batch, s, inputs] times weights [inputs, q + k + v] first; past
// [2, batch, heads, t, d].
static double count_projected_attention(const struct counting *counting)
{
    struct shape x = in_at(counting, 0), w = in_at(counting, 1);
    double rows = dim(x, 0) * dim(x, 1), value = dim(shape_at(counting, true, 0), -1);
    double query = (dim(w, 1) - value) / 2;
    double keys = with_past(dim(x, 1), in_at(counting, 4), 3);
    return 2 * rows * elements(w) + attend(rows * query, keys, query, value);
}

// com.microsoft GroupQueryAttention: queries alone or with keys and values behind them; the present
// holds all keys.
static double count_group_query(const struct counting *counting)
{
    struct shape q = in_at(counting, 0), k = in_at(counting, 1),
                 present = shape_at(counting, true, 1);
    double heads = attribute(counting, "num_heads", 1),
           kv_heads = attribute(counting, "kv_num_heads", 1);
    double queries = elements(q), keys = dim(q, 1);
    if (k.rank < 0)
        queries *= heads / (heads + 2 * kv_heads);
    if (present.rank == 4 && dim(present, 2) > 0)
        keys = dim(present, 2);
    else
        keys = with_past(keys, in_at(counting, 3), 2);
    return attend(queries, keys, 1, 1);
}

// com.microsoft MoE: each token goes through k of the experts, [experts, a, b] each.
static double count_experts(const struct counting *counting)
{
    struct shape x = in_at(counting, 0), first = in_at(counting, 2), second = in_at(counting, 4),
                 third = in_at(counting, 6);
    double tokens = elements(x) / (dim(x, -1) > 0 ? dim(x, -1) : 1), each = 0;
    each += product_from(first, 1) + product_from(second, 1);
    each += third.rank == 3 ? product_from(third, 1) : 0;
    return 2 * tokens * attribute(counting, "k", 1) * each;
}

// ---- ai.onnx.ml: the model is in the attributes -------------------------------------------------

// Number of entries of a list attribute; 0: none.
static double length_of(const struct counting *counting, const char *name)
{
    const tsr_attr *attr = tsr_node_find_attr(counting->node, name);
    int64_t n = attr ? tsr__attr_length(attr) : 0;
    return n > 0 ? (double)n : 0;
}

// Every row of x goes down every tree, then adds the weights of a leaf, 4 of which take as long as
// one step down. The average leaf is taken to be as deep as in balanced trees: log2 of the leaves.
static double count_walks(const struct counting *counting, double trees, double leaves,
                          double weights)
{
    if (trees <= 0 || leaves < trees)
        return 0;
    return dim(in_at(counting, 0), 0) * trees * (log2(leaves / trees) + weights / leaves / 4);
}

// Nodes of one tree follow each other. A tree of n nodes has (n + 1) / 2 leaves.
static double count_tree_nodes(const struct counting *counting)
{
    const int64_t *ids;
    size_t n = tsr_attr_ints(tsr_node_find_attr(counting->node, "nodes_treeids"), &ids);
    double trees = n > 0;
    for (size_t i = 1; i < n; i++)
        trees += ids[i] != ids[i - 1];
    double weights = length_of(counting, "class_ids") + length_of(counting, "target_ids");
    return count_walks(counting, trees, ((double)n + trees) / 2, weights);
}

static double count_tree_ensemble(const struct counting *counting)
{
    double leaves = length_of(counting, "leaf_targetids");
    return count_walks(counting, length_of(counting, "tree_roots"), leaves, leaves);
}

// [rows, features] with a matrix of coefficients, which is flat.
static double count_linear(const struct counting *counting)
{
    return 2 * dim(in_at(counting, 0), 0) * length_of(counting, "coefficients");
}

#define EXPONENTIAL 12 // operations that take as long
#define POWER       20
#define VECTOR      16 // operations of a matrix product in the time of one elsewhere

// Every row meets every support vector. Without support vectors the model is linear.
static double count_support_vectors(const struct counting *counting)
{
    double features = dim(in_at(counting, 0), -1), rows = dim(in_at(counting, 0), 0);
    double vectors = features > 0 ? length_of(counting, "support_vectors") / features : 0;
    size_t n = 0;
    const tsr_attr *attr = tsr_node_find_attr(counting->node, "kernel_type");
    const char *text = attr ? tsr_attr_string(attr, &n) : NULL;
    struct str kernel = text ? (struct str){text, n} : STR("LINEAR");
    if (vectors <= 0)
        return count_linear(counting);
    if (str_is(kernel, "LINEAR"))
        return 2 * rows * vectors * features;
    if (str_is(kernel, "RBF")) // difference, square, sum
        return rows * vectors * (3 * features + EXPONENTIAL);
    return rows * vectors * (2 * features / VECTOR + POWER);
}

#define MICROSOFT "com.microsoft"
#define ML        "ai.onnx.ml"
#define NCHWC     "com.microsoft.nchwc"

static const struct {
    const char *op, *domain;
    double (*count)(const struct counting *counting);
} rows[] = {
    {"Attention", "", count_attention},
    {"Attention", MICROSOFT, count_projected_attention},
    {"AveragePool", "", count_pool},
    {"AveragePool", NCHWC, count_pool},
    {"Conv", "", count_conv},
    {"Conv", NCHWC, count_conv},
    {"ConvInteger", "", count_conv},
    {"ConvTranspose", "", count_transposed_conv},
    {"DeformConv", "", count_conv},
    {"FusedConv", MICROSOFT, count_conv},
    {"GRU", "", count_recurrence},
    {"GroupQueryAttention", MICROSOFT, count_group_query},
    {"LSTM", "", count_recurrence},
    {"LinearClassifier", ML, count_linear},
    {"LinearRegressor", ML, count_linear},
    {"LpPool", "", count_pool},
    {"MatMulBnb4", MICROSOFT, count_packed_matmul},
    {"MatMulNBits", MICROSOFT, count_packed_matmul},
    {"MaxPool", "", count_pool},
    {"MaxPool", NCHWC, count_pool},
    {"MoE", MICROSOFT, count_experts},
    {"MultiHeadAttention", MICROSOFT, count_heads},
    {"QLinearConv", "", count_quantized_conv},
    {"RNN", "", count_recurrence},
    {"SVMClassifier", ML, count_support_vectors},
    {"SVMRegressor", ML, count_support_vectors},
    {"TreeEnsemble", ML, count_tree_ensemble},
    {"TreeEnsembleClassifier", ML, count_tree_nodes},
    {"TreeEnsembleRegressor", ML, count_tree_nodes},
};

double tsr__node_count(const tsr_node *node, const struct shapes *shapes)
{
    const struct counting counting = {node, shapes};
    for (size_t i = 0; i < TSR_COUNT(rows); i++)
        if (strcmp(tsr_node_op(node), rows[i].op) == 0 &&
            str_is(tsr__node_domain_str(node), rows[i].domain))
            return rows[i].count(&counting);
    return 0;
}

double tsr__node_work(const struct rule *rule, double count, const int64_t *whole,
                      const int64_t *local)
{
    double all = tsr__rule_work(rule, whole), part = tsr__rule_work(rule, local);
    return count > 0 && all > 0 ? count * (part / all) : part;
}
