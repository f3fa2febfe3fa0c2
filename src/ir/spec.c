// SPDX-License-Identifier: Apache-2.0
// spec.c - reads, builds and removes sharding specs, without validation.
//
// A spec has the fields of ONNX's ShardingSpecProto: devices, groups and the factors of each
// sharded axis. A group is a key in the device list that stands for several devices. Device lists
// are never changed in place, so equal ones can be shared. sharding/layouts/spec_layout.c
// interprets specs.
//
//     Example: X of [8,6] in two row blocks, each on two devices: devices {-1,-2}, group -1 =
//     {0,1}, group -2 = {2,3}, axis 0 with one factor of size 8 and 2 shards
#include "ir/internal.h"

static tsr_model *model_of(const tsr_spec *spec)
{
    return spec->entry->node->graph->model;
}

tsr_node *tsr__spec_node(const tsr_spec *spec)
{
    return spec->entry->node;
}
tsr_config *tsr__spec_config(const tsr_spec *spec)
{
    return spec->entry->config;
}

// Marks fields of a spec as changed: `bits` are the fields that differ from the bytes in `whole`.
void tsr__spec_touch(tsr_spec *spec, uint32_t bits)
{
    spec->flags |= bits;
    spec->entry->changed = true;
    tsr__touch_node(spec->entry->node, N_CONFIGS);
}

// Creates a spec. Sets no change flags, because it is also used for specs of a file.
tsr_spec *tsr__spec_make(tsr_node_config *nc, tsr_value *value)
{
    struct arena *arena = &nc->node->graph->model->arena;
    tsr_spec **more = tsr__pointers_grow(arena, nc->specs, nc->n_specs);
    tsr_spec *spec = ARENA_NEW(arena, tsr_spec);
    if (!more || !spec)
        return NULL;
    spec->entry = nc;
    spec->value = value;
    more[nc->n_specs++] = spec;
    nc->specs = more;
    return spec;
}

#define INDEX_LEAST 32 // annotations with fewer specs have no index

// Creates the index of an annotation with many specs, or adds new specs to the index. Returns false
// if out of memory.
static bool index_specs(tsr_node_config *nc)
{
    struct arena *arena = &nc->node->graph->model->arena;
    if (!nc->by_value) {
        nc->by_value = ARENA_NEW(arena, struct map);
        nc->n_indexed = 0;
        if (!nc->by_value)
            return false;
        tsr__map_init(nc->by_value, arena, 2 * (size_t)nc->n_specs);
    }
    for (; nc->n_indexed < nc->n_specs; nc->n_indexed++) {
        tsr_spec *spec = nc->specs[nc->n_indexed];
        void **slot = tsr__map_at_copy(nc->by_value, str_bytes(&spec->value, sizeof spec->value));
        if (!slot)
            return false;
        if (!*slot)
            *slot = spec;
    }
    return true;
}

static tsr_spec *first_spec(const tsr_node_config *nc, const tsr_value *value)
{
    for (size_t i = 0; i < nc->n_specs; i++)
        if (nc->specs[i]->value == value)
            return nc->specs[i];
    return NULL;
}

// Updates the index after a spec of the value was removed or got another value.
static void reindex(tsr_node_config *nc, const tsr_value *value)
{
    void **slot = NULL;
    if (nc->by_value)
        slot = tsr__map_at_copy(nc->by_value, str_bytes(&value, sizeof value));
    if (slot)
        *slot = first_spec(nc, value);
    else
        nc->by_value = NULL;
}

// Finds the spec of a value, or returns NULL. If a file has several, returns the first.
tsr_spec *tsr__entry_spec(const tsr_node_config *nc, const tsr_value *value)
{
    tsr_node_config *entry = (tsr_node_config *)(uintptr_t)nc; // the index is a cache
    if (nc->n_specs >= INDEX_LEAST && index_specs(entry))
        return tsr__map_get(nc->by_value, str_bytes(&value, sizeof value));
    return first_spec(nc, value);
}

// Removes a spec from its annotation. The object can still be read (S_GONE).
static void drop_spec(tsr_node_config *nc, tsr_spec *spec)
{
    size_t i = 0;
    while (i < nc->n_specs && nc->specs[i] != spec)
        i++;
    if (i == nc->n_specs)
        return;
    if (i < nc->n_indexed)
        nc->n_indexed--;
    for (; i + 1 < nc->n_specs; i++)
        nc->specs[i] = nc->specs[i + 1];
    nc->n_specs--;
    reindex(nc, spec->value);
    nc->changed = true;
    spec->flags |= S_GONE;
    tsr__touch_node(nc->node, N_CONFIGS);
}

// Moves the specs of `from` to `to` when a node reads `to` instead; `to` NULL: removes them. If the
// annotation already has a spec of `to`, that one is kept.
void tsr__specs_follow(tsr_node *node, tsr_value *from, tsr_value *to)
{
    if (!from || from == to || !node->n_configs || tsr__node_has(node, from))
        return;
    for (size_t k = 0; k < node->n_configs; k++) {
        tsr_node_config *nc = node->configs[k];
        for (size_t i = nc->n_specs; i-- > 0;) {
            tsr_spec *spec = nc->specs[i];
            if (spec->value != from)
                continue;
            if (!to || tsr__entry_spec(nc, to)) {
                drop_spec(nc, spec);
            } else {
                spec->value = to;
                reindex(nc, from);
                reindex(nc, to);
                tsr__spec_touch(spec, S_NAME);
            }
        }
    }
}

// ---- reading --------------------------------------------------------------------------------

tsr_value *tsr_spec_value(const tsr_spec *spec)
{
    return spec->value;
}
size_t tsr_spec_group_count(const tsr_spec *spec)
{
    return spec->groups.n;
}
size_t tsr_spec_dim_count(const tsr_spec *spec)
{
    return spec->dims.n;
}

size_t tsr_spec_devices(const tsr_spec *spec, const int64_t **out)
{
    if (out)
        *out = spec->devices.at;
    return spec->devices.n;
}

// Returns the key of device group i and its members; -1 if there is no such group. (-1 may also be
// a key.)
int64_t tsr_spec_group(const tsr_spec *spec, size_t i, const int64_t **members, size_t *n)
{
    bool there = i < spec->groups.n;
    if (members)
        *members = there ? spec->groups.at[i].members : NULL;
    if (n)
        *n = there ? spec->groups.at[i].n : 0;
    return there ? spec->groups.at[i].key : -1;
}

int64_t tsr_spec_dim_axis(const tsr_spec *spec, size_t i)
{
    return i < spec->dims.n ? spec->dims.at[i].axis : 0;
}

size_t tsr_spec_dim_factor_count(const tsr_spec *spec, size_t i)
{
    return i < spec->dims.n ? spec->dims.at[i].n : 0;
}

int64_t tsr_spec_dim_factor(const tsr_spec *spec, size_t i, size_t k, tsr_dim *size)
{
    bool there = k < tsr_spec_dim_factor_count(spec, i);
    if (size)
        *size = there ? spec->dims.at[i].factors[k].size : (tsr_dim){-1, ""};
    return there ? spec->dims.at[i].factors[k].shards : 0;
}

// ---- building -------------------------------------------------------------------------------

static bool is_foreign(tsr_node *node, const tsr_config *config, const tsr_value *value)
{
    const tsr_model *model = node->graph->model;
    if ((!config || config->model == model) && (!value || tsr__value_model(value) == model))
        return false;
    tsr__diag(model->session, DIAG_argument_invalid, PLACE_AT(tsr__place_node(node)),
              "use handles of the node's own model",
              "the configuration or the value belongs to another model");
    return true;
}

// Adds an empty spec of a value to the node. Always creates a new spec, even if there is one for
// the value.
tsr_spec *tsr_node_add_spec(tsr_node *node, tsr_config *config, tsr_value *value)
{
    if (is_foreign(node, config, value))
        return NULL;
    tsr_node_config *nc = tsr_node_find_config(node, config);
    if (!nc)
        nc = tsr__node_config_make(node, config);
    tsr_spec *spec = nc ? tsr__spec_make(nc, value) : NULL;
    if (!spec)
        return NULL;
    node->graph->model->devices_touched = true;
    tsr__spec_touch(spec, S_NAME | S_DEVICES | S_GROUPS | S_DIMS);
    return spec;
}

#define SHARED_LIST 64 // shorter lists are not shared

// Returns a copy of a device list. Equal lists of SHARED_LIST or more devices share one copy,
// because a plan for many devices has the same few lists at every node.
int64_t *tsr__keep_devices(tsr_model *model, const int64_t *devices, size_t n)
{
    struct str bytes = str_bytes(devices, n * sizeof *devices);
    int64_t *known = n >= SHARED_LIST ? tsr__map_get(&model->lists, bytes) : NULL;
    if (known)
        return known;
    int64_t *copy = ARENA_ARRAY(&model->arena, int64_t, n);
    if (copy && n)
        memcpy(copy, devices, bytes.n);
    if (!copy || n < SHARED_LIST)
        return copy;
    tsr__map_set(&model->lists, str_bytes(copy, bytes.n), copy);
    return copy;
}

// Marks fields of a spec as changed by a public function. Such changes raise the IR version
// when the model is saved. Renaming a value changes its specs without raising it.
static void touch_spec(tsr_spec *spec, uint32_t bits)
{
    model_of(spec)->devices_touched = true;
    tsr__spec_touch(spec, bits);
}

tsr_status tsr_spec_set_devices(tsr_spec *spec, const int64_t *devices, size_t n)
{
    if (!devices && n)
        return tsr__missing(model_of(spec)->session, "devices");
    int64_t *copy = tsr__keep_devices(model_of(spec), devices, n);
    if (!copy)
        return TSR_NOMEM;
    spec->devices.at = copy;
    spec->devices.n = spec->devices.cap = n;
    touch_spec(spec, S_DEVICES);
    return TSR_OK;
}

tsr_status tsr_spec_add_group(tsr_spec *spec, int64_t key, const int64_t *members, size_t n)
{
    if (!members && n)
        return tsr__missing(model_of(spec)->session, "members");
    int64_t *copy = tsr__keep_devices(model_of(spec), members, n);
    struct spec_group *group = copy ? vec_push(&model_of(spec)->arena, &spec->groups) : NULL;
    if (!group)
        return TSR_NOMEM;
    *group = (struct spec_group){.key = key, .members = copy, .n = n};
    touch_spec(spec, S_GROUPS);
    return TSR_OK;
}

// Adds an axis with its factors to a spec. `sizes` may be NULL; a size of -1 without a symbol means
// no size. A negative axis is kept.
tsr_status tsr_spec_add_dim(tsr_spec *spec, int64_t axis, const tsr_dim *sizes,
                            const int64_t *shards, size_t n)
{
    if (!shards && n)
        return tsr__missing(model_of(spec)->session, "shards");
    tsr_model *model = model_of(spec);
    struct spec_factor *factors = ARENA_ARRAY(&model->arena, struct spec_factor, n);
    struct spec_dim *dim = factors ? vec_push(&model->arena, &spec->dims) : NULL;
    if (!dim)
        return TSR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        factors[i] = (struct spec_factor){.size = {-1, ""}, .shards = shards[i]};
        if (sizes && sizes[i].value >= 0)
            factors[i].size.value = sizes[i].value;
        else if (sizes && sizes[i].symbol)
            factors[i].size.symbol = tsr__keep(model, str_of(sizes[i].symbol)).p;
    }
    *dim = (struct spec_dim){.axis = axis, .factors = factors, .n = n};
    touch_spec(spec, S_DIMS);
    return model_status(model);
}

// Removes a new annotation that has become empty; annotations of a file stay.
static void drop_empty(tsr_node_config *nc)
{
    if (!nc->whole.n && !nc->n_specs && !nc->has_stage && !nc->gone)
        (void)tsr_node_remove_config(nc->node, nc);
}

tsr_status tsr_spec_remove(tsr_spec *spec)
{
    tsr_node_config *nc = spec->entry;
    if ((spec->flags & S_GONE) || nc->gone)
        return tsr__fail(model_of(spec)->session, TSR_INVALID, DIAG_annotation_absent,
                         PLACE_AT(tsr__place_node(nc->node)), NULL,
                         "the sharding was already removed");
    model_of(spec)->devices_touched = true;
    drop_spec(nc, spec);
    drop_empty(nc);
    return model_status(model_of(spec));
}

tsr_status tsr_node_unset_stage(tsr_node *node, tsr_config *config)
{
    tsr_node_config *nc = tsr_node_find_config(node, config);
    if (!nc || !nc->has_stage)
        return tsr__fail(node->graph->model->session, TSR_INVALID, DIAG_annotation_absent,
                         PLACE_AT(tsr__place_spec(node, config, NULL)), NULL,
                         "the node has no pipeline stage in this configuration");
    nc->has_stage = false;
    nc->changed = true;
    node->graph->model->devices_touched = true;
    tsr__touch_node(node, N_CONFIGS);
    drop_empty(nc);
    return model_status(node->graph->model);
}

// Removes the specs of a value; `config` NULL: in all configurations. Loops backwards, because
// annotations may be removed.
tsr_status tsr_node_unshard(tsr_node *node, tsr_value *value, tsr_config *config)
{
    size_t dropped = 0;
    for (size_t k = node->n_configs; k-- > 0;) {
        tsr_node_config *nc = node->configs[k];
        if (config && nc->config != config)
            continue;
        for (size_t i = nc->n_specs; i-- > 0;)
            if (nc->specs[i]->value == value) {
                drop_spec(nc, nc->specs[i]);
                dropped++;
            }
        if (dropped)
            drop_empty(nc);
    }
    tsr_model *model = node->graph->model;
    if (!dropped)
        return tsr__fail(model->session, TSR_INVALID, DIAG_annotation_absent,
                         PLACE_AT(tsr__place_spec(node, config, value)),
                         "name a value and a configuration for which the node has a sharding",
                         "the node has no sharding of this value");
    model->devices_touched = true;
    return model_status(model);
}
