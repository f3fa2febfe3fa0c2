// SPDX-License-Identifier: Apache-2.0
// memory_use.c - the memory of this process, as the kernel sees it: private (heaps and ONNX
// Runtime's arenas), shared with other ranks, and mapped pages of files in one folder (weights).
//
// Arenas do not shrink, so the memory after some runs is the peak of these runs.
#include "runtime/internal.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Returns the bytes of mapped files below the folder that are in memory now. The first line of a
// mapping in smaps begins with an address range, so its first '-' comes before its first space. The
// lines after it belong to that mapping.
static int64_t mapped_in(const char *folder)
{
    char line[4608];
    long long kib, sum = 0;
    bool here = false;
    size_t n = strlen(folder);
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *path = strchr(line, '/');
        bool head = strchr(line, '-') && strchr(line, '-') < strchr(line, ' ');
        if (head) // 7f00-7f10 r--p 0 08:01 42 /folder/file
            here = path && n && strncmp(path, folder, n) == 0 && path[n] == '/';
        else if (here && sscanf(line, "Rss: %lld kB", &kib) == 1)
            sum += kib;
    }
    if (f)
        fclose(f);
    return (int64_t)sum * 1024;
}

// Records the memory of the process; all fields are 0 if there is no /proc. Compares the real path
// of the folder, because the kernel lists files by it.
struct memory_mark tsr__memory_mark(const char *folder)
{
    struct memory_mark mark = {0};
    char line[256], path[4096];
    long long kib;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1)
            mark.own = (int64_t)kib * 1024;
        else if (sscanf(line, "RssShmem: %lld kB", &kib) == 1)
            mark.shared = (int64_t)kib * 1024;
    }
    if (f)
        fclose(f);
    if (folder && realpath(folder, path))
        mark.mapped = mapped_in(path);
    return mark;
}

// Returns the memory that the process has gained since the mark. A rank that reads tensors of its
// neighbours in shared memory touches them, but does not own them. Never negative: other parts of
// the process may have freed memory meanwhile.
int64_t tsr__memory_since(const struct memory_mark *before, const char *folder,
                          struct endpoint *place)
{
    struct memory_mark now = tsr__memory_mark(folder);
    int64_t shared = now.shared - before->shared;
    if (place && place->transport->held)
        shared = (int64_t)place->transport->held(place);
    int64_t more = now.own - before->own + shared + now.mapped - before->mapped;
    return more > 0 ? more : 0;
}

// Returns freed memory to the system; the C library would keep it for the next malloc. The engine
// copies weights into the order of its kernels and frees the originals: 45 MiB of 111 for the
// convolutions in docs/measured.md. Of engine sessions that share packed weights, all but the first
// discard their packed copies.
void tsr__memory_settle(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

int64_t tsr__memory_available(void)
{
    long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && kib <= 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) != 1)
            kib = 0;
    if (f)
        fclose(f);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (kib > 0)
        return (int64_t)kib * 1024;
    return pages > 0 && page > 0 ? (int64_t)pages * page : 0;
}
