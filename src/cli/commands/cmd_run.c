// SPDX-License-Identifier: Apache-2.0
// cmd_run.c - runs a partition (or a whole model) on a set of inputs.
//
// FOLDER is a partition: its ranks run. A model is cut first, for the configuration that it has or
// that a plan makes (--devices), in a temporary folder; a model without either runs whole in one
// engine. Order: options, joining the other ranks, the engine, inputs, plan, run, outputs. Where
// ranks are processes each of them runs all of this; rank 0 alone plans, prints and writes the
// outputs.
#include "cli/output/summary.h"

#include <stdlib.h>
#include <string.h>

// A tensor has a rank from 0 on; an output without one is a sequence, or an optional that holds
// nothing.
static void print_outputs(const tsr_tensors *tensors)
{
    for (size_t i = 0; i < tsr_tensors_count(tensors); i++) {
        const tsr_tensors *list = tsr_tensors_sequence(tensors, i);
        printf("%-24s ", tsr_tensors_name(tensors, i));
        if (tsr_tensors_rank(tensors, i) < 0) {
            if (list)
                printf("sequence of %zu\n", tsr_tensors_count(list));
            else
                printf("no value\n");
            continue;
        }
        printf("%s [", tsr_dtype_name(tsr_tensors_dtype(tensors, i)));
        for (int k = 0; k < tsr_tensors_rank(tensors, i); k++)
            printf("%s%lld", cli_between(k, ", "), (long long)tsr_tensors_dims(tensors, i)[k]);
        printf("]\n");
    }
}

// `elements` only of sequences.
static void json_outputs(tsr_json *json, const tsr_tensors *tensors)
{
    tsr_json_begin(json, "outputs", '[');
    for (size_t i = 0; i < tsr_tensors_count(tensors); i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", tsr_tensors_name(tensors, i));
        tsr_json_string(json, "type", tsr_dtype_name(tsr_tensors_dtype(tensors, i)));
        if (tsr_tensors_sequence(tensors, i))
            tsr_json_int(json, "elements",
                         (int64_t)tsr_tensors_count(tsr_tensors_sequence(tensors, i)));
        tsr_json_ints(json, "shape", tsr_tensors_dims(tensors, i),
                      (size_t)tsr_tensors_rank(tensors, i));
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// With --json the facts of ranks are always there, in text only with --verbose.
static int report(struct cli *cli, const tsr_tensors *outputs, const struct planned_memory *planned,
                  const tsr_input_sizes *sizes)
{
    if (cli_rank(cli) > 0)
        return EXIT_DONE;
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        if (json) {
            json_outputs(json, outputs);
            cli_json_sizes(json, sizes);
            ranks_json(json, cli->session, planned);
            if (planned->n)
                cli_json_prediction(json, planned->prediction);
        }
        return cli_print_json(cli, json, EXIT_DONE);
    }
    cli_say_one_device(cli, planned->prediction);
    if (cli->verbose)
        ranks_print(stdout, cli->session, planned);
    if (!cli->quiet)
        print_outputs(outputs);
    return EXIT_DONE;
}

// A name with an ending of its own gets an .npz all the same, which nobody would guess from it.
static void say_kind(const struct cli *cli, const char *file)
{
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    const char *ending = strrchr(base, '.');
    if (ending && strcmp(ending, ".npz") != 0 && strcmp(ending, ".npy") != 0)
        cli_say(cli,
                "%s: written as an .npz (.npz and .npy say what is written; a name without an "
                "ending is a folder of .pb files)\n",
                file);
}

// A model that has a device configuration is cut for it; without one it runs whole.
static tsr_status execute(struct cli *cli, const tsr_run_options *options,
                          const struct planning *plan, const char *set, tsr_tensors *inputs,
                          tsr_tensors *outputs, struct planned_memory *memory,
                          tsr_input_sizes *sizes)
{
    const char *path = cli->arguments[0], *file = cli_value(cli, "--outputs");
    const char *config = cli_value(cli, "--config");
    bool folder = cli_is_folder(path);
    tsr_model *model = NULL;
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_status status = cli_load_inputs(cli, set, options, inputs, &model, sizes);
    if (status != TSR_OK)
        goto free_model;
    bool plans = !folder && cli_value(cli, "--devices");
    if (plans && cli_plans(options))
        status = tsr_plan_for(model, &plan->options, inputs, &planned);
    // Also after a plan that failed: cli_text_or and the test of `memory` take what it left empty.
    if (plans) {
        config = cli_text_or(planned.config, "");
        *memory = (struct planned_memory){.bytes = planned.memory,
                                          .prediction = cli_prediction(&planned)};
        if (planned.memory)
            memory->n = planned.devices;
    }
    if (status != TSR_OK)
        goto free_model;
    cli_warn_ranks(cli, plan->options.topology, (int64_t)planned.devices);
    if (folder)
        status = tsr_run(cli->session, path, options, inputs, outputs);
    else if (config || tsr_model_config_count(model))
        status = tsr_run_annotated(model, config, cli_temporary(), options, inputs, outputs, NULL);
    else
        status = tsr_run_model(cli->session, path, options, inputs, outputs);
free_model:
    tsr_model_free(model);
    if (status != TSR_OK || !file || cli_rank(cli) != 0)
        return status;
    status = tsr_tensors_save(outputs, file);
    if (status == TSR_OK)
        say_kind(cli, file);
    return status;
}

// Under a launcher every rank runs this; what goes wrong on one is told to the others before anybody waits (tsr_join).
static int run(struct cli *cli)
{
    tsr_run_options options;
    tsr_tensors *inputs = NULL, *outputs = NULL;
    struct planning plan;
    struct planned_memory memory = {0};
    tsr_input_sizes sizes = {.size = sizeof sizes};
    int code = cli_read_run_options(cli, &options);
    // Ranks are asked what they were only where it is shown.
    options.facts = cli->json || cli->verbose;
    if (!code)
        code = cli_refuse_planning(cli);
    if (code)
        return code;
    const char *set = cli_inputs(cli);
    if (!set)
        return EXIT_USAGE;
    code = cli_planning(cli, &plan);
    if (code)
        return code;
    if (!options.gpu_memory) // a rank keeps to what it was planned for
        options.gpu_memory = plan.options.memory;
    tsr_status status =
        tsr_join(cli->session, &options); // under MPI: the others learn what goes wrong here
    if (status == TSR_OK)
        status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &inputs);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &outputs);
    if (status == TSR_OK)
        status = execute(cli, &options, &plan, set, inputs, outputs, &memory, &sizes);
    cli_planning_end(&plan);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        code = report(cli, outputs, &memory, &sizes);
    tsr_tensors_free(outputs);
    tsr_tensors_free(inputs);
    return code;
}

static const struct option options_table[] = {
    {"--config", "NAME", "configuration to cut a model for (needed if it has several)"},
    INPUT_OPTIONS,
    {"--outputs", "FILE.npz",
     "write the outputs there: .npz, .npy (one), or a folder of .pb files"},
    PLAN_OPTIONS,
    RUN_OPTIONS,
    PLACE_OPTIONS,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_run = {
    .name = "run",
    .arguments = "FOLDER|MODEL",
    .summary =
        "run a partition (ranks as threads, or under mpirun), an annotated model, or a whole one",
    .detail = "A model with a device configuration is cut for it in a temporary folder first; one "
              "without runs whole.\nWith --devices it is planned for the sizes of its inputs.\n"
              "`mpirun -n 4 tessera run parts/` runs the same with one process per rank; of a "
              "model, rank 0 "
              "plans and cuts it in\nTMPDIR, which all hosts must see. Without a launcher, "
              "`tessera run parts/ --rank K --ranks 4` in four terminals does it too.",
    .example = "tessera run tests/models/bert_tiny/model.onnx --inputs "
               "tests/models/bert_tiny/test_data_set_0",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
