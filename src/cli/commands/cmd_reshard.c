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

// Reads step i, which exists.
static tsr_step step_at(const tsr_resharding *resharding, size_t i)
{
    tsr_step step = TSR_STEP_INIT;
    (void)tsr_resharding_step(resharding, i, &step);
    return step;
}

// Prints the steps and their time, if it was predicted.
static int print_steps(const tsr_resharding *resharding)
{
    size_t n = tsr_resharding_count(resharding);
    if (n == 0) {
        printf("nothing to do\n");
        return EXIT_DONE;
    }
    printf("%-20s %14s %14s  %-24s %s\n", "step", "per device", "total", "sharding", "groups");
    for (size_t i = 0; i < n; i++) {
        char op[64], groups[SHOWN + 64];
        tsr_step step = step_at(resharding, i);
        op_text(op, sizeof op, &step);
        groups_text(groups, sizeof groups, &step);
        printf("%-20s %14s %14s  %-24s %s\n", op, cli_bytes(step.received), cli_bytes(step.total),
               step.sharding, groups);
    }
    if (tsr_resharding_time(resharding) >= 0)
        printf("predicted time %.3f us\n", (double)tsr_resharding_time(resharding) / 1e6);
    return EXIT_DONE;
}

// Prints the steps as JSON. `time` is written only if --devices is given.
static int print_steps_json(struct cli *cli, const tsr_resharding *resharding)
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
    for (size_t i = 0; i < tsr_resharding_count(resharding); i++) {
        tsr_step step = step_at(resharding, i);
        tsr_json_begin(json, NULL, '{');
        tsr_json_fields(json, fields, &step);
        tsr_json_begin(json, "groups", '[');
        for (size_t g = 0; g < step.n_groups; g++)
            tsr_json_ints(json, NULL, step.groups[g].devices, step.groups[g].n);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    if (tsr_resharding_time(resharding) >= 0)
        tsr_json_int(json, "time", tsr_resharding_time(resharding));
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

// Finds the steps, and prints them.
static int reshard(struct cli *cli, const char *const ends[2], int rank, const int64_t *shape,
                   const tsr_reshard_options *options)
{
    tsr_resharding *resharding = NULL;
    tsr_status status =
        tsr_resharding_new(cli->session, ends[0], ends[1], rank, shape, options, &resharding);
    if (status != TSR_OK) {
        int code = cli_finish(cli, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code; // an invalid sharding is a usage error
    }
    int code = cli->json ? print_steps_json(cli, resharding) : print_steps(resharding);
    tsr_resharding_free(resharding);
    return code;
}

static int run_reshard(struct cli *cli)
{
    const char *shape_text = cli_value(cli, "--shape"), *devices = cli_value(cli, "--devices");
    const char *ends[] = {cli_value(cli, "--from"), cli_value(cli, "--to")};
    tsr_reshard_options options = TSR_RESHARD_OPTIONS_INIT;
    int64_t shape[CLI_MAX_RANK];
    options.pending = cli_value(cli, "--partial");
    if (!shape_text || !ends[0] || !ends[1])
        return cli_usage(cli, "no resharding given: use --shape, --from and --to");
    int rank = cli_shape(shape_text, shape);
    if (rank < 0)
        return cli_usage(cli, "--shape needs sizes such as 7x4, not '%s'", shape_text);
    if (!read_type(cli_value(cli, "--type"), &options.type))
        return cli_usage(cli, "--type needs a type such as float32, not '%s'",
                         cli_value(cli, "--type"));
    if (options.pending && strcmp(options.pending, "sum") != 0 &&
        strcmp(options.pending, "max") != 0 && strcmp(options.pending, "min") != 0 &&
        strcmp(options.pending, "prod") != 0)
        return cli_usage(cli, "--partial needs sum, max, min or prod, not '%s'", options.pending);
    tsr_status status = devices ? cli_topology(cli, devices, &options.topology) : TSR_OK;
    if (status != TSR_OK)
        return cli_finish(cli, status);
    int code = reshard(cli, ends, rank, shape, &options);
    tsr_topology_free(options.topology);
    return code;
}

static const struct option options[] = {
    {"--shape", "8x6", "shape of the tensor; '' is a scalar"},
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
    .run = run_reshard,
};
