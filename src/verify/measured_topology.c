// SPDX-License-Identifier: Apache-2.0
// measured_topology.c - tsr_topology_measure: what runtime has measured, as a topology.
//
// Numbers that were not measured (0) stay those of the table. Only rank 0 has numbers: on the other
// ranks of a launcher `ranks` is 0, and *out becomes NULL.
#include "runtime/runtime.h"
#include "topology/topology.h"

#include <stdio.h>

static tsr_status begin(tsr_session *session, int n, tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "cpu:%d", n);
    return tsr_topology_parse(session, text, out);
}

static void set_links(tsr_topology *topology, const struct measured *measured)
{
    for (size_t i = 0; i < topology->links.n; i++) {
        struct topology_link *link = &topology->links.at[i];
        if (measured->latency[link->from][link->to] > 0)
            link->latency = measured->latency[link->from][link->to];
        if (measured->bandwidth[link->from][link->to] > 0)
            link->bandwidth = measured->bandwidth[link->from][link->to];
    }
}

// Collectives are timed where all ranks are on one host. A line needs two points.
static bool set_times(tsr_topology *topology, const struct measured *measured)
{
    if (!measured->one_host)
        return true;
    for (int what = 0; what < MEASURE_KINDS; what++)
        for (int k = 0; k < measured->n_groups; k++) {
            struct topology_times x = {.what = (enum tsr_collective)what,
                                       .size = measured->group[k]};
            for (int i = 0; i < MEASURE_POINTS; i++)
                if (measured->seconds[what][k][i] > 0) {
                    x.bytes[x.n] = measured->bytes[i];
                    x.seconds[x.n++] = measured->seconds[what][k][i];
                }
            if (x.n > 1 && !tsr__topology_add_times(topology, &x))
                return false;
        }
    return true;
}

// Devices, then links, then the grid that the measured links form, then times of collectives.
static bool fill(tsr_topology *topology, const struct measured *measured)
{
    for (int i = 0; i < measured->ranks; i++)
        tsr_topology_set_device(
            topology, i,
            &(tsr_topology_device){.memory = measured->rank[i].memory,
                                   .flops = measured->rank[i].flops,
                                   .bandwidth = measured->rank[i].bandwidth,
                                   .overhead = measured->rank[i].overhead,
                                   .rates = {[TSR_RATE_INT8] = measured->rank[i].byte_rate}});
    set_links(topology, measured);
    tsr__topology_recognise(topology);
    return set_times(topology, measured);
}

// struct measured is large (all pairs of ranks), so it is not on the stack.
tsr_status tsr_topology_measure(tsr_session *session, const tsr_measure_options *options,
                                tsr_topology **out)
{
    tsr_topology *topology = NULL;
    struct measured *measured = tsr__alloc(session, sizeof *measured);
    if (!measured)
        return TSR_NOMEM;
    tsr_status st = tsr__measure(session, options, measured);
    if (st == TSR_OK && measured->ranks > 0)
        st = begin(session, measured->ranks, &topology);
    if (st == TSR_OK && topology && !fill(topology, measured)) {
        tsr_topology_free(topology);
        st = TSR_NOMEM;
    }
    tsr__free(session, measured, sizeof *measured);
    if (st == TSR_OK)
        *out = topology;
    return st;
}
