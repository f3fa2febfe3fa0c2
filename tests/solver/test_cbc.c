// SPDX-License-Identifier: Apache-2.0
// test_cbc.c - compares our solution with that of CBC (Debian's coinor-cbc) for the exported LP
// file: equal cost, or both infeasible. Arguments: number of programs, first seed.
#include "decoder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t programs = 60, first_seed = 1;

static const struct shape shapes[] = {
    {12, 5, 25, 10, 0, 1, 1, 1000}, {12, 4, 20, 20, 1, 1, 80, 100}, {10, 4, 30, 0, 2, 5, 70, 9},
    {12, 3, 15, 40, 3, 4, 90, 50},  {4, 3, 60, 80, 1, 2, 60, 7},
};

static void write_lp(const struct program *p, tsr_session *s, const char *path)
{
    struct text lp;
    tsr__text_init(&lp, s);
    assert_int_equal(tsr__program_lp(p, &lp), TSR_OK);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(lp.p, 1, lp.n, f), lp.n);
    assert_int_equal(fclose(f), 0);
    tsr__text_free(&lp);
}

// Returns true and the cost, or false if CBC reports infeasible.
static bool ask_cbc(const struct program *p, tsr_session *s, const char *folder, double *cost)
{
    char lp[128], out[128], command[512], line[256] = "";
    snprintf(lp, sizeof lp, "%s/p.lp", folder);
    snprintf(out, sizeof out, "%s/p.txt", folder);
    write_lp(p, s, lp);
    snprintf(command, sizeof command, "cbc %s solve solu %s >%s/log 2>&1", lp, out, folder);
    unlink(out);
    if (system(command) != 0)
        fail_msg("cbc is missing or failed (tools/setup installs coinor-cbc): %s", command);
    FILE *f = fopen(out, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    const char *at = strstr(line, "objective value");
    assert_non_null(at);
    *cost = strtod(at + sizeof("objective value") - 1, NULL);
    if (strncmp(line, "Optimal", 7) == 0)
        return true;
    assert_non_null(strstr(line, "nfeasible"));
    return false;
}

static void agree(const struct program *p, struct arena *a, const char *folder, const char *what,
                  uint64_t seed)
{
    struct program_result r;
    double cost;
    assert_int_equal(tsr__program_solve(p, NULL, a, &r), TSR_OK);
    bool feasible = ask_cbc(p, a->session, folder, &cost);
    if (feasible != r.feasible || (feasible && (cost != (double)r.cost || !r.optimal)))
        fail_msg("%s %llu: cbc %d %.2f, ours %d %lld, bound %lld", what, (unsigned long long)seed,
                 feasible, cost, r.feasible, (long long)r.cost, (long long)r.bound);
    assert_true(feasible || r.infeasible);
}

static void cbc_finds_the_same(void **state)
{
    (void)state;
    char folder[] = "/tmp/tessera-cbc-XXXXXX", command[64];
    tsr_session *session = tsr_session_new(NULL);
    assert_non_null(mkdtemp(folder));
    for (uint64_t seed = first_seed; seed < first_seed + programs; seed++) {
        struct arena arena;
        struct program p;
        tsr__arena_init(&arena, session);
        draw_program(&p, &arena, seed, &shapes[seed % TSR_COUNT(shapes)]);
        agree(&p, &arena, folder, "program", seed);
        tsr__arena_free(&arena);
    }
    for (int layers = 1; layers <= 2; layers++) {
        struct arena arena;
        struct program p;
        struct decoder d = DECODER;
        d.layers = layers;
        d.mask = layers == 2;
        tsr__arena_init(&arena, session);
        decoder_program(&p, &arena, &d, layers == 1 ? 30 : -1);
        agree(&p, &arena, folder, "decoder", (uint64_t)layers);
        tsr__arena_free(&arena);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    tsr_session_free(session);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        programs = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(cbc_finds_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
