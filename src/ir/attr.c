// SPDX-License-Identifier: Apache-2.0
// attr.c - reads, sets and removes attributes of nodes.
//
// An attribute of a file is decoded in two steps on demand (serde/decode.c). Name and kind are
// decoded together with all attributes of the node (N_ATTRS); the value is decoded when it is read
// (`decoded`).
//
//     Example: a file has Conv {kernel_shape [3,3], group 1}; an API call sets group to 2.
//     kernel_shape keeps `whole`, the bytes of its field, and is saved as these bytes. group is
//     marked `changed`, has no `whole`, and is written from `integer`. The node gets N_ATTRIBUTES.
#include "ir/internal.h"

// ---- attributes of a node -------------------------------------------------------------------

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

// Finds an attribute by name, or returns NULL. If a file has two of this name, returns the first.
tsr_attr *tsr_node_find_attr(const tsr_node *node, const char *name)
{
    tsr__attrs_decode((tsr_node *)node);
    for (size_t i = 0; i < node->n_attrs; i++)
        if (str_is(node->attrs[i]->name, name))
            return node->attrs[i];
    return NULL;
}

// ---- values ---------------------------------------------------------------------------------

// Decodes the value of an attribute. The decoded value is a cache, so it is stored even through a
// const pointer.
static tsr_attr *ready(const tsr_attr *attr)
{
    if (attr)
        tsr__attr_decode((tsr_attr *)attr);
    return (tsr_attr *)attr;
}

const char *tsr_attr_name(const tsr_attr *attr)
{
    return attr->name.p;
}
tsr_attr_kind tsr_attr_kind_of(const tsr_attr *attr)
{
    return attr->kind;
}
struct str tsr__attr_ref(const tsr_attr *attr)
{
    return attr->ref;
}
size_t tsr_attr_graph_count(const tsr_attr *attr)
{
    return attr->n_graphs;
}

// Returns the value of an integer attribute. Returns `otherwise` (for example the operator's
// default) if the attribute is NULL, of another kind, or refers to an attribute of the function.
int64_t tsr_attr_int(const tsr_attr *a, int64_t otherwise)
{
    const tsr_attr *r = ready(a);
    return r && r->kind == TSR_ATTR_INT && r->has_value ? r->integer : otherwise;
}

float tsr_attr_float(const tsr_attr *a, float otherwise)
{
    const tsr_attr *r = ready(a);
    return r && r->kind == TSR_ATTR_FLOAT && r->has_value ? r->real : otherwise;
}

// Returns a string attribute as a NUL-terminated copy, or NULL if it has no value or is of another
// kind. The string itself may contain NULs; *bytes is its length.
const char *tsr_attr_string(const tsr_attr *attr, size_t *bytes)
{
    tsr_attr *r = ready(attr);
    if (!r || r->kind != TSR_ATTR_STRING || !r->has_value)
        return NULL;
    if (!r->text_ready) {
        r->text = tsr__keep(r->node->graph->model, r->text);
        r->text_ready = true;
    }
    if (bytes)
        *bytes = r->text.n;
    return r->text.p;
}

// Returns the number of integers of a list; 0 for an empty list, another kind and NULL.
size_t tsr_attr_ints(const tsr_attr *a, const int64_t **out)
{
    const tsr_attr *r = ready(a);
    if (out)
        *out = NULL;
    if (!r || r->kind != TSR_ATTR_INTS || !r->n_ints)
        return 0;
    if (out)
        *out = r->ints;
    return r->n_ints;
}

tsr_graph *tsr_attr_graph(const tsr_attr *attr, size_t i)
{
    return i < attr->n_graphs ? attr->graphs[i] : NULL;
}

const tsr_tensor *tsr_attr_tensor(const tsr_attr *a)
{
    const tsr_attr *r = ready(a);
    return r && r->kind == TSR_ATTR_TENSOR ? r->tensor : NULL;
}

// ---- setting --------------------------------------------------------------------------------

// Checks that the node was not removed and that the name is not empty.
static tsr_status check_edit(tsr_node *node, const char *name)
{
    bool gone = node->flags & N_GONE;
    if (!gone && name && *name)
        return TSR_OK;
    struct place at = tsr__place_node(node);
    tsr_session *session = node->graph->model->session;
    if (gone)
        tsr__diag(session, DIAG_node_removed, &at, "do not use a node after removing it",
                  "the node was removed from its graph");
    else
        tsr__diag(session, DIAG_name_empty, &at, NULL, "an attribute needs a name");
    return TSR_INVALID;
}

// Adds an empty attribute to a node. The attributes must be decoded. Returns NULL if out of memory.
static tsr_attr *append_attr(tsr_node *node)
{
    struct arena *arena = &node->graph->model->arena;
    tsr_attr **more = tsr__pointers_grow(arena, node->attrs, node->n_attrs);
    tsr_attr *at = ARENA_NEW(arena, tsr_attr);
    if (!more || !at)
        return NULL;
    at->node = node;
    more[node->n_attrs++] = at;
    node->attrs = more;
    return at;
}

tsr_attr *tsr__attr_append(tsr_node *node)
{
    tsr__attrs_decode(node);
    return append_attr(node);
}

// Sets *out to the attribute of this name, without its old value, or to a new one. All setters
// start with this call.
static tsr_status fresh_attr(tsr_node *node, const char *name, tsr_attr_kind kind, tsr_attr **out)
{
    TRY(check_edit(node, name));
    tsr_attr *attr = tsr_node_find_attr(node, name);
    if (attr)
        tsr__attr_unlink(attr);
    else
        attr = append_attr(node);
    if (!attr)
        return TSR_NOMEM;
    *attr =
        (tsr_attr){.node = node, .kind = kind, .decoded = true, .changed = true, .has_value = true};
    tsr__node_relink(node);
    attr->name = tsr__keep(node->graph->model, str_of(name));
    tsr__touch_node(node, N_ATTRIBUTES);
    *out = attr;
    return model_status(node->graph->model);
}

tsr_status tsr_node_set_int(tsr_node *node, const char *name, int64_t value)
{
    tsr_attr *attr;
    tsr_status st = fresh_attr(node, name, TSR_ATTR_INT, &attr);
    if (st == TSR_OK)
        attr->integer = value;
    return st;
}

tsr_status tsr_node_set_float(tsr_node *node, const char *name, float value)
{
    tsr_attr *attr;
    tsr_status st = fresh_attr(node, name, TSR_ATTR_FLOAT, &attr);
    if (st == TSR_OK)
        attr->real = value;
    return st;
}

tsr_status tsr_node_set_string(tsr_node *node, const char *name, const char *value)
{
    tsr_attr *attr;
    // `value` may be the old text, so copy it first
    struct str text = tsr__keep(node->graph->model, str_of(value));
    tsr_status st = fresh_attr(node, name, TSR_ATTR_STRING, &attr);
    if (st == TSR_OK) {
        attr->text = text;
        attr->text_ready = true;
    }
    return st;
}

// Sets a list of integers. Copies the values first, so that the attribute is unchanged if out of
// memory.
tsr_status tsr_node_set_ints(tsr_node *node, const char *name, const int64_t *values, size_t count)
{
    if (!values && count)
        return tsr__missing(tsr_model_session(tsr_graph_model(tsr_node_graph(node))), "values");
    tsr_attr *attr;
    int64_t *copy = ARENA_ARRAY(&node->graph->model->arena, int64_t, count);
    if (!copy)
        return TSR_NOMEM;
    if (count)
        memcpy(copy, values, count * sizeof(*copy));
    tsr_status st = fresh_attr(node, name, TSR_ATTR_INTS, &attr);
    if (st == TSR_OK) {
        attr->ints = copy;
        attr->n_ints = count;
    }
    return st;
}

tsr_status tsr_node_remove_attr(tsr_node *node, const char *name)
{
    TRY(check_edit(node, name));
    tsr_attr *attr = tsr_node_find_attr(node, name);
    if (!attr)
        return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_attribute_absent,
                         PLACE_AT(tsr__place_node(node)), NULL, "the node has no attribute '%s'",
                         name);
    tsr__attr_unlink(attr);
    size_t i = 0;
    while (node->attrs[i] != attr)
        i++;
    for (; i + 1 < node->n_attrs; i++)
        node->attrs[i] = node->attrs[i + 1];
    node->n_attrs--;
    tsr__node_relink(node);
    tsr__touch_node(node, N_ATTRIBUTES);
    return model_status(node->graph->model);
}

// Adds an attribute with an empty subgraph. A new graph has no bytes in the file, so all of it is
// marked as changed.
tsr_graph *tsr__node_add_graph(tsr_node *node, const char *attribute, const char *name)
{
    tsr_attr *attr;
    tsr_model *model = node->graph->model;
    tsr_graph *graph = tsr__graph_make(model, 0);
    tsr_graph **list = ARENA_ARRAY(&model->arena, tsr_graph *, 1);
    if (!graph || !list || fresh_attr(node, attribute, TSR_ATTR_GRAPH, &attr) != TSR_OK)
        return NULL;
    graph->owner = node;
    graph->attr = attr;
    graph->name = tsr__keep(model, str_of(name));
    graph->flags |= G_TEXT;
    list[0] = graph;
    attr->graphs = list;
    attr->n_graphs = 1;
    node->flags |= N_GRAPHS;
    model->has_subgraphs = true;
    tsr__node_relink(node);
    tsr__touch_graph(graph, G_CHANGED | G_NAME);
    return model_status(model) == TSR_OK ? graph : NULL;
}
