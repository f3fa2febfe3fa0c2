// SPDX-License-Identifier: Apache-2.0
// lowered.c - copies the unsharded model into the temporary folder if ONNX Runtime computes it
// wrong (reference_model.c), if products must not round (float_products.c), or if ONNX Runtime may
// not support its operator set. In the last case the copy has the lowest operator set in which all
// its operators have the same meaning, as rank files have.
//
// Example: a model of operator set 24 whose operators changed last in 13, 18 and 22 is written with
// operator set 22.
#include "verify/internal.h"
#include "rules/rules.h"

#include <stdlib.h>

#define ALL_KNOW 21 // operator set that all supported releases of ONNX Runtime accept
#define KNOWS    23 // minor version: ONNX Runtime 1.23 supports all newer sets that matter here

// Returns the operator set to write instead of the model's; 0: the model's own. A lower set is used
// if the engine is older than 1.23, the model's set is above 21, the model has no functions, and
// its operators have the same meaning in the lower set.
static int64_t lowered_opset(struct work *work, const char *version)
{
    int64_t opset = tsr__graph_opset(tsr_model_graph(work->model), STR(""));
    if (opset <= ALL_KNOW || tsr_model_function_count(work->model) ||
        strncmp(version, "1.", 2) != 0 || strtol(version + 2, NULL, 10) >= KNOWS)
        return 0;
    const struct shapes *shapes = tsr__model_shapes(work->model);
    bool plain = shapes && tsr__types_plain(tsr__model_types(work->model, shapes));
    const tsr_node *why;
    int64_t least = tsr__model_changed(work->model, opset, plain, &why);
    return least < opset ? least : 0;
}

tsr_status tsr__verify_lowered(struct work *work, const char **path)
{
    const char *found, *version;
    *path = work->path;
    TRY(tsr_engine_open(work->session, NULL, &found, &version));
    int64_t least = lowered_opset(work, version);
    bool rewrites = tsr__reference_needs_copy(work->model);
    if (!least && !rewrites && !work->floats)
        return TSR_OK;
    tsr_model *model;
    struct str copy = tsr__arena_printf(&work->arena, "%s/whole.onnx", work->scratch.folder);
    tsr_status st = copy.p ? tsr_model_load(work->session, work->path, &model) : TSR_NOMEM;
    if (st != TSR_OK)
        return st;
    if (least)
        st = tsr_model_set_opset(model, "", least);
    if (st == TSR_OK && rewrites)
        st = tsr__reference_rewrite(&work->arena, model);
    if (st == TSR_OK)
        st = tsr__reference_use_floats(work, model);
    if (st == TSR_OK)
        st = tsr_model_copy_data(model, copy.p);
    if (st == TSR_OK)
        st = tsr_model_save(model, copy.p);
    tsr_model_free(model);
    *path = copy.p;
    return st;
}
