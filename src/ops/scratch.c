// SPDX-License-Identifier: Apache-2.0
// scratch.c - scratch memory and copies of kernels, where their tensors are: on the host, or on the rank's GPU.
//
// On a GPU every copy is a launch, so stretches that repeat at equal distances are gathered into rows first.
#include "ops/internal.h"

// Blocks of host memory only grow and stay for the next call; one byte more than asked for, so that also zero bytes
// have an address. What a block held before is lost.
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

// Packs and unpacks parts of tensors: row i goes from from + i * from_pitch to to + i * to_pitch.
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

// Stretches that the walk over the pieces has given and that are not copied yet.
struct gathered {
    struct kernel *kernel;
    struct device_rows rows; // rows 0: none
    OrtStatus *status;
};

// The first failure stays; later rows are dropped.
static void flush(struct gathered *gathered)
{
    if (gathered->rows.rows && !gathered->status)
        gathered->status = tsr__kernel_rows(gathered->kernel, &gathered->rows);
    gathered->rows.rows = 0;
}

// True if the stretch is the next row of those gathered. The second row says how far rows are apart: from 0, 40 and to 0, 16
// are rows 40 and 16 bytes apart, and the next is expected at 80 and 32.
static bool continues(const struct gathered *gathered, const char *to, const char *from,
                      size_t bytes)
{
    const struct device_rows *rows = &gathered->rows;
    const char *first_to = rows->to, *first_from = rows->from;
    if (rows->rows == 0 || bytes != rows->width || to < first_to || from < first_from)
        return false;
    if (rows->rows == 1)
        return true;
    return to == first_to + rows->rows * rows->to_pitch &&
           from == first_from + rows->rows * rows->from_pitch;
}

// Called for each stretch in the order of the walk. The second row fixes the pitches, and later
// ones must keep to them.
static void gather(void *data, void *to, const void *from, size_t bytes)
{
    struct gathered *gathered = data;
    struct device_rows *rows = &gathered->rows;
    if (continues(gathered, to, from, bytes)) {
        if (rows->rows == 1) {
            rows->to_pitch = (size_t)((char *)to - (char *)rows->to);
            rows->from_pitch = (size_t)((const char *)from - (const char *)rows->from);
        }
        rows->rows++;
        return;
    }
    flush(gathered);
    *rows = (struct device_rows){.to = to, .from = from, .width = bytes, .rows = 1};
}

// On the host stretches are copied as they come (mover NULL).
OrtStatus *tsr__kernel_pieces(struct kernel *kernel, const struct tile_piece *from, const void *src,
                              const struct tile_piece *to, void *dst, enum tile_packed packed)
{
    size_t bytes = tsr__elem_bytes(kernel->call.type);
    struct gathered gathered = {.kernel = kernel};
    struct tile_mover mover = {gather, &gathered};
    tsr__piece_move(from, src, to, dst, bytes, packed, on_device(kernel) ? &mover : NULL);
    flush(&gathered);
    return gathered.status;
}
