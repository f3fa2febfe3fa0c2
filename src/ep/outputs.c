// SPDX-License-Identifier: Apache-2.0
// outputs.c - outputs whose shape is known before the run: the ranks write them to the
// application's memory, so that nothing is copied after the run.
//
// The sizes of an output are numbers, or names that inputs have, too:
//
//     attention_mask [batch, total]   present.0.key [batch, 8, total, 64]
//     run 1   mask [1, 512]: expected [1, 8, 512, 64], returned the same; copied
//     run 2   mask [1, 513]: expected [1, 8, 513, 64], written in place
//
// A name may be wrong, so the shape is used only if the last run returned what was expected.
#include "ep/internal.h"
#include "runtime/runtime.h"

static const struct manifest_port *find_port(const struct manifest_port *ports, size_t n,
                                             const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(ports[i].name, name) == 0)
            return &ports[i];
    return NULL;
}

// Finds an input and its axis that have the named size; false: none.
static bool find_source(const struct fused *fused, const char *symbol, struct expected_dim *out)
{
    const struct manifest *manifest = &fused->manifest;
    for (size_t i = 0; symbol && i < fused->n_inputs; i++) {
        const struct manifest_port *port =
            find_port(manifest->inputs, manifest->n_inputs, fused->inputs[i]);
        for (int axis = 0; port && axis < port->rank; axis++)
            if (port->dims[axis].value < 0 && port->dims[axis].symbol &&
                strcmp(port->dims[axis].symbol, symbol) == 0) {
                *out = (struct expected_dim){.size = -1, .input = i, .axis = axis};
                return true;
            }
    }
    return false;
}

static tsr_status describe(struct fused *fused, size_t output)
{
    struct expected_output *out = &fused->expected[output];
    const struct manifest *manifest = &fused->manifest;
    const struct manifest_port *port =
        find_port(manifest->outputs, manifest->n_outputs, fused->outputs[output]);
    out->rank = -1;
    if (!port || port->rank < 0 || port->rank > RUN_MAX_RANK)
        return TSR_OK;
    out->type = tsr__ep_type_named(port->type);
    out->from = ARENA_ARRAY(&fused->arena, struct expected_dim, (size_t)port->rank + 1);
    out->dims = ARENA_ARRAY(&fused->arena, int64_t, (size_t)port->rank + 1);
    if (!out->from || !out->dims)
        return TSR_NOMEM;
    for (int axis = 0; axis < port->rank; axis++) {
        out->from[axis].size = port->dims[axis].value;
        if (port->dims[axis].value < 0 &&
            !find_source(fused, port->dims[axis].symbol, &out->from[axis]))
            return TSR_OK;
    }
    out->rank = port->rank;
    return TSR_OK;
}

tsr_status tsr__ep_outputs_find(struct fused *fused)
{
    fused->expected = ARENA_ARRAY(&fused->arena, struct expected_output, fused->n_outputs + 1);
    tsr_status st = fused->expected ? TSR_OK : TSR_NOMEM;
    for (size_t i = 0; i < fused->n_outputs && st == TSR_OK; i++)
        st = describe(fused, i);
    return st;
}

// ---- a run -------------------------------------------------------------------------------------

static const struct tensor *input_at(const struct fused *fused, const tsr_tensors *inputs, size_t i)
{
    if (i < inputs->n && strcmp(inputs->at[i]->name, fused->inputs[i]) == 0)
        return inputs->at[i];
    int64_t at = tsr_tensors_find(inputs, fused->inputs[i]);
    return at < 0 ? NULL : inputs->at[at];
}

// Computes the shape that the run should return; false: unknown.
static bool expect(const struct fused *fused, const tsr_tensors *inputs,
                   struct expected_output *out)
{
    for (int axis = 0; axis < out->rank; axis++) {
        const struct expected_dim *from = &out->from[axis];
        out->dims[axis] = from->size;
        if (from->size >= 0)
            continue;
        const struct tensor *input = input_at(fused, inputs, from->input);
        if (!input || input->rank <= from->axis)
            return false;
        out->dims[axis] = input->dims[from->axis];
    }
    return out->rank >= 0;
}

// True if the output is a cache whose shape may differ from the expected one, because its past is
// longer, has another rank, is missing, or is used in part.
static bool is_longer_cache(const struct fused *fused, const tsr_tensors *inputs, size_t output)
{
    const struct expected_output *expected = &fused->expected[output];
    for (size_t i = 0; i < fused->n_caches; i++) {
        const struct cache_pair *cache = &fused->caches[i];
        if (cache->output != output)
            continue;
        const struct tensor *past = input_at(fused, inputs, cache->input);
        if (!past || past->rank != expected->rank || cache->partial)
            return true;
        for (int axis = 0; axis < past->rank; axis++)
            if (past->dims[axis] > expected->dims[axis])
                return true;
    }
    return false;
}

// Returns 1 + the GPU of the first input in GPU memory; 0: all are in host memory.
static int device_of(const tsr_tensors *inputs)
{
    for (size_t i = 0; i < inputs->n; i++)
        if (inputs->at[i]->device)
            return inputs->at[i]->device;
    return 0;
}

static tsr_status place(const struct fused *fused, OrtKernelContext *context, size_t output,
                        int device, tsr_tensors *places)
{
    const struct ep_api *api = &fused->provider->factory->api;
    const struct expected_output *expected = &fused->expected[output];
    struct tensor full = {.name = (char *)(uintptr_t)fused->outputs[output],
                          .type = expected->type,
                          .rank = expected->rank,
                          .dims = expected->dims,
                          .device = device};
    OrtValue *value = NULL;
    void *data = NULL;
    if (tsr_dtype_bits(full.type) < 8 || tsr__tensor_elements(&full) < 1 ||
        !tsr__job_can_place(fused->job, &full))
        return TSR_OK;
    OrtStatus *failed =
        api->ort->KernelContext_GetOutput(context, output, full.dims, (size_t)full.rank, &value);
    if (!failed && value)
        failed = api->ort->GetTensorMutableData(value, &data);
    tsr_status st = tsr__ep_report(fused->provider->session, api, failed);
    if (st != TSR_OK || !data || 1 + tsr__ep_value_gpu(api, value) != device)
        return st;
    return tsr__tensors_add_foreign(places, str_of(full.name), full.type, full.rank, full.dims,
                                    &(struct foreign){.data = data, .device = device});
}

tsr_status tsr__ep_outputs_place(struct fused *fused, OrtKernelContext *context,
                                 const tsr_tensors *inputs, tsr_tensors *places)
{
    int device = device_of(inputs);
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < fused->n_outputs && st == TSR_OK; i++) {
        struct expected_output *expected = &fused->expected[i];
        expected->known = expect(fused, inputs, expected) && !is_longer_cache(fused, inputs, i) &&
                          !tsr__ep_is_present(fused, fused->outputs[i]) &&
                          tsr_tensors_find(places, fused->outputs[i]) < 0;
        if (expected->known && expected->trusted)
            st = place(fused, context, i, device, places);
    }
    return st;
}

void tsr__ep_outputs_returned(struct fused *fused, size_t output, int rank, const int64_t *dims)
{
    struct expected_output *expected = &fused->expected[output];
    if (!expected->known)
        return;
    expected->trusted =
        rank == expected->rank &&
        (rank == 0 || memcmp(dims, expected->dims, (size_t)rank * sizeof *dims) == 0);
}

void tsr__ep_outputs_note(struct fused *fused, const tsr_tensors *outputs)
{
    for (size_t i = 0; i < fused->n_outputs; i++) {
        int64_t at = outputs ? tsr_tensors_find(outputs, fused->outputs[i]) : -1;
        if (!outputs)
            fused->expected[i].trusted = false;
        else if (at >= 0)
            tsr__ep_outputs_returned(fused, i, outputs->at[at]->rank, outputs->at[at]->dims);
    }
}
