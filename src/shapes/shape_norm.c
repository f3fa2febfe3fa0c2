// SPDX-License-Identifier: Apache-2.0
// shape_norm.c - types and shapes of quantized operators, Multinomial and others, which do not
// follow from the letters of a rule.
//
//   Multinomial of [4 9], sample_size 5    [4 5]
//   QuantizeLinear of [4 9] with an int8 zero point   [4 9] of int8
#include "shapes/infer.h"

// Infers the shape of Multinomial: each row of the input gives a row of drawn classes.
void tsr__infer_multinomial(struct shape_job *job)
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 2);
    if (!dims)
        return;
    dims[0] = dim_at(tsr__job_in(job, 0), 0);
    dims[1] = dim_of(tsr__job_int(job, "sample_size", 1));
}

// Infers the shape of QuantizeLinear. The type is that of the zero point, or of the attribute.
void tsr__infer_quantize(struct shape_job *job)
{
    tsr__job_like(job, 0, 0);
    if (tsr__job_has(job, 2))
        job->out[0].dtype = tsr__job_in(job, 2).dtype;
    else
        job->out[0].dtype = tsr__job_type(job, "output_dtype", TSR_UINT8);
}

void tsr__infer_dequantize(struct shape_job *job)
{
    tsr__job_like(job, 0, 0);
    job->out[0].dtype = tsr__job_type(job, "output_dtype", tsr__job_in(job, 1).dtype);
}

// Infers the shape of QGemm. Without a zero point for the result, the result is not quantized.
void tsr__infer_quantized_gemm(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    job->out[0].dtype = tsr__job_has(job, 8) ? tsr__job_in(job, 8).dtype : TSR_FLOAT;
}

// Infers the shape of SkipLayerNormalization. Results have the shape of the first input: ONNX
// Runtime repeats a shorter skip. Statistics have one element for each row.
void tsr__infer_skip_norm(struct shape_job *job)
{
    int rank = tsr__job_in(job, 0).rank;
    for (int i = 0; i < job->n_out; i++)
        tsr__job_like(job, i, 0);
    for (int i = 1; i < 3 && rank > 0; i++)
        tsr__job_set_dim(job, i, rank - 1, dim_of(1));
}

// Infers the shape of one loss for each target. If the shape of the targets is unknown, their rank
// is that of the scores minus one. Their sizes stay unknown, because ONNX Runtime accepts other
// sizes.
static void infer_losses(struct shape_job *job)
{
    int scores = tsr__job_in(job, 0).rank;
    if (tsr__job_in(job, 1).rank < 0 && scores >= 2)
        tsr__job_set(job, 0, scores - 1, tsr__job_dims(job, scores - 1));
    else
        tsr__job_like(job, 0, 1);
}

// Infers the shape of a loss: one number for each target, or one for all. The second output has the
// logarithms of the probabilities, with the shape of the scores.
void tsr__infer_loss(struct shape_job *job)
{
    if (tsr__job_text_is(job, "reduction", "none", false))
        infer_losses(job);
    else
        tsr__job_set(job, 0, 0, tsr__job_dims(job, 0));
    tsr__job_like(job, 1, 0);
}

// Infers the shape of GatherBlockQuantized: rows of a table whose last dimension is packed. The
// result has the length of the unpacked contents, because the last block may be short. Example: a
// table of [v 6] bytes with two numbers each and indices [b t] give [b t 12].
void tsr__infer_gather_quantized(struct shape_job *job)
{
    struct shape table = tsr__job_in(job, 0), at = tsr__job_in(job, 1);
    int64_t bits = tsr__job_int(job, "bits", 4), each = 1;
    int rank = at.rank + table.rank - 1;
    bool first = table.rank > 1 && tsr__axis(tsr__job_int(job, "gather_axis", 0), table.rank) == 0;
    if (at.rank < 0 || !first || table.dtype == TSR_UNDEFINED)
        return;
    tsr_dim *dims = tsr__job_dims(job, rank);
    if (!dims)
        return;
    if (table.dtype == TSR_UINT8 && bits > 0 && bits < 8)
        each = 8 / bits;
    for (int i = 0; i < at.rank; i++)
        dims[i] = at.dims[i];
    for (int i = 1; i < table.rank; i++)
        dims[at.rank + i - 1] = table.dims[i];
    struct expr packed = tsr__expr_of(job->exprs, table.dims[table.rank - 1]);
    dims[rank - 1] =
        tsr__expr_dim(job->exprs, tsr__expr_mul(job->exprs, packed, expr_number(each)));
    tsr__job_set(job, 0, rank, dims);
}
