// SPDX-License-Identifier: Apache-2.0
// kept_inputs.c - finds constants that the optimizer of ONNX Runtime leaves unchanged, and values
// that it moves.
//
// ONNX Runtime moves Transposes through nodes (optimization level 1 and above) and transposes
// constants on the path in place (QUIRK_turned_constants): y = Add(Transpose(x), w) becomes y =
// Transpose(Add(x, w)), where w is now the transposed tensor under the same name. A caller that
// provided memory for w by name (AddInitializer) silently gets a wrong result. Transposes are not
// moved through matrix products, convolutions, lookups and recurrent layers, so their weights keep
// their order (column `kept`). All other inputs are assumed to be transposed, which costs only
// memory.
#include "rules/internal.h"

bool tsr__rule_keeps_input(const tsr_node *node, size_t input)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && input < sizeof(row->kept) * 8 && (row->kept >> input & 1);
}

#define MAX_MOVES 64 // most nodes that are visited

static bool moves_elements(struct str op)
{
    static const char *const moved_through[] = {"Slice",   "Reshape",   "Transpose",
                                                "Squeeze", "Unsqueeze", "MaxPool"};
    for (size_t i = 0; i < TSR_COUNT(moved_through); i++)
        if (str_is(op, moved_through[i]))
            return true;
    return false;
}

// True if one of the nodes `is_it` computes the value, directly or through nodes that move
// elements.
static bool comes_from(const tsr_value *value, bool (*is_it)(const tsr_node *))
{
    for (int left = MAX_MOVES; left > 0; left--) {
        const tsr_node *maker = value ? tsr_value_producer(value) : NULL;
        if (!maker)
            return false;
        if (is_it(maker))
            return true;
        if (!moves_elements(tsr__node_op_str(maker)))
            return false;
        value = tsr_node_input(maker, 0);
    }
    return true; // assumed beyond the limit: costs only a barrier
}

static bool dequantizes(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "DequantizeLinear");
}

bool tsr__value_is_dequantized(const tsr_value *value)
{
    return comes_from(value, dequantizes);
}

// True for a MaxPool that returns indices, too.
static bool returns_indices(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "MaxPool") && tsr_node_output_count(node) > 1 &&
           tsr_node_output(node, 1);
}

bool tsr__quantizes_pool(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "QuantizeLinear") &&
           comes_from(tsr_node_input(node, 0), returns_indices);
}

// State of a search for a QuantizeLinear after a value. left: number of nodes that may still be
// visited. Beyond this limit the search returns true, which costs only a copy.
struct search {
    int left;
    bool found;
};

static bool visit_reader(void *data, tsr_node *reader, size_t input)
{
    struct search *search = data;
    struct str op = tsr__node_op_str(reader);
    (void)input;
    if (str_is(op, "QuantizeLinear") || --search->left < 0)
        search->found = true;
    else if (moves_elements(op) && tsr_node_output(reader, 0))
        tsr_value_uses(tsr_node_output(reader, 0), visit_reader, search);
    return !search->found;
}

bool tsr__value_is_quantized(const tsr_value *value)
{
    struct search search = {.left = MAX_MOVES};
    if (value)
        tsr_value_uses(value, visit_reader, &search);
    return search.found;
}
