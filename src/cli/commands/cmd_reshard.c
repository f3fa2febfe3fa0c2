// SPDX-License-Identifier: Apache-2.0
// cmd_reshard.c - the cheapest resharding of a tensor, step by step, with its traffic.
//
// Needs no model: a resharding depends on a shape, two shardings and perhaps a partial sum.
// Example:
//
//   tessera reshard --shape 8x6 --from '{2,1:0,1}' --to '{1,2:0,1}'
//   step                     per device          total  sharding                 groups
//   all-to-all 0 to 1              48 B           96 B  {1,2:0,1}                0,1
//
// Device 0 has rows 0..3 and needs columns 0..2: 12 of its 24 elements come from device 1.
#include "cli/cli.h"

#include <string.h>

#define SHOWN 60 // columns of a list of groups

// Formats groups of devices: "0,1 2,3". There may be thousands: after SHOWN columns only their
// number is printed.
static void groups_text(char *out, size_t cap, const tsr_step *step)
{
    out[0] = '\0';
    for (size_t g = 0; g < step->n_groups; g++) {
        const char *before = g ? " " : "";
        for (size_t i = 0; i < step->groups[g].n; i++)
            cli_append(out, cap, "%s%lld", i ? "," : before, (long long)step->groups[g].devices[i]);
        if (strlen(out) >= SHOWN && g + 1 < step->n_groups) {
            snprintf(out + SHOWN, cap - SHOWN, " ... (%zu)", step->n_groups);
            return;
        }
    }
}

// Formats a step: "all-to-all 0 to 1" moves a sharded axis, "all-gather 0" has one axis,
// "all-reduce" none.
static void op_text(char *out, size_t cap, const tsr_step *step)
{
    if (step->to_axis >= 0)
        snprintf(out, cap, "%s %d to %d", step->op, step->axis, step->to_axis);
    else if (step->axis >= 0)
        snprintf(out, cap, "%s %d", step->op, step->axis);
    else
        snprintf(out, cap, "%s", step->op);
}

// Prints the steps and their time in picoseconds, if it is not -1.
static void print_steps(const tsr_step *steps, size_t n, int64_t time)
{
    if (n == 0) {
        printf("nothing to do\n");
        return;
    }
    printf("%-20s %14s %14s  %-24s %s\n", "step", "per device", "total", "sharding", "groups");
    for (size_t i = 0; i < n; i++) {
        char op[64], groups[SHOWN + 64];
        op_text(op, sizeof op, &steps[i]);
        groups_text(groups, sizeof groups, &steps[i]);
        printf("%-20s %14s %14s  %-24s %s\n", op, cli_bytes(steps[i].received),
               cli_bytes(steps[i].total), steps[i].sharding, groups);
    }
    if (time >= 0)
        printf("predicted time %.3f us\n", (double)time / 1e6);
}

// Prints the steps as JSON. `time` is written only if --devices is given.
static int print_steps_json(struct cli *cli, const tsr_step *steps, size_t n, int64_t time)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_step, "op", op)},
        {JSON_UNLESS_NEGATIVE(tsr_step, "axis", axis)},
        {JSON_UNLESS_NEGATIVE(tsr_step, "to_axis", to_axis)},
        {JSON_FIELD(tsr_step, "received", received)},
        {JSON_FIELD(tsr_step, "sent", sent)},
        {JSON_FIELD(tsr_step, "total", total)},
        {JSON_FIELD(tsr_step, "sharding", sharding)},
        {JSON_END},
    };
    tsr_json *json = cli_json(cli);
    tsr_json_begin(json, "steps", '[');
    for (size_t i = 0; i < n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_fields(json, fields, &steps[i]);
        tsr_json_begin(json, "groups", '[');
        for (size_t g = 0; g < steps[i].n_groups; g++)
            tsr_json_ints(json, NULL, steps[i].groups[g].devices, steps[i].groups[g].n);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    if (time >= 0)
        tsr_json_int(json, "time", time);
    return cli_print_json(cli, json, EXIT_DONE);
}

// Parses an element type; the default is float32. Returns false if it is unknown.
static bool read_type(const char *text, tsr_dtype *out)
{
    *out = TSR_FLOAT;
    for (int t = 1; text && t < TSR_DTYPE_COUNT; t++)
        if (!strcmp(text, tsr_dtype_name((tsr_dtype)t))) {
            *out = (tsr_dtype)t;
            return true;
        }
    return !text;
}

static int run(struct cli *cli)
{
    const char *shape_text = cli_value(cli, "--shape"), *from = cli_value(cli, "--from");
    const char *to = cli_value(cli, "--to"), *partial = cli_value(cli, "--partial");
    int64_t shape[CLI_MAX_RANK];
    tsr_dtype type;
    if (!shape_text || !from || !to)
        return cli_usage(cli, "no resharding given: use --shape, --from and --to");
    int rank = cli_shape(shape_text, shape);
    if (rank < 0)
        return cli_usage(cli, "--shape needs sizes such as 7x4, not '%s'", shape_text);
    if (!read_type(cli_value(cli, "--type"), &type))
        return cli_usage(cli, "--type needs a type such as float32, not '%s'",
                         cli_value(cli, "--type"));
    if (partial && strcmp(partial, "sum") != 0 && strcmp(partial, "max") != 0 &&
        strcmp(partial, "min") != 0 && strcmp(partial, "prod") != 0)
        return cli_usage(cli, "--partial needs sum, max, min or prod, not '%s'", partial);
    const tsr_step *steps = NULL;
    size_t n = 0;
    tsr_status status =
        tsr_reshard_plan(cli->session, from, to, partial, type, rank, shape, &steps, &n);
    if (status == TSR_MALFORMED) { // an invalid sharding is a usage error
        cli_finish(cli, status);
        return EXIT_USAGE;
    }
    if (status != TSR_OK)
        return cli_finish(cli, status);
    const char *devices = cli_value(cli, "--devices");
    int64_t time = -1;
    tsr_topology *topology = NULL;
    if (devices && (status = cli_topology(cli, devices, &topology)) == TSR_OK)
        status =
            tsr_reshard_time(cli->session, from, to, partial, type, rank, shape, topology, &time);
    tsr_topology_free(topology);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    if (cli->json)
        return print_steps_json(cli, steps, n, time);
    print_steps(steps, n, time);
    return EXIT_DONE;
}

static const struct option options[] = {
    {"--shape", "8x6", "shape of the tensor"},
    {"--from", "SHARDING", "current sharding: {2,1:0,1}, {1:0}, S0,R@2x2 ..."},
    {"--to", "SHARDING", "wanted sharding"},
    {"--partial", "HOW", "devices hold partial results: sum, max, min or prod"},
    {"--type", "TYPE", "element type (default float32)"},
    {"--devices", "TOPOLOGY", "predict the time on a topology such as 4, torus:2x4, hosts:2x8"},
    END_OF_OPTIONS,
};

const struct command cmd_reshard = {
    .name = "reshard",
    .arguments = "--shape SIZES --from SHARDING --to SHARDING",
    .summary = "find the cheapest resharding",
    .example = "tessera reshard --shape 8x6 --from '{2,1:0,1}' --to '{1,2:0,1}'",
    .options = options,
    .run = run,
};
