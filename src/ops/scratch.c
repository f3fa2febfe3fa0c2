// SPDX-License-Identifier: Apache-2.0
// scratch.c - scratch memory and copies where the tensors are: on the host or on the rank's GPU.
//
// On a GPU every copy is a launch, so runs at equal distances are combined to rows first.
#include "ops/internal.h"

// Host blocks only grow. One extra byte, so that 0 bytes have an address. The old content is lost.
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

// Row i goes from from + i * from_pitch to to + i * to_pitch.
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

// Runs that are not copied yet.
struct pending_rows {
    struct kernel *kernel;
    struct device_rows rows; // rows 0: none
    OrtStatus *status;
};

// The first failure stays; later rows are dropped.
static void flush(struct pending_rows *pending_rows)
{
    if (pending_rows->rows.rows && !pending_rows->status)
        pending_rows->status = tsr__kernel_rows(pending_rows->kernel, &pending_rows->rows);
    pending_rows->rows.rows = 0;
}

// True if the run is the next row. The second row sets the pitches: from 0, 40 and to 0, 16 give 40
// and 16, and the next row is expected at 80 and 32.
static bool continues(const struct pending_rows *pending_rows, const char *to, const char *from,
                      size_t bytes)
{
    const struct device_rows *rows = &pending_rows->rows;
    const char *first_to = rows->to, *first_from = rows->from;
    if (rows->rows == 0 || bytes != rows->width || to < first_to || from < first_from)
        return false;
    if (rows->rows == 1)
        return true;
    return to == first_to + rows->rows * rows->to_pitch &&
           from == first_from + rows->rows * rows->from_pitch;
}

static void gather(void *data, void *to, const void *from, size_t bytes)
{
    struct pending_rows *pending_rows = data;
    struct device_rows *rows = &pending_rows->rows;
    if (continues(pending_rows, to, from, bytes)) {
        if (rows->rows == 1) {
            rows->to_pitch = (size_t)((char *)to - (char *)rows->to);
            rows->from_pitch = (size_t)((const char *)from - (const char *)rows->from);
        }
        rows->rows++;
        return;
    }
    flush(pending_rows);
    *rows = (struct device_rows){.to = to, .from = from, .width = bytes, .rows = 1};
}

// On the host, runs are copied immediately (mover NULL).
OrtStatus *tsr__kernel_pieces(struct kernel *kernel, const struct tile_piece *from, const void *src,
                              const struct tile_piece *to, void *dst, enum tile_packed packed)
{
    size_t bytes = tsr__elem_bytes(kernel->call.type);
    struct pending_rows pending_rows = {.kernel = kernel};
    struct tile_mover mover = {gather, &pending_rows};
    tsr__piece_move(from, src, to, dst, bytes, packed, on_device(kernel) ? &mover : NULL);
    flush(&pending_rows);
    return pending_rows.status;
}
