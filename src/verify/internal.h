// SPDX-License-Identifier: Apache-2.0
// internal.h - shared by the files of this module: the state of one verification.
#ifndef TSR_VERIFY_INTERNAL_H
#define TSR_VERIFY_INTERNAL_H

#include "verify/verify.h"
#include "api/api.h"
#include "partition/partition.h"

struct work {
    tsr_session *session;
    struct arena arena;
    struct arena *results; // memory of the result
    const char *path;
    const tsr_verify_options *options;
    tsr_run_options run;
    tsr_model *model;
    // recorded: outputs that are stored with the inputs; unsharded: outputs of the unsharded run
    tsr_tensors *inputs, *recorded, *unsharded;
    bool ran_unsharded;
    tsr_status unsharded_status; // of the unsharded run
    bool floats;       // products of packed weights are computed in float32 (float_products.c)
    double *precision; // tolerance per value of the model (precision.c)
    tsr_input_sizes sizes;
    tsr_run_options reference; // options of the unsharded run
    tsr_run_options on_ranks; // the same on the ranks' type of device, if the reference runs on CPU
    const char *reference_path;
    struct scratch scratch;
};

// How many elements of an output differ by more than `limit`, which is its tolerance.
struct differing {
    double limit;
    size_t count;
};
// Result for one sharding of the model. Its texts and lists are in the memory of the result.
struct outcome {
    tsr_verify_trial facts;
    tsr_partition_result *partition; // NULL: it could not be partitioned
    tsr_difference *outputs;         // facts.n_outputs
    tsr_first_difference first;
    // while outputs are compared: those of the sharded run, and the extent of each difference
    tsr_tensors *sharded;
    struct differing *differing;
};
struct tsr_verify_result {
    struct result_head head;
    tsr_verify_facts facts;
    struct outcome own, *trials; // of the model's own sharding; of random ones
};

// Steps of a verification that are reported as progress. Random shardings report only their number.
enum { STEP_PLAN, STEP_PARTITION, STEP_UNSHARDED, STEP_SHARDED, STEP_COMPARE, STEPS };
void tsr__verify_step(const struct work *work, int step); // verify.c; STEPS: the last one has ended

// verify_sharding.c: partitions `model`, which is work->model with annotations, runs it and
// compares with the unsharded run. TSR_DIFFERENT: an output differs. *out is complete after TSR_OK
// and TSR_DIFFERENT, on rank 0 only.
tsr_status tsr__verify_sharding(struct work *work, tsr_model *model, const char *config,
                                struct outcome *out) TSR_MUST_USE;
// self_difference.c: runs the unsharded model again and reports where the engine differs from
// itself. An output becomes ok if it differs at most twice as much as the engine differs from
// itself. Returns true if all are ok.
bool tsr__verify_self(struct work *work, size_t devices, tsr_difference *outputs, size_t n);
// sensitivity.c: runs the unsharded model with artificial rounding errors. An output becomes ok,
// with a warning, if they change it by a quarter of the difference or more, and in a quarter of the
// elements or more. Elements that are rounding errors are not compared. Does nothing if the caller
// has set a tolerance. Returns true if all are ok.
bool tsr__verify_sensitivity(struct work *work, struct outcome *out);
// rounding.c: writes a copy of the unsharded model with artificial rounding errors to `path`. They
// differ for each number in its additional input ROUNDING_RUN. weights: constants are changed too,
// if they are small.
#define ROUNDING_RUN "tessera_rounding_run"
tsr_status tsr__rounding_save(struct work *work, bool weights, const char *path) TSR_MUST_USE;
// locate.c: finds and reports the first value that differs, among all values of the main graph.
// Sets *out if there is one; finding none is not an error.
void tsr__verify_locate(struct work *work, tsr_model *model, const char *config,
                        tsr_first_difference *out);
// float_products.c: if kernels round activations, compares again without rounding. TSR_OK: the
// outputs then agree, and a warning is added. TSR_DIFFERENT: they differ, or nothing is rounded.
tsr_status tsr__verify_floats(struct work *work, tsr_model *model, const char *config,
                              struct outcome *out) TSR_MUST_USE;
// If work->floats is set, turns rounding off in the copy of the unsharded model.
tsr_status tsr__reference_use_floats(const struct work *work, tsr_model *model) TSR_MUST_USE;
// reference_model.c: tsr__reference_needs_copy returns true if the engine computes the model wrong
// as it is. tsr__reference_rewrite rewrites a copy so that the result is right.
bool tsr__reference_needs_copy(tsr_model *model);
tsr_status tsr__reference_rewrite(struct arena *arena, tsr_model *model) TSR_MUST_USE;
// lowered.c: sets *path to the file for the unsharded run: the model itself, or a copy that the
// engine can run and computes correctly.
tsr_status tsr__verify_lowered(struct work *work, const char **path) TSR_MUST_USE;
// precision.c: finds the tolerance of each value of work->model once; tsr__precision_of returns it
// by name. INFINITY: the value depends on random numbers and is not compared.
tsr_status tsr__precision_find(struct work *work) TSR_MUST_USE;
double tsr__precision_of(const struct work *work, const char *name);
// saturation.c: warns if the engine's 8-bit arithmetic may explain the difference.
void tsr__verify_saturation(struct work *work);
// shortcut.c: warns that the engine causes the difference. Call it if sharded and unsharded runs
// agree when all values are outputs. `unsharded`: all values of that unsharded run.
void tsr__verify_shortcut(struct work *work, const tsr_tensors *unsharded);
// trials.c: verifies random shardings one after the other.
tsr_status tsr__verify_trials(struct work *work, tsr_verify_result *result) TSR_MUST_USE;

#endif
