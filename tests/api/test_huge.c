// SPDX-License-Identifier: Apache-2.0
// test_huge.c - sizes near the largest 64-bit integer: planning, simulation, reports and
// partitioning must reject them or return a result without negative numbers. A sanitizer build
// finds overflows.
#include "tessera_cli.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N        (-7) // placeholder for the tested size
#define MAX_RANK 4

// One node: the shapes of its inputs (each ends with 0) and one attribute.
struct node_case {
    const char *op;
    int64_t shapes[3][MAX_RANK + 1];
    const char *attr;
    int64_t ints[2 * MAX_RANK];
    int n_ints; // 0: `attr` is one number, ints[0]
};

static const struct node_case cases[] = {
    {"Relu", {{N}}, NULL, {0}, 0},
    {"Relu", {{N, 3}}, NULL, {0}, 0},
    {"Relu", {{N, N}}, NULL, {0}, 0},
    {"Add", {{N, 4}, {4}}, NULL, {0}, 0},
    {"MatMul", {{N, 7}, {7, N}}, NULL, {0}, 0},
    {"MatMul", {{8, N}, {N, 8}}, NULL, {0}, 0},
    {"MatMul", {{2, N, N}, {N, N}}, NULL, {0}, 0},
    {"Gemm", {{N, 8}, {8, N}, {N}}, NULL, {0}, 0},
    {"Conv", {{1, N, 9, 9}, {N, N, 3, 3}}, NULL, {0}, 0},
    {"Conv", {{1, 3, N, N}, {8, 3, 3, 3}}, "pads", {1, 1, 1, 1}, 4},
    {"MaxPool", {{1, 3, N, 64}}, "kernel_shape", {2, 2}, 2},
    {"Concat", {{N, 4}, {N, 4}}, "axis", {0}, 0},
    {"Concat", {{8, N}, {8, N}}, "axis", {1}, 0},
    {"Split", {{N, 4}}, "axis", {0}, 0},
    {"Softmax", {{8, N}}, "axis", {1}, 0},
    {"Softmax", {{N, 8}}, "axis", {1}, 0},
    {"LayerNormalization", {{N, 8}, {8}, {8}}, NULL, {0}, 0},
    {"Transpose", {{N, 2}}, NULL, {0}, 0},
    {"Flatten", {{2, N}}, "axis", {1}, 0},
    {"Gather", {{N, 8}, {4}}, "axis", {0}, 0},
    {"CumSum", {{N, 8}, {1}}, NULL, {0}, 0},
    {"ArgMax", {{N, 8}}, "axis", {0}, 0},
};

static tsr_value *add_input(tsr_graph *graph, const struct node_case *one, int k, int64_t size)
{
    static const char *const names[] = {"a", "b", "c"};
    tsr_dim dims[MAX_RANK];
    int rank = 0;
    for (; rank < MAX_RANK && one->shapes[k][rank]; rank++)
        dims[rank] = (tsr_dim){one->shapes[k][rank] == N ? size : one->shapes[k][rank], ""};
    bool is_index = k == 1 && (strcmp(one->op, "Gather") == 0 || strcmp(one->op, "CumSum") == 0);
    tsr_value *value = tsr_graph_add_input(graph, names[k]);
    assert_non_null(value);
    assert_true(tsr_value_set_type(value, is_index ? TSR_INT64 : TSR_FLOAT, rank, dims) == TSR_OK);
    return value;
}

// Puts the node between two Relu nodes, so that resharding is possible.
static tsr_model *make(tsr_session *session, const struct node_case *one, int64_t size)
{
    static const char *const outs[] = {"y", "z"};
    static const char first[] = "r", last[] = "w";
    const char *first_name = first, *last_name = last;
    tsr_model *model = NULL;
    tsr_value *in[3];
    size_t n_in = 0;
    assert_true(tsr_model_new(session, "g", 11, &model) == TSR_OK);
    assert_true(tsr_model_set_opset(model, "", 18) == TSR_OK);
    tsr_graph *graph = tsr_model_graph(model);
    for (int k = 0; k < 3 && one->shapes[k][0]; k++)
        in[n_in++] = add_input(graph, one, k, size);
    tsr_node *relu = tsr_graph_add_node(graph, "", "Relu", "before", in, 1, &first_name, 1);
    assert_non_null(relu);
    in[0] = tsr_node_output(relu, 0);
    size_t n_out = strcmp(one->op, "Split") == 0 ? 2 : 1;
    tsr_node *node = tsr_graph_add_node(graph, "", one->op, "n", in, n_in, outs, n_out);
    assert_non_null(node);
    if (one->n_ints)
        assert_true(tsr_node_set_ints(node, one->attr, one->ints, (size_t)one->n_ints) == TSR_OK);
    else if (one->attr)
        assert_true(tsr_node_set_int(node, one->attr, one->ints[0]) == TSR_OK);
    if (n_out == 2)
        assert_true(tsr_node_set_int(node, "num_outputs", 2) == TSR_OK);
    tsr_value *y = tsr_node_output(node, 0);
    relu = tsr_graph_add_node(graph, "", "Relu", "after", &y, 1, &last_name, 1);
    assert_non_null(relu);
    assert_true(tsr_graph_add_output(graph, tsr_node_output(relu, 0)) == TSR_OK);
    return model;
}

static void check_plan(const tsr_plan_result *result)
{
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    const tsr_plan_facts *plan = &facts;
    assert_int_equal(tsr_plan_result_about(result, &facts), TSR_OK);
    assert_true(plan->cost >= 0 && plan->bound >= 0 && plan->one_device >= 0);
    assert_true(plan->milliseconds >= 0 && plan->needs_bytes >= 0);
    for (size_t i = 0; plan->memory && i < plan->devices; i++)
        assert_true(plan->memory[i] >= 0);
    for (size_t i = 0; plan->peak && i < plan->devices; i++)
        assert_true(plan->peak[i] >= 0);
}

// Simulates, reports and partitions the plan.
static void use_plan(tsr_model *model, const tsr_plan_result *plan, const char *folder)
{
    char path[512];
    tsr_simulation *simulation = NULL;
    tsr_simulate_options options = {.size = sizeof options};
    tsr_status st = tsr_simulate(model, &options, &simulation);
    if (st == TSR_OK)
        assert_true(tsr_simulation_read(simulation)->facts.seconds >= 0);
    snprintf(path, sizeof path, "%s/page.html", folder);
    tsr_report_options report = {.size = sizeof report, .plan = plan, .simulation = simulation};
    (void)tsr_report(model, &report, path);
    tsr_partition_options dry = {.size = sizeof dry, .dry_run = true};
    snprintf(path, sizeof path, "%s/parts", folder);
    (void)tsr_partition(model, path, &dry, NULL);
    tsr_simulation_free(simulation);
}

static void try_case(const struct node_case *one, int64_t size, int devices, int stages,
                     const char *folder)
{
    tsr_session *session = tsr_session_new(NULL);
    assert_non_null(session);
    tsr_model *model = make(session, one, size);
    tsr_plan_options options = {.size = sizeof options, .devices = devices, .stages = stages};
    tsr_plan_result *plan = NULL;
    tsr_status st = tsr_plan(model, &options, &plan);
    if (plan)
        check_plan(plan);
    if (st == TSR_OK)
        use_plan(model, plan, folder);
    tsr_plan_result_free(plan);
    tsr_model_free(model);
    tsr_session_free(session);
}

static void huge_sizes(void **state)
{
    static const int64_t sizes[] = {INT64_C(1) << 40, (INT64_C(1) << 62) + 3, INT64_MAX};
    char folder[] = "/tmp/tessera-huge-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            try_case(&cases[i], sizes[k], 2, 0, folder);
            try_case(&cases[i], sizes[k], 3, 0, folder);
            try_case(&cases[i], sizes[k], 2, 2, folder);
        }
    char page[64];
    snprintf(page, sizeof page, "%s/page.html", folder);
    (void)unlink(page);
    assert_true(rmdir(folder) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(huge_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
