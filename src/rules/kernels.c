// SPDX-License-Identifier: Apache-2.0
// kernels.c - how ONNX Runtime's kernels for CPUs use memory: which results lie where an input lay.
//
// From the definitions of its kernels (1.31: MayInplace and Alias). A sum of two tensors is not among them.
#include "rules/rules.h"

#include <stdlib.h>

// Sorted by name. Names stand for all domains: no two domains have one name for different operators here.
static const char *const over_input[] = {
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

enum kernel_place tsr__kernel_place(const tsr_node *node, const struct shapes *shapes)
{
    if (is_among(node, input_itself, TSR_COUNT(input_itself)))
        return PLACE_OF_INPUT;
    if (is_among(node, over_input, TSR_COUNT(over_input)))
        return PLACE_OVER_INPUT;
    // What the convolution before it does as well: the result is that one's.
    if (tsr__node_kind(node, shapes).move == NODE_MOVES_NOTHING)
        return PLACE_OVER_INPUT;
    return PLACE_OWN;
}
