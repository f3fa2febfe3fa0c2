// SPDX-License-Identifier: Apache-2.0
// expand_experts.c - a mixture of experts whose experts lie on different devices.
//
// The operator chooses among the experts that it sees, so it cannot run on some of them. Taken
// apart, every device knows the choice for all tokens (the router is small), runs its own experts
// on them, weighs what they give with what the router says of them, which is 0 where they were not
// chosen, and the sum over experts is one over devices.
#include "rules/expand.h"

struct experts {
    tsr_dtype type, wide;
    int64_t count, chosen, m; // experts; that a token has; size of a token
};

static tsr_value *wide(struct expansion *x, const struct experts *s, size_t i)
{
    return tsr__x_cast(x, tsr__x_in(x, i), s->type, s->wide);
}

static tsr_value *with_axis(struct expansion *x, tsr_value *v, const char *name, int64_t axis)
{
    if (!v || tsr_node_set_int(tsr_value_producer(v), name, axis) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return v;
}

static tsr_value *unsqueezed(struct expansion *x, tsr_value *v, int64_t axis)
{
    return v ? tsr__x_op(x, "Unsqueeze", 2, v, tsr__x_ints(x, &axis, 1)) : NULL;
}

// What each expert counts for each token, [e t 1].
static tsr_value *shares(struct expansion *x, const struct experts *s)
{
    static const int64_t turn[] = {1, 0}, one = 1;
    tsr_value *p = with_axis(x, tsr__x_op(x, "Softmax", 1, wide(x, s, 1)), "axis", -1);
    tsr_value *inputs[2] = {p, tsr__x_ints(x, &s->chosen, 1)};
    tsr_node *top = p && !x->failed ? tsr__x_nodes(x, "TopK", 2, inputs, 2) : NULL;
    if (!top)
        return NULL;
    tsr_value *best = tsr_node_output(top, 0), *which = tsr_node_output(top, 1);
    if (tsr__x_int(x, "normalize_routing_weights", 0))
        best = tsr__x_op(x, "Div", 2, best, tsr__x_reduce(x, "ReduceSum", best, &one, 1, true));
    int64_t row[] = {1, 1, s->count};
    tsr_value *number = tsr__x_reshape(x, tsr__x_positions(x, 2, 0), row, 3);
    tsr_value *is = tsr__x_op(x, "Equal", 2, unsqueezed(x, which, 2), number);
    is = tsr__x_cast(x, is, TSR_BOOL, s->wide);
    tsr_value *all = tsr__x_op(x, "Mul", 2, is, unsqueezed(x, best, 2));
    all = tsr__x_reduce(x, "ReduceSum", all, &one, 1, false);
    tsr_value *by_expert = all ? tsr__x_op(x, "Transpose", 1, all) : NULL;
    if (!by_expert || tsr_node_set_ints(tsr_value_producer(by_expert), "perm", turn, 2) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return unsqueezed(x, by_expert, 2);
}

// One layer of all experts: [e t m] (or [1 t m]) by weights [e i m], and a bias [e i].
static tsr_value *layer(struct expansion *x, const struct experts *s, tsr_value *v, size_t weights,
                        size_t bias)
{
    static const int64_t turn[] = {0, 2, 1};
    tsr_value *w = tsr__x_op(x, "Transpose", 1, wide(x, s, weights));
    if (!w || tsr_node_set_ints(tsr_value_producer(w), "perm", turn, 3) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    tsr_value *y = tsr__x_op(x, "MatMul", 2, v, w);
    return tsr__x_has(x, bias) ? tsr__x_op(x, "Add", 2, y, unsqueezed(x, wide(x, s, bias), 1)) : y;
}

static tsr_value *activated(struct expansion *x, tsr_value *v)
{
    size_t n = 0;
    const char *text = tsr_attr_string(tsr_node_find_attr(x->node, "activation_type"), &n);
    struct str name = text ? (struct str){text, n} : STR("relu");
    if (str_is(name, "relu"))
        return tsr__x_op(x, "Relu", 1, v);
    if (str_is(name, "silu"))
        return tsr__x_op(x, "Mul", 2, v, tsr__x_op(x, "Sigmoid", 1, v));
    return v; // identity
}

void tsr__expand_experts(struct expansion *x)
{
    struct shape tokens = tsr__x_shape(x, 0), first = tsr__x_shape(x, 2);
    int64_t zero = 0;
    struct experts s = {.type = tokens.dtype,
                        .wide = tsr__x_wide(tokens.dtype),
                        .count = first.rank == 3 ? first.dims[0].value : -1,
                        .m = first.rank == 3 ? first.dims[2].value : -1,
                        .chosen = tsr__x_int(x, "k", 1)};
    int64_t rows[] = {-1, s.m}, many[] = {1, -1, s.m};
    tsr_value *t = wide(x, &s, 0);
    if (tokens.rank == 3)
        t = tsr__x_reshape(x, t, rows, 2);
    t = tsr__x_reshape(x, t, many, 3);
    tsr_value *h = activated(x, layer(x, &s, t, 2, 3));
    tsr_value *y = layer(x, &s, h, 4, 5);
    y = tsr__x_op(x, "Mul", 2, y, shares(x, &s));
    y = tsr__x_reduce(x, "ReduceSum", y, &zero, 1, false);
    if (tokens.rank == 3)
        y = tsr__x_op(x, "Reshape", 2, y, tsr__x_op(x, "Shape", 1, tsr__x_in(x, 0)));
    tsr__x_give(x, 0, tsr__x_cast(x, y, s.wide, s.type));
    size_t kept = 0; // whatever part of the router the old node had: all of it is needed now
    for (size_t i = 0; i < x->reads.n; i++)
        if (x->reads.at[i].of != 1)
            x->reads.at[kept++] = x->reads.at[i];
    x->reads.n = kept;
}
