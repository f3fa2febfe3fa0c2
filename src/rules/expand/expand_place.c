// SPDX-License-Identifier: Apache-2.0
// expand_place.c - operators whose elements depend on their position: triangles, diagonals,
// classes. Each device has the position numbers of its shard and compares them. This needs no
// communication.
#include "rules/expand/expand.h"

// Returns the position of each row or column of input 0. from_end: 2 for rows, 1 for columns.
static tsr_value *positions(struct expansion *expansion, int from_end)
{
    struct shape shape = tsr__x_shape(expansion, 0);
    if (shape.rank < 2 || shape.rank > DERIVE_MAX_RANK) {
        expansion->failed = true;
        return NULL;
    }
    int axis = shape.rank - from_end;
    return tsr__x_place(expansion, tsr__x_positions(expansion, 0, axis), shape.rank, axis,
                        &expansion->rule->inputs[0].dims[axis]);
}

// Expands Trilu. Upper: keeps column >= row + k; lower: keeps column <= row + k. The rest becomes
// 0.
void tsr__expand_trilu(struct expansion *expansion)
{
    tsr_dtype type = tsr__x_shape(expansion, 0).dtype, wide = tsr__x_wide(type);
    const char *stays = tsr__x_int(expansion, "upper", 1) ? "LessOrEqual" : "GreaterOrEqual";
    tsr_value *value = tsr__x_in(expansion, 0), *row = positions(expansion, 2);
    if (tsr__x_has(expansion, 1))
        row = X_OP(expansion, "Add", row, tsr__x_in(expansion, 1));
    tsr_value *mask = X_OP(expansion, stays, row, positions(expansion, 1));
    if (type == TSR_BOOL) {
        tsr__x_give(expansion, 0, X_OP(expansion, "And", value, mask));
        return;
    }
    value = tsr__x_cast(expansion, value, type, wide);
    value = X_OP(expansion, "Where", mask, value, tsr__x_scalar(expansion, wide, 0));
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, value, wide, type));
}

// Expands EyeLike. The input gives only sizes; the result is 1 where column = row + k.
void tsr__expand_eye_like(struct expansion *expansion)
{
    tsr_dtype type = (tsr_dtype)tsr__x_int(expansion, "dtype", tsr__x_shape(expansion, 0).dtype);
    tsr_value *value = tsr__x_scalar(expansion, TSR_INT64, (double)tsr__x_int(expansion, "k", 0));
    tsr_value *row = X_OP(expansion, "Add", positions(expansion, 2), value);
    tsr_value *is = X_OP(expansion, "Equal", row, positions(expansion, 1));
    tsr__x_give(expansion, 0, tsr__x_cast(expansion, is, TSR_BOOL, type));
}

// Returns the size of output 0 along an axis; -1: unknown or 0, and Reshape infers it.
static int64_t size_of_output(const struct expansion *expansion, int axis)
{
    const tsr_value *out = tsr_node_output(expansion->twin, 0);
    struct shape shape = tsr__shapes_of(expansion->shapes, out);
    bool known = axis < shape.rank && shape.dims[axis].value > 0;
    return known ? shape.dims[axis].value : -1;
}

// Returns class numbers along their axis: 0 .. 9 as [1, 10] for depth 10, axis 1 of 2. If the
// output's size is known, it is written into the shape even if `depth` is computed, because a
// sharded dimension must be known not to be 1. ONNX Runtime then rejects another depth.
static tsr_value *classes(struct expansion *expansion, tsr_value *depth, int axis, int rank)
{
    int64_t shape[DERIVE_MAX_RANK + 1];
    for (int i = 0; i < rank; i++)
        shape[i] = 1;
    shape[axis] = size_of_output(expansion, axis);
    tsr_value *all = X_OP(expansion, "Range", tsr__x_scalar(expansion, TSR_INT64, 0), depth,
                          tsr__x_scalar(expansion, TSR_INT64, 1));
    return tsr__x_place(expansion, tsr__x_reshape(expansion, all, shape, rank), rank, axis,
                        &expansion->rule->outputs[0].dims[axis]);
}

// Expands OneHot: compares each class with the index. An index that is no class gives `off`
// everywhere.
void tsr__expand_one_hot(struct expansion *expansion)
{
    struct shape in = tsr__x_shape(expansion, 0), number = tsr__x_shape(expansion, 1);
    int axis = in.rank < 0 ? -1 : tsr__axis(tsr__x_int(expansion, "axis", -1), in.rank + 1);
    if (axis < 0 || in.rank > DERIVE_MAX_RANK) {
        expansion->failed = true;
        return;
    }
    tsr_value *depth = tsr__x_cast(expansion, tsr__x_in(expansion, 1), number.dtype, TSR_INT64);
    if (number.rank) // a vector of one element becomes a scalar
        depth = tsr__x_reshape(expansion, depth, NULL, 0);
    tsr_value *at = tsr__x_cast(expansion, tsr__x_in(expansion, 0), in.dtype, TSR_INT64);
    tsr_value *below = X_OP(expansion, "Less", at, tsr__x_scalar(expansion, TSR_INT64, 0));
    at = X_OP(expansion, "Where", below, X_OP(expansion, "Add", at, depth), at);
    at = tsr__x_unsqueeze(expansion, at, axis);
    tsr_value *is = X_OP(expansion, "Equal", at, classes(expansion, depth, axis, in.rank + 1));
    tsr_value *off =
        X_OP(expansion, "Gather", tsr__x_in(expansion, 2), tsr__x_scalar(expansion, TSR_INT64, 0));
    tsr_value *on =
        X_OP(expansion, "Gather", tsr__x_in(expansion, 2), tsr__x_scalar(expansion, TSR_INT64, 1));
    tsr__x_give(expansion, 0, X_OP(expansion, "Where", is, on, off));
}
