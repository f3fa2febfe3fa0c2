// SPDX-License-Identifier: Apache-2.0
// cmd_infer.c - infers missing shardings and writes the model.
#include "cli/cli.h"

// Infers shardings and writes the model. If shardings contradict each other, nothing is written.
static int run_infer(struct cli *cli)
{
    const char *out = cli_value(cli, "-o");
    tsr_infer_options options = TSR_INFER_OPTIONS_INIT;
    tsr_model *model = NULL;
    int code = cli_fill(cli, OPTION_OWN, &options);
    if (code)
        return code;
    if (!out)
        return cli_usage(cli, "no output file given: use -o OUT");
    if (options.formalism && options.propagate)
        return cli_usage(cli, "--formalism and --propagate exclude each other");
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status == TSR_OK)
        status = tsr_infer(model, &options);
    if (status == TSR_OK)
        status = cli_label(cli, model);
    if (status == TSR_OK)
        status = tsr_model_save(model, out);
    code = cli_finish(cli, status);
    tsr_model_free(model);
    return cli_print_written(cli, out, code);
}

#define OPTION(member) INTO(tsr_infer_options, member)
static const struct option options_table[] = {
    {"-o", "OUT", "write the model to this file"},
    {"--config", "NAME", "configuration to complete (required if the model has several)",
     OPTION(config)},
    {"--propagate", NULL, "also propagate shardings backwards, to producers", OPTION(propagate)},
    {"--formalism", NULL,
     "infer by the published formalism: a missing input sharding is the producer's; nodes whose "
     "inputs then disagree are errors",
     OPTION(formalism)},
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
    .options = options_table,
    .takes = {1, 1},
    .run = run_infer,
};
