// SPDX-License-Identifier: Apache-2.0
// derive.h - derive functions of reductions, norms, quantised operators and losses, and what they
// share. Private to the rules room.
#ifndef TSR_RULES_DERIVE_H
#define TSR_RULES_DERIVE_H

#include "rules/internal.h"

#define DERIVE_MAX_RANK  (RULE_MAX_FACTORS / 4)
#define DERIVE_NO_SHAPE  "the shape of an input is not known"
#define DERIVE_NO_AXIS   "the axis is not one of the input's"
#define DERIVE_NO_MEMBER "an attribute has a value that is not known here"

// A piece of a rule's text that stands there only if something holds: text_if(!heads, " h").
static inline const char *text_if(bool holds, const char *text)
{
    return holds ? text : "";
}

// ",[]?" for a scale or zero point of a whole tensor; ",[_]?" where it is given as a vector of one.
// `end` is what stands behind.
static inline void add_single(struct derivation *derivation, size_t i, const char *end)
{
    if (tsr__derive_in(derivation, i).rank == 1)
        tsr__derive_add(derivation, ",[_]%s", end);
    else
        tsr__derive_add(derivation, ",[]%s", end);
}

int64_t tsr__derive_int(const struct derivation *derivation, const char *name, int64_t otherwise);
// The attribute is there and has that text.
bool tsr__derive_text_is(const struct derivation *derivation, const char *name, const char *text);
bool tsr__derive_has(const struct derivation *derivation, size_t i); // input i is given
// Shape of the first result, as far as it is known without the rule.
struct shape tsr__derive_result(const struct derivation *derivation);
// Integers of an attribute, or (in later opsets) of a constant input: the count, -1: not known, -2:
// not given.
int64_t tsr__derive_ints(const struct derivation *derivation, const char *name, size_t i,
                         int64_t *out, int64_t cap);
// Rank of input i; -1: not known, and the derivation has ended.
int tsr__derive_rank(struct derivation *derivation, size_t i);
// The attribute as an axis of that rank; -1: invalid, or the rank is unknown, and the derivation
// has ended.
int tsr__derive_axis(struct derivation *derivation, const char *name, int64_t otherwise, int rank);
// "d0 d1 ": letters of dimensions from .. to-1.
void tsr__derive_letters(struct derivation *derivation, char letter, int from, int to);
// "stat" where a node of this kind can be replaced by simpler ones (expand.c), else "rep": from
// that opset of ai.onnx on, and for element types of input 0 that the simpler ones have.
enum expand_types { EXPAND_FLOATS, EXPAND_NUMBERS };
const char *tsr__derive_stat(const struct derivation *derivation, int64_t opset,
                             enum expand_types types);
// The same where the node can be replaced only if something holds.
const char *tsr__derive_stat_if(bool holds, const struct derivation *derivation, int64_t opset,
                                enum expand_types types);
// Elements of input 1 look up rows v of input 0: "v" is summed over parts of the table, or whole
// where the result's type (that of input `like`) cannot be. The result has that many dimensions
// behind those of the indices.
void tsr__derive_lookup(struct derivation *derivation, size_t like, int behind);
// Opset of ai.onnx in the node's model; 0: not imported.
int64_t tsr__onnx_opset(const tsr_node *node);
// Bit i: dimension i is reduced. False: not known, and the derivation has ended.
bool tsr__reduce_axes(struct derivation *derivation, int rank, bool *reduced);

// True for a value of one element. tsr__derive_alike: the bytes of a constant are all equal; false:
// they are not, or unknown.
bool tsr__derive_single(struct shape shape);
bool tsr__derive_alike(const tsr_value *value, tsr_dtype type, int *out);

// Types and shapes (shape_norm.c).

// Attention, convolutions, recurrent layers, experts, rows.
void tsr__derive_heads(struct derivation *derivation, int64_t kv, int64_t each); // sizes of h and g
bool tsr__derive_mask(struct derivation *derivation, size_t i, const char *heads);
// The mask (if there is one) is [q k] or [b heads q k], with a number of rows and as many columns
// as input 1 has in dimension `keys`.
bool tsr__derive_mask_fits(const struct derivation *derivation, size_t i, int keys);
bool tsr__deform_expands(const struct derivation *derivation); // expand_deform.c

#endif
