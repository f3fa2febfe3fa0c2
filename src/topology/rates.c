// SPDX-License-Identifier: Apache-2.0
// rates.c - speeds by element type, and ports, in the JSON of a topology.
//
//     "devices": [{..., "flops": 6.7e13, "rates": {"float16": 9.9e14}}]
//     "ports": [{"device": 0, "bandwidth": 4.5e11, "to": [1, 2, 3]}]     without "to": all links of the device
#include "topology/internal.h"

#include <jansson.h>

static const char *const names[TSR_RATE_COUNT] = {
    [TSR_RATE_TF32] = "tf32",      [TSR_RATE_FLOAT16] = "float16", [TSR_RATE_BFLOAT16] = "bfloat16",
    [TSR_RATE_FLOAT8] = "float8",  [TSR_RATE_INT8] = "int8",       [TSR_RATE_INT4] = "int4",
    [TSR_RATE_FLOAT64] = "float64"};

// ---- rates -------------------------------------------------------------------------------------

// Only types that have a speed of their own; none at all leaves the member out.
void tsr__rates_add_json(const tsr_topology_device *device, tsr_json *json)
{
    bool any = false;
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        any = any || device->rates[i] > 0;
    if (!any)
        return;
    tsr_json_begin(json, "rates", '{');
    for (int i = 0; i < TSR_RATE_COUNT; i++)
        if (device->rates[i] > 0)
            tsr_json_number(json, names[i], device->rates[i]);
    tsr_json_end(json);
}

// `what` is set before each test, so that a false return always has its reason.
bool tsr__rates_read(const json_t *object, tsr_topology_device *out, const char **what)
{
    const char *key;
    json_t *value;
    *what = "\"rates\" is no object";
    if (!object || json_is_null(object))
        return true;
    if (!json_is_object(object))
        return false;
    json_object_foreach((json_t *)object, key, value)
    {
        int rate = 0;
        while (rate < TSR_RATE_COUNT && strcmp(names[rate], key) != 0)
            rate++;
        bool is_float32 = strcmp(key, "float32") == 0;
        *what =
            "\"rates\" has a type that is none of float32, tf32, float16, bfloat16, float8, int8, "
            "int4, float64";
        if (rate == TSR_RATE_COUNT && !is_float32)
            return false;
        double speed = json_number_value(value);
        *what = "\"rates\" has a speed that is no number above 0";
        if (!json_is_number(value) || !(speed > 0) || speed > 1e30)
            return false;
        *(is_float32 ? &out->flops : &out->rates[rate]) = speed;
    }
    return true;
}

// ---- ports -------------------------------------------------------------------------------------

// Devices that a port leads to; all: every link of the device goes through it.
static bool leads_to_all(const tsr_topology *topology, int port)
{
    for (size_t i = 0; i < topology->links.n; i++)
        if (topology->links.at[i].from == topology->ports.at[port].device &&
            topology->links.at[i].out_port != port)
            return false;
    return true;
}

void tsr__ports_add_json(const tsr_topology *topology, tsr_json *json)
{
    tsr_json_begin(json, "ports", '[');
    for (int p = 0; p < (int)topology->ports.n; p++) {
        const struct topology_port *port = &topology->ports.at[p];
        tsr_json_begin(json, NULL, '{');
        tsr_json_int(json, "device", port->device);
        tsr_json_number(json, "bandwidth", port->bandwidth);
        if (!leads_to_all(topology, p)) {
            tsr_json_begin(json, "to", '[');
            for (size_t i = topology->first[port->device]; i < topology->first[port->device + 1];
                 i++)
                if (topology->links.at[i].out_port == p)
                    tsr_json_int(json, NULL, topology->links.at[i].to);
            tsr_json_end(json);
        }
        tsr_json_end(json);
    }
    tsr_json_end(json);
}

// A port without "to" leads everywhere.
static bool listed(const json_t *to, int device)
{
    for (size_t i = 0; i < json_array_size(to); i++)
        if (json_integer_value(json_array_get(to, i)) == device)
            return true;
    return !to;
}

// The links of the device that go to those that are listed, and come from them.
static void use_port(tsr_topology *topology, int port, const json_t *to)
{
    int device = topology->ports.at[port].device;
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link *link = &topology->links.at[i];
        if (link->from == device && link->out_port < 0 && listed(to, link->to))
            link->out_port = port;
        if (link->to == device && link->in_port < 0 && listed(to, link->from))
            link->in_port = port;
    }
}

// *what NULL: no memory. Entries before the one that is damaged stay, but the caller frees the
// topology then. A link keeps the first port that claims it.
bool tsr__ports_read(tsr_topology *topology, const json_t *list, const char **what)
{
    *what = "is one of too many";
    if (json_array_size(list) > 4 * (size_t)topology->n)
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *to = json_object_get(entry, "to");
        int64_t device = json_integer_value(json_object_get(entry, "device"));
        double bandwidth = json_number_value(json_object_get(entry, "bandwidth"));
        *what = "has no device, no bandwidth above 0, or a \"to\" that is no list";
        if (!json_is_integer(json_object_get(entry, "device")) || device < 0 ||
            device >= topology->n || !(bandwidth > 0) || bandwidth > 1e30 ||
            (to && !json_is_array(to)))
            return false;
        if (!tsr__topology_port(topology, (int)device, bandwidth)) {
            *what = NULL;
            return false;
        }
        use_port(topology, (int)topology->ports.n - 1, to);
    }
    return true;
}
