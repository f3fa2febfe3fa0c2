// SPDX-License-Identifier: Apache-2.0
// topology.c - builds a topology, and defines the default numbers.
//
// Order of calls: tsr__topology_new, then devices, links and ports, then tsr__topology_finish,
// which sorts and checks the links. Routes and times are computed on demand and dropped when links
// change.
#include "topology/internal.h"

#include <stdlib.h>

// Default numbers. A device is one core of a current x86 host with a share of its memory. A link
// connects two processes of one host through shared memory. The manual has the same table.
static const struct {
    double flops, bandwidth, latency, link_bandwidth;
    int64_t memory;
} usual = {
    .flops = 50e9,         // float32 operations per second
    .bandwidth = 10e9,     // bytes of memory per second
    .latency = 5e-6,       // seconds
    .link_bandwidth = 5e9, // bytes per second from one rank to another
    .memory = (int64_t)16 << 30,
};

// Creates the topology; all devices are default CPUs.
tsr_topology *tsr__topology_new(tsr_session *session, int n)
{
    tsr_topology *topology = tsr__alloc(session, sizeof *topology);
    if (!topology)
        return NULL;
    memset(topology, 0, sizeof *topology);
    topology->session = session;
    topology->n = n;
    topology->memory_assumed = true;
    topology->assumed = true;
    tsr__arena_init(&topology->arena, session);
    topology->device = ARENA_ARRAY(&topology->arena, struct tsr_topology_device, (size_t)n);
    topology->route = ARENA_ARRAY(&topology->arena, int *, (size_t)n);
    tsr__map_init(&topology->times_of_groups, &topology->arena, 64);
    for (int i = 0; topology->device && i < n; i++)
        topology->device[i] = (struct tsr_topology_device){.name = "CPU",
                                                           .memory = usual.memory,
                                                           .flops = usual.flops,
                                                           .bandwidth = usual.bandwidth};
    if (topology->arena.failed) {
        tsr_topology_free(topology);
        return NULL;
    }
    return topology;
}

void tsr_topology_free(tsr_topology *topology)
{
    if (!topology)
        return;
    for (size_t i = 0; i < topology->choices.n; i++)
        tsr_topology_free(topology->choices.at[i]);
    tsr__arena_free(&topology->arena);
    tsr__free(topology->session, topology, sizeof *topology);
}

// Adds a link. Links may be added in any order and repeatedly; tsr__topology_finish removes
// duplicates.
struct topology_link *tsr__topology_link(tsr_topology *topology, int from, int to, double latency,
                                         double bandwidth)
{
    struct topology_link *link = vec_push(&topology->arena, &topology->links);
    if (!link)
        return NULL;
    if (!(latency > 0))
        latency = usual.latency;
    if (!(bandwidth > 0))
        bandwidth = usual.link_bandwidth;
    *link = (struct topology_link){.from = from,
                                   .to = to,
                                   .latency = latency,
                                   .bandwidth = bandwidth,
                                   .out_port = -1,
                                   .in_port = -1};
    return link;
}

bool tsr__topology_port(tsr_topology *topology, int device, double bandwidth)
{
    return vec_add(&topology->arena, &topology->ports, (struct topology_port){device, bandwidth});
}

int tsr_topology_grid(const tsr_topology *topology, int *sides, int n)
{
    for (int i = 0; i < topology->n_grid && i < n; i++)
        sides[i] = topology->grid[i];
    return topology->n_grid;
}

bool tsr_topology_is_assumed(const tsr_topology *topology)
{
    return topology->assumed;
}

const char *tsr_topology_basis(const tsr_topology *topology)
{
    if (!topology->assumed)
        return "measured";
    return topology->basis ? topology->basis : "assumed";
}

int tsr_topology_devices(const tsr_topology *topology)
{
    return topology->n;
}

tsr_status tsr_topology_device_facts(const tsr_topology *topology, int i, tsr_device_facts *out)
{
    const tsr_topology_device *from = tsr_topology_device_at(topology, i);
    tsr_device_facts facts = {0};
    if (from)
        facts = (tsr_device_facts){.name = from->name,
                                   .memory = from->memory,
                                   .flops = from->flops,
                                   .bandwidth = from->bandwidth,
                                   .overhead = from->overhead};
    return tsr__element_read(topology->session, SIZED_LIST(&facts, from ? 1 : 0, overhead), 0, out);
}

const tsr_topology_device *tsr_topology_device_at(const tsr_topology *topology, int device)
{
    return device >= 0 && device < topology->n ? &topology->device[device] : NULL;
}

// Copies the speeds that are set. True: at least one was set.
static bool take_speeds(double *to, const double *from, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        if (from[i] > 0) {
            to[i] = from[i];
            any = true;
        }
    return any;
}

// Sets the numbers of a device that are given (> 0). The topology then differs from its generator
// text ("ring:4"), so the text is dropped. New speeds also drop the profiles.
void tsr_topology_set_device(tsr_topology *topology, int device,
                             const tsr_topology_device *topology_device)
{
    if (!topology_device || device < 0 || device >= topology->n)
        return;
    tsr_topology_device *at = &topology->device[device];
    if (topology_device->name)
        at->name = tsr__arena_str(&topology->arena, str_of(topology_device->name)).p;
    if (topology_device->memory > 0) {
        at->memory = topology_device->memory;
        topology->memory_assumed = false;
    }
    if (topology_device->flops > 0) {
        at->flops = topology_device->flops;
        topology->assumed = false;
    }
    if (topology_device->bandwidth > 0)
        at->bandwidth = topology_device->bandwidth;
    if (topology_device->overhead > 0)
        at->overhead = topology_device->overhead;
    if (topology_device->unhidden > 0)
        at->unhidden = topology_device->unhidden;
    at->queued = at->queued || topology_device->queued;
    bool rates = take_speeds(at->rates, topology_device->rates, TSR_RATE_COUNT);
    bool moves = take_speeds(at->moves, topology_device->moves, TSR_MOVE_COUNT);
    bool near = take_speeds(at->cached, topology_device->cached, TSR_MOVE_COUNT);
    bool speeds = rates || moves || near || topology_device->flops > 0 ||
                  topology_device->bandwidth > 0 || topology_device->overhead > 0;
    if (speeds || topology_device->queued || topology_device->unhidden > 0 ||
        topology_device->name || topology_device->memory > 0)
        topology->text = STR("");
    if (speeds)
        topology->profiles.n = 0; // they were measured with other speeds
}

static bool crosses_hosts(const tsr_topology *topology, const struct topology_link *link)
{
    return topology->host > 0 && link->from / topology->host != link->to / topology->host;
}

// Sets latency and bandwidth of links (`network`: only of links between hosts), and the bandwidth
// of the ports that they use. Drops the times that were measured with the old links.
static void set_links(tsr_topology *topology, bool network, double latency, double bandwidth)
{
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link *link = &topology->links.at[i];
        if (network && !crosses_hosts(topology, link))
            continue;
        if (latency > 0)
            link->latency = latency;
        if (bandwidth > 0)
            link->bandwidth = bandwidth;
        if (bandwidth > 0 && link->out_port >= 0)
            topology->ports.at[link->out_port].bandwidth = bandwidth;
        if (bandwidth > 0 && link->in_port >= 0)
            topology->ports.at[link->in_port].bandwidth = bandwidth;
    }
    if (latency > 0 || bandwidth > 0) {
        topology->text = STR("");
        topology->times.n = 0; // they were measured with other links
        topology->wait = 0;
    }
    tsr__topology_reset_routes(topology);
    tsr__map_init(&topology->times_of_groups, &topology->arena, 64);
}

void tsr_topology_set_links(tsr_topology *topology, double latency, double bandwidth)
{
    set_links(topology, false, latency, bandwidth);
}

bool tsr_topology_set_network(tsr_topology *topology, double latency, double bandwidth)
{
    if (topology->host <= 0)
        return false;
    set_links(topology, true, latency, bandwidth);
    return true;
}

size_t tsr_topology_links(const tsr_topology *topology)
{
    return topology->links.n;
}

bool tsr_topology_link_at(const tsr_topology *topology, size_t i, int *from, int *to,
                          double *latency, double *bandwidth)
{
    if (i >= topology->links.n)
        return false;
    const struct topology_link *link = &topology->links.at[i];
    if (from)
        *from = link->from;
    if (to)
        *to = link->to;
    if (latency)
        *latency = link->latency;
    if (bandwidth)
        *bandwidth = link->bandwidth;
    return true;
}

int tsr_topology_listed(const tsr_topology *topology)
{
    return topology->window ? topology->window : topology->n;
}

// ---- checks

static int by_ends(const void *a, const void *b)
{
    const struct topology_link *x = a, *y = b;
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

// Returns a link by its ends; NULL: there is none. The links must be sorted.
static const struct topology_link *find_link(const tsr_topology *topology, int from, int to)
{
    struct topology_link key = {.from = from, .to = to};
    return bsearch(&key, topology->links.at, topology->links.n, sizeof key, by_ends);
}

// Removes links of a device to itself, which every device has anyway; a note names them unless all
// devices list themselves. Warns about one-way links, unless all links are one-way.
static void warn_odd(tsr_topology *topology)
{
    size_t one_way = 0, shown = 0, kept = 0, self = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        self += topology->links.at[i].from == topology->links.at[i].to;
    for (size_t i = 0; i < topology->links.n; i++)
        one_way += !find_link(topology, topology->links.at[i].to, topology->links.at[i].from);
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link link = topology->links.at[i];
        if (link.from == link.to && self < (size_t)topology->n)
            tsr__diag(topology->session, DIAG_topology_self, NULL,
                      "remove the entry, or name the device that was intended",
                      "device %d lists itself as a neighbour, which has no effect", link.from);
        // A ring may be one-way on purpose, so there is no warning if all links are one-way. At
        // most 16 links are named.
        if (one_way && one_way < topology->links.n && !find_link(topology, link.to, link.from) &&
            shown++ < 16)
            tsr__diag(topology->session, DIAG_topology_one_way, NULL,
                      "add the link back if it goes both ways",
                      "device %d has a link to device %d, but not the other way round", link.from,
                      link.to);
    }
    for (size_t i = 0; i < topology->links.n; i++)
        if (topology->links.at[i].from != topology->links.at[i].to)
            topology->links.at[kept++] = topology->links.at[i];
    topology->links.n = kept;
}

// Removes duplicate links. The links must be sorted.
static void drop_twins(tsr_topology *topology)
{
    size_t kept = 0;
    for (size_t i = 0; i < topology->links.n; i++)
        if (!kept || by_ends(&topology->links.at[kept - 1], &topology->links.at[i]))
            topology->links.at[kept++] = topology->links.at[i];
    topology->links.n = kept;
}

tsr_status tsr__topology_hand_over(tsr_topology *topology, tsr_status status, tsr_topology **out)
{
    if (status == TSR_OK)
        *out = topology;
    else
        tsr_topology_free(topology);
    return status;
}

tsr_status tsr__topology_finish(tsr_topology *topology, bool listed)
{
    if (topology->links.n)
        qsort(topology->links.at, topology->links.n, sizeof *topology->links.at, by_ends);
    drop_twins(topology);
    if (listed)
        warn_odd(topology);
    topology->first = ARENA_ARRAY(&topology->arena, size_t, (size_t)topology->n + 1);
    if (!topology->first)
        return TSR_NOMEM;
    // first[d] is the number of links of the devices before d. Links 0->1, 0->2, 2->0 of 3 devices
    // give {0, 2, 2, 3}.
    for (size_t i = 0; i < topology->links.n; i++)
        topology->first[topology->links.at[i].from + 1]++;
    for (int k = 0; k < topology->n; k++)
        topology->first[k + 1] += topology->first[k];
    tsr__topology_reset_routes(topology);
    // With a window, only the links of the first devices are listed, so the others only seem
    // unreachable.
    if (!topology->window && !tsr__topology_warn_unreachable(topology))
        return TSR_NOMEM;
    tsr__topology_recognise(topology);
    return arena_status(&topology->arena);
}

tsr_status tsr__topology_finish_copy(tsr_topology *to, const tsr_topology *from, tsr_topology **out)
{
    struct diag_mark before = tsr__diag_mark(from->session);
    tsr_status status = TSR_NOMEM;
    if (tsr__topology_copy_profiles(to, from))
        status = tsr__topology_finish(to, false);
    tsr__diag_back(from->session, &before, true);
    return tsr__topology_hand_over(to, status, out);
}

tsr_status tsr__topology_owned(tsr_session *session, const tsr_topology *topology)
{
    return topology ? tsr__same_session(session, topology->session, "topology") : TSR_OK;
}

tsr_status tsr__topology_add_choice(tsr_topology *topology, tsr_topology *choice)
{
    tsr_topology **at = vec_push(&topology->arena, &topology->choices);
    if (!at) {
        tsr_topology_free(choice);
        return TSR_NOMEM;
    }
    *at = choice;
    return TSR_OK;
}

// ---- equal blocks of devices, of which the simulation simulates one

bool tsr__devices_alike(const tsr_topology_device *a, const tsr_topology_device *b)
{
    return a->memory == b->memory && tsr__speeds_alike(a, b);
}

bool tsr__speeds_alike(const tsr_topology_device *a, const tsr_topology_device *b)
{
    return a->flops == b->flops && a->bandwidth == b->bandwidth && a->overhead == b->overhead &&
           a->queued == b->queued && a->unhidden == b->unhidden &&
           memcmp(a->rates, b->rates, sizeof a->rates) == 0 &&
           memcmp(a->moves, b->moves, sizeof a->moves) == 0 &&
           memcmp(a->cached, b->cached, sizeof a->cached) == 0;
}

// Compares the devices of all blocks, and the links inside each block with those of the first
// block. Links between blocks are ignored. Example: hosts:4x8 repeats 8 devices 4 times, and 16
// devices twice: every link 8+a -> 8+b has an equal link a -> b.
bool tsr__topology_repeats(const tsr_topology *topology, int devices, int copies)
{
    size_t first = 0, others = 0;
    int listed = copies; // number of blocks whose links are listed
    if (devices < 1 || copies < 1 || copies > topology->n / devices)
        return false;
    if (topology->window && (devices > topology->window || topology->window % devices))
        return false;
    if (topology->window && topology->window / devices < copies)
        listed = topology->window / devices;
    for (int d = devices; d < devices * copies; d++)
        if (!tsr__devices_alike(&topology->device[d], &topology->device[d % devices]))
            return false;
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        int copy = link->from / devices;
        if (copy != link->to / devices || copy >= listed)
            continue;
        first += copy == 0;
        others += copy != 0;
        const struct topology_link *twin =
            find_link(topology, link->from % devices, link->to % devices);
        if (!twin || twin->latency != link->latency || twin->bandwidth != link->bandwidth ||
            twin->start != link->start || twin->message != link->message)
            return false;
    }
    return others == first * (size_t)(listed - 1);
}
