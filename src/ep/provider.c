// SPDX-License-Identifier: Apache-2.0
// provider.c - the execution provider in one session of the application.
#include "ep/internal.h"

tsr_status tsr__ep_report(tsr_session *session, const struct ep_api *api, OrtStatus *status)
{
    if (!status)
        return TSR_OK;
    tsr__diag(session, DIAG_engine_failed, NULL, NULL, "ONNX Runtime: %s",
              api->ort->GetErrorMessage(status));
    api->ort->ReleaseStatus(status);
    return TSR_ENGINE;
}

static const char *get_name(const OrtEp *ep)
{
    (void)ep;
    return EP_NAME;
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info)
{
    (void)ep, (void)graph, (void)info;
    return NULL;
}

static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t n,
                          OrtNodeComputeInfo **infos, OrtNode **context_nodes)
{
    (void)graphs, (void)fused, (void)n, (void)infos, (void)context_nodes;
    return ((struct provider *)ep)
        ->factory->api.ort->CreateStatus(ORT_NOT_IMPLEMENTED, "no node was claimed");
}

static void release_infos(OrtEp *ep, OrtNodeComputeInfo **infos, size_t n)
{
    (void)ep, (void)infos, (void)n;
}

static const OrtEp functions = {
    .ort_version_supported = ORT_API_EP,
    .GetName = get_name,
    .GetCapability = get_capability,
    .Compile = compile,
    .ReleaseNodeComputeInfos = release_infos,
};

OrtStatus *tsr__ep_provider_new(struct ep_factory *factory, const OrtSessionOptions *options,
                                const OrtLogger *logger, struct provider **out)
{
    (void)options;
    tsr_session *session = tsr_session_new(NULL);
    struct provider *provider = session ? tsr__alloc(session, sizeof *provider) : NULL;
    if (!provider) {
        tsr_session_free(session);
        return factory->api.ort->CreateStatus(ORT_FAIL, "out of memory");
    }
    *provider = (struct provider){
        .ort = functions, .factory = factory, .logger = logger, .session = session};
    atomic_fetch_add(&factory->references, 1);
    *out = provider;
    return NULL;
}

void tsr__ep_provider_free(struct provider *provider)
{
    tsr_session *session = provider->session;
    tsr__ep_factory_release(provider->factory);
    tsr__free(session, provider, sizeof *provider);
    tsr_session_free(session);
}
