// SPDX-License-Identifier: Apache-2.0
// fold.c - reduces tensors on a GPU: 16 bytes per thread, the rest element by element.
//
// Example: 1000003 floats, aligned to 16 bytes: 250000 threads of 4 floats, then 3 of one.
#include "gpu/internal.h"

// Compiles and loads the kernels of a reduction, once per type and operation. They stay loaded
// until the seat closes.
int tsr__seat_prepare(struct gpu_seat *seat, tsr_dtype type, enum gpu_reduce reduce)
{
    if (!tsr__fold_has(type))
        return GPU_NO_ADDRESS;
    struct kernels *kernels = &seat->folds[type][reduce];
    if (kernels->module)
        return 0;
    const struct gpu *gpu = seat->gpu;
    struct text text = {.session = seat->session};
    tsr__ptx_fold(&text, type, reduce);
    int code = tsr__seat_enter(seat);
    if (code == 0)
        code = text.failed ? GPU_NO_ADDRESS : gpu->cuModuleLoadData(&kernels->module, text.p);
    tsr__text_free(&text);
    if (code == 0)
        code = gpu->cuModuleGetFunction(&kernels->wide, kernels->module, "wide");
    if (code == 0)
        code = gpu->cuModuleGetFunction(&kernels->single, kernels->module, "single");
    if (code != 0) { // the next call must not find a module without kernels
        if (kernels->module)
            gpu->cuModuleUnload(kernels->module);
        *kernels = (struct kernels){0};
    }
    return code;
}

// True if all addresses are aligned to 16 bytes.
static bool aligned(const struct gpu_fold *fold)
{
    uint64_t all = 0;
    for (int i = 0; i < fold->n_in; i++)
        all |= address(fold->in[i]);
    for (int i = 0; i < fold->n_out; i++)
        all |= address(fold->out[i]);
    return all % 16 == 0;
}

// Starts a kernel with one thread for each of `count` units, in blocks of GPU_BLOCK, from byte
// `skip` of every tensor on. The driver copies the arguments.
static int launch(const struct gpu_seat *seat, void *function, const struct gpu_fold *fold,
                  size_t skip, uint64_t count, void *stream)
{
    struct fold_arguments fold_arguments = {
        .count = count, .n_in = (uint32_t)fold->n_in, .n_out = (uint32_t)fold->n_out};
    void *arguments[] = {&fold_arguments};
    if (count == 0)
        return 0;
    for (int i = 0; i < fold->n_in; i++)
        fold_arguments.in[i] = address(fold->in[i]) + skip;
    for (int i = 0; i < fold->n_out; i++)
        fold_arguments.out[i] = address(fold->out[i]) + skip;
    uint64_t blocks = (count + GPU_BLOCK - 1) / GPU_BLOCK;
    if (blocks > INT32_MAX)
        return GPU_NO_ADDRESS; // more than 8 TiB, or 512 Gi unaligned elements
    return seat->gpu->cuLaunchKernel(function, (unsigned)blocks, 1, 1, GPU_BLOCK, 1, 1, 0, stream,
                                     arguments, NULL);
}

int tsr__seat_fold(struct gpu_seat *seat, const struct gpu_fold *fold, void *stream)
{
    if (fold->n_in < 1 || fold->n_in > GPU_MAX_MEMBERS || fold->n_out < 1 ||
        fold->n_out > GPU_MAX_MEMBERS)
        return GPU_NO_ADDRESS;
    int code = tsr__seat_prepare(seat, fold->type, fold->reduce);
    if (code != 0)
        return code;
    const struct kernels *kernels = &seat->folds[fold->type][fold->reduce];
    size_t bytes = (size_t)tsr_dtype_bits(fold->type) / 8, all = (size_t)fold->count * bytes;
    size_t wide = aligned(fold) ? all / 16 : 0;
    code = launch(seat, kernels->wide, fold, 0, wide, stream);
    if (code != 0)
        return code;
    return launch(seat, kernels->single, fold, 16 * wide, (all - 16 * wide) / bytes, stream);
}
