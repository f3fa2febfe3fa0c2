// SPDX-License-Identifier: Apache-2.0
// kept_inputs.c - what an engine's optimisation leaves as it is, and what it moves.
//
// ONNX Runtime moves Transposes through nodes (optimisation level 1 and above). A constant on their way is turned in place: y = Add(Transpose(x), w)
// becomes y = Transpose(Add(x, w)), where w now means the turned tensor under the same name. Whoever has given the session memory for w by its name
// (AddInitializer) then gets a wrong result, in silence. Products, convolutions, lookups and recurrent layers are never moved through, so their
// weights keep their order (the rows' column `kept`). All other inputs count as turned: nothing is lost by that but memory.
#include "rules/internal.h"

bool tsr__rule_keeps_input(const tsr_node *node, size_t input)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && input < sizeof(row->kept) * 8 && (row->kept >> input & 1);
}

#define MAX_MOVES 64 // nodes that are looked through

// Back through nodes that move elements and do not change them, MAX_MOVES of them at most.
bool tsr__value_is_dequantized(const tsr_value *value)
{
    static const char *const moved_through[] = {"Slice",   "Reshape",   "Transpose",
                                                "Squeeze", "Unsqueeze", "MaxPool"};
    for (int left = MAX_MOVES; left > 0; left--) {
        const tsr_node *maker = value ? tsr_value_producer(value) : NULL;
        if (!maker)
            return false;
        struct str op = tsr__node_op_str(maker);
        if (str_is(op, "DequantizeLinear"))
            return true;
        size_t i = 0;
        while (i < TSR_COUNT(moved_through) && !str_is(op, moved_through[i]))
            i++;
        if (i == TSR_COUNT(moved_through))
            return false;
        value = tsr_node_input(maker, 0);
    }
    return false;
}
