// SPDX-License-Identifier: Apache-2.0
// static_sizes.c - fixes the sizes of a model (`partition --static`): all symbolic dimensions of
// the inputs become numbers, and shape inference gives the other values numbers too. Small integer
// tensors whose elements then are known become constants, and the nodes that computed them are
// removed.
//
//     Example: with seq=9, Shape(ids) -> Gather -> Concat -> Reshape becomes Reshape of a constant.
//
// A simulation needs the rank graphs of the model with open sizes, but with numbers. So its sizes
// are fixed after planning: the steps are those of the open model.
#include "internal.h"

#define MOST_ELEMENTS 64 // of a tensor that becomes a constant

// Reports each dimension of the inputs that has no size.
static tsr_status check_inputs(tsr_model *model, const struct place *model_at)
{
    const tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++) {
        const tsr_value *value = tsr_graph_input(graph, i);
        struct place at = *model_at;
        at.value = str_of(tsr_value_name(value));
        for (int axis = 0; axis < tsr_value_rank(value); axis++) {
            const char *name = tsr_value_dim_name(value, axis);
            if (!name)
                continue;
            st = tsr__fail(tsr_model_session(model), TSR_INVALID, DIAG_partition_open_size, &at,
                           "give the size: --dim NAME=SIZE",
                           "dimension %d (%s) has no size, so the rank files cannot be static",
                           axis, name);
        }
    }
    return st;
}

// Replaces the uses of a value by a constant, if its elements are known.
static tsr_status replace_known(struct arena *arena, const struct shapes *shapes, tsr_value *value)
{
    int64_t elements[MOST_ELEMENTS], dims[MOST_ELEMENTS], product = 1;
    int32_t narrow[MOST_ELEMENTS];
    struct shape shape = tsr__shapes_of(shapes, value);
    int64_t n = tsr__shapes_ints(shapes, value, elements, MOST_ELEMENTS);
    bool is_narrow = shape.dtype == TSR_INT32;
    if (n < 0 || shape.rank < 0 || shape.rank > MOST_ELEMENTS || tsr_value_use_count(value) == 0 ||
        (shape.dtype != TSR_INT64 && !is_narrow))
        return TSR_OK;
    for (int i = 0; i < shape.rank; i++) {
        dims[i] = shape.dims[i].value;
        if (dims[i] < 0 || !mul_ok(product, dims[i], &product))
            return TSR_OK;
    }
    if (product != n)
        return TSR_OK;
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (int32_t)elements[i];
    struct str name = tsr__arena_printf(arena, "ai.tessera.static.%s", tsr_value_name(value));
    if (!name.p)
        return TSR_NOMEM;
    size_t bytes = (size_t)n * (is_narrow ? sizeof *narrow : sizeof *elements);
    tsr_value *constant =
        tsr_graph_add_initializer(tsr_value_graph(value), name.p, shape.dtype, shape.rank, dims,
                                  is_narrow ? (const void *)narrow : elements, bytes);
    return constant ? tsr_value_replace_uses(value, constant, false) : TSR_INVALID;
}

tsr_status tsr__fix_sizes(struct arena *arena, tsr_model *model, const struct place *at,
                          const tsr_dim_size *sizes, size_t n)
{
    tsr_graph *graph = tsr_model_graph(model);
    TRY(tsr__shapes_declare(model, sizes, n, NULL));
    TRY(check_inputs(model, at));
    const struct shapes *shapes = tsr__shapes_bound(arena, model, NULL, 0, false);
    if (!shapes)
        return TSR_NOMEM;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (tsr_node_output(node, i) && !tsr__node_is_constant(node))
                TRY(replace_known(arena, shapes, tsr_node_output(node, i)));
    return tsr__graph_remove_unused(graph);
}

// Gives an item the numbers of its value's shape. A run without them has the same nodes.
static bool bind_item(struct draft *draft, const struct shapes *shapes, struct item *it)
{
    struct shape shape = tsr__shapes_element(shapes, it->value);
    if (tsr_value_initializer(it->value) || shape.rank != it->rank || it->rank < 0 ||
        it->rank > TILE_MAX_RANK)
        return true;
    int64_t *open = ARENA_ARRAY(draft->arena, int64_t, TILE_MAX_RANK);
    if (!open)
        return false;
    (void)tsr__item_tensor(draft, it, open);
    it->open = open;
    it->dims = shape.dims;
    return tsr__item_sizes(draft, it);
}

tsr_status tsr__draft_bind(struct draft *draft)
{
    const struct partition_visitor *visitor = draft->visitor;
    if (!visitor || !visitor->n_sizes)
        return TSR_OK;
    struct flow *flow = ARENA_NEW(draft->arena, struct flow);
    const struct shapes *shapes =
        tsr__shapes_assumed(draft->arena, draft->model, visitor->sizes, visitor->n_sizes);
    if (!flow || !shapes)
        return TSR_NOMEM;
    for (size_t id = 0; id < tsr__model_value_ids(draft->model); id++)
        if (draft->items[id] && !bind_item(draft, shapes, draft->items[id]))
            return TSR_NOMEM;
    *flow = *draft->flow;
    flow->shapes = shapes;
    draft->flow = flow;
    return TSR_OK;
}
