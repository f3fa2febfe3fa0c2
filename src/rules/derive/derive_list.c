// SPDX-License-Identifier: Apache-2.0
// derive_list.c - rules of operators that create and join sequences of tensors. A sequence has the
// letters of its elements: all are sharded equally. The axis along which a tensor is split or
// joined is not sharded.
//
//   SplitToSequence of [4 6] along 1     elements [4 ?]; dimension 0 can be sharded in all of them
//   ConcatFromSequence along 1           result [4 ?] of such a sequence, sharded along 0
#include "rules/derive/derive.h"

// Adds dimensions a0 a1 .. to the tensor, with "_" at the axis (-1: none).
static void add_dims(struct rule_builder *rule, int letters, int axis)
{
    for (int i = 0; i <= letters; i++) {
        if (i == axis)
            tsr__rule_any(rule, 1);
        if (i < letters)
            tsr__rule_dim(rule, 'a', i);
    }
}

// Derives the rule of ConcatFromSequence. Example: joining elements [4 6] along axis 1 has the rule
// "[a0 _] -> [a0 _]"; stacking them along a new axis 0 has "[a0 a1] -> [_ a0 a1]".
void tsr__derive_concat_from_sequence(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    bool new_axis = tsr__derive_int(derivation, "new_axis", 0) != 0;
    if (rank < 0)
        return;
    int axis = tsr__derive_axis(derivation, "axis", 0, rank + new_axis);
    if (axis < 0)
        return;
    int letters = new_axis ? rank : rank - 1;
    tsr__rule_input(&derivation->rule);
    add_dims(&derivation->rule, letters, new_axis ? -1 : axis);
    tsr__rule_output(&derivation->rule);
    add_dims(&derivation->rule, letters, axis);
}

// Derives the rule of SplitToSequence. Example: [4 6] split along axis 1 has the rule
// "[a0 _],· -> [a0 _]". Without sizes and without keepdims, each element is one index of the axis:
// "[a0 _] -> [a0]".
void tsr__derive_split_to_sequence(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0),
        axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    bool sizes = tsr__derive_has(derivation, 1),
         keeps_axis = sizes || tsr__derive_int(derivation, "keepdims", 1) != 0;
    tsr__rule_input(&derivation->rule);
    add_dims(&derivation->rule, rank - 1, axis);
    if (sizes)
        tsr__rule_inputs(&derivation->rule, "·");
    tsr__rule_output(&derivation->rule);
    add_dims(&derivation->rule, rank - 1, keeps_axis ? axis : -1);
}
