// SPDX-License-Identifier: Apache-2.0
// test_text.c - growing text, its maximum length, and escaping for terminals.
#include "scratch.h"

#include <locale.h>

static void grows(void **state)
{
    struct scratch *t = *state;
    struct text x;
    tsr__text_init(&x, t->s);
    for (int i = 0; i < 10000; i++)
        tsr__text_printf(&x, "%d,", i % 10);
    tsr__text_add(&x, STR("end"));
    tsr__text_add(&x, (struct str){NULL, 0});
    assert_false(x.failed);
    assert_int_equal(x.n, 20003);
    assert_int_equal(strlen(x.p), 20003);
    assert_string_equal(x.p + 19998, "9,end");
    tsr__text_free(&x);
    assert_int_equal(t->s->memory_used, sizeof *t->s);
}

static void one_long_piece(void **state)
{
    struct scratch *t = *state;
    struct text x;
    tsr__text_init(&x, t->s);
    tsr__text_printf(&x, "%5000d|%s", 7, "tail");
    assert_int_equal(x.n, 5005);
    assert_string_equal(x.p + 4999, "7|tail");
    tsr__text_free(&x);
}

static void stops_at_its_maximum(void **state)
{
    struct scratch *t = *state;
    struct text x;
    tsr__text_init(&x, t->s);
    x.max = 10;
    tsr__text_add(&x, STR("0123456789"));
    assert_false(x.failed);
    tsr__text_add(&x, STR("x"));
    assert_true(x.failed);
    assert_int_equal(text_status(&x), TSR_UNSUPPORTED); // memory is not the cause
    assert_false(t->s->out_of_memory);
    assert_string_equal(x.p, "0123456789");
    tsr__text_printf(&x, "%d", 1); // sticky
    assert_int_equal(x.n, 10);
    assert_finding(t->s, "text-long");
    tsr__text_free(&x);
}

static void shown(tsr_session *s, struct str in, const char *out)
{
    struct text x;
    tsr__text_init(&x, s);
    tsr__text_add_safe(&x, in);
    assert_string_equal(x.p ? x.p : "", out);
    tsr__text_free(&x);
}

static void terminals(void **state)
{
    struct scratch *t = *state;
    shown(t->s, STR(""), "");
    shown(t->s, STR("plain 'text' \\ ok"), "plain 'text' \\ ok");
    shown(t->s, STR("gr\xc3\xbc\xc3\x9f \xe6\xbc\xa2 \xf0\x9f\x98\x80"),
          "gr\xc3\xbc\xc3\x9f \xe6\xbc\xa2 \xf0\x9f\x98\x80");
    shown(t->s, STR("a\x1b[31mred"), "a\\x1B[31mred");
    shown(t->s, STR("a\nb\tc\0d\x7f"), "a\\x0Ab\\x09c\\x00d\\x7F");
    shown(t->s,
          STR("\xc2\x9b"
              "31m"),
          "\\xC2\\x9B31m"); // C1 control character: a terminal may execute it
    shown(t->s,
          STR("\xe2\x80\xae"
              "abc"),
          "\\xE2\\x80\\xAE"
          "abc"); // right-to-left override
    shown(t->s, STR("\xff\xfe"), "\\xFF\\xFE");
    shown(t->s, STR("\xc3"), "\\xC3");          // truncated
    shown(t->s, STR("\xc0\xaf"), "\\xC0\\xAF"); // over-long
    shown(t->s, STR("\xe0\x80\xaf"), "\\xE0\\x80\\xAF");
    shown(t->s, STR("\xed\xa0\x80"), "\\xED\\xA0\\x80");          // surrogate
    shown(t->s, STR("\xf4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80"); // beyond the last code point
    shown(t->s, STR("\xf5\x80\x80\x80"), "\\xF5\\x80\\x80\\x80");
    shown(t->s, STR("a\xe6\xbc"), "a\\xE6\\xBC");
}

static void doubles(void **state)
{
    (void)state;
    char out[32];
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},
                {-0.0, "-0"},
                {1, "1"},
                {0.1, "0.1"},
                {1e300, "1e+300"},
                {5e-5, "5e-05"},
                {1.0 / 3, "0.3333333333333333"},
                {5e-324, "4.94065645841247e-324"},
                {123456789012, "123456789012"}};
    const char *const locales[] = {"C", "de_DE.UTF-8", "tr_TR.UTF-8"}; // missing ones are skipped
    for (size_t k = 0; k < TSR_COUNT(locales); k++) {
        if (!setlocale(LC_ALL, locales[k]))
            continue;
        for (size_t i = 0; i < TSR_COUNT(rows); i++) {
            tsr__double_text(rows[i].value, out);
            assert_string_equal(out, rows[i].text);
        }
    }
    setlocale(LC_ALL, "C");
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {T(grows), T(one_long_piece), T(stops_at_its_maximum),
                                       T(terminals), T(doubles)};
    return cmocka_run_group_tests_name("base text", tests, NULL, NULL);
}
