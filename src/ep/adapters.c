// SPDX-License-Identifier: Apache-2.0
// adapters.c - detects LoRA adapters in the options of a run.
//
// The ranks get the options of the application's run, because these contain its terminate flag.
// Options may also have adapters: ONNX Runtime appends their tensors to the inputs of every run
// with these options. It has done so in the application's run. In the run of a rank this would
// fail, because the rank has shards of these inputs.
//
// ONNX Runtime has no function that lists adapters. A run of a model without inputs shows them: it
// is refused, because the tensors of the adapter are not inputs of the model.
#include "ep/internal.h"

// A model with one node, Constant, and no inputs (IR version 8, opset 13).
static const unsigned char probe_model[] =
    "\x08\x08\x3a\x36\x0a\x24\x12\x01y\"\x08"
    "Constant*\x15\x0a\x0bvalue_float\x15\0\0\0\0\xa0\x01\x01\x12\x01gb\x0b\x0a\x01y\x12\x06\x0a"
    "\x04\x08\x01\x12\0B\x04\x0a\0\x10\x0d";

// True if an adapter can have parameters of this model: floating-point inputs that are not caches,
// next to the inputs with the data.
static bool can_have_adapters(const struct fused *fused)
{
    static const char *const types[] = {"float32", "float16", "bfloat16", "float64"};
    const struct manifest *manifest = &fused->manifest;
    for (size_t i = 0; manifest->n_inputs > 1 && i < manifest->n_inputs; i++) {
        const struct manifest_port *port = &manifest->inputs[i];
        bool is_float = false;
        for (size_t k = 0; k < TSR_COUNT(types); k++)
            is_float |= port->type && strcmp(port->type, types[k]) == 0;
        bool is_cache = tsr__ep_is_past(fused, port->name);
        for (size_t k = 0; k < fused->n_caches; k++)
            is_cache |= strcmp(fused->inputs[fused->caches[k].input], port->name) == 0;
        if (is_float && !is_cache)
            return true;
    }
    return false;
}

static OrtStatus *open_probe(struct fused *fused)
{
    const struct engine *engine = tsr__engine_state(fused->provider->session);
    const OrtApi *api = fused->provider->factory->api.ort;
    OrtSessionOptions *options = NULL;
    OrtStatus *failed = api->CreateSessionOptions(&options);
    if (!failed)
        failed = api->SetIntraOpNumThreads(options, 1);
    if (!failed)
        failed = api->CreateSessionFromArray(engine->env, probe_model, sizeof probe_model - 1,
                                             options, &fused->probe);
    if (options)
        api->ReleaseSessionOptions(options);
    return failed;
}

// Runs the probe with the options. A set terminate flag fails too, but with another code.
bool tsr__ep_has_adapters(struct fused *fused, const OrtRunOptions *options)
{
    const OrtApi *api = fused->provider->factory->api.ort;
    static const char *const outputs[] = {"y"};
    OrtValue *out = NULL;
    if (!options || !can_have_adapters(fused))
        return false;
    OrtStatus *failed = fused->probe ? NULL : open_probe(fused);
    if (!failed)
        failed = api->Run(fused->probe, options, NULL, NULL, 0, outputs, 1, &out);
    if (out)
        api->ReleaseValue(out);
    if (!failed)
        return false;
    bool refused = api->GetErrorCode(failed) == ORT_INVALID_ARGUMENT;
    api->ReleaseStatus(failed);
    return refused;
}

void tsr__ep_adapters_close(struct fused *fused)
{
    if (fused->probe)
        fused->provider->factory->api.ort->ReleaseSession(fused->probe);
    fused->probe = NULL;
}
