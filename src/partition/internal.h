// SPDX-License-Identifier: Apache-2.0
// internal.h - functions that the top files of the module share. These files use all passes:
//
//     facts     helper functions about layouts, sizes and nodes
//     steps     plans steps (a node, a reduction, a slice, a gather, a reshard) between forms (a
//               form is one layout of a value); then marks backwards what each rank needs
//     emit      builds the graphs of all ranks together, step by step, so that communications
//               have the same numbers and order everywhere
//     weights   slices and writes the constants
#ifndef TSR_PARTITION_INTERNAL_H
#define TSR_PARTITION_INTERNAL_H

#include "partition/emit/emit.h"
#include "partition/steps/steps.h"
#include "partition/weights/weights.h"

// fingerprint.c: tsr__model_digest sets draft->model_sha256, tsr__draft_fingerprint sets
// draft->fingerprint.
tsr_status tsr__model_digest(struct draft *draft) TSR_MUST_USE;
void tsr__draft_fingerprint(struct draft *draft);

// part_manifest.c: fills the manifest, except its list of files.
tsr_status tsr__parts_manifest(struct draft *draft, const struct part *parts,
                               struct manifest *manifest) TSR_MUST_USE;
// publish.c: tsr__parts_publish writes the folder. tsr__parts_measure only computes the sizes of
// the rank files. Both fill the manifest. tsr__parts_describe fills the result.
tsr_status tsr__parts_publish(struct draft *draft, struct part *parts, const char *folder,
                              bool force, struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_measure(struct draft *draft, struct part *parts,
                              struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_describe(const struct draft *draft, const struct part *parts,
                               const struct manifest *manifest,
                               tsr_partition_result *result) TSR_MUST_USE;

// parts.c: builds the graphs of all ranks.
tsr_status tsr__parts_build(struct draft *draft, struct part *parts) TSR_MUST_USE;

// opsets.c: from the element types of the model (draft->types), tsr__part_ir chooses the IR version
// of the rank files, and tsr__part_lower lowers the opset of one rank file.
int64_t tsr__part_ir(const struct draft *draft);
tsr_status tsr__part_lower(struct part *part) TSR_MUST_USE;

// context_model.c: tsr__context_check checks whether an EPContext model is possible,
// tsr__context_model creates it.
tsr_status tsr__context_check(struct draft *draft);
tsr_status tsr__context_model(struct draft *draft, tsr_model **out);

#define RESEAL_HINT                                                                                \
    "change a rank file so that its inputs, outputs and communication stay as they are, or "       \
    "partition the model again"
// static_sizes.c: fixes the sizes of all values of the model, and removes the nodes that compute
// sizes. Fails if a dimension of an input has no size. `at` is the place of the model.
tsr_status tsr__fix_sizes(struct arena *arena, tsr_model *model, const struct place *at,
                          const tsr_dim_size *sizes, size_t n) TSR_MUST_USE;
// Replaces the symbols of a planned draft by the sizes of its visitor, if it has any.
tsr_status tsr__draft_bind(struct draft *draft) TSR_MUST_USE;
// prove.c: tsr__parts_agree proves that all ranks agree on their communication. When resealing, it
// also compares the communication with the manifest. tsr__sizes_agree proves that shards which are
// combined have matching sizes.
tsr_status tsr__parts_agree(struct draft *draft, struct part *parts) TSR_MUST_USE;
tsr_status tsr__sizes_agree(struct draft *draft) TSR_MUST_USE;

#endif
