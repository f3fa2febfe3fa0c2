// SPDX-License-Identifier: Apache-2.0
// internal.h - functions that the files of emission share.
#ifndef TSR_PARTITION_EMIT_INTERNAL_H
#define TSR_PARTITION_EMIT_INTERNAL_H

#include "partition/emit/emit.h"

// A local node has at most this many inputs more than the model's node: an operator's last optional
// inputs.
#define MORE_INPUTS 8

// emit_util.c: helpers that add small nodes and constants. All return NULL after a failure, with a
// diagnostic.
// Adds a constant to the graph: the current one, or the main graph, which bodies can read too.
tsr_value *tsr__part_constant(struct part *part, tsr_graph *graph, tsr_dtype type, int rank,
                              const int64_t *dims, const void *data);
tsr_value *tsr__part_scalar(struct part *part, tsr_dtype type, const void *data); // in the main one
tsr_value *tsr__part_zero(struct part *part, tsr_dtype type);
// Return int64[n] and int64[1] constants of the main graph. Equal ones are added once.
tsr_value *tsr__part_ints(struct part *part, const int64_t *v, int64_t n);
tsr_value *tsr__part_number(struct part *part, int64_t number);
tsr_value *tsr__part_empty(struct part *part, tsr_dtype type); // [0]
// Returns the part of a factor that the rank computes.
struct tile_interval tsr__part_range(const struct part *part, const struct node_flow *nf,
                                     int factor);
// Adds a Concat of n values. Returns NULL if one of them is NULL, or after a failure.
tsr_value *tsr__part_concat(struct part *part, tsr_value **values, size_t n, int64_t axis,
                            struct str out);
// Sets an attribute on the node that produces the value and returns the value. If the value is
// NULL, returns NULL.
tsr_value *tsr__with_int(tsr_value *value, const char *name, int64_t number);
tsr_value *tsr__with_ints(tsr_value *value, const char *name, const int64_t *numbers, int64_t n);
static inline bool tsr__is_float8(tsr_dtype type)
{
    return type >= TSR_FLOAT8E4M3FN && type <= TSR_FLOAT8E5M2FNUZ;
}
// Returns the type in which engines can slice and concatenate values of `type`. Usually that is the
// type itself.
tsr_dtype tsr__sliced_as(tsr_dtype type);
tsr_value *tsr__part_cast(struct part *part, tsr_value *x, tsr_dtype to, struct str out);
// True if the name of the rank's device is that of a GPU: "CUDA:0" or "GPU:0". Such ranks use
// kernels of the CUDA provider.
bool tsr__part_on_cuda(const struct part *part);
// Adds a Shape of x. Types without a Shape kernel are cast first.
tsr_value *tsr__part_sizes(struct part *part, tsr_value *x, tsr_dtype type, struct str out);
// Adds a copy of x that engines neither move nor remove: a Concat of one tensor. x must have at
// least one dimension.
tsr_value *tsr__part_barrier(struct part *part, tsr_value *x);
// Adds a copy of x whose size along `axis` engines do not know: a Compress that keeps all `size`
// elements.
tsr_value *tsr__part_concealed(struct part *part, tsr_value *x, int axis, int64_t size);
// Returns x or a copy of it that a body can safely read. ONNX Runtime moves a DequantizeLinear
// behind a Slice and crashes if a body reads the Slice (quirk dequantize_moved_behind_slice). A
// Concat of one tensor in between prevents this. x must have at least one dimension.
tsr_value *tsr__part_shielded(struct part *part, tsr_value *x);
// Stores the local sizes of the form: numbers, symbols, or unknown. Returns false if none is known.
bool tsr__part_dims_here(struct part *part, const struct form *form, tsr_dim *dims);
// Gives each unknown size a new symbol. False: out of memory.
bool tsr__part_name_dims(struct part *part, tsr_dim *dims, int rank);
// Declares the type of a local tensor, and its rank if known.
tsr_status tsr__part_rank_known(struct part *part, tsr_value *value,
                                const struct form *form) TSR_MUST_USE;
// As tsr__part_rank_known, but also declares the sizes.
tsr_status tsr__part_sizes_known(struct part *part, tsr_value *value,
                                 const struct form *form) TSR_MUST_USE;
// Returns sizes of the item as a run has them. A simulation has numbers for some that a run
// computes. They are not constants, or the engine would seem to run their readers when it loads the
// model.
tsr_value *tsr__part_computed(struct part *part, const struct item *it, tsr_value *sizes);
// Declares the sizes of a value for a simulation, which may not infer all of them from the graph of
// the rank. Does nothing in other cases. `value` may be NULL.
tsr_status tsr__part_simulated(struct part *part, tsr_value *value,
                               const struct form *form) TSR_MUST_USE;
// Declares the rank of a node's results if the model declares it, or if they come from a list.
// Engines cannot infer the rank in all these cases.
tsr_status tsr__part_keep_declared(struct part *part, const struct step *st) TSR_MUST_USE;
// For bodies: tsr__part_body_input adds an input with one element, of rank 0 or 1.
// tsr__part_body_output adds an output and copies the value if the body does not produce it.
// tsr__part_token_input and tsr__part_token_output add the token.
tsr_value *tsr__part_body_input(struct part *part, tsr_dtype type, int rank);
tsr_status tsr__part_body_output(struct part *part, tsr_value *value, tsr_dtype type) TSR_MUST_USE;
tsr_value *tsr__part_token_input(struct part *part);
tsr_status tsr__part_token_output(struct part *part) TSR_MUST_USE;

// Names for the outputs of a chain of nodes: only the last one gets the name of the result.
struct row_names {
    struct str last;
    int left; // number of nodes that are still to be added
};
static inline struct str next_name(struct row_names *names)
{
    return --names->left ? (struct str){0} : names->last;
}

// emit_slice.c: slices the range [start, stop) of a tensor along an axis.
tsr_value *tsr__part_slice(struct part *part, tsr_value *x, int64_t axis, int64_t start,
                           int64_t stop, struct str out);
tsr_status tsr__emit_slice(struct part *part, struct step *st) TSR_MUST_USE;
tsr_status tsr__emit_trim(struct part *part, struct step *st, tsr_value *x,
                          struct str name) TSR_MUST_USE;

// emit_shape.c: sizes at run time. Returns the sizes that this rank counts of a sharded tensor; the
// sum over the ranks is the full shape (steps/convert.c).
tsr_value *tsr__part_count(struct part *part, struct form *from, struct str name);
// tsr__part_shape returns the full shape, int64[rank]; tsr__part_size one size, int64[1]. Both
// return NULL after a failure.
tsr_value *tsr__part_shape(struct part *part, const struct item *it);
tsr_value *tsr__part_size(struct part *part, const struct item *it, int axis);
// Returns the size of the input's dimension, int64[1]. NULL: a failure.
tsr_value *tsr__part_source(struct part *part, struct size_source *from);
tsr_status tsr__emit_sizes(struct part *part, struct step *st,
                           const struct rule_rewrite *rewrite) TSR_MUST_USE;
// Returns 1 where a is larger than b, else 0. Compares as doubles: before opset 9, Greater takes
// only floats.
tsr_value *tsr__part_one_where_larger(struct part *part, tsr_value *a, tsr_value *b);
// Return the maximum and the minimum of two sizes, in every opset.
tsr_value *tsr__part_largest(struct part *part, tsr_value *a, tsr_value *b);
tsr_value *tsr__part_smallest(struct part *part, tsr_value *a, tsr_value *b);

// emit_same.c: returns the dimensions that must be equal for the graph that is being written.
struct same_sizes *tsr__part_same_sizes(struct part *part);
// Adds nodes that return `value` unchanged and fail if dimensions that must be equal in this body
// differ. Returns `value` itself if there are no such dimensions, NULL after a failure.
tsr_value *tsr__part_check_sizes(struct part *part, tsr_value *value, tsr_dtype type);

// local_shape.c: an input that contains the shape of a sharded result, such as the second input of
// Reshape.
struct shape_input {
    const struct node_flow *nf;
    const tsr_value *source; // the input
    struct item *made;       // the result of the node
    const struct tile_layout *layout;
    const struct windows *windows; // the node computes these instead of its shard; NULL: the shard
    bool open;                     // a size 0 cannot be written, but one entry may be -1
    bool copies;                   // the entry 0 means "copy the size from the input"
};
// Finds the shape input of a node. Returns false if the node has none, or if out of memory (the
// arena has then failed).
bool tsr__shape_input_of(struct draft *draft, const struct node_flow *nf,
                         const struct rule_rewrite *rewrite, struct shape_input *out);
// True if the local shape must consist of sizes only, without the special entries 0 and -1, because
// a shard of the result may be empty.
bool tsr__shape_input_is_sizes(struct draft *draft, const struct shape_input *shape);
// Returns the size of the rank's part of a dimension with the full size `whole` (int64[1]).
tsr_value *tsr__part_local_size(struct part *part, tsr_value *whole, struct local_size size);
// Returns the local shape. `host` is the full shape, `data` the node's local input 0.
tsr_value *tsr__part_local_shape(struct part *part, const struct shape_input *shape,
                                 tsr_value *host, tsr_value *data);

// emit_lookup.c: for a node with an index input, converts the indices to local ones before the
// node. *here is NULL if the node has no index input or its rows are not sharded.
tsr_status tsr__lookup_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             tsr_value **here) TSR_MUST_USE;
// After the node: sets looked-up rows that belong to other ranks to 0, or removes the spare rows of
// an update.
tsr_status tsr__lookup_end(struct part *part, struct step *st, tsr_value *here, tsr_value *found,
                           struct str name) TSR_MUST_USE;

// emit_causal.c: before a causal attention whose rows are sharded, replaces its keys, values and
// mask by those of the local rows, and adds the cache.
tsr_status tsr__causal_begin(struct part *part, const struct step *st, tsr_value **inputs,
                             size_t *n_inputs) TSR_MUST_USE;
// True if rows of a causal attention are sharded: its local node also returns the cache.
bool tsr__is_causal_shard(const struct node_flow *nf);

// emit_route.c: a mixture of experts whose experts are sharded.
struct route {
    tsr_value *given;  // the tokens as the model has them
    tsr_value *all;    // the tokens as a matrix, one row per token
    tsr_value *tokens; // numbers of the tokens for the local node; NULL: experts are not sharded
    tsr_value *sum;    // sum of the weights of local experts for each of these tokens
    int64_t experts;   // number of local experts
};
// Before the node: replaces its inputs by those for the local experts.
tsr_status tsr__route_begin(struct part *part, const struct step *st, tsr_value **inputs,
                            struct route *route) TSR_MUST_USE;
tsr_status tsr__route_attributes(const struct route *route, tsr_node *node) TSR_MUST_USE;
// After the node: returns its result for all tokens. `made` is the result of the local node.
tsr_status tsr__route_end(struct part *part, struct step *st, const struct route *route,
                          tsr_value *made, struct str name) TSR_MUST_USE;

// emit_node.c: writes the node on one rank, with these output names ("": unused).
tsr_status tsr__emit_plain(struct part *part, struct step *st, struct str *outputs) TSR_MUST_USE;
// emit_guard.c: writes the node inside an If, if its kernel cannot run on an empty shard and the
// shard may be empty. *guarded is set if it did.
tsr_status tsr__emit_guarded(struct part *part, struct step *st, bool *guarded) TSR_MUST_USE;

// emit_body.c: a node with sharded bodies on one rank, under construction.
struct control_node {
    tsr_node *node; // NULL if this rank does not have the node
    tsr_graph *outer;
    tsr_value *before;      // token before the node
    struct same_sizes same; // of the graph that has the node
    bool token;             // a body communicates, so the token passes through the node
};
tsr_status tsr__control_begin(struct part *part, struct step *st,
                              struct control_node *made) TSR_MUST_USE;
// tsr__control_open makes body k the current graph; tsr__control_close returns to the outer graph.
tsr_status tsr__control_open(struct part *part, const struct step *st, int k,
                             const struct control_node *made) TSR_MUST_USE;
tsr_status tsr__control_close(struct part *part, const struct step *st, int k,
                              const struct control_node *made) TSR_MUST_USE;
// Stores the results as local values of the step's outputs.
tsr_status tsr__control_end(struct part *part, struct step *st,
                            const struct control_node *made) TSR_MUST_USE;

// comm_node.c: adds the node of a communication on this rank and advances the token. Returns NULL
// after a failure.
tsr_node *tsr__comm_node(struct part *part, const struct step *st, size_t group, tsr_value **inputs,
                         size_t n_inputs, const char *const outputs[2]);
// emit_list.c: writes the transfer of a list on one rank.
tsr_status tsr__emit_list(struct part *part, struct step *st, size_t group) TSR_MUST_USE;
// emit_comm.c: writes a communication on all its ranks.
tsr_status tsr__emit_comm(struct part *parts, struct step *st) TSR_MUST_USE;

#endif
