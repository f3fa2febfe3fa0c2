// SPDX-License-Identifier: Apache-2.0
// internal.h - functions that place and write constants.
#ifndef TSR_PARTITION_WEIGHTS_INTERNAL_H
#define TSR_PARTITION_WEIGHTS_INTERNAL_H

#include "partition/weights/weights.h"

#define LARGE_ALIGN 4096

// runs.c: iterates over a piece of a tensor as contiguous runs of elements.
struct runs {
    const struct tile_piece *piece;
    int last;      // dimension whose intervals become runs; -1: the piece is one run
    int64_t inner; // elements per index of dimension `last`
    int64_t stride[TILE_MAX_RANK]; // elements per index of each dimension
    // For the outer dimensions: the current index, and the current interval.
    int64_t at[TILE_MAX_RANK], in[TILE_MAX_RANK];
    int64_t start, stop; // the current run, in elements
    bool done;
};

void tsr__runs_begin(struct runs *runs, const struct tile_piece *piece, const int64_t *shape);
void tsr__runs_next(struct runs *runs);

// safetensors.c: tsr__safetensors_header_size returns the size of the header of each data file.
// tsr__safetensors_header builds the header of a rank's file (n_ranks: of the common file).
uint64_t tsr__safetensors_header_size(const struct draft *draft);
tsr_status tsr__safetensors_header(struct draft *draft, int64_t rank, unsigned char **out);

// Returns the rank's part of a constant, or NULL if out of memory.
struct tile_piece *tsr__const_piece(struct draft *draft, const struct form *form, int64_t rank);

#endif
