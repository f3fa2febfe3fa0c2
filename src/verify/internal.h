// SPDX-License-Identifier: Apache-2.0
// internal.h - between the files of this module: the state of one verification.
#ifndef TSR_VERIFY_INTERNAL_H
#define TSR_VERIFY_INTERNAL_H

#include "verify/verify.h"
#include "api/api.h"

struct work {
    tsr_session *session;
    struct arena arena;
    struct arena *results; // of the session: what the caller gets
    const char *path;
    const tsr_verify_options *options;
    tsr_run_options run;
    tsr_model *model;
    tsr_tensors *inputs, *recorded, *whole;
    bool ran_whole;
    double *precision; // by value of the model (precision.c)
    tsr_input_sizes sizes;
    tsr_run_options reference; // of the unsharded run
    const char *reference_path;
    struct scratch scratch;
};

// What came of one way to cut the model; texts and lists are among the results.
struct outcome {
    bool ok;
    int recorded;
    tsr_partition_summary partition;
    tsr_difference *outputs;
    size_t n_outputs;
    tsr_first_difference first;
};

// verify_cut.c: cuts that model, which is work->model with annotations, runs it and compares with
// the whole run. TSR_DIFFERENT: *out is filled.
tsr_status tsr__verify_cut(struct work *work, tsr_model *model, const char *config,
                           struct outcome *out) TSR_MUST_USE;
// self_difference.c: runs the unsharded model again and reports where the engine differs from
// itself. Outputs that are no further away than that become ok; true: all are.
bool tsr__verify_self(struct work *work, size_t devices, tsr_difference *outputs, size_t n);
// sharded_plan.c: plans the model, for the devices of the options, such that it shards as many
// nodes as it can.
tsr_status tsr__plan_sharded(struct work *work, tsr_model *model,
                             tsr_plan_summary *summary) TSR_MUST_USE;
// Reports why no node is sharded; TSR_INVALID.
tsr_status tsr__verify_unsharded(struct work *work, size_t devices);
// locate.c: which value differs first, of all that the nodes of the main graph make; a finding says
// it. Fills *out where there is one; that it could not be found is no failure.
void tsr__verify_locate(struct work *work, tsr_model *model, const char *config,
                        tsr_first_difference *out);
// reference_model.c: the engine computes the model wrong as it is; rewrites it so that it does not.
bool tsr__reference_needs_copy(const tsr_model *model);
tsr_status tsr__reference_rewrite(struct arena *arena, tsr_model *model) TSR_MUST_USE;
// lowered.c: the file of the unsharded model, or of a copy that the engine runs right.
tsr_status tsr__verify_lowered(struct work *work, const char **path) TSR_MUST_USE;
// precision.c: the tolerance of each value of work->model, found once; then that of the value of
// that name. INFINITY: it follows from random numbers, and says nothing.
tsr_status tsr__precision_find(struct work *work) TSR_MUST_USE;
double tsr__precision_of(const struct work *work, const char *name);
// saturation.c: says so where the engine's 8-bit arithmetic may be why cut and whole differ.
void tsr__verify_saturation(struct work *work);
// Where cut and whole agree once all values are given out (`whole`: those of the whole model): says
// that the engine makes the difference.
void tsr__verify_shortcut(struct work *work, const tsr_tensors *whole);
// trials.c: random shardings, one after the other.
tsr_status tsr__verify_trials(struct work *work, tsr_verify_summary *result) TSR_MUST_USE;

#endif
