/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera_graph.h - graphs, nodes and values of a model: walking, editing, and annotating them with shardings.
 */
#ifndef TESSERA_GRAPH_H
#define TESSERA_GRAPH_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models -------------------------------------------------------------------------------- */

typedef struct tsr_graph tsr_graph;
typedef struct tsr_node tsr_node;
typedef struct tsr_value tsr_value;
typedef struct tsr_attr tsr_attr;
typedef struct tsr_tensor tsr_tensor;
typedef struct tsr_function tsr_function;
typedef struct tsr_config tsr_config;           /* a device configuration of the model */
typedef struct tsr_node_config tsr_node_config; /* what one node says for one configuration */
typedef struct tsr_spec tsr_spec;               /* how one value is cut at one node */

/* An empty model with an empty main graph of that name. */
TSR_API tsr_status tsr_model_new(tsr_session *session, const char *graph_name, int64_t ir_version,
                                 tsr_model **out);

/* What the model says about itself. The i-th of something that there are fewer of: NULL or 0. Setting what is there already
 * changes nothing; TSR_NOMEM is the only failure. */
TSR_API int64_t tsr_model_ir_version(const tsr_model *model);
TSR_API tsr_status tsr_model_set_ir_version(tsr_model *model, int64_t version);
TSR_API const char *tsr_model_producer(const tsr_model *model);
TSR_API size_t tsr_model_opset_count(const tsr_model *model);
TSR_API const char *tsr_model_opset_domain(const tsr_model *model, size_t i);
TSR_API int64_t tsr_model_opset_version(const tsr_model *model, size_t i);
TSR_API tsr_status tsr_model_set_opset(tsr_model *model, const char *domain, int64_t version);
TSR_API tsr_graph *tsr_model_graph(const tsr_model *model);
TSR_API size_t tsr_model_function_count(const tsr_model *model);
TSR_API tsr_function *tsr_model_function(const tsr_model *model, size_t i);
TSR_API const char *tsr_function_name(const tsr_function *function);
TSR_API const char *tsr_function_domain(const tsr_function *function);
TSR_API tsr_graph *tsr_function_graph(const tsr_function *function); /* its body */
/* Text under key of metadata_props, or NULL. Setting NULL removes. */
TSR_API const char *tsr_model_metadata(const tsr_model *model, const char *key);
TSR_API tsr_status tsr_model_set_metadata(tsr_model *model, const char *key, const char *value);

/* ---- graphs -------------------------------------------------------------------------------- */

/* Walking. The i-th of something that there are fewer of is NULL. */
TSR_API const char *tsr_graph_name(const tsr_graph *graph);
TSR_API tsr_model *tsr_graph_model(const tsr_graph *graph);
/* The node whose attribute this subgraph is, or NULL. */
TSR_API tsr_node *tsr_graph_owner(const tsr_graph *graph);
TSR_API size_t tsr_graph_node_count(const tsr_graph *graph);
/* Nodes form a list, in file order. Removing a node keeps its own next pointer, so a walk survives it. */
TSR_API tsr_node *tsr_graph_first(const tsr_graph *graph);
TSR_API tsr_node *tsr_node_next(const tsr_node *node);
TSR_API size_t tsr_graph_input_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_input(const tsr_graph *graph, size_t i);
TSR_API size_t tsr_graph_output_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_output(const tsr_graph *graph, size_t i);
/* Constants of the graph: dense ones, then sparse ones. */
TSR_API size_t tsr_graph_initializer_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_initializer(const tsr_graph *graph, size_t i);
/* Value of that name in this graph (not in outer scopes), or NULL. */
TSR_API tsr_value *tsr_graph_value(const tsr_graph *graph, const char *name);
/* Every node of the model, subgraphs right after their node, then functions: start with NULL. */
TSR_API tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after);

TSR_API const char *tsr_node_name(const tsr_node *node);
TSR_API const char *tsr_node_op(const tsr_node *node);
TSR_API const char *tsr_node_domain(const tsr_node *node); /* "" for ai.onnx */
TSR_API tsr_graph *tsr_node_graph(const tsr_node *node);
TSR_API int64_t tsr_node_index(const tsr_node *node); /* position in its graph; -1: removed */
TSR_API size_t tsr_node_input_count(const tsr_node *node);
/* NULL: an optional input that is left out, or past the end; so for outputs. */
TSR_API tsr_value *tsr_node_input(const tsr_node *node, size_t i);
TSR_API size_t tsr_node_output_count(const tsr_node *node);
TSR_API tsr_value *tsr_node_output(const tsr_node *node, size_t i);
TSR_API size_t tsr_node_attr_count(const tsr_node *node);
TSR_API tsr_attr *tsr_node_attr(const tsr_node *node, size_t i);
TSR_API tsr_attr *tsr_node_find_attr(const tsr_node *node, const char *name); /* NULL: absent */
/* Text under key of the node's own metadata_props, or NULL. Setting NULL removes. The i-th of them; false past the end. */
TSR_API const char *tsr_node_metadata(const tsr_node *node, const char *key);
TSR_API tsr_status tsr_node_set_metadata(tsr_node *node, const char *key, const char *value);
TSR_API bool tsr_node_metadata_at(const tsr_node *node, size_t i, const char **key,
                                  const char **value);

typedef enum tsr_attr_kind {
    TSR_ATTR_UNDEFINED = 0,
    TSR_ATTR_FLOAT = 1,
    TSR_ATTR_INT = 2,
    TSR_ATTR_STRING = 3,
    TSR_ATTR_TENSOR = 4,
    TSR_ATTR_GRAPH = 5,
    TSR_ATTR_FLOATS = 6,
    TSR_ATTR_INTS = 7,
    TSR_ATTR_STRINGS = 8,
    TSR_ATTR_TENSORS = 9,
    TSR_ATTR_GRAPHS = 10,
    TSR_ATTR_SPARSE_TENSOR = 11,
    TSR_ATTR_SPARSE_TENSORS = 12,
    TSR_ATTR_TYPE = 13,
    TSR_ATTR_TYPES = 14
} tsr_attr_kind;
TSR_API const char *tsr_attr_name(const tsr_attr *attr);
TSR_API tsr_attr_kind tsr_attr_kind_of(const tsr_attr *attr);
/* The value; `otherwise` for an attribute that is NULL, of another kind, or without a value. */
TSR_API int64_t tsr_attr_int(const tsr_attr *attr, int64_t otherwise);
TSR_API float tsr_attr_float(const tsr_attr *attr, float otherwise);
TSR_API const char *tsr_attr_string(const tsr_attr *attr, size_t *bytes); /* NULL: no string */
/* Values of an INTS attribute (0 and NULL for others). */
TSR_API size_t tsr_attr_ints(const tsr_attr *attr, const int64_t **out);
TSR_API size_t tsr_attr_graph_count(const tsr_attr *attr);
TSR_API tsr_graph *tsr_attr_graph(const tsr_attr *attr, size_t i);
TSR_API const tsr_tensor *tsr_attr_tensor(const tsr_attr *attr); /* NULL: no tensor */

TSR_API const char *tsr_value_name(const tsr_value *value);
/* The graph that defines it. NULL: nothing does, the value stands in for a name that is only read. */
TSR_API tsr_graph *tsr_value_graph(const tsr_value *value);
/* The node that makes it. NULL: an input, an initializer, or nothing does. */
TSR_API tsr_node *tsr_value_producer(const tsr_value *value);
TSR_API size_t tsr_value_use_count(const tsr_value *value); /* node input slots that read it */
/* Calls f for each use until it returns false. */
TSR_API void tsr_value_uses(const tsr_value *value,
                            bool (*f)(void *data, tsr_node *node, size_t input), void *data);
TSR_API bool tsr_value_is_input(const tsr_value *value);
TSR_API bool tsr_value_is_output(const tsr_value *value);
TSR_API const tsr_tensor *tsr_value_initializer(const tsr_value *value); /* NULL: not constant */
/* The declared type; of an initializer without one, that of its tensor. TSR_UNDEFINED: not known, or no tensor. */
TSR_API tsr_dtype tsr_value_dtype(const tsr_value *value);
TSR_API int tsr_value_rank(const tsr_value *value); /* -1: not known */
/* Unknown (-1, "") outside of the rank. The symbol is valid until the type is set again. */
TSR_API tsr_dim tsr_value_dim(const tsr_value *value, int axis);
/* The name by which tsr_dim_size sets an open dimension: its symbol; for an input of the model that leaves the dimension
 * unnamed, INPUT.AXIS ("x.0"). NULL: the dimension has a fixed size, or cannot be set. */
TSR_API const char *tsr_value_dim_name(const tsr_value *value, int axis);
/* Declares a tensor type: rank -1 leaves the shape open, dims are copied. TSR_INVALID: no such type or rank. */
TSR_API tsr_status tsr_value_set_type(tsr_value *value, tsr_dtype type, int rank,
                                      const tsr_dim *dims);

/* A constant: its type and shape, which cost no look at its data. */
TSR_API tsr_dtype tsr_tensor_dtype(const tsr_tensor *tensor);
TSR_API int tsr_tensor_rank(const tsr_tensor *tensor);
TSR_API const int64_t *tsr_tensor_dims(const tsr_tensor *tensor);
TSR_API int64_t tsr_tensor_elements(const tsr_tensor *tensor); /* -1: overflow or negative dims */
TSR_API int64_t tsr_tensor_bytes(const tsr_tensor *tensor);    /* as raw_data; -1: not known */
TSR_API bool tsr_tensor_is_external(const tsr_tensor *tensor);
/* The elements as raw little-endian bytes: a view where stored so, a converted copy (in the model's memory)
 * where stored in typed fields, a map where external. Fails for strings and for data that does not fit the
 * shape; a finding says what is wrong. */
TSR_API tsr_status tsr_tensor_data(const tsr_tensor *tensor, const void **bytes, size_t *n);

/* Editing. Each call checks first and then keeps uses, producers and specs consistent. What is refused (a name that is taken or
 * empty, a value that cannot be seen there, a node that was removed) is TSR_INVALID with a finding, or NULL where a value or
 * node is returned, and changes nothing. */
TSR_API tsr_status tsr_value_rename(tsr_value *value, const char *name);
TSR_API tsr_value *tsr_graph_add_input(tsr_graph *graph, const char *name);
TSR_API tsr_status tsr_graph_add_output(tsr_graph *graph, tsr_value *value);
/* A constant that copies n raw bytes; dims may be NULL for a scalar. */
TSR_API tsr_value *tsr_graph_add_initializer(tsr_graph *graph, const char *name, tsr_dtype type,
                                             int rank, const int64_t *dims, const void *bytes,
                                             size_t n);
/* Appends a node; outputs are made with the given names ("" or NULL: unused). inputs may hold NULL. */
TSR_API tsr_node *tsr_graph_add_node(tsr_graph *graph, const char *domain, const char *op,
                                     const char *name, tsr_value *const *inputs, size_t n_inputs,
                                     const char *const *outputs, size_t n_outputs);
/* Before another node of its graph; NULL: to the end. The caller answers for the order. */
TSR_API tsr_status tsr_node_move_before(tsr_node *node, tsr_node *before);
/* Sets an attribute, in place of one of that name of any kind; texts and lists are copied. Removing one that is absent is
 * TSR_INVALID. */
TSR_API tsr_status tsr_node_set_int(tsr_node *node, const char *name, int64_t value);
TSR_API tsr_status tsr_node_set_ints(tsr_node *node, const char *name, const int64_t *values,
                                     size_t count);
TSR_API tsr_status tsr_node_set_float(tsr_node *node, const char *name, float value);
TSR_API tsr_status tsr_node_set_string(tsr_node *node, const char *name, const char *value);
TSR_API tsr_status tsr_node_remove_attr(tsr_node *node, const char *name);
/* Input i reads the value from now on. The spec of the old value moves to it if the old one is no longer used by
 * this node and the new one has none; otherwise it stays, or is dropped when its value is gone. */
TSR_API tsr_status tsr_node_replace_input(tsr_node *node, size_t i, tsr_value *value);
/* Everywhere: node inputs (with their specs) and, with outputs, the graph's outputs too. */
TSR_API tsr_status tsr_value_replace_uses(tsr_value *value, tsr_value *by, bool outputs);
/* Gives the node that many outputs. Those that go must be unused (finding node-still-used), and their specs go with them; new
 * ones are left out. */
TSR_API tsr_status tsr_node_resize_outputs(tsr_node *node, size_t count);
/* Takes the node out. Its outputs must be unused, else finding node-still-used. */
TSR_API tsr_status tsr_node_remove(tsr_node *node);
/* Replaces the calls of a model-local function by its body. The call's placement goes to the body's nodes where
 * they say nothing themselves; specs are rebound to the caller's values. */
TSR_API tsr_status tsr_node_inline(tsr_node *call);

/* ---- devices ------------------------------------------------------------------------------- */

/* Declares a configuration. devices may be NULL; else n texts, and count may be 0 to mean n. */
TSR_API tsr_status tsr_model_add_config(tsr_model *model, const char *name, int64_t count,
                                        const char *const *devices, size_t n, tsr_config **out);
TSR_API size_t tsr_model_config_count(const tsr_model *model);
TSR_API tsr_config *tsr_model_config(const tsr_model *model, size_t i);
/* The first of that name; NULL: absent. */
TSR_API tsr_config *tsr_model_find_config(const tsr_model *model, const char *name);
/* Takes it off the model. Without cascade, node entries stay bound to it and the checker finds them; with
 * cascade, every node entry (graphs, subgraphs, functions) bound to this object goes too. */
TSR_API tsr_status tsr_model_remove_config(tsr_model *model, tsr_config *config, bool cascade);
/* By name: the first of that name; cascade also takes entries bound to other objects of that name. */
TSR_API tsr_status tsr_model_remove_config_named(tsr_model *model, const char *name, bool cascade);
TSR_API const char *tsr_config_name(const tsr_config *config);
/* Entries of nodes follow, since they point at it. TSR_INVALID: the name is empty or taken. */
TSR_API tsr_status tsr_config_rename(tsr_config *config, const char *name);
TSR_API int64_t tsr_config_devices(const tsr_config *config);
TSR_API size_t tsr_config_device_name_count(const tsr_config *config);
TSR_API const char *tsr_config_device_name(const tsr_config *config, size_t i);

/* Cuts value (an input or output of the node) along axis into count shards, under a configuration. Repeated calls
 * on one value add axes to the same spec, first call outermost; device lists are united. stage -1: not given.
 * Refused at once, each with its own finding: value not of this node, axis outside the rank, axis already cut,
 * count < 1 or above the dimension, device outside the configuration, configuration not of this model,
 * stage conflict. */
TSR_API tsr_status tsr_node_shard(tsr_node *node, tsr_value *value, tsr_config *config,
                                  int64_t axis, int64_t count, const int64_t *devices,
                                  size_t n_devices, int64_t stage);
/* Takes the node's shardings of the value away, under one configuration or (NULL) all. TSR_INVALID: there is none. */
TSR_API tsr_status tsr_node_unshard(tsr_node *node, tsr_value *value, tsr_config *config);
/* Replaces the stage, making the entry if there is none; takes it away (TSR_INVALID: there is none). */
TSR_API tsr_status tsr_node_set_stage(tsr_node *node, tsr_config *config, int64_t stage);
TSR_API tsr_status tsr_node_unset_stage(tsr_node *node, tsr_config *config);

/* What the node says, an entry for each configuration; NULL: there is none. */
TSR_API size_t tsr_node_config_count(const tsr_node *node);
TSR_API tsr_node_config *tsr_node_config_at(const tsr_node *node, size_t i);
TSR_API tsr_node_config *tsr_node_find_config(const tsr_node *node, const tsr_config *config);
TSR_API tsr_status tsr_node_remove_config(tsr_node *node, tsr_node_config *nc);
/* NULL: the id was absent. A name that the model does not declare gives a stand-in with 0 devices. */
TSR_API tsr_config *tsr_node_config_config(const tsr_node_config *nc);
TSR_API bool tsr_node_config_stage(const tsr_node_config *nc, int64_t *stage); /* false: none */
TSR_API size_t tsr_node_config_spec_count(const tsr_node_config *nc);
TSR_API tsr_spec *tsr_node_config_spec(const tsr_node_config *nc, size_t i);
/* The i-th spec over all configurations that cuts the value at the node; NULL past the end. */
TSR_API tsr_spec *tsr_node_sharding_of(const tsr_node *node, const tsr_value *value, size_t i);

/* The raw fields of a spec, in file order. */
TSR_API tsr_value *tsr_spec_value(const tsr_spec *spec); /* NULL: absent */
/* Device ids or keys of groups: their number, and in *out the list, which is the spec's. */
TSR_API size_t tsr_spec_devices(const tsr_spec *spec, const int64_t **out);
TSR_API size_t tsr_spec_group_count(const tsr_spec *spec);
/* The key of group i, and its members. */
TSR_API int64_t tsr_spec_group(const tsr_spec *spec, size_t i, const int64_t **members, size_t *n);
TSR_API size_t tsr_spec_dim_count(const tsr_spec *spec);
TSR_API int64_t tsr_spec_dim_axis(const tsr_spec *spec, size_t i);
TSR_API size_t tsr_spec_dim_factor_count(const tsr_spec *spec, size_t i);
/* Factor k of dimension entry i: its size (value -1, symbol "" if absent); returns num_shards. */
TSR_API int64_t tsr_spec_dim_factor(const tsr_spec *spec, size_t i, size_t k, tsr_dim *size);

/* Full control: an empty spec for the value (which may be NULL), then its parts. Nothing is validated here; check says. Lists are
 * copied. NULL: a handle of another model (finding argument-invalid), or out of memory; removing twice is TSR_INVALID. */
TSR_API tsr_spec *tsr_node_add_spec(tsr_node *node, tsr_config *config, tsr_value *value);
TSR_API tsr_status tsr_spec_set_devices(tsr_spec *spec, const int64_t *devices, size_t n);
TSR_API tsr_status tsr_spec_add_group(tsr_spec *spec, int64_t key, const int64_t *members,
                                      size_t n);
/* Adds a dimension entry with n factors. sizes may be NULL (all absent). */
TSR_API tsr_status tsr_spec_add_dim(tsr_spec *spec, int64_t axis, const tsr_dim *sizes,
                                    const int64_t *shards, size_t n);
TSR_API tsr_status tsr_spec_remove(tsr_spec *spec);

/* ---- shardings ----------------------------------------------------------------------------- */

/* Puts a sharding in the compact notation on a value at a node: {2,1:0,1}, {2,1:(0,1),(2,3)}, {1:0,1},
 * {4/2*16,1:0,1}, {2,...:0,1}; over a mesh S0,R@2x2, S0R@2x2, ({0},{})@2x2, where without @ the mesh is the grid of the
 * configuration's topology, or all its devices in a line (SR). Replaces a spec that the value has there. The whole text is validated against value and
 * configuration first. A text that does not parse: TSR_MALFORMED; one that does not fit: TSR_INVALID. */
TSR_API tsr_status tsr_node_shard_text(tsr_node *node, tsr_value *value, tsr_config *config,
                                       const char *text);
/* The spec in that notation; tsr_node_shard_text reads it again as the same sharding. All dimensions are written: the rank is
 * that of its value, as declared or as the operators give it. Where neither tells, axes that are counted from the front stand
 * before "...": {2,...:0,1}. "": the spec says nothing. */
TSR_API tsr_status tsr_spec_text(const tsr_spec *spec, const char **out);
typedef enum tsr_notation {
    TSR_NOTATION_TILES = 0, /* {2,1:(0,1),(2,3)} */
    TSR_NOTATION_MESH = 1,  /* S0,R@2x2; over one axis SR@4 */
    TSR_NOTATION_SETS = 2,  /* ({0},{})@2x2 */
} tsr_notation;
/* The same over a mesh: the grid of the configuration's topology if that gives it, else one of its own. What no mesh gives
 * (factors, unlike groups, unknown ranks) is written as tiles. */
TSR_API tsr_status tsr_spec_text_as(const tsr_spec *spec, tsr_notation notation, const char **out);

/* Writes what each node says about devices into its metadata too (ai.tessera.sharding.NAME of configuration NAME), where viewers such
 * as Netron show it; takes away labels of what is no longer said, or all of them. Labels are for people: nothing reads them. */
TSR_API tsr_status tsr_model_label(tsr_model *model, bool wanted);
TSR_API bool tsr_model_labelled(const tsr_model *model); /* some node has a label */

/* One piece of a tensor on one device: [start, stop) in each dimension. */
typedef struct tsr_box {
    int64_t device;
    const int64_t *start, *stop; /* rank entries each */
} tsr_box;
/* What a sharding does to a shape; boxes are owned by the session until the next call. devices 0: as many as
 * the text names. */
TSR_API tsr_status tsr_tiles(tsr_session *session, const char *text, int rank, const int64_t *shape,
                             int64_t devices, const tsr_box **out, size_t *n);

/* A tensor dictionary: the pieces of one tensor, keyed by device. A device that holds several tiles has a piece for each,
 * in the order of the tiles. */
typedef struct tsr_pieces tsr_pieces;
typedef struct tsr_piece {
    int64_t device, tile; /* tiles are numbered row-major */
    int rank;
    const int64_t *dims; /* of the piece */
    void *data;          /* its elements, row-major, owned by the dictionary */
    size_t bytes;
} tsr_piece;
/* Cuts a tensor by a sharding in the compact notation; data NULL: pieces of zeros, to be filled. Elements must take whole
 * bytes (TSR_UNSUPPORTED otherwise). */
TSR_API tsr_status tsr_pieces_new(tsr_session *session, const char *sharding, tsr_dtype type,
                                  int rank, const int64_t *shape, const void *data,
                                  tsr_pieces **out);
TSR_API void tsr_pieces_free(tsr_pieces *pieces);          /* NULL is fine */
TSR_API size_t tsr_pieces_count(const tsr_pieces *pieces); /* pieces, by device and then tile */
TSR_API tsr_piece tsr_pieces_at(const tsr_pieces *pieces, size_t i);
/* The k-th piece of a device, or the k-th holder of a tile; -1: none. */
TSR_API int64_t tsr_pieces_find(const tsr_pieces *pieces, int64_t device, size_t k);
TSR_API int64_t tsr_pieces_find_tile(const tsr_pieces *pieces, int64_t tile, size_t k);
/* Puts the tensor together again. Tiles that no device holds (-1) are zeros. Copies of one tile that differ are refused
 * (finding pieces-differ). out has room for the whole tensor. */
TSR_API tsr_status tsr_pieces_join(const tsr_pieces *pieces, void *out);

/* One step of a resharding. Bytes are exact, for uneven and strided pieces too: what must arrive, not what a protocol adds. */
typedef struct tsr_step {
    /* slice, all-gather, all-to-all, reduce-scatter, all-reduce, reduce, permute, broadcast,
     * scatter, gather, exchange */
    const char *op;
    /* along which is gathered (-1: several, or none); all-to-all: cut before, cut after */
    int axis, to_axis;
    int64_t received;     /* the most bytes that one device takes in */
    int64_t sent;         /* the most that one gives out */
    int64_t total;        /* taken in by all together */
    const char *sharding; /* after the step */
    /* that work side by side; of reduce, broadcast, scatter, gather the centre comes first */
    const tsr_group *groups;
    size_t n_groups;
} tsr_step;
/* The cheapest steps from one sharding of a tensor to another, in the compact notation; none if nothing is to be done. pending:
 * NULL, or "sum", "max", "min", "prod": the owners of each tile hold parts of it that are still to be combined. An
 * exchange of overlaps is always possible, so no pair is refused, unless the target needs a tile that no device of the source holds
 * (finding reshard-source). Elements must take whole bytes. Steps are owned by the session until the next call. */
TSR_API tsr_status tsr_reshard_plan(tsr_session *session, const char *from, const char *to,
                                    const char *pending, tsr_dtype type, int rank,
                                    const int64_t *shape, const tsr_step **out, size_t *n);

/* Predicted time of these steps, in picoseconds, on a topology whose devices 0 .. n-1 hold the tensor. */
TSR_API tsr_status tsr_reshard_time(tsr_session *session, const char *from, const char *to,
                                    const char *pending, tsr_dtype type, int rank,
                                    const int64_t *shape, tsr_topology *topology, int64_t *out);

/* Puts a random valid sharding on every node, of bodies too, that its rule allows to be cut, in place of what the node says
 * under the configuration: cuts of one or several factors, uneven and strided ones, groups, devices in any order, outputs asked for otherwise
 * than they come; now and then stages. The same seed gives the same shardings. A dimension is cut in at most as many parts as it has
 * elements: symbolic ones only where sizes (the least that they will have) say how many. */
TSR_API tsr_status tsr_model_shard_random(tsr_model *model, tsr_config *config, uint64_t seed,
                                          const tsr_dim_size *sizes, size_t n);
/* What the nodes say under the configuration, as lines that `tessera annotate --script` takes. Owned by the session until the
 * next call. */
TSR_API tsr_status tsr_config_edits(tsr_model *model, const tsr_config *config, const char **out);

/* ---- topology ------------------------------------------------------------------------------ */

/* Says which topology a configuration is for; NULL takes it away. TSR_INVALID as above, and nothing is changed. */
TSR_API tsr_status tsr_model_set_topology(tsr_model *model, const tsr_config *config,
                                          const tsr_topology *topology);

#ifdef __cplusplus
}
#endif
#endif
