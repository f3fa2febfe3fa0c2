// SPDX-License-Identifier: Apache-2.0
// cmd_simulate.c - the timeline of a run on devices that one need not own.
//
// Nothing runs: the library cuts the model (or reads a partition), prices what each device would do
// on the topology, and this file prints it. --devices N stands for N devices of one host; a
// topology may be of devices that nobody here has. A bar of a device has 64 cells; with 3.2 ms in
// all a cell is 50 us:
//
//   0       |####====....####    |   work, communication, waiting for others, nothing
#include "cli/cli.h"

#include <string.h>

#define CELLS 64 // of a device's bar

// Requests that are done in a second when they follow one another; 0: one alone.
static double per_second(const tsr_simulation *simulation)
{
    if (simulation->period <= 0)
        return 0;
    return 1 / simulation->period;
}

// What a device does for the most part of each cell: work, talk, wait, or nothing.
// `at` is the device's first span and is left behind its last. A span from 0.12 to 0.20 ms with
// cells of 0.05 ms adds 0.03 ms to cell 2 and 0.05 ms to cell 3. marks[3], a blank, is the time
// that no span has.
static void draw_bar(const tsr_simulation *simulation, size_t device, size_t *at, char *bar)
{
    static const char marks[] = "#=. ";
    double share[CELLS][4] = {{0}}, cell = simulation->seconds / CELLS;
    for (; *at < simulation->n_spans && (size_t)simulation->spans[*at].device == device; ++*at) {
        const tsr_span *span = &simulation->spans[*at];
        int first = (int)(span->begin / cell), last = (int)(span->end / cell);
        if (last >= CELLS)
            last = CELLS - 1;
        for (int k = first; k <= last; k++) {
            double from = k * cell, to = (k + 1) * cell;
            if (span->begin > from)
                from = span->begin;
            if (span->end < to)
                to = span->end;
            if (to > from)
                share[k][span->kind] += to - from;
        }
    }
    for (int k = 0; k < CELLS; k++) {
        int best = 3;
        share[k][3] = cell - share[k][0] - share[k][1] - share[k][2];
        for (int i = 0; i < 3; i++)
            // A hair more than the best so far, or rounding would decide between equal shares.
            if (share[k][i] > share[k][best] * 1.000001)
                best = i;
        bar[k] = marks[best];
    }
    bar[CELLS] = 0;
}

// 0: nothing takes any time, as in a graph without nodes.
static double percent(const tsr_simulation *simulation, double seconds)
{
    if (simulation->seconds > 0)
        return 100 * seconds / simulation->seconds;
    return 0;
}

// `at` goes on through the spans, which are sorted by device: each bar begins where the last
// ended.
static void print_text(const struct cli *cli, const tsr_simulation *simulation)
{
    char bar[CELLS + 1];
    size_t at = 0;
    double talk = 0;
    for (size_t i = 0; i < simulation->devices; i++)
        talk += simulation->device[i].communication / (double)simulation->devices;
    printf("%zu device%s, %d request%s: %.3f ms", simulation->devices,
           cli_plural(simulation->devices), simulation->requests, cli_plural(simulation->requests),
           simulation->seconds * 1e3);
    if (simulation->requests > 1)
        printf("; the first after %.3f ms, then one every %.3f ms: %.1f a second",
               simulation->first * 1e3, simulation->period * 1e3, per_second(simulation));
    printf("; communication %.1f %% of it\n", percent(simulation, talk));
    cli_say_assumed(stdout, (struct prediction){.devices = (int64_t)simulation->devices,
                                                .assumed = simulation->assumed,
                                                .flops = simulation->device_flops});
    printf("%-8s %-*s %8s %8s %8s %8s %10s\n", "device", CELLS + 2,
           "# work  = communication  . waits", "work %", "comm. %", "waits %", "idle %", "memory");
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        draw_bar(simulation, i, &at, bar);
        printf("%-8zu|%s| %8.1f %8.1f %8.1f %8.1f %10s\n", i, bar,
               percent(simulation, device->compute), percent(simulation, device->communication),
               percent(simulation, device->waiting), percent(simulation, device->idle),
               cli_bytes(device->memory));
    }
    if (simulation->unsized)
        cli_say(cli, "%zu nodes have sizes that are not known before a run; they count 1\n",
                simulation->unsized);
}

// Every communication with what it carried, then every link with what went over it.
static void add_communication(tsr_json *json, const tsr_simulation *simulation)
{
    tsr_json_begin(json, "communication", '[');
    for (size_t i = 0; i < simulation->n_comms; i++) {
        const tsr_simulated_comm *comm = &simulation->comms[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "id", comm->id);
        tsr_json_string(json, "op", comm->op);
        tsr_json_int(json, "bytes", comm->bytes);
        tsr_json_int(json, "carried", comm->carried);
        tsr_json_number(json, "seconds", comm->seconds);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    tsr_json_begin(json, "links", '[');
    for (size_t i = 0; i < simulation->n_links; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "from", simulation->links[i].from);
        tsr_json_int(json, "to", simulation->links[i].to);
        tsr_json_int(json, "bytes", simulation->links[i].bytes);
        tsr_json_number(json, "seconds", simulation->links[i].seconds);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Times in seconds, sizes in bytes; `spans` is only their number, as --trace writes them.
static int print_json(struct cli *cli, const tsr_simulation *simulation)
{
    tsr_json *json = cli_json(cli);
    if (!json)
        return cli_print_json(cli, json, EXIT_READ);
    tsr_json_int(json, "devices", (int64_t)simulation->devices);
    tsr_json_bool(json, "assumed", simulation->assumed);
    tsr_json_int(json, "requests", simulation->requests);
    tsr_json_number(json, "seconds", simulation->seconds);
    tsr_json_number(json, "first_s", simulation->first);
    tsr_json_number(json, "period_s", simulation->period);
    tsr_json_number(json, "requests_per_s", per_second(simulation));
    tsr_json_begin(json, "timeline", '[');
    for (size_t i = 0; i < simulation->devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_number(json, "compute_s", device->compute);
        tsr_json_number(json, "communication_s", device->communication);
        tsr_json_number(json, "waiting_s", device->waiting);
        tsr_json_number(json, "idle_s", device->idle);
        tsr_json_int(json, "weights", device->weights);
        tsr_json_int(json, "memory", device->memory);
        tsr_json_int(json, "peak", device->peak);
        tsr_json_number(json, "arithmetic_s", device->arithmetic);
        tsr_json_number(json, "moving_s", device->moving);
        tsr_json_number(json, "overhead_s", device->overhead);
        tsr_json_end(json);
    }
    tsr_json_end(json);
    if (simulation->one_device_s > 0) { // of a partition it is not known
        tsr_json_number(json, "one_device_s", simulation->one_device_s);
        tsr_json_int(json, "one_device_memory", simulation->one_device_memory);
    }
    add_communication(json, simulation);
    tsr_json_int(json, "spans", (int64_t)simulation->n_spans);
    tsr_json_int(json, "unsized", (int64_t)simulation->unsized);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, EXIT_DONE);
}

// A model that says nothing for so many devices is planned first.
static tsr_status simulate_model(struct cli *cli, struct planning *planning,
                                 tsr_simulate_options *options, tsr_simulation *simulation)
{
    tsr_model *model = NULL;
    tsr_plan_summary summary = {.size = sizeof summary};
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status != TSR_OK)
        return status;
    cli_tell_dims(cli, model, options->sizes, options->n_sizes);
    if (!tsr_model_config_count(model) && !options->config) {
        status = tsr_plan(model, &planning->options, &summary);
        if (status != TSR_OK)
            goto free_model;
        options->config = summary.config;
    }
    status = tsr_simulate(model, options, simulation);
free_model:
    tsr_model_free(model);
    return status;
}

// The model neither has a configuration nor is it said which devices to plan for.
// Loads the model once more just to look: a mistake of the command line is told as one before
// anything is planned.
static bool lacks_devices(struct cli *cli, const struct planning *planning)
{
    tsr_model *model = NULL;
    bool lacks = false;
    if (planning->options.devices || planning->options.topology || cli_is_folder(cli->arguments[0]))
        return false;
    if (tsr_model_load(cli->session, cli->arguments[0], &model) == TSR_OK)
        lacks = tsr_model_config_count(model) == 0;
    tsr_finding_clear(cli->session); // told when it is loaded to be used
    tsr_model_free(model);
    return lacks;
}

// A folder is simulated as it was cut; a model is planned first if it has no configuration.
static int simulate(struct cli *cli, struct planning *planning, tsr_simulate_options *options)
{
    tsr_simulation x = {.size = sizeof x};
    const char *trace = cli_value(cli, "--trace");
    tsr_status status;
    if (cli_is_folder(cli->arguments[0]))
        status = tsr_simulate_folder(cli->session, cli->arguments[0], options, &x);
    else
        status = simulate_model(cli, planning, options, &x);
    if (status != TSR_OK)
        return cli_finish(cli, status);
    // Before the text, so that nothing is printed of a command that fails.
    if (trace)
        status = tsr_simulation_trace(cli->session, &x, trace);
    int code = cli_finish(cli, status);
    if (status != TSR_OK)
        return code;
    if (cli->json)
        return print_json(cli, &x);
    print_text(cli, &x);
    if (trace)
        cli_say(cli, "%s: written\n", trace);
    return code;
}

static int run(struct cli *cli)
{
    struct planning g;
    uint64_t requests = 1;
    const char *text = cli_value(cli, "--requests");
    if (text && (!cli_count_of(text, &requests) || requests < 1 || requests > 100000))
        return cli_usage(cli, "--requests wants a number from 1 to 100000, not '%s'", text);
    int code = cli_planning(cli, &g);
    if (code)
        return code;
    tsr_simulate_options options = {.size = sizeof options,
                                    .config = cli_value(cli, "--config"),
                                    .sizes = g.options.sizes,
                                    .n_sizes = g.options.n_sizes,
                                    .requests = (int)requests,
                                    .one_device = cli->json,
                                    .topology = g.options.topology};
    tsr_topology *own =
        NULL; // a number of devices stands for those of one host, whatever the model was planned for
    char devices[32];
    snprintf(devices, sizeof devices, "cpu:%lld", (long long)g.options.devices);
    if (!options.topology && g.options.devices > 0) {
        code = cli_finish(cli, tsr_topology_parse(cli->session, devices, &own));
        options.topology = own;
    }
    if (!code && lacks_devices(cli, &g))
        code = cli_usage(cli, "the model is not cut: give --devices N or a topology");
    if (!code)
        code = simulate(cli, &g, &options);
    tsr_topology_free(own);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (needed if it has several)"},
    {"--requests", "N", "runs that follow one another through the devices (default 1)"},
    {"--trace", "FILE", "write the timeline for Perfetto or chrome://tracing"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_simulate = {
    .name = "simulate",
    .arguments = "MODEL|DIR --devices TOPOLOGY",
    .summary = "the timeline of a run on devices that need not be there",
    .detail = "The model is cut, or a partition is read, and what each device then does is priced "
              "as the planner prices it.\n"
              "A model without shardings is planned first. Devices wait where they talk to each "
              "other, and nowhere else.",
    .example = "tessera simulate tests/models/bert_tiny/model.onnx --devices hosts:2x2 --dim "
               "batch=8 --dim seq=128",
    .options = options_table,
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
