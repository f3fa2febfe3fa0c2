// SPDX-License-Identifier: Apache-2.0
// cmd_verify.c - runs a model sharded and unsharded and compares the outputs.
//
// Verifies one sharding (of the model, or planned with --devices) or K random ones (--random), each
// of which is a trial with its own result. The library partitions, runs and compares; this file
// prints. A difference exits with EXIT_NO and reports the first value in graph order that differs,
// with its node and rank. If ranks are processes, only rank 0 compares and prints.
#include "cli/output/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIALS 100000

// The result of one sharding: trial i, or (TSR_NO_TRIAL) the model's own.
struct outcome {
    const tsr_partition_result *partition;
    tsr_difference *outputs;
    size_t n_outputs;
    tsr_first_difference first;
};

static struct outcome read_outcome(const tsr_verify_result *result, size_t trial, size_t n_outputs)
{
    struct outcome outcome = {.partition = tsr_verify_result_partition(result, trial),
                              .n_outputs = n_outputs,
                              .first = TSR_FIRST_DIFFERENCE_INIT};
    READ_LIST(outcome.outputs, n_outputs, tsr_verify_result_output, result, trial);
    (void)tsr_verify_result_first(result, trial, &outcome.first);
    return outcome;
}

// ---- JSON --------------------------------------------------------------------------------------

// Writes `recorded`: the comparison with the outputs recorded in a test_data_set_N; -1: no
// recording.
static void json_recorded(tsr_json *json, int recorded)
{
    if (recorded < 0)
        tsr_json_null(json, "recorded");
    else
        tsr_json_bool(json, "recorded", recorded > 0);
}

static const tsr_json_field output_fields[] = {
    {JSON_FIELD(tsr_difference, "name", name)},
    {JSON_FIELD(tsr_difference, "max_abs", max_abs)},
    {JSON_FIELD(tsr_difference, "max_rel", max_rel)},
    {JSON_FIELD(tsr_difference, "ok", ok)},
    {JSON_END},
};

// Writes the first difference. `rank` is a rank that has the element with the largest difference;
// null: unknown.
static void json_first(tsr_json *json, const tsr_first_difference *first)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_first_difference, "value", value)},
        {JSON_FIELD(tsr_first_difference, "node", node)},
        {JSON_FIELD(tsr_first_difference, "op", op)},
        {JSON_FIELD(tsr_first_difference, "node_index", node_index)},
        {JSON_NEGATIVE_AS_NULL(tsr_first_difference, "rank", rank)},
        {JSON_FIELD(tsr_first_difference, "max_rel", max_rel)},
        {JSON_END},
    };
    if (first->value)
        tsr_json_record(json, "first", fields, first);
}

// Writes one string per edit, for `annotate --script`. A line that is too long for the buffer is
// left out.
static void json_sharding(tsr_json *json, const char *edits)
{
    char line[4096];
    tsr_json_begin(json, "sharding", '[');
    for (const char *p = edits ? edits : ""; *p;) {
        const char *end = strchr(p, '\n');
        size_t n = end ? (size_t)(end - p) : strlen(p);
        if (n < sizeof line) {
            memcpy(line, p, n);
            line[n] = 0;
            tsr_json_string(json, NULL, line);
        }
        p += n + (end != NULL);
    }
    tsr_json_end(json);
}

static void json_outcome(tsr_json *json, const struct outcome *outcome)
{
    partition_json(json, outcome->partition);
    tsr_json_records(json, "outputs", output_fields, outcome->outputs, outcome->n_outputs,
                     sizeof *outcome->outputs);
    json_first(json, &outcome->first);
}

static void json_trials(tsr_json *json, const tsr_verify_result *result, size_t n)
{
    tsr_json_begin(json, "trials", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_verify_trial trial = TSR_VERIFY_TRIAL_INIT;
        (void)tsr_verify_result_trial(result, i, &trial);
        struct outcome outcome = read_outcome(result, i, trial.n_outputs);
        tsr_json_begin(json, NULL, '{');
        tsr_json_bool(json, "ok", trial.ok);
        json_recorded(json, trial.recorded);
        tsr_json_string(json, "status", tsr_status_text(trial.status));
        tsr_json_string(json, "refused", trial.refused);
        json_outcome(json, &outcome);
        json_sharding(json, trial.sharding);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static tsr_input_sizes sizes_of(const tsr_verify_facts *facts)
{
    return (tsr_input_sizes){.size = sizeof(tsr_input_sizes),
                             .open_size = facts->open_size,
                             .sizes = facts->sizes,
                             .n_sizes = facts->n_sizes,
                             .planned_size = facts->planned_size};
}

// Returns the devices of the random shardings.
static int64_t trial_devices(const tsr_verify_options *options, const tsr_verify_result *result)
{
    const tsr_partition_result *first = tsr_verify_result_partition(result, 0);
    return options->devices ? options->devices : (int64_t)partition_view(first).facts.devices;
}

// Prints the verification as JSON. With --random the results are in each trial, otherwise at the
// top.
static int print_verify_json(struct cli *cli, const tsr_verify_options *options,
                             const tsr_verify_result *result, const tsr_verify_facts *facts,
                             int code)
{
    tsr_json *json = cli_json(cli);
    tsr_input_sizes sizes = sizes_of(facts);
    tsr_json_bool(json, "ok", facts->ok);
    json_recorded(json, facts->recorded);
    tsr_json_bool(json, "forced", facts->forced);
    if (options->plan)
        tsr_json_bool(json, "assumed", facts->assumed);
    cli_json_sizes(json, &sizes);
    if (facts->n_trials) {
        tsr_json_int(json, "refused", (int64_t)facts->n_refused);
        tsr_json_int(json, "devices", trial_devices(options, result));
        json_trials(json, result, facts->n_trials);
    } else {
        struct outcome own = read_outcome(result, TSR_NO_TRIAL, facts->n_outputs);
        json_outcome(json, &own);
    }
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, code);
}

// ---- text --------------------------------------------------------------------------------------

static void print_verdict(const tsr_verify_facts *facts)
{
    cli_color(stdout, facts->ok ? "32" : "31");
    printf("%s", facts->ok ? "PASS" : "FAIL");
    cli_color(stdout, "");
    printf("\n");
}

static void print_outputs(const struct outcome *outcome, const tsr_verify_facts *facts)
{
    printf("%-24s %12s %12s\n", "output", "max abs", "max rel");
    for (size_t i = 0; i < outcome->n_outputs; i++) {
        const tsr_difference *difference = &outcome->outputs[i];
        printf("%-24s %12.3g %12.3g %s\n", difference->name, difference->max_abs,
               difference->max_rel, difference->ok ? "" : "DIFFERENT");
    }
    if (facts->recorded > 0)
        printf("recorded outputs: equal within tolerance\n");
    if (facts->recorded == 0)
        printf("recorded outputs: different%s\n",
               facts->ok ? " (sharded and unsharded runs agree: the recording is from another "
                           "model or engine)"
                         : "");
    print_verdict(facts);
}

// Returns the largest max_rel, or NaN if one is NaN.
static double worst(const struct outcome *outcome)
{
    double most = 0;
    for (size_t i = 0; i < outcome->n_outputs; i++)
        if (!isnan(most) && !(outcome->outputs[i].max_rel <= most))
            most = outcome->outputs[i].max_rel;
    return most;
}

// Prints a trial in one line, and the edits of a failed one.
static void print_trial(uint64_t seed, const tsr_verify_trial *trial, const struct outcome *outcome)
{
    struct partition_view view = partition_view(outcome->partition);
    size_t collectives = 0;
    for (size_t k = 0; k < view.facts.n_collectives; k++)
        collectives += view.collectives[k].count;
    if (trial->refused) {
        printf("%-8llu refused: %s\n", (unsigned long long)seed, trial->refused);
        return;
    }
    printf("%-8llu %5zu of %-4zu %11zu %12.3g %s%s\n", (unsigned long long)seed,
           view.facts.cut_nodes, view.facts.nodes, collectives, worst(outcome),
           trial->ok ? "" : tsr_status_text(trial->status),
           trial->recorded == 0 ? " (differs from the recorded outputs)" : "");
    if (!trial->ok && trial->sharding)
        printf("%s", trial->sharding);
}

// Trial i has the seed `seed` + i.
static void print_trials(uint64_t seed, const tsr_verify_result *result,
                         const tsr_verify_facts *facts)
{
    printf("%-8s %12s %12s %12s\n", "seed", "sharded", "collectives", "max rel");
    for (size_t i = 0; i < facts->n_trials; i++) {
        tsr_verify_trial trial = TSR_VERIFY_TRIAL_INIT;
        (void)tsr_verify_result_trial(result, i, &trial);
        struct outcome outcome = read_outcome(result, i, trial.n_outputs);
        print_trial(seed + i, &trial, &outcome);
    }
    if (facts->n_refused)
        printf("%zu of %zu shardings are not supported\n", facts->n_refused, facts->n_trials);
    print_verdict(facts);
}

// ---- the command -------------------------------------------------------------------------------

static int check_random(struct cli *cli, const tsr_verify_options *options)
{
    if (!options->random && options->seed)
        return cli_usage(cli, "--seed needs --random");
    if (options->random && options->run->ranks > 0)
        return cli_usage(cli, "--random runs all ranks in this process: remove --rank");
    return 0;
}

static int read_options(struct cli *cli, tsr_verify_options *options, tsr_run_options *run)
{
    const char *reference = cli_value(cli, "--reference");
    int code = cli_fill(cli, OPTION_OWN, options);
    if (!code)
        code = cli_read_run_options(cli, run);
    options->run = run;
    if (!code && reference && strcmp(reference, "cpu") != 0)
        code = cli_usage(cli, "--reference can only be cpu, not '%s'", reference);
    if (!code)
        code = check_random(cli, options);
    options->reference_cpu = reference != NULL;
    run->deterministic = true;
    options->inputs = code ? NULL : cli_inputs(cli);
    options->work = cli_temporary();
    return options->inputs ? 0 : EXIT_USAGE;
}

// Prints the result on rank 0.
static int report(struct cli *cli, const tsr_verify_options *options,
                  const tsr_verify_result *result, int code)
{
    tsr_verify_facts facts = TSR_VERIFY_FACTS_INIT;
    (void)tsr_verify_result_about(result, &facts);
    cli_print_seed(cli, options->inputs);
    if (cli->json)
        return print_verify_json(cli, options, result, &facts, code);
    tsr_input_sizes sizes = sizes_of(&facts);
    cli_print_sizes(cli, &sizes);
    if (facts.forced)
        cli_print(cli, "one device would be faster; verifying a sharded plan anyway%s\n",
                  facts.assumed ? " (at the speeds of assumed devices)" : "");
    if (facts.n_trials) {
        print_trials(options->seed, result, &facts);
        return code;
    }
    struct outcome own = read_outcome(result, TSR_NO_TRIAL, facts.n_outputs);
    partition_print(stdout, own.partition);
    print_outputs(&own, &facts);
    return code;
}

static int run_verify(struct cli *cli)
{
    tsr_run_options run_options;
    tsr_verify_options options = {.size = sizeof options};
    tsr_verify_result *result = NULL;
    struct planning plan;
    int code = read_options(cli, &options, &run_options);
    if (!code)
        code = cli_planning(cli, &plan);
    if (code)
        return code;
    if (cli_value(cli, "--devices") && !options.random)
        options.plan = &plan.options;
    options.devices = plan.options.devices;
    options.topology = plan.options.topology;
    if (options.topology)
        options.devices = tsr_topology_devices(options.topology);
    tsr_status status = cli_check_dims_of_file(cli, cli->arguments[0]);
    if (status == TSR_OK)
        status = cli_engine(cli, NULL, NULL);
    cli_warn_ranks(cli, options.topology, options.devices);
    if (status == TSR_OK)
        status = tsr_verify(cli->session, cli->arguments[0], &options, &result);
    cli_planning_end(&plan);
    code = cli_finish(cli, status);
    bool apart = run_options.transport != TSR_TRANSPORT_DEFAULT &&
                 run_options.transport != TSR_TRANSPORT_THREADS;
    if (result && run_options.rank <= 0 && !(apart && cli_rank(cli) > 0))
        code = report(cli, &options, result, code);
    tsr_verify_result_free(result);
    return code;
}

#define OPTION(member) INTO(tsr_verify_options, member)
static const struct option options_table[] = {
    {"--config", "NAME", "configuration to verify (required if the model has several)",
     OPTION(config)},
    INPUT_OPTIONS,
    {"--tolerance", "X",
     "largest difference relative to the output's largest magnitude (default 5e-5 for float32)",
     OPTION(tolerance)},
    {"--reference", "cpu",
     "run the unsharded model on the CPU (default: on the ranks' device type)"},
    {"--allow-unsharded", NULL,
     "with --devices: exit 0 if no node can be sharded (default: exit 1)", OPTION(allow_unsharded)},
    {"--random", "K", "verify K random valid shardings; those that fail are printed as edits",
     OPTION(random), .max = MAX_TRIALS},
    {"--seed", "S", "random seed of the first trial (default 0); the next are S + 1, S + 2, ...",
     OPTION(seed)},
    PLAN_OPTIONS,
    RUN_OPTIONS,
    PLACE_OPTIONS,
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_verify = {
    .name = "verify",
    .arguments = "MODEL",
    .summary = "run a model sharded and unsharded and compare the outputs",
    .example = "tessera verify cut.onnx --inputs tests/models/t5_tiny/test_data_set_0",
    .options = options_table,
    .takes = {1, 1},
    .run = run_verify,
};
