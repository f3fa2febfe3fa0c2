// SPDX-License-Identifier: Apache-2.0
// read.c - builds the objects of a model from its bytes, which wire has checked.
//
// The parts of a graph are read in the order in which names are defined: inputs, initializers,
// nodes in file order, outputs, declared types. Subgraphs are read with their node. Annotations are
// read last, when all names are known. Attributes, types and tensors are decoded on demand
// (decode.c).
//
//     Example: nodes a: Add(x, y) -> s and b: Relu(t) -> y, in this order (unsorted), input x,
//     output s: x is defined. Reading a links x, creates the placeholder y and defines s. Reading b
//     creates the placeholder t and turns the placeholder y into its output. t stays a placeholder,
//     which the checker reports as an error.
//
// The main graph is checked node by node while it is read, when its bytes are in the cache. If the
// graph is in several pieces, which protobuf allows, they are checked first and merged. The
// diagnostics are the same.
#include "ir/internal.h"
#include "ir/serde/serde.h"

// A node with annotations, which are decoded last.
struct annotated {
    tsr_node *node;
    struct str fields; // the fields of the node from its first annotation on
};

// State of reading. `inputs` and `outputs` are the names of the current node.
struct model_reader {
    tsr_model *model;
    struct arena scratch;
    VEC(struct str) inputs;
    VEC(struct str) outputs;
    VEC(struct annotated) annotated;
    bool check;        // the contents of this graph are not yet checked
    tsr_status status; // result of the checks
};

// Checks a part of the file. The fast check comes first. If it fails, the slow one finds and
// reports the position of the error. Returns false if this or an earlier check failed.
static bool checked(struct model_reader *rd, struct str body, enum wire_message what, int depth)
{
    const tsr_model *model = rd->model;
    if (rd->status == TSR_OK && !tsr__wire_sound(body, what, depth))
        rd->status = tsr__wire_check(model->session, str_of(model->path), model->store->bytes.p,
                                     body, what, depth);
    return rd->status == TSR_OK;
}

static void read_graph(struct model_reader *rd, tsr_graph *graph, struct str body);

// ---- nodes ----------------------------------------------------------------------------------

// True if an attribute has graphs. Other attributes are decoded later.
static bool has_graph(struct str attribute)
{
    struct wire_cursor cursor = wire_over(attribute);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field))
        if ((field.number == F_ATTRIBUTE_G || field.number == F_ATTRIBUTE_GRAPHS) &&
            field.type == WIRE_LEN)
            return true;
    return false;
}

// Reads a subgraph. Subgraphs are read immediately, because their nodes use values of the enclosing
// graphs.
static tsr_graph *sub_graph(struct model_reader *rd, tsr_attr *attr, struct str body)
{
    tsr_graph *graph = tsr__graph_make(rd->model, 0);
    if (!graph)
        return NULL;
    graph->owner = attr->node;
    graph->attr = attr;
    rd->model->has_subgraphs = true;
    read_graph(rd, graph, body);
    return graph;
}

// Reads the subgraphs of an attribute. The field `g` may be in several pieces, which are merged.
// Its graph comes before those of the list `graphs`.
static void read_attr_graphs(struct model_reader *rd, tsr_attr *attr)
{
    struct str body = tsr__field_body(attr->whole);
    bool single = false;
    struct str merged = tsr__wire_merged(&rd->model->store->arena, body, F_ATTRIBUTE_G, &single);
    size_t n = tsr__wire_count(body, F_ATTRIBUTE_GRAPHS) + (single ? 1 : 0);
    if (!n)
        return;
    attr->graphs = ARENA_ARRAY(&rd->model->arena, tsr_graph *, n);
    if (!attr->graphs)
        return;
    if (single && (attr->graphs[0] = sub_graph(rd, attr, merged)))
        attr->n_graphs = 1;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_ATTRIBUTE_GRAPHS, &field)) {
        tsr_graph *graph = sub_graph(rd, attr, field.bytes);
        if (!graph)
            return;
        attr->graphs[attr->n_graphs++] = graph;
    }
}

// The fields of a node, collected before its arrays are allocated.
struct node_fields {
    struct str name, op, domain;
    size_t attrs;
    bool graphs;
    const char *annotations; // the first one, or NULL
};

// Scans the fields of a node. Names point into the file; attributes are only counted. If a singular
// field is repeated, the last one is used, as in protobuf.
static void scan_node(struct model_reader *rd, struct str body, struct node_fields *out)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    rd->inputs.n = rd->outputs.n = 0;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type != WIRE_LEN)
            continue;
        struct str *slot = NULL;
        switch (field.number) {
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
            out->graphs = out->graphs || has_graph(field.bytes);
            break;
        case F_NODE_DEVICE_CONFIGURATIONS:
            if (!out->annotations)
                out->annotations = field.whole.p;
            break;
        default:
            break;
        }
        if (slot)
            *slot = field.bytes;
    }
}

// Reads a node. Inputs are linked before outputs are defined. So a node that reads its own output
// name reads an earlier value, or a placeholder that becomes its output.
static void read_node(struct model_reader *rd, tsr_graph *graph, const struct wire_field *field)
{
    tsr_model *model = rd->model;
    struct node_fields d = {0};
    scan_node(rd, field->bytes, &d);
    if (rd->scratch.failed)
        return;
    tsr_node *node = tsr__node_make(graph, d.domain, d.op, d.name, rd->inputs.n, rd->outputs.n);
    if (!node)
        return;
    node->whole = field->whole;
    node->n_attrs = (uint32_t)d.attrs;
    for (size_t i = 0; i < node->n_inputs; i++)
        tsr__use_link(&node->inputs[i], tsr__graph_refer(graph, rd->inputs.at[i]));
    // Outputs come before the subgraphs, which use the same temporary lists.
    for (size_t i = 0; i < node->n_outputs; i++) {
        if (!rd->outputs.at[i].n)
            continue;
        node->outputs[i] = tsr__value_define(graph, rd->outputs.at[i]);
        if (node->outputs[i])
            node->outputs[i]->producer = node;
    }
    tsr__node_append(graph, node);
    if (d.graphs) {
        tsr__attrs_decode(node);
        node->flags |= N_GRAPHS;
        for (size_t i = 0; i < node->n_attrs; i++)
            if (!model->arena.failed)
                read_attr_graphs(rd, node->attrs[i]);
        tsr__node_relink(node);
    }
    if (d.annotations) {
        struct annotated *slot = vec_push(&rd->scratch, &rd->annotated);
        const char *end = field->bytes.p + field->bytes.n;
        if (slot)
            *slot = (struct annotated){node, {d.annotations, (size_t)(end - d.annotations)}};
    }
}

// ---- graphs ---------------------------------------------------------------------------------

static bool has_type(struct str info)
{
    bool present = false;
    tsr__wire_bytes(info, F_VALUE_INFO_TYPE, &present);
    return present;
}

// Allocates a list of exact size. Returns false if out of memory.
#define RESERVE(arena, v, count)                                                                   \
    ((count) == 0 || (((v)->at = tsr__arena_array(arena, count, sizeof(*(v)->at), 16)) != NULL &&  \
                      ((v)->cap = (count)) > 0))

// Adds an input to the graph. `info` is set only if the field declares a type; another ValueInfo
// may declare it instead.
static void read_input(tsr_graph *graph, struct str name, struct str whole, bool typed)
{
    tsr_value *value = tsr__value_define(graph, name);
    struct port *port = vec_push(&graph->model->arena, &graph->inputs);
    if (!value || !port)
        return;
    value->flags |= V_INPUT;
    if (typed)
        value->info = whole;
    *port = (struct port){.value = value, .whole = whole};
}

// Adds an output to the graph. An output of a subgraph may be a value of an enclosing graph. An
// output without a name gets a value of its own, so that outputs keep their indices.
static void read_output(tsr_graph *graph, struct str name, struct str whole, bool typed)
{
    tsr_value *value = tsr__graph_refer(graph, name);
    if (!value && !name.n)
        value = tsr__value_make(graph, name);
    struct port *port = vec_push(&graph->model->arena, &graph->outputs);
    if (!value || !port)
        return;
    value->n_outputs++;
    if (typed && !value->info.p)
        value->info = whole;
    *port = (struct port){.value = value, .whole = whole};
}

// Reads an initializer. Before IR version 4 every initializer is also an input, with the same
// value. A second initializer with the same name is another value, which later nodes read.
static void read_initializer(tsr_graph *graph, const struct wire_field *field)
{
    tsr_model *model = graph->model;
    struct str name = tsr__wire_bytes(field->bytes, F_TENSOR_NAME, NULL);
    tsr_value *value = tsr__graph_own(graph, name);
    if (!value || !(value->flags & V_INPUT) || value->tensor)
        value = tsr__value_define(graph, name);
    tsr_tensor *tensor = ARENA_NEW(&model->arena, tsr_tensor);
    tsr_value **slot = vec_push(&model->arena, &graph->initializers);
    if (!value || !tensor || !slot)
        return;
    *tensor =
        (tsr_tensor){.model = model, .value = value, .whole = field->whole, .body = field->bytes};
    value->tensor = tensor;
    *slot = value;
}

// Reads a sparse initializer. The name of a sparse initializer is the name of its `values`.
static void read_sparse(tsr_graph *graph, struct str body)
{
    tsr_model *model = graph->model;
    struct str values = tsr__wire_bytes(body, F_SPARSE_TENSOR_VALUES, NULL);
    struct str name = tsr__wire_bytes(values, F_TENSOR_NAME, NULL);
    tsr_value *value = tsr__graph_own(graph, name);
    if (!value || !(value->flags & V_INPUT))
        value = tsr__value_define(graph, name);
    if (!value)
        return;
    value->flags |= V_SPARSE;
    if (value->tensor || !body.n) // there is a dense one with the same name
        return;
    tsr_tensor *tensor = ARENA_NEW(&model->arena, tsr_tensor);
    tsr_value **slot = vec_push(&model->arena, &graph->sparse);
    if (!tensor || !slot)
        return;
    *tensor = (tsr_tensor){.model = model, .value = value, .sparse = body};
    value->tensor = tensor;
    *slot = value;
}

// The range of bytes that contains all fields of one number. The fields are mostly adjacent.
struct run {
    size_t n;
    const char *start, *end;
};

#define RUNS (F_GRAPH_METADATA_PROPS + 1)

static struct str run_bytes(const struct run *run)
{
    return run->n ? (struct str){run->start, (size_t)(run->end - run->start)} : STR("");
}

// Extends the range of bytes in which fields of this number are. Other fields may be in between;
// tsr__wire_next_of skips them.
static void note_run(struct run *runs, const struct wire_field *field)
{
    struct run *run = &runs[field->number];
    if (!run->n++)
        run->start = field->whole.p;
    run->end = field->whole.p + field->whole.n;
}

#define FETCH_BYTES 1024
#define DEPTH_GRAPH 1 // nesting depth of the main graph
#define DEPTH_NODE  2

// Records where the fields of each number are. Checks all but nodes, initializers and value_info,
// which are checked when they are read. Returns false, with a diagnostic, if the file is corrupt.
static bool scan_graph(struct model_reader *rd, struct str body, struct run *runs)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        __builtin_prefetch(cursor.p + FETCH_BYTES); // each step depends on the previous one
        if (field.type == WIRE_GROUP_BEGIN && rd->check &&
            !checked(rd, field.whole, WIRE_GRAPH, DEPTH_GRAPH))
            return false;
        if (field.type != WIRE_LEN || field.number >= RUNS)
            continue;
        note_run(runs, &field);
        if (!rd->check || field.number == F_GRAPH_NODE || field.number == F_GRAPH_INITIALIZER ||
            field.number == F_GRAPH_VALUE_INFO)
            continue;
        const struct wire_row *row = tsr__wire_row(WIRE_GRAPH, field.number);
        if (row && row->kind == KIND_MESSAGE &&
            !checked(rd, field.bytes, (enum wire_message)row->message, DEPTH_NODE))
            return false;
    }
    return !cursor.wrong || checked(rd, body, WIRE_GRAPH, DEPTH_GRAPH);
}

// Reads the types of inner values. A value_info for an unknown name stays in the file without an
// object.
static void read_value_infos(struct model_reader *rd, tsr_graph *graph, struct str body,
                             uint32_t number, bool check)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    tsr_value *guess = graph->values; // infos are mostly in the order of the values
    while (tsr__wire_next_of(&cursor, number, &field)) {
        if (check && !checked(rd, field.bytes, WIRE_VALUE_INFO, DEPTH_NODE))
            return;
        struct str name = tsr__wire_bytes(field.bytes, F_VALUE_INFO_NAME, NULL);
        tsr_value *value = guess;
        if (!guess || !str_eq(guess->name, name))
            value = tsr__graph_own(graph, name);
        if (!value)
            continue;
        if (!value->info.p)
            value->info = field.whole;
        guess = value->next;
    }
}

// Reads the inputs or the outputs of a graph. `number` is F_GRAPH_INPUT or F_GRAPH_OUTPUT.
static void read_ports(tsr_graph *graph, struct str body, uint32_t number)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, number, &field)) {
        struct str name = tsr__wire_bytes(field.bytes, F_VALUE_INFO_NAME, NULL);
        if (number == F_GRAPH_OUTPUT)
            read_output(graph, name, field.whole, has_type(field.bytes));
        else
            read_input(graph, name, field.whole, has_type(field.bytes));
    }
}

// Reads the initializers of a graph. scan_graph has checked the sparse initializers.
static void read_constants(struct model_reader *rd, tsr_graph *graph, const struct run *runs,
                           bool check)
{
    struct wire_cursor cursor = wire_over(run_bytes(&runs[F_GRAPH_INITIALIZER]));
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_GRAPH_INITIALIZER, &field)) {
        if (check && !checked(rd, field.bytes, WIRE_TENSOR, DEPTH_NODE))
            return;
        read_initializer(graph, &field);
    }
    cursor = wire_over(run_bytes(&runs[F_GRAPH_SPARSE_INITIALIZER]));
    while (tsr__wire_next_of(&cursor, F_GRAPH_SPARSE_INITIALIZER, &field))
        read_sparse(graph, field.bytes);
}

#define AHEAD 8 // number of nodes that are prefetched

// Prefetches the names of a node, because the map of names is larger than the caches.
static void fetch_ahead(const tsr_graph *graph, struct wire_cursor *cursor)
{
    struct wire_field node, field;
    if (!tsr__wire_next(cursor, &node) || node.number != F_GRAPH_NODE || node.type != WIRE_LEN)
        return;
    struct wire_cursor in = wire_over(node.bytes);
    bool first = true; // the first input was mostly defined just before
    while (tsr__wire_next(&in, &field) && field.number <= F_NODE_OUTPUT) {
        if (!first && field.type == WIRE_LEN)
            tsr__map_prefetch(&graph->names, field.bytes);
        first = false;
    }
}

// Reads the nodes of a graph. The cursor `ahead` is AHEAD nodes further on and prefetches names.
static void read_nodes(struct model_reader *rd, tsr_graph *graph, struct str run, bool check)
{
    struct wire_cursor cursor = wire_over(run), ahead = cursor;
    struct wire_field field;
    for (int i = 0; i < AHEAD; i++)
        fetch_ahead(graph, &ahead);
    while (rd->status == TSR_OK && !rd->model->arena.failed &&
           tsr__wire_next_of(&cursor, F_GRAPH_NODE, &field)) {
        fetch_ahead(graph, &ahead);
        if (!check || checked(rd, field.bytes, WIRE_NODE, DEPTH_NODE))
            read_node(rd, graph, &field);
    }
}

// Reads the fields in the order in which names must be known: inputs, constants, nodes, outputs,
// types.
static void read_graph(struct model_reader *rd, tsr_graph *graph, struct str body)
{
    struct arena *arena = &rd->model->arena;
    struct run run[RUNS] = {{0}};
    bool check = rd->check;
    if (!scan_graph(rd, body, run))
        return;
    rd->check = false; // subgraphs are checked as part of their node
    graph->body = body;
    graph->infos = run_bytes(&run[F_GRAPH_VALUE_INFO]);
    graph->n_fields = run[F_GRAPH_NODE].n;
    for (uint32_t number = 1; number < RUNS; number++)
        graph->absent |= (uint32_t)!run[number].n << number;
    graph->name = tsr__wire_bytes(run_bytes(&run[F_GRAPH_NAME]), F_GRAPH_NAME, NULL);
    tsr__map_init(&graph->names, arena,
                  run[F_GRAPH_NODE].n + run[F_GRAPH_INPUT].n + run[F_GRAPH_INITIALIZER].n);
    if (!RESERVE(arena, &graph->inputs, run[F_GRAPH_INPUT].n) ||
        !RESERVE(arena, &graph->outputs, run[F_GRAPH_OUTPUT].n) ||
        !RESERVE(arena, &graph->initializers, run[F_GRAPH_INITIALIZER].n))
        return;
    read_ports(graph, run_bytes(&run[F_GRAPH_INPUT]), F_GRAPH_INPUT);
    read_constants(rd, graph, run, check);
    read_nodes(rd, graph, run_bytes(&run[F_GRAPH_NODE]), check);
    read_ports(graph, run_bytes(&run[F_GRAPH_OUTPUT]), F_GRAPH_OUTPUT);
    read_value_infos(rd, graph, run_bytes(&run[F_GRAPH_VALUE_INFO]), F_GRAPH_VALUE_INFO, check);
}

// Moves all uses of the placeholder to the real value. The placeholder stays in the list of values,
// without a name.
static void bind_placeholder(tsr_value *value, tsr_value *real)
{
    tsr_graph *graph = value->home;
    while (value->last_use) {
        struct use *use = value->last_use->next;
        tsr__use_unlink(use);
        tsr__use_link(use, real);
    }
    for (size_t i = 0; i < graph->outputs.n; i++) {
        if (graph->outputs.at[i].value != value)
            continue;
        graph->outputs.at[i].value = real;
        real->n_outputs++;
        value->n_outputs--;
    }
    void **slot = tsr__map_at(&graph->names, value->name);
    if (slot && *slot == value)
        *slot = (void *)&tsr__no_value;
}

// Replaces placeholders by the values of enclosing graphs. A name that a subgraph reads may be
// defined later in an enclosing graph.
static void bind_placeholders(tsr_model *model)
{
    for (tsr_graph *graph = model->graphs; graph; graph = graph->next) {
        if (!graph->owner)
            continue;
        for (tsr_value *value = graph->values; value; value = value->next) {
            if (!(value->flags & V_PLACEHOLDER))
                continue;
            tsr_value *real = tsr__graph_lookup(graph->owner->graph, value->name);
            if (real)
                bind_placeholder(value, real);
        }
    }
}

// ---- functions, model -----------------------------------------------------------------------

static void read_opset(tsr_model *model, opset_list *list, const struct wire_field *field)
{
    struct opset *opset = vec_push(&model->arena, list);
    if (!opset)
        return;
    struct str domain = tsr__wire_bytes(field->bytes, F_OPSET_DOMAIN, NULL);
    opset->domain = tsr__keep(model, plain_domain(domain));
    opset->whole = field->whole;
    tsr__wire_int(field->bytes, F_OPSET_VERSION, &opset->version);
}

// Reads inputs, opsets, nodes and outputs of a function. A function has lists of names instead of
// ValueInfos, with other field numbers. check_around has checked it.
static void read_function_body(struct model_reader *rd, tsr_function *fn, struct str body)
{
    tsr_graph *graph = fn->graph;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next_of(&cursor, F_FUNCTION_INPUT, &field))
        read_input(graph, field.bytes, field.whole, false);
    cursor = wire_over(body);
    while (tsr__wire_next_of(&cursor, F_FUNCTION_OPSET_IMPORT, &field))
        read_opset(rd->model, &fn->opsets, &field);
    cursor = wire_over(body);
    while (tsr__wire_next_of(&cursor, F_FUNCTION_NODE, &field) && !rd->model->arena.failed)
        read_node(rd, graph, &field);
    cursor = wire_over(body);
    while (tsr__wire_next_of(&cursor, F_FUNCTION_OUTPUT, &field))
        read_output(graph, field.bytes, field.whole, false);
    read_value_infos(rd, graph, body, F_FUNCTION_VALUE_INFO, false);
}

// Reads a function. The body of a function is a graph whose `body` is the message of the function.
static void read_function(struct model_reader *rd, const struct wire_field *field)
{
    tsr_model *model = rd->model;
    tsr_function *fn = ARENA_NEW(&model->arena, tsr_function);
    tsr_function **slot = vec_push(&model->arena, &model->functions);
    if (!fn || !slot)
        return;
    *slot = fn;
    fn->model = model;
    fn->index = model->functions.n - 1;
    fn->whole = field->whole;
    fn->name = tsr__keep(model, tsr__wire_bytes(field->bytes, F_FUNCTION_NAME, NULL));
    struct str domain = tsr__wire_bytes(field->bytes, F_FUNCTION_DOMAIN, NULL);
    fn->domain = tsr__keep(model, plain_domain(domain));
    fn->overload = tsr__keep(model, tsr__wire_bytes(field->bytes, F_FUNCTION_OVERLOAD, NULL));
    fn->graph = tsr__graph_make(model, 0);
    if (!fn->graph)
        return;
    fn->graph->function = fn;
    fn->graph->name = fn->name;
    fn->graph->body = field->bytes;
    read_function_body(rd, fn, field->bytes);
}

static void read_config(tsr_model *model, const struct wire_field *field)
{
    tsr_config *config = ARENA_NEW(&model->arena, tsr_config);
    tsr_config **slot = vec_push(&model->arena, &model->configs);
    if (!config || !slot)
        return;
    *slot = config;
    config->model = model;
    config->registered = true;
    config->whole = field->whole;
    tsr__config_decode(config, field->bytes);
    void **id = config->name.n ? tsr__map_at(&model->config_ids, config->name) : NULL;
    if (id)
        *id = config; // the last one of a name is used
}

static void read_metadata(tsr_model *model, const struct wire_field *field)
{
    struct metadata *metadata = vec_push(&model->arena, &model->metadata);
    if (!metadata)
        return;
    metadata->key = tsr__keep(model, tsr__wire_bytes(field->bytes, F_STRING_PAIR_KEY, NULL));
    metadata->value = tsr__keep(model, tsr__wire_bytes(field->bytes, F_STRING_PAIR_VALUE, NULL));
    metadata->whole = field->whole;
}

// Reads the lists of a model. The graph and single fields are read elsewhere.
static void read_model_fields(struct model_reader *rd, struct str body)
{
    tsr_model *model = rd->model;
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    while (tsr__wire_next(&cursor, &field)) {
        if (field.type != WIRE_LEN)
            continue;
        switch (field.number) {
        case F_MODEL_OPSET_IMPORT:
            read_opset(model, &model->opsets, &field);
            break;
        case F_MODEL_METADATA_PROPS:
            read_metadata(model, &field);
            break;
        case F_MODEL_CONFIGURATION:
            read_config(model, &field);
            break;
        case F_MODEL_FUNCTIONS:
            read_function(rd, &field);
            break;
        default:
            break;
        }
    }
}

#define CACHE_LINE 64

// Prefetches annotations, which are no longer in the caches when they are read.
static void fetch_annotations(const struct model_reader *rd, size_t i)
{
    if (i >= rd->annotated.n)
        return;
    struct str fields = rd->annotated.at[i].fields;
    for (size_t k = 0; k < size_min(fields.n, (size_t)4 * CACHE_LINE); k += CACHE_LINE)
        __builtin_prefetch(fields.p + k);
    __builtin_prefetch(rd->annotated.at[i].node);
}

static void read_annotations(struct model_reader *rd)
{
    for (size_t i = 0; i < rd->annotated.n; i++) {
        fetch_annotations(rd, i + AHEAD);
        tsr_node *node = rd->annotated.at[i].node;
        struct wire_cursor cursor = wire_over(rd->annotated.at[i].fields);
        struct wire_field field;
        while (tsr__wire_next_of(&cursor, F_NODE_DEVICE_CONFIGURATIONS, &field)) {
            tsr_node_config *nc = tsr__node_config_make(node, NULL);
            if (!nc)
                return;
            nc->whole = field.whole;
            tsr__node_config_decode(nc, field.bytes);
        }
    }
}

// Checks everything except the main graph, which is checked while it is read (rd->check). If the
// main graph is in several pieces, it is checked here, too. Returns false, with a diagnostic, if
// the file is corrupt.
static bool check_around(struct model_reader *rd, struct str body)
{
    struct wire_cursor cursor = wire_over(body);
    struct wire_field field;
    size_t graphs = 0;
    while (tsr__wire_next(&cursor, &field)) {
        const struct wire_row *row = NULL;
        if (field.type == WIRE_LEN)
            row = tsr__wire_row(WIRE_MODEL, field.number);
        if (!row || row->kind != KIND_MESSAGE)
            continue;
        if (field.number == F_MODEL_GRAPH)
            graphs++;
        else if (!checked(rd, field.bytes, (enum wire_message)row->message, DEPTH_GRAPH))
            return false;
    }
    rd->check = graphs == 1;
    return (!cursor.wrong && rd->check) || checked(rd, body, WIRE_MODEL, 0);
}

// Reads the model. Annotations are read last, because they refer to values and configurations.
static void read_model(struct model_reader *rd, struct str body)
{
    tsr_model *model = rd->model;
    if (!check_around(rd, body))
        return;
    model->graph = tsr__graph_make(model, 0);
    if (!model->graph)
        return;
    model->has_ir_version = tsr__wire_int(body, F_MODEL_IR_VERSION, &model->ir_version);
    model->producer = tsr__keep(model, tsr__wire_bytes(body, F_MODEL_PRODUCER_NAME, NULL));
    read_graph(rd, model->graph, tsr__wire_merged(&model->store->arena, body, F_MODEL_GRAPH, NULL));
    if (rd->status != TSR_OK)
        return;
    read_model_fields(rd, body);
    bind_placeholders(model);
    read_annotations(rd);
}

// Reads the bytes of a model into objects. Out of memory is checked at the end: failed arenas
// return NULL, and the loops end early.
tsr_status tsr__serde_read(tsr_model *model)
{
    struct model_reader rd = {.model = model};
    tsr__arena_init(&rd.scratch, model->session);
    read_model(&rd, model->store->bytes);
    if (rd.status == TSR_OK &&
        (model->arena.failed || model->store->arena.failed || rd.scratch.failed))
        rd.status = TSR_NOMEM;
    tsr__arena_free(&rd.scratch);
    return rd.status;
}
