// SPDX-License-Identifier: Apache-2.0
// expand.c - replaces a node by simpler ones: the main function and the building blocks.
//
// New nodes are inserted before the old one. `reads` lists which of them read inputs of the old
// node, `gives` lists the values that replace its outputs. The new values get the names, types and
// uses of the old ones. Known sizes are constants; unknown sizes are read from the input at run
// time.
//
// Softmax(x) along a sharded axis, x [4 6]: the old node y = Softmax(x) becomes
//
//   top  = ReduceMax(x)      reads x, sharded as for the old node; the axis is reduced over devices
//   rest = Sub(x, top)
//   e    = Exp(rest)
//   sum  = ReduceSum(e)
//   y    = Div(e, sum)       gives y, sharded as by the old node
//
// reads = {top: x, rest: x}, gives = {y}. Shardings of the values between are chosen later.
#include "rules/expand/expand.h"
#include "rules/table.h"

// ---- the old node -------------------------------------------------------------------------------

tsr_value *tsr__x_in(const struct expansion *expansion, size_t i)
{
    return tsr_node_input(expansion->node, i);
}

bool tsr__x_has(const struct expansion *expansion, size_t i)
{
    return tsr__x_in(expansion, i) != NULL;
}

// Returns the shape of an input of the twin: the same node in the model whose shapes are known.
struct shape tsr__x_shape(const struct expansion *expansion, size_t i)
{
    return tsr__shapes_of(expansion->shapes, tsr_node_input(expansion->twin, i));
}

int64_t tsr__x_int(const struct expansion *expansion, const char *name, int64_t otherwise)
{
    return tsr_attr_int(tsr_node_find_attr(expansion->node, name), otherwise);
}

float tsr__x_float(const struct expansion *expansion, const char *name, float otherwise)
{
    return tsr_attr_float(tsr_node_find_attr(expansion->node, name), otherwise);
}

tsr_dtype tsr__x_wide(tsr_dtype type)
{
    return type == TSR_FLOAT16 || type == TSR_BFLOAT16 ? TSR_FLOAT : type;
}

// ---- nodes -------------------------------------------------------------------------------------

// Records the inputs of the new node that are sharded values made by the expansion.
static void record_sharded(struct expansion *expansion, tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        for (size_t k = 0; k < expansion->placed.n; k++) {
            if (tsr_node_input(node, i) != expansion->placed.at[k].value)
                continue;
            struct expanded_place *place = vec_push(expansion->arena, &expansion->places);
            if (!place)
                return;
            *place = expansion->placed.at[k];
            place->node = node;
        }
}

// Records the inputs of the old node that the new one reads. Shape nodes read no elements.
static void record_reads(struct expansion *expansion, tsr_node *node)
{
    if (str_is(tsr__node_op_str(node), "Shape"))
        return;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        for (size_t k = 0; k < tsr_node_input_count(expansion->node); k++) {
            tsr_value *value = tsr_node_input(node, i);
            if (!value || value != tsr_node_input(expansion->node, k))
                continue;
            vec_add(expansion->arena, &expansion->reads,
                    (struct expanded_slot){node, value, (int)k});
            break;
        }
}

tsr_node *tsr__x_node(struct expansion *expansion, const char *op, int n, tsr_value *const *inputs)
{
    return tsr__x_nodes(expansion, op, n, inputs, 1);
}

tsr_value *tsr__x_output(const tsr_node *node)
{
    return node ? tsr_node_output(node, 0) : NULL;
}

// Returns a name for a new node: the name of the old node, a slash and `what`, as in "softmax/Exp".
// The name is empty if the expansion has failed.
static struct str new_name(struct expansion *expansion, const char *what)
{
    struct str name =
        tsr__arena_printf(expansion->arena, STR_FMT "/%s", STR_ARG(expansion->name), what);
    if (expansion->failed || !name.p)
        return STR("");
    return tsr__graph_fresh_name(expansion->graph, name);
}

// Adds a node with 1 to 3 outputs. It has the name of its first output.
static tsr_node *add_expanded_node(struct expansion *expansion, const char *domain, const char *op,
                                   int n, tsr_value *const *inputs, int n_out)
{
    const char *outputs[3] = {NULL};
    int n_names = (int)clamped(n_out, 0, (int64_t)TSR_COUNT(outputs));
    for (int i = 0; i < n_names; i++) {
        struct str name = new_name(expansion, op);
        expansion->failed = expansion->failed || !name.n;
        outputs[i] = name.p;
    }
    // New nodes are inserted before the old one in the order of their creation, so values are made
    // before they are read.
    tsr_node *made = NULL, **slot = vec_push(expansion->arena, &expansion->nodes);
    if (!expansion->failed && slot)
        made = tsr_graph_add_node(expansion->graph, domain, op, outputs[0], inputs, (size_t)n,
                                  outputs, (size_t)n_out);
    if (!made || tsr_node_move_before(made, expansion->node) != TSR_OK) {
        expansion->failed = true;
        return NULL;
    }
    *slot = made;
    record_reads(expansion, made);
    record_sharded(expansion, made);
    return made;
}

tsr_node *tsr__x_nodes(struct expansion *expansion, const char *op, int n, tsr_value *const *inputs,
                       int n_out)
{
    return add_expanded_node(expansion, "", op, n, inputs, n_out);
}

tsr_node *tsr__x_fused(struct expansion *expansion, const char *op, int n, tsr_value *const *inputs)
{
    for (int i = 0; i < n; i++)
        expansion->failed = expansion->failed || !inputs[i];
    return add_expanded_node(expansion, MICROSOFT, op, n, inputs, 1);
}

// NULL fails the expansion.
tsr_value *tsr__x_op(struct expansion *expansion, const char *op, tsr_value *const *inputs, int n)
{
    for (int i = 0; i < n; i++)
        expansion->failed = expansion->failed || !inputs[i];
    return expansion->failed ? NULL : tsr__x_output(tsr__x_node(expansion, op, n, inputs));
}

// Returns the value if `status`, the result of changing its node, is TSR_OK. Otherwise the
// expansion fails.
static tsr_value *changed(struct expansion *expansion, tsr_value *value, tsr_status status)
{
    expansion->failed = expansion->failed || status != TSR_OK;
    return status == TSR_OK ? value : NULL;
}

tsr_value *tsr__x_with_int(struct expansion *expansion, tsr_value *value, const char *name,
                           int64_t number)
{
    if (!value)
        return changed(expansion, NULL, TSR_INVALID);
    return changed(expansion, value, tsr_node_set_int(tsr_value_producer(value), name, number));
}

tsr_value *tsr__x_with_float(struct expansion *expansion, tsr_value *value, const char *name,
                             float number)
{
    if (!value)
        return changed(expansion, NULL, TSR_INVALID);
    return changed(expansion, value, tsr_node_set_float(tsr_value_producer(value), name, number));
}

tsr_value *tsr__x_with_ints(struct expansion *expansion, tsr_value *value, const char *name,
                            const int64_t *numbers, int n)
{
    if (!value)
        return changed(expansion, NULL, TSR_INVALID);
    return changed(expansion, value,
                   tsr_node_set_ints(tsr_value_producer(value), name, numbers, (size_t)n));
}

// ---- constants ---------------------------------------------------------------------------------

// Adds an initializer to the graph, with a new name.
static tsr_value *constant(struct expansion *expansion, tsr_dtype type, int rank,
                           const int64_t *dims, const void *bytes, size_t n)
{
    struct str name = new_name(expansion, "constant");
    tsr_value *value = NULL;
    if (name.n)
        value = tsr_graph_add_initializer(expansion->graph, name.p, type, rank, dims, bytes, n);
    expansion->failed = expansion->failed || !value;
    return value;
}

// True if the type is supported and a conversion of v to it is defined.
static bool type_holds(tsr_dtype type, double v)
{
    if (type == TSR_INT64)
        return v >= -0x1p63 && v < 0x1p63;
    if (type == TSR_INT32)
        return v >= -0x1p31 && v < 0x1p31;
    if (type == TSR_UINT8)
        return v >= 0 && v < 256;
    return type == TSR_FLOAT || type == TSR_DOUBLE;
}

// Makes a constant without dimensions. The expansion fails if the type does not hold v.
tsr_value *tsr__x_scalar(struct expansion *expansion, tsr_dtype type, double v)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint8_t b;
    } bytes;
    if (!type_holds(type, v)) {
        expansion->failed = true;
        return NULL;
    }
    size_t n = sizeof bytes.f;
    if (type == TSR_FLOAT)
        bytes.f = (float)v;
    else if (type == TSR_INT32)
        bytes.i = (int32_t)v;
    else if (type == TSR_UINT8)
        bytes.b = (uint8_t)v;
    else if (type == TSR_DOUBLE)
        bytes.d = v;
    else
        bytes.l = (int64_t)v;
    if (type == TSR_UINT8)
        n = sizeof bytes.b;
    else if (type == TSR_DOUBLE || type == TSR_INT64)
        n = sizeof bytes.l;
    return constant(expansion, type, 0, NULL, &bytes, n);
}

tsr_value *tsr__x_ints(struct expansion *expansion, const int64_t *v, int64_t n)
{
    return constant(expansion, TSR_INT64, 1, &n, v, (size_t)n * sizeof(*v));
}

// Makes a constant of ones of that shape: multiplying by it expands a broadcast value.
tsr_value *tsr__x_ones(struct expansion *expansion, tsr_dtype type, const int64_t *dims, int rank)
{
    int64_t n = 1;
    bool is_double = type == TSR_DOUBLE;
    for (int i = 0; i < rank; i++)
        expansion->failed = expansion->failed || !mul_ok(n, dims[i], &n);
    // Fail for other types: the expansions compute only with these.
    expansion->failed = expansion->failed || (type != TSR_FLOAT && !is_double);
    if (expansion->failed)
        return NULL;
    size_t width = is_double ? sizeof(double) : sizeof(float);
    void *bytes = tsr__arena_array(expansion->arena, (size_t)n + 1, width, _Alignof(double));
    if (!bytes) {
        expansion->failed = true;
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        if (is_double)
            ((double *)bytes)[i] = 1;
        else
            ((float *)bytes)[i] = 1;
    }
    return constant(expansion, type, rank, dims, bytes, (size_t)n * width);
}

// ---- formulas ----------------------------------------------------------------------------------

// Casts the value. A cast to the same type adds no node.
tsr_value *tsr__x_cast(struct expansion *expansion, tsr_value *value, tsr_dtype from, tsr_dtype to)
{
    if (from == to)
        return value;
    return tsr__x_with_int(expansion, X_OP(expansion, "Cast", value), "to", to);
}

// Adds a reduction. Axes were an attribute before opset 18 (13 for ReduceSum) and are an input
// since.
tsr_value *tsr__x_reduce(struct expansion *expansion, const char *op, tsr_value *value,
                         const int64_t *axes, int n, bool keep)
{
    bool as_input = expansion->opset >= (strcmp(op, "ReduceSum") == 0 ? 13 : 18);
    if (n == 0) // nothing to reduce; an empty list would mean everything
        return value;
    if (as_input)
        value = X_OP(expansion, op, value, tsr__x_ints(expansion, axes, n));
    else
        value = tsr__x_with_ints(expansion, X_OP(expansion, op, value), "axes", axes, n);
    return tsr__x_with_int(expansion, value, "keepdims", keep);
}

// Makes a value with the sizes of these dimensions of input i, read at run time.
static tsr_value *sizes_of(struct expansion *expansion, size_t i, const int64_t *axes, int n)
{
    tsr_value *shape = X_OP(expansion, "Shape", tsr__x_in(expansion, i));
    return X_OP(expansion, "Gather", shape, tsr__x_ints(expansion, axes, n));
}

// Returns the number of elements that a reduction over these axes combines: [4 3 5] over 0 and 2
// gives 20, a constant. Unknown sizes are read from the input when the model runs.
tsr_value *tsr__x_count(struct expansion *expansion, size_t i, const int64_t *axes, int n,
                        tsr_dtype type)
{
    struct shape shape = tsr__x_shape(expansion, i);
    int64_t count = 1, zero = 0;
    bool known = true;
    for (int k = 0; k < n; k++)
        known = known && shape.dims[axes[k]].value >= 0 &&
                mul_ok(count, shape.dims[axes[k]].value, &count);
    // A constant costs nothing at run time.
    if (known)
        return tsr__x_scalar(expansion, type, (double)count);
    tsr_value *sizes = sizes_of(expansion, i, axes, n);
    tsr_value *product = tsr__x_reduce(expansion, "ReduceProd", sizes, &zero, 1, false);
    return tsr__x_cast(expansion, product, TSR_INT64, type);
}

// Makes 0, 1, 2, ... along one axis of input i, in a shape that broadcasts with it: axis 1 of [4 3
// 5] gives {0, 1, 2} as [1 3 1].
tsr_value *tsr__x_positions(struct expansion *expansion, size_t i, int axis)
{
    struct shape s = tsr__x_shape(expansion, i);
    int64_t size = s.dims[axis].value, shape[DERIVE_MAX_RANK], at = axis, zero = 0;
    for (int k = 0; k < s.rank; k++)
        shape[k] = 1;
    shape[axis] = -1;
    if (size >= 0) {
        int64_t *list = ARENA_ARRAY(expansion->arena, int64_t, (size_t)size + 1);
        if (!list)
            return NULL;
        for (int64_t k = 0; k < size; k++)
            list[k] = k;
        shape[axis] = size;
        return constant(expansion, TSR_INT64, s.rank, shape, list, (size_t)size * sizeof(*list));
    }
    // Makes the size a scalar, by summing a list of one element.
    tsr_value *value =
        tsr__x_reduce(expansion, "ReduceSum", sizes_of(expansion, i, &at, 1), &zero, 1, false);
    tsr_value *range = X_OP(expansion, "Range", tsr__x_scalar(expansion, TSR_INT64, 0), value,
                            tsr__x_scalar(expansion, TSR_INT64, 1));
    return tsr__x_reshape(expansion, range, shape, s.rank);
}

// Declares that each device has its shard of the value from the start. Example: row numbers, of
// which each device has only those of its shard. Does nothing if `dim` has no factors or needs a
// window.
tsr_value *tsr__x_place(struct expansion *expansion, tsr_value *value, int rank, int axis,
                        const struct rule_dim *dim)
{
    if (!value || !dim->n || dim->window)
        return value;
    struct rule_dim *dims = ARENA_ARRAY(expansion->arena, struct rule_dim, (size_t)rank + 1);
    struct expanded_place *place = vec_push(expansion->arena, &expansion->placed);
    if (!dims || !place) {
        expansion->failed = true;
        return NULL;
    }
    dims[axis] = *dim;
    *place = (struct expanded_place){.value = value, .tensor = {.rank = rank, .dims = dims}};
    return value;
}

// Adds a Reshape. Returns NULL for NULL: the failure is recorded already.
tsr_value *tsr__x_reshape(struct expansion *expansion, tsr_value *value, const int64_t *shape,
                          int64_t n)
{
    if (value)
        return X_OP(expansion, "Reshape", value, tsr__x_ints(expansion, shape, n));
    return NULL;
}

// Adds a dimension. Axes are an attribute before opset 13.
tsr_value *tsr__x_unsqueeze(struct expansion *expansion, tsr_value *value, int64_t axis)
{
    if (expansion->opset >= 13)
        return X_OP(expansion, "Unsqueeze", value, tsr__x_ints(expansion, &axis, 1));
    value = X_OP(expansion, "Unsqueeze", value);
    return tsr__x_with_ints(expansion, value, "axes", &axis, 1);
}

// Makes the value output k of the old node. If the value is an input of the old node, it is copied
// by a new node, because outputs keep their names.
void tsr__x_give(struct expansion *expansion, int k, tsr_value *value)
{
    if (!tsr_node_output(expansion->node, (size_t)k))
        return; // not requested
    bool made = false;
    if (!value) {
        expansion->failed = true;
        return;
    }
    for (size_t i = 0; i < expansion->nodes.n; i++)
        made = made || expansion->nodes.at[i] == tsr_value_producer(value);
    if (!made) // an input passes through
        value = X_OP(expansion, "Identity", value);
    struct expanded_slot *slot = value ? vec_push(expansion->arena, &expansion->gives) : NULL;
    if (!slot) {
        expansion->failed = true;
        return;
    }
    *slot = (struct expanded_slot){tsr_value_producer(value), value, k};
}

// ---- main function ------------------------------------------------------------------------------

// Gives the new value the name, type and uses of the old one. The old value is renamed first: names
// are unique, and outputs of the graph are found by name.
static tsr_status replace_value(struct expansion *expansion, tsr_value *old, tsr_value *by)
{
    struct str name = tsr__arena_str(expansion->arena, tsr__value_str(old));
    struct str aside = tsr__graph_fresh_name(expansion->graph, STR("replaced"));
    if (!name.p || !aside.n)
        return TSR_NOMEM;
    TRY(tsr__value_copy_type(by, old));
    TRY(tsr_value_rename(old, aside.p));
    TRY(tsr_value_replace_uses(old, by, true));
    return tsr_value_rename(by, name.p);
}

// Removes the old node. All outputs are replaced first, because a node whose values are used cannot
// be removed.
static tsr_status finish(struct expansion *expansion)
{
    for (size_t i = 0; i < expansion->gives.n; i++) {
        tsr_value *old = tsr_node_output(expansion->node, (size_t)expansion->gives.at[i].of);
        TRY(replace_value(expansion, old, expansion->gives.at[i].value));
    }
    return tsr_node_remove(expansion->node);
}

// Returns the node's name, or that of its first named output. "" if both are missing: names of new
// nodes then start with a slash.
static const char *name_of(const tsr_node *node)
{
    if (tsr_node_name(node)[0])
        return tsr_node_name(node);
    for (size_t i = 0; i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i) && tsr_value_name(tsr_node_output(node, i))[0])
            return tsr_value_name(tsr_node_output(node, i));
    return "";
}

// Replaces the node by simpler ones. Returns TSR_NOMEM if an arena is full, even if the expansion
// also failed: with more memory it might succeed.
tsr_status tsr__rule_expand(struct arena *arena, tsr_node *node, const tsr_node *twin,
                            const struct shapes *shapes, const struct rule *rule,
                            const int64_t *cuts, struct expanded *out)
{
    const struct op_row *row = tsr__row_of(shapes, twin);
    if (!row || !row->expand.build)
        return TSR_UNSUPPORTED;
    struct expansion x = {.arena = arena,
                          .shapes = shapes,
                          .twin = twin,
                          .node = node,
                          .graph = tsr_node_graph(node),
                          .rule = rule,
                          .cuts = cuts,
                          .opset = tsr__onnx_opset(node)};
    x.name = tsr__arena_str(arena, str_of(name_of(node)));
    if (!x.name.p)
        return TSR_NOMEM;
    // From here on the graph may have new nodes, even if the expansion fails; the caller works on a
    // copy.
    row->expand.build(&x);
    bool full = arena->failed || tsr__model_arena(tsr_graph_model(x.graph))->failed;
    if (full)
        return TSR_NOMEM;
    if (x.failed || !x.gives.n)
        return TSR_UNSUPPORTED;
    *out = (struct expanded){.nodes = x.nodes.at,
                             .n_nodes = x.nodes.n,
                             .reads = x.reads.at,
                             .gives = x.gives.at,
                             .n_reads = x.reads.n,
                             .n_gives = x.gives.n,
                             .places = x.places.at,
                             .n_places = x.places.n};
    return finish(&x);
}
