// SPDX-License-Identifier: Apache-2.0
// cmd_shapes.c - finds types and shapes of all values and writes them into the model.
//
// The library completes what the model declares (tsr_shapes); the model is saved whole or not at
// all. Of values: `typed` have an element type, `ranked` a number of dimensions, `fixed` all sizes
// as numbers or as expressions of symbols.
#include "cli/cli.h"

static int print_summary(struct cli *cli, const char *out, const tsr_shapes_summary *summary)
{
    if (!cli->json) {
        cli_say(
            cli,
            "%s: written; %zu of %zu values have a shape, %zu of them without an unknown size\n",
            out, summary->ranked, summary->values, summary->fixed);
        return EXIT_DONE;
    }
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    tsr_json_int(json, "values", (int64_t)summary->values);
    tsr_json_int(json, "typed", (int64_t)summary->typed);
    tsr_json_int(json, "ranked", (int64_t)summary->ranked);
    tsr_json_int(json, "fixed", (int64_t)summary->fixed);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, EXIT_DONE);
}

// Saves only what was completed without an error; the summary is printed last.
static int complete(struct cli *cli, const char *out, const tsr_dim_size *sizes, size_t n)
{
    tsr_model *model = NULL;
    tsr_shapes_summary summary = {.size = sizeof(summary)};
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK)
        status = tsr_shapes(model, sizes, n, &summary);
    if (status == TSR_OK)
        status = tsr_model_save(model, out);
    int code = cli_finish(cli, status);
    if (code == EXIT_DONE)
        code = print_summary(cli, out, &summary);
    tsr_model_free(model);
    return code;
}

static int run(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    struct cli_dims dims;
    if (!out)
        return cli_usage(cli, "where to? give -o OUT");
    int code = cli_read_dims(cli, &dims);
    if (code == EXIT_DONE)
        code = complete(cli, out, dims.at, dims.n);
    cli_free_dims(&dims);
    return code;
}

static const struct option options[] = {
    {"-o", "OUT", "the model to write"},
    {"--dim", "NAME=SIZE",
     "size of an open dimension: batch=2, or x.0=2 where it has no name; may be repeated"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_shapes = {
    .name = "shapes",
    .arguments = "MODEL -o OUT",
    .summary = "find types and shapes of all values",
    .detail =
        "What the model declares is completed, never replaced; a declaration that an operator "
        "contradicts is a warning.\n"
        "Sizes may be expressions of symbols: past + 1, batch*seq.",
    .example = "tessera shapes tests/models/bert_tiny/model.onnx --dim batch=1 -o shaped.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
