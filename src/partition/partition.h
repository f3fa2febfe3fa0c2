// SPDX-License-Identifier: Apache-2.0
// partition.h - an annotated model -> one ordinary ONNX file per device with explicit
// communication, weights cut.
//
// Other rooms use tsr_partition of tessera.h. What a rank file looks like is in docs/formats.md.
#ifndef TSR_PARTITION_H
#define TSR_PARTITION_H

#include "base/base.h"

// tsr_partition; for benchmarks, data files may be left without digests.
tsr_status tsr__partition(tsr_model *model, const char *folder,
                          const tsr_partition_options *options, bool undigested,
                          tsr_partition_summary *summary);

// The parts of a model as they would be written, for whoever only looks at them.
struct partition_part {
    tsr_model *model; // its weights have types and shapes, no data
    int64_t weight_bytes;
};
struct partition_look {
    tsr_status (*look)(void *data, const struct partition_part *parts, int64_t n);
    void *data;
};
tsr_status tsr__partition_look(tsr_model *model, const char *config,
                               const struct partition_look *look) TSR_MUST_USE;

#endif
