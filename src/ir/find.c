// SPDX-License-Identifier: Apache-2.0
// find.c - finds nodes by text, as users name them.
//
//   mm1                        the node of that name, else the node with output mm1
//   #3                         the fourth node of the graph
//   if0 > then_branch > mm1    mm1 in the branch of node if0
//   function f > mm1           mm1 in the body of function f
#include "ir/internal.h"

#define ARROW " > "

// Returns the only node of that name; *several: there are others.
static tsr_node *find_named(const tsr_graph *graph, struct str name, bool *several)
{
    tsr_node *found = NULL;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (!str_is(name, tsr_node_name(node)))
            continue;
        *several = found != NULL;
        if (found)
            return NULL;
        found = node;
    }
    return found;
}

static tsr_node *find_output(const tsr_graph *graph, struct str name)
{
    const tsr_value *value = tsr__graph_own(graph, name);
    return value ? tsr_value_producer(value) : NULL;
}

static tsr_node *find_index(const tsr_graph *graph, struct str text)
{
    int64_t index;
    if (text.n < 2 || text.p[0] != '#' ||
        !tsr__str_int((struct str){text.p + 1, text.n - 1}, &index))
        return NULL;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node))
        if (tsr_node_index(node) == index)
            return node;
    return NULL;
}

// Returns the node that one step of a path names; NULL: none, or several.
static tsr_node *find_step(const tsr_graph *graph, struct str text)
{
    bool several = false;
    tsr_node *found = text.n ? find_named(graph, text, &several) : NULL;
    if (!found && !several && text.n)
        found = find_output(graph, text);
    return found || several ? found : find_index(graph, text);
}

// Returns the subgraph of a node under that attribute, or NULL.
static tsr_graph *branch_of(const tsr_node *node, struct str name)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        if (str_is(name, tsr_attr_name(attr)) && tsr_attr_graph_count(attr))
            return tsr_attr_graph(attr, 0);
    }
    return NULL;
}

// Returns the part of the text before the next arrow, and moves the text behind it. Without an
// arrow, returns a part without bytes.
static struct str next_part(const char **text)
{
    const char *arrow = strstr(*text, ARROW);
    struct str part = {*text, arrow ? (size_t)(arrow - *text) : 0};
    if (arrow)
        *text = arrow + strlen(ARROW);
    return part;
}

// Returns the body of the function that the text begins with, "function f > ..."; NULL: none.
static tsr_graph *function_graph(const tsr_model *model, const char **text)
{
    static const char word[] = "function ";
    const char *rest = *text;
    struct str name = next_part(&rest);
    if (name.n < sizeof word || memcmp(name.p, word, sizeof word - 1) != 0)
        return NULL;
    name = (struct str){name.p + sizeof word - 1, name.n - (sizeof word - 1)};
    for (size_t i = 0; i < tsr_model_function_count(model); i++) {
        const tsr_function *function = tsr_model_function(model, i);
        if (!str_is(name, tsr_function_name(function)))
            continue;
        *text = rest;
        return tsr_function_graph(function);
    }
    return NULL;
}

tsr_graph *tsr_model_find_graph(const tsr_model *model, const char *text, const char **last)
{
    tsr_graph *graph = function_graph(model, &text);
    if (!graph)
        graph = tsr_model_graph(model);
    while (graph && strstr(text, ARROW)) {
        const tsr_node *node = find_step(graph, next_part(&text));
        if (!node || !strstr(text, ARROW))
            return NULL;
        graph = branch_of(node, next_part(&text));
    }
    *last = text;
    return graph;
}

tsr_node *tsr_model_find_node(const tsr_model *model, const char *text)
{
    const char *last = text;
    if (!text)
        return NULL;
    // A node may be called "a > b".
    tsr_node *found = find_step(tsr_model_graph(model), str_of(text));
    if (found)
        return found;
    const tsr_graph *graph = tsr_model_find_graph(model, text, &last);
    return graph && last != text ? find_step(graph, str_of(last)) : NULL;
}
