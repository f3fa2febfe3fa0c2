// SPDX-License-Identifier: Apache-2.0
// test_closed.c - compares predicted times of all-reduces with textbook formulas, from 8 to 10,000
// devices: rings, trees, hosts.
//
// alpha is the latency of a link, beta the seconds per byte; n devices, V bytes on each.
#include "packets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define ALPHA     5e-6  // default inside a host
#define BETA      2e-10 // 5 GB/s
#define NET_ALPHA 20e-6
#define NET_BETA  8e-10 // 10 Gbit/s

// Devices with unlimited memory bandwidth: only links count.
static tsr_topology *machine(tsr_session *session, const char *text)
{
    tsr_topology *topology = NULL;
    assert_int_equal(tsr_topology_parse(session, text, &topology), TSR_OK);
    for (int i = 0; i < topology->n; i++)
        tsr_topology_set_device(topology, i, &(tsr_topology_device){.bandwidth = 1e29});
    return topology;
}

// Seconds of an all-reduce over all devices, and the fastest algorithm.
static double all_reduce(tsr_topology *topology, double bytes, const char **algorithm)
{
    struct timed_algorithm fastest;
    int *all = calloc((size_t)topology->n, sizeof *all);
    assert_non_null(all);
    for (int i = 0; i < topology->n; i++)
        all[i] = i;
    struct topology_groups groups = {1, topology->n, all};
    int64_t ps = tsr__topology_fastest(topology, TSR_ALL_REDUCE, &groups, (int64_t)bytes, &fastest);
    free(all);
    *algorithm = fastest.algorithm;
    return (double)ps * 1e-12;
}

static void near(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-3 * wanted)
        fail_msg("%g s, wanted %g s", got, wanted);
}

// Both directions at once: n - 1 steps of V / 2n each, for the reduce-scatter and the all-gather.
static void rings(void **state)
{
    static const struct {
        const char *text;
        double n;
    } list[] = {{"ring:8", 8}, {"ring:1024", 1024}, {"ring:10000", 10000}};
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        const char *algorithm = "";
        double n = list[i].n, bytes = n * (1 << 20);
        tsr_session *session = tsr_session_new(NULL);
        tsr_topology *topology = machine(session, list[i].text);
        near(all_reduce(topology, bytes, &algorithm), 2 * (n - 1) * (ALPHA + bytes / n / 2 * BETA));
        assert_string_equal(algorithm, "two rings");
        tsr_topology_free(topology);
        tsr_session_free(session);
    }
}

// Two hosts of 4: reduce-scatter inside (3 steps in both directions), halves between the hosts, and
// back. 128 hosts of 8: the same with 7 steps inside and 127 steps between the hosts, where both
// directions of a device share its network port.
static void hosts(void **state)
{
    const char *algorithm = "";
    double bytes = 1 << 24;
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *two = machine(session, "hosts:2x4"), *many = machine(session, "hosts:128x8");
    near(all_reduce(two, bytes, &algorithm),
         2 * (NET_ALPHA + bytes / 8 * NET_BETA + 3 * (ALPHA + bytes / 4 / 2 * BETA)));
    assert_string_equal(algorithm, "by sides");
    near(all_reduce(many, bytes, &algorithm),
         2 * (127 * (NET_ALPHA + bytes / 1024 * NET_BETA) + 7 * (ALPHA + bytes / 8 / 2 * BETA)));
    assert_string_equal(algorithm, "by sides");
    tsr_topology_free(many);
    tsr_topology_free(two);
    tsr_session_free(session);
}

// Up and down a binary tree: log2 n steps of V each.
static void trees(void **state)
{
    static const struct {
        const char *text;
        double levels;
    } list[] = {{"full:8", 3}, {"full:1024", 10}};
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        double bytes = 1 << 20;
        tsr_session *session = tsr_session_new(NULL);
        tsr_topology *topology = machine(session, list[i].text);
        int *all = calloc((size_t)topology->n, sizeof *all);
        assert_non_null(all);
        for (int k = 0; k < topology->n; k++)
            all[k] = k;
        struct topology_groups groups = {1, topology->n, all};
        int64_t ps = packets_time(topology, TSR_ALL_REDUCE, "tree", &groups, (int64_t)bytes);
        near((double)ps * 1e-12, 2 * list[i].levels * (ALPHA + bytes * BETA));
        free(all);
        tsr_topology_free(topology);
        tsr_session_free(session);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings),
        cmocka_unit_test(hosts),
        cmocka_unit_test(trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
