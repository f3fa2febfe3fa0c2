// SPDX-License-Identifier: Apache-2.0
// shape_make.c - shapes of operators that create tensors or select elements: constants, ranges,
// random numbers, selections whose length depends on the data.
//
//   Shape of [n 3 8 8], start 1          a vector of 3 elements
//   NonZero of rank 3                    [3 ?]: the number depends on the data
//   Resize of [1 3 8 8] by 1 1 2 2       [1 3 16 16]
#include "shapes/infer.h"

#include <math.h>

// Sets output i to a vector of that size; unknown if out of memory.
static void set_vector(struct shape_job *job, int i, tsr_dim size)
{
    tsr_dim *dims = tsr__job_dims(job, 1);
    if (dims)
        dims[0] = size;
    tsr__job_set(job, i, 1, dims);
}

static void set_scalar(struct shape_job *job, int i)
{
    tsr__job_set(job, i, 0, tsr__job_dims(job, 0));
}

// Sets type and sizes of a constant; known_values.c reads its elements.
static void set_tensor(struct shape_job *job, const tsr_tensor *tensor)
{
    int rank = tsr_tensor_rank(tensor);
    tsr_dim *dims = tsr__job_dims(job, rank);
    job->out[0].dtype = tsr_tensor_dtype(tensor);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++)
        dims[i] = dim_of(tsr_tensor_dims(tensor)[i]);
    tsr__job_set(job, 0, rank, dims);
}

// Infers the shape of Constant, which has one of these attributes: a tensor, a scalar, or a list.
void tsr__infer_constant(struct shape_job *job)
{
    const tsr_tensor *tensor = tsr__job_constant(job);
    const tsr_attr *texts = tsr__job_attr(job, "value_strings");
    if (tensor) {
        set_tensor(job, tensor);
    } else if (texts) {
        job->out[0].dtype = TSR_STRING;
        set_vector(job, 0, dim_of(tsr__attr_length(texts)));
    } else if (tsr__job_attr(job, "value_string")) {
        job->out[0].dtype = TSR_STRING;
        set_scalar(job, 0);
    }
}

// Infers the shape of ConstantOfShape. The elements of input 0 are the sizes; if only their number
// is known, it is the rank.
void tsr__infer_constant_of_shape(struct shape_job *job)
{
    const tsr_tensor *tensor = tsr_attr_tensor(tsr__job_attr(job, "value"));
    struct known_value want = tsr__job_values(job, 0);
    struct shape of = tsr__job_in(job, 0);
    int64_t n = tsr__value_length(want, of);
    job->out[0].dtype = tensor ? tsr_tensor_dtype(tensor) : TSR_FLOAT;
    tsr_dim *dims = tsr__job_dims(job, n);
    if (dims && want.elements)
        for (int64_t i = 0; i < n; i++)
            dims[i] = tsr__expr_dim(job->exprs, want.elements[i]);
    tsr__job_set(job, 0, (int)n, dims);
}

// Infers the shape of random generators from their attribute `shape`.
void tsr__infer_attribute(struct shape_job *job)
{
    const int64_t *shape;
    const tsr_attr *attr = tsr__job_attr(job, "shape");
    if (!attr)
        return;
    size_t n = tsr__job_ints(job, "shape", &shape);
    tsr_dim *dims = tsr__job_dims(job, (int64_t)n);
    if (!dims)
        return;
    for (size_t i = 0; i < n; i++)
        dims[i] = dim_of(shape[i]);
    tsr__job_set(job, 0, (int)n, dims);
}

// Infers the shape of Shape: a vector with one element per dimension. known_values.c computes the
// elements.
void tsr__infer_shape(struct shape_job *job)
{
    int rank = tsr__job_in(job, 0).rank;
    if (rank < 0) {
        set_vector(job, 0, DIM_UNKNOWN);
        return;
    }
    int64_t start = tsr__job_int(job, "start", 0), end = tsr__job_int(job, "end", rank);
    start = clamped(from_front(start, rank), 0, rank);
    end = clamped(from_front(end, rank), 0, rank);
    set_vector(job, 0, dim_of(int64_max(end - start, 0)));
}

// Infers the shape of operators whose outputs all have the shape of the first input.
void tsr__infer_like_first(struct shape_job *job)
{
    for (int i = 0; i < job->n_out; i++)
        tsr__job_like(job, i, 0);
}

void tsr__infer_scalar(struct shape_job *job)
{
    for (int i = 0; i < job->n_out; i++)
        set_scalar(job, i);
}

// ---- Range -------------------------------------------------------------------------------------

#define EXACT_FLOAT (1 << 24) // all integers up to this one are floats

// Reads a constant float or double of one element. False: the input is not such a constant.
static bool scalar_of(const struct shape_job *job, int i, double *out)
{
    const tsr_tensor *tensor = tsr__job_tensor(job, i);
    const void *bytes;
    size_t n;
    float f;
    if (!tensor || tsr_tensor_elements(tensor) != 1 || !tsr__tensor_peek(tensor, &bytes, &n))
        return false;
    if (tsr_tensor_dtype(tensor) == TSR_FLOAT && n == sizeof(f)) {
        memcpy(&f, bytes, sizeof(f));
        *out = (double)f;
        return true;
    }
    if (tsr_tensor_dtype(tensor) != TSR_DOUBLE || n != sizeof(*out))
        return false;
    memcpy(out, bytes, sizeof(*out));
    return true;
}

// Returns the only element of a float input if it is an integer: a constant such as 2.0, or an
// integer of known value that a Cast converts. Unknown if it is too large to be exact.
static struct expr integer_of(const struct shape_job *job, int i)
{
    const tsr_value *value = tsr_node_input(job->node, (size_t)i);
    const tsr_node *cast = value ? tsr_value_producer(value) : NULL;
    tsr_dtype type = tsr__job_in(job, i).dtype;
    double number;
    if (scalar_of(job, i, &number)) {
        bool exact = number == floor(number) && fabs(number) <= EXACT_FLOAT;
        return exact ? expr_number((int64_t)number) : EXPR_UNKNOWN;
    }
    if (!cast || strcmp(tsr_node_op(cast), "Cast") != 0 || tsr_node_domain(cast)[0] ||
        (type != TSR_FLOAT && type != TSR_DOUBLE))
        return EXPR_UNKNOWN;
    struct known_value from = tsr__value_known(job->shapes, tsr_node_input(cast, 0));
    if (!from.elements || from.n != 1)
        return EXPR_UNKNOWN;
    struct expr element = from.elements[0];
    bool large =
        expr_is_number(element) && (element.number > EXACT_FLOAT || element.number < -EXACT_FLOAT);
    return large ? EXPR_UNKNOWN : element;
}

// Returns the length of a Range of floats, computed in doubles as in the definition: 0 to 1 by 0.3
// are 4.
static struct expr range_floats(const struct shape_job *job)
{
    double start, limit, delta;
    if (!scalar_of(job, 0, &start) || !scalar_of(job, 1, &limit) || !scalar_of(job, 2, &delta))
        return EXPR_UNKNOWN;
    double n = ceil((limit - start) / delta);
    if (!(n < 1e15)) // the comparison is also false for NaN
        return EXPR_UNKNOWN;
    return n <= 0 ? expr_number(0) : expr_number((int64_t)n);
}

// Returns the count of numbers from start to limit. Example: 2 to 9 by 3 are 2, 5 and 8, so the
// count is (7 + 2) // 3. From 2 to n it is (max(n - 2, 0) + 2) // 3.
static struct expr range_ints(struct exprs *exprs, struct expr start, struct expr limit,
                              struct expr step)
{
    struct expr run = tsr__expr_sub(exprs, limit, start);
    if (expr_is_number(step) && step.number < 0 && step.number > INT64_MIN) {
        run = tsr__expr_sub(exprs, expr_number(0), run);
        step.number = -step.number;
    }
    if (!expr_is_number(step) || step.number <= 0)
        return EXPR_UNKNOWN;
    if (expr_is_number(run) && run.number <= 0)
        return expr_number(0);
    if (expr_is_number(run))
        return expr_number(run.number / step.number + (run.number % step.number > 0));
    run = tsr__expr_max(exprs, run, expr_number(0)); // empty if the limit is before the start
    return tsr__expr_floor(exprs, tsr__expr_add(exprs, run, expr_number(step.number - 1)), step);
}

// Infers the shape of Range. Integers may be expressions (0 to n), also if they were converted to
// floats; other floats must be constants.
void tsr__infer_range(struct shape_job *job)
{
    struct known_value start = tsr__job_values(job, 0), limit = tsr__job_values(job, 1),
                       step = tsr__job_values(job, 2);
    struct expr n;
    if (start.n == 1 && limit.n == 1 && step.n == 1)
        n = range_ints(job->exprs, start.elements[0], limit.elements[0], step.elements[0]);
    else
        n = range_floats(job);
    if (!n.known)
        n = range_ints(job->exprs, integer_of(job, 0), integer_of(job, 1), integer_of(job, 2));
    set_vector(job, 0, tsr__expr_dim(job->exprs, n));
}

// ---- selections --------------------------------------------------------------------------------

// Infers the shape of NonZero: one row for each dimension of the input, one column for each element
// that is not zero.
void tsr__infer_non_zero(struct shape_job *job)
{
    int rank = tsr__job_in(job, 0).rank;
    tsr_dim *dims = tsr__job_dims(job, 2);
    if (dims && rank >= 0)
        dims[0] = dim_of(int64_max(rank, 1)); // a scalar is treated as a vector of one element
    tsr__job_set(job, 0, 2, dims);
}

// Infers the shape of Unique. The outputs are the values, their first positions, the value number
// of each element, and the counts. All lengths depend on the data. Without an axis the values are
// flat.
void tsr__infer_unique(struct shape_job *job)
{
    const tsr_attr *attr = tsr__job_attr(job, "axis");
    int axis = tsr__axis(tsr_attr_int(attr, 0), tsr__job_in(job, 0).rank);
    if (attr && axis >= 0) {
        tsr__job_like(job, 0, 0);
        tsr__job_set_dim(job, 0, axis, DIM_UNKNOWN);
    }
    for (int i = attr ? 1 : 0; i < job->n_out; i++)
        set_vector(job, i, DIM_UNKNOWN);
}

// ---- Resize and Upsample -----------------------------------------------------------------------

#define MAX_SCALES 64

int64_t tsr__job_floats(const struct shape_job *job, int i, float *out, int64_t cap)
{
    const tsr_tensor *tensor = tsr__job_tensor(job, i);
    const void *bytes;
    size_t size;
    if (!tensor)
        return -1;
    int64_t n = tsr_tensor_elements(tensor);
    if (n < 0 || n > cap || tsr_tensor_dtype(tensor) != TSR_FLOAT ||
        !tsr__tensor_peek(tensor, &bytes, &size) || size != (size_t)n * sizeof(float))
        return -1;
    memcpy(out, bytes, size);
    return n;
}

// Returns a size that was computed with fractions; unknown if it is out of range.
static tsr_dim dim_of_float(double size)
{
    return size >= 0 && size < 1e15 ? dim_of((int64_t)size) : DIM_UNKNOWN;
}

// Returns the size times the scale. A scale of 1 keeps a symbol; any other makes it unknown,
// because floor(n * s) is not an expression.
static tsr_dim scaled(tsr_dim dim, float scale)
{
    if (scale == 1.0f)
        return dim;
    return dim.value < 0 ? DIM_UNKNOWN : dim_of_float(floor((double)dim.value * (double)scale));
}

// Returns the dimension of entry i. Without axes it is dimension i.
static int resized_axis(const struct shape_job *job, int i, int rank)
{
    const int64_t *axes;
    size_t n = tsr__job_ints(job, "axes", &axes);
    if (!n)
        return i;
    return (size_t)i >= n ? -1 : tsr__axis(axes[i], rank);
}

// Sets sizes with one scale for all axes, which keeps the proportions. Example: [8 4] to at most
// {16 4} is [8 4], because 4 / 4 is the smaller scale; to at least {16 4} it is [16 8].
static void keep_aspect(struct shape_job *job, struct shape shape, tsr_dim *dims, int64_t n,
                        bool larger)
{
    double best = 0;
    for (int i = 0; i < n; i++) {
        int axis = resized_axis(job, i, shape.rank);
        if (shape.dims[axis].value <= 0 || dims[axis].value < 0)
            best = NAN;
        double scale = (double)dims[axis].value / (double)shape.dims[axis].value;
        bool further = (larger && scale > best) || (!larger && scale < best);
        if (!isnan(best) && (i == 0 || further))
            best = scale;
    }
    for (int i = 0; i < n; i++) {
        int axis = resized_axis(job, i, shape.rank);
        double size = floor(best * (double)shape.dims[axis].value + 0.5);
        dims[axis] = dim_of_float(size);
    }
}

// Infers the shape of Resize. Sizes have precedence over scales. Dimensions that are not in `axes`
// keep their size. Others are unknown if neither sizes nor scales are known. Example: [1 3 8 8]
// with scales 1 1 2 2 becomes [1 3 16 16].
static void resize(struct shape_job *job, int scales_at, int sizes_at)
{
    float scales[MAX_SCALES];
    struct shape shape = tsr__job_in(job, 0);
    struct known_value sizes = tsr__job_values(job, sizes_at);
    int64_t n = tsr__job_floats(job, scales_at, scales, MAX_SCALES), want = n;
    if (sizes.elements)
        want = sizes.n;
    tsr_dim *dims = tsr__job_dims(job, shape.rank);
    if (!dims)
        return;
    // Otherwise resized dimensions are unknown.
    bool known = n > 0 || sizes.elements;
    const int64_t *axes;
    size_t n_axes = tsr__job_ints(job, "axes", &axes);
    for (int i = 0; i < shape.rank; i++) {
        bool resized = !n_axes;
        for (size_t k = 0; k < n_axes; k++)
            resized = resized || tsr__axis(axes[k], shape.rank) == i;
        if (known || !resized)
            dims[i] = shape.dims[i];
    }
    // Each entry of scales or sizes belongs to one of `axes`.
    int64_t n_sizes = known ? clamped(want, 0, SHAPE_MAX_RANK) : 0;
    for (int i = 0; i < n_sizes; i++) {
        int axis = resized_axis(job, i, shape.rank);
        if (axis < 0 || axis >= shape.rank)
            return;
        dims[axis] = sizes.elements ? tsr__expr_dim(job->exprs, sizes.elements[i])
                                    : scaled(shape.dims[axis], scales[i]);
    }
    bool larger = tsr__job_text_is(job, "keep_aspect_ratio_policy", "not_smaller", false);
    if (sizes.elements && !tsr__job_text_is(job, "keep_aspect_ratio_policy", "stretch", true))
        keep_aspect(job, shape, dims, want, larger);
    tsr__job_set(job, 0, shape.rank, dims);
}

void tsr__infer_resize(struct shape_job *job)
{
    resize(job, 2, 3);
}

void tsr__infer_resize_10(struct shape_job *job) // and Upsample from opset 9
{
    resize(job, 1, -1);
}

// Infers the shape of Upsample of the first opsets, in which the scales are an attribute, one for
// each dimension.
void tsr__infer_upsample(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    float scales[MAX_SCALES];
    int64_t n = tsr__attr_floats(tsr__job_attr(job, "scales"), scales, MAX_SCALES);
    tsr_dim *dims = tsr__job_dims(job, shape.rank);
    if (dims && n == shape.rank)
        for (int i = 0; i < shape.rank; i++)
            dims[i] = scaled(shape.dims[i], scales[i]);
    tsr__job_set(job, 0, shape.rank, dims);
}
