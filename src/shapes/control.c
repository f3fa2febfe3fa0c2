// SPDX-License-Identifier: Apache-2.0
// control.c - the roles of a control-flow node's values: control inputs, states carried from
// iteration to iteration, slices, stacked results. If, Loop and Scan have one form, so that other
// modules need not know these operators.
//
//              control              states        slices        results
//   If         the condition        none          none          outputs of both branches
//   Loop       count, condition     inputs 2..    none          stacked, one element per iteration
//   Scan       none                 the first     the last      stacked along their axes
//
// A Scan with 3 inputs and num_scan_inputs 2 has 1 state and 2 slices. Its body has 3 inputs; its
// first output is the state, the others are results.
#include "shapes/infer.h"

static tsr_graph *graph_of(const tsr_node *node, const char *name)
{
    const tsr_attr *attr = tsr_node_find_attr(node, name);
    return attr && tsr_attr_graph_count(attr) == 1 ? tsr_attr_graph(attr, 0) : NULL;
}

// Reads an If. Branches have no inputs: they read values of the outer graph. Both must have the
// same number of outputs, otherwise returns false.
static bool control_if(const tsr_node *node, struct control *control)
{
    static const char *const names[] = {"then_branch", "else_branch"};
    for (int i = 0; i < 2; i++) {
        control->names[i] = names[i];
        control->bodies[i] = graph_of(node, names[i]);
        if (!control->bodies[i] || tsr_graph_input_count(control->bodies[i]))
            return false;
    }
    size_t results = tsr_graph_output_count(control->bodies[0]);
    control->n_bodies = 2;
    control->n_steer = 1;
    control->n_results = (int)results;
    return results == tsr_graph_output_count(control->bodies[1]) &&
           tsr_node_input_count(node) == 1 && tsr_node_input(node, 0);
}

// Reads a Loop. Its inputs are count, condition and states. The body has inputs iteration number,
// condition and states, and outputs condition, states and results. False: the body is missing or
// does not match.
static bool control_loop(const tsr_node *node, struct control *control)
{
    size_t n_in = tsr_node_input_count(node);
    tsr_graph *graph = control->bodies[0] = graph_of(node, "body");
    if (!graph || n_in < 2)
        return false;
    size_t states = n_in - 2, given = tsr_graph_output_count(graph);
    control->names[0] = "body";
    control->n_bodies = 1;
    control->loops = control->condition = true;
    control->n_steer = control->n_numbers = 2;
    control->n_states = (int)states;
    control->n_results = (int)given - 1 - (int)states;
    return tsr_graph_input_count(graph) == n_in && control->n_results >= 0;
}

// Reads a Scan. The last num_scan_inputs inputs are sliced, those before them are states. The body
// has neither an iteration number nor a condition. False: the node is invalid, or of opset 8.
static bool control_scan(const tsr_node *node, struct control *control)
{
    size_t n_in = tsr_node_input_count(node);
    int64_t slices = tsr_attr_int(tsr_node_find_attr(node, "num_scan_inputs"), -1);
    tsr_graph *graph = control->bodies[0] = graph_of(node, "body");
    if (!graph || tsr__node_opset(node) < 9 || slices < 1 || (uint64_t)slices > n_in)
        return false; // version 8 has a batch dimension before all others
    control->names[0] = "body";
    control->n_bodies = 1;
    control->loops = true;
    control->n_slices = (int)slices;
    control->n_states = (int)n_in - (int)slices;
    control->n_results = (int)tsr_graph_output_count(graph) - control->n_states;
    control->n_in_axes =
        tsr_attr_ints(tsr_node_find_attr(node, "scan_input_axes"), &control->in_axes);
    control->n_out_axes =
        tsr_attr_ints(tsr_node_find_attr(node, "scan_output_axes"), &control->out_axes);
    return tsr_graph_input_count(graph) == n_in && control->n_results >= 0;
}

// Reads the roles of inputs and outputs. A node whose number of values does not match its body is
// not treated as control flow; ONNX Runtime reports the error.
bool tsr__control_of(const tsr_node *node, struct control *out)
{
    static const struct {
        const char *op;
        bool (*read)(const tsr_node *node, struct control *control);
    } known[] = {{"If", control_if}, {"Loop", control_loop}, {"Scan", control_scan}};
    struct control c = {0};
    if (tsr__node_domain_str(node).n)
        return false;
    for (size_t i = 0; i < TSR_COUNT(known); i++) {
        if (!str_is(tsr__node_op_str(node), known[i].op) || !known[i].read(node, &c) ||
            tsr_node_output_count(node) > (size_t)c.n_states + (size_t)c.n_results)
            continue;
        for (size_t k = (size_t)c.n_steer; k < tsr_node_input_count(node); k++)
            if (!tsr_node_input(node, k))
                return false; // a state needs an initial value
        *out = c;
        return true;
    }
    return false;
}

int tsr__control_in_axis(const struct control *control, int slice, int rank)
{
    return tsr__axis((size_t)slice < control->n_in_axes ? control->in_axes[slice] : 0, rank);
}

int tsr__control_out_axis(const struct control *control, int result, int rank)
{
    return tsr__axis((size_t)result < control->n_out_axes ? control->out_axes[result] : 0, rank);
}

// A trip count from here on means "no limit": exporters write the largest 32- or 64-bit integer.
#define NO_LIMIT INT32_MAX

// Returns the trip count of a Loop as far as inference knows it; -1: unknown.
static int64_t loop_trips(const struct shapes *shapes, const tsr_node *node)
{
    const tsr_value *count = tsr_node_input(node, 0);
    int64_t trips;
    if (!count || tsr__shapes_ints(shapes, count, &trips, 1) != 1 || trips >= NO_LIMIT)
        return -1;
    return trips;
}

// Returns the number of slices that a Scan reads; -1: unknown.
static int64_t scan_trips(const struct shapes *shapes, const tsr_node *node,
                          const struct control *control)
{
    struct shape shape = tsr__shapes_of(shapes, tsr_node_input(node, (size_t)control->n_states));
    int axis = shape.rank > 0 ? tsr__control_in_axis(control, 0, shape.rank) : -1;
    return axis < 0 ? -1 : shape.dims[axis].value;
}

int64_t tsr__control_trips(const struct shapes *shapes, const tsr_node *node,
                           const struct control *control)
{
    if (!control->loops)
        return 1;
    int64_t trips =
        control->n_slices ? scan_trips(shapes, node, control) : loop_trips(shapes, node);
    return trips < 0 ? CONTROL_USUAL_TRIPS : int64_max(trips, 1);
}

int tsr__control_taken(const struct shapes *shapes, const tsr_node *node,
                       const struct control *control)
{
    int64_t condition;
    if (control->n_bodies < 2 ||
        tsr__shapes_ints(shapes, tsr_node_input(node, 0), &condition, 1) != 1)
        return -1;
    return condition == 0;
}

size_t tsr__control_node_count(const tsr_graph *graph)
{
    size_t n = 0;
    struct control control;
    for (const tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        n++;
        for (int k = 0; tsr__control_of(node, &control) && k < control.n_bodies; k++)
            n += tsr__control_node_count(control.bodies[k]);
    }
    return n;
}

// ---- decisions ---------------------------------------------------------------------------------

#define MAX_EXACT 64 // limit of nodes that is_exact examines

// True for types whose arithmetic does not round.
static bool is_exact_type(tsr_dtype t)
{
    switch (t) {
    case TSR_BOOL:
    case TSR_INT8:
    case TSR_INT16:
    case TSR_INT32:
    case TSR_INT64:
    case TSR_UINT8:
    case TSR_UINT16:
    case TSR_UINT32:
    case TSR_UINT64:
        return true;
    default:
        return false;
    }
}

// True for an input that has the same bits on all devices: an input of the model, or the iteration
// number or condition of a loop. Loop states may differ between devices.
static bool is_exact_input(const tsr_value *value)
{
    const tsr_graph *graph = tsr_value_graph(value);
    struct control control;
    if (graph && !tsr_graph_owner(graph))
        return true;
    if (!graph || !tsr__control_of(tsr_graph_owner(graph), &control))
        return false;
    for (int i = 0; i < control.n_numbers; i++)
        if (tsr_graph_input(graph, (size_t)i) == value)
            return true;
    return false;
}

// As tsr__control_exact. Also false if the value depends on more than *budget nodes.
static bool is_exact(const struct shapes *shapes, const tsr_value *value, int *budget)
{
    const tsr_node *node = tsr_value_producer(value);
    if (tsr_value_initializer(value))
        return true;
    if (!node)
        return is_exact_input(value);
    if ((*budget)-- <= 0 || tsr__node_has_graphs(node) ||
        !is_exact_type(tsr__shapes_of(shapes, value).dtype))
        return false;
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !is_exact(shapes, tsr_node_input(node, i), budget))
            return false;
    return true;
}

bool tsr__control_exact(const struct shapes *shapes, const tsr_value *value)
{
    int budget = MAX_EXACT;
    return is_exact(shapes, value, &budget);
}

// ---- stacked results of loops without iterations ------------------------------------------------

#define MOST_DECLARED 16 // dimensions

// Returns the shape of stacked result i inside of the loop if only inference knows it; otherwise an
// unknown shape.
static struct shape undeclared(const struct shapes *shapes, const struct control *loop, size_t i)
{
    const tsr_graph *body = loop->bodies[0];
    size_t first = tsr_graph_output_count(body) - (size_t)loop->n_results;
    const tsr_value *value = tsr_graph_output(body, first + i);
    struct shape shape = SHAPE_UNKNOWN;
    if (value && tsr_value_rank(value) < 0 && !tsr__shapes_misread(shapes, value))
        shape = tsr__shapes_of(shapes, value);
    return shape.dtype != TSR_UNDEFINED && shape.rank <= MOST_DECLARED ? shape : SHAPE_UNKNOWN;
}

bool tsr__control_is_vague(const struct shapes *shapes, const tsr_node *node)
{
    struct control control;
    if (!tsr__control_of(node, &control) || !control.loops)
        return false;
    for (int i = 0; i < control.n_results; i++)
        if (undeclared(shapes, &control, (size_t)i).rank >= 0)
            return true;
    return false;
}

// Declares a type without symbols, whose meaning differs from graph to graph.
static tsr_status declare(tsr_value *value, struct shape shape)
{
    tsr_dim dims[MOST_DECLARED];
    if (!value || shape.rank < 0)
        return TSR_OK;
    for (int axis = 0; axis < shape.rank; axis++)
        dims[axis] = (tsr_dim){shape.dims[axis].value, ""};
    return tsr_value_set_type(value, shape.dtype, shape.rank, dims);
}

tsr_status tsr__control_declare(const struct shapes *shapes, const tsr_node *node, tsr_node *copy)
{
    struct control own, made;
    if (!tsr__control_of(node, &own) || !tsr__control_of(copy, &made))
        return TSR_OK;
    size_t first = tsr_graph_output_count(made.bodies[0]) - (size_t)made.n_results;
    for (size_t i = 0; own.loops && i < (size_t)own.n_results; i++)
        TRY(declare(tsr_graph_output(made.bodies[0], first + i), undeclared(shapes, &own, i)));
    for (int k = 0; k < own.n_bodies; k++) {
        const tsr_node *inner = tsr_graph_first(own.bodies[k]);
        tsr_node *copied = tsr_graph_first(made.bodies[k]);
        for (; inner && copied; inner = tsr_node_next(inner), copied = tsr_node_next(copied))
            TRY(tsr__control_declare(shapes, inner, copied));
    }
    return TSR_OK;
}
