// SPDX-License-Identifier: Apache-2.0
// expand.c - replaces a node by simpler ones: the frame and the building blocks.
//
// New nodes stand where the old one stood. Values that the old node read are told as `reads`, those
// that take the place of its outputs as `gives`; the latter keep names, types and uses of the old
// ones. Sizes that the shapes know are constants, others are taken from the input at run time.
#include "rules/expand.h"

#include <stdarg.h>

// ---- what the node is --------------------------------------------------------------------------

tsr_value *tsr__x_in(const struct expansion *x, size_t i)
{
    return i < tsr_node_input_count(x->node) ? tsr_node_input(x->node, i) : NULL;
}

bool tsr__x_has(const struct expansion *x, size_t i)
{
    return tsr__x_in(x, i) != NULL;
}

struct shape tsr__x_shape(const struct expansion *x, size_t i)
{
    const tsr_value *v = i < tsr_node_input_count(x->twin) ? tsr_node_input(x->twin, i) : NULL;
    return v ? tsr__shapes_of(x->shapes, v) : (struct shape){.rank = -1};
}

int64_t tsr__x_int(const struct expansion *x, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr_node_find_attr(x->node, name), otherwise);
}

float tsr__x_float(const struct expansion *x, const char *name, float otherwise)
{
    return tsr_attr_float(tsr_node_find_attr(x->node, name), otherwise);
}

tsr_dtype tsr__x_wide(tsr_dtype type)
{
    return type == TSR_FLOAT16 || type == TSR_BFLOAT16 ? TSR_FLOAT : type;
}

// ---- nodes -------------------------------------------------------------------------------------

// Inputs of the old node that the new one reads. A node that only asks for a shape reads nothing.
static void note_reads(struct expansion *x, tsr_node *n)
{
    if (str_is(tsr__node_op_str(n), "Shape"))
        return;
    for (size_t i = 0; i < tsr_node_input_count(n); i++)
        for (size_t k = 0; k < tsr_node_input_count(x->node); k++) {
            tsr_value *v = tsr_node_input(n, i);
            if (!v || v != tsr_node_input(x->node, k))
                continue;
            struct expanded_slot *slot = vec_push(x->arena, &x->reads);
            if (slot)
                *slot = (struct expanded_slot){n, v, (int)k};
            break;
        }
}

tsr_node *tsr__x_node(struct expansion *x, const char *op, int n, tsr_value *const *inputs)
{
    return tsr__x_nodes(x, op, n, inputs, 1);
}

tsr_node *tsr__x_nodes(struct expansion *x, const char *op, int n, tsr_value *const *inputs,
                       int n_out)
{
    struct str name = tsr__arena_printf(x->arena, STR_FMT "/%s", STR_ARG(x->name), op);
    struct str out = x->failed || !name.p ? STR("") : tsr__graph_fresh_name(x->graph, name);
    const char *outputs[3] = {out.p};
    for (int i = 1; i < n_out && i < 3 && out.n; i++)
        outputs[i] = tsr__graph_fresh_name(x->graph, name).p;
    tsr_node *made = NULL, **slot = vec_push(x->arena, &x->nodes);
    if (out.n && slot)
        made =
            tsr_graph_add_node(x->graph, "", op, out.p, inputs, (size_t)n, outputs, (size_t)n_out);
    if (!made || tsr_node_move_before(made, x->node) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    *slot = made;
    note_reads(x, made);
    return made;
}

tsr_value *tsr__x_op(struct expansion *x, const char *op, int n, ...)
{
    tsr_value *inputs[4] = {NULL};
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n && i < 4; i++) {
        inputs[i] = va_arg(args, tsr_value *);
        x->failed = x->failed || !inputs[i];
    }
    va_end(args);
    tsr_node *made = x->failed ? NULL : tsr__x_node(x, op, n, inputs);
    return made ? tsr_node_output(made, 0) : NULL;
}

// ---- constants ---------------------------------------------------------------------------------

static tsr_value *constant(struct expansion *x, tsr_dtype type, int rank, const int64_t *dims,
                           const void *bytes, size_t n)
{
    struct str base = tsr__arena_printf(x->arena, STR_FMT "/constant", STR_ARG(x->name));
    struct str name = x->failed || !base.p ? STR("") : tsr__graph_fresh_name(x->graph, base);
    tsr_value *v =
        name.n ? tsr_graph_add_initializer(x->graph, name.p, type, rank, dims, bytes, n) : NULL;
    x->failed = x->failed || !v;
    return v;
}

tsr_value *tsr__x_scalar(struct expansion *x, tsr_dtype type, double v)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint8_t b;
    } bytes;
    switch (type) {
    case TSR_FLOAT:
        bytes.f = (float)v;
        return constant(x, type, 0, NULL, &bytes, sizeof(bytes.f));
    case TSR_DOUBLE:
        bytes.d = v;
        return constant(x, type, 0, NULL, &bytes, sizeof(bytes.d));
    case TSR_INT32:
        bytes.i = (int32_t)v;
        return constant(x, type, 0, NULL, &bytes, sizeof(bytes.i));
    case TSR_INT64:
        bytes.l = (int64_t)v;
        return constant(x, type, 0, NULL, &bytes, sizeof(bytes.l));
    case TSR_UINT8:
        bytes.b = (uint8_t)v;
        return constant(x, type, 0, NULL, &bytes, sizeof(bytes.b));
    default:
        x->failed = true;
        return NULL;
    }
}

tsr_value *tsr__x_ints(struct expansion *x, const int64_t *v, int64_t n)
{
    return constant(x, TSR_INT64, 1, &n, v, (size_t)n * sizeof(*v));
}

tsr_value *tsr__x_ones(struct expansion *x, tsr_dtype type, const int64_t *dims, int rank)
{
    int64_t n = 1;
    bool is_double = type == TSR_DOUBLE;
    for (int i = 0; i < rank; i++)
        x->failed = x->failed || !mul_ok(n, dims[i], &n);
    float *f = x->failed || is_double ? NULL : ARENA_ARRAY(x->arena, float, (size_t)n + 1);
    double *d = x->failed || !is_double ? NULL : ARENA_ARRAY(x->arena, double, (size_t)n + 1);
    x->failed = x->failed || (!f && !d) || (type != TSR_FLOAT && !is_double);
    for (int64_t i = 0; !x->failed && i < n; i++)
        is_double ? (d[i] = 1) : (f[i] = 1);
    return constant(x, type, rank, dims, is_double ? (void *)d : f,
                    (size_t)n * (is_double ? sizeof(*d) : sizeof(*f)));
}

// ---- formulas ----------------------------------------------------------------------------------

tsr_value *tsr__x_cast(struct expansion *x, tsr_value *v, tsr_dtype from, tsr_dtype to)
{
    if (from == to)
        return v;
    tsr_node *n = v ? tsr__x_node(x, "Cast", 1, &v) : NULL;
    if (!n || tsr_node_set_int(n, "to", to) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return tsr_node_output(n, 0);
}

tsr_value *tsr__x_reduce(struct expansion *x, const char *op, tsr_value *v, const int64_t *axes,
                         int n, bool keep)
{
    bool as_input = x->opset >= (strcmp(op, "ReduceSum") == 0 ? 13 : 18);
    tsr_value *inputs[2] = {v, NULL};
    if (n == 0) // nothing to reduce; an empty list would mean everything
        return v;
    if (as_input)
        inputs[1] = tsr__x_ints(x, axes, n);
    tsr_node *made = v && !x->failed ? tsr__x_node(x, op, as_input ? 2 : 1, inputs) : NULL;
    if (!made || tsr_node_set_int(made, "keepdims", keep) != TSR_OK ||
        (!as_input && tsr_node_set_ints(made, "axes", axes, (size_t)n) != TSR_OK)) {
        x->failed = true;
        return NULL;
    }
    return tsr_node_output(made, 0);
}

// Sizes of dimensions of input i, at run time.
static tsr_value *sizes_of(struct expansion *x, size_t i, const int64_t *axes, int n)
{
    tsr_value *shape = tsr__x_op(x, "Shape", 1, tsr__x_in(x, i));
    return tsr__x_op(x, "Gather", 2, shape, tsr__x_ints(x, axes, n));
}

tsr_value *tsr__x_count(struct expansion *x, size_t i, const int64_t *axes, int n, tsr_dtype type)
{
    struct shape s = tsr__x_shape(x, i);
    int64_t count = 1, zero = 0;
    bool known = true;
    for (int k = 0; k < n; k++)
        known = known && s.dims[axes[k]].value >= 0 && mul_ok(count, s.dims[axes[k]].value, &count);
    if (known)
        return tsr__x_scalar(x, type, (double)count);
    tsr_value *sizes = sizes_of(x, i, axes, n);
    tsr_value *product = tsr__x_reduce(x, "ReduceProd", sizes, &zero, 1, false);
    return tsr__x_cast(x, product, TSR_INT64, type);
}

tsr_value *tsr__x_positions(struct expansion *x, size_t i, int axis)
{
    struct shape s = tsr__x_shape(x, i);
    int64_t size = s.dims[axis].value, shape[DERIVE_MAX_RANK], at = axis, zero = 0;
    for (int k = 0; k < s.rank; k++)
        shape[k] = k == axis ? -1 : 1;
    if (size >= 0) {
        int64_t *list = ARENA_ARRAY(x->arena, int64_t, (size_t)size + 1);
        for (int64_t k = 0; list && k < size; k++)
            list[k] = k;
        shape[axis] = size;
        return list ? constant(x, TSR_INT64, s.rank, shape, list, (size_t)size * sizeof(*list))
                    : NULL;
    }
    tsr_value *n = tsr__x_reduce(x, "ReduceSum", sizes_of(x, i, &at, 1), &zero, 1, false);
    tsr_value *range =
        tsr__x_op(x, "Range", 3, tsr__x_scalar(x, TSR_INT64, 0), n, tsr__x_scalar(x, TSR_INT64, 1));
    return tsr__x_reshape(x, range, shape, s.rank);
}

tsr_value *tsr__x_reshape(struct expansion *x, tsr_value *v, const int64_t *shape, int64_t n)
{
    return v ? tsr__x_op(x, "Reshape", 2, v, tsr__x_ints(x, shape, n)) : NULL;
}

tsr_value *tsr__x_unsqueeze(struct expansion *x, tsr_value *v, int64_t axis)
{
    if (x->opset >= 13)
        return v ? tsr__x_op(x, "Unsqueeze", 2, v, tsr__x_ints(x, &axis, 1)) : NULL;
    tsr_node *n = v ? tsr__x_node(x, "Unsqueeze", 1, &v) : NULL;
    if (!n || tsr_node_set_ints(n, "axes", &axis, 1) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return tsr_node_output(n, 0);
}

void tsr__x_give(struct expansion *x, int k, tsr_value *v)
{
    if (k >= (int)tsr_node_output_count(x->node) || !tsr_node_output(x->node, (size_t)k))
        return; // nobody asked for it
    bool made = false;
    for (size_t i = 0; v && i < x->nodes.n; i++)
        made = made || x->nodes.at[i] == tsr_value_producer(v);
    if (v && !made) // an input passes through
        v = tsr__x_op(x, "Identity", 1, v);
    tsr_node *maker = v ? tsr_value_producer(v) : NULL;
    struct expanded_slot *slot = maker ? vec_push(x->arena, &x->gives) : NULL;
    if (!slot) {
        x->failed = true;
        return;
    }
    *slot = (struct expanded_slot){maker, v, k};
}

// ---- the whole ---------------------------------------------------------------------------------

// The new value takes name, type and uses of the old one.
static tsr_status take_over(struct expansion *x, tsr_value *old, tsr_value *by)
{
    struct str name = tsr__arena_str(x->arena, tsr__value_str(old));
    struct str aside = tsr__graph_fresh_name(x->graph, STR("replaced"));
    if (!name.p || !aside.n)
        return TSR_NOMEM;
    tsr_status st = tsr__value_copy_type(by, old);
    if (st == TSR_OK)
        st = tsr_value_rename(old, aside.p);
    if (st == TSR_OK)
        st = tsr_value_replace_uses(old, by, true);
    return st == TSR_OK ? tsr_value_rename(by, name.p) : st;
}

static tsr_status finish(struct expansion *x)
{
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < x->gives.n && st == TSR_OK; i++)
        st =
            take_over(x, tsr_node_output(x->node, (size_t)x->gives.at[i].of), x->gives.at[i].value);
    return st == TSR_OK ? tsr_node_remove(x->node) : st;
}

tsr_status tsr__rule_expand(struct arena *a, tsr_node *n, const tsr_node *twin,
                            const struct shapes *s, const struct rule *r, const int64_t *cuts,
                            struct expanded *out)
{
    const struct op_row *row = tsr__row_of(s, twin);
    if (!row || !row->expand)
        return TSR_UNSUPPORTED;
    struct expansion x = {.arena = a,
                          .shapes = s,
                          .twin = twin,
                          .node = n,
                          .graph = tsr_node_graph(n),
                          .rule = r,
                          .cuts = cuts,
                          .opset = tsr__onnx_opset(n)};
    const char *name = tsr_node_name(n);
    for (size_t i = 0; !name[0] && i < tsr_node_output_count(n); i++)
        name = tsr_node_output(n, i) ? tsr_value_name(tsr_node_output(n, i)) : name;
    x.name = tsr__arena_str(a, str_of(name));
    if (!x.name.p)
        return TSR_NOMEM;
    row->expand(&x);
    bool full = a->failed || tsr__model_arena(tsr_graph_model(x.graph))->failed;
    if (x.failed || full || !x.gives.n)
        return full ? TSR_NOMEM : TSR_UNSUPPORTED;
    *out = (struct expanded){x.nodes.at, x.nodes.n, x.reads.at, x.gives.at, x.reads.n, x.gives.n};
    return finish(&x);
}
