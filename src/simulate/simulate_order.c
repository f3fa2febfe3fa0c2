// SPDX-License-Identifier: Apache-2.0
// simulate_order.c - the order in which ONNX Runtime runs the nodes of a graph. It searches depth
// first, backwards from the nodes whose results have no reader. Of a node's inputs, the one
// produced by the last node of the file comes first.
//
//     Example: nodes 0: a = f(x), 1: b = g(x), 2: c = h(a, b), 3: y = i(x). c and y have no reader,
//     so node 3 runs first, then 1, 0, 2.
#include "simulate/simulate.h"

struct edge {
    int64_t from, to; // node numbers
};
struct edges {
    struct arena *arena;
    VEC(struct edge) list;
    int64_t from; // node whose outgoing edges are being listed
};

int64_t tsr__sim_place(const tsr_node *node)
{
    while (tsr_graph_owner(tsr_node_graph(node)))
        node = tsr_graph_owner(tsr_node_graph(node));
    return tsr_node_index(node);
}

static bool add_edge(void *data, tsr_node *node, size_t input)
{
    struct edges *edges = data;
    (void)input;
    return vec_add(edges->arena, &edges->list, (struct edge){edges->from, tsr__sim_place(node)});
}

// Producers of each node's inputs. Those of node i are from[first[i]] to from[first[i + 1] - 1].
// They ascend, because edges are listed in the order of their producers.
struct makers {
    int64_t *first, *from;
    bool *read; // by node: some other node reads its results
};

static bool find_makers(struct arena *arena, const tsr_graph *graph, int64_t n, struct makers *out)
{
    struct edges edges = {.arena = arena};
    for (const tsr_node *node = tsr_graph_first(graph); node;
         node = tsr_node_next(node), edges.from++)
        for (size_t i = 0; i < tsr_node_output_count(node); i++)
            if (tsr_node_output(node, i))
                tsr_value_uses(tsr_node_output(node, i), add_edge, &edges);
    out->first = ARENA_ARRAY(arena, int64_t, (size_t)n + 2);
    out->from = ARENA_ARRAY(arena, int64_t, edges.list.n + 1);
    out->read = ARENA_ARRAY(arena, bool, (size_t)n + 1);
    if (arena->failed)
        return false;
    for (size_t i = 0; i < edges.list.n; i++) {
        out->first[edges.list.at[i].to + 2]++;
        out->read[edges.list.at[i].from] = true;
    }
    for (int64_t i = 2; i <= n; i++)
        out->first[i] += out->first[i - 1];
    for (size_t i = 0; i < edges.list.n; i++)
        out->from[out->first[edges.list.at[i].to + 1]++] = edges.list.at[i].from;
    return true;
}

// Computes the order depth first: order[k] is the node that runs as number k. A node is pushed
// twice: as its number to visit its inputs, and as a negative number to run it after them. Returns
// false if out of memory or if nodes form a cycle.
static bool walk(struct arena *arena, const struct makers *makers, int64_t n, int64_t *order)
{
    VEC(int64_t) stack = {0};
    int64_t done = 0;
    bool *seen = ARENA_ARRAY(arena, bool, (size_t)n + 1);
    for (int64_t i = 0; i < n && !arena->failed; i++)
        if (!makers->read[i])
            vec_add(arena, &stack, i);
    while (stack.n && !arena->failed) {
        int64_t node = stack.at[--stack.n];
        if (node < 0) {
            order[done++] = -1 - node;
            continue;
        }
        if (seen[node])
            continue;
        seen[node] = true;
        vec_add(arena, &stack, -1 - node);
        for (int64_t i = makers->first[node]; i < makers->first[node + 1]; i++)
            if (!seen[makers->from[i]])
                vec_add(arena, &stack, makers->from[i]);
    }
    return !arena->failed && done == n;
}

int64_t *tsr__sim_order(struct arena *arena, const tsr_graph *graph)
{
    int64_t n = (int64_t)tsr_graph_node_count(graph);
    struct makers makers;
    int64_t *order = ARENA_ARRAY(arena, int64_t, (size_t)n + 1);
    if (!order || !find_makers(arena, graph, n, &makers) || !walk(arena, &makers, n, order))
        return NULL;
    return order;
}
