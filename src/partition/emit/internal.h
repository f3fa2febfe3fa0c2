// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of emission.
#ifndef TSR_PARTITION_EMIT_INTERNAL_H
#define TSR_PARTITION_EMIT_INTERNAL_H

#include "partition/emit/emit.h"

// emit_util.c: small nodes and constants. All return NULL on failure (diagnostic added).
tsr_value *tsr__part_ints(struct part *part, const int64_t *v, int64_t n);
tsr_value *tsr__part_empty(struct part *part, tsr_dtype type); // [0]
// Concat of n values. NULL: one of them is NULL, or failed.
tsr_value *tsr__part_concat(struct part *part, tsr_value **values, size_t n, int64_t axis,
                            struct str out);
// Sets an attribute on the node of the value and returns the value; NULL stays NULL.
tsr_value *tsr__with_int(tsr_value *value, const char *name, int64_t number);
tsr_value *tsr__with_ints(tsr_value *value, const char *name, const int64_t *numbers, int64_t n);
static inline bool tsr__is_float8(tsr_dtype type)
{
    return type >= TSR_FLOAT8E4M3FN && type <= TSR_FLOAT8E5M2FNUZ;
}
// The type in which engines can slice and concatenate such values. Usually the type itself.
tsr_dtype tsr__sliced_as(tsr_dtype type);
tsr_value *tsr__part_cast(struct part *part, tsr_value *x, tsr_dtype to, struct str out);
// The sizes of x. Types without a Shape kernel are cast first.
tsr_value *tsr__part_sizes(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
// A copy of x that the optimiser neither moves nor removes: a Concat of one tensor. x has a
// dimension.
tsr_value *tsr__part_barrier(struct part *part, tsr_value *x);
// x, safe to be read by a body. ONNX Runtime moves a DequantizeLinear behind a Slice and crashes if
// a body reads the Slice (quirk dequantize_moved_behind_slice). A Concat of one tensor
// in between prevents it. x has a dimension.
tsr_value *tsr__part_shielded(struct part *part, tsr_value *x);
// The local sizes of the form: numbers, names, or unknown. False: nothing is known.
bool tsr__part_dims_here(struct part *part, const struct form *form, tsr_dim *dims);
// Declares the type of a local tensor, and its rank if known.
tsr_status tsr__part_rank_known(struct part *part, tsr_value *value,
                                const struct form *form) TSR_MUST_USE;
// The same, with sizes.
tsr_status tsr__part_sizes_known(struct part *part, tsr_value *value,
                                 const struct form *form) TSR_MUST_USE;
// Declares the rank of a node's results if the model declares it or if they come from a list:
// engines cannot infer all of that.
tsr_status tsr__part_keep_declared(struct part *part, const struct step *st) TSR_MUST_USE;
// For bodies: adds an output, which must be produced in the body; adds the token as an input; as an
// output.
tsr_status tsr__part_body_output(struct part *part, tsr_value *value, tsr_dtype type) TSR_MUST_USE;
tsr_value *tsr__part_token_input(struct part *part);
tsr_status tsr__part_token_output(struct part *part) TSR_MUST_USE;

// Names for a chain of nodes: only the last one gets the name of the result.
struct row_names {
    struct str last;
    int left; // nodes that are still to come
};
static inline struct str next_name(struct row_names *names)
{
    return --names->left ? (struct str){0} : names->last;
}

// emit_slice.c: the part of a stored tensor that the rank needs.
tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop, struct str out);
tsr_status tsr__emit_slice(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_crop(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x,
                          struct str name) TSR_MUST_USE;

// emit_shape.c: sizes at run time.
// The rank's summand of the full shape of a sharded tensor (sizes.c): its own sizes or 0.
tsr_value *tsr__part_count(struct part *part, struct form *from, struct str name);
// The full shape, int64[rank]; one size, int64[1]. NULL: failed.
tsr_value *tsr__part_shape(struct part *part, const struct item *it);
tsr_value *tsr__part_size(struct part *part, const tsr_dim *dim);
tsr_status tsr__emit_sizes(struct part *part, struct step *st,
                           const struct rule_rewrite *rewrite) TSR_MUST_USE;
// 1 where a is larger than b, else 0. Compares as doubles: before opset 9 there are only floats.
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b);
// Maximum and minimum of two sizes, in every opset.
tsr_value *tsr__part_largest(struct part *part, struct str name, tsr_value *a, tsr_value *b);
tsr_value *tsr__part_smallest(struct part *part, struct str name, tsr_value *a, tsr_value *b);

// local_shape.c: an input that holds the shape of a sharded result (the second input of Reshape).
struct shape_input {
    const struct node_flow *nf;
    const tsr_value *source; // the input
    struct item *made;       // the result
    const struct tile_layout *layout;
    int output;
    bool open;   // 0 cannot be written as a size, but one entry may be -1
    bool copies; // 0 means "copy from the input"
};
// False: the node has no such input, or out of memory (the arena has failed).
bool tsr__shape_input_of(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite, struct shape_input *out);
// True if the local shape is written as plain sizes, without 0 and -1 as special values, because a
// shard of the result may be empty.
bool tsr__shape_input_is_sizes(struct draft *draft, const struct shape_input *shape);
// The local shape. `host` is the full one, `data` the node's local input 0.
tsr_value *tsr__part_local_shape(struct part *part, const struct shape_input *shape,
                                 tsr_value *host, tsr_value *data);

// emit_lookup.c, before a node that is addressed by indices: makes them local. *here NULL: the node
// is not addressed by indices, or not sharded so.
tsr_status tsr__lookup_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             tsr_value **here) TSR_MUST_USE;
// Behind it: clears rows that belong to other ranks.
tsr_status tsr__lookup_end(struct part *part, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name) TSR_MUST_USE;

// emit_node.c: the node on one rank, with these output names ("": unused).
tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs) TSR_MUST_USE;
// emit_guard.c: the same inside an If, if a shard may be empty that the kernel needs elements of.
tsr_status tsr__emit_guarded(struct part *part, struct step *st, bool *guarded) TSR_MUST_USE;

// emit_body.c: a node with sharded bodies on one rank, under construction.
struct control_node {
    tsr_node *node; // NULL: this rank does not have the node
    tsr_graph *outer;
    tsr_value *before; // token before the node
    bool token;        // a body communicates: the token is passed through
};
tsr_status tsr__control_begin(struct part *part, struct step *st,
                              struct control_node *made) TSR_MUST_USE;
// Makes body k the graph under construction; returns to the outer graph.
tsr_status tsr__control_open(struct part *part, const struct step *st, int k,
                             const struct control_node *made) TSR_MUST_USE;
tsr_status tsr__control_close(struct part *part, const struct step *st, int k,
                              const struct control_node *made) TSR_MUST_USE;
// Stores the results as local values of the step's outputs.
tsr_status tsr__control_end(struct part *part, struct step *st,
                            const struct control_node *made) TSR_MUST_USE;

// comm_node.c: the node of a communication on this rank. Advances the token. NULL: failed.
tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2]);
// emit_list.c: the transfer of a list on one rank.
tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group) TSR_MUST_USE;
// emit_comm.c: a communication on all its ranks.
tsr_status tsr__emit_comm(struct part *parts, struct step *st) TSR_MUST_USE;

#endif
