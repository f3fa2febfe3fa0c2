// SPDX-License-Identifier: Apache-2.0
// test_expand.c - a node sharded along an axis of which it computes statistics (such as Softmax) is
// expanded into simpler nodes. Tests the resulting nodes, their shardings and stages, which nodes
// stay unexpanded, and failing allocations.
#include "common.h"

#include <stdio.h>

struct one {
    tsr_model *m;
    tsr_graph *g;
    tsr_config *c;
    tsr_node *node;
    tsr_value *x, *y;
};

// y = OP(x[, k]) between two Identity nodes; x is 6 x 8 floats, sharded as `cut`.
static struct one net_of(struct bench *b, const char *op, const char *cut, int64_t k)
{
    struct one t = {0};
    assert_int_equal(tsr_model_new(b->session, "g", 11, &t.m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(t.m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(t.m, "c", 3, NULL, 0, &t.c), TSR_OK);
    t.g = tsr_model_graph(t.m);
    tsr_value *in = tsr_graph_add_input(t.g, "in");
    set_shape(in, 2, I(6, 8));
    const char *names[] = {"x", "y", "out"};
    t.x =
        tsr_node_output(tsr_graph_add_node(t.g, "", "Identity", "first", &in, 1, &names[0], 1), 0);
    int64_t one = 1;
    tsr_value *both[] = {t.x,
                         k ? tsr_graph_add_initializer(t.g, "k", TSR_INT64, 1, &one, &k, 8) : NULL};
    t.node = tsr_graph_add_node(t.g, "", op, "node", both, k ? 2 : 1, &names[1], 1);
    t.y = tsr_node_output(t.node, 0);
    tsr_node *last = tsr_graph_add_node(t.g, "", "Identity", "last", &t.y, 1, &names[2], 1);
    assert_int_equal(tsr_graph_add_output(t.g, t.y), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t.g, tsr_node_output(last, 0)), TSR_OK);
    if (cut)
        assert_int_equal(tsr_node_shard_text(t.node, t.x, t.c, cut), TSR_OK);
    return t;
}

static const struct node_flow *find(const struct flow *f, const char *op)
{
    for (size_t i = 0; i < f->n_nodes; i++)
        if (strcmp(tsr_node_op(f->nodes[i].node), op) == 0)
            return &f->nodes[i];
    return NULL;
}

static void same(struct bench *b, const struct tile_layout *l, const char *text)
{
    struct str s = tsr__notation_print(&b->arena, l);
    assert_string_equal(s.p, text);
}

static void test_softmax_is_replaced(void **state)
{
    struct bench *b = *state;
    struct one t = net_of(b, "Softmax", "{1,2:0,1}", 0);
    assert_int_equal(tsr_node_set_stage(t.node, t.c, 4), TSR_OK);
    tsr_model *made;
    struct flow *f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
    assert_non_null(f);
    assert_ptr_equal(f->model, made);
    assert_int_equal(f->n_nodes, 2 + 5);
    assert_int_equal(f->before->n_nodes, 3); // the model itself is unchanged
    assert_int_equal(tsr_graph_node_count(t.g), 3);
    assert_null(find(f, "Softmax"));
    const struct node_flow *top = find(f, "ReduceMax"), *sum = find(f, "ReduceSum");
    assert_int_equal(top->n_groups, 1);
    assert_int_equal(top->groups[0].n, 2);
    assert_int_equal(top->combine, COMBINE_MAX);
    assert_int_equal(sum->combine, COMBINE_SUM);
    same(b, top->inputs[0], "{1,2:0,1}");
    same(b, find(f, "Exp")->outputs[0], "{1,2:0,1}"); // follows the sharding of its input
    const struct node_flow *end = find(f, "Div");
    same(b, end->outputs[0], "{1,2:0,1}");
    assert_string_equal(tsr_value_name(tsr_node_output(end->node, 0)), "y");
    assert_true(tsr_value_is_output(tsr_node_output(end->node, 0)));
    int64_t stage = -1;
    assert_true(tsr_node_config_stage(tsr_node_find_config(top->node, f->config), &stage));
    assert_int_equal(stage, 4);
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 0);
    assert_int_equal(tsr_finding_total(b->session, TSR_WARNING), 0);
    tsr_model_free(made);
    tsr_model_free(t.m);
}

// Without a sharding along the axis of its statistics, a node is not expanded.
static void test_what_is_not_asked_for_stays(void **state)
{
    struct bench *b = *state;
    static const char *const cuts[] = {"{2,1:0,1}", NULL};
    for (size_t i = 0; i < 2; i++) {
        struct one t = net_of(b, "Softmax", cuts[i], 0);
        // An input that arrives sharded along the axis is gathered.
        if (!cuts[i])
            assert_int_equal(tsr_node_shard_text(tsr_value_producer(t.x), t.x, t.c, "{1,2:0,1}"),
                             TSR_OK);
        tsr_model *made;
        struct flow *f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
        assert_non_null(f);
        assert_null(made);
        assert_null(f->before);
        same(b, find(f, "Softmax")->inputs[0], cuts[i] ? cuts[i] : "{1,1:0,1}");
        tsr_model_free(t.m);
    }
}

// A sharding of the output alone causes the expansion too.
static void test_output_asks(void **state)
{
    struct bench *b = *state;
    struct one t = net_of(b, "Softmax", NULL, 0);
    assert_int_equal(tsr_node_shard_text(t.node, t.y, t.c, "{1,3}"), TSR_OK);
    tsr_model *made;
    struct flow *f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
    assert_non_null(f);
    assert_non_null(made);
    same(b, find(f, "ReduceMax")->inputs[0], "{1,3:0,1,2}");
    same(b, find(f, "Div")->outputs[0], "{1,3:0,1,2}");
    tsr_model_free(made);
    tsr_model_free(t.m);
}

// 8 elements are split into 3 unequal or 2 equal parts; both are expanded.
static void test_parts_of_any_size(void **state)
{
    struct bench *b = *state;
    struct one t = net_of(b, "TopK", "{1,3:0,1,2}", 2);
    tsr_model *made;
    struct flow *f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
    assert_non_null(f);
    assert_non_null(made);
    assert_null(find(f, "TopK")->replicated);
    assert_int_equal(tsr_finding_total(b->session, TSR_WARNING), 0);
    tsr_model_free(made);
    tsr_model_free(t.m);
    t = net_of(b, "TopK", "{1,2:0,1}", 2);
    f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
    assert_non_null(f);
    assert_non_null(made);
    same(b, find(f, "TopK")->inputs[0], "{1,2,1:0,1}"); // 6 x 2 x 4
    assert_int_equal(tsr_finding_total(b->session, TSR_WARNING), 0);
    tsr_model_free(made);
    tsr_model_free(t.m);
}

// Of two such nodes in one model, one is expanded and the other is not.
static void test_one_of_two(void **state)
{
    struct bench *b = *state;
    struct one t = net_of(b, "Unique", "{1,3:0,1,2}", 0);
    const char *name = "soft";
    tsr_value *x = t.x;
    tsr_node *n = tsr_graph_add_node(t.g, "", "Softmax", "soft", &x, 1, &name, 1);
    assert_int_equal(tsr_graph_add_output(t.g, tsr_node_output(n, 0)), TSR_OK);
    assert_int_equal(tsr_node_shard_text(n, t.x, t.c, "{1,3:0,1,2}"), TSR_OK);
    tsr_model *made;
    struct flow *f = tsr__flow_expanded(&b->arena, t.m, t.c, &made);
    assert_non_null(f);
    assert_non_null(made);
    assert_null(find(f, "Softmax"));
    assert_non_null(find(f, "Unique")->replicated);
    assert_int_equal(f->before->n_nodes, 4);
    tsr_model_free(made);
    tsr_model_free(t.m);
}

// The sharding inferred for the node itself passes the check, and inferring again changes nothing.
static void test_infer_keeps_the_node(void **state)
{
    struct bench *b = *state;
    struct one t = net_of(b, "Softmax", "{1,2:0,1}", 0);
    assert_int_equal(
        tsr_infer(t.m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .config = "c"}),
        TSR_OK);
    const tsr_spec *p = tsr_node_sharding_of(t.node, t.y, 0);
    const char *text;
    assert_non_null(p);
    assert_int_equal(tsr_spec_text(p, &text), TSR_OK);
    assert_string_equal(text, "{1,2:0,1}");
    void *first, *second;
    size_t n, m;
    assert_int_equal(tsr_model_save_bytes(t.m, &first, &n), TSR_OK);
    assert_int_equal(
        tsr_infer(t.m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .config = "c"}),
        TSR_OK);
    assert_int_equal(tsr_model_save_bytes(t.m, &second, &m), TSR_OK);
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    tsr_bytes_free(b->session, first, n);
    tsr_bytes_free(b->session, second, m);
    assert_int_equal(tsr_finding_total(b->session, TSR_ERROR), 0);
    tsr_model_free(t.m);
}

// A random node without a seed runs on one device.
static void test_random_runs_once(void **state)
{
    struct bench *b = *state;
    for (int seeded = 0; seeded < 2; seeded++) {
        struct one t = net_of(b, "RandomNormalLike", NULL, 0);
        if (seeded)
            assert_int_equal(tsr_node_set_float(t.node, "seed", 1), TSR_OK);
        struct flow *f = tsr__flow_new(&b->arena, t.m, t.c);
        assert_non_null(f);
        assert_int_equal(find(f, "RandomNormalLike")->place.n_devices, seeded ? 3 : 1);
        tsr_model_free(t.m);
    }
}

static void test_every_failing_allocation(void **state)
{
    struct bench *b = *state;
    static const char *const ops[] = {"Softmax", "TopK"};
    for (size_t i = 0; i < 2; i++) {
        bool done = false;
        for (uint64_t n = 1; !done && n < 4000; n++) {
            struct one t = net_of(b, ops[i], "{1,2:0,1}", i ? 2 : 0);
            struct arena a;
            tsr_model *made = NULL;
            tsr__arena_init(&a, b->session);
            tsr__session_fault(b->session, 0, n, false);
            done = tsr__flow_expanded(&a, t.m, t.c, &made) != NULL && made;
            tsr__session_fault(b->session, 0, 0, false);
            tsr_model_free(made);
            tsr__arena_free(&a);
            tsr_model_free(t.m);
            tsr_finding_clear(b->session);
        }
        assert_true(done);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_softmax_is_replaced, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_not_asked_for_stays, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(test_output_asks, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_parts_of_any_size, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_one_of_two, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_infer_keeps_the_node, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_random_runs_once, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(test_every_failing_allocation, bench_setup, bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
