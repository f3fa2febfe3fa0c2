// SPDX-License-Identifier: Apache-2.0
// expand_reduce.c - reductions with something after the sum, as a plain reduction and that something;
// places of the greatest and the least.
#include "rules/expand.h"

// ---- means, roots, logarithms ------------------------------------------------------------------

int tsr__x_axes(struct expansion *x, int64_t *axes)
{
    bool reduced[DERIVE_MAX_RANK] = {false};
    struct derivation *d = ARENA_NEW(x->arena, struct derivation);
    int rank = tsr__x_shape(x, 0).rank, n = 0;
    if (!d || rank < 0 || rank > DERIVE_MAX_RANK)
        return -1;
    d->node = x->twin;
    d->shapes = x->shapes;
    if (!tsr__reduce_axes(d, rank, reduced))
        return -1;
    for (int i = 0; i < rank; i++)
        if (reduced[i])
            axes[n++] = i;
    return n;
}

// What a reduction starts from: its input in the type that sums are taken in, its axes.
struct start {
    tsr_value *v;
    tsr_dtype type, wide;
    int64_t axes[DERIVE_MAX_RANK];
    int n;
    bool keep;
};

static bool begin(struct expansion *x, struct start *s)
{
    s->type = tsr__x_shape(x, 0).dtype;
    s->wide = tsr__x_wide(s->type);
    s->n = tsr__x_axes(x, s->axes);
    s->keep = tsr__x_int(x, "keepdims", 1) != 0;
    x->failed = x->failed || s->n < 0;
    s->v = tsr__x_cast(x, tsr__x_in(x, 0), s->type, s->wide);
    return !x->failed;
}

static void end(struct expansion *x, const struct start *s, tsr_value *v)
{
    tsr__x_give(x, 0, tsr__x_cast(x, v, s->wide, s->type));
}

void tsr__expand_reduce_mean(struct expansion *x)
{
    struct start s;
    if (!begin(x, &s))
        return;
    tsr_value *sum = tsr__x_reduce(x, "ReduceSum", s.v, s.axes, s.n, s.keep);
    end(x, &s, tsr__x_op(x, "Div", 2, sum, tsr__x_count(x, 0, s.axes, s.n, s.wide)));
}

void tsr__expand_reduce_l2(struct expansion *x)
{
    struct start s;
    if (begin(x, &s))
        end(x, &s,
            tsr__x_op(x, "Sqrt", 1, tsr__x_reduce(x, "ReduceSumSquare", s.v, s.axes, s.n, s.keep)));
}

void tsr__expand_reduce_log_sum(struct expansion *x)
{
    struct start s;
    if (begin(x, &s))
        end(x, &s, tsr__x_op(x, "Log", 1, tsr__x_reduce(x, "ReduceSum", s.v, s.axes, s.n, s.keep)));
}

// Rows that are -inf everywhere (or have a +inf) must not become inf - inf.
void tsr__expand_reduce_log_sum_exp(struct expansion *x)
{
    struct start s;
    if (!begin(x, &s))
        return;
    tsr_value *top = tsr__x_reduce(x, "ReduceMax", s.v, s.axes, s.n, true);
    top = tsr__x_op(x, "Where", 3, tsr__x_op(x, "IsInf", 1, top), tsr__x_scalar(x, s.wide, 0), top);
    tsr_value *e = tsr__x_op(x, "Exp", 1, tsr__x_op(x, "Sub", 2, s.v, top));
    tsr_value *sum = tsr__x_op(x, "Log", 1, tsr__x_reduce(x, "ReduceSum", e, s.axes, s.n, s.keep));
    if (!s.keep) // its dimensions of size 1 go
        top = tsr__x_reduce(x, "ReduceMax", top, s.axes, s.n, false);
    end(x, &s, tsr__x_op(x, "Add", 2, sum, top));
}

// ---- pools -------------------------------------------------------------------------------------

static int space_of(const struct expansion *x, int64_t *axes)
{
    int rank = tsr__x_shape(x, 0).rank;
    for (int i = 2; i < rank; i++)
        axes[i - 2] = i;
    return rank < 2 ? 0 : rank - 2;
}

void tsr__expand_global_average_pool(struct expansion *x)
{
    int64_t axes[DERIVE_MAX_RANK];
    int n = space_of(x, axes);
    tsr_dtype type = tsr__x_shape(x, 0).dtype, wide = tsr__x_wide(type);
    tsr_value *v = tsr__x_cast(x, tsr__x_in(x, 0), type, wide);
    tsr_value *sum = tsr__x_reduce(x, "ReduceSum", v, axes, n, true);
    v = tsr__x_op(x, "Div", 2, sum, tsr__x_count(x, 0, axes, n, wide));
    tsr__x_give(x, 0, tsr__x_cast(x, v, wide, type));
}

void tsr__expand_global_lp_pool(struct expansion *x)
{
    int64_t axes[DERIVE_MAX_RANK], p = tsr__x_int(x, "p", 2);
    int n = space_of(x, axes);
    tsr_dtype type = tsr__x_shape(x, 0).dtype, wide = tsr__x_wide(type);
    tsr_value *v = tsr__x_cast(x, tsr__x_in(x, 0), type, wide);
    if (p == 1) {
        v = tsr__x_reduce(x, "ReduceL1", v, axes, n, true);
    } else if (p == 2) {
        v = tsr__x_op(x, "Sqrt", 1, tsr__x_reduce(x, "ReduceSumSquare", v, axes, n, true));
    } else {
        v = tsr__x_op(x, "Pow", 2, tsr__x_op(x, "Abs", 1, v), tsr__x_scalar(x, wide, (double)p));
        v = tsr__x_reduce(x, "ReduceSum", v, axes, n, true);
        v = tsr__x_op(x, "Pow", 2, v, tsr__x_scalar(x, wide, 1.0 / (double)p));
    }
    tsr__x_give(x, 0, tsr__x_cast(x, v, wide, type));
}

// ---- places ------------------------------------------------------------------------------------

// Positions of the elements that equal the greatest; of those the first, or the last. NaN equals nothing: a row of
// which it is the greatest gives its last position (the first, where the last was asked for), which is one at least.
static void arg(struct expansion *x, const char *best)
{
    struct shape s = tsr__x_shape(x, 0);
    int64_t axis = tsr__axis(tsr__x_int(x, "axis", 0), s.rank);
    bool last = tsr__x_int(x, "select_last_index", 0) != 0;
    tsr_dtype wide = tsr__x_wide(s.dtype);
    tsr_value *v = tsr__x_cast(x, tsr__x_in(x, 0), s.dtype, wide);
    tsr_value *top = tsr__x_reduce(x, best, v, &axis, 1, true);
    tsr_value *at = tsr__x_positions(x, 0, (int)axis);
    tsr_value *none = tsr__x_scalar(x, TSR_INT64, 0);
    if (!last)
        none = tsr__x_op(x, "Sub", 2, tsr__x_count(x, 0, &axis, 1, TSR_INT64),
                         tsr__x_scalar(x, TSR_INT64, 1));
    v = tsr__x_op(x, "Where", 3, tsr__x_op(x, "Equal", 2, v, top), at, none);
    tsr__x_give(x, 0,
                tsr__x_reduce(x, last ? "ReduceMax" : "ReduceMin", v, &axis, 1,
                              tsr__x_int(x, "keepdims", 1) != 0));
}

void tsr__expand_arg_max(struct expansion *x)
{
    arg(x, "ReduceMax");
}

void tsr__expand_arg_min(struct expansion *x)
{
    arg(x, "ReduceMin");
}
