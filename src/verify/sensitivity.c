// SPDX-License-Identifier: Apache-2.0
// sensitivity.c - checks whether the model amplifies rounding errors. Called only if sharded and
// unsharded outputs differ.
//
// Example: torch.cdist computes the distance of x and y as sqrt(x x - 2 x y + y y). For x near y,
// 100.00001 - 200 + 100 is mostly the rounding error of the three sums. Any other order of these
// sums gives another result, which is neither better nor worse.
//
// The unsharded model is run again with inputs whose last bit is changed. Such inputs are as good
// as the given ones, and so are their results. A sharded output that differs at most MARGIN times
// as much as these results, and in at most MARGIN times as many elements, is not an error of the
// sharding. If the model has no inputs to change, its weights are changed.
//
// Why elements are counted: the distances of equal points change by 1e-3, all others by 1e-7. A
// sharding error of 1e-3 in all distances must be found.
#include "verify/internal.h"
#include "verify/verify.h"
#include "tensors/tensors.h"

#include <float.h>
#include <math.h>

#define RUNS   4
#define MARGIN 4 // a few runs do not show the largest possible change
// Larger relative differences are never accepted: an output with less precision than a bfloat16
// would have shows nothing. Exception: differences of LEAST_ABS, a few rounding errors of 1.
// Sigmoid computes in the range 0 to 1, so if all its results are about 1e-7, they are mostly
// rounding errors.
#define MOST_REL  tsr__tolerance(TSR_BFLOAT16)
#define LEAST_ABS (MARGIN * (double)FLT_EPSILON)

struct sensitivity {
    struct work *work;
    uint64_t random;                   // state of the generator
    bool changed;                      // an element was changed
    double *changes;                   // by output: largest change in all runs
    const struct differing *differing; // by output: elements of the sharded run out of tolerance
    size_t *counts; // by output: elements that changed by 1 / MARGIN of the tolerance in one run
};

// ---- changing the last bit ---------------------------------------------------------------------

// Returns the next number of a generator (xorshift), the same ones on every machine.
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static bool is_float(tsr_dtype type)
{
    return type == TSR_FLOAT || type == TSR_DOUBLE || type == TSR_FLOAT16 || type == TSR_BFLOAT16;
}

// Makes the magnitude of a float one unit larger or smaller.
static void change_last_bit(unsigned char *at, size_t bytes, bool larger)
{
    uint64_t bits = 0; // tensors are little-endian: the lowest bytes come first
    memcpy(&bits, at, bytes);
    bits += larger ? 1 : UINT64_MAX;
    memcpy(at, &bits, bytes);
}

// Changes the last bit of about all elements. Integers stay: they are exact, and models compare
// masks and flags with 0 and 1. Other numbers are far from infinity and not 0.
static void change_elements(struct sensitivity *sensitivity, tsr_dtype type, void *data, size_t n)
{
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8;
    for (size_t i = 0; i < n / bytes; i++) {
        double value = tsr__compare_element(type, data, i);
        if (!isfinite(value) || value == rint(value))
            continue;
        bool larger = next_random(&sensitivity->random) >> 63;
        change_last_bit((unsigned char *)data + i * bytes, bytes, larger);
        sensitivity->changed = true;
    }
}

static tsr_status change_inputs(struct sensitivity *sensitivity, tsr_tensors *inputs)
{
    TRY(tsr__tensors_copy(sensitivity->work->inputs, inputs));
    for (size_t i = 0; i < tsr_tensors_count(inputs); i++) {
        struct tensor *tensor = inputs->at[i];
        size_t bytes = 0;
        const void *data = tsr_tensors_data(inputs, i, &bytes);
        if (data && is_float(tensor->type) && !tsr_tensors_sequence(inputs, i))
            change_elements(sensitivity, tensor->type, tensor->data, bytes);
    }
    return TSR_OK;
}

// Replaces an initializer of floats by a changed copy of it.
static tsr_status change_weight(struct sensitivity *sensitivity, tsr_graph *graph,
                                tsr_value *weight, size_t number)
{
    struct arena arena = {.session = sensitivity->work->session};
    const tsr_tensor *tensor = tsr_value_initializer(weight);
    struct str name = tsr__arena_printf(&arena, "tessera_changed_%zu", number);
    const void *bytes = NULL;
    size_t n = 0;
    tsr_status st = name.p ? tsr_tensor_data(tensor, &bytes, &n) : TSR_NOMEM;
    void *copy = st == TSR_OK ? tsr__arena_array(&arena, n + 1, 1, _Alignof(double)) : NULL;
    if (st == TSR_OK && !copy)
        st = TSR_NOMEM;
    if (st == TSR_OK) {
        memcpy(copy, bytes, n);
        change_elements(sensitivity, tsr_tensor_dtype(tensor), copy, n);
        tsr_value *by =
            tsr_graph_add_initializer(graph, name.p, tsr_tensor_dtype(tensor),
                                      tsr_tensor_rank(tensor), tsr_tensor_dims(tensor), copy, n);
        st = by ? tsr_value_replace_uses(weight, by, false) : TSR_NOMEM;
    }
    tsr__arena_free(&arena);
    return st;
}

// Writes a copy of the unsharded model with changed weights.
static tsr_status change_weights(struct sensitivity *sensitivity, const char *path)
{
    tsr_model *model;
    TRY(tsr_model_load(sensitivity->work->session, sensitivity->work->reference_path, &model));
    tsr_graph *graph = tsr_model_graph(model);
    tsr_status st = TSR_OK;
    for (size_t i = 0, n = tsr_graph_initializer_count(graph); i < n && st == TSR_OK; i++) {
        tsr_value *weight = tsr_graph_initializer(graph, i);
        if (!tsr_value_is_input(weight) &&
            is_float(tsr_tensor_dtype(tsr_value_initializer(weight))))
            st = change_weight(sensitivity, graph, weight, i);
    }
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, path);
    if (st == TSR_OK)
        st = tsr_model_save(model, path);
    tsr_model_free(model);
    return st;
}

// ---- running -----------------------------------------------------------------------------------

// Runs the unsharded model with changed inputs or weights, and keeps the largest change of each
// output.
static tsr_status run_changed(struct sensitivity *sensitivity, tsr_tensors *inputs, tsr_tensors *to)
{
    struct work *work = sensitivity->work;
    const char *path = work->reference_path;
    TRY(change_inputs(sensitivity, inputs));
    if (!sensitivity->changed) {
        path = tsr__arena_printf(&work->arena, "%s/changed.onnx", work->scratch.folder).p;
        if (!path)
            return TSR_NOMEM;
        TRY(change_weights(sensitivity, path));
        sensitivity->changed = false; // the inputs of the next run do not change either
    }
    TRY(tsr_run_model(work->session, path, &work->reference, inputs, to));
    for (size_t i = 0; i < tsr_tensors_count(work->unsharded); i++) {
        int64_t k = tsr_tensors_find(to, tsr_tensors_name(work->unsharded, i));
        tsr_difference found = tsr__compare(work->unsharded, i, to, k, 0);
        size_t count =
            tsr__compare_count(work->unsharded, i, to, k, sensitivity->differing[i].limit / MARGIN);
        if (found.max_abs > sensitivity->changes[i])
            sensitivity->changes[i] = found.max_abs;
        if (count > sensitivity->counts[i])
            sensitivity->counts[i] = count;
    }
    return TSR_OK;
}

static tsr_status run_all(struct sensitivity *sensitivity)
{
    tsr_session *session = sensitivity->work->session;
    tsr_status st = TSR_OK;
    for (int i = 0; i < RUNS && st == TSR_OK; i++) {
        tsr_tensors *inputs = NULL, *outputs = NULL;
        st = tsr_tensors_new(session, &inputs);
        if (st == TSR_OK)
            st = tsr_tensors_new(session, &outputs);
        if (st == TSR_OK)
            st = run_changed(sensitivity, inputs, outputs);
        tsr_tensors_free(outputs);
        tsr_tensors_free(inputs);
    }
    return st;
}

// ---- accepting ---------------------------------------------------------------------------------

// True if the changes explain the difference of output i. An infinite change explains nothing.
static bool explains(const struct sensitivity *sensitivity, size_t i, const tsr_difference *output)
{
    double change = sensitivity->changes[i];
    return is_float(tsr_tensors_dtype(sensitivity->work->unsharded, i)) && isfinite(change) &&
           output->max_abs <= MARGIN * change &&
           (output->max_rel <= MOST_REL || output->max_abs <= LEAST_ABS) &&
           sensitivity->differing[i].count <= MARGIN * sensitivity->counts[i];
}

static void report(struct work *work, const tsr_difference *output, double change)
{
    tsr__diag(work->session, DIAG_verify_sensitive,
              &PLACE(.file = str_of(work->path), .value = str_of(output->name)),
              "the difference is accepted; --tolerance sets another limit",
              "sharded and unsharded outputs differ by %.3g (%.3g of the largest magnitude), but "
              "changing the last bit of the inputs changes the unsharded output by %.3g: the model "
              "amplifies rounding errors",
              output->max_abs, output->max_rel, change);
}

bool tsr__verify_sensitivity(struct work *work, struct outcome *out)
{
    struct sensitivity sensitivity = {
        .work = work, .random = 0x9e3779b97f4a7c15, .differing = out->differing};
    tsr_difference *outputs = out->outputs;
    size_t n = out->n_outputs;
    sensitivity.changes = ARENA_ARRAY(&work->arena, double, n + 1);
    sensitivity.counts = ARENA_ARRAY(&work->arena, size_t, n + 1);
    if (!sensitivity.changes || !sensitivity.counts || work->options->tolerance > 0)
        return false;
    // The difference is reported anyway, so a failure here is not.
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = run_all(&sensitivity);
    tsr__diag_back(work->session, &mark, false);
    bool ok = st == TSR_OK;
    for (size_t i = 0; st == TSR_OK && i < n; i++) {
        if (!outputs[i].ok && explains(&sensitivity, i, &outputs[i])) {
            outputs[i].ok = true;
            report(work, &outputs[i], sensitivity.changes[i]);
        }
        ok = ok && outputs[i].ok;
    }
    return ok;
}
