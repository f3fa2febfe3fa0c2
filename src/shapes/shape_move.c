// SPDX-License-Identifier: Apache-2.0
// shape_move.c - shapes of operators that move data, with sizes from attributes and small constant
// inputs: Concat, Split, Slice, Pad, Expand, Tile, ...
//
//   Concat of [n 4] and [n 8] along 1     [n 12]
//   Split of [7] with num_outputs 3       3, 3 and 1: parts of one size, the last one smaller
//   Slice 2:8:2 of 10 elements            3
//   Slice 1: of n elements                n - 1, not below zero
//   Expand of [6] to {4, 1}               [4 6]
#include "shapes/infer.h"

// Returns a copy of the dimensions of input i; NULL: its rank is unknown or too large, or out of
// memory.
static tsr_dim *copy_dims(struct shape_job *job, int i, int *rank)
{
    struct shape shape = tsr__job_in(job, i);
    tsr_dim *dims = tsr__job_dims(job, shape.rank);
    if (dims && shape.rank)
        memcpy(dims, shape.dims, (size_t)shape.rank * sizeof(*dims));
    *rank = shape.rank;
    return dims;
}

// Returns integers of input i as expressions, or of an attribute as numbers. The input has
// precedence: later opsets moved such lists to inputs.
static struct known_value list_of(struct shape_job *job, int i, const char *name)
{
    const int64_t *ints;
    if (tsr__job_has(job, i))
        return tsr__job_values(job, i);
    size_t n = tsr__job_ints(job, name, &ints);
    if (!n || n > 2 * VALUES_MAX)
        return VALUE_UNKNOWN;
    struct expr *expr = ARENA_ARRAY(job->arena, struct expr, n);
    if (!expr)
        return VALUE_UNKNOWN;
    for (size_t k = 0; k < n; k++)
        expr[k] = expr_number(ints[k]);
    return (struct known_value){expr, (int64_t)n};
}

// Infers the shape of Concat. Dimensions other than the axis are taken from any input that knows
// them.
void tsr__infer_concat(struct shape_job *job)
{
    tsr_dim *dims = NULL;
    struct expr sum = expr_number(0);
    int rank = -1, axis = -1;
    // An input of unknown rank makes the sum unknown, but other inputs give the remaining
    // dimensions.
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
        // A number has precedence over a symbol, and a symbol over an unknown size.
        for (int d = 0; d < rank; d++)
            if (dims[d].value < 0 && (shape.dims[d].value >= 0 || !dim_known(dims[d])))
                dims[d] = shape.dims[d];
    }
    if (!dims || axis < 0)
        return;
    dims[axis] = tsr__expr_dim(job->exprs, sum);
    tsr__job_set(job, 0, rank, dims);
}

// Returns the size of part i. With num_outputs, all parts have one size and the last may be
// smaller; otherwise they are equal. If the number of outputs does not divide the size, the model
// is invalid and the result unknown.
static struct expr split_size(struct shape_job *job, struct expr size, int i)
{
    int64_t pieces = tsr__job_int(job, "num_outputs", 0);
    if (pieces <= 0)
        return tsr__expr_exact(job->exprs, size, expr_number(job->n_out));
    if (!expr_is_number(size))
        return tsr__expr_exact(job->exprs, size, expr_number(pieces));
    int64_t piece = size.number / pieces + (size.number % pieces > 0),
            left = size.number - i * piece;
    return expr_number(clamped(left, 0, piece));
}

// Infers the shape of Split. Sizes come from the attribute or the input; by default the parts are
// equal.
void tsr__infer_split(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    int axis = tsr__axis(tsr__job_int(job, "axis", 0), shape.rank);
    struct known_value sizes = list_of(job, 1, "split");
    // Sizes that are given but unknown leave the parts unknown.
    bool sized = tsr__job_has(job, 1) || sizes.elements;
    if (shape.rank < 0 || axis < 0)
        return;
    for (int i = 0; i < job->n_out; i++) {
        struct expr size = element_of(sizes, i);
        if (!sized)
            size = split_size(job, tsr__expr_of(job->exprs, shape.dims[axis]), i);
        tsr__job_like(job, i, 0);
        tsr__job_set_dim(job, i, axis, tsr__expr_dim(job->exprs, size));
    }
}

// ---- Slice -------------------------------------------------------------------------------------

#define NOT_SLICED    (-1)
#define ENTRY_UNKNOWN (-2)

// Returns the number of starts of a Slice; -1: not known.
static int64_t starts_of(const struct shape_job *job)
{
    const int64_t *starts;
    struct shape of = tsr__job_in(job, 1);
    if (!tsr__job_has(job, 1))
        return (int64_t)tsr__job_ints(job, "starts", &starts);
    return of.rank == 1 ? of.dims[0].value : -1;
}

// Returns the index of an axis in the lists of a Slice, NOT_SLICED or ENTRY_UNKNOWN. Without axes,
// there is one entry for each of the first dimensions.
static int64_t slice_entry(const struct shape_job *job, int axis, int rank)
{
    int64_t axes[VALUES_MAX], n;
    const int64_t *list = axes;
    if (tsr__job_has(job, 3))
        n = tsr__job_numbers(job, 3, axes, VALUES_MAX);
    else
        n = (int64_t)tsr__job_ints(job, "axes", &list);
    if (!n && !tsr__job_has(job, 3)) {
        n = starts_of(job);
        if (axis < n)
            return axis;
    } else {
        for (int64_t i = 0; i < n; i++)
            if (tsr__axis(list[i], rank) == axis)
                return i;
    }
    return n < 0 ? ENTRY_UNKNOWN : NOT_SLICED;
}

// Returns a bound of a Slice. An input may hold expressions; an attribute holds numbers.
static struct expr slice_bound(struct shape_job *job, int input, const char *name, int64_t entry)
{
    const int64_t *ints;
    if (tsr__job_has(job, input))
        return element_of(tsr__job_values(job, input), entry);
    size_t n = tsr__job_ints(job, name, &ints);
    return (size_t)entry >= n ? EXPR_UNKNOWN : expr_number(ints[entry]);
}

// Returns the step of that entry, by default 1.
static struct expr slice_step(struct shape_job *job, int64_t entry)
{
    return !tsr__job_has(job, 4) ? expr_number(1) : element_of(tsr__job_values(job, 4), entry);
}

// True if the end is one of the largest integers, which mean "to the end". With a negative step
// this is the front, as in ONNX Runtime.
static bool means_front(int64_t end)
{
    return end == INT64_MAX || end == INT32_MAX;
}

// Reads the bounds of an axis. False: the axes, a bound or the step is unknown, or the step is 0.
bool tsr__slice_bounds(const struct shape_job *job, int axis, int64_t size, int64_t *start,
                       int64_t *end, int64_t *step)
{
    struct shape_job *shape_job = (struct shape_job *)job;
    int64_t entry = slice_entry(shape_job, axis, tsr__job_in(shape_job, 0).rank);
    // An axis that is not sliced has its full range.
    *start = 0;
    *end = size;
    *step = 1;
    if (entry < 0)
        return entry == NOT_SLICED;
    struct expr a = slice_bound(shape_job, 1, "starts", entry),
                b = slice_bound(shape_job, 2, "ends", entry);
    struct expr s = slice_step(shape_job, entry);
    if (!expr_is_number(a) || !expr_is_number(b) || !expr_is_number(s) || s.number == 0)
        return false;
    if (size == 0)
        return true;
    // A step longer than the axis is shortened: it leaves the axis after the first element anyway,
    // and sums with it could overflow.
    *step = clamped(s.number, -size, size);
    bool down =
        s.number < 0; // then start is at most the last element, and the end may be before the first
    *start = clamped(from_front(a.number, size), 0, size - down);
    *end = clamped(from_front(b.number, size), -(int64_t)down, size);
    if (down && means_front(b.number))
        *end = -1;
    return true;
}

// Returns the maximum of an expression and 0: all but the first of n rows are max(n - 1, 0).
static struct expr not_below_zero(struct exprs *exprs, struct expr expr)
{
    return tsr__expr_max(exprs, expr, expr_number(0));
}

// Returns a bound of a Slice in a dimension of symbolic size. A negative bound counts from the end;
// the result is clipped to the dimension.
static struct expr clipped(struct exprs *exprs, struct expr at, struct expr size)
{
    if (expr_is_number(at) && at.number >= INT32_MAX)
        return size;
    if (expr_is_number(at) && at.number < 0) {
        if (at.number <= -INT32_MAX)
            return expr_number(0);
        return not_below_zero(exprs, tsr__expr_add(exprs, size, at));
    }
    return tsr__expr_natural(at) ? tsr__expr_min(exprs, at, size) : (struct expr){0};
}

// Returns the number of existing elements from a to b. From -k to the end there are min(size, k);
// from a >= 0 to the end there are max(size - a, 0); otherwise it is the difference of both bounds.
static struct expr slice_length(struct exprs *exprs, struct expr a, struct expr b, struct expr size)
{
    bool to_end = expr_equal(clipped(exprs, b, size), size);
    if (to_end && expr_is_number(a) && a.number < 0 && a.number > -INT32_MAX)
        return tsr__expr_min(exprs, size, expr_number(-a.number));
    if (to_end && tsr__expr_natural(a))
        return not_below_zero(exprs, tsr__expr_sub(exprs, size, a));
    struct expr run = tsr__expr_sub(exprs, clipped(exprs, b, size), clipped(exprs, a, size));
    return not_below_zero(exprs, run);
}

// Returns the number of elements: 2:8 by 2 are 3, 8:2 by -3 are 2.
static int64_t steps_between(int64_t start, int64_t end, int64_t step)
{
    int64_t run = end - start, by = step;
    if (step < 0) {
        run = start - end;
        by = -step;
    }
    return run <= 0 ? 0 : (run + by - 1) / by;
}

// Returns the number of elements from a down to b, without b: all up to a, minus all up to b.
// Examples for n rows: from -1 down to the front: n; from 3: min(n, 4); from -1 down to 1: max(n -
// 2, 0).
static struct expr slice_length_down(struct exprs *exprs, struct expr a, struct expr b,
                                     struct expr size)
{
    bool read_alike = b.number < INT32_MAX || means_front(b.number);
    if (!expr_is_number(a) || !expr_is_number(b) || !read_alike)
        return EXPR_UNKNOWN;
    struct expr up_to_a = size, up_to_b = expr_number(0);
    if (a.number < -1)
        up_to_a = tsr__expr_add(exprs, clipped(exprs, a, size), expr_number(1));
    else if (a.number >= 0 && a.number < INT32_MAX)
        up_to_a = expr_number(a.number + 1);
    if (b.number < 0 && b.number > -INT32_MAX)
        up_to_b = not_below_zero(exprs, tsr__expr_add(exprs, size, expr_number(b.number + 1)));
    else if (b.number >= 0 && b.number < INT32_MAX)
        up_to_b = expr_number(b.number + 1);
    up_to_a = tsr__expr_min(exprs, up_to_a, size);
    return not_below_zero(exprs, tsr__expr_sub(exprs, up_to_a, up_to_b));
}

// Returns the size of a sliced dimension. A known size is sliced exactly; an expression gives
// another expression.
static struct expr slice_size(struct shape_job *job, int axis, tsr_dim dim)
{
    int64_t start, end, step;
    if (dim.value >= 0 && tsr__slice_bounds(job, axis, dim.value, &start, &end, &step))
        return expr_number(steps_between(start, end, step));
    int64_t entry = slice_entry(job, axis, tsr__job_in(job, 0).rank);
    struct expr size = tsr__expr_of(job->exprs, dim);
    if (entry == NOT_SLICED)
        return size;
    if (entry < 0 || !size.known)
        return EXPR_UNKNOWN;
    struct expr a = slice_bound(job, 1, "starts", entry), b = slice_bound(job, 2, "ends", entry);
    struct expr s = slice_step(job, entry);
    if (!expr_is_number(s) || s.number == 0 || s.number <= -INT32_MAX || s.number >= INT32_MAX)
        return EXPR_UNKNOWN;
    struct expr run = slice_length(job->exprs, a, b, size);
    if (s.number < 0)
        run = slice_length_down(job->exprs, a, b, size);
    int64_t by = int64_max(s.number, -s.number);
    if (by == 1)
        return run;
    run = tsr__expr_add(job->exprs, run, expr_number(by - 1));
    return tsr__expr_floor(job->exprs, run, expr_number(by));
}

// Infers the shape of Slice. Dimensions that are not sliced keep their size.
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

// Reads the padded axes from input 3; by default all. Returns their number; -1: unknown, or more
// than VALUES_MAX.
static int64_t padded_axes(struct shape_job *job, int rank, int64_t axes[VALUES_MAX])
{
    if (tsr__job_has(job, 3))
        return tsr__job_numbers(job, 3, axes, VALUES_MAX);
    if (rank > VALUES_MAX)
        return -1;
    for (int i = 0; i < rank; i++)
        axes[i] = i;
    return rank;
}

// Infers the shape of Pad. The list has the pads before each padded axis, then those after each.
// Example: [2 n] with pads 0 1 0 3 is [2 n+4].
void tsr__infer_pad(struct shape_job *job)
{
    int64_t axes[VALUES_MAX];
    int rank;
    tsr_dim *dims = copy_dims(job, 0, &rank);
    const char *name = tsr__job_attr(job, "paddings") ? "paddings" : "pads"; // in old opsets
    struct known_value pads = list_of(job, 1, name);
    int64_t n = padded_axes(job, rank, axes);
    if (!dims)
        return;
    if (n < 0)
        for (int i = 0; i < rank; i++)
            dims[i] = DIM_UNKNOWN;
    for (int64_t i = 0; i < n; i++) {
        int axis = tsr__axis(axes[i], rank);
        if (axis < 0)
            return;
        struct expr size = tsr__expr_of(job->exprs, dims[axis]);
        struct expr more = EXPR_UNKNOWN;
        // Negative pads crop.
        if (pads.elements && pads.n == 2 * n)
            more = tsr__expr_add(job->exprs, element_of(pads, i), element_of(pads, n + i));
        dims[axis] = tsr__expr_dim(job->exprs, tsr__expr_add(job->exprs, size, more));
    }
    tsr__job_set(job, 0, rank, dims);
}

// Merges two sizes of one broadcast dimension. If one is a number other than 1, the other is equal
// or 1.
static struct expr stretched(struct exprs *exprs, struct expr a, struct expr b)
{
    if (expr_is(a, 1) || (expr_is_number(b) && b.number != 1))
        return b;
    return expr_is(b, 1) ? a : tsr__expr_broadcast(exprs, a, b);
}

// Infers the shape of Expand. Both shapes are aligned from the right; missing dimensions are
// treated as 1.
void tsr__infer_expand(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0), of = tsr__job_in(job, 1);
    struct known_value want = tsr__job_values(job, 1);
    int64_t n = tsr__value_length(want, of);
    if (shape.rank < 0 || n < 0 || n > SHAPE_MAX_RANK)
        return;
    int rank = (int)int64_max(shape.rank, n);
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return;
    for (int i = 0; i < rank; i++) {
        int a = i - (rank - shape.rank), b = i - (rank - (int)n);
        struct expr x = expr_number(1), y = expr_number(1);
        if (a >= 0)
            x = tsr__expr_of(job->exprs, shape.dims[a]);
        if (b >= 0)
            y = element_of(want, b);
        dims[i] = tsr__expr_dim(job->exprs, stretched(job->exprs, x, y));
    }
    tsr__job_set(job, 0, rank, dims);
}

// Infers the shape of Tile: [4 n] with repeats 1 3 is [4 3*n].
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
                                                    element_of(times, i)));
    tsr__job_set(job, 0, rank, dims);
}
