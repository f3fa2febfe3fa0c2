// SPDX-License-Identifier: Apache-2.0
// common.h - fixture for the tests of rules: an empty model of opset 18.
#ifndef TSR_TEST_RULES_H
#define TSR_TEST_RULES_H

#include "rules/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

struct bench {
    tsr_session *session;
    struct arena arena;
    tsr_model *model;
    tsr_graph *graph;
};

static inline int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->session = tsr_session_new(NULL);
    tsr__arena_init(&b->arena, b->session);
    assert_int_equal(tsr_model_new(b->session, "g", 10, &b->model), TSR_OK);
    assert_int_equal(tsr_model_set_opset(b->model, "", 18), TSR_OK);
    b->graph = tsr_model_graph(b->model);
    *state = b;
    return 0;
}

static inline int teardown(void **state)
{
    struct bench *b = *state;
    tsr__arena_free(&b->arena);
    tsr_model_free(b->model);
    tsr_session_free(b->session);
    free(b);
    return 0;
}

#endif
