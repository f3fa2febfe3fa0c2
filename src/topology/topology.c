// SPDX-License-Identifier: Apache-2.0
// topology.c - building a topology, its routes, the table of default numbers, its JSON.
#include "topology/internal.h"

#include <math.h>
#include <stdlib.h>

// What a device and a link are taken for until they are measured: one core of a current x86 host
// with a share of its memory, and two processes of one host that meet in shared memory. The manual
// shows this table.
static const struct {
    double flops, bandwidth, latency, link_bandwidth;
    int64_t memory;
} usual = {
    .flops = 50e9,         // float32 operations per second
    .bandwidth = 10e9,     // bytes of memory per second
    .latency = 5e-6,       // seconds to meet another rank
    .link_bandwidth = 5e9, // bytes per second from one rank to another
    .memory = (int64_t)16 << 30,
};

tsr_topology *tsr__topology_new(tsr_session *s, int n)
{
    tsr_topology *t = tsr__alloc(s, sizeof *t);
    if (!t)
        return NULL;
    memset(t, 0, sizeof *t);
    t->session = s;
    t->n = n;
    t->memory_assumed = true;
    tsr__arena_init(&t->arena, s);
    t->device = ARENA_ARRAY(&t->arena, struct tsr_topology_device, (size_t)n);
    t->route = ARENA_ARRAY(&t->arena, int *, (size_t)n);
    tsr__map_init(&t->priced, &t->arena, 64);
    for (int i = 0; t->device && i < n; i++)
        t->device[i] = (struct tsr_topology_device){.name = "CPU",
                                                    .memory = usual.memory,
                                                    .flops = usual.flops,
                                                    .bandwidth = usual.bandwidth};
    if (t->arena.failed) {
        tsr_topology_free(t);
        return NULL;
    }
    return t;
}

void tsr_topology_free(tsr_topology *t)
{
    if (!t)
        return;
    tsr__arena_free(&t->arena);
    tsr__free(t->session, t, sizeof *t);
}

bool tsr__topology_link(tsr_topology *t, int from, int to, double latency, double bandwidth)
{
    struct topology_link *l = vec_push(&t->arena, &t->links);
    if (l)
        *l = (struct topology_link){from,
                                    to,
                                    latency > 0 ? latency : usual.latency,
                                    bandwidth > 0 ? bandwidth : usual.link_bandwidth,
                                    -1,
                                    -1};
    return l != NULL;
}

bool tsr__topology_port(tsr_topology *t, int device, double bandwidth)
{
    struct topology_port *p = vec_push(&t->arena, &t->ports);
    if (p)
        *p = (struct topology_port){device, bandwidth};
    return p != NULL;
}

int tsr_topology_grid(const tsr_topology *t, int *sides, int n)
{
    for (int i = 0; i < t->n_grid && i < n; i++)
        sides[i] = t->grid[i];
    return t->n_grid;
}

int tsr_topology_devices(const tsr_topology *t)
{
    return t->n;
}

const tsr_topology_device *tsr_topology_device_at(const tsr_topology *t, int device)
{
    return device >= 0 && device < t->n ? &t->device[device] : NULL;
}

void tsr_topology_set_device(tsr_topology *t, int device, const tsr_topology_device *d)
{
    if (device < 0 || device >= t->n)
        return;
    tsr_topology_device *at = &t->device[device];
    if (d->name)
        at->name = tsr__arena_str(&t->arena, str_of(d->name)).p;
    if (d->memory > 0) {
        at->memory = d->memory;
        t->memory_assumed = false;
    }
    if (d->flops > 0)
        at->flops = d->flops;
    if (d->bandwidth > 0)
        at->bandwidth = d->bandwidth;
    if (d->overhead > 0)
        at->overhead = d->overhead;
    bool rates = false;
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        if (d->rates[i] > 0) {
            at->rates[i] = d->rates[i];
            rates = true;
        }
    if (d->name || d->memory > 0 || d->flops > 0 || d->bandwidth > 0 || d->overhead > 0 || rates)
        t->text = STR("");
}

static bool crosses_hosts(const tsr_topology *t, const struct topology_link *l)
{
    return t->host > 0 && l->from / t->host != l->to / t->host;
}

// Links, and with them the ports that they go through.
static void set_links(tsr_topology *t, bool network, double latency, double bandwidth)
{
    for (size_t i = 0; i < t->links.n; i++) {
        struct topology_link *l = &t->links.at[i];
        if (network && !crosses_hosts(t, l))
            continue;
        if (latency > 0)
            l->latency = latency;
        if (bandwidth > 0)
            l->bandwidth = bandwidth;
        if (bandwidth > 0 && l->out_port >= 0)
            t->ports.at[l->out_port].bandwidth = bandwidth;
        if (bandwidth > 0 && l->in_port >= 0)
            t->ports.at[l->in_port].bandwidth = bandwidth;
    }
    if (latency > 0 || bandwidth > 0) {
        t->text = STR("");
        t->times.n = 0; // they were of other links
    }
    memset(t->route, 0, (size_t)t->n * sizeof *t->route);
    tsr__map_init(&t->priced, &t->arena, 64);
}

void tsr_topology_set_links(tsr_topology *t, double latency, double bandwidth)
{
    set_links(t, false, latency, bandwidth);
}

bool tsr_topology_set_network(tsr_topology *t, double latency, double bandwidth)
{
    if (t->host <= 0)
        return false;
    set_links(t, true, latency, bandwidth);
    return true;
}

size_t tsr_topology_links(const tsr_topology *t)
{
    return t->links.n;
}

bool tsr_topology_link_at(const tsr_topology *t, size_t i, int *from, int *to, double *latency,
                          double *bandwidth)
{
    if (i >= t->links.n)
        return false;
    const struct topology_link *l = &t->links.at[i];
    *from = l->from;
    *to = l->to;
    *latency = l->latency;
    *bandwidth = l->bandwidth;
    return true;
}

// ---- what the links say

static int by_ends(const void *a, const void *b)
{
    const struct topology_link *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from)
                              : (x->to > y->to) - (x->to < y->to);
}

static bool has_link(const tsr_topology *t, int from, int to)
{
    struct topology_link key = {.from = from, .to = to};
    return bsearch(&key, t->links.at, t->links.n, sizeof key, by_ends) != NULL;
}

// Both ends the same, or one way among links that mostly go both ways: read as they stand, and said.
static void warn_odd(tsr_topology *t)
{
    size_t one_way = 0, shown = 0, kept = 0;
    for (size_t i = 0; i < t->links.n; i++)
        one_way += !has_link(t, t->links.at[i].to, t->links.at[i].from);
    for (size_t i = 0; i < t->links.n; i++) {
        struct topology_link l = t->links.at[i];
        if (l.from == l.to)
            tsr__diag(t->session, DIAG_topology_self, NULL, "leave it out",
                      "device %d lists itself as a neighbour", l.from);
        else if (one_way && one_way < t->links.n && !has_link(t, l.to, l.from) && shown++ < 16)
            tsr__diag(t->session, DIAG_topology_one_way, NULL,
                      "add the link back if it goes both ways",
                      "device %d reaches %d but not the other way round", l.from, l.to);
    }
    for (size_t i = 0; i < t->links.n; i++)
        if (t->links.at[i].from != t->links.at[i].to)
            t->links.at[kept++] = t->links.at[i];
    t->links.n = kept;
}

static void drop_twins(tsr_topology *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->links.n; i++)
        if (!kept || by_ends(&t->links.at[kept - 1], &t->links.at[i]))
            t->links.at[kept++] = t->links.at[i];
    t->links.n = kept;
}

static void warn_unreachable(tsr_topology *t)
{
    int links[TOPOLOGY_MAX_HOPS];
    for (int k = 1; k < t->n; k++) {
        bool there = tsr__topology_path(t, 0, k, links, TOPOLOGY_MAX_HOPS) >= 0;
        if (there && tsr__topology_path(t, k, 0, links, TOPOLOGY_MAX_HOPS) >= 0)
            continue;
        tsr__diag(t->session, DIAG_topology_unreachable, NULL,
                  "add links, or plan for the devices of one part",
                  "device %d cannot be reached from device %d", there ? 0 : k, there ? k : 0);
        return; // one is enough: nothing that spans both can be priced
    }
}

tsr_status tsr__topology_finish(tsr_topology *t, bool listed)
{
    if (t->links.n)
        qsort(t->links.at, t->links.n, sizeof *t->links.at, by_ends);
    drop_twins(t);
    if (listed)
        warn_odd(t);
    t->first = ARENA_ARRAY(&t->arena, size_t, (size_t)t->n + 1);
    if (!t->first)
        return TSR_NOMEM;
    for (size_t i = 0; i < t->links.n; i++)
        t->first[t->links.at[i].from + 1]++;
    for (int k = 0; k < t->n; k++)
        t->first[k + 1] += t->first[k];
    if (t->n > 1)
        warn_unreachable(t);
    tsr__topology_recognise(t);
    return t->arena.failed ? TSR_NOMEM : TSR_OK;
}

// ---- routes: least latency plus the time of a medium message

#define ROUTE_BYTES 65536.0

static bool route_from(tsr_topology *t, int from)
{
    size_t n = (size_t)t->n;
    int *last = ARENA_ARRAY(&t->arena, int, n);
    double *far = tsr__alloc(t->session, n * sizeof *far);
    bool *done = tsr__alloc(t->session, n);
    if (last && far && done) {
        for (size_t i = 0; i < n; i++)
            last[i] = -1, far[i] = INFINITY, done[i] = false;
        far[from] = 0;
        for (;;) {
            int at = -1;
            for (int i = 0; i < t->n; i++)
                if (!done[i] && far[i] < INFINITY && (at < 0 || far[i] < far[at]))
                    at = i;
            if (at < 0)
                break;
            done[at] = true;
            for (size_t k = t->first[at]; k < t->first[at + 1]; k++) {
                const struct topology_link *l = &t->links.at[k];
                double via = far[at] + l->latency + ROUTE_BYTES / l->bandwidth;
                if (via < far[l->to])
                    far[l->to] = via, last[l->to] = (int)k;
            }
        }
        t->route[from] = last;
    }
    tsr__free(t->session, far, n * sizeof *far);
    tsr__free(t->session, done, n);
    return t->route[from] != NULL;
}

int tsr__topology_path(tsr_topology *t, int from, int to, int *links, int room)
{
    if (!t->route[from] && !route_from(t, from))
        return -2;
    int n = 0;
    for (int at = to; at != from;) {
        int k = t->route[from][at];
        if (k < 0 || n == room)
            return -1;
        links[n++] = k;
        at = t->links.at[k].from;
    }
    return n;
}

// ---- JSON

static void add_devices(const tsr_topology *t, tsr_json *j)
{
    tsr_json_begin(j, "devices", '[');
    for (int i = 0; i < t->n; i++) {
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "name", t->device[i].name);
        tsr_json_int(j, "memory", t->device[i].memory);
        tsr_json_number(j, "flops", t->device[i].flops);
        tsr_json_number(j, "bandwidth", t->device[i].bandwidth);
        if (t->device[i].overhead > 0)
            tsr_json_number(j, "overhead", t->device[i].overhead);
        tsr__rates_add_json(&t->device[i], j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

static void add_times(const tsr_topology *t, tsr_json *j)
{
    tsr_json_begin(j, "collectives", '[');
    for (size_t i = 0; i < t->times.n; i++) {
        const struct topology_times *x = &t->times.at[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_string(j, "collective", tsr__topology_collective(x->what));
        tsr_json_int(j, "devices", x->size);
        tsr_json_begin(j, "bytes", '[');
        for (int k = 0; k < x->n; k++)
            tsr_json_int(j, NULL, x->bytes[k]);
        tsr_json_end(j);
        tsr_json_begin(j, "seconds", '[');
        for (int k = 0; k < x->n; k++)
            tsr_json_number(j, NULL, x->seconds[k]);
        tsr_json_end(j);
        tsr_json_end(j);
    }
    tsr_json_end(j);
}

void tsr_topology_add_json(const tsr_topology *t, tsr_json *j)
{
    tsr_json_string(j, "kind", "tessera-topology");
    add_devices(t, j);
    tsr_json_begin(j, "links", '[');
    for (size_t i = 0; i < t->links.n; i++) {
        const struct topology_link *l = &t->links.at[i];
        tsr_json_begin(j, NULL, '{');
        tsr_json_int(j, "from", l->from);
        tsr_json_int(j, "to", l->to);
        tsr_json_number(j, "latency", l->latency);
        tsr_json_number(j, "bandwidth", l->bandwidth);
        tsr_json_end(j);
    }
    tsr_json_end(j);
    if (t->ports.n)
        tsr__ports_add_json(t, j);
    if (t->times.n)
        add_times(t, j);
    if (!t->n_grid)
        return;
    tsr_json_begin(j, "grid", '[');
    for (int i = 0; i < t->n_grid; i++)
        tsr_json_int(j, NULL, t->grid[i]);
    tsr_json_end(j);
}
