// SPDX-License-Identifier: Apache-2.0
// precision.c - the tolerance of each value of a model: that of the least precise type among all
// computations that it depends on. A float32 product that is cast to double is still a float32
// product. Values that depend on random numbers without a seed have the tolerance INFINITY.
// Initializers and inputs of the model are exact, whatever their type.
//
// Example: x (float32) -> MatMul -> h (float32: 5e-5) -> Cast to double -> y (own type 1e-12, but
// 5e-5 from h).
#include "verify/internal.h"
#include "rules/rules.h"

#include <math.h>

// Tolerances by value id; 0 until the node that computes the value was visited.
struct precision_pass {
    const struct shapes *shapes;
    double *at; // by value
};

// Returns the tolerance of a value: 0 (exact) for initializers, inputs of the model, and missing
// inputs of a node.
static double of_value(const struct precision_pass *precision_pass, const tsr_value *value)
{
    return value ? precision_pass->at[tsr__value_id(value)] : 0;
}

static double visit_graph(struct precision_pass *precision_pass, const tsr_graph *graph);

// Returns the largest tolerance inside of a node's bodies.
static double visit_bodies(struct precision_pass *precision_pass, const tsr_node *node)
{
    double most = 0;
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            most = fmax(most, visit_graph(precision_pass, tsr_attr_graph(attr, k)));
    }
    return most;
}

// Sets the tolerance of each output of a node: the largest tolerance among the output's type, the
// type in which the engine computes it, the node's inputs and the node's bodies. Returns the
// largest tolerance of the outputs and the bodies.
static double visit_node(struct precision_pass *precision_pass, const tsr_node *node)
{
    double read = tsr__node_draws(node) ? INFINITY : visit_bodies(precision_pass, node),
           most = read;
    read = fmax(read, tsr__tolerance(tsr__node_stash(node)));
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        read = fmax(read, of_value(precision_pass, tsr_node_input(node, i)));
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (!value)
            continue;
        double *own = &precision_pass->at[tsr__value_id(value)];
        *own = fmax(read, tsr__tolerance(tsr__shapes_element(precision_pass->shapes, value).dtype));
        most = fmax(most, *own);
    }
    return most;
}

static double visit_graph(struct precision_pass *precision_pass, const tsr_graph *graph)
{
    double most = 0;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        most = fmax(most, visit_node(precision_pass, node));
    return most;
}

// Finds the tolerance of all values, in one pass in node order, so that the inputs of a node have a
// tolerance before the node is visited.
tsr_status tsr__precision_find(struct work *work)
{
    if (work->precision)
        return TSR_OK;
    struct precision_pass precision_pass = {.shapes = tsr__model_shapes(work->model)};
    precision_pass.at =
        ARENA_ARRAY(&work->arena, double, (size_t)tsr__model_value_ids(work->model) + 1);
    if (!precision_pass.shapes || !precision_pass.at)
        return TSR_NOMEM;
    visit_graph(&precision_pass, tsr_model_graph(work->model));
    work->precision = precision_pass.at;
    return TSR_OK;
}

// Returns the tolerance of the value with this name, for tsr__compare; 0: the default of its type.
// The caller's tolerance replaces the computed one, except for random values.
double tsr__precision_of(const struct work *work, const char *name)
{
    const tsr_value *value = tsr_graph_value(tsr_model_graph(work->model), name);
    double found = value ? work->precision[tsr__value_id(value)] : 0;
    return isinf(found) || work->options->tolerance <= 0 ? found : work->options->tolerance;
}
