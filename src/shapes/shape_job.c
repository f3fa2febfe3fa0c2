// SPDX-License-Identifier: Apache-2.0
// shape_job.c - access functions for shape functions: shapes and known elements of the inputs,
// attributes, and arrays for results. Absent inputs, unknown shapes and attributes of another kind
// are all "not known", so shape functions need no checks.
#include "shapes/infer.h"

// Returns input i; NULL if it is absent, or i is -1.
static const tsr_value *input(const struct shape_job *job, int i)
{
    return tsr_node_input(job->node, (size_t)i);
}

bool tsr__job_has(const struct shape_job *job, int i)
{
    return input(job, i) != NULL;
}

struct shape tsr__job_in(const struct shape_job *job, int i)
{
    return tsr__shapes_of(job->shapes, input(job, i));
}

struct known_value tsr__job_values(const struct shape_job *job, int i)
{
    return tsr__value_known(job->shapes, input(job, i));
}

int64_t tsr__job_numbers(const struct shape_job *job, int i, int64_t *out, int64_t cap)
{
    return tsr__shapes_ints(job->shapes, input(job, i), out, cap);
}

bool tsr__job_number(const struct shape_job *job, int i, int64_t *out)
{
    return tsr__job_numbers(job, i, out, 1) == 1;
}

const tsr_tensor *tsr__node_constant(const tsr_node *node)
{
    const tsr_tensor *tensor = NULL;
    if (!node || !str_is(tsr__node_op_str(node), "Constant") || tsr__node_domain_str(node).n)
        return NULL;
    for (size_t i = 0; i < tsr_node_attr_count(node) && !tensor; i++)
        tensor = tsr__attr_constant(tsr_node_attr(node, i));
    return tensor;
}

// Returns an initializer that a run cannot replace, or the tensor of a Constant node; else NULL.
const tsr_tensor *tsr__job_tensor(const struct shape_job *job, int i)
{
    const tsr_value *value = input(job, i);
    if (!value)
        return NULL;
    if (tsr_value_initializer(value))
        return tsr__shapes_tensor(job->shapes, value);
    return tsr__node_constant(tsr_value_producer(value));
}

// ---- attributes --------------------------------------------------------------------------------

static const tsr_attr *attr_named(const tsr_node *node, struct str name)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++)
        if (str_is(name, tsr_attr_name(tsr_node_attr(node, i))))
            return tsr_node_attr(node, i);
    return NULL;
}

// Returns an attribute. In a function's body it may refer to an attribute of the call, which may
// again refer to one of its own call. If the call does not have it, the function's default applies.
static const tsr_attr *attr_in(const struct call *call, const tsr_node *node, struct str name)
{
    const tsr_attr *attr = attr_named(node, name);
    if (!attr)
        return NULL;
    struct str ref = tsr__attr_ref(attr);
    if (!ref.n)
        return attr;
    if (!call)
        return NULL;
    attr = attr_in(call->outer, call->node, ref);
    return attr ? attr : tsr__function_attr(call->function, ref);
}

const tsr_attr *tsr__attr_of(const struct shapes *shapes, const tsr_node *node, const char *name)
{
    if (shapes->call)
        return attr_in(shapes->call, node, str_of(name));
    return tsr_node_find_attr(node, name);
}

const tsr_attr *tsr__job_attr(const struct shape_job *job, const char *name)
{
    return tsr__attr_of(job->shapes, job->node, name);
}

const tsr_tensor *tsr__job_constant(const struct shape_job *job)
{
    static const char *const names[] = {"value", "value_int", "value_ints", "value_float",
                                        "value_floats"};
    const tsr_tensor *tensor = NULL;
    for (size_t i = 0; i < TSR_COUNT(names) && !tensor; i++)
        tensor = tsr__attr_constant(tsr__job_attr(job, names[i]));
    return tensor;
}

int64_t tsr__job_int(const struct shape_job *job, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr__job_attr(job, name), otherwise);
}

// Returns the length of a list. It is 0, with *out NULL, if the attribute is absent, empty, or not
// a list of integers.
size_t tsr__job_ints(const struct shape_job *job, const char *name, const int64_t **out)
{
    const tsr_attr *attr = tsr__job_attr(job, name);
    *out = NULL;
    return attr ? tsr_attr_ints(attr, out) : 0;
}

// True if the attribute has that text. `otherwise`: the result if the attribute is absent.
bool tsr__job_text_is(const struct shape_job *job, const char *name, const char *text,
                      bool otherwise)
{
    size_t n;
    const char *s = tsr_attr_string(tsr__job_attr(job, name), &n);
    return s ? str_is((struct str){s, n}, text) : otherwise;
}

tsr_dtype tsr__job_type(const struct shape_job *job, const char *name, tsr_dtype otherwise)
{
    int64_t type = tsr__job_int(job, name, otherwise);
    return type > 0 && type < TSR_DTYPE_COUNT ? (tsr_dtype)type : TSR_UNDEFINED;
}

// Returns the axis counted from the front: -1 of rank 3 is 2; 3 of rank 3 is invalid, which gives
// -1.
int tsr__axis(int64_t axis, int rank)
{
    if (rank <= 0)
        return -1;
    axis = from_front(axis, rank);
    return axis < 0 || axis >= rank ? -1 : (int)axis;
}

// ---- results -----------------------------------------------------------------------------------

// Returns an array of unknown dimensions. For rank 0 it has one element, so that it is not NULL.
tsr_dim *tsr__job_dims(const struct shape_job *job, int64_t rank)
{
    if (rank < 0 || rank > SHAPE_MAX_RANK)
        return NULL;
    tsr_dim *dims = ARENA_ARRAY(job->arena, tsr_dim, (size_t)rank + (rank == 0));
    if (!dims)
        return NULL;
    for (int64_t i = 0; i < rank; i++)
        dims[i] = DIM_UNKNOWN;
    return dims;
}

// Sets the shape of output i. dims NULL leaves the output unknown.
void tsr__job_set(struct shape_job *job, int i, int rank, const tsr_dim *dims)
{
    if (i < job->n_out && dims && rank >= 0 && rank <= SHAPE_MAX_RANK) {
        job->out[i].rank = rank;
        job->out[i].dims = dims;
    }
}

// Sets a shape whose dimensions the caller fills in; the others stay unknown.
tsr_dim *tsr__job_new_dims(struct shape_job *job, int i, int rank)
{
    if (i >= job->n_out)
        return NULL;
    tsr_dim *dims = tsr__job_dims(job, rank);
    tsr__job_set(job, i, rank, dims);
    return dims;
}

// Copies the dimensions first, because other values may share them.
void tsr__job_set_dim(struct shape_job *job, int i, int axis, tsr_dim size)
{
    if (i >= job->n_out || job->out[i].rank <= axis)
        return;
    struct shape *shape = &job->out[i];
    tsr_dim *dims = tsr__job_dims(job, shape->rank);
    if (!dims)
        return;
    memcpy(dims, shape->dims, (size_t)shape->rank * sizeof(*dims));
    dims[axis] = size;
    shape->dims = dims;
}

// Gives output i the shape of input k. They share the array, because arrays do not change once they
// are set.
void tsr__job_like(struct shape_job *job, int i, int k)
{
    struct shape shape = tsr__job_in(job, k);
    if (shape.rank < 0 || i >= job->n_out)
        return;
    job->out[i].rank = shape.rank;
    job->out[i].dims = shape.dims;
}

// Returns the product of dimensions from .. to - 1: of [n 3 8], 1 to 3, 24.
struct expr tsr__job_size(const struct shape_job *job, struct shape shape, int from, int to)
{
    struct expr expr = expr_number(1);
    if (shape.rank < 0 || from < 0 || to > shape.rank)
        return (struct expr){0};
    for (int i = from; i < to; i++)
        expr = tsr__expr_mul(job->exprs, expr, tsr__expr_of(job->exprs, shape.dims[i]));
    return expr;
}
