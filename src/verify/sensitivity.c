// SPDX-License-Identifier: Apache-2.0
// sensitivity.c - checks whether the model amplifies rounding errors. Called only if sharded and
// unsharded outputs differ.
//
// Example: torch.cdist computes the distance of x and y as sqrt(x x - 2 x y + y y). For x near y,
// 100.00001 - 200 + 100 is mostly the rounding error of the three sums. Any other order of these
// sums gives another result, which is neither better nor worse.
//
// The unsharded model is run again with inputs and weights whose last bits are changed by as much
// as a sum of some hundred numbers is wrong: up to MOST_UNITS units. Such numbers are as good as
// the given ones, and so are their results. A sharded output that differs at most MARGIN times as
// much as these results, and in at most MARGIN times as many elements, is not an error of the
// sharding.
//
// Why elements are counted: the distances of equal points change by 1e-3, all others by 1e-7. A
// sharding error of 1e-3 in all distances must be found.
//
// Elements that are nothing but rounding errors are left out of the comparison: those that change
// by more than MOST_REL of the largest magnitude, or that become NaN. Example: the normalization of
// equal values divides x - mean, a rounding error, by its own magnitude, and is 1, -1 or 0 / 0.
#include "verify/internal.h"
#include "verify/verify.h"
#include "rules/rules.h"
#include "tensors/tensors.h"

#include <float.h>
#include <math.h>

#define RUNS       6
#define MARGIN     4 // a few runs do not show the largest possible change
#define MOST_UNITS 8 // 16-bit floats, whose sums are computed in float32: one unit
// An element with less precision than a bfloat16 would have shows nothing. Exception: differences
// of LEAST_ABS, a few rounding errors of 1. Sigmoid computes in the range 0 to 1, so if all its
// results are about 1e-7, they are mostly rounding errors.
#define MOST_REL  tsr__tolerance(TSR_BFLOAT16)
#define LEAST_ABS (MARGIN * (double)FLT_EPSILON)
// More weights than this are changed only if there are no inputs to change, because each run writes
// a copy of the model.
#define MOST_WEIGHTS ((size_t)64 << 20)

// What the changed runs show about one output.
struct changes {
    double limit; // differences beyond this show that an element is a rounding error
    double most;  // largest change of the other elements in all runs
    size_t count; // of these, elements that changed by 1 / MARGIN of the tolerance in one run
    unsigned char *noise; // by number: 1 if it is a rounding error
};

struct sensitivity {
    struct work *work;
    uint64_t random;                   // state of the generator
    bool changed;                      // an element of an input was changed
    bool weights;                      // weights are changed, too
    struct changes *changes;           // by output
    const struct differing *differing; // by output: elements of the sharded run out of tolerance
};

// ---- changing the last bits --------------------------------------------------------------------

// Returns the next number of a generator (xorshift), the same ones on every machine.
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// Makes the magnitude of a float, which is not 0, larger or smaller by 1 to MOST_UNITS units.
static void change_last_bits(unsigned char *at, size_t bytes, uint64_t random)
{
    uint64_t bits = 0; // tensors are little-endian: the lowest bytes come first
    memcpy(&bits, at, bytes);
    uint64_t units = bytes > 2 ? 1 + random % MOST_UNITS : 1;
    uint64_t magnitude = bits & (UINT64_MAX >> (65 - 8 * bytes));
    bits += random >> 63 || magnitude <= units ? units : 0 - units;
    memcpy(at, &bits, bytes);
}

// Changes the last bits of about all elements. Integers stay: they are exact, and models compare
// masks and flags with 0 and 1. Other numbers are far from infinity and not 0.
static void change_elements(struct sensitivity *sensitivity, tsr_dtype type, void *data, size_t n)
{
    size_t bytes = (size_t)tsr_dtype_bits(type) / 8;
    for (size_t i = 0; i < n / bytes; i++) {
        double value = tsr__compare_element(type, data, i);
        if (!isfinite(value) || value == rint(value))
            continue;
        change_last_bits((unsigned char *)data + i * bytes, bytes,
                         next_random(&sensitivity->random));
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
        if (data && tsr__is_float(tensor->type) && !tsr_tensors_sequence(inputs, i))
            change_elements(sensitivity, tensor->type, tensor->data, bytes);
    }
    return TSR_OK;
}

// Replaces a constant by a changed copy of its tensor, if that has floats.
static tsr_status change_weight(struct sensitivity *sensitivity, tsr_graph *graph,
                                tsr_value *weight, const tsr_tensor *tensor, size_t number)
{
    struct arena arena = {.session = sensitivity->work->session};
    if (!tensor || !tsr__is_float(tsr_tensor_dtype(tensor)))
        return TSR_OK;
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

// Changes the initializers that are not inputs, and the Constant nodes.
static tsr_status change_constants(struct sensitivity *sensitivity, tsr_graph *graph)
{
    tsr_status st = TSR_OK;
    size_t n = tsr_graph_initializer_count(graph), number = n;
    for (size_t i = 0; i < n && st == TSR_OK; i++) {
        tsr_value *weight = tsr_graph_initializer(graph, i);
        if (!tsr_value_is_input(weight))
            st = change_weight(sensitivity, graph, weight, tsr_value_initializer(weight), i);
    }
    for (tsr_node *node = tsr_graph_first(graph); node && st == TSR_OK; node = tsr_node_next(node))
        if (tsr__node_is_constant(node) && tsr_node_output(node, 0))
            st = change_weight(sensitivity, graph, tsr_node_output(node, 0),
                               tsr__node_constant(node), number++);
    return st;
}

// Writes a copy of the unsharded model with changed weights.
static tsr_status change_weights(struct sensitivity *sensitivity, const char *path)
{
    tsr_model *model;
    TRY(tsr_model_load(sensitivity->work->session, sensitivity->work->reference_path, &model));
    tsr_status st = change_constants(sensitivity, tsr_model_graph(model));
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, path);
    if (st == TSR_OK)
        st = tsr_model_save(model, path);
    tsr_model_free(model);
    return st;
}

// ---- running -----------------------------------------------------------------------------------

// True if the model is small enough to be copied with changed weights.
static bool has_few_weights(const tsr_model *model)
{
    const tsr_graph *graph = tsr_model_graph(model);
    size_t sum = 0;
    for (size_t i = 0; i < tsr_graph_initializer_count(graph); i++)
        sum += (size_t)int64_max(
            tsr_tensor_bytes(tsr_value_initializer(tsr_graph_initializer(graph, i))), 0);
    return sum <= MOST_WEIGHTS;
}

// Runs the model with the inputs and changed weights. If that is not possible, does not change
// weights any more. Example: the scale 1.5 of a Resize decides about sizes.
static tsr_status run_with_weights(struct sensitivity *sensitivity, const tsr_tensors *inputs,
                                   tsr_tensors *to)
{
    struct work *work = sensitivity->work;
    struct str path = tsr__arena_printf(&work->arena, "%s/changed.onnx", work->scratch.folder);
    if (!path.p)
        return TSR_NOMEM;
    tsr_status st = change_weights(sensitivity, path.p);
    if (st == TSR_OK)
        st = tsr_run_model(work->session, path.p, &work->reference, inputs, to);
    sensitivity->weights = st == TSR_OK;
    return st;
}

// Adds what a run with changed inputs or weights shows.
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

// Runs the unsharded model with changed inputs and weights.
static tsr_status run_changed(struct sensitivity *sensitivity, tsr_tensors *inputs, tsr_tensors *to)
{
    struct work *work = sensitivity->work;
    TRY(change_inputs(sensitivity, inputs));
    tsr_status st = TSR_ENGINE;
    if (sensitivity->weights || !sensitivity->changed)
        st = run_with_weights(sensitivity, inputs, to);
    if (st != TSR_OK && sensitivity->changed)
        st = tsr_run_model(work->session, work->reference_path, &work->reference, inputs, to);
    if (st == TSR_OK)
        keep_changes(sensitivity, to);
    return st;
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

static void report(const struct sensitivity *sensitivity, size_t i, const tsr_difference *output)
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
            "last bits of the inputs changes them by more than %g %% of the largest magnitude",
            output->max_abs, output->max_rel, noise, tsr__compare_numbers(work->unsharded, i),
            100 * MOST_REL);
    else
        tsr__diag(work->session, DIAG_verify_sensitive, &at, hint,
                  "sharded and unsharded outputs differ by %.3g (%.3g of the largest magnitude), "
                  "but changing the last bits of the inputs changes the unsharded output by %.3g: "
                  "the model amplifies rounding errors",
                  output->max_abs, output->max_rel, sensitivity->changes[i].most);
}

// Prepares the changes of all outputs. Returns false if out of memory.
static bool prepare(struct sensitivity *sensitivity)
{
    struct work *work = sensitivity->work;
    size_t n = tsr_tensors_count(work->unsharded);
    sensitivity->changes = ARENA_ARRAY(&work->arena, struct changes, n + 1);
    for (size_t i = 0; sensitivity->changes && i < n; i++) {
        struct changes *at = &sensitivity->changes[i];
        at->limit = fmax(MOST_REL * tsr__compare_largest(work->unsharded, i), LEAST_ABS);
        at->noise =
            ARENA_ARRAY(&work->arena, unsigned char, tsr__compare_numbers(work->unsharded, i) + 1);
    }
    sensitivity->weights = has_few_weights(work->model);
    return !work->arena.failed;
}

bool tsr__verify_sensitivity(struct work *work, struct outcome *out)
{
    struct sensitivity sensitivity = {
        .work = work, .random = 0x9e3779b97f4a7c15, .differing = out->differing};
    tsr_difference *outputs = out->outputs;
    if (work->options->tolerance > 0 || !prepare(&sensitivity))
        return false;
    // The difference is reported anyway, so a failure here is not.
    struct diag_mark mark = tsr__diag_mark(work->session);
    tsr_status st = run_all(&sensitivity);
    tsr__diag_back(work->session, &mark, false);
    if (st != TSR_OK || !shows_something(&sensitivity))
        return false;
    bool ok = true;
    for (size_t i = 0; i < out->facts.n_outputs; i++) {
        if (!outputs[i].ok && explains(&sensitivity, i, out->sharded)) {
            outputs[i].ok = true;
            report(&sensitivity, i, &outputs[i]);
        }
        ok = ok && outputs[i].ok;
    }
    return ok;
}
