// SPDX-License-Identifier: Apache-2.0
// cmd_infer.c - fills in what the annotations left open and writes the model.
#include "cli/cli.h"

static tsr_status infer(struct cli *cli, tsr_model *model)
{
    const char *config = cli_value(cli, "--config");
    if (cli_flag(cli, "--formalism"))
        return tsr_infer_formalism(model, config);
    return tsr_infer_opts(model, config, cli_flag(cli, "--propagate"));
}

// Inference fails with findings where shardings contradict each other; then nothing is written, and
// with --json `written` is null.
static int run(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    tsr_model *model = NULL;
    if (!out)
        return cli_usage(cli, "where to? give -o OUT");
    if (cli_flag(cli, "--formalism") && cli_flag(cli, "--propagate"))
        return cli_usage(cli, "--formalism and --propagate contradict each other: give one");
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK)
        status = infer(cli, model);
    if (status == TSR_OK)
        status = cli_label(cli, model);
    if (status == TSR_OK)
        status = tsr_model_save(model, out);
    int code = cli_finish(cli, status);
    tsr_model_free(model);
    return cli_print_written(cli, out, code);
}

static const struct option options[] = {
    {"-o", "OUT", "the model to write"},
    {"--config", "NAME", "configuration to complete (needed if the model has several)"},
    {"--propagate", NULL, "let shardings go backwards and sideways too, to the nodes before"},
    {"--formalism", NULL,
     "infer by the published formalism: a missing input sharding is the producer's, and nodes "
     "whose inputs then disagree are errors"},
    LABELS_OPTION,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_infer = {
    .name = "infer",
    .arguments = "MODEL -o OUT",
    .summary = "fill in what the annotations left open",
    .detail = "Explicit shardings are never changed. Inputs without one take what the node's other "
              "shardings demand, else what\n"
              "their producer gives; outputs follow from the operator's rule. With --propagate, "
              "what a node needs also becomes the "
              "sharding of the\n"
              "output that it reads, unless that is explicit, contradicts what arrives there, or "
              "another node has it in place;\n"
              "of several wishes the first in the order of the nodes is granted, others are notes.",
    .example = "tessera infer cut.onnx -o complete.onnx",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
