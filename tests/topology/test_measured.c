// SPDX-License-Identifier: Apache-2.0
// test_measured.c - measured speeds that are not possible are reported once, with the remedy.
#include "measure/internal.h"

#include <setjmp.h>
#include <cmocka.h>

// Two ranks with 10 GB/s of memory each, and a link of 5 GB/s between them.
static struct measured usual(void)
{
    struct measured measured = {.ranks = 2, .one_host = true, .n_groups = 1, .group = {2}};
    for (int i = 0; i < 2; i++) {
        measured.rank[i].bandwidth = 10e9;
        measured.latency[i][1 - i] = 1e-6;
        measured.bandwidth[i][1 - i] = 5e9;
    }
    for (int what = 0; what < MEASURE_KINDS; what++)
        for (int i = 0; i < MEASURE_POINTS; i++)
            measured.seconds[what][0][i] = 1e-4;
    return measured;
}

static void expect(const struct measured *measured, bool warned)
{
    tsr_session *session = tsr_session_new(NULL);
    tsr__measured_check(session, measured);
    assert_int_equal(tsr_finding_count(session), warned);
    if (warned) {
        assert_string_equal(tsr_finding_value(session, 0).code, "topology-measured");
        assert_int_equal(tsr_finding_value(session, 0).severity, TSR_WARNING);
        assert_non_null(strstr(tsr_finding_text(session, 0), "idle machine"));
    }
    tsr_session_free(session);
}

static void possible_speeds(void **state)
{
    (void)state;
    struct measured measured = usual();
    expect(&measured, false);
    measured.bandwidth[0][1] = measured.bandwidth[1][0] = 100e9; // in the cache
    expect(&measured, false);
    measured.rank[0].bandwidth = measured.rank[1].bandwidth = 0; // not measured
    expect(&measured, false);
    measured = usual();
    measured.one_host = false; // collectives are not measured
    measured.seconds[0][0][0] = 0;
    expect(&measured, false);
    measured = (struct measured){.ranks = 1};
    expect(&measured, false);
}

// Other programs that ran meanwhile, or passes whose times differ.
static void disturbed(void **state)
{
    (void)state;
    struct measured measured = usual();
    measured.others = 0.1;
    measured.differ = 1.2;
    expect(&measured, false);
    measured.others = 0.5;
    expect(&measured, true);
    measured.others = 0;
    measured.differ = 1.9;
    expect(&measured, true);
}

static void impossible_speeds(void **state)
{
    (void)state;
    struct measured measured = usual();
    measured.bandwidth[0][1] = measured.bandwidth[1][0] = 4e15;
    expect(&measured, true);
    measured = usual();
    measured.latency[0][1] = measured.latency[1][0] = 0;
    expect(&measured, true);
    measured = usual();
    measured.bandwidth[0][1] = -1;
    expect(&measured, true);
    measured = usual();
    measured.seconds[MEASURE_KINDS - 1][0][MEASURE_POINTS - 1] = 0;
    expect(&measured, true);
    measured = usual();
    measured.unsteady = true;
    expect(&measured, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(possible_speeds),
        cmocka_unit_test(impossible_speeds),
        cmocka_unit_test(disturbed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
