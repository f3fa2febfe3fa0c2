// SPDX-License-Identifier: Apache-2.0
// expand_loss.c - losses of classes: each sample's class is found by comparing, so that classes and
// samples may be cut; sums and the weights of a mean are plain reductions.
#include "rules/expand.h"

struct loss {
    tsr_value *v; // logarithms of probabilities, [n c d ..]
    tsr_dtype type, wide;
    int rank;
    int64_t axes[DERIVE_MAX_RANK]; // of the samples, without the class: 0 .. rank - 2
};

// Which class is each sample's: [n c d ..] of truth values, without the samples that are ignored.
static tsr_value *chosen(struct expansion *x)
{
    tsr_value *label = tsr__x_cast(x, tsr__x_in(x, 1), tsr__x_shape(x, 1).dtype, TSR_INT64);
    label = tsr__x_unsqueeze(x, label, 1); // [n d ..] as [n 1 d ..]
    tsr_value *is = tsr__x_op(x, "Equal", 2, label, tsr__x_positions(x, 0, 1));
    const tsr_attr *ignore = tsr_node_find_attr(x->node, "ignore_index");
    if (!ignore)
        return is;
    tsr_value *none = tsr__x_scalar(x, TSR_INT64, (double)tsr_attr_int(ignore, 0));
    return tsr__x_op(x, "And", 2, is,
                     tsr__x_op(x, "Not", 1, tsr__x_op(x, "Equal", 2, label, none)));
}

// Weights of the chosen classes, zero elsewhere.
static tsr_value *weights(struct expansion *x, const struct loss *s, tsr_value *is)
{
    int64_t shape[DERIVE_MAX_RANK];
    tsr_value *one = tsr__x_scalar(x, s->wide, 1);
    if (tsr__x_has(x, 2)) {
        for (int i = 0; i < s->rank - 1; i++)
            shape[i] = i ? 1 : -1;
        one = tsr__x_reshape(x, tsr__x_in(x, 2), shape, s->rank - 1);
        one = tsr__x_cast(x, one, s->type, s->wide);
    }
    return tsr__x_op(x, "Where", 3, is, one, tsr__x_scalar(x, s->wide, 0));
}

static void finish(struct expansion *x, const struct loss *s)
{
    int64_t one = 1;
    size_t n;
    const char *text = tsr_attr_string(tsr_node_find_attr(x->node, "reduction"), &n);
    struct str reduction = text ? (struct str){text, n} : STR("mean");
    tsr_value *is = chosen(x), *weight = weights(x, s, is);
    // Where, not a product: what is not chosen may be infinite.
    tsr_value *v = tsr__x_op(x, "Where", 3, is, s->v, tsr__x_scalar(x, s->wide, 0));
    v = tsr__x_op(x, "Neg", 1, tsr__x_op(x, "Mul", 2, v, weight));
    v = tsr__x_reduce(x, "ReduceSum", v, &one, 1, false);
    if (!str_is(reduction, "none"))
        v = tsr__x_reduce(x, "ReduceSum", v, s->axes, s->rank - 1, false);
    if (str_is(reduction, "mean")) {
        tsr_value *sum = tsr__x_reduce(x, "ReduceSum", weight, &one, 1, false);
        sum = tsr__x_reduce(x, "ReduceSum", sum, s->axes, s->rank - 1, false);
        v = tsr__x_op(x, "Div", 2, v, sum);
    }
    tsr__x_give(x, 0, tsr__x_cast(x, v, s->wide, s->type));
}

static bool begin(struct expansion *x, struct loss *s)
{
    struct shape in = tsr__x_shape(x, 0);
    *s = (struct loss){.type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank};
    if (in.rank < 2 || in.rank > DERIVE_MAX_RANK) {
        x->failed = true;
        return false;
    }
    s->v = tsr__x_cast(x, tsr__x_in(x, 0), s->type, s->wide);
    for (int i = 0; i < s->rank - 1; i++)
        s->axes[i] = i;
    return true;
}

void tsr__expand_loss(struct expansion *x)
{
    struct loss s;
    if (begin(x, &s))
        finish(x, &s);
}

void tsr__expand_softmax_loss(struct expansion *x)
{
    struct loss s;
    int64_t one = 1;
    if (!begin(x, &s))
        return;
    s.v = tsr__x_op(x, "Sub", 2, s.v, tsr__x_reduce(x, "ReduceMax", s.v, &one, 1, true));
    tsr_value *sum = tsr__x_reduce(x, "ReduceSum", tsr__x_op(x, "Exp", 1, s.v), &one, 1, true);
    s.v = tsr__x_op(x, "Sub", 2, s.v, tsr__x_op(x, "Log", 1, sum));
    tsr__x_give(x, 1, tsr__x_cast(x, s.v, s.wide, s.type));
    finish(x, &s);
}
