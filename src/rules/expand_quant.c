// SPDX-License-Identifier: Apache-2.0
// expand_quant.c - quantised operators: what is rounded after a reduction is reduced first.
#include "rules/expand.h"

// Scale and zero point from the least and the greatest, zero among them.
void tsr__expand_dynamic_quantize(struct expansion *x)
{
    struct shape in = tsr__x_shape(x, 0);
    int64_t axes[DERIVE_MAX_RANK];
    if (in.rank < 1 || in.rank > DERIVE_MAX_RANK) {
        x->failed = true;
        return;
    }
    for (int i = 0; i < in.rank; i++)
        axes[i] = i;
    tsr_value *v = tsr__x_in(x, 0), *zero = tsr__x_scalar(x, TSR_FLOAT, 0);
    tsr_value *low = tsr__x_reduce(x, "ReduceMin", v, axes, in.rank, false);
    tsr_value *high = tsr__x_reduce(x, "ReduceMax", v, axes, in.rank, false);
    low = tsr__x_op(x, "Min", 2, low, zero);
    high = tsr__x_op(x, "Max", 2, high, zero);
    tsr_value *scale =
        tsr__x_op(x, "Div", 2, tsr__x_op(x, "Sub", 2, high, low), tsr__x_scalar(x, TSR_FLOAT, 255));
    tsr_value *flat = tsr__x_op(x, "Equal", 2, scale, zero); // all zeros
    scale = tsr__x_op(x, "Where", 3, flat, tsr__x_scalar(x, TSR_FLOAT, 1), scale);
    tsr_value *point = tsr__x_op(x, "Sub", 2, zero, tsr__x_op(x, "Div", 2, low, scale));
    point = tsr__x_op(x, "Clip", 3, tsr__x_op(x, "Round", 1, point), zero,
                      tsr__x_scalar(x, TSR_FLOAT, 255));
    point = tsr__x_cast(x, point, TSR_FLOAT, TSR_UINT8);
    tsr__x_give(x, 0, tsr__x_op(x, "QuantizeLinear", 3, v, scale, point));
    tsr__x_give(x, 1, scale);
    tsr__x_give(x, 2, point);
}

// Integers are summed, then scaled and rounded once.
void tsr__expand_qlinear_matmul(struct expansion *x)
{
    tsr_value *inputs[4] = {tsr__x_in(x, 0), tsr__x_in(x, 3), tsr__x_in(x, 2), tsr__x_in(x, 5)};
    tsr_node *product = tsr__x_node(x, "MatMulInteger", 4, inputs);
    if (!product)
        return;
    tsr_value *sum = tsr__x_cast(x, tsr_node_output(product, 0), TSR_INT32, TSR_FLOAT);
    tsr_value *factor = tsr__x_op(x, "Mul", 2, tsr__x_in(x, 1), tsr__x_in(x, 4));
    factor = tsr__x_op(x, "Div", 2, factor, tsr__x_in(x, 6));
    tsr_value *y = tsr__x_op(x, "Mul", 2, sum, factor), *point = tsr__x_in(x, 7);
    if (tsr__x_shape(x, 7).rank) // one element, as a number
        point = tsr__x_reshape(x, point, NULL, 0);
    y = tsr__x_op(x, "QuantizeLinear", 3, y, tsr__x_scalar(x, TSR_FLOAT, 1), point);
    tsr__x_give(x, 0, y);
}

// The left side is quantised, then it is a product of integers; a bias comes last.
void tsr__expand_dynamic_quantize_matmul(struct expansion *x)
{
    tsr_value *a = tsr__x_in(x, 0);
    tsr_dtype type = tsr__x_shape(x, 0).dtype;
    tsr_node *quantized =
        type == TSR_FLOAT ? tsr__x_nodes(x, "DynamicQuantizeLinear", 1, &a, 3) : NULL;
    if (!quantized) {
        x->failed = true;
        return;
    }
    tsr_value *inputs[4] = {tsr_node_output(quantized, 0), tsr__x_in(x, 1),
                            tsr_node_output(quantized, 2), tsr__x_in(x, 3)};
    tsr_node *product = tsr__x_node(x, "MatMulInteger", inputs[3] ? 4 : 3, inputs);
    if (!product)
        return;
    tsr_value *y = tsr__x_cast(x, tsr_node_output(product, 0), TSR_INT32, TSR_FLOAT);
    tsr_value *scale = tsr__x_op(x, "Mul", 2, tsr_node_output(quantized, 1), tsr__x_in(x, 2));
    y = tsr__x_op(x, "Mul", 2, y, scale);
    if (tsr__x_has(x, 4))
        y = tsr__x_op(x, "Add", 2, y, tsr__x_in(x, 4));
    tsr__x_give(x, 0, y);
}
