// SPDX-License-Identifier: Apache-2.0
// dict.c - tensor dictionaries: split a tensor into shards, find shards by device, join them.
//
// A dictionary is a layout with data: every (device, tile) has its own copy of the piece in memory.
// The code uses element sizes, not element types.
//
//     Example: float32 [4,6] as {2,1:(0,1),2}. Tile 0 is rows 0..1, tile 1 rows 2..3, 48 bytes
//     each. The array `held` has (device 0, tile 0), (1, 0), (2, 1), in this order. Joining needs
//     equal copies of tile 0 on devices 0 and 1.
#include "sharding/layouts/examine.h"

#include <stdlib.h>

// A piece on one device; `data` has `bytes` bytes and is freed with the dictionary.
struct held {
    int64_t device, tile;
    struct tile_piece *piece;
    int64_t *dims;
    char *data;
    size_t bytes;
};
struct tsr_pieces {
    tsr_session *session;
    struct arena arena;
    size_t unit; // bytes of one element
    int rank;
    int64_t *shape;
    size_t bytes; // bytes of the full tensor
    struct held *held;
    size_t n;
};

// Compares pieces by device, then by tile. tsr_pieces_at numbers the pieces in this order.
static int by_device(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->device != y->device)
        return int64_order(x->device, y->device);
    return int64_order(x->tile, y->tile);
}

// Reports an error and returns `status`.
static tsr_status report_misfit(tsr_session *session, tsr_status status, const char *hint,
                                const char *what)
{
    tsr__diag(session, DIAG_sharding_misfit, NULL, hint, "%s", what);
    return status;
}

// Checks and stores element size and shape. Rejects elements smaller than a byte, and shapes whose
// number of elements or bytes does not fit into 64 bits. Example: [2^40, 2^40].
static tsr_status take_shape(tsr_pieces *dict, tsr_dtype type, int rank, const int64_t *shape)
{
    int64_t elements = 1, bytes;
    int bits = tsr_dtype_bits(type);
    if (bits <= 0 || bits % 8)
        return report_misfit(dict->session, TSR_UNSUPPORTED,
                             "use an element type of at least one byte",
                             "a tensor of elements smaller than a byte cannot be sharded here");
    if (rank < 0 || rank > TILE_MAX_RANK)
        return report_misfit(dict->session, TSR_INVALID, "use at most 64 dimensions",
                             "the shape is invalid");
    dict->unit = (size_t)bits / 8;
    dict->rank = rank;
    dict->shape = ARENA_ARRAY(&dict->arena, int64_t, (size_t)rank + 1);
    if (!dict->shape)
        return TSR_NOMEM;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || !mul_ok(elements, shape[i], &elements))
            return report_misfit(dict->session, TSR_INVALID, "use sizes of 0 or more",
                                 "the shape is invalid");
        dict->shape[i] = shape[i];
    }
    if (!mul_ok(elements, (int64_t)dict->unit, &bytes))
        return report_misfit(dict->session, TSR_INVALID, "use smaller sizes",
                             "the tensor is too large");
    dict->bytes = (size_t)bytes;
    return TSR_OK;
}

// Allocates the piece held->tile, filled with zeros. Returns false if out of memory.
static bool make_piece(tsr_pieces *dict, struct held *held, const struct tile_layout *layout)
{
    held->piece = tsr__layout_piece(&dict->arena, layout, dict->shape, held->tile);
    held->dims = ARENA_ARRAY(&dict->arena, int64_t, (size_t)dict->rank + 1);
    if (!held->piece || !held->dims)
        return false;
    for (int i = 0; i < dict->rank; i++)
        held->dims[i] = held->piece->dims[i].size;
    held->bytes = (size_t)tsr__piece_elements(held->piece) * dict->unit;
    held->data = tsr__alloc(dict->session, held->bytes);
    if (held->data)
        memset(held->data, 0, held->bytes);
    return held->data != NULL;
}

// Allocates all pieces. dict->n is the number of pieces with memory, also after a failure;
// tsr_pieces_free frees these.
static tsr_status make_pieces(tsr_pieces *dict, const struct tile_layout *layout)
{
    size_t n = (size_t)layout->first[layout->n_shards], at = 0;
    dict->held = ARENA_ARRAY(&dict->arena, struct held, n + 1);
    if (!dict->held)
        return TSR_NOMEM;
    for (int64_t k = 0; k < layout->n_shards; k++)
        for (int64_t i = layout->first[k]; i < layout->first[k + 1]; i++)
            dict->held[at++] = (struct held){.device = layout->owners[i], .tile = k};
    qsort(dict->held, n, sizeof *dict->held, by_device);
    for (dict->n = 0; dict->n < n; dict->n++)
        if (!make_piece(dict, &dict->held[dict->n], layout))
            return TSR_NOMEM;
    return TSR_OK;
}

// Returns the full tensor as a piece, or NULL if out of memory. Splitting and joining then are
// copies between two pieces.
static struct tile_piece *whole_piece(struct arena *arena, const tsr_pieces *dict)
{
    int64_t device = 0;
    struct tile_layout *layout = tsr__layout_whole(arena, dict->rank, &device, 1);
    return layout ? tsr__layout_piece(arena, layout, dict->shape, 0) : NULL;
}

static tsr_status fill(tsr_pieces *dict, const void *data)
{
    if (!data)
        return TSR_OK;
    struct tile_piece *whole = whole_piece(&dict->arena, dict);
    if (!whole)
        return TSR_NOMEM;
    for (size_t i = 0; i < dict->n; i++)
        tsr__piece_copy(whole, data, dict->held[i].piece, dict->held[i].data, dict->unit);
    return TSR_OK;
}

// Splits a tensor into its pieces. *out is set only after all pieces are filled. A failure frees
// the pieces made so far.
tsr_status tsr_pieces_new(tsr_session *session, const char *sharding, tsr_dtype type, int rank,
                          const int64_t *shape, const void *data, tsr_pieces **out)
{
    if (!session)
        return TSR_INVALID;
    if (!shape && rank > 0)
        return tsr__missing(session, "shape");
    TRY(tsr__given(session, "out", out));
    tsr_pieces *dict = tsr__alloc(session, sizeof *dict);
    struct tile_layout *layout = NULL;
    struct notation_error wrong = {0};
    if (!dict)
        return TSR_NOMEM;
    *dict = (tsr_pieces){.session = session};
    tsr__arena_init(&dict->arena, session);
    tsr_status status = take_shape(dict, type, rank, shape);
    if (status != TSR_OK)
        goto free_pieces;
    status = tsr__notation_parse(&dict->arena, str_of(sharding), rank, dict->shape, &layout, NULL,
                                 &wrong);
    if (status != TSR_OK) {
        (void)tsr__notation_wrong(session, NULL, status, str_of(sharding), &wrong);
        goto free_pieces;
    }
    status = make_pieces(dict, layout);
    if (status != TSR_OK)
        goto free_pieces;
    status = fill(dict, data);
    if (status != TSR_OK)
        goto free_pieces;
    *out = dict;
    return TSR_OK;

free_pieces:
    tsr_pieces_free(dict);
    return status;
}

void tsr_pieces_free(tsr_pieces *dict)
{
    if (!dict)
        return;
    for (size_t i = 0; i < dict->n; i++)
        tsr__free(dict->session, dict->held[i].data, dict->held[i].bytes);
    tsr__arena_free(&dict->arena);
    tsr__free(dict->session, dict, sizeof *dict);
}

size_t tsr_pieces_count(const tsr_pieces *dict)
{
    return dict->n;
}

tsr_piece tsr_pieces_value(const tsr_pieces *dict, size_t i)
{
    const struct held *held = &dict->held[i];
    return (tsr_piece){.device = held->device,
                       .tile = held->tile,
                       .rank = dict->rank,
                       .dims = held->dims,
                       .data = held->data,
                       .bytes = held->bytes};
}

tsr_status tsr_pieces_at(const tsr_pieces *dict, size_t i, tsr_piece *out)
{
    TRY(RESULT_CHECK(dict->session, out, bytes));
    if (i >= dict->n)
        return tsr__fail(dict->session, TSR_INVALID, DIAG_argument_invalid, NULL, "",
                         "index %zu is out of range: there are %zu tiles", i, dict->n);
    tsr_piece piece = tsr_pieces_value(dict, i);
    tsr__result_write(out, &piece, sizeof piece);
    return TSR_OK;
}

// Returns the index of the k-th piece of the device, or -1.
int64_t tsr_pieces_find(const tsr_pieces *dict, int64_t device, size_t k)
{
    for (size_t i = 0; i < dict->n; i++)
        if (dict->held[i].device == device && k-- == 0)
            return (int64_t)i;
    return -1;
}

int64_t tsr_pieces_find_tile(const tsr_pieces *dict, int64_t tile, size_t k)
{
    for (size_t i = 0; i < dict->n; i++)
        if (dict->held[i].tile == tile && k-- == 0)
            return (int64_t)i;
    return -1;
}

// Checks that all copies of a tile are equal, by comparing each with the first.
static tsr_status compare(const tsr_pieces *dict)
{
    for (size_t i = 0; i < dict->n; i++) {
        int64_t first = tsr_pieces_find_tile(dict, dict->held[i].tile, 0);
        const struct held *a = &dict->held[first], *b = &dict->held[i];
        if (!a->bytes || !memcmp(a->data, b->data, a->bytes))
            continue;
        return tsr__fail(dict->session, TSR_INVALID, DIAG_pieces_differ, NULL,
                         "join with a sharding that names only the device with the correct copy",
                         "devices %lld and %lld hold different copies of tile %lld",
                         (long long)a->device, (long long)b->device, (long long)a->tile);
    }
    return TSR_OK;
}

// Joins the pieces of a tensor. Elements of a tile without an owner are zero in the result.
tsr_status tsr_pieces_join(const tsr_pieces *dict, void *out)
{
    TRY(tsr__given(dict->session, "out", out));
    tsr_status status = compare(dict);
    if (status != TSR_OK)
        return status;
    struct arena scratch = {.session = dict->session};
    struct tile_piece *whole = whole_piece(&scratch, dict);
    if (!whole) {
        status = TSR_NOMEM;
        goto free_scratch;
    }
    if (dict->bytes)
        memset(out, 0, dict->bytes);
    for (size_t i = 0; i < dict->n; i++)
        tsr__piece_copy(dict->held[i].piece, dict->held[i].data, whole, out, dict->unit);
free_scratch:
    tsr__arena_free(&scratch);
    return status;
}
