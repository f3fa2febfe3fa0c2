// SPDX-License-Identifier: Apache-2.0
// test_arena.c - arenas, vectors, memory accounting of a session, and the default allocator.
#include "scratch.h"

// Blocks must be zeroed, aligned, and not overlap.
static void zeroed_aligned_apart(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    tsr__arena_init(&a, t->s);
    for (size_t i = 0; i < 5000; i++) {
        size_t bytes = i * 7919 % 3000, align = (size_t)1 << i % 7;
        char *p = arena_get(&a, bytes, align);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        for (size_t k = 0; k < bytes; k++)
            assert_int_equal(p[k], 0);
        memset(p, 0xAB, bytes);
    }
    tsr__arena_free(&a);
    assert_null(a.blocks);
    assert_int_equal(t->s->memory_used, sizeof *t->s);
    assert_non_null(arena_get(&a, 1, 1)); // may be used again
    tsr__arena_free(&a);
}

// Large blocks, which are reused after the arena is freed, must be zeroed.
static void large_ones_come_zeroed_again(void **state)
{
    struct scratch *t = *state;
    for (int round = 0; round < 3; round++) {
        struct arena a;
        tsr__arena_init(&a, t->s);
        size_t bytes = (size_t)9 << 20;
        unsigned char *p = ARENA_ARRAY(&a, unsigned char, bytes), *q = ARENA_NEW(&a, unsigned char);
        assert_non_null(p);
        for (size_t i = 0; i < bytes; i += 4093)
            assert_int_equal(p[i], 0);
        memset(p, 0xFF, bytes);
        assert_int_equal(*q, 0);
        tsr__arena_free(&a);
    }
}

// An allocator that returns memory filled with nonzero bytes.
static void *dirty_alloc(void *data, void *old, size_t old_bytes, size_t bytes)
{
    (void)data;
    if (!bytes) {
        free(old);
        return NULL;
    }
    char *p = realloc(old, bytes);
    if (p && bytes > old_bytes)
        memset(p + old_bytes, 0xA5, bytes - old_bytes);
    return p;
}

static void expect_zero(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], 0);
}

// The newest block is zeroed in steps. Neither the steps, nor vectors that grow in place, nor
// separate blocks may expose old contents.
static void dirty_memory_comes_zeroed(void **state)
{
    (void)state;
    tsr_session_options options = {.size = sizeof options, .alloc = dirty_alloc};
    tsr_session *s = tsr_session_new(&options);
    struct arena a;
    tsr__arena_init(&a, s);
    VEC(int64_t) v = {0};
    for (int i = 0; i < 20000; i++) {
        int64_t *slot = vec_push(&a, &v);
        assert_non_null(slot);
        assert_int_equal(*slot, 0);
        *slot = -1;
        if (i % 500 != 0)
            continue;
        size_t bytes = (size_t)i * 11 + 1;
        char *p = arena_get(&a, bytes, (size_t)1 << i % 7);
        assert_non_null(p);
        expect_zero(p, bytes);
        memset(p, -1, bytes);
    }
    for (size_t i = 0; i < v.n; i++)
        assert_int_equal(v.at[i], -1);
    tsr__arena_free(&a);
    assert_non_null(tsr__arena_raw(&a, 100)); // no newest block yet
    char *p = arena_get(&a, 5000, 64);
    assert_non_null(p);
    expect_zero(p, 5000);
    tsr__arena_free(&a);
    tsr_session_free(s);
}

static void overflowing_sizes_are_out_of_memory(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    tsr__arena_init(&a, t->s);
    assert_null(ARENA_ARRAY(&a, uint64_t, SIZE_MAX / 4));
    assert_true(a.failed);
    assert_null(arena_get(&a, 1, 1)); // sticky
    assert_finding(t->s, "out-of-memory");
    tsr__arena_free(&a);
    assert_null(arena_get(&a, SIZE_MAX, 64));
    assert_finding(t->s, "out-of-memory");
    tsr__arena_free(&a);
}

static void limit_and_peak(void **state)
{
    (void)state;
    tsr_session_options options = {.size = sizeof options, .memory_limit = 1 << 20};
    tsr_session *s = tsr_session_new(&options);
    void *p = tsr__alloc(s, 600 << 10);
    assert_non_null(p);
    assert_null(tsr__alloc(s, 600 << 10));
    assert_finding(s, "out-of-memory");
    p = tsr__realloc(s, p, 600 << 10, 900 << 10);
    assert_non_null(p);
    assert_null(tsr__realloc(s, p, 900 << 10, 2 << 20)); // fails; p stays valid
    assert_int_equal(s->memory_used, sizeof *s + (900 << 10));
    tsr__free(s, p, 900 << 10);
    assert_int_equal(s->memory_used, sizeof *s);
    assert_int_equal(s->memory_peak, sizeof *s + (900 << 10));
    tsr_session_free(s);
}

// Blocks of 0 bytes are valid, and accounted as 0 bytes.
static void nothing_is_a_size_too(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    void *p = tsr__alloc(t->s, 0);
    assert_non_null(p);
    tsr__free(t->s, p, 0);
    p = tsr__realloc(t->s, NULL, 0, 10);
    assert_null(tsr__realloc(t->s, p, 10, 0));
    tsr__free(t->s, NULL, 0);
    assert_int_equal(t->s->memory_used, sizeof *t->s);
    tsr__arena_init(&a, t->s);
    assert_non_null(arena_get(&a, 0, 1));
    tsr__arena_free(&a);
}

static void default_allocator_keeps_bytes(void **state)
{
    (void)state;
    const size_t sizes[] = {1, 4096, PAGES_BYTES - 1, PAGES_BYTES, PAGES_BYTES + 5, 3 * PAGES_BYTES,
                            77};
    for (size_t i = 0; i < TSR_COUNT(sizes); i++)
        for (size_t j = 0; j < TSR_COUNT(sizes); j++) {
            unsigned char *p = tsr__default_alloc(NULL, NULL, 0, sizes[i]);
            memset(p, 0x5A, sizes[i]);
            p = tsr__default_alloc(NULL, p, sizes[i], sizes[j]);
            size_t kept = sizes[i] < sizes[j] ? sizes[i] : sizes[j];
            assert_int_equal(p[0], 0x5A);
            assert_int_equal(p[kept - 1], 0x5A);
            memset(p, 1, sizes[j]);
            assert_null(tsr__default_alloc(NULL, p, sizes[j], 0));
        }
    assert_null(tsr__default_alloc(NULL, NULL, 0, SIZE_MAX));
    assert_null(tsr__default_alloc(NULL, NULL, 0, SIZE_MAX - 2 * PAGES_BYTES));
}

static void vectors_grow(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    tsr__arena_init(&a, t->s);
    VEC(int64_t) v = {0};
    VEC(char) w = {0};
    for (int64_t i = 0; i < 100000; i++) {
        int64_t *slot = vec_push(&a, &v);
        char *other = vec_push(&a, &w);
        assert_int_equal(*slot, 0);
        assert_int_equal(*other, 0);
        *slot = i;
        *other = 'x';
    }
    for (int64_t i = 0; i < 100000; i++)
        assert_int_equal(v.at[i], i);
    assert_int_equal(v.n, 100000);
    tsr__arena_free(&a);
}

static void vectors_fail_softly(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    tsr__arena_init(&a, t->s);
    VEC(int) v = {0};
    tsr__session_fault(t->s, 0, 1, false);
    assert_null(vec_push(&a, &v));
    assert_int_equal(v.n, 0);
    assert_null(vec_push(&a, &v)); // sticky, although the fault is over
    assert_finding(t->s, "out-of-memory");
    tsr__arena_free(&a);
}

static void texts(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    tsr__arena_init(&a, t->s);
    struct str copy = tsr__arena_str(&a, (struct str){"abcdef", 3});
    assert_string_equal(copy.p, "abc");
    assert_int_equal(tsr__arena_str(&a, (struct str){NULL, 0}).n, 0);
    struct str made = tsr__arena_printf(&a, "%d-" STR_FMT, 42, STR_ARG(copy));
    assert_string_equal(made.p, "42-abc");
    assert_int_equal(made.n, 6);
    tsr__arena_free(&a);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {
        T(zeroed_aligned_apart),
        T(large_ones_come_zeroed_again),
        T(dirty_memory_comes_zeroed),
        T(overflowing_sizes_are_out_of_memory),
        T(limit_and_peak),
        T(nothing_is_a_size_too),
        T(default_allocator_keeps_bytes),
        T(vectors_grow),
        T(vectors_fail_softly),
        T(texts),
    };
    return cmocka_run_group_tests_name("base arena", tests, NULL, NULL);
}
