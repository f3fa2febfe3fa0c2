/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tessera_graph.h - walks, edits and annotates the graph of a model.
 *
 * Shardings are bound to objects: a sharding refers to its value and to its configuration, not to
 * their names, and so follows renames.
 *
 *   1 models         versions, operator sets, functions, metadata
 *   2 walking        graphs, nodes, attributes, values, constants
 *   3 editing        adding, replacing and removing them
 *   4 devices        configurations, shardings and pipeline stages of nodes
 *   5 notation       shardings as text: {2,1:0,1}
 *   6 tiles          what a sharding does to a shape or a tensor
 *   7 resharding     steps and time from one sharding to another
 *
 * The rules of tessera.h hold here too. Objects (graphs, nodes, values, configurations, ...) belong
 * to their model and stay readable until it is released, also after they were removed. Element i of
 * something that has fewer elements is NULL, 0 or "". All objects of a model belong to the thread
 * of its session.
 */
#ifndef TESSERA_GRAPH_H
#define TESSERA_GRAPH_H

#include "tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1 models -------------------------------------------------------------------------------- */

typedef struct tsr_graph tsr_graph;
typedef struct tsr_node tsr_node;
typedef struct tsr_value tsr_value;
typedef struct tsr_attr tsr_attr;
typedef struct tsr_tensor tsr_tensor; /* a constant */
typedef struct tsr_function tsr_function;
typedef struct tsr_config tsr_config; /* a device configuration of the model */
typedef struct tsr_node_config
    tsr_node_config;              /* the annotation of one node for one configuration */
typedef struct tsr_spec tsr_spec; /* the sharding of one value at one node */

/* Creates a model with an empty main graph. */
TSR_API tsr_status tsr_model_new(tsr_session *session, const char *graph_name, int64_t ir_version,
                                 tsr_model **out);
/* Read and set properties of the model. Setting the present value changes nothing; TSR_NOMEM is the
 * only error. */
TSR_API int64_t tsr_model_ir_version(const tsr_model *model);
TSR_API tsr_status tsr_model_set_ir_version(tsr_model *model, int64_t version);
TSR_API const char *tsr_model_producer(const tsr_model *model);
TSR_API size_t tsr_model_opset_count(const tsr_model *model);
TSR_API const char *tsr_model_opset_domain(const tsr_model *model, size_t i);
TSR_API int64_t tsr_model_opset_version(const tsr_model *model, size_t i);
TSR_API tsr_status tsr_model_set_opset(tsr_model *model, const char *domain, int64_t version);
/* Returns the main graph. */
TSR_API tsr_graph *tsr_model_graph(const tsr_model *model);
TSR_API size_t tsr_model_function_count(const tsr_model *model);
TSR_API tsr_function *tsr_model_function(const tsr_model *model, size_t i);
TSR_API const char *tsr_function_name(const tsr_function *function);
TSR_API const char *tsr_function_domain(const tsr_function *function);
/* Returns the body of a function. */
TSR_API tsr_graph *tsr_function_graph(const tsr_function *function);
/* Returns the text under a key of metadata_props, or NULL. */
TSR_API const char *tsr_model_metadata(const tsr_model *model, const char *key);
/* Sets the text under a key; value NULL removes it. */
TSR_API tsr_status tsr_model_set_metadata(tsr_model *model, const char *key, const char *value);

/* ---- 2 walking ------------------------------------------------------------------------------- */

TSR_API const char *tsr_graph_name(const tsr_graph *graph);
TSR_API tsr_model *tsr_graph_model(const tsr_graph *graph);
/* Returns the node that has this subgraph as an attribute, or NULL. */
TSR_API tsr_node *tsr_graph_owner(const tsr_graph *graph);
TSR_API size_t tsr_graph_node_count(const tsr_graph *graph);
/* Walk the nodes in file order. A removed node keeps its next node, so it can be removed during a
 * walk. */
TSR_API tsr_node *tsr_graph_first(const tsr_graph *graph);
TSR_API tsr_node *tsr_node_next(const tsr_node *node);
/* Returns the node after `after` among all nodes of the model: those of a subgraph follow their
 * node, those of functions come last. after NULL: the first. */
TSR_API tsr_node *tsr_model_next_node(const tsr_model *model, const tsr_node *after);
/* Returns the node that a text names: its name, else one of its outputs, else "#3", its index;
 * "outer > then_branch > inner" in a subgraph, "function F > inner" in a function. NULL: there is no
 * such node, or several have the name. */
TSR_API tsr_node *tsr_model_find_node(const tsr_model *model, const char *text);
TSR_API size_t tsr_graph_input_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_input(const tsr_graph *graph, size_t i);
TSR_API size_t tsr_graph_output_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_output(const tsr_graph *graph, size_t i);
/* Initializers: dense ones first, then sparse ones. */
TSR_API size_t tsr_graph_initializer_count(const tsr_graph *graph);
TSR_API tsr_value *tsr_graph_initializer(const tsr_graph *graph, size_t i);
/* Returns the value of a name in this graph, not in outer graphs, or NULL. */
TSR_API tsr_value *tsr_graph_value(const tsr_graph *graph, const char *name);

TSR_API const char *tsr_node_name(const tsr_node *node);
TSR_API const char *tsr_node_op(const tsr_node *node);
/* Returns the domain of the operator; "" is ai.onnx. */
TSR_API const char *tsr_node_domain(const tsr_node *node);
TSR_API tsr_graph *tsr_node_graph(const tsr_node *node);
/* Returns the position of the node in its graph; -1 if it was removed. */
TSR_API int64_t tsr_node_index(const tsr_node *node);
/* Inputs and outputs; an optional one that is absent is NULL. */
TSR_API size_t tsr_node_input_count(const tsr_node *node);
TSR_API tsr_value *tsr_node_input(const tsr_node *node, size_t i);
TSR_API size_t tsr_node_output_count(const tsr_node *node);
TSR_API tsr_value *tsr_node_output(const tsr_node *node, size_t i);
TSR_API size_t tsr_node_attr_count(const tsr_node *node);
TSR_API tsr_attr *tsr_node_attr(const tsr_node *node, size_t i);
/* Returns the attribute of a name, or NULL. */
TSR_API tsr_attr *tsr_node_find_attr(const tsr_node *node, const char *name);
/* The node's own metadata_props, as tsr_model_metadata. */
TSR_API const char *tsr_node_metadata(const tsr_node *node, const char *key);
TSR_API tsr_status tsr_node_set_metadata(tsr_node *node, const char *key, const char *value);
/* Reads entry i of the metadata; false past the end. `key` and `value` may be NULL. */
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
/* Return the value, or `otherwise` if the attribute is NULL, of another kind, or has no value. */
TSR_API int64_t tsr_attr_int(const tsr_attr *attr, int64_t otherwise);
TSR_API float tsr_attr_float(const tsr_attr *attr, float otherwise);
/* Returns a string and its length, or NULL if the attribute is no string. */
TSR_API const char *tsr_attr_string(const tsr_attr *attr, size_t *bytes);
/* Returns the number of integers of an INTS attribute, and the list in *out; 0 for other kinds. */
TSR_API size_t tsr_attr_ints(const tsr_attr *attr, const int64_t **out);
TSR_API size_t tsr_attr_graph_count(const tsr_attr *attr);
TSR_API tsr_graph *tsr_attr_graph(const tsr_attr *attr, size_t i);
/* Returns the tensor of an attribute, or NULL. */
TSR_API const tsr_tensor *tsr_attr_tensor(const tsr_attr *attr);

TSR_API const char *tsr_value_name(const tsr_value *value);
/* Returns the graph that defines the value; NULL: nothing defines the name, it is only read. */
TSR_API tsr_graph *tsr_value_graph(const tsr_value *value);
/* Returns the node that produces the value; NULL for inputs, initializers and undefined names. */
TSR_API tsr_node *tsr_value_producer(const tsr_value *value);
/* Returns the number of node inputs that read the value. */
TSR_API size_t tsr_value_use_count(const tsr_value *value);
/* Calls f for each node input that reads the value, until f returns false. */
TSR_API void tsr_value_uses(const tsr_value *value,
                            bool (*f)(void *data, tsr_node *node, size_t input), void *data);
TSR_API bool tsr_value_is_input(const tsr_value *value);
TSR_API bool tsr_value_is_output(const tsr_value *value);
/* Returns the constant of an initializer, or NULL. */
TSR_API const tsr_tensor *tsr_value_initializer(const tsr_value *value);
/* Returns the declared element type, or that of the initializer; TSR_UNDEFINED: not known, or no
 * tensor. */
TSR_API tsr_dtype tsr_value_dtype(const tsr_value *value);
/* Returns the number of dimensions; -1: not known. */
TSR_API int tsr_value_rank(const tsr_value *value);
/* Returns a dimension; value -1 and symbol "" outside of the rank. Its symbol is valid until the
 * type is set again. */
TSR_API tsr_dim tsr_value_dim(const tsr_value *value, int axis);
/* Returns the name for tsr_dim_size of an open dimension: its symbol, or INPUT.AXIS ("x.0") for an
 * unnamed one of a model input. NULL: the size is fixed, or cannot be set. */
TSR_API const char *tsr_value_dim_name(const tsr_value *value, int axis);
/* Declares a tensor type. rank -1: the shape is unknown. TSR_INVALID: no such type or rank. */
TSR_API tsr_status tsr_value_set_type(tsr_value *value, tsr_dtype type, int rank,
                                      const tsr_dim *dims);

/* Type and shape of a constant, without reading its data. */
TSR_API tsr_dtype tsr_tensor_dtype(const tsr_tensor *tensor);
TSR_API int tsr_tensor_rank(const tsr_tensor *tensor);
TSR_API const int64_t *tsr_tensor_dims(const tsr_tensor *tensor);
/* Returns the number of elements; -1: overflow or negative dimensions. */
TSR_API int64_t tsr_tensor_elements(const tsr_tensor *tensor);
/* Returns the bytes of the packed elements; -1: not known. */
TSR_API int64_t tsr_tensor_bytes(const tsr_tensor *tensor);
TSR_API bool tsr_tensor_is_external(const tsr_tensor *tensor);
/* Returns the elements as little-endian bytes. They are not copied unless the file stores them in
 * typed fields or as a sparse tensor. TSR_UNSUPPORTED: strings or an unknown type. TSR_MALFORMED:
 * the data does not fit the shape. TSR_IO: an external file cannot be read. */
TSR_API tsr_status tsr_tensor_data(const tsr_tensor *tensor, const void **bytes, size_t *n);

/* ---- 3 editing ------------------------------------------------------------------------------- */

/* An edit keeps uses, producers and shardings consistent. A refused edit (an empty or used name, a
 * value out of scope, a removed node) changes nothing and is TSR_INVALID; functions that return an
 * object return NULL. */
/* Renames a value everywhere in the model except in training_info. */
TSR_API tsr_status tsr_value_rename(tsr_value *value, const char *name);
TSR_API tsr_value *tsr_graph_add_input(tsr_graph *graph, const char *name);
TSR_API tsr_status tsr_graph_add_output(tsr_graph *graph, tsr_value *value);
/* Adds a constant with a copy of n bytes. dims may be NULL for a scalar. */
TSR_API tsr_value *tsr_graph_add_initializer(tsr_graph *graph, const char *name, tsr_dtype type,
                                             int rank, const int64_t *dims, const void *bytes,
                                             size_t n);
/* Appends a node and creates its outputs ("" or NULL: absent). NULL inputs are absent. */
TSR_API tsr_node *tsr_graph_add_node(tsr_graph *graph, const char *domain, const char *op,
                                     const char *name, tsr_value *const *inputs, size_t n_inputs,
                                     const char *const *outputs, size_t n_outputs);
/* Moves a node before another one of its graph; NULL: to the end. The order is not checked. */
TSR_API tsr_status tsr_node_move_before(tsr_node *node, tsr_node *before);
/* Set an attribute and replace one of the same name. */
TSR_API tsr_status tsr_node_set_int(tsr_node *node, const char *name, int64_t value);
TSR_API tsr_status tsr_node_set_ints(tsr_node *node, const char *name, const int64_t *values,
                                     size_t count);
TSR_API tsr_status tsr_node_set_float(tsr_node *node, const char *name, float value);
TSR_API tsr_status tsr_node_set_string(tsr_node *node, const char *name, const char *value);
/* Removes an attribute. TSR_INVALID: no attribute has that name. */
TSR_API tsr_status tsr_node_remove_attr(tsr_node *node, const char *name);
/* Makes input i read another value. The sharding of the old value moves to the new one if the node
 * no longer reads the old value and has no sharding of the new one. */
TSR_API tsr_status tsr_node_replace_input(tsr_node *node, size_t i, tsr_value *value);
/* Replaces a value by another one in all node inputs, and with `outputs` also in the outputs of all
 * graphs. */
TSR_API tsr_status tsr_value_replace_uses(tsr_value *value, tsr_value *by, bool outputs);
/* Sets the number of outputs. Removed ones must be unused (node-still-used); their shardings are
 * removed. New ones are absent. */
TSR_API tsr_status tsr_node_resize_outputs(tsr_node *node, size_t count);
/* Removes a node. Its outputs must be unused (node-still-used). */
TSR_API tsr_status tsr_node_remove(tsr_node *node);
/* Replaces the call of a model-local function by the function's body. A node of the body gets the
 * stage of the call and the call's shardings of its values, unless it has its own. */
TSR_API tsr_status tsr_node_inline(tsr_node *call);

/* ---- 4 devices ------------------------------------------------------------------------------- */

/* Declares a configuration of `count` devices. devices: n names, or NULL; count 0: n. */
TSR_API tsr_status tsr_model_add_config(tsr_model *model, const char *name, int64_t count,
                                        const char *const *devices, size_t n, tsr_config **out);
TSR_API size_t tsr_model_config_count(const tsr_model *model);
TSR_API tsr_config *tsr_model_config(const tsr_model *model, size_t i);
/* Returns the first configuration of a name, or NULL. */
TSR_API tsr_config *tsr_model_find_config(const tsr_model *model, const char *name);
/* Removes a configuration. With cascade also the annotations of all nodes for it; without, these
 * stay and tsr_check reports them. */
TSR_API tsr_status tsr_model_remove_config(tsr_model *model, tsr_config *config, bool cascade);
/* Removes the first configuration of a name. With cascade also all annotations for this name, even
 * if they refer to another configuration of the same name. */
TSR_API tsr_status tsr_model_remove_config_named(tsr_model *model, const char *name, bool cascade);
TSR_API const char *tsr_config_name(const tsr_config *config);
/* Renames a configuration; annotations follow. TSR_INVALID: the name is empty or used. */
TSR_API tsr_status tsr_config_rename(tsr_config *config, const char *name);
/* Returns the number of devices. */
TSR_API int64_t tsr_config_devices(const tsr_config *config);
TSR_API size_t tsr_config_device_name_count(const tsr_config *config);
TSR_API const char *tsr_config_device_name(const tsr_config *config, size_t i);
/* Stores the topology that a configuration is for; NULL removes it. TSR_INVALID (topology-misfit):
 * the number of devices differs. tsr_model_topology returns it. */
TSR_API tsr_status tsr_model_set_topology(tsr_model *model, const tsr_config *config,
                                          const tsr_topology *topology);

/* Shards a value (an input or output of the node) along an axis into `count` shards. Further calls
 * add axes to the same sharding, the first one outermost, and their devices. stage: pipeline stage
 * of the node, or -1. TSR_INVALID: a value of another node, a bad axis, count, device or
 * configuration, or another stage. */
TSR_API tsr_status tsr_node_shard(tsr_node *node, tsr_value *value, tsr_config *config,
                                  int64_t axis, int64_t count, const int64_t *devices,
                                  size_t n_devices, int64_t stage);
/* Removes the shardings of a value at a node, for one configuration or (NULL) all. TSR_INVALID:
 * no such sharding. */
TSR_API tsr_status tsr_node_unshard(tsr_node *node, tsr_value *value, tsr_config *config);
/* Sets the pipeline stage of a node. */
TSR_API tsr_status tsr_node_set_stage(tsr_node *node, tsr_config *config, int64_t stage);
/* Removes the pipeline stage. TSR_INVALID: no stage is set. */
TSR_API tsr_status tsr_node_unset_stage(tsr_node *node, tsr_config *config);

/* The annotations of a node, one per configuration. */
TSR_API size_t tsr_node_config_count(const tsr_node *node);
TSR_API tsr_node_config *tsr_node_config_at(const tsr_node *node, size_t i);
/* Returns the annotation for a configuration, or NULL. */
TSR_API tsr_node_config *tsr_node_find_config(const tsr_node *node, const tsr_config *config);
TSR_API tsr_status tsr_node_remove_config(tsr_node *node, tsr_node_config *annotation);
/* Returns the configuration of an annotation; NULL: the file names none. One that the model does
 * not declare has 0 devices. */
TSR_API tsr_config *tsr_node_config_target(const tsr_node_config *annotation);
/* Reads the pipeline stage; false: no stage is set. */
TSR_API bool tsr_node_config_stage(const tsr_node_config *annotation, int64_t *stage);
TSR_API size_t tsr_node_config_spec_count(const tsr_node_config *annotation);
TSR_API tsr_spec *tsr_node_config_spec(const tsr_node_config *annotation, size_t i);
/* Returns sharding i of a value at a node, over all configurations; NULL past the end. */
TSR_API tsr_spec *tsr_node_sharding_of(const tsr_node *node, const tsr_value *value, size_t i);

/* The fields of a sharding, as in the file. */
/* Returns its value; NULL: the file names none. */
TSR_API tsr_value *tsr_spec_value(const tsr_spec *spec);
/* Returns the number of devices or keys of device groups, and the list in *out. */
TSR_API size_t tsr_spec_devices(const tsr_spec *spec, const int64_t **out);
TSR_API size_t tsr_spec_group_count(const tsr_spec *spec);
/* Returns the key of group i, and its devices. */
TSR_API int64_t tsr_spec_group(const tsr_spec *spec, size_t i, const int64_t **members, size_t *n);
/* Sharded dimensions: their axis, and their factors, usually one. */
TSR_API size_t tsr_spec_dim_count(const tsr_spec *spec);
TSR_API int64_t tsr_spec_dim_axis(const tsr_spec *spec, size_t i);
TSR_API size_t tsr_spec_dim_factor_count(const tsr_spec *spec, size_t i);
/* Returns the number of shards of factor k, and its size (value -1 and symbol "" if the file has
 * none). */
TSR_API int64_t tsr_spec_dim_factor(const tsr_spec *spec, size_t i, size_t k, tsr_dim *size);

/* Adds an empty sharding, whose fields the next functions set. They are not validated: tsr_check
 * does it. value may be NULL. Returns NULL for handles of another model and if there is no memory.
 */
TSR_API tsr_spec *tsr_node_add_spec(tsr_node *node, tsr_config *config, tsr_value *value);
TSR_API tsr_status tsr_spec_set_devices(tsr_spec *spec, const int64_t *devices, size_t n);
TSR_API tsr_status tsr_spec_add_group(tsr_spec *spec, int64_t key, const int64_t *members,
                                      size_t n);
/* Adds a sharded dimension with n factors. sizes may be NULL: none is given. */
TSR_API tsr_status tsr_spec_add_dim(tsr_spec *spec, int64_t axis, const tsr_dim *sizes,
                                    const int64_t *shards, size_t n);
/* Removes a sharding. TSR_INVALID: it was removed before. */
TSR_API tsr_status tsr_spec_remove(tsr_spec *spec);

/* ---- 5 notation ------------------------------------------------------------------------------ */

/* Shards a value at a node by a text, and replaces its sharding there:
 *   {2,1:0,1}            axis 0 in 2 shards, on devices 0 and 1
 *   {2,1:(0,1),(2,3)}    each shard replicated on a group of devices
 *   {1:0,1}              replicated
 *   {4/2*16,1:0,1}       axis 0 as factors 4 (in 2 shards) and 16
 *   {2,...:0,1}          further axes unsharded
 *   S0,R@2x2             over a 2x2 mesh: axis 0 by mesh axis 0, axis 1 replicated
 *   ({0},{})@2x2         the same as sets of mesh axes
 * Without @ the mesh is the grid of the configuration's topology, or all devices in a line.
 * TSR_MALFORMED: the text cannot be parsed. TSR_INVALID: it does not fit the value or
 * configuration. */
TSR_API tsr_status tsr_node_shard_text(tsr_node *node, tsr_value *value, tsr_config *config,
                                       const char *text);
/* Returns a sharding as text, which tsr_node_shard_text reads as the same sharding; "" if it is
 * empty. Belongs to the model. A value of unknown rank is written with "...". */
TSR_API tsr_status tsr_spec_text(const tsr_spec *spec, const char **out);
typedef enum tsr_notation {
    TSR_NOTATION_TILES = 0, /* {2,1:(0,1),(2,3)} */
    TSR_NOTATION_MESH = 1,  /* S0,R@2x2; over one axis SR@4 */
    TSR_NOTATION_SETS = 2,  /* ({0},{})@2x2 */
} tsr_notation;
/* As tsr_spec_text in one of the notations. What a mesh cannot express (factors, groups of
 * different size, unknown rank) is written as tiles. */
TSR_API tsr_status tsr_spec_text_as(const tsr_spec *spec, tsr_notation notation, const char **out);

/* ---- 6 tiles --------------------------------------------------------------------------------- */

/* The boxes of a tensor on the devices that a sharding names. */
typedef struct tsr_tiling tsr_tiling;
/* A box of the tensor on one device: [start, stop) in each dimension. */
typedef struct tsr_box {
    size_t size;
    int64_t device;
    const int64_t *start, *stop; /* one entry per dimension */
} tsr_box;
#define TSR_BOX_INIT TSR_INIT(tsr_box)
/* Applies a sharding to a shape. devices: number of devices; 0: those that the text names. Errors
 * as tsr_node_shard_text. */
TSR_API tsr_status tsr_tiling_new(tsr_session *session, const char *sharding, int rank,
                                  const int64_t *shape, int64_t devices, tsr_tiling **out);
TSR_API void tsr_tiling_free(tsr_tiling *tiling);
/* Returns the number of boxes; reads box i. */
TSR_API size_t tsr_tiling_count(const tsr_tiling *tiling);
TSR_API tsr_status tsr_tiling_box(const tsr_tiling *tiling, size_t i, tsr_box *out);

/* A tensor dictionary: the shards of one tensor, by device. A device with several tiles has a piece
 * for each, in the order of the tiles. */
typedef struct tsr_pieces tsr_pieces;
typedef struct tsr_piece {
    size_t size;
    int64_t device, tile; /* tiles are numbered row-major */
    int rank;
    const int64_t *dims; /* of the piece */
    void *data;          /* its elements, row-major; they may be written */
    size_t bytes;
} tsr_piece;
#define TSR_PIECE_INIT TSR_INIT(tsr_piece)
/* Splits a tensor by a sharding and copies the elements; data NULL: zeros. TSR_UNSUPPORTED: the
 * elements have less than a byte. */
TSR_API tsr_status tsr_pieces_new(tsr_session *session, const char *sharding, tsr_dtype type,
                                  int rank, const int64_t *shape, const void *data,
                                  tsr_pieces **out);
TSR_API void tsr_pieces_free(tsr_pieces *pieces);
/* Returns the number of pieces; reads piece i, ordered by device and then tile. */
TSR_API size_t tsr_pieces_count(const tsr_pieces *pieces);
TSR_API tsr_status tsr_pieces_at(const tsr_pieces *pieces, size_t i, tsr_piece *out);
/* Return the index of piece k of a device, or of device k of a tile; -1: no such piece. */
TSR_API int64_t tsr_pieces_find(const tsr_pieces *pieces, int64_t device, size_t k);
TSR_API int64_t tsr_pieces_find_tile(const tsr_pieces *pieces, int64_t tile, size_t k);
/* Joins the pieces into `out`, which has the size of the full tensor. Tiles without a device become
 * zeros. TSR_INVALID (pieces-differ): copies of one tile differ. */
TSR_API tsr_status tsr_pieces_join(const tsr_pieces *pieces, void *out);

/* ---- 7 resharding ---------------------------------------------------------------------------- */

typedef struct tsr_reshard_options {
    size_t size;
    /* "sum", "max", "min" or "prod": the devices of each tile have partial results, which are
     * combined. NULL: the tensor is complete. */
    const char *pending;
    tsr_dtype type; /* TSR_UNDEFINED: float32 */
    /* Devices 0, 1, ... of the tensor, and the mesh of shardings without @, as in
     * tsr_node_shard_text. NULL: no time is predicted, and such shardings are refused. */
    tsr_topology *topology;
} tsr_reshard_options;
#define TSR_RESHARD_OPTIONS_INIT TSR_INIT(tsr_reshard_options)

/* One step of a resharding. Bytes are exact, also for uneven and strided shards: what must arrive,
 * without overhead of a protocol. */
typedef struct tsr_step {
    size_t size;
    /* slice, all-gather, all-to-all, reduce-scatter, all-reduce, reduce, permute, broadcast,
     * scatter, gather, exchange */
    const char *op;
    /* axis of the gather (-1: several, or none); all-to-all: axis sharded before, axis sharded
     * after */
    int axis, to_axis;
    int64_t received;     /* largest number of bytes that one device receives */
    int64_t sent;         /* largest number of bytes that one device sends */
    int64_t total;        /* bytes that all devices receive */
    const char *sharding; /* after the step */
    /* Groups that work at the same time. For reduce, broadcast, scatter and gather the root is
     * first. */
    const tsr_group *groups;
    size_t n_groups;
} tsr_step;
#define TSR_STEP_INIT TSR_INIT(tsr_step)

typedef struct tsr_resharding tsr_resharding;
/* Connects two shardings of a tensor: finds the cheapest steps from one to the other, none if
 * nothing is to be done. Shardings are written as for tsr_node_shard_text. options NULL: the
 * defaults. An exchange of overlaps is always possible, so only a target with a tile that no device
 * of the source has is refused (TSR_INVALID, reshard-source). TSR_UNSUPPORTED: elements have less
 * than a byte. Other errors as tsr_node_shard_text. */
TSR_API tsr_status tsr_resharding_new(tsr_session *session, const char *from, const char *to,
                                      int rank, const int64_t *shape,
                                      const tsr_reshard_options *options, tsr_resharding **out);
TSR_API void tsr_resharding_free(tsr_resharding *resharding);
/* Returns the predicted time of all steps in picoseconds; -1: no topology was given. */
TSR_API int64_t tsr_resharding_time(const tsr_resharding *resharding);
/* Returns the number of steps; reads step i. */
TSR_API size_t tsr_resharding_count(const tsr_resharding *resharding);
TSR_API tsr_status tsr_resharding_step(const tsr_resharding *resharding, size_t i, tsr_step *out);

#ifdef __cplusplus
}
#endif
#endif
