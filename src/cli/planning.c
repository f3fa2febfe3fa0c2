// SPDX-License-Identifier: Apache-2.0
// planning.c - options of the commands that plan: devices, memory, sizes of symbolic dimensions.
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_devices(struct cli *c, struct planning *p)
{
    const char *text = cli_value(c, "--devices");
    char *end;
    if (!text)
        return 0;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (isdigit((unsigned char)text[0]) && !*end) {
        if (errno || n < 1)
            return cli_usage(c, "--devices wants at least 1, not '%s'", text);
        p->options.devices = n;
        return 0;
    }
    tsr_status status = cli_topology(c, text, &p->options.topology);
    if (status == TSR_OK)
        return 0;
    int code = cli_finish(c, status);
    return status == TSR_MALFORMED && access(text, F_OK) != 0 ? EXIT_USAGE : code;
}

static int read_stages(struct cli *c, tsr_plan_options *o)
{
    const char *stages = cli_value(c, "--stages"), *objective = cli_value(c, "--objective");
    uint64_t n = 0;
    if (stages && strcmp(stages, "auto") == 0)
        o->stages = TSR_STAGES_AUTO;
    else if (stages && cli_count_of(stages, &n) && n > 0 && n <= INT64_MAX)
        o->stages = (int64_t)n;
    else if (stages)
        return cli_usage(c, "--stages wants a number from 1 on, or auto, not '%s'", stages);
    if (objective && strcmp(objective, "throughput") == 0)
        o->objective = TSR_THROUGHPUT;
    else if (objective && strcmp(objective, "latency") != 0)
        return cli_usage(c, "--objective is latency or throughput, not '%s'", objective);
    if (objective && !stages)
        return cli_usage(c, "--objective is of stages: give --stages K or --stages auto");
    return 0;
}

int cli_planning(struct cli *c, struct planning *p)
{
    const char *memory = cli_value(c, "--memory"), *seconds = cli_value(c, "--time");
    *p = (struct planning){.options = {.size = sizeof p->options}};
    int code = cli_read_dims(c, &p->dims);
    p->options.sizes = p->dims.at;
    p->options.n_sizes = p->dims.n;
    if (!code)
        code = read_devices(c, p);
    if (!code && memory && !cli_read_bytes(memory, &p->options.memory))
        code = cli_usage(c, "--memory wants a size such as 8GiB, not '%s'", memory);
    if (!code && seconds && !cli_number(seconds, &p->options.seconds))
        code = cli_usage(c, "--time wants seconds, more than 0, not '%s'", seconds);
    if (!code)
        code = read_stages(c, &p->options);
    if (code)
        cli_planning_end(p);
    return code;
}

void cli_planning_end(struct planning *p)
{
    tsr_topology_free(p->options.topology);
    cli_free_dims(&p->dims);
    *p = (struct planning){0};
}

bool cli_plans(const tsr_run_options *options)
{
    int rank = 0, ranks = 1;
    const char *asked = options->transport;
    bool alone = asked && strcmp(asked, "threads") == 0;
    return alone || !tsr_run_place(options, &rank, &ranks) || rank == 0;
}
