// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files that place and write constants.
#ifndef TSR_PARTITION_WEIGHTS_INTERNAL_H
#define TSR_PARTITION_WEIGHTS_INTERNAL_H

#include "partition/weights/weights.h"

#define LARGE_ALIGN 4096

// runs.c: a piece of a tensor as contiguous runs of elements.
struct runs {
    const struct tile_piece *piece;
    int last;                      // dimension whose intervals are the runs; -1: one run
    int64_t inner;                 // elements below it
    int64_t stride[TILE_MAX_RANK]; // elements per index of each dimension
    // Index and interval of the outer dimensions.
    int64_t at[TILE_MAX_RANK], in[TILE_MAX_RANK];
    int64_t start, stop; // the current run, in elements
    bool done;
};

void tsr__runs_begin(struct runs *runs, const struct tile_piece *piece, const int64_t *shape);
void tsr__runs_next(struct runs *runs);

// safetensors.c: the size of the header of each data file; the header of a rank's file (n_ranks:
// the common file).
uint64_t tsr__safetensors_room(const struct draft *draft);
tsr_status tsr__safetensors_header(struct draft *draft, int64_t rank, unsigned char **out);

// The rank's part of a constant. NULL: out of memory.
struct tile_piece *tsr__const_piece(struct draft *draft, const struct form *form, int64_t rank);

#endif
