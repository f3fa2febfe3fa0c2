// SPDX-License-Identifier: Apache-2.0
// test_results.c - reads results through the installed headers: reshardings, candidates of a node,
// the nodes of a plan, saved plans, and nodes by their path.
#include "tessera_graph.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

struct net {
    tsr_session *session;
    tsr_model *model;
};

static tsr_value *add(tsr_graph *graph, const char *op, const char *name, tsr_value *const *inputs,
                      size_t n)
{
    tsr_node *node = tsr_graph_add_node(graph, "", op, name, inputs, n, &name, 1);
    assert_non_null(node);
    return tsr_node_output(node, 0);
}

// down = MatMul(act, w2), act = Relu(up), up = MatMul(x, w1): values are named like their nodes.
static int net_new(void **state)
{
    static const float zeros[256 * 256];
    const int64_t dims[] = {256, 256};
    const tsr_dim x_dims[] = {{64, ""}, {256, ""}};
    struct net *net = calloc(1, sizeof *net);
    net->session = tsr_session_new(NULL);
    assert_int_equal(tsr_model_new(net->session, "net", 11, &net->model), TSR_OK);
    assert_int_equal(tsr_model_set_opset(net->model, "", 18), TSR_OK);
    tsr_graph *graph = tsr_model_graph(net->model);
    tsr_value *x = tsr_graph_add_input(graph, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, x_dims), TSR_OK);
    tsr_value *w1 = tsr_graph_add_initializer(graph, "w1", TSR_FLOAT, 2, dims, zeros, sizeof zeros);
    tsr_value *w2 = tsr_graph_add_initializer(graph, "w2", TSR_FLOAT, 2, dims, zeros, sizeof zeros);
    tsr_value *h = add(graph, "MatMul", "up", (tsr_value *[]){x, w1}, 2);
    tsr_value *r = add(graph, "Relu", "act", &h, 1);
    tsr_value *y = add(graph, "MatMul", "down", (tsr_value *[]){r, w2}, 2);
    assert_int_equal(tsr_graph_add_output(graph, y), TSR_OK);
    *state = net;
    return 0;
}

static int net_free(void **state)
{
    struct net *net = *state;
    tsr_model_free(net->model);
    tsr_session_free(net->session);
    free(net);
    return 0;
}

// Shards the hidden dimension over two devices.
static void shard_hidden(struct net *net)
{
    tsr_config *config = NULL;
    assert_int_equal(tsr_model_add_config(net->model, "tp2", 2, NULL, 0, &config), TSR_OK);
    tsr_node *up = tsr_model_find_node(net->model, "up");
    tsr_node *down = tsr_model_find_node(net->model, "down");
    assert_int_equal(tsr_node_shard_text(up, tsr_node_input(up, 1), config, "{1,2}"), TSR_OK);
    assert_int_equal(tsr_node_shard_text(down, tsr_node_input(down, 1), config, "{2,1}"), TSR_OK);
    assert_int_equal(tsr_node_set_stage(up, config, 0), TSR_OK);
}

static void reshardings_are_read_by_step(void **state)
{
    struct net *net = *state;
    const int64_t shape[] = {8, 8};
    tsr_reshard_options options = TSR_RESHARD_OPTIONS_INIT;
    tsr_resharding *first = NULL, *second = NULL;
    assert_int_equal(tsr_topology_parse(net->session, "2", &options.topology), TSR_OK);
    assert_int_equal(tsr_resharding_new(net->session, "{2,1}", "{1,2}", 2, shape, &options, &first),
                     TSR_OK);
    options.pending = "sum";
    assert_int_equal(tsr_resharding_new(net->session, "R,R", "R,S0", 2, shape, &options, &second),
                     TSR_OK);
    tsr_step step = TSR_STEP_INIT;
    assert_int_equal(tsr_resharding_count(first), 1);
    assert_int_equal(tsr_resharding_step(first, 0, &step), TSR_OK);
    assert_string_equal(step.op, "all-to-all");
    assert_string_equal(step.sharding, "{1,2:0,1}");
    assert_int_equal(step.axis, 0);
    assert_int_equal(step.to_axis, 1);
    assert_int_equal(step.received, 64);
    assert_int_equal(step.total, 128);
    assert_int_equal(step.n_groups, 1);
    assert_int_equal(step.groups[0].n, 2);
    assert_int_equal(step.groups[0].devices[1], 1);
    assert_true(tsr_resharding_time(first) > 0);
    assert_int_equal(tsr_resharding_step(second, 0, &step), TSR_OK);
    assert_string_equal(step.op, "reduce-scatter");
    assert_int_equal(tsr_resharding_step(second, 1, &step), TSR_INVALID);
    step.size = sizeof(size_t);
    assert_int_equal(tsr_resharding_step(second, 0, &step), TSR_INVALID);
    tsr_resharding_free(first);
    tsr_resharding_free(second);
    options.size = 8;
    first = NULL;
    assert_int_equal(tsr_resharding_new(net->session, "{2,1}", "{1,2}", 2, shape, &options, &first),
                     TSR_INVALID);
    assert_int_equal(tsr_resharding_new(NULL, "{2,1}", "{1,2}", 2, shape, NULL, &first),
                     TSR_INVALID);
    assert_null(first);
    tsr_topology_free(options.topology);
}

static void candidates_are_read_by_index(void **state)
{
    struct net *net = *state;
    tsr_plan_options options = TSR_PLAN_OPTIONS_INIT;
    tsr_plan_facts facts = TSR_PLAN_FACTS_INIT;
    tsr_plan_choice choice = TSR_PLAN_CHOICE_INIT;
    tsr_plan_result *result = NULL;
    size_t reduced = 0, chosen = 0;
    options.devices = 2;
    options.explain = "down";
    assert_int_equal(tsr_plan(net->model, &options, &result), TSR_OK);
    assert_int_equal(tsr_plan_result_about(result, &facts), TSR_OK);
    assert_true(facts.n_choices >= 3);
    for (size_t i = 0; i < facts.n_choices; i++) {
        assert_int_equal(tsr_plan_result_choice(result, i, &choice), TSR_OK);
        assert_true(choice.name[0] && choice.n_inputs == 2 && choice.n_outputs == 1);
        assert_string_equal(choice.inputs[1].value, "w2");
        assert_string_equal(choice.outputs[0].value, "down");
        reduced += choice.reduction != NULL;
        chosen += choice.chosen;
    }
    assert_int_equal(chosen, 1);
    assert_true(reduced > 0); // k over two devices
    assert_int_equal(tsr_plan_result_choice(result, facts.n_choices, &choice), TSR_INVALID);
    choice.size = 0;
    assert_int_equal(tsr_plan_result_choice(result, 0, &choice), TSR_INVALID);
    tsr_plan_result_free(result);
}

static void nodes_have_all_shardings(void **state)
{
    struct net *net = *state;
    tsr_plan_nodes *nodes = NULL;
    tsr_plan_node node = TSR_PLAN_NODE_INIT;
    shard_hidden(net);
    assert_int_equal(tsr_plan_nodes_new(net->model, "tp2", &nodes), TSR_OK);
    assert_int_equal(tsr_plan_nodes_count(nodes), 3);
    assert_int_equal(tsr_plan_nodes_at(nodes, 0, &node), TSR_OK);
    assert_string_equal(node.name, "up");
    assert_string_equal(node.op, "MatMul");
    assert_int_equal(node.stage, 0);
    assert_true(node.sharded);
    assert_string_equal(node.inputs[1].sharding, "{1,2:0,1}");
    assert_int_equal(tsr_plan_nodes_at(nodes, 1, &node), TSR_OK); // has no annotation
    assert_string_equal(node.outputs[0].sharding, "{1,2:0,1}");
    assert_int_equal(node.stage, -1);
    assert_int_equal(tsr_plan_nodes_at(nodes, 2, &node), TSR_OK);
    assert_int_equal(node.n_reductions, 1);
    assert_string_equal(node.reductions[0].value, "down");
    assert_string_equal(node.reductions[0].collective, "AllReduce");
    assert_string_equal(node.reductions[0].function, "sum");
    assert_int_equal(node.reductions[0].groups[0].n, 2);
    assert_int_equal(tsr_plan_nodes_at(nodes, 3, &node), TSR_INVALID);
    tsr_model_free(net->model); // the list does not depend on the model
    net->model = NULL;
    assert_int_equal(tsr_plan_nodes_at(nodes, 2, &node), TSR_OK);
    assert_string_equal(node.outputs[0].value, "down");
    tsr_plan_nodes_free(nodes);
}

static void nodes_of_wrong_shardings_are_refused(void **state)
{
    struct net *net = *state;
    tsr_plan_nodes *nodes = NULL;
    assert_int_equal(tsr_plan_nodes_new(net->model, NULL, &nodes), TSR_INVALID); // none declared
    shard_hidden(net);
    assert_int_equal(tsr_plan_nodes_new(net->model, "tp4", &nodes), TSR_INVALID);
    assert_int_equal(tsr_plan_nodes_new(net->model, NULL, NULL), TSR_INVALID);
    assert_null(nodes);
}

static void plans_are_saved(void **state)
{
    struct net *net = *state;
    char path[] = "/tmp/tessera-test-plan-XXXXXX", text[64] = "";
    tsr_plan_options options = TSR_PLAN_OPTIONS_INIT;
    tsr_plan_result *result = NULL;
    options.devices = 2;
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(tsr_plan(net->model, &options, &result), TSR_OK);
    assert_int_equal(tsr_plan_save(net->model, &options, result, path), TSR_OK);
    FILE *saved = fopen(path, "r");
    assert_non_null(saved);
    assert_true(fread(text, 1, sizeof text - 1, saved) > 40);
    fclose(saved);
    assert_non_null(strstr(text, "urn:tessera:schema:1:plan-file"));
    assert_int_equal(tsr_plan_save(net->model, NULL, result, path), TSR_INVALID);
    assert_int_equal(tsr_plan_save(net->model, &options, NULL, path), TSR_INVALID);
    assert_int_equal(tsr_plan_save(net->model, &options, result, NULL), TSR_INVALID);
    assert_int_equal(tsr_model_remove_config_named(net->model, "plan2", true), TSR_OK);
    assert_int_equal(tsr_plan_save(net->model, &options, result, path), TSR_INVALID);
    tsr_plan_result_free(result);
    options.memory = 16;
    result = NULL;
    assert_int_equal(tsr_plan(net->model, &options, &result), TSR_INFEASIBLE);
    assert_int_equal(tsr_plan_save(net->model, &options, result, path), TSR_INVALID);
    tsr_plan_result_free(result);
    close(file);
    unlink(path);
}

static void nodes_are_found_by_text(void **state)
{
    struct net *net = *state;
    tsr_graph *graph = tsr_model_graph(net->model);
    tsr_node *up = tsr_graph_first(graph);
    tsr_value *x = tsr_node_input(up, 0);
    tsr_node *unnamed =
        tsr_graph_add_node(graph, "", "Relu", "", &x, 1, (const char *[]){"named"}, 1);
    tsr_node *odd = tsr_graph_add_node(graph, "", "Relu", "a > b", &x, 1, (const char *[]){"v"}, 1);
    assert_ptr_equal(tsr_model_find_node(net->model, "up"), up);
    assert_ptr_equal(tsr_model_find_node(net->model, "#0"), up);
    assert_ptr_equal(tsr_model_find_node(net->model, "named"), unnamed);
    assert_ptr_equal(tsr_model_find_node(net->model, "a > b"), odd);
    static const char *const absent[] = {"",   "#9", "#", "nothing", "x", "w1", "up > then > a",
                                         "a >"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_null(tsr_model_find_node(net->model, absent[i]));
    assert_null(tsr_model_find_node(net->model, NULL));
    assert_non_null(
        tsr_graph_add_node(graph, "", "Relu", "up", &x, 1, (const char *[]){"twice"}, 1));
    assert_null(tsr_model_find_node(net->model, "up")); // several nodes
    assert_ptr_equal(tsr_model_find_node(net->model, "#0"), up);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, net_new, net_free)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(reshardings_are_read_by_step),
        TEST(candidates_are_read_by_index),
        TEST(nodes_have_all_shardings),
        TEST(nodes_of_wrong_shardings_are_refused),
        TEST(plans_are_saved),
        TEST(nodes_are_found_by_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
