// SPDX-License-Identifier: Apache-2.0
// cmd_topology.c - topologies: shown with their prices, made from a generator, written as JSON.
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static bool is_file(const char *text)
{
    FILE *f = strchr(text, '{') ? NULL : fopen(text, "r");
    if (f)
        fclose(f);
    return f != NULL;
}

tsr_status cli_topology(struct cli *c, const char *text, tsr_topology **out)
{
    return is_file(text) ? tsr_topology_read(c->session, text, out)
                         : tsr_topology_parse(c->session, text, out);
}

// The numbers given on the command line replace those of every device and link.
static int set_numbers(struct cli *c, tsr_topology *t)
{
    static const char *const names[] = {"--flops", "--bandwidth", "--latency", "--link-bandwidth"};
    double number[4] = {0};
    int64_t memory = 0;
    for (int i = 0; i < 4; i++) {
        const char *text = cli_value(c, names[i]);
        if (text && !cli_number(text, &number[i]))
            return cli_usage(c, "%s wants a positive number, not '%s'", names[i], text);
    }
    const char *text = cli_value(c, "--memory");
    if (text && !cli_read_bytes(text, &memory))
        return cli_usage(c, "--memory wants a size such as 16GiB, not '%s'", text);
    tsr_topology_device d = {NULL, memory, number[0], number[1]};
    for (int i = 0; i < tsr_topology_devices(t); i++)
        tsr_topology_set_device(t, i, &d);
    tsr_topology_set_links(t, number[2], number[3]);
    return 0;
}

// ---- text

static void print_devices(const tsr_topology *t)
{
    printf("%-7s %-10s %10s %14s %14s\n", "device", "name", "memory", "GFLOP/s", "memory GB/s");
    for (int i = 0; i < tsr_topology_devices(t); i++) {
        const tsr_topology_device *d = tsr_topology_device_at(t, i);
        printf("%-7d %-10s %10s %14.1f %14.1f\n", i, d->name, cli_bytes(d->memory), d->flops / 1e9,
               d->bandwidth / 1e9);
    }
}

// Neighbours on one line, links of equal numbers together.
static void print_links(const tsr_topology *t)
{
    int from, to, last = -1;
    double latency, bandwidth, said[2] = {0, 0};
    printf("\nlinks\n");
    for (size_t i = 0; tsr_topology_link_at(t, i, &from, &to, &latency, &bandwidth); i++) {
        if (from != last || latency != said[0] || bandwidth != said[1])
            printf("%s  %d, %.3g us, %.3g GB/s to", i ? "\n" : "", from, latency * 1e6,
                   bandwidth / 1e9);
        last = from;
        said[0] = latency;
        said[1] = bandwidth;
        printf(" %d", to);
    }
    printf("\n");
}

static const char *const collective_names[TSR_COLLECTIVE_COUNT] = {
    "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce", "send"};
static const int64_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 64 << 20};

static int print_prices(struct cli *c, tsr_topology *t)
{
    int n = tsr_topology_devices(t), *all = malloc((size_t)n * sizeof *all);
    tsr_status status = all ? TSR_OK : TSR_NOMEM;
    for (int i = 0; all && i < n; i++)
        all[i] = i;
    printf("\nover all devices, in microseconds\n%-16s", "");
    for (int k = 0; k < 4; k++)
        printf(" %22s", cli_bytes(sizes[k]));
    printf("\n");
    for (int what = 0; what < TSR_COLLECTIVE_COUNT && status == TSR_OK; what++) {
        printf("%-16s", collective_names[what]);
        for (int k = 0; k < 4 && status == TSR_OK; k++) {
            tsr_topology_price p = {0};
            char cell[64];
            status = tsr_topology_cost(t, (tsr_collective)what, all, what == TSR_SEND ? 2 : n,
                                       sizes[k], &p);
            snprintf(cell, sizeof cell, "%.1f %s", (double)p.picoseconds / 1e6, p.algorithm);
            printf(" %22s", cell);
        }
        printf("\n");
    }
    free(all);
    return cli_finish(c, status);
}

// ---- the three verbs

static tsr_json *as_json(struct cli *c, const tsr_topology *t)
{
    tsr_json *j = cli_json(c);
    if (j)
        tsr_topology_add_json(t, j);
    return j;
}

static int show(struct cli *c, tsr_topology *t)
{
    int code = cli_finish(c, TSR_OK);
    if (c->json)
        return cli_print_json(c, as_json(c, t), code);
    print_devices(t);
    print_links(t);
    return tsr_topology_devices(t) > 1 ? print_prices(c, t) : code;
}

static int make(struct cli *c, tsr_topology *t)
{
    const char *out = cli_value(c, "-o");
    int code = cli_finish(c, TSR_OK);
    tsr_json *j = as_json(c, t);
    if (!out)
        return cli_print_json(c, j, code);
    if (j)
        tsr_json_end(j);
    tsr_status status = j ? tsr_json_write(j, out) : TSR_NOMEM;
    tsr_json_free(j);
    if (status != TSR_OK)
        return cli_finish(c, status);
    cli_say(c, "wrote %s: %d devices, %zu links", out, tsr_topology_devices(t),
            tsr_topology_links(t));
    return code;
}

static int run(struct cli *c)
{
    const char *verb = c->arguments[0];
    bool shows = strcmp(verb, "show") == 0;
    if (!shows && strcmp(verb, "make") != 0)
        return cli_usage(c, "'%s' is neither show nor make", verb);
    if (c->n_arguments < 2)
        return cli_usage(c, "name a topology: 4, ring:4, hosts:2x8, a JSON file ...");
    tsr_topology *t = NULL;
    tsr_status status = cli_topology(c, c->arguments[1], &t);
    if (status != TSR_OK) {
        int code = cli_finish(c, status);
        return status == TSR_MALFORMED ? EXIT_USAGE : code;
    }
    int code = set_numbers(c, t);
    if (!code)
        code = shows ? show(c, t) : make(c, t);
    tsr_topology_free(t);
    return code;
}

static const struct option options[] = {
    {"-o", "FILE", "make: write the JSON there, not to standard output"},
    {"--memory", "16GiB", "memory of every device"},
    {"--flops", "N", "float32 operations per second of every device"},
    {"--bandwidth", "N", "bytes of its memory per second of every device"},
    {"--latency", "S", "seconds of every link"},
    {"--link-bandwidth", "N", "bytes per second of every link"},
    END_OF_OPTIONS,
};

const struct command cmd_topology = {
    .name = "topology",
    .arguments = "show|make TOPOLOGY",
    .summary = "which device reaches which, how fast, and what collectives cost",
    .detail = "TOPOLOGY is a number of devices, cpu:4, full:4, ring:4, star:4@1 (device 1 in the "
              "centre),\n"
              "tree:2x3, torus:3x3x3, grid:2x4, hosts:2x8, an adjacency list {4, "
              "[[1],[2],[3],[0]]}, or a\n"
              "JSON file. make writes JSON, to be completed by hand.",
    .example = "tessera topology show ring:4",
    .options = options,
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
