// SPDX-License-Identifier: Apache-2.0
// simulate_json.c - the keys that `simulate --json` and the document of a report have in common.
#include "tessera_json.h"

void tsr_json_simulation(tsr_json *json, const tsr_simulation_view *simulation)
{
    static const tsr_json_field device_fields[] = {
        {JSON_FIELD(tsr_simulated_device, "compute_s", compute)},
        {JSON_FIELD(tsr_simulated_device, "communication_s", communication)},
        {JSON_FIELD(tsr_simulated_device, "waiting_s", waiting)},
        {JSON_FIELD(tsr_simulated_device, "idle_s", idle)},
        {JSON_FIELD(tsr_simulated_device, "weights", weights)},
        {JSON_FIELD(tsr_simulated_device, "memory", memory)},
        {JSON_FIELD(tsr_simulated_device, "peak", peak)},
        {JSON_FIELD(tsr_simulated_device, "arithmetic_s", arithmetic)},
        {JSON_FIELD(tsr_simulated_device, "moving_s", moving)},
        {JSON_FIELD(tsr_simulated_device, "overhead_s", overhead)},
        {JSON_END},
    };
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_simulation_view, "requests", facts.requests)},
        {JSON_FIELD(tsr_simulation_view, "seconds", facts.seconds)},
        {JSON_FIELD(tsr_simulation_view, "first_s", facts.first)},
        {JSON_FIELD(tsr_simulation_view, "period_s", facts.period)},
        {JSON_RECORDS(tsr_simulation_view, "timeline", device, facts.devices, device_fields)},
        {JSON_END},
    };
    tsr_json_fields(json, fields, simulation);
}

void tsr_json_links(tsr_json *json, const char *key, const tsr_simulated_link *links, size_t n)
{
    static const tsr_json_field fields[] = {
        {JSON_FIELD(tsr_simulated_link, "from", from)},
        {JSON_FIELD(tsr_simulated_link, "to", to)},
        {JSON_FIELD(tsr_simulated_link, "bytes", bytes)},
        {JSON_FIELD(tsr_simulated_link, "seconds", seconds)},
        {JSON_END},
    };
    tsr_json_records(json, key, fields, links, n, sizeof *links);
}
