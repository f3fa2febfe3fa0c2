// SPDX-License-Identifier: Apache-2.0
// graph.c - reads graphs, nodes, values and their types.
//
// Types are decoded on demand and cached in the model's arena, even through const pointers. So two
// threads must not read a model at the same time.
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
    return i < graph->inputs.n ? graph->inputs.at[i].value : NULL;
}

tsr_value *tsr_graph_output(const tsr_graph *graph, size_t i)
{
    return i < graph->outputs.n ? graph->outputs.at[i].value : NULL;
}

// Returns initializer i: dense initializers come first, then sparse ones. NULL: there is none.
tsr_value *tsr_graph_initializer(const tsr_graph *graph, size_t i)
{
    if (i < graph->initializers.n)
        return graph->initializers.at[i];
    i -= graph->initializers.n;
    return i < graph->sparse.n ? graph->sparse.at[i] : NULL;
}

// Finds a value by name, only among values that this graph itself defines. NULL: there is none.
tsr_value *tsr_graph_value(const tsr_graph *graph, const char *name)
{
    tsr_value *value = tsr__graph_own(graph, str_of(name));
    return value && !(value->flags & V_PLACEHOLDER) ? value : NULL;
}

// Returns the first node of the graph or of its following siblings. NULL: none of them has a node.
static tsr_node *first_in(const tsr_graph *graph)
{
    for (; graph; graph = graph->sibling)
        if (graph->first)
            return graph->first;
    return NULL;
}

// Returns the first node of function i or of a later one, because bodies may be empty. NULL: there
// is none.
static tsr_node *first_of_functions(const tsr_model *model, size_t i)
{
    for (; i < model->functions.n; i++)
        if (model->functions.at[i]->graph->first)
            return model->functions.at[i]->graph->first;
    return NULL;
}

static tsr_node *first_after(const tsr_model *model, const tsr_graph *graph)
{
    return first_of_functions(model, graph->function ? graph->function->index + 1 : 0);
}

// Returns the node after `after`, depth first: a node, then the nodes of its subgraphs, then the
// next node. Functions come last. Example: the graph has an If (then: a, b; else: c) and d. The
// order is If, a, b, c, d. `after` NULL: the first node. Returns NULL after the last node.
tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after)
{
    if (!after && model->graph->first)
        return model->graph->first;
    if (!after)
        return first_after(model, model->graph);
    if (after->graph->model != model)
        return NULL;
    tsr_node *next = first_in(tsr__node_subgraph(after));
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
    return i < node->n_inputs ? node->inputs[i].value : NULL;
}

tsr_value *tsr_node_output(const tsr_node *node, size_t i)
{
    return i < node->n_outputs ? node->outputs[i] : NULL;
}

// ---- values ---------------------------------------------------------------------------------

// Returns the graph of a value; NULL for placeholders and for outputs of removed nodes.
tsr_graph *tsr_value_graph(const tsr_value *value)
{
    return value->flags & (V_PLACEHOLDER | V_GONE) ? NULL : value->home;
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

// Calls a function for every use of a value. The callback may link the use to another value, but
// must not change other uses of this value. A node that reads the value in two inputs is visited
// twice.
void tsr_value_uses(const tsr_value *value, bool (*f)(void *data, tsr_node *node, size_t input),
                    void *data)
{
    struct use *use = value->last_use ? value->last_use->next : NULL;
    for (size_t left = value->n_uses; left > 0; left--) {
        struct use *next = use->next;
        if (!f(data, use->node, (size_t)(use - use->node->inputs)))
            return;
        use = next;
    }
}

// Returns the declared type of a value; NULL if the value has no declared type.
static const struct vtype *type_of(const tsr_value *value)
{
    tsr__type_decode((tsr_value *)value);
    return value->type;
}

tsr_dtype tsr_value_dtype(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    return vtype ? vtype->dtype : TSR_UNDEFINED;
}

int tsr_value_rank(const tsr_value *value)
{
    const struct vtype *vtype = type_of(value);
    return vtype ? vtype->rank : -1;
}

// Returns a dimension of a value; {-1, ""} for axes that do not exist.
tsr_dim tsr_value_dim(const tsr_value *value, int axis)
{
    const struct vtype *vtype = type_of(value);
    if (vtype && axis >= 0 && axis < vtype->rank)
        return vtype->dims[axis];
    return (tsr_dim){-1, ""};
}

// Returns the symbol of a dimension of unknown size. If there is no symbol, an input of the main
// graph without a default gets a name made of the value and the axis ("x.0"). Other values give
// NULL. An input with a default is excluded because a constant may be read in place of it. The name
// is stored once per model, so repeated calls take no more memory.
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
    return vtype ? vtype->dims : NULL;
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

bool tsr__value_is_no_tensor(const tsr_value *value)
{
    tsr_dtype dtype;
    int rank;
    const tsr_dim *dims;
    return tsr__value_is_other(value) && tsr__value_wrapped(value, &dtype, &rank, &dims) < 0;
}
