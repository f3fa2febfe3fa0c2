// SPDX-License-Identifier: Apache-2.0
// cmd_run.c - runs a partition or a model on a set of inputs.
//
// The argument is the folder of a partition, or a model. A model with a configuration, or with a
// plan (--devices), is first partitioned in a temporary folder. A model without either runs
// unsharded in one engine. If ranks are processes, only rank 0 prints and writes the outputs.
#include "cli/options/job.h"
#include "cli/output/summary.h"

#include <stdlib.h>
#include <string.h>

// Prints type and shape of each output. One without a rank is a sequence or an empty optional.
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
            printf("%s%lld", k ? ", " : "", (long long)tsr_tensors_dims(tensors, i)[k]);
        printf("]\n");
    }
}

// Writes type and shape of each output. The shape of a sequence or of an empty optional is null.
// `elements` is written for sequences only.
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
        if (tsr_tensors_rank(tensors, i) < 0)
            tsr_json_null(json, "shape");
        else
            tsr_json_ints(json, "shape", tsr_tensors_dims(tensors, i),
                          (size_t)tsr_tensors_rank(tensors, i));
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Prints the results. Details of the ranks are always in the JSON document, in text only with
// --verbose.
static int report(const struct job *job, const tsr_tensors *outputs)
{
    struct cli *cli = job->cli;
    struct planned_memory planned = {.bytes = job->plan.memory,
                                     .n = job->plan.memory ? job->plan.devices : 0,
                                     .prediction = cli_prediction(&job->plan)};
    if (cli_rank(cli) > 0)
        return EXIT_DONE;
    if (cli->json) {
        tsr_json *json = cli_json(cli);
        json_outputs(json, outputs);
        cli_json_sizes(json, &job->sizes);
        ranks_json(json, cli->session, &planned);
        if (planned.n)
            cli_json_prediction(json, planned.prediction);
        return cli_print_json(cli, json, EXIT_DONE);
    }
    cli_print_one_device(cli, planned.prediction);
    if (cli->verbose)
        ranks_print(stdout, cli->session, &planned);
    if (!cli->quiet)
        print_outputs(outputs);
    return EXIT_DONE;
}

// Prints the format of a file whose extension is unknown. It is written as .npz, which the user may
// not expect.
static void print_format(const struct cli *cli, const char *file)
{
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    const char *extension = strrchr(base, '.');
    if (extension && strcmp(extension, ".npz") != 0 && strcmp(extension, ".npy") != 0)
        cli_print(
            cli,
            "%s: written in .npz format (use .npz or .npy, or no extension for a folder of .pb "
            "files)\n",
            file);
}

static tsr_status execute(struct job *job, tsr_tensors *outputs)
{
    struct cli *cli = job->cli;
    const char *path = cli->arguments[0], *file = cli_value(cli, "--outputs");
    tsr_status status = job_prepare(job);
    if (status != TSR_OK)
        return status;
    if (job->folder)
        status = tsr_run(cli->session, path, &job->options, job->inputs, outputs);
    else if (job->config || tsr_model_config_count(job->model))
        status = tsr_run_annotated(job->model, job->config, cli_temporary(), &job->options,
                                   job->inputs, outputs);
    else
        status = tsr_run_model(cli->session, path, &job->options, job->inputs, outputs);
    if (status != TSR_OK || !file || cli_rank(cli) != 0)
        return status;
    status = tsr_tensors_save(outputs, file);
    if (status == TSR_OK)
        print_format(cli, file);
    return status;
}

static int run_run(struct cli *cli)
{
    struct job job;
    tsr_tensors *outputs = NULL;
    int code = job_read(&job, cli);
    if (code)
        return code;
    job.options.facts = cli->json || cli->verbose;
    tsr_status status = tsr_tensors_new(cli->session, &outputs);
    if (status == TSR_OK)
        status = execute(&job, outputs);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        code = report(&job, outputs);
    tsr_tensors_free(outputs);
    job_end(&job);
    return code;
}

static const struct option options_table[] = {
    {"--config", "NAME", "configuration to partition a model for (required if it has several)"},
    INPUT_OPTIONS,
    {"--outputs", "FILE.npz",
     "write the outputs to .npz, .npy (one output) or a folder of .pb files"},
    PLAN_OPTIONS,
    RUN_OPTIONS,
    PLACE_OPTIONS,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_run = {
    .name = "run",
    .arguments = "FOLDER|MODEL",
    .summary = "run a partition or a model",
    .detail = "A model with a device configuration is partitioned in a temporary folder first;\n"
              "--devices plans it for the sizes of its inputs. Other models run unsharded.\n"
              "`mpirun -n 4 tessera run parts/` runs one process per rank. For a model, rank 0\n"
              "plans and partitions it in TMPDIR, which all hosts must see. Without a launcher,\n"
              "start `tessera run parts/ --rank K --ranks 4` four times.",
    .example = "tessera run tests/models/bert_tiny/model.onnx --inputs "
               "tests/models/bert_tiny/test_data_set_0",
    .options = options_table,
    .takes = {1, 1},
    .run = run_run,
};
