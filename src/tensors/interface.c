// SPDX-License-Identifier: Apache-2.0
// interface.c - returns the inputs of the unsharded model of a partition, from the manifest, as a
// model without nodes.
//
// A rank file has only the inputs that the rank needs, and shards of those that stay sharded.
// Callers give the full inputs.
#include "tensors/tensors.h"

#include "bundle/bundle.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

// Adds the inputs of the manifest to the model. Dimensions of unknown size, with or without a name,
// are copied as they are.
static tsr_status add_inputs(tsr_model *model, const struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        tsr_value *value = tsr_graph_add_input(tsr_model_graph(model), port->name);
        if (!value)
            return TSR_NOMEM;
        TRY(tsr_value_set_type(value, tsr__dtype_named(port->type), port->rank, port->dims));
    }
    return TSR_OK;
}

// True if all inputs are tensors of known rank. Otherwise the inputs of the rank file are used.
static bool are_tensors(const struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->n_inputs; i++)
        if (!tsr__dtype_named(manifest->inputs[i].type) || manifest->inputs[i].rank < 0)
            return false;
    return true;
}

// Stores the folder of a rank file in `out`. Returns false if the model is not a rank file, or if
// the folder has no manifest. So a copied rank file is treated as an ordinary model.
static bool folder_of(const tsr_model *rank, char *out, size_t cap)
{
    const char *path = tsr_model_path(rank);
    char manifest[PATH_MAX];
    struct str folder = tsr__path_folder(path);
    if (!path[0] || !tsr_model_metadata(rank, "ai.tessera.rank"))
        return false;
    if ((size_t)snprintf(out, cap, STR_FMT, STR_ARG(folder)) >= cap ||
        (size_t)snprintf(manifest, sizeof manifest, "%s/manifest.json", out) >= sizeof manifest)
        return false;
    return access(manifest, R_OK) == 0;
}

tsr_status tsr__unsharded_inputs(const tsr_model *rank, tsr_model **out)
{
    char folder[PATH_MAX];
    struct bundle bundle;
    tsr_session *session = tsr_model_session(rank);
    *out = NULL;
    if (!folder_of(rank, folder, sizeof folder))
        return TSR_OK;
    struct arena arena = {.session = session};
    // A corrupt manifest is an error: falling back to the rank file would use the inputs of one
    // rank as those of the model.
    tsr_status st = tsr__bundle_open(session, &arena, folder, &bundle);
    bool opened = st == TSR_OK;
    if (opened && are_tensors(&bundle.manifest)) {
        st = tsr_model_new(session, "inputs", 8, out);
        if (st == TSR_OK)
            st = add_inputs(*out, &bundle.manifest);
        if (st != TSR_OK) {
            tsr_model_free(*out);
            *out = NULL;
        }
    }
    if (opened)
        tsr__bundle_close(&bundle);
    tsr__arena_free(&arena);
    return st;
}
