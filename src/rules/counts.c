// SPDX-License-Identifier: Apache-2.0
// counts.c - arithmetic operations of nodes whose rule does not give them: windows, attention,
// packed weights, recurrences, models of ai.onnx.ml (column `count` of the table).
//
// The factors of a rule show how the work shrinks when it is sharded, but not always how much work
// there is. The window of a convolution is not a factor, nor are the keys in a cache. The functions
// here count one unsharded node from its shapes. A shard has its share of that count, in proportion
// to its factors.
//
//     Example: Conv of [4,256,56,56] with weights [256,256,3,3] does 2 x 256 x 3 x 3 operations for
//       each element of the result. Sharded in 4 along the channels, each shard does a quarter.
#include "rules/internal.h"

#include <math.h>

// ---- sizes -------------------------------------------------------------------------------------

struct shape tsr__sized_input(const struct sized_node *sized, size_t i)
{
    return tsr__shapes_of(sized->shapes, tsr_node_input(sized->node, i));
}

static struct shape output(const struct sized_node *sized, size_t i)
{
    return tsr__shapes_of(sized->shapes, tsr_node_output(sized->node, i));
}

// Returns the size of dimension d, or 0 if it is unknown or does not exist. d -1 is the last
// dimension.
static double dim(struct shape shape, int d)
{
    if (d < 0)
        d += shape.rank;
    if (d >= 0 && d < shape.rank && shape.dims[d].value > 0)
        return (double)shape.dims[d].value;
    return 0;
}

double tsr__shape_product(struct shape shape, int first)
{
    double n = shape.rank >= first ? 1 : 0;
    for (int d = first; d < shape.rank; d++)
        n *= dim(shape, d);
    return n;
}
static double elements(struct shape shape)
{
    return tsr__shape_product(shape, 0);
}

static double attribute(const struct sized_node *sized, const char *name, int64_t otherwise)
{
    return (double)tsr_attr_int(tsr_node_find_attr(sized->node, name), otherwise);
}

// ---- counts: operations of the unsharded node; a multiplication and an addition are two ---------

// Returns the operations of a convolution. Every element of the result is a sum over the window and
// the channels of its group, which are all dimensions of W but the first.
double tsr__count_conv(const struct sized_node *sized)
{
    return 2 * elements(output(sized, 0)) * tsr__shape_product(tsr__sized_input(sized, 1), 1);
}
double tsr__count_quantized_conv(const struct sized_node *sized)
{
    return 2 * elements(output(sized, 0)) * tsr__shape_product(tsr__sized_input(sized, 3), 1);
}
// Returns the operations of a transposed convolution. Every element of the input is added to a
// window in each output channel of its group; these are all dimensions of W but the first.
double tsr__count_transposed_conv(const struct sized_node *sized)
{
    return 2 * elements(tsr__sized_input(sized, 0)) *
           tsr__shape_product(tsr__sized_input(sized, 1), 1);
}

double tsr__count_pool(const struct sized_node *sized)
{
    const int64_t *sides;
    size_t n = tsr_attr_ints(tsr_node_find_attr(sized->node, "kernel_shape"), &sides);
    double window = 1;
    for (size_t i = 0; i < n; i++)
        window *= (double)sides[i];
    return elements(output(sized, 0)) * window;
}

// Returns the operations of the product of A [.., K] with K x N weights, in any packing.
double tsr__count_packed_matmul(const struct sized_node *sized)
{
    return 2 * elements(tsr__sized_input(sized, 0)) * attribute(sized, "N", 0);
}

// Returns the operations of a recurrent layer: X [steps, batch, inputs]; W and R have a row for
// every gate of every direction.
double tsr__count_recurrence(const struct sized_node *sized)
{
    struct shape x = tsr__sized_input(sized, 0);
    return 2 * dim(x, 0) * dim(x, 1) *
           (elements(tsr__sized_input(sized, 1)) + elements(tsr__sized_input(sized, 2)));
}

// Returns the operations of two products: queries with keys, and scores with values. `queries`:
// number of elements of the queries; `keys`: number of keys that each query uses; the sizes are
// elements per head.
static double attend(double queries, double keys, double key_size, double value_size)
{
    return key_size <= 0 ? 0 : 2 * queries * keys * (1 + value_size / key_size);
}

// Returns the number of keys, including those of the tensor `past`, which counts them in
// `dimension`.
static double with_past(double keys, struct shape past, int dimension)
{
    return keys + (past.rank > 0 ? dim(past, dimension) : 0);
}

// Returns the operations of Attention of ai.onnx. Q, K and V are [batch, heads, s, d] or [batch, s,
// heads * d]; past keys and values have 4 dimensions.
double tsr__count_attention(const struct sized_node *sized)
{
    struct shape q = tsr__sized_input(sized, 0), k = tsr__sized_input(sized, 1),
                 v = tsr__sized_input(sized, 2);
    double q_heads = q.rank == 3 ? attribute(sized, "q_num_heads", 1) : dim(q, 1);
    double kv_heads = k.rank == 3 ? attribute(sized, "kv_num_heads", 1) : dim(k, 1);
    double size = q.rank == 3 ? dim(q, 2) / q_heads : dim(q, 3);
    double value = v.rank == 3 ? dim(v, 2) / kv_heads : dim(v, 3);
    double keys = with_past(k.rank == 3 ? dim(k, 1) : dim(k, 2), tsr__sized_input(sized, 4), 2);
    return attend(elements(q), keys, size, value);
}

// Returns the operations of com.microsoft MultiHeadAttention: query [batch, s, heads * d]; key
// [batch, t, heads * d] or [batch, heads, t, d]; the past is input 6.
double tsr__count_heads(const struct sized_node *sized)
{
    struct shape q = tsr__sized_input(sized, 0), k = tsr__sized_input(sized, 1),
                 v = tsr__sized_input(sized, 2);
    double queries = elements(q), keys = k.rank == 4 ? dim(k, 2) : dim(k, 1), ratio = 1;
    if (q.rank == 5) { // packed: [batch, s, heads, 3, d]
        queries /= 3;
        keys = dim(q, 1);
    } else if (k.rank == 5) { // keys and values packed
        keys = dim(k, 1);
    } else if (v.rank == 3 && dim(q, 2) > 0) {
        ratio = dim(v, 2) / dim(q, 2);
    }
    return attend(queries, with_past(keys, tsr__sized_input(sized, 6), 2), 1, ratio);
}

// Returns the operations of com.microsoft Attention. The projection is input [batch, s, inputs]
// times weights [inputs, q + k + v]; the past is [2, batch, heads, t, d].
double tsr__count_projected_attention(const struct sized_node *sized)
{
    struct shape x = tsr__sized_input(sized, 0), w = tsr__sized_input(sized, 1);
    double rows = dim(x, 0) * dim(x, 1), value = dim(output(sized, 0), -1);
    double query = (dim(w, 1) - value) / 2;
    double keys = with_past(dim(x, 1), tsr__sized_input(sized, 4), 3);
    return 2 * rows * elements(w) + attend(rows * query, keys, query, value);
}

// Returns the operations of com.microsoft GroupQueryAttention. Input 0 has the queries, or queries,
// keys and values together; the present cache holds all keys.
double tsr__count_group_query(const struct sized_node *sized)
{
    struct shape q = tsr__sized_input(sized, 0), k = tsr__sized_input(sized, 1),
                 present = output(sized, 1);
    double heads = attribute(sized, "num_heads", 1), kv_heads = attribute(sized, "kv_num_heads", 1);
    double queries = elements(q), keys = dim(q, 1);
    if (k.rank < 0)
        queries *= heads / (heads + 2 * kv_heads);
    if (present.rank == 4 && dim(present, 2) > 0)
        keys = dim(present, 2);
    else
        keys = with_past(keys, tsr__sized_input(sized, 3), 2);
    return attend(queries, keys, 1, 1);
}

// Returns the operations of com.microsoft MoE. Each token uses k of the experts, whose weights are
// [experts, a, b].
double tsr__count_experts(const struct sized_node *sized)
{
    struct shape x = tsr__sized_input(sized, 0), first = tsr__sized_input(sized, 2),
                 second = tsr__sized_input(sized, 4), third = tsr__sized_input(sized, 6);
    double tokens = elements(x) / (dim(x, -1) > 0 ? dim(x, -1) : 1), each = 0;
    each += tsr__shape_product(first, 1) + tsr__shape_product(second, 1);
    each += third.rank == 3 ? tsr__shape_product(third, 1) : 0;
    return 2 * tokens * attribute(sized, "k", 1) * each;
}

// Returns the operations of com.microsoft QMoE: like MoE, with weights of 2, 4 or 8 bits, packed
// into bytes.
double tsr__count_packed_experts(const struct sized_node *sized)
{
    struct shape x = tsr__sized_input(sized, 0);
    double tokens = elements(x) / (dim(x, -1) > 0 ? dim(x, -1) : 1), bytes = 0;
    double bits = attribute(sized, "expert_weight_bits", 4);
    for (size_t i = 2; i <= 8; i += 3) {
        struct shape layer = tsr__sized_input(sized, i);
        bytes += layer.rank == 3 ? tsr__shape_product(layer, 1) : 0;
    }
    return bits > 0 ? 2 * tokens * attribute(sized, "k", 1) * bytes * 8 / bits : 0;
}

// ---- ai.onnx.ml: the model is in the attributes -------------------------------------------------

// Returns the number of entries of a list attribute; 0: absent.
static double length_of(const struct sized_node *sized, const char *name)
{
    const tsr_attr *attr = tsr_node_find_attr(sized->node, name);
    int64_t n = attr ? tsr__attr_length(attr) : 0;
    return n > 0 ? (double)n : 0;
}

// Returns the operations of a tree ensemble: every row of x descends every tree, then adds the
// weights of a leaf. Adding four weights takes as long as one step down. The depth of a leaf is
// estimated as in balanced trees: log2 of the number of leaves of a tree.
static double count_walks(const struct sized_node *sized, double trees, double leaves,
                          double weights)
{
    if (trees <= 0 || leaves < trees)
        return 0;
    return dim(tsr__sized_input(sized, 0), 0) * trees *
           (log2(leaves / trees) + weights / leaves / 4);
}

// Returns the operations of TreeEnsembleClassifier and TreeEnsembleRegressor. The nodes of a tree
// are adjacent, so the trees are counted by changes of the tree id. A tree of n nodes has (n + 1) /
// 2 leaves.
double tsr__count_tree_nodes(const struct sized_node *sized)
{
    const int64_t *ids;
    size_t n = tsr_attr_ints(tsr_node_find_attr(sized->node, "nodes_treeids"), &ids);
    double trees = n > 0;
    for (size_t i = 1; i < n; i++)
        trees += ids[i] != ids[i - 1];
    double weights = length_of(sized, "class_ids") + length_of(sized, "target_ids");
    return count_walks(sized, trees, ((double)n + trees) / 2, weights);
}

double tsr__count_tree_ensemble(const struct sized_node *sized)
{
    double leaves = length_of(sized, "leaf_targetids");
    return count_walks(sized, length_of(sized, "tree_roots"), leaves, leaves);
}

// Returns the operations of a product: [rows, features] times the matrix of coefficients, which is
// stored as a flat list.
double tsr__count_linear(const struct sized_node *sized)
{
    return 2 * dim(tsr__sized_input(sized, 0), 0) * length_of(sized, "coefficients");
}

#define EXPONENTIAL 12 // an exponential takes as long as this number of operations
#define POWER       20
#define VECTOR      16 // operations of a matrix product in the time of one other operation

// Returns the operations of a support vector machine: every row is compared with every support
// vector. Without support vectors the model is linear.
double tsr__count_support_vectors(const struct sized_node *sized)
{
    double features = dim(tsr__sized_input(sized, 0), -1),
           rows = dim(tsr__sized_input(sized, 0), 0);
    double vectors = features > 0 ? length_of(sized, "support_vectors") / features : 0;
    size_t n;
    const char *text = tsr_attr_string(tsr_node_find_attr(sized->node, "kernel_type"), &n);
    struct str kernel = text ? (struct str){text, n} : STR("LINEAR");
    if (vectors <= 0)
        return tsr__count_linear(sized);
    if (str_is(kernel, "LINEAR"))
        return 2 * rows * vectors * features;
    if (str_is(kernel, "RBF")) // difference, square, sum
        return rows * vectors * (3 * features + EXPONENTIAL);
    return rows * vectors * (2 * features / VECTOR + POWER);
}

double tsr__node_count(const tsr_node *node, const struct shapes *shapes)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && row->count ? row->count(&(struct sized_node){node, shapes}) : 0;
}

// Returns the steps of LSTM, GRU and RNN. Input 2 has the recurrent weights of each direction.
static struct node_weights recurrent_weights(const tsr_node *node, const struct rule *rule,
                                             const int64_t *local)
{
    bool batch_first = tsr_attr_int(tsr_node_find_attr(node, "layout"), 0) != 0;
    const struct rule_dim *time = &rule->inputs[0].dims[batch_first],
                          *direction = &rule->inputs[2].dims[0];
    double steps = time->n ? (double)local[time->factors[0]] : 1;
    double directions = direction->n ? (double)local[direction->factors[0]] : 1;
    return (struct node_weights){
        .input = 2, .steps = (steps - 1) * directions, .parts = directions};
}

// ONNX Runtime 1.31 multiplies 4-bit weights by float32 on CPUs in two ways. It unpacks them while
// it computes one row; for several rows it first unpacks them into memory. These are operations of
// a matrix product that take the same time. Measured on one core with 2,048 x 2,048 weights: 0.7 ms
// for 1 row, 2.3 ms for 4, 3.2 ms for 16. With accuracy_level 4 it multiplies integers and unpacks
// nothing: 0.4, 0.7 and 1.9 ms.
#define UNPACK_ROW  10
#define UNPACK_ROWS 30
#define INTEGERS    4

// Returns the weights of MatMulNBits. Input 0 has a row for each combination of its dimensions but
// the last.
static struct node_weights packed_weights(const tsr_node *node, const struct rule *rule,
                                          const int64_t *local)
{
    double rows = 1, bits = (double)tsr_attr_int(tsr_node_find_attr(node, "bits"), 4);
    const struct rule_tensor *x = &rule->inputs[0];
    if (tsr_attr_int(tsr_node_find_attr(node, "accuracy_level"), 0) == INTEGERS || bits <= 0)
        return (struct node_weights){0};
    for (int d = 0; d < x->rank - 1; d++)
        for (int k = 0; k < x->dims[d].n; k++)
            rows *= (double)local[x->dims[d].factors[k]];
    bool row = rows <= 1;
    return (struct node_weights){.input = 1,
                                 .parts = 1,
                                 .unpacked = (row ? UNPACK_ROW : UNPACK_ROWS) * 8 / bits,
                                 .row = row};
}

struct node_weights tsr__node_weights(const tsr_node *node, const struct rule *rule,
                                      const int64_t *local)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (row && row->work == WORK_RECURRENCE && rule->n_inputs > 2)
        return recurrent_weights(node, rule, local);
    if (row && row->count == tsr__count_packed_matmul && rule->n_inputs > 1)
        return packed_weights(node, rule, local);
    return (struct node_weights){0};
}

double tsr__node_work(const struct rule *rule, double count, const int64_t *whole,
                      const int64_t *local)
{
    double all = tsr__rule_work(rule, whole), part = tsr__rule_work(rule, local);
    return count > 0 && all > 0 ? count * (part / all) : part;
}
