// SPDX-License-Identifier: Apache-2.0
// cmd_check.c - reports all errors in the device annotations as text, JSON or SARIF.
//
// The diagnostics are the result, so they go to stdout. Exit code 1 if there are errors.
#include "cli/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Prints the diagnostics and the totals; with --quiet only errors and the totals.
static void print_findings(struct cli *cli)
{
    size_t n = tsr_finding_count(cli->session);
    for (size_t i = 0; i < n; i++)
        if (!cli->quiet || tsr_finding_value(cli->session, i).severity == TSR_ERROR)
            fputs(tsr_finding_text(cli->session, i), stdout);
    printf("%zu errors, %zu warnings, %zu notes\n", tsr_finding_total(cli->session, TSR_ERROR),
           tsr_finding_total(cli->session, TSR_WARNING), tsr_finding_total(cli->session, TSR_NOTE));
}

static int print_check_json(struct cli *cli, int code)
{
    tsr_json *json = cli_json(cli);
    tsr_json_findings(json, "findings");
    tsr_json_int(json, "errors", (int64_t)tsr_finding_total(cli->session, TSR_ERROR));
    tsr_json_int(json, "warnings", (int64_t)tsr_finding_total(cli->session, TSR_WARNING));
    tsr_json_int(json, "notes", (int64_t)tsr_finding_total(cli->session, TSR_NOTE));
    return cli_print_json(cli, json, code);
}

// SARIF's names of the levels, indexed by tsr_severity.
static const char *const levels[] = {"error", "warning", "note"};

// Writes the object {"text": TEXT}.
static void sarif_text(tsr_json *json, const char *key, const char *text)
{
    tsr_json_begin(json, key, '{');
    tsr_json_string(json, "text", text);
    tsr_json_end(json);
}

static bool occurs(const struct cli *cli, const char *code)
{
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++)
        if (!strcmp(tsr_finding_value(cli->session, i).code, code))
            return true;
    return false;
}

// Writes one rule per code that occurs.
static void sarif_rules(struct cli *cli, tsr_json *json)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (!occurs(cli, code))
            continue;
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "id", code);
        sarif_text(json, "shortDescription", title);
        sarif_text(json, "fullDescription", explanation);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes a path as a URI: relative paths stay relative, bytes other than letters, digits and a few
// marks are escaped. Example: "my model.onnx" becomes "my%20model.onnx".
static void sarif_uri(tsr_json *json, const char *path)
{
    static const char digits[] = "0123456789ABCDEF", plain[] = "-._~/";
    const char *scheme = path[0] == '/' ? "file://" : "";
    char *uri = cli_alloc(3 * strlen(path) + strlen(scheme) + 1, 1);
    char *end = stpcpy(uri, scheme);
    for (; *path; path++) {
        unsigned char byte = (unsigned char)*path;
        if (byte < 0x80 && (isalnum(byte) || strchr(plain, byte))) {
            *end++ = *path;
        } else {
            *end++ = '%';
            *end++ = digits[byte >> 4];
            *end++ = digits[byte & 15];
        }
    }
    *end = '\0';
    tsr_json_string(json, "uri", uri);
}

// Writes the place of a diagnostic. Code-scanning services require a line number; models have no
// lines, so it is 1.
static void sarif_location(struct cli *cli, tsr_json *json, const tsr_finding *finding)
{
    char name[512];
    // "main#3 mm:W": graph, index, node (its operator if it has no name), value.
    snprintf(name, sizeof name, "%s#%lld %s%s%s", finding->graph, (long long)finding->node_index,
             cli_text_or(finding->node, finding->op), finding->value[0] ? ":" : "", finding->value);
    tsr_json_begin(json, "locations", '[');
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "physicalLocation", '{');
    tsr_json_begin(json, "artifactLocation", '{');
    sarif_uri(json, cli_text_or(finding->file, cli->arguments[0]));
    tsr_json_end(json);
    tsr_json_begin(json, "region", '{');
    tsr_json_int(json, "startLine", 1);
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

// Writes the diagnostics. The hint is part of the message: SARIF has fixes only as edits of text.
static void sarif_results(struct cli *cli, tsr_json *json)
{
    tsr_json_begin(json, "results", '[');
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++) {
        tsr_finding finding = tsr_finding_value(cli->session, i);
        char text[2048];
        snprintf(text, sizeof text, "%s%s%s", finding.message, finding.hint[0] ? ". Help: " : "",
                 finding.hint);
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "ruleId", finding.code);
        tsr_json_string(json, "level", levels[finding.severity]);
        sarif_text(json, "message", text);
        sarif_location(cli, json, &finding);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static int print_sarif(struct cli *cli, int code)
{
    tsr_json *json = tsr_json_new(cli->session);
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

// Adds diagnostics for topologies that cannot be read or have another number of devices.
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

static int run(struct cli *cli)
{
    tsr_model *model = NULL;
    const char *only = cli_value(cli, "--config");
    tsr_status (*check)(tsr_model * model, const char *config) = tsr_check_config;
    if (cli_flag(cli, "--formalism"))
        check = tsr_check_formalism;
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK)
        status = check(model, only);
    if (status != TSR_OK) {
        int code = cli_finish(cli, status);
        if (cli_flag(cli, "--sarif") && status != TSR_NOMEM)
            code = print_sarif(cli, code); // a scan reports models that cannot be read, too
        tsr_model_free(model);
        return code;
    }
    check_topologies(model, only);
    int code = tsr_finding_total(cli->session, TSR_ERROR) ? EXIT_NO : EXIT_DONE;
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
    {"--config", "NAME", "check only this configuration (default: all)"},
    {"--formalism", NULL,
     "check by the published formalism: an input without a sharding has that of its producer, or "
     "is "
     "unsharded; the inputs of a node must agree"},
    {"--sarif", NULL, "print a SARIF 2.1.0 document for code-scanning tools"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_check = {
    .name = "check",
    .arguments = "MODEL",
    .summary = "check the device annotations of a model",
    .example = "tessera check tests/models/bert_tiny/model.onnx",
    .options = options,
    .takes = {1, 1},
    .run = run,
};
