// SPDX-License-Identifier: Apache-2.0
// weights.c - where constants lie. A small constant stays in the rank file; a whole one that several
// ranks use is stored once in the common file; any other piece lies in its rank's file. The layout of
// the files is fixed here, before anything is written (weights_write.c).
#include "weights.h"

#define LARGE_BYTES (64u << 10)
#define SMALL_ALIGN 64
#define INLINE_VECTOR                                                                              \
    (64 << 10) // integer vectors up to this size may be shapes: engines want those inside

struct tile_piece *tsr__const_piece(struct plan *p, const struct form *f, int64_t rank)
{
    struct tile_piece *piece = tsr__layout_piece(p->arena, f->layout, f->item->shape,
                                                 tsr__layout_shard_of(f->layout, rank, 0));
    for (int k = 0; piece && f->windows && k < f->windows->n_axes; k++) {
        const struct dim_cut *part = &f->windows->parts[rank * f->windows->n_axes + k];
        int d = f->windows->axes[k];
        piece->dims[d].at = part->at;
        piece->dims[d].n = part->n;
        piece->dims[d].size = tsr__windows_size(f->windows, rank);
    }
    return piece;
}

static bool stays_inside(const struct item *it, int64_t bytes)
{
    bool integers = it->dtype == TSR_INT64 || it->dtype == TSR_INT32;
    return bytes <= INLINE_BYTES || (integers && it->rank <= 1 && bytes <= INLINE_VECTOR);
}

static uint64_t align_of(uint64_t bytes)
{
    return bytes >= LARGE_BYTES ? LARGE_ALIGN : SMALL_ALIGN;
}

static uint64_t reserve(uint64_t *end, uint64_t bytes)
{
    uint64_t align = align_of(bytes), at = (*end + align - 1) / align * align;
    *end = at + bytes;
    return at;
}

// Copies the elements of a piece out of the whole, for types of any number of bits (packed, lowest
// bits first).
static void copy_bits(struct runs *r, const unsigned char *whole, int bits, unsigned char *out)
{
    uint64_t to = 0;
    for (; !r->done; tsr__runs_next(r))
        for (uint64_t e = (uint64_t)r->start * (uint64_t)bits;
             e < (uint64_t)r->stop * (uint64_t)bits; e++, to++)
            if (whole[e / 8] >> (e % 8) & 1)
                out[to / 8] |= (unsigned char)(1u << (to % 8));
}

static void copy_piece(struct runs *r, const unsigned char *whole, int bits, unsigned char *out)
{
    if (bits % 8) {
        copy_bits(r, whole, bits, out);
        return;
    }
    size_t bytes = (size_t)bits / 8;
    for (; !r->done; tsr__runs_next(r)) {
        size_t n = (size_t)(r->stop - r->start) * bytes;
        memcpy(out, whole + (size_t)r->start * bytes, n);
        out += n;
    }
}

static tsr_value *add_inside(struct part *t, struct form *f, const struct tile_piece *piece,
                             const int64_t *dims, int64_t bytes, struct str name)
{
    struct item *it = f->item;
    if (tsr__layout_is_whole(f->layout))
        return tsr__graph_copy_initializer(t->graph, it->value, name.p);
    const void *whole;
    size_t n;
    unsigned char *local = ARENA_ARRAY(t->plan->arena, unsigned char, (size_t)bytes + 1);
    t->plan->status = tsr_tensor_data(tsr_value_initializer(it->value), &whole, &n);
    if (!local || t->plan->status != TSR_OK)
        return NULL;
    struct runs r;
    tsr__runs_begin(&r, piece, it->shape);
    copy_piece(&r, whole, tsr_dtype_bits(it->dtype), local);
    return tsr_graph_add_initializer(t->graph, name.p, it->dtype, it->rank, dims, local,
                                     (size_t)bytes);
}

static tsr_value *add_outside(struct part *t, struct form *f, const int64_t *dims, int64_t bytes,
                              struct str name)
{
    struct item *it = f->item;
    struct str own = tsr__arena_printf(t->plan->arena, "rank%lld.data", (long long)t->rank);
    uint64_t at =
        f->common ? f->offset[0] : (f->offset[t->rank] = reserve(&t->data_bytes, (uint64_t)bytes));
    f->stored[t->rank] = 1;
    t->uses_common |= f->common;
    if (!own.p)
        return NULL;
    return tsr__graph_add_external(t->graph, name.p, it->dtype, it->rank, dims,
                                   f->common ? MANIFEST_COMMON : own.p, at, (uint64_t)bytes);
}

// Strings and other constants without a fixed size per element: as they stand.
static tsr_status place_odd(struct part *t, struct form *f)
{
    struct str name = tsr__form_name(t, f);
    int64_t n = tsr_tensor_elements(tsr_value_initializer(f->item->value));
    t->weights += n > 0 ? n : 0;
    f->local[t->rank] =
        name.p ? tsr__graph_copy_initializer(t->graph, f->item->value, name.p) : NULL;
    return f->local[t->rank] ? TSR_OK : TSR_NOMEM;
}

static tsr_status place_on(struct part *t, struct form *f)
{
    struct item *it = f->item;
    if (!it->fixed || tsr_dtype_bits(it->dtype) == 0)
        return place_odd(t, f);
    struct tile_piece *piece = tsr__const_piece(t->plan, f, t->rank);
    int64_t elements = piece ? tsr__piece_elements(piece) : -1, bytes = -1, dims[TILE_MAX_RANK];
    if (elements >= 0)
        bytes = tsr_dtype_bytes(it->dtype, elements);
    if (bytes < 0)
        return TSR_INVALID;
    for (int d = 0; d < it->rank; d++)
        dims[d] = piece->dims[d].size;
    struct str name = tsr__form_name(t, f);
    if (!name.p)
        return TSR_NOMEM;
    // Who only looks needs no data, which may not even be there.
    bool absent = t->plan->look && tsr_tensor_is_external(tsr_value_initializer(it->value));
    tsr_value *v = stays_inside(it, bytes) && !absent ? add_inside(t, f, piece, dims, bytes, name)
                                                      : add_outside(t, f, dims, bytes, name);
    f->local[t->rank] = v;
    t->weights += elements;
    t->weight_bytes += bytes;
    return v ? TSR_OK : plan_status(t->plan) == TSR_OK ? TSR_NOMEM : plan_status(t->plan);
}

tsr_status tsr__weights_place(struct plan *p, struct part *parts)
{
    for (struct form *f = p->consts; f; f = f->next_const) {
        int64_t users = 0;
        for (int64_t r = 0; r < p->n_ranks; r++)
            users += f->live[r];
        int64_t bytes = tsr_tensor_bytes(tsr_value_initializer(f->item->value));
        f->common = users > 1 && tsr__layout_is_whole(f->layout);
        if (f->common && f->item->fixed && bytes > 0 && !stays_inside(f->item, bytes))
            f->offset[0] = reserve(&p->common_bytes, (uint64_t)bytes);
        for (int64_t r = 0; r < p->n_ranks; r++) {
            tsr_status st = f->live[r] ? place_on(&parts[r], f) : TSR_OK;
            if (st != TSR_OK)
                return st;
        }
    }
    return TSR_OK;
}
