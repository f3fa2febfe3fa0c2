// SPDX-License-Identifier: Apache-2.0
// test_known.c - programs with known solutions: mixed plans under a limit, planted solutions in
// programs of large treewidth, decoders; determinism; failing allocations.
#include "common.h"
#include "decoder.h"

// n equal layers in a chain, each fast and large or slow and small: as many fast ones as fit.
static void layers_mix_two_plans(void **state)
{
    struct bench *b = *state;
    enum { LAYERS = 40, FAST = 10, SLOW = 13, LARGE = 5, LITTLE = 2 };
    static const int64_t cost[] = {FAST, SLOW}, bytes[] = {LARGE, LITTLE}, edge[4] = {0};
    uint32_t m = tsr__program_limit(&b->p, STR("weights"), 0, 1);
    for (uint32_t i = 0; i < LAYERS; i++) {
        uint32_t v = tsr__program_node(&b->p, STR("layer"), 2, cost);
        tsr__program_use(&b->p, m, v, 0, 1, bytes);
        if (i)
            tsr__program_edge(&b->p, i - 1, i, edge);
    }
    for (int64_t slack = 0; slack <= LAYERS * (LARGE - LITTLE) + 2; slack += 7) {
        struct program_result r;
        int64_t fast = slack / (LARGE - LITTLE);
        fast = fast > LAYERS ? LAYERS : fast;
        b->p.limits.at[m].bound = LAYERS * LITTLE + slack;
        assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
        assert_true(r.optimal);
        assert_int_equal(r.cost, fast * FAST + (LAYERS - fast) * SLOW);
    }
    struct program_least least;
    assert_int_equal(tsr__program_least(&b->p, NULL, &b->arena, &least), TSR_OK);
    assert_true(least.proved);
    assert_int_equal(least.least, LAYERS * LITTLE);
    struct program_result r;
    b->p.limits.at[m].bound = LAYERS * LITTLE - 1;
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.infeasible);
}

// A node with one choice must not connect its many neighbours. An elimination order that made a
// clique of them would need minutes and gigabytes.
static void one_choice_connects_nothing(void **state)
{
    struct bench *b = *state;
    enum { LEAVES = 50000 };
    static const int64_t hub_cost[] = {7}, leaf_cost[] = {3, 1}, edge[] = {0, 5}, back[] = {0, 9};
    struct program_result r;
    uint32_t hub = tsr__program_node(&b->p, STR("hub"), 1, hub_cost);
    for (uint32_t i = 0; i < LEAVES; i++) {
        uint32_t leaf = tsr__program_node(&b->p, STR("leaf"), 2, leaf_cost);
        if (i % 2)
            tsr__program_edge(&b->p, hub, leaf, edge);
        else
            tsr__program_edge(&b->p, leaf, hub, back);
    }
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.optimal);
    assert_int_equal(r.cost, 7 + 3 * LEAVES);
    assert_int_equal(tsr__program_cost(&b->p, r.choice), r.cost);
}

// No bound at a single time proves the optimum; the search must end at a solution near enough.
static void near_enough_is_found_sooner(void **state)
{
    struct bench *b = *state;
    enum { NODES = 12, CHOICES = 4 };
    static const int64_t cost[CHOICES];
    static int64_t one[NODES][CHOICES], other[NODES][CHOICES];
    struct program_least exact, near;
    struct program_options about = {.work = UINT64_C(4000000000), .near = 0.5};
    uint32_t m = tsr__program_limit(&b->p, STR("memory"), 0, 2);
    // a choice with little usage at one time has much at the other
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t c = 0; c < CHOICES; c++) {
            one[i][c] = 1000 * c + (i * 7919 + c * 1047) % 977;
            other[i][c] = 1000 * (CHOICES - c) + (i * 104729 + c * 31) % 977;
        }
        uint32_t v = tsr__program_node(&b->p, STR("node"), CHOICES, cost);
        tsr__program_use(&b->p, m, v, 0, 1, one[i]);
        tsr__program_use(&b->p, m, v, 1, 2, other[i]);
    }
    assert_int_equal(tsr__program_least(&b->p, NULL, &b->arena, &exact), TSR_OK);
    assert_int_equal(tsr__program_least(&b->p, &about, &b->arena, &near), TSR_OK);
    assert_true(exact.found && near.found);
    assert_true(near.least >= exact.least && near.bound <= exact.least);
    assert_true(near.work < exact.work);
}

// The limit binds at two times, with different choices.
static void two_times_bind(void **state)
{
    struct bench *b = *state;
    enum { NODES = 12 };
    static const int64_t cost[] = {0, 4}, bytes[] = {9, 1};
    uint32_t m = tsr__program_limit(&b->p, STR("memory"), 3 * 9 + 3, 2);
    for (uint32_t i = 0; i < NODES; i++) {
        uint32_t v = tsr__program_node(&b->p, STR("value"), 2, cost);
        tsr__program_use(&b->p, m, v, i % 2, i % 2 + 1, bytes);
    }
    struct program_result r;
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.optimal); // 3 of 6 stay large at each time
    assert_int_equal(r.cost, 6 * 4);
    assert_true(r.n_bindings > 0);
    assert_int_equal(r.bindings[0].limit, m);
    assert_int_equal(r.bindings[0].used, 30);
}

// All pairs are edges; one assignment costs nothing, and its usage equals the limit.
static void plant(struct bench *b, uint32_t nodes, uint32_t k, bool limit, uint64_t seed)
{
    uint32_t *planted = ARENA_ARRAY(&b->arena, uint32_t, nodes);
    int64_t used[3] = {0};
    tsr__program_init(&b->p, &b->arena);
    uint32_t m = limit ? tsr__program_limit(&b->p, STR("limit"), 0, 3) : 0;
    for (uint32_t v = 0; v < nodes; v++) {
        int64_t *cost = ARENA_ARRAY(&b->arena, int64_t, k);
        int64_t *usage = ARENA_ARRAY(&b->arena, int64_t, k);
        planted[v] = (uint32_t)(draw(&seed) % k);
        for (uint32_t c = 0; c < k; c++) {
            cost[c] = c == planted[v] ? 0 : (int64_t)(draw(&seed) % 9);
            usage[c] = (int64_t)(draw(&seed) % 50);
        }
        tsr__program_node(&b->p, STR("node"), k, cost);
        uint32_t begin = (uint32_t)(draw(&seed) % 3);
        for (uint32_t t = begin; t < 3; t++)
            used[t] += usage[planted[v]];
        if (limit)
            tsr__program_use(&b->p, m, v, begin, 3, usage);
    }
    for (uint32_t u = 0; u < nodes; u++)
        for (uint32_t v = u + 1; v < nodes; v++) {
            int64_t *table = ARENA_ARRAY(&b->arena, int64_t, (size_t)k * k);
            for (uint32_t i = 0; i < k * k; i++)
                table[i] = draw(&seed) % 4 == 0 ? COST_FORBIDDEN : 1 + (int64_t)(draw(&seed) % 20);
            table[planted[u] * k + planted[v]] = 0;
            tsr__program_edge(&b->p, u, v, table);
        }
    if (limit)
        b->p.limits.at[m].bound = used[2];
}

static void planted_answers_are_found(void **state)
{
    struct bench *b = *state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct program_result r, again;
        plant(b, 30, 5, seed % 2 == 0, seed);
        struct program_options o = {.work = 200000000};
        assert_int_equal(tsr__program_solve(&b->p, &o, &b->arena, &r), TSR_OK);
        assert_true(r.feasible && r.optimal);
        assert_int_equal(r.cost, 0);
        assert_int_equal(tsr__program_solve(&b->p, &o, &b->arena, &again), TSR_OK);
        assert_int_equal(r.work, again.work); // deterministic
        assert_memory_equal(r.choice, again.choice, b->p.nodes.n * sizeof(uint32_t));
    }
}

// Random wide programs: with little work results are weaker but valid.
static void bounds_hold_when_work_ends(void **state)
{
    struct bench *b = *state;
    static const struct shape wide = {40, 6, 60, 5, 2, 8, 80, 1000};
    for (uint64_t seed = 1; seed <= 6; seed++) {
        int64_t bound = INT64_MIN, cost = COST_FORBIDDEN;
        draw_program(&b->p, &b->arena, seed, &wide);
        for (uint64_t work = 1000; work <= 100000000; work *= 100) {
            struct program_result r;
            struct program_options o = {.work = work};
            assert_int_equal(tsr__program_solve(&b->p, &o, &b->arena, &r), TSR_OK);
            if (r.feasible) {
                assert_int_equal(tsr__program_cost(&b->p, r.choice), r.cost);
                for (uint32_t l = 0; l < b->p.limits.n; l++)
                    assert_true(tsr__program_peak(&b->p, l, r.choice, NULL) <=
                                b->p.limits.at[l].bound);
                cost = r.cost < cost ? r.cost : cost;
            }
            if (!r.infeasible)
                bound = r.bound > bound ? r.bound : bound;
            assert_true(bound <= cost);
            assert_false(r.infeasible && cost != COST_FORBIDDEN);
        }
    }
}

// Decoders with increasing memory limits: all must be solved to optimality.
static void decoders_are_proved(void **state)
{
    struct bench *b = *state;
    struct decoder d = DECODER;
    d.layers = 24;
    int64_t last = INT64_MAX;
    for (int percent = 5; percent <= 105; percent += 20) {
        struct program_result r;
        decoder_program(&b->p, &b->arena, &d, percent);
        assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
        assert_true(r.optimal);
        assert_true(r.cost <= last); // more memory must not cost more
        last = r.cost;
    }
    struct program_result r;
    decoder_program(&b->p, &b->arena, &d, -1);
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.optimal);
    assert_int_equal(r.cost, last);
}

// Each allocation fails in turn: no crash, no leak, a valid result or TSR_NOMEM.
static void failing_memory_is_reported(void **state)
{
    struct bench *b = *state;
    static const struct shape small = {9, 4, 40, 10, 2, 3, 80, 100};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        draw_program(&b->p, &b->arena, seed, &small);
        bool done = false;
        for (uint64_t n = 1; !done && n < 100000; n += 1 + n / 8) {
            struct arena a;
            struct program_result r;
            struct program_least least;
            tsr__arena_init(&a, b->session);
            tsr__session_fault(b->session, 0, n, n % 2 == 0);
            tsr_status st = tsr__program_solve(&b->p, NULL, &a, &r);
            tsr_status st2 = tsr__program_least(&b->p, NULL, &a, &least);
            tsr__session_fault(b->session, 0, 0, false);
            assert_true(st == TSR_OK || st == TSR_NOMEM);
            assert_true(st2 == TSR_OK || st2 == TSR_NOMEM);
            done = st == TSR_OK && st2 == TSR_OK && n % 2 == 0;
            tsr__arena_free(&a);
        }
        assert_true(done);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_bench, free_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(layers_mix_two_plans),        TEST(two_times_bind),
        TEST(near_enough_is_found_sooner), TEST(planted_answers_are_found),
        TEST(bounds_hold_when_work_ends),  TEST(decoders_are_proved),
        TEST(failing_memory_is_reported),  TEST(one_choice_connects_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
