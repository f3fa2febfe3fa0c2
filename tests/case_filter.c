// SPDX-License-Identifier: Apache-2.0
// case_filter.c - linked into every cmocka program: CASE=PATTERN in the environment runs only the tests whose
// name matches (`*` and `?` as in a shell).
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void set_case_filter(void)
{
    const char *pattern = getenv("CASE");
    if (pattern && *pattern)
        cmocka_set_test_filter(pattern);
}
