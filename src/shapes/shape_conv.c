// SPDX-License-Identifier: Apache-2.0
// shape_conv.c - shapes of convolutions, pools and their inverses, with sizes that may be
// expressions.
//
// 224 positions, pads 3 3, kernel 7, stride 2: (224 + 3 + 3 - 7) // 2 + 1 = 112. For n positions it
// is (n - 1)//2 + 1. A kernel of 3 with dilation 2 spans 5 positions.
#include "shapes/infer.h"

#define MAX_SPATIAL 16
#define AXIS_BIT(i) (1u << ((i) + 2)) // of spatial dimension i

// Windows over the spatial dimensions of input 0.
struct windows {
    int n; // spatial dimensions
    struct expr size[MAX_SPATIAL], kernel[MAX_SPATIAL];
    int64_t stride[MAX_SPATIAL], dilation[MAX_SPATIAL], before[MAX_SPATIAL], after[MAX_SPATIAL];
    bool same, ceil;          // auto_pad is SAME_*; ceil_mode: the last window may exceed the end
    bool pool;                // windows may be larger than the input (pool_count)
    bool padded[MAX_SPATIAL]; // auto_pad is SAME_*, but its pads are known
};

// Returns entry i of a list, or the default if the list is absent.
static int64_t entry(const int64_t *list, size_t n, int i, int64_t otherwise)
{
    return (size_t)i >= n ? otherwise : list[i];
}

// Sets the automatic pads of a pool as ONNX Runtime does, which ignores dilations. Example: for 4
// elements, a kernel of 2 with dilation 2 and stride 1 gets one pad and makes 3 results; the
// standard has 4. Pads may be negative: of 7 elements, a kernel of 2 with dilation 2 and stride 4
// ignores the last element, and makes 1 result instead of 2.
static void pad_pool(struct windows *windows, int i, bool lower)
{
    struct expr size = windows->size[i], kernel = windows->kernel[i];
    windows->padded[i] = true;
    windows->size[i] = (struct expr){0};
    // Supports only numbers; otherwise `size` and the result stay unknown.
    if (!expr_is_number(size) || !expr_is_number(kernel) || kernel.number > INT32_MAX ||
        size.number > INT64_MAX / 2)
        return;
    int64_t stride = windows->stride[i], count = (size.number + stride - 1) / stride;
    int64_t lacking = (count - 1) * stride + kernel.number - size.number;
    windows->before[i] = (lacking + lower) / 2; // SAME_LOWER puts the odd pad at the start
    windows->after[i] = lacking - windows->before[i];
    windows->size[i] = size;
}

// Reads the windows. Kernel sizes come from the attribute, else from the weights. False: lists and
// ranks do not match, or a number is out of range; then the shape is unknown.
static bool read_windows(struct shape_job *job, struct shape x, struct shape w,
                         struct windows *windows)
{
    const int64_t *kernel, *strides, *dilations, *pads;
    size_t n_kernel = tsr__job_ints(job, "kernel_shape", &kernel);
    size_t n_strides = tsr__job_ints(job, "strides", &strides);
    size_t n_dilations = tsr__job_ints(job, "dilations", &dilations);
    size_t n_pads = tsr__job_ints(job, "pads", &pads); // not used with auto_pad
    windows->n = x.rank - 2;
    if (windows->n < 0 || windows->n > MAX_SPATIAL ||
        (n_kernel && n_kernel != (size_t)windows->n) ||
        (!n_kernel && windows->n && w.rank != x.rank) ||
        (n_pads && n_pads != 2 * (size_t)windows->n))
        return false;
    windows->same = tsr__job_text_is(job, "auto_pad", "SAME_UPPER", false) ||
                    tsr__job_text_is(job, "auto_pad", "SAME_LOWER", false);
    if (!tsr__job_text_is(job, "auto_pad", "NOTSET", true))
        n_pads = 0;
    windows->ceil = tsr__job_int(job, "ceil_mode", 0) != 0;
    windows->pool = false;
    for (int i = 0; i < windows->n; i++) {
        windows->size[i] = tsr__expr_of(job->exprs, x.dims[i + 2]);
        windows->kernel[i] =
            n_kernel ? expr_number(kernel[i]) : tsr__expr_of(job->exprs, w.dims[i + 2]);
        windows->stride[i] = entry(strides, n_strides, i, 1);
        windows->dilation[i] = entry(dilations, n_dilations, i, 1);
        windows->before[i] = entry(pads, n_pads, i, 0);
        windows->after[i] = entry(pads, n_pads, i + windows->n, 0);
        windows->padded[i] = false;
        if (windows->stride[i] < 1 || windows->stride[i] > INT32_MAX || windows->dilation[i] < 1)
            return false;
    }
    return true;
}

// Returns the number of elements that a window spans.
static struct expr span(struct exprs *exprs, const struct windows *windows, int i)
{
    struct expr less = tsr__expr_sub(exprs, windows->kernel[i], expr_number(1));
    less = tsr__expr_mul(exprs, less, expr_number(windows->dilation[i]));
    return tsr__expr_add(exprs, less, expr_number(1));
}

// Returns the number of windows of a pool without ceil_mode. ONNX Runtime runs pools whose window
// is larger than the padded input, and then rounds the quotient towards zero, not down: `space` is
// -1 for a kernel of 2 over 1 element, and with stride 2 there is 1 window. So n elements have
// max(n//2, 1) windows, and with a kernel of 3 max((n + 1)//2 - 1, min(n//2, 1)).
static struct expr pool_count(struct exprs *exprs, const struct windows *windows, int i,
                              struct expr space)
{
    int64_t step = windows->stride[i];
    struct expr stride = expr_number(step), one = expr_number(1);
    if (expr_is_number(space))
        return expr_number(space.number / step + 1);
    struct expr others = tsr__expr_sub(exprs, space, windows->size[i]);
    struct expr least = tsr__expr_add(exprs, others, one); // `space` for one element
    struct expr down = tsr__expr_floor(exprs, tsr__expr_add(exprs, space, stride), stride);
    if (!expr_is_number(least) || least.number >= 0 || step == 1)
        return down;
    if (least.number > -step)
        return tsr__expr_max(exprs, down, one);
    space = tsr__expr_add(exprs, space, expr_number(2 * step - 1));
    struct expr up = tsr__expr_floor(exprs, space, stride);
    up = tsr__expr_max(exprs, up, expr_number(0));
    return tsr__expr_max(exprs, down, tsr__expr_min(exprs, up, one));
}

// Returns the number of windows: 224 positions with pads 3 3, kernel 7, stride 2 have 112, which is
// (224 + 6 - 7) // 2 + 1. With ceil_mode the last window may exceed the end, but must start before
// it; if the stride is then not 1, the result for a symbolic size is unknown.
static struct expr window_count(struct exprs *exprs, const struct windows *windows, int i)
{
    struct expr stride = expr_number(windows->stride[i]);
    struct expr up = expr_number(windows->stride[i] - 1);
    if (windows->same && !windows->padded[i])
        return tsr__expr_floor(exprs, tsr__expr_add(exprs, windows->size[i], up), stride);
    struct expr space = tsr__expr_add(exprs, windows->size[i], expr_number(windows->before[i]));
    struct expr start = space; // windows start before this position
    space = tsr__expr_add(exprs, space, expr_number(windows->after[i]));
    space = tsr__expr_sub(exprs, space, span(exprs, windows, i));
    if (windows->pool && !windows->ceil)
        return pool_count(exprs, windows, i, space);
    // The kernel is larger than the padded input: a convolution would fail.
    if (!windows->pool && expr_is_number(space) && space.number < 0)
        return (struct expr){0};
    if (windows->ceil)
        space = tsr__expr_add(exprs, space, up);
    struct expr last = tsr__expr_floor(exprs, space, stride);
    if (windows->ceil && windows->stride[i] > 1) {
        if (!expr_is_number(last) || !expr_is_number(start))
            return (struct expr){0};
        last.number -= last.number * windows->stride[i] >= start.number;
    }
    return tsr__expr_add(exprs, last, expr_number(1));
}

// True if ONNX infers another number of windows of a pool than its kernel returns, which is
// `count`. With ceil_mode ONNX also counts a last window behind the end, and for automatic pads it
// considers dilations. Only numbers are compared: for other sizes ONNX infers nothing.
static bool is_misread(struct exprs *exprs, const struct windows *windows, int i, struct expr count)
{
    struct expr size = windows->size[i], reach = span(exprs, windows, i);
    int64_t stride = windows->stride[i], pads = windows->before[i] + windows->after[i];
    if (!windows->pool || !expr_is_number(size) || !expr_is_number(reach) ||
        !expr_is_number(count) || size.number > INT32_MAX || reach.number > INT32_MAX)
        return false;
    if (windows->same) {
        int64_t rest = size.number % stride;
        pads = int64_max(reach.number - (rest ? rest : stride), 0);
    }
    int64_t space = size.number + pads - reach.number;
    if (windows->ceil)
        space += stride - 1;
    return count.number != space / stride + 1;
}

// Sets all outputs to the same shape: MaxPool's indices have the shape of its result.
static void set_windows(struct shape_job *job, const struct windows *windows, tsr_dim batch,
                        tsr_dim channels)
{
    tsr_dim *dims = tsr__job_dims(job, windows->n + 2);
    if (!dims)
        return;
    dims[0] = batch;
    dims[1] = channels;
    for (int i = 0; i < windows->n; i++) {
        struct expr count = window_count(job->exprs, windows, i);
        if (is_misread(job->exprs, windows, i, count))
            job->misread |= AXIS_BIT(i);
        dims[i + 2] = tsr__expr_dim(job->exprs, count);
    }
    for (int i = 0; i < job->n_out; i++)
        tsr__job_set(job, i, windows->n + 2, dims);
}

// Infers the shape of a convolution. The result has as many channels as the weights have outputs.
static void convolution(struct shape_job *job, int weights)
{
    struct shape x = tsr__job_in(job, 0), w = tsr__job_in(job, weights);
    struct windows v;
    if (x.rank >= 2 && w.rank >= 2 && read_windows(job, x, w, &v))
        set_windows(job, &v, x.dims[0], w.dims[0]);
}

void tsr__infer_conv(struct shape_job *job)
{
    convolution(job, 1);
}

void tsr__infer_qlinear_conv(struct shape_job *job)
{
    job->out[0].dtype = tsr__job_in(job, 7).dtype;
    if (!tsr__job_int(job, "channels_last", 0)) // an attribute of com.microsoft
        convolution(job, 3);
}

// Infers the shape of a pool. Automatic pads are those of ONNX Runtime, which differ from the
// standard for dilated windows.
void tsr__infer_pool(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    struct windows v;
    if (x.rank < 2 || !read_windows(job, x, SHAPE_UNKNOWN, &v))
        return;
    v.pool = true;
    bool lower = tsr__job_text_is(job, "auto_pad", "SAME_LOWER", false);
    for (int i = 0; i < v.n; i++)
        if (v.same && v.dilation[i] > 1)
            pad_pool(&v, i, lower);
    set_windows(job, &v, x.dims[0], x.dims[1]);
}

// Returns the size of a transposed convolution. With auto_pad SAME_*, the standard gives
// size * stride. If the window is shorter than the stride, ONNX Runtime gives less, and so does
// this function: 4 elements with stride 2 and a kernel of 1 make 7, not 8. `extra` is
// output_padding, which adds positions at the end.
static struct expr transposed_size(struct shape_job *job, const struct windows *windows, int i,
                                   int64_t extra)
{
    struct exprs *exprs = job->exprs;
    struct expr stride = expr_number(windows->stride[i]);
    struct expr less =
        tsr__expr_mul(exprs, tsr__expr_sub(exprs, windows->size[i], expr_number(1)), stride);
    struct expr last = tsr__expr_add(exprs, span(exprs, windows, i), expr_number(extra));
    if (windows->same)
        return tsr__expr_add(exprs, less, tsr__expr_min(exprs, last, stride));
    struct expr space = tsr__expr_add(exprs, less, last);
    space = tsr__expr_sub(exprs, space, expr_number(windows->before[i]));
    return tsr__expr_sub(exprs, space, expr_number(windows->after[i]));
}

// Infers the shape of ConvTranspose. Example: [1 3 8] with weights [3 4 3], stride 2 and pads 1 1
// has (8 - 1) * 2 + 3 - 2 = 15 positions, and 4 channels for each group. A complete output_shape
// gives the sizes. ONNX adds output_padding to automatic pads too, and leaves out the spatial
// dimensions if one of output_shape is smaller than that of the input.
void tsr__infer_conv_transpose(struct shape_job *job)
{
    const int64_t *want, *extra;
    struct shape x = tsr__job_in(job, 0), w = tsr__job_in(job, 1);
    size_t n_want = tsr__job_ints(job, "output_shape", &want);
    size_t n_extra = tsr__job_ints(job, "output_padding", &extra);
    struct windows v;
    if (x.rank < 2 || w.rank < 2 || !read_windows(job, x, w, &v))
        return;
    tsr_dim *dims = tsr__job_dims(job, x.rank);
    if (!dims)
        return;
    struct expr groups = expr_number(tsr__job_int(job, "group", 1));
    dims[0] = x.dims[0];
    dims[1] = tsr__expr_dim(job->exprs,
                            tsr__expr_mul(job->exprs, tsr__expr_of(job->exprs, w.dims[1]), groups));
    for (int i = 0; i < v.n; i++) {
        struct expr space = transposed_size(job, &v, i, entry(extra, n_extra, i, 0));
        dims[i + 2] = tsr__expr_dim(job->exprs, space);
        if (n_want == (size_t)v.n)
            dims[i + 2] = dim_of(want[i]);
        if (n_want || (v.same && entry(extra, n_extra, i, 0)))
            job->misread |= AXIS_BIT(i);
    }
    tsr__job_set(job, 0, x.rank, dims);
}

// Infers the shape of MaxUnpool. Input 2 gives the size; the default is the input size of a pool
// with these windows.
void tsr__infer_max_unpool(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0);
    struct known_value want = tsr__job_values(job, 2);
    struct windows v;
    if (x.rank < 2 || !read_windows(job, x, SHAPE_UNKNOWN, &v))
        return;
    tsr_dim *dims = tsr__job_dims(job, x.rank);
    if (!dims)
        return;
    bool known = want.elements && want.n == x.rank;
    for (int i = 0; i < x.rank; i++) {
        if (tsr__job_has(job, 2) && known)
            dims[i] = tsr__expr_dim(job->exprs, want.elements[i]);
        else if (tsr__job_has(job, 2))
            dims[i] = DIM_UNKNOWN;
        else if (i < 2)
            dims[i] = x.dims[i];
        else
            dims[i] = tsr__expr_dim(job->exprs, transposed_size(job, &v, i - 2, 0));
    }
    tsr__job_set(job, 0, x.rank, dims);
}

// Infers the shape of Col2Im. Example: [n c*6 l] with blocks {2 3} is [n c ...], followed by the
// sizes of the image.
void tsr__infer_col2im(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0), of = tsr__job_in(job, 1);
    struct known_value image = tsr__job_values(job, 1), block = tsr__job_values(job, 2);
    int64_t n = tsr__value_length(image, of);
    if (n < 0 || n > MAX_SPATIAL || x.rank != 3)
        return;
    tsr_dim *dims = tsr__job_dims(job, n + 2);
    if (!dims)
        return;
    // Number of elements of a block.
    struct expr all = block.elements ? expr_number(1) : EXPR_UNKNOWN;
    for (int64_t i = 0; i < block.n; i++)
        all = tsr__expr_mul(job->exprs, all, block.elements[i]);
    dims[0] = x.dims[0];
    dims[1] = tsr__expr_dim(job->exprs,
                            tsr__expr_exact(job->exprs, tsr__expr_of(job->exprs, x.dims[1]), all));
    for (int64_t i = 0; i < n; i++)
        dims[i + 2] = tsr__expr_dim(job->exprs, element_of(image, i));
    tsr__job_set(job, 0, (int)n + 2, dims);
}

// Infers the shape of a causal convolution. The state is the end of the input, which the next call
// needs: k - 1 elements for a kernel of k.
void tsr__infer_causal_conv(struct shape_job *job)
{
    struct expr kernel = tsr__expr_of(job->exprs, dim_at(tsr__job_in(job, 1), 2));
    job->shapes->rules->letters(job);
    tsr__job_set_dim(job, 1, 2,
                     tsr__expr_dim(job->exprs, tsr__expr_sub(job->exprs, kernel, expr_number(1))));
}

// ---- com.microsoft.nchwc: channels in blocks ----------------------------------------------------

// Returns the channels padded to full blocks of 8 or 16, depending on the CPU. A multiple of 16
// stays; any other number gives an unknown size.
static tsr_dim padded_channels(tsr_dim channels)
{
    return channels.value > 0 && channels.value % 16 == 0 ? channels : DIM_UNKNOWN;
}

// Infers the shape of a conversion between [n c y x], or [n y x c] with channels_last, and [n C y
// x] with C channels in blocks.
static void reorder(struct shape_job *job, bool to_blocks)
{
    // Axes of channels, y and x.
    static const int first[] = {1, 2, 3}, last[] = {3, 1, 2};
    const int *plain = tsr__job_int(job, "channels_last", 0) != 0 ? last : first;
    const int *from = to_blocks ? plain : first, *to = to_blocks ? first : plain;
    struct shape x = tsr__job_in(job, 0);
    tsr_dim *dims = x.rank == 4 ? tsr__job_dims(job, 4) : NULL;
    if (!dims)
        return;
    dims[0] = x.dims[0];
    // The attribute holds the number of channels without padding.
    dims[to[0]] =
        to_blocks ? padded_channels(x.dims[from[0]]) : dim_of(tsr__job_int(job, "channels", -1));
    dims[to[1]] = x.dims[from[1]];
    dims[to[2]] = x.dims[from[2]];
    tsr__job_set(job, 0, 4, dims);
}
void tsr__infer_reorder_input(struct shape_job *job)
{
    reorder(job, true);
}
void tsr__infer_reorder_output(struct shape_job *job)
{
    reorder(job, false);
}
