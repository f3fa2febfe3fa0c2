// SPDX-License-Identifier: Apache-2.0
// names.c - names and places of objects, and unique names.
//
// A name points into the file until a C string is requested. Diagnostics locate a node as "main >
// #3 If then_branch": the branch of the If that is node 3 of the main graph. Edits address it as
// "outer > then_branch", by the name of the node.
//
// Unique names of values are unique in all graphs of a model, so that values can be moved between
// graphs. Unique names of nodes are unique in their graph, because engines require it.
#include "ir/internal.h"

// ---- names ----------------------------------------------------------------------------------

// Returns the text as a C string. Makes a NUL-terminated copy on the first call; `bit` of `flags`
// is then set.
static const char *text_of(tsr_model *model, struct str *view, uint32_t *flags, uint32_t bit)
{
    if (*flags & bit)
        return view->p;
    if (!view->n)
        return "";
    struct str copy = tsr__arena_str(&model->arena, *view);
    if (!copy.p)
        return "";
    *view = copy;
    *flags |= bit;
    return copy.p;
}

// Returns the name of a graph; "" if out of memory.
const char *tsr_graph_name(const tsr_graph *asked)
{
    tsr_graph *graph = (tsr_graph *)asked;
    return text_of(graph->model, &graph->name, &graph->flags, G_TEXT);
}

const char *tsr_node_name(const tsr_node *asked)
{
    tsr_node *node = (tsr_node *)asked;
    return text_of(node->graph->model, &node->name, &node->flags, N_TEXT);
}

const char *tsr_value_name(const tsr_value *asked)
{
    tsr_value *value = (tsr_value *)asked;
    return text_of(tsr__value_model(value), &value->name, &value->flags, V_TEXT);
}

// Returns the name of a node, or that of its first output. In ONNX names of nodes are optional,
// names of values are not.
const char *tsr__node_label(const tsr_node *node)
{
    if (node->name.n)
        return tsr_node_name(node);
    for (size_t i = 0; i < node->n_outputs; i++)
        if (node->outputs[i])
            return tsr_value_name(node->outputs[i]);
    return "";
}

// ---- places ---------------------------------------------------------------------------------

// Returns the index of a node in its graph; -1 for a removed node. After a change of the list all
// indices are recomputed, so alternating edits and calls take quadratic time.
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

static struct str attribute_of(const tsr_graph *graph)
{
    return graph->attr ? graph->attr->name : STR("");
}

// Returns the path of a graph for diagnostics. The path is computed once and keeps the index that
// the outer node had then. The nesting of graphs limits the recursion.
struct str tsr__graph_path(const tsr_graph *asked)
{
    tsr_graph *graph = (tsr_graph *)asked;
    struct arena *arena = &graph->model->arena;
    if (graph->path.n)
        return graph->path;
    if (graph->function) {
        graph->path = tsr__arena_printf(arena, "function " STR_FMT, STR_ARG(graph->function->name));
    } else if (graph->owner) {
        struct str outer = tsr__graph_path(graph->owner->graph), attribute = attribute_of(graph);
        graph->path = tsr__arena_printf(arena, STR_FMT " > #%lld " STR_FMT " " STR_FMT,
                                        STR_ARG(outer), (long long)tsr_node_index(graph->owner),
                                        STR_ARG(graph->owner->op->text), STR_ARG(attribute));
    }
    return graph->path.p ? graph->path : STR("main");
}

// Returns the path of a graph as edits write it: "outer > branch" or "function f"; empty for the
// main graph.
static struct str graph_words(tsr_graph *graph)
{
    struct arena *arena = &graph->model->arena;
    if (graph->words.n || (!graph->owner && !graph->function))
        return graph->words;
    if (graph->function)
        return graph->words = tsr__graph_path(graph);
    struct str outer = graph_words(graph->owner->graph), name = graph->owner->name;
    struct str attribute = attribute_of(graph);
    if (!name.n)
        name = tsr__arena_printf(arena, "#%lld", (long long)tsr_node_index(graph->owner));
    if (outer.n)
        outer = tsr__arena_printf(arena, STR_FMT " > ", STR_ARG(outer));
    graph->words = tsr__arena_printf(arena, STR_FMT STR_FMT " > " STR_FMT, STR_ARG(outer),
                                     STR_ARG(name), STR_ARG(attribute));
    return graph->words;
}

// Returns the place of a node for diagnostics. May recompute the indices of all nodes
// (tsr_node_index).
struct place tsr__place_node(const tsr_node *node)
{
    struct place at = PLACE_NONE;
    at.within = graph_words(node->graph);
    at.file = str_of(node->graph->model->path);
    at.graph = tsr__graph_path(node->graph);
    at.node_index = tsr_node_index(node);
    at.node = node->name;
    at.op = node->op->text;
    return at;
}

struct place tsr__place_value(const tsr_value *value)
{
    tsr_model *model = tsr__value_model(value);
    return PLACE(.file = str_of(model->path), .graph = tsr__graph_path(value->home),
                 .value = value->name);
}

struct place tsr__place_spec(const tsr_node *node, const tsr_config *config, const tsr_value *value)
{
    struct place at = tsr__place_node(node);
    if (config)
        at.configuration = str_of(tsr_config_name(config));
    if (value)
        at.value = tsr__value_str(value);
    return at;
}

// ---- unique names ---------------------------------------------------------------------------

// Collects the names of all graphs once. Searching every graph for every new name would take
// quadratic time.
static void collect_all_names(tsr_model *model)
{
    tsr__map_init(&model->seen, &model->arena, model->n_value_ids);
    for (const tsr_graph *graph = model->graphs; graph; graph = graph->next)
        for (size_t i = 0; i < graph->names.cap; i++)
            if (graph->names.slots[i].hash)
                tsr__name_seen(model,
                               (struct str){graph->names.slots[i].p, graph->names.slots[i].n});
}

// Returns the first of base, base_1, base_2 ... that no graph has or had. The model stores the last
// number per base, so n names of one base take n steps. Example: if "x" exists, the result is x_1,
// and the next call returns x_2 without trying x and x_1. With base "": v, v_1 ...
struct str tsr__graph_fresh_name(tsr_graph *graph, struct str base)
{
    tsr_model *model = graph->model;
    if (!base.n)
        base = STR("v");
    struct str name = tsr__keep(model, base);
    void **slot = tsr__map_at(&model->fresh, name);
    uintptr_t count = slot ? (uintptr_t)*slot : 0;
    if (!model->seen.arena)
        collect_all_names(model);
    for (;; count++) {
        struct str try = name;
        if (count)
            try = tsr__arena_printf(&model->arena, STR_FMT "_%llu", STR_ARG(name),
                                    (unsigned long long)count);
        if (model->arena.failed)
            return STR("");
        if (tsr__map_get(&model->seen, try))
            continue;
        tsr__name_seen(model, try);
        if (slot)
            *slot = (void *)(count + 1);
        return try;
    }
}

// Returns `name` with the lowest number above *count that makes it absent from `taken`.
static struct str free_name(tsr_model *model, struct map *taken, struct str name, uintptr_t *count)
{
    for (;;) {
        struct str try = tsr__arena_printf(&model->arena, STR_FMT "_%llu", STR_ARG(name),
                                           (unsigned long long)++*count);
        if (model->arena.failed || !tsr__map_get(taken, try))
            return try;
    }
}

// Renames new nodes (N_NEW) whose name an earlier node has. Nodes of a file keep their names. All
// names are collected first, so that a second "mm" does not become "mm_1" if a later node has that
// name.
static tsr_status rename_duplicates(tsr_graph *graph, struct arena *scratch)
{
    struct map taken;
    tsr__map_init(&taken, scratch, graph->n_nodes);
    for (tsr_node *node = graph->first; node; node = node->next) {
        void **slot = node->name.n ? tsr__map_at(&taken, node->name) : NULL;
        if (slot && !*slot)
            *slot = node;
    }
    struct map counts;
    tsr__map_init(&counts, scratch, 0);
    for (tsr_node *node = graph->first; node; node = node->next) {
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
    return arena_status(scratch);
}

tsr_status tsr__graph_unique_node_names(tsr_graph *graph)
{
    struct arena scratch = {.session = graph->model->session};
    tsr_status st = rename_duplicates(graph, &scratch);
    tsr__arena_free(&scratch);
    if (st != TSR_OK)
        return st;
    for (const tsr_node *node = graph->first; node; node = node->next)
        for (tsr_graph *body = tsr__node_subgraph(node); body; body = body->sibling)
            TRY(tsr__graph_unique_node_names(body));
    return TSR_OK;
}
