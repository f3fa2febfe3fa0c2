// SPDX-License-Identifier: Apache-2.0
// cmd_partition.c - one ONNX file per device, weights cut, communication explicit.
//
// Three jobs: a model is cut (planned first with --devices), a generation folder becomes one folder
// for each device (--layout genai), or a folder whose rank files somebody has changed is resealed
// again (--reseal). Writing is the library's: it makes the whole folder under another name and
// renames it, so a failure leaves nothing.
#include "cli/output/summary.h"

#include <stdlib.h>
#include <string.h>

// `folder` NULL: a dry run. `plan` has no devices where nothing was planned.
static int report(struct cli *cli, const char *folder, const tsr_partition_summary *summary,
                  struct prediction plan)
{
    cli_say_one_device(cli, plan);
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        if (json) {
            tsr_json_string(json, "folder", folder); // null: nothing was written
            tsr_json_fields(json, summary_fields, summary);
            if (plan.devices)
                cli_json_prediction(json, plan);
        }
        return cli_print_json(cli, json, EXIT_DONE);
    }
    if (!cli->quiet)
        summary_print(stdout, summary);
    if (!cli->quiet && plan.devices)
        cli_say_assumed(stdout, plan);
    if (folder)
        cli_say(cli, "%s: written\n", folder);
    else
        cli_say(cli, "nothing was written\n");
    return EXIT_DONE;
}

// All values of an option that may be repeated; list has room for all that was given.
static size_t values(const struct cli *cli, const char *name, const char **list)
{
    size_t n = 0;
    for (size_t i = 0; i < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, name))
            list[n++] = cli->given[i].value;
    return n;
}

// Loads the model; with --devices it is planned for them first.
// *config is left as the user gave it unless a plan is made: then it is the plan's, and
// *prediction what it predicts. *out may be set even if the result is no TSR_OK; the caller frees
// it.
static tsr_status prepare(struct cli *cli, const struct planning *plan, const char **config,
                          struct prediction *prediction, tsr_model **out)
{
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], out);
    if (status == TSR_OK)
        status = cli_check_dims(cli, *out);
    if (status != TSR_OK || !cli_value(cli, "--devices"))
        return status;
    tsr_plan_summary planned = {.size = sizeof planned};
    status = tsr_plan(*out, &plan->options, &planned);
    if (status != TSR_OK)
        return status;
    *config = planned.config;
    *prediction = cli_prediction(&planned);
    return TSR_OK;
}

// The first given option that --layout genai cannot follow, or NULL. The folders are cut by heads
// whatever the planner would choose, and written at once: taking such an option in silence would
// promise something else than what is written.
static const char *option_against_genai(const struct cli *cli)
{
    static const char *const names[] = {"--config",    "--memory", "--stages",   "--time",
                                        "--weights",   "--state",  "--keep-cut", "--dry-run",
                                        "--objective", "--strict", "--transport"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (cli_flag(cli, names[i]))
            return names[i];
    // Sizes that model_folder.c filled in come after those that were typed.
    for (size_t i = 0; i + cli->n_made < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, "--dim"))
            return "--dim";
    return NULL;
}

// A generation folder for each device.
static int lay_out_genai(struct cli *cli, const char *out)
{
    tsr_folder *folder = NULL;
    tsr_partition_summary summary = {.size = sizeof summary};
    struct planning planning;
    const char *against = option_against_genai(cli);
    if (against)
        return cli_usage(cli, "--layout genai does not go with %s", against);
    if (!cli->folder)
        return cli_usage(cli, "--layout genai wants a folder with genai_config.json, not a model");
    if (!cli_value(cli, "--devices"))
        return cli_usage(cli, "for which devices? give --devices N or a topology");
    int code = cli_planning(cli, &planning);
    if (code)
        return code;
    tsr_folder_options options = {.size = sizeof options,
                                  .devices = planning.options.devices,
                                  .topology = planning.options.topology,
                                  .force = cli_flag(cli, "--force")};
    tsr_status status = tsr_folder_open(cli->session, cli->folder, &folder);
    if (status == TSR_OK)
        status = tsr_folder_partition(folder, out, &options, &summary);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        code = report(
            cli, out, &summary,
            (struct prediction){.devices = (int64_t)summary.devices,
                                .cost = summary.predicted,
                                .one_device = summary.one_device,
                                .assumed = !planning.options.topology ||
                                           tsr_topology_is_assumed(planning.options.topology)});
    tsr_folder_free(folder);
    cli_planning_end(&planning);
    return code;
}

// Rank files that others have changed are taken into the manifest of their folder again.
// A file that has not changed is not named. tsr_partition_reseal refuses files that communicate
// otherwise.
static int reseal(struct cli *cli, const char *folder)
{
    const char *const *files = NULL;
    size_t n = 0;
    if (cli->n_arguments)
        return cli_usage(cli, "--reseal takes a folder and no model");
    tsr_status status = tsr_partition_reseal(cli->session, folder, &files, &n);
    int code = cli_finish(cli, status);
    if (status != TSR_OK)
        return code;
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        if (json) {
            tsr_json_string(json, "folder", folder);
            tsr_json_begin(json, "resealed", '[');
            for (size_t i = 0; i < n; i++)
                tsr_json_string(json, NULL, files[i]);
            tsr_json_end(json);
        }
        return cli_print_json(cli, json, code);
    }
    for (size_t i = 0; i < n; i++)
        cli_say(cli, "%s: resealed\n", files[i]);
    if (n == 0)
        cli_say(cli, "nothing has changed\n");
    return code;
}

// `lists` has room for both lists of options, one after the other, as neither can be longer than
// what was given.
static int run(struct cli *cli)
{
    const char *folder = cli_value(cli, "-o");
    struct planning plan;
    tsr_partition_options options = {
        .size = sizeof options,
        .config = cli_value(cli, "--config"),
        .force = cli_flag(cli, "--force"),
        .strict = cli_flag(cli, "--strict"),
        .dry_run = cli_flag(cli, "--dry-run"),
        .layout = cli_value(cli, "--layout"),
        .weights = cli_value(cli, "--weights"),
        .transport = cli_value(cli, "--transport"),
    };
    tsr_partition_summary summary = {.size = sizeof summary};
    struct prediction prediction = {0};
    tsr_model *model = NULL;
    // Words that exclude each other come first, before anything is read.
    if (cli_value(cli, "--reseal"))
        return reseal(cli, cli_value(cli, "--reseal"));
    if (!cli->n_arguments)
        return cli_usage(cli, "which model? give MODEL");
    if (!folder && !options.dry_run)
        return cli_usage(cli, "where to? give -o FOLDER");
    if (options.layout && strcmp(options.layout, "genai") == 0)
        return lay_out_genai(cli, folder);
    int code = cli_planning(cli, &plan);
    if (code)
        return code;
    const char **lists = cli_alloc(2 * cli->n_given + 1, sizeof *lists);
    options.keep_cut = lists;
    options.n_keep_cut = values(cli, "--keep-cut", lists);
    options.state = lists + cli->n_given;
    options.n_state = values(cli, "--state", lists + cli->n_given);
    tsr_status status = prepare(cli, &plan, &options.config, &prediction, &model);
    if (status == TSR_OK)
        status = tsr_partition(model, folder, &options, &summary);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        // The code of a run that succeeded may still be changed by stdout that cannot be written.
        code = report(cli, options.dry_run ? NULL : folder, &summary, prediction);
    tsr_model_free(model);
    cli_planning_end(&plan);
    free(lists);
    return code;
}

static const struct option options_table[] = {
    {"-o", "FOLDER", "the folder to make"},
    {"--config", "NAME", "configuration to cut for (needed if the model has several)"},
    PLAN_OPTIONS,
    {"--layout", "wrapped|genai",
     "wrapped: also model.onnx, whose one node runs the partition in any ONNX Runtime that has "
     "registered libtessera_ops.so; genai: a generation folder for each device, for "
     "onnxruntime-genai"},
    {"--transport", "threads|shm",
     "of --layout wrapped: the ranks are threads of the program that loads model.onnx, or (shm) "
     "processes of their own"},
    {"--weights", "data|safetensors",
     "files of weights: plain bytes, or safetensors, which rank files refer to as to any data"},
    {"--dry-run", NULL, "write nothing: only say what would be written"},
    {"--force", NULL, "replace an existing folder"},
    {"--keep-cut", "NAME",
     "an input or output that stays cut (repeatable; one * stands for any text)"},
    {"--state", "PAST=PRESENT",
     "an output that is the input of the next run and stays on its devices (repeatable)"},
    {"--reseal", "FOLDER",
     "instead: take rank files that another program (an optimiser) has changed into the manifest "
     "of FOLDER again, if their inputs, outputs and communication are unchanged"},
    {"--strict", NULL, "fail (exit 5) where a node that was meant to be cut is not"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_partition = {
    .name = "partition",
    .arguments = "MODEL -o FOLDER",
    .summary = "one ONNX file per device, weights cut, communication explicit",
    .example = "tessera partition cut.onnx -o parts",
    .options = options_table,
    .min_arguments = 0,
    .max_arguments = 1,
    .run = run,
};
