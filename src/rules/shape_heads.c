// SPDX-License-Identifier: Apache-2.0
// shape_heads.c - shapes of the fused attention operators of com.microsoft: the letters of the
// rule, and what letters do not tell, the lengths and types of caches.
#include "rules/derive.h"

static tsr_dim size_at(struct shape_job *j, int input, int axis)
{
    struct shape s = tsr__job_in(j, input);
    return s.rank > axis ? s.dims[axis] : DIM_UNKNOWN;
}

static tsr_dim total(struct shape_job *j, tsr_dim a, tsr_dim b)
{
    return tsr__expr_dim(j->x, tsr__expr_add(j->x, tsr__expr_of(j->x, a), tsr__expr_of(j->x, b)));
}

static void set_size(struct shape_job *j, int i, int axis, tsr_dim size)
{
    struct shape *s = i < j->n_out ? &j->out[i] : NULL;
    tsr_dim *dims = s && s->rank > axis ? tsr__job_dims(j, s->rank) : NULL;
    if (!dims)
        return;
    memcpy(dims, s->dims, (size_t)s->rank * sizeof(*dims));
    dims[axis] = size;
    s->dims = dims;
}

// Outputs 1 .. n are caches: as long as `length`, of the type of the cache that comes in.
static void caches(struct shape_job *j, int n, int axis, tsr_dim length, int past)
{
    for (int i = 1; i <= n && i < j->n_out; i++) {
        int from = past + i - 1, last = j->out[i].rank - 1;
        if (tsr__job_has(j, from))
            j->out[i].dtype = tsr__job_in(j, from).dtype;
        set_size(j, i, axis, length);
        if (last > axis && !dim_known(j->out[i].dims[last])) // perhaps packed: as it came in
            set_size(j, i, last, size_at(j, from, last));
    }
}

static tsr_dim keys_of(struct shape_job *j, int key)
{
    int rank = tsr__job_in(j, key).rank;
    return !tsr__job_has(j, key) ? size_at(j, 0, 1) : size_at(j, key, rank == 4 ? 2 : 1);
}

void tsr__find_multi_head(struct shape_job *j)
{
    tsr_dim keys = keys_of(j, 1), past = size_at(j, 6, 2);
    tsr__job_letters(j);
    tsr_dim all = !tsr__job_has(j, 6)  ? keys
                  : tsr__job_has(j, 8) ? past // a buffer that both share
                                       : total(j, past, keys);
    caches(j, 2, 2, all, 6);
    if (!tsr__job_has(j, 8))
        set_size(j, 3, 3, all);
}

void tsr__find_masked_multi_head(struct shape_job *j)
{
    tsr__job_letters(j);
    bool shared = tsr__job_int(j, "past_present_share_buffer", 0) != 0;
    tsr_dim past = size_at(j, 5, 2);
    caches(j, 2, 2, shared ? past : total(j, past, (tsr_dim){1, ""}), 5);
}

// Without a cache that comes in, what goes out is as long as the new keys; else it may be shared.
void tsr__find_group_query(struct shape_job *j)
{
    tsr__job_letters(j);
    set_size(j, 0, 1, size_at(j, 0, 1)); // whatever the positions have
    caches(j, 2, 2, tsr__job_has(j, 3) ? DIM_UNKNOWN : keys_of(j, 1), 3);
}

void tsr__find_projected_attention(struct shape_job *j)
{
    tsr__job_letters(j);
    tsr_dim past = size_at(j, 4, 3), rows = size_at(j, 0, 1);
    bool shared = tsr__job_int(j, "past_present_share_buffer", 0) != 0;
    caches(j, 1, 3, !tsr__job_has(j, 4) ? rows : shared ? past : total(j, past, rows), 4);
    set_size(j, 1, 0, (tsr_dim){2, ""}); // keys and values
}

void tsr__find_paged_attention(struct shape_job *j)
{
    tsr__job_letters(j);
    for (int i = 1; i < j->n_out && i < 3; i++) {
        tsr__job_like(j, i, i + 2);
        j->out[i].dtype = tsr__job_in(j, i + 2).dtype;
    }
}
