// SPDX-License-Identifier: Apache-2.0
// sort.c - sorts the nodes of the main graph so that every value is computed before it is read.
// Reports values that nothing computes, and cycles.
//
// ONNX requires this order. ONNX Runtime requires it only in subgraphs, and some converters append
// nodes at the end. Example: a float16 converter writes Conv(x16) -> y, Cast(x) -> x16.
#include "ir/internal.h"

// A node whose producers are visited before it. `next` counts its inputs, then its captures.
struct visit {
    tsr_node *node;
    tsr_value **captures;
    size_t n_captures, next;
    const tsr_value *read; // the last value that next_producer has looked at
};

enum { NEW, ON_STACK, DONE }; // states of a node

struct sorting {
    struct arena arena;
    unsigned char *seen; // by node id: its state
    VEC(struct visit) stack;
    VEC(tsr_node *) order;
};

static struct visit visit_of(tsr_node *node)
{
    struct visit visit = {.node = node};
    visit.n_captures = tsr__node_captures(node, &visit.captures);
    return visit;
}

// Returns the next node of the same graph that computes a value for this one; NULL: no more.
static tsr_node *next_producer(struct visit *visit)
{
    size_t n_inputs = tsr_node_input_count(visit->node);
    while (visit->next < n_inputs + visit->n_captures) {
        size_t i = visit->next++;
        visit->read = i < n_inputs ? tsr_node_input(visit->node, i) : visit->captures[i - n_inputs];
        tsr_node *producer = visit->read ? tsr_value_producer(visit->read) : NULL;
        if (producer && producer->graph == visit->node->graph)
            return producer;
    }
    return NULL;
}

// Returns the first node that reads a value before it is computed, and that value in *value. NULL:
// the graph is sorted. `seen` must be zeros, which means NEW.
static const tsr_node *find_unsorted(const tsr_graph *graph, unsigned char *seen,
                                     const tsr_value **value)
{
    for (tsr_node *node = graph->first; node; node = node->next) {
        struct visit visit = visit_of(node);
        for (const tsr_node *producer; (producer = next_producer(&visit)) != NULL;)
            if (seen[tsr__node_id(producer)] == NEW) {
                *value = visit.read;
                return node;
            }
        seen[tsr__node_id(node)] = DONE;
    }
    return NULL;
}

// ---- values that cannot be computed

static tsr_status refuse_cycle(const struct visit *visit)
{
    struct place at = tsr__place_node(visit->node);
    at.value = tsr__value_str(visit->read);
    return tsr__fail(visit->node->graph->model->session, TSR_INVALID, DIAG_value_not_ready, &at,
                     "remove the cycle: correct the name of this input, or of an output",
                     "an input of this node is computed from the node's own output");
}

static void report_undefined(const tsr_model *model, struct place at, const tsr_value *value,
                             const char *what)
{
    at.value = tsr__value_str(value);
    tsr__diag(model->session, DIAG_value_not_ready, &at,
              "correct the name, or add the node, the input or the initializer that defines it",
              "nothing in the model defines an %s", what);
}

static bool is_undefined(const tsr_value *value)
{
    return value && !tsr_value_graph(value);
}

static void check_inputs(const tsr_model *model, const tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (is_undefined(tsr_node_input(node, i)))
            report_undefined(model, tsr__place_node(node), tsr_node_input(node, i),
                             "input of this node");
}

// ---- sorting

static tsr_status push(struct sorting *sorting, tsr_node *node)
{
    if (!vec_add(&sorting->arena, &sorting->stack, visit_of(node)))
        return TSR_NOMEM;
    sorting->seen[tsr__node_id(node)] = ON_STACK;
    return TSR_OK;
}

// Adds the producers of a node to the order, then the node itself. Depth first, with a stack on the
// heap, because chains can be long.
static tsr_status add_node(struct sorting *sorting, tsr_node *node)
{
    TRY(push(sorting, node));
    while (sorting->stack.n) {
        struct visit *top = &sorting->stack.at[sorting->stack.n - 1];
        tsr_node *producer = next_producer(top);
        if (producer && sorting->seen[tsr__node_id(producer)] == ON_STACK)
            return refuse_cycle(top);
        if (producer && sorting->seen[tsr__node_id(producer)] == NEW)
            TRY(push(sorting, producer));
        if (producer)
            continue;
        sorting->seen[tsr__node_id(top->node)] = DONE;
        if (!vec_add(&sorting->arena, &sorting->order, top->node))
            return TSR_NOMEM;
        sorting->stack.n--;
    }
    return TSR_OK;
}

static tsr_status find_order(struct sorting *sorting, const tsr_graph *graph)
{
    memset(sorting->seen, NEW, tsr__model_node_ids(graph->model));
    for (tsr_node *node = graph->first; node; node = node->next)
        if (sorting->seen[tsr__node_id(node)] == NEW)
            TRY(add_node(sorting, node));
    return TSR_OK;
}

static tsr_status check_defined(const tsr_model *model)
{
    size_t errors = tsr__diag_errors(model->session);
    for (const tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        check_inputs(model, node);
    for (size_t i = 0; i < tsr_graph_output_count(model->graph); i++)
        if (is_undefined(tsr_graph_output(model->graph, i)))
            report_undefined(model, tsr__place_value(tsr_graph_output(model->graph, i)),
                             tsr_graph_output(model->graph, i), "output of the model");
    return tsr__diag_errors(model->session) > errors ? TSR_INVALID : TSR_OK;
}

// Finds the order of the nodes of the main graph; empty if they are sorted.
static tsr_status order_nodes(struct sorting *sorting, const tsr_model *model)
{
    const tsr_value *value;
    tsr__arena_init(&sorting->arena, model->session);
    TRY(check_defined(model));
    sorting->seen = ARENA_ARRAY(&sorting->arena, unsigned char, tsr__model_node_ids(model) + 1);
    if (!sorting->seen)
        return TSR_NOMEM;
    return find_unsorted(model->graph, sorting->seen, &value) ? find_order(sorting, model->graph)
                                                              : TSR_OK;
}

tsr_status tsr__model_unsorted(const tsr_model *model, const tsr_node **node,
                               const tsr_value **value)
{
    struct arena arena = {.session = model->session};
    unsigned char *seen = ARENA_ARRAY(&arena, unsigned char, tsr__model_node_ids(model) + 1);
    *node = seen ? find_unsorted(model->graph, seen, value) : NULL;
    tsr__arena_free(&arena);
    return seen ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr__model_check_values(const tsr_model *model)
{
    struct sorting sorting = {.seen = NULL};
    tsr_status st = order_nodes(&sorting, model);
    tsr__arena_free(&sorting.arena);
    return st;
}

tsr_status tsr__model_sort(tsr_model *model)
{
    struct sorting sorting = {.seen = NULL};
    tsr_status st = order_nodes(&sorting, model);
    for (size_t i = 0; i < sorting.order.n && st == TSR_OK; i++)
        st = tsr_node_move_before(sorting.order.at[i], NULL);
    tsr__arena_free(&sorting.arena);
    return st;
}
