// SPDX-License-Identifier: Apache-2.0
// partition.c - tsr_partition: check, flow, plan, build, prove, write. The folder appears complete
// or not at all.
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
    static const char hint[] = "let `tessera plan --devices N` make one, or declare it with "
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

static tsr_status refuse_replicated(const struct plan *plan)
{
    struct refusal refusal = {plan->session, TSR_OK};
    tsr__flow_visit(plan->flow, refuse_node, &refusal);
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
static tsr_status plan_begin(struct plan *plan, tsr_model *model, const tsr_config *config)
{
    plan->session = tsr_model_session(model);
    plan->model = model;
    plan->n_ranks = tsr_config_devices(config);
    plan->opset = onnx_opset(model);
    int64_t *all = ARENA_ARRAY(plan->arena, int64_t, (size_t)plan->n_ranks);
    if (!all)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        all[rank] = rank;
    plan->all_devices = all;
    size_t before = tsr__diag_errors(plan->session);
    plan->flow = tsr__flow_expanded(plan->arena, model, config, &plan->expanded);
    if (plan->flow) {
        plan->model = plan->flow->model;
        return TSR_OK;
    }
    if (tsr__diag_errors(plan->session) > before && !plan->session->out_of_memory)
        return TSR_INVALID;
    return TSR_NOMEM;
}

// A copy in which functions are replaced by what they are made of; NULL: there are none.
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

static tsr_status refuse_dialect(const tsr_model *model, const char *dialect)
{
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_dialect, &at, "ai.tessera or com.microsoft",
              "no communication operators of '%s' are known", dialect);
    return TSR_UNSUPPORTED;
}

static tsr_status choose_weights(const tsr_model *model, const char *format, struct plan *plan)
{
    plan->as_safetensors = strcmp(format, "safetensors") == 0;
    if (plan->as_safetensors || strcmp(format, "data") == 0)
        return TSR_OK;
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at, "data or safetensors",
              "weights cannot be written as '%s'", format);
    return TSR_UNSUPPORTED;
}

static tsr_status refuse_layout(const tsr_model *model, const char *layout)
{
    struct place at = PLACE_NONE;
    tsr__diag(tsr_model_session(model), DIAG_partition_layout, &at, "wrapped is one",
              "no layout '%s' is known", layout);
    return TSR_UNSUPPORTED;
}

// The folder is written into the wrapped model as it will be found: from the root.
static tsr_status choose_layout(const tsr_model *model, const char *layout, const char *folder,
                                struct plan *plan)
{
    if (strcmp(layout, "wrapped") != 0)
        return refuse_layout(model, layout);
    plan->wrapped = folder;
    if (!folder)
        plan->wrapped = "";
    if (!folder || folder[0] == '/')
        return TSR_OK;
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here))
        here[0] = 0;
    plan->wrapped = tsr__arena_printf(plan->arena, "%s/%s", here, folder).p;
    return made(plan->wrapped);
}

// For who simulates or measures: the graphs as they would be written.
static tsr_status show_parts(const struct plan *plan, const struct part *parts)
{
    struct partition_part *list =
        ARENA_ARRAY(plan->arena, struct partition_part, (size_t)plan->n_ranks);
    if (!list)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
        list[rank] = (struct partition_part){parts[rank].model, parts[rank].weight_bytes};
    return plan->look->look(plan->look->data, list, plan->n_ranks);
}

// All that is asked for can be done: ports, wrapped model, sizes of what is sent, the other dialect. Who only looks needs
// no digest of the model.
static tsr_status plan_steps(struct plan *plan, const tsr_partition_options *options)
{
    tsr_status st = TSR_OK;
    if (!plan->look)
        st = tsr__model_digest(plan);
    if (st != TSR_OK)
        return st;
    st = tsr__plan_ports(plan, options);
    if (st != TSR_OK)
        return st;
    if (plan->wrapped)
        st = tsr__wrapped_check(plan);
    if (st != TSR_OK)
        return st;
    st = tsr__plan_build(plan);
    if (st != TSR_OK)
        return st;
    st = tsr__sizes_agree(plan);
    if (st != TSR_OK || !plan->microsoft)
        return st;
    return tsr__dialect_check(plan);
}

// Plans the steps, builds a graph for each rank, and proves that the ranks agree. Writes nothing.
static tsr_status build_parts(struct plan *plan, const tsr_partition_options *options,
                              struct part *parts)
{
    tsr_status st = plan_steps(plan, options);
    if (st != TSR_OK)
        return st;
    tsr__plan_fingerprint(plan);
    st = tsr__parts_build(plan, parts);
    if (st != TSR_OK)
        return st;
    if (plan->microsoft)
        return tsr__dialect_agree(plan, parts);
    return tsr__parts_agree(plan, parts);
}

// What the parts were built for: somebody looks at them, counts their bytes, or has them written.
static tsr_status use_parts(struct plan *plan, struct part *parts, const char *folder,
                            const tsr_partition_options *options, struct manifest *manifest)
{
    if (plan->look)
        return show_parts(plan, parts);
    if (options->dry_run)
        return tsr__parts_measure(plan, parts, manifest);
    return tsr__parts_publish(plan, parts, folder, options->force, manifest);
}

// No file is written before the ranks' graphs have been proven to agree. The graphs live in `parts` until the end.
static tsr_status partition_with(struct plan *plan, const char *folder,
                                 const tsr_partition_options *options,
                                 tsr_partition_summary *summary)
{
    tsr_status st = TSR_OK;
    if (options->strict)
        st = refuse_replicated(plan);
    if (st != TSR_OK)
        return st;
    struct part *parts = ARENA_ARRAY(plan->arena, struct part, (size_t)plan->n_ranks);
    struct manifest manifest;
    if (!parts)
        return TSR_NOMEM;
    st = build_parts(plan, options, parts);
    if (st != TSR_OK)
        goto free_parts;
    st = use_parts(plan, parts, folder, options, &manifest);
    if (st != TSR_OK || !summary)
        goto free_parts;
    st = tsr__parts_summarize(plan, parts, &manifest, summary);
free_parts:
    for (int64_t rank = 0; rank < plan->n_ranks; rank++)
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

// What the options say about the files; the operator sets and layouts that are not known are refused.
static tsr_status choose_files(const struct request *request, struct plan *plan)
{
    const tsr_partition_options *options = &request->options;
    plan->microsoft = options->dialect && strcmp(options->dialect, COMM_DOMAIN) != 0;
    if (plan->microsoft && strcmp(options->dialect, "com.microsoft") != 0)
        return refuse_dialect(request->model, options->dialect);
    tsr_status st = TSR_OK;
    if (options->weights)
        st = choose_weights(request->model, options->weights, plan);
    if (st != TSR_OK)
        return st;
    if (options->layout)
        return choose_layout(request->model, options->layout, request->folder, plan);
    return TSR_OK;
}

// A copy of the model is cut where functions were replaced (inlined) or nodes were (plan->expanded).
static tsr_status cut_model(const struct request *request, const tsr_config *config,
                            struct plan *plan)
{
    tsr_model *model = request->model, *inlined = NULL;
    tsr_status st = choose_files(request, plan);
    if (st != TSR_OK)
        return st;
    st = inline_calls(model, &inlined, &config);
    if (st != TSR_OK)
        goto free_models;
    if (inlined)
        model = inlined;
    st = plan_begin(plan, model, config);
    if (st != TSR_OK)
        goto free_models;
    st = partition_with(plan, request->folder, &request->options, request->summary);
free_models:
    tsr_model_free(plan->expanded);
    tsr_model_free(inlined);
    return st;
}

// The arena holds all that is planned; only the summary, in the session, outlives it.
static tsr_status cut(const struct request *request, struct plan plan)
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
    plan.arena = &arena;
    st = cut_model(request, config, &plan);
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
    return cut(&request, (struct plan){.undigested = undigested});
}

// No folder, no digest of the model, no summary.
tsr_status tsr__partition_look(tsr_model *model, const char *config,
                               const struct partition_look *look)
{
    struct request request = {.model = model, .options = {.config = config, .dry_run = true}};
    return cut(&request, (struct plan){.look = look});
}

tsr_status tsr_partition(tsr_model *model, const char *folder, const tsr_partition_options *options,
                         tsr_partition_summary *summary)
{
    return tsr__partition(model, folder, options, false, summary);
}
