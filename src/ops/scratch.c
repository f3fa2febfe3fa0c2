// SPDX-License-Identifier: Apache-2.0
// scratch.c - scratch memory and copies where the tensors are: in host memory or on the rank's GPU.
//
// On a GPU every copy is a launch, so ranges at equal distances are combined to rows first.
#include "ops/internal.h"

// Returns scratch memory. Host blocks only grow, and lose their content when they do. They have one
// extra byte, so that 0 bytes have an address.
OrtStatus *tsr__kernel_scratch(struct kernel *kernel, int block, size_t bytes, char **out)
{
    struct ops *ops = kernel->ops;
    struct comm_trouble why;
    void *device;
    if (on_device(kernel)) {
        if (tsr__device_scratch(ops->endpoint, &kernel->call, block, bytes, &device, &why) !=
            TSR_OK)
            return tsr__kernel_trouble(kernel, &why);
        *out = device;
        return NULL;
    }
    if (bytes > ops->scratch[block].bytes || !ops->scratch[block].p) {
        tsr__free(ops->session, ops->scratch[block].p, ops->scratch[block].bytes);
        ops->scratch[block].bytes = 0;
        ops->scratch[block].p = tsr__alloc(ops->session, bytes + 1);
        if (!ops->scratch[block].p)
            return tsr__kernel_error(kernel, "out of memory");
        ops->scratch[block].bytes = bytes + 1;
    }
    *out = ops->scratch[block].p;
    return NULL;
}

// Copies rows: row i from `from` + i * `from_pitch` to `to` + i * `to_pitch`.
OrtStatus *tsr__kernel_rows(struct kernel *kernel, const struct device_rows *rows)
{
    struct comm_trouble why;
    if (rows->width == 0 || rows->rows == 0)
        return NULL;
    if (on_device(kernel)) {
        if (tsr__device_rows(kernel->ops->endpoint, &kernel->call, rows, &why) != TSR_OK)
            return tsr__kernel_trouble(kernel, &why);
        return NULL;
    }
    for (size_t i = 0; i < rows->rows; i++)
        memcpy((char *)rows->to + i * rows->to_pitch,
               (const char *)rows->from + i * rows->from_pitch, rows->width);
    return NULL;
}

// ---- pieces ------------------------------------------------------------------------------------

struct kernel_copy {
    struct kernel *kernel;
    OrtStatus *status;
};

static int copy_rows(void *data, const struct tile_rows *rows)
{
    struct kernel_copy *copy = data;
    struct device_rows device = {.to = rows->to,
                                 .from = rows->from,
                                 .to_pitch = rows->to_pitch,
                                 .from_pitch = rows->from_pitch,
                                 .width = rows->width,
                                 .rows = rows->rows};
    copy->status = tsr__kernel_rows(copy->kernel, &device);
    return copy->status != NULL;
}

// Copies common elements: on a GPU as rows, in host memory range by range with memcpy (mover NULL).
OrtStatus *tsr__kernel_pieces(struct kernel *kernel, const struct tile_piece *from, const void *src,
                              const struct tile_piece *to, void *dst, enum tile_packed packed)
{
    size_t bytes = tsr__elem_bytes(kernel->call.type);
    struct kernel_copy copy = {.kernel = kernel};
    struct tile_rows_mover mover = {copy_rows, &copy};
    if (on_device(kernel))
        tsr__piece_rows(from, src, to, dst, bytes, packed, &mover);
    else
        tsr__piece_move(from, src, to, dst, bytes, packed, NULL);
    return copy.status;
}
