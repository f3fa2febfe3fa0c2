// SPDX-License-Identifier: Apache-2.0
// kernel.c - system calls that only Linux has, and what replaces them elsewhere.
//
// No other file of the portable modules calls them. Where a call does not exist it fails with
// ENOSYS, as on an old kernel, and its caller does the same in several portable steps.
#include "base/internal.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __linux__
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>

int tsr__kernel_open(int root, const char *name, int flags, bool links)
{
    struct open_how how = {.flags = (uint64_t)flags,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS |
                                      (links ? 0 : RESOLVE_NO_SYMLINKS)};
    return (int)syscall(SYS_openat2, root, name, &how, sizeof how);
}

int tsr__kernel_exchange(const char *a, const char *b)
{
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

long tsr__kernel_entries(int fd, struct dirent *entries, size_t bytes)
{
    return syscall(SYS_getdents64, fd, entries, bytes);
}

ssize_t tsr__kernel_copy(int from, off_t *at, int to, size_t n)
{
    return copy_file_range(from, at, to, NULL, n, 0);
}

int tsr__kernel_sync(int fd)
{
    return syncfs(fd);
}

// GRND_NONBLOCK: do not wait for entropy after boot.
bool tsr__kernel_random(void *out, size_t n)
{
    return getrandom(out, n, GRND_NONBLOCK) == (ssize_t)n;
}

bool tsr__kernel_secret(uint64_t out[2])
{
    uintptr_t drawn = getauxval(AT_RANDOM);
    if (drawn)
        memcpy(out, (const void *)drawn, 16);
    return drawn != 0;
}

void tsr__kernel_protect(void *p, size_t n)
{
    mprotect(p, n, PROT_READ);
}

size_t tsr__kernel_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) <= 0)
        return 1;
    return (size_t)CPU_COUNT(&set);
}

#else

static int no_call(void)
{
    errno = ENOSYS;
    return -1;
}

int tsr__kernel_open(int root, const char *name, int flags, bool links)
{
    (void)root, (void)name, (void)flags, (void)links;
    return no_call();
}

int tsr__kernel_exchange(const char *a, const char *b)
{
    (void)a, (void)b;
    return no_call();
}

long tsr__kernel_entries(int fd, struct dirent *entries, size_t bytes)
{
    return getdents(fd, entries, bytes);
}

ssize_t tsr__kernel_copy(int from, off_t *at, int to, size_t n)
{
    (void)from, (void)at, (void)to, (void)n;
    return no_call();
}

int tsr__kernel_sync(int fd)
{
    return fsync(fd);
}

bool tsr__kernel_random(void *out, size_t n)
{
    return getentropy(out, n) == 0;
}

bool tsr__kernel_secret(uint64_t out[2])
{
    return getentropy(out, 16) == 0;
}

void tsr__kernel_protect(void *p, size_t n)
{
    (void)p, (void)n;
}

size_t tsr__kernel_cores(void)
{
    return 1;
}
#endif
