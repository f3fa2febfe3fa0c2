// SPDX-License-Identifier: Apache-2.0
// core.c - making objects and tying them together: values and their names, uses, nodes, graphs.
//
// Names are looked up innermost graph first. A name that is read before anything defines it gets a
// stand-in, which the definition takes over if it comes. Nothing here knows how a model looks in a
// file.
//
// Example: node a of a graph that is not sorted reads "x" before node b makes it. Reading a makes a stand-in called x
// in the graph and links a's slot to it; reading b finds the stand-in under the name and makes it b's output. Had no
// node made it, the stand-in would stay, and the checker would find it.
#include "ir/internal.h"

// A map has no removal. A name that is free again maps to this object, and every lookup takes it
// for absent.
const tsr_value tsr__no_value = {.flags = V_GONE};

// A model without a graph and with an empty store; `seen` gets its arena when the first fresh name
// is asked for.
tsr_model *tsr__model_make(tsr_session *session)
{
    tsr_model *model = tsr__alloc(session, sizeof(*model));
    if (!model)
        return NULL;
    *model = (tsr_model){.session = session};
    tsr__arena_init(&model->arena, session);
    tsr__arena_init(&model->kept_ranks, session);
    tsr__map_init(&model->symbols, &model->arena, 0);
    tsr__map_init(&model->config_ids, &model->arena, 0);
    tsr__map_init(&model->lists, &model->arena, 0);
    tsr__map_init(&model->fresh, &model->arena, 0);
    tsr__map_init(&model->function_names, &model->arena, 0);
    model->store = tsr__store_new(session);
    if (!model->store || model->arena.failed) {
        tsr_model_free(model);
        return NULL;
    }
    return model;
}

// The store goes only if no clone holds it. Objects lie in the arena, so nothing is freed one by
// one.
void tsr_model_free(tsr_model *model)
{
    if (!model)
        return;
    tsr__store_drop(model->store);
    for (size_t i = 0; i < model->held.n; i++)
        tsr__store_drop(model->held.at[i]);
    tsr_session *session = model->session;
    tsr__arena_free(&model->kept_ranks);
    tsr__arena_free(&model->arena);
    tsr__free(session, model, sizeof(*model));
}

// `names` is about how many values are expected; the reader, who learns it later, makes the table
// anew. Newest first: a subgraph stands before the graph around it in model->graphs.
tsr_graph *tsr__graph_make(tsr_model *model, size_t names)
{
    tsr_graph *graph = ARENA_NEW(&model->arena, tsr_graph);
    if (!graph)
        return NULL;
    graph->model = model;
    tsr__map_init(&graph->names, &model->arena, names);
    tsr__map_init(&graph->renamed, &model->arena, 0);
    graph->next = model->graphs;
    model->graphs = graph;
    return graph;
}

// "" instead of NULL without memory, so that callers need no test: the arena has failed then, which
// they see at their end.
struct str tsr__keep(tsr_model *model, struct str text)
{
    struct str copy = tsr__arena_str(&model->arena, text);
    if (copy.p)
        return copy;
    return STR("");
}

// The last symbol asked for is tried before the table: operators often follow themselves. Texts of one
// model are equal exactly if the pointers to their symbols are.
const struct symbol *tsr__symbol(tsr_model *model, struct str text)
{
    static const struct symbol empty = {{"", 0}};
    if (!text.n)
        return &empty;
    if (model->last_op && str_eq(model->last_op->text, text))
        return model->last_op;
    struct symbol *sym = tsr__map_get(&model->symbols, text);
    if (!sym) { // the key is our own copy: the caller's text may go
        sym = ARENA_NEW(&model->arena, struct symbol);
        struct str kept = tsr__arena_str(&model->arena, text);
        void **slot = NULL;
        if (kept.p)
            slot = tsr__map_at(&model->symbols, kept);
        if (!sym || !slot)
            return &empty;
        sym->text = kept;
        *slot = sym;
    }
    model->last_op = sym;
    return sym;
}

// ---- values ---------------------------------------------------------------------------------

// Under no name yet: callers put it into graph->names, if it has a name.
tsr_value *tsr__value_make(tsr_graph *graph, struct str name)
{
    tsr_value *value = ARENA_NEW(&graph->model->arena, tsr_value);
    if (!value)
        return NULL;
    value->name = name;
    value->home = graph;
    value->id = graph->model->n_value_ids++;
    if (graph->last_value)
        graph->last_value->next = value;
    else
        graph->values = value;
    graph->last_value = value;
    return value;
}

// The empty name is "left out" and never means a value.
tsr_value *tsr__graph_own(const tsr_graph *graph, struct str name)
{
    if (!name.n)
        return NULL;
    tsr_value *value = tsr__map_get(&graph->names, name);
    if (value == &tsr__no_value)
        return NULL;
    return value;
}

tsr_value *tsr__graph_lookup(const tsr_graph *graph, struct str name)
{
    for (; graph; graph = graph_outer(graph)) {
        tsr_value *value = tsr__graph_own(graph, name);
        if (value)
            return value;
    }
    return NULL;
}

// Names mostly differ at their end, after a long common path.
static bool same_name(struct str a, struct str b)
{
    return a.n == b.n && a.p[a.n - 1] == b.p[b.n - 1] && memcmp(a.p, b.p, a.n) == 0;
}

// Before the first fresh name is asked for there is no set, and nothing to do: see_all_names
// (names.c) collects all then.
void tsr__name_seen(tsr_model *model, struct str name)
{
    void **slot = NULL;
    if (model->seen.arena && name.n)
        slot = tsr__map_at(&model->seen, name);
    if (slot)
        *slot = model;
}

// Only for reading a file: nothing has been removed yet, so the newest value of the graph can be
// taken without a lookup. The stand-in is made in the graph that reads the name; settle_standins
// (serde/read.c) moves its readers to an outer value that is defined further down.
tsr_value *tsr__graph_refer(tsr_graph *graph, struct str name)
{
    if (!name.n)
        return NULL;
    if (graph->last_value &&
        same_name(graph->last_value->name, name)) // a chain reads what was just made
        return graph->last_value;
    tsr_value *value = tsr__graph_lookup(graph, name);
    if (value)
        return value;
    void **slot = tsr__map_at(&graph->names, name);
    if (!slot)
        return NULL;
    value = tsr__value_make(graph, name);
    if (!value)
        return NULL;
    value->flags |= V_STANDIN;
    *slot = value;
    tsr__name_seen(graph->model, name);
    return value;
}

// A value without a name is in no table: an input or a constant that the file calls "".
tsr_value *tsr__value_define(tsr_graph *graph, struct str name)
{
    if (!name.n)
        return tsr__value_make(graph, name);
    void **slot = tsr__map_at(&graph->names, name);
    if (!slot)
        return NULL;
    tsr_value *value = *slot;
    if (value && value != &tsr__no_value && (value->flags & V_STANDIN)) {
        value->flags &= ~(uint32_t)V_STANDIN;
        return value;
    }
    value = tsr__value_make(graph, name);
    if (value)
        *slot = value; // a second definition is the one that later readers see
    tsr__name_seen(graph->model, name);
    return value;
}

// Appends to the ring, so that readers are met in the order in which they were tied. NULL: the slot
// is left out.
//
//     readers a, b, c in this order: last_use is c, c.next is a, a.next is b, b.next is c
void tsr__use_link(struct use *use, tsr_value *value)
{
    use->value = value;
    if (!value)
        return;
    if (value->last_use) {
        use->next = value->last_use->next;
        use->prev = value->last_use;
        use->next->prev = use;
        value->last_use->next = use;
    } else {
        use->next = use->prev = use;
    }
    value->last_use = use;
    value->n_uses++;
}

// A second call does nothing: next is NULL then.
void tsr__use_unlink(struct use *use)
{
    tsr_value *value = use->value;
    if (!value || !use->next)
        return;
    if (use->next == use) {
        value->last_use = NULL;
    } else {
        use->prev->next = use->next;
        use->next->prev = use->prev;
        if (value->last_use == use)
            value->last_use = use->prev;
    }
    use->next = use->prev = NULL;
    value->n_uses--;
}

tsr_model *tsr__value_model(const tsr_value *value)
{
    return value->home->model;
}

// An output of a subgraph may be a value of a graph around it, which counts that in n_outputs as it
// counts readers; for values of the subgraph itself nobody asks any more.
void tsr__attr_unlink(tsr_attr *attr)
{
    for (size_t k = 0; k < attr->n_graphs; k++) {
        tsr_graph *graph = attr->graphs[k];
        graph->flags |= G_GONE;
        for (tsr_node *in = graph->first; in; in = in->next)
            tsr__node_unlink(in);
        for (size_t i = 0; i < graph->outputs.n; i++)
            if (graph->outputs.at[i].value->home != graph)
                graph->outputs.at[i].value->n_outputs--;
    }
}

// Down through all nesting: what nodes of its subgraphs read counts as a use of the outer value,
// too.
void tsr__node_unlink(tsr_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++)
        tsr__use_unlink(&node->inputs[i]);
    if (node->flags & N_GRAPHS)
        for (size_t i = 0; i < node->n_attrs; i++)
            tsr__attr_unlink(node->attrs[i]);
}

// ---- nodes ----------------------------------------------------------------------------------

// Makes a node that is in no list yet: its input slots know their node but read nothing, its outputs are
// NULL. "ai.onnx" is the long name of the domain "".
tsr_node *tsr__node_make(tsr_graph *graph, struct str domain, struct str op, struct str name,
                         size_t n_inputs, size_t n_outputs)
{
    tsr_model *model = graph->model;
    if (n_inputs > UINT32_MAX || n_outputs > UINT32_MAX)
        return NULL;
    tsr_node *node = ARENA_NEW(&model->arena, tsr_node);
    struct use *inputs = ARENA_ARRAY(&model->arena, struct use, n_inputs);
    tsr_value **outputs = ARENA_ARRAY(&model->arena, tsr_value *, n_outputs);
    if (!node || model->arena.failed)
        return NULL;
    node->graph = graph;
    node->name = name;
    if (str_is(domain, "ai.onnx"))
        domain = STR("");
    node->domain = tsr__symbol(model, domain);
    node->op = tsr__symbol(model, op);
    node->inputs = inputs;
    node->outputs = outputs;
    node->n_inputs = (uint32_t)n_inputs;
    node->n_outputs = (uint32_t)n_outputs;
    for (size_t i = 0; i < n_inputs; i++)
        inputs[i].node = node;
    node->id = model->n_node_ids++;
    return node;
}

// The index is right at the end of the list. A node that came from the file is where its field is;
// one that a call made (N_NEW) makes the list another than the file's, which then cannot be written
// in place.
void tsr__node_append(tsr_graph *graph, tsr_node *node)
{
    node->graph = graph;
    node->prev = graph->last;
    node->next = NULL;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    node->index = (uint32_t)graph->n_nodes++;
    if (node->flags & N_NEW)
        graph->flags |= G_LIST;
}

static void mark_graph(tsr_graph *graph, uint32_t bits);

// Every change but one of annotations counts as an edit, after which ranks that were kept no longer
// hold. (An annotation inside a body does count, as a change of the node around it.) Marks go
// outwards once: a node that has the bits has told its graph already.
void tsr__touch_node(tsr_node *node, uint32_t bits)
{
    if (bits != N_CONFIGS)
        node->graph->model->n_edits++;
    if ((node->flags & bits) == bits)
        return;
    node->flags |= bits;
    mark_graph(node->graph, G_NODES);
}

// A change in a body is a change of the attribute that holds it, hence of its node, hence of that
// node's graph:
//     main > If > then_branch > Add gets a sharding: Add N_CONFIGS, then_branch G_NODES and its attribute `changed`,
//     If N_ATTRIBUTES, main G_NODES, the model `changed`. Everything else is saved as the bytes it came from.
void tsr__touch_graph(tsr_graph *graph, uint32_t bits)
{
    graph->model->n_edits++;
    mark_graph(graph, bits);
}

// Marks the graph, and the nodes that hold it, as changed.
static void mark_graph(tsr_graph *graph, uint32_t bits)
{
    if ((graph->flags & bits) == bits && graph->model->changed)
        return;
    graph->flags |= bits;
    graph->model->changed = true;
    if (graph->attr)
        graph->attr->changed = true;
    if (graph->owner)
        tsr__touch_node(graph->owner, N_ATTRIBUTES);
}

bool tsr__graph_within(const tsr_graph *inner, const tsr_graph *outer)
{
    for (; inner; inner = graph_outer(inner))
        if (inner == outer)
            return true;
    return false;
}

// N_GRAPHS is set when subgraphs are read or made, so nodes without any are not decoded for the
// question.
tsr_graph *tsr__node_subgraph(const tsr_node *node)
{
    if (!(node->flags & N_GRAPHS))
        return NULL;
    for (size_t i = 0; i < node->n_attrs; i++)
        if (node->attrs[i]->n_graphs)
            return node->attrs[i]->graphs[0];
    return NULL;
}

// Siblings run through all attributes in their order: then_branch and else_branch of an If are one
// chain.
void tsr__node_relink(tsr_node *node)
{
    tsr_graph *before = NULL;
    for (size_t i = 0; i < node->n_attrs; i++)
        for (size_t k = 0; k < node->attrs[i]->n_graphs; k++) {
            tsr_graph *graph = node->attrs[i]->graphs[k];
            graph->sibling = NULL;
            if (before)
                before->sibling = graph;
            before = graph;
        }
}

size_t tsr__room_for(size_t n)
{
    size_t room = 1;
    while (room < n)
        room *= 2;
    return room;
}

// n is a power of two exactly if the array is full: 0, 1, 2, 4, 8 ... entries have room for as
// many.
void *tsr__room(struct arena *arena, void *at, size_t n)
{
    if (n & (n - 1)) // not full
        return at;
    size_t room = 1;
    if (n)
        room = 2 * n;
    void **more = ARENA_ARRAY(arena, void *, room);
    if (more && n)
        memcpy(more, at, n * sizeof(*more));
    return more;
}

// ---- numbers and texts for other rooms ------------------------------------------------------

struct arena *tsr__model_arena(tsr_model *model)
{
    return &model->arena;
}
uint32_t tsr__node_id(const tsr_node *node)
{
    return node->id;
}
uint32_t tsr__value_id(const tsr_value *value)
{
    return value->id;
}
uint32_t tsr__model_node_ids(const tsr_model *model)
{
    return model->n_node_ids;
}
uint32_t tsr__model_value_ids(const tsr_model *model)
{
    return model->n_value_ids;
}

// NULL after any edit since they were kept, however small: whether it touches ranks is not looked
// into.
const int *tsr__model_ranks(const tsr_model *model)
{
    if (model->ranks_n_edits == model->n_edits)
        return model->ranks;
    return NULL;
}

tsr_status tsr__model_keep_ranks(tsr_model *model, const int *ranks)
{
    tsr__arena_free(&model->kept_ranks);
    tsr__arena_init(&model->kept_ranks, model->session);
    int *kept = ARENA_ARRAY(&model->kept_ranks, int, (size_t)model->n_value_ids + 1);
    model->ranks = kept;
    model->ranks_n_edits = model->n_edits;
    if (!kept)
        return TSR_NOMEM;
    memcpy(kept, ranks, model->n_value_ids * sizeof *kept);
    return TSR_OK;
}
struct str tsr__value_str(const tsr_value *value)
{
    return value->name;
}
struct str tsr__node_str(const tsr_node *node)
{
    return node->name;
}
struct str tsr__node_op_str(const tsr_node *node)
{
    return node->op->text;
}
struct str tsr__node_domain_str(const tsr_node *node)
{
    return node->domain->text;
}

// A body of a function has the function's imports, a branch those of the graph around it. Of two
// imports of a domain the first counts.
int64_t tsr__graph_opset(const tsr_graph *graph, struct str domain)
{
    while (graph->owner)
        graph = graph->owner->graph;
    const opset_list *list = &graph->model->opsets;
    if (graph->function)
        list = &graph->function->opsets;
    for (size_t i = 0; i < list->n; i++)
        if (str_eq(list->at[i].domain, domain))
            return list->at[i].version;
    return 0;
}

int64_t tsr__node_opset(const tsr_node *node)
{
    return tsr__graph_opset(node->graph, node->domain->text);
}
