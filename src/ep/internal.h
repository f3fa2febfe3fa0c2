// SPDX-License-Identifier: Apache-2.0
// internal.h - the execution provider (libtessera_ep.so): what its files share.
//
// One library may serve two copies of ONNX Runtime in a process (Python's onnxruntime and the one
// that onnxruntime-genai loads). Therefore no table of functions is global: a factory has the
// tables of the runtime that created it, and everything else refers to its factory.
#ifndef TSR_EP_INTERNAL_H
#define TSR_EP_INTERNAL_H

#include "ep/ort_ep.h"

#define EP_NAME "TesseraExecutionProvider"

// Functions of the ONNX Runtime that loaded the provider.
struct ep_api {
    const OrtApiBase *base;
    const OrtApi *ort;
    const OrtEpApi *ep;
    const OrtModelEditorApi *editor;
};

struct ep_factory {
    OrtEpFactory ort; // first
    struct ep_api api;
    const OrtLogger *logger;
    // The registration and every provider hold one reference: sessions may outlive the
    // registration.
    atomic_int references;
};

// The provider of one session of the application.
struct provider {
    OrtEp ort; // first
    struct ep_factory *factory;
    const OrtLogger *logger;
    tsr_session *session;
};

// ---- factory.c
void tsr__ep_factory_release(struct ep_factory *factory);

// ---- provider.c
OrtStatus *tsr__ep_provider_new(struct ep_factory *factory, const OrtSessionOptions *options,
                                const OrtLogger *logger, struct provider **out);
void tsr__ep_provider_free(struct provider *provider);
// Converts an error of ONNX Runtime to a diagnostic and releases it: TSR_ENGINE. NULL: TSR_OK.
tsr_status tsr__ep_report(tsr_session *session, const struct ep_api *api, OrtStatus *status);

// ---- graph_model.c
// Writes the graph as a model file into the folder and loads it. For models that the application
// has only in memory, or whose weights it replaced. The folder must live as long as the model.
tsr_status tsr__ep_graph_load(tsr_session *session, const struct ep_api *api, const OrtGraph *graph,
                              const char *folder, tsr_model **out) TSR_MUST_USE;

// ---- graph_matches.c
// Whether the model, read from the graph's model path, has the inputs, outputs and weights of the
// graph. False if the application replaced weights.
tsr_status tsr__ep_graph_matches(tsr_session *session, const struct ep_api *api,
                                 const OrtGraph *graph, const tsr_model *model,
                                 bool *matches) TSR_MUST_USE;

#endif
