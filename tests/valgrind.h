// SPDX-License-Identifier: Apache-2.0
// valgrind.h - for the few cases that a program under valgrind cannot have: it keeps descriptors and addresses for itself, and is
// tens of times as slow.
#ifndef TSR_TEST_VALGRIND_H
#define TSR_TEST_VALGRIND_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// It loads another library into every program that it watches.
static inline bool under_valgrind(void)
{
    const char *loaded = getenv("LD_PRELOAD");
    return loaded && strstr(loaded, "vgpreload");
}

#endif
