// SPDX-License-Identifier: Apache-2.0
// expand_quant.c - quantized operators: the reduction is completed before the result is rounded.
//
// QLinearMatMul with k sharded in 2: each device multiplies and sums its half as 32-bit integers,
// the devices add these exactly, and each then scales and rounds the complete sum once. Rounding
// the halves first could be off by one.
#include "rules/expand/expand.h"

// Expands DynamicQuantizeLinear. Scale and zero point follow from minimum and maximum; the range
// includes zero.
void tsr__expand_dynamic_quantize(struct expansion *expansion)
{
    struct shape in = tsr__x_shape(expansion, 0);
    int64_t axes[DERIVE_MAX_RANK];
    if (in.rank < 1 || in.rank > DERIVE_MAX_RANK) {
        expansion->failed = true;
        return;
    }
    for (int i = 0; i < in.rank; i++)
        axes[i] = i;
    tsr_value *value = tsr__x_in(expansion, 0), *zero = tsr__x_scalar(expansion, TSR_FLOAT, 0);
    // Minimum and maximum over all devices: two numbers are exchanged.
    tsr_value *low = tsr__x_reduce(expansion, "ReduceMin", value, axes, in.rank, false);
    tsr_value *high = tsr__x_reduce(expansion, "ReduceMax", value, axes, in.rank, false);
    low = X_OP(expansion, "Min", low, zero);
    high = X_OP(expansion, "Max", high, zero);
    tsr_value *scale = X_OP(expansion, "Div", X_OP(expansion, "Sub", high, low),
                            tsr__x_scalar(expansion, TSR_FLOAT, 255));
    // true if all elements are zero
    tsr_value *flat = X_OP(expansion, "Equal", scale, zero);
    scale = X_OP(expansion, "Where", flat, tsr__x_scalar(expansion, TSR_FLOAT, 1), scale);
    tsr_value *point = X_OP(expansion, "Sub", zero, X_OP(expansion, "Div", low, scale));
    point = X_OP(expansion, "Clip", X_OP(expansion, "Round", point), zero,
                 tsr__x_scalar(expansion, TSR_FLOAT, 255));
    point = tsr__x_cast(expansion, point, TSR_FLOAT, TSR_UINT8);
    tsr__x_give(expansion, 0, X_OP(expansion, "QuantizeLinear", value, scale, point));
    tsr__x_give(expansion, 1, scale);
    tsr__x_give(expansion, 2, point);
}

// Returns input i, of one element, as a scalar that broadcasts with anything.
static tsr_value *as_number(struct expansion *expansion, size_t i)
{
    tsr_value *value = tsr__x_in(expansion, i);
    return tsr__x_shape(expansion, i).rank ? tsr__x_reshape(expansion, value, NULL, 0) : value;
}

// Expands QLinearMatMul: sums integers, then scales and rounds once.
void tsr__expand_qlinear_matmul(struct expansion *expansion)
{
    tsr_value *inputs[4] = {tsr__x_in(expansion, 0), tsr__x_in(expansion, 3),
                            tsr__x_in(expansion, 2), tsr__x_in(expansion, 5)};
    tsr_node *product = tsr__x_node(expansion, "MatMulInteger", 4, inputs);
    if (!product)
        return;
    tsr_value *sum = tsr__x_cast(expansion, tsr_node_output(product, 0), TSR_INT32, TSR_FLOAT);
    tsr_value *factor = X_OP(expansion, "Mul", tsr__x_in(expansion, 1), tsr__x_in(expansion, 4));
    factor = X_OP(expansion, "Div", factor, tsr__x_in(expansion, 6));
    tsr_value *y = X_OP(expansion, "Mul", sum, factor), *point = as_number(expansion, 7);
    // The scale is in the factor already, so it is 1 here.
    y = X_OP(expansion, "QuantizeLinear", y, tsr__x_scalar(expansion, TSR_FLOAT, 1), point);
    tsr__x_give(expansion, 0, y);
}

// Converts to unsigned bytes, which all kernels support. Signed values and their zero points are
// shifted by the same number.
static tsr_value *without_sign(struct expansion *expansion, tsr_value *value, tsr_dtype type)
{
    if (type == TSR_UINT8)
        return value;
    value = tsr__x_cast(expansion, value, type, TSR_INT32);
    value = X_OP(expansion, "Add", value, tsr__x_scalar(expansion, TSR_INT32, 128));
    return tsr__x_cast(expansion, value, TSR_INT32, TSR_UINT8);
}

// Returns one zero point for all channels, as ConvInteger requires. Different zero points fail the
// expansion.
static tsr_value *weight_point(struct expansion *expansion, tsr_dtype type)
{
    int point;
    if (tsr__derive_single(tsr__x_shape(expansion, 5)))
        return without_sign(expansion, as_number(expansion, 5), type);
    if (!tsr__derive_alike(tsr_node_input(expansion->twin, 5), type, &point)) {
        expansion->failed = true;
        return NULL;
    }
    return tsr__x_scalar(expansion, TSR_UINT8, type == TSR_INT8 ? point + 128 : point);
}

// Copies the attributes of the convolution to the new node. Returns false if out of memory.
static bool copy_window(struct expansion *expansion, tsr_node *to)
{
    static const char *const lists[] = {"dilations", "kernel_shape", "pads", "strides"};
    const tsr_attr *pad = tsr_node_find_attr(expansion->node, "auto_pad");
    if (tsr_node_set_int(to, "group", tsr__x_int(expansion, "group", 1)) != TSR_OK)
        return false;
    for (size_t i = 0; i < TSR_COUNT(lists); i++) {
        const int64_t *v;
        size_t n = tsr_attr_ints(tsr_node_find_attr(expansion->node, lists[i]), &v);
        if (n && tsr_node_set_ints(to, lists[i], v, n) != TSR_OK)
            return false;
    }
    size_t n;
    const char *text = pad ? tsr_attr_string(pad, &n) : NULL;
    // The attribute's text may have no terminating zero.
    struct str own =
        text ? tsr__arena_str(expansion->arena, (struct str){text, n}) : (struct str){0};
    return !text || (own.p && tsr_node_set_string(to, "auto_pad", own.p) == TSR_OK);
}

// Reshapes one number per channel, to broadcast with a result of that rank.
static tsr_value *along_channels(struct expansion *expansion, tsr_value *value, int rank)
{
    for (int i = 1; i < rank - 1; i++)
        value = tsr__x_unsqueeze(expansion, value, i);
    return value;
}

// Expands QLinearConv: sums integers and the bias, then scales and rounds once.
void tsr__expand_qlinear_conv(struct expansion *expansion)
{
    struct shape in = tsr__x_shape(expansion, 0), w = tsr__x_shape(expansion, 3);
    tsr_value *inputs[4] = {without_sign(expansion, tsr__x_in(expansion, 0), in.dtype),
                            without_sign(expansion, tsr__x_in(expansion, 3), w.dtype),
                            without_sign(expansion, as_number(expansion, 2), in.dtype),
                            weight_point(expansion, w.dtype)};
    tsr_node *conv = expansion->failed ? NULL : tsr__x_node(expansion, "ConvInteger", 4, inputs);
    if (!conv || !copy_window(expansion, conv)) {
        expansion->failed = true;
        return;
    }
    tsr_value *sum = tsr_node_output(conv, 0);
    if (tsr__x_has(expansion, 8))
        sum = X_OP(expansion, "Add", sum,
                   along_channels(expansion, tsr__x_in(expansion, 8), in.rank));
    tsr_value *factor = X_OP(expansion, "Mul", as_number(expansion, 1), tsr__x_in(expansion, 4));
    factor = X_OP(expansion, "Div", factor, as_number(expansion, 6));
    if (!tsr__derive_single(tsr__x_shape(expansion, 4)))
        factor = along_channels(expansion, factor, in.rank);
    tsr_value *y =
        X_OP(expansion, "Mul", tsr__x_cast(expansion, sum, TSR_INT32, TSR_FLOAT), factor);
    y = X_OP(expansion, "QuantizeLinear", y, tsr__x_scalar(expansion, TSR_FLOAT, 1),
             as_number(expansion, 7));
    tsr__x_give(expansion, 0, y);
}

// Expands DynamicQuantizeMatMul: quantizes the left operand, multiplies integers, and adds the bias
// last. DynamicQuantizeLinear is expanded in turn if its input is sharded.
void tsr__expand_dynamic_quantize_matmul(struct expansion *expansion)
{
    tsr_value *a = tsr__x_in(expansion, 0);
    tsr_dtype type = tsr__x_shape(expansion, 0).dtype;
    tsr_node *quantized =
        type == TSR_FLOAT ? tsr__x_nodes(expansion, "DynamicQuantizeLinear", 1, &a, 3) : NULL;
    if (!quantized) {
        expansion->failed = true;
        return;
    }
    tsr_value *inputs[4] = {tsr_node_output(quantized, 0), tsr__x_in(expansion, 1),
                            tsr_node_output(quantized, 2), tsr__x_in(expansion, 3)};
    tsr_node *product = tsr__x_node(expansion, "MatMulInteger", inputs[3] ? 4 : 3, inputs);
    if (!product)
        return;
    tsr_value *y = tsr__x_cast(expansion, tsr_node_output(product, 0), TSR_INT32, TSR_FLOAT);
    tsr_value *scale =
        X_OP(expansion, "Mul", tsr_node_output(quantized, 1), tsr__x_in(expansion, 2));
    y = X_OP(expansion, "Mul", y, scale);
    if (tsr__x_has(expansion, 4))
        y = X_OP(expansion, "Add", y, tsr__x_in(expansion, 4));
    tsr__x_give(expansion, 0, y);
}
