// SPDX-License-Identifier: Apache-2.0
// test_program.c - the 0-1 program: checks, evaluation, small solutions, errors.
#include "common.h"

// The example of solver.h.
static void two_nodes(struct program *p)
{
    static const int64_t u_cost[] = {3, 5}, v_cost[] = {0, 1}, table[] = {0, 9, COST_FORBIDDEN, 0},
                         bytes[] = {64, 16};
    uint32_t u = tsr__program_node(p, STR("u"), 2, u_cost);
    uint32_t v = tsr__program_node(p, STR("v"), 2, v_cost);
    tsr__program_edge(p, u, v, table);
    uint32_t m = tsr__program_limit(p, STR("memory"), 100, 1);
    tsr__program_use(p, m, u, 0, 1, bytes);
}

static void small_program_is_solved(void **state)
{
    struct bench *b = *state;
    struct program_result r;
    two_nodes(&b->p);
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.optimal && r.feasible && !r.infeasible);
    assert_int_equal(r.cost, 3);
    assert_int_equal(r.bound, 3);
    b->p.limits.at[0].bound = 63;
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_int_equal(r.cost, 6);
    assert_int_equal(r.choice[0], 1);
    assert_int_equal(r.choice[1], 1);
    b->p.limits.at[0].bound = 15;
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_OK);
    assert_true(r.infeasible && !r.feasible);
}

// Node 1 and its edge have the weight 5 / 2, node 0 has 1.
static struct program_weight test_weight(const void *context, uint32_t a, uint32_t b)
{
    (void)context;
    return a == 0 && b == 0 ? (struct program_weight){1, 1} : (struct program_weight){5, 2};
}

static void programs_are_added_with_weights(void **state)
{
    struct bench *b = *state;
    struct program sum;
    two_nodes(&b->p);
    tsr__program_edge(&b->p, 0, 1, b->p.edges.at[0].cost);
    tsr__program_init(&sum, &b->arena);
    assert_int_equal(tsr__program_add(&sum, &b->p, test_weight, NULL), 0);
    assert_int_equal(tsr__program_add(&sum, &b->p, test_weight, NULL), 2);
    assert_int_equal(tsr__program_check(&sum), TSR_OK);
    assert_ptr_equal(sum.nodes.at[2].cost, b->p.nodes.at[0].cost);
    assert_int_equal(sum.nodes.at[3].cost[1], 2); // rounded down from 1 * 5 / 2
    assert_int_equal(sum.edges.at[2].a, 2);
    assert_int_equal(sum.edges.at[2].cost[1], 22); // rounded down from 9 * 5 / 2
    assert_int_equal(sum.edges.at[2].cost[2], COST_FORBIDDEN);
    assert_ptr_equal(sum.edges.at[2].cost, sum.edges.at[3].cost); // shared tables stay shared
    assert_int_equal(sum.limits.n, 2);
    assert_int_equal(sum.limits.at[1].uses.at[0].node, 2);
    // A product that exceeds int64.
    b->p.nodes.at[1].cost = (int64_t[]){0, INT64_MAX / 4};
    tsr__program_init(&sum, &b->arena);
    assert_int_equal(tsr__program_add(&sum, &b->p, test_weight, NULL), 0);
    assert_true(sum.nodes.at[1].cost[1] > INT64_MAX / 2);
}

// The smallest possible usage, and the best cost for each choice of a node.
static void least_limit_and_marginals(void **state)
{
    struct bench *b = *state;
    struct program_least least;
    struct program_marginal m[2];
    two_nodes(&b->p);
    assert_int_equal(tsr__program_least(&b->p, NULL, &b->arena, &least), TSR_OK);
    assert_true(least.found && least.proved);
    assert_int_equal(least.least, 16);
    assert_int_equal(tsr__program_marginals(&b->p, NULL, &b->arena, 1, m), TSR_OK);
    assert_int_equal(m[0].cost, 3);
    assert_int_equal(m[1].cost, 6);
}

static void wrong_programs_are_refused(void **state)
{
    struct bench *b = *state;
    struct program_result r;
    two_nodes(&b->p);
    assert_int_equal(tsr__program_check(&b->p), TSR_OK);
    b->p.edges.at[0].b = 0;
    assert_int_equal(tsr__program_solve(&b->p, NULL, &b->arena, &r), TSR_INVALID);
    b->p.edges.at[0].b = 2;
    assert_int_equal(tsr__program_check(&b->p), TSR_INVALID);
    b->p.edges.at[0].b = 1;
    b->p.limits.at[0].uses.at[0].end = 2;
    assert_int_equal(tsr__program_check(&b->p), TSR_INVALID);
    b->p.limits.at[0].uses.at[0].end = 1;
    b->p.limits.at[0].uses.at[0].usage = (int64_t[]){1, -1};
    assert_int_equal(tsr__program_check(&b->p), TSR_INVALID);
    b->p.limits.at[0].uses.at[0].usage = (int64_t[]){1, 1};
    b->p.nodes.at[0].cost = (int64_t[]){PROGRAM_MOST, 0};
    // overflows together with the 9 of the edge
    assert_int_equal(tsr__program_check(&b->p), TSR_INVALID);
}

static void peaks_and_times(void **state)
{
    struct bench *b = *state;
    static const int64_t none[] = {0}, one[] = {1}, two[] = {2};
    uint8_t kept[6];
    uint32_t time = 9, choice[] = {0};
    uint32_t v = tsr__program_node(&b->p, STR("v"), 1, none);
    uint32_t l = tsr__program_limit(&b->p, STR("l"), 5, 6);
    tsr__program_use(&b->p, l, v, 0, 3, one);
    tsr__program_use(&b->p, l, v, 2, 4, two);
    tsr__program_use(&b->p, l, v, 3, 6, one);
    assert_int_equal(tsr__program_peak(&b->p, l, choice, &time), 3);
    assert_int_equal(time, 2);
    tsr__program_times(&b->p.limits.at[l], kept);
    assert_memory_equal(kept, ((uint8_t[]){0, 0, 1, 1, 0, 0}), 6);
}

static void lp_file_has_what_it_says(void **state)
{
    struct bench *b = *state;
    struct text t;
    two_nodes(&b->p);
    tsr__text_init(&t, b->session);
    assert_int_equal(tsr__program_lp(&b->p, &t), TSR_OK);
    assert_string_equal(t.p, "Minimize\n"
                             " cost: 3 s_0_0 + 5 s_0_1 + s_1_1 + 9 e_0_0_1\n"
                             "Subject To\n"
                             "\\ node 0: u\n"
                             " one_0: s_0_0 + s_0_1 = 1\n"
                             "\\ node 1: v\n"
                             " one_1: s_1_0 + s_1_1 = 1\n"
                             " r_0_0: e_0_0_0 + e_0_0_1 - s_0_0 = 0\n"
                             " r_0_1: e_0_1_1 - s_0_1 = 0\n"
                             " c_0_0: e_0_0_0 - s_1_0 = 0\n"
                             " c_0_1: e_0_0_1 + e_0_1_1 - s_1_1 = 0\n"
                             " m_0_0: 64 s_0_0 + 16 s_0_1 <= 100\n"
                             "Binaries\n"
                             " s_0_0 s_0_1 s_1_0 s_1_1\n"
                             "End\n");
    tsr__text_free(&t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_bench, free_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(small_program_is_solved),   TEST(programs_are_added_with_weights),
        TEST(least_limit_and_marginals), TEST(wrong_programs_are_refused),
        TEST(peaks_and_times),           TEST(lp_file_has_what_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
