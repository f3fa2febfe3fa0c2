// SPDX-License-Identifier: Apache-2.0
// mapped.c - finds the library or file that contains an address.
//
// dladdr returns the name by which a library was loaded. A relative name means another file after a
// chdir, perhaps one of another user. The kernel's list has the path of the file that was mapped.
#include "transport/transport.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// True if the line of /proc/self/maps describes a mapped file that contains this address. *path is
// then its path. Example: 7f1a0000-7f1a4000 r-xp 00001000 fe:00 1234 /usr/lib/libtessera.so.1
static bool is_line_of(char *line, const void *address, char **path)
{
    unsigned long long start, stop;
    uintptr_t at = (uintptr_t)address;
    if (sscanf(line, "%llx-%llx", &start, &stop) != 2)
        return false;
    *path = strchr(line, '/');
    if (at < start || at >= stop || !*path)
        return false;
    (*path)[strcspn(*path, "\n")] = 0;
    return true;
}

bool tsr__file_at(const void *address, char *out, size_t n)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[PATH_MAX + 200], *path;
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps))
        if (is_line_of(line, address, &path))
            found = (size_t)snprintf(out, n, "%s", path) < n;
    if (maps)
        fclose(maps);
    return found;
}

bool tsr__folder_at(const void *address, char *out, size_t n)
{
    if (!tsr__file_at(address, out, n))
        return false;
    *strrchr(out, '/') = 0;
    return true;
}
