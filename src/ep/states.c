// SPDX-License-Identifier: Apache-2.0
// states.c - states of EPContext models: caches that stay with the ranks between runs
// (`tessera partition --layout context --state PAST=PRESENT`).
//
// The application gets a handle in place of each state. The handle is an empty tensor with one
// dimension more than the state; the last dimension is the number of the run. A program that passes
// `present` to the next run as `past` needs no change. Example:
//
//     run 1   past [1,4,0,16], an empty cache     present [0,0,0,0,1]
//     run 2   past [0,0,0,0,1]: continues         present [0,0,0,0,2]
//     run 3   past [1,4,0,16]: starts again       present [0,0,0,0,3]
//     run 4   past [0,0,0,0,1]: an error, because the ranks keep only the state of the last run
#include "ep/internal.h"

// Returns the state whose input (or output) has this name; NULL: it is not a state.
static const struct manifest_state *find_state(const struct manifest *manifest, const char *input,
                                               const char *output)
{
    for (size_t i = 0; i < manifest->n_states; i++)
        if ((input && strcmp(manifest->states[i].input, input) == 0) ||
            (output && strcmp(manifest->states[i].output, output) == 0))
            return &manifest->states[i];
    return NULL;
}

bool tsr__ep_is_past(const struct fused *fused, const char *name)
{
    return find_state(&fused->manifest, name, NULL) != NULL;
}

bool tsr__ep_is_present(const struct fused *fused, const char *name)
{
    return find_state(&fused->manifest, NULL, name) != NULL;
}

static bool is_handle(const struct manifest_port *port, const struct value_shape *shape)
{
    if (port->rank < 0 || shape->rank > RUN_MAX_RANK || shape->rank != (size_t)port->rank + 1)
        return false;
    for (int axis = 0; axis < port->rank; axis++)
        if (shape->dims[axis] != 0)
            return false;
    return true;
}

static tsr_status check_handle(const struct fused *fused, const struct manifest_port *port,
                               int64_t run)
{
    struct place at = PLACE_NONE;
    if (fused->has_states && run == fused->n_runs)
        return TSR_OK;
    at.value = str_of(port->name);
    return tsr__fail(fused->provider->session, TSR_INVALID, DIAG_state_gone, &at,
                     "pass the output of the session's last run, or a tensor to start again",
                     "the state after run %lld of this session no longer exists", (long long)run);
}

tsr_status tsr__ep_state_read(struct fused *fused, const OrtValue *value, const char *name,
                              bool *kept)
{
    const struct manifest *manifest = &fused->manifest;
    const struct ep_api *api = &fused->provider->factory->api;
    struct value_shape shape;
    *kept = false;
    if (!tsr__ep_is_past(fused, name))
        return TSR_OK;
    if (fused->keeps) { // kept.c reads its address
        *kept = true;
        return TSR_OK;
    }
    const struct manifest_port *port =
        tsr__manifest_port(manifest->inputs, manifest->n_inputs, name);
    if (!port)
        return TSR_OK;
    TRY(tsr__ep_report(fused->provider->session, api, tsr__engine_shape(api->ort, value, &shape)));
    *kept = is_handle(port, &shape);
    if (*kept)
        return check_handle(fused, port, shape.dims[port->rank]);
    // EPContext models declare no shape for states, so ONNX Runtime has not checked it. With a
    // wrong shape, ranks that run as processes would terminate.
    return tsr__manifest_port_fits(fused->provider->session, port, (int)shape.rank, shape.dims);
}

OrtStatus *tsr__ep_state_give(const struct fused *fused, OrtKernelContext *context, size_t output)
{
    const OrtApi *ort = fused->provider->factory->api.ort;
    const struct manifest *manifest = &fused->manifest;
    const struct manifest_port *port =
        tsr__manifest_port(manifest->outputs, manifest->n_outputs, fused->outputs[output]);
    int64_t dims[RUN_MAX_RANK] = {0};
    OrtValue *value = NULL;
    if (!port || port->rank < 0 || port->rank >= RUN_MAX_RANK)
        return ort->CreateStatus(ORT_FAIL, "Tessera: the manifest has no rank for a state");
    dims[port->rank] = fused->n_runs;
    return ort->KernelContext_GetOutput(context, output, dims, (size_t)port->rank + 1, &value);
}
