// SPDX-License-Identifier: Apache-2.0
// memory_limit.c - the memory limit of the session, and the command's own allocations.
//
// The limit is --memory-limit, else 7/8 of the memory of the machine or its control group. So a
// hostile file ends the command instead of the machine. Example: on a machine of 24 GiB whose
// control group allows 16 GiB the session may allocate 14 GiB. Beyond that the command ends with
// error[out-of-memory] and EXIT_READ instead of being killed.
#include "cli/cli.h"

#include <fcntl.h>
#include <stddef.h>
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
    else if (!tsr_bytes_read(text, &bytes))
        return cli_usage(cli, "--memory-limit needs a size such as 2GiB, not '%s'", text);
    *out = (uint64_t)bytes < SIZE_MAX ? (size_t)bytes : SIZE_MAX;
    return 0;
}

// ---- the command's own memory -----------------------------------------------------------------

// All blocks are in a list, the newest first. The memory of the caller follows the struct.
struct block {
    struct block *older, *newer;
    size_t number; // counted from 1
    max_align_t memory[];
};
static struct block *newest;

void *cli_alloc(size_t n, size_t bytes_each)
{
    return cli_grow(NULL, n, bytes_each);
}

// A block keeps its place in the list, so that cli_release does not free a list that has grown.
void *cli_grow(void *old, size_t n, size_t bytes_each)
{
    struct block *block = old ? (struct block *)((char *)old - sizeof *block) : NULL;
    size_t bytes, all;
    bool fits = !__builtin_mul_overflow(n, bytes_each, &bytes) &&
                !__builtin_add_overflow(bytes, sizeof *block, &all);
    struct block *grown = fits ? realloc(block, all) : NULL;
    if (!grown) {
        char text[96];
        snprintf(text, sizeof text,
                 "tessera: error[out-of-memory]: could not get %zu x %zu bytes\n", n, bytes_each);
        cli_die(text, EXIT_READ);
    }
    if (!old) {
        memset(grown->memory, 0, bytes);
        *grown = (struct block){.older = newest, .number = cli_mark() + 1};
    }
    if (grown->newer)
        grown->newer->older = grown;
    else
        newest = grown;
    if (grown->older)
        grown->older->newer = grown;
    return grown->memory;
}

size_t cli_mark(void)
{
    return newest ? newest->number : 0;
}

void cli_release(size_t mark)
{
    while (cli_mark() > mark) {
        struct block *older = newest->older;
        free(newest);
        newest = older;
    }
    if (newest)
        newest->newer = NULL;
}

char *cli_copy(const char *text, size_t n)
{
    char *copy = cli_alloc(n + 1, 1);
    memcpy(copy, text, n);
    return copy;
}
