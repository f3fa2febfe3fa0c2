// SPDX-License-Identifier: Apache-2.0
// test_mapped.c - finds the file that is mapped at an address, even after the process has changed
// its folder.
#include "transport/transport.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char here[] = "in this program";

static void the_program_is_found(void **state)
{
    char program[PATH_MAX] = "", found[PATH_MAX], folder[PATH_MAX];
    (void)state;
    assert_true(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    assert_int_equal(chdir("/"), 0);
    assert_true(tsr__file_at(here, found, sizeof found));
    assert_string_equal(found, program);
    assert_true(tsr__folder_at(here, folder, sizeof folder));
    *strrchr(program, '/') = 0;
    assert_string_equal(folder, program);
}

// Addresses outside of mapped files are not found.
static void what_is_in_no_file(void **state)
{
    char found[PATH_MAX], *heap = calloc(1, 1);
    (void)state;
    assert_false(tsr__file_at(heap, found, sizeof found));
    assert_false(tsr__file_at(NULL, found, sizeof found));
    assert_false(tsr__file_at(here, found, 4)); // buffer too short for the path
    free(heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_program_is_found),
                                       cmocka_unit_test(what_is_in_no_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
