// SPDX-License-Identifier: Apache-2.0
// expand_norm.c - softmax and normalizations, expanded into reductions and element-wise steps.
//
// Variances take two passes, as in the definitions: first the mean, then the squares of the
// differences. 16-bit floats are converted to float32 first, as attribute stash_type requires.
//
// Example: Softmax of 1 2 | 3, sharded in 2. The maxima of the shards are 2 | 3, reduced over the
// devices to 3. The exponentials of the differences are e^-2 e^-1 | e^0. Their sums are 0.503 | 1,
// reduced to 1.503. Each exponential divided by that gives 0.090 0.245 | 0.665. Two numbers of each
// row are exchanged, however long the row is.
#include "rules/expand/expand.h"

// Values that all expansions in this file use.
struct norm {
    tsr_value *value; // the input, widened
    tsr_dtype type, wide;
    int rank;
    int64_t axes[DERIVE_MAX_RANK]; // axes over which statistics are computed
    int n;
    float epsilon; // default value of the attribute
};
#define EPSILON      1e-5F
#define SKIP_EPSILON 1e-12F

// Reads the input. False: the rank is unknown or too large, and the node is not expanded.
static bool begin_norm(struct expansion *expansion, struct norm *norm)
{
    struct shape in = tsr__x_shape(expansion, 0);
    *norm = (struct norm){
        .type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank, .epsilon = EPSILON};
    norm->value = tsr__x_cast(expansion, tsr__x_in(expansion, 0), norm->type, norm->wide);
    expansion->failed = expansion->failed || in.rank < 0 || in.rank > DERIVE_MAX_RANK;
    return !expansion->failed;
}

static void axes_from(struct norm *norm, int from, int to)
{
    for (int i = from; i < to; i++)
        norm->axes[norm->n++] = i;
}

// Sets output 0, in the type of the input.
static void end(struct expansion *expansion, const struct norm *norm, tsr_value *value)
{
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, value, norm->wide, norm->type));
}

// ---- softmax -----------------------------------------------------------------------------------

// Finds the dimensions of a row: one axis, or (flat, before opset 13) all from the axis on.
static bool begin_softmax(struct expansion *expansion, struct norm *norm, bool flat)
{
    if (!begin_norm(expansion, norm))
        return false;
    // Before opset 13 the default axis is 1, and all dimensions from the axis on are one row.
    int64_t axis = tsr__x_int(expansion, "axis", flat ? 1 : -1);
    axis = axis < 0 ? axis + norm->rank : axis;
    axes_from(norm, (int)axis, flat ? norm->rank : (int)axis + 1);
    return true;
}

// Returns the input minus the maximum of each row, so that no exponential overflows.
static tsr_value *minus_max(struct expansion *expansion, const struct norm *norm)
{
    return X_OP(expansion, "Sub", norm->value,
                tsr__x_reduce(expansion, "ReduceMax", norm->value, norm->axes, norm->n, true));
}

// True if all dimensions from the axis on are one row, as in Softmax before opset 13.
static bool has_flat_rows(const struct expansion *expansion)
{
    return expansion->opset < 13;
}

void tsr__expand_softmax(struct expansion *expansion)
{
    struct norm s;
    if (!begin_softmax(expansion, &s, has_flat_rows(expansion)))
        return;
    tsr_value *value = X_OP(expansion, "Exp", minus_max(expansion, &s));
    end(expansion, &s,
        X_OP(expansion, "Div", value,
             tsr__x_reduce(expansion, "ReduceSum", value, s.axes, s.n, true)));
}

// Computes x - max - log(sum(exp(x - max))). This avoids the logarithm of a small quotient.
void tsr__expand_log_softmax(struct expansion *expansion)
{
    struct norm s;
    if (!begin_softmax(expansion, &s, has_flat_rows(expansion)))
        return;
    tsr_value *rest = minus_max(expansion, &s);
    tsr_value *sum =
        tsr__x_reduce(expansion, "ReduceSum", X_OP(expansion, "Exp", rest), s.axes, s.n, true);
    end(expansion, &s, X_OP(expansion, "Sub", rest, X_OP(expansion, "Log", sum)));
}

// Expands Hardmax: 1 at the first maximum of a row, else 0.
void tsr__expand_hardmax(struct expansion *expansion)
{
    struct norm s;
    if (!begin_softmax(expansion, &s, false))
        return;
    tsr_value *top = tsr__x_reduce(expansion, "ReduceMax", s.value, s.axes, s.n, true);
    tsr_value *at = tsr__x_positions(expansion, 0, (int)s.axes[0]);
    // Elements that are not the maximum get the length of the row, which is larger than any
    // position.
    tsr_value *none = tsr__x_count(expansion, 0, s.axes, s.n, TSR_INT64);
    tsr_value *here = X_OP(expansion, "Where", X_OP(expansion, "Equal", s.value, top), at, none);
    tsr_value *first = tsr__x_reduce(expansion, "ReduceMin", here, s.axes, s.n, true);
    // Compares positions, not values: a second equal maximum is not the first.
    here = X_OP(expansion, "Equal", here, first);
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, here, TSR_BOOL, s.type));
}

// Expands LpNormalization: x divided by the sum of |x|, or by the root of the sum of squares. A row
// of zeros stays 0.
void tsr__expand_lp_norm(struct expansion *expansion)
{
    struct norm s;
    if (!begin_softmax(expansion, &s, false))
        return;
    bool first = tsr__x_int(expansion, "p", 2) == 1;
    tsr_value *norm = tsr__x_reduce(expansion, first ? "ReduceL1" : "ReduceSumSquare", s.value,
                                    s.axes, s.n, true);
    if (!first)
        norm = X_OP(expansion, "Sqrt", norm);
    tsr_value *zero = X_OP(expansion, "Equal", norm, tsr__x_scalar(expansion, s.wide, 0));
    norm = X_OP(expansion, "Where", zero, tsr__x_scalar(expansion, s.wide, 1), norm);
    end(expansion, &s, X_OP(expansion, "Div", s.value, norm));
}

// ---- moments -----------------------------------------------------------------------------------

// Returns a mean. `sum` is the reduction: ReduceSum for a mean, ReduceSumSquare for a variance of
// centred values. It divides by the size of the full row, not of the shard.
static tsr_value *mean_of(struct expansion *expansion, const struct norm *norm, const char *sum,
                          tsr_value *value)
{
    return X_OP(expansion, "Div", tsr__x_reduce(expansion, sum, value, norm->axes, norm->n, true),
                tsr__x_count(expansion, 0, norm->axes, norm->n, norm->wide));
}

// Returns the root of the variance plus epsilon, as in the definitions.
static tsr_value *root(struct expansion *expansion, const struct norm *norm, tsr_value *variance,
                       float epsilon)
{
    return X_OP(
        expansion, "Sqrt",
        X_OP(expansion, "Add", variance, tsr__x_scalar(expansion, norm->wide, (double)epsilon)));
}

// Expands MeanVarianceNormalization: (x - mean) / deviation, both over the axes, by default 0 2 3.
// The function body in the ONNX specification adds 1e-9 to the deviation; the formula there and
// ONNX Runtime's kernel do not.
void tsr__expand_mvn(struct expansion *expansion)
{
    static const int64_t usual[] = {0, 2, 3};
    struct norm s;
    const int64_t *axes;
    size_t n = tsr_attr_ints(tsr_node_find_attr(expansion->node, "axes"), &axes);
    if (!begin_norm(expansion, &s))
        return;
    if (!n) {
        axes = usual;
        n = TSR_COUNT(usual);
    }
    for (size_t i = 0; i < n; i++) {
        if (s.n == DERIVE_MAX_RANK)
            break;
        s.axes[s.n++] = tsr__axis(axes[i], s.rank);
    }
    tsr_value *rest = X_OP(expansion, "Sub", s.value, mean_of(expansion, &s, "ReduceSum", s.value));
    tsr_value *deviation = X_OP(expansion, "Sqrt", mean_of(expansion, &s, "ReduceSumSquare", rest));
    end(expansion, &s, X_OP(expansion, "Div", rest, deviation));
}

// ---- layer norms -------------------------------------------------------------------------------

// Returns value * scale + shift; scale and shift are optional.
static tsr_value *affine(struct expansion *expansion, tsr_value *value, size_t scale, size_t shift)
{
    if (tsr__x_has(expansion, scale))
        value = X_OP(expansion, "Mul", value, tsr__x_in(expansion, scale));
    if (tsr__x_has(expansion, shift))
        value = X_OP(expansion, "Add", value, tsr__x_in(expansion, shift));
    return value;
}

#define NONE 99 // the operator has no such input

// Sets an output for a statistic. The output has the type of attribute stash_type, by default
// float32, even for doubles. `out` -1: none.
static void give_statistic(struct expansion *expansion, const struct norm *norm, int out,
                           tsr_value *value)
{
    tsr_dtype stash = (tsr_dtype)tsr__x_int(expansion, "stash_type", TSR_FLOAT);
    if (tsr_node_output(expansion->node, (size_t)out))
        tsr__x_give(expansion, out, tsr__x_cast(expansion, value, norm->wide, stash));
}

// Normalizes norm->value and sets the outputs for statistics (-1: none). If `centred`, subtracts
// the mean first; otherwise this is a root-mean-square norm.
static tsr_value *normalized(struct expansion *expansion, const struct norm *norm, bool centred,
                             int mean_out, int inverse_out)
{
    float epsilon = tsr__x_float(expansion, "epsilon", norm->epsilon);
    tsr_value *rest = norm->value;
    if (centred) {
        tsr_value *mean = mean_of(expansion, norm, "ReduceSum", norm->value);
        rest = X_OP(expansion, "Sub", norm->value, mean);
        give_statistic(expansion, norm, mean_out, mean);
    }
    tsr_value *deviation =
        root(expansion, norm, mean_of(expansion, norm, "ReduceSumSquare", rest), epsilon);
    if (tsr_node_output(expansion->node, (size_t)inverse_out))
        give_statistic(expansion, norm, inverse_out, X_OP(expansion, "Reciprocal", deviation));
    return X_OP(expansion, "Div", rest, deviation);
}

// Expands a layer norm. Rows are all dimensions from the axis on. `shift` NONE: the operator has no
// such input.
static void layer_norm(struct expansion *expansion, bool centred, size_t shift, int mean_out,
                       int inverse_out)
{
    struct norm s;
    if (!begin_norm(expansion, &s))
        return;
    axes_from(&s, tsr__axis(tsr__x_int(expansion, "axis", -1), s.rank), s.rank);
    tsr_value *value = normalized(expansion, &s, centred, mean_out, inverse_out);
    // the scale's type may differ from that of the input
    tsr_dtype scale = tsr__x_shape(expansion, 1).dtype;
    value = affine(expansion, tsr__x_cast(expansion, value, s.wide, scale), 1, shift);
    tsr__x_give(expansion, 0, value);
}

void tsr__expand_layer_norm(struct expansion *expansion)
{
    layer_norm(expansion, true, 2, 1, 2);
}

void tsr__expand_rms_norm(struct expansion *expansion)
{
    layer_norm(expansion, false, NONE, -1, -1);
}

void tsr__expand_simplified_norm(struct expansion *expansion)
{
    layer_norm(expansion, false, NONE, -1, 1);
}

// Adds input, skip and bias; the sum is output 3. Then computes a layer norm over the last
// dimension.
static void skip_norm(struct expansion *expansion, bool centred, size_t shift, size_t bias)
{
    struct norm s;
    struct shape in = tsr__x_shape(expansion, 0);
    s = (struct norm){
        .type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank, .epsilon = SKIP_EPSILON};
    tsr_value *sum = X_OP(expansion, "Add", tsr__x_in(expansion, 0), tsr__x_in(expansion, 1));
    if (tsr__x_has(expansion, bias))
        sum = X_OP(expansion, "Add", sum, tsr__x_in(expansion, bias));
    tsr__x_give(expansion, 3, sum);
    s.value = tsr__x_cast(expansion, sum, s.type, s.wide);
    axes_from(&s, s.rank - 1, s.rank);
    tsr_value *value =
        tsr__x_cast(expansion, normalized(expansion, &s, centred, -1, -1), s.wide, s.type);
    tsr__x_give(expansion, 0, affine(expansion, value, 2, shift));
}

void tsr__expand_skip_layer_norm(struct expansion *expansion)
{
    skip_norm(expansion, true, 3, 4);
}

void tsr__expand_skip_simplified_norm(struct expansion *expansion)
{
    skip_norm(expansion, false, NONE, 3);
}

// ---- channels ----------------------------------------------------------------------------------

// Returns a tensor [c] as [c 1 1 ..], to broadcast with [n c d d ..], in the wider type.
static tsr_value *channel(struct expansion *expansion, size_t i, const struct norm *norm)
{
    int64_t shape[DERIVE_MAX_RANK];
    for (int k = 0; k < norm->rank - 1; k++)
        shape[k] = k ? 1 : -1;
    tsr_value *value = tsr__x_reshape(expansion, tsr__x_in(expansion, i), shape, norm->rank - 1);
    return tsr__x_cast(expansion, value, norm->type, norm->wide);
}

// Applies the scale and shift of each channel, which are inputs 1 and 2.
static void scale_channels(struct expansion *expansion, const struct norm *norm, tsr_value *value)
{
    value = X_OP(expansion, "Mul", value, channel(expansion, 1, norm));
    end(expansion, norm, X_OP(expansion, "Add", value, channel(expansion, 2, norm)));
}

// Expands InstanceNormalization. A row is all spatial positions of one channel of one batch entry.
void tsr__expand_instance_norm(struct expansion *expansion)
{
    struct norm s;
    if (!begin_norm(expansion, &s))
        return;
    axes_from(&s, 2, s.rank);
    scale_channels(expansion, &s, normalized(expansion, &s, true, -1, -1));
}

// Returns the mean over the group of each channel as [n c 1 1]. Reduces space to [n c 1 1] with
// `sum` (see mean_of), reshapes to [n g c/g], computes the mean of each group, and repeats it for
// the channels of the group.
static tsr_value *group_mean(struct expansion *expansion, const struct norm *norm, const char *sum,
                             tsr_value *value, int64_t groups, int64_t channels)
{
    int64_t per = channels / groups, split[] = {0, groups, per}, last = 2;
    int64_t one[] = {1, 1, per}, back[DERIVE_MAX_RANK] = {0, channels};
    for (int i = 2; i < norm->rank; i++)
        back[i] = 1;
    value = tsr__x_reduce(expansion, sum, value, norm->axes, norm->n, true);
    value = tsr__x_reduce(expansion, "ReduceSum", tsr__x_reshape(expansion, value, split, 3), &last,
                          1, true);
    value =
        X_OP(expansion, "Div", value, tsr__x_count(expansion, 0, norm->axes, norm->n, norm->wide));
    value = X_OP(expansion, "Div", value, tsr__x_scalar(expansion, norm->wide, (double)per));
    value = X_OP(expansion, "Mul", value, tsr__x_ones(expansion, norm->wide, one, 3));
    return tsr__x_reshape(expansion, value, back, norm->rank);
}

// Expands GroupNormalization: mean and variance over a group of channels and all spatial positions.
// Both are computed per channel first, so that spatial dimensions can be sharded.
void tsr__expand_group_norm(struct expansion *expansion)
{
    struct norm s;
    struct shape in = tsr__x_shape(expansion, 0);
    int64_t groups = tsr__x_int(expansion, "num_groups", 1);
    if (!begin_norm(expansion, &s))
        return;
    int64_t channels = in.rank > 1 ? in.dims[1].value : -1;
    if (channels < 1 || groups < 1 || channels % groups) {
        expansion->failed = true;
        return;
    }
    axes_from(&s, 2, s.rank);
    tsr_value *mean = group_mean(expansion, &s, "ReduceSum", s.value, groups, channels);
    tsr_value *rest = X_OP(expansion, "Sub", s.value, mean);
    tsr_value *variance = group_mean(expansion, &s, "ReduceSumSquare", rest, groups, channels);
    tsr_value *value =
        X_OP(expansion, "Div", rest,
             root(expansion, &s, variance, tsr__x_float(expansion, "epsilon", EPSILON)));
    scale_channels(expansion, &s, value);
}
