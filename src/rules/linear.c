// SPDX-License-Identifier: Apache-2.0
// linear.c - which operators may be given the parts of a sum in place of the sum, and give parts of theirs.
//
// A part of a sum passes where the result is linear in that input, the others being what they are; it is added where
// the result is the sum of all inputs: there every input may be in parts, and one that is not counts once.
#include "rules/rules.h"

static const struct {
    const char *op;
    unsigned inputs; // bits
    enum sum_way way;
} table[] = {
    {"Add", 3, SUM_ADDS},         {"Sum", ~0u, SUM_ADDS},     {"Identity", 1, SUM_PASSES},
    {"Neg", 1, SUM_PASSES},       {"Mul", 3, SUM_PASSES},     {"Div", 1, SUM_PASSES},
    {"MatMul", 3, SUM_PASSES},    {"Reshape", 1, SUM_PASSES}, {"Transpose", 1, SUM_PASSES},
    {"Squeeze", 1, SUM_PASSES},   {"Flatten", 1, SUM_PASSES}, {"Unsqueeze", 1, SUM_PASSES},
    {"ReduceSum", 1, SUM_PASSES},
};

enum sum_way tsr__rule_sum(const tsr_node *node, size_t input)
{
    if (tsr__node_domain_str(node).n || input >= sizeof(unsigned) * 8)
        return SUM_STOPS;
    for (size_t i = 0; i < TSR_COUNT(table); i++)
        if (strcmp(tsr_node_op(node), table[i].op) == 0)
            return table[i].inputs >> input & 1 ? table[i].way : SUM_STOPS;
    return SUM_STOPS;
}

const char *tsr__rule_byte_product(void)
{
    return "MatMulInteger";
}
