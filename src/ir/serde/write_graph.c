// SPDX-License-Identifier: Apache-2.0
// write_graph.c - writes graphs and functions. Unchanged bytes are referred to, changed messages
// are rewritten in place, and names are the current names of the objects.
//
//     Example: one node of 1000 got a sharding. The graph is written in place: the bytes before the
//     node as one reference to the file, the node rewritten (its other fields are references), the
//     bytes after it as one reference.
//
// Every emitter writes one field with its tag. Graphs contain nodes and nodes contain graphs, so
// this file and write_node.c call each other recursively.
#include "ir/serde/write.h"

// ---- types, ports, value_info ---------------------------------------------------------------

// Writes a dimension. A dimension without size and symbol is an empty message.
void tsr__write_dim(struct rope *rope, uint32_t value_field, uint32_t param_field,
                    const tsr_dim *dim)
{
    if (dim->value >= 0)
        tsr__rope_int(rope, value_field, dim->value);
    else if (dim->symbol && dim->symbol[0])
        tsr__rope_bytes(rope, param_field, str_of(dim->symbol));
}

// Writes the type of a value. Types that are not tensors are kept as bytes. rank -1: no shape. rank
// 0: an empty shape.
static void emit_type(struct rope *rope, uint32_t number, void *data)
{
    const struct vtype *known_type = data;
    size_t type = tsr__rope_begin(rope, number);
    if (known_type->other.n) {
        tsr__rope_copy(rope, known_type->other);
    } else {
        size_t tensor = tsr__rope_begin(rope, F_TYPE_TENSOR_TYPE);
        tsr__rope_int(rope, F_TYPE_TENSOR_ELEM_TYPE, known_type->dtype);
        if (known_type->rank >= 0) {
            size_t shape = tsr__rope_begin(rope, F_TYPE_TENSOR_SHAPE);
            for (int i = 0; i < known_type->rank; i++) {
                size_t dim = tsr__rope_begin(rope, F_SHAPE_DIM);
                tsr__write_dim(rope, F_DIMENSION_DIM_VALUE, F_DIMENSION_DIM_PARAM,
                               &known_type->dims[i]);
                tsr__rope_end(rope, dim);
            }
            tsr__rope_end(rope, shape);
        }
        tsr__rope_end(rope, tensor);
    }
    tsr__rope_end(rope, type);
}

// A ValueInfo to write: the value and the old bytes.
struct info_part {
    tsr_value *value;
    struct str whole; // old field; empty: none
    bool retype;      // the old field has another type
};

// Writes a ValueInfo with a new name, in the common case: the name is at the front, and the rest is
// unchanged. In other cases writes nothing and returns false.
static bool write_renamed_info(struct rope *rope, uint32_t number, struct str origin,
                               struct str name)
{
    struct wire_cursor cursor = wire_over(origin), rest;
    struct wire_field field, g;
    if (!tsr__wire_next(&cursor, &field) || field.number != F_VALUE_INFO_NAME ||
        field.type != WIRE_LEN)
        return false;
    for (rest = cursor; tsr__wire_next(&rest, &g);)
        if (g.number == F_VALUE_INFO_NAME)
            return false;
    if (!name.n)
        name = STR("");
    struct wire_splice splice = {field.whole, F_VALUE_INFO_NAME, name};
    tsr__rope_splice(rope, number, origin, &splice, 1);
    return true;
}

// Writes name and type; documentation and metadata come from the old bytes. The type is unchanged
// unless an API call has set it, or the field described another value.
static void emit_info(struct rope *rope, uint32_t number, void *data)
{
    struct info_part *part = data;
    static const uint32_t managed[] = {F_VALUE_INFO_NAME, F_VALUE_INFO_TYPE};
    PARTS(parts, rope->arena);
    tsr_value *value = part->value;
    if (part->whole.n && !part->retype && !(value->flags & V_TYPED) &&
        write_renamed_info(rope, number, tsr__field_body(part->whole), value->name))
        return;
    tsr__part_text(&parts, F_VALUE_INFO_NAME, value->name);
    bool retype = part->retype || (value->flags & V_TYPED) || !part->whole.n;
    if (retype && value->type)
        tsr__part_emit(&parts, F_VALUE_INFO_TYPE, emit_type, value->type);
    tsr__parts_write(rope, number, tsr__field_body(part->whole), managed, retype ? 2 : 1, &parts);
}

static void part_info(struct part_list *parts, uint32_t number, tsr_value *value, struct str whole,
                      bool retype)
{
    struct info_part *part = ARENA_NEW(parts->arena, struct info_part);
    if (!part)
        return;
    if (retype || !whole.n)
        tsr__type_decode(value);
    *part = (struct info_part){value, whole, retype};
    tsr__part_emit(parts, number, emit_info, part);
}

// Adds the inputs or outputs of a graph. `number` is F_GRAPH_INPUT or F_GRAPH_OUTPUT.
static void parts_of_ports(struct part_list *parts, uint32_t number, const struct port *at,
                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool changed = at[i].replaced || (at[i].value->flags & (V_RENAMED | V_TYPED));
        if (at[i].whole.n && !changed)
            tsr__part(parts, number, at[i].whole);
        else
            part_info(parts, number, at[i].value, at[i].whole, at[i].replaced);
    }
}

// Adds the inputs or outputs of a function. Functions have plain names as inputs and outputs.
static void parts_of_names(struct part_list *parts, uint32_t number, const struct port *at,
                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at[i].whole.n && !at[i].replaced && !(at[i].value->flags & V_RENAMED))
            tsr__part(parts, number, at[i].whole);
        else
            tsr__part_text(parts, number, at[i].value->name);
    }
}

// Returns the value that has this name in the file; its current name may differ.
static tsr_value *value_once(const tsr_graph *graph, struct str name)
{
    tsr_value *value = tsr__map_get(&graph->renamed, name);
    return value ? value : tsr__map_get(&graph->names, name);
}

#define GUESSES 4 // number of values without a type that may be between two with a type

// Returns the value that a value_info describes. Infos are mostly in the order of the values, so
// `guess` and the values after it are tried first.
static tsr_value *info_value(const tsr_graph *graph, const struct wire_field *field,
                             tsr_value *guess)
{
    for (int i = 0; i <= GUESSES; i++) {
        if (!guess)
            break;
        if (guess->info.p == field->whole.p)
            return guess;
        guess = guess->next;
    }
    return value_once(graph, tsr__wire_bytes(field->bytes, F_VALUE_INFO_NAME, NULL));
}

static bool is_port(const tsr_value *value)
{
    return (value->flags & V_INPUT) || value->n_outputs;
}

// Adds the infos of the file in order, without those of removed values. Then adds the types that
// API calls have set on values without an info; V_WRITTEN marks values that had one.
static void parts_of_infos(struct part_list *parts, uint32_t number, tsr_graph *graph)
{
    struct str bytes = graph->infos.n ? graph->infos : graph->body;
    struct wire_cursor cursor = wire_over(bytes);
    struct wire_field field;
    tsr_value *guess = graph->values;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        tsr_value *value = info_value(graph, &field, guess);
        if (value && value != &tsr__no_value)
            guess = value->next;
        if (!value || !(value->flags & (V_RENAMED | V_TYPED | V_NEW | V_GONE))) {
            tsr__part(parts, number, field.whole);
        } else if (!(value->flags & V_GONE) &&
                   (!(value->flags & V_NEW) || (value->flags & V_TYPED))) {
            value->flags |= V_WRITTEN;
            part_info(parts, number, value, field.whole, false);
        }
    }
    for (tsr_value *value = graph->values; value; value = value->next) {
        bool wanted =
            (value->flags & V_TYPED) && !(value->flags & (V_GONE | V_WRITTEN | V_PLACEHOLDER));
        if (wanted && value->type && value->name.n && (graph->function || !is_port(value)))
            part_info(parts, number, value, (struct str){NULL, 0}, false);
        value->flags &= ~(uint32_t)V_WRITTEN;
    }
}

// ---- initializers ---------------------------------------------------------------------------

static void write_external(struct rope *rope, const char *key, struct str value)
{
    size_t mark = tsr__rope_begin(rope, F_TENSOR_EXTERNAL_DATA);
    tsr__rope_bytes(rope, F_STRING_PAIR_KEY, str_of(key));
    tsr__rope_bytes(rope, F_STRING_PAIR_VALUE, value);
    tsr__rope_end(rope, mark);
}

static void write_new_tensor(struct rope *rope, const tsr_tensor *tensor, struct str name)
{
    tsr__rope_ints(rope, F_TENSOR_DIMS, tensor->dims, (size_t)tensor->rank);
    tsr__rope_int(rope, F_TENSOR_DATA_TYPE, tensor->type);
    tsr__rope_bytes(rope, F_TENSOR_NAME, name);
    if (!tensor->external) {
        if (tensor->type != TSR_STRING) // only empty string tensors can be created
            tsr__rope_bytes(rope, F_TENSOR_RAW_DATA, tensor->raw);
        return;
    }
    struct str offset = tsr__arena_printf(rope->arena, "%llu", (unsigned long long)tensor->offset);
    struct str length = tsr__arena_printf(rope->arena, "%llu", (unsigned long long)tensor->length);
    write_external(rope, "location", tensor->location);
    write_external(rope, "offset", offset);
    write_external(rope, "length", length);
    tsr__rope_int(rope, F_TENSOR_DATA_LOCATION, 1);
}

// Fields that raw data replaces when external data is copied into the model.
static const uint32_t tensor_data_fields[] = {
    F_TENSOR_NAME,        F_TENSOR_SEGMENT,       F_TENSOR_FLOAT_DATA,   F_TENSOR_INT32_DATA,
    F_TENSOR_STRING_DATA, F_TENSOR_INT64_DATA,    F_TENSOR_RAW_DATA,     F_TENSOR_DOUBLE_DATA,
    F_TENSOR_UINT64_DATA, F_TENSOR_EXTERNAL_DATA, F_TENSOR_DATA_LOCATION};

// Writes a changed initializer. For a tensor of a file only the name is written. The data is
// written too if it was external or sparse and was copied into the model (transplant.c).
static void emit_initializer(struct rope *rope, uint32_t number, void *data)
{
    const tsr_value *value = data;
    const tsr_tensor *tensor = value->tensor;
    PARTS(parts, rope->arena);
    if (tensor->body.n) {
        size_t n_managed = 1; // F_TENSOR_NAME
        tsr__part_text(&parts, F_TENSOR_NAME, value->name);
        if (tensor->replaced) {
            n_managed = TSR_COUNT(tensor_data_fields);
            tsr__part_text(&parts, F_TENSOR_RAW_DATA, tensor->raw);
        }
        tsr__parts_write(rope, number, tensor->body, tensor_data_fields, n_managed, &parts);
        return;
    }
    size_t mark = tsr__rope_begin(rope, number);
    write_new_tensor(rope, tensor, value->name);
    tsr__rope_end(rope, mark);
}

// Adds the dense initializers of a graph. Sparse initializers are not in this list; emit_sparse
// writes them.
static void parts_of_initializers(struct part_list *parts, tsr_graph *graph)
{
    for (size_t i = 0; i < graph->initializers.n; i++) {
        tsr_value *value = graph->initializers.at[i];
        tsr__part_or_emit(parts, F_GRAPH_INITIALIZER, value->tensor->whole,
                          value->flags & V_RENAMED, emit_initializer, value);
    }
}

// ---- messages without objects that contain names: sparse initializers, quantization -------------

// A message that has no object of its own, and the graph whose names it uses.
struct renamed_part {
    tsr_graph *graph;
    struct wire_field field;
};

static struct str new_name(const tsr_graph *graph, struct str name)
{
    const tsr_value *value = tsr__map_get(&graph->renamed, name);
    return value ? value->name : name;
}

// Writes a sparse initializer with its current name. The name is in the nested message `values`, so
// that message is written to a second rope, which becomes a part of the outer message.
static void emit_sparse(struct rope *rope, uint32_t number, void *data)
{
    struct renamed_part *part = data;
    static const uint32_t name_field = F_TENSOR_NAME, values_field = F_SPARSE_TENSOR_VALUES;
    struct str values = tsr__wire_bytes(part->field.bytes, F_SPARSE_TENSOR_VALUES, NULL);
    struct str name = tsr__wire_bytes(values, F_TENSOR_NAME, NULL);
    struct rope inner;
    tsr__rope_init(&inner, rope->arena);
    PARTS(parts, rope->arena);
    PARTS(q, rope->arena);
    tsr__part_text(&parts, F_TENSOR_NAME, new_name(part->graph, name));
    tsr__parts_write(&inner, F_SPARSE_TENSOR_VALUES, values, &name_field, 1, &parts);
    tsr__part(&q, F_SPARSE_TENSOR_VALUES, tsr__rope_flat(&inner, rope->arena));
    tsr__parts_write(rope, number, part->field.bytes, &values_field, 1, &q);
}

static void emit_pair(struct rope *rope, uint32_t number, void *data)
{
    struct renamed_part *part = data;
    static const uint32_t managed = F_STRING_PAIR_VALUE;
    PARTS(parts, rope->arena);
    struct str name = tsr__wire_bytes(part->field.bytes, F_STRING_PAIR_VALUE, NULL);
    tsr__part_text(&parts, F_STRING_PAIR_VALUE, new_name(part->graph, name));
    tsr__parts_write(rope, number, part->field.bytes, &managed, 1, &parts);
}

// Writes a quantization annotation with new names. A quantization annotation names a tensor, and
// another in each parameter.
static void emit_annotation(struct rope *rope, uint32_t number, void *data)
{
    struct renamed_part *part = data;
    static const uint32_t managed[] = {F_ANNOTATION_TENSOR_NAME,
                                       F_ANNOTATION_QUANT_PARAMETER_TENSOR_NAMES};
    PARTS(parts, rope->arena);
    struct wire_cursor cursor = wire_over(part->field.bytes);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type != WIRE_LEN)
            continue;
        struct renamed_part *pair = NULL;
        if (field.number == F_ANNOTATION_TENSOR_NAME)
            tsr__part_text(&parts, field.number, new_name(part->graph, field.bytes));
        else if (field.number == F_ANNOTATION_QUANT_PARAMETER_TENSOR_NAMES)
            pair = ARENA_NEW(rope->arena, struct renamed_part);
        if (pair) {
            *pair = (struct renamed_part){part->graph, field};
            tsr__part_emit(&parts, field.number, emit_pair, pair);
        }
    }
    tsr__parts_write(rope, number, part->field.bytes, managed, 2, &parts);
}

// Adds the fields of one number, to be written with new names. graph->absent avoids reading a large
// graph for fields that it does not have.
static void parts_renamed(struct part_list *parts, tsr_graph *graph, uint32_t number, emit_fn *emit)
{
    if (graph->absent >> number & 1)
        return;
    struct wire_cursor cursor = wire_over(graph->body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        struct renamed_part *part = ARENA_NEW(parts->arena, struct renamed_part);
        if (!part)
            return;
        *part = (struct renamed_part){graph, field};
        tsr__part_emit(parts, number, emit, part);
    }
}

// ---- graphs, functions ----------------------------------------------------------------------

static void parts_of_nodes(struct part_list *parts, uint32_t number, tsr_graph *graph)
{
    for (tsr_node *node = graph->first; node; node = node->next)
        tsr__part_or_emit(parts, number, node->whole, node->flags & (N_CHANGED | N_NEW),
                          tsr__emit_node, node);
}

// True if every object of the graph corresponds to the field from which it was read, in the same
// order. Changes can then be written in place, without a list of parts.
bool tsr__graph_in_place(const tsr_graph *graph)
{
    const uint32_t fine = G_NODES | G_RENAMED | G_OUTPUTS;
    if ((graph->flags & (G_CHANGED | G_NAME | G_LIST) & ~fine) || !graph->body.n ||
        graph->n_nodes != graph->n_fields)
        return false;
    for (size_t i = 0; i < graph->outputs.n; i++)
        if (!graph->outputs.at[i].whole.n || graph->outputs.at[i].replaced)
            return false;
    return true;
}

// Positions in the lists of a graph, and the replacement for the current field.
struct places {
    tsr_node *node;
    size_t initializers, inputs, outputs;
    tsr_value *info;
    emit_fn *emit; // NULL: drop the field
    void *data;
    struct info_part info_part;
    struct renamed_part renamed_part;
    struct str node_body;
    size_t n_splices;
    struct wire_splice splices[SPLICES];
};

// Sets the function that writes the changed field, and returns `changed`.
static bool change(struct places *at, bool changed, emit_fn *emit, void *data)
{
    at->emit = emit;
    at->data = data;
    return changed;
}

static void emit_spliced_node(struct rope *rope, uint32_t number, void *data)
{
    const struct places *at = data;
    tsr__rope_splice(rope, number, at->node_body, at->splices, at->n_splices);
}

// True if the node has changed; sets how to write it. Used when the graph is written in place. Most
// changed nodes differ only in names.
static bool change_node(struct places *at, const struct wire_field *field, tsr_node *node,
                        bool renamed)
{
    if (renamed && !(node->flags & N_BEYOND_NAMES) && !node->n_configs) {
        at->n_splices = tsr__node_splices(node, field->bytes, at->splices);
        at->node_body = field->bytes;
        if (at->n_splices <= SPLICES)
            return change(at, at->n_splices > 0, emit_spliced_node, at);
    }
    if (renamed)
        tsr__touch_renamed(node);
    return change(at, node->flags & N_CHANGED, tsr__emit_node, node);
}

// True if the value of a ValueInfo was renamed; sets how to write it. If a graph is written in
// place, no API call has set a type, so only the name can differ.
static bool change_info(struct places *at, const struct wire_field *field, tsr_value *value)
{
    if (!value || !(value->flags & V_RENAMED))
        return false;
    at->info_part = (struct info_part){value, field->whole, false};
    return change(at, true, emit_info, &at->info_part);
}

// True if the field must be replaced or dropped. Sets how to write it.
static bool changed(struct places *at, const struct wire_field *field, tsr_graph *graph)
{
    tsr_node *node = at->node;
    tsr_value *value;
    if (field->type != WIRE_LEN)
        return false;
    switch (field->number) {
    case F_GRAPH_NODE:
        at->node = node->next;
        __builtin_prefetch(node->next);
        return change_node(at, field, node, graph->model->renamed);
    case F_GRAPH_INITIALIZER:
        value = graph->initializers.at[at->initializers++];
        return change(at, value->flags & V_RENAMED, emit_initializer, value);
    case F_GRAPH_INPUT:
        return change_info(at, field, graph->inputs.at[at->inputs++].value);
    case F_GRAPH_OUTPUT:
        return change_info(at, field, graph->outputs.at[at->outputs++].value);
    case F_GRAPH_VALUE_INFO:
        value = info_value(graph, field, at->info);
        if (value && value != &tsr__no_value)
            at->info = value->next;
        __builtin_prefetch(at->info);
        if (value && (value->flags & (V_GONE | V_NEW)))
            return change(at, true, NULL, NULL);
        return change_info(at, field, value);
    case F_GRAPH_QUANTIZATION_ANNOTATION:
        at->renamed_part = (struct renamed_part){graph, *field};
        return change(at, graph->flags & G_RENAMED, emit_annotation, &at->renamed_part);
    case F_GRAPH_SPARSE_INITIALIZER:
        at->renamed_part = (struct renamed_part){graph, *field};
        return change(at, graph->flags & G_RENAMED, emit_sparse, &at->renamed_part);
    default:
        return false;
    }
}

// Writes a graph in place. Reads the fields and the lists of objects in parallel: the i-th node
// field is the i-th node. Each unchanged range becomes one reference.
static void write_in_place(struct rope *rope, uint32_t number, tsr_graph *graph)
{
    size_t mark = tsr__rope_begin(rope, number);
    struct places at;
    at.node = graph->first;
    at.initializers = at.inputs = at.outputs = 0;
    at.info = graph->values;
    const char *same = graph->body.p; // start of the unchanged range
    struct wire_cursor cursor = wire_over(graph->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (!changed(&at, &field, graph))
            continue;
        tsr__rope_view(rope, (struct str){same, (size_t)(field.whole.p - same)});
        if (at.emit)
            at.emit(rope, field.number, at.data);
        same = field.whole.p + field.whole.n;
    }
    tsr__rope_view(rope, (struct str){same, (size_t)(graph->body.p + graph->body.n - same)});
    tsr__rope_end(rope, mark);
}

// Writes a graph. `managed` lists the fields that are written from objects: those in which
// something changed, and those with renamed values. All others are copied.
void tsr__emit_graph(struct rope *rope, uint32_t number, void *data)
{
    tsr_graph *graph = data;
    uint32_t managed[8];
    size_t n = 0;
    PARTS(parts, rope->arena);
    bool renamed = graph->flags & G_RENAMED;
    if (tsr__graph_in_place(graph)) {
        write_in_place(rope, number, graph);
        return;
    }
    tsr__parts_reserve(&parts,
                       graph->n_nodes + graph->initializers.n + graph->inputs.n + graph->outputs.n);
    if (graph->flags & G_NODES)
        parts_of_nodes(&parts, managed[n++] = F_GRAPH_NODE, graph);
    if ((graph->flags & G_NAME) && graph->name.n)
        tsr__part_text(&parts, managed[n++] = F_GRAPH_NAME, graph->name);
    if ((graph->flags & G_INITIALIZERS) || renamed) {
        managed[n++] = F_GRAPH_INITIALIZER;
        parts_of_initializers(&parts, graph);
    }
    if ((graph->flags & (G_INPUTS | G_INFOS)) || renamed)
        parts_of_ports(&parts, managed[n++] = F_GRAPH_INPUT, graph->inputs.at, graph->inputs.n);
    if ((graph->flags & (G_OUTPUTS | G_INFOS)) || renamed)
        parts_of_ports(&parts, managed[n++] = F_GRAPH_OUTPUT, graph->outputs.at, graph->outputs.n);
    if ((graph->flags & (G_INFOS | G_NODES)) || renamed)
        parts_of_infos(&parts, managed[n++] = F_GRAPH_VALUE_INFO, graph);
    if (renamed) {
        parts_renamed(&parts, graph, managed[n++] = F_GRAPH_QUANTIZATION_ANNOTATION,
                      emit_annotation);
        parts_renamed(&parts, graph, managed[n++] = F_GRAPH_SPARSE_INITIALIZER, emit_sparse);
    }
    tsr__parts_write(rope, number, graph->body, managed, n, &parts);
}

// Writes a function. Called only for changed functions and for functions from another model.
void tsr__emit_function(struct rope *rope, uint32_t number, void *data)
{
    tsr_function *fn = data;
    tsr_graph *graph = fn->graph;
    static const uint32_t managed[] = {F_FUNCTION_INPUT, F_FUNCTION_OUTPUT, F_FUNCTION_NODE,
                                       F_FUNCTION_VALUE_INFO};
    PARTS(parts, rope->arena);
    parts_of_names(&parts, F_FUNCTION_INPUT, graph->inputs.at, graph->inputs.n);
    parts_of_names(&parts, F_FUNCTION_OUTPUT, graph->outputs.at, graph->outputs.n);
    parts_of_nodes(&parts, F_FUNCTION_NODE, graph);
    parts_of_infos(&parts, F_FUNCTION_VALUE_INFO, graph);
    tsr__parts_write(rope, number, tsr__field_body(fn->whole), managed, 4, &parts);
}
