// SPDX-License-Identifier: Apache-2.0
// derive.h - what derive functions share. Private to the module rules.
#ifndef TSR_RULES_DERIVE_H
#define TSR_RULES_DERIVE_H

#include "rules/internal.h"

#define DERIVE_MAX_RANK  (RULE_MAX_FACTORS / 4)
#define DERIVE_NO_SHAPE  "the number of dimensions of an input is unknown: declare its shape"
#define DERIVE_NO_AXIS   "the axis is out of range"
#define DERIVE_NO_MEMBER "an attribute has a value that is not known here"

// Adds an input for a scale or zero point of the full tensor: "[]", or "[_]" if it is a vector.
static inline void add_single(struct derivation *derivation, size_t i)
{
    tsr__rule_input(&derivation->rule);
    if (tsr__derive_in(derivation, i).rank == 1)
        tsr__rule_any(&derivation->rule, 1);
}

// Return attributes; NULL, 0 entries or `otherwise` if absent. In a function's body an attribute
// may refer to one of the call.
const tsr_attr *tsr__derive_attr(const struct derivation *derivation, const char *name);
size_t tsr__derive_list(const struct derivation *derivation, const char *name, const int64_t **out);
int64_t tsr__derive_int(const struct derivation *derivation, const char *name, int64_t otherwise);
// True if the attribute is given and has that text.
bool tsr__derive_text_is(const struct derivation *derivation, const char *name, const char *text);
bool tsr__derive_has(const struct derivation *derivation, size_t i); // input i is given
// Returns the shape of the first output, as far as it is known without the rule.
struct shape tsr__derive_result(const struct derivation *derivation);
// Reads integers from input i if it is given, else from an attribute. Returns their number; -1:
// unknown; -2: neither is given.
int64_t tsr__derive_ints(const struct derivation *derivation, const char *name, size_t i,
                         int64_t *out, int64_t cap);
// Reads the only element of input i. False: absent, or not a known number.
bool tsr__derive_number(const struct derivation *derivation, size_t i, int64_t *out);
// Returns the rank of input i; -1: not known, and the derivation has ended.
int tsr__derive_rank(struct derivation *derivation, size_t i);
// Returns the axis that the attribute names, counted from the front; -1: invalid, or the rank is
// unknown, and the derivation has ended.
int tsr__derive_axis(struct derivation *derivation, const char *name, int64_t otherwise, int rank);
// Marks axes of a tensor of that rank. False: one is invalid, and the derivation has ended.
bool tsr__derive_mark(struct derivation *derivation, int rank, const int64_t *axes, int64_t n,
                      bool *marked);
// Returns FACTOR_STAT if the node can be expanded (expand.c), else FACTOR_REP.
static inline enum factor_kind stat_if(bool expands)
{
    return expands ? FACTOR_STAT : FACTOR_REP;
}
// Builds a lookup: elements of input 1 address rows v of input 0. Devices with shards of v return
// partial sums. v is not sharded if the result's type (that of input `like`) cannot be summed.
// `after`: number of dimensions that the result has after those of the indices.
void tsr__derive_lookup(struct derivation *derivation, size_t like, int after);
// Adds the result of a matrix product, "[B* m n]". As in numpy's matmul, an operand of one
// dimension has no m or no n.
void tsr__derive_product(struct rule_builder *rule, bool left_vector, bool right_vector);
// Returns the opset of ai.onnx in the node's model; 0: not imported.
int64_t tsr__onnx_opset(const tsr_node *node);
// Sets reduced[i] for the dimensions that a reduction reduces. False: not known, and the derivation
// has ended.
bool tsr__reduce_axes(struct derivation *derivation, int rank, bool *reduced);

// True if both sizes are known to be equal.
static inline bool same_size(const struct derivation *derivation, tsr_dim a, tsr_dim b)
{
    return tsr__dim_equal(derivation->shapes->exprs, a, b);
}
// True for a value of one element.
bool tsr__derive_single(struct shape shape);
// True if all bytes of the constant are known to be equal; *out: their value.
bool tsr__derive_alike(const tsr_value *value, tsr_dtype type, int *out);

// Sets the sizes of h (heads of keys) and g (query heads for each key head) of an attention.
// `queries` and `keys` name the attributes with the numbers of heads. False: not known, and the
// derivation has ended.
bool tsr__derive_heads(struct derivation *derivation, const char *queries, const char *keys);
// True if the node has no output from number `first` on.
bool tsr__derive_outputs_end(const struct derivation *derivation, size_t first);
// Adds input i, a mask that broadcasts to [b, heads, q, k]; heads: "h" or "(h g)". Returns false if
// its number of heads is unknown, so that heads are not sharded.
bool tsr__derive_mask(struct derivation *derivation, size_t i, const char *heads);
// True if the mask is absent, or is [q k] or [b heads q k] with a known number of rows and as many
// columns as dimension `keys` of input 1.
bool tsr__derive_mask_fits(const struct derivation *derivation, size_t i, int keys);
// True if rows of a causal attention can be sharded: it has no cache (inputs `past` and `past` +
// 1), one output, as many keys as rows, heads of known size, and no mask (input `mask`) or one of 2
// or more dimensions.
bool tsr__derive_causal(const struct derivation *derivation, size_t past, size_t mask);
// Adds REWRITE_CAUSAL for the rows of such an attention, the factor q.
void tsr__derive_causal_rows(struct derivation *derivation, size_t past, size_t mask);

#endif
