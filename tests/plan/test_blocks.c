// SPDX-License-Identifier: Apache-2.0
// test_blocks.c - plans on device sets and on copies of a set: never slower than on fewer devices,
// valid, and in agreement with the simulation.
#include "nets.h"
#include "plan/search/device_sets.h"

// Two layers; the batch size is symbolic.
static void two_layers(struct net *t, int64_t batch, tsr_dim_size *size)
{
    tsr_dim dims[] = {{-1, "batch"}, {256, ""}};
    tsr_value *x = tsr_graph_add_input(t->g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    tsr_value *h = node(t, "MatMul", x, weight(t, "w", DIMS(256, 512)), "h");
    tsr_value *y =
        node(t, "MatMul", node(t, "Relu", h, NULL, "r"), weight(t, "v", DIMS(512, 256)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    *size = (tsr_dim_size){"batch", batch};
    t->o.sizes = size;
    t->o.n_sizes = 1;
}

static void valid(struct net *t)
{
    size_t errors = tsr_finding_total(t->session, TSR_ERROR);
    assert_int_equal(tsr_check(t->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                          .config = t->p.facts.config}),
                     TSR_OK);
    assert_int_equal(tsr_finding_total(t->session, TSR_ERROR), errors);
}

// Two slow devices next to two fast ones must not make the plan slower.
static void slow_devices_stay_idle(void **state)
{
    (void)state;
    tsr_dim_size size;
    int64_t cost[2];
    for (int mixed = 0; mixed < 2; mixed++) {
        struct net *t = net_new(mixed ? "4" : "2", 1e12, 1e11, 1e-6, 1e11);
        for (int d = 2; d < tsr_topology_devices(t->topology); d++)
            tsr_topology_set_device(t->topology, d,
                                    &(tsr_topology_device){.flops = 1e10, .bandwidth = 1e10});
        two_layers(t, 4096, &size);
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        valid(t);
        cost[mixed] = t->p.facts.cost;
        assert_int_equal(t->p.facts.used_devices, 2);
        assert_true(t->p.facts.one_device > t->p.facts.cost &&
                    t->p.facts.one_device < 3 * t->p.facts.cost);
        if (mixed)
            assert_true(t->p.facts.memory[2] == 0 && t->p.facts.memory[3] == 0);
        net_free(t);
    }
    assert_int_equal(cost[0], cost[1]);
}

// One device more is never slower, also if it divides nothing. A batch of 4 with 8 rows each is 32
// parts. 6 devices compute 6 of them each, as two copies of 3 devices or as a grid. 7 devices divide only the
// rows, which makes 2 for each sample, or only the batch: 8 parts. So one of them stays idle.
static void one_device_more_is_not_slower(void **state)
{
    (void)state;
    tsr_dim_size size = {"batch", 4};
    tsr_dim dims[] = {{-1, "batch"}, {8, ""}, {65536, ""}};
    double before = 1e9;
    for (int devices = 2; devices <= 8; devices++) {
        char text[8];
        snprintf(text, sizeof text, "%d", devices);
        struct net *t = net_new(text, 1e9, 1e13, 1e-6, 1e13);
        tsr_value *x = tsr_graph_add_input(t->g, "x");
        assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 3, dims), TSR_OK);
        tsr_value *y = x;
        for (int i = 0; i < 8;
             i++) { // so that slicing x, twice for copies, takes little of the time
            char name[8];
            snprintf(name, sizeof name, "y%d", i);
            y = node(t, "Softmax", y, NULL, name);
        }
        assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
        t->o.sizes = &size;
        t->o.n_sizes = 1;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        valid(t);
        // the copies are charged for what they take when they are played as they are written
        assert_true(t->p.facts.milliseconds <= 1e-9 * (double)t->p.facts.cost * 1.001);
        assert_true(t->p.facts.milliseconds <= before * (1 + 1e-9));
        if (devices == 7)
            assert_int_equal(t->p.facts.used_devices, 6);
        before = t->p.facts.milliseconds;
        net_free(t);
    }
}

// A slow first device before a fast one stays idle. The 8 MB output is not sent to it, since the
// fast device is a stage, which returns its outputs itself.
static void fast_device_gives_the_outputs(void **state)
{
    (void)state;
    tsr_dim_size size;
    struct net *t = net_new("2", 1e12, 1e11, 1e-6, 1e9);
    tsr_topology_set_device(t->topology, 0,
                            &(tsr_topology_device){.flops = 1e10, .bandwidth = 1e10});
    two_layers(t, 8192, &size);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    assert_int_equal(t->p.facts.used_devices, 1);
    assert_int_equal(t->p.facts.memory[0], 0);
    assert_int_equal(t->p.facts.cost, t->p.facts.one_device);
    const tsr_config *config = tsr_model_config(t->m, 0);
    for (tsr_node *at = tsr_model_next_node(t->m, NULL); at; at = tsr_model_next_node(t->m, at)) {
        int64_t stage = -1;
        assert_true(tsr_node_config_stage(tsr_node_find_config(at, config), &stage));
        assert_int_equal(stage, 0);
    }
    net_free(t);
}

// Two kinds of devices, two of each, with equal links within a kind: only equivalent sets are
// recognized as such.
static void same_sets_are_found(void **state)
{
    (void)state;
    struct net *t = net_new("4", 1e12, 1e11, 1e-6, 1e11);
    tsr_topology_device slow = {.flops = 1e11, .bandwidth = 1e11};
    tsr_topology_set_device(t->topology, 2, &slow);
    tsr_topology_set_device(t->topology, 3, &slow);
    assert_true(tsr__sets_equivalent(t->topology, (int64_t[]){0, 2}, (int64_t[]){1, 3}, 2));
    assert_true(tsr__sets_equivalent(t->topology, (int64_t[]){0, 1, 2}, (int64_t[]){0, 1, 3}, 3));
    assert_false(tsr__sets_equivalent(t->topology, (int64_t[]){0, 1}, (int64_t[]){0, 2}, 2));
    assert_false(tsr__sets_equivalent(t->topology, (int64_t[]){0}, (int64_t[]){3}, 1));
    t->topology->links.at[1].bandwidth = 1e9; // from 0 to 2
    assert_false(tsr__sets_equivalent(t->topology, (int64_t[]){0, 2}, (int64_t[]){1, 3}, 2));
    net_free(t);
}

// 96 hosts: every copy has its share of the batch, nothing is sharded twice, and the batch is
// complete.
static void blocks_do_the_same(void **state)
{
    (void)state;
    tsr_dim_size size;
    struct net *t = net_new("hosts:96x2", 1e10, 1e11, 1e-6, 1e11);
    two_layers(t, 96 * 64, &size);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    assert_true(t->p.facts.copies > 1 && 96 * 64 % t->p.facts.copies == 0);
    assert_true(t->p.facts.used_devices % t->p.facts.copies == 0 && t->p.facts.used_devices <= 192);
    assert_true(t->p.facts.bound <= t->p.facts.cost &&
                t->p.facts.one_device > 10 * t->p.facts.cost);
    net_free(t);
}

static int64_t sum_on(const char *machine, double link, tsr_plan_result *out)
{
    tsr_dim_size size = {"batch", 96 * 64};
    tsr_dim dims[] = {{-1, "batch"}, {256, ""}};
    struct net *t = net_new(machine, 1e10, 1e11, 1e-6, link);
    int64_t axis = 0, one = 1;
    tsr_value *x = tsr_graph_add_input(t->g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 2, dims), TSR_OK);
    tsr_value *h = node(t, "MatMul", x, weight(t, "w", DIMS(256, 512)), "h");
    tsr_value *axes = tsr_graph_add_initializer(t->g, "axes", TSR_INT64, 1, &one, &axis, 8);
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "ReduceSum", h, axes, "y")), TSR_OK);
    t->o.sizes = &size;
    t->o.n_sizes = 1;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    if (t->p.facts.copies > 1) {
        assert_true(collectives(t, "AllReduce") >= 1);
        assert_true(t->p.facts.memory[0] >= 96 * 64 * 256 * 4); // each device holds the full input
    }
    *out = t->p;
    net_free(t);
    return out->facts.cost;
}

// A sum over the batch is reduced among the copies: slower links must add the time for the bytes of
// the sum.
static void copies_combine_their_sums(void **state)
{
    (void)state;
    tsr_plan_result fast, slow;
    int64_t cheap = sum_on("hosts:96x2", 1e11, &fast), dear = sum_on("hosts:96x2", 1e9, &slow);
    assert_true(fast.facts.copies > 1 && slow.facts.copies > 1);
    assert_true(dear >= cheap + 2000000); // 2 KiB at 1 ns per byte instead of 0.01
}

// Even with little time a cluster of many hosts must be planned well: each set size gets its share
// of the time.
static void every_block_has_its_time(void **state)
{
    (void)state;
    tsr_dim_size size;
    int64_t best = 0;
    for (double seconds = 0; seconds < 2; seconds += 0.5) {
        struct net *t = net_new("hosts:96x2", 1e10, 1e11, 1e-6, 1e11);
        two_layers(t, 96 * 64, &size);
        t->o.seconds = seconds;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        best = seconds > 0 ? best : t->p.facts.cost;
        assert_true((double)t->p.facts.cost <= 1.05 * (double)best);
        net_free(t);
    }
}

// Without a batch there are no copies: one set, the best, computes everything.
static void one_block_without_a_batch(void **state)
{
    (void)state;
    tsr_dim_size size;
    struct net *t = net_new("hosts:40x2", 1e10, 1e11, 1e-6, 1e10);
    two_layers(t, 1, &size);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    assert_int_equal(t->p.facts.copies, 1);
    assert_true(t->p.facts.used_devices <= 64);
    net_free(t);
}

// No set of 64 of many devices has the memory, but a stage on all devices has: the plan is written,
// and the failed search without stages does not count.
static void stages_use_more_than_a_set(void **state)
{
    (void)state;
    if (much_slower())
        skip();
    struct net *t = net_new("hosts:129x8", 1e10, 1e11, 1e-6, 1e10);
    tsr_value *y =
        node(t, "MatMul", input(t, "x", DIMS(2, 512)), weight(t, "w", DIMS(512, 512)), "y");
    assert_int_equal(tsr_graph_add_output(t->g, y), TSR_OK);
    t->o.memory = 12000;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    t->o.stages = TSR_STAGES_AUTO;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.feasible && t->p.facts.n_stages > 0);
    assert_int_equal(tsr_model_config_count(t->m), 1);
    net_free(t);
}

// A set of hosts has the candidates of the grid that it forms: k along one side, n along the other.
static void sets_form_grids(void **state)
{
    (void)state;
    tsr_dim_size size;
    struct net *t = net_new("hosts:20x4", 1e9, 1e11, 1e-8, 1e12);
    bool both = false;
    two_layers(t, 1, &size);
    t->o.explain = "h";
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    assert_true(t->p.facts.copies == 1 && t->p.facts.used_devices > 4);
    for (size_t i = 0; i < t->p.facts.n_choices; i++)
        both = both || (strstr(t->p.choices[i].name, "k/") && strstr(t->p.choices[i].name, "n/"));
    assert_true(both);
    net_free(t);
}

// Plans of well-known strategies are listed, and a plan exists however short the time is.
static void experts_answer_at_once(void **state)
{
    (void)state;
    tsr_dim_size size;
    struct net *t = net_new("hosts:96x2", 1e10, 1e11, 1e-6, 1e11);
    two_layers(t, 96 * 64, &size);
    t->o.seconds = 1e-6;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    assert_true(t->p.facts.feasible && t->p.facts.n_compared > 0);
    for (size_t i = 0; i < t->p.facts.n_compared; i++)
        assert_true(!t->p.compared[i].fits ||
                    t->p.compared[i].milliseconds >= t->p.facts.milliseconds * 0.9999);
    net_free(t);
}

enum { CACHED = 64, REQUESTS = 96 * 64 };

// Each copy keeps its share of a cache. Without the state, each device would receive and return the
// full cache.
static void plan_cache(bool stays, tsr_plan_result *out, int64_t *most)
{
    static const char *const cache = "past=present";
    tsr_dim_size size = {"batch", REQUESTS};
    tsr_dim dims[] = {{-1, "batch"}, {1, ""}, {256, ""}},
            kept[] = {{-1, "batch"}, {CACHED, ""}, {256, ""}};
    struct net *t = net_new("hosts:96x2", 1e10, 1e11, 1e-6, 1e11);
    tsr_value *x = tsr_graph_add_input(t->g, "x"), *past = tsr_graph_add_input(t->g, "past");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 3, dims), TSR_OK);
    assert_int_equal(tsr_value_set_type(past, TSR_FLOAT, 3, kept), TSR_OK);
    tsr_value *k = node(t, "MatMul", x, weight(t, "w", DIMS(256, 256)), "k");
    tsr_value *present = node(t, "Add", past, k, "present");
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "Relu", k, NULL, "y")), TSR_OK);
    assert_int_equal(tsr_graph_add_output(t->g, present), TSR_OK);
    t->o.sizes = &size;
    t->o.n_sizes = 1;
    t->o.state = &cache;
    t->o.n_state = stays;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    *out = t->p;
    *most = 0;
    for (size_t device = 0; device < t->p.facts.devices; device++)
        *most = t->p.facts.memory[device] > *most ? t->p.facts.memory[device] : *most;
    net_free(t);
}

static void copies_keep_their_caches(void **state)
{
    (void)state;
    const int64_t whole = (int64_t)REQUESTS * CACHED * 256 * 4;
    tsr_plan_result with, without;
    int64_t most_with, most_without;
    plan_cache(true, &with, &most_with);
    plan_cache(false, &without, &most_without);
    assert_true(with.facts.copies > 1 && with.facts.cost < without.facts.cost);
    assert_true(most_with < whole / 8 && most_without >= whole);
}

// ---- plans that were not tried -----------------------------------------------------------------

// Several products of one input. The sum of all results is returned.
static struct net *products(const char *devices, int64_t rows)
{
    enum { PRODUCTS = 8 };
    struct net *t = net_new(devices, 1e15, 1e9, 1e-9, 1e13);
    tsr_value *x = input(t, "x", DIMS(rows, 512)), *sum = NULL;
    for (int i = 0; i < PRODUCTS; i++) {
        tsr_value *w = weight(t, name_of(t, "w", i), DIMS(512, 512));
        tsr_value *y = node(t, "MatMul", x, w, name_of(t, "y", i));
        sum = sum ? node(t, "Add", sum, y, name_of(t, "s", i)) : y;
    }
    assert_int_equal(tsr_graph_add_output(t->g, node(t, "ReduceSum", sum, NULL, "all")), TSR_OK);
    return t;
}

// With 4 rows of blocks every device reads a quarter of the input and all weights; with 2 x 2 blocks
// half of both, which is less. No other plan is missing, and memory is not short.
static void grids_read_less_than_lines(void **state)
{
    (void)state;
    struct net *t = products("4", 512);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    valid(t);
    const tsr_value *y = tsr_graph_value(t->g, "y0");
    assert_int_equal(strncmp(sharding_at(t, tsr_value_producer(y), y), "{2,2:", 5), 0);
    net_free(t);
}

// Returns the memory of the fullest device.
static int64_t fullest(const struct net *t)
{
    int64_t most = 0;
    for (size_t device = 0; device < t->p.facts.devices; device++)
        most = t->p.facts.memory[device] > most ? t->p.facts.memory[device] : most;
    return most;
}

// Every plan that fits in less memory also fits in more, so no limit makes a plan faster than the
// bound without it. Takes away memory until no plan fits.
static void less_memory_is_never_faster(void **state)
{
    (void)state;
    static const char *const devices[] = {"4", "8", "12"};
    static const int64_t rows[] = {64, 512, 4096};
    for (size_t d = 0; d < TSR_COUNT(devices); d++)
        for (size_t r = 0; r < TSR_COUNT(rows); r++) {
            struct net *t = products(devices[d], rows[r]);
            int64_t bound = 0;
            while (tsr__plan(t->m, &t->o, &t->p) == TSR_OK) {
                assert_true(t->p.facts.cost >= bound);
                bound = t->p.facts.bound > bound ? t->p.facts.bound : bound;
                t->o.memory = fullest(t) - 1;
            }
            net_free(t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_read_less_than_lines),
        cmocka_unit_test(less_memory_is_never_faster),
        cmocka_unit_test(fast_device_gives_the_outputs),
        cmocka_unit_test(same_sets_are_found),
        cmocka_unit_test(slow_devices_stay_idle),
        cmocka_unit_test(one_device_more_is_not_slower),
        cmocka_unit_test(blocks_do_the_same),
        cmocka_unit_test(copies_combine_their_sums),
        cmocka_unit_test(every_block_has_its_time),
        cmocka_unit_test(one_block_without_a_batch),
        cmocka_unit_test(copies_keep_their_caches),
        cmocka_unit_test(stages_use_more_than_a_set),
        cmocka_unit_test(sets_form_grids),
        cmocka_unit_test(experts_answer_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
