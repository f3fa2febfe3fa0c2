// SPDX-License-Identifier: Apache-2.0
// derive_list.c - rules of operators that create and join sequences of tensors. A sequence has the
// letters of its elements: all are sharded equally. The axis along which a tensor is split or
// joined is not sharded.
//
//   SplitToSequence of [4 6] along 1     elements [4 ?]; dimension 0 can be sharded in all of them
//   ConcatFromSequence along 1           result [4 ?] of such a sequence, sharded along 0
#include "rules/derive/derive.h"

// Derives the rule of ConcatFromSequence. Example: joining elements [4 6] along axis 1 has the rule
// "[d0 _] -> [d0 _]"; stacking them along a new axis 0 has "[d1 d2] -> [_ d1 d2]".
void tsr__derive_concat_from_sequence(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0);
    bool new_axis = tsr__derive_int(derivation, "new_axis", 0) != 0;
    if (rank < 0)
        return;
    int axis = tsr__derive_axis(derivation, "axis", 0, rank + new_axis);
    if (axis < 0)
        return;
    tsr__rule_axes(&derivation->rule, rank + new_axis, axis);
    tsr__rule_text(&derivation->rule, new_axis ? "[< >] -> [< _ >]" : "[< _ >] -> [< _ >]");
}

// Derives the rule of SplitToSequence. Example: [4 6] split along axis 1 has the rule
// "[d0 _],· -> [d0 _]". Without sizes and without keepdims, each element is one index of the axis:
// "[d0 _] -> [d0]".
void tsr__derive_split_to_sequence(struct derivation *derivation)
{
    int rank = tsr__derive_rank(derivation, 0),
        axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    bool sizes = tsr__derive_has(derivation, 1),
         keeps_axis = sizes || tsr__derive_int(derivation, "keepdims", 1) != 0;
    tsr__rule_axes(&derivation->rule, rank, axis);
    tsr__rule_inputs(&derivation->rule, sizes ? "[< _ >],·" : "[< _ >]");
    tsr__rule_outputs(&derivation->rule, keeps_axis ? "[< _ >]" : "[< >]");
}
