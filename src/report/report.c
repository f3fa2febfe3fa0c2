// SPDX-License-Identifier: Apache-2.0
// report.c - tsr_report: brings together what the page shows, and writes it whole or not at all.
#include "report/internal.h"

#define MAX_PAGE ((size_t)256 << 20)

static const char *title_of(const tsr_model *m, const char *given)
{
    const char *path = tsr_model_path(m), *at = path + strlen(path);
    for (int slashes = 0; at > path; at--) // with its folder: many are called model.onnx
        if (at[-1] == '/' && ++slashes == 2)
            break;
    return given ? given : at[0] ? at : "a model";
}

// The one that is named, or the only one.
static tsr_status find_config(struct page *p, const char *name)
{
    if (!name && tsr_model_config_count(p->model) == 1)
        p->config = tsr_model_config(p->model, 0);
    if (!name)
        return TSR_OK;
    p->config = tsr_model_find_config(p->model, name);
    if (p->config)
        return TSR_OK;
    struct place at = PLACE_NONE;
    at.configuration = str_of(name);
    tsr__diag(p->session, DIAG_config_unknown, &at, "name one that the model has",
              "the model has no configuration of that name");
    return TSR_INVALID;
}

static void add_plan(tsr_json *j, const tsr_plan_summary *s)
{
    tsr_json_begin(j, "plan", '{');
    tsr_json_int(j, "cost", s->cost);
    tsr_json_int(j, "bound", s->bound);
    tsr_json_bool(j, "optimal", s->optimal);
    tsr_json_begin(j, "memory", '[');
    for (size_t i = 0; i < s->devices; i++)
        tsr_json_int(j, NULL, s->memory[i]);
    tsr_json_end(j);
    tsr_json_begin(j, "collectives", '{');
    for (size_t i = 0; i < s->n_collectives; i++)
        tsr_json_int(j, s->collectives[i].op, (int64_t)s->collectives[i].count);
    tsr_json_end(j);
    tsr_json_int(j, "nodes", (int64_t)s->nodes);
    tsr_json_int(j, "cut_nodes", (int64_t)s->cut_nodes);
    tsr_json_end(j);
}

static void add_simulation(tsr_json *j, const tsr_simulation *x)
{
    tsr_json_begin(j, "simulation", '{');
    tsr_json_int(j, "requests", x->requests);
    tsr_json_number(j, "seconds", x->seconds);
    tsr_json_number(j, "first_s", x->first);
    tsr_json_number(j, "period_s", x->period);
    tsr_json_begin(j, "timeline", '[');
    for (size_t i = 0; i < x->devices; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_number(j, "compute_s", x->device[i].compute);
        tsr_json_number(j, "communication_s", x->device[i].communication);
        tsr_json_number(j, "waiting_s", x->device[i].waiting);
        tsr_json_number(j, "idle_s", x->device[i].idle);
        tsr_json_int(j, "weights", x->device[i].weights);
        tsr_json_int(j, "memory", x->device[i].memory);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_end(j);
}

// The numbers of the page, exactly, for programs.
static tsr_json *data_of(const struct page *p)
{
    tsr_json *j = tsr_json_new(p->session);
    if (!j)
        return NULL;
    tsr_json_begin(j, NULL, '{');
    tsr_json_int(j, "version", 1);
    tsr_json_string(j, "model", p->title);
    tsr_json_string(j, "configuration", p->config ? tsr_config_name(p->config) : NULL);
    if (p->plan)
        add_plan(j, p->plan);
    if (p->simulation)
        add_simulation(j, p->simulation);
    tsr_json_end(j);
    return j;
}

static tsr_status write_page(struct page *p, const char *path)
{
    struct outfile o = {0};
    tsr_json *data = data_of(p);
    const char *text = data ? tsr_json_text(data) : NULL;
    if (text)
        tsr__page_write(p, text);
    tsr_status st = !text || p->out->failed || p->arena->failed
                        ? TSR_NOMEM
                        : tsr__out_open(p->session, path, &o);
    if (st == TSR_OK) {
        tsr__out_write(&o, p->out->p, p->out->n);
        st = tsr__out_commit(&o);
    }
    tsr__out_abort(&o);
    tsr_json_free(data);
    return st;
}

tsr_status tsr_report(tsr_model *m, const tsr_report_options *options, const char *path)
{
    tsr_report_options o = {.size = sizeof o};
    struct arena a;
    struct text t;
    tsr_session *s = tsr_model_session(m);
    if (options)
        memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    tsr__arena_init(&a, s);
    tsr__text_init(&t, s);
    t.max = MAX_PAGE;
    struct page p = {.session = s,
                     .arena = &a,
                     .out = &t,
                     .model = m,
                     .title = title_of(m, o.title),
                     .topology = o.topology,
                     .plan = o.plan && o.plan->feasible ? o.plan : NULL,
                     .simulation = o.simulation};
    tsr_status st = find_config(&p, o.config);
    if (st == TSR_OK && o.trace)
        st = tsr__report_trace(&p, o.trace);
    if (st == TSR_OK)
        st = write_page(&p, path);
    tsr__text_free(&t);
    tsr__arena_free(&a);
    return st;
}
