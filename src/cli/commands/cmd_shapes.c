// SPDX-License-Identifier: Apache-2.0
// cmd_shapes.c - infers types and shapes of all values and writes them into the model.
#include "cli/cli.h"

static int print_summary(struct cli *cli, const char *out, const tsr_shapes_summary *summary)
{
    if (!cli->json) {
        cli_print(cli, "%s: written; %zu of %zu values have a shape, %zu without unknown sizes\n",
                  out, summary->ranked, summary->values, summary->fixed);
        return EXIT_DONE;
    }
    // typed: known element type; ranked: known rank; fixed: all sizes are numbers or expressions.
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_shapes_summary, "values", values)},
        {JSON_FIELD(tsr_shapes_summary, "typed", typed)},
        {JSON_FIELD(tsr_shapes_summary, "ranked", ranked)},
        {JSON_FIELD(tsr_shapes_summary, "fixed", fixed)},
        {JSON_END},
    };
    tsr_json *json = cli_json(cli);
    tsr_json_fields(json, fields, summary);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, EXIT_DONE);
}

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

static int run_shapes(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    struct cli_dims dims;
    if (!out)
        return cli_usage(cli, "no output file given: use -o OUT");
    int code = cli_read_dims(cli, &dims);
    return code ? code : complete(cli, out, dims.at, dims.n);
}

static const struct option options[] = {
    {"-o", "OUT", "write the model to this file"},
    {"--dim", "NAME=SIZE",
     "size of a symbolic dimension: batch=2, or x.0=2 if it has no name (repeatable)"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_shapes = {
    .name = "shapes",
    .arguments = "MODEL -o OUT",
    .summary = "infer types and shapes of all values",
    .detail = "Declared types and shapes are completed, never replaced; a declaration that\n"
              "contradicts an operator is a warning.\n"
              "Sizes may be expressions of symbols: past + 1, batch*seq.",
    .example = "tessera shapes tests/models/bert_tiny/model.onnx --dim batch=1 -o shaped.onnx",
    .options = options,
    .takes = {1, 1},
    .run = run_shapes,
};
