// SPDX-License-Identifier: Apache-2.0
// descriptor.c - open files: their size, reading, mapping and digest. Also what modules ask about
// paths. Modules of portable builds call these functions instead of the system (tools/lint).
#include "base/internal.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGEST_BYTES ((size_t)256 << 10)

void tsr__fd_close(int fd)
{
    close(fd);
}

bool tsr__fd_size(int fd, uint64_t *out)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0)
        return false;
    *out = (uint64_t)facts.st_size;
    return true;
}

// Uses pread, so that a file that shrinks meanwhile is an error, not a signal. Does not move the
// position of the descriptor.
const char *tsr__fd_read(tsr_session *session, int fd, void *out, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = -1;
        if (!fault_io(session, FAULT_READ))
            got = pread(fd, (char *)out + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? strerror(errno) : "the file became shorter while it was read";
        done += (size_t)got;
    }
    return NULL;
}

tsr_status tsr__fd_digest(tsr_session *session, int fd, uint64_t bytes, struct sha256 *sha256,
                          const char **why)
{
    char *buffer = tsr__alloc(session, DIGEST_BYTES);
    if (!buffer)
        return TSR_NOMEM;
    *why = NULL;
    for (uint64_t done = 0; done < bytes && !*why;) {
        size_t n = bytes - done < DIGEST_BYTES ? (size_t)(bytes - done) : DIGEST_BYTES;
        *why = tsr__fd_read(session, fd, buffer, n, done);
        if (!*why)
            tsr__sha256_add(sha256, buffer, n);
        done += n;
    }
    tsr__free(session, buffer, DIGEST_BYTES);
    return *why ? TSR_IO : TSR_OK;
}

const char *tsr__fd_map(tsr_session *session, int fd, uint64_t offset, uint64_t length,
                        struct mapped_range *out)
{
    struct mapped_range range = {.bytes = {"", 0}};
    if (length > 0) {
        uint64_t skip = offset % (uint64_t)sysconf(_SC_PAGESIZE);
        if (length > PTRDIFF_MAX - skip)
            return strerror(EFBIG); // more than this process can address
        if (fault_io(session, FAULT_READ))
            return strerror(errno);
        range.size = (size_t)(length + skip);
        range.base = mmap(NULL, range.size, PROT_READ, MAP_PRIVATE, fd, (off_t)(offset - skip));
        if (range.base == MAP_FAILED)
            return strerror(errno);
        range.bytes = (struct str){(const char *)range.base + skip, (size_t)length};
    }
    *out = range;
    return NULL;
}

void tsr__fd_unmap(struct mapped_range *range)
{
    if (range->base)
        munmap(range->base, range->size);
    *range = (struct mapped_range){0};
}

// ---- paths --------------------------------------------------------------------------------------

bool tsr__path_facts(const char *path, struct path_facts *out)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return false;
    *out = (struct path_facts){facts.st_size, facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec};
    return true;
}

bool tsr__is_private(const struct stat *facts, unsigned access)
{
    return (facts->st_uid == geteuid() || facts->st_uid == 0) &&
           (facts->st_mode & (access | access << 3)) == 0;
}

bool tsr__path_make_folder(const char *path)
{
    struct stat facts;
    return (mkdir(path, 0777) == 0 || errno == EEXIST) && lstat(path, &facts) == 0 &&
           S_ISDIR(facts.st_mode);
}
