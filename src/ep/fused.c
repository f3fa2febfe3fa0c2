// SPDX-License-Identifier: Apache-2.0
// fused.c - the node that runs in place of the application's graph. It passes its inputs to the
// ranks and returns their results.
//
// The ranks are threads of this process, with sessions of the application's ONNX Runtime, or
// processes of the program tessera-ranks. They start with the session. A failed run ends them, and
// the next run starts them again.
#include "ep/graph.h"
#include "transport/transport.h"

#include <stdlib.h>
#include <unistd.h>

// ---- the ranks ---------------------------------------------------------------------------------

static void close_ranks(struct fused *fused)
{
    tsr_job_close(fused->job);
    tsr__served_close(fused->served);
    fused->job = NULL;
    fused->served = NULL;
    fused->has_states = false;
    tsr__ep_kept_forget(fused);
}

static tsr_status open_ranks(struct fused *fused)
{
    const struct provider *provider = fused->provider;
    tsr_session *session = provider->session;
    const OrtApiBase *base = provider->factory->api.base;
    tsr_run_options options = {.size = sizeof options,
                               .transport = TSR_TRANSPORT_THREADS,
                               .threads = provider->options.threads,
                               .gpu_driver = getenv("TESSERA_CUDA"),
                               .gpu_nccl = getenv("TESSERA_NCCL"),
                               .hosts = provider->options.hosts,
                               .port = provider->options.port,
                               .secret = provider->options.secret,
                               .rsh = provider->options.rsh,
                               .network_interface = provider->options.interface,
                               .no_pin = true}; // the application's threads need cores too
    if (fused->job || fused->served)
        return TSR_OK;
    // Needed also if ranks are processes, because this process reads the inputs.
    TRY(tsr__engine_adopt(session, base));
    bool processes = fused->parts.processes;
    if (provider->options.transport_given)
        processes = provider->options.processes;
    if (processes || options.hosts)
        return tsr__served_open(session, fused->parts.folder, base, &options, &fused->arena,
                                &fused->hosts, &fused->served);
    TRY(tsr_job_open(session, fused->parts.folder, &options, &fused->job));
    tsr__job_take_rank_0(fused->job);
    return TSR_OK;
}

// ---- a run -------------------------------------------------------------------------------------

static OrtStatus *give_texts(const OrtApi *ort, const struct tensor *tensor, OrtValue *to)
{
    for (int64_t i = 0; i < tsr__tensor_elements(tensor); i++) {
        struct str text = tsr__tensor_text(tensor, i);
        char *at = NULL;
        TRY(ort->GetResizedStringTensorElementBuffer(to, (size_t)i, text.n, &at));
        if (text.n)
            memcpy(at, text.p, text.n);
    }
    return NULL;
}

static OrtStatus *give_output(struct fused *fused, OrtKernelContext *context,
                              const tsr_tensors *inputs, size_t i, const struct tensor *tensor)
{
    const struct ep_factory *factory = fused->provider->factory;
    const OrtApi *ort = factory->api.ort;
    OrtValue *value = NULL;
    void *data = NULL;
    TRY(ort->KernelContext_GetOutput(context, i, tensor->dims, (size_t)tensor->rank, &value));
    if (!value)
        return NULL; // the caller did not request this output
    if (tensor->type == TSR_STRING)
        return give_texts(ort, tensor, value);
    TRY(ort->GetTensorMutableData(value, &data));
    int gpu = tsr__ep_value_gpu(&factory->api, value);
    if (gpu >= 0)
        return tsr__ep_memory_copy(factory->memory, data, gpu, tensor->data, -1, tensor->bytes);
    if (tensor->bytes && !tsr__ep_caches_give(fused, inputs, i, tensor, data))
        memcpy(data, tensor->data, tensor->bytes);
    return NULL;
}

static OrtStatus *give_outputs(struct fused *fused, OrtKernelContext *context,
                               const tsr_tensors *inputs, const tsr_tensors *places,
                               const tsr_tensors *outputs)
{
    const OrtApi *ort = fused->provider->factory->api.ort;
    for (size_t i = 0; i < fused->n_outputs; i++) {
        int64_t at = tsr_tensors_find(outputs, fused->outputs[i]);
        if (tsr__ep_is_present(fused, fused->outputs[i])) {
            if (!fused->keeps) // else the buffer is bound, and its contents are undefined
                TRY(tsr__ep_state_give(fused, context, i));
            continue;
        }
        if (tsr_tensors_find(places, fused->outputs[i]) >= 0 || (at < 0 && fused->placed[i]))
            continue;
        if (at < 0 || outputs->at[at]->rank < 0)
            return ort->CreateStatus(ORT_FAIL, "Tessera: the ranks did not return an output");
        TRY(give_output(fused, context, inputs, i, outputs->at[at]));
    }
    return NULL;
}

// Runs the ranks once. If the run fails, the ranks are ended. If they are threads and the run
// cannot start (an input has a wrong shape or type), they stay.
static tsr_status run_ranks(struct fused *fused, const tsr_tensors *inputs,
                            OrtKernelContext *context, const tsr_tensors *places,
                            tsr_tensors *outputs)
{
    tsr_status st;
    if (fused->served) {
        st = tsr__served_run(fused->served, inputs, outputs);
    } else {
        const OrtRunOptions *options = tsr__ep_run_options(fused->provider);
        if (tsr__ep_has_adapters(fused, options))
            options = NULL;
        tsr__job_set_run_options(fused->job, options);
        tsr__job_set_places(fused->job, places->n ? places : NULL);
        tsr__job_set_used(fused->job, fused->used, fused->n_used);
        tsr__job_set_inputs_wait(fused->job, tsr__ep_caches_settle, fused);
        st = tsr_job_start(fused->job, inputs);
        if (st != TSR_OK)
            return st;
        st = tsr__ep_memory_wait(fused, context, outputs);
    }
    if (st == TSR_OK)
        return TSR_OK;
    tsr__ep_kept_failed(fused, inputs);
    close_ranks(fused);
    return st;
}

static OrtStatus *run(struct fused *fused, OrtKernelContext *context)
{
    const struct ep_api *api = &fused->provider->factory->api;
    tsr_session *session = fused->provider->session;
    tsr_tensors *inputs = NULL, *outputs = NULL, *places = NULL;
    OrtStatus *failed = NULL;
    tsr_status st = open_ranks(fused);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &places);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &inputs);
    if (st == TSR_OK)
        st = tsr_tensors_new(session, &outputs);
    if (st == TSR_OK)
        st = tsr__ep_inputs_read(fused, context, inputs);
    if (st == TSR_OK)
        st = tsr__ep_kept_begin(fused, context, inputs);
    if (st == TSR_OK && fused->job)
        st = tsr__ep_caches_place(fused, context, inputs, places);
    if (st == TSR_OK)
        do
            st = run_ranks(fused, inputs, context, places, outputs);
        while (st == TSR_NOMEM && tsr__ep_kept_retry(fused, inputs));
    tsr_status settled = tsr__ep_caches_settle(fused); // if the ranks did not start
    if (st == TSR_OK)
        st = settled;
    tsr_status compared = tsr__ep_kept_end(fused, inputs, st == TSR_OK ? outputs : NULL);
    if (st == TSR_OK)
        fused->copied += tsr__ep_caches_copied(fused, inputs, places, outputs);
    tsr__ep_caches_note(fused, inputs, st == TSR_OK ? outputs : NULL);
    if (st == TSR_OK)
        st = compared;
    if (st == TSR_OK) {
        fused->n_runs++;
        failed = give_outputs(fused, context, inputs, places, outputs);
        fused->has_states = !failed; // without handles, the states are lost
    } else {
        failed = tsr__ep_failed(api, session, st);
    }
    tsr_tensors_free(places);
    tsr_tensors_free(outputs);
    tsr_tensors_free(inputs);
    tsr_finding_clear(session);
    return failed;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context)
{
    struct fused *fused = (struct fused *)info;
    (void)state;
    if (fused->process != getpid())
        return fused->provider->factory->api.ort->CreateStatus(
            ORT_FAIL, "Tessera: the session was opened before a fork: open a new one in the child");
    pthread_mutex_lock(&fused->lock);
    OrtStatus *failed = run(fused, context);
    pthread_mutex_unlock(&fused->lock);
    return failed;
}

// ---- the node ----------------------------------------------------------------------------------

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **out)
{
    (void)context;
    *out = info;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state)
{
    (void)info, (void)state;
}

static OrtStatus *read_names(struct fused *fused, const struct graph_values *values,
                             const char ***out)
{
    const OrtApi *ort = fused->provider->factory->api.ort;
    *out = ARENA_ARRAY(&fused->arena, const char *, values->n + 1);
    for (size_t i = 0; *out && i < values->n; i++) {
        const char *name = "";
        TRY(ort->GetValueInfoName(values->at[i], &name));
        (*out)[i] = tsr__arena_str(&fused->arena, str_of(name)).p;
    }
    return NULL;
}

static OrtStatus *read_ports(struct fused *fused, const OrtNode *node)
{
    struct graph_reader reader = {fused->provider->factory->api.ort, &fused->arena};
    struct graph_values inputs, outputs;
    TRY(tsr__ep_node_inputs(&reader, node, &inputs));
    TRY(tsr__ep_node_outputs(&reader, node, &outputs));
    fused->n_inputs = inputs.n;
    fused->n_outputs = outputs.n;
    TRY(read_names(fused, &inputs, &fused->inputs));
    return read_names(fused, &outputs, &fused->outputs);
}

// Finds the partition of an EPContext node, or creates a partition for other graphs.
static tsr_status find_parts(struct fused *fused, const OrtGraph *graph)
{
    struct provider *provider = fused->provider;
    const struct ep_api *api = &provider->factory->api;
    const OrtNode *only = NULL;
    size_t n_nodes = 0;
    bool context = false;
    OrtStatus *failed = api->ort->Graph_GetNumNodes(graph, &n_nodes);
    if (!failed && n_nodes == 1)
        failed = api->ort->Graph_GetNodes(graph, &only, 1);
    if (!failed && only)
        failed = tsr__ep_is_context(api, only, &fused->arena, &context);
    TRY(tsr__ep_report(provider->session, api, failed));
    if (context && provider->options.ranks_keep)
        return tsr__fail(provider->session, TSR_USAGE, DIAG_ep_option,
                         &PLACE(.value = STR("caches")),
                         "load the original model, or set caches=application",
                         "an EPContext model cannot have the option caches=ranks");
    if (context)
        return tsr__ep_context_read(provider, graph, only, &fused->arena, &fused->parts);
    return tsr__ep_parts_make(provider, graph, &fused->arena, &fused->parts);
}

static tsr_status read_manifest(struct fused *fused)
{
    struct bundle bundle;
    TRY(tsr__bundle_open(fused->provider->session, &fused->arena, fused->parts.folder, &bundle));
    fused->manifest = bundle.manifest;
    tsr__bundle_close(&bundle);
    return TSR_OK;
}

tsr_status tsr__ep_fused_new(struct provider *provider, const OrtGraph *graph, const OrtNode *node,
                             struct fused **out)
{
    double began = tsr__now_s();
    struct fused *fused = tsr__alloc(provider->session, sizeof *fused);
    if (!fused)
        return TSR_NOMEM;
    *fused = (struct fused){.ort = {.ort_version_supported = ORT_API_EP,
                                    .CreateState = create_state,
                                    .Compute = compute,
                                    .ReleaseState = release_state},
                            .provider = provider,
                            .process = getpid()};
    tsr__arena_init(&fused->arena, provider->session);
    pthread_mutex_init(&fused->lock, NULL);
    *out = fused;
    tsr_status st =
        tsr__ep_report(provider->session, &provider->factory->api, read_ports(fused, node));
    fused->placed = ARENA_ARRAY(&fused->arena, bool, fused->n_outputs + 1);
    if (st == TSR_OK)
        st = arena_status(&fused->arena);
    if (st == TSR_OK)
        st = find_parts(fused, graph);
    if (st == TSR_OK)
        st = read_manifest(fused);
    if (st == TSR_OK)
        st = tsr__ep_caches_find(fused);
    if (st == TSR_OK)
        st = tsr__ep_kept_open(fused);
    if (st == TSR_OK)
        st = open_ranks(fused);
    fused->opened_s = tsr__now_s() - began;
    if (st == TSR_OK)
        st = tsr__ep_summary_write(fused);
    return st;
}

void tsr__ep_fused_free(struct fused *fused)
{
    if (!fused || fused->process != getpid())
        return;
    close_ranks(fused);
    tsr__ep_summary_end(fused);
    tsr__ep_adapters_close(fused);
    tsr__temporary_remove(fused->parts.temporary);
    if (fused->parts.use > 0)
        close(fused->parts.use);
    tsr__arena_free(&fused->arena);
    pthread_mutex_destroy(&fused->lock);
    tsr__free(fused->provider->session, fused, sizeof *fused);
}
