// SPDX-License-Identifier: Apache-2.0
// valgrind.h - lets tests skip or shrink cases that do not work under valgrind: it reserves
// descriptors and addresses, and is tens of times slower.
#ifndef TSR_TEST_VALGRIND_H
#define TSR_TEST_VALGRIND_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Valgrind preloads a library into every program that it runs.
static inline bool under_valgrind(void)
{
    const char *loaded = getenv("LD_PRELOAD");
    return loaded && strstr(loaded, "vgpreload");
}

#endif
