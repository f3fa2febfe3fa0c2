// SPDX-License-Identifier: Apache-2.0
// declare.c - tsr_shapes: writes the inferred types and shapes into the model. Bodies of functions
// are left unchanged: one body serves calls of many shapes.
//
// Sizes for names that the model does not have are errors (dim_names.c). Shapes are inferred with
// the other sizes that the caller gives (shapes.c). Then each value of the main graph and of the
// bodies of its nodes gets its type. After a failure only some values may be declared; such a model
// is not saved.
#include "rules/internal.h"

// True if the rank is known and every dimension is a number or an expression.
static bool all_known(struct shape shape)
{
    for (int i = 0; i < shape.rank; i++)
        if (!dim_known(shape.dims[i]))
            return false;
    return shape.rank >= 0;
}

// Declares type and shape of a value. A declared symbol stays unless inference found a number.
// Constants, values of unknown type and values that are not tensors are not changed.
static tsr_status declare(struct shapes *shapes, tsr_value *value)
{
    struct value_info found = tsr__info_of(shapes, value);
    int rank = found.shape.rank, declared = tsr_value_rank(value);
    if (found.form != VALUE_TENSOR || found.shape.dtype == TSR_UNDEFINED ||
        tsr__value_is_other(value) || tsr_value_initializer(value))
        return TSR_OK;
    const tsr_dim *dims = found.shape.dims;
    tsr_dim *kept = NULL;
    for (int i = 0; i < (declared == rank ? rank : 0); i++) {
        tsr_dim own = tsr_value_dim(value, i);
        if (own.value >= 0 || !dim_known(own) || dims[i].value >= 0 || own.symbol == dims[i].symbol)
            continue;
        if (!kept) {
            kept = ARENA_ARRAY(shapes->arena, tsr_dim, (size_t)rank);
            if (!kept)
                return TSR_NOMEM;
            memcpy(kept, dims, (size_t)rank * sizeof(*kept));
        }
        kept[i] = own;
    }
    return tsr_value_set_type(value, found.shape.dtype, rank, kept ? kept : dims);
}

// Adds a value that a node makes to the summary.
static void count(const struct shapes *shapes, const tsr_value *value, tsr_shapes_summary *sum)
{
    struct value_info info = tsr__info_of(shapes, value);
    sum->values++;
    sum->typed += info.shape.dtype != TSR_UNDEFINED;
    sum->ranked += info.shape.rank >= 0;
    sum->fixed += all_known(info.shape);
}

static tsr_status declare_graph(struct shapes *shapes, const tsr_graph *graph,
                                tsr_shapes_summary *sum);

// Declares the outputs of one node and the values of its subgraphs.
static tsr_status declare_node(struct shapes *shapes, const tsr_node *node, tsr_shapes_summary *sum)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        tsr_value *value = tsr_node_output(node, i);
        if (!value)
            continue;
        count(shapes, value, sum);
        TRY(declare(shapes, value));
    }
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            TRY(declare_graph(shapes, tsr_attr_graph(attr, k), sum));
    }
    return TSR_OK;
}

// Declares every value of the graph, then of the bodies of its nodes.
static tsr_status declare_graph(struct shapes *shapes, const tsr_graph *graph,
                                tsr_shapes_summary *sum)
{
    for (size_t i = 0; i < tsr_graph_input_count(graph); i++)
        TRY(declare(shapes, tsr_graph_input(graph, i)));
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        TRY(declare_node(shapes, node, sum));
    return TSR_OK;
}

// Infers and declares all shapes. Types and shapes are stored in the model, everything else in an
// arena that is freed at the end. *summary is written only on success, up to its `size`.
tsr_status tsr__shapes_declare(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                               tsr_shapes_summary *summary)
{
    tsr_shapes_summary sum = {.size = sizeof(sum)};
    tsr_status st = TSR_OK;
    struct arena arena = {.session = tsr_model_session(model)};
    struct shapes *shapes = tsr__shapes_bound(&arena, model, sizes, n, true);
    if (!shapes) {
        st = TSR_NOMEM;
        goto free_arena;
    }
    if (tsr_model_graph(model))
        st = declare_graph(shapes, tsr_model_graph(model), &sum);
    if (st != TSR_OK || !summary)
        goto free_arena;
    tsr__result_write(summary, &sum, sizeof(sum));
free_arena:
    tsr__arena_free(&arena);
    return st;
}

tsr_status tsr_shapes(tsr_model *model, const tsr_dim_size *sizes, size_t n,
                      tsr_shapes_summary *summary)
{
    TRY(tsr__check_dims(&model, 1, sizes, n));
    if (summary)
        TRY(RESULT_CHECK(tsr_model_session(model), summary, fixed));
    return tsr__shapes_declare(model, sizes, n, summary);
}
