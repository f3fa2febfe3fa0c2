// SPDX-License-Identifier: Apache-2.0
// memory_limit.c - how much the command may allocate: what --memory-limit says, else most of the machine's memory or of what
// its control group leaves to it, so that a hostile file ends the command and not the machine. And the command's own few
// allocations, which end it where they fail: so no caller can take a failure for an answer.
//
// Example: on a machine of 24 GiB whose control group allows 16 GiB the session may hold 14 GiB.
// Beyond that its allocations fail, and the command ends with error[out-of-memory] and EXIT_READ,
// instead of being killed together with its neighbours.
#include "cli/cli.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_OF  7
#define OF_PARTS 8 // 7/8: the system and the engine need some too

// The number at the start of a small file of the kernel; -1: there is none ("max").
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
    if (value <= 0)
        return -1;
    return (int64_t)value;
}

// Bytes; 0: nothing is known, and there is no limit. Both versions of control groups are asked.
static int64_t of_machine(void)
{
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max",
                                         "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    int64_t least = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int64_t limit = read_number(limits[i]);
        if (limit > 0 && (least <= 0 || limit < least))
            least = limit;
    }
    if (least <= 0)
        return 0;
    return least / OF_PARTS * PART_OF;
}

int cli_memory_limit(const struct cli *cli, size_t *out)
{
    const char *text = cli_value(cli, "--memory-limit");
    int64_t bytes = 0;
    if (!text)
        bytes = of_machine();
    else if (!cli_read_bytes(text, &bytes))
        return cli_usage(cli, "--memory-limit wants a size such as 2GiB, not '%s'", text);
    *out = (size_t)bytes;
    return 0;
}

// ---- the command's own memory ---------------------------------------------------------------------

// Lets a pointer pass; without memory it ends the program, so that the functions below never give
// NULL.
static void *hold(void *p, size_t n, size_t bytes_each)
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
    n = n ? n : 1; // calloc may answer NULL to 0
    return hold(calloc(n, bytes_each), n, bytes_each);
}

// realloc knows no two factors, so their product is checked; what is new is not zeroed.
void *cli_grow(void *old, size_t n, size_t bytes_each)
{
    size_t bytes;
    if (__builtin_mul_overflow(n ? n : 1, bytes_each, &bytes))
        return hold(NULL, n, bytes_each);
    return hold(realloc(old, bytes), n, bytes_each);
}

char *cli_copy(const char *text, size_t n)
{
    char *copy = cli_alloc(n + 1, 1);
    memcpy(copy, text, n);
    return copy;
}
