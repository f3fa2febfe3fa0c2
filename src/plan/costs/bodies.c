// SPDX-License-Identifier: Apache-2.0
// bodies.c - puts the nodes of the bodies of If, Loop and Scan into the planner's list of nodes.
//
// A body is a nested range of the list, just before its node. Its nodes are planned like all
// others; their times are multiplied by the trips of the loops around them. Each input and output
// of a body has an entry of its own, a border, whose candidates are the layouts in which the value
// passes from outside to inside or back.
//
//     Example: h = MatMul(x, w), y = Loop(8, true, h) { t = MatMul(s, w); returns t } has these
//     entries:
//
//         MatMul h           x w -> h
//         enter 0, 1         iteration number and condition
//         enter 2            h -> s       s has the layout in which h arrives
//         MatMul t           s w -> t     its time counts 8 times
//         leave 0            condition
//         leave 1            t -> y       t is resharded to the layout of s in each trip
//         Loop               8, true
#include "plan/costs/planner.h"

#define MOST_TIMES (INT64_C(1) << 31) // more executions are not distinguished

// ---- the values of an entry ---------------------------------------------------------------------

// Returns the outer value that becomes input `index` of a body; NULL: iteration number, condition.
static tsr_value *outer_input(const tsr_node *owner, const struct plan_border *border)
{
    const struct control *control = &border->bodies->control;
    size_t numbers = (size_t)control->n_numbers;
    if (border->index < numbers)
        return NULL;
    return tsr_node_input(owner, (size_t)control->n_steer + border->index - numbers);
}

// Returns the output of the node that output `index` of a body becomes; NULL: the condition, or an
// output that is not used.
static tsr_value *outer_output(const tsr_node *owner, const struct plan_border *border)
{
    size_t condition = border->bodies->control.condition;
    if (border->index < condition || border->index - condition >= tsr_node_output_count(owner))
        return NULL;
    return tsr_node_output(owner, border->index - condition);
}

size_t tsr__plan_reads(const struct plan_node *node)
{
    if (node->border)
        return node->border->leaves ? (size_t)node->border->bodies->control.n_bodies : 1;
    size_t n = tsr_node_input_count(node->node);
    return node->bodies ? size_min((size_t)node->bodies->control.n_steer, n) : n;
}

size_t tsr__plan_makes(const struct plan_node *node)
{
    if (node->border)
        return 1;
    return node->bodies ? 0 : tsr_node_output_count(node->node);
}

tsr_value *tsr__plan_read(const struct plan_node *node, size_t i)
{
    const struct plan_border *border = node->border;
    if (!border)
        return tsr_node_input(node->node, i);
    if (border->leaves)
        return tsr_graph_output(border->bodies->control.bodies[i], border->index);
    return outer_input(node->node, border);
}

tsr_value *tsr__plan_made(const struct plan_node *node, size_t i)
{
    const struct plan_border *border = node->border;
    if (!border)
        return tsr_node_output(node->node, i);
    if (border->leaves)
        return outer_output(node->node, border);
    return tsr_graph_input(border->bodies->control.bodies[0], border->index);
}

size_t tsr__plan_all_reads(const struct plan_node *node, tsr_value ***captures)
{
    *captures = NULL;
    size_t n = tsr__plan_reads(node);
    return node->border || node->bodies ? n : n + tsr__node_captures(node->node, captures);
}

size_t tsr__plan_made_slot(const struct plan_node *node, const tsr_value *made)
{
    return node->border ? 0 : (size_t)tsr__output_slot(node->node, made);
}

// Returns the index of the border that makes an input of a body; -1: the value is no such input, or
// the bodies are not planned.
static int64_t entered_by(const struct planner *planner, const tsr_value *value)
{
    const tsr_graph *graph = tsr_value_is_input(value) ? tsr_value_graph(value) : NULL;
    const tsr_node *owner = graph ? tsr_graph_owner(graph) : NULL;
    int64_t at = owner ? planner->node_at[tsr__node_id(owner)] : -1;
    if (at < 0 || !planner->nodes[at].bodies)
        return -1;
    size_t i = 0;
    while (tsr_graph_input(graph, i) != value)
        i++;
    return (int64_t)enter_border(planner->nodes[at].bodies, (size_t)at, i);
}

int64_t tsr__planned_producer(const struct planner *planner, const tsr_value *value)
{
    const tsr_node *node = value ? tsr_value_producer(value) : NULL;
    if (!node)
        return value && planner->body_outputs ? entered_by(planner, value) : -1;
    int64_t at = planner->node_at[tsr__node_id(node)];
    if (at < 0 || !planner->nodes[at].bodies)
        return at;
    const struct plan_bodies *bodies = planner->nodes[at].bodies;
    size_t slot = (size_t)tsr__output_slot(node, value) + bodies->control.condition;
    return (int64_t)leave_border(bodies, (size_t)at, slot);
}

uint32_t tsr__plan_layout(const struct planner *planner, const tsr_value *value)
{
    int64_t at = tsr__planned_producer(planner, value);
    if (at < 0 || !planner->nodes[at].strategy)
        return PLAN_NO_LAYOUT;
    const struct plan_node *node = &planner->nodes[at];
    return node->strategy->at.at[node->choice].out[tsr__plan_made_slot(node, value)];
}

// ---- borders -----------------------------------------------------------------------------------

bool tsr__border_is_state(const struct plan_border *border)
{
    const struct control *control = &border->bodies->control;
    size_t first = (size_t)(border->leaves ? control->condition : control->n_numbers);
    return border->index >= first && border->index < first + (size_t)control->n_states;
}

int tsr__border_axis(const struct plan_border *border, int rank)
{
    const struct control *control = &border->bodies->control;
    int first = (border->leaves ? control->condition : control->n_numbers) + control->n_states;
    int i = (int)border->index - first;
    if (!control->loops || i < 0)
        return -1;
    return border->leaves ? tsr__control_out_axis(control, i, rank)
                          : tsr__control_in_axis(control, i, rank);
}

// ---- the list ----------------------------------------------------------------------------------

// The list while it is filled.
struct flattening {
    struct planner *planner;
    VEC(struct plan_node) nodes;
};

static bool add_entry(struct flattening *flat, struct plan_node entry)
{
    entry.var = UINT32_MAX;
    return vec_add(&flat->planner->arena, &flat->nodes, entry);
}

// Adds a border for each input or output of the bodies. `times`: how often the value that it makes
// is computed.
static bool add_borders(struct flattening *flat, tsr_node *owner, const struct plan_bodies *bodies,
                        bool leaves, int64_t times)
{
    size_t n = leaves ? bodies->n_leave : bodies->n_enter;
    struct plan_border *borders = ARENA_ARRAY(&flat->planner->arena, struct plan_border, n + 1);
    if (!borders)
        return false;
    for (size_t i = 0; i < n; i++) {
        borders[i] = (struct plan_border){.bodies = bodies, .leaves = leaves, .index = i};
        if (!add_entry(flat,
                       (struct plan_node){.node = owner, .border = &borders[i], .times = times}))
            return false;
    }
    return true;
}

// Records which outputs of a body a value is.
static bool add_outputs(struct planner *planner, const tsr_node *owner, const tsr_graph *graph,
                        int k)
{
    size_t n = tsr_graph_output_count(graph);
    struct body_output *outputs = ARENA_ARRAY(&planner->arena, struct body_output, n + 1);
    if (!outputs)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct body_output **first =
            &planner->body_outputs[tsr__value_id(tsr_graph_output(graph, i))];
        outputs[i] = (struct body_output){owner, k, i, *first};
        *first = &outputs[i];
    }
    return true;
}

// True if all devices take the same decisions without a broadcast: the trip count and conditions
// are exact.
static bool is_exact(const struct planner *planner, const tsr_node *node,
                     const struct control *control)
{
    const struct shapes *shapes = planner->shapes.model;
    for (size_t i = 0; i < (size_t)control->n_steer && i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i) && !tsr__control_exact(shapes, tsr_node_input(node, i)))
            return false;
    return !control->condition ||
           tsr__control_exact(shapes, tsr_graph_output(control->bodies[0], 0));
}

static struct plan_bodies *bodies_new(struct planner *planner, const tsr_node *node,
                                      const struct control *control)
{
    struct plan_bodies *bodies = ARENA_NEW(&planner->arena, struct plan_bodies);
    if (!bodies)
        return NULL;
    *bodies = (struct plan_bodies){.control = *control,
                                   .n_enter = tsr_graph_input_count(control->bodies[0]),
                                   .n_leave = tsr_graph_output_count(control->bodies[0]),
                                   .trips = tsr__control_trips(planner->shapes.full, node, control),
                                   .taken = tsr__control_taken(planner->shapes.full, node, control),
                                   .exact = is_exact(planner, node, control)};
    if (!planner->body_outputs)
        planner->body_outputs = ARENA_ARRAY(&planner->arena, struct body_output *,
                                            tsr__model_value_ids(planner->model) + 1);
    return planner->body_outputs ? bodies : NULL;
}

static bool add_graph(struct flattening *flat, const tsr_graph *graph, int64_t times);

// Adds a node of a graph that runs `times` times: first what belongs to its bodies, then the node.
static bool add_node(struct flattening *flat, tsr_node *node, int64_t times)
{
    struct planner *planner = flat->planner;
    struct plan_node entry = {.node = node, .times = times};
    struct control control;
    if (!tsr__control_of(node, &control))
        return add_entry(flat, entry);
    struct plan_bodies *bodies = bodies_new(planner, node, &control);
    if (!bodies)
        return false;
    int64_t inside = int64_min(mul_cap(times, bodies->trips), MOST_TIMES);
    entry.bodies = bodies;
    if (!add_borders(flat, node, bodies, false, inside))
        return false;
    for (int k = 0; k < control.n_bodies; k++) {
        size_t before = flat->nodes.n;
        if (!add_outputs(planner, node, control.bodies[k], k) ||
            !add_graph(flat, control.bodies[k], inside))
            return false;
        bodies->n_nodes[k] = flat->nodes.n - before;
    }
    return add_borders(flat, node, bodies, true, times) && add_entry(flat, entry);
}

static bool add_graph(struct flattening *flat, const tsr_graph *graph, int64_t times)
{
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (!add_node(flat, node, times))
            return false;
    return true;
}

bool tsr__plan_flatten(struct planner *planner)
{
    struct flattening flat = {.planner = planner};
    if (!add_graph(&flat, tsr_model_graph(planner->model), 1))
        return false;
    // never NULL, also without nodes
    planner->nodes =
        flat.nodes.at ? flat.nodes.at : ARENA_ARRAY(&planner->arena, struct plan_node, 1);
    planner->n_nodes = flat.nodes.n;
    return planner->nodes != NULL;
}

// ---- branches ----------------------------------------------------------------------------------

// Sets the costs of a branch to 0.
static void leave_out(int64_t *cost, bool *unused, size_t begin, size_t n)
{
    memset(cost + begin, 0, n * sizeof *cost);
    if (unused)
        memset(unused + begin, true, n);
}

static int64_t sum_range(const int64_t *cost, size_t begin, size_t n)
{
    int64_t sum = 0;
    for (size_t i = begin; i < begin + n; i++)
        sum = int64_min(sum + cost[i], PLAN_NEVER);
    return sum;
}

// The branches of an inner If come before those of the outer one, so they are decided first.
int64_t tsr__branches_sum(const struct planner *planner, int64_t *cost, bool *unused)
{
    for (size_t i = 0; i < planner->n_nodes && planner->body_outputs; i++) {
        const struct plan_bodies *bodies = planner->nodes[i].bodies;
        if (!bodies || bodies->control.n_bodies < 2)
            continue;
        size_t first = bodies_begin(bodies, i) + bodies->n_enter;
        size_t second = first + bodies->n_nodes[0];
        int taken = bodies->taken;
        if (taken < 0)
            taken = sum_range(cost, second, bodies->n_nodes[1]) >
                    sum_range(cost, first, bodies->n_nodes[0]);
        if (taken)
            leave_out(cost, unused, first, bodies->n_nodes[0]);
        else
            leave_out(cost, unused, second, bodies->n_nodes[1]);
    }
    return sum_range(cost, 0, planner->n_nodes);
}
