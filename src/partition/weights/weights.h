// SPDX-License-Identifier: Apache-2.0
// weights.h - places constants in files and writes the data files.
#ifndef TSR_PARTITION_WEIGHTS_H
#define TSR_PARTITION_WEIGHTS_H

#include "partition/emit/emit.h"

// Returns "rank1.data", or "common.data" for rank n_ranks; or the same with .safetensors. Returns
// NULL if out of memory.
const char *tsr__weights_file(const struct draft *draft, int64_t rank);
// Adds each constant to the graphs of the ranks that need it, and assigns its offset in a data
// file.
tsr_status tsr__weights_place(struct draft *draft, struct part *parts) TSR_MUST_USE;
// Lists the weights of the common file that the runtime may pass to an engine by name
// (rules/kept_inputs.c).
tsr_status tsr__weights_name_shared(struct part *part) TSR_MUST_USE;
struct data_file {
    uint64_t bytes;
    char sha256[65];
};
// Writes the data files. `files` has n_ranks + 1 entries, the last for the common file; they get
// sizes and digests. Size 0 means that there is no such file.
tsr_status tsr__weights_write(struct draft *draft, struct part *parts, struct outfolder *outfolder,
                              struct data_file *files) TSR_MUST_USE;

#endif
