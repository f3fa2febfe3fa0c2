// SPDX-License-Identifier: Apache-2.0
// ir.h - models, graphs, nodes, values, attributes, tensors and annotations as linked objects.
//
// Other modules use tessera.h and this header. Only the files in serde/ know the file format.
#ifndef TSR_IR_H
#define TSR_IR_H

#include "base/base.h"

// ---- models (core.c, model.c, clone.c) ---------------------------------------------------------

// Returns the arena that lives as long as the model.
struct arena *tsr__model_arena(tsr_model *model);

// Return the id of a node or value, and the number of ids in use, for arrays indexed by node or
// value. Removed objects keep their ids. Values are graph inputs, initializers, node outputs of all
// graphs, and placeholders (names that are read but not defined).
uint32_t tsr__node_id(const tsr_node *node);
uint32_t tsr__value_id(const tsr_value *value);
uint32_t tsr__model_node_ids(const tsr_model *model);
uint32_t tsr__model_value_ids(const tsr_model *model);

// A result that another module has computed from the model and keeps with it (its shapes).
struct derived {
    struct derived *next;
    struct arena arena; // memory of the result
    void *result;       // NULL: not finished
};
// Returns the kept results, newest first. The first call after an edit of anything but annotations
// and metadata frees all of them and returns NULL.
struct derived *tsr__model_derived(tsr_model *model);
// Adds an empty result. Returns NULL if out of memory.
struct derived *tsr__model_derive(tsr_model *model);
// Frees the results for which keeps(result, data) is false; keeps NULL: all. Callers must not hold
// them.
void tsr__model_drop_derived(tsr_model *model, bool (*keeps)(const void *result, const void *data),
                             const void *data);

// As tsr_model_clone, without configurations and annotations.
tsr_status tsr__model_clone_bare(const tsr_model *model, tsr_model **out) TSR_MUST_USE;
// Copies the functions of another model, without their annotations.
tsr_status tsr__model_copy_functions(tsr_model *to, const tsr_model *from) TSR_MUST_USE;
// Returns the bytes of the weights of the main graph; INT64_MAX: too many to count.
int64_t tsr__model_weight_bytes(const tsr_model *model);
// Raises ir_version to 11, the first with configurations, if it is lower.
tsr_status tsr__model_allow_configs(tsr_model *model) TSR_MUST_USE;
// Adds the folder of `file`. Data files that are not in the folder of the model are searched there.
tsr_status tsr__model_add_data_folder(tsr_model *model, const char *file) TSR_MUST_USE;
// Lists the external data files of the model, each once. The list is in the model's arena.
tsr_status tsr__model_data_files(tsr_model *model, const struct str **out, size_t *n) TSR_MUST_USE;

// ---- names and places (core.c, graph.c, names.c) -----------------------------------------------

struct str tsr__value_str(const tsr_value *value);
struct str tsr__node_str(const tsr_node *node); // name
struct str tsr__node_op_str(const tsr_node *node);
struct str tsr__node_domain_str(const tsr_node *node); // "" for ai.onnx
// Returns the name of the node, or of its first output; "" if it has neither.
const char *tsr__node_label(const tsr_node *node);
// Returns an array of tsr_value_rank(value) dimensions, valid until the type is changed.
const tsr_dim *tsr__value_dims(const tsr_value *value);
struct str tsr__dim_symbol(const tsr_value *value, int axis); // "": none
// Return the version of an operator set: for the domain of a node, or for any domain in a graph. 0:
// the domain is not imported.
int64_t tsr__node_opset(const tsr_node *node);
int64_t tsr__graph_opset(const tsr_graph *graph, struct str domain);
// Returns the place of a node for diagnostics: graph path ("main > #3 If then_branch"), index,
// name, operator.
struct place tsr__place_node(const tsr_node *node);
struct place tsr__place_value(const tsr_value *value);
// The place of a node's annotation; config and value may be NULL.
struct place tsr__place_spec(const tsr_node *node, const tsr_config *config,
                             const tsr_value *value);
// Returns a value name that starts with `base` and is not used in any graph of the model.
struct str tsr__graph_fresh_name(tsr_graph *graph, struct str base);
// Renames new nodes (N_NEW) of the graph and its subgraphs if an earlier node of the same graph has
// the same name, because engines reject duplicates. Example: a second "mm" becomes "mm_1". Nodes
// without a name keep none.
tsr_status tsr__graph_unique_node_names(tsr_graph *graph) TSR_MUST_USE;

// ---- the slots of a node that have a given value (slots.c) --------------------------------------

// The following functions are faster than reading all inputs of a node that has many.

// True if the value is an input or output of the node.
bool tsr__node_has(const tsr_node *node, const tsr_value *value);
// Returns the index of the value in the outputs of the node, or -1.
int64_t tsr__output_slot(const tsr_node *node, const tsr_value *value);
// Returns the index of an earlier input with the same value as input i, not always the first one;
// -1 if there is none.
int64_t tsr__earlier_reading(const tsr_node *node, size_t i);
// Iterates over the inputs (in any order) and the output of a node that have the value.
struct use;
struct slots {
    const tsr_node *node;
    const tsr_value *value;
    const struct use *use; // position in the ring of uses; NULL: iterate over the inputs in order
    size_t left;           // uses of the ring that are not yet visited
    size_t next;           // next input
    bool ended;
};
struct slots tsr__slots_of(const tsr_node *node, const tsr_value *value);
bool tsr__slots_next(struct slots *slots, bool *is_output, size_t *slot);

// ---- annotations (config.c, spec.c) ------------------------------------------------------------

// Returns the first spec of the value in an annotation of a node, or NULL.
tsr_spec *tsr__entry_spec(const tsr_node_config *nc, const tsr_value *value);
// Returns the pipeline stage of a node in a configuration; -1: none, or a negative number.
int64_t tsr__node_stage(const tsr_node *node, const tsr_config *config);
// Return the node and the configuration of a spec (NULL: its annotation names no configuration).
tsr_node *tsr__spec_node(const tsr_spec *spec);
tsr_config *tsr__spec_config(const tsr_spec *spec);
// False for placeholders and removed configurations.
bool tsr__config_is_declared(const tsr_config *config);
// Returns false, with a diagnostic, if the configuration does not belong to this model.
bool tsr__config_is_of(const tsr_config *config, tsr_model *model);

// ---- copying nodes and constants (transplant.c, attr.c, graph_edit.c) --------------------------

// Appends a copy of a node without subgraphs to a graph, which may be of another model. Annotations
// are not copied. The outputs are new values with the given names.
tsr_node *tsr__node_copy(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                         size_t n_inputs, const struct str *outputs, size_t n_outputs);
// As tsr__node_copy, also for nodes with subgraphs: map(data, value) returns the replacement of an
// outer value.
tsr_node *tsr__node_copy_deep(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                              size_t n_inputs, const struct str *outputs, size_t n_outputs,
                              tsr_value *(*map)(void *data, tsr_value *outer), void *data);
// Adds an attribute with an empty subgraph. The node must not have the attribute. Returns NULL
// after a failure.
tsr_graph *tsr__node_add_graph(tsr_node *node, const char *attribute, const char *name);
bool tsr__node_has_graphs(const tsr_node *node); // true if an attribute of the node is a graph
// Lists the outer values that the results of a node's subgraphs depend on, each once, in the
// model's arena. Returns their number.
size_t tsr__node_captures(const tsr_node *node, tsr_value ***out);
// If an output of the node is marked in `needed` (by value id), marks all values that the node
// reads. Returns false if no output is marked.
bool tsr__node_needed(const tsr_node *node, unsigned char *needed);
// Removes the nodes that no output of their graph depends on, also in subgraphs.
tsr_status tsr__graph_remove_unused(tsr_graph *graph) TSR_MUST_USE;
tsr_status tsr__node_remove_unused(tsr_node *node) TSR_MUST_USE; // the same in its subgraphs
// Adds an initializer with external data.
tsr_value *tsr__graph_add_external(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const char *location, uint64_t offset,
                                   uint64_t length);
// Removes the initializers of values that are also inputs: defaults that callers may override. Does
// nothing for models before IR version 4, in which all constants are also inputs.
void tsr__graph_drop_defaults(tsr_graph *graph);
// Copies an initializer of any encoding. External and sparse data is loaded; the copy is a plain
// tensor.
tsr_status tsr__graph_copy_initializer(tsr_graph *graph, const tsr_value *value, const char *name,
                                       tsr_value **out) TSR_MUST_USE;
// Sets *node to the first node of the main graph that reads a value before it is computed, and
// *value to that value. *node NULL: the nodes are sorted.
tsr_status tsr__model_unsorted(const tsr_model *model, const tsr_node **node,
                               const tsr_value **value) TSR_MUST_USE;
// Returns TSR_INVALID, with diagnostics, if a node or the model reads a value that nothing defines,
// or if nodes of the main graph form a cycle.
tsr_status tsr__model_check_values(const tsr_model *model) TSR_MUST_USE;
// Sorts the nodes of the main graph so that every value is computed before it is read. A sorted
// model is not changed. Fails as tsr__model_check_values does.
tsr_status tsr__model_sort(tsr_model *model) TSR_MUST_USE;
// Copies a type, including sequences, optionals and maps.
tsr_status tsr__value_copy_type(tsr_value *to, const tsr_value *from);

// ---- tensors (serde/tensor*.c, transplant.c) ---------------------------------------------------

// Finds the raw bytes of the tensor in a file, which the model keeps open as `fd`. Returns false if
// the bytes are not in a file as they are (for example varints); use tsr_tensor_data then.
bool tsr__tensor_window(const tsr_tensor *tensor, int *fd, uint64_t *offset, uint64_t *length);
// Returns the file of external data and the offset in it, as the model states them. Returns false
// if the data is not external or its record is invalid.
bool tsr__tensor_external(const tsr_tensor *tensor, struct str *location, uint64_t *offset);
// As tsr_tensor_data, but missing external data is only a warning (external-absent, once per
// session).
bool tsr__tensor_peek(const tsr_tensor *tensor, const void **bytes, size_t *n);
// Checks that all external data exists, without reading it. Returns TSR_OK for other data.
tsr_status tsr__tensor_check_external(const tsr_tensor *tensor) TSR_MUST_USE;
// Lists the strings of a string tensor. They point into the model; the list is in the arena.
tsr_status tsr__tensor_texts(const tsr_tensor *tensor, struct arena *arena,
                             const struct str **out) TSR_MUST_USE;
// Visits the constants of a graph and its subgraphs until a visit fails.
tsr_status tsr__graph_visit_constants(const tsr_graph *graph,
                                      tsr_status (*visit)(const tsr_tensor *tensor)) TSR_MUST_USE;
// Makes the only output of the node an initializer with this tensor, one of the node's attributes.
// Removes the node.
tsr_status tsr__node_to_initializer(tsr_node *node, const tsr_tensor *from) TSR_MUST_USE;
// Reads the external data of constants in subgraphs, so that copies of the node contain it.
tsr_status tsr__node_load_constants(const tsr_node *node) TSR_MUST_USE;

// A file of ONNX test data. `wrapped` is the result of tsr__value_wrapped for its value.
struct tensor_file {
    bool sequence;
    size_t n; // if 0 and not a sequence: an optional without a value
    const tsr_tensor **at;
    tsr_model **holders; // models that own the tensors
};
// Opens a file of test data. It must be closed even after a failure, before the arena is freed.
tsr_status tsr__tensor_file_open(tsr_session *session, struct arena *arena, const char *path,
                                 int wrapped, struct tensor_file *out) TSR_MUST_USE;
void tsr__tensor_file_close(struct tensor_file *file);

// ---- types other than tensors (graph.c, serde/decode.c) ----------------------------------------

bool tsr__value_is_other(const tsr_value *value); // sequence, map, optional, ...
// Returns 1 for a sequence of tensors, 2 for an optional, 3 for an optional sequence, -1 for
// anything else. Also returns the type of the tensors; dims are in the model's memory.
int tsr__value_wrapped(const tsr_value *value, tsr_dtype *dtype, int *rank, const tsr_dim **dims);
// True for maps, sequences of maps, opaque and sparse types. These cannot be inputs or outputs of a
// run.
bool tsr__value_is_no_tensor(const tsr_value *value);
#define TSR_NO_TENSOR_HINT                                                                         \
    "use a tensor instead; classifiers of scikit-learn: export with zipmap=False "                 \
    "(convert_sklearn(..., options={\"zipmap\": False}))"

// ---- attributes (attr.c, serde/attr_list.c) ----------------------------------------------------

struct str tsr__attr_ref(const tsr_attr *attr); // referenced attribute of the function, or empty
// Returns the number of elements of a FLOATS attribute, which may exceed cap; -1 for another kind.
int64_t tsr__attr_floats(const tsr_attr *attr, float *out, int64_t cap);
// Returns the number of elements of a list attribute; -1: the attribute is not a list.
int64_t tsr__attr_length(const tsr_attr *attr);
// Returns the elements of an attribute: a tensor, or integers (int64) or floats (float32) as a
// tensor of rank 0 or 1; NULL: other kinds, and references. Valid as long as the attribute is not
// changed.
const tsr_tensor *tsr__attr_constant(const tsr_attr *attr);
// Keeps only the elements first .. last - 1 of a list of strings, floats or integers.
tsr_status tsr__attr_keep(tsr_attr *attr, int64_t first, int64_t last) TSR_MUST_USE;

// ---- functions (transplant.c, serde/decode.c) --------------------------------------------------

// Returns the default of an attribute in the function, or NULL.
tsr_attr *tsr__function_attr(const tsr_function *fn, struct str name);
// As tsr_node_inline, for callers that have checked the operator set versions themselves.
tsr_status tsr__node_inline_any_opset(tsr_node *call) TSR_MUST_USE;
// Returns the function that the node calls, or NULL.
tsr_function *tsr__node_function(const tsr_node *node);
// Returns the function that contains the node, or NULL for the main graph.
const tsr_function *tsr__node_home(const tsr_node *node);
size_t tsr__function_index(const tsr_function *function); // index in its model
// For the module `rules`: caches why the body of a function cannot be inlined. Valid for calls from
// the same function.
struct call_memo {
    bool known;
    uint64_t n_edits; // of the model, when the rest was found
    const tsr_function *home;
    // Why it cannot be inlined; NULL: it can.
    const char *misfit;
};
// Returns the cache, which is empty after every edit of the model but annotations and metadata.
struct call_memo *tsr__function_memo(tsr_function *function);

#endif
