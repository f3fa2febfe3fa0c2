// SPDX-License-Identifier: Apache-2.0
// test_topology.c - published examples, generators, and predicted times compared with closed forms,
// lower bounds and the packet simulation.
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

static size_t count_code(tsr_session *s, const char *code)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        n += strcmp(tsr_finding_value(s, i).code, code) == 0;
    return n;
}

// A changed topology is stored as JSON, not as the text of its generator, which lacks the change.
static void changes_drop_the_text(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    for (int change = 0; change < 5; change++) {
        tsr_topology *t = read_ok(s, "ring:4");
        assert_true(t->text.n > 0);
        switch (change) {
        case 0:
            tsr_topology_set_device(t, 1, &(tsr_topology_device){.unhidden = 0.5});
            break;
        case 1:
            tsr_topology_set_device(t, 1, &(tsr_topology_device){.queued = true});
            break;
        case 2:
            tsr_topology_set_links(t, 1e-6, 0);
            break;
        case 3:
            assert_true(
                tsr__topology_add_profile(t, "Relu", "float32", &(struct profile_point){9, 9, 2}));
            break;
        default:
            tsr__topology_set_wait(t, 1e-6);
        }
        if (t->text.n)
            fail_msg("change %d: the text is kept", change);
        tsr_topology_free(t);
    }
    // Nothing to change: all numbers are 0.
    tsr_topology *t = read_ok(s, "ring:4");
    tsr_topology_set_device(t, 1, &(tsr_topology_device){0});
    assert_true(t->text.n > 0);
    tsr_topology_free(t);
    tsr_session_free(s);
}

// The eight published examples: devices, links, and warnings.
static void test_published(void **state)
{
    static const struct {
        const char *text;
        int devices;
        size_t links, self, one_way;
    } list[] = {
        {"{4, [[1,2,3],[2,3,0],[3,0,1],[0,1,2]]}", 4, 12, 0, 0},
        {"{4, [[1],[2],[3],[0]]}", 4, 4, 0, 0},
        {"{7, [[1,2],[0,3,4],[0,5,6],[1],[1],[2],[2]]}", 7, 12, 0, 0},
        {"{4, [[1],[0,2,3],[1],[1]]}", 4, 6, 0, 0},
        {"{4, [[2],[2],[0,1,3],[2]]}", 4, 6, 0, 0},
        {"{6, [[1,2],[0,2,3],[1,2],[2,4,5],[3,5],[3,4]]}", 6, 13, 1, 3},
        {"{3, [[1,2],[0,2],[1,2]]}", 3, 5, 1, 1},
        {"{9, "
         "[[1,2,3,6],[0,2,4,7],[1,2,5,8],[4,5,0,6],[3,5,1,7],[3,4,2,8],[0,3,7,8],[1,4,6,8],[2,5,6,"
         "7]]}",
         9, 35, 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_topology *t = read_ok(s, list[i].text);
        assert_int_equal(tsr_topology_devices(t), list[i].devices);
        if (tsr_topology_links(t) != list[i].links ||
            count_code(s, "topology-self") != list[i].self ||
            count_code(s, "topology-one-way") != list[i].one_way)
            fail_msg("list %zu: %zu links, %zu self, %zu one way", i, tsr_topology_links(t),
                     count_code(s, "topology-self"), count_code(s, "topology-one-way"));
        tsr_topology_free(t);
        tsr_session_free(s);
    }
}

static void test_generators(void **state)
{
    static const struct {
        const char *text;
        int devices;
        size_t links;
    } list[] = {{"4", 4, 12},           {"cpu:2", 2, 2},          {"ring:2", 2, 2},
                {"ring:5", 5, 10},      {"star:4@1", 4, 6},       {"tree:2x2", 7, 12},
                {"grid:2x4", 8, 20},    {"torus:3x3x3", 27, 162}, {"torus:2x2", 4, 8},
                {"hosts:2x8", 16, 128}, {"full:1", 1, 0}};
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        tsr_topology *t = read_ok(s, list[i].text);
        assert_int_equal(tsr_topology_devices(t), list[i].devices);
        if (tsr_topology_links(t) != list[i].links)
            fail_msg("%s: %zu links", list[i].text, tsr_topology_links(t));
        tsr_topology_free(t);
    }
    tsr_session_free(s);
}

static void test_refused(void **state)
{
    static const char *const list[] = {"",
                                       "0",
                                       "-1",
                                       "4x4",
                                       "rign:4",
                                       "ring:",
                                       "ring:4x",
                                       "ring:99999",
                                       "star:4@4",
                                       "hosts:8",
                                       "torus:64x64x64",
                                       "4096",
                                       "full:2049",
                                       "hosts:2x2048",
                                       "{4, [[1],[2],[3]]}",
                                       "{2, [[1],[2]]}",
                                       "{2, [[1],[0],[0]]}",
                                       "{2, [[1],[0]",
                                       "{\"devices\": []}",
                                       "{\"devices\": [1]}",
                                       "{\"devices\": [{}], \"links\": [{\"from\": 0, \"to\": 1}]}",
                                       "{\"devices\": ",
                                       "{\"devices\": [{}, {}], \"collectives\": [{}]}",
                                       "{\"devices\": [{}, {}], \"collectives\": [{\"collective\": "
                                       "\"all-reduce\", \"devices\": 2, \"bytes\": [2, 1], "
                                       "\"seconds\": [1, 2]}]}",
                                       "{\"devices\": [{}, {}], \"window\": 1}",
                                       "{\"devices\": [{}, {}, {}, {}], \"grid\": [2, 2], "
                                       "\"window\": 3}",
                                       "{\"devices\": [{}, {}, {}, {}], \"grid\": [2, 2], "
                                       "\"links\": [{\"from\": 0, \"to\": 2}], \"window\": 2}",
                                       "{27, [[1,2,3,6,9,1,],[0,2,4,7,A,J],...]}"};
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(list); i++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_topology *t = NULL;
        if (tsr_topology_parse(s, list[i], &t) != TSR_MALFORMED ||
            count_code(s, "topology-text") != 1)
            fail_msg("taken: %s", list[i]);
        tsr_session_free(s);
    }
}

// The message must contain the limit that the code uses.
static void test_too_few_devices(void **state)
{
    char limit[16];
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = NULL;
    snprintf(limit, sizeof limit, "%d", TOPOLOGY_MAX_DEVICES);
    assert_int_equal(tsr_topology_parse(s, "{\"devices\": []}", &t), TSR_MALFORMED);
    assert_non_null(strstr(tsr_finding_value(s, 0).message, limit));
    tsr_session_free(s);
}

// Device 2 has no links: collectives with it have an infinite time, with a warning.
static void test_unreachable(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "{3, [[1],[0],[]]}");
    assert_int_equal(count_code(s, "topology-unreachable"), 1);
    tsr_topology_price p;
    int all[] = {0, 1, 2}, far[] = {0, 3};
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_REDUCE, all, 3, 1024, &p), TSR_OK);
    assert_true(p.picoseconds == TOPOLOGY_NEVER);
    assert_int_equal(tsr_topology_cost(t, TSR_SEND, far, 2, 1, &p), TSR_INVALID);
    assert_int_equal(count_code(s, "topology-device"), 1);
    tsr_topology_free(t);
    tsr_session_free(s);
}

// Measured times have priority, are interpolated, and survive JSON.
static void test_measured(void **state)
{
    static const char text[] =
        "{\"devices\": [{}, {}, {}, {}], \"links\": [{\"from\": 0, \"to\": 1, \"both\": true}, "
        "{\"from\": 1, \"to\": 2, \"both\": true}, {\"from\": 2, \"to\": 3, \"both\": true}], "
        "\"collectives\": [{\"collective\": \"all-reduce\", \"devices\": 4, \"bytes\": [1000, "
        "2000, 4000], \"seconds\": [1e-6, 3e-6, 2e-6]}]}";
    static const struct {
        int64_t bytes, picoseconds;
    } list[] = {{1, 1000000}, {1000, 1000000}, {1500, 2000000}, {2000, 3000000}, {8000, 3000000}};
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, text), *u;
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    u = read_ok(s, tsr_json_text(j));
    const int all[] = {0, 1, 2, 3};
    tsr_topology_price p;
    for (size_t i = 0; i < TSR_COUNT(list); i++)
        for (int k = 0; k < 2; k++) {
            assert_int_equal(
                tsr_topology_cost(k ? u : t, TSR_ALL_REDUCE, all, 4, list[i].bytes, &p), TSR_OK);
            assert_string_equal(p.algorithm, "measured");
            assert_true(llabs(p.picoseconds - list[i].picoseconds) <= 1);
            assert_true(p.bound <= p.picoseconds);
        }
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_REDUCE, all, 3, 1500, &p), TSR_OK);
    assert_string_not_equal(p.algorithm, "measured"); // another group size
    tsr_topology_set_links(t, 1e-6, 1e9);
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_REDUCE, all, 4, 1500, &p), TSR_OK);
    assert_string_not_equal(p.algorithm, "measured"); // links differ from the measured ones
    tsr_json_free(j);
    tsr_topology_free(t);
    tsr_topology_free(u);
    tsr_session_free(s);
}

static void test_json_again(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "hosts:2x2"), *u;
    tsr_topology_set_device(t, 1,
                            &(tsr_topology_device){.name = "CUDA:0",
                                                   .memory = 123456789,
                                                   .flops = 1e12,
                                                   .bandwidth = 2e11,
                                                   .overhead = 3e-6,
                                                   .rates = {[TSR_RATE_FLOAT16] = 4e12},
                                                   .moves = {[TSR_MOVE_SOFTMAX] = 5e10},
                                                   .cached = {[TSR_MOVE_STREAM] = 6e11},
                                                   .queued = true});
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    u = read_ok(s, tsr_json_text(j));
    const tsr_topology_device *d = tsr_topology_device_at(u, 1);
    assert_true(d->overhead == 3e-6);
    assert_string_equal(d->name, "CUDA:0");
    assert_true(d->memory == 123456789 && d->flops == 1e12 && d->bandwidth == 2e11);
    assert_true(d->rates[TSR_RATE_FLOAT16] == 4e12 && d->rates[TSR_RATE_INT8] == 0);
    assert_true(d->moves[TSR_MOVE_SOFTMAX] == 5e10 && d->cached[TSR_MOVE_STREAM] == 6e11);
    assert_true(d->queued && !tsr_topology_device_at(u, 0)->queued);
    assert_int_equal(tsr_topology_links(u), tsr_topology_links(t));
    int all[] = {0, 1, 2, 3};
    for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++) {
        tsr_topology_price a, b;
        int n = what == TSR_SEND ? 2 : 4;
        assert_int_equal(tsr_topology_cost(t, (tsr_collective)what, all, n, 1 << 20, &a), TSR_OK);
        assert_int_equal(tsr_topology_cost(u, (tsr_collective)what, all, n, 1 << 20, &b), TSR_OK);
        assert_true(a.picoseconds == b.picoseconds);
    }
    tsr_json_free(j);
    tsr_topology_free(t);
    tsr_topology_free(u);
    tsr_session_free(s);
}

// ---- profiles

#define SEEN_ENTRY(words) "{\"devices\":[{}],\"seen\":[{" words "}]}"
#define SEEN_SIZES        "\"op\":\"Add\",\"type\":\"float32\",\"work\":[1],\"bytes\":[2]"

static void damaged_sightings_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"devices\":[{}],\"seen\":{}}",
        "{\"devices\":[{}],\"sizes\":3}",
        "{\"devices\":[{}],\"sizes\":[{" SEEN_SIZES ",\"times\":[1]}]}", // an operator, not a kind
        SEEN_ENTRY("\"op\":\"Add\""),
        SEEN_ENTRY(SEEN_SIZES),
        SEEN_ENTRY(SEEN_SIZES ",\"times\":[0]"),
        SEEN_ENTRY(SEEN_SIZES ",\"times\":[1e5]"),
        SEEN_ENTRY(SEEN_SIZES ",\"times\":[1,1]"),
        SEEN_ENTRY(SEEN_SIZES ",\"times\":[1]},{" SEEN_SIZES ",\"times\":[1]"),
        SEEN_ENTRY("\"op\":\"Add\",\"type\":\"int8\",\"work\":[-1],\"bytes\":[2],\"times\":[1]"),
        "{\"devices\":[{}],\"wait\":-1}",
        "{\"devices\":[{}],\"wait\":11}",
        "{\"devices\":[{}],\"wait\":\"1\"}",
    };
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(bad); i++) {
        tsr_topology *none = NULL;
        tsr_finding_clear(s);
        assert_int_equal(tsr_topology_parse(s, bad[i], &none), TSR_MALFORMED);
        assert_null(none);
        assert_int_equal(tsr_finding_count(s), 1);
    }
    tsr_session_free(s);
}

// The nearest measured sizes are used; JSON keeps every digit; subsets of the devices keep the
// profiles; changed speeds drop them.
static void sightings_are_kept(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "full:2");
    assert_true(
        tsr__topology_add_profile(t, "MatMul", "float32", &(struct profile_point){1e9, 1e6, 3}));
    assert_true(
        tsr__topology_add_profile(t, "MatMul", "float32", &(struct profile_point){1e6, 1e4, 1}));
    for (int i = 0; i < 100; i++) // more than the limit
        assert_true(
            tsr__topology_add_profile(t, "Add", "int8", &(struct profile_point){i, 7 * i, 1.1}));
    assert_true(tsr__topology_add_kind_profile(t, "softmax", "float32",
                                               &(struct profile_point){9, 9, 0.5}));
    tsr__topology_set_wait(t, 1e-5 / 3);
    tsr_json *json = tsr_json_new(s);
    tsr_json_begin(json, NULL, '{');
    tsr_topology_add_json(t, json);
    tsr_json_end(json);
    tsr_topology *again = read_ok(s, tsr_json_text(json));
    assert_true(again->wait == t->wait && again->profiles.n == 3);
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(again->profiles.at[i].times, t->profiles.at[i].times,
                            sizeof t->profiles.at[i].times);
    const struct topology_profile *seen = tsr__topology_profile(again, "MatMul", "float32");
    assert_null(tsr__topology_profile(again, "MatMul", "float16"));
    assert_true(fabs(tsr__profile_ratio(seen, 1e9, 1e6) - 3) < 1e-3);
    assert_true(fabs(tsr__profile_ratio(seen, 1e6, 1e4) - 1) < 1e-3);
    double between = tsr__profile_ratio(seen, sqrt(1e9 * 1e6), sqrt(1e6 * 1e4));
    assert_true(fabs(between - sqrt(3)) < 1e-2);
    assert_true(fabs(tsr__profile_ratio(tsr__topology_profile(t, "Add", "int8"), 9, 9) - 1.1) <
                1e-9);
    assert_int_equal(tsr__topology_choose(again), TSR_OK);
    assert_int_equal(again->choices.at[0]->profiles.n, 3);
    assert_null(tsr__topology_profile(again, "softmax", "float32")); // a kind is not an operator
    assert_true(tsr__topology_kind_profile(again, "softmax", "float32")->times[0] == 0.5);
    tsr_topology_set_device(again, 0, &(tsr_topology_device){.flops = 1});
    assert_int_equal(again->profiles.n, 0);
    tsr_json_free(json);
    tsr_topology_free(again);
    tsr_topology_free(t);
    tsr_session_free(s);
}

// ---- boxes, rates, ports

static int64_t price_of(tsr_topology *t, tsr_collective what, int64_t bytes)
{
    int all[64];
    tsr_topology_price p;
    for (int i = 0; i < tsr_topology_devices(t); i++)
        all[i] = i;
    assert_int_equal(tsr_topology_cost(t, what, all, tsr_topology_devices(t), bytes, &p), TSR_OK);
    return p.picoseconds;
}

// A device behind a switch gathers no faster than its port; predefined boxes survive JSON.
static void test_boxes(void **state)
{
    (void)state;
    const char *source, *name;
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; (name = tsr_topology_box(i, &source)); i++) {
        char text[64];
        assert_true(strlen(source) > 20);
        bool apple = name[0] == 'm' && strcmp(name, "mi300x") != 0;
        snprintf(text, sizeof text, apple ? "hosts:8x%s:1" : "hosts:2x%s:4", name);
        tsr_topology *t = read_ok(s, text), *again;
        assert_int_equal(tsr_topology_devices(t), 8);
        const tsr_topology_device *d = tsr_topology_device_at(t, 5);
        assert_string_equal(d->name, apple ? "CoreML:0" : "CUDA:1");
        assert_true(d->memory >= (int64_t)16e9 && (apple || d->rates[TSR_RATE_FLOAT16] > d->flops));
        tsr_json *j = tsr_json_new(s);
        tsr_json_begin(j, NULL, '{');
        tsr_topology_add_json(t, j);
        tsr_json_end(j);
        again = read_ok(s, tsr_json_text(j));
        for (int what = 0; what < TSR_SEND; what++)
            assert_true(price_of(t, (tsr_collective)what, 1 << 26) ==
                        price_of(again, (tsr_collective)what, 1 << 26));
        tsr_json_free(j);
        tsr_topology_free(t);
        tsr_topology_free(again);
    }
    tsr_topology *h100 = read_ok(s, "h100:8"), *none = NULL;
    double bytes = 1 << 30, least = bytes * 7 / 8 / 450e9;
    double seconds = (double)price_of(h100, TSR_ALL_GATHER, 1 << 30) / 1e12;
    assert_true(seconds > least / 0.9 && seconds < least / 0.75 + 30e-6);
    assert_int_equal(tsr_topology_parse(s, "h100:9", &none), TSR_MALFORMED);
    assert_int_equal(tsr_topology_parse(s, "hosts:2xh1000:8", &none), TSR_MALFORMED);
    tsr_topology_free(h100);
    tsr_session_free(s);
}

// Start-up and messages: 8 us once, 1 us for each of the messages of the busiest device, and the
// latencies of the steps. Over 4 devices of which all pairs are linked, a small all-gather is one
// step with 3 messages; over 2 it has 1. They survive JSON.
static void test_starts(void **state)
{
    (void)state;
    char text[1024] = "{\"devices\":[{},{},{},{}],\"links\":[";
    for (int a = 0; a < 4; a++)
        for (int b = a + 1; b < 4; b++)
            snprintf(text + strlen(text), sizeof text - strlen(text),
                     "%s{\"from\":%d,\"to\":%d,\"both\":true,\"latency\":2e-6,\"bandwidth\":1e12,"
                     "\"start\":8e-6,\"message\":1e-6}",
                     b > 1 ? "," : "", a, b);
    snprintf(text + strlen(text), sizeof text - strlen(text), "]}");
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, text);
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    tsr_topology *again = read_ok(s, tsr_json_text(j));
    const int all[] = {0, 1, 2, 3};
    tsr_topology_price four, two, same;
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_GATHER, all, 4, 4, &four), TSR_OK);
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_GATHER, all, 2, 4, &two), TSR_OK);
    assert_int_equal(tsr_topology_cost(again, TSR_ALL_GATHER, all, 4, 4, &same), TSR_OK);
    assert_true(llabs(four.picoseconds - 13000000) < 10);
    assert_true(llabs(two.picoseconds - 11000000) < 10);
    assert_true(same.picoseconds == four.picoseconds);
    tsr_json_free(j);
    tsr_topology_free(t);
    tsr_topology_free(again);
    tsr_session_free(s);
}

static int64_t all_reduce_of(tsr_topology *t, const int *group, int n, int64_t bytes)
{
    tsr_topology_price p;
    assert_int_equal(tsr_topology_cost(t, TSR_ALL_REDUCE, group, n, bytes, &p), TSR_OK);
    return p.picoseconds;
}

// Measured times by the number of hosts that a group spans; an entry without hosts is for the rest.
static void times_by_hosts(void **state)
{
    static const char text[] =
        "{\"devices\":[{},{},{},{}],\"host\":2,\"links\":["
        "{\"from\":0,\"to\":1,\"both\":true},{\"from\":0,\"to\":2,\"both\":true},"
        "{\"from\":1,\"to\":3,\"both\":true},{\"from\":2,\"to\":3,\"both\":true}],"
        "\"collectives\":[{\"collective\":\"all-reduce\",\"devices\":2,\"hosts\":1,"
        "\"bytes\":[1000,2000],\"seconds\":[1e-6,2e-6]},{\"collective\":\"all-reduce\","
        "\"devices\":2,\"hosts\":2,\"bytes\":[1000,2000],\"seconds\":[5e-6,6e-6]},"
        "{\"collective\":\"all-reduce\",\"devices\":3,\"bytes\":[1000,2000],"
        "\"seconds\":[7e-6,8e-6]}]}";
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, text);
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    tsr_topology *again = read_ok(s, tsr_json_text(j));
    for (int k = 0; k < 2; k++) {
        tsr_topology *u = k ? again : t;
        assert_int_equal(all_reduce_of(u, (const int[]){0, 1}, 2, 1000), 1000000);
        assert_int_equal(all_reduce_of(u, (const int[]){2, 3}, 2, 1000), 1000000);
        assert_int_equal(all_reduce_of(u, (const int[]){1, 3}, 2, 1000), 5000000);
        assert_int_equal(all_reduce_of(u, (const int[]){0, 1, 2}, 3, 1000), 7000000);
    }
    tsr_json_free(j);
    tsr_topology_free(t);
    tsr_topology_free(again);
    tsr_session_free(s);
}

// A larger tensor takes no less time, also where another algorithm begins.
static void times_grow_with_sizes(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    static const char *const names[] = {"hosts:2x2", "hosts:2x4", "hosts:2x8", "hosts:3x4",
                                        "hosts:4x4", "hosts:8x2", "4"};
    static const int kinds[] = {TSR_ALL_REDUCE, TSR_REDUCE_SCATTER, TSR_ALL_GATHER};
    for (size_t i = 0; i < TSR_COUNT(names); i++)
        for (size_t k = 0; k < TSR_COUNT(kinds); k++) {
            tsr_topology *t = read_ok(s, names[i]);
            int64_t before = 0;
            for (int64_t bytes = 512; bytes <= 1 << 17; bytes += 512) {
                int64_t now = price_of(t, kinds[k], bytes);
                assert_true(now >= before);
                before = now;
            }
            tsr_topology_free(t);
        }
    tsr_session_free(s);
}

// A device has one network port: more hosts do not make a large all-reduce faster.
static void more_hosts_are_not_faster(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    static const char *const names[] = {"hosts:2x4", "hosts:4x4", "hosts:16x4"};
    int64_t before = 0;
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        tsr_topology *t = read_ok(s, names[i]);
        int64_t now = price_of(t, TSR_ALL_REDUCE, 1 << 26);
        assert_true(now > before);
        before = now;
        tsr_topology_free(t);
    }
    tsr_session_free(s);
}

// tsr_topology_set_network changes only the links between hosts.
static void test_network(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, "hosts:2x2"), *flat = read_ok(s, "full:4");
    int from, to;
    double latency, bandwidth;
    assert_true(tsr_topology_set_network(t, 1e-3, 1e6));
    for (size_t i = 0; tsr_topology_link_at(t, i, &from, &to, &latency, &bandwidth); i++)
        assert_true(from / 2 == to / 2 ? bandwidth > 1e9 : latency == 1e-3 && bandwidth == 1e6);
    assert_false(tsr_topology_set_network(flat, 1e-3, 1e6));
    tsr_topology_free(t);
    tsr_topology_free(flat);
    tsr_session_free(s);
}

// Devices behind one port share it: a ring of four takes the same time, an all-to-all takes longer.
static void test_ports(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{\"devices\":[{\"rates\":{\"float17\":1}}]}",
        "{\"devices\":[{\"rates\":{\"int8\":0}}]}",
        "{\"devices\":[{\"rates\":7}]}",
        "{\"devices\":[{\"moves\":{\"float16\":1}}]}",
        "{\"devices\":[{\"near\":{\"norm\":-1}}]}",
        "{\"devices\":[{}],\"ports\":[{\"device\":1,\"bandwidth\":1}]}",
        "{\"devices\":[{}],\"ports\":[{\"device\":0}]}",
        "{\"devices\":[{}],\"ports\":[{\"device\":0,\"bandwidth\":1,\"to\":0}]}",
    };
    static const char *const links =
        "\"links\":[{\"from\":0,\"to\":1,\"both\":true},{\"from\":0,\"to\":2,\"both\":true},"
        "{\"from\":1,\"to\":2,\"both\":true}]";
    char text[512];
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *none = NULL;
    for (size_t i = 0; i < TSR_COUNT(bad); i++) {
        assert_int_equal(tsr_topology_parse(s, bad[i], &none), TSR_MALFORMED);
        assert_null(none);
    }
    snprintf(text, sizeof text, "{\"devices\":[{},{},{}],%s}", links);
    tsr_topology *open = read_ok(s, text);
    snprintf(text, sizeof text,
             "{\"devices\":[{},{},{}],%s,\"ports\":[{\"device\":0,\"bandwidth\":5e9}]}", links);
    tsr_topology *narrow = read_ok(s, text);
    assert_true(price_of(narrow, TSR_BROADCAST, 1 << 24) > price_of(open, TSR_BROADCAST, 1 << 24));
    snprintf(text, sizeof text,
             "{\"devices\":[{},{},{}],%s,\"ports\":[{\"device\":0,\"bandwidth\":1e10}]}", links);
    tsr_topology *wide = read_ok(s, text);
    assert_true(price_of(wide, TSR_BROADCAST, 1 << 24) == price_of(open, TSR_BROADCAST, 1 << 24));
    tsr_topology_free(open);
    tsr_topology_free(narrow);
    tsr_topology_free(wide);
    tsr_session_free(s);
}

// ---- predicted times

#define ALPHA 1e-6
#define BETA  1e-9 // seconds per byte

static tsr_topology *plain(tsr_session *s, const char *text)
{
    tsr_topology *t = read_ok(s, text);
    tsr_topology_set_links(t, ALPHA, 1 / BETA);
    for (int i = 0; i < tsr_topology_devices(t); i++) // reductions take no time
        tsr_topology_set_device(t, i, &(tsr_topology_device){.bandwidth = 1e29});
    return t;
}

static double price(tsr_topology *t, enum tsr_collective what, int n, double bytes)
{
    int all[64];
    tsr_topology_price p;
    for (int i = 0; i < n; i++)
        all[i] = i;
    assert_int_equal(tsr_topology_cost(t, what, all, n, (int64_t)bytes, &p), TSR_OK);
    assert_true(p.picoseconds >= p.bound);
    return (double)p.picoseconds * 1e-12;
}

static void equal(double got, double wanted)
{
    if (fabs(got - wanted) > 1e-6 * wanted + 2e-12)
        fail_msg("%g s, wanted %g s", got, wanted);
}

// Closed forms on simple shapes, for large and small tensors.
static void test_closed_forms(void **state)
{
    const double v = 1 << 24, n = 8;
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *full = plain(s, "full:8"), *one_way = plain(s, "{4, [[1],[2],[3],[0]]}"),
                 *ring9 = plain(s, "ring:9"), *star = plain(s, "star:5@0");
    equal(price(full, TSR_ALL_GATHER, 8, v), ALPHA + v / n * BETA);
    equal(price(full, TSR_REDUCE_SCATTER, 8, v), ALPHA + v / n * BETA);
    equal(price(full, TSR_ALL_REDUCE, 8, v), 2 * (ALPHA + v / n * BETA));
    equal(price(full, TSR_ALL_REDUCE, 2, 8), ALPHA + 8 * BETA); // mailbox
    equal(price(full, TSR_ALL_TO_ALL, 8, v), ALPHA + v / n / n * BETA);
    equal(price(full, TSR_SEND, 2, v), ALPHA + v * BETA);
    // A link carries the shards of pairs that are 1, 2 and 3 links apart.
    equal(price(one_way, TSR_ALL_GATHER, 4, v), 3 * ALPHA + 6 * v / 4 * BETA);
    equal(price(one_way, TSR_ALL_REDUCE, 4, v), 2 * (3 * ALPHA + 6 * v / 4 * BETA));
    equal(price(ring9, TSR_ALL_GATHER, 9, v), 4 * ALPHA + 10 * v / 9 * BETA);
    // The centre sends to all at once; each leaf receives the missing parts over its only link.
    assert_true(price(star, TSR_ALL_GATHER, 5, v) < (4.0 / 5 * v * BETA + 3 * ALPHA) * 1.01);
    tsr_topology_free(full);
    tsr_topology_free(one_way);
    tsr_topology_free(ring9);
    tsr_topology_free(star);
    tsr_session_free(s);
}

static void assert_priced_as_fewer(tsr_topology *many, tsr_topology *few)
{
    int block[64], far[2] = {9992, 0}, near[2] = {8, 0}, host[2] = {9992, 9995}, first[2] = {0, 3},
                   apart[3] = {0, 5000, 9992};
    for (int k = 0; k < 64; k++)
        block[k] = k;
    assert_int_equal(tsr_topology_devices(many), 10000);
    struct topology_groups all = {1, 64, block}, a = {1, 2, far}, b = {1, 2, near};
    struct topology_groups inside = {1, 2, host}, same = {1, 2, first}, three = {1, 3, apart};
    assert_int_equal(tsr__topology_cost(many, TSR_ALL_REDUCE, &all, 1 << 20),
                     tsr__topology_cost(few, TSR_ALL_REDUCE, &all, 1 << 20));
    assert_int_equal(tsr__topology_cost(many, TSR_SEND, &a, 1 << 20),
                     tsr__topology_cost(few, TSR_SEND, &b, 1 << 20));
    assert_int_equal(tsr__topology_cost(many, TSR_SEND, &inside, 1 << 20),
                     tsr__topology_cost(few, TSR_SEND, &same, 1 << 20));
    assert_int_equal(tsr__topology_cost(many, TSR_ALL_REDUCE, &three, 1), TOPOLOGY_NEVER);
    assert_int_equal(tsr__topology_bound(many, TSR_SEND, &a, 1 << 20),
                     tsr__topology_bound(many, TSR_SEND, &b, 1 << 20));
    assert_true(tsr__topology_bound(many, TSR_SEND, &inside, 1 << 20) <=
                tsr__topology_cost(many, TSR_SEND, &inside, 1 << 20));
    assert_true(tsr__topology_repeats(many, 16, 625) && !tsr__topology_repeats(many, 16, 626));
}

// With very many hosts only the links of the first host are listed. Times must equal those of fewer
// hosts, and groups without a predicted time are reported. A file can be in this form too.
static void test_many_hosts(void **state)
{
    static const char *const texts[][2] = {{"hosts:1250x8", "hosts:16x8"},
                                           {"hosts:1250xh100:8", "hosts:16xh100:8"}};
    (void)state;
    size_t n = much_slower() ? 1 : TSR_COUNT(texts);
    for (size_t i = 0; i < n; i++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_topology *many = read_ok(s, texts[i][0]), *few = read_ok(s, texts[i][1]);
        assert_priced_as_fewer(many, few);
        tsr_json *j = tsr_json_new(s);
        tsr_json_begin(j, NULL, '{');
        tsr_topology_add_json(many, j);
        tsr_json_end(j);
        tsr_topology *again = read_ok(s, tsr_json_text(j));
        assert_int_equal(count_code(s, "topology-unreachable"), 0);
        assert_priced_as_fewer(again, few);
        tsr_json_free(j);
        tsr_topology_free(again);
        tsr_topology_free(many);
        tsr_topology_free(few);
        tsr_session_free(s);
    }
}

// Simulates all schedules of the algorithms that groups on this path may use. None may be faster
// than the bound. Returns their number.
static size_t simulate_all(tsr_topology *t, enum comm_path path, tsr_collective what,
                           const struct topology_groups *g, int64_t bytes, const char *shape)
{
    int64_t bound = tsr__topology_bound(t, what, g, bytes);
    const struct comm_algorithm *algorithm;
    size_t seen = 0;
    for (size_t i = 0; (algorithm = tsr__algorithm_at(i)); i++)
        for (int k = 0; k < ALGORITHM_SCHEDULES; k++) {
            if ((int)algorithm->kind != (int)what || !tsr__algorithm_serves(algorithm, path))
                continue;
            int64_t sim = packets_time(t, algorithm, k, g, bytes);
            seen += sim >= 0;
            if (sim >= 0 && sim + 1 < bound)
                fail_msg("%s, %s of %d: simulated below the bound", shape, algorithm->name, what);
        }
    return seen;
}

// Every algorithm on every shape: the predicted time is near the simulated one, which is finer, and
// never below the lower bound.
static void test_simulated(void **state)
{
    static const char *const shapes[] = {
        "full:4",   "full:8",    "ring:8",        "{4, [[1],[2],[3],[0]]}",
        "star:5@0", "tree:2x2",  "torus:3x3",     "torus:4x4",
        "grid:2x4", "hosts:2x4", "torus:2x2x2",   "{6, [[1,2],[0,2],[0,1,3],[2,4,5],[3,5],[3,4]]}",
        "h100:8",   "mi300x:4",  "hosts:2xh100:4"};
    size_t seen = 0;
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(shapes); i++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_topology *t = read_ok(s, shapes[i]);
        struct arena arena = {.session = s};
        struct groups_by_hosts parts;
        int all[64], n = tsr_topology_devices(t);
        for (int k = 0; k < n; k++) {
            all[k] = k;
            tsr_topology_set_device(t, k, &(tsr_topology_device){.bandwidth = 1e29});
        }
        for (int what = 0; what < TSR_COLLECTIVE_COUNT; what++)
            for (int64_t bytes = 1 << 10; bytes <= 1 << 26; bytes <<= 8) {
                struct topology_groups g = {1, what == TSR_SEND ? 2 : n, all};
                enum comm_path path = tsr__topology_shape(t, &g, &arena, &parts).path;
                struct timed_algorithm timed;
                int64_t cost = tsr__topology_fastest(t, (tsr_collective)what, &g, bytes, &timed);
                int64_t sim = packets_time(t, timed.algorithm, timed.schedule, &g, bytes);
                seen += simulate_all(t, path, (tsr_collective)what, &g, bytes, shapes[i]);
                if (cost < tsr__topology_bound(t, (tsr_collective)what, &g, bytes) || sim < 0 ||
                    (double)cost > 2 * (double)sim || (double)cost < 0.5 * (double)sim)
                    fail_msg("%s, collective %d, %lld bytes: %s costs %lld, simulated %lld",
                             shapes[i], what, (long long)bytes, timed.name, (long long)cost,
                             (long long)sim);
            }
        tsr__arena_free(&arena);
        tsr_topology_free(t);
        tsr_session_free(s);
    }
    assert_true(seen > 250);
}

static int64_t carried(const char *shape, tsr_collective what, const int *group, int n,
                       int64_t bytes, size_t *links, int64_t *fullest)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = read_ok(s, shape);
    double load[512] = {0}, sum = 0, most = 0;
    assert_true(tsr_topology_links(t) <= TSR_COUNT(load));
    tsr__topology_load(t, what, &(struct topology_groups){1, n, group}, bytes, load);
    *links = 0;
    for (size_t i = 0; i < tsr_topology_links(t); i++) {
        sum += load[i];
        most = load[i] > most ? load[i] : most;
        *links += load[i] > 0;
    }
    *fullest = (int64_t)(most + 0.5);
    tsr_topology_free(t);
    tsr_session_free(s);
    return (int64_t)(sum + 0.5);
}

// Loads of links, compared with closed forms. A ring of 3 all-reduces 60 MB in slices of 20 MB,
// each twice over every link. In a ring of 5, slices go 1 or 2 links far: 30 of them over 10
// links, and back. A message over a line of 4 devices loads 3 links.
static void test_load(void **state)
{
    const int64_t bytes = 60000000;
    size_t links;
    int64_t fullest;
    (void)state;
    assert_int_equal(
        carried("ring:3", TSR_ALL_REDUCE, (int[]){0, 1, 2}, 3, bytes, &links, &fullest), 4 * bytes);
    assert_true(links == 6 && fullest == 4 * bytes / 6);
    assert_int_equal(
        carried("ring:5", TSR_ALL_REDUCE, (int[]){0, 2, 1, 3, 4}, 5, bytes, &links, &fullest),
        2 * 30 * bytes / 5);
    assert_true(links == 10 && fullest == 2 * 30 * bytes / 5 / 10);
    assert_int_equal(carried("grid:1x4", TSR_SEND, (int[]){0, 3}, 2, bytes, &links, &fullest),
                     3 * bytes);
    assert_true(links == 3 && fullest == bytes);
    assert_int_equal(
        carried("full:4", TSR_ALL_GATHER, (int[]){0, 1, 2, 3}, 4, bytes, &links, &fullest),
        3 * bytes);
    assert_int_equal(carried("full:4", TSR_ALL_REDUCE, (int[]){2}, 1, bytes, &links, &fullest), 0);
}

// Groups that run at the same time share links, unless their links are separate.
static void test_together(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = plain(s, "ring:4");
    static const int pairs[] = {0, 1, 2, 3}, crossed[] = {0, 2, 1, 3};
    struct topology_groups apart = {2, 2, pairs}, one = {1, 2, pairs}, over = {2, 2, crossed},
                           over_one = {1, 2, crossed};
    int64_t v = 1 << 22;
    assert_true(tsr__topology_cost(t, TSR_ALL_GATHER, &apart, v) ==
                tsr__topology_cost(t, TSR_ALL_GATHER, &one, v));
    assert_true(tsr__topology_cost(t, TSR_ALL_GATHER, &over, v) >
                tsr__topology_cost(t, TSR_ALL_GATHER, &over_one, v));
    tsr_topology_free(t);
    tsr_session_free(s);
}

// The topology as devices and links only, without its name and its grid.
static tsr_topology *unnamed(tsr_session *s, const char *name, double between)
{
    tsr_topology *t = NULL, *out = NULL;
    assert_int_equal(tsr_topology_parse(s, name, &t), TSR_OK);
    for (size_t i = 0; between > 0 && i < t->links.n;
         i++) // links between hosts of 4 get another speed
        if (t->links.at[i].from / 4 != t->links.at[i].to / 4)
            t->links.at[i].bandwidth = between;
    t->n_grid = 0;
    tsr_json *j = tsr_json_new(s);
    tsr_json_begin(j, NULL, '{');
    tsr_topology_add_json(t, j);
    tsr_json_end(j);
    assert_int_equal(tsr_topology_parse(s, tsr_json_text(j), &out), TSR_OK);
    tsr_json_free(j);
    tsr_topology_free(t);
    return out;
}

static void grids_are_recognised(void **state)
{
    static const struct {
        const char *name;
        double between;
        int n, side[3];
    } cases[] = {
        {"grid:2x4", 0, 2, {2, 4}},      {"grid:4x2", 0, 2, {4, 2}},
        {"grid:3x2x2", 0, 3, {3, 2, 2}}, {"torus:3x3", 0, 2, {3, 3}},
        {"torus:4x4", 0, 2, {4, 4}},     {"torus:3x3x3", 0, 3, {3, 3, 3}},
        {"hosts:2x4", 0, 2, {2, 4}},     {"hosts:2x2x3", 0, 3, {2, 2, 3}},
        {"full:8", 1e9, 2, {2, 4}},      {"full:8", 0, 0, {0}},
        {"full:8", 4e9, 0, {0}}, // not clearly slower
        {"ring:8", 0, 0, {0}},           {"star:4@1", 0, 0, {0}},
        {"tree:2x3", 0, 0, {0}},
    };
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        tsr_topology *t = unnamed(s, cases[i].name, cases[i].between);
        int side[8], n = tsr_topology_grid(t, side, 8);
        if (n != cases[i].n || memcmp(side, cases[i].side, (size_t)n * sizeof *side) != 0)
            fail_msg("%s: %d sides, first %d", cases[i].name, n, n ? side[0] : 0);
        tsr_topology_free(t);
    }
    tsr_session_free(s);
}

// Racks of hosts: a device is linked with its host, its index in the other hosts of the rack, and
// in the other racks.
static void racks_of_hosts(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = NULL;
    assert_int_equal(tsr_topology_parse(s, "hosts:2x2x2", &t), TSR_OK);
    assert_int_equal(tsr_topology_devices(t), 8);
    assert_int_equal(tsr_topology_links(t), 24);
    double speed[8] = {0};
    for (size_t i = 0; i < tsr_topology_links(t); i++) {
        int from, to;
        double latency, bandwidth;
        assert_true(tsr_topology_link_at(t, i, &from, &to, &latency, &bandwidth));
        if (from == 0)
            speed[to] = bandwidth;
    }
    assert_true(speed[1] > speed[2] && speed[2] > speed[4] && speed[4] > 0);
    assert_true(speed[3] == 0 && speed[5] == 0 && speed[6] == 0 && speed[7] == 0);
    tsr_topology_free(t);
    assert_int_equal(tsr_topology_parse(s, "hosts:2x2x2x2", &t), TSR_MALFORMED);
    assert_int_equal(tsr_topology_parse(s, "hosts:8", &t), TSR_MALFORMED);
    tsr_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_generators),
        cmocka_unit_test(changes_drop_the_text),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_too_few_devices),
        cmocka_unit_test(test_unreachable),
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_json_again),
        cmocka_unit_test(damaged_sightings_are_refused),
        cmocka_unit_test(sightings_are_kept),
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_starts),
        cmocka_unit_test(times_by_hosts),
        cmocka_unit_test(times_grow_with_sizes),
        cmocka_unit_test(more_hosts_are_not_faster),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_ports),
        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_many_hosts),
        cmocka_unit_test(test_simulated),
        cmocka_unit_test(test_together),
        cmocka_unit_test(grids_are_recognised),
        cmocka_unit_test(racks_of_hosts),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
