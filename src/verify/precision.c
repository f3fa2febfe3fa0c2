// SPDX-License-Identifier: Apache-2.0
// precision.c - how far apart cut and whole may be, for each value of a model: by the coarsest type
// that anything it follows from was computed in. A float32 product that is cast to double is still
// a float32 product. What follows from random numbers without a seed may be anything. Constants and
// inputs are exact, whatever their type.
//
// Example: x (float32) -> MatMul -> h (float32: 5e-5) -> Cast to double -> y (own type 1e-12, but
// 5e-5 from h).
#include "verify/internal.h"
#include "rules/rules.h"

#include <math.h>

// Tolerances by value id; 0 until the node that makes the value has been walked over.
struct walk {
    const struct shapes *shapes;
    double *at; // by value
};

// 0 (exact) for constants, inputs, and inputs that a node does not have.
static double of_value(const struct walk *walk, const tsr_value *value)
{
    if (value)
        return walk->at[tsr__value_id(value)];
    return 0;
}

static double walk_graph(struct walk *walk, const tsr_graph *graph);

// The coarsest that happens inside of its bodies.
static double walk_bodies(struct walk *walk, const tsr_node *node)
{
    double most = 0;
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++)
            most = fmax(most, walk_graph(walk, tsr_attr_graph(attr, k)));
    }
    return most;
}

// What it makes is no finer than its type, what it reads, and what happens in its bodies.
static double walk_node(struct walk *walk, const tsr_node *node)
{
    double read = tsr__node_draws(node) ? INFINITY : walk_bodies(walk, node), most = read;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        read = fmax(read, of_value(walk, tsr_node_input(node, i)));
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (!value)
            continue;
        double *own = &walk->at[tsr__value_id(value)];
        *own = fmax(read, tsr__tolerance(tsr__shapes_element(walk->shapes, value).dtype));
        most = fmax(most, *own);
    }
    return most;
}

static double walk_graph(struct walk *walk, const tsr_graph *graph)
{
    double most = 0;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        most = fmax(most, walk_node(walk, node));
    return most;
}

// One walk in the order of the nodes: what a node reads has its tolerance by then.
tsr_status tsr__precision_find(struct work *work)
{
    if (work->precision)
        return TSR_OK;
    struct walk walk = {.shapes = tsr__shapes_new(&work->arena, work->model)};
    walk.at = ARENA_ARRAY(&work->arena, double, (size_t)tsr__model_value_ids(work->model) + 1);
    if (!walk.shapes || !walk.at)
        return TSR_NOMEM;
    walk_graph(&walk, tsr_model_graph(work->model));
    work->precision = walk.at;
    return TSR_OK;
}

// The caller's tolerance replaces the one that was found, but random values stay incomparable. 0:
// must be the same.
double tsr__precision_of(const struct work *work, const char *name)
{
    const tsr_value *value = tsr_graph_value(tsr_model_graph(work->model), name);
    double found = 0;
    if (value)
        found = work->precision[tsr__value_id(value)];
    if (isinf(found) || work->options->tolerance <= 0)
        return found;
    return work->options->tolerance;
}
