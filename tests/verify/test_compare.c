// SPDX-License-Identifier: Apache-2.0
// test_compare.c - differences between two tensors, for every element type.
#include "verify/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct bench {
    tsr_session *s;
    tsr_tensors *want, *got;
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    b->s = tsr_session_new(NULL);
    assert_int_equal(tsr_tensors_new(b->s, &b->want), TSR_OK);
    assert_int_equal(tsr_tensors_new(b->s, &b->got), TSR_OK);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    tsr_tensors_free(b->want);
    tsr_tensors_free(b->got);
    tsr_session_free(b->s);
    free(b);
    return 0;
}

static tsr_difference compare(struct bench *b, tsr_dtype type, int64_t n, const void *want,
                              const void *got, double tolerance)
{
    assert_int_equal(tsr_tensors_put(b->want, "t", type, 1, &n, want), TSR_OK);
    assert_int_equal(tsr_tensors_put(b->got, "t", type, 1, &n, got), TSR_OK);
    return tsr__compare(b->want, 0, b->got, 0, tolerance);
}

// The tolerance of floats is relative to the largest magnitude of the tensor.
static void floats_are_relative_to_the_largest(void **state)
{
    struct bench *b = *state;
    float x[3] = {1, -200, 0}, y[3] = {1, -200, 0.005f};
    tsr_difference d = compare(b, TSR_FLOAT, 3, x, y, 0);
    assert_true(d.ok);
    assert_true(fabs(d.max_abs - 0.005) < 1e-6 && fabs(d.max_rel - 2.5e-5) < 1e-8);
    y[2] = 0.02f;
    assert_false(compare(b, TSR_FLOAT, 3, x, y, 0).ok);
    assert_true(compare(b, TSR_FLOAT, 3, x, y, 1e-3).ok);
    assert_false(compare(b, TSR_FLOAT, 3, x, y, 1e-9).ok);
    y[0] = 1.5f;
    compare(b, TSR_FLOAT, 3, x, y, 0);
    assert_int_equal(tsr__compare_rest(b->want, 0, b->got, 0, 0.01, NULL).count, 2);
    assert_int_equal(tsr__compare_rest(b->want, 0, b->got, 0, 0.1, NULL).count, 1);
    assert_int_equal(tsr__compare_rest(b->want, 0, b->got, -1, 0, NULL).count, 0);
}

static void wide_integers_are_not_rounded(void **state)
{
    struct bench *b = *state;
    int64_t two_53 = (int64_t)1 << 53;
    int64_t x[3] = {two_53, -two_53, INT64_MIN}, y[3] = {two_53, -two_53, INT64_MIN};
    assert_true(compare(b, TSR_INT64, 3, x, y, 0).ok);
    y[1] = -two_53 - 1;
    tsr_difference d = compare(b, TSR_INT64, 3, x, y, 0);
    assert_true(!d.ok && d.max_abs == 1 && d.max_rel > 0);
    assert_int_equal(tsr__compare_worst(b->want, 0, b->got, 0), 1);
    y[1] = x[1];
    y[2] = INT64_MAX; // the largest difference, without overflow
    d = compare(b, TSR_INT64, 3, x, y, 0);
    assert_true(!d.ok && d.max_abs == 18446744073709551615.0);
    uint64_t u[2] = {UINT64_MAX, 3}, v[2] = {UINT64_MAX - 1, 3};
    d = compare(b, TSR_UINT64, 2, u, v, 0);
    assert_true(!d.ok && d.max_abs == 1);
    assert_true(compare(b, TSR_UINT64, 2, u, u, 0).ok);
}

static void texts_must_be_the_same(void **state)
{
    struct bench *b = *state;
    const char *x[] = {"ab", "", "c"}, *y[] = {"a", "b", "c"};
    int64_t n = 3;
    assert_int_equal(tsr_tensors_put_texts(b->want, "t", 1, &n, x, NULL), TSR_OK);
    assert_int_equal(tsr_tensors_put_texts(b->got, "t", 1, &n, x, NULL), TSR_OK);
    assert_true(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_int_equal(tsr_tensors_put_texts(b->got, "t", 1, &n, y, NULL), TSR_OK);
    // the same characters, divided elsewhere
    tsr_difference d = tsr__compare(b->want, 0, b->got, 0, 0);
    assert_true(!d.ok && isnan(d.max_abs));
    size_t bytes;
    assert_memory_equal(tsr_tensors_text(b->got, 0, 1, &bytes), "b", 1);
    assert_int_equal(bytes, 1);
    assert_null(tsr_tensors_text(b->got, 0, 3, &bytes));
    assert_int_equal(tsr_tensors_put(b->got, "t", TSR_STRING, 1, &n, "abc"), TSR_UNSUPPORTED);
}

static void sequences_element_by_element(void **state)
{
    struct bench *b = *state;
    float x[2] = {1, 2}, y[2] = {1, 2.5f};
    int64_t n = 2;
    tsr_tensors *sets[2] = {b->want, b->got}, *list;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tsr_tensors_put_sequence(sets[i], "t", TSR_FLOAT, &list), TSR_OK);
        assert_int_equal(tsr_tensors_put(list, "0", TSR_FLOAT, 1, &n, x), TSR_OK);
        assert_int_equal(tsr_tensors_put(list, "1", TSR_FLOAT, 1, &n, i ? y : x), TSR_OK);
    }
    tsr_difference d = tsr__compare(b->want, 0, b->got, 0, 0);
    assert_true(!d.ok && d.max_abs == 0.5 && d.max_rel == 0.25);
    assert_int_equal(tsr_tensors_put(list, "1", TSR_FLOAT, 1, &n, x), TSR_OK);
    assert_true(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_int_equal(tsr_tensors_put(list, "2", TSR_FLOAT, 1, &n, x), TSR_OK);
    assert_false(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_int_equal(tsr_tensors_put_sequence(b->got, "t", TSR_FLOAT, NULL), TSR_OK);
    assert_false(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_int_equal(tsr_tensors_put_sequence(b->want, "t", TSR_FLOAT, NULL), TSR_OK);
    assert_true(tsr__compare(b->want, 0, b->got, 0, 0).ok);
}

static void not_a_number(void **state)
{
    struct bench *b = *state;
    float x[2] = {NAN, 1}, y[2] = {NAN, 1.00001f}, z[2] = {0, 1}, w[2] = {INFINITY, 1};
    assert_true(compare(b, TSR_FLOAT, 2, x, y, 0).ok);
    assert_false(compare(b, TSR_FLOAT, 2, x, z, 0).ok);
    assert_false(compare(b, TSR_FLOAT, 2, z, x, 0).ok);
    assert_false(compare(b, TSR_FLOAT, 2, z, w, 0).ok);
    assert_false(compare(b, TSR_FLOAT, 2, w, z, 0).ok);
    y[0] = INFINITY;
    assert_true(compare(b, TSR_FLOAT, 2, w, y, 0).ok);
    y[0] = -INFINITY;
    assert_false(compare(b, TSR_FLOAT, 2, w, y, 0).ok);
    uint32_t other = 0x7fc00001u; // NaNs with other bits are equal
    memcpy(&y[0], &other, 4);
    assert_true(compare(b, TSR_FLOAT, 2, x, y, 0).ok);
}

// If all expected values are 0, only 0 is equal.
static void all_zero(void **state)
{
    struct bench *b = *state;
    float x[2] = {0, 0}, y[2] = {0, -0.0f}, z[2] = {0, 1e-30f};
    tsr_difference d = compare(b, TSR_FLOAT, 2, x, y, 0);
    assert_true(d.ok && d.max_abs == 0 && d.max_rel == 0);
    assert_false(compare(b, TSR_FLOAT, 2, x, z, 0).ok);
}

static void integers_are_exact(void **state)
{
    struct bench *b = *state;
    int64_t x[2] = {1000000000, 5}, y[2] = {1000000000, 6};
    tsr_difference d = compare(b, TSR_INT64, 2, x, y, 0.5);
    assert_false(d.ok);
    assert_true(d.max_abs == 1 && d.max_rel == 1e-9);
    assert_true(compare(b, TSR_INT64, 2, x, x, 0).ok);
    uint8_t t[2] = {1, 0}, f[2] = {1, 1};
    d = compare(b, TSR_BOOL, 2, t, f, 0);
    assert_true(!d.ok && isnan(d.max_abs) && isnan(d.max_rel)); // no numeric difference
    d = compare(b, TSR_BOOL, 2, t, t, 0);
    assert_true(d.ok && d.max_rel == 0);
}

static void small_floats(void **state)
{
    struct bench *b = *state;
    uint16_t x[4] = {0x3c00, 0xc000, 0x0001, 0x7c00}; // 1, -2, 2^-24, inf
    uint16_t y[4] = {0x3c01, 0xc000, 0x0002, 0x7c00};
    tsr_difference d = compare(b, TSR_FLOAT16, 4, x, y, 0);
    assert_true(d.ok && fabs(d.max_abs - ldexp(1, -10)) < 1e-12 &&
                fabs(d.max_rel - ldexp(1, -11)) < 1e-12);
    y[0] = 0x3d00; // 1.25
    assert_false(compare(b, TSR_FLOAT16, 4, x, y, 0).ok);
    x[3] = 0x7e00, y[0] = x[0], y[3] = 0x7e01; // NaN
    assert_true(compare(b, TSR_FLOAT16, 4, x, y, 0).ok);
    uint16_t p[1] = {0x3f80}, q[1] = {0x3f81}; // bfloat16 1 and 1 + 2^-7
    d = compare(b, TSR_BFLOAT16, 1, p, q, 0);
    assert_true(d.ok && d.max_abs == ldexp(1, -7));
    uint8_t e[3] = {0x38, 0x01, 0x7e}, g[3] = {0x38, 0x02, 0x7e}; // e4m3fn 1, 2^-9, 448
    d = compare(b, TSR_FLOAT8E4M3FN, 3, e, g, 0);
    assert_true(d.ok && d.max_abs == ldexp(1, -9) && d.max_rel == ldexp(1, -9) / 448);
    uint8_t h[2] = {0x3c, 0x7c}, i[2] = {0x3d, 0x7c}; // e5m2 1 and 1.25, inf
    d = compare(b, TSR_FLOAT8E5M2, 2, h, i, 0);
    assert_true(d.ok && d.max_abs == 0.25);
    uint8_t u[1] = {0x40}, v[1] = {0x80}; // e4m3fnuz 1 and NaN
    assert_false(compare(b, TSR_FLOAT8E4M3FNUZ, 1, u, v, 0).ok);
}

// Other ranks, sizes, types and missing tensors are differences.
static void other_kinds_differ(void **state)
{
    struct bench *b = *state;
    float x[4] = {1, 2, 3, 4};
    int64_t four[1] = {4}, pair[2] = {2, 2}, three[1] = {3};
    assert_int_equal(tsr_tensors_put(b->want, "t", TSR_FLOAT, 1, four, x), TSR_OK);
    assert_int_equal(tsr_tensors_put(b->got, "t", TSR_FLOAT, 2, pair, x), TSR_OK);
    tsr_difference d = tsr__compare(b->want, 0, b->got, 0, 0);
    assert_true(!d.ok && isnan(d.max_abs));
    assert_string_equal(d.name, "t");
    assert_int_equal(tsr_tensors_put(b->got, "t", TSR_FLOAT, 1, three, x), TSR_OK);
    assert_false(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_int_equal(tsr_tensors_put(b->got, "t", TSR_INT32, 1, four, x), TSR_OK);
    assert_false(tsr__compare(b->want, 0, b->got, 0, 0).ok);
    assert_false(tsr__compare(b->want, 0, b->got, -1, 0).ok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(floats_are_relative_to_the_largest, setup, teardown),
        cmocka_unit_test_setup_teardown(wide_integers_are_not_rounded, setup, teardown),
        cmocka_unit_test_setup_teardown(texts_must_be_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(sequences_element_by_element, setup, teardown),
        cmocka_unit_test_setup_teardown(not_a_number, setup, teardown),
        cmocka_unit_test_setup_teardown(all_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(integers_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(small_floats, setup, teardown),
        cmocka_unit_test_setup_teardown(other_kinds_differ, setup, teardown),
    };
    return cmocka_run_group_tests_name("verify compare", tests, NULL, NULL);
}
