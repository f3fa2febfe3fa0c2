// SPDX-License-Identifier: Apache-2.0
// expand_group_query.c - a prompt of GroupQueryAttention as a causal MultiHeadAttention, for
// sharded rows of the query (emit_causal.c).
//
// Every key head is repeated for its query heads. Sequence i has n tokens, where n - 1 is element i
// of input 5. As in the kernel of GroupQueryAttention, rows after the last token must use the n
// keys only. To hide the other keys, every head gets MORE elements. In queries they are 1. In keys
// they are 0, except that the first is HIDDEN in key n and later keys, which makes the score of
// these keys so low that their weight is 0.
//
//     queries [b q 6 16] -> [b q 6 24]    keys [b k 2 16] -> [b k 2 24] -> [b k 6 24]
//     result [b q 6 24] -> [b q 6 16]
#include "rules/expand/expand.h"

#include <math.h>

#define MORE   8        // kernels need head sizes that are multiples of 8
#define HIDDEN (-30000) // gives a key the weight 0; float16 can represent it

struct groups {
    int64_t heads, keys, d; // query heads, key heads and elements of a head
    tsr_dtype type;
};

// Returns a number as a constant of the node's type.
static tsr_value *number(struct expansion *expansion, const struct groups *groups, double v)
{
    return tsr__x_cast(expansion, tsr__x_scalar(expansion, TSR_FLOAT, v), TSR_FLOAT, groups->type);
}

// Returns the number of tokens of each sequence as int64, reshaped to `shape`.
static tsr_value *tokens(struct expansion *expansion, const int64_t *shape, int64_t n)
{
    tsr_value *last = tsr__x_cast(expansion, tsr__x_in(expansion, 5), TSR_INT32, TSR_INT64);
    tsr_value *count = X_OP(expansion, "Add", last, tsr__x_scalar(expansion, TSR_INT64, 1));
    return tsr__x_reshape(expansion, count, shape, n);
}

// Returns positions [b s] of the rows of input i: input 9 of the node, or 0, 1, 2 ...
static tsr_value *positions(struct expansion *expansion, size_t i)
{
    static const int64_t row[] = {1, -1}, column[] = {-1, 1};
    if (tsr__x_has(expansion, 9))
        return tsr__x_in(expansion, 9);
    tsr_value *all = tsr__x_reshape(expansion, tsr__x_positions(expansion, i, 1), row, 2);
    tsr_value *zeros = X_OP(expansion, "Mul", tokens(expansion, column, 2),
                            tsr__x_scalar(expansion, TSR_INT64, 0));
    return X_OP(expansion, "Add", all, zeros); // one row for each sequence
}

// Returns queries or keys, rotated if the node rotates them.
static tsr_value *rotated(struct expansion *expansion, const struct groups *groups, size_t i,
                          int64_t heads)
{
    struct shape cosines = tsr__x_shape(expansion, 7);
    if (!tsr__x_int(expansion, "do_rotary", 0))
        return tsr__x_in(expansion, i);
    tsr_value *inputs[] = {tsr__x_in(expansion, i), positions(expansion, i),
                           tsr__x_in(expansion, 7), tsr__x_in(expansion, 8)};
    tsr_value *y = tsr__x_output(tsr__x_fused(expansion, "RotaryEmbedding", 4, inputs));
    y = tsr__x_with_int(expansion, y, "num_heads", heads);
    y = tsr__x_with_int(expansion, y, "interleaved",
                        tsr__x_int(expansion, "rotary_interleaved", 0));
    if (2 * size_at(cosines, 1) < groups->d)
        y = tsr__x_with_int(expansion, y, "rotary_embedding_dim", 2 * size_at(cosines, 1));
    return y;
}

// Returns [b s (h d)] as [b s h (d + MORE)]. The new elements have the value `more`.
static tsr_value *widened(struct expansion *expansion, const struct groups *groups,
                          tsr_value *value, int64_t heads, double more)
{
    int64_t shape[] = {0, 0, heads, groups->d}, pads[] = {0, 0, 0, 0, 0, 0, 0, MORE};
    value = tsr__x_reshape(expansion, value, shape, 4);
    return X_OP(expansion, "Pad", value, tsr__x_ints(expansion, pads, 8),
                number(expansion, groups, more));
}

// Returns [b k 1 (d + MORE)], which is added to the keys: HIDDEN in the first new element of keys
// after the last token of their sequence, else 0.
static tsr_value *hidden_keys(struct expansion *expansion, const struct groups *groups)
{
    static const int64_t by_row[] = {1, -1, 1, 1}, by_sequence[] = {-1, 1, 1, 1};
    static const int64_t single[] = {1, 1, 1, 1};
    int64_t pads[] = {0, 0, 0, groups->d, 0, 0, 0, MORE - 1};
    tsr_value *at = tsr__x_reshape(expansion, tsr__x_positions(expansion, 1, 1), by_row, 4);
    tsr_value *seen = X_OP(expansion, "Less", at, tokens(expansion, by_sequence, 4));
    tsr_value *score = X_OP(expansion, "Where", seen, number(expansion, groups, 0),
                            number(expansion, groups, HIDDEN));
    tsr_value *unit =
        X_OP(expansion, "Pad", tsr__x_reshape(expansion, number(expansion, groups, 1), single, 4),
             tsr__x_ints(expansion, pads, 8), number(expansion, groups, 0));
    return X_OP(expansion, "Mul", score, unit);
}

// Repeats every key head for its query heads and returns [b k (h d)].
static tsr_value *repeated(struct expansion *expansion, const struct groups *groups,
                           tsr_value *value)
{
    int64_t each = groups->heads / groups->keys, wide = groups->d + MORE;
    int64_t copies[] = {1, 1, 1, each, 1}, flat[] = {0, 0, groups->heads * wide};
    if (each > 1) {
        value = tsr__x_unsqueeze(expansion, value, 3);
        value = X_OP(expansion, "Expand", value, tsr__x_ints(expansion, copies, 5));
    }
    return tsr__x_reshape(expansion, value, flat, 3);
}

// Returns keys or values as a cache, [b h k d].
static tsr_value *present(struct expansion *expansion, const struct groups *groups,
                          tsr_value *value)
{
    static const int64_t turned[] = {0, 2, 1, 3};
    int64_t shape[] = {0, 0, groups->keys, groups->d};
    value = X_OP(expansion, "Transpose", tsr__x_reshape(expansion, value, shape, 4));
    return tsr__x_with_ints(expansion, value, "perm", turned, 4);
}

void tsr__expand_group_query(struct expansion *expansion)
{
    struct shape q = tsr__x_shape(expansion, 0);
    struct groups groups = {.heads = tsr__x_int(expansion, "num_heads", 1),
                            .keys = tsr__x_int(expansion, "kv_num_heads", 1),
                            .type = q.dtype};
    groups.d = size_at(q, 2) / groups.heads;
    int64_t wide[] = {0, 0, groups.heads, groups.d + MORE}, zero = 0, three = 3;
    int64_t flat[] = {0, 0, groups.heads * groups.d},
            queries[] = {0, 0, groups.heads * (groups.d + MORE)};
    float scale = tsr__x_float(expansion, "scale", 0);
    if (scale == 0)
        scale = (float)(1 / sqrt((double)groups.d));
    tsr_value *k = rotated(expansion, &groups, 1, groups.keys), *v = tsr__x_in(expansion, 2);
    tsr_value *rows =
        widened(expansion, &groups, rotated(expansion, &groups, 0, groups.heads), groups.heads, 1);
    tsr_value *keys = X_OP(expansion, "Add", widened(expansion, &groups, k, groups.keys, 0),
                           hidden_keys(expansion, &groups));
    tsr_value *values = widened(expansion, &groups, v, groups.keys, 0);
    tsr_value *inputs[] = {tsr__x_reshape(expansion, rows, queries, 3),
                           repeated(expansion, &groups, keys),
                           repeated(expansion, &groups, values)};
    tsr_value *y = tsr__x_output(tsr__x_fused(expansion, "MultiHeadAttention", 3, inputs));
    y = tsr__x_with_float(expansion, y, "scale", scale);
    y = tsr__x_with_int(expansion, y, "num_heads", groups.heads);
    y = tsr__x_reshape(expansion, tsr__x_with_int(expansion, y, "unidirectional", 1), wide, 4);
    y = X_OP(expansion, "Slice", y, tsr__x_ints(expansion, &zero, 1),
             tsr__x_ints(expansion, &groups.d, 1), tsr__x_ints(expansion, &three, 1));
    tsr__x_give(expansion, 0, tsr__x_reshape(expansion, y, flat, 3));
    if (tsr_node_output(expansion->node, 1) || tsr_node_output(expansion->node, 2)) {
        tsr__x_give(expansion, 1, present(expansion, &groups, k));
        tsr__x_give(expansion, 2, present(expansion, &groups, v));
    }
}
