// SPDX-License-Identifier: Apache-2.0
// derive_select.c - rules of running sums, of the greatest elements, of losses, and of products with a
// few steps fused in.
#include "rules/derive.h"

// ---- the greatest, running sums -------------------------------------------------------------------

// A dimension of known size that is cut evenly is done in parts (expand_scan.c).
static const char *scan_clause(const struct derivation *derivation, int axis)
{
    if (tsr__derive_in(derivation, 0).dims[axis].value > 0)
        return tsr__derive_stat(derivation, 13, EXPAND_NUMBERS);
    return "rep";
}

void tsr__derive_top_k(struct derivation *derivation)
{
    int64_t k;
    int rank = tsr__derive_rank(derivation, 0);
    int axis = rank >= 0 ? tsr__derive_axis(derivation, "axis", -1, rank) : -1;
    if (axis < 0)
        return;
    tsr__derive_add(derivation, "[");
    tsr__derive_letters(derivation, 'd', 0, rank);
    tsr__derive_add(derivation, "],·?");
    for (int side = 0; side < 2; side++) {
        tsr__derive_add(derivation, side ? ",[" : " -> [");
        tsr__derive_letters(derivation, 'd', 0, axis);
        tsr__derive_add(derivation, "_ ");
        tsr__derive_letters(derivation, 'd', axis + 1, rank);
        tsr__derive_add(derivation, "]");
    }
    bool known =
        tsr__derive_has(derivation, 1) &&
        tsr__shapes_ints(derivation->shapes, tsr_node_input(derivation->node, 1), &k, 1) == 1;
    tsr__derive_add(derivation, "; %s d%d", known ? scan_clause(derivation, axis) : "rep", axis);
}

// The axis is an input; if nobody knows it, all dimensions stay whole.
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

// ---- losses --------------------------------------------------------------------------------------

enum loss { LOSS_MEAN, LOSS_SUM, LOSS_NONE };

static enum loss reduction_of(const struct derivation *derivation)
{
    size_t n;
    const char *s =
        tsr_attr_string(tsr__attr_of(derivation->shapes, derivation->node, "reduction"), &n);
    struct str text = {s, s ? n : 0};
    if (str_is(text, "sum"))
        return LOSS_SUM;
    return str_is(text, "none") ? LOSS_NONE : LOSS_MEAN;
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

// ---- fused products -------------------------------------------------------------------------------

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
    const char *left = ta ? "[B~ k m]" : "[B~ m k]";
    const char *right = tb ? "[B~ n k]" : "[B~ k n]";
    if (a)
        left = "[k]";
    if (b)
        right = "[k]";
    tsr__derive_add(derivation, "%s,%s -> [%s%s%s]; red k:sum", left, right,
                    text_if(!a || !b, "B* "), text_if(!a, "m "), text_if(!b, "n"));
}

// An activation comes after the sum.
void tsr__derive_fused_gemm(struct derivation *derivation)
{
    const char *left = tsr__derive_int(derivation, "transA", 0) ? "[k m]" : "[m k]";
    const char *right = tsr__derive_int(derivation, "transB", 0) ? "[n k]" : "[k n]";
    tsr__derive_add(derivation, "%s,%s,[m~ n~]? -> [m n]; %s k", left, right,
                    tsr__derive_stat(derivation, 11, EXPAND_FLOATS));
}

// The left side is quantised by its least and greatest element.
void tsr__derive_dynamic_quantize_matmul(struct derivation *derivation)
{
    bool known =
        tsr__derive_in(derivation, 0).dtype == TSR_FLOAT && tsr__derive_in(derivation, 1).rank == 2;
    tsr__derive_add(derivation, "[B* m k],[k n],[n~],[n~]?,[n~]? -> [B* m n]; %s B m k",
                    known ? tsr__derive_stat(derivation, 11, EXPAND_FLOATS) : "rep");
}
