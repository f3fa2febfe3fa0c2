// SPDX-License-Identifier: Apache-2.0
// sensitivity.c - checks whether the model amplifies rounding errors. Called only if sharded and
// unsharded outputs differ.
//
// Example: torch.cdist computes the distance of x and y as sqrt(x x - 2 x y + y y). For x near y,
// 100.00001 - 200 + 100 is mostly the rounding error of the three sums. Any other order of these
// sums gives another result, which is neither better nor worse.
//
// The unsharded model is run again with artificial rounding errors (rounding.c). Its results are as
// good as before. A sharded output that differs at most MARGIN times as much as these results, and
// in at most MARGIN times as many elements, is not an error of the sharding.
//
// Why elements are counted: the distances of equal points change by 1e-3, all others by 1e-7. A
// sharding error of 1e-3 in all distances must be found.
//
// Elements that are nothing but rounding errors are left out of the comparison: those that change
// by more than MOST_REL of the largest magnitude, or that become NaN, and integers that change at
// all. Examples: the normalization of equal values divides x - mean, a rounding error, by its own
// magnitude, and is 1, -1 or 0 / 0; which of some equal sums is the largest (ArgMax).
#include "verify/internal.h"
#include "verify/verify.h"
#include "tensors/tensors.h"

#include <float.h>
#include <math.h>

#define MOST_RUNS 16 // there are fewer if they explain all differences
#define MARGIN    4  // a few runs do not show the largest possible change
// Numbers of the runs (rounding.c): they are large, and no two of them have a simple ratio.
#define FIRST_RUN 1000.0f
#define NEXT_RUN  618.034f
// An element with less precision than a bfloat16 would have shows nothing. Exception: differences
// of LEAST_ABS, a few rounding errors of 1. Sigmoid computes in the range 0 to 1, so if all its
// results are about 1e-7, they are mostly rounding errors.
#define MOST_REL  tsr__tolerance(TSR_BFLOAT16)
#define LEAST_ABS (MARGIN * (double)FLT_EPSILON)

// What the changed runs show about one output.
struct changes {
    double limit; // differences beyond this show that an element is a rounding error
    double most;  // largest change of the other elements in all runs
    size_t count; // of these, elements that changed by 1 / MARGIN of the tolerance in one run
    unsigned char *noise; // by number: 1 if it is a rounding error
};

struct sensitivity {
    struct work *work;
    struct changes *changes;           // by output
    const struct differing *differing; // by output: elements of the sharded run out of tolerance
};

// ---- running -----------------------------------------------------------------------------------

// Adds what a run with rounding errors shows.
static void keep_changes(struct sensitivity *sensitivity, const tsr_tensors *changed)
{
    const tsr_tensors *unsharded = sensitivity->work->unsharded;
    for (size_t i = 0; i < tsr_tensors_count(unsharded); i++) {
        struct changes *at = &sensitivity->changes[i];
        int64_t k = tsr_tensors_find(changed, tsr_tensors_name(unsharded, i));
        tsr__compare_mark(unsharded, i, changed, k, at->limit, at->noise);
        struct rest rest = tsr__compare_rest(unsharded, i, changed, k,
                                             sensitivity->differing[i].limit / MARGIN, at->noise);
        if (rest.max_abs > at->most)
            at->most = rest.max_abs;
        if (rest.count > at->count)
            at->count = rest.count;
    }
}

static tsr_status run_changed(struct sensitivity *sensitivity, const char *path, int run)
{
    struct work *work = sensitivity->work;
    float number = FIRST_RUN + NEXT_RUN * (float)run;
    tsr_tensors *inputs = NULL, *outputs = NULL;
    tsr_status st = tsr_tensors_new(work->session, &inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(work->session, &outputs);
    if (st == TSR_OK)
        st = tsr__tensors_copy(work->inputs, inputs);
    if (st == TSR_OK)
        st = tsr_tensors_put(inputs, ROUNDING_RUN, TSR_FLOAT, 0, NULL, &number);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, path, &work->reference, inputs, outputs);
    if (st == TSR_OK)
        keep_changes(sensitivity, outputs);
    tsr_tensors_free(outputs);
    tsr_tensors_free(inputs);
    return st;
}

// ---- accepting ---------------------------------------------------------------------------------

// True if the changes explain the difference of output i.
static bool explains(const struct sensitivity *sensitivity, size_t i, const tsr_tensors *sharded)
{
    const tsr_tensors *unsharded = sensitivity->work->unsharded;
    const struct changes *at = &sensitivity->changes[i];
    const struct differing *differing = &sensitivity->differing[i];
    int64_t k = tsr_tensors_find(sharded, tsr_tensors_name(unsharded, i));
    struct rest rest = tsr__compare_rest(unsharded, i, sharded, k, differing->limit, at->noise);
    if (differing->count == 0) // not numeric, or another type or shape
        return false;
    if (rest.count == 0)
        return true;
    return tsr__is_float(tsr_tensors_dtype(unsharded, i)) && rest.max_abs <= MARGIN * at->most &&
           rest.max_abs <= at->limit && rest.count <= MARGIN * at->count;
}

// True if all differences are explained.
static bool is_done(const struct sensitivity *sensitivity, const struct outcome *out)
{
    for (size_t i = 0; i < out->facts.n_outputs; i++)
        if (!out->outputs[i].ok && !explains(sensitivity, i, out->sharded))
            return false;
    return true;
}

// Runs the model until all differences are explained. If the engine refuses changed weights, they
// stay. Example: the scales of a packed product must be constants.
static tsr_status run_all(struct sensitivity *sensitivity, const struct outcome *out)
{
    struct work *work = sensitivity->work;
    struct str path = tsr__arena_printf(&work->arena, "%s/changed.onnx", work->scratch.folder);
    tsr_status st = path.p ? tsr__rounding_save(work, true, path.p) : TSR_NOMEM;
    if (st == TSR_OK)
        st = run_changed(sensitivity, path.p, 0);
    if (st != TSR_OK && path.p) {
        st = tsr__rounding_save(work, false, path.p);
        if (st == TSR_OK)
            st = run_changed(sensitivity, path.p, 0);
    }
    for (int run = 1; run < MOST_RUNS && st == TSR_OK && !is_done(sensitivity, out); run++)
        st = run_changed(sensitivity, path.p, run);
    return st;
}

static size_t count_noise(const struct sensitivity *sensitivity, size_t i)
{
    size_t n = tsr__compare_numbers(sensitivity->work->unsharded, i), count = 0;
    for (size_t e = 0; e < n; e++)
        count += sensitivity->changes[i].noise[e];
    return count;
}

// True if some number of some output is not a rounding error, so that something was compared.
static bool shows_something(const struct sensitivity *sensitivity)
{
    for (size_t i = 0; i < tsr_tensors_count(sensitivity->work->unsharded); i++)
        if (count_noise(sensitivity, i) < tsr__compare_numbers(sensitivity->work->unsharded, i))
            return true;
    return false;
}

static void report_sensitivity(const struct sensitivity *sensitivity, size_t i,
                               const tsr_difference *output)
{
    struct work *work = sensitivity->work;
    struct place at = PLACE(.file = str_of(work->path), .value = str_of(output->name));
    static const char hint[] = "the difference is accepted; --tolerance sets another limit";
    size_t noise = count_noise(sensitivity, i);
    if (noise)
        tsr__diag(
            work->session, DIAG_verify_sensitive, &at, hint,
            "sharded and unsharded outputs differ by %.3g (%.3g of the largest magnitude), "
            "but %zu of %zu elements are rounding errors and were not compared: changing the "
            "last bits of sums changes integers, or numbers by more than %g %% of the largest "
            "magnitude",
            output->max_abs, output->max_rel, noise, tsr__compare_numbers(work->unsharded, i),
            100 * MOST_REL);
    else
        tsr__diag(work->session, DIAG_verify_sensitive, &at, hint,
                  "sharded and unsharded outputs differ by %.3g (%.3g of the largest magnitude), "
                  "but changing the last bits of sums changes the unsharded output by %.3g: "
                  "the model amplifies rounding errors",
                  output->max_abs, output->max_rel, sensitivity->changes[i].most);
}

// Prepares the changes of all outputs. Returns false if out of memory.
static bool prepare_sensitivity(struct sensitivity *sensitivity)
{
    struct work *work = sensitivity->work;
    size_t n = tsr_tensors_count(work->unsharded);
    sensitivity->changes = ARENA_ARRAY(&work->arena, struct changes, n + 1);
    for (size_t i = 0; sensitivity->changes && i < n; i++) {
        struct changes *at = &sensitivity->changes[i];
        if (tsr__is_float(tsr_tensors_dtype(work->unsharded, i)))
            at->limit = fmax(MOST_REL * tsr__compare_largest(work->unsharded, i), LEAST_ABS);
        at->noise =
            ARENA_ARRAY(&work->arena, unsigned char, tsr__compare_numbers(work->unsharded, i) + 1);
    }
    return !work->arena.failed;
}

bool tsr__verify_sensitivity(struct work *work, struct outcome *out)
{
    struct sensitivity sensitivity = {.work = work, .differing = out->differing};
    tsr_difference *outputs = out->outputs;
    if (work->options->tolerance > 0 || !prepare_sensitivity(&sensitivity))
        return false;
    // The difference is reported anyway, so a failure here is not.
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = run_all(&sensitivity, out);
    tsr__diag_back(work->session, &mark, false);
    if (st != TSR_OK || !shows_something(&sensitivity))
        return false;
    bool ok = true;
    for (size_t i = 0; i < out->facts.n_outputs; i++) {
        if (!outputs[i].ok && explains(&sensitivity, i, out->sharded)) {
            outputs[i].ok = true;
            report_sensitivity(&sensitivity, i, &outputs[i]);
        }
        ok = ok && outputs[i].ok;
    }
    return ok;
}
