// SPDX-License-Identifier: Apache-2.0
// linear.c - operators that accept partial sums and then return partial sums.
//
// A partial sum passes through an operator if the result is linear in that input. If the result is
// the sum of all inputs, several inputs may be partial sums, and one device adds each complete
// input. The columns sum and sum_inputs of the table list these operators.
#include "rules/internal.h"

// Returns how the operator treats a partial sum at this input; SUM_STOPS outside of ai.onnx.
enum sum_mode tsr__rule_sum(const tsr_node *node, size_t input)
{
    struct str domain = tsr__node_domain_str(node);
    if (domain.n || input >= sizeof(unsigned) * 8)
        return SUM_STOPS;
    const struct op_row *row =
        tsr__row_in_table(tsr__node_op_str(node), domain, tsr__node_opset(node));
    return !row || !(row->sum_inputs >> input & 1) ? SUM_STOPS : row->sum;
}

const char *tsr__rule_byte_product(void)
{
    return "MatMulInteger";
}
