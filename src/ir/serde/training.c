// SPDX-License-Identifier: Apache-2.0
// training.c - names of the main graph in a model's training information, which is kept as bytes: the constants that
// are set at the start and after each step, and what its graphs, and those inside them, read of the main one. After a value
// was renamed they are written anew; a name that such a graph, or one around it, defines is its own.
//
//     main graph: weight "w", renamed to "w2". Training info: update_binding {w: w_new}, algorithm graph with
//     Sub(w, g) -> w_new. Written: update_binding {w2: w_new}, Sub(w2, g) -> w_new. Had the algorithm an input
//     called w, its Sub would keep w.
#include "ir/serde/write.h"

struct scope {
    struct map own;            // names that the graph defines
    const struct scope *outer; // as deep as a file may be nested (WIRE_MAX_DEPTH)
};
// One message that waits to be written: emitters get a pointer to it when its turn comes.
struct training {
    const tsr_model *model;
    struct str body; // of a graph, a pair, a node, an attribute
    const struct scope *scope;
    uint32_t number;
};

// Innermost scope first, as names are looked up.
static struct str new_name(const struct training *training, struct str name)
{
    for (const struct scope *scope = training->scope; scope; scope = scope->outer)
        if (tsr__map_get(&scope->own, name))
            return name;
    const tsr_value *value = tsr__map_get(&training->model->graph->renamed, name);
    if (value)
        return value->name;
    return name;
}

typedef void (*emitter)(struct rope *rope, void *training);

// A message inside of this one will be written by that function; none where emit is NULL, as for fields without names.
static void part_inside(struct rope *rope, struct parts *parts, const struct training *around,
                        struct wire_field field, emitter emit)
{
    if (!emit || field.type != WIRE_LEN)
        return;
    struct training *inside = ARENA_NEW(rope->arena, struct training);
    if (!inside)
        return;
    *inside = (struct training){around->model, field.bytes, around->scope, field.number};
    tsr__part_emit(parts, field.number, emit, inside);
}

// ---- what it sets ------------------------------------------------------------------------------

// The key is a value of the main graph; what it is bound to is a result of the training graph and
// keeps its name.
static void emit_binding(struct rope *rope, void *data)
{
    const struct training *training = data;
    static const uint32_t managed = F_STRING_PAIR_KEY;
    PARTS(parts, rope->arena);
    tsr__part_text(&parts, managed,
                   new_name(training, tsr__wire_bytes(training->body, managed, NULL)));
    tsr__parts_write(rope, training->number, training->body, &managed, 1, &parts);
}

// ---- what its graphs read ----------------------------------------------------------------------

static void emit_graph(struct rope *rope, void *data);

static void emit_attribute(struct rope *rope, void *data)
{
    const struct training *training = data;
    static const uint32_t managed[] = {F_ATTRIBUTE_G, F_ATTRIBUTE_GRAPHS};
    PARTS(parts, rope->arena);
    struct wire_cursor cursor = wire_over(training->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        emitter emit = NULL;
        if (field.number == F_ATTRIBUTE_G || field.number == F_ATTRIBUTE_GRAPHS)
            emit = emit_graph;
        part_inside(rope, &parts, training, field, emit);
    }
    tsr__parts_write(rope, F_NODE_ATTRIBUTE, training->body, managed, TSR_COUNT(managed), &parts);
}

// Outputs are the graph's own names and stay.
static void emit_node(struct rope *rope, void *data)
{
    const struct training *training = data;
    static const uint32_t managed[] = {F_NODE_INPUT, F_NODE_ATTRIBUTE};
    PARTS(parts, rope->arena);
    struct wire_cursor cursor = wire_over(training->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number == F_NODE_INPUT && field.type == WIRE_LEN)
            tsr__part_text(&parts, F_NODE_INPUT, new_name(training, field.bytes));
        if (field.number == F_NODE_ATTRIBUTE)
            part_inside(rope, &parts, training, field, emit_attribute);
    }
    tsr__parts_write(rope, F_GRAPH_NODE, training->body, managed, TSR_COUNT(managed), &parts);
}

// A branch may hand on what another graph made.
static void emit_output(struct rope *rope, void *data)
{
    const struct training *training = data;
    static const uint32_t managed = F_VALUE_INFO_NAME;
    PARTS(parts, rope->arena);
    struct str name = tsr__wire_bytes(training->body, managed, NULL);
    if (name.n)
        tsr__part_text(&parts, managed, new_name(training, name));
    tsr__parts_write(rope, F_GRAPH_OUTPUT, training->body, &managed, 1, &parts);
}

static void define(struct map *own, struct str name)
{
    void **slot = NULL;
    if (name.n)
        slot = tsr__map_at(own, name);
    if (slot)
        *slot = own;
}

static void define_outputs(struct map *own, struct str node)
{
    struct wire_cursor cursor = wire_over(node);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field))
        if (field.number == F_NODE_OUTPUT && field.type == WIRE_LEN)
            define(own, field.bytes);
}

// Names that the graph in these bytes defines: its inputs, its initializers, what its nodes make.
static void find_own(struct map *own, struct str body)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type != WIRE_LEN)
            continue;
        if (field.number == F_GRAPH_INPUT)
            define(own, tsr__wire_bytes(field.bytes, F_VALUE_INFO_NAME, NULL));
        if (field.number == F_GRAPH_INITIALIZER)
            define(own, tsr__wire_bytes(field.bytes, F_TENSOR_NAME, NULL));
        if (field.number == F_GRAPH_NODE)
            define_outputs(own, field.bytes);
    }
}

// The scope lives on this stack frame: all that is inside of the graph is written before it returns
// (tsr__parts_write calls the emitters).
static void emit_graph(struct rope *rope, void *data)
{
    const struct training *training = data;
    static const uint32_t managed[] = {F_GRAPH_NODE, F_GRAPH_OUTPUT};
    struct scope scope = {.outer = training->scope};
    struct training inside = {training->model, training->body, &scope, training->number};
    PARTS(parts, rope->arena);
    tsr__map_init(&scope.own, rope->arena, 0);
    find_own(&scope.own, training->body);
    struct wire_cursor cursor = wire_over(training->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        emitter emit = NULL;
        if (field.number == F_GRAPH_NODE)
            emit = emit_node;
        if (field.number == F_GRAPH_OUTPUT)
            emit = emit_output;
        part_inside(rope, &parts, &inside, field, emit);
    }
    tsr__parts_write(rope, training->number, training->body, managed, TSR_COUNT(managed), &parts);
}

// ---- all of it ---------------------------------------------------------------------------------

static void emit_training(struct rope *rope, void *data)
{
    struct training *training = data;
    static const uint32_t managed[] = {F_TRAINING_INITIALIZATION, F_TRAINING_ALGORITHM,
                                       F_TRAINING_INITIALIZATION_BINDING,
                                       F_TRAINING_UPDATE_BINDING};
    PARTS(parts, rope->arena);
    struct wire_cursor cursor = wire_over(training->body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        emitter emit = NULL;
        if (field.number == F_TRAINING_INITIALIZATION || field.number == F_TRAINING_ALGORITHM)
            emit = emit_graph;
        if (field.number == F_TRAINING_INITIALIZATION_BINDING ||
            field.number == F_TRAINING_UPDATE_BINDING)
            emit = emit_binding;
        part_inside(rope, &parts, training, field, emit);
    }
    tsr__parts_write(rope, F_MODEL_TRAINING_INFO, training->body, managed, TSR_COUNT(managed),
                     &parts);
}

// Called only where something was renamed: else the field is not managed and stays as it is.
bool tsr__parts_of_training(struct parts *parts, const tsr_model *model)
{
    struct wire_cursor cursor = wire_over(model->store->bytes);
    struct wire_field field;
    bool any = false;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.number != F_MODEL_TRAINING_INFO || field.type != WIRE_LEN)
            continue;
        struct training *training = ARENA_NEW(parts->arena, struct training);
        if (!training)
            return any;
        *training = (struct training){.model = model, .body = field.bytes};
        tsr__part_emit(parts, F_MODEL_TRAINING_INFO, emit_training, training);
        any = true;
    }
    return any;
}
