// SPDX-License-Identifier: Apache-2.0
// test_shares.c - devices of different speed or memory get different shares of work and weights;
// equal devices get equal shares.
#include "nets.h"
#include "plan/candidates/strategies.h"

// Two layers that are much wider than input and output; returns the value between them.
static tsr_value *two_layers(struct net *t, int64_t rows)
{
    tsr_value *x = input(t, "x", DIMS(rows, 64));
    tsr_value *h = node(t, "MatMul", x, weight(t, "w", DIMS(64, 1024)), "h");
    tsr_value *r = node(t, "Relu", h, NULL, "r");
    tsr_value *y = node(t, "MatMul", r, weight(t, "v", DIMS(1024, 64)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    return r;
}

static void set_device(struct net *t, int device, double flops, int64_t memory)
{
    tsr_topology_device set = {.flops = flops, .bandwidth = flops, .memory = memory};
    tsr_topology_set_device(t->topology, device, &set);
}

// Speeds 3 and 1: shares of 3/4 and 1/4, in 3/4 of the time of the fast device alone.
static void parts_follow_speeds(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e12, 1e-9, 1e12);
    set_device(t, 0, 3e12, 0);
    tsr_value *between = two_layers(t, 8192);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.optimal);
    assert_string_equal(made_as(t, between), "{4,1:0,0,0,1}");
    assert_true((double)t->p.facts.cost < 0.78 * (double)t->p.facts.one_device);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
    assert_int_equal(tsr_finding_total(t->session, TSR_WARNING), 0);
    net_free(t);
}

// Devices may differ in the speed of caches alone, or in their overhead. Whatever was not planned
// because of a cancellation, no plan is below the bound.
static void all_speeds_count(void **state)
{
    (void)state;
    tsr_topology_device fast[] = {{.moves = {[TSR_MOVE_STREAM] = 1e13}},
                                  {.cached = {[TSR_MOVE_STREAM] = 1e13}},
                                  {.overhead = 1e-9},
                                  {.rates = {[TSR_RATE_FLOAT16] = 5e12}}};
    for (size_t i = 0; i < TSR_COUNT(fast); i++) {
        struct net *t = net_new("2", 1e12, 1e10, 1e-9, 1e12);
        tsr_topology_set_device(t->topology, 0, &fast[i]);
        tsr_value *x = input(t, "x", DIMS(1024, 64));
        for (int k = 0; k < 20; k++)
            x = node(t, "Relu", x, NULL, tsr__arena_printf(&t->arena, "y%d", k).p);
        assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
        t->o.config = "all";
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        int64_t best = t->p.facts.cost;
        tsr_session_cancel(t->session, true);
        t->o.config = "few";
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_true(t->p.facts.bound <= best);
        net_free(t);
    }
}

// Relu on two devices that differ only in the speed of memory: the faster one gets more rows.
static void parts_follow_memory_speeds(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e10, 1e-9, 1e12);
    tsr_topology_device fast = {.moves = {[TSR_MOVE_STREAM] = 3e10}};
    tsr_topology_set_device(t->topology, 0, &fast);
    tsr_value *x = input(t, "x", DIMS(16384, 1024)), *y = node(t, "Relu", x, NULL, "y");
    for (int k = 0; k < 7; k++)
        y = node(t, "Relu", y, NULL, tsr__arena_printf(&t->arena, "y%d", k).p);
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_string_equal(made_as(t, y), "{4,1:0,0,0,1}");
    net_free(t);
}

// Two equal convolutions, one of an input and one of constants. Only the second needs no halo
// exchange, and the cost is the same in both orders.
static void producers_decide_on_halos(void **state)
{
    (void)state;
    int64_t cost[2];
    for (int first = 0; first < 2; first++) {
        struct net *t = net_new("2", 1e9, 1e10, 1e-6, 1e9);
        tsr_value *from[] = {input(t, "x", DIMS(1, 4, 8192, 1)),
                             weight(t, "c", DIMS(1, 4, 8192, 1))};
        static const char *const names[][2] = {{"r0", "y0"}, {"r1", "y1"}};
        for (int i = 0; i < 2; i++) {
            int k = i ^ first;
            tsr_value *r = node(t, "Relu", from[k], NULL, names[k][0]);
            tsr_value *w = weight(t, i ? "v" : "w", DIMS(1, 4, 9, 1));
            tsr_value *y = node(t, "Conv", r, w, names[k][1]);
            assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
        }
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        cost[first] = t->p.facts.cost;
        net_free(t);
    }
    assert_int_equal(cost[0], cost[1]);
}

// Weights of 512 KiB on 408 KiB and 204 KiB: halves do not fit, shares of 2 and 1 do.
static void parts_follow_memory(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e12, 1e-9, 1e12);
    set_device(t, 0, 1e12, 408 << 10);
    set_device(t, 1, 1e12, 204 << 10);
    t->o.memory = 0;
    two_layers(t, 4);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.memory[0] <= 408 << 10 && t->p.facts.memory[1] <= 204 << 10);
    assert_true(t->p.facts.memory[1] > 150 << 10);
    net_free(t);
}

// 512 KiB of weights: by speed the fast device would get three quarters, but it has memory for 5 of
// 9 parts. It must get these, since the other takes three times as long per part. By memory alone
// it would get a fifth.
static void parts_follow_speeds_as_far_as_memory_goes(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e12, 1e-9, 1e12);
    set_device(t, 0, 3e12, 305 << 10);
    set_device(t, 1, 1e12, 1 << 20);
    t->o.memory = 0;
    two_layers(t, 4);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.memory[0] <= 305 << 10);
    assert_true(t->p.facts.memory[0] > 280 << 10);
    net_free(t);
}

// One device has more float32 operations, the other three times the bandwidth, which few rows need.
// The second is faster for this model and must get the larger share.
static void speeds_are_the_models(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e12, 1e-9, 1e12);
    tsr_topology_device wide = {.flops = 1e13, .bandwidth = 3e11, .memory = 1 << 30};
    tsr_topology_device deep = {.flops = 3e13, .bandwidth = 1e11, .memory = 1 << 30};
    tsr_topology_set_device(t->topology, 0, &wide);
    tsr_topology_set_device(t->topology, 1, &deep);
    tsr_value *between = two_layers(t, 4);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_string_equal(made_as(t, between), "{1,4:0,0,0,1}");
    net_free(t);
}

// Weights that fit on no single device, and activations sharded by rows: a sum is reduce-scattered
// to rows in the same unequal shares, so that no device holds all of it.
static void sums_are_scattered_in_shares(void **state)
{
    (void)state;
    struct net *t = net_new("2", 1e12, 1e12, 1e-6, 1e11);
    set_device(t, 0, 3e12, 12 << 20);
    set_device(t, 1, 1e12, 10 << 20);
    t->o.memory = 0;
    tsr_value *x = input(t, "x", DIMS(512, 512));
    tsr_value *h = node(t, "MatMul", x, weight(t, "w", DIMS(512, 2048)), "h");
    tsr_value *sum = node(t, "MatMul", h, weight(t, "v", DIMS(2048, 512)), "sum");
    char name[12][4];
    x = sum;
    for (int i = 0; i < 12; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        x = node(t, "Tanh", x, NULL, name[i]);
    }
    x = node(t, "MatMul", x, weight(t, "u", DIMS(512, 1)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_string_equal(made_as(t, sum), "{4,1:0,0,0,1}");
    assert_int_equal(collectives(t, "ReduceScatter"), 1);
    assert_int_equal(collectives(t, "AllReduce"), 0);
    net_free(t);
}

static int shares_of(const double *flops, int n, tile_shares *out)
{
    struct net *t = net_new(n == 2 ? "2" : "4", 1e12, 1e12, 1e-9, 1e12);
    for (int i = 0; i < n; i++)
        set_device(t, i, flops[i], 1 << 30);
    struct planner *planner = calloc(1, sizeof *planner);
    planner->machine.topology = t->topology;
    planner->machine.n = n;
    tsr__planner_start(planner, t->m);
    assert_true(tsr__planner_devices(planner) && tsr__planner_shares(planner));
    int found = planner->machine.n_shares;
    memcpy(out, planner->machine.shares, sizeof planner->machine.shares);
    tsr__planner_end(planner);
    free(planner);
    net_free(t);
    return found;
}

// Shares use few units, preferably powers of 2, and none if equal parts are as good.
static void units_are_few(void **state)
{
    (void)state;
    tile_shares shares[PLAN_MAX_SHARES];
    assert_int_equal(shares_of((double[]){1, 1, 1, 1}, 4, shares), 0);
    assert_int_equal(shares_of((double[]){100, 99}, 2, shares), 0);
    assert_int_equal(shares_of((double[]){3, 1}, 2, shares), 1);
    assert_int_equal(shares[0], 1 << 3 | 1 << 4);
    assert_int_equal(shares_of((double[]){1, 3, 1, 3}, 4, shares), 1);
    assert_int_equal(shares[0], 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8);
    assert_int_equal(shares_of((double[]){2, 1}, 2, shares), 2);
    assert_int_equal(shares[0], 1 << 3 | 1 << 4);
    assert_int_equal(shares[1], 1 << 2 | 1 << 3); // the best
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_follow_speeds),
        cmocka_unit_test(producers_decide_on_halos),
        cmocka_unit_test(parts_follow_memory_speeds),
        cmocka_unit_test(all_speeds_count),
        cmocka_unit_test(parts_follow_memory),
        cmocka_unit_test(parts_follow_speeds_as_far_as_memory_goes),
        cmocka_unit_test(speeds_are_the_models),
        cmocka_unit_test(sums_are_scattered_in_shares),
        cmocka_unit_test(units_are_few),
    };
    return cmocka_run_group_tests_name("plan shares", tests, NULL, NULL);
}
