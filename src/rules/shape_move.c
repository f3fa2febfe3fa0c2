// SPDX-License-Identifier: Apache-2.0
// shape_move.c - shapes of operators that move data, where sizes come from attributes and small
// constant inputs: Concat, Split, Slice, Pad, Expand, Tile, ...
//
//   Concat of [n 4] and [n 8] along 1     [n 12]
//   Split of [7] with num_outputs 3       3, 3 and 1: pieces of one size, the last one smaller
//   Slice 2:8:2 of 10 elements            3
//   Slice 1: of n elements                n - 1, not below zero
//   Expand of [6] to {4, 1}               [4 6]
#include "rules/internal.h"

// Dimensions of input i to be changed; NULL: its rank is not known.
static tsr_dim *copy_dims(struct shape_job *job, int i, int *rank)
{
    struct shape shape = tsr__job_in(job, i);
    tsr_dim *dims = shape.rank >= 0 ? tsr__job_dims(job, shape.rank) : NULL;
    if (dims && shape.rank)
        memcpy(dims, shape.dims, (size_t)shape.rank * sizeof(*dims));
    *rank = shape.rank;
    return dims;
}

static struct expr element(struct known_value value, int64_t i)
{
    return value.elements && i < value.n ? value.elements[i] : (struct expr){0};
}

// Integers of input i as expressions, or of an attribute as numbers; n -1: not known.
static struct known_value list_of(struct shape_job *job, int i, const char *name)
{
    const int64_t *ints;
    if (tsr__job_has(job, i))
        return tsr__job_values(job, i);
    size_t n = name ? tsr__job_ints(job, name, &ints) : 0;
    struct expr *expr = n && n <= 2 * VALUES_MAX ? ARENA_ARRAY(job->arena, struct expr, n) : NULL;
    if (!expr)
        return (struct known_value){0};
    for (size_t k = 0; k < n; k++)
        expr[k] = expr_number(ints[k]);
    return (struct known_value){expr, (int64_t)n};
}

// The dimensions beside the axis are those of any input that knows them.
void tsr__infer_concat(struct shape_job *job)
{
    tsr_dim *dims = NULL;
    struct expr sum = expr_number(0);
    int rank = -1, axis = -1;
    for (int i = 0; i < job->n_in; i++) {
        struct shape shape = tsr__job_in(job, i);
        if (shape.rank < 0) {
            sum = (struct expr){0};
            continue;
        }
        if (!dims) {
            dims = copy_dims(job, i, &rank);
            axis = tsr__axis(tsr__job_int(job, "axis", 1), rank);
        }
        if (!dims || axis < 0 || shape.rank != rank)
            return;
        sum = tsr__expr_add(job->exprs, sum, tsr__expr_of(job->exprs, shape.dims[axis]));
        for (int d = 0; d < rank; d++)
            if (dims[d].value < 0 && (shape.dims[d].value >= 0 || !dim_known(dims[d])))
                dims[d] = shape.dims[d];
    }
    if (!dims || axis < 0)
        return;
    dims[axis] = tsr__expr_dim(job->exprs, sum);
    tsr__job_set(job, 0, rank, dims);
}

// Pieces of one size, the last one smaller, as num_outputs asks for; or equal ones.
static struct expr split_size(struct shape_job *job, struct expr size, int i)
{
    int64_t n = tsr__job_int(job, "num_outputs", 0), pieces = n > 0 ? n : job->n_out;
    if (n <= 0)
        return tsr__expr_exact(job->exprs, size, expr_number(pieces));
    if (!expr_is_number(size)) {
        struct expr even = tsr__expr_exact(job->exprs, size, expr_number(pieces));
        return even;
    }
    int64_t piece = size.number / pieces + (size.number % pieces > 0),
            left = size.number - i * piece;
    return expr_number(clamped(left, 0, piece));
}

void tsr__infer_split(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    int axis = tsr__axis(tsr__job_int(job, "axis", 0), shape.rank), rank;
    struct known_value sizes = list_of(job, 1, "split");
    bool sized = tsr__job_has(job, 1) || sizes.elements;
    if (shape.rank < 0 || axis < 0)
        return;
    for (int i = 0; i < job->n_out; i++) {
        tsr_dim *dims = copy_dims(job, 0, &rank);
        if (!dims)
            return;
        struct expr size = tsr__expr_of(job->exprs, dims[axis]);
        dims[axis] =
            tsr__expr_dim(job->exprs, sized ? element(sizes, i) : split_size(job, size, i));
        tsr__job_set(job, i, rank, dims);
    }
}

// ---- Slice -------------------------------------------------------------------------------------

// Entry of an axis in the lists of a Slice; -1: it is not sliced, -2: not known.
static int64_t slice_entry(const struct shape_job *job, int axis, int rank)
{
    int64_t axes[VALUES_MAX], n;
    const int64_t *list;
    if (tsr__job_has(job, 3)) {
        n = tsr__job_numbers(job, 3, axes, VALUES_MAX);
        list = axes;
    } else {
        n = (int64_t)tsr__job_ints(job, "axes", &list);
        if (!n) { // the first ones, as many as there are starts
            const int64_t *starts;
            struct shape of = tsr__job_in(job, 1);
            if (!tsr__job_has(job, 1))
                n = (int64_t)tsr__job_ints(job, "starts", &starts);
            else
                n = of.rank == 1 ? of.dims[0].value : -1;
            if (n < 0)
                return -2;
            return axis < n ? axis : -1;
        }
    }
    if (n < 0)
        return -2;
    for (int64_t i = 0; i < n; i++)
        if (tsr__axis(list[i], rank) == axis)
            return i;
    return -1;
}

static struct expr slice_bound(struct shape_job *job, int input, const char *name, int64_t entry)
{
    const int64_t *ints;
    if (tsr__job_has(job, input))
        return element(tsr__job_values(job, input), entry);
    size_t n = tsr__job_ints(job, name, &ints);
    return (size_t)entry < n ? expr_number(ints[entry]) : (struct expr){0};
}

// A bound as a place between low and high; negative ones count from the end.
static int64_t from_end(int64_t bound, int64_t size, int64_t low, int64_t high)
{
    int64_t at = bound < 0 ? bound + size : bound;
    if (at < low)
        return low;
    return at > high ? high : at;
}

// The largest numbers mean "to the end", which is the front where the step is negative: so ONNX Runtime reads them.
bool tsr__slice_bounds(const struct shape_job *job, int axis, int64_t size, int64_t *start,
                       int64_t *end, int64_t *step)
{
    struct shape_job *shape_job = (struct shape_job *)job;
    int64_t entry = slice_entry(shape_job, axis, tsr__job_in(shape_job, 0).rank);
    *start = 0;
    *end = size;
    *step = 1;
    if (entry < 0)
        return entry == -1;
    struct expr a = slice_bound(shape_job, 1, "starts", entry),
                b = slice_bound(shape_job, 2, "ends", entry);
    struct expr s =
        tsr__job_has(shape_job, 4) ? element(tsr__job_values(shape_job, 4), entry) : expr_number(1);
    if (!expr_is_number(a) || !expr_is_number(b) || !expr_is_number(s) || s.number == 0 ||
        s.number == INT64_MIN)
        return false;
    *step = s.number;
    if (size == 0)
        return true;
    bool down = s.number < 0;
    *start = from_end(a.number, size, 0, down ? size - 1 : size);
    *end = from_end(b.number, size, down ? -1 : 0, size);
    if (down && (b.number == INT64_MAX || b.number == INT32_MAX))
        *end = -1;
    return true;
}

// The greater of an expression and 0, for what ends there instead of going below. The runtime would do the same:
// the last four of n rows are min(n, 4), all but the first are max(n - 1, 0).
static struct expr not_below_zero(struct exprs *exprs, struct expr expr)
{
    return tsr__expr_max(exprs, expr, expr_number(0));
}

// A bound in a dimension whose size is an expression: from the end where negative, clipped.
static struct expr clipped(struct exprs *exprs, struct expr at, struct expr size)
{
    if (expr_is_number(at) && at.number >= INT32_MAX)
        return size;
    if (expr_is_number(at) && at.number < 0) {
        if (at.number <= -INT32_MAX)
            return expr_number(0);
        return not_below_zero(exprs, tsr__expr_add(exprs, size, at));
    }
    if (!tsr__expr_natural(at))
        return (struct expr){0};
    return tsr__expr_min(exprs, at, size);
}

// Elements from a to b of a dimension of that size, as far as they exist.
static struct expr slice_run(struct exprs *exprs, struct expr a, struct expr b, struct expr size)
{
    bool to_end = expr_equal(clipped(exprs, b, size), size);
    if (to_end && expr_is_number(a) && a.number < 0 && a.number > -INT32_MAX)
        return tsr__expr_min(exprs, size, expr_number(-a.number));
    if (to_end && tsr__expr_natural(a))
        return not_below_zero(exprs, tsr__expr_sub(exprs, size, a));
    struct expr run = tsr__expr_sub(exprs, clipped(exprs, b, size), clipped(exprs, a, size));
    return not_below_zero(exprs, run);
}

static struct expr slice_size(struct shape_job *job, int axis, tsr_dim dim)
{
    int64_t start, end, step, entry;
    if (dim.value >= 0 && tsr__slice_bounds(job, axis, dim.value, &start, &end, &step)) {
        int64_t run = step > 0 ? end - start : start - end;
        int64_t by = step > 0 ? step : -step;
        return expr_number(run <= 0 ? 0 : (run + by - 1) / by);
    }
    entry = slice_entry(job, axis, tsr__job_in(job, 0).rank);
    if (entry == -1)
        return tsr__expr_of(job->exprs, dim);
    struct expr size = tsr__expr_of(job->exprs, dim);
    struct expr a = slice_bound(job, 1, "starts", entry), b = slice_bound(job, 2, "ends", entry);
    struct expr s = tsr__job_has(job, 4) ? element(tsr__job_values(job, 4), entry) : expr_number(1);
    if (entry < 0 || !size.known || !expr_is_number(s) || s.number < 1)
        return (struct expr){0};
    struct expr run = slice_run(job->exprs, a, b, size);
    if (s.number == 1)
        return run;
    run = tsr__expr_add(job->exprs, run, expr_number(s.number - 1));
    return tsr__expr_floor(job->exprs, run, expr_number(s.number));
}

void tsr__infer_slice(struct shape_job *job)
{
    int rank;
    tsr_dim *dims = copy_dims(job, 0, &rank);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++)
        dims[i] = tsr__expr_dim(job->exprs, slice_size(job, i, dims[i]));
    tsr__job_set(job, 0, rank, dims);
}

// ---- sizes from lists --------------------------------------------------------------------------

void tsr__infer_pad(struct shape_job *job)
{
    int64_t axes[VALUES_MAX];
    int rank;
    tsr_dim *dims = copy_dims(job, 0, &rank);
    const tsr_attr *old = tsr__job_attr(job, "paddings");
    struct known_value pads = list_of(job, 1, old ? "paddings" : "pads");
    int64_t n = tsr__job_has(job, 3) ? tsr__job_numbers(job, 3, axes, VALUES_MAX) : -2;
    if (!dims)
        return;
    if (n == -1) { // some are padded, nobody knows which
        for (int i = 0; i < rank; i++)
            dims[i] = DIM_UNKNOWN;
    }
    if (n == -2) {
        n = rank;
        for (int i = 0; i < (int)clamped(rank, 0, VALUES_MAX); i++)
            axes[i] = i;
    }
    int64_t n_read = clamped(n, 0, VALUES_MAX);
    for (int64_t i = 0; i < n_read; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0)
            return;
        struct expr size = tsr__expr_of(job->exprs, dims[axis]);
        bool fits = pads.elements && pads.n == 2 * n;
        struct expr more = fits ? tsr__expr_add(job->exprs, element(pads, i), element(pads, n + i))
                                : (struct expr){0};
        dims[axis] = tsr__expr_dim(job->exprs, tsr__expr_add(job->exprs, size, more));
    }
    tsr__job_set(job, 0, rank, dims);
}

// Two sizes of one broadcast dimension.
static struct expr stretched(struct exprs *exprs, struct expr a, struct expr b)
{
    if (expr_is(a, 1) || (expr_is_number(b) && b.number != 1))
        return b;
    return expr_is(b, 1) ? a : tsr__expr_broadcast(exprs, a, b);
}

// Both shapes are aligned from the right; what one lacks in front counts as 1.
void tsr__infer_expand(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0), of = tsr__job_in(job, 1);
    struct known_value want = tsr__job_values(job, 1);
    int64_t n = tsr__value_length(want, of);
    if (shape.rank < 0 || n < 0 || n > SHAPE_MAX_RANK)
        return;
    int rank = shape.rank > (int)n ? shape.rank : (int)n;
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++) {
        int a = i - (rank - shape.rank), b = i - (rank - (int)n);
        struct expr x = a < 0 ? expr_number(1) : tsr__expr_of(job->exprs, shape.dims[a]);
        struct expr y = b < 0 ? expr_number(1) : element(want, b);
        dims[i] = tsr__expr_dim(job->exprs, stretched(job->exprs, x, y));
    }
    tsr__job_set(job, 0, rank, dims);
}

void tsr__infer_tile(struct shape_job *job)
{
    int rank;
    tsr_dim *dims = copy_dims(job, 0, &rank);
    struct known_value times = tsr__job_values(job, 1);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++)
        dims[i] =
            tsr__expr_dim(job->exprs, tsr__expr_mul(job->exprs, tsr__expr_of(job->exprs, dims[i]),
                                                    element(times, i)));
    tsr__job_set(job, 0, rank, dims);
}

void tsr__infer_center_crop_pad(struct shape_job *job)
{
    const int64_t *axes;
    int rank;
    tsr_dim *dims = copy_dims(job, 0, &rank);
    struct known_value want = tsr__job_values(job, 1);
    size_t n = tsr__job_ints(job, "axes", &axes);
    if (!dims)
        return;
    int n_axes = (int)clamped(n ? (int)n : rank, 0, SHAPE_MAX_RANK);
    for (int i = 0; i < n_axes; i++) {
        int axis = n ? tsr__axis(axes[i], rank) : i;
        if (axis < 0)
            return;
        dims[axis] = tsr__expr_dim(job->exprs, element(want, i));
    }
    tsr__job_set(job, 0, rank, dims);
}

// Without axes, dimensions of 1 go, which must be known for all.
void tsr__infer_squeeze(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    bool gone[SHAPE_MAX_RANK] = {false};
    bool given = tsr__job_has(job, 1) || tsr__job_attr(job, "axes");
    struct known_value axes = list_of(job, 1, "axes");
    int rank = 0;
    if (shape.rank < 0 || (given && !axes.elements))
        return;
    for (int64_t i = 0; i < axes.n; i++) {
        int axis =
            expr_is_number(axes.elements[i]) ? tsr__axis(axes.elements[i].number, shape.rank) : -1;
        if (axis < 0)
            return;
        gone[axis] = true;
    }
    if (!given)
        for (int i = 0; i < shape.rank; i++) {
            if (shape.dims[i].value < 0)
                return;
            gone[i] = shape.dims[i].value == 1;
        }
    tsr_dim *dims = tsr__job_dims(job, shape.rank);
    if (!dims)
        return;
    for (int i = 0; i < shape.rank; i++)
        if (!gone[i])
            dims[rank++] = shape.dims[i];
    tsr__job_set(job, 0, rank, dims);
}
