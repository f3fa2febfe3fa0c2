// SPDX-License-Identifier: Apache-2.0
// clone.c - copies nodes, subgraphs and complete models.
//
// A cloner maps every copied value and configuration to its copy, the twin. The map ends with the
// call: nothing in the original refers to a copy, which may be freed first. A callback maps outer
// values. Bytes of the file are shared, so the copy holds a reference to the store. Objects and
// names are new.
//
//     Example: a Loop body reads "x" of the main graph and computes "y". In the copy y has a twin,
//     the output of the copied node. x has none, so the callback returns the value to use instead.
//
// An exact copy (of a complete model) keeps all change flags, so it is saved with the same bytes.
// In other copies names may differ, so everything that contains them is marked as changed.
#include "ir/internal.h"

// Adds a reference to a store, at most one per model, because tsr_model_free drops each store once.
static void hold_store(tsr_model *to, struct store *store)
{
    if (store == to->store)
        return;
    for (size_t i = 0; i < to->held.n; i++)
        if (to->held.at[i] == store)
            return;
    vec_add(&to->arena, &to->held, tsr__store_hold(store));
}

// Adds references to all stores whose bytes objects of `from` may use.
void tsr__model_hold(tsr_model *to, const tsr_model *from)
{
    for (size_t i = 0; i < from->held.n; i++)
        hold_store(to, from->held.at[i]);
    hold_store(to, from->store);
}

// Starts to copy objects between models. Must be followed by tsr__cloner_end. `to` and `from` may
// be the same model. The caller sets the other fields as needed.
void tsr__cloner_init(struct cloner *cloner, tsr_model *to, const tsr_model *from)
{
    *cloner = (struct cloner){.to = to, .from = from};
    tsr__arena_init(&cloner->scratch, to->session);
    tsr__map_init(&cloner->twins, &cloner->scratch, 0);
    if (to == from)
        return;
    tsr__model_hold(to, from);
    // Copies share the bytes of the file, which contain the old names of renamed values.
    to->renamed = to->renamed || from->renamed;
}

// Ends copying. All out-of-memory errors of the copy are returned here.
tsr_status tsr__cloner_end(struct cloner *cloner)
{
    bool failed =
        cloner->scratch.failed || cloner->to->arena.failed || cloner->to->store->arena.failed;
    tsr__arena_free(&cloner->scratch);
    return failed ? TSR_NOMEM : TSR_OK;
}

void tsr__twin_set(struct cloner *cloner, const tsr_value *value, tsr_value *twin)
{
    void **slot = tsr__map_at_copy(&cloner->twins, str_bytes(&value, sizeof value));
    if (slot)
        *slot = twin;
}

// Returns the copy of a value, else what the callback `outer` returns for it. Returns NULL if `v`
// is NULL (an omitted input), or if there is neither a copy nor a callback.
tsr_value *tsr__twin(struct cloner *cloner, tsr_value *v)
{
    if (!v)
        return NULL;
    tsr_value *t = tsr__map_get(&cloner->twins, str_bytes(&v, sizeof v));
    return t || !cloner->outer ? t : cloner->outer(cloner->data, v);
}

static tsr_graph *clone_graph(struct cloner *cloner, const tsr_graph *graph, tsr_node *owner,
                              tsr_attr *attr);

// ---- values ---------------------------------------------------------------------------------

// Returns a name for the copy. A name that points into the file is shared, unless `text` is set:
// the name of the copy must then be NUL-terminated. Other names are copied.
static struct str clone_name(struct cloner *cloner, struct str name, bool text)
{
    struct str file = cloner->from->store->bytes;
    bool shared = (uintptr_t)name.p - (uintptr_t)file.p < file.n;
    return shared && !text ? name : tsr__keep(cloner->to, name);
}

// Copies a type. Symbols are in the arena of the old model, so they are copied; an empty symbol is
// a literal.
static struct vtype *clone_type(struct cloner *cloner, const struct vtype *type)
{
    struct vtype *vtype = ARENA_NEW(&cloner->to->arena, struct vtype);
    tsr_dim *dims = ARENA_ARRAY(&cloner->to->arena, tsr_dim, dims_of(type->rank));
    if (!vtype || !dims)
        return NULL;
    *vtype = *type;
    vtype->dims = dims;
    for (int i = 0; i < type->rank; i++) {
        dims[i] = type->dims[i];
        if (dims[i].symbol[0])
            dims[i].symbol = tsr__keep(cloner->to, str_of(dims[i].symbol)).p;
    }
    return vtype;
}

// Copies a value. A type that an API call has set is copied; other types are decoded again on
// demand. Producer, uses and tensor are linked later.
static void clone_value(struct cloner *cloner, tsr_graph *graph, const tsr_value *value)
{
    tsr_value *copy =
        tsr__value_make(graph, clone_name(cloner, value->name, value->flags & V_TEXT));
    if (!copy)
        return;
    copy->flags = value->flags & ~(uint32_t)(V_DECODED | V_WRITTEN);
    copy->info = value->info;
    if ((value->flags & V_TYPED) && value->type) {
        copy->type = clone_type(cloner, value->type);
        copy->flags |= V_DECODED;
    }
    tsr__twin_set(cloner, value, copy);
}

void tsr__tensor_embed(tsr_tensor *copy, const tsr_tensor *from)
{
    copy->raw = (struct str){from->data, from->bytes};
    copy->has_raw = copy->replaced = true;
    copy->external = false;
    copy->location = copy->sparse = copy->whole = (struct str){NULL, 0};
}

// Copies a tensor object and shares its data. A tensor of a file is decoded again on demand. With
// cloner->embeds, external data that was already read becomes raw data of the copy.
static tsr_tensor *clone_tensor(const struct cloner *cloner, const tsr_tensor *tensor,
                                tsr_value *value)
{
    tsr_model *to = cloner->to;
    bool embeds = cloner->embeds && tensor->external && tensor->data_ready &&
                  tensor->status == TSR_OK && tensor->type != TSR_STRING;
    tsr_tensor *copy = ARENA_NEW(&to->arena, tsr_tensor);
    if (!copy)
        return NULL;
    *copy = *tensor;
    copy->model = to;
    copy->value = value;
    copy->store = tensor_store(tensor);
    copy->data_ready = false;
    if (!embeds && (tensor->sparse.n || (tensor->body.n && !tensor->replaced))) {
        copy->decoded = false;
        return copy;
    }
    copy->dims = ARENA_ARRAY(&to->arena, int64_t, (size_t)tensor->rank);
    if (!copy->dims)
        return NULL;
    if (tensor->rank)
        memcpy(copy->dims, tensor->dims, (size_t)tensor->rank * sizeof(*copy->dims));
    if (embeds)
        tsr__tensor_embed(copy, tensor);
    else if (tensor->location.n)
        copy->location = tsr__keep(to, tensor->location);
    return copy;
}

// Copies a map from names to values. Also copies removed names (tsr__no_value): they are not reused
// for fresh names, and the writer drops their entries in the file.
static void clone_map(struct cloner *cloner, struct map *to, const struct map *from)
{
    for (size_t i = 0; i < from->cap; i++) {
        const struct map_slot *map_slot = &from->slots[i];
        if (!map_slot->hash || !map_slot->value)
            continue;
        struct str key = {map_slot->p, map_slot->n};
        tsr_value *twin = map_slot->value;
        if (twin != &tsr__no_value)
            twin = tsr__twin(cloner, twin);
        if (!twin)
            continue;
        struct str kept = tsr__keep(cloner->to, key);
        tsr__map_set(to, kept, twin);
        tsr__name_seen(cloner->to, kept);
    }
}

// ---- attributes -----------------------------------------------------------------------------

// Copies the value of an attribute that an API call created (write_new_attr in serde/write_node.c
// writes such attributes). Values of a file are decoded on demand. The caller copies subgraphs.
static void clone_attr_value(tsr_attr *copy, const tsr_attr *attr)
{
    tsr_model *model = copy->node->graph->model;
    if (attr->whole.n || attr->rest.n)
        return; // decoded on demand
    copy->decoded = copy->has_value = true;
    copy->integer = attr->integer;
    copy->real = attr->real;
    if (attr->kind == TSR_ATTR_STRING) {
        copy->text = tsr__keep(model, attr->text);
        copy->text_ready = true;
    }
    copy->ints = ARENA_ARRAY(&model->arena, int64_t, attr->n_ints);
    if (!copy->ints || !attr->n_ints)
        return;
    memcpy(copy->ints, attr->ints, attr->n_ints * sizeof(*copy->ints));
    copy->n_ints = attr->n_ints;
}

// Copies an attribute under a name. An attribute with another name or with copied subgraphs is
// marked as changed.
static void clone_attr_as(struct cloner *cloner, tsr_node *node, const tsr_attr *attr,
                          struct str name)
{
    tsr_attr *copy = tsr__attr_append(node);
    if (!copy)
        return;
    bool renamed = !str_eq(attr->name, name);
    copy->name = tsr__keep(cloner->to, name);
    copy->kind = attr->kind;
    copy->whole = attr->whole;
    copy->rest = attr->rest;
    copy->changed = attr->changed || renamed;
    if (attr->ref.n)
        copy->ref = tsr__keep(cloner->to, attr->ref);
    clone_attr_value(copy, attr);
    if (!attr->n_graphs)
        return;
    copy->graphs = ARENA_ARRAY(&cloner->to->arena, tsr_graph *, attr->n_graphs);
    if (!copy->graphs)
        return;
    for (size_t i = 0; i < attr->n_graphs; i++) {
        tsr_graph *graph = clone_graph(cloner, attr->graphs[i], node, copy);
        if (!graph)
            return;
        copy->graphs[copy->n_graphs++] = graph;
    }
    if (!cloner->exact) {
        copy->changed = true;
        node->flags |= N_ATTRIBUTES;
    }
    node->flags |= N_GRAPHS;
    cloner->to->has_subgraphs = true;
}

// Copies an attribute of a function body that refers to an attribute of the function (`attr->ref`).
// The copy has the value that the call gives, else the default of the function.
//     Example: the body has Elu {alpha = ref to "a"}. For the call f {a = 0.5}, alpha is 0.5.
//     For the call f {} of a function that declares a = 1 as its default, alpha is 1.
//     If there is neither, the copy has no alpha, so the default of the operator applies.
static void substitute(struct cloner *cloner, tsr_node *node, const tsr_attr *attr)
{
    for (size_t i = 0; i < tsr_node_attr_count(cloner->call); i++)
        if (str_eq(cloner->call->attrs[i]->name, attr->ref)) {
            clone_attr_as(cloner, node, cloner->call->attrs[i], attr->name);
            return;
        }
    struct str body = tsr__function_default(cloner->fn, attr->ref);
    tsr_attr *copy = body.n ? tsr__attr_append(node) : NULL;
    if (!copy)
        return;
    copy->name = tsr__keep(cloner->to, attr->name);
    copy->kind = attr->kind;
    copy->rest = body;
    copy->changed = true;
}

// ---- nodes ----------------------------------------------------------------------------------

// Copies a node. Attributes that are not decoded stay bytes in `whole`, unless references to
// attributes of the call must be replaced.
tsr_node *tsr__clone_node(struct cloner *cloner, tsr_graph *graph, const tsr_node *node,
                          size_t n_inputs, size_t n_outputs)
{
    struct str name = clone_name(cloner, node->name, node->flags & N_TEXT);
    tsr_node *copy =
        tsr__node_make(graph, node->domain->text, node->op->text, name, n_inputs, n_outputs);
    if (!copy)
        return NULL;
    copy->whole = node->whole;
    copy->flags = (node->flags & (N_TEXT | N_NEW | N_CHANGED | N_RESIZED)) | N_ATTRS;
    if (!tsr__clone_metadata(copy, node))
        return NULL;
    if (!(node->flags & N_ATTRS) && !cloner->call) {
        copy->n_attrs = node->n_attrs;
        copy->flags &= ~(uint32_t)N_ATTRS;
        return copy;
    }
    for (size_t i = 0; i < tsr_node_attr_count(node); i++) {
        if (cloner->call && node->attrs[i]->ref.n)
            substitute(cloner, copy, node->attrs[i]);
        else
            clone_attr_as(cloner, copy, node->attrs[i], node->attrs[i]->name);
    }
    if (cloner->call)
        copy->flags |= N_ATTRIBUTES;
    tsr__node_relink(copy);
    return copy;
}

static void clone_spec_dim(struct cloner *cloner, struct spec_dim *to, const struct spec_dim *from)
{
    *to = *from;
    to->factors = ARENA_ARRAY(&cloner->to->arena, struct spec_factor, from->n);
    if (!to->factors)
        return;
    for (size_t i = 0; i < from->n; i++) {
        to->factors[i] = from->factors[i];
        to->factors[i].size.symbol = tsr__keep(cloner->to, str_of(from->factors[i].size.symbol)).p;
    }
}

// Copies a spec. Device lists are shared within the new model.
static void clone_spec(struct cloner *cloner, tsr_node_config *nc, const tsr_spec *spec)
{
    tsr_value *twin = spec->value ? tsr__twin(cloner, spec->value) : NULL;
    if (spec->value && (!twin || (spec->value->flags & V_GONE)))
        return; // the value was removed
    tsr_spec *w = tsr__spec_make(nc, twin);
    if (!w)
        return;
    w->whole = spec->whole;
    w->flags = spec->flags;
    if (!cloner->exact)
        w->flags |= S_NAME; // the value may have another name in the copy
    w->devices.at = tsr__keep_devices(cloner->to, spec->devices.at, spec->devices.n);
    if (!w->devices.at)
        return;
    w->devices.n = w->devices.cap = spec->devices.n;
    for (size_t i = 0; i < spec->groups.n; i++) {
        struct spec_group *group = vec_push(&cloner->to->arena, &w->groups);
        if (!group)
            return;
        *group = spec->groups.at[i];
        group->members = tsr__keep_devices(cloner->to, group->members, group->n);
    }
    for (size_t i = 0; i < spec->dims.n; i++) {
        struct spec_dim *dim = vec_push(&cloner->to->arena, &w->dims);
        if (!dim)
            return;
        clone_spec_dim(cloner, dim, &spec->dims.at[i]);
    }
}

// Copies the annotations of a node. cloner->config returns the new configuration for each
// annotation. Without this callback annotations are dropped, and the node is marked as changed.
void tsr__clone_configs(struct cloner *cloner, tsr_node *to, const tsr_node *from)
{
    if (!cloner->config) {
        if (from->n_configs)
            to->flags |= N_CONFIGS;
        return;
    }
    for (size_t i = 0; i < from->n_configs; i++) {
        const tsr_node_config *nc = from->configs[i];
        tsr_config *config = nc->config ? cloner->config(cloner->data, nc->config) : NULL;
        tsr_node_config *node_config = tsr__node_config_make(to, config);
        if (!node_config)
            return;
        node_config->whole = nc->whole;
        node_config->has_stage = nc->has_stage;
        node_config->stage = nc->stage;
        for (size_t k = 0; k < nc->n_specs; k++)
            clone_spec(cloner, node_config, nc->specs[k]);
        node_config->changed = nc->changed || !cloner->exact || node_config->n_specs != nc->n_specs;
        if (node_config->changed)
            to->flags |= N_CONFIGS;
    }
}

// Links inputs and outputs of the copy. An input whose value has no copy becomes omitted.
void tsr__clone_slots(struct cloner *cloner, tsr_node *copy, const tsr_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++)
        tsr__use_link(&copy->inputs[i], tsr__twin(cloner, node->inputs[i].value));
    for (size_t i = 0; i < node->n_outputs; i++) {
        copy->outputs[i] = tsr__twin(cloner, node->outputs[i]);
        if (copy->outputs[i])
            copy->outputs[i]->producer = copy;
    }
}

static void clone_inner_node(struct cloner *cloner, tsr_graph *graph, const tsr_node *node)
{
    tsr_node *copy = tsr__clone_node(cloner, graph, node, node->n_inputs, node->n_outputs);
    if (!copy)
        return;
    tsr__clone_slots(cloner, copy, node);
    tsr__node_append(graph, copy);
    tsr__clone_configs(cloner, copy, node);
    if (!cloner->exact)
        copy->flags |= N_INPUTS; // an outer value may have another name
}

// ---- graphs ---------------------------------------------------------------------------------

// Copies a list of initializers with their tensors. A tensor with replaced data marks the graph as
// changed.
static void clone_constants(struct cloner *cloner, tsr_graph *graph, value_list *to,
                            const value_list *from)
{
    for (size_t i = 0; i < from->n; i++) {
        tsr_value *twin = tsr__twin(cloner, from->at[i]);
        if (!twin || !vec_add(&cloner->to->arena, to, twin))
            return;
        twin->tensor = clone_tensor(cloner, from->at[i]->tensor, twin);
        if (twin->tensor && twin->tensor->replaced)
            graph->flags |= G_INITIALIZERS;
    }
}

// Copies the lists of inputs, outputs and initializers. An output that is an outer value may have
// another name in an inexact copy.
static void clone_ports(struct cloner *cloner, tsr_graph *to, const tsr_graph *from)
{
    for (size_t i = 0; i < from->inputs.n; i++) {
        struct port port = from->inputs.at[i];
        port.value = tsr__twin(cloner, port.value);
        vec_add(&cloner->to->arena, &to->inputs, port);
    }
    for (size_t i = 0; i < from->outputs.n; i++) {
        struct port port = from->outputs.at[i];
        port.replaced = port.replaced || (!cloner->exact && port.value->home != from);
        port.value = tsr__twin(cloner, port.value);
        if (vec_add(&cloner->to->arena, &to->outputs, port) && port.value)
            port.value->n_outputs++;
    }
    clone_constants(cloner, to, &to->initializers, &from->initializers);
    clone_constants(cloner, to, &to->sparse, &from->sparse);
}

// Copies a graph: all values before the nodes, because the graph may be unsorted.
static tsr_graph *clone_graph(struct cloner *cloner, const tsr_graph *graph, tsr_node *owner,
                              tsr_attr *attr)
{
    tsr_graph *copy = tsr__graph_make(cloner->to, graph->names.n);
    if (!copy)
        return NULL;
    copy->owner = owner;
    copy->attr = attr;
    copy->body = graph->body;
    copy->infos = graph->infos;
    copy->absent = graph->absent;
    copy->n_fields = graph->n_fields;
    copy->name = clone_name(cloner, graph->name, graph->flags & G_TEXT);
    copy->flags = graph->flags & ~(uint32_t)G_ORDER;
    for (const tsr_value *value = graph->values; value; value = value->next)
        clone_value(cloner, copy, value);
    clone_map(cloner, &copy->names, &graph->names);
    clone_map(cloner, &copy->renamed, &graph->renamed);
    for (const tsr_node *node = graph->first; node; node = node->next) {
        if (cloner->to->arena.failed)
            break;
        clone_inner_node(cloner, copy, node);
    }
    clone_ports(cloner, copy, graph);
    if (!cloner->exact)
        copy->flags |= G_NODES | G_OUTPUTS | G_LIST;
    return copy;
}

// ---- models ---------------------------------------------------------------------------------

static tsr_config *copy_config(tsr_model *to, const tsr_config *config)
{
    tsr_config *copy = ARENA_NEW(&to->arena, tsr_config);
    struct str *names = ARENA_ARRAY(&to->arena, struct str, config->n_names);
    if (!copy || !names)
        return NULL;
    *copy = *config;
    copy->model = to;
    copy->name = tsr__keep(to, config->name);
    copy->names = names;
    for (size_t i = 0; i < config->n_names; i++)
        names[i] = tsr__keep(to, config->names[i]);
    void **slot = copy->placeholder ? tsr__map_at(&to->config_ids, copy->name) : NULL;
    if (slot)
        *slot = copy;
    return copy;
}

// Returns the copy of a configuration, which is made at its first use. Annotations also refer to
// configurations that the model does not list: placeholders, and removed ones.
static tsr_config *config_twin(void *data, tsr_config *config)
{
    struct cloner *cloner = data;
    void **slot = tsr__map_at_copy(&cloner->twins, str_bytes(&config, sizeof config));
    if (slot && !*slot)
        *slot = copy_config(cloner->to, config);
    return slot ? *slot : NULL;
}

static void clone_configurations(struct cloner *cloner)
{
    for (size_t i = 0; i < cloner->from->configs.n; i++) {
        tsr_config *copy = config_twin(cloner, cloner->from->configs.at[i]);
        if (!copy || !vec_add(&cloner->to->arena, &cloner->to->configs, copy))
            return;
    }
}

static void clone_opsets(tsr_model *to, opset_list *list, const opset_list *old)
{
    for (size_t i = 0; i < old->n; i++) {
        struct opset *opset = vec_push(&to->arena, list);
        if (!opset)
            return;
        *opset = old->at[i];
        opset->domain = tsr__keep(to, opset->domain);
    }
}

// Copies the functions, after those that the new model already has.
static void clone_functions(struct cloner *cloner)
{
    for (size_t i = 0; i < cloner->from->functions.n; i++) {
        const tsr_function *function = cloner->from->functions.at[i];
        tsr_function *copy = ARENA_NEW(&cloner->to->arena, tsr_function);
        tsr_function **slot = vec_push(&cloner->to->arena, &cloner->to->functions);
        if (!copy || !slot)
            return;
        *copy = (tsr_function){
            .model = cloner->to, .whole = function->whole, .index = cloner->to->functions.n - 1};
        copy->name = tsr__keep(cloner->to, function->name);
        copy->domain = tsr__keep(cloner->to, function->domain);
        copy->overload = tsr__keep(cloner->to, function->overload);
        clone_opsets(cloner->to, &copy->opsets, &function->opsets);
        copy->graph = clone_graph(cloner, function->graph, NULL, NULL);
        if (copy->graph)
            copy->graph->function = copy;
        *slot = copy;
    }
}

// Copies the functions of a model without annotations.
tsr_status tsr__model_copy_functions(tsr_model *to, const tsr_model *from)
{
    struct cloner cloner;
    tsr__cloner_init(&cloner, to, from);
    clone_functions(&cloner);
    to->changed = true;
    to->n_edits++;
    return tsr__cloner_end(&cloner);
}

// Copies everything except graphs, functions and configurations, including the change flags.
static void clone_head(tsr_model *to, const tsr_model *model)
{
    if (model->path)
        to->path = tsr__keep(to, str_of(model->path)).p;
    to->ir_version = model->ir_version;
    to->has_ir_version = model->has_ir_version;
    to->ir_changed = model->ir_changed;
    to->changed = model->changed;
    to->renamed = model->renamed;
    to->devices_touched = model->devices_touched;
    to->producer = tsr__keep(to, model->producer);
    to->opsets_changed = model->opsets_changed;
    to->metadata_changed = model->metadata_changed;
    to->configs_changed = model->configs_changed;
    clone_opsets(to, &to->opsets, &model->opsets);
    for (size_t i = 0; i < model->metadata.n; i++) {
        struct metadata *entry = vec_push(&to->arena, &to->metadata);
        if (!entry)
            return;
        *entry = model->metadata.at[i];
        entry->key = tsr__keep(to, entry->key);
        entry->value = tsr__keep(to, entry->value);
    }
}

// Copies a model. The clone shares only the store. If `bare` is set, configurations and annotations
// are left out.
static tsr_status clone_model(const tsr_model *model, bool bare, tsr_model **out)
{
    tsr_model *to = tsr__model_make(model->session);
    if (!to)
        return TSR_NOMEM;
    tsr__store_drop(to->store);
    to->store = tsr__store_hold(model->store);
    struct cloner cloner;
    tsr__cloner_init(&cloner, to, model);
    cloner.exact = true;
    clone_head(to, model);
    if (bare) {
        to->configs_changed = to->changed = to->devices_touched = true;
    } else {
        cloner.config = config_twin;
        cloner.data = &cloner;
        clone_configurations(&cloner);
    }
    to->graph = clone_graph(&cloner, model->graph, NULL, NULL);
    clone_functions(&cloner);
    if (tsr__cloner_end(&cloner) != TSR_OK) {
        tsr_model_free(to);
        return TSR_NOMEM;
    }
    *out = to;
    return TSR_OK;
}

tsr_status tsr_model_clone(const tsr_model *model, tsr_model **out)
{
    TRY(tsr__given(tsr_model_session(model), "out", out));
    return clone_model(model, false, out);
}

tsr_status tsr__model_clone_bare(const tsr_model *model, tsr_model **out)
{
    return clone_model(model, true, out);
}
