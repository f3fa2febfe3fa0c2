// SPDX-License-Identifier: Apache-2.0
// cmd_report.c - a plan and what a run of it would be, as one HTML page.
#include "cli.h"
#include "edit.h"

// What the page is made of.
struct report {
    struct cli *c;
    struct planning g;
    tsr_model *model;
    const char *config;
    tsr_topology *kept; // that the model was planned for
    tsr_plan_summary plan;
    tsr_simulation simulation;
};

// The shardings of a plan's document.
static int replay(struct report *r, const char *path)
{
    struct editor e;
    int code = EXIT_READ;
    if (edit_begin(&e, r->c, r->model)) {
        edit_run_script(&e, path);
        code = e.code;
    }
    edit_end(&e);
    if (!code && tsr_model_ir_version(r->model) < 11 &&
        tsr_model_set_ir_version(r->model, 11) != TSR_OK)
        code = EXIT_READ;
    if (code)
        cli_finish(r->c, TSR_OK);
    return code;
}

static const char *config_of(const struct report *r)
{
    const char *named = cli_value(r->c, "--config");
    if (named || tsr_model_config_count(r->model) != 1)
        return named;
    return tsr_config_name(tsr_model_config(r->model, 0));
}

// Numbers of the plan: of the one that is made here, or of the shardings that the model has. Those with stages have none.
static tsr_status plan(struct report *r)
{
    tsr_model *copy = NULL;
    tsr_plan_options o = r->g.options;
    bool cut = r->config != NULL;
    o.config = r->config;
    if (!o.topology)
        o.topology = r->kept;
    if (cut && !o.topology && !o.devices)
        o.devices = tsr_config_devices(tsr_model_find_config(r->model, r->config));
    tsr_status status = cut ? tsr_model_clone(r->model, &copy) : TSR_OK;
    if (status == TSR_OK)
        status = tsr_plan(cut ? copy : r->model, &o, &r->plan);
    tsr_model_free(copy);
    if (status == TSR_OK && !cut)
        r->config = r->plan.config;
    if (cut && status != TSR_OK) {
        tsr_finding_clear(r->c->session);
        r->plan.feasible = false;
        return TSR_OK;
    }
    return status;
}

static tsr_status look(struct report *r)
{
    tsr_simulate_options o = {.size = sizeof o,
                              .config = r->config,
                              .topology = r->g.options.topology,
                              .sizes = r->g.options.sizes,
                              .n_sizes = r->g.options.n_sizes};
    tsr_status status = tsr_simulate(r->model, &o, &r->simulation);
    if (status == TSR_OK && !r->g.options.topology && !r->kept)
        status = tsr_model_topology(r->model, r->config, &r->kept);
    return status == TSR_OK ? tsr_check(r->model, r->config) : status;
}

static int make(struct report *r, const char *out)
{
    tsr_status status = TSR_OK;
    r->config = config_of(r);
    if (r->config && !tsr_model_find_config(r->model, r->config))
        return cli_usage(r->c, "the model has no configuration '%s'", r->config);
    if (r->config && !r->g.options.topology)
        status = tsr_model_topology(r->model, r->config, &r->kept);
    if (!r->config && !cli_value(r->c, "--devices"))
        return cli_usage(r->c, "the model is not cut: give --devices N or a topology");
    cli_tell_dims(r->c, r->model, r->g.options.sizes, r->g.options.n_sizes);
    if (status == TSR_OK)
        status = plan(r);
    if (status == TSR_OK)
        status = look(r);
    tsr_report_options o = {.size = sizeof o,
                            .config = r->config,
                            .topology = r->g.options.topology ? r->g.options.topology : r->kept,
                            .plan = &r->plan,
                            .simulation = &r->simulation,
                            .trace = cli_value(r->c, "--trace")};
    if (status == TSR_OK)
        status = tsr_report(r->model, &o, out);
    return cli_print_written(r->c, out, cli_finish(r->c, status));
}

static int run(struct cli *c)
{
    struct report r = {
        .c = c, .plan = {.size = sizeof r.plan}, .simulation = {.size = sizeof r.simulation}};
    const char *out = cli_value(c, "-o"), *document = cli_value(c, "--plan");
    if (!out)
        return cli_usage(c, "where to? give -o page.html");
    int code = cli_planning(c, &r.g);
    if (code)
        return code;
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &r.model);
    if (status != TSR_OK)
        code = cli_finish(c, status);
    if (!code && document)
        code = replay(&r, document);
    if (!code)
        code = make(&r, out);
    tsr_topology_free(r.kept);
    tsr_model_free(r.model);
    cli_planning_end(&r.g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (needed if it has several)"},
    {"--plan", "FILE", "the shardings of a plan, as plan --plan has written it"},
    {"--trace", "FILE", "what a run was seen to do, from run --trace"},
    {"-o", "FILE", "the page"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_report = {
    .name = "report",
    .arguments = "MODEL -o page.html",
    .summary = "one HTML page: devices, memory, where time goes, shardings, communication",
    .detail =
        "Shows the shardings that the model has, or plans it first for --devices. The page needs "
        "nothing besides itself:\n"
        "it can be sent by mail and opened without a network.",
    .example = "tessera report tests/models/bert_tiny/model.onnx --devices 4 --dim batch=8 --dim "
               "seq=32 -o /tmp/page.html",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
