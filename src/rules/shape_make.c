// SPDX-License-Identifier: Apache-2.0
// shape_make.c - shapes of operators that make tensors or look values up: constants, ranges, random
// numbers, one-hot rows, selections whose length depends on the data.
#include "rules/internal.h"

#include <math.h>

static void set_vector(struct shape_job *j, int i, tsr_dim size)
{
    tsr_dim *dims = tsr__job_dims(j, 1);
    if (dims)
        dims[0] = size;
    tsr__job_set(j, i, 1, dims);
}

static void set_scalar(struct shape_job *j, int i)
{
    tsr__job_set(j, i, 0, tsr__job_dims(j, 0));
}

static void set_tensor(struct shape_job *j, const tsr_tensor *t)
{
    int rank = tsr_tensor_rank(t);
    tsr_dim *dims = tsr__job_dims(j, rank);
    j->out[0].dtype = tsr_tensor_dtype(t);
    for (int i = 0; dims && i < rank; i++)
        dims[i].value = tsr_tensor_dims(t)[i] < 0 ? -1 : tsr_tensor_dims(t)[i];
    tsr__job_set(j, 0, rank, dims);
}

void tsr__find_constant(struct shape_job *j)
{
    static const struct {
        const char *name;
        tsr_dtype type;
        bool list;
    } forms[] = {{"value_int", TSR_INT64, false},     {"value_ints", TSR_INT64, true},
                 {"value_float", TSR_FLOAT, false},   {"value_floats", TSR_FLOAT, true},
                 {"value_string", TSR_STRING, false}, {"value_strings", TSR_STRING, true}};
    const tsr_tensor *t = tsr_attr_tensor(tsr__job_attr(j, "value"));
    if (t)
        set_tensor(j, t);
    for (size_t i = 0; !t && i < TSR_COUNT(forms); i++) {
        const tsr_attr *a = tsr__job_attr(j, forms[i].name);
        int64_t n = a ? tsr__attr_length(a) : -1;
        if (!a)
            continue;
        j->out[0].dtype = forms[i].type;
        if (forms[i].list)
            set_vector(j, 0, (tsr_dim){n < 0 ? -1 : n, ""});
        else
            set_scalar(j, 0);
    }
}

void tsr__find_constant_of_shape(struct shape_job *j)
{
    const tsr_tensor *t = tsr_attr_tensor(tsr__job_attr(j, "value"));
    struct known_value want = tsr__job_values(j, 0);
    struct shape of = tsr__job_in(j, 0);
    int64_t n = want.elements ? want.n : of.rank == 1 ? of.dims[0].value : -1;
    j->out[0].dtype = t ? tsr_tensor_dtype(t) : TSR_FLOAT;
    tsr_dim *dims = n >= 0 ? tsr__job_dims(j, n) : NULL;
    for (int64_t i = 0; dims && i < n && want.elements; i++)
        dims[i] = tsr__expr_dim(j->x, want.elements[i]);
    tsr__job_set(j, 0, (int)n, dims);
}

// Attribute `shape` of the random generators.
void tsr__find_attribute(struct shape_job *j)
{
    const int64_t *shape;
    const tsr_attr *a = tsr__job_attr(j, "shape");
    size_t n = tsr__job_ints(j, "shape", &shape);
    tsr_dim *dims = a ? tsr__job_dims(j, (int64_t)n) : NULL;
    for (size_t i = 0; dims && i < n; i++)
        dims[i].value = shape[i] < 0 ? -1 : shape[i];
    tsr__job_set(j, 0, (int)n, dims);
}

void tsr__find_shape(struct shape_job *j)
{
    int rank = tsr__job_in(j, 0).rank;
    if (rank < 0) {
        set_vector(j, 0, DIM_UNKNOWN);
        return;
    }
    int64_t start = tsr__job_int(j, "start", 0), end = tsr__job_int(j, "end", rank);
    start = start < 0 ? start + rank : start;
    end = end < 0 ? end + rank : end;
    start = start < 0 ? 0 : start > rank ? rank : start;
    end = end < 0 ? 0 : end > rank ? rank : end;
    set_vector(j, 0, (tsr_dim){end > start ? end - start : 0, ""});
}

void tsr__find_like_first(struct shape_job *j)
{
    for (int i = 0; i < j->n_out; i++)
        tsr__job_like(j, i, 0);
}

void tsr__find_scalar(struct shape_job *j)
{
    for (int i = 0; i < j->n_out; i++)
        set_scalar(j, i);
}

// ---- Range -------------------------------------------------------------------------------------

static bool scalar_of(const struct shape_job *j, int i, double *out)
{
    const tsr_tensor *t = tsr__job_tensor(j, i);
    const void *bytes;
    size_t n;
    float f;
    if (!t || tsr_tensor_elements(t) != 1 || tsr_tensor_data(t, &bytes, &n) != TSR_OK)
        return false;
    if (tsr_tensor_dtype(t) == TSR_FLOAT && n == sizeof(f)) {
        memcpy(&f, bytes, sizeof(f));
        *out = (double)f;
        return true;
    }
    if (tsr_tensor_dtype(t) != TSR_DOUBLE || n != sizeof(*out))
        return false;
    memcpy(out, bytes, sizeof(*out));
    return true;
}

static struct expr range_floats(const struct shape_job *j)
{
    double start, limit, delta;
    if (!scalar_of(j, 0, &start) || !scalar_of(j, 1, &limit) || !scalar_of(j, 2, &delta))
        return (struct expr){0};
    double n = ceil((limit - start) / delta);
    if (!(n < 1e15)) // not a number neither
        return (struct expr){0};
    return expr_number(n > 0 ? (int64_t)n : 0);
}

void tsr__find_range(struct shape_job *j)
{
    struct known_value v[3];
    struct expr n = {0};
    for (int i = 0; i < 3; i++)
        v[i] = tsr__job_values(j, i);
    if (v[0].n == 1 && v[1].n == 1 && v[2].n == 1) {
        struct expr run = tsr__expr_sub(j->x, v[1].elements[0], v[0].elements[0]);
        struct expr by = v[2].elements[0];
        if (expr_is_number(by) && by.number < 0 && by.number > INT64_MIN) {
            run = tsr__expr_sub(j->x, expr_number(0), run);
            by.number = -by.number;
        }
        if (expr_is_number(run) && expr_is_number(by) && by.number > 0)
            n = expr_number(
                run.number <= 0 ? 0 : run.number / by.number + (run.number % by.number > 0));
        else if (expr_is_number(by) && by.number > 0) {
            run = tsr__expr_max(j->x, run, expr_number(0)); // nothing, where the limit lies behind
            n = tsr__expr_floor(j->x, tsr__expr_add(j->x, run, expr_number(by.number - 1)), by);
        }
    } else {
        n = range_floats(j);
    }
    set_vector(j, 0, tsr__expr_dim(j->x, n));
}

// ---- selections --------------------------------------------------------------------------------

void tsr__find_one_hot(struct shape_job *j)
{
    struct shape s = tsr__job_in(j, 0);
    struct known_value depth = tsr__job_values(j, 1);
    int at = s.rank < 0 ? -1 : tsr__axis(tsr__job_int(j, "axis", -1), s.rank + 1);
    tsr_dim *dims = at >= 0 ? tsr__job_dims(j, s.rank + 1) : NULL;
    for (int i = 0; dims && i <= s.rank; i++)
        if (i != at)
            dims[i] = s.dims[i < at ? i : i - 1];
    if (dims && depth.n == 1)
        dims[at] = tsr__expr_dim(j->x, depth.elements[0]);
    tsr__job_set(j, 0, s.rank + 1, dims);
}

void tsr__find_non_zero(struct shape_job *j)
{
    int rank = tsr__job_in(j, 0).rank;
    tsr_dim *dims = tsr__job_dims(j, 2);
    if (dims && rank >= 0)
        dims[0] = (tsr_dim){rank == 0 ? 1 : rank, ""}; // a scalar counts as a vector of one
    tsr__job_set(j, 0, 2, dims);
}

void tsr__find_unique(struct shape_job *j)
{
    struct shape s = tsr__job_in(j, 0);
    const tsr_attr *a = tsr__job_attr(j, "axis");
    int axis = a ? tsr__axis(tsr_attr_int(a, 0), s.rank) : -1;
    for (int i = a ? 1 : 0; i < j->n_out; i++)
        set_vector(j, i, DIM_UNKNOWN);
    tsr_dim *dims = axis >= 0 ? tsr__job_dims(j, s.rank) : NULL;
    for (int i = 0; dims && i < s.rank; i++)
        if (i != axis)
            dims[i] = s.dims[i];
    if (dims)
        tsr__job_set(j, 0, s.rank, dims);
}

void tsr__find_compress(struct shape_job *j)
{
    struct shape s = tsr__job_in(j, 0);
    const tsr_attr *a = tsr__job_attr(j, "axis");
    int axis = a ? tsr__axis(tsr_attr_int(a, 0), s.rank) : -1;
    if (!a)
        set_vector(j, 0, DIM_UNKNOWN);
    tsr_dim *dims = axis >= 0 ? tsr__job_dims(j, s.rank) : NULL;
    for (int i = 0; dims && i < s.rank; i++)
        if (i != axis)
            dims[i] = s.dims[i];
    if (dims)
        tsr__job_set(j, 0, s.rank, dims);
}

// ---- Resize and Upsample -----------------------------------------------------------------------

#define MAX_SCALES 64

static int64_t floats_of(const struct shape_job *j, int i, float *out)
{
    const tsr_tensor *t = tsr__job_tensor(j, i);
    const void *bytes;
    size_t size;
    int64_t n = t ? tsr_tensor_elements(t) : -1;
    if (n < 0 || n > MAX_SCALES || tsr_tensor_dtype(t) != TSR_FLOAT ||
        tsr_tensor_data(t, &bytes, &size) != TSR_OK || size != (size_t)n * sizeof(float))
        return -1;
    memcpy(out, bytes, size);
    return n;
}

static tsr_dim scaled(tsr_dim d, float scale)
{
    if (scale == 1.0f)
        return d;
    double n = d.value < 0 ? -1 : floor((double)d.value * (double)scale);
    return n >= 0 && n < 1e15 ? (tsr_dim){(int64_t)n, ""} : DIM_UNKNOWN;
}

static int resized_axis(const struct shape_job *j, int i, int rank)
{
    const int64_t *axes;
    size_t n = tsr__job_ints(j, "axes", &axes);
    return n ? ((size_t)i < n ? tsr__axis(axes[i], rank) : -1) : i;
}

// One scale for all axes, so that the sizes keep their proportions.
static void keep_aspect(struct shape_job *j, struct shape s, tsr_dim *dims, int64_t n, bool larger)
{
    double best = 0;
    for (int i = 0; i < n; i++) {
        int axis = resized_axis(j, i, s.rank);
        if (s.dims[axis].value <= 0 || dims[axis].value < 0)
            best = NAN;
        double scale = (double)dims[axis].value / (double)s.dims[axis].value;
        if (i == 0 || (larger ? scale > best : scale < best))
            best = isnan(best) ? best : scale;
    }
    for (int i = 0; i < n; i++) {
        int axis = resized_axis(j, i, s.rank);
        double size = floor(best * (double)s.dims[axis].value + 0.5);
        dims[axis] = size >= 0 && size < 1e15 ? (tsr_dim){(int64_t)size, ""} : DIM_UNKNOWN;
    }
}

static void resize(struct shape_job *j, int scales_at, int sizes_at)
{
    float scales[MAX_SCALES];
    struct shape s = tsr__job_in(j, 0);
    struct known_value sizes = tsr__job_values(j, sizes_at);
    int64_t n = floats_of(j, scales_at, scales), want = sizes.elements ? sizes.n : n;
    tsr_dim *dims = s.rank >= 0 ? tsr__job_dims(j, s.rank) : NULL;
    if (!dims)
        return;
    bool known = n > 0 || sizes.elements;
    const int64_t *axes;
    size_t n_axes = tsr__job_ints(j, "axes", &axes);
    for (int i = 0; i < s.rank; i++) {
        bool resized = !n_axes;
        for (size_t k = 0; k < n_axes; k++)
            resized = resized || tsr__axis(axes[k], s.rank) == i;
        if (known || !resized)
            dims[i] = s.dims[i];
    }
    for (int i = 0; i < want && i < SHAPE_MAX_RANK && known; i++) {
        int axis = resized_axis(j, i, s.rank);
        if (axis < 0 || axis >= s.rank)
            return;
        dims[axis] = sizes.elements ? tsr__expr_dim(j->x, sizes.elements[i])
                                    : scaled(s.dims[axis], scales[i]);
    }
    bool larger = tsr__job_text_is(j, "keep_aspect_ratio_policy", "not_smaller", false);
    if (sizes.elements && !tsr__job_text_is(j, "keep_aspect_ratio_policy", "stretch", true))
        keep_aspect(j, s, dims, want, larger);
    tsr__job_set(j, 0, s.rank, dims);
}

void tsr__find_resize(struct shape_job *j)
{
    resize(j, 2, 3);
}

void tsr__find_resize_10(struct shape_job *j) // and Upsample from opset 9
{
    resize(j, 1, -1);
}

void tsr__find_upsample(struct shape_job *j)
{
    struct shape s = tsr__job_in(j, 0);
    float scales[MAX_SCALES];
    int64_t n = tsr__attr_floats(tsr__job_attr(j, "scales"), scales, MAX_SCALES);
    tsr_dim *dims = s.rank >= 0 ? tsr__job_dims(j, s.rank) : NULL;
    for (int i = 0; dims && n == s.rank && i < s.rank; i++)
        dims[i] = scaled(s.dims[i], scales[i]);
    tsr__job_set(j, 0, s.rank, dims);
}
