// SPDX-License-Identifier: Apache-2.0
// provider.c - the callbacks of the execution provider in one session of the application, from the
// creation of the session to its end.
//
// ONNX Runtime only logs errors of GetCapability and then runs the model elsewhere. So Compile
// reports every error that must fail the session.
#include "ep/graph.h"

#include <stdio.h>

#define ERROR_TEXT 4000

// ---- errors and messages -----------------------------------------------------------------------

tsr_status tsr__ep_report(tsr_session *session, const struct ep_api *api, OrtStatus *status)
{
    if (!status)
        return TSR_OK;
    tsr__diag(session, DIAG_engine_failed, NULL, NULL, "ONNX Runtime: %s",
              api->ort->GetErrorMessage(status));
    api->ort->ReleaseStatus(status);
    return TSR_ENGINE;
}

// Replaces options of the command in a diagnostic by those of the provider, in place. Texts in
// backquotes are commands and stay. Example: "(--memory 246081)" becomes "(memory=246081)".
static void use_provider_options(char *text)
{
    static const char *const names[][2] = {{"--memory ", "memory="},
                                           {"--dim", "dims"},
                                           {"--devices ", "devices="},
                                           {"--transport ", "transport="},
                                           {"--threads ", "threads="}};
    bool is_command = false;
    char *to = text;
    for (const char *from = text; *from;) {
        size_t i = is_command ? TSR_COUNT(names) : 0;
        while (i < TSR_COUNT(names) && strncmp(from, names[i][0], strlen(names[i][0])) != 0)
            i++;
        if (i == TSR_COUNT(names)) {
            is_command ^= *from == '`';
            *to++ = *from++;
            continue;
        }
        from += strlen(names[i][0]);
        for (const char *name = names[i][1]; *name; name++) // never longer than the option
            *to++ = *name;
    }
    *to = 0;
}

OrtStatus *tsr__ep_failed(const struct ep_api *api, tsr_session *session, tsr_status status)
{
    char text[ERROR_TEXT];
    size_t at = (size_t)snprintf(text, sizeof text, "Tessera: %s", tsr_status_text(status));
    for (size_t i = 0; i < tsr_finding_count(session); i++) {
        if (tsr_finding_value(session, i).severity != TSR_ERROR || at >= sizeof text)
            continue;
        int added = snprintf(text + at, sizeof text - at, "\n%s", tsr_finding_text(session, i));
        at += added > 0 ? (size_t)added : 0;
    }
    tsr_finding_clear(session);
    use_provider_options(text);
    return api->ort->CreateStatus(status == TSR_USAGE ? ORT_INVALID_ARGUMENT : ORT_FAIL, text);
}

void tsr__ep_log(const struct provider *provider, int level, const char *message)
{
    const OrtApi *ort = provider->factory->api.ort;
    OrtStatus *failed =
        ort->Logger_LogMessage(provider->logger, level, message, "tessera", 0, EP_NAME);
    if (failed)
        ort->ReleaseStatus(failed);
}

static void log_reason(const struct provider *provider, const char *reason)
{
    char message[400];
    snprintf(message, sizeof message, "the model is not sharded: %s", reason);
    tsr__ep_log(provider, ORT_LOG_WARNING, message);
}

// Logs the session's warnings and removes them. Skips warnings about inputs and outputs that cannot
// stay sharded: the provider requested that, not the user.
static void log_warnings(struct provider *provider)
{
    tsr_session *session = provider->session;
    for (size_t i = 0; i < tsr_finding_count(session); i++) {
        tsr_finding finding = tsr_finding_value(session, i);
        if (finding.severity == TSR_WARNING && strcmp(finding.code, "partition-port-whole") != 0)
            tsr__ep_log(provider, ORT_LOG_WARNING, tsr_finding_text(session, i));
    }
    tsr_finding_clear(session);
}

// ---- claiming ----------------------------------------------------------------------------------

static OrtStatus *fuse_all(const struct claim *claim, OrtEpGraphSupportInfo *info)
{
    // Without this option, the initializers would be inputs of the node and in memory twice.
    OrtNodeFusionOptions options = {ORT_API_EP, .drop_constant_initializers = true};
    return claim->api->ep->EpGraphSupportInfo_AddNodesToFuse(info, claim->nodes, claim->n_nodes,
                                                             &options);
}

// Claims EPContext nodes that this provider wrote.
static OrtStatus *claim_contexts(struct claim *claim, OrtEpGraphSupportInfo *info)
{
    OrtNodeFusionOptions options = {ORT_API_EP, .drop_constant_initializers = true};
    for (size_t i = 0; i < claim->n_nodes; i++) {
        bool context = false;
        TRY(tsr__ep_is_context(claim->api, claim->nodes[i], claim->arena, &context));
        if (!context)
            continue;
        claim->has_context = true;
        TRY(claim->api->ep->EpGraphSupportInfo_AddNodesToFuse(info, &claim->nodes[i], 1, &options));
    }
    return NULL;
}

// Claims nodes of a model that cannot be run, so that Compile is called and returns the error.
// Function calls are not claimed, because ONNX Runtime would then not inline them.
static OrtStatus *fuse_to_fail(struct claim *claim, OrtEpGraphSupportInfo *info)
{
    if (claim->has_unknown) {
        claim->nodes = &claim->known;
        claim->n_nodes = claim->known ? 1 : 0;
    }
    return claim->n_nodes ? fuse_all(claim, info) : NULL;
}

// A program that sets options wants the provider. Without any, ONNX Runtime may have selected it.
static tsr_status refuse_without_devices(const struct provider *provider)
{
    return tsr__fail(provider->session, TSR_USAGE, DIAG_ep_option, &PLACE(.value = STR("devices")),
                     "set it to the number of devices, or set no option of the provider",
                     "the option that says on how many devices the model runs is missing");
}

static OrtStatus *claim_graph(struct provider *provider, struct claim *claim, const OrtGraph *graph,
                              OrtEpGraphSupportInfo *info)
{
    struct graph_reader reader = {claim->api->ort, claim->arena};
    struct graph_nodes nodes;
    const OrtNode *parent = NULL;
    TRY(tsr__ep_graph_nodes(&reader, graph, &nodes));
    claim->nodes = nodes.at;
    claim->n_nodes = nodes.n;
    TRY(claim->api->ort->Graph_GetParentNode(graph, &parent));
    if (claim->n_nodes == 0)
        return NULL;
    TRY(claim_contexts(claim, info));
    if (claim->has_context || !provider->options.given)
        return NULL;
    if (!provider->options.devices && provider->options_status == TSR_OK)
        provider->options_status = refuse_without_devices(provider);
    if (provider->options_status != TSR_OK) // Compile reports the error
        return parent ? NULL : fuse_all(claim, info);
    if (parent) // a subgraph: taken with the main graph, or not at all
        return NULL;
    TRY(tsr__ep_check_graph(claim, graph));
    if (!claim->reason[0])
        return fuse_all(claim, info);
    if (!claim->has_unknown)
        log_reason(provider, claim->reason);
    return provider->options.strict ? fuse_to_fail(claim, info) : NULL;
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info)
{
    struct provider *provider = (struct provider *)ep;
    struct arena arena;
    struct claim claim = {
        .api = &provider->factory->api, .arena = &arena, .on_gpu = provider->on_gpu};
    tsr__arena_init(&arena, provider->session);
    OrtStatus *status = claim_graph(provider, &claim, graph, info);
    memcpy(provider->reason, claim.reason, sizeof claim.reason);
    provider->logs_at_run = claim.has_unknown;
    tsr__arena_free(&arena);
    return status;
}

// ---- compiling ---------------------------------------------------------------------------------

static tsr_status decline(struct provider *provider)
{
    return tsr__fail(
        provider->session, TSR_UNSUPPORTED, DIAG_ep_declined, NULL,
        "to run it unsharded, set strict=False in Python, or the provider option strict=0",
        "the execution provider cannot take this model: %s", provider->reason);
}

// Fails a session of the application that has the option `strict` and whose nodes are all custom
// operators. In GetCapability they could still be functions, so no node was claimed and Compile was
// not called.
static OrtStatus *refuse_if_strict(struct provider *provider)
{
    if (!provider->options.strict || provider->compiled || !provider->reason[0])
        return NULL;
    return tsr__ep_failed(&provider->factory->api, provider->session, decline(provider));
}

static OrtStatus *on_initialization_end(OrtEp *ep)
{
    return refuse_if_strict((struct provider *)ep);
}

// True if the application has requested several devices, and they neither share nor divide work.
static bool shards_nothing(const struct fused *fused)
{
    const struct ep_options *options = &fused->provider->options;
    const tsr_topology *topology = options->plan_options.topology;
    int64_t devices = topology ? tsr_topology_devices(topology) : options->plan_options.devices;
    bool chosen = options->devices && strcmp(options->devices, "auto") == 0; // one may be best
    return devices > 1 && !chosen && fused->manifest.cut_nodes == 0 &&
           fused->manifest.n_collectives == 0;
}

// Reports that one device computes everything: a warning, with the option `strict` an error.
static tsr_status report_unsharded(const struct fused *fused)
{
    static const char text[] = "no node of the model is sharded: one device computes all of it";
    tsr_session *session = fused->provider->session;
    if (fused->provider->options.strict)
        return tsr__fail(session, TSR_UNSUPPORTED, DIAG_ep_declined, NULL,
                         "give larger sizes in the option dims; `tessera rules` lists what can be "
                         "sharded. To run it on one device, set strict=False in Python, or the "
                         "provider option strict=0",
                         "%s", text);
    tsr__diag(session, DIAG_ep_unsharded, NULL,
              "one device may be faster; with strict=1 nodes are sharded wherever possible", "%s",
              text);
    return TSR_OK;
}

static OrtStatus *compile(OrtEp *ep, const OrtGraph **graphs, const OrtNode **nodes, size_t n,
                          OrtNodeComputeInfo **infos, OrtNode **context_nodes)
{
    struct provider *provider = (struct provider *)ep;
    tsr_status st = provider->options_status;
    provider->compiled = true;
    if (st == TSR_OK && provider->reason[0])
        st = decline(provider);
    for (size_t i = 0; i < n; i++)
        infos[i] = NULL;
    for (size_t i = 0; i < n && st == TSR_OK; i++) {
        struct fused *fused = NULL;
        st = tsr__ep_fused_new(provider, graphs[i], nodes[i], &fused);
        if (fused)
            infos[i] = &fused->ort; // ONNX Runtime releases it, also after an error
        if (st == TSR_OK && shards_nothing(fused))
            st = report_unsharded(fused);
        if (st == TSR_OK && provider->options.context && fused->parts.context)
            st = tsr__ep_context_node(fused, nodes[i], &context_nodes[i]);
    }
    if (st != TSR_OK)
        return tsr__ep_failed(&provider->factory->api, provider->session, st);
    log_warnings(provider);
    return NULL;
}

static void release_infos(OrtEp *ep, OrtNodeComputeInfo **infos, size_t n)
{
    (void)ep;
    for (size_t i = 0; i < n; i++)
        tsr__ep_fused_free((struct fused *)infos[i]);
}

// ---- runs --------------------------------------------------------------------------------------

static OrtStatus *on_run_start(OrtEp *ep, const OrtRunOptions *options)
{
    struct provider *provider = (struct provider *)ep;
    pthread_mutex_lock(&provider->lock);
    // Before 1.27 ONNX Runtime does not report the end of the initialization.
    OrtStatus *refused = refuse_if_strict(provider);
    if (refused) {
        pthread_mutex_unlock(&provider->lock);
        return refused;
    }
    if (provider->n_listed < EP_MAX_RUNS)
        provider->runs[provider->n_listed++] = (struct active_run){pthread_self(), options};
    provider->n_runs++;
    if (provider->logs_at_run)
        log_reason(provider, provider->reason);
    provider->logs_at_run = false;
    pthread_mutex_unlock(&provider->lock);
    return NULL;
}

static OrtStatus *on_run_end(OrtEp *ep, const OrtRunOptions *options, bool synchronize)
{
    struct provider *provider = (struct provider *)ep;
    (void)synchronize;
    pthread_mutex_lock(&provider->lock);
    provider->n_runs--;
    for (size_t i = 0; i < provider->n_listed; i++) {
        const struct active_run *run = &provider->runs[i];
        if (run->options == options && pthread_equal(run->thread, pthread_self())) {
            provider->runs[i] = provider->runs[--provider->n_listed];
            break;
        }
    }
    pthread_mutex_unlock(&provider->lock);
    return NULL;
}

// Returns the options of the current run. With ORT_PARALLEL, Compute may run in another thread than
// the caller's Run. The run is then known only if no other run is active.
const OrtRunOptions *tsr__ep_run_options(struct provider *provider)
{
    const OrtRunOptions *found = NULL;
    pthread_mutex_lock(&provider->lock);
    if (provider->n_runs == 1 && provider->n_listed == 1)
        found = provider->runs[0].options;
    for (size_t i = 0; i < provider->n_listed; i++)
        if (pthread_equal(provider->runs[i].thread, pthread_self()))
            found = provider->runs[i].options;
    pthread_mutex_unlock(&provider->lock);
    return found;
}

// ---- the provider ------------------------------------------------------------------------------

static const char *get_name(const OrtEp *ep)
{
    (void)ep;
    return EP_NAME;
}

static const char *get_context_version(OrtEp *ep, const OrtGraph *graph)
{
    (void)ep, (void)graph;
    return CONTEXT_VERSION;
}

static OrtStatus *is_concurrent_run_supported(OrtEp *ep, bool *out)
{
    (void)ep;
    *out = true; // runs of one node wait for each other
    return NULL;
}

static const OrtEp functions = {
    .ort_version_supported = ORT_API_OF_EP,
    .GetName = get_name,
    .GetCapability = get_capability,
    .Compile = compile,
    .ReleaseNodeComputeInfos = release_infos,
    .OnRunStart = on_run_start,
    .GetCompiledModelCompatibilityInfo = get_context_version,
    .OnRunEnd = on_run_end,
    .IsConcurrentRunSupported = is_concurrent_run_supported,
    .OnSessionInitializationEnd = on_initialization_end,
};

OrtStatus *tsr__ep_provider_new(struct ep_factory *factory, const OrtSessionOptions *options,
                                const OrtLogger *logger, struct provider **out)
{
    tsr_session *session = tsr_session_new(NULL);
    struct provider *provider = session ? tsr__alloc(session, sizeof *provider) : NULL;
    if (!provider) {
        tsr_session_free(session);
        return factory->api.ort->CreateStatus(ORT_FAIL, "out of memory");
    }
    *provider = (struct provider){
        .ort = functions, .factory = factory, .logger = logger, .session = session};
    atomic_fetch_add(&factory->references, 1);
    pthread_mutex_init(&provider->lock, NULL);
    // Some bindings ignore an error of CreateEp and continue without the provider. So the error is
    // kept for Compile.
    provider->options_status =
        tsr__ep_options_read(session, &factory->api, options, &provider->options);
    *out = provider;
    return NULL;
}

void tsr__ep_provider_free(struct provider *provider)
{
    tsr_session *session = provider->session;
    tsr__ep_options_free(&provider->options);
    pthread_mutex_destroy(&provider->lock);
    tsr__ep_factory_release(provider->factory);
    tsr__free(session, provider, sizeof *provider);
    tsr_session_free(session);
}
