// SPDX-License-Identifier: Apache-2.0
// serde_training.c - names of the main graph in a model's training information, which is kept as bytes: the constants that
// are set at the start and after each step, and what its graphs read of the main one. After a value was renamed they are
// written anew; a name that such a graph defines itself is its own.
#include "ir/write.h"

struct training {
    const tsr_model *model;
    struct str body;       // of a graph, or a pair
    const struct map *own; // names that the graph defines
    uint32_t number;
};

static struct str new_name(const struct training *t, struct str name)
{
    if (t->own && tsr__map_get(t->own, name))
        return name;
    const tsr_value *v = tsr__map_get(&t->model->graph->renamed, name);
    return v ? v->name : name;
}

static struct training *part_of(struct rope *r, const struct training *t, struct wire_field f)
{
    struct training *p = ARENA_NEW(r->arena, struct training);
    if (p)
        *p = (struct training){t->model, f.bytes, t->own, f.number};
    return p;
}

// ---- what it sets ------------------------------------------------------------------------------

static void emit_binding(struct rope *r, void *data)
{
    const struct training *t = data;
    static const uint32_t managed = F_STRING_PAIR_KEY;
    PARTS(p, r->arena);
    tsr__part_text(&p, managed, new_name(t, tsr__wire_bytes(t->body, managed, NULL)));
    tsr__parts_write(r, t->number, t->body, &managed, 1, &p);
}

// ---- what its graphs read ----------------------------------------------------------------------

static void emit_node(struct rope *r, void *data)
{
    const struct training *t = data;
    static const uint32_t managed = F_NODE_INPUT;
    PARTS(p, r->arena);
    struct wire_cursor c = wire_over(t->body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        if (f.number == F_NODE_INPUT && f.type == WIRE_LEN)
            tsr__part_text(&p, F_NODE_INPUT, new_name(t, f.bytes));
    tsr__parts_write(r, F_GRAPH_NODE, t->body, &managed, 1, &p);
}

static void define(struct map *own, struct str name)
{
    void **slot = name.n ? tsr__map_at(own, name) : NULL;
    if (slot)
        *slot = own;
}

static void find_own(struct map *own, struct str body)
{
    struct wire_cursor c = wire_over(body), inside;
    struct wire_field f, g;
    while (tsr__wire_next(&c, &f)) {
        if (f.type != WIRE_LEN)
            continue;
        if (f.number == F_GRAPH_INPUT)
            define(own, tsr__wire_bytes(f.bytes, F_VALUE_INFO_NAME, NULL));
        if (f.number == F_GRAPH_INITIALIZER)
            define(own, tsr__wire_bytes(f.bytes, F_TENSOR_NAME, NULL));
        inside = wire_over(f.number == F_GRAPH_NODE ? f.bytes : STR(""));
        while (tsr__wire_next(&inside, &g))
            if (g.number == F_NODE_OUTPUT && g.type == WIRE_LEN)
                define(own, g.bytes);
    }
}

static void emit_graph(struct rope *r, void *data)
{
    struct training *t = data;
    static const uint32_t managed = F_GRAPH_NODE;
    struct map own;
    PARTS(p, r->arena);
    tsr__map_init(&own, r->arena, 0);
    find_own(&own, t->body);
    t->own = &own;
    struct wire_cursor c = wire_over(t->body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        struct training *n =
            f.number == F_GRAPH_NODE && f.type == WIRE_LEN ? part_of(r, t, f) : NULL;
        if (n)
            tsr__part_emit(&p, F_GRAPH_NODE, emit_node, n);
    }
    tsr__parts_write(r, t->number, t->body, &managed, 1, &p);
}

// ---- all of it ---------------------------------------------------------------------------------

static void emit_training(struct rope *r, void *data)
{
    struct training *t = data;
    static const uint32_t managed[] = {F_TRAINING_INITIALIZATION, F_TRAINING_ALGORITHM,
                                       F_TRAINING_INITIALIZATION_BINDING,
                                       F_TRAINING_UPDATE_BINDING};
    PARTS(p, r->arena);
    struct wire_cursor c = wire_over(t->body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        bool graph = f.number == F_TRAINING_INITIALIZATION || f.number == F_TRAINING_ALGORITHM;
        bool pair =
            f.number == F_TRAINING_INITIALIZATION_BINDING || f.number == F_TRAINING_UPDATE_BINDING;
        struct training *inner = (graph || pair) && f.type == WIRE_LEN ? part_of(r, t, f) : NULL;
        if (inner)
            tsr__part_emit(&p, f.number, graph ? emit_graph : emit_binding, inner);
    }
    tsr__parts_write(r, F_MODEL_TRAINING_INFO, t->body, managed, TSR_COUNT(managed), &p);
}

bool tsr__parts_of_training(struct parts *p, const tsr_model *m)
{
    struct wire_cursor c = wire_over(m->store->bytes);
    struct wire_field f;
    bool any = false;
    while (tsr__wire_next(&c, &f)) {
        if (f.number != F_MODEL_TRAINING_INFO || f.type != WIRE_LEN)
            continue;
        struct training *t = ARENA_NEW(p->arena, struct training);
        if (!t)
            return any;
        *t = (struct training){.model = m, .body = f.bytes};
        tsr__part_emit(p, F_MODEL_TRAINING_INFO, emit_training, t);
        any = true;
    }
    return any;
}
