// SPDX-License-Identifier: Apache-2.0
// report.c - tsr_report: collects the contents of the page and writes it.
//
// Order: the configuration, the trace if given, a copy of the model with all sizes set, then the
// page or one of the formats for Model Explorer (explorer.c). Nothing is planned or simulated here.
#include "report/internal.h"
#include "plan/plan.h"
#include "rules/rules.h"
#include "tessera_json.h"
#include "topology/topology.h"

#define MAX_PAGE ((size_t)256 << 20)

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

// Sets page->config (tsr__report_config). Reports a name that the model does not have.
static tsr_status find_config(struct page *page, const char *name)
{
    page->config = tsr__report_config(page->model, name);
    if (page->config || !name)
        return TSR_OK;
    return tsr__fail(page->session, TSR_INVALID, DIAG_config_unknown,
                     &PLACE(.configuration = str_of(name)),
                     "`tessera info` lists the configurations of the model",
                     "the model has no configuration of that name");
}

// Costs are in picoseconds, memory is in bytes.
static const tsr_json_field plan_fields[] = {
    {JSON_FIELD(tsr_plan_summary, "cost", cost)},
    {JSON_FIELD(tsr_plan_summary, "bound", bound)},
    {JSON_FIELD(tsr_plan_summary, "optimal", optimal)},
    {JSON_LIST(tsr_plan_summary, "memory", memory, devices)},
    {JSON_LIST(tsr_plan_summary, "collectives", collectives, n_collectives)},
    {JSON_FIELD(tsr_plan_summary, "nodes", nodes)},
    {JSON_FIELD(tsr_plan_summary, "cut_nodes", cut_nodes)},
    {JSON_END},
};
static const tsr_json_field device_fields[] = {
    {JSON_FIELD(tsr_simulated_device, "compute_s", compute)},
    {JSON_FIELD(tsr_simulated_device, "communication_s", communication)},
    {JSON_FIELD(tsr_simulated_device, "waiting_s", waiting)},
    {JSON_FIELD(tsr_simulated_device, "idle_s", idle)},
    {JSON_FIELD(tsr_simulated_device, "weights", weights)},
    {JSON_FIELD(tsr_simulated_device, "memory", memory)},
    {JSON_END},
};
static const tsr_json_field simulation_fields[] = {
    {JSON_FIELD(tsr_simulation_summary, "requests", requests)},
    {JSON_FIELD(tsr_simulation_summary, "seconds", seconds)},
    {JSON_FIELD(tsr_simulation_summary, "first_s", first)},
    {JSON_FIELD(tsr_simulation_summary, "period_s", period)},
    {JSON_RECORDS(tsr_simulation_summary, "timeline", device, devices, device_fields)},
    {JSON_END},
};

static const char *config_name(const struct page *page)
{
    return page->config ? tsr_config_name(page->config) : NULL;
}

// Returns the numbers of the page in full precision as JSON, for programs.
static tsr_json *data_of(const struct page *page, const struct verdict *verdict)
{
    tsr_json *json = tsr_json_new(page->session);
    if (!json)
        return NULL;
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", TSR_JSON_SCHEMA "report-data");
    tsr_json_int(json, "version", 1);
    tsr_json_string(json, "model", page->title);
    tsr_json_string(json, "configuration", config_name(page));
    if (page->plan)
        tsr_json_record(json, "plan", plan_fields, page->plan);
    if (page->simulation) {
        tsr__verdict_json(json, page, verdict);
        tsr_json_record(json, "simulation", simulation_fields, page->simulation);
        tsr_json_int(json, "communications", (int64_t)page->simulation->n_comms);
        tsr_json_int(json, "link_bytes", tsr__carried_bytes(page->simulation));
    }
    tsr_json_end(json);
    return json;
}

// Writes the page to a file. The page is made in memory first, so that no incomplete file is ever
// visible.
static tsr_status write_page(struct page *page, const char *path)
{
    struct outfile file = {0};
    struct verdict verdict = tsr__verdict_of(page);
    tsr_json *data = data_of(page, &verdict);
    tsr_status st = TSR_NOMEM;
    if (!data)
        return TSR_NOMEM;
    const char *text = tsr_json_text(data);
    if (!text)
        goto free_data;
    tsr__page_write(page, &verdict, text);
    if (page->out->failed || page->arena->failed)
        goto free_data;
    st = tsr__out_open(page->session, path, &file);
    if (st != TSR_OK)
        goto free_data;
    tsr__out_write(&file, page->out->p, page->out->n);
    st = tsr__out_commit(&file);
    tsr__out_abort(&file);
free_data:
    tsr_json_free(data);
    return st;
}

// Sets page->stage_of: the stage of a device is that of the first node with a stage that it
// computes in the simulation.
static void find_stages(struct page *page)
{
    struct map known;
    const tsr_simulation_summary *simulation = page->simulation;
    bool any = false;
    if (!page->config || !simulation)
        return;
    tsr__map_init(&known, page->arena, 256);
    int64_t *stages = ARENA_ARRAY(page->arena, int64_t, simulation->devices + 1);
    // By node name: stage + 1; 0: no stage.
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(page->model)); node;
         node = tsr_node_next(node)) {
        int64_t stage;
        const tsr_node_config *entry = tsr_node_find_config(node, page->config);
        if (!entry || !tsr_node_config_stage(entry, &stage) || stage < 0 || stage >= INT32_MAX)
            continue;
        tsr__map_set(&known, str_of(tsr__node_label(node)), (void *)(uintptr_t)(stage + 1));
        any = true;
    }
    if (!any || !stages)
        return;
    for (size_t i = 0; i < simulation->devices; i++)
        stages[i] = -1;
    // The first node with a stage decides.
    for (size_t i = 0; i < simulation->n_spans; i++) {
        const tsr_span *span = &simulation->spans[i];
        uintptr_t stage = (uintptr_t)tsr__map_get(&known, str_of(span->node));
        if (stage && span->kind == TSR_SPAN_COMPUTE && stages[span->device] < 0)
            stages[span->device] = (int64_t)stage - 1;
    }
    page->stage_of = stages;
}

// Sets page->sized to a copy of the model with all sizes set and missing shardings inferred. Does
// nothing without a configuration. Drops the diagnostics. Fails only if out of memory; after other
// failures the copy is incomplete or NULL.
static tsr_status fill_in(struct page *page)
{
    struct diag_mark before = tsr__diag_mark(page->session);
    size_t errors = tsr__diag_errors(page->session);
    const char *config = config_name(page);
    if (!config)
        return TSR_OK;
    if (!tsr__plan_sizes(page->arena, page->model, config, &page->sizes, &page->n_sizes))
        return TSR_NOMEM;
    tsr_status status = tsr_model_clone(page->model, &page->sized);
    if (status != TSR_OK)
        goto forget_findings;
    status = tsr__shapes_declare(page->sized, page->sizes, page->n_sizes, NULL);
    if (status != TSR_OK)
        goto forget_findings;
    // tsr_infer_config needs valid shardings.
    status = tsr_check_config(page->sized, config);
    if (status == TSR_OK && tsr__diag_errors(page->session) == errors)
        status = tsr_infer_config(page->sized, config);
forget_findings:
    tsr__diag_back(page->session, &before, false);
    return status == TSR_NOMEM ? TSR_NOMEM : TSR_OK;
}

// Writes the report in a format; NULL: html.
static tsr_status write_as(struct page *page, const char *format, const char *path)
{
    if (!format || strcmp(format, "html") == 0) {
        find_stages(page);
        return write_page(page, path);
    }
    bool cuts = strcmp(format, "model-explorer-cuts") == 0;
    if ((cuts || strcmp(format, "model-explorer") == 0) && page->simulation)
        return tsr__explorer_write(page, cuts, path);
    return tsr__fail(page->session, TSR_USAGE, DIAG_report_format, NULL,
                     "use html, model-explorer or model-explorer-cuts", "%s",
                     page->simulation ? "unknown report format" : "this format needs a simulation");
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

// Writes the report of a plan, optionally with a comparison with another plan.
tsr_status tsr_report_page(tsr_model *model, const tsr_report_input *options, const char *path)
{
    TRY(tsr__given(tsr_model_session(model), "path", path));
    tsr_report_input given = {.size = sizeof given};
    tsr_session *session = tsr_model_session(model);
    if (options)
        given = *options;
    TRY(owned(session, &given));
    TRY(tsr__check_dims(&model, 1, given.sizes, given.n_sizes));
    struct arena arena = {.session = session};
    struct text text = {.session = session};
    text.max = MAX_PAGE;
    struct page page = {.session = session,
                        .arena = &arena,
                        .out = &text,
                        .model = model,
                        .title = title_of(model, given.title),
                        .topology = given.topology,
                        .simulation = given.simulation ? &given.simulation->summary : NULL,
                        .command = given.command,
                        .comparison = given.beside,
                        .sizes = given.sizes,
                        .n_sizes = given.n_sizes,
                        .memory = given.memory};
    if (given.plan && given.plan->summary.feasible)
        page.plan = &given.plan->summary;
    tsr_status st = find_config(&page, given.config);
    if (st != TSR_OK)
        goto free_all;
    if (given.trace)
        st = tsr__report_trace(&page, given.trace);
    if (st != TSR_OK)
        goto free_all;
    st = fill_in(&page);
    if (st != TSR_OK)
        goto free_all;
    st = write_as(&page, given.format, path);
free_all:
    tsr_model_free(page.sized);
    tsr__text_free(&text);
    tsr__arena_free(&arena);
    return st;
}

// Writes the page of one plan.
tsr_status tsr_report(tsr_model *model, const tsr_report_options *options, const char *path)
{
    tsr_report_options given;
    tsr_session *session = tsr_model_session(model);
    TRY(OPTIONS_READ(session, &given, options, command));
    if (given.plan)
        TRY(tsr__same_session(session, given.plan->session, "plan"));
    if (given.simulation)
        TRY(tsr__same_session(session, given.simulation->session, "simulation"));
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
