// SPDX-License-Identifier: Apache-2.0
// serde_annotation.c - what a file says about devices: the model's configurations, and for each node the
// entries with their shardings.
//
// Unlike attributes and types they are decoded when the model is loaded, because a spec points at values: its
// name means one of the node's own, else whatever is in scope, else a stand-in. All of it was checked before,
// so decoding fails only for lack of memory (sticky in the model's arena).
#include "ir/serde.h"

// ---- configurations -------------------------------------------------------------------------

// num_devices is an int32 on the wire, of which a varint may hold more bits: the low 32 count, as
// in protobuf. It may be negative or wrong here; the checker says so.
void tsr__config_decode(tsr_config *config, struct str body)
{
    tsr_model *model = config->model;
    config->name = tsr__keep(model, tsr__wire_bytes(body, F_CONFIG_NAME, NULL));
    (void)tsr__wire_int(body, F_CONFIG_NUM_DEVICES, &config->devices);
    config->devices = (int32_t)config->devices;
    struct wire_cursor cur = wire_over(body);
    struct wire_field field;
    size_t n = 0;
    while (tsr__wire_next(&cur, &field))
        n += field.number == F_CONFIG_DEVICE && field.type == WIRE_LEN;
    config->names = ARENA_ARRAY(&model->arena, struct str, n);
    if (!config->names)
        return;
    cur = wire_over(body);
    while (tsr__wire_next(&cur, &field))
        if (field.number == F_CONFIG_DEVICE && field.type == WIRE_LEN)
            config->names[config->n_names++] = tsr__keep(model, field.bytes);
}

// ---- specs ----------------------------------------------------------------------------------

// Read into scratch memory first: tsr__keep_devices may find that the model has the same list
// already. *n is 0 and the arena failed if memory lacks.
static int64_t *read_devices(tsr_model *model, struct str message, uint32_t field, size_t *n)
{
    struct arena scratch;
    size_t count = tsr__wire_ints(message, field, NULL, 0);
    tsr__arena_init(&scratch, model->session);
    int64_t *read = ARENA_ARRAY(&scratch, int64_t, count), *kept = NULL;
    if (read) {
        count = tsr__wire_ints(message, field, read, count);
        kept = tsr__keep_devices(model, read, count);
    }
    tsr__arena_free(&scratch);
    *n = 0;
    if (kept)
        *n = count;
    else
        model->arena.failed = true;
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

// Size and symbol are a oneof: the last in the bytes holds. Neither: {-1, ""}, no size is
// given.
static struct spec_factor decode_factor(tsr_model *model, struct str body)
{
    struct spec_factor out = {.size = {-1, ""}};
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number == F_SIMPLE_DIM_DIM_VALUE && field.type == WIRE_VARINT)
            out.size = (tsr_dim){(int64_t)field.integer, ""};
        else if (field.number == F_SIMPLE_DIM_DIM_PARAM && field.type == WIRE_LEN)
            out.size = (tsr_dim){-1, tsr__keep(model, field.bytes).p};
    }
    (void)tsr__wire_int(body, F_SIMPLE_DIM_NUM_SHARDS, &out.shards);
    return out;
}

//     axis 0 as 2 factors of sizes 2 and 4, the second cut in 2:
//     dim->axis 0, dim->factors {2, 1}, {4, 2} (size, shards)
static void decode_spec_dim(tsr_model *model, tsr_spec *spec, const struct wire_field *field)
{
    struct spec_dim *dim = vec_push(&model->arena, &spec->dims);
    if (!dim)
        return;
    dim->whole = field->whole;
    (void)tsr__wire_int(field->bytes, F_SHARDED_DIM_AXIS, &dim->axis);
    struct wire_cursor cursor = wire_over(field->bytes);
    struct wire_field wire_field;
    size_t n = 0;
    while (tsr__wire_next(&cursor, &wire_field))
        n += wire_field.number == F_SHARDED_DIM_SIMPLE_SHARDING && wire_field.type == WIRE_LEN;
    dim->factors = ARENA_ARRAY(&model->arena, struct spec_factor, n);
    if (!dim->factors)
        return;
    cursor = wire_over(field->bytes);
    while (tsr__wire_next(&cursor, &wire_field))
        if (wire_field.number == F_SHARDED_DIM_SIMPLE_SHARDING && wire_field.type == WIRE_LEN)
            dim->factors[dim->n++] = decode_factor(model, wire_field.bytes);
}

#define OWN_MAX 64 // slots: with more of them the table of names is quicker

// The value that a spec's name means at a node: one of the node's own, else whatever is in scope, else a
// stand-in.
static tsr_value *spec_value(tsr_node *node, struct str name)
{
    if (node->n_inputs <= OWN_MAX &&
        node->n_outputs <= OWN_MAX) { // else the table of names is quicker
        for (size_t i = 0; i < node->n_inputs; i++)
            if (node->inputs[i].value && str_eq(node->inputs[i].value->name, name))
                return node->inputs[i].value;
        for (size_t i = 0; i < node->n_outputs; i++)
            if (node->outputs[i] && str_eq(node->outputs[i]->name, name))
                return node->outputs[i];
    }
    return tsr__graph_refer(node->graph, name);
}

// A spec without a name has no value; what that means is for the checker to say.
static void decode_spec(tsr_node_config *nc, const struct wire_field *field)
{
    tsr_model *model = nc->node->graph->model;
    struct str name = tsr__wire_bytes(field->bytes, F_SPEC_TENSOR_NAME, NULL);
    tsr_value *value = NULL;
    if (name.n)
        value = spec_value(nc->node, name);
    tsr_spec *spec = tsr__spec_make(nc, value);
    if (!spec)
        return;
    spec->whole = field->whole;
    spec->devices.at = read_devices(model, field->bytes, F_SPEC_DEVICE, &spec->devices.n);
    spec->devices.cap = spec->devices.n;
    struct wire_cursor cursor = wire_over(field->bytes);
    struct wire_field wire_field;
    size_t groups = 0, dims = 0; // exact room: there may be many specs
    while (tsr__wire_next(&cursor, &wire_field)) {
        groups +=
            wire_field.number == F_SPEC_INDEX_TO_DEVICE_GROUP_MAP && wire_field.type == WIRE_LEN;
        dims += wire_field.number == F_SPEC_SHARDED_DIM && wire_field.type == WIRE_LEN;
    }
    if (groups && (spec->groups.at = ARENA_ARRAY(&model->arena, struct spec_group, groups)))
        spec->groups.cap = groups;
    if (dims && (spec->dims.at = ARENA_ARRAY(&model->arena, struct spec_dim, dims)))
        spec->dims.cap = dims;
    cursor = wire_over(field->bytes);
    while (tsr__wire_next(&cursor, &wire_field)) {
        if (wire_field.number == F_SPEC_INDEX_TO_DEVICE_GROUP_MAP && wire_field.type == WIRE_LEN)
            decode_group(model, spec, &wire_field);
        else if (wire_field.number == F_SPEC_SHARDED_DIM && wire_field.type == WIRE_LEN)
            decode_spec_dim(model, spec, &wire_field);
    }
}

// ---- entries of nodes -----------------------------------------------------------------------

// The configuration of that name, or a stand-in that all who name it share.
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
    config->standin = true;
    *slot = config;
    return config;
}

// An entry that names no configuration keeps config NULL and is written back as it stands.
// pipeline_stage is an int32: its low 32 bits count.
void tsr__node_config_decode(tsr_node_config *nc, struct str body)
{
    bool present = false;
    struct str id = tsr__wire_bytes(body, F_NODE_CONFIG_CONFIGURATION_ID, &present);
    if (present && id.n)
        nc->config = config_named(nc->node->graph->model, id);
    nc->has_stage = tsr__wire_int(body, F_NODE_CONFIG_PIPELINE_STAGE, &nc->stage);
    nc->stage = (int32_t)nc->stage;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field))
        if (field.number == F_NODE_CONFIG_SHARDING_SPEC && field.type == WIRE_LEN)
            decode_spec(nc, &field);
}
