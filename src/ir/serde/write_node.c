// SPDX-License-Identifier: Apache-2.0
// write_node.c - writes nodes: names, attributes and annotations.
//
// A message is rewritten from its old bytes with a list of `managed` field numbers and their new
// parts (write_parts.c). Other fields, including unknown ones, keep their place. If one entry of a
// list changed, the full list is managed, but its other entries are references to the file.
//
//     Example: a node gets a second sharding. In the node, device_configurations is managed, and
//     its one entry is written anew. In that entry, configuration_id, sharding_spec and
//     pipeline_stage are managed: id and stage are kept, the first spec is a reference, and the
//     second is written from the object.
#include "ir/serde/write.h"

// ---- annotations ----------------------------------------------------------------------------

static void emit_group(struct rope *rope, uint32_t number, void *data)
{
    const struct spec_group *group = data;
    size_t mark = tsr__rope_begin(rope, number);
    tsr__rope_int(rope, F_GROUP_KEY, group->key);
    tsr__rope_ints(rope, F_GROUP_VALUE, group->members, group->n);
    tsr__rope_end(rope, mark);
}

static void emit_sharded_dim(struct rope *rope, uint32_t number, void *data)
{
    const struct spec_dim *dim = data;
    size_t mark = tsr__rope_begin(rope, number);
    tsr__rope_int(rope, F_SHARDED_DIM_AXIS, dim->axis);
    for (size_t i = 0; i < dim->n; i++) {
        const struct spec_factor *factor = &dim->factors[i];
        size_t inner = tsr__rope_begin(rope, F_SHARDED_DIM_SIMPLE_SHARDING);
        tsr__write_dim(rope, F_SIMPLE_DIM_DIM_VALUE, F_SIMPLE_DIM_DIM_PARAM, &factor->size);
        tsr__rope_int(rope, F_SIMPLE_DIM_NUM_SHARDS, factor->shards);
        tsr__rope_end(rope, inner);
    }
    tsr__rope_end(rope, mark);
}

static void emit_devices(struct rope *rope, uint32_t number, void *data)
{
    const tsr_spec *spec = data;
    tsr__rope_ints(rope, number, spec->devices.at, spec->devices.n);
}

// Writes a sharding spec. A new spec (without `whole`) is written completely, a spec of a file only
// where it changed.
static void emit_spec(struct rope *rope, uint32_t number, void *data)
{
    tsr_spec *spec = data;
    bool all = !spec->whole.n;
    uint32_t managed[4];
    size_t n = 0;
    PARTS(parts, rope->arena);
    if (all || (spec->flags & S_NAME)) {
        managed[n++] = F_SPEC_TENSOR_NAME;
        if (spec->value)
            tsr__part_text(&parts, F_SPEC_TENSOR_NAME, spec->value->name);
    }
    if (all || (spec->flags & S_DEVICES)) {
        managed[n++] = F_SPEC_DEVICE;
        if (spec->devices.n)
            tsr__part_emit(&parts, F_SPEC_DEVICE, emit_devices, spec);
    }
    if (all || (spec->flags & S_GROUPS)) {
        managed[n++] = F_SPEC_INDEX_TO_DEVICE_GROUP_MAP;
        for (size_t i = 0; i < spec->groups.n; i++)
            tsr__part_or_emit(&parts, managed[n - 1], spec->groups.at[i].whole, false, emit_group,
                              &spec->groups.at[i]);
    }
    if (all || (spec->flags & S_DIMS)) {
        managed[n++] = F_SPEC_SHARDED_DIM;
        for (size_t i = 0; i < spec->dims.n; i++)
            tsr__part_or_emit(&parts, managed[n - 1], spec->dims.at[i].whole, false,
                              emit_sharded_dim, &spec->dims.at[i]);
    }
    tsr__parts_write(rope, number, tsr__field_body(spec->whole), managed, n, &parts);
}

// Adds a text field. Keeps the old field if it has the same text.
static void part_same_text(struct part_list *parts, struct str origin, uint32_t number,
                           struct str text)
{
    bool present = false;
    struct str now = tsr__wire_bytes(origin, number, &present);
    if (present && str_eq(now, text))
        tsr__parts_keep(parts, origin, number);
    else
        tsr__part_text(parts, number, text);
}

// Adds an integer field. Keeps the old field if it has the same value, because a file may encode a
// number in more bytes than needed.
static void part_same_int(struct part_list *parts, struct str origin, uint32_t number,
                          int64_t value)
{
    int64_t now = 0;
    if (tsr__wire_int(origin, number, &now) && now == value)
        tsr__parts_keep(parts, origin, number);
    else
        tsr__part_int(parts, number, value);
}

// Writes the annotation of a node for one configuration. An annotation without a configuration
// keeps the id in the file, which may be empty (not the same as absent).
static void emit_node_config(struct rope *rope, uint32_t number, void *data)
{
    tsr_node_config *nc = data;
    static const uint32_t managed[] = {F_NODE_CONFIG_CONFIGURATION_ID, F_NODE_CONFIG_SHARDING_SPEC,
                                       F_NODE_CONFIG_PIPELINE_STAGE};
    PARTS(parts, rope->arena);
    struct str origin = tsr__field_body(nc->whole);
    if (nc->config)
        part_same_text(&parts, origin, F_NODE_CONFIG_CONFIGURATION_ID, nc->config->name);
    else
        tsr__parts_keep(&parts, origin, F_NODE_CONFIG_CONFIGURATION_ID);
    for (size_t i = 0; i < nc->n_specs; i++) {
        tsr_spec *spec = nc->specs[i];
        tsr__part_or_emit(&parts, F_NODE_CONFIG_SHARDING_SPEC, spec->whole, spec->flags, emit_spec,
                          spec);
    }
    if (nc->has_stage)
        part_same_int(&parts, origin, F_NODE_CONFIG_PIPELINE_STAGE, nc->stage);
    tsr__parts_write(rope, number, origin, managed, 3, &parts);
}

// ---- attributes -----------------------------------------------------------------------------

static void write_attr_graphs(struct rope *rope, uint32_t number, const tsr_attr *attr,
                              struct str origin)
{
    static const uint32_t managed[] = {F_ATTRIBUTE_G, F_ATTRIBUTE_GRAPHS, F_ATTRIBUTE_NAME};
    PARTS(parts, rope->arena);
    size_t k = 0; // index in attr->graphs: the single graph comes before the list
    bool single = false;
    tsr__wire_bytes(origin, F_ATTRIBUTE_G, &single);
    if (single && attr->n_graphs) {
        tsr_graph *graph = attr->graphs[k++];
        if (graph->flags & G_CHANGED || !graph->body.n)
            tsr__part_emit(&parts, F_ATTRIBUTE_G, tsr__emit_graph, graph);
        else
            tsr__parts_keep(&parts, origin, F_ATTRIBUTE_G);
    }
    struct wire_cursor cursor = wire_over(origin);
    struct wire_field field;
    while (k < attr->n_graphs && tsr__wire_next_of(&cursor, F_ATTRIBUTE_GRAPHS, &field)) {
        tsr_graph *graph = attr->graphs[k++];
        tsr__part_or_emit(&parts, F_ATTRIBUTE_GRAPHS, field.whole, graph->flags & G_CHANGED,
                          tsr__emit_graph, graph);
    }
    bool named = !attr->whole.n; // a copy with another name
    if (named)
        tsr__part_text(&parts, F_ATTRIBUTE_NAME, attr->name);
    size_t n_managed = named ? 3 : 2;
    tsr__parts_write(rope, number, origin, managed, n_managed, &parts);
}

// Writes an attribute that an API call created. Calls create only the kinds of this switch;
// attributes of other kinds have old bytes.
static void write_new_attr(struct rope *rope, uint32_t number, const tsr_attr *attr)
{
    size_t mark = tsr__rope_begin(rope, number);
    tsr__rope_bytes(rope, F_ATTRIBUTE_NAME, attr->name);
    switch (attr->kind) {
    case TSR_ATTR_INT:
        tsr__rope_int(rope, F_ATTRIBUTE_I, attr->integer);
        break;
    case TSR_ATTR_FLOAT:
        tsr__rope_float(rope, F_ATTRIBUTE_F, attr->real);
        break;
    case TSR_ATTR_STRING:
        tsr__rope_bytes(rope, F_ATTRIBUTE_S, attr->text);
        break;
    case TSR_ATTR_INTS:
        tsr__rope_ints(rope, F_ATTRIBUTE_INTS, attr->ints, attr->n_ints);
        break;
    case TSR_ATTR_GRAPH:
        tsr__emit_graph(rope, F_ATTRIBUTE_G, attr->graphs[0]);
        break;
    default:
        break;
    }
    tsr__rope_int(rope, F_ATTRIBUTE_TYPE, attr->kind);
    tsr__rope_end(rope, mark);
}

// Writes an attribute. There are three cases: it has bytes from the file and graphs; it has bytes
// from the file but no graphs (a renamed copy or a shortened list); an API call created it, so it
// has no bytes.
static void emit_attr(struct rope *rope, uint32_t number, void *data)
{
    const tsr_attr *attr = data;
    static const uint32_t name_field = F_ATTRIBUTE_NAME;
    struct str origin = tsr__attr_body(attr);
    PARTS(parts, rope->arena);
    if (attr->n_graphs && origin.n) {
        write_attr_graphs(rope, number, attr, origin);
    } else if (origin.n) {
        tsr__part_text(&parts, F_ATTRIBUTE_NAME, attr->name);
        tsr__parts_write(rope, number, origin, &name_field, 1, &parts);
    } else {
        write_new_attr(rope, number, attr);
    }
}

// ---- nodes ----------------------------------------------------------------------------------

static size_t slot_count(const tsr_node *node, uint32_t number)
{
    return number == F_NODE_OUTPUT ? node->n_outputs : node->n_inputs;
}

// Returns the name of an input or output; "" for an omitted one.
static struct str slot_name(const tsr_node *node, uint32_t number, size_t i)
{
    const tsr_value *value = number == F_NODE_OUTPUT ? node->outputs[i] : node->inputs[i].value;
    return value && value->name.n ? value->name : STR("");
}

// True if the names in the fields `number` of `origin` are those of the node.
static bool same_names(struct str origin, uint32_t number, const tsr_node *node)
{
    size_t i = 0, count = slot_count(node, number);
    struct wire_cursor cursor = wire_over(origin);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        if (i == count || !str_eq(field.bytes, slot_name(node, number, i)))
            return false;
        i++;
    }
    return i == count;
}

// Adds the names of all inputs or outputs of a node. Omitted slots are written as "".
static void parts_of_slots(struct part_list *parts, const tsr_node *node, uint32_t number)
{
    for (size_t i = 0; i < slot_count(node, number); i++)
        tsr__part_text(parts, number, slot_name(node, number, i));
}

// Adds name, operator and domain of a new node. An empty name or domain is left out.
static void parts_of_head(struct part_list *parts, const tsr_node *node, uint32_t *managed,
                          size_t *count)
{
    managed[(*count)++] = F_NODE_NAME;
    managed[(*count)++] = F_NODE_OP_TYPE;
    managed[(*count)++] = F_NODE_DOMAIN;
    if (node->name.n)
        tsr__part_text(parts, F_NODE_NAME, node->name);
    tsr__part_text(parts, F_NODE_OP_TYPE, node->op->text);
    if (node->domain->text.n)
        tsr__part_text(parts, F_NODE_DOMAIN, node->domain->text);
}

// Finds the names of inputs and outputs that differ from the old bytes. The i-th input field is
// input i, the i-th output field is output i.
size_t tsr__node_splices(const tsr_node *node, struct str origin, struct wire_splice s[SPLICES])
{
    size_t count = 0, input = 0, output = 0;
    struct wire_cursor cursor = wire_over(origin);
    struct wire_field field;
    while ((input < node->n_inputs || output < node->n_outputs) &&
           tsr__wire_next(&cursor, &field)) {
        if (field.number > F_NODE_OUTPUT || field.type != WIRE_LEN)
            continue;
        size_t slot = field.number == F_NODE_INPUT ? input++ : output++;
        struct str name = slot_name(node, field.number, slot);
        if (str_eq(name, field.bytes))
            continue;
        if (count == SPLICES)
            return SPLICES + 1;
        s[count++] = (struct wire_splice){field.whole, field.number, name};
    }
    return count;
}

// Writes a node with renamed values. Returns false, and writes nothing, if more than SPLICES names
// differ.
static bool write_renamed(struct rope *rope, uint32_t number, const tsr_node *node,
                          struct str origin)
{
    struct wire_splice s[SPLICES];
    size_t count = tsr__node_splices(node, origin, s);
    if (count > SPLICES)
        return false;
    tsr__rope_splice(rope, number, origin, s, count);
    return true;
}

// Writes a node. If only names differ, they are replaced in the old bytes. If lists differ, only
// the changed lists are written from objects, with references for unchanged entries. A new node
// (N_NEW) is written from objects; unknown fields come from the node from which it was copied.
void tsr__emit_node(struct rope *rope, uint32_t number, void *data)
{
    tsr_node *node = data;
    uint32_t managed[9];
    size_t count = 0;
    PARTS(parts, rope->arena);
    struct str origin = tsr__field_body(node->whole);
    if (!(node->flags & N_BEYOND_NAMES) && write_renamed(rope, number, node, origin))
        return;
    bool fresh = node->flags & N_NEW;
    if (fresh || ((node->flags & N_INPUTS) && !same_names(origin, F_NODE_INPUT, node))) {
        managed[count++] = F_NODE_INPUT;
        parts_of_slots(&parts, node, F_NODE_INPUT);
    }
    if (fresh || ((node->flags & N_OUTPUTS) && !same_names(origin, F_NODE_OUTPUT, node))) {
        managed[count++] = F_NODE_OUTPUT;
        parts_of_slots(&parts, node, F_NODE_OUTPUT);
    }
    if (fresh)
        parts_of_head(&parts, node, managed, &count);
    if (fresh || (node->flags & N_ATTRIBUTES)) {
        managed[count++] = F_NODE_ATTRIBUTE;
        for (size_t i = 0; i < node->n_attrs; i++)
            tsr__part_or_emit(&parts, F_NODE_ATTRIBUTE, node->attrs[i]->whole,
                              node->attrs[i]->changed, emit_attr, node->attrs[i]);
    }
    if (fresh || (node->flags & N_CONFIGS)) {
        managed[count++] = F_NODE_DEVICE_CONFIGURATIONS;
        for (size_t i = 0; i < node->n_configs; i++)
            tsr__part_or_emit(&parts, F_NODE_DEVICE_CONFIGURATIONS, node->configs[i]->whole,
                              node->configs[i]->changed, emit_node_config, node->configs[i]);
    }
    if (node->flags & N_METADATA) {
        managed[count++] = F_NODE_METADATA_PROPS;
        tsr__parts_of_metadata(&parts, F_NODE_METADATA_PROPS, node->metadata, node->n_metadata);
    }
    tsr__parts_write(rope, number, origin, managed, count, &parts);
}

// Marks the parts of a node that contain renamed values or configurations. Called when saving: a
// value may be renamed often, but its readers are visited once.
void tsr__touch_renamed(tsr_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++)
        if (value_renamed(node->inputs[i].value))
            tsr__touch_node(node, N_INPUTS);
    for (size_t i = 0; i < node->n_outputs; i++)
        if (value_renamed(node->outputs[i]))
            tsr__touch_node(node, N_OUTPUTS);
    for (size_t i = 0; i < node->n_configs; i++) {
        tsr_node_config *nc = node->configs[i];
        if (nc->config && nc->config->renamed) {
            nc->changed = true;
            tsr__touch_node(node, N_CONFIGS);
        }
        for (size_t k = 0; k < nc->n_specs; k++)
            if (value_renamed(nc->specs[k]->value))
                tsr__spec_touch(nc->specs[k], S_NAME);
    }
}
