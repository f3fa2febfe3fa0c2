// SPDX-License-Identifier: Apache-2.0
// measure.c - tsr_topology_measure: what runtime has measured, as a topology.
#include "runtime/runtime.h"
#include "topology/topology.h"

#include <stdio.h>

static tsr_status begin(tsr_session *s, int n, tsr_topology **out)
{
    char text[32];
    snprintf(text, sizeof text, "cpu:%d", n);
    return tsr_topology_parse(s, text, out);
}

static void set_links(tsr_topology *t, const struct measured *m)
{
    for (size_t i = 0; i < t->links.n; i++) {
        struct topology_link *l = &t->links.at[i];
        if (m->latency[l->from][l->to] > 0)
            l->latency = m->latency[l->from][l->to];
        if (m->bandwidth[l->from][l->to] > 0)
            l->bandwidth = m->bandwidth[l->from][l->to];
    }
}

static bool set_times(tsr_topology *t, const struct measured *m)
{
    for (int what = 0; what < MEASURE_KINDS && m->one_host; what++)
        for (int k = 0; k < m->n_groups; k++) {
            struct topology_times x = {.what = (enum tsr_collective)what, .size = m->group[k]};
            for (int i = 0; i < MEASURE_POINTS; i++)
                if (m->seconds[what][k][i] > 0) {
                    x.bytes[x.n] = m->bytes[i];
                    x.seconds[x.n++] = m->seconds[what][k][i];
                }
            if (x.n > 1 && !tsr__topology_add_times(t, &x))
                return false;
        }
    return true;
}

static bool fill(tsr_topology *t, const struct measured *m)
{
    for (int i = 0; i < m->ranks; i++)
        tsr_topology_set_device(t, i,
                                &(tsr_topology_device){.memory = m->rank[i].memory,
                                                       .flops = m->rank[i].flops,
                                                       .bandwidth = m->rank[i].bandwidth,
                                                       .overhead = m->rank[i].overhead});
    set_links(t, m);
    tsr__topology_recognise(t);
    return set_times(t, m);
}

tsr_status tsr_topology_measure(tsr_session *s, const tsr_measure_options *options,
                                tsr_topology **out)
{
    tsr_topology *t = NULL;
    struct measured *m = tsr__alloc(s, sizeof *m);
    if (!m)
        return TSR_NOMEM;
    tsr_status st = tsr__measure(s, options, m);
    if (st == TSR_OK && m->ranks > 0)
        st = begin(s, m->ranks, &t);
    if (st == TSR_OK && t && !fill(t, m)) {
        tsr_topology_free(t);
        st = TSR_NOMEM;
    }
    tsr__free(s, m, sizeof *m);
    if (st == TSR_OK)
        *out = t;
    return st;
}
