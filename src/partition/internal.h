// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files on top of the room, which use all passes below.
//
// facts: what everybody asks. steps: walks the flow once and writes down steps: a node, a reduction, a local slice, a
// gather, a reshard, each from forms of values to forms; then backwards, to mark what each rank must have. emit: walks them
// forwards and builds all ranks' graphs together, so that every communication has one number and one place in the order
// for all who take part. weights: cuts and writes the constants.
#ifndef TSR_PARTITION_INTERNAL_H
#define TSR_PARTITION_INTERNAL_H

#include "partition/emit/emit.h"
#include "partition/steps/steps.h"
#include "partition/weights/weights.h"

// fingerprint.c: the digest of the model (draft->model_sha256), then that of the draft (draft->fingerprint).
tsr_status tsr__model_digest(struct draft *draft) TSR_MUST_USE;
void tsr__draft_fingerprint(struct draft *draft);

// part_manifest.c: all but the files.
tsr_status tsr__parts_manifest(struct draft *draft, const struct part *parts,
                               struct manifest *manifest) TSR_MUST_USE;
// publish.c: writes the folder; only counts the bytes of the rank files; tells the caller what came of it. manifest gets what the
// folder's says.
tsr_status tsr__parts_publish(struct draft *draft, struct part *parts, const char *folder,
                              bool force, struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_measure(struct draft *draft, struct part *parts,
                              struct manifest *manifest) TSR_MUST_USE;
tsr_status tsr__parts_summarize(const struct draft *draft, const struct part *parts,
                                const struct manifest *manifest,
                                tsr_partition_summary *out) TSR_MUST_USE;

// parts.c: the graphs of all ranks, from the planned steps.
tsr_status tsr__parts_build(struct draft *draft, struct part *parts) TSR_MUST_USE;

// opsets.c: what a rank file says of itself.
void tsr__draft_types(struct draft *draft);
int64_t tsr__part_ir(const struct draft *draft);
tsr_status tsr__part_lower(struct part *part) TSR_MUST_USE;

// wrapped_model.c: whether a wrapped model can take and give what the whole one does; that model.
tsr_status tsr__wrapped_check(struct draft *draft);
tsr_status tsr__wrapped_model(struct draft *draft, tsr_model **out);

#define RESEAL_HINT                                                                                \
    "change a rank file so that its inputs, outputs and communication stay as they are, or "       \
    "partition the model again"
// prove.c: proves that all ranks agree on their communication; of files that are resealed, also that it is the manifest's.
tsr_status tsr__parts_agree(struct draft *draft, struct part *parts) TSR_MUST_USE;
tsr_status tsr__sizes_agree(struct draft *draft) TSR_MUST_USE; // of what is sent

#endif
