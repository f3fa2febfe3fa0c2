// SPDX-License-Identifier: Apache-2.0
// values.c - follows small integer tensors that hold sizes: Shape -> Gather -> Concat -> Reshape.
//
// An element is a number or a product of symbols. Nothing is computed beyond what the targets of
// Reshape and its like are made of; what cannot be followed is not known, never wrong.
#include "rules/internal.h"

typedef struct known_value (*follow_fn)(const struct shapes *s, const tsr_node *n);

static const struct known_value nothing = {0};

static struct known_value input_known(const struct shapes *s, const tsr_node *n, size_t i)
{
    const tsr_value *v = i < tsr_node_input_count(n) ? tsr_node_input(n, i) : NULL;
    return v ? tsr__value_known(s, v) : nothing;
}

static struct element *new_elements(struct arena *a, int64_t n)
{
    return n >= 0 && n <= VALUES_MAX ? ARENA_ARRAY(a, struct element, (size_t)n + 1) : NULL;
}

static struct known_value of_ints(struct arena *a, const int64_t *v, int64_t n)
{
    struct element *e = new_elements(a, n);
    if (!e)
        return nothing;
    for (int64_t i = 0; i < n; i++)
        e[i] = (struct element){true, tsr__expr_number(v[i])};
    return (struct known_value){e, n};
}

struct known_value tsr__value_of_tensor(struct arena *a, const tsr_tensor *t)
{
    int64_t n = tsr_tensor_elements(t), v[VALUES_MAX];
    tsr_dtype type = tsr_tensor_dtype(t);
    const void *bytes;
    size_t size, width = type == TSR_INT64 ? 8 : 4;
    if ((type != TSR_INT64 && type != TSR_INT32) || n < 0 || n > VALUES_MAX ||
        tsr_tensor_data(t, &bytes, &size) != TSR_OK || size != (size_t)n * width)
        return nothing;
    for (int64_t i = 0; i < n; i++) {
        int32_t narrow;
        if (width == 8)
            memcpy(&v[i], (const char *)bytes + i * 8, 8);
        else {
            memcpy(&narrow, (const char *)bytes + i * 4, 4);
            v[i] = narrow;
        }
    }
    return of_ints(a, v, n);
}

static struct known_value follow_constant(const struct shapes *s, const tsr_node *n)
{
    const tsr_tensor *t = tsr_attr_tensor(tsr_node_find_attr(n, "value"));
    const tsr_attr *one = tsr_node_find_attr(n, "value_int");
    const int64_t *ints;
    if (t)
        return tsr__value_of_tensor(s->arena, t);
    if (one) {
        int64_t v = tsr_attr_int(one, 0);
        return of_ints(s->arena, &v, 1);
    }
    size_t count = tsr_attr_ints(tsr_node_find_attr(n, "value_ints"), &ints);
    return count && count <= VALUES_MAX ? of_ints(s->arena, ints, (int64_t)count) : nothing;
}

static int64_t clamp(int64_t v, int64_t rank)
{
    v = v < 0 ? v + rank : v;
    return v < 0 ? 0 : v > rank ? rank : v;
}

static struct known_value follow_shape(const struct shapes *s, const tsr_node *n)
{
    const tsr_value *v = tsr_node_input_count(n) ? tsr_node_input(n, 0) : NULL;
    struct shape of = v ? tsr__shapes_of(s, v) : (struct shape){.rank = -1};
    if (of.rank < 0)
        return nothing;
    int64_t start = clamp(tsr_attr_int(tsr_node_find_attr(n, "start"), 0), of.rank);
    int64_t end = clamp(tsr_attr_int(tsr_node_find_attr(n, "end"), of.rank), of.rank);
    struct element *e = start <= end ? new_elements(s->arena, end - start) : NULL;
    if (!e)
        return nothing;
    for (int64_t i = start; i < end; i++) {
        e[i - start].value = tsr__expr_of(of.dims[i]);
        e[i - start].known = e[i - start].value.known;
    }
    return (struct known_value){e, end - start};
}

static struct known_value follow_same(const struct shapes *s, const tsr_node *n)
{
    return input_known(s, n, 0);
}

// Flat elements one after the other: right for axis 0, whatever the rank.
static struct known_value follow_concat(const struct shapes *s, const tsr_node *n)
{
    struct element all[VALUES_MAX];
    int64_t count = 0;
    int64_t axis = tsr_attr_int(tsr_node_find_attr(n, "axis"), 0);
    for (size_t i = 0; i < tsr_node_input_count(n); i++) {
        struct known_value v = input_known(s, n, i);
        const tsr_value *in = tsr_node_input(n, i);
        int rank = in ? tsr__shapes_of(s, in).rank : -1;
        if (!v.elements || count + v.n > VALUES_MAX || (axis != 0 && !(axis == -1 && rank == 1)))
            return nothing;
        memcpy(&all[count], v.elements, (size_t)v.n * sizeof(*all));
        count += v.n;
    }
    struct element *e = new_elements(s->arena, count);
    if (!e)
        return nothing;
    memcpy(e, all, (size_t)count * sizeof(*e));
    return (struct known_value){e, count};
}

static struct known_value follow_gather(const struct shapes *s, const tsr_node *n)
{
    struct known_value data = input_known(s, n, 0), at = input_known(s, n, 1);
    const tsr_value *in = tsr_node_input_count(n) ? tsr_node_input(n, 0) : NULL;
    struct element *e = data.elements && at.elements ? new_elements(s->arena, at.n) : NULL;
    if (!e || tsr__shapes_of(s, in).rank != 1)
        return nothing;
    for (int64_t i = 0; i < at.n; i++) {
        struct expr x = at.elements[i].value;
        int64_t index = x.number < 0 ? x.number + data.n : x.number;
        if (!at.elements[i].known || x.n || index < 0 || index >= data.n)
            return nothing;
        e[i] = data.elements[index];
    }
    return (struct known_value){e, at.n};
}

// Products and exact quotients of single elements: a flattened size.
static struct known_value follow_product(const struct shapes *s, const tsr_node *n)
{
    struct known_value a = input_known(s, n, 0), b = input_known(s, n, 1);
    struct element *e =
        a.elements && b.elements && a.n == 1 && b.n == 1 ? new_elements(s->arena, 1) : NULL;
    if (!e)
        return nothing;
    *e = a.elements[0];
    bool divide = str_is(tsr__node_op_str(n), "Div");
    e->known = e->known && b.elements[0].known &&
               (divide ? tsr__expr_div(&e->value, &b.elements[0].value)
                       : tsr__expr_mul(&e->value, &b.elements[0].value));
    return (struct known_value){e, 1};
}

static const struct {
    const char *op;
    follow_fn follow;
} followed[] = {
    {"Cast", follow_same},    {"Concat", follow_concat},  {"Constant", follow_constant},
    {"Div", follow_product},  {"Gather", follow_gather},  {"Identity", follow_same},
    {"Mul", follow_product},  {"Reshape", follow_same},   {"Shape", follow_shape},
    {"Squeeze", follow_same}, {"Unsqueeze", follow_same},
};

struct known_value tsr__value_follow(const struct shapes *s, const tsr_node *n)
{
    struct str op = tsr__node_op_str(n);
    if (tsr__node_domain_str(n).n)
        return nothing;
    for (size_t i = 0; i < TSR_COUNT(followed); i++)
        if (str_is(op, followed[i].op))
            return followed[i].follow(s, n);
    return nothing;
}
