// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files that emit.
#ifndef TSR_PARTITION_EMIT_INTERNAL_H
#define TSR_PARTITION_EMIT_INTERNAL_H

#include "partition/emit/emit.h"

// emit_util.c: small nodes and constants of a part. All return NULL after a failure (finding
// added).
tsr_value *tsr__part_ints(struct part *part, const int64_t *v, int64_t n);
tsr_value *tsr__part_empty(struct part *part, tsr_dtype type); // [0]
// The value, whose node gets that attribute; NULL stays NULL.
tsr_value *tsr__with_int(tsr_value *value, const char *name, int64_t number);
tsr_value *tsr__with_ints(tsr_value *value, const char *name, const int64_t *numbers, int64_t n);
static inline bool tsr__is_float8(tsr_dtype type)
{
    return type >= TSR_FLOAT8E4M3FN && type <= TSR_FLOAT8E5M2FNUZ;
}
// In which engines slice and concatenate values of the type: it holds all of them exactly. Mostly the type itself.
tsr_dtype tsr__sliced_as(tsr_dtype type);
tsr_value *tsr__part_cast(struct part *part, tsr_value *x, tsr_dtype to, struct str out);
// The sizes of x. Engines cannot tell those of 4 bits: x is cast first.
tsr_value *tsr__part_sizes(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
// A copy of x that optimisation leaves where it is: a Concat of one tensor. x has a dimension.
tsr_value *tsr__part_apart(struct part *part, tsr_value *x);
// x as a body may read it. ONNX Runtime moves a DequantizeLinear behind a Slice, and ends the process if a body reads the
// Slice (seen with 1.31.1, optimisation level 1 and above). A Concat of one tensor, through which nothing is moved, stands
// between them then. x has a dimension.
tsr_value *tsr__part_unmoved(struct part *part, tsr_value *x);
// The sizes of what the rank has of the form: numbers, names, or neither. False: nothing can be said of them.
bool tsr__part_dims_here(struct part *part, const struct form *form, tsr_dim *dims);
// What can be said of a local tensor: its type, and its number of dimensions where that is known.
tsr_status tsr__part_rank_known(struct part *part, tsr_value *value,
                                const struct form *form) TSR_MUST_USE;
// The same, and sizes.
tsr_status tsr__part_sizes_known(struct part *part, tsr_value *value,
                                 const struct form *form) TSR_MUST_USE;
// A node's results keep the number of dimensions that the model declares, or that is known of a list's tensors: engines cannot infer all that.
tsr_status tsr__part_keep_declared(struct part *part, const struct step *st) TSR_MUST_USE;
// Of a body: an output, which must be made in it; the token as one more input, and as one more output.
tsr_status tsr__part_body_output(struct part *part, tsr_value *value, tsr_dtype type) TSR_MUST_USE;
tsr_value *tsr__part_token_input(struct part *part);
tsr_status tsr__part_token_output(struct part *part) TSR_MUST_USE;

// Names for nodes in a row of which the last gives a result its name; those before it have none of their own.
struct row_names {
    struct str last;
    int left; // nodes that are still to come
};
static inline struct str next_name(struct row_names *names)
{
    if (--names->left)
        return (struct str){0};
    return names->last;
}

// emit_slice.c: what a rank takes out of what it has.
tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop, struct str out);
tsr_status tsr__emit_slice(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_crop(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x,
                          struct str name) TSR_MUST_USE;

// emit_shape.c: sizes at run time.
// The rank's summand of the shape of what is cut so (sizes.c): its own sizes where it counts, 0 elsewhere.
tsr_value *tsr__part_count(struct part *part, struct form *from, struct str name);
tsr_value *tsr__part_shape(struct part *part,
                           const struct item *it); // int64[rank], the global shape
tsr_status tsr__emit_sizes(struct part *part, struct step *st,
                           const struct rule_rewrite *rewrite) TSR_MUST_USE;
tsr_value *tsr__part_size(struct part *part, const tsr_dim *dim); // int64[1]; NULL: failed
// 1 where a is larger than b, 0 elsewhere. Before opset 9 only floats are compared; doubles hold sizes exactly.
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b);

// Of two sizes, in every opset.
tsr_value *tsr__part_largest(struct part *part, struct str name, tsr_value *a, tsr_value *b);
tsr_value *tsr__part_smallest(struct part *part, struct str name, tsr_value *a, tsr_value *b);

// local_shape.c: a node is told the shape of a result of its own, which is cut.
struct told_shape {
    const struct node_flow *nf;
    const tsr_value *source;          // the input that holds it
    struct item *made;                // the result
    const struct tile_layout *layout; // of the result
    int output;
    bool open;   // 0 cannot be said, but one entry may be -1
    bool copies; // 0 means "as before"
};
// False: it is not told, or out of memory (the arena has failed).
bool tsr__told_shape(struct draft *draft, const struct node_flow *nf,
                     const struct rule_rewrite *rewrite, struct told_shape *told);
// The host value becomes sizes and nothing else: no 0 and no -1 with a meaning of its own, for a device may have nothing of the result.
bool tsr__shape_of_sizes(struct draft *draft, const struct told_shape *told);
// The host value with local sizes on this rank. data: the node's local input 0.
tsr_value *tsr__part_local_shape(struct part *part, const struct told_shape *told, tsr_value *host,
                                 tsr_value *data);
// The sizes of what this rank has of the tensor in that layout; its whole shape is known on every rank. int64[rank].
tsr_value *tsr__part_local_sizes(struct part *part, const struct item *it,
                                 const struct tile_layout *layout);

// emit_lookup.c, before a node that is addressed by values: its indices become local ones. *here NULL: nothing of the
// kind.
tsr_status tsr__lookup_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             tsr_value **here) TSR_MUST_USE;
// Behind it: what was found elsewhere is 0; what was changed elsewhere is gone.
tsr_status tsr__lookup_end(struct part *part, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name) TSR_MUST_USE;

// emit_node.c: the node on one rank, its results under these names ("": unused).
tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs) TSR_MUST_USE;
// emit_guard.c: the same as a choice, if the rank may have nothing of what its kernel wants elements of.
tsr_status tsr__emit_guarded(struct part *part, struct step *st, bool *guarded) TSR_MUST_USE;

// emit_body.c: a node with bodies that are cut, on one rank, while it is being built.
struct control_node {
    tsr_node *node; // NULL: this rank does not have it, and its bodies are not opened
    tsr_graph *outer;
    tsr_value *before; // token before the node
    bool token;        // something inside communicates here: the token goes through
};
tsr_status tsr__control_begin(struct part *part, struct step *st,
                              struct control_node *made) TSR_MUST_USE;
// Body k becomes the graph that is being built, and the outer one again.
tsr_status tsr__control_open(struct part *part, const struct step *st, int k,
                             const struct control_node *made) TSR_MUST_USE;
tsr_status tsr__control_close(struct part *part, const struct step *st, int k,
                              const struct control_node *made) TSR_MUST_USE;
// Its results are the local values of the step's outputs.
tsr_status tsr__control_end(struct part *part, struct step *st,
                            const struct control_node *made) TSR_MUST_USE;

// comm_node.c: the node of a communication on this rank, with the token behind it. NULL: failed.
tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2]);
// emit_list.c: one rank's side of handing over a list.
tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group) TSR_MUST_USE;
// emit_comm.c: a communication on all who take part.
tsr_status tsr__emit_comm(struct part *parts, struct step *st) TSR_MUST_USE;

#endif
