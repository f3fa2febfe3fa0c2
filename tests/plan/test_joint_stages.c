// SPDX-License-Identifier: Apache-2.0
// test_joint_stages.c - two models with shared weights in pipeline stages, compared with every
// split and every number of devices for each stage. The time of a stage comes from planning its
// nodes of both models as two separate models.
#include "nets.h"

enum { LAYERS = 4, PREFILL = 512, DECODE = 1 };
static const int64_t WIDTH[LAYERS + 1] = {128, 512, 64, 768, 128};
// Devices so slow that sharding pays off; a byte of memory traffic takes 16 ps.
static const double FLOPS = 2e10, BANDWIDTH = 6.25e10, LATENCY = 1e-6, LINK = 1e11;
static const int64_t BYTE_PS = 16;

static struct net *new_net(int devices)
{
    char text[16];
    snprintf(text, sizeof text, "full:%d", devices);
    return net_new(text, FLOPS, BANDWIDTH, LATENCY, LINK);
}

static tsr_model *add_model(struct net *t)
{
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_new(t->session, "other", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    return m;
}

// Adds the layers `from` to `to` for `rows` rows.
static void add_layers(struct net *t, tsr_model *m, int64_t rows, int from, int to)
{
    struct net one = *t;
    one.m = m;
    one.g = tsr_model_graph(m);
    tsr_value *x = input(&one, "x", DIMS(rows, WIDTH[from]));
    for (int i = from; i < to; i++) {
        char w[16], y[16], r[16];
        snprintf(w, sizeof w, "w%d", i);
        snprintf(y, sizeof y, "y%d", i);
        snprintf(r, sizeof r, "r%d", i);
        x = node(&one, "MatMul", x, weight(&one, w, DIMS(WIDTH[i], WIDTH[i + 1])), y);
        if (rows == DECODE && i % 2 == 1) // nodes that the other model does not have
            x = node(&one, "Relu", x, NULL, r);
    }
    assert_int_equal(tsr_graph_add_output(one.g, x), TSR_OK);
}

static void plan_both(struct net *t, int from, int to, int64_t steps)
{
    add_layers(t, t->m, PREFILL, from, to);
    t->o.with = add_model(t);
    add_layers(t, t->o.with, DECODE, from, to);
    t->o.steps = steps;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.optimal || t->o.objective == TSR_THROUGHPUT);
}

static void free_both(struct net *t)
{
    tsr_model_free((tsr_model *)t->o.with);
    net_free(t);
}

static int64_t time_alone(int from, int to, int devices, int64_t steps, int64_t memory)
{
    struct net *t = new_net(devices);
    add_layers(t, t->m, PREFILL, from, to);
    t->o.with = add_model(t);
    add_layers(t, t->o.with, DECODE, from, to);
    t->o.steps = steps;
    t->o.memory = memory;
    tsr_status st = tsr__plan(t->m, &t->o, &t->p);
    assert_true(st == TSR_OK || st == TSR_INFEASIBLE);
    int64_t cost = st == TSR_OK ? t->p.facts.cost : -1;
    free_both(t);
    return cost;
}

// Transfer time before layer i to n devices: once for prefill, and once per step.
static int64_t send_time(int i, int n, int64_t steps)
{
    static const int group[] = {0, 1, 2, 3};
    static const int64_t rows[] = {PREFILL, DECODE};
    int64_t sum = 0, runs[] = {1, steps};
    struct net *t = new_net(4);
    for (int m = 0; m < 2; m++) {
        tsr_topology_price price;
        int64_t bytes = rows[m] * WIDTH[i] * 4;
        enum tsr_collective what = n == 1 ? TSR_SEND : TSR_BROADCAST;
        assert_int_equal(tsr_topology_cost(t->topology, what, group, n + 1, bytes, &price), TSR_OK);
        sum += runs[m] * (price.picoseconds + 2 * bytes * BYTE_PS);
    }
    net_free(t);
    return sum;
}

// Tries two stages on up to four devices: minimum latency, and minimum time of the busiest stage.
static void try_all(int64_t steps, int64_t memory, int64_t *latency, int64_t *period)
{
    *latency = *period = INT64_MAX;
    for (int cut = 1; cut < LAYERS; cut++)
        for (int a = 1; a < 4; a++)
            for (int b = 1; a + b <= 4; b++) {
                int64_t first = time_alone(0, cut, a, steps, memory);
                int64_t second = time_alone(cut, LAYERS, b, steps, memory);
                int64_t gets = send_time(cut, b, steps);
                if (first < 0 || second < 0)
                    continue;
                int64_t most = (first > second ? first : second) + gets;
                if (first + second + gets < *latency)
                    *latency = first + second + gets;
                if (most < *period)
                    *period = most;
            }
}

// The stage of the value's producer.
static int64_t stage_of(tsr_model *m, const char *value)
{
    int64_t stage = -1;
    tsr_node *made = tsr_value_producer(tsr_graph_value(tsr_model_graph(m), value));
    const tsr_node_config *config = tsr_node_find_config(made, tsr_model_config(m, 0));
    assert_non_null(config);
    assert_true(tsr_node_config_stage(config, &stage));
    return stage;
}

static const char *stored_as(tsr_model *m, const char *value, const char *w)
{
    const char *text = "";
    tsr_graph *g = tsr_model_graph(m);
    const tsr_spec *spec = tsr_node_sharding_of(tsr_value_producer(tsr_graph_value(g, value)),
                                                tsr_graph_value(g, w), 0);
    assert_non_null(spec);
    assert_int_equal(tsr_spec_text(spec, &text), TSR_OK);
    return text;
}

// Every weight must be in the same stage of both models, on the same devices, with the same
// sharding.
static void check_weights(const struct net *t)
{
    tsr_model *with = (tsr_model *)t->o.with;
    for (int i = 0; i < LAYERS; i++) {
        char w[16], y[16], text[128];
        snprintf(w, sizeof w, "w%d", i);
        snprintf(y, sizeof y, "y%d", i);
        assert_int_equal(stage_of(t->m, y), stage_of(with, y));
        snprintf(text, sizeof text, "%s", stored_as(t->m, y, w));
        assert_string_equal(text, stored_as(with, y, w));
    }
}

// Values that cross stages arrive unsharded, and a stage that needs shards slices them; a separate
// model receives shards. Reading and writing the widest value takes longer than any such slice. In a
// step, a stage may gather its result instead, which takes one latency more.
static int64_t most_slices(int64_t steps)
{
    int64_t latency_ps = (int64_t)(LATENCY * 1e12);
    return 2 * PREFILL * 768 * 4 * BYTE_PS + steps * latency_ps;
}

// All stages are planned together, and values that cross stages may be sharded. So the latency is
// at most that of the exhaustive search. Returns true if it is less.
static bool check_case(int64_t steps, int64_t memory)
{
    int64_t want[2];
    bool less = false;
    try_all(steps, memory, &want[0], &want[1]);
    for (int what = TSR_LATENCY; what <= TSR_THROUGHPUT; what++) {
        struct net *t = new_net(4);
        t->o.stages = 2;
        t->o.memory = memory;
        t->o.objective = (tsr_objective)what;
        plan_both(t, 0, LAYERS, steps);
        assert_int_equal(t->p.facts.n_stages, 2);
        assert_int_equal(t->p.n_parts, 2);
        assert_int_equal(t->p.shared, LAYERS);
        less = less || (what == TSR_LATENCY && t->p.facts.cost < want[what]);
        if (what == TSR_LATENCY)
            assert_true(t->p.facts.cost <= want[what] &&
                        t->p.facts.cost >= t->p.parts[0].cost + steps * t->p.parts[1].cost);
        else
            assert_true(t->p.facts.cost <= want[what] + most_slices(steps));
        assert_int_equal(t->p.facts.latency, t->p.parts[0].cost);
        for (int device = 0; device < 4; device++)
            assert_true(t->p.facts.memory[device] <= memory);
        check_weights(t);
        free_both(t);
    }
    return less;
}

static void stages_of_both_are_the_best(void **state)
{
    (void)state;
    static const int64_t steps[] = {1, 100, 10000};
    int less = 0;
    for (size_t i = 0; i < TSR_COUNT(steps); i++)
        less += check_case(steps[i], 1 << 30);
    assert_true(less > 0);
}

// The first layer has 1,536 KiB on one device. With less memory it must be sharded, which otherwise
// does not give the best period.
static void stages_of_both_keep_to_memory(void **state)
{
    (void)state;
    int64_t room[2], tight[2];
    try_all(100, 1 << 30, &room[0], &room[1]);
    try_all(100, 1500 << 10, &tight[0], &tight[1]);
    assert_true(tight[0] > room[0] || tight[1] > room[1]);
    check_case(100, 1500 << 10);
}

// The other model reads its weights in another order, so no split keeps them together.
static void models_in_another_order_have_no_stages(void **state)
{
    (void)state;
    struct net *t = new_net(2);
    struct net other = *t;
    tsr_value *w[2], *x = input(t, "x", DIMS(8, 64));
    for (int i = 0; i < 2; i++)
        x = node(t, "MatMul", x, weight(t, i ? "w1" : "w0", DIMS(64, 64)), i ? "y1" : "y0");
    assert_int_equal(tsr_graph_add_output(t->g, x), TSR_OK);
    other.m = add_model(t);
    other.g = tsr_model_graph(other.m);
    x = input(&other, "x", DIMS(8, 64));
    for (int i = 0; i < 2; i++)
        w[i] = weight(&other, i ? "w1" : "w0", DIMS(64, 64));
    for (int i = 0; i < 2; i++)
        x = node(&other, "MatMul", x, w[1 - i], i ? "y1" : "y0");
    assert_int_equal(tsr_graph_add_output(other.g, x), TSR_OK);
    t->o.with = other.m;
    t->o.stages = 2;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-stages");
    free_both(t);
}

// Stages that were set by hand in the other model are not supported.
static void the_others_stages_by_hand_are_refused(void **state)
{
    (void)state;
    struct net *t = new_net(2);
    tsr_config *config;
    add_layers(t, t->m, PREFILL, 0, LAYERS);
    tsr_model *with = t->o.with = add_model(t);
    add_layers(t, with, DECODE, 0, LAYERS);
    assert_int_equal(tsr_model_add_config(with, "hand", 2, NULL, 0, &config), TSR_OK);
    assert_int_equal(tsr_node_set_stage(tsr_graph_first(tsr_model_graph(with)), config, 1), TSR_OK);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-config");
    free_both(t);
}

static void memory_may_fail(void **state)
{
    (void)state;
    bool done = false;
    for (uint64_t n = 1; !done && n < 1000000; n += 1 + n / 6) {
        struct net *t = new_net(2);
        add_layers(t, t->m, PREFILL, 0, 3);
        t->o.with = add_model(t);
        add_layers(t, t->o.with, DECODE, 0, 3);
        t->o.stages = 2;
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        tsr__session_fault(t->session, 0, 0, false);
        if (st != TSR_OK)
            assert_string_equal(tsr_finding_value(t->session, 0).code, "out-of-memory");
        done = st == TSR_OK;
        free_both(t);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_of_both_are_the_best),
        cmocka_unit_test(stages_of_both_keep_to_memory),
        cmocka_unit_test(models_in_another_order_have_no_stages),
        cmocka_unit_test(the_others_stages_by_hand_are_refused),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
