// SPDX-License-Identifier: Apache-2.0
// partition.c - tsr_partition: partitions a model in six steps. The folder appears complete or not
// at all.
//
//     check    the annotations of the configuration; any error ends the call here
//     flow     the layout of every value; some nodes are expanded in a copy of the model
//     draft    the flow as steps between forms, which are layouts of values (steps/)
//     build    one graph per rank, all at once, step by step (emit/)
//     prove    that ranks agree on number, order and sizes of their communication (prove.c)
//     write    the folder (publish.c). Instead, a dry run only computes sizes, and
//              tsr__partition_visit passes the graphs to a callback
#include "internal.h"

// The arguments of a call of tsr_partition.
struct request {
    tsr_model *model;
    tsr_session *session;
    struct place at;    // the model's file, for diagnostics
    const char *folder; // may be NULL if nothing is written
    tsr_partition_options options;
    tsr_partition_result *result; // may be NULL
};

// ---- configuration ------------------------------------------------------------------------------

// Reports that the configuration is unknown, missing, or has no usable number of devices.
static tsr_status refuse_config(const struct request *request, const tsr_config *config)
{
    static const char hint[] =
        "let `tessera plan --devices N` make one, give --devices N here, or declare it with "
        "`tessera annotate --config NAME:N`";
    const char *name = request->options.config;
    struct place at = request->at;
    if (name)
        at.configuration = str_of(name);
    if (config)
        tsr__diag(request->session, DIAG_partition_no_configuration, &at, hint,
                  "device configuration \"%s\" has %lld devices; 1 to %d are supported",
                  tsr_config_name(config), (long long)tsr_config_devices(config),
                  MANIFEST_MAX_RANKS);
    else if (name)
        tsr__diag(request->session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration \"%s\"", name);
    else
        tsr__diag(request->session, DIAG_partition_no_configuration, &at, hint,
                  "the model declares no device configuration");
    return TSR_INVALID;
}

// Sets *out to the configuration that the options name; without a name the model must have exactly
// one. Reports an error if there is none, or if its number of devices is not supported.
static tsr_status choose_config(const struct request *request, const tsr_config **out)
{
    const tsr_model *model = request->model;
    const char *name = request->options.config;
    size_t n = tsr_model_config_count(model);
    if (!name && n > 1)
        return tsr__fail(request->session, TSR_INVALID, DIAG_partition_several_configurations,
                         &request->at, "choose one with --config NAME",
                         "the model declares %zu device configurations: %s, %s%s", n,
                         tsr_config_name(tsr_model_config(model, 0)),
                         tsr_config_name(tsr_model_config(model, 1)), n > 2 ? ", ..." : "");
    const tsr_config *config = n ? tsr_model_config(model, 0) : NULL;
    if (name)
        config = tsr_model_find_config(model, name);
    *out = config;
    if (config && tsr_config_devices(config) >= 1 &&
        tsr_config_devices(config) <= MANIFEST_MAX_RANKS)
        return TSR_OK;
    return refuse_config(request, config);
}

// Checks the annotations. The checker reports each error; this function adds a diagnostic with
// their number.
static tsr_status refuse_errors(const struct request *request, const tsr_config *config)
{
    size_t before = tsr__diag_errors(request->session);
    tsr_status st = tsr__check(request->model, tsr_config_name(config));
    size_t errors = tsr__diag_errors(request->session) - before;
    if (st != TSR_OK || errors == 0)
        return st;
    struct place at = request->at;
    at.configuration = str_of(tsr_config_name(config));
    return tsr__fail(request->session, TSR_INVALID, DIAG_partition_refused, &at,
                     "correct the errors above; `tessera check` lists them",
                     "the shardings of the model have %zu error%s", errors, errors == 1 ? "" : "s");
}

// Data for the callback of tsr__flow_visit.
struct refusal {
    tsr_session *session;
    tsr_status status;
};

// Reports a node that is replicated although it has a sharding (for --strict).
static void refuse_node(void *data, const struct node_flow *nf)
{
    struct refusal *refusal = data;
    if (!nf->replicated)
        return;
    tsr__diag(refusal->session, DIAG_partition_strict, PLACE_AT(tsr__place_node(nf->node)),
              "remove its sharding, or leave out --strict",
              "this node has a sharding but is replicated: %s", nf->replicated);
    refusal->status = TSR_UNSUPPORTED;
}

// Reports all nodes that are replicated although they have a sharding, and fails if there are any.
static tsr_status refuse_replicated(const struct draft *draft)
{
    struct refusal refusal = {draft->session, TSR_OK};
    tsr__flow_visit(draft->flow, refuse_node, &refusal);
    return refusal.status;
}

// ---- preparing the model ------------------------------------------------------------------------

// Returns the opset of ai.onnx. A model without ai.onnx gets 17 for the nodes that Tessera adds.
static int64_t onnx_opset(const tsr_model *model)
{
    int64_t version = tsr__graph_opset(tsr_model_graph(model), STR(""));
    return version ? version : 17;
}

// Starts the draft: sets its ranks and opset, and computes the flow. Device d of the configuration
// becomes rank d. If nodes were expanded, draft->model is an expanded copy of the model.
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

// Finds the sizes for which the partition is made: the caller's, then those of the plan.
static tsr_status find_sizes(const struct request *request, const tsr_config *config,
                             struct draft *draft)
{
    draft->plan_sizes = request->options.sizes;
    draft->n_plan_sizes = request->options.n_sizes;
    TRY(tsr_model_check_dims(request->model, draft->plan_sizes, draft->n_plan_sizes));
    if (!tsr__plan_sizes(draft->arena, request->model, tsr_config_name(config), &draft->plan_sizes,
                         &draft->n_plan_sizes))
        return TSR_NOMEM;
    return TSR_OK;
}

// Copies the model, inlines its function calls, makes large constants initializers, and fixes sizes
// (static_sizes). *out stays NULL if there is nothing to do. *config becomes the configuration of
// the copy. The caller frees *out, also after a failure.
static tsr_status simplify(const struct request *request, const struct draft *draft,
                           tsr_model **out, const tsr_config **config)
{
    tsr_model *model = request->model;
    if (!tsr__has_calls(model) && !tsr__has_liftable(model) && !request->options.static_sizes)
        return TSR_OK;
    TRY(tsr_model_clone(model, out));
    TRY(tsr__inline_calls(*out));
    TRY(tsr__lift_constants(*out));
    if (request->options.static_sizes)
        TRY(tsr__fix_sizes(draft->arena, *out, &request->at, draft->plan_sizes,
                           draft->n_plan_sizes));
    *config = tsr_model_find_config(*out, tsr_config_name(*config));
    return TSR_OK;
}

// ---- options about files -----------------------------------------------------------------------

static tsr_status refuse_option(const struct request *request, const char *hint,
                                const char *message)
{
    return tsr__fail(request->session, TSR_UNSUPPORTED, DIAG_partition_layout, NULL, hint, "%s",
                     message);
}

// Reads and checks the options about files. A transport is allowed only with an EPContext model,
// which stores it; otherwise it is chosen at run time.
static tsr_status choose_files(const struct request *request, struct draft *draft)
{
    const tsr_partition_options *options = &request->options;
    draft->dry_run = options->dry_run;
    draft->as_safetensors = options->weights == TSR_WEIGHTS_SAFETENSORS;
    draft->context = options->layout == TSR_LAYOUT_CONTEXT;
    draft->processes = options->transport == TSR_TRANSPORT_SHM;
    if ((unsigned)options->weights > TSR_WEIGHTS_SAFETENSORS)
        return refuse_option(request, "data or safetensors", "unknown format of weights");
    if ((unsigned)options->layout > TSR_LAYOUT_CONTEXT)
        return refuse_option(request, "use context, or genai for a generation folder",
                             "unknown layout");
    if (options->transport != TSR_TRANSPORT_DEFAULT && !draft->context)
        return refuse_option(request, "use --layout context, or give the transport to tessera run",
                             "a transport can only be stored with --layout context");
    if ((unsigned)options->transport > TSR_TRANSPORT_SHM)
        return refuse_option(request, "threads or shm",
                             "an EPContext model cannot use this transport");
    return TSR_OK;
}

// ---- building and writing ----------------------------------------------------------------------

// Passes the rank graphs to the callback. Writes nothing.
static tsr_status visit_parts(const struct draft *draft, const struct part *parts)
{
    struct partition_part *list =
        ARENA_ARRAY(draft->arena, struct partition_part, (size_t)draft->n_ranks);
    if (!list)
        return TSR_NOMEM;
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        list[rank] = (struct partition_part){parts[rank].model, parts[rank].weight_bytes};
    return draft->visitor->visit(draft->visitor->data, list, draft->n_ranks);
}

static tsr_status draft_steps(struct draft *draft, const tsr_partition_options *options)
{
    if (!draft->visitor)
        TRY(tsr__model_digest(draft));
    TRY(tsr__draft_ports(draft, options));
    if (draft->context)
        TRY(tsr__context_check(draft));
    TRY(tsr__draft_build(draft));
    TRY(tsr__sizes_agree(draft));
    return tsr__draft_bind(draft);
}

static tsr_status build_parts(struct draft *draft, const tsr_partition_options *options,
                              struct part *parts)
{
    TRY(draft_steps(draft, options));
    tsr__draft_fingerprint(draft);
    TRY(tsr__parts_build(draft, parts));
    return tsr__parts_agree(draft, parts);
}

static tsr_status write_or_visit(struct draft *draft, struct part *parts, const char *folder,
                                 const tsr_partition_options *options, struct manifest *manifest)
{
    if (draft->visitor)
        return visit_parts(draft, parts);
    if (options->dry_run)
        return tsr__parts_measure(draft, parts, manifest);
    return tsr__parts_publish(draft, parts, folder, options->force, manifest);
}

// Plans and builds the partition, then writes it, measures it (dry run) or passes it to the
// visitor. Nothing is written before all checks of prove.c have succeeded.
static tsr_status partition_with(struct draft *draft, const char *folder,
                                 const tsr_partition_options *options, tsr_partition_result *result)
{
    if (options->strict)
        TRY(refuse_replicated(draft));
    struct part *parts = ARENA_ARRAY(draft->arena, struct part, (size_t)draft->n_ranks);
    struct manifest manifest;
    if (!parts)
        return TSR_NOMEM;
    tsr_status st = build_parts(draft, options, parts);
    if (st == TSR_OK)
        st = write_or_visit(draft, parts, folder, options, &manifest);
    if (st == TSR_OK && result)
        st = tsr__parts_describe(draft, parts, &manifest, result);
    for (int64_t rank = 0; rank < draft->n_ranks; rank++)
        tsr_model_free(parts[rank].model);
    return st;
}

static tsr_status partition_model(const struct request *request, const tsr_config *config,
                                  struct draft *draft)
{
    tsr_model *model = request->model, *simple = NULL;
    TRY(choose_files(request, draft));
    TRY(find_sizes(request, config, draft));
    draft->static_sizes = request->options.static_sizes;
    tsr_status st = simplify(request, draft, &simple, &config);
    if (simple)
        model = simple;
    if (st == TSR_OK)
        st = draft_begin(draft, model, config);
    if (st == TSR_OK)
        st = partition_with(draft, request->folder, &request->options, request->result);
    tsr_model_free(draft->expanded);
    tsr_model_free(simple);
    return st;
}

// Partitions a model. All planning data is in an arena that is freed at the end. Only the result
// remains.
static tsr_status partition(struct request *request, struct draft draft)
{
    const tsr_config *config;
    request->session = tsr_model_session(request->model);
    request->at = PLACE_NONE;
    request->at.file = str_of(tsr_model_path(request->model));
    TRY(tsr__model_sort(request->model));
    TRY(choose_config(request, &config));
    TRY(refuse_errors(request, config));
    struct arena arena = {.session = request->session};
    draft.arena = &arena;
    tsr_status st = partition_model(request, config, &draft);
    tsr__arena_free(&arena);
    return st;
}

static tsr_status partition_into(tsr_model *model, const char *folder,
                                 const tsr_partition_options *options, struct draft draft,
                                 tsr_partition_result *result)
{
    struct request request = {.model = model, .folder = folder, .result = result};
    TRY(OPTIONS_READ(tsr_model_session(model), &request.options, options, transport));
    if (!folder && !request.options.dry_run)
        return tsr__missing(tsr_model_session(model), "folder");
    return partition(&request, draft);
}

tsr_status tsr__partition_undigested(tsr_model *model, const char *folder,
                                     const tsr_partition_options *options)
{
    return partition_into(model, folder, options, (struct draft){.undigested = true}, NULL);
}

tsr_status tsr__partition_visit(tsr_model *model, const char *config,
                                const struct partition_visitor *visitor)
{
    struct request request = {.model = model, .options = {.config = config, .dry_run = true}};
    return partition(&request, (struct draft){.visitor = visitor});
}

// ---- the result handle --------------------------------------------------------------------------

tsr_status tsr_partition(tsr_model *model, const char *folder, const tsr_partition_options *options,
                         tsr_partition_result **out)
{
    tsr_partition_result *result = NULL;
    if (out)
        result = tsr__result_new(tsr_model_session(model), sizeof *result);
    if (out && !result)
        return TSR_NOMEM;
    tsr_status st = partition_into(model, folder, options, (struct draft){0}, result);
    if (st == TSR_OK && out)
        *out = result;
    else
        tsr_partition_result_free(result);
    return st;
}

void tsr_partition_result_free(tsr_partition_result *result)
{
    tsr__result_free(result);
}

void tsr_partition_result_predict(tsr_partition_result *result, int64_t predicted,
                                  int64_t one_device, double device_flops)
{
    result->facts.predicted = predicted;
    result->facts.one_device = one_device;
    result->facts.device_flops = device_flops;
}

tsr_status tsr_partition_result_about(const tsr_partition_result *result, tsr_partition_facts *out)
{
    return tsr__element_read(result->head.session, SIZED_LIST(&result->facts, 1, n_replicated), 0,
                             out);
}

tsr_status tsr_partition_result_collective(const tsr_partition_result *result, size_t i,
                                           tsr_collective_count *out)
{
    return tsr__element_read(result->head.session,
                             SIZED_LIST(result->collectives, result->facts.n_collectives, count), i,
                             out);
}

tsr_status tsr_partition_result_replicated(const tsr_partition_result *result, size_t i,
                                           tsr_replicated *out)
{
    return tsr__element_read(result->head.session,
                             SIZED_LIST(result->replicated, result->facts.n_replicated, reason), i,
                             out);
}
