// SPDX-License-Identifier: Apache-2.0
// expand_scan.c - running sums and TopK along a sharded dimension.
//
// The dimension becomes two: shards and elements of a shard. The operator runs inside the shards,
// and then once more on one element (a sum) or a few elements (TopK) of each shard. If shards would
// differ in size, neutral elements are appended to the last.
//
// Example: CumSum of 1 2 3 | 4 5 6, sharded in 2. The running sums inside the shards are 1 3 6 | 4
// 9 15. The sums of the shards are 6 | 15, so the sums before each shard are 0 | 6. Added to the
// running sums, they give 1 3 6 | 10 15 21. One number per shard is exchanged.
#include "rules/expand/expand.h"

#include <math.h>

struct scan_split {
    int axis, rank;
    int64_t n, each;    // number of shards, and elements of each
    int64_t size, more; // number of elements, and of appended elements
    // Shape of the input with the scanned dimension split in two.
    int64_t shape[DERIVE_MAX_RANK + 1];
    int64_t back[DERIVE_MAX_RANK]; // shape of the input, with the padded size of the axis
};

// Returns the number of shards of the dimension. 0: the dimension has no factor, or several, which
// would give strided shards.
static int64_t cuts_of(const struct expansion *expansion, int axis)
{
    const struct rule_tensor *tensor = &expansion->rule->inputs[0];
    if (tensor->rank <= axis || tensor->dims[axis].n != 1)
        return 0;
    return expansion->cuts[tensor->dims[axis].factors[0]];
}

// Splits the dimension in two. Reshape copies the sizes before the axis. After the axis, one size
// may be unknown. None may be 0, because Reshape would copy that size too. False: the dimension
// cannot be split.
static bool split(struct expansion *expansion, int axis, struct scan_split *parts)
{
    struct shape shape = tsr__x_shape(expansion, 0);
    int open = 0;
    *parts = (struct scan_split){.axis = axis, .rank = shape.rank};
    if (axis < 0 || shape.rank > DERIVE_MAX_RANK)
        return false;
    int64_t size = shape.dims[axis].value;
    parts->n = cuts_of(expansion, axis);
    // Before opset 11, Pad has no input for its numbers, and shards must be equal.
    if (parts->n < 2 || size < 1 || size > INT32_MAX || (size % parts->n && expansion->opset < 11))
        return false;
    parts->size = size;
    parts->each = (size + parts->n - 1) / parts->n;
    parts->more = parts->n * parts->each - size;
    for (int i = 0; i < shape.rank; i++) {
        int64_t size_here = 0, behind = i > axis;
        if (i >= axis)
            size_here = int64_max(shape.dims[i].value, -1);
        if (behind && size_here == 0)
            return false;
        open += size_here < 0;
        parts->back[i] = size_here;
        parts->shape[i + behind] = size_here;
    }
    parts->shape[axis] = parts->n;
    parts->shape[axis + 1] = parts->each;
    parts->back[axis] = parts->n * parts->each;
    return open <= 1;
}

// Pads the end of the dimension so that all shards are equal: 7 in 3 shards become 9.
static tsr_value *padded(struct expansion *expansion, const struct scan_split *parts,
                         tsr_value *value, double fill)
{
    int64_t pads[2 * DERIVE_MAX_RANK] = {0};
    tsr_value *inputs[3] = {value, NULL, NULL};
    if (!parts->more)
        return value;
    pads[parts->rank + parts->axis] = parts->more;
    inputs[1] = tsr__x_ints(expansion, pads, 2 * parts->rank);
    inputs[2] = tsr__x_scalar(expansion, tsr__x_shape(expansion, 0).dtype, fill);
    if (inputs[1] && inputs[2])
        return X_OP(expansion, "Pad", value, inputs[1], inputs[2]);
    return NULL;
}

// Removes the padding of shards.
static tsr_value *unpadded(struct expansion *expansion, const struct scan_split *parts,
                           tsr_value *value)
{
    int64_t zero = 0, axis = parts->axis;
    if (!parts->more)
        return value;
    return X_OP(expansion, "Slice", value, tsr__x_ints(expansion, &zero, 1),
                tsr__x_ints(expansion, &parts->size, 1), tsr__x_ints(expansion, &axis, 1));
}

// ---- running sums -------------------------------------------------------------------------------

// Adds a running sum along the axis, in the direction of the old node. exclusive: each sum leaves
// out its own element.
static tsr_value *scan(struct expansion *expansion, const char *op, tsr_value *value, int axis,
                       bool exclusive)
{
    value = X_OP(expansion, op, value, tsr__x_scalar(expansion, TSR_INT64, axis));
    value = tsr__x_with_int(expansion, value, "exclusive", exclusive);
    return tsr__x_with_int(expansion, value, "reverse", tsr__x_int(expansion, "reverse", 0));
}

// Expands a running sum. `total` reduces a shard (ReduceSum, ReduceProd), `join` combines shards,
// and shards are padded with `neutral`.
static void cumulate(struct expansion *expansion, const char *op, const char *total,
                     const char *join, double neutral)
{
    int64_t axis;
    struct scan_split parts;
    int rank = tsr__x_shape(expansion, 0).rank;
    const tsr_value *given = tsr_node_input(expansion->twin, 1);
    bool known = given && tsr__shapes_ints(expansion->shapes, given, &axis, 1) == 1;
    if (!known)
        axis = rank; // unknown: split fails
    if (!known && rank == 1)
        axis = 0; // a vector has only this axis
    if (!split(expansion, tsr__axis(axis, rank), &parts)) {
        expansion->failed = true;
        return;
    }
    int64_t inside = parts.axis + 1;
    tsr_value *value = padded(expansion, &parts, tsr__x_in(expansion, 0), neutral);
    value = tsr__x_reshape(expansion, value, parts.shape, parts.rank + 1);
    tsr_value *before = tsr__x_reduce(expansion, total, value, &inside, 1, true);
    before = scan(expansion, op, before, parts.axis, true);
    // Inside a shard, the sum is exclusive if the old node's is. Between shards it is always
    // exclusive.
    value = scan(expansion, op, value, parts.axis + 1, tsr__x_int(expansion, "exclusive", 0) != 0);
    value = X_OP(expansion, join, value, before);
    tsr__x_give(
        expansion, 0,
        unpadded(expansion, &parts, tsr__x_reshape(expansion, value, parts.back, parts.rank)));
}

void tsr__expand_cum_sum(struct expansion *expansion)
{
    cumulate(expansion, "CumSum", "ReduceSum", "Add", 0);
}

void tsr__expand_cum_prod(struct expansion *expansion)
{
    cumulate(expansion, "CumProd", "ReduceProd", "Mul", 1);
}

// ---- TopK ---------------------------------------------------------------------------------------

// Adds a TopK node for k elements, with the direction of the old node.
static tsr_node *top(struct expansion *expansion, tsr_value *value, int64_t k, int axis,
                     bool sorted)
{
    tsr_value *inputs[2] = {value, tsr__x_ints(expansion, &k, 1)};
    if (value && inputs[1])
        value = tsr__x_output(tsr__x_nodes(expansion, "TopK", 2, inputs, 2));
    value = tsr__x_with_int(expansion, value, "axis", axis);
    value = tsr__x_with_int(expansion, value, "largest", tsr__x_int(expansion, "largest", 1));
    value = tsr__x_with_int(expansion, value, "sorted", sorted);
    return value ? tsr_value_producer(value) : NULL;
}

// Returns the start of each shard, as [n 1 1 ..] to broadcast with [.. n k ..].
static tsr_value *starts(struct expansion *expansion, const struct scan_split *parts)
{
    int64_t *list = ARENA_ARRAY(expansion->arena, int64_t, (size_t)parts->n),
            shape[DERIVE_MAX_RANK + 1];
    if (!list)
        return NULL;
    for (int64_t i = 0; i < parts->n; i++)
        list[i] = i * parts->each;
    shape[0] = parts->n;
    for (int i = 1; i < parts->rank + 1 - parts->axis; i++)
        shape[i] = 1;
    return tsr__x_reshape(expansion, tsr__x_ints(expansion, list, parts->n), shape,
                          parts->rank + 1 - parts->axis);
}

// Expands TopK: selects the k largest of each shard, then the k largest of those. Shards are in
// order, so that equal elements keep their order.
void tsr__expand_top_k(struct expansion *expansion)
{
    struct scan_split parts;
    int64_t k;
    const tsr_value *given = tsr_node_input(expansion->twin, 1);
    struct shape shape = tsr__x_shape(expansion, 0);
    if (!given || tsr__shapes_ints(expansion->shapes, given, &k, 1) != 1 ||
        !split(expansion, tsr__axis(tsr__x_int(expansion, "axis", -1), shape.rank), &parts) ||
        k < 1 || k > parts.each) {
        expansion->failed = true;
        return;
    }
    // The padding of the last shard must not be selected.
    double least = -INFINITY;
    if (shape.dtype == TSR_INT32)
        least = (double)INT32_MIN;
    else if (shape.dtype == TSR_INT64)
        least = (double)INT64_MIN;
    if (tsr__x_int(expansion, "largest", 1) == 0) {
        least = -least;
        expansion->failed = expansion->failed ||
                            // a double cannot represent the largest integers
                            (parts.more && least < INFINITY);
    }
    tsr_value *value = padded(expansion, &parts, tsr__x_in(expansion, 0), least);
    value = tsr__x_reshape(expansion, value, parts.shape, parts.rank + 1);
    tsr_node *each = top(expansion, value, k, parts.axis + 1, true);
    if (!each)
        return;
    // From here on each shard has k elements instead of parts.each.
    parts.back[parts.axis] = parts.n * k;
    tsr_value *at = X_OP(expansion, "Add", tsr_node_output(each, 1), starts(expansion, &parts));
    at = tsr__x_reshape(expansion, at, parts.back, parts.rank);
    tsr_node *all =
        top(expansion, tsr__x_reshape(expansion, tsr_node_output(each, 0), parts.back, parts.rank),
            k, parts.axis, tsr__x_int(expansion, "sorted", 1) != 0);
    if (!all)
        return;
    at = X_OP(expansion, "GatherElements", at, tsr_node_output(all, 1));
    tsr__x_give(expansion, 0, tsr_node_output(all, 0));
    tsr__x_give(expansion, 1, tsr__x_with_int(expansion, at, "axis", parts.axis));
}

// ---- a product and its activation ---------------------------------------------------------------

// Expands FusedGemm to a Gemm and a separate activation. With activation LeakyRelu and
// activation_alpha 0.1, it is Gemm, then LeakyRelu with alpha 0.1. A node with an activation that
// is not in `known` is not expanded.
void tsr__expand_fused_gemm(struct expansion *expansion)
{
    static const char *const plain[] = {"alpha", "beta"}, *const turns[] = {"transA", "transB"};
    static const struct {
        const char *op, *parameters[3];
    } known[] = {{"Relu", {NULL}},         {"Sigmoid", {NULL}},
                 {"Tanh", {NULL}},         {"Softplus", {NULL}},
                 {"Softsign", {NULL}},     {"LeakyRelu", {"alpha", NULL}},
                 {"Elu", {"alpha", NULL}}, {"HardSigmoid", {"alpha", "beta", NULL}}};
    static const char *const given[] = {"activation_alpha", "activation_beta"};
    tsr_value *inputs[3] = {tsr__x_in(expansion, 0), tsr__x_in(expansion, 1),
                            tsr__x_in(expansion, 2)};
    size_t n = 0;
    const char *text = tsr_attr_string(tsr_node_find_attr(expansion->node, "activation"), &n);
    if (!text)
        n = 0;
    struct str op = {text, n};
    tsr_value *y = tsr__x_output(tsr__x_node(expansion, "Gemm", inputs[2] ? 3 : 2, inputs)),
              *last = NULL;
    for (size_t i = 0; i < 2; i++) {
        y = tsr__x_with_float(expansion, y, plain[i], tsr__x_float(expansion, plain[i], 1));
        y = tsr__x_with_int(expansion, y, turns[i], tsr__x_int(expansion, turns[i], 0));
    }
    // For an unknown activation `last` stays NULL, and the node is not expanded.
    for (size_t i = 0; i < TSR_COUNT(known); i++) {
        if (!str_is(op, known[i].op))
            continue;
        last = X_OP(expansion, known[i].op, y);
        for (size_t k = 0; known[i].parameters[k]; k++) {
            const tsr_attr *attr = tsr_node_find_attr(expansion->node, given[k]);
            if (attr)
                last = tsr__x_with_float(expansion, last, known[i].parameters[k],
                                         tsr_attr_float(attr, 0));
        }
    }
    tsr__x_give(expansion, 0, last);
}
