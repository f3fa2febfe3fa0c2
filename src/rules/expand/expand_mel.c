// SPDX-License-Identifier: Apache-2.0
// expand_mel.c - MelWeightMatrix: which of its nodes can be cut, and the simpler nodes that then
// stand for one.
//
// Column m of the matrix is a triangle over the rows: it rises from row edges[m] to row edges[m +
// 1], where it is 1, and falls to row edges[m + 2]. Where the inputs are constants the edges are
// found here, in doubles and in the order in which ONNX Runtime counts, and become constants. What
// stands at a place then follows from its row and from the edges of its column, of which each
// device has those of its part. Nothing moves.
//
//     3 columns, edges 0 2 4 5 7:    column 1 is 0 at row 2, 0.5 at row 3, 1 at row 4, 0 from row 5
//                                    on
#include "rules/expand/expand.h"

#include <math.h>

#define MAX_COLUMNS 65536
#define MAX_LENGTH  ((int64_t)1 << 24) // of the transform

struct mel {
    int64_t columns, rows;
    int64_t *edges; // columns + 2 of them
};

// An input that is one known number from 1 to `most`.
static bool read_integer(const struct shapes *shapes, const tsr_node *node, size_t i, int64_t most,
                         int64_t *out)
{
    const tsr_value *value = i < tsr_node_input_count(node) ? tsr_node_input(node, i) : NULL;
    return value && tsr__shapes_ints(shapes, value, out, 1) == 1 && *out >= 1 && *out <= most;
}

// A frequency that is a constant: a float32 scalar, not negative.
static bool read_hertz(const tsr_node *node, size_t i, double *out)
{
    const tsr_value *value = i < tsr_node_input_count(node) ? tsr_node_input(node, i) : NULL;
    const tsr_tensor *tensor = value ? tsr__value_constant_tensor(value) : NULL;
    const void *bytes;
    size_t size;
    float number;
    if (!tensor || tsr_tensor_dtype(tensor) != TSR_FLOAT ||
        !tsr__tensor_peek(tensor, &bytes, &size) || size != sizeof(number))
        return false;
    memcpy(&number, bytes, sizeof(number));
    *out = number;
    return isfinite(number) && number >= 0;
}

// The scale that the operator is defined with; hertz_of is its inverse.
static double mel_of(double hertz)
{
    return 2595 * log10(1 + hertz / 700);
}

static double hertz_of(double mel)
{
    return 700 * (pow(10, mel / 2595) - 1);
}

// False: an input is not known, or is one that the engine refuses. `edges` stay NULL where there is
// no arena for them.
static bool read_mel(struct arena *arena, const struct shapes *shapes, const tsr_node *node,
                     struct mel *out)
{
    int64_t length, rate;
    double low, high;
    if (!read_integer(shapes, node, 0, MAX_COLUMNS, &out->columns) ||
        !read_integer(shapes, node, 1, MAX_LENGTH, &length) ||
        !read_integer(shapes, node, 2, INT32_MAX, &rate) || !read_hertz(node, 3, &low) ||
        !read_hertz(node, 4, &high) || low > high)
        return false;
    out->rows = length / 2 + 1;
    out->edges = arena ? ARENA_ARRAY(arena, int64_t, (size_t)out->columns + 2) : NULL;
    if (arena && !out->edges)
        return false;
    double first = mel_of(low), step = (mel_of(high) - first) / (double)(float)(out->columns + 2);
    for (int64_t i = 0; i < out->columns + 2; i++) {
        double hertz = hertz_of(first + step * (double)i);
        double row = floor(((double)(length + 1) * hertz) / (double)rate);
        if (!(row >= 0 && row < (double)out->rows))
            return false;
        if (out->edges)
            out->edges[i] = (int64_t)row;
    }
    return true;
}

// TSR_UNDEFINED for types that are not computed with.
static tsr_dtype type_of(int64_t number)
{
    return number == TSR_FLOAT || number == TSR_DOUBLE ? (tsr_dtype)number : TSR_UNDEFINED;
}

// The row's rule stands unless this says why not. read_mel without an arena only looks.
void tsr__derive_mel_weights(struct derivation *derivation)
{
    struct mel mel;
    int64_t number = tsr__derive_int(derivation, "output_datatype", TSR_FLOAT);
    if (type_of(number) == TSR_UNDEFINED)
        derivation->whole = "only matrices of float or double are cut";
    else if (!read_mel(NULL, derivation->shapes, derivation->node, &mel))
        derivation->whole = "its numbers are no constants, or not all of them fit together";
}

// A number for each column, as [1, columns], of which a device has those of its columns.
static tsr_value *of_columns(struct expansion *expansion, const struct mel *mel,
                             int64_t (*number)(const int64_t *edges))
{
    int64_t dims[2] = {1, mel->columns};
    int64_t *list = ARENA_ARRAY(expansion->arena, int64_t, (size_t)mel->columns);
    if (!list) {
        expansion->failed = true;
        return NULL;
    }
    for (int64_t m = 0; m < mel->columns; m++)
        list[m] = number(&mel->edges[m]);
    tsr_value *value =
        tsr__x_constant(expansion, TSR_INT64, 2, dims, list, (size_t)mel->columns * sizeof(*list));
    return tsr__x_place(expansion, value, 2, 1, &expansion->rule->outputs[0].dims[1]);
}

// Six numbers of a column from its three edges; `fall` and `rise` are never 0, as something is
// divided by them.
static int64_t foot(const int64_t *edges)
{
    return edges[0];
}
static int64_t top(const int64_t *edges)
{
    return edges[1];
}
static int64_t end(const int64_t *edges)
{
    return edges[2];
}
static int64_t fall(const int64_t *edges)
{
    return edges[2] > edges[1] ? edges[2] - edges[1] : 1;
}
// A rise of no rows is 1 at its only row: as if it began one row before.
static int64_t rise(const int64_t *edges)
{
    return edges[1] > edges[0] ? edges[1] - edges[0] : 1;
}
static int64_t zero(const int64_t *edges)
{
    return edges[1] - rise(edges);
}

// 0, 1, 2, ... as [rows, 1], of which a device has those of its rows.
static tsr_value *rows_of(struct expansion *expansion, const struct mel *mel)
{
    int64_t dims[2] = {mel->rows, 1};
    int64_t *list = ARENA_ARRAY(expansion->arena, int64_t, (size_t)mel->rows);
    if (!list) {
        expansion->failed = true;
        return NULL;
    }
    for (int64_t row = 0; row < mel->rows; row++)
        list[row] = row;
    tsr_value *value =
        tsr__x_constant(expansion, TSR_INT64, 2, dims, list, (size_t)mel->rows * sizeof(*list));
    return tsr__x_place(expansion, value, 2, 0, &expansion->rule->outputs[0].dims[0]);
}

// part / whole, as fractions of that type.
static tsr_value *share(struct expansion *expansion, tsr_value *part, tsr_value *whole,
                        tsr_dtype type)
{
    return tsr__x_op(expansion, "Div", 2, tsr__x_cast(expansion, part, TSR_INT64, type),
                     tsr__x_cast(expansion, whole, TSR_INT64, type));
}

// where top <= row < end: (end - row) / (end - top); else where foot <= row <= top: (row - zero) /
// (top - zero); else 0.
void tsr__expand_mel_weights(struct expansion *expansion)
{
    struct mel mel;
    tsr_dtype type = type_of(tsr__x_int(expansion, "output_datatype", TSR_FLOAT));
    if (type == TSR_UNDEFINED ||
        !read_mel(expansion->arena, expansion->shapes, expansion->twin, &mel)) {
        expansion->failed = true;
        return;
    }
    tsr_value *row = rows_of(expansion, &mel), *at_top = of_columns(expansion, &mel, top),
              *at_end = of_columns(expansion, &mel, end),
              *at_foot = of_columns(expansion, &mel, foot);
    tsr_value *falls =
        tsr__x_op(expansion, "And", 2, tsr__x_op(expansion, "LessOrEqual", 2, at_top, row),
                  tsr__x_op(expansion, "Less", 2, row, at_end));
    tsr_value *rises =
        tsr__x_op(expansion, "And", 2, tsr__x_op(expansion, "LessOrEqual", 2, at_foot, row),
                  tsr__x_op(expansion, "LessOrEqual", 2, row, at_top));
    tsr_value *falling = share(expansion, tsr__x_op(expansion, "Sub", 2, at_end, row),
                               of_columns(expansion, &mel, fall), type);
    tsr_value *rising =
        share(expansion, tsr__x_op(expansion, "Sub", 2, row, of_columns(expansion, &mel, zero)),
              of_columns(expansion, &mel, rise), type);
    tsr_value *left =
        tsr__x_op(expansion, "Where", 3, rises, rising, tsr__x_scalar(expansion, type, 0));
    tsr__x_give(expansion, 0, tsr__x_op(expansion, "Where", 3, falls, falling, left));
}
