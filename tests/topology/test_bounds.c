// SPDX-License-Identifier: Apache-2.0
// test_bounds.c - lower bounds of predicted times, and topologies of many devices.
#include "../valgrind.h"
#include "packets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>

static tsr_topology *read_ok(tsr_session *s, const char *text)
{
    tsr_topology *t = NULL;
    if (tsr_topology_parse(s, text, &t) != TSR_OK)
        fail_msg("not read: %s", text);
    return t;
}

// ---- many devices

// The most loaded link or port and the longest latency of an all-to-all, pair by pair.
static void all_pairs(tsr_topology *t, double *latency, double *seconds)
{
    int n = tsr_topology_devices(t), path[TOPOLOGY_MAX_HOPS];
    double *load = calloc(tsr__topology_shared(t), sizeof *load);
    assert_non_null(load);
    *latency = *seconds = 0;
    for (int pair = 0; pair < n * n; pair++) {
        double sum = 0;
        int hops = tsr__topology_path(t, pair / n, pair % n, path, TOPOLOGY_MAX_HOPS);
        assert_true(hops >= 0);
        for (int i = 0; i < hops; i++) {
            const struct topology_link *link = &t->links.at[path[i]];
            load[path[i]] += 1;
            if (link->out_port >= 0)
                load[tsr__topology_out(t, link)] += 1;
            if (link->in_port >= 0)
                load[tsr__topology_in(t, link)] += 1;
            sum += link->latency;
        }
        *latency = fmax(*latency, sum);
    }
    for (size_t i = 0; i < tsr__topology_shared(t); i++)
        *seconds = fmax(*seconds, load[i] / tsr__topology_speed(t, (int)i));
    free(load);
}

// All-to-all of many devices is computed from routing trees: the same time as pair by pair, with
// equal links (torus, star) and unequal ones (hosts).
static void many_are_priced_as_few(void **state)
{
    static const char *const names[] = {"torus:18x16", "grid:2x140", "hosts:20x15", "star:300@7",
                                        "ring:301"};
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        tsr_topology *t = read_ok(s, names[i]);
        int n = tsr_topology_devices(t), *all = malloc((size_t)n * sizeof *all);
        double latency, seconds;
        struct timed_algorithm fastest;
        assert_non_null(all);
        for (int d = 0; d < n; d++)
            all[d] = d;
        all_pairs(t, &latency, &seconds);
        struct topology_groups g = {1, n, all};
        int64_t bytes = (int64_t)1 << 40;
        int64_t cost = tsr__topology_fastest(t, TSR_ALL_TO_ALL, &g, bytes, &fastest);
        double expected = latency + seconds * (double)bytes / n / n;
        if (strcmp(fastest.name, "direct") != 0 ||
            fabs((double)cost / 1e12 - expected) > 1e-9 * expected)
            fail_msg("%s: %s, %g s instead of %g", names[i], fastest.name, (double)cost / 1e12,
                     expected);
        assert_true(tsr__topology_bound(t, TSR_ALL_TO_ALL, &g, bytes) <= cost);
        free(all);
        tsr_topology_free(t);
    }
    tsr_session_free(s);
}

// Must be read without routes, and evaluated over all devices quickly.
static void a_torus_of_4096(void **state)
{
    (void)state;
    if (much_slower())
        skip();
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "torus:16x16x16");
    for (int d = 0; d < 4096; d++)
        assert_null(t->route[d]);
    int *all = malloc(4096 * sizeof *all);
    assert_non_null(all);
    for (int d = 0; d < 4096; d++)
        all[d] = d;
    tsr_topology_price p;
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_REDUCE, all, 4096, 64 << 20, &p), TSR_OK);
    assert_string_equal(p.algorithm, "direct");
    assert_true(p.picoseconds > p.bound && p.bound > 0);
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_TO_ALL, all, 4096, 64 << 20, &p), TSR_OK);
    assert_string_equal(p.algorithm, "direct");
    assert_true(p.picoseconds > p.bound && p.bound > 0);
    free(all);
    tsr_topology_free(t);
    tsr_session_free(s);
}

// Compares with bisections that are computed one by one.
static void bounds_are_of_the_worst_cut(void **state)
{
    static const char *const names[] = {"ring:8", "star:5@1", "hosts:2x3", "tree:2x3", "h100:4"};
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        tsr_topology *t = read_ok(s, names[i]);
        int n = tsr_topology_devices(t), all[16];
        for (int d = 0; d < n; d++)
            all[d] = d;
        for (int what = 0; what < TSR_SEND; what++) {
            tsr_topology_price p;
            assert_int_equal(tsr_topology_cost(t, (tsr_collective)what, all, n, 64 << 20, &p),
                             TSR_OK);
            assert_true(p.bound > 0 && p.bound <= p.picoseconds);
        }
        tsr_topology_free(t);
    }
    // The root of a broadcast sends over its two links of 5 GB/s.
    tsr_topology *ring = read_ok(s, "ring:8");
    int eight[8] = {0, 1, 2, 3, 4, 5, 6, 7}, twice[3] = {0, 0, 1};
    struct topology_groups g = {1, 8, eight}, doubled = {1, 3, twice};
    assert_int_equal(tsr__topology_bound(ring, TSR_BROADCAST, &g, 1000000), 100000000);
    // Two members on device 0 and one on device 1: one third of the bytes, over both links.
    assert_int_equal(tsr__topology_bound(ring, TSR_ALL_TO_ALL, &doubled, 900000), 20000000);
    tsr_topology_free(ring);
    tsr_session_free(s);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

// A topology of n devices whose links have another bandwidth in each direction. A ring connects all
// devices. `reverse` turns every link round.
static tsr_topology *make_unequal(tsr_session *s, int n, uint32_t random, bool reverse)
{
    char text[16384];
    size_t at = (size_t)snprintf(text, sizeof text, "{\"devices\": [{\"bandwidth\": 1e29}");
    for (int i = 1; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, ", {\"bandwidth\": 1e29}");
    const char *before = "], \"links\": [";
    for (int i = 0; i < n * n; i++) {
        int ends[2] = {i / n, i % n};
        bool linked = ends[1] == (ends[0] + 1) % n || next_random(&random) % 2;
        double bandwidth = 1e8 * (double)(1 + next_random(&random) % 1000);
        if (ends[0] == ends[1] || !linked)
            continue;
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "%s{\"from\": %d, \"to\": %d, \"latency\": 1e-9, "
                               "\"bandwidth\": %.0f}",
                               before, ends[reverse], ends[!reverse], bandwidth);
        before = ", ";
    }
    at += (size_t)snprintf(text + at, sizeof text - at, "]}");
    assert_true(at < sizeof text);
    return read_ok(s, text);
}

// Returns the collective whose messages go in the opposite direction.
static int mirror_of(int what)
{
    switch (what) {
    case TSR_ALL_GATHER:
        return TSR_REDUCE_SCATTER;
    case TSR_REDUCE_SCATTER:
        return TSR_ALL_GATHER;
    case TSR_BROADCAST:
        return TSR_REDUCE;
    case TSR_REDUCE:
        return TSR_BROADCAST;
    default:
        return what;
    }
}

// Links may be slower in one direction. No algorithm is faster than the lower bound. The bound is
// that of the mirrored collective over reversed links: every algorithm can be mirrored.
static void bounds_hold_for_unequal_directions(void **state)
{
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7}, turned[] = {1, 0, 3, 2, 5, 4};
    (void)state;
    for (uint32_t trial = 0; trial < 300; trial++) {
        tsr_session *s = tsr_session_new(NULL);
        int n = 2 + (int)(trial % 7);
        tsr_topology *t = make_unequal(s, n, trial, false), *back = make_unequal(s, n, trial, true);
        const struct topology_groups groups[] = {
            {1, n, all}, {1, n < 3 ? 2 : n - 1, all}, {n / 2 < 3 ? n / 2 : 3, 2, turned}};
        for (size_t g = 0; g < TSR_COUNT(groups); g++)
            for (int what = 0; what < TSR_SEND; what++) {
                int64_t cost = tsr__topology_cost(t, (tsr_collective)what, &groups[g], 1 << 26);
                int64_t bound = tsr__topology_bound(t, (tsr_collective)what, &groups[g], 1 << 26);
                int64_t mirrored =
                    tsr__topology_bound(back, (tsr_collective)mirror_of(what), &groups[g], 1 << 26);
                if (bound <= 0 || bound > cost || llabs(mirrored - bound) > 1)
                    fail_msg("trial %u, groups %zu, collective %d: time %lld, bound %lld, "
                             "mirrored %lld",
                             trial, g, what, (long long)cost, (long long)bound,
                             (long long)mirrored);
            }
        tsr_topology_free(back);
        tsr_topology_free(t);
        tsr_session_free(s);
    }
    // Device 0 receives over 1 GB/s a quarter of 4 GB, and sends over 8 GB/s three quarters.
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "{\"devices\": [{}, {}, {}, {}], \"links\": ["
                                 "{\"from\": 0, \"to\": 1, \"bandwidth\": 8e9},"
                                 "{\"from\": 1, \"to\": 0, \"bandwidth\": 1e9},"
                                 "{\"from\": 1, \"to\": 2, \"bandwidth\": 8e9, \"both\": true},"
                                 "{\"from\": 2, \"to\": 3, \"bandwidth\": 8e9, \"both\": true}]}");
    const struct topology_groups four = {1, 4, all};
    assert_int_equal(tsr__topology_bound(t, TSR_REDUCE_SCATTER, &four, 4000000000), 1000000000000);
    assert_int_equal(tsr__topology_bound(t, TSR_ALL_GATHER, &four, 4000000000), 3000000000000);
    tsr_topology_free(t);
    tsr_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_are_priced_as_few),
        cmocka_unit_test(a_torus_of_4096),
        cmocka_unit_test(bounds_are_of_the_worst_cut),
        cmocka_unit_test(bounds_hold_for_unequal_directions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
