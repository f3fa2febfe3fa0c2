// SPDX-License-Identifier: Apache-2.0
// dict.c - tensor dictionaries: the pieces of one tensor, keyed by device; cut, looked up, put together.
//
// A dictionary is a layout with data: every (device, tile) has a piece in one block of memory of its own. Knows
// element sizes, not element types.
#include "sharding/examine.h"

#include <stdlib.h>

struct held {
    int64_t device, tile;
    struct tile_piece *piece;
    int64_t *dims;
    char *data;
    size_t bytes;
};
struct tsr_dict {
    tsr_session *session;
    struct arena arena;
    size_t unit; // bytes of one element
    int rank;
    int64_t *shape;
    size_t bytes; // of the whole tensor
    struct held *held;
    size_t n;
};

static int by_device(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->tile < y->tile ? -1 : x->tile > y->tile;
}

static tsr_status refuse(tsr_session *s, tsr_status status, const char *hint, const char *what)
{
    tsr__diag(s, DIAG_sharding_misfit, NULL, hint, "%s", what);
    return status;
}

static tsr_status take_shape(tsr_dict *d, tsr_dtype type, int rank, const int64_t *shape)
{
    int64_t elements = 1, bytes;
    int bits = tsr_dtype_bits(type);
    if (bits <= 0 || bits % 8)
        return refuse(d->session, TSR_UNSUPPORTED, "use a type whose elements take whole bytes",
                      "tensors of this element type cannot be cut by themselves");
    if (rank < 0 || rank > TILE_MAX_RANK)
        return refuse(d->session, TSR_INVALID, "give up to 64 dimensions",
                      "the shape is not possible");
    d->unit = (size_t)bits / 8;
    d->rank = rank;
    d->shape = ARENA_ARRAY(&d->arena, int64_t, (size_t)rank + 1);
    for (int i = 0; d->shape && i < rank; i++) {
        if (shape[i] < 0 || !mul_ok(elements, shape[i], &elements))
            return refuse(d->session, TSR_INVALID, "give sizes of 0 or more",
                          "the shape is not possible");
        d->shape[i] = shape[i];
    }
    if (!mul_ok(elements, (int64_t)d->unit, &bytes))
        return refuse(d->session, TSR_INVALID, "give smaller sizes", "the tensor is too large");
    d->bytes = (size_t)bytes;
    return d->arena.failed ? TSR_NOMEM : TSR_OK;
}

static bool make_piece(tsr_dict *d, struct held *h, const struct tile_layout *l)
{
    h->piece = tsr__layout_piece(&d->arena, l, d->shape, h->tile);
    h->dims = ARENA_ARRAY(&d->arena, int64_t, (size_t)d->rank + 1);
    if (!h->piece || !h->dims)
        return false;
    for (int i = 0; i < d->rank; i++)
        h->dims[i] = h->piece->dims[i].size;
    h->bytes = (size_t)tsr__piece_elements(h->piece) * d->unit;
    h->data = tsr__alloc(d->session, h->bytes ? h->bytes : 1);
    if (h->data)
        memset(h->data, 0, h->bytes);
    return h->data != NULL;
}

static tsr_status make_pieces(tsr_dict *d, const struct tile_layout *l)
{
    size_t n = (size_t)l->first[l->n_shards], at = 0;
    d->held = ARENA_ARRAY(&d->arena, struct held, n + 1);
    if (!d->held)
        return TSR_NOMEM;
    for (int64_t k = 0; k < l->n_shards; k++)
        for (int64_t i = l->first[k]; i < l->first[k + 1]; i++)
            d->held[at++] = (struct held){.device = l->owners[i], .tile = k};
    qsort(d->held, n, sizeof *d->held, by_device);
    for (d->n = 0; d->n < n; d->n++)
        if (!make_piece(d, &d->held[d->n], l))
            return TSR_NOMEM;
    return TSR_OK;
}

// The whole tensor as a piece of itself.
static struct tile_piece *whole_piece(struct arena *a, const tsr_dict *d)
{
    int64_t device = 0;
    struct tile_layout *l = tsr__layout_whole(a, d->rank, &device, 1);
    return l ? tsr__layout_piece(a, l, d->shape, 0) : NULL;
}

static tsr_status fill(tsr_dict *d, const void *data)
{
    struct tile_piece *whole = data ? whole_piece(&d->arena, d) : NULL;
    if (!data)
        return TSR_OK;
    for (size_t i = 0; whole && i < d->n; i++)
        tsr__piece_copy(whole, data, d->held[i].piece, d->held[i].data, d->unit);
    return whole ? TSR_OK : TSR_NOMEM;
}

tsr_status tsr_dict_new(tsr_session *s, const char *sharding, tsr_dtype type, int rank,
                        const int64_t *shape, const void *data, tsr_dict **out)
{
    tsr_dict *d = tsr__alloc(s, sizeof *d);
    struct tile_layout *l = NULL;
    struct notation_error wrong = {0};
    if (!d)
        return TSR_NOMEM;
    *d = (tsr_dict){.session = s};
    tsr__arena_init(&d->arena, s);
    tsr_status status = take_shape(d, type, rank, shape);
    if (status == TSR_OK) {
        status = tsr__notation_parse(&d->arena, str_of(sharding), rank, d->shape, &l, NULL, &wrong);
        if (status != TSR_OK)
            (void)tsr__notation_wrong(s, NULL, status, str_of(sharding), &wrong);
    }
    if (status == TSR_OK)
        status = make_pieces(d, l);
    if (status == TSR_OK)
        status = fill(d, data);
    if (status != TSR_OK) {
        tsr_dict_free(d);
        return status;
    }
    *out = d;
    return TSR_OK;
}

void tsr_dict_free(tsr_dict *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->n; i++)
        tsr__free(d->session, d->held[i].data, d->held[i].bytes ? d->held[i].bytes : 1);
    tsr__arena_free(&d->arena);
    tsr__free(d->session, d, sizeof *d);
}

size_t tsr_dict_count(const tsr_dict *d)
{
    return d->n;
}

tsr_piece tsr_dict_at(const tsr_dict *d, size_t i)
{
    const struct held *h = &d->held[i];
    return (tsr_piece){.device = h->device,
                       .tile = h->tile,
                       .rank = d->rank,
                       .dims = h->dims,
                       .data = h->data,
                       .bytes = h->bytes};
}

int64_t tsr_dict_find(const tsr_dict *d, int64_t device, size_t k)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->held[i].device == device && k-- == 0)
            return (int64_t)i;
    return -1;
}

int64_t tsr_dict_find_tile(const tsr_dict *d, int64_t tile, size_t k)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->held[i].tile == tile && k-- == 0)
            return (int64_t)i;
    return -1;
}

// Copies of one tile must be equal: each is held against the first.
static tsr_status compare(const tsr_dict *d)
{
    for (size_t i = 0; i < d->n; i++) {
        int64_t first = tsr_dict_find_tile(d, d->held[i].tile, 0);
        const struct held *a = &d->held[first], *b = &d->held[i];
        if (!a->bytes || !memcmp(a->data, b->data, a->bytes))
            continue;
        tsr__diag(d->session, DIAG_pieces_differ, NULL,
                  "join a sharding that names only the device with the right one",
                  "devices %lld and %lld hold different copies of tile %lld", (long long)a->device,
                  (long long)b->device, (long long)a->tile);
        return TSR_INVALID;
    }
    return TSR_OK;
}

tsr_status tsr_dict_join(const tsr_dict *d, void *out)
{
    struct arena scratch;
    tsr_status status = compare(d);
    if (status != TSR_OK)
        return status;
    tsr__arena_init(&scratch, d->session);
    struct tile_piece *whole = whole_piece(&scratch, d);
    if (whole && d->bytes)
        memset(out, 0, d->bytes);
    for (size_t i = 0; whole && i < d->n; i++)
        tsr__piece_copy(d->held[i].piece, d->held[i].data, whole, out, d->unit);
    tsr__arena_free(&scratch);
    return whole ? TSR_OK : TSR_NOMEM;
}
