// SPDX-License-Identifier: Apache-2.0
// control.c - how the values of a node with bodies belong together: which inputs steer it, which are
// carried from turn to turn, which are taken slice by slice, which results are stacked. One form for
// If, Loop and Scan, so that nobody else has to know them. Knows no shapes and no cuts.
#include "rules/internal.h"

static tsr_graph *graph_of(const tsr_node *n, const char *name)
{
    const tsr_attr *a = tsr_node_find_attr(n, name);
    return a && tsr_attr_graph_count(a) == 1 ? tsr_attr_graph(a, 0) : NULL;
}

static bool control_if(const tsr_node *n, struct control *c)
{
    static const char *const names[] = {"then_branch", "else_branch"};
    for (int i = 0; i < 2; i++) {
        c->names[i] = names[i];
        c->bodies[i] = graph_of(n, names[i]);
        if (!c->bodies[i] || tsr_graph_input_count(c->bodies[i]))
            return false;
    }
    size_t results = tsr_graph_output_count(c->bodies[0]);
    c->n_bodies = 2;
    c->n_steer = 1;
    c->n_results = (int)results;
    return results == tsr_graph_output_count(c->bodies[1]) && tsr_node_input_count(n) == 1 &&
           tsr_node_input(n, 0);
}

static bool control_loop(const tsr_node *n, struct control *c)
{
    size_t n_in = tsr_node_input_count(n);
    tsr_graph *g = c->bodies[0] = graph_of(n, "body");
    if (!g || n_in < 2)
        return false;
    size_t states = n_in - 2, given = tsr_graph_output_count(g);
    c->names[0] = "body";
    c->n_bodies = 1;
    c->loops = c->condition = true;
    c->n_steer = c->n_numbers = 2;
    c->n_states = (int)states;
    c->n_results = (int)given - 1 - (int)states;
    return tsr_graph_input_count(g) == n_in && c->n_results >= 0;
}

static bool control_scan(const tsr_node *n, struct control *c)
{
    size_t n_in = tsr_node_input_count(n);
    int64_t slices = tsr_attr_int(tsr_node_find_attr(n, "num_scan_inputs"), -1);
    tsr_graph *g = c->bodies[0] = graph_of(n, "body");
    if (!g || tsr__node_opset(n) < 9 || slices < 1 || (uint64_t)slices > n_in)
        return false; // version 8 has a batch in front of everything
    c->names[0] = "body";
    c->n_bodies = 1;
    c->loops = true;
    c->n_slices = (int)slices;
    c->n_states = (int)n_in - (int)slices;
    c->n_results = (int)tsr_graph_output_count(g) - c->n_states;
    c->n_in_axes = tsr_attr_ints(tsr_node_find_attr(n, "scan_input_axes"), &c->in_axes);
    c->n_out_axes = tsr_attr_ints(tsr_node_find_attr(n, "scan_output_axes"), &c->out_axes);
    return tsr_graph_input_count(g) == n_in && c->n_results >= 0;
}

bool tsr__control_of(const tsr_node *n, struct control *out)
{
    static const struct {
        const char *op;
        bool (*read)(const tsr_node *n, struct control *c);
    } known[] = {{"If", control_if}, {"Loop", control_loop}, {"Scan", control_scan}};
    struct control c = {0};
    if (tsr__node_domain_str(n).n)
        return false;
    for (size_t i = 0; i < TSR_COUNT(known); i++) {
        if (!str_is(tsr__node_op_str(n), known[i].op) || !known[i].read(n, &c) ||
            tsr_node_output_count(n) > (size_t)c.n_states + (size_t)c.n_results)
            continue;
        for (size_t k = (size_t)c.n_steer; k < tsr_node_input_count(n); k++)
            if (!tsr_node_input(n, k))
                return false; // what is carried starts somewhere
        *out = c;
        return true;
    }
    return false;
}

static int axis_at(const int64_t *axes, size_t n, int i, int rank)
{
    int64_t axis = (size_t)i < n ? axes[i] : 0;
    if (rank < 1 || axis < -(int64_t)rank || axis >= rank)
        return -1;
    return (int)(axis < 0 ? axis + rank : axis);
}

int tsr__control_in_axis(const struct control *c, int slice, int rank)
{
    return axis_at(c->in_axes, c->n_in_axes, slice, rank);
}

int tsr__control_out_axis(const struct control *c, int result, int rank)
{
    return axis_at(c->out_axes, c->n_out_axes, result, rank);
}
