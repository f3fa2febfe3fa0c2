// SPDX-License-Identifier: Apache-2.0
// config.c - device configurations of a model, and the annotations that nodes have for them.
//
// An annotation (tsr_node_config) has the stage and shardings of a node for one configuration. It
// points to its configuration and values. A placeholder is a configuration that annotations name
// but the model does not declare.
//
//     Example: a file has "configuration tp, stage 0, X sharded {2,1}" for node 3, but does not
//     declare tp. The annotation points to a placeholder called tp, which all nodes with tp share.
//     tsr_model_add_config("tp") turns this object into a declared configuration.
//
// A configuration that is removed without its annotations becomes like a placeholder: `registered`
// is false, and the checker reports the annotations.
#include "ir/internal.h"

// ---- configurations -------------------------------------------------------------------------

// Marks the configurations as changed. Because of devices_touched, saving raises the IR version to
// 11, the first with annotations.
static void touch_configs(tsr_model *model)
{
    model->configs_changed = model->changed = model->devices_touched = true;
}

// Reports that the configuration is unknown. `config` may be NULL.
static tsr_status refuse_unknown(tsr_model *model, const tsr_config *config)
{
    struct place at = PLACE(.file = str_of(model->path));
    if (config)
        at.configuration = config->name;
    return tsr__fail(model->session, TSR_INVALID, DIAG_config_unknown, &at, NULL,
                     "the configuration is not declared by this model");
}

static struct place place_config(const tsr_model *model, struct str name)
{
    struct place at = PLACE(.file = str_of(model->path), .configuration = name);
    return at;
}

// Checks name and devices of a new configuration. A new configuration needs an unused name, 1 to
// INT32_MAX devices, and names for all of them or none.
static tsr_status check_new(tsr_model *model, struct str name, int64_t count, size_t n)
{
    struct place at = place_config(model, name);
    if (!name.n)
        return tsr__fail(model->session, TSR_INVALID, DIAG_config_name_empty, &at, "give it a name",
                         "a device configuration needs a name");
    if (tsr_model_find_config(model, name.p))
        return tsr__fail(
            model->session, TSR_INVALID, DIAG_config_exists, &at, "use it, or choose another name",
            "the model already has a device configuration '" STR_FMT "'", STR_ARG(name));
    if (count < 1 || count > INT32_MAX)
        return tsr__fail(model->session, TSR_INVALID, DIAG_config_device_count, &at,
                         "give a number of at least 1",
                         "device configuration '" STR_FMT "' with %lld devices", STR_ARG(name),
                         (long long)count);
    if (n && (uint64_t)count != n)
        return tsr__fail(model->session, TSR_INVALID, DIAG_config_device_names, &at,
                         "give one name for each device, or none",
                         "device configuration '" STR_FMT "' has %lld devices and %zu names",
                         STR_ARG(name), (long long)count, n);
    return TSR_OK;
}

// Adds a device configuration. If `count` is 0, the number of names is used. `out` may be NULL.
tsr_status tsr_model_add_config(tsr_model *model, const char *name, int64_t count,
                                const char *const *devices, size_t n, tsr_config **out)
{
    if (!devices)
        n = 0;
    if (!name)
        name = "";
    if (count == 0)
        count = (int64_t)n;
    TRY(check_new(model, str_of(name), count, n));
    tsr_config *config = tsr__map_get(&model->config_ids, str_of(name));
    if (!config || !config->placeholder)
        config = ARENA_NEW(&model->arena, tsr_config);
    struct str *names = ARENA_ARRAY(&model->arena, struct str, n);
    tsr_config **slot = model->arena.failed ? NULL : vec_push(&model->arena, &model->configs);
    if (!slot)
        return TSR_NOMEM;
    *config = (tsr_config){.model = model, .devices = count, .registered = true};
    config->name = tsr__keep(model, str_of(name));
    config->names = names;
    for (; config->n_names < n; config->n_names++)
        names[config->n_names] = tsr__keep(model, str_of(devices[config->n_names]));
    *slot = config;
    touch_configs(model);
    if (out && model_status(model) == TSR_OK)
        *out = config;
    return model_status(model);
}

size_t tsr_model_config_count(const tsr_model *model)
{
    return model->configs.n;
}

tsr_config *tsr_model_config(const tsr_model *model, size_t i)
{
    return i < model->configs.n ? model->configs.at[i] : NULL;
}

// Finds a configuration by name, or returns NULL. If several have the name, returns the first.
// Placeholders are not found.
tsr_config *tsr_model_find_config(const tsr_model *model, const char *name)
{
    for (size_t i = 0; i < model->configs.n; i++)
        if (str_is(model->configs.at[i]->name, name))
            return model->configs.at[i];
    return NULL;
}

// Which annotations to remove: those that point to the configuration, or all with its name.
enum entries { ENTRIES_BOUND, ENTRIES_NAMED };

// Removes the annotations for a configuration from all nodes; with ENTRIES_NAMED, also those for
// other configurations of the same name. Loops backwards, because annotations are removed.
static void drop_entries(tsr_model *model, const tsr_config *config, enum entries which)
{
    for (tsr_node *node = tsr_model_next_node(model, NULL); node;
         node = tsr_model_next_node(model, node))
        for (size_t i = node->n_configs; i-- > 0;) {
            const tsr_config *other = node->configs[i]->config;
            bool named = which == ENTRIES_NAMED && other && str_eq(other->name, config->name);
            if (other == config || named)
                tsr_node_remove_config(node, node->configs[i]);
        }
}

// Removes the configuration from the model. Annotations still point to it.
static void undeclare(tsr_model *model, tsr_config *config)
{
    size_t i = 0;
    while (i < model->configs.n && model->configs.at[i] != config)
        i++;
    memmove(&model->configs.at[i], &model->configs.at[i + 1],
            (model->configs.n - i - 1) * sizeof(config));
    model->configs.n--;
    config->registered = false;
    touch_configs(model);
}

// Removes a configuration, with `cascade` also the annotations that use it. Without `cascade`,
// annotations keep the object and are saved with its name.
tsr_status tsr_model_remove_config(tsr_model *model, tsr_config *config, bool cascade)
{
    if (!config || config->model != model || !config->registered)
        return refuse_unknown(model, config);
    undeclare(model, config);
    if (cascade)
        drop_entries(model, config, ENTRIES_BOUND);
    return model_status(model);
}

static const char *config_hint(tsr_model *model, struct str name)
{
    if (!model->configs.n)
        return "the model declares no device configuration";
    struct str *names = ARENA_ARRAY(&model->arena, struct str, model->configs.n);
    if (!names)
        return NULL;
    for (size_t i = 0; i < model->configs.n; i++)
        names[i] = model->configs.at[i]->name;
    struct str near = tsr__nearest(name, names, model->configs.n);
    if (!near.n)
        return "tsr_model_config lists the declared ones";
    return tsr__arena_printf(&model->arena, "did you mean '" STR_FMT "'?", STR_ARG(near)).p;
}

// Removes the configuration of a name. With `cascade`, removes the annotations for all
// configurations of that name. If a file declares a name twice, annotations point to the last one,
// but tsr_model_find_config returns the first.
tsr_status tsr_model_remove_config_named(tsr_model *model, const char *name, bool cascade)
{
    tsr_config *config = tsr_model_find_config(model, name);
    if (!config)
        return tsr__fail(model->session, TSR_INVALID, DIAG_config_unknown,
                         PLACE_AT(place_config(model, str_of(name))),
                         config_hint(model, str_of(name)), "there is no device configuration '%s'",
                         name);
    undeclare(model, config);
    if (cascade)
        drop_entries(model, config, ENTRIES_NAMED);
    return model_status(model);
}

const char *tsr_config_name(const tsr_config *config)
{
    return config->name.p;
}
int64_t tsr_config_devices(const tsr_config *config)
{
    return config->devices;
}
size_t tsr_config_device_name_count(const tsr_config *config)
{
    return config->n_names;
}

const char *tsr_config_device_name(const tsr_config *config, size_t i)
{
    return i < config->n_names ? config->names[i].p : NULL;
}

// Renames a configuration. Saving updates the names in annotations (touch_renamed in serde/save.c).
// Only the name is checked (check_new).
tsr_status tsr_config_rename(tsr_config *config, const char *name)
{
    tsr_model *model = config->model;
    struct str text = str_of(name);
    if (str_eq(config->name, text))
        return TSR_OK;
    TRY(check_new(model, text, 1, 0));
    struct str copy = tsr__arena_str(&model->arena, text);
    if (!copy.p)
        return TSR_NOMEM;
    config->name = copy;
    config->renamed = model->renamed = true;
    touch_configs(model);
    return TSR_OK;
}

bool tsr__config_is_declared(const tsr_config *config)
{
    return config->registered;
}

// ---- annotations of nodes -------------------------------------------------------------------

// Appends an annotation, even if the node already has one for the configuration. `config` is NULL
// if the annotation in the file names none.
tsr_node_config *tsr__node_config_make(tsr_node *node, tsr_config *config)
{
    struct arena *arena = &node->graph->model->arena;
    tsr_node_config **more = tsr__pointers_grow(arena, node->configs, node->n_configs);
    tsr_node_config *nc = ARENA_NEW(arena, tsr_node_config);
    if (!more || !nc)
        return NULL;
    nc->node = node;
    nc->config = config;
    more[node->n_configs++] = nc;
    node->graph->model->annotated = true;
    node->configs = more;
    return nc;
}

size_t tsr_node_config_count(const tsr_node *node)
{
    return node->n_configs;
}

tsr_node_config *tsr_node_config_at(const tsr_node *node, size_t i)
{
    return i < node->n_configs ? node->configs[i] : NULL;
}

bool tsr__config_is_of(const tsr_config *config, tsr_model *model)
{
    if (config && config->model == model)
        return true;
    (void)refuse_unknown(model, config);
    return false;
}

// Finds the annotation of a node for a configuration, or returns NULL. If a file has several,
// returns the first.
tsr_node_config *tsr_node_find_config(const tsr_node *node, const tsr_config *config)
{
    for (size_t i = 0; i < node->n_configs; i++)
        if (node->configs[i]->config == config)
            return node->configs[i];
    return NULL;
}

int64_t tsr__node_stage(const tsr_node *node, const tsr_config *config)
{
    const tsr_node_config *nc = tsr_node_find_config(node, config);
    return nc && nc->has_stage && nc->stage >= 0 ? nc->stage : -1;
}

// Removes an annotation from its node. The object can still be read afterwards.
tsr_status tsr_node_remove_config(tsr_node *node, tsr_node_config *nc)
{
    size_t i = 0;
    while (i < node->n_configs && node->configs[i] != nc)
        i++;
    if (i == node->n_configs)
        return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_annotation_absent,
                         PLACE_AT(tsr__place_node(node)), NULL,
                         "the annotation is not one of this node, or was removed");
    for (; i + 1 < node->n_configs; i++)
        node->configs[i] = node->configs[i + 1];
    node->n_configs--;
    nc->gone = true;
    node->graph->model->devices_touched = true;
    tsr__touch_node(node, N_CONFIGS);
    return model_status(node->graph->model);
}

tsr_config *tsr_node_config_target(const tsr_node_config *nc)
{
    return nc->config;
}
size_t tsr_node_config_spec_count(const tsr_node_config *nc)
{
    return nc->n_specs;
}

bool tsr_node_config_stage(const tsr_node_config *nc, int64_t *stage)
{
    if (nc->has_stage && stage)
        *stage = nc->stage;
    return nc->has_stage;
}

tsr_spec *tsr_node_config_spec(const tsr_node_config *nc, size_t i)
{
    return i < nc->n_specs ? nc->specs[i] : NULL;
}

tsr_spec *tsr_node_sharding_of(const tsr_node *node, const tsr_value *value, size_t i)
{
    for (size_t k = 0; k < node->n_configs; k++)
        for (size_t j = 0; j < node->configs[k]->n_specs; j++)
            if (node->configs[k]->specs[j]->value == value && i-- == 0)
                return node->configs[k]->specs[j];
    return NULL;
}
