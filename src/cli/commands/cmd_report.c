// SPDX-License-Identifier: Apache-2.0
// cmd_report.c - a plan and its predicted run as one HTML page.
//
// The page shows shardings, a simulation on their topology, and the trace of a real run (--trace).
// The shardings are those of the model, of a plan document (--plan) or of a new plan. `struct
// report` has one plan; --beside adds a second one in another session.
#include "cli/cli.h"
#include "cli/edit/edit.h"

#include <stdlib.h>
#include <string.h>

struct report {
    struct cli *cli;
    struct planning planning;
    tsr_model *model;
    const char *config;
    tsr_topology *kept;    // stored in the model by the planner
    tsr_plan_result *plan; // NULL: unknown
    tsr_simulation *simulation;
    int requests;
};

// Applies the edits of a plan document. Shardings need IR version 11.
static int replay(struct report *report, const char *path)
{
    struct editor editor;
    edit_begin(&editor, report->cli, report->model);
    edit_run_script(&editor, path);
    int code = editor.code;
    if (!code && tsr_model_ir_version(report->model) < 11 &&
        tsr_model_set_ir_version(report->model, 11) != TSR_OK)
        code = EXIT_READ;
    if (code)
        cli_finish(report->cli, TSR_OK);
    return code;
}

// Returns --config, else the only configuration of the model. NULL: there is none, or more than
// one; the model is then planned.
static const char *config_of(const struct report *report)
{
    const char *named = cli_value(report->cli, "--config");
    if (named || tsr_model_config_count(report->model) != 1)
        return named;
    return tsr_config_name(tsr_model_config(report->model, 0));
}

// Plans the model, or predicts the time of its shardings. If the prediction fails, for example
// because of stages, report->plan stays NULL.
static tsr_status plan(struct report *report)
{
    tsr_model *copy = NULL;
    tsr_plan_options options = report->planning.options;
    bool sharded = report->config != NULL;
    options.config = report->config;
    if (!options.topology)
        options.topology = report->kept;
    if (sharded && !options.topology && !options.devices)
        options.devices = tsr_config_devices(tsr_model_find_config(report->model, report->config));
    if (!sharded) {
        tsr_status status = tsr_plan(report->model, &options, &report->plan);
        if (status == TSR_OK)
            report->config = cli_plan_facts(report->plan).config;
        return status;
    }
    // The planner keeps shardings, but chooses them for nodes without. So they are inferred first,
    // as for the simulation. The model itself is not changed.
    tsr_infer_options inferred = {.size = sizeof inferred, .config = report->config};
    tsr_status status = tsr_model_clone(report->model, &copy);
    if (status == TSR_OK)
        status = tsr_infer(copy, &inferred);
    if (status == TSR_OK)
        status = tsr_plan(copy, &options, &report->plan);
    tsr_model_free(copy);
    if (status == TSR_OK || status == TSR_NOMEM)
        return status;
    tsr_finding_clear(report->cli->session);
    return TSR_OK; // the page shows no plan that does not fit
}

// Simulates and checks the model. The page writer reads the diagnostics from the session.
static tsr_status simulate(struct report *report)
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
    return tsr_check(report->model, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                         .config = report->config});
}

// Two requests per stage show the pipeline: 6 for three stages, at most MAX_REQUESTS.
#define MAX_REQUESTS 8
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
    return highest < MAX_REQUESTS / 2 ? (int)(2 * (highest + 1)) : MAX_REQUESTS;
}

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
    return simulate(report);
}

// Loads the model and its plan. document: a plan, or NULL for the model's own shardings.
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
        return cli_usage(report->cli,
                         "the model has no configuration '%s'; `tessera info` lists them",
                         report->config);
    return 0;
}

// ---- the plan of --beside ---------------------------------------------------------------------

// Loads the other plan of a comparison in a second session, so that its diagnostics are separate.
// `file` is a model with shardings, or a plan document for the same model.
static int load_beside(struct report *other, struct report *report, struct cli *own,
                       const char *file)
{
    bool document = cli_ends_with(file, ".json");
    tsr_session_options options = {.size = sizeof options};
    *own = *report->cli;
    own->session = NULL;
    int code = cli_open_session(own, &options);
    if (code)
        return code;
    *other = (struct report){.cli = own};
    code = cli_read_rules(own);
    if (code)
        return code;
    code = cli_planning(own, &other->planning);
    if (code)
        return code;
    code = document ? load(other, report->cli->arguments[0], file) : load(other, file, NULL);
    if (code)
        return code;
    if (!other->config)
        return cli_usage(report->cli,
                         "--beside needs a model with shardings or a plan document; '%s' has none",
                         file);
    return cli_finish(own, prepare(other));
}

static void end(struct report *report)
{
    tsr_plan_result_free(report->plan);
    tsr_simulation_free(report->simulation);
    tsr_topology_free(report->kept);
    tsr_model_free(report->model);
    cli_planning_end(&report->planning);
}

static void end_beside(struct report *other)
{
    end(other);
    if (other->cli)
        tsr_session_free(other->cli->session);
}

// ---- the command line on the page -------------------------------------------------------------

// Quotes words with special characters for a shell.
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

// Returns the command that makes the page, quoted for a shell; to be freed. Includes options that
// were filled in for a generation folder.
static char *command_of(const struct cli *cli)
{
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    if (!to)
        cli_die("tessera: error[out-of-memory]: cannot store the command line\n", EXIT_READ);
    fputs("tessera report", to);
    add_word(to, cli->folder ? cli->folder : cli->arguments[0]);
    for (size_t i = 0; i < cli->n_given; i++) {
        add_word(to, cli->given[i].option->name);
        if (cli->given[i].value)
            add_word(to, cli->given[i].value);
    }
    bool failed = ferror(to) != 0;
    if (fclose(to) != 0 || failed || !text)
        cli_die("tessera: error[out-of-memory]: cannot store the command line\n", EXIT_READ);
    return text;
}

// ---- the command ------------------------------------------------------------------------------

static const tsr_topology *topology_of(const struct report *report)
{
    const tsr_topology *given = report->planning.options.topology;
    return given ? given : report->kept;
}

// Writes the report to a file or, if `out` is NULL, makes its document.
static tsr_status write_report(struct report *report, const struct report *other, const char *out,
                               tsr_json **document)
{
    char *command = command_of(report->cli);
    tsr_report_side side = {.model = other->model,
                            .title = cli_value(report->cli, "--beside"),
                            .config = other->config,
                            .topology = topology_of(other),
                            .plan = other->plan,
                            .simulation = other->simulation};
    tsr_report_input options = {.size = sizeof options,
                                .config = report->config,
                                .topology = topology_of(report),
                                .plan = report->plan,
                                .simulation = report->simulation,
                                .trace = cli_value(report->cli, "--trace"),
                                .sizes = report->planning.options.sizes,
                                .n_sizes = report->planning.options.n_sizes,
                                .memory = report->planning.options.memory,
                                .command = command,
                                .format = cli_value(report->cli, "--format")};
    if (other->model)
        options.beside = &side;
    tsr_status status = out ? tsr_report_page(report->model, &options, out)
                            : tsr_report_json(report->model, &options, document);
    free(command);
    return status;
}

// Prints the document, or which file was written.
static int print_result(struct cli *cli, const char *out, tsr_json *document, tsr_status status)
{
    int code = cli_finish(cli, status);
    if (out)
        return cli_print_written(cli, out, code);
    return document ? cli_print_document(cli, document, code) : code;
}

static int make(struct report *report, const char *out)
{
    const char *file = cli_value(report->cli, "--beside");
    struct report other = {0};
    struct cli own;
    if (!report->config && !cli_value(report->cli, "--devices"))
        return cli_usage(report->cli, "the model has no shardings: use --devices N or a topology");
    cli_report_dims(report->cli, report->model, report->planning.options.sizes,
                    report->planning.options.n_sizes, "--dim");
    tsr_status status = prepare(report);
    if (status != TSR_OK)
        return print_result(report->cli, out, NULL, status);
    int code = file ? load_beside(&other, report, &own, file) : 0;
    if (code)
        goto end_other;
    tsr_json *document = NULL;
    status = write_report(report, &other, out, &document);
    code = print_result(report->cli, out, document, status);
end_other:
    end_beside(&other);
    return code;
}

static int run(struct cli *cli)
{
    struct report report = {.cli = cli};
    const char *out = cli_value(cli, "-o");
    if (!out && !cli->json)
        return cli_usage(cli, "no output file given: use -o page.html");
    if (!out && cli_value(cli, "--format"))
        return cli_usage(cli, "--format needs an output file: use -o");
    int code = cli_fill(cli, OPTION_OWN, &report);
    if (!code)
        code = cli_planning(cli, &report.planning);
    if (code)
        return code;
    code = load(&report, cli->arguments[0], cli_value(cli, "--plan"));
    if (!code)
        code = make(&report, out);
    end(&report);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (required if it has several)"},
    {"--plan", "FILE", "use the shardings of a plan document (plan --plan)"},
    {"--trace", "FILE", "show the trace of a run (run --trace)"},
    {"--format", "NAME",
     "html (default), json (the data of the page), or node data for Model Explorer: "
     "model-explorer (time), model-explorer-cuts"},
    {"--beside", "FILE", "compare with another plan: a model with shardings, or a plan document"},
    {"--requests", "N", "number of runs in a row (default 1; with stages two per stage)",
     INTO(struct report, requests), .min = 1, .max = 1000},
    {"-o", "FILE", "write the page to this file"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_report = {
    .name = "report",
    .arguments = "MODEL -o page.html",
    .summary = "write an HTML page: verdict, memory, times, communication, shardings",
    .detail = "Shows the shardings of the model, or plans it first for --devices. The page is\n"
              "one file that works offline. With --json and without -o, prints its data.",
    .example = "tessera report tests/models/bert_tiny/model.onnx --devices 4 --dim batch=8 --dim "
               "seq=32 -o page.html",
    .options = options_table,
    .takes = {1, 1},
    .run = run,
};
