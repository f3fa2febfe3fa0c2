// SPDX-License-Identifier: Apache-2.0
// test_count.c - the planner's choice of the number of devices, compared with separate plans for
// each number.
#include "nets.h"
#include "topology/topology.h"

// Two products on n devices; speed[i] is relative to the default device.
static struct net *two_products(int n, const double *speed, double latency, bool choose)
{
    char text[32];
    snprintf(text, sizeof text, "cpu:%d", n);
    struct net *t = net_new(text, 1e10, 1e10, latency, 1e9);
    for (int i = 0; i < n; i++) {
        tsr_topology_device device = {.flops = 1e10 * speed[i], .bandwidth = 1e10 * speed[i]};
        tsr_topology_set_device(t->topology, i, &device);
    }
    if (choose)
        assert_int_equal(tsr__topology_choose(t->topology), TSR_OK);
    tsr_value *hidden =
        node(t, "MatMul", input(t, "x", DIMS(64, 256)), weight(t, "w", DIMS(256, 512)), "h");
    tsr_value *out =
        node(t, "MatMul", node(t, "Relu", hidden, NULL, "r"), weight(t, "v", DIMS(512, 256)), "y");
    plan(t, out);
    return t;
}

static int64_t time_of(int n, const double *speed, double latency)
{
    struct net *t = two_products(n, speed, latency, false);
    int64_t time = (int64_t)(t->p.facts.milliseconds * 1e9 + 0.5);
    net_free(t);
    return time;
}

static bool is_said(const struct net *t)
{
    for (size_t i = 0; i < tsr_finding_count(t->session); i++)
        if (strcmp(tsr_finding_value(t->session, i).code, "plan-count") == 0)
            return true;
    return false;
}

// Fast links: all devices are best; slow links: one; in between: some. Each number must have the
// time of its separate plan, and the best number is chosen.
static void the_best_number_is_taken(void **state)
{
    (void)state;
    static const double alike[] = {1, 1, 1, 1};
    static const struct {
        double latency;
        size_t devices;
    } cases[] = {{1e-9, 4}, {1e-1, 1}};
    for (size_t c = 0; c < TSR_COUNT(cases); c++) {
        struct net *t = two_products(4, alike, cases[c].latency, true);
        assert_int_equal(t->p.facts.devices, cases[c].devices);
        assert_int_equal(t->p.facts.n_counts, 4);
        assert_true(is_said(t));
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(t->p.counts[i].devices, i + 1);
            assert_true(t->p.counts[i].fits);
            assert_int_equal(t->p.counts[i].cost, time_of((int)i + 1, alike, cases[c].latency));
            assert_true((double)t->p.facts.cost <= 1.0102 * (double)t->p.counts[i].cost);
        }
        assert_int_equal(tsr_config_devices(tsr_model_find_config(t->m, t->p.facts.config)),
                         cases[c].devices);
        net_free(t);
    }
}

// The fastest devices are chosen, whatever their numbers: of speeds 1 8 8 1, the second.
static void the_fastest_are_taken(void **state)
{
    (void)state;
    static const double speed[] = {1, 8, 8, 1}, fast[] = {8, 8};
    struct net *t = two_products(4, speed, 1e-6, true);
    assert_int_equal(t->p.counts[0].cost, time_of(1, fast, 1e-6));
    assert_int_equal(t->p.counts[1].cost, time_of(2, fast, 1e-6));
    assert_int_equal(t->p.facts.devices, 2);
    assert_true(t->p.counts[1].chosen && !t->p.counts[1].ranks);
    tsr_topology *kept = NULL;
    assert_int_equal(tsr_model_topology(t->m, t->p.facts.config, &kept), TSR_OK);
    assert_int_equal(tsr_topology_devices(kept), 2);
    for (int i = 0; i < 2; i++)
        assert_true(tsr_topology_device_at(kept, i)->flops == 8e10);
    tsr_topology_free(kept);
    net_free(t);
}

// One device would be fastest but has too little memory. If no number of devices has enough, that
// is reported.
static void memory_comes_first(void **state)
{
    (void)state;
    static const double alike[] = {1, 1, 1, 1};
    struct net *t = two_products(4, alike, 1e-1, true);
    assert_int_equal(t->p.facts.devices, 1);
    t->o.memory = t->p.facts.memory[0] - 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.devices > 1 && !t->p.counts[0].fits);
    assert_true(t->p.facts.memory[0] <= t->o.memory);
    t->o.memory = 100;
    t->p = (tsr_plan_result){0};
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_true(t->p.facts.needs_bytes > 100);
    net_free(t);
}

// A device that is 3 times as fast gets 3 of 4 shares: close to the optimum, the time of the added
// speeds. More ranks on faster devices are tried too, and are not better.
static void fast_devices_get_more(void **state)
{
    (void)state;
    static const double speeds[][3] = {{3, 1, 0}, {1, 3, 0}, {2, 1, 1}, {5, 3, 0}};
    for (size_t c = 0; c < TSR_COUNT(speeds); c++) {
        int n = speeds[c][2] > 0 ? 3 : 2;
        double sum = speeds[c][0] + speeds[c][1] + speeds[c][2];
        struct net *t = two_products(n, speeds[c], 1e-9, true);
        const double one[] = {1};
        double least = (double)time_of(1, one, 1e-9) / sum;
        assert_int_equal(t->p.facts.devices, n);
        assert_true(t->p.counts[t->p.facts.n_counts - 1].ranks ||
                    t->p.counts[t->p.facts.n_counts - 2].ranks);
        assert_true((double)t->p.facts.cost >= least && (double)t->p.facts.cost <= 1.2 * least);
        assert_true((double)t->p.facts.cost < 0.99 * (double)t->p.counts[0].cost);
        net_free(t);
    }
}

// A chosen subset of the topology keeps ports, hosts that are not listed, and measured times.
static void choices_are_parts_of_the_whole(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    tsr_topology *box = NULL, *large = NULL;
    assert_int_equal(tsr_topology_parse(session, "auto:h100:8", &box), TSR_OK);
    assert_int_equal(box->choices.n, 8);
    const tsr_topology *four = tsr_topology_choice(box, 3);
    assert_int_equal(four->n, 4);
    assert_int_equal(four->links.n, 12);
    for (size_t i = 0; i < four->links.n; i++) {
        const struct topology_port *port = &four->ports.at[four->links.at[i].out_port];
        assert_int_equal(port->device, four->links.at[i].from);
        assert_true(port->bandwidth == box->ports.at[box->links.at[0].out_port].bandwidth);
    }
    assert_int_equal(tsr_topology_parse(session, "auto:hosts:1250x8", &large), TSR_OK);
    assert_int_equal(large->choices.at[large->choices.n - 1]->n, 10000);
    for (size_t i = 0; i < large->choices.n; i++) {
        const tsr_topology *choice = large->choices.at[i];
        assert_true(choice->n <= large->window || choice->window == large->window);
        assert_true(choice->n <= large->window || choice->grid[0] * 8 == choice->n);
    }
    tsr_topology_free(large);
    tsr_topology_free(box);
    tsr_session_free(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_number_is_taken),
        cmocka_unit_test(the_fastest_are_taken),
        cmocka_unit_test(memory_comes_first),
        cmocka_unit_test(fast_devices_get_more),
        cmocka_unit_test(choices_are_parts_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
