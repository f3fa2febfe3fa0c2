// SPDX-License-Identifier: Apache-2.0
// memory_limit.c - the memory limit of the session, and the command's own allocations.
//
// The limit is --memory-limit, else 7/8 of the memory of the machine or its control group. So a
// hostile file ends the command instead of the machine. Example: on a machine of 24 GiB whose
// control group allows 16 GiB the session may allocate 14 GiB. Beyond that the command ends with
// error[out-of-memory] and EXIT_READ instead of being killed.
#include "cli/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// 7/8: the system and the engine need memory too.
#define LIMIT_NUMERATOR   7
#define LIMIT_DENOMINATOR 8

// Returns the number in a small file of the kernel; -1: no limit ("max"), or the file cannot be
// read.
static int64_t read_number(const char *path)
{
    char text[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9')
        return -1;
    text[n] = 0;
    long long value = strtoll(text, NULL, 10);
    return value > 0 ? (int64_t)value : -1;
}

// Returns the default limit in bytes; 0: unknown, no limit. Supports both versions of control
// groups.
static int64_t default_limit(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    int64_t least = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int64_t limit = read_number(limits[i]);
        if (limit > 0 && (least <= 0 || limit < least))
            least = limit;
    }
    return least > 0 ? least / LIMIT_DENOMINATOR * LIMIT_NUMERATOR : 0;
}

int cli_memory_limit(const struct cli *cli, size_t *out)
{
    const char *text = cli_value(cli, "--memory-limit");
    int64_t bytes = 0;
    if (!text)
        bytes = default_limit();
    else if (!cli_read_bytes(text, &bytes))
        return cli_usage(cli, "--memory-limit needs a size such as 2GiB, not '%s'", text);
    *out = (size_t)bytes;
    return 0;
}

// ---- the command's own memory -----------------------------------------------------------------

// Returns the pointer, or ends the program if it is NULL.
static void *require(void *p, size_t n, size_t bytes_each)
{
    char text[96];
    if (p)
        return p;
    snprintf(text, sizeof text, "tessera: error[out-of-memory]: could not get %zu x %zu bytes\n", n,
             bytes_each);
    cli_die(text, EXIT_READ);
}

void *cli_alloc(size_t n, size_t bytes_each)
{
    n = n ? n : 1; // calloc(0) may return NULL
    return require(calloc(n, bytes_each), n, bytes_each);
}

// Changes the size of a list. New elements are not zeroed.
void *cli_grow(void *old, size_t n, size_t bytes_each)
{
    size_t bytes;
    if (__builtin_mul_overflow(n ? n : 1, bytes_each, &bytes))
        return require(NULL, n, bytes_each);
    return require(realloc(old, bytes), n, bytes_each);
}

char *cli_copy(const char *text, size_t n)
{
    char *copy = cli_alloc(n + 1, 1);
    memcpy(copy, text, n);
    return copy;
}
