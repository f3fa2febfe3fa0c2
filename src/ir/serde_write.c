// SPDX-License-Identifier: Apache-2.0
// serde_write.c - objects -> bytes. What was not changed is referred to, what was changed is
// rewritten in its place, and names are taken from the objects at this moment.
//
// Every emitter writes one field, tag and all. A message that came from a file goes through
// tsr__rope_rewrite with the parts that may have changed; everything else in it stays.
#include "ir/serde.h"
#include "ir/write.h"

// ---- small parts ----------------------------------------------------------------------------

void tsr__parts_reserve(struct parts *p, size_t n)
{
    if (n <= p->cap - p->n)
        return;
    struct wire_part *at = ARENA_ARRAY(p->arena, struct wire_part, p->n + n);
    if (!at)
        return;
    memcpy(at, p->at, p->n * sizeof *at);
    p->at = at;
    p->cap = p->n + n;
}

struct wire_part *tsr__part(struct parts *p, uint32_t number, struct str span)
{
    struct wire_part *q = vec_push(p->arena, p);
    if (q)
        *q = (struct wire_part){.number = number, .span = span};
    return q;
}

void tsr__part_emit(struct parts *p, uint32_t number, void (*emit)(struct rope *, void *),
                    void *data)
{
    struct wire_part *q = tsr__part(p, number, (struct str){NULL, 0});
    if (q) {
        q->emit = emit;
        q->data = data;
    }
}

void tsr__part_text(struct parts *p, uint32_t number, struct str text)
{
    struct wire_part *q = tsr__part(p, number, text);
    if (q)
        q->text = true;
}

struct int_part {
    uint32_t number;
    int64_t value;
};

static void emit_int(struct rope *r, void *data)
{
    struct int_part *t = data;
    tsr__rope_int(r, t->number, t->value);
}

void tsr__part_int(struct parts *p, uint32_t number, int64_t value)
{
    struct int_part *t = ARENA_NEW(p->arena, struct int_part);
    if (!t)
        return;
    *t = (struct int_part){number, value};
    tsr__part_emit(p, number, emit_int, t);
}

void tsr__parts_keep(struct parts *p, struct str origin, uint32_t number)
{
    struct wire_cursor c = wire_over(origin);
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        if (f.number == number)
            tsr__part(p, number, f.whole);
}

void tsr__parts_write(struct rope *r, uint32_t number, struct str origin, const uint32_t *managed,
                      size_t n, const struct parts *p)
{
    size_t mark = tsr__rope_begin(r, number);
    tsr__rope_rewrite(r, origin, managed, n, p->at, p->n);
    tsr__rope_end(r, mark);
}

// ---- types, ports, value_info ---------------------------------------------------------------

static void write_dim(struct rope *r, uint32_t value_field, uint32_t param_field, const tsr_dim *d)
{
    if (d->value >= 0)
        tsr__rope_int(r, value_field, d->value);
    else if (d->symbol && d->symbol[0])
        tsr__rope_bytes(r, param_field, str_of(d->symbol));
}

static void write_type(struct rope *r, const struct vtype *t)
{
    size_t type = tsr__rope_begin(r, F_VALUE_INFO_TYPE);
    if (t->other.n) {
        tsr__rope_copy(r, t->other);
    } else {
        size_t tensor = tsr__rope_begin(r, F_TYPE_TENSOR_TYPE);
        tsr__rope_int(r, F_TYPE_TENSOR_ELEM_TYPE, t->dtype);
        if (t->rank >= 0) {
            size_t shape = tsr__rope_begin(r, F_TYPE_TENSOR_SHAPE);
            for (int i = 0; i < t->rank; i++) {
                size_t dim = tsr__rope_begin(r, F_SHAPE_DIM);
                write_dim(r, F_DIMENSION_DIM_VALUE, F_DIMENSION_DIM_PARAM, &t->dims[i]);
                tsr__rope_end(r, dim);
            }
            tsr__rope_end(r, shape);
        }
        tsr__rope_end(r, tensor);
    }
    tsr__rope_end(r, type);
}

static void emit_type(struct rope *r, void *data)
{
    write_type(r, data);
}

struct info_part {
    uint32_t number;
    tsr_value *value;
    struct str whole; // empty: new
    bool retype;      // the type in whole is not the value's
};

// The common case: one name at the front, and the rest as it was.
static bool write_renamed_info(struct rope *r, uint32_t number, struct str origin, struct str name)
{
    struct wire_cursor c = wire_over(origin), rest;
    struct wire_field f, g;
    if (!tsr__wire_next(&c, &f) || f.number != F_VALUE_INFO_NAME || f.type != WIRE_LEN)
        return false;
    for (rest = c; tsr__wire_next(&rest, &g);)
        if (g.number == F_VALUE_INFO_NAME)
            return false;
    struct wire_splice splice = {f.whole, F_VALUE_INFO_NAME, name.n ? name : STR("")};
    tsr__rope_splice(r, number, origin, &splice, 1);
    return true;
}

static void emit_info(struct rope *r, void *data)
{
    struct info_part *t = data;
    static const uint32_t managed[] = {F_VALUE_INFO_NAME, F_VALUE_INFO_TYPE};
    PARTS(p, r->arena);
    tsr_value *v = t->value;
    if (t->whole.n && !t->retype && !(v->flags & V_TYPED) &&
        write_renamed_info(r, t->number, tsr__field_body(t->whole), v->name))
        return;
    tsr__part_text(&p, F_VALUE_INFO_NAME, v->name);
    bool retype = t->retype || (v->flags & V_TYPED) || !t->whole.n;
    if (retype && v->type)
        tsr__part_emit(&p, F_VALUE_INFO_TYPE, emit_type, v->type);
    tsr__parts_write(r, t->number, tsr__field_body(t->whole), managed, retype ? 2 : 1, &p);
}

static void part_info(struct parts *p, uint32_t number, tsr_value *v, struct str whole, bool retype)
{
    struct info_part *t = ARENA_NEW(p->arena, struct info_part);
    if (!t)
        return;
    if (retype || !whole.n)
        tsr__type_decode(v);
    *t = (struct info_part){number, v, whole, retype};
    tsr__part_emit(p, number, emit_info, t);
}

static void parts_of_ports(struct parts *p, uint32_t number, const struct port *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool changed = at[i].replaced || (at[i].value->flags & (V_RENAMED | V_TYPED));
        if (at[i].whole.n && !changed)
            tsr__part(p, number, at[i].whole);
        else
            part_info(p, number, at[i].value, at[i].whole, at[i].replaced);
    }
}

// Functions list their inputs and outputs as plain names.
static void parts_of_names(struct parts *p, uint32_t number, const struct port *at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (at[i].whole.n && !at[i].replaced && !(at[i].value->flags & V_RENAMED))
            tsr__part(p, number, at[i].whole);
        else
            tsr__part_text(p, number, at[i].value->name);
    }
}

// Value that a name in the file means: it may be called otherwise now.
static tsr_value *value_once(const tsr_graph *g, struct str name)
{
    tsr_value *v = tsr__map_get(&g->renamed, name);
    return v ? v : tsr__map_get(&g->names, name);
}

#define GUESSES 4 // values without a declared type that may stand between two with one

// Value that a value_info is for; they mostly stand in the order of the values.
static tsr_value *info_value(const tsr_graph *g, const struct wire_field *f, tsr_value *guess)
{
    for (int i = 0; i < GUESSES && guess && guess->info.p != f->whole.p; i++)
        guess = guess->next;
    if (guess && guess->info.p == f->whole.p)
        return guess;
    return value_once(g, tsr__wire_bytes(f->bytes, F_VALUE_INFO_NAME, NULL));
}

static bool is_port(const tsr_value *v)
{
    return (v->flags & V_INPUT) || v->n_outputs;
}

static void parts_of_infos(struct parts *p, uint32_t number, tsr_graph *g)
{
    struct wire_cursor c = wire_over(g->infos.n ? g->infos : g->body);
    struct wire_field f;
    tsr_value *guess = g->values;
    while (tsr__wire_next(&c, &f)) {
        if (f.number != number || f.type != WIRE_LEN)
            continue;
        tsr_value *v = info_value(g, &f, guess);
        guess = v && v != &tsr__no_value ? v->next : guess;
        if (!v || !(v->flags & (V_RENAMED | V_TYPED | V_NEW | V_GONE))) {
            tsr__part(p, number, f.whole);
        } else if (!(v->flags & V_GONE) && (!(v->flags & V_NEW) || (v->flags & V_TYPED))) {
            v->flags |= V_WRITTEN;
            part_info(p, number, v, f.whole, false);
        }
    }
    for (tsr_value *v = g->values; v; v = v->next) {
        bool wanted = (v->flags & V_TYPED) && !(v->flags & (V_GONE | V_WRITTEN | V_STANDIN));
        if (wanted && v->type && v->name.n && (g->function || !is_port(v)))
            part_info(p, number, v, (struct str){NULL, 0}, false);
        v->flags &= ~(uint32_t)V_WRITTEN;
    }
}

// ---- initializers ---------------------------------------------------------------------------

static void write_external(struct rope *r, const char *key, struct str value)
{
    size_t mark = tsr__rope_begin(r, F_TENSOR_EXTERNAL_DATA);
    tsr__rope_bytes(r, F_STRING_PAIR_KEY, str_of(key));
    tsr__rope_bytes(r, F_STRING_PAIR_VALUE, value);
    tsr__rope_end(r, mark);
}

static void write_new_tensor(struct rope *r, const tsr_tensor *t, struct str name)
{
    tsr__rope_ints(r, F_TENSOR_DIMS, t->dims, (size_t)t->rank);
    tsr__rope_int(r, F_TENSOR_DATA_TYPE, t->type);
    tsr__rope_bytes(r, F_TENSOR_NAME, name);
    if (!t->external) {
        if (t->type != TSR_STRING) // none are made here but empty ones
            tsr__rope_bytes(r, F_TENSOR_RAW_DATA, t->raw);
        return;
    }
    struct str offset = tsr__arena_printf(r->arena, "%llu", (unsigned long long)t->offset);
    struct str length = tsr__arena_printf(r->arena, "%llu", (unsigned long long)t->length);
    write_external(r, "location", t->location);
    write_external(r, "offset", offset);
    write_external(r, "length", length);
    tsr__rope_int(r, F_TENSOR_DATA_LOCATION, 1);
}

// Field numbers of the tensor's data, which raw bytes replace when external data is taken inside.
static const uint32_t tensor_data_fields[] = {
    F_TENSOR_NAME,        F_TENSOR_SEGMENT,       F_TENSOR_FLOAT_DATA,   F_TENSOR_INT32_DATA,
    F_TENSOR_STRING_DATA, F_TENSOR_INT64_DATA,    F_TENSOR_RAW_DATA,     F_TENSOR_DOUBLE_DATA,
    F_TENSOR_UINT64_DATA, F_TENSOR_EXTERNAL_DATA, F_TENSOR_DATA_LOCATION};

static void emit_initializer(struct rope *r, void *data)
{
    const tsr_value *v = data;
    const tsr_tensor *t = v->tensor;
    PARTS(p, r->arena);
    if (t->body.n) {
        tsr__part_text(&p, F_TENSOR_NAME, v->name);
        if (t->replaced)
            tsr__part_text(&p, F_TENSOR_RAW_DATA, t->raw);
        tsr__parts_write(r, F_GRAPH_INITIALIZER, t->body, tensor_data_fields,
                         t->replaced ? TSR_COUNT(tensor_data_fields) : 1, &p);
        return;
    }
    size_t mark = tsr__rope_begin(r, F_GRAPH_INITIALIZER);
    write_new_tensor(r, t, v->name);
    tsr__rope_end(r, mark);
}

static void parts_of_initializers(struct parts *p, tsr_graph *g)
{
    for (size_t i = 0; i < g->initializers.n; i++) {
        tsr_value *v = g->initializers.at[i];
        if (v->tensor->whole.n && !(v->flags & V_RENAMED))
            tsr__part(p, F_GRAPH_INITIALIZER, v->tensor->whole);
        else
            tsr__part_emit(p, F_GRAPH_INITIALIZER, emit_initializer, v);
    }
}

// ---- what names values without being an object: sparse initializers, quantization -----------

struct renamed_part {
    tsr_graph *graph;
    struct wire_field field;
};

static struct str new_name(const tsr_graph *g, struct str name)
{
    const tsr_value *v = tsr__map_get(&g->renamed, name);
    return v ? v->name : name;
}

static void emit_sparse(struct rope *r, void *data)
{
    struct renamed_part *t = data;
    static const uint32_t name_field = F_TENSOR_NAME, values_field = F_SPARSE_TENSOR_VALUES;
    struct str values = tsr__wire_bytes(t->field.bytes, F_SPARSE_TENSOR_VALUES, NULL);
    struct str name = tsr__wire_bytes(values, F_TENSOR_NAME, NULL);
    struct rope inner;
    tsr__rope_init(&inner, r->arena);
    PARTS(p, r->arena);
    PARTS(q, r->arena);
    tsr__part_text(&p, F_TENSOR_NAME, new_name(t->graph, name));
    tsr__parts_write(&inner, F_SPARSE_TENSOR_VALUES, values, &name_field, 1, &p);
    tsr__part(&q, F_SPARSE_TENSOR_VALUES, tsr__rope_flat(&inner, r->arena));
    tsr__parts_write(r, F_GRAPH_SPARSE_INITIALIZER, t->field.bytes, &values_field, 1, &q);
}

static void emit_pair(struct rope *r, void *data)
{
    struct renamed_part *t = data;
    static const uint32_t managed = F_STRING_PAIR_VALUE;
    PARTS(p, r->arena);
    struct str name = tsr__wire_bytes(t->field.bytes, F_STRING_PAIR_VALUE, NULL);
    tsr__part_text(&p, F_STRING_PAIR_VALUE, new_name(t->graph, name));
    tsr__parts_write(r, t->field.number, t->field.bytes, &managed, 1, &p);
}

static void emit_annotation(struct rope *r, void *data)
{
    struct renamed_part *t = data;
    static const uint32_t managed[] = {F_ANNOTATION_TENSOR_NAME,
                                       F_ANNOTATION_QUANT_PARAMETER_TENSOR_NAMES};
    PARTS(p, r->arena);
    struct wire_cursor c = wire_over(t->field.bytes);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (f.type != WIRE_LEN)
            continue;
        struct renamed_part *pair = NULL;
        if (f.number == F_ANNOTATION_TENSOR_NAME)
            tsr__part_text(&p, f.number, new_name(t->graph, f.bytes));
        else if (f.number == F_ANNOTATION_QUANT_PARAMETER_TENSOR_NAMES)
            pair = ARENA_NEW(r->arena, struct renamed_part);
        if (pair) {
            *pair = (struct renamed_part){t->graph, f};
            tsr__part_emit(&p, f.number, emit_pair, pair);
        }
    }
    tsr__parts_write(r, F_GRAPH_QUANTIZATION_ANNOTATION, t->field.bytes, managed, 2, &p);
}

static void parts_renamed(struct parts *p, tsr_graph *g, uint32_t number,
                          void (*emit)(struct rope *, void *))
{
    struct wire_cursor c = wire_over(g->absent >> number & 1 ? STR("") : g->body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (f.number != number || f.type != WIRE_LEN)
            continue;
        struct renamed_part *t = ARENA_NEW(p->arena, struct renamed_part);
        if (!t)
            return;
        *t = (struct renamed_part){g, f};
        tsr__part_emit(p, number, emit, t);
    }
}

// ---- graphs, functions ----------------------------------------------------------------------

static void parts_of_nodes(struct parts *p, uint32_t number, tsr_graph *g)
{
    for (tsr_node *n = g->first; n; n = n->next) {
        if (!(n->flags & (N_CHANGED | N_NEW)))
            tsr__part(p, number, n->whole);
        else
            tsr__part_emit(p, number,
                           number == F_GRAPH_NODE ? tsr__emit_node : tsr__emit_function_node, n);
    }
}

// True if every object of the graph is the field of body that it was read from, in the same order:
// then what changed can be written where it stands, without a list of parts.
bool tsr__graph_in_place(const tsr_graph *g)
{
    const uint32_t fine = G_NODES | G_RENAMED | G_OUTPUTS;
    if ((g->flags & (G_CHANGED | G_NAME | G_LIST) & ~fine) || !g->body.n ||
        g->n_nodes != g->n_fields)
        return false;
    for (size_t i = 0; i < g->outputs.n; i++)
        if (!g->outputs.at[i].whole.n || g->outputs.at[i].replaced)
            return false;
    return true;
}

// How far the lists of a graph are walked, and what is to be written in place of a field.
struct places {
    tsr_node *node;
    size_t initializers, inputs, outputs;
    tsr_value *info;
    void (*emit)(struct rope *r, void *data); // NULL: nothing, the field goes
    void *data;
    struct info_part info_part;
    struct renamed_part renamed_part;
    struct str node_body;
    size_t n_splices;
    struct wire_splice splices[SPLICES];
};

static bool change(struct places *at, bool changed, void (*emit)(struct rope *, void *), void *data)
{
    at->emit = emit;
    at->data = data;
    return changed;
}

static void emit_spliced_node(struct rope *r, void *data)
{
    const struct places *at = data;
    tsr__rope_splice(r, F_GRAPH_NODE, at->node_body, at->splices, at->n_splices);
}

// Most changed nodes only have other names in them; that is seen and prepared in one look.
static bool change_node(struct places *at, const struct wire_field *f, tsr_node *n, bool renamed)
{
    if (renamed && !(n->flags & N_BEYOND_NAMES) && !n->n_configs) {
        at->n_splices = tsr__node_splices(n, f->bytes, at->splices);
        at->node_body = f->bytes;
        if (at->n_splices <= SPLICES)
            return change(at, at->n_splices > 0, emit_spliced_node, at);
    }
    if (renamed)
        tsr__touch_renamed(n);
    return change(at, n->flags & N_CHANGED, tsr__emit_node, n);
}

static bool change_info(struct places *at, const struct wire_field *f, tsr_value *v)
{
    if (!v || !(v->flags & V_RENAMED))
        return false;
    at->info_part = (struct info_part){f->number, v, f->whole, false};
    return change(at, true, emit_info, &at->info_part);
}

// True if something else, or nothing, is to be written for f.
static bool changed(struct places *at, const struct wire_field *f, tsr_graph *g)
{
    tsr_node *n = at->node;
    tsr_value *v;
    if (f->type != WIRE_LEN)
        return false;
    switch (f->number) {
    case F_GRAPH_NODE:
        at->node = n->next;
        __builtin_prefetch(n->next);
        return change_node(at, f, n, g->model->renamed);
    case F_GRAPH_INITIALIZER:
        v = g->initializers.at[at->initializers++];
        return change(at, v->flags & V_RENAMED, emit_initializer, v);
    case F_GRAPH_INPUT:
        return change_info(at, f, g->inputs.at[at->inputs++].value);
    case F_GRAPH_OUTPUT:
        return change_info(at, f, g->outputs.at[at->outputs++].value);
    case F_GRAPH_VALUE_INFO:
        v = info_value(g, f, at->info);
        at->info = v && v != &tsr__no_value ? v->next : at->info;
        __builtin_prefetch(at->info);
        if (v && (v->flags & (V_GONE | V_NEW)))
            return change(at, true, NULL, NULL);
        return change_info(at, f, v);
    case F_GRAPH_QUANTIZATION_ANNOTATION:
    case F_GRAPH_SPARSE_INITIALIZER:
        at->renamed_part = (struct renamed_part){g, *f};
        return change(at, g->flags & G_RENAMED,
                      f->number == F_GRAPH_SPARSE_INITIALIZER ? emit_sparse : emit_annotation,
                      &at->renamed_part);
    default:
        return false;
    }
}

static void write_in_place(struct rope *r, uint32_t number, tsr_graph *g)
{
    size_t mark = tsr__rope_begin(r, number);
    struct places at;
    at.node = g->first;
    at.initializers = at.inputs = at.outputs = 0;
    at.info = g->values;
    const char *same = g->body.p; // from here on nothing is different
    struct wire_cursor c = wire_over(g->body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (!changed(&at, &f, g))
            continue;
        tsr__rope_view(r, (struct str){same, (size_t)(f.whole.p - same)});
        if (at.emit)
            at.emit(r, at.data);
        same = f.whole.p + f.whole.n;
    }
    tsr__rope_view(r, (struct str){same, (size_t)(g->body.p + g->body.n - same)});
    tsr__rope_end(r, mark);
}

void tsr__emit_graph(struct rope *r, uint32_t number, tsr_graph *g)
{
    uint32_t managed[8];
    size_t n = 0;
    PARTS(p, r->arena);
    bool renamed = g->flags & G_RENAMED;
    if (tsr__graph_in_place(g)) {
        write_in_place(r, number, g);
        return;
    }
    tsr__parts_reserve(&p, g->n_nodes + g->initializers.n + g->inputs.n + g->outputs.n);
    if (g->flags & G_NODES)
        parts_of_nodes(&p, managed[n++] = F_GRAPH_NODE, g);
    if ((g->flags & G_NAME) && g->name.n)
        tsr__part_text(&p, managed[n++] = F_GRAPH_NAME, g->name);
    if ((g->flags & G_INITIALIZERS) || renamed) {
        managed[n++] = F_GRAPH_INITIALIZER;
        parts_of_initializers(&p, g);
    }
    if ((g->flags & (G_INPUTS | G_INFOS)) || renamed)
        parts_of_ports(&p, managed[n++] = F_GRAPH_INPUT, g->inputs.at, g->inputs.n);
    if ((g->flags & (G_OUTPUTS | G_INFOS)) || renamed)
        parts_of_ports(&p, managed[n++] = F_GRAPH_OUTPUT, g->outputs.at, g->outputs.n);
    if ((g->flags & (G_INFOS | G_NODES)) || renamed)
        parts_of_infos(&p, managed[n++] = F_GRAPH_VALUE_INFO, g);
    if (renamed) {
        parts_renamed(&p, g, managed[n++] = F_GRAPH_QUANTIZATION_ANNOTATION, emit_annotation);
        parts_renamed(&p, g, managed[n++] = F_GRAPH_SPARSE_INITIALIZER, emit_sparse);
    }
    tsr__parts_write(r, number, g->body, managed, n, &p);
}

void tsr__emit_function(struct rope *r, void *data)
{
    tsr_function *fn = data;
    tsr_graph *g = fn->graph;
    static const uint32_t managed[] = {F_FUNCTION_INPUT, F_FUNCTION_OUTPUT, F_FUNCTION_NODE,
                                       F_FUNCTION_VALUE_INFO};
    PARTS(p, r->arena);
    parts_of_names(&p, F_FUNCTION_INPUT, g->inputs.at, g->inputs.n);
    parts_of_names(&p, F_FUNCTION_OUTPUT, g->outputs.at, g->outputs.n);
    parts_of_nodes(&p, F_FUNCTION_NODE, g);
    parts_of_infos(&p, F_FUNCTION_VALUE_INFO, g);
    tsr__parts_write(r, F_MODEL_FUNCTIONS, tsr__field_body(fn->whole), managed, 4, &p);
}
