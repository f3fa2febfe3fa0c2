// SPDX-License-Identifier: Apache-2.0
// test_external.c - external data: valid and invalid descriptions, and ranges of files.
#include "help.h"
#include "../valgrind.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PAIRS 6

// A tensor with these key-value pairs; NULL ends the list.
static struct bytes tensor(const char *const *pairs)
{
    struct bytes b = from_hex("1001 4201 77");
    for (size_t i = 0; pairs[i]; i += 2) {
        struct bytes pair = {0};
        put_len(&pair, F_STRING_PAIR_KEY, pairs[i], strlen(pairs[i]));
        put_len(&pair, F_STRING_PAIR_VALUE, pairs[i + 1], strlen(pairs[i + 1]));
        put_len(&b, F_TENSOR_EXTERNAL_DATA, pair.p, pair.n);
        free(pair.p);
    }
    return b;
}

#define HUGE_NUMBER                                                                                \
    "1000000000000000000000000000000000000000000000000000000000000000000000000000000000000"

static const struct {
    const char *pairs[2 * MAX_PAIRS + 1];
    const char *code; // NULL: accepted
    uint64_t offset, length;
    bool has_length;
} cases[] = {
    {{"location", "w"}, NULL, 0, 0, false},
    {{"location", "w", "offset", "4096", "length", "16"}, NULL, 4096, 16, true},
    {{"length", "0", "location", "a/b/w.bin"}, NULL, 0, 0, true},
    {{"location", "w", "checksum", "abc"}, NULL, 0, 0, false},
    {{"location", "w", "basepath", "/x", "", "", "foreign", "-1"}, NULL, 0, 0, false},
    {{"location", "w", "foreign", "1", "foreign", "2"}, NULL, 0, 0, false},
    {{"location", "w", "offset", "9223372036854775807"}, NULL, INT64_MAX, 0, false},
    {{NULL}, "external-location", 0, 0, false},
    {{"offset", "1"}, "external-location", 0, 0, false},
    {{"location", ""}, "external-location", 0, 0, false},
    {{"location", "*/_ORT_MEM_ADDR_/*"}, "external-location", 0, 0, false},
    {{"location", "*/_ORT_MEM_ADDR_/*7"}, "external-location", 0, 0, false},
    {{"location", "w", "location", "w"}, "external-key", 0, 0, false},
    {{"location", "w", "offset", "1", "offset", "1"}, "external-key", 0, 0, false},
    {{"location", "w", "length", "1", "length", "2"}, "external-key", 0, 0, false},
    {{"location", "w", "checksum", "", "checksum", ""}, "external-key", 0, 0, false},
    {{"location", "w", "offset", ""}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "-1"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "-0"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "+1"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", " 1"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "1 "}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "0x10"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "1e3"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "1.0"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "9223372036854775808"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", "18446744073709551616"}, "external-number", 0, 0, false},
    {{"location", "w", "offset", HUGE_NUMBER}, "external-number", 0, 0, false},
    {{"location", "w", "length", "-1"}, "external-number", 0, 0, false},
    {{"location", "w", "length", HUGE_NUMBER}, "external-number", 0, 0, false},
};

// Checks the table of descriptions above.
static void test_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < TSR_COUNT(cases); i++) {
        tsr_session *s = tsr_session_new(NULL);
        struct bytes b = tensor(cases[i].pairs);
        struct place at = PLACE_NONE;
        at.value = STR("w");
        struct wire_external e;
        tsr_status st = tsr__external_parse(s, view(&b), &at, &e);
        if (cases[i].code) {
            assert_int_equal(st, TSR_MALFORMED);
            assert_finding(s, cases[i].code);
            assert_string_equal(tsr_finding_value(s, 0).value, "w");
        } else {
            assert_int_equal(st, TSR_OK);
            assert_true(e.location.n > 0);
            assert_int_equal(e.offset, cases[i].offset);
            assert_int_equal(e.length, cases[i].length);
            assert_int_equal(e.has_length, cases[i].has_length);
        }
        free(b.p);
        tsr_session_free(s);
    }
}

struct fixture {
    tsr_session *s;
    char path[64];
    struct folder folder;
};

static void setup(struct fixture *x)
{
    x->s = tsr_session_new(NULL);
    snprintf(x->path, sizeof x->path, "/tmp/tsr-wire-XXXXXX");
    assert_non_null(mkdtemp(x->path));
    assert_int_equal(tsr__folder_open(x->s, x->path, &x->folder), TSR_OK);
    int fd = openat(x->folder.fd, "w", O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_true(fd >= 0);
    char page[10000];
    for (size_t i = 0; i < sizeof page; i++)
        page[i] = (char)(i % 251);
    assert_int_equal(write(fd, page, sizeof page), sizeof page);
    close(fd);
    fd = openat(x->folder.fd, "empty", O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void teardown(struct fixture *x)
{
    unlinkat(x->folder.fd, "w", 0);
    unlinkat(x->folder.fd, "empty", 0);
    unlinkat(x->folder.fd, "large", 0);
    tsr__folder_close(&x->folder);
    assert_int_equal(rmdir(x->path), 0);
    tsr_session_free(x->s);
}

static const struct {
    const char *location;
    uint64_t offset, length;
    bool has_length;
    tsr_status status;
    uint64_t wanted; // bytes of the window
} windows[] = {
    {"w", 0, 0, false, TSR_OK, 10000},
    {"w", 0, 10000, true, TSR_OK, 10000},
    {"w", 4096, 100, true, TSR_OK, 100},
    {"w", 5000, 0, false, TSR_OK, 5000},
    {"w", 9999, 1, true, TSR_OK, 1},
    {"w", 10000, 0, true, TSR_OK, 0},
    {"w", 10000, 0, false, TSR_OK, 0},
    {"w", 3, 0, true, TSR_OK, 0},
    {"empty", 0, 0, false, TSR_OK, 0},
    {"empty", 0, 1, true, TSR_MALFORMED, 0},
    {"w", 0, 10001, true, TSR_MALFORMED, 0},
    {"w", 9999, 2, true, TSR_MALFORMED, 0},
    {"w", 10001, 0, true, TSR_MALFORMED, 0},
    {"w", 10001, 0, false, TSR_MALFORMED, 0},
    {"w", INT64_MAX, INT64_MAX, true, TSR_MALFORMED, 0},
    {"w", 1, UINT64_MAX, true, TSR_MALFORMED, 0},
};

static void test_windows(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    for (size_t i = 0; i < TSR_COUNT(windows); i++) {
        struct wire_external e = {.location = str_of(windows[i].location),
                                  .offset = windows[i].offset,
                                  .length = windows[i].length,
                                  .has_length = windows[i].has_length};
        struct place at = PLACE_NONE;
        struct mapped_range map;
        tsr_finding_clear(x.s);
        assert_int_equal(tsr__external_map(x.s, &x.folder, &e, &at, &map), windows[i].status);
        if (windows[i].status != TSR_OK) {
            assert_finding(x.s, "external-window");
            continue;
        }
        assert_int_equal(map.bytes.n, windows[i].wanted);
        for (uint64_t k = 0; k < map.bytes.n; k++)
            assert_int_equal((unsigned char)map.bytes.p[k], (windows[i].offset + k) % 251);
        tsr__fd_unmap(&map);
    }
    teardown(&x);
}

// The checks themselves are tested in tests/base; here: external data uses them.
static void test_outside(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    static const char *const names[] = {"/etc/passwd", "../etc/passwd", "a/../../w", "absent", ".",
                                        "w/"};
    for (size_t i = 0; i < TSR_COUNT(names); i++) {
        struct wire_external e = {.location = str_of(names[i])};
        struct place at = PLACE_NONE;
        int fd = -1;
        uint64_t n;
        tsr_finding_clear(x.s);
        assert_true(tsr__external_open(x.s, &x.folder, &e, &at, &fd, &n) != TSR_OK);
        assert_int_equal(fd, -1);
        assert_int_equal(tsr_finding_count(x.s), 1);
    }
    teardown(&x);
}

// 100 GiB of data in a sparse file: mapping must need no memory. Reading it would end at the time
// limit of the program. Systems of 32 bits must refuse it.
static void test_100_gib(void **state)
{
    (void)state;
    if (under_valgrind())
        skip(); // valgrind has not enough address space
    struct fixture x;
    setup(&x);
    uint64_t size = (uint64_t)100 << 30;
    int fd = openat(x.folder.fd, "large", O_CREAT | O_WRONLY | O_EXCL, 0600);
    assert_true(fd >= 0);
    if (ftruncate(fd, (off_t)size) != 0) {
        close(fd);
        teardown(&x);
        print_message("[  SKIPPED ] the file system has no files of 100 GiB\n");
        skip();
    }
    assert_int_equal(pwrite(fd, "end", 3, (off_t)size - 3), 3);
    close(fd);
    struct wire_external e = {.location = STR("large"), .length = size, .has_length = true};
    struct place at = PLACE_NONE;
    struct mapped_range map;
    bool addressable = size <= PTRDIFF_MAX;
    assert_int_equal(tsr__external_map(x.s, &x.folder, &e, &at, &map),
                     addressable ? TSR_OK : TSR_IO);
    assert_true(x.s->memory_peak < 1 << 20);
    if (!addressable) {
        assert_finding(x.s, "io-read");
        teardown(&x);
        return;
    }
    assert_int_equal(map.bytes.n, size);
    assert_memory_equal(map.bytes.p + size - 3, "end", 3);
    tsr__fd_unmap(&map);
    teardown(&x);
}

// Each read of a file may fail.
static void test_faults(void **state)
{
    (void)state;
    struct fixture x;
    setup(&x);
    int failures = 0;
    for (uint64_t nth = 1; nth < 10; nth++) {
        struct wire_external e = {.location = STR("w")};
        struct place at = PLACE_NONE;
        struct mapped_range map;
        tsr_finding_clear(x.s);
        tsr__session_fault(x.s, FAULT_READ, nth, false);
        tsr_status st = tsr__external_map(x.s, &x.folder, &e, &at, &map);
        tsr__session_fault(x.s, FAULT_READ, 0, false);
        if (st == TSR_OK) {
            tsr__fd_unmap(&map);
        } else {
            assert_int_equal(st, TSR_IO);
            assert_int_equal(tsr_finding_count(x.s), 1);
            failures++;
        }
    }
    assert_true(failures >= 2);
    teardown(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),    cmocka_unit_test(test_windows),
        cmocka_unit_test(test_outside), cmocka_unit_test(test_100_gib),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
