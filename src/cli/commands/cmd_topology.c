// SPDX-License-Identifier: Apache-2.0
// cmd_topology.c - shows, makes and measures topologies.
#include "cli/cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Options of the command. Numbers replace those of every device and link; 0: not given.
struct topology_options {
    int64_t memory;
    double flops, bandwidth, overhead, latency, link_bandwidth, network_latency, network_bandwidth;
    double seconds;
};

static int set_numbers(struct cli *cli, const struct topology_options *options,
                       tsr_topology *topology)
{
    tsr_topology_device device = {.memory = options->memory,
                                  .flops = options->flops,
                                  .bandwidth = options->bandwidth,
                                  .overhead = options->overhead};
    for (int i = 0; i < tsr_topology_devices(topology); i++)
        tsr_topology_set_device(topology, i, &device);
    tsr_topology_set_links(topology, options->latency, options->link_bandwidth);
    if ((options->network_latency > 0 || options->network_bandwidth > 0) &&
        !tsr_topology_set_network(topology, options->network_latency, options->network_bandwidth))
        return cli_usage(cli, "--network-latency and --network-bandwidth need a topology with "
                              "several hosts: hosts:2x8, hosts:2xh100:8");
    return 0;
}

// ---- text --------------------------------------------------------------------------------------

static void print_devices(const tsr_topology *topology)
{
    printf("%-7s %-10s %10s %14s %14s %14s\n", "device", "name", "memory", "GFLOP/s", "memory GB/s",
           "us per node");
    for (int i = 0; i < tsr_topology_devices(topology); i++) {
        const tsr_topology_device *device = tsr_topology_device_at(topology, i);
        printf("%-7d %-10s %10s %14.1f %14.1f %14.2f\n", i, device->name, cli_bytes(device->memory),
               device->flops / 1e9, device->bandwidth / 1e9, device->overhead * 1e6);
    }
}

// Prints where the numbers of a box come from. Example: "hosts:2xh100:8" contains the box "h100".
static void print_source(const char *text)
{
    const char *source, *name;
    for (size_t i = 0; (name = tsr_topology_box(i, &source)); i++) {
        const char *at = strstr(text, name);
        if (at && at[strlen(name)] == ':')
            printf("published numbers: %s\n", source);
    }
}

// Prints the links of each device; equal links are on one line: "  0, 5 us, 5 GB/s to 1 3".
static void print_links(const tsr_topology *topology)
{
    int from, to, last = -1;
    double latency, bandwidth, shown[2] = {0, 0};
    printf("\nlinks\n");
    for (size_t i = 0; tsr_topology_link_at(topology, i, &from, &to, &latency, &bandwidth); i++) {
        if (from != last || latency != shown[0] || bandwidth != shown[1])
            printf("%s  %d, %.3g us, %.3g GB/s to", i ? "\n" : "", from, latency * 1e6,
                   bandwidth / 1e9);
        last = from;
        shown[0] = latency;
        shown[1] = bandwidth;
        printf(" %d", to);
    }
    printf("\n");
}

// Prints the links as an instance map, which every command reads as a topology:
// {4, [[1,2],[0,3],[0,3],[1,2]]}.
static void print_instance_map(const tsr_topology *topology)
{
    int from, to, devices = tsr_topology_devices(topology);
    size_t i = 0;
    printf("{%d, [", devices);
    for (int device = 0; device < devices; device++) {
        const char *separator = "";
        printf("%s[", device ? "," : "");
        for (; tsr_topology_link_at(topology, i, &from, &to, NULL, NULL) && from == device; i++) {
            printf("%s%d", separator, to);
            separator = ",";
        }
        printf("]");
    }
    printf("]}\n");
}

// Writes "instance_map": [[1,2],[0,3],[0,3],[1,2]].
static void add_instance_map(tsr_json *json, const tsr_topology *topology)
{
    int from, to;
    size_t i = 0;
    tsr_json_begin(json, "instance_map", '[');
    for (int device = 0; device < tsr_topology_devices(topology); device++) {
        tsr_json_begin(json, NULL, '[');
        for (; tsr_topology_link_at(topology, i, &from, &to, NULL, NULL) && from == device; i++)
            tsr_json_int(json, NULL, to);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static const int64_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 64 << 20};

#define N_SIZES (int)(sizeof sizes / sizeof *sizes)

// Predicted times over all devices, by collective and size.
struct predicted_times {
    tsr_topology_price at[TSR_COLLECTIVE_COUNT][N_SIZES];
};

static tsr_status predict_times(tsr_topology *topology, struct predicted_times *times)
{
    int n = tsr_topology_devices(topology), *all = cli_alloc((size_t)n, sizeof *all);
    tsr_status status = TSR_OK;
    for (int i = 0; i < n; i++)
        all[i] = i;
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++)
        for (int k = 0; k < N_SIZES && status == TSR_OK; k++)
            status = tsr_topology_cost(topology, (tsr_collective)what, all,
                                       what == TSR_SEND ? 2 : n, sizes[k], &times->at[what][k]);
    return status;
}

// True if the time of the collective is known. It is not if a device cannot be reached, or if the
// links of these devices are not listed.
static bool has_time(const tsr_topology_price *price)
{
    return price->picoseconds < INT64_MAX / 4;
}

// Prints one row per collective, one column per size, with the algorithm.
static void print_times(const struct predicted_times *times)
{
    printf("\nover all devices, in microseconds\n%-16s", "");
    for (int k = 0; k < N_SIZES; k++)
        printf(" %22s", cli_bytes(sizes[k]));
    printf("\n");
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++) {
        printf("%-16s", tsr_collective_name((tsr_collective)what));
        for (int k = 0; k < N_SIZES; k++) {
            const tsr_topology_price *price = &times->at[what][k];
            char cell[64] = "-";
            if (has_time(price))
                snprintf(cell, sizeof cell, "%.1f %s", (double)price->picoseconds / 1e6,
                         price->algorithm);
            printf(" %22s", cell);
        }
        printf("\n");
    }
}

// Writes the operator of a collective to `out`: "all-reduce" gives "AllReduce".
static void operator_name(const char *word, char *out, size_t capacity)
{
    size_t n = 0;
    for (bool start = true; *word && n + 1 < capacity; word++) {
        if (*word != '-')
            out[n++] = (char)(start ? toupper((unsigned char)*word) : *word);
        start = *word == '-';
    }
    out[n] = 0;
}

// Writes "collectives_us": {"AllReduce": {"1024": 13.1, ...}, ...}.
static void add_times(tsr_json *json, const struct predicted_times *times)
{
    tsr_json_begin(json, "collectives_us", '{');
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++) {
        char name[32], size[32];
        operator_name(tsr_collective_name((tsr_collective)what), name, sizeof name);
        tsr_json_begin(json, name, '{');
        for (int k = 0; k < N_SIZES; k++) {
            snprintf(size, sizeof size, "%lld", (long long)sizes[k]);
            if (has_time(&times->at[what][k]))
                tsr_json_number(json, size, (double)times->at[what][k].picoseconds / 1e6);
        }
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// ---- show, make, measure -----------------------------------------------------------------------

static tsr_json *as_json(struct cli *cli, const tsr_topology *topology)
{
    tsr_json *json = cli_json(cli);
    tsr_topology_add_json(topology, json);
    return json;
}

static int show_instance_map(struct cli *cli, const tsr_topology *topology)
{
    int devices = tsr_topology_devices(topology), listed = tsr_topology_listed(topology);
    if (listed < devices)
        return cli_usage(cli,
                         "--instance-map needs a topology of fewer devices: the links of this one "
                         "are listed for %d of %d devices only",
                         listed, devices);
    int code = cli_finish(cli, TSR_OK);
    if (!cli->json) {
        print_instance_map(topology);
        return code;
    }
    tsr_json *json = as_json(cli, topology);
    add_instance_map(json, topology);
    return cli_print_json(cli, json, code);
}

static int show(struct cli *cli, tsr_topology *topology)
{
    struct predicted_times times = {0};
    bool several = tsr_topology_devices(topology) > 1;
    tsr_status status = several ? predict_times(topology, &times) : TSR_OK;
    int code = cli_finish(cli, status);
    if (cli->json) {
        tsr_json *json = as_json(cli, topology);
        if (several && status == TSR_OK)
            add_times(json, &times);
        return cli_print_json(cli, json, code);
    }
    print_devices(topology);
    if (cli->n_arguments > 1) // not for measure
        print_source(cli->arguments[1]);
    print_links(topology);
    if (several && status == TSR_OK)
        print_times(&times);
    return code;
}

// Writes the topology to a file. Returns `code`, or the exit code of a failure.
static int write_file(struct cli *cli, const tsr_topology *topology, const char *out, int code)
{
    tsr_json *json = as_json(cli, topology);
    tsr_json_end(json);
    tsr_status status = tsr_json_write(json, out);
    tsr_json_free(json);
    if (status != TSR_OK)
        code = cli_finish(cli, status);
    if (cli->json && !cli->printed_json) // measure prints the topology
        return cli_print_written(cli, out, code);
    if (status == TSR_OK)
        cli_print(cli, "wrote %s: %d devices, %zu links\n", out, tsr_topology_devices(topology),
                  tsr_topology_links(topology));
    return code;
}

// Writes the topology. Without -o the JSON goes to stdout, with or without --json.
static int make(struct cli *cli, tsr_topology *topology)
{
    const char *out = cli_value(cli, "-o");
    int code = cli_finish(cli, TSR_OK);
    if (out)
        return write_file(cli, topology, out, code);
    return cli_print_json(cli, as_json(cli, topology), code);
}

// Reads a number of ranks on this host: "4" or "cpu:4".
static bool read_ranks(const char *text, uint64_t *out)
{
    return cli_count_of(strncmp(text, "cpu:", 4) == 0 ? text + 4 : text, out) && *out > 0;
}

// file: an earlier measurement to which a model is added, or NULL.
struct measurement {
    tsr_run_options run;
    tsr_measure_options options;
    const char *file;
};

// Reads --devices: cpu:4 is a number of ranks, cuda:2 names devices. With --model, any other text
// is the file of a topology.
static int read_devices(struct cli *cli, struct measurement *measurement)
{
    const char *devices = cli_value(cli, "--devices");
    uint64_t n = 0;
    if (!devices)
        return 0;
    if (read_ranks(devices, &n) && n <= 1024)
        measurement->options.devices = (int)n;
    else if (tsr_topology_is_real(devices))
        measurement->run.device = devices;
    else if (measurement->options.model)
        measurement->file = devices;
    else
        return cli_usage(cli,
                         "--devices needs a number of ranks such as cpu:4, or devices of this "
                         "machine such as cuda:2, not '%s'",
                         devices);
    return 0;
}

static int read_measurement(struct cli *cli, double seconds, struct measurement *measurement)
{
    tsr_measure_options *options = &measurement->options;
    *options = (tsr_measure_options){
        .size = sizeof *options, .run = &measurement->run, .seconds = seconds};
    int code = cli_read_run_options(cli, &measurement->run);
    if (code)
        return code;
    options->model = cli_value(cli, "--model");
    if (options->model)
        options->inputs = cli_inputs(cli);
    if (options->model && !options->inputs)
        return EXIT_USAGE;
    return read_devices(cli, measurement);
}

static tsr_status measure_here(struct cli *cli, const struct measurement *measurement,
                               tsr_topology **out)
{
    tsr_status status = cli_engine(cli, NULL, NULL);
    if (status != TSR_OK)
        return status;
    if (!measurement->file)
        return tsr_topology_measure(cli->session, &measurement->options, out);
    status = cli_topology(cli, measurement->file, out);
    if (status != TSR_OK)
        return status;
    return tsr_topology_add_profile(*out, &measurement->options);
}

// Measures the devices. Under a launcher every rank measures, and rank 0 gets the topology.
static int measure(struct cli *cli, double seconds)
{
    struct measurement measurement = {.run = {.size = sizeof measurement.run}};
    int code = read_measurement(cli, seconds, &measurement);
    if (code)
        return code;
    tsr_topology *topology = NULL;
    tsr_status status = measure_here(cli, &measurement, &topology);
    const char *out = cli_value(cli, "-o");
    if (status != TSR_OK || !topology) { // topology NULL: not rank 0
        code = cli_finish(cli, status);
        goto free_topology;
    }
    if (measurement.options.inputs)
        cli_print_seed(cli, measurement.options.inputs);
    code = cli->json || !cli->quiet ? show(cli, topology) : cli_finish(cli, TSR_OK);
    if (out)
        code = write_file(cli, topology, out, code);
free_topology:
    tsr_topology_free(topology);
    return code;
}

static int run_topology(struct cli *cli)
{
    struct topology_options numbers = {0};
    const char *verb = cli->arguments[0];
    bool shows = strcmp(verb, "show") == 0;
    int code = cli_fill(cli, OPTION_OWN, &numbers);
    if (code)
        return code;
    if (!shows && cli_flag(cli, "--instance-map"))
        return cli_usage(cli, "--instance-map is an option of show");
    if (strcmp(verb, "measure") == 0)
        return cli->n_arguments == 1 ? measure(cli, numbers.seconds)
                                     : cli_usage(cli, "measure takes --devices cpu:N or cuda:N");
    if (!shows && strcmp(verb, "make") != 0)
        return cli_usage(cli, "unknown verb '%s': use show, make or measure", verb);
    if (cli->n_arguments < 2)
        return cli_usage(cli, "no topology given: use 4, ring:4, hosts:2x8, a JSON file ...");
    tsr_topology *topology = NULL;
    tsr_status status = cli_topology(cli, cli->arguments[1], &topology);
    if (status != TSR_OK) {
        code = cli_finish(cli, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code;
    }
    code = set_numbers(cli, &numbers, topology);
    if (!code && cli_flag(cli, "--instance-map"))
        code = show_instance_map(cli, topology);
    else if (!code)
        code = shows ? show(cli, topology) : make(cli, topology);
    tsr_topology_free(topology);
    return code;
}

#define NUMBER(member) INTO(struct topology_options, member)
static const struct option options[] = {
    {"-o", "FILE", "make, measure: write JSON to this file"},
    {"--instance-map", NULL, "show: print the links as {4, [[1,2],[0,3],[0,3],[1,2]]}"},
    {"--memory", "16GiB", "memory of every device", INTO_BYTES(struct topology_options, memory)},
    {"--flops", "N", "float32 operations per second of every device", NUMBER(flops)},
    {"--bandwidth", "N", "memory bandwidth of every device in bytes per second", NUMBER(bandwidth)},
    {"--overhead", "S", "overhead of the engine per node in seconds", NUMBER(overhead)},
    {"--latency", "S", "latency of every link in seconds", NUMBER(latency)},
    {"--link-bandwidth", "N", "bandwidth of every link in bytes per second",
     NUMBER(link_bandwidth)},
    {"--network-latency", "S", "latency of the links between hosts", NUMBER(network_latency)},
    {"--network-bandwidth", "N", "bandwidth of the links between hosts", NUMBER(network_bandwidth)},
    {"--devices", "cpu:N|cuda:N",
     "measure: number of ranks on this host (default: one per core), or GPUs: cuda:2, cuda:2@0, "
     "CUDA:0,CPU; with --model also the file of an earlier measurement"},
    {"--seconds", "S",
     "measure: duration (default 30; all kinds of work need about 10); below 0.5 operator kinds "
     "are not distinguished",
     NUMBER(seconds)},
    {"--model", "MODEL",
     "measure: also run this model unsharded and sharded; plan and simulate then use the measured "
     "times of its nodes"},
    {"--inputs", "SET", "measure --model: inputs, as for `tessera run` (default random)"},
    {"--shape", "NAME:2x3", "measure --model: shape of a random input (repeatable)"},
    {"--transport", "NAME", "measure: threads, shm (processes) or mpi", INTO_RUN_TRANSPORT},
    {"--threads", "N", "measure: threads per rank (default: cores / ranks, at least 1)",
     INTO_RUN(threads), .min = 1, .max = 4096},
    END_OF_OPTIONS,
};

const struct command cmd_topology = {
    .name = "topology",
    .arguments = "show|make TOPOLOGY | measure",
    .summary = "show, make or measure devices and links",
    .detail = "TOPOLOGY is a number of devices, cpu:4, full:4, ring:4, star:4@1 (device 1 in\n"
              "the centre), tree:2x3, torus:3x3x3, grid:2x4, hosts:2x8, hosts:2x2x4 (racks,\n"
              "hosts, devices), a box with published numbers (a100:8, h100:8, h200:8, b200:8,\n"
              "l40s:4, mi300x:8, rtx6000, 5090, 4090, 3090, l4, a10g, t4, m1max:1, m2ultra:1,\n"
              "m4max:1, hosts:2xh100:8), an adjacency list {4, [[1],[2],[3],[0]]}, a JSON\n"
              "file, or a planned model. show prints it with predicted times of collectives\n"
              "(--json: collectives_us); make writes JSON to edit by hand.\n"
              "measure times the engine and the transport with all ranks running; use its file\n"
              "with plan --devices FILE.",
    .example = "tessera topology show ring:4",
    .options = options,
    .takes = {1, 2},
    .run = run_topology,
};
