// SPDX-License-Identifier: Apache-2.0
// test_remarks.c - notes of the checker on valid annotations: duplicate work, values that must be
// resharded, outputs that cannot be sharded.
#include "common.h"

#include <stdio.h>

static size_t findings(const struct bench *b, const char *code)
{
    size_t n = 0;
    for (size_t i = 0; i < tsr_finding_count(b->session); i++)
        n += strcmp(tsr_finding_value(b->session, i).code, code) == 0;
    return n;
}

static void check(struct bench *b, tsr_model *m, const char *code, size_t n)
{
    tsr_finding_clear(b->session);
    assert_int_equal(tsr_check(m, NULL), TSR_OK);
    assert_int_equal(findings(b, code), n);
    assert_int_equal(tsr_finding_count(b->session), n);
}

static tsr_value *after(struct small *s, const char *op, tsr_value *v, const char *name)
{
    tsr_value *out =
        tsr_node_output(tsr_graph_add_node(s->graph, "", op, name, &v, 1, &name, 1), 0);
    set_shape(out, 2, I(6, 4));
    return out;
}

static void shard(struct small *s, const tsr_value *at, tsr_value *v, const char *text)
{
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(at), v, s->config, text), TSR_OK);
}

// Devices that would compute the same shard twice give a note.
static void test_work_twice(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(6, 4));
    check(b, s.model, "work-twice", 0);
    shard(&s, s.y, s.x, "{2,1:(0,1),(2,3)}");
    check(b, s.model, "work-twice", 1);
    assert_int_equal(tsr_finding_value(b->session, 0).severity, TSR_NOTE);
    shard(&s, s.y, s.x, "{2,2:0,1,2,3}");
    check(b, s.model, "work-twice", 0);
    shard(&s, s.y, s.x, "{1,1:0,1}"); // no sharding is intended, so no note
    check(b, s.model, "work-twice", 0);
    tsr_model_free(s.model);
}

// A resharding that no annotation requests gives a note.
static void test_moves(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(6, 4));
    tsr_value *z = after(&s, "Relu", s.y, "z");
    shard(&s, s.y, s.x, "{4,1:0,1,2,3}");
    check(b, s.model, "reshard-implied", 0);
    shard(&s, z, z, "{1,4:0,1,2,3}");
    check(b, s.model, "reshard-implied", 1);
    assert_int_equal(tsr_finding_value(b->session, 0).severity, TSR_NOTE);
    shard(&s, z, s.y, "{1,4:0,1,2,3}"); // explicit, so no note
    check(b, s.model, "reshard-implied", 0);
    tsr_model_free(s.model);
}

static void test_output_that_cannot_be_cut(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(6, 4));
    tsr_value *z = after(&s, "Frob", s.y, "z");
    shard(&s, z, z, "{2,1:0,1}");
    check(b, s.model, "not-cut-here", 1);
    tsr_finding_clear(b->session);
    shard(&s, z, s.y, "{2,1:2,3}"); // on other devices
    check(b, s.model, "not-cut-here", 1);
    shard(&s, z, s.y, "{2,1:0,1}"); // all its tensors have shardings: accepted as given
    tsr_finding_clear(b->session);
    assert_int_equal(tsr_check(s.model, NULL), TSR_OK);
    assert_int_equal(findings(b, "not-cut-here"), 0);
    tsr_value *scan =
        after(&s, "CumSum", z, "t"); // rule without sharding: reported once, not by both checks
    shard(&s, scan, z, "{2,1:0,1}");
    shard(&s, scan, scan, "{2,1:0,1}");
    assert_int_equal(tsr_check(s.model, NULL), TSR_OK);
    assert_int_equal(findings(b, "not-cut-here"), 1);
    tsr_model_free(s.model);
}

// Unsorted nodes give one warning, and no note about the flow.
static void test_order_of_nodes(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(6, 4));
    tsr_value *z = after(&s, "Relu", s.y, "z");
    shard(&s, s.y, s.x, "{4,1:0,1,2,3}");
    assert_int_equal(tsr_node_move_before(tsr_value_producer(z), s.node), TSR_OK);
    check(b, s.model, "nodes-unsorted", 1);
    tsr_model_free(s.model);
}

// The first configuration is checked however large the model is, others only up to a limit.
static void test_large_models(void **state)
{
    struct bench *b = *state;
    struct small s = small_new(b, 2, I(6, 4));
    tsr_value *v = s.y;
    shard(&s, s.y, s.x, "{2,1:(0,1),(2,3)}");
    for (int i = 1; i <= 20000; i++) {
        char name[16];
        snprintf(name, sizeof(name), "n%d", i);
        v = after(&s, "Relu", v, name);
    }
    check(b, s.model, "work-twice", 1);
    assert_int_equal(tsr_model_add_config(s.model, "again", 4, NULL, 0, &s.config), TSR_OK);
    shard(&s, s.y, s.x, "{2,1:(0,1),(2,3)}");
    tsr_finding_clear(b->session);
    assert_int_equal(tsr_check(s.model, NULL), TSR_OK);
    assert_int_equal(findings(b, "work-twice"), 1);
    assert_int_equal(findings(b, "flow-unchecked"), 1);
    tsr_model_free(s.model);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        T(test_work_twice),     T(test_moves),        T(test_output_that_cannot_be_cut),
        T(test_order_of_nodes), T(test_large_models),
    };
    return cmocka_run_group_tests_name("remarks", tests, NULL, NULL);
}
