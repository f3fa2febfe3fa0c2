// SPDX-License-Identifier: Apache-2.0
// graph.c - walking: graphs, nodes, values and their types. Changes nothing that a caller can see.
#include "ir/internal.h"

// ---- graphs ---------------------------------------------------------------------------------

const char *tsr_graph_name(const tsr_graph *g)
{
    tsr_graph *w = (tsr_graph *)g; // the C text is made when it is asked for
    return tsr__text(w->model, &w->name, &w->flags, G_TEXT);
}

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

tsr_value *tsr_graph_initializer(const tsr_graph *graph, size_t i)
{
    if (i < graph->initializers.n)
        return graph->initializers.at[i];
    i -= graph->initializers.n;
    return i < graph->sparse.n ? graph->sparse.at[i] : NULL;
}

tsr_value *tsr_graph_value(const tsr_graph *graph, const char *name)
{
    tsr_value *value = tsr__graph_own(graph, str_of(name));
    return value && !(value->flags & V_STANDIN) ? value : NULL;
}

// First node of graph or of the subgraphs after it.
static tsr_node *first_in(const tsr_graph *graph)
{
    for (; graph; graph = graph->sibling)
        if (graph->first)
            return graph->first;
    return NULL;
}

static tsr_node *first_of_functions(const tsr_model *model, size_t i)
{
    for (; i < model->functions.n; i++)
        if (model->functions.at[i]->graph->first)
            return model->functions.at[i]->graph->first;
    return NULL;
}

tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after)
{
    if (!after)
        return model->graph->first ? model->graph->first : first_of_functions(model, 0);
    if (after->graph->model != model)
        return NULL;
    tsr_node *next = after->flags & N_GRAPHS ? first_in(tsr__node_subgraph(after)) : NULL;
    while (!next && !(next = after->next)) {
        const tsr_graph *graph = after->graph;
        if (!graph->owner)
            return first_of_functions(model, graph->function ? graph->function->index + 1 : 0);
        next = first_in(graph->sibling);
        after = graph->owner;
    }
    return next;
}

// ---- nodes ----------------------------------------------------------------------------------

const char *tsr_node_name(const tsr_node *node)
{
    tsr_node *w = (tsr_node *)node;
    return tsr__text(w->graph->model, &w->name, &w->flags, N_TEXT);
}

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

int64_t tsr_node_index(const tsr_node *node)
{
    tsr_graph *graph = node->graph;
    if (node->flags & N_GONE)
        return -1;
    if (graph->flags & G_ORDER) {
        uint32_t i = 0;
        for (tsr_node *at = graph->first; at; at = at->next)
            at->index = i++;
        graph->flags &= ~(uint32_t)G_ORDER;
    }
    return node->index;
}

tsr_value *tsr_node_input(const tsr_node *node, size_t i)
{
    return i < node->n_inputs ? node->inputs[i].value : NULL;
}

tsr_value *tsr_node_output(const tsr_node *node, size_t i)
{
    return i < node->n_outputs ? node->outputs[i] : NULL;
}

size_t tsr_node_attr_count(const tsr_node *node)
{
    tsr__attrs_decode((tsr_node *)node);
    return node->n_attrs;
}

tsr_attr *tsr_node_attr(const tsr_node *node, size_t i)
{
    tsr__attrs_decode((tsr_node *)node);
    return i < node->n_attrs ? node->attrs[i] : NULL;
}

tsr_attr *tsr_node_find_attr(const tsr_node *node, const char *name)
{
    tsr__attrs_decode((tsr_node *)node);
    for (size_t i = 0; i < node->n_attrs; i++)
        if (str_is(node->attrs[i]->name, name))
            return node->attrs[i];
    return NULL;
}

// ---- values ---------------------------------------------------------------------------------

const char *tsr_value_name(const tsr_value *value)
{
    tsr_value *w = (tsr_value *)value;
    return tsr__text(tsr__value_model(value), &w->name, &w->flags, V_TEXT);
}

tsr_graph *tsr_value_graph(const tsr_value *value)
{
    return value->flags & (V_STANDIN | V_GONE) ? NULL : value->home;
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

tsr_dim tsr_value_dim(const tsr_value *value, int axis)
{
    const struct vtype *vtype = type_of(value);
    return vtype && axis >= 0 && axis < vtype->rank ? vtype->dims[axis] : (tsr_dim){-1, ""};
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

// ---- names of nodes ----------------------------------------------------------------------------

// A name that no node in `taken` has: the node's own with the lowest number behind it that is free from *count on.
static struct str free_name(tsr_model *model, struct map *taken, struct str name, uintptr_t *count)
{
    for (;;) {
        struct str try = tsr__arena_printf(&model->arena, STR_FMT "_%llu", STR_ARG(name),
                                           (unsigned long long)++*count);
        if (model->arena.failed || !tsr__map_get(taken, try))
            return try;
    }
}

// The map counts, for each name, the nodes that have asked for it: the first keeps it. All names are taken before
// any is given, so that "mm_1" is not given to the second "mm" where a later node of the model is called so.
static tsr_status part_names(tsr_graph *graph, struct arena *scratch)
{
    struct map taken;
    tsr__map_init(&taken, scratch, tsr_graph_node_count(graph));
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        void **slot = node->name.n ? tsr__map_at(&taken, node->name) : NULL;
        if (slot && !*slot)
            *slot = node;
    }
    struct map counts;
    tsr__map_init(&counts, scratch, 0);
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (!node->name.n || !(node->flags & N_NEW) || tsr__map_get(&taken, node->name) == node)
            continue;
        void **slot = tsr__map_at(&counts, node->name);
        uintptr_t count = slot ? (uintptr_t)*slot : 0;
        struct str name = free_name(graph->model, &taken, node->name, &count);
        void **own = tsr__map_at(&taken, name);
        if (!slot || !own || graph->model->arena.failed)
            return TSR_NOMEM;
        *slot = (void *)count;
        *own = node;
        node->name = name;
    }
    return scratch->failed ? TSR_NOMEM : TSR_OK;
}

static tsr_status body_names(tsr_node *node)
{
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        const tsr_attr *attr = tsr_node_attr(node, i);
        for (size_t k = 0; k < tsr_attr_graph_count(attr); k++) {
            tsr_status st = tsr__graph_part_names(tsr_attr_graph(attr, k));
            if (st != TSR_OK)
                return st;
        }
    }
    return TSR_OK;
}

tsr_status tsr__graph_part_names(tsr_graph *graph)
{
    struct arena scratch;
    tsr__arena_init(&scratch, graph->model->session);
    tsr_status st = part_names(graph, &scratch);
    tsr__arena_free(&scratch);
    if (st != TSR_OK)
        return st;
    for (tsr_node *node = tsr_graph_first(graph); node; node = tsr_node_next(node)) {
        if (!(node->flags & N_GRAPHS))
            continue;
        st = body_names(node);
        if (st != TSR_OK)
            return st;
    }
    return TSR_OK;
}
