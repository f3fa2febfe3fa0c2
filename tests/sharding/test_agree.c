// SPDX-License-Identifier: Apache-2.0
// test_agree.c - the checker on single nodes: which shardings of the inputs are compatible for the
// operator.
#include "common.h"

struct agree_case {
    const char *op;
    int64_t a[2], b[2];       // shapes
    const char *left, *right; // shardings; NULL: none
    const char *hint;         // hint of the expected error; NULL: compatible
};

static const struct agree_case cases[] = {
    // A [8, 4] times B [4, 6]
    {"MatMul", {8, 4}, {4, 6}, "{1,2:0,1}", "{2,1:0,1}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{1,2:0,1}", NULL, NULL},
    {"MatMul", {8, 4}, {4, 6}, "{2,1:(0,1),(2,3)}", "{1,2:(0,2),(1,3)}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{1,2:0,1}", "{2,1:1,0}", "to match 'A', shard it as {2,1:0,1}"},
    {"MatMul", {8, 4}, {4, 6}, "{1,2:0,1}", "{1:0,1}", "to match 'A', shard it as {2,1:0,1}"},
    {"MatMul", {8, 4}, {4, 6}, "{1,2:0,1}", "{4,1:0,1,2,3}", "to match 'A', shard it as {2,1:0,1}"},
    {"MatMul", {8, 4}, {4, 6}, "{2,1:0,1}", "{1,2:2,3}", "to match 'A', shard it as {1,1:0,1}"},
    {"MatMul",
     {8, 4},
     {4, 6},
     "{1,2*2/2:0,1}",
     "{2,1:0,1}",
     "to match 'A', shard it as {2*2/2,1:0,1}"},
    // A [8, 6] plus B [8, 6]
    {"Add", {8, 6}, {8, 6}, "{2,1:0,1}", "{2,1:0,1}", NULL},
    {"Add", {8, 6}, {8, 6}, "{2,1:0,1}", "{2,1:1,0}", "to match 'A', shard it as {2,1:0,1}"},
    {"Add", {8, 6}, {8, 6}, "{2,1:0,1}", "{1,2:0,1}", "to match 'A', shard it as {2,1:0,1}"},
    // two broadcast axes
    {"Add", {8, 1}, {1, 6}, "{2,1:(0,1),(2,3)}", "{1,2:(0,2),(1,3)}", NULL},
    {"Add",
     {8, 1},
     {1, 6},
     "{2,1:(0,1),(2,3)}",
     "{1,2:(0,1),(2,3)}",
     "to match 'A', shard it as {1,1:0,1,2,3}"},
    {"Add", {8, 1}, {1, 6}, "{2,1:0,1}", "{1,2:2,3}", "to match 'A', shard it as {1,1:0,1}"},
    // one input is sharded, the other one replicated on the same devices
    {"Add", {8, 6}, {8, 6}, "{2,1:0,1}", "{1:0,1}", NULL},
    {"Add", {8, 6}, {8, 6}, "{2,1:0,1}", "{1:0}", "to match 'A', shard it as {2,1:0,1}"},
    // more shards than elements, as if there were more elements
    {"Add", {1, 6}, {1, 6}, "{2,1:0,1}", "{2,1:0,1}", NULL},
    {"Add", {1, 6}, {1, 6}, "{2,1:0,1}", "{2,1:2,3}", "to match 'A', shard it as {2,1:0,1}"},
    {"Add", {0, 6}, {0, 6}, "{2,1:0,1}", "{2,1:2,3}", "to match 'A', shard it as {2,1:0,1}"},
    {"Add", {1, 6}, {8, 6}, "{2,1:0,1}", "{2,1:0,1}", NULL},
    {"MatMul", {8, 1}, {1, 6}, "{1,2:0,1}", "{2,1:1,0}", "to match 'A', shard it as {2,1:0,1}"},
    // a device that owns several shards: each pair of shards has a common device
    {"Add", {8, 1}, {1, 6}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL},
    {"Add", {8, 6}, {8, 6}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL},
    {"Add", {8, 6}, {8, 6}, "{4,1:0,1,0,1}", "{4,1:0,1,0,1}", NULL},
    // adjacent shards with the same owners
    {"MatMul", {8, 4}, {4, 6}, "{1,4:0,0,1,1}", "{2,1:0,1}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{1,2:(0,1),(0,1)}", "{2,1:0,1}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{2,2:0,1,1,0}", "{2,1:(0,1),(0,1)}", NULL},
    {"MatMul", {8, 4}, {4, 6}, "{1,4:0,1,0,1}", "{4,1:0,1,0,1}", NULL},
    // Add: no device has both second shards. MatMul: one has, but K is reduced, so A and B must
    // shard it equally.
    {"Add",
     {8, 6},
     {8, 6},
     "{2,1:(0,1),2}",
     "{1,2:(0,2),1}",
     "to match 'A', shard it as {2,1:(0,1),2}"},
    {"MatMul",
     {8, 4},
     {4, 6},
     "{1,2:(0,1),(0,1)}",
     "{2,1:(0,1),2}",
     "to match 'A', shard it as {1,1:0,1}"},
};

// By the formalism of the proposal, an input without a sharding is a model input, and unsharded.
// false: the check must report an error.
static const struct {
    struct agree_case k;
    bool agrees;
} formal_cases[] = {
    {{"Add", {4, 4}, {4, 4}, "{1:0}", "{1:1}", NULL}, false},
    {{"MatMul", {4, 4}, {4, 4}, "{1:0,2}", "{1:1,3}", NULL}, false},
    {{"Sum", {4, 4}, {4, 4}, "{1:0}", "{1:1}", NULL}, false},
    {{"NoSuchOperator", {4, 4}, {4, 4}, "{1:0}", "{1:1}", NULL}, false},
    {{"Add", {4, 4}, {4, 4}, "{1:0,1}", "{1:1,2}", NULL}, true},
    {{"Add", {4, 4}, {4, 4}, "{1:0}", NULL, NULL}, true},
    {{"Add", {4, 4}, {4, 4}, "{2,1:0,1}", NULL, NULL}, false},
    {{"Add", {4, 4}, {1, 4}, "{2,1:0,1}", NULL, NULL}, true},
    // axes that are not broadcast must be sharded alike, even if every pair of shards has a device
    {{"Add", {4, 4}, {4, 4}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL}, false},
    {{"Add", {4, 4}, {4, 4}, "{2,1:(0,1),(2,3)}", "{2,2:0,1,2,3}", NULL}, false},
    {{"Add", {4, 4}, {1, 4}, "{2,1:(0,1),(2,3)}", "{1,2:(0,2),(1,3)}", NULL}, false},
    {{"Add", {4, 4}, {1, 4}, "{2,2:0,1,2,3}", "{1,2:(0,2),(1,3)}", NULL}, true},
    {{"Add", {4, 1}, {1, 4}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL}, true},
    {{"Add", {4, 4}, {4, 4}, "{2,1:(0,1),2}", "{2,1:0,(1,2)}", NULL}, true},
    {{"Add", {4, 4}, {4, 4}, "{4,1:0,0,1,1}", "{2,1:0,1}", NULL}, false},
    {{"Add", {4, 4}, {4, 4}, "{2,1:(0,1),(0,1)}", "{2,1:0,1}", NULL}, true},
    {{"MatMul", {4, 4}, {4, 4}, "{1,2:(0,1),(0,1)}", "{2,1:0,1}", NULL}, true},
    {{"MatMul", {4, 4}, {4, 4}, "{1,2:(0,1),(0,1)}", "{1:0,1}", NULL}, false},
    // more shards than elements; an axis of size 1 that is broadcast must be replicated
    {{"Add", {1, 4}, {1, 4}, "{2,1:0,1}", "{2,1:0,1}", NULL}, true},
    {{"Add", {1, 4}, {4, 4}, "{2,1:0,1}", "{2,1:0,1}", NULL}, false},
    {{"MatMul", {4, 1}, {1, 4}, "{1,2:0,1}", "{2,1:0,1}", NULL}, true},
    {{"Add", {0, 4}, {0, 4}, "{2,1:0,1}", NULL, NULL}, false},
    {{"MatMul", {4, 4}, {4, 4}, "{2,1:(0,1),2}", "{1,2:(0,2),(1,2)}", NULL}, true},
};

static tsr_model *make(tsr_session *s, const struct agree_case *k)
{
    tsr_model *m;
    tsr_config *c;
    assert_int_equal(tsr_model_new(s, "g", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "c", 4, NULL, 0, &c), TSR_OK);
    tsr_graph *g = tsr_model_graph(m);
    tsr_value *in[] = {tsr_graph_add_input(g, "A"), tsr_graph_add_input(g, "B")};
    const char *out[] = {"C"};
    set_shape(in[0], 2, k->a);
    set_shape(in[1], 2, k->b);
    tsr_node *n = tsr_graph_add_node(g, "", k->op, "n", in, 2, out, 1);
    assert_int_equal(tsr_graph_add_output(g, tsr_node_output(n, 0)), TSR_OK);
    if (k->left)
        assert_int_equal(tsr_node_shard_text(n, in[0], c, k->left), TSR_OK);
    if (k->right)
        assert_int_equal(tsr_node_shard_text(n, in[1], c, k->right), TSR_OK);
    return m;
}

static void check_case(const struct agree_case *k)
{
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = make(s, k);
    assert_int_equal(tsr_check(m, NULL), TSR_OK);
    if (!k->hint) {
        assert_int_equal(tsr_finding_total(s, TSR_ERROR), 0);
    } else {
        assert_int_equal(tsr_finding_total(s, TSR_ERROR), 1);
        size_t at = 0; // skip warnings about devices that own several shards
        while (tsr_finding_value(s, at).severity != TSR_ERROR)
            at++;
        tsr_finding f = tsr_finding_value(s, at);
        assert_string_equal(f.code, "spec-disagree");
        assert_string_equal(f.node, "n");
        assert_string_equal(f.value, "B");
        assert_string_equal(f.hint, k->hint);
    }
    tsr_model_free(m);
    tsr_session_free(s);
}

static void all_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i]);
}

static void formalism(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof formal_cases / sizeof *formal_cases; i++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_model *m = make(s, &formal_cases[i].k);
        assert_int_equal(tsr_check(m, NULL), TSR_OK);
        assert_int_equal(tsr_finding_total(s, TSR_ERROR), 0);
        assert_int_equal(tsr_check(m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                           .formalism = true}),
                         TSR_OK);
        assert_int_equal(tsr_finding_total(s, TSR_ERROR), !formal_cases[i].agrees);
        tsr_model_free(m);
        tsr_session_free(s);
    }
}

// Relu p and q produce a and b; the Add of both has no sharding of its own.
static void inherited_shardings(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    struct agree_case k = {"Relu", {4, 4}, {4, 4}, NULL, NULL, NULL};
    tsr_model *m = make(s, &k);
    tsr_graph *g = tsr_model_graph(m);
    tsr_config *c = tsr_model_config(m, 0);
    tsr_value *x = tsr_graph_input(g, 0), *z = tsr_graph_input(g, 1);
    tsr_node *p = tsr_graph_add_node(g, "", "Relu", "p", &x, 1, (const char *[]){"a"}, 1);
    tsr_node *q = tsr_graph_add_node(g, "", "Relu", "q", &z, 1, (const char *[]){"b"}, 1);
    tsr_value *in[] = {tsr_node_output(p, 0), tsr_node_output(q, 0)};
    tsr_node *sum = tsr_graph_add_node(g, "", "Add", "sum", in, 2, (const char *[]){"y"}, 1);
    assert_non_null(sum);
    assert_int_equal(tsr_node_shard_text(p, in[0], c, "{2,1:0,1}"), TSR_OK);
    assert_int_equal(tsr_node_shard_text(q, in[1], c, "{1,2:0,1}"), TSR_OK);
    assert_int_equal(
        tsr_check(m, &(tsr_check_options){.size = sizeof(tsr_check_options), .formalism = true}),
        TSR_OK);
    assert_int_equal(tsr_finding_total(s, TSR_ERROR), 1);
    assert_string_equal(tsr_finding_value(s, 0).node, "sum");
    assert_int_equal(
        tsr_infer(m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .formalism = true}),
        TSR_INVALID);
    assert_null(tsr_node_find_config(sum, c)); // no inferred sharding was written
    assert_int_equal(tsr_node_shard_text(q, in[1], c, "{2,1:0,1}"), TSR_OK);
    assert_int_equal(
        tsr_infer(m, &(tsr_infer_options){.size = sizeof(tsr_infer_options), .formalism = true}),
        TSR_OK);
    assert_non_null(tsr_node_find_config(sum, c));
    tsr_model_free(m);
    tsr_session_free(s);
}

// The result of a Constant without a sharding is compatible with any other input, like an
// initializer.
static void constants_match(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    struct agree_case k = {"Relu", {4, 4}, {4, 4}, NULL, NULL, NULL};
    tsr_model *m = make(s, &k);
    tsr_graph *g = tsr_model_graph(m);
    tsr_config *c = tsr_model_config(m, 0);
    tsr_node *made = tsr_graph_add_node(g, "", "Constant", "k", NULL, 0, (const char *[]){"b"}, 1);
    tsr_value *in[] = {tsr_graph_input(g, 0), tsr_node_output(made, 0)};
    set_shape(in[1], 2, (int64_t[]){4, 4});
    tsr_node *sum = tsr_graph_add_node(g, "", "Add", "sum", in, 2, (const char *[]){"y"}, 1);
    assert_int_equal(tsr_node_shard_text(sum, in[0], c, "{2,1:0,1}"), TSR_OK);
    assert_int_equal(
        tsr_check(m, &(tsr_check_options){.size = sizeof(tsr_check_options), .formalism = true}),
        TSR_OK);
    assert_int_equal(tsr_finding_total(s, TSR_ERROR), 0);
    assert_int_equal(tsr_node_shard_text(made, in[1], c, "{1,2:0,1}"), TSR_OK);
    assert_int_equal(
        tsr_check(m, &(tsr_check_options){.size = sizeof(tsr_check_options), .formalism = true}),
        TSR_OK);
    assert_int_equal(tsr_finding_total(s, TSR_ERROR), 1);
    tsr_model_free(m);
    tsr_session_free(s);
}

// A sharding that the operator does not support is valid, but must give exactly one warning.
static void not_cut_is_a_warning(void **state)
{
    (void)state;
    const struct agree_case k = {"NoSuchOperator", {8, 6}, {8, 6}, "{2,1:0,1}", NULL, NULL};
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = make(s, &k);
    assert_int_equal(tsr_check(m, NULL), TSR_OK);
    assert_int_equal(tsr_finding_total(s, TSR_ERROR), 0);
    assert_int_equal(tsr_finding_total(s, TSR_WARNING), 1);
    assert_string_equal(tsr_finding_value(s, 0).code, "not-cut-here");
    tsr_model_free(m);
    tsr_session_free(s);
}

// Each allocation fails once: there must be an error status, a diagnostic, and no leak.
static void memory_fails(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_model *m = make(s, &cases[3]);
        tsr__session_fault(s, 0, n, true);
        tsr_status status = tsr_check(m, NULL);
        tsr__session_fault(s, 0, 0, false);
        tsr_model_free(m);
        tsr_session_free(s);
        if (status == TSR_OK)
            return;
        assert_int_equal(status, TSR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_cases),           cmocka_unit_test(formalism),
        cmocka_unit_test(inherited_shardings), cmocka_unit_test(not_cut_is_a_warning),
        cmocka_unit_test(constants_match),     cmocka_unit_test(memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
