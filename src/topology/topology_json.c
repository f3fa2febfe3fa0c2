// SPDX-License-Identifier: Apache-2.0
// topology_json.c - writes a topology as JSON, which parse.c reads.
//
//     {"kind": "tessera-topology", "devices": [{"name": "CPU", "memory": 17179869184,
//      "flops": 5e10, "bandwidth": 1e10}, ...],
//      "links": [{"from": 0, "to": 1, "latency": 5e-06, "bandwidth": 5e9}, ...]}
#include "topology/internal.h"
#include "tessera_json.h"

static const tsr_json_field device_fields[] = {
    {JSON_FIELD(tsr_topology_device, "name", name)},
    {JSON_FIELD(tsr_topology_device, "memory", memory)},
    {JSON_FIELD(tsr_topology_device, "flops", flops)},
    {JSON_FIELD(tsr_topology_device, "bandwidth", bandwidth)},
    {JSON_IF_KNOWN(tsr_topology_device, "overhead", overhead)},
    {JSON_IF_KNOWN(tsr_topology_device, "queued", queued)},
    {JSON_IF_KNOWN(tsr_topology_device, "unhidden", unhidden)},
    {JSON_END},
};
static const tsr_json_field link_fields[] = {
    {JSON_FIELD(struct topology_link, "from", from)},
    {JSON_FIELD(struct topology_link, "to", to)},
    {JSON_FIELD(struct topology_link, "latency", latency)},
    {JSON_FIELD(struct topology_link, "bandwidth", bandwidth)},
    {JSON_IF_KNOWN(struct topology_link, "start", start)},
    {JSON_IF_KNOWN(struct topology_link, "message", message)},
    {JSON_END},
};

// Writes the devices, including default numbers: a reader with other defaults gets the same
// topology.
static void add_devices(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "devices", '[');
    for (int i = 0; i < topology->n; i++) {
        tsr_json_begin(json, NULL, '{');
        tsr_json_fields(json, device_fields, &topology->device[i]);
        tsr__rates_add_json(&topology->device[i], json);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes the measured seconds of collectives, by bytes and number of devices.
static void add_times(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "collectives", '[');
    for (size_t i = 0; i < topology->times.n; i++) {
        const struct topology_times *times = &topology->times.at[i];
        tsr_json_begin(json, NULL, '{');
        tsr_json_string(json, "collective", tsr_collective_name(times->what));
        tsr_json_int(json, "devices", times->size);
        if (times->hosts)
            tsr_json_int(json, "hosts", times->hosts);
        tsr_json_ints(json, "bytes", times->bytes, (size_t)times->n);
        tsr__json_numbers(json, "seconds", times->seconds, times->n);
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// Writes the topology. Ports, times, grid and window are written only if there are any.
void tsr_topology_add_json(const tsr_topology *topology, tsr_json *json)
{
    if (!tsr__json_owned(json, topology->session, "topology"))
        return;
    tsr_json_string(json, "kind", "tessera-topology");
    if (topology->assumed)
        tsr_json_bool(json, "assumed", true);
    add_devices(topology, json);
    tsr_json_records(json, "links", link_fields, topology->links.at, topology->links.n,
                     sizeof *topology->links.at);
    if (topology->ports.n)
        tsr__ports_add_json(topology, json);
    if (topology->times.n)
        add_times(topology, json);
    tsr__profiles_add_json(topology, json);
    if (topology->host)
        tsr_json_int(json, "host", topology->host);
    if (!topology->n_grid)
        return;
    tsr_json_begin(json, "grid", '[');
    for (int i = 0; i < topology->n_grid; i++)
        tsr_json_int(json, NULL, topology->grid[i]);
    tsr_json_end(json);
    if (topology->window)
        tsr_json_int(json, "window", topology->window);
}
