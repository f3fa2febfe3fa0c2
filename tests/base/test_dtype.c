// SPDX-License-Identifier: Apache-2.0
// test_dtype.c - element types: byte sizes compared with a bit count, packed types, overflow.
#include "scratch.h"

static void names_and_bits(void **state)
{
    (void)state;
    assert_string_equal(tsr_dtype_name(TSR_FLOAT), "float32");
    assert_string_equal(tsr_dtype_name(TSR_INT2), "int2");
    assert_string_equal(tsr_dtype_name((tsr_dtype)999), "unknown");
    assert_int_equal(tsr_dtype_bits((tsr_dtype)999), 0);
    for (int i = 0; i < TSR_DTYPE_COUNT; i++) {
        assert_non_null(tsr_dtype_name((tsr_dtype)i)); // every number has a name
        bool sizeless = i == TSR_UNDEFINED || i == TSR_STRING;
        assert_true(sizeless == (tsr_dtype_bits((tsr_dtype)i) == 0));
        for (int k = 0; k < i; k++)
            assert_string_not_equal(tsr_dtype_name((tsr_dtype)i), tsr_dtype_name((tsr_dtype)k));
    }
}

static void bytes_of_elements(void **state)
{
    (void)state;
    for (int i = 0; i < TSR_DTYPE_COUNT; i++) {
        int64_t bits = tsr_dtype_bits((tsr_dtype)i);
        for (int64_t n = 0; n < 100; n++)
            assert_int_equal(tsr_dtype_bytes((tsr_dtype)i, n), bits ? (n * bits + 7) / 8 : -1);
        assert_int_equal(tsr_dtype_bytes((tsr_dtype)i, -1), -1);
    }
    assert_int_equal(tsr_dtype_bytes(TSR_UINT8, INT64_MAX), INT64_MAX);
    assert_int_equal(tsr_dtype_bytes(TSR_FLOAT, INT64_MAX / 4), INT64_MAX / 4 * 4);
    assert_int_equal(tsr_dtype_bytes(TSR_FLOAT, INT64_MAX / 4 + 1), -1);
    assert_int_equal(tsr_dtype_bytes(TSR_COMPLEX128, INT64_MAX / 8), -1);
    assert_int_equal(tsr_dtype_bytes(TSR_INT4, INT64_MAX), INT64_MAX / 2 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_bits),
                                       cmocka_unit_test(bytes_of_elements)};
    return cmocka_run_group_tests_name("base dtype", tests, NULL, NULL);
}
