// SPDX-License-Identifier: Apache-2.0
// ir.h - model, graph, node, value, attribute, tensor and device annotations, as objects that point at each
// other. Other rooms use tessera.h plus what stands here; serde.c alone knows how it looks in a file.
#ifndef TSR_IR_H
#define TSR_IR_H

#include "base/base.h"

struct tsr_model;
// Memory with the model's lifetime.
struct arena *tsr__model_arena(tsr_model *model);

// Dense numbers for side tables: every node and value of a model has one, below the count (removed ones keep
// theirs). Values include graph inputs, initializers, outputs of nodes of all graphs, and stand-ins.
uint32_t tsr__node_id(const tsr_node *node);
uint32_t tsr__value_id(const tsr_value *value);

// ---- where a value stands at a node (slots.c)
// None of these reads all slots of a large node for one value.

// True if the value is an input or an output of the node.
bool tsr__node_has(const tsr_node *node, const tsr_value *value);
// The output of the node that is this value, or -1.
int64_t tsr__output_slot(const tsr_node *node, const tsr_value *value);
// An input before the i-th that reads the same value, not always the first; -1: there is none.
int64_t tsr__earlier_reading(const tsr_node *node, size_t i);
// All slots of a node that hold a value: its inputs in any order, then its output.
struct use;
struct slots {
    const tsr_node *node;
    const tsr_value *value;
    const struct use *use; // of the ring that is left to walk; NULL: inputs are read in order
    size_t left;           // uses of the ring
    size_t next;           // input
    bool ended;
};
struct slots tsr__slots_of(const tsr_node *node, const tsr_value *value);
bool tsr__slots_next(struct slots *slots, bool *is_output, size_t *slot);
// The first spec of the value in an entry of a node, or NULL.
tsr_spec *tsr__entry_spec(const tsr_node_config *nc, const tsr_value *value);
uint32_t tsr__model_node_ids(const tsr_model *model);
uint32_t tsr__model_value_ids(const tsr_model *model);

// Ranks by value id (-1: not known) that another room has found, kept with the model until anything but its annotations
// changes. NULL: none are kept. Keeping copies the list, which has one rank for each value id.
const int *tsr__model_ranks(const tsr_model *model);
tsr_status tsr__model_keep_ranks(tsr_model *model, const int *ranks) TSR_MUST_USE;

struct str tsr__value_str(const tsr_value *value);
struct str tsr__node_str(const tsr_node *node); // name
struct str tsr__node_op_str(const tsr_node *node);
// What people call it by: its name, else its first output's; "" if it has neither.
const char *tsr__node_label(const tsr_node *node);
struct str tsr__node_domain_str(const tsr_node *node); // "" for ai.onnx
const tsr_dim *tsr__value_dims(
    const tsr_value *value); // tsr_value_rank of them; valid until the type is set again
struct str tsr__dim_symbol(const tsr_value *value, int axis); // "" where none
// Opset version that the node's domain has in its model or function; 0: not imported.
int64_t tsr__node_opset(const tsr_node *node);
// The same of any domain, for a graph and what is in it.
int64_t tsr__graph_opset(const tsr_graph *graph, struct str domain);
// Place of a node for findings (graph path such as "main > #3 If then_branch", index, name, operator).
struct place tsr__place_node(const tsr_node *node);
struct place tsr__place_value(const tsr_value *value);

// tsr_model_clone without configurations, and without what nodes say for them.
tsr_status tsr__model_clone_bare(const tsr_model *model, tsr_model **out) TSR_MUST_USE;
// Raises ir_version to 11 where it is lower, the first that has configurations.
tsr_status tsr__model_allow_configs(tsr_model *model) TSR_MUST_USE;
// Whose spec it is: the node that has it, and the configuration it holds for (NULL: the id was absent).
tsr_node *tsr__spec_node(const tsr_spec *spec);
tsr_config *tsr__spec_config(const tsr_spec *spec);

// A copy of the node (attributes as they stand, subgraphs not allowed here) at the end of the graph, which may be of another
// model; no annotations are copied. outputs are made with the given names.
tsr_node *tsr__node_copy(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                         size_t n_inputs, const struct str *outputs, size_t n_outputs);
// The same for a node with subgraphs: outer values that they read are looked up through map(data, value).
tsr_node *tsr__node_copy_deep(tsr_graph *graph, const tsr_node *node, tsr_value *const *inputs,
                              size_t n_inputs, const struct str *outputs, size_t n_outputs,
                              tsr_value *(*map)(void *data, tsr_value *outer), void *data);
// An empty subgraph of that name as an attribute of the node (which had none of that name). NULL: failed.
tsr_graph *tsr__node_add_graph(tsr_node *node, const char *attribute, const char *name);
// Values that the subgraphs of the node read from outside (each once): count and list in the model's arena.
size_t tsr__node_captures(const tsr_node *node, tsr_value ***out);
// One of the values that are marked in needed (by id) comes from the node: marks what it reads. False: none does.
bool tsr__node_needed(const tsr_node *node, unsigned char *needed);
// An initializer whose bytes lie in another file.
tsr_value *tsr__graph_add_external(tsr_graph *graph, const char *name, tsr_dtype type, int rank,
                                   const int64_t *dims, const char *location, uint64_t offset,
                                   uint64_t length);
// The data files that the model's bytes name, as they are named, each once: list in the model's arena.
tsr_status tsr__model_data_files(tsr_model *model, const struct str **out, size_t *n) TSR_MUST_USE;
// Copies an initializer as it stands (strings and odd encodings too; external data becomes a view of its bytes).
tsr_value *tsr__graph_copy_initializer(tsr_graph *graph, const tsr_value *value, const char *name);
// Copies the functions of another model, without their annotations.
tsr_status tsr__model_copy_functions(tsr_model *to, const tsr_model *from) TSR_MUST_USE;
// The type of `from` for `to` (dimensions and all; sequence, optional and map types too).
tsr_status tsr__value_copy_type(tsr_value *to, const tsr_value *from);
// Where the raw bytes of a constant lie in a file, for streaming: false if they must be taken through
// tsr_tensor_data (typed fields) instead. The fd belongs to the model.
bool tsr__tensor_window(const tsr_tensor *tensor, int *fd, uint64_t *offset, uint64_t *length);
// The elements, for those who would like to know them but can do without (rules): as tsr_tensor_data, but external
// data that is not there is a warning (external-absent, once for a session) and no error.
bool tsr__tensor_peek(const tsr_tensor *tensor, const void **bytes, size_t *n);
// Whether external data is there, all of it; not a byte is read. TSR_OK too for data inside the model.
tsr_status tsr__tensor_there(const tsr_tensor *tensor) TSR_MUST_USE;
// Visits the constants of the graph and of all graphs nested in it, until a visit fails.
tsr_status tsr__graph_visit_constants(const tsr_graph *graph,
                                      tsr_status (*visit)(const tsr_tensor *tensor)) TSR_MUST_USE;
// Reads the external data of constants in the node's subgraphs. Copies of the node in other models
// then hold it themselves (tsr__node_copy_deep).
tsr_status tsr__node_load_constants(const tsr_node *node) TSR_MUST_USE;
// What the public queries leave out, for the checker: absent is not the same as zero.
bool tsr__config_is_declared(const tsr_config *config); // false: a stand-in, or taken off the model
bool tsr__value_is_other(const tsr_value *value);       // declared as sequence, map, optional, ...
// A value declared as a sequence (result 1), an optional (2) or an optional sequence (3) of tensors, and what those
// are; -1: anything else. dims lie in the model's memory.
int tsr__value_wrapped(const tsr_value *value, tsr_dtype *dtype, int *rank, const tsr_dim **dims);
// Declared as a map, a sequence of maps, an opaque or a sparse type: it cannot be handed to a run or taken from it.
bool tsr__value_is_no_tensor(const tsr_value *value);
#define TSR_NO_TENSOR_HINT                                                                         \
    "give a tensor instead; classifiers of scikit-learn: export with zipmap=False "                \
    "(convert_sklearn(..., options={\"zipmap\": False}))"
struct str tsr__attr_ref(const tsr_attr *attr); // function attribute it stands for, or empty
// Numbers of a FLOATS attribute (the count may be above cap); -1: it is none. Entries of a list attribute; -1: no list.
int64_t tsr__attr_floats(const tsr_attr *attr, float *out, int64_t cap);
int64_t tsr__attr_length(const tsr_attr *attr);
// A list of texts, floats or integers keeps its entries first .. last - 1 alone.
tsr_status tsr__attr_keep(tsr_attr *attr, int64_t first, int64_t last) TSR_MUST_USE;
tsr_attr *tsr__function_attr(const tsr_function *fn,
                             struct str name); // its default in the function, or NULL
// tsr_node_inline for callers who know that the body means the same in the operator sets of this place.
tsr_status tsr__node_inline_here(tsr_node *call) TSR_MUST_USE;
// The function of the model that the node calls, or NULL.
tsr_function *tsr__node_function(const tsr_node *node);
// The function whose body the node is part of, directly or in a subgraph; NULL: the main graph.
const tsr_function *tsr__node_home(const tsr_node *node);
size_t tsr__function_index(const tsr_function *function); // in its model
// False, with a finding, if the configuration is not one of this model.
bool tsr__config_is_of(const tsr_config *config, tsr_model *model);
// What `rules` found out about calls of a function: why its body does not fit a place. It holds for calls from the
// same body while the model imports as many operator sets.
struct call_memo {
    const tsr_function *home;
    size_t n_opsets; // 1 more than there were; 0: nothing is known yet
    const char *misfit;
};
struct call_memo *tsr__function_memo(tsr_function *function);
// Name not yet used in the graph, starting from base.
struct str tsr__graph_fresh_name(tsr_graph *graph, struct str base);
// Nodes of the graph and of the bodies in it that share their name with an earlier node of their graph get a name of their
// own, "mm_1" say: engines refuse graphs in which two nodes have one name. Nodes without a name stay so.
tsr_status tsr__graph_part_names(tsr_graph *graph) TSR_MUST_USE;
// The texts of a tensor of texts, in the arena, as many as its shape says; views into the model.
tsr_status tsr__tensor_texts(const tsr_tensor *tensor, struct arena *arena,
                             const struct str **out) TSR_MUST_USE;
// What a file of ONNX test data holds: one tensor (wrapped -1), or what tsr__value_wrapped tells apart: a sequence, an
// optional, an optional sequence. n 0 without sequence: an optional without a value.
struct tensor_file {
    bool sequence;
    size_t n;
    const tsr_tensor **at;
    tsr_model **holders; // of the tensors
};
// To be closed after use, in every case; the arena must outlive that.
tsr_status tsr__tensor_file_open(tsr_session *session, struct arena *arena, const char *path,
                                 int wrapped, struct tensor_file *out) TSR_MUST_USE;
void tsr__tensor_file_close(struct tensor_file *file);

#endif
