// SPDX-License-Identifier: Apache-2.0
// expand_scan.c - running sums and the greatest elements along a dimension that is cut.
//
// The dimension becomes two: the parts and what is in a part. Inside the parts the operator runs as
// before; between them it runs once more, on one element (a sum) or a few (the greatest) of each.
// Where the parts would not be equal, elements that change nothing are put behind the last.
#include "rules/expand.h"

#include <math.h>

struct parts {
    int axis, rank;
    int64_t n, each;                    // so many parts of so many elements
    int64_t size, more;                 // elements, and those put behind them
    int64_t shape[DERIVE_MAX_RANK + 1]; // of the input with the dimension in two
    int64_t back[DERIVE_MAX_RANK];      // and as it was
};

// How often the dimension is cut: it is one factor, or the cut would be a strided one.
static int64_t cuts_of(const struct expansion *x, int axis)
{
    const struct rule_tensor *t = &x->rule->inputs[0];
    if (t->rank <= axis || t->dims[axis].n != 1)
        return 0;
    return x->cuts[t->dims[axis].factors[0]];
}

// Sizes before the axis are copied; of those behind it one may be open.
static bool split(struct expansion *x, int axis, struct parts *p)
{
    struct shape s = tsr__x_shape(x, 0);
    int open = 0;
    *p = (struct parts){.axis = axis, .rank = s.rank};
    if (axis < 0 || s.rank > DERIVE_MAX_RANK)
        return false;
    int64_t size = s.dims[axis].value;
    p->n = cuts_of(x, axis);
    if (p->n < 2 || size < 1 || size > INT32_MAX || (size % p->n && x->opset < 11))
        return false;
    p->size = size;
    p->each = (size + p->n - 1) / p->n;
    p->more = p->n * p->each - size;
    for (int i = 0; i < s.rank; i++) {
        int64_t d = i < axis ? 0 : s.dims[i].value;
        open += d < 0;
        p->shape[i < axis ? i : i + 1] = d < 0 ? -1 : d;
        p->back[i] = d < 0 ? -1 : d;
    }
    p->shape[axis] = p->n;
    p->shape[axis + 1] = p->each;
    p->back[axis] = p->n * p->each;
    return open <= 1;
}

static tsr_value *lengthened(struct expansion *x, const struct parts *p, tsr_value *v, double fill)
{
    int64_t pads[2 * DERIVE_MAX_RANK] = {0};
    tsr_value *inputs[3] = {v, NULL, NULL};
    if (!p->more)
        return v;
    pads[p->rank + p->axis] = p->more;
    inputs[1] = tsr__x_ints(x, pads, 2 * p->rank);
    inputs[2] = tsr__x_scalar(x, tsr__x_shape(x, 0).dtype, fill);
    return inputs[1] && inputs[2] ? tsr__x_op(x, "Pad", 3, v, inputs[1], inputs[2]) : NULL;
}

static tsr_value *shortened(struct expansion *x, const struct parts *p, tsr_value *v)
{
    int64_t zero = 0, axis = p->axis;
    if (!p->more)
        return v;
    return tsr__x_op(x, "Slice", 4, v, tsr__x_ints(x, &zero, 1), tsr__x_ints(x, &p->size, 1),
                     tsr__x_ints(x, &axis, 1));
}

// ---- running sums ----------------------------------------------------------------------------------

static tsr_value *scan(struct expansion *x, const char *op, tsr_value *v, int axis, bool exclusive)
{
    tsr_value *inputs[2] = {v, tsr__x_scalar(x, TSR_INT64, axis)};
    tsr_node *n = v && inputs[1] ? tsr__x_node(x, op, 2, inputs) : NULL;
    if (!n || tsr_node_set_int(n, "exclusive", exclusive) != TSR_OK ||
        tsr_node_set_int(n, "reverse", tsr__x_int(x, "reverse", 0)) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return tsr_node_output(n, 0);
}

static void cumulate(struct expansion *x, const char *op, const char *total, const char *join,
                     double neutral)
{
    int64_t axis;
    struct parts p;
    int rank = tsr__x_shape(x, 0).rank;
    const tsr_value *given = tsr_node_input(x->twin, 1);
    if (!given || tsr__shapes_ints(x->shapes, given, &axis, 1) != 1)
        axis = rank == 1 ? 0 : rank; // of one dimension there is no other
    if (!split(x, tsr__axis(axis, rank), &p)) {
        x->failed = true;
        return;
    }
    int64_t inside = p.axis + 1;
    tsr_value *v = lengthened(x, &p, tsr__x_in(x, 0), neutral);
    v = tsr__x_reshape(x, v, p.shape, p.rank + 1);
    tsr_value *before = tsr__x_reduce(x, total, v, &inside, 1, true);
    before = scan(x, op, before, p.axis, true);
    v = scan(x, op, v, p.axis + 1, tsr__x_int(x, "exclusive", 0) != 0);
    v = tsr__x_op(x, join, 2, v, before);
    tsr__x_give(x, 0, shortened(x, &p, tsr__x_reshape(x, v, p.back, p.rank)));
}

void tsr__expand_cum_sum(struct expansion *x)
{
    cumulate(x, "CumSum", "ReduceSum", "Add", 0);
}

void tsr__expand_cum_prod(struct expansion *x)
{
    cumulate(x, "CumProd", "ReduceProd", "Mul", 1);
}

// ---- the greatest ----------------------------------------------------------------------------------

static tsr_node *top(struct expansion *x, tsr_value *v, int64_t k, int axis, bool sorted)
{
    tsr_value *inputs[2] = {v, tsr__x_ints(x, &k, 1)};
    tsr_node *n = v && inputs[1] ? tsr__x_nodes(x, "TopK", 2, inputs, 2) : NULL;
    if (!n || tsr_node_set_int(n, "axis", axis) != TSR_OK ||
        tsr_node_set_int(n, "largest", tsr__x_int(x, "largest", 1)) != TSR_OK ||
        tsr_node_set_int(n, "sorted", sorted) != TSR_OK) {
        x->failed = true;
        return NULL;
    }
    return n;
}

// Where each part starts, as [n 1 1 ..] against [.. n k ..].
static tsr_value *starts(struct expansion *x, const struct parts *p)
{
    int64_t *list = ARENA_ARRAY(x->arena, int64_t, (size_t)p->n), shape[DERIVE_MAX_RANK + 1];
    for (int64_t i = 0; list && i < p->n; i++)
        list[i] = i * p->each;
    for (int i = 0; i < p->rank + 1 - p->axis; i++)
        shape[i] = i ? 1 : p->n;
    return list ? tsr__x_reshape(x, tsr__x_ints(x, list, p->n), shape, p->rank + 1 - p->axis)
                : NULL;
}

// The greatest of each part, and of those the greatest. Parts follow each other in order, so that of
// equal elements the first is still the first.
void tsr__expand_top_k(struct expansion *x)
{
    struct parts p;
    int64_t k;
    const tsr_value *given = tsr_node_input(x->twin, 1);
    struct shape s = tsr__x_shape(x, 0);
    if (!given || tsr__shapes_ints(x->shapes, given, &k, 1) != 1 ||
        !split(x, tsr__axis(tsr__x_int(x, "axis", -1), s.rank), &p) || k < 1 || k > p.each) {
        x->failed = true;
        return;
    }
    double least = s.dtype == TSR_INT32   ? (double)INT32_MIN
                   : s.dtype == TSR_INT64 ? (double)INT64_MIN
                                          : -INFINITY;
    if (tsr__x_int(x, "largest", 1) == 0) {
        least = -least;
        x->failed = x->failed || (p.more && least < INFINITY); // no double is the greatest integer
    }
    tsr_value *v = lengthened(x, &p, tsr__x_in(x, 0), least);
    v = tsr__x_reshape(x, v, p.shape, p.rank + 1);
    tsr_node *each = top(x, v, k, p.axis + 1, true);
    if (!each)
        return;
    p.back[p.axis] = p.n * k;
    tsr_value *at = tsr__x_op(x, "Add", 2, tsr_node_output(each, 1), starts(x, &p));
    at = tsr__x_reshape(x, at, p.back, p.rank);
    tsr_node *all = top(x, tsr__x_reshape(x, tsr_node_output(each, 0), p.back, p.rank), k, p.axis,
                        tsr__x_int(x, "sorted", 1) != 0);
    tsr_value *inputs[2] = {at, all ? tsr_node_output(all, 1) : NULL};
    tsr_node *which = at && all ? tsr__x_node(x, "GatherElements", 2, inputs) : NULL;
    if (!which || tsr_node_set_int(which, "axis", p.axis) != TSR_OK) {
        x->failed = true;
        return;
    }
    tsr__x_give(x, 0, tsr_node_output(all, 0));
    tsr__x_give(x, 1, tsr_node_output(which, 0));
}

// ---- a product and its activation ------------------------------------------------------------------

void tsr__expand_fused_gemm(struct expansion *x)
{
    static const char *const plain[] = {"alpha", "beta"}, *const turns[] = {"transA", "transB"};
    static const struct {
        const char *op, *parameters[3];
    } known[] = {{"Relu", {NULL}},         {"Sigmoid", {NULL}},
                 {"Tanh", {NULL}},         {"Softplus", {NULL}},
                 {"Softsign", {NULL}},     {"LeakyRelu", {"alpha", NULL}},
                 {"Elu", {"alpha", NULL}}, {"HardSigmoid", {"alpha", "beta", NULL}}};
    static const char *const given[] = {"activation_alpha", "activation_beta"};
    tsr_value *inputs[3] = {tsr__x_in(x, 0), tsr__x_in(x, 1), tsr__x_in(x, 2)};
    size_t n;
    const char *text = tsr_attr_string(tsr_node_find_attr(x->node, "activation"), &n);
    struct str op = {text, text ? n : 0};
    tsr_node *gemm = tsr__x_node(x, "Gemm", inputs[2] ? 3 : 2, inputs), *last = NULL;
    for (size_t i = 0; gemm && i < 2; i++) {
        float f = tsr__x_float(x, plain[i], 1);
        if (tsr_node_set_float(gemm, plain[i], f) != TSR_OK ||
            tsr_node_set_int(gemm, turns[i], tsr__x_int(x, turns[i], 0)) != TSR_OK)
            gemm = NULL;
    }
    for (size_t i = 0; gemm && i < TSR_COUNT(known); i++) {
        tsr_value *y = tsr_node_output(gemm, 0);
        if (!str_is(op, known[i].op))
            continue;
        last = tsr__x_node(x, known[i].op, 1, &y);
        for (size_t k = 0; last && known[i].parameters[k]; k++) {
            const tsr_attr *a = tsr_node_find_attr(x->node, given[k]);
            if (a &&
                tsr_node_set_float(last, known[i].parameters[k], tsr_attr_float(a, 0)) != TSR_OK)
                last = NULL;
        }
    }
    x->failed = x->failed || !last;
    tsr__x_give(x, 0, last ? tsr_node_output(last, 0) : NULL);
}
