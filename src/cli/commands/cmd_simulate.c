// SPDX-License-Identifier: Apache-2.0
// cmd_simulate.c - the predicted timeline of a run; the devices need not exist.
//
// The library partitions the model (or reads a partition) and predicts what each device does on the
// topology; this file prints it. --devices N means N devices of one host. The bar of a device has
// 64 cells; in a run of 3.2 ms a cell is 50 us:
//
//   0       |####====....####    |   work, communication, waiting, idle
#include "cli/cli.h"

#include <string.h>

#define CELLS 64

// Returns requests per second in a steady stream; 0: there is only one request.
static double per_second(const tsr_simulation_view *simulation)
{
    return simulation->facts.period > 0 ? 1 / simulation->facts.period : 0;
}

// Draws the bar of a device: each cell shows what the device does during most of the cell's time.
// *at is the index of the first span of the device and is advanced past its last. Example: with
// cells of 0.05 ms, a span from 0.12 to 0.20 ms adds 0.03 ms to cell 2 and 0.05 ms to cell 3.
// marks[3] is for time outside of all spans.
static void draw_bar(const tsr_simulation_view *simulation, size_t device, size_t *at, char *bar)
{
    static const char marks[] = "#=. ";
    double share[CELLS][4] = {{0}}, cell = simulation->facts.seconds / CELLS;
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
            // The margin keeps rounding from deciding between equal shares.
            if (share[k][i] > share[k][best] * 1.000001)
                best = i;
        bar[k] = marks[best];
    }
    bar[CELLS] = 0;
}

static double percent(const tsr_simulation_view *simulation, double seconds)
{
    return simulation->facts.seconds > 0 ? 100 * seconds / simulation->facts.seconds : 0;
}

// Prints the simulation with a bar for each device. Spans are sorted by device, so each bar starts
// where the previous one ended.
static void print_text(const struct cli *cli, const tsr_simulation_view *simulation)
{
    char bar[CELLS + 1];
    size_t at = 0;
    double talk = 0;
    for (size_t i = 0; i < simulation->facts.devices; i++)
        talk += simulation->device[i].communication / (double)simulation->facts.devices;
    printf("%zu device%s, %d request%s: %.3f ms", simulation->facts.devices,
           cli_plural(simulation->facts.devices), simulation->facts.requests,
           cli_plural((size_t)simulation->facts.requests), simulation->facts.seconds * 1e3);
    if (simulation->facts.requests > 1)
        printf("; the first after %.3f ms, then one every %.3f ms: %.1f per second",
               simulation->facts.first * 1e3, simulation->facts.period * 1e3,
               per_second(simulation));
    printf("; communication %.1f %% of it\n", percent(simulation, talk));
    cli_print_assumed(stdout, (struct prediction){.devices = (int64_t)simulation->facts.devices,
                                                  .assumed = simulation->facts.assumed,
                                                  .flops = simulation->facts.device_flops});
    printf("%-8s %-*s %8s %8s %8s %8s %10s\n", "device", CELLS + 2,
           "# work  = communication  . waiting", "work %", "comm. %", "wait %", "idle %", "memory");
    for (size_t i = 0; i < simulation->facts.devices; i++) {
        const tsr_simulated_device *device = &simulation->device[i];
        draw_bar(simulation, i, &at, bar);
        printf("%-8zu|%s| %8.1f %8.1f %8.1f %8.1f %10s\n", i, bar,
               percent(simulation, device->compute), percent(simulation, device->communication),
               percent(simulation, device->waiting), percent(simulation, device->idle),
               cli_bytes(device->memory));
    }
    if (simulation->facts.unsized)
        cli_print(cli, "%zu nodes have dimensions that are only known at run time; assuming 1\n",
                  simulation->facts.unsized);
}

static const tsr_json_field comm_fields[] = {
    {JSON_FIELD(tsr_simulated_comm, "id", id)},
    {JSON_FIELD(tsr_simulated_comm, "op", op)},
    {JSON_FIELD(tsr_simulated_comm, "bytes", bytes)},
    {JSON_FIELD(tsr_simulated_comm, "carried", carried)},
    {JSON_FIELD(tsr_simulated_comm, "seconds", seconds)},
    {JSON_END},
};

static const tsr_json_field total_fields[] = {
    {JSON_FIELD(tsr_simulation_view, "devices", facts.devices)},
    {JSON_FIELD(tsr_simulation_view, "assumed", facts.assumed)},
    {JSON_END},
};

// `spans` is their number; --trace writes them. For a partition, the one_device fields are absent.
static const tsr_json_field detail_fields[] = {
    {JSON_IF_KNOWN(tsr_simulation_view, "one_device_s", facts.one_device_s)},
    {JSON_IF_KNOWN(tsr_simulation_view, "one_device_memory", facts.one_device_memory)},
    {JSON_RECORDS(tsr_simulation_view, "communication", comms, n_comms, comm_fields)},
    {JSON_FIELD(tsr_simulation_view, "spans", n_spans)},
    {JSON_FIELD(tsr_simulation_view, "unsized", facts.unsized)},
    {JSON_END},
};

static int print_json(struct cli *cli, const tsr_simulation_view *simulation)
{
    tsr_json *json = cli_json(cli);
    tsr_json_fields(json, total_fields, simulation);
    tsr_json_simulation(json, simulation);
    tsr_json_number(json, "requests_per_s", per_second(simulation));
    tsr_json_fields(json, detail_fields, simulation);
    tsr_json_links(json, "links", simulation->links, simulation->n_links);
    tsr_json_findings(json, "findings");
    return cli_print_json(cli, json, EXIT_DONE);
}

// Simulates a model. Plans it first if it has no configuration.
static tsr_status simulate_model(struct cli *cli, struct planning *planning,
                                 tsr_simulate_options *options, tsr_simulation **simulation)
{
    tsr_model *model = NULL;
    tsr_plan_result *plan = NULL;
    tsr_status status = tsr_model_load(cli->session, cli->arguments[0], &model);
    if (status != TSR_OK)
        return status;
    cli_report_dims(cli, model, options->sizes, options->n_sizes, "--dim");
    if (!tsr_model_config_count(model) && !options->config) {
        status = tsr_plan(model, &planning->options, &plan);
        if (status != TSR_OK)
            goto free_model;
        options->config = cli_plan_facts(plan).config;
    }
    status = tsr_simulate(model, options, simulation);
free_model:
    tsr_plan_result_free(plan);
    tsr_model_free(model);
    return status;
}

// True if the model has no configuration and no devices were given. Checked before planning, so
// that it is reported as a usage error.
static bool lacks_devices(struct cli *cli, const struct planning *planning)
{
    tsr_model *model = NULL;
    bool lacks = false;
    if (planning->options.devices || planning->options.topology || cli_is_folder(cli->arguments[0]))
        return false;
    if (tsr_model_load(cli->session, cli->arguments[0], &model) == TSR_OK)
        lacks = tsr_model_config_count(model) == 0;
    tsr_finding_clear(cli->session); // reported again when the model is used
    tsr_model_free(model);
    return lacks;
}

static int report(struct cli *cli, const tsr_simulation *simulation)
{
    const char *trace = cli_value(cli, "--trace");
    tsr_status status = trace ? tsr_simulation_trace(simulation, trace) : TSR_OK;
    int code = cli_finish(cli, status);
    if (status != TSR_OK)
        return code;
    if (cli->json)
        return print_json(cli, tsr_simulation_read(simulation));
    print_text(cli, tsr_simulation_read(simulation));
    if (trace)
        cli_print(cli, "%s: written\n", trace);
    return code;
}

static int simulate(struct cli *cli, struct planning *planning, tsr_simulate_options *options)
{
    tsr_simulation *simulation = NULL;
    tsr_status status;
    if (cli_is_folder(cli->arguments[0]))
        status = tsr_simulate_folder(cli->session, cli->arguments[0], options, &simulation);
    else
        status = simulate_model(cli, planning, options, &simulation);
    int code = simulation ? report(cli, simulation) : cli_finish(cli, status);
    tsr_simulation_free(simulation);
    return code;
}

static int run_simulate(struct cli *cli)
{
    struct planning g;
    tsr_simulate_options options = {.size = sizeof options, .requests = 1, .one_device = cli->json};
    int code = cli_fill(cli, OPTION_OWN, &options);
    if (!code)
        code = cli_planning(cli, &g);
    if (code)
        return code;
    options.sizes = g.options.sizes;
    options.n_sizes = g.options.n_sizes;
    options.topology = g.options.topology;
    // A number means devices of one host, also if the model was planned for another topology.
    tsr_topology *own = NULL;
    char devices[32];
    snprintf(devices, sizeof devices, "cpu:%lld", (long long)g.options.devices);
    if (!options.topology && g.options.devices > 0) {
        code = cli_finish(cli, tsr_topology_parse(cli->session, devices, &own));
        options.topology = own;
    }
    if (!code && lacks_devices(cli, &g))
        code = cli_usage(cli, "the model has no shardings: use --devices N or a topology");
    if (!code)
        code = simulate(cli, &g, &options);
    tsr_topology_free(own);
    cli_planning_end(&g);
    return code;
}

static const struct option options_table[] = {
    PLAN_OPTIONS,
    {"--config", "NAME", "configuration of the model (required if it has several)",
     INTO(tsr_simulate_options, config)},
    {"--requests", "N", "number of runs in a row, pipelined through the stages (default 1)",
     INTO(tsr_simulate_options, requests), .min = 1, .max = 100000},
    {"--trace", "FILE", "write the timeline as a trace for Perfetto or chrome://tracing"},
    RULES_OPTION,
    END_OF_OPTIONS,
};

const struct command cmd_simulate = {
    .name = "simulate",
    .arguments = "MODEL|DIR --devices TOPOLOGY",
    .summary = "predict the timeline of a run; the devices need not exist",
    .detail = "Partitions the model (or reads a partition) and predicts the time of each step\n"
              "with the planner's cost model.\n"
              "A model without shardings is planned first. Devices synchronize only where they\n"
              "communicate.",
    .example = "tessera simulate tests/models/bert_tiny/model.onnx --devices hosts:2x2 --dim "
               "batch=8 --dim seq=128",
    .options = options_table,
    .takes = {1, 1},
    .run = run_simulate,
};
