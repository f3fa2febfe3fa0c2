// SPDX-License-Identifier: Apache-2.0
// sort.c - sorts the nodes of the main graph so that every value is computed before it is read.
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

struct sorting {
    struct arena arena;
    unsigned char *seen; // by node id
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
// the graph is sorted. `seen` must be zeros.
static const tsr_node *find_unsorted(const tsr_graph *graph, unsigned char *seen,
                                     const tsr_value **value)
{
    for (tsr_node *node = graph->first; node; node = node->next) {
        struct visit visit = visit_of(node);
        for (const tsr_node *producer; (producer = next_producer(&visit)) != NULL;)
            if (!seen[tsr__node_id(producer)]) {
                *value = visit.read;
                return node;
            }
        seen[tsr__node_id(node)] = 1;
    }
    return NULL;
}

static tsr_status push(struct sorting *sorting, tsr_node *node)
{
    if (!vec_add(&sorting->arena, &sorting->stack, visit_of(node)))
        return TSR_NOMEM;
    sorting->seen[tsr__node_id(node)] = 1;
    return TSR_OK;
}

// Adds the producers of a node to the order, then the node itself. Depth first, with a stack on the
// heap, because chains can be long. A node of a cycle is added without its producer.
static tsr_status add_node(struct sorting *sorting, tsr_node *node)
{
    TRY(push(sorting, node));
    while (sorting->stack.n) {
        struct visit *top = &sorting->stack.at[sorting->stack.n - 1];
        tsr_node *producer = next_producer(top);
        if (producer && !sorting->seen[tsr__node_id(producer)])
            TRY(push(sorting, producer));
        if (producer)
            continue;
        if (!vec_add(&sorting->arena, &sorting->order, top->node))
            return TSR_NOMEM;
        sorting->stack.n--;
    }
    return TSR_OK;
}

static tsr_status sort_nodes(struct sorting *sorting, const tsr_graph *graph)
{
    memset(sorting->seen, 0, tsr__model_node_ids(graph->model));
    for (tsr_node *node = graph->first; node; node = node->next)
        if (!sorting->seen[tsr__node_id(node)])
            TRY(add_node(sorting, node));
    for (size_t i = 0; i < sorting->order.n; i++)
        TRY(tsr_node_move_before(sorting->order.at[i], NULL));
    return TSR_OK;
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

tsr_status tsr__model_sort(tsr_model *model)
{
    const tsr_value *value;
    struct sorting sorting = {.seen = NULL};
    tsr__arena_init(&sorting.arena, model->session);
    sorting.seen = ARENA_ARRAY(&sorting.arena, unsigned char, tsr__model_node_ids(model) + 1);
    tsr_status st = sorting.seen ? TSR_OK : TSR_NOMEM;
    if (st == TSR_OK && find_unsorted(model->graph, sorting.seen, &value))
        st = sort_nodes(&sorting, model->graph);
    tsr__arena_free(&sorting.arena);
    return st;
}
