// SPDX-License-Identifier: Apache-2.0
// opset_refusal.c - ONNX Runtime's word that it does not know an operator set, said so that one can do something
// about it: which version the file has and why, and which one this release knows.
#include "runtime/internal.h"

#include <stdlib.h>

// "... Current official support for domain ai.onnx is till opset 21."
static int64_t known_opset(const char *words)
{
    static const char before[] = "domain ai.onnx is till opset ";
    const char *at = strstr(words, before);
    return at ? strtoll(at + sizeof before - 1, NULL, 10) : 0;
}

static int64_t own_opset(const tsr_model *model)
{
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        if (!tsr_model_opset_domain(model, i)[0])
            return tsr_model_opset_version(model, i);
    return 0;
}

bool tsr__refused_opset(struct rank *rank, const struct place *at, const char *words)
{
    int64_t known = known_opset(words);
    tsr_model *model = NULL;
    if (!known || tsr_model_load(rank->session, rank->path, &model) != TSR_OK)
        return known;
    const char *why = tsr_model_metadata(model, "ai.tessera.opset");
    bool part = tsr_model_metadata(model, "ai.tessera.plan");
    tsr__diag(rank->session, DIAG_engine_opset, at,
              part ? "a newer ONNX Runtime, or a model exported for an older operator set"
                   : "a newer ONNX Runtime, or let `tessera partition` write the model for the "
                     "lowest operator set that means the same",
              "ONNX Runtime %s knows operator set %lld of ai.onnx at most, and this file needs "
              "%lld%s%s",
              rank->engine->version, (long long)known, (long long)own_opset(model),
              why ? ", because of " : "", why ? why : "");
    tsr_model_free(model);
    return true;
}
