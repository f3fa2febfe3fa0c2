// SPDX-License-Identifier: Apache-2.0
// cmd_report.c - a plan and what a run of it would be, as one HTML page.
//
// Up to three sources meet on a page: shardings (of the model, of a plan's document with --plan, or
// of a plan that is made here), a simulation of them on their topology, and a trace of a real run
// (--trace). `struct report` gathers one side; with --beside there is a second, in a session of its
// own. Order: load, plan, simulate, check, then the library writes the page.
#include "cli/cli.h"
#include "cli/edit/edit.h"

#include <stdlib.h>
#include <string.h>

// What the page is made of.
struct report {
    struct cli *cli;
    struct planning planning;
    tsr_model *model;
    const char *config;
    tsr_topology *kept; // that the model was planned for
    tsr_plan_summary plan;
    tsr_simulation simulation;
    int requests; // that follow one another in the simulation
};

// The shardings of a plan's document.
// A plan's document holds edits (edit.c), applied to the loaded model. Shardings need IR version
// 11, to which the model in memory is raised.
static int replay(struct report *report, const char *path)
{
    struct editor editor;
    edit_begin(&editor, report->cli, report->model);
    edit_run_script(&editor, path);
    int code = editor.code;
    edit_end(&editor);
    if (!code && tsr_model_ir_version(report->model) < 11 &&
        tsr_model_set_ir_version(report->model, 11) != TSR_OK)
        code = EXIT_READ;
    if (code)
        cli_finish(report->cli, TSR_OK);
    return code;
}

// Named by the user, else the only one; NULL: there is none, and the model is planned.
static const char *config_of(const struct report *report)
{
    const char *named = cli_value(report->cli, "--config");
    if (named || tsr_model_config_count(report->model) != 1)
        return named;
    return tsr_config_name(tsr_model_config(report->model, 0));
}

// Numbers of the plan: of the one that is made here, or of the shardings that the model has. Those with stages have none.
static tsr_status plan(struct report *report)
{
    tsr_model *copy = NULL;
    tsr_plan_options options = report->planning.options;
    bool cut = report->config != NULL;
    options.config = report->config;
    if (!options.topology)
        options.topology = report->kept;
    if (cut && !options.topology && !options.devices)
        options.devices = tsr_config_devices(tsr_model_find_config(report->model, report->config));
    if (!cut) {
        tsr_status status = tsr_plan(report->model, &options, &report->plan);
        if (status == TSR_OK)
            report->config = report->plan.config;
        return status;
    }
    // Shardings that exist are priced by planning a copy that keeps them: the model itself is not
    // changed.
    tsr_status status = tsr_model_clone(report->model, &copy);
    if (status == TSR_OK)
        status = tsr_plan(copy, &options, &report->plan);
    tsr_model_free(copy);
    if (status == TSR_OK || status == TSR_NOMEM)
        return status;
    tsr_finding_clear(report->cli->session);
    report->plan.feasible = false;
    return TSR_OK;
}

// What the plan comes to, on its topology, beside one device; then the checker's findings, which stand on the page.
// The checker's findings stay in the session, where the writer of the page reads them.
static tsr_status look(struct report *report)
{
    tsr_simulate_options options = {.size = sizeof options,
                                    .config = report->config,
                                    .topology = report->planning.options.topology,
                                    .sizes = report->planning.options.sizes,
                                    .n_sizes = report->planning.options.n_sizes,
                                    .requests = report->requests,
                                    .one_device = true};
    tsr_status status = tsr_simulate(report->model, &options, &report->simulation);
    if (status != TSR_OK)
        return status;
    if (!report->planning.options.topology && !report->kept)
        status = tsr_model_topology(report->model, report->config, &report->kept);
    if (status != TSR_OK)
        return status;
    return tsr_check(report->model, report->config);
}

// Pipelines are seen when requests follow one another: two for each stage, at most MAX_REQUESTS.
#define MAX_REQUESTS 8
// Three stages, 0 to 2: 6 requests; four and more: 8.
static int requests_for(const struct report *report)
{
    int64_t stage, highest = -1;
    const tsr_config *config = tsr_model_find_config(report->model, report->config);
    if (!config)
        return 1;
    for (const tsr_node *node = tsr_graph_first(tsr_model_graph(report->model)); node;
         node = tsr_node_next(node)) {
        const tsr_node_config *entry = tsr_node_find_config(node, config);
        if (entry && tsr_node_config_stage(entry, &stage) && stage > highest)
            highest = stage;
    }
    if (highest < 1)
        return 1;
    if (highest < MAX_REQUESTS / 2)
        return (int)(2 * (highest + 1));
    return MAX_REQUESTS;
}

// Plans the model if it is not cut, simulates and checks it: all that the page says of one side.
static tsr_status prepare(struct report *report)
{
    tsr_status status = TSR_OK;
    if (report->config && !report->planning.options.topology)
        status = tsr_model_topology(report->model, report->config, &report->kept);
    if (status != TSR_OK)
        return status;
    status = plan(report);
    if (status != TSR_OK)
        return status;
    if (!report->requests)
        report->requests = requests_for(report);
    return look(report);
}

// `document` NULL: the model's own shardings.
static int load(struct report *report, const char *path, const char *document)
{
    tsr_status status = tsr_model_load(report->cli->session, path, &report->model);
    if (status != TSR_OK)
        return cli_finish(report->cli, status);
    int code = document ? replay(report, document) : 0;
    if (code)
        return code;
    report->config = config_of(report);
    if (report->config && !tsr_model_find_config(report->model, report->config))
        return cli_usage(report->cli, "the model has no configuration '%s'", report->config);
    return 0;
}

// ---- another plan beside it ------------------------------------------------------------------------

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

// The other plan has a session of its own, for a session keeps one simulation. FILE is a model with shardings, or the document of a
// plan for the same model.
static int load_beside(struct report *other, struct report *report, struct cli *own,
                       const char *file)
{
    bool document = ends_with(file, ".json");
    tsr_session_options options = {.size = sizeof options};
    *own = *report->cli;
    own->session = NULL;
    int code = cli_open_session(own, &options);
    if (code)
        return code;
    *other = (struct report){.cli = own,
                             .plan = {.size = sizeof other->plan},
                             .simulation = {.size = sizeof other->simulation}};
    code = cli_read_rules(own);
    if (code)
        return code;
    code = cli_planning(own, &other->planning); // a topology belongs to one session
    if (code)
        return code;
    code = document ? load(other, report->cli->arguments[0], file) : load(other, file, NULL);
    if (code)
        return code;
    if (!other->config)
        return cli_usage(
            report->cli,
            "--beside wants a model with shardings or a plan's document; '%s' has none", file);
    return cli_finish(own, prepare(other));
}

// Also of a side that was never loaded: all of it is zero then.
static void end_beside(struct report *other)
{
    tsr_topology_free(other->kept);
    tsr_model_free(other->model);
    cli_planning_end(&other->planning);
    if (other->cli)
        tsr_session_free(other->cli->session);
}

// ---- the command that makes the page again -----------------------------------------------------------

// Words of harmless characters stay as they are; all others are quoted for a shell.
static void add_word(FILE *to, const char *word)
{
    if (word[0] && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_=+:.,/@%") == strlen(word)) {
        fprintf(to, " %s", word);
        return;
    }
    fputs(" '", to);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", to);
        else
            fputc(*word, to);
    fputc('\'', to);
}

// As a shell reads it; to be freed. Without memory the command ends, as with cli_alloc.
// The page shows how it was made. A generation folder is named as the user gave it, and sizes that
// were filled in stand there as options.
static char *command_of(const struct cli *cli)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    if (!to)
        cli_die("tessera: error[out-of-memory]: no room for the command's text\n", EXIT_READ);
    fputs("tessera report", to);
    add_word(to, cli->folder ? cli->folder : cli->arguments[0]);
    for (size_t i = 0; i < cli->n_given; i++) {
        add_word(to, cli->given[i].option->name);
        if (cli->given[i].value)
            add_word(to, cli->given[i].value);
    }
    bool failed = ferror(to) != 0;
    if (fclose(to) != 0 || failed || !text)
        cli_die("tessera: error[out-of-memory]: no room for the command's text\n", EXIT_READ);
    return text;
}

// ---- all of it ---------------------------------------------------------------------------------------

// Topologies given by the user win over those that the model keeps.
static const tsr_topology *topology_of(const struct report *report)
{
    if (report->planning.options.topology)
        return report->planning.options.topology;
    return report->kept;
}

// `side` has no model where there is no other plan, and is then not passed on.
static tsr_status write_page(struct report *report, const struct report *other, const char *out)
{
    char *command = command_of(report->cli);
    tsr_report_side side = {.model = other->model,
                            .title = cli_value(report->cli, "--beside"),
                            .config = other->config,
                            .topology = topology_of(other),
                            .plan = &other->plan,
                            .simulation = &other->simulation};
    tsr_report_options options = {.size = sizeof options,
                                  .config = report->config,
                                  .topology = topology_of(report),
                                  .plan = &report->plan,
                                  .simulation = &report->simulation,
                                  .trace = cli_value(report->cli, "--trace"),
                                  .sizes = report->planning.options.sizes,
                                  .n_sizes = report->planning.options.n_sizes,
                                  .memory = report->planning.options.memory,
                                  .command = command,
                                  .format = cli_value(report->cli, "--format")};
    if (other->model)
        options.beside = &side;
    tsr_status status = tsr_report(report->model, &options, out);
    free(command);
    return status;
}

// The order matters for messages: what is wrong with the first side is told before the second is
// read.
static int make(struct report *report, const char *out)
{
    const char *file = cli_value(report->cli, "--beside");
    struct report other = {0};
    struct cli own;
    if (!report->config && !cli_value(report->cli, "--devices"))
        return cli_usage(report->cli, "the model is not cut: give --devices N or a topology");
    cli_tell_dims(report->cli, report->model, report->planning.options.sizes,
                  report->planning.options.n_sizes);
    tsr_status status = prepare(report);
    if (status != TSR_OK)
        return cli_print_written(report->cli, out, cli_finish(report->cli, status));
    int code = 0;
    if (file)
        code = load_beside(&other, report, &own, file);
    if (code)
        goto end_other;
    status = write_page(report, &other, out);
    code = cli_print_written(report->cli, out, cli_finish(report->cli, status));
end_other:
    end_beside(&other);
    return code;
}

// Loads, plans or simulates what is missing, and writes one page.
static int run(struct cli *cli)
{
    struct report report = {.cli = cli,
                            .plan = {.size = sizeof report.plan},
                            .simulation = {.size = sizeof report.simulation}};
    const char *out = cli_value(cli, "-o"), *text = cli_value(cli, "--requests");
    uint64_t requests = 0;
    if (!out)
        return cli_usage(cli, "where to? give -o page.html");
    if (text && (!cli_count_of(text, &requests) || requests < 1 || requests > 1000))
        return cli_usage(cli, "--requests wants a number from 1 to 1000, not '%s'", text);
    report.requests = (int)requests;
    int code = cli_planning(cli, &report.planning);
    if (code)
        return code;
    code = load(&report, cli->arguments[0], cli_value(cli, "--plan"));
    if (!code)
        code = make(&report, out);
    tsr_topology_free(report.kept);
    tsr_model_free(report.model);
    cli_planning_end(&report.planning);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (needed if it has several)"},
    {"--plan", "FILE", "the shardings of a plan, as plan --plan has written it"},
    {"--trace", "FILE", "what a run was seen to do, from run --trace"},
    {"--format", "NAME",
     "html, or node data for Model Explorer: model-explorer (time), model-explorer-cuts (default "
     "html)"},
    {"--beside", "FILE",
     "another plan to compare with: a model with shardings, or a plan's document"},
    {"--requests", "N", "runs that follow one another (default 1; with stages two for each)"},
    {"-o", "FILE", "the page"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_report = {
    .name = "report",
    .arguments = "MODEL -o page.html",
    .summary = "one HTML page: the verdict, memory, where time goes, communication, shardings",
    .detail =
        "Shows the shardings that the model has, or plans it first for --devices. The page needs "
        "nothing besides itself:\n"
        "it can be sent by mail and opened without a network.",
    .example = "tessera report tests/models/bert_tiny/model.onnx --devices 4 --dim batch=8 --dim "
               "seq=32 -o page.html",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
