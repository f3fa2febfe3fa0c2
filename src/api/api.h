// SPDX-License-Identifier: Apache-2.0
// api.h - calls that combine several modules: plan for given inputs, run an annotated model.
#ifndef TSR_API_H
#define TSR_API_H

#include "base/base.h"

#define SCRATCH_PATH 4096 // maximum length of a folder's path, as sent between ranks

// A temporary folder, and the partition in it (scratch_folder.c).
struct scratch {
    struct temporary *temporary;
    const char *folder, *parts;
    tsr_session *session;
    // diagnostics added after this mark that name a file of `parts` get the model's name instead
    struct diag_mark mark;
    const char *model; // path of the model; NULL or "": diagnostics are not changed
};
tsr_status tsr__scratch_open(tsr_session *session, struct arena *arena, const char *base,
                             struct scratch *out) TSR_MUST_USE;
void tsr__scratch_close(struct scratch *scratch); // a zeroed struct is allowed

// planned.c: collects the sizes of the model's symbolic dimensions from the shapes of the inputs.
// Returns false if out of memory.
bool tsr__input_sizes(struct arena *arena, const tsr_model *model, const tsr_tensors *inputs,
                      tsr_dim_size **out, size_t *n);

// bench_turns.c: returns the first device of the configuration (NULL: the only one) that is not the
// CPU, or NULL. The unsharded model runs on it too, so that runs differ only by the sharding.
const char *tsr__unsharded_device(const tsr_model *model, const char *config);
// bench_turns.c: measures the partition in `parts`, a partition of the model, and the unsharded
// model in turns. Under a launcher every rank calls it, and rank 0 runs the unsharded model.
tsr_status tsr__bench_turns(const tsr_model *model, const char *config, const char *parts,
                            const tsr_run_options *options, const tsr_tensors *inputs,
                            double seconds, tsr_bench_result *result,
                            tsr_bench_baseline *baseline) TSR_MUST_USE;

#endif
