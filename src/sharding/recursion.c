// SPDX-License-Identifier: Apache-2.0
// recursion.c - functions that call themselves, directly or through others: no engine can run them, and putting bodies
// in the place of calls would never end.
//
// A walk along calls with a stack of its own (a chain of calls may be as long as there are functions). White: not seen;
// grey: on the way from the start to here; black: everything behind it has been seen. A call of a grey one is a cycle.
#include "sharding/internal.h"

enum colour { WHITE, GREY, BLACK };

struct step {
    const tsr_function *function;
    const tsr_node *at; // the next node of its body to be looked at; NULL: all were
};

struct walk {
    const tsr_model *model;
    unsigned char *colours; // by index of the function
    struct step *steps;     // the grey ones, in order
    size_t depth;
};

static void enter(struct walk *w, const tsr_function *f)
{
    w->colours[tsr__function_index(f)] = GREY;
    w->steps[w->depth++] = (struct step){f, tsr_graph_first(tsr_function_graph(f))};
}

// The node after this one in the same body, those of its subgraphs included; NULL: it was the last.
static const tsr_node *next_of_body(const struct walk *w, const tsr_node *n)
{
    const tsr_node *next = tsr_model_next_node(w->model, n);
    return next && tsr__node_home(next) == tsr__node_home(n) ? next : NULL;
}

static tsr_status refuse(const struct walk *w, const tsr_node *call, const tsr_function *f)
{
    struct place at = tsr__place_node(call);
    const tsr_function *last = w->steps[w->depth - 1].function;
    tsr__diag(tsr_model_session(w->model), DIAG_function_recursive, &at,
              "a function may call only functions that do not call it",
              "function '%s' calls itself%s%s%s", tsr_function_name(f),
              f == last ? "" : " through '", f == last ? "" : tsr_function_name(last),
              f == last ? "" : "'");
    return TSR_INVALID;
}

// Everything that f calls. Each body is walked once, whoever calls it.
static tsr_status walk_from(struct walk *w, const tsr_function *f)
{
    enter(w, f);
    while (w->depth) {
        struct step *step = &w->steps[w->depth - 1];
        const tsr_node *n = step->at;
        if (!n) {
            w->colours[tsr__function_index(step->function)] = BLACK;
            w->depth--;
            continue;
        }
        step->at = next_of_body(w, n);
        const tsr_function *called = tsr__node_function(n);
        if (!called)
            continue;
        unsigned char colour = w->colours[tsr__function_index(called)];
        if (colour == GREY)
            return refuse(w, n, called);
        if (colour == WHITE)
            enter(w, called);
    }
    return TSR_OK;
}

tsr_status tsr__check_recursion(const tsr_model *m)
{
    struct arena a;
    size_t n = tsr_model_function_count(m);
    if (!n)
        return TSR_OK;
    tsr__arena_init(&a, tsr_model_session(m));
    struct walk w = {.model = m};
    w.colours = ARENA_ARRAY(&a, unsigned char, n);
    w.steps = ARENA_ARRAY(&a, struct step, n);
    tsr_status status = a.failed ? TSR_NOMEM : TSR_OK;
    for (size_t i = 0; i < n && status == TSR_OK; i++)
        if (w.colours[i] == WHITE)
            status = walk_from(&w, tsr_model_function(m, i));
    tsr__arena_free(&a);
    return status;
}
