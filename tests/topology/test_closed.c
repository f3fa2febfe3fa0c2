// SPDX-License-Identifier: Apache-2.0
// test_closed.c - compares predicted times of all-reduces with textbook formulas, from 8 to 4,095
// devices: rings, hosts, GPUs.
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
    *algorithm = fastest.name;
    return (double)ps * 1e-12;
}

static void near(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-3 * wanted)
        fail_msg("%g s, wanted %g s", got, wanted);
}

// Every member sends a slice to every other, then its reduced slice. In a ring of n = 2 m + 1
// devices a link carries the slices of 1 + 2 + ... + m pairs, and the longest route has m links.
static void rings(void **state)
{
    static const struct {
        const char *text;
        double n;
    } list[] = {{"ring:9", 9}, {"ring:1023", 1023}, {"ring:4095", 4095}};
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        const char *algorithm = "";
        double n = list[i].n, m = (n - 1) / 2, bytes = n * (1 << 20);
        tsr_session *session = tsr_session_new(NULL);
        tsr_topology *topology = machine(session, list[i].text);
        near(all_reduce(topology, bytes, &algorithm),
             2 * (m * ALPHA + m * (m + 1) / 2 * bytes / n * BETA));
        assert_string_equal(algorithm, "direct");
        tsr_topology_free(topology);
        tsr_session_free(session);
    }
}

// Time of an all-reduce along lanes: two exchanges inside the hosts of `n` devices, and chains from
// host to host and back. A device in the middle of a chain sends twice.
static double lanes(double hosts, double n, double bytes)
{
    double sent = hosts > 2 ? 2 : 1;
    return 2 * (ALPHA + bytes / n * BETA) + 2 * (hosts - 1) * NET_ALPHA +
           sent * bytes / n * NET_BETA;
}

static double over(tsr_topology *topology, enum tsr_collective what, const int *devices, int n,
                   double bytes, const char **algorithm)
{
    struct timed_algorithm timed;
    struct topology_groups groups = {1, n, devices};
    double ps = (double)tsr__topology_fastest(topology, what, &groups, (int64_t)bytes, &timed);
    *algorithm = timed.name;
    return ps * 1e-12;
}

// A host with 3 devices of a group and one with 2 have two lanes. The third device gives its tensor
// to both, and gets the sums. In a reduce-scatter the results are already where they are wanted.
static void unequal_hosts(void **state)
{
    const int five[] = {0, 1, 2, 4, 5}, eight[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const char *algorithm = "";
    double bytes = 1 << 24;
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *two = machine(session, "hosts:2x4");
    near(over(two, TSR_ALL_REDUCE, five, 5, bytes, &algorithm), lanes(2, 2, bytes));
    assert_string_equal(algorithm, "lanes");
    near(over(two, TSR_REDUCE_SCATTER, eight, 8, bytes, &algorithm),
         ALPHA + 2 * NET_ALPHA + bytes / 4 * (BETA + NET_BETA));
    assert_string_equal(algorithm, "lanes");
    // The first lane brings two shards of the larger host to the other one.
    near(over(two, TSR_ALL_GATHER, five, 5, bytes, &algorithm),
         2 * ALPHA + NET_ALPHA + bytes / 5 * (BETA + 2 * NET_BETA + 2 * BETA));
    assert_string_equal(algorithm, "lanes");
    tsr_topology_free(two);
    tsr_session_free(session);
}

// CPUs on hosts: every lane reduces its part of the tensor. Small tensors go through the first
// device of each host. Groups whose hosts are not in order send to all members.
static void hosts(void **state)
{
    int mixed[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const char *algorithm = "";
    double bytes = 1 << 24;
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *two = machine(session, "hosts:2x4"), *many = machine(session, "hosts:128x8");
    near(all_reduce(two, bytes, &algorithm), lanes(2, 4, bytes));
    assert_string_equal(algorithm, "lanes");
    near(all_reduce(many, bytes, &algorithm), lanes(128, 8, bytes));
    assert_string_equal(algorithm, "lanes");
    // The first device has 3 tensors to receive, sends 4 to the other host, and 3 sums to its own.
    near(all_reduce(two, 8, &algorithm), 2 * ALPHA + NET_ALPHA + 8 * (2 * BETA + 4 * NET_BETA));
    assert_string_equal(algorithm, "first ranks");
    near(over(two, TSR_ALL_REDUCE, mixed, 8, bytes, &algorithm),
         2 * (NET_ALPHA + ALPHA + 4 * bytes / 8 * NET_BETA));
    assert_string_equal(algorithm, "direct");
    tsr_topology_free(many);
    tsr_topology_free(two);
    tsr_session_free(session);
}

// GPUs on hosts: NCCL reduces inside each host and sends an 8th between the hosts, as lanes of CPUs
// do.
static void gpus(void **state)
{
    const char *algorithm = "";
    double bytes = 1 << 28;
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *fast = NULL, *slow = NULL;
    assert_int_equal(tsr_topology_parse(session, "hosts:2xh100:8", &fast), TSR_OK);
    assert_int_equal(tsr_topology_parse(session, "hosts:2xh100:8", &slow), TSR_OK);
    for (int i = 0; i < slow->n; i++)
        slow->device[i].name = "CPU";
    double hierarchical = all_reduce(fast, bytes, &algorithm);
    assert_string_equal(algorithm, "NCCL");
    double chained = all_reduce(slow, bytes, &algorithm);
    assert_string_equal(algorithm, "lanes");
    assert_true(chained < 1.2 * hierarchical && hierarchical < 1.2 * chained);
    tsr_topology_free(slow);
    tsr_topology_free(fast);
    tsr_session_free(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings),
        cmocka_unit_test(hosts),
        cmocka_unit_test(unequal_hosts),
        cmocka_unit_test(gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
