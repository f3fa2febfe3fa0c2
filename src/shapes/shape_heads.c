// SPDX-License-Identifier: Apache-2.0
// shape_heads.c - shapes of attention operators: those that follow from the rule, and lengths and
// types of caches, which do not.
//
// Caches grow: past keys [2 8 5 64] and 2 new ones give a present of [2 8 7 64]. With a shared
// buffer (past_present_share_buffer, or an input for its length) they have spare capacity and stay
// [2 8 512 64].
#include "shapes/infer.h"

static tsr_dim dim_in(struct shape_job *job, int input, int axis)
{
    return dim_at(tsr__job_in(job, input), axis);
}

static tsr_dim total(struct shape_job *job, tsr_dim a, tsr_dim b)
{
    return tsr__expr_dim(job->exprs, tsr__expr_add(job->exprs, tsr__expr_of(job->exprs, a),
                                                   tsr__expr_of(job->exprs, b)));
}

// Sets the length (dimension `axis`) of outputs 1 .. n, which are caches. Their types, and head
// sizes that are still unknown, are those of the input caches, inputs `past` and later.
static void caches(struct shape_job *job, int n, int axis, tsr_dim length, int past)
{
    for (int i = 1; i < (int)clamped(n + 1, 0, job->n_out); i++) {
        int from = past + i - 1, last = job->out[i].rank - 1;
        if (tsr__job_has(job, from))
            job->out[i].dtype = tsr__job_in(job, from).dtype;
        tsr__job_set_dim(job, i, axis, length);
        // the head may be packed, so its size is that of the input cache
        if (last > axis && !dim_known(job->out[i].dims[last]))
            tsr__job_set_dim(job, i, last, dim_in(job, from, last));
    }
}

// Returns the number of new keys: rows of [b k (h d)] or [b h k d]. Without a key input, it is the
// number of rows of the queries.
static tsr_dim keys_of(struct shape_job *job, int key)
{
    if (!tsr__job_has(job, key))
        return dim_in(job, 0, 1);
    return tsr__job_in(job, key).rank == 4 ? dim_in(job, key, 2) : dim_in(job, key, 1);
}

// Returns the length of a cache after the node. A shared buffer keeps its length; otherwise 5 past
// and 2 new keys are 7.
static tsr_dim cache_length(struct shape_job *job, bool shared, tsr_dim past, tsr_dim fresh)
{
    return shared ? past : total(job, past, fresh);
}

// Infers the shape of Attention of ai.onnx. Past keys [1 2 5 8] and 3 new ones give a present of [1
// 2 8 8].
void tsr__infer_attention(struct shape_job *job)
{
    tsr_dim all = keys_of(job, 1), heads = dim_in(job, 0, 1);
    job->shapes->rules->letters(job);
    if (tsr__job_has(job, 4))
        all = total(job, dim_in(job, 4, 2), all);
    caches(job, 2, 2, all, 4);
    tsr__job_set_dim(job, 3, 3, all);
    if (tsr__job_in(job, 0).rank == 4) { // known even if the number of key heads is not
        tsr__job_set_dim(job, 0, 1, heads);
        tsr__job_set_dim(job, 3, 1, heads);
    }
}

void tsr__infer_multi_head(struct shape_job *job)
{
    tsr_dim all = keys_of(job, 1), past = dim_in(job, 6, 2);
    job->shapes->rules->letters(job);
    if (tsr__job_has(job, 6)) // a past value: past and present share one buffer if input 8 exists
        all = cache_length(job, tsr__job_has(job, 8), past, all);
    caches(job, 2, 2, all, 6);
    if (!tsr__job_has(job, 8))
        tsr__job_set_dim(job, 3, 3, all);
}

void tsr__infer_masked_multi_head(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    bool shared = tsr__job_int(job, "past_present_share_buffer", 0) != 0;
    caches(job, 2, 2, cache_length(job, shared, dim_in(job, 5, 2), dim_of(1)), 5);
}

// Infers the shape of GroupQueryAttention. Without an input cache, the output cache has the length
// of the new keys. Otherwise its length is unknown, because it may be a shared buffer.
void tsr__infer_group_query(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    tsr__job_set_dim(job, 0, 1, dim_in(job, 0, 1)); // not the size of the position input
    tsr_dim length = tsr__job_has(job, 3) ? DIM_UNKNOWN : keys_of(job, 1);
    caches(job, 2, 2, length, 3);
}

// Sets batch and rows of the result if the size of the weights is unknown, because no letter is
// known then. Example: for x [8 6 10] the result is [8 6 ?].
static void keep_rows(struct shape_job *job)
{
    struct shape given = tsr__job_in(job, 0);
    if (job->n_out < 1 || job->out[0].rank >= 0 || given.rank != 3)
        return;
    tsr__job_like(job, 0, 0);
    tsr__job_set_dim(job, 0, 2, DIM_UNKNOWN);
}

void tsr__infer_quantized_attention(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    keep_rows(job);
}

void tsr__infer_projected_attention(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    keep_rows(job);
    bool shared = tsr__job_int(job, "past_present_share_buffer", 0) != 0;
    tsr_dim all = dim_in(job, 0, 1);
    if (tsr__job_has(job, 4))
        all = cache_length(job, shared, dim_in(job, 4, 3), all);
    caches(job, 1, 3, all, 4);
    tsr__job_set_dim(job, 1, 0, dim_of(2)); // keys and values
}

void tsr__infer_paged_attention(struct shape_job *job)
{
    job->shapes->rules->letters(job);
    for (int i = 1; i < (int)clamped(job->n_out, 0, 3); i++) {
        tsr__job_like(job, i, i + 2);
        job->out[i].dtype = tsr__job_in(job, i + 2).dtype;
    }
}
