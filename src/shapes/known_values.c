// SPDX-License-Identifier: Apache-2.0
// known_values.c - computes elements of small integer tensors that hold sizes: Shape -> Gather ->
// Concat -> Reshape.
//
// An element is a number or an expression of sizes; a tensor has a fixed shape and at most
// VALUES_MAX elements. Each function computes the elements of its node's outputs, after their
// shapes are known. Unsupported cases are unknown, never wrong.
//
// An exporter flattens x [n 3 224 224] to [n 150528] like this; on the right is what is known:
//
//   s = Shape(x)              {n, 3, 224, 224}
//   b = Gather(s, 0)          {n}
//   u = Unsqueeze(b, 0)       {n}, one dimension
//   t = Concat(u, {-1})       {n, -1}
//   y = Reshape(x, t)         [n 150528]: -1 is n*3*224*224 divided by n
//
// Without these numbers y would be [? ?], and no rule could find the dimension n in it.
#include "shapes/infer.h"

static const struct known_value nothing = {0};

// ---- elements -----------------------------------------------------------------------------------

// Returns an array for n elements, all unknown; NULL: too many, unknown number (negative), or out
// of memory.
static struct expr *new_elements(struct arena *arena, int64_t n)
{
    return n >= 0 && n <= VALUES_MAX ? ARENA_ARRAY(arena, struct expr, (size_t)n + 1) : NULL;
}

// Returns numbers as elements; unknown if there are too many.
static struct known_value of_ints(struct arena *arena, const int64_t *v, int64_t n)
{
    struct expr *expr = new_elements(arena, n);
    if (!expr)
        return nothing;
    for (int64_t i = 0; i < n; i++)
        expr[i] = expr_number(v[i]);
    return (struct known_value){expr, n};
}

// Sets the known elements of output i. Outputs that the node does not have are ignored.
static void set_elements(struct shape_job *job, int i, const struct expr *expr, int64_t n)
{
    if (i < job->n_out && expr)
        job->value[i] = (struct known_value){expr, n};
}

// Reads one element of a tensor, whose bytes may be unaligned.
static int64_t read_element(const char *p, tsr_dtype type)
{
    int64_t wide;
    int32_t narrow;
    if (type == TSR_BOOL)
        return *p != 0;
    if (type == TSR_INT64) {
        memcpy(&wide, p, sizeof(wide));
        return wide;
    }
    memcpy(&narrow, p, sizeof(narrow));
    return narrow;
}

// Returns the number of known elements. If none are known, returns the length of a vector; -1: not
// a vector of fixed length.
int64_t tsr__value_length(struct known_value value, struct shape shape)
{
    if (value.elements)
        return value.n;
    return shape.rank == 1 ? shape.dims[0].value : -1;
}

// Returns the elements of a small constant of integers or bool.
struct known_value tsr__value_of_tensor(struct arena *arena, const tsr_tensor *tensor)
{
    tsr_dtype type = tsr_tensor_dtype(tensor);
    size_t size, width = (size_t)tsr_dtype_bits(type) / 8;
    const void *bytes;
    if (type != TSR_INT64 && type != TSR_INT32 && type != TSR_BOOL)
        return nothing;
    int64_t n = tsr_tensor_elements(tensor), v[VALUES_MAX];
    if (n < 0 || n > VALUES_MAX || !tsr__tensor_peek(tensor, &bytes, &size) ||
        size != (size_t)n * width)
        return nothing;
    for (int64_t i = 0; i < n; i++)
        v[i] = read_element((const char *)bytes + (size_t)i * width, type);
    return of_ints(arena, v, n);
}

// Returns the number of elements of a fixed shape; -1: not fixed or too many.
static int64_t count_of(struct shape shape)
{
    int64_t n = 1;
    if (shape.rank < 0)
        return -1;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dims[i].value < 0 || !mul_ok(n, shape.dims[i].value, &n) || n > VALUES_MAX)
            return -1;
    return n;
}

// ---- sources -----------------------------------------------------------------------------------

void tsr__value_constant(struct shape_job *job)
{
    const tsr_tensor *tensor = tsr__job_constant(job);
    if (tensor)
        job->value[0] = tsr__value_of_tensor(job->arena, tensor);
}

// Returns attribute start or end of Shape, which counts from the end if it is negative: -1 of rank
// 4 is 3.
static int64_t bound_of(int64_t bound, int64_t rank)
{
    return clamped(from_front(bound, rank), 0, rank);
}

// Computes the elements of Shape: the sizes. [n 3 8] with end -1 gives {n, 3}.
void tsr__value_shape(struct shape_job *job)
{
    struct shape of = tsr__job_in(job, 0);
    if (of.rank < 0)
        return;
    int64_t start = bound_of(tsr__job_int(job, "start", 0), of.rank);
    int64_t end = bound_of(tsr__job_int(job, "end", of.rank), of.rank);
    int64_t n = int64_max(end - start, 0);
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++)
        expr[i] = tsr__expr_of(job->exprs, of.dims[start + i]);
    set_elements(job, 0, expr, n);
}

// Computes the elements of Size: the product of all sizes. [n 3 8] gives 24*n.
void tsr__value_size(struct shape_job *job)
{
    struct shape of = tsr__job_in(job, 0);
    if (of.rank < 0)
        return;
    struct expr *expr = new_elements(job->arena, 1);
    if (!expr)
        return;
    *expr = tsr__job_size(job, of, 0, of.rank);
    set_elements(job, 0, expr, 1);
}

// Computes the elements of ConstantOfShape: all elements are equal. Without `value` they are
// floats, which are not computed.
void tsr__value_constant_of_shape(struct shape_job *job)
{
    const tsr_tensor *tensor = tsr_attr_tensor(tsr__job_attr(job, "value"));
    if (!tensor)
        return;
    struct known_value fill = tsr__value_of_tensor(job->arena, tensor);
    if (!fill.elements || fill.n != 1)
        return;
    int64_t n = count_of(job->out[0]);
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++)
        expr[i] = fill.elements[0];
    set_elements(job, 0, expr, n);
}

// Computes the elements of Range: start, start + delta, start + 2 * delta, ... if their number is
// known.
void tsr__value_range(struct shape_job *job)
{
    struct known_value start = tsr__job_values(job, 0), delta = tsr__job_values(job, 2);
    int64_t n = count_of(job->out[0]);
    if (start.n != 1 || delta.n != 1)
        return;
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++)
        expr[i] = tsr__expr_add(job->exprs, start.elements[0],
                                tsr__expr_mul(job->exprs, expr_number(i), delta.elements[0]));
    set_elements(job, 0, expr, n);
}

// ---- moving elements ----------------------------------------------------------------------------

// Copies the elements in the same order: Identity, Reshape, Squeeze, Unsqueeze, Flatten.
void tsr__value_same(struct shape_job *job)
{
    job->value[0] = tsr__job_values(job, 0);
}

// Returns a bool as an element, the number 0 or 1.
static struct expr bool_element(bool known, bool value)
{
    return known ? expr_number(value) : EXPR_UNKNOWN;
}

// Converts an element between integer types. Sizes are assumed to fit into 32 bits, numbers are
// checked.
static struct expr cast_element(struct expr element, tsr_dtype from, tsr_dtype to)
{
    if (to == TSR_BOOL)
        return bool_element(expr_is_number(element), element.number != 0);
    bool wide = to == TSR_INT64 || from != TSR_INT64;
    if (!wide && !element.poly && element.number != (int32_t)element.number)
        return EXPR_UNKNOWN;
    return element;
}

void tsr__value_cast(struct shape_job *job)
{
    struct known_value value = tsr__job_values(job, 0);
    tsr_dtype from = tsr__job_in(job, 0).dtype, to = job->out[0].dtype;
    if (!value.elements || (to != TSR_INT64 && to != TSR_INT32 && to != TSR_BOOL))
        return;
    struct expr *expr = new_elements(job->arena, value.n);
    if (!expr)
        return;
    for (int64_t i = 0; i < value.n; i++)
        expr[i] = cast_element(value.elements[i], from, to);
    set_elements(job, 0, expr, value.n);
}

// Computes the elements of Concat: for each index of the dimensions before the axis, appends a
// block of each input.
void tsr__value_concat(struct shape_job *job)
{
    int64_t n = count_of(job->out[0]), at = 0;
    int axis = tsr__axis(tsr__job_int(job, "axis", 0), job->out[0].rank);
    if (axis < 0)
        return;
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    int64_t outer = 1;
    for (int d = 0; d < axis; d++)
        outer *= job->out[0].dims[d].value;
    for (int64_t o = 0; o < outer; o++)
        for (int i = 0; i < job->n_in; i++) {
            struct known_value value = tsr__job_values(job, i);
            // Unknown elements of an input stay unknown; an unknown number of them makes the result
            // unknown.
            int64_t count = count_of(tsr__job_in(job, i)), block = count / outer;
            if (count < 0 || at + block > n)
                return;
            for (int64_t k = 0; k < block; k++, at++)
                if (value.elements && value.n == count)
                    expr[at] = value.elements[o * block + k];
        }
    if (at == n)
        set_elements(job, 0, expr, n);
}

// A fixed shape as outer x size x inner around one axis.
struct around {
    int64_t outer, size, inner;
};

// Splits a shape at the axis: [2 3 4] at axis 1 gives outer 2, size 3, inner 4. False: a size is
// unknown, there are too many elements, or the axis is invalid.
static bool split_at(struct shape shape, int axis, struct around *around)
{
    *around = (struct around){1, 1, 1};
    if (count_of(shape) < 0 || axis < 0 || axis >= shape.rank)
        return false;
    for (int d = 0; d < axis; d++)
        around->outer *= shape.dims[d].value;
    around->size = shape.dims[axis].value;
    for (int d = axis + 1; d < shape.rank; d++)
        around->inner *= shape.dims[d].value;
    return true;
}

// Computes the elements of Gather. The data is [outer, size, inner] around the axis, so element (o,
// index, i) is at (o * size + index) * inner + i. Example: of sizes {n, 3, 224, 224}, index 1 gives
// 3, index -1 gives 224.
void tsr__value_gather(struct shape_job *job)
{
    struct known_value data = tsr__job_values(job, 0), at = tsr__job_values(job, 1);
    struct shape shape = tsr__job_in(job, 0);
    struct around around;
    if (!data.elements || !at.elements ||
        !split_at(shape, tsr__axis(tsr__job_int(job, "axis", 0), shape.rank), &around) ||
        data.n != count_of(shape))
        return;
    int64_t n = around.outer * at.n * around.inner;
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t o = 0; o < around.outer; o++)
        for (int64_t k = 0; k < at.n; k++) {
            struct expr x = at.elements[k];
            int64_t index = from_front(x.number, around.size);
            // If the index is an expression, it could select any element: the result is unknown.
            if (!expr_is_number(x) || index < 0 || index >= around.size)
                return;
            for (int64_t i = 0; i < around.inner; i++)
                expr[(o * at.n + k) * around.inner + i] =
                    data.elements[(o * around.size + index) * around.inner + i];
        }
    set_elements(job, 0, expr, n);
}

// Returns the distance between neighbours along the axis: in [2 3 4] that of axis 0 is 12.
static int64_t stride_of(struct shape shape, int axis)
{
    int64_t stride = 1;
    for (int d = axis + 1; d < shape.rank; d++)
        stride *= shape.dims[d].value;
    return stride;
}

// Selects elements of input 0: the output's element (i, j, ...) is at first + i * strides[0] + j *
// strides[1] + ... Both shapes have the same rank.
static void select_elements(struct shape_job *job, int64_t first, const int64_t *strides)
{
    struct known_value value = tsr__job_values(job, 0);
    struct shape out = job->out[0];
    int64_t n = count_of(out);
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first, left = i;
        for (int d = out.rank - 1; d >= 0; left /= out.dims[d--].value)
            at += left % out.dims[d].value * strides[d];
        if (at < 0 || at >= value.n) // the declared shape is wrong
            return;
        expr[i] = value.elements[at];
    }
    set_elements(job, 0, expr, n);
}

// True if all elements of input 0 are stored, and input and output have the same rank. In an empty
// matrix, the product of the other sizes may overflow.
static bool can_select(struct shape_job *job)
{
    struct known_value value = tsr__job_values(job, 0);
    struct shape shape = tsr__job_in(job, 0);
    return value.elements && value.n == count_of(shape) && (value.n > 0 || shape.rank == 1) &&
           shape.rank <= VALUES_MAX && shape.rank == job->out[0].rank;
}

// Computes the elements of Slice. PyTorch's pad slices the list of pads as a [4 2] matrix.
void tsr__value_slice(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    int64_t first = 0, strides[VALUES_MAX];
    if (!can_select(job))
        return;
    for (int d = 0; d < shape.rank; d++) {
        int64_t start, end, step, stride = stride_of(shape, d);
        if (!tsr__slice_bounds(job, d, shape.dims[d].value, &start, &end, &step))
            return;
        first += start * stride;
        strides[d] = step * stride;
    }
    select_elements(job, first, strides);
}

// Computes the elements of Transpose. Without `perm` the axes are reversed.
void tsr__value_transpose(struct shape_job *job)
{
    struct shape shape = tsr__job_in(job, 0);
    int64_t strides[VALUES_MAX];
    const int64_t *perm;
    if (!can_select(job))
        return;
    size_t n = tsr__job_ints(job, "perm", &perm);
    if (n && n != (size_t)shape.rank)
        return;
    for (int d = 0; d < shape.rank; d++) {
        int64_t axis = n ? perm[d] : shape.rank - 1 - d;
        if (axis < 0 || axis >= shape.rank)
            return;
        strides[d] = stride_of(shape, (int)axis);
    }
    select_elements(job, 0, strides);
}

// Splits a vector; the shapes of the outputs give the length of each part.
void tsr__value_split(struct shape_job *job)
{
    struct known_value value = tsr__job_values(job, 0);
    int64_t at = 0;
    if (!value.elements || tsr__job_in(job, 0).rank != 1)
        return;
    for (int i = 0; i < job->n_out; i++) {
        int64_t n = count_of(job->out[i]);
        if (n < 0 || at + n > value.n)
            return;
        set_elements(job, i, value.elements + at, n);
        at += n;
    }
}

// Returns the element of an input that is broadcast to element `index` of the output, counted row
// by row. Coordinates in dimensions where `from` has size 1 are ignored. Example: from [3 1], to [2
// 3 4], index 17 = (1, 1, 1): element 1.
static struct expr broadcast(const struct shape *from, const struct known_value *value,
                             const struct shape *to, int64_t index)
{
    int64_t at = 0, stride = 1;
    for (int d = to->rank - 1, k = from->rank - 1; d >= 0; d--, k--) {
        int64_t here = index % to->dims[d].value;
        index /= to->dims[d].value;
        if (k < 0)
            continue;
        if (from->dims[k].value != 1)
            at += here * stride;
        stride *= from->dims[k].value;
    }
    return element_of(*value, at);
}

// Computes the elements of Expand: elements are repeated along dimensions that are new or were 1.
void tsr__value_expand(struct shape_job *job)
{
    struct known_value value = tsr__job_values(job, 0);
    struct shape shape = tsr__job_in(job, 0);
    int64_t n = count_of(job->out[0]);
    if (!value.elements || count_of(shape) != value.n)
        return;
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++)
        expr[i] = broadcast(&shape, &value, &job->out[0], i);
    set_elements(job, 0, expr, n);
}

// ---- arithmetic, element by element ------------------------------------------------------------

typedef struct expr (*binary_fn)(struct exprs *exprs, struct expr a, struct expr b);

// Applies the operation to every pair of elements after broadcasting.
static void each_pair(struct shape_job *job, binary_fn f)
{
    struct known_value a = tsr__job_values(job, 0), b = tsr__job_values(job, 1);
    if (!a.elements || !b.elements)
        return;
    struct shape x = tsr__job_in(job, 0), y = tsr__job_in(job, 1);
    int64_t n = count_of(job->out[0]);
    if (count_of(x) != a.n || count_of(y) != b.n)
        return;
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++)
        expr[i] =
            f(job->exprs, broadcast(&x, &a, &job->out[0], i), broadcast(&y, &b, &job->out[0], i));
    set_elements(job, 0, expr, n);
}

// True if a < b for all sizes of the symbols: -1 < n, because n is at least 0.
static bool always_less(struct exprs *exprs, struct expr a, struct expr b)
{
    struct expr gap = tsr__expr_sub(exprs, b, a);
    return tsr__expr_natural(tsr__expr_sub(exprs, gap, expr_number(1)));
}

// Compares two elements. n and n + 1 are never equal, nor n and -1. For n and m the result is
// unknown, because they may be equal.
static struct expr equal(struct exprs *exprs, struct expr a, struct expr b)
{
    bool unlike = always_less(exprs, a, b) || always_less(exprs, b, a);
    return bool_element(unlike || expr_equal(a, b), !unlike);
}

// Compares for all sizes of the symbols: n < n + 1 is always true, n < 0 never.
static struct expr less(struct exprs *exprs, struct expr a, struct expr b)
{
    bool yes = always_less(exprs, a, b);
    return bool_element(yes || tsr__expr_natural(tsr__expr_sub(exprs, a, b)), yes);
}

static struct expr greater(struct exprs *exprs, struct expr a, struct expr b)
{
    return less(exprs, b, a);
}

// Computes a <= b as the opposite of b < a.
static struct expr less_or_equal(struct exprs *exprs, struct expr a, struct expr b)
{
    struct expr r = less(exprs, b, a);
    return bool_element(r.known, r.number == 0);
}

static struct expr greater_or_equal(struct exprs *exprs, struct expr a, struct expr b)
{
    return less_or_equal(exprs, b, a);
}

// Computes And. It is false if one operand is false, even if the other is unknown.
static struct expr both(struct exprs *exprs, struct expr a, struct expr b)
{
    (void)exprs;
    bool no = expr_is(a, 0) || expr_is(b, 0);
    return bool_element(no || (expr_is_number(a) && expr_is_number(b)), !no);
}

// Computes Or. It is true if one operand is true.
static struct expr either(struct exprs *exprs, struct expr a, struct expr b)
{
    (void)exprs;
    bool yes = expr_is(a, 1) || expr_is(b, 1);
    return bool_element(yes || (expr_is_number(a) && expr_is_number(b)), yes);
}

#define PAIRWISE(name, f)                                                                          \
    void tsr__value_##name(struct shape_job *j)                                                    \
    {                                                                                              \
        each_pair(j, f);                                                                           \
    }
PAIRWISE(add, tsr__expr_add)
PAIRWISE(sub, tsr__expr_sub)
PAIRWISE(mul, tsr__expr_mul)
PAIRWISE(div, tsr__expr_div)
PAIRWISE(equal, equal)
PAIRWISE(less, less)
PAIRWISE(greater, greater)
PAIRWISE(less_or_equal, less_or_equal)
PAIRWISE(greater_or_equal, greater_or_equal)
PAIRWISE(and, both)
PAIRWISE(or, either)

// Computes the elements of Mod. With the attribute fmod, which is for floats, the result stays
// unknown.
void tsr__value_mod(struct shape_job *job)
{
    if (!tsr__job_int(job, "fmod", 0))
        each_pair(job, tsr__expr_mod);
}

// Computes the elements of Max of one or two inputs; more are not supported.
void tsr__value_max(struct shape_job *job)
{
    if (job->n_in == 2)
        each_pair(job, tsr__expr_max);
    else if (job->n_in == 1)
        tsr__value_same(job);
}

void tsr__value_min(struct shape_job *job)
{
    if (job->n_in == 2)
        each_pair(job, tsr__expr_min);
    else if (job->n_in == 1)
        tsr__value_same(job);
}

// Applies the operation to every element.
static void each(struct shape_job *job, struct expr (*f)(struct exprs *exprs, struct expr a))
{
    struct known_value value = tsr__job_values(job, 0);
    if (!value.elements)
        return;
    struct expr *expr = new_elements(job->arena, value.n);
    if (!expr)
        return;
    for (int64_t i = 0; i < value.n; i++)
        expr[i] = f(job->exprs, value.elements[i]);
    set_elements(job, 0, expr, value.n);
}

static struct expr negative(struct exprs *exprs, struct expr a)
{
    return tsr__expr_sub(exprs, expr_number(0), a);
}

// Returns the absolute value; unknown if the sign of the expression is unknown.
static struct expr absolute(struct exprs *exprs, struct expr a)
{
    if (tsr__expr_natural(a))
        return a;
    return expr_is_number(a) ? negative(exprs, a) : EXPR_UNKNOWN;
}

static struct expr not(struct exprs * exprs, struct expr a)
{
    (void)exprs;
    return bool_element(expr_is_number(a), a.number == 0);
}

void tsr__value_neg(struct shape_job *job)
{
    each(job, negative);
}
void tsr__value_abs(struct shape_job *job)
{
    each(job, absolute);
}
void tsr__value_not(struct shape_job *job)
{
    each(job, not );
}

// Computes the elements of Where. An unknown condition gives an unknown element, unless both sides
// are the same expression.
void tsr__value_where(struct shape_job *job)
{
    struct known_value v[3];
    struct shape s[3];
    int64_t n = count_of(job->out[0]);
    for (int i = 0; i < 3; i++) {
        v[i] = tsr__job_values(job, i);
        s[i] = tsr__job_in(job, i);
        if (!v[i].elements || count_of(s[i]) != v[i].n)
            return;
    }
    struct expr *expr = new_elements(job->arena, n);
    if (!expr)
        return;
    for (int64_t i = 0; i < n; i++) {
        struct expr yes = broadcast(&s[0], &v[0], &job->out[0], i);
        struct expr a = broadcast(&s[1], &v[1], &job->out[0], i);
        struct expr b = broadcast(&s[2], &v[2], &job->out[0], i);
        if (expr_equal(a, b) || (expr_is_number(yes) && yes.number))
            expr[i] = a;
        else if (expr_is_number(yes))
            expr[i] = b;
    }
    set_elements(job, 0, expr, n);
}

// Combines all elements of a vector or scalar. There is only one axis, so axes and keepdims do not
// matter.
static void fold(struct shape_job *job, binary_fn f, int64_t start)
{
    struct known_value value = tsr__job_values(job, 0);
    struct shape shape = tsr__job_in(job, 0);
    if (!value.elements || shape.rank > 1 || count_of(job->out[0]) != 1)
        return;
    struct expr *expr = new_elements(job->arena, 1);
    if (!expr)
        return;
    *expr = expr_number(start);
    for (int64_t i = 0; i < value.n; i++)
        *expr = f(job->exprs, *expr, value.elements[i]);
    set_elements(job, 0, expr, 1);
}

void tsr__value_reduce_prod(struct shape_job *job)
{
    fold(job, tsr__expr_mul, 1);
}
void tsr__value_reduce_sum(struct shape_job *job)
{
    fold(job, tsr__expr_add, 0);
}
