// SPDX-License-Identifier: Apache-2.0
// test_simulate.c - simulation and report through the public API: results, callers with older
// structs, and failure of each allocation.
#include "base/base.h"
#include "partition/partition.h"
#include "plan/plan.h"
#include "simulate/simulate.h"
#include "topology/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char page[] = "/tmp/tessera-page-XXXXXX";

static tsr_value *product(tsr_graph *g, tsr_value *x, const char *name, const char *weight)
{
    static float zeros[64 * 64];
    const int64_t dims[2] = {64, 64};
    tsr_value *in[2] = {
        x, tsr_graph_add_initializer(g, weight, TSR_FLOAT, 2, dims, zeros, sizeof zeros)};
    tsr_node *n = in[1] ? tsr_graph_add_node(g, "", "MatMul", name, in, 2, &name, 1) : NULL;
    return n ? tsr_node_output(n, 0) : NULL;
}

// y = x a b, float32[rows,64]; rows -1: the symbol "batch"
static tsr_status make_rows(tsr_session *s, int64_t rows, tsr_model **out)
{
    tsr_dim dims[2] = {{rows, rows < 0 ? "batch" : ""}, {64, ""}};
    tsr_status st = tsr_model_new(s, "g", 11, out);
    if (st != TSR_OK)
        return st;
    tsr_graph *g = tsr_model_graph(*out);
    st = tsr_model_set_opset(*out, "", 18);
    tsr_value *x = st == TSR_OK ? tsr_graph_add_input(g, "x") : NULL;
    if (x && tsr_value_set_type(x, TSR_FLOAT, 2, dims) != TSR_OK)
        x = NULL;
    tsr_value *h = x ? product(g, x, "h", "a") : NULL, *y = h ? product(g, h, "y", "b") : NULL;
    return y && tsr_value_set_type(y, TSR_FLOAT, 2, dims) == TSR_OK ? tsr_graph_add_output(g, y)
                                                                    : TSR_NOMEM;
}

static tsr_status make(tsr_session *s, tsr_model **out)
{
    return make_rows(s, 32, out);
}

static tsr_status all_of_it(tsr_session *s, tsr_simulation **x)
{
    tsr_model *m = NULL;
    tsr_plan_options o = {.size = sizeof o, .devices = 2};
    tsr_plan_result *p = NULL;
    tsr_status st = make(s, &m);
    if (st == TSR_OK)
        st = tsr_plan(m, &o, &p);
    tsr_simulate_options how = {.size = sizeof how, .requests = 3};
    if (st == TSR_OK)
        st = tsr_simulate(m, &how, x);
    tsr_report_options r = {.size = sizeof r, .plan = p, .simulation = *x};
    if (st == TSR_OK)
        st = tsr_report(m, &r, page);
    tsr_plan_result_free(p);
    tsr_model_free(m);
    return st;
}

static void reported(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_simulation *simulation = NULL;
    assert_true(all_of_it(s, &simulation) == TSR_OK);
    tsr_simulation_view x = *tsr_simulation_read(simulation);
    assert_true(x.facts.devices == 2 && x.facts.requests == 3 && x.facts.unsized == 0 &&
                x.n_spans > 0);
    assert_true(x.facts.first > 0 && x.facts.period > 0 &&
                x.facts.seconds >= x.facts.first + x.facts.period);
    for (size_t i = 0; i < x.n_spans; i++)
        assert_true(x.spans[i].begin < x.spans[i].end &&
                    x.spans[i].end <= x.facts.seconds * (1 + 1e-12));
    assert_true(access(page, R_OK) == 0);
    tsr_simulation_free(simulation);
    tsr_session_free(s);
}

// Halves of a value move from devices 2 and 3 of a grid to their neighbours 0 and 1. The two
// messages run in parallel, so both take the time of one.
static void messages_have_senders_of_their_own(void **state)
{
    (void)state;
    const char *const texts[2] = {"{2,1:2,3}", "{2,1:0,1}"};
    const int neighbours[2] = {2, 0};
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    tsr_config *config = NULL;
    tsr_topology *grid = NULL;
    tsr_topology_price one;
    assert_int_equal(make(s, &m), TSR_OK);
    assert_int_equal(tsr_topology_parse(s, "grid:2x2", &grid), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "c", 4, NULL, 0, &config), TSR_OK);
    tsr_node *node = tsr_graph_first(tsr_model_graph(m));
    for (int i = 0; i < 2; i++, node = tsr_node_next(node)) {
        assert_int_equal(tsr_node_set_stage(node, config, i), TSR_OK);
        assert_int_equal(tsr_node_shard_text(node, tsr_node_input(node, 0), config, texts[i]),
                         TSR_OK);
    }
    tsr_simulation *x = NULL;
    tsr_simulate_options o = {.size = sizeof o, .config = "c", .topology = grid};
    assert_int_equal(tsr_simulate(m, &o, &x), TSR_OK);
    assert_string_equal(x->view.comms[0].op, "Send");
    assert_int_equal(x->view.comms[0].n_groups, 2);
    assert_int_equal(tsr_topology_cost(grid, TSR_SEND, neighbours, 2, x->view.comms[0].bytes, &one),
                     TSR_OK);
    double copied =
        2e12 * (double)x->view.comms[0].bytes / tsr_topology_device_at(grid, 0)->bandwidth;
    assert_true(x->view.comms[0].seconds * 1e12 < (double)one.picoseconds + copied + 2);
    tsr_simulation_free(x);
    tsr_topology_free(grid);
    tsr_model_free(m);
    tsr_session_free(s);
}

// Lets each allocation fail: each must be reported, and nothing may leak.
static void without_memory(void **state)
{
    (void)state;
    tsr_status st = TSR_NOMEM;
    for (uint64_t n = 1; st != TSR_OK && n < 100000; n += n < 40 ? 1 : 1 + n / 40) {
        tsr_session *s = tsr_session_new(NULL);
        tsr_simulation *x = NULL;
        unlink(page);
        tsr__session_fault(s, 0, n, true);
        st = all_of_it(s, &x);
        tsr__session_fault(s, 0, 0, false);
        assert_true(st == TSR_OK || st == TSR_NOMEM || tsr_finding_total(s, TSR_ERROR) > 0);
        assert_true((access(page, R_OK) == 0) == (st == TSR_OK));
        tsr_simulation_free(x);
        tsr_session_free(s);
    }
    assert_true(st == TSR_OK);
}

static bool within(double a, double b, double part)
{
    double apart = a > b ? a - b : b - a;
    return apart <= part * (a > b ? a : b);
}

// Simulating one copy of a device block must give the same times as simulating the partition of all
// devices.
static void copies_are_simulated_once(void **state)
{
    (void)state;
    const char *folder;
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    tsr_topology *t = NULL;
    tsr_dim_size size = {"batch", 48 * 512};
    tsr_plan_result p = {0};
    tsr_simulation *folded = NULL, *all = NULL;
    assert_int_equal(make_rows(s, -1, &m), TSR_OK);
    assert_int_equal(tsr_topology_parse(s, "hosts:48x2", &t), TSR_OK);
    tsr_topology_set_links(t, 1e-7, 1e12);
    tsr_plan_options o = {.size = sizeof o, .topology = t, .sizes = &size, .n_sizes = 1};
    assert_int_equal(tsr__plan(m, &o, &p), TSR_OK);
    assert_true(p.facts.copies > 8);
    tsr_simulate_options how = {.size = sizeof how, .topology = t, .sizes = &size, .n_sizes = 1};
    how.requests = 2;
    assert_int_equal(tsr_simulate(m, &how, &folded), TSR_OK);
    double seconds = folded->view.facts.seconds, first = folded->view.facts.first,
           work = folded->view.device[95].compute;
    assert_int_equal(folded->view.facts.devices, 96);
    assert_true(within(first, p.facts.milliseconds / 1e3, 0.03));
    assert_int_equal(tsr_session_temporary(s, NULL, &folder), TSR_OK);
    tsr_partition_options cut = {.size = sizeof cut, .force = true};
    assert_int_equal(tsr_partition(m, folder, &cut, NULL), TSR_OK);
    assert_int_equal(tsr_simulate_folder(s, folder, &how, &all), TSR_OK);
    assert_true(within(all->view.facts.first, first, 0.03) &&
                within(all->view.facts.seconds, seconds, 0.03));
    assert_true(within(all->view.device[95].compute, work, 0.03));
    tsr_simulation_free(folded);
    tsr_simulation_free(all);
    tsr_topology_free(t);
    tsr_model_free(m);
    tsr_session_free(s);
}

// Ten thousand devices are planned as copies of a block and simulated once; both times agree.
// Without a batch dimension there are no copies, and the planner must reject that many devices.
static void ten_thousand_devices(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_model *m = NULL;
    tsr_topology *t = NULL;
    tsr_dim_size size = {"batch", 10000 * 16};
    tsr_plan_result p = {0};
    tsr_simulation *x = NULL;
    assert_int_equal(make_rows(s, -1, &m), TSR_OK);
    assert_int_equal(tsr_topology_parse(s, "hosts:1250x8", &t), TSR_OK);
    assert_int_equal(tsr_topology_devices(t), 10000);
    tsr_topology_set_links(t, 1e-7, 1e12);
    tsr_plan_options o = {.size = sizeof o, .topology = t, .sizes = &size, .n_sizes = 1};
    assert_int_equal(tsr__plan(m, &o, &p), TSR_OK);
    assert_true(p.facts.copies > 100 && p.facts.used_devices % p.facts.copies == 0);
    tsr_simulate_options how = {.size = sizeof how, .topology = t, .sizes = &size, .n_sizes = 1};
    assert_int_equal(tsr_simulate(m, &how, &x), TSR_OK);
    assert_int_equal(x->view.facts.devices, 10000);
    assert_true(within(x->view.facts.seconds, p.facts.milliseconds / 1e3, 0.03));
    o.config = "again";
    o.memory = 1;
    assert_int_equal(tsr__plan(m, &o, &p), TSR_INFEASIBLE);
    tsr_simulation_free(x);
    tsr_topology_free(t);
    tsr_model_free(m);
    tsr_session_free(s);
}

// Builds a chain of products; each is one stage on its own device.
static tsr_model *make_chain(tsr_session *s, int stages)
{
    char weight[32], name[32];
    tsr_model *m = NULL;
    tsr_config *c = NULL;
    tsr_dim dims[2] = {{4096, ""}, {64, ""}};
    assert_int_equal(tsr_model_new(s, "g", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    assert_int_equal(tsr_model_add_config(m, "c", stages, NULL, 0, &c), TSR_OK);
    tsr_value *value = tsr_graph_add_input(tsr_model_graph(m), "x");
    assert_int_equal(tsr_value_set_type(value, TSR_FLOAT, 2, dims), TSR_OK);
    for (int k = 0; k < stages; k++) {
        snprintf(weight, sizeof weight, "w%d", k);
        snprintf(name, sizeof name, "v%d", k);
        value = product(tsr_model_graph(m), value, name, weight);
        assert_non_null(value);
        assert_int_equal(tsr_node_set_stage(tsr_value_producer(value), c, k), TSR_OK);
    }
    assert_int_equal(tsr_graph_add_output(tsr_model_graph(m), value), TSR_OK);
    return m;
}

// K equal stages of time T with transfers of time X: the first request takes K T + (K - 1) X. Then
// one request finishes every T + 2 X, since a middle stage receives, computes and sends.
static void pipelines_are_as_computed(void **state)
{
    static const int list[] = {2, 8, 64, 1024};
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        int n = list[i];
        char text[32];
        tsr_session *s = tsr_session_new(NULL);
        tsr_topology *t = NULL;
        tsr_simulation *x = NULL;
        tsr_model *m = make_chain(s, n);
        snprintf(text, sizeof text, "ring:%d", n);
        assert_int_equal(tsr_topology_parse(s, text, &t), TSR_OK);
        tsr_topology_set_links(t, 1e-6, 1e9);
        for (int d = 0; d < n; d++)
            tsr_topology_set_device(t, d, &(tsr_topology_device){.flops = 1e10, .bandwidth = 1e29});
        double work = 2.0 * 4096 * 64 * 64 / 1e10, move = 1e-6 + 4096 * 64 * 4 / 1e9;
        tsr_simulate_options how = {.size = sizeof how, .topology = t, .requests = 4};
        assert_int_equal(tsr_simulate(m, &how, &x), TSR_OK);
        assert_true(within(x->view.facts.first, n * work + (n - 1) * move, 1e-3));
        if (n > 2)
            assert_true(within(x->view.facts.period, work + 2 * move, 1e-3));
        tsr_simulation_free(x);
        tsr_topology_free(t);
        tsr_model_free(m);
        tsr_session_free(s);
    }
}

// All transfers of six stages pass through one port, which limits the period. Plan and simulation
// must both consider it.
static void plan_and_simulation_share_ports(void **state)
{
    enum { STAGES = 6 };
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    tsr_topology *t = NULL;
    tsr_plan_result plan = {0};
    tsr_simulation *simulated = NULL;
    tsr_model *m = make_chain(s, STAGES);
    assert_int_equal(tsr_topology_parse(s, "hosts:6x1", &t), TSR_OK);
    tsr_topology_set_links(t, 1e-6, 1e9);
    for (int d = 0; d < STAGES; d++)
        tsr_topology_set_device(t, d, &(tsr_topology_device){.flops = 1e15, .bandwidth = 1e29});
    for (size_t i = 0; i < t->links.n; i++)
        t->links.at[i].out_port = t->links.at[i].in_port = 0;
    tsr_plan_options how = {.size = sizeof how, .topology = t, .config = "c", .memory = 1 << 30};
    assert_int_equal(tsr__plan(m, &how, &plan), TSR_OK);
    assert_int_equal(plan.facts.n_stages, STAGES);
    tsr_simulate_options options = {.size = sizeof options, .topology = t, .requests = 30};
    assert_int_equal(tsr_simulate(m, &options, &simulated), TSR_OK);
    double transfers = (STAGES - 1) * 4096 * 64 * 4 / 1e9;
    assert_true(within(simulated->view.facts.period, transfers, 0.02));
    assert_true(within((double)plan.facts.period / 1e12, simulated->view.facts.period, 0.01));
    tsr_simulation_free(simulated);
    tsr_topology_free(t);
    tsr_model_free(m);
    tsr_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reported),
                                       cmocka_unit_test(plan_and_simulation_share_ports),
                                       cmocka_unit_test(copies_are_simulated_once),
                                       cmocka_unit_test(ten_thousand_devices),
                                       cmocka_unit_test(pipelines_are_as_computed),
                                       cmocka_unit_test(messages_have_senders_of_their_own),
                                       cmocka_unit_test(without_memory)};
    int fd = mkstemp(page);
    if (fd < 0)
        return 1;
    close(fd);
    unlink(page);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(page);
    return failed;
}
