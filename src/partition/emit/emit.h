// SPDX-License-Identifier: Apache-2.0
// emit.h - emission: turns steps into nodes, in one graph per rank.
#ifndef TSR_PARTITION_EMIT_H
#define TSR_PARTITION_EMIT_H

#include "partition/facts/facts.h"

// The model of one rank, under construction.
struct part {
    struct draft *draft;
    int64_t rank;
    tsr_model *model;
    tsr_graph *graph; // the main graph or a body; new nodes are added here
    tsr_value *token; // output of the last communication
    // a result of the last node of the main graph, of float and of float16 (emit_step.c)
    tsr_value *latest[2];
    struct map constants; // constants by their bytes
    struct map computed;  // outputs of nodes that compute sizes, by operator and inputs
    struct same_sizes
        same;        // of the body that is being written: dimensions that must be equal in it
    int64_t n_fresh; // number of generated names
    int64_t weights, weight_bytes;
    uint64_t data_bytes; // length of its data file
    uint64_t file_bytes; // size of the rank file; 0 until it is known
    bool uses_common;    // a constant of the rank is in the common data file
};

// Returns the rank's tensor of the form, or NULL if the rank has none or `form` is NULL.
static inline tsr_value *local_of(const struct part *part, struct form *form)
{
    return form ? form_root(form)->local[part->rank] : NULL;
}

// Writes a step, and the steps of its bodies, on all ranks that need it.
tsr_status tsr__emit_step(struct draft *draft, struct part *parts, struct step *st) TSR_MUST_USE;

// emit_util.c: declares a value of the rank's graph with the type of the model's input or output
// and the local sizes.
tsr_status tsr__port_type(struct part *part, tsr_value *local, const tsr_value *value,
                          const struct tile_layout *layout) TSR_MUST_USE;
// Returns the rank's input for a model input, creating it on first use.
tsr_value *tsr__part_input(struct part *part, struct item *it);

// tsr__part_new_name returns an unused name, tsr__form_name the name of a form's tensor on this
// rank.
struct str tsr__part_new_name(struct part *part);
struct str tsr__form_name(struct part *part, struct form *form);
// tsr__part_node adds a node without attributes; NEW_NAME as `out` gets a new name.
// tsr__part_identity copies x under another name, with Casts for 4-bit types. Both return NULL
// after a failure, with a diagnostic.
#define NEW_NAME ((struct str){0})
tsr_value *tsr__part_node(struct part *part, const char *op, struct str out, tsr_value **inputs,
                          size_t n);
tsr_value *tsr__part_identity(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
// tsr__part_node with the inputs counted: NODE(part, "Mul", a, b) computes a * b. Inputs that are
// calls take new names. They are elements of an array, because gcc and clang evaluate these in
// order. Arguments of a function they do not, and names would depend on the compiler.
#define NODE(part, op, ...) NAMED_NODE(part, op, NEW_NAME, __VA_ARGS__)
#define NAMED_NODE(part, op, out, ...)                                                             \
    tsr__part_node(part, op, out, (tsr_value *[]){__VA_ARGS__},                                    \
                   TSR_COUNT(((tsr_value *[]){__VA_ARGS__})))

#endif
