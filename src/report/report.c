// SPDX-License-Identifier: Apache-2.0
// report.c - tsr_report: brings together what the page shows, and writes it whole or not at all.
#include "report/internal.h"

#define MAX_PAGE ((size_t)256 << 20)

static const char *title_of(const tsr_model *model, const char *given)
{
    const char *path = tsr_model_path(model), *at = path + strlen(path);
    for (int slashes = 0; at > path; at--) // with its folder: many are called model.onnx
        if (at[-1] == '/' && ++slashes == 2)
            break;
    if (given)
        return given;
    return at[0] ? at : "a model";
}

// The one that is named, or the only one.
static tsr_status find_config(struct page *page, const char *name)
{
    if (!name && tsr_model_config_count(page->model) == 1)
        page->config = tsr_model_config(page->model, 0);
    if (!name)
        return TSR_OK;
    page->config = tsr_model_find_config(page->model, name);
    if (page->config)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.configuration = str_of(name);
    tsr__diag(page->session, DIAG_config_unknown, &at, "name one that the model has",
              "the model has no configuration of that name");
    return TSR_INVALID;
}

static void add_plan(tsr_json *json, const tsr_plan_summary *summary)
{
    tsr_json_begin(json, "plan", '{');
    tsr_json_int(json, "cost", summary->cost);
    tsr_json_int(json, "bound", summary->bound);
    tsr_json_bool(json, "optimal", summary->optimal);
    tsr_json_begin(json, "memory", '[');
    for (size_t i = 0; i < summary->devices; i++)
        tsr_json_int(json, NULL, summary->memory[i]);
    tsr_json_end(json);
    tsr_json_begin(json, "collectives", '{');
    for (size_t i = 0; i < summary->n_collectives; i++)
        tsr_json_int(json, summary->collectives[i].op, (int64_t)summary->collectives[i].count);
    tsr_json_end(json);
    tsr_json_int(json, "nodes", (int64_t)summary->nodes);
    tsr_json_int(json, "cut_nodes", (int64_t)summary->cut_nodes);
    tsr_json_end(json);
}

static void add_simulation(tsr_json *json, const tsr_simulation *simulation)
{
    tsr_json_begin(json, "simulation", '{');
    tsr_json_int(json, "requests", simulation->requests);
    tsr_json_number(json, "seconds", simulation->seconds);
    tsr_json_number(json, "first_s", simulation->first);
    tsr_json_number(json, "period_s", simulation->period);
    tsr_json_begin(json, "timeline", '[');
    for (size_t i = 0; i < simulation->devices; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_number(json, "compute_s", simulation->device[i].compute);
        tsr_json_number(json, "communication_s", simulation->device[i].communication);
        tsr_json_number(json, "waiting_s", simulation->device[i].waiting);
        tsr_json_number(json, "idle_s", simulation->device[i].idle);
        tsr_json_int(json, "weights", simulation->device[i].weights);
        tsr_json_int(json, "memory", simulation->device[i].memory);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_end(json);
}

// The numbers of the page, exactly, for programs.
static tsr_json *data_of(const struct page *page)
{
    tsr_json *json = tsr_json_new(page->session);
    if (!json)
        return NULL;
    tsr_json_begin(json, NULL, '{');
    tsr_json_int(json, "version", 1);
    tsr_json_string(json, "model", page->title);
    tsr_json_string(json, "configuration", page->config ? tsr_config_name(page->config) : NULL);
    if (page->plan)
        add_plan(json, page->plan);
    if (page->simulation)
        add_simulation(json, page->simulation);
    tsr_json_end(json);
    return json;
}

static tsr_status write_page(struct page *page, const char *path)
{
    struct outfile file = {0};
    tsr_json *data = data_of(page);
    const char *text = data ? tsr_json_text(data) : NULL;
    if (text)
        tsr__page_write(page, text);
    tsr_status st = !text || page->out->failed || page->arena->failed
                        ? TSR_NOMEM
                        : tsr__out_open(page->session, path, &file);
    if (st == TSR_OK) {
        tsr__out_write(&file, page->out->p, page->out->n);
        st = tsr__out_commit(&file);
    }
    tsr__out_abort(&file);
    tsr_json_free(data);
    return st;
}

// Options of an older caller are shorter: only as many bytes as it has are copied, the rest stays zero.
tsr_status tsr_report(tsr_model *model, const tsr_report_options *options, const char *path)
{
    tsr_report_options given = {.size = sizeof given};
    struct arena arena;
    struct text text;
    tsr_session *session = tsr_model_session(model);
    if (options)
        memcpy(&given, options, options->size < sizeof given ? options->size : sizeof given);
    tsr__arena_init(&arena, session);
    tsr__text_init(&text, session);
    text.max = MAX_PAGE;
    struct page page = {.session = session,
                        .arena = &arena,
                        .out = &text,
                        .model = model,
                        .title = title_of(model, given.title),
                        .topology = given.topology,
                        .plan = given.plan && given.plan->feasible ? given.plan : NULL,
                        .simulation = given.simulation};
    tsr_status st = find_config(&page, given.config);
    if (st == TSR_OK && given.trace)
        st = tsr__report_trace(&page, given.trace);
    if (st == TSR_OK)
        st = write_page(&page, path);
    tsr__text_free(&text);
    tsr__arena_free(&arena);
    return st;
}
