// SPDX-License-Identifier: Apache-2.0
// job.c - what the functions that find the shapes of a node's outputs work with: its inputs' shapes
// and known elements, its attributes, room for results. Inputs that are missing, shapes that are not
// known and attributes of another kind all look like "not known", so that no function needs to be
// brave.
#include "rules/internal.h"

static const tsr_value *input(const struct shape_job *j, int i)
{
    return i >= 0 && i < j->n_in ? tsr_node_input(j->n, (size_t)i) : NULL;
}

bool tsr__job_has(const struct shape_job *j, int i)
{
    return input(j, i) != NULL;
}

struct shape tsr__job_in(const struct shape_job *j, int i)
{
    const tsr_value *v = input(j, i);
    return v ? tsr__shapes_of(j->s, v) : (struct shape){.rank = -1};
}

struct known_value tsr__job_values(const struct shape_job *j, int i)
{
    const tsr_value *v = input(j, i);
    return v ? tsr__value_known(j->s, v) : (struct known_value){0};
}

int64_t tsr__job_numbers(const struct shape_job *j, int i, int64_t *out, int64_t cap)
{
    struct known_value v = tsr__job_values(j, i);
    if (!v.elements || v.n > cap)
        return -1;
    for (int64_t k = 0; k < v.n; k++) {
        if (!expr_is_number(v.elements[k]))
            return -1;
        out[k] = v.elements[k].number;
    }
    return v.n;
}

bool tsr__job_number(const struct shape_job *j, int i, int64_t *out)
{
    return tsr__job_numbers(j, i, out, 1) == 1;
}

const tsr_tensor *tsr__job_tensor(const struct shape_job *j, int i)
{
    const tsr_value *v = input(j, i);
    if (!v)
        return NULL;
    if (tsr_value_initializer(v))
        return tsr__value_constant_tensor(v);
    const tsr_node *from = tsr_value_producer(v);
    if (!from || !str_is(tsr__node_op_str(from), "Constant") || tsr__node_domain_str(from).n)
        return NULL;
    return tsr_attr_tensor(tsr_node_find_attr(from, "value"));
}

// ---- attributes --------------------------------------------------------------------------------

static const tsr_attr *attr_in(const struct call *c, const tsr_node *n, struct str name)
{
    const tsr_attr *a = NULL;
    for (size_t i = 0; i < tsr_node_attr_count(n) && !a; i++)
        if (str_is(name, tsr_attr_name(tsr_node_attr(n, i))))
            a = tsr_node_attr(n, i);
    struct str ref = a ? tsr__attr_ref(a) : (struct str){0};
    if (!ref.n)
        return a;
    a = c ? attr_in(c->outer, c->node, ref) : NULL;
    return a || !c ? a : tsr__function_attr(c->function, ref);
}

const tsr_attr *tsr__attr_of(const struct shapes *s, const tsr_node *n, const char *name)
{
    if (s->call)
        return attr_in(s->call, n, str_of(name));
    return tsr_node_find_attr(n, name);
}

const tsr_attr *tsr__job_attr(const struct shape_job *j, const char *name)
{
    return tsr__attr_of(j->s, j->n, name);
}

int64_t tsr__job_int(const struct shape_job *j, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__job_attr(j, name), otherwise);
}

size_t tsr__job_ints(const struct shape_job *j, const char *name, const int64_t **out)
{
    const tsr_attr *a = tsr__job_attr(j, name);
    *out = NULL;
    return a ? tsr_attr_ints(a, out) : 0;
}

bool tsr__job_text_is(const struct shape_job *j, const char *name, const char *text, bool otherwise)
{
    size_t n;
    const char *s = tsr_attr_string(tsr__job_attr(j, name), &n);
    return s ? str_is((struct str){s, n}, text) : otherwise;
}

int tsr__axis(int64_t axis, int rank)
{
    if (rank <= 0)
        return -1;
    axis = axis < 0 ? axis + rank : axis;
    return axis >= 0 && axis < rank ? (int)axis : -1;
}

// ---- results -----------------------------------------------------------------------------------

tsr_dim *tsr__job_dims(const struct shape_job *j, int64_t rank)
{
    if (rank < 0 || rank > SHAPE_MAX_RANK)
        return NULL;
    tsr_dim *dims = ARENA_ARRAY(j->arena, tsr_dim, (size_t)rank + (rank == 0));
    for (int64_t i = 0; dims && i < rank; i++)
        dims[i] = DIM_UNKNOWN;
    return dims;
}

void tsr__job_set(struct shape_job *j, int i, int rank, const tsr_dim *dims)
{
    if (i < j->n_out && dims && rank >= 0 && rank <= SHAPE_MAX_RANK) {
        j->out[i].rank = rank;
        j->out[i].dims = dims;
    }
}

void tsr__job_like(struct shape_job *j, int i, int k)
{
    struct shape s = tsr__job_in(j, k);
    if (s.rank < 0 || i >= j->n_out)
        return;
    j->out[i].rank = s.rank;
    j->out[i].dims = s.dims;
}

struct expr tsr__job_expr(const struct shape_job *j, tsr_dim d)
{
    return tsr__expr_of(j->x, d);
}

tsr_dim tsr__job_dim(const struct shape_job *j, struct expr e)
{
    return tsr__expr_dim(j->x, e);
}

struct expr tsr__job_size(const struct shape_job *j, struct shape s, int from, int to)
{
    struct expr e = expr_number(1);
    if (s.rank < 0 || from < 0 || to > s.rank)
        return (struct expr){0};
    for (int i = from; i < to; i++)
        e = tsr__expr_mul(j->x, e, tsr__expr_of(j->x, s.dims[i]));
    return e;
}
