// SPDX-License-Identifier: Apache-2.0
// transplant.c - copies nodes and constants to another graph or model, finds the outer values of
// subgraphs, and inlines function calls.
//
// partition builds the graph of each rank from copies of nodes and constants. A copy shares only
// the bytes of its original; the new model holds the store of these bytes.
//
// Example of inlining: f(a) -> b has the body t = Exp(a), b = Neg(t); a node called n is y = f(x).
//     t becomes a new value "n/t" in the graph of the call; a is x; b is y (bind_values).
//     n/t = Exp(x) and y = Neg(n/t) are inserted before the call (inline_nodes), which is removed.
//     For a function that returns its input, b = a, y = Identity(x) is inserted (add_identity).
#include "ir/internal.h"

// ---- nodes ----------------------------------------------------------------------------------

// Checks that the names are not in use in the graph. A placeholder of the name is replaced. Outer
// graphs are not checked: callers choose names that hide no outer value.
static tsr_status check_outputs(tsr_graph *graph, const struct str *outputs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const tsr_value *own = tsr__graph_own(graph, outputs[i]);
        if (!own || (own->flags & V_PLACEHOLDER))
            continue;
        return tsr__fail(graph->model->session, TSR_INVALID, DIAG_name_taken,
                         &PLACE(.graph = tsr__graph_path(graph), .value = outputs[i]),
                         "choose another name", "there is a value '" STR_FMT "' already",
                         STR_ARG(outputs[i]));
    }
    return TSR_OK;
}

// Creates the outputs of a node; an empty name is an omitted output.
static void make_outputs(tsr_graph *graph, tsr_node *node, const struct str *names)
{
    for (size_t i = 0; i < node->n_outputs; i++) {
        if (!names[i].n)
            continue;
        node->outputs[i] = tsr__value_new(graph, names[i]);
        if (node->outputs[i])
            node->outputs[i]->producer = node;
    }
}

// Copies a node, with its subgraphs, to a graph of this or another model. For each outer value that
// a subgraph reads, `map` returns the value that replaces it. The new node is linked last, when
// nothing can fail any more.
tsr_node *tsr__node_copy_deep(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                              size_t n_inputs, const struct str *outputs, size_t n_outputs,
                              tsr_value *(*map)(void *data, tsr_value *outer), void *data)
{
    if (check_outputs(graph, outputs, n_outputs) != TSR_OK)
        return NULL;
    struct cloner cloner;
    tsr__cloner_init(&cloner, graph->model, node->graph->model);
    cloner.outer = map;
    cloner.data = data;
    cloner.embeds = true;
    tsr__attrs_decode((tsr_node *)node);
    tsr_node *copy = tsr__clone_node(&cloner, graph, node, n_inputs, n_outputs);
    if (copy)
        make_outputs(graph, copy, outputs);
    if (tsr__cloner_end(&cloner) != TSR_OK || !copy)
        return NULL;
    for (size_t i = 0; i < n_inputs; i++)
        tsr__use_link(&copy->inputs[i], inputs[i]);
    copy->flags |= N_NEW;
    tsr__node_append(graph, copy);
    tsr__touch_graph(graph, G_NODES);
    return copy;
}

// Copies a node without subgraphs to a graph of this or another model.
tsr_node *tsr__node_copy(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                         size_t n_inputs, const struct str *outputs, size_t n_outputs)
{
    return tsr__node_copy_deep(graph, node, inputs, n_inputs, outputs, n_outputs, NULL, NULL);
}

// ---- captures -------------------------------------------------------------------------------

struct captures {
    const tsr_node *node;
    struct arena *arena;
    struct arena scratch;
    struct map seen;
    struct map needed; // nodes of the subgraphs whose results the subgraphs need
    VEC(const tsr_node *) next;
    VEC(tsr_value *) list;
};

// True if the graph is nested in the node. Its values are then not captures.
static bool defined_below(const tsr_graph *graph, const tsr_node *node)
{
    for (; graph; graph = graph_outer(graph))
        if (graph->owner == node)
            return true;
    return false;
}

// Adds the producer of a value to the nodes that are needed, if it is in a subgraph.
static void need(struct captures *captures, const tsr_value *value)
{
    const tsr_node *producer = value ? value->producer : NULL;
    if (!producer || !defined_below(producer->graph, captures->node))
        return;
    void **slot = tsr__map_at_copy(&captures->needed, str_bytes(&producer, sizeof producer));
    if (slot && !*slot && vec_add(&captures->scratch, &captures->next, producer))
        *slot = captures;
}

static void need_outputs(struct captures *captures, const tsr_node *node)
{
    for (tsr_graph *graph = tsr__node_subgraph(node); graph; graph = graph->sibling)
        for (size_t i = 0; i < graph->outputs.n; i++)
            need(captures, graph->outputs.at[i].value);
}

// Finds the nodes in subgraphs that contribute to a result of the node. They may be unsorted.
static void find_needed(struct captures *captures)
{
    need_outputs(captures, captures->node);
    while (captures->next.n) {
        const tsr_node *node = captures->next.at[--captures->next.n];
        for (size_t i = 0; i < node->n_inputs; i++)
            need(captures, node->inputs[i].value);
        need_outputs(captures, node);
    }
}

static void capture(struct captures *captures, tsr_value *value)
{
    if (!value || defined_below(value->home, captures->node))
        return;
    void **slot = tsr__map_at_copy(&captures->seen, str_bytes(&value, sizeof value));
    tsr_value **entry = slot && !*slot ? vec_push(captures->arena, &captures->list) : NULL;
    if (entry)
        *slot = *entry = value;
}

// Collects the outer values that the subgraphs of a node read. An output of a subgraph may be an
// outer value, too.
static void captures_of(struct captures *captures, const tsr_node *node)
{
    for (tsr_graph *graph = tsr__node_subgraph(node); graph; graph = graph->sibling) {
        for (const tsr_node *in = graph->first; in; in = in->next) {
            if (!tsr__map_get(&captures->needed, str_bytes(&in, sizeof in)))
                continue;
            for (size_t i = 0; i < in->n_inputs; i++)
                capture(captures, in->inputs[i].value);
            captures_of(captures, in);
        }
        for (size_t i = 0; i < graph->outputs.n; i++)
            capture(captures, graph->outputs.at[i].value);
    }
}

size_t tsr__node_captures(const tsr_node *node, tsr_value ***out)
{
    struct captures captures = {.node = node, .arena = &node->graph->model->arena};
    *out = NULL;
    if (!(node->flags & N_GRAPHS))
        return 0;
    tsr__arena_init(&captures.scratch, node->graph->model->session);
    tsr__map_init(&captures.seen, &captures.scratch, 0);
    tsr__map_init(&captures.needed, &captures.scratch, 0);
    find_needed(&captures);
    captures_of(&captures, node);
    captures.arena->failed = captures.arena->failed || captures.scratch.failed;
    tsr__arena_free(&captures.scratch);
    *out = captures.list.at;
    return captures.list.n;
}

static bool is_wanted(const tsr_node *node, const unsigned char *needed)
{
    for (size_t i = 0; i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        if (value && needed[tsr__value_id(value)])
            return true;
    }
    return false;
}

// If a value that the node computes is marked, marks all values that the node reads and returns
// true. Called for all nodes in reverse order, it marks everything on which the marked values
// depend.
bool tsr__node_needed(const tsr_node *node, unsigned char *needed)
{
    tsr_value **captures;
    if (!is_wanted(node, needed))
        return false;
    size_t n_captures = tsr__node_captures(node, &captures);
    for (size_t i = 0; i < tsr_node_input_count(node); i++)
        if (tsr_node_input(node, i))
            needed[tsr__value_id(tsr_node_input(node, i))] = 1;
    for (size_t i = 0; i < n_captures; i++)
        needed[tsr__value_id(captures[i])] = 1;
    return true;
}

// ---- constants ------------------------------------------------------------------------------

// Copies an initializer to a graph of this or another model. External and sparse data is loaded
// first, so that the copy is a plain tensor with these bytes. Returns an error if the data cannot
// be read.
tsr_status tsr__graph_copy_initializer(tsr_graph *graph, const tsr_value *value, const char *name,
                                       tsr_value **out)
{
    tsr_model *model = graph->model;
    tsr_tensor *from = value->tensor;
    struct str text = str_of(name);
    if (!from)
        return TSR_INVALID;
    TRY(check_outputs(graph, &text, 1));
    tsr__tensor_decode(from);
    bool inside = (from->external || from->sparse.n) && from->type != TSR_STRING;
    if (inside)
        TRY(tsr__tensor_ready(from));
    if (model != from->model)
        tsr__model_hold(model, from->model);
    tsr_tensor *tensor = ARENA_NEW(&model->arena, tsr_tensor);
    int64_t *dims = ARENA_ARRAY(&model->arena, int64_t, (size_t)from->rank);
    tsr_value **slot = tensor && dims ? vec_push(&model->arena, &graph->initializers) : NULL;
    if (!slot)
        return TSR_NOMEM;
    tsr_value *copy = tsr__value_new(graph, text);
    if (!copy) {
        graph->initializers.n--;
        return TSR_NOMEM;
    }
    *tensor = *from;
    tensor->model = model;
    tensor->value = copy;
    tensor->whole = (struct str){NULL, 0};
    tensor->store = tensor_store(from);
    tensor->dims = dims;
    if (from->rank)
        memcpy(dims, from->dims, (size_t)from->rank * sizeof(*dims));
    tensor->data_ready = false;
    if (inside)
        tsr__tensor_embed(tensor, from);
    copy->tensor = tensor;
    *slot = *out = copy;
    tsr__touch_graph(graph, G_INITIALIZERS);
    return TSR_OK;
}

static tsr_status visit_bodies(const tsr_node *node, tsr_status (*visit)(const tsr_tensor *tensor))
{
    tsr_status status = TSR_OK;
    for (tsr_graph *body = tsr__node_subgraph(node); body && status == TSR_OK; body = body->sibling)
        status = tsr__graph_visit_constants(body, visit);
    return status;
}

tsr_status tsr__graph_visit_constants(const tsr_graph *graph,
                                      tsr_status (*visit)(const tsr_tensor *tensor))
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < graph->initializers.n && status == TSR_OK; i++)
        status = visit(graph->initializers.at[i]->tensor);
    for (const tsr_node *node = graph->first; node && status == TSR_OK; node = node->next)
        status = visit_bodies(node, visit);
    return status;
}

static tsr_status load_external(const tsr_tensor *tensor)
{
    return tsr_tensor_is_external(tensor) ? tsr_tensor_data(tensor, NULL, NULL) : TSR_OK;
}

tsr_status tsr__node_load_constants(const tsr_node *node)
{
    return visit_bodies(node, load_external);
}

tsr_status tsr__node_to_initializer(tsr_node *node, const tsr_tensor *from)
{
    tsr_graph *graph = node->graph;
    tsr_value *value = node->outputs[0];
    tsr_tensor *tensor = ARENA_NEW(&graph->model->arena, tsr_tensor);
    if (!tensor || !vec_add(&graph->model->arena, &graph->initializers, value))
        return TSR_NOMEM;
    *tensor = *from;
    tensor->value = value;
    tensor->node = NULL;
    value->tensor = tensor;
    value->producer = NULL;
    node->outputs[0] = NULL;
    tsr__touch_graph(graph, G_INITIALIZERS);
    return tsr_node_remove(node);
}

// ---- inlining -------------------------------------------------------------------------------

// Symbols of one model are equal if and only if their pointers are.
struct function_key {
    const struct symbol *domain, *name, *overload;
};

static struct function_key function_key(tsr_model *model, struct str domain, struct str name,
                                        struct str overload)
{
    return (struct function_key){tsr__symbol(model, domain), tsr__symbol(model, name),
                                 tsr__symbol(model, overload)};
}

// Indexes the functions that were added since the last look-up. If two have the same name, the
// first is used.
static void name_functions(tsr_model *model)
{
    for (; model->n_functions_named < model->functions.n; model->n_functions_named++) {
        tsr_function *function = model->functions.at[model->n_functions_named];
        struct function_key key =
            function_key(model, function->domain, function->name, function->overload);
        void **slot = tsr__map_at_copy(&model->function_names, str_bytes(&key, sizeof key));
        if (!slot)
            return;
        if (!*slot)
            *slot = function;
    }
}

tsr_function *tsr__node_function(const tsr_node *call)
{
    tsr_model *model = call->graph->model;
    if (!model->functions.n)
        return NULL;
    name_functions(model);
    struct function_key key =
        function_key(model, call->domain->text, call->op->text, tsr__node_overload(call));
    return tsr__map_get(&model->function_names, str_bytes(&key, sizeof key));
}

const tsr_function *tsr__node_home(const tsr_node *node)
{
    const tsr_graph *graph = node->graph;
    while (graph->owner)
        graph = graph->owner->graph;
    return graph->function;
}

size_t tsr__function_index(const tsr_function *function)
{
    return function->index;
}

struct call_memo *tsr__function_memo(tsr_function *function)
{
    uint64_t n_edits = function->model->n_edits;
    if (function->memo.n_edits != n_edits)
        function->memo = (struct call_memo){.n_edits = n_edits};
    return &function->memo;
}

// Whether the body must have the same operator set versions as the call.
enum versions { VERSIONS_EQUAL, VERSIONS_ANY };

// Checks the operator sets of a function before inlining. The calling graph must import the same
// versions, unless VERSIONS_ANY is given. Missing imports can be added to a model, but not to the
// body of another function.
static tsr_status check_opsets(tsr_node *call, const tsr_function *function, enum versions versions)
{
    tsr_model *model = call->graph->model;
    const opset_list *here = graph_opsets(call->graph);
    for (size_t i = 0; i < function->opsets.n; i++) {
        const struct opset *opset = &function->opsets.at[i];
        const struct opset *known = opset_of(here, opset->domain);
        int64_t version = known ? known->version : 0;
        if (known && (versions == VERSIONS_ANY || version == opset->version))
            continue;
        if (!known && here == &model->opsets)
            continue;
        return tsr__fail(model->session, TSR_UNSUPPORTED, DIAG_inline_opset,
                         PLACE_AT(tsr__place_node(call)), "convert the function or the model first",
                         "function '" STR_FMT "' needs version %lld of '" STR_FMT
                         "', here it is %lld",
                         STR_ARG(function->name), (long long)opset->version, STR_ARG(opset->domain),
                         (long long)version);
    }
    return TSR_OK;
}

// Adds the missing imports to the model.
static tsr_status import_opsets(tsr_node *call, const tsr_function *function)
{
    const opset_list *here = graph_opsets(call->graph);
    for (size_t i = 0; i < function->opsets.n; i++) {
        const struct opset *opset = &function->opsets.at[i];
        if (opset_of(here, opset->domain))
            continue;
        TRY(tsr_model_set_opset(call->graph->model, opset->domain.p, opset->version));
    }
    return TSR_OK;
}

// Finds the function of a call and checks that it may be inlined. A call may have fewer inputs and
// outputs than the function, but not more. The place of the call is computed only for errors,
// because every change of the graph invalidates node indices.
static tsr_status check_call(tsr_node *call, enum versions versions, const tsr_function **out)
{
    tsr_session *session = call->graph->model->session;
    const tsr_function *function = call->flags & N_GONE ? NULL : tsr__node_function(call);
    if (!function)
        return tsr__fail(session, TSR_INVALID, DIAG_inline_unknown, PLACE_AT(tsr__place_node(call)),
                         NULL, "'" STR_FMT "' is not the name of a function of this model",
                         STR_ARG(call->op->text));
    if (call->n_inputs > function->graph->inputs.n || call->n_outputs > function->graph->outputs.n)
        return tsr__fail(
            session, TSR_INVALID, DIAG_inline_arity, PLACE_AT(tsr__place_node(call)), NULL,
            "function '" STR_FMT "' has %zu inputs and %zu outputs, the call %u and %u",
            STR_ARG(function->name), function->graph->inputs.n, function->graph->outputs.n,
            call->n_inputs, call->n_outputs);
    for (const tsr_graph *graph = call->graph; graph; graph = graph_outer(graph))
        if (graph->function == function)
            return tsr__fail(
                session, TSR_INVALID, DIAG_inline_unknown, PLACE_AT(tsr__place_node(call)), NULL,
                "function '" STR_FMT "' cannot be inlined into itself", STR_ARG(function->name));
    *out = function;
    return check_opsets(call, function, versions);
}

// Returns the configuration itself. Inlining stays within a model, so the configuration is the
// same.
static tsr_config *same_config(void *data, tsr_config *config)
{
    (void)data;
    return config;
}

// Returns NULL: a function reads no outer values.
static tsr_value *no_outer(void *data, tsr_value *value)
{
    (void)data;
    (void)value;
    return NULL;
}

// Returns "call/name", or "operator/name" if the call has no name.
static struct str inner_name(tsr_node *call, struct str name)
{
    tsr_model *model = call->graph->model;
    struct str base = call->name.n ? call->name : call->op->text;
    return tsr__arena_printf(&model->arena, STR_FMT "/" STR_FMT, STR_ARG(base), STR_ARG(name));
}

// Maps the values of the body: inputs and outputs to those of the call, others to new values.
// Omitted inputs are not mapped.
static void bind_values(struct cloner *cloner, tsr_node *call, const tsr_function *function)
{
    const tsr_graph *body = function->graph;
    for (size_t i = 0; i < size_min(body->inputs.n, call->n_inputs); i++)
        if (call->inputs[i].value)
            tsr__twin_set(cloner, body->inputs.at[i].value, call->inputs[i].value);
    for (size_t i = 0; i < call->n_outputs; i++) {
        // add_identity handles outputs without a producer (inputs, constants) and duplicate
        // outputs.
        tsr_value *r = body->outputs.at[i].value;
        bool bound = tsr__twin(cloner, r) != NULL;
        if (call->outputs[i] && !bound && r->producer)
            tsr__twin_set(cloner, r, call->outputs[i]);
    }
    for (const tsr_value *value = body->values; value; value = value->next) {
        if ((value->flags & (V_INPUT | V_GONE)) || tsr__twin(cloner, (tsr_value *)value))
            continue;
        struct str name = tsr__graph_fresh_name(call->graph, inner_name(call, value->name));
        tsr_value *copy = name.n ? tsr__value_define(call->graph, name) : NULL;
        if (!copy)
            return;
        copy->flags |= V_NEW | V_TEXT | (value->flags & V_PLACEHOLDER);
        tsr__twin_set(cloner, value, copy);
        if (tsr__value_copy_type(copy, value) != TSR_OK)
            return;
    }
}

// Copies a node of the body, with its annotations, to the graph of the call and puts it before the
// call.
static tsr_node *inline_node(struct cloner *cloner, tsr_node *call, const tsr_node *node)
{
    tsr_node *copy = tsr__clone_node(cloner, call->graph, node, node->n_inputs, node->n_outputs);
    if (!copy)
        return NULL;
    if (node->name.n) {
        copy->name = inner_name(call, node->name);
        copy->flags |= N_TEXT;
    }
    copy->flags |= N_NEW;
    tsr__clone_slots(cloner, copy, node);
    tsr__node_append(call->graph, copy);
    (void)tsr_node_move_before(copy, call);
    tsr__clone_configs(cloner, copy, node);
    return copy;
}

// Copies the annotations of the call to the copy of a node of the body. The node's own stage and
// shardings take precedence; only shardings of its inputs and outputs are copied.
static void copy_annotations(tsr_node *copy, const tsr_node *call)
{
    for (size_t i = 0; i < call->n_configs; i++) {
        const tsr_node_config *from = call->configs[i];
        tsr_node_config *nc = tsr_node_find_config(copy, from->config);
        if (!nc && !(nc = tsr__node_config_make(copy, from->config)))
            return;
        nc->changed = true;
        if (from->has_stage && !nc->has_stage) {
            nc->has_stage = true;
            nc->stage = from->stage;
        }
        for (size_t k = 0; k < from->n_specs; k++) {
            tsr_spec *spec = from->specs[k];
            if (!spec->value || !tsr__node_has(copy, spec->value) ||
                tsr__entry_spec(nc, spec->value))
                continue;
            tsr_spec *twin = tsr__spec_make(nc, spec->value);
            if (!twin)
                return;
            *twin = *spec; // with the same lists, which are never changed in place
            twin->entry = nc;
            twin->devices.cap = spec->devices.n;
            twin->groups.cap = spec->groups.n;
            twin->dims.cap = spec->dims.n;
        }
    }
}

// Renames values of subgraphs that have the name of a visible outer value. In a function such names
// are allowed, because functions read no outer values. At the call they would hide the outer
// values.
static void unshadow(const tsr_node *node)
{
    for (tsr_graph *graph = tsr__node_subgraph(node); graph; graph = graph->sibling) {
        for (tsr_value *value = graph->values; value; value = value->next) {
            if (!value->name.n || (value->flags & (V_PLACEHOLDER | V_GONE)) ||
                !tsr__graph_lookup(node->graph, value->name))
                continue;
            struct str name = tsr__graph_fresh_name(graph, value->name);
            if (!name.n || tsr_value_rename(value, name.p) != TSR_OK)
                return;
        }
        for (const tsr_node *in = graph->first; in; in = in->next)
            unshadow(in);
    }
}

// Adds an Identity node for output i of the call if the function's output is one of its inputs, a
// constant, or a duplicate of another output.
static tsr_status add_identity(struct cloner *cloner, tsr_node *call, size_t i)
{
    tsr_value *out = call->outputs[i], *body = cloner->fn->graph->outputs.at[i].value;
    tsr_value *from = tsr__twin(cloner, body);
    if (!out || out == from || !from)
        return TSR_OK;
    tsr_node *identity = tsr__node_make(call->graph, STR(""), STR("Identity"), STR(""), 1, 1);
    if (!identity)
        return TSR_NOMEM;
    identity->flags |= N_NEW | N_ATTRS;
    tsr__use_link(&identity->inputs[0], from);
    identity->outputs[0] = out;
    out->producer = identity;
    tsr__node_append(call->graph, identity);
    copy_annotations(identity, call);
    return tsr_node_move_before(identity, call);
}

static void inline_nodes(struct cloner *cloner, tsr_node *call)
{
    for (const tsr_node *node = cloner->fn->graph->first; node; node = node->next) {
        if (cloner->to->arena.failed)
            return;
        tsr_node *copy = inline_node(cloner, call, node);
        if (!copy)
            return;
        copy_annotations(copy, call);
        unshadow(copy);
    }
}

static tsr_status add_identities(struct cloner *cloner, tsr_node *call)
{
    for (size_t i = 0; i < call->n_outputs; i++)
        TRY(add_identity(cloner, call, i));
    return TSR_OK;
}

// Inlines a call. Checks it before the first change; only missing opset imports are added before
// the last check.
static tsr_status inline_call(tsr_node *call, enum versions versions)
{
    const tsr_function *function = NULL;
    TRY(check_call(call, versions, &function));
    TRY(import_opsets(call, function));
    // check again, for bodies that import a domain twice
    TRY(check_opsets(call, function, versions));
    tsr_graph *graph = call->graph;
    struct cloner cloner;
    tsr__cloner_init(&cloner, graph->model, graph->model);
    cloner.call = call;
    cloner.fn = function;
    cloner.config = same_config;
    cloner.outer = no_outer;
    bind_values(&cloner, call, function);
    inline_nodes(&cloner, call);
    tsr_status st = add_identities(&cloner, call);
    if (tsr__cloner_end(&cloner) != TSR_OK)
        return TSR_NOMEM;
    for (size_t i = 0; i < call->n_outputs; i++)
        call->outputs[i] = NULL; // now outputs of the body
    graph->model->changed = true;
    if (st != TSR_OK)
        return st;
    return tsr_node_remove(call);
}

tsr_status tsr_node_inline(tsr_node *call)
{
    return inline_call(call, VERSIONS_EQUAL);
}

tsr_status tsr__node_inline_any_opset(tsr_node *call)
{
    return inline_call(call, VERSIONS_ANY);
}
