// SPDX-License-Identifier: Apache-2.0
// scratch.h - fixture for the tests of base: a session and a temporary folder.
#ifndef TSR_TEST_SCRATCH_H
#define TSR_TEST_SCRATCH_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct scratch {
    tsr_session *s;
    char folder[64];
};

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

// Setup and teardown of cmocka: every test starts inside an empty folder.
static inline int scratch_open(void **state)
{
    struct scratch *t = calloc(1, sizeof *t);
    snprintf(t->folder, sizeof t->folder, "/tmp/tsr-base-XXXXXX");
    if (!mkdtemp(t->folder) || chdir(t->folder) != 0)
        return -1;
    t->s = tsr_session_new(NULL);
    *state = t;
    return 0;
}

static inline int scratch_close(void **state)
{
    struct scratch *t = *state;
    tsr_finding_clear(t->s);
    assert_int_equal(t->s->memory_used, sizeof *t->s); // nothing leaks
    tsr_session_free(t->s);
    int failed = chdir("/") != 0 || nftw(t->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0;
    free(t);
    return failed;
}

static inline void put(const char *path, const char *bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(bytes, f);
    assert_int_equal(fclose(f), 0);
}

static inline void assert_content(const char *path, const char *bytes)
{
    char buffer[256] = "";
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    buffer[fread(buffer, 1, sizeof buffer - 1, f)] = 0;
    fclose(f);
    assert_string_equal(buffer, bytes);
}

// Number of entries of a folder, hidden ones included.
static inline int entries(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static inline int open_descriptors(void)
{
    return entries("/proc/self/fd");
}

// Asserts that there is exactly one diagnostic, with this code; clears it.
static inline void assert_finding(tsr_session *s, const char *code)
{
    assert_int_equal(tsr_finding_count(s), 1);
    assert_string_equal(tsr_finding_value(s, 0).code, code);
    tsr_finding_clear(s);
}

#endif
