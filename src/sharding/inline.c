// SPDX-License-Identifier: Apache-2.0
// inline.c - replaces calls of model-local functions by their bodies, wherever the body means the same
// there, so that what follows sees operators alone. What cannot be replaced stays and runs whole.
#include "sharding/internal.h"

#define MAX_ROUNDS 64                  // calls in calls
#define MAX_NODES  ((uint32_t)1 << 22) // functions that call others twice grow fast

bool tsr__in_function(const tsr_model *m, const tsr_node *n)
{
    const tsr_graph *g = tsr_node_graph(n);
    while (tsr_graph_owner(g))
        g = tsr_node_graph(tsr_graph_owner(g));
    return g != tsr_model_graph(m);
}

static bool can_go(const tsr_node *n)
{
    const char *whole;
    return tsr__is_call(n, &whole) && !whole;
}

bool tsr__has_calls(const tsr_model *m)
{
    if (!tsr_model_function_count(m))
        return false;
    for (const tsr_node *n = tsr_model_next_node(m, NULL); n && !tsr__in_function(m, n);
         n = tsr_model_next_node(m, n))
        if (can_go(n))
            return true;
    return false;
}

// A call in a graph that another call gives to its function: its turn comes when that one is gone.
static bool waits(const tsr_node *n)
{
    for (n = tsr_graph_owner(tsr_node_graph(n)); n; n = tsr_graph_owner(tsr_node_graph(n)))
        if (can_go(n))
            return true;
    return false;
}

// All calls that there are now.
static tsr_status inline_round(tsr_model *m, struct arena *a, bool *any)
{
    VEC(tsr_node *) calls = {0};
    for (tsr_node *n = tsr_model_next_node(m, NULL); n && !tsr__in_function(m, n);
         n = tsr_model_next_node(m, n)) {
        tsr_node **slot = can_go(n) && !waits(n) ? vec_push(a, &calls) : NULL;
        if (slot)
            *slot = n;
    }
    tsr_status st = a->failed ? TSR_NOMEM : TSR_OK;
    *any = false;
    for (size_t i = 0; i < calls.n && st == TSR_OK; i++) {
        if (tsr__model_node_ids(m) > MAX_NODES)
            break;
        st = tsr__node_inline_here(calls.at[i]);
        *any = true;
    }
    return st;
}

tsr_status tsr__inline_calls(tsr_model *m)
{
    tsr_status st = TSR_OK;
    struct arena a;
    bool any = tsr__has_calls(m);
    tsr__arena_init(&a, tsr_model_session(m));
    for (int i = 0; i < MAX_ROUNDS && any && st == TSR_OK; i++)
        st = inline_round(m, &a, &any);
    tsr__arena_free(&a);
    return st;
}

bool tsr__calls_left(const tsr_model *m)
{
    for (const tsr_node *n = tsr_model_next_node(m, NULL);
         n && tsr_model_function_count(m) && !tsr__in_function(m, n); n = tsr_model_next_node(m, n))
        if (tsr__node_function(n))
            return true;
    return false;
}
