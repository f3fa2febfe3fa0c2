// SPDX-License-Identifier: Apache-2.0
// rows.c - combines the contiguous ranges of a copy between pieces to rows at equal distances.
//
// On a GPU every copy is a launch. The right half of the columns of [1000, 8] is 1000 ranges, but
// one launch of 1000 rows.
#include "tile/tile.h"

// Ranges that are not copied yet.
struct pending_rows {
    const struct tile_rows_mover *mover;
    struct tile_rows rows; // rows 0: none
    int code;
};

// Moves the pending rows. After a failure, later rows are dropped and the first code is kept.
static void flush(struct pending_rows *pending)
{
    if (pending->rows.rows && pending->rows.width && pending->code == 0)
        pending->code = pending->mover->move(pending->mover->data, &pending->rows);
    pending->rows.rows = 0;
}

// True if the range can be added as the next row. The second row sets the pitches. Example: ranges
// from 0 and 40 to 0 and 16 have pitches 40 and 16, so the next row must go from 80 to 32.
static bool continues(const struct tile_rows *rows, const char *to, const char *from, size_t bytes)
{
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
    struct pending_rows *pending = data;
    struct tile_rows *rows = &pending->rows;
    if (continues(rows, to, from, bytes)) {
        if (rows->rows == 1) {
            rows->to_pitch = (size_t)((char *)to - (char *)rows->to);
            rows->from_pitch = (size_t)((const char *)from - (const char *)rows->from);
        }
        rows->rows++;
        return;
    }
    flush(pending);
    *rows = (struct tile_rows){.to = to, .from = from, .width = bytes, .rows = 1};
}

int tsr__piece_rows(const struct tile_piece *from, const void *src, const struct tile_piece *to,
                    void *dst, size_t elem_bytes, enum tile_packed packed,
                    const struct tile_rows_mover *mover)
{
    struct pending_rows pending = {.mover = mover};
    struct tile_mover each = {gather, &pending};
    tsr__piece_move(from, src, to, dst, elem_bytes, packed, &each);
    flush(&pending);
    return pending.code;
}
