// SPDX-License-Identifier: Apache-2.0
// derive_select.c - rules of running sums, of the greatest elements, of losses, of random numbers and
// of products with a few steps fused in.
#include "rules/derive.h"

// ---- the greatest, running sums -------------------------------------------------------------------

void tsr__derive_top_k(struct derivation *d)
{
    int rank = tsr__derive_rank(d, 0);
    int axis = rank >= 0 ? tsr__derive_axis(d, "axis", -1, rank) : -1;
    if (axis < 0)
        return;
    tsr__derive_add(d, "[");
    tsr__derive_letters(d, 'd', 0, rank);
    tsr__derive_add(d, "],·?");
    for (int side = 0; side < 2; side++) {
        tsr__derive_add(d, side ? ",[" : " -> [");
        tsr__derive_letters(d, 'd', 0, axis);
        tsr__derive_add(d, "_ ");
        tsr__derive_letters(d, 'd', axis + 1, rank);
        tsr__derive_add(d, "]");
    }
    tsr__derive_add(d, "; rep d%d", axis);
}

void tsr__shape_top_k(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0);
    int axis = x.rank > 0 ? tsr__axis(tsr__job_int(j, "axis", -1), x.rank) : -1;
    struct known_value k = tsr__job_values(j, 1);
    int64_t fixed = tsr__job_int(j, "k", -1);
    if (axis < 0)
        return;
    for (int i = 0; i < 2; i++) {
        tsr_dim *dims = tsr__job_dims(j, x.rank);
        if (!dims)
            return;
        memcpy(dims, x.dims, (size_t)x.rank * sizeof(*dims));
        dims[axis] = DIM_UNKNOWN;
        if (fixed >= 0)
            dims[axis] = (tsr_dim){fixed, ""};
        else if (k.elements && k.n == 1)
            dims[axis] = tsr__job_dim(j, k.elements[0]);
        tsr__job_set(j, i, x.rank, dims);
    }
}

// The axis is an input; if nobody knows it, all dimensions stay whole.
void tsr__derive_cumulate(struct derivation *d)
{
    int64_t axis;
    int rank = tsr__derive_rank(d, 0);
    if (rank < 0)
        return;
    bool known = tsr__derive_has(d, 1) &&
                 tsr__shapes_ints(d->shapes, tsr_node_input(d->node, 1), &axis, 1) == 1 &&
                 tsr__axis(axis, rank) >= 0;
    tsr__derive_add(d, "[");
    tsr__derive_letters(d, 'd', 0, rank);
    tsr__derive_add(d, "],· -> [");
    tsr__derive_letters(d, 'd', 0, rank);
    tsr__derive_add(d, "]");
    if (known)
        tsr__derive_add(d, "; scan d%d", tsr__axis(axis, rank));
    else
        d->whole = "the axis is not known before the run";
}

// ---- losses --------------------------------------------------------------------------------------

enum loss { LOSS_MEAN, LOSS_SUM, LOSS_NONE };

static enum loss reduction_of(const struct derivation *d)
{
    size_t n;
    const char *s = tsr_attr_string(tsr__attr_of(d->shapes, d->node, "reduction"), &n);
    struct str text = {s, s ? n : 0};
    return str_is(text, "sum") ? LOSS_SUM : str_is(text, "none") ? LOSS_NONE : LOSS_MEAN;
}

// A mean over samples that weigh alike is their sum, divided once; else it needs the sum of weights.
static const char *mean_clause(const struct derivation *d)
{
    bool alike = !tsr__derive_has(d, 2) && !tsr__attr_of(d->shapes, d->node, "ignore_index");
    return alike ? tsr__derive_stat(d, 13, EXPAND_FLOATS) : "rep";
}

static void loss(struct derivation *d, bool probabilities)
{
    enum loss kind = reduction_of(d);
    bool more = tsr_node_output_count(d->node) > 1 && tsr_node_output(d->node, 1);
    tsr__derive_add(d, "[n c D*],[n D*],[c]? -> [%s]%s; rep c", kind == LOSS_NONE ? "n D*" : "",
                    probabilities ? ",[n c D*]?" : "");
    if (kind == LOSS_NONE)
        return;
    if (more) // one output is reduced, the other is not
        tsr__derive_add(d, "; rep n D");
    else if (kind == LOSS_SUM)
        tsr__derive_add(d, "; red n:sum D:sum");
    else
        tsr__derive_add(d, "; %s n D", mean_clause(d));
}

void tsr__derive_loss(struct derivation *d)
{
    loss(d, false);
}

void tsr__derive_softmax_loss(struct derivation *d)
{
    loss(d, true);
}

// ---- random numbers -------------------------------------------------------------------------------

void tsr__shape_random(struct shape_job *j)
{
    const int64_t *shape;
    size_t n = tsr__job_ints(j, "shape", &shape);
    tsr_dim *dims = tsr__job_attr(j, "shape") ? tsr__job_dims(j, (int64_t)n) : NULL;
    for (size_t i = 0; dims && i < n; i++)
        dims[i] = (tsr_dim){shape[i] < 0 ? -1 : shape[i], ""};
    tsr__job_set(j, 0, (int)n, dims);
}

void tsr__shape_multinomial(struct shape_job *j)
{
    struct shape x = tsr__job_in(j, 0);
    tsr_dim *dims = tsr__job_dims(j, 2);
    int64_t type = tsr__job_int(j, "dtype", TSR_INT32);
    j->out[0].dtype = type > 0 && type < TSR_DTYPE_COUNT ? (tsr_dtype)type : TSR_UNDEFINED;
    if (!dims)
        return;
    if (x.rank == 2)
        dims[0] = x.dims[0];
    dims[1] = (tsr_dim){tsr__job_int(j, "sample_size", 1), ""};
    tsr__job_set(j, 0, 2, dims);
}

// ---- fused products -------------------------------------------------------------------------------

void tsr__derive_fused_matmul(struct derivation *d)
{
    bool a = tsr__derive_in(d, 0).rank == 1, b = tsr__derive_in(d, 1).rank == 1;
    bool ta = tsr__derive_int(d, "transA", 0) && !a, tb = tsr__derive_int(d, "transB", 0) && !b;
    if (tsr__derive_int(d, "transBatchA", 0) || tsr__derive_int(d, "transBatchB", 0)) {
        tsr__derive_none(d, "transposed batches are not followed");
        return;
    }
    tsr__derive_add(d, "%s,%s -> [%s%s%s]; red k:sum",
                    a    ? "[k]"
                    : ta ? "[B~ k m]"
                         : "[B~ m k]",
                    b    ? "[k]"
                    : tb ? "[B~ n k]"
                         : "[B~ k n]",
                    a && b ? "" : "B* ", a ? "" : "m ", b ? "" : "n");
}

// An activation comes after the sum.
void tsr__derive_fused_gemm(struct derivation *d)
{
    tsr__derive_add(d, "%s,%s,[m~ n~]? -> [m n]; rep k",
                    tsr__derive_int(d, "transA", 0) ? "[k m]" : "[m k]",
                    tsr__derive_int(d, "transB", 0) ? "[n k]" : "[k n]");
}
