// SPDX-License-Identifier: Apache-2.0
// topology_json.c - a topology as JSON: what parse.c reads again.
//
//     {"kind": "tessera-topology", "devices": [{"name": "CPU", "memory": 17179869184, "flops": 5e10, "bandwidth": 1e10}, ...],
//      "links": [{"from": 0, "to": 1, "latency": 5e-06, "bandwidth": 5e9}, ...]}
#include "topology/internal.h"

// Numbers as they are, also those of the table: a reader with another table gets the same topology.
static void add_devices(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "devices", '[');
    for (int i = 0; i < topology->n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "name", topology->device[i].name);
        tsr_json_int(json, "memory", topology->device[i].memory);
        tsr_json_number(json, "flops", topology->device[i].flops);
        tsr_json_number(json, "bandwidth", topology->device[i].bandwidth);
        if (topology->device[i].overhead > 0)
            tsr_json_number(json, "overhead", topology->device[i].overhead);
        if (topology->device[i].queued)
            tsr_json_bool(json, "queued", true);
        tsr__rates_add_json(&topology->device[i], json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

static void add_links(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "links", '[');
    for (size_t i = 0; i < topology->links.n; i++) {
        const struct topology_link *link = &topology->links.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "from", link->from);
        tsr_json_int(json, "to", link->to);
        tsr_json_number(json, "latency", link->latency);
        tsr_json_number(json, "bandwidth", link->bandwidth);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Measured seconds of a collective among so many devices, by bytes.
static void add_times(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "collectives", '[');
    for (size_t i = 0; i < topology->times.n; i++) {
        const struct topology_times *times = &topology->times.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "collective", tsr_collective_name(times->what));
        tsr_json_int(json, "devices", times->size);
        tsr_json_ints(json, "bytes", times->bytes, (size_t)times->n);
        tsr_json_begin(json, "seconds", '[');
        for (int k = 0; k < times->n; k++)
            tsr_json_number(json, NULL, times->seconds[k]);
        tsr_json_end(json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes what parse.c reads; ports, times, grid and window only where there are any.
void tsr_topology_add_json(const tsr_topology *topology, tsr_json *json)
{
    if (!tsr__json_owned(json, topology->session, "topology"))
        return;
    tsr_json_string(json, "kind", "tessera-topology");
    if (topology->assumed)
        tsr_json_bool(json, "assumed", true);
    add_devices(topology, json);
    add_links(topology, json);
    if (topology->ports.n)
        tsr__ports_add_json(topology, json);
    if (topology->times.n)
        add_times(topology, json);
    tsr__seen_add_json(topology, json);
    if (!topology->n_grid)
        return;
    tsr_json_begin(json, "grid", '[');
    for (int i = 0; i < topology->n_grid; i++)
        tsr_json_int(json, NULL, topology->grid[i]);
    tsr_json_end(json);
    if (topology->window)
        tsr_json_int(json, "window", topology->window);
}
