// SPDX-License-Identifier: Apache-2.0
// valgrind.h - lets tests skip or shrink cases that do not work under valgrind, which reserves
// descriptors and addresses, and cases that take too long there or in `make sanitize`.
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

// Valgrind is tens of times slower; unoptimized code with sanitizers, as in `make sanitize`, ten times.
static inline bool much_slower(void)
{
#ifdef __OPTIMIZE__
    return under_valgrind();
#else
    return true;
#endif
}

#endif
