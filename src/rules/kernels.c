// SPDX-License-Identifier: Apache-2.0
// kernels.c - how ONNX Runtime's kernels use memory: which results lie where an input lay, and what
// a kernel has besides its inputs and outputs while it runs.
//
// From the definitions of its kernels (1.31: MayInplace and Alias; what they ask their allocator
// for). A sum of two tensors does not lie over one of them.
#include "rules/rules.h"

#include <stdlib.h>

// Sorted by name. Names stand for all domains: no two domains have one name for different operators
// here.
static const char *const over_input_cpu[] = {
    "BitCast",       "Cast",
    "Celu",          "Clip",
    "DFT",           "Elu",
    "HardSigmoid",   "LeakyRelu",
    "LogSoftmax",    "ParametricSoftplus",
    "Relu",          "ScaledTanh",
    "Scatter",       "ScatterElements",
    "ScatterND",     "Selu",
    "Shrink",        "Sigmoid",
    "Softmax",       "Softplus",
    "Softsign",      "Tanh",
    "TensorScatter", "ThresholdedRelu",
    "Trilu",
};
static const char *const over_input_cuda[] = {
    "Elu",       "Gelu",          "HardSigmoid",     "HardSwish", "LeakyRelu", "Relu",
    "ScatterND", "Selu",          "Shrink",          "Sigmoid",   "Softplus",  "Softsign",
    "Tanh",      "TensorScatter", "ThresholdedRelu", "Trilu",
};
static const char *const input_itself[] = {
    "Dropout", "ExpandDims", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze",
};

static int by_name(const void *name, const void *row)
{
    return strcmp(name, *(const char *const *)row);
}

static bool is_among(const tsr_node *node, const char *const *rows, size_t n)
{
    return bsearch(tsr_node_op(node), rows, n, sizeof *rows, by_name) != NULL;
}

static bool writes_over(const tsr_node *node, enum kernels kernels)
{
    if (kernels == KERNELS_CUDA)
        return is_among(node, over_input_cuda, TSR_COUNT(over_input_cuda));
    return is_among(node, over_input_cpu, TSR_COUNT(over_input_cpu));
}

enum kernel_place tsr__node_place(const tsr_node *node, const struct shapes *shapes,
                                  enum kernels kernels)
{
    if (is_among(node, input_itself, TSR_COUNT(input_itself)))
        return PLACE_OF_INPUT;
    if (writes_over(node, kernels))
        return PLACE_OVER_INPUT;
    // What the convolution before it does as well: the result is that one's.
    if (tsr__node_kind(node, shapes).move == NODE_MOVES_NOTHING)
        return PLACE_OVER_INPUT;
    return PLACE_OWN;
}

// ---- what a kernel has besides ------------------------------------------------------------------

struct kernel {
    const tsr_node *node;
    const struct shapes *shapes;
};

static struct shape input_shape(const struct kernel *kernel, size_t i)
{
    if (i >= tsr_node_input_count(kernel->node) || !tsr_node_input(kernel->node, i))
        return (struct shape){.rank = -1};
    return tsr__shapes_of(kernel->shapes, tsr_node_input(kernel->node, i));
}

// Product of the dimensions from `first` on; 0: not known.
static double product_from(struct shape shape, int first)
{
    double n = 1;
    if (shape.rank < first)
        return 0;
    for (int d = first; d < shape.rank; d++) {
        if (shape.dims[d].value < 0)
            return 0;
        n *= (double)shape.dims[d].value;
    }
    return n;
}

// Every element of the input, spread over the window and the channels of a group: X [n, c, h, w], W
// [c, m, kh, kw].
static double columns_of_transposed(const struct kernel *kernel)
{
    return 4 * product_from(input_shape(kernel, 0), 2) * product_from(input_shape(kernel, 1), 1);
}

// One image of sums of 32 bits; the window of every element of the result, in bytes, unless it is a
// single one. Weights with sign need only a pointer for each element of the window.
static double sums_and_columns(const struct kernel *kernel, size_t weights)
{
    struct shape w = input_shape(kernel, weights);
    struct shape y = tsr__shapes_of(kernel->shapes, tsr_node_output(kernel->node, 0));
    double image = product_from(y, 2), window = product_from(w, 1);
    if (tsr_value_dtype(tsr_node_input(kernel->node, weights)) == TSR_INT8)
        return 8 * image * product_from(w, 2);
    double columns = product_from(w, 2) > 1 ? image * window : 0;
    return 4 * product_from(y, 1) + columns;
}
static double scratch_quantized_conv(const struct kernel *kernel)
{
    return sums_and_columns(kernel, 3);
}
static double scratch_integer_conv(const struct kernel *kernel)
{
    return sums_and_columns(kernel, 1);
}

// The gates of all steps at once, for each direction: X [steps, batch, inputs], R [directions,
// gates x hidden, hidden].
static double gates_of_steps(const struct kernel *kernel)
{
    struct shape x = input_shape(kernel, 0), r = input_shape(kernel, 2);
    if (x.rank != 3 || r.rank != 3 || x.dims[2].value <= 0)
        return 0;
    double steps = product_from(x, 0) / (double)x.dims[2].value;
    return 4 * steps * (double)r.dims[0].value * (double)r.dims[1].value;
}

// Sorted by name.
static const struct scratch_row {
    const char *op;
    double (*bytes)(const struct kernel *kernel);
} scratch_rows[] = {
    {"ConvInteger", scratch_integer_conv},
    {"ConvTranspose", columns_of_transposed},
    {"GRU", gates_of_steps},
    {"LSTM", gates_of_steps},
    {"QLinearConv", scratch_quantized_conv},
    {"RNN", gates_of_steps},
};

int64_t tsr__node_scratch(const tsr_node *node, const struct shapes *shapes)
{
    struct kernel kernel = {node, shapes};
    for (size_t i = 0; i < TSR_COUNT(scratch_rows); i++) {
        if (strcmp(scratch_rows[i].op, tsr_node_op(node)) != 0)
            continue;
        double bytes = scratch_rows[i].bytes(&kernel);
        return bytes > 0 && bytes < 0x1p62 ? (int64_t)bytes : 0;
    }
    return 0;
}

// ---- constants of 16 bits on CPUs ---------------------------------------------------------------

// Which have no kernels for float16 on CPUs: their constants are turned into float32, and the
// others go. MatMulNBits keeps its scales in both.
static const struct widened_row {
    const char *op;
    int input; // -1: each
    int more;  // bytes for each byte of the constant
} widened_rows[] = {
    {"Conv", -1, 1},   {"ConvTranspose", -1, 1}, {"GRU", -1, 1}, {"LSTM", -1, 1},
    {"MatMul", -1, 1}, {"MatMulNBits", 2, 2},    {"RNN", -1, 1},
};

int tsr__node_widens(const tsr_node *node, size_t input)
{
    const tsr_value *value = tsr_node_input(node, input);
    if (!value || tsr_value_dtype(value) != TSR_FLOAT16)
        return 0;
    for (size_t i = 0; i < TSR_COUNT(widened_rows); i++) {
        const struct widened_row *row = &widened_rows[i];
        if (strcmp(row->op, tsr_node_op(node)) == 0 && (row->input < 0 || row->input == (int)input))
            return row->more;
    }
    return 0;
}

// Numbers of 8 bits stay so: products behind it take them as they are.
bool tsr__node_folds(const tsr_node *node)
{
    return strcmp(tsr_node_op(node), "DequantizeLinear") != 0;
}
