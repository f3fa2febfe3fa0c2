// SPDX-License-Identifier: Apache-2.0
// rates.c - reads and writes in JSON: rates by element type and kind of work, and ports.
//
//     "devices": [{..., "flops": 6.7e13, "rates": {"float16": 9.9e14}, "moves": {"softmax": 2e10}}]
//     "ports": [{"device": 0, "bandwidth": 4.5e11, "to": [1, 2, 3]}]     default "to": all links
#include "topology/internal.h"

#include <jansson.h>

static const char *const names[TSR_RATE_COUNT] = {
    [TSR_RATE_TF32] = "tf32",           [TSR_RATE_FLOAT16] = "float16",
    [TSR_RATE_BFLOAT16] = "bfloat16",   [TSR_RATE_FLOAT8] = "float8",
    [TSR_RATE_INT8] = "int8",           [TSR_RATE_INT4] = "int4",
    [TSR_RATE_FLOAT64] = "float64",     [TSR_RATE_CONVOLUTION] = "convolution",
    [TSR_RATE_DEPTHWISE] = "depthwise", [TSR_RATE_PACKED] = "packed",
    [TSR_RATE_ATTENTION] = "attention", [TSR_RATE_RECURRENCE] = "recurrence",
    [TSR_RATE_POOL] = "pool",           [TSR_RATE_TREES] = "trees",
    [TSR_RATE_KERNELS] = "kernels"};
static const char *const move_names[TSR_MOVE_COUNT] = {
    [TSR_MOVE_STREAM] = "stream",  [TSR_MOVE_WEIGHTS] = "weights", [TSR_MOVE_PACKED] = "packed",
    [TSR_MOVE_CACHE] = "cache",    [TSR_MOVE_SOFTMAX] = "softmax", [TSR_MOVE_NORM] = "norm",
    [TSR_MOVE_CURVE] = "curve",    [TSR_MOVE_TURN] = "turn",       [TSR_MOVE_REDUCE] = "reduce",
    [TSR_MOVE_COPY] = "copy",      [TSR_MOVE_ERROR] = "error",     [TSR_MOVE_POOL] = "pool",
    [TSR_MOVE_GROUPED] = "grouped"};

const char *tsr__kind_word(int rate, int move)
{
    return rate >= 0 ? names[rate] : move_names[move];
}

// ---- rates -------------------------------------------------------------------------------------

// Writes the rates that are set, if there are any.
static void add_speeds(tsr_json *json, const char *member, const char *const *words,
                       const double *speeds, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        any = any || speeds[i] > 0;
    if (!any)
        return;
    tsr_json_begin(json, member, '{');
    for (int i = 0; i < n; i++)
        if (speeds[i] > 0)
            tsr_json_number(json, words[i], speeds[i]);
    tsr_json_end(json);
}

void tsr__rates_add_json(const tsr_topology_device *device, tsr_json *json)
{
    add_speeds(json, "rates", names, device->rates, TSR_RATE_COUNT);
    add_speeds(json, "moves", move_names, device->moves, TSR_MOVE_COUNT);
    add_speeds(json, "near", move_names, device->cached, TSR_MOVE_COUNT);
}

// A member of a device in JSON: its keys, and the rates that they set.
struct speeds {
    const char *member;
    const char *const *words;
    double *into;
    int n;
    double *float32; // rate for the key "float32"; NULL: not a key
    const char *no_object, *no_word, *no_speed;
};

// Returns the rate of a key; NULL: unknown key.
static double *place_of(const struct speeds *speeds, const char *word)
{
    if (speeds->float32 && strcmp(word, "float32") == 0)
        return speeds->float32;
    for (int i = 0; i < speeds->n; i++)
        if (strcmp(speeds->words[i], word) == 0)
            return &speeds->into[i];
    return NULL;
}

// Reads the rates. Sets `what` before each check, so that it explains a false result.
static bool read_speeds(const json_t *device, const struct speeds *speeds, const char **what)
{
    const char *word;
    json_t *value, *object = json_object_get(device, speeds->member);
    *what = speeds->no_object;
    if (!object || json_is_null(object))
        return true;
    if (!json_is_object(object))
        return false;
    json_object_foreach(object, word, value)
    {
        double *place = place_of(speeds, word), speed = json_number_value(value);
        *what = speeds->no_word;
        if (!place)
            return false;
        *what = speeds->no_speed;
        if (!json_is_number(value) || !(speed > 0) || speed > 1e30)
            return false;
        *place = speed;
    }
    return true;
}

#define MOVES                                                                                      \
    "none of stream, weights, packed, cache, softmax, norm, curve, turn, reduce, copy, error, "    \
    "pool, grouped"

bool tsr__rates_read(const json_t *device, tsr_topology_device *out, const char **what)
{
    const struct speeds all[] = {
        {"rates", names, out->rates, TSR_RATE_COUNT, &out->flops, "\"rates\" is not an object",
         "\"rates\" has an unknown key; known: float32, tf32, float16, bfloat16, float8, int8, "
         "int4, float64, convolution, depthwise, packed, attention, recurrence, pool, "
         "trees, kernels",
         "\"rates\" has a rate that is not a number > 0"},
        {"moves", move_names, out->moves, TSR_MOVE_COUNT, NULL, "\"moves\" is not an object",
         "\"moves\" has a key that is " MOVES, "\"moves\" has a rate that is not a number > 0"},
        {"near", move_names, out->cached, TSR_MOVE_COUNT, NULL, "\"near\" is not an object",
         "\"near\" has a key that is " MOVES, "\"near\" has a rate that is not a number > 0"}};
    for (size_t i = 0; i < TSR_COUNT(all); i++)
        if (!read_speeds(device, &all[i], what))
            return false;
    return true;
}

// ---- ports -------------------------------------------------------------------------------------

// True if all outgoing links of the port's device go through the port.
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

// True if the port has a link to the device. A port without "to" has all links.
static bool listed(const json_t *to, int device)
{
    for (size_t i = 0; i < json_array_size(to); i++)
        if (json_integer_value(json_array_get(to, i)) == device)
            return true;
    return !to;
}

// Assigns the port to the device's links from and to the listed devices.
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

// Reads the ports. False with *what NULL: out of memory. On failure the caller frees the topology.
// A link that two ports list belongs to the first of them.
bool tsr__ports_read(tsr_topology *topology, const json_t *list, const char **what)
{
    *what = "exceeds the limit of ports";
    if (json_array_size(list) > 4 * (size_t)topology->n)
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *to = json_object_get(entry, "to");
        int64_t device = json_integer_value(json_object_get(entry, "device"));
        double bandwidth = json_number_value(json_object_get(entry, "bandwidth"));
        *what = "needs a device and a bandwidth > 0, and \"to\" must be a list";
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
