// SPDX-License-Identifier: Apache-2.0
// weights.h - constants: where the pieces of each lie, and writing them.
#ifndef TSR_PARTITION_WEIGHTS_H
#define TSR_PARTITION_WEIGHTS_H

#include "partition/emit/emit.h"

// "rank1.data", "common.data" (rank n_ranks), or with the ending .safetensors; NULL: out of memory.
const char *tsr__weights_file(const struct draft *draft, int64_t rank);
// Puts each constant into the graphs of the ranks that need it, and fixes its place in the data files.
tsr_status tsr__weights_place(struct draft *draft, struct part *parts) TSR_MUST_USE;
// Tells the engine's side which weights of the common file it may give to a session by name (kept_inputs.c in rules says why not all).
tsr_status tsr__weights_name_shared(struct part *part) TSR_MUST_USE;
struct data_file {
    uint64_t bytes;
    char sha256[65];
};
// Writes common.data and rankN.data into the folder; files (n_ranks + 1, the last is the common
// one) gets sizes and digests; bytes 0: no such file.
tsr_status tsr__weights_write(struct draft *draft, struct part *parts, struct outfolder *outfolder,
                              struct data_file *files) TSR_MUST_USE;

#endif
