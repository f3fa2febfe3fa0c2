// SPDX-License-Identifier: Apache-2.0
// expand.h - building blocks of expansions, which replace a node by simpler ones. Private to the
// module rules.
//
// Functions accept NULL for a value that could not be made, and then return NULL (except
// tsr__x_node). So an expansion is written as one formula, and the failure is checked once at the
// end.
#ifndef TSR_RULES_EXPAND_H
#define TSR_RULES_EXPAND_H

#include "rules/derive/derive.h"

struct expansion {
    struct arena *arena;
    const struct shapes *shapes;
    const tsr_node *twin; // the same node in the model whose shapes are known
    tsr_node *node;       // the node that is replaced
    tsr_graph *graph;
    int64_t opset; // version of ai.onnx
    const struct rule *rule;
    const int64_t *cuts; // number of shards of each factor
    struct str name;
    bool failed;
    VEC(tsr_node *) nodes;
    VEC(struct expanded_slot) reads;
    VEC(struct expanded_slot) gives;
    VEC(struct expanded_place) placed; // values with declared factors, each once; `node` is NULL
    VEC(struct expanded_place) places; // the same values, once for every node that reads one
};

tsr_value *tsr__x_in(const struct expansion *expansion,
                     size_t i); // returns input i; NULL: absent (no failure)
bool tsr__x_has(const struct expansion *expansion, size_t i);
struct shape tsr__x_shape(const struct expansion *expansion, size_t i);
int64_t tsr__x_int(const struct expansion *expansion, const char *name, int64_t otherwise);
float tsr__x_float(const struct expansion *expansion, const char *name, float otherwise);

// Adds a node of ai.onnx and returns its only output: X_OP(expansion, "Mul", a, b) is a * b. Inputs
// that are calls add nodes and take names. They are elements of an array, because gcc and clang
// evaluate these in order. Arguments of a function they do not.
#define X_OP(expansion, op, ...)                                                                   \
    tsr__x_op(expansion, op, (tsr_value *[]){__VA_ARGS__},                                         \
              (int)TSR_COUNT(((tsr_value *[]){__VA_ARGS__})))
tsr_value *tsr__x_op(struct expansion *expansion, const char *op, tsr_value *const *inputs, int n);
// Adds a node with optional inputs: NULL means absent.
tsr_node *tsr__x_node(struct expansion *expansion, const char *op, int n, tsr_value *const *inputs);
// Adds a node of com.microsoft without optional inputs: NULL fails the expansion.
tsr_node *tsr__x_fused(struct expansion *expansion, const char *op, int n,
                       tsr_value *const *inputs);
// Returns the first output of a node; NULL for NULL.
tsr_value *tsr__x_output(const tsr_node *node);
tsr_node *tsr__x_nodes(struct expansion *expansion, const char *op, int n, tsr_value *const *inputs,
                       int n_out); // 1 to 3 outputs
// Set an attribute of the node that makes the value, and return the value.
tsr_value *tsr__x_with_int(struct expansion *expansion, tsr_value *value, const char *name,
                           int64_t number);
tsr_value *tsr__x_with_float(struct expansion *expansion, tsr_value *value, const char *name,
                             float number);
tsr_value *tsr__x_with_ints(struct expansion *expansion, tsr_value *value, const char *name,
                            const int64_t *numbers, int n);
tsr_value *tsr__x_scalar(struct expansion *expansion, tsr_dtype type,
                         double v); // a constant of that type
tsr_value *tsr__x_ones(struct expansion *expansion, tsr_dtype type, const int64_t *dims, int rank);
tsr_value *tsr__x_ints(struct expansion *expansion, const int64_t *v, int64_t n);
// Declares that each device has its shard of the value from the start, and returns the value.
// Dimension `axis` of `rank` has the factors of `dim`, the others have one element. Nodes that are
// added later and read the value are sharded too.
tsr_value *tsr__x_place(struct expansion *expansion, tsr_value *value, int rank, int axis,
                        const struct rule_dim *dim);
tsr_value *tsr__x_cast(struct expansion *expansion, tsr_value *value, tsr_dtype from, tsr_dtype to);
// Adds a reduction. The axes are an attribute or an input, depending on the opset.
tsr_value *tsr__x_reduce(struct expansion *expansion, const char *op, tsr_value *value,
                         const int64_t *axes, int n, bool keep);
// Returns the number of elements of these dimensions of input i, as a constant of that type.
tsr_value *tsr__x_count(struct expansion *expansion, size_t i, const int64_t *axes, int n,
                        tsr_dtype type);
// Returns 0, 1, 2 ... along one axis of input i, as int64 with the rank of that input.
tsr_value *tsr__x_positions(struct expansion *expansion, size_t i, int axis);
tsr_value *tsr__x_reshape(struct expansion *expansion, tsr_value *value, const int64_t *shape,
                          int64_t n);
tsr_value *tsr__x_unsqueeze(struct expansion *expansion, tsr_value *value, int64_t axis);
// Makes the value output k of the old node.
void tsr__x_give(struct expansion *expansion, int k, tsr_value *value);
// Returns the type in which statistics are computed: float32 for shorter types.
tsr_dtype tsr__x_wide(tsr_dtype type);

#endif
