// SPDX-License-Identifier: Apache-2.0
// cmd_check.c - every mistake in the annotations at once, each with its place and its remedy.
//
// The checker adds findings to the session; this file prints them as text, as JSON, or as SARIF,
// which code-scanning services show beside a file. Unlike other commands the findings are the
// result and go to stdout. Exit code: 0, EXIT_NO with errors, or another where the model could not
// be read.
#include "cli/cli.h"

#include <string.h>

// --quiet leaves errors and the last line.
static void print_findings(struct cli *cli)
{
    size_t n = tsr_finding_count(cli->session);
    for (size_t i = 0; i < n; i++)
        if (!cli->quiet || tsr_finding_at(cli->session, i).severity == TSR_ERROR)
            fputs(tsr_finding_text(cli->session, i), stdout);
    printf("%zu errors, %zu warnings, %zu notes\n", tsr_finding_total(cli->session, TSR_ERROR),
           tsr_finding_total(cli->session, TSR_WARNING), tsr_finding_total(cli->session, TSR_NOTE));
}

static int print_check_json(struct cli *cli, int code)
{
    tsr_json *json = cli_json(cli);
    if (json) {
        tsr_json_findings(json, "findings");
        tsr_json_int(json, "errors", (int64_t)tsr_finding_total(cli->session, TSR_ERROR));
        tsr_json_int(json, "warnings", (int64_t)tsr_finding_total(cli->session, TSR_WARNING));
        tsr_json_int(json, "notes", (int64_t)tsr_finding_total(cli->session, TSR_NOTE));
    }
    return cli_print_json(cli, json, code);
}

// By tsr_severity; SARIF has the same words.
static const char *const levels[] = {"error", "warning", "note"};

// Rules of the codes that occur, as SARIF wants them.
// The table of codes is walked and not the findings, so that each code stands there once.
static void sarif_rules(struct cli *cli, tsr_json *json)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        bool occurs = false;
        for (size_t k = 0; k < tsr_finding_count(cli->session) && !occurs; k++)
            occurs = !strcmp(tsr_finding_at(cli->session, k).code, code);
        if (!occurs)
            continue;
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "id", code);
        tsr_json_begin(json, "shortDescription", '{');
        tsr_json_string(json, "text", title);
        tsr_json_end(json);
        tsr_json_begin(json, "fullDescription", '{');
        tsr_json_string(json, "text", explanation);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// The file, and the node in its graph as a logical location.
static void sarif_location(struct cli *cli, tsr_json *json, const tsr_finding *finding)
{
    char name[512];
    // "main#3 mm:W": graph, index, node (its operator where it has no name), value.
    snprintf(name, sizeof name, "%s#%lld %s%s%s", finding->graph, (long long)finding->node_index,
             cli_text_or(finding->node, finding->op), cli_text_if(finding->value[0], ":"),
             finding->value);
    tsr_json_begin(json, "locations", '[');
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "physicalLocation", '{');
    tsr_json_begin(json, "artifactLocation", '{');
    tsr_json_string(json, "uri", cli_text_or(finding->file, cli->arguments[0]));
    tsr_json_end(json);
    tsr_json_end(json);
    if (finding->node_index >= 0) {
        tsr_json_begin(json, "logicalLocations", '[');
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "fullyQualifiedName", name);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_end(json);
}

// What helps is part of the message: SARIF has fixes only as edits of text.
static void sarif_results(struct cli *cli, tsr_json *json)
{
    tsr_json_begin(json, "results", '[');
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++) {
        tsr_finding finding = tsr_finding_at(cli->session, i);
        char text[2048];
        snprintf(text, sizeof text, "%s%s%s", finding.message,
                 cli_text_if(finding.hint[0], ". Help: "), finding.hint);
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "ruleId", finding.code);
        tsr_json_string(json, "level", levels[finding.severity]);
        tsr_json_begin(json, "message", '{');
        tsr_json_string(json, "text", text);
        tsr_json_end(json);
        sarif_location(cli, json, &finding);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// The nesting is SARIF's: a document has runs, a run has the tool with its rules, and the results.
static int print_sarif(struct cli *cli, int code)
{
    tsr_json *json = tsr_json_new(cli->session);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", "https://json.schemastore.org/sarif-2.1.0.json");
    tsr_json_string(json, "version", "2.1.0");
    tsr_json_begin(json, "runs", '[');
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "tool", '{');
    tsr_json_begin(json, "driver", '{');
    tsr_json_string(json, "name", "tessera");
    tsr_json_string(json, "version", tsr_version());
    sarif_rules(cli, json);
    tsr_json_end(json);
    tsr_json_end(json);
    sarif_results(cli, json);
    tsr_json_end(json);
    tsr_json_end(json);
    return cli_print_json(cli, json, code);
}

// A topology that cannot be read, or is of another number of devices, adds its own findings.
// The status is not looked at: what is wrong has become a finding, which is what is wanted here.
static void check_topologies(tsr_model *model, const char *only)
{
    for (size_t i = 0; i < tsr_model_config_count(model); i++) {
        const char *name = tsr_config_name(tsr_model_config(model, i));
        tsr_topology *topology = NULL;
        if (!only || strcmp(only, name) == 0)
            (void)tsr_model_topology(model, name, &topology);
        tsr_topology_free(topology);
    }
}

// Findings of severity error make the exit code EXIT_NO; warnings alone do not.
static int run(struct cli *cli)
{
    tsr_model *model = NULL;
    const char *only = cli_value(cli, "--config");
    tsr_status (*check)(tsr_model * model, const char *config) = tsr_check;
    if (cli_flag(cli, "--formalism"))
        check = tsr_check_formalism;
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK)
        status = check(model, only);
    if (status != TSR_OK) {
        int code = cli_finish(cli, status);
        tsr_model_free(model);
        return code;
    }
    check_topologies(model, only);
    int code = EXIT_DONE;
    if (tsr_finding_total(cli->session, TSR_ERROR))
        code = EXIT_NO;
    if (cli_flag(cli, "--sarif"))
        code = print_sarif(cli, code);
    else if (cli->json)
        code = print_check_json(cli, code);
    else
        print_findings(cli);
    tsr_model_free(model);
    return code;
}

static const struct option options[] = {
    {"--config", "NAME", "only this configuration (default: all)"},
    {"--formalism", NULL,
     "check by the published formalism: an input without a sharding has that of its producer, or "
     "is unsharded; inputs of every node must agree"},
    {"--sarif", NULL, "findings as a SARIF 2.1.0 document, for code-scanning tools"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_check = {
    .name = "check",
    .arguments = "MODEL",
    .summary = "every mistake in the device annotations, with its place and its remedy",
    .example = "tessera check tests/models/bert_tiny/model.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
