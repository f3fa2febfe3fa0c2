// SPDX-License-Identifier: Apache-2.0
// expand_deform.c - a deformable convolution whose result is sharded along spatial dimensions.
//
// The kernel of ONNX Runtime counts positions of the result from 0, so it cannot compute a shard.
// The expansion follows the definition: for each element k of the kernel it samples the image at
// all positions, displaced by the offsets. A 1 x 1 convolution with element k of the weights gives
// a summand of the result. The image is replicated, because offsets may address any pixel;
// everything else has the spatial dimensions of the result.
//
//     y = sum over k of Conv(GridSample(x, positions + k + offset[k]) * mask[k], w[k])
//     with the bias at the first summand
//
// GridSample takes positions as fractions of the image: pixel p of n is at (2 p + 1) / n - 1.
// Pixels outside the image, and positions that are NaN, give 0, as in the engine's kernel.
#include "rules/expand/expand.h"

#define SPACE        2
#define MAX_ELEMENTS 49 // elements of the kernel: each needs several nodes

struct deform {
    int64_t kernel[SPACE], image[SPACE], stride[SPACE], dilation[SPACE], pad[SPACE];
};

static int64_t entry(const struct shapes *shapes, const tsr_node *node, const char *name, int i,
                     int64_t otherwise)
{
    const int64_t *list;
    size_t n = tsr_attr_ints(tsr__attr_of(shapes, node, name), &list);
    if ((size_t)i >= n)
        return otherwise;
    return list[i];
}

static struct shape shape_of(const struct shapes *shapes, const tsr_node *node, size_t i)
{
    return tsr__shapes_of(shapes, input_at(node, i));
}

// Reads the sizes. False: a size is unknown, there are several sets of offsets, or GridSample does
// not support the node.
static bool read_deform(const struct shapes *shapes, const tsr_node *node, struct deform *out)
{
    struct shape image = shape_of(shapes, node, 0), weights = shape_of(shapes, node, 1),
                 offset = shape_of(shapes, node, 2);
    if (image.rank != SPACE + 2 || weights.rank != SPACE + 2 || offset.rank != SPACE + 2 ||
        image.dtype != TSR_FLOAT ||
        tsr_attr_int(tsr__attr_of(shapes, node, "offset_group"), 1) != 1)
        return false;
    for (int i = 0; i < SPACE; i++) {
        out->image[i] = image.dims[i + 2].value;
        out->kernel[i] = weights.dims[i + 2].value;
        out->stride[i] = entry(shapes, node, "strides", i, 1);
        out->dilation[i] = entry(shapes, node, "dilations", i, 1);
        out->pad[i] = entry(shapes, node, "pads", i, 0);
        if (out->image[i] < 1 || out->kernel[i] < 1 || out->kernel[i] > MAX_ELEMENTS)
            return false;
    }
    return out->kernel[0] * out->kernel[1] <= MAX_ELEMENTS;
}

bool tsr__deform_expands(const struct derivation *derivation)
{
    struct deform deform;
    return read_deform(derivation->shapes, derivation->node, &deform);
}

// Makes a constant [1, 2, 1, 1] with a number for x and one for y. Grids have x first.
static tsr_value *both(struct expansion *expansion, double x, double y)
{
    int64_t dims[4] = {1, SPACE, 1, 1};
    float numbers[SPACE] = {(float)x, (float)y};
    return tsr__x_constant(expansion, TSR_FLOAT, 4, dims, numbers, sizeof(numbers));
}

// Returns the first pixel of each window in one dimension: position times stride, minus the pad.
static tsr_value *first_pixels(struct expansion *expansion, const struct deform *deform, int i)
{
    const struct rule_dim *dim = &expansion->rule->inputs[2].dims[i + 2];
    tsr_value *places =
        tsr__x_place(expansion, tsr__x_positions(expansion, 2, i + 2), 4, i + 2, dim);
    places = tsr__x_cast(expansion, places, TSR_INT64, TSR_FLOAT);
    places = tsr__x_op(expansion, "Mul", 2, places,
                       tsr__x_scalar(expansion, TSR_FLOAT, (double)deform->stride[i]));
    return tsr__x_op(expansion, "Sub", 2, places,
                     tsr__x_scalar(expansion, TSR_FLOAT, (double)deform->pad[i]));
}

// Selects channels of an input, in that order.
static tsr_value *channels(struct expansion *expansion, size_t input, const int64_t *which,
                           int64_t n)
{
    tsr_value *inputs[2] = {tsr__x_in(expansion, input), tsr__x_ints(expansion, which, n)};
    tsr_node *node = tsr__x_node_of(expansion, "Gather", 2, inputs);
    if (!node || tsr_node_set_int(node, "axis", 1) != TSR_OK) {
        expansion->failed = true;
        return NULL;
    }
    return tsr_node_output(node, 0);
}

// Moves coordinates that are NaN or outside the image to -2, where a sample is 0: of 9 pixels, -0.5
// and 8.5 stay, 1e30 and NaN become -2. Without this, GridSample returns half a border pixel: ONNX
// Runtime moves coordinates that exceed 64 bits to -0.5.
static tsr_value *clip_to_image(struct expansion *expansion, const struct deform *deform,
                                tsr_value *pixels)
{
    double height = (double)deform->image[0], width = (double)deform->image[1];
    tsr_value *after = tsr__x_op(expansion, "Greater", 2, pixels, both(expansion, -1, -1));
    tsr_value *before = tsr__x_op(expansion, "Less", 2, pixels, both(expansion, width, height));
    tsr_value *inside = tsr__x_op(expansion, "And", 2, after, before);
    return tsr__x_op(expansion, "Where", 3, inside, pixels, both(expansion, -2, -2));
}

// Samples the image at pixel coordinates [n, 2, rows, columns], x before y, which may be fractions.
// The result is [n, channels, rows, columns].
static tsr_value *sample(struct expansion *expansion, const struct deform *deform,
                         tsr_value *pixels)
{
    static const int64_t last[4] = {0, 2, 3, 1};
    double height = (double)deform->image[0], width = (double)deform->image[1];
    pixels = clip_to_image(expansion, deform, pixels);
    tsr_value *grid =
        tsr__x_op(expansion, "Mul", 2, pixels, both(expansion, 2 / width, 2 / height));
    grid = tsr__x_op(expansion, "Add", 2, grid, both(expansion, 1 / width - 1, 1 / height - 1));
    tsr_node *turned = tsr__x_node_of(expansion, "Transpose", 1, &grid);
    if (!turned || tsr_node_set_ints(turned, "perm", last, 4) != TSR_OK)
        return NULL;
    tsr_value *inputs[2] = {tsr__x_in(expansion, 0), tsr_node_output(turned, 0)};
    tsr_node *made = tsr__x_node(expansion, "GridSample", 2, inputs);
    const char *mode = "linear";
    if (expansion->opset < 20)
        mode = "bilinear";
    if (!made || tsr_node_set_string(made, "mode", mode) != TSR_OK ||
        tsr_node_set_string(made, "padding_mode", "zeros") != TSR_OK ||
        tsr_node_set_int(made, "align_corners", 0) != TSR_OK)
        return NULL;
    return tsr_node_output(made, 0);
}

// Returns element (row, column) of the kernel for all channels, as weights of a 1 x 1 convolution.
static tsr_value *weights_at(struct expansion *expansion, int64_t row, int64_t column)
{
    const int64_t from[2] = {row, column}, to[2] = {row + 1, column + 1}, axes[2] = {2, 3};
    return tsr__x_op(expansion, "Slice", 4, tsr__x_in(expansion, 1),
                     tsr__x_ints(expansion, from, 2), tsr__x_ints(expansion, to, 2),
                     tsr__x_ints(expansion, axes, 2));
}

// Returns the summand that element (row, column) of the kernel contributes.
static tsr_value *summand_of(struct expansion *expansion, const struct deform *deform,
                             tsr_value *windows, int64_t row, int64_t column)
{
    int64_t k = row * deform->kernel[1] + column, of_offset[2] = {2 * k + 1, 2 * k};
    tsr_value *moved = tsr__x_op(expansion, "Add", 2, windows,
                                 both(expansion, (double)(column * deform->dilation[1]),
                                      (double)(row * deform->dilation[0])));
    moved = tsr__x_op(expansion, "Add", 2, moved, channels(expansion, 2, of_offset, SPACE));
    if (!moved)
        return NULL;
    tsr_value *seen = sample(expansion, deform, moved);
    if (seen && tsr__x_has(expansion, 4))
        seen = tsr__x_op(expansion, "Mul", 2, seen, channels(expansion, 4, &k, 1));
    tsr_value *inputs[3] = {seen, weights_at(expansion, row, column)};
    int n = 2;
    if (k == 0 && tsr__x_has(expansion, 3)) // the bias is added once
        inputs[n++] = tsr__x_in(expansion, 3);
    tsr_node *conv = tsr__x_node_of(expansion, "Conv", n, inputs);
    if (!conv || tsr_node_set_int(conv, "group", tsr__x_int(expansion, "group", 1)) != TSR_OK)
        return NULL;
    return tsr_node_output(conv, 0);
}

// Expands DeformConv. A kernel of 3 x 3 becomes nine samples and nine convolutions of 1 x 1, whose
// results are summed.
void tsr__expand_deform_conv(struct expansion *expansion)
{
    struct deform deform;
    tsr_value *shares[MAX_ELEMENTS];
    if (!read_deform(expansion->shapes, expansion->twin, &deform)) {
        expansion->failed = true;
        return;
    }
    tsr_value *rows =
        tsr__x_op(expansion, "Mul", 2, first_pixels(expansion, &deform, 0), both(expansion, 0, 1));
    tsr_value *columns =
        tsr__x_op(expansion, "Mul", 2, first_pixels(expansion, &deform, 1), both(expansion, 1, 0));
    tsr_value *windows = tsr__x_op(expansion, "Add", 2, rows, columns);
    int n = 0;
    for (int64_t row = 0; row < deform.kernel[0]; row++)
        for (int64_t column = 0; column < deform.kernel[1]; column++) {
            shares[n] = summand_of(expansion, &deform, windows, row, column);
            if (!shares[n++]) {
                expansion->failed = true;
                return;
            }
        }
    tsr__x_give(expansion, 0, tsr__x_output(tsr__x_node(expansion, "Sum", n, shares)));
}
