// SPDX-License-Identifier: Apache-2.0
// copy.c - copies the common elements of two pieces: directly, into a message, or out of a message.
//
// All three visit the intersection in row-major order of the index space, so sender and receiver
// agree on the order. Trailing dimensions that both pieces store in the same way are treated as one
// long element, so contiguous ranges are as long as possible. Nothing is allocated.
//
//     Example: [4,6], from rows 0 and 1 (a piece of 2 x 6) to columns 3 to 5 (a piece of 4 x 3).
//     The common elements are two runs of 3: they start at elements 3 and 9 of the first piece and
//     at 0 and 3 of the second. A message has 6 elements.
#include "tile/tile.h"

// A copy in progress. A unit is a contiguous range that both sides store in the same way: an
// element or rows of elements.
struct walk {
    const struct tile_piece *from, *to;
    int rank;    // number of dimensions that are visited; later ones are part of `unit`
    size_t unit; // in bytes
    size_t from_step[TILE_MAX_RANK], to_step[TILE_MAX_RANK]; // bytes from one index to the next
    char *message; // position in the message, if one side is packed
    bool pack, unpack;
    int64_t units;                  // number of units copied so far
    const struct tile_mover *mover; // NULL: memcpy
};

// Copies n adjacent units: from src to dst, or with one of these in the message.
static inline void move(struct walk *walk, const char *src, char *dst, int64_t n)
{
    size_t bytes = (size_t)n * walk->unit;
    if (walk->pack)
        dst = walk->message;
    else if (walk->unpack)
        src = walk->message;
    if (walk->mover)
        walk->mover->move(walk->mover->data, dst, src, bytes);
    else
        memcpy(dst, src, bytes);
    if (walk->message)
        walk->message += bytes;
    walk->units += n;
}

static void walk(struct walk *walk, int axis, const char *src, char *dst);

// Copies n adjacent indices of one dimension. In the last dimension this is one call of move().
static void walk_run(struct walk *w, int dim, const char *src, char *dst, int64_t n)
{
    if (dim == w->rank - 1) {
        move(w, src, dst, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        walk(w, dim + 1, src, dst);
        src += w->from_step[dim];
        dst += w->to_step[dim];
    }
}

// Copies the common elements along one dimension. Merges the two ascending lists of intervals.
// before_x and before_y are the numbers of indices in the intervals before x and y.
static void walk(struct walk *w, int dim, const char *src, char *dst)
{
    if (dim == w->rank) {
        move(w, src, dst, 1);
        return;
    }
    const struct tile_interval *x = w->from->dims[dim].at, *x_end = x + w->from->dims[dim].n;
    const struct tile_interval *y = w->to->dims[dim].at, *y_end = y + w->to->dims[dim].n;
    int64_t before_x = 0, before_y = 0;
    while (x < x_end && y < y_end) {
        int64_t start = int64_max(x->start, y->start);
        int64_t stop = int64_min(x->stop, y->stop);
        if (start < stop)
            walk_run(w, dim, src + (size_t)(before_x + start - x->start) * w->from_step[dim],
                     dst + (size_t)(before_y + start - y->start) * w->to_step[dim], stop - start);
        bool x_done = x->stop <= y->stop, y_done = y->stop <= x->stop;
        if (x_done) {
            before_x += x->stop - x->start;
            x++;
        }
        if (y_done) {
            before_y += y->stop - y->start;
            y++;
        }
    }
}

// True if both pieces have the same single interval along the axis.
static bool same_dim(const struct tile_piece *a, const struct tile_piece *b, int axis)
{
    return a->dims[axis].n == 1 && b->dims[axis].n == 1 &&
           memcmp(a->dims[axis].at, b->dims[axis].at, sizeof(*a->dims[axis].at)) == 0;
}

// Copies all common elements and returns their number. The packed side has steps of 0, because the
// message is read or written in order.
static int64_t walk_all(struct walk *w, const char *src, char *dst, size_t elem_bytes)
{
    int64_t per_unit = 1;
    w->rank = w->from->rank;
    w->unit = elem_bytes;
    while (w->rank > 0 && same_dim(w->from, w->to, w->rank - 1)) {
        int64_t size = w->from->dims[--w->rank].size;
        w->unit *= (size_t)size;
        per_unit *= size;
    }
    if (w->unit == 0)
        return 0; // an empty dimension
    size_t from = w->unit, to = w->unit;
    for (int dim = w->rank - 1; dim >= 0; dim--) {
        w->from_step[dim] = w->unpack ? 0 : from;
        w->to_step[dim] = w->pack ? 0 : to;
        from *= (size_t)w->from->dims[dim].size;
        to *= (size_t)w->to->dims[dim].size;
    }
    walk(w, 0, src, dst);
    return w->units * per_unit;
}

int64_t tsr__piece_move(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes, enum tile_packed packed,
                        const struct tile_mover *mover)
{
    struct walk w = {.from = from, .to = to, .mover = mover};
    w.pack = packed == TILE_PACKED_TO;
    w.unpack = packed == TILE_PACKED_FROM;
    if (w.pack)
        w.message = dst;
    if (w.unpack)
        w.message = (char *)src;
    return walk_all(&w, src, dst, elem_bytes);
}

int64_t tsr__piece_copy(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                        void *dst, size_t elem_bytes)
{
    return tsr__piece_move(from, src, to, dst, elem_bytes, TILE_NOT_PACKED, NULL);
}

int64_t tsr__piece_pack(const struct tile_piece *mine, const void *src,
                        const struct tile_piece *theirs, void *message, size_t elem_bytes)
{
    return tsr__piece_move(mine, src, theirs, message, elem_bytes, TILE_PACKED_TO, NULL);
}

// Unpacks a message into `mine`. Sender and receiver both pass the sender's piece to
// tsr__piece_move as `from`, so that both use the same order.
int64_t tsr__piece_unpack(const struct tile_piece *mine, void *dst, const struct tile_piece *theirs,
                          const void *message, size_t elem_bytes)
{
    return tsr__piece_move(theirs, message, mine, dst, elem_bytes, TILE_PACKED_FROM, NULL);
}
