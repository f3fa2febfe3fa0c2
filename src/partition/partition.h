// SPDX-License-Identifier: Apache-2.0
// partition.h - turns an annotated model into one ONNX file per device, with explicit communication
// and sharded weights. docs/formats.md describes the files.
#ifndef TSR_PARTITION_H
#define TSR_PARTITION_H

#include "base/base.h"

struct tsr_partition_result {
    struct result_head head;
    tsr_partition_facts facts;
    const tsr_collective_count *collectives; // n_collectives, by name
    const tsr_replicated *replicated;        // n_replicated
};
// As tsr_partition for a folder that only this process uses and removes: without the digests of
// the model and of data files, which would take longer than everything else.
tsr_status tsr__partition_undigested(tsr_model *model, const char *folder,
                                     const tsr_partition_options *options) TSR_MUST_USE;

// One rank's model, as it would be written; passed to a callback.
struct partition_part {
    tsr_model *model; // large weights have types and shapes but no data
    int64_t weight_bytes;
};
struct partition_visitor {
    tsr_status (*visit)(void *data, const struct partition_part *parts, int64_t n);
    void *data;
    // numbers for symbols: the rank models are those of the open model, with these sizes
    const tsr_dim_size *sizes;
    size_t n_sizes;
};
// Builds the rank models and passes all of them to one call of visitor->visit. Writes nothing.
tsr_status tsr__partition_visit(tsr_model *model, const char *config,
                                const struct partition_visitor *visitor) TSR_MUST_USE;

#endif
