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

// Input i, of one element.
static tsr_value *as_number(struct expansion *x, size_t i)
{
    tsr_value *v = tsr__x_in(x, i);
    return tsr__x_shape(x, i).rank ? tsr__x_reshape(x, v, NULL, 0) : v;
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
    tsr_value *y = tsr__x_op(x, "Mul", 2, sum, factor), *point = as_number(x, 7);
    y = tsr__x_op(x, "QuantizeLinear", 3, y, tsr__x_scalar(x, TSR_FLOAT, 1), point);
    tsr__x_give(x, 0, y);
}

// Bytes without sign, which alone every engine sums: signed ones and their zero points are moved alike.
static tsr_value *without_sign(struct expansion *x, tsr_value *v, tsr_dtype type)
{
    if (type == TSR_UINT8)
        return v;
    v = tsr__x_cast(x, v, type, TSR_INT32);
    v = tsr__x_op(x, "Add", 2, v, tsr__x_scalar(x, TSR_INT32, 128));
    return tsr__x_cast(x, v, TSR_INT32, TSR_UINT8);
}

static tsr_value *weight_point(struct expansion *x, tsr_dtype type)
{
    int point;
    if (tsr__derive_single(tsr__x_shape(x, 5)))
        return without_sign(x, as_number(x, 5), type);
    if (!tsr__derive_alike(tsr_node_input(x->twin, 5), type, &point)) {
        x->failed = true;
        return NULL;
    }
    return tsr__x_scalar(x, TSR_UINT8, type == TSR_INT8 ? point + 128 : point);
}

static bool copy_window(struct expansion *x, tsr_node *to)
{
    static const char *const lists[] = {"dilations", "kernel_shape", "pads", "strides"};
    const tsr_attr *pad = tsr_node_find_attr(x->node, "auto_pad");
    bool ok = tsr_node_set_int(to, "group", tsr__x_int(x, "group", 1)) == TSR_OK;
    for (size_t i = 0; ok && i < TSR_COUNT(lists); i++) {
        const int64_t *v;
        size_t n = tsr_attr_ints(tsr_node_find_attr(x->node, lists[i]), &v);
        ok = !n || tsr_node_set_ints(to, lists[i], v, n) == TSR_OK;
    }
    size_t n;
    const char *text = pad ? tsr_attr_string(pad, &n) : NULL;
    struct str own = text ? tsr__arena_str(x->arena, (struct str){text, n}) : (struct str){0};
    return ok && (!text || (own.p && tsr_node_set_string(to, "auto_pad", own.p) == TSR_OK));
}

// One number for each channel, against a result of that rank.
static tsr_value *along_channels(struct expansion *x, tsr_value *v, int rank)
{
    for (int i = 1; i < rank - 1; i++)
        v = tsr__x_unsqueeze(x, v, i);
    return v;
}

// As with products: integers are summed, the bias among them, then scaled and rounded once.
void tsr__expand_qlinear_conv(struct expansion *x)
{
    struct shape in = tsr__x_shape(x, 0), w = tsr__x_shape(x, 3);
    tsr_value *inputs[4] = {without_sign(x, tsr__x_in(x, 0), in.dtype),
                            without_sign(x, tsr__x_in(x, 3), w.dtype),
                            without_sign(x, as_number(x, 2), in.dtype), weight_point(x, w.dtype)};
    tsr_node *conv = x->failed ? NULL : tsr__x_node(x, "ConvInteger", 4, inputs);
    if (!conv || !copy_window(x, conv)) {
        x->failed = true;
        return;
    }
    tsr_value *sum = tsr_node_output(conv, 0);
    if (tsr__x_has(x, 8))
        sum = tsr__x_op(x, "Add", 2, sum, along_channels(x, tsr__x_in(x, 8), in.rank));
    tsr_value *factor = tsr__x_op(x, "Mul", 2, as_number(x, 1), tsr__x_in(x, 4));
    factor = tsr__x_op(x, "Div", 2, factor, as_number(x, 6));
    if (!tsr__derive_single(tsr__x_shape(x, 4)))
        factor = along_channels(x, factor, in.rank);
    tsr_value *y = tsr__x_op(x, "Mul", 2, tsr__x_cast(x, sum, TSR_INT32, TSR_FLOAT), factor);
    y = tsr__x_op(x, "QuantizeLinear", 3, y, tsr__x_scalar(x, TSR_FLOAT, 1), as_number(x, 7));
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
