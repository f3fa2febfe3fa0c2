// SPDX-License-Identifier: Apache-2.0
// cmd_partition.c - one ONNX file per device, weights cut, communication explicit.
#include "summary.h"

static int report(struct cli *c, const char *folder, const tsr_partition_summary *p)
{
    if (c->json) {
        tsr_json *j = cli_json(c);
        if (j) {
            tsr_json_string(j, "folder", folder);
            summary_json(j, p);
        }
        return cli_print_json(c, j, EXIT_DONE);
    }
    if (!c->quiet)
        summary_print(stdout, p);
    cli_say(c, "%s: written\n", folder);
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    const char *folder = cli_value(c, "-o");
    tsr_partition_options options = {
        .size = sizeof options,
        .config = cli_value(c, "--config"),
        .force = cli_flag(c, "--force"),
        .strict = cli_flag(c, "--strict"),
    };
    tsr_partition_summary summary = {.size = sizeof summary};
    tsr_model *m = NULL;
    if (!folder)
        return cli_usage(c, "where to? give -o FOLDER");
    tsr_status status = tsr_model_load(c->session, c->arguments[0], &m);
    if (status == TSR_OK)
        status = tsr_partition(m, folder, &options, &summary);
    int code = cli_finish(c, status);
    if (status == TSR_OK)
        code = report(c, folder, &summary);
    tsr_model_free(m);
    return code;
}

static const struct option options_table[] = {
    {"-o", "FOLDER", "the folder to make"},
    {"--config", "NAME", "configuration to cut for (needed if the model has several)"},
    {"--force", NULL, "replace an existing folder"},
    {"--strict", NULL, "fail (exit 5) where a node that was meant to be cut is not"},
    END_OF_OPTIONS,
};

const struct command cmd_partition = {
    .name = "partition",
    .arguments = "MODEL -o FOLDER",
    .summary = "one ONNX file per device, weights cut, communication explicit",
    .example = "tessera partition /tmp/cut.onnx -o /tmp/parts",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
