// SPDX-License-Identifier: Apache-2.0
// blocked.c - finds copies between the plain layout of images and the blocked-channel layout. On
// CPUs, ONNX Runtime's convolutions and the pools, sums and activations after them use blocks of
// channels. A value is copied where an operator without blocks reads a blocked value, and where a
// convolution reads a plain value.
//
//     Example: x -> Conv -> Relu -> Conv -> Relu -> HaloExchange: x is copied before the first
//       Conv, and the result of the last Relu is copied before the HaloExchange
#include "rules/rules.h"

#include <stdlib.h>

#define LEAST_CHANNELS 16 // with fewer channels, a convolution reads the plain layout
#define DEEPEST        64 // limit of the recursion in is_blocked

// Sorted by name. `begins`: operators that convert their input to the blocked layout; the others
// keep the layout of their input.
static const struct blocked_row {
    const char *op;
    bool begins;
} rows[] = {
    {"Add", false},
    {"AveragePool", true},
    {"BatchNormalization", false},
    {"Concat", false},
    {"Conv", true},
    {"FusedConv", true},
    {"Gelu", false},
    {"GlobalAveragePool", false},
    {"GlobalMaxPool", false},
    {"HardSigmoid", false},
    {"MaxPool", true},
    {"Relu", false},
    {"Resize", false},
    {"Sigmoid", false},
    {"Sum", false},
    {"Tanh", false},
    {"Upsample", false},
};

static int by_op(const void *op, const void *row)
{
    return strcmp(op, ((const struct blocked_row *)row)->op);
}

static const struct blocked_row *row_of(const tsr_node *node)
{
    return bsearch(tsr_node_op(node), rows, TSR_COUNT(rows), sizeof *rows, by_op);
}

// True if the node can work on blocked channels: its input is a float32 tensor of rank 4, and the
// weights of a convolution are constant.
static bool is_blocked_op(const tsr_node *node, const struct shapes *shapes)
{
    const struct blocked_row *row = row_of(node);
    if (!row || !tsr_node_input(node, 0))
        return false;
    const tsr_value *x = tsr_node_input(node, 0);
    if (tsr_value_dtype(x) != TSR_FLOAT || tsr__shapes_of(shapes, x).rank != 4)
        return false;
    if (!row->begins || tsr_node_input_count(node) < 2)
        return true;
    return tsr_value_initializer(tsr_node_input(node, 1)) != NULL;
}

// True if the value is stored in blocks: its producer converts to blocks, or keeps the blocked
// layout of its first input. Assumed to be true after DEEPEST nodes.
static bool is_blocked(const tsr_value *value, const struct shapes *shapes, int deep)
{
    const tsr_node *maker = tsr_value_producer(value);
    if (!maker || !is_blocked_op(maker, shapes))
        return false;
    if (row_of(maker)->begins || deep > DEEPEST)
        return true;
    return is_blocked(tsr_node_input(maker, 0), shapes, deep + 1);
}

// ---- copies ------------------------------------------------------------------------------------

bool tsr__node_takes_blocks(const tsr_node *node, const struct shapes *shapes)
{
    return row_of(node) && is_blocked_op(node, shapes);
}

struct readers {
    const struct shapes *shapes;
    bool others; // some reader needs the plain layout
};

static bool look_at_reader(void *data, tsr_node *node, size_t input)
{
    struct readers *readers = data;
    (void)input;
    readers->others = readers->others || !tsr__node_takes_blocks(node, readers->shapes);
    return true;
}

static bool wants_channels(const tsr_value *x, const struct shapes *shapes)
{
    struct shape shape = tsr__shapes_of(shapes, x);
    return shape.rank == 4 && shape.dims[1].value >= LEAST_CHANNELS;
}

bool tsr__node_copies_input(const tsr_node *node, const struct shapes *shapes)
{
    if (!is_blocked_op(node, shapes) || !row_of(node)->begins)
        return false;
    const tsr_value *x = tsr_node_input(node, 0);
    return wants_channels(x, shapes) && !is_blocked(x, shapes, 0);
}

bool tsr__node_copies_output(const tsr_node *node, const struct shapes *shapes)
{
    const tsr_value *y = tsr_node_output(node, 0);
    struct readers readers = {shapes, false};
    if (!y || !is_blocked(y, shapes, 0))
        return false;
    tsr_value_uses(y, look_at_reader, &readers);
    return readers.others || tsr_value_is_output(y);
}
