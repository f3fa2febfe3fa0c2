// SPDX-License-Identifier: Apache-2.0
// help.h - CPU time, and exit on failure, for benchmarks.
#ifndef TSR_BENCH_HELP_H
#define TSR_BENCH_HELP_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static inline void die(const char *what)
{
    fprintf(stderr, "bench: %s failed\n", what);
    exit(1);
}

#endif
