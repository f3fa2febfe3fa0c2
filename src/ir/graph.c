// SPDX-License-Identifier: Apache-2.0
// graph.c - walking: graphs, nodes, values and their types. Changes nothing that a caller can see.
#include "ir/internal.h"

// ---- graphs ---------------------------------------------------------------------------------

const char *tsr_graph_name(const tsr_graph *g)
{
    tsr_graph *w = (tsr_graph *)g; // the C text is made when it is asked for
    return tsr__text(w->model, &w->name, &w->flags, G_TEXT);
}

tsr_model *tsr_graph_model(const tsr_graph *g)
{
    return g->model;
}
tsr_node *tsr_graph_owner(const tsr_graph *g)
{
    return g->owner;
}
size_t tsr_graph_node_count(const tsr_graph *g)
{
    return g->n_nodes;
}
tsr_node *tsr_graph_first(const tsr_graph *g)
{
    return g->first;
}
tsr_node *tsr_node_next(const tsr_node *n)
{
    return n->next;
}
size_t tsr_graph_input_count(const tsr_graph *g)
{
    return g->inputs.n;
}
size_t tsr_graph_output_count(const tsr_graph *g)
{
    return g->outputs.n;
}
size_t tsr_graph_initializer_count(const tsr_graph *g)
{
    return g->initializers.n + g->sparse.n;
}

tsr_value *tsr_graph_input(const tsr_graph *g, size_t i)
{
    return i < g->inputs.n ? g->inputs.at[i].value : NULL;
}

tsr_value *tsr_graph_output(const tsr_graph *g, size_t i)
{
    return i < g->outputs.n ? g->outputs.at[i].value : NULL;
}

tsr_value *tsr_graph_initializer(const tsr_graph *g, size_t i)
{
    if (i < g->initializers.n)
        return g->initializers.at[i];
    i -= g->initializers.n;
    return i < g->sparse.n ? g->sparse.at[i] : NULL;
}

tsr_value *tsr_graph_value(const tsr_graph *g, const char *name)
{
    tsr_value *v = tsr__graph_own(g, str_of(name));
    return v && !(v->flags & V_STANDIN) ? v : NULL;
}

// First node of g or of the subgraphs after it.
static tsr_node *first_in(const tsr_graph *g)
{
    for (; g; g = g->sibling)
        if (g->first)
            return g->first;
    return NULL;
}

static tsr_node *first_of_functions(const tsr_model *m, size_t i)
{
    for (; i < m->functions.n; i++)
        if (m->functions.at[i]->graph->first)
            return m->functions.at[i]->graph->first;
    return NULL;
}

tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after)
{
    if (!after)
        return model->graph->first ? model->graph->first : first_of_functions(model, 0);
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

const char *tsr_node_name(const tsr_node *n)
{
    tsr_node *w = (tsr_node *)n;
    return tsr__text(w->graph->model, &w->name, &w->flags, N_TEXT);
}

const char *tsr_node_op(const tsr_node *n)
{
    return n->op->text.p;
}
const char *tsr_node_domain(const tsr_node *n)
{
    return n->domain->text.p;
}
tsr_graph *tsr_node_graph(const tsr_node *n)
{
    return n->graph;
}
size_t tsr_node_input_count(const tsr_node *n)
{
    return n->n_inputs;
}
size_t tsr_node_output_count(const tsr_node *n)
{
    return n->n_outputs;
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

tsr_value *tsr_node_input(const tsr_node *n, size_t i)
{
    return i < n->n_inputs ? n->inputs[i].value : NULL;
}

tsr_value *tsr_node_output(const tsr_node *n, size_t i)
{
    return i < n->n_outputs ? n->outputs[i] : NULL;
}

size_t tsr_node_attr_count(const tsr_node *n)
{
    tsr__attrs_decode((tsr_node *)n);
    return n->n_attrs;
}

tsr_attr *tsr_node_attr(const tsr_node *n, size_t i)
{
    tsr__attrs_decode((tsr_node *)n);
    return i < n->n_attrs ? n->attrs[i] : NULL;
}

tsr_attr *tsr_node_find_attr(const tsr_node *n, const char *name)
{
    tsr__attrs_decode((tsr_node *)n);
    for (size_t i = 0; i < n->n_attrs; i++)
        if (str_is(n->attrs[i]->name, name))
            return n->attrs[i];
    return NULL;
}

// ---- values ---------------------------------------------------------------------------------

const char *tsr_value_name(const tsr_value *v)
{
    tsr_value *w = (tsr_value *)v;
    return tsr__text(tsr__value_model(v), &w->name, &w->flags, V_TEXT);
}

tsr_graph *tsr_value_graph(const tsr_value *v)
{
    return v->flags & (V_STANDIN | V_GONE) ? NULL : v->home;
}

tsr_node *tsr_value_producer(const tsr_value *v)
{
    return v->producer;
}
size_t tsr_value_use_count(const tsr_value *v)
{
    return v->n_uses;
}
bool tsr_value_is_input(const tsr_value *v)
{
    return v->flags & V_INPUT;
}
bool tsr_value_is_output(const tsr_value *v)
{
    return v->n_outputs > 0;
}
const tsr_tensor *tsr_value_initializer(const tsr_value *v)
{
    return v->tensor;
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

static const struct vtype *type_of(const tsr_value *v)
{
    tsr__type_decode((tsr_value *)v);
    return v->type;
}

tsr_dtype tsr_value_dtype(const tsr_value *v)
{
    const struct vtype *t = type_of(v);
    return t ? t->dtype : TSR_UNDEFINED;
}

int tsr_value_rank(const tsr_value *v)
{
    const struct vtype *t = type_of(v);
    return t ? t->rank : -1;
}

tsr_dim tsr_value_dim(const tsr_value *v, int axis)
{
    const struct vtype *t = type_of(v);
    return t && axis >= 0 && axis < t->rank ? t->dims[axis] : (tsr_dim){-1, ""};
}

const tsr_dim *tsr__value_dims(const tsr_value *v)
{
    const struct vtype *t = type_of(v);
    return t ? t->dims : NULL;
}

struct str tsr__dim_symbol(const tsr_value *v, int axis)
{
    return str_of(tsr_value_dim(v, axis).symbol);
}

bool tsr__value_is_other(const tsr_value *v)
{
    const struct vtype *t = type_of(v);
    return t && t->other.n > 0;
}

// ---- names of nodes ----------------------------------------------------------------------------

// A name that no node in `taken` has: the node's own with the lowest number behind it that is free from *count on.
static struct str free_name(tsr_model *m, struct map *taken, struct str name, uintptr_t *count)
{
    for (;;) {
        struct str try = tsr__arena_printf(&m->arena, STR_FMT "_%llu", STR_ARG(name),
                                           (unsigned long long)++*count);
        if (m->arena.failed || !tsr__map_get(taken, try))
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
