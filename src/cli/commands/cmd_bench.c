// SPDX-License-Identifier: Apache-2.0
// cmd_bench.c - runs a partition or a model repeatedly and reports the times.
//
// Takes the same arguments as `run`. With --devices the unsharded model is measured too, in turns.
// A generation folder is measured by bench_folder.c, unless the user gives --inputs. Under a
// launcher every rank runs this, and rank 0 prints.
#include "cli/options/job.h"

#include <stdlib.h>
#include <string.h>

static double runs_per_s(const tsr_bench_result *result)
{
    return result->seconds > 0 ? (double)result->runs / result->seconds : 0;
}

static const tsr_json_field run_fields[] = {
    {JSON_FIELD(tsr_bench_result, "runs", runs)},
    {JSON_FIELD(tsr_bench_result, "warmups", warmups)},
    {JSON_FIELD(tsr_bench_result, "load_s", load_s)},
    {JSON_FIELD(tsr_bench_result, "seconds", seconds)},
    {JSON_END},
};

static const tsr_json_field time_fields[] = {
    {JSON_MS(tsr_bench_result, "mean", mean_s)}, {JSON_MS(tsr_bench_result, "min", min_s)},
    {JSON_MS(tsr_bench_result, "p50", p50_s)},   {JSON_MS(tsr_bench_result, "p90", p90_s)},
    {JSON_MS(tsr_bench_result, "p95", p95_s)},   {JSON_MS(tsr_bench_result, "p99", p99_s)},
    {JSON_MS(tsr_bench_result, "max", max_s)},   {JSON_END},
};

static int unsharded_threads(const tsr_bench_baseline *baseline)
{
    int threads = baseline->threads;
    if (threads == 0)
        tsr_run_cores(0, 1, NULL, 0, &threads);
    return threads;
}

// Memory that could not be measured is null.
static const tsr_json_field rank_fields[] = {
    {JSON_LIST(tsr_bench_result, "communication", communication, ranks)},
    {JSON_LIST_OR_NULL(tsr_bench_result, "memory", memory, ranks)},
    {JSON_OR_NULL(tsr_bench_result, "process_memory", process_memory)},
    {JSON_END},
};

// Writes the unsharded model's times and the speedup: null if it was not measured.
static void json_baseline(tsr_json *json, const tsr_bench_baseline *baseline)
{
    const double range[] = {baseline->least_speedup, baseline->most_speedup};
    if (!baseline->measured) {
        tsr_json_null(json, "unsharded_ms");
        tsr_json_null(json, "speedup");
        return;
    }
    tsr_json_record(json, "unsharded_ms", time_fields, &baseline->result);
    tsr_json_int(json, "unsharded_threads", unsharded_threads(baseline));
    tsr_json_number(json, "speedup", baseline->speedup);
    tsr_json_begin(json, "speedup_range", '[');
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        tsr_json_number(json, NULL, range[i]);
    tsr_json_end(json);
}

static int print_json(const struct job *job, const tsr_bench_result *result,
                      const tsr_bench_baseline *baseline)
{
    tsr_json *json = cli_json(job->cli);
    tsr_json_int(json, "ranks", result->ranks);
    cli_json_sizes(json, &job->sizes);
    if (job->plan.devices)
        cli_json_prediction(json, cli_prediction(&job->plan));
    tsr_json_fields(json, run_fields, result);
    tsr_json_number(json, "runs_per_s", runs_per_s(result));
    tsr_json_record(json, "run_ms", time_fields, result);
    tsr_json_fields(json, rank_fields, result);
    if (job->plan.devices)
        json_baseline(json, baseline);
    return cli_print_json(job->cli, json, EXIT_DONE);
}

// Prints the memory. Ranks that are threads share one process; memory[0] is 0 then.
static void print_memory(const tsr_bench_result *result)
{
    printf("memory, including mapped weights:");
    if (result->memory[0] > 0)
        for (int i = 0; i < result->ranks; i++)
            printf("%s rank %d %s", i ? "," : "", i, cli_bytes(result->memory[i]));
    else
        printf(" %s in one process", cli_bytes(result->process_memory));
    printf("\n");
}

// Prints "unsharded, 2 threads: 12.4 ms (10.9 to 15.1); speedup 1.31 (1.22 to 1.35)": medians, and
// the least and greatest values.
static void print_baseline(const tsr_bench_baseline *baseline)
{
    const tsr_bench_result *result = &baseline->result;
    int threads = unsharded_threads(baseline);
    if (!baseline->measured) {
        printf("unsharded: not measured: %s\n", baseline->why);
        return;
    }
    printf("unsharded, %d thread%s: %.3f ms (%.3f to %.3f in %zu runs); speedup %.2f (%.2f to %.2f "
           "in 3 turns)\n",
           threads, cli_plural((size_t)threads), 1e3 * result->p50_s, 1e3 * result->min_s,
           1e3 * result->max_s, result->runs, baseline->speedup, baseline->least_speedup,
           baseline->most_speedup);
}

static void print_text(const tsr_bench_result *result)
{
    printf("%zu runs in %.2f s on %d rank%s, after %zu warm-up runs and %.2f s to load: %.1f "
           "runs/s\n",
           result->runs, result->seconds, result->ranks, cli_plural((size_t)result->ranks),
           result->warmups, result->load_s, runs_per_s(result));
    printf("%10s %10s %10s %10s %10s %10s %10s\n", "ms", "min", "p50", "p90", "p95", "p99", "max");
    printf("%10s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", "", 1e3 * result->min_s,
           1e3 * result->p50_s, 1e3 * result->p90_s, 1e3 * result->p95_s, 1e3 * result->p99_s,
           1e3 * result->max_s);
    print_memory(result);
    if (result->ranks < 2)
        return;
    printf("communication, including waiting for other ranks:");
    for (int i = 0; i < result->ranks; i++)
        printf("%s rank %d %.1f %%", i ? "," : "", i, 100 * result->communication[i]);
    printf("\n");
}

static tsr_status measure(struct job *job, double seconds, tsr_bench_result *result,
                          tsr_bench_baseline *baseline)
{
    struct cli *cli = job->cli;
    tsr_status status = job_prepare(job);
    if (status != TSR_OK)
        return status;
    cli_print_one_device(cli, cli_prediction(&job->plan));
    if (!job->folder && (job->config || tsr_model_config_count(job->model)))
        return tsr_bench_annotated(job->model, job->config, cli_temporary(), &job->options,
                                   job->inputs, seconds, result,
                                   cli_value(cli, "--devices") ? baseline : NULL);
    return tsr_bench(cli->session, cli->arguments[0], &job->options, job->inputs, seconds, result);
}

// True if model_folder.c filled in --inputs; the user did not give it.
static bool inputs_are_default(const struct cli *cli)
{
    for (size_t i = 0; i < cli->n_made; i++)
        if (cli_value(cli, "--inputs") == cli->made[i])
            return true;
    return false;
}

static int run_bench(struct cli *cli)
{
    tsr_bench_result result = {.size = sizeof result};
    tsr_bench_baseline baseline = {0};
    struct job job;
    double seconds = 5;
    uint64_t in_flight = 1;
    const char *text = cli_value(cli, "--seconds"), *runs = cli_value(cli, "--in-flight");
    if (text && !cli_number(text, &seconds))
        return cli_usage(cli, "--seconds needs a number, not '%s'", text);
    if (cli->folder && inputs_are_default(cli))
        return cli_bench_folder(cli, seconds);
    if (runs && (!cli_count_of(runs, &in_flight) || in_flight < 1 || in_flight > 16))
        return cli_usage(cli, "--in-flight needs a number from 1 to 16, not '%s'", runs);
    int code = job_read(&job, cli);
    if (code)
        return code;
    job.options.in_flight = (int)in_flight;
    tsr_status status = measure(&job, seconds, &result, &baseline);
    code = cli_finish(cli, status);
    if (status == TSR_OK && cli_rank(cli) == 0) {
        if (cli->json)
            code = print_json(&job, &result, &baseline);
        else
            print_text(&result);
        if (!cli->json && job.plan.devices)
            print_baseline(&baseline);
    }
    job_end(&job);
    return code;
}

static const struct option options_table[] = {
    {"--seconds", "S", "measuring time, of each program (default 5)"},
    {"--in-flight", "K",
     "concurrent runs, 1 to 16 (default 1); more let the stages of a pipeline overlap"},
    {"--config", "NAME", "configuration to partition a model for (required if it has several)"},
    {"--prompt-tokens", "N", "generation folder: length of the prompt (default 128)"},
    {"--max-tokens", "N", "generation folder: number of new tokens (default 64)"},
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
    .summary = "measure the speed of a partition or a model",
    .detail = "Prints percentiles of the run time and the share that each rank spends in\n"
              "communication.\n"
              "A model is partitioned as `run` does it. With --devices the unsharded model runs\n"
              "too, for as long, in turns with its partition: the speedup is the ratio of their\n"
              "run times, with the least and the greatest of 3 turns. A model without a\n"
              "configuration runs unsharded in one ONNX Runtime with all threads.\n"
              "For a generation folder (genai_config.json, or Optimum's files): tokens per\n"
              "second of prefill and decode, compared with onnxruntime-genai on the unsharded\n"
              "folder if Python has it. With --inputs only the model is run.",
    .example = "tessera bench tests/models/bert_tiny/model.onnx --devices 2 --seconds 1",
    .options = options_table,
    .takes = {1, 1},
    .run = run_bench,
};
