// SPDX-License-Identifier: Apache-2.0
// expand_place.c - operators whose elements depend on where they stand: triangles, diagonals, classes. The places are
// numbers of their own, of which each device has those of its part; what stands there is found by comparing. Nothing
// moves.
#include "rules/expand.h"

// Place of each row (rank - 2) or column (rank - 1) of input 0.
static tsr_value *places(struct expansion *x, int from_end)
{
    struct shape s = tsr__x_shape(x, 0);
    if (s.rank < 2 || s.rank > DERIVE_MAX_RANK) {
        x->failed = true;
        return NULL;
    }
    return tsr__x_positions(x, 0, s.rank - from_end);
}

// Upper: column >= row + k stays; lower: column <= row + k. The rest is 0, whatever it was.
void tsr__expand_trilu(struct expansion *x)
{
    tsr_dtype type = tsr__x_shape(x, 0).dtype, wide = tsr__x_wide(type);
    const char *stays = tsr__x_int(x, "upper", 1) ? "LessOrEqual" : "GreaterOrEqual";
    tsr_value *v = tsr__x_in(x, 0), *row = places(x, 2);
    if (tsr__x_has(x, 1))
        row = tsr__x_op(x, "Add", 2, row, tsr__x_in(x, 1));
    tsr_value *mask = tsr__x_op(x, stays, 2, row, places(x, 1));
    if (type == TSR_BOOL) {
        tsr__x_give(x, 0, tsr__x_op(x, "And", 2, v, mask));
        return;
    }
    v = tsr__x_cast(x, v, type, wide);
    v = tsr__x_op(x, "Where", 3, mask, v, tsr__x_scalar(x, wide, 0));
    tsr__x_give(x, 0, tsr__x_cast(x, v, wide, type));
}

// The input gives sizes only; 1 where column = row + k.
void tsr__expand_eye_like(struct expansion *x)
{
    tsr_dtype type = (tsr_dtype)tsr__x_int(x, "dtype", tsr__x_shape(x, 0).dtype);
    tsr_value *k = tsr__x_scalar(x, TSR_INT64, (double)tsr__x_int(x, "k", 0));
    tsr_value *row = tsr__x_op(x, "Add", 2, places(x, 2), k);
    tsr_value *is = tsr__x_op(x, "Equal", 2, row, places(x, 1));
    tsr__x_give(x, 0, tsr__x_cast(x, is, TSR_BOOL, type));
}

// The size of output 0 along an axis; -1: not known or 0, which leaves it to Reshape.
static int64_t size_of_output(const struct expansion *x, int axis)
{
    const tsr_value *out = tsr_node_output(x->twin, 0);
    struct shape s = tsr__shapes_of(x->shapes, out);
    bool known = axis < s.rank && s.dims[axis].value > 0;
    return known ? s.dims[axis].value : -1;
}

// The classes along their axis, of that many dimensions: 0 .. 9 as [1, 10] for depth 10, axis 1 of 2. A size that is
// known is written down although the depth may come with the inputs: what is cut must be seen not to be 1, and an engine
// refuses a depth that is another.
static tsr_value *classes(struct expansion *x, tsr_value *depth, int axis, int rank)
{
    int64_t shape[DERIVE_MAX_RANK + 1];
    for (int i = 0; i < rank; i++)
        shape[i] = 1;
    shape[axis] = size_of_output(x, axis);
    tsr_value *all = tsr__x_op(x, "Range", 3, tsr__x_scalar(x, TSR_INT64, 0), depth,
                               tsr__x_scalar(x, TSR_INT64, 1));
    return tsr__x_reshape(x, all, shape, rank);
}

// Each class is compared with the index; one that is none of them gives `off` everywhere.
void tsr__expand_one_hot(struct expansion *x)
{
    struct shape in = tsr__x_shape(x, 0), number = tsr__x_shape(x, 1);
    int axis = in.rank < 0 ? -1 : tsr__axis(tsr__x_int(x, "axis", -1), in.rank + 1);
    if (axis < 0 || in.rank > DERIVE_MAX_RANK) {
        x->failed = true;
        return;
    }
    tsr_value *depth = tsr__x_cast(x, tsr__x_in(x, 1), number.dtype, TSR_INT64);
    if (number.rank) // one element, as a number
        depth = tsr__x_reshape(x, depth, NULL, 0);
    tsr_value *at = tsr__x_cast(x, tsr__x_in(x, 0), in.dtype, TSR_INT64);
    tsr_value *below = tsr__x_op(x, "Less", 2, at, tsr__x_scalar(x, TSR_INT64, 0));
    at = tsr__x_op(x, "Where", 3, below, tsr__x_op(x, "Add", 2, at, depth), at);
    at = tsr__x_unsqueeze(x, at, axis);
    tsr_value *is = tsr__x_op(x, "Equal", 2, at, classes(x, depth, axis, in.rank + 1));
    tsr_value *off = tsr__x_op(x, "Gather", 2, tsr__x_in(x, 2), tsr__x_scalar(x, TSR_INT64, 0));
    tsr_value *on = tsr__x_op(x, "Gather", 2, tsr__x_in(x, 2), tsr__x_scalar(x, TSR_INT64, 1));
    tsr__x_give(x, 0, tsr__x_op(x, "Where", 3, is, on, off));
}
