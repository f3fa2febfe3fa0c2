// SPDX-License-Identifier: Apache-2.0
// internal.h - the structs behind the public handles, for the files of ir.
//
// All objects are in the model's arena and point to each other. An object of a file keeps the bytes
// of its field, with the tag, as a view into the store (`whole`), and flags for what changed since.
// So saving can refer to unchanged bytes. Names point into the file until a C string is requested.
#ifndef TSR_IR_INTERNAL_H
#define TSR_IR_INTERNAL_H

#include "ir/ir.h"

// ---- the bytes of files -------------------------------------------------------------------------

struct window; // a mapped range of an external file
struct opened; // an external file that is open

// The bytes of a file. A model shares its store with its clones and with models that copied
// constants from it.
struct store {
    tsr_session *session;
    size_t refs;
    const char *path; // path of the model file; NULL: from memory, or nothing was loaded
    struct mapped file;
    struct str bytes;
    struct folder folder; // folder of the model file; only if has_folder
    bool has_folder;
    struct folder more_data; // another folder with data files; only if has_more_data
    bool has_more_data;
    struct arena arena; // for merged messages and data of new constants
    struct window *windows;
    struct opened *opened;
};
struct store *tsr__store_new(tsr_session *session);
struct store *tsr__store_hold(struct store *store);
void tsr__store_drop(struct store *store);
// Adds the folder of `file`. Data files that are not in the folder of the model are searched there.
tsr_status tsr__store_add_data(struct store *store, const char *file) TSR_MUST_USE;

// A NUL-terminated string that is stored once per model (operator, domain).
struct symbol {
    struct str text;
};

// ---- objects --------------------------------------------------------------------------------

// Declared type: a tensor, or another type, which is kept as bytes.
struct vtype {
    tsr_dtype dtype;
    int rank; // -1: unknown
    tsr_dim *dims;
    struct str other; // body of another TypeProto (sequence, map, ...), or empty
};

// One input of a node. All uses of a value form a ring.
struct use {
    tsr_value *value;
    tsr_node *node;
    struct use *next, *prev; // NULL: not linked (the node was removed)
};

enum value_flag {
    V_INPUT = 1,       // an input of its graph
    V_PLACEHOLDER = 2, // a placeholder: not defined
    V_TEXT = 4,        // the name is NUL-terminated
    V_RENAMED = 8,     // renamed since it was read
    V_TYPED = 16,      // an API call has set the type
    V_NEW = 32,        // created by an API call
    V_GONE = 64,       // its node was removed
    V_SPARSE = 128,    // a sparse initializer
    V_DECODED = 256,   // the type is decoded
    V_WRITTEN = 512,   // used by the writer
};
struct tsr_value {
    struct str name;
    tsr_graph *home; // graph that defines it; for a placeholder: the graph that first read it
    tsr_node *producer;
    struct use *last_use; // last use in the ring; its `next` is the first
    uint32_t n_uses, id, n_outputs, flags;
    struct str info; // field of its ValueInfo in the file, or empty
    struct vtype *type;
    tsr_tensor *tensor;
    tsr_value *next; // next value of the graph, in order of creation
};

// N_CHANGED are the parts that differ from the file.
enum node_flag {
    N_GRAPHS = 1,
    N_GONE = 2,
    N_TEXT = 4,
    N_ATTRS = 8,        // attributes are decoded
    N_NEW = 16,         // created by an API call
    N_INPUTS = 32,      // inputs changed since the node was read
    N_OUTPUTS = 64,     // outputs changed
    N_ATTRIBUTES = 128, // attributes changed
    N_CONFIGS = 256,    // annotations changed
    N_RESIZED = 512,    // has another number of outputs than in the file
    N_METADATA = 1024,  // metadata changed; `metadata` is valid
    N_CHANGED = N_INPUTS | N_OUTPUTS | N_ATTRIBUTES | N_CONFIGS | N_METADATA,
};
struct tsr_node {
    tsr_graph *graph;
    tsr_node *next, *prev;
    struct str name;
    const struct symbol *op, *domain;
    struct str whole; // field from which it was read; with N_NEW: from which it was copied
    struct use *inputs;
    tsr_value **outputs;
    uint32_t n_inputs, n_outputs;
    tsr_attr **attrs;
    tsr_node_config **configs;
    uint32_t n_attrs, n_configs;
    uint32_t id, index, flags;
    uint32_t n_metadata;
    struct metadata *metadata; // with N_METADATA
};

struct tsr_attr {
    tsr_node *node;
    struct str name;
    struct str whole; // empty: created by an API call
    struct str ref;   // name of the referenced attribute of the function, or empty
    struct str rest;  // body of the message from which it was copied, or empty
    tsr_attr_kind kind;
    bool decoded, changed, has_value, text_ready;
    int64_t integer;
    float real;
    struct str text;
    int64_t *ints;
    size_t n_ints;
    tsr_graph **graphs;
    size_t n_graphs;
    tsr_tensor *tensor;
};

struct tsr_tensor {
    tsr_model *model;
    tsr_value *value;     // value of an initializer, else NULL
    const tsr_node *node; // node of an attribute, else NULL
    struct str whole;     // field from which it was read; empty: created by an API call
    struct str body;
    struct str sparse;   // body of a sparse tensor; `body` is then empty
    struct store *store; // store of `body`, if it belongs to another model
    tsr_status status;   // status of the last attempt to read its data
    bool decoded, external, has_raw, data_ready;
    bool absent;   // tsr__tensor_peek has failed
    bool replaced; // `raw` replaces the data of `body`
    int32_t type;  // as in the file; may be an unknown type
    int rank;
    int64_t *dims;
    struct str raw;      // raw_data, or data from an API call
    struct str location; // path of the external file, for tsr__graph_add_external
    uint64_t offset, length;
    const void *data; // result of tsr_tensor_data
    size_t bytes;
};

// A graph input or output, with the field of the file that declares it.
struct port {
    tsr_value *value;
    struct str whole;
    bool replaced; // has another value than the field
};

enum graph_flag {
    G_NODES = 1, // changed since it was read
    G_INPUTS = 2,
    G_OUTPUTS = 4,
    G_INITIALIZERS = 8,
    G_INFOS = 16,
    G_RENAMED = 32,
    G_TEXT = 64,
    G_ORDER = 128, // node indices are outdated
    G_NAME = 256,
    G_LIST = 1024, // nodes were added, removed or moved
    G_GONE = 512,  // its node or attribute was removed
    G_CHANGED = G_NODES | G_INPUTS | G_OUTPUTS | G_INITIALIZERS | G_INFOS | G_RENAMED,
};
typedef VEC(tsr_value *) value_list;
struct tsr_graph {
    tsr_model *model;
    tsr_node *owner; // node that has the graph as an attribute
    tsr_attr *attr;
    tsr_function *function;
    tsr_graph *next;    // next graph of the model
    tsr_graph *sibling; // next subgraph of the same node
    struct str name, body, path;
    // path for edits, "outer > branch"; empty: the main graph, or not yet computed
    struct str words;
    struct str infos; // range of body that contains all value_info; empty: unknown
    uint32_t absent;  // bit set of field numbers that are not in body
    size_t n_fields;  // number of nodes in body
    tsr_node *first, *last;
    size_t n_nodes;
    struct map names;   // name -> value; a removed name maps to tsr__no_value
    struct map renamed; // name in the file -> value that was renamed
    tsr_value *values, *last_value;
    VEC(struct port) inputs;
    VEC(struct port) outputs;
    value_list initializers, sparse;
    uint32_t flags;
};

struct opset {
    struct str domain; // NUL-terminated, "" for ai.onnx
    int64_t version;
    struct str whole;
    bool changed;
};
typedef VEC(struct opset) opset_list;

struct tsr_function {
    tsr_model *model;
    size_t index;
    struct str name, domain, overload; // NUL-terminated
    tsr_graph *graph;
    struct str whole;
    opset_list opsets;
    struct call_memo memo;
};

struct metadata {
    struct str key, value; // NUL-terminated
    struct str whole;
    bool changed;
};

struct tsr_config {
    tsr_model *model;
    struct str name; // NUL-terminated
    int64_t devices;
    struct str *names; // NUL-terminated
    size_t n_names;
    struct str whole;
    bool registered, placeholder, renamed;
};

enum spec_flag { S_NAME = 1, S_DEVICES = 2, S_GROUPS = 4, S_DIMS = 8, S_GONE = 16 };
struct spec_group {
    int64_t key;
    int64_t *members;
    size_t n;
    struct str whole;
};
struct spec_factor {
    tsr_dim size;
    int64_t shards;
};
struct spec_dim {
    int64_t axis;
    struct spec_factor *factors;
    size_t n;
    struct str whole;
};
struct tsr_spec {
    tsr_node_config *entry;
    tsr_value *value;
    struct str whole;
    uint32_t flags;
    VEC(int64_t) devices;
    VEC(struct spec_group) groups;
    VEC(struct spec_dim) dims;
};
struct tsr_node_config {
    tsr_node *node;
    tsr_config *config;
    struct str whole;
    bool has_stage, changed, gone;
    int64_t stage;
    tsr_spec **specs;
    uint32_t n_specs;
    uint32_t n_indexed;   // number of specs in by_value
    struct map *by_value; // value -> its first spec, for many specs; may be NULL
};

struct tsr_model {
    tsr_session *session;
    struct arena arena;
    struct store *store;
    VEC(struct store *) held; // stores of other models, from which constants were copied
    const char *path;
    int64_t ir_version;
    bool has_ir_version, ir_changed;
    bool changed;         // anything was changed
    bool renamed;         // a value or configuration was renamed
    bool devices_touched; // an API call has changed annotations
    bool annotated;       // a node has or had an annotation
    struct str producer;
    opset_list opsets;
    bool opsets_changed;
    VEC(struct metadata) metadata;
    bool metadata_changed;
    tsr_graph *graph;
    tsr_graph *graphs; // all graphs, newest first
    VEC(tsr_function *) functions;
    struct map function_names; // domain, name and overload -> function
    size_t n_functions_named;  // number of `functions` in function_names
    VEC(tsr_config *) configs;
    bool configs_changed;
    struct map lists;      // long device lists, each stored once
    struct map config_ids; // id in the file -> configuration or placeholder
    struct map symbols;
    struct map opset_index; // domain -> index in opsets, plus 1
    size_t n_opsets_indexed;
    struct map fresh; // base name -> counter
    struct map seen;  // every name that a graph has or had; without an arena: not yet collected
    const struct symbol *last_op;
    uint32_t n_node_ids, n_value_ids;
    bool has_subgraphs;
    uint64_t n_edits;           // number of edits, except of annotations and metadata
    struct derived *derived;    // see tsr__model_derived
    uint64_t derived_n_edits;   // n_edits at that time
    const tsr_node *pairs_node; // cache of tsr_node_metadata_at: the last node,
    size_t pairs_next;          // its next pair,
    struct str pairs_rest;      // and the bytes from there on
};

extern const tsr_value tsr__no_value; // value of removed names in maps

// ---- helpers (core.c) -----------------------------------------------------------------------

static inline tsr_status model_status(const tsr_model *model)
{
    return arena_status(&model->arena);
}
// Returns the enclosing graph, or NULL for the main graph and functions.
static inline tsr_graph *graph_outer(const tsr_graph *graph)
{
    return graph->owner ? graph->owner->graph : NULL;
}
// Returns the number of dimensions to allocate; the rank may be -1.
static inline size_t dims_of(int rank)
{
    return rank > 0 ? (size_t)rank : 0;
}
static inline bool value_renamed(const tsr_value *value)
{
    return value && (value->flags & V_RENAMED);
}
// Returns the store of a tensor, which may be copied from another model.
static inline struct store *tensor_store(const tsr_tensor *tensor)
{
    return tensor->store ? tensor->store : tensor->model->store;
}
// Returns the domain in its short form: "ai.onnx" is the long name of the domain "".
static inline struct str plain_domain(struct str domain)
{
    return str_is(domain, "ai.onnx") ? STR("") : domain;
}
// Returns the imports of the enclosing function, or of the model.
static inline const opset_list *graph_opsets(const tsr_graph *graph)
{
    while (graph->owner)
        graph = graph->owner->graph;
    return graph->function ? &graph->function->opsets : &graph->model->opsets;
}
// Returns the import of a domain, or NULL. If a domain is imported twice, the last import is used,
// as in ONNX Runtime and onnx.checker.
static inline const struct opset *opset_of(const opset_list *list, struct str domain)
{
    for (size_t i = list->n; i-- > 0;)
        if (str_eq(list->at[i].domain, domain))
            return &list->at[i];
    return NULL;
}
tsr_model *tsr__model_make(tsr_session *session); // no graph yet
tsr_graph *tsr__graph_make(tsr_model *model, size_t names);
// Records that a graph uses this name, so that fresh names differ from it.
void tsr__name_seen(tsr_model *model, struct str name);
const struct symbol *tsr__symbol(tsr_model *model, struct str text);
struct str tsr__keep(tsr_model *model, struct str text); // a NUL-terminated copy, never NULL

tsr_value *tsr__value_make(tsr_graph *graph, struct str name);
// Defines a value: takes the placeholder with this name, or creates a value.
tsr_value *tsr__value_define(tsr_graph *graph, struct str name);
// Defines a value for an API call; the name is copied.
tsr_value *tsr__value_new(tsr_graph *graph, struct str name);
tsr_value *tsr__graph_own(const tsr_graph *graph, struct str name); // may be a placeholder
// As above, but also searches enclosing graphs.
tsr_value *tsr__graph_lookup(const tsr_graph *graph, struct str name);
// Finds a value by name. Adds a placeholder if the graph has no such value.
tsr_value *tsr__graph_refer(tsr_graph *graph, struct str name);
void tsr__use_link(struct use *use, tsr_value *value);
void tsr__use_unlink(struct use *use); // use->value stays set
void tsr__attr_unlink(tsr_attr *attr); // unlinks all uses in its subgraphs
void tsr__node_unlink(tsr_node *node); // also unlinks the inputs of the node
void tsr__node_append(tsr_graph *graph, tsr_node *node);
tsr_node *tsr__node_make(tsr_graph *graph, struct str domain, struct str op, struct str name,
                         size_t n_inputs, size_t n_outputs);
// Copies changed metadata of a node (serde/metadata.c). Returns false if out of memory.
bool tsr__clone_metadata(tsr_node *to, const tsr_node *from);
void tsr__touch_node(tsr_node *node, uint32_t bits);
void tsr__touch_graph(tsr_graph *graph, uint32_t bits);
tsr_model *tsr__value_model(const tsr_value *value);
// True if `inner` is `outer` or nested in it.
bool tsr__graph_within(const tsr_graph *inner, const tsr_graph *outer);
tsr_graph *tsr__node_subgraph(const tsr_node *node); // the first one; the others are its siblings
void tsr__node_relink(tsr_node *node);               // call it after its subgraphs changed
// Returns an array of n pointers with space for one more: `at`, or a copy with twice the capacity.
// The capacity is always the power of two at or above n. Returns NULL if out of memory.
void *tsr__pointers_grow(struct arena *arena, void *at, size_t n);
size_t tsr__pointers_capacity(size_t n);            // returns that power of two
struct str tsr__graph_path(const tsr_graph *graph); // names.c

// ---- serde/, the only files that include wire ---------------------------------------------------

tsr_status tsr__serde_read(tsr_model *model) TSR_MUST_USE;   // from model->store
void tsr__external_warn(tsr_model *model, const char *path); // about missing data files
void tsr__attrs_decode(tsr_node *node); // names and kinds of a node's attributes
void tsr__attr_decode(tsr_attr *attr);  // the value of an attribute
void tsr__type_decode(tsr_value *value);
void tsr__tensor_decode(tsr_tensor *tensor);
tsr_status tsr__tensor_ready(tsr_tensor *tensor) TSR_MUST_USE; // sets data and bytes
struct str tsr__node_overload(const tsr_node *node);
// Returns the body of an attribute that the function declares with a default, or an empty text.
struct str tsr__function_default(const tsr_function *function, struct str name);
void tsr__config_decode(tsr_config *config, struct str body);
void tsr__node_config_decode(tsr_node_config *nc, struct str body);

// ---- annotations (config.c, spec.c) ---------------------------------------------------------

tsr_node_config *tsr__node_config_make(tsr_node *node, tsr_config *config);
// Returns a copy that must not be changed; equal long lists are shared. Returns NULL if out of
// memory.
int64_t *tsr__keep_devices(tsr_model *model, const int64_t *devices, size_t n);
tsr_spec *tsr__spec_make(tsr_node_config *nc, tsr_value *value);
void tsr__spec_touch(tsr_spec *spec, uint32_t bits);
// Moves the specs of `from` to `to` if the node no longer uses `from`. Call it after an edit of
// inputs or outputs.
void tsr__specs_follow(tsr_node *node, tsr_value *from, tsr_value *to);

// ---- copying (clone.c) -----------------------------------------------------------------------

// State of copying. Bytes of the file (whole, body, rest, raw, other) are in stores, which the copy
// references, so they are shared. Names are in the model's arena and are copied.
struct cloner {
    tsr_model *to;
    const tsr_model *from;
    struct arena scratch;
    struct map twins; // value or configuration -> its copy
    // returns the replacement of an outer value; may be NULL
    tsr_value *(*outer)(void *data, tsr_value *value);
    void *data;
    // returns the configuration in the copy; NULL: annotations are not copied
    tsr_config *(*config)(void *data, tsr_config *config);
    bool exact;           // keep the change flags
    bool embeds;          // copy external data that was read
    const tsr_node *call; // inlined call, whose attributes replace references; or NULL
    const tsr_function *fn;
};
// Gives the copy the data of `from` instead of a reference to a file.
void tsr__tensor_embed(tsr_tensor *copy, const tsr_tensor *from);
void tsr__cloner_init(struct cloner *cloner, tsr_model *to, const tsr_model *from);
tsr_status tsr__cloner_end(struct cloner *cloner); // TSR_NOMEM if any step was out of memory
void tsr__twin_set(struct cloner *cloner, const tsr_value *value, tsr_value *twin);
tsr_value *tsr__twin(struct cloner *cloner, tsr_value *value);
// Copies a node without setting its inputs and outputs, and without adding it to the graph.
tsr_node *tsr__clone_node(struct cloner *cloner, tsr_graph *graph, const tsr_node *node,
                          size_t n_inputs, size_t n_outputs);
// Sets the inputs and outputs of the copy to the twins of the node's.
void tsr__clone_slots(struct cloner *cloner, tsr_node *copy, const tsr_node *node);
void tsr__clone_configs(struct cloner *cloner, tsr_node *to, const tsr_node *from);
void tsr__model_hold(tsr_model *to, const tsr_model *from);

// ---- attributes (attr.c) ---------------------------------------------------------------------

tsr_attr *tsr__attr_append(tsr_node *node);

#endif
