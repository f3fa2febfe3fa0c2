// SPDX-License-Identifier: Apache-2.0
// graph.c - walking: graphs, nodes, values and their types. Changes nothing that a caller can see.
//
// Objects are const for those who ask. Where an answer must be decoded from the file first (types),
// that happens behind the const, once, in the model's arena; so asking is not safe from two threads
// at a time.
#include "ir/internal.h"

#include <stdio.h>

// ---- graphs ---------------------------------------------------------------------------------

tsr_model *tsr_graph_model(const tsr_graph *graph)
{
    return graph->model;
}
tsr_node *tsr_graph_owner(const tsr_graph *graph)
{
    return graph->owner;
}
size_t tsr_graph_node_count(const tsr_graph *graph)
{
    return graph->n_nodes;
}
tsr_node *tsr_graph_first(const tsr_graph *graph)
{
    return graph->first;
}
tsr_node *tsr_node_next(const tsr_node *node)
{
    return node->next;
}
size_t tsr_graph_input_count(const tsr_graph *graph)
{
    return graph->inputs.n;
}
size_t tsr_graph_output_count(const tsr_graph *graph)
{
    return graph->outputs.n;
}
size_t tsr_graph_initializer_count(const tsr_graph *graph)
{
    return graph->initializers.n + graph->sparse.n;
}

tsr_value *tsr_graph_input(const tsr_graph *graph, size_t i)
{
    if (i < graph->inputs.n)
        return graph->inputs.at[i].value;
    return NULL;
}

tsr_value *tsr_graph_output(const tsr_graph *graph, size_t i)
{
    if (i < graph->outputs.n)
        return graph->outputs.at[i].value;
    return NULL;
}

// Dense ones first, then the sparse ones: both are constants to everybody but the writer.
tsr_value *tsr_graph_initializer(const tsr_graph *graph, size_t i)
{
    if (i < graph->initializers.n)
        return graph->initializers.at[i];
    i -= graph->initializers.n;
    if (i < graph->sparse.n)
        return graph->sparse.at[i];
    return NULL;
}

// Of this graph alone, and only what something defines.
tsr_value *tsr_graph_value(const tsr_graph *graph, const char *name)
{
    tsr_value *value = tsr__graph_own(graph, str_of(name));
    if (value && !(value->flags & V_STANDIN))
        return value;
    return NULL;
}

// First node of graph or of the subgraphs after it.
// NULL: they are all empty, or there is none.
static tsr_node *first_in(const tsr_graph *graph)
{
    for (; graph; graph = graph->sibling)
        if (graph->first)
            return graph->first;
    return NULL;
}

// Bodies may be empty: the first node of function i or of one behind it.
static tsr_node *first_of_functions(const tsr_model *model, size_t i)
{
    for (; i < model->functions.n; i++)
        if (model->functions.at[i]->graph->first)
            return model->functions.at[i]->graph->first;
    return NULL;
}

// First node of what follows a main graph or a function's body: the next function that has one.
static tsr_node *first_after(const tsr_model *model, const tsr_graph *graph)
{
    if (graph->function)
        return first_of_functions(model, graph->function->index + 1);
    return first_of_functions(model, 0);
}

// Depth first: a node, then the nodes of its subgraphs, then the node after it; the functions come last.
// Example: If (then: a, b; else: c), d is walked as If, a, b, c, d. Behind b there is no node, but its graph has a
// sibling; behind c there is neither, so the walk goes on behind the If.
tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after)
{
    if (!after && model->graph->first)
        return model->graph->first;
    if (!after)
        return first_after(model, model->graph);
    if (after->graph->model != model)
        return NULL;
    tsr_node *next = first_in(tsr__node_subgraph(after));
    // `after` climbs outwards until something stands behind it
    while (!next) {
        next = after->next;
        if (next)
            break;
        const tsr_graph *graph = after->graph;
        if (!graph->owner)
            return first_after(model, graph);
        next = first_in(graph->sibling);
        after = graph->owner;
    }
    return next;
}

// ---- nodes ----------------------------------------------------------------------------------

const char *tsr_node_op(const tsr_node *node)
{
    return node->op->text.p;
}
const char *tsr_node_domain(const tsr_node *node)
{
    return node->domain->text.p;
}
tsr_graph *tsr_node_graph(const tsr_node *node)
{
    return node->graph;
}
size_t tsr_node_input_count(const tsr_node *node)
{
    return node->n_inputs;
}
size_t tsr_node_output_count(const tsr_node *node)
{
    return node->n_outputs;
}

tsr_value *tsr_node_input(const tsr_node *node, size_t i)
{
    if (i < node->n_inputs)
        return node->inputs[i].value;
    return NULL;
}

tsr_value *tsr_node_output(const tsr_node *node, size_t i)
{
    if (i < node->n_outputs)
        return node->outputs[i];
    return NULL;
}

// ---- values ---------------------------------------------------------------------------------

// NULL for a name that nothing defines and for an output of a removed node: neither is in a graph.
tsr_graph *tsr_value_graph(const tsr_value *value)
{
    if (value->flags & (V_STANDIN | V_GONE))
        return NULL;
    return value->home;
}

tsr_node *tsr_value_producer(const tsr_value *value)
{
    return value->producer;
}
size_t tsr_value_use_count(const tsr_value *value)
{
    return value->n_uses;
}
bool tsr_value_is_input(const tsr_value *value)
{
    return value->flags & V_INPUT;
}
bool tsr_value_is_output(const tsr_value *value)
{
    return value->n_outputs > 0;
}
const tsr_tensor *tsr_value_initializer(const tsr_value *value)
{
    return value->tensor;
}

// f may tie the use that it is given to another value: its successor is read before the call. It
// must not change other uses of the value. A node that reads the value in two slots is given twice.
void tsr_value_uses(const tsr_value *value, bool (*f)(void *data, tsr_node *node, size_t input),
                    void *data)
{
    if (!value->last_use)
        return;
    struct use *use = value->last_use->next, *last = value->last_use;
    for (;;) {
        struct use *next = use->next;
        if (!f(data, use->node, (size_t)(use - use->node->inputs)) || use == last)
            return;
        use = next;
    }
}

// NULL: nothing is declared.
static const struct vtype *type_of(const tsr_value *value)
{
    tsr__type_decode((tsr_value *)value);
    return value->type;
}

tsr_dtype tsr_value_dtype(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    if (vtype)
        return vtype->dtype;
    return TSR_UNDEFINED;
}

int tsr_value_rank(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    if (vtype)
        return vtype->rank;
    return -1;
}

// {-1, ""} also for an axis that the value does not have: nothing is known of it.
tsr_dim tsr_value_dim(const tsr_value *value, int axis)
{
    const struct vtype *vtype = type_of(value);
    if (vtype && axis >= 0 && axis < vtype->rank)
        return vtype->dims[axis];
    return (tsr_dim){-1, ""};
}

// The text is interned, so repeated calls take no more memory. Names that do not fit the buffer stay
// unnamed. Inputs with a default are left out: constants may be read in their place.
const char *tsr_value_dim_name(const tsr_value *value, int axis)
{
    tsr_dim dim = tsr_value_dim(value, axis);
    char text[1024];
    if (dim.value >= 0 || axis < 0 || axis >= tsr_value_rank(value))
        return NULL;
    if (dim.symbol[0])
        return dim.symbol;
    tsr_model *model = value->home ? value->home->model : NULL;
    if (!(value->flags & V_INPUT) || value->tensor || !model || value->home != model->graph)
        return NULL;
    int n = snprintf(text, sizeof text, STR_FMT ".%d", STR_ARG(value->name), axis);
    if (n < 0 || (size_t)n >= sizeof text)
        return NULL;
    const struct symbol *name = tsr__symbol(model, (struct str){text, (size_t)n});
    return name->text.n ? name->text.p : NULL;
}

const tsr_dim *tsr__value_dims(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    if (vtype)
        return vtype->dims;
    return NULL;
}

struct str tsr__dim_symbol(const tsr_value *value, int axis)
{
    return str_of(tsr_value_dim(value, axis).symbol);
}

bool tsr__value_is_other(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    return vtype && vtype->other.n > 0;
}
