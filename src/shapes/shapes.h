// SPDX-License-Identifier: Apache-2.0
// shapes.h - type and shape of every value, and the elements of small integer tensors.
#ifndef TSR_SHAPES_H
#define TSR_SHAPES_H

#include "ir/ir.h"

// ---- shapes ------------------------------------------------------------------------------------

// What is known of every value's type and shape, from the model's own declarations and from the
// rules.
struct shapes;
struct shape {
    tsr_dtype dtype; // TSR_UNDEFINED: not known, or no tensor
    int rank;        // -1: not known
    const tsr_dim
        *dims; // symbols are views of NUL-terminated text; value -1 and symbol "": not known
};
// Of nodes that were added to the graph since, in their order. False: out of memory.
bool tsr__shapes_add(struct shapes *shapes, tsr_node *const *nodes, size_t n);
// A value that is not there (NULL) has rank -1.
struct shape tsr__shapes_of(const struct shapes *shapes, const tsr_value *value);
// The same; of a sequence or an optional value, what is true of all its elements.
struct shape tsr__shapes_element(const struct shapes *shapes, const tsr_value *value);
// By value id the rank of each value, or of a list's elements; -1: not known. Room for
// tsr__model_value_ids.
void tsr__shapes_ranks(const struct shapes *shapes, int *ranks);
// A sequence, a map, an optional value: it holds tensors, and is never taken apart or moved.
bool tsr__shapes_is_list(const struct shapes *shapes, const tsr_value *value);
// How a value that is no tensor can be taken apart into tensors and put together elsewhere.
enum list_way {
    LIST_STAYS,    // it cannot: tensors of unknown type or of texts, an optional that may be empty
    LIST_SEQUENCE, // element by element; their number is known at run time
    LIST_OPTIONAL, // one element, which is there
};
enum list_way tsr__shapes_list_way(const struct shapes *shapes, const tsr_value *value);
// Elements of a constant integer tensor (initializer or a constant-making node) of at most cap
// entries; -1: unknown.
int64_t tsr__shapes_ints(const struct shapes *shapes, const tsr_value *value, int64_t *out,
                         int64_t cap);
// An element of the tensor is 0, or may be: in a new shape that means "as before".
bool tsr__shapes_may_copy(const struct shapes *shapes, const tsr_value *value);
// The element that is -1: in a new shape what the others leave, also where those are expressions.
// -1: none is known to be.
int64_t tsr__shapes_rest(const struct shapes *shapes, const tsr_value *value);

// Numbers for expressions of symbols ("batch*seq") whose sizes the caller knows. NULL: out of
// memory.
struct dim_sizes;
struct dim_sizes *tsr__dim_sizes_new(struct arena *arena, const tsr_dim_size *sizes, size_t n);
int64_t tsr__dim_sizes_of(struct dim_sizes *sizes, tsr_dim dim); // -1: not known

// ---- control flow (control.c) ------------------------------------------------------------------

// How the values of a node with bodies belong together. Inputs of the node: those that steer it,
// the states, the slices. Inputs of a body: numbers of the turn, the states, the slices. Outputs of
// a body: the condition (if any), the states, the results. Outputs of the node: the states, the
// results.
struct control {
    tsr_graph *bodies[2];
    const char *names[2]; // attributes that hold them
    int n_bodies;
    bool loops;     // a body runs any number of times; else one of them runs once
    bool condition; // a turn says whether there is another
    int n_steer, n_numbers;
    int n_states;  // carried: start, body's input and output, and result are one thing
    int n_slices;  // a turn gets one index of such an input, along its axis
    int n_results; // of all turns stacked along its axis; without turns as they are
    const int64_t *in_axes, *out_axes; // as written; absent ones are 0
    size_t n_in_axes, n_out_axes;
};
// False: no such node, or one that does not fit its bodies.
bool tsr__control_of(const tsr_node *node, struct control *out);
// Axis of slice i (result i), counted from the front of a tensor of that rank; -1: invalid.
int tsr__control_in_axis(const struct control *control, int slice, int rank);
int tsr__control_out_axis(const struct control *control, int result, int rank);

#endif
