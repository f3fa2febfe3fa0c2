// SPDX-License-Identifier: Apache-2.0
// expand_attention.c - attention as the products and the softmax that it consists of, for keys that
// are cut along their sequence and for rows of a causal query that are.
//
// Each device then has the scores of its keys; the softmax is taken apart in its turn (the greatest
// and the sum are exchanged), and what the values give is a sum over devices. A causal mask is made
// of positions, so that every part knows which are its own. Query heads that share a key head are a
// dimension of their own.
#include "rules/expand.h"

#include <math.h>

struct attention {
    int rank;           // of the query: 3 or 4
    int64_t h, g, d, v; // key heads, query heads of each, sizes of a head
    size_t mask;        // input, or 0
    bool causal;
    double scale;
    tsr_dtype type, wide;
};

static int64_t size_at(struct shape s, int dim)
{
    return s.rank > dim ? s.dims[dim].value : -1;
}

static tsr_value *turned(struct expansion *x, tsr_value *v, const int64_t *perm, int n)
{
    tsr_value *y = v ? tsr__x_op(x, "Transpose", 1, v) : NULL;
    if (!y || tsr_node_set_ints(tsr_value_producer(y), "perm", perm, (size_t)n) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return y;
}

// A tensor as [b h s e], or where heads are shared [b h g s e].
static tsr_value *by_heads(struct expansion *x, const struct attention *a, size_t i, int64_t g,
                           int64_t e)
{
    static const int64_t four[] = {0, 2, 1, 3}, five[] = {0, 2, 3, 1, 4};
    int rank = tsr__x_shape(x, i).rank;
    tsr_value *v = tsr__x_cast(x, tsr__x_in(x, i), a->type, a->wide);
    int64_t flat[] = {0, 0, a->h, e}, flat_shared[] = {0, 0, a->h, g, e},
            shared[] = {0, a->h, g, -1, e};
    if (a->g == 1)
        return rank == 4 ? v : turned(x, tsr__x_reshape(x, v, flat, 4), four, 4);
    if (rank == 4)
        return tsr__x_reshape(x, v, shared, 5);
    return turned(x, tsr__x_reshape(x, v, flat_shared, 5), five, 5);
}

// Where keys stand behind their query.
static tsr_value *causal(struct expansion *x, const struct attention *a, tsr_value *scores)
{
    static const int64_t rows[] = {-1, 1}, columns[] = {-1};
    int axis = a->rank == 3 ? 1 : 2, of_keys = tsr__x_shape(x, 1).rank == 3 ? 1 : 2;
    tsr_value *q = tsr__x_reshape(x, tsr__x_positions(x, 0, axis), rows, 2);
    tsr_value *k = tsr__x_reshape(x, tsr__x_positions(x, 1, of_keys), columns, 1);
    tsr_value *seen = tsr__x_op(x, "LessOrEqual", 2, k, q);
    return tsr__x_op(x, "Where", 3, seen, scores, tsr__x_scalar(x, a->wide, -INFINITY));
}

// A mask of [q k] or [b heads q k], truths or numbers.
static tsr_value *masked(struct expansion *x, const struct attention *a, tsr_value *scores)
{
    struct shape s = tsr__x_shape(x, a->mask);
    tsr_value *mask = tsr__x_in(x, a->mask);
    if (a->g > 1 && s.rank == 4) {
        int64_t shape[] = {0, size_at(s, 1) == 1 ? 1 : a->h, size_at(s, 1) == 1 ? 1 : a->g,
                           size_at(s, 2), -1};
        mask = tsr__x_reshape(x, mask, shape, 5);
    }
    if (s.dtype == TSR_BOOL)
        return tsr__x_op(x, "Where", 3, mask, scores, tsr__x_scalar(x, a->wide, -INFINITY));
    return tsr__x_op(x, "Add", 2, scores, tsr__x_cast(x, mask, s.dtype, a->wide));
}

static tsr_value *scores_of(struct expansion *x, const struct attention *a)
{
    static const int64_t last[] = {0, 1, 3, 2}, last_shared[] = {0, 1, 2, 4, 3};
    tsr_value *q = by_heads(x, a, 0, a->g, a->d), *k = by_heads(x, a, 1, 1, a->d);
    k = turned(x, k, a->g == 1 ? last : last_shared, a->g == 1 ? 4 : 5);
    tsr_value *s = tsr__x_op(x, "MatMul", 2, q, k);
    s = tsr__x_op(x, "Mul", 2, s, tsr__x_scalar(x, a->wide, a->scale));
    if (a->mask)
        s = masked(x, a, s);
    return a->causal ? causal(x, a, s) : s;
}

static void attend(struct expansion *x, const struct attention *a)
{
    static const int64_t four[] = {0, 2, 1, 3}, five[] = {0, 3, 1, 2, 4};
    tsr_value *p = tsr__x_op(x, "Softmax", 1, scores_of(x, a));
    if (!p || tsr_node_set_int(tsr_value_producer(p), "axis", -1) != TSR_OK) {
        x->failed = true;
        return;
    }
    tsr_value *y = tsr__x_op(x, "MatMul", 2, p, by_heads(x, a, 2, 1, a->v));
    int64_t flat[] = {0, 0, a->h * a->g * a->v}, heads[] = {0, a->h * a->g, -1, a->v};
    if (a->rank == 3)
        y = tsr__x_reshape(x, turned(x, y, a->g == 1 ? four : five, a->g == 1 ? 4 : 5), flat, 3);
    else if (a->g > 1)
        y = tsr__x_reshape(x, y, heads, 4);
    tsr__x_give(x, 0, tsr__x_cast(x, y, a->wide, a->type));
}

// Sizes of heads; all of them must be numbers.
static bool read_heads(const struct expansion *x, int64_t queries, int64_t keys,
                       struct attention *a)
{
    struct shape q = tsr__x_shape(x, 0), k = tsr__x_shape(x, 1), v = tsr__x_shape(x, 2);
    a->rank = q.rank;
    a->type = q.dtype;
    a->wide = tsr__x_wide(q.dtype);
    if (queries < 1 || keys < 1 || queries % keys || k.rank < 3 || v.rank < 3)
        return false;
    a->h = keys;
    a->g = queries / keys;
    a->d = q.rank == 3 ? size_at(q, 2) / queries : size_at(q, 3);
    a->v = v.rank == 3 ? size_at(v, 2) / keys : size_at(v, 3);
    return a->d > 0 && a->v > 0;
}

void tsr__expand_attention(struct expansion *x)
{
    struct shape q = tsr__x_shape(x, 0), k = tsr__x_shape(x, 1);
    struct attention a = {.causal = tsr__x_int(x, "is_causal", 0) != 0,
                          .mask = tsr__x_has(x, 3) ? 3 : 0};
    int64_t queries = q.rank == 3 ? tsr__x_int(x, "q_num_heads", 0) : size_at(q, 1);
    int64_t keys = q.rank == 3 ? tsr__x_int(x, "kv_num_heads", 0) : size_at(k, 1);
    if (!read_heads(x, queries, keys, &a)) {
        x->failed = true;
        return;
    }
    a.scale = (double)tsr__x_float(x, "scale", (float)(1.0 / sqrt((double)a.d)));
    attend(x, &a);
}

void tsr__expand_multi_head(struct expansion *x)
{
    struct attention a = {.mask = tsr__x_has(x, 5) ? 5 : 0};
    int64_t heads = tsr__x_int(x, "num_heads", 0);
    if (!read_heads(x, heads, heads, &a)) {
        x->failed = true;
        return;
    }
    a.scale = (double)tsr__x_float(x, "scale", 0);
    if (a.scale == 0)
        a.scale = 1.0 / sqrt((double)a.d);
    attend(x, &a);
}
