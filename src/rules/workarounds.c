// SPDX-License-Identifier: Apache-2.0
// workarounds.c - finds nodes that ONNX Runtime runs incorrectly in some graphs, so that partitions
// and reference runs can avoid these errors. docs/numbers.md describes each case.
//
//     y = MoE(x, ...), x has no other reader:    ONNX Runtime stores y in the memory of x, which
//                                                the kernel reads afterwards
//     a, b = Split(x); c, d, e = Split(x):       before opset 18, ONNX Runtime merges the second
//                                                into the first
//     p, i = MaxPool(x); q = QuantizeLinear(p):  ONNX Runtime quantizes x, so i has the indices of
//                                                equal quantized numbers
//     y = OptionalGetElement(x), x is a tensor:  the kernel for CUDA refuses a y that is in the
//                                                memory of x
#include "rules/internal.h"

#define MAX_READERS                                                                                \
    256 // Splits of a value with more readers are not compared: split_rank returns 0

bool tsr__node_rereads(const tsr_node *node)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && row->rereads;
}

bool tsr__node_opens_optional(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "OptionalGetElement") && !tsr__node_domain_str(node).n;
}

const char *tsr__node_rounding_level(const tsr_node *node)
{
    const struct op_row *row = tsr__row_of_node(node);
    if (!row || !row->rounding)
        return NULL;
    return tsr_attr_int(tsr_node_find_attr(node, row->rounding), 0) > 1 ? row->rounding : NULL;
}

// True for a Split with neither sizes nor a number of outputs.
static bool is_plain_split(const tsr_node *node)
{
    return str_is(tsr__node_op_str(node), "Split") && !tsr__node_domain_str(node).n &&
           tsr_node_input_count(node) == 1 && !tsr_node_find_attr(node, "split") &&
           !tsr_node_find_attr(node, "num_outputs");
}

// Search for the smallest output count larger than `above` among the plain Splits of a value.
// `found` is the result; 0: none yet.
struct next_count {
    size_t above, found;
};

static bool visit_split(void *data, tsr_node *node, size_t slot)
{
    struct next_count *next = data;
    size_t n = tsr_node_output_count(node);
    if (slot == 0 && is_plain_split(node) && n > next->above && (!next->found || n < next->found))
        next->found = n;
    return true;
}

// Returns the position of the node's output count in the ascending list of output counts of all
// Splits that read its input; 0 for other operators. Example: Splits of x into 2, 2 and 3 outputs
// have results 0, 0 and 1.
static size_t split_rank(const tsr_node *node)
{
    if (!is_plain_split(node) || !tsr_node_input(node, 0) ||
        tsr_value_use_count(tsr_node_input(node, 0)) > MAX_READERS)
        return 0;
    struct next_count next = {0};
    for (size_t rank = 0;; rank++) {
        next.found = 0;
        tsr_value_uses(tsr_node_input(node, 0), visit_split, &next);
        if (!next.found || next.found >= tsr_node_output_count(node))
            return rank;
        next.above = next.found;
    }
}

size_t tsr__node_copies(const tsr_node *node)
{
    return tsr__quantizes_pool(node) ? 1 : split_rank(node);
}
