// SPDX-License-Identifier: Apache-2.0
// fuzz.h - shared by the fuzz targets: invariants that abort, sessions with limited memory,
// temporary files.
#ifndef TSR_FUZZ_H
#define TSR_FUZZ_H

#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

// The memory limit of SECURITY.md for a file of n bytes.
static inline tsr_session *fuzz_session(size_t n)
{
    tsr_session_options options = {.size = sizeof options,
                                   .memory_limit = 16 * n + ((size_t)64 << 20)};
    tsr_session *s = tsr_session_new(&options);
    MUST(s);
    return s;
}

// Every failure must have a diagnostic, and every diagnostic a text. Frees the session.
static inline void fuzz_end(tsr_session *s, tsr_status status)
{
    MUST(status != TSR_BUG);
    MUST(status == TSR_OK || tsr_finding_count(s) > 0);
    for (size_t i = 0; i < tsr_finding_count(s); i++)
        MUST(tsr_finding_text(s, i) != NULL);
    tsr_session_free(s);
}

// Stores the bytes in an unnamed file. The path is valid until the next call.
static inline const char *fuzz_file(const void *data, size_t n)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        MUST(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    MUST(ftruncate(fd, 0) == 0);
    MUST(pwrite(fd, data, n, 0) == (ssize_t)n);
    return path;
}

// A folder whose files are overwritten in each case; it is removed when the process ends.
static char fuzz_folder_path[] = "/dev/shm/tsr-fuzz-XXXXXX";

static inline int fuzz_remove_one(const char *path, const struct stat *st, int kind,
                                  struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline void fuzz_remove_folder(void)
{
    nftw(fuzz_folder_path, fuzz_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline const char *fuzz_folder(void)
{
    static bool made;
    if (!made) {
        MUST(mkdtemp(fuzz_folder_path));
        MUST(atexit(fuzz_remove_folder) == 0);
        made = true;
    }
    return fuzz_folder_path;
}

static inline void fuzz_put(const char *folder, const char *name, const void *data, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    MUST(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    close(fd);
}

#endif
