// SPDX-License-Identifier: Apache-2.0
// empty.c - kernels of ONNX Runtime that do not accept empty tensors. A device may have an empty
// shard if a size is known only at run time. Example: with a batch of 1 on 2 devices, the first
// device has no row. Most kernels then return an empty result. Some return an error, another shape
// or uninitialized memory, or crash. The column `some` of the table lists the factors of which a
// kernel needs at least one element; tests/rules/empty.py compares it with ONNX Runtime on CPUs.
// Only the kernel of the CUDA provider needs elements of a factor with "^".
#include "rules/internal.h"

#include <ctype.h>

// Compares a letter of the column with the name of a factor: "s" matches s, s0 and s1; "d1" matches
// only d1. A trailing "_" is ignored: if a placement splits factor s in two, the inner part is
// called s_.
static bool letter_is(struct str letter, struct str factor)
{
    if (factor.n < letter.n || memcmp(factor.p, letter.p, letter.n) != 0)
        return false;
    for (size_t i = letter.n; i < factor.n; i++)
        if (factor.p[i] != '_' && (isdigit((unsigned char)letter.p[letter.n - 1]) ||
                                   !isdigit((unsigned char)factor.p[i])))
            return false;
    return true;
}

// Returns the number of factors of batch dimension `back`, counted backwards: 1 is the one before
// the matrix. 0: there is no such dimension, or it has size 1.
static int batch_factors(const struct rule_tensor *tensor, int back)
{
    int axis = tensor->rank - 2 - back;
    return axis < 0 ? 0 : tensor->dims[axis].n;
}

// True if ONNX Runtime may move a Transpose behind the node. It does not move one behind a Reshape
// to another rank.
static bool moves_transposes(const tsr_node *node, enum op_work work, const struct shapes *shapes)
{
    if (work == WORK_VIEW)
        return tsr__shapes_of(shapes, tsr_node_input(node, 0)).rank ==
               tsr__shapes_of(shapes, tsr_node_output(node, 0)).rank;
    return work == WORK_ELEMENTWISE || work == WORK_COPY || work == WORK_CURVE ||
           work == WORK_ERROR_FUNCTION || work == WORK_REDUCTION;
}

#define MAX_MOVED 4 // a Transpose is hardly ever moved behind more nodes

// True if a Transpose produces the left operand of a product, or if ONNX Runtime may move one there
// (Transpose, Concat, MatMul). From optimization level 2 on, ONNX Runtime fuses it into the
// product, which then multiplies each matrix of the batch separately. `moved`: number of nodes
// between the value and the product.
static bool is_transposed(const tsr_value *value, const struct shapes *shapes, int moved)
{
    const tsr_node *maker = value ? tsr_value_producer(value) : NULL;
    const struct op_row *row = maker ? tsr__row_of_node(maker) : NULL;
    if (!row || row->work == WORK_TRANSPOSE)
        return row;
    if (moved >= MAX_MOVED || !moves_transposes(maker, row->work, shapes))
        return false;
    for (size_t i = 0; i < tsr_node_input_count(maker) && i < 2; i++)
        if (is_transposed(tsr_node_input(maker, i), shapes, moved + 1))
            return true;
    return false;
}

// True if the kernel of a product may fail for an empty batch (QUIRK_matmul_of_empty_stack): one
// operand is a vector, or has a batch dimension that the other lacks. A batch times a single right
// matrix works, because the kernel treats the batch as one tall matrix, unless ONNX Runtime fuses a
// Transpose into the product.
bool tsr__stacks_differ(const tsr_node *node, const struct rule *rule, const struct shapes *shapes)
{
    if (rule->n_inputs < 2)
        return false;
    const struct rule_tensor *left = &rule->inputs[0], *right = &rule->inputs[1];
    if (left->rank == 1 || right->rank == 1)
        return true;
    if (right->rank == 2)
        return left->rank > 2 && is_transposed(tsr_node_input(node, 0), shapes, 0);
    int most = left->rank > right->rank ? left->rank : right->rank;
    for (int back = 1; back <= most - 2; back++)
        if (!batch_factors(left, back) != !batch_factors(right, back))
            return true;
    return false;
}

// True if there is one scale per block of elements. Kernels read the first scale even if there are
// no blocks.
bool tsr__scales_of_blocks(const tsr_node *node, const struct rule *rule,
                           const struct shapes *shapes)
{
    (void)node, (void)shapes;
    return rule->n_inputs > 1 && rule->inputs[1].rank > 1;
}

// True for mode "wrap". In all other modes ONNX Runtime supports tensors without elements.
bool tsr__pads_by_wrapping(const tsr_node *node, const struct rule *rule,
                           const struct shapes *shapes)
{
    (void)rule, (void)shapes;
    size_t n;
    const char *mode = tsr_attr_string(tsr_node_find_attr(node, "mode"), &n);
    return mode && str_is((struct str){mode, n}, "wrap");
}

// True if the kernel needs at least one element of the factor. Example: with "B~ m~ k q^" in column
// `some`, the kernel always needs an element of k. It needs elements of B and m only if the row's
// condition (`some_if`) holds, and of q only on CUDA.
bool tsr__rule_wants_some(const tsr_node *node, const struct rule *rule,
                          const struct shapes *shapes, int factor, bool cuda)
{
    const struct op_row *row = tsr__row_of_node(node);
    const char *at = row && row->some ? row->some : "";
    while (*at) {
        size_t n = strcspn(at, " ~^");
        struct str letter = {at, n}, name = str_of(rule->factors[factor].name);
        bool named = str_is(letter, "*") || letter_is(letter, name);
        if (named && (at[n] != '~' || row->some_if(node, rule, shapes)) && (at[n] != '^' || cuda))
            return true;
        at += n + strspn(at + n, " ~^");
    }
    return false;
}

// Returns the input whose value minus one replaces an empty input; -1: zeros replace it. Input 5 of
// GroupQueryAttention is the index of the last key of each batch entry. The kernel rejects an index
// that is too small for the queries: 0 with 4 queries. The total number of keys (input 6) minus one
// is valid for any entry.
int tsr__rule_substitute(const tsr_node *node, int input)
{
    const struct op_row *row = tsr__row_of_node(node);
    return row && strcmp(row->op, "GroupQueryAttention") == 0 && input == 5 ? 6 : -1;
}
