// SPDX-License-Identifier: Apache-2.0
// write_graph.c - writing a graph or a function. What was not changed is referred to, what was changed is
// rewritten in its place, and names are taken from the objects at this moment.
//
// Example: one node of 1000 got a sharding. The graph is written in place: the bytes before the node's field as one
// view of the file, the node rewritten (its other fields again views), the bytes behind it as one view.
//
// Every emitter writes one field, tag and all. Graphs hold nodes (write_node.c), and nodes hold graphs in
// their attributes: these two files call each other, as deep as the model is nested.
#include "ir/serde/write.h"

// ---- types, ports, value_info ---------------------------------------------------------------

// Neither a size nor a symbol: an empty message, which is how ONNX says that nothing is known.
static void write_dim(struct rope *rope, uint32_t value_field, uint32_t param_field,
                      const tsr_dim *dim)
{
    if (dim->value >= 0)
        tsr__rope_int(rope, value_field, dim->value);
    else if (dim->symbol && dim->symbol[0])
        tsr__rope_bytes(rope, param_field, str_of(dim->symbol));
}

// A type that is no plain tensor was kept as the body of its message and is written as such. rank
// -1: no shape at all; rank 0: an empty shape.
static void write_type(struct rope *rope, const struct vtype *known_type)
{
    size_t type = tsr__rope_begin(rope, F_VALUE_INFO_TYPE);
    if (known_type->other.n) {
        tsr__rope_copy(rope, known_type->other);
    } else {
        size_t tensor = tsr__rope_begin(rope, F_TYPE_TENSOR_TYPE);
        tsr__rope_int(rope, F_TYPE_TENSOR_ELEM_TYPE, known_type->dtype);
        if (known_type->rank >= 0) {
            size_t shape = tsr__rope_begin(rope, F_TYPE_TENSOR_SHAPE);
            for (int i = 0; i < known_type->rank; i++) {
                size_t dim = tsr__rope_begin(rope, F_SHAPE_DIM);
                write_dim(rope, F_DIMENSION_DIM_VALUE, F_DIMENSION_DIM_PARAM, &known_type->dims[i]);
                tsr__rope_end(rope, dim);
            }
            tsr__rope_end(rope, shape);
        }
        tsr__rope_end(rope, tensor);
    }
    tsr__rope_end(rope, type);
}

static void emit_type(struct rope *rope, void *data)
{
    write_type(rope, data);
}

// One ValueInfo to come: which value, under which field number of the graph, over which bytes.
struct info_part {
    uint32_t number;
    tsr_value *value;
    struct str whole; // empty: new
    bool retype;      // the type in whole is not the value's
};

// The common case: one name at the front, and the rest as it was.
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

// Name and type are ours, the rest (documentation, metadata) is taken from the bytes. The type is
// left as it stands unless a call set it or another value has taken this place.
static void emit_info(struct rope *rope, void *data)
{
    struct info_part *part = data;
    static const uint32_t managed[] = {F_VALUE_INFO_NAME, F_VALUE_INFO_TYPE};
    PARTS(parts, rope->arena);
    tsr_value *value = part->value;
    if (part->whole.n && !part->retype && !(value->flags & V_TYPED) &&
        write_renamed_info(rope, part->number, tsr__field_body(part->whole), value->name))
        return;
    tsr__part_text(&parts, F_VALUE_INFO_NAME, value->name);
    bool retype = part->retype || (value->flags & V_TYPED) || !part->whole.n;
    if (retype && value->type)
        tsr__part_emit(&parts, F_VALUE_INFO_TYPE, emit_type, value->type);
    tsr__parts_write(rope, part->number, tsr__field_body(part->whole), managed, retype ? 2 : 1,
                     &parts);
}

// The type is decoded here: the emitter writes value->type, which may still be bytes.
static void part_info(struct parts *parts, uint32_t number, tsr_value *value, struct str whole,
                      bool retype)
{
    struct info_part *part = ARENA_NEW(parts->arena, struct info_part);
    if (!part)
        return;
    if (retype || !whole.n)
        tsr__type_decode(value);
    *part = (struct info_part){number, value, whole, retype};
    tsr__part_emit(parts, number, emit_info, part);
}

// number: F_GRAPH_INPUT or F_GRAPH_OUTPUT. A port of which another value has become the output
// keeps its bytes' place.
static void parts_of_ports(struct parts *parts, uint32_t number, const struct port *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool changed = at[i].replaced || (at[i].value->flags & (V_RENAMED | V_TYPED));
        if (at[i].whole.n && !changed)
            tsr__part(parts, number, at[i].whole);
        else
            part_info(parts, number, at[i].value, at[i].whole, at[i].replaced);
    }
}

// Functions list their inputs and outputs as plain names.
static void parts_of_names(struct parts *parts, uint32_t number, const struct port *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at[i].whole.n && !at[i].replaced && !(at[i].value->flags & V_RENAMED))
            tsr__part(parts, number, at[i].whole);
        else
            tsr__part_text(parts, number, at[i].value->name);
    }
}

// Value that a name in the file means: it may be called otherwise now.
static tsr_value *value_once(const tsr_graph *graph, struct str name)
{
    tsr_value *value = tsr__map_get(&graph->renamed, name);
    if (value)
        return value;
    return tsr__map_get(&graph->names, name);
}

#define GUESSES 4 // values without a declared type that may stand between two with one

// Value that a value_info is for; they mostly stand in the order of the values.
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

// First the infos of the file in their order: unchanged ones as bytes, those of removed values not at
// all. Then types that a call gave to values without an info; V_WRITTEN marks who had one.
static void parts_of_infos(struct parts *parts, uint32_t number, tsr_graph *graph)
{
    struct str bytes = graph->body;
    if (graph->infos.n)
        bytes = graph->infos;
    struct wire_cursor cursor = wire_over(bytes);
    struct wire_field field;
    tsr_value *guess = graph->values;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_LEN)
            continue;
        tsr_value *value = info_value(graph, &field, guess);
        // the next info is most likely for the next value
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
            (value->flags & V_TYPED) && !(value->flags & (V_GONE | V_WRITTEN | V_STANDIN));
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

// External data is a list of pairs of texts, numbers too.
static void write_new_tensor(struct rope *rope, const tsr_tensor *tensor, struct str name)
{
    tsr__rope_ints(rope, F_TENSOR_DIMS, tensor->dims, (size_t)tensor->rank);
    tsr__rope_int(rope, F_TENSOR_DATA_TYPE, tensor->type);
    tsr__rope_bytes(rope, F_TENSOR_NAME, name);
    if (!tensor->external) {
        if (tensor->type != TSR_STRING) // none are made here but empty ones
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

// Field numbers of the tensor's data, which raw bytes replace when external data is taken inside.
static const uint32_t tensor_data_fields[] = {
    F_TENSOR_NAME,        F_TENSOR_SEGMENT,       F_TENSOR_FLOAT_DATA,   F_TENSOR_INT32_DATA,
    F_TENSOR_STRING_DATA, F_TENSOR_INT64_DATA,    F_TENSOR_RAW_DATA,     F_TENSOR_DOUBLE_DATA,
    F_TENSOR_UINT64_DATA, F_TENSOR_EXTERNAL_DATA, F_TENSOR_DATA_LOCATION};

// With bytes: only the name is ours, or, where external or sparse data was taken inside
// (transplant.c), the data too.
static void emit_initializer(struct rope *rope, void *data)
{
    const tsr_value *value = data;
    const tsr_tensor *tensor = value->tensor;
    PARTS(parts, rope->arena);
    if (tensor->body.n) {
        size_t n_managed = 1; // the first is the name
        tsr__part_text(&parts, F_TENSOR_NAME, value->name);
        if (tensor->replaced) {
            n_managed = TSR_COUNT(tensor_data_fields);
            tsr__part_text(&parts, F_TENSOR_RAW_DATA, tensor->raw);
        }
        tsr__parts_write(rope, F_GRAPH_INITIALIZER, tensor->body, tensor_data_fields, n_managed,
                         &parts);
        return;
    }
    size_t mark = tsr__rope_begin(rope, F_GRAPH_INITIALIZER);
    write_new_tensor(rope, tensor, value->name);
    tsr__rope_end(rope, mark);
}

// Sparse ones are not in this list: they stay where they are, but for their names (emit_sparse).
static void parts_of_initializers(struct parts *parts, tsr_graph *graph)
{
    for (size_t i = 0; i < graph->initializers.n; i++) {
        tsr_value *value = graph->initializers.at[i];
        if (value->tensor->whole.n && !(value->flags & V_RENAMED))
            tsr__part(parts, F_GRAPH_INITIALIZER, value->tensor->whole);
        else
            tsr__part_emit(parts, F_GRAPH_INITIALIZER, emit_initializer, value);
    }
}

// ---- what names values without being an object: sparse initializers, quantization -----------

// A message that no object stands for, with the graph whose names it mentions.
struct renamed_part {
    tsr_graph *graph;
    struct wire_field field;
};

static struct str new_name(const tsr_graph *graph, struct str name)
{
    const tsr_value *value = tsr__map_get(&graph->renamed, name);
    if (value)
        return value->name;
    return name;
}

// The name is two messages deep. The inner one is written into a rope of its own first, and its
// bytes are the one part of the outer.
static void emit_sparse(struct rope *rope, void *data)
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
    tsr__parts_write(rope, F_GRAPH_SPARSE_INITIALIZER, part->field.bytes, &values_field, 1, &q);
}

static void emit_pair(struct rope *rope, void *data)
{
    struct renamed_part *part = data;
    static const uint32_t managed = F_STRING_PAIR_VALUE;
    PARTS(parts, rope->arena);
    struct str name = tsr__wire_bytes(part->field.bytes, F_STRING_PAIR_VALUE, NULL);
    tsr__part_text(&parts, F_STRING_PAIR_VALUE, new_name(part->graph, name));
    tsr__parts_write(rope, part->field.number, part->field.bytes, &managed, 1, &parts);
}

// A quantization annotation names tensors in two places: its own, and one in each parameter pair. Both
// follow a renaming; what else the message holds stays as bytes.
static void emit_annotation(struct rope *rope, void *data)
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
    tsr__parts_write(rope, F_GRAPH_QUANTIZATION_ANNOTATION, part->field.bytes, managed, 2, &parts);
}

// `absent` saves the walk over a large graph for fields that it is known not to have.
static void parts_renamed(struct parts *parts, tsr_graph *graph, uint32_t number,
                          void (*emit)(struct rope *, void *))
{
    if (graph->absent >> number & 1)
        return;
    struct wire_cursor cursor = wire_over(graph->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != number || field.type != WIRE_LEN)
            continue;
        struct renamed_part *part = ARENA_NEW(parts->arena, struct renamed_part);
        if (!part)
            return;
        *part = (struct renamed_part){graph, field};
        tsr__part_emit(parts, number, emit, part);
    }
}

// ---- graphs, functions ----------------------------------------------------------------------

// In the order of the list, which may be another than the file's.
static void parts_of_nodes(struct parts *parts, uint32_t number, tsr_graph *graph)
{
    for (tsr_node *node = graph->first; node; node = node->next) {
        if (!(node->flags & (N_CHANGED | N_NEW)))
            tsr__part(parts, number, node->whole);
        else if (number == F_GRAPH_NODE)
            tsr__part_emit(parts, number, tsr__emit_node, node);
        else
            tsr__part_emit(parts, number, tsr__emit_function_node, node);
    }
}

// True if every object of the graph is the field of body that it was read from, in the same order:
// then what changed can be written where it stands, without a list of parts.
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

// How far the lists of a graph are walked, and what is to be written in place of a field.
struct places {
    tsr_node *node;
    size_t initializers, inputs, outputs;
    tsr_value *info;
    void (*emit)(struct rope *rope, void *data); // NULL: nothing, the field goes
    void *data;
    struct info_part info_part;
    struct renamed_part renamed_part;
    struct str node_body;
    size_t n_splices;
    struct wire_splice splices[SPLICES];
};

// Notes what to write in case of a change, and says whether there is one.
static bool change(struct places *at, bool changed, void (*emit)(struct rope *, void *), void *data)
{
    at->emit = emit;
    at->data = data;
    return changed;
}

static void emit_spliced_node(struct rope *rope, void *data)
{
    const struct places *at = data;
    tsr__rope_splice(rope, F_GRAPH_NODE, at->node_body, at->splices, at->n_splices);
}

// Most changed nodes only have other names in them; that is seen and prepared in one look.
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

// A graph that is written in place has no types that calls set, so a new name is all that an info
// can have.
static bool change_info(struct places *at, const struct wire_field *field, tsr_value *value)
{
    if (!value || !(value->flags & V_RENAMED))
        return false;
    at->info_part = (struct info_part){field->number, value, field->whole, false};
    return change(at, true, emit_info, &at->info_part);
}

// True if something else, or nothing, is to be written for the field.
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

// Walks the fields of the file and the lists of objects side by side: the i-th node field is the
// i-th node. Stretches without a change, mostly nearly everything, become one view each.
static void write_in_place(struct rope *rope, uint32_t number, tsr_graph *graph)
{
    size_t mark = tsr__rope_begin(rope, number);
    struct places at;
    at.node = graph->first;
    at.initializers = at.inputs = at.outputs = 0;
    at.info = graph->values;
    const char *same = graph->body.p; // from here on nothing is different
    struct wire_cursor cursor = wire_over(graph->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (!changed(&at, &field, graph))
            continue;
        tsr__rope_view(rope, (struct str){same, (size_t)(field.whole.p - same)});
        if (at.emit)
            at.emit(rope, at.data);
        same = field.whole.p + field.whole.n;
    }
    tsr__rope_view(rope, (struct str){same, (size_t)(graph->body.p + graph->body.n - same)});
    tsr__rope_end(rope, mark);
}

// `managed` collects the fields that are written from the objects; all others are taken from the body
// as bytes. A field is managed if something of its kind changed, or if values have new names.
void tsr__emit_graph(struct rope *rope, uint32_t number, tsr_graph *graph)
{
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

// Reached only for functions that changed, or that came from another model: all of its lists are
// written, and unchanged entries of them are views.
void tsr__emit_function(struct rope *rope, void *data)
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
    tsr__parts_write(rope, F_MODEL_FUNCTIONS, tsr__field_body(fn->whole), managed, 4, &parts);
}
