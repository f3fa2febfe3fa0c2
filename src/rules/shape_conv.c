// SPDX-License-Identifier: Apache-2.0
// shape_conv.c - shapes of convolutions, poolings and their inverses: the window arithmetic, with
// sizes that may be expressions.
#include "rules/internal.h"

#define MAX_SPATIAL 16

// Windows over the spatial dimensions of input 0.
struct windows {
    int n; // spatial dimensions
    struct expr size[MAX_SPATIAL], kernel[MAX_SPATIAL];
    int64_t stride[MAX_SPATIAL], dilation[MAX_SPATIAL], before[MAX_SPATIAL], after[MAX_SPATIAL];
    bool same, ceil;          // auto_pad SAME_*; the last window may reach beyond the end
    bool padded[MAX_SPATIAL]; // its pads are numbers all the same
};

static int64_t entry(const int64_t *list, size_t n, int i, int64_t otherwise)
{
    return (size_t)i < n ? list[i] : otherwise;
}

// ONNX Runtime leaves dilations out where it pads a pooling by itself: of 4 elements, a kernel of 2 with dilation 2 and
// stride 1 is given one pad, and makes 3 results, where the standard has 4. Pads may be negative: of 7 elements, a kernel of
// 2 with dilation 2 and stride 4 loses the last one, and makes 1 result instead of 2.
static void pad_pooling(struct windows *v, int i, bool lower)
{
    struct expr size = v->size[i], kernel = v->kernel[i];
    v->padded[i] = true;
    v->size[i] = (struct expr){0};
    if (!expr_is_number(size) || !expr_is_number(kernel) || kernel.number > INT32_MAX ||
        size.number > INT64_MAX / 2)
        return;
    int64_t stride = v->stride[i], count = (size.number + stride - 1) / stride;
    int64_t lacking = (count - 1) * stride + kernel.number - size.number;
    v->before[i] = (lower ? lacking + 1 : lacking) / 2;
    v->after[i] = lacking - v->before[i];
    v->size[i] = size;
}

// Kernel sizes from the attribute, else from the weights.
static bool read_windows(struct shape_job *j, struct shape x, struct shape w, struct windows *v)
{
    const int64_t *kernel, *strides, *dilations, *pads;
    size_t n_kernel = tsr__job_ints(j, "kernel_shape", &kernel);
    size_t n_strides = tsr__job_ints(j, "strides", &strides);
    size_t n_dilations = tsr__job_ints(j, "dilations", &dilations);
    size_t n_pads = tsr__job_ints(j, "pads", &pads);
    v->n = x.rank - 2;
    if (v->n < 0 || v->n > MAX_SPATIAL || (n_kernel && n_kernel != (size_t)v->n) ||
        (!n_kernel && v->n && w.rank != x.rank) || (n_pads && n_pads != 2 * (size_t)v->n))
        return false;
    v->same = tsr__job_text_is(j, "auto_pad", "SAME_UPPER", false) ||
              tsr__job_text_is(j, "auto_pad", "SAME_LOWER", false);
    bool explicit = tsr__job_text_is(j, "auto_pad", "NOTSET", true);
    v->ceil = tsr__job_int(j, "ceil_mode", 0) != 0;
    for (int i = 0; i < v->n; i++) {
        v->size[i] = tsr__expr_of(j->x, x.dims[i + 2]);
        v->kernel[i] = n_kernel ? expr_number(kernel[i]) : tsr__expr_of(j->x, w.dims[i + 2]);
        v->stride[i] = entry(strides, n_strides, i, 1);
        v->dilation[i] = entry(dilations, n_dilations, i, 1);
        v->before[i] = explicit ? entry(pads, n_pads, i, 0) : 0;
        v->after[i] = explicit ? entry(pads, n_pads, i + v->n, 0) : 0;
        v->padded[i] = false;
        if (v->stride[i] < 1 || v->stride[i] > INT32_MAX || v->dilation[i] < 1)
            return false;
    }
    return true;
}

// Elements that one window spans.
static struct expr span(struct exprs *x, const struct windows *v, int i)
{
    struct expr less = tsr__expr_sub(x, v->kernel[i], expr_number(1));
    less = tsr__expr_mul(x, less, expr_number(v->dilation[i]));
    return tsr__expr_add(x, less, expr_number(1));
}

static struct expr window_count(struct exprs *x, const struct windows *v, int i)
{
    struct expr stride = expr_number(v->stride[i]);
    struct expr up = expr_number(v->stride[i] - 1);
    if (v->same && !v->padded[i])
        return tsr__expr_floor(x, tsr__expr_add(x, v->size[i], up), stride);
    struct expr room = tsr__expr_add(x, v->size[i], expr_number(v->before[i]));
    struct expr start = room; // windows start before this place
    room = tsr__expr_add(x, room, expr_number(v->after[i]));
    room = tsr__expr_sub(x, room, span(x, v, i));
    if (expr_is_number(room) && room.number < 0)
        return (struct expr){0};
    struct expr last = tsr__expr_floor(x, v->ceil ? tsr__expr_add(x, room, up) : room, stride);
    if (v->ceil && v->stride[i] > 1) {
        if (!expr_is_number(last) || !expr_is_number(start))
            return (struct expr){0};
        last.number -= last.number * v->stride[i] >= start.number;
    }
    return tsr__expr_add(x, last, expr_number(1));
}

static void set_windows(struct shape_job *j, const struct windows *v, tsr_dim batch,
                        tsr_dim channels)
{
    tsr_dim *dims = tsr__job_dims(j, v->n + 2);
    if (!dims)
        return;
    dims[0] = batch;
    dims[1] = channels;
    for (int i = 0; i < v->n; i++)
        dims[i + 2] = tsr__expr_dim(j->x, window_count(j->x, v, i));
    for (int i = 0; i < j->n_out; i++)
        tsr__job_set(j, i, v->n + 2, dims);
}

static void convolution(struct shape_job *j, int weights)
{
    struct shape x = tsr__job_in(j, 0), w = tsr__job_in(j, weights);
    struct windows v;
    if (x.rank >= 2 && w.rank >= 2 && read_windows(j, x, w, &v))
        set_windows(j, &v, x.dims[0], w.dims[0]);
}

void tsr__find_conv(struct shape_job *j)
{
    convolution(j, 1);
}

void tsr__find_qlinear_conv(struct shape_job *j)
{
    j->out[0].dtype = tsr__job_in(j, 7).dtype;
    convolution(j, 3);
}

void tsr__find_pool(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0);
    struct windows v;
    if (x.rank < 2 || !read_windows(j, x, (struct shape){.rank = -1}, &v))
        return;
    bool lower = tsr__job_text_is(j, "auto_pad", "SAME_LOWER", false);
    for (int i = 0; i < v.n; i++)
        if (v.same && v.dilation[i] > 1)
            pad_pooling(&v, i, lower);
    set_windows(j, &v, x.dims[0], x.dims[1]);
}

// Where a window's outputs go: the other way round. Windows that are shorter than the stride end before it (in ONNX
// Runtime; the standard has them filled up): 4 elements with stride 2 and a kernel of 1 make 7, not 8.
static struct expr window_room(struct shape_job *j, const struct windows *v, int i, int64_t extra)
{
    struct exprs *x = j->x;
    struct expr stride = expr_number(v->stride[i]);
    struct expr less = tsr__expr_mul(x, tsr__expr_sub(x, v->size[i], expr_number(1)), stride);
    struct expr last = tsr__expr_add(x, span(x, v, i), expr_number(extra));
    if (v->same)
        return tsr__expr_add(x, less, tsr__expr_min(x, last, stride));
    struct expr room = tsr__expr_add(x, less, last);
    room = tsr__expr_sub(x, room, expr_number(v->before[i]));
    return tsr__expr_sub(x, room, expr_number(v->after[i]));
}

void tsr__find_conv_transpose(struct shape_job *j)
{
    const int64_t *want, *extra;
    struct shape x = tsr__job_in(j, 0), w = tsr__job_in(j, 1);
    size_t n_want = tsr__job_ints(j, "output_shape", &want);
    size_t n_extra = tsr__job_ints(j, "output_padding", &extra);
    struct windows v;
    if (x.rank < 2 || w.rank < 2 || !read_windows(j, x, w, &v))
        return;
    tsr_dim *dims = tsr__job_dims(j, x.rank);
    if (!dims)
        return;
    struct expr groups = expr_number(tsr__job_int(j, "group", 1));
    dims[0] = x.dims[0];
    dims[1] = tsr__expr_dim(j->x, tsr__expr_mul(j->x, tsr__expr_of(j->x, w.dims[1]), groups));
    for (int i = 0; i < v.n; i++) {
        struct expr room = window_room(j, &v, i, entry(extra, n_extra, i, 0));
        dims[i + 2] = n_want == (size_t)v.n ? (tsr_dim){want[i] < 0 ? -1 : want[i], ""}
                                            : tsr__expr_dim(j->x, room);
    }
    tsr__job_set(j, 0, x.rank, dims);
}

void tsr__find_max_unpool(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0);
    struct known_value want = tsr__job_values(j, 2);
    struct windows v;
    if (x.rank < 2 || !read_windows(j, x, (struct shape){.rank = -1}, &v))
        return;
    tsr_dim *dims = tsr__job_dims(j, x.rank);
    for (int i = 0; dims && i < x.rank; i++) {
        if (tsr__job_has(j, 2))
            dims[i] = want.elements && want.n == x.rank ? tsr__expr_dim(j->x, want.elements[i])
                                                        : DIM_UNKNOWN;
        else
            dims[i] = i < 2 ? x.dims[i] : tsr__expr_dim(j->x, window_room(j, &v, i - 2, 0));
    }
    tsr__job_set(j, 0, x.rank, dims);
}

void tsr__find_col2im(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0), of = tsr__job_in(j, 1);
    struct known_value image = tsr__job_values(j, 1), block = tsr__job_values(j, 2);
    int64_t n = image.elements ? image.n : of.rank == 1 ? of.dims[0].value : -1;
    tsr_dim *dims = n >= 0 && n <= MAX_SPATIAL ? tsr__job_dims(j, n + 2) : NULL;
    if (!dims || x.rank != 3)
        return;
    struct expr all = block.elements ? expr_number(1) : (struct expr){0};
    for (int64_t i = 0; i < block.n; i++)
        all = tsr__expr_mul(j->x, all, block.elements[i]);
    dims[0] = x.dims[0];
    dims[1] = tsr__expr_dim(j->x, tsr__expr_exact(j->x, tsr__expr_of(j->x, x.dims[1]), all));
    for (int64_t i = 0; i < n && image.elements; i++)
        dims[i + 2] = tsr__expr_dim(j->x, image.elements[i]);
    tsr__job_set(j, 0, (int)n + 2, dims);
}

// A causal convolution keeps its length; the state is what the next call needs of this one.
void tsr__find_causal_conv(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0), w = tsr__job_in(j, 1);
    tsr_dim *dims = x.rank == 3 && j->n_out > 1 ? tsr__job_dims(j, 3) : NULL;
    tsr__job_like(j, 0, 0);
    if (!dims)
        return;
    dims[0] = x.dims[0];
    dims[1] = x.dims[1];
    if (w.rank == 3)
        dims[2] =
            tsr__expr_dim(j->x, tsr__expr_sub(j->x, tsr__expr_of(j->x, w.dims[2]), expr_number(1)));
    tsr__job_set(j, 1, 3, dims);
}
