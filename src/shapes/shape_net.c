// SPDX-License-Identifier: Apache-2.0
// shape_net.c - shapes of attention, recurrent layers and optimizers.
//
//   Attention of q [2 6 64], k and v [2 7 16], 8 query heads and 2 key heads:
//     [2 6 64], present [2 2 7 8] twice
//   LSTM of x [5 2 10], hidden size 4, both directions: [5 2 2 4], [2 2 4] twice
//   Adam of two parameters [3] and [4 4]: both, then their two states
#include "shapes/infer.h"

static tsr_dim product(struct shape_job *job, tsr_dim a, int64_t times)
{
    return tsr__expr_dim(
        job->exprs, tsr__expr_mul(job->exprs, tsr__expr_of(job->exprs, a), expr_number(times)));
}

static tsr_dim quotient(struct shape_job *job, tsr_dim a, int64_t by)
{
    return tsr__expr_dim(job->exprs,
                         tsr__expr_exact(job->exprs, tsr__expr_of(job->exprs, a), expr_number(by)));
}

static tsr_dim total(struct shape_job *job, tsr_dim a, tsr_dim b)
{
    return tsr__expr_dim(job->exprs, tsr__expr_add(job->exprs, tsr__expr_of(job->exprs, a),
                                                   tsr__expr_of(job->exprs, b)));
}

// ---- attention ---------------------------------------------------------------------------------

// Finds [batch, heads, length, size] of Q, K or V in either form.
static bool heads_of(struct shape_job *job, int i, const char *name, tsr_dim *out)
{
    struct shape shape = tsr__job_in(job, i);
    int64_t heads = tsr__job_int(job, name, 0);
    if (shape.rank == 4) {
        memcpy(out, shape.dims, 4 * sizeof(*out));
        return true;
    }
    if (shape.rank != 3)
        return false;
    out[0] = shape.dims[0];
    out[1] = out[3] = DIM_UNKNOWN;
    out[2] = shape.dims[1];
    if (heads > 0) {
        out[1] = dim_of(heads);
        out[3] = quotient(job, shape.dims[2], heads);
    }
    return true;
}

static void set_four(struct shape_job *job, int i, tsr_dim a, tsr_dim b, tsr_dim c, tsr_dim dim)
{
    tsr_dim *dims = tsr__job_new_dims(job, i, 4);
    if (dims) {
        dims[0] = a;
        dims[1] = b;
        dims[2] = c;
        dims[3] = dim;
    }
}

// Sets the result [batch, rows, heads * width]: heads of the queries, width of the values.
static void set_joined(struct shape_job *job, const tsr_dim q[4], const tsr_dim v[4])
{
    tsr_dim *dims = tsr__job_new_dims(job, 0, 3);
    if (!dims)
        return;
    dims[0] = q[0];
    dims[1] = q[2];
    if (q[1].value >= 0)
        dims[2] = product(job, v[3], q[1].value);
}

// Infers Attention. A cache adds its rows before the keys: past [1 2 5 8] and 3 new keys give a
// present of [1 2 8 8].
void tsr__infer_attention(struct shape_job *job)
{
    tsr_dim q[4], k[4], v[4];
    struct shape past = tsr__job_in(job, 4), x = tsr__job_in(job, 0);
    if (!heads_of(job, 0, "q_num_heads", q) || !heads_of(job, 1, "kv_num_heads", k) ||
        !heads_of(job, 2, "kv_num_heads", v))
        return;
    tsr_dim all = k[2];
    if (tsr__job_has(job, 4) && past.rank == 4)
        all = total(job, past.dims[2], k[2]);
    else if (tsr__job_has(job, 4))
        all = DIM_UNKNOWN;
    if (x.rank == 3)
        set_joined(job, q, v);
    else
        set_four(job, 0, q[0], q[1], q[2], v[3]);
    set_four(job, 1, k[0], k[1], all, k[3]);
    set_four(job, 2, v[0], v[1], all, v[3]);
    set_four(job, 3, q[0], q[1], q[2], all);
    if (job->n_out > 2)
        job->out[2].dtype = tsr__job_in(job, 2).dtype;
}

// Infers LinearAttention. Each query head has its own state of [d e]; the heads of the result are
// concatenated: [b t heads*e].
void tsr__infer_linear_attention(struct shape_job *job)
{
    struct shape q = tsr__job_in(job, 0), k = tsr__job_in(job, 1), v = tsr__job_in(job, 2);
    int64_t queries = tsr__job_int(job, "q_num_heads", 0),
            keys = tsr__job_int(job, "kv_num_heads", 0);
    if (q.rank != 3 || k.rank != 3 || v.rank != 3 || queries < 1 || keys < 1)
        return;
    tsr_dim *dims = tsr__job_new_dims(job, 0, 3);
    tsr_dim size = quotient(job, v.dims[2], keys);
    if (dims) {
        dims[0] = q.dims[0];
        dims[1] = q.dims[1];
        dims[2] = product(job, size, queries);
    }
    set_four(job, 1, q.dims[0], (tsr_dim){keys, ""}, quotient(job, k.dims[2], keys), size);
    if (job->n_out > 1 && tsr__job_has(job, 3)) // as the input state, else as the query
        job->out[1].dtype = tsr__job_in(job, 3).dtype;
    else if (job->n_out > 1)
        job->out[1].dtype = q.dtype;
}

// ---- recurrent layers --------------------------------------------------------------------------

// Infers recurrent layers. Y is [length, directions, batch, size], Y_h and Y_c are [directions,
// batch, size]; with layout 1 the batch is first. Without hidden_size, the weights R [directions,
// ., size] give the size.
void tsr__infer_recurrent(struct shape_job *job)
{
    struct shape x = tsr__job_in(job, 0), r = tsr__job_in(job, 2);
    int64_t hidden = tsr__job_int(job, "hidden_size", -1);
    bool both = tsr__job_text_is(job, "direction", "bidirectional", false);
    bool batch_first = tsr__job_int(job, "layout", 0) != 0;
    tsr_dim directions = dim_of(1 + both), size = dim_of(hidden);
    if (hidden <= 0)
        size = DIM_UNKNOWN;
    if (hidden <= 0 && r.rank == 3)
        size = r.dims[2];
    tsr_dim batch = DIM_UNKNOWN, length = DIM_UNKNOWN;
    int batch_at = !batch_first; // in inputs and states; time or directions are on the other axis
    if (x.rank == 3) {
        batch = x.dims[batch_at];
        length = x.dims[1 - batch_at];
    }
    if (batch_first)
        set_four(job, 0, batch, length, directions, size);
    else
        set_four(job, 0, length, directions, batch, size);
    for (int i = 1; i < job->n_out; i++) {
        tsr_dim *dims = tsr__job_new_dims(job, i, 3);
        if (!dims)
            return;
        dims[batch_at] = batch;
        dims[1 - batch_at] = directions;
        dims[2] = size;
    }
}

// ---- optimizers: R, T, then n each of several kinds --------------------------------------------

// Infers an optimizer. Inputs are R, T, then n tensors of each kind: with 3 kinds and 8 inputs n is
// 2. Outputs have the kinds that `given` names, n of each.
static void optimizer(struct shape_job *job, int kinds, const int *given)
{
    int n = (job->n_in - 2) / kinds;
    if (n <= 0)
        return;
    for (int i = 0; i < job->n_out; i++) {
        int k = 2 + given[(i / n) % (kinds - 1)] * n + i % n;
        tsr__job_like(job, i, k);
        job->out[i].dtype = tsr__job_in(job, k).dtype;
    }
}

void tsr__infer_adagrad(struct shape_job *job) // and Momentum
{
    static const int given[] = {0, 2}; // not the gradients
    optimizer(job, 3, given);
}

void tsr__infer_adam(struct shape_job *job)
{
    static const int given[] = {0, 2, 3};
    optimizer(job, 4, given);
}
