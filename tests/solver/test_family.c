// SPDX-License-Identifier: Apache-2.0
// test_family.c - large synthetic problems with a planted solution. The solver must find one that
// keeps the limit and costs no more; its bound must be below; equal effort must give equal results;
// and time limits must be kept. Arguments: first seed.
#include "family.h"
#include "solve.h"
#include "../valgrind.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static uint64_t first_seed = 1;

static const struct {
    const char *name;
    struct family f;
} families[] = {
    {"narrow", {300, 8, 6, 14, 60, 2, 30, 6, 30, 90, 0}},
    {"hubs", {900, 10, 60, 16, 40, 6, 300, 12, 10, 90, 0}},
    {"wide", {1200, 6, 500, 22, 20, 2, 100, 12, 5, 95, 0}},
    {"aliases", {1500, 16, 400, 20, 90, 4, 200, 200, 0, 95, 0}},
    {"no room", {800, 5, 40, 18, 30, 4, 200, 40, 0, 100, 0}},
    {"few aliases", {400, 40, 200, 20, 5, 4, 60, 100, 10, 97, 0}},
    {"many choices", {300, 64, 30, 16, 30, 3, 60, 10, 10, 90, 0}},
};

static void check(const struct program *p, const struct program_result *r, int64_t planted,
                  const char *name)
{
    if (!r->feasible || r->cost > planted || r->bound > r->cost || r->infeasible)
        fail_msg("%s: %d, cost %lld, bound %lld, planted %lld", name, r->feasible,
                 (long long)r->cost, (long long)r->bound, (long long)planted);
    assert_int_equal(tsr__program_cost(p, r->choice), r->cost);
    assert_true(tsr__program_peak(p, 0, r->choice, NULL) <= p->limits.at[0].bound);
}

// However small the effort, everything that is reported as proved must hold.
static void check_haste(const struct program *p, struct arena *a, const struct program_result *r,
                        const char *name)
{
    for (uint64_t work = 10000; work <= 10000000; work *= 3) {
        struct program_result hasty;
        struct program_options o = {.work = work};
        assert_int_equal(tsr__program_solve(p, &o, a, &hasty), TSR_OK);
        if (hasty.infeasible || hasty.bound > r->cost || (hasty.feasible && hasty.cost < r->bound))
            fail_msg("%s, work %llu: cost %lld, bound %lld, but %lld and %lld are known", name,
                     (unsigned long long)work, (long long)hasty.cost, (long long)hasty.bound,
                     (long long)r->cost, (long long)r->bound);
    }
}

static void planted_answers_are_met(void **state)
{
    (void)state;
    tsr_session *session = tsr_session_new(NULL);
    for (size_t i = 0; i < TSR_COUNT(families); i++) {
        struct arena arena;
        struct program p;
        struct program_result r, again;
        struct family f = families[i].f;
        f.seed = first_seed + i;
        tsr__arena_init(&arena, session);
        const uint32_t *planted = family_program(&p, &arena, &f);
        int64_t cost = tsr__program_cost(&p, planted);
        assert_int_not_equal(cost, COST_FORBIDDEN);
        struct program_options o = {.work = 60000000};
        assert_int_equal(tsr__program_solve(&p, &o, &arena, &r), TSR_OK);
        check(&p, &r, cost, families[i].name);
        assert_int_equal(tsr__program_solve(&p, &o, &arena, &again), TSR_OK);
        assert_memory_equal(r.choice, again.choice, p.nodes.n * sizeof(uint32_t));
        assert_int_equal(r.bound, again.bound);
        assert_int_equal(r.work, again.work);
        check_haste(&p, &arena, &r, families[i].name);
        tsr__arena_free(&arena);
    }
    tsr_session_free(session);
}

// Bounds must also hold if the program still has choices that no neighbour allows, as after
// reductions that ended early.
static void bounds_hold_without_reductions(void **state)
{
    (void)state;
    static const struct shape shape = {7, 5, 70, 55, 0, 1, 1, 1000};
    tsr_session *session = tsr_session_new(NULL);
    for (uint64_t seed = first_seed; seed < first_seed + 300; seed++) {
        struct arena arena;
        struct program p;
        struct heap heap;
        struct effort effort = {.limit = UINT64_MAX};
        struct core core;
        struct dense w;
        struct dual d;
        tsr__arena_init(&arena, session);
        tsr__heap_init(&heap, session);
        draw_program(&p, &arena, seed, &shape);
        struct truth t = try_everything(&p);
        if (t.cost != COST_FORBIDDEN && tsr__core_init(&core, &p, &heap, &effort, NONE, 0) &&
            tsr__dense_init(&w, &core, &heap) && tsr__dual_init(&d, &w)) {
            for (int i = 0; i < 10; i++)
                tsr__dual_pass(&d);
            if (d.best + (double)core.shift > (double)t.cost + 1e-6)
                fail_msg("seed %llu: bound %g, but %lld is possible", (unsigned long long)seed,
                         d.best + (double)core.shift, (long long)t.cost);
        }
        assert_false(heap.failed);
        tsr__heap_done(&heap);
        tsr__arena_free(&arena);
    }
    tsr_session_free(session);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Compares CPU time, which other programs on the machine do not change.
static void seconds_are_kept(void **state)
{
    (void)state;
    if (under_valgrind())
        skip(); // one second is not enough under valgrind
    tsr_session *session = tsr_session_new(NULL);
    for (size_t i = 2; i < 4; i++) {
        struct arena arena;
        struct program p;
        struct program_result r;
        struct family f = families[i].f;
        f.nodes = 6000;
        f.seed = first_seed;
        tsr__arena_init(&arena, session);
        int64_t planted = tsr__program_cost(&p, family_program(&p, &arena, &f));
        struct program_options o = {.seconds = 1};
        double took;
        do {
            double start = cpu_seconds();
            assert_int_equal(tsr__program_solve(&p, &o, &arena, &r), TSR_OK);
            took = cpu_seconds() - start;
            if (took > o.seconds + 1)
                fail_msg("%s: %.2f s instead of %g", families[i].name, took, o.seconds);
            o.seconds *= 2;
        } while (took < 1 && (!r.feasible || r.cost > planted)); // other programs took the time
        check(&p, &r, planted, families[i].name);
        tsr__arena_free(&arena);
    }
    tsr_session_free(session);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(planted_answers_are_met),
                                       cmocka_unit_test(bounds_hold_without_reductions),
                                       cmocka_unit_test(seconds_are_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
