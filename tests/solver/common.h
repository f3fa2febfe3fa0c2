// SPDX-License-Identifier: Apache-2.0
// common.h - fixture of the solver's tests: a session, an arena, an empty program.
#ifndef TSR_TEST_PLAN_H
#define TSR_TEST_PLAN_H

#include "solver/solver.h"

#include <setjmp.h>

#include <cmocka.h>

struct bench {
    tsr_session *session;
    struct arena arena;
    struct program p;
};

static inline int make_bench(void **state)
{
    static struct bench b; // one test at a time
    b.session = tsr_session_new(NULL);
    tsr__arena_init(&b.arena, b.session);
    tsr__program_init(&b.p, &b.arena);
    *state = &b;
    return b.session ? 0 : -1;
}

static inline int free_bench(void **state)
{
    struct bench *b = *state;
    tsr__arena_free(&b->arena);
    tsr_session_free(b->session);
    return 0;
}

#endif
