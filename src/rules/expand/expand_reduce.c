// SPDX-License-Identifier: Apache-2.0
// expand_reduce.c - reductions followed by another operator, such as means and roots, and ArgMax
// and ArgMin.
//
// Example: ReduceMean of 1 2 | 3 6, sharded in 2. ReduceSum gives 3 | 9, reduced over the devices
// to 12. Div by the size of the full axis, 4, gives 3.
#include "rules/expand/expand.h"

// ---- means, roots, logarithms ------------------------------------------------------------------

// Finds the axes as the rule does (tsr__reduce_axes), counted from the front. Returns their number;
// -1: unknown.
static int reduced_axes(struct expansion *expansion, int64_t *axes)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    struct derivation *derivation = ARENA_NEW(expansion->arena, struct derivation);
    int rank = tsr__x_shape(expansion, 0).rank, n = 0;
    if (!derivation || rank < 0 || rank > DERIVE_MAX_RANK)
        return -1;
    tsr__derivation_start(derivation, expansion->arena, expansion->twin, expansion->shapes, NULL);
    if (!tsr__reduce_axes(derivation, rank, reduced))
        return -1;
    for (int i = 0; i < rank; i++)
        if (reduced[i])
            axes[n++] = i;
    return n;
}

// The input in the type in which sums are computed, and the axes.
struct start {
    tsr_value *value;
    tsr_dtype type, wide;
    int64_t axes[DERIVE_MAX_RANK];
    int n;
    bool keep;
};

// Which dimensions are reduced: those that the node names, or all after the channels.
enum reduced { REDUCED_AXES, REDUCED_SPACE };

static bool begin_reduce(struct expansion *expansion, struct start *start, enum reduced reduced)
{
    struct shape in = tsr__x_shape(expansion, 0);
    start->type = in.dtype;
    start->wide = tsr__x_wide(start->type);
    start->n = reduced == REDUCED_AXES ? reduced_axes(expansion, start->axes) : 0;
    for (int i = 2; reduced == REDUCED_SPACE && i < in.rank; i++)
        start->axes[start->n++] = i;
    start->keep = tsr__x_int(expansion, "keepdims", 1) != 0;
    expansion->failed = expansion->failed || start->n < 0;
    start->value = tsr__x_cast(expansion, tsr__x_in(expansion, 0), start->type, start->wide);
    return !expansion->failed;
}

static void end(struct expansion *expansion, const struct start *start, tsr_value *value)
{
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, value, start->wide, start->type));
}

// Returns what a mean divides by: the number of elements, at least 1, because the mean of no
// elements is 0 in ONNX Runtime. Before opset 12, Max takes no integers.
static tsr_value *divisor(struct expansion *expansion, const struct start *start)
{
    tsr_value *count = tsr__x_count(expansion, 0, start->axes, start->n, start->wide);
    struct shape shape = tsr__x_shape(expansion, 0);
    bool empty = false; // possibly
    for (int i = 0; i < start->n; i++)
        empty = empty || shape.dims[start->axes[i]].value <= 0;
    bool has_max = expansion->opset >= 12 || start->wide == TSR_FLOAT || start->wide == TSR_DOUBLE;
    if (!empty || !has_max)
        return count;
    return X_OP(expansion, "Max", count, tsr__x_scalar(expansion, start->wide, 1));
}

// Expands a mean: divides the sum by the number of elements of the full dimensions.
static void mean(struct expansion *expansion, enum reduced reduced)
{
    struct start start;
    if (!begin_reduce(expansion, &start, reduced))
        return;
    tsr_value *sum =
        tsr__x_reduce(expansion, "ReduceSum", start.value, start.axes, start.n, start.keep);
    end(expansion, &start, X_OP(expansion, "Div", sum, divisor(expansion, &start)));
}

void tsr__expand_reduce_mean(struct expansion *expansion)
{
    mean(expansion, REDUCED_AXES);
}

void tsr__expand_global_average_pool(struct expansion *expansion)
{
    mean(expansion, REDUCED_SPACE);
}

// Builds a reduction that can be sharded, then an operator on its result.
static void reduce_then(struct expansion *expansion, const char *reduction, const char *last)
{
    struct start start;
    if (!begin_reduce(expansion, &start, REDUCED_AXES))
        return;
    tsr_value *sum =
        tsr__x_reduce(expansion, reduction, start.value, start.axes, start.n, start.keep);
    end(expansion, &start, X_OP(expansion, last, sum));
}

void tsr__expand_reduce_l2(struct expansion *expansion)
{
    reduce_then(expansion, "ReduceSumSquare", "Sqrt");
}

void tsr__expand_reduce_log_sum(struct expansion *expansion)
{
    reduce_then(expansion, "ReduceSum", "Log");
}

// Expands ReduceLogSumExp: log(sum(exp(x - max))) + max. An infinite maximum is replaced by 0,
// because inf - inf would give NaN.
void tsr__expand_reduce_log_sum_exp(struct expansion *expansion)
{
    struct start start;
    if (!begin_reduce(expansion, &start, REDUCED_AXES))
        return;
    tsr_value *top = tsr__x_reduce(expansion, "ReduceMax", start.value, start.axes, start.n, true);
    top = X_OP(expansion, "Where", X_OP(expansion, "IsInf", top),
               tsr__x_scalar(expansion, start.wide, 0), top);
    tsr_value *value = X_OP(expansion, "Exp", X_OP(expansion, "Sub", start.value, top));
    tsr_value *sum =
        X_OP(expansion, "Log",
             tsr__x_reduce(expansion, "ReduceSum", value, start.axes, start.n, start.keep));
    if (!start.keep) // remove the dimensions of size 1
        top = tsr__x_reduce(expansion, "ReduceMax", top, start.axes, start.n, false);
    end(expansion, &start, X_OP(expansion, "Add", sum, top));
}

// Expands GlobalLpPool: (sum of |x|^p) ^ (1/p) over space. p = 1 and p = 2 have their own
// reductions, which are exact, unlike powers.
void tsr__expand_global_lp_pool(struct expansion *expansion)
{
    int64_t p = tsr__x_int(expansion, "p", 2);
    struct start s;
    if (!begin_reduce(expansion, &s, REDUCED_SPACE))
        return;
    tsr_value *value = s.value;
    if (p == 1) {
        value = tsr__x_reduce(expansion, "ReduceL1", value, s.axes, s.n, true);
    } else if (p == 2) {
        value = X_OP(expansion, "Sqrt",
                     tsr__x_reduce(expansion, "ReduceSumSquare", value, s.axes, s.n, true));
    } else {
        value = X_OP(expansion, "Pow", X_OP(expansion, "Abs", value),
                     tsr__x_scalar(expansion, s.wide, (double)p));
        value = tsr__x_reduce(expansion, "ReduceSum", value, s.axes, s.n, true);
        value = X_OP(expansion, "Pow", value, tsr__x_scalar(expansion, s.wide, 1.0 / (double)p));
    }
    end(expansion, &s, value);
}

// ---- ArgMax and ArgMin --------------------------------------------------------------------------

// Finds the first (or last) position whose element equals the maximum or minimum of the row. NaN
// equals nothing: a row whose maximum is NaN gives its last position, or the first if the last was
// requested.
static void arg(struct expansion *expansion, const char *best)
{
    struct shape shape = tsr__x_shape(expansion, 0);
    int64_t axis = tsr__axis(tsr__x_int(expansion, "axis", 0), shape.rank);
    bool last = tsr__x_int(expansion, "select_last_index", 0) != 0;
    tsr_dtype wide = tsr__x_wide(shape.dtype);
    tsr_value *value = tsr__x_cast(expansion, tsr__x_in(expansion, 0), shape.dtype, wide);
    tsr_value *top = tsr__x_reduce(expansion, best, value, &axis, 1, true);
    tsr_value *at = tsr__x_positions(expansion, 0, (int)axis);
    tsr_value *none = tsr__x_scalar(expansion, TSR_INT64, 0);
    if (!last)
        none = X_OP(expansion, "Sub", tsr__x_count(expansion, 0, &axis, 1, TSR_INT64),
                    tsr__x_scalar(expansion, TSR_INT64, 1));
    value = X_OP(expansion, "Where", X_OP(expansion, "Equal", value, top), at, none);
    tsr__x_give(expansion, 0,
                tsr__x_reduce(expansion, last ? "ReduceMax" : "ReduceMin", value, &axis, 1,
                              tsr__x_int(expansion, "keepdims", 1) != 0));
}

void tsr__expand_arg_max(struct expansion *expansion)
{
    arg(expansion, "ReduceMax");
}

void tsr__expand_arg_min(struct expansion *expansion)
{
    arg(expansion, "ReduceMin");
}
