// SPDX-License-Identifier: Apache-2.0
// expand_norm.c - softmax and the normalisations, as the sums and element-wise steps they are made of.
//
// Variances take two passes, as the definitions do: first the mean, then the squares of what is left.
// Short floating-point types are widened first, which is what their stash types ask for.
#include "rules/expand.h"

struct norm {
    tsr_value *v; // the input, widened
    tsr_dtype type, wide;
    int rank;
    int64_t axes[DERIVE_MAX_RANK]; // that statistics are taken of
    int n;
    float epsilon; // where the node tells none
};
#define EPSILON      1e-5F
#define SKIP_EPSILON 1e-12F

static bool begin(struct expansion *x, struct norm *s)
{
    struct shape in = tsr__x_shape(x, 0);
    *s = (struct norm){
        .type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank, .epsilon = EPSILON};
    s->v = tsr__x_cast(x, tsr__x_in(x, 0), s->type, s->wide);
    x->failed = x->failed || in.rank < 0 || in.rank > DERIVE_MAX_RANK;
    return !x->failed;
}

static void axes_from(struct norm *s, int from, int to)
{
    for (int i = from; i < to; i++)
        s->axes[s->n++] = i;
}

static void end(struct expansion *x, const struct norm *s, tsr_value *v)
{
    tsr__x_give(x, 0, tsr__x_cast(x, v, s->wide, s->type));
}

// ---- softmax -----------------------------------------------------------------------------------

static bool begin_softmax(struct expansion *x, struct norm *s, bool flat)
{
    if (!begin(x, s))
        return false;
    int64_t axis = tsr__x_int(x, "axis", flat ? 1 : -1);
    axis = axis < 0 ? axis + s->rank : axis;
    axes_from(s, (int)axis, flat ? s->rank : (int)axis + 1);
    return true;
}

// What is left after the greatest is taken off: no exponential overflows.
static tsr_value *below_top(struct expansion *x, const struct norm *s)
{
    return tsr__x_op(x, "Sub", 2, s->v, tsr__x_reduce(x, "ReduceMax", s->v, s->axes, s->n, true));
}

static void softmax(struct expansion *x, bool flat)
{
    struct norm s;
    if (!begin_softmax(x, &s, flat))
        return;
    tsr_value *e = tsr__x_op(x, "Exp", 1, below_top(x, &s));
    end(x, &s, tsr__x_op(x, "Div", 2, e, tsr__x_reduce(x, "ReduceSum", e, s.axes, s.n, true)));
}

void tsr__expand_softmax(struct expansion *x)
{
    softmax(x, false);
}

void tsr__expand_softmax_flat(struct expansion *x)
{
    softmax(x, true);
}

static void log_softmax(struct expansion *x, bool flat)
{
    struct norm s;
    if (!begin_softmax(x, &s, flat))
        return;
    tsr_value *rest = below_top(x, &s);
    tsr_value *sum = tsr__x_reduce(x, "ReduceSum", tsr__x_op(x, "Exp", 1, rest), s.axes, s.n, true);
    end(x, &s, tsr__x_op(x, "Sub", 2, rest, tsr__x_op(x, "Log", 1, sum)));
}

void tsr__expand_log_softmax(struct expansion *x)
{
    log_softmax(x, false);
}

void tsr__expand_log_softmax_flat(struct expansion *x)
{
    log_softmax(x, true);
}

// One where the first of the greatest is, else zero.
void tsr__expand_hardmax(struct expansion *x)
{
    struct norm s;
    if (!begin_softmax(x, &s, false))
        return;
    tsr_value *top = tsr__x_reduce(x, "ReduceMax", s.v, s.axes, s.n, true);
    tsr_value *at = tsr__x_positions(x, 0, (int)s.axes[0]);
    tsr_value *none = tsr__x_count(x, 0, s.axes, s.n, TSR_INT64);
    tsr_value *here = tsr__x_op(x, "Where", 3, tsr__x_op(x, "Equal", 2, s.v, top), at, none);
    tsr_value *first = tsr__x_reduce(x, "ReduceMin", here, s.axes, s.n, true);
    // Positions, not values: a second element that is as great is not the first.
    here = tsr__x_op(x, "Equal", 2, here, first);
    tsr__x_give(x, 0, tsr__x_cast(x, here, TSR_BOOL, s.type));
}

void tsr__expand_lp_norm(struct expansion *x)
{
    struct norm s;
    if (!begin_softmax(x, &s, false))
        return;
    bool first = tsr__x_int(x, "p", 2) == 1;
    tsr_value *norm =
        tsr__x_reduce(x, first ? "ReduceL1" : "ReduceSumSquare", s.v, s.axes, s.n, true);
    if (!first)
        norm = tsr__x_op(x, "Sqrt", 1, norm);
    // A row of zeros stays zero.
    tsr_value *zero = tsr__x_op(x, "Equal", 2, norm, tsr__x_scalar(x, s.wide, 0));
    norm = tsr__x_op(x, "Where", 3, zero, tsr__x_scalar(x, s.wide, 1), norm);
    end(x, &s, tsr__x_op(x, "Div", 2, s.v, norm));
}

// ---- moments -----------------------------------------------------------------------------------

static tsr_value *mean_of(struct expansion *x, const struct norm *s, const char *sum, tsr_value *v)
{
    return tsr__x_op(x, "Div", 2, tsr__x_reduce(x, sum, v, s->axes, s->n, true),
                     tsr__x_count(x, 0, s->axes, s->n, s->wide));
}

static tsr_value *root(struct expansion *x, const struct norm *s, tsr_value *variance,
                       float epsilon)
{
    return tsr__x_op(x, "Sqrt", 1,
                     tsr__x_op(x, "Add", 2, variance, tsr__x_scalar(x, s->wide, (double)epsilon)));
}

void tsr__expand_mvn(struct expansion *x)
{
    static const int64_t usual[] = {0, 2, 3};
    struct norm s;
    const int64_t *axes;
    size_t n = tsr_attr_ints(tsr_node_find_attr(x->node, "axes"), &axes);
    if (!begin(x, &s))
        return;
    for (size_t i = 0; i < (n ? n : TSR_COUNT(usual)) && s.n < DERIVE_MAX_RANK; i++)
        s.axes[s.n++] = tsr__axis(n ? axes[i] : usual[i], s.rank);
    tsr_value *rest = tsr__x_op(x, "Sub", 2, s.v, mean_of(x, &s, "ReduceSum", s.v));
    tsr_value *deviation = tsr__x_op(x, "Sqrt", 1, mean_of(x, &s, "ReduceSumSquare", rest));
    deviation = tsr__x_op(x, "Add", 2, deviation, tsr__x_scalar(x, s.wide, 1e-9));
    end(x, &s, tsr__x_op(x, "Div", 2, rest, deviation));
}

// ---- layer norms -------------------------------------------------------------------------------

// y = normal * scale + shift, each where it is given.
static tsr_value *affine(struct expansion *x, tsr_value *v, size_t scale, size_t shift)
{
    if (tsr__x_has(x, scale))
        v = tsr__x_op(x, "Mul", 2, v, tsr__x_in(x, scale));
    if (tsr__x_has(x, shift))
        v = tsr__x_op(x, "Add", 2, v, tsr__x_in(x, shift));
    return v;
}

#define NONE 99 // no such input

// A statistic that is an output has the type that the node stashes it in, float32 by default: of doubles too.
static void give_statistic(struct expansion *x, const struct norm *s, int out, tsr_value *v)
{
    if (out < 0 || (size_t)out >= tsr_node_output_count(x->node) ||
        !tsr_node_output(x->node, (size_t)out))
        return;
    tsr_dtype stash = (tsr_dtype)tsr__x_int(x, "stash_type", TSR_FLOAT);
    tsr__x_give(x, out, tsr__x_cast(x, v, s->wide, stash));
}

// Normal forms of s->v; the statistics go to outputs where given (-1: nobody wants them).
static tsr_value *normal(struct expansion *x, const struct norm *s, bool centred, int mean_out,
                         int inverse_out)
{
    float epsilon = tsr__x_float(x, "epsilon", s->epsilon);
    tsr_value *rest = s->v;
    if (centred) {
        tsr_value *mean = mean_of(x, s, "ReduceSum", s->v);
        rest = tsr__x_op(x, "Sub", 2, s->v, mean);
        give_statistic(x, s, mean_out, mean);
    }
    tsr_value *deviation = root(x, s, mean_of(x, s, "ReduceSumSquare", rest), epsilon);
    if (inverse_out >= 0 && (size_t)inverse_out < tsr_node_output_count(x->node) &&
        tsr_node_output(x->node, (size_t)inverse_out))
        give_statistic(x, s, inverse_out, tsr__x_op(x, "Reciprocal", 1, deviation));
    return tsr__x_op(x, "Div", 2, rest, deviation);
}

static void layer_norm(struct expansion *x, bool centred, size_t shift, int mean_out,
                       int inverse_out)
{
    struct norm s;
    if (!begin(x, &s))
        return;
    axes_from(&s, tsr__axis(tsr__x_int(x, "axis", -1), s.rank), s.rank);
    tsr_value *v = normal(x, &s, centred, mean_out, inverse_out);
    tsr_dtype scale = tsr__x_shape(x, 1).dtype; // may be of another type than the input
    v = affine(x, tsr__x_cast(x, v, s.wide, scale), 1, shift);
    tsr__x_give(x, 0, v);
}

void tsr__expand_layer_norm(struct expansion *x)
{
    layer_norm(x, true, 2, 1, 2);
}

void tsr__expand_rms_norm(struct expansion *x)
{
    layer_norm(x, false, NONE, -1, -1);
}

void tsr__expand_simplified_norm(struct expansion *x)
{
    layer_norm(x, false, NONE, -1, 1);
}

// The inputs' sum is normalised, and is an output too.
static void skip_norm(struct expansion *x, bool centred, size_t shift, size_t bias)
{
    struct norm s;
    struct shape in = tsr__x_shape(x, 0);
    s = (struct norm){
        .type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank, .epsilon = SKIP_EPSILON};
    tsr_value *sum = tsr__x_op(x, "Add", 2, tsr__x_in(x, 0), tsr__x_in(x, 1));
    if (tsr__x_has(x, bias))
        sum = tsr__x_op(x, "Add", 2, sum, tsr__x_in(x, bias));
    tsr__x_give(x, 3, sum);
    s.v = tsr__x_cast(x, sum, s.type, s.wide);
    axes_from(&s, s.rank - 1, s.rank);
    tsr_value *v = tsr__x_cast(x, normal(x, &s, centred, -1, -1), s.wide, s.type);
    tsr__x_give(x, 0, affine(x, v, 2, shift));
}

void tsr__expand_skip_layer_norm(struct expansion *x)
{
    skip_norm(x, true, 3, 4);
}

void tsr__expand_skip_simplified_norm(struct expansion *x)
{
    skip_norm(x, false, NONE, 3);
}

// ---- channels ----------------------------------------------------------------------------------

// [c] as [c 1 1 ..], to stand against [n c d d ..]; in the input's type or widened with it.
static tsr_value *channel(struct expansion *x, size_t i, const struct norm *s)
{
    int64_t shape[DERIVE_MAX_RANK];
    for (int k = 0; k < s->rank - 1; k++)
        shape[k] = k ? 1 : -1;
    tsr_value *v = tsr__x_reshape(x, tsr__x_in(x, i), shape, s->rank - 1);
    return tsr__x_cast(x, v, s->type, s->wide);
}

static void scale_channels(struct expansion *x, const struct norm *s, tsr_value *v)
{
    v = tsr__x_op(x, "Mul", 2, v, channel(x, 1, s));
    end(x, s, tsr__x_op(x, "Add", 2, v, channel(x, 2, s)));
}

void tsr__expand_instance_norm(struct expansion *x)
{
    struct norm s;
    if (!begin(x, &s))
        return;
    axes_from(&s, 2, s.rank);
    scale_channels(x, &s, normal(x, &s, true, -1, -1));
}

// The mean over a group of channels, for each channel: [n c 1 1] -> [n g c/g], mean, and back.
static tsr_value *group_mean(struct expansion *x, const struct norm *s, const char *sum,
                             tsr_value *v, int64_t groups, int64_t channels)
{
    int64_t per = channels / groups, split[] = {0, groups, per}, back[DERIVE_MAX_RANK], last = 2;
    int64_t one[] = {1, 1, per};
    for (int i = 0; i < s->rank; i++)
        back[i] = i == 0 ? 0 : i == 1 ? channels : 1;
    v = tsr__x_reduce(x, sum, v, s->axes, s->n, true);
    v = tsr__x_reduce(x, "ReduceSum", tsr__x_reshape(x, v, split, 3), &last, 1, true);
    v = tsr__x_op(x, "Div", 2, v, tsr__x_count(x, 0, s->axes, s->n, s->wide));
    v = tsr__x_op(x, "Div", 2, v, tsr__x_scalar(x, s->wide, (double)per));
    v = tsr__x_op(x, "Mul", 2, v, tsr__x_ones(x, s->wide, one, 3));
    return tsr__x_reshape(x, v, back, s->rank);
}

void tsr__expand_group_norm(struct expansion *x)
{
    struct norm s;
    struct shape in = tsr__x_shape(x, 0);
    int64_t groups = tsr__x_int(x, "num_groups", 1);
    if (!begin(x, &s))
        return;
    int64_t channels = in.rank > 1 ? in.dims[1].value : -1;
    if (channels < 1 || groups < 1 || channels % groups) {
        x->failed = true;
        return;
    }
    axes_from(&s, 2, s.rank);
    tsr_value *mean = group_mean(x, &s, "ReduceSum", s.v, groups, channels);
    tsr_value *rest = tsr__x_op(x, "Sub", 2, s.v, mean);
    tsr_value *variance = group_mean(x, &s, "ReduceSumSquare", rest, groups, channels);
    tsr_value *v =
        tsr__x_op(x, "Div", 2, rest, root(x, &s, variance, tsr__x_float(x, "epsilon", EPSILON)));
    scale_channels(x, &s, v);
}
