// SPDX-License-Identifier: Apache-2.0
// test_session.c - sessions: options structs of any size, the caller's allocator, progress, status
// texts.
#include "scratch.h"

struct heap {
    size_t held, calls;
    bool refuse;
};

static void *heap_alloc(void *data, void *old, size_t old_bytes, size_t bytes)
{
    struct heap *h = data;
    h->calls++;
    if (h->refuse && bytes > 0)
        return NULL;
    h->held += bytes - old_bytes;
    if (bytes == 0) {
        free(old);
        return NULL;
    }
    void *p = realloc(old, bytes);
    if (!old)
        memset(p, 0xEE, bytes); // memory need not be zeroed
    return p;
}

static void callers_allocator(void **state)
{
    (void)state;
    struct heap h = {0};
    tsr_session_options options = {.size = sizeof options, .alloc = heap_alloc, .alloc_data = &h};
    tsr_session *s = tsr_session_new(&options);
    assert_non_null(s);
    assert_int_equal(tsr_finding_count(s), 0);
    struct arena a;
    tsr__arena_init(&a, s);
    unsigned char *p = arena_get(&a, (size_t)5 << 20, 64);
    for (size_t i = 0; i < (size_t)5 << 20; i += 1021)
        assert_int_equal(p[i], 0);
    tsr__diag(s, DIAG_io_open, NULL, NULL, "x");
    assert_int_equal(h.held, s->memory_used);
    tsr__arena_free(&a);
    h.refuse = true;
    assert_null(tsr__alloc(s, 10));
    assert_string_equal(tsr_finding_value(s, 1).code, "out-of-memory");
    h.refuse = false;
    arena_get(&s->results[RESULT_TILES], 100, 8);
    tsr_session_free(s);
    assert_int_equal(h.held, 0);
    h.refuse = true;
    assert_null(tsr_session_new(&options));
    tsr_session_free(NULL);
}

// A larger options struct of a newer caller is accepted.
static void newer_and_invalid_callers(void **state)
{
    (void)state;
    struct {
        tsr_session_options known;
        char later[64];
    } newer = {.known = {.size = sizeof newer, .memory_limit = 12345}};
    memset(newer.later, 0xFF, sizeof newer.later);
    tsr_session *s = tsr_session_new(&newer.known);
    assert_int_equal(s->memory_limit, 12345);
    tsr_session_free(s);
    // Smaller than the first version of the struct: must be rejected.
    tsr_session_options shorter = {.size = offsetof(tsr_session_options, memory_limit)};
    assert_null(tsr_session_new(&shorter));
}

static void hear(void *data, const char *what, uint64_t done, uint64_t total)
{
    assert_string_equal(what, "loading");
    assert_true(done <= total);
    *(uint64_t *)data = done;
}

static void listener(void **state)
{
    (void)state;
    uint64_t heard = 0;
    tsr_session_options options = {
        .size = sizeof options, .progress = hear, .progress_data = &heard};
    tsr_session *s = tsr_session_new(&options);
    tsr__progress(s, "loading", 3, 4);
    assert_true(heard == 3);
    tsr_session_free(s);
    s = tsr_session_new(NULL);
    tsr__progress(s, "nobody listens", 1, 1);
    tsr_session_free(s);
}

struct heard {
    char text[8][64];
    int n;
};

static void keep(void *data, const char *what, uint64_t done, uint64_t total)
{
    struct heard *heard = data;
    assert_true(heard->n < 8);
    snprintf(heard->text[heard->n++], sizeof heard->text[0], "%s %llu/%llu", what,
             (unsigned long long)done, (unsigned long long)total);
}

// A step precedes the progress of the calls in it, and is reported again when they end.
static void steps(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "turn 0/2",   "turn 0/2, loading 0/1", "turn 0/2, loading 1/1", "turn 0/2", "turn 2/2",
        "loading 0/1"};
    struct heard heard = {.n = 0};
    tsr_session_options options = {
        .size = sizeof options, .progress = keep, .progress_data = &heard};
    tsr_session *s = tsr_session_new(&options);
    tsr__progress_step(s, "turn", 0, 2);
    tsr__progress(s, "loading", 0, 1);
    tsr__progress(s, "loading", 1, 1);
    tsr__progress_step(s, "turn", 2, 2);
    tsr__progress(s, "loading", 0, 1);
    tsr_session_free(s);
    assert_int_equal(heard.n, TSR_COUNT(expected));
    for (size_t i = 0; i < TSR_COUNT(expected); i++)
        assert_string_equal(heard.text[i], expected[i]);
}

static void free_engine(tsr_session *s, void *engine)
{
    tsr__free(s, engine, 100);
}

// Freeing the session must free the engine.
static void engine_goes_with_the_session(void **state)
{
    (void)state;
    struct heap h = {0};
    tsr_session_options options = {.size = sizeof options, .alloc = heap_alloc, .alloc_data = &h};
    tsr_session *s = tsr_session_new(&options);
    s->engine = tsr__alloc(s, 100);
    s->engine_free = free_engine;
    tsr_session_free(s);
    assert_int_equal(h.held, 0);
}

static void status_texts(void **state)
{
    (void)state;
    for (int i = TSR_OK; i <= TSR_BUG; i++) {
        assert_true(strlen(tsr_status_text((tsr_status)i)) > 3);
        for (int k = TSR_OK; k < i; k++)
            assert_string_not_equal(tsr_status_text((tsr_status)i), tsr_status_text((tsr_status)k));
    }
    assert_string_equal(tsr_status_text((tsr_status)99), "unknown status");
}

// The fault injection that other tests use: the n-th call of a kind fails, alone or with all later
// ones.
static void faults_count(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    assert_false(tsr__fault(s, FAULT_SEND));
    tsr__session_fault(s, FAULT_SEND, 2, false);
    assert_false(tsr__fault(s, FAULT_SEND));
    assert_false(tsr__fault(s, FAULT_READ)); // each kind is counted separately
    assert_true(tsr__fault(s, FAULT_SEND));
    assert_false(tsr__fault(s, FAULT_SEND));
    tsr__session_fault(s, FAULT_SEND, 2, true);
    assert_false(tsr__fault(s, FAULT_SEND));
    assert_true(tsr__fault(s, FAULT_SEND));
    assert_true(tsr__fault(s, FAULT_SEND));
    tsr__session_fault(s, FAULT_SEND, 0, false);
    assert_false(tsr__fault(s, FAULT_SEND));
    tsr__session_fault(s, 99, 1, true); // no such kind
    tsr__session_fault(s, -1, 1, true);
    tsr_session_free(s);
}

// A session stays cancelled until the caller allows work again.
static void cancelled_until_taken_back(void **state)
{
    (void)state;
    tsr_session *s = tsr_session_new(NULL);
    assert_int_equal(tsr__cancel_check(s), TSR_OK);
    tsr_session_cancel(s, true);
    assert_true(tsr__cancelled(s));
    assert_int_equal(tsr__cancel_check(s), TSR_CANCELLED);
    assert_string_equal(tsr_finding_value(s, 0).code, "cancelled");
    tsr_session_cancel(s, false);
    assert_int_equal(tsr__cancel_check(s), TSR_OK);
    tsr_session_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_allocator),
        cmocka_unit_test(newer_and_invalid_callers),
        cmocka_unit_test(listener),
        cmocka_unit_test(steps),
        cmocka_unit_test(engine_goes_with_the_session),
        cmocka_unit_test(status_texts),
        cmocka_unit_test(faults_count),
        cmocka_unit_test(cancelled_until_taken_back),
    };
    return cmocka_run_group_tests_name("base session", tests, NULL, NULL);
}
