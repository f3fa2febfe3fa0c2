// SPDX-License-Identifier: Apache-2.0
// cmd_run.c - runs a partition (or a whole model) on a set of inputs.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void print_outputs(const tsr_tensors *t)
{
    for (size_t i = 0; i < tsr_tensors_count(t); i++) {
        const tsr_tensors *list = tsr_tensors_sequence(t, i);
        printf("%-24s ", tsr_tensors_name(t, i));
        if (tsr_tensors_rank(t, i) < 0) {
            printf(list ? "sequence of %zu\n" : "no value\n", list ? tsr_tensors_count(list) : 0);
            continue;
        }
        printf("%s [", tsr_dtype_name(tsr_tensors_dtype(t, i)));
        for (int k = 0; k < tsr_tensors_rank(t, i); k++)
            printf("%s%lld", k ? ", " : "", (long long)tsr_tensors_dims(t, i)[k]);
        printf("]\n");
    }
}

static void json_outputs(tsr_json *j, const tsr_tensors *t)
{
    tsr_json_begin(j, "outputs", '[');
    for (size_t i = 0; i < tsr_tensors_count(t); i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", tsr_tensors_name(t, i));
        tsr_json_string(j, "type", tsr_dtype_name(tsr_tensors_dtype(t, i)));
        if (tsr_tensors_sequence(t, i))
            tsr_json_int(j, "elements", (int64_t)tsr_tensors_count(tsr_tensors_sequence(t, i)));
        tsr_json_begin(j, "shape", '[');
        for (int k = 0; k < tsr_tensors_rank(t, i); k++)
            tsr_json_int(j, NULL, tsr_tensors_dims(t, i)[k]);
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static int report(struct cli *c, const tsr_tensors *outputs)
{
    if (cli_rank(c) > 0)
        return EXIT_DONE;
    if (c->json) {
        tsr_json *j = cli_json(c);
        if (j)
            json_outputs(j, outputs);
        return cli_print_json(c, j, EXIT_DONE);
    }
    if (!c->quiet)
        print_outputs(outputs);
    return EXIT_DONE;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// A model that has a device configuration is cut for it; without one it runs whole.
static tsr_status execute(struct cli *c, const tsr_run_options *options,
                          const struct planning *plan, const char *set, tsr_tensors *inputs,
                          tsr_tensors *outputs)
{
    const char *path = c->arguments[0], *file = cli_value(c, "--outputs");
    const char *config = cli_value(c, "--config");
    bool folder = is_folder(path);
    tsr_model *m = NULL;
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_status status = cli_load_inputs(c, set, folder, inputs, &m);
    if (status == TSR_OK && !folder && cli_value(c, "--devices")) {
        status = cli_plans(options) ? tsr_plan_for(m, &plan->options, inputs, &planned) : TSR_OK;
        config = planned.config ? planned.config : "";
    }
    if (status == TSR_OK && folder)
        status = tsr_run(c->session, path, options, inputs, outputs);
    else if (status == TSR_OK && (config || tsr_model_config_count(m)))
        status = tsr_run_annotated(m, config, cli_temporary(), options, inputs, outputs, NULL);
    else if (status == TSR_OK)
        status = tsr_run_model(c->session, path, options, inputs, outputs);
    tsr_model_free(m);
    if (status == TSR_OK && file && cli_rank(c) == 0)
        status = tsr_tensors_save(outputs, file);
    return status;
}

static int run(struct cli *c)
{
    tsr_run_options options;
    tsr_tensors *inputs = NULL, *outputs = NULL;
    struct planning plan;
    int code = cli_read_run_options(c, &options);
    const char *set = code ? NULL : cli_inputs(c);
    if (!set)
        return EXIT_USAGE;
    code = cli_planning(c, &plan);
    if (code)
        return code;
    tsr_status status =
        tsr_join(c->session, &options); // under MPI: the others learn what goes wrong here
    if (status == TSR_OK)
        status = cli_engine(c, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_tensors_new(c->session, &inputs);
    if (status == TSR_OK)
        status = tsr_tensors_new(c->session, &outputs);
    if (status == TSR_OK)
        status = execute(c, &options, &plan, set, inputs, outputs);
    cli_planning_end(&plan);
    code = cli_finish(c, status);
    if (status == TSR_OK)
        code = report(c, outputs);
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
