// SPDX-License-Identifier: Apache-2.0
// cmd_topology.c - topologies: shown with their prices, made from a generator, written as JSON.
//
// Also the home of cli_topology, by which every command reads a TOPOLOGY: the library's reading, with the libraries that the
// environment names.
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

tsr_status cli_topology(struct cli *cli, const char *text, tsr_topology **out)
{
    return tsr_topology_find(cli->session, text, getenv("TESSERA_CUDA"), getenv("TESSERA_NCCL"),
                             out);
}

// The numbers given on the command line replace those of every device and link.
// 0 in a field leaves what the topology has; the library takes it so.
static int set_numbers(struct cli *cli, tsr_topology *topology)
{
    static const char *const names[] = {
        "--flops",    "--bandwidth",       "--latency",          "--link-bandwidth",
        "--overhead", "--network-latency", "--network-bandwidth"};
    double number[7] = {0};
    int64_t memory = 0;
    for (int i = 0; i < 7; i++) {
        const char *text = cli_value(cli, names[i]);
        if (text && !cli_number(text, &number[i]))
            return cli_usage(cli, "%s wants a positive number such as 2.5e9, not '%s'", names[i],
                             text);
    }
    const char *text = cli_value(cli, "--memory");
    if (text && !cli_read_bytes(text, &memory))
        return cli_usage(cli, "--memory wants a size such as 16GiB, not '%s'", text);
    tsr_topology_device device = {
        .memory = memory, .flops = number[0], .bandwidth = number[1], .overhead = number[4]};
    for (int i = 0; i < tsr_topology_devices(topology); i++)
        tsr_topology_set_device(topology, i, &device);
    tsr_topology_set_links(topology, number[2], number[3]);
    if ((number[5] > 0 || number[6] > 0) &&
        !tsr_topology_set_network(topology, number[5], number[6]))
        return cli_usage(cli,
                         "--network-latency and --network-bandwidth are of links between hosts: "
                         "hosts:2x8, hosts:2xh100:8");
    return 0;
}

// ---- text

// Numbers of the topology are per second and in seconds; the table has GFLOP/s, GB/s and
// microseconds.
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

// Where the numbers of a box come from.
// A box is a name with a colon behind it somewhere in the text: "hosts:2xh100:8" has "h100:".
static void print_source(const char *text)
{
    const char *source, *name;
    for (size_t i = 0; (name = tsr_topology_box(i, &source)); i++) {
        const char *at = strstr(text, name);
        if (at && at[strlen(name)] == ':')
            printf("published numbers: %s\n", source);
    }
}

// Neighbours on one line, links of equal numbers together.
// "  0, 5 us, 5 GB/s to 1 3": device 0 has two equal links.
static void print_links(const tsr_topology *topology)
{
    int from, to, last = -1;
    double latency, bandwidth, said[2] = {0, 0};
    printf("\nlinks\n");
    for (size_t i = 0; tsr_topology_link_at(topology, i, &from, &to, &latency, &bandwidth); i++) {
        if (from != last || latency != said[0] || bandwidth != said[1])
            printf("%s  %d, %.3g us, %.3g GB/s to", cli_between(i, "\n"), from, latency * 1e6,
                   bandwidth / 1e9);
        last = from;
        said[0] = latency;
        said[1] = bandwidth;
        printf(" %d", to);
    }
    printf("\n");
}

// Columns of the table of prices: 1 KiB, 64 KiB, 1 MiB, 64 MiB.
static const int64_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 64 << 20};

// One line for each collective, one column for each size; a send is between two devices.
// Each cell is the time of the best algorithm and its name. After a failure the table ends where it
// is, and the finding follows.
static int print_prices(struct cli *cli, tsr_topology *topology)
{
    int n = tsr_topology_devices(topology), *all = cli_alloc((size_t)n, sizeof *all);
    tsr_status status = TSR_OK;
    for (int i = 0; i < n; i++)
        all[i] = i;
    printf("\nover all devices, in microseconds\n%-16s", "");
    for (int k = 0; k < 4; k++)
        printf(" %22s", cli_bytes(sizes[k]));
    printf("\n");
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++) {
        if (status != TSR_OK)
            break;
        printf("%-16s", tsr_collective_name((tsr_collective)what));
        for (int k = 0; k < 4; k++) {
            if (status != TSR_OK)
                break;
            tsr_topology_price price = {0};
            char cell[64];
            status = tsr_topology_cost(topology, (tsr_collective)what, all,
                                       what == TSR_SEND ? 2 : n, sizes[k], &price);
            snprintf(cell, sizeof cell, "%.1f %s", (double)price.picoseconds / 1e6,
                     price.algorithm);
            printf(" %22s", cell);
        }
        printf("\n");
    }
    free(all);
    return cli_finish(cli, status);
}

// ---- the verbs

static tsr_json *as_json(struct cli *cli, const tsr_topology *topology)
{
    tsr_json *json = cli_json(cli);
    if (json)
        tsr_topology_add_json(topology, json);
    return json;
}

// Warnings of reading it are told once, before the table; print_prices finishes the command again.
static int show(struct cli *cli, tsr_topology *topology)
{
    int code = cli_finish(cli, TSR_OK);
    if (cli->json)
        return cli_print_json(cli, as_json(cli, topology), code);
    tsr_finding_clear(cli->session); // told
    print_devices(topology);
    if (cli->n_arguments > 1) // what was measured has no name
        print_source(cli->arguments[1]);
    print_links(topology);
    if (tsr_topology_devices(topology) > 1)
        return print_prices(cli, topology);
    return code;
}

// `code` is what the command ends with if writing succeeds: warnings before it may have set it.
static int write_file(struct cli *cli, const tsr_topology *topology, const char *out, int code)
{
    tsr_json *json = as_json(cli, topology);
    if (json)
        tsr_json_end(json);
    tsr_status status = json ? tsr_json_write(json, out) : TSR_NOMEM;
    tsr_json_free(json);
    if (status != TSR_OK)
        code = cli_finish(cli, status);
    if (cli->json && !cli->told) // what was measured is shown as a document
        return cli_print_written(cli, out, code);
    if (status == TSR_OK)
        cli_say(cli, "wrote %s: %d devices, %zu links\n", out, tsr_topology_devices(topology),
                tsr_topology_links(topology));
    return code;
}

// Without -o the JSON goes to stdout, with or without --json.
static int make(struct cli *cli, tsr_topology *topology)
{
    const char *out = cli_value(cli, "-o");
    int code = cli_finish(cli, TSR_OK);
    if (out)
        return write_file(cli, topology, out, code);
    return cli_print_json(cli, as_json(cli, topology), code);
}

// "4" or "cpu:4": ranks on this host.
static bool read_count(const char *text, uint64_t *out)
{
    return cli_count_of(strncmp(text, "cpu:", 4) == 0 ? text + 4 : text, out) && *out > 0;
}

// What a measuring is asked for. file: a topology that was measured before, to which a model is added; NULL: none.
struct measuring {
    tsr_run_options run;
    tsr_measure_options options;
    const char *file;
};

// --devices: "cpu:4" counts ranks, "cuda:2" names devices of this machine; with --model also a topology's file.
static int read_devices(struct cli *cli, struct measuring *measuring)
{
    const char *devices = cli_value(cli, "--devices");
    uint64_t n = 0;
    if (!devices)
        return 0;
    if (read_count(devices, &n) && n <= 1024)
        measuring->options.devices = (int)n;
    else if (tsr_topology_is_real(devices))
        measuring->run.device = devices;
    else if (measuring->options.model)
        measuring->file = devices;
    else
        return cli_usage(cli,
                         "--devices wants a number of ranks such as cpu:4, or devices of this "
                         "machine such as cuda:2, not '%s'",
                         devices);
    return 0;
}

static int read_measuring(struct cli *cli, struct measuring *measuring)
{
    tsr_measure_options *options = &measuring->options;
    const char *seconds = cli_value(cli, "--seconds");
    *options = (tsr_measure_options){.size = sizeof *options, .run = &measuring->run};
    if (seconds && !cli_number(seconds, &options->seconds))
        return cli_usage(cli, "--seconds wants a positive number, not '%s'", seconds);
    int code = cli_read_run_options(cli, &measuring->run);
    if (code)
        return code;
    options->model = cli_value(cli, "--model");
    if (options->model)
        options->inputs = cli_inputs(cli);
    if (options->model && !options->inputs)
        return EXIT_USAGE;
    return read_devices(cli, measuring);
}

static tsr_status measure_here(struct cli *cli, const struct measuring *measuring,
                               tsr_topology **out)
{
    tsr_status status = cli_engine(cli, NULL, NULL);
    if (status != TSR_OK)
        return status;
    if (!measuring->file)
        return tsr_topology_measure(cli->session, &measuring->options, out);
    status = cli_topology(cli, measuring->file, out);
    if (status != TSR_OK)
        return status;
    return tsr_topology_see(*out, &measuring->options);
}

// Under a launcher every rank measures and the first gets the topology; the others have nothing to
// say.
static int measure(struct cli *cli)
{
    struct measuring measuring = {.run = {.size = sizeof measuring.run}};
    int code = read_measuring(cli, &measuring);
    if (code)
        return code;
    tsr_topology *topology = NULL;
    tsr_status status = measure_here(cli, &measuring, &topology);
    code = cli_finish(cli, status);
    const char *out = cli_value(cli, "-o");
    if (status != TSR_OK || !topology) // NULL: a launcher's rank that is not the first
        goto free_topology;
    if (cli->json || !cli->quiet)
        code = show(cli, topology);
    if (out)
        code = write_file(cli, topology, out, code);
free_topology:
    tsr_topology_free(topology);
    return code;
}

// show prints what a topology is, make writes it as JSON, measure finds out what this machine
// has.
static int run(struct cli *cli)
{
    const char *verb = cli->arguments[0];
    bool shows = strcmp(verb, "show") == 0;
    if (strcmp(verb, "measure") == 0)
        return cli->n_arguments == 1 ? measure(cli)
                                     : cli_usage(cli, "measure takes --devices cpu:N or cuda:N");
    if (!shows && strcmp(verb, "make") != 0)
        return cli_usage(cli, "'%s' is none of show, make and measure", verb);
    if (cli->n_arguments < 2)
        return cli_usage(cli, "name a topology: 4, ring:4, hosts:2x8, a JSON file ...");
    tsr_topology *topology = NULL;
    tsr_status status = cli_topology(cli, cli->arguments[1], &topology);
    if (status != TSR_OK) {
        int code = cli_finish(cli, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code;
    }
    int code = set_numbers(cli, topology);
    if (!code)
        code = shows ? show(cli, topology) : make(cli, topology);
    tsr_topology_free(topology);
    return code;
}

static const struct option options[] = {
    {"-o", "FILE", "make, measure: write the JSON there"},
    {"--memory", "16GiB", "memory of every device"},
    {"--flops", "N", "float32 operations per second of every device"},
    {"--bandwidth", "N", "bytes of its memory per second of every device"},
    {"--overhead", "S", "seconds that the engine takes for a node besides its work"},
    {"--latency", "S", "seconds of every link"},
    {"--link-bandwidth", "N", "bytes per second of every link"},
    {"--network-latency", "S", "seconds of the links between hosts alone"},
    {"--network-bandwidth", "N", "bytes per second of the links between hosts alone"},
    {"--devices", "cpu:N|cuda:N",
     "measure: so many ranks on this host (default: one for each core), or on GPUs: cuda:2, "
     "cuda:2@0, CUDA:0,CPU; with --model also the file of what was measured before"},
    {"--seconds", "S",
     "measure: about so long (default 5); below 0.5 kinds of work are not told apart"},
    {"--model", "MODEL",
     "measure: also run this model, whole and cut; plan and simulate then price its nodes as they "
     "were seen"},
    {"--inputs", "SET",
     "measure --model: what it is run with, as in `tessera run` (default random)"},
    {"--shape", "NAME:2x3", "measure --model: shape of a random input; may be repeated"},
    {"--transport", "NAME", "measure: threads, shm (processes), mpi"},
    {"--threads", "N", "measure: threads of each rank (default: cores / ranks, at least 1)"},
    END_OF_OPTIONS,
};

const struct command cmd_topology = {
    .name = "topology",
    .arguments = "show|make TOPOLOGY | measure",
    .summary = "which device reaches which, how fast, and what collectives cost",
    .detail = "TOPOLOGY is a number of devices, cpu:4, full:4, ring:4, star:4@1 (device 1 in the "
              "centre),\n"
              "tree:2x3, torus:3x3x3, grid:2x4, hosts:2x8, hosts:2x2x4 (racks, hosts, devices), a "
              "box of published numbers (a100:8, h100:8, "
              "h200:8, b200:8,\n"
              "l40s:4, mi300x:8, hosts:2xh100:8), an adjacency list {4, [[1],[2],[3],[0]]}, a JSON "
              "file, or a planned model (which keeps its topology). make writes JSON, to be "
              "completed by hand.\n"
              "measure times the engine and the transport with all ranks at work; plan --devices "
              "FILE takes what it writes.",
    .example = "tessera topology show ring:4",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
