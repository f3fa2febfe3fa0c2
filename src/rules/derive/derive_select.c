// SPDX-License-Identifier: Apache-2.0
// derive_select.c - rules of TopK, running sums, losses, and matrix products with fused steps.
//
//   TopK of [4 9] along 1        [d0 d1],·? -> [d0 k],[d0 k]; stat d1; rep k
//   CumSum of [4 9] along 1      [d0 d1],· -> [d0 d1]; stat d1
//   a loss, reduction sum        [n c D*],[n D*],[c]? -> []; rep c; red n:sum D:sum
//   FusedMatMul, transB 1        [B~ m k],[B~ n k] -> [B* m n]; red k:sum
#include "rules/derive/derive.h"

// ---- TopK, running sums ------------------------------------------------------------------------

// Returns the factor kind of the scanned dimension. If its size is known, it can be sharded by
// expanding the node (expand_scan.c).
static enum factor_kind scan_kind(const struct derivation *derivation, int axis)
{
    bool known = tsr__derive_in(derivation, 0).dims[axis].value > 0;
    return stat_if(known);
}

// Derives the rule of TopK. Devices select the k largest of their shards, then the k largest of all
// selected (expand_scan.c). This needs a known k and a known size. The outputs are elements and
// indices.
void tsr__derive_top_k(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t k;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    tsr__rule_axes(rule, rank, axis);
    tsr__rule_text(rule, "[@],·? -> [< k >],[< k >]; rep k");
    tsr__derive_element_size(derivation, "k", 1);
    if (tsr__derive_int(derivation, "k", -1) >= 0) // in the first opset
        tsr__derive_size(derivation, "k", tsr__derive_int(derivation, "k", 0));
    enum factor_kind kind = FACTOR_REP;
    if (tsr__derive_number(derivation, 1, &k))
        kind = scan_kind(derivation, axis);
    tsr__rule_kind_range(rule, kind, 'd', axis, axis + 1);
}

// Derives the rule of running sums. The axis is an input; if it is unknown, no dimension is
// sharded.
void tsr__derive_cumulate(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int64_t given = 0;
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    int axis = tsr__derive_number(derivation, 1, &given) ? tsr__axis(given, rank) : -1;
    if (axis < 0 && rank == 1)
        axis = 0; // a vector has only this axis
    tsr__rule_axes(rule, rank, axis);
    tsr__rule_text(rule, "[@],· -> [@]");
    if (axis >= 0)
        tsr__rule_kind_range(rule, scan_kind(derivation, axis), 'd', axis, axis + 1);
    else
        derivation->whole = "the axis is known only at run time: make it an initializer";
}

// ---- losses -------------------------------------------------------------------------------------

// Derives the rule of a loss. Labels address classes, which are not sharded. A sum over samples is
// a plain reduction, unless there is a second output, which has all elements. A mean divides by the
// sum of the weights, so samples are not sharded.
void tsr__derive_loss(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    bool none = tsr__derive_text_is(derivation, "reduction", "none"),
         sum = tsr__derive_text_is(derivation, "reduction", "sum"),
         more = tsr_node_output(derivation->node, 1) != NULL;
    tsr__rule_inputs(rule, "[n c D*],[n D*],[c]?");
    tsr__rule_outputs(rule, none ? "[n D*]" : "[]");
    if (more)
        tsr__rule_outputs(rule, "[n c D*]");
    tsr__rule_kind(rule, FACTOR_REP, "c");
    if (sum && !more)
        tsr__rule_clauses(rule, "red n:sum D:sum");
    else if (!none)
        tsr__rule_kind(rule, FACTOR_REP, "n D");
}

// ---- fused products -----------------------------------------------------------------------------

// Builds a rule that gives only the rank of the result: transposed batches are not supported.
static void transposed_batch(struct derivation *derivation, int left, int right)
{
    static const char why[] = "transposed batches are not supported";
    if (tsr__derive_none_if(derivation, left < 2 || right < 2, why))
        return;
    tsr__rule_inputs(&derivation->rule, "·,·");
    tsr__rule_output(&derivation->rule);
    tsr__rule_any(&derivation->rule, (int)int64_max(left, right));
    derivation->whole = why;
}

// Derives the rule of FusedMatMul. A 1-D left operand has no factor m, a 1-D right operand has no
// factor n. transA and transB do not apply to 1-D operands.
void tsr__derive_fused_matmul(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    int left = tsr__derive_in(derivation, 0).rank, right = tsr__derive_in(derivation, 1).rank;
    bool left_vector = left == 1, right_vector = right == 1;
    if (tsr__derive_int(derivation, "transBatchA", 0) ||
        tsr__derive_int(derivation, "transBatchB", 0)) {
        transposed_batch(derivation, left, right);
        return;
    }
    static const char *const lefts[] = {"[B~ m k]", "[B~ k m]"}, *const rights[] = {"[B~ k n]",
                                                                                    "[B~ n k]"};
    bool a = tsr__derive_int(derivation, "transA", 0), b = tsr__derive_int(derivation, "transB", 0);
    tsr__rule_inputs(rule, left_vector ? "[k]" : lefts[a]);
    tsr__rule_inputs(rule, right_vector ? "[k]" : rights[b]);
    tsr__derive_product(rule, left_vector, right_vector);
    tsr__rule_clauses(rule, "red k:sum");
}

// Derives the rule of FusedGemm. The activation needs the complete sum over k.
void tsr__derive_fused_gemm(struct derivation *derivation)
{
    struct rule_builder *rule = &derivation->rule;
    tsr__rule_inputs(rule, tsr__derive_int(derivation, "transA", 0) ? "[k m]" : "[m k]");
    tsr__rule_inputs(rule, tsr__derive_int(derivation, "transB", 0) ? "[n k]" : "[k n]");
    tsr__rule_inputs(rule, "[m~ n~]?");
    tsr__rule_outputs(rule, "[m n]");
    tsr__rule_kind(rule, FACTOR_STAT, "k");
}

// Derives the rule of DynamicQuantizeMatMul. The left operand is quantized by the minimum and
// maximum of all its elements.
void tsr__derive_dynamic_quantize_matmul(struct derivation *derivation)
{
    bool known =
        tsr__derive_in(derivation, 0).dtype == TSR_FLOAT && tsr__derive_in(derivation, 1).rank == 2;
    tsr__rule_inputs(&derivation->rule, "[B* m k],[k n],[n~],[n~]?,[n~]?");
    tsr__rule_outputs(&derivation->rule, "[B* m n]");
    tsr__rule_kind(&derivation->rule, stat_if(known), "B m k");
}
