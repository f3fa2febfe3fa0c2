// SPDX-License-Identifier: Apache-2.0
// bench.h - fixture for cmocka tests of any module: a session and an arena.
#ifndef TSR_TEST_BENCH_H
#define TSR_TEST_BENCH_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

struct bench {
    tsr_session *session;
    struct arena arena;
};

static inline int bench_setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->session = tsr_session_new(NULL);
    assert_non_null(b->session);
    tsr__arena_init(&b->arena, b->session);
    *state = b;
    return 0;
}

static inline int bench_teardown(void **state)
{
    struct bench *b = *state;
    tsr__arena_free(&b->arena);
    tsr_session_free(b->session);
    free(b);
    return 0;
}

#endif
