// SPDX-License-Identifier: Apache-2.0
// make.c - generators: ring:4, full:4, cpu:4, star:4@1, tree:2x3, torus:3x3x3, grid:2x4, hosts:2x8.
//
// Devices are numbered row by row. Examples: tree:2x3 is device 0 with the children 1 and 2, which
// have the children 3 4 5 and 6 7 8. torus:3x3 links device 4 with 1 and 7 (same column), 3 and 5
// (same row); device 0 with 6 and 3, 2 and 1. hosts:2x4: see link_hosts.
#include "topology/internal.h"

#define SIDES 8

// Parses sizes such as "3x3x3" and returns their number; -1: not sizes, or too many devices.
static int parse_sides(struct str text, int *out, int *product)
{
    int n = 0;
    int64_t all = 1;
    while (text.n) {
        size_t end = 0;
        int64_t value;
        while (end < text.n && text.p[end] != 'x')
            end++;
        if (n == SIDES || !tsr__str_int((struct str){text.p, end}, &value) || value < 1 ||
            value > TOPOLOGY_MAX_DEVICES || !mul_ok(all, value, &all) || all > TOPOLOGY_MAX_DEVICES)
            return -1;
        out[n++] = (int)value;
        if (end == text.n)
            break;
        text = (struct str){text.p + end + 1, text.n - end - 1};
        if (!text.n)
            return -1;
    }
    *product = (int)all;
    return n ? n : -1;
}

static void both(tsr_topology *topology, int a, int b)
{
    tsr__topology_link(topology, a, b, 0, 0);
    tsr__topology_link(topology, b, a, 0, 0);
}

static void link_ring(tsr_topology *topology)
{
    for (int i = 0; i < topology->n && topology->n > 1; i++)
        both(topology, i, (i + 1) % topology->n);
}

static void link_full(tsr_topology *topology)
{
    for (int i = 0; i < topology->n; i++)
        for (int k = i + 1; k < topology->n; k++)
            both(topology, i, k);
}

static void link_star(tsr_topology *topology, int centre)
{
    for (int i = 0; i < topology->n; i++)
        if (i != centre)
            both(topology, centre, i);
}

// Links neighbours along every side. On a torus, also links the last device of a side with the
// first.
static void link_grid(tsr_topology *topology, const int *side, int n, bool around)
{
    for (int i = 0; i < topology->n; i++)
        for (int d = n - 1, stride = 1; d >= 0; stride *= side[d--]) {
            // Link each pair once: on a side of 2, the link around the ends would be the same link
            // again.
            int at = i / stride % side[d], next = (at + 1) % side[d];
            if (next != at && (next > at || (around && side[d] > 2)))
                both(topology, i, i + (next - at) * stride);
        }
}

// Returns the number of devices of a tree in which each device of level i has side[i] children; -1:
// too many. Example: 1 + 2 + 2 x 3 = 9 for tree:2x3.
static int tree_size(const int *side, int n)
{
    int64_t all = 1, row = 1;
    for (int d = 0; d < n; d++) {
        row *= side[d];
        all += row;
        if (all > TOPOLOGY_MAX_DEVICES)
            return -1;
    }
    return (int)all;
}

// Links each device with its children. `first` is the first device of the level above; `row` is the
// number of devices of that level.
static void link_tree(tsr_topology *topology, const int *side, int n)
{
    for (int d = 0, first = 0, row = 1; d < n; d++) {
        for (int k = 0; k < row * side[d]; k++)
            both(topology, first + k / side[d], first + row + k);
        first += row;
        row *= side[d];
    }
}

// Default links by level: inside a host, then slower networks between hosts and racks.
static const struct network {
    double latency;   // seconds
    double bandwidth; // bytes per second
} networks[] = {
    {0, 0},           // inside a host: the default link
    {20e-6, 1.25e9},  // between hosts: 10 Gbit/s
    {40e-6, 0.625e9}, // between racks: half of that per device
};

// Ports of the devices at one level. Device i has the port first + i; first -1: no ports.
struct level_ports {
    int first[TSR_COUNT(networks)];
};

// Adds the ports. All messages of a device to other hosts share one port, and those to other racks
// another. So a device sends no faster to 127 hosts than to one. With two hosts the link itself is
// the limit.
static struct level_ports add_ports(tsr_topology *topology, int devices, const int *side, int n)
{
    struct level_ports ports;
    for (int level = 0; level < n; level++) {
        ports.first[level] = -1;
        if (level == 0 || side[n - 1 - level] <= 2)
            continue;
        ports.first[level] = (int)topology->ports.n;
        for (int i = 0; i < devices; i++)
            tsr__topology_port(topology, i, networks[level].bandwidth);
    }
    return ports;
}

static void link_level(tsr_topology *topology, int from, int to, int level, int first_port)
{
    struct topology_link *link =
        tsr__topology_link(topology, from, to, networks[level].latency, networks[level].bandwidth);
    if (!link || first_port < 0)
        return;
    link->out_port = first_port + from;
    link->in_port = first_port + to;
}

// Links devices that differ in one coordinate. Example: hosts:2x4 links device 1 with 0, 2, 3 and
// with 5.
static void link_hosts(tsr_topology *topology, const int *side, int n)
{
    int devices = 1;
    for (int d = 0; d < n; d++)
        devices *= side[d];
    struct level_ports ports = add_ports(topology, devices, side, n);
    for (int i = 0; i < devices; i++) {
        for (int level = 0, stride = 1; level < n; stride *= side[n - 1 - level++]) {
            int length = side[n - 1 - level], first = i - i / stride % length * stride;
            for (int k = first; k < first + length * stride; k += stride)
                if (k != i)
                    link_level(topology, i, k, level, ports.first[level]);
        }
    }
}

// Returns the number of links that a full, cpu or hosts topology would have; 0 for the others,
// which are sparse.
static size_t count_links(struct str kind, const int *side, int n, int devices)
{
    size_t each = str_is(kind, "full") || str_is(kind, "cpu") ? (size_t)devices - 1 : 0;
    for (int d = 0; str_is(kind, "hosts") && d < n; d++)
        each += (size_t)side[d] - 1;
    return each * (size_t)devices;
}

static tsr_status refuse_links(tsr_session *session, struct str kind, struct str sizes,
                               size_t links)
{
    return tsr__fail(session, TSR_MALFORMED, DIAG_topology_text, NULL,
                     "use fewer devices, or a sparse topology: hosts:64x64, torus:16x16x16",
                     "'" STR_FMT ":" STR_FMT "' has %zu links; the limit is %zu", STR_ARG(kind),
                     STR_ARG(sizes), links, TOPOLOGY_MAX_LINKS);
}

static const char *const kinds[] = {"cpu",  "full",  "ring", "star",
                                    "tree", "torus", "grid", "hosts"};

#define MAX_EXCERPT 100 // bytes of the user's text that an error message quotes

// Reports an unknown topology and quotes the user's text. kind.p NULL: only sizes were given.
static tsr_status refuse_unknown(tsr_session *session, struct str kind, struct str sizes)
{
    static const char hint[] =
        "write a number, auto (the best number of this machine's devices), cpu:4, cuda:2, "
        "cuda:2@0, full:4, ring:4, star:4@1, tree:2x3, torus:3x3, "
        "grid:2x4, "
        "hosts:2x8, hosts:2x2x4, h100:8, hosts:2xh100:8, an adjacency list {2,[[1],[0]]}, or the "
        "name of a JSON file or of a planned model";
    struct str known[TSR_COUNT(kinds)];
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        known[i] = str_of(kinds[i]);
    // The text may be a full file, so only an excerpt is quoted.
    kind.n = size_min(kind.n, MAX_EXCERPT);
    sizes.n = size_min(sizes.n, MAX_EXCERPT);
    struct str near = tsr__nearest(kind, known, TSR_COUNT(kinds));
    if (str_eq(kind, STR("gpu"))) // nearer to cpu
        near = STR("cuda");
    if (!kind.p && (str_eq(sizes, STR("gpu")) || str_eq(sizes, STR("cuda"))))
        tsr__diag(session, DIAG_topology_text, NULL, hint,
                  "unknown topology '" STR_FMT "'; did you mean cuda:1?", STR_ARG(sizes));
    else if (!kind.p)
        tsr__diag(session, DIAG_topology_text, NULL, hint, "unknown topology '" STR_FMT "'",
                  STR_ARG(sizes));
    else if (near.n && !str_eq(near, kind))
        tsr__diag(session, DIAG_topology_text, NULL, hint,
                  "unknown topology '" STR_FMT ":" STR_FMT "'; did you mean " STR_FMT "?",
                  STR_ARG(kind), STR_ARG(sizes), STR_ARG(near));
    else
        tsr__diag(session, DIAG_topology_text, NULL, hint,
                  "unknown topology '" STR_FMT ":" STR_FMT "'", STR_ARG(kind), STR_ARG(sizes));
    return TSR_MALFORMED;
}

// Adds the links of a generator such as "torus:4x4" or "hosts:2x8" (default: all pairs), and sets
// the host size and the grid of the topology.
static void link_kind(tsr_topology *topology, struct str kind, const int *side, int n, int centre)
{
    if (str_is(kind, "ring"))
        link_ring(topology);
    else if (str_is(kind, "star"))
        link_star(topology, centre);
    else if (str_is(kind, "tree"))
        link_tree(topology, side, n);
    else if (str_is(kind, "torus") || str_is(kind, "grid"))
        link_grid(topology, side, n, str_is(kind, "torus"));
    else if (str_is(kind, "hosts"))
        link_hosts(topology, side, n);
    else
        link_full(topology);
    topology->host = str_is(kind, "hosts") ? side[n - 1] : 0;
    if (str_is(kind, "torus") || str_is(kind, "grid") || str_is(kind, "hosts")) {
        topology->n_grid = n;
        memcpy(topology->grid, side, (size_t)n * sizeof *side);
    }
}

static bool known_kind(struct str kind)
{
    for (size_t i = 0; i < TSR_COUNT(kinds); i++)
        if (str_is(kind, kinds[i]))
            return true;
    return false;
}

// Creates the topology. Checks the number of links before allocating: full:4096 alone would have 16
// million. kind.p NULL: a plain number, which means full.
tsr_status tsr__topology_make(tsr_session *session, struct str kind, struct str sizes,
                              tsr_topology **out)
{
    int side[SIDES] = {0}, all = 0, centre = 0;
    struct str count = sizes, given_kind = kind;
    if (!kind.p)
        kind = STR("full");
    if (tsr__topology_is_box(kind, sizes))
        return tsr__topology_box(session, kind, sizes, out);
    // "4@1" means 4 devices with device 1 as the centre.
    for (size_t i = 0; str_is(kind, "star") && i < sizes.n; i++)
        if (sizes.p[i] == '@') {
            int64_t at;
            if (!tsr__str_int((struct str){sizes.p + i + 1, sizes.n - i - 1}, &at) || at < 0 ||
                at >= TOPOLOGY_MAX_DEVICES)
                return refuse_unknown(session, given_kind, sizes);
            centre = (int)at;
            count.n = i;
        }
    int n = parse_sides(count, side, &all);
    bool wide = str_is(kind, "torus") || str_is(kind, "grid") || str_is(kind, "tree");
    bool hosts = str_is(kind, "hosts") && (n == 2 || n == (int)TSR_COUNT(networks));
    if (!known_kind(kind) || n < 1 || (!wide && !hosts && (n != 1 || str_is(kind, "hosts"))))
        return refuse_unknown(session, given_kind, sizes);
    if (str_is(kind, "tree"))
        all = tree_size(side, n);
    if (all < 1 || centre >= all)
        return refuse_unknown(session, given_kind, sizes);
    size_t links = count_links(kind, side, n, all);
    // hosts:1250x8 lists only the links of its first 64 hosts (`topology->window`). All other hosts
    // are equal to these.
    int given = side[0];
    if (hosts && n == 2 && links > TOPOLOGY_LISTED && given > TOPOLOGY_WINDOW) {
        side[0] = TOPOLOGY_WINDOW;
        links = count_links(kind, side, n, TOPOLOGY_WINDOW * side[1]);
    }
    if (links > TOPOLOGY_MAX_LINKS)
        return refuse_links(session, kind, sizes, links);
    tsr_topology *topology = tsr__topology_new(session, all);
    if (!topology)
        return TSR_NOMEM;
    link_kind(topology, kind, side, n, centre);
    if (side[0] != given) {
        topology->window = side[0] * side[1];
        topology->grid[0] = given;
    }
    topology->text =
        tsr__arena_printf(&topology->arena, STR_FMT ":" STR_FMT, STR_ARG(kind), STR_ARG(sizes));
    return tsr__topology_hand_over(topology, tsr__topology_finish(topology, false), out);
}
