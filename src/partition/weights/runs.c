// SPDX-License-Identifier: Apache-2.0
// runs.c - iterates over a rank's part of a constant as ascending runs of elements of the full
// tensor.
//
//     Example: W [4,6], rows 1..2 and columns 2..3:
//         last = 1, the innermost sharded axis; inner = 1 element below it; strides 6 and 1
//         run 0: row 1, columns 2..3 = elements 8..9
//         run 1: row 2, columns 2..3 = elements 14..15
//     Rows 1..2 of all columns: last = 0, inner = 6, and one run: elements 6..17.
#include "internal.h"

static void runs_here(struct runs *runs)
{
    int64_t base = 0;
    for (int axis = 0; axis < runs->last; axis++)
        base += runs->at[axis] * runs->stride[axis];
    if (runs->last < 0) {
        runs->start = 0;
        runs->stop = runs->inner;
        return;
    }
    const struct tile_interval *interval = &runs->piece->dims[runs->last].at[runs->in[runs->last]];
    runs->start = base + interval->start * runs->inner;
    runs->stop = base + interval->stop * runs->inner;
}

// Starts at the first run of a piece. An empty piece has no runs.
void tsr__runs_begin(struct runs *runs, const struct tile_piece *piece, const int64_t *shape)
{
    *runs = (struct runs){.piece = piece, .last = -1, .inner = 1};
    int64_t stride = 1;
    for (int axis = piece->rank - 1; axis >= 0; axis--) {
        runs->stride[axis] = stride;
        if (runs->last < 0 && piece->dims[axis].size != shape[axis])
            runs->last = axis;
        if (runs->last < 0)
            runs->inner *= shape[axis];
        stride *= shape[axis];
        runs->done |= piece->dims[axis].size == 0;
    }
    if (runs->done)
        return;
    for (int axis = 0; axis < runs->last; axis++)
        runs->at[axis] = piece->dims[axis].at[0].start;
    runs_here(runs);
}

// Advances to the next run: the innermost axis first, and an outer axis when the inner ones are at
// their end.
void tsr__runs_next(struct runs *runs)
{
    int axis = runs->last;
    if (axis >= 0 && ++runs->in[axis] < runs->piece->dims[axis].n) {
        runs_here(runs);
        return;
    }
    if (axis >= 0)
        runs->in[axis] = 0;
    for (axis--; axis >= 0; axis--) {
        if (++runs->at[axis] < runs->piece->dims[axis].at[runs->in[axis]].stop)
            break;
        if (++runs->in[axis] < runs->piece->dims[axis].n) {
            runs->at[axis] = runs->piece->dims[axis].at[runs->in[axis]].start;
            break;
        }
        runs->in[axis] = 0;
        runs->at[axis] = runs->piece->dims[axis].at[0].start;
    }
    runs->done = axis < 0;
    if (!runs->done)
        runs_here(runs);
}

// Returns the rank's part of a constant. Along the axes of windows (relayout.c), it has the windows
// instead of the shard.
struct tile_piece *tsr__const_piece(struct draft *draft, const struct form *form, int64_t rank)
{
    struct tile_piece *piece = tsr__layout_piece(draft->arena, form->layout, form->item->shape,
                                                 tsr__layout_shard_of(form->layout, rank, 0));
    for (int k = 0; piece && form->windows && k < form->windows->n_axes; k++) {
        const struct dim_slice *part = &form->windows->parts[rank * form->windows->n_axes + k];
        int axis = form->windows->axes[k];
        piece->dims[axis].at = part->at;
        piece->dims[axis].n = part->n;
        piece->dims[axis].size = tsr__windows_size(form->windows, rank);
    }
    return piece;
}
