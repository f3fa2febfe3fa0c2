// SPDX-License-Identifier: Apache-2.0
// linear.c - which operators may be given the parts of a sum in place of the sum, and give parts of
// theirs.
//
// A part of a sum passes where the result is linear in that input, the others being what they are;
// it is added where the result is the sum of all inputs: there every input may be in parts, and one
// that is not counts once. The table's columns sum and sum_inputs say so of the operators of
// ai.onnx.
#include "rules/internal.h"

// A row says it for some of its inputs; the others must be the sum.
enum sum_mode tsr__rule_sum(const tsr_node *node, size_t input)
{
    struct str domain = tsr__node_domain_str(node);
    if (domain.n || input >= sizeof(unsigned) * 8)
        return SUM_STOPS;
    const struct op_row *row =
        tsr__row_in_table(tsr__node_op_str(node), domain, tsr__node_opset(node));
    if (!row || !(row->sum_inputs >> input & 1))
        return SUM_STOPS;
    return row->sum;
}

const char *tsr__rule_byte_product(void)
{
    return "MatMulInteger";
}
