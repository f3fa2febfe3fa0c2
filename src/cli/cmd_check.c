// SPDX-License-Identifier: Apache-2.0
// cmd_check.c - every mistake in the annotations at once, each with its place and its remedy.
#include "cli.h"

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

static int run(struct cli *c)
{
    tsr_model *m = NULL;
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status == TSR_OK)
        status = tsr_check(m, cli_value(c, "--config"));
    if (status != TSR_OK) {
        int code = cli_finish(c, status);
        tsr_model_free(m);
        return code;
    }
    int code = tsr_finding_total(c->session, TSR_ERROR) ? EXIT_NO : EXIT_DONE;
    if (c->json)
        code = print_check_json(c, code);
    else
        print_findings(c);
    tsr_model_free(m);
    return code;
}

static const struct option options[] = {
    {"--config", "NAME", "only this configuration (default: all)"},
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
