// SPDX-License-Identifier: Apache-2.0
// cmd_partition.c - writes one ONNX file per device.
//
// Three modes: partition a model (planned first with --devices); write one generation folder per
// device (--layout genai); update the manifest after rank files were changed (--reseal). The
// library writes the folder under a temporary name and renames it, so a failure leaves nothing.
#include "cli/output/summary.h"

#include <stdlib.h>
#include <string.h>

// Prints what was written. folder NULL: dry run; plan.devices 0: the model was not planned.
static int report(struct cli *cli, const char *folder, const tsr_partition_result *result,
                  struct prediction plan)
{
    cli_print_one_device(cli, plan);
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        tsr_json_string(json, "folder", folder);
        partition_json(json, result);
        if (plan.devices)
            cli_json_prediction(json, plan);
        return cli_print_json(cli, json, EXIT_DONE);
    }
    if (!cli->quiet)
        partition_print(stdout, result);
    if (!cli->quiet && plan.devices)
        cli_print_assumed(stdout, plan);
    if (folder)
        cli_print(cli, "%s: written\n", folder);
    else
        cli_print(cli, "nothing was written\n");
    return EXIT_DONE;
}

// Loads the model and, with --devices, plans it and sets *config to the configuration of the plan.
// The caller frees *out, also after an error.
static tsr_status prepare(struct cli *cli, const struct planning *plan, const char **config,
                          struct prediction *prediction, tsr_model **out)
{
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], out);
    if (status == TSR_OK)
        status = cli_check_dims(cli, *out);
    if (status != TSR_OK || !cli_value(cli, "--devices"))
        return status;
    tsr_plan_result *planned = NULL;
    status = tsr_plan(*out, &plan->options, &planned);
    if (status == TSR_OK) {
        tsr_plan_facts facts = cli_plan_facts(planned);
        // the name in the model outlives the plan
        *config = tsr_config_name(tsr_model_find_config(*out, facts.config));
        *prediction = cli_prediction(&facts);
    }
    tsr_plan_result_free(planned);
    return status;
}

// Returns a given option that would have no effect with --layout genai, or NULL. Folders of this
// layout are always sharded by heads.
static const char *option_against_genai(const struct cli *cli)
{
    static const char *const names[] = {
        "--config",  "--memory",    "--stages", "--time",      "--weights", "--state", "--keep-cut",
        "--dry-run", "--objective", "--strict", "--transport", "--static",  NULL};
    if (cli_first_given(cli, names))
        return cli_first_given(cli, names);
    // Values that model_folder.c filled in are at the end of the list.
    for (size_t i = 0; i + cli->n_made < cli->n_given; i++)
        if (!strcmp(cli->given[i].option->name, "--dim"))
            return "--dim";
    return NULL;
}

static int partition_genai(struct cli *cli, const char *out)
{
    tsr_folder *folder = NULL;
    tsr_partition_result *result = NULL;
    struct planning planning;
    const char *against = option_against_genai(cli);
    if (against)
        return cli_usage(cli, "--layout genai does not support %s", against);
    if (!cli->folder)
        return cli_usage(cli, "--layout genai needs a folder with genai_config.json, not a model");
    if (!cli_value(cli, "--devices"))
        return cli_usage(cli, "no devices given: use --devices N or a topology");
    int code = cli_planning(cli, &planning);
    if (code)
        return code;
    tsr_folder_options options = {.size = sizeof options,
                                  .devices = planning.options.devices,
                                  .topology = planning.options.topology,
                                  .force = cli_flag(cli, "--force")};
    tsr_status status = tsr_folder_open(cli->session, cli->folder, &folder);
    if (status == TSR_OK)
        status = tsr_folder_partition(folder, out, &options, &result);
    code = cli_finish(cli, status);
    if (status == TSR_OK) {
        tsr_partition_facts facts = TSR_PARTITION_FACTS_INIT;
        (void)tsr_partition_result_about(result, &facts);
        code = report(
            cli, out, result,
            (struct prediction){.devices = (int64_t)facts.devices,
                                .cost = facts.predicted,
                                .one_device = facts.one_device,
                                .flops = facts.device_flops,
                                .assumed = !planning.options.topology ||
                                           tsr_topology_is_assumed(planning.options.topology)});
    }
    tsr_partition_result_free(result);
    tsr_folder_free(folder);
    cli_planning_end(&planning);
    return code;
}

// Reports the rank files that were changed. The library refuses files with other communication.
static int reseal(struct cli *cli, const char *folder)
{
    const char *const *files = NULL;
    size_t n = 0;
    if (cli->n_arguments)
        return cli_usage(cli, "--reseal takes no model");
    tsr_status status = tsr_partition_reseal(cli->session, folder, &files, &n);
    int code = cli_finish(cli, status);
    if (status != TSR_OK)
        return code;
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        tsr_json_string(json, "folder", folder);
        tsr_json_begin(json, "resealed", '[');
        for (size_t i = 0; i < n; i++)
            tsr_json_string(json, NULL, files[i]);
        tsr_json_end(json);
        return cli_print_json(cli, json, code);
    }
    for (size_t i = 0; i < n; i++)
        cli_print(cli, "%s: resealed\n", files[i]);
    if (n == 0)
        cli_print(cli, "nothing has changed\n");
    return code;
}

static int run_partition(struct cli *cli)
{
    const char *folder = cli_value(cli, "-o"), *layout = cli_value(cli, "--layout");
    struct planning plan;
    tsr_partition_options options = {.size = sizeof options};
    tsr_partition_result *result = NULL;
    struct prediction prediction = {0};
    tsr_model *model = NULL;
    int code = cli_fill(cli, OPTION_OWN, &options);
    if (code)
        return code;
    if (cli_value(cli, "--reseal"))
        return reseal(cli, cli_value(cli, "--reseal"));
    if (!cli->n_arguments)
        return cli_usage(cli, "missing argument: MODEL");
    if (!folder && !options.dry_run)
        return cli_usage(cli, "no output folder given: use -o FOLDER");
    if (layout && strcmp(layout, "genai") == 0)
        return partition_genai(cli, folder);
    code = cli_planning(cli, &plan);
    if (code)
        return code;
    const char **lists = cli_alloc(2 * cli->n_given + 1, sizeof *lists);
    options.keep_cut = lists;
    options.n_keep_cut = cli_values(cli, "--keep-cut", lists);
    options.state = lists + cli->n_given;
    options.n_state = cli_values(cli, "--state", lists + cli->n_given);
    options.sizes = plan.dims.at;
    options.n_sizes = plan.dims.n;
    tsr_status status = prepare(cli, &plan, &options.config, &prediction, &model);
    if (status == TSR_OK)
        status = tsr_partition(model, folder, &options, &result);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        code = report(cli, options.dry_run ? NULL : folder, result, prediction);
    tsr_partition_result_free(result);
    tsr_model_free(model);
    cli_planning_end(&plan);
    return code;
}

#define OPTION(member) INTO(tsr_partition_options, member)
static const struct option options_table[] = {
    {"-o", "FOLDER", "write the partition to this folder"},
    {"--config", "NAME", "configuration to partition for (required if the model has several)",
     OPTION(config)},
    PLAN_OPTIONS,
    {"--layout", "context|genai",
     "context: also write model.onnx, an EPContext model that any ONNX Runtime runs with "
     "libtessera_ep.so; genai: one generation folder per device, for onnxruntime-genai",
     INTO_ENUM(tsr_partition_options, layout),
     .choices = (const char *const[]){"", "context", "genai", NULL}},
    {"--transport", "threads|shm",
     "with --layout context: ranks are threads of the program that loads model.onnx, or processes",
     INTO_ENUM(tsr_partition_options, transport), .choices = TRANSPORTS},
    {"--weights", "data|safetensors", "format of weight files: plain bytes or safetensors",
     INTO_ENUM(tsr_partition_options, weights),
     .choices = (const char *const[]){"data", "safetensors", NULL}},
    {"--static", NULL,
     "fix all sizes of inputs: those of the plan, or of --dim; for compilers that need them",
     OPTION(static_sizes)},
    {"--dry-run", NULL, "print the summary without writing files", OPTION(dry_run)},
    {"--force", NULL, "replace an existing folder", OPTION(force)},
    {"--keep-cut", "NAME", "input or output that stays sharded (repeatable; * matches any text)"},
    {"--state", "PAST=PRESENT",
     "output that becomes the next run's input and stays on its devices (repeatable)"},
    {"--reseal", "FOLDER",
     "update the manifest of FOLDER after another program (an optimizer) changed rank files; their "
     "inputs, outputs and communication must be unchanged"},
    {"--strict", NULL, "fail (exit 5) if an annotated node cannot be sharded", OPTION(strict)},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_partition = {
    .name = "partition",
    .arguments = "MODEL -o FOLDER",
    .summary = "write one ONNX file per device, with sharded weights and explicit communication",
    .example = "tessera partition cut.onnx -o parts",
    .options = options_table,
    .takes = {0, 1},
    .run = run_partition,
};
