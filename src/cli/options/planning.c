// SPDX-License-Identifier: Apache-2.0
// planning.c - options of the commands that plan, and messages about predicted times.
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tsr_status cli_topology(struct cli *cli, const char *text, tsr_topology **out)
{
    return tsr_topology_find(cli->session, text, getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL"),
                             out);
}

// Refuses a list of hosts with another number of devices than those of `text`, which has n.
static int check_hosts(struct cli *cli, int64_t n, const char *text)
{
    int given = cli_in_workers(cli) ? cli_count_hosts(cli_value(cli, "--hosts")) : 0;
    if (!cli_in_workers(cli) || given == n)
        return 0;
    return cli_usage(cli, "--hosts has %d devices, but --devices %s needs %lld", given, text,
                     (long long)n);
}

// Reads --devices. "4" is a number of equal devices; other texts are topologies or files of
// topologies. A text that is neither is a usage error.
static int read_devices(struct cli *cli, struct planning *planning)
{
    const char *text = cli_value(cli, "--devices");
    char *end;
    if (!text)
        return 0;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (isdigit((unsigned char)text[0]) && !*end) {
        if (errno || n < 1)
            return cli_usage(cli, "--devices needs a number from 1 up, not '%s'", text);
        planning->options.devices = n;
        if (!cli_in_workers(cli))
            return 0;
        int misfit = check_hosts(cli, n, text);
        if (misfit)
            return misfit;
        text = cli_hosts_topology(cli_value(cli, "--hosts"));
        if (isdigit((unsigned char)text[0]))
            return 0;
        planning->options.devices = 0;
    }
    tsr_status status = cli_topology(cli, text, &planning->options.topology);
    if (status == TSR_OK)
        return check_hosts(cli, tsr_topology_devices(planning->options.topology), text);
    int code = cli_finish(cli, status);
    return status == TSR_MALFORMED && access(text, F_OK) != 0 ? EXIT_USAGE : code;
}

static int read_stages(struct cli *cli, tsr_plan_options *options)
{
    const char *stages = cli_value(cli, "--stages"), *objective = cli_value(cli, "--objective");
    uint64_t n = 0;
    if (stages && strcmp(stages, "auto") == 0)
        options->stages = TSR_STAGES_AUTO;
    else if (stages && cli_count_of(stages, &n) && n > 0 && n <= INT64_MAX)
        options->stages = (int64_t)n;
    else if (stages)
        return cli_usage(cli, "--stages needs a number from 1 up, or auto, not '%s'", stages);
    if (objective && strcmp(objective, "throughput") == 0)
        options->objective = TSR_THROUGHPUT;
    else if (objective && strcmp(objective, "latency") != 0)
        return cli_usage(cli, "--objective needs latency or throughput, not '%s'", objective);
    if (objective && !stages)
        return cli_usage(cli, "--objective needs --stages K or --stages auto");
    return 0;
}

int cli_planning(struct cli *cli, struct planning *planning)
{
    *planning = (struct planning){.options = {.size = sizeof planning->options}};
    int code = cli_read_dims(cli, &planning->dims);
    planning->options.sizes = planning->dims.at;
    planning->options.n_sizes = planning->dims.n;
    if (!code)
        code = read_devices(cli, planning);
    if (!code)
        code = cli_fill(cli, OPTION_PLAN, &planning->options);
    if (!code)
        code = read_stages(cli, &planning->options);
    if (code)
        cli_planning_end(planning);
    return code;
}

void cli_planning_end(struct planning *planning)
{
    tsr_topology_free(planning->options.topology);
    *planning = (struct planning){0};
}

int cli_refuse_planning(const struct cli *cli)
{
    static const char *const names[] = {"--devices",   "--config", "--stages",
                                        "--objective", "--time",   NULL};
    if (!cli_is_folder(cli->arguments[0]) || !cli_first_given(cli, names))
        return 0;
    return cli_usage(cli,
                     "%s is for models, but '%s' is a folder whose model is already partitioned",
                     cli_first_given(cli, names), cli->arguments[0]);
}

void cli_print_one_device(const struct cli *cli, struct prediction prediction)
{
    if (prediction.devices < 2 || prediction.one_device <= 0)
        return;
    if (prediction.one_device <= prediction.cost)
        cli_print(cli, "one device is as fast: predicted time %s, with %lld devices %s%s\n",
                  cli_time(prediction.one_device), (long long)prediction.devices,
                  cli_time(prediction.cost), prediction.assumed ? " (assumed devices)" : "");
}

tsr_plan_facts cli_plan_facts(const tsr_plan_result *plan)
{
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    (void)tsr_plan_result_about(plan, &facts);
    return facts;
}

struct prediction cli_prediction(const tsr_plan_facts *plan)
{
    return (struct prediction){.devices = (int64_t)plan->devices,
                               .cost = plan->cost,
                               .one_device = plan->one_device,
                               .assumed = plan->assumed,
                               .flops = plan->device_flops};
}

void cli_print_assumed(FILE *to, struct prediction prediction)
{
    double giga = prediction.flops / 1e9;
    bool tera = giga >= 1000;
    if (!prediction.assumed)
        return;
    fprintf(
        to,
        "on %lld assumed device%s of %.3g %sFLOP/s; measure yours: tessera topology measure, or "
        "plan for this machine: --devices auto\n",
        (long long)prediction.devices, cli_plural((size_t)prediction.devices),
        tera ? giga / 1000 : giga, tera ? "T" : "G");
}

void cli_json_prediction(tsr_json *json, struct prediction prediction)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(struct prediction, "cost", cost)},
        {JSON_OR_NULL(struct prediction, "one_device", one_device)},
        {JSON_FIELD(struct prediction, "assumed", assumed)},
        {JSON_END},
    };
    tsr_json_fields(json, fields, &prediction);
}
