// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the top files of the module, which use all passes.
//
// facts: common functions. steps: walks the flow and plans steps (a node, a reduction, a slice, a
// gather, a reshard) from forms to forms; then marks backwards what each rank needs. emit: walks
// the steps and builds all ranks' graphs together, so that communications have the same numbers and
// order everywhere. weights: slices and writes the constants.
#ifndef TSR_PARTITION_INTERNAL_H
#define TSR_PARTITION_INTERNAL_H

#include "partition/emit/emit.h"
#include "partition/steps/steps.h"
#include "partition/weights/weights.h"

// fingerprint.c: the digest of the model (draft->model_sha256); the draft's (draft->fingerprint).
tsr_status tsr__model_digest(struct draft *draft) TSR_MUST_USE;
void tsr__draft_fingerprint(struct draft *draft);

// part_manifest.c: everything except the files.
tsr_status tsr__parts_manifest(struct draft *draft, const struct part *parts,
                               struct manifest *manifest) TSR_MUST_USE;
// publish.c: writes the folder; only computes the sizes of the rank files; fills the summary. The
// first two fill the manifest.
tsr_status tsr__parts_publish(struct draft *draft, struct part *parts, const char *folder,
                              bool force, struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_measure(struct draft *draft, struct part *parts,
                              struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_summarize(const struct draft *draft, const struct part *parts,
                                const struct manifest *manifest,
                                tsr_partition_summary *out) TSR_MUST_USE;

// parts.c
tsr_status tsr__parts_build(struct draft *draft, struct part *parts) TSR_MUST_USE;

// opsets.c: IR version and opset of a rank file.
void tsr__draft_types(struct draft *draft);
int64_t tsr__part_ir(const struct draft *draft);
tsr_status tsr__part_lower(struct part *part) TSR_MUST_USE;

// wrapped_model.c: checks whether a wrapped model is possible; creates it.
tsr_status tsr__wrapped_check(struct draft *draft);
tsr_status tsr__wrapped_model(struct draft *draft, tsr_model **out);

#define RESEAL_HINT                                                                                \
    "change a rank file so that its inputs, outputs and communication stay as they are, or "       \
    "partition the model again"
// prove.c: proves that all ranks agree on their communication and, when resealing, that it is the
// manifest's; that shards which are combined have equal sizes.
tsr_status tsr__parts_agree(struct draft *draft, struct part *parts) TSR_MUST_USE;
tsr_status tsr__sizes_agree(struct draft *draft) TSR_MUST_USE;

#endif
