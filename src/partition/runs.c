// SPDX-License-Identifier: Apache-2.0
// runs.c - a piece of a tensor as stretches of the whole tensor's elements, ascending.
#include "weights.h"

static void runs_here(struct runs *r)
{
    int64_t base = 0;
    for (int d = 0; d < r->last; d++)
        base += r->at[d] * r->stride[d];
    if (r->last < 0) {
        r->start = 0;
        r->stop = r->inner;
        return;
    }
    const struct tile_interval *i = &r->piece->dims[r->last].at[r->in[r->last]];
    r->start = base + i->start * r->inner;
    r->stop = base + i->stop * r->inner;
}

void tsr__runs_begin(struct runs *r, const struct tile_piece *piece, const int64_t *shape)
{
    *r = (struct runs){.piece = piece, .last = -1, .inner = 1};
    int64_t stride = 1;
    for (int d = piece->rank - 1; d >= 0; d--) {
        r->stride[d] = stride;
        if (r->last < 0 && piece->dims[d].size != shape[d])
            r->last = d;
        if (r->last < 0)
            r->inner *= shape[d];
        stride *= shape[d];
        r->done |= piece->dims[d].size == 0;
    }
    if (r->done)
        return;
    for (int d = 0; d < r->last; d++)
        r->at[d] = piece->dims[d].at[0].start;
    runs_here(r);
}

void tsr__runs_next(struct runs *r)
{
    int d = r->last;
    if (d >= 0 && ++r->in[d] < r->piece->dims[d].n) {
        runs_here(r);
        return;
    }
    if (d >= 0)
        r->in[d] = 0;
    for (d--; d >= 0; d--) {
        if (++r->at[d] < r->piece->dims[d].at[r->in[d]].stop)
            break;
        if (++r->in[d] < r->piece->dims[d].n) {
            r->at[d] = r->piece->dims[d].at[r->in[d]].start;
            break;
        }
        r->in[d] = 0;
        r->at[d] = r->piece->dims[d].at[0].start;
    }
    r->done = d < 0;
    if (!r->done)
        runs_here(r);
}
