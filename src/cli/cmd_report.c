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
static int replay(struct report *report, const char *path)
{
    struct editor editor;
    int code = EXIT_READ;
    if (edit_begin(&editor, report->c, report->model)) {
        edit_run_script(&editor, path);
        code = editor.code;
    }
    edit_end(&editor);
    if (!code && tsr_model_ir_version(report->model) < 11 &&
        tsr_model_set_ir_version(report->model, 11) != TSR_OK)
        code = EXIT_READ;
    if (code)
        cli_finish(report->c, TSR_OK);
    return code;
}

static const char *config_of(const struct report *report)
{
    const char *named = cli_value(report->c, "--config");
    if (named || tsr_model_config_count(report->model) != 1)
        return named;
    return tsr_config_name(tsr_model_config(report->model, 0));
}

// Numbers of the plan: of the one that is made here, or of the shardings that the model has. Those with stages have none.
static tsr_status plan(struct report *report)
{
    tsr_model *copy = NULL;
    tsr_plan_options options = report->g.options;
    bool cut = report->config != NULL;
    options.config = report->config;
    if (!options.topology)
        options.topology = report->kept;
    if (cut && !options.topology && !options.devices)
        options.devices = tsr_config_devices(tsr_model_find_config(report->model, report->config));
    tsr_status status = cut ? tsr_model_clone(report->model, &copy) : TSR_OK;
    if (status == TSR_OK)
        status = tsr_plan(cut ? copy : report->model, &options, &report->plan);
    tsr_model_free(copy);
    if (status == TSR_OK && !cut)
        report->config = report->plan.config;
    if (cut && status != TSR_OK) {
        tsr_finding_clear(report->c->session);
        report->plan.feasible = false;
        return TSR_OK;
    }
    return status;
}

static tsr_status look(struct report *report)
{
    tsr_simulate_options options = {.size = sizeof options,
                                    .config = report->config,
                                    .topology = report->g.options.topology,
                                    .sizes = report->g.options.sizes,
                                    .n_sizes = report->g.options.n_sizes};
    tsr_status status = tsr_simulate(report->model, &options, &report->simulation);
    if (status == TSR_OK && !report->g.options.topology && !report->kept)
        status = tsr_model_topology(report->model, report->config, &report->kept);
    return status == TSR_OK ? tsr_check(report->model, report->config) : status;
}

static int make(struct report *report, const char *out)
{
    tsr_status status = TSR_OK;
    report->config = config_of(report);
    if (report->config && !tsr_model_find_config(report->model, report->config))
        return cli_usage(report->c, "the model has no configuration '%s'", report->config);
    if (report->config && !report->g.options.topology)
        status = tsr_model_topology(report->model, report->config, &report->kept);
    if (!report->config && !cli_value(report->c, "--devices"))
        return cli_usage(report->c, "the model is not cut: give --devices N or a topology");
    cli_tell_dims(report->c, report->model, report->g.options.sizes, report->g.options.n_sizes);
    if (status == TSR_OK)
        status = plan(report);
    if (status == TSR_OK)
        status = look(report);
    tsr_report_options options = {
        .size = sizeof options,
        .config = report->config,
        .topology = report->g.options.topology ? report->g.options.topology : report->kept,
        .plan = &report->plan,
        .simulation = &report->simulation,
        .trace = cli_value(report->c, "--trace")};
    if (status == TSR_OK)
        status = tsr_report(report->model, &options, out);
    return cli_print_written(report->c, out, cli_finish(report->c, status));
}

static int run(struct cli *cli)
{
    struct report report = {.c = cli,
                            .plan = {.size = sizeof report.plan},
                            .simulation = {.size = sizeof report.simulation}};
    const char *out = cli_value(cli, "-o"), *document = cli_value(cli, "--plan");
    if (!out)
        return cli_usage(cli, "where to? give -o page.html");
    int code = cli_planning(cli, &report.g);
    if (code)
        return code;
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &report.model);
    if (status != TSR_OK)
        code = cli_finish(cli, status);
    if (!code && document)
        code = replay(&report, document);
    if (!code)
        code = make(&report, out);
    tsr_topology_free(report.kept);
    tsr_model_free(report.model);
    cli_planning_end(&report.g);
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
