// SPDX-License-Identifier: Apache-2.0
// shape_letters.c - infers shapes of outputs from the letters of a rule: the inputs give the size
// of each factor, and the factors give the dimensions of the outputs.
//
//   MatMul, [B~ m k],[B~ k n] -> [B* m n], of [2 3 4 5] and [5 6]:
//     B0 = 2, B1 = 3, m = 4, n = 6: [2 3 4 6]
//   Add, [A~],[A~] -> [A*], of [n 1 6] and [4 1]:
//     [n 4 6]
#include "rules/fit.h"

static bool read_size(const struct fit_dim *dim)
{
    tsr_dim *dims = dim->data;
    dims[dim->axis] =
        dim->pattern->any ? DIM_UNKNOWN : tsr__fit_size(dim->fit, dim->factors, dim->n);
    return true;
}

// Matches the pattern with the inputs alone, and sets the outputs. `fit` is large and is not
// cleared: only the fields that are read are set.
static void shape_by(struct shape_job *job, const struct pattern *pattern,
                     const struct derivation *derivation)
{
    struct fit fit;
    fit.arena = job->arena;
    fit.node = job->node;
    fit.shapes = job->shapes;
    fit.pattern = pattern;
    fit.derivation = derivation;
    fit.n_factors = 0;
    fit.whole = NULL;
    fit.expands = false;
    fit.shapes_only = true;
    fit.n_kept = (int)clamped(job->n_in, 0, FIT_KEPT_INPUTS);
    for (int i = 0; i < fit.n_kept; i++)
        fit.kept[i] = tsr__job_in(job, i);
    if (!tsr__fit(&fit))
        return;
    for (int i = 0; i < job->n_out; i++) {
        const struct pattern_tensor *tensor = tsr__fit_pattern(&fit, SIDE_OUT, i);
        if (!tensor || tensor->host)
            continue;
        int rank = tsr__fit_rank(&fit, SIDE_OUT, i);
        tsr_dim *dims = tsr__job_dims(job, rank);
        if (dims && tsr__fit_each(&fit, SIDE_OUT, i, rank, read_size, dims))
            tsr__job_set(job, i, rank, dims);
    }
}

// ---- tensors that broadcast ---------------------------------------------------------------------

// Merges two sizes of one broadcast dimension. False: they do not fit together.
static bool stretch_dim(struct exprs *exprs, tsr_dim *at, tsr_dim dim)
{
    if (dim.value == 1 || (at->value >= 0 && at->value != 1 && dim.value < 0))
        return true;
    if (at->value == 1 || (dim.value >= 0 && at->value < 0))
        *at = dim;
    else if (at->value >= 0 && dim.value >= 0)
        return at->value == dim.value;
    else // it is unknown before the run which of them is 1
        *at = tsr__expr_dim(
            exprs, tsr__expr_broadcast(exprs, tsr__expr_of(exprs, *at), tsr__expr_of(exprs, dim)));
    return true;
}

// Finds the size of dimension `axis` of a result of that rank. Inputs are aligned from the right.
// False: their sizes do not fit together.
static bool stretch_axis(struct shape_job *job, int rank, int axis, tsr_dim *out)
{
    *out = dim_of(1);
    for (int i = 0; i < job->n_in; i++) {
        struct shape shape = tsr__job_in(job, i);
        int at = axis - (rank - shape.rank);
        if (at >= 0 && !stretch_dim(job->exprs, out, shape.dims[at]))
            return false;
    }
    return true;
}

// Infers the shapes of element-wise operators with broadcasting ("[A~],[A~] -> [A*]") without
// matching letters. ONNX Runtime also broadcasts the slope of PRelu like this, although its rule
// differs.
void tsr__infer_stretched(struct shape_job *job)
{
    struct shape first = tsr__job_in(job, 0);
    int rank = first.rank;
    bool same = true;
    for (int i = 0; i < job->n_in; i++) {
        struct shape shape = tsr__job_in(job, i);
        if (shape.rank < 0)
            return;
        same = same && shape.dims == first.dims && shape.rank == first.rank;
        rank = (int)int64_max(shape.rank, rank);
    }
    if (same) {
        for (int i = 0; i < job->n_out; i++)
            tsr__job_like(job, i, 0);
        return;
    }
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return;
    for (int axis = 0; axis < rank; axis++)
        if (!stretch_axis(job, rank, axis, &dims[axis]))
            return;
    for (int i = 0; i < job->n_out; i++)
        tsr__job_set(job, i, rank, dims);
}

// Sets the shapes of the outputs from the letters of the rule.
static void shape_by_rule(struct shape_job *job, const struct pattern *pattern,
                          const struct derivation *derivation)
{
    if (pattern->same)
        for (int i = 0; i < job->n_out; i++)
            tsr__job_like(job, i, 0);
    if (pattern->stretch)
        tsr__infer_stretched(job);
    else if (!pattern->same)
        shape_by(job, pattern, derivation);
}

void tsr__job_letters(struct shape_job *job)
{
    struct derivation derivation; // large: not cleared
    struct arena scratch = {.session = job->arena->session};
    tsr__derivation_start(&derivation, &scratch, job->node, job->shapes, job->row->rule);
    derivation.shapes_only = true;
    if (job->row->derive)
        job->row->derive(&derivation);
    const struct pattern *pattern = tsr__derivation_rule(&derivation);
    if (pattern)
        shape_by_rule(job, pattern, &derivation);
    tsr__arena_free(&scratch);
}
