// SPDX-License-Identifier: Apache-2.0
// expand_loss.c - losses over classes. Each sample's class is found by comparison, so classes and
// samples can be sharded. Sums and the weights of a mean are plain reductions.
//
// Scores [2 3], labels {2, 0}: class numbers {0, 1, 2} compared with the labels give [0 0 1; 1 0
// 0]. Scores where that is true are kept, others become 0; the sum along the classes is the score
// of the label. Sharded in 3 along the classes, device 2 has column 2 and finds only the class of
// the first sample; the sum over devices has both.
#include "rules/expand/expand.h"

struct loss {
    tsr_value *value; // logarithms of probabilities, [n c d ..]
    tsr_dtype type, wide;
    int rank;
    int64_t axes[DERIVE_MAX_RANK]; // axes of the samples, without the class axis
};

// Returns whether each class is that of the sample: [n c d ..] of bool, false for ignored samples.
static tsr_value *chosen(struct expansion *expansion)
{
    tsr_value *label = tsr__x_cast(expansion, tsr__x_in(expansion, 1),
                                   tsr__x_shape(expansion, 1).dtype, TSR_INT64);
    label = tsr__x_unsqueeze(expansion, label, 1); // reshape [n d ..] to [n 1 d ..]
    tsr_value *is = tsr__x_op(expansion, "Equal", 2, label, tsr__x_positions(expansion, 0, 1));
    const tsr_attr *ignore = tsr_node_find_attr(expansion->node, "ignore_index");
    if (!ignore)
        return is;
    tsr_value *none = tsr__x_scalar(expansion, TSR_INT64, (double)tsr_attr_int(ignore, 0));
    return tsr__x_op(expansion, "And", 2, is,
                     tsr__x_op(expansion, "Not", 1, tsr__x_op(expansion, "Equal", 2, label, none)));
}

// Returns the weights of the chosen classes, 0 elsewhere.
static tsr_value *weights(struct expansion *expansion, const struct loss *loss, tsr_value *is)
{
    int64_t shape[DERIVE_MAX_RANK];
    tsr_value *one = tsr__x_scalar(expansion, loss->wide, 1);
    if (tsr__x_has(expansion, 2)) {
        for (int i = 0; i < loss->rank - 1; i++)
            shape[i] = i ? 1 : -1;
        one = tsr__x_reshape(expansion, tsr__x_in(expansion, 2), shape, loss->rank - 1);
        one = tsr__x_cast(expansion, one, loss->type, loss->wide);
    }
    return tsr__x_op(expansion, "Where", 3, is, one, tsr__x_scalar(expansion, loss->wide, 0));
}

// Sets the outputs. The loss of a sample is -value of its class times the weight of the class; a
// mean divides by the sum of the used weights.
static void finish(struct expansion *expansion, const struct loss *loss)
{
    int64_t one = 1;
    size_t n;
    const char *text = tsr_attr_string(tsr_node_find_attr(expansion->node, "reduction"), &n);
    struct str reduction = text ? (struct str){text, n} : STR("mean");
    tsr_value *is = chosen(expansion), *weight = weights(expansion, loss, is);
    // Use Where instead of a product, because values of other classes may be infinite.
    tsr_value *value =
        tsr__x_op(expansion, "Where", 3, is, loss->value, tsr__x_scalar(expansion, loss->wide, 0));
    value = tsr__x_op(expansion, "Neg", 1, tsr__x_op(expansion, "Mul", 2, value, weight));
    value = tsr__x_reduce(expansion, "ReduceSum", value, &one, 1, false);
    if (!str_is(reduction, "none"))
        value = tsr__x_reduce(expansion, "ReduceSum", value, loss->axes, loss->rank - 1, false);
    if (str_is(reduction, "mean")) {
        tsr_value *sum = tsr__x_reduce(expansion, "ReduceSum", weight, &one, 1, false);
        sum = tsr__x_reduce(expansion, "ReduceSum", sum, loss->axes, loss->rank - 1, false);
        value = tsr__x_op(expansion, "Div", 2, value, sum);
    }
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, value, loss->wide, loss->type));
}

// Reads the node. Statistics are at least float32; samples are all dimensions except the classes.
static bool begin(struct expansion *expansion, struct loss *loss)
{
    struct shape in = tsr__x_shape(expansion, 0);
    *loss = (struct loss){.type = in.dtype, .wide = tsr__x_wide(in.dtype), .rank = in.rank};
    if (in.rank < 2 || in.rank > DERIVE_MAX_RANK) {
        expansion->failed = true;
        return false;
    }
    loss->value = tsr__x_cast(expansion, tsr__x_in(expansion, 0), loss->type, loss->wide);
    for (int i = 0; i < loss->rank - 1; i++)
        loss->axes[i] = i;
    return true;
}

void tsr__expand_loss(struct expansion *expansion)
{
    struct loss s;
    if (begin(expansion, &s))
        finish(expansion, &s);
}

// Builds the logarithm of the softmax (x minus the maximum, minus the logarithm of the sum of
// exponentials), then its loss.
void tsr__expand_softmax_loss(struct expansion *expansion)
{
    struct loss s;
    int64_t one = 1;
    if (!begin(expansion, &s))
        return;
    s.value = tsr__x_op(expansion, "Sub", 2, s.value,
                        tsr__x_reduce(expansion, "ReduceMax", s.value, &one, 1, true));
    tsr_value *sum = tsr__x_reduce(expansion, "ReduceSum", tsr__x_op(expansion, "Exp", 1, s.value),
                                   &one, 1, true);
    s.value = tsr__x_op(expansion, "Sub", 2, s.value, tsr__x_op(expansion, "Log", 1, sum));
    tsr__x_give(expansion, 1, tsr__x_cast(expansion, s.value, s.wide, s.type));
    finish(expansion, &s);
}
