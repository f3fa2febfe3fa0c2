// SPDX-License-Identifier: Apache-2.0
// derive_select.c - rules of running sums, of the greatest elements, of losses, and of products
// with a few steps fused in.
//
//   TopK of [4 9] along 1        [d0 d1],·? -> [d0 _],[d0 _]; stat d1
//   CumSum of [4 9] along 1      [d0 d1],· -> [d0 d1]; stat d1
//   a loss, reduction sum        [n c D*],[n D*],[c]? -> []; stat c; red n:sum D:sum
//   the same, mean               ... -> []; stat c; stat n D: the weights are summed too, and then
//                                divided by
//   FusedMatMul, transB 1        [B~ m k],[B~ n k] -> [B* m n]; red k:sum
#include "rules/derive/derive.h"

// ---- the greatest, running sums -----------------------------------------------------------------

// A dimension of known size that is cut evenly is done in parts (expand_scan.c).
static const char *scan_clause(const struct derivation *derivation, int axis)
{
    if (tsr__derive_in(derivation, 0).dims[axis].value > 0)
        return tsr__derive_stat(derivation, 13, EXPAND_NUMBERS);
    return "rep";
}

// Of each part the k greatest, and of those the k greatest (expand_scan.c): that needs k, and a
// size that is known.
void tsr__derive_top_k(struct derivation *derivation)
{
    int64_t k;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = tsr__derive_axis(derivation, "axis", -1, rank);
    if (axis < 0)
        return;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],·?");
    static const char *const before[] = {" -> [", ",["}; // elements, and their places
    for (size_t i = 0; i < TSR_COUNT(before); i++) {
        tsr__derive_add(derivation, "%s", before[i]);
        tsr__derive_letters(derivation, 'd', 0, axis);
        tsr__derive_add(derivation, "_ ");
        tsr__derive_letters(derivation, 'd', axis + 1, rank);
        tsr__derive_add(derivation, "]");
    }
    const char *clause = "rep";
    if (tsr__derive_has(derivation, 1) &&
        tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, 1), &k, 1) == 1)
        clause = scan_clause(derivation, axis);
    tsr__derive_add(derivation, "; %s d%d", clause, axis);
}

// The axis is an input; if it is unknown, no dimension is sharded.
void tsr__derive_cumulate(struct derivation *derivation)
{
    int64_t axis;
    int rank = tsr__derive_rank(derivation, 0);
    if (rank < 0)
        return;
    bool known =
        tsr__derive_has(derivation, 1) &&
        tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, 1), &axis, 1) == 1 &&
        tsr__axis(axis, rank) >= 0;
    if (!known && rank == 1) {
        axis = 0; // there is no other
        known = true;
    }
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],· -> [");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "]");
    if (known)
        tsr__derive_add(derivation, "; %s d%d", scan_clause(derivation, tsr__axis(axis, rank)),
                        tsr__axis(axis, rank));
    else
        derivation->whole = "the axis is not known before the run";
}

// ---- losses -------------------------------------------------------------------------------------

enum loss { LOSS_MEAN, LOSS_SUM, LOSS_NONE };

static enum loss reduction_of(const struct derivation *derivation)
{
    if (tsr__derive_text_is(derivation, "reduction", "sum"))
        return LOSS_SUM;
    if (tsr__derive_text_is(derivation, "reduction", "none"))
        return LOSS_NONE;
    return LOSS_MEAN;
}

// Classes are addressed by the labels, means need the sum of weights: both are cut by replacing the
// node (expand_loss.c).
static void loss(struct derivation *derivation, bool probabilities)
{
    enum loss kind = reduction_of(derivation);
    bool more = tsr_node_output_count(derivation->node) > 1 && tsr_node_output(derivation->node, 1);
    const char *stat = tsr__derive_stat(derivation, 12, EXPAND_FLOATS);
    tsr__derive_add(derivation, "[n c D*],[n D*],[c]? -> [%s]%s; %s c",
                    text_if(kind == LOSS_NONE, "n D*"), text_if(probabilities && more, ",[n c D*]"),
                    stat);
    if (kind == LOSS_SUM && !more)
        tsr__derive_add(derivation, "; red n:sum D:sum");
    else if (kind != LOSS_NONE) // with another output that is not reduced, too
        tsr__derive_add(derivation, "; %s n D", stat);
}

void tsr__derive_loss(struct derivation *derivation)
{
    loss(derivation, false);
}

void tsr__derive_softmax_loss(struct derivation *derivation)
{
    loss(derivation, true);
}

// ---- fused products -----------------------------------------------------------------------------

// The operands of a product by how they are stored: plain, transposed.
static const char *const left_operand[] = {"m k", "k m"};
static const char *const right_operand[] = {"k n", "n k"};

// A 1-D left operand has no factor m, a 1-D right operand has no factor n. transA and transB do not
// apply to 1-D operands.
void tsr__derive_fused_matmul(struct derivation *derivation)
{
    bool a = tsr__derive_in(derivation, 0).rank == 1, b = tsr__derive_in(derivation, 1).rank == 1;
    bool ta = tsr__derive_int(derivation, "transA", 0) && !a,
         tb = tsr__derive_int(derivation, "transB", 0) && !b;
    if (tsr__derive_int(derivation, "transBatchA", 0) ||
        tsr__derive_int(derivation, "transBatchB", 0)) {
        tsr__derive_none(derivation, "transposed batches are not followed");
        return;
    }
    if (a)
        tsr__derive_add(derivation, "[k]");
    else
        tsr__derive_add(derivation, "[B~ %s]", left_operand[ta]);
    if (b)
        tsr__derive_add(derivation, ",[k]");
    else
        tsr__derive_add(derivation, ",[B~ %s]", right_operand[tb]);
    tsr__derive_add(derivation, " -> [%s%s%s]; red k:sum", text_if(!a || !b, "B* "),
                    text_if(!a, "m "), text_if(!b, "n"));
}

// An activation comes after the sum.
void tsr__derive_fused_gemm(struct derivation *derivation)
{
    bool turned_left = tsr__derive_int(derivation, "transA", 0) != 0,
         turned_right = tsr__derive_int(derivation, "transB", 0) != 0;
    tsr__derive_add(derivation, "[%s],[%s],[m~ n~]? -> [m n]; %s k", left_operand[turned_left],
                    right_operand[turned_right], tsr__derive_stat(derivation, 11, EXPAND_FLOATS));
}

// The left side is quantised by its least and greatest element.
void tsr__derive_dynamic_quantize_matmul(struct derivation *derivation)
{
    bool known =
        tsr__derive_in(derivation, 0).dtype == TSR_FLOAT && tsr__derive_in(derivation, 1).rank == 2;
    tsr__derive_add(derivation, "[B* m k],[k n],[n~],[n~]?,[n~]? -> [B* m n]; %s B m k",
                    tsr__derive_stat_if(known, derivation, 11, EXPAND_FLOATS));
}
