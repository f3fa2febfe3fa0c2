// SPDX-License-Identifier: Apache-2.0
// core.c - creates objects and links them: values and their names, uses, nodes, graphs.
//
// Names are looked up from the innermost graph outwards. A name that is read before it is defined
// gets a placeholder; the definition later turns it into the value. Nothing here depends on the
// file format.
//
//     Example: in an unsorted graph node a reads "x" before node b computes it. Reading a creates a
//     placeholder called x and links a's input to it. Reading b finds the placeholder and makes it
//     b's output. If no node computes x, the placeholder remains, which the checker reports.
#include "ir/internal.h"

// Names cannot be removed from a map. A removed name maps to this object, which look-ups treat as
// absent.
const tsr_value tsr__no_value = {.flags = V_GONE};

// Creates a model without a graph. Its store, the bytes of the model file, is empty.
tsr_model *tsr__model_make(tsr_session *session)
{
    tsr_model *model = tsr__alloc(session, sizeof(*model));
    if (!model)
        return NULL;
    *model = (tsr_model){.session = session};
    tsr__arena_init(&model->arena, session);
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

// Frees all objects with the arena. The store stays if clones hold it.
void tsr_model_free(tsr_model *model)
{
    if (!model)
        return;
    tsr__store_drop(model->store);
    for (size_t i = 0; i < model->held.n; i++)
        tsr__store_drop(model->held.at[i]);
    tsr_session *session = model->session;
    tsr__model_drop_derived(model, NULL, NULL);
    tsr__arena_free(&model->arena);
    tsr__free(session, model, sizeof(*model));
}

// Creates an empty graph. `names` is the expected number of values. The new graph becomes the first
// in model->graphs, so a subgraph precedes its enclosing graph.
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

// Copies a text to the model's arena. Returns "" if out of memory; the arena has then failed.
struct str tsr__keep(tsr_model *model, struct str text)
{
    struct str copy = tsr__arena_str(&model->arena, text);
    return copy.p ? copy : STR("");
}

// Returns the symbol of a text, and creates it on the first call. Two texts of a model are equal if
// and only if the pointers to their symbols are. Tries the last symbol first, because equal
// operators often follow each other.
const struct symbol *tsr__symbol(tsr_model *model, struct str text)
{
    static const struct symbol empty = {{"", 0}};
    if (!text.n)
        return &empty;
    if (model->last_op && str_eq(model->last_op->text, text))
        return model->last_op;
    struct symbol *sym = tsr__map_get(&model->symbols, text);
    if (!sym) {
        sym = ARENA_NEW(&model->arena, struct symbol);
        struct str kept = tsr__arena_str(&model->arena, text);
        void **slot = kept.p ? tsr__map_at(&model->symbols, kept) : NULL;
        if (!sym || !slot)
            return &empty;
        sym->text = kept;
        *slot = sym;
    }
    model->last_op = sym;
    return sym;
}

// ---- values ---------------------------------------------------------------------------------

// Creates a value. The caller adds the value to graph->names.
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

// Returns the value of this name that the graph itself defines, or NULL. The empty name means an
// omitted input or output, never a value.
tsr_value *tsr__graph_own(const tsr_graph *graph, struct str name)
{
    if (!name.n)
        return NULL;
    tsr_value *value = tsr__map_get(&graph->names, name);
    return value == &tsr__no_value ? NULL : value;
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

// True if two names are equal. Compares the last byte first, because names often have a long common
// beginning.
static bool same_name(struct str a, struct str b)
{
    return a.n == b.n && a.p[a.n - 1] == b.p[b.n - 1] && memcmp(a.p, b.p, a.n) == 0;
}

// Adds a name to the set of used names. The set exists only after the first fresh name was
// requested (see collect_all_names in names.c).
void tsr__name_seen(tsr_model *model, struct str name)
{
    void **slot = model->seen.arena && name.n ? tsr__map_at(&model->seen, name) : NULL;
    if (slot)
        *slot = model;
}

// Returns the value with this name, or creates a placeholder in the graph that reads the name. Only
// for reading a file: no value was removed yet, so the newest value can be tried first.
// bind_placeholders (serde/read.c) handles outer values that are defined later.
tsr_value *tsr__graph_refer(tsr_graph *graph, struct str name)
{
    if (!name.n)
        return NULL;
    if (graph->last_value && same_name(graph->last_value->name, name))
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
    value->flags |= V_PLACEHOLDER;
    *slot = value;
    tsr__name_seen(graph->model, name);
    return value;
}

// Defines a value by its name. Inputs and constants may have the name ""; these are not added to
// the map.
tsr_value *tsr__value_define(tsr_graph *graph, struct str name)
{
    if (!name.n)
        return tsr__value_make(graph, name);
    void **slot = tsr__map_at(&graph->names, name);
    if (!slot)
        return NULL;
    tsr_value *value = *slot;
    if (value && value != &tsr__no_value && (value->flags & V_PLACEHOLDER)) {
        value->flags &= ~(uint32_t)V_PLACEHOLDER;
        return value;
    }
    value = tsr__value_make(graph, name);
    if (value)
        *slot = value; // later nodes read the second definition
    tsr__name_seen(graph->model, name);
    return value;
}

tsr_value *tsr__value_new(tsr_graph *graph, struct str name)
{
    struct str kept = tsr__keep(graph->model, name);
    tsr_value *value = graph->model->arena.failed ? NULL : tsr__value_define(graph, kept);
    if (value) {
        value->name = kept; // the name of a placeholder may point into the file
        value->flags |= V_NEW | V_TEXT;
    }
    return value;
}

// Appends to the ring of uses, which keeps their order. `value` is NULL for an omitted input.
//
//     Example: uses a, b, c in this order: last_use is c, c.next is a, a.next is b, b.next is c
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

// Removes a use from the list of its value. A second call does nothing.
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

// Removes the uses that the subgraphs of an attribute have. An output of a subgraph may be a value
// of an enclosing graph; n_outputs of that value counts it.
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

// Removes the uses that a node has. Also unlinks the nodes of subgraphs, because they may use outer
// values.
void tsr__node_unlink(tsr_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++)
        tsr__use_unlink(&node->inputs[i]);
    if (node->flags & N_GRAPHS)
        for (size_t i = 0; i < node->n_attrs; i++)
            tsr__attr_unlink(node->attrs[i]);
}

// ---- nodes ----------------------------------------------------------------------------------

// Creates a node. The new node is in no list. Its inputs are not linked and its outputs are NULL.
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
    node->domain = tsr__symbol(model, plain_domain(domain));
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

// Appends a node to the list of its graph. A new node (N_NEW) makes the list differ from the file,
// so the graph cannot be written in place.
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

// Marks parts of a node as changed. Every change except of annotations and metadata invalidates
// derived results (n_edits). A change is propagated to the enclosing graphs only once.
void tsr__touch_node(tsr_node *node, uint32_t bits)
{
    if (bits & ~(uint32_t)(N_CONFIGS | N_METADATA))
        node->graph->model->n_edits++;
    if ((node->flags & bits) == bits)
        return;
    node->flags |= bits;
    mark_graph(node->graph, G_NODES);
}

// Marks parts of a graph as changed. A change in a subgraph also changes its attribute, the node of
// the attribute, and the graph of that node.
//   Example: main > If > then_branch > Add gets a sharding. Marked are Add (N_CONFIGS), then_branch
//   (G_NODES) and its attribute, If (N_ATTRIBUTES), main (G_NODES) and the model. Everything else
//   is saved as its old bytes.
void tsr__touch_graph(tsr_graph *graph, uint32_t bits)
{
    graph->model->n_edits++;
    mark_graph(graph, bits);
}

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

// Returns the first subgraph of a node. Checks N_GRAPHS first, to avoid decoding the attributes of
// nodes without subgraphs. NULL: it has none.
tsr_graph *tsr__node_subgraph(const tsr_node *node)
{
    if (!(node->flags & N_GRAPHS))
        return NULL;
    for (size_t i = 0; i < node->n_attrs; i++)
        if (node->attrs[i]->n_graphs)
            return node->attrs[i]->graphs[0];
    return NULL;
}

bool tsr__node_has_graphs(const tsr_node *node)
{
    return tsr__node_subgraph(node) != NULL;
}

// Links the subgraphs of all attributes as siblings: then_branch and else_branch of an If.
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

size_t tsr__pointers_capacity(size_t n)
{
    size_t capacity = 1;
    while (capacity < n)
        capacity *= 2;
    return capacity;
}

// Enlarges the array for one more pointer. The array is full if n is 0 or a power of two.
void *tsr__pointers_grow(struct arena *arena, void *at, size_t n)
{
    if (n & (n - 1)) // not full
        return at;
    size_t capacity = n ? 2 * n : 1;
    void **more = ARENA_ARRAY(arena, void *, capacity);
    if (more && n)
        memcpy(more, at, n * sizeof(*more));
    return more;
}

// ---- accessors for other modules ------------------------------------------------------------

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

void tsr__model_drop_derived(tsr_model *model, bool (*keeps)(const void *result, const void *data),
                             const void *data)
{
    struct derived **at = &model->derived;
    while (*at) {
        struct derived *derived = *at;
        if (keeps && derived->result && keeps(derived->result, data)) {
            at = &derived->next;
            continue;
        }
        *at = derived->next;
        tsr__arena_free(&derived->arena);
        tsr__free(model->session, derived, sizeof *derived);
    }
}

struct derived *tsr__model_derived(tsr_model *model)
{
    if (model->derived_n_edits != model->n_edits)
        tsr__model_drop_derived(model, NULL, NULL);
    model->derived_n_edits = model->n_edits;
    return model->derived;
}

struct derived *tsr__model_derive(tsr_model *model)
{
    struct derived *derived = tsr__alloc(model->session, sizeof *derived);
    if (!derived)
        return NULL;
    *derived = (struct derived){.next = tsr__model_derived(model)};
    tsr__arena_init(&derived->arena, model->session);
    return model->derived = derived;
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

// Returns the version of a domain that the graph imports. Functions have their own imports;
// subgraphs use the imports of the enclosing graph.
int64_t tsr__graph_opset(const tsr_graph *graph, struct str domain)
{
    const struct opset *opset = opset_of(graph_opsets(graph), domain);
    return opset ? opset->version : 0;
}

int64_t tsr__node_opset(const tsr_node *node)
{
    return tsr__graph_opset(node->graph, node->domain->text);
}
