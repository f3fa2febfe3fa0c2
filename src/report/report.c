// SPDX-License-Identifier: Apache-2.0
// report.c - tsr_report: collects what is reported and writes it.
//
// Order: the configuration, the trace if given, a copy of the model with all sizes set, then the
// document, the page, or one of the formats for Model Explorer (explorer.c). Nothing is planned or
// simulated here.
#include "report/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "topology/topology.h"

// Returns the given title, else the last folder and the file name of the model's path. Example:
// "bert/model.onnx" for "/models/bert/model.onnx".
static const char *title_of(const tsr_model *model, const char *given)
{
    const char *path = tsr_model_path(model), *at = path + strlen(path);
    for (int slashes = 0; at > path; at--) // keep the folder: many files are called model.onnx
        if (at[-1] == '/' && ++slashes == 2)
            break;
    if (given)
        return given;
    return at[0] ? at : "a model";
}

const tsr_config *tsr__report_config(const tsr_model *model, const char *name)
{
    if (name)
        return tsr_model_find_config(model, name);
    return tsr_model_config_count(model) == 1 ? tsr_model_config(model, 0) : NULL;
}

// Sets report->config (tsr__report_config). Reports a name that the model does not have.
static tsr_status find_config(struct report *report, const char *name)
{
    report->config = tsr__report_config(report->model, name);
    if (report->config || !name)
        return TSR_OK;
    return tsr__fail(report->session, TSR_INVALID, DIAG_config_unknown,
                     &PLACE(.configuration = str_of(name)),
                     "`tessera info` lists the configurations of the model",
                     "the model has no configuration of that name");
}

static const char *config_name(const struct report *report)
{
    return report->config ? tsr_config_name(report->config) : NULL;
}

// Sets report->stage_of: the stage of a device is that of the first node with a stage that it
// computes in the simulation.
static void find_stages(struct report *report)
{
    struct map known;
    const tsr_simulation_view *simulation = report->simulation;
    bool any = false;
    if (!report->config || !simulation)
        return;
    tsr__map_init(&known, report->arena, 256);
    int64_t *stages = ARENA_ARRAY(report->arena, int64_t, simulation->facts.devices + 1);
    // By node name: stage + 1; 0: no stage.
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(report->model)); node;
         node = tsr_node_next(node)) {
        int64_t stage = tsr__node_stage(node, report->config);
        if (stage < 0 || stage >= INT32_MAX)
            continue;
        tsr__map_set(&known, str_of(tsr__node_label(node)), (void *)(uintptr_t)(stage + 1));
        any = true;
    }
    if (!any || !stages)
        return;
    for (size_t i = 0; i < simulation->facts.devices; i++)
        stages[i] = -1;
    // The first node with a stage decides.
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        uintptr_t stage = (uintptr_t)tsr__map_get(&known, str_of(span->node));
        if (stage && span->kind == TSR_SPAN_COMPUTE && stages[span->device] < 0)
            stages[span->device] = (int64_t)stage - 1;
    }
    report->stage_of = stages;
}

// Sets report->sized to a copy of the model with all sizes set and missing shardings inferred. Does
// nothing without a configuration. Drops the diagnostics. Fails only if out of memory; after other
// failures the copy is incomplete or NULL.
static tsr_status fill_in(struct report *report)
{
    struct diag_mark before = tsr__diag_mark(report->session);
    size_t errors = tsr__diag_errors(report->session);
    const char *config = config_name(report);
    if (!config)
        return TSR_OK;
    if (!tsr__plan_sizes(report->arena, report->model, config, &report->sizes, &report->n_sizes))
        return TSR_NOMEM;
    tsr_status status = tsr_model_clone(report->model, &report->sized);
    if (status != TSR_OK)
        goto forget_findings;
    status = tsr__shapes_declare(report->sized, report->sizes, report->n_sizes, NULL);
    if (status != TSR_OK)
        goto forget_findings;
    // tsr_infer needs valid shardings.
    status = tsr_check(report->sized,
                       &(tsr_check_options){.size = sizeof(tsr_check_options), .config = config});
    if (status == TSR_OK && tsr__diag_errors(report->session) == errors)
        status = tsr_infer(report->sized, &(tsr_infer_options){.size = sizeof(tsr_infer_options),
                                                               .config = config});
forget_findings:
    tsr__diag_back(report->session, &before, false);
    return status == TSR_NOMEM ? TSR_NOMEM : TSR_OK;
}

// Writes the document to a file.
static tsr_status write_document(struct report *report, const char *path)
{
    tsr_json *json = tsr__report_document(report, NULL, NULL);
    tsr_status st = json ? tsr_json_write(json, path) : TSR_NOMEM;
    tsr_json_free(json);
    return st;
}

// Writes the report in a format; NULL: html.
static tsr_status write_as(struct report *report, const char *format, const char *path)
{
    if (!format || strcmp(format, "html") == 0)
        return tsr__report_page(report, path);
    if (strcmp(format, "json") == 0)
        return write_document(report, path);
    bool cuts = strcmp(format, "model-explorer-cuts") == 0;
    if ((cuts || strcmp(format, "model-explorer") == 0) && report->simulation)
        return tsr__explorer_write(report, cuts, path);
    return tsr__fail(report->session, TSR_USAGE, DIAG_report_format, NULL,
                     "use html, json, model-explorer or model-explorer-cuts", "%s",
                     report->simulation ? "unknown report format"
                                        : "this format needs a simulation");
}

// Checks that the topologies in the options belong to the right sessions. That of the other plan
// may belong to the session of the other model.
static tsr_status owned(tsr_session *session, const tsr_report_input *options)
{
    tsr_status status = tsr__topology_owned(session, options->topology);
    const tsr_report_side *side = options->beside;
    if (status != TSR_OK || !side || !side->topology)
        return status;
    if (side->topology->session == tsr_model_session(side->model))
        return TSR_OK;
    return tsr__same_session(session, side->topology->session, "topology of the other plan");
}

// Collects what is reported. *report must be empty; release frees it, also after a failure.
static tsr_status collect(struct report *report, tsr_model *model, const tsr_report_input *options)
{
    tsr_report_input given = {.size = sizeof given};
    tsr_session *session = tsr_model_session(model);
    if (options)
        given = *options;
    TRY(owned(session, &given));
    TRY(tsr__check_dims(&model, 1, given.sizes, given.n_sizes));
    *report = (struct report){.session = session,
                              .arena = report->arena,
                              .model = model,
                              .title = title_of(model, given.title),
                              .topology = given.topology,
                              .simulation = tsr_simulation_read(given.simulation),
                              .command = given.command,
                              .comparison = given.beside,
                              .sizes = given.sizes,
                              .n_sizes = given.n_sizes,
                              .memory = given.memory};
    if (given.plan && given.plan->facts.feasible)
        report->plan = given.plan;
    TRY(find_config(report, given.config));
    if (given.trace)
        TRY(tsr__report_trace(report, given.trace));
    TRY(fill_in(report));
    find_stages(report);
    return TSR_OK;
}

static void release(struct report *report)
{
    tsr_model_free(report->sized);
    tsr__arena_free(report->arena);
}

// Writes the report of a plan, optionally with a comparison with another plan.
tsr_status tsr_report_page(tsr_model *model, const tsr_report_input *options, const char *path)
{
    struct arena arena = {.session = tsr_model_session(model)};
    struct report report = {.arena = &arena};
    TRY(tsr__given(arena.session, "path", path));
    tsr_status st = collect(&report, model, options);
    if (st == TSR_OK)
        st = write_as(&report, options ? options->format : NULL, path);
    release(&report);
    return st;
}

// Makes the document of the report in memory.
tsr_status tsr_report_json(tsr_model *model, const tsr_report_input *options, tsr_json **out)
{
    struct arena arena = {.session = tsr_model_session(model)};
    struct report report = {.arena = &arena};
    tsr_status st = collect(&report, model, options);
    tsr_json *json = NULL;
    if (st == TSR_OK) {
        json = tsr__report_document(&report, NULL, NULL);
        st = json ? TSR_OK : TSR_NOMEM;
    }
    release(&report);
    if (st == TSR_OK)
        *out = json;
    return st;
}

// Writes the page of one plan.
tsr_status tsr_report(tsr_model *model, const tsr_report_options *options, const char *path)
{
    tsr_report_options given;
    tsr_session *session = tsr_model_session(model);
    TRY(OPTIONS_READ(session, &given, options, command));
    if (given.plan)
        TRY(tsr__same_session(session, result_session(given.plan), "plan"));
    if (given.simulation)
        TRY(tsr__same_session(session, result_session(given.simulation), "simulation"));
    tsr_report_input input = {.size = sizeof input,
                              .title = given.title,
                              .config = given.config,
                              .topology = given.topology,
                              .plan = given.plan,
                              .simulation = given.simulation,
                              .trace = given.trace,
                              .sizes = given.sizes,
                              .n_sizes = given.n_sizes,
                              .memory = given.memory,
                              .command = given.command};
    return tsr_report_page(model, &input, path);
}
