// SPDX-License-Identifier: Apache-2.0
// test_reduce.c - arithmetic of reductions for every type, and all conversions of 16-bit floats.
#include "transport/common/internal.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

static void reduce2(tsr_dtype t, enum comm_reduce op, const void *a, const void *b, void *out,
                    int64_t n)
{
    const void *in[2] = {a, b};
    tsr__reduce(t, op, in, 2, &out, 1, 0, n);
}

#define CHECK(T, DTYPE, A, B, OP, WANT)                                                            \
    do {                                                                                           \
        T a_[40], b_[40], o_[40], w_ = (WANT);                                                     \
        for (int i_ = 0; i_ < 40; i_++) {                                                          \
            a_[i_] = (A);                                                                          \
            b_[i_] = (B);                                                                          \
        }                                                                                          \
        reduce2(DTYPE, OP, a_, b_, o_, 40);                                                        \
        for (int i_ = 0; i_ < 40; i_++)                                                            \
            assert_memory_equal(&o_[i_], &w_, sizeof w_);                                          \
    } while (0)

#define CHECK_INT(T, DTYPE, LEAST, MOST)                                                           \
    CHECK(T, DTYPE, 3, 4, COMM_SUM, 7);                                                            \
    CHECK(T, DTYPE, 3, 4, COMM_PROD, 12);                                                          \
    CHECK(T, DTYPE, 3, 4, COMM_MAX, 4);                                                            \
    CHECK(T, DTYPE, 3, 4, COMM_MIN, 3);                                                            \
    CHECK(T, DTYPE, MOST, 1, COMM_SUM, LEAST);                                                     \
    CHECK(T, DTYPE, LEAST, MOST, COMM_MAX, MOST);                                                  \
    CHECK(T, DTYPE, LEAST, MOST, COMM_MIN, LEAST);                                                 \
    CHECK(T, DTYPE, MOST, MOST, COMM_PROD, 1)

static void test_integers(void **state)
{
    (void)state;
    CHECK_INT(int8_t, TSR_INT8, INT8_MIN, INT8_MAX);
    CHECK_INT(uint8_t, TSR_UINT8, 0, UINT8_MAX);
    CHECK_INT(int16_t, TSR_INT16, INT16_MIN, INT16_MAX);
    CHECK_INT(uint16_t, TSR_UINT16, 0, UINT16_MAX);
    CHECK_INT(int32_t, TSR_INT32, INT32_MIN, INT32_MAX);
    CHECK_INT(uint32_t, TSR_UINT32, 0, UINT32_MAX);
    CHECK_INT(int64_t, TSR_INT64, INT64_MIN, INT64_MAX);
    CHECK_INT(uint64_t, TSR_UINT64, 0, UINT64_MAX);
}

static void test_bool(void **state)
{
    (void)state;
    for (unsigned a = 0; a < 2; a++)
        for (unsigned b = 0; b < 2; b++) {
            CHECK(uint8_t, TSR_BOOL, (uint8_t)a, (uint8_t)b, COMM_SUM, (uint8_t)(a | b));
            CHECK(uint8_t, TSR_BOOL, (uint8_t)a, (uint8_t)b, COMM_MAX, (uint8_t)(a | b));
            CHECK(uint8_t, TSR_BOOL, (uint8_t)a, (uint8_t)b, COMM_MIN, (uint8_t)(a & b));
            CHECK(uint8_t, TSR_BOOL, (uint8_t)a, (uint8_t)b, COMM_PROD, (uint8_t)(a & b));
        }
}

static void test_floats(void **state)
{
    (void)state;
    CHECK(float, TSR_FLOAT, 1.5F, -2.25F, COMM_SUM, -0.75F);
    CHECK(float, TSR_FLOAT, 1.5F, -2.0F, COMM_PROD, -3.0F);
    CHECK(float, TSR_FLOAT, 1.5F, -2.0F, COMM_MAX, 1.5F);
    CHECK(double, TSR_DOUBLE, 1.5, -2.0, COMM_MIN, -2.0);
    CHECK(double, TSR_DOUBLE, 0x1p-52, 1.0, COMM_SUM, 1.0 + 0x1p-52);
    float nan_first[1] = {NAN}, one[1] = {1}, out[1];
    for (int op = COMM_MAX; op <= COMM_MIN; op++) { // NaN wins on either side
        reduce2(TSR_FLOAT, (enum comm_reduce)op, nan_first, one, out, 1);
        assert_true(isnan(out[0]));
        reduce2(TSR_FLOAT, (enum comm_reduce)op, one, nan_first, out, 1);
        assert_true(isnan(out[0]));
    }
}

// The value of a half float, by the definition.
static double half_value(unsigned h)
{
    int exponent = (int)(h >> 10 & 31);
    double m = h & 1023, v = exponent ? ldexp(1024 + m, exponent - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static void test_half(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        if ((h >> 10 & 31) == 31)
            continue;
        assert_true((double)half_to_float((uint16_t)h) == half_value(h));
        assert_int_equal(float_to_half((float)half_value(h)), h);
        unsigned up = h + 1; // ties round to even
        if ((up >> 10 & 31) == 31 || (h & 0x7FFF) == 0x7FFF)
            continue;
        float middle = (float)((half_value(h) + half_value(up)) / 2);
        assert_int_equal(float_to_half(middle), h & 1 ? up : h);
        assert_int_equal(float_to_half(nextafterf(middle, 0)), h);
    }
    assert_int_equal(float_to_half(65520.0F), 0x7C00);
    assert_int_equal(float_to_half(65519.0F), 0x7BFF);
    assert_int_equal(float_to_half(-INFINITY), 0xFC00);
    assert_int_equal(float_to_half(NAN) & 0x7FFF, 0x7E00);
    assert_int_equal(float_to_bfloat(1.00390625F), 0x3F80); // a tie, rounded to even
    assert_int_equal(float_to_bfloat(1.01171875F), 0x3F82);
    assert_int_equal(float_to_bfloat(3.4e38F), 0x7F80);
    assert_int_equal(float_to_bfloat(NAN) & 0x7FFF, 0x7FC0);
}

// 16-bit floats are rounded once, at the end, so that many small addends are not lost.
static void test_half_sum(void **state)
{
    (void)state;
    uint16_t one = 0x3C00, tiny = 0x1000, sum; // 1, and 2^-11, which alone vanishes in a sum with 1
    const void *in[4] = {&one, &tiny, &tiny, &tiny};
    void *out = &sum;
    tsr__reduce(TSR_FLOAT16, COMM_SUM, in, 4, &out, 1, 0, 1);
    assert_int_equal(sum, float_to_half(1.0F + 3.0F / 2048.0F));
    assert_int_equal(sum, 0x3C02);
    uint16_t b_one = 0x3F80, b_tiny = 0x3B80; // 1, 2^-8
    const void *b[4] = {&b_one, &b_tiny, &b_tiny, &b_tiny};
    tsr__reduce(TSR_BFLOAT16, COMM_SUM, b, 4, &out, 1, 0, 1);
    assert_int_equal(sum, 0x3F82);
}

static uint64_t next_bits(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t u = *seed >> 11 ^ *seed >> 33;
    return *seed >> 60 ? u : ~(uint64_t)0 << (u & 63); // sometimes infinity or NaN
}

// Sign and payload of a NaN are not specified: CPUs and their emulators differ in them.
static bool is_nan_at(tsr_dtype t, const char *p)
{
    uint16_t half;
    float single;
    double twice;
    switch (t) {
    case TSR_FLOAT16:
        memcpy(&half, p, sizeof half);
        return (half & 0x7FFF) > 0x7C00; // 0x7E00 and 0xFE00 are both NaN
    case TSR_BFLOAT16:
        memcpy(&half, p, sizeof half);
        return (half & 0x7FFF) > 0x7F80;
    case TSR_FLOAT:
        memcpy(&single, p, sizeof single);
        return isnan(single);
    case TSR_DOUBLE:
        memcpy(&twice, p, sizeof twice);
        return isnan(twice);
    default:
        return false;
    }
}

// Vector code must give the same bits as one element at a time, for any alignment and any bit
// pattern.
static void check_wide(int level, tsr_dtype t, enum comm_reduce op, int n, int64_t count,
                       size_t shift)
{
    static char space[5][10000], wide[2][10000];
    size_t unit = tsr__elem_bytes(t);
    uint64_t seed = (uint64_t)t * 99 + (uint64_t)op + (uint64_t)count;
    const void *in[5];
    void *out[2] = {wide[0] + shift, wide[1]};
    for (int r = 0; r < n; r++) {
        in[r] = space[r] + shift * (size_t)(r % 2);
        for (size_t i = 0; i + 8 < sizeof space[r]; i += 8) {
            uint64_t u = t == TSR_BOOL ? next_bits(&seed) & 0x0101010101010101u : next_bits(&seed);
            memcpy(space[r] + i, &u, sizeof u);
        }
    }
    size_t done = tsr__reduce_wide(level, t, op, (const char *const *)in, n, (char *const *)out, 2,
                                   unit, (size_t)count * unit, true);
    for (int64_t i = 1; (size_t)i * unit < done; i++) {
        char want[8];
        const void *one[5];
        void *to = want;
        for (int r = 0; r < n; r++)
            one[r] = (const char *)in[r] + (size_t)i * unit;
        tsr__reduce(t, op, one, n, &to, 1, 0, 1);
        for (int o = 0; o < 2; o++) {
            const char *got = (const char *)out[o] + (size_t)i * unit;
            if (!is_nan_at(t, want) || !is_nan_at(t, got))
                assert_memory_equal(got, want, unit);
        }
    }
}

static void test_wide(void **state)
{
    (void)state;
    for (int t = 0; t < TSR_DTYPE_COUNT; t++)
        for (int op = COMM_SUM; op < COMM_REDUCE_COUNT; op++)
            for (int n = 2; n < 6 && tsr__reduce_ok((tsr_dtype)t, (enum comm_reduce)op); n++)
                for (int level = 0; level <= tsr__reduce_level(); level++) {
                    check_wide(level, (tsr_dtype)t, (enum comm_reduce)op, n, 1100, 8);
                    check_wide(level, (tsr_dtype)t, (enum comm_reduce)op, n, 161 + n, 0);
                }
}

// A piece of a large output is written with non-temporal stores; the bits must be the same.
static void test_pieces(void **state)
{
    (void)state;
    static _Alignas(64) float a[1037], b[1037], want[1037], got[1038];
    for (int i = 0; i < 1037; i++) {
        a[i] = (float)i * 0.7f;
        b[i] = 1.0f / (float)(i + 1);
    }
    const void *in[] = {a, b};
    void *to = want;
    tsr__reduce(TSR_FLOAT, COMM_SUM, in, 2, &to, 1, 0, 1037);
    for (int shift = 0; shift < 2; shift++)
        for (int64_t all = 1037; all < (int64_t)1 << 34; all *= 1000) {
            memset(got, 0, sizeof got);
            tsr__reduce_piece(TSR_FLOAT, COMM_SUM, in, 2, got + shift, 1037, all);
            assert_memory_equal(got + shift, want, sizeof want);
        }
    tsr__reduce_piece(TSR_FLOAT, COMM_SUM, in, 2, a, 1037, (int64_t)1 << 30); // in place
    assert_memory_equal(a, want, sizeof want);
}

static void test_types(void **state)
{
    (void)state;
    for (int t = 0; t < TSR_DTYPE_COUNT; t++)
        assert_int_equal(tsr__reduce_ok((tsr_dtype)t, COMM_SUM),
                         (t >= TSR_FLOAT && t <= TSR_UINT64 && t != TSR_STRING) ||
                             t == TSR_BFLOAT16);
    assert_false(tsr__reduce_ok(TSR_FLOAT, COMM_NONE));
    assert_false(tsr__reduce_ok(TSR_FLOAT, COMM_REDUCE_COUNT));
    assert_int_equal(tsr__elem_bytes(TSR_INT4), 0);
    assert_int_equal(tsr__elem_bytes(TSR_STRING), 0);
}

// Slices must cover all elements once, for any count.
static void test_slices(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 3000; count += 37)
        for (int n = 1; n < 9; n++) {
            int64_t at = 0, first, length;
            for (int k = 0; k < n; k++) {
                tsr__slice(count, 4, n, k, &first, &length);
                assert_true(first == at && length >= 0);
                at += length;
            }
            assert_int_equal(at, count);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers), cmocka_unit_test(test_bool),
        cmocka_unit_test(test_floats),   cmocka_unit_test(test_half),
        cmocka_unit_test(test_half_sum), cmocka_unit_test(test_types),
        cmocka_unit_test(test_wide),     cmocka_unit_test(test_slices),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
