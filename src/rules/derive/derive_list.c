// SPDX-License-Identifier: Apache-2.0
// derive_list.c - rules of operators that make and join lists of tensors. A list has the letters of
// its elements: all are sharded equally. The axis along which a tensor is split or joined is not
// sharded.
//
//   SplitToSequence of [4 6] along 1     elements [4 ?]; dimension 0 can be sharded in all of them
//   ConcatFromSequence along 1           of such a list [4 ?] again, sharded along 0 as its
//                                        elements are
#include "rules/derive/derive.h"

// [a0 a1 _ a3]: the letters of a tensor with that many others, and a whole dimension at the axis
// (-1: none).
static void add_tensor(struct derivation *derivation, int others, int axis)
{
    tsr__derive_add(derivation, "[");
    for (int i = 0; i < others; i++) {
        if (i == axis)
            tsr__derive_add(derivation, "_ ");
        tsr__derive_add(derivation, "a%d ", i);
    }
    tsr__derive_add(derivation, "%s]", text_if(axis == others, "_"));
}

// Rank of input 0, of its elements if it is a list; -1: the node stays whole.
static int rank_in(struct derivation *derivation)
{
    int rank = tsr__derive_in(derivation, 0).rank;
    if (rank >= 0 && rank < DERIVE_MAX_RANK)
        return rank;
    tsr__derive_none(derivation, "the shape of an input is not known");
    return -1;
}

// Elements [4 6], joined along 1: "[a0 _] -> [a0 _]"; stacked along a new axis 0: "[a0 a1] -> [_ a0
// a1]".
void tsr__derive_concat_from_sequence(struct derivation *derivation)
{
    int rank = rank_in(derivation);
    bool fresh = tsr__derive_int(derivation, "new_axis", 0) != 0;
    if (rank < 0)
        return;
    int axis = tsr__derive_axis(derivation, "axis", 0, rank + fresh);
    if (axis < 0)
        return;
    if (fresh) { // tensors are stacked along a dimension that none of them has
        add_tensor(derivation, rank, -1);
        tsr__derive_add(derivation, " -> ");
        add_tensor(derivation, rank, axis);
        return;
    }
    add_tensor(derivation, rank - 1, axis);
    tsr__derive_add(derivation, " -> ");
    add_tensor(derivation, rank - 1, axis);
}

// [4 6] split along 1: "[a0 _],· -> [a0 _]"; into single indices without keepdims: "[a0 _] ->
// [a0]".
void tsr__derive_split_to_sequence(struct derivation *derivation)
{
    int rank = rank_in(derivation), axis = tsr__derive_axis(derivation, "axis", 0, rank);
    if (axis < 0)
        return;
    bool sizes = tsr__derive_has(derivation, 1),
         kept = sizes || tsr__derive_int(derivation, "keepdims", 1) != 0;
    add_tensor(derivation, rank - 1, axis);
    tsr__derive_add(derivation, "%s -> ", text_if(sizes, ",·"));
    if (!kept) // each element is one index of the axis, which goes
        axis = -1;
    add_tensor(derivation, rank - 1, axis);
}
