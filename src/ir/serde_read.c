// SPDX-License-Identifier: Apache-2.0
// serde_read.c - bytes -> objects. The whole file was checked by wire before, so nothing here can
// be damaged.
//
// One pass over each graph: inputs and initializers define their names first, then nodes in file
// order, then outputs and declared types. Subgraphs are built with their node, annotations last,
// when every name is known. Attributes, types and tensors stay bytes until somebody asks
// (serde_lazy.c).
#include "ir/internal.h"
#include "ir/serde.h"

struct reader {
    tsr_model *m;
    struct arena scratch;
    VEC(struct str) inputs;
    VEC(struct str) outputs;
    VEC(tsr_node *) annotated;
    bool check;        // the parts of this graph were not checked yet
    tsr_status status; // of the checks
};

// True if the bytes of a part are whole; the finding is added.
static bool checked(struct reader *rd, struct str body, enum wire_message what, int depth)
{
    const tsr_model *m = rd->m;
    if (rd->status == TSR_OK && !tsr__wire_sound(body, what, depth))
        rd->status = tsr__wire_check(m->session, str_of(m->path ? m->path : ""), m->store->bytes.p,
                                     body, what, depth);
    return rd->status == TSR_OK;
}

static void read_graph(struct reader *rd, tsr_graph *g, struct str body);

// ---- nodes ----------------------------------------------------------------------------------

static bool holds_graph(struct str attribute)
{
    struct wire_cursor c = wire_over(attribute);
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        if ((f.number == F_ATTRIBUTE_G || f.number == F_ATTRIBUTE_GRAPHS) && f.type == WIRE_LEN)
            return true;
    return false;
}

static tsr_graph *sub_graph(struct reader *rd, tsr_attr *a, struct str body)
{
    tsr_graph *g = tsr__graph_make(rd->m, 0);
    if (!g)
        return NULL;
    g->owner = a->node;
    g->attr = a;
    rd->m->has_subgraphs = true;
    read_graph(rd, g, body);
    return g;
}

static void read_attr_graphs(struct reader *rd, tsr_attr *a)
{
    struct str body = tsr__field_body(a->whole);
    bool single = false;
    struct str merged = tsr__wire_merged(&rd->m->store->arena, body, F_ATTRIBUTE_G, &single);
    size_t n = single ? 1 : 0;
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f))
        n += f.number == F_ATTRIBUTE_GRAPHS && f.type == WIRE_LEN;
    if (!n)
        return;
    a->graphs = ARENA_ARRAY(&rd->m->arena, tsr_graph *, n);
    if (!a->graphs)
        return;
    if (single && (a->graphs[0] = sub_graph(rd, a, merged)))
        a->n_graphs = 1;
    c = wire_over(body);
    while (tsr__wire_next(&c, &f)) {
        if (f.number != F_ATTRIBUTE_GRAPHS || f.type != WIRE_LEN)
            continue;
        tsr_graph *g = sub_graph(rd, a, f.bytes);
        if (!g)
            return;
        a->graphs[a->n_graphs++] = g;
    }
}

// What a node's fields say, gathered before the node is made because its arrays have exact sizes.
struct node_fields {
    struct str name, op, domain;
    size_t attrs;
    bool graphs, annotated;
};

static void scan_node(struct reader *rd, struct str body, struct node_fields *out)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    rd->inputs.n = rd->outputs.n = 0;
    while (tsr__wire_next(&c, &f)) {
        if (f.type != WIRE_LEN)
            continue;
        struct str *slot = NULL;
        switch (f.number) {
        case F_NODE_INPUT:
            slot = vec_push(&rd->scratch, &rd->inputs);
            break;
        case F_NODE_OUTPUT:
            slot = vec_push(&rd->scratch, &rd->outputs);
            break;
        case F_NODE_NAME:
            slot = &out->name;
            break;
        case F_NODE_OP_TYPE:
            slot = &out->op;
            break;
        case F_NODE_DOMAIN:
            slot = &out->domain;
            break;
        case F_NODE_ATTRIBUTE:
            out->attrs++;
            out->graphs = out->graphs || holds_graph(f.bytes);
            break;
        case F_NODE_DEVICE_CONFIGURATIONS:
            out->annotated = true;
            break;
        default:
            break;
        }
        if (slot)
            *slot = f.bytes;
    }
}

static void read_node(struct reader *rd, tsr_graph *g, const struct wire_field *f)
{
    tsr_model *m = rd->m;
    struct node_fields d = {0};
    scan_node(rd, f->bytes, &d);
    if (rd->scratch.failed)
        return;
    tsr_node *n = tsr__node_make(g, d.domain, d.op, d.name, rd->inputs.n, rd->outputs.n);
    if (!n)
        return;
    n->whole = f->whole;
    n->n_attrs = (uint32_t)d.attrs;
    for (size_t i = 0; i < n->n_inputs; i++)
        tsr__use_link(&n->inputs[i], tsr__graph_refer(g, rd->inputs.at[i]));
    // Before the subgraphs, because reading those uses the same scratch.
    for (size_t i = 0; i < n->n_outputs; i++) {
        if (!rd->outputs.at[i].n)
            continue;
        n->outputs[i] = tsr__value_define(g, rd->outputs.at[i]);
        if (n->outputs[i])
            n->outputs[i]->producer = n;
    }
    tsr__node_append(g, n);
    if (d.graphs) {
        tsr__attrs_decode(n);
        n->flags |= N_GRAPHS;
        for (size_t i = 0; i < n->n_attrs && !m->arena.failed; i++)
            read_attr_graphs(rd, n->attrs[i]);
        tsr__node_relink(n);
    }
    if (d.annotated) {
        tsr_node **slot = vec_push(&rd->scratch, &rd->annotated);
        if (slot)
            *slot = n;
    }
}

// ---- graphs ---------------------------------------------------------------------------------

static bool has_type(struct str info)
{
    bool present = false;
    tsr__wire_bytes(info, F_VALUE_INFO_TYPE, &present);
    return present;
}

// Reserves exact room for a list; false: out of memory.
#define RESERVE(arena, v, count)                                                                   \
    ((count) == 0 || (((v)->at = tsr__arena_array(arena, count, sizeof(*(v)->at), 16)) != NULL &&  \
                      ((v)->cap = (count)) > 0))

static void read_input(tsr_graph *g, struct str name, struct str whole, bool typed)
{
    tsr_value *v = tsr__value_define(g, name);
    struct port *p = vec_push(&g->model->arena, &g->inputs);
    if (!v || !p)
        return;
    v->flags |= V_INPUT;
    if (typed)
        v->info = whole;
    *p = (struct port){.value = v, .whole = whole};
}

static void read_output(tsr_graph *g, struct str name, struct str whole, bool typed)
{
    tsr_value *v = tsr__graph_refer(g, name);
    if (!v && !name.n)
        v = tsr__value_make(g, name);
    struct port *p = vec_push(&g->model->arena, &g->outputs);
    if (!v || !p)
        return;
    v->n_outputs++;
    if (typed && !v->info.p)
        v->info = whole;
    *p = (struct port){.value = v, .whole = whole};
}

static void read_initializer(tsr_graph *g, const struct wire_field *f)
{
    tsr_model *m = g->model;
    struct str name = tsr__wire_bytes(f->bytes, F_TENSOR_NAME, NULL);
    tsr_value *v = tsr__graph_own(g, name);
    if (!v || !(v->flags & V_INPUT) || v->tensor) // an input may have its default here
        v = tsr__value_define(g, name);
    tsr_tensor *t = ARENA_NEW(&m->arena, tsr_tensor);
    tsr_value **slot = vec_push(&m->arena, &g->initializers);
    if (!v || !t || !slot)
        return;
    *t = (tsr_tensor){.model = m, .value = v, .whole = f->whole, .body = f->bytes};
    v->tensor = t;
    *slot = v;
}

static void read_sparse(tsr_graph *g, struct str body)
{
    tsr_model *m = g->model;
    struct str values = tsr__wire_bytes(body, F_SPARSE_TENSOR_VALUES, NULL);
    struct str name = tsr__wire_bytes(values, F_TENSOR_NAME, NULL);
    tsr_value *v = tsr__graph_own(g, name);
    if (!v || !(v->flags & V_INPUT))
        v = tsr__value_define(g, name);
    if (!v)
        return;
    v->flags |= V_SPARSE;
    if (v->tensor || !body.n) // a dense one has its name too
        return;
    tsr_tensor *t = ARENA_NEW(&m->arena, tsr_tensor);
    tsr_value **slot = vec_push(&m->arena, &g->sparse);
    if (!t || !slot)
        return;
    *t = (tsr_tensor){.model = m, .value = v, .sparse = body};
    v->tensor = t;
    *slot = v;
}

// Where the fields of one number lie: mostly one stretch of a graph.
struct run {
    size_t n;
    const char *start, *end;
};

#define RUNS (F_GRAPH_METADATA_PROPS + 1)

static struct str run_bytes(const struct run *r)
{
    return r->n ? (struct str){r->start, (size_t)(r->end - r->start)} : (struct str){"", 0};
}

// Next field of that number.
static bool next_of(struct wire_cursor *c, uint32_t number, struct wire_field *f)
{
    while (tsr__wire_next(c, f))
        if (f->number == number && f->type == WIRE_LEN)
            return true;
    return false;
}

static void note_run(struct run *runs, const struct wire_field *f)
{
    struct run *r = &runs[f->number];
    if (!r->n++)
        r->start = f->whole.p;
    r->end = f->whole.p + f->whole.n;
}

#define FETCH_BYTES 1024
#define DEPTH_GRAPH 1 // of messages, below the model
#define DEPTH_NODE  2

// The heavy lists are checked one by one as they are read, the rest here.
static bool scan_graph(struct reader *rd, struct str body, struct run *runs)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        __builtin_prefetch(c.p + FETCH_BYTES);         // every step waits for the one before it
        if (f.type == WIRE_GROUP_BEGIN && rd->check && // it counts as levels from here on
            !checked(rd, f.whole, WIRE_GRAPH, DEPTH_GRAPH))
            return false;
        if (f.type != WIRE_LEN || f.number >= RUNS)
            continue;
        note_run(runs, &f);
        if (!rd->check || f.number == F_GRAPH_NODE || f.number == F_GRAPH_INITIALIZER ||
            f.number == F_GRAPH_VALUE_INFO)
            continue;
        const struct wire_row *row = tsr__wire_row(WIRE_GRAPH, f.number);
        if (row && row->kind == KIND_MESSAGE &&
            !checked(rd, f.bytes, (enum wire_message)row->message, DEPTH_NODE))
            return false;
    }
    return !c.wrong || checked(rd, body, WIRE_GRAPH, DEPTH_GRAPH);
}

static void read_value_infos(struct reader *rd, tsr_graph *g, struct str body, uint32_t number,
                             bool check)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    tsr_value *guess = g->values; // they mostly stand in the order of the values
    while (next_of(&c, number, &f)) {
        if (check && !checked(rd, f.bytes, WIRE_VALUE_INFO, DEPTH_NODE))
            return;
        struct str name = tsr__wire_bytes(f.bytes, F_VALUE_INFO_NAME, NULL);
        tsr_value *v = guess && str_eq(guess->name, name) ? guess : tsr__graph_own(g, name);
        if (!v)
            continue;
        if (!v->info.p)
            v->info = f.whole;
        guess = v->next;
    }
}

static void read_ports(tsr_graph *g, struct str body, bool outputs)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (next_of(&c, outputs ? F_GRAPH_OUTPUT : F_GRAPH_INPUT, &f)) {
        struct str name = tsr__wire_bytes(f.bytes, F_VALUE_INFO_NAME, NULL);
        if (outputs)
            read_output(g, name, f.whole, has_type(f.bytes));
        else
            read_input(g, name, f.whole, has_type(f.bytes));
    }
}

static void read_constants(struct reader *rd, tsr_graph *g, const struct run *runs, bool check)
{
    struct wire_cursor c = wire_over(run_bytes(&runs[F_GRAPH_INITIALIZER]));
    struct wire_field f;
    while (next_of(&c, F_GRAPH_INITIALIZER, &f)) {
        if (check && !checked(rd, f.bytes, WIRE_TENSOR, DEPTH_NODE))
            return;
        read_initializer(g, &f);
    }
    c = wire_over(run_bytes(&runs[F_GRAPH_SPARSE_INITIALIZER]));
    while (next_of(&c, F_GRAPH_SPARSE_INITIALIZER, &f))
        read_sparse(g, f.bytes);
}

#define AHEAD 8 // nodes between the one that is built and the one whose names are fetched

// The names that the next node defines will be looked for in a table that does not fit the caches.
static void fetch_ahead(const tsr_graph *g, struct wire_cursor *c)
{
    struct wire_field node, f;
    if (!tsr__wire_next(c, &node) || node.number != F_GRAPH_NODE || node.type != WIRE_LEN)
        return;
    struct wire_cursor in = wire_over(node.bytes);
    bool first = true; // input: mostly what was made just before
    while (tsr__wire_next(&in, &f) && f.number <= F_NODE_OUTPUT) {
        if (!first && f.type == WIRE_LEN)
            tsr__map_prefetch(&g->names, f.bytes);
        first = false;
    }
}

static void read_nodes(struct reader *rd, tsr_graph *g, struct str run, bool check)
{
    struct wire_cursor c = wire_over(run), ahead = c;
    struct wire_field f;
    for (int i = 0; i < AHEAD; i++)
        fetch_ahead(g, &ahead);
    while (rd->status == TSR_OK && !rd->m->arena.failed && next_of(&c, F_GRAPH_NODE, &f)) {
        fetch_ahead(g, &ahead);
        if (!check || checked(rd, f.bytes, WIRE_NODE, DEPTH_NODE))
            read_node(rd, g, &f);
    }
}

static void read_graph(struct reader *rd, tsr_graph *g, struct str body)
{
    struct arena *a = &rd->m->arena;
    struct run r[RUNS] = {{0}};
    bool check = rd->check;
    if (!scan_graph(rd, body, r))
        return;
    rd->check = false; // subgraphs are checked with their node
    g->body = body;
    g->infos = run_bytes(&r[F_GRAPH_VALUE_INFO]);
    g->n_fields = r[F_GRAPH_NODE].n;
    for (uint32_t number = 1; number < RUNS; number++)
        g->absent |= (uint32_t)!r[number].n << number;
    g->name = tsr__wire_bytes(run_bytes(&r[F_GRAPH_NAME]), F_GRAPH_NAME, NULL);
    tsr__map_init(&g->names, a, r[F_GRAPH_NODE].n + r[F_GRAPH_INPUT].n + r[F_GRAPH_INITIALIZER].n);
    if (!RESERVE(a, &g->inputs, r[F_GRAPH_INPUT].n) ||
        !RESERVE(a, &g->outputs, r[F_GRAPH_OUTPUT].n) ||
        !RESERVE(a, &g->initializers, r[F_GRAPH_INITIALIZER].n))
        return;
    read_ports(g, run_bytes(&r[F_GRAPH_INPUT]), false);
    read_constants(rd, g, r, check);
    read_nodes(rd, g, run_bytes(&r[F_GRAPH_NODE]), check);
    read_ports(g, run_bytes(&r[F_GRAPH_OUTPUT]), true);
    read_value_infos(rd, g, run_bytes(&r[F_GRAPH_VALUE_INFO]), F_GRAPH_VALUE_INFO, check);
}

static void bind_standin(tsr_value *v, tsr_value *w)
{
    tsr_graph *g = v->home;
    while (v->last_use) {
        struct use *u = v->last_use->next;
        tsr__use_unlink(u);
        tsr__use_link(u, w);
    }
    for (size_t i = 0; i < g->outputs.n; i++) {
        if (g->outputs.at[i].value != v)
            continue;
        g->outputs.at[i].value = w;
        w->n_outputs++;
        v->n_outputs--;
    }
    void **slot = tsr__map_at(&g->names, v->name);
    if (slot && *slot == v)
        *slot = (void *)&tsr__no_value;
}

// A name that a subgraph reads may be defined further down in an outer graph: bind it there.
static void settle_standins(tsr_model *m)
{
    for (tsr_graph *g = m->graphs; g; g = g->next)
        for (tsr_value *v = g->owner ? g->values : NULL; v; v = v->next) {
            tsr_value *w = NULL;
            if (v->flags & V_STANDIN)
                w = tsr__graph_lookup(g->owner->graph, v->name);
            if (w)
                bind_standin(v, w);
        }
}

// ---- functions, model -----------------------------------------------------------------------

static void read_opset(tsr_model *m, opset_list *list, const struct wire_field *f)
{
    struct opset *o = vec_push(&m->arena, list);
    if (!o)
        return;
    struct str domain = tsr__wire_bytes(f->bytes, F_OPSET_DOMAIN, NULL);
    o->domain = tsr__keep(m, str_is(domain, "ai.onnx") ? STR("") : domain);
    o->whole = f->whole;
    tsr__wire_int(f->bytes, F_OPSET_VERSION, &o->version);
}

static void read_function_body(struct reader *rd, tsr_function *fn, struct str body)
{
    tsr_graph *g = fn->graph;
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (f.number == F_FUNCTION_INPUT && f.type == WIRE_LEN)
            read_input(g, f.bytes, f.whole, false);
        else if (f.number == F_FUNCTION_OPSET_IMPORT && f.type == WIRE_LEN)
            read_opset(rd->m, &fn->opsets, &f);
    }
    c = wire_over(body);
    while (tsr__wire_next(&c, &f) && !rd->m->arena.failed)
        if (f.number == F_FUNCTION_NODE && f.type == WIRE_LEN)
            read_node(rd, g, &f);
    c = wire_over(body);
    while (tsr__wire_next(&c, &f))
        if (f.number == F_FUNCTION_OUTPUT && f.type == WIRE_LEN)
            read_output(g, f.bytes, f.whole, false);
    read_value_infos(rd, g, body, F_FUNCTION_VALUE_INFO, false);
}

static void read_function(struct reader *rd, const struct wire_field *f)
{
    tsr_model *m = rd->m;
    tsr_function *fn = ARENA_NEW(&m->arena, tsr_function);
    tsr_function **slot = vec_push(&m->arena, &m->functions);
    if (!fn || !slot)
        return;
    *slot = fn;
    fn->model = m;
    fn->index = m->functions.n - 1;
    fn->whole = f->whole;
    fn->name = tsr__keep(m, tsr__wire_bytes(f->bytes, F_FUNCTION_NAME, NULL));
    struct str domain = tsr__wire_bytes(f->bytes, F_FUNCTION_DOMAIN, NULL);
    fn->domain = tsr__keep(m, str_is(domain, "ai.onnx") ? STR("") : domain);
    fn->overload = tsr__keep(m, tsr__wire_bytes(f->bytes, F_FUNCTION_OVERLOAD, NULL));
    fn->graph = tsr__graph_make(m, 0);
    if (!fn->graph)
        return;
    fn->graph->function = fn;
    fn->graph->name = fn->name;
    fn->graph->body = f->bytes;
    read_function_body(rd, fn, f->bytes);
}

static void read_config(tsr_model *m, const struct wire_field *f)
{
    tsr_config *c = ARENA_NEW(&m->arena, tsr_config);
    tsr_config **slot = vec_push(&m->arena, &m->configs);
    if (!c || !slot)
        return;
    *slot = c;
    c->model = m;
    c->registered = true;
    c->whole = f->whole;
    tsr__config_decode(c, f->bytes);
    void **id = c->name.n ? tsr__map_at(&m->config_ids, c->name) : NULL;
    if (id)
        *id = c; // of two with one name the last counts
}

static void read_metadata(tsr_model *m, const struct wire_field *f)
{
    struct metadata *e = vec_push(&m->arena, &m->metadata);
    if (!e)
        return;
    e->key = tsr__keep(m, tsr__wire_bytes(f->bytes, F_STRING_PAIR_KEY, NULL));
    e->value = tsr__keep(m, tsr__wire_bytes(f->bytes, F_STRING_PAIR_VALUE, NULL));
    e->whole = f->whole;
}

static void read_model_fields(struct reader *rd, struct str body)
{
    tsr_model *m = rd->m;
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    while (tsr__wire_next(&c, &f)) {
        if (f.type != WIRE_LEN)
            continue;
        switch (f.number) {
        case F_MODEL_OPSET_IMPORT:
            read_opset(m, &m->opsets, &f);
            break;
        case F_MODEL_METADATA_PROPS:
            read_metadata(m, &f);
            break;
        case F_MODEL_CONFIGURATION:
            read_config(m, &f);
            break;
        case F_MODEL_FUNCTIONS:
            read_function(rd, &f);
            break;
        default:
            break;
        }
    }
}

static void read_annotations(struct reader *rd)
{
    for (size_t i = 0; i < rd->annotated.n; i++) {
        tsr_node *n = rd->annotated.at[i];
        struct wire_cursor c = wire_over(tsr__field_body(n->whole));
        struct wire_field f;
        while (tsr__wire_next(&c, &f)) {
            if (f.number != F_NODE_DEVICE_CONFIGURATIONS || f.type != WIRE_LEN)
                continue;
            tsr_node_config *nc = tsr__node_config_make(n, NULL);
            if (!nc)
                return;
            nc->whole = f.whole;
            tsr__node_config_decode(nc, f.bytes);
        }
    }
}

// Checks what is not the main graph, which is checked as it is read if it stands there once.
static bool check_around(struct reader *rd, struct str body)
{
    struct wire_cursor c = wire_over(body);
    struct wire_field f;
    size_t graphs = 0;
    while (tsr__wire_next(&c, &f)) {
        const struct wire_row *row =
            f.type == WIRE_LEN ? tsr__wire_row(WIRE_MODEL, f.number) : NULL;
        if (!row || row->kind != KIND_MESSAGE)
            continue;
        if (f.number == F_MODEL_GRAPH)
            graphs++;
        else if (!checked(rd, f.bytes, (enum wire_message)row->message, DEPTH_GRAPH))
            return false;
    }
    rd->check = graphs == 1;
    return (!c.wrong && rd->check) || checked(rd, body, WIRE_MODEL, 0);
}

tsr_status tsr__serde_read(tsr_model *m)
{
    struct str body = m->store->bytes;
    struct reader rd = {.m = m};
    tsr__arena_init(&rd.scratch, m->session);
    m->graph = check_around(&rd, body) ? tsr__graph_make(m, 0) : NULL;
    if (m->graph) {
        m->has_ir_version = tsr__wire_int(body, F_MODEL_IR_VERSION, &m->ir_version);
        m->producer = tsr__keep(m, tsr__wire_bytes(body, F_MODEL_PRODUCER_NAME, NULL));
        read_graph(&rd, m->graph, tsr__wire_merged(&m->store->arena, body, F_MODEL_GRAPH, NULL));
    }
    if (m->graph && rd.status == TSR_OK) {
        read_model_fields(&rd, body);
        settle_standins(m);
        read_annotations(&rd);
    }
    if (rd.status == TSR_OK && (m->arena.failed || m->store->arena.failed || rd.scratch.failed))
        rd.status = TSR_NOMEM;
    tsr__arena_free(&rd.scratch);
    return rd.status;
}
