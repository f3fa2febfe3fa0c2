// SPDX-License-Identifier: Apache-2.0
// test_stages.c - the devices that nodes run on because of their pipeline stages.
#include "common.h"

#include <stdio.h>
#include <string.h>

struct chain {
    struct bench *b;
    tsr_model *m;
    tsr_graph *g;
    tsr_config *c;
    tsr_value *last;
    tsr_node *nodes[16];
    int n;
};

static struct chain chain_new(void **state, int64_t devices)
{
    struct chain t = {.b = *state};
    assert_int_equal(tsr_model_new(t.b->session, "g", 11, &t.m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t.m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(t.m, "c", devices, NULL, 0, &t.c), TSR_OK);
    t.g = tsr_model_graph(t.m);
    t.last = tsr_graph_add_input(t.g, "x");
    set_shape(t.last, 2, I(8, 8));
    return t;
}

// Appends a Relu; stage -1: none; text NULL: no sharding of its output.
static void relu(struct chain *t, int64_t stage, const char *text)
{
    char name[16];
    snprintf(name, sizeof name, "v%d", t->n);
    const char *out = name;
    tsr_node *n = tsr_graph_add_node(t->g, "", "Relu", name, &t->last, 1, &out, 1);
    assert_non_null(n);
    t->last = tsr_node_output(n, 0);
    set_shape(t->last, 2, I(8, 8));
    if (stage >= 0)
        assert_int_equal(tsr_node_set_stage(n, t->c, stage), TSR_OK);
    if (text)
        assert_int_equal(tsr_node_shard_text(n, t->last, t->c, text), TSR_OK);
    t->nodes[t->n++] = n;
}

// Asserts the devices of each node, as text: "0 | 1 2".
static void expect(struct chain *t, const char *want)
{
    char got[256] = "";
    size_t at = 0;
    assert_int_equal(tsr_graph_add_output(t->g, t->last), TSR_OK);
    const struct flow *f = tsr__flow_new(&t->b->arena, t->m, t->c);
    assert_non_null(f);
    for (size_t i = 0; i < f->n_nodes; i++) {
        const struct placement *p = &f->nodes[i].place;
        at += (size_t)snprintf(got + at, sizeof got - at, "%s", i ? "|" : "");
        for (size_t k = 0; k < p->n_devices; k++)
            at += (size_t)snprintf(got + at, sizeof got - at, "%s%lld", k ? " " : "",
                                   (long long)p->devices[k]);
    }
    assert_string_equal(got, want);
    tsr_model_free(t->m);
}

// With as many devices as stages, each stage gets one.
static void as_many_devices_as_stages(void **state)
{
    struct chain t = chain_new(state, 3);
    relu(&t, 4, NULL);
    relu(&t, 7, NULL);
    relu(&t, 7, NULL);
    relu(&t, 9, NULL);
    expect(&t, "0|1|1|2");
}

// With more devices than stages, each stage gets about the same number.
static void equal_runs_of_devices(void **state)
{
    struct chain t = chain_new(state, 5);
    relu(&t, 0, NULL);
    relu(&t, 1, NULL);
    expect(&t, "0 1|2 3 4");
}

static void more_stages_than_devices(void **state)
{
    struct chain t = chain_new(state, 2);
    relu(&t, 0, NULL);
    relu(&t, 1, NULL);
    relu(&t, 2, NULL);
    relu(&t, 3, NULL);
    expect(&t, "0|1|1|1"); // stages beyond the number of devices share the last one
}

// A sharding inside a stage determines the devices of the complete stage.
static void specs_name_the_devices(void **state)
{
    struct chain t = chain_new(state, 4);
    relu(&t, 0, "{1:2}");
    relu(&t, 0, NULL);
    relu(&t, 1, NULL);
    relu(&t, 1, "{2,1:0,3}");
    relu(&t, 1, NULL);
    expect(&t, "2|2|0 3|0 3|0 3");
}

static void nodes_without_a_stage_follow(void **state)
{
    struct chain t = chain_new(state, 2);
    relu(&t, -1, NULL); // depends on no stage: all devices
    relu(&t, 0, NULL);
    relu(&t, -1, NULL);
    relu(&t, 1, NULL);
    relu(&t, -1, NULL);
    relu(&t, -1, "{1:0,1}"); // its own sharding has priority
    expect(&t, "0 1|0|0|1|1|0 1");
}

// If the input is on some devices of the stage, the node must still run on all of them.
static void stages_that_share_a_device(void **state)
{
    struct chain t = chain_new(state, 3);
    relu(&t, 0, "{1:0,1}");
    relu(&t, 1, NULL);
    relu(&t, 1, "{1:1,2}");
    expect(&t, "0 1|1 2|1 2");
}

static void moves_between_stages_are_no_remark(void **state)
{
    struct chain t = chain_new(state, 2);
    size_t before = tsr_finding_count(t.b->session);
    relu(&t, 0, NULL);
    relu(&t, 1, NULL);
    expect(&t, "0|1");
    assert_int_equal(tsr_finding_count(t.b->session), before);
}

static void too_many_stages(void **state)
{
    struct chain t = chain_new(state, 4096);
    for (int i = 0; i < 4200; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        const char *out = name;
        tsr_node *n = tsr_graph_add_node(t.g, "", "Relu", name, &t.last, 1, &out, 1);
        assert_non_null(n);
        assert_int_equal(tsr_node_set_stage(n, t.c, i), TSR_OK);
        t.last = tsr_node_output(n, 0);
    }
    assert_null(tsr__flow_new(&t.b->arena, t.m, t.c));
    size_t n = tsr_finding_count(t.b->session);
    assert_string_equal(tsr_finding_value(t.b->session, n - 1).code, "stages-many");
    tsr_model_free(t.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(as_many_devices_as_stages, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(equal_runs_of_devices, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(more_stages_than_devices, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(specs_name_the_devices, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(nodes_without_a_stage_follow, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(stages_that_share_a_device, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(moves_between_stages_are_no_remark, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(too_many_stages, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
