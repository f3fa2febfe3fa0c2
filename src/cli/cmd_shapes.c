// SPDX-License-Identifier: Apache-2.0
// cmd_shapes.c - finds types and shapes of all values and writes them into the model.
#include "cli.h"

static int print_summary(struct cli *c, const char *out, const tsr_shapes_summary *s)
{
    if (!c->json) {
        cli_say(
            c, "%s: written; %zu of %zu values have a shape, %zu of them without an unknown size\n",
            out, s->ranked, s->values, s->fixed);
        return EXIT_DONE;
    }
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_READ);
    tsr_json_int(j, "values", (int64_t)s->values);
    tsr_json_int(j, "typed", (int64_t)s->typed);
    tsr_json_int(j, "ranked", (int64_t)s->ranked);
    tsr_json_int(j, "fixed", (int64_t)s->fixed);
    tsr_json_findings(j, "findings");
    return cli_print_json(c, j, EXIT_DONE);
}

static int complete(struct cli *c, const char *out, const tsr_size *sizes, size_t n)
{
    tsr_model *m = NULL;
    tsr_shapes_summary summary = {.size = sizeof(summary)};
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status == TSR_OK)
        status = tsr_shapes(m, sizes, n, &summary);
    if (status == TSR_OK)
        status = tsr_model_save(m, out);
    int code = cli_finish(c, status);
    if (status == TSR_OK)
        print_summary(c, out, &summary);
    tsr_model_free(m);
    return code;
}

static int run(struct cli *c)
{
    const char *out = cli_value(c, "-o");
    struct cli_dims dims;
    if (!out)
        return cli_usage(c, "where to? give -o OUT");
    int code = cli_read_dims(c, &dims);
    if (code == EXIT_DONE)
        code = complete(c, out, dims.at, dims.n);
    cli_free_dims(&dims);
    return code;
}

static const struct option options[] = {
    {"-o", "OUT", "the model to write"},
    {"--dim", "NAME=SIZE", "size of a symbolic dimension; may be repeated"},
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
    .example = "tessera shapes tests/models/bert_tiny/model.onnx --dim batch=1 -o /tmp/shaped.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
