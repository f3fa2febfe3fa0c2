// SPDX-License-Identifier: Apache-2.0
// inputs.c - the inputs of a run: those of the fused node, and zeros or empty strings for unused
// inputs.
//
// ONNX Runtime removes inputs that no node reads from the fused node. The rank files still declare
// them, so the ranks get zeros.
#include "ep/internal.h"

// ---- inputs that nothing reads -----------------------------------------------------------------

// Returns the size that the first input with a dimension of this name gives it; 1: there is none.
static int64_t size_of(const struct fused *fused, const tsr_tensors *given, const char *symbol)
{
    const struct manifest *manifest = &fused->manifest;
    for (size_t i = 0; symbol && i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        int64_t at = tsr_tensors_find(given, port->name);
        if (at < 0 || given->at[at]->rank != port->rank)
            continue;
        for (int axis = 0; axis < port->rank; axis++)
            if (port->dims[axis].value < 0 && port->dims[axis].symbol &&
                strcmp(port->dims[axis].symbol, symbol) == 0)
                return given->at[at]->dims[axis];
    }
    return 1;
}

// Adds empty strings.
static tsr_status add_texts(const struct manifest_port *port, int rank, const int64_t *dims,
                            tsr_tensors *to)
{
    int64_t n = 1;
    struct arena arena = {.session = to->session};
    for (int axis = 0; axis < rank; axis++)
        if (!mul_ok(n, dims[axis], &n))
            return TSR_OK; // the ranks report that the input is missing
    struct str *texts = ARENA_ARRAY(&arena, struct str, (size_t)n);
    tsr_status st = TSR_NOMEM;
    if (texts)
        st = tsr__tensors_add_texts(to, str_of(port->name), rank, dims, texts);
    tsr__arena_free(&arena);
    return st;
}

static tsr_status add_zeros(const struct fused *fused, const struct manifest_port *port,
                            tsr_tensors *to)
{
    int64_t dims[RUN_MAX_RANK];
    struct tensor *made = NULL;
    int rank = port->rank < 0 ? 0 : port->rank;
    tsr_dtype type = tsr__dtype_named(port->type);
    if (rank > RUN_MAX_RANK || type == TSR_UNDEFINED)
        return TSR_OK; // the ranks report that it is missing
    for (int axis = 0; axis < rank; axis++) {
        dims[axis] = port->dims[axis].value;
        if (dims[axis] < 0)
            dims[axis] = size_of(fused, to, port->dims[axis].symbol);
    }
    if (type == TSR_STRING)
        return add_texts(port, rank, dims, to);
    tsr_status st = tsr__tensors_add(to, str_of(port->name), type, rank, dims, &made);
    if (st == TSR_OK && made->bytes)
        memset(made->data, 0, made->bytes);
    return st;
}

// ---- all of them -------------------------------------------------------------------------------

static tsr_status read_input(struct fused *fused, OrtKernelContext *context, size_t i,
                             tsr_tensors *to)
{
    const struct ep_api *api = &fused->provider->factory->api;
    tsr_session *session = fused->provider->session;
    const OrtValue *value = NULL;
    OrtStatus *failed = NULL;
    bool kept = false;
    tsr_status st =
        tsr__ep_report(session, api, api->ort->KernelContext_GetInput(context, i, &value));
    if (st == TSR_OK)
        st = tsr__ep_state_read(fused, value, fused->inputs[i], &kept);
    if (st != TSR_OK || kept)
        return st;
    if (tsr__ep_value_gpu(api, value) >= 0)
        st = tsr__ep_memory_input(fused, value, fused->inputs[i], to, &failed);
    else
        st = tsr__engine_view(session->engine, (OrtValue *)(uintptr_t)value, fused->inputs[i], to,
                              &failed);
    return failed ? tsr__ep_report(session, api, failed) : st;
}

tsr_status tsr__ep_inputs_read(struct fused *fused, OrtKernelContext *context, tsr_tensors *to)
{
    const struct manifest *manifest = &fused->manifest;
    tsr_status st = TSR_OK;
    for (size_t i = 0; i < fused->n_inputs && st == TSR_OK; i++)
        st = read_input(fused, context, i, to);
    if (manifest->n_inputs <= to->n)
        return st;
    for (size_t i = 0; i < manifest->n_inputs && st == TSR_OK; i++)
        if (tsr_tensors_find(to, manifest->inputs[i].name) < 0 &&
            !tsr__ep_is_past(fused, manifest->inputs[i].name))
            st = add_zeros(fused, &manifest->inputs[i], to);
    return st;
}
