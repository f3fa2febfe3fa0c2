// SPDX-License-Identifier: Apache-2.0
// cmd_check.c - reports all errors in the device annotations as text, JSON or SARIF.
//
// The diagnostics are the result, so they go to stdout. Exit code 1 if there are errors. Several
// models are checked one after the other and become one document; the exit code is the highest:
// 3 if one cannot be read, even if another has errors. The diagnostics of all models are printed.
//
// `tessera-check` of the wheel is this command, for hooks of version control.
#include "cli/cli.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// Result of one file. `exit` is its exit code; failed: it could not be checked.
struct checked {
    const char *file;
    bool failed;
    int64_t exit, errors, warnings, notes;
};
// The command. With --json and --sarif, `json` is the document.
struct check {
    struct cli *cli;
    bool sarif;             // print SARIF
    const char *sarif_file; // write SARIF to this file and print text; or NULL
    tsr_json *json;
    bool *codes;           // by index of the code: it occurred
    struct checked *files; // of each argument
};

// Prints the diagnostics and the totals; with --quiet only errors and the totals. Of several files,
// the totals name their file.
static void print_findings(struct cli *cli, const struct checked *checked)
{
    size_t n = tsr_finding_count(cli->session);
    for (size_t i = 0; i < n; i++)
        if (!cli->quiet || tsr_finding_value(cli->session, i).severity == TSR_ERROR)
            cli_print_finding(cli, i, stdout);
    if (cli->n_arguments > 1)
        printf("%s: ", checked->file);
    printf("%lld errors, %lld warnings, %lld notes\n", (long long)checked->errors,
           (long long)checked->warnings, (long long)checked->notes);
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

// Remembers which codes occur in the file that was checked last.
static void note_codes(struct check *check)
{
    const char *code;
    for (size_t k = 0; tsr_code_at(k, &code, NULL, NULL, NULL); k++)
        for (size_t i = 0; i < tsr_finding_count(check->cli->session) && !check->codes[k]; i++)
            check->codes[k] = !strcmp(tsr_finding_value(check->cli->session, i).code, code);
}

// Writes one rule per code that occurs.
static void sarif_rules(const struct check *check)
{
    tsr_json *json = check->json;
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json_begin(json, "rules", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        if (!check->codes[i])
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
static void sarif_location(tsr_json *json, const char *file, const tsr_finding *finding)
{
    char name[512];
    // "main#3 mm:W": graph, index, node (its operator if it has no name), value.
    snprintf(name, sizeof name, "%s#%lld %s%s%s", finding->graph, (long long)finding->node_index,
             cli_text_or(finding->node, finding->op), finding->value[0] ? ":" : "", finding->value);
    tsr_json_begin(json, "locations", '[');
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "physicalLocation", '{');
    tsr_json_begin(json, "artifactLocation", '{');
    sarif_uri(json, cli_text_or(finding->file, file));
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

// Writes the diagnostics of a file. The hint is part of the message: SARIF has fixes only as edits
// of text.
static void sarif_results(struct cli *cli, tsr_json *json, const char *file)
{
    for (size_t i = 0; i < tsr_finding_count(cli->session); i++) {
        tsr_finding finding = tsr_finding_value(cli->session, i);
        char text[2048];
        snprintf(text, sizeof text, "%s%s%s", finding.message, finding.hint[0] ? ". Help: " : "",
                 finding.hint);
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "ruleId", finding.code);
        tsr_json_string(json, "level", levels[finding.severity]);
        sarif_text(json, "message", text);
        sarif_location(json, file, &finding);
        tsr_json_end(json);
    }
}

static tsr_json *begin_sarif(struct cli *cli)
{
    tsr_json *json = tsr_json_new(cli->session);
    tsr_json_begin(json, NULL, '{');
    tsr_json_string(json, "$schema", "https://json.schemastore.org/sarif-2.1.0.json");
    tsr_json_string(json, "version", "2.1.0");
    tsr_json_begin(json, "runs", '[');
    tsr_json_begin(json, NULL, '{');
    tsr_json_begin(json, "results", '[');
    return json;
}

static void end_sarif(const struct check *check)
{
    tsr_json *json = check->json;
    tsr_json_end(json);
    tsr_json_begin(json, "tool", '{');
    tsr_json_begin(json, "driver", '{');
    tsr_json_string(json, "name", "tessera");
    tsr_json_string(json, "version", tsr_version());
    sarif_rules(check);
    tsr_json_end(json);
    tsr_json_end(json);
    tsr_json_end(json);
    tsr_json_end(json);
}

// ---- JSON --------------------------------------------------------------------------------------

static tsr_json *begin_json(struct cli *cli)
{
    tsr_json *json = cli_json(cli);
    tsr_json_begin(json, "findings", '[');
    return json;
}

static const tsr_json_field count_fields[] = {
    {JSON_FIELD(struct checked, "errors", errors)},
    {JSON_FIELD(struct checked, "warnings", warnings)},
    {JSON_FIELD(struct checked, "notes", notes)},
    {JSON_END},
};
static const tsr_json_field file_fields[] = {
    {JSON_FIELD(struct checked, "file", file)},
    {JSON_FIELD(struct checked, "exit", exit)},
    {JSON_FIELD(struct checked, "errors", errors)},
    {JSON_FIELD(struct checked, "warnings", warnings)},
    {JSON_FIELD(struct checked, "notes", notes)},
    {JSON_END},
};

// Writes the totals, and those of each file if there are several.
static void end_json(const struct check *check)
{
    size_t n = check->cli->n_arguments;
    struct checked sum = {0};
    for (size_t i = 0; i < n; i++) {
        sum.errors += check->files[i].errors;
        sum.warnings += check->files[i].warnings;
        sum.notes += check->files[i].notes;
    }
    tsr_json_end(check->json);
    tsr_json_fields(check->json, count_fields, &sum);
    if (n > 1)
        tsr_json_records(check->json, "files", file_fields, check->files, n, sizeof *check->files);
}

// ---- checking ----------------------------------------------------------------------------------

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

// Loads and checks a model. The session has its diagnostics.
static void check_model(struct cli *cli, struct checked *checked)
{
    tsr_model *model = NULL;
    tsr_check_options options = {.size = sizeof options,
                                 .config = cli_value(cli, "--config"),
                                 .formalism = cli_flag(cli, "--formalism")};
    tsr_status status = tsr_model_load(cli->session, checked->file, &model);
    if (status == TSR_OK)
        status = tsr_check(model, &options);
    checked->failed = status != TSR_OK;
    if (checked->failed) {
        checked->exit = cli_finish(cli, status);
    } else {
        check_topologies(model, options.config);
        bool found = tsr_finding_total(cli->session, TSR_ERROR) ||
                     (cli_flag(cli, "--strict") && tsr_finding_total(cli->session, TSR_WARNING));
        checked->exit = found ? EXIT_NO : EXIT_DONE;
    }
    tsr_model_free(model);
}

// Checks one file and adds its diagnostics to the output. Those of a model that cannot be checked
// are on stderr too (cli_finish).
static void check_file(struct check *check, struct checked *checked)
{
    struct cli *cli = check->cli;
    tsr_finding_clear(cli->session);
    check_model(cli, checked);
    checked->errors = (int64_t)tsr_finding_total(cli->session, TSR_ERROR);
    checked->warnings = (int64_t)tsr_finding_total(cli->session, TSR_WARNING);
    checked->notes = (int64_t)tsr_finding_total(cli->session, TSR_NOTE);
    note_codes(check);
    if (check->sarif || check->sarif_file)
        sarif_results(cli, check->json, checked->file); // also of models that cannot be read
    else if (cli->json)
        tsr_json_finding_items(check->json);
    if (!check->sarif && !cli->json && !checked->failed)
        print_findings(cli, checked);
}

static int write_sarif(const struct check *check, int code)
{
    tsr_json_end(check->json);
    tsr_finding_clear(check->cli->session);
    tsr_status status = tsr_json_write(check->json, check->sarif_file);
    tsr_json_free(check->json);
    return status == TSR_OK ? code : cli_finish(check->cli, status);
}

static int run_check(struct cli *cli)
{
    struct check check = {.cli = cli,
                          .sarif = cli_flag(cli, "--sarif"),
                          .sarif_file = cli_value(cli, "--sarif-file")};
    size_t codes = 0;
    int code = EXIT_DONE;
    if (check.sarif_file && (check.sarif || cli->json))
        return cli_usage(cli, "--sarif-file prints text: leave out --sarif and --json");
    while (tsr_code_at(codes, NULL, NULL, NULL, NULL))
        codes++;
    check.codes = cli_alloc(codes + 1, sizeof *check.codes);
    check.files = cli_alloc(cli->n_arguments, sizeof *check.files);
    if (check.sarif || check.sarif_file)
        check.json = begin_sarif(cli);
    else if (cli->json)
        check.json = begin_json(cli);
    for (size_t i = 0; i < cli->n_arguments; i++) {
        check.files[i].file = cli->arguments[i];
        check_file(&check, &check.files[i]);
        if (check.files[i].exit > code)
            code = (int)check.files[i].exit;
    }
    // One model that cannot be checked: main.c prints the document of a failed command.
    bool no_result = cli->json && !check.sarif && cli->n_arguments == 1 && check.files[0].failed;
    if (no_result)
        tsr_json_free(check.json);
    if (no_result || !check.json)
        return code;
    if (check.sarif || check.sarif_file)
        end_sarif(&check);
    else
        end_json(&check);
    return check.sarif_file ? write_sarif(&check, code) : cli_print_json(cli, check.json, code);
}

static const struct option options[] = {
    {"--config", "NAME", "check only this configuration (default: all)"},
    {"--formalism", NULL,
     "check by the published formalism: an input without a sharding has that of its producer, or "
     "is unsharded; the inputs of a node must agree"},
    {"--strict", NULL, "exit with 1 for warnings too: shardings that Tessera cannot execute"},
    {"--sarif", NULL, "print a SARIF 2.1.0 document for code-scanning tools"},
    {"--sarif-file", "FILE", "print text, and write the SARIF document to this file"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_check = {
    .name = "check",
    .arguments = "MODEL...",
    .summary = "check the device annotations of models",
    .detail =
        "Exit code 0: no errors; 1: a model has errors; 3: a model cannot be read. If one has\n"
        "errors and another cannot be read, the exit code is 3, and the errors are printed.\n"
        "tessera-check of the Python package is the same command.",
    .example = "tessera check tests/models/bert_tiny/model.onnx",
    .options = options,
    .takes = {1, INT_MAX},
    .run = run_check,
};
