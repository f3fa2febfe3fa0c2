// SPDX-License-Identifier: Apache-2.0
// expand_attention.c - attention as matrix products and a softmax, for sharded keys and for sharded
// rows of a causal query.
//
// Each device computes the scores of its keys. The softmax is expanded too (maximum and sum are
// reduced over devices), and the product with the values is a sum over devices. A causal mask is
// computed from positions, so each device makes its own shard. Query heads that share a key head
// have a separate dimension.
//
// Shapes, with 2 key heads of size 4 for 6 query heads (g = 3):
//
//   queries [b 2 3 q 4]   keys, transposed [b 2 1 4 k]   scores [b 2 3 q k]
//   values [b 2 1 k 4]    result [b 2 3 q 4], and back to [b q 24] or [b 6 q 4]
#include "rules/expand/expand.h"

#include <float.h>
#include <math.h>

struct attention {
    int rank;           // rank of the query: 3 or 4
    int64_t h, g, d, v; // key heads, query heads per key head, head sizes of keys and values
    size_t mask;        // index of the mask input; 0: none
    bool causal;
    bool hidden_is_zero; // a query whose keys are all masked gives 0, not NaN or a mean
    double scale;
    tsr_dtype type, wide;
};

// Adds a Transpose and returns its result.
static tsr_value *transposed(struct expansion *expansion, tsr_value *value, const int64_t *perm,
                             int n)
{
    value = X_OP(expansion, "Transpose", value);
    return tsr__x_with_ints(expansion, value, "perm", perm, n);
}

// Returns input i as [b h s e], or as [b h g s e] if query heads share keys.
static tsr_value *by_heads(struct expansion *expansion, const struct attention *attention, size_t i,
                           int64_t g, int64_t e)
{
    static const int64_t four[] = {0, 2, 1, 3}, five[] = {0, 2, 3, 1, 4};
    int rank = tsr__x_shape(expansion, i).rank;
    tsr_value *value =
        tsr__x_cast(expansion, tsr__x_in(expansion, i), attention->type, attention->wide);
    int64_t flat[] = {0, 0, attention->h, e}, flat_shared[] = {0, 0, attention->h, g, e},
            shared[] = {0, attention->h, g, -1, e};
    // The value already has that form.
    if (attention->g == 1 && rank == 4)
        return value;
    if (attention->g == 1)
        return transposed(expansion, tsr__x_reshape(expansion, value, flat, 4), four, 4);
    if (rank == 4)
        return tsr__x_reshape(expansion, value, shared, 5);
    return transposed(expansion, tsr__x_reshape(expansion, value, flat_shared, 5), five, 5);
}

// Returns the axis of the rows: 1 of [b s (h d)], 2 of [b h s d].
static int rows_axis(int rank)
{
    return rank == 3 ? 1 : 2;
}

// Replaces the scores of keys that come after their query by -inf: query i may use keys 0 .. i.
// Positions are constants, or are computed at run time.
static tsr_value *causal(struct expansion *expansion, const struct attention *attention,
                         tsr_value *scores)
{
    static const int64_t rows[] = {-1, 1}, columns[] = {-1};
    int axis = rows_axis(attention->rank), of_keys = rows_axis(tsr__x_shape(expansion, 1).rank);
    tsr_value *q = tsr__x_reshape(expansion, tsr__x_positions(expansion, 0, axis), rows, 2);
    tsr_value *k = tsr__x_reshape(expansion, tsr__x_positions(expansion, 1, of_keys), columns, 1);
    tsr_value *seen = X_OP(expansion, "LessOrEqual", k, q);
    return X_OP(expansion, "Where", seen, scores,
                tsr__x_scalar(expansion, attention->wide, -INFINITY));
}

// Returns the lowest number of the type. Adding it to a score masks the key.
static double masking_number(tsr_dtype type)
{
    switch (type) {
    case TSR_FLOAT16:
        return -65504.0;
    case TSR_BFLOAT16:
        return -0x1.fep127;
    case TSR_DOUBLE:
        return -DBL_MAX;
    default:
        return -(double)FLT_MAX;
    }
}

// Adds a mask of numbers to the scores. If a query whose keys are all masked must give 0, the
// lowest number is treated as -inf.
static tsr_value *add_mask(struct expansion *expansion, const struct attention *attention,
                           tsr_value *scores, tsr_value *mask, tsr_dtype type)
{
    mask = tsr__x_cast(expansion, mask, type, attention->wide);
    tsr_value *sum = X_OP(expansion, "Add", scores, mask);
    if (!attention->hidden_is_zero)
        return sum;
    tsr_value *lowest = tsr__x_scalar(expansion, attention->wide, masking_number(type));
    tsr_value *hidden = X_OP(expansion, "LessOrEqual", mask, lowest);
    return X_OP(expansion, "Where", hidden, tsr__x_scalar(expansion, attention->wide, -INFINITY),
                sum);
}

// Applies a mask of [q k] or [b heads q k], of bool or numbers.
static tsr_value *apply_mask(struct expansion *expansion, const struct attention *attention,
                             tsr_value *scores)
{
    struct shape s = tsr__x_shape(expansion, attention->mask);
    tsr_value *mask = tsr__x_in(expansion, attention->mask);
    // Reshape [b (h g) q k] to [b h g q k], to broadcast with scores of shared heads.
    if (attention->g > 1 && s.rank == 4) {
        int64_t shape[] = {0, attention->h, attention->g, size_at(s, 2), -1};
        if (size_at(s, 1) == 1) // one mask for all heads
            shape[1] = shape[2] = 1;
        mask = tsr__x_reshape(expansion, mask, shape, 5);
    }
    if (s.dtype == TSR_BOOL)
        return X_OP(expansion, "Where", mask, scores,
                    tsr__x_scalar(expansion, attention->wide, -INFINITY));
    return add_mask(expansion, attention, scores, mask, s.dtype);
}

// Scales and masks the product of queries and transposed keys: [b h q d] by [b h d k] is [b h q k].
static tsr_value *scores_of(struct expansion *expansion, const struct attention *attention)
{
    static const int64_t last[] = {0, 1, 3, 2}, last_shared[] = {0, 1, 2, 4, 3};
    tsr_value *q = by_heads(expansion, attention, 0, attention->g, attention->d),
              *k = by_heads(expansion, attention, 1, 1, attention->d);
    k = attention->g == 1 ? transposed(expansion, k, last, 4)
                          : transposed(expansion, k, last_shared, 5);
    tsr_value *s = X_OP(expansion, "MatMul", q, k);
    s = X_OP(expansion, "Mul", s, tsr__x_scalar(expansion, attention->wide, attention->scale));
    if (attention->mask)
        s = apply_mask(expansion, attention, s);
    if (attention->causal)
        s = causal(expansion, attention, s);
    return s;
}

// Computes a softmax in which a row of -inf gives zeros instead of NaN. For [-inf, -inf], 0 is
// subtracted instead of the maximum, both exponentials are 0, and their sum 0 is replaced by 1. NaN
// stays NaN.
static tsr_value *softmax_or_zero(struct expansion *expansion, const struct attention *attention,
                                  tsr_value *scores)
{
    int64_t last[] = {3}; // axis of the keys in [b h q k] or [b h g q k]
    if (attention->g > 1)
        last[0] = 4;
    tsr_value *top = tsr__x_reduce(expansion, "ReduceMax", scores, last, 1, true);
    tsr_value *seen =
        X_OP(expansion, "Greater", top, tsr__x_scalar(expansion, attention->wide, -INFINITY));
    top = X_OP(expansion, "Where", seen, top, tsr__x_scalar(expansion, attention->wide, 0));
    tsr_value *value = X_OP(expansion, "Exp", X_OP(expansion, "Sub", scores, top));
    tsr_value *sum = tsr__x_reduce(expansion, "ReduceSum", value, last, 1, true);
    sum = X_OP(expansion, "Where", seen, sum, tsr__x_scalar(expansion, attention->wide, 1));
    return X_OP(expansion, "Div", value, sum);
}

// Builds scores, softmax and the product with the values, and reshapes the result like the queries.
static void build_attention(struct expansion *expansion, const struct attention *attention)
{
    static const int64_t four[] = {0, 2, 1, 3}, five[] = {0, 3, 1, 2, 4};
    tsr_value *scores = scores_of(expansion, attention);
    tsr_value *value;
    if (attention->hidden_is_zero)
        value = softmax_or_zero(expansion, attention, scores);
    else // along the keys; expanded in turn if they are sharded
        value = tsr__x_with_int(expansion, X_OP(expansion, "Softmax", scores), "axis", -1);
    if (!value)
        return;
    tsr_value *y =
        X_OP(expansion, "MatMul", value, by_heads(expansion, attention, 2, 1, attention->v));
    int64_t flat[] = {0, 0, attention->h * attention->g * attention->v},
            heads[] = {0, attention->h * attention->g, -1, attention->v};
    if (attention->rank == 3 && attention->g == 1)
        y = tsr__x_reshape(expansion, transposed(expansion, y, four, 4), flat, 3);
    else if (attention->rank == 3)
        y = tsr__x_reshape(expansion, transposed(expansion, y, five, 5), flat, 3);
    else if (attention->g > 1)
        y = tsr__x_reshape(expansion, y, heads, 4);
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, y, attention->wide, attention->type));
}

// Returns the size of a head: heads are in the last of 3 dimensions, or have a separate one of 4.
// An unknown size is -1, which gives no positive number.
static int64_t size_of_head(struct shape shape, int64_t heads)
{
    return shape.rank == 3 ? size_at(shape, 2) / heads : size_at(shape, 3);
}

// Finds the head sizes. False: one is unknown.
static bool read_heads(const struct expansion *expansion, int64_t queries, int64_t keys,
                       struct attention *attention)
{
    struct shape q = tsr__x_shape(expansion, 0), k = tsr__x_shape(expansion, 1),
                 v = tsr__x_shape(expansion, 2);
    attention->rank = q.rank;
    attention->type = q.dtype;
    attention->wide = tsr__x_wide(q.dtype);
    if (queries < 1 || keys < 1 || queries % keys || k.rank < 3 || v.rank < 3)
        return false;
    attention->h = keys;
    attention->g = queries / keys;
    attention->d = size_of_head(q, queries);
    attention->v = size_of_head(v, keys);
    return attention->d > 0 && attention->v > 0;
}

// Expands Attention of ai.onnx. The default scale is 1 / sqrt(d).
void tsr__expand_attention(struct expansion *expansion)
{
    struct shape q = tsr__x_shape(expansion, 0), k = tsr__x_shape(expansion, 1);
    struct attention attention = {.causal = tsr__x_int(expansion, "is_causal", 0) != 0};
    if (tsr__x_has(expansion, 3)) {
        attention.mask = 3;
        attention.hidden_is_zero = true; // a mask may hide all keys of a query
    }
    int64_t queries = size_at(q, 1), keys = size_at(k, 1);
    if (q.rank == 3) {
        queries = tsr__x_int(expansion, "q_num_heads", 0);
        keys = tsr__x_int(expansion, "kv_num_heads", 0);
    }
    if (!read_heads(expansion, queries, keys, &attention)) {
        expansion->failed = true;
        return;
    }
    attention.scale =
        (double)tsr__x_float(expansion, "scale", (float)(1.0 / sqrt((double)attention.d)));
    build_attention(expansion, &attention);
}

// Expands MultiHeadAttention of com.microsoft, which has as many key heads as query heads. A scale
// of 0 means the default.
void tsr__expand_multi_head(struct expansion *expansion)
{
    struct attention attention = {0};
    if (tsr__x_has(expansion, 5))
        attention.mask = 5;
    int64_t heads = tsr__x_int(expansion, "num_heads", 0);
    if (!read_heads(expansion, heads, heads, &attention)) {
        expansion->failed = true;
        return;
    }
    attention.scale = (double)tsr__x_float(expansion, "scale", 0);
    if (attention.scale == 0)
        attention.scale = 1.0 / sqrt((double)attention.d);
    build_attention(expansion, &attention);
}
