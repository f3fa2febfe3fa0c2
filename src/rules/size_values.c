// SPDX-License-Identifier: Apache-2.0
// size_values.c - finds the nodes that only compute sizes. They are known once the sizes of the
// model are, and take no time on the devices: with fixed sizes ONNX Runtime computes them when it
// loads the model, otherwise the host computes a few numbers. Plans and simulations charge nothing
// for them, so both agree although partition adds, moves and removes such nodes.
//
//     Example: Shape(x), Gather of element 0, Concat with [-1]: the target of a Reshape.
#include "rules/internal.h"

static bool is_op(const tsr_node *node, const char *op)
{
    return !tsr_node_domain(node)[0] && strcmp(tsr_node_op(node), op) == 0;
}

// True if the value is constant or marked.
static bool is_known(const tsr_value *value, const unsigned char *from_sizes)
{
    return tsr_value_initializer(value) || from_sizes[tsr__value_id(value)];
}

// True for a node without bodies whose inputs, at least one, are all known.
static bool reads_known(const tsr_node *node, const unsigned char *from_sizes)
{
    size_t known = 0;
    for (size_t i = 0; i < tsr_node_input_count(node); i++) {
        const tsr_value *value = tsr_node_input(node, i);
        if (value && !is_known(value, from_sizes))
            return false;
        known += value != NULL;
    }
    return known && !tsr__node_has_graphs(node) && !tsr__node_draws(node);
}

bool tsr__node_computes_sizes(const tsr_node *node, const struct shapes *shapes,
                              unsigned char *from_sizes)
{
    bool reads = is_op(node, "Shape") || is_op(node, "Size") || is_op(node, "Constant") ||
                 reads_known(node, from_sizes);
    for (size_t i = 0; reads && i < tsr_node_output_count(node); i++) {
        const tsr_value *value = tsr_node_output(node, i);
        reads = !value || (unsigned)tsr__shapes_of(shapes, value).rank <= 1;
    }
    for (size_t i = 0; reads && i < tsr_node_output_count(node); i++)
        if (tsr_node_output(node, i))
            from_sizes[tsr__value_id(tsr_node_output(node, i))] = 1;
    return reads;
}
