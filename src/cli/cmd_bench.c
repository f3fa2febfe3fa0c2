// SPDX-License-Identifier: Apache-2.0
// cmd_bench.c - runs a partition or a model again and again and says how long a run takes.
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// What `run` would do, again and again.
static tsr_status measure(struct cli *c, const tsr_run_options *options,
                          const struct planning *plan, const char *set, double seconds,
                          tsr_tensors *inputs, tsr_bench_result *result)
{
    const char *path = c->arguments[0], *config = cli_value(c, "--config");
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    tsr_model *m = NULL;
    tsr_plan_summary planned = {.size = sizeof planned};
    tsr_status status = cli_load_inputs(c, set, folder, inputs, &m);
    if (status == TSR_OK && !folder && cli_value(c, "--devices")) {
        status = cli_plans(options) ? tsr_plan_for(m, &plan->options, inputs, &planned) : TSR_OK;
        config = planned.config ? planned.config : "";
    }
    if (status == TSR_OK && !folder && (config || tsr_model_config_count(m)))
        status = tsr_bench_annotated(m, config, cli_temporary(), options, inputs, seconds, result);
    else if (status == TSR_OK)
        status = tsr_bench(c->session, path, options, inputs, seconds, result);
    tsr_model_free(m);
    return status;
}

static int print_json(struct cli *c, const tsr_bench_result *r)
{
    tsr_json *j = cli_json(c);
    if (!j)
        return cli_print_json(c, j, EXIT_DONE);
    tsr_json_int(j, "ranks", r->ranks);
    tsr_json_int(j, "runs", (int64_t)r->runs);
    tsr_json_int(j, "warmups", (int64_t)r->warmups);
    tsr_json_number(j, "load_s", r->load_s);
    tsr_json_number(j, "seconds", r->seconds);
    tsr_json_number(j, "runs_per_s", r->seconds > 0 ? (double)r->runs / r->seconds : 0);
    tsr_json_begin(j, "run_ms", '{');
    tsr_json_number(j, "mean", 1e3 * r->mean_s);
    tsr_json_number(j, "min", 1e3 * r->min_s);
    tsr_json_number(j, "p50", 1e3 * r->p50_s);
    tsr_json_number(j, "p90", 1e3 * r->p90_s);
    tsr_json_number(j, "p95", 1e3 * r->p95_s);
    tsr_json_number(j, "p99", 1e3 * r->p99_s);
    tsr_json_number(j, "max", 1e3 * r->max_s);
    tsr_json_end(j);
    tsr_json_begin(j, "communication", '[');
    for (int i = 0; i < r->ranks; i++)
        tsr_json_number(j, NULL, r->communication[i]);
    tsr_json_end(j);
    tsr_json_begin(j, "memory", '[');
    for (int i = 0; i < r->ranks; i++)
        if (r->memory[i] > 0)
            tsr_json_int(j, NULL, r->memory[i]);
        else
            tsr_json_null(j, NULL);
    tsr_json_end(j);
    if (r->process_memory > 0)
        tsr_json_int(j, "process_memory", r->process_memory);
    else
        tsr_json_null(j, "process_memory");
    return cli_print_json(c, j, EXIT_DONE);
}

// Of each rank, or of all where they share a process.
static void print_memory(const tsr_bench_result *r)
{
    printf("memory, mapped weights included:");
    if (r->memory[0] > 0)
        for (int i = 0; i < r->ranks; i++)
            printf("%s rank %d %s", i ? "," : "", i, cli_bytes(r->memory[i]));
    else
        printf(" %s in one process", cli_bytes(r->process_memory));
    printf("\n");
}

static void print_text(const tsr_bench_result *r)
{
    printf(
        "%zu runs in %.2f s on %d rank%s, after %zu to warm up and %.2f s to load: %.1f runs/s\n",
        r->runs, r->seconds, r->ranks, r->ranks == 1 ? "" : "s", r->warmups, r->load_s,
        r->seconds > 0 ? (double)r->runs / r->seconds : 0);
    printf("%10s %10s %10s %10s %10s %10s %10s\n", "ms", "min", "p50", "p90", "p95", "p99", "max");
    printf("%10s %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n", "", 1e3 * r->min_s, 1e3 * r->p50_s,
           1e3 * r->p90_s, 1e3 * r->p95_s, 1e3 * r->p99_s, 1e3 * r->max_s);
    print_memory(r);
    if (r->ranks < 2)
        return;
    printf("communication, waiting for others included:");
    for (int i = 0; i < r->ranks; i++)
        printf("%s rank %d %.1f %%", i ? "," : "", i, 100 * r->communication[i]);
    printf("\n");
}

static int report(struct cli *c, const tsr_bench_result *r)
{
    if (cli_rank(c) > 0)
        return EXIT_DONE;
    if (c->json)
        return print_json(c, r);
    print_text(r);
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    tsr_run_options options;
    tsr_bench_result result = {.size = sizeof result};
    tsr_tensors *inputs = NULL;
    struct planning plan;
    double seconds = 5;
    const char *text = cli_value(c, "--seconds");
    if (text && !cli_number(text, &seconds))
        return cli_usage(c, "--seconds wants a number, not '%s'", text);
    int code = cli_read_run_options(c, &options);
    const char *flights = cli_value(c, "--in-flight");
    uint64_t in_flight = 1;
    if (!code && flights && (!cli_count_of(flights, &in_flight) || in_flight < 1 || in_flight > 16))
        return cli_usage(c, "--in-flight wants a number from 1 to 16, not '%s'", flights);
    options.in_flight = (int)in_flight;
    const char *set = code ? NULL : cli_inputs(c);
    if (!set)
        return EXIT_USAGE;
    code = cli_planning(c, &plan);
    if (code)
        return code;
    tsr_status status = tsr_join(c->session, &options);
    if (status == TSR_OK)
        status = cli_engine(c, NULL, NULL);
    if (status == TSR_OK)
        status = tsr_tensors_new(c->session, &inputs);
    if (status == TSR_OK)
        status = measure(c, &options, &plan, set, seconds, inputs, &result);
    cli_planning_end(&plan);
    code = cli_finish(c, status);
    if (status == TSR_OK)
        code = report(c, &result);
    tsr_tensors_free(inputs);
    return code;
}

static const struct option options_table[] = {
    {"--seconds", "S", "how long to run (default 5)"},
    {"--in-flight", "K",
     "runs under way at a time, 1 to 16 (default 1): more let the stages of a pipeline overlap"},
    {"--config", "NAME", "configuration to cut a model for (needed if it has several)"},
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
    .detail = "Says how long a run takes (percentiles) and which share of it each rank spends in "
              "communication.\nA model is cut as `run` cuts it: for its configuration, or planned "
              "with --devices. One without runs whole, in one\nONNX Runtime with all threads: what "
              "the others compare with.",
    .example = "tessera bench tests/models/bert_tiny/model.onnx --devices 2 --seconds 1",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
