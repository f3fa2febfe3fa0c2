// SPDX-License-Identifier: Apache-2.0
// memory.c - scratch memory and copies of kernels, where their tensors are: on the host, or on the rank's GPU.
//
// On a GPU every copy is a launch, so stretches that repeat at equal distances are gathered into rows first.
#include "ops/internal.h"

OrtStatus *tsr__kernel_scratch(struct kernel *k, int block, size_t bytes, char **out)
{
    struct ops *o = k->ops;
    struct comm_trouble why;
    void *device;
    if (on_device(k)) {
        if (tsr__device_scratch(o->endpoint, &k->call, block, bytes, &device, &why) != TSR_OK)
            return tsr__kernel_trouble(k, &why);
        *out = device;
        return NULL;
    }
    if (bytes > o->scratch[block].bytes || !o->scratch[block].p) {
        tsr__free(o->session, o->scratch[block].p, o->scratch[block].bytes);
        o->scratch[block].bytes = 0;
        o->scratch[block].p = tsr__alloc(o->session, bytes + 1);
        if (!o->scratch[block].p)
            return tsr__kernel_error(k, "out of memory");
        o->scratch[block].bytes = bytes + 1;
    }
    *out = o->scratch[block].p;
    return NULL;
}

OrtStatus *tsr__kernel_rows(struct kernel *k, const struct device_rows *r)
{
    struct comm_trouble why;
    if (r->width == 0 || r->rows == 0)
        return NULL;
    if (on_device(k)) {
        if (tsr__device_rows(k->ops->endpoint, &k->call, r, &why) != TSR_OK)
            return tsr__kernel_trouble(k, &why);
        return NULL;
    }
    for (size_t i = 0; i < r->rows; i++)
        memcpy((char *)r->to + i * r->to_pitch, (const char *)r->from + i * r->from_pitch,
               r->width);
    return NULL;
}

// ---- pieces ------------------------------------------------------------------------------------

// Stretches that were told and not copied yet.
struct gathered {
    struct kernel *k;
    struct device_rows rows; // rows 0: none
    OrtStatus *status;
};

static void flush(struct gathered *g)
{
    if (g->rows.rows && !g->status)
        g->status = tsr__kernel_rows(g->k, &g->rows);
    g->rows.rows = 0;
}

// True if the stretch is the next row of those gathered. The second row says how far rows are apart: from 0, 40 and to 0, 16
// are rows 40 and 16 bytes apart, and the next is expected at 80 and 32.
static bool continues(const struct gathered *g, const char *to, const char *from, size_t bytes)
{
    const struct device_rows *r = &g->rows;
    const char *first_to = r->to, *first_from = r->from;
    if (r->rows == 0 || bytes != r->width || to < first_to || from < first_from)
        return false;
    if (r->rows == 1)
        return true;
    return to == first_to + r->rows * r->to_pitch && from == first_from + r->rows * r->from_pitch;
}

static void gather(void *data, void *to, const void *from, size_t bytes)
{
    struct gathered *g = data;
    struct device_rows *r = &g->rows;
    if (continues(g, to, from, bytes)) {
        if (r->rows == 1) {
            r->to_pitch = (size_t)((char *)to - (char *)r->to);
            r->from_pitch = (size_t)((const char *)from - (const char *)r->from);
        }
        r->rows++;
        return;
    }
    flush(g);
    *r = (struct device_rows){.to = to, .from = from, .width = bytes, .rows = 1};
}

OrtStatus *tsr__kernel_pieces(struct kernel *k, const struct tile_piece *from, const void *src,
                              const struct tile_piece *to, void *dst, enum tile_packed packed)
{
    size_t bytes = tsr__elem_bytes(k->call.type);
    struct gathered g = {.k = k};
    struct tile_mover mover = {gather, &g};
    tsr__piece_move(from, src, to, dst, bytes, packed, on_device(k) ? &mover : NULL);
    flush(&g);
    return g.status;
}
