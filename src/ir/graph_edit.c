// SPDX-License-Identifier: Apache-2.0
// graph_edit.c - edits graphs. Every call checks its arguments first and then keeps names, uses,
// producers and specs consistent.
//
// Four relations are maintained:
// - graph->names maps a name to its value.
// - value->producer and node->outputs are the two ends of an edge.
// - node->inputs[i] is in the ring of uses of its value.
// - The value of a node's spec is an input or output of the node.
// Changes are marked (tsr__touch_*), so that saving writes only what changed.
//
//     Example: `add` is Y = Add(X, B). tsr_node_replace_input(add, 0, Z): add leaves X's ring and
//     joins Z's. The sharding of X at add becomes that of Z (unless add still reads X in another
//     input). add gets N_INPUTS.
#include "ir/internal.h"

// ---- names ----------------------------------------------------------------------------------

// True if the outer value is used in the graph or in its subgraphs. A new value of the same name
// would hide it there.
static bool used_within(const tsr_value *outer, const tsr_graph *graph)
{
    const struct use *use = outer->last_use;
    for (size_t i = 0; i < outer->n_uses; i++, use = use->next)
        if (tsr__graph_within(use->node->graph, graph))
            return true;
    return false;
}

// True if a use of the value is in a subgraph in which `name` means another value.
static bool hidden_from_users(const tsr_value *value, struct str name)
{
    const struct use *use = value->last_use;
    for (size_t i = 0; i < value->n_uses; i++, use = use->next) {
        const tsr_graph *graph = use->node->graph;
        for (; graph && graph != value->home; graph = graph_outer(graph))
            if (tsr__graph_own(graph, name))
                return true;
    }
    return false;
}

// Checks whether `value`, or a new value if it is NULL, may have this name in the graph. A
// placeholder with the name may be replaced. The value must not hide an outer value that this graph
// uses. No value of a subgraph with this name may hide `value` from its uses.
static tsr_status check_name(tsr_graph *graph, struct str name, const tsr_value *value)
{
    const tsr_value *own = tsr__graph_own(graph, name);
    const tsr_value *outer = tsr__graph_lookup(graph_outer(graph), name);
    bool waiting = own && !value && (own->flags & V_PLACEHOLDER);
    if ((!own || waiting) && !(outer && used_within(outer, graph)) &&
        !(value && hidden_from_users(value, name)))
        return TSR_OK;
    return tsr__fail(
        graph->model->session, TSR_INVALID, DIAG_name_taken,
        &PLACE(.file = str_of(graph->model->path), .graph = tsr__graph_path(graph), .value = name),
        "choose another name", "there is a value '" STR_FMT "' already", STR_ARG(name));
}

static tsr_status need_name(tsr_graph *graph, const char *name)
{
    if (name && *name)
        return check_name(graph, str_of(name), NULL);
    return tsr__fail(graph->model->session, TSR_INVALID, DIAG_name_empty,
                     &PLACE(.graph = tsr__graph_path(graph)), NULL, "the value needs a name");
}

// Renames a value. graph->names gets the new name. graph->renamed keeps the name in the file, so
// that saving finds the bytes that contain it. The bytes of training_info are not changed.
tsr_status tsr_value_rename(tsr_value *value, const char *name)
{
    tsr_graph *graph = value->home;
    tsr_model *model = graph->model;
    struct str text = str_of(name);
    if (str_eq(value->name, text))
        return TSR_OK;
    if (!text.n)
        return tsr__fail(model->session, TSR_INVALID, DIAG_name_empty,
                         PLACE_AT(tsr__place_value(value)), NULL,
                         "the new name of the value is empty");
    TRY(check_name(graph, text, value));
    struct str kept = tsr__keep(model, text);
    bool named = tsr__graph_own(graph, value->name) == value;
    void **slot = tsr__map_at(&graph->names, kept), **before = NULL, **file = NULL;
    // All map entries are allocated before the first is written, in case memory runs out.
    if (named)
        before = tsr__map_at(&graph->names, value->name);
    if (!(value->flags & (V_NEW | V_RENAMED)))
        file = tsr__map_at(&graph->renamed, value->name);
    if (model->arena.failed || !slot)
        return TSR_NOMEM;
    slot = tsr__map_at(&graph->names, kept); // the map may have moved
    if (before)
        *before = (void *)&tsr__no_value;
    if (file)
        *file = value;
    *slot = value;
    value->name = kept;
    tsr__name_seen(model, kept);
    value->flags |= V_RENAMED | V_TEXT;
    model->renamed = true;
    tsr__touch_graph(graph, G_RENAMED);
    return TSR_OK;
}

// ---- types ----------------------------------------------------------------------------------

// Normalizes a dimension: a size, or -1 with a symbol that may be "".
static tsr_dim plain_dim(tsr_dim dim)
{
    if (dim.value >= 0)
        return (tsr_dim){dim.value, ""};
    return dim.symbol ? (tsr_dim){-1, dim.symbol} : (tsr_dim){-1, ""};
}

// True if the declared type is this tensor type. Types that are not tensors never match.
static bool same_type(const struct vtype *known, tsr_dtype type, int rank, const tsr_dim *dims)
{
    if (!known || known->other.n || known->dtype != type || known->rank != rank)
        return false;
    for (int i = 0; i < rank; i++) {
        tsr_dim dim = plain_dim(dims[i]);
        if (known->dims[i].value != dim.value || strcmp(known->dims[i].symbol, dim.symbol) != 0)
            return false;
    }
    return true;
}

// Sets the type of a value. The type replaces the declared one when the model is saved.
static void set_type(tsr_value *value, struct vtype *vtype)
{
    value->type = vtype;
    value->flags |= V_TYPED | V_DECODED;
    tsr__touch_graph(value->home, G_INFOS);
}

// Sets element type and shape of a value. rank -1 means unknown. Setting the same type changes
// nothing.
tsr_status tsr_value_set_type(tsr_value *value, tsr_dtype type, int rank, const tsr_dim *dims)
{
    tsr_model *model = tsr__value_model(value);
    if (rank < -1 || (rank > 0 && !dims) || (unsigned)type >= TSR_DTYPE_COUNT)
        return tsr__fail(model->session, TSR_INVALID, DIAG_argument_invalid,
                         PLACE_AT(tsr__place_value(value)), NULL, "invalid type %d or rank %d",
                         (int)type, rank);
    tsr__type_decode(value);
    if (same_type(value->type, type, rank, dims))
        return TSR_OK;
    struct vtype *vtype = ARENA_NEW(&model->arena, struct vtype);
    tsr_dim *copy = ARENA_ARRAY(&model->arena, tsr_dim, dims_of(rank));
    if (!vtype || !copy)
        return TSR_NOMEM;
    for (int i = 0; i < rank; i++) {
        copy[i] = plain_dim(dims[i]);
        if (copy[i].symbol[0])
            copy[i].symbol = tsr__keep(model, str_of(copy[i].symbol)).p;
    }
    *vtype = (struct vtype){.dtype = type, .rank = rank, .dims = copy};
    set_type(value, vtype);
    return model_status(model);
}

// Copies the type of a value to another. If the type of `from` is unknown, nothing changes. A type
// that is not a tensor is kept as bytes, which are copied to the store (see struct cloner).
tsr_status tsr__value_copy_type(tsr_value *to, const tsr_value *from)
{
    tsr__type_decode((tsr_value *)from);
    if (!from->type)
        return TSR_OK;
    if (!from->type->other.n)
        return tsr_value_set_type(to, from->type->dtype, from->type->rank, from->type->dims);
    tsr_model *model = tsr__value_model(to);
    struct vtype *type = ARENA_NEW(&model->arena, struct vtype);
    if (!type)
        return TSR_NOMEM;
    *type = (struct vtype){.rank = -1,
                           .other = tsr__arena_str(&model->store->arena, from->type->other)};
    set_type(to, type);
    return model_status(model);
}

// ---- adding ---------------------------------------------------------------------------------

// Checks whether a node of the graph can read the value. NULL (an omitted input) is valid. The
// order of the nodes is not checked.
static tsr_status check_value(const tsr_graph *graph, const tsr_value *value, const tsr_node *node)
{
    bool foreign = value && tsr__value_model(value) != graph->model;
    if (!value || (!foreign && tsr__graph_within(graph, value->home) && !(value->flags & V_GONE)))
        return TSR_OK;
    struct place at = node ? tsr__place_node(node) : PLACE_NONE;
    at.graph = tsr__graph_path(graph);
    at.value = value->name;
    if (foreign)
        tsr__diag(graph->model->session, DIAG_value_foreign, &at, NULL,
                  "'" STR_FMT "' is a value of another model", STR_ARG(value->name));
    else
        tsr__diag(graph->model->session, DIAG_value_out_of_scope, &at, NULL,
                  "'" STR_FMT "' is not visible in graph '" STR_FMT "'", STR_ARG(value->name),
                  STR_ARG(at.graph));
    return TSR_INVALID;
}

tsr_value *tsr_graph_add_input(tsr_graph *graph, const char *name)
{
    if (need_name(graph, name) != TSR_OK)
        return NULL;
    tsr_value *value = tsr__value_new(graph, str_of(name));
    struct port *port = value ? vec_push(&graph->model->arena, &graph->inputs) : NULL;
    if (!port)
        return NULL;
    *port = (struct port){.value = value};
    value->flags |= V_INPUT;
    tsr__touch_graph(graph, G_INPUTS);
    return value;
}

tsr_status tsr_graph_add_output(tsr_graph *graph, tsr_value *value)
{
    if (!value)
        return tsr__fail(graph->model->session, TSR_INVALID, DIAG_argument_invalid,
                         &PLACE(.graph = tsr__graph_path(graph)), NULL, "an output needs a value");
    TRY(check_value(graph, value, NULL));
    if (!vec_add(&graph->model->arena, &graph->outputs, (struct port){.value = value}))
        return TSR_NOMEM;
    value->n_outputs++;
    tsr__touch_graph(graph, G_OUTPUTS);
    return TSR_OK;
}

// Creates an initializer without data; the callers set the data of *out.
static tsr_value *add_tensor(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                             const int64_t *dims, tsr_tensor **out)
{
    tsr_model *model = graph->model;
    if (need_name(graph, name) != TSR_OK)
        return NULL;
    tsr_tensor *tensor = ARENA_NEW(&model->arena, tsr_tensor);
    int64_t *copy = ARENA_ARRAY(&model->arena, int64_t, dims_of(rank));
    if (!tensor || !copy)
        return NULL;
    tsr_value *value = tsr__value_new(graph, str_of(name));
    tsr_value **slot = value ? vec_push(&model->arena, &graph->initializers) : NULL;
    if (!slot)
        return NULL;
    for (int i = 0; i < rank; i++)
        copy[i] = dims[i];
    *tensor = (tsr_tensor){.model = model,
                           .value = value,
                           .decoded = true,
                           .type = (int32_t)type,
                           .rank = rank,
                           .dims = copy};
    *slot = value;
    value->tensor = *out = tensor;
    tsr__touch_graph(graph, G_INITIALIZERS);
    return value;
}

void tsr__graph_drop_defaults(tsr_graph *graph)
{
    size_t kept = 0;
    if (tsr_model_ir_version(graph->model) < 4)
        return;
    for (size_t i = 0; i < graph->initializers.n; i++) {
        tsr_value *value = graph->initializers.at[i];
        if (value->flags & V_INPUT)
            value->tensor = NULL;
        else
            graph->initializers.at[kept++] = value;
    }
    if (kept < graph->initializers.n)
        tsr__touch_graph(graph, G_INITIALIZERS);
    graph->initializers.n = kept;
}

// True, with a diagnostic, if type or rank are invalid or if n bytes do not match the shape. A
// temporary tensor computes the size.
static bool has_wrong_size(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                           const int64_t *dims, uint64_t n)
{
    struct place at = PLACE(.graph = tsr__graph_path(graph), .value = str_of(name));
    if (rank >= 0 && (rank == 0 || dims) && (unsigned)type < TSR_DTYPE_COUNT) {
        int64_t *copy = (int64_t *)dims;
        tsr_tensor tensor = {.decoded = true, .type = (int32_t)type, .rank = rank, .dims = copy};
        int64_t want = tsr_tensor_bytes(&tensor);
        if (want >= 0 && (uint64_t)want == n)
            return false;
        if (type == TSR_STRING && n == 0 && tsr_tensor_elements(&tensor) == 0)
            return false; // an empty string tensor
        tsr__diag(graph->model->session, DIAG_tensor_size, &at, NULL,
                  "got %llu bytes, but the shape needs %lld", (unsigned long long)n,
                  (long long)want);
        return true;
    }
    tsr__diag(graph->model->session, DIAG_argument_invalid, &at, NULL, "invalid type %d or rank %d",
              (int)type, rank);
    return true;
}

tsr_value *tsr_graph_add_initializer(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                                     const int64_t *dims, const void *bytes, size_t n)
{
    if (has_wrong_size(graph, name, type, rank, dims, n))
        return NULL;
    struct str copy = {"", 0};
    if (n) {
        char *to = arena_get(&graph->model->store->arena, n, 64); // shared with clones
        if (!to)
            return NULL;
        memcpy(to, bytes, n);
        copy = (struct str){to, n};
    }
    tsr_tensor *tensor = NULL;
    tsr_value *value = add_tensor(graph, name, type, rank, dims, &tensor);
    if (value) {
        tensor->raw = copy;
        tensor->has_raw = true;
    }
    return value;
}

// Adds an initializer with external data. The file is neither opened nor checked.
tsr_value *tsr__graph_add_external(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const char *location, uint64_t offset,
                                   uint64_t length)
{
    if (has_wrong_size(graph, name, type, rank, dims, length))
        return NULL;
    tsr_tensor *tensor = NULL;
    tsr_value *value = add_tensor(graph, name, type, rank, dims, &tensor);
    if (value) {
        tensor->external = true;
        tensor->location = tsr__keep(graph->model, str_of(location));
        tensor->offset = offset;
        tensor->length = length;
    }
    return value;
}

// Checks the arguments for a new node. Output names may be empty (omitted outputs), but no two may
// be equal.
static tsr_status check_new_node(tsr_graph *graph, const char *op, tsr_value *const *inputs,
                                 size_t n_inputs, const char *const *outputs, size_t n_outputs)
{
    struct place at = PLACE(.graph = tsr__graph_path(graph), .op = str_of(op));
    if (!op || !*op)
        return tsr__fail(graph->model->session, TSR_INVALID, DIAG_name_empty, &at, NULL,
                         "a node needs an operator");
    if (n_inputs && !inputs)
        return tsr__missing(graph->model->session, "inputs");
    if (n_outputs && !outputs)
        return tsr__missing(graph->model->session, "outputs");
    for (size_t i = 0; i < n_inputs; i++)
        TRY(check_value(graph, inputs[i], NULL));
    for (size_t i = 0; i < n_outputs; i++) {
        if (!outputs[i] || !*outputs[i])
            continue;
        TRY(check_name(graph, str_of(outputs[i]), NULL));
        for (size_t k = 0; k < i; k++)
            if (outputs[k] && strcmp(outputs[i], outputs[k]) == 0)
                return tsr__fail(graph->model->session, TSR_INVALID, DIAG_name_taken, &at, NULL,
                                 "two outputs of the node are called '%s'", outputs[i]);
    }
    return TSR_OK;
}

// Adds a node. Links it after the last allocation, so that a failure leaves the graph unchanged.
tsr_node *tsr_graph_add_node(tsr_graph *graph, const char *domain, const char *op, const char *name,
                             tsr_value *const *inputs, size_t n_inputs, const char *const *outputs,
                             size_t n_outputs)
{
    tsr_model *model = graph->model;
    if (check_new_node(graph, op, inputs, n_inputs, outputs, n_outputs) != TSR_OK)
        return NULL;
    tsr_node *node = tsr__node_make(graph, str_of(domain), str_of(op),
                                    tsr__keep(model, str_of(name)), n_inputs, n_outputs);
    if (!node)
        return NULL;
    node->flags = N_NEW | N_TEXT | N_ATTRS;
    for (size_t i = 0; i < n_outputs; i++) {
        if (!outputs[i] || !*outputs[i])
            continue;
        node->outputs[i] = tsr__value_new(graph, str_of(outputs[i]));
        if (!node->outputs[i])
            return NULL;
    }
    if (model->arena.failed)
        return NULL;
    for (size_t i = 0; i < n_outputs; i++)
        if (node->outputs[i])
            node->outputs[i]->producer = node;
    for (size_t i = 0; i < n_inputs; i++)
        tsr__use_link(&node->inputs[i], inputs[i]);
    tsr__node_append(graph, node);
    tsr__touch_graph(graph, G_NODES);
    return node;
}

// ---- moving, removing -----------------------------------------------------------------------

// Refuses a node that was removed: it can be read, but not changed.
static tsr_status check_not_removed(tsr_node *node)
{
    if (!(node->flags & N_GONE))
        return TSR_OK;
    return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_node_removed,
                     PLACE_AT(tsr__place_node(node)), "do not use a node after removing it",
                     "the node was removed from its graph");
}

// Removes a node from the list. node->next is kept, for loops that are currently at this node.
static void unlink_node(tsr_graph *graph, tsr_node *node)
{
    if (node->prev)
        node->prev->next = node->next;
    else
        graph->first = node->next;
    if (node->next)
        node->next->prev = node->prev;
    else
        graph->last = node->prev;
    graph->flags |= G_ORDER | G_LIST;
}

// Moves a node before another one; `before` NULL: to the end. The caller must keep a valid order.
tsr_status tsr_node_move_before(tsr_node *node, tsr_node *before)
{
    tsr_graph *graph = node->graph;
    TRY(check_not_removed(node));
    if (before)
        TRY(check_not_removed(before));
    if (before && before->graph != graph)
        return tsr__fail(graph->model->session, TSR_INVALID, DIAG_argument_invalid,
                         PLACE_AT(tsr__place_node(node)), NULL,
                         "a node can only be moved within its graph");
    if (before == node || node->next == before)
        return TSR_OK;
    unlink_node(graph, node);
    node->next = before;
    node->prev = before ? before->prev : graph->last;
    if (node->prev)
        node->prev->next = node;
    else
        graph->first = node;
    if (before)
        before->prev = node;
    else
        graph->last = node;
    tsr__touch_graph(graph, G_NODES);
    return TSR_OK;
}

// Reports an error if an output from index `first` on is used.
static tsr_status check_unused(tsr_node *node, size_t first)
{
    for (size_t i = first; i < node->n_outputs; i++) {
        const tsr_value *value = node->outputs[i];
        if (!value || (!value->n_uses && !value->n_outputs))
            continue;
        struct place at = tsr__place_node(node);
        const char *output = value->n_outputs ? "an output" : "no output";
        at.value = value->name;
        return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_node_still_used, &at,
                         "replace its uses first",
                         "'" STR_FMT "' has %u readers and is %s of a graph", STR_ARG(value->name),
                         value->n_uses, output);
    }
    return TSR_OK;
}

// Removes a value and frees its name, unless a later definition uses the name.
static void drop_value(tsr_value *value)
{
    tsr_graph *graph = value->home;
    value->flags |= V_GONE;
    void **slot = value->name.n ? tsr__map_at(&graph->names, value->name) : NULL;
    if (slot && *slot == value)
        *slot = (void *)&tsr__no_value;
}

// Removes a node. Its inputs stay, even if nothing else uses them.
tsr_status tsr_node_remove(tsr_node *node)
{
    tsr_graph *graph = node->graph;
    TRY(check_not_removed(node));
    TRY(check_unused(node, 0));
    tsr__node_unlink(node);
    for (size_t i = 0; i < node->n_outputs; i++)
        if (node->outputs[i])
            drop_value(node->outputs[i]);
    unlink_node(graph, node);
    graph->n_nodes--;
    node->flags |= N_GONE;
    tsr__touch_graph(graph, G_NODES);
    return model_status(graph->model);
}

static bool is_unused(const tsr_node *node)
{
    for (size_t i = 0; i < node->n_outputs; i++)
        if (node->outputs[i] && (node->outputs[i]->n_uses || node->outputs[i]->n_outputs))
            return false;
    return true;
}

// Each pass goes backwards, so a sorted graph needs one pass and one that removes nothing.
tsr_status tsr__graph_remove_unused(tsr_graph *graph)
{
    for (bool again = true; again;) {
        again = false;
        for (tsr_node *node = graph->last, *before; node; node = before) {
            before = node->prev;
            if (is_unused(node)) {
                TRY(tsr_node_remove(node));
                again = true;
                continue;
            }
            TRY(tsr__node_remove_unused(node));
        }
    }
    return TSR_OK;
}

tsr_status tsr__node_remove_unused(tsr_node *node)
{
    for (tsr_graph *inner = tsr__node_subgraph(node); inner; inner = inner->sibling)
        TRY(tsr__graph_remove_unused(inner));
    return TSR_OK;
}

// ---- replacing ------------------------------------------------------------------------------

static tsr_status bad_index(tsr_node *node, size_t i)
{
    return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_index_range,
                     PLACE_AT(tsr__place_node(node)), NULL, "the node has no input or output %zu",
                     i);
}

// Replaces input i of a node; `value` NULL: omits the input. tsr__specs_follow comes last, because
// it checks whether the node still uses the old value.
tsr_status tsr_node_replace_input(tsr_node *node, size_t i, tsr_value *value)
{
    TRY(check_not_removed(node));
    if (i >= node->n_inputs)
        return bad_index(node, i);
    TRY(check_value(node->graph, value, node));
    tsr_value *old = node->inputs[i].value;
    if (old == value)
        return TSR_OK;
    tsr__use_unlink(&node->inputs[i]);
    tsr__use_link(&node->inputs[i], value);
    tsr__touch_node(node, N_INPUTS);
    tsr__specs_follow(node, old, value);
    return model_status(node->graph->model);
}

// Replaces `value` by `by` wherever it is an output of a graph.
static void replace_outputs(tsr_value *value, tsr_value *by)
{
    for (tsr_graph *graph = value->home->model->graphs; graph; graph = graph->next) {
        if (!value->n_outputs)
            return;
        for (size_t i = 0; i < graph->outputs.n; i++) {
            if (graph->outputs.at[i].value != value || (graph->flags & G_GONE))
                continue;
            graph->outputs.at[i].value = by;
            graph->outputs.at[i].replaced = true;
            value->n_outputs--;
            by->n_outputs++;
            tsr__touch_graph(graph, G_OUTPUTS);
        }
    }
}

// Replaces all uses of a value; with `outputs`, also where it is an output of a graph. Checks all
// of them before it changes the first. Each replacement removes one use from the ring.
tsr_status tsr_value_replace_uses(tsr_value *value, tsr_value *by, bool outputs)
{
    if (value == by)
        return TSR_OK;
    const struct use *use = value->last_use;
    for (size_t i = 0; i < value->n_uses; i++, use = use->next)
        TRY(check_value(use->node->graph, by, use->node));
    if (!by)
        return tsr__fail(tsr__value_model(value)->session, TSR_INVALID, DIAG_argument_invalid,
                         PLACE_AT(tsr__place_value(value)), NULL,
                         "the replacement of a value must not be NULL");
    if (outputs)
        TRY(check_value(value->home, by, NULL));
    while (value->last_use) {
        struct use *first = value->last_use->next;
        TRY(tsr_node_replace_input(first->node, (size_t)(first - first->node->inputs), by));
    }
    if (outputs)
        replace_outputs(value, by);
    return TSR_OK;
}

// Changes the number of outputs of a node. Removed outputs must be unused; their shardings are
// removed. New outputs are NULL.
tsr_status tsr_node_resize_outputs(tsr_node *node, size_t count)
{
    tsr_model *model = node->graph->model;
    TRY(check_not_removed(node));
    if (count > UINT32_MAX)
        return bad_index(node, count);
    TRY(check_unused(node, count));
    if (count == node->n_outputs)
        return TSR_OK;
    tsr_value **more = ARENA_ARRAY(&model->arena, tsr_value *, count);
    if (!more)
        return TSR_NOMEM;
    tsr_value **old = node->outputs;
    size_t n_old = node->n_outputs;
    for (size_t i = 0; i < size_min(count, n_old); i++)
        more[i] = old[i];
    node->outputs = more;
    node->n_outputs = (uint32_t)count;
    node->flags |= N_RESIZED;
    for (size_t i = count; i < n_old; i++) {
        if (!old[i])
            continue;
        tsr__specs_follow(node, old[i], NULL);
        drop_value(old[i]);
    }
    tsr__touch_node(node, N_OUTPUTS);
    return model_status(model);
}
