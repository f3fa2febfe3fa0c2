// SPDX-License-Identifier: Apache-2.0
// recursion.c - finds functions that call themselves, directly or through others. No engine can run
// them, and inlining would not end.
//
// It is a depth-first search along calls with an explicit stack, because a chain of calls may be as
// long as there are functions. White: not seen; grey: on the current path; black: done. A call of a
// grey function is a cycle.
#include "sharding/layouts/internal.h"

enum colour { WHITE, GREY, BLACK };

struct call_frame {
    const tsr_function *function;
    const tsr_node *at; // next node of the body to visit; NULL: all were visited
};

struct walk {
    const tsr_model *model;
    unsigned char *colours;   // by index of the function
    struct call_frame *steps; // the grey functions, in path order
    size_t depth;
};

// Puts a function on the stack. walk->steps has space for all functions, and none is entered twice.
static void enter(struct walk *walk, const tsr_function *function)
{
    walk->colours[tsr__function_index(function)] = GREY;
    walk->steps[walk->depth++] =
        (struct call_frame){function, tsr_graph_first(tsr_function_graph(function))};
}

// Returns the next node in the same body, including nodes of subgraphs, or NULL after the last one.
static const tsr_node *next_of_body(const struct walk *walk, const tsr_node *node)
{
    const tsr_node *next = tsr_model_next_node(walk->model, node);
    return next && tsr__node_home(next) == tsr__node_home(node) ? next : NULL;
}

// Reports a call of a function that is on the current path, so that the function calls itself.
static tsr_status report_recursion(const struct walk *walk, const tsr_node *call,
                                   const tsr_function *function)
{
    struct place at = tsr__place_node(call);
    const tsr_function *last = walk->steps[walk->depth - 1].function;
    const char *hint = "remove the recursion: ONNX does not allow it; use a Loop";
    if (function == last)
        tsr__diag(tsr_model_session(walk->model), DIAG_function_recursive, &at, hint,
                  "function '%s' calls itself", tsr_function_name(function));
    else
        tsr__diag(tsr_model_session(walk->model), DIAG_function_recursive, &at, hint,
                  "function '%s' calls itself through '%s'", tsr_function_name(function),
                  tsr_function_name(last));
    return TSR_INVALID;
}

// Visits all functions that this one calls. Each body is visited once.
static tsr_status walk_from(struct walk *walk, const tsr_function *function)
{
    enter(walk, function);
    while (walk->depth) {
        struct call_frame *step = &walk->steps[walk->depth - 1];
        const tsr_node *node = step->at;
        if (!node) {
            walk->colours[tsr__function_index(step->function)] = BLACK;
            walk->depth--;
            continue;
        }
        step->at = next_of_body(walk, node);
        const tsr_function *called = tsr__node_function(node);
        if (!called)
            continue;
        unsigned char colour = walk->colours[tsr__function_index(called)];
        if (colour == GREY)
            return report_recursion(walk, node, called);
        if (colour == WHITE)
            enter(walk, called);
    }
    return TSR_OK;
}

// Reports an error if a function calls itself. Starts a search from every function that no earlier
// search has reached.
tsr_status tsr__check_recursion(const tsr_model *model)
{
    size_t n = tsr_model_function_count(model);
    if (!n)
        return TSR_OK;
    struct arena arena = {.session = tsr_model_session(model)};
    struct walk walk = {.model = model};
    walk.colours = ARENA_ARRAY(&arena, unsigned char, n);
    walk.steps = ARENA_ARRAY(&arena, struct call_frame, n);
    tsr_status status = arena_status(&arena);
    if (status != TSR_OK)
        goto free_arena;
    for (size_t i = 0; i < n; i++) {
        if (walk.colours[i] == WHITE)
            status = walk_from(&walk, tsr_model_function(model, i));
        if (status != TSR_OK)
            break;
    }
free_arena:
    tsr__arena_free(&arena);
    return status;
}
