// SPDX-License-Identifier: Apache-2.0
// cmd_bench.c - runs a partition or a model again and again and says how long a run takes.
//
// Takes what `run` takes: a partition's folder, an annotated model, a model with --devices, or a
// plain one, which runs whole. A generation folder goes to bench_folder.c, unless the user gives
// --inputs. Under a launcher every rank runs this, and rank 0 prints.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

// What the figures are of.
struct circumstances {
    tsr_input_sizes sizes;
    struct prediction prediction; // devices 0: nothing was planned
};

// What `run` would do, again and again. In the same order as execute in cmd_run.c: inputs, perhaps
// a plan for their sizes, then the runs. A rank that does not plan passes "" and is given what rank
// 0 has cut.
static tsr_status measure(struct cli *cli, const tsr_run_options *options,
                          const struct planning *plan, const char *set, double seconds,
                          tsr_tensors *inputs, struct circumstances *about,
                          tsr_bench_result *result)
{
    const char *path = cli->arguments[0], *config = cli_value(cli, "--config");
    bool folder = cli_is_folder(path);
    tsr_model *model = NULL;
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_status status = cli_load_inputs(cli, set, options, inputs, &model, &about->sizes);
    if (status != TSR_OK)
        goto free_model;
    bool plans = !folder && cli_value(cli, "--devices");
    if (plans && cli_plans(options))
        status = tsr_plan_for(model, &plan->options, inputs, &planned);
    if (status != TSR_OK)
        goto free_model;
    if (plans) {
        config = cli_text_or(planned.config, "");
        about->prediction = cli_prediction(&planned);
        cli_say_one_device(cli, about->prediction);
    }
    cli_warn_ranks(cli, plan->options.topology, (int64_t)planned.devices);
    if (!folder && (config || tsr_model_config_count(model)))
        status =
            tsr_bench_annotated(model, config, cli_temporary(), options, inputs, seconds, result);
    else
        status = tsr_bench(cli->session, path, options, inputs, seconds, result);
free_model:
    tsr_model_free(model);
    return status;
}

static double runs_per_s(const tsr_bench_result *result)
{
    if (result->seconds <= 0)
        return 0;
    return (double)result->runs / result->seconds;
}

// Seconds become milliseconds under run_ms; memory that could not be measured is null, not 0.
static int print_json(struct cli *cli, const tsr_bench_result *result,
                      const struct circumstances *about)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_DONE);
    tsr_json_int(json, "ranks", result->ranks);
    cli_json_sizes(json, &about->sizes);
    if (about->prediction.devices)
        cli_json_prediction(json, about->prediction);
    tsr_json_int(json, "runs", (int64_t)result->runs);
    tsr_json_int(json, "warmups", (int64_t)result->warmups);
    tsr_json_number(json, "load_s", result->load_s);
    tsr_json_number(json, "seconds", result->seconds);
    tsr_json_number(json, "runs_per_s", runs_per_s(result));
    tsr_json_begin(json, "run_ms", '{');
    tsr_json_number(json, "mean", 1e3 * result->mean_s);
    tsr_json_number(json, "min", 1e3 * result->min_s);
    tsr_json_number(json, "p50", 1e3 * result->p50_s);
    tsr_json_number(json, "p90", 1e3 * result->p90_s);
    tsr_json_number(json, "p95", 1e3 * result->p95_s);
    tsr_json_number(json, "p99", 1e3 * result->p99_s);
    tsr_json_number(json, "max", 1e3 * result->max_s);
    tsr_json_end(json);
    tsr_json_begin(json, "communication", '[');
    for (int i = 0; i < result->ranks; i++)
        tsr_json_number(json, NULL, result->communication[i]);
    tsr_json_end(json);
    tsr_json_begin(json, "memory", '[');
    for (int i = 0; i < result->ranks; i++)
        if (result->memory[i] > 0)
            tsr_json_int(json, NULL, result->memory[i]);
        else
            tsr_json_null(json, NULL);
    tsr_json_end(json);
    if (result->process_memory > 0)
        tsr_json_int(json, "process_memory", result->process_memory);
    else
        tsr_json_null(json, "process_memory");
    return cli_print_json(cli, json, EXIT_DONE);
}

// Of each rank, or of all where they share a process.
// Threads share a process, so their memory cannot be told apart; then memory[0] is 0.
static void print_memory(const tsr_bench_result *result)
{
    printf("memory, mapped weights included:");
    if (result->memory[0] > 0)
        for (int i = 0; i < result->ranks; i++)
            printf("%s rank %d %s", cli_between(i, ","), i, cli_bytes(result->memory[i]));
    else
        printf(" %s in one process", cli_bytes(result->process_memory));
    printf("\n");
}

// Shares of communication only where there is somebody to communicate with.
static void print_text(const tsr_bench_result *result)
{
    printf(
        "%zu runs in %.2f s on %d rank%s, after %zu to warm up and %.2f s to load: %.1f runs/s\n",
        result->runs, result->seconds, result->ranks, cli_plural(result->ranks), result->warmups,
        result->load_s, runs_per_s(result));
    printf("%10s %10s %10s %10s %10s %10s %10s\n", "ms", "min", "p50", "p90", "p95", "p99", "max");
    printf("%10s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", "", 1e3 * result->min_s,
           1e3 * result->p50_s, 1e3 * result->p90_s, 1e3 * result->p95_s, 1e3 * result->p99_s,
           1e3 * result->max_s);
    print_memory(result);
    if (result->ranks < 2)
        return;
    printf("communication, waiting for others included:");
    for (int i = 0; i < result->ranks; i++)
        printf("%s rank %d %.1f %%", cli_between(i, ","), i, 100 * result->communication[i]);
    printf("\n");
}

// Rank 0 has the figures of all.
static int report(struct cli *cli, const tsr_bench_result *result,
                  const struct circumstances *about)
{
    if (cli_rank(cli) > 0)
        return EXIT_DONE;
    if (cli->json)
        return print_json(cli, result, about);
    print_text(result);
    return EXIT_DONE;
}

// Inputs of a generation folder were filled in, not given by the user.
static bool inputs_are_made(const struct cli *cli)
{
    for (size_t i = 0; i < cli->n_made; i++)
        if (cli_value(cli, "--inputs") == cli->made[i])
            return true;
    return false;
}

// Options are read before anything is loaded: a mistake in them costs no time.
static int run(struct cli *cli)
{
    tsr_run_options options;
    tsr_bench_result result = {.size = sizeof result};
    struct circumstances about = {.sizes.size = sizeof about.sizes};
    tsr_tensors *inputs = NULL;
    struct planning plan;
    double seconds = 5;
    const char *text = cli_value(cli, "--seconds");
    if (text && !cli_number(text, &seconds))
        return cli_usage(cli, "--seconds wants a number, not '%s'", text);
    if (cli->folder && inputs_are_made(cli))
        return cli_bench_folder(cli, seconds);
    int code = cli_read_run_options(cli, &options);
    if (!code)
        code = cli_refuse_planning(cli);
    if (code)
        return code;
    const char *flights = cli_value(cli, "--in-flight");
    uint64_t in_flight = 1;
    if (flights && (!cli_count_of(flights, &in_flight) || in_flight < 1 || in_flight > 16))
        return cli_usage(cli, "--in-flight wants a number from 1 to 16, not '%s'", flights);
    options.in_flight = (int)in_flight;
    const char *set = cli_inputs(cli);
    if (!set)
        return EXIT_USAGE;
    code = cli_planning(cli, &plan);
    if (code)
        return code;
    // --memory is what the plan may use of each device; the engine is held to it.
    if (!options.gpu_memory) // a rank keeps to what it was planned for
        options.gpu_memory = plan.options.memory;
    tsr_status status = tsr_join(cli->session, &options);
    if (status == TSR_OK)
        status = cli_engine(cli, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_tensors_new(cli->session, &inputs);
    if (status == TSR_OK)
        status = measure(cli, &options, &plan, set, seconds, inputs, &about, &result);
    cli_planning_end(&plan);
    code = cli_finish(cli, status);
    if (status == TSR_OK)
        code = report(cli, &result, &about);
    tsr_tensors_free(inputs);
    return code;
}

static const struct option options_table[] = {
    {"--seconds", "S", "how long to run (default 5)"},
    {"--in-flight", "K",
     "runs under way at a time, 1 to 16 (default 1): more let the stages of a pipeline overlap"},
    {"--config", "NAME", "configuration to cut a model for (needed if it has several)"},
    {"--prompt-tokens", "N", "of a generation folder: tokens of the prompt (default 128)"},
    {"--max-tokens", "N", "of a generation folder: tokens after it (default 64)"},
    INPUT_OPTIONS,
    PLAN_OPTIONS,
    RUN_OPTIONS,
    PLACE_OPTIONS,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_bench = {
    .name = "bench",
    .arguments = "FOLDER|MODEL",
    .summary = "run a partition or a model again and again, and measure",
    .detail =
        "Says how long a run takes (percentiles) and which share of it each rank spends in "
        "communication.\nA model is cut as `run` cuts it: for its configuration, or planned "
        "with --devices. One without runs whole, in one\nONNX Runtime with all threads: what "
        "the others compare with.\nA generation folder (genai_config.json, or Optimum's files): "
        "tokens per second of a prompt and of what follows, in turns\nwith the uncut folder in "
        "Python's onnxruntime-genai where that is found. --inputs makes it a model again.",
    .example = "tessera bench tests/models/bert_tiny/model.onnx --devices 2 --seconds 1",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
