// SPDX-License-Identifier: Apache-2.0
// test_str.c - string views: order, numbers, edit distance, nearest name.
#include "scratch.h"

#include <time.h>

static void order(void **state)
{
    (void)state;
    assert_true(tsr__str_cmp(STR("a"), STR("b")) < 0);
    assert_true(tsr__str_cmp(STR("ab"), STR("a")) > 0);
    assert_true(tsr__str_cmp(STR(""), STR("a")) < 0);
    assert_true(tsr__str_cmp(STR("\x7f"), STR("\xff")) < 0); // bytes are compared as unsigned
    assert_int_equal(tsr__str_cmp((struct str){NULL, 0}, STR("")), 0);
    assert_true(str_eq((struct str){NULL, 0}, STR("")));
    assert_true(str_is(STR("x"), "x"));
}

static void numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } rows[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"42", true, 42},
        {"-42", true, -42},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"18446744073709551616", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"0x10", false, 0},
        {"1e3", false, 0},
        {"1.0", false, 0},
        {"--1", false, 0},
    };
    for (size_t i = 0; i < TSR_COUNT(rows); i++) {
        int64_t value = 0;
        if (tsr__str_int(str_of(rows[i].text), &value) != rows[i].good || value != rows[i].value)
            fail_msg("'%s'", rows[i].text);
    }
    int64_t untouched = 7;
    assert_false(tsr__str_int((struct str){NULL, 0}, &untouched));
    assert_int_equal(untouched, 7);
}

static void device_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *kind;
        int64_t number;
        bool cuda; // of the name
    } rows[] = {
        {"CUDA", "CUDA", 0, true},      {"cuda:3", "CUDA", 3, true},
        {"Cuda:0", "CUDA", 0, true},    {"GPU", "CUDA", -1, true},
        {"gpu:2", "GPU", 2, true},      {"GPUs", "GPU", -1, false},
        {"CUDA:", "CUDA", -1, false},   {"CUDA1", "CUDA", -1, false},
        {"CUDA:-1", "CUDA", -1, false}, {"CUD", "CUDA", -1, false},
        {"CUDAx:1", "CUDA", -1, false}, {"CUDA 1", "CUDA", -1, false},
        {"CPU", "CPU", 0, false},       {"cpu:1", "CPU", 1, false},
        {"CPUs", "CPU", -1, false},     {"", "CPU", -1, false},
        {"NPU:0", "CUDA", -1, false},   {NULL, "CPU", -1, false},
    };
    for (size_t i = 0; i < TSR_COUNT(rows); i++)
        if (tsr__device_number(str_of(rows[i].name), rows[i].kind) != rows[i].number ||
            tsr__device_is_cuda(str_of(rows[i].name)) != rows[i].cuda)
            fail_msg("'%s'", rows[i].name);
}

// Edit distance by brute force, straight from its definition.
static size_t plain_distance(const char *a, const char *b)
{
    if (!*a || !*b)
        return strlen(a) + strlen(b);
    size_t swap = plain_distance(a + 1, b + 1) + (*a != *b);
    size_t drop = plain_distance(a + 1, b) + 1, add = plain_distance(a, b + 1) + 1;
    size_t least = drop < add ? drop : add;
    return swap < least ? swap : least;
}

static void distances(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int round = 0; round < 2000; round++) {
        char a[7] = "", b[7] = "";
        for (int i = 0; i < 6; i++) {
            a[i] = "abc"[(seed = seed * 1103515245 + 12345) >> 16 & 1];
            b[i] = "abc"[(seed = seed * 1103515245 + 12345) >> 16 & 1];
        }
        a[(seed >> 20) % 7] = 0;
        b[(seed >> 24) % 7] = 0;
        size_t want = plain_distance(a, b);
        for (size_t limit = 0; limit < 8; limit++)
            assert_int_equal(tsr__str_distance(str_of(a), str_of(b), limit),
                             want > limit ? limit + 1 : want);
    }
    static char text[10000];
    memset(text, 'a', sizeof text);
    assert_int_equal(tsr__str_distance((struct str){text, 10000}, (struct str){text, 9999}, 2), 1);
    text[0] = 'b';
    assert_int_equal(
        tsr__str_distance((struct str){text, 5000}, (struct str){text + 5000, 5000}, 2), 1);
}

static void nearest(void **state)
{
    (void)state;
    const struct str names[] = {STR("input"), STR("hidden"), STR("output"), STR("W_up"), STR("")};
    assert_true(str_is(tsr__nearest(STR("hiden"), names, 5), "hidden"));
    assert_true(str_is(tsr__nearest(STR("ouptut"), names, 5), "output"));
    assert_true(str_is(tsr__nearest(STR("W_up"), names, 5), "W_up"));
    assert_int_equal(tsr__nearest(STR("bias"), names, 5).n, 0);
    assert_int_equal(tsr__nearest(STR("x"), names, 5).n, 0);
    assert_int_equal(tsr__nearest(STR("input"), NULL, 0).n, 0);
    const struct str even[] = {STR("abcx"), STR("abcy")};
    assert_true(str_is(tsr__nearest(STR("abcd"), even, 2), "abcx")); // the first of equals
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order),     cmocka_unit_test(device_names), cmocka_unit_test(numbers),
        cmocka_unit_test(distances), cmocka_unit_test(nearest),
    };
    return cmocka_run_group_tests_name("base str", tests, NULL, NULL);
}
