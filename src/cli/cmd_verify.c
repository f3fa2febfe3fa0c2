// SPDX-License-Identifier: Apache-2.0
// cmd_verify.c - cuts a model, runs it cut and whole, compares.
#include "summary.h"

#include <math.h>
#include <stdlib.h>

static void print_outputs(const tsr_verify_result *r)
{
    printf("%-24s %12s %12s\n", "output", "max abs", "max rel");
    for (size_t i = 0; i < r->n_outputs; i++) {
        const tsr_difference *d = &r->outputs[i];
        printf("%-24s %12.3g %12.3g %s\n", d->name, d->max_abs, d->max_rel,
               d->ok ? "" : "DIFFERENT");
    }
    if (r->recorded >= 0)
        printf("recorded outputs: %s\n",
               r->recorded
                   ? "equal within tolerance"
                   : "different (cut and whole agree: another model or engine made the recording)");
    printf("%s\n", r->ok ? "PASS" : "FAIL");
}

static int print_verify_json(struct cli *c, const tsr_verify_result *r, int code)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_bool(j, "ok", r->ok);
    if (r->recorded < 0)
        tsr_json_null(j, "recorded");
    else
        tsr_json_bool(j, "recorded", r->recorded > 0);
    summary_json(j, &r->partition);
    tsr_json_begin(j, "outputs", '[');
    for (size_t i = 0; i < r->n_outputs; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", r->outputs[i].name);
        tsr_json_number(j, "max_abs", r->outputs[i].max_abs);
        tsr_json_number(j, "max_rel", r->outputs[i].max_rel);
        tsr_json_bool(j, "ok", r->outputs[i].ok);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    return cli_print_json(c, j, code);
}

static int run(struct cli *c)
{
    tsr_verify_options options = {.size = sizeof options};
    tsr_verify_result result = {.size = sizeof result};
    const char *tolerance = cli_value(c, "--tolerance");
    int code = cli_read_run_options(c, &options.run);
    if (code)
        return code;
    if (tolerance && !cli_number(tolerance, &options.tolerance))
        return cli_usage(c, "--tolerance wants a positive number, not '%s'", tolerance);
    options.config = cli_value(c, "--config");
    options.inputs = cli_inputs(c);
    if (!options.inputs)
        return EXIT_USAGE;
    options.work = getenv("TMPDIR");
    tsr_status status = cli_engine(c, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_verify(c->session, c->arguments[0], &options, &result);
    code = cli_finish(c, status);
    if (status != TSR_OK && status != TSR_DIFFERENT)
        return code;
    if (c->json)
        return print_verify_json(c, &result, code);
    summary_print(stdout, &result.partition);
    print_outputs(&result);
    return code;
}

static const struct option options_table[] = {
    {"--config", "NAME", "configuration to cut for (needed if the model has several)"},
    INPUT_OPTIONS,
    {"--tolerance", "X",
     "largest difference relative to the output's largest magnitude (default 5e-5 for float32)"},
    RUN_OPTIONS,
    END_OF_OPTIONS,
};

const struct command cmd_verify = {
    .name = "verify",
    .arguments = "MODEL",
    .summary = "cut an annotated model, run it cut and whole, compare",
    .example = "tessera verify /tmp/cut.onnx --inputs tests/models/t5_tiny/test_data_set_0",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
