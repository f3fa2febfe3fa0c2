// SPDX-License-Identifier: Apache-2.0
// internal.h - the bodies of the objects, for the files of this room only.
//
// Everything lives in the model's arena and points at each other. What came from a file remembers
// the field it came from (`whole`: tag and all, a view into the store) and what was changed since,
// so that saving can refer to the unchanged rest. Names are views until somebody asks for a C text.
#ifndef TSR_IR_INTERNAL_H
#define TSR_IR_INTERNAL_H

#include "ir/ir.h"

// ---- the bytes that objects are views of ----------------------------------------------------

struct window; // a mapped piece of an external file
struct opened; // an external file that is open

// Shared by a model, its clones, and models that copied constants from it.
struct store {
    tsr_session *session;
    size_t refs;
    const char *path; // of the model file; NULL: from memory, or nothing was loaded
    struct mapped file;
    struct str bytes;
    struct folder folder; // of the model file; only if has_folder
    bool has_folder;
    struct arena arena; // messages that stood in several places of the file, merged
    struct window *windows;
    struct opened *opened;
};
struct store *tsr__store_new(tsr_session *session);
struct store *tsr__store_hold(struct store *store);
void tsr__store_drop(struct store *store);

// A text that occurs often (operator, domain), once per model and NUL-terminated.
struct symbol {
    struct str text;
};

// ---- objects --------------------------------------------------------------------------------

// Declared type: a tensor with its dimensions, or something else kept as bytes.
struct vtype {
    tsr_dtype dtype;
    int rank; // -1: not known
    tsr_dim *dims;
    struct str other; // body of a TypeProto that is no plain tensor (sequence, map, ...), or empty
};

// One input slot of a node; the slots that read one value form a ring.
struct use {
    tsr_value *value;
    tsr_node *node;
    struct use *next, *prev; // NULL: not linked (the node was removed)
};

enum value_flag {
    V_INPUT = 1,    // of its graph
    V_STANDIN = 2,  // nothing defines it
    V_TEXT = 4,     // the name is NUL-terminated memory of the arena
    V_RENAMED = 8,  // since it was read
    V_TYPED = 16,   // its type was set by a call
    V_NEW = 32,     // made by a call
    V_GONE = 64,    // its node was removed
    V_SPARSE = 128, // a sparse initializer
    V_DECODED = 256,
    V_WRITTEN = 512, // scratch of the writer
};
struct tsr_value {
    struct str name;
    tsr_graph *home; // where it is defined, or for a stand-in where it was first read
    tsr_node *producer;
    struct use *last_use; // ring; next of the last is the first
    uint32_t n_uses, id, n_outputs, flags;
    struct str info; // field that holds its ValueInfo, if it has one
    struct vtype *type;
    tsr_tensor *tensor;
    tsr_value *next; // of the graph, in order of making
};

enum node_flag {
    N_GRAPHS = 1,
    N_GONE = 2,
    N_TEXT = 4,
    N_ATTRS = 8, // attributes are decoded
    N_NEW = 16,
    N_INPUTS = 32, // changed since it was read
    N_OUTPUTS = 64,
    N_ATTRIBUTES = 128,
    N_CONFIGS = 256,
    N_RESIZED = 512,   // has another number of outputs than in its file
    N_METADATA = 1024, // its texts are a list, and no longer what its bytes say
    N_CHANGED = N_INPUTS | N_OUTPUTS | N_ATTRIBUTES | N_CONFIGS | N_METADATA,
};
struct tsr_node {
    tsr_graph *graph;
    tsr_node *next, *prev;
    struct str name;
    const struct symbol *op, *domain;
    struct str whole; // field it came from, or with N_NEW was copied from
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
    struct str whole; // empty: made by a call
    struct str ref;   // name of the function's attribute it stands for, or empty
    struct str rest;  // body of a foreign message whose value it copies, or empty
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
    tsr_value *value;     // of an initializer, else NULL
    const tsr_node *node; // whose attribute it is, else NULL
    struct str whole;     // field it came from; empty: made by a call
    struct str body;
    struct str sparse;   // not empty: body of a sparse tensor, and the one above is empty
    struct store *store; // that body is a view of, if it is another model's
    tsr_status status;   // of the last attempt to get its data
    bool decoded, external, has_raw, data_ready;
    bool absent;   // a look at its data failed, and nobody needed it
    bool replaced; // raw stands for whatever data body has
    int32_t type;  // as written, may be no known type
    int rank;
    int64_t *dims;
    struct str raw;      // raw_data, or the bytes given
    struct str location; // made by tsr__graph_add_external
    uint64_t offset, length;
    const void *data; // result of tsr_tensor_data
    size_t bytes;
};

// A graph input or output with the field that declares it.
struct port {
    tsr_value *value;
    struct str whole;
    bool replaced; // another value than the field names
};

enum graph_flag {
    G_NODES = 1, // changed since it was read
    G_INPUTS = 2,
    G_OUTPUTS = 4,
    G_INITIALIZERS = 8,
    G_INFOS = 16,
    G_RENAMED = 32,
    G_TEXT = 64,
    G_ORDER = 128, // node indices are stale
    G_NAME = 256,
    G_LIST = 1024, // nodes came, went or moved
    G_GONE = 512,  // its node or attribute was removed
    G_CHANGED = G_NODES | G_INPUTS | G_OUTPUTS | G_INITIALIZERS | G_INFOS | G_RENAMED,
};
struct tsr_graph {
    tsr_model *model;
    tsr_node *owner; // of the attribute that holds it
    tsr_attr *attr;
    tsr_function *function;
    tsr_graph *next;    // of the model
    tsr_graph *sibling; // next subgraph of the same node
    struct str name, body, path;
    struct str
        words; // how an edit leads into it: "outer > branch"; empty: the main graph, or not yet made
    struct str infos; // stretch of body that holds every value_info; empty: not known
    uint32_t absent;  // bit set of field numbers that body is known not to have
    size_t n_fields;  // nodes in body
    tsr_node *first, *last;
    size_t n_nodes;
    struct map names;   // name -> value; a removed name maps to tsr__no_value
    struct map renamed; // name in the file -> value that is called otherwise now
    tsr_value *values, *last_value;
    VEC(struct port) inputs;
    VEC(struct port) outputs;
    VEC(tsr_value *)
    initializers, sparse; // of the latter, each stays in the field that it came from
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
    bool registered, standin, renamed;
    tsr_config *twin; // scratch of tsr_model_clone
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
    uint32_t n_indexed;   // specs in by_value
    struct map *by_value; // value -> the first of its specs, where there are many; NULL: not made
};

struct tsr_model {
    tsr_session *session;
    struct arena arena;
    struct store *store;
    VEC(struct store *) held; // stores of other models that constants are views of
    const char *path;
    int64_t ir_version;
    bool has_ir_version, ir_changed;
    bool changed;         // anything
    bool renamed;         // some value or configuration
    bool devices_touched; // annotations were written by a call
    bool annotated;       // a node has or had an annotation
    struct str producer;
    opset_list opsets;
    bool opsets_changed;
    VEC(struct metadata) metadata;
    bool metadata_changed;
    tsr_graph *graph;
    tsr_graph *graphs; // all, newest first
    VEC(tsr_function *) functions;
    struct map function_names; // domain, name and overload -> the first function called so
    size_t n_functions_named;  // how many of `functions` are in function_names
    VEC(tsr_config *) configs;
    bool configs_changed;
    struct map lists;      // of devices, long ones: equal ones are kept once
    struct map config_ids; // as loaded: id -> configuration or stand-in
    struct map symbols;
    struct map opset_index; // domain -> place in opsets, plus 1
    size_t n_opsets_indexed;
    struct map fresh; // base name -> counter
    struct map seen;  // every name that a graph has or had; no arena: not asked for yet
    const struct symbol *last_op;
    uint32_t n_node_ids, n_value_ids;
    bool has_subgraphs;
    uint64_t n_edits;           // of anything but annotations
    struct arena kept_ranks;    // holds `ranks`
    const int *ranks;           // by value id, as another room found them; NULL: nothing is kept
    uint64_t ranks_n_edits;     // n_edits when they were found
    const tsr_node *pairs_node; // whose metadata was read last (tsr_node_metadata_at) ...
    size_t pairs_next;          // ... up to this pair ...
    struct str pairs_rest;      // ... which begins these bytes
};

extern const tsr_value tsr__no_value; // what a removed name maps to

// ---- helpers (core.c) -----------------------------------------------------------------------

// TSR_OK, or TSR_NOMEM once the model's memory has failed.
static inline tsr_status model_status(const tsr_model *model)
{
    return arena_status(&model->arena);
}
// The graph that holds the node whose attribute this one is; NULL: it is the main graph, or a function's.
static inline tsr_graph *graph_outer(const tsr_graph *graph)
{
    if (graph->owner)
        return graph->owner->graph;
    return NULL;
}
// Dimensions to allocate for a rank that may be -1, "not known".
static inline size_t dims_of(int rank)
{
    if (rank > 0)
        return (size_t)rank;
    return 0;
}
tsr_model *tsr__model_make(tsr_session *session); // no graph yet
tsr_graph *tsr__graph_make(tsr_model *model, size_t names);
// A graph has this name now: names that are made later differ from it.
void tsr__name_seen(tsr_model *model, struct str name);
const struct symbol *tsr__symbol(tsr_model *model, struct str text);
struct str tsr__keep(tsr_model *model, struct str text); // a NUL-terminated copy; never NULL text

tsr_value *tsr__value_make(tsr_graph *graph, struct str name);
// The value that a definition of name gives: a stand-in that was waiting for it, or a new one.
tsr_value *tsr__value_define(tsr_graph *graph, struct str name);
tsr_value *tsr__graph_own(const tsr_graph *graph, struct str name);    // in g, stand-ins included
tsr_value *tsr__graph_lookup(const tsr_graph *graph, struct str name); // in g and outwards
tsr_value *tsr__graph_refer(tsr_graph *graph,
                            struct str name); // the same, made as stand-in if absent
void tsr__use_link(struct use *use, tsr_value *value);
void tsr__use_unlink(struct use *use); // value stays readable
void tsr__attr_unlink(tsr_attr *attr); // its subgraphs no longer read anything
void tsr__node_unlink(tsr_node *node); // nor does the node
void tsr__node_append(tsr_graph *graph, tsr_node *node);
tsr_node *tsr__node_make(tsr_graph *graph, struct str domain, struct str op, struct str name,
                         size_t n_inputs, size_t n_outputs);
// The texts of a node that were changed, in a copy of it (serde/metadata.c). False: no memory.
bool tsr__clone_metadata(tsr_node *to, const tsr_node *from);
void tsr__touch_node(tsr_node *node, uint32_t bits);
void tsr__touch_graph(tsr_graph *graph, uint32_t bits);
tsr_model *tsr__value_model(const tsr_value *value);
bool tsr__graph_within(const tsr_graph *inner, const tsr_graph *outer); // the same, or nested in it
tsr_graph *tsr__node_subgraph(const tsr_node *node); // the first; others by sibling
void tsr__node_relink(tsr_node *node);               // after its subgraphs changed
// An array of n pointers with room for one more: the old one, or a copy of twice the size. Its room
// is always the power of two at or above n. NULL: out of memory.
void *tsr__room(struct arena *arena, void *at, size_t n);
size_t tsr__room_for(size_t n);                     // that power of two
struct str tsr__graph_path(const tsr_graph *graph); // names.c

// ---- serde/, the only files that see wire --------------------------------------------------

tsr_status tsr__serde_read(tsr_model *model) TSR_MUST_USE;   // from m->store
void tsr__external_warn(tsr_model *model, const char *path); // data files that stay behind
void tsr__attrs_decode(tsr_node *node); // all attributes of a node, without their values
void tsr__attr_decode(tsr_attr *attr);  // its value
void tsr__type_decode(tsr_value *value);
void tsr__tensor_decode(tsr_tensor *tensor);
tsr_status tsr__tensor_ready(tsr_tensor *tensor) TSR_MUST_USE; // fills data and bytes
struct str tsr__node_overload(const tsr_node *node);
// Attribute that the function declares with a default; body empty: none.
struct str tsr__function_default(const tsr_function *function, struct str name);
void tsr__config_decode(tsr_config *config, struct str body);
void tsr__node_config_decode(tsr_node_config *nc, struct str body);

// ---- annotations (config.c, spec.c) ---------------------------------------------------------

tsr_node_config *tsr__node_config_make(tsr_node *node, tsr_config *config);
// A copy that is never changed in place; equal long lists are one. NULL: out of memory.
int64_t *tsr__keep_devices(tsr_model *model, const int64_t *devices, size_t n);
tsr_spec *tsr__spec_make(tsr_node_config *nc, tsr_value *value);
void tsr__spec_touch(tsr_spec *spec, uint32_t bits);
void tsr__entry_drop_spec(tsr_node_config *nc, tsr_spec *spec);
// After an edit of the node's slots: specs of `from` go to `to` where the node has no use of `from` left.
void tsr__specs_follow(tsr_node *node, tsr_value *from, tsr_value *to);

// ---- copying (clone.c) -----------------------------------------------------------------------

// Spans of fields (whole, body, rest, raw, other) always lie in stores, so whoever holds the stores may share
// them; names and the like lie in the model's arena and are copied.
struct cloner {
    tsr_model *to;
    const tsr_model *from;
    struct arena scratch;
    struct map twins; // value -> its copy
    tsr_value *(*outer)(void *data,
                        tsr_value *value); // for values without one; NULL: they have none
    void *data;
    tsr_config *(*config)(void *data, tsr_config *config); // NULL: annotations are left out
    bool exact;           // the copy is as changed or unchanged as the original
    bool embeds;          // external data that has been read becomes part of the copy
    const tsr_node *call; // attributes that stand for the call's are replaced, or NULL
    const tsr_function *fn;
};
// The copy holds the data that `from` has read, instead of a reference to a file.
void tsr__tensor_embed(tsr_tensor *copy, const tsr_tensor *from);
void tsr__cloner_init(struct cloner *cloner, tsr_model *to, const tsr_model *from);
tsr_status tsr__cloner_end(struct cloner *cloner); // TSR_NOMEM if anything was lacking
void tsr__twin_set(struct cloner *cloner, const tsr_value *value, tsr_value *twin);
tsr_value *tsr__twin(struct cloner *cloner, tsr_value *value);
tsr_graph *tsr__clone_graph(struct cloner *cloner, const tsr_graph *graph, tsr_node *owner,
                            tsr_attr *attr);
// A copy of the node with everything but inputs, outputs and place; inputs and outputs are counted, not set.
tsr_node *tsr__clone_node(struct cloner *cloner, tsr_graph *graph, const tsr_node *node,
                          size_t n_inputs, size_t n_outputs);
// Its inputs and outputs: the twins of the node's.
void tsr__clone_slots(struct cloner *cloner, tsr_node *copy, const tsr_node *node);
void tsr__clone_configs(struct cloner *cloner, tsr_node *to, const tsr_node *from);
void tsr__model_hold(tsr_model *to, const tsr_model *from);

// ---- attributes (attr.c) --------------------------------------------------------------------------

tsr_attr *tsr__attr_append(tsr_node *node);

#endif
