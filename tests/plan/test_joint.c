// SPDX-License-Identifier: Apache-2.0
// test_joint.c - prefill and decode planned together, compared with all layouts of their shared
// weights: each pair of layouts is fixed in both models, which are then planned separately.
#include "nets.h"

enum { WIDTH = 256, INNER = 512 };
static const double FLOPS = 1e12, BANDWIDTH = 2e10, LATENCY = 1e-6, LINK = 1e10;
static const char *const LAYOUTS[] = {"{1,1:(0,1)}", "{2,1:0,1}", "{1,2:0,1}"};

static struct net *new_net(void)
{
    return net_new("full:2", FLOPS, BANDWIDTH, LATENCY, LINK);
}

// Adds another model to the session of a net.
static tsr_model *add_model(struct net *t)
{
    tsr_model *m = NULL;
    assert_int_equal(tsr_model_new(t->session, "other", 11, &m), TSR_OK);
    assert_int_equal(tsr_model_set_opset(m, "", 18), TSR_OK);
    return m;
}

// One feed-forward layer for `rows` tokens; `bias`: a weight that only one of the models has.
static void add_layer(struct net *t, tsr_model *m, int64_t rows, const char *bias)
{
    struct net other = *t;
    other.m = m;
    other.g = tsr_model_graph(m);
    tsr_value *x = input(&other, "x", DIMS(rows, WIDTH));
    tsr_value *h = node(&other, "MatMul", x, weight(&other, "up", DIMS(WIDTH, INNER)), "h");
    tsr_value *r = node(&other, "Relu", h, NULL, "r");
    tsr_value *y = node(&other, "MatMul", r, weight(&other, "down", DIMS(INNER, WIDTH)), "y");
    if (bias)
        y = node(&other, "Add", y, weight(&other, bias, DIMS(rows, WIDTH)), "z");
    assert_int_equal(tsr_graph_add_output(other.g, y), TSR_OK);
}

static void shard(tsr_model *m, tsr_config *c, const char *value, const char *w, const char *text)
{
    tsr_graph *g = tsr_model_graph(m);
    assert_int_equal(tsr_node_shard_text(tsr_value_producer(tsr_graph_value(g, value)),
                                         tsr_graph_value(g, w), c, text),
                     TSR_OK);
}

// Cost of the layer alone with given weight layouts; 0: the planner chooses.
static int64_t plan_alone(int64_t rows, int up, int down, int64_t memory)
{
    struct net *t = new_net();
    tsr_config *c;
    add_layer(t, t->m, rows, NULL);
    t->o.memory = memory;
    if (up >= 0) {
        assert_int_equal(tsr_model_add_config(t->m, "told", 2, NULL, 0, &c), TSR_OK);
        shard(t->m, c, "h", "up", LAYOUTS[up]);
        shard(t->m, c, "y", "down", LAYOUTS[down]);
    }
    tsr_status st = tsr__plan(t->m, &t->o, &t->p);
    assert_true(st == TSR_OK || st == TSR_INFEASIBLE);
    int64_t cost = st == TSR_OK ? t->p.facts.cost : -1;
    net_free(t);
    return cost;
}

// Minimum over all layouts; *up, *down: the layouts of the minimum.
static int64_t try_all(int64_t prefill, int64_t decode, int64_t steps, int64_t memory, int *up,
                       int *down)
{
    int64_t best = INT64_MAX;
    for (int u = 0; u < 3; u++)
        for (int d = 0; d < 3; d++) {
            int64_t a = plan_alone(prefill, u, d, memory), b = plan_alone(decode, u, d, memory);
            if (a >= 0 && b >= 0 && a + steps * b < best) {
                best = a + steps * b;
                *up = u;
                *down = d;
            }
        }
    return best;
}

static const char *stored_as(tsr_model *m, const char *value, const char *w)
{
    const char *text = "";
    tsr_graph *g = tsr_model_graph(m);
    const tsr_spec *s = tsr_node_sharding_of(tsr_value_producer(tsr_graph_value(g, value)),
                                             tsr_graph_value(g, w), 0);
    assert_non_null(s);
    assert_int_equal(tsr_spec_text(s, &text), TSR_OK);
    return text;
}

static void check_same(tsr_model *a, tsr_model *b, const char *value, const char *w)
{
    char text[64];
    snprintf(text, sizeof text, "%s", stored_as(a, value, w));
    assert_string_equal(text, stored_as(b, value, w));
}

// The joint plan must have the cost of the exhaustive search, and equal weight layouts in both
// models.
static void weights_lie_where_both_are_best(void **state)
{
    (void)state;
    static const int64_t steps[] = {1, 4, 16, 64, 1000};
    int last_up = -1, changes = 0;
    for (size_t i = 0; i < TSR_COUNT(steps); i++) {
        struct net *t = new_net();
        int up = -1, down = -1;
        int64_t want = try_all(4096, 1, steps[i], 1 << 30, &up, &down);
        add_layer(t, t->m, 4096, NULL);
        t->o.with = add_model(t);
        t->o.steps = steps[i];
        add_layer(t, t->o.with, 1, NULL);
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_true(t->p.facts.optimal);
        assert_int_equal(t->p.shared, 2);
        assert_int_equal(t->p.n_parts, 2);
        assert_int_equal(t->p.facts.cost, want);
        assert_int_equal(t->p.facts.cost, t->p.parts[0].cost + steps[i] * t->p.parts[1].cost);
        assert_true(t->p.parts[0].cost >= plan_alone(4096, -1, -1, 1 << 30));
        assert_true(t->p.parts[1].cost >= plan_alone(1, -1, -1, 1 << 30));
        check_same(t->m, t->o.with, "h", "up");
        check_same(t->m, t->o.with, "y", "down");
        changes += last_up >= 0 && up != last_up;
        last_up = up;
        tsr_model_free(t->o.with);
        net_free(t);
    }
    assert_true(changes > 0); // few and many steps have different best layouts
}

// Only half of the weights fit: both models must shard them, and shared weights count once.
static void shared_weights_count_once(void **state)
{
    (void)state;
    int64_t weights = (int64_t)2 * WIDTH * INNER * 4;
    int up, down;
    struct net *t = new_net();
    add_layer(t, t->m, 64, NULL);
    t->o.with = add_model(t);
    add_layer(t, t->o.with, 1, NULL);
    t->o.memory = weights / 2 + (600 << 10);
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.facts.cost, try_all(64, 1, 1, t->o.memory, &up, &down));
    assert_true(up > 0 && down > 0);
    for (int d = 0; d < 2; d++)
        assert_true(t->p.facts.memory[d] <= t->o.memory);
    tsr_model_free(t->o.with);
    net_free(t);
}

// The weights of one model occupy memory while the other runs.
static void others_weights_are_counted(void **state)
{
    (void)state;
    int64_t needs[2];
    for (int bias = 0; bias < 2; bias++) {
        struct net *t = new_net();
        add_layer(t, t->m, 64, NULL);
        t->o.with = add_model(t);
        add_layer(t, t->o.with, 1024, bias ? "bias" : NULL);
        t->o.memory = 1;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
        needs[bias] = t->p.facts.needs_bytes;
        assert_int_equal(tsr_model_config_count(t->m), 0);
        t->o.memory = needs[bias];
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        tsr_model_free(t->o.with);
        net_free(t);
    }
    assert_true(needs[1] > needs[0]);
}

// Weights with different names and equal content.
static void equal_bytes_are_the_same_weight(void **state)
{
    (void)state;
    struct net *t = new_net();
    float *data = calloc(WIDTH * WIDTH, sizeof *data);
    tsr_model *m[2] = {t->m, add_model(t)};
    const char *const names[2] = {"w", "onnx::MatMul_17"};
    for (int i = 0; i < WIDTH * WIDTH; i++)
        data[i] = (float)i;
    for (int i = 0; i < 2; i++) {
        struct net one = *t;
        one.m = m[i];
        one.g = tsr_model_graph(m[i]);
        tsr_value *w = tsr_graph_add_initializer(one.g, names[i], TSR_FLOAT, 2, DIMS(WIDTH, WIDTH),
                                                 data, WIDTH * WIDTH * sizeof *data);
        tsr_value *y = node(&one, "MatMul", input(&one, "x", DIMS(i ? 1 : 512, WIDTH)), w, "y");
        assert_int_equal(tsr_graph_add_output(one.g, y), TSR_OK);
    }
    t->o.with = m[1];
    t->o.steps = 1000;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_int_equal(t->p.shared, 1);
    char text[64];
    snprintf(text, sizeof text, "%s", stored_as(m[0], "y", "w"));
    assert_string_equal(text, stored_as(m[1], "y", names[1]));
    free(data);
    tsr_model_free(m[1]);
    net_free(t);
}

// The first model computes keys of all tokens. The second appends one key to the cache and uses it.
static void add_keys(struct net *t, tsr_model *m, int64_t past)
{
    struct net other = *t;
    other.m = m;
    other.g = tsr_model_graph(m);
    tsr_value *x = input(&other, "x", DIMS(past ? 1 : 4096, WIDTH));
    const char *name = past ? "new" : "present";
    tsr_value *k = node(&other, "MatMul", x, weight(&other, "keys", DIMS(WIDTH, WIDTH)), name);
    if (past) {
        tsr_node *n =
            add_node(&other, "Concat", input(&other, "past", DIMS(past, WIDTH)), k, "present");
        assert_int_equal(tsr_node_set_int(n, "axis", 0), TSR_OK);
        k = tsr_node_output(n, 0);
        tsr_value *s = node(&other, "MatMul", x, transpose(&other, k, DIMS(1, 0), "turned"), "s");
        assert_int_equal(tsr_graph_add_output(other.g, s), TSR_OK);
    }
    assert_int_equal(tsr_graph_add_output(other.g, k), TSR_OK);
}

// A state must have the same sharding in both models; keeping it on its devices must be cheaper.
static void caches_lie_the_same(void **state)
{
    (void)state;
    static const char *const states[] = {"pa*t=pre*ent"};
    int64_t cost[2];
    for (int stays = 0; stays < 2; stays++) {
        struct net *t = new_net();
        tsr_model *with = t->o.with = add_model(t);
        add_keys(t, t->m, 0);
        add_keys(t, with, 4095);
        t->o.steps = 100;
        t->o.state = states;
        t->o.n_state = (size_t)stays;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        cost[stays] = t->p.facts.cost;
        if (stays) {
            char text[64];
            snprintf(text, sizeof text, "%s", stored_as(t->m, "present", "present"));
            assert_string_equal(text, stored_as(with, "present", "present"));
            assert_string_equal(text, stored_as(with, "present", "past"));
            assert_true(strstr(text, "2") != NULL); // sharded
            assert_string_equal(tsr_model_metadata(with, "ai.tessera.state"), "past=present");
            assert_string_equal(tsr_model_metadata(t->m, "ai.tessera.keep_cut"), "present");
        } else {
            assert_null(tsr_model_metadata(with, "ai.tessera.state"));
        }
        // States of the caller replace those of an earlier plan. A pair that is given twice counts
        // once.
        static const char *const again[] = {"past=present", "pa*t=pre*ent"};
        t->o.config = "again";
        t->o.state = again;
        t->o.n_state = 2;
        assert_int_equal(tsr_model_set_metadata(with, "ai.tessera.state", "old=older"), TSR_OK);
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_string_equal(tsr_model_metadata(with, "ai.tessera.state"), "past=present");
        assert_true(!stays || t->p.facts.cost == cost[1]);
        tsr_model_free(with);
        net_free(t);
    }
    assert_true(cost[1] < cost[0]); // each device reads only its shard
}

static void wrong_states_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"past", "past=absent", "nobody=present"};
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        struct net *t = new_net();
        add_keys(t, t->m, 15);
        t->o.state = &wrong[i];
        t->o.n_state = 1;
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
        size_t n = tsr_finding_count(t->session);
        assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-state");
        net_free(t);
    }
}

// Bytes of all devices beyond those of the first model alone.
static int64_t beyond_first(const struct net *t)
{
    int64_t more = 0;
    for (size_t d = 0; d < t->p.facts.devices; d++)
        more += t->p.facts.memory[d] - t->p.parts[0].memory[d];
    return more;
}

// While the first model runs, weights of the other occupy memory too; shared weights count once.
static void told_memory_has_both(void **state)
{
    (void)state;
    static const int64_t stages[] = {0, 2};
    for (size_t i = 0; i < TSR_COUNT(stages); i++)
        for (int bias = 0; bias < 2; bias++) {
            struct net *t = new_net();
            add_layer(t, t->m, 4096, NULL);
            t->o.with = add_model(t);
            add_layer(t, t->o.with, 64, bias ? "bias" : NULL);
            t->o.stages = stages[i];
            assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
            if (bias)
                assert_true(beyond_first(t) >= 64 * WIDTH * 4);
            else
                assert_int_equal(beyond_first(t), 0);
            tsr_model_free(t->o.with);
            net_free(t);
        }
}

// A model cannot be planned together with itself.
static void wrong_pairs_are_refused(void **state)
{
    (void)state;
    struct net *t = new_net();
    add_layer(t, t->m, 4, NULL);
    t->o.with = t->m;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INVALID);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-with");
    net_free(t);
}

static void memory_may_fail(void **state)
{
    (void)state;
    bool done = false;
    for (uint64_t n = 1; !done && n < 1000000; n += 1 + n / 6) {
        struct net *t = new_net();
        add_layer(t, t->m, 8, NULL);
        t->o.with = add_model(t);
        add_layer(t, t->o.with, 1, NULL);
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        tsr__session_fault(t->session, 0, 0, false);
        assert_true(st == TSR_OK || tsr_finding_count(t->session) > 0);
        if (st != TSR_OK)
            assert_string_equal(tsr_finding_value(t->session, 0).code, "out-of-memory");
        done = st == TSR_OK;
        tsr_model_free(t->o.with);
        net_free(t);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_lie_where_both_are_best),
        cmocka_unit_test(shared_weights_count_once),
        cmocka_unit_test(others_weights_are_counted),
        cmocka_unit_test(equal_bytes_are_the_same_weight),
        cmocka_unit_test(caches_lie_the_same),
        cmocka_unit_test(wrong_states_are_refused),
        cmocka_unit_test(told_memory_has_both),
        cmocka_unit_test(wrong_pairs_are_refused),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
