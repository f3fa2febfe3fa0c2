// SPDX-License-Identifier: Apache-2.0
// test_shard_random.c - random shardings of a model: accepted by the checker, sharded by the flow,
// reproducible from a seed, of every documented kind. Symbolic sizes are sharded only if they are
// known. Also tests the printed edits that reproduce a sharding.
#include "common.h"

#include <stdio.h>

#define SEEDS 200

// y = x W + b, x of [batch, 12], W of [12, 10]; z = Softmax(y).
static tsr_model *net(struct bench *b, int64_t devices, tsr_config **c)
{
    static const float zeros[120];
    tsr_model *m;
    assert_int_equal(tsr_model_new(b->session, "g", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *x = tsr_graph_add_input(g, "x");
    tsr_dim dims[2] = {{-1, "batch"}, {12, ""}};
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    tsr_value *w = tsr_graph_add_initializer(g, "W", TSR_FLOAT, 2, I(12, 10), zeros, 480);
    tsr_value *bias = tsr_graph_add_initializer(g, "b", TSR_FLOAT, 1, I(10), zeros, 40);
    const char *names[3] = {"p", "y", "z"};
    tsr_value *p = tsr_node_output(
        tsr_graph_add_node(g, "", "MatMul", "mm", (tsr_value *[]){x, w}, 2, &names[0], 1), 0);
    tsr_value *y = tsr_node_output(
        tsr_graph_add_node(g, "", "Add", "add", (tsr_value *[]){p, bias}, 2, &names[1], 1), 0);
    tsr_node *last = tsr_graph_add_node(g, "", "Softmax", "soft", &y, 1, &names[2], 1);
    assert_int_equal(tsr_graph_add_output(g, tsr_node_output(last, 0)), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "r", devices, NULL, 0, c), TSR_OK);
    return m;
}

static const tsr_dim_size batch = {"batch", 3};

static char *edits_of(tsr_model *m, tsr_config *c)
{
    const char *text;
    assert_int_equal(tsr_config_edits(m, c, &text), TSR_OK);
    return strdup(text);
}

// Random shardings must have no errors or warnings, and cover all kinds: groups, strided, several
// axes.
static void valid_and_cut(void **state)
{
    struct bench *b = *state;
    size_t cut = 0, groups = 0, strided = 0, first_axis = 0, two = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        tsr_config *c;
        tsr_model *m = net(b, 2 + (int64_t)(seed % 5), &c);
        assert_int_equal(tsr_model_shard_random(m, c, seed, &batch, 1), TSR_OK);
        tsr_finding_clear(b->session);
        assert_int_equal(tsr_check(m, NULL), TSR_OK);
        assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 0);
        assert_int_equal(tsr_finding_total(b->session, TSR_WARNING), 0);
        char *edits = edits_of(m, c);
        cut += strstr(edits, "--shard") != NULL;
        groups += strstr(edits, ",(") != NULL;
        strided += strchr(edits, '*') != NULL;
        first_axis += strstr(edits, "\"x\"={3") != NULL;
        two += strstr(edits, "\"x\"={2,2") != NULL;
        free(edits);
        tsr_model_free(m);
    }
    assert_true(cut > SEEDS * 9 / 10);
    assert_true(groups > 10 && strided > 10 && first_axis > 2 && two > 0);
}

static void same_from_the_same_seed(void **state)
{
    struct bench *b = *state;
    tsr_config *c, *d;
    tsr_model *m = net(b, 4, &c), *k = net(b, 4, &d);
    assert_int_equal(tsr_model_shard_random(m, c, 5, &batch, 1), TSR_OK);
    assert_int_equal(tsr_model_shard_random(k, d, 6, &batch, 1), TSR_OK);
    char *five = edits_of(m, c), *six = edits_of(k, d);
    assert_string_not_equal(five, six);
    // replaces the shardings of seed 6
    assert_int_equal(tsr_model_shard_random(k, d, 5, &batch, 1), TSR_OK);
    char *again = edits_of(k, d);
    assert_string_equal(five, again);
    assert_memory_equal(five, "--config r:4\n", 13);
    free(five);
    free(six);
    free(again);
    tsr_model_free(m);
    tsr_model_free(k);
}

// MatMul(x, x): a random sharding must fit both inputs, or there is none.
static void read_twice(void **state)
{
    struct bench *b = *state;
    const char *name = "y";
    size_t cut = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        tsr_model *m;
        tsr_config *c;
        assert_int_equal(tsr_model_new(b->session, "g", 11, &m), TSR_OK);
        assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
        tsr_graph *g = tsr_model_graph(m);
        tsr_value *x = tsr_graph_add_input(g, "x");
        assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, (tsr_dim[]){{8, ""}, {8, ""}}),
                         TSR_OK);
        tsr_value *other = tsr_graph_add_input(g, "other");
        assert_int_equal(tsr_value_set_type(other, TSR_FLOAT, 2, (tsr_dim[]){{8, ""}, {8, ""}}),
                         TSR_OK);
        static const char *const ops[] = {"Add", "MatMul", "Gemm", "Gemm"};
        size_t kind = seed % TSR_COUNT(ops);
        tsr_value *readings[3] = {kind == 3 ? other : x, x, x};
        tsr_node *n =
            tsr_graph_add_node(g, "", ops[kind], "node", readings, kind >= 2 ? 3 : 2, &name, 1);
        if (kind >= 2)
            assert_int_equal(tsr_node_set_int(n, "transA", (int64_t)(seed / 3 % 2)), TSR_OK);
        assert_int_equal(tsr_graph_add_output(g, tsr_node_output(n, 0)), TSR_OK);
        assert_int_equal(tsr_model_add_config(m, "r", 2 + (int64_t)(seed % 5), NULL, 0, &c),
                         TSR_OK);
        assert_int_equal(tsr_model_shard_random(m, c, seed, NULL, 0), TSR_OK);
        tsr_finding_clear(b->session);
        assert_int_equal(tsr_check(m, NULL), TSR_OK);
        assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 0);
        char *edits = edits_of(m, c);
        cut += strstr(edits, "--shard") != NULL;
        free(edits);
        tsr_model_free(m);
    }
    assert_true(cut > SEEDS / 3);
}

// Dimensions that are not known to be large enough are not sharded.
static void open_sizes(void **state)
{
    struct bench *b = *state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        tsr_config *c;
        tsr_model *m = net(b, 4, &c);
        assert_int_equal(tsr_model_shard_random(m, c, seed, NULL, 0), TSR_OK);
        char *edits = edits_of(m, c);
        for (const char *p = strstr(edits, "\"x\"={"); p; p = strstr(p + 1, "\"x\"={"))
            assert_int_equal(p[5], '1');
        free(edits);
        tsr_model_free(m);
    }
}

// Stages are part of the printed edits.
static void stages_are_edits(void **state)
{
    struct bench *b = *state;
    tsr_config *c;
    tsr_model *m = net(b, 2, &c);
    assert_int_equal(tsr_node_set_stage(tsr_graph_first(tsr_model_graph(m)), c, 1), TSR_OK);
    char *edits = edits_of(m, c);
    assert_string_equal(edits, "--config r:2\n--stage #0=1\n");
    free(edits);
    tsr_model_free(m);
}

static void refused(void **state)
{
    struct bench *b = *state;
    tsr_config *c;
    tsr_model *m = net(b, 1000000, &c);
    assert_int_equal(tsr_model_shard_random(m, c, 0, NULL, 0), TSR_INVALID);
    assert_true(found(b->session, "config-too-large"));
    tsr_model_free(m);
}

static void out_of_memory(void **state)
{
    struct bench *b = *state;
    tsr_config *c;
    for (uint64_t n = 1; n < 400; n += 7) {
        tsr_model *m = net(b, 3, &c);
        tsr__session_fault(b->session, 0, n, true);
        tsr_status st = tsr_model_shard_random(m, c, 1, &batch, 1);
        tsr__session_fault(b->session, 0, 0, false);
        assert_true(st == TSR_OK || st == TSR_NOMEM);
        tsr_model_free(m);
        tsr_finding_clear(b->session);
        if (st == TSR_OK)
            return;
    }
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        T(valid_and_cut), T(same_from_the_same_seed), T(read_twice),
        T(open_sizes),    T(stages_are_edits),        T(refused),
        T(out_of_memory),
    };
    return cmocka_run_group_tests_name("sharding shard_random", tests, NULL, NULL);
}
