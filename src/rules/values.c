// SPDX-License-Identifier: Apache-2.0
// values.c - follows small integer tensors that hold sizes: Shape -> Gather -> Concat -> Reshape.
//
// An element is a number or an expression of sizes; a tensor has a fixed shape and at most
// VALUES_MAX elements. Each function gives the elements of its node's outputs; it runs after their
// shapes were found. What cannot be followed is not known, never wrong.
#include "rules/internal.h"

static const struct known_value nothing = {0};

// ---- making ------------------------------------------------------------------------------------

static struct expr *new_elements(struct arena *a, int64_t n)
{
    return n >= 0 && n <= VALUES_MAX ? ARENA_ARRAY(a, struct expr, (size_t)n + 1) : NULL;
}

static struct known_value of_ints(struct arena *a, const int64_t *v, int64_t n)
{
    struct expr *e = new_elements(a, n);
    for (int64_t i = 0; e && i < n; i++)
        e[i] = expr_number(v[i]);
    return e ? (struct known_value){e, n} : nothing;
}

static void give(struct shape_job *j, int i, const struct expr *e, int64_t n)
{
    if (i < j->n_out && e)
        j->value[i] = (struct known_value){e, n};
}

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

struct known_value tsr__value_of_tensor(struct arena *a, const tsr_tensor *t)
{
    tsr_dtype type = tsr_tensor_dtype(t);
    size_t size, width = type == TSR_INT64 ? 8 : type == TSR_INT32 ? 4 : 1;
    const void *bytes;
    if (type != TSR_INT64 && type != TSR_INT32 && type != TSR_BOOL)
        return nothing;
    int64_t n = tsr_tensor_elements(t), v[VALUES_MAX];
    if (n < 0 || n > VALUES_MAX || tsr_tensor_data(t, &bytes, &size) != TSR_OK ||
        size != (size_t)n * width)
        return nothing;
    for (int64_t i = 0; i < n; i++)
        v[i] = read_element((const char *)bytes + (size_t)i * width, type);
    return of_ints(a, v, n);
}

// Elements of a fixed shape; -1: not fixed or too many.
static int64_t count_of(struct shape s)
{
    int64_t n = 1;
    if (s.rank < 0)
        return -1;
    for (int i = 0; i < s.rank; i++)
        if (s.dims[i].value < 0 || !mul_ok(n, s.dims[i].value, &n) || n > VALUES_MAX)
            return -1;
    return n;
}

// ---- sources -----------------------------------------------------------------------------------

void tsr__value_constant(struct shape_job *j)
{
    const tsr_tensor *t = tsr_attr_tensor(tsr__job_attr(j, "value"));
    const tsr_attr *one = tsr__job_attr(j, "value_int");
    const int64_t *ints;
    if (t) {
        j->value[0] = tsr__value_of_tensor(j->arena, t);
    } else if (one) {
        int64_t v = tsr_attr_int(one, 0);
        j->value[0] = of_ints(j->arena, &v, 1);
    } else {
        size_t n = tsr__job_ints(j, "value_ints", &ints);
        if (n && n <= VALUES_MAX)
            j->value[0] = of_ints(j->arena, ints, (int64_t)n);
    }
}

static int64_t clamp(int64_t v, int64_t rank)
{
    v = v < 0 ? v + rank : v;
    return v < 0 ? 0 : v > rank ? rank : v;
}

void tsr__value_shape(struct shape_job *j)
{
    struct shape of = tsr__job_in(j, 0);
    if (of.rank < 0)
        return;
    int64_t start = clamp(tsr__job_int(j, "start", 0), of.rank);
    int64_t end = clamp(tsr__job_int(j, "end", of.rank), of.rank);
    struct expr *e = new_elements(j->arena, end > start ? end - start : 0);
    for (int64_t i = start; e && i < end; i++)
        e[i - start] = tsr__expr_of(j->x, of.dims[i]);
    give(j, 0, e, end > start ? end - start : 0);
}

void tsr__value_size(struct shape_job *j)
{
    struct shape of = tsr__job_in(j, 0);
    struct expr *e = of.rank >= 0 ? new_elements(j->arena, 1) : NULL;
    if (e)
        *e = tsr__job_size(j, of, 0, of.rank);
    give(j, 0, e, 1);
}

void tsr__value_constant_of_shape(struct shape_job *j)
{
    const tsr_tensor *t = tsr_attr_tensor(tsr__job_attr(j, "value"));
    struct known_value fill = t ? tsr__value_of_tensor(j->arena, t) : nothing;
    int64_t n = count_of(j->out[0]);
    struct expr *e = fill.elements && fill.n == 1 && n >= 0 ? new_elements(j->arena, n) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[i] = fill.elements[0];
    give(j, 0, e, n);
}

void tsr__value_range(struct shape_job *j)
{
    struct known_value start = tsr__job_values(j, 0), delta = tsr__job_values(j, 2);
    int64_t n = count_of(j->out[0]);
    struct expr *e = start.n == 1 && delta.n == 1 && n >= 0 ? new_elements(j->arena, n) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[i] = tsr__expr_add(j->x, start.elements[0],
                             tsr__expr_mul(j->x, expr_number(i), delta.elements[0]));
    give(j, 0, e, n);
}

// ---- moving ------------------------------------------------------------------------------------

// The same elements in the same order: Identity, Reshape, Squeeze, Unsqueeze, Flatten.
void tsr__value_same(struct shape_job *j)
{
    j->value[0] = tsr__job_values(j, 0);
}

void tsr__value_cast(struct shape_job *j)
{
    struct known_value v = tsr__job_values(j, 0);
    tsr_dtype from = tsr__job_in(j, 0).dtype, to = j->out[0].dtype;
    bool wide = to == TSR_INT64 || (to == TSR_INT32 && from != TSR_INT64);
    struct expr *e = v.elements ? new_elements(j->arena, v.n) : NULL;
    if (!e || (to != TSR_INT64 && to != TSR_INT32 && to != TSR_BOOL))
        return;
    for (int64_t i = 0; i < v.n; i++) {
        struct expr x = v.elements[i];
        bool fits = wide || (to == TSR_INT32 && (x.poly || x.number == (int32_t)x.number));
        if (to == TSR_BOOL)
            x = expr_is_number(x) ? expr_number(x.number != 0) : (struct expr){0};
        e[i] = fits || to == TSR_BOOL ? x : (struct expr){0};
    }
    give(j, 0, e, v.n);
}

// Blocks of `inner` elements along the axis, one input after the other, for each outer index.
void tsr__value_concat(struct shape_job *j)
{
    int64_t n = count_of(j->out[0]), at = 0;
    int axis = tsr__axis(tsr__job_int(j, "axis", 0), j->out[0].rank);
    struct expr *e = n >= 0 && axis >= 0 ? new_elements(j->arena, n) : NULL;
    if (!e)
        return;
    int64_t outer = 1;
    for (int d = 0; d < axis; d++)
        outer *= j->out[0].dims[d].value;
    for (int64_t o = 0; o < outer; o++)
        for (int i = 0; i < j->n_in; i++) {
            struct known_value v = tsr__job_values(j, i);
            int64_t count = count_of(tsr__job_in(j, i)), block = outer ? count / outer : 0;
            if (count < 0 || at + block > n)
                return;
            for (int64_t k = 0; k < block; k++, at++)
                if (v.elements && v.n == count)
                    e[at] = v.elements[o * block + k];
        }
    if (at == n)
        give(j, 0, e, n);
}

// outer x size x inner elements around one axis of a fixed shape.
struct around {
    int64_t outer, size, inner;
};

static bool split_at(struct shape s, int axis, struct around *a)
{
    *a = (struct around){1, 1, 1};
    if (count_of(s) < 0 || axis < 0 || axis >= s.rank)
        return false;
    for (int d = 0; d < s.rank; d++)
        *(d < axis ? &a->outer : d == axis ? &a->size : &a->inner) *= s.dims[d].value;
    return true;
}

void tsr__value_gather(struct shape_job *j)
{
    struct known_value data = tsr__job_values(j, 0), at = tsr__job_values(j, 1);
    struct shape s = tsr__job_in(j, 0);
    struct around a;
    if (!data.elements || !at.elements ||
        !split_at(s, tsr__axis(tsr__job_int(j, "axis", 0), s.rank), &a) || data.n != count_of(s))
        return;
    int64_t n = a.outer * at.n * a.inner;
    struct expr *e = n <= VALUES_MAX ? new_elements(j->arena, n) : NULL;
    for (int64_t o = 0; e && o < a.outer; o++)
        for (int64_t k = 0; k < at.n; k++) {
            struct expr x = at.elements[k];
            int64_t index = x.number < 0 ? x.number + a.size : x.number;
            if (!expr_is_number(x) || index < 0 || index >= a.size)
                return;
            for (int64_t i = 0; i < a.inner; i++)
                e[(o * at.n + k) * a.inner + i] = data.elements[(o * a.size + index) * a.inner + i];
        }
    give(j, 0, e, n);
}

// One axis of a vector, which is what sizes are sliced from.
void tsr__value_slice(struct shape_job *j)
{
    struct known_value v = tsr__job_values(j, 0);
    struct shape s = tsr__job_in(j, 0);
    int64_t start, end, step = 1, n = 0;
    if (!v.elements || s.rank != 1 || !tsr__slice_bounds(j, 0, v.n, &start, &end, &step))
        return;
    struct expr *e = new_elements(j->arena, v.n);
    for (int64_t i = start; e && (step > 0 ? i < end : i > end) && n < v.n; i += step)
        e[n++] = v.elements[i];
    give(j, 0, e, n);
}

void tsr__value_split(struct shape_job *j)
{
    struct known_value v = tsr__job_values(j, 0);
    int64_t at = 0;
    if (!v.elements || tsr__job_in(j, 0).rank != 1)
        return;
    for (int i = 0; i < j->n_out; i++) {
        int64_t n = count_of(j->out[i]);
        if (n < 0 || at + n > v.n)
            return;
        give(j, i, v.elements + at, n);
        at += n;
    }
}

// Element of an input that is broadcast to the output's shape.
static struct expr broadcast(const struct shape *from, const struct known_value *v,
                             const struct shape *to, int64_t index)
{
    int64_t at = 0, stride = 1;
    for (int d = to->rank - 1, k = from->rank - 1; d >= 0; d--, k--) {
        int64_t here = index % to->dims[d].value;
        index /= to->dims[d].value;
        if (k < 0)
            continue;
        at += from->dims[k].value == 1 ? 0 : here * stride;
        stride *= from->dims[k].value;
    }
    return at < v->n ? v->elements[at] : (struct expr){0};
}

void tsr__value_expand(struct shape_job *j)
{
    struct known_value v = tsr__job_values(j, 0);
    struct shape s = tsr__job_in(j, 0);
    int64_t n = count_of(j->out[0]);
    struct expr *e = v.elements && n >= 0 && count_of(s) == v.n ? new_elements(j->arena, n) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[i] = broadcast(&s, &v, &j->out[0], i);
    give(j, 0, e, n);
}

// ---- arithmetic, element by element ------------------------------------------------------------

typedef struct expr (*binary_fn)(struct exprs *x, struct expr a, struct expr b);

static void each_pair(struct shape_job *j, binary_fn f)
{
    struct known_value a = tsr__job_values(j, 0), b = tsr__job_values(j, 1);
    if (!a.elements || !b.elements)
        return;
    struct shape x = tsr__job_in(j, 0), y = tsr__job_in(j, 1);
    int64_t n = count_of(j->out[0]);
    struct expr *e =
        n >= 0 && count_of(x) == a.n && count_of(y) == b.n ? new_elements(j->arena, n) : NULL;
    for (int64_t i = 0; e && i < n; i++)
        e[i] = f(j->x, broadcast(&x, &a, &j->out[0], i), broadcast(&y, &b, &j->out[0], i));
    give(j, 0, e, n);
}

static struct expr truth(bool known, bool value)
{
    return known ? expr_number(value) : (struct expr){0};
}

static struct expr equal(struct exprs *x, struct expr a, struct expr b)
{
    struct expr gap = tsr__expr_sub(x, a, b);
    return truth(expr_is_number(gap), expr_is(gap, 0));
}

static struct expr less(struct exprs *x, struct expr a, struct expr b)
{
    struct expr gap = tsr__expr_sub(x, a, b);
    return truth(expr_is_number(gap), gap.number < 0);
}

static struct expr greater(struct exprs *x, struct expr a, struct expr b)
{
    return less(x, b, a);
}

static struct expr less_or_equal(struct exprs *x, struct expr a, struct expr b)
{
    struct expr r = less(x, b, a);
    return truth(r.known, r.number == 0);
}

static struct expr greater_or_equal(struct exprs *x, struct expr a, struct expr b)
{
    return less_or_equal(x, b, a);
}

static struct expr both(struct exprs *x, struct expr a, struct expr b)
{
    (void)x;
    bool no = expr_is(a, 0) || expr_is(b, 0);
    return truth(no || (expr_is_number(a) && expr_is_number(b)), !no);
}

static struct expr either(struct exprs *x, struct expr a, struct expr b)
{
    (void)x;
    bool yes = expr_is(a, 1) || expr_is(b, 1);
    return truth(yes || (expr_is_number(a) && expr_is_number(b)), yes);
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

void tsr__value_mod(struct shape_job *j)
{
    if (!tsr__job_int(j, "fmod", 0))
        each_pair(j, tsr__expr_mod);
}

void tsr__value_max(struct shape_job *j)
{
    if (j->n_in == 2)
        each_pair(j, tsr__expr_max);
    else if (j->n_in == 1)
        tsr__value_same(j);
}

void tsr__value_min(struct shape_job *j)
{
    if (j->n_in == 2)
        each_pair(j, tsr__expr_min);
    else if (j->n_in == 1)
        tsr__value_same(j);
}

static void each(struct shape_job *j, struct expr (*f)(struct exprs *x, struct expr a))
{
    struct known_value v = tsr__job_values(j, 0);
    struct expr *e = v.elements ? new_elements(j->arena, v.n) : NULL;
    for (int64_t i = 0; e && i < v.n; i++)
        e[i] = f(j->x, v.elements[i]);
    give(j, 0, e, v.n);
}

static struct expr negative(struct exprs *x, struct expr a)
{
    return tsr__expr_sub(x, expr_number(0), a);
}

static struct expr absolute(struct exprs *x, struct expr a)
{
    return tsr__expr_natural(a) ? a : expr_is_number(a) ? negative(x, a) : (struct expr){0};
}

static struct expr not(struct exprs * x, struct expr a)
{
    (void)x;
    return truth(expr_is_number(a), a.number == 0);
}

void tsr__value_neg(struct shape_job *j)
{
    each(j, negative);
}
void tsr__value_abs(struct shape_job *j)
{
    each(j, absolute);
}
void tsr__value_not(struct shape_job *j)
{
    each(j, not );
}

void tsr__value_where(struct shape_job *j)
{
    struct known_value v[3];
    struct shape s[3];
    int64_t n = count_of(j->out[0]);
    for (int i = 0; i < 3; i++) {
        v[i] = tsr__job_values(j, i);
        s[i] = tsr__job_in(j, i);
        if (!v[i].elements || count_of(s[i]) != v[i].n)
            return;
    }
    struct expr *e = n >= 0 ? new_elements(j->arena, n) : NULL;
    for (int64_t i = 0; e && i < n; i++) {
        struct expr yes = broadcast(&s[0], &v[0], &j->out[0], i);
        struct expr a = broadcast(&s[1], &v[1], &j->out[0], i);
        struct expr b = broadcast(&s[2], &v[2], &j->out[0], i);
        if (expr_is_number(yes))
            e[i] = yes.number ? a : b;
        else if (expr_equal(a, b))
            e[i] = a;
    }
    give(j, 0, e, n);
}

// All elements into one: sums and products of sizes.
static void fold(struct shape_job *j, binary_fn f, int64_t start)
{
    struct known_value v = tsr__job_values(j, 0);
    struct shape s = tsr__job_in(j, 0);
    struct expr *e =
        v.elements && s.rank <= 1 && count_of(j->out[0]) == 1 ? new_elements(j->arena, 1) : NULL;
    if (!e)
        return;
    *e = expr_number(start);
    for (int64_t i = 0; i < v.n; i++)
        *e = f(j->x, *e, v.elements[i]);
    give(j, 0, e, 1);
}

void tsr__value_reduce_prod(struct shape_job *j)
{
    fold(j, tsr__expr_mul, 1);
}
void tsr__value_reduce_sum(struct shape_job *j)
{
    fold(j, tsr__expr_add, 0);
}
