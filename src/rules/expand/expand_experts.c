// SPDX-License-Identifier: Apache-2.0
// expand_experts.c - a mixture of experts whose experts are sharded.
//
// The operator chooses among the experts that it has, so it cannot run on a shard of them. In the
// expansion, every device computes the choice for all tokens (the router is small) and runs its own
// experts on them. It multiplies their results by the router's weights, which are 0 for experts
// that were not chosen, and the sum over experts is a sum over devices.
#include "rules/expand/expand.h"

struct experts {
    tsr_dtype type, wide;
    int64_t count, chosen, m; // number of experts, experts per token, and size of a token
};

static tsr_value *wide(struct expansion *expansion, const struct experts *experts, size_t i)
{
    return tsr__x_cast(expansion, tsr__x_in(expansion, i), experts->type, experts->wide);
}

static tsr_value *with_axis(struct expansion *expansion, tsr_value *value, const char *name,
                            int64_t axis)
{
    if (!value || tsr_node_set_int(tsr_value_producer(value), name, axis) != TSR_OK) {
        expansion->failed = true;
        return NULL;
    }
    return value;
}

static tsr_value *unsqueezed(struct expansion *expansion, tsr_value *value, int64_t axis)
{
    if (value)
        return tsr__x_op(expansion, "Unsqueeze", 2, value, tsr__x_ints(expansion, &axis, 1));
    return NULL;
}

// Returns the weight of each expert for each token, [e t 1].
static tsr_value *router_weights(struct expansion *expansion, const struct experts *experts)
{
    static const int64_t turn[] = {1, 0}, one = 1;
    tsr_value *value = with_axis(
        expansion, tsr__x_op(expansion, "Softmax", 1, wide(expansion, experts, 1)), "axis", -1);
    tsr_value *inputs[2] = {value, tsr__x_ints(expansion, &experts->chosen, 1)};
    tsr_node *top =
        value && !expansion->failed ? tsr__x_nodes(expansion, "TopK", 2, inputs, 2) : NULL;
    if (!top)
        return NULL;
    tsr_value *best = tsr_node_output(top, 0), *which = tsr_node_output(top, 1);
    if (tsr__x_int(expansion, "normalize_routing_weights", 0))
        best = tsr__x_op(expansion, "Div", 2, best,
                         tsr__x_reduce(expansion, "ReduceSum", best, &one, 1, true));
    int64_t row[] = {1, 1, experts->count};
    tsr_value *number = tsr__x_reshape(expansion, tsr__x_positions(expansion, 2, 0), row, 3);
    tsr_value *is = tsr__x_op(expansion, "Equal", 2, unsqueezed(expansion, which, 2), number);
    is = tsr__x_cast(expansion, is, TSR_BOOL, experts->wide);
    tsr_value *all = tsr__x_op(expansion, "Mul", 2, is, unsqueezed(expansion, best, 2));
    all = tsr__x_reduce(expansion, "ReduceSum", all, &one, 1, false);
    tsr_value *by_expert = all ? tsr__x_op(expansion, "Transpose", 1, all) : NULL;
    if (!by_expert || tsr_node_set_ints(tsr_value_producer(by_expert), "perm", turn, 2) != TSR_OK) {
        expansion->failed = true;
        return NULL;
    }
    return unsqueezed(expansion, by_expert, 2);
}

// Applies one layer of all experts: [e t m] (or [1 t m]) by weights [e i m], and a bias [e i].
static tsr_value *layer(struct expansion *expansion, const struct experts *experts,
                        tsr_value *value, size_t weights, size_t bias)
{
    static const int64_t turn[] = {0, 2, 1};
    tsr_value *w = tsr__x_op(expansion, "Transpose", 1, wide(expansion, experts, weights));
    if (!w || tsr_node_set_ints(tsr_value_producer(w), "perm", turn, 3) != TSR_OK) {
        expansion->failed = true;
        return NULL;
    }
    tsr_value *y = tsr__x_op(expansion, "MatMul", 2, value, w);
    if (tsr__x_has(expansion, bias))
        return tsr__x_op(expansion, "Add", 2, y,
                         unsqueezed(expansion, wide(expansion, experts, bias), 1));
    return y;
}

// Applies the activation between the two layers. derive_experts.c refuses activations that are not
// listed here.
static tsr_value *activated(struct expansion *expansion, tsr_value *value)
{
    size_t n = 0;
    const char *text = tsr_attr_string(tsr_node_find_attr(expansion->node, "activation_type"), &n);
    struct str name = text ? (struct str){text, n} : STR("relu");
    if (str_is(name, "relu"))
        return tsr__x_op(expansion, "Relu", 1, value);
    if (str_is(name, "silu"))
        return tsr__x_op(expansion, "Mul", 2, value, tsr__x_op(expansion, "Sigmoid", 1, value));
    return value; // identity
}

// Multiplies results of experts by their weights. It selects with Where instead of multiplying by
// 0, because 0 times an infinite result would be NaN.
static tsr_value *weighted(struct expansion *expansion, const struct experts *experts,
                           tsr_value *given)
{
    tsr_value *share = router_weights(expansion, experts);
    tsr_value *zero = tsr__x_scalar(expansion, experts->wide, 0);
    tsr_value *unchosen = tsr__x_op(expansion, "Equal", 2, share, zero);
    tsr_value *product = tsr__x_op(expansion, "Mul", 2, given, share);
    return tsr__x_op(expansion, "Where", 3, unchosen, zero, product);
}

// Expands MoE. 6 tokens of 64 and 8 experts: tokens [1 6 64] by weights [8 256 64] give [8 6 256],
// then [8 6 64]. Multiplied by the router's weights [8 6 1] and summed over the experts, they give
// [6 64]. A device with experts 0..3 has [4 ..] of each.
void tsr__expand_experts(struct expansion *expansion)
{
    struct shape tokens = tsr__x_shape(expansion, 0), first = tsr__x_shape(expansion, 2);
    int64_t zero = 0;
    struct experts s = {.type = tokens.dtype,
                        .wide = tsr__x_wide(tokens.dtype),
                        .count = -1,
                        .m = -1,
                        .chosen = tsr__x_int(expansion, "k", 1)};
    if (first.rank == 3) {
        s.count = first.dims[0].value;
        s.m = first.dims[2].value;
    }
    int64_t rows[] = {-1, s.m}, many[] = {1, -1, s.m};
    tsr_value *t = wide(expansion, &s, 0);
    if (tokens.rank == 3)
        t = tsr__x_reshape(expansion, t, rows, 2);
    t = tsr__x_reshape(expansion, t, many, 3);
    tsr_value *h = activated(expansion, layer(expansion, &s, t, 2, 3));
    if (tsr__x_has(expansion, 6)) // a third layer, which the first one gates
        h = tsr__x_op(expansion, "Mul", 2, h, layer(expansion, &s, t, 6, 7));
    tsr_value *y = layer(expansion, &s, h, 4, 5);
    y = weighted(expansion, &s, y);
    y = tsr__x_reduce(expansion, "ReduceSum", y, &zero, 1, false);
    if (tokens.rank == 3)
        y = tsr__x_op(expansion, "Reshape", 2, y,
                      tsr__x_op(expansion, "Shape", 1, tsr__x_in(expansion, 0)));
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, y, s.wide, s.type));
    size_t kept = 0; // the full input of the router is needed
    for (size_t i = 0; i < expansion->reads.n; i++)
        if (expansion->reads.at[i].of != 1)
            expansion->reads.at[kept++] = expansion->reads.at[i];
    expansion->reads.n = kept;
}
