// SPDX-License-Identifier: Apache-2.0
// partition.c - tsr_partition: check, flow, draft, build, prove, write. The folder appears complete
// or not at all.
//
//     check    the annotations of the configuration; any error ends it here
//     flow     how every value lies; nodes that cut statistics are replaced in a copy of the model
//     draft    the flow as steps between forms of values (steps/)
//     build    a graph for each rank, all at once, step by step (emit/)
//     prove    that ranks agree in number, order and sizes of their communication (prove.c)
//     write    the folder (publish.c); or the sizes alone, or the graphs to a caller who looks (struct partition_look)
#include "internal.h"

#include <limits.h>
#include <unistd.h>

// ---- the configuration -------------------------------------------------------------------------

// Which of three things is wrong: it has no usable number of devices, no name fits, or there is none.
static void refuse_config(tsr_model *model, const char *name, const tsr_config *config)
{
    tsr_session *session = tsr_model_session(model);
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    static const char hint[] =
        "let `tessera plan --devices N` make one, give --devices N here, or declare it with "
        "`tessera annotate --config NAME:N`";
    if (name)
        at.configuration = str_of(name);
    if (config)
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "device configuration \"%s\" has no usable number of devices",
                  tsr_config_name(config));
    else if (name)
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration \"%s\"", name);
    else
        tsr__diag(session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration");
}

// The named configuration, or the only one.
static tsr_status choose_config(tsr_model *model, const char *name, const tsr_config **out)
{
    tsr_session *session = tsr_model_session(model);
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    size_t n = tsr_model_config_count(model);
    if (!name && n > 1) {
        tsr__diag(session, DIAG_partition_several_configurations, &at,
                  "choose one with --config NAME",
                  "the model declares %zu device configurations: %s, %s%s", n,
                  tsr_config_name(tsr_model_config(model, 0)),
                  tsr_config_name(tsr_model_config(model, 1)), n > 2 ? ", ..." : "");
        return TSR_INVALID;
    }
    const tsr_config *config = NULL;
    if (name)
        config = tsr_model_find_config(model, name);
    else if (n)
        config = tsr_model_config(model, 0);
    *out = config;
    if (config && tsr_config_devices(config) >= 1 &&
        tsr_config_devices(config) <= MANIFEST_MAX_RANKS)
        return TSR_OK;
    refuse_config(model, name, config);
    return TSR_INVALID;
}

// The checker has said what is wrong, each thing at its place; this says that nothing was written.
static tsr_status refuse_errors(tsr_model *model, const tsr_config *config)
{
    tsr_session *session = tsr_model_session(model);
    size_t before = tsr__diag_errors(session);
    tsr_status st = tsr__check(model, tsr_config_name(config), false);
    if (st != TSR_OK || tsr__diag_errors(session) == before)
        return st;
    struct place at = PLACE_NONE;
    at.file = str_of(tsr_model_path(model));
    at.configuration = str_of(tsr_config_name(config));
    tsr__diag(session, DIAG_partition_refused, &at, "see the findings above",
              "the annotations have %zu errors", tsr__diag_errors(session) - before);
    return TSR_INVALID;
}

// What tsr__flow_visit hands through.
struct refusal {
    tsr_session *session;
    tsr_status status;
};

// With --strict: a node that was meant to be cut and is not.
static void refuse_node(void *data, const struct node_flow *nf)
{
    struct refusal *refusal = data;
    if (!nf->replicated)
        return;
    struct place at = tsr__place_node(nf->node);
    tsr__diag(refusal->session, DIAG_partition_strict, &at,
              "take its sharding away, or leave --strict out",
              "this node was meant to be cut and is not: %s", nf->replicated);
    refusal->status = TSR_UNSUPPORTED;
}

// All such nodes are told before it is refused.
static tsr_status refuse_replicated(const struct draft *draft)
{
    struct refusal refusal = {draft->session, TSR_OK};
    tsr__flow_visit(draft->flow, refuse_node, &refusal);
    return refusal.status;
}

// ---- all of it ---------------------------------------------------------------------------------

// A model of other domains alone may have none.
static int64_t onnx_opset(const tsr_model *model)
{
    for (size_t i = 0; i < tsr_model_opset_count(model); i++)
        if (!tsr_model_opset_domain(model, i)[0])
            return tsr_model_opset_version(model, i);
    return 17; // for the nodes that we add
}

// Shapes, layouts and expansions of the whole model: the flow. It tells its own findings.
// Device d of the configuration is rank d. draft->model is the copy with replaced nodes from here
// on, if there is one.
static tsr_status draft_begin(struct draft *draft, tsr_model *model, const tsr_config *config)
{
    draft->session = tsr_model_session(model);
    draft->model = model;
    draft->n_ranks = tsr_config_devices(config);
    draft->opset = onnx_opset(model);
    int64_t *all = ARENA_ARRAY(draft->arena, int64_t, (size_t)draft->n_ranks);
    if (!all)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        all[rank] = rank;
    draft->all_devices = all;
    size_t before = tsr__diag_errors(draft->session);
    draft->flow = tsr__flow_expanded(draft->arena, model, config, &draft->expanded);
    if (draft->flow) {
        draft->model = draft->flow->model;
        return TSR_OK;
    }
    if (tsr__diag_errors(draft->session) > before && !draft->session->out_of_memory)
        return TSR_INVALID;
    return TSR_NOMEM;
}

// A copy in which functions are replaced by what they are made of; NULL: there are none.
// *config becomes that of the copy. *out is the caller's to free, after a failure too.
static tsr_status inline_calls(tsr_model *model, tsr_model **out, const tsr_config **config)
{
    if (!tsr__has_calls(model))
        return TSR_OK;
    tsr_status st = tsr_model_clone(model, out);
    if (st != TSR_OK)
        return st;
    st = tsr__inline_calls(*out);
    if (st != TSR_OK)
        return st;
    *config = tsr_model_find_config(*out, tsr_config_name(*config));
    return TSR_OK;
}

// "data" or "safetensors".
static tsr_status choose_weights(const tsr_model *model, const char *format, struct draft *draft)
{
    draft->as_safetensors = strcmp(format, "safetensors") == 0;
    if (draft->as_safetensors || strcmp(format, "data") == 0)
        return TSR_OK;
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at, "data or safetensors",
              "weights cannot be written as '%s'", format);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_layout(const tsr_model *model, const char *layout)
{
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at,
              "wrapped is one, and genai of a generation folder", "no layout '%s' is known",
              layout);
    return TSR_UNSUPPORTED;
}

// Who runs the ranks of a wrapped model. Of other folders that is said to whoever runs them.
static tsr_status choose_transport(const tsr_model *model, const char *layout,
                                   const char *transport, struct draft *draft)
{
    struct place at = PLACE_NONE;
    if (!layout) {
        tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at,
                  "with the layout wrapped, or give the transport to tessera run",
                  "the files do not say how ranks communicate");
        return TSR_UNSUPPORTED;
    }
    draft->processes = strcmp(transport, "shm") == 0;
    if (draft->processes || strcmp(transport, "threads") == 0)
        return TSR_OK;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at, "threads or shm",
              "a wrapped partition does not run over '%s'", transport);
    return TSR_UNSUPPORTED;
}

static tsr_status choose_layout(const tsr_model *model, const char *layout, struct draft *draft)
{
    if (strcmp(layout, "wrapped") != 0)
        return refuse_layout(model, layout);
    draft->wrapped = true;
    return TSR_OK;
}

// For who simulates or measures: the graphs as they would be written.
static tsr_status show_parts(const struct draft *draft, const struct part *parts)
{
    struct partition_part *list =
        ARENA_ARRAY(draft->arena, struct partition_part, (size_t)draft->n_ranks);
    if (!list)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        list[rank] = (struct partition_part){parts[rank].model, parts[rank].weight_bytes};
    return draft->look->look(draft->look->data, list, draft->n_ranks);
}

// All that is asked for can be done: ports, wrapped model, sizes of what is sent. Who only looks needs
// no digest of the model.
static tsr_status draft_steps(struct draft *draft, const tsr_partition_options *options)
{
    tsr_status st = TSR_OK;
    if (!draft->look)
        st = tsr__model_digest(draft);
    if (st != TSR_OK)
        return st;
    st = tsr__draft_ports(draft, options);
    if (st != TSR_OK)
        return st;
    if (draft->wrapped)
        st = tsr__wrapped_check(draft);
    if (st != TSR_OK)
        return st;
    st = tsr__draft_build(draft);
    if (st != TSR_OK)
        return st;
    return tsr__sizes_agree(draft);
}

// Plans the steps, builds a graph for each rank, and proves that the ranks agree. Writes nothing.
static tsr_status build_parts(struct draft *draft, const tsr_partition_options *options,
                              struct part *parts)
{
    tsr_status st = draft_steps(draft, options);
    if (st != TSR_OK)
        return st;
    tsr__draft_fingerprint(draft);
    st = tsr__parts_build(draft, parts);
    if (st != TSR_OK)
        return st;
    return tsr__parts_agree(draft, parts);
}

// What the parts were built for: somebody looks at them, counts their bytes, or has them written.
static tsr_status use_parts(struct draft *draft, struct part *parts, const char *folder,
                            const tsr_partition_options *options, struct manifest *manifest)
{
    if (draft->look)
        return show_parts(draft, parts);
    if (options->dry_run)
        return tsr__parts_measure(draft, parts, manifest);
    return tsr__parts_publish(draft, parts, folder, options->force, manifest);
}

// No file is written before the ranks' graphs have been proven to agree. The graphs live in `parts` until the end.
static tsr_status partition_with(struct draft *draft, const char *folder,
                                 const tsr_partition_options *options,
                                 tsr_partition_summary *summary)
{
    tsr_status st = TSR_OK;
    if (options->strict)
        st = refuse_replicated(draft);
    if (st != TSR_OK)
        return st;
    struct part *parts = ARENA_ARRAY(draft->arena, struct part, (size_t)draft->n_ranks);
    struct manifest manifest;
    if (!parts)
        return TSR_NOMEM;
    st = build_parts(draft, options, parts);
    if (st != TSR_OK)
        goto free_parts;
    st = use_parts(draft, parts, folder, options, &manifest);
    if (st != TSR_OK || !summary)
        goto free_parts;
    st = tsr__parts_summarize(draft, parts, &manifest, summary);
free_parts:
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        tsr_model_free(parts[rank].model);
    return st;
}

// What is asked for.
struct request {
    tsr_model *model;
    const char *folder; // NULL: the parts are only looked at
    tsr_partition_options options;
    tsr_partition_summary *summary; // or NULL
};

// Reads the options about files; unknown formats and layouts are refused.
static tsr_status choose_files(const struct request *request, struct draft *draft)
{
    const tsr_partition_options *options = &request->options;
    tsr_status st = TSR_OK;
    if (options->weights)
        st = choose_weights(request->model, options->weights, draft);
    if (st != TSR_OK)
        return st;
    if (options->transport)
        st = choose_transport(request->model, options->layout, options->transport, draft);
    if (st != TSR_OK)
        return st;
    if (options->layout)
        return choose_layout(request->model, options->layout, draft);
    return TSR_OK;
}

// A copy of the model is cut where functions were replaced (inlined) or nodes were (draft->expanded).
static tsr_status cut_model(const struct request *request, const tsr_config *config,
                            struct draft *draft)
{
    tsr_model *model = request->model, *inlined = NULL;
    tsr_status st = choose_files(request, draft);
    if (st != TSR_OK)
        return st;
    st = inline_calls(model, &inlined, &config);
    if (st != TSR_OK)
        goto free_models;
    if (inlined)
        model = inlined;
    st = draft_begin(draft, model, config);
    if (st != TSR_OK)
        goto free_models;
    st = partition_with(draft, request->folder, &request->options, request->summary);
free_models:
    tsr_model_free(draft->expanded);
    tsr_model_free(inlined);
    return st;
}

// The arena holds all that is planned; only the summary, in the session, outlives it.
static tsr_status cut(const struct request *request, struct draft draft)
{
    const tsr_config *config;
    tsr_status st = choose_config(request->model, request->options.config, &config);
    if (st != TSR_OK)
        return st;
    st = refuse_errors(request->model, config);
    if (st != TSR_OK)
        return st;
    struct arena arena;
    tsr__arena_init(&arena, tsr_model_session(request->model));
    draft.arena = &arena;
    st = cut_model(request, config, &draft);
    tsr__arena_free(&arena);
    return st;
}

// Callers may have been built with fewer options: those that they do not know are zero.
tsr_status tsr__partition(tsr_model *model, const char *folder,
                          const tsr_partition_options *options, bool undigested,
                          tsr_partition_summary *summary)
{
    struct request request = {.model = model, .folder = folder, .summary = summary};
    size_t known = sizeof(request.options);
    if (options && options->size < known)
        known = options->size;
    if (options)
        memcpy(&request.options, options, known);
    if (!folder && !request.options.dry_run)
        return tsr__missing(tsr_model_session(model), "folder");
    return cut(&request, (struct draft){.undigested = undigested});
}

// No folder, no digest of the model, no summary.
tsr_status tsr__partition_look(tsr_model *model, const char *config,
                               const struct partition_look *look)
{
    struct request request = {.model = model, .options = {.config = config, .dry_run = true}};
    return cut(&request, (struct draft){.look = look});
}

tsr_status tsr_partition(tsr_model *model, const char *folder, const tsr_partition_options *options,
                         tsr_partition_summary *summary)
{
    return tsr__partition(model, folder, options, false, summary);
}
