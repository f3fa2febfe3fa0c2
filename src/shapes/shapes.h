// SPDX-License-Identifier: Apache-2.0
// shapes.h - type and shape of every value, and the elements of small integer tensors.
#ifndef TSR_SHAPES_H
#define TSR_SHAPES_H

#include "ir/ir.h"

// ---- shapes ------------------------------------------------------------------------------------

// Types and shapes of all values, from declarations of the model and from the rules.
struct shapes;
struct shape {
    tsr_dtype dtype;     // TSR_UNDEFINED: unknown, or not a tensor
    int rank;            // -1: not known
    const tsr_dim *dims; // symbols are NUL-terminated text; value -1 and symbol "": not known
};
// Infers nodes that were added to the graph later, in their order. False: out of memory.
bool tsr__shapes_add(struct shapes *shapes, tsr_node *const *nodes, size_t n);
// Returns the shape of a tensor; rank -1: unknown, absent (NULL), or not a tensor.
struct shape tsr__shapes_of(const struct shapes *shapes, const tsr_value *value);
// Returns the shape of a tensor. For a sequence or an optional value, it returns what all elements
// have in common.
struct shape tsr__shapes_element(const struct shapes *shapes, const tsr_value *value);
// Returns bits of the axes for which ONNX infers another size than a run has, as for some pools
// with ceil_mode. ONNX Runtime believes these sizes when it plans memory and folds constants.
unsigned tsr__shapes_misread(const struct shapes *shapes, const tsr_value *value);
// True for a sequence, a map or an optional value, which is not sharded.
bool tsr__shapes_is_list(const struct shapes *shapes, const tsr_value *value);
// How a value that is not a tensor can be split into tensors and rebuilt on another device.
enum list_form {
    LIST_STAYS,    // not possible: strings, tensors of unknown type, an optional that may be empty
    LIST_SEQUENCE, // element by element; the number of elements is known at run time
    LIST_OPTIONAL, // one element, which exists
};
enum list_form tsr__shapes_list_form(const struct shapes *shapes, const tsr_value *value);
// Reads the elements of a small integer tensor if inference knows all of them as numbers. Returns
// their number; -1: unknown, or more than cap.
int64_t tsr__shapes_ints(const struct shapes *shapes, const tsr_value *value, int64_t *out,
                         int64_t cap);
// True if an element of the tensor may be 0. In the target of a Reshape, 0 copies the old size.
bool tsr__shapes_may_copy(const struct shapes *shapes, const tsr_value *value);
// Returns the index of the element that is -1. In the target of a Reshape, its size follows from
// the others. -1: no element is known to be -1.
int64_t tsr__shapes_rest(const struct shapes *shapes, const tsr_value *value);

// A size that is read from a text: a number, or what the caller made of symbols (not NULL).
struct size_value {
    bool known;
    int64_t number;
    const void *made;
};
enum size_op {
    SIZE_OP_ADD,
    SIZE_OP_SUB,
    SIZE_OP_MUL,
    SIZE_OP_DIV,
    SIZE_OP_MOD,
    SIZE_OP_MAX,
    SIZE_OP_MIN
};
// Callbacks that make the value of a symbol, and of an operation on known values.
struct size_reader {
    void *data;
    struct size_value (*symbol)(void *data, struct str name);
    struct size_value (*combine)(void *data, enum size_op op, struct size_value a,
                                 struct size_value b);
    int names; // number of symbols that were read
};
// Reads an expression such as "batch*(seq + 2)" (expr_text.c has the grammar). Not known: the text
// is no expression, or a callback returned an unknown value.
struct size_value tsr__size_read(struct size_reader *reader, struct str text);

// Computes expressions of symbols ("batch*seq") whose sizes the caller knows. NULL: out of memory.
struct dim_sizes;
struct dim_sizes *tsr__dim_sizes_new(struct arena *arena, const tsr_dim_size *sizes, size_t n);
int64_t tsr__dim_sizes_of(struct dim_sizes *sizes, tsr_dim dim); // -1: not known

// ---- for which sizes? (plan_sizes.c) -----------------------------------------------------------

// Size of a symbolic dimension that nobody gave a size for. Plans use it for costs only and do not
// shard the dimension. Runs begin with it.
#define ASSUMED_SIZE 128

// Appends to the caller's sizes those for which the configuration was planned (config NULL: the
// only configuration of the model). Skips names for which the caller gave a size. False: out of
// memory.
bool tsr__plan_sizes(struct arena *arena, const tsr_model *model, const char *config,
                     const tsr_dim_size **sizes, size_t *n);
// Appends ASSUMED_SIZE for every other symbol of the model's inputs. False: out of memory.
bool tsr__plan_sizes_assume(struct arena *arena, const tsr_model *model, const tsr_dim_size **sizes,
                            size_t *n);
// Stores the sizes for which the configuration was planned in the model.
tsr_status tsr__plan_sizes_keep(tsr_model *model, const char *config, const tsr_dim_size *sizes,
                                size_t n) TSR_MUST_USE;

// ---- control flow (control.c) ------------------------------------------------------------------

// The roles of the values of a node with bodies. Inputs of the node: controls, states, slices.
// Inputs of a body: iteration number and condition, states, slices. Outputs of a body: the
// condition (if any), states, results. Outputs of the node: states, results.
struct control {
    tsr_graph *bodies[2];
    const char *names[2]; // attributes that hold the bodies
    int n_bodies;
    bool loops;             // a body runs any number of times; otherwise one of them runs once
    bool condition;         // each iteration decides whether there is another
    int n_steer, n_numbers; // number of control inputs of the node, and of its body
    int n_states;  // carried: initial value, input and output of the body, and output of the node
    int n_slices;  // an iteration gets one index of such an input, along its axis
    int n_results; // a loop stacks them over iterations along their axes; an If returns them
    const int64_t *in_axes, *out_axes; // as written; absent ones are 0
    size_t n_in_axes, n_out_axes;
};
// Reads the roles of a node's values. False: no control flow, or the node does not match its
// bodies.
bool tsr__control_of(const tsr_node *node, struct control *out);
// Returns the axis of slice i (result i), counted from the front; -1: invalid.
int tsr__control_in_axis(const struct control *control, int slice, int rank);
int tsr__control_out_axis(const struct control *control, int result, int rank);
// Returns how often the bodies run, at least 1: 1 for an If, the trip count of a Loop, the number
// of slices of a Scan. If inference does not know it, CONTROL_USUAL_TRIPS.
#define CONTROL_USUAL_TRIPS 16
int64_t tsr__control_trips(const struct shapes *shapes, const tsr_node *node,
                           const struct control *control);
// Returns the body of an If that runs at these sizes, if inference knows the condition; else -1.
int tsr__control_taken(const struct shapes *shapes, const tsr_node *node,
                       const struct control *control);
// True for a loop that does not declare the rank of a stacked result, although inference knows it.
// If it has no iterations, the engine then returns [0] instead of, for example, [0,8,4].
bool tsr__control_is_vague(const struct shapes *shapes, const tsr_node *node);
// Declares these ranks and the known sizes in a copy of the node, which may be the node itself, and
// in loops inside of it.
tsr_status tsr__control_declare(const struct shapes *shapes, const tsr_node *node,
                                tsr_node *copy) TSR_MUST_USE;
// Returns the number of nodes in the graph and, recursively, in the bodies of If, Loop and Scan.
size_t tsr__control_node_count(const tsr_graph *graph);
// Returns the elements of a Constant node; NULL: strings, or the node is another one (shape_job.c).
const tsr_tensor *tsr__node_constant(const tsr_node *node);
// True if all devices compute the same bits of the value, because it depends only on integer
// arithmetic and on inputs that are the same everywhere. Such a trip count or condition needs no
// broadcast.
bool tsr__control_exact(const struct shapes *shapes, const tsr_value *value);

#endif
