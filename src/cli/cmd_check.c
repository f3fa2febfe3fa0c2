// SPDX-License-Identifier: Apache-2.0
// cmd_check.c - every mistake in the annotations at once, each with its place and its remedy.
#include "cli.h"

#include <string.h>

static void print_findings(struct cli *c)
{
    size_t n = tsr_finding_count(c->session);
    for (size_t i = 0; i < n; i++)
        if (!c->quiet || tsr_finding_at(c->session, i).severity == TSR_ERROR)
            fputs(tsr_finding_text(c->session, i), stdout);
    printf("%zu errors, %zu warnings, %zu notes\n", tsr_finding_total(c->session, TSR_ERROR),
           tsr_finding_total(c->session, TSR_WARNING), tsr_finding_total(c->session, TSR_NOTE));
}

static int print_check_json(struct cli *c, int code)
{
    tsr_json *j = cli_json(c);
    if (j) {
        tsr_json_findings(j, "findings");
        tsr_json_int(j, "errors", (int64_t)tsr_finding_total(c->session, TSR_ERROR));
        tsr_json_int(j, "warnings", (int64_t)tsr_finding_total(c->session, TSR_WARNING));
        tsr_json_int(j, "notes", (int64_t)tsr_finding_total(c->session, TSR_NOTE));
    }
    return cli_print_json(c, j, code);
}

static const char *const levels[] = {"error", "warning", "note"};

// Rules of the codes that occur, as SARIF wants them.
static void sarif_rules(struct cli *c, tsr_json *j)
{
    const char *code, *title, *explanation;
    tsr_severity severity;
    tsr_json_begin(j, "rules", '[');
    for (size_t i = 0; tsr_code_at(i, &code, &severity, &title, &explanation); i++) {
        bool occurs = false;
        for (size_t k = 0; k < tsr_finding_count(c->session) && !occurs; k++)
            occurs = !strcmp(tsr_finding_at(c->session, k).code, code);
        if (!occurs)
            continue;
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "id", code);
        tsr_json_begin(j, "shortDescription", '{');
        tsr_json_string(j, "text", title);
        tsr_json_end(j);
        tsr_json_begin(j, "fullDescription", '{');
        tsr_json_string(j, "text", explanation);
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

// The file, and the node in its graph as a logical location.
static void sarif_location(struct cli *c, tsr_json *j, const tsr_finding *f)
{
    char name[512];
    snprintf(name, sizeof name, "%s#%lld %s%s%s", f->graph, (long long)f->node_index,
             f->node[0] ? f->node : f->op, f->value[0] ? ":" : "", f->value);
    tsr_json_begin(j, "locations", '[');
    tsr_json_begin(j, NULL, '{');
    tsr_json_begin(j, "physicalLocation", '{');
    tsr_json_begin(j, "artifactLocation", '{');
    tsr_json_string(j, "uri", f->file[0] ? f->file : c->arguments[0]);
    tsr_json_end(j);
    tsr_json_end(j);
    if (f->node_index >= 0) {
        tsr_json_begin(j, "logicalLocations", '[');
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "fullyQualifiedName", name);
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    tsr_json_end(j);
}

static void sarif_results(struct cli *c, tsr_json *j)
{
    tsr_json_begin(j, "results", '[');
    for (size_t i = 0; i < tsr_finding_count(c->session); i++) {
        tsr_finding f = tsr_finding_at(c->session, i);
        char text[2048];
        snprintf(text, sizeof text, "%s%s%s", f.message, f.hint[0] ? ". Help: " : "", f.hint);
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "ruleId", f.code);
        tsr_json_string(j, "level", levels[f.severity]);
        tsr_json_begin(j, "message", '{');
        tsr_json_string(j, "text", text);
        tsr_json_end(j);
        sarif_location(c, j, &f);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static int print_sarif(struct cli *c, int code)
{
    tsr_json *j = tsr_json_new(c->session);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_begin(j, NULL, '{');
    tsr_json_string(j, "$schema", "https://json.schemastore.org/sarif-2.1.0.json");
    tsr_json_string(j, "version", "2.1.0");
    tsr_json_begin(j, "runs", '[');
    tsr_json_begin(j, NULL, '{');
    tsr_json_begin(j, "tool", '{');
    tsr_json_begin(j, "driver", '{');
    tsr_json_string(j, "name", "tessera");
    tsr_json_string(j, "version", tsr_version());
    sarif_rules(c, j);
    tsr_json_end(j);
    tsr_json_end(j);
    sarif_results(c, j);
    tsr_json_end(j);
    tsr_json_end(j);
    return cli_print_json(c, j, code);
}

// A topology that cannot be read, or is of another number of devices, adds its own findings.
static void check_topologies(tsr_model *m, const char *only)
{
    for (size_t i = 0; i < tsr_model_config_count(m); i++) {
        const char *name = tsr_config_name(tsr_model_config(m, i));
        tsr_topology *t = NULL;
        if (!only || strcmp(only, name) == 0)
            (void)tsr_model_topology(m, name, &t);
        tsr_topology_free(t);
    }
}

static int run(struct cli *c)
{
    tsr_model *m = NULL;
    const char *only = cli_value(c, "--config");
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status == TSR_OK)
        status = cli_flag(c, "--formalism") ? tsr_check_formalism(m, only) : tsr_check(m, only);
    if (status == TSR_OK)
        check_topologies(m, only);
    if (status != TSR_OK) {
        int code = cli_finish(c, status);
        tsr_model_free(m);
        return code;
    }
    int code = tsr_finding_total(c->session, TSR_ERROR) ? EXIT_NO : EXIT_DONE;
    if (cli_flag(c, "--sarif"))
        code = print_sarif(c, code);
    else if (c->json)
        code = print_check_json(c, code);
    else
        print_findings(c);
    tsr_model_free(m);
    return code;
}

static const struct option options[] = {
    {"--config", "NAME", "only this configuration (default: all)"},
    {"--formalism", NULL,
     "judge as the published formalism does: an input without a sharding lies as its producer "
     "left it, or whole"},
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
