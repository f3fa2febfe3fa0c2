// SPDX-License-Identifier: Apache-2.0
// test_joint_blocks.c - two models with shared weights on large clusters: copies of a device set
// compared with all devices at once, equal weight layouts, and copies that divide both batches.
#include "nets.h"

#define INNER 1024

static const tsr_dim_size *sizes_of(int64_t first, int64_t second, tsr_dim_size *out)
{
    out[0] = (tsr_dim_size){"batch", first};
    out[1] = (tsr_dim_size){"batch", second};
    return out;
}

// One feed-forward layer over a batch of rows of `tokens` tokens.
static void add_layer(struct net *t, tsr_model *m, int64_t tokens)
{
    struct net other = *t;
    other.m = m;
    other.g = tsr_model_graph(m);
    tsr_dim dims[] = {{-1, "batch"}, {tokens, ""}, {256, ""}};
    tsr_value *x = tsr_graph_add_input(other.g, "x");
    assert_int_equal(tsr_value_set_type(x, TSR_FLOAT, 3, dims), TSR_OK);
    tsr_value *h = node(&other, "MatMul", x, weight(&other, "up", DIMS(256, INNER)), "h");
    tsr_value *r = node(&other, "Relu", h, NULL, "r");
    tsr_value *y = node(&other, "MatMul", r, weight(&other, "down", DIMS(INNER, 256)), "y");
    assert_int_equal(tsr_graph_add_output(other.g, y), TSR_OK);
}

// Prefill of 64 tokens and decode of one, with different batches.
static struct net *two_models(const char *machine, const tsr_dim_size *sizes)
{
    struct net *t = net_new(machine, 1e10, 1e10, 1e-6, 1e10);
    tsr_model *other = NULL;
    assert_int_equal(tsr_model_new(t->session, "other", 11, &other), TSR_OK);
    assert_int_equal(tsr_model_set_opset(other, "", 18), TSR_OK);
    add_layer(t, t->m, 64);
    add_layer(t, other, 1);
    t->o.with = other;
    t->o.steps = 16;
    t->o.sizes = &sizes[0];
    t->o.with_sizes = &sizes[1];
    t->o.n_sizes = t->o.n_with_sizes = 1;
    return t;
}

// The specs of a weight in the two models, at the producer of the value, must be equal.
static void check_same(const struct net *t, const char *value, const char *w)
{
    char text[2][4096];
    const tsr_model *models[2] = {t->m, t->o.with};
    for (int m = 0; m < 2; m++) {
        tsr_graph *g = tsr_model_graph((tsr_model *)models[m]);
        const char *said = NULL;
        const tsr_spec *spec = tsr_node_sharding_of(tsr_value_producer(tsr_graph_value(g, value)),
                                                    tsr_graph_value(g, w), 0);
        assert_non_null(spec);
        assert_int_equal(tsr_spec_text(spec, &said), TSR_OK);
        snprintf(text[m], sizeof text[m], "%s", said);
    }
    assert_string_equal(text[0], text[1]);
}

static void free_models(struct net *t)
{
    tsr_model_free(t->o.with);
    net_free(t);
}

// To explain a node, all devices are planned at once. Copies gather outputs differently, which is
// slower here.
static void as_good_as_all_at_once(void **state)
{
    (void)state;
    static const int64_t batches[][2] = {{96, 96}, {768, 768}, {96, 768}};
    for (size_t i = much_slower() ? 2 : 0; i < TSR_COUNT(batches); i++) {
        tsr_dim_size sizes[2];
        struct net *all = two_models("hosts:12x8", sizes_of(batches[i][0], batches[i][1], sizes));
        all->o.explain = "h";
        assert_int_equal(tsr__plan(all->m, &all->o, &all->p), TSR_OK);
        struct net *blocks = two_models("hosts:12x8", sizes);
        assert_int_equal(tsr__plan(blocks->m, &blocks->o, &blocks->p), TSR_OK);
        assert_true((double)blocks->p.facts.cost <= 1.1 * (double)all->p.facts.cost);
        assert_true(blocks->p.facts.bound <= all->p.facts.cost && blocks->p.facts.gap < 0.25);
        assert_int_equal(blocks->p.facts.used_devices, 96);
        assert_int_equal(blocks->p.shared, 2);
        check_same(blocks, "h", "up");
        check_same(blocks, "y", "down");
        assert_int_equal(
            tsr_check(blocks->m, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                      .config = blocks->p.parts[0].config}),
            TSR_OK);
        assert_int_equal(
            tsr_check(blocks->o.with, &(tsr_check_options){.size = sizeof(tsr_check_options),
                                                           .config = blocks->p.parts[1].config}),
            TSR_OK);
        assert_int_equal(tsr_finding_total(blocks->session, TSR_ERROR), 0);
        free_models(blocks);
        free_models(all);
    }
}

// Cost of one of the two models alone, also on copies.
static int64_t plan_alone(const char *machine, const tsr_dim_size *sizes, int m)
{
    struct net *t = two_models(machine, sizes);
    tsr_model *models[2] = {t->m, t->o.with};
    t->o.with = NULL;
    t->o.n_with_sizes = 0;
    t->o.sizes = &sizes[m];
    assert_int_equal(tsr__plan(models[m], &t->o, &t->p), TSR_OK);
    int64_t cost = t->p.facts.cost;
    tsr_model_free(models[1]);
    net_free(t);
    return cost;
}

// The joint time is the sum, and no less than the sum of the separate plans. The number of copies
// must divide both batches.
static void both_have_the_same_copies(void **state)
{
    (void)state;
    static const int64_t batches[][2] = {{48, 72}, {72, 72}, {7, 72}};
    size_t n = much_slower() ? 1 : TSR_COUNT(batches);
    for (size_t i = 0; i < n; i++) {
        tsr_dim_size sizes[2];
        struct net *t = two_models("hosts:9x8", sizes_of(batches[i][0], batches[i][1], sizes));
        assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
        assert_true(batches[i][0] % t->p.facts.copies == 0 &&
                    batches[i][1] % t->p.facts.copies == 0);
        assert_int_equal(t->p.facts.cost, t->p.parts[0].cost + 16 * t->p.parts[1].cost);
        int64_t first = plan_alone("hosts:9x8", sizes, 0);
        int64_t second = plan_alone("hosts:9x8", sizes, 1);
        assert_true(t->p.facts.cost >= first + 16 * second);
        check_same(t, "h", "up");
        check_same(t, "y", "down");
        for (int64_t device = 0; device < 72; device++)
            assert_int_equal(t->p.facts.memory[device] > 0, device < t->p.facts.used_devices);
        free_models(t);
    }
}

// Ten thousand devices are planned like a hundred; devices that differ have no copies.
static void large_machines(void **state)
{
    (void)state;
    tsr_dim_size sizes[2];
    struct net *t = two_models("hosts:1250x8", sizes_of(10000, 10000, sizes));
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.copies >= 1250 && t->p.facts.used_devices == 10000);
    free_models(t);
    t = two_models("hosts:256x8", sizes);
    tsr_topology_set_device(t->topology, 0,
                            &(tsr_topology_device){.flops = 2e10, .bandwidth = 1e10});
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_UNSUPPORTED);
    size_t n = tsr_finding_count(t->session);
    assert_string_equal(tsr_finding_value(t->session, n - 1).code, "plan-devices");
    free_models(t);
}

// 2 MiB of weights do not fit on devices of 2 MiB, so both models must shard them. On devices of 1
// KiB nothing fits.
static void memory_is_kept(void **state)
{
    (void)state;
    tsr_dim_size sizes[2];
    struct net *t = two_models("hosts:256x8", sizes_of(4096, 4096, sizes));
    t->o.memory = 2 << 20;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_OK);
    assert_true(t->p.facts.used_devices > t->p.facts.copies);
    free_models(t);
    t = two_models("hosts:256x8", sizes);
    t->o.memory = 1 << 10;
    assert_int_equal(tsr__plan(t->m, &t->o, &t->p), TSR_INFEASIBLE);
    assert_int_equal(tsr_finding_total(t->session, TSR_ERROR), 1);
    free_models(t);
}

static void memory_may_fail(void **state)
{
    (void)state;
    tsr_dim_size sizes[2];
    bool done = false;
    for (uint64_t n = 1; !done && n < 10000000; n += 1 + n / 2) {
        struct net *t = two_models("hosts:12x8", sizes_of(96, 96, sizes));
        tsr__session_fault(t->session, 0, n, false);
        tsr_status st = tsr__plan(t->m, &t->o, &t->p);
        tsr__session_fault(t->session, 0, 0, false);
        if (st != TSR_OK)
            assert_string_equal(tsr_finding_value(t->session, 0).code, "out-of-memory");
        done = st == TSR_OK;
        free_models(t);
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_good_as_all_at_once), cmocka_unit_test(both_have_the_same_copies),
        cmocka_unit_test(large_machines),         cmocka_unit_test(memory_is_kept),
        cmocka_unit_test(memory_may_fail),
    };
    return cmocka_run_group_tests_name("plan joint blocks", tests, NULL, NULL);
}
