// SPDX-License-Identifier: Apache-2.0
// test_file.c - files that the user named: mapping, reading, and files that are rejected.
#include "scratch.h"

static void maps(void **state)
{
    struct scratch *t = *state;
    struct mapped m = {0};
    put("a", "some bytes");
    assert_int_equal(tsr__file_map(t->s, "a", &m), TSR_OK);
    assert_true(str_is(m.bytes, "some bytes"));
    assert_true(m.fd > 2);
    tsr__file_unmap(&m);
    tsr__file_unmap(&m); // harmless
    put("empty", "");
    assert_int_equal(tsr__file_map(t->s, "empty", &m), TSR_OK);
    assert_null(m.bytes.p);
    assert_int_equal(m.bytes.n, 0);
    tsr__file_unmap(&m);
    m = (struct mapped){0};
    tsr__file_unmap(&m); // a zeroed struct holds no mapping
    assert_true(fcntl(0, F_GETFD) >= 0);
}

static void reads(void **state)
{
    struct scratch *t = *state;
    struct arena a;
    struct str s = {NULL, 0};
    tsr__arena_init(&a, t->s);
    put("a", "0123456789");
    assert_int_equal(tsr__file_read(t->s, &a, "a", 10, &s), TSR_OK);
    assert_string_equal(s.p, "0123456789");
    assert_int_equal(s.n, 10);
    assert_int_equal(tsr__file_read(t->s, &a, "a", 9, &s), TSR_IO);
    assert_finding(t->s, "io-read");
    put("empty", "");
    assert_int_equal(tsr__file_read(t->s, &a, "empty", 9, &s), TSR_OK);
    assert_string_equal(s.p, "");
    tsr__arena_free(&a);
}

static void refusals(void **state)
{
    struct scratch *t = *state;
    struct mapped m;
    struct arena a;
    struct str s;
    tsr__arena_init(&a, t->s);
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(mkfifo("fifo", 0666), 0);
    const char *const names[] = {"missing", "folder", "fifo", "/dev/null", "", "folder/x/y"};
    int before = open_descriptors();
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        assert_int_equal(tsr__file_map(t->s, names[i], &m), TSR_IO);
        assert_string_equal(tsr_finding_value(t->s, 0).file, names[i]);
        assert_finding(t->s, "io-open");
        assert_int_equal(tsr__file_read(t->s, &a, names[i], 100, &s), TSR_IO);
        assert_finding(t->s, "io-open");
    }
    assert_int_equal(open_descriptors(), before);
    tsr__arena_free(&a);
}

// If stdin is closed, a file must not get its descriptor 0.
static void closed_standard_streams(void **state)
{
    struct scratch *t = *state;
    struct mapped m;
    put("a", "x");
    int kept = dup(0);
    close(0);
    assert_int_equal(tsr__file_map(t->s, "a", &m), TSR_OK);
    assert_true(m.fd > 2);
    assert_int_equal(fcntl(0, F_GETFD), -1);
    tsr__file_unmap(&m);
    dup2(kept, 0);
    close(kept);
}

static void same_files(void **state)
{
    (void)state;
    put("a", "x");
    put("b", "x");
    assert_int_equal(link("a", "hard"), 0);
    assert_int_equal(symlink("a", "soft"), 0);
    assert_true(tsr__same_file("a", "a"));
    assert_true(tsr__same_file("a", "./a"));
    assert_true(tsr__same_file("a", "hard"));
    assert_true(tsr__same_file("soft", "a"));
    assert_false(tsr__same_file("a", "b"));
    assert_false(tsr__same_file("a", "missing"));
    assert_false(tsr__same_file("missing", "missing"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {T(maps), T(reads), T(refusals), T(closed_standard_streams),
                                       T(same_files)};
    return cmocka_run_group_tests_name("base file", tests, NULL, NULL);
}
