// SPDX-License-Identifier: Apache-2.0
// emit_shape.c - computes sizes at run time. A symbol is read from a model input that has it as a
// dimension, and from which the value was computed (facts/origins.c). An expression ("batch*seq",
// "past + 1") becomes a few nodes. A shape is a Concat of sizes. All are sizes of full tensors;
// local_shape.c computes local ones.
//
//     Example: x [batch,seq] is an input; a Reshard needs the shape [batch*seq,6]:
//         b = Gather(Shape(x), [0]);  s = Gather(Shape(x), [1]);  Concat(Mul(b, s), [6])
//     b and s are added once, to the main graph; the Concat is added where it is needed.
#include "internal.h"

// ---- one size ----------------------------------------------------------------------------------

// Returns the full shape of a model input. If ranks have shards of it, this is the sum that the
// ranks computed (from->count), else a Shape of the input.
static tsr_value *source_shape(struct part *part, const struct size_source *from)
{
    tsr_value *counted = local_of(part, from->count);
    if (counted)
        return counted;
    struct item *it = tsr__item_of(part->draft, from->input);
    if (!it)
        return NULL;
    return tsr__part_sizes(part, tsr__part_input(part, it), it->dtype, NEW_NAME);
}

// Returns the size of an input's dimension, int64[1]. The nodes that compute it are added once.
tsr_value *tsr__part_source(struct part *part, struct size_source *from)
{
    tsr_value **local = &from->local[part->rank];
    if (*local)
        return *local;
    int64_t axis = from->axis;
    tsr_graph *here = part->graph;
    part->graph = tsr_model_graph(part->model); // where all bodies can read it
    tsr_value *shape = source_shape(part, from);
    *local = NODE(part, "Gather", shape, tsr__part_number(part, axis));
    part->graph = here;
    return *local;
}

// Callback of size_maker: returns the value of a symbol.
static tsr_value *symbol_value(void *data, struct size_source *from, const uint64_t *origins)
{
    struct part *part = data;
    if (!tsr__same_sizes_add(part->draft, tsr__part_same_sizes(part), from, origins))
        return NULL;
    return tsr__part_source(part, from);
}

static const char *const arith_ops[] = {
    [SIZE_OP_ADD] = "Add", [SIZE_OP_SUB] = "Sub", [SIZE_OP_MUL] = "Mul",
    [SIZE_OP_DIV] = "Div", [SIZE_OP_MOD] = "Mod",
};

// Adds nodes that return 1 where a is larger than b, else 0. Example: [5 2] and [3 3] give [1 0].
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b)
{
    tsr_value *larger = NODE(part, "Greater", tsr__part_cast(part, a, TSR_DOUBLE, NEW_NAME),
                             tsr__part_cast(part, b, TSR_DOUBLE, NEW_NAME));
    return tsr__part_cast(part, larger, TSR_INT64, NEW_NAME);
}

// Adds nodes that return max(a - b, 0) without Max, which before opset 12 takes only floats.
static tsr_value *excess(struct part *part, tsr_value *a, tsr_value *b)
{
    tsr_value *gap = NODE(part, "Sub", a, b);
    return NODE(part, "Mul", tsr__part_one_where_larger(part, a, b), gap);
}

tsr_value *tsr__part_largest(struct part *part, tsr_value *a, tsr_value *b)
{
    if (part->draft->opset >= 12)
        return NODE(part, "Max", a, b);
    return NODE(part, "Add", b, excess(part, a, b));
}

tsr_value *tsr__part_smallest(struct part *part, tsr_value *a, tsr_value *b)
{
    if (part->draft->opset >= 12)
        return NODE(part, "Min", a, b);
    return NODE(part, "Sub", a, excess(part, a, b));
}

// Adds nodes that return a modulo b. Mod exists from opset 10 on.
static tsr_value *remainder_of(struct part *part, tsr_value *a, tsr_value *b)
{
    if (part->draft->opset >= 10)
        return NODE(part, "Mod", a, b);
    tsr_value *times = NODE(part, "Div", a, b);
    return NODE(part, "Sub", a, NODE(part, "Mul", times, b));
}

static tsr_value *arith_node(void *data, enum size_op op, tsr_value *a, tsr_value *b)
{
    struct part *part = data;
    if (op == SIZE_OP_MAX)
        return tsr__part_largest(part, a, b);
    if (op == SIZE_OP_MIN)
        return tsr__part_smallest(part, a, b);
    if (op == SIZE_OP_MOD)
        return remainder_of(part, a, b);
    return NODE(part, arith_ops[op], a, b);
}

static tsr_value *number_value(void *data, int64_t number)
{
    return tsr__part_ints(data, &number, 1);
}

// Returns a tensor of the rank that has the full size of the axis, or NULL.
static tsr_value *tensor_with_size(struct part *part, const struct item *it, int axis)
{
    for (struct form *form = it->first; form; form = form->next) {
        const struct tile_layout *layout = form->layout;
        tsr_value *local = local_of(part, form);
        if (local && !form->windows && layout->rank == it->rank &&
            !tsr__dim_is_sharded(&layout->dims[axis]) && tsr__layout_has_device(layout, part->rank))
            return local;
    }
    return NULL;
}

// Reads a size that depends on several inputs from the value itself if possible: one of the inputs
// may have size 1, which ONNX Runtime repeats. A simulation has a number for a size that a run
// computes, or none if its sizes contradict each other: then 1, as for all unknown sizes.
tsr_value *tsr__part_size(struct part *part, const struct item *it, int axis)
{
    tsr_value *tensor = NULL;
    const int64_t unknown = 1;
    bool contradicts = it->open && it->dims[axis].value < 0 && !*it->dims[axis].symbol;
    if (it->fixed || contradicts)
        return tsr__part_computed(part, it,
                                  tsr__part_ints(part, it->fixed ? &it->shape[axis] : &unknown, 1));
    if (tsr__size_is_shared(part->draft, it, axis))
        tensor = tensor_with_size(part, it, axis);
    if (tensor)
        return NODE(part, "Gather", tsr__part_sizes(part, tensor, it->dtype, NEW_NAME),
                    tsr__part_number(part, axis));
    const struct size_maker maker = {part, symbol_value, number_value, arith_node};
    return tsr__size_make(part->draft, &maker, it, axis);
}

// Returns the full shape of a value: a constant if all sizes are known, else a Concat. Example:
// [n,6] is Concat(n, 6).
tsr_value *tsr__part_shape(struct part *part, const struct item *it)
{
    if (it->fixed)
        return tsr__part_ints(part, it->shape, it->rank);
    tsr_value **sizes = ARENA_ARRAY(part->draft->arena, tsr_value *, (size_t)it->rank + 1);
    if (!sizes)
        return NULL;
    for (int axis = 0; axis < it->rank; axis++)
        sizes[axis] = tsr__part_size(part, it, axis);
    return tsr__part_concat(part, sizes, (size_t)it->rank, 0, NEW_NAME);
}

// ---- Shape and Size -----------------------------------------------------------------------------

tsr_value *tsr__part_computed(struct part *part, const struct item *it, tsr_value *sizes)
{
    for (int axis = 0; it->open && axis < it->rank; axis++)
        if (it->open[axis] < 0)
            return NODE(part, "Identity", sizes);
    return sizes;
}

// Returns entries first to last - 1 of the full shape.
static tsr_value *some_sizes(struct part *part, const struct item *it, int first, int last)
{
    int64_t at[TILE_MAX_RANK];
    if (first >= last)
        return tsr__part_empty(part, TSR_INT64);
    if (it->fixed)
        return tsr__part_computed(part, it, tsr__part_ints(part, it->shape + first, last - first));
    tsr_value *shape = tsr__part_shape(part, it);
    if (first == 0 && last == it->rank)
        return shape;
    for (int i = first; i < last; i++)
        at[i - first] = i;
    return NODE(part, "Gather", shape, tsr__part_ints(part, at, last - first));
}

// Computes the number of elements of a tensor of known shape. False: it exceeds an int64.
static bool count_elements(const struct item *it, int64_t *out)
{
    bool fits = true;
    *out = 1;
    for (int i = 0; i < it->rank; i++) {
        if (it->shape[i] == 0) {
            *out = 0;
            return true; // even if the product of the other sizes does not fit
        }
        fits = fits && mul_ok(*out, it->shape[i], out);
    }
    return fits;
}

// Returns the number of elements of the full tensor, as a scalar.
static tsr_value *product_of(struct part *part, const struct item *it)
{
    int64_t n;
    if (it->fixed && count_elements(it, &n))
        return tsr__part_computed(part, it,
                                  tsr__part_constant(part, part->graph, TSR_INT64, 0, NULL, &n));
    tsr_value *value = NODE(part, "ReduceProd", tsr__part_shape(part, it));
    return tsr__with_int(value, "keepdims", 0);
}

// Replaces a Shape or Size of a sharded tensor by the sizes of the full tensor. Example: Shape(x)
// with x [n,6] sharded becomes a Concat of n and 6. x itself is not read.
tsr_status tsr__emit_sizes(struct part *part, struct step *st, const struct rule_rewrite *rewrite)
{
    struct draft *draft = part->draft;
    const struct item *it =
        tsr__item_of(draft, tsr_node_input(st->flow->node, (size_t)rewrite->input));
    if (!it)
        return TSR_NOMEM;
    if (!tsr__shape_known(draft, it) || rewrite->sizes.stop > it->rank || it->rank > TILE_MAX_RANK)
        return tsr__fail(
            draft->session, TSR_UNSUPPORTED, DIAG_partition_no_tensor,
            PLACE_AT(tsr__place_node(st->flow->node)), "do not shard the node's input",
            "the node returns sizes of a sharded tensor, which cannot be computed from the "
            "sizes of the model's inputs");
    tsr_value **value = &st->outputs[0]->local[part->rank];
    if (rewrite->kind == REWRITE_SIZE)
        *value = product_of(part, it);
    else
        *value = some_sizes(part, it, rewrite->sizes.first, rewrite->sizes.stop);
    return status_of_alloc(*value);
}

// ---- summing sizes over ranks -------------------------------------------------------------------

// Sets mask[axis] to 1 for each dimension whose local size this device adds to the sum over all
// devices. Returns true if these are all dimensions.
static bool counts_in(const struct tile_layout *layout, int64_t device, int64_t *mask)
{
    const int64_t *owners;
    int64_t coords[TILE_MAX_LOOPS], shard = tsr__layout_shard_of(layout, device, 0);
    bool all = true;
    if (shard < 0 || tsr__layout_owners(layout, shard, &owners) == 0)
        return false;
    tsr__layout_coords(layout, shard, coords);
    for (int axis = 0; axis < layout->rank; axis++) {
        mask[axis] = owners[0] == device;
        for (int i = 0; i < layout->n_loops; i++)
            if (layout->loops[i].dim != axis && coords[i] != 0)
                mask[axis] = 0;
        all = all && mask[axis];
    }
    return all;
}

// Adds nodes that return the sizes that this rank adds to a sum over the ranks. Example: a local
// tensor [4,6] with the mask [1,0] of counts_in gives [4,0].
tsr_value *tsr__part_count(struct part *part, struct form *from, struct str name)
{
    int64_t mask[TILE_MAX_RANK] = {0};
    bool all = counts_in(from->layout, part->rank, mask), any = false;
    for (int axis = 0; axis < from->layout->rank; axis++)
        any = any || mask[axis];
    tsr_value *x = local_of(part, from);
    if (all)
        return tsr__part_sizes(part, x, from->item->dtype, name);
    tsr_value *ones = tsr__part_ints(part, mask, from->layout->rank);
    if (!any)
        return ones;
    tsr_value *shape = tsr__part_sizes(part, x, from->item->dtype, NEW_NAME);
    return NAMED_NODE(part, "Mul", name, shape, ones);
}
