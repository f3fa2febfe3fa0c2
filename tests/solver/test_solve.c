// SPDX-License-Identifier: Apache-2.0
// test_solve.c - compares the solver with enumeration on thousands of small random programs.
// Integer bounds must never be above the optimum, and rarely below those in doubles. Arguments:
// number of programs, first seed.
#include "../valgrind.h"
#include "random_program.h"
#include "solve.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t programs = 3000, first_seed = 1;

static const struct shape shapes[] = {
    {7, 4, 40, 0, 0, 1, 1, 20},   {7, 4, 60, 30, 0, 1, 1, 1000},     {6, 5, 100, 10, 0, 1, 1, 5},
    {7, 4, 40, 0, 1, 1, 90, 20},  {7, 4, 40, 20, 2, 4, 90, 50},      {6, 4, 20, 0, 3, 6, 70, 9},
    {5, 6, 100, 40, 2, 3, 60, 3}, {7, 3, 30, 50, 3, 5, 100, 100000}, {7, 4, 5, 0, 2, 3, 60, 30},
};

static void check_answer(const struct program *p, const struct truth *t,
                         const struct program_result *r)
{
    if (t->cost == COST_FORBIDDEN) {
        assert_true(r->infeasible && !r->feasible && !r->choice);
        return;
    }
    assert_true(r->feasible && r->optimal && !r->infeasible);
    assert_int_equal(r->cost, t->cost);
    assert_int_equal(r->bound, t->cost);
    assert_int_equal(tsr__program_cost(p, r->choice), t->cost);
    for (uint32_t l = 0; l < p->limits.n; l++)
        assert_true(tsr__program_peak(p, l, r->choice, NULL) <= p->limits.at[l].bound);
}

static void check_least(const struct program *p, struct arena *a, const struct truth *t)
{
    struct program_least least;
    assert_int_equal(tsr__program_least(p, NULL, a, &least), TSR_OK);
    assert_int_equal(least.found, t->least >= 0);
    if (t->least < 0)
        return;
    assert_true(least.proved);
    assert_int_equal(least.least, t->least);
    assert_int_equal(least.bound, t->least);
}

static void check_marginals(const struct program *p, struct arena *a, const struct truth *t)
{
    struct program_marginal m[16];
    assert_int_equal(tsr__program_marginals(p, NULL, a, 0, m), TSR_OK);
    for (uint32_t c = 0; c < p->nodes.at[0].k; c++) {
        assert_int_equal(m[c].cost, t->marginal[c]);
        assert_int_equal(m[c].infeasible, t->marginal[c] == COST_FORBIDDEN);
        assert_int_equal(m[c].optimal, t->marginal[c] != COST_FORBIDDEN);
    }
}

static void equals_trying_everything(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    for (uint64_t seed = first_seed; seed < first_seed + programs; seed++) {
        struct arena arena;
        struct program p;
        struct program_result r;
        tsr__arena_init(&arena, session);
        draw_program(&p, &arena, seed, &shapes[seed % TSR_COUNT(shapes)]);
        struct truth t = try_everything(&p);
        if (tsr__program_solve(&p, NULL, &arena, &r) != TSR_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, "status");
        if (r.feasible != (t.cost != COST_FORBIDDEN) || (r.feasible && r.cost != t.cost) ||
            (r.feasible && !r.optimal))
            print_message("seed %llu: %lld, found %lld, bound %lld\n", (unsigned long long)seed,
                          (long long)t.cost, (long long)r.cost, (long long)r.bound);
        check_answer(&p, &t, &r);
        if (seed % 3 == 0)
            check_least(&p, &arena, &t);
        if (seed % 3 == 1)
            check_marginals(&p, &arena, &t);
        tsr__arena_free(&arena);
    }
    tsr_session_free(session);
}

// Directly after a pass: the bound of each choice of node 0 is at most the best cost with it.
static void bounds_through_choices_hold(const struct core *c, const struct dual *d,
                                        const struct truth *t)
{
    double out[16];
    if (d->dense->n == 0 || d->dense->node[0] != 0)
        return;
    tsr__dual_through(d, 0, out);
    for (uint32_t choice = 0; choice < d->dense->k[0]; choice++) {
        int64_t least = t->marginal[c->nodes[0].origin[choice]];
        assert_true(out[choice] >= d->bound - 0.001);
        if (least != COST_FORBIDDEN)
            assert_true(out[choice] <= (double)(least - c->shift) + 0.001);
    }
}

// Bound for arbitrary messages and multipliers. Returns 1 if the integer bound equals that in
// doubles.
static int bound_holds(struct core *c, struct heap *h, uint64_t seed, const struct truth *t)
{
    struct dense w;
    struct dual d;
    if (c->infeasible)
        return 0;
    assert_true(tsr__dense_init(&w, c, h) && tsr__dual_init(&d, &w));
    for (uint32_t r = 0; r < w.n_rows; r++)
        d.lambda[r] = (double)(draw(&seed) % 1000) / 77;
    tsr__dual_apply_lambda(&d);
    for (int pass = 0; pass < 5; pass++)
        tsr__dual_pass(&d);
    bounds_through_choices_hold(c, &d, t);
    int64_t whole = tsr__dual_exact(&d);
    if (t->cost != COST_FORBIDDEN)
        assert_true(whole <= t->cost - c->shift);
    return (double)whole >= d.bound - 0.001;
}

static void bounds_in_whole_numbers_hold(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    int near = 0, all = 0;
    for (uint64_t seed = first_seed; seed < first_seed + programs / 5; seed++) {
        struct arena arena;
        struct program p;
        struct core core;
        struct heap heap;
        struct effort effort = {.limit = UINT64_MAX};
        tsr__arena_init(&arena, session);
        tsr__heap_init(&heap, session);
        draw_program(&p, &arena, seed, &shapes[seed % TSR_COUNT(shapes)]);
        struct truth t = try_everything(&p);
        assert_true(tsr__core_init(&core, &p, &heap, &effort, NONE, 0));
        near += bound_holds(&core, &heap, seed, &t);
        all++;
        tsr__heap_done(&heap);
        tsr__arena_free(&arena);
    }
    assert_true(near * 2 > all);
    tsr_session_free(session);
}

// A grid whose neighbours prefer near choices: too wide for elimination, and the bound is tight.
// Integers distinguish costs that doubles cannot.
static void large_costs_are_proved_to_the_unit(void **state)
{
    enum { SIDE = 20, K = 8 };
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    struct arena arena;
    struct program p;
    struct program_result r;
    uint64_t seed = 5;
    tsr__arena_init(&arena, session);
    tsr__program_init(&p, &arena);
    for (uint32_t v = 0; v < SIDE * SIDE; v++) {
        int64_t *cost = ARENA_ARRAY(&arena, int64_t, K);
        for (uint32_t c = 0; c < K; c++)
            cost[c] = (int64_t)(draw(&seed) % UINT64_C(100000000000000));
        tsr__program_node(&p, STR("node"), K, cost);
    }
    for (uint32_t v = 0; v < SIDE * SIDE; v++)
        for (int way = 0; way < 2; way++) {
            int64_t *cost = ARENA_ARRAY(&arena, int64_t, K * K);
            int64_t weight = (int64_t)(draw(&seed) % UINT64_C(20000000000000));
            for (int i = 0; i < K * K; i++)
                cost[i] = weight * llabs(i / K - i % K);
            if (way ? v % SIDE + 1 < SIDE : v + SIDE < SIDE * SIDE)
                tsr__program_edge(&p, v, v + (way ? 1 : SIDE), cost);
        }
    assert_int_equal(tsr__program_solve(&p, NULL, &arena, &r), TSR_OK);
    assert_true(r.optimal);
    assert_int_equal(r.bound, r.cost);
    tsr__arena_free(&arena);
    tsr_session_free(session);
}

// A clique of five nodes: messages leave a gap, and tables are too large for elimination before
// choices are ruled out.
static void draw_clique(struct program *p, struct arena *arena, uint64_t seed)
{
    enum { N = 5, K = 30 };
    tsr__program_init(p, arena);
    for (uint32_t v = 0; v < N; v++) {
        int64_t *cost = ARENA_ARRAY(arena, int64_t, K);
        for (uint32_t c = 0; c < K; c++)
            cost[c] = (int64_t)(draw(&seed) % 4000);
        tsr__program_node(p, STR("node"), K, cost);
    }
    for (uint32_t u = 0; u < N; u++)
        for (uint32_t v = u + 1; v < N; v++) {
            int64_t *cost = ARENA_ARRAY(arena, int64_t, K * K);
            for (uint32_t i = 0; i < K * K; i++)
                cost[i] = (int64_t)(draw(&seed) % 1000);
            tsr__program_edge(p, u, v, cost);
        }
}

// The optimum by elimination, without limits on size.
static int64_t eliminated(const struct program *p, tsr_session *session)
{
    struct core core;
    struct heap heap;
    struct dense dense;
    struct tree tree;
    struct effort effort = {.limit = UINT64_MAX};
    tsr__heap_init(&heap, session);
    assert_true(tsr__core_init(&core, p, &heap, &effort, NONE, 0) &&
                tsr__dense_init(&dense, &core, &heap));
    assert_true(tsr__tree_init(&tree, session, dense.n, dense.k, dense.edges, dense.n_edges,
                               UINT64_C(1) << 26, NULL, NULL));
    int64_t least = tsr__tree_up(&tree, dense.cost) + core.shift;
    tsr__tree_free(&tree);
    tsr__heap_done(&heap);
    return least;
}

static void choices_are_ruled_out(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    uint64_t last = much_slower() ? 1 : 3;
    for (uint64_t seed = 1; seed <= last; seed++) {
        struct arena arena;
        struct program p;
        struct program_result r;
        tsr__arena_init(&arena, session);
        draw_clique(&p, &arena, seed);
        assert_int_equal(tsr__program_solve(&p, NULL, &arena, &r), TSR_OK);
        assert_true(r.optimal);
        assert_int_equal(r.cost, eliminated(&p, session));
        assert_int_equal(tsr__program_cost(&p, r.choice), r.cost);
        tsr__arena_free(&arena);
    }
    tsr_session_free(session);
}

// A centre with one choice and leaves, all with zero edges. A leaf's choice that costs more uses
// less, so that fronts are long.
static void draw_star(struct program *p, struct arena *arena, uint64_t seed)
{
    enum { LEAVES = 12, K = 16 };
    static const int64_t zero[2 * K];
    tsr__program_init(p, arena);
    uint32_t limit = tsr__program_limit(p, STR("limit"), 0, 1);
    uint32_t centre = tsr__program_node(p, STR("centre"), 2, zero);
    for (uint32_t v = 0; v < LEAVES; v++) {
        int64_t *cost = ARENA_ARRAY(arena, int64_t, K), *usage = ARENA_ARRAY(arena, int64_t, K);
        for (uint32_t c = 0; c < K; c++) {
            cost[c] = 1000 * c + (int64_t)(draw(&seed) % 900);
            usage[c] = 1000 * (K - c) + (int64_t)(draw(&seed) % 900);
        }
        uint32_t leaf = tsr__program_node(p, STR("leaf"), K, cost);
        tsr__program_edge(p, centre, leaf, zero);
        tsr__program_use(p, limit, leaf, 0, 1, usage);
    }
    p->limits.at[limit].bound = 1000 * LEAVES * K / 2;
}

// Effort that runs out, also while the solution is read back, is not reported as lack of memory.
static void effort_may_run_out(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    struct arena arena;
    struct heap heap;
    struct program p;
    struct core core;
    struct dense dense;
    struct tree tree;
    struct effort effort = {.limit = UINT64_MAX};
    uint32_t x[16];
    int64_t cost, best = -1;
    tsr__arena_init(&arena, session);
    tsr__heap_init(&heap, session);
    draw_star(&p, &arena, 1);
    assert_true(tsr__core_init(&core, &p, &heap, &effort, NONE, 0) &&
                tsr__dense_init(&dense, &core, &heap));
    assert_true(tsr__tree_init(&tree, session, dense.n, dense.k, dense.edges, dense.n_edges,
                               UINT64_C(1) << 17, NULL, NULL));
    double *lambda = ARENA_ARRAY(&arena, double, (size_t)dense.n_rows + 1);
    struct front front = {.dense = &dense,
                          .tree = &tree,
                          .lambda = lambda,
                          .effort = &effort,
                          .max_points = UINT64_C(1) << 23};
    assert_true(dense.n_rows == 1 && dense.n <= TSR_COUNT(x));
    effort.work = 0;
    assert_int_equal(tsr__front(&front, INT64_C(1) << 40, x, &best), FRONT_FOUND);
    // The last thousandth of the work is reading back.
    const uint64_t all = effort.work,
                   limits[] = {all + 1, all - all / 2000, all - all / 1000, all / 2};
    for (size_t i = 0; i < TSR_COUNT(limits); i++) {
        effort = (struct effort){.limit = limits[i]};
        enum front_end end = tsr__front(&front, INT64_C(1) << 40, x, &cost);
        assert_int_equal(end, i ? FRONT_OVER : FRONT_FOUND);
        assert_true(i || cost == best);
    }
    tsr__tree_free(&tree);
    tsr__heap_done(&heap);
    tsr__arena_free(&arena);
    tsr_session_free(session);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        programs = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_trying_everything),
        cmocka_unit_test(bounds_in_whole_numbers_hold),
        cmocka_unit_test(large_costs_are_proved_to_the_unit),
        cmocka_unit_test(choices_are_ruled_out),
        cmocka_unit_test(effort_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
