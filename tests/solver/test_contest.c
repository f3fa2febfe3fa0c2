// SPDX-License-Identifier: Apache-2.0
// test_contest.c - the reader of contest problems: valid files, invalid files, damaged files.
#include "contest.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>

static const char EXAMPLE[] =
    "{ \"problem\" : {\"name\": \"ex \\\"ample\\\"\", \"unknown\": [1, {\"a\": null}, true],\n"
    " \"edges\": {\"nodes\": [[0, 1], [1, 2], [0, 1, 2], [2], [1, 1]],\n"
    "  \"costs\": [[1, 2, 3, 1000000000000000000], [0, 5, 1e18, 0], [0,0,0,7,0,0,0,9], [4, 0],\n"
    "            [2, 0, 0, 3]]},\n"
    " \"nodes\": {\"intervals\": [[0, 2], [1, 3], [3, 3]], \"costs\": [[15, 55], [0, 1], [2, 8]],\n"
    "  \"usages\": [[10, 5], [20, 6], [9, 9]]},\n"
    " \"usage_limit\": 26}}\n";

struct bench {
    tsr_session *session;
    struct arena arena;
    char path[64];
};

static int make_bench(void **state)
{
    static struct bench b; // one test at a time
    b.session = tsr_session_new(NULL);
    tsr__arena_init(&b.arena, b.session);
    snprintf(b.path, sizeof b.path, "/tmp/tessera-contest-XXXXXX");
    int fd = mkstemp(b.path);
    *state = &b;
    return fd < 0 ? -1 : close(fd);
}

static int free_bench(void **state)
{
    struct bench *b = *state;
    unlink(b->path);
    tsr__arena_free(&b->arena);
    tsr_session_free(b->session);
    return 0;
}

static void store(struct bench *b, const char *text, size_t n, bool packed)
{
    gzFile f = gzopen(b->path, packed ? "wb" : "wbT");
    assert_non_null(f);
    assert_int_equal(n ? gzwrite(f, text, (unsigned)n) : 0, (int)n);
    assert_int_equal(gzclose(f), Z_OK);
}

// The cost as the contest defines it.
static int64_t contest_cost(const struct contest *c, const uint32_t *choice)
{
    int64_t cost = 0;
    for (size_t v = 0; v < c->costs.n; v++)
        cost += c->costs.at[v].at[choice[v]];
    for (size_t e = 0; e < c->ends.n; e++) {
        size_t at = 0;
        for (size_t i = 0; i < c->ends.at[e].n; i++)
            at = at * c->costs.at[c->ends.at[e].at[i]].n + choice[c->ends.at[e].at[i]];
        if (c->tables.at[e].at[at] == COST_FORBIDDEN)
            return COST_FORBIDDEN;
        cost += c->tables.at[e].at[at];
    }
    return cost;
}

static void example_is_solved(void **state)
{
    struct bench *b = *state;
    for (int packed = 0; packed < 2; packed++) {
        struct contest c;
        struct program p;
        struct program_result r;
        store(b, EXAMPLE, sizeof(EXAMPLE) - 1, packed);
        assert_true(contest_read(b->path, &b->arena, &c));
        assert_int_equal(c.usage_limit, 26);
        assert_true(contest_program(&c, &p));
        assert_int_equal(tsr__program_solve(&p, NULL, &b->arena, &r), TSR_OK);
        assert_true(r.optimal);
        int64_t best = COST_FORBIDDEN;
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t x[] = {i & 1, i >> 1 & 1, i >> 2};
            int64_t both = c.usages.at[0].at[x[0]] + c.usages.at[1].at[x[1]]; // both live at time 1
            if (both <= 26 && contest_cost(&c, x) < best)
                best = contest_cost(&c, x);
        }
        assert_int_equal(r.cost, best);
        assert_int_equal(contest_cost(&c, r.choice), best);
    }
}

static void wrong_problems_are_refused(void **state)
{
    struct bench *b = *state;
    static const char *const wrong[] = {
        "",
        "[]",
        "{\"problem\": 3}",
        "{\"problem\": {\"nodes\": {\"costs\": [[1], [x]]}}}",
        // wrong number of usages; edge of an unknown node; table of the wrong size
        "{\"problem\": {\"nodes\": {\"intervals\": [[0,1]], \"costs\": [[1]], \"usages\": []}}}",
        "{\"problem\": {\"nodes\": {\"intervals\": [[0,1]], \"costs\": [[1]], \"usages\": [[1]]},"
        "\"edges\": {\"nodes\": [[0,1]], \"costs\": [[1]]}, \"usage_limit\": 1}}",
        "{\"problem\": {\"nodes\": {\"intervals\": [[0,1]], \"costs\": [[1]], \"usages\": [[1]]},"
        "\"edges\": {\"nodes\": [[0]], \"costs\": [[1, 2]]}, \"usage_limit\": 1}}",
        "{\"problem\": {\"nodes\": {\"intervals\": [[-5,1]], \"costs\": [[1]], \"usages\": [[1]]},"
        "\"edges\": {\"nodes\": [], \"costs\": []}, \"usage_limit\": 1}}",
        "{\"problem\": {\"nodes\": {\"intervals\": [[0,1]], \"costs\": [[]], \"usages\": [[]]},"
        "\"edges\": {\"nodes\": [], \"costs\": []}, \"usage_limit\": 1}}",
    };
    for (size_t i = 0; i < TSR_COUNT(wrong); i++) {
        struct contest c;
        struct program p;
        store(b, wrong[i], strlen(wrong[i]), false);
        assert_false(contest_read(b->path, &b->arena, &c) && contest_program(&c, &p));
        assert_non_null(c.problem);
    }
    struct contest c;
    assert_false(contest_read("/nowhere/at/all.json", &b->arena, &c));
}

// Changes any byte or truncates the file anywhere: it is rejected or read, without a crash.
static void broken_files_do_no_harm(void **state)
{
    struct bench *b = *state;
    static const char other[] = "[]{},:\"0-9e \\";
    uint64_t seed = 1;
    for (size_t i = 0; i < 2 * sizeof(EXAMPLE); i++) {
        char text[sizeof(EXAMPLE)];
        struct arena a;
        struct contest c;
        struct program p;
        struct program_result r;
        size_t n = sizeof(EXAMPLE) - 1;
        memcpy(text, EXAMPLE, sizeof(EXAMPLE));
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (i < sizeof(EXAMPLE))
            n = i < n ? i : n;
        else
            text[i - sizeof(EXAMPLE)] = other[(seed >> 33) % (sizeof(other) - 1)];
        store(b, text, n, false);
        tsr__arena_init(&a, b->session);
        if (contest_read(b->path, &a, &c) && contest_program(&c, &p))
            assert_int_equal(tsr__program_solve(&p, NULL, &a, &r), TSR_OK);
        tsr__arena_free(&a);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_bench, free_bench)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(example_is_solved), TEST(wrong_problems_are_refused),
                                       TEST(broken_files_do_no_harm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
