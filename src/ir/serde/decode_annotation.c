// SPDX-License-Identifier: Apache-2.0
// decode_annotation.c - decodes the configurations of a model and the annotations of nodes.
//
// They are decoded when the model is loaded, because a spec points to a value. That is an input or
// output of the node, else a value in scope, else a placeholder. The file was checked before, so
// decoding fails only if out of memory; the model's arena has then failed.
//
// The loops compare the type of a field before its number. In one condition, compilers turn both
// into one load of 8 bytes after two stores of 4, which stalls the processor.
#include "ir/serde/serde.h"

// ---- configurations -------------------------------------------------------------------------

// Reads a configuration. num_devices is an int32, so the low 32 bits are used. The checker reports
// invalid numbers.
void tsr__config_decode(tsr_config *config, struct str body)
{
    tsr_model *model = config->model;
    config->name = tsr__keep(model, tsr__wire_bytes(body, F_CONFIG_NAME, NULL));
    (void)tsr__wire_int(body, F_CONFIG_NUM_DEVICES, &config->devices);
    config->devices = (int32_t)config->devices;
    config->names = ARENA_ARRAY(&model->arena, struct str, tsr__wire_count(body, F_CONFIG_DEVICE));
    if (!config->names)
        return;
    struct wire_cursor cur = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cur, F_CONFIG_DEVICE, &field))
        config->names[config->n_names++] = tsr__keep(model, field.bytes);
}

// ---- specs ----------------------------------------------------------------------------------

#define DEVICES_FEW 16 // longer lists are read in two passes

// Reads a long list of devices. It is read to temporary memory first, because the model may already
// have the same list.
static int64_t *read_long_list(tsr_model *model, struct str message, uint32_t field, size_t n)
{
    struct arena scratch = {.session = model->session};
    int64_t *read = ARENA_ARRAY(&scratch, int64_t, n), *kept = NULL;
    if (read) {
        tsr__wire_ints(message, field, read, n);
        kept = tsr__keep_devices(model, read, n);
    }
    tsr__arena_free(&scratch);
    if (!kept)
        model->arena.failed = true;
    return kept;
}

// Reads a list of devices. If out of memory, *n is 0 and the arena has failed.
static int64_t *read_devices(tsr_model *model, struct str message, uint32_t field, size_t *n)
{
    int64_t few[DEVICES_FEW], *kept;
    size_t count = tsr__wire_ints(message, field, few, DEVICES_FEW);
    if (count <= DEVICES_FEW)
        kept = tsr__keep_devices(model, few, count);
    else
        kept = read_long_list(model, message, field, count);
    *n = kept ? count : 0;
    return kept;
}

static void decode_group(tsr_model *model, tsr_spec *spec, const struct wire_field *field)
{
    struct spec_group *group = vec_push(&model->arena, &spec->groups);
    if (!group)
        return;
    group->whole = field->whole;
    (void)tsr__wire_int(field->bytes, F_GROUP_KEY, &group->key);
    group->members = read_devices(model, field->bytes, F_GROUP_VALUE, &group->n);
}

// Reads size and number of shards of one factor of an axis. Size and symbol are a oneof: the last
// one is used. If there is neither, the result is {-1, ""}.
static struct spec_factor decode_factor(tsr_model *model, struct str body)
{
    struct spec_factor out = {.size = {-1, ""}};
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type == WIRE_LEN) {
            if (field.number == F_SIMPLE_DIM_DIM_PARAM)
                out.size = (tsr_dim){-1, tsr__keep(model, field.bytes).p};
        } else if (field.type == WIRE_VARINT) {
            if (field.number == F_SIMPLE_DIM_DIM_VALUE)
                out.size = (tsr_dim){(int64_t)field.integer, ""};
            if (field.number == F_SIMPLE_DIM_NUM_SHARDS)
                out.shards = (int64_t)field.integer;
        }
    }
    return out;
}

// Reads one axis of a spec. Example: axis 0 has two factors, one of size 2 with 1 shard and one of
// size 4 with 2 shards. dim->axis is 0, and dim->factors are {2, 1} and {4, 2}.
static void decode_spec_dim(tsr_model *model, tsr_spec *spec, const struct wire_field *field)
{
    struct spec_dim *dim = vec_push(&model->arena, &spec->dims);
    if (!dim)
        return;
    dim->whole = field->whole;
    struct wire_cursor cursor = wire_over(field->bytes);
    struct wire_field part;
    size_t n = 0;
    while (tsr__wire_next(&cursor, &part)) {
        if (part.type == WIRE_LEN)
            n += part.number == F_SHARDED_DIM_SIMPLE_SHARDING;
        else if (part.type == WIRE_VARINT && part.number == F_SHARDED_DIM_AXIS)
            dim->axis = (int64_t)part.integer;
    }
    dim->factors = ARENA_ARRAY(&model->arena, struct spec_factor, n);
    if (!dim->factors)
        return;
    cursor = wire_over(field->bytes);
    while (dim->n < n && tsr__wire_next(&cursor, &part)) {
        if (part.type != WIRE_LEN)
            continue;
        if (part.number == F_SHARDED_DIM_SIMPLE_SHARDING)
            dim->factors[dim->n++] = decode_factor(model, part.bytes);
    }
}

// Nodes with at most this number of inputs and of outputs are searched one by one; for others the
// map of names is faster.
#define OWN_MAX 64

// Returns the value with the name in a spec: an input or output of the node, else a value in scope,
// else a placeholder.
static tsr_value *spec_value(tsr_node *node, struct str name)
{
    if (node->n_inputs <= OWN_MAX && node->n_outputs <= OWN_MAX) {
        for (size_t i = 0; i < node->n_inputs; i++)
            if (node->inputs[i].value && str_eq(node->inputs[i].value->name, name))
                return node->inputs[i].value;
        for (size_t i = 0; i < node->n_outputs; i++)
            if (node->outputs[i] && str_eq(node->outputs[i]->name, name))
                return node->outputs[i];
    }
    return tsr__graph_refer(node->graph, name);
}

// Numbers of fields, counted first, so that the lists have exact sizes.
struct spec_fields {
    struct str name;
    size_t groups, dims;
};

static struct spec_fields scan_spec(struct str body)
{
    struct spec_fields out = {0};
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type != WIRE_LEN)
            continue;
        if (field.number == F_SPEC_TENSOR_NAME)
            out.name = field.bytes;
        out.groups += field.number == F_SPEC_INDEX_TO_DEVICE_GROUP_MAP;
        out.dims += field.number == F_SPEC_SHARDED_DIM;
    }
    return out;
}

// Reads a sharding spec. The checker reports specs without a name.
static void decode_spec(tsr_node_config *nc, const struct wire_field *field)
{
    tsr_model *model = nc->node->graph->model;
    struct spec_fields fields = scan_spec(field->bytes);
    tsr_value *value = fields.name.n ? spec_value(nc->node, fields.name) : NULL;
    tsr_spec *spec = tsr__spec_make(nc, value);
    if (!spec)
        return;
    spec->whole = field->whole;
    spec->devices.at = read_devices(model, field->bytes, F_SPEC_DEVICE, &spec->devices.n);
    spec->devices.cap = spec->devices.n;
    if (fields.groups &&
        (spec->groups.at = ARENA_ARRAY(&model->arena, struct spec_group, fields.groups)))
        spec->groups.cap = fields.groups;
    if (fields.dims && (spec->dims.at = ARENA_ARRAY(&model->arena, struct spec_dim, fields.dims)))
        spec->dims.cap = fields.dims;
    struct wire_cursor cursor = wire_over(field->bytes);
    struct wire_field part;
    while (spec->groups.cap + spec->dims.cap && tsr__wire_next(&cursor, &part)) {
        if (part.type != WIRE_LEN)
            continue;
        if (part.number == F_SPEC_INDEX_TO_DEVICE_GROUP_MAP)
            decode_group(model, spec, &part);
        else if (part.number == F_SPEC_SHARDED_DIM)
            decode_spec_dim(model, spec, &part);
    }
}

// ---- annotations of nodes -------------------------------------------------------------------

// Returns the configuration of that name, or a placeholder, which all its users share.
static tsr_config *config_named(tsr_model *model, struct str id)
{
    void **slot = tsr__map_at(&model->config_ids, id);
    if (!slot)
        return NULL;
    if (*slot)
        return *slot;
    tsr_config *config = ARENA_NEW(&model->arena, tsr_config);
    if (!config)
        return NULL;
    config->model = model;
    config->name = tsr__keep(model, id);
    config->placeholder = true;
    *slot = config;
    return config;
}

// Reads an annotation of a node. If it names no configuration, nc->config is NULL. The stage is an
// int32, so the low 32 bits are used.
void tsr__node_config_decode(tsr_node_config *nc, struct str body)
{
    struct str id = {0};
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type == WIRE_LEN) {
            if (field.number == F_NODE_CONFIG_CONFIGURATION_ID)
                id = field.bytes;
            else if (field.number == F_NODE_CONFIG_SHARDING_SPEC)
                decode_spec(nc, &field);
        } else if (field.type == WIRE_VARINT && field.number == F_NODE_CONFIG_PIPELINE_STAGE) {
            nc->has_stage = true;
            nc->stage = (int32_t)field.integer;
        }
    }
    if (id.n)
        nc->config = config_named(nc->node->graph->model, id);
}
