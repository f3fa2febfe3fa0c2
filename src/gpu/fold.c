// SPDX-License-Identifier: Apache-2.0
// fold.c - folds tensors on a GPU: most of it 16 bytes a thread, the rest element by element.
#include "gpu/internal.h"

int tsr__seat_prepare(struct gpu_seat *seat, tsr_dtype type, enum gpu_reduce reduce)
{
    if (!tsr__fold_has(type))
        return GPU_NO_ADDRESS;
    struct kernels *k = &seat->folds[type][reduce];
    if (k->module)
        return 0;
    const struct gpu *g = seat->gpu;
    struct text t;
    tsr__text_init(&t, seat->session);
    tsr__ptx_fold(&t, type, reduce);
    int code = tsr__seat_enter(seat);
    if (code == 0)
        code = t.failed ? GPU_NO_ADDRESS : g->cuModuleLoadData(&k->module, t.p);
    tsr__text_free(&t);
    if (code == 0)
        code = g->cuModuleGetFunction(&k->wide, k->module, "wide");
    if (code == 0)
        code = g->cuModuleGetFunction(&k->single, k->module, "single");
    return code;
}

// Places that all lie on 16 bytes can be read and written so.
static bool aligned(const struct gpu_fold *f)
{
    uint64_t all = 0;
    for (int i = 0; i < f->n_in; i++)
        all |= address(f->in[i]);
    for (int i = 0; i < f->n_out; i++)
        all |= address(f->out[i]);
    return all % 16 == 0;
}

static int launch(const struct gpu_seat *seat, void *function, const struct gpu_fold *f,
                  size_t skip, uint64_t count, void *stream)
{
    struct fold_arguments a = {
        .count = count, .n_in = (uint32_t)f->n_in, .n_out = (uint32_t)f->n_out};
    void *arguments[] = {&a};
    if (count == 0)
        return 0;
    for (int i = 0; i < f->n_in; i++)
        a.in[i] = address(f->in[i]) + skip;
    for (int i = 0; i < f->n_out; i++)
        a.out[i] = address(f->out[i]) + skip;
    uint64_t blocks = (count + GPU_BLOCK - 1) / GPU_BLOCK;
    if (blocks > INT32_MAX)
        return GPU_NO_ADDRESS; // more than 8 TiB, or 512 GiB that lie on odd places
    return seat->gpu->cuLaunchKernel(function, (unsigned)blocks, 1, 1, GPU_BLOCK, 1, 1, 0, stream,
                                     arguments, NULL);
}

int tsr__seat_fold(struct gpu_seat *seat, const struct gpu_fold *f, void *stream)
{
    if (f->n_in < 1 || f->n_in > GPU_MAX_MEMBERS || f->n_out < 1 || f->n_out > GPU_MAX_MEMBERS)
        return GPU_NO_ADDRESS;
    int code = tsr__seat_prepare(seat, f->type, f->reduce);
    if (code != 0)
        return code;
    const struct kernels *k = &seat->folds[f->type][f->reduce];
    size_t bytes = (size_t)tsr_dtype_bits(f->type) / 8, all = (size_t)f->count * bytes;
    size_t wide = aligned(f) ? all / 16 : 0;
    code = launch(seat, k->wide, f, 0, wide, stream);
    return code != 0 ? code
                     : launch(seat, k->single, f, 16 * wide, (all - 16 * wide) / bytes, stream);
}
