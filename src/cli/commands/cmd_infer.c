// SPDX-License-Identifier: Apache-2.0
// cmd_infer.c - infers missing shardings and writes the model.
#include "cli/cli.h"

static tsr_status infer(struct cli *cli, tsr_model *model)
{
    const char *config = cli_value(cli, "--config");
    if (cli_flag(cli, "--formalism"))
        return tsr_infer_formalism(model, config);
    return tsr_infer_opts(model, config, cli_flag(cli, "--propagate"));
}

// Infers shardings and writes the model. If shardings contradict each other, nothing is written.
static int run_infer(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    tsr_model *model = NULL;
    if (!out)
        return cli_usage(cli, "no output file given: use -o OUT");
    if (cli_flag(cli, "--formalism") && cli_flag(cli, "--propagate"))
        return cli_usage(cli, "--formalism and --propagate exclude each other");
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
    {"-o", "OUT", "write the model to this file"},
    {"--config", "NAME", "configuration to complete (required if the model has several)"},
    {"--propagate", NULL, "also propagate shardings backwards, to producers"},
    {"--formalism", NULL,
     "infer by the published formalism: a missing input sharding is the producer's; nodes whose "
     "inputs then disagree are errors"},
    LABELS_OPTION,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_infer = {
    .name = "infer",
    .arguments = "MODEL -o OUT",
    .summary = "infer missing shardings",
    .detail = "Explicit shardings never change. An input without a sharding gets what the\n"
              "node's other shardings require, else that of its producer; outputs follow from\n"
              "the operator's rule. With --propagate, the sharding that a node needs becomes\n"
              "that of its producer, unless that is explicit, contradicts other inputs, or is\n"
              "set by another node. If nodes disagree, the first one wins and the others are\n"
              "reported as notes.",
    .example = "tessera infer cut.onnx -o complete.onnx",
    .options = options,
    .takes = {1, 1},
    .run = run_infer,
};
